/*
 * take_level.c: the folds of all rings added up, as the level of a node adds up those of its ranks, and the places that
 * have to be looked at because of what comes of it.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#define AUTO_PLACES 4u                       /* places that the node finds wanting by itself and sends along */
#define PASSED      (2 * ROLL_DIGEST_WINDOW) /* calls behind a place that all members have made when it is cut out */

static struct roll_spans *spans_of(struct roll_taken *t, uint64_t key)
{
    uint32_t i = roll_map_get(&t->key_at, key);
    if (i != ROLL_MAP_NONE) {
        return &t->key[i].spans;
    }
    if (ROLL_GROW(t->key, t->key_room, t->keys + 1) != 0 || roll_map_add(&t->key_at, key, (uint32_t)t->keys) != 0) {
        return NULL;
    }
    t->key[t->keys] = (struct taken_key){.key = key};
    return &t->key[t->keys++].spans;
}

int roll_taken_add_place(struct roll_taken *t, const struct roll_digest_at *at, bool asked)
{
    size_t found = 0;
    for (size_t i = 0; i < t->places; i++) {
        if (t->place[i].at.key == at->key && (!asked || t->place[i].at.seq == at->seq)) {
            return 0; /* what comes behind the first difference follows from it */
        }
        found += !t->place[i].asked;
    }
    if (!asked && found == AUTO_PLACES) {
        return 0;
    }
    int err = ROLL_GROW(t->place, t->place_room, t->places + 1);
    if (!err) {
        t->place[t->places++] = (struct taken_place){.at = *at, .asked = asked};
    }
    return err;
}

static void note_observed(struct taken_ring *r, uint32_t step)
{
    uint64_t ticket = roll_fold_forgot(r->fold, step) ? 0 : roll_fold_observed(r->fold, step);
    if (ticket != UINT64_MAX && r->hinted[ROLL_HINT_OBSERVED] == 0) {
        r->hinted[ROLL_HINT_OBSERVED] = ticket + 1;
    }
}

/* What was observed in this step has to be looked at: by the end of the series, if the records are still in memory
 * then; where they are not, each member's ring says that it lies before the excerpt. */
static int take_observed(struct roll_taken *t, const struct roll_digest_hint *h)
{
    for (size_t i = 0; i < t->rings; i++) {
        struct taken_ring *r = t->ring[i];
        bool member = false;
        for (size_t k = 0; k < r->comms; k++) {
            member = member || r->comm[k].key == h->key;
        }
        if (member) {
            note_observed(r, h->seq);
        }
    }
    for (size_t i = 0; i < t->observeds; i++) {
        if (t->observed[i].key == h->key) {
            t->observed[i].step = h->seq < t->observed[i].step ? h->seq : t->observed[i].step;
            return 0;
        }
    }
    int err = ROLL_GROW(t->observed, t->observed_room, t->observeds + 1);
    if (!err) {
        t->observed[t->observeds++] = (struct taken_observed){h->key, h->seq};
    }
    return err;
}

int roll_taken_up(struct roll_taken *t)
{
    int err = t->up.short_of_memory ? ROLL_E_NOMEM : 0;
    for (size_t i = 0; i < t->up.windows && !err; i++) {
        const struct roll_digest_window *w = &t->up.window[i];
        if (w->calls != 0) {
            continue; /* a check point: what it shows the whole window shows, too */
        }
        struct roll_spans *spans = spans_of(t, w->key);
        err = spans ? roll_spans_add(spans, w->window, w->hash) : ROLL_E_NOMEM;
        for (size_t k = 0; k < t->places && !err; k++) {
            struct taken_place *p = &t->place[k];
            bool inside = p->at.key == w->key && p->at.seq / ROLL_DIGEST_WINDOW <= w->window &&
                          w->window <= p->at.last / ROLL_DIGEST_WINDOW;
            err = inside && p->at.seq < p->at.last ? roll_spans_add(&p->spans, w->window, w->hash) : 0;
        }
    }
    for (size_t i = 0; i < t->up.hints && !err; i++) {
        const struct roll_digest_hint *h = &t->up.hint[i];
        if (h->why == ROLL_HINT_DIFFERS) {
            uint32_t first = roll_digest_window_of(h->seq);
            err = roll_taken_add_place(t, &(struct roll_digest_at){h->key, first, first}, false);
        } else if (h->why == ROLL_HINT_OBSERVED) {
            err = take_observed(t, h);
        }
    }
    return err;
}

int roll_taken_cut_ring(struct roll_taken *t, uint32_t i)
{
    struct taken_ring *r = t->ring[i];
    roll_digest_clear(&t->cut);
    roll_fold_cut(r->fold, t->now_ns, &t->cut);
    for (size_t k = 0; k < t->cut.hints; k++) {
        const struct roll_digest_hint *h = &t->cut.hint[k];
        if (h->why == ROLL_HINT_OBSERVED) {
            note_observed(r, h->seq);
        } else if (h->why <= ROLL_HINT_LAST && r->hinted[h->why] == 0) {
            r->hinted[h->why] = r->cut + 1;
        }
    }
    r->cut = r->next;
    int err = roll_sum_take(t->sum, i, &t->cut, t->now_ns);
    return t->cut.short_of_memory || err == ROLL_E_NOMEM ? ROLL_E_NOMEM : 0;
}

int roll_taken_cut_level(struct roll_taken *t)
{
    struct roll_sum_place place;
    int err = 0;
    for (uint32_t i = 0; i < t->rings && !err; i++) {
        err = t->ring[i]->cut != t->ring[i]->next ? roll_taken_cut_ring(t, i) : 0;
    }
    roll_digest_clear(&t->up);
    roll_sum_cut(t->sum, t->now_ns, &t->up);
    err = err ? err : roll_taken_up(t);
    t->since_sum = 0;
    for (size_t i = 0; i < t->places && !err; i++) {
        struct taken_place *p = &t->place[i];
        if (!p->passed && p->at.seq == p->at.last && roll_sum_place(t->sum, p->at.key, &place) && place.members != 0 &&
            place.low >= (uint64_t)p->at.seq + PASSED) {
            p->passed = true;
            err = roll_taken_note_place(t, &p->at);
        }
    }
    return err;
}
