/*
 * chunk.cu: chunks of rows into another order: the map from counts or splits, and the movement over it.
 *
 * Idea: the map's builder scans the chunks' sizes in both orders (plan.cuh), then every row of the output finds its
 * chunk by bisection and writes where it comes from; one launch of one block and one of many blocks, however uneven the
 * chunks are. A block per chunk was rejected: one large chunk would take as long as all chunks together.
 *
 * Architecture: any. Indices: rows fit int32, all else 64 bit.
 */
#include "kernels/plan.cuh"
#include "kernels/rows.cuh"

enum { THREADS = 256, MOST_BLOCKS = 132 * 16 };

/* Chunks as they are received, and in the order wanted: side 0 and 1 of the plan. */
struct ByRank { /* received: by source rank, then by expert; wanted: by expert, then by source rank */
    moe_chunk_map a;
    int64_t local, first;
    __device__ int64_t chunk_at(int64_t place) const
    {
        return place % a.ranks * local + place / a.ranks;
    }
    __device__ int64_t split(int64_t chunk) const
    {
        return a.counts[chunk / local * a.stride + first + chunk % local];
    }
    __device__ Sizes operator()(int64_t i) const
    {
        int64_t own = split(i);
        return {{own, split(chunk_at(i))}, own < 0 ? MOE_E_SPLIT : 0};
    }
};

struct ByOrder {
    moe_chunk_order a;
    int *seen; /* [chunks], zeroed: how often `order` names each chunk */
    __device__ int64_t chunk_at(int64_t place) const
    {
        return a.order[place];
    }
    __device__ Sizes operator()(int64_t i) const
    {
        int64_t own = a.split[i], chunk = a.order[i];
        bool there = chunk >= 0 && chunk < a.chunks;
        int wrong = own < 0 ? MOE_E_SPLIT : !there || seen[chunk] != 1 ? MOE_E_EXPERT : 0;
        return {{own, there ? a.split[chunk] : 0}, wrong};
    }
};

static __global__ void __launch_bounds__(THREADS)
    count_names(const int32_t *__restrict__ order, int64_t chunks, int *seen)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < chunks; i += (int64_t)gridDim.x * THREADS) {
        if (order[i] >= 0 && order[i] < chunks) {
            atomicAdd(seen + order[i], 1);
        }
    }
}

template <typename Order>
static __global__ void __launch_bounds__(THREADS)
    fill_map(Order order, int64_t chunks, int64_t rows, const int64_t *__restrict__ start0,
             const int64_t *__restrict__ start1, const Plan *__restrict__ plan, moe_map_header *map)
{
    if (plan->error != 0) {
        return;
    }
    int32_t *cells = reinterpret_cast<int32_t *>(map + 1);
    int64_t total = plan->total[0], first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t r = first; r < rows; r += (int64_t)gridDim.x * THREADS) {
        if (r < total) { /* r: a row of the output */
            int64_t place = moe_piece_of(start1, chunks, r);
            cells[start0[order.chunk_at(place)] + r - start1[place]] = (int32_t)r;
        } else {
            cells[r] = -1;
        }
    }
    if (first == 0) {
        moe_map_header h = {};
        h.magic = MOE_MAP_MAGIC;
        h.kind = MOE_MAP_CHUNK;
        h.rows = rows;
        h.routed = total;
        *map = h;
    }
}

/* Rows of each local expert over all source ranks. */
static __global__ void __launch_bounds__(THREADS) expert_rows(ByRank by, const Plan *__restrict__ plan)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < by.local; i += (int64_t)gridDim.x * THREADS) {
        int64_t sum = 0;
        for (int64_t p = 0; plan->error == 0 && p < by.a.ranks; p++) {
            sum += by.split(p * by.local + i);
        }
        by.a.m[i] = sum;
    }
}

