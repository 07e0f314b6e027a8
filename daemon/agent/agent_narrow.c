/*
 * agent_narrow.c: an excerpt of the calls of some communicators alone (ROLL_EXCERPT_NARROW).
 *
 * A wrong call of a communicator of thousands is judged by the calls on it, and these are a few in a hundred of what
 * its members do: all of their records would reach less far back and cost the root seconds. So they alone are sent,
 * and of them those around the place: members are thousands of calls apart, and each comes there with as many calls as
 * the others. They have numbers of their own: with the ring's tickets each gap would be a loss. Where records of the
 * ring are lost a number is left out, for one of them may have been such a call. Messages are no part of it, because
 * the other end of each would be missed.
 *
 * Rejected: to have the root leave out what it does not need, because what it costs is to receive it; and to name the
 * tickets between, which an engine that finds its log by ticket would have to keep room for.
 */
#include "daemon/agent/agent_digest_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

struct kept {
    uint64_t ticket, number; /* in the ring, and as it was sent */
};

/* Which collectives of one communicator are sent. */
struct only {
    uint16_t comm;  /* the rank's own id */
    bool back;      /* what is looked for lies behind here: the ring has come to calls before `first` */
    bool passed;    /* the rank has made a call from `high` on */
    uint32_t low;   /* the first one that is wanted; */
    uint32_t first; /* it and some before it, */
    uint32_t high;  /* and those before this one */
};

struct narrow {
    struct only *only; /* owned */
    size_t onlys;
    struct kept *kept; /* owned; ascending */
    size_t used, room;
    uint64_t base;     /* the number of the first record */
    uint64_t next;     /* ticket behind the last record that was read, */
    uint64_t number;   /* and the number that the next one that is kept has */
    uint64_t followed; /* those behind what was there at the beginning */
    struct roll_record *out;
};

bool roll_agent_narrow_is_asked(const struct folded_run *run)
{
    return run->ask.scope == ROLL_EXCERPT_NARROW;
}

/* What is said of the communicator of this record; NULL: nothing, or the record is no call on it. */
static struct only *only_of(const struct narrow *w, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool counts = class == ROLL_CLASS_COLL || class == ROLL_CLASS_COMM || class == ROLL_CLASS_NONE;
    for (size_t i = 0; i < w->onlys && counts; i++) {
        if (w->only[i].comm == rec->comm) {
            return &w->only[i];
        }
    }
    return NULL;
}

/* The record is a collective with a number, by which it is told whether it belongs to the excerpt. */
static bool is_numbered(const struct roll_record *rec)
{
    return roll_op_class(rec->op) == ROLL_CLASS_COLL && rec->count != 0;
}

static bool is_kept(const struct only *only, const struct roll_record *rec)
{
    return !is_numbered(rec) || (rec->seq >= only->first && rec->seq < only->high);
}

/* From the newest record back to the first one that is sent, of whichever communicator that is. */
static uint64_t find_begin(const struct narrow *w, const struct roll_excerpt_records *records,
                           const struct roll_frame_excerpt *ask)
{
    uint64_t begin = records->next, kept = 0;
    size_t left = w->onlys;
    for (uint64_t ticket = records->next; left > 0 && ticket-- > records->oldest;) {
        struct roll_record rec;
        struct only *only = records->record(records->from, ticket, &rec) ? only_of(w, &rec) : NULL;
        if (!only || !is_numbered(&rec)) {
            continue;
        }
        if (rec.seq < only->first) {
            left -= !only->back;
            only->back = true;
        } else if (rec.seq < only->high) {
            if (ask->most != 0 && ++kept > ask->most) {
                break;
            }
            begin = ticket;
        }
    }
    return begin;
}

int roll_agent_narrow_begin(const struct folded_run *run, struct folded *f, const struct roll_excerpt_records *records)
{
    struct narrow *w = calloc(1, sizeof(*w));
    f->narrow = w;
    if (!w || !(w->only = calloc(f->comms + 1, sizeof(*w->only))) ||
        !(w->out = malloc(ROLL_AGENT_BATCH * sizeof(*w->out)))) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < f->comms; i++) {
        const struct roll_frame_want *want = roll_agent_excerpt_named(run, f->comm[i].key);
        if (want) {
            uint64_t history = run->ask.history;
            w->only[w->onlys++] = (struct only){.comm = f->comm[i].id,
                                                .low = want->low,
                                                .first = want->low > history ? want->low - (uint32_t)history : 0,
                                                .high = want->high ? want->high : UINT32_MAX};
        }
    }
    f->begin = w->next = find_begin(w, records, &run->ask);
    f->end = f->next;
    f->copy->sent = f->copy->acked = f->begin;
    int err = roll_excerpt_places(records, f->fold, f->begin, &f->place, &f->places);
    size_t keep = 0;
    bool ahead = false;
    for (size_t i = 0; !err && i < f->places; i++) { /* where it stands elsewhere nobody asks */
        const struct roll_fold_place *p = &f->place[i];
        for (size_t k = 0; p->op == ROLL_OP_NONE && k < w->onlys; k++) {
            if (w->only[k].comm == p->comm) {
                f->lacks = f->lacks || (f->begin != 0 && w->only[k].low < p->next);
                f->place[keep] = *p;
                /* Of a rank that is behind, nobody sees how it comes there. */
                ahead = ahead || p->next < w->only[k].first;
                f->place[keep].next = p->next > w->only[k].first ? p->next : w->only[k].first;
                keep++;
                break;
            }
        }
    }
    w->base = w->number = f->begin + (ahead && f->begin == 0); /* places before number 0 have no meaning */
    f->places = keep;
    return err;
}

