/*
 * private.h: what hostcuda gives to hostnccl and to the driver interface beside the public calls. They get this table
 * through cudaGetExportTable, as the vendor's libraries do among themselves, so no symbol of ours appears in the
 * library's list.
 */
#ifndef ROLL_HOSTNCCL_CUDA_PRIVATE_H
#define ROLL_HOSTNCCL_CUDA_PRIVATE_H

#include "hostnccl/cuda/kernel.h"
#include "hostnccl/cuda/memory.h"

/* The name of the table: 16 bytes. Changed with the table. */
#define HOSTCUDA_PRIVATE_ID "hostcuda table 9"

/* The vendor's header declares this function for the vendor's own libraries only. */
cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *name);

/* Since CUDA 12.3; older headers do not declare it. */
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                          const cudaGraphEdgeData *edges, size_t count,
                                          enum cudaStreamCaptureMode mode);

/* The public calls that the driver interface passes on to. */
#define HOSTCUDA_PASSED_ON(X)                                                                                          \
    X(cudaRuntimeGetVersion)                                                                                           \
    X(cudaGetDeviceCount)                                                                                              \
    X(cudaGetDevice)                                                                                                   \
    X(cudaSetDevice)                                                                                                   \
    X(cudaDeviceGetAttribute)                                                                                          \
    X(cudaDeviceSynchronize)                                                                                           \
    X(cudaMalloc)                                                                                                      \
    X(cudaFree)                                                                                                        \
    X(cudaHostAlloc)                                                                                                   \
    X(cudaFreeHost)                                                                                                    \
    X(cudaHostRegister)                                                                                                \
    X(cudaHostUnregister)                                                                                              \
    X(cudaHostGetDevicePointer)                                                                                        \
    X(cudaStreamCreateWithPriority)                                                                                    \
    X(cudaStreamDestroy)                                                                                               \
    X(cudaStreamSynchronize)                                                                                           \
    X(cudaStreamQuery)                                                                                                 \
    X(cudaStreamGetFlags)                                                                                              \
    X(cudaStreamGetPriority)                                                                                           \
    X(cudaStreamGetId)                                                                                                 \
    X(cudaStreamWaitEvent)                                                                                             \
    X(cudaEventCreateWithFlags)                                                                                        \
    X(cudaEventDestroy)                                                                                                \
    X(cudaEventRecordWithFlags)                                                                                        \
    X(cudaEventQuery)                                                                                                  \
    X(cudaEventSynchronize)                                                                                            \
    X(cudaEventElapsedTime)                                                                                            \
    X(cudaLaunchHostFunc)                                                                                              \
    X(cudaStreamBeginCapture)                                                                                          \
    X(cudaStreamBeginCaptureToGraph)                                                                                   \
    X(cudaStreamEndCapture)                                                                                            \
    X(cudaStreamIsCapturing)                                                                                           \
    X(cudaThreadExchangeStreamCaptureMode)                                                                             \
    X(cudaGraphCreate)                                                                                                 \
    X(cudaGraphDestroy)                                                                                                \
    X(cudaGraphClone)                                                                                                  \
    X(cudaGraphGetNodes)                                                                                               \
    X(cudaGraphGetRootNodes)                                                                                           \
    X(cudaGraphNodeGetType)                                                                                            \
    X(cudaGraphAddKernelNode)                                                                                          \
    X(cudaGraphAddMemcpyNode)                                                                                          \
    X(cudaGraphAddMemsetNode)                                                                                          \
    X(cudaGraphAddHostNode)                                                                                            \
    X(cudaGraphAddChildGraphNode)                                                                                      \
    X(cudaGraphAddEmptyNode)                                                                                           \
    X(cudaGraphAddEventRecordNode)                                                                                     \
    X(cudaGraphAddEventWaitNode)                                                                                       \
    X(cudaGraphNodeSetParams)                                                                                          \
    X(cudaGraphExecNodeSetParams)                                                                                      \
    X(cudaGraphConditionalHandleCreate)                                                                                \
    X(cudaGraphInstantiateWithFlags)                                                                                   \
    X(cudaGraphInstantiateWithParams)                                                                                  \
    X(cudaGraphExecUpdate)                                                                                             \
    X(cudaGraphExecDestroy)                                                                                            \
    X(cudaGraphUpload)                                                                                                 \
    X(cudaGraphLaunch)                                                                                                 \
    X(cudaUserObjectCreate)                                                                                            \
    X(cudaUserObjectRetain)                                                                                            \
    X(cudaUserObjectRelease)                                                                                           \
    X(cudaGraphRetainUserObject)                                                                                       \
    X(cudaGraphReleaseUserObject)                                                                                      \
    X(cudaFuncGetAttributes)                                                                                           \
    X(cudaFuncSetAttribute)                                                                                            \
    X(cudaFuncSetCacheConfig)                                                                                          \
    X(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)                                                          \
    X(cudaMemGetInfo)                                                                                                  \
    X(cudaDeviceGetPCIBusId)                                                                                           \
    X(cudaDeviceGetStreamPriorityRange)                                                                                \
    X(cudaLibraryLoadData)                                                                                             \
    X(cudaLibraryLoadFromFile)                                                                                         \
    X(cudaLibraryUnload)                                                                                               \
    X(cudaLibraryGetKernel)                                                                                            \
    X(cudaDeviceSetLimit)                                                                                              \
    X(cudaDeviceGetLimit)                                                                                              \
    X(cudaOccupancyMaxActiveClusters)                                                                                  \
    X(cudaMemcpy)                                                                                                      \
    X(cudaMemcpyAsync)                                                                                                 \
    X(cudaMemset)                                                                                                      \
    X(cudaMemsetAsync)

