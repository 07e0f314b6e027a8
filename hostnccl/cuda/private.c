/* The private table; see private.h. */
#include "hostnccl/cuda/private.h"

#include <string.h>

/* A host node looks like any other to the program: a function and its argument. */
static void never_run(void *data)
{
    (void)data;
}

static cudaError_t launch_prepared(cudaStream_t handle, const struct hostcuda_prepared *how, void *data)
{
    struct hostcuda_stream *stream;
    cudaError_t error = hostcuda_enter_work();
    if (!error) {
        error = hostcuda_stream_get(handle, &stream);
    }
    if (!error) {
        struct hostcuda_work work = {.type = cudaGraphNodeTypeHost,
                                     .arg.host = {.fn = never_run, .data = data, .how = how}};
        error = hostcuda_stream_do(stream, &work);
        hostcuda_stream_put(stream);
    }
    return hostcuda_leave(error);
}

/* The vendor's header declares it for his own libraries only. */
cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *name);

HOSTCUDA_EXPORT cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *name)
{
    static const struct hostcuda_private own = {
        .bytes = sizeof(own),
        .launch_prepared = launch_prepared,
    };
    bool is_known = table && name && !memcmp(name, HOSTCUDA_PRIVATE_ID, sizeof(*name));
    if (is_known) {
        *table = &own;
    }
    return hostcuda_leave(is_known ? cudaSuccess : cudaErrorInvalidValue);
}
