/*
 * pool.c: memory pools. Addresses cost nothing here (pages.c), so a pool keeps no memory back: it is a device, some
 * attributes, and the count of what was allocated from it. What is reserved is what is used.
 */
#include "hostnccl/cuda/memory.h"

#include <stdlib.h>
#include <string.h>

struct hostcuda_pool {
    struct hostcuda_handle handle;
    int device;
    size_t most_bytes; /* 0: as much as the device has */
    _Atomic uint64_t used, high, threshold;
    atomic_int reuse[3]; /* the three attributes about reuse, which change nothing */
};

static struct hostcuda_pool *defaults[HOSTCUDA_DEVICES_MAX]; /* guarded by lock, as current */
static struct hostcuda_pool *current[HOSTCUDA_DEVICES_MAX];  /* NULL: the default one */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void release(struct hostcuda_handle *handle)
{
    free(handle);
}

static cudaError_t make(struct hostcuda_pool **out, int device, size_t most_bytes)
{
    struct hostcuda_pool *pool = calloc(1, sizeof(*pool));
    if (!pool) {
        return cudaErrorMemoryAllocation;
    }
    pool->handle.release = release;
    atomic_store(&pool->handle.refs, 1);
    pool->device = device;
    pool->most_bytes = most_bytes;
    for (size_t i = 0; i < sizeof(pool->reuse) / sizeof(*pool->reuse); i++) {
        atomic_store(&pool->reuse[i], 1);
    }
    cudaError_t error = hostcuda_handle_add(HOSTCUDA_POOL, &pool->handle);
    if (error) {
        free(pool);
        return error;
    }
    *out = pool;
    return cudaSuccess;
}

/* The device's default pool, made when it is first asked for, or the one that the program has set. */
static cudaError_t pool_of(int device, bool is_default, struct hostcuda_pool **out)
{
    cudaError_t error = hostcuda_device_of(device) ? cudaSuccess : cudaErrorInvalidDevice;
    pthread_mutex_lock(&lock);
    if (!error && !defaults[device]) {
        error = make(&defaults[device], device, 0);
    }
    if (!error) {
        *out = !is_default && current[device] ? current[device] : defaults[device];
    }
    pthread_mutex_unlock(&lock);
    return error;
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    cudaError_t error = pool ? hostcuda_enter() : cudaErrorInvalidValue;
    return hostcuda_leave(error ? error : pool_of(device, true, (struct hostcuda_pool **)pool));
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    cudaError_t error = pool ? hostcuda_enter() : cudaErrorInvalidValue;
    return hostcuda_leave(error ? error : pool_of(device, false, (struct hostcuda_pool **)pool));
}

