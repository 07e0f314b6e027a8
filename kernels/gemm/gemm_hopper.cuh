/*
 * gemm_hopper.cuh: what the products on sm_90a share: the barriers of the ring, and the stores from the accumulators.
 *
 * Stores: each warp passes its 16 rows through 2 KiB of shared memory of its own, 128 bytes of each row at a time, and
 * stores 16-byte pieces, eight lanes to a row, so that whole lines are written; rows and pieces beyond the edge are
 * masked. A store by the copy engine was rejected: bias, accumulation in float32 and narrower gradient types need the
 * registers anyway.
 */
#ifndef ROLL_KERNELS_GEMM_GEMM_HOPPER_CUH
#define ROLL_KERNELS_GEMM_GEMM_HOPPER_CUH

#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"
#include "kernels/gemm/hopper.cuh"
#include "kernels/gemm/wgmma.cuh"

enum { STAGING = 2048 /* bytes for each consumer warp */, CONSUMER_WARPS = 8 };

/* One arrival per warp says that the warp's matrix instructions have read the stage. The warp's lanes are together
 * before: the first lane speaks for all, and two turns later the phase that a late lane waits for looks unfinished. */
static __device__ __forceinline__ void stage_release(uint32_t bar)
{
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(bar);
    }
}

/* The same, at each block of a team: any of them may have copied into this block's stage. */
template <bool TEAM> static __device__ __forceinline__ void stage_release(uint32_t bar, int team_log)
{
    if (!TEAM) {
        stage_release(bar);
    } else if (threadIdx.x % 32 < 1u << team_log) {
        barrier_arrive_at(bar, threadIdx.x % 32);
    }
}

/* Whether a tile has no row or no column of its group: a team's place at the edge. */
static __device__ __forceinline__ bool tile_beyond(const struct gemm_work &w, struct moe_gemm_cut cut)
{
    return w.tile.row * cut.tile_rows >= w.shape.rows || w.tile.col * cut.tile_cols >= w.shape.cols;
}

/*
 * One operand's stage for a team: this block's boxes, for all that need them. The others bring the rest, and the
 * stage's barrier here counts the bytes of all.
 */
template <int MN_MAJOR, int BOXES>
static __device__ __forceinline__ void copy_share(uint32_t to, const CUtensorMap *map, struct moe_gemm_share share,
                                                  int32_t at, int32_t depth, uint32_t bar)
{
#pragma unroll
    for (int box = 0; box < BOXES; box++) {
        if ((box & share.others) == share.mine) {
            struct moe_gemm_box b = moe_gemm_box_at(MN_MAJOR, at, depth, box);
            copy_box_to(to + b.offset, map, b.x, b.y, bar, share.to);
        }
    }
}

/* A warp's 16 rows x COLS columns from (row, col) of the group on, within its rows and columns, with its bias, as type
 * T. */
template <class T, int COLS>
static __device__ __forceinline__ void store_rows(const float (&acc)[COLS / 2], uint8_t *staging,
                                                  const struct gemm_args &a, const struct gemm_work &w, int64_t row,
                                                  int64_t col)
{
    int lane = threadIdx.x % 32;
    int64_t rows = w.shape.rows, cols = w.shape.cols;
    T *out = static_cast<T *>(a.out) + w.first_row * cols;
    const void *bias = gemm_bias(a, w.group);
    float upper = 0, lower = 0; /* factors of the bias in this thread's two rows */
    if (bias != nullptr) {
        upper = gemm_bias_factor(a, w, row + lane / 4);
        lower = gemm_bias_factor(a, w, row + lane / 4 + 8);
    }
#pragma unroll
    for (int chunk = 0; chunk < COLS / 64; chunk++) {
        float2 mine = make_float2(0.0f, 0.0f); /* the bias of columns 2 * lane and 2 * lane + 1 */
        if (bias != nullptr && col + chunk * 64 + lane * 2 < cols) {
            mine.x = gemm_load(a.bias, bias, col + chunk * 64 + lane * 2);
            mine.y = gemm_load(a.bias, bias, col + chunk * 64 + lane * 2 + 1);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int i = (chunk * 8 + j) * 4;
            float left = 0, right = 0;
            if (bias != nullptr) {
                left = __shfl_sync(~0u, mine.x, j * 4 + lane % 4);
                right = __shfl_sync(~0u, mine.y, j * 4 + lane % 4);
            }
            uint32_t at = j * 16 + lane % 4 * 4, r = lane / 4;
            *reinterpret_cast<uint32_t *>(staging + moe_staging_offset(r, at)) =
                gemm_pack<T>(fmaf(upper, left, acc[i]), fmaf(upper, right, acc[i + 1]));
            *reinterpret_cast<uint32_t *>(staging + moe_staging_offset(r + 8, at)) =
                gemm_pack<T>(fmaf(lower, left, acc[i + 2]), fmaf(lower, right, acc[i + 3]));
        }
        __syncwarp();
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
            uint32_t r = quarter * 4 + lane / 8, piece = lane % 8;
            int64_t c = col + chunk * 64 + piece * 8;
            uint4 line = *reinterpret_cast<uint4 *>(staging + moe_staging_offset(r, piece * 16));
            if (row + r < rows && c < cols) {
                *reinterpret_cast<uint4 *>(out + (row + r) * cols + c) = line;
            }
        }
        __syncwarp();
    }
}

