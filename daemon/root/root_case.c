/*
 * root_case.c: a case: the engine that judges the records which were asked for (root_case_ask.c) where digests do not
 * agree.
 *
 * What comes is kept until all rings that were asked have sent theirs, and then goes to an engine of the case's own,
 * places first, so that no rank looks behind because its records came later. From there on the engine sees what ranks
 * do next, so that what stands is told from what goes on, up to a number of records: a job that goes on would send all
 * it does. Ranks that have come so far, and those
 * that were not asked, are left aside, which is no evidence. To stop at what was there when it was asked for was
 * rejected: a rank that is late would look as one that stands.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/verdict/verdict.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define QUIET_MOST_NS (60000 * ROLL_MS)
#define QUIET_STEP_NS (100 * ROLL_MS) /* with each tick the engine lets less than a stall pass */

static void clear_stage(struct roll_digested *d)
{
    while (d->staged > 0) {
        free(d->stage[--d->staged].raw);
    }
    d->stage_bytes = d->named_bytes = 0;
}

/* the life of a case */

static void end_case(struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    run->judge = NULL;
    run->narrow = false;
    clear_stage(d);
    uint64_t refused = d->feed ? roll_engine_refusals(roll_feed_engine(d->feed)) : 0;
    run->no_room = refused > run->no_room ? refused : run->no_room;
    roll_feed_destroy(&d->feed);
    d->saids = 0;
    d->fed = d->news = d->engine_news = d->wider = d->stood = d->unjudged = d->narrow = d->named = d->stalls =
        d->stalls_there = d->comes = d->anew = d->partly = false;
    d->number = d->named_keys = 0;
    d->spared = 0;
}

void roll_case_open(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(run->feed), &config);
    bool news = d->news;
    end_case(run);
    /* Frames and engines of thousands of ranks are hundreds of MiB: what is freed goes back to the system a while
     * later, because that takes tenths of a second, in which somebody waits for what is found. */
    (void)roll_memory_ebb(&root->ebb, true, now);
    d->news = news;
    d->feed = roll_feed_new(&config, run->job, run->restart);
    if (!d->feed) {
        roll_log(ROLL_LOG_ERROR, "root: %s.%u: no memory to judge what does not agree", run->job, run->restart);
        d->held_until_ns = now + ROLL_CASE_HOLD_MOST_NS;
        return;
    }
    roll_engine_expect(roll_feed_engine(d->feed), root->o.expected);
    roll_symbols_warm(roll_feed_symbols(d->feed));
    const char *why = d->hints.hints > 0 ? "calls differ, or stand"
                      : d->failed        ? "a process has failed"
                      : d->wanted        ? "somebody asks why a rank waits"
                                         : "the run is over, or a process has ended";
    roll_hints_open(d);
    d->broad = d->broad || d->failed || d->wanted || !roll_run_live(run); /* of a run that is over all is looked at */
    d->failed = false;
    d->number = ++d->opened;
    d->opened_ns = d->asked_ns = d->rest_ns = now;
    for (size_t i = 0; i < d->rings; i++) {
        roll_digested_renew(&d->ring[i]);
        d->ring[i].last_ns = 0;
    }
    d->awaited_peer = d->awaited_stream = 0;
    roll_case_measure(root, d);
    roll_log(ROLL_LOG_INFO, "root: %s.%u: %s: records are asked for (%llu%s%s)", run->job, run->restart, why,
             (unsigned long long)d->number, d->scoped ? ", of those that are concerned" : "",
             d->narrow ? ", their calls there alone" : "");
    roll_case_ask_all(root, run);
}

void roll_case_close(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    roll_case_take_back(root, run, true);
    roll_hints_close(d, now);
    end_case(run);
    (void)roll_memory_ebb(&root->ebb, true, now);
    d->again = d->anews = 0;
    d->broad = false;
    roll_case_ask_all(root, run);
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

static void feed_ring(struct roll_run *run, const struct digested_ring *r)
{
    uint8_t header[ROLL_RING_HEADER_BYTES] = {0};
    memcpy(header, r->header, r->header_bytes);
    feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r->stream}, header, sizeof(header));
}

