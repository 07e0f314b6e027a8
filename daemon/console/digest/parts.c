/*
 * parts.c: where each ring's part of an excerpt begins, and where its rank stands before that.
 *
 * Found in the images of the rings, by the code that finds it in the rings of a running job (daemon/digest/excerpt.h).
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>

#define BEFORE 512u /* records before what is wanted: how certain an engine is rests on what it has seen */

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct taken_ring *r = from;
    *out = r->image[ticket & (r->slots - 1)];
    return roll_seal_state(out->seal) != ROLL_STATE_EMPTY && roll_seal_ticket(out->seal) == ticket;
}

static struct roll_excerpt_records records_of(struct taken_ring *r)
{
    uint64_t oldest = r->next > r->slots ? r->next - r->slots : 0;
    return (struct roll_excerpt_records){.from = r,
                                         .record = record_of,
                                         .oldest = oldest > r->first ? oldest : r->first,
                                         .next = r->next,
                                         .only_known = true};
}

/* What is wanted of a communicator at the end: from the first collective that not all members here have made, and what
 * the node's own level finds wanting. */
static struct roll_excerpt_want want_at_end(const struct roll_taken *t, const struct taken_comm *c, bool asked)
{
    struct roll_excerpt_want w = {.comm = c->id, .low = UINT32_MAX};
    struct roll_sum_place place;
    if (roll_sum_place(t->sum, c->key, &place) && place.members != 0) {
        w.low = place.low;
    }
    for (size_t i = 0; i < t->hints.hints; i++) {
        const struct roll_digest_hint *h = &t->hints.hint[i];
        w.classes |= h->key == c->key && h->why == ROLL_HINT_MESSAGES ? h->seq : 0;
    }
    for (size_t i = 0; i < t->observeds; i++) {
        const struct taken_observed *o = &t->observed[i];
        bool earlier = w.step == 0 || o->step < w.step;
        w.step = earlier && (o->key == c->key || o->key == 0) ? o->step : w.step;
    }
    for (size_t i = 0; asked && i < t->places; i++) {
        const struct roll_digest_at *at = &t->place[i].at;
        w.low = at->key == c->key && at->seq == at->last && at->seq < w.low ? at->seq : w.low;
    }
    return w;
}

static struct roll_rdig_comm *comm_of(struct taken_excerpt *e, const struct taken_comm *c, int *err)
{
    for (size_t i = 0; i < e->comms; i++) {
        if (e->comm[i].key == c->key) {
            return &e->comm[i];
        }
    }
    *err = ROLL_GROW(e->comm, e->comm_room, e->comms + 1);
    if (*err) {
        return NULL;
    }
    e->comm[e->comms] = (struct roll_rdig_comm){.key = c->key, .size = c->size};
    return &e->comm[e->comms++];
}

/* From which collective on the part has all that its rank made on a communicator. */
static uint32_t from_of(const struct taken_part *part, uint16_t comm, uint64_t first)
{
    for (size_t i = 0; i < part->places && part->begin > first; i++) {
        if (part->place[i].comm == comm && part->place[i].op == ROLL_OP_NONE) {
            return part->place[i].next;
        }
    }
    return 0;
}

static int note_comms(struct taken_excerpt *e, const struct taken_ring *r, const struct taken_part *part)
{
    int err = 0;
    for (size_t i = 0; i < r->comms && !err; i++) {
        struct roll_rdig_comm *c = comm_of(e, &r->comm[i], &err);
        if (c) {
            uint32_t from = from_of(part, r->comm[i].id, r->first);
            c->members += c->members < c->size;
            c->from = from > c->from ? from : c->from;
        }
    }
    return err;
}

