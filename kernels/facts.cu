/*
 * facts.cu: facts about tensors: sums, and numbers that are none.
 *
 * Idea: one pass over the data. The sums are double and taken in a fixed order: blocks leave theirs in scratch memory, one block adds them, so that ranks that
 * hold the same tensor get the same number; counts are integer atomics.
 *
 * Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 512 };

static __global__ void __launch_bounds__(THREADS) sum_parts(const float *__restrict__ in, int64_t count, double *__restrict__ part)
{
    __shared__ double space[THREADS / 32];
    double sum = 0, size = 0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        sum += (double)in[i];
        size += fabs((double)in[i]);
    }
    sum = moe_block_sum<THREADS>(sum, space);
    size = moe_block_sum<THREADS>(size, space);
    if (threadIdx.x == 0) {
        part[2 * blockIdx.x] = sum;
        part[2 * blockIdx.x + 1] = size;
    }
}

static __global__ void sum_total(const double *__restrict__ part, unsigned blocks, double *out)
{
    double sum = 0;
    for (unsigned b = 0; b < blocks; b++) {
        sum += part[2 * b + threadIdx.x];
    }
    out[threadIdx.x] = sum;
}

extern "C" int moe_cuda_sum_abs(moe_device_t *device, const struct moe_sum_abs *a)
{
    unsigned blocks = moe_blocks(a->count, THREADS, MOST_BLOCKS); /* by the count alone: the order must not depend on the machine */
    Scratch<double> part(device, 2 * (int64_t)blocks);
    if (part.rc != 0) {
        return part.rc;
    }
    if (blocks > 0) {
        sum_parts<<<blocks, THREADS, 0, device->stream>>>(a->in, a->count, part.data);
    }
    sum_total<<<1, 2, 0, device->stream>>>(part.data, blocks, a->out);
    return moe_launch_result();
}

static __global__ void __launch_bounds__(THREADS) not_finite(moe_not_finite a)
{
    __shared__ int64_t space[THREADS / 32];
    for (int64_t g = blockIdx.y; g < a.groups; g += gridDim.y) {
        const float *in = a.in + g * a.elements;
        int64_t here = 0;
        for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.elements; i += (int64_t)gridDim.x * THREADS) {
            here += isfinite(in[i]) ? 0 : 1;
        }
        here = moe_block_sum<THREADS>(here, space);
        if (threadIdx.x == 0 && here > 0) {
            unsigned long long *out = reinterpret_cast<unsigned long long *>(a.out);
            atomicAdd(out, (unsigned long long)here);
            if (a.m != nullptr && a.m[g] == 0) {
                atomicAdd(out + 1, (unsigned long long)here);
            }
        }
    }
}

extern "C" int moe_cuda_not_finite(moe_device_t *device, const struct moe_not_finite *a)
{
    if (cudaMemsetAsync(a->out, 0, 2 * sizeof *a->out, device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    if (a->groups * a->elements == 0) {
        return 0;
    }
    dim3 grid(moe_blocks(a->elements, 4 * THREADS, MOST_BLOCKS), moe_blocks(a->groups, 1, 65535));
    not_finite<<<grid, THREADS, 0, device->stream>>>(*a);
    return moe_launch_result();
}