/* Definitions of what records name: without them calls are judged all the same, but for where they were made. */
static bool is_named(const struct roll_frame *frame)
{
    return frame->head.type == ROLL_FRAME_DEFS && (frame->head.flags & ROLL_DEFS_NAMED) != 0;
}

/* What has been fed is released at once: the engine keeps it in its own way, and both together are the most that a case
 * costs. */
static void feed_staged(struct roll_run *run, bool (*wanted)(unsigned type))
{
    struct roll_digested *d = run->digested;
    for (size_t i = 0; i < d->staged; i++) {
        struct roll_frame frame;
        struct staged *s = &d->stage[i];
        if (!s->raw || !wanted(s->type)) { /* each frame is decoded once, which takes as long as to feed it */
            continue;
        }
        if (roll_frame_decode(s->raw, s->bytes, &frame, NULL) == 0) {
            const struct digested_ring *r = roll_digested_ring_of(d, frame.head.stream);
            if (!(r && r->spared && is_named(&frame))) {
                feed_one(run, &frame);
            }
        }
        d->stage_bytes -= s->bytes;
        free(s->raw);
        s->raw = NULL;
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
        if (r && live && !r->aside && !r->cut) { /* what has come late may be of long ago */
            all = all && !r->late && v.last_ns > r->last_ns;
            r->last_ns = v.last_ns;
            r->late = false;
        }
    }
    return all;
}

/* What has become of the process of a ring whose records are here. */
static void feed_process(struct roll_run *run, const struct digested_ring *r)
{
    struct roll_frame_status status;
    if (roll_feed_status(run->feed, r->stream, &status)) {
        status.head = r->head;
        if (run->digested->narrow) { /* its numbers are others then */
            status.head = 0;
        }
        feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = r->stream}, &status,
                  sizeof(status));
    }
}

/* How it is seen, as far as the case knows of it. */
static void feed_sight(struct roll_run *run, const struct digested_ring *r, const struct roll_feed_stream *view)
{
    struct roll_frame_sight sight = {.heard = r->all && view->heard, .starved = view->starved};
    feed_made(run, &(struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = r->stream}, &sight, sizeof(sight));
}

/* For how long the rank has stood. What has passed since its agent said so is not known, and not counted. */
static uint64_t quiet_of(const struct digested_ring *r)
{
    return r->quiet_ns < QUIET_MOST_NS ? r->quiet_ns : QUIET_MOST_NS;
}

/* Lets the time pass in which ranks stood before the engine saw them, so that its patience need not begin anew. */
static void pass_quiet(struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    uint64_t quiet = 0;
    for (size_t i = 0; i < d->rings; i++) {
        uint64_t one = quiet_of(&d->ring[i]);
        quiet = one > quiet ? one : quiet;
    }
    for (; quiet > QUIET_STEP_NS; quiet -= QUIET_STEP_NS) {
        (void)roll_feed_tick(d->feed, run->clock.engine_ns - quiet);
    }
    (void)roll_feed_tick(d->feed, run->clock.engine_ns);
}

void roll_case_feed(struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    roll_feed_stamp(d->feed, roll_real_ns());
    if (!d->narrow) {
        pass_quiet(run);
    }
    d->blind = true;
    for (size_t i = 0; i < d->rings; i++) {
        feed_ring(run, &d->ring[i]);
    }
    feed_staged(run, is_defs);
    feed_staged(run, is_place);
    feed_staged(run, is_records);
    for (size_t i = 0; i < d->rings; i++) {
        const struct digested_ring *r = &d->ring[i];
        struct roll_feed_stream view;
        d->blind = d->blind && !r->all;
        if (!roll_feed_find(run->feed, r->stream, &view)) {
            continue;
        }
        if (r->all) {
            feed_process(run, r);
        }
        if (r->aside || r->cut || d->narrow) { /* whose other calls nobody sees neither stands nor goes on */
            (void)roll_feed_aside(d->feed, r->stream, view.starved, d->narrow);
        } else {
            feed_sight(run, r, &view);
            if (r->all && view.heard && view.starved == 0) { /* who was starved may have been ready to go on */
                (void)roll_feed_quiet(d->feed, r->stream, quiet_of(r));
            }
        }
    }
    clear_stage(d);
    d->fed = true;
    run->judge = d->feed;
    run->narrow = d->narrow;
    (void)roll_case_went_on(run); /* from here on it is seen who goes on */
    d->fed_ns = d->rest_ns = now;
}

