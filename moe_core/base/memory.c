/*
 * memory.c: where a device's memory comes from, and what is held of it.
 *
 * There are two kinds. What stays (moe_device_alloc: weights, tables, what has the same size in every step) comes from
 * the allocator at once, zeroed. What lives for a part of a step (rows on their way) comes from a pool that all layers
 * of the device share: it has the size of what was needed at one time, not of the worst that each layer could meet. The
 * driver's own pools (cudaMallocAsync) were rejected for this: the host back end has none, and a framework that serves
 * us from its allocator would have none of our memory in it.
 *
 * The pool grows where no free piece is large enough; segments that are free as a whole, and too small by then, go back
 * first, so that it never has more than it holds and its gaps. Once nothing is in use, several segments become one of
 * the size of the high-water mark: pieces of any size then find room in it, and a training job is there after its first
 * step. Only growing and going back wait for the stream, and only with the back end's own memory.
 */
#include "moe_core/base/memory.h"

#include "moe_core/base/device.h"
#include "moe_core/base/fail.h"
#include "moe_core/base/pool.h"

#include <stdlib.h>
#include <string.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

enum {
    BUCKETS = 256,
    SEGMENT = 64 << 10, /* segments are multiples of this */
    SPARE = 16,         /* a segment has a sixteenth more than was asked for: the next step may need slightly more */
    GUARD = POOL_ALIGN, /* bytes behind a piece that nobody may write, with MOE_POISON */
    GUARD_BYTE = 0x5a,
    POISON_BYTE = 0xff /* a NaN in every type of rows */
};

/* Memory of moe_device_alloc. */
struct fixed {
    struct fixed *next;
    void *at;
    size_t bytes;
};

struct moe_memory {
    struct moe_allocator allocator; /* alloc is NULL: the back end's */
    struct fixed *fixed[BUCKETS];
    struct pool pool;
    struct moe_memory_figures figures;
    size_t mark;                 /* the most bytes in use since the pool last became one segment */
    bool one, poison;            /* one: the pool was made one segment before */
    int64_t *words, *host_words; /* of moe_memory_words */
};

/* the allocator */

