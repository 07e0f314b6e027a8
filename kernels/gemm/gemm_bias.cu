/*
 * gemm_bias.cu: the two passes of the grouped linear that are no products: the gradient of a bias (the sum of a group's
 * rows, each times its bias_probs where those are given), and the gradient of bias_probs (for each row the product of
 * dy with its group's bias).
 *
 * Idea: sums in a fixed order, so that a run repeats itself bit by bit. A bias gradient: 32 columns of a group to a
 * block, 8 threads share a column; atomic additions were rejected for their order. The gradient of bias_probs: a warp
 * to a row, which finds its group in the plan by bisection.
 *
 * Groups without rows: a bias gradient that overwrites becomes zeros, one that accumulates is not touched; the other
 * pass has no rows of such a group. After a bad count neither pass touches anything. Launch: 256 threads; no shared
 * memory but a kilobyte. Any alignment. Indices: 64 bit. Streams: the caller's only. Architecture: any.
 */
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"

enum { COLS = 32, SHARE = 8, THREADS = COLS * SHARE, MOST_GROUPS = 65535 };

static __global__ void __launch_bounds__(THREADS) bias_grad(const __grid_constant__ struct gemm_args a)
{
    __shared__ float part[SHARE][COLS];
    int lane = threadIdx.x % COLS, share = threadIdx.x / COLS;
    int64_t col = (int64_t)blockIdx.x * COLS + lane;
    if (a.plan.row[a.groups] < 0) {
        return;
    }
    for (int64_t g = blockIdx.y; g < a.groups; g += gridDim.y) {
        int64_t begin = a.plan.row[g], end = a.plan.row[g + 1];
        float sum = 0;
        for (int64_t row = begin + share; col < a.n && row < end; row += SHARE) {
            float p = a.bias_probs != nullptr ? a.bias_probs[row] : 1.0f;
            sum = fmaf(p, gemm_load(a.activation, a.in, row * a.n + col), sum);
        }
        part[share][lane] = sum;
        __syncthreads();
        if (share == 0 && col < a.n && (begin < end || !a.accumulate)) {
            for (int s = 1; s < SHARE; s++) {
                sum += part[s][lane];
            }
            void *out = a.group[g].d_bias;
            gemm_store(a.grad, out, col, a.accumulate ? sum + gemm_load(a.grad, out, col) : sum);
        }
        __syncthreads();
    }
}

/* The group that a row is in: the last one that begins at or before it, which is one with rows. */
static __device__ __forceinline__ int64_t group_of(const struct gemm_args &a, int64_t row)
{
    int64_t low = 0, high = a.groups;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (a.plan.row[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static __global__ void __launch_bounds__(THREADS) probs_grad(const __grid_constant__ struct gemm_args a)
{
    int lane = threadIdx.x % 32;
    int64_t rows = a.plan.row[a.groups], warps = (int64_t)gridDim.x * (THREADS / 32);
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < rows; row += warps) {
        const void *bias = a.group[group_of(a, row)].bias;
        float sum = 0;
        for (int64_t col = lane; bias != nullptr && col < a.n; col += 32) {
            sum = fmaf(gemm_load(a.activation, a.in, row * a.n + col), gemm_load(a.bias, bias, col), sum);
        }
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
        }
        if (lane == 0) {
            float *out = static_cast<float *>(a.out) + row;
            *out = fmaf(a.bias_scale, sum, *out);
        }
    }
}

int gemm_bias_grad_launch(const struct gemm_args *args, cudaStream_t stream)
{
    dim3 grid(moe_blocks(args->n, COLS, INT32_MAX), moe_blocks(args->groups, 1, MOST_GROUPS));
    bias_grad<<<grid, THREADS, 0, stream>>>(*args);
    return moe_launch_result();
}

int gemm_probs_grad_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    probs_grad<<<8 * blocks, THREADS, 0, stream>>>(*args);
    return moe_launch_result();
}
