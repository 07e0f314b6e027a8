/*
 * root_digest.c: a run whose calls are compared by digests (docs/SCALE.md).
 *
 * The run's own feed knows its rings and processes, and gets no records. Where the digests say that something does not
 * agree, or a process fails, a case is opened (root_case.c), whose engine alone gives verdicts; and it is closed when
 * everybody goes on. What the engine of the run's own feed says was rejected as a help: it knows no call.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS   (100 * ROLL_MS)
#define STAND_NS  (250 * ROLL_MS)
#define STAGE_NS  (5000 * ROLL_MS)  /* rings whose records have not come by then are taken for not heard */
#define SOON_NS   (500 * ROLL_MS)   /* the same of a wrong call, which needs no silence to be seen */
#define NEW_NS    (100 * ROLL_MS)   /* as soon as this after rings were announced: once for all rings of an agent */
#define AGAIN_NS  (1000 * ROLL_MS)  /* how often an agent is asked again meanwhile: a full queue loses what is asked */
#define REST_NS   (5000 * ROLL_MS)  /* a case ends when every live rank has gone on for so long, and nothing was said */
#define LOST_NS   (2000 * ROLL_MS)  /* so long a peer may speak of rings that another one has announced */
#define OVER_NS   (500 * ROLL_MS)   /* the last digests of a run come within this time after its end, */
#define UNTOLD_NS (15000 * ROLL_MS) /* or, of who is not heard meanwhile, within this: then it is taken for gone */
#define SETTLE_NS (1000 * ROLL_MS)  /* what the engine says of records that are there it has said by then */
#define COME_NS   (5000 * ROLL_MS)  /* the rings of a run come within this time behind its first, or do not */
#define VIEWER_NS (10000 * ROLL_MS) /* between two looks that viewers ask for */
#define KEEP_NS   (600000 * ROLL_MS) /* the records of a case stay so long behind the end of their run */
#define STOOD_NS  (2000 * ROLL_MS)
#define AGAIN                                                                                                          \
    (ROLL_CASE_SCOPED + 3) /* how often a case is begun anew because a later hint looks further back, or names others  \
                            */

int roll_digested_new(struct roll_run *run)
{
    struct roll_digested *d = calloc(1, sizeof(*d));
    if (d) {
        d->sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = true});
        d->hold_ns = d->redo_ns = d->stilled_ns = ROLL_CASE_HOLD_NS;
    }
    if (!d || !d->sum) {
        roll_digested_destroy(&d);
        return ROLL_E_NOMEM;
    }
    run->digested = d;
    return 0;
}

void roll_digested_destroy(struct roll_digested **pointer)
{
    struct roll_digested *d = *pointer;
    if (!d) {
        return;
    }
    roll_case_fini(d);
    for (size_t i = 0; i < d->rings; i++) {
        free(d->ring[i].header);
    }
    roll_sum_destroy(&d->sum);
    roll_digest_fini(&d->came);
    roll_digest_fini(&d->hints);
    roll_digest_fini(&d->late);
    roll_digest_fini(&d->covered);
    roll_map_fini(&d->past);
    free(d->ring);
    roll_map_fini(&d->ring_at);
    free(d->calls);
    free(d);
    *pointer = NULL;
}

/* what is told outside */

/* A case has not been judged yet, or not by all that it will be. */
static bool is_looking(const struct roll_digested *d)
{
    return d->number != 0 && (!d->fed || roll_case_is_left(d));
}

bool roll_digested_waits(const struct roll_run *run)
{
    return run->digested && is_looking(run->digested);
}

uint64_t roll_digested_wait_ns(const struct roll_run *run, uint64_t now)
{
    uint64_t passed = now - run->digested->look_ns;
    return passed < LOOK_NS ? LOOK_NS - passed : 0;
}

uint32_t roll_digested_flags(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    bool keep = d && (roll_run_live(run) || !d->over_seen || d->pending || is_looking(d) || d->comes);
    return (run->digested ? ROLL_ACK_DIGEST : 0) | (keep ? ROLL_ACK_KEEP : 0);
}

