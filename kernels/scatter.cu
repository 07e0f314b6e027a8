/*
 * scatter.cu: unpermute, and the backward of both directions, over a row map of any kind.
 *
 * Idea: a gather per token: one block per token, its rows summed in float32 in registers, highest row first as on the
 * host, and cast once. So the traffic is R + T rows, no kernel adds to memory, and the result is the same in every run.
 * Adding row after row with atomics was rejected, because its result differs from run to run. Eight rows' pieces are
 * loaded before the first is added: 128 bytes in flight per thread, 128 KiB per multiprocessor at 1024 threads, several
 * times what the memory's latency asks for.
 *
 * The backward with probabilities reads the token's gradient once per four rows (the second time out of the cache),
 * stores the rows' gradients and sums the dot products in a fixed order over the block.
 *
 * Shapes: from [rows, width], to [T, width]; 128 threads, a block per token, at most 2^20, looping. Rows that are no
 * whole number of 16-byte pieces go one element at a time. Architecture: any. Indices: 64 bit.
 */
#include "kernels/map.cuh"
#include "kernels/rows.cuh"

enum { THREADS = 128, MOST_BLOCKS = 1 << 20, BATCH = 8, DOTS = 4 };

/* N neighbouring elements, moved at once. */
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

template <typename T, int N> static __device__ __forceinline__ Pack<T, N> load_pack(const Pack<T, N> *from)
{
    if constexpr (sizeof(T) * N == 16) {
        uint4 raw = moe_stream_in(reinterpret_cast<const uint4 *>(from));
        return *reinterpret_cast<Pack<T, N> *>(&raw);
    } else {
        return *from;
    }
}

template <typename T, int N> static __device__ __forceinline__ void store_pack(Pack<T, N> *to, const Pack<T, N> &pack)
{
    if constexpr (sizeof(T) * N == 16) {
        __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&pack));
    } else {
        *to = pack;
    }
}

/*
 * Computes the factor of each place, and takes out the places that do not count; the order stays. All threads call this
 * function; it ends with a barrier.
 */
static __device__ __forceinline__ int weigh_places(const moe_map_scatter &a, int64_t t, int n, Places *p, float *factor)
{
    __shared__ int kept;
    bool drops = false;
    int64_t columns = a.layout == MOE_PROBS_BY_CHOICE ? a.view.k : a.view.experts;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        float prob = a.probs != nullptr && p->row[i] >= 0 ? a.probs[t * columns + p->column[i]] : 1.0f;
        factor[i] = a.zero_by_prob ? 1.0f : prob;
        if (a.d_probs != nullptr && p->row[i] >= 0) {
            a.d_probs[t * columns + p->column[i]] = a.d_row_probs[p->row[i]];
        }
        if (a.zero_by_prob && prob == 0.0f) {
            p->row[i] = -1;
        }
        drops = drops || p->row[i] < 0;
    }
    if (__syncthreads_or(drops)) {
        if (threadIdx.x == 0) {
            int to = 0;
            for (int i = 0; i < n; i++) {
                p->row[to] = p->row[i];
                factor[to] = factor[i];
                to += p->row[i] >= 0;
            }
            kept = to;
        }
        __syncthreads();
        n = kept;
    }
    return n;
}

