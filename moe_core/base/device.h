/*
 * device.h: what a device is made of, and what a back end brings: shared by moe_core and the back ends' own code.
 *
 * A back end is one static table. The host's is linked in; CUDA's comes out of libmoe_kernels.so, which knows nothing
 * of libmoe_core.so but this header and ops.h. The two numbers at the head of the table guard the call: a library built
 * from other headers is refused, not called. The layout is computed from the sizes of all structs and the places of all
 * functions, so that nobody can forget to change it. The ABI number is changed by hand, for changes that no size shows.
 */
#ifndef MOE_CORE_BASE_DEVICE_H
#define MOE_CORE_BASE_DEVICE_H

#include "moe_core/include/moe/ops.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Increase this number when a member of struct moe_backend, of struct moe_device or of a struct of ops.h changes its
 * meaning, or changes places with a member of its size. MOE_BACKEND_LAYOUT sees every other change.
 */
#define MOE_BACKEND_ABI 3

/*
 * The functions of a back end. All but alloc and release are called on a device whose stream exists; results are codes
 * of err.def.
 */
struct moe_backend {
    uint32_t abi;    /* MOE_BACKEND_ABI */
    uint32_t layout; /* MOE_BACKEND_LAYOUT */
    const char *name;
    const struct moe_ops *(*ops)(void);
    /*
     * Makes device->state. On failure `why` holds the reason (at most `room` bytes). Errors: UNSUPPORTED (this machine
     * has no such device).
     */
    int (*open)(moe_device_t *device, char *why, size_t room);
    void (*close)(moe_device_t *device);
    /* Returns zeroed memory, NULL when there is none left. bytes > 0. */
    void *(*alloc)(moe_device_t *device, size_t bytes);
    void (*release)(moe_device_t *device, void *memory);
    /* Waits for the stream. *error is the first error met in the stream since the last call, 0 without one. */
    cudaError_t (*sync)(moe_device_t *device, int *error);
};

struct moe_device {
    const struct moe_backend *backend;
    cudaStream_t stream;
    bool borrowed; /* the stream is the caller's: `open` finds it here, and `close` leaves it */
    void *state;   /* owned by the back end */
    /*
     * The rank and the layers whose work has been enqueued since the last wait: moe_device_sync names them when the
     * stream finds an error. Back ends do not read these members.
     */
    int32_t rank;
    uint32_t first_layer, last_layer; /* UINT32_MAX: none */
    struct moe_memory *memory;        /* memory.c; owned. Back ends do not read it */
};

/* A hash of what a translation unit takes the interface to be: where each function is in the table, and how long its
 * struct and those inside are. */
#define MOE_SIZED(type, place)  +((uint32_t)(place) + 1u) * 2654435761u * ((uint32_t)sizeof(struct type) + 7u)
#define MOE_CUDA_OP(name, type) MOE_SIZED(type, offsetof(struct moe_ops, name))
enum {
    MOE_BACKEND_LAYOUT = (int)((0u
#include "moe_core/base/ops.def"
                                MOE_SIZED(moe_ops, 1) MOE_SIZED(moe_backend, 2) MOE_SIZED(moe_device, 3)
                                    MOE_SIZED(moe_linear_group, 4) MOE_SIZED(moe_map_header, 5)
                                        MOE_SIZED(moe_map_view, 6) MOE_SIZED(moe_scoring, 7) MOE_SIZED(moe_clamp, 9)) &
                               0x7fffffffu)
};
#undef MOE_CUDA_OP
#undef MOE_SIZED

#pragma GCC visibility push(hidden)

/* The back end that is linked in, the host's (host/device_host.c). Static storage. */
const struct moe_backend *moe_host_backend(void);

/*
 * Notes that work of this rank and layer is about to be enqueued; moe_device_sync names the rank and the layer where
 * the stream finds an error.
 */
void moe_device_at(moe_device_t *device, int32_t rank, uint32_t layer);

#pragma GCC visibility pop

/* The function of libmoe_kernels.so that moe_core asks for; its table has static storage. */
#define MOE_KERNELS_LIBRARY "libmoe_kernels.so"
#define MOE_KERNELS_BACKEND "moe_kernels_backend"
typedef const struct moe_backend *moe_kernels_backend_fn(void);

#ifdef __cplusplus
}
#endif
#endif