bool moe_memory_capturing(const moe_device_t *device)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(device->stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

static void *obtain(moe_device_t *device, size_t bytes)
{
    struct moe_memory *m = device->memory;
    void *memory = m->allocator.alloc != NULL ? m->allocator.alloc(m->allocator.arg, bytes, device->stream)
                                              : device->backend->alloc(device, bytes);
    m->figures.allocations += memory != NULL;
    return memory;
}

static void give_back(moe_device_t *device, void *memory, size_t bytes)
{
    struct moe_memory *m = device->memory;
    if (m->allocator.alloc != NULL) {
        m->allocator.release(m->allocator.arg, memory, bytes, device->stream);
    } else {
        device->backend->release(device, memory);
    }
}

static void note_peaks(struct moe_memory *m)
{
    struct moe_memory_figures *f = &m->figures;
    f->in_use = m->pool.in_use;
    f->reserved = m->pool.reserved;
    m->mark = f->in_use > m->mark ? f->in_use : m->mark;
    f->most_in_use = f->in_use > f->most_in_use ? f->in_use : f->most_in_use;
    f->most_reserved = f->reserved > f->most_reserved ? f->reserved : f->most_reserved;
    f->most = f->fixed + f->reserved > f->most ? f->fixed + f->reserved : f->most;
}

/*
 * Gives back the segments of which nothing is in use, and returns their bytes. The back end's memory must not go while
 * work uses it; an allocator that was set orders that by the stream.
 */
static size_t shrink(moe_device_t *device)
{
    struct moe_memory *m = device->memory;
    size_t bytes = 0;
    for (struct segment *s; (s = pool_remove_free(&m->pool)) != NULL; pool_forget(s)) {
        if (bytes == 0 && m->allocator.alloc == NULL) {
            cudaStreamSynchronize(device->stream);
        }
        bytes += s->bytes;
        give_back(device, s->memory, s->bytes);
    }
    note_peaks(m);
    return bytes;
}

/* life */

int moe_memory_words(moe_device_t *device, int64_t **words, int64_t **host)
{
    const size_t bytes = MOE_MEMORY_WORDS * sizeof(int64_t);
    struct moe_memory *m = device->memory;
    if (m->host_words == NULL && cudaMallocHost((void **)&m->host_words, bytes) != cudaSuccess) {
        m->host_words = NULL;
    }
    m->words = m->words == NULL ? device->backend->alloc(device, bytes) : m->words;
    *words = m->words;
    *host = m->host_words;
    return m->words != NULL && m->host_words != NULL ? 0 : FAIL(MOE_E_NOMEM, "%zu bytes for agreements", bytes);
}

int moe_memory_new(moe_device_t *device)
{
    int64_t *words = NULL, *host = NULL;
    device->memory = calloc(1, sizeof(*device->memory));
    if (device->memory == NULL) {
        return FAIL(MOE_E_NOMEM, "the books of a device's memory");
    }
    const char *poison = getenv("MOE_POISON");
    device->memory->poison = poison != NULL && strcmp(poison, "1") == 0;
    int rc = moe_memory_capturing(device) ? 0 : moe_memory_words(device, &words, &host);
    if (rc != 0) {
        moe_memory_destroy(device);
    }
    return rc;
}

void moe_memory_destroy(moe_device_t *device)
{
    struct moe_memory *m = device->memory;
    for (struct segment *s; (s = pool_remove_any(&m->pool)) != NULL; pool_forget(s)) {
        give_back(device, s->memory, s->bytes);
    }
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct fixed *f = m->fixed[i], *next; f != NULL; f = next) {
            next = f->next;
            free(f); /* the caller's memory, as before: who has not freed it has lost it */
        }
    }
    if (m->words != NULL) {
        device->backend->release(device, m->words);
    }
    cudaFreeHost(m->host_words);
    free(m);
    device->memory = NULL;
}

int moe_device_set_allocator(moe_device_t *device, const struct moe_allocator *allocator)
{
    struct moe_memory *m = device->memory;
    if (allocator != NULL && (allocator->alloc == NULL || allocator->release == NULL)) {
        return FAIL(MOE_E_ARG, "an allocator without alloc or release");
    }
    shrink(device);
    if (m->figures.fixed > 0 || m->pool.reserved > 0) {
        return FAIL(MOE_E_STATE, "another allocator while the device holds %zu bytes of the present one",
                    m->figures.fixed + m->pool.reserved);
    }
    m->allocator = allocator != NULL ? *allocator : (struct moe_allocator){0};
    return 0;
}

int moe_memory_like(moe_device_t *device, const moe_device_t *model)
{
    const struct moe_allocator *allocator = &model->memory->allocator;
    return allocator->alloc != NULL ? moe_device_set_allocator(device, allocator) : 0;
}

void moe_device_memory(const moe_device_t *device, struct moe_memory_figures *out)
{
    *out = device->memory->figures;
}

void moe_device_memory_restart(moe_device_t *device)
{
    struct moe_memory_figures *f = &device->memory->figures;
    f->most = f->most_in_use = f->most_reserved = 0;
    note_peaks(device->memory);
}

int moe_device_trim(moe_device_t *device, size_t *bytes)
{
    struct moe_memory *m = device->memory;
    *bytes = 0;
    if (moe_memory_capturing(device)) {
        return FAIL(MOE_E_STATE, "the pool cannot be trimmed while the stream is captured");
    }
    *bytes = shrink(device);
    m->mark = m->pool.in_use;
    m->one = false;
    return 0;
}

/* what stays */

static struct fixed **fixed_link(struct moe_memory *m, const void *at)
{
    struct fixed **link = &m->fixed[(uintptr_t)at / POOL_ALIGN % BUCKETS];
    while (*link != NULL && (*link)->at != at) {
        link = &(*link)->next;
    }
    return link;
}

