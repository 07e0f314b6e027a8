/*
 * root_digest.c: a run whose calls are compared by digests (docs/SCALE.md).
 *
 * The run's own feed knows its rings and processes, and gets no records. Where the digests say that something does not
 * agree, or a process fails, every ring's newest records are asked for: a case. They are kept until all rings have sent
 * theirs, and then go to an engine of the case's own, places first, so that no rank looks behind because its records
 * came later; from there on the engine sees everything that comes. Only that engine gives verdicts. To ask only the
 * members of the communicator that differs was rejected: what a rank waits for may stand on any other one.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/sum.h"
#include "daemon/verdict/verdict.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS  (100 * ROLL_MS)
#define STAND_NS (250 * ROLL_MS)
#define STAGE_NS (5000 * ROLL_MS) /* rings whose records have not come by then are taken for not heard */
#define REST_NS  (5000 * ROLL_MS) /* a case ends when every live rank has gone on for so long, and nothing was said */
#define OVER_NS  (500 * ROLL_MS)  /* the last digests of a run come within this time after its end */
#define HOLD_NS  (1000 * ROLL_MS) /* after a case that found something no other one is opened for so long ... */
#define HOLD_MOST                                                                                                      \
    (60000 * ROLL_MS)      /* ... and after cases that found nothing new, twice as long each time, up to this */
#define WANTS   16384u     /* communicators that an EXCERPT names; of others everything is asked for */
#define HISTORY 512u       /* records of each ring that are asked for besides */
#define RECORDS (1u << 21) /* history of all rings together, about */
#define AGAIN   3u         /* how often a case is begun anew because a later hint looks further back */

struct digested_ring {
    uint64_t stream;
    uint8_t *header;  /* the payload of its RING frame; owned */
    uint64_t head;    /* tickets handed out in it, as its agent said last */
    bool begun, all;  /* of the case that is open */
    uint64_t last_ns; /* of its rank's newest call when it was looked at last; polls show nobody going on */
};

struct staged {
    uint8_t *raw; /* owned */
    size_t bytes;
};

struct roll_digested {
    roll_sum_t *sum;
    struct digested_ring *ring; /* owned */
    size_t rings, ring_room;
    uint64_t *calls; /* by the number of an agent's place: the calls that it has folded; owned */
    size_t calls_room;
    struct roll_digest came, hints; /* hints: those that wait for a case, or were asked for in the one that is open */
    uint64_t refused, opened;
    uint64_t look_ns;
    bool failed, failed_told; /* a process has ended, and not in good order; a case was opened for that */
    uint64_t over_ns;         /* since when no process of the run lives; 0: some do */
    bool over_seen;           /* what they left was looked at */
    bool pending;             /* hints wait for a case */
    uint64_t hold_ns, held_until_ns;
    /* the case that is open */
    uint64_t number; /* 0: none is */
    bool fed;
    uint64_t opened_ns, rest_ns;
    unsigned again;
    struct staged *stage; /* owned */
    size_t staged, stage_room;
    roll_feed_t *feed; /* owned */
    uint64_t *said;    /* the run's number of each verdict of this feed, from 1; owned */
    size_t saids, said_room;
    uint64_t numbers; /* the highest number of the run */
    bool news;        /* the case has said what was not said before */
};

int roll_digested_new(struct roll_run *run)
{
    struct roll_digested *d = calloc(1, sizeof(*d));
    if (d) {
        d->sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = true});
        d->hold_ns = HOLD_NS;
    }
    if (!d || !d->sum) {
        roll_digested_destroy(&d);
        return ROLL_E_NOMEM;
    }
    run->digested = d;
    return 0;
}

static void clear_stage(struct roll_digested *d)
{
    while (d->staged > 0) {
        free(d->stage[--d->staged].raw);
    }
}

void roll_digested_destroy(struct roll_digested **pointer)
{
    struct roll_digested *d = *pointer;
    if (!d) {
        return;
    }
    clear_stage(d);
    for (size_t i = 0; i < d->rings; i++) {
        free(d->ring[i].header);
    }
    roll_sum_destroy(&d->sum);
    roll_feed_destroy(&d->feed);
    roll_digest_fini(&d->came);
    roll_digest_fini(&d->hints);
    free(d->stage);
    free(d->ring);
    free(d->calls);
    free(d->said);
    free(d);
    *pointer = NULL;
}

