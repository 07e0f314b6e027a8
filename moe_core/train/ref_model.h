/*
 * ref_model.h: the reference of the whole model: one process, double precision.
 */
#ifndef MOE_TRAIN_REF_MODEL_H
#define MOE_TRAIN_REF_MODEL_H

#include "moe_core/train/shape.h"

#include <stdint.h>

/* Parameters or gradients in the flat layouts of shape.h, with all experts. */
struct ref_params {
    double *dense, *experts;
};

/*
 * Adds the mean loss over `tokens` lines of batch [tokens, C+1] to *loss and its gradient, times `weight`, to grads.
 * 0, or -1 when memory is short.
 */
int ref_model(const struct shape *shape, const struct ref_params *params, const uint8_t *batch, int64_t tokens,
              double weight, double *loss, const struct ref_params *grads);

#endif
