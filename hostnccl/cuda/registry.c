/*
 * registry.c: the registry knows which handles are alive. A program may pass any value as a stream or an event; a value
 * that was never handed out, or was destroyed, gives cudaErrorInvalidResourceHandle instead of a crash, and an object
 * that one thread destroys while another uses it lives until that use ends. A magic number inside the object was
 * rejected: reading it from a freed object is the very fault it would look for.
 *
 * The tree is libc's (tsearch); readers share the lock.
 */
#include "hostnccl/cuda/hostcuda.h"

#include <search.h>

static struct {
    pthread_rwlock_t lock;
    void *root;
} registry[HOSTCUDA_HANDLE_KINDS] = {
    [HOSTCUDA_STREAM] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_EVENT] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_GRAPH] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_NODE] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_EXEC] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_USER_OBJECT] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_KERNEL] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_LIBRARY] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_POOL] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
    [HOSTCUDA_MEMORY] = {.lock = PTHREAD_RWLOCK_INITIALIZER},
};

static int compare(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    return (x > y) - (x < y);
}

cudaError_t hostcuda_handle_add(enum hostcuda_handle_kind kind, struct hostcuda_handle *handle)
{
    pthread_rwlock_wrlock(&registry[kind].lock);
    void *node = tsearch(handle, &registry[kind].root, compare);
    pthread_rwlock_unlock(&registry[kind].lock);
    return node ? cudaSuccess : cudaErrorMemoryAllocation;
}

struct hostcuda_handle *hostcuda_handle_get(enum hostcuda_handle_kind kind, const void *value)
{
    struct hostcuda_handle *handle = NULL;
    pthread_rwlock_rdlock(&registry[kind].lock);
    struct hostcuda_handle **node = tfind(value, &registry[kind].root, compare);
    if (node) {
        handle = *node;
        atomic_fetch_add_explicit(&handle->refs, 1, memory_order_relaxed);
    }
    pthread_rwlock_unlock(&registry[kind].lock);
    return handle;
}

struct hostcuda_handle *hostcuda_handle_remove(enum hostcuda_handle_kind kind, const void *value)
{
    struct hostcuda_handle *handle = NULL;
    pthread_rwlock_wrlock(&registry[kind].lock);
    struct hostcuda_handle **node = tfind(value, &registry[kind].root, compare);
    if (node) {
        handle = *node;
        tdelete(value, &registry[kind].root, compare);
    }
    pthread_rwlock_unlock(&registry[kind].lock);
    return handle;
}

void hostcuda_handle_put(struct hostcuda_handle *handle)
{
    /* acq_rel: the thread that frees the object sees what every other user of the object did. */
    if (handle && atomic_fetch_sub_explicit(&handle->refs, 1, memory_order_acq_rel) == 1) {
        handle->release(handle);
    }
}
