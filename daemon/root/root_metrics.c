/*
 * root_metrics.c: what the Prometheus endpoint shows, copied under a lock a few times a second, because the endpoint's
 * thread must not see the engine.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/http/listen.h"
#include "trace/err.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define REFRESH_NS      (200 * ROLL_MS)
#define REFRESH_MOST_NS (5000 * ROLL_MS)
#define COST_SHARE      200u /* a look at all ranks may take so small a part of the time: of many it is rarer */

static void fill(void *arg, struct roll_metrics_snapshot *out)
{
    roll_root_t *root = arg;
    pthread_mutex_lock(&root->snapshot_lock);
    *out = root->snapshot;
    pthread_mutex_unlock(&root->snapshot_lock);
}

int roll_root_metrics_open(roll_root_t *root, char *why, size_t why_size)
{
    if (!root->o.http) {
        return 0;
    }
    struct sockaddr_storage address;
    int err = roll_listen_parse(root->o.http, &address);
    if (err) {
        snprintf(why, why_size, "--http %s: %s", root->o.http,
                 err == ROLL_E_DENIED
                     ? "only addresses of this host itself are served, as 127.0.0.1:9400; from another "
                       "machine go through ssh (`rollcall page` says how)"
                     : "not an address; it looks like :9400 or 127.0.0.1:9400");
        return ROLL_E_ARG;
    }
    roll_root_metrics_refresh(root, roll_mono_ns());
    err = roll_metrics_new(root->o.http, fill, root, root->page, &root->metrics);
    if (err) {
        snprintf(why, why_size, "--http %s: %s", root->o.http,
                 err == ROLL_E_BUSY ? "another program has this port; choose another one, or :0 for any that is free"
                 : err == ROLL_E_DENIED ? "this user may not have this port; choose one from 1024 up"
                                        : roll_strerror(err));
    } else {
        roll_log(ROLL_LOG_INFO, "root: metrics on port %u%s", roll_metrics_port(root->metrics),
                 root->page ? ", and the page: rollcall page" : "");
    }
    return err;
}

void roll_root_metrics_verdict(roll_root_t *root, const struct roll_verdict *verdict)
{
    if (root->o.http) {
        pthread_mutex_lock(&root->snapshot_lock);
        roll_metrics_count_verdict(&root->snapshot, verdict->code, verdict->certainty, 1);
        pthread_mutex_unlock(&root->snapshot_lock);
    }
}

/* The counters of a run, which a daemon that has forgotten the run still has counted. Of a run that is compared by
 * digests the calls are those that were folded; records that were asked for are no part of what a job records. */
static void add_counters(struct roll_metrics_snapshot *s, const struct roll_run *run)
{
    struct roll_engine_summary summary;
    roll_engine_summary(roll_feed_engine(run->feed), &summary);
    s->calls += run->digested ? roll_run_calls(run) : summary.calls;
    s->records += summary.records;
    s->lost[ROLL_LOSS_VERDICT] += roll_run_verdicts_lost(run);
    s->lost[ROLL_LOSS_NO_ROOM] += roll_run_no_room(run);
    struct roll_feed_stream stream;
    for (size_t i = 0; roll_feed_stream(run->feed, i, &stream); i++) {
        for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
            s->lost[k] += k == ROLL_LOSS_NO_ROOM ? 0 : stream.losses[k];
        }
    }
}

void roll_root_metrics_forget(roll_root_t *root, const struct roll_run *run)
{
    add_counters(&root->forgotten, run);
}

