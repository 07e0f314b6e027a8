/*
 * check.cuh: what every host wrapper of a kernel does: refuse bad arguments, report a refused launch.
 */
#ifndef ROLL_KERNELS_CHECK_CUH
#define ROLL_KERNELS_CHECK_CUH

#include "moe_core/include/moe/error.h"

#include <cuda_runtime.h>
#include <stdint.h>

static inline bool moe_aligned16(const void *pointer)
{
    return ((uintptr_t)pointer & 15) == 0;
}

/* The launch's result as an error code of moe/err.def. */
static inline int moe_launch_result()
{
    return cudaGetLastError() == cudaSuccess ? 0 : MOE_E_DEVICE;
}

/* Blocks for `work` items at `per_block`, at most `most`: the kernels loop over the rest. */
static inline unsigned moe_blocks(int64_t work, int64_t per_block, int64_t most)
{
    int64_t blocks = (work + per_block - 1) / per_block;
    return (unsigned)(blocks < most ? blocks : most);
}

#endif
