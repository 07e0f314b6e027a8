/*
 * pool.c: segments of memory, cut into pieces: best fit, and free neighbours are joined.
 *
 * Rows come in other numbers in every step, so lists of pieces of equal size, which most pools keep, would find a fit
 * rarely and keep memory for every size that was ever asked for. Here a request takes the smallest free piece that is
 * large enough, and the rest of that piece stays free. All work on the memory is on one stream, in the order of the
 * calls, so a piece that was given back can be handed out again at once, and no event belongs to it.
 */
#include "moe_core/base/pool.h"

#include <stdint.h>
#include <stdlib.h>

size_t pool_rounded(size_t bytes)
{
    size_t least = bytes > 0 ? bytes : 1;
    return least > SIZE_MAX - POOL_ALIGN ? SIZE_MAX / POOL_ALIGN * POOL_ALIGN
                                         : (least + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
}

static size_t bucket_of(const void *at)
{
    return (uintptr_t)at / POOL_ALIGN % POOL_BUCKETS;
}

static struct piece *best_fit(const struct pool *pool, size_t bytes)
{
    struct piece *best = NULL;
    for (const struct segment *s = pool->segments; s != NULL; s = s->next) {
        for (struct piece *p = s->first; p != NULL; p = p->behind) {
            if (!p->used && p->bytes >= bytes && (best == NULL || p->bytes < best->bytes)) {
                best = p;
            }
        }
    }
    return best;
}

/* Cuts a free piece after `bytes`. False: no memory for the second half. */
static bool split(struct piece *p, size_t bytes)
{
    if (p->bytes == bytes) {
        return true;
    }
    struct piece *rest = calloc(1, sizeof(*rest));
    if (rest == NULL) {
        return false;
    }
    *rest = (struct piece){
        .segment = p->segment, .before = p, .behind = p->behind, .at = p->at + bytes, .bytes = p->bytes - bytes};
    if (p->behind != NULL) {
        p->behind->before = rest;
    }
    p->behind = rest;
    p->bytes = bytes;
    return true;
}

struct piece *pool_take(struct pool *pool, size_t bytes, bool *broken)
{
    size_t whole = pool_rounded(bytes);
    struct piece *p = best_fit(pool, whole);
    *broken = p != NULL && !split(p, whole);
    if (p == NULL || *broken) {
        return NULL;
    }
    p->used = true;
    p->asked = bytes;
    p->chain = pool->used[bucket_of(p->at)];
    pool->used[bucket_of(p->at)] = p;
    pool->in_use += p->bytes;
    return p;
}

struct piece *pool_find(const struct pool *pool, const void *at)
{
    struct piece *p = pool->used[bucket_of(at)];
    while (p != NULL && p->at != at) {
        p = p->chain;
    }
    return p;
}

/* Makes one piece of two neighbours. */
static void join(struct piece *p, struct piece *behind)
{
    p->bytes += behind->bytes;
    p->behind = behind->behind;
    if (p->behind != NULL) {
        p->behind->before = p;
    }
    free(behind);
}

void pool_give(struct pool *pool, struct piece *p)
{
    struct piece **link = &pool->used[bucket_of(p->at)];
    while (*link != p) {
        link = &(*link)->chain;
    }
    *link = p->chain;
    p->used = false;
    pool->in_use -= p->bytes;
    if (p->behind != NULL && !p->behind->used) {
        join(p, p->behind);
    }
    if (p->before != NULL && !p->before->used) {
        join(p->before, p);
    }
}

bool pool_add(struct pool *pool, void *memory, size_t bytes)
{
    struct segment *s = calloc(1, sizeof(*s));
    struct piece *p = calloc(1, sizeof(*p));
    if (s == NULL || p == NULL) {
        free(s);
        free(p);
        return false;
    }
    size_t skipped = (POOL_ALIGN - (uintptr_t)memory % POOL_ALIGN) % POOL_ALIGN;
    *p = (struct piece){
        .segment = s, .at = (char *)memory + skipped, .bytes = (bytes - skipped) / POOL_ALIGN * POOL_ALIGN};
    *s = (struct segment){.next = pool->segments, .memory = memory, .bytes = bytes, .first = p};
    pool->segments = s;
    pool->reserved += bytes;
    return true;
}

static struct segment *remove_at(struct pool *pool, struct segment **link)
{
    struct segment *s = *link;
    if (s != NULL) {
        *link = s->next;
        pool->reserved -= s->bytes;
    }
    return s;
}

struct segment *pool_remove_free(struct pool *pool)
{
    struct segment **link = &pool->segments;
    while (*link != NULL && ((*link)->first->used || (*link)->first->behind != NULL)) {
        link = &(*link)->next;
    }
    return remove_at(pool, link);
}

struct segment *pool_remove_any(struct pool *pool)
{
    return remove_at(pool, &pool->segments);
}

void pool_forget(struct segment *s)
{
    for (struct piece *p = s->first, *behind; p != NULL; p = behind) {
        behind = p->behind;
        free(p);
    }
    free(s);
}
