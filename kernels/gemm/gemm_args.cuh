/*
 * gemm_args.cuh: the arguments of the kernels of the grouped products, and how each block finds its tiles.
 *
 * The plan is made on the device by one small kernel from the counts (gemm_plan.cu) and lies in memory that a
 * moe_kernel_gemm owns; the product kernels read it. The host never sees a count. Persistent blocks take the tiles
 * blockIdx, blockIdx + gridDim, ...: the tiles of the groups follow one another, so every block gets its share of every
 * group. A shared counter from which blocks draw tiles was rejected: it costs one more round trip to the L2 per tile
 * and gains little.
 */
#ifndef ROLL_KERNELS_GEMM_GEMM_ARGS_CUH
#define ROLL_KERNELS_GEMM_GEMM_ARGS_CUH

#include "kernels/gemm/gemm_index.h"
#include "moe_core/include/moe/ops.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

/*
 * The plan, in device memory. After a bad count row[groups] is -1 and tile[groups] is 0, so that no product touches
 * anything.
 */
struct gemm_plan {
    int64_t *row;       /* [groups + 1]: first row of the group */
    int64_t *tile;      /* [groups + 1]: first tile of the group */
    CUtensorMap *a, *b; /* [groups] each: the group's operands for the copy engine */
};

struct gemm_args {
    struct gemm_plan plan;
    int kind;
    int64_t groups, n, k;
    const struct moe_linear_group *group; /* NULL: weights and d_weights of the groups lie one after the other */
    const void *in, *x;                   /* in: x (forward) or dy; x: weight gradient only */
    const void *weights;                  /* without group: [groups,n,k] */
    void *out;                            /* forward y, dgrad dx; without group also the weight gradients */
    enum moe_dtype activation, weight, bias, grad;
    bool block_scales;
    int accumulate;
    const float *row_scales; /* products of two FP8 operands: [rows, ceil(depth / 128)] of `in`; weight gradient:
                                [blocks of 128 columns, n] of dy */
    const float *bias_probs; /* [rows]: a second factor of each row's bias; or NULL */
    float bias_scale;        /* factor of every bias */
    int team_log;            /* 1 << team_log blocks are a team (gemm_index.h); 0: each for itself */
    const float *col_scales; /* weight gradient of two FP8 operands: [blocks of 128 columns, k] of x */
};

struct gemm_plan_args {
    struct gemm_plan plan;
    int kind, accumulate;
    struct moe_gemm_cut cut;
    int64_t groups, n, k, rows;
    const int64_t *m;
    int *error; /* or NULL */
    /* Members for the copy engine; without maps the others are not read. */
    bool maps;
    bool columns; /* weight gradient of two FP8 operands: a and b have columns for rows (common/fp8.h) */
    const struct moe_linear_group *group;
    const char *a, *b; /* rows of group i are at a + row * a_pitch; b likewise, or NULL: b is the groups' weights */
    int64_t a_pitch, b_pitch; /* bytes */
    const char *weights;      /* NULL, or the groups' weights, one after the other, instead of the group's own */
    int64_t weight_bytes;     /* of one group */
    CUtensorMap a_map, b_map; /* templates: all but the address and, for rows, their number */
};

/* A block's place in the list of tiles. */
struct gemm_place {
    int64_t tile, group;
};

struct gemm_work {
    int64_t group, first_row, m;
    struct moe_gemm_shape shape;
    struct moe_gemm_tile tile;
    struct moe_gemm_team team;
};

#ifdef __CUDACC__

/* Of a block that works for itself, or in a team. */
template <bool TEAM = false> static __device__ __forceinline__ struct gemm_place gemm_begin(const struct gemm_args &a)
{
    struct gemm_place p;
    p.tile = TEAM ? blockIdx.x >> a.team_log : blockIdx.x;
    p.group = 0;
    return p;
}

/* The block's number in its team. */
static __device__ __forceinline__ int32_t gemm_rank(const struct gemm_args &a)
{
    return (int32_t)(blockIdx.x & ((1u << a.team_log) - 1));
}

/* Moves to the block's next tile; false when there is none. In a team the tile may lie beyond the group. */
template <bool TEAM = false>
static __device__ __forceinline__ bool gemm_next(const struct gemm_args &a, struct moe_gemm_cut cut,
                                                 struct gemm_place *place, struct gemm_work *work)
{
    const int64_t *tile = a.plan.tile, *row = a.plan.row;
    if (place->tile >= tile[a.groups]) {
        return false;
    }
    while (place->tile >= tile[place->group + 1]) {
        place->group++;
    }
    int64_t g = place->group, at = place->tile - tile[g];
    work->group = g;
    work->first_row = row[g];
    work->m = row[g + 1] - row[g];
    work->shape = moe_gemm_shape_of(a.kind, work->m, a.n, a.k);
    if (TEAM) {
        cut.team_log = a.team_log;
        struct moe_gemm_grid grid = moe_gemm_grid_of(work->shape, cut);
        work->tile = moe_gemm_team_tile(at, grid, gemm_rank(a));
        work->team = grid.team;
        place->tile += gridDim.x >> a.team_log;
    } else {
        work->tile = moe_gemm_raster(at, moe_gemm_ceil(work->shape.rows, cut.tile_rows),
                                     moe_gemm_ceil(work->shape.cols, cut.tile_cols));
        work->team.high_log = work->team.wide_log = 0;
        place->tile += gridDim.x;
    }
    return true;
}

