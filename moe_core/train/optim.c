/*
 * optim.c: AdamW on the host, in the stream.
 *
 * The learning rate is a device value, because rank 0 broadcasts it in each step as frameworks broadcast the settings
 * of a step. The update is element-wise and in a fixed order, so that replicas stay equal in every bit.
 */
#include "moe_core/train/optim.h"

#include <math.h>

struct adamw {
    struct params params;
    const float *rate;
    float correct_mean, correct_variance;
};

uint32_t optim_warm(uint32_t steps)
{
    return steps / 10 < 10 ? steps / 10 + 1 : 10;
}

float optim_rate(double peak, uint32_t step, uint32_t steps)
{
    uint32_t warm = optim_warm(steps);
    return (float)(step < warm ? peak * (step + 1) / warm : peak);
}

static int run_adamw(const void *args)
{
    const struct adamw *a = args;
    const struct params *p = &a->params;
    float rate = *a->rate;
    for (int64_t i = 0; i < p->count; i++) {
        float g = p->grad[i];
        p->mean[i] = 0.9f * p->mean[i] + 0.1f * g;
        p->variance[i] = 0.95f * p->variance[i] + 0.05f * g * g;
        float update = p->mean[i] * a->correct_mean / (sqrtf(p->variance[i] * a->correct_variance) + 1e-8f);
        p->value[i] -= rate * (update + 0.01f * p->value[i]);
    }
    return 0;
}

int optim_step(moe_device_t *device, const struct params *params, const float *rate, uint32_t step)
{
    struct adamw args = {.params = *params,
                         .rate = rate,
                         .correct_mean = 1.0f / (1.0f - powf(0.9f, (float)step + 1.0f)),
                         .correct_variance = 1.0f / (1.0f - powf(0.95f, (float)step + 1.0f))};
    return moe_device_call(device, run_adamw, &args, sizeof(args));
}
