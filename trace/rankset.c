/*
 * rankset.c: sets of ranks as sorted, disjoint ranges that never touch (touching ones are merged), so that
 * equal sets have equal bytes.
 *
 * Relies on sets being short as ranges. A tree was rejected: insertion in ascending order, the usual case, is an
 * append.
 */
#include "trace/rankset.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANK_LIMIT (1u << 24)

void roll_rankset_fini(struct roll_rankset *set)
{
    free(set->range);
    *set = (struct roll_rankset){0};
}

void roll_rankset_clear(struct roll_rankset *set)
{
    set->used = 0;
}

static int reserve(struct roll_rankset *set, size_t room)
{
    if (room <= set->room) {
        return ROLL_OK;
    }
    size_t wanted = set->room < 4 ? 4 : set->room * 2;
    wanted = wanted < room ? room : wanted;
    struct roll_range *grown = realloc(set->range, wanted * sizeof(*grown));
    if (grown == NULL) {
        return ROLL_E_NOMEM;
    }
    set->range = grown;
    set->room = wanted;
    return ROLL_OK;
}

/* Index of the first range that ends at `rank` or later; `used` (behind the last) when there is none. */
static size_t first_reaching(const struct roll_rankset *set, uint64_t rank)
{
    size_t low = 0;
    size_t high = set->used;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (set->range[mid].last < rank) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

int roll_rankset_add_range(struct roll_rankset *set, uint32_t first, uint32_t last)
{
    if (first > last) {
        return ROLL_E_ARG;
    }
    /* Ranges [i, end) overlap or touch the new one and are merged with it. */
    size_t i = first_reaching(set, first > 0 ? (uint64_t)first - 1 : 0);
    size_t end = i;
    while (end < set->used && set->range[end].first <= (uint64_t)last + 1) {
        end++;
    }
    if (end == i) {
        int err = reserve(set, set->used + 1);
        if (err < 0) {
            return err;
        }
        memmove(set->range + i + 1, set->range + i, (set->used - i) * sizeof(*set->range));
        set->range[i] = (struct roll_range){first, last};
        set->used++;
        return ROLL_OK;
    }
    struct roll_range *merged = &set->range[i];
    uint32_t old_last = set->range[end - 1].last;
    merged->first = merged->first < first ? merged->first : first;
    merged->last = old_last > last ? old_last : last;
    memmove(set->range + i + 1, set->range + end, (set->used - end) * sizeof(*set->range));
    set->used -= end - i - 1;
    return ROLL_OK;
}

int roll_rankset_add(struct roll_rankset *set, uint32_t rank)
{
    return roll_rankset_add_range(set, rank, rank);
}

int roll_rankset_copy(struct roll_rankset *to, const struct roll_rankset *from)
{
    if (to == from) {
        return ROLL_OK;
    }
    int err = reserve(to, from->used);
    if (err < 0) {
        return err;
    }
    if (from->used > 0) {
        memcpy(to->range, from->range, from->used * sizeof(*to->range));
    }
    to->used = from->used;
    return ROLL_OK;
}

int roll_rankset_union(struct roll_rankset *to, const struct roll_rankset *from)
{
    if (to == from) {
        return ROLL_OK;
    }
    for (size_t i = 0; i < from->used; i++) {
        int err = roll_rankset_add_range(to, from->range[i].first, from->range[i].last);
        if (err < 0) {
            return err;
        }
    }
    return ROLL_OK;
}

bool roll_rankset_has(const struct roll_rankset *set, uint32_t rank)
{
    size_t i = first_reaching(set, rank);
    return i < set->used && set->range[i].first <= rank;
}

bool roll_rankset_equal(const struct roll_rankset *a, const struct roll_rankset *b)
{
    return a->used == b->used && (a->used == 0 || memcmp(a->range, b->range, a->used * sizeof(*a->range)) == 0);
}

size_t roll_rankset_count(const struct roll_rankset *set)
{
    size_t count = 0;
    for (size_t i = 0; i < set->used; i++) {
        count += (size_t)set->range[i].last - set->range[i].first + 1;
    }
    return count;
}

uint32_t roll_rankset_at(const struct roll_rankset *set, size_t i)
{
    for (size_t r = 0; r < set->used; r++) {
        size_t here = (size_t)set->range[r].last - set->range[r].first + 1;
        if (i < here) {
            return set->range[r].first + (uint32_t)i;
        }
        i -= here;
    }
    return UINT32_MAX;
}

static int format_range(char out[32], const struct roll_range *range, bool comma)
{
    const char *lead = comma ? "," : "";
    if (range->first == range->last) {
        return snprintf(out, 32, "%s%u", lead, range->first);
    }
    return snprintf(out, 32, "%s%u-%u", lead, range->first, range->last);
}

size_t roll_rankset_format(const struct roll_rankset *set, char *out, size_t size)
{
    static const char more[] = ",\u2026";
    size_t wanted = 0;
    size_t whole = 0; /* bytes written so far that still leave room for `more` */
    for (size_t i = 0; i < set->used; i++) {
        char text[32];
        size_t n = (size_t)format_range(text, &set->range[i], i > 0);
        if (wanted + n < size) {
            memcpy(out + wanted, text, n);
            whole = wanted + n + sizeof(more) <= size ? wanted + n : whole;
        }
        wanted += n;
    }
    if (size > 0 && wanted < size) {
        out[wanted] = '\0';
    } else if (size > 0) {
        const char *end = whole > 0 ? more : more + 1; /* nothing fitted: no comma */
        size_t n = strlen(end);
        n = whole + n < size ? n : 0;
        memcpy(out + whole, end, n);
        out[whole + n] = '\0';
    }
    return wanted;
}

static int parse_number(const char **text, uint32_t *out)
{
    const char *p = *text;
    if (*p < '0' || *p > '9') {
        return ROLL_E_ARG;
    }
    uint32_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++) {
        value = value * 10 + (uint32_t)(*p - '0');
        if (value >= RANK_LIMIT) {
            return ROLL_E_LIMIT;
        }
    }
    *text = p;
    *out = value;
    return ROLL_OK;
}

int roll_rankset_parse(const char *text, struct roll_rankset *set)
{
    roll_rankset_clear(set);
    int err = ROLL_OK;
    while (*text != '\0') {
        uint32_t first;
        err = parse_number(&text, &first);
        if (err < 0) {
            goto out;
        }
        uint32_t last = first;
        if (*text == '-') {
            text++;
            err = parse_number(&text, &last);
            if (err < 0) {
                goto out;
            }
        }
        err = roll_rankset_add_range(set, first, last);
        if (err < 0) {
            goto out;
        }
        if (*text == ',' && text[1] != '\0') {
            text++;
        } else if (*text != '\0') {
            err = ROLL_E_ARG;
            goto out;
        }
    }
out:
    if (err < 0) {
        roll_rankset_clear(set);
    }
    return err;
}
