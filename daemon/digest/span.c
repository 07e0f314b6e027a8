/*
 * span.c: see span.h. A tree of all hashes was rejected: it has twice as many nodes as there are windows, and what is
 * asked for are the newest ones.
 */
#include "daemon/digest/span.h"

#include "daemon/base/array.h"

#define KEEP  64u   /* spans of one size that are kept as they are; neighbours behind them are put together */
#define BATCH 1024u /* windows that are added before that is done again: each costs little then */

static uint64_t both(uint64_t left, uint64_t right)
{
    uint64_t x = (left ^ left >> 29) * 0x9e3779b97f4a7c15u + right;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 31;
}

static bool are_halves(const struct roll_span *a, const struct roll_span *b)
{
    return a->windows == b->windows && a->window % (2 * a->windows) == 0 && b->window == a->window + a->windows;
}

/* Puts together the oldest spans of one size, which lie at first .. end - 1. One without its other half is forgotten:
 * a window in it was not known. Returns how many are left of them. */
static size_t halve(struct roll_span *at, size_t first, size_t end)
{
    size_t keep = end - first > KEEP ? end - KEEP : first, used = first;
    keep -= keep > first && at[keep].window % (2 * at[keep].windows) != 0; /* a pair stays together */
    for (size_t i = first; i < keep; i++) {
        if (i + 1 < keep && are_halves(&at[i], &at[i + 1])) {
            at[used++] = (struct roll_span){both(at[i].hash, at[i + 1].hash), at[i].window, 2 * at[i].windows};
            i++;
        }
    }
    for (size_t i = keep; i < end; i++) {
        at[used++] = at[i];
    }
    return used;
}

/* From the newest spans, which are single windows, to the oldest. */
static void put_together(struct roll_spans *s)
{
    size_t end = s->used; /* of the spans that are looked at */
    for (uint32_t size = 1; size < ROLL_SPAN_WINDOWS_MOST && end > 0; size *= 2) {
        size_t first = end;
        while (first > 0 && s->at[first - 1].windows == size) {
            first--;
        }
        size_t left = halve(s->at, first, end);
        memmove(s->at + left, s->at + end, (s->used - end) * sizeof(*s->at));
        s->used -= end - left;
        for (end = first; end < left && s->at[end].windows == 2 * size; end++) {
        }
    }
    s->fine = 0;
}

int roll_spans_add(struct roll_spans *s, uint32_t window, uint64_t hash)
{
    const struct roll_span *last = s->used > 0 ? &s->at[s->used - 1] : NULL;
    if ((last && window < last->window + last->windows) || window >= ROLL_SPAN_WINDOWS_MOST) {
        return 0;
    }
    int err = ROLL_GROW(s->at, s->room, s->used + 1);
    if (err == 0) {
        s->at[s->used++] = (struct roll_span){hash, window, 1};
        if (++s->fine == BATCH) {
            put_together(s);
        }
    }
    return err;
}

void roll_spans_fini(struct roll_spans *s)
{
    free(s->at);
    *s = (struct roll_spans){0};
}

bool roll_spans_are(const struct roll_span *list, size_t n)
{
    uint64_t next = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t size = list[i].windows;
        if (size == 0 || (size & (size - 1)) != 0 || list[i].window % size != 0 || list[i].window < next ||
            list[i].window >= ROLL_SPAN_WINDOWS_MOST || size > ROLL_SPAN_WINDOWS_MOST) {
            return false;
        }
        next = (uint64_t)list[i].window + size;
    }
    return true;
}

/* The hash of a span, made of finer ones from `*i` on; false: not all of them are there. `*i` goes on behind those that
 * were looked at. */
static bool made(const struct roll_span *list, size_t n, size_t *i, uint32_t window, uint32_t windows, uint64_t *hash)
{
    uint64_t right;
    if (*i < n && list[*i].window == window && list[*i].windows == windows) {
        *hash = list[(*i)++].hash;
        return true;
    }
    if (windows == 1 || !made(list, n, i, window, windows / 2, hash) ||
        !made(list, n, i, window + windows / 2, windows / 2, &right)) {
        return false;
    }
    *hash = both(*hash, right);
    return true;
}

static uint64_t end_of(const struct roll_span *s)
{
    return (uint64_t)s->window + s->windows;
}

bool roll_spans_differ(const struct roll_span *a, size_t as, const struct roll_span *b, size_t bs,
                       struct roll_span *where)
{
    size_t i = 0, k = 0;
    while (i < as && k < bs) {
        bool first = a[i].windows >= b[k].windows; /* a's is the larger one, and the other's are put together */
        const struct roll_span wide = first ? a[i] : b[k], *fine = first ? b : a;
        size_t n = first ? bs : as, *at = first ? &k : &i, *wide_at = first ? &i : &k;
        uint64_t hash;
        if (end_of(&fine[*at]) <= wide.window) {
            ++*at;
            continue;
        }
        if (end_of(&wide) <= fine[*at].window) {
            ++*wide_at;
            continue;
        }
        if (made(fine, n, at, wide.window, wide.windows, &hash) && hash != wide.hash) {
            *where = wide;
            return true;
        }
        ++*wide_at;
        while (*at < n && fine[*at].window < end_of(&wide)) {
            ++*at;
        }
    }
    return false;
}
