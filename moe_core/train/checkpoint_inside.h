/*
 * checkpoint_inside.h: what the files of checkpoint.h share: checkpoint.c (making, agreeing, names and facts),
 * checkpoint_save.c, checkpoint_resume.c.
 */
#ifndef MOE_CORE_TRAIN_CHECKPOINT_INSIDE_H
#define MOE_CORE_TRAIN_CHECKPOINT_INSIDE_H

#include "moe_core/train/checkpoint.h"
#include "moe_core/train/ckpt_file.h"

#define CHECKPOINT_FORMAT "moe_train/1"
enum { CHECKPOINT_KINDS = 3 }; /* parameters, first and second moments */

/* The least of all ranks' numbers, on every rank: the way to learn of one rank's failure. */
int checkpoint_agree(struct checkpoint *c, int64_t mine, int64_t *least);
/* `failed` of any rank is an error on all. */
int checkpoint_all_good(struct checkpoint *c, bool failed);

const struct params *checkpoint_params(const struct model *m, enum tensor_buffer buffer);
float *checkpoint_array(const struct params *p, int kind);

struct checkpoint_facts {
    struct ckpt_fact at[24];
    int32_t used;
    int32_t must; /* the first so many must be the same in the job that resumes */
};
/* What a file says about the job that wrote it, by the names of options. */
struct checkpoint_facts checkpoint_facts_of(const struct checkpoint *c, uint32_t step);

/* A tensor of the model, or the expert biases of a layer, as a file has it. */
void checkpoint_describe(struct ckpt_tensor *to, int kind, const struct tensor *t);
void checkpoint_describe_bias(struct ckpt_tensor *to, const struct model *m, int64_t layer);
/* All tensors of a file in their order. Owned by the caller; NULL when memory is short. */
struct ckpt_tensor *checkpoint_describe_all(const struct checkpoint *c, int32_t *count);

#endif
