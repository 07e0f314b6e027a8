/*
 * span.h: the hashes of all windows of a communicator that are kept for good: finely at its end, coarsely far behind
 * it.
 *
 * A level of digests (sum.h) remembers the newest windows; who compares digests when a job is over (docs/RDIG.md) has
 * to see all of them, and a day of work has a million. So neighbours are put together two by two, the older the more: a
 * window that lies n windows back is part of a span of at most n / 32 windows. Spans are aligned to their size, so what
 * one node has kept coarsely can be made of what another one has kept finely. Pure.
 */
#ifndef ROLL_DAEMON_DIGEST_SPAN_H
#define ROLL_DAEMON_DIGEST_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_SPAN_WINDOWS_MOST (UINT32_C(1) << 26) /* of one communicator: more calls than numbers reach */

struct roll_span {
    uint64_t hash;    /* of one window its own; else of the hashes of both halves */
    uint32_t window;  /* the first; a multiple of `windows` */
    uint32_t windows; /* a power of two */
};

/* Ascending, without overlap; where a window is not known there is none. Zero-initialised is empty. */
struct roll_spans {
    struct roll_span *at; /* owned */
    size_t used, room;
    size_t fine; /* added since neighbours were put together */
};

/* Appends the hash of a window behind all others; one that is not behind them is passed over. 0, NOMEM. */
int roll_spans_add(struct roll_spans *spans, uint32_t window, uint64_t hash);
void roll_spans_fini(struct roll_spans *spans);
/* Is it a list as roll_spans_add makes it? */
bool roll_spans_are(const struct roll_span *list, size_t n);
/* The first span in which two lists differ; false: there is none where both say something. `where`: as fine as both
 * know it. */
bool roll_spans_differ(const struct roll_span *a, size_t as, const struct roll_span *b, size_t bs,
                       struct roll_span *where);

#endif