/* Four neighbours of a gradient. */
static __device__ __forceinline__ float4 grad_load(enum moe_dtype type, const void *from, int64_t i)
{
    if (type == MOE_F32) {
        return *reinterpret_cast<const float4 *>(static_cast<const float *>(from) + i);
    }
    uint2 raw = *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(from) + i);
    if (type == MOE_BF16) {
        float2 a = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&raw.x));
        float2 b = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&raw.y));
        return make_float4(a.x, a.y, b.x, b.y);
    }
    float2 a = __half22float2(*reinterpret_cast<__half2 *>(&raw.x));
    float2 b = __half22float2(*reinterpret_cast<__half2 *>(&raw.y));
    return make_float4(a.x, a.y, b.x, b.y);
}

static __device__ __forceinline__ void grad_store(enum moe_dtype type, void *to, int64_t i, float4 v)
{
    if (type == MOE_F32) {
        *reinterpret_cast<float4 *>(static_cast<float *>(to) + i) = v;
        return;
    }
    uint2 raw = type == MOE_BF16 ? make_uint2(gemm_pack<__nv_bfloat16>(v.x, v.y), gemm_pack<__nv_bfloat16>(v.z, v.w))
                                 : make_uint2(gemm_pack<__half>(v.x, v.y), gemm_pack<__half>(v.z, v.w));
    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(to) + i) = raw;
}

/* The old values of the four pieces that this lane stores of the next 32 columns; zeros beyond the edge. */
static __device__ __forceinline__ void grad_fetch(float4 (&old)[4], enum moe_dtype type, const void *grad, int64_t row,
                                                  int64_t rows, int64_t col, int64_t cols)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
        int64_t r = row + quarter * 4 + lane / 8, c = col + lane % 8 * 4;
        old[quarter] = r < rows && c < cols ? grad_load(type, grad, r * cols + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/*
 * A warp's 16 rows x COLS columns of a weight gradient, 32 columns at a time, added to what is there when `accumulate`:
 * in float32, and rounded once. The next old values are fetched while the present ones are added.
 */
template <int COLS>
static __device__ __forceinline__ void store_grad(const float (&acc)[COLS / 2], uint8_t *staging, enum moe_dtype type,
                                                  void *grad, bool accumulate, int64_t row, int64_t rows, int64_t col,
                                                  int64_t cols)
{
    int lane = threadIdx.x % 32;
    float4 old[4], next[4];
    if (accumulate) {
        grad_fetch(next, type, grad, row, rows, col, cols);
    }
#pragma unroll
    for (int chunk = 0; chunk < COLS / 32; chunk++) {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            old[q] = next[q];
        }
        if (accumulate && chunk + 1 < COLS / 32) {
            grad_fetch(next, type, grad, row, rows, col + (chunk + 1) * 32, cols);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = (chunk * 4 + j) * 4;
            uint32_t at = j * 32 + lane % 4 * 8, r = lane / 4;
            *reinterpret_cast<float2 *>(staging + moe_staging_offset(r, at)) = make_float2(acc[i], acc[i + 1]);
            *reinterpret_cast<float2 *>(staging + moe_staging_offset(r + 8, at)) = make_float2(acc[i + 2], acc[i + 3]);
        }
        __syncwarp();
#pragma unroll
        for (int q = 0; q < 4; q++) {
            uint32_t r = q * 4 + lane / 8, piece = lane % 8;
            int64_t c = col + chunk * 32 + piece * 4;
            float4 v = *reinterpret_cast<float4 *>(staging + moe_staging_offset(r, piece * 16));
            if (accumulate) {
                v = make_float4(v.x + old[q].x, v.y + old[q].y, v.z + old[q].z, v.w + old[q].w);
            }
            if (row + r < rows && c < cols) {
                grad_store(type, grad, (row + r) * cols + c, v);
            }
        }
        __syncwarp();
    }
}

/*
 * Launches a kernel behind a plan: its blocks start while the plan is being made, set up their barriers, and wait for
 * the plan (wait_for_primary). Teams are clusters of neighbouring blocks.
 */
struct gemm_launch {
    cudaLaunchAttribute attribute[2];
    cudaLaunchConfig_t config;
};

static inline void launch_prepare(struct gemm_launch *l, int team_log, int blocks, int threads, int shared_bytes,
                                  cudaStream_t stream)
{
    l->config = cudaLaunchConfig_t();
    l->attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attribute[0].val.programmaticStreamSerializationAllowed = 1;
    l->attribute[1].id = cudaLaunchAttributeClusterDimension;
    l->attribute[1].val.clusterDim.x = 1u << team_log;
    l->attribute[1].val.clusterDim.y = l->attribute[1].val.clusterDim.z = 1;
    l->config.gridDim = dim3(blocks);
    l->config.blockDim = dim3(threads);
    l->config.dynamicSmemBytes = shared_bytes;
    l->config.stream = stream;
    l->config.attrs = l->attribute;
    l->config.numAttrs = team_log > 0 ? 2 : 1;
}

static inline int launch_behind_plan(void (*kernel)(const struct gemm_args), const struct gemm_args *args, int blocks,
                                     int threads, int shared_bytes, cudaStream_t stream)
{
    struct gemm_launch l;
    launch_prepare(&l, args->team_log, blocks, threads, shared_bytes, stream);
    (void)cudaLaunchKernelEx(&l.config, kernel, *args);
    return moe_launch_result();
}

/* The teams that run at once: not all multiprocessors, when a part of the device has a number of them that does not
 * divide. More would only wait for the first ones to end. */
static inline int teams_at_once(void (*kernel)(const struct gemm_args), int team_log, int threads, int shared_bytes,
                                int *teams)
{
    struct gemm_launch l;
    launch_prepare(&l, team_log, 1 << team_log, threads, shared_bytes, NULL);
    if (cudaOccupancyMaxActiveClusters(teams, kernel, &l.config) != cudaSuccess) {
        *teams = 0;
        return moe_launch_result();
    }
    return 0;
}

#endif
