/*
 * gemm_scaled.cu: grouped products with FP8 weights on sm_90a: 16-bit activations by FP8 weights (forward, dgrad), and
 * FP8 by FP8 (forward, dgrad, weight gradient).
 *
 * FP8 is the storage type of the weight (moe/linear.h), activations stay 16 bit, and results must be those of the host.
 * So the stored numbers are widened on their way into shared memory to the activation's type, which is exact for both
 * FP8 types, and scales are applied in float32 to sums. Rounding scale * number to 16 bits first, or rounding
 * activations to FP8, would give other results. A scale holds for 128 x 128 weights: the tile is 128 columns wide, and
 * after each 128 of depth the instruction's sums are added, scaled, to the tile's (64 + 64 registers a thread).
 *
 * Idea: the ring of gemm_hopper.cu with one more party: a warpgroup that widens. Copies bring A (swizzled) and the raw
 * bytes of the weight; the widening warpgroup writes B in the place and layout that the copy engine would have given
 * 16-bit weights, and signals the consumers. With FP8 activations no numbers are widened: e4m3 or e5m2 x e4m3
 * instructions read both operands as copied, and the scale of each row for 128 of depth is multiplied with the weight's
 * scale.
 *
 * FP8 instructions read both operands along the depth. So dgrad takes the weights turned (quantize.cu) and is the
 * kernel of forward: only the shape and the place of a weight's scale differ, which are read from the arguments. A
 * weight gradient takes both operands turned, with a scale for each row and each column of the output and 128 of depth.
 * Turning bytes in shared memory on their way was rejected: every stage would pass through it three times, which
 * already is the limit of the products with widened weights.
 *
 * Teams as in gemm_hopper.cu: A and the weight's bytes are copied once for all blocks that need them; each widens for
 * itself.
 *
 * Launch: one block per multiprocessor, 512 threads, about 177 KiB of shared memory; registers 24 (copies), 72
 * (widening), 208 (consumers); in a team 56, 56 and 200. Assumes n a multiple of 8, k of 16. Streams: the caller's
 * only. Architecture: sm_90a.
 */
#include "common/fp8.h"
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_hopper.cuh"

enum {
    ROWS = GEMM_SCALED_ROWS,
    COLS = GEMM_SCALED_COLS,
    STAGES = 4,
    A_BYTES = ROWS * 128,
    B_BYTES = COLS * 128,
    RAW_BYTES = COLS * 64,
    STAGE_BYTES = A_BYTES + B_BYTES + RAW_BYTES,
    SCALE_DEPTH = 128,
    WIDENERS = 128,
    BARRIERS_AT = STAGES * STAGE_BYTES + CONSUMER_WARPS * STAGING,
    SHARED_BYTES = BARRIERS_AT + 3 * STAGES * 8 + 1024,
    THREADS = 512,
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* T: the type of the matrix instruction's operands, which is also A's. Elements of depth in a stage: 128 bytes of A. */
template <class T> struct stage_of {
    static constexpr bool native = sizeof(T) == 1;
    static constexpr int depth = 128 / sizeof(T), per_scale = SCALE_DEPTH / depth;
};

/*
 * The barriers of the ring. copied: the copy engine's data has arrived; widened: the widening warps have written B;
 * empty: the stage was given back.
 */
struct barriers {
    uint32_t copied, widened, empty;
};

template <class T> static __device__ __forceinline__ struct moe_gemm_cut cut()
{
    return moe_gemm_cut_of(ROWS, COLS, stage_of<T>::native ? 128 : 64);
}

/* In a team the raw bytes of a weight are one box, which the first block of the column copies for all. */
template <int KIND, class T, bool TEAM>
static __device__ __forceinline__ void produce(const struct gemm_args &a, uint32_t ring, struct barriers bars)
{
    constexpr bool NATIVE = stage_of<T>::native;
    constexpr int DEPTH = stage_of<T>::depth;
    struct gemm_place place = gemm_begin<TEAM>(a);
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 1};
    int64_t group = -1;
    while (gemm_next<TEAM>(a, cut<T>(), &place, &w)) {
        const CUtensorMap *map_a = a.plan.a + w.group, *map_b = a.plan.b + w.group;
        int64_t blocks = moe_gemm_ceil(w.shape.depth, DEPTH);
        if (w.group != group) {
            map_acquire(map_a);
            map_acquire(map_b);
            group = w.group;
        }
        struct moe_gemm_share share_a = moe_gemm_share_a(w.team, gemm_rank(a)),
                              share_b = moe_gemm_share_b(w.team, gemm_rank(a));
        int32_t row = (int32_t)(w.tile.row * ROWS), col = (int32_t)(w.tile.col * COLS);
        for (int32_t block = 0; block < (int32_t)blocks; block++) {
            uint32_t stage = ring + at.stage * STAGE_BYTES, bar = bars.copied + at.stage * 8;
            int32_t depth = block * DEPTH;
            barrier_wait(bars.empty + at.stage * 8, at.parity);
            barrier_arrive_expect(bar, A_BYTES + (NATIVE ? B_BYTES : RAW_BYTES));
            if (TEAM) {
                copy_share<0, ROWS / 64>(stage, map_a, share_a, row, depth, bar);
                if (NATIVE) {
                    copy_share<0, COLS / 64>(stage + A_BYTES, map_b, share_b, col, depth, bar);
                } else if (share_b.mine == 0) {
                    bool forward = KIND == MOE_GEMM_FORWARD;
                    copy_box_to(stage + A_BYTES + B_BYTES, map_b, forward ? depth : col, forward ? col : depth, bar,
                                share_b.to);
                }
                moe_gemm_ring_next(&at, STAGES);
                continue;
            }
            copy_box(stage, map_a, depth, row, bar);
            if (NATIVE) {
                copy_box(stage + A_BYTES, map_b, depth, col, bar);
            } else if (KIND == MOE_GEMM_FORWARD) {
                copy_box(stage + A_BYTES + B_BYTES, map_b, depth, col, bar);
            } else {
                copy_box(stage + A_BYTES + B_BYTES, map_b, col, depth, bar);
            }
            moe_gemm_ring_next(&at, STAGES);
        }
    }
}

