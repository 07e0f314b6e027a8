/*
 * take.c: one pass over a series: every call goes into its rank's fold (take_rings.c), and the node's level adds the
 * folds up (take_level.c), as an agent does while a job runs (daemon/agent/agent_digest.c). What an excerpt holds is
 * read a second time (cut.c), because frames and the times between them matter to who judges.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/feed/feed.h"
#include "trace/err.h"
#include "trace/op.h"

#include <string.h>

#define CUT_EACH 1024u /* records of a ring between two cuts of its fold: fewer than its windows hold */
#define SUM_EACH 4096u /* records of all rings between two cuts of the level */
#define STAND_NS (250 * ROLL_MS)

/* So many records are not in the traces: before the first that is there, or behind it. */
static void lacks(struct taken_ring *r, uint64_t records)
{
    *(r->begun ? &r->lost : &r->older) += records;
}

static int take_new(struct roll_taken *t, struct taken_ring *r, const struct roll_record *rec, uint64_t ticket)
{
    if (ticket != r->next) {
        lacks(r, ticket - r->next);
        roll_fold_lost(r->fold);
    }
    r->first = r->next == 0 ? ticket : r->first;
    r->next = ticket + 1;
    r->image[ticket & (r->slots - 1)] = *rec;
    enum roll_op_class class = roll_op_class(rec->op);
    uint64_t wall = rec->enter_ns + (uint64_t)r->clock_offset;
    t->first_ns = t->first_ns == 0 || wall < t->first_ns ? wall : t->first_ns;
    t->last_ns = wall > t->last_ns ? wall : t->last_ns;
    t->now_ns = rec->enter_ns > t->now_ns ? rec->enter_ns : t->now_ns;
    t->records++;
    t->since_sum++;
    t->calls += class != ROLL_CLASS_MOE && class < ROLL_CLASS_EXT && class != ROLL_CLASS_SYNC;
    return roll_fold_record(r->fold, rec, t->now_ns);
}

static int take_known(struct roll_taken *t, struct taken_ring *r, const struct roll_record *rec, uint64_t ticket)
{
    struct roll_record *known = &r->image[ticket & (r->slots - 1)];
    bool there = known->seal != 0 && roll_seal_ticket(known->seal) == ticket;
    if (there && roll_seal_state(rec->seal) <= roll_seal_state(known->seal)) {
        return 0; /* it came twice */
    }
    if (there) {
        *known = *rec;
    }
    return roll_fold_record(r->fold, rec, t->now_ns);
}

static int take_records(struct roll_taken *t, struct taken_ring *r, const struct roll_frame *frame)
{
    bool updates = frame->head.type == ROLL_FRAME_UPDATES;
    uint32_t i = roll_map_get(&t->ring_at, r->epoch);
    int err = 0;
    for (uint32_t k = 0; k < frame->head.count && !err; k++) {
        struct roll_record rec;
        roll_frame_record(frame, k, &rec);
        uint64_t ticket = roll_seal_ticket(rec.seal);
        if (roll_seal_state(rec.seal) == ROLL_STATE_EMPTY || (updates && ticket >= r->next)) {
            continue;
        }
        bool new = ticket >= r->next;
        err = new ? take_new(t, r, &rec, ticket) : take_known(t, r, &rec, ticket);
        r->begun = r->begun || (new && (frame->head.flags & ROLL_RECORDS_REPEATED) == 0);
        err = !err && r->next - r->cut >= CUT_EACH ? roll_taken_cut_ring(t, i) : err;
    }
    return !err && t->since_sum >= SUM_EACH ? roll_taken_cut_level(t) : err;
}

static void take_status(struct taken_ring *r, const struct roll_frame *frame)
{
    struct roll_frame_status s;
    memcpy(&s, frame->payload, sizeof(s) < frame->head.payload ? sizeof(s) : frame->head.payload);
    if (frame->head.payload >= sizeof(s) && s.proc_state >= ROLL_PROC_RUNNING && s.proc_state <= ROLL_PROC_DEAD) {
        r->status = s;
        r->clock_offset = (int64_t)(s.clock_real_ns - s.clock_mono_ns);
    }
}

