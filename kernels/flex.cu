/*
 * flex.cu: the layout of the Flex dispatchers, and the words that travel beside the rows.
 *
 * Idea: a warp per token of each block of the layout; each lane finds for one expert-parallel rank whether any expert
 * of that rank was chosen, so that a token counts once for a rank however many of its experts are there, and no set of
 * ranks has to be kept. Counts are integer atomics: exact in any order. An error is a flag per block of the layout that
 * a last small kernel turns into the count of -1 that the host's body leaves.
 *
 * Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, MOST_BLOCKS = 132 * 16 };

static __device__ __forceinline__ void add_one(int64_t *count)
{
    atomicAdd(reinterpret_cast<unsigned long long *>(count), 1ull);
}

/* Whether token t chose one of the experts [first, last), from its line of the routing map or its choices. */
static __device__ __forceinline__ bool chose(const moe_flex_layout &a, const uint8_t *line, const int32_t *choice,
                                             int64_t first, int64_t last)
{
    bool any = false;
    for (int64_t e = first; line != nullptr && e < last; e++) {
        any = any || line[e] != 0;
    }
    for (int32_t j = 0; line == nullptr && j < a.k; j++) {
        any = any || (choice[j] >= first && choice[j] < last);
    }
    return any;
}

/* Counts one choice of an index and enters it in the map. False: the choice is out of range, or was entered before. */
static __device__ __forceinline__ bool enter(const moe_flex_layout &a, const int32_t *choice, int32_t j, uint8_t *map,
                                             int64_t *expert_counts)
{
    int32_t e = choice[j];
    bool right = e >= -1 && e < a.experts;
    for (int32_t i = 0; e >= 0 && i < j; i++) {
        right = right && choice[i] != e;
    }
    if (right && e >= 0) {
        add_one(expert_counts + e);
        if (map != nullptr) {
            map[e] = 1;
        }
    }
    return right;
}

static __global__ void __launch_bounds__(THREADS) flex_layout(moe_flex_layout a, int *wrong)
{
    int lane = threadIdx.x % 32;
    int64_t local = a.experts * a.etp / a.ranks, numbers = a.ranks + a.experts;
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < a.blocks * a.padded;
         i += (int64_t)gridDim.x * WARPS) {
        int64_t b = i / a.padded, t = i % a.padded;
        int64_t *counts = a.counts + b * (numbers + 1);
        const uint8_t *line = a.mask != nullptr ? a.mask + b * a.mask_stride + t * a.mask_row : nullptr;
        const int32_t *choice = a.index + t * a.k;
        uint8_t *map = a.map != nullptr ? a.map + t * a.mask_row : nullptr;
        bool pad = t >= a.tokens, right = true;
        for (int64_t e = lane; map != nullptr && e < a.mask_row; e += 32) {
            map[e] = 0;
        }
        __syncwarp();
        for (int64_t p = lane; p < a.ranks / a.etp; p += 32) {
            bool goes = !pad && chose(a, line, choice, p * local, (p + 1) * local);
            for (int64_t g = p * a.etp; g < (p + 1) * a.etp; g++) {
                if (a.to_ranks != nullptr) {
                    a.to_ranks[t * a.ranks + g] = goes;
                }
                if (goes) {
                    add_one(counts + g);
                }
            }
        }
        for (int64_t e = lane; !pad && line != nullptr && e < a.experts; e += 32) {
            if (line[e] != 0) {
                add_one(counts + a.ranks + e);
            }
        }
        for (int32_t j = lane; !pad && line == nullptr && j < a.k; j += 32) {
            right = enter(a, choice, j, map, counts + a.ranks) && right;
        }
        if (!right) {
            wrong[b] = 1;
        }
        __syncwarp();
    }
}

/* The tails, and what is left of a block in which something was wrong. */
static __global__ void __launch_bounds__(THREADS)
    flex_finish(moe_flex_layout a, const int *__restrict__ wrong, int *error)
{
    int64_t numbers = a.ranks + a.experts;
    for (int64_t b = threadIdx.x; b < a.blocks; b += THREADS) {
        int64_t *counts = a.counts + b * (numbers + 1);
        if (a.mask != nullptr) {
            const uint8_t *tail = a.mask + b * a.mask_stride + a.padded * a.mask_row;
            uint64_t word = 0;
            for (int i = 0; i < 8; i++) {
                word |= (uint64_t)tail[i] << 8 * i;
            }
            counts[numbers] = (int64_t)word;
        }
        if (wrong[b] != 0) {
            counts[0] = -1;
            moe_raise(error, MOE_E_EXPERT);
        }
    }
}

