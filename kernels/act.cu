/*
 * act.cu: the gated activations between fc1 and fc2, forward and backward, with probabilities; rows times numbers; the
 * shared expert's gate.
 *
 * Idea: a block per row, 16-byte pieces, everything in float32 and rounded once. The sums over a row (gradients of
 * probabilities) are a tree within the block, the same in every run. The activation is a switch in which all threads
 * take the same branch; a kernel for each of four activations, three types and two widths was rejected, because these
 * kernels are memory-bound. Rows past the sum of m are slack: each block sums m itself, so that no other launch and no
 * decision of the host is needed first.
 *
 * Grid: a block of 256 threads per row, at most 16 per multiprocessor of the largest part, looping. Rows that are no
 * whole number of pieces go one element at a time. Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

enum {
    THREADS = 256,
    MOST_BLOCKS = 132 * 16,
    PART = 128 /* tokens whose share of a column is one number in scratch memory */
};

/* N neighbouring elements. */
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

/* Value and derivatives of one gated pair; d_gate lacks the factor `half` of the other half. */
struct Gated {
    float value, d_gate, d_linear, half;
};

static __device__ __forceinline__ Gated gated(const moe_act &a, float gate, float linear)
{
    if (a.kind == MOE_GEGLU) {
        float phi = 0.5f * erfcf(-gate * 0.70710678f);
        return {gate * phi * linear, phi + gate * 0.39894228f * expf(-0.5f * gate * gate), gate * phi, linear};
    }
    if (a.kind == MOE_GEGLU_TANH) {
        float inner = 0.79788456f * (gate + 0.044715f * gate * gate * gate), half = 1.0f / (1.0f + expf(-2.0f * inner));
        float slope = 0.79788456f * (1.0f + 3.0f * 0.044715f * gate * gate);
        return {gate * half * linear, half + gate * 2.0f * half * (1.0f - half) * slope, gate * half, linear};
    }
    if (a.kind == MOE_SWIGLU_CLAMPED) {
        bool gate_free = !(gate > a.clamp.limit), linear_free = !(linear > a.clamp.limit || linear < -a.clamp.limit);
        float g = gate_free ? gate : a.clamp.limit;
        float l = (linear_free ? linear : linear > 0 ? a.clamp.limit : -a.clamp.limit) + a.clamp.offset;
        float sig = 1.0f / (1.0f + expf(-a.clamp.alpha * g));
        return {g * sig * l, gate_free ? sig * (1.0f + a.clamp.alpha * g * (1.0f - sig)) : 0.0f,
                linear_free ? g * sig : 0.0f, l};
    }
    float sig = 1.0f / (1.0f + expf(-gate));
    return {gate * sig * linear, sig * (1.0f + gate * (1.0f - sig)), gate * sig, linear};
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 2)
    act(moe_act a, int64_t packs, const Pack<T, N> *__restrict__ h, Pack<T, N> *__restrict__ out, int *error)
{
    __shared__ int64_t space[THREADS / 32];
    int64_t live = moe_live_rows<THREADS>(a.m, a.groups, a.rows, error, space);
    for (int64_t r = blockIdx.x; r < live; r += gridDim.x) {
        float prob = a.probs != nullptr ? a.probs[r] : 1.0f;
        for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
            Pack<T, N> gate = h[r * 2 * packs + i], linear = h[r * 2 * packs + packs + i], value;
#pragma unroll
            for (int e = 0; e < N; e++) {
                value.at[e] = moe_narrow_to<T>(gated(a, moe_wide(gate.at[e]), moe_wide(linear.at[e])).value * prob);
            }
            out[r * packs + i] = value;
        }
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 2)
    act_backward(moe_act a, int64_t packs, const Pack<T, N> *__restrict__ h, const Pack<T, N> *__restrict__ d_act,
                 Pack<T, N> *__restrict__ d_h, int *error)
{
    __shared__ int64_t space[THREADS / 32];
    __shared__ float sums[THREADS / 32];
    int64_t live = moe_live_rows<THREADS>(a.m, a.groups, a.rows, error, space);
    for (int64_t r = blockIdx.x; r < live; r += gridDim.x) {
        float prob = a.probs != nullptr ? a.probs[r] : 1.0f, d_prob = 0.0f;
        for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
            Pack<T, N> gate = h[r * 2 * packs + i], linear = h[r * 2 * packs + packs + i], up = d_act[r * packs + i];
#pragma unroll
            for (int e = 0; e < N; e++) {
                Gated g = gated(a, moe_wide(gate.at[e]), moe_wide(linear.at[e]));
                float d = moe_wide(up.at[e]);
                d_prob += d * g.value;
                gate.at[e] = moe_narrow_to<T>(prob * d * g.half * g.d_gate);
                linear.at[e] = moe_narrow_to<T>(prob * d * g.d_linear);
            }
            d_h[r * 2 * packs + i] = gate;
            d_h[r * 2 * packs + packs + i] = linear;
        }
        if (a.d_probs != nullptr) {
            d_prob = moe_block_sum<THREADS>(d_prob, sums);
            if (threadIdx.x == 0) {
                a.d_probs[r] += d_prob;
            }
        }
    }
}

