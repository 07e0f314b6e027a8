/*
 * sum_cut.c: a level looks at what its children have told: it judges the communicators of which all members are below
 * it, and tells the level above of the others (sum.h).
 *
 * Each cut goes through all communicators. A list of those that have moved was rejected: that the last member stands is
 * seen where nothing moves.
 */
#include "daemon/digest/sum_state.h"

#include <math.h>
#include <string.h>

/* How far the members have come, from what all children tell. */
static void look(struct roll_sum_level *c, uint64_t now_ns)
{
    uint32_t low = UINT32_MAX, high = 0;
    uint64_t hash = 0;
    bool differs = false, over = true;
    for (size_t i = 0; i < c->cells; i++) {
        const struct roll_sum_cell *cell = &c->cell[i];
        /* Of members that a child judges by itself it is told where they stand apart. */
        bool apart = c->members == 0 && cell->low < cell->high;
        over = over && (cell->members == 0 || cell->gone) && !apart;
        if (cell->members != 0 || apart) { /* else only messages were told of it */
            differs = differs || cell->differs || (low != UINT32_MAX && hash != cell->hash);
            hash = cell->hash;
            low = cell->low < low ? cell->low : low;
            high = cell->high > high ? cell->high : high;
        }
    }
    low = low == UINT32_MAX ? 0 : low;
    if (low != c->low || low == high || c->low == c->high) {
        c->low_since_ns = now_ns;
    }
    c->differs = low == high && differs;
    c->over = over;
    c->hash = hash;
    c->low = low;
    c->high = high;
}

static void judge_place(struct roll_sum *sum, struct roll_sum_level *c, uint64_t now_ns)
{
    bool absent = c->members < c->size && c->high > 0 && !c->past;
    if (c->differs && c->alike != c->low + 1) {
        c->alike = c->low + 1;
        roll_sum_hint(sum, c->key, ROLL_HINT_DIFFERS, c->low - c->low % ROLL_DIGEST_WINDOW);
    }
    if ((c->low < c->high || absent) && c->stands != c->low + 1 && now_ns - c->low_since_ns >= sum->config.stand_ns) {
        c->stands = c->low + 1;
        roll_sum_hint(sum, c->key, ROLL_HINT_STANDS, c->low);
    }
    uint32_t full = c->low / ROLL_DIGEST_WINDOW;
    if (full - c->judged > ROLL_SUM_OPEN && c->judged < full) {
        c->judged =
            full - ROLL_SUM_OPEN; /* what lies before has been forgotten, or was judged by a sum before this one */
    }
    for (; c->judged < full && !absent; c->judged++) {
        const struct roll_sum_first *first = &c->first[c->judged % ROLL_SUM_OPEN];
        sum->figures.done += first->window == c->judged + 1 && !first->differs;
    }
}

static void judge_messages(struct roll_sum *sum, struct roll_sum_level *c, uint64_t now_ns)
{
    if (!c->sums_moved || now_ns - c->sums_since_ns < sum->config.stand_ns) {
        return;
    }
    uint32_t classes = 0;
    for (unsigned i = 0; i < ROLL_DIGEST_CLASSES; i++) {
        classes |= (uint32_t)(c->sum[i] != c->known[i]) << i;
    }
    c->sums_moved = false;
    if (classes != 0) {
        memcpy(c->known, c->sum, sizeof(c->sum));
        roll_sum_hint(sum, c->key, ROLL_HINT_MESSAGES, classes);
    }
}

static void tell_sums(const struct roll_sum_level *c, const uint64_t *sum, struct roll_digest *up)
{
    struct roll_digest_messages sums = {.key = c->key};
    memcpy(sums.sum, sum, sizeof(sums.sum));
    roll_digest_add_messages(up, &sums);
}

/* All members have turned out to stand below this level: nobody above need judge any more. */
static void take_over(struct roll_sum_level *c, struct roll_digest *up)
{
    static const uint64_t none[ROLL_DIGEST_CLASSES];
    roll_digest_add_front(up, &(struct roll_digest_front){.key = c->key, .size = c->size});
    tell_sums(c, none, up);
    c->told = c->apart = false;
    c->sums_moved = true;
}

