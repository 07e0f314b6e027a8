/*
 * balance.cu: the auxiliary losses of the router and their gradients.
 *
 * Idea: a small kernel computes once what the losses need of the counts (factors, one for each sequence); then a warp
 * takes a token, in forward and backward alike. Sums are double, as on the host, because people read losses; this is a
 * millionth of the arithmetic of a layer. The losses of the blocks go to scratch memory and one block adds them in
 * order, so that the loss is the same in every run.
 *
 * Grid: a warp per token, at most MOST_BLOCKS blocks, looping. Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 132 * 4 };

/* Factors computed from the counts: two, then the [sequences] factors of the sequence loss. */
enum { SWITCH_FACTOR, GLOBAL_FACTOR, SEQUENCE_FACTORS };

/*
 * coeff E / (k N^2), for counts that were summed over `over` microbatches; N: the tokens in one of them, at least 1.
 * All threads call this function.
 */
static __device__ double factor(const moe_balance &a, double coeff, const int64_t *counts, int64_t over, double *space)
{
    double choices = 0;
    for (int64_t e = threadIdx.x; coeff != 0 && e < a.experts; e += THREADS) {
        choices += (double)counts[e];
    }
    choices = moe_block_sum<THREADS>(choices, space);
    if (coeff == 0) {
        return 0;
    }
    double tokens = fmax(choices / ((double)a.k * (double)over), 1.0);
    return coeff * (double)a.experts / ((double)a.k * tokens * tokens) / (double)over;
}

/* Block 0: switch and global; the others a sequence each. */
static __global__ void __launch_bounds__(THREADS) factors(moe_balance a, double *out)
{
    __shared__ double space[THREADS / 32];
    if (blockIdx.x == 0) {
        double one = factor(a, (double)a.coeff[MOE_LOSS_SWITCH], a.counts, 1, space);
        double all = factor(a, (double)a.coeff[MOE_LOSS_GLOBAL], a.global_counts, a.microbatches, space);
        if (threadIdx.x == 0) {
            out[SWITCH_FACTOR] = one;
            out[GLOBAL_FACTOR] = all;
        }
        return;
    }
    int64_t s = blockIdx.x - 1;
    double sequence = factor(a, (double)a.coeff[MOE_LOSS_SEQUENCE] / (double)a.sequences,
                             a.sequence_counts + s * a.experts, 1, space);
    if (threadIdx.x == 0) {
        out[SEQUENCE_FACTORS + s] = sequence;
    }
}

/* The factors of one token. */
struct Pull {
    double one, all, sequence;
    const int64_t *sequence_counts;
};

static __device__ __forceinline__ Pull pull_of(const moe_balance &a, const double *f, int64_t t)
{
    Pull p = {f[SWITCH_FACTOR], f[GLOBAL_FACTOR], 0, nullptr};
    if (a.coeff[MOE_LOSS_SEQUENCE] != 0.0f) {
        p.sequence = f[SEQUENCE_FACTORS + t % a.sequences];
        p.sequence_counts = a.sequence_counts + t % a.sequences * a.experts;
    }
    return p;
}

static __device__ __forceinline__ void pulls(const moe_balance &a, const Pull &p, int64_t e, double out[3])
{
    out[MOE_LOSS_SWITCH] = p.one != 0 ? p.one * (double)a.counts[e] : 0;
    out[MOE_LOSS_SEQUENCE] = p.sequence != 0 ? p.sequence * (double)p.sequence_counts[e] : 0;
    out[MOE_LOSS_GLOBAL] = p.all != 0 ? p.all * (double)a.global_counts[e] : 0;
}

/* The divisor of s in p: 1 for softmax, the sum of s for the other scores. */
static __device__ __forceinline__ double score_sum(const moe_balance &a, const float *scores)
{
    double sum = 0;
    if (a.score == MOE_SCORE_SOFTMAX) {
        return 1;
    }
    for (int64_t e = threadIdx.x % 32; e < a.experts; e += 32) {
        sum += (double)scores[e];
    }
    return moe_warp_sum(sum) + 1e-20;
}

