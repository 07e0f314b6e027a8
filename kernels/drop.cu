/*
 * drop.cu: choices beyond an expert's capacity are taken away: those of least weight, or (by position) those that come
 * last.
 *
 * Idea: a block per expert. By weight, the capacity-th largest key is found digit by digit (8 bits, four passes over
 * the choices, a histogram in shared memory), so nothing is sorted or stored; of equal weights the first tokens stay,
 * counted in order by a scan over the block. Dropping by position needs only the last pass. The block of an expert
 * within its capacity reads one count and ends. Each pass reads all choices, at most E times in all: T k is a few
 * hundred thousand numbers that stay in the cache, and only the blocks of experts over capacity read them.
 *
 * Grid: a block of 512 threads per expert. Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"
#include "kernels/index.h"

enum { THREADS = 512, DIGITS = 256 };

static __device__ __forceinline__ uint32_t key_of(const moe_drop &a, int64_t choice, int64_t e)
{
    return moe_order_key(a.probs[choice / a.k * a.experts + e]);
}

/*
 * A choice, which the block of another expert may take away meanwhile: it is not e before and not e after, and one
 * access whose value does not tear is all that is needed. To the device a volatile access is a relaxed atomic one.
 */
static __device__ __forceinline__ bool chooses(const moe_drop &a, int64_t choice, int64_t e)
{
    return *static_cast<const volatile int32_t *>(a.index + choice) == e;
}

/*
 * Finds the key of which at least `capacity` choices of e are as large or larger, and how many are larger. All threads
 * get both numbers.
 */
static __device__ void find_threshold(const moe_drop &a, int64_t e, uint32_t *threshold, int64_t *larger)
{
    __shared__ unsigned histogram[DIGITS];
    __shared__ uint32_t prefix;
    __shared__ int64_t above;
    if (threadIdx.x == 0) {
        prefix = 0;
        above = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < DIGITS; i += THREADS) {
            histogram[i] = 0;
        }
        __syncthreads();
        uint32_t known = shift == 24 ? 0 : ~0u << (shift + 8);
        for (int64_t i = threadIdx.x; i < a.tokens * a.k; i += THREADS) {
            bool bids = chooses(a, i, e);
            uint32_t key = bids ? key_of(a, i, e) : 0;
            if (bids && (key & known) == prefix) {
                atomicAdd(histogram + (key >> shift & 0xff), 1u);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = DIGITS - 1;
            while (digit > 0 && above + histogram[digit] < a.capacity) {
                above += histogram[digit--];
            }
            prefix |= (uint32_t)digit << shift;
        }
        __syncthreads();
    }
    *threshold = prefix;
    *larger = above;
}

/* How many threads before this one have `flag`, and how many have it in all. */
static __device__ int64_t flags_before(bool flag, int64_t *total)
{
    __shared__ int32_t warps[THREADS / 32];
    uint32_t set = __ballot_sync(0xffffffffu, flag);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, before = 0, all = 0;
    __syncthreads();
    if (lane == 0) {
        warps[warp] = __popc(set);
    }
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) {
        before += i < warp ? warps[i] : 0;
        all += warps[i];
    }
    *total = all;
    return before + __popc(set & ((1u << lane) - 1));
}

static __global__ void __launch_bounds__(THREADS) drop(moe_drop a)
{
    int64_t e = blockIdx.x, count = a.counts[e];
    uint32_t threshold = 0; /* by position all choices count as equal */
    int64_t larger = 0;
    __syncthreads(); /* the count is read before it is changed */
    if (threadIdx.x == 0 && (a.pad || count > a.capacity)) {
        a.counts[e] = a.capacity;
    }
    if (count <= a.capacity) {
        return;
    }
    if (!a.by_position && a.capacity > 0) {
        find_threshold(a, e, &threshold, &larger);
    }
    int64_t stay = a.capacity - larger, equal_before = 0;
    for (int64_t base = 0; base < a.tokens * a.k; base += THREADS) {
        int64_t i = base + threadIdx.x, total;
        bool bids = i < a.tokens * a.k && chooses(a, i, e);
        uint32_t key = !bids || a.by_position || a.capacity == 0 ? threshold : key_of(a, i, e);
        bool equal = bids && key == threshold;
        int64_t place = equal_before + flags_before(equal, &total);
        if (bids && (key < threshold || (equal && place >= stay))) {
            *static_cast<volatile int32_t *>(a.index + i) = -1;
            a.probs[i / a.k * a.experts + e] = 0.0f;
        }
        equal_before += total;
    }
}

extern "C" int moe_cuda_drop(moe_device_t *device, const struct moe_drop *a)
{
    drop<<<(unsigned)a->experts, THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}
