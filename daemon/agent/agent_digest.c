/*
 * agent_digest.c: see agent_digest.h.
 *
 * A ring is read by the same code that streams it (agent_ring_send.c): what that code would send goes into a fold here.
 * A reader of its own for folds was rejected: what a lapped ring, a thread cancelled in mid-write and a call that has
 * not returned mean would be decided at two places.
 */
#include "daemon/agent/agent_digest_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/def.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

#define COUNT_NS      (1000 * ROLL_MS) /* how often the number of calls is told when nothing else is new */
#define INSIDE_NS     (1000 * ROLL_MS) /* a host inside one call for so long is told of */
#define STAND_NS      (250 * ROLL_MS)
#define STOOD_STEP_NS (200 * ROLL_MS) /* digests are told twice as often */
#define MANY_RANKS    8192            /* of a job: then what follows an excerpt of calls alone can wait for a beat */

roll_agent_digests_t *roll_agent_digests_new(roll_agent_send_fn send, void *ctx)
{
    roll_agent_digests_t *d = calloc(1, sizeof(*d));
    if (d) {
        d->send = send;
        d->ctx = ctx;
        d->buffer = malloc(ROLL_AGENT_BATCH * ROLL_RECORD_BYTES);
        d->payload = malloc(ROLL_AGENT_PAYLOAD);
    }
    if (d && (!d->buffer || !d->payload)) {
        roll_agent_digests_destroy(&d);
    }
    return d;
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
    const struct roll_record *last = NULL;
    int err = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        if (!updates && ticket != f->next) {
            roll_fold_lost(f->fold);
        }
        if (!updates) {
            enum roll_op_class class = roll_op_class(recs[i].op);
            f->next = ticket + 1;
            bool is_call = class != ROLL_CLASS_MOE && class < ROLL_CLASS_EXT && class != ROLL_CLASS_SYNC;
            t->d->run[f->run].calls += is_call;
            f->calls += is_call;
            last = is_call && recs[i].comm != 0 ? &recs[i] : last; /* the ends of groups say nothing to people */
        } else if (ticket == roll_seal_ticket(f->last.seal)) {
            last = &recs[i];
        }
        int one = roll_fold_record(f->fold, &recs[i], t->now);
        err = err ? err : one;
    }
    f->last = last ? *last : f->last;
    return err;
}

/* Sends a STATUS with the rank's last call behind it: a root that gets no records has nothing else to show of a rank.
 */