/* Two FP8 numbers as two of T: exact. */
template <class T> static __device__ __forceinline__ uint32_t widen_pair(uint32_t two, __nv_fp8_interpretation_t as);

template <> __device__ __forceinline__ uint32_t widen_pair<__half>(uint32_t two, __nv_fp8_interpretation_t as)
{
    __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, as);
    return (uint32_t)pair.x | (uint32_t)pair.y << 16;
}

template <> __device__ __forceinline__ uint32_t widen_pair<__nv_bfloat16>(uint32_t two, __nv_fp8_interpretation_t as)
{
    __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, as);
    float2 wide = __half22float2(__half2(pair));
    return gemm_pack<__nv_bfloat16>(wide.x, wide.y);
}

template <class T>
static __device__ __forceinline__ uint4 widen_eight(uint32_t low, uint32_t high, __nv_fp8_interpretation_t as)
{
    return make_uint4(widen_pair<T>(low & 0xffff, as), widen_pair<T>(low >> 16, as), widen_pair<T>(high & 0xffff, as),
                      widen_pair<T>(high >> 16, as));
}

/* One stage's weights, 16 bytes of them at a time: raw [128 columns][64 deep] (forward) or [64 deep][128 columns]. */
template <int KIND, class T>
static __device__ __forceinline__ void widen_stage(const uint8_t *raw, uint8_t *b, __nv_fp8_interpretation_t as)
{
#pragma unroll
    for (int i = 0; i < RAW_BYTES / 16 / WIDENERS; i++) {
        uint32_t piece = threadIdx.x % WIDENERS + i * WIDENERS;
        uint4 bytes = reinterpret_cast<const uint4 *>(raw)[piece];
        struct moe_widen_place to = moe_widen_place_of(KIND == MOE_GEMM_FORWARD, piece);
        *reinterpret_cast<uint4 *>(b + to.first) = widen_eight<T>(bytes.x, bytes.y, as);
        *reinterpret_cast<uint4 *>(b + to.second) = widen_eight<T>(bytes.z, bytes.w, as);
    }
}

