/*
 * gemm_hopper.cu: the grouped products of 16-bit types on sm_90a: forward, dgrad and wgrad.
 *
 * Idea: persistent blocks of one producer and two consumer warpgroups around a ring of four stages. One thread has the
 * copy engine fill stages (A 128 x 64, B 256 x 64, 48 KiB); each consumer multiplies 64 x 256 of the tile with
 * m64n256k16 instructions straight from shared memory, and while it stores its part the producer already fills stages
 * for the next tile. 128 x 256 is the largest tile whose sums fit in registers (128 floats a thread), and it needs the
 * least shared memory traffic per product. Operands that run the wrong way (the weight in dgrad, both operands in
 * wgrad) are never transposed: they are copied as boxes of 64 x 64, and the descriptors say that they are MN-major.
 *
 * Ragged groups: tiles begin at the group's first row, and maps end at its last row (gemm_plan.cu). So rows beyond the
 * group are zeros in every operand, in the depth of wgrad as well, whatever the memory there holds. A consumer whose 64
 * rows all lie beyond the group does not multiply. The weight gradient of a group without rows has no stages, so zeros
 * are stored.
 *
 * Teams (gemm_index.h): with TEAM the blocks of a cluster, two or four, take neighbouring tiles in step, and each box
 * of an operand is read from the L2 once for all blocks that need it: alone a block takes 48 KiB from the L2 for 4.2
 * MFLOP, four of them take 24 KiB each. All consumers of the cluster give a stage back to each of its producers, so the
 * barriers' counts do not depend on how the team stands. A block whose tile lies beyond the group takes part in the
 * copies and the barriers like the others: leaving it out would need other counts for each tile. Clusters whose shape
 * is fixed at launch were rejected: a group of a few rows would leave most of a tall team idle.
 *
 * Launch: one block per multiprocessor, 384 threads, about 209 KiB of shared memory; registers are traded between the
 * warpgroups (40 and 232; in a team 56 and 224). Assumes n and k multiples of 8 and 16-byte aligned operands (gemm.cu
 * checks). Row and element numbers are 64 bit. Streams: the caller's only. Architecture: sm_90a; elsewhere the body is
 * empty and gemm.cu takes gemm_mma.cu.
 */
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_hopper.cuh"

enum {
    ROWS = GEMM_HOPPER_ROWS,
    COLS = GEMM_HOPPER_COLS,
    DEPTH = 64, /* elements of a stage: 128 bytes */
    STAGES = 4,
    A_BYTES = ROWS * DEPTH * 2,
    B_BYTES = COLS * DEPTH * 2,
    STAGE_BYTES = A_BYTES + B_BYTES,
    BARRIERS_AT = STAGES * STAGE_BYTES + CONSUMER_WARPS * STAGING,
    SHARED_BYTES = BARRIERS_AT + 2 * STAGES * 8 + 1024, /* 1024: to align the ring */
    THREADS = 384,
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/* Which operands are MN-major. */
template <int KIND> struct major {
    enum { A = KIND == MOE_GEMM_WGRAD, B = KIND != MOE_GEMM_FORWARD };
};

/* The copies of one operand's stage: `edge` rows or columns from `at` on, depth from `depth` on. */
template <int MN_MAJOR, int EDGE>
static __device__ __forceinline__ void copy_operand(uint32_t to, const CUtensorMap *map, int64_t at, int64_t depth,
                                                    uint32_t full)
{
#pragma unroll
    for (int box = 0; box < (MN_MAJOR ? EDGE / 64 : 1); box++) {
        struct moe_gemm_box b = moe_gemm_box_at(MN_MAJOR, at, depth, box);
        copy_box(to + b.offset, map, b.x, b.y, full);
    }
}

static __device__ __forceinline__ struct moe_gemm_cut cut()
{
    return moe_gemm_cut_of(ROWS, COLS, DEPTH * 2);
}

template <int KIND, bool TEAM>
static __device__ __forceinline__ void produce(const struct gemm_args &a, uint32_t ring, uint32_t full)
{
    uint32_t empty = full + STAGES * 8;
    struct gemm_place place = gemm_begin<TEAM>(a);
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 1};
    int64_t group = -1;
    while (gemm_next<TEAM>(a, cut(), &place, &w)) {
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
            uint32_t stage = ring + at.stage * STAGE_BYTES, bar = full + at.stage * 8;
            barrier_wait(empty + at.stage * 8, at.parity);
            barrier_arrive_expect(bar, STAGE_BYTES);
            if (TEAM) {
                copy_share<major<KIND>::A, ROWS / 64>(stage, map_a, share_a, row, block * DEPTH, bar);
                copy_share<major<KIND>::B, COLS / 64>(stage + A_BYTES, map_b, share_b, col, block * DEPTH, bar);
            } else {
                copy_operand<major<KIND>::A, ROWS>(stage, map_a, row, block * DEPTH, bar);
                copy_operand<major<KIND>::B, COLS>(stage + A_BYTES, map_b, col, block * DEPTH, bar);
            }
            moe_gemm_ring_next(&at, STAGES);
        }
    }
}

