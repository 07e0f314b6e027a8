/*
 * model.h: the byte-level language model: embedding, residual MoE blocks with RMSNorm, output head.
 */
#ifndef MOE_CORE_TRAIN_MODEL_H
#define MOE_CORE_TRAIN_MODEL_H

#include "moe_core/include/moe/facts.h"
#include "moe_core/include/moe/layer.h"
#include "moe_core/train/corpus.h"
#include "moe_core/train/job.h"
#include "moe_core/train/shape.h"

/* One flat buffer of parameters with its gradients and optimizer state; device memory. */
struct params {
    int64_t count;
    float *value, *grad, *mean, *variance;
};

/* Hooks of the model's own parameters, beside those of enum moe_layer_parameter. Those outside of layers come with
 * layer = layers. */
enum {
    MODEL_HOOK_EMBED = MOE_LAYER_PARAMETERS,
    MODEL_HOOK_NORM, /* of a layer, or the final one */
    MODEL_HOOK_HEAD,
    MODEL_HOOKS
};

/* What a layer's hook needs in order to say which layer it belongs to. */
struct model_hook {
    struct model *model;
    int64_t layer;
};

struct model {
    struct shape shape;
    const struct job *job;
    const struct train_options *options;
    struct params dense, experts, shared;
    float *expert_bias;                                     /* device [layers,E] where the router has one, else NULL */
    int64_t tokens;                                         /* tokens of the microbatch under way */
    bool forward_only;                                      /* it is one that no backward follows */
    void *rows;                                             /* [layers,T,H] in the rows' type: input of each layer */
    void *rows_out, *d_rows;                                /* [T,H] in the rows' type */
    void (*ready)(void *arg, int64_t layer, int parameter); /* NULL, or the hook of the layers' parameters (layer.h) */
    void *ready_arg;
    struct model_hook *hook; /* [layers] */
    moe_facts_t *facts;      /* NULL without --facts */
    moe_layer_t **layer;     /* [layers] */
    uint8_t *batch;          /* device [T, C+1] */
    uint8_t *host_batch;     /* [T, C+1] */
    float *x;                /* [layers+1, T, H]: input of each block, and of the head */
    float *normed;           /* [layers+1, T, H] */
    float *y, *dx, *d_inner; /* [T,H] */
    float *logits, *d_logits;
    double *loss; /* device [1]: sum over this rank's tokens since model_begin_step */
    /* NULL, or device [microbatches,layers,T,k]: what the routers chose in this step, before and after dropping; of the
     * tokens that this rank routes, the first ones of each T. */
    int32_t *choice, *kept;
};

/*
 * Makes the model with weights drawn from the seed (equal for every layout of ranks), but for its layers: calls no
 * peer. Error codes of moe_core; after one there is nothing to destroy.
 */
int model_new(const struct train_options *options, const struct job *job, struct model *model);
void model_destroy(struct model *model);

/* Clears gradients and loss. Error codes of moe_core. */
int model_begin_step(struct model *model);

/* Forward and backward of one microbatch: adds the mean gradient over this rank's tokens of the step. Error codes of
 * moe_core. */
int model_microbatch(struct model *model, const struct corpus *corpus, const struct moe_step *step);

/*
 * Forward alone of a full microbatch of held-out tokens, from place `first` on; adds to model->loss. Nothing is
 * counted, and no gradient changes. Error codes of moe_core.
 */
int model_validate(struct model *model, const struct corpus *corpus, const struct moe_step *step, int64_t first);

/*
 * The tokens of a data rank in a microbatch; model_batch below fills in their bytes, batch [tokens, C+1]. Any thread.
 */
int64_t model_tokens(const struct train_options *options, int32_t data_rank, const struct moe_step *at);
void model_batch(const struct train_options *options, const struct corpus *corpus, int32_t data_rank,
                 const struct moe_step *at, uint8_t *batch);

/* model_layers.c: sizes, layers, weights; error codes of moe_core. */
struct shape model_shape(const struct train_options *options, const struct job *job);
struct moe_layer_config model_layer_config(const struct model *model, int64_t layer);
struct moe_layer_weights model_layer_weights(const struct model *model, int64_t layer);
int model_layers_room(struct model *model); /* what model_layers_new makes the layers with; calls no peer */
int model_layers_new(struct model *model);  /* collective: layer.h */
int model_load_weights(struct model *model);
/* After a step: the expert biases, where the router has them. Collective on world. */
int model_update_bias(struct model *model);

#endif
