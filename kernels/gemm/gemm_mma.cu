/*
 * gemm_mma.cu: the grouped products of 16-bit activations with mma.sync: sm_80 and later, and shapes that sm_90a's copy
 * engine cannot take.
 *
 * Idea: 128 x 128 tiles, 32 deep, three stages; each of eight warps has 64 x 32 of it as 4 x 4 instructions m16n8k16.
 * Operands are loaded by cp.async, 16 bytes at a time, which fills whatever is beyond a group or a matrix with zeros
 * without reading it. Rows that are not multiples of 16 bytes, and FP8 weights, are loaded by ordinary loads and
 * widened on the way (exactly; scales are applied to the sums, as in gemm_scaled.cu). ldmatrix transposes an operand
 * that runs the wrong way on its way into registers.
 *
 * Launch: one block per multiprocessor, 256 threads, 60 KiB of shared memory, persistent over the plan (gemm_args.cuh).
 * Any alignment. Indices: 64 bit. Streams: the caller's only. Architecture: sm_80 and later.
 */
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"

#include <type_traits>

enum {
    ROWS = GEMM_MMA_ROWS,
    COLS = GEMM_MMA_COLS,
    DEPTH = 32,
    STAGES = 3,
    THREADS = 256,
    OPERAND_BYTES = 128 * 40 * 2, /* the larger of the two layouts */
    STAGE_BYTES = 2 * OPERAND_BYTES,
    SHARED_BYTES = STAGES * STAGE_BYTES,
    PER_SCALE = 128 / DEPTH,
    STAGING = 2048, /* bytes for each warp */
};

/* One operand of a group: rows or columns up to `edge`, depth up to `depth`. */
struct operand {
    const char *base;
    int64_t edge, depth, pitch; /* elements */
    enum moe_dtype type;
    bool pieces; /* 16-bit and 16-byte aligned throughout, so that cp.async can load it */
};

static __device__ __forceinline__ void copy_piece(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int LEFT> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

template <class F> static __device__ __forceinline__ void widen(float (&v)[8], const char *base, int64_t at, int count)
{
    const F *from = reinterpret_cast<const F *>(base) + at;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = j < count ? static_cast<float>(from[j]) : 0.0f;
    }
}

template <class T> static __device__ __forceinline__ uint4 widen_piece(const struct operand &o, int64_t at, int count)
{
    float v[8];
    switch (o.type) {
    case MOE_E4M3:
        widen<__nv_fp8_e4m3>(v, o.base, at, count);
        break;
    case MOE_E5M2:
        widen<__nv_fp8_e5m2>(v, o.base, at, count);
        break;
    default: /* else it is the activation's */
        widen<T>(v, o.base, at, count);
    }
    return make_uint4(gemm_pack<T>(v[0], v[1]), gemm_pack<T>(v[2], v[3]), gemm_pack<T>(v[4], v[5]),
                      gemm_pack<T>(v[6], v[7]));
}

/* This thread's share of an operand's stage: 128 from `first` on, 32 of depth from `depth` on. */
template <class T, bool MN_MAJOR>
static __device__ __forceinline__ void load_stage(uint8_t *stage, const struct operand &o, int64_t first, int64_t depth)
{
#pragma unroll
    for (int i = 0; i < ROWS * DEPTH / 8 / THREADS; i++) {
        int p = threadIdx.x + i * THREADS, mn = MN_MAJOR ? p % 16 * 8 : p / 4, d = MN_MAJOR ? p / 16 : p % 4 * 8;
        int64_t at_mn = first + mn, at_d = depth + d, left = MN_MAJOR ? o.edge - at_mn : o.depth - at_d;
        int count = at_mn >= o.edge || at_d >= o.depth ? 0 : left < 8 ? (int)left : 8;
        int64_t at = count == 0 ? 0 : MN_MAJOR ? at_d * o.pitch + at_mn : at_mn * o.pitch + at_d;
        uint8_t *to = stage + moe_mma_offset(mn, d, MN_MAJOR);
        if (o.pieces) {
            copy_piece((uint32_t)__cvta_generic_to_shared(to), o.base + at * 2, count * 2);
        } else {
            *reinterpret_cast<uint4 *>(to) = widen_piece<T>(o, at, count);
        }
    }
}

