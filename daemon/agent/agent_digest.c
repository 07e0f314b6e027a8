/*
 * agent_digest.c: see agent_digest.h.
 *
 * A ring is read by the same code that streams it (agent_ring_send.c): what that code would send goes into a fold here.
 * An excerpt is a second reader of the ring, which begins where the root wants it to and does send. A reader of its own
 * for folds was rejected: what a lapped ring, a thread cancelled in mid-write and a call that has not returned mean
 * would be decided at two places.
 */
#include "daemon/agent/agent_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/sum.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TELL_NS   (100 * ROLL_MS)
#define COUNT_NS  (1000 * ROLL_MS) /* how often the number of calls is told when nothing else is new */
#define INSIDE_NS (1000 * ROLL_MS) /* a host inside one call for so long is told of */
#define STAND_NS  (250 * ROLL_MS)
#define PAYLOAD   (32u * 1024u) /* of one DIGEST frame */
#define WANTS     65536u        /* that an EXCERPT may have */
#define HINTS     256           /* that are kept to be told again */
#define TURNS     64            /* batches of an excerpt that one look sends of one ring */

struct comm_of_ring {
    uint64_t key;
    uint16_t id;
};

struct folded {
    const struct roll_agent_ring *ring; /* borrowed */
    roll_fold_t *fold;                  /* owned */
    struct comm_of_ring *comm;          /* owned */
    size_t comms, room;
    uint64_t next; /* ticket behind the newest that was folded */
    uint32_t run, child;
    struct roll_agent_ring *copy;  /* the excerpt's reader; owned; NULL: there is no excerpt of it */
    struct roll_fold_place *place; /* owned; to be sent before its first record */
    size_t places;
    uint64_t begin, end; /* the excerpt's first ticket, and the one behind what was there when it began */
    bool begun, placed, all;
};

struct folded_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_sum_t *sum; /* owned */
    uint64_t calls, calls_told;
    uint64_t told_ns, stream; /* stream: epoch of one of its rings */
    uint32_t children, rings;
    uint64_t number; /* of the excerpt that is asked for; 0 = none */
    uint64_t history;
    struct roll_frame_want *want; /* owned; by key, ascending */
    uint32_t wants;
    struct roll_digest said; /* its newest hints: a digest tells a hint once, and a root may have been started anew */
    bool again;              /* they are told again */
};

struct roll_agent_digests {
    roll_agent_send_fn send;
    void *ctx;
    struct folded **ring; /* owned, as are those */
    size_t used, room;
    struct folded_run *run;
    size_t runs, run_room;
    struct roll_digest digest, up;
    uint8_t *buffer, *payload;
    uint64_t tell_ns;
};

/* What one turn of a reader works on. */
struct turn {
    struct roll_agent_digests *d;
    struct folded *f;
    uint64_t now;
};

roll_agent_digests_t *roll_agent_digests_new(roll_agent_send_fn send, void *ctx)
{
    roll_agent_digests_t *d = calloc(1, sizeof(*d));
    if (d) {
        d->send = send;
        d->ctx = ctx;
        d->buffer = malloc(ROLL_AGENT_BATCH * ROLL_RECORD_BYTES);
        d->payload = malloc(PAYLOAD);
    }
    if (d && (!d->buffer || !d->payload)) {
        roll_agent_digests_destroy(&d);
    }
    return d;
}

/* excerpts */

static void end_excerpt(struct folded *f)
{
    roll_agent_ring_destroy(&f->copy);
    free(f->place);
    f->place = NULL;
    f->places = 0;
    f->begun = f->placed = f->all = false;
}

static void end_excerpts(struct roll_agent_digests *d, uint32_t run)
{
    for (size_t i = 0; i < d->used; i++) {
        if (d->ring[i]->run == run) {
            end_excerpt(d->ring[i]);
        }
    }
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    struct roll_agent_ring *copy = from;
    return roll_ring_get(&copy->map, ticket, out) == 0;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const struct roll_frame_want *)a)->key, y = ((const struct roll_frame_want *)b)->key;
    return (x > y) - (x < y);
}

