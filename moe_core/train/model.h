/*
 * model.h: the byte-level language model: embedding, residual MoE blocks with RMSNorm, output head.
 */
#ifndef MOE_TRAIN_MODEL_H
#define MOE_TRAIN_MODEL_H

#include "moe_core/include/moe/layer.h"
#include "moe_core/train/corpus.h"
#include "moe_core/train/job.h"
#include "moe_core/train/shape.h"

/* One flat buffer of parameters with its gradients and optimizer state; device memory. */
struct params {
    int64_t count;
    float *value, *grad, *mean, *variance;
};

struct model {
    struct shape shape;
    const struct job *job;
    const struct train_options *options;
    struct params dense, experts;
    moe_layer_t **layer;     /* [layers] */
    uint8_t *batch;          /* device [T, C+1] */
    uint8_t *host_batch;     /* [T, C+1] */
    float *x;                /* [layers+1, T, H]: input of each block, and of the head */
    float *normed;           /* [layers+1, T, H] */
    float *y, *dx, *d_inner; /* [T,H] */
    float *logits, *d_logits;
    double *loss; /* device [1]: sum over this rank's tokens since model_begin_step */
};

/* Makes the model with weights drawn from the seed (equal for every layout of ranks). 0, or -1 with one line on
 * standard error. */
int model_new(const struct train_options *options, const struct job *job, struct model *model);
void model_destroy(struct model *model);

/* Clears gradients and loss. Error codes of moe_core. */
int model_begin_step(struct model *model);

/* Forward and backward of one microbatch: adds the mean gradient over this rank's tokens of the step. Error codes of
 * moe_core. */
int model_microbatch(struct model *model, const struct corpus *corpus, const struct moe_step *step);

#endif
