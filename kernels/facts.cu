/*
 * facts.cu: facts about tensors: sums of elements and of their absolute values, and counts of elements that are not
 * finite.
 *
 * Idea: one pass over the tensor. The sums are sums of floats in double: each block leaves its part in scratch memory
 * and one thread adds the parts in order, so the result is the same in every run; atomics were rejected because their
 * order changes. Counts are integers, so atomics may add them.
 *
 * Grid: at most 1024 blocks of 256 threads. Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

#include "common/mix.h"

enum { THREADS = 256, MOST_BLOCKS = 1024 };

static __global__ void __launch_bounds__(THREADS)
    sum_parts(const float *__restrict__ in, int64_t count, double2 *__restrict__ part)
{
    __shared__ double space[THREADS / 32];
    int64_t stride = (int64_t)gridDim.x * THREADS;
    double sum = 0.0, size = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        double x = (double)in[i];
        sum += moe_sign((uint64_t)i) * x;
        size += fabs(x);
    }
    sum = moe_block_sum<THREADS>(sum, space);
    size = moe_block_sum<THREADS>(size, space);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = make_double2(sum, size);
    }
}

static __global__ void sum_total(const double2 *__restrict__ part, unsigned parts, double *__restrict__ out)
{
    double sum = 0.0, size = 0.0;
    for (unsigned i = 0; i < parts; i++) {
        sum += part[i].x;
        size += part[i].y;
    }
    out[0] = sum;
    out[1] = size;
}

extern "C" int moe_cuda_sum_abs(moe_device_t *device, const struct moe_sum_abs *a)
{
    unsigned blocks = moe_blocks(a->count > 0 ? a->count : 1, THREADS, MOST_BLOCKS);
    Scratch<double2> part(device, blocks);
    if (part.rc != 0) {
        return part.rc;
    }
    sum_parts<<<blocks, THREADS, 0, device->stream>>>(a->in, a->count, part.data);
    sum_total<<<1, 1, 0, device->stream>>>(part.data, blocks, a->out);
    return moe_launch_result();
}

static __global__ void clear_two(uint64_t *out)
{
    out[threadIdx.x] = 0;
}

static __global__ void __launch_bounds__(THREADS)
    count_not_finite(const float *__restrict__ in, const int64_t *__restrict__ m, int64_t elements, int64_t groups,
                     uint64_t *out)
{
    __shared__ uint64_t space[THREADS / 32];
    for (int64_t g = blockIdx.y; g < groups; g += gridDim.y) {
        uint64_t here = 0;
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < elements; i += (int64_t)gridDim.x * THREADS) {
            here += !isfinite(in[g * elements + i]);
        }
        here = moe_block_sum<THREADS>(here, space);
        if (threadIdx.x == 0 && here > 0) {
            atomicAdd(reinterpret_cast<unsigned long long *>(out), (unsigned long long)here);
            if (m != nullptr && m[g] == 0) {
                atomicAdd(reinterpret_cast<unsigned long long *>(out + 1), (unsigned long long)here);
            }
        }
    }
}

extern "C" int moe_cuda_not_finite(moe_device_t *device, const struct moe_not_finite *a)
{
    clear_two<<<1, 2, 0, device->stream>>>(a->out);
    if (a->groups > 0 && a->elements > 0) {
        dim3 grid(moe_blocks(a->elements, 4 * THREADS, 64), moe_blocks(a->groups, 1, 1024));
        count_not_finite<<<grid, THREADS, 0, device->stream>>>(a->in, a->m, a->elements, a->groups, a->out);
    }
    return moe_launch_result();
}
