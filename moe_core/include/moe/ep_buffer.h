/*
 * ep_buffer.h: the communication buffer of an expert-parallel group: one per process and group, shared by all layers.
 *
 * A buffer has two areas: a rank receives into one (peers on its node write there: the NVL part) and sends from the
 * other. Where all ranks of the group are on one node, the send area is in the NVL part too and there is no RDMA part;
 * otherwise the send area is the RDMA part. Sources: DeepEP's Buffer (num_nvl_bytes, num_rdma_bytes); Megatron-LM #4816
 * (no RDMA part for a group inside a node: DeepEP built without internode support refuses it). Megatron compares the
 * group's size with the number of visible devices. Here the node's size is configured, or found by exchanging host
 * names, so that it is right as well for a process that sees only its own device.
 *
 * Making a buffer is a collective of the group, and so is making it larger. Every rank must therefore ask for the same
 * sizes at the same place: sizes come from numbers that are equal on all ranks (most tokens, T_pad), never from the
 * rows that a rank happens to have.
 */
#ifndef MOE_EP_BUFFER_H
#define MOE_EP_BUFFER_H

#include "device.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_ep_buffer moe_ep_buffer_t;

struct moe_ep_buffer_info {
    size_t nvl_bytes, rdma_bytes; /* sizes of the two parts, as agreed */
    size_t held_bytes;            /* device memory that the buffer has: 0 where only bounds were agreed */
    int32_t ranks, node_ranks;    /* ranks of the group; ranks of the group on this node */
    uint32_t made;                /* how often the buffer was made or enlarged: the number of collectives issued */
};

/*
 * Gives the buffer of (device, comm) with at least receive_bytes and send_bytes. COLLECTIVE, and a wait, where the
 * buffer is missing or must grow: AllGather of int64 [4] (both sizes, hash of the host's name, remedies proposed).
 * node_ranks is the number of ranks of the group on this node; 0: found by host names. Each *out is owned by the caller
 * and needs one release; borrows device and comm (NULL: one rank, no collective). Growing moves the areas, so ask for
 * them at each use. Threads may call this at once for different devices. Errors: NOMEM, SHAPE (another rank asks for
 * other sizes: the same error on all ranks), COMM, DEVICE.
 */
int moe_ep_buffer_acquire(moe_device_t *device, ncclComm_t comm, size_t receive_bytes, size_t send_bytes,
                          int32_t node_ranks, moe_ep_buffer_t **out);
/* What a caller asks of a buffer. */
struct moe_ep_buffer_want {
    size_t receive_bytes, send_bytes;
    int32_t node_ranks;
    uint32_t proposed; /* remedies (remedy.h) that this rank proposes for the first forward of the layers */
    bool bounds; /* the sizes are the most that can be needed: the group agrees on them, and no memory is made, because
                    the caller takes what it needs from the device's pool. The areas are NULL until somebody acquires
                    them without bounds */
    int failed;  /* 0, or the error that keeps this rank from going on: it takes part in the exchange, where there is
                    one, says which, and gets its error back */
};

/*
 * Gives the object of (device, comm) with the room that the exchange takes, and no area: one of moe_ep_buffer_acquire
 * on the same group, while it is held, lacks no memory of its own for the exchange. No collective; each *out needs a
 * release of its own. Threads as above. Errors: NOMEM, COMM.
 */
int moe_ep_buffer_open(moe_device_t *device, ncclComm_t comm, moe_ep_buffer_t **out);

/*
 * The same as moe_ep_buffer_acquire, with bounds or without. Where a rank has `failed`, or finds no memory for the
 * areas, its peers get its error from the exchange instead of waiting for it later. A rank that has not even the room
 * of the exchange (moe_ep_buffer_open) fails alone.
 */
int moe_ep_buffer_acquire_as(moe_device_t *device, ncclComm_t comm, const struct moe_ep_buffer_want *want,
                             moe_ep_buffer_t **out);

/*
 * Gives the same object with an area of at least `bytes` bytes of device memory for exchanges in which every rank must
 * be able to take part, whatever memory it lacks: layers that take turns on one stream share it. No collective; each
 * *out needs a release of its own. Growing moves the area, so ask for it at each use. Threads as above. Errors: NOMEM.
 */
int moe_ep_buffer_reserve(moe_device_t *device, ncclComm_t comm, size_t bytes, moe_ep_buffer_t **out);
/* `bytes` rounded up to a multiple of 256, the alignment of areas. Any thread. */
size_t moe_ep_buffer_aligned(size_t bytes);
/* That area. Borrowed until the next reserve on the same group. */
void *moe_ep_buffer_exchange(const moe_ep_buffer_t *buffer);

/* Releases one acquisition and clears the pointer; the last release of a buffer frees it. NULL is allowed. */
void moe_ep_buffer_release(moe_ep_buffer_t **buffer);

/* The receive area, device memory aligned to 256 bytes; NULL where only bounds were agreed. Borrowed until the next
 * acquire on the same group. */
void *moe_ep_buffer_receive(const moe_ep_buffer_t *buffer);
/* The send area, device memory aligned to 256 bytes. Borrowed until the next acquire on the same group. */
void *moe_ep_buffer_send(const moe_ep_buffer_t *buffer);

/*
 * The remedies that all ranks proposed in the exchange that made the buffer last: the same on every rank, so a layer
 * may act on them in its first forward, before any exchange of its own.
 */
uint32_t moe_ep_buffer_agreed(const moe_ep_buffer_t *buffer);

/* Fills *info with the sizes and numbers of the buffer. */
void moe_ep_buffer_describe(const moe_ep_buffer_t *buffer, struct moe_ep_buffer_info *info);

#ifdef __cplusplus
}
#endif
#endif