/* Finds a pool, with a reference to put back. */
static cudaError_t enter_with(cudaMemPool_t handle, struct hostcuda_pool **pool)
{
    cudaError_t error = hostcuda_enter();
    *pool = error ? NULL : (struct hostcuda_pool *)hostcuda_handle_get(HOSTCUDA_POOL, handle);
    return error ? error : *pool ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t leave(cudaError_t error, struct hostcuda_pool *pool)
{
    hostcuda_handle_put(pool ? &pool->handle : NULL);
    return hostcuda_leave(error);
}

HOSTCUDA_EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle)
{
    struct hostcuda_pool *pool;
    cudaError_t error = enter_with(handle, &pool);
    if (!error) {
        error = !hostcuda_device_of(device) ? cudaErrorInvalidDevice
                : pool->device != device    ? cudaErrorInvalidValue
                                            : cudaSuccess;
    }
    if (!error) {
        pthread_mutex_lock(&lock);
        current[device] = pool;
        pthread_mutex_unlock(&lock);
    }
    return leave(error, pool);
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    cudaError_t error = pool && properties ? hostcuda_enter() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice) {
        return hostcuda_leave(hostcuda_unsupported("cudaMemPoolCreate", "there are only pools of device memory here"));
    }
    if (properties->handleTypes != cudaMemHandleTypeNone) {
        return hostcuda_leave(
            hostcuda_unsupported("cudaMemPoolCreate", "other processes cannot use memory of a pool here"));
    }
    if (!hostcuda_device_of(properties->location.id)) {
        return hostcuda_leave(cudaErrorInvalidDevice);
    }
    size_t most = 0;
    most = properties->maxSize;
    return hostcuda_leave(make((struct hostcuda_pool **)pool, properties->location.id, most));
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle)
{
    cudaError_t error = handle ? hostcuda_enter() : cudaErrorInvalidValue;
    if (error) {
        return hostcuda_leave(error);
    }
    pthread_mutex_lock(&lock);
    struct hostcuda_pool *pool = NULL;
    for (int d = 0; d < HOSTCUDA_DEVICES_MAX && !error; d++) {
        error = (struct hostcuda_pool *)handle == defaults[d] ? cudaErrorInvalidValue : cudaSuccess;
    }
    if (!error) {
        pool = (struct hostcuda_pool *)hostcuda_handle_remove(HOSTCUDA_POOL, handle);
        error = pool ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (pool && current[pool->device] == pool) {
        current[pool->device] = NULL; /* as documented: the default pool takes its place */
    }
    pthread_mutex_unlock(&lock);
    return leave(error, pool);
}

static _Atomic uint64_t *number_of(struct hostcuda_pool *pool, enum cudaMemPoolAttr attribute)
{
    switch ((int)attribute) {
    case cudaMemPoolAttrReleaseThreshold:
        return &pool->threshold;
    case cudaMemPoolAttrReservedMemCurrent:
    case cudaMemPoolAttrUsedMemCurrent:
        return &pool->used;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
        return &pool->high;
    default:
        return NULL;
    }
}

static bool is_reuse(enum cudaMemPoolAttr attribute)
{
    return attribute >= cudaMemPoolReuseFollowEventDependencies &&
           attribute <= cudaMemPoolReuseAllowInternalDependencies;
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value)
{
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = value ? enter_with(handle, &pool) : cudaErrorInvalidValue;
    _Atomic uint64_t *number = error ? NULL : number_of(pool, attribute);
    if (number) {
        uint64_t now = atomic_load(number);
        memcpy(value, &now, sizeof(now));
    } else if (!error && is_reuse(attribute)) {
        int now = atomic_load(&pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies]);
        memcpy(value, &now, sizeof(now));
    } else if (!error) {
        error = cudaErrorInvalidValue;
    }
    return leave(error, pool);
}

/* A high-water mark can only be set to 0, and is then what is in use. */
HOSTCUDA_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, enum cudaMemPoolAttr attribute, void *value)
{
    struct hostcuda_pool *pool = NULL;
    uint64_t number = 0;
    int flag = 0;
    cudaError_t error = value ? enter_with(handle, &pool) : cudaErrorInvalidValue;
    if (error) {
        return leave(error, pool);
    }
    if (is_reuse(attribute)) {
        memcpy(&flag, value, sizeof(flag));
        atomic_store(&pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies], flag != 0);
        return leave(cudaSuccess, pool);
    }
    memcpy(&number, value, sizeof(number));
    switch ((int)attribute) {
    case cudaMemPoolAttrReleaseThreshold:
        atomic_store(&pool->threshold, number);
        break;
    case cudaMemPoolAttrReservedMemHigh:
    case cudaMemPoolAttrUsedMemHigh:
        error = number ? cudaErrorInvalidValue : cudaSuccess;
        if (!error) {
            atomic_store(&pool->high, atomic_load(&pool->used));
        }
        break;
    default:
        error = cudaErrorInvalidValue;
    }
    return leave(error, pool);
}

/* Nothing is kept back, so there is nothing to give up. */
HOSTCUDA_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep_bytes)
{
    struct hostcuda_pool *pool;
    (void)keep_bytes;
    cudaError_t error = enter_with(handle, &pool);
    return leave(error, pool);
}

