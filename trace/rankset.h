/*
 * rankset.h: a set of ranks as sorted, disjoint ranges, and its folded text: "0-3,7".
 *
 * Ranges, not a bitmap: the sets that matter ("all but 3") are short as ranges at any job size.
 */
#ifndef ROLL_TRACE_RANKSET_H
#define ROLL_TRACE_RANKSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct roll_range {
    uint32_t first, last; /* both included */
};

/* Zero-initialised is the empty set. */
struct roll_rankset {
    struct roll_range *range; /* owned */
    size_t used, room;
};

void roll_rankset_fini(struct roll_rankset *set);
void roll_rankset_clear(struct roll_rankset *set);
int roll_rankset_add(struct roll_rankset *set, uint32_t rank); /* 0 or NOMEM */
int roll_rankset_add_range(struct roll_rankset *set, uint32_t first, uint32_t last);
int roll_rankset_copy(struct roll_rankset *to, const struct roll_rankset *from);
int roll_rankset_union(struct roll_rankset *to, const struct roll_rankset *from);
bool roll_rankset_has(const struct roll_rankset *set, uint32_t rank);
bool roll_rankset_equal(const struct roll_rankset *a, const struct roll_rankset *b);
size_t roll_rankset_count(const struct roll_rankset *set);
/* The i-th rank in ascending order; UINT32_MAX when i is out of range. */
uint32_t roll_rankset_at(const struct roll_rankset *set, size_t i);
/* Folded text; at most size bytes, terminated, with ",…" at the end when it did not fit. Returns the length wanted. */
size_t roll_rankset_format(const struct roll_rankset *set, char *out, size_t size);
/* Parses folded text. 0, ARG for anything malformed, LIMIT above 2^24 ranks, NOMEM. */
int roll_rankset_parse(const char *text, struct roll_rankset *set);

#endif
