/*
 * checkpoint.h: --save and --resume: the whole state of training in one file per checkpoint, for any layout of ranks.
 */
#ifndef MOE_CORE_TRAIN_CHECKPOINT_H
#define MOE_CORE_TRAIN_CHECKPOINT_H

#include "moe_core/train/model.h"
#include "moe_core/train/tensors.h"

struct checkpoint {
    const struct train_options *options;
    struct model *model;
    const struct corpus *corpus;
    struct tensor *tensors;
    int32_t count;
    int lock; /* rank 0: the folder of --save, locked; -1: none */
};

/*
 * Prepares the options' --save and --resume; borrows everything. With --save rank 0 makes the folder, locks it against
 * other jobs and removes what a killed job left half written. Collective on world where one of the options is given.
 * 0, or an error code of moe_core on every rank; the rank that knows why says so on standard error.
 */
int checkpoint_new(const struct train_options *options, struct model *model, const struct corpus *corpus,
                   struct checkpoint *out);
void checkpoint_destroy(struct checkpoint *checkpoint);

/*
 * With --resume: loads parameters, moments and expert biases, of which each rank takes its share. *step: the steps that
 * were done, 0 without --resume. Collective on world; errors as above.
 */
int checkpoint_resume(struct checkpoint *checkpoint, uint32_t *step);

/*
 * Writes DIR/step-STEP.safetensors after `step` steps. Gathers one tensor at a time; rank 0 writes. A job killed in
 * between leaves the older files as they are. Collective on world; errors as above.
 */
int checkpoint_save(struct checkpoint *checkpoint, uint32_t step);

#endif