void roll_agent_narrow_end(struct folded *f)
{
    if (f->narrow) {
        free(f->narrow->only);
        free(f->narrow->kept);
        free(f->narrow->out);
        free(f->narrow);
        f->narrow = NULL;
    }
}

uint64_t roll_agent_narrow_first(const struct folded *f)
{
    return f->narrow->base;
}

bool roll_agent_narrow_has_passed(const struct folded *f)
{
    const struct narrow *w = f->narrow;
    bool passed = w->onlys > 0;
    for (size_t i = 0; i < w->onlys && passed; i++) {
        passed = w->only[i].passed;
    }
    return passed;
}

bool roll_agent_narrow_is_full(const struct folded *f, uint64_t follow)
{
    return roll_agent_narrow_has_passed(f) || f->narrow->followed >= follow;
}

/* The number under which this record was sent; UINT64_MAX: it was not. */
static uint64_t number_of(const struct narrow *w, uint64_t ticket)
{
    size_t low = 0, high = w->used;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (w->kept[mid].ticket < ticket) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < w->used && w->kept[low].ticket == ticket ? w->kept[low].number : UINT64_MAX;
}

/* Takes the new records of the ring among them. Returns how many belong to the excerpt, or NOMEM. */
static int64_t take(const struct folded *f, struct narrow *w, const struct roll_record *recs, size_t n)
{
    size_t out = 0;
    int err = ROLL_GROW(w->kept, w->room, w->used + n);
    for (size_t i = 0; !err && i < n; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        struct only *only = only_of(w, &recs[i]);
        w->number += ticket != w->next;
        w->next = ticket + 1;
        if (only && is_kept(only, &recs[i])) {
            w->out[out] = recs[i];
            w->out[out++].seal = roll_seal(w->number, roll_seal_state(recs[i].seal));
            w->kept[w->used++] = (struct kept){ticket, w->number++};
            w->followed += ticket >= f->end;
        }
    }
    return err ? err : (int64_t)out;
}

/* These records have been sent, as far as they belong to the excerpt: whose calls have come to the end? */
static void pass(struct narrow *w, const struct roll_record *recs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct only *only = only_of(w, &recs[i]);
        if (only && is_numbered(&recs[i]) && recs[i].seq >= only->high) {
            only->passed = true;
        }
    }
}

int roll_agent_narrow_send(const struct turn *t, struct roll_frame_head head, const struct roll_record *recs,
                           uint64_t *seq)
{
    struct narrow *w = t->f->narrow;
    const struct narrow before = *w; /* what is not sent is read again */
    int64_t n = 0;
    *seq = 0;
    if (head.count > ROLL_AGENT_BATCH) {
        return ROLL_E_SIZE;
    }
    if (head.type == ROLL_FRAME_RECORDS) {
        n = take(t->f, w, recs, head.count);
    } else {
        for (uint32_t i = 0; i < head.count; i++) {
            uint64_t number = number_of(w, roll_seal_ticket(recs[i].seal));
            if (number != UINT64_MAX) {
                w->out[n] = recs[i];
                w->out[n++].seal = roll_seal(number, roll_seal_state(recs[i].seal));
            }
        }
    }
    if (n < 0) {
        return (int)n;
    }
    uint32_t read = head.count;
    int err = 0;
    if (n > 0) {
        err = roll_agent_defs_name(t, w->out, (size_t)n);
    }
    if (n > 0 && !err) {
        head.count = (uint32_t)n;
        head.first = roll_seal_ticket(w->out[0].seal);
        err = t->d->send(t->d->ctx, head, w->out, (size_t)n * sizeof(*w->out), seq);
    }
    if (!err && head.type == ROLL_FRAME_RECORDS) {
        pass(w, recs, read);
    }
    if (err) {
        w->used = before.used;
        w->next = before.next;
        w->number = before.number;
        w->followed = before.followed;
    }
    return err;
}