struct hostcuda_private {
    size_t bytes; /* of this struct */

    /*
     * Enqueues a host function that is told of every launch, or adds it to the capture of the stream. `how` must stay
     * valid. Errors: those of cudaLaunchHostFunc. Any thread.
     */
    cudaError_t (*launch_prepared)(cudaStream_t stream, const struct hostcuda_prepared *how, void *data);

    /* Enqueues work, or adds it to the capture of the stream. Takes what the work owns, also on failure. The same
     * errors. */
    cudaError_t (*enqueue)(cudaStream_t stream, struct hostcuda_work *work);

    /* Describes the capture of a stream, as cudaStreamGetCaptureInfo does; pointers that are NULL are skipped. */
    cudaError_t (*capture_info)(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph, const cudaGraphNode_t **nodes, size_t *count);

    /* Does what cudaStreamUpdateCaptureDependencies does. */
    cudaError_t (*capture_update)(cudaStream_t stream, cudaGraphNode_t *nodes, size_t count, unsigned int flags);

    /* The device of a stream. */
    cudaError_t (*stream_device)(cudaStream_t stream, int *device);

    /* Whether bytes at an address are memory that the device may reach. */
    bool (*is_reachable)(const void *address, size_t bytes);

    /* Whether some call has started the runtime. */
    bool (*is_started)(void);

    /* What a device is, as in its properties, whose layout is another one in every release. cudaErrorInvalidDevice,
     * errors of the start. */
    cudaError_t (*device_about)(int number, struct hostcuda_about *about);
    cudaError_t (*physical_about)(int physical, struct hostcuda_about *about);
    size_t (*users)(int physical, struct hostcuda_user *users, size_t room); /* other processes */

    /* Says whether errors of this thread's calls become its last error from now on. */
    void (*quiet)(bool is_quiet);

    const char *(*error_text)(cudaError_t error);

    /* See hostcuda.h. */
    bool (*fault_set)(cudaError_t error);
    cudaError_t (*fault)(void);

    /* See memory.h, hostcuda.h and kernel.h. */
    bool (*range_find)(const void *address, size_t bytes, struct hostcuda_range *range);
    __typeof__(&hostcuda_pieces_of) pieces_of;
    cudaError_t (*unsupported)(const char *call, const char *why);
    enum hostcuda_policy (*policy)(void);
    struct hostcuda_function *(*function_named)(const char *name);
    int (*twin_add)(const char *name, hostcuda_kernel_fn *fn, size_t count, const size_t *bytes);
    cudaError_t (*kernel_launch)(struct hostcuda_function *function, const struct hostcuda_launch_config *config,
                                 cudaStream_t stream);
    enum hostcuda_image (*image_of)(const void *image);
    bool (*image_has)(enum hostcuda_image kind, const void *image, const char *name);
    cudaError_t (*fill)(void *dst, unsigned int value, unsigned int element, size_t count, cudaStream_t stream);

    /* cudaGraphAddNode with data of edges, whose name differs between releases. */
    cudaError_t (*add_node)(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before,
                            const cudaGraphEdgeData *edges, size_t count, struct cudaGraphNodeParams *params);

    /* See memory.h. */
    struct {
        __typeof__(&hostcuda_virtual_reserve) reserve;
        __typeof__(&hostcuda_virtual_free) free;
        __typeof__(&hostcuda_virtual_create) create;
        __typeof__(&hostcuda_virtual_release) release;
        __typeof__(&hostcuda_virtual_retain) retain;
        __typeof__(&hostcuda_virtual_about) about;
        __typeof__(&hostcuda_virtual_map) map;
        __typeof__(&hostcuda_virtual_unmap) unmap;
        __typeof__(&hostcuda_virtual_access) access;
        __typeof__(&hostcuda_virtual_export) export;
        __typeof__(&hostcuda_virtual_import) import;
    } virtual;

#define X(name) __typeof__(&name) name;
    HOSTCUDA_PASSED_ON(X)
#undef X
};

/* find.c: the table of this process's runtime, which is loaded where there is none; NULL where it is not ours. Any
 * thread. */
const struct hostcuda_private *hostcuda_find(void);

/* The same, without loading one. */
const struct hostcuda_private *hostcuda_find_loaded(void);

#endif