static int take_frame(struct roll_taken *t, const struct roll_frame *frame, bool *cut)
{
    unsigned type = frame->head.type;
    if (type == ROLL_FRAME_RING) {
        return roll_taken_add_ring(t, frame, cut);
    }
    if (type != ROLL_FRAME_DEFS && type != ROLL_FRAME_RECORDS && type != ROLL_FRAME_UPDATES &&
        type != ROLL_FRAME_STATUS) {
        return 0;
    }
    struct taken_ring *r = roll_taken_ring(t, frame->head.stream);
    if (!r) {
        *cut = true;
        return 0;
    }
    if (type == ROLL_FRAME_STATUS) {
        take_status(r, frame);
        return 0;
    }
    return type == ROLL_FRAME_DEFS ? roll_taken_add_defs(r, frame, cut) : take_records(t, r, frame);
}

/* A segment begins: reading may begin there, too. */
static int note_segment(struct roll_taken *t)
{
    int err = ROLL_GROW(t->segment, t->segment_room, t->segments + 1);
    err = err ? err : ROLL_GROW(t->nexts, t->nexts_room, t->nexts_used + t->rings);
    if (!err) {
        t->segment[t->segments++] = (struct taken_segment){t->nexts_used, t->rings};
        for (size_t i = 0; i < t->rings; i++) {
            t->nexts[t->nexts_used++] = t->ring[i]->next;
        }
    }
    return err;
}

/* Nobody moves any more: what stands now stands for good. */
static int take_end(struct roll_taken *t)
{
    for (size_t i = 0; i < t->rings; i++) {
        struct taken_ring *r = t->ring[i];
        bool gone = r->status.proc_state == ROLL_PROC_FINISHED || r->status.proc_state == ROLL_PROC_DEAD;
        if (gone && r->status.head > r->next) {
            lacks(r, r->status.head - r->next); /* a dead process left them unsealed */
        }
        struct roll_feed_stream ring = {.lost = r->lost, .older = r->older};
        memcpy(ring.losses, r->status.losses, sizeof(ring.losses));
        roll_feed_missing(&ring, &r->lost, &r->older); /* by the rule by which traces are judged */
    }
    int err = roll_taken_cut_level(t);
    roll_digest_clear(&t->up);
    roll_sum_cut(t->sum, t->now_ns + 2 * STAND_NS, &t->up);
    for (size_t i = 0; i < t->up.hints; i++) {
        const struct roll_digest_hint *h = &t->up.hint[i];
        roll_digest_add_hint(&t->hints, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    err = err ? err : roll_taken_up(t);
    err = err ? err : roll_taken_note_end(t);
    /* The digest that is written: all totals once more. */
    roll_sum_again(t->sum);
    roll_digest_clear(&t->up);
    roll_sum_cut(t->sum, t->now_ns, &t->up);
    size_t kept = 0;
    for (size_t i = 0; i < t->up.hints; i++) { /* of what its own members have observed the rings tell */
        if (t->up.hint[i].why != ROLL_HINT_OBSERVED) {
            t->up.hint[kept++] = t->up.hint[i];
        }
    }
    t->up.hints = kept;
    /* Of its members here a node tells one hash: that they differ it has to say. */
    for (size_t i = 0; i < t->places; i++) {
        if (!t->place[i].asked) {
            roll_digest_add_hint(&t->up, t->place[i].at.key, ROLL_HINT_DIFFERS, t->place[i].at.seq);
        }
    }
    return t->up.short_of_memory ? ROLL_E_NOMEM : err;
}

int roll_take(struct roll_taken *t, struct roll_series *s, const struct roll_digest_how *how)
{
    int err = 0;
    *t = (struct roll_taken){.how = how};
    t->sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS});
    err = t->sum ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < how->ats && !err; i++) {
        err = roll_taken_add_place(t, &how->at[i], true);
    }
    err = err ? err : roll_series_begin(s, 0);
    while (!err && !s->ended) {
        while (t->segments <= s->at && !err) {
            err = note_segment(t);
        }
        err = err ? err : take_frame(t, &s->frame, s->cut);
        err = err ? err : roll_series_advance(s);
    }
    return err ? err : take_end(t);
}
