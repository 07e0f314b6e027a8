/*
 * topk.cu: which experts a token goes to, and the way back of the gradient (router.h has the table of scores and
 * weights).
 *
 * Idea: a warp per token; scores in memory, keys of the choice (index.h: ordered as the choice is, NaN below every
 * number) in shared memory. Each of the k picks is a maximum over the lanes by two warp reductions: the largest key,
 * then the lowest index that has it, which is the tie order. A sort was rejected: k is small against E, and the order
 * of equal keys would need a wider key. Limited groups: each lane sums the best of its groups in the host's order, so
 * that equal groups stay equal.
 *
 * Counts are integer atomics. Sums over experts are a tree within a warp: the same in every run, and equal to the
 * host's up to rounding.
 *
 * Grid: a warp per token, looping; as many warps per block as have room for their keys in 48 KiB; E up to MOST_EXPERTS.
 * Architecture: sm_80 and later (warp reductions). Indices: 64 bit.
 */
#include "kernels/device.cuh"
#include "kernels/index.h"

enum { MOST_WARPS = 8, SHARED = 48 * 1024, MOST_BLOCKS = 132 * 16, MOST_CHOICES = 1024 };
#define ALL 0xffffffffu

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(ALL, x, step);
        x = other > x ? other : x;
    }
    return x;
}

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Computes a softmax row as the host does: NaN anywhere gives NaN everywhere. */
static __device__ void softmax_row(const float *logits, int64_t n, float *out)
{
    int lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0.0f;
    for (int64_t e = lane; e < n; e += 32) {
        top = logits[e] > top ? logits[e] : top;
    }
    top = warp_max(top);
    for (int64_t e = lane; e < n; e += 32) {
        out[e] = expf(logits[e] - top);
        sum += out[e];
    }
    sum = moe_warp_sum(sum);
    for (int64_t e = lane; e < n; e += 32) {
        out[e] /= sum;
    }
}

/* The index of the best key of n: the largest key, of equal ones the first. */
static __device__ __forceinline__ int32_t warp_best(const uint32_t *key, int32_t n)
{
    uint32_t best = MOE_KEY_TAKEN;
    int32_t where = INT32_MAX;
    for (int32_t e = threadIdx.x % 32; e < n; e += 32) {
        if (key[e] > best) {
            best = key[e];
            where = e;
        }
    }
    uint32_t top = __reduce_max_sync(ALL, best);
    return (int32_t)__reduce_min_sync(ALL, best == top ? (uint32_t)where : 0x7fffffffu);
}

/* The index of the best of n keys, found by one lane alone; the order is that of warp_best. */
static __device__ __forceinline__ int32_t lane_best(const uint32_t *key, int32_t n)
{
    uint32_t best = MOE_KEY_TAKEN;
    int32_t where = 0;
    for (int32_t e = 0; e < n; e++) {
        if (key[e] > best) {
            best = key[e];
            where = e;
        }
    }
    return where;
}

