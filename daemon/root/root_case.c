/*
 * root_case.c: a case: the records that are asked for where digests do not agree, and the engine that judges them.
 *
 * Every ring's newest records are asked for. They are kept until all rings have sent theirs, and then go to an engine
 * of the case's own, places first, so that no rank looks behind because its records came later; from there on the
 * engine sees everything that comes. To ask only the members of the communicator that differs was rejected: what a rank
 * waits for may stand on any other one.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/verdict/verdict.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define HOLD_MOST (60000 * ROLL_MS) /* between two cases, after some that found nothing new */
#define WANTS     16384u            /* communicators that an EXCERPT names; of others everything is asked for */
#define HISTORY   512u              /* records of each ring that are asked for besides */
#define RECORDS   (1u << 21)        /* history of all rings together, about */

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

struct roll_frame_want roll_case_want(const struct roll_digested *d, uint64_t key)
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
        } else if (h->key == key && h->why == ROLL_HINT_OBSERVED && (w.step == 0 || h->seq < w.step)) {
            w.step = h->seq;
        }
    }
    return w;
}

static void want_add(const struct roll_digested *d, struct roll_frame_excerpt *ask, uint64_t key)
{
    struct roll_frame_want *list = (struct roll_frame_want *)(void *)(ask + 1), w = roll_case_want(d, key);
    for (uint32_t i = 0; i < ask->wants; i++) {
        if (list[i].key == key) {
            return;
        }
    }
    if (ask->wants < WANTS && (w.low != UINT32_MAX || w.classes != 0 || w.step != 0)) {
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
            list[ask->wants++] = roll_case_want(d, key);
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
    run->digested->unasked = false;
    free(ask);
}

static void ask(const struct roll_run *run, const struct roll_peer *peer)
{
    size_t bytes = 0;
    struct roll_frame_excerpt *ask = run->digested->number ? ask_new(run->digested, &bytes) : NULL;
    if (ask) {
        send_ask(run, peer, ask, bytes);
    }
    free(ask);
}

static bool has_sent(const struct roll_run *run, const struct roll_peer *peer)
{
    for (size_t k = 0; k < peer->used; k++) {
        const struct digested_ring *r =
            peer->streams[k].run == run ? roll_digested_ring_of(run->digested, peer->streams[k].stream) : NULL;
        if (r && !r->all) {
            return false;
        }
    }
    return true;
}

bool roll_case_is_whole(const roll_root_t *root, const struct roll_run *run)
{
    bool all = run->digested->rings > 0;
    for (size_t i = 0; i < root->peers_used && all; i++) {
        all = root->peers[i]->gone || has_sent(run, root->peers[i]);
    }
    return all;
}

void roll_case_ask_again(const roll_root_t *root, const struct roll_run *run)
{
    run->digested->unasked = false;
    for (size_t i = 0; i < root->peers_used; i++) {
        if (!root->peers[i]->gone && !has_sent(run, root->peers[i])) {
            ask(run, root->peers[i]);
        }
    }
}

static void clear_stage(struct roll_digested *d)
{
    while (d->staged > 0) {
        free(d->stage[--d->staged].raw);
    }
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

void roll_case_open(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(run->feed), &config);
    bool news = d->news;
    end_case(run);
    d->news = news;
    d->failed = false;
    d->feed = roll_feed_new(&config, run->job, run->restart);
    if (!d->feed) {
        roll_log(ROLL_LOG_ERROR, "root: %s.%u: no memory to judge what does not agree", run->job, run->restart);
        d->held_until_ns = now + HOLD_MOST;
        return;
    }
    roll_engine_expect(roll_feed_engine(d->feed), root->o.expected);
    roll_symbols_warm(roll_feed_symbols(d->feed));
    d->number = ++d->opened;
    d->opened_ns = d->asked_ns = d->rest_ns = now;
    d->pending = false;
    for (size_t i = 0; i < d->rings; i++) {
        d->ring[i].begun = d->ring[i].all = false;
        d->ring[i].last_ns = 0;
    }
    roll_log(ROLL_LOG_INFO, "root: %s.%u: calls do not agree, or stand: their records are asked for (%llu)", run->job,
             run->restart, (unsigned long long)d->number);
    ask_all(root, run);
}

void roll_case_close(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    d->hold_ns = d->news ? ROLL_CASE_HOLD_NS : 2 * d->hold_ns < HOLD_MOST ? 2 * d->hold_ns : HOLD_MOST;
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

bool roll_case_went_on(struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    const roll_engine_t *engine = roll_feed_engine(d->feed);
    struct roll_view_source v;
    bool all = true;
    for (uint32_t i = 0; roll_engine_source(engine, i, &v); i++) {
        struct digested_ring *r = roll_digested_ring_of(d, v.info.stream);
        bool live = v.proc == ROLL_PROC_RUNNING || v.proc == ROLL_PROC_STOPPED;
        if (r && live) {
            all = all && v.last_ns > r->last_ns;
            r->last_ns = v.last_ns;
        }
    }
    return all;
}

void roll_case_feed(struct roll_run *run, uint64_t now)
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
    (void)roll_case_went_on(run); /* from here on it is seen who goes on */
    d->rest_ns = now;
}

/* input */

void roll_case_ring(struct roll_run *run, const struct digested_ring *ring)
{
    if (run->digested->fed) { /* a rank that comes while the others are looked at: all of its ring is news */
        feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = ring->stream}, ring->header,
                  ROLL_RING_HEADER_BYTES);
    }
}

int roll_case_process(struct roll_run *run, const struct roll_frame *frame)
{
    return run->digested->fed ? roll_feed_frame(run->digested->feed, frame) : 0;
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

int roll_case_frame(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    struct roll_digested *d = run->digested;
    struct digested_ring *r = roll_digested_ring_of(d, frame->head.stream);
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

void roll_case_fini(struct roll_digested *d)
{
    clear_stage(d);
    roll_feed_destroy(&d->feed);
    free(d->stage);
    free(d->said);
}
