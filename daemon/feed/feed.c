/*
 * feed.c: from frames to the engine.
 *
 * Verdicts are copied, call sites included, right after the frame that brought them: later definitions could otherwise
 * change what they say, and a replay would differ from what was said live. A feeder inside the root was rejected: the
 * analyzer would need a second one, and the two would drift apart.
 */
#include "daemon/feed/feed_state.h"

#include "daemon/base/memory.h"
#include "daemon/feed/feed_note.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW 65536u /* as many calls as a default ring holds: a node may be so far ahead of one whose link is cut */

roll_feed_t *roll_feed_new(const struct roll_engine_config *config, const char *job, uint32_t restart)
{
    roll_feed_t *feed = calloc(1, sizeof(*feed));
    if (!feed) {
        return NULL;
    }
    struct roll_engine_config own = *config;
    own.window = own.window ? own.window : WINDOW;
    feed->engine = roll_engine_new(&own);
    feed->symbols = roll_symbols_new();
    if (!feed->engine || !feed->symbols) {
        roll_feed_destroy(&feed);
        return NULL;
    }
    if (job) {
        strncpy(feed->job, job, sizeof(feed->job) - 1);
        feed->restart = restart;
        feed->named = true;
    }
    return feed;
}

/* Takes the verdicts that were handed out from the queue. */
static void forget_taken(roll_feed_t *feed)
{
    struct roll_verdict_list *queue = &feed->verdicts;
    queue->used -= feed->taken;
    if (queue->used > 0) {
        memmove(queue->at, queue->at + feed->taken, queue->used * sizeof(*queue->at));
    }
    feed->taken = 0;
}

void roll_feed_destroy(roll_feed_t **pointer)
{
    roll_feed_t *feed = *pointer;
    if (!feed) {
        return;
    }
    if (feed->watch && feed->watch->gone) {
        feed->watch->gone(feed->watch->ctx, feed);
    }
    for (size_t i = 0; i < feed->used; i++) {
        free(feed->streams[i].open);
    }
    free(feed->streams);
    roll_map_fini(&feed->index);
    forget_taken(feed);
    roll_verdict_list_fini(&feed->verdicts);
    roll_symbols_destroy(&feed->symbols);
    roll_engine_destroy(&feed->engine);
    free(feed);
    *pointer = NULL;
}

/* in and out */

static int take_verdict(roll_feed_t *feed, const struct roll_verdict *verdict)
{
    struct roll_verdict_copy *copy =
        roll_verdict_copy_new(verdict, feed->engine, feed->symbols, feed->job, feed->restart);
    if (!copy) {
        return ROLL_E_NOMEM;
    }
    copy->said.time_ns = feed->stamp_ns ? feed->stamp_ns : copy->said.time_ns;
    forget_taken(feed); /* their new owners may have destroyed them, and the list looks at all verdicts that it holds */
    if (feed->watch && feed->watch->verdict) {
        feed->watch->verdict(feed->watch->ctx, feed, copy);
    }
    return roll_verdict_list_add(&feed->verdicts, copy);
}

/* `before`: how often there was no memory until the engine began with what brought these verdicts. Where there was none
 * since, a verdict may name the wrong ranks: it is lost, which is counted. */
static int take_verdicts(roll_feed_t *feed, uint64_t before)
{
    const struct roll_verdict *verdict;
    int err = 0;
    while ((verdict = roll_engine_next(feed->engine)) != NULL) {
        int lost = roll_memory_failures() != before ? ROLL_E_NOMEM : take_verdict(feed, verdict);
        feed->verdicts_lost += lost != 0;
        err = err ? err : lost;
    }
    return err;
}

void roll_feed_stamp(roll_feed_t *feed, uint64_t real_ns)
{
    feed->stamp_ns = real_ns;
}

int roll_feed_tick(roll_feed_t *feed, uint64_t now_ns)
{
    uint64_t before = roll_memory_failures();
    int err = roll_engine_tick(feed->engine, now_ns);
    int last = take_verdicts(feed, before);
    return err ? err : last;
}

int roll_feed_finish(roll_feed_t *feed)
{
    if (feed->finished) {
        return 0;
    }
    feed->finished = true;
    uint64_t before = roll_memory_failures();
    int err = roll_engine_finish(feed->engine);
    int last = take_verdicts(feed, before);
    return err ? err : last;
}

void roll_feed_watch(roll_feed_t *feed, const struct roll_feed_watch *watch)
{
    feed->watch = watch;
}

void roll_feed_fix_policy(roll_feed_t *feed)
{
    feed->policy_fixed = true;
}

void roll_feed_of_recording(roll_feed_t *feed)
{
    feed->recorded = true;
}

/* Sets the engine's patience and policy from here on. SETTINGS bring no verdict by themselves, so the queue is not
 * looked at. */
static int feed_settings(roll_feed_t *feed, const struct roll_frame *frame)
{
    struct roll_frame_settings settings = {0};
    struct roll_engine_config config;
    memcpy(&settings, frame->payload, sizeof(settings) < frame->head.payload ? sizeof(settings) : frame->head.payload);
    if (settings.stall_ns - 1 >= ROLL_SETTINGS_MOST_NS || settings.suspect_ns - 1 >= ROLL_SETTINGS_MOST_NS ||
        settings.policy > ROLL_POLICY_AUTO) {
        return ROLL_E_CORRUPT;
    }
    roll_engine_settings(feed->engine, &config);
    config.stall_ns = settings.stall_ns;
    config.suspect_ns = settings.suspect_ns;
    config.policy = feed->policy_fixed ? config.policy : (enum roll_policy)settings.policy;
    roll_engine_set(feed->engine, &config);
    return 0;
}

