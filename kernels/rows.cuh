/*
 * rows.cuh: rows moved from place to place, of any width in bytes.
 *
 * Idea: a warp takes a row; its lanes move pieces of 16 bytes, four in flight each, so that a row of 7168 bfloat16
 * numbers is 7 rounds and eight warps keep 16 KiB per block on the way. Where a row goes is a functor's answer for the
 * i-th piece of work: {from, to}; from -1: zeros; to -1: nothing. Rows whose bytes or addresses are no multiple of 16
 * move in the largest unit that fits.
 */
#ifndef ROLL_KERNELS_ROWS_CUH
#define ROLL_KERNELS_ROWS_CUH

#include "kernels/device.cuh"

enum { ROW_THREADS = 256, ROW_WARPS = ROW_THREADS / 32, ROW_BLOCKS = 132 * 64 };

struct Step {
    int64_t from, to;
};

template <typename Unit> static __device__ __forceinline__ Unit unit_zero()
{
    return Unit{};
}

template <typename Unit, typename Where>
static __global__ void __launch_bounds__(ROW_THREADS, 4)
    move_rows(Where where, int64_t rows, int64_t units, const Unit *__restrict__ from, Unit *__restrict__ to)
{
    if (!where.ready()) {
        return;
    }
    int lane = threadIdx.x % 32;
    for (int64_t i = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32; i < rows;
         i += (int64_t)gridDim.x * ROW_WARPS) {
        Step step = where(i, lane);
        if (step.to < 0) {
            continue;
        }
        Unit *out = to + step.to * units;
        const Unit *in = from + step.from * units;
        int64_t u = lane;
        if (step.from < 0) {
            for (; u < units; u += 32) {
                out[u] = unit_zero<Unit>();
            }
            continue;
        }
        for (; u + 96 < units; u += 128) {
            Unit a = moe_stream_in(in + u), b = moe_stream_in(in + u + 32), c = moe_stream_in(in + u + 64),
                 d = moe_stream_in(in + u + 96);
            __stcs(out + u, a);
            __stcs(out + u + 32, b);
            __stcs(out + u + 64, c);
            __stcs(out + u + 96, d);
        }
        for (; u < units; u += 32) {
            __stcs(out + u, moe_stream_in(in + u));
        }
    }
}

/* Moves `rows` rows of `bytes` bytes each as `where` says. from may be NULL where every answer is zeros. */
template <typename Where>
static int launch_rows(moe_device_t *device, Where where, int64_t rows, int64_t bytes, const void *from, void *to)
{
    if (rows == 0) { /* rows of no bytes are asked for all the same: their probabilities move with them */
        return 0;
    }
    unsigned blocks = moe_blocks(rows, ROW_WARPS, ROW_BLOCKS);
    uintptr_t all = (uintptr_t)from | (uintptr_t)to | (uintptr_t)bytes;
    cudaStream_t stream = device->stream;
    if (all % 16 == 0) {
        move_rows<uint4><<<blocks, ROW_THREADS, 0, stream>>>(where, rows, bytes / 16, (const uint4 *)from, (uint4 *)to);
    } else if (all % 4 == 0) {
        move_rows<unsigned>
            <<<blocks, ROW_THREADS, 0, stream>>>(where, rows, bytes / 4, (const unsigned *)from, (unsigned *)to);
    } else if (all % 2 == 0) {
        move_rows<unsigned short><<<blocks, ROW_THREADS, 0, stream>>>(
            where, rows, bytes / 2, (const unsigned short *)from, (unsigned short *)to);
    } else {
        move_rows<unsigned char>
            <<<blocks, ROW_THREADS, 0, stream>>>(where, rows, bytes, (const unsigned char *)from, (unsigned char *)to);
    }
    return moe_launch_result();
}

#endif
