/*
 * gemm_simt.cu: the grouped products in plain float32 arithmetic, for every type.
 *
 * These kernels serve float32 activations, which must be as exact as on the host (the matrix units would round them to
 * 10 bits), and pairs of types that no matrix instruction takes. Operands are widened on the way into shared memory,
 * FP8 weights with their scale, as the host does.
 *
 * Idea: 128 x 128 tiles, 16 deep, 256 threads with 8 x 8 sums each; the next stage is fetched into registers while the
 * present one is multiplied. Whether an operand runs along the depth or along its rows is a template argument, so that
 * neighbouring threads read neighbouring memory either way. Persistent blocks over the plan (gemm_args.cuh).
 *
 * Rows beyond a group, columns beyond the matrix and depth beyond either are zeros in shared memory and never read from
 * memory. Launch: two blocks per multiprocessor, 17 KiB of shared memory. Any alignment. Indices: 64 bit. Streams: the
 * caller's only. Architecture: any.
 */
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"

enum { ROWS = GEMM_SIMT_ROWS, COLS = GEMM_SIMT_COLS, DEPTH = 16, THREADS = 256, EDGE = 128 + 4, PIECE = 8 };

/* One operand of a group: element (i, d) is at base + i * along_i + d * along_d; along_i or along_d is 1. */
struct operand {
    enum moe_dtype type;
    const void *base;
    int64_t offset, edge, depth, pitch;
    const float *scale;
};

template <class T> static __device__ __forceinline__ void widen(float (&to)[PIECE], const T *from, int64_t count)
{
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        to[j] = j < count ? static_cast<float>(from[j]) : 0.0f;
    }
}

/* This thread's eight neighbours of a stage; MN_MAJOR: along i, else along d. */
template <bool MN_MAJOR>
static __device__ __forceinline__ void fetch(float (&to)[PIECE], const struct operand &o, int64_t first, int64_t depth)
{
    int t = threadIdx.x;
    int64_t i = first + (MN_MAJOR ? t % 16 * PIECE : t / 2), d = depth + (MN_MAJOR ? t / 16 : t % 2 * PIECE);
    int64_t at = o.offset + (MN_MAJOR ? d * o.pitch + i : i * o.pitch + d);
    int64_t count = i >= o.edge || d >= o.depth ? 0 : MN_MAJOR ? o.edge - i : o.depth - d;
    switch (o.type) {
    case MOE_F32:
        widen(to, static_cast<const float *>(o.base) + at, count);
        break;
    case MOE_BF16:
        widen(to, static_cast<const __nv_bfloat16 *>(o.base) + at, count);
        break;
    case MOE_F16:
        widen(to, static_cast<const __half *>(o.base) + at, count);
        break;
    case MOE_E4M3:
        widen(to, static_cast<const __nv_fp8_e4m3 *>(o.base) + at, count);
        break;
    default:
        widen(to, static_cast<const __nv_fp8_e5m2 *>(o.base) + at, count);
    }
}

template <bool MN_MAJOR>
static __device__ __forceinline__ void keep(float (&stage)[DEPTH][EDGE], const float (&from)[PIECE], float scale)
{
    int t = threadIdx.x;
#pragma unroll
    for (int j = 0; j < PIECE; j++) {
        if (MN_MAJOR) {
            stage[t / 16][t % 16 * PIECE + j] = from[j] * scale;
        } else {
            stage[t % 2 * PIECE + j][t / 2] = from[j] * scale;
        }
    }
}

/* Row or column number j (0..7) of a thread: two runs of four, 64 apart. */
static __device__ __forceinline__ int spread(int thread, int j)
{
    return j / 4 * 64 + thread * 4 + j % 4;
}

static __device__ __forceinline__ void multiply(float (&sum)[8][8], const float (&a)[DEPTH][EDGE],
                                                const float (&b)[DEPTH][EDGE])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        float x[8], y[8];
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            *reinterpret_cast<float4 *>(&x[j]) = *reinterpret_cast<const float4 *>(&a[d][spread(ty, j)]);
            *reinterpret_cast<float4 *>(&y[j]) = *reinterpret_cast<const float4 *>(&b[d][spread(tx, j)]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                sum[i][j] = fmaf(x[i], y[j], sum[i][j]);
            }
        }
    }
}