int roll_feed_frame(roll_feed_t *feed, const struct roll_frame *frame)
{
    uint64_t before = roll_memory_failures();
    int err = 0;
    if (frame->head.type == ROLL_FRAME_TICK) {
        uint64_t real_ns;
        if (frame->head.payload >= sizeof(real_ns)) {
            memcpy(&real_ns, frame->payload, sizeof(real_ns));
            roll_feed_stamp(feed, real_ns);
        }
        err = roll_feed_tick(feed, frame->head.seq);
        return !err && frame->head.first == 1 ? roll_feed_finish(feed) : err;
    }
    if (frame->head.type == ROLL_FRAME_SETTINGS) {
        return feed_settings(feed, frame);
    }
    if (frame->head.type == ROLL_FRAME_RING) {
        err = roll_feed_take_ring(feed, frame);
    } else if (frame->head.type == ROLL_FRAME_NOTE) {
        err = roll_feed_note(feed->engine, frame);
    } else if ((frame->head.type >= ROLL_FRAME_DEFS && frame->head.type <= ROLL_FRAME_STATUS) ||
               frame->head.type == ROLL_FRAME_SIGHT || frame->head.type == ROLL_FRAME_PLACE) {
        struct roll_stream *s = roll_feed_stream_of(feed, frame->head.stream);
        if (!s) {
            return ROLL_E_NOTFOUND;
        }
        err =
            frame->head.type == ROLL_FRAME_SIGHT ? roll_feed_take_sight(feed, s, frame) : roll_feed_note_heard(feed, s);
        switch (err ? ROLL_FRAME_SIGHT : frame->head.type) {
        case ROLL_FRAME_SIGHT:
            break;
        case ROLL_FRAME_DEFS:
            err = roll_feed_take_defs(feed, s, frame);
            break;
        case ROLL_FRAME_STATUS:
            err = roll_feed_take_status(feed, s, frame);
            break;
        case ROLL_FRAME_PLACE:
            err = roll_feed_take_place(feed, s, frame);
            break;
        default:
            err = roll_feed_take_records(feed, s, frame);
            break;
        }
    } else {
        return 0;
    }
    feed->finished = false;
    int last = take_verdicts(feed, before);
    return err ? err : last;
}

struct roll_verdict_copy *roll_feed_next(roll_feed_t *feed)
{
    if (feed->taken == feed->verdicts.used) {
        forget_taken(feed);
        return NULL;
    }
    return feed->verdicts.at[feed->taken++];
}

uint64_t roll_feed_verdicts_lost(const roll_feed_t *feed)
{
    return feed->verdicts_lost;
}

roll_engine_t *roll_feed_engine(roll_feed_t *feed)
{
    return feed->engine;
}

roll_symbols_t *roll_feed_symbols(roll_feed_t *feed)
{
    return feed->symbols;
}

const char *roll_feed_job(const roll_feed_t *feed)
{
    return feed->job;
}

uint32_t roll_feed_restart(const roll_feed_t *feed)
{
    return feed->restart;
}

static void view_of(const roll_feed_t *feed, const struct roll_stream *s, struct roll_feed_stream *out)
{
    *out = s->view;
    (void)roll_engine_refused(feed->engine, s->view.source, &out->losses[ROLL_LOSS_NO_ROOM]);
    out->open_ticket = s->open_used ? s->open[0] : s->view.next_ticket;
}

bool roll_feed_stream(const roll_feed_t *feed, size_t i, struct roll_feed_stream *out)
{
    if (i >= feed->used) {
        return false;
    }
    view_of(feed, &feed->streams[i], out);
    return true;
}

/* Counters come from outside: their sum ends where a number of JSON does. */
static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t most = INT64_MAX, sum = a + b;
    return sum < a || sum > most ? most : sum;
}

void roll_feed_missing(const struct roll_feed_stream *ring, uint64_t *lost, uint64_t *older)
{
    const uint64_t *losses = ring->losses;
    uint64_t counted = add(add(losses[ROLL_LOSS_OVERRUN], losses[ROLL_LOSS_WIRE]), losses[ROLL_LOSS_CORRUPT]);
    uint64_t gaps = add(ring->lost, ring->older);
    *lost = counted > ring->lost ? counted : ring->lost;
    *older = gaps > *lost ? gaps - *lost : 0;
}

uint64_t roll_feed_older(const roll_feed_t *feed)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < feed->used; i++) {
        uint64_t lost, older;
        roll_feed_missing(&feed->streams[i].view, &lost, &older);
        sum = add(sum, older);
    }
    return sum;
}

uint64_t roll_feed_losses(const roll_feed_t *feed, uint64_t sum[ROLL_LOSS_LIMIT])
{
    uint64_t lost = 0;
    memset(sum, 0, ROLL_LOSS_LIMIT * sizeof(*sum));
    for (size_t i = 0; i < feed->used; i++) {
        const struct roll_feed_stream *v = &feed->streams[i].view;
        uint64_t one, older;
        roll_feed_missing(v, &one, &older);
        for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
            sum[k] = add(sum[k], v->losses[k]);
        }
        lost = add(lost, one);
    }
    sum[ROLL_LOSS_NO_ROOM] = add(0, roll_engine_refusals(feed->engine));
    return lost;
}

bool roll_feed_find(const roll_feed_t *feed, uint64_t stream, struct roll_feed_stream *out)
{
    const struct roll_stream *s = roll_feed_stream_of(feed, stream);
    if (!s) {
        return false;
    }
    view_of(feed, s, out);
    return true;
}