/* The part of one ring. `want`: room for all of its communicators. */
static int note_part(const struct roll_taken *t, struct taken_excerpt *e, struct taken_ring *r, bool asked,
                     struct roll_excerpt_want *want)
{
    struct roll_excerpt_records records = records_of(r);
    struct taken_part *part = &e->part[e->parts];
    uint64_t before = t->how->history < BEFORE ? t->how->history : BEFORE;
    size_t wants = 0;
    for (size_t i = 0; i < r->comms; i++) {
        if (e->kind == ROLL_RDIG_END) {
            want[wants++] = want_at_end(t, &r->comm[i], asked);
        } else if (r->comm[i].key == e->at.key) {
            want[wants++] = (struct roll_excerpt_want){.comm = r->comm[i].id, .low = e->at.seq};
        }
    }
    /* What is wanted, then some history in front of it. */
    uint64_t history = records.next - roll_excerpt_begin(&records, r->fold, want, wants, 0) + before;
    if (e->kind == ROLL_RDIG_END && history < t->how->history) {
        history = t->how->history;
    }
    part->begin = roll_excerpt_begin(&records, r->fold, NULL, 0, history);
    part->end = r->next;
    int err = roll_excerpt_places(&records, r->fold, part->begin, &part->place, &part->places);
    e->parts += err == 0;
    e->whole = e->whole && part->begin <= r->first;
    return err ? err : note_comms(e, r, part);
}

/* The last segment before which nothing of the excerpt lies. */
static size_t segment_of(const struct roll_taken *t, const struct taken_excerpt *e)
{
    size_t found = 0;
    for (size_t i = 1; i < t->segments; i++) {
        const struct taken_segment *s = &t->segment[i];
        bool before = true;
        for (size_t k = 0; k < s->rings && before; k++) {
            before = t->nexts[s->at + k] <= e->part[k].begin;
        }
        found = before ? i : found;
    }
    return found;
}

static void excerpt_fini(struct taken_excerpt *e)
{
    for (size_t i = 0; i < e->parts; i++) {
        free(e->part[i].place);
    }
    free(e->part);
    free(e->comm);
    *e = (struct taken_excerpt){0};
}

static int note(struct roll_taken *t, struct taken_excerpt *e, bool asked)
{
    size_t most = 1;
    for (size_t i = 0; i < t->rings; i++) {
        most = t->ring[i]->comms > most ? t->ring[i]->comms : most;
    }
    struct roll_excerpt_want *want = calloc(most, sizeof(*want));
    e->part = calloc(t->rings + 1, sizeof(*e->part));
    e->whole = e->kind == ROLL_RDIG_END;
    int err = want && e->part ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < t->rings && !err; i++) {
        err = note_part(t, e, t->ring[i], asked, want);
    }
    e->segment = err || e->whole ? 0 : segment_of(t, e);
    free(want);
    return err;
}

static int keep(struct roll_taken *t, struct taken_excerpt *e, int err)
{
    err = err ? err : ROLL_GROW(t->excerpt, t->excerpt_room, t->excerpts + 1);
    if (err) {
        excerpt_fini(e);
        return err;
    }
    t->excerpt[t->excerpts++] = *e;
    return 0;
}

int roll_taken_note_place(struct roll_taken *t, const struct roll_digest_at *at)
{
    struct taken_excerpt e = {.kind = ROLL_RDIG_PLACE, .at = *at};
    int err = note(t, &e, false);
    return keep(t, &e, err);
}

static bool reaches(const struct taken_excerpt *e, const struct roll_digest_at *at)
{
    for (size_t i = 0; i < e->comms; i++) {
        if (e->comm[i].key == at->key) {
            return e->comm[i].from <= at->seq;
        }
    }
    return true;
}

/* Of a place that the excerpt of the end reaches no other one is needed. */
static void drop_reached(struct roll_taken *t, const struct taken_excerpt *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < t->excerpts; i++) {
        if (reaches(e, &t->excerpt[i].at)) {
            excerpt_fini(&t->excerpt[i]);
        } else {
            t->excerpt[kept++] = t->excerpt[i];
        }
    }
    t->excerpts = kept;
}

int roll_taken_note_end(struct roll_taken *t)
{
    struct taken_excerpt e = {.kind = ROLL_RDIG_END};
    bool all = true;
    int err = note(t, &e, true);
    for (size_t i = 0; i < t->places && !err; i++) {
        all = all && (t->place[i].at.seq != t->place[i].at.last || reaches(&e, &t->place[i].at));
    }
    if (!err && !all) { /* the images do not go back so far: the places that were noted have to do */
        excerpt_fini(&e);
        e = (struct taken_excerpt){.kind = ROLL_RDIG_END};
        err = note(t, &e, false);
    }
    if (!err) {
        drop_reached(t, &e);
    }
    return keep(t, &e, err);
}
