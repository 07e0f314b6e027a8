/*
 * driver_entry.c: finding functions of the driver by name: cuGetProcAddress, from the list in driver.def. A name that
 * is not on the list is reported as not found; a name of which every variant is newer than the caller's version is
 * reported as too new.
 *
 * The second half of this file holds the variants for programs whose default stream is the thread's own: there a stream
 * of 0 means the thread's own stream.
 */
#include "hostnccl/cuda/driver.h"

#include <string.h>

#undef cuGetProcAddress
CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *result);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **nodes, size_t *count);

/* the second forms */

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define PTSZ(call, parameters, arguments)                                                                              \
    DRIVER_EXPORT CUresult call##_ptsz parameters;                                                                     \
    DRIVER_EXPORT CUresult call##_ptsz parameters                                                                      \
    {                                                                                                                  \
        return call arguments;                                                                                         \
    }

PTSZ(cuStreamSynchronize, (CUstream s), (OWN(s)))
PTSZ(cuStreamQuery, (CUstream s), (OWN(s)))
PTSZ(cuStreamGetCtx, (CUstream s, CUcontext *context), (OWN(s), context))
PTSZ(cuStreamGetFlags, (CUstream s, unsigned int *flags), (OWN(s), flags))
PTSZ(cuStreamGetPriority, (CUstream s, int *priority), (OWN(s), priority))
PTSZ(cuStreamGetId, (CUstream s, unsigned long long *id), (OWN(s), id))
PTSZ(cuStreamWaitEvent, (CUstream s, CUevent event, unsigned int flags), (OWN(s), event, flags))
PTSZ(cuEventRecord, (CUevent event, CUstream s), (event, OWN(s)))
PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream s, unsigned int flags), (event, OWN(s), flags))
PTSZ(cuLaunchHostFunc, (CUstream s, CUhostFn fn, void *data), (OWN(s), fn, data))
PTSZ(cuStreamWaitValue32_v2, (CUstream s, CUdeviceptr address, cuuint32_t value, unsigned int flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWaitValue64_v2, (CUstream s, CUdeviceptr address, cuuint64_t value, unsigned int flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWriteValue32_v2, (CUstream s, CUdeviceptr address, cuuint32_t value, unsigned int flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamWriteValue64_v2, (CUstream s, CUdeviceptr address, cuuint64_t value, unsigned int flags),
     (OWN(s), address, value, flags))
PTSZ(cuStreamBatchMemOp_v2, (CUstream s, unsigned int count, CUstreamBatchMemOpParams *ops, unsigned int flags),
     (OWN(s), count, ops, flags))
PTSZ(cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode mode), (OWN(s), mode))
PTSZ(cuStreamBeginCaptureToGraph,
     (CUstream s, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
      CUstreamCaptureMode mode),
     (OWN(s), graph, nodes, edges, count, mode))
PTSZ(cuStreamEndCapture, (CUstream s, CUgraph *graph), (OWN(s), graph))
PTSZ(cuStreamIsCapturing, (CUstream s, CUstreamCaptureStatus *status), (OWN(s), status))
PTSZ(cuStreamGetCaptureInfo_v2,
     (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      size_t *count),
     (OWN(s), status, id, graph, nodes, count))
PTSZ(cuStreamGetCaptureInfo_v3,
     (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
      const CUgraphEdgeData **edges, size_t *count),
     (OWN(s), status, id, graph, nodes, edges, count))
PTSZ(cuStreamUpdateCaptureDependencies_v2,
     (CUstream s, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned int flags),
     (OWN(s), nodes, edges, count, flags))
PTSZ(cuGraphInstantiateWithParams, (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
     (exec, graph, params))
PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream s), (exec, OWN(s)))
PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream s), (exec, OWN(s)))
PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr dst, const void *src, size_t bytes, CUstream s), (dst, src, bytes, OWN(s)))
PTSZ(cuMemcpyDtoHAsync_v2, (void *dst, CUdeviceptr src, size_t bytes, CUstream s), (dst, src, bytes, OWN(s)))
PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s), (dst, src, bytes, OWN(s)))
PTSZ(cuMemsetD8Async, (CUdeviceptr dst, unsigned char value, size_t count, CUstream s), (dst, value, count, OWN(s)))
PTSZ(cuMemsetD16Async, (CUdeviceptr dst, unsigned short value, size_t count, CUstream s), (dst, value, count, OWN(s)))
PTSZ(cuMemsetD32Async, (CUdeviceptr dst, unsigned int value, size_t count, CUstream s), (dst, value, count, OWN(s)))
PTSZ(cuLaunchKernel,
     (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream s, void **arguments,
      void **extra),
     (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, OWN(s), arguments, extra))
PTSZ(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra),
     (config ? &(CUlaunchConfig){.gridDimX = config->gridDimX,
                                 .gridDimY = config->gridDimY,
                                 .gridDimZ = config->gridDimZ,
                                 .blockDimX = config->blockDimX,
                                 .blockDimY = config->blockDimY,
                                 .blockDimZ = config->blockDimZ,
                                 .sharedMemBytes = config->sharedMemBytes,
                                 .hStream = OWN(config->hStream)}
             : NULL,
      function, arguments, extra))
PTSZ(cuLaunchCooperativeKernel,
     (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
      unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream s, void **arguments),
     (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, OWN(s), arguments))

/* the search */

typedef void any_fn(void);

static const struct {
    const char *name;
    any_fn *function, *per_thread;
    int version;
} entries[] = {
#define ENTRY(name, symbol, version)  {#name, (any_fn *)(symbol), (any_fn *)(symbol), version},
#define STREAM(name, symbol, version) {#name, (any_fn *)(symbol), (any_fn *)(symbol##_ptsz), version},
#include "hostnccl/cuda/driver.def"
#undef ENTRY
#undef STREAM
};

static CUresult find(const char *symbol, void **function, int version, cuuint64_t flags, bool is_per_thread,
                     CUdriverProcAddressQueryResult *result)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int newest = 0;
    if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM || cuDriverGetVersion(&newest) ||
        version > newest) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    is_per_thread = flags ? flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : is_per_thread;
    *function = NULL;
    for (size_t i = 0; i < sizeof(entries) / sizeof(*entries); i++) {
        if (strcmp(entries[i].name, symbol)) {
            continue;
        }
        if (entries[i].version <= version) { /* a later variant replaces an earlier one */
            any_fn *const *which = is_per_thread ? &entries[i].per_thread : &entries[i].function;
            memcpy(function, which, sizeof(*function));
            found = CU_GET_PROC_ADDRESS_SUCCESS;
        } else if (found == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) {
            found = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        }
    }
    if (result) {
        *result = found;
    }
    return CUDA_SUCCESS;
}

DRIVER_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                           CUdriverProcAddressQueryResult *result)
{
    return find(symbol, function, version, flags, false, result);
}

DRIVER_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, cuuint64_t flags,
                                                CUdriverProcAddressQueryResult *result)
{
    return find(symbol, function, version, flags, true, result);
}

DRIVER_EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    CUresult result = find(symbol, function, version, flags, false, NULL);
    return result ? result : *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND; /* it has no other way to say so */
}
