/*
 * device.cuh: what all kernels of the back end share: errors, element types, 16-byte pieces, sums of a warp and of a
 * block.
 */
#ifndef ROLL_KERNELS_DEVICE_CUH
#define ROLL_KERNELS_DEVICE_CUH

#include "kernels/backend.h"
#include "kernels/check.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static inline moe_cuda_state *moe_state(moe_device_t *device)
{
    return static_cast<moe_cuda_state *>(device->state);
}

/* Scratch memory for the launches of one function, given back in the order of the stream at the end of the scope. */
template <typename T> class Scratch
{
  public:
    Scratch(moe_device_t *device, int64_t count) : device_(device)
    {
        void *memory = nullptr;
        rc = moe_scratch_get(device, (size_t)(count > 0 ? count : 1) * sizeof(T), &memory);
        data = static_cast<T *>(memory);
    }
    ~Scratch()
    {
        moe_scratch_put(device_, data);
    }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    T *data;
    int rc;

  private:
    moe_device_t *device_;
};

/* Keeps an error for moe_device_sync; the first one wins. */
static __device__ __forceinline__ void moe_raise(int *error, int code)
{
    atomicCAS(error, 0, code);
}

/* element types */

static __device__ __forceinline__ float moe_wide(float x)
{
    return x;
}
static __device__ __forceinline__ float moe_wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ __forceinline__ float moe_wide(__half x)
{
    return __half2float(x);
}
template <typename T> static __device__ __forceinline__ T moe_narrow_to(float x);
template <> __device__ __forceinline__ float moe_narrow_to<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ __nv_bfloat16 moe_narrow_to<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ __half moe_narrow_to<__half>(float x)
{
    return __float2half_rn(x);
}

/* Calls body(T{}) with the type of rows; UNSUPPORTED for the others. */
template <typename Body> static inline int moe_by_type(enum moe_dtype type, Body body)
{
    switch (type) {
    case MOE_F32:
        return body(float{});
    case MOE_BF16:
        return body(__nv_bfloat16{});
    case MOE_F16:
        return body(__half{});
    default:
        return MOE_E_UNSUPPORTED;
    }
}

/* Bytes of an element. moe_dtype_bytes is libmoe_core's, which this library does not link. */
static inline size_t moe_bytes_of(enum moe_dtype type)
{
    return type == MOE_F32 ? 4 : type == MOE_BF16 || type == MOE_F16 ? 2 : 1;
}

/* 16 bytes of T, moved by one instruction. */
template <typename T> struct alignas(16) Piece {
    static constexpr int N = 16 / (int)sizeof(T);
    T at[N];
};

/*
 * Loads 16 bytes that are read once and never written by this kernel, bypassing the first cache. The load is not
 * volatile, unlike the compiler's own __ldcs: so several loads are issued before the first result is used, which hides
 * the latency of the memory.
 */
static __device__ __forceinline__ uint4 moe_stream_in(const uint4 *from)
{
    uint4 piece;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
        : "l"(from));
    return piece;
}

/* The same for smaller units, of rows that are no multiple of 16 bytes. */
template <typename Unit> static __device__ __forceinline__ Unit moe_stream_in(const Unit *from)
{
    return __ldg(from);
}

/* Read once, so that it does not push out what is read again (evict first); and the same for what is written and not
 * read soon. */
template <typename T> static __device__ __forceinline__ Piece<T> moe_load_once(const Piece<T> *from)
{
    uint4 raw = moe_stream_in(reinterpret_cast<const uint4 *>(from));
    return *reinterpret_cast<Piece<T> *>(&raw);
}
template <typename T> static __device__ __forceinline__ void moe_store_once(Piece<T> *to, const Piece<T> &piece)
{
    __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&piece));
}

/* Whether rows of `width` elements can be moved in pieces. */
template <typename T> static inline bool moe_in_pieces(int64_t width)
{
    return width % Piece<T>::N == 0;
}

/* sums: in a fixed order, so the same in every run */

template <typename T> static __device__ __forceinline__ T moe_warp_sum(T x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

/* The sum over a block of THREADS threads, in all of them. `space` is shared memory of THREADS / 32 elements. All
 * threads call it. */
template <int THREADS, typename T> static __device__ __forceinline__ T moe_block_sum(T x, T *space)
{
    x = moe_warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        space[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        x += space[i];
    }
    return x;
}

/*
 * The rows that hold something: the sum of m, or all without m; -1, and COUNT or SPLIT, where m does not fit. Every
 * block asks for itself: m is short and in the cache. All threads call it.
 */
template <int THREADS>
static __device__ __forceinline__ int64_t moe_live_rows(const int64_t *m, int64_t groups, int64_t rows, int *error,
                                                        int64_t *space)
{
    if (m == nullptr) {
        return rows;
    }
    int64_t sum = 0;
    int below = 0, above = 0;
    for (int64_t i = threadIdx.x; i < groups; i += THREADS) {
        below |= m[i] < 0;
        above |= m[i] > rows;
        sum += m[i] < 0 || m[i] > rows ? 0 : m[i];
    }
    below = __syncthreads_or(below);
    above = __syncthreads_or(above);
    sum = moe_block_sum<THREADS>(sum, space);
    above |= sum > rows;
    if (threadIdx.x == 0 && (below || above)) {
        moe_raise(error, below ? MOE_E_COUNT : MOE_E_SPLIT);
    }
    return below || above ? -1 : sum;
}

#endif