json_t *roll_digested_json(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    struct roll_sum_figures f;
    roll_sum_figures(d->sum, &f);
    size_t asked = 0, cut = 0, spared = 0, comms = 0;
    for (size_t i = 0; i < d->rings; i++) {
        asked += d->number != 0 && d->ring[i].begun;
        cut += d->number != 0 && d->ring[i].cut;
        spared += d->number != 0 && d->ring[i].spared;
        comms = d->ring[i].last.comms > comms ? d->ring[i].last.comms : comms;
    }
    return json_pack("{s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s}", "calls_per_s", d->calls_per_s,
                     "comms_of_rank", (json_int_t)comms, "windows", (json_int_t)f.windows, "fronts",
                     (json_int_t)f.fronts, "hints", (json_int_t)f.hints, "refused",
                     (json_int_t)(f.refused + d->refused), "opened", (json_int_t)d->opened, "asked", (json_int_t)asked,
                     "cut", (json_int_t)cut, "spared", (json_int_t)spared, "forgotten", (json_int_t)f.forgotten,
                     "records",
                     d->number == 0 ? "none"
                     : d->fed       ? "judged"
                                    : "asked");
}

/* input */

/* How many bytes of a ring's header say something: most of its page is for what may come, and thousands are kept. What
 * is written once stays whole. */
static size_t header_bytes(const uint8_t *header)
{
    size_t bytes = ROLL_RING_HEADER_BYTES;
    while (bytes > offsetof(struct roll_ring_header, pad0) && header[bytes - 1] == 0) {
        bytes--;
    }
    return bytes;
}

void roll_digested_ring(struct roll_run *run, const struct roll_frame *frame)
{
    struct roll_digested *d = run->digested;
    if (!d) {
        return;
    }
    struct digested_ring *r = roll_digested_ring_of(d, frame->head.stream);
    size_t bytes = header_bytes(frame->payload);
    uint8_t *header = malloc(bytes);
    if (!header) {
        return;
    }
    if (!r) {
        if (ROLL_GROW(d->ring, d->ring_room, d->rings + 1) != 0 ||
            roll_map_add(&d->ring_at, frame->head.stream, (uint32_t)d->rings) != 0) {
            free(header);
            return;
        }
        r = &d->ring[d->rings++];
        *r = (struct digested_ring){.stream = frame->head.stream};
        d->first_ns = d->first_ns ? d->first_ns : roll_mono_ns();
    }
    free(r->header);
    r->header = memcpy(header, frame->payload, bytes);
    r->header_bytes = bytes;
    if (d->narrow && r->begun) { /* the numbers that its agent gives from now on are others */
        d->anew = true;
    }
    roll_digested_renew(r); /* its agent begins anew, and sends all that is asked for again */
    if (d->fed) {           /* what it keeps is wanted, also when the run is over */
        r->came_ns = roll_mono_ns();
        d->comes = true;
    }
    roll_case_ring(run, r);
    d->unasked = true;
}

void roll_digested_left(struct roll_run *run, const struct roll_peer *peer)
{
    struct roll_digested *d = run->digested;
    if (d && peer->place != UINT32_MAX) {
        roll_sum_leave(d->sum, peer->place, roll_mono_ns());
    }
    if (d && peer->place < d->calls_room) {
        d->calls[peer->place] = 0;
    }
}

static int take_digest(struct roll_digested *d, const struct roll_peer *peer, size_t rings,
                       const struct roll_frame *frame, uint64_t now)
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
    uint64_t known = d->calls[peer->place]; /* 0: the first word of this agent, which may be about calls of long ago */
    if (known != 0 && frame->head.first > known) {
        d->moved_ns = roll_real_ns();
        d->still_since_ns = now;
    }
    d->calls[peer->place] = frame->head.first;
    d->told_ns = now;
    roll_digest_clear(&d->came);
    err = frame->head.payload ? roll_digest_decode(frame->payload, frame->head.payload, &d->came) : 0;
    size_t lies = roll_digest_leave_out(&d->came, rings);
    if (peer->lost_ns != 0 && now - peer->lost_ns < LOST_NS) {
        lies = 0;
    }
    if (lies > 0 && d->refused == 0) {
        roll_log(ROLL_LOG_WARNING,
                 "root: a digest of the %s on %s speaks for more ranks than it has: that part is refused",
                 roll_peer_noun(peer), peer->host);
    }
    d->refused += lies;
    if (err && d->refused++ == 0) {
        roll_log(ROLL_LOG_WARNING, "root: a digest of the %s on %s is refused, and nothing is judged by it: %s%s",
                 roll_peer_noun(peer), peer->host, roll_strerror(err),
                 err == ROLL_E_VERSION ? "; it is of another release: use one release on all nodes" : "");
    }
    return err ? err : roll_sum_take(d->sum, peer->place, &d->came, now);
}

