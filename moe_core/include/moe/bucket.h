/*
 * bucket.h: gradient buckets: a flat buffer of main_grads, reduced in pieces, each as soon as its gradients are there.
 *
 * Semantics of Megatron-LM (distributed_data_parallel.py, param_and_grad_buffer.py). A hook per parameter counts its
 * gradients. In the first batch everything is reduced at its end, and the counts are kept as golden; afterwards, with
 * overlap, a bucket's collective is issued by the hook that makes all its counts golden. A bucket that is not complete
 * at the end of a batch is an error that names the parameters; what hangs then is the peers, whose buckets were (hazard
 * H2). Without overlap every bucket is reduced at the end whatever the counts. reduce.h is the simple form.
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
    MOE_BUCKET_REDUCESCATTER = 1, /* each rank gets the sum of its part of the bucket only (distributed optimizer) */
};

/* One parameter's main_grad in the buffer. Offsets ascend in the order of forward and do not overlap; gaps are padding.
 */
struct moe_bucket_parameter {
    const char *name;     /* for messages; borrowed */
    uint32_t layer;       /* UINT32_MAX for none */
    size_t offset, count; /* elements */
};

struct moe_buckets_config {
    float *grad;     /* device [count]; the caller's */
    size_t count;    /* elements, padding included */
    ncclComm_t comm; /* dp for dense parameters, edp for experts; borrowed; NULL: only scale */
    /*
     * Ranks over whose tokens the gradient is a mean: dp, for experts too, because an expert's gradient already holds
     * the tokens of its ep group. Scaling is by 1/dp before the sum, or with average_in_collective by edp/dp (1 for
     * dense) before an average. 0 means the ranks of comm.
     */
    int32_t dp;
    bool average_in_collective;
    enum moe_bucket_op op;
    size_t bucket_bytes; /* a bucket is closed before it gets larger; a parameter that is larger is a bucket of its own;
                            0: one bucket */
    bool overlap;
    cudaStream_t stream; /* of the collectives; NULL: the device's own, in line with everything else */
    bool legacy_wait;    /* H2: a bucket that never gets complete is left out silently: this rank never issues its
                            collective */
    bool legacy_only_with_grad; /* H3: buckets hold only parameters that got a gradient, so that their sizes differ
                                   between ranks (FSDP2) */
    int32_t world_rank;         /* for messages */
};

/*
 * *out is owned; borrows device, config's pointers and the names; copies the parameters. Buckets are filled from the
 * last parameter to the first, the order of backward. Errors: ARG (no parameters), SHAPE (ranges that overlap or leave
 * the buffer; with REDUCESCATTER a bucket that the ranks do not divide), NOMEM, COMM, DEVICE. One thread at a time; so
 * all below.
 */
int moe_buckets_new(moe_device_t *device, const struct moe_buckets_config *config,
                    const struct moe_bucket_parameter *parameters, int32_t n, moe_buckets_t **out);
void moe_buckets_destroy(moe_buckets_t **buckets);

/* The hook: one gradient of parameter `which` was added to its main_grad (enqueued on the device's stream). May issue a
 * collective. Errors: ARG, STATE (more gradients than in the first batch), COMM, DEVICE. */
int moe_buckets_ready(moe_buckets_t *buckets, int32_t which);

/*
 * The end of a batch: issues what was not issued yet, lets the device's stream wait for all of it, and begins to count
 * anew. Errors: STATE with overlap: a bucket that did not get complete ("1 of 3 parameters: layer 2 w1"), in the first
 * batch a parameter that got no gradient; COMM, DEVICE.
 */
int moe_buckets_finish(moe_buckets_t *buckets);

/* Buckets, in the order in which they fill; how many of them were issued since the last finish. */
int32_t moe_buckets_count(const moe_buckets_t *buckets);
int32_t moe_buckets_issued(const moe_buckets_t *buckets);

/* Elements [*offset, *offset + *count) of bucket i; and with REDUCESCATTER the part of it whose sum this rank holds
 * after finish, else all of it. */
void moe_buckets_range(const moe_buckets_t *buckets, int32_t i, size_t *offset, size_t *count);
void moe_buckets_shard(const moe_buckets_t *buckets, int32_t i, size_t *offset, size_t *count);

#ifdef __cplusplus
}
#endif
#endif
