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
 *   MAX     AllReduce MAX of int64 [1] on the dispatch group, and the host waits for it: once per layer-forward on
 * every rank, T = 0 included, and once more in recompute. Remedy R4. BOUND   the configured bound: no collective, no
 * wait. A T beyond the bound is an error on that rank before any collective. Remedy R4'. NONE    T_pad is T.
 *
 * Source: Megatron-LM #4816 (HybridEP manager, setup_metadata, HYBRIDEP_TOKEN_ALIGNMENT); the bound was proposed in the
 * review of that pull request.
 */
#ifndef MOE_UNEVEN_H
#define MOE_UNEVEN_H

#include "device.h"
#include "dispatcher.h"

#include <nccl.h>
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

/* `tokens` rounded up to a multiple of MOE_TOKEN_ALIGN. Any thread. */
int64_t moe_uneven_round(int64_t tokens);

/*
 * Makes the padding of one group; issues no collective. *out is owned by the caller; borrows device and comm. One
 * thread at a time. Errors: NOMEM, SHAPE (a negative number), COMM.
 */
int moe_uneven_new(moe_device_t *device, const struct moe_uneven_config *config, moe_uneven_group_t **out);
/* Frees the object and clears the pointer. NULL is allowed. */
void moe_uneven_destroy(moe_uneven_group_t **group);

/* The largest T_pad that can occur, for the sizes of buffers. */
int64_t moe_uneven_most(const moe_uneven_group_t *group);

/*
 * Finds T_pad of this layer-forward in *padded. MAX issues a collective and waits; every rank of the group must call
 * this function with the same kind. Errors, local and before any collective: SHAPE (T negative or more than
 * max_tokens), CAPACITY (BOUND: T beyond the bound), UNSUPPORTED (BOUND without a bound). Errors after the collective:
 * CAPACITY (a peer has more than max_tokens: the same on every rank), COMM, DEVICE.
 */
int moe_uneven_agree(moe_uneven_group_t *group, enum moe_uneven kind, int64_t tokens, int64_t *padded);

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
