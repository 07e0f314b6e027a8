/*
 * feed.c: from frames to the engine.
 *
 * Relies on tickets: a record's ticket and a definition's offset say exactly what has been seen, so a sender that
 * repeats itself after a reconnect costs nothing, and a hole in the tickets is a loss, not a guess. Verdicts are
 * copied, call sites included, right after the frame that brought them: later definitions could otherwise change what
 * they say, and a replay would differ from what was said live. A feeder inside the root was rejected: the analyzer
 * would need a second one, and the two would drift apart.
 */
#include "daemon/feed/feed.h"

#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/feed/feed_note.h"
#include "trace/err.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STREAMS   65536u  /* rings of one run: four times the largest run that was simulated */
#define MAX_OPEN      65536u  /* calls of one ring that are inside NCCL; more than threads could ever hold */
#define BATCH         512u    /* records given to the engine at once */
#define CLOCK_STEP_NS 1000000 /* smaller changes of a clock pair are reading noise */
#define WINDOW        65536u  /* calls that a node may be ahead of one whose link is cut: a default ring's */

struct stream {
    struct roll_feed_stream view;
    int64_t clock_offset;
    struct roll_frame_status status; /* the newest that was fed; proc_state 0: none yet */
    uint64_t *open;                  /* tickets fed as ENTERED, ascending */
    size_t open_used, open_room;
};

struct roll_feed {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    bool named;
    bool finished;
    bool policy_fixed; /* no trace changes the policy */
    roll_engine_t *engine;
    roll_symbols_t *symbols;
    struct stream *streams; /* in the order of announcement */
    size_t used, room;
    struct roll_map index;             /* from epochs to numbers of streams */
    struct roll_verdict_list verdicts; /* a queue: those below `taken` belong to others */
    size_t taken;
    uint64_t verdicts_lost; /* given by the engine, and no memory for them */
    uint64_t stamp_ns;      /* wall clock that verdicts show; 0 = the engine's time */
    struct roll_record batch[BATCH];
};

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

/* The verdicts that were handed out leave the queue. */
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

/* streams */

static struct stream *find(const roll_feed_t *feed, uint64_t epoch)
{
    uint32_t number = roll_map_get(&feed->index, epoch);
    return number == ROLL_MAP_NONE ? NULL : &feed->streams[number];
}

static int grow(roll_feed_t *feed)
{
    int err = ROLL_GROW(feed->streams, feed->room, feed->used + 1);
    return err ? err : roll_map_reserve(&feed->index);
}

static bool job_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

/* A job's name as it may stand in file names. */
static void clean_job(const char *from, char job[ROLL_NAME_BYTES])
{
    memset(job, 0, ROLL_NAME_BYTES);
    for (size_t i = 0; i + 1 < ROLL_NAME_BYTES && from[i] != '\0'; i++) {
        job[i] = job_char(from[i]) && !(i == 0 && from[i] == '.') ? from[i] : '_';
    }
    if (job[0] == '\0') {
        memcpy(job, "local", 6);
    }
}

static int run_of_note(const struct roll_frame *frame, char job[ROLL_NAME_BYTES], uint32_t *restart)
{
    json_t *json = json_loadb((const char *)frame->payload, frame->head.payload, 0, NULL);
    const char *name = json_string_value(json_object_get(json, "job"));
    json_int_t number = json_integer_value(json_object_get(json, "restart"));
    bool good = name && number >= 0 && number <= UINT32_MAX;
    if (good) {
        clean_job(name, job);
        *restart = (uint32_t)number;
    }
    json_decref(json);
    return good ? 0 : ROLL_E_CORRUPT;
}

int roll_feed_run_of(const struct roll_frame *frame, char job[ROLL_NAME_BYTES], uint32_t *restart)
{
    struct roll_ring_header header;
    if (frame->head.type == ROLL_FRAME_NOTE) {
        return run_of_note(frame, job, restart);
    }
    if (frame->head.type != ROLL_FRAME_RING || frame->head.payload < sizeof(header)) {
        return ROLL_E_SIZE;
    }
    memcpy(&header, frame->payload, sizeof(header));
    if (memcmp(header.magic, ROLL_RING_MAGIC, sizeof(header.magic)) != 0) {
        return ROLL_E_MAGIC;
    }
    if (header.oldest > ROLL_RING_VERSION || header.version < ROLL_RING_OLDEST) {
        return ROLL_E_VERSION;
    }
    if (roll_crc32c(0, frame->payload, offsetof(struct roll_ring_header, static_crc)) != header.static_crc) {
        return ROLL_E_CHECKSUM;
    }
    if (header.epoch == 0 || header.epoch != frame->head.stream || header.record_bytes != ROLL_RECORD_BYTES) {
        return ROLL_E_CORRUPT;
    }
    clean_job(header.job, job);
    *restart = header.restart;
    return 0;
}

