/*
 * zero_empty.cu: zero-fill of the weight gradients of empty groups, decided on the device.
 *
 * Idea: one block row per group; a block whose group has rows returns after one load of m, so the cost without empty
 * groups is the launch. The blocks of an empty group stripe over its slice with 16-byte stores. A memset per empty
 * group was rejected: the host would have to know the counts, which costs a wait and cannot be captured in a graph.
 *
 * Shapes: out [groups, elements] float32, m [groups] int64. Grid (up to 64 stripes, groups), 256 threads: enough
 * stores in flight to fill the memory system from one group (64 x 256 x 16 bytes = 256 KiB), few enough blocks that
 * groups with rows cost nothing to speak of. Assumes out 16-byte aligned and elements a multiple of 4 per slice for
 * the vector path; any other slice takes the scalar path. Streams: ordered by the caller's stream only. Architecture:
 * any (sm_90a built). Indices: 64 bit.
 */
#include "kernels/check.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, STRIPES = 64 };
static const int64_t most_grid_rows = 65535; /* gridDim.y */

static __global__ void __launch_bounds__(THREADS)
    zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements)
{
    int64_t stride = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t g = blockIdx.y; g < groups; g += gridDim.y) {
        if (m[g] != 0) {
            continue;
        }
        float *slice = out + g * elements;
        if (elements % 4 == 0) {
            float4 *wide = reinterpret_cast<float4 *>(slice);
            for (int64_t i = first; i < elements / 4; i += stride) {
                wide[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        } else {
            for (int64_t i = first; i < elements; i += stride) {
                slice[i] = 0.0f;
            }
        }
    }
}

extern "C" int moe_kernel_zero_empty(float *out, const int64_t *m, int64_t groups, int64_t elements,
                                     cudaStream_t stream)
{
    if (groups < 0 || elements < 0) {
        return MOE_E_SHAPE;
    }
    if (groups == 0 || elements == 0) {
        return 0;
    }
    if (out == nullptr || m == nullptr || !moe_aligned16(out)) {
        return MOE_E_ARG;
    }
    dim3 grid(moe_blocks(elements, 4 * THREADS, STRIPES), moe_blocks(groups, 1, most_grid_rows));
    zero_empty<<<grid, THREADS, 0, stream>>>(out, m, groups, elements);
    return moe_launch_result();
}

extern "C" cudaError_t moe_kernels_loadable(void)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, zero_empty);
}