/* What is wanted of one communicator of the ring: what the root says, and what this node knows by itself. */
static struct roll_excerpt_want want_of(const struct folded_run *run, const struct comm_of_ring *comm)
{
    struct roll_sum_place place;
    struct roll_frame_want key = {.key = comm->key};
    const struct roll_frame_want *w =
        run->wants ? bsearch(&key, run->want, run->wants, sizeof(*run->want), by_key) : NULL;
    bool here = roll_sum_place(run->sum, comm->key, &place) && place.size != 0 && place.members == place.size;
    struct roll_excerpt_want want = {.comm = comm->id, .classes = w ? w->classes : 0};
    want.low = here ? place.low : w ? w->low : 0;
    if (here && w && w->low < want.low) {
        want.low = w->low;
    }
    return want;
}

/* Opens the second reader of a ring and finds where it begins. */
static int begin_excerpt(struct roll_agent_digests *d, struct folded *f)
{
    const struct folded_run *run = &d->run[f->run];
    struct roll_excerpt_want *want = calloc(f->comms + 1, sizeof(*want));
    int err = want ? roll_agent_ring_new(f->ring->path, &f->copy) : ROLL_E_NOMEM;
    if (err) {
        free(want);
        return err;
    }
    struct roll_agent_ring *copy = f->copy;
    if (copy->pidfd >= 0) { /* the agent's own reader watches the process */
        close(copy->pidfd);
        copy->pidfd = -1;
    }
    copy->second = true;
    copy->link = ROLL_LINK_LIVE;
    uint64_t head = roll_agent_ring_head(copy), slots = copy->map.mask + 1;
    struct roll_excerpt_records records = {
        .from = copy, .record = record_of, .next = f->next, .oldest = head > slots ? head - slots : 0};
    records.oldest = records.oldest < records.next ? records.oldest : records.next;
    for (size_t i = 0; i < f->comms; i++) {
        want[i] = want_of(run, &f->comm[i]);
    }
    f->begin = roll_excerpt_begin(&records, want, f->comms, run->history);
    f->end = f->next;
    err = roll_excerpt_places(&records, f->fold, f->begin, &f->place, &f->places);
    copy->sent = copy->acked = f->begin;
    free(want);
    if (err) {
        end_excerpt(f);
    }
    return err;
}

static int send_place(struct roll_agent_digests *d, struct folded *f)
{
    struct roll_frame_place *out = calloc(f->places + 1, sizeof(*out));
    uint64_t seq;
    if (!out) {
        return ROLL_E_NOMEM;
    }
    for (size_t i = 0; i < f->places; i++) {
        const struct roll_fold_place *p = &f->place[i];
        out[i] = (struct roll_frame_place){
            .comm = p->comm, .op = p->op, .sure = p->sure, .peer = p->peer, .next = p->next, .made = p->made};
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_PLACE, .stream = f->copy->map.header->epoch, .first = f->begin};
    int err = d->send(d->ctx, head, out, f->places * sizeof(*out), &seq);
    f->placed = f->placed || err == 0;
    free(out);
    return err;
}

/* What the excerpt's reader sends. The process behind the ring is told of by the ring's first reader. */
static int send_excerpt(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct turn *t = ctx;
    int err = 0;
    *seq = 0;
    switch (head.type) {
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        err = t->f->placed ? 0 : send_place(t->d, t->f);
        return err ? err : t->d->send(t->d->ctx, head, payload, bytes, seq);
    case ROLL_FRAME_DEFS:
        return t->d->send(t->d->ctx, head, payload, bytes, seq);
    default:
        return 0;
    }
}

static int send_mark(struct roll_agent_digests *d, const struct folded *f, const void *payload, size_t bytes)
{
    uint64_t seq;
    struct roll_frame_head head = {
        .type = ROLL_FRAME_EXCERPT, .stream = f->copy->map.header->epoch, .first = d->run[f->run].number};
    return d->send(d->ctx, head, payload, bytes, &seq);
}

