/*
 * no_memory.c: preloaded into moe_train: pinned host memory, which is the host back end's device memory, is refused to
 * the rank NO_MEMORY_RANK where it asks for exactly NO_MEMORY_BYTES bytes.
 */
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    const char *rank = getenv("RANK"), *sick = getenv("NO_MEMORY_RANK"), *size = getenv("NO_MEMORY_BYTES");
    if (rank != NULL && sick != NULL && size != NULL && strcmp(rank, sick) == 0 &&
        bytes == (size_t)strtoull(size, NULL, 10)) {
        return cudaErrorMemoryAllocation;
    }
    cudaError_t (*next)(void **, size_t) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "cudaMallocHost");
    return next(out, bytes);
}