/* what is told outside */

bool roll_digested_waits(const struct roll_run *run)
{
    return run->digested && run->digested->number != 0 && !run->digested->fed;
}

uint32_t roll_digested_flags(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    bool keep = d && (roll_run_live(run) || !d->over_seen || d->pending || (d->number != 0 && !d->fed));
    return (run->digested ? ROLL_ACK_DIGEST : 0) | (keep ? ROLL_ACK_KEEP : 0);
}

uint64_t roll_digested_calls(const struct roll_run *run)
{
    uint64_t calls = 0;
    for (size_t i = 0; i < run->digested->calls_room; i++) {
        calls += run->digested->calls[i];
    }
    return calls;
}

json_t *roll_digested_json(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    struct roll_sum_figures f;
    roll_sum_figures(d->sum, &f);
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:s}", "windows", (json_int_t)f.windows, "fronts", (json_int_t)f.fronts,
                     "hints", (json_int_t)f.hints, "refused", (json_int_t)(f.refused + d->refused), "opened",
                     (json_int_t)d->opened, "records",
                     d->number == 0 ? "none"
                     : d->fed       ? "judged"
                                    : "asked");
}

/* verdicts */

/* A verdict like this one that stands already: a case that is opened for the same thing finds it again. */
static const struct roll_verdict_copy *said_before(const struct roll_run *run, const struct roll_verdict *v)
{
    for (size_t i = run->verdicts.used; i-- > 0;) {
        const struct roll_verdict_copy *c = run->verdicts.at[i];
        if (c->said.code == v->code && c->said.comm_key == v->comm_key && c->said.certainty == v->certainty &&
            c->ended_by == 0 && roll_rankset_equal(&c->said.culprits, &v->culprits)) {
            return c;
        }
    }
    return NULL;
}

static uint64_t number_of(const struct roll_digested *d, uint64_t number)
{
    return number != 0 && number <= d->saids ? d->said[number - 1] : 0;
}

static void say(roll_root_t *root, struct roll_run *run, struct roll_verdict_copy *copy, uint64_t *number)
{
    struct roll_digested *d = run->digested;
    struct roll_verdict *v = &copy->said;
    bool retires = roll_verdict_retires(v) != 0;
    v->supersedes = number_of(d, v->supersedes);
    v->confirms = number_of(d, v->confirms);
    v->withdraws = number_of(d, v->withdraws);
    const struct roll_verdict_copy *before = said_before(run, v);
    if ((before && roll_verdict_retires(v) == 0) || (v->withdraws == 0 && retires && v->certainty == ROLL_NOTE)) {
        *number = before ? before->said.number : 0;
        roll_verdict_copy_destroy(&copy);
        return;
    }
    *number = v->number = ++d->numbers;
    d->news = true;
    d->rest_ns = roll_mono_ns();
    roll_run_say(root, run, copy);
}

void roll_digested_verdicts(roll_root_t *root, struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    struct roll_verdict_copy *copy;
    uint64_t number;
    /* The engine that gets no records can know no more than what agents tell of processes without rings. */
    while ((copy = roll_feed_next(run->feed)) != NULL) {
        if (copy->said.code == ROLL_VERDICT_ATTACHED_UNSEEN) {
            copy->said.number = ++d->numbers;
            roll_run_say(root, run, copy);
        } else {
            roll_verdict_copy_destroy(&copy);
        }
    }
    while (d->feed && d->fed && (copy = roll_feed_next(d->feed)) != NULL) {
        say(root, run, copy, &number);
        if (ROLL_GROW(d->said, d->said_room, d->saids + 1) == 0) {
            d->said[d->saids++] = number;
        }
    }
}

/* asking */

/* What of a communicator is to be asked for: where its last member stands, and what hints say. */
static struct roll_frame_want want_of(const struct roll_digested *d, uint64_t key)
{
    struct roll_sum_place place = {0};
    bool known = roll_sum_place(d->sum, key, &place) && place.members != 0;
    struct roll_frame_want w = {.key = key, .low = UINT32_MAX};
    if (known) {
        w.low = place.members == place.size ? place.low : 0;
    }
    for (size_t i = 0; i < d->hints.hints; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        if (h->key == key && h->why == ROLL_HINT_DIFFERS && h->seq < w.low) {
            w.low = h->seq;
        } else if (h->key == key && h->why == ROLL_HINT_MESSAGES) {
            w.classes |= h->seq;
        }
    }
    return w;
}