static __device__ __forceinline__ float gemm_load(enum moe_dtype type, const void *from, int64_t i)
{
    switch (type) {
    case MOE_F32:
        return static_cast<const float *>(from)[i];
    case MOE_BF16:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[i]);
    case MOE_F16:
        return __half2float(static_cast<const __half *>(from)[i]);
    case MOE_E4M3:
        return static_cast<float>(static_cast<const __nv_fp8_e4m3 *>(from)[i]);
    default:
        return static_cast<float>(static_cast<const __nv_fp8_e5m2 *>(from)[i]);
    }
}

static __device__ __forceinline__ void gemm_store(enum moe_dtype type, void *to, int64_t i, float value)
{
    switch (type) {
    case MOE_F32:
        static_cast<float *>(to)[i] = value;
        break;
    case MOE_BF16:
        static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(value);
        break;
    default:
        static_cast<__half *>(to)[i] = __float2half_rn(value);
    }
}

/* Two neighbours, rounded to nearest even, as one word. */
template <class T> static __device__ __forceinline__ uint32_t gemm_pack(float low, float high);

template <> __device__ __forceinline__ uint32_t gemm_pack<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

template <> __device__ __forceinline__ uint32_t gemm_pack<__half>(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

static __device__ __forceinline__ const void *gemm_weight(const struct gemm_args &a, int64_t g, int64_t bytes)
{
    return a.group != nullptr ? a.group[g].weight : static_cast<const char *>(a.weights) + g * a.n * a.k * bytes;
}

static __device__ __forceinline__ void *gemm_d_weight(const struct gemm_args &a, int64_t g)
{
    return a.group != nullptr ? a.group[g].d_weight : static_cast<float *>(a.out) + g * a.n * a.k;
}

/* The bias of a forward product, or NULL. */
static __device__ __forceinline__ const void *gemm_bias(const struct gemm_args &a, int64_t g)
{
    return a.kind == MOE_GEMM_FORWARD && a.group != nullptr ? a.group[g].bias : nullptr;
}

/* The factor of the bias in a row of the tile's group; rows beyond the group have no bias_probs to read. */
static __device__ __forceinline__ float gemm_bias_factor(const struct gemm_args &a, const struct gemm_work &w,
                                                         int64_t row)
{
    return a.bias_probs == nullptr ? a.bias_scale
           : row < w.shape.rows    ? a.bias_scale * __ldg(a.bias_probs + w.first_row + row)
                                   : 0.0f;
}

/* The scale of an FP8 weight for one block of 128 along the depth and one along the columns of the output. */
static __device__ __forceinline__ float gemm_scale(const struct gemm_args &a, const float *scale, int64_t depth_block,
                                                   int64_t col_block)
{
    int64_t across = (a.k + 127) / 128;
    bool forward = a.kind == MOE_GEMM_FORWARD;
    int64_t at = forward ? col_block * across + depth_block : depth_block * across + col_block;
    return scale == nullptr ? 1.0f : __ldg(scale + (a.block_scales ? at : 0));
}
#endif

/* The launchers, one per file. `blocks`: multiprocessors of the device. 0 or DEVICE. */
int gemm_plan_launch(const struct gemm_plan_args *args, cudaStream_t stream);
int gemm_hopper_launch(const struct gemm_args *args, int blocks, cudaStream_t stream);
int gemm_scaled_launch(const struct gemm_args *args, int blocks, cudaStream_t stream);
int gemm_mma_launch(const struct gemm_args *args, int blocks, cudaStream_t stream);
int gemm_simt_launch(const struct gemm_args *args, int blocks, cudaStream_t stream);
int gemm_bias_grad_launch(const struct gemm_args *args, cudaStream_t stream);
int gemm_probs_grad_launch(const struct gemm_args *args, int blocks, cudaStream_t stream);
/* Once per process and device: shared memory beyond 48 KiB. 0 or DEVICE. */
int gemm_hopper_prepare(void);
int gemm_scaled_prepare(void);
int gemm_mma_prepare(void);

/* The teams of 1 << team_log blocks that the current device runs at once; 0: none. 0 or DEVICE. */
int gemm_hopper_teams(int team_log, int *teams);
int gemm_scaled_teams(int team_log, int *teams);

#endif
