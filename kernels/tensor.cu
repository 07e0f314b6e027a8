/*
 * tensor.cu: functions of whole tensors: scale, change of type, sum of columns, checksum.
 *
 * Idea: memory-bound work in 16-byte pieces where the address allows it, a loop over the grid. The checksum is a sum of
 * integers, so atomics may add the blocks' parts in any order, and the result equals the host's in every bit. The
 * column sum is a sum of floats: the parts of ROWS rows go to scratch memory and are added in order, so that the sum is
 * the same in every run; atomics were rejected because their order changes.
 *
 * Grid: at most 16 blocks of 256 threads per multiprocessor of the largest part. Architecture: any. Indices: 64 bit.
 */
#include "kernels/device.cuh"

#include "common/mix.h"

#include <cuda_fp8.h>

enum { THREADS = 256, MOST_BLOCKS = 132 * 16, COLUMNS = 32, LANES = 8, ROWS = 256 };

/* scale */

static __global__ void __launch_bounds__(THREADS) scale(float *data, int64_t pieces, int64_t count, float factor)
{
    int64_t stride = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float4 *wide = reinterpret_cast<float4 *>(data);
    for (int64_t i = first; i < pieces; i += stride) {
        float4 x = wide[i];
        wide[i] = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    }
    for (int64_t i = pieces * 4 + first; i < count; i += stride) {
        data[i] *= factor;
    }
}

extern "C" int moe_cuda_scale(moe_device_t *device, const struct moe_scale *a)
{
    int64_t count = (int64_t)a->count, pieces = moe_aligned16(a->data) ? count / 4 : 0;
    if (count == 0) {
        return 0;
    }
    scale<<<moe_blocks(count, pieces > 0 ? 4 * THREADS : THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(
        a->data, pieces, count, a->factor);
    return moe_launch_result();
}

/* cast: any of the five types to any, by way of float32, as on the host */

static __device__ __forceinline__ float wide_at(const void *from, enum moe_dtype type, int64_t i)
{
    switch (type) {
    case MOE_BF16:
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[i]);
    case MOE_F16:
        return __half2float(static_cast<const __half *>(from)[i]);
    case MOE_E4M3:
        return static_cast<float>(static_cast<const __nv_fp8_e4m3 *>(from)[i]);
    case MOE_E5M2:
        return static_cast<float>(static_cast<const __nv_fp8_e5m2 *>(from)[i]);
    default:
        return static_cast<const float *>(from)[i];
    }
}

static __device__ __forceinline__ void narrow_at(void *to, enum moe_dtype type, int64_t i, float x)
{
    switch (type) {
    case MOE_BF16:
        static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(x);
        break;
    case MOE_F16:
        static_cast<__half *>(to)[i] = __float2half_rn(x);
        break;
    case MOE_E4M3:
        static_cast<__nv_fp8_storage_t *>(to)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
        break;
    case MOE_E5M2:
        static_cast<__nv_fp8_storage_t *>(to)[i] = __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
        break;
    default:
        static_cast<float *>(to)[i] = x;
    }
}

static __global__ void __launch_bounds__(THREADS) cast(const void *__restrict__ from, enum moe_dtype from_type,
                                                       void *__restrict__ to, enum moe_dtype to_type, int64_t count)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += stride) {
        narrow_at(to, to_type, i, wide_at(from, from_type, i));
    }
}

/* The two casts that mixed precision training makes in every step, 8 elements at a time. */
template <typename Narrow, bool WIDEN>
static __global__ void __launch_bounds__(THREADS)
    cast_pieces(const void *__restrict__ from, void *__restrict__ to, int64_t pieces)
{
    int64_t stride = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < pieces; i += stride) {
        Piece<float> low, high;
        Piece<Narrow> narrow;
        if (WIDEN) {
            narrow = moe_load_once(static_cast<const Piece<Narrow> *>(from) + i);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                low.at[j] = moe_wide(narrow.at[j]);
                high.at[j] = moe_wide(narrow.at[j + 4]);
            }
            static_cast<Piece<float> *>(to)[2 * i] = low;
            static_cast<Piece<float> *>(to)[2 * i + 1] = high;
        } else {
            low = moe_load_once(static_cast<const Piece<float> *>(from) + 2 * i);
            high = moe_load_once(static_cast<const Piece<float> *>(from) + 2 * i + 1);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                narrow.at[j] = moe_narrow_to<Narrow>(low.at[j]);
                narrow.at[j + 4] = moe_narrow_to<Narrow>(high.at[j]);
            }
            static_cast<Piece<Narrow> *>(to)[i] = narrow;
        }
    }
}