/* The products of one stage, enqueued. `a`: this warpgroup's 64 rows. */
template <int KIND, class T>
static __device__ __forceinline__ void multiply(float (&acc)[COLS / 2], uint32_t a, uint32_t b)
{
    enum { TA = major<KIND>::A, TB = major<KIND>::B };
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        wgmma<T, COLS>::template run<TA, TB>(acc, moe_wgmma_operand(a, TA, step), moe_wgmma_operand(b, TB, step), 1);
    }
    wgmma_commit();
}

/*
 * The sums of a tile. A stage is given back when the products of the next one are enqueued and its own are done, so
 * that the matrix unit always has work queued. Sums begin as zeros and not with an instruction that overwrites: with
 * no stage at all they are right, too, and no instruction stands in a branch (the assembler would serialise them).
 */
template <int KIND, class T, bool TEAM>
static __device__ __forceinline__ void sum_up(float (&acc)[COLS / 2], int64_t blocks, uint32_t ring, uint32_t full,
                                              int half, int team_log, struct moe_gemm_ring *at)
{
    uint32_t empty = full + STAGES * 8, mine = ring + half * MOE_BOX_BYTES, last = at->stage;
#pragma unroll
    for (int i = 0; i < COLS / 2; i++) {
        acc[i] = 0;
    }
    wgmma_settle(acc);
    for (int64_t block = 0; block < blocks; block++) {
        uint32_t stage = at->stage * STAGE_BYTES;
        barrier_wait(full + at->stage * 8, at->parity);
        multiply<KIND, T>(acc, mine + stage, ring + stage + A_BYTES);
        wgmma_wait<1>();
        if (block > 0) {
            stage_release<TEAM>(empty + last * 8, team_log);
        }
        last = at->stage;
        moe_gemm_ring_next(at, STAGES);
    }
    wgmma_wait<0>();
    wgmma_settle(acc);
    if (blocks > 0) {
        stage_release<TEAM>(empty + last * 8, team_log);
    }
}

/* A consumer half without rows, or without columns in a team, only gives the stages back. */
template <bool TEAM>
static __device__ __forceinline__ void skip(int64_t blocks, uint32_t full, int team_log, struct moe_gemm_ring *at)
{
    for (int64_t block = 0; block < blocks; block++) {
        barrier_wait(full + at->stage * 8, at->parity);
        __syncwarp(); /* a lane that has not seen this turn yet would wait for ever for one that is over */
        stage_release<TEAM>(full + (STAGES + at->stage) * 8, team_log);
        moe_gemm_ring_next(at, STAGES);
    }
}

template <int KIND, class T>
static __device__ __forceinline__ void store(const struct gemm_args &a, const struct gemm_work &w,
                                             const float (&acc)[COLS / 2], uint8_t *staging, int warp)
{
    int64_t row = w.tile.row * ROWS + warp * 16, col = w.tile.col * COLS;
    if constexpr (KIND == MOE_GEMM_WGRAD) {
        store_grad<COLS>(acc, staging, a.grad, gemm_d_weight(a, w.group), a.accumulate != 0, row, w.shape.rows, col,
                         w.shape.cols);
    } else {
        store_rows<T, COLS>(acc, staging, a, w, row, col);
    }
}

