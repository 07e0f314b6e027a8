/*
 * swiglu.cu: act = silu(gate) * up, and its backward.
 *
 * Idea: memory-bound element-wise work: 16-byte loads and stores, a grid-stride loop over (row, piece), no shared
 * memory. Fusing it into the epilogue of fc1 would be faster, but only in a product of our own; this kernel works
 * behind any product.
 *
 * Shapes: h [rows, 2*width] = [gate | up], act and d_act [rows, width], d_h like h. Grid: at most 16 blocks per
 * multiprocessor of the largest part (132 x 16), 256 threads: full occupancy at the 32 registers or so that this
 * takes. Rows that are no whole
 * number of 16-byte pieces take a kernel of single elements. Streams: the caller's only. Architecture: any (sm_90a
 * built). Indices: 64 bit. Accuracy: __expf is not used; expf and one division keep the error at a few units in the
 * last place against the twin in double.
 */
#include "kernels/device.cuh"

enum { THREADS = 256, MOST_BLOCKS = 132 * 16 };

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static __device__ __forceinline__ float forward_one(float gate, float up)
{
    return gate * sigmoid(gate) * up;
}

static __global__ void __launch_bounds__(THREADS)
    swiglu(const float4 *__restrict__ h, int64_t rows, int64_t pieces, float4 *__restrict__ act)
{
    int64_t work = rows * pieces, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < work; at += stride) {
        int64_t row = at / pieces, i = at % pieces;
        float4 g = __ldg(h + row * 2 * pieces + i), u = __ldg(h + row * 2 * pieces + pieces + i);
        act[at] =
            make_float4(forward_one(g.x, u.x), forward_one(g.y, u.y), forward_one(g.z, u.z), forward_one(g.w, u.w));
    }
}

static __device__ __forceinline__ void backward_one(float gate, float up, float d, float *d_gate, float *d_up)
{
    float s = sigmoid(gate);
    *d_up = d * gate * s;
    *d_gate = d * up * s * (1.0f + gate * (1.0f - s));
}

static __global__ void __launch_bounds__(THREADS)
    swiglu_backward(const float4 *__restrict__ h, const float4 *__restrict__ d_act, int64_t rows, int64_t pieces,
                    float4 *__restrict__ d_h)
{
    int64_t work = rows * pieces, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < work; at += stride) {
        int64_t row = at / pieces, i = at % pieces;
        float4 g = __ldg(h + row * 2 * pieces + i), u = __ldg(h + row * 2 * pieces + pieces + i), d = __ldg(d_act + at);
        float4 dg, du;
        backward_one(g.x, u.x, d.x, &dg.x, &du.x);
        backward_one(g.y, u.y, d.y, &dg.y, &du.y);
        backward_one(g.z, u.z, d.z, &dg.z, &du.z);
        backward_one(g.w, u.w, d.w, &dg.w, &du.w);
        d_h[row * 2 * pieces + i] = dg;
        d_h[row * 2 * pieces + pieces + i] = du;
    }
}

/* One element at a time: rows whose width is no multiple of 4, or that do not begin at a multiple of 16 bytes. */
static __global__ void __launch_bounds__(THREADS)
    swiglu_narrow(const float *__restrict__ h, int64_t rows, int64_t width, float *__restrict__ act)
{
    int64_t work = rows * width, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < work; at += stride) {
        const float *gate = h + at / width * 2 * width + at % width;
        act[at] = forward_one(gate[0], gate[width]);
    }
}

static __global__ void __launch_bounds__(THREADS)
    swiglu_backward_narrow(const float *__restrict__ h, const float *__restrict__ d_act, int64_t rows, int64_t width,
                           float *__restrict__ d_h)
{
    int64_t work = rows * width, stride = (int64_t)gridDim.x * THREADS;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < work; at += stride) {
        int64_t gate = at / width * 2 * width + at % width;
        backward_one(h[gate], h[gate + width], d_act[at], d_h + gate, d_h + gate + width);
    }
}

extern "C" int moe_cuda_swiglu(moe_device_t *device, const struct moe_swiglu *a)
{
    if (a->rows * a->width == 0) {
        return 0;
    }
    if (a->width % 4 == 0 && moe_aligned16(a->h) && moe_aligned16(a->out)) {
        swiglu<<<moe_blocks(a->rows * (a->width / 4), THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
            reinterpret_cast<const float4 *>(a->h), a->rows, a->width / 4, reinterpret_cast<float4 *>(a->out));
    } else {
        swiglu_narrow<<<moe_blocks(a->rows * a->width, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
            a->h, a->rows, a->width, a->out);
    }
    return moe_launch_result();
}

extern "C" int moe_cuda_swiglu_backward(moe_device_t *device, const struct moe_swiglu *a)
{
    if (a->rows * a->width == 0) {
        return 0;
    }
    if (a->width % 4 == 0 && moe_aligned16(a->h) && moe_aligned16(a->d_act) && moe_aligned16(a->out)) {
        swiglu_backward<<<moe_blocks(a->rows * (a->width / 4), THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
            reinterpret_cast<const float4 *>(a->h), reinterpret_cast<const float4 *>(a->d_act), a->rows, a->width / 4,
            reinterpret_cast<float4 *>(a->out));
    } else {
        swiglu_backward_narrow<<<moe_blocks(a->rows * a->width, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
            a->h, a->d_act, a->rows, a->width, a->out);
    }
    return moe_launch_result();
}
