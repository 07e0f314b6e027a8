/*
 * row_map.cu: which row of the permuted buffer each (token, expert) has: the three kinds of row map, from an index or a
 * routing map.
 *
 * Idea: row = rows reserved for experts before e + tokens before t that chose e. Tokens are cut into chunks of 64; a
 * chunk's choices are a set of 64 bits for each expert in shared memory (set by atomicOr, whose result does not depend
 * on the order), and the place of a token in its chunk is the number of ones before its bit. Four passes: count each
 * chunk; scan the chunks of each expert; reserve the experts' rows; place. A radix sort of (expert, choice) pairs was
 * rejected: it moves every choice several times, and its library call waits for the host.
 *
 * A choice that is out of range or comes twice, counts that are negative or too small, and rows beyond the buffer end
 * the build: the status word says which error it was; the last kernel raises the error and leaves the header cleared,
 * so that no function follows the map.
 *
 * Grid: a block per chunk, 256 threads, 8 bytes of shared memory per expert (at most MOST_EXPERTS). Architecture: any.
 * Indices: rows fit int32, all else 64 bit.
 */
#include "kernels/plan.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, WORDS = 2, CHUNK = 32 * WORDS, MOST_EXPERTS = 6000, RUN_BLOCKS = 1 << 20 };

using RowMap = moe_row_map_build;

/* What the passes leave for one another in scratch memory. */
struct Build {
    int32_t *count;  /* [E][chunks]: tokens of the chunk that chose e; after the scan, those before the chunk */
    int64_t *chosen; /* [E] */
    int64_t *start;  /* [E] */
    int64_t *m;      /* [E]: rows reserved, cut to the buffer */
    int *status;     /* the first error, as in plan_starts: that of the lowest expert; 0 without one */
    int64_t *routed;
    int64_t chunks;
};

/* The chunk's choices as bits, [E][WORDS] in shared memory. False where one is out of range, comes twice, or there are
 * too many. */
static __device__ bool chunk_bits(const RowMap &a, int64_t chunk, uint32_t *bits)
{
    __shared__ int32_t choices[CHUNK];
    int64_t first = chunk * CHUNK, tokens = a.tokens - first < CHUNK ? a.tokens - first : CHUNK;
    bool right = true;
    for (int64_t i = threadIdx.x; i < a.experts * WORDS; i += THREADS) {
        bits[i] = 0;
    }
    if (threadIdx.x < CHUNK) {
        choices[threadIdx.x] = 0;
    }
    __syncthreads();
    if (a.mask != nullptr) {
        for (int64_t i = threadIdx.x; i < tokens * a.experts; i += THREADS) {
            int t = (int)(i / a.experts);
            if (a.mask[first * a.experts + i] != 0) {
                atomicOr(bits + i % a.experts * WORDS + t / 32, 1u << t % 32);
                right = atomicAdd(choices + t, 1) < a.k && right;
            }
        }
        right = right || a.kind == MOE_MAP_MASK;
    } else {
        for (int64_t i = threadIdx.x; i < tokens * a.k; i += THREADS) {
            int t = (int)(i / a.k);
            int32_t e = a.index[first * a.k + i];
            if (e < -1 || e >= a.experts) {
                right = false;
            } else if (e >= 0) {
                uint32_t bit = 1u << t % 32;
                right = (atomicOr(bits + (int64_t)e * WORDS + t / 32, bit) & bit) == 0 && right;
            }
        }
    }
    return __syncthreads_and(right) != 0;
}

static __global__ void __launch_bounds__(THREADS) count_chunks(RowMap a, Build b)
{
    extern __shared__ uint32_t bits[];
    for (int64_t chunk = blockIdx.x; chunk < b.chunks; chunk += gridDim.x) {
        if (!chunk_bits(a, chunk, bits) && threadIdx.x == 0) {
            atomicCAS(b.status, 0, MOE_E_EXPERT);
        }
        for (int64_t e = threadIdx.x; e < a.experts; e += THREADS) {
            int32_t n = 0;
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                n += __popc(bits[e * WORDS + w]);
            }
            b.count[e * b.chunks + chunk] = n;
        }
        __syncthreads();
    }
}

/* A warp per expert turns the counts of the expert's chunks into the tokens before each chunk. */
static __global__ void __launch_bounds__(THREADS) scan_chunks(int64_t experts, Build b, int64_t *chosen)
{
    int lane = threadIdx.x % 32;
    for (int64_t e = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; e < experts; e += (int64_t)gridDim.x * WARPS) {
        int32_t *count = b.count + e * b.chunks;
        int64_t before = 0;
        for (int64_t base = 0; base < b.chunks; base += 32) {
            int32_t own = base + lane < b.chunks ? count[base + lane] : 0, sum = own;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                int32_t other = __shfl_up_sync(0xffffffffu, sum, step);
                sum += lane >= step ? other : 0;
            }
            if (base + lane < b.chunks) {
                count[base + lane] = (int32_t)(before + sum - own);
            }
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
        if (lane == 0) {
            b.chosen[e] = before;
            if (chosen != nullptr) {
                chosen[e] = before;
            }
        }
    }
}

