/*
 * quantize.cu: rows rounded to FP8 (moe/fp8.h): bytes and scales, in rows, or in columns for weight gradients; and FP8
 * weights with their other side first.
 *
 * Idea: memory-bound work, each number read once, or twice with one scale for a group, whose largest number must be
 * known first. In rows a warp takes 128 numbers, four a lane. In columns a block takes 128 rows of 64 columns: each
 * thread keeps 32 numbers of one column, the largest is found in shared memory, and the bytes are turned there. Scales
 * come from integers (common/fp8.h): maxima do not depend on the order of threads, and the bytes are the host's.
 *
 * Rounding inside the product, on the way to shared memory, was rejected: a row would be rounded again for every tile
 * of columns, and columns would still have to be turned, because the matrix unit reads FP8 along the sum only.
 *
 * Starts and counts as in rows.cu; the host never sees a count. Architecture: any. Indices: 64 bit.
 */
#include "common/fp8.h"
#include "kernels/plan.cuh"
#include "kernels/quantize.cuh"

#include <cuda_fp8.h>

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    MOST_BLOCKS = 132 * 16,
    BLOCK = 128,       /* numbers with one scale */
    LANE = BLOCK / 32, /* numbers of a lane */
    COLUMNS = 64,      /* of a block of threads in columns */
    LANES = THREADS / COLUMNS,
    KEPT = BLOCK / LANES,
    PITCH = BLOCK + 4, /* of turned bytes: no bank conflicts in either direction */
    TILE = 64,         /* edge of a tile of weights */
    NOT_A_NUMBER = 0x7f,
};

struct RowSizes {
    const int64_t *m;
    __device__ Sizes operator()(int64_t i) const
    {
        return {{m[i], m[i]}, m[i] < 0 ? MOE_E_COUNT : 0};
    }
};

/* What the kernels share. */
struct Rounding {
    moe_quantize q;
    const int64_t *start; /* [groups]: first rows */
    const Plan *plan;
    unsigned *most; /* TENSOR: [groups]; else NULL */
};

static __device__ __forceinline__ int top_of(enum moe_dtype type)
{
    return type == MOE_E4M3 ? MOE_FP8_TOP_E4M3 : MOE_FP8_TOP_E5M2;
}

static __device__ __forceinline__ uint8_t round_one(enum moe_dtype type, float x, float down)
{
    if ((__float_as_uint(x) & 0x7fffffffu) >= MOE_FP8_INFINITY) {
        return NOT_A_NUMBER;
    }
    return __nv_cvt_float_to_fp8(x * down, __NV_SATFINITE, type == MOE_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

static __device__ __forceinline__ unsigned size_of(float x)
{
    return moe_fp8_size(__float_as_uint(x));
}

static __device__ __forceinline__ unsigned warp_most(unsigned most)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    return most;
}

/* Four numbers in a row, of which `there` are there; zeros behind them. */
template <typename T> struct alignas(4 * sizeof(T)) Four {
    T at[LANE];
};

template <typename T>
static __device__ __forceinline__ void load_four(float (&x)[LANE], const T *from, int64_t there, bool whole)
{
    Four<T> raw;
    if (whole && there > 0) {
        raw = *reinterpret_cast<const Four<T> *>(from);
    }
#pragma unroll
    for (int j = 0; j < LANE; j++) {
        x[j] = j >= there ? 0.0f : whole ? moe_wide(raw.at[j]) : moe_wide(from[j]);
    }
}

/* Whether a row's pieces of four can be moved at once. */
static __device__ __forceinline__ bool in_fours(const void *p, int64_t width, size_t size)
{
    return width % LANE == 0 && reinterpret_cast<uintptr_t>(p) % (LANE * size) == 0;
}

/* The largest number of each group, with one scale for each. A warp takes a row. */
template <typename T> static __global__ void __launch_bounds__(THREADS) find_most(const Rounding r)
{
    int lane = threadIdx.x % 32;
    int64_t width = r.q.width, rows = r.plan->error == 0 ? r.plan->total[0] : 0;
    bool whole = in_fours(r.q.from, width, sizeof(T));
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < rows; row += (int64_t)gridDim.x * WARPS) {
        const T *from = static_cast<const T *>(r.q.from) + row * width;
        unsigned most = 0;
        for (int64_t col = lane * LANE; col < width; col += BLOCK) {
            float x[LANE];
            load_four(x, from + col, width - col, whole);
#pragma unroll
            for (int j = 0; j < LANE; j++) {
                most = max(most, size_of(x[j]));
            }
        }
        most = warp_most(most);
        if (lane == 0) {
            atomicMax(&r.most[moe_piece_of(r.start, r.q.groups, row)], most);
        }
    }
}

