/*
 * map_gather.cu: permute: token rows into expert order, over a mask-kind row map.
 *
 * Idea: one block per token; each thread loads a 16-byte piece of the token's row once and stores it to all n rows of
 * the token, so a token is read once however many experts it goes to: the traffic is T + R rows, the least there is.
 * One block per destination row was rejected: it reads every token k times, and needs the inverse map.
 *
 * Shapes: from [T, width], map int32 [T, 2E+1], to [rows, width]. Grid: one block per token, at most 2^20, looping;
 * 128 threads: at H = 7168 14 pieces per thread, at H = 512 one. Assumes 16-byte aligned rows (width a multiple of 4
 * floats); the n row numbers are read through the read-only cache by all threads of the block. Streams: the caller's
 * only; with `padded` a memset precedes in the same stream. Architecture: any (sm_90a built). Indices: 64 bit, rows x
 * width may exceed 2^31.
 */
#include "kernels/check.cuh"
#include "kernels/kernels.h"

enum { THREADS = 128, MOST_BLOCKS = 1 << 20 };

static __global__ void __launch_bounds__(THREADS)
    map_gather(const float4 *__restrict__ from, const int32_t *__restrict__ map, int64_t tokens, int64_t experts,
               int64_t pieces, float4 *__restrict__ to)
{
    for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
        const int32_t *line = map + t * (2 * experts + 1);
        int32_t n = __ldg(line + 2 * experts);
        for (int64_t i = threadIdx.x; i < pieces; i += THREADS) {
            float4 piece = __ldg(from + t * pieces + i);
            for (int32_t j = 0; j < n; j++) {
                to[(int64_t)__ldg(line + j) * pieces + i] = piece;
            }
        }
    }
}

extern "C" int moe_kernel_map_gather(const float *from, const int32_t *map, int64_t tokens, int64_t experts,
                                     int64_t rows, int64_t width, int padded, float *to, cudaStream_t stream)
{
    if (tokens < 0 || experts < 1 || rows < 0 || rows > INT32_MAX || width < 4 || width % 4 != 0) {
        return MOE_E_SHAPE;
    }
    if (rows == 0) {
        return 0;
    }
    if (to == nullptr || !moe_aligned16(to) ||
        (tokens > 0 && (from == nullptr || map == nullptr || !moe_aligned16(from)))) {
        return MOE_E_ARG;
    }
    if (padded && cudaMemsetAsync(to, 0, (size_t)rows * (size_t)width * sizeof(float), stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (tokens == 0) {
        return 0;
    }
    map_gather<<<moe_blocks(tokens, 1, MOST_BLOCKS), THREADS, 0, stream>>>(
        reinterpret_cast<const float4 *>(from), map, tokens, experts, width / 4, reinterpret_cast<float4 *>(to));
    return moe_launch_result();
}