static __device__ __forceinline__ int64_t wanted_rows(const RowMap &a, const Build &b, int64_t e)
{
    return a.capacity > 0 ? a.capacity : a.counts != nullptr ? a.counts[e] : moe_round_up(b.chosen[e], a.align);
}

/* One block: the experts' starts, their rows cut to the buffer, and what is wrong with them. */
static __global__ void __launch_bounds__(PLAN_THREADS) reserve_rows(RowMap a, Build b)
{
    __shared__ int64_t space[PLAN_THREADS / 32];
    __shared__ unsigned long long first_wrong;
    int64_t run = (a.experts + PLAN_THREADS - 1) / PLAN_THREADS, begin = threadIdx.x * run;
    int64_t end = begin + run < a.experts ? begin + run : a.experts, sum = 0, routed = 0, total;
    if (threadIdx.x == 0) {
        first_wrong = ~0ull;
    }
    for (int64_t e = begin; e < end; e++) {
        int64_t m = wanted_rows(a, b, e);
        sum += m < 0 ? 0 : m > a.rows ? a.rows + 1 : m;
    }
    int64_t at = plan_scan(sum, space, &total);
    for (int64_t e = begin; e < end; e++) {
        int64_t m = wanted_rows(a, b, e), clipped = m < 0 ? 0 : m > a.rows ? a.rows + 1 : m;
        int64_t start = at < a.rows ? at : a.rows, left = a.rows - start, rows = clipped < left ? clipped : left;
        int wrong = m < 0                           ? MOE_E_COUNT
                    : clipped > left && !a.drop     ? MOE_E_CAPACITY
                    : b.chosen[e] > rows && !a.drop ? MOE_E_SPLIT
                                                    : 0;
        if (wrong != 0) {
            atomicMin(&first_wrong, (unsigned long long)e << 8 | (unsigned long long)-wrong);
        }
        b.start[e] = start;
        b.m[e] = rows;
        if (a.m != nullptr) {
            a.m[e] = rows;
        }
        routed += b.chosen[e] < rows ? b.chosen[e] : rows;
        at += clipped;
    }
    plan_scan(routed, space, &total);
    if (threadIdx.x == 0) {
        *b.routed = total;
        if (first_wrong != ~0ull) {
            atomicCAS(b.status, 0, -(int)(first_wrong & 0xff)); /* a wrong choice came first, as on the host */
        }
    }
}

/* The row of the chunk's t-th token for expert e, or -1 where it is dropped. */
static __device__ __forceinline__ int32_t row_of(const Build &b, const uint32_t *bits, int64_t chunk, int t, int64_t e)
{
    int64_t rank = b.count[e * b.chunks + chunk] + moe_ones_before(bits + e * WORDS, t);
    return rank < b.m[e] ? (int32_t)(b.start[e] + rank) : -1;
}

/* A warp writes token t's line of a mask map: experts from the last to the first, so rows descend. */
static __device__ void mask_line(const RowMap &a, const Build &b, const uint32_t *bits, int64_t chunk, int t,
                                 int32_t *cells)
{
    int lane = threadIdx.x % 32;
    int32_t *line = cells + (chunk * CHUNK + t) * (2 * a.experts + 1), n = 0;
    for (int64_t top = a.experts - 1; top >= 0; top -= 32) {
        int64_t e = top - lane;
        bool chosen = e >= 0 && (bits[e * WORDS + t / 32] >> t % 32 & 1) != 0;
        int32_t row = chosen ? row_of(b, bits, chunk, t, e) : -1;
        uint32_t kept = __ballot_sync(0xffffffffu, row >= 0);
        if (row >= 0) {
            int32_t at = n + __popc(kept & ((1u << lane) - 1));
            line[at] = row;
            line[a.experts + at] = (int32_t)e;
        }
        n += __popc(kept);
    }
    if (lane == 0) {
        line[2 * a.experts] = n;
    }
}

/* Where the cells of an index or sorted map are. */
struct IndexCells {
    int32_t *source, *rows, *experts;
};

static __device__ __forceinline__ void index_cell(const RowMap &a, const IndexCells &c, int64_t t, int64_t choice,
                                                  int32_t row, int64_t e)
{
    c.rows[choice * a.tokens + t] = row;
    c.experts[choice * a.tokens + t] = row >= 0 ? (int32_t)e : -1;
    if (c.source != nullptr && row >= 0) {
        c.source[row] = (int32_t)(t * a.k + choice);
    }
}