/* Rows to rows. A warp takes 128 numbers. */
template <typename T> static __global__ void __launch_bounds__(THREADS) round_rows(const Rounding r)
{
    int lane = threadIdx.x % 32;
    int64_t width = r.q.width, across = (width + BLOCK - 1) / BLOCK,
            pieces = r.plan->error == 0 ? r.plan->total[0] * across : 0;
    bool whole = in_fours(r.q.from, width, sizeof(T)), store_whole = in_fours(r.q.to, width, 1);
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < pieces; i += (int64_t)gridDim.x * WARPS) {
        int64_t row = i / across, col = i % across * BLOCK + lane * LANE, at = row * width + col, there = width - col;
        float x[LANE];
        unsigned most = 0;
        load_four(x, static_cast<const T *>(r.q.from) + at, there, whole);
        if (r.most != nullptr) {
            most = r.most[moe_piece_of(r.start, r.q.groups, row)];
        } else {
#pragma unroll
            for (int j = 0; j < LANE; j++) {
                most = max(most, size_of(x[j]));
            }
            most = warp_most(most);
        }
        int e = moe_fp8_exponent(most, top_of(r.q.to_type));
        float down = __uint_as_float(moe_fp8_power(-e));
        uint8_t *to = static_cast<uint8_t *>(r.q.to) + at;
        unsigned word = 0;
#pragma unroll
        for (int j = 0; j < LANE; j++) {
            word |= (unsigned)round_one(r.q.to_type, x[j], down) << 8 * j;
        }
        if (store_whole && there > 0) {
            *reinterpret_cast<unsigned *>(to) = word;
        }
#pragma unroll
        for (int j = 0; j < LANE; j++) {
            if (!store_whole && j < there) {
                to[j] = (uint8_t)(word >> 8 * j);
            }
        }
        if (lane == 0) {
            r.q.scales[i] = __uint_as_float(moe_fp8_power(e));
        }
    }
}

/* The group whose columns hold column `column`: the last one that begins there or before. */
static __device__ __forceinline__ int64_t group_of_column(const int64_t *start, int64_t groups, int64_t column)
{
    int64_t low = 0, high = groups;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (moe_fp8_column(start[middle], middle) <= column) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Turned bytes, `there` of them in each line, to their columns. */
static __device__ __forceinline__ void store_columns(const uint8_t (*turned)[PITCH], uint8_t *to, int64_t pitch,
                                                     int64_t lines, int there)
{
    for (int i = threadIdx.x; i < COLUMNS * (BLOCK / 4); i += THREADS) {
        int line = i / (BLOCK / 4), at = i % (BLOCK / 4) * 4;
        uint8_t *out = to + line * pitch + at;
        if (line < lines && at + 4 <= there) {
            *reinterpret_cast<unsigned *>(out) = *reinterpret_cast<const unsigned *>(&turned[line][at]);
        } else if (line < lines) {
            for (int j = 0; at + j < there; j++) {
                out[j] = turned[line][at + j];
            }
        }
    }
}

/* Rows to columns. A block takes 128 rows of a group and 64 columns. */
template <typename T> static __global__ void __launch_bounds__(THREADS) round_columns(const Rounding r)
{
    __shared__ __align__(16) uint8_t turned[COLUMNS][PITCH];
    __shared__ unsigned largest[LANES][COLUMNS];
    int64_t width = r.q.width, pitch = moe_fp8_pitch(r.q.rows, r.q.groups), tiles = (width + COLUMNS - 1) / COLUMNS,
            items = r.plan->error == 0 ? pitch / BLOCK * tiles : 0;
    int mine = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        int64_t block = item / tiles, col = item % tiles * COLUMNS + mine,
                group = group_of_column(r.start, r.q.groups, block * BLOCK),
                first = block * BLOCK - moe_fp8_column(r.start[group], group), left = r.q.m[group] - first;
        int there = left < BLOCK ? (int)left : BLOCK;
        if (left <= 0) {
            continue;
        }
        const T *from = static_cast<const T *>(r.q.from) + (r.start[group] + first) * width + col;
        float x[KEPT];
        unsigned most = 0;
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            int row = i * LANES + lane;
            x[i] = row < there && col < width ? moe_wide(from[row * width]) : 0.0f;
            most = max(most, size_of(x[i]));
        }
        if (r.most != nullptr) {
            most = r.most[group];
        }
        largest[lane][mine] = most;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < LANES; i++) {
            most = max(most, largest[i][mine]);
        }
        int e = moe_fp8_exponent(most, top_of(r.q.to_type));
        float down = __uint_as_float(moe_fp8_power(-e));
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            turned[mine][i * LANES + lane] = round_one(r.q.to_type, x[i], down);
        }
        if (lane == 0 && col < width) {
            r.q.scales[block * width + col] = __uint_as_float(moe_fp8_power(e));
        }
        __syncthreads();
        store_columns(turned, static_cast<uint8_t *>(r.q.to) + (col - mine) * pitch + block * BLOCK, pitch,
                      width - (col - mine), there);
        __syncthreads();
    }
}