/* Every device reaches all memory here, as it does after any call of this function that gives access. */
HOSTCUDA_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const struct cudaMemAccessDesc *list,
                                                 size_t count)
{
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = list || !count ? enter_with(handle, &pool) : cudaErrorInvalidValue;
    for (size_t i = 0; i < count && !error; i++) {
        if (list[i].location.type != cudaMemLocationTypeDevice) {
            error = cudaErrorInvalidValue;
        } else if (!hostcuda_device_of(list[i].location.id)) {
            error = cudaErrorInvalidDevice;
        }
    }
    return leave(error, pool);
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t handle,
                                                 struct cudaMemLocation *location)
{
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = flags && location ? enter_with(handle, &pool) : cudaErrorInvalidValue;
    if (!error && (location->type != cudaMemLocationTypeDevice || !hostcuda_device_of(location->id))) {
        error = cudaErrorInvalidValue;
    }
    if (!error) {
        *flags = cudaMemAccessFlagsProtReadWrite;
    }
    return leave(error, pool);
}

cudaError_t hostcuda_pool_take(cudaMemPool_t handle, int device, size_t bytes, struct hostcuda_pool **out)
{
    struct hostcuda_pool *pool = NULL;
    cudaError_t error = handle ? cudaSuccess : pool_of(device, false, &pool);
    if (!error) {
        pool = (struct hostcuda_pool *)hostcuda_handle_get(HOSTCUDA_POOL, handle ? (void *)handle : (void *)pool);
        error = pool ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (error) {
        return error;
    }
    uint64_t used = atomic_fetch_add(&pool->used, bytes) + bytes;
    if (pool->most_bytes && used > pool->most_bytes) {
        atomic_fetch_sub(&pool->used, bytes);
        hostcuda_handle_put(&pool->handle);
        return cudaErrorMemoryAllocation;
    }
    uint64_t high = atomic_load(&pool->high);
    while (used > high && !atomic_compare_exchange_weak(&pool->high, &high, used)) {
    }
    *out = pool;
    return cudaSuccess;
}

int hostcuda_pool_device(const struct hostcuda_pool *pool)
{
    return pool->device;
}

void hostcuda_pool_give(struct hostcuda_pool *pool, size_t bytes)
{
    if (pool) {
        atomic_fetch_sub(&pool->used, bytes);
        hostcuda_handle_put(&pool->handle);
    }
}

static const char NOT_SHARED[] = "other processes cannot use memory of a pool here; cudaIpcGetMemHandle is there for "
                                 "memory of cudaMalloc";

HOSTCUDA_EXPORT cudaError_t cudaMemPoolExportToShareableHandle(void *handle, cudaMemPool_t pool,
                                                               enum cudaMemAllocationHandleType type,
                                                               unsigned int flags)
{
    (void)handle, (void)pool, (void)type, (void)flags;
    return hostcuda_leave(hostcuda_unsupported("cudaMemPoolExportToShareableHandle", NOT_SHARED));
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t *pool, void *handle,
                                                                 enum cudaMemAllocationHandleType type,
                                                                 unsigned int flags)
{
    (void)handle, (void)pool, (void)type, (void)flags;
    return hostcuda_leave(hostcuda_unsupported("cudaMemPoolImportFromShareableHandle", NOT_SHARED));
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolExportPointer(struct cudaMemPoolPtrExportData *data, void *pointer)
{
    (void)data, (void)pointer;
    return hostcuda_leave(hostcuda_unsupported("cudaMemPoolExportPointer", NOT_SHARED));
}

HOSTCUDA_EXPORT cudaError_t cudaMemPoolImportPointer(void **pointer, cudaMemPool_t pool,
                                                     struct cudaMemPoolPtrExportData *data)
{
    (void)data, (void)pointer, (void)pool;
    return hostcuda_leave(hostcuda_unsupported("cudaMemPoolImportPointer", NOT_SHARED));
}