static void want_add(const struct roll_digested *d, struct roll_frame_excerpt *ask, uint64_t key)
{
    struct roll_frame_want *list = (struct roll_frame_want *)(void *)(ask + 1), w = want_of(d, key);
    for (uint32_t i = 0; i < ask->wants; i++) {
        if (list[i].key == key) {
            return;
        }
    }
    if (ask->wants < WANTS && (w.low != UINT32_MAX || w.classes != 0)) {
        memcpy(&list[ask->wants++], &w, sizeof(w));
    }
}

static struct roll_frame_excerpt *ask_new(const struct roll_digested *d, size_t *bytes)
{
    struct roll_frame_excerpt *ask = malloc(sizeof(*ask) + WANTS * sizeof(struct roll_frame_want));
    struct roll_sum_place place;
    uint64_t key, history = RECORDS / (d->rings + 1);
    if (!ask) {
        return NULL;
    }
    *ask = (struct roll_frame_excerpt){.history = history < HISTORY ? history : HISTORY};
    for (size_t i = 0; i < d->hints.hints; i++) { /* hints first: they may be about what is judged below */
        if (d->hints.hint[i].key != 0) {
            want_add(d, ask, d->hints.hint[i].key);
        }
    }
    struct roll_frame_want *list = (struct roll_frame_want *)(void *)(ask + 1);
    uint32_t hinted = ask->wants;
    for (size_t i = 0; ask->wants < WANTS && roll_sum_at(d->sum, i, &key, &place); i++) {
        bool is_hinted = false;
        for (uint32_t k = 0; k < hinted && !is_hinted; k++) {
            is_hinted = list[k].key == key;
        }
        if (!is_hinted && place.members != 0) {
            list[ask->wants++] = want_of(d, key);
        }
    }
    *bytes = sizeof(*ask) + ask->wants * sizeof(*list);
    return ask;
}

/* Sends an EXCERPT to an agent, or to all that hold rings of the run; ask NULL: no more is wanted. */
static void send_ask(const struct roll_run *run, const struct roll_peer *peer, const void *ask, size_t bytes)
{
    for (size_t i = 0; i < peer->used; i++) {
        if (peer->streams[i].run == run) {
            struct roll_frame_head head = {
                .type = ROLL_FRAME_EXCERPT, .stream = peer->streams[i].stream, .first = run->digested->number};
            int err = roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, ask, bytes);
            if (err) {
                roll_log(ROLL_LOG_WARNING, "root: the agent on %s cannot be asked for records of %s.%u: %s", peer->host,
                         run->job, run->restart, roll_strerror(err));
            }
            return;
        }
    }
}

static void ask_all(roll_root_t *root, const struct roll_run *run)
{
    size_t bytes = 0;
    struct roll_frame_excerpt *ask = run->digested->number ? ask_new(run->digested, &bytes) : NULL;
    for (size_t i = 0; i < root->peers_used; i++) {
        if (!root->peers[i]->gone) {
            send_ask(run, root->peers[i], ask, bytes);
        }
    }
    free(ask);
}

/* the life of a case */

static void end_case(struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    run->judge = NULL;
    clear_stage(d);
    roll_feed_destroy(&d->feed);
    d->saids = 0;
    d->fed = d->news = false;
    d->number = 0;
}

static void open_case(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(run->feed), &config);
    bool news = d->news;
    end_case(run);
    d->news = news;
    d->feed = roll_feed_new(&config, run->job, run->restart);
    if (!d->feed) {
        roll_log(ROLL_LOG_ERROR, "root: %s.%u: no memory to judge what does not agree", run->job, run->restart);
        d->held_until_ns = now + HOLD_MOST;
        return;
    }
    roll_engine_expect(roll_feed_engine(d->feed), root->o.expected);
    roll_symbols_warm(roll_feed_symbols(d->feed));
    d->number = ++d->opened;
    d->opened_ns = d->rest_ns = now;
    d->pending = false;
    d->failed_told = d->failed_told || d->failed;
    for (size_t i = 0; i < d->rings; i++) {
        d->ring[i].begun = d->ring[i].all = false;
        d->ring[i].last_ns = 0;
    }
    roll_log(ROLL_LOG_INFO, "root: %s.%u: calls do not agree, or stand: their records are asked for (%llu)", run->job,
             run->restart, (unsigned long long)d->number);
    ask_all(root, run);
}

