/*
 * model_ops.h: the operations of the model that are not MoE: each enqueues on the device's stream. Numbers are float32.
 */
#ifndef MOE_CORE_TRAIN_MODEL_OPS_H
#define MOE_CORE_TRAIN_MODEL_OPS_H

#include "moe_core/include/moe/device.h"

#include <stdint.h>

/* Sum of the embeddings of the context's bytes. batch [T, C+1] bytes, table [C,256,H]. */
struct embed {
    int64_t tokens, context, hidden;
    const uint8_t *batch;
    const float *table;
    const float *d_out; /* backward only */
    float *out;         /* forward: [T,H]; backward: d_table, added to */
};

/* out = x / rms(x) * gain */
struct rmsnorm {
    int64_t tokens, hidden;
    const float *x, *gain;
    const float *d_out; /* backward only */
    float *out;         /* forward: [T,H]; backward: dx, added to */
    float *d_gain;      /* backward only, added to */
};

/* Cross entropy of logits [T,256] against byte C of each line of batch. */
struct cross_entropy {
    int64_t tokens, context;
    const uint8_t *batch;
    const float *logits;
    float scale;     /* of d_logits */
    float *d_logits; /* (softmax - one hot) * scale */
    double *loss;    /* [1], the sum over tokens is added */
};

/* to = a + b */
struct addition {
    int64_t count;
    const float *a, *b;
    float *to;
};

int model_embed(moe_device_t *device, const struct embed *args);
int model_embed_backward(moe_device_t *device, const struct embed *args);
int model_rmsnorm(moe_device_t *device, const struct rmsnorm *args);
int model_rmsnorm_backward(moe_device_t *device, const struct rmsnorm *args);
int model_cross_entropy(moe_device_t *device, const struct cross_entropy *args);
int model_add(moe_device_t *device, const struct addition *args);

#endif