/* how it is seen */

static int tell_sight(roll_feed_t *feed, struct stream *s, bool heard, uint32_t starved)
{
    s->view.heard = heard;
    s->view.starved = starved;
    struct roll_engine_sight sight = {.heard = heard, .starved = starved};
    return roll_engine_sight(feed->engine, s->view.source, &sight);
}

static int feed_sight(roll_feed_t *feed, struct stream *s, const struct roll_frame *frame)
{
    struct roll_frame_sight sight;
    memcpy(&sight, frame->payload, sizeof(sight) < frame->head.payload ? sizeof(sight) : frame->head.payload);
    if (frame->head.payload < sizeof(sight) || sight.heard > 1 || sight.starved > 1000) {
        return ROLL_E_CORRUPT;
    }
    return tell_sight(feed, s, sight.heard != 0, sight.heard ? sight.starved : s->view.starved);
}

/* An agent that says anything about a ring is heard. */
static int note_heard(roll_feed_t *feed, struct stream *s)
{
    return s->view.heard ? 0 : tell_sight(feed, s, true, s->view.starved);
}

/* rings */

/* A ring is announced; again when its agent or the root came back. */
static int feed_ring_frame(roll_feed_t *feed, const struct roll_frame *frame)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    int err = roll_feed_run_of(frame, job, &restart);
    if (err) {
        return err;
    }
    if (!feed->named) {
        memcpy(feed->job, job, sizeof(feed->job));
        feed->restart = restart;
        feed->named = true;
    }
    if (strcmp(job, feed->job) != 0 || restart != feed->restart) {
        return ROLL_E_ARG;
    }
    struct stream *known = find(feed, frame->head.stream);
    if (known) {
        return known->view.heard && known->view.starved == 0 ? 0 : tell_sight(feed, known, true, 0);
    }
    if (feed->used >= MAX_STREAMS) {
        return ROLL_E_LIMIT;
    }
    err = grow(feed);
    if (err) {
        return err;
    }
    struct roll_ring_header header;
    memcpy(&header, frame->payload, sizeof(header));
    struct stream *s = &feed->streams[feed->used];
    memset(s, 0, sizeof(*s));
    struct roll_feed_stream *v = &s->view;
    v->stream = header.epoch;
    v->world_rank = header.world_rank;
    v->local_rank = header.local_rank;
    v->pid = header.pid;
    memcpy(v->host, header.host, sizeof(v->host) - 1);
    memcpy(v->exe, header.exe, sizeof(v->exe) - 1);
    v->proc = ROLL_PROC_RUNNING;
    v->exit_status = ROLL_EXIT_UNKNOWN;
    v->heard = true;
    struct roll_source_info info = {.stream = header.epoch,
                                    .world_rank = header.world_rank < 0 ? -1 : header.world_rank,
                                    .world_size = header.world_size < 0 ? -1 : header.world_size,
                                    .local_rank = header.local_rank < 0 ? -1 : header.local_rank,
                                    .pid = header.pid,
                                    .host = v->host,
                                    .exe = v->exe};
    err = roll_engine_open(feed->engine, &info, &v->source);
    if (err) {
        return err;
    }
    s->clock_offset = (int64_t)(header.clock_real_ns - header.clock_mono_ns);
    (void)roll_map_add(&feed->index, header.epoch, (uint32_t)feed->used); /* grow() has made room for it */
    feed->used++;
    return roll_engine_clock(feed->engine, v->source, s->clock_offset);
}

static int feed_defs(roll_feed_t *feed, struct stream *s, const struct roll_frame *frame)
{
    uint64_t base = frame->head.first;
    size_t bytes = frame->head.payload;
    if (base + bytes < base || base > ROLL_RING_MAX_DEFS_BYTES) {
        return ROLL_E_SIZE;
    }
    size_t at = 0;
    while (at < bytes) {
        struct roll_def def;
        uint64_t offset = base + at;
        int err = roll_def_decode(frame->payload, bytes, &at, &def);
        if (err) {
            return err == ROLL_E_NOTFOUND ? ROLL_E_CORRUPT : err; /* the payload must be whole entries */
        }
        if (offset < s->view.defs_offset) {
            continue;
        }
        s->view.defs_offset = base + at;
        err = roll_symbols_define(feed->symbols, s->view.stream, &def);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
        err = roll_engine_define(feed->engine, s->view.source, &def);
        if (err == ROLL_E_NOMEM) {
            return err;
        }
    }
    return 0;
}

