/*
 * check.h: --check: loss, gradients and the optimizer's step against a single-process reference in double precision.
 */
#ifndef MOE_CORE_TRAIN_CHECK_H
#define MOE_CORE_TRAIN_CHECK_H

#include "moe_core/train/check_compare.h"
#include "moe_core/train/check_optim.h"
#include "moe_core/train/check_route.h"
#include "moe_core/train/gather.h"
#include "moe_core/train/model.h"
#include "moe_core/train/ref_model.h"

/* Zero before the first step. */
struct check {
    double worst;      /* largest relative error of any gradient tensor so far */
    double worst_loss; /* largest relative error of the loss */
    double regret;     /* with rows of 16 bits: how far the job's routing was from the best one, at most */
    double tolerance;
    uint32_t steps;
    bool failed; /* on this rank: a gradient differed (rank 0), replicas or parameters differed (any rank) */
    struct tensor *tensors;
    int32_t count;
    int64_t *chosen; /* [layers,E], rank 0: tokens of the step that chose each expert */
    struct routing routing;
    struct gather_whole whole;
    struct ref_params params, got; /* rank 0: the job's parameters and gradients */
    struct optim_check optim;
};

/*
 * Checks a step whose mean loss is `loss`. Collective: every rank calls it after the gradients of the step were reduced
 * and before the optimizer. Gathers the experts over ep; rank 0 computes the reference over all ranks' tokens and
 * compares; all ranks compare replicas. All memory is made before the first gather, and rank 0's for the reference
 * before the ranks agree that the check is done: a rank that has none says so on standard error, and all ranks get
 * NOMEM. Error codes of moe_core.
 */
int check_step(struct check *check, const struct model *model, const struct corpus *corpus, uint32_t step, double loss);

/* Checks what the optimizer made of the parameters; after check_step of the same step, when the stream is idle. Local.
 */
void check_update(struct check *check, const struct model *model, uint32_t step);

void check_destroy(struct check *check, const struct model *model);

#endif
