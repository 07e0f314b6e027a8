/*
 * driver_tensor.c: descriptions of tensors for the copy engine (cuTensorMapEncodeTiled). The vendor's 128 bytes are not
 * documented, so ours have a form of their own (code.h), which device code that runs on the processor reads. The rules
 * that the vendor's documentation gives for each argument are held here: a description that a GPU would refuse is
 * refused, and one whose bytes a kernel may later replace is complete.
 */
#include "hostnccl/cuda/code.h"
#include "hostnccl/cuda/driver.h"

#include <string.h>

enum { SWIZZLE_128B = 3, L2_LAST = 3, INTERLEAVE_32B = 2, BOX_MAX = 256, STEP_MAX = 8 };

/* By the vendor's number of the type: uint8, 16, 32, int32, uint64, int64, float16, 32, 64, bfloat16, float32 that
 * flushes subnormals, tf32 and that with flushing. */
static const uint8_t bytes_of[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
static const unsigned int swizzled_bytes[] = {0, 32, 64, 128};

static int is_right(const struct hostcuda_tensor_map *m, const uint64_t *dims, const uint64_t *strides,
                    const uint32_t *box, const uint32_t *steps)
{
    uint64_t inner = (uint64_t)box[0] * m->element_bytes;
    for (int i = 0; i < m->rank; i++) {
        if (!dims[i] || dims[i] > UINT64_C(1) << 32 || !box[i] || box[i] > BOX_MAX || !steps[i] ||
            steps[i] > STEP_MAX) {
            return 0;
        }
    }
    for (int i = 0; i + 1 < m->rank; i++) { /* in any order: dimensions may be transposed */
        if (strides[i] % (m->interleave == INTERLEAVE_32B ? 32 : 16) || strides[i] >= UINT64_C(1) << 40 ||
            strides[i] < dims[0] * m->element_bytes) {
            return 0;
        }
    }
    return m->address && m->address % 16 == 0 && (m->interleave || inner % 16 == 0) &&
           (!m->swizzle || m->interleave || inner <= swizzled_bytes[m->swizzle]);
}

DRIVER_EXPORT int cuTensorMapEncodeTiled(void *map, int type, unsigned int rank, void *address, const uint64_t *dims,
                                         const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                         int interleave, int swizzle, int l2, int fill)
{
    if (!map || (uintptr_t)map % 64 || type < 0 || (size_t)type >= sizeof(bytes_of) || !rank ||
        rank > HOSTCUDA_TENSOR_RANK_MAX || !dims || (rank > 1 && !strides) || !box || !steps || interleave < 0 ||
        interleave > INTERLEAVE_32B || swizzle < 0 || swizzle > SWIZZLE_128B || l2 < 0 || l2 > L2_LAST || fill < 0 ||
        fill > 1) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct hostcuda_tensor_map made = {.magic = HOSTCUDA_TENSOR_MAGIC,
                                       .type = (uint8_t)type,
                                       .element_bytes = bytes_of[type],
                                       .rank = (uint8_t)rank,
                                       .swizzle = (uint8_t)swizzle,
                                       .address = (uintptr_t)address,
                                       .interleave = (uint8_t)interleave,
                                       .fill_nan = (uint8_t)fill};
    if (!is_right(&made, dims, strides, box, steps)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < rank; i++) {
        made.dims[i] = (uint32_t)dims[i]; /* 2^32 is 0 */
        made.box[i] = (uint16_t)box[i];
        made.steps[i] = (uint8_t)steps[i];
        if (i + 1 < rank) {
            made.strides[i] = strides[i];
        }
    }
    memcpy(map, &made, sizeof(made));
    return CUDA_SUCCESS;
}
