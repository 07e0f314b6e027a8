/*
 * root_run.c: one run at the root: its feed and its trace file. Its verdicts: root_run_say.c.
 *
 * Everything that reaches the engine is in the trace file first, ticks included, so that analysis of the file repeats
 * the run, and so that a root that is started after a killed one finds the past there: it replays the file, continues
 * the numbering, and asks the agents only for what is missing. A separate state file was rejected: it could contradict
 * the trace.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/store/trace_file.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMING_NS (10000 * ROLL_MS) /* so long agents may take to come to a root that was started anew */

bool roll_run_live(const struct roll_run *run)
{
    return roll_engine_live(roll_feed_engine(run->feed)) > 0;
}

void roll_run_destroy(struct roll_run **pointer)
{
    struct roll_run *run = *pointer;
    if (!run) {
        return;
    }
    struct roll_segment_count count = {0};
    if (run->trace) {
        roll_segments_count(run->trace, &count);
    }
    if (count.lost > 0) {
        roll_log(ROLL_LOG_WARNING, "root: %s.%u: %llu records are not in the trace", run->job, run->restart,
                 (unsigned long long)count.lost);
    }
    roll_segments_destroy(&run->trace);
    roll_digested_destroy(&run->digested);
    roll_feed_destroy(&run->feed);
    roll_verdict_list_fini(&run->verdicts);
    free(run->switches);
    free(run->replaced);
    roll_rankset_fini(&run->looked_at);
    roll_rankset_fini(&run->incident.culprits);
    roll_sources_destroy(&run->sources);
    free(run);
    *pointer = NULL;
}

/* trace */

/* Says that the trace has ended. From here on the segments count what would have been in it. */
static void trace_failed(const struct roll_run *run, int err)
{
    roll_log(ROLL_LOG_ERROR, "root: %s.%u: the trace ends here: %s; watching goes on, what is not kept is counted",
             run->job, run->restart, roll_strerror(err));
}

/* Feeds one segment. resume: the frames that the segment repeats have been fed. *whole: nothing is missing at its end.
 * Returns how many frames it held. */
static uint64_t replay(roll_root_t *root, struct roll_run *run, const char *path, bool resume, bool *whole)
{
    roll_trace_reader_t *reader = NULL;
    struct roll_frame frame;
    uint64_t frames = 0;
    int err;
    *whole = false;
    if (roll_trace_reader_new(path, &reader) != 0) {
        return 0;
    }
    if (resume) {
        roll_trace_reader_resume(reader);
    }
    while ((err = roll_trace_reader_next(reader, &frame)) == 0) {
        roll_segments_note(run->trace, &frame);
        roll_feed_frame(run->feed, &frame);
        roll_run_verdicts(root, run);
        if (frame.head.type == ROLL_FRAME_TICK) {
            roll_feed_clock_replay(&run->clock, frame.head.seq);
            run->since_ns = frame.head.seq < run->since_ns ? frame.head.seq : run->since_ns;
        }
        frames++;
    }
    roll_trace_reader_destroy(&reader);
    *whole = err == ROLL_E_NOTFOUND || err == ROLL_E_SHORT;
    return frames;
}

/* Ranks that lived when the trace ended are not heard until their agents announce them to this root: what they have
 * done since then nobody has seen, and their agents may come late, or never. */
static void await_all(struct roll_run *run)
{
    struct roll_frame_sight sight = {.heard = 0};
    struct roll_feed_stream ring;
    for (size_t i = 0; roll_feed_stream(run->feed, i, &ring); i++) {
        struct roll_frame_head head = {.type = ROLL_FRAME_SIGHT, .stream = ring.stream};
        uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(sight)];
        struct roll_frame frame;
        bool ended = ring.proc == ROLL_PROC_FINISHED || ring.proc == ROLL_PROC_DEAD;
        int64_t n = ended ? 0 : roll_frame_make(&head, &sight, sizeof(sight), raw, sizeof(raw), &frame);
        int err = n > 0 ? roll_segments_append(run->trace, &frame, raw, (size_t)n, roll_mono_ns()) : 0;
        if (err) {
            trace_failed(run, err);
        }
        if (n > 0) {
            (void)roll_feed_frame(run->feed, &frame);
        }
    }
}