template <typename Narrow> static void launch_pieces(moe_device_t *device, const struct moe_cast *a, int64_t pieces)
{
    unsigned blocks = moe_blocks(pieces, THREADS, MOST_BLOCKS);
    if (a->from_type == MOE_F32) {
        cast_pieces<Narrow, false><<<blocks, THREADS, 0, device->stream>>>(a->from, a->to, pieces);
    } else {
        cast_pieces<Narrow, true><<<blocks, THREADS, 0, device->stream>>>(a->from, a->to, pieces);
    }
}

extern "C" int moe_cuda_cast(moe_device_t *device, const struct moe_cast *a)
{
    enum moe_dtype narrow = a->from_type == MOE_F32 ? a->to_type : a->from_type;
    bool in_pieces = (a->from_type == MOE_F32 || a->to_type == MOE_F32) && (narrow == MOE_BF16 || narrow == MOE_F16) &&
                     moe_aligned16(a->from) && moe_aligned16(a->to) && a->count % 8 == 0;
    if (a->count == 0) {
        return 0;
    }
    if (in_pieces && narrow == MOE_BF16) {
        launch_pieces<__nv_bfloat16>(device, a, a->count / 8);
    } else if (in_pieces) {
        launch_pieces<__half>(device, a, a->count / 8);
    } else {
        cast<<<moe_blocks(a->count, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(a->from, a->from_type, a->to,
                                                                                         a->to_type, a->count);
    }
    return moe_launch_result();
}

/* sum of columns */

/* part[y][column] = the sum of ROWS rows: LANES threads per column, then their sums in order. */
static __global__ void __launch_bounds__(COLUMNS *LANES)
    column_parts(const float *__restrict__ in, int64_t rows, int64_t width, int64_t parts, float *__restrict__ part)
{
    __shared__ float space[LANES][COLUMNS];
    for (int64_t y = blockIdx.y; y < parts; y += gridDim.y) {
        int64_t column = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
        int64_t end = (y + 1) * ROWS < rows ? (y + 1) * ROWS : rows;
        float sum = 0.0f;
        for (int64_t r = y * ROWS + threadIdx.y; column < width && r < end; r += LANES) {
            sum += in[r * width + column];
        }
        space[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && column < width) {
            for (int i = 1; i < LANES; i++) {
                sum += space[i][threadIdx.x];
            }
            part[y * width + column] = sum;
        }
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS)
    column_total(const float *__restrict__ part, int64_t parts, int64_t width, float *__restrict__ out)
{
    for (int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x; j < width; j += (int64_t)gridDim.x * THREADS) {
        float sum = 0.0f;
        for (int64_t y = 0; y < parts; y++) {
            sum += part[y * width + j];
        }
        out[j] += sum;
    }
}

extern "C" int moe_cuda_column_sum(moe_device_t *device, const struct moe_column_sum *a)
{
    if (a->rows == 0 || a->width == 0) {
        return 0;
    }
    int64_t parts = (a->rows + ROWS - 1) / ROWS;
    Scratch<float> part(device, parts * a->width);
    if (part.rc != 0) {
        return part.rc;
    }
    dim3 grid(moe_blocks(a->width, COLUMNS, INT32_MAX), moe_blocks(parts, 1, 65535));
    column_parts<<<grid, dim3(COLUMNS, LANES), 0, device->stream>>>(a->in, a->rows, a->width, parts, part.data);
    column_total<<<moe_blocks(a->width, THREADS, MOST_BLOCKS), THREADS, 0, device->stream>>>(part.data, parts, a->width,
                                                                                             a->out);
    return moe_launch_result();
}

/* checksum */

/* The last word, filled up with zeros, and what the length adds. One thread of the grid. */
static __device__ uint64_t tail(const unsigned char *data, size_t bytes)
{
    uint64_t word = 0, sum = moe_mix(bytes);
    size_t words = bytes / 8;
    for (size_t i = words * 8; i < bytes; i++) {
        word |= (uint64_t)data[i] << 8 * (i % 8);
    }
    return bytes % 8 != 0 ? sum + moe_mix_word(word, words) : sum;
}

template <typename Word> static __device__ __forceinline__ uint64_t mix_piece(Word piece, int64_t i);
template <> __device__ __forceinline__ uint64_t mix_piece<ulonglong2>(ulonglong2 piece, int64_t i)
{
    return moe_mix_word(piece.x, (uint64_t)i * 2) + moe_mix_word(piece.y, (uint64_t)i * 2 + 1);
}
template <> __device__ __forceinline__ uint64_t mix_piece<unsigned long long>(unsigned long long piece, int64_t i)
{
    return moe_mix_word(piece, (uint64_t)i);
}

template <typename Word>
static __global__ void __launch_bounds__(THREADS)
    checksum(const Word *__restrict__ data, int64_t pieces, size_t bytes, unsigned long long *out)
{
    __shared__ uint64_t space[THREADS / 32];
    uint64_t sum = 0;
    int64_t stride = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
#pragma unroll 4
    for (int64_t i = first; i < pieces; i += stride) {
        sum += mix_piece<Word>(data[i], i);
    }
    if (first == 0) {
        const unsigned char *raw = reinterpret_cast<const unsigned char *>(data);
        int64_t done = pieces * (int64_t)(sizeof(Word) / 8);
        for (int64_t i = done; i < (int64_t)(bytes / 8); i++) {
            sum += moe_mix_word(reinterpret_cast<const unsigned long long *>(raw)[i], (uint64_t)i);
        }
        sum += tail(raw, bytes);
    }
    sum = moe_block_sum<THREADS>(sum, space);
    if (threadIdx.x == 0) {
        atomicAdd(out, (unsigned long long)sum);
    }
}

/* Data at an odd address (a view of bytes): word by word out of bytes. */
static __global__ void __launch_bounds__(THREADS)
    checksum_bytes(const unsigned char *__restrict__ data, size_t bytes, unsigned long long *out)
{
    __shared__ uint64_t space[THREADS / 32];
    uint64_t sum = 0;
    int64_t stride = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    for (int64_t i = first; i < (int64_t)(bytes / 8); i += stride) {
        uint64_t word = 0;
        for (int j = 0; j < 8; j++) {
            word |= (uint64_t)data[i * 8 + j] << 8 * j;
        }
        sum += moe_mix_word(word, (uint64_t)i);
    }
    sum += first == 0 ? tail(data, bytes) : 0;
    sum = moe_block_sum<THREADS>(sum, space);
    if (threadIdx.x == 0) {
        atomicAdd(out, (unsigned long long)sum);
    }
}

extern "C" int moe_cuda_checksum(moe_device_t *device, const struct moe_checksum *a)
{
    unsigned long long *out = reinterpret_cast<unsigned long long *>(a->out);
    uintptr_t address = (uintptr_t)a->data;
    if (cudaMemsetAsync(out, 0, sizeof(*out), device->stream) != cudaSuccess) {
        return MOE_E_DEVICE;
    }
    int64_t words = (int64_t)(a->bytes / 8);
    unsigned blocks = moe_blocks(words > 0 ? words : 1, 2 * THREADS, MOST_BLOCKS);
    if (address % 16 == 0) {
        checksum<<<blocks, THREADS, 0, device->stream>>>(static_cast<const ulonglong2 *>(a->data), words / 2, a->bytes,
                                                         out);
    } else if (address % 8 == 0) {
        checksum<<<blocks, THREADS, 0, device->stream>>>(static_cast<const unsigned long long *>(a->data), words,
                                                         a->bytes, out);
    } else {
        checksum_bytes<<<blocks, THREADS, 0, device->stream>>>(static_cast<const unsigned char *>(a->data), a->bytes,
                                                               out);
    }
    return moe_launch_result();
}
