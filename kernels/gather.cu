/*
 * gather.cu: permute: the rows of tokens into expert order, over a row map of any kind.
 *
 * Idea: one block per token; each thread loads four 16-byte pieces of the token's row, all on the way at once, and
 * stores each to all rows of the token, so a token is read once however many experts it goes to: the traffic is T + R
 * rows, the least there is. One block per destination row was rejected: it reads every token k times. The stores are
 * marked as not read soon: R rows are several times the cache. A copy has no element type, so one kernel per size of
 * piece does.
 *
 * Rows without a token become zero. The gather marks the rows that it writes (one byte per row), so the second kernel
 * knows the others. The map's header says whether there are any: if not, the blocks of the second kernel return after
 * one load. Clearing the whole output first was rejected: it doubles what is written.
 *
 * Shapes: from [T, width], to [rows, width]. Grid: a block per token, at most 2^20, looping; 32 to 256 threads by the
 * width. Architecture: any. Indices: 64 bit.
 */
#include "kernels/map.cuh"
#include "kernels/rows.cuh"

enum { MOST_BLOCKS = 1 << 20 };

template <typename Unit>
static __global__ void __launch_bounds__(256, 4)
    map_gather(moe_map_gather a, int64_t units, const Unit *__restrict__ from, Unit *__restrict__ to,
               unsigned char *__restrict__ mapped, int *error)
{
    __shared__ Places places;
    __shared__ bool zero[MOST_PLACES];
    if (!map_fits(a.view, error)) {
        return;
    }
    bool marks = a.view.map->routed < a.view.rows, by_choice = a.layout == MOE_PROBS_BY_CHOICE;
    int64_t columns = by_choice ? a.view.k : a.view.experts;
    for (int64_t t = blockIdx.x; t < a.view.tokens; t += gridDim.x) {
        int32_t first = 0;
        do { /* once, unless a token has more than MOST_PLACES rows */
            int n = load_places(a.view, by_choice, t, first, &places, error);
            first += n;
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                int32_t row = places.row[i];
                float prob = a.probs != nullptr && row >= 0 ? a.probs[t * columns + places.column[i]] : 1.0f;
                zero[i] = a.zero_by_prob && prob == 0.0f;
                if (row >= 0 && a.row_probs != nullptr) {
                    a.row_probs[row] = prob;
                }
                if (row >= 0 && marks) {
                    mapped[row] = 1;
                }
            }
            __syncthreads();
            const Unit *in = from + t * units;
            int step = blockDim.x;
            for (int64_t u = threadIdx.x; u < units; u += 4 * step) {
                Unit piece[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    piece[i] = u + i * step < units ? moe_stream_in(in + u + i * step) : Unit{};
                }
                for (int j = 0; j < n; j++) {
                    if (places.row[j] < 0) {
                        continue;
                    }
                    Unit *out = to + (int64_t)places.row[j] * units + u;
                    bool blank = zero[j];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        if (u + i * step < units) {
                            __stcs(out + i * step, blank ? Unit{} : piece[i]);
                        }
                    }
                }
            }
        } while (first < places.n);
    }
}

/* Writes zeros into the rows to which nothing was mapped. */
struct Unmapped {
    moe_map_view view;
    const unsigned char *mapped;
    float *row_probs;
    int *error;
    __device__ bool ready() const
    {
        return map_fits(view, error) && view.map->routed < view.rows;
    }
    __device__ Step operator()(int64_t row, int lane) const
    {
        bool none = mapped[row] == 0;
        if (none && lane == 0 && row_probs != nullptr) {
            row_probs[row] = 0.0f;
        }
        return {-1, none ? row : -1};
    }
};

template <typename Unit>
static void launch(moe_device_t *device, const moe_map_gather &a, int64_t bytes, unsigned char *mapped)
{
    int64_t units = bytes / (int64_t)sizeof(Unit), threads = (units + 127) / 128 * 32; /* four pieces each */
    map_gather<Unit><<<moe_blocks(a.view.tokens > 0 ? a.view.tokens : 1, 1, MOST_BLOCKS),
                       (unsigned)(threads < 32    ? 32
                                  : threads > 256 ? 256
                                                  : threads),
                       0, device->stream>>>(a, units, static_cast<const Unit *>(a.from), static_cast<Unit *>(a.to),
                                            mapped, moe_state(device)->error);
}

extern "C" int moe_cuda_map_gather(moe_device_t *device, const struct moe_map_gather *args)
{
    const moe_map_gather &a = *args;
    int64_t bytes = a.width * (int64_t)moe_bytes_of(a.type);
    if (!map_supported(a.view)) {
        return MOE_E_UNSUPPORTED;
    }
    Scratch<unsigned char> mapped(device, a.view.rows);
    if (mapped.rc != 0) {
        return mapped.rc;
    }
    if (a.view.rows > 0 && cudaMemsetAsync(mapped.data, 0, (size_t)a.view.rows, device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    uintptr_t all = (uintptr_t)a.from | (uintptr_t)a.to | (uintptr_t)bytes;
    if (all % 16 == 0) {
        launch<uint4>(device, a, bytes, mapped.data);
    } else if (all % 4 == 0) {
        launch<unsigned>(device, a, bytes, mapped.data);
    } else {
        launch<unsigned short>(device, a, bytes, mapped.data);
    }
    int rc = moe_launch_result();
    return rc ? rc
              : launch_rows(device, Unmapped{a.view, mapped.data, a.row_probs, moe_state(device)->error}, a.view.rows,
                            bytes, nullptr, a.to);
}
