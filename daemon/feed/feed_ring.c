/*
 * feed_ring.c: which rings a run has: how they are announced, defined and seen.
 *
 * An agent announces a ring again whenever the agent or the root came back; what has been fed of the ring is kept. The
 * name of a job becomes part of file names, so the name is cleaned here, where it comes in.
 */
#include "daemon/feed/feed_state.h"

#include "daemon/base/array.h"
#include "trace/err.h"

#include <jansson.h>
#include <string.h>

#define MAX_STREAMS 65536u /* rings of one run: four times the largest run that was simulated */

struct roll_stream *roll_feed_stream_of(const roll_feed_t *feed, uint64_t epoch)
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

void roll_feed_clean_job(const char *from, char job[ROLL_NAME_BYTES])
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
        roll_feed_clean_job(name, job);
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
    roll_feed_clean_job(header.job, job);
    *restart = header.restart;
    return 0;
}

/* how a rank is seen */

static int tell_sight(roll_feed_t *feed, struct roll_stream *s, bool heard, uint32_t starved)
{
    s->view.heard = heard;
    s->view.starved = starved;
    s->stays_aside = false;
    struct roll_engine_sight sight = {.heard = heard, .starved = starved};
    return roll_engine_sight(feed->engine, s->view.source, &sight);
}

int roll_feed_take_sight(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame)
{
    struct roll_frame_sight sight;
    memcpy(&sight, frame->payload, sizeof(sight) < frame->head.payload ? sizeof(sight) : frame->head.payload);
    if (frame->head.payload < sizeof(sight) || sight.heard > 1 || sight.starved > 1000) {
        return ROLL_E_CORRUPT;
    }
    return tell_sight(feed, s, sight.heard != 0, sight.heard ? sight.starved : s->view.starved);
}

bool roll_feed_starved(const roll_feed_t *feed, uint64_t stream, uint32_t *starved)
{
    const struct roll_stream *s = roll_feed_stream_of(feed, stream);
    *starved = s ? s->view.starved : 0;
    return s != NULL;
}

int roll_feed_aside(roll_feed_t *feed, uint64_t stream, uint32_t starved, bool stays)
{
    struct roll_stream *s = roll_feed_stream_of(feed, stream);
    if (!s) {
        return ROLL_E_NOTFOUND;
    }
    s->view.heard = false;
    s->view.starved = starved;
    s->stays_aside = stays;
    struct roll_engine_sight sight = {.heard = false, .starved = starved, .aside = true};
    return roll_engine_sight(feed->engine, s->view.source, &sight);
}

int roll_feed_quiet(roll_feed_t *feed, uint64_t stream, uint64_t quiet_ns)
{
    struct roll_stream *s = roll_feed_stream_of(feed, stream);
    return s ? roll_engine_quiet(feed->engine, s->view.source, quiet_ns) : ROLL_E_NOTFOUND;
}

/* An agent that says anything about a ring is heard. */
int roll_feed_note_heard(roll_feed_t *feed, struct roll_stream *s)
{
    return s->view.heard || s->stays_aside ? 0 : tell_sight(feed, s, true, s->view.starved);
}

/* rings */

/* Takes the announcement of a ring: the first, or one more when its agent or the root came back. */
int roll_feed_take_ring(roll_feed_t *feed, const struct roll_frame *frame)
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
    struct roll_stream *known = roll_feed_stream_of(feed, frame->head.stream);
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
    struct roll_stream *s = &feed->streams[feed->used];
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
    (void)roll_map_add(&feed->index, header.epoch, (uint32_t)feed->used); /* grow() has made the room */
    feed->used++;
    return roll_engine_clock(feed->engine, v->source, s->clock_offset);
}

static int define(roll_feed_t *feed, const struct roll_stream *s, const struct roll_def *def)
{
    int err = roll_symbols_define(feed->symbols, s->view.stream, def);
    if (err == ROLL_E_NOMEM) {
        return err;
    }
    err = roll_engine_define(feed->engine, s->view.source, def);
    if (err == ROLL_E_NOMEM) {
        return err;
    }
    if (feed->watch) {
        feed->watch->define(feed->watch->ctx, feed, &s->view, def);
    }
    return 0;
}

int roll_feed_take_defs(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame)
{
    uint64_t base = frame->head.first;
    size_t bytes = frame->head.payload;
    bool named = (frame->head.flags & ROLL_DEFS_NAMED) != 0;
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
        if (named ? def.type == ROLL_DEF_COMM : offset < s->view.defs_offset) {
            continue;
        }
        s->view.defs_offset = named ? s->view.defs_offset : base + at;
        err = define(feed, s, &def);
        if (err) {
            return err;
        }
    }
    return 0;
}
