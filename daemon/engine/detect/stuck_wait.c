/*
 * stuck_wait.c: how long the waits of each host have lasted so far, and therefore how long one must last before a
 * verdict is said about it.
 */
#include "daemon/engine/detect/stuck.h"

#define SEEN_ENOUGH 3u /* waits at one place of the program before that place counts as known */
#define LONGEST     5u /* the patience is at least so many times the longest wait of the rank so far */

static uint32_t site_key(const struct roll_record *rec)
{
    return (uint32_t)rec->callsite << 8 | rec->op;
}

void stuck_polled(struct source *s, uint64_t ticket)
{
    struct stuck_source *w = stuck_make_source(s);
    if (w && ticket > w->last) {
        w->last = ticket;
    }
}

struct stuck_source *stuck_measure(const struct roll_engine *e, struct source *s, const struct roll_record *rec,
                                   uint64_t since)
{
    struct stuck_source *w = stuck_make_source(s);
    if (!w) {
        return NULL;
    }
    w->last = roll_seal_ticket(rec->seal) > w->last ? roll_seal_ticket(rec->seal) : w->last;
    uint32_t key = site_key(rec), at = (key * 0x9e3779b1u) >> 26;
    uint64_t took =
        since != NO_CLOCK && e->clock > since && e->clock - since > rec->call_ns ? e->clock - since : rec->call_ns;
    if (rec->call_ns == UINT32_MAX && since != NO_CLOCK) {
        w->long_wait = roll_seal_ticket(rec->seal) + 1;
        w->long_ns = took;
    }
    w->longest_ns = took > w->longest_ns ? took : w->longest_ns;
    w->site[at].count = w->site[at].key == key ? w->site[at].count + 1 : 1;
    w->site[at].key = key;
    return w;
}

void stuck_goes_on(struct source *s, uint64_t inside, uint64_t now_inside)
{
    struct stuck_source *w = stuck_of_source(s);
    if (w && w->told == inside) {
        w->told = now_inside;
    }
}

bool stuck_long_wait(const struct source *s, uint64_t ticket, uint64_t *ns)
{
    const struct stuck_source *w = stuck_of_source(s);
    if (!w || w->long_wait != ticket + 1) {
        return false;
    }
    *ns = w->long_ns;
    return true;
}

uint64_t stuck_patience(const struct roll_engine *e, const struct source *s, const struct roll_record *wait)
{
    uint32_t key = site_key(wait), at = (key * 0x9e3779b1u) >> 26;
    const struct stuck_source *w = stuck_of_source(s);
    bool usual = w && w->site[at].key == key && w->site[at].count >= SEEN_ENOUGH;
    uint64_t least = e->config.suspect_ns * (usual ? STUCK_USUAL : STUCK_UNUSUAL);
    uint64_t longest = w ? w->longest_ns * LONGEST : 0;
    return longest > least ? longest : least;
}

void stuck_renumber(struct roll_engine *e, uint64_t from, uint64_t to)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct stuck_source *w = stuck_of_source(e->source[i]);
        if (w && w->verdict == from) {
            w->verdict = to;
        }
    }
}