static void close_case(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    d->hold_ns = d->news ? HOLD_NS : 2 * d->hold_ns < HOLD_MOST ? 2 * d->hold_ns : HOLD_MOST;
    d->held_until_ns = now + d->hold_ns;
    end_case(run);
    roll_digest_clear(&d->hints);
    d->again = 0;
    ask_all(root, run);
}

static void feed_one(struct roll_run *run, const struct roll_frame *frame)
{
    (void)roll_feed_frame(run->digested->feed,
                          frame); /* the feed stays usable, and what it cannot take is no evidence */
}

static void feed_made(struct roll_run *run, const struct roll_frame_head *head, const void *payload, size_t bytes)
{
    static uint8_t raw[ROLL_FRAME_HEAD_BYTES + ROLL_RING_HEADER_BYTES];
    struct roll_frame frame;
    if (roll_frame_make(head, payload, bytes, raw, sizeof(raw), &frame) > 0) {
        feed_one(run, &frame);
    }
}

static void feed_staged(struct roll_run *run, bool (*wanted)(unsigned type))
{
    const struct roll_digested *d = run->digested;
    for (size_t i = 0; i < d->staged; i++) {
        struct roll_frame frame;
        if (roll_frame_decode(d->stage[i].raw, d->stage[i].bytes, &frame, NULL) == 0 && wanted(frame.head.type)) {
            feed_one(run, &frame);
        }
    }
}

static bool is_defs(unsigned type)
{
    return type == ROLL_FRAME_DEFS;
}

static bool is_place(unsigned type)
{
    return type == ROLL_FRAME_PLACE;
}

static bool is_records(unsigned type)
{
    return type == ROLL_FRAME_RECORDS || type == ROLL_FRAME_UPDATES;
}

static struct digested_ring *ring_of(struct roll_digested *d, uint64_t stream)
{
    for (size_t i = 0; i < d->rings; i++) {
        if (d->ring[i].stream == stream) {
            return &d->ring[i];
        }
    }
    return NULL;
}

/* Has every live rank made a call since the last look? */
static bool all_went_on(struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    const roll_engine_t *engine = roll_feed_engine(d->feed);
    struct roll_view_source v;
    bool all = true;
    for (uint32_t i = 0; roll_engine_source(engine, i, &v); i++) {
        struct digested_ring *r = ring_of(d, v.info.stream);
        bool live = v.proc == ROLL_PROC_RUNNING || v.proc == ROLL_PROC_STOPPED;
        if (r && live) {
            all = all && v.last_ns > r->last_ns;
            r->last_ns = v.last_ns;
        }
    }
    return all;
}

/* All that was asked for is here: the engine is fed, as if it had come in at this moment at all ranks. */
static void feed_case(struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    roll_feed_stamp(d->feed, roll_real_ns());
    (void)roll_feed_tick(d->feed, run->clock.engine_ns);
    for (size_t i = 0; i < d->rings; i++) {
        const struct digested_ring *r = &d->ring[i];
        feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r->stream}, r->header,
                  ROLL_RING_HEADER_BYTES);
    }
    feed_staged(run, is_defs);
    feed_staged(run, is_place);
    feed_staged(run, is_records);
    for (size_t i = 0; i < d->rings; i++) {
        const struct digested_ring *r = &d->ring[i];
        struct roll_feed_stream view;
        struct roll_frame_status status;
        if (!roll_feed_find(run->feed, r->stream, &view)) {
            continue;
        }
        if (r->all && roll_feed_status(run->feed, r->stream, &status)) {
            status.head = r->head;
            feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = r->stream}, &status,
                      sizeof(status));
        }
        struct roll_frame_sight sight = {.heard = r->all && view.heard, .starved = view.starved};
        feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = r->stream}, &sight, sizeof(sight));
    }
    clear_stage(d);
    d->fed = true;
    run->judge = d->feed;
    (void)all_went_on(run); /* from here on it is seen who goes on */
    d->rest_ns = now;
}