template <typename T, int N>
static __device__ __forceinline__ void add_pack(float *sum, const Pack<T, N> &pack, float factor)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] += factor * moe_wide(pack.at[i]);
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 8)
    map_scatter(moe_map_scatter a, int64_t packs, const Pack<T, N> *__restrict__ from, Pack<T, N> *__restrict__ to,
                int *error)
{
    __shared__ Places places;
    __shared__ float factor[MOST_PLACES];
    if (!map_fits(a.view, error)) {
        return;
    }
    bool by_choice = a.layout == MOE_PROBS_BY_CHOICE;
    int64_t columns = by_choice ? a.view.k : a.view.experts;
    for (int64_t t = blockIdx.x; t < a.view.tokens; t += gridDim.x) {
        for (int64_t i = threadIdx.x; a.d_probs != nullptr && i < columns; i += THREADS) {
            a.d_probs[t * columns + i] = 0.0f;
        }
        bool add = a.beta != 0.0f;
        int32_t first = 0;
        do { /* once, unless a token has more than MOST_PLACES rows: then the sum so far is rounded to the row's type in
                between */
            int taken = load_places(a.view, by_choice, t, first, &places, error);
            int n = weigh_places(a, t, taken, &places, factor);
            first += taken;
            for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
                Pack<T, N> *out = to + t * packs + i;
                float sum[N];
                Pack<T, N> old = add ? *out : Pack<T, N>{};
#pragma unroll
                for (int e = 0; e < N; e++) {
                    sum[e] = add ? moe_wide(old.at[e]) : 0.0f;
                }
                int j = 0;
                for (; j + BATCH <= n; j += BATCH) {
                    Pack<T, N> pack[BATCH];
#pragma unroll
                    for (int b = 0; b < BATCH; b++) {
                        pack[b] = load_pack(from + (int64_t)places.row[j + b] * packs + i);
                    }
#pragma unroll
                    for (int b = 0; b < BATCH; b++) {
                        add_pack(sum, pack[b], factor[j + b]);
                    }
                }
                for (; j + 2 <= n; j += 2) {
                    Pack<T, N> one = load_pack(from + (int64_t)places.row[j] * packs + i),
                               two = load_pack(from + (int64_t)places.row[j + 1] * packs + i);
                    add_pack(sum, one, factor[j]);
                    add_pack(sum, two, factor[j + 1]);
                }
                if (j < n) {
                    add_pack(sum, load_pack(from + (int64_t)places.row[j] * packs + i), factor[j]);
                }
#pragma unroll
                for (int e = 0; e < N; e++) {
                    old.at[e] = moe_narrow_to<T>(sum[e]);
                }
                store_pack(out, old);
            }
            add = true;
        } while (first < places.n);
        __syncthreads();
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(THREADS, 5)
    map_scatter_backward(moe_map_scatter_backward a, int64_t packs, const Pack<T, N> *__restrict__ dy,
                         const Pack<T, N> *__restrict__ from, Pack<T, N> *__restrict__ d_from,
                         unsigned char *__restrict__ mapped, int *error)
{
    __shared__ Places places;
    __shared__ float space[THREADS / 32];
    if (!map_fits(a.view, error)) {
        return;
    }
    bool by_choice = a.layout == MOE_PROBS_BY_CHOICE, marks = a.view.map->routed < a.view.rows;
    int64_t columns = by_choice ? a.view.k : a.view.experts;
    for (int64_t t = blockIdx.x; t < a.view.tokens; t += gridDim.x) {
        for (int64_t i = threadIdx.x; i < columns; i += THREADS) {
            a.d_probs[t * columns + i] = 0.0f;
        }
        int32_t first = 0;
        do {
            int n = load_places(a.view, by_choice, t, first, &places, error);
            first += n;
            for (int i = threadIdx.x; marks && i < n; i += THREADS) {
                if (places.row[i] >= 0) {
                    mapped[places.row[i]] = 1;
                }
            }
            for (int j = 0; j < n; j += DOTS) {
                float dot[DOTS] = {0.0f, 0.0f, 0.0f, 0.0f}, prob[DOTS];
                int32_t row[DOTS];
#pragma unroll
                for (int d = 0; d < DOTS; d++) {
                    row[d] = j + d < n ? places.row[j + d] : -1;
                    prob[d] = row[d] >= 0 ? a.probs[t * columns + places.column[j + d]] : 0.0f;
                }
                for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
                    Pack<T, N> grad = dy[t * packs + i], pack[DOTS], out;
#pragma unroll
                    for (int d = 0; d < DOTS; d++) {
                        if (row[d] >= 0) {
                            pack[d] = load_pack(from + (int64_t)row[d] * packs + i);
                        }
                    }
#pragma unroll
                    for (int d = 0; d < DOTS; d++) {
                        if (row[d] < 0) {
                            continue;
                        }
#pragma unroll
                        for (int e = 0; e < N; e++) {
                            out.at[e] = moe_narrow_to<T>(prob[d] * moe_wide(grad.at[e]));
                            dot[d] += moe_wide(grad.at[e]) * moe_wide(pack[d].at[e]);
                        }
                        store_pack(d_from + (int64_t)row[d] * packs + i, out);
                    }
                }
#pragma unroll
                for (int d = 0; d < DOTS; d++) {
                    float sum = moe_block_sum<THREADS>(dot[d], space);
                    if (threadIdx.x == 0 && row[d] >= 0) {
                        a.d_probs[t * columns + places.column[j + d]] = sum;
                    }
                }
            }
        } while (first < places.n);
    }
}

