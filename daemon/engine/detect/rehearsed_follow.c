/*
 * rehearsed_follow.c: a rank goes through what was rehearsed, call by call.
 *
 * A sequence is a row of parts, some of which repeat any number of times. Behind a repetition the rank may begin it
 * anew or go on to what follows, and both may begin alike; so it may be at several places for some calls. A rank that
 * has left falls in step again when it has made all calls of one repetition in their order, from any of them on:
 * nothing less says where it is, because the layers of a model look alike. It may then be in other parts as well that
 * hold the same calls: a repetition of one call says little.
 */
#include "daemon/engine/detect/rehearsed.h"

#include <string.h>

#define TRIES_AT_ONCE 8u  /* searches for a place to begin, before they become rare */
#define LOOKED_BACK   64u /* calls, to tell places from each other */
#define PAUSE_MOST    12u /* as a power of two of calls */

/* Communicators of the same label, size and place that the rank had before this one. */
static uint32_t nth(const struct source *s, const struct member *m, uint32_t id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < id && i < s->members; i++) {
        const struct member *other = s->member[i];
        n += other && other->rank == m->rank && other->comm->size == m->comm->size &&
             strcmp(other->comm->label, m->comm->label) == 0;
    }
    return n;
}

bool rehearsed_bind(const struct roll_engine *e, const struct source *s, const struct member *m, uint32_t id,
                    struct rehearsed_member *r)
{
    const struct roll_expected *x = e->expected;
    const struct comm *c = m->comm;
    r->stand = REHEARSED_OFF;
    if (c->open || (s->info.world_size > 0 && (uint32_t)s->info.world_size != x->ranks) || s->world >= x->ranks) {
        return true;
    }
    uint32_t place = nth(s, m, id);
    for (uint32_t i = x->place_first[s->world]; i < x->place_first[s->world + 1]; i++) {
        const struct roll_expected_comm *comm = &x->comm[x->place[i].comm];
        const struct roll_expected_member *member = &x->member[comm->first + x->place[i].rank];
        if (x->place[i].rank == (uint32_t)m->rank && comm->size == c->size && member->nth == place &&
            strcmp(comm->label, c->label) == 0) {
            r->comm = x->place[i].comm;
            r->sequence = member->sequence;
            r->stand = s->late || m->gaps > 0 ? REHEARSED_OUT : REHEARSED_IN_STEP;
            r->cursors = 1; /* at the beginning */
            return true;
        }
    }
    return false;
}

static const struct roll_expected_call *call_at(const struct roll_expected *x, const struct roll_expected_sequence *s,
                                                struct rehearsed_cursor at)
{
    return &x->call[x->item[x->part[s->first + at.part].first + at.at]];
}

/* The places of the calls that may follow, at most two. */
static uint32_t following(const struct roll_expected *x, const struct roll_expected_sequence *s,
                          struct rehearsed_cursor at, struct rehearsed_cursor out[2])
{
    uint32_t n = 0;
    if (at.part >= s->parts) {
        return 0;
    }
    const struct roll_expected_part *part = &x->part[s->first + at.part];
    if (at.at < part->calls) {
        out[n++] = at;
        return n;
    }
    if (part->times > 1) {
        out[n++] = (struct rehearsed_cursor){at.part, 0};
    }
    if (at.part + 1 < s->parts) {
        out[n++] = (struct rehearsed_cursor){at.part + 1, 0};
    }
    return n;
}

/* Adds a place where the member may be, once. */
static void add_place(struct rehearsed_member *r, struct rehearsed_cursor *next, uint32_t *used,
                      struct rehearsed_cursor place)
{
    for (uint32_t i = 0; i < *used; i++) {
        if (next[i].part == place.part && next[i].at == place.at) {
            return;
        }
    }
    r->crowded = r->crowded || *used == REHEARSED_CURSORS;
    if (*used < REHEARSED_CURSORS) {
        next[(*used)++] = place;
    }
}

/* With how many of its calls the part behind a repetition goes on with it. */
static uint32_t goes_on(const struct roll_expected *x, const struct roll_expected_sequence *s, uint32_t part)
{
    uint32_t calls = x->part[s->first + part].calls, behind = x->part[s->first + part + 1].calls, n = 0;
    while (n < calls && n < behind &&
           roll_expected_fits(call_at(x, s, (struct rehearsed_cursor){part, n}),
                              call_at(x, s, (struct rehearsed_cursor){part + 1, n}))) {
        n++;
    }
    return n;
}

/*
 * Adds the places behind this call of a member whose last time round ended early, or was whole where it ended early in
 * the rehearsal: another number of steps of a job that does something each third step. Looked for only where nothing
 * else fits, because it takes time, and because what comes in the middle of a repetition says more than what comes
 * behind it.
 */
