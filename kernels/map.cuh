/*
 * map.cuh: row maps on the device (moe/permute.h): the header's check, and the rows of one token.
 *
 * Every block compares the header before it follows a cell; a row or an expert out of range is MAP and is not followed.
 * Unlike the host's functions, these kernels do not check all cells before they move the first row: that check would
 * cost a launch and a read of the whole map, to find cells that no builder writes.
 */
#ifndef ROLL_KERNELS_MAP_CUH
#define ROLL_KERNELS_MAP_CUH

#include "kernels/device.cuh"

enum { MOST_PLACES = 128 }; /* rows of a token taken at a time; an index map has no more choices */

static __device__ __forceinline__ bool map_fits(const moe_map_view &v, int *error)
{
    const moe_map_header h = *v.map; /* the whole header at once: comparing member by member would wait for each load */
    bool fits = (h.magic == MOE_MAP_MAGIC) & (h.kind == (int32_t)v.kind) & (h.k == v.k) & (h.tokens == v.tokens) &
                (h.experts == v.experts) & (h.rows == v.rows) & (h.routed >= 0) & (h.routed <= v.rows);
    if (!fits && threadIdx.x == 0) {
        moe_raise(error, MOE_E_MAP);
    }
    return fits;
}

/* Some rows of a token, highest first, in shared memory. column: the row's expert, or with `by_choice` its choice. */
struct Places {
    int32_t row[MOST_PLACES], column[MOST_PLACES];
    int32_t raw[MOST_PLACES];
    int32_t n; /* rows of the token, all rounds together */
};

/* Keeps a row and a column that may be followed; otherwise keeps -1 and raises MAP. */
static __device__ __forceinline__ void keep_place(const moe_map_view &v, Places *p, int i, int32_t row, int32_t expert,
                                                  int32_t column, int *error)
{
    bool right = row >= 0 && row < v.rows && expert >= 0 && expert < v.experts;
    p->row[i] = right ? row : -1;
    p->column[i] = column;
    if (!right) {
        moe_raise(error, MOE_E_MAP);
    }
}

/*
 * Loads places of token t, from number `first` on, into shared memory; returns how many. All threads of the block call
 * this function, which begins and ends with a barrier.
 */
static __device__ __forceinline__ int load_places(const moe_map_view &v, bool by_choice, int64_t t, int32_t first,
                                                  Places *p, int *error)
{
    const int32_t *cells = reinterpret_cast<const int32_t *>(v.map + 1);
    __syncthreads();
    if (v.kind == MOE_MAP_MASK) {
        const int32_t *line = cells + t * (2 * v.experts + 1);
        int32_t n = __ldg(line + 2 * v.experts);
        bool right = n >= 0 && n <= v.experts;
        if (threadIdx.x == 0) {
            p->n = right ? n : 0;
            if (!right) {
                moe_raise(error, MOE_E_MAP);
            }
        }
        for (int i = threadIdx.x; right && i < MOST_PLACES && first + i < n; i += blockDim.x) {
            int32_t expert = __ldg(line + v.experts + first + i);
            keep_place(v, p, i, __ldg(line + first + i), expert, expert, error);
        }
    } else {
        const int32_t *rows = cells + (v.kind == MOE_MAP_SORTED ? v.rows : 0), *experts = rows + v.k * v.tokens;
        for (int j = threadIdx.x; j < v.k; j += blockDim.x) {
            p->raw[j] = __ldg(rows + j * v.tokens + t);
        }
        __syncthreads();
        for (int j = threadIdx.x; j < v.k; j += blockDim.x) {
            int32_t higher = 0, row = p->raw[j], expert = __ldg(experts + j * v.tokens + t);
            for (int i = 0; i < v.k; i++) {
                /*
                 * In a sound map rows are distinct; in any other map every place below n must be filled all the same.
                 */
                higher += p->raw[i] != -1 && (p->raw[i] > row || (p->raw[i] == row && i < j));
            }
            if (row != -1) {
                keep_place(v, p, higher, row, expert, by_choice ? j : expert, error);
            }
        }
        if (threadIdx.x == 0) {
            int32_t n = 0;
            for (int i = 0; i < v.k; i++) {
                n += p->raw[i] != -1;
            }
            p->n = n;
        }
    }
    __syncthreads();
    int32_t left = p->n - first;
    return left < MOST_PLACES ? left : MOST_PLACES;
}

/* Index maps with more choices than a block keeps are refused on the host. */
static inline bool map_supported(const moe_map_view &v)
{
    return v.kind == MOE_MAP_MASK || v.k <= MOST_PLACES;
}

#endif
