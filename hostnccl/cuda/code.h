/*
 * code.h: device code that runs on the processor. hostcuda cannot read the code of a GPU; a library that can run it
 * (tests/kernels_emu makes one of the project's own kernels) is named by HOSTCUDA_CODE, and launches of kernels that it
 * knows run as work of their streams, like copies and twins: streams, events, captures and graphs are hostcuda's.
 *
 * The library exports hostcuda_code_table(). C and C++.
 */
#ifndef ROLL_HOSTNCCL_CUDA_CODE_H
#define ROLL_HOSTNCCL_CUDA_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HOSTCUDA_CODE_VERSION = 3 };

/* A kernel, as its code says; alive as long as the library. */
struct hostcuda_code_entry {
    const char *name;
    size_t count;        /* of parameters */
    const size_t *bytes; /* of each */
    unsigned int threads_max;
    size_t shared_bytes; /* static ones */
};

struct hostcuda_code_launch {
    const struct hostcuda_code_entry *entry;
    unsigned int grid[3], threads[3]; /* x, y, z */
    size_t shared_bytes;              /* dynamic ones */
    void **parameters;                /* one pointer each, to copies made at the launch */
    bool is_overlapped; /* may begin before the kernel in front of it has ended, and waits for that by itself */
    unsigned int
        cluster; /* neighbouring blocks (in x) that run at once and reach each other's shared memory; 0: none */
};

struct hostcuda_code {
    unsigned int version; /* HOSTCUDA_CODE_VERSION */
    /* The kernel of that name; NULL: no code. Any thread; must not call CUDA. */
    const struct hostcuda_code_entry *(*find)(const char *name);
    /* Runs a whole grid and returns when it is done: 0, or a cudaError_t that becomes the fault of the device. On the
     * thread of its stream; several at once. */
    int (*run)(const struct hostcuda_code_launch *launch);
    /* Memory that kernels may touch has come or gone. Any thread; must not call CUDA. */
    void (*memory)(const void *start, size_t bytes, bool is_there);
};

/* The library's one function. */
const struct hostcuda_code *hostcuda_code_table(void);

/* What cuTensorMapEncodeTiled writes into the 128 bytes of a CUtensorMap here. */
enum { HOSTCUDA_TENSOR_MAGIC = 0x70616d74, HOSTCUDA_TENSOR_RANK_MAX = 5 };

struct hostcuda_tensor_map {
    uint32_t magic;
    uint8_t type, element_bytes, rank, swizzle; /* the vendor's numbers of type and swizzle */
    uint64_t address;
    uint64_t strides[HOSTCUDA_TENSOR_RANK_MAX - 1]; /* bytes, of all dimensions but the first */
    uint32_t dims[HOSTCUDA_TENSOR_RANK_MAX];
    uint16_t box[HOSTCUDA_TENSOR_RANK_MAX];
    uint8_t interleave, fill_nan;
    uint8_t steps[HOSTCUDA_TENSOR_RANK_MAX];
    uint8_t rest[39];
};

#ifdef __cplusplus
static_assert(sizeof(struct hostcuda_tensor_map) == 128, "a CUtensorMap has 128 bytes");
}
#else
_Static_assert(sizeof(struct hostcuda_tensor_map) == 128, "a CUtensorMap has 128 bytes");
#endif

#endif