/* The number of which `key` is the key; NaN for the key of NaN. */
static __device__ __forceinline__ float value_of(uint32_t key)
{
    if (key <= MOE_KEY_NAN) {
        return NAN;
    }
    uint32_t bits = (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key;
    return __uint_as_float(bits);
}

/* Leaves only the experts of the groups that stay. group_key: [groups], spare: [E], both belonging to this warp. */
static __device__ void limit_groups(const moe_topk &a, uint32_t *key, uint32_t *group_key, uint32_t *spare)
{
    int lane = threadIdx.x % 32;
    int32_t each = (int32_t)(a.experts / a.how.groups), best = a.k / a.how.group_topk;
    for (int32_t e = lane; e < a.experts; e += 32) {
        spare[e] = key[e];
    }
    __syncwarp();
    for (int32_t g = lane; g < a.how.groups; g += 32) {
        float sum = 0.0f;
        for (int32_t j = 0; j < best; j++) {
            int32_t e = lane_best(spare + g * each, each);
            sum += value_of(spare[g * each + e]);
            spare[g * each + e] = MOE_KEY_TAKEN;
        }
        group_key[g] = moe_order_key(sum);
    }
    __syncwarp();
    for (int32_t j = 0; j < a.how.group_topk; j++) {
        int32_t g = warp_best(group_key, a.how.groups);
        __syncwarp();
        if (lane == 0) {
            group_key[g] = MOE_KEY_TAKEN;
        }
        __syncwarp();
    }
    uint32_t nothing = moe_order_key(-INFINITY);
    for (int32_t e = lane; e < a.experts; e += 32) {
        if (group_key[e / each] != MOE_KEY_TAKEN) {
            key[e] = nothing;
        }
    }
    __syncwarp();
}

static __device__ __forceinline__ bool divides_by_sum(const moe_scoring &how, int32_t k)
{
    return how.after || (how.renormalise && (how.score == MOE_SCORE_SOFTMAX || k > 1));
}

/* The weights of the chosen: [k] experts in shared memory. */
static __device__ void weigh(const moe_topk &a, const float *logits, const float *scores, const int32_t *chosen,
                             float *probs)
{
    int lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0.0f, scale = 1.0f;
    for (int32_t j = lane; a.how.after && j < a.k; j += 32) {
        top = fmaxf(top, logits[chosen[j]]);
    }
    top = warp_max(top);
    for (int32_t j = lane; j < a.k; j += 32) {
        sum += a.how.after ? expf(logits[chosen[j]] - top) : scores[chosen[j]];
    }
    sum = moe_warp_sum(sum);
    if (divides_by_sum(a.how, a.k)) {
        scale = sum + (a.how.score == MOE_SCORE_SOFTMAX ? 0.0f : 1e-20f);
    }
    for (int32_t j = lane; j < a.k; j += 32) {
        float weight = a.how.after ? expf(logits[chosen[j]] - top) : scores[chosen[j]];
        probs[chosen[j]] = weight / scale * a.how.scale;
    }
}

/* Shared memory of a warp, in words: keys [E], chosen [k], and with limited groups a copy [E] and the groups' keys. */
static __host__ __device__ __forceinline__ int64_t warp_words(int64_t experts, int32_t k, int32_t groups)
{
    return experts + k + (groups > 1 ? experts + groups : 0);
}

static __global__ void __launch_bounds__(MOST_WARPS * 32, 2) topk(moe_topk a, int *error)
{
    extern __shared__ uint32_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    uint32_t *key = shared + warp * warp_words(a.experts, a.k, a.how.groups);
    int32_t *chosen = reinterpret_cast<int32_t *>(key + a.experts);
    uint32_t *spare = key + a.experts + a.k, *group_key = spare + a.experts;
    for (int64_t t = (int64_t)blockIdx.x * warps + warp; t < a.tokens; t += (int64_t)gridDim.x * warps) {
        float *logits = a.logits + t * a.experts, *scores = a.scores + t * a.experts, *probs = a.probs + t * a.experts;
        bool numbers = true;
        for (int64_t e = lane; a.gate_bias != nullptr && e < a.experts; e += 32) {
            logits[e] += a.gate_bias[e];
        }
        __syncwarp();
        if (a.how.score == MOE_SCORE_SOFTMAX) {
            softmax_row(logits, a.experts, scores);
        } else {
            for (int64_t e = lane; e < a.experts; e += 32) {
                scores[e] = a.how.score == MOE_SCORE_SIGMOID ? sigmoid(logits[e]) : sqrtf(softplus(logits[e]));
            }
        }
        for (int64_t e = lane; e < a.experts; e += 32) { /* each lane reads only what it has written itself */
            float value = (a.how.after ? logits : scores)[e] + (a.expert_bias != nullptr ? a.expert_bias[e] : 0.0f);
            numbers = numbers && isfinite(scores[e]) && !isnan(value);
            key[e] = moe_order_key(value);
            probs[e] = 0.0f;
        }
        __syncwarp();
        if (a.how.groups > 1) {
            limit_groups(a, key, group_key, spare);
        }
        for (int32_t j = 0; j < a.k; j++) {
            int32_t e = warp_best(key, (int32_t)a.experts);
            __syncwarp();
            if (lane == 0) {
                key[e] = MOE_KEY_TAKEN;
                chosen[j] = e;
                a.index[t * a.k + j] = e;
                atomicAdd(reinterpret_cast<unsigned long long *>(a.counts) + e, 1ull);
            }
            __syncwarp();
        }
        weigh(a, logits, scores, chosen, probs);
        if (!numbers) {
            moe_raise(error, MOE_E_NAN);
        }
        __syncwarp();
    }
}

/* Warps of a block whose shared memory fits; 0: not even one. */
static int warps_for(int64_t words)
{
    int64_t most = SHARED / (int64_t)sizeof(uint32_t) / words;
    return most < MOST_WARPS ? (int)most : (int)MOST_WARPS;
}

extern "C" int moe_cuda_topk(moe_device_t *device, const struct moe_topk *a)
{
    int64_t words = warp_words(a->experts, a->k, a->how.groups);
    int warps = warps_for(words);
    if (warps == 0 || a->k > MOST_CHOICES) {
        return MOE_E_UNSUPPORTED;
    }
    if (cudaMemsetAsync(a->counts, 0, (size_t)a->experts * sizeof(*a->counts), device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->tokens == 0) {
        return 0;
    }
    topk<<<moe_blocks(a->tokens, warps, MOST_BLOCKS), (unsigned)(warps * 32),
           (size_t)(warps * words) * sizeof(uint32_t), device->stream>>>(*a, moe_state(device)->error);
    return moe_launch_result();
}

/* backward */

/*
 * The gradient of w = n / sum(n), for weights that were divided by the sum of all chosen scores, including those
 * dropped later.
 */
static __device__ void normalised_backward(const moe_topk_backward &a, const float *scores, const float *logits,
                                           const float *d_weight, const int32_t *index, const int32_t *all, float *d)
{
    int lane = threadIdx.x % 32;
    float top = -INFINITY, sum = 0.0f, shift = 0.0f;
    for (int32_t j = lane; a.how.after && j < a.k; j += 32) {
        top = fmaxf(top, logits[all[j]]);
    }
    top = warp_max(top);
    for (int32_t j = lane; j < a.k; j += 32) {
        sum += a.how.after ? expf(logits[all[j]] - top) : scores[all[j]];
    }
    sum = moe_warp_sum(sum) + (a.how.score == MOE_SCORE_SOFTMAX ? 0.0f : 1e-20f);
    for (int32_t j = lane; j < a.k; j += 32) {
        float n = a.how.after ? expf(logits[all[j]] - top) : scores[all[j]];
        shift += index[j] < 0 ? 0.0f : n / sum * d_weight[all[j]];
    }
    shift = moe_warp_sum(shift);
    for (int32_t j = lane; j < a.k; j += 32) {
        int32_t e = all[j];
        float own = index[j] < 0 ? 0.0f : d_weight[e];
        d[e] = (a.how.after ? expf(logits[e] - top) / sum * (own - shift) : (own - shift) / sum) * a.how.scale;
    }
}

static __global__ void __launch_bounds__(MOST_WARPS * 32, 2) topk_backward(moe_topk_backward a)
{
    int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int64_t t = (int64_t)blockIdx.x * warps + threadIdx.x / 32; t < a.tokens; t += (int64_t)gridDim.x * warps) {
        const float *scores = a.scores + t * a.experts, *logits = a.logits + t * a.experts,
                    *d_weight = a.d_probs + t * a.experts;
        const int32_t *index = a.index + t * a.k, *all = a.all + t * a.k;
        float *d = a.d_logits + t * a.experts, dot = 0.0f;
        for (int64_t e = lane; e < a.experts; e += 32) {
            d[e] = 0.0f;
        }
        __syncwarp();
        if (divides_by_sum(a.how, a.k)) {
            normalised_backward(a, scores, logits, d_weight, index, all, d);
        } else {
            for (int32_t j = lane; j < a.k; j += 32) {
                d[all[j]] = index[j] < 0 ? 0.0f : d_weight[all[j]] * a.how.scale;
            }
        }
        __syncwarp();
        if (a.how.after) {
            continue;
        }
        for (int64_t e = lane; a.how.score == MOE_SCORE_SOFTMAX && e < a.experts; e += 32) {
            dot += scores[e] * d[e];
        }
        dot = moe_warp_sum(dot);
        for (int64_t e = lane; e < a.experts; e += 32) {
            float s = scores[e], own = d[e];
            d[e] = a.how.score == MOE_SCORE_SOFTMAX   ? s * (own - dot)
                   : a.how.score == MOE_SCORE_SIGMOID ? own * s * (1.0f - s)
                   : s > 0.0f                         ? own * sigmoid(logits[e]) / (2.0f * s)
                                                      : 0.0f;
        }
    }
}

extern "C" int moe_cuda_topk_backward(moe_device_t *device, const struct moe_topk_backward *a)
{
    if (a->tokens == 0) {
        return 0;
    }
    topk_backward<<<moe_blocks(a->tokens, MOST_WARPS, MOST_BLOCKS), MOST_WARPS * 32, 0, device->stream>>>(*a);
    return moe_launch_result();
}