template <int KIND, class T, bool TEAM>
static __device__ __forceinline__ void widen(const struct gemm_args &a, uint8_t *ring, struct barriers bars)
{
    __nv_fp8_interpretation_t as = a.weight == MOE_E4M3 ? __NV_E4M3 : __NV_E5M2;
    struct gemm_place place = gemm_begin<TEAM>(a);
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 0};
    while (gemm_next<TEAM>(a, cut<T>(), &place, &w)) {
        int64_t blocks = moe_gemm_ceil(w.shape.depth, stage_of<T>::depth);
        for (int64_t block = 0; block < blocks; block++) {
            uint8_t *stage = ring + at.stage * STAGE_BYTES;
            barrier_wait(bars.copied + at.stage * 8, at.parity);
            widen_stage<KIND, T>(stage + A_BYTES + B_BYTES, stage + A_BYTES, as);
            fence_async_proxy();
            __syncwarp();
            stage_release(bars.widened + at.stage * 8);
            moe_gemm_ring_next(&at, STAGES);
        }
    }
}

/* A thread's factors for the sums of 128 of depth: the scales of its two rows. */
struct scales {
    float upper, lower;
};

/* The weight gradient's two rows. Blocks of 128 columns are counted over all groups. */
static __device__ __forceinline__ struct scales grad_scales_at(const struct gemm_args &a, const struct gemm_work &w,
                                                               int64_t block, int64_t row)
{
    const float *rows = a.row_scales + block * a.n + row;
    struct scales both = {row < w.shape.rows ? __ldg(rows) : 0.0f, row + 8 < w.shape.rows ? __ldg(rows + 8) : 0.0f};
    return both;
}

/* Per-tensor or per-block scale of the weight, times the two rows' own with FP8 activations. */
template <bool NATIVE>
static __device__ __forceinline__ struct scales scales_at(const struct gemm_args &a, const struct gemm_work &w,
                                                          const float *weight, int64_t depth_block, int64_t row)
{
    float s = gemm_scale(a, weight, depth_block, w.tile.col);
    struct scales both = {s, s};
    if (NATIVE) {
        int64_t across = (w.shape.depth + 127) / 128;
        const float *rows = a.row_scales + w.first_row * across + depth_block;
        both.upper = row < w.shape.rows ? s * __ldg(rows + row * across) : 0.0f;
        both.lower = row + 8 < w.shape.rows ? s * __ldg(rows + (row + 8) * across) : 0.0f;
    }
    return both;
}

/* The products of one stage, enqueued; the first of a scale's stages overwrites `part` (by beginning from zeros). */
template <int KIND, class T>
static __device__ __forceinline__ void multiply(float (&part)[COLS / 2], uint32_t a, uint32_t b, bool first)
{
    constexpr int TB = KIND != MOE_GEMM_FORWARD && !stage_of<T>::native;
    constexpr int PER_STEP = wgmma<T, COLS>::DEPTH;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < stage_of<T>::depth / PER_STEP; step++) {
        wgmma<T, COLS>::template run<0, TB>(part, moe_wgmma_operand(a, 0, step), moe_wgmma_operand(b, TB, step),
                                            !first || step > 0);
    }
    wgmma_commit();
}

/* Adds the sums of 128 of depth to the tile's: each times its row's factor and, in a weight gradient, its column's. The
 * two columns that lie together are both there, or neither. */
template <bool GRAD>
static __device__ __forceinline__ void add_scaled(float (&sum)[COLS / 2], const float (&part)[COLS / 2],
                                                  const struct gemm_args &a, const struct gemm_work &w, int64_t block,
                                                  struct scales s)
{
    if (!GRAD) {
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) {
            sum[i] = fmaf(part[i], i & 2 ? s.lower : s.upper, sum[i]);
        }
        return;
    }
    int64_t col = w.tile.col * COLS + moe_wgmma_col(threadIdx.x % 128, 0);
    const float *cols = a.col_scales + block * a.k;
#pragma unroll
    for (int i = 0; i < COLS / 2; i += 4) {
        int64_t c = col + i * 2;
        float2 two = c < w.shape.cols ? __ldg(reinterpret_cast<const float2 *>(cols + c)) : make_float2(0.0f, 0.0f);
        sum[i] = fmaf(part[i], s.upper * two.x, sum[i]);
        sum[i + 1] = fmaf(part[i + 1], s.upper * two.y, sum[i + 1]);
        sum[i + 2] = fmaf(part[i + 2], s.lower * two.x, sum[i + 2]);
        sum[i + 3] = fmaf(part[i + 3], s.lower * two.y, sum[i + 3]);
    }
}

