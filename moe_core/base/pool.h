/*
 * pool.h: memory in large pieces from an allocator, handed out in smaller ones: the book-keeping, without a device.
 */
#ifndef MOE_CORE_BASE_POOL_H
#define MOE_CORE_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(hidden)

enum { POOL_ALIGN = 256, POOL_BUCKETS = 256 };

struct segment;

/* A part of a segment, in use or free. The parts of a segment lie one behind the other and fill it. */
struct piece {
    struct segment *segment;
    struct piece *before, *behind; /* neighbours in the segment */
    struct piece *chain;           /* the next one in use whose address falls into the same bucket */
    char *at;
    size_t bytes;
    size_t asked; /* how many of the bytes the owner asked for */
    bool used;
};

/* One piece of memory from the allocator. */
struct segment {
    struct segment *next;
    void *memory; /* as the allocator gave it */
    size_t bytes; /* as the allocator was asked for */
    struct piece *first;
};

struct pool {
    struct segment *segments;
    struct piece *used[POOL_BUCKETS];
    size_t in_use, reserved; /* bytes of pieces in use; of all segments */
};

/* The bytes that a request takes. */
size_t pool_rounded(size_t bytes);

/* Takes the smallest free piece of at least `bytes` (rounded) and leaves the rest free. NULL: there is none. *broken is
 * set where the book-keeping itself had no memory. */
struct piece *pool_take(struct pool *pool, size_t bytes, bool *broken);
/* Finds the piece in use that begins at `at`; NULL: there is none. */
struct piece *pool_find(const struct pool *pool, const void *at);
/* Frees a piece and joins it with its free neighbours. */
void pool_give(struct pool *pool, struct piece *piece);

/* Adds memory of the allocator, which the pool takes. False: no memory for the book-keeping; the memory stays the
 * caller's. */
bool pool_add(struct pool *pool, void *memory, size_t bytes);
/* Takes out one segment that is free as a whole; NULL: there is none. The caller gives its memory back, and then calls
 * pool_forget. */
struct segment *pool_remove_free(struct pool *pool);
/* Takes out any segment, whether or not its pieces are in use. */
struct segment *pool_remove_any(struct pool *pool);
void pool_forget(struct segment *segment);

#pragma GCC visibility pop

#endif
