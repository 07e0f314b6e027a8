/*
 * gemm_scaled.cu: grouped products with FP8 weights on sm_90a: 16-bit activations by FP8 weights (forward, dgrad), and
 * FP8 activations by FP8 weights (forward).
 *
 * FP8 is the storage type of the weight (moe/linear.h), activations stay 16 bit, and results must be those of the host.
 * So the stored numbers are widened on their way into shared memory to the activation's type, which is exact for both
 * FP8 types, and scales are applied in float32 to sums. Rounding scale * number to 16 bits first, or rounding
 * activations to FP8, would give other results. A scale holds for 128 x 128 weights: the tile is 128 columns wide, and
 * after each 128 of depth the instruction's sums are added, scaled, to the tile's (64 + 64 registers a thread).
 *
 * Idea: the ring of gemm_hopper.cu with one more party: a warpgroup that widens. Copies bring A (swizzled) and the raw
 * bytes of the weight; the widening warpgroup writes B in the place and layout that the copy engine would have given
 * 16-bit weights, and signals the consumers. With FP8 activations no numbers are widened: e4m3 x e4m3 instructions read
 * both operands as copied, and the scale of each row for 128 of depth is multiplied with the weight's scale.
 *
 * Launch: one block per multiprocessor, 512 threads, about 177 KiB of shared memory; registers 24 (copies), 72
 * (widening), 208 (consumers). Assumes n a multiple of 8, k of 16. Streams: the caller's only. Architecture: sm_90a.
 */
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

template <int KIND, class T>
static __device__ __forceinline__ void produce(const struct gemm_args &a, uint32_t ring, struct barriers bars)
{
    constexpr bool NATIVE = stage_of<T>::native;
    constexpr int DEPTH = stage_of<T>::depth;
    struct gemm_place place = gemm_begin();
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 1};
    int64_t group = -1;
    while (gemm_next(a, ROWS, COLS, &place, &w)) {
        const CUtensorMap *map_a = a.plan.a + w.group, *map_b = a.plan.b + w.group;
        int64_t blocks = moe_gemm_ceil(w.shape.depth, DEPTH);
        if (w.group != group) {
            map_acquire(map_a);
            map_acquire(map_b);
            group = w.group;
        }
        for (int64_t block = 0; block < blocks; block++) {
            uint32_t stage = ring + at.stage * STAGE_BYTES, bar = bars.copied + at.stage * 8;
            int32_t depth = (int32_t)(block * DEPTH), row = (int32_t)(w.tile.row * ROWS),
                    col = (int32_t)(w.tile.col * COLS);
            barrier_wait(bars.empty + at.stage * 8, at.parity);
            barrier_arrive_expect(bar, A_BYTES + (NATIVE ? B_BYTES : RAW_BYTES));
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

template <int KIND, class T>
static __device__ __forceinline__ void widen(const struct gemm_args &a, uint8_t *ring, struct barriers bars)
{
    __nv_fp8_interpretation_t as = a.weight == MOE_E4M3 ? __NV_E4M3 : __NV_E5M2;
    struct gemm_place place = gemm_begin();
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 0};
    while (gemm_next(a, ROWS, COLS, &place, &w)) {
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

/* Per-tensor or per-block scale of the weight, times the two rows' own with FP8 activations. */
template <bool NATIVE>
static __device__ __forceinline__ struct scales scales_at(const struct gemm_args &a, const struct gemm_work &w,
                                                          const float *weight, int64_t depth_block, int64_t row)
{
    float s = gemm_scale(a, weight, depth_block, w.tile.col);
    struct scales both = {s, s};
    if (NATIVE) {
        int64_t across = (a.k + 127) / 128;
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
    constexpr int TB = KIND != MOE_GEMM_FORWARD;
    constexpr int PER_STEP = wgmma<T, COLS>::DEPTH;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < stage_of<T>::depth / PER_STEP; step++) {
        wgmma<T, COLS>::template run<0, TB>(part, moe_wgmma_operand(a, 0, step), moe_wgmma_operand(b, TB, step),
                                            !first || step > 0);
    }
    wgmma_commit();
}

template <int KIND, class T>
static __device__ __forceinline__ void sum_up(float (&sum)[COLS / 2], const struct gemm_args &a,
                                              const struct gemm_work &w, uint32_t ring, struct barriers bars, int half,
                                              struct moe_gemm_ring *at)
{
    constexpr bool NATIVE = stage_of<T>::native;
    const float *weight = a.group[w.group].scale;
    int64_t row = w.tile.row * ROWS + half * 64 + moe_wgmma_row(threadIdx.x % 128, 0);
    int64_t blocks = moe_gemm_ceil(w.shape.depth, stage_of<T>::depth);
    float part[COLS / 2];
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        sum[i] = 0;
    }
    for (int64_t block = 0; block < blocks; block += stage_of<T>::per_scale) {
        struct scales s = scales_at<NATIVE>(a, w, weight, block / stage_of<T>::per_scale, row);
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
                stage_release(bars.empty + at->stage * 8);
                moe_gemm_ring_next(at, STAGES);
            }
        }
#pragma unroll
        for (int i = 0; i < COLS / 2; i++) {
            sum[i] = fmaf(part[i], i & 2 ? s.lower : s.upper, sum[i]);
        }
    }
}