/* The run's own feed is told of a process by a STATUS without its head: records that were not asked for are not lost.
 */
static int take_status(roll_root_t *root, struct roll_run *run, const struct roll_frame *frame)
{
    struct roll_digested *d = run->digested;
    struct digested_ring *r = roll_digested_ring_of(d, frame->head.stream);
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(struct roll_frame_status)];
    struct roll_frame_head head = frame->head;
    struct roll_frame made;
    struct roll_frame_status s;
    memcpy(&s, frame->payload, sizeof(s));
    bool failed = s.proc_state == ROLL_PROC_DEAD ||
                  (s.proc_state == ROLL_PROC_FINISHED && s.exit_status != 0 && s.exit_status != ROLL_EXIT_UNKNOWN);
    if (r) {
        d->failed = d->failed || (failed && !r->failed);
        d->wider = d->wider || (failed && !r->failed && (r->aside || r->cut));
        if (failed && !r->failed && d->narrow) {
            roll_case_broaden(d);
        }
        r->failed = failed;
        r->ended = s.proc_state == ROLL_PROC_DEAD || s.proc_state == ROLL_PROC_FINISHED;
        bool stopped = s.proc_state == ROLL_PROC_STOPPED;
        r->stopped_ns = !stopped ? 0 : r->stopped_ns != 0 ? r->stopped_ns : roll_mono_ns();
        r->head = s.head;
        roll_fronts_status(r, frame);
    }
    s.head = 0;
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
    case ROLL_FRAME_DIGEST: /* while no case is open, the engines have no calls whose patience could end soon */
        roll_feed_clock_input(&run->clock, now, d->number != 0);
        return take_digest(d, peer, roll_streams_count(peer, run), frame, now);
    case ROLL_FRAME_STATUS:
        err = take_status(root, run, frame);
        return err ? err : roll_case_process(run, frame);
    case ROLL_FRAME_SIGHT:
        err = roll_run_frame(root, run, frame, raw, bytes);
        return err ? err : roll_case_process(run, frame);
    default:
        err = roll_case_frame(run, frame, raw, bytes);
        roll_feed_clock_input(&run->clock, now, true);
        roll_digested_verdicts(root, run);
        return err;
    }
}

/* looking */

/* The open case is begun anew, because more is to be asked for. */
static bool is_to_be_wider(struct roll_digested *d, uint64_t now, bool last)
{
    bool now_or_later = last || roll_case_is_left(d) || now - d->opened_ns > ROLL_CASE_GATHER_NS;
    if (!d->wider || d->again >= AGAIN || !now_or_later) {
        return false;
    }
    d->again += !(d->narrow && d->broad);
    return true;
}

/* The open case is begun anew, because a ring has other numbers now. An agent that begins anew again and again, or says
 * so, has counts of its own: it does not make more ranks be asked, but their numbers those of their rings. */
static bool is_to_be_anew(struct roll_digested *d)
{
    if (!d->anew) {
        return false;
    }
    d->broad = d->broad || d->anews >= ROLL_CASE_ANEW;
    d->anews++;
    return true;
}

/* What the digests say at this moment. */
static void hear_digests(roll_root_t *root, struct roll_run *run, uint64_t now, bool last)
{
    struct roll_digested *d = run->digested;
    struct roll_digest up = {0};
    d->look_ns = now;
    roll_sum_cut(d->sum, now, &up);
    if (last) { /* nobody is left who could move: what stands now stands for good */
        roll_sum_cut(d->sum, now + 2 * STAND_NS, &up);
    }
    if (roll_run_live(run)) { /* else people may ask of what it was */
        roll_sum_forget(d->sum, now);
    }
    roll_hints_note(d, &up, now);
    roll_case_goes_on(d, &up, now);
    roll_case_take_back(root, run, false);
    roll_digest_fini(&up);
    if (d->number == 0) {
        return;
    }
    if (last && d->narrow) {
        roll_case_broaden(d);
    }
    /* Of a run that is over nothing comes later by which a mistake would be seen: what the open case has not asked for
     * does not wait. */
    bool ends = last || d->over_seen;
    d->wider = d->wider || (ends && d->elsewhere);
    if (is_to_be_wider(d, now, ends) || is_to_be_anew(d) || roll_hints_redo(d, now) || roll_hints_stilled(d, now)) {
        roll_case_open(root, run, now);
    }
}