/* Opens the run's trace: the segments of an earlier root are fed first, then a new segment goes on. */
static void open_trace(roll_root_t *root, struct roll_run *run)
{
    char series[ROLL_NAME_BYTES + 16];
    struct roll_segment_name *list = NULL;
    size_t count = 0;
    uint64_t frames = 0;
    snprintf(series, sizeof(series), "%s.%u", run->job, run->restart);
    struct roll_segment_options o = {.dir = root->o.trace_dir,
                                     .series = series,
                                     .segment_bytes = root->o.trace_segment,
                                     .limit_bytes = root->o.trace_limit,
                                     .age_ns = root->o.trace_age_ns};
    char why[ROLL_SEGMENT_WHY];
    int pid, err = roll_segments_new(&o, &run->trace, &pid);
    if (!err) {
        err = roll_segment_list(o.dir, series, &list, &count);
    }
    if (err) {
        roll_log(ROLL_LOG_ERROR, "root: %s/%s: %s; this run is watched without a trace", o.dir, series,
                 roll_segment_why(err, pid, why));
        roll_segments_destroy(&run->trace);
        return;
    }
    run->said = count > 0 ? roll_run_said_before(root, run) : 0;
    bool whole = false;
    run->replaying = true;
    for (size_t i = 0; i < count; i++) { /* behind a gap a segment repeats what is needed to read on */
        bool resume = whole && list[i].number > 1 && list[i].number == list[i - 1].number + 1;
        frames += replay(root, run, list[i].path, resume, &whole);
    }
    run->replaying = false;
    run->said = 0;
    if (frames > 0) {
        await_all(run);
        roll_log(ROLL_LOG_INFO, "root: %s: continued from %s (%llu frames)", series, list[count - 1].path,
                 (unsigned long long)frames);
    }
    free(list);
}

void roll_run_keep(struct roll_run *run, uint64_t mono_ns, bool at_once)
{
    int err = run->trace ? roll_segments_turn(run->trace, mono_ns, at_once || run->trace_urgent) : 0;
    run->trace_urgent = false;
    if (err) {
        trace_failed(run, err);
    }
}

/* life */

void roll_run_forget(roll_root_t *root, size_t i)
{
    roll_streams_forget(root, root->runs[i]);
    roll_stacks_forget(root, root->runs[i]);
    roll_root_metrics_forget(root, root->runs[i]);
    roll_run_destroy(&root->runs[i]);
    memmove(root->runs + i, root->runs + i + 1, (root->runs_used - i - 1) * sizeof(struct roll_run *));
    root->runs_used--;
    (void)roll_memory_ebb(&root->ebb, true, roll_mono_ns()); /* what it held goes back, too */
}

static struct roll_run *find_run(const roll_root_t *root, const char *job, uint32_t restart)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        if (root->runs[i]->restart == restart && strcmp(root->runs[i]->job, job) == 0) {
            return root->runs[i];
        }
    }
    return NULL;
}

/* The run is compared by digests from its first ring on. What a root writes of such a run would be rings without calls,
 * so it writes nothing. */
static void begin_digests(const roll_root_t *root, struct roll_run *run)
{
    if (roll_digested_new(run) != 0) {
        roll_log(ROLL_LOG_WARNING, "root: %s.%u: %s; every record is sent", run->job, run->restart,
                 roll_strerror(ROLL_E_NOMEM));
        return;
    }
    roll_segments_destroy(&run->trace);
    if (root->o.trace_dir) {
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u is compared by digests, so its records are not here and %s keeps nothing of it: "
                 "traces are where agents have --trace",
                 run->job, run->restart, root->o.trace_dir);
    }
}

/*
 * Decides by the first ring of a run how its calls are compared. An agent hears it with the first acknowledgement of
 * each ring and reads the ring accordingly, so it cannot change later; to count rings and change over at the 128th was
 * rejected for that. A ring that does not know how many there are decides for streaming, which is right at any size.
 */
static void decide(const roll_root_t *root, struct roll_run *run, int32_t world)
{
    bool by_size = root->o.compare == ROLL_COMPARE_AUTO;
    run->decided = true;
    run->unsized = by_size && world <= 0;
    if (by_size && world >= ROLL_DIGEST_RANKS) {
        roll_log(ROLL_LOG_INFO, "root: %s.%u has %d ranks: their calls are compared by digests", run->job, run->restart,
                 world);
    }
    if (root->o.compare == ROLL_COMPARE_DIGEST || (by_size && world >= ROLL_DIGEST_RANKS)) {
        begin_digests(root, run);
    }
}

/* Ranks that do not say how many they are turn out to be many. */
static void look_at_size(struct roll_run *run)
{
    if (run->unsized && roll_engine_sources(roll_feed_engine(run->feed)) >= ROLL_DIGEST_RANKS) {
        run->unsized = false;
        roll_log(ROLL_LOG_WARNING,
                 "root: %s.%u has %d ranks and more, none of which says how many there are (WORLD_SIZE): every record "
                 "is sent; a root with --digest compares them by digests",
                 run->job, run->restart, ROLL_DIGEST_RANKS);
    }
}