/* What is so now: it ends with the run. */
static void add_gauges(struct roll_metrics_snapshot *s, const struct roll_run *run)
{
    struct roll_engine_summary summary;
    roll_engine_summary(roll_feed_engine(roll_run_judge(run)), &summary);
    s->comms += roll_digested_calm(run) ? roll_fronts_count(run) : summary.comms;
    s->findings += run->digested ? roll_run_findings(run) : summary.findings;
    s->incomplete += roll_digested_sees_part(run) ? 0 : summary.incomplete;
    /* A rank whose last operation is incomplete has waited at least since it issued it. */
    uint64_t now = roll_real_ns();
    struct roll_view_source source;
    const roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    for (uint32_t i = 0; roll_engine_source_brief(engine, i, &source); i++) {
        double age = now > source.last_ns ? (double)(now - source.last_ns) * 1e-9 : 0;
        if (age > s->oldest_pending_seconds && source.pending > 0) {
            s->oldest_pending_seconds = age;
        }
    }
    struct roll_feed_stream stream;
    for (size_t i = 0; roll_feed_stream(run->feed, i, &stream); i++) {
        s->ranks[stream.proc]++;
    }
}

static void at_least(double *seconds, uint64_t ns)
{
    *seconds = (double)ns * 1e-9 > *seconds ? (double)ns * 1e-9 : *seconds;
}

/* A silent agent is late by as much as it has been silent, until it is taken for gone. */
static void add_eyes(struct roll_metrics_snapshot *s, const roll_root_t *root, uint64_t now)
{
    at_least(&s->late_seconds[ROLL_EYE_ROOT], roll_root_lately(root, now));
    s->root_late_seconds = (double)(root->eye.late.total_ns + root->eye.late_ns) * 1e-9;
    s->missed_seconds = (double)root->eye.missed_ns * 1e-9;
    for (size_t i = 0; i < root->peers_used; i++) {
        const struct roll_peer *peer = root->peers[i];
        uint64_t silent = roll_peer_silence_ns(root, peer, now);
        if (!peer->gone) {
            at_least(&s->late_seconds[ROLL_EYE_AGENT], roll_late_lately(&peer->eye.own, now));
            at_least(&s->late_seconds[ROLL_EYE_AGENT], silent > ROLL_LATE_HEARD_NS ? silent : 0);
            at_least(&s->late_seconds[ROLL_EYE_LINK], roll_late_lately(&peer->eye.way, now));
            at_least(&s->late_seconds[ROLL_EYE_RING], peer->relay ? 0 : peer->eye.beat.look_ns);
            at_least(&s->late_seconds[ROLL_EYE_BELOW], roll_late_lately(&peer->eye.below, now));
            at_least(&s->late_seconds[ROLL_EYE_BELOW], peer->relay ? peer->eye.beat.look_ns : 0);
        }
    }
}

void roll_root_metrics_refresh(roll_root_t *root, uint64_t now)
{
    if (!root->o.http || now - root->snapshot_ns < root->snapshot_every_ns) {
        return;
    }
    root->snapshot_ns = now;
    uint64_t begin = roll_mono_ns();
    size_t agents = 0;
    for (size_t i = 0; i < root->peers_used; i++) {
        agents += !root->peers[i]->gone;
    }
    struct roll_metrics_snapshot s = root->forgotten;
    s.runs = root->runs_used;
    s.unwatched_runs = roll_place_unwatched(root, now);
    s.agents = agents;
    s.batches = root->batches;
    s.bytes = root->bytes;
    s.engine_seconds = (double)root->engine_ns * 1e-9;
    s.start_time_seconds = root->start_time;
    s.deaths = root->o.deaths;
    s.refused[ROLL_REFUSER_ROOT] = root->bad_frames + root->refused_frames;
    s.refused[ROLL_REFUSER_RELAY] = root->refused_below;
    add_eyes(&s, root, now);
    for (size_t i = 0; i < root->runs_used; i++) {
        add_counters(&s, root->runs[i]);
        add_gauges(&s, root->runs[i]);
    }
    pthread_mutex_lock(&root->snapshot_lock);
    memcpy(s.verdicts, root->snapshot.verdicts, sizeof(s.verdicts));
    root->snapshot = s;
    pthread_mutex_unlock(&root->snapshot_lock);
    uint64_t every = (roll_mono_ns() - begin) * COST_SHARE;
    root->snapshot_every_ns = every < REFRESH_NS ? REFRESH_NS : every < REFRESH_MOST_NS ? every : REFRESH_MOST_NS;
}
