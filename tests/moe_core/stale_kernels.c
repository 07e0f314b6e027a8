/*
 * stale_kernels.c: a libmoe_kernels.so as it would be out of an older build: the number is right, a struct was shorter.
 * Its functions must not be called.
 */
#include "moe_core/base/device.h"

#include <stdlib.h>

static int open_stale(moe_device_t *device, char *why, size_t room)
{
    (void)device;
    (void)why;
    (void)room;
    abort();
}

__attribute__((visibility("default"))) const struct moe_backend *moe_kernels_backend(void);

const struct moe_backend *moe_kernels_backend(void)
{
    static const struct moe_backend backend = {
        .abi = MOE_BACKEND_ABI, .layout = MOE_BACKEND_LAYOUT - 1, .name = "cuda", .open = open_stale};
    return &backend;
}
