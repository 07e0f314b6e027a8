/*
 * counts.cu: token counts: per sequence, added up, padded for empty ranks; and the expert bias that follows from them.
 *
 * Idea: these functions do integer work on a few thousand numbers; integer atomics give the same exact sums in any
 * order. Fusing them gains nothing: each function is one launch of one or a few blocks.
 *
 * Architecture: any. Indices: 64 bit. Streams: the device's only.
 */
#include "kernels/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 1024 };

static __global__ void __launch_bounds__(THREADS)
    count_sequences(const int32_t *__restrict__ index, int64_t choices, int32_t k, int64_t sequences, int64_t experts,
                    unsigned long long *counts)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < choices; i += (int64_t)gridDim.x * THREADS) {
        if (index[i] >= 0) {
            atomicAdd(counts + i / k % sequences * experts + index[i], 1ull);
        }
    }
}

extern "C" int moe_cuda_count_sequences(moe_device_t *device, const struct moe_count_sequences *a)
{
    size_t bytes = (size_t)(a->sequences * a->experts) * sizeof(*a->counts);
    int64_t choices = a->tokens * a->k;
    if (bytes > 0 && cudaMemsetAsync(a->counts, 0, bytes, device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (choices == 0) {
        return 0;
    }
    count_sequences<<<moe_blocks(choices, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
        a->index, choices, a->k, a->sequences, a->experts, reinterpret_cast<unsigned long long *>(a->counts));
    return moe_launch_result();
}

static __global__ void __launch_bounds__(THREADS)
    add_counts(const int64_t *__restrict__ from, int64_t count, int64_t *__restrict__ to)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        to[i] += from[i];
    }
}

extern "C" int moe_cuda_add_counts(moe_device_t *device, const struct moe_add_counts *a)
{
    if (a->count == 0) {
        return 0;
    }
    add_counts<<<moe_blocks(a->count, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(a->from, a->count, a->to);
    return moe_launch_result();
}

/* One block: the sum is wanted by every expert. */
static __global__ void __launch_bounds__(THREADS)
    bias_update(int64_t *counts, int64_t experts, float rate, float *__restrict__ bias)
{
    __shared__ int64_t space[THREADS / 32];
    int64_t sum = 0;
    for (int64_t e = threadIdx.x; e < experts; e += THREADS) {
        sum += counts[e];
    }
    sum = moe_block_sum<THREADS>(sum, space);
    for (int64_t e = threadIdx.x; e < experts; e += THREADS) {
        int64_t below = sum - experts * counts[e];
        bias[e] += below > 0 ? rate : below < 0 ? -rate : 0.0f;
        counts[e] = 0;
    }
}

extern "C" int moe_cuda_bias_update(moe_device_t *device, const struct moe_bias_update *a)
{
    bias_update<<<1, THREADS, 0, device->stream>>>(a->counts, a->experts, a->rate, a->bias);
    return moe_launch_result();
}

/* One block per rank: its rows are the sum of its experts' columns over all ranks. Ranks touch only their own columns.
 */
static __global__ void __launch_bounds__(THREADS)
    pad_counts(int64_t *counts, int64_t ranks, int64_t local, int64_t stride)
{
    __shared__ int64_t space[THREADS / 32];
    for (int64_t r = blockIdx.x; r < ranks; r += gridDim.x) {
        int64_t rows = 0;
        for (int64_t i = threadIdx.x; i < ranks * local; i += THREADS) {
            rows += counts[i / local * stride + r * local + i % local];
        }
        rows = moe_block_sum<THREADS>(rows, space);
        if (threadIdx.x == 0 && rows == 0) {
            counts[(r + 1) % ranks * stride + r * local]++;
        }
    }
}

extern "C" int moe_cuda_pad_counts(moe_device_t *device, const struct moe_pad_counts *a)
{
    pad_counts<<<moe_blocks(a->ranks, 1, MOST_BLOCKS), THREADS, 0, device->stream>>>(a->counts, a->ranks,
                                                                                     a->experts / a->ranks, a->stride);
    return moe_launch_result();
}
