/*
 * plan.cuh: starts of pieces from their sizes, on the device; the first step of every function that lays groups of rows
 * one behind the other.
 *
 * Idea: one block; each thread sums a run of neighbouring pieces, a scan over the threads gives where its run begins.
 * Pieces are few (experts, or experts x ranks); a scan over many blocks would cost more launches than it saves. Sizes
 * come from a functor, so that splits, padded splits and permuted splits are one kernel. The plan finds a size below
 * zero, or a sum beyond the buffer, before a row is moved: its status says so, and kernels that use the plan then do
 * nothing.
 */
#ifndef ROLL_KERNELS_PLAN_CUH
#define ROLL_KERNELS_PLAN_CUH

#include "kernels/device.cuh"
#include "kernels/index.h"

enum { PLAN_THREADS = 512 };

/* The result of a plan: the first error in the order of pieces, 0 without one; the sums of both sizes. */
struct Plan {
    int error;
    int64_t total[2];
};

/* Two sizes of one piece, as they are laid out on the two sides; an error of the piece itself. */
struct Sizes {
    int64_t size[2];
    int error;
};

static __device__ __forceinline__ int64_t plan_scan(int64_t x, int64_t *space, int64_t *total)
{
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t sum = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31) {
        space[warp] = sum;
    }
    __syncthreads();
    int64_t before = 0, all = 0;
    for (int i = 0; i < PLAN_THREADS / 32; i++) {
        before += i < warp ? space[i] : 0;
        all += space[i];
    }
    *total = all;
    return before + sum - x;
}

/*
 * start[side][i] = the sum of sizes before piece i; `room` is what each side's sum may be at most, `late` what is wrong
 * where it is more. `exact`: the error where the first side's sum is less than its room, or 0. Launched with one block
 * of PLAN_THREADS.
 */
template <typename SizeOf>
static __global__ void __launch_bounds__(PLAN_THREADS)
    plan_starts(SizeOf size_of, int64_t n, int64_t room0, int64_t room1, int late0, int late1, int exact,
                int64_t *start0, int64_t *start1, Plan *plan, int *error)
{
    __shared__ int64_t space[PLAN_THREADS / 32];
    __shared__ unsigned long long first_wrong;
    int64_t run = (n + PLAN_THREADS - 1) / PLAN_THREADS, begin = threadIdx.x * run,
            end = begin + run < n ? begin + run : n;
    int64_t sum0 = 0, sum1 = 0, total0, total1;
    if (threadIdx.x == 0) {
        first_wrong = ~0ull;
    }
    /* Clipped: a sum of n clipped sizes cannot overflow, and one that was clipped is found below. */
    for (int64_t i = begin; i < end; i++) {
        Sizes s = size_of(i);
        sum0 += s.size[0] < 0 ? 0 : s.size[0] > room0 ? room0 + 1 : s.size[0];
        sum1 += s.size[1] < 0 ? 0 : s.size[1] > room1 ? room1 + 1 : s.size[1];
    }
    int64_t at0 = plan_scan(sum0, space, &total0);
    int64_t at1 = plan_scan(sum1, space, &total1);
    for (int64_t i = begin; i < end; i++) {
        Sizes s = size_of(i);
        start0[i] = at0;
        start1[i] = at1;
        int64_t size0 = s.size[0] < 0 ? 0 : s.size[0] > room0 ? room0 + 1 : s.size[0];
        int64_t size1 = s.size[1] < 0 ? 0 : s.size[1] > room1 ? room1 + 1 : s.size[1];
        int wrong = s.error != 0 ? s.error : size0 > room0 - at0 ? late0 : size1 > room1 - at1 ? late1 : 0;
        if (wrong != 0) { /* errors are negative and small: the lowest piece wins */
            atomicMin(&first_wrong, (unsigned long long)i << 8 | (unsigned long long)-wrong);
        }
        at0 += size0;
        at1 += size1;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int wrong = first_wrong != ~0ull ? -(int)(first_wrong & 0xff) : total0 != room0 ? exact : 0;
        plan->error = wrong;
        plan->total[0] = total0;
        plan->total[1] = total1;
        if (wrong != 0) {
            moe_raise(error, wrong);
        }
    }
}

#endif
