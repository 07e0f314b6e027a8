/*
 * optim.h: AdamW over a flat buffer, and its learning-rate schedule.
 */
#ifndef MOE_CORE_TRAIN_OPTIM_H
#define MOE_CORE_TRAIN_OPTIM_H

#include "moe_core/train/model.h"

/* The steps with a rising rate: the first tenth, at most 10. */
uint32_t optim_warm(uint32_t steps);
/* The rate of a step: it rises linearly over those, then it is constant. */
float optim_rate(double peak, uint32_t step, uint32_t steps);

/* One AdamW step (betas 0.9 and 0.95, epsilon 1e-8, decay 0.01); rate is read from device memory. Error codes of
 * moe_core. */
int optim_step(moe_device_t *device, const struct params *params, const float *rate, uint32_t step);

#endif