/* Memory of an allocator that was set holds anything; other streams may use it when moe_device_alloc has returned. */
static int clear(moe_device_t *device, void *memory, size_t bytes)
{
    if (device->memory->allocator.alloc == NULL) {
        return 0;
    }
    int rc = device->backend->ops()->zero(device, memory, bytes);
    return rc == 0 && cudaStreamSynchronize(device->stream) != cudaSuccess ? MOE_E_DEVICE : rc;
}

int moe_device_alloc(moe_device_t *device, size_t bytes, void **out)
{
    struct moe_memory *m = device->memory;
    size_t whole = bytes > 0 ? bytes : 1;
    struct fixed *f = calloc(1, sizeof(*f));
    *out = NULL;
    if (f == NULL) {
        return FAIL(MOE_E_NOMEM, "the books of a device's memory");
    }
    if (moe_memory_capturing(device)) { /* a runtime would refuse it, and end the capture */
        free(f);
        return FAIL(MOE_E_STATE, "%zu bytes of device memory while the stream is captured: make it before", bytes);
    }
    void *memory = obtain(device, whole);
    if (memory == NULL && shrink(device) > 0) {
        memory = obtain(device, whole);
    }
    int rc = memory != NULL ? clear(device, memory, whole) : 0;
    if (memory == NULL || rc != 0) {
        if (memory != NULL) {
            give_back(device, memory, whole);
        }
        free(f);
        return rc ? FAIL(rc, "clearing %zu bytes", whole)
                  : FAIL(MOE_E_NOMEM, "%zu bytes of %s device memory", bytes, device->backend->name);
    }
    struct fixed **first = &m->fixed[(uintptr_t)memory / POOL_ALIGN % BUCKETS];
    *f = (struct fixed){.next = *first, .at = memory, .bytes = whole};
    *first = f;
    m->figures.fixed += whole;
    note_peaks(m);
    *out = memory;
    return 0;
}

void moe_device_free(moe_device_t *device, void *pointer_to_pointer)
{
    void *memory = NULL;
    memcpy(&memory, pointer_to_pointer, sizeof(memory));
    if (memory == NULL) {
        return;
    }
    struct fixed **link = fixed_link(device->memory, memory), *f = *link;
    cudaStreamSynchronize(device->stream);
    if (f != NULL) {
        *link = f->next;
        device->memory->figures.fixed -= f->bytes;
        give_back(device, memory, f->bytes);
        free(f);
    } else if (device->memory->allocator.alloc == NULL) {
        device->backend->release(device, memory); /* of another device of the back end */
    }
    memory = NULL;
    memcpy(pointer_to_pointer, &memory, sizeof(memory));
}

int moe_memory_for_ever(moe_device_t *device, size_t bytes, void **out)
{
    *out = NULL;
    if (moe_memory_capturing(device)) {
        return FAIL(MOE_E_STATE, "%zu bytes of device memory while the stream is captured: make it before", bytes);
    }
    *out = device->backend->alloc(device, bytes > 0 ? bytes : 1);
    return *out != NULL ? 0 : FAIL(MOE_E_NOMEM, "%zu bytes of %s device memory", bytes, device->backend->name);
}

/* the pool */

static size_t segment_bytes(size_t bytes)
{
    return (bytes + bytes / SPARE + POOL_ALIGN + SEGMENT - 1) / SEGMENT * SEGMENT;
}

static bool add_segment(moe_device_t *device, size_t bytes)
{
    struct moe_memory *m = device->memory;
    void *memory = obtain(device, bytes);
    if (memory != NULL && !pool_add(&m->pool, memory, bytes)) {
        give_back(device, memory, bytes);
        memory = NULL;
    }
    note_peaks(m);
    return memory != NULL;
}

static int grow(moe_device_t *device, size_t bytes)
{
    struct moe_memory *m = device->memory;
    size_t whole = pool_rounded(bytes);
    shrink(device);
    if (whole > SIZE_MAX / 2 ||
        (!add_segment(device, segment_bytes(whole)) && !add_segment(device, whole + POOL_ALIGN))) {
        return FAIL(MOE_E_NOMEM, "%zu bytes of %s device memory beside the %zu that the pool holds", bytes,
                    device->backend->name, m->pool.reserved);
    }
    return 0;
}