/* Rows beyond the group are computed like the others (as zeros) and not stored: the two halves stay in step. */
template <int KIND, class T, class OUT>
static __device__ __forceinline__ void consume(const struct gemm_args &a, uint32_t ring, struct barriers bars,
                                               uint8_t *staging, int half)
{
    int warp = half * 4 + threadIdx.x / 32 % 4;
    struct gemm_place place = gemm_begin();
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 0};
    while (gemm_next(a, ROWS, COLS, &place, &w)) {
        float sum[COLS / 2];
        sum_up<KIND, T>(sum, a, w, ring, bars, half, &at);
        store_rows<OUT, COLS>(sum, staging + warp * STAGING, a, w, w.tile.row * ROWS + warp * 16, w.tile.col * COLS);
    }
}
#endif

template <int KIND, class T, class OUT>
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
            barrier_init(bars.empty + s * 8, CONSUMER_WARPS);
        }
        barrier_init_done();
    }
    __syncthreads();
    wait_for_primary();
    int group = threadIdx.x / 128;
    if (group == 0) {
        registers_give<24>();
        if (threadIdx.x == 0) {
            produce<KIND, T>(a, ring, bars);
        }
    } else if (group == 1) {
        registers_give<72>();
        if constexpr (!stage_of<T>::native) {
            widen<KIND, T>(a, shared, bars);
        }
    } else {
        registers_take<208>();
        consume<KIND, T, OUT>(a, ring, bars, shared + STAGES * STAGE_BYTES, group - 2);
    }
#endif
}

typedef void (*kernel_t)(const struct gemm_args);

static const struct {
    int kind;
    enum moe_dtype type;
    kernel_t kernel;
} kernels[] = {
    {MOE_GEMM_FORWARD, MOE_BF16, gemm_scaled<MOE_GEMM_FORWARD, __nv_bfloat16, __nv_bfloat16>},
    {MOE_GEMM_DGRAD, MOE_BF16, gemm_scaled<MOE_GEMM_DGRAD, __nv_bfloat16, __nv_bfloat16>},
    {MOE_GEMM_FORWARD, MOE_F16, gemm_scaled<MOE_GEMM_FORWARD, __half, __half>},
    {MOE_GEMM_DGRAD, MOE_F16, gemm_scaled<MOE_GEMM_DGRAD, __half, __half>},
    {MOE_GEMM_FORWARD, MOE_E4M3, gemm_scaled<MOE_GEMM_FORWARD, __nv_fp8_e4m3, __nv_bfloat16>},
};

int gemm_scaled_prepare(void)
{
    for (auto &k : kernels) {
        if (cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) != cudaSuccess) {
            return moe_launch_result();
        }
    }
    return 0;
}

int gemm_scaled_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    for (auto &k : kernels) {
        if (k.kind == args->kind && k.type == args->activation) {
            return launch_behind_plan(k.kernel, args, blocks, THREADS, SHARED_BYTES, stream);
        }
    }
    return MOE_E_UNSUPPORTED;
}