template <bool MN_MAJOR> static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint8_t *from)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
    if constexpr (MN_MAJOR) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    }
}

template <class T>
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (std::is_same<T, __half>::value) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
                     "%9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

typedef float sums_t[4][4][4];

template <int KIND, class T>
static __device__ __forceinline__ void multiply(sums_t &sum, const uint8_t *stage, int warp_row, int warp_col)
{
    constexpr bool TA = KIND == MOE_GEMM_WGRAD, TB = KIND != MOE_GEMM_FORWARD;
    int lane = threadIdx.x % 32;
    struct moe_mma_piece left = moe_mma_left(lane, TA), right = moe_mma_right(lane, TB);
#pragma unroll
    for (int d = 0; d < DEPTH; d += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            load_matrices<TA>(a[i], stage + moe_mma_offset(warp_row + i * 16 + left.mn, d + left.depth, TA));
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            load_matrices<TB>(b[j], stage + OPERAND_BYTES +
                                        moe_mma_offset(warp_col + j * 16 + right.mn, d + right.depth, TB));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                mma<T>(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

static __device__ __forceinline__ void add_scaled(sums_t &total, sums_t &part, float scale)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        float &t = total[i / 16][i / 4 % 4][i % 4], &p = part[i / 16][i / 4 % 4][i % 4];
        t = fmaf(p, scale, t);
        p = 0;
    }
}

static __device__ void settle(struct operand *o)
{
    o->pieces = (o->type == MOE_BF16 || o->type == MOE_F16) && o->pitch % 8 == 0 &&
                (reinterpret_cast<uintptr_t>(o->base) & 15) == 0;
}

static __device__ void operands(const struct gemm_args &a, const struct gemm_work &w, struct operand *left,
                                struct operand *right)
{
    bool wgrad = a.kind == MOE_GEMM_WGRAD;
    left->pitch = a.kind == MOE_GEMM_FORWARD ? a.k : a.n;
    right->pitch = a.k;
    left->base = static_cast<const char *>(a.in) + w.first_row * left->pitch * 2;
    right->base = wgrad ? static_cast<const char *>(a.x) + w.first_row * a.k * 2
                        : static_cast<const char *>(a.group[w.group].weight);
    left->edge = w.shape.rows;
    right->edge = w.shape.cols;
    left->depth = right->depth = w.shape.depth;
    left->type = a.activation;
    right->type = wgrad ? a.activation : a.weight;
    settle(left);
    settle(right);
}

/* A warp's sums by way of 2 KiB of shared memory, 16 rows at a time: then a lane has a column, and a row is stored at
 * once. */
static __device__ __forceinline__ void store(const struct gemm_args &a, const struct gemm_work &w, const sums_t &sum,
                                             uint8_t *staging, int warp_row, int warp_col)
{
    int lane = threadIdx.x % 32;
    bool grad = a.kind == MOE_GEMM_WGRAD;
    void *out = grad ? gemm_d_weight(a, w.group) : a.out;
    enum moe_dtype type = grad ? a.grad : a.activation;
    const void *bias = gemm_bias(a, w.group);
    int64_t col = w.tile.col * COLS + warp_col + lane, cols = w.shape.cols;
    float more = bias != nullptr && col < cols ? gemm_load(a.bias, bias, col) : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t at = j * 32 + lane % 4 * 8, r = lane / 4;
            *reinterpret_cast<float2 *>(staging + moe_staging_offset(r, at)) = make_float2(sum[i][j][0], sum[i][j][1]);
            *reinterpret_cast<float2 *>(staging + moe_staging_offset(r + 8, at)) =
                make_float2(sum[i][j][2], sum[i][j][3]);
        }
        __syncwarp();
#pragma unroll 1
        for (int r = 0; r < 16; r++) {
            int64_t row = w.tile.row * ROWS + warp_row + i * 16 + r;
            if (row < w.shape.rows && col < cols) {
                int64_t at = ((grad ? 0 : w.first_row) + row) * cols + col;
                float v = *reinterpret_cast<float *>(staging + moe_staging_offset(r, lane * 4));
                v = bias != nullptr ? fmaf(gemm_bias_factor(a, w, row), more, v) : v;
                v = grad && a.accumulate ? v + gemm_load(type, out, at) : v;
                gemm_store(type, out, at, v);
            }
        }
        __syncwarp();
    }
}