/*
 * Makes one segment of several while nothing is in use. A pool that was one and had to grow has gaps, so it becomes as
 * large as all of it was.
 */
static void make_one(moe_device_t *device)
{
    struct moe_memory *m = device->memory;
    struct pool *pool = &m->pool;
    if (pool->in_use > 0 || pool->segments == NULL || pool->segments->next == NULL) {
        return;
    }
    size_t bytes = segment_bytes(m->mark);
    bytes = m->one && pool->reserved > bytes ? pool->reserved : bytes;
    shrink(device);
    m->one = add_segment(device, bytes);
    m->mark = 0;
}

struct fill {
    void *at;
    size_t bytes;
    int byte;
};

static int fill_now(const void *args)
{
    const struct fill *f = args;
    memset(f->at, f->byte, f->bytes);
    return 0;
}

static int guard_is_whole(const void *args)
{
    const struct fill *f = args;
    const unsigned char *at = f->at;
    for (size_t i = 0; i < f->bytes; i++) {
        if (at[i] != f->byte) {
            return MOE_E_CAPACITY;
        }
    }
    return 0;
}

/* Fills memory in the stream; the host back end's is not the runtime's where an allocator was set. */
static int fill(moe_device_t *device, void *at, size_t bytes, int byte)
{
    struct fill f = {at, bytes, byte};
    if (device->backend == moe_host_backend()) {
        return moe_device_call(device, fill_now, &f, sizeof(f));
    }
    return cudaMemsetAsync(at, byte, bytes, device->stream) == cudaSuccess ? 0 : FAIL(MOE_E_DEVICE, "cudaMemsetAsync");
}

int moe_pool_take(moe_device_t *device, size_t bytes, void *pointer_to_pointer)
{
    struct moe_memory *m = device->memory;
    size_t guarded = m->poison && bytes < SIZE_MAX - GUARD ? bytes + GUARD : bytes;
    bool broken = false;
    if (moe_memory_capturing(device)) { /* a graph would go on to use what is somebody else's by then */
        return FAIL(MOE_E_STATE,
                    "%zu bytes of the pool while the stream is captured: captured work needs sizes that "
                    "are known beforehand, such as a row budget",
                    bytes);
    }
    moe_pool_give(device, pointer_to_pointer);
    make_one(device);
    struct piece *p = pool_take(&m->pool, guarded, &broken);
    int rc = p != NULL || broken ? 0 : grow(device, guarded);
    if (p == NULL && rc == 0 && !broken) {
        p = pool_take(&m->pool, guarded, &broken);
    }
    if (p == NULL) {
        return rc ? rc : FAIL(MOE_E_NOMEM, "the books of a device's memory");
    }
    p->asked = bytes;
    note_peaks(m);
    if (m->poison) {
        rc = fill(device, p->at, bytes, POISON_BYTE);
        rc = rc ? rc : fill(device, p->at + bytes, GUARD, GUARD_BYTE);
    }
    if (rc != 0) {
        pool_give(&m->pool, p);
        return rc;
    }
    void *at = p->at;
    memcpy(pointer_to_pointer, &at, sizeof(at));
    return 0;
}

void moe_pool_give(moe_device_t *device, void *pointer_to_pointer)
{
    struct moe_memory *m = device->memory;
    void *at = NULL;
    memcpy(&at, pointer_to_pointer, sizeof(at));
    struct piece *p = at != NULL ? pool_find(&m->pool, at) : NULL;
    if (p == NULL) {
        return;
    }
    if (m->poison) {
        struct fill guard = {p->at + p->asked, GUARD, GUARD_BYTE};
        if (device->backend == moe_host_backend()) {
            moe_device_call(device, guard_is_whole, &guard, sizeof(guard));
        }
        fill(device, p->at, p->asked, POISON_BYTE);
    }
    pool_give(&m->pool, p);
    note_peaks(m);
    at = NULL;
    memcpy(pointer_to_pointer, &at, sizeof(at));
}