/* Sends of the excerpt what there is. A queue that is full ends the turn; the next one goes on there. */
static int64_t pump_excerpt(struct roll_agent_digests *d, struct folded *f, uint64_t now)
{
    struct roll_agent_ring *copy = f->copy;
    struct turn turn = {d, f, now};
    struct roll_agent_out out = {send_excerpt, &turn, d->buffer};
    int64_t total = 0, n = 1;
    int err = f->begun ? 0 : send_mark(d, f, copy->map.header, ROLL_RING_HEADER_BYTES);
    if (err) {
        return err;
    }
    f->begun = true;
    copy->gone = f->ring->gone;
    copy->stopped = f->ring->stopped;
    /* The places are those of the fold, so the excerpt never runs ahead of it. It comes as far as the fold did, behind
     * records that nobody will write any more, too. */
    copy->upto = f->ring->sent;
    for (int i = 0; i < TURNS && n > 0; i++) {
        n = roll_agent_ring_pump(copy, &out, now);
        copy->acked = copy->sent; /* nothing is sent twice: what a link loses is asked for anew, from the beginning */
        total += n > 0 ? n : 0;
    }
    if (n >= 0 && !f->placed) {
        n = send_place(d, f);
    }
    if (n >= 0 && !f->all && copy->sent >= f->end) {
        n = send_mark(d, f, NULL, 0);
        f->all = n == 0;
    }
    return n < 0 && total == 0 ? n : total;
}

void roll_agent_digests_ask(roll_agent_digests_t *d, const struct roll_frame *frame)
{
    struct roll_frame_excerpt ask = {0};
    const struct folded *f = NULL;
    for (size_t i = 0; i < d->used && !f; i++) {
        f = d->ring[i]->ring->map.header->epoch == frame->head.stream ? d->ring[i] : NULL;
    }
    if (!f) {
        return;
    }
    struct folded_run *run = &d->run[f->run];
    if (frame->head.first != run->number) {
        end_excerpts(d, f->run);
        run->number = frame->head.first;
    }
    if (run->number == 0) {
        return;
    }
    memcpy(&ask, frame->payload, frame->head.payload < sizeof(ask) ? frame->head.payload : sizeof(ask));
    size_t bytes = ask.wants * sizeof(*run->want);
    struct roll_frame_want *want =
        ask.wants <= WANTS && frame->head.payload >= sizeof(ask) + bytes ? malloc(bytes + 1) : NULL;
    if (!want) { /* what is not there is not wanted: the excerpt has its history */
        ask.wants = 0;
    } else {
        memcpy(want, frame->payload + sizeof(ask), bytes);
        qsort(want, ask.wants, sizeof(*want), by_key);
    }
    free(run->want);
    run->want = want;
    run->wants = ask.wants;
    run->history = ask.history;
}

bool roll_agent_digests_lacks(const roll_agent_digests_t *d, const struct roll_agent_ring *ring, uint64_t head)
{
    for (size_t i = 0; d && i < d->used; i++) {
        const struct folded *f = d->ring[i];
        if (f->ring == ring && d->run[f->run].number != 0) {
            return !f->copy || !f->all || f->copy->sent < head;
        }
    }
    return false;
}

/* folding */

static void take_defs(struct folded *f, const void *payload, size_t bytes)
{
    struct roll_def def;
    for (size_t at = 0; at < bytes && roll_def_decode(payload, bytes, &at, &def) == 0;) {
        if (def.type == ROLL_DEF_COMM && roll_fold_comm(f->fold, def.id, &def.comm.info) == 0 &&
            ROLL_GROW(f->comm, f->room, f->comms + 1) == 0) {
            f->comm[f->comms++] = (struct comm_of_ring){.key = def.comm.info.key, .id = (uint16_t)def.id};
        }
    }
}

static int take_records(struct turn *t, const struct roll_record *recs, size_t n, bool updates)
{
    struct folded *f = t->f;
    int err = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        if (!updates && ticket != f->next) {
            roll_fold_lost(f->fold);
        }
        if (!updates) {
            enum roll_op_class class = roll_op_class(recs[i].op);
            f->next = ticket + 1;
            t->d->run[f->run].calls += class != ROLL_CLASS_MOE && class < ROLL_CLASS_EXT && class != ROLL_CLASS_SYNC;
        }
        int one = roll_fold_record(f->fold, &recs[i], t->now);
        err = err ? err : one;
    }
    return err;
}

/* Takes what the reader of the ring would send: records and definitions go into the fold, all else to the root. */
static int fold_frame(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct turn *t = ctx;
    switch (head.type) {
    case ROLL_FRAME_DEFS:
        take_defs(t->f, payload, bytes);
        break;
    case ROLL_FRAME_RECORDS:
    case ROLL_FRAME_UPDATES:
        (void)take_records(t, payload, head.count, head.type == ROLL_FRAME_UPDATES); /* NOMEM: the fold says less */
        break;
    default:
        return t->d->send(t->d->ctx, head, payload, bytes, seq);
    }
    *seq = 0;
    return 0;
}