template <int KIND, class T, bool TEAM>
static __device__ __forceinline__ void consume(const struct gemm_args &a, uint32_t ring, uint32_t full,
                                               uint8_t *staging, int half)
{
    int warp = half * 4 + threadIdx.x / 32 % 4;
    struct gemm_place place = gemm_begin<TEAM>(a);
    struct gemm_work w;
    struct moe_gemm_ring at = {0, 0};
    while (gemm_next<TEAM>(a, cut(), &place, &w)) {
        int64_t blocks = moe_gemm_ceil(w.shape.depth, DEPTH);
        if (w.shape.rows - w.tile.row * ROWS <= half * 64 || (TEAM && tile_beyond(w, cut()))) {
            skip<TEAM>(blocks, full, a.team_log, &at);
            continue;
        }
        float acc[COLS / 2];
        sum_up<KIND, T, TEAM>(acc, blocks, ring, full, half, a.team_log, &at);
        store<KIND, T>(a, w, acc, staging + warp * STAGING, warp);
    }
}
#endif

template <int KIND, class T, bool TEAM>
static __global__ void __launch_bounds__(THREADS, 1) gemm_hopper(const __grid_constant__ struct gemm_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t unaligned[];
    uint8_t *shared = unaligned + (-smem_address(unaligned) & 1023u);
    uint32_t ring = smem_address(shared), full = ring + BARRIERS_AT;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(full + (STAGES + s) * 8, TEAM ? CONSUMER_WARPS << a.team_log : CONSUMER_WARPS);
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
        registers_give<TEAM ? 56 : 40>();
        if (threadIdx.x == 0) {
            produce<KIND, TEAM>(a, ring, full);
        }
    } else {
        registers_take<TEAM ? 224 : 232>();
        consume<KIND, T, TEAM>(a, ring, full, shared + STAGES * STAGE_BYTES, group - 1);
    }
    if (TEAM) {
        __syncwarp();
        team_meet(); /* a neighbour may still arrive here, which it could not if this block's memory were gone */
    }
#endif
}

typedef void (*kernel_t)(const struct gemm_args);

#define KERNELS(KIND, TYPE, T)                                                                                         \
    {                                                                                                                  \
        KIND, TYPE, gemm_hopper<KIND, T, false>, gemm_hopper<KIND, T, true>                                            \
    }

static const struct {
    int kind;
    enum moe_dtype type;
    kernel_t kernel, team;
} kernels[] = {
    KERNELS(MOE_GEMM_FORWARD, MOE_BF16, __nv_bfloat16), KERNELS(MOE_GEMM_DGRAD, MOE_BF16, __nv_bfloat16),
    KERNELS(MOE_GEMM_WGRAD, MOE_BF16, __nv_bfloat16),   KERNELS(MOE_GEMM_FORWARD, MOE_F16, __half),
    KERNELS(MOE_GEMM_DGRAD, MOE_F16, __half),           KERNELS(MOE_GEMM_WGRAD, MOE_F16, __half),
};

int gemm_hopper_prepare(void)
{
    cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    for (auto &k : kernels) {
        if (cudaFuncSetAttribute(k.kernel, most, SHARED_BYTES) != cudaSuccess ||
            cudaFuncSetAttribute(k.team, most, SHARED_BYTES) != cudaSuccess) {
            return moe_launch_result();
        }
    }
    return 0;
}

int gemm_hopper_teams(int team_log, int *teams)
{
    return teams_at_once(kernels[0].team, team_log, THREADS, SHARED_BYTES, teams);
}

int gemm_hopper_launch(const struct gemm_args *args, int blocks, cudaStream_t stream)
{
    for (auto &k : kernels) {
        if (k.kind == args->kind && k.type == args->activation) {
            return launch_behind_plan(args->team_log > 0 ? k.team : k.kernel, args, blocks, THREADS, SHARED_BYTES,
                                      stream);
        }
    }
    return MOE_E_UNSUPPORTED;
}