template <typename T> static int launch(moe_device_t *device, const Rounding &r)
{
    int64_t across = (r.q.width + BLOCK - 1) / BLOCK;
    if (r.most != nullptr) {
        find_most<T><<<moe_blocks(r.q.rows, WARPS, MOST_BLOCKS), THREADS, 0, device->stream>>>(r);
    }
    if (r.q.down) {
        int64_t items = moe_fp8_pitch(r.q.rows, r.q.groups) / BLOCK * ((r.q.width + COLUMNS - 1) / COLUMNS);
        round_columns<T><<<moe_blocks(items, 1, MOST_BLOCKS), THREADS, 0, device->stream>>>(r);
    } else {
        round_rows<T><<<moe_blocks(r.q.rows * across, WARPS, MOST_BLOCKS), THREADS, 0, device->stream>>>(r);
    }
    return moe_launch_result();
}

extern "C" int moe_cuda_quantize(moe_device_t *device, const struct moe_quantize *a)
{
    if ((a->to_type != MOE_E4M3 && a->to_type != MOE_E5M2) || (a->how != MOE_FP8_TENSOR && a->how != MOE_FP8_BLOCKS)) {
        return MOE_E_ARG;
    }
    if (a->groups == 0) {
        return 0;
    }
    Scratch<int64_t> starts(device, 2 * a->groups);
    Scratch<Plan> plan(device, 1);
    Scratch<unsigned> most(device, a->groups);
    int rc = starts.rc ? starts.rc : plan.rc ? plan.rc : most.rc;
    if (rc != 0) {
        return rc;
    }
    plan_starts<<<1, PLAN_THREADS, 0, device->stream>>>(RowSizes{a->m}, a->groups, a->rows, a->rows, MOE_E_SPLIT,
                                                        MOE_E_SPLIT, 0, starts.data, starts.data + a->groups, plan.data,
                                                        moe_state(device)->error);
    if (a->rows == 0 || a->width == 0) {
        return moe_launch_result();
    }
    bool one = a->how == MOE_FP8_TENSOR;
    if (one && cudaMemsetAsync(most.data, 0, (size_t)a->groups * sizeof(*most.data), device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    Rounding r = {*a, starts.data, plan.data, one ? most.data : nullptr};
    return moe_by_type(a->type, [&](auto element) { return launch<decltype(element)>(device, r); });
}

/* weights, turned */

/* to [groups, k, n] from the groups' [n, k], for groups with rows. n and k are multiples of 16. A block takes a tile of
 * 64 x 64; weights at an address that is no word's are left to the product, which refuses them. */
static __global__ void __launch_bounds__(THREADS)
    turn_weights(const moe_linear_group *__restrict__ group, const int64_t *__restrict__ m, int64_t groups, int64_t n,
                 int64_t k, uint8_t *__restrict__ to)
{
    __shared__ __align__(16) uint8_t tile[TILE][TILE + 4];
    int64_t high = (n + TILE - 1) / TILE, wide = (k + TILE - 1) / TILE;
    for (int64_t item = blockIdx.x; item < groups * high * wide; item += gridDim.x) {
        int64_t g = item / (high * wide), row = item / wide % high * TILE, col = item % wide * TILE;
        const uint8_t *from = static_cast<const uint8_t *>(group[g].weight);
        if (m[g] <= 0 || reinterpret_cast<uintptr_t>(from) % 4 != 0) {
            continue;
        }
        for (int i = threadIdx.x; i < TILE * TILE / 4; i += THREADS) {
            int r = i / (TILE / 4), c = i % (TILE / 4) * 4;
            if (row + r < n && col + c < k) {
                *reinterpret_cast<unsigned *>(&tile[r][c]) =
                    *reinterpret_cast<const unsigned *>(from + (row + r) * k + col + c);
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < TILE * TILE / 4; i += THREADS) {
            int c = i / (TILE / 4), r = i % (TILE / 4) * 4;
            if (row + r < n && col + c < k) {
                unsigned word = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    word |= (unsigned)tile[r + j][c] << 8 * j;
                }
                *reinterpret_cast<unsigned *>(to + (g * k + col + c) * n + row + r) = word;
            }
        }
        __syncthreads();
    }
}

int moe_turn_weights(const struct moe_linear_pass *pass, uint8_t *to, cudaStream_t stream)
{
    int64_t tiles = pass->groups * ((pass->n + TILE - 1) / TILE) * ((pass->k + TILE - 1) / TILE);
    turn_weights<<<moe_blocks(tiles, 1, MOST_BLOCKS), THREADS, 0, stream>>>(pass->group, pass->m, pass->groups, pass->n,
                                                                            pass->k, to);
    return moe_launch_result();
}