/* Members of the communicator stand elsewhere: those that stand below this level are told of as one. */
static void pass_on(struct roll_sum_level *c, struct roll_digest *up)
{
    uint32_t full = c->low / ROLL_DIGEST_WINDOW;
    if (full - c->judged > ROLL_SUM_OPEN && c->judged < full) {
        c->judged = full - ROLL_SUM_OPEN;
    }
    for (; c->judged < full; c->judged++) {
        const struct roll_sum_first *first = &c->first[c->judged % ROLL_SUM_OPEN];
        if (first->window == c->judged + 1) {
            roll_digest_add_window(
                up, &(struct roll_digest_window){.key = c->key, .hash = first->hash, .window = c->judged});
        }
    }
    /* That of the first member, also where others come later: they are compared with it here. In the newest window
     * alone: else one of the window before could be told in the place of one that whoever tells of later ones must have
     * told of (roll_digest_first). */
    uint32_t begin = roll_digest_window_of(c->high), from = c->pointed > begin ? c->pointed : begin;
    const struct roll_point *point = c->moved ? roll_points_roundest(&c->points, from, c->high) : NULL;
    if (point) {
        roll_digest_add_window(up, &(struct roll_digest_window){.key = c->key,
                                                                .hash = point->hash,
                                                                .window = point->at / ROLL_DIGEST_WINDOW,
                                                                .calls = point->at % ROLL_DIGEST_WINDOW});
        c->pointed = c->high;
    }
    if (c->moved) {
        roll_digest_add_front(up, &(struct roll_digest_front){.key = c->key,
                                                              .hash = c->hash,
                                                              .size = c->size,
                                                              .members = c->members,
                                                              .low = c->low,
                                                              .high = c->high,
                                                              .differs = c->differs,
                                                              .gone = c->over && c->members != 0});
    }
    if (c->sums_moved) {
        tell_sums(c, c->sum, up);
        c->sums_moved = false;
    }
    c->told = true;
    c->moved = c->apart = false;
}

/* The communicator of this key, if all its members, or some of them, are below this level; else NULL. */
static const struct roll_sum_level *known_level(const struct roll_sum *sum, uint64_t key)
{
    uint32_t at = roll_map_get(&sum->at, key);
    return at != ROLL_MAP_NONE && sum->level[at].members != 0 ? &sum->level[at] : NULL;
}

/* A level above that judges nothing of it hears where the members stand apart, and when they do no more: people ask
 * there, and whether a hint still holds is seen there. */
static void tell_apart(struct roll_sum_level *c, bool apart, struct roll_digest *up)
{
    if (apart != c->apart) {
        roll_digest_add_front(up, &(struct roll_digest_front){
                                      .key = c->key, .size = c->size, .low = c->low, .high = apart ? c->high : c->low});
        c->apart = apart;
    }
}

/* What must be alike was compared when it came. The level above gets what members elsewhere may tell, too; and of a sum
 * of shares, when all members below have told theirs. */
static void cut_likes(struct roll_sum *sum, struct roll_digest *up)
{
    struct roll_like *l;
    struct roll_share *s;
    struct roll_digest_share all;
    while ((l = roll_likes_next(&sum->likes)) != NULL) {
        const struct roll_sum_level *c = known_level(sum, l->first.key);
        l->told = true;
        if (!sum->config.is_root && !(c && c->members == c->size)) {
            roll_digest_add_like(up, &l->first);
        }
    }
    while ((s = roll_shares_next(&sum->shares, &all)) != NULL) {
        const struct roll_sum_level *c = known_level(sum, s->key);
        if (!c || all.members < c->members || !isfinite(all.part) || !isfinite(all.size)) {
            continue;
        }
        s->over = true;
        if (c->members != c->size && !sum->config.is_root) {
            roll_digest_add_share(up, &all);
        } else if (all.members == c->size && roll_share_is_wrong(&all, c->size)) {
            roll_sum_hint(sum, s->key, ROLL_HINT_OBSERVED, all.seq);
        }
    }
}

/* Where calls differ is looked at window by window; how much of the newest one that is who asks may know. */
static void note_differs(struct roll_sum *sum, const struct roll_digest_hint *h, bool differs)
{
    uint32_t at = differs && h->seq % ROLL_DIGEST_WINDOW != 0 ? roll_map_get(&sum->at, h->key) : ROLL_MAP_NONE;
    if (at != ROLL_MAP_NONE) {
        roll_sum_level_differs(&sum->level[at], h->seq);
    }
}

void roll_sum_cut(roll_sum_t *sum, uint64_t now_ns, struct roll_digest *up)
{
    cut_likes(sum, up);
    roll_sum_front_retry(sum, now_ns);
    for (size_t i = 0; i < sum->levels; i++) {
        struct roll_sum_level *c = &sum->level[i];
        if (c->moved) {
            look(c, now_ns);
        }
        bool complete = c->members == c->size && c->size != 0;
        if (complete && c->told && !sum->config.is_root) {
            take_over(c, up);
        }
        if (c->members == 0 && (sum->config.is_root || !c->told)) { /* a level below judges it */
            c->moved = false;
            if (!sum->config.is_root) {
                tell_apart(c, c->low < c->high, up);
            }
        } else if (complete || sum->config.is_root) {
            judge_place(sum, c, now_ns);
            judge_messages(sum, c, now_ns);
            c->moved = false;
            if (!sum->config.is_root) {
                tell_apart(c, c->stands == c->low + 1 && c->low < c->high, up);
            }
        } else {
            pass_on(c, up);
        }
    }
    for (size_t i = 0; i < sum->hints.hints; i++) {
        const struct roll_digest_hint *h = &sum->hints.hint[i];
        bool differs = sum->config.is_root && h->why == ROLL_HINT_DIFFERS;
        note_differs(sum, h, differs);
        roll_digest_add_hint(up, h->key, (enum roll_digest_why)h->why,
                             differs ? roll_digest_window_of(h->seq) : h->seq);
    }
    roll_digest_clear(&sum->hints);
}