/* input */

void roll_case_ring(struct roll_run *run, const struct digested_ring *ring)
{
    if (run->digested->fed) { /* a rank that comes while the others are looked at: all of its ring is news */
        feed_ring(run, ring);
        /* Of one that was announced anew the engine knows what was before, and not where it stands now. Its records, or
         * the word that all have come, say that it is heard. */
        feed_sight(run, ring, &(struct roll_feed_stream){.heard = false});
    }
}

static void leave_aside(struct roll_run *run, const struct digested_ring *r)
{
    uint32_t starved;
    if (roll_feed_starved(run->feed, r->stream, &starved)) {
        (void)roll_feed_aside(run->digested->feed, r->stream, starved, run->digested->narrow);
    }
}

/* A rank of which no more comes stays aside, whatever is said of its process: what that has done last is not known. */
int roll_case_process(struct roll_run *run, const struct roll_frame *frame)
{
    const struct digested_ring *r = roll_digested_ring_of(run->digested, frame->head.stream);
    if (!run->digested->fed || !r) {
        return 0;
    }
    if (r->aside || r->cut || run->digested->narrow) {
        leave_aside(run, r);
        return 0;
    }
    /* Of a ring that is announced anew its records come behind this word: they are not lost, as they would be if it was
     * the last one of a process that has ended; nor does the rank stand where it stood. What was said meanwhile is told
     * behind them. */
    struct roll_frame_sight sight = {.heard = 0};
    if (frame->head.type == ROLL_FRAME_SIGHT && frame->head.payload >= sizeof(sight)) {
        memcpy(&sight, frame->payload, sizeof(sight));
    }
    bool early = !r->all && (frame->head.type == ROLL_FRAME_STATUS || sight.heard != 0);
    return early ? 0 : roll_feed_frame(run->digested->feed, frame);
}

/* No more comes of this ring, or is kept. whole: all that was asked of it has come. */
static void cut_ring(struct roll_run *run, struct digested_ring *r, bool whole)
{
    r->cut = true;
    run->digested->partly = run->digested->partly || !whole;
    if (run->digested->fed) {
        leave_aside(run, r);
    }
}

/* There is no room for what the records of this ring name, and its rank can be judged without: where its calls were
 * made is what verdicts are worded with, and what decides who went astray where calls alone do not. Then all of that is
 * left out, what has come of it already as well: an engine that has some of a rank's call sites takes a place that is
 * not among them for one at which the rank never was. */
static bool is_spared(struct roll_run *run, struct digested_ring *r, size_t bytes)
{
    struct roll_digested *d = run->digested;
    if (r->spared) {
        return true;
    }
    if (d->named_bytes + bytes <= d->named_most) {
        d->named_bytes += bytes;
        return false;
    }
    r->spared = true;
    if (d->spared++ == 0) {
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u: there is room for records, and no more for where in the program the calls of further "
                 "ranks were made",
                 run->job, run->restart);
    }
    return true;
}

static int stage(struct roll_run *run, struct digested_ring *r, const struct roll_frame *frame, const void *raw,
                 size_t bytes)
{
    struct roll_digested *d = run->digested;
    if (is_named(frame) && is_spared(run, r, bytes)) {
        return 0;
    }
    if (d->stage_bytes + bytes > ROLL_CASE_STAGE) {
        cut_ring(run, r, false);
        return ROLL_E_LIMIT;
    }
    int err = ROLL_GROW(d->stage, d->stage_room, d->staged + 1);
    uint8_t *copy = err ? NULL : malloc(bytes);
    if (!copy) {
        cut_ring(run, r, false);
        return ROLL_E_NOMEM;
    }
    memcpy(copy, raw, bytes);
    d->stage[d->staged++] = (struct staged){copy, bytes, frame->head.type};
    d->stage_bytes += bytes;
    return 0;
}