template <int KIND, class T>
static __global__ void __launch_bounds__(THREADS, 1) gemm_mma(const __grid_constant__ struct gemm_args a)
{
    constexpr bool TA = KIND == MOE_GEMM_WGRAD, TB = KIND != MOE_GEMM_FORWARD;
    extern __shared__ __align__(16) uint8_t shared[];
    int warp = threadIdx.x / 32, warp_row = warp / 4 * 64, warp_col = warp % 4 * 32;
    struct gemm_place place = gemm_begin(a);
    struct gemm_work w;
    while (gemm_next(a, moe_gemm_cut_of(ROWS, COLS, 128), &place, &w)) {
        struct operand left, right;
        operands(a, w, &left, &right);
        const float *scale =
            KIND != MOE_GEMM_WGRAD && (a.weight == MOE_E4M3 || a.weight == MOE_E5M2) ? a.group[w.group].scale : nullptr;
        int64_t row = w.tile.row * ROWS, col = w.tile.col * COLS, steps = moe_gemm_ceil(w.shape.depth, DEPTH);
        sums_t part = {}, total = {};
        auto load = [&](int64_t step) {
            uint8_t *stage = shared + step % STAGES * STAGE_BYTES;
            if (step < steps) {
                load_stage<T, TA>(stage, left, row, step * DEPTH);
                load_stage<T, TB>(stage + OPERAND_BYTES, right, col, step * DEPTH);
            }
            copies_commit(); /* commits an empty group too, so that the number of groups stays the number of steps */
        };
        __syncthreads(); /* the tile before is read */
        load(0);
        load(1);
        for (int64_t step = 0; step < steps; step++) {
            copies_wait<STAGES - 2>();
            __syncthreads();
            load(step + 2);
            multiply<KIND, T>(part, shared + step % STAGES * STAGE_BYTES, warp_row, warp_col);
            if (scale != nullptr && (step % PER_SCALE == PER_SCALE - 1 || step + 1 == steps)) {
                add_scaled(total, part, gemm_scale(a, scale, step / PER_SCALE, w.tile.col));
            }
        }
        copies_wait<0>();
        if (scale == nullptr) {
            add_scaled(total, part, 1.0f);
        }
        __syncthreads(); /* the stages are read: what follows goes through the same memory */
        store(a, w, total, shared + warp * STAGING, warp_row, warp_col);
    }
}

typedef void (*kernel_t)(const struct gemm_args);

static const struct {
    int kind;
    enum moe_dtype type;
    kernel_t kernel;
} kernels[] = {
    {MOE_GEMM_FORWARD, MOE_BF16, gemm_mma<MOE_GEMM_FORWARD, __nv_bfloat16>},
    {MOE_GEMM_DGRAD, MOE_BF16, gemm_mma<MOE_GEMM_DGRAD, __nv_bfloat16>},
    {MOE_GEMM_WGRAD, MOE_BF16, gemm_mma<MOE_GEMM_WGRAD, __nv_bfloat16>},
    {MOE_GEMM_FORWARD, MOE_F16, gemm_mma<MOE_GEMM_FORWARD, __half>},
    {MOE_GEMM_DGRAD, MOE_F16, gemm_mma<MOE_GEMM_DGRAD, __half>},
    {MOE_GEMM_WGRAD, MOE_F16, gemm_mma<MOE_GEMM_WGRAD, __half>},
};

int gemm_mma_prepare(void)
{
    for (auto &k : kernels) {
        if (cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES) != cudaSuccess) {
            return moe_launch_result();
        }
    }
    return 0;
}

int gemm_mma_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    for (auto &k : kernels) {
        if (k.kind == args->kind && k.type == args->activation) {
            k.kernel<<<blocks, THREADS, SHARED_BYTES, stream>>>(*args);
            return moe_launch_result();
        }
    }
    return MOE_E_UNSUPPORTED;
}
