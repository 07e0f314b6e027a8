/*
 * model_ops.c: embedding, RMSNorm, cross entropy, on the host, in the stream.
 *
 * Plain loops in a fixed order: the model is small, and losses must be the same in every bit from run to run.
 */
#include "moe_core/train/model_ops.h"

#include "moe_core/train/shape.h"

#include <math.h>
#include <string.h>

static const float norm_epsilon = 1e-5f;

static int run_embed(const void *args)
{
    const struct embed *a = args;
    memset(a->out, 0, (size_t)(a->tokens * a->hidden) * sizeof(float));
    for (int64_t t = 0; t < a->tokens; t++) {
        for (int64_t c = 0; c < a->context; c++) {
            const float *row = a->table + (c * VOCAB + a->batch[t * (a->context + 1) + c]) * a->hidden;
            for (int64_t h = 0; h < a->hidden; h++) {
                a->out[t * a->hidden + h] += row[h];
            }
        }
    }
    return 0;
}

static int run_embed_backward(const void *args)
{
    const struct embed *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        for (int64_t c = 0; c < a->context; c++) {
            float *row = a->out + (c * VOCAB + a->batch[t * (a->context + 1) + c]) * a->hidden;
            for (int64_t h = 0; h < a->hidden; h++) {
                row[h] += a->d_out[t * a->hidden + h];
            }
        }
    }
    return 0;
}

static float inverse_rms(const float *x, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return 1.0f / sqrtf(sum / (float)n + norm_epsilon);
}

static int run_rmsnorm(const void *args)
{
    const struct rmsnorm *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *x = a->x + t * a->hidden;
        float inverse = inverse_rms(x, a->hidden);
        for (int64_t h = 0; h < a->hidden; h++) {
            a->out[t * a->hidden + h] = x[h] * inverse * a->gain[h];
        }
    }
    return 0;
}

static int run_rmsnorm_backward(const void *args)
{
    const struct rmsnorm *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *x = a->x + t * a->hidden, *d_out = a->d_out + t * a->hidden;
        float *dx = a->out + t * a->hidden;
        float inverse = inverse_rms(x, a->hidden), dot = 0.0f;
        for (int64_t h = 0; h < a->hidden; h++) {
            a->d_gain[h] += d_out[h] * x[h] * inverse;
            dot += d_out[h] * a->gain[h] * x[h];
        }
        float shift = dot * inverse * inverse * inverse / (float)a->hidden;
        for (int64_t h = 0; h < a->hidden; h++) {
            dx[h] += d_out[h] * a->gain[h] * inverse - x[h] * shift;
        }
    }
    return 0;
}

static int run_cross_entropy(const void *args)
{
    const struct cross_entropy *a = args;
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *logits = a->logits + t * VOCAB;
        float *d = a->d_logits + t * VOCAB;
        uint8_t target = a->batch[t * (a->context + 1) + a->context];
        float top = logits[0], sum = 0.0f;
        for (int v = 1; v < VOCAB; v++) {
            top = fmaxf(top, logits[v]);
        }
        for (int v = 0; v < VOCAB; v++) {
            d[v] = expf(logits[v] - top);
            sum += d[v];
        }
        *a->loss += (double)(logf(sum) + top - logits[target]);
        for (int v = 0; v < VOCAB; v++) {
            d[v] = (d[v] / sum - (v == target ? 1.0f : 0.0f)) * a->scale;
        }
    }
    return 0;
}

static int run_add(const void *args)
{
    const struct addition *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        a->to[i] = a->a[i] + a->b[i];
    }
    return 0;
}

int model_embed(moe_device_t *device, const struct embed *args)
{
    return moe_device_call(device, run_embed, args, sizeof(*args));
}

int model_embed_backward(moe_device_t *device, const struct embed *args)
{
    return moe_device_call(device, run_embed_backward, args, sizeof(*args));
}

int model_rmsnorm(moe_device_t *device, const struct rmsnorm *args)
{
    return moe_device_call(device, run_rmsnorm, args, sizeof(*args));
}

int model_rmsnorm_backward(moe_device_t *device, const struct rmsnorm *args)
{
    return moe_device_call(device, run_rmsnorm_backward, args, sizeof(*args));
}

int model_cross_entropy(moe_device_t *device, const struct cross_entropy *args)
{
    return moe_device_call(device, run_cross_entropy, args, sizeof(*args));
}

int model_add(moe_device_t *device, const struct addition *args)
{
    return moe_device_call(device, run_add, args, sizeof(*args));
}