/* A warp writes token t's choices out of a routing map: numbered by ascending expert. */
static __device__ void index_line(const RowMap &a, const Build &b, const uint32_t *bits, int64_t chunk, int t,
                                  const IndexCells &c)
{
    int lane = threadIdx.x % 32;
    int64_t token = chunk * CHUNK + t;
    int32_t n = 0;
    for (int64_t base = 0; base < a.experts; base += 32) {
        int64_t e = base + lane;
        bool chosen = e < a.experts && (bits[e * WORDS + t / 32] >> t % 32 & 1) != 0;
        uint32_t all = __ballot_sync(0xffffffffu, chosen);
        if (chosen) {
            index_cell(a, c, token, n + __popc(all & ((1u << lane) - 1)), row_of(b, bits, chunk, t, e), e);
        }
        n += __popc(all);
    }
    for (int32_t j = n + lane; j < a.k; j += 32) {
        index_cell(a, c, token, j, -1, -1);
    }
}

static __global__ void __launch_bounds__(THREADS) place(RowMap a, Build b, int32_t *cells, IndexCells index)
{
    extern __shared__ uint32_t bits[];
    if (*b.status != 0) {
        return;
    }
    for (int64_t chunk = blockIdx.x; chunk < b.chunks; chunk += gridDim.x) {
        chunk_bits(a, chunk, bits);
        int64_t first = chunk * CHUNK, tokens = a.tokens - first < CHUNK ? a.tokens - first : CHUNK;
        if (a.kind != MOE_MAP_MASK && a.mask == nullptr) {
            for (int64_t i = threadIdx.x; i < tokens * a.k; i += THREADS) {
                int64_t t = i % tokens, j = i / tokens;
                int32_t e = a.index[(first + t) * a.k + j];
                index_cell(a, index, first + t, j, e >= 0 ? row_of(b, bits, chunk, (int)t, e) : -1, e);
            }
        } else {
            for (int t = threadIdx.x / 32; t < tokens; t += WARPS) {
                if (a.kind == MOE_MAP_MASK) {
                    mask_line(a, b, bits, chunk, t, cells);
                } else {
                    index_line(a, b, bits, chunk, t, index);
                }
            }
        }
        __syncthreads();
    }
}

static __global__ void finish(RowMap a, Build b, int *error)
{
    if (*b.status != 0) {
        moe_raise(error, *b.status);
        return;
    }
    moe_map_header h = {};
    h.magic = MOE_MAP_MAGIC;
    h.kind = (int32_t)a.kind;
    h.k = a.kind == MOE_MAP_MASK ? 0 : a.k;
    h.tokens = a.tokens;
    h.experts = a.experts;
    h.rows = a.rows;
    h.routed = *b.routed;
    *a.map = h;
}

static void launch(moe_device_t *device, const RowMap &a, const Build &b)
{
    cudaStream_t stream = device->stream;
    size_t shared = (size_t)a.experts * WORDS * sizeof(uint32_t);
    int32_t *cells = reinterpret_cast<int32_t *>(a.map + 1);
    IndexCells index;
    index.source = a.kind == MOE_MAP_SORTED ? cells : nullptr;
    index.rows = cells + (a.kind == MOE_MAP_SORTED ? a.rows : 0);
    index.experts = index.rows + a.k * a.tokens;
    if (b.chunks > 0) {
        count_chunks<<<moe_blocks(b.chunks, 1, RUN_BLOCKS), THREADS, shared, stream>>>(a, b);
    }
    scan_chunks<<<moe_blocks(a.experts, WARPS, RUN_BLOCKS), THREADS, 0, stream>>>(a.experts, b, a.chosen);
    reserve_rows<<<1, PLAN_THREADS, 0, stream>>>(a, b);
    if (b.chunks > 0) {
        place<<<moe_blocks(b.chunks, 1, RUN_BLOCKS), THREADS, shared, stream>>>(a, b, cells, index);
    }
    finish<<<1, 1, 0, stream>>>(a, b, moe_state(device)->error);
}

extern "C" int moe_cuda_row_map_build(moe_device_t *device, const struct moe_row_map_build *a)
{
    if (a->experts > MOST_EXPERTS) {
        return MOE_E_UNSUPPORTED;
    }
    int64_t chunks = (a->tokens + CHUNK - 1) / CHUNK;
    Scratch<int32_t> count(device, a->experts * chunks);
    Scratch<int64_t> words(device, 3 * a->experts + 2);
    int rc = count.rc ? count.rc : words.rc;
    if (rc != 0) {
        return rc;
    }
    Build b;
    b.count = count.data;
    b.chosen = words.data;
    b.start = b.chosen + a->experts;
    b.m = b.start + a->experts;
    b.routed = b.m + a->experts;
    b.status = reinterpret_cast<int *>(b.routed + 1);
    b.chunks = chunks;
    cudaError_t err = cudaMemsetAsync(a->map, 0, sizeof(*a->map), device->stream);
    err = err != cudaSuccess ? err : cudaMemsetAsync(b.status, 0, sizeof(*b.status), device->stream);
    if (err == cudaSuccess && a->kind == MOE_MAP_SORTED && a->rows > 0) { /* rows that nothing comes from: -1 */
        err = cudaMemsetAsync(a->map + 1, 0xff, (size_t)a->rows * sizeof(int32_t), device->stream);
    }
    if (err != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    launch(device, *a, b);
    return moe_launch_result();
}
