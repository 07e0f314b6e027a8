/* private.c: the private table; see private.h. */
#include "hostnccl/cuda/private.h"

#include "hostnccl/cuda/capture.h"
#include "hostnccl/cuda/graph_node.h"

#include <string.h>

/* To the program a host node is a function and its argument; this function stands there and is never called. */
static void never_run(void *data)
{
    (void)data;
}

static cudaError_t enqueue(cudaStream_t handle, struct hostcuda_work *work)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_stream(handle, &stream);
    if (error) {
        hostcuda_work_drop(work);
        return hostcuda_leave(error);
    }
    error = hostcuda_stream_do(stream, work);
    hostcuda_stream_put(stream);
    return hostcuda_leave(error);
}

static cudaError_t launch_prepared(cudaStream_t stream, const struct hostcuda_prepared *how, void *data)
{
    struct hostcuda_work work = {.type = cudaGraphNodeTypeHost,
                                 .arg.host = {.fn = never_run, .data = data, .how = how}};
    return enqueue(stream, &work);
}

static cudaError_t stream_device(cudaStream_t handle, int *device)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter();
    if (!error) {
        error = hostcuda_stream_get(handle, &stream);
    }
    if (!error) {
        *device = stream->device;
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

static bool is_reachable(const void *address, size_t bytes)
{
    struct hostcuda_range range;
    return hostcuda_range_find(address, bytes, &range);
}

/* Fills count elements of 1, 2 or 4 bytes in a stream's order. */
static cudaError_t fill(void *dst, unsigned int value, unsigned int element, size_t count, cudaStream_t stream)
{
    struct hostcuda_work work;
    struct cudaMemsetParams params = {
        .dst = dst, .value = value, .elementSize = element, .width = count, .height = 1, .pitch = count * element};
    cudaError_t error = hostcuda_enter_work();
    if (error || !count) {
        return hostcuda_leave(error);
    }
    error = hostcuda_work_of_fill(&work, &params);
    return error ? hostcuda_leave(error) : enqueue(stream, &work);
}

static bool is_started(void)
{
    return hostcuda_device_count() > 0;
}

static void quiet(bool is_quiet)
{
    hostcuda_self()->is_quiet = is_quiet;
}

HOSTCUDA_EXPORT cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *name)
{
    static const struct hostcuda_private own = {.bytes = sizeof(own),
                                                .launch_prepared = launch_prepared,
                                                .enqueue = enqueue,
                                                .capture_info = hostcuda_capture_info,
                                                .capture_update = hostcuda_capture_update,
                                                .stream_device = stream_device,
                                                .is_reachable = is_reachable,
                                                .is_started = is_started,
                                                .device_about = hostcuda_about,
                                                .physical_about = hostcuda_about_physical,
                                                .users = hostcuda_shared_users,
                                                .quiet = quiet,
                                                .error_text = cudaGetErrorString,
                                                .fault_set = hostcuda_fault_set,
                                                .fault = hostcuda_fault,
                                                .range_find = hostcuda_range_find,
                                                .pieces_of = hostcuda_pieces_of,
                                                .unsupported = hostcuda_unsupported,
                                                .policy = hostcuda_policy,
                                                .function_named = hostcuda_function_named,
                                                .twin_add = hostcuda_twin_add,
                                                .kernel_launch = hostcuda_kernel_launch,
                                                .image_of = hostcuda_image_of,
                                                .image_has = hostcuda_image_has,
                                                .fill = fill,
                                                .add_node = HOSTCUDA_FORM(cudaGraphAddNode, _v2),
                                                .virtual = {.reserve = hostcuda_virtual_reserve,
                                                            .free = hostcuda_virtual_free,
                                                            .create = hostcuda_virtual_create,
                                                            .release = hostcuda_virtual_release,
                                                            .retain = hostcuda_virtual_retain,
                                                            .about = hostcuda_virtual_about,
                                                            .map = hostcuda_virtual_map,
                                                            .unmap = hostcuda_virtual_unmap,
                                                            .access = hostcuda_virtual_access,
                                                            .export = hostcuda_virtual_export,
                                                            .import = hostcuda_virtual_import},
#define X(name) .name = name,
                                                HOSTCUDA_PASSED_ON(X)
#undef X
    };
    bool is_known = table && name && !memcmp(name, HOSTCUDA_PRIVATE_ID, sizeof(*name));
    if (is_known) {
        *table = &own;
    }
    return hostcuda_leave(is_known ? cudaSuccess : cudaErrorInvalidValue);
}