/* records */

/* Position of the ticket in the open list, or where it would be. */
static size_t open_find(const struct stream *s, uint64_t ticket)
{
    size_t lo = 0, hi = s->open_used;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->open[mid] < ticket) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static int open_add(struct stream *s, uint64_t ticket)
{
    int err = ROLL_GROW(s->open, s->open_room, s->open_used + 1);
    if (err) {
        return err;
    }
    if (s->open_used == MAX_OPEN) { /* hostile or broken: forget the oldest, it can only stay "entered" */
        memmove(s->open, s->open + 1, (s->open_used - 1) * sizeof(*s->open));
        s->open_used--;
    }
    s->open[s->open_used++] = ticket;
    return 0;
}

/* Takes the ticket off the list; false when it was not open: then the news is none. */
static bool open_take(struct stream *s, uint64_t ticket)
{
    size_t i = open_find(s, ticket);
    if (i == s->open_used || s->open[i] != ticket) {
        return false;
    }
    memmove(s->open + i, s->open + i + 1, (s->open_used - i - 1) * sizeof(*s->open));
    s->open_used--;
    return true;
}

static void lost(roll_feed_t *feed, struct stream *s, uint64_t upto)
{
    uint64_t count = upto - s->view.next_ticket;
    s->view.lost += count;
    roll_engine_lost(feed->engine, s->view.source, s->view.next_ticket, count);
    s->view.next_ticket = upto;
}

static int flush(roll_feed_t *feed, struct stream *s, size_t *n)
{
    int err = *n ? roll_engine_feed(feed->engine, s->view.source, feed->batch, *n) : 0;
    *n = 0;
    return err;
}

/* RECORDS and UPDATES alike: a ticket that was fed before counts as an update, a new one only in RECORDS. */
static int feed_records(roll_feed_t *feed, struct stream *s, const struct roll_frame *frame)
{
    bool updates = frame->head.type == ROLL_FRAME_UPDATES;
    size_t n = 0;
    int err = 0;
    uint64_t expect = updates ? 0 : frame->head.first;
    for (uint32_t i = 0; i < frame->head.count && !err; i++) {
        struct roll_record *rec = &feed->batch[n];
        roll_frame_record(frame, i, rec);
        uint64_t ticket = roll_seal_ticket(rec->seal);
        bool entered = roll_seal_state(rec->seal) == ROLL_STATE_ENTERED;
        if (roll_seal_state(rec->seal) == ROLL_STATE_EMPTY || ticket < expect) {
            err = ROLL_E_CORRUPT; /* not in ticket order */
            break;
        }
        expect = ticket + 1;
        if (ticket < s->view.next_ticket) {
            /* That the device is through with a call is news after its return; said twice, it does no harm. */
            bool complete = roll_seal_state(rec->seal) == ROLL_STATE_COMPLETE;
            if (entered || (!open_take(s, ticket) && !complete)) {
                s->view.duplicates++;
                continue;
            }
        } else if (updates) {
            continue; /* of a record that was lost on the way here */
        } else {
            if (ticket > s->view.next_ticket) {
                err = flush(feed, s, &n);
                feed->batch[0] = *rec;
                lost(feed, s, ticket);
            }
            s->view.next_ticket = ticket + 1;
            s->view.fed++;
            if (entered && !err) {
                err = open_add(s, ticket);
            }
        }
        if (!err && ++n == BATCH) {
            err = flush(feed, s, &n);
        }
    }
    int last = flush(feed, s, &n);
    return err ? err : last;
}

static int feed_status(roll_feed_t *feed, struct stream *s, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    if (frame->head.payload < sizeof(status)) {
        return ROLL_E_SIZE;
    }
    memcpy(&status, frame->payload, sizeof(status));
    if (status.proc_state < ROLL_PROC_RUNNING || status.proc_state > ROLL_PROC_DEAD) {
        return ROLL_E_CORRUPT;
    }
    s->status = status;
    memcpy(s->view.losses, status.losses, sizeof(s->view.losses));
    int64_t offset = (int64_t)(status.clock_real_ns - status.clock_mono_ns);
    int64_t step = (int64_t)((uint64_t)offset - (uint64_t)s->clock_offset);
    if (step > CLOCK_STEP_NS || step < -CLOCK_STEP_NS) {
        s->clock_offset = offset;
        roll_engine_clock(feed->engine, s->view.source, offset);
    }
    enum roll_proc_state proc = (enum roll_proc_state)status.proc_state;
    bool gone = proc == ROLL_PROC_FINISHED || proc == ROLL_PROC_DEAD;
    if (gone && status.head > s->view.next_ticket) { /* what a dead process left unsealed will never come */
        lost(feed, s, status.head);
    }
    if (proc == s->view.proc && status.exit_status == s->view.exit_status) {
        return 0;
    }
    s->view.proc = proc;
    s->view.exit_status = status.exit_status;
    return roll_engine_process(feed->engine, s->view.source, proc, status.exit_status);
}