template <typename Order>
static void launch_map(moe_device_t *device, Order order, int64_t chunks, int64_t rows, bool slack, int64_t *starts,
                       Plan *plan, moe_map_header *map)
{
    cudaStream_t stream = device->stream;
    plan_starts<<<1, PLAN_THREADS, 0, stream>>>(order, chunks, rows, rows, MOE_E_SPLIT, MOE_E_SPLIT,
                                                slack ? 0 : MOE_E_SPLIT, starts, starts + chunks, plan,
                                                moe_state(device)->error);
    fill_map<<<moe_blocks(rows > 0 ? rows : 1, THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(order, chunks, rows, starts,
                                                                                            starts + chunks, plan, map);
}

extern "C" int moe_cuda_chunk_map(moe_device_t *device, const struct moe_chunk_map *a)
{
    int64_t local = a->experts / a->ranks, chunks = a->ranks * local;
    Scratch<int64_t> starts(device, 2 * chunks);
    Scratch<Plan> plan(device, 1);
    int rc = starts.rc ? starts.rc : plan.rc;
    if (rc != 0) {
        return rc;
    }
    if (cudaMemsetAsync(a->map, 0, sizeof(*a->map), device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    ByRank by = {*a, local, a->rank * local};
    launch_map(device, by, chunks, a->rows, a->slack, starts.data, plan.data, a->map);
    expert_rows<<<moe_blocks(local, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(by, plan.data);
    return moe_launch_result();
}

extern "C" int moe_cuda_chunk_order(moe_device_t *device, const struct moe_chunk_order *a)
{
    Scratch<int64_t> starts(device, 2 * a->chunks);
    Scratch<Plan> plan(device, 1);
    Scratch<int> seen(device, a->chunks);
    int rc = starts.rc ? starts.rc : plan.rc ? plan.rc : seen.rc;
    if (rc != 0) {
        return rc;
    }
    cudaError_t err = cudaMemsetAsync(a->map, 0, sizeof(*a->map), device->stream);
    err = err != cudaSuccess
              ? err
              : cudaMemsetAsync(seen.data, 0, (size_t)(a->chunks > 0 ? a->chunks : 1) * sizeof(int), device->stream);
    if (err != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->chunks > 0) {
        count_names<<<moe_blocks(a->chunks, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(a->order, a->chunks,
                                                                                                 seen.data);
    }
    launch_map(device, ByOrder{*a, seen.data}, a->chunks, a->rows, a->slack, starts.data, plan.data, a->map);
    return moe_launch_result();
}

/*
 * Moves row r of the input to cells[r]; inverse: row r of the output comes from cells[r]. Rows that get nothing become
 * zero: those from `routed` on, because a chunk map maps the rows before `routed` onto themselves.
 */
struct ByMap {
    const moe_map_header *map;
    int64_t rows;
    bool inverse;
    const float *probs_from;
    float *probs_to;
    int *error;
    __device__ bool ready() const
    {
        const moe_map_header h = *map;
        bool fits = (h.magic == MOE_MAP_MAGIC) & (h.kind == MOE_MAP_CHUNK) & (h.rows == rows) & (h.k == 0) &
                    (h.tokens == 0) & (h.experts == 0) & (h.routed >= 0) & (h.routed <= rows);
        if (!fits && threadIdx.x == 0) {
            moe_raise(error, MOE_E_MAP);
        }
        return fits;
    }
    __device__ Step operator()(int64_t r, int lane) const
    {
        int64_t other = reinterpret_cast<const int32_t *>(map + 1)[r];
        if (other < -1 || other >= rows) {
            moe_raise(error, MOE_E_MAP);
            return {-1, -1};
        }
        Step step = other < 0 ? Step{-1, r} : inverse ? Step{other, r} : Step{r, other};
        if (lane == 0 && probs_to != nullptr) {
            probs_to[step.to] = step.from < 0 ? 0.0f : probs_from[step.from];
        }
        return step;
    }
};

extern "C" int moe_cuda_chunk_sort(moe_device_t *device, const struct moe_chunk_sort *a)
{
    ByMap by = {a->map, a->rows, a->inverse, a->probs_from, a->probs_to, moe_state(device)->error};
    return launch_rows(device, by, a->rows, a->width * (int64_t)moe_bytes_of(a->type), a->from, a->to);
}