int roll_run_of(roll_root_t *root, const char *job, uint32_t restart, int32_t world, struct roll_run **out)
{
    *out = find_run(root, job, restart);
    if (*out && !(*out)->decided && world != ROLL_WORLD_UNASKED) {
        decide(root, *out, world);
    }
    if (*out) {
        look_at_size(*out);
        return 0;
    }
    int err = roll_place_make(root, job, restart, roll_mono_ns());
    err = err ? err : ROLL_GROW(root->runs, root->runs_room, root->runs_used + 1);
    struct roll_run *run = err ? NULL : calloc(1, sizeof(*run));
    if (!run) {
        return err ? err : ROLL_E_NOMEM;
    }
    struct roll_engine_config config = {
        .stall_ns = root->o.stall_ns, .suspect_ns = root->o.suspect_ns, .policy = root->policy};
    run->id = ++root->next_run;
    snprintf(run->job, sizeof(run->job), "%s", job);
    run->restart = restart;
    run->heard_ns = run->joined_ns = roll_mono_ns();
    run->policy = root->policy;
    run->policy_set = root->policy_set;
    run->feed = roll_feed_new(&config, job, restart);
    if (!run->feed) {
        roll_run_destroy(&run);
        return ROLL_E_NOMEM;
    }
    roll_engine_expect(roll_feed_engine(run->feed), root->o.expected);
    roll_symbols_warm(roll_feed_symbols(run->feed));
    roll_feed_clock_init(&run->clock, root->o.stall_ns, roll_mono_ns());
    run->since_ns = roll_real_ns();
    root->runs[root->runs_used++] = run;
    roll_log(ROLL_LOG_INFO, "root: watching %s.%u", run->job, run->restart);
    if (world != ROLL_WORLD_UNASKED || root->o.compare != ROLL_COMPARE_AUTO) {
        decide(root, run, world);
    }
    if (root->o.trace_dir && !run->digested) {
        open_trace(root, run);
    }
    roll_engine_set(roll_feed_engine(run->feed),
                    &config); /* the predecessor's own settings, which its trace holds, do not count */
    roll_run_settings(root, run);
    uint64_t now = roll_mono_ns();
    roll_feed_clock_skip(&run->clock, now);
    roll_run_tick(root, run, now, false); /* so that the first rank comes at a time that the engine knows */
    *out = run;
    return 0;
}

/*
 * The rank that still runs is left over from an older attempt at the same job (it hangs where nobody can kill it): a
 * later attempt has ranks that came after it. Where that one is over, too, the older one must have lost ranks: a job
 * that was begun anew under its name counts its restarts from 0, and an agent may find rings of the time before. What
 * comes to a root within its first seconds comes in any order.
 */
static bool is_left_over(const roll_root_t *root, const struct roll_run *run)
{
    const roll_engine_t *engine = roll_feed_engine(run->feed);
    bool lost_ranks = roll_engine_live(engine) < roll_engine_sources(engine);
    for (size_t i = 0; i < root->runs_used; i++) {
        const struct roll_run *other = root->runs[i];
        bool later = other->restart > run->restart && strcmp(other->job, run->job) == 0;
        bool at_begin = run->joined_ns - root->begun_ns < COMING_NS && other->joined_ns - root->begun_ns < COMING_NS;
        bool behind = run->joined_ns <= other->joined_ns;
        if (later && (roll_run_live(other) ? behind || at_begin : behind && lost_ranks)) {
            return true;
        }
    }
    return false;
}

struct roll_run *roll_run_select(roll_root_t *root, const json_t *query)
{
    const char *job = json_string_value(json_object_get(query, "job"));
    const json_t *restart = json_object_get(query, "restart");
    struct roll_run *ended = NULL;
    for (size_t i = root->runs_used; i-- > 0;) {
        struct roll_run *run = root->runs[i];
        bool meant = (!job || strcmp(job, run->job) == 0) &&
                     (!json_is_integer(restart) || json_integer_value(restart) == (json_int_t)run->restart);
        meant = meant && (json_is_integer(restart) || !is_left_over(root, run));
        if (meant && roll_run_live(run)) {
            return run;
        }
        ended = meant && !ended ? run : ended;
    }
    return ended;
}

/* input */

/* Tells the feed what time it is, and the trace with it. */
static void tell_time(struct roll_run *run, const struct roll_feed_time *time, bool final)
{
    if (run->trace) {
        uint8_t buffer[ROLL_FRAME_HEAD_BYTES + sizeof(time->wall_ns)];
        struct roll_frame_head head = {.type = ROLL_FRAME_TICK, .seq = time->engine_ns, .first = final};
        struct roll_frame frame;
        int64_t n = roll_frame_make(&head, &time->wall_ns, sizeof(time->wall_ns), buffer, sizeof(buffer), &frame);
        int err = n < 0 ? (int)n : roll_segments_append(run->trace, &frame, buffer, (size_t)n, roll_mono_ns());
        if (err) {
            trace_failed(run, err);
        }
    }
    roll_feed_stamp(run->feed, time->wall_ns);
}

