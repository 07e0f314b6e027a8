/*
 * take.c: one pass over a series: every call goes into its rank's fold, and the node's level adds the folds up, as an
 * agent does while a job runs (daemon/agent/agent_digest.c).
 *
 * Of each ring the newest records stay in memory, as many as a ring of the usual size holds: so where an excerpt has to
 * begin is found as an agent finds it in its ring. Keeping all records was rejected: a node's traces of a day are
 * gigabytes. What the excerpt holds is read a second time (cut.c), because frames and the times between them matter to
 * who judges.
 */
#include "daemon/console/digest/digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/console/console.h"
#include "daemon/feed/feed.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

#define IMAGE       65536u /* records of a ring that are kept, of the first rings */
#define IMAGE_SMALL 8192u  /* of the others: a node has eight ranks, and a hundred rings are a hostile directory */
#define RINGS_LARGE 32u
#define CUT_EACH    1024u /* records of a ring between two cuts of its fold: fewer than its windows hold */
#define SUM_EACH    4096u /* records of all rings between two cuts of the level */
#define AUTO_PLACES 4u    /* places that the node finds wanting by itself and sends along */
#define PASSED      (2 * ROLL_DIGEST_WINDOW) /* calls behind a place that all members have made when it is cut out */
#define INSIDE_NS   (1000 * ROLL_MS)
#define STAND_NS    (250 * ROLL_MS)

struct taken_ring *roll_taken_ring(const struct roll_taken *t, uint64_t epoch)
{
    uint32_t i = roll_map_get(&t->ring_at, epoch);
    return i == ROLL_MAP_NONE ? NULL : t->ring[i];
}

static void ring_destroy(struct taken_ring *r)
{
    if (r) {
        roll_fold_destroy(&r->fold);
        free(r->header);
        free(r->defs);
        free(r->chunk);
        free(r->comm);
        free(r->image);
        free(r);
    }
}

void roll_taken_fini(struct roll_taken *t)
{
    for (size_t i = 0; i < t->rings; i++) {
        ring_destroy(t->ring[i]);
    }
    for (size_t i = 0; i < t->keys; i++) {
        roll_spans_fini(&t->key[i].spans);
    }
    for (size_t i = 0; i < t->excerpts; i++) {
        for (size_t k = 0; k < t->excerpt[i].parts; k++) {
            free(t->excerpt[i].part[k].place);
        }
        free(t->excerpt[i].part);
        free(t->excerpt[i].comm);
    }
    for (size_t i = 0; i < t->places; i++) {
        roll_spans_fini(&t->place[i].spans);
    }
    roll_sum_destroy(&t->sum);
    roll_digest_fini(&t->cut);
    roll_digest_fini(&t->up);
    roll_digest_fini(&t->hints);
    roll_map_fini(&t->ring_at);
    roll_map_fini(&t->key_at);
    free(t->ring);
    free(t->key);
    free(t->place);
    free(t->observed);
    free(t->excerpt);
    free(t->segment);
    free(t->nexts);
}

/* rings and definitions */

static int take_ring(struct roll_taken *t, const struct roll_frame *frame, bool *cut)
{
    struct roll_ring_header h;
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    if (roll_feed_run_of(frame, job, &restart) != 0 ||
        (t->named && (strcmp(job, t->job) != 0 || restart != t->restart))) {
        *cut = true; /* damaged, or of another run, whose traces are another series */
        return 0;
    }
    if (roll_taken_ring(t, frame->head.stream)) {
        return 0;
    }
    memcpy(&h, frame->payload, sizeof(h));
    struct taken_ring *r = calloc(1, sizeof(*r));
    int err = r ? ROLL_GROW(t->ring, t->ring_room, t->rings + 1) : ROLL_E_NOMEM;
    err = err ? err : roll_map_reserve(&t->ring_at);
    if (!err) {
        r->epoch = frame->head.stream;
        r->clock_offset = (int64_t)(h.clock_real_ns - h.clock_mono_ns);
        r->slots = t->rings < RINGS_LARGE ? IMAGE : IMAGE_SMALL;
        while (r->slots < t->how->history) {
            r->slots *= 2;
        }
        r->header = malloc(ROLL_RING_HEADER_BYTES);
        r->image = calloc(r->slots, sizeof(*r->image));
        r->fold = roll_fold_new(INSIDE_NS);
        err = r->header && r->image && r->fold ? 0 : ROLL_E_NOMEM;
    }
    if (err) {
        ring_destroy(r);
        return err;
    }
    memcpy(r->header, frame->payload, ROLL_RING_HEADER_BYTES);
    (void)roll_map_add(&t->ring_at, r->epoch, (uint32_t)t->rings);
    t->ring[t->rings++] = r;
    if (!t->named) {
        memcpy(t->job, job, sizeof(t->job));
        memcpy(t->host, h.host, sizeof(t->host) - 1);
        t->restart = restart;
        t->named = true;
    }
    return 0;
}