template <int KIND, class T, bool TEAM>
static __device__ __forceinline__ void sum_up(float (&sum)[COLS / 2], const struct gemm_args &a,
                                              const struct gemm_work &w, uint32_t ring, struct barriers bars, int half,
                                              struct moe_gemm_ring *at)
{
    constexpr bool NATIVE = stage_of<T>::native, GRAD = KIND == MOE_GEMM_WGRAD;
    const float *weight = GRAD ? nullptr : a.group[w.group].scale;
    int64_t column_block = GRAD ? moe_fp8_column(w.first_row, w.group) / SCALE_DEPTH : 0;
    int64_t row = w.tile.row * ROWS + half * 64 + moe_wgmma_row(threadIdx.x % 128, 0);
    int64_t blocks = moe_gemm_ceil(w.shape.depth, stage_of<T>::depth);
    float part[COLS / 2];
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        sum[i] = 0;
    }
    for (int64_t block = 0; block < blocks; block += stage_of<T>::per_scale) {
        int64_t depth_block = block / stage_of<T>::per_scale;
        struct scales s = GRAD ? grad_scales_at(a, w, column_block + depth_block, row)
                               : scales_at<NATIVE>(a, w, weight, depth_block, row);
#pragma unroll
        for (int i = 0; i < stage_of<T>::per_scale; i++) {
            if (block + i < blocks) {
                uint32_t stage = ring + at->stage * STAGE_BYTES;
                barrier_wait(bars.copied + at->stage * 8, at->parity);
                if (!NATIVE) {
                    barrier_wait(bars.widened + at->stage * 8, at->parity);
                }
                multiply<KIND, T>(part, stage + half * MOE_BOX_BYTES, stage + A_BYTES, i == 0);
                wgmma_wait<0>();
                wgmma_settle(part);
                stage_release<TEAM>(bars.empty + at->stage * 8, a.team_log);
                moe_gemm_ring_next(at, STAGES);
            }
        }
        add_scaled<GRAD>(sum, part, a, w, column_block + depth_block, s);
    }
}

/* A tile beyond the group only gives its stages back: there is no scale to read. The stage is the widening warps', too,
 * until they have said so. */
template <class T>
static __device__ __forceinline__ void skip(const struct gemm_args &a, const struct gemm_work &w, struct barriers bars,
                                            struct moe_gemm_ring *at)
{
    int64_t blocks = moe_gemm_ceil(w.shape.depth, stage_of<T>::depth);
    for (int64_t block = 0; block < blocks; block++) {
        barrier_wait(bars.copied + at->stage * 8, at->parity);
        if (!stage_of<T>::native) {
            barrier_wait(bars.widened + at->stage * 8, at->parity);
        }
        __syncwarp();
        stage_release<true>(bars.empty + at->stage * 8, a.team_log);
        moe_gemm_ring_next(at, STAGES);
    }
}

/* Rows beyond the group are computed like the others (as zeros) and not stored: the two halves stay in step. */
template <int KIND, class T, class OUT, bool TEAM>
static __device__ __forceinline__ void consume(const struct gemm_args &a, uint32_t ring, struct barriers bars,
                                               uint8_t *staging, int half)
{
    int warp = half * 4 + threadIdx.x / 32 % 4;
    struct gemm_place place = gemm_begin<TEAM>(a);
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 0};
    while (gemm_next<TEAM>(a, cut<T>(), &place, &w)) {
        if (TEAM && tile_beyond(w, cut<T>())) {
            skip<T>(a, w, bars, &at);
            continue;
        }
        float sum[COLS / 2];
        sum_up<KIND, T, TEAM>(sum, a, w, ring, bars, half, &at);
        int64_t row = w.tile.row * ROWS + warp * 16, col = w.tile.col * COLS;
        if constexpr (KIND == MOE_GEMM_WGRAD) {
            store_grad<COLS>(sum, staging + warp * STAGING, a.grad, gemm_d_weight(a, w.group), a.accumulate != 0, row,
                             w.shape.rows, col, w.shape.cols);
        } else {
            store_rows<OUT, COLS>(sum, staging + warp * STAGING, a, w, row, col);
        }
    }
}
#endif