/* input */

void roll_digested_ring(roll_root_t *root, struct roll_run *run, const struct roll_peer *peer,
                        const struct roll_frame *frame)
{
    struct roll_digested *d = run->digested;
    if (!d) {
        return;
    }
    struct digested_ring *r = ring_of(d, frame->head.stream);
    uint8_t *header = r ? r->header : malloc(ROLL_RING_HEADER_BYTES);
    if (!header || (!r && ROLL_GROW(d->ring, d->ring_room, d->rings + 1) != 0)) {
        free(header);
        return;
    }
    memcpy(header, frame->payload, ROLL_RING_HEADER_BYTES);
    if (!r) {
        r = &d->ring[d->rings++];
    }
    *r = (struct digested_ring){.stream = frame->head.stream, .header = header, .last_ns = r->last_ns};
    if (d->fed) { /* a rank that comes while the others are looked at: all of its ring is news */
        feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r->stream}, header,
                  ROLL_RING_HEADER_BYTES);
    }
    if (d->number != 0) {
        size_t bytes = 0;
        struct roll_frame_excerpt *ask = ask_new(d, &bytes);
        if (ask) {
            send_ask(run, peer, ask, bytes);
        }
        free(ask);
    }
    (void)root;
}

static int take_digest(struct roll_digested *d, const struct roll_peer *peer, const struct roll_frame *frame,
                       uint64_t now)
{
    if (peer->place == UINT32_MAX) {
        return ROLL_E_NOMEM;
    }
    size_t before = d->calls_room;
    int err = ROLL_GROW(d->calls, d->calls_room, (size_t)peer->place + 1);
    if (err) {
        return err;
    }
    memset(d->calls + before, 0, (d->calls_room - before) * sizeof(*d->calls));
    d->calls[peer->place] = frame->head.first;
    roll_digest_clear(&d->came);
    err = frame->head.payload ? roll_digest_decode(frame->payload, frame->head.payload, &d->came) : 0;
    d->refused += err != 0;
    return err ? err : roll_sum_take(d->sum, peer->place, &d->came, now);
}

static int stage(struct roll_digested *d, const void *raw, size_t bytes)
{
    int err = ROLL_GROW(d->stage, d->stage_room, d->staged + 1);
    uint8_t *copy = err ? NULL : malloc(bytes);
    if (!copy) {
        return ROLL_E_NOMEM;
    }
    memcpy(copy, raw, bytes);
    d->stage[d->staged++] = (struct staged){copy, bytes};
    return 0;
}

/* A frame of the case that is open. Frames of an earlier one, which were on their way, are passed over. */
static int take_case(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    struct roll_digested *d = run->digested;
    struct digested_ring *r = ring_of(d, frame->head.stream);
    if (!r || d->number == 0) {
        return 0;
    }
    if (frame->head.type == ROLL_FRAME_EXCERPT) {
        bool ours = frame->head.first == d->number;
        r->all = ours && r->begun && frame->head.payload == 0;
        r->begun = ours;
        return 0;
    }
    if (!r->begun) {
        return 0;
    }
    return d->fed ? roll_feed_frame(d->feed, frame) : stage(d, raw, bytes);
}

/* The run's own feed is told of a process by a STATUS without its head: records that were not asked for are not lost.
 */
static int take_status(roll_root_t *root, struct roll_run *run, const struct roll_frame *frame)
{
    struct roll_digested *d = run->digested;
    struct digested_ring *r = ring_of(d, frame->head.stream);
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(struct roll_frame_status)];
    struct roll_frame_head head = frame->head;
    struct roll_frame made;
    struct roll_frame_status s;
    memcpy(&s, frame->payload, sizeof(s));
    if (r) {
        r->head = s.head;
    }
    s.head = 0;
    d->failed = d->failed || s.proc_state == ROLL_PROC_DEAD ||
                (s.proc_state == ROLL_PROC_FINISHED && s.exit_status != 0 && s.exit_status != ROLL_EXIT_UNKNOWN);
    int64_t n = roll_frame_make(&head, &s, sizeof(s), raw, sizeof(raw), &made);
    return n < 0 ? (int)n : roll_run_frame(root, run, &made, raw, (size_t)n);
}

