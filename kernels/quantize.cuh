/* quantize.cuh: what the products of FP8 by FP8 want of quantize.cu beside the table's function. */
#ifndef ROLL_KERNELS_QUANTIZE_CUH
#define ROLL_KERNELS_QUANTIZE_CUH

#include "moe_core/include/moe/ops.h"

#include <cuda_runtime.h>
#include <stdint.h>

/* to [groups,k,n] from the pass's FP8 weights [n,k], for groups with rows; the rest of `to` is left. groups > 0; n and
 * k multiples of 16. Enqueues. 0 or DEVICE. */
int moe_turn_weights(const struct moe_linear_pass *pass, uint8_t *to, cudaStream_t stream);

#endif