static __device__ double log_sum_exp(const moe_balance &a, const float *logits)
{
    double top = -INFINITY, sum = 0;
    for (int64_t e = threadIdx.x % 32; e < a.experts; e += 32) {
        top = fmax(top, (double)logits[e]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        top = fmax(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    for (int64_t e = threadIdx.x % 32; e < a.experts; e += 32) {
        sum += exp((double)logits[e] - top);
    }
    return top + log(moe_warp_sum(sum));
}

static __device__ __forceinline__ double z_factor(const moe_balance &a)
{
    return (double)a.coeff[MOE_LOSS_Z] / (double)a.ranks / (double)a.tokens;
}

static __global__ void __launch_bounds__(THREADS, 2) losses(moe_balance a, const double *__restrict__ f, double *part)
{
    __shared__ double space[THREADS / 32];
    double loss[MOE_LOSSES] = {0, 0, 0, 0};
    int lane = threadIdx.x % 32;
    for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < a.tokens; t += (int64_t)gridDim.x * WARPS) {
        const float *scores = a.scores + t * a.experts;
        Pull p = pull_of(a, f, t);
        double sum = score_sum(a, scores);
        for (int64_t e = lane; e < a.experts; e += 32) {
            double each[3], share = (double)scores[e] / sum;
            pulls(a, p, e, each);
#pragma unroll
            for (int i = 0; i < 3; i++) {
                loss[i] += each[i] * share;
            }
        }
        if (a.coeff[MOE_LOSS_Z] != 0.0f) {
            double lse = log_sum_exp(a, a.logits + t * a.experts);
            loss[MOE_LOSS_Z] += lane == 0 ? z_factor(a) * lse * lse : 0;
        }
    }
#pragma unroll
    for (int i = 0; i < MOE_LOSSES; i++) {
        double sum = moe_block_sum<THREADS>(loss[i], space);
        if (threadIdx.x == 0) {
            part[(int64_t)blockIdx.x * MOE_LOSSES + i] = sum;
        }
    }
}

static __global__ void total_losses(const double *__restrict__ part, int64_t blocks, float *out)
{
    double sum = 0;
    for (int64_t b = 0; b < blocks; b++) {
        sum += part[b * MOE_LOSSES + threadIdx.x];
    }
    out[threadIdx.x] = (float)sum;
}

static int64_t sequences_of(const moe_balance &a)
{
    return a.coeff[MOE_LOSS_SEQUENCE] != 0.0f ? a.sequences : 0;
}

extern "C" int moe_cuda_balance(moe_device_t *device, const struct moe_balance *a)
{
    unsigned blocks = moe_blocks(a->tokens, WARPS, MOST_BLOCKS);
    Scratch<double> f(device, SEQUENCE_FACTORS + sequences_of(*a)), part(device, (int64_t)blocks * MOE_LOSSES);
    int rc = f.rc ? f.rc : part.rc;
    if (rc != 0) {
        return rc;
    }
    if (blocks > 0) {
        factors<<<(unsigned)(1 + sequences_of(*a)), THREADS, 0, device->stream>>>(*a, f.data);
        losses<<<blocks, THREADS, 0, device->stream>>>(*a, f.data, part.data);
    }
    total_losses<<<1, MOE_LOSSES, 0, device->stream>>>(part.data, blocks, a->losses);
    return moe_launch_result();
}

/* backward */

static __device__ __forceinline__ double through_score(const moe_balance &a, double pull, double mean, double score,
                                                       double logit, double sum)
{
    double d_score = (pull - mean) / sum;
    switch (a.score) {
    case MOE_SCORE_SIGMOID:
        return d_score * score * (1.0 - score);
    case MOE_SCORE_SQRTSOFTPLUS:
        return score > 0 ? d_score / (1.0 + exp(-logit)) / (2.0 * score) : 0;
    default:
        return score * (pull - mean);
    }
}

static __global__ void __launch_bounds__(THREADS, 2) balance_backward(moe_balance a, const double *__restrict__ f)
{
    int lane = threadIdx.x % 32;
    bool z = a.coeff[MOE_LOSS_Z] != 0.0f;
    for (int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; t < a.tokens; t += (int64_t)gridDim.x * WARPS) {
        const float *scores = a.scores + t * a.experts, *logits = a.logits + t * a.experts;
        float *d_logits = a.d_logits + t * a.experts;
        Pull p = pull_of(a, f, t);
        double sum = score_sum(a, scores), mean = 0, each[3], lse = z ? log_sum_exp(a, logits) : 0;
        for (int64_t e = lane; e < a.experts; e += 32) {
            pulls(a, p, e, each);
            mean += (each[0] + each[1] + each[2]) * (double)scores[e] / sum;
        }
        mean = moe_warp_sum(mean);
        for (int64_t e = lane; e < a.experts; e += 32) {
            pulls(a, p, e, each);
            double d = through_score(a, each[0] + each[1] + each[2], mean, (double)scores[e], (double)logits[e], sum);
            d += z ? z_factor(a) * 2.0 * lse * exp((double)logits[e] - lse) : 0;
            d_logits[e] += (float)((double)a.loss_scale * d);
        }
    }
}

extern "C" int moe_cuda_balance_backward(moe_device_t *device, const struct moe_balance *a)
{
    if (a->tokens == 0) {
        return 0;
    }
    Scratch<double> f(device, SEQUENCE_FACTORS + sequences_of(*a));
    if (f.rc != 0) {
        return f.rc;
    }
    factors<<<(unsigned)(1 + sequences_of(*a)), THREADS, 0, device->stream>>>(*a, f.data);
    balance_backward<<<moe_blocks(a->tokens, WARPS, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a, f.data);
    return moe_launch_result();
}
