/*
 * no_memory.c: preloaded into moe_train: pinned host memory, which is the host back end's device memory, is refused to
 * the rank NO_MEMORY_RANK where it asks for exactly NO_MEMORY_BYTES bytes, or when it asks for the NO_MEMORY_NTH time,
 * from 0, before its first step.
 */
#include "moe_core/include/moe/reduce.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static long asked;
static bool begun; /* the first step */

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    const char *rank = getenv("RANK"), *sick = getenv("NO_MEMORY_RANK"), *size = getenv("NO_MEMORY_BYTES"),
               *nth = getenv("NO_MEMORY_NTH");
    bool this_one = (size != NULL && bytes == (size_t)strtoull(size, NULL, 10)) ||
                    (nth != NULL && !begun && asked++ == strtol(nth, NULL, 10));
    if (rank != NULL && sick != NULL && strcmp(rank, sick) == 0 && this_one) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t (*next)(void **, size_t) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "cudaMallocHost");
    return next(out, bytes);
}

void moe_step_report(const struct moe_step *step, uint8_t phase, uint64_t tokens)
{
    void (*next)(const struct moe_step *, uint8_t, uint64_t) = NULL;
    begun = true;
    *(void **)&next = dlsym(RTLD_NEXT, "moe_step_report");
    next(step, phase, tokens);
}