template <typename T> static bool in_packs(int64_t width, const void *a, const void *b, const void *c)
{
    return moe_in_pieces<T>(width) && moe_aligned16(a) && moe_aligned16(b) && moe_aligned16(c);
}

extern "C" int moe_cuda_map_scatter(moe_device_t *device, const struct moe_map_scatter *a)
{
    if (!map_supported(a->view)) {
        return MOE_E_UNSUPPORTED;
    }
    unsigned blocks = moe_blocks(a->view.tokens > 0 ? a->view.tokens : 1, 1, MOST_BLOCKS); /* the map is looked at */
    int *error = moe_state(device)->error;
    return moe_by_type(a->type, [&](auto element) {
        using T = decltype(element);
        constexpr int N = Piece<T>::N;
        if (in_packs<T>(a->width, a->from, a->to, nullptr)) {
            map_scatter<T, N><<<blocks, THREADS, 0, device->stream>>>(
                *a, a->width / N, static_cast<const Pack<T, N> *>(a->from), static_cast<Pack<T, N> *>(a->to), error);
        } else {
            map_scatter<T, 1><<<blocks, THREADS, 0, device->stream>>>(
                *a, a->width, static_cast<const Pack<T, 1> *>(a->from), static_cast<Pack<T, 1> *>(a->to), error);
        }
        return moe_launch_result();
    });
}

/* Writes zeros into the rows that no token has. */
struct Untouched {
    moe_map_view view;
    const unsigned char *mapped;
    int *error;
    __device__ bool ready() const
    {
        return map_fits(view, error) && view.map->routed < view.rows;
    }
    __device__ Step operator()(int64_t row, int) const
    {
        return {-1, mapped[row] == 0 ? row : -1};
    }
};

extern "C" int moe_cuda_map_scatter_backward(moe_device_t *device, const struct moe_map_scatter_backward *a)
{
    if (!map_supported(a->view)) {
        return MOE_E_UNSUPPORTED;
    }
    Scratch<unsigned char> mapped(device, a->view.rows);
    if (mapped.rc != 0) {
        return mapped.rc;
    }
    if (a->view.rows > 0 && cudaMemsetAsync(mapped.data, 0, (size_t)a->view.rows, device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    unsigned blocks = moe_blocks(a->view.tokens > 0 ? a->view.tokens : 1, 1, MOST_BLOCKS);
    int *error = moe_state(device)->error;
    int rc = moe_by_type(a->type, [&](auto element) {
        using T = decltype(element);
        constexpr int N = Piece<T>::N;
        if (in_packs<T>(a->width, a->dy, a->from, a->d_from)) {
            map_scatter_backward<T, N><<<blocks, THREADS, 0, device->stream>>>(
                *a, a->width / N, static_cast<const Pack<T, N> *>(a->dy), static_cast<const Pack<T, N> *>(a->from),
                static_cast<Pack<T, N> *>(a->d_from), mapped.data, error);
        } else {
            map_scatter_backward<T, 1><<<blocks, THREADS, 0, device->stream>>>(
                *a, a->width, static_cast<const Pack<T, 1> *>(a->dy), static_cast<const Pack<T, 1> *>(a->from),
                static_cast<Pack<T, 1> *>(a->d_from), mapped.data, error);
        }
        return moe_launch_result();
    });
    int64_t bytes = a->width * (int64_t)moe_bytes_of(a->type);
    return rc ? rc
              : launch_rows(device, Untouched{a->view, mapped.data, error}, a->view.rows, bytes, nullptr, a->d_from);
}
