/*
 * heap.c: the memory that each process has: what it gets from malloc and its like is noted under its name, so that it
 * goes when the process is killed, and is missed when a process that ends in good order leaves some behind.
 *
 * A header before each block was rejected: blocks that libc itself makes (getline, open_memstream) have none, and come
 * to the same free.
 */
#include "tests/world/world.h"

#include <jansson.h>
#include <limits.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t most);
int __wrap_malloc_trim(size_t pad);
struct mallinfo2 __wrap_mallinfo2(void);

struct block {
    void *at; /* NULL = free */
    size_t bytes;
    struct process *owner;
};
static struct block *blocks;
static size_t room, used;

static size_t place_of(const void *at)
{
    return (size_t)(((uintptr_t)at >> 4) * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
}

static void put(struct block block)
{
    size_t i = place_of(block.at);
    while (blocks[i].at) {
        i = (i + 1) & (room - 1);
    }
    blocks[i] = block;
    used++;
}

static void grow(void)
{
    struct block *old = blocks;
    size_t before = room;
    room = room ? room * 2 : 1u << 14;
    blocks = __real_calloc(room, sizeof(*blocks));
    if (!blocks) {
        abort();
    }
    used = 0;
    for (size_t i = 0; i < before; i++) {
        if (old[i].at) {
            put(old[i]);
        }
    }
    __real_free(old);
}

static void *note(void *at, size_t bytes)
{
    struct process *p = process_now;
    if (p && at) {
        if (used * 2 >= room) {
            grow();
        }
        put((struct block){at, bytes, p});
        p->heap_blocks++;
        p->heap_bytes += bytes;
        p->heap_most = p->heap_bytes > p->heap_most ? p->heap_bytes : p->heap_most;
    }
    return at;
}

/* Takes the block out of the table, and moves those that stood behind it because of it. */
static void drop(void *at)
{
    size_t i = room ? place_of(at) : 0;
    while (room && blocks[i].at && blocks[i].at != at) {
        i = (i + 1) & (room - 1);
    }
    if (!room || !blocks[i].at) {
        return;
    }
    blocks[i].owner->heap_bytes -= blocks[i].bytes;
    blocks[i].owner->heap_blocks--;
    blocks[i].at = NULL;
    used--;
    for (size_t k = (i + 1) & (room - 1); blocks[k].at; k = (k + 1) & (room - 1)) {
        struct block moved = blocks[k];
        blocks[k].at = NULL;
        used--;
        put(moved);
    }
}

void *__wrap_malloc(size_t bytes)
{
    return note(__real_malloc(bytes), bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return note(__real_calloc(n, bytes), n * bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return note(__real_aligned_alloc(alignment, bytes), bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    if (old) {
        drop(old);
    }
    return note(__real_realloc(old, bytes), bytes);
}

void __wrap_free(void *block)
{
    if (block) {
        drop(block);
    }
    __real_free(block);
}

char *__wrap_strdup(const char *text)
{
    return __wrap_strndup(text, strlen(text));
}

char *__wrap_strndup(const char *text, size_t most)
{
    size_t n = strnlen(text, most);
    char *copy = __wrap_malloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

int __wrap_malloc_trim(size_t pad)
{
    (void)pad;
    return 0; /* the memory is that of all processes */
}

struct mallinfo2 __wrap_mallinfo2(void)
{
    return (struct mallinfo2){.fordblks = 0}; /* likewise: nothing of it is to be given back */
}

void heap_free(struct process *p)
{
    for (size_t i = 0; i < room && p->heap_blocks > 0; i++) {
        while (blocks[i].at && blocks[i].owner == p) { /* another one may take the place of the one that goes */
            void *at = blocks[i].at;
            drop(at);
            __real_free(at);
        }
    }
}

size_t heap_left(const struct process *p, size_t *count)
{
    *count = p->heap_blocks;
    return p->heap_bytes;
}

void world_init(void)
{
    /* All that a world takes it gives back, and the next one takes it again: not from the kernel, page by page. But
     * for the large rows of which most stays zero and is never touched (nodes.c). */
    mallopt(M_MMAP_THRESHOLD, 512 << 10);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    json_object_seed(1);
    json_set_alloc_funcs(__wrap_malloc, __wrap_free); /* it is a library of its own, whose calls are not ours */
}