/* Whether a frame says that a process has ended. The agent may remove the ring as soon as this frame is acknowledged;
 * by then the frame must be in the file. */
static bool ends_process(const struct roll_frame *frame)
{
    struct roll_frame_status status;
    if (frame->head.type != ROLL_FRAME_STATUS || frame->head.payload < sizeof(status)) {
        return false;
    }
    memcpy(&status, frame->payload, sizeof(status));
    return status.proc_state == ROLL_PROC_FINISHED || status.proc_state == ROLL_PROC_DEAD;
}

int roll_run_frame(roll_root_t *root, struct roll_run *run, const struct roll_frame *frame, const void *raw,
                   size_t bytes)
{
    if (!roll_feed_is_news(run->feed, frame)) {
        return 0;
    }
    /* A wrong call is told the moment its record is here, also while the engine's clock stands still, so the wall clock
     * of its verdict must be right. */
    struct roll_feed_time time;
    if (roll_feed_clock_stamp(&run->clock, roll_real_ns(), &time)) {
        tell_time(run, &time, false);
    }
    if (run->trace) {
        int err = roll_segments_append(run->trace, frame, raw, bytes, roll_mono_ns());
        if (err) {
            trace_failed(run, err);
        }
        run->trace_urgent = run->trace_urgent || ends_process(frame);
    }
    uint64_t begin = roll_mono_ns();
    int err = roll_feed_frame(run->feed, frame);
    uint64_t end = roll_mono_ns();
    root->engine_ns += end - begin;
    /* SIGHT says how busy a node is: no rank has moved for that. */
    roll_feed_clock_input(&run->clock, end, frame->head.type != ROLL_FRAME_SIGHT);
    roll_run_verdicts(root, run);
    return err;
}

static struct roll_frame_settings settings_of(const struct roll_run *run, struct roll_engine_config *config)
{
    roll_engine_settings(roll_feed_engine(run->feed), config);
    return (struct roll_frame_settings){config->stall_ns, config->suspect_ns, run->policy, 0};
}

int roll_run_tell_settings(const struct roll_run *run, const struct roll_peer *peer, uint64_t stream)
{
    struct roll_engine_config config;
    struct roll_frame_settings settings = settings_of(run, &config);
    struct roll_frame_head head = {.type = ROLL_FRAME_SETTINGS, .stream = stream};
    return roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, &settings, sizeof(settings));
}

/* One ring names the run to its agent; a relay passes it to the ring's agent alone, so there all are told. */
static void tell_peer(struct roll_peer *peer, const struct roll_run *run)
{
    bool all = true, any = false;
    for (size_t i = 0; !peer->gone && i < peer->used && (peer->relay || !any); i++) {
        struct roll_peer_stream *s = &peer->streams[i];
        if (s->run == run) {
            any = true;
            s->unset = roll_run_tell_settings(run, peer, s->stream) == ROLL_E_BUSY;
            all = all && !s->unset;
        }
    }
    if (!all) {
        roll_remedy_tell(peer, run);
    }
}

void roll_run_settings(roll_root_t *root, struct roll_run *run)
{
    struct roll_engine_config config;
    struct roll_frame_settings settings = settings_of(run, &config);
    if (run->trace) {
        uint8_t buffer[ROLL_FRAME_HEAD_BYTES + sizeof(settings)];
        struct roll_frame_head head = {.type = ROLL_FRAME_SETTINGS};
        struct roll_frame frame;
        int64_t n = roll_frame_make(&head, &settings, sizeof(settings), buffer, sizeof(buffer), &frame);
        int err = n < 0 ? (int)n : roll_segments_append(run->trace, &frame, buffer, (size_t)n, roll_mono_ns());
        if (err) {
            trace_failed(run, err);
        }
    }
    config.policy = run->policy;
    roll_engine_set(roll_feed_engine(run->feed), &config);
    if (run->judge) {
        roll_engine_set(roll_feed_engine(run->judge), &config);
    }
    for (size_t i = 0; i < root->peers_used; i++) {
        tell_peer(root->peers[i], run);
    }
}

void roll_run_tick(roll_root_t *root, struct roll_run *run, uint64_t mono_ns, bool final)
{
    struct roll_feed_time time;
    roll_feed_clock_pass(&run->clock, mono_ns, roll_real_ns(), &time);
    tell_time(run, &time, final);
    uint64_t begin = roll_mono_ns();
    roll_feed_tick(run->feed, time.engine_ns);
    roll_feed_t *asked = run->judge;
    if (asked) {
        roll_feed_stamp(asked, time.wall_ns);
        roll_feed_tick(asked, time.engine_ns);
    }
    if (final) {
        roll_feed_finish(run->feed);
    }
    if (final && asked) {
        roll_feed_finish(asked);
    }
    root->engine_ns += roll_mono_ns() - begin;
    roll_run_verdicts(root, run);
    roll_room_look(run);
}