/* Calls body(T{}, integral constant N) with pieces of 16 bytes where width and addresses allow it, else of one element.
 */
template <int N> struct Width {
    static constexpr int value = N;
};
template <typename Body> static int by_width(enum moe_dtype type, int64_t width, uintptr_t addresses, Body body)
{
    return moe_by_type(type, [&](auto element) {
        constexpr int N = Piece<decltype(element)>::N;
        if (width % N == 0 && addresses % 16 == 0) {
            body(element, Width<N>{});
        } else {
            body(element, Width<1>{});
        }
        return moe_launch_result();
    });
}

extern "C" int moe_cuda_act(moe_device_t *device, const struct moe_act *a)
{
    unsigned blocks = moe_blocks(a->rows > 0 ? a->rows : 1, 1, MOST_BLOCKS);
    return by_width(a->type, a->width, (uintptr_t)a->h | (uintptr_t)a->act, [&](auto element, auto width) {
        using P = Pack<decltype(element), decltype(width)::value>;
        act<<<blocks, THREADS, 0, device->stream>>>(*a, a->width / decltype(width)::value, static_cast<const P *>(a->h),
                                                    static_cast<P *>(a->act), moe_state(device)->error);
    });
}

extern "C" int moe_cuda_act_backward(moe_device_t *device, const struct moe_act *a)
{
    unsigned blocks = moe_blocks(a->rows > 0 ? a->rows : 1, 1, MOST_BLOCKS);
    return by_width(a->type, a->width, (uintptr_t)a->h | (uintptr_t)a->d_act | (uintptr_t)a->d_h,
                    [&](auto element, auto width) {
                        using P = Pack<decltype(element), decltype(width)::value>;
                        act_backward<<<blocks, THREADS, 0, device->stream>>>(
                            *a, a->width / decltype(width)::value, static_cast<const P *>(a->h),
                            static_cast<const P *>(a->d_act), static_cast<P *>(a->d_h), moe_state(device)->error);
                    });
}

/* rows times a number */

/* in and out may be the same rows: each thread stores what it has read before. */
template <typename T, int N, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS, 4)
    row_scale(moe_row_scale a, int64_t packs, const Pack<T, N> *in, const Pack<T, N> *__restrict__ x, Pack<T, N> *out,
              int *error)
{
    __shared__ int64_t space[THREADS / 32];
    __shared__ float sums[THREADS / 32];
    int64_t live = moe_live_rows<THREADS>(a.m, a.groups, a.rows, error, space);
    bool dots = BACKWARD && a.d_probs != nullptr;
    for (int64_t r = blockIdx.x; r < live; r += gridDim.x) {
        float prob = a.probs != nullptr ? a.probs[r] : 1.0f, dot = 0.0f;
        for (int64_t i = r * packs + threadIdx.x; i < (r + 1) * packs; i += THREADS) {
            Pack<T, N> piece = in[i], old = a.beta != 0.0f ? out[i] : Pack<T, N>{}, other = dots ? x[i] : Pack<T, N>{};
#pragma unroll
            for (int e = 0; e < N; e++) {
                float value = moe_wide(piece.at[e]);
                dot += dots ? value * moe_wide(other.at[e]) : 0.0f;
                value *= prob;
                old.at[e] = moe_narrow_to<T>(a.beta != 0.0f ? value + moe_wide(old.at[e]) : value);
            }
            out[i] = old;
        }
        if (dots) {
            dot = moe_block_sum<THREADS>(dot, sums);
            if (threadIdx.x == 0) {
                a.d_probs[r] += dot;
            }
        }
    }
}