static void fini_run(struct folded_run *run)
{
    roll_sum_destroy(&run->sum);
    roll_digest_fini(&run->said);
    free(run->want);
}

static int run_of(struct roll_agent_digests *d, const struct roll_ring_header *h, uint32_t *run)
{
    for (size_t i = 0; i < d->runs; i++) {
        if (d->run[i].restart == h->restart && strncmp(d->run[i].job, h->job, sizeof(d->run[i].job)) == 0) {
            *run = (uint32_t)i;
            return 0;
        }
    }
    size_t at = 0;
    while (at < d->runs && d->run[at].rings != 0) { /* the place of a run that is over is free */
        at++;
    }
    if (ROLL_GROW(d->run, d->run_room, at + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    if (at < d->runs) {
        fini_run(&d->run[at]);
    }
    d->run[at] = (struct folded_run){.restart = h->restart};
    memcpy(d->run[at].job, h->job, sizeof(d->run[at].job) - 1);
    d->run[at].sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS});
    d->runs += at == d->runs;
    *run = (uint32_t)at;
    return d->run[at].sum ? 0 : ROLL_E_NOMEM;
}

static struct folded *folded_of(struct roll_agent_digests *d, const struct roll_agent_ring *ring)
{
    for (size_t i = 0; i < d->used; i++) {
        if (d->ring[i]->ring == ring) {
            return d->ring[i];
        }
    }
    struct folded *f = calloc(1, sizeof(*f));
    uint32_t run = 0;
    if (!f || ROLL_GROW(d->ring, d->room, d->used + 1) != 0 || run_of(d, ring->map.header, &run) != 0 ||
        !(f->fold = roll_fold_new(INSIDE_NS))) {
        free(f);
        return NULL;
    }
    f->ring = ring;
    f->run = run;
    f->child = d->run[run].children++;
    d->run[run].rings++;
    d->run[run].stream = ring->map.header->epoch;
    d->ring[d->used++] = f;
    return f;
}

int64_t roll_agent_digests_pump(roll_agent_digests_t *d, struct roll_agent_ring *ring, uint64_t now)
{
    struct folded *f = folded_of(d, ring);
    if (!f) {
        return ROLL_E_NOMEM;
    }
    if (ring->link == ROLL_LINK_LIVE && d->run[f->run].number != 0 && !f->copy) {
        int err = begin_excerpt(d, f);
        if (err) {
            return err;
        }
    }
    int64_t sent = f->copy && ring->link == ROLL_LINK_LIVE ? pump_excerpt(d, f, now) : 0;
    if (sent < 0) {
        return sent;
    }
    struct turn turn = {d, f, now};
    struct roll_agent_out out = {fold_frame, &turn, d->buffer};
    ring->follower = f->copy; /* that the process has ended is told behind the last records of the excerpt, too */
    int64_t n = roll_agent_ring_pump(ring, &out, now);
    ring->follower = NULL;
    ring->acked = ring->sent;
    return n < 0 ? n : n + sent;
}

/* digests */

/* Whether all processes of the run on this node have ended: what stands now stands for good. */
static bool over(const struct roll_agent_digests *d, uint32_t run)
{
    for (size_t i = 0; i < d->used; i++) {
        if (d->ring[i]->run == run && !d->ring[i]->ring->gone) {
            return false;
        }
    }
    return true;
}

static int send_digest(struct roll_agent_digests *d, struct folded_run *run, uint64_t now)
{
    struct roll_digest_cursor cursor = {0};
    struct roll_frame_head head = {.type = ROLL_FRAME_DIGEST, .stream = run->stream, .first = run->calls};
    uint64_t seq;
    size_t bytes = roll_digest_encode(&d->up, &cursor, d->payload, PAYLOAD);
    int err = 0;
    if (bytes == 0 && (run->calls == run->calls_told || now - run->told_ns < COUNT_NS)) {
        return 0;
    }
    do {
        err = d->send(d->ctx, head, d->payload, bytes, &seq);
    } while (!err && (bytes = roll_digest_encode(&d->up, &cursor, d->payload, PAYLOAD)) != 0);
    if (!err) {
        run->calls_told = run->calls;
        run->told_ns = now;
    }
    return err;
}

