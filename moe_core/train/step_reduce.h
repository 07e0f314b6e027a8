/*
 * step_reduce.h: the reduction of a step's gradients: one AllReduce per buffer and layer at the end, or buckets with
 * hooks.
 */
#ifndef MOE_CORE_TRAIN_STEP_REDUCE_H
#define MOE_CORE_TRAIN_STEP_REDUCE_H

#include "moe_core/include/moe/bucket.h"
#include "moe_core/train/model.h"

/* One flat buffer's buckets, and the index of each parameter in them. */
struct bucketed {
    moe_buckets_t *buckets;
    struct moe_bucket_parameter *parameter;
    char (*name)[32];
    int32_t *place; /* [layers + 1, HOOKS]: the parameter that a hook is about; -1: none of this buffer's */
    int32_t used;
};

struct step_reduce {
    const struct train_options *options;
    const struct job *job;
    struct model *model;
    bool bucketed;
    struct bucketed dense, experts, shared;
    int rc; /* the first failure in a hook */
};

/*
 * Prepares the reduction; borrows all arguments. With --overlap or --buckets it becomes the model's hook. Error codes
 * of moe_core.
 */
int step_reduce_new(const struct train_options *options, const struct job *job, struct model *model,
                    struct step_reduce *out);
void step_reduce_destroy(struct step_reduce *reduce);

/* Reduces after backward what was not reduced yet, with the faults of --inject where there are no buckets. */
int step_reduce_run(struct step_reduce *reduce, uint32_t step);

#endif