static int64_t offset_of(const struct roll_frame_status *s)
{
    return (int64_t)(s->clock_real_ns - s->clock_mono_ns);
}

bool roll_feed_status_is_news(const struct roll_frame_status *before, const struct roll_frame_status *now)
{
    int64_t step = (int64_t)((uint64_t)offset_of(now) - (uint64_t)offset_of(before));
    bool gone = now->proc_state == ROLL_PROC_FINISHED || now->proc_state == ROLL_PROC_DEAD;
    return gone || now->proc_state != before->proc_state || now->exit_status != before->exit_status ||
           memcmp(now->losses, before->losses, sizeof(now->losses)) != 0 || step > CLOCK_STEP_NS ||
           step < -CLOCK_STEP_NS;
}

bool roll_feed_is_news(const roll_feed_t *feed, const struct roll_frame *frame)
{
    struct roll_frame_status status;
    bool known = frame->head.type == ROLL_FRAME_STATUS && frame->head.payload >= sizeof(status) && feed->used > 0;
    const struct stream *s = known ? find(feed, frame->head.stream) : NULL;
    if (!s || !s->view.heard) { /* of one that was not heard, any word is news */
        return true;
    }
    memcpy(&status, frame->payload, sizeof(status));
    return roll_feed_status_is_news(&s->status, &status);
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
    forget_taken(feed); /* those may be gone, and the list looks at all that it holds */
    return roll_verdict_list_add(&feed->verdicts, copy);
}

static int take_verdicts(roll_feed_t *feed)
{
    const struct roll_verdict *verdict;
    int err = 0;
    while ((verdict = roll_engine_next(feed->engine)) != NULL) {
        int lost = take_verdict(feed, verdict);
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
    int err = roll_engine_tick(feed->engine, now_ns);
    int last = take_verdicts(feed);
    return err ? err : last;
}

int roll_feed_finish(roll_feed_t *feed)
{
    if (feed->finished) {
        return 0;
    }
    feed->finished = true;
    int err = roll_engine_finish(feed->engine);
    int last = take_verdicts(feed);
    return err ? err : last;
}

void roll_feed_fix_policy(roll_feed_t *feed)
{
    feed->policy_fixed = true;
}

/* Patience and policy from here on; it is no input that could bring a verdict by itself. */
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
        err = feed_ring_frame(feed, frame);
    } else if (frame->head.type == ROLL_FRAME_NOTE) {
        err = roll_feed_note(feed->engine, frame);
    } else if ((frame->head.type >= ROLL_FRAME_DEFS && frame->head.type <= ROLL_FRAME_STATUS) ||
               frame->head.type == ROLL_FRAME_SIGHT) {
        struct stream *s = find(feed, frame->head.stream);
        if (!s) {
            return ROLL_E_NOTFOUND;
        }
        err = frame->head.type == ROLL_FRAME_SIGHT ? feed_sight(feed, s, frame) : note_heard(feed, s);
        switch (err ? ROLL_FRAME_SIGHT : frame->head.type) {
        case ROLL_FRAME_SIGHT:
            break;
        case ROLL_FRAME_DEFS:
            err = feed_defs(feed, s, frame);
            break;
        case ROLL_FRAME_STATUS:
            err = feed_status(feed, s, frame);
            break;
        default:
            err = feed_records(feed, s, frame);
            break;
        }
    } else {
        return 0;
    }
    feed->finished = false;
    int last = take_verdicts(feed);
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

static void view_of(const struct stream *s, struct roll_feed_stream *out)
{
    *out = s->view;
    out->open_ticket = s->open_used ? s->open[0] : s->view.next_ticket;
}

bool roll_feed_stream(const roll_feed_t *feed, size_t i, struct roll_feed_stream *out)
{
    if (i >= feed->used) {
        return false;
    }
    view_of(&feed->streams[i], out);
    return true;
}

bool roll_feed_find(const roll_feed_t *feed, uint64_t stream, struct roll_feed_stream *out)
{
    const struct stream *s = find(feed, stream);
    if (!s) {
        return false;
    }
    view_of(s, out);
    return true;
}