template <int KIND, class T, class OUT, bool TEAM>
static __global__ void __launch_bounds__(THREADS, 1) gemm_scaled(const __grid_constant__ struct gemm_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t unaligned[];
    uint8_t *shared = unaligned + (-smem_address(unaligned) & 1023u);
    uint32_t ring = smem_address(shared);
    struct barriers bars = {ring + BARRIERS_AT, ring + BARRIERS_AT + STAGES * 8, ring + BARRIERS_AT + 2 * STAGES * 8};
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(bars.copied + s * 8, 1);
            barrier_init(bars.widened + s * 8, WIDENERS / 32);
            barrier_init(bars.empty + s * 8, TEAM ? CONSUMER_WARPS << a.team_log : CONSUMER_WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (TEAM) {
        team_meet(); /* before a neighbour copies to here, or arrives */
    }
    wait_for_primary();
    int group = threadIdx.x / 128;
    if (group == 0) {
        registers_give<TEAM ? 56 : 24>();
        if (threadIdx.x == 0) {
            produce<KIND, T, TEAM>(a, ring, bars);
        }
    } else if (group == 1) {
        registers_give<TEAM ? 56 : 72>();
        if constexpr (!stage_of<T>::native) {
            widen<KIND, T, TEAM>(a, shared, bars);
        }
    } else {
        registers_take<TEAM ? 200 : 208>();
        consume<KIND, T, OUT, TEAM>(a, ring, bars, shared + STAGES * STAGE_BYTES, group - 2);
    }
    if (TEAM) {
        __syncwarp();
        team_meet(); /* a neighbour may still arrive here, which it could not if this block's memory were gone */
    }
#endif
}

typedef void (*kernel_t)(const struct gemm_args);

#define KERNELS(KIND, TYPE, T, OUT)                                                                                    \
    {                                                                                                                  \
        KIND, TYPE, gemm_scaled<KIND, T, OUT, false>, gemm_scaled<KIND, T, OUT, true>                                  \
    }

/* Products of two FP8 operands are forward's and the weight gradient's: dgrad is forward's over turned weights. Weight
 * gradients have no teams. */
static const struct {
    int kind;
    enum moe_dtype type;
    kernel_t kernel, team;
} kernels[] = {
    KERNELS(MOE_GEMM_FORWARD, MOE_BF16, __nv_bfloat16, __nv_bfloat16),
    KERNELS(MOE_GEMM_DGRAD, MOE_BF16, __nv_bfloat16, __nv_bfloat16),
    KERNELS(MOE_GEMM_FORWARD, MOE_F16, __half, __half),
    KERNELS(MOE_GEMM_DGRAD, MOE_F16, __half, __half),
    KERNELS(MOE_GEMM_FORWARD, MOE_E4M3, __nv_fp8_e4m3, __nv_bfloat16),
    KERNELS(MOE_GEMM_FORWARD, MOE_E5M2, __nv_fp8_e5m2, __nv_bfloat16),
    {MOE_GEMM_WGRAD, MOE_E4M3, gemm_scaled<MOE_GEMM_WGRAD, __nv_fp8_e4m3, float, false>, nullptr},
    {MOE_GEMM_WGRAD, MOE_E5M2, gemm_scaled<MOE_GEMM_WGRAD, __nv_fp8_e5m2, float, false>, nullptr},
};

int gemm_scaled_prepare(void)
{
    cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    for (auto &k : kernels) {
        if (cudaFuncSetAttribute(k.kernel, most, SHARED_BYTES) != cudaSuccess ||
            (k.team != nullptr && cudaFuncSetAttribute(k.team, most, SHARED_BYTES) != cudaSuccess)) {
            return moe_launch_result();
        }
    }
    return 0;
}

int gemm_scaled_teams(int team_log, int *teams)
{
    return teams_at_once(kernels[0].team, team_log, THREADS, SHARED_BYTES, teams);
}

int gemm_scaled_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    int kind = args->kind == MOE_GEMM_DGRAD && args->row_scales != nullptr ? MOE_GEMM_FORWARD : args->kind;
    for (auto &k : kernels) {
        kernel_t kernel = args->team_log > 0 ? k.team : k.kernel;
        if (k.kind == kind && k.type == args->activation && kernel != nullptr) {
            return launch_behind_plan(kernel, args, blocks, THREADS, SHARED_BYTES, stream);
        }
    }
    return MOE_E_UNSUPPORTED;
}