extern "C" int moe_cuda_flex_layout(moe_device_t *device, const struct moe_flex_layout *a)
{
    Scratch<int> wrong(device, a->blocks);
    if (wrong.rc != 0 || a->blocks == 0) {
        return wrong.rc;
    }
    size_t numbers = (size_t)(a->ranks + a->experts), pitch = (numbers + 1) * sizeof(int64_t);
    cudaError_t err = cudaMemsetAsync(wrong.data, 0, (size_t)a->blocks * sizeof(int), device->stream);
    err = err != cudaSuccess
              ? err
              : cudaMemset2DAsync(a->counts, pitch, 0, numbers * sizeof(int64_t), (size_t)a->blocks, device->stream);
    if (err != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->padded > 0) {
        flex_layout<<<moe_blocks(a->blocks * a->padded, WARPS, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a,
                                                                                                           wrong.data);
    }
    flex_finish<<<1, THREADS, 0, device->stream>>>(*a, wrong.data, moe_state(device)->error);
    return moe_launch_result();
}

/* words */

static __global__ void __launch_bounds__(THREADS) flex_pack(moe_flex_pack a)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.padded * a.k; i += stride) {
        int64_t t = i / a.k, j = i % a.k;
        int32_t e = t < a.tokens ? a.index[i] : -1;
        a.words[t * 2 * a.k + j] = e + 1;
        a.words[t * 2 * a.k + a.k + j] = e >= 0 ? __float_as_int(a.probs[t * a.experts + e]) : 0;
    }
}

extern "C" int moe_cuda_flex_pack(moe_device_t *device, const struct moe_flex_pack *a)
{
    if (a->padded * a->k == 0) {
        return 0;
    }
    flex_pack<<<moe_blocks(a->padded * a->k, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}

static __global__ void __launch_bounds__(THREADS) flex_unpack(moe_flex_unpack a)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.k; i += stride) {
        int64_t r = i / a.k, j = i % a.k;
        int32_t word = a.words[r * 2 * a.k + j];
        int64_t e = (int64_t)word - 1 - a.first;
        bool here = word > 0 && e >= 0 && e < a.local;
        a.index[i] = here ? (int32_t)e : -1;
        if (here) {
            a.mask[r * a.local + e] = 1;
            a.probs[r * a.local + e] = __int_as_float(a.words[r * 2 * a.k + a.k + j]);
        }
    }
}

extern "C" int moe_cuda_flex_unpack(moe_device_t *device, const struct moe_flex_unpack *a)
{
    size_t cells = (size_t)(a->rows * a->local);
    if (a->rows == 0) {
        return 0;
    }
    if (cudaMemsetAsync(a->probs, 0, cells * sizeof(*a->probs), device->stream) != cudaSuccess ||
        cudaMemsetAsync(a->mask, 0, cells, device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->k == 0) { /* nobody chose anything */
        return 0;
    }
    flex_unpack<<<moe_blocks(a->rows * a->k, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}

static __global__ void __launch_bounds__(THREADS) flex_choices(moe_flex_choices a)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.k; i += stride) {
        int32_t e = a.index[i];
        int64_t cell = i / a.k * a.experts + e;
        if (a.inverse) {
            a.by_choice[i] = e >= 0 ? a.by_expert[cell] : 0.0f;
        } else if (e >= 0) {
            a.by_expert[cell] = a.by_choice[i];
        }
    }
}

extern "C" int moe_cuda_flex_choices(moe_device_t *device, const struct moe_flex_choices *a)
{
    if (a->rows == 0) {
        return 0;
    }
    if (!a->inverse && cudaMemsetAsync(a->by_expert, 0, (size_t)(a->rows * a->experts) * sizeof(*a->by_expert),
                                       device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->k == 0) {
        return 0;
    }
    flex_choices<<<moe_blocks(a->rows * a->k, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}

static __global__ void __launch_bounds__(THREADS) flex_dropped(moe_flex_dropped a)
{
    __shared__ int64_t space[THREADS / 32];
    int64_t sum = 0;
    for (int64_t i = threadIdx.x; i < a.groups; i += THREADS) {
        sum += a.chosen[i] > a.m[i] ? a.chosen[i] - a.m[i] : 0;
    }
    sum = moe_block_sum<THREADS>(sum, space);
    if (threadIdx.x == 0) {
        a.dropped[0] += sum;
    }
}

extern "C" int moe_cuda_flex_dropped(moe_device_t *device, const struct moe_flex_dropped *a)
{
    flex_dropped<<<1, THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}