static void end_early(const struct roll_expected *x, const struct roll_expected_sequence *s, struct rehearsed_cursor at,
                      const struct roll_expected_call *came, struct rehearsed_member *r, struct rehearsed_cursor *next,
                      uint32_t *used)
{
    if (at.part + 1 >= s->parts || x->part[s->first + at.part].times <= 1) {
        return;
    }
    const uint32_t begin[] = {0, goes_on(x, s, at.part)};
    for (size_t i = 0; i < 2; i++) {
        struct rehearsed_cursor place = {at.part + 1, begin[i]};
        if (begin[i] < x->part[s->first + place.part].calls && roll_expected_fits(call_at(x, s, place), came)) {
            add_place(r, next, used, (struct rehearsed_cursor){place.part, place.at + 1});
        }
    }
}

bool rehearsed_follow(const struct roll_expected *x, struct rehearsed_member *r, const struct roll_expected_call *came,
                      uint32_t *want)
{
    const struct roll_expected_sequence *s = &x->sequence[r->sequence];
    struct rehearsed_cursor next[REHEARSED_CURSORS], may[2];
    uint32_t used = 0;
    *want = ROLL_EXPECTED_NONE;
    for (uint32_t i = 0; i < r->cursors; i++) {
        uint32_t n = following(x, s, r->at[i], may);
        for (uint32_t k = 0; k < n; k++) {
            const struct roll_expected_call *call = call_at(x, s, may[k]);
            *want = *want == ROLL_EXPECTED_NONE ? (uint32_t)(call - x->call) : *want;
            if (roll_expected_fits(call, came)) {
                add_place(r, next, &used, (struct rehearsed_cursor){may[k].part, may[k].at + 1});
            }
        }
    }
    bool is_lost = used == 0;
    for (uint32_t i = 0; is_lost && i < r->cursors; i++) {
        end_early(x, s, r->at[i], came, r, next, &used);
    }
    if (used == 0) {
        return false;
    }
    memcpy(r->at, next, used * sizeof(*next));
    r->cursors = used;
    return true;
}

/* The calls that end at a place of another part are those that the member has just made, as far as both can be looked
 * back. */
static bool ends_alike(const struct roll_expected *x, const struct roll_expected_sequence *s,
                       const struct rehearsed_member *r, uint32_t part, uint32_t at)
{
    uint32_t unit = x->part[s->first + r->again.part].calls;
    for (uint32_t back = 0; back <= at && back < unit && back < LOOKED_BACK; back++) {
        uint32_t mine = (r->again.at - 1 + unit - back) % unit;
        if (!roll_expected_fits(call_at(x, s, (struct rehearsed_cursor){part, at - back}),
                                call_at(x, s, (struct rehearsed_cursor){r->again.part, mine}))) {
            return false;
        }
    }
    return true;
}

/* A member that falls in step may as well be in other parts with such calls: a unit of one call says little. */
static void add_alike(const struct roll_expected *x, const struct roll_expected_sequence *s, struct rehearsed_member *r)
{
    for (uint32_t p = 0; p < s->parts; p++) {
        for (uint32_t i = 0; p != r->again.part && i < x->part[s->first + p].calls; i++) {
            if (ends_alike(x, s, r, p, i)) {
                add_place(r, r->at, &r->cursors, (struct rehearsed_cursor){p, i + 1});
            }
        }
    }
}

/* Looks for the first call like this one among those that repeat. */
static void begin_again(const struct roll_expected *x, const struct roll_expected_sequence *s,
                        struct rehearsed_member *r, const struct roll_expected_call *came)
{
    for (uint32_t p = 0; p < s->parts && r->fits == 0; p++) {
        const struct roll_expected_part *part = &x->part[s->first + p];
        for (uint32_t i = 0; part->times > 1 && i < part->calls && r->fits == 0; i++) {
            if (roll_expected_fits(call_at(x, s, (struct rehearsed_cursor){p, i}), came)) {
                r->again = (struct rehearsed_cursor){p, i + 1};
                r->fits = 1;
            }
        }
    }
    r->fails++;
    if (r->fails > TRIES_AT_ONCE) {
        uint32_t rare = r->fails - TRIES_AT_ONCE;
        r->pause = 1u << (rare < PAUSE_MOST ? rare : PAUSE_MOST);
    }
}

bool rehearsed_again(const struct roll_expected *x, struct rehearsed_member *r, const struct roll_expected_call *came)
{
    const struct roll_expected_sequence *s = &x->sequence[r->sequence];
    if (r->fits > 0) {
        uint32_t calls = x->part[s->first + r->again.part].calls;
        r->again.at = r->again.at == calls ? 0 : r->again.at;
        bool fits = roll_expected_fits(call_at(x, s, r->again), came);
        r->again.at++;
        r->fits = fits ? r->fits + 1 : 0;
    }
    if (r->fits == 0 && r->pause > 0) {
        r->pause--;
    } else if (r->fits == 0) {
        begin_again(x, s, r, came);
    }
    if (r->fits == 0 || r->fits < x->part[s->first + r->again.part].calls) {
        return false;
    }
    r->at[0] = r->again;
    r->cursors = 1;
    r->crowded = false;
    add_alike(x, s, r);
    r->fits = r->fails = r->pause = 0;
    return true;
}
