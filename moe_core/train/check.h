/*
 * check.h: --check: loss and gradients of a step against a single-process reference in double precision.
 */
#ifndef MOE_CORE_TRAIN_CHECK_H
#define MOE_CORE_TRAIN_CHECK_H

#include "moe_core/train/model.h"

struct gradient_check {
    double worst;      /* largest relative error of any gradient tensor so far */
    double worst_loss; /* largest relative error of the loss */
    double tolerance;
    uint32_t steps;
    bool failed; /* on this rank: a tensor differed (rank 0), or replicas differed (any rank) */
};

/*
 * Checks a step whose mean loss is `loss`. Collective: every rank calls it after the gradients of the step were reduced
 * and before the optimizer. Gathers the experts over ep; rank 0 computes the reference over all ranks' tokens and
 * compares; all ranks compare replicas. Error codes of moe_core.
 */
int check_step(struct gradient_check *check, struct model *model, const struct corpus *corpus, uint32_t step,
               double loss);

#endif