static int take_comm(struct taken_ring *r, const struct roll_def *def)
{
    int err = roll_fold_comm(r->fold, def->id, &def->comm.info);
    if (err == 0) {
        err = ROLL_GROW(r->comm, r->comm_room, r->comms + 1);
    }
    if (err == 0) {
        r->comm[r->comms++] = (struct taken_comm){
            .key = def->comm.info.key, .size = (uint32_t)def->comm.info.nranks, .id = (uint16_t)def->id};
    }
    return err == ROLL_E_NOMEM ? err : 0; /* one that cannot be is the engine's to refuse */
}

static int take_defs(struct taken_ring *r, const struct roll_frame *frame, bool *cut)
{
    uint64_t first = frame->head.first;
    size_t bytes = frame->head.payload;
    struct roll_def def;
    int err = 0;
    if (first > ROLL_RING_MAX_DEFS_BYTES || first + bytes <= r->defs_offset) {
        return 0;
    }
    for (size_t at = 0; at < bytes && err == 0;) {
        uint64_t offset = first + at;
        if (roll_def_decode(frame->payload, bytes, &at, &def) != 0) {
            *cut = true;
            return 0;
        }
        err = def.type == ROLL_DEF_COMM && offset >= r->defs_offset ? take_comm(r, &def) : 0;
    }
    err = err ? err : ROLL_GROW(r->defs, r->defs_room, r->defs_used + bytes);
    err = err ? err : ROLL_GROW(r->chunk, r->chunk_room, r->chunks + 1);
    if (!err) {
        memcpy(r->defs + r->defs_used, frame->payload, bytes);
        r->chunk[r->chunks++] = (struct taken_chunk){first, r->defs_used, bytes};
        r->defs_used += bytes;
        r->defs_offset = first + bytes;
    }
    return err;
}

/* the level */

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

static int add_place(struct roll_taken *t, const struct roll_digest_at *at, bool asked)
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

static int take_up(struct roll_taken *t)
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
            err = add_place(t, &(struct roll_digest_at){h->key, first, first}, false);
        } else if (h->why == ROLL_HINT_OBSERVED) {
            err = take_observed(t, h);
        }
    }
    return err;
}

static int cut_ring(struct roll_taken *t, uint32_t i)
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

/* The level is cut, and what waits to be passed by all members is looked at. */
static int cut_level(struct roll_taken *t)
{
    struct roll_sum_place place;
    int err = 0;
    for (uint32_t i = 0; i < t->rings && !err; i++) {
        err = t->ring[i]->cut != t->ring[i]->next ? cut_ring(t, i) : 0;
    }
    roll_digest_clear(&t->up);
    roll_sum_cut(t->sum, t->now_ns, &t->up);
    err = err ? err : take_up(t);
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

/* records */

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
        err = !err && r->next - r->cut >= CUT_EACH ? cut_ring(t, i) : err;
    }
    return !err && t->since_sum >= SUM_EACH ? cut_level(t) : err;
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
        return take_ring(t, frame, cut);
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
    return type == ROLL_FRAME_DEFS ? take_defs(r, frame, cut) : take_records(t, r, frame);
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
    int err = cut_level(t);
    roll_digest_clear(&t->up);
    roll_sum_cut(t->sum, t->now_ns + 2 * STAND_NS, &t->up);
    for (size_t i = 0; i < t->up.hints; i++) {
        const struct roll_digest_hint *h = &t->up.hint[i];
        roll_digest_add_hint(&t->hints, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    err = err ? err : take_up(t);
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
        err = add_place(t, &how->at[i], true);
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