/* What an agent says of its part of the case: it begins, or what has become of it. */
static void take_mark(struct roll_run *run, struct digested_ring *r, const struct roll_frame *frame)
{
    bool ours = frame->head.first == run->digested->number;
    uint32_t flags = frame->head.flags;
    if (frame->head.payload != 0 || !ours) {
        roll_digested_renew(r);
        r->begun = ours && frame->head.payload != 0;
        return;
    }
    r->aside = (flags & ROLL_EXCERPT_ASIDE) != 0;
    if (r->aside && run->digested->fed) { /* until now the engine took it for one that is not heard */
        leave_aside(run, r);
    }
    if (r->begun && (flags & ROLL_EXCERPT_ALL) != 0) {
        struct roll_feed_stream view;
        bool late = !r->all && run->digested->fed;
        r->all = true;
        if (late && run->digested->narrow) {
            leave_aside(run, r);
        } else if (late && roll_feed_find(run->feed, r->stream, &view)) {
            feed_sight(run, r, &view);
        }
        if (late) {
            r->late = true;
            feed_process(run, r);
            run->digested->wider = run->digested->wider || run->digested->blind;
        }
        r->quiet_ns = (uint64_t)(flags >> ROLL_EXCERPT_QUIET) * 100 * ROLL_MS;
    }
    r->lacks = r->lacks || (flags & ROLL_EXCERPT_SHORT) != 0;
    if ((flags & ROLL_EXCERPT_CUT) != 0 && r->begun) {
        cut_ring(run, r, (flags & ROLL_EXCERPT_PASSED) != 0);
    }
}

int roll_case_frame(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes)
{
    struct roll_digested *d = run->digested;
    struct digested_ring *r = roll_digested_ring_of(d, frame->head.stream);
    if (!r || d->number == 0 || roll_case_is_left(d)) { /* what is about to be begun anew takes nothing */
        return 0;
    }
    if (frame->head.type == ROLL_FRAME_EXCERPT) {
        take_mark(run, r, frame);
        return 0;
    }
    if (!r->begun || r->cut) {
        return 0;
    }
    if (r->all && is_records(frame->head.type)) {
        r->quiet_ns = 0;
    }
    if (!d->fed) {
        return stage(run, r, frame, raw, bytes);
    }
    if (d->narrow && !r->all) { /* one that comes late: until now it was not heard, and from here on it is left aside */
        leave_aside(run, r);
    }
    return r->spared && is_named(frame) ? 0 : roll_feed_frame(d->feed, frame);
}

/* what cannot be judged */

static bool said_of(const struct roll_run *run, uint64_t key)
{
    for (size_t i = run->verdicts.used; i-- > 0;) {
        const struct roll_verdict *v = &run->verdicts.at[i]->said;
        if (v->comm_key == key && v->certainty != ROLL_NOTE) {
            return true;
        }
    }
    return false;
}

void roll_case_tell_unjudged(struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    bool lacks = false;
    d->unjudged = true;
    for (size_t i = 0; i < d->rings && !lacks; i++) {
        lacks = d->ring[i].lacks;
    }
    for (size_t i = 0; i < d->hints.hints && lacks; i++) {
        const struct roll_digest_hint *h = &d->hints.hint[i];
        if (h->why == ROLL_HINT_DIFFERS && !said_of(run, h->key)) {
            (void)roll_engine_unjudged(roll_feed_engine(d->feed), h->key, h->seq, h->seq + ROLL_DIGEST_WINDOW);
        }
    }
}

void roll_case_fini(struct roll_digested *d)
{
    clear_stage(d);
    roll_feed_destroy(&d->feed);
    free(d->stage);
    free(d->said);
    free(d->finding);
}