static __device__ struct operand left_of(const struct gemm_args &a, const struct gemm_work &w)
{
    struct operand o;
    o.type = a.activation;
    o.base = a.in;
    o.pitch = a.kind == MOE_GEMM_FORWARD ? a.k : a.n;
    o.offset = w.first_row * o.pitch;
    o.edge = w.shape.rows;
    o.depth = w.shape.depth;
    o.scale = nullptr;
    return o;
}

static __device__ struct operand right_of(const struct gemm_args &a, const struct gemm_work &w)
{
    struct operand o = left_of(a, w);
    bool weight = a.kind != MOE_GEMM_WGRAD;
    o.type = weight ? a.weight : a.activation;
    o.base = weight ? gemm_weight(a, w.group, sizeof(float)) : a.x;
    o.pitch = a.k;
    o.offset = weight ? 0 : w.first_row * a.k;
    o.edge = w.shape.cols;
    o.scale = weight && a.group != nullptr && (a.weight == MOE_E4M3 || a.weight == MOE_E5M2) ? a.group[w.group].scale
                                                                                             : nullptr;
    return o;
}

static __device__ __forceinline__ void store(const struct gemm_args &a, const struct gemm_work &w,
                                             const float (&sum)[8][8])
{
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    bool grad = a.kind == MOE_GEMM_WGRAD;
    void *out = grad ? gemm_d_weight(a, w.group) : a.out;
    enum moe_dtype type = grad ? a.grad : a.activation;
    const void *bias = gemm_bias(a, w.group);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t row = w.tile.row * ROWS + spread(ty, i);
        float factor = bias != nullptr ? gemm_bias_factor(a, w, row) : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int64_t col = w.tile.col * COLS + spread(tx, j);
            if (row < w.shape.rows && col < w.shape.cols) {
                int64_t at = ((grad ? 0 : w.first_row) + row) * w.shape.cols + col;
                float v = sum[i][j];
                v = bias != nullptr ? fmaf(factor, gemm_load(a.bias, bias, col), v) : v;
                v = grad && a.accumulate ? v + gemm_load(type, out, at) : v;
                gemm_store(type, out, at, v);
            }
        }
    }
}

template <int KIND>
static __global__ void __launch_bounds__(THREADS, 2) gemm_simt(const __grid_constant__ struct gemm_args a)
{
    constexpr bool A_MN = KIND == MOE_GEMM_WGRAD, B_MN = KIND != MOE_GEMM_FORWARD;
    __shared__ __align__(16) float left[DEPTH][EDGE], right[DEPTH][EDGE];
    struct gemm_place place = gemm_begin(a);
    struct gemm_work w;
    while (gemm_next(a, moe_gemm_cut_of(ROWS, COLS, 128), &place, &w)) {
        struct operand x = left_of(a, w), y = right_of(a, w);
        int64_t row = w.tile.row * ROWS, col = w.tile.col * COLS;
        float sum[8][8] = {}, next_x[PIECE], next_y[PIECE];
        fetch<A_MN>(next_x, x, row, 0);
        fetch<B_MN>(next_y, y, col, 0);
        for (int64_t depth = 0; depth < w.shape.depth; depth += DEPTH) {
            /* Tiles begin at multiples of 128: all of a stage's weights share a block. */
            float scale = y.scale != nullptr ? gemm_scale(a, y.scale, depth / 128, col / 128) : 1.0f;
            __syncthreads();
            keep<A_MN>(left, next_x, 1.0f);
            keep<B_MN>(right, next_y, scale);
            __syncthreads();
            fetch<A_MN>(next_x, x, row, depth + DEPTH);
            fetch<B_MN>(next_y, y, col, depth + DEPTH);
            multiply(sum, left, right);
        }
        store(a, w, sum);
    }
}

int gemm_simt_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    switch (args->kind) {
    case MOE_GEMM_FORWARD:
        gemm_simt<MOE_GEMM_FORWARD><<<2 * blocks, THREADS, 0, stream>>>(*args);
        break;
    case MOE_GEMM_DGRAD:
        gemm_simt<MOE_GEMM_DGRAD><<<2 * blocks, THREADS, 0, stream>>>(*args);
        break;
    default:
        gemm_simt<MOE_GEMM_WGRAD><<<2 * blocks, THREADS, 0, stream>>>(*args);
    }
    return moe_launch_result();
}