/* The end of a case: everybody whose records come has gone on, or so many do that those who stand are nobody's trouble,
 * and were looked at for as long as the engine is patient. */
static bool is_over(struct roll_run *run, uint64_t now)
{
    const struct roll_digested *d = run->digested;
    struct roll_engine_config config;
    roll_engine_settings(roll_feed_engine(d->feed), &config);
    bool cut = false;
    for (size_t i = 0; i < d->rings && !cut; i++) {
        cut = d->ring[i].cut;
    }
    bool went_on = roll_case_went_on(run);
    if (!roll_run_live(run)) { /* consoles may ask for a while; a root that goes on for months needs the memory */
        return now - d->over_ns > KEEP_NS;
    }
    if (d->narrow) { /* which looks at nobody who stands; one that has told nothing is begun anew with all records */
        return d->engine_news;
    }
    return went_on || (cut && now - d->opened_ns > REST_NS + 2 * config.suspect_ns);
}

/* How long rings are waited for. An engine that has seen nothing sees no wrong call either. */
static uint64_t patience(const struct roll_digested *d)
{
    bool any = false;
    for (size_t i = 0; i < d->rings && !any; i++) {
        any = d->ring[i].all;
    }
    return d->hasty && any ? SOON_NS : STAGE_NS;
}

/* Of a ring that was announced while the others' records were judged, its records are awaited. */
static bool any_comes(const struct roll_digested *d, uint64_t now)
{
    bool any = false;
    for (size_t i = 0; i < d->rings && !any; i++) {
        const struct digested_ring *r = &d->ring[i];
        any = r->came_ns != 0 && !r->all && !r->aside && !r->cut && now - r->came_ns < STAGE_NS;
    }
    return any;
}

/* The case that is open. */
static void see_to_case(roll_root_t *root, struct roll_run *run, uint64_t now, bool last)
{
    struct roll_digested *d = run->digested;
    if (!d->fed && (roll_case_is_whole(root, run) || now - d->opened_ns > patience(d))) {
        roll_case_feed(run, now);
        roll_digested_verdicts(root, run);
        (void)roll_memory_ebb(&root->ebb, true, now);
    }
    d->comes = d->comes && any_comes(d, now);
    /* Also when the others' records are judged already: an agent that lost its link begins anew, and sends nothing of
     * the case until it is asked. */
    if (now - d->asked_ns > (d->unasked ? NEW_NS : AGAIN_NS)) {
        d->asked_ns = now;
        roll_case_ask_again(root, run);
    }
    if (d->narrow && d->fed && roll_case_wants_all(d, now)) {
        roll_case_broaden(d);
    }
    if (d->fed && !d->narrow && !d->stood && now - d->fed_ns > STOOD_NS) {
        /* Somebody stands, and nothing can be said of it: what it waits for may be on ranks that were not asked, or
         * that nobody hears. */
        d->stood = true;
        bool stands = !d->news && !roll_case_went_on(run);
        if (stands && d->scoped) {
            d->again = ROLL_CASE_SCOPED;
            d->wider = true;
        }
        if (stands && roll_engine_silent(roll_feed_engine(d->feed)) == 0) {
            roll_digested_verdicts(root, run);
        }
    }
    if (d->fed && !d->unjudged && (last || now - d->fed_ns > SETTLE_NS)) {
        roll_case_tell_unjudged(run);
        roll_digested_verdicts(root, run);
    }
    if (d->fed && !last && now > d->rest_ns && now - d->rest_ns > REST_NS) { /* it may have spoken since `now` */
        d->rest_ns = now;
        if (is_over(run, now)) {
            roll_case_close(root, run, now);
        }
    }
}

/* Agents come one after the other, when a job begins and when a root was started anew: a case that is opened meanwhile
 * would judge some ranks without the others. */
