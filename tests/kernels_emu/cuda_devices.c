/*
 * cuda_devices.c: preloaded into moe_train, makes every device of it one of the CUDA back end, so that a whole job
 * trains on the kernels (train.py). The job does its own part (embedding, loss, optimizer) by functions of the host,
 * which the library refuses on a GPU's stream because they could not reach its memory; hostcuda's memory they can
 * reach, so here they are work of the stream, and their errors the device's.
 *
 * An option of moe_train was rejected: with a GPU the job could not do this.
 */
#include "kernels/backend.h"
#include "moe_core/include/moe/device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int moe_device_new_host(moe_device_t **out)
{
    return moe_device_new("cuda", out);
}

struct call {
    int *error; /* of the device; kernels write it, too, but not while the stream is here */
    int (*fn)(const void *args);
    _Alignas(max_align_t) unsigned char args[];
};

static void CUDART_CB run(void *data)
{
    struct call *call = data;
    int rc = call->fn(call->args);
    if (rc != 0 && *call->error == 0) {
        *call->error = rc;
    }
    free(call);
}

int moe_device_call(moe_device_t *device, int (*fn)(const void *args), const void *args, size_t bytes)
{
    const struct moe_cuda_state *state = device->state;
    struct call *call = malloc(sizeof(*call) + bytes);
    if (call == NULL) {
        return MOE_E_NOMEM;
    }
    *call = (struct call){.error = state->error, .fn = fn};
    memcpy(call->args, args, bytes);
    if (cudaLaunchHostFunc(device->stream, run, call) != cudaSuccess) {
        free(call);
        return MOE_E_DEVICE;
    }
    return 0;
}