static int send_status(const struct turn *t, struct roll_frame_head head, const void *status, uint64_t *seq)
{
    const struct folded *f = t->f;
    const struct roll_record *rec = &f->last;
    struct {
        struct roll_frame_status status;
        struct roll_frame_last last;
    } both = {.last = {.calls = f->calls, .comms = (uint32_t)f->comms}};
    memcpy(&both.status, status, sizeof(both.status));
    if (rec->op != ROLL_OP_NONE) {
        both.last.enter_ns = rec->enter_ns;
        both.last.seq = rec->seq;
        both.last.op = rec->op;
        both.last.inside = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
    }
    for (size_t i = 0; i < f->comms && rec->comm != 0; i++) {
        both.last.comm = f->comm[i].id == rec->comm ? f->comm[i].key : both.last.comm;
    }
    return t->d->send(t->d->ctx, head, &both, sizeof(both), seq);
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
    case ROLL_FRAME_STATUS:
        return send_status(t, head, payload, seq);
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
    bool live = ring->link == ROLL_LINK_LIVE, began = true;
    if (live && (d->run[f->run].number != f->number || roll_agent_excerpt_is_due(d, f))) {
        began = roll_agent_excerpt_begin(d, f) == 0; /* else it is tried again, and the fold does not wait for it */
    }
    struct turn turn = {d, f, now};
    struct roll_agent_out out = {fold_frame, &turn, d->buffer};
    ring->follower = f->copy; /* that the process has ended is told behind the last records of the excerpt, too */
    int64_t n = roll_agent_ring_pump(ring, &out, now);
    ring->follower = NULL;
    ring->acked = ring->sent;
    /* The excerpt comes as far as the fold has come just now: what has returned since is told with what was called
     * since. A queue that is full holds up the excerpt, and not the fold, whose ring would lap. */
    int64_t sent = live && began && f->number != 0 ? roll_agent_excerpt_pump(d, f, now) : 0;
    return n < 0 ? n : n + (sent > 0 ? sent : 0);
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

/* ended: of the run's processes on this node: how many calls they made is told at once. */
static int send_digest(struct roll_agent_digests *d, struct folded_run *run, uint64_t now, bool ended)
{
    struct roll_digest_cursor cursor = {0};
    struct roll_frame_head head = {.type = ROLL_FRAME_DIGEST, .stream = run->stream, .first = run->calls};
    uint64_t seq;
    size_t bytes = roll_digest_encode(&d->up, &cursor, d->payload, ROLL_AGENT_PAYLOAD);
    int err = 0;
    if (bytes == 0 && (run->calls == run->calls_told || (!ended && now - run->told_ns < COUNT_NS))) {
        return 0;
    }
    do {
        err = d->send(d->ctx, head, d->payload, bytes, &seq);
    } while (!err && (bytes = roll_digest_encode(&d->up, &cursor, d->payload, ROLL_AGENT_PAYLOAD)) != 0);
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

/* A time in which we were stopped, or the rank was kept waiting for a processor, is not one in which it stood. */
static void note_stood(struct folded *f, uint64_t now)
{
    uint64_t step = f->stood_at_ns ? now - f->stood_at_ns : 0, quiet = roll_fold_quiet_ns(f->fold, now);
    f->stood_at_ns = now;
    if (quiet < step || step == 0) {
        f->stood_ns = 0;
    } else if (f->ring->starved == 0) {
        f->stood_ns += step < STOOD_STEP_NS ? step : STOOD_STEP_NS;
    }
}

/* Nobody above hears of what was refused here. */
static void note_no_room(struct folded_run *run)
{
    struct roll_sum_figures f;
    roll_sum_figures(run->sum, &f);
    if (f.no_room > 0 && !run->no_room_told) {
        run->no_room_told = true;
        roll_log(ROLL_LOG_WARNING,
                 "agent: %s.%u: a rank tells of more communicators than there is room for: what does not fit is not "
                 "compared (said once)",
                 run->job, run->restart);
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
            if (f->ring->gone) {
                roll_fold_ended(f->fold);
            }
            roll_fold_cut(f->fold, when, &d->digest);
            f->hinted = f->hinted || d->digest.hints > 0;
            note_stood(f, now);
            int err = roll_sum_take(run->sum, f->child, &d->digest, now);
            told = told && !d->digest.short_of_memory && err != ROLL_E_NOMEM;
            if (!told) {
                roll_fold_again(f->fold);
            }
            run->stream = f->ring->map.header->epoch;
        }
    }
    note_no_room(run);
    roll_sum_cut(run->sum, now, &d->up);
    if (when != now) {
        roll_sum_cut(run->sum, when, &d->up);
    }
    if (when == now) {
        roll_sum_forget(run->sum, now);
    }
    roll_digest_keep_hints(&run->said, &d->up, run->again);
    run->again = false;
    if (d->up.short_of_memory || send_digest(d, run, now, when != now) != 0) {
        tell_again(run);
    }
}

void roll_agent_digests_tell(roll_agent_digests_t *d, uint64_t now)
{
    for (uint32_t i = 0; i < d->runs; i++) {
        if (d->run[i].rings != 0) {
            tell_run(d, i, now);
        }
    }
}

/*
 * Of the run's rings only those calls are on their way that some ranks make on communicators of thousands, behind what
 * was there when they were asked for. Then a look for each of them would be a frame for each, tens a second of each
 * rank, and to receive these costs the root of a job of MANY_RANKS and more all that it has; so they are sent with what
 * the next beat tells. In smaller jobs they are not, because who is right may be decided by them.
 */
static bool only_follows(const struct roll_agent_digests *d, uint32_t run)
{
    bool follows = roll_agent_narrow_is_asked(&d->run[run]);
    for (size_t i = 0; i < d->used && follows; i++) {
        const struct folded *f = d->ring[i];
        bool sent = f->number == d->run[run].number && (f->all || f->cut || (f->aside && f->begun));
        follows = f->run != run || (sent && f->ring->map.header->world_size >= MANY_RANKS);
    }
    return follows;
}

bool roll_agent_digests_sends(const roll_agent_digests_t *d)
{
    for (uint32_t i = 0; i < d->runs; i++) {
        if (d->run[i].rings != 0 && d->run[i].number != 0 && !only_follows(d, i)) {
            return true;
        }
    }
    return false;
}

/* life */

void roll_agent_digests_again(roll_agent_digests_t *d)
{
    for (uint32_t i = 0; i < d->runs; i++) {
        roll_agent_excerpts_end(d, i);
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
    roll_agent_excerpt_end(f);
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
