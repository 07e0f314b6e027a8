/*
 * gemm_plan.cu: from the counts to the plan of a grouped product: prefix sums, tiles, and a tensor map per group.
 *
 * Idea: each block sums all counts for itself (a few hundred numbers, one or two rounds of a block scan) and makes the
 * maps of four groups, one per warp; block 0 writes the sums. One block for everything was rejected: publishing a map
 * is a round trip to the L2, and 128 groups would queue for it. Letting every persistent block make maps when it
 * changes groups was rejected too: the product would have to wait for them.
 *
 * A map of rows begins at the group's first row and has m rows, so that a tile that reaches beyond the group reads
 * zeros and never the next group or the slack; the copy engine does the masking. A map of columns begins at the group's
 * first column and is m wide, likewise. Weights have whole maps.
 *
 * Grid: ceil(groups / 4), 128 threads; at least 1. Counts: the first group that is wrong decides the error (COUNT
 * negative, SPLIT beyond the buffer), as on the host; then no product touches anything. Streams: the caller's only.
 * Architecture: maps on sm_90a, the sums anywhere.
 */
#include "common/fp8.h"
#include "kernels/check.cuh"
#include "kernels/gemm/gemm_args.cuh"
#include "kernels/gemm/hopper.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

struct sums {
    int64_t rows, tiles;
};

/* Inclusive sums over the block's threads; the block's total in *all. */
static __device__ struct sums block_scan(struct sums mine, struct sums (*warp_sum)[WARPS], struct sums *all)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        int64_t rows = __shfl_up_sync(~0u, mine.rows, step), tiles = __shfl_up_sync(~0u, mine.tiles, step);
        if (lane >= step) {
            mine.rows += rows;
            mine.tiles += tiles;
        }
    }
    if (lane == 31) {
        (*warp_sum)[warp] = mine;
    }
    __syncthreads();
    all->rows = all->tiles = 0;
    for (int w = 0; w < WARPS; w++) {
        struct sums one = (*warp_sum)[w];
        if (w < warp) {
            mine.rows += one.rows;
            mine.tiles += one.tiles;
        }
        all->rows += one.rows;
        all->tiles += one.tiles;
    }
    __syncthreads();
    return mine;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
static __device__ void make_map(const CUtensorMap *from, CUtensorMap *to, CUtensorMap *scratch, const void *address,
                                int64_t rows, bool columns)
{
    int lane = threadIdx.x % 32;
    reinterpret_cast<uint32_t *>(scratch)[lane] = reinterpret_cast<const uint32_t *>(from)[lane];
    __syncwarp();
    if (lane == 0) {
        map_set_address(smem_address(scratch), address);
        if (rows >= 0 && columns) {
            map_set_width(smem_address(scratch), (uint32_t)(rows > 0 ? rows : 1));
        } else if (rows >= 0) {
            map_set_rows(smem_address(scratch), (uint32_t)(rows > 0 ? rows : 1));
        }
    }
    __syncwarp();
    map_publish(to, smem_address(scratch));
}
#endif

/* Whether the copy engine can use this address; if not, the group's weights are refused. */
static __device__ bool fits(const void *address)
{
    return (reinterpret_cast<uintptr_t>(address) & 15) == 0 && address != nullptr;
}

static __global__ void __launch_bounds__(THREADS) gemm_plan(const __grid_constant__ struct gemm_plan_args p)
{
    __shared__ struct sums warp_sum[WARPS];
    __shared__ int64_t my_row[WARPS], my_count[WARPS];
    __shared__ bool unaligned;
    __shared__ long long wrong; /* 2 * group + (0: negative, 1: too many), the least */
    release_dependents();
    struct sums before = {0, 0};
    int64_t mine = (int64_t)blockIdx.x * WARPS;
    if (threadIdx.x == 0) {
        wrong = INT64_MAX;
        unaligned = false;
    }
    __syncthreads();
    for (int64_t base = 0; base < p.groups; base += THREADS) {
        int64_t g = base + threadIdx.x, m = g < p.groups ? p.m[g] : 0, count = moe_gemm_count(m, p.rows);
        struct sums one = {count, g < p.groups ? moe_gemm_places(p.kind, count, p.n, p.k, p.cut, p.accumulate) : 0};
        struct sums all, up_to = block_scan(one, &warp_sum, &all);
        if (g < p.groups) {
            int64_t row = before.rows + up_to.rows - one.rows;
            if (m < 0 || row + count > p.rows) {
                atomicMin(&wrong, (long long)(2 * g + (m < 0 ? 0 : 1)));
            }
            if (g >= mine && g < mine + WARPS) {
                my_row[g - mine] = row;
                my_count[g - mine] = count;
            }
            if (blockIdx.x == 0) {
                p.plan.row[g] = row;
                p.plan.tile[g] = before.tiles + up_to.tiles - one.tiles;
            }
        }
        before.rows += all.rows;
        before.tiles += all.tiles;
    }
    __syncthreads();
    bool bad = wrong != INT64_MAX;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(128) CUtensorMap scratch[WARPS][2];
    int warp = threadIdx.x / 32;
    int64_t g = mine + warp;
    if (p.maps && !bad && g < p.groups) {
        const char *weight =
            p.weights != nullptr ? p.weights + g * p.weight_bytes : static_cast<const char *>(p.group[g].weight);
        bool rows_only = p.kind == MOE_GEMM_WGRAD;
        int64_t first = p.columns ? moe_fp8_column(my_row[warp], g) : my_row[warp];
        make_map(&p.a_map, p.plan.a + g, &scratch[warp][0], p.a + first * p.a_pitch, my_count[warp], p.columns);
        make_map(&p.b_map, p.plan.b + g, &scratch[warp][1], rows_only ? p.b + first * p.b_pitch : weight,
                 rows_only ? my_count[warp] : -1, p.columns);
    }
#else
    (void)my_row;
    (void)my_count;
#endif
    /*
     * A weight at an address that the copy engine cannot use makes the product impossible; block 0 looks at all groups.
     */
    if (blockIdx.x == 0 && p.maps && p.group != nullptr) {
        for (int64_t i = threadIdx.x; i < p.groups; i += THREADS) {
            if (!fits(p.kind == MOE_GEMM_WGRAD ? p.group[i].d_weight : p.group[i].weight)) {
                unaligned = true;
            }
        }
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.plan.row[p.groups] = bad || unaligned ? -1 : before.rows;
        p.plan.tile[p.groups] = bad || unaligned ? 0 : before.tiles;
        if ((bad || unaligned) && p.error != nullptr) {
            int code = !bad ? MOE_E_ARG : wrong % 2 == 0 ? MOE_E_COUNT : MOE_E_SPLIT;
            atomicCAS(p.error, 0, code);
        }
    }
}

int gemm_plan_launch(const struct gemm_plan_args *args, cudaStream_t stream)
{
    gemm_plan<<<moe_blocks(args->groups > 0 && args->maps ? args->groups : 1, WARPS, 1 << 20), THREADS, 0, stream>>>(
        *args);
    return moe_launch_result();
}