int roll_digested_frame(roll_root_t *root, struct roll_run *run, const struct roll_peer *peer,
                        const struct roll_frame *frame, const void *raw, size_t bytes)
{
    struct roll_digested *d = run->digested;
    uint64_t now = roll_mono_ns();
    int err;
    switch (frame->head.type) {
    case ROLL_FRAME_DIGEST:
        roll_feed_clock_input(&run->clock, now, true);
        return take_digest(d, peer, frame, now);
    case ROLL_FRAME_STATUS:
        err = take_status(root, run, frame);
        if (d->fed && !err) {
            err = roll_feed_frame(d->feed, frame);
        }
        return err;
    case ROLL_FRAME_SIGHT:
        err = roll_run_frame(root, run, frame, raw, bytes);
        if (d->fed && !err) {
            err = roll_feed_frame(d->feed, frame);
        }
        return err;
    default:
        err = take_case(run, frame, raw, bytes);
        roll_feed_clock_input(&run->clock, now, true);
        roll_digested_verdicts(root, run);
        return err;
    }
}

/* looking */

static bool all_rings_sent(const roll_root_t *root, const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        for (size_t k = 0; k < peer->used && !peer->gone; k++) {
            struct digested_ring *r =
                peer->streams[k].run == run ? ring_of(run->digested, peer->streams[k].stream) : NULL;
            if (r && !r->all) {
                return false;
            }
        }
    }
    return d->rings > 0;
}

/* Notes the hints of this moment. Returns whether one of them looks further back than what has been asked for. */
static bool note_hints(struct roll_digested *d, const struct roll_digest *up)
{
    bool further = false;
    for (size_t i = 0; i < up->hints; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        struct roll_frame_want w = want_of(d, h->key);
        bool differs = h->why == ROLL_HINT_DIFFERS && h->seq < w.low;
        bool messages = h->why == ROLL_HINT_MESSAGES && (h->seq & ~w.classes) != 0;
        if (differs || messages) {
            roll_digest_add_hint(&d->hints, h->key, (enum roll_digest_why)h->why, h->seq);
            further = true;
        }
        d->pending = true;
    }
    return further;
}

void roll_digested_look(roll_root_t *root, struct roll_run *run, uint64_t now, bool last)
{
    struct roll_digested *d = run->digested;
    if (d && roll_run_live(run)) {
        d->over_ns = 0;
        d->over_seen = false;
    } else if (d && d->rings > 0) {
        d->over_ns = d->over_ns ? d->over_ns : now;
        last = last || (!d->over_seen && now - d->over_ns > OVER_NS);
        d->over_seen = d->over_seen || last;
    }
    if (!d || (!last && now - d->look_ns < LOOK_NS && !roll_digested_waits(run))) {
        return;
    }
    if (last || now - d->look_ns >= LOOK_NS) {
        struct roll_digest up = {0};
        d->look_ns = now;
        roll_sum_cut(d->sum, now, &up);
        if (last) { /* nobody is left who could move: what stands now stands for good */
            roll_sum_cut(d->sum, now + 2 * STAND_NS, &up);
        }
        bool further = note_hints(d, &up);
        roll_digest_fini(&up);
        if (d->number != 0) {
            d->pending = false;
        }
        if (d->number != 0 && further && d->again < AGAIN) {
            d->again++;
            open_case(root, run, now);
        }
    }
    bool failed = d->failed && !d->failed_told;
    if (d->number == 0 && (failed || (d->pending && (last || now >= d->held_until_ns)))) {
        open_case(root, run, now);
    }
    if (d->number != 0 && !d->fed && (all_rings_sent(root, run) || now - d->opened_ns > STAGE_NS)) {
        feed_case(run, now);
        roll_digested_verdicts(root, run);
    }
    if (d->fed && !last && now - d->rest_ns > REST_NS) {
        d->rest_ns = now;
        if (roll_run_live(run) && all_went_on(run)) {
            close_case(root, run, now);
        }
    }
}
