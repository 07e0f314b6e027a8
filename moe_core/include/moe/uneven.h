/*
 * uneven.h: ranks with different numbers of tokens in a collective that needs equal ones (packed sequences, THD).
 *
 * Every rank pads its tokens to one number T_pad, a multiple of MOE_TOKEN_ALIGN: routing map false, probabilities 0,
 * hidden 0. Padding tokens are routed nowhere, so they take no row of an expert, and the results on real tokens are
 * bitwise independent of the number of padding tokens. After combine the first T rows are kept. Backward pads the
 * gradients of the output with zeros and trims those of the input. Budgets and capacities are computed from T_pad,
 * never from T.
 *
 * How T_pad is found (enum moe_uneven of dispatcher.h):
 *
 *   MAX     AllReduce MAX of int64 [1] on the dispatch group, and the host waits for it: once per microbatch on every
 *           rank, T = 0 included; the other layers of the microbatch, and its recomputed forwards, take what was
 * agreed. Remedy R4. BOUND   the configured bound: no collective, no wait. A T beyond the bound is an error on that
 * rank before any collective. Remedy R4'. NONE    T_pad is T.
 *
 * A microbatch is known by its step and its number (struct moe_uneven_place). All objects of a process on the same
 * device and group share what was agreed, for the last MOE_UNEVEN_MICROBATCHES microbatches; so the layers of a
 * microbatch must have the same T on this rank, or at least none beyond T_pad (CAPACITY on that rank, before any
 * collective). The object that agreed agrees anew when it comes again with the same place and not in recompute: that is
 * another microbatch by the same name. These rules use nothing but the order of calls, which is the same on all ranks.
 *
 * Source: Megatron-LM #4816 (HybridEP manager, setup_metadata, HYBRIDEP_TOKEN_ALIGNMENT); the bound was proposed in the
 * review of that pull request.
 */
#ifndef MOE_UNEVEN_H
#define MOE_UNEVEN_H

#include "device.h"
#include "dispatcher.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_uneven_group moe_uneven_group_t;

struct moe_uneven_config {
    int64_t max_tokens;  /* the largest T of any rank; all ranks must give the same number */
    int64_t token_bound; /* T_pad of BOUND; all ranks must give the same number; 0: no bound */
    ncclComm_t comm;     /* the dispatch group; borrowed; NULL: one rank */
    int32_t world_rank;  /* appears in messages */
    uint32_t layer;      /* appears in messages */
};

/* Microbatches whose T_pad is remembered: more than any schedule has in flight. */
#define MOE_UNEVEN_MICROBATCHES 64

/* Which microbatch a layer-forward belongs to; the same on all ranks of the group. */
struct moe_uneven_place {
    uint32_t step;
    uint16_t microbatch;
    bool again; /* a recomputed forward */
};

/* `tokens` rounded up to a multiple of MOE_TOKEN_ALIGN. Any thread. */
int64_t moe_uneven_round(int64_t tokens);

/*
 * Makes the padding of one group; issues no collective. *out is owned by the caller; borrows device and comm. One
 * thread at a time. Errors: NOMEM, SHAPE (a negative number), COMM.
 */
int moe_uneven_new(moe_device_t *device, const struct moe_uneven_config *config, moe_uneven_group_t **out);
/* Frees the object and clears the pointer. NULL is allowed. */
void moe_uneven_destroy(moe_uneven_group_t **group);

/* The largest T_pad that can occur, for the sizes of buffers; of a configuration, any thread. */
int64_t moe_uneven_bound(const struct moe_uneven_config *config);
int64_t moe_uneven_most(const moe_uneven_group_t *group);

/*
 * Finds T_pad of this layer-forward in *padded. MAX issues a collective and waits, unless the microbatch of `place` has
 * agreed before; place = NULL: it always does. Every rank of the group must call this function with the same kind and
 * place. Errors, local and before any collective: SHAPE (T negative or more than max_tokens), CAPACITY (BOUND: T beyond
 * the bound; MAX: T beyond what the microbatch agreed on), UNSUPPORTED (BOUND without a bound). Errors after the
 * collective: CAPACITY (a peer has more than max_tokens: the same on every rank), COMM, DEVICE.
 */
int moe_uneven_agree(moe_uneven_group_t *group, enum moe_uneven kind, const struct moe_uneven_place *place,
                     int64_t tokens, int64_t *padded);

/*
 * Enqueues to [padded, row_bytes] = from [tokens, row_bytes], then zeros. The buffers do not overlap. Errors: SHAPE,
 * DEVICE.
 */
int moe_uneven_pad(moe_device_t *device, const void *from, int64_t tokens, int64_t padded, size_t row_bytes, void *to);
/* Enqueues to [tokens, row_bytes] = the first rows of from. The buffers do not overlap. Errors: SHAPE, DEVICE. */
int moe_uneven_trim(moe_device_t *device, const void *from, int64_t tokens, size_t row_bytes, void *to);

#ifdef __cplusplus
}
#endif
#endif