/* All of it is told anew: everything in a digest is a total. */
static void tell_again(struct folded_run *run)
{
    roll_sum_again(run->sum);
    run->calls_told = 0;
    run->again = true;
}

/* Notes the hints that are told now, and adds the earlier ones where those are to be told again. */
static void keep_hints(struct roll_agent_digests *d, struct folded_run *run)
{
    size_t new = d->up.hints;
    for (size_t i = 0; run->again && i < run->said.hints; i++) {
        const struct roll_digest_hint *h = &run->said.hint[i];
        roll_digest_add_hint(&d->up, h->key, (enum roll_digest_why)h->why, h->seq);
    }
    run->again = false;
    for (size_t i = 0; i < new; i++) {
        const struct roll_digest_hint *h = &d->up.hint[i];
        if (run->said.hints == HINTS) {
            memmove(run->said.hint, run->said.hint + 1, (HINTS - 1) * sizeof(*h));
            run->said.hints--;
        }
        roll_digest_add_hint(&run->said, h->key, (enum roll_digest_why)h->why, h->seq);
    }
}

static void tell_run(struct roll_agent_digests *d, uint32_t at, uint64_t now)
{
    struct folded_run *run = &d->run[at];
    /* Where nobody is left who could move, nothing has to stand for a while before it is told. */
    uint64_t when = over(d, at) ? now + 2 * INSIDE_NS + STAND_NS : now;
    bool told = true;
    roll_digest_clear(&d->up);
    for (size_t i = 0; i < d->used; i++) {
        struct folded *f = d->ring[i];
        if (f->run == at && f->ring->link == ROLL_LINK_LIVE) {
            roll_digest_clear(&d->digest);
            roll_fold_cut(f->fold, when, &d->digest);
            int err = roll_sum_take(run->sum, f->child, &d->digest, now);
            told = told && !d->digest.short_of_memory && err != ROLL_E_NOMEM;
            if (!told) {
                roll_fold_again(f->fold);
            }
            run->stream = f->ring->map.header->epoch;
        }
    }
    roll_sum_cut(run->sum, now, &d->up);
    if (when != now) {
        roll_sum_cut(run->sum, when, &d->up);
    }
    keep_hints(d, run);
    if (d->up.short_of_memory || send_digest(d, run, now) != 0) {
        tell_again(run);
    }
}

void roll_agent_digests_tell(roll_agent_digests_t *d, uint64_t now, bool at_once)
{
    if (!at_once && now - d->tell_ns < TELL_NS) {
        return;
    }
    d->tell_ns = now;
    for (uint32_t i = 0; i < d->runs; i++) {
        if (d->run[i].rings != 0) {
            tell_run(d, i, now);
        }
    }
}

/* life */

void roll_agent_digests_again(roll_agent_digests_t *d)
{
    for (uint32_t i = 0; i < d->runs; i++) {
        end_excerpts(d, i);
        d->run[i].number = 0;
        if (d->run[i].sum) {
            tell_again(&d->run[i]);
        }
    }
}

static void drop_at(struct roll_agent_digests *d, size_t i)
{
    struct folded *f = d->ring[i];
    d->run[f->run].rings--;
    end_excerpt(f);
    roll_fold_destroy(&f->fold);
    free(f->comm);
    free(f);
    d->ring[i] = d->ring[--d->used];
}

void roll_agent_digests_drop(roll_agent_digests_t *d, const struct roll_agent_ring *ring)
{
    for (size_t i = 0; d && i < d->used; i++) {
        if (d->ring[i]->ring == ring) {
            drop_at(d, i);
            return;
        }
    }
}

void roll_agent_digests_destroy(roll_agent_digests_t **digests)
{
    roll_agent_digests_t *d = *digests;
    if (!d) {
        return;
    }
    while (d->used > 0) {
        drop_at(d, d->used - 1);
    }
    for (size_t i = 0; i < d->runs; i++) {
        fini_run(&d->run[i]);
    }
    roll_digest_fini(&d->digest);
    roll_digest_fini(&d->up);
    free(d->ring);
    free(d->run);
    free(d->buffer);
    free(d->payload);
    free(d);
    *digests = NULL;
}
