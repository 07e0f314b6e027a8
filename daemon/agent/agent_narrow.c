/*
 * agent_narrow.c: an excerpt of the calls of some communicators alone (ROLL_EXCERPT_NARROW).
 *
 * A wrong call of a communicator of thousands is judged by the calls on it, and these are a few in a hundred of what
 * its members do: all of their records would reach less far back and cost the root seconds. So they alone are sent,
 * with numbers of their own: with the ring's tickets each gap would be a loss. Where records of the ring are lost a
 * number is left out, for one of them may have been such a call. Messages are no part of it, because the other end of
 * each would be missed.
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

struct narrow {
    struct {
        uint16_t comm; /* the rank's own id */
        uint32_t low;  /* the first collective that is wanted */
    } * only;          /* owned */
    size_t onlys;
    struct kept *kept; /* owned; ascending */
    size_t used, room;
    uint64_t next;     /* ticket behind the last record that was read, */
    uint64_t number;   /* and the number that the next one that is kept has */
    uint64_t followed; /* those behind what was there at the beginning */
    struct roll_record *out;
};

bool roll_agent_narrow_is_asked(const struct folded_run *run)
{
    return run->ask.scope == ROLL_EXCERPT_NARROW;
}

static bool is_kept(const struct narrow *w, const struct roll_record *rec, uint32_t *low)
{
    enum roll_op_class class = roll_op_class(rec->op);
    bool counts = class == ROLL_CLASS_COLL || class == ROLL_CLASS_COMM || class == ROLL_CLASS_NONE;
    for (size_t i = 0; i < w->onlys && counts; i++) {
        if (w->only[i].comm == rec->comm) {
            *low = w->only[i].low;
            return true;
        }
    }
    return false;
}

/* From the newest record back to the first one that is wanted, and to so many before it as the root wants besides. */
static uint64_t find_begin(const struct narrow *w, const struct roll_excerpt_records *records,
                           const struct roll_frame_excerpt *ask)
{
    uint64_t begin = records->next, before = ask->history, kept = 0;
    for (uint64_t ticket = records->next; ticket-- > records->oldest;) {
        struct roll_record rec;
        uint32_t low;
        if (!records->record(records->from, ticket, &rec) || !is_kept(w, &rec, &low)) {
            continue;
        }
        bool wanted = roll_op_class(rec.op) == ROLL_CLASS_COLL && rec.count != 0 && rec.seq >= low;
        if ((!wanted && before == 0 && w->onlys == 1) || (ask->most != 0 && ++kept > ask->most)) {
            break;
        }
        if (wanted || before > 0) {
            before = wanted ? ask->history : before - 1;
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
            w->only[w->onlys].comm = f->comm[i].id;
            w->only[w->onlys++].low = want->low;
        }
    }
    f->begin = w->next = w->number = find_begin(w, records, &run->ask);
    f->end = f->next;
    f->copy->sent = f->copy->acked = f->begin;
    int err = roll_excerpt_places(records, f->fold, f->begin, &f->place, &f->places);
    size_t keep = 0;
    for (size_t i = 0; !err && i < f->places; i++) { /* where it stands elsewhere nobody asks */
        const struct roll_fold_place *p = &f->place[i];
        for (size_t k = 0; p->op == ROLL_OP_NONE && k < w->onlys; k++) {
            if (w->only[k].comm == p->comm) {
                f->lacks = f->lacks || (f->begin != 0 && w->only[k].low < p->next);
                f->place[keep++] = *p;
                break;
            }
        }
    }
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

uint64_t roll_agent_narrow_followed(const struct folded *f)
{
    return f->narrow->followed;
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
        uint32_t low;
        w->number += ticket != w->next;
        w->next = ticket + 1;
        if (is_kept(w, &recs[i], &low)) {
            w->out[out] = recs[i];
            w->out[out++].seal = roll_seal(w->number, roll_seal_state(recs[i].seal));
            w->kept[w->used++] = (struct kept){ticket, w->number++};
            w->followed += ticket >= f->end;
        }
    }
    return err ? err : (int64_t)out;
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
    if (n <= 0) {
        return (int)n;
    }
    head.count = (uint32_t)n;
    head.first = roll_seal_ticket(w->out[0].seal);
    int err = t->d->send(t->d->ctx, head, w->out, (size_t)n * sizeof(*w->out), seq);
    if (err) {
        w->used = before.used;
        w->next = before.next;
        w->number = before.number;
        w->followed = before.followed;
    }
    return err;
}
