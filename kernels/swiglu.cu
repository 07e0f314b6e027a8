/*
 * swiglu.cu: act = silu(gate) * up, and its backward.
 *
 * Idea: memory-bound element-wise work: 16-byte loads and stores, a grid-stride loop over (row, piece), no shared
 * memory. Fusing it into the epilogue of fc1 is the faster form and comes with the project's own grouped product; this
 * is the form that any product can use.
 *
 * Shapes: h [rows, 2*width] = [gate | up], act and d_act [rows, width], d_h like h. Grid: at most 16 blocks per
 * multiprocessor of the largest part (132 x 16), 256 threads: full occupancy at the 32 registers or so that this
 * takes. Assumes 16-byte alignment, width a multiple of 4. Streams: the caller's only. Architecture: any (sm_90a
 * built). Indices: 64 bit. Accuracy: __expf is not used; expf and one division keep the error at a few units in the
 * last place against the twin in double.
 */
#include "kernels/check.cuh"
#include "kernels/kernels.h"

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

static int check(const void *a, const void *b, int64_t rows, int64_t width)
{
    if (rows < 0 || width < 4 || width % 4 != 0) {
        return MOE_E_SHAPE;
    }
    return rows > 0 && (a == nullptr || b == nullptr || !moe_aligned16(a) || !moe_aligned16(b)) ? MOE_E_ARG : 0;
}

extern "C" int moe_kernel_swiglu(const float *h, int64_t rows, int64_t width, float *act, cudaStream_t stream)
{
    int rc = check(h, act, rows, width);
    if (rc != 0 || rows == 0) {
        return rc;
    }
    swiglu<<<moe_blocks(rows * (width / 4), THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(
        reinterpret_cast<const float4 *>(h), rows, width / 4, reinterpret_cast<float4 *>(act));
    return moe_launch_result();
}

extern "C" int moe_kernel_swiglu_backward(const float *h, const float *d_act, int64_t rows, int64_t width, float *d_h,
                                          cudaStream_t stream)
{
    int rc = check(h, d_h, rows, width);
    if (rc != 0 || rows == 0) {
        return rc;
    }
    if (d_act == nullptr || !moe_aligned16(d_act)) {
        return MOE_E_ARG;
    }
    swiglu_backward<<<moe_blocks(rows * (width / 4), THREADS, MOST_BLOCKS), THREADS, 0, stream>>>(
        reinterpret_cast<const float4 *>(h), reinterpret_cast<const float4 *>(d_act), rows, width / 4,
        reinterpret_cast<float4 *>(d_h));
    return moe_launch_result();
}
