/*
 * bucket.h: gradient buckets: a flat buffer of main_grads that is reduced piece by piece, each piece as soon as all of
 * its gradients have arrived.
 *
 * The semantics are Megatron-LM's (distributed_data_parallel.py, param_and_grad_buffer.py). A hook per parameter counts
 * the gradients of that parameter. The first batch reduces everything at its end and keeps the counts as golden. From
 * the second batch on, with overlap, the hook that makes all counts of a bucket golden issues the bucket's collective.
 * A bucket that is incomplete at the end of a batch is an error that names its parameters; this rank stops with that
 * error while its peers, whose bucket was complete, hang in the collective (hazard H2). Without overlap every bucket is
 * reduced at the end of the batch, whatever the counts. The simpler form, one AllReduce for one buffer, is reduce.h.
 */
#ifndef MOE_BUCKET_H
#define MOE_BUCKET_H

#include "device.h"

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_buckets moe_buckets_t;

enum moe_bucket_op {
    MOE_BUCKET_ALLREDUCE = 0,
    MOE_BUCKET_REDUCESCATTER =
        1, /* each rank gets the sum of its own part of the bucket only (distributed optimizer) */
};

/*
 * Where the main_grad of one parameter lies in the buffer. Offsets ascend in the order of forward and ranges do not
 * overlap; gaps between them are padding.
 */
struct moe_bucket_parameter {
    const char *name;     /* appears in messages; borrowed */
    uint32_t layer;       /* UINT32_MAX for none */
    size_t offset, count; /* elements */
};

struct moe_buckets_config {
    float *grad;     /* device memory [count], owned by the caller */
    size_t count;    /* elements, padding included */
    ncclComm_t comm; /* dp for dense parameters, edp for experts; borrowed; NULL: gradients are only scaled */
    /*
     * The number of ranks over whose tokens the gradient is a mean. It is dp for experts too, because an expert's
     * gradient already holds the tokens of its ep group. The gradient is scaled by 1/dp before a sum, or with
     * average_in_collective by edp/dp (1 for dense parameters) before an average. 0 means the size of comm.
     */
    int32_t dp;
    bool average_in_collective;
    enum moe_bucket_op op;
    size_t bucket_bytes; /* a bucket is closed before it exceeds this size; a larger parameter gets a bucket of its own;
                            0: one bucket */
    bool overlap;        /* collectives are issued by the hooks, during backward */
    cudaStream_t stream; /* the stream of the collectives; NULL: the device's own stream */
    bool legacy_wait; /* H2: a bucket that stays incomplete is left out silently: this rank never issues its collective
                       */
    bool legacy_only_with_grad; /* H3: buckets hold only parameters that got a gradient, so bucket sizes differ between
                                   ranks (FSDP2) */
    int32_t world_rank;         /* appears in messages */
};

/*
 * Divides `n` parameters into buckets, filled from the last parameter to the first, which is the order of backward.
 * *out is owned by the caller. Borrows device, the pointers in config and the names; copies the parameters. All
 * functions of this file: one thread at a time. Errors: ARG (no parameters), SHAPE (ranges that overlap or leave the
 * buffer; with REDUCESCATTER a bucket that the number of ranks does not divide), NOMEM, COMM, DEVICE.
 */
int moe_buckets_new(moe_device_t *device, const struct moe_buckets_config *config,
                    const struct moe_bucket_parameter *parameters, int32_t n, moe_buckets_t **out);
/* Frees the buckets and clears the pointer. NULL is allowed. */
void moe_buckets_destroy(moe_buckets_t **buckets);

/*
 * The hook of a parameter: call it after one gradient of parameter `which` (an index into `parameters`) was added to
 * its main_grad by work enqueued on the device's stream. May issue a collective. Errors: ARG, STATE (more gradients
 * than in the first batch), COMM, DEVICE.
 */
int moe_buckets_ready(moe_buckets_t *buckets, int32_t which);

/*
 * Ends a batch: issues the collectives that were not issued yet, makes the device's stream wait for all of them, and
 * resets the counts. Errors: STATE, with overlap, for a bucket that stayed incomplete ("1 of 3 parameters: layer 2 w1")
 * and, in the first batch, for a parameter that got no gradient; COMM, DEVICE.
 */
int moe_buckets_finish(moe_buckets_t *buckets);

/* The number of buckets, numbered from 0 in the order in which they fill. */
int32_t moe_buckets_count(const moe_buckets_t *buckets);
/* The number of buckets whose collective was issued since the last moe_buckets_finish. */
int32_t moe_buckets_issued(const moe_buckets_t *buckets);

/* The elements [*offset, *offset + *count) of the buffer that bucket i covers. */
void moe_buckets_range(const moe_buckets_t *buckets, int32_t i, size_t *offset, size_t *count);
/*
 * The elements [*offset, *offset + *count) of the buffer whose sum this rank holds after moe_buckets_finish: with
 * REDUCESCATTER this rank's part of bucket i, else the whole bucket.
 */
void moe_buckets_shard(const moe_buckets_t *buckets, int32_t i, size_t *offset, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
