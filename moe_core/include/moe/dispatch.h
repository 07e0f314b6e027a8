/*
 * dispatch.h: the all-to-all dispatcher: rows to the ranks that own their experts, and back.
 *
 * Collectives on `ep`, in this order (Megatron-LM token_dispatcher, AlltoAll, etp = 1; weights are applied at the
 * source, so that no probabilities travel):
 *   counts            AllGather of int64 [E + 1]: tokens per expert, and the remedies that the rank proposes
 *   dispatch          all-to-all-v of rows            backward, 2nd: all-to-all-v, splits swapped
 *   combine           all-to-all-v, splits swapped    backward, 1st: all-to-all-v
 * An all-to-all-v is one group of sends and receives; calls of zero rows are left out, as frameworks do. With one rank
 * all of it is bypassed.
 *
 * The remedies in force are the bitwise AND of all proposals: every rank sees all of them in the same exchange, so all
 * agree. With PAD, each rank r that nobody sends a row to is sent one zero row for its first expert by rank (r + 1)
 * mod ranks.
 */
#ifndef MOE_DISPATCH_H
#define MOE_DISPATCH_H

#include "device.h"

#include <nccl.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_dispatch moe_dispatch_t;

struct moe_dispatch_config {
    int64_t max_tokens, hidden, experts;
    int32_t topk;
    ncclComm_t ep;      /* borrowed; NULL: one rank, no communication */
    int32_t world_rank; /* for messages */
    uint32_t layer;     /* for messages */
};

/* *out is owned; borrows device and ep. Errors: NOMEM, SHAPE (E not a multiple of the ranks), COMM. One thread at a
 * time. */
int moe_dispatch_new(moe_device_t *device, const struct moe_dispatch_config *config, moe_dispatch_t **out);
void moe_dispatch_destroy(moe_dispatch_t **dispatch);

int32_t moe_dispatch_ranks(const moe_dispatch_t *dispatch);
int32_t moe_dispatch_rank(const moe_dispatch_t *dispatch);

/*
 * Exchanges counts [E] (device) and the proposed remedies; waits for the stream, because the splits are host numbers.
 * Afterwards the plan below is valid, and *agreed holds the remedies of the whole group. `sent` = rows that counts
 * must add up to (T k). Errors: SPLIT, COUNT, CAPACITY, COMM, DEVICE.
 */
int moe_dispatch_exchange(moe_dispatch_t *dispatch, const int64_t *counts, int64_t sent, uint32_t proposed,
                          uint32_t *agreed);

/* The plan of the last exchange: rows this rank sends and receives in dispatch, padding included. */
int64_t moe_dispatch_rows_sent(const moe_dispatch_t *dispatch);
int64_t moe_dispatch_rows_received(const moe_dispatch_t *dispatch);
/* Rows to and from one ep rank. */
int64_t moe_dispatch_split_sent(const moe_dispatch_t *dispatch, int32_t peer);
int64_t moe_dispatch_split_received(const moe_dispatch_t *dispatch, int32_t peer);
/* Rows received that are PAD's zero rows: 0 or 1. */
int64_t moe_dispatch_rows_padded(const moe_dispatch_t *dispatch);
/* Local experts without rows. */
int64_t moe_dispatch_empty_experts(const moe_dispatch_t *dispatch);
/* Device memory: counts of this rank [E], padding included; rows per local expert [L]. Borrowed. */
const int64_t *moe_dispatch_counts(const moe_dispatch_t *dispatch);
const int64_t *moe_dispatch_m(const moe_dispatch_t *dispatch);

/* Source-ordered rows [sent,H] to the experts' ranks: expert-major rows [received,H]. Errors: STATE, COMM. */
int moe_dispatch_forward(moe_dispatch_t *dispatch, const float *rows, float *expert_rows);
/* The way back: expert-major rows [received,H] to source-ordered rows [sent,H]. Errors: STATE, COMM. */
int moe_combine_forward(moe_dispatch_t *dispatch, const float *expert_rows, float *rows);
/* Gradients take the other's way. Errors as above. */
int moe_combine_backward(moe_dispatch_t *dispatch, const float *d_rows, float *d_expert_rows);
int moe_dispatch_backward(moe_dispatch_t *dispatch, const float *d_expert_rows, float *d_rows);

#ifdef __cplusplus
}
#endif
#endif