template <bool BACKWARD> static int launch_row_scale(moe_device_t *device, const struct moe_row_scale *a)
{
    unsigned blocks = moe_blocks(a->rows > 0 ? a->rows : 1, 1, MOST_BLOCKS);
    uintptr_t addresses = (uintptr_t)a->in | (uintptr_t)a->out | (BACKWARD ? (uintptr_t)a->x : 0);
    return by_width(a->type, a->width, addresses, [&](auto element, auto width) {
        constexpr int N = decltype(width)::value;
        using P = Pack<decltype(element), N>;
        row_scale<decltype(element), N, BACKWARD><<<blocks, THREADS, 0, device->stream>>>(
            *a, a->width / N, static_cast<const P *>(a->in), static_cast<const P *>(a->x), static_cast<P *>(a->out),
            moe_state(device)->error);
    });
}

extern "C" int moe_cuda_row_scale(moe_device_t *device, const struct moe_row_scale *a)
{
    return launch_row_scale<false>(device, a);
}

extern "C" int moe_cuda_row_scale_backward(moe_device_t *device, const struct moe_row_scale *a)
{
    return launch_row_scale<true>(device, a);
}

/* the shared expert's gate */

static __device__ __forceinline__ float element_at(const void *data, enum moe_dtype type, int64_t i)
{
    return type == MOE_BF16  ? __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i])
           : type == MOE_F16 ? __half2float(static_cast<const __half *>(data)[i])
                             : static_cast<const float *>(data)[i];
}

static __device__ __forceinline__ void element_set(void *data, enum moe_dtype type, int64_t i, float x)
{
    if (type == MOE_BF16) {
        static_cast<__nv_bfloat16 *>(data)[i] = __float2bfloat16_rn(x);
    } else if (type == MOE_F16) {
        static_cast<__half *>(data)[i] = __float2half_rn(x);
    } else {
        static_cast<float *>(data)[i] = x;
    }
}

static __global__ void __launch_bounds__(THREADS) token_gate(moe_token_gate a)
{
    __shared__ float sums[THREADS / 32];
    for (int64_t t = blockIdx.x; t < a.tokens; t += gridDim.x) {
        float logit = 0.0f;
        for (int64_t i = threadIdx.x; i < a.width; i += THREADS) {
            logit += element_at(a.x, a.type, t * a.width + i) * element_at(a.gate, a.gate_type, i);
        }
        logit = moe_block_sum<THREADS>(logit, sums);
        if (threadIdx.x == 0) {
            a.score[t] = 1.0f / (1.0f + expf(-logit));
        }
    }
}

extern "C" int moe_cuda_token_gate(moe_device_t *device, const struct moe_token_gate *a)
{
    if (a->tokens == 0) {
        return 0;
    }
    token_gate<<<moe_blocks(a->tokens, 1, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}

/* dx of PART tokens and their share of d_gate, one column per thread. */
static __global__ void __launch_bounds__(THREADS)
    token_gate_parts(moe_token_gate a, int64_t parts, float *__restrict__ part)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t y = blockIdx.y; i < a.width && y < parts; y += gridDim.y) {
        int64_t end = (y + 1) * PART < a.tokens ? (y + 1) * PART : a.tokens;
        float sum = 0.0f, gate = element_at(a.gate, a.gate_type, i);
        for (int64_t t = y * PART; t < end; t++) {
            float dl = a.d_score[t] * a.score[t] * (1.0f - a.score[t]);
            int64_t at = t * a.width + i;
            element_set(a.dx, a.type, at, element_at(a.dx, a.type, at) + dl * gate);
            sum += a.d_gate != NULL ? dl * element_at(a.x, a.type, at) : 0.0f;
        }
        part[y * a.width + i] = sum;
    }
}

static __global__ void __launch_bounds__(THREADS)
    token_gate_total(moe_token_gate a, int64_t parts, const float *__restrict__ part)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < a.width) {
        float sum = a.beta != 0.0f ? element_at(a.d_gate, a.grad, i) : 0.0f;
        for (int64_t y = 0; y < parts; y++) {
            sum += part[y * a.width + i];
        }
        element_set(a.d_gate, a.grad, i, sum);
    }
}

extern "C" int moe_cuda_token_gate_backward(moe_device_t *device, const struct moe_token_gate *a)
{
    int64_t parts = (a->tokens + PART - 1) / PART;
    Scratch<float> part(device, parts * a->width);
    if (part.rc != 0 || a->width == 0) {
        return part.rc;
    }
    unsigned columns = moe_blocks(a->width, THREADS, INT32_MAX);
    if (parts > 0) {
        token_gate_parts<<<dim3(columns, moe_blocks(parts, 1, 65535)), THREADS, 0, device->stream>>>(*a, parts,
                                                                                                     part.data);
    }
    if (a->d_gate != NULL) {
        token_gate_total<<<columns, THREADS, 0, device->stream>>>(*a, parts, part.data);
    }
    return moe_launch_result();
}
