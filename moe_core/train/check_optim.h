/*
 * check_optim.h: --check: a step of the optimizer against AdamW in double precision.
 */
#ifndef MOE_CORE_TRAIN_CHECK_OPTIM_H
#define MOE_CORE_TRAIN_CHECK_OPTIM_H

#include "moe_core/train/model.h"
#include "moe_core/train/tensors.h"

/* The moments in double, and the parameters before the step; of this rank's share. */
struct optim_check {
    double *before[TENSOR_BUFFERS], *mean[TENSOR_BUFFERS], *variance[TENSOR_BUFFERS];
    float *bias;  /* [layers,E] the expert biases before the step, or NULL */
    double worst; /* largest difference so far of a parameter after the step, in units of the learning rate */
};

/* Remembers parameters before the step; the first time it takes over the job's moments. Local. Errors: NOMEM. */
int optim_check_before(struct optim_check *check, const struct model *model);
/*
 * Compares the parameters after the step, of which the model still holds the gradients. `step` counts from 0; the rate
 * follows from peak and steps. `chosen`, where it is not NULL: [layers,E], the tokens of all ranks that chose each
 * expert, by which expert biases move. Prints the first tensor that differs. Local. Whether all is equal.
 */
bool optim_check_after(struct optim_check *check, const struct model *model, const struct tensor *tensors,
                       int32_t count, uint32_t step, const int64_t *chosen);
void optim_check_destroy(struct optim_check *check);

#endif