static bool are_still_coming(const struct roll_digested *d, uint64_t now)
{
    int32_t size =
        d->rings > 0 ? roll_digested_header_int(&d->ring[0], offsetof(struct roll_ring_header, world_size)) : 0;
    return size > 0 && d->rings < (size_t)size && now - d->first_ns < COME_NS;
}

/* Somebody has asked of a rank: the next answer is from records. Not for each of many questions; and of a large job
 * only where it is known whom the question is about. */
static void look_for_viewer(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    bool known = roll_case_asks_everybody(root, d) || d->wanted_key != 0;
    if (known && (d->wanted_ns == 0 || now - d->wanted_ns > VIEWER_NS)) {
        if (d->wanted_key != 0 && !roll_case_is_hinted(d, d->wanted_key)) {
            roll_digest_add_hint(&d->hints, d->wanted_key, ROLL_HINT_QUIET, 0);
        }
        d->wanted_ns = now;
        roll_case_open(root, run, now);
    }
    d->wanted = false;
    d->wanted_key = 0;
}

/* Somebody who holds rings of the run is not heard at this moment: what it has not told yet is awaited. */
static bool any_untold(const roll_root_t *root, const struct roll_run *run, uint64_t now)
{
    bool any = false;
    for (size_t i = 0; i < root->peers_used && !any; i++) {
        const struct roll_peer *peer = root->peers[i];
        any = !peer->gone && !roll_peer_is_heard(peer, now) && roll_streams_count(peer, run) > 0;
    }
    return any;
}

/* No process of the run lives. True: all digests that tell of it have come, and what they tell of was not looked at. */
static bool is_over_now(const roll_root_t *root, const struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    d->end_ns = d->end_ns ? d->end_ns : now;
    bool untold = !d->over_seen && now - d->end_ns < UNTOLD_NS && any_untold(root, run, now);
    d->over_ns = d->over_ns && !untold ? d->over_ns : now;
    return !d->over_seen && now - d->over_ns > OVER_NS;
}

void roll_digested_look(roll_root_t *root, struct roll_run *run, uint64_t now, bool last)
{
    struct roll_digested *d = run->digested;
    if (d && roll_run_live(run)) {
        d->end_ns = d->over_ns = 0;
        d->over_seen = false;
    } else if (d && d->rings > 0) {
        last = is_over_now(root, run, now) || last;
        d->over_seen = d->over_seen || last;
    }
    if (d && !run->seen) {
        d->dark_ns = now;
    }
    if (!d || (!last && now - d->look_ns < LOOK_NS && !roll_digested_waits(run))) {
        return;
    }
    if (last || now - d->look_ns >= LOOK_NS) {
        roll_fronts_look(run, now);
        hear_digests(root, run, now, last);
    }
    bool due = d->number == 0 && roll_hints_due(d, now, roll_case_asks_everybody(root, d));
    bool comes = are_still_coming(d, now) && !last;
    if (d->number == 0 && !comes && (d->failed || due || (d->pending && last))) {
        roll_case_open(root, run, now);
    }
    if (d->wanted && d->number == 0 && !comes) {
        look_for_viewer(root, run, now);
    }
    if (d->number != 0) {
        see_to_case(root, run, now, last);
    }
}

bool roll_digested_leave(roll_root_t *root, struct roll_run *run, uint64_t now)
{
    struct roll_digested *d = run->digested;
    if (!d) {
        return false;
    }
    if (!roll_run_live(run)) {
        roll_digested_look(root, run, now, true);
    } else if (d->number == 0) {
        hear_digests(root, run, now, false); /* what has come since the last look */
        if (d->pending && d->urgent) {       /* where somebody stands, patience is what is lacking */
            roll_case_open(root, run, now);
        }
    }
    return roll_digested_waits(run);
}

void roll_digested_tell_left(const struct roll_run *run)
{
    const struct roll_digested *d = run->digested;
    size_t left = !d ? 0 : d->number != 0 && d->fed ? d->late.hints : d->hints.hints;
    if (left > 0) {
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u: the root ends, and %zu place%s where calls do not agree, or stand, %s not looked at",
                 run->job, run->restart, left, left == 1 ? "" : "s", left == 1 ? "was" : "were");
    }
}
