/*
 * job.c: see job.h. Numbers are given in the order in which things are first heard of, so the same files give the same
 * numbers.
 */
#include "daemon/console/export/job.h"

#include "daemon/base/array.h"
#include "daemon/console/file.h"
#include "trace/err.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* what there is */

static struct roll_job_run *run_of(struct roll_job *job, roll_feed_t *feed)
{
    for (size_t i = job->runs; i-- > 0;) { /* the newest is asked for most */
        if (job->run[i].feed == feed) {
            return &job->run[i];
        }
    }
    if (ROLL_GROW(job->run, job->run_room, job->runs + 1) != 0) {
        return NULL;
    }
    job->run[job->runs] = (struct roll_job_run){.feed = feed};
    return &job->run[job->runs++];
}

static struct roll_job_ring *ring_of(struct roll_job *job, roll_feed_t *feed, const struct roll_feed_stream *view)
{
    struct roll_job_run *run = run_of(job, feed);
    if (run == NULL || ROLL_GROW_ZERO(run->ring, run->rings, (size_t)view->source + 1) != 0) {
        return NULL;
    }
    if (run->ring[view->source] == 0) {
        if (ROLL_GROW(job->ring, job->ring_room, job->rings + 1) != 0) {
            return NULL;
        }
        job->ring[job->rings] =
            (struct roll_job_ring){.run = (uint32_t)(run - job->run), .source = view->source, .stream = view->stream};
        run->ring[view->source] = (uint32_t)++job->rings;
    }
    return &job->ring[run->ring[view->source] - 1];
}

static int take_comm(struct roll_job *job, struct roll_job_ring *ring, const struct roll_def *def)
{
    const struct roll_def_comm *info = &def->comm.info;
    struct roll_job_run *run = &job->run[ring->run];
    if (info->key == 0 || info->nranks <= 0 || info->rank < 0 || def->id > UINT16_MAX) {
        return 0;
    }
    int err = ROLL_GROW_ZERO(ring->member, ring->members, (size_t)def->id + 1);
    uint32_t at = roll_map_get(&run->comm_at, info->key);
    if (err == 0 && at == ROLL_MAP_NONE) {
        at = (uint32_t)job->comms;
        err = ROLL_GROW(job->comm, job->comm_room, job->comms + 1);
        err = err != 0 ? err : roll_map_add(&run->comm_at, info->key, at);
        if (err == 0) {
            job->comm[job->comms++] = (struct roll_job_comm){.run = ring->run,
                                                             .order = run->comms++,
                                                             .key = info->key,
                                                             .size = (uint32_t)info->nranks,
                                                             .parent_key = info->parent_key,
                                                             .color = info->color,
                                                             .child = info->child,
                                                             .origin = info->origin};
        }
    }
    if (err == 0) {
        ring->member[def->id] = (struct roll_job_member){at + 1, info->rank, (uint32_t)info->nranks};
        if (job->comm[at].label[0] == '\0') {
            size_t n = info->label_bytes < ROLL_NAME_BYTES ? info->label_bytes : ROLL_NAME_BYTES - 1;
            memcpy(job->comm[at].label, def->comm.label, n);
            roll_job_plain(job->comm[at].label, false);
        }
    }
    return err;
}

static void fail(struct roll_job *job, int err)
{
    job->err = job->err != 0 ? job->err : err;
    job->stop = job->err != 0;
}

static void take_define(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *view, const struct roll_def *def)
{
    struct roll_job *job = ctx;
    bool asked = def->type == ROLL_DEF_COMM || def->type == ROLL_DEF_CALLSITE;
    struct roll_job_ring *ring = asked && !job->stop ? ring_of(job, feed, view) : NULL;
    if (ring == NULL) {
        fail(job, asked && !job->stop ? ROLL_E_NOMEM : 0);
    } else if (def->type == ROLL_DEF_COMM) {
        fail(job, take_comm(job, ring, def));
    } else if (def->id <= UINT16_MAX && def->id >= ring->callsites) {
        ring->callsites = def->id + 1;
    }
}

static bool moves(enum roll_op_class class, const struct roll_record *rec)
{
    return (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P || class == ROLL_CLASS_RMA) &&
           rec->op != ROLL_OP_GRAPH_LAUNCH && (rec->flags & ROLL_FLAG_UNSIZED) == 0;
}

static void take_record(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *view,
                        const struct roll_record *rec, uint64_t real_ns, enum roll_feed_news news)
{
    struct roll_job *job = ctx;
    struct roll_job_ring *ring = job->stop ? NULL : ring_of(job, feed, view);
    if (ring == NULL) {
        fail(job, job->stop ? 0 : ROLL_E_NOMEM);
        return;
    }
    struct roll_job_member member = rec->comm < ring->members ? ring->member[rec->comm] : (struct roll_job_member){0};
    uint64_t width = roll_dtype_bytes(rec->dtype), bytes = 0;
    if (!moves(roll_op_class(rec->op), rec) || __builtin_mul_overflow(rec->count, width, &bytes)) {
        bytes = 0;
    }
    struct roll_job_call call = {.rec = rec,
                                 .real_ns = real_ns,
                                 .bytes = bytes,
                                 .ring = (uint32_t)(ring - job->ring),
                                 .comm = member.comm > 0 ? member.comm - 1 : ROLL_JOB_NONE,
                                 .member = member.rank,
                                 .news = news};
    fail(job, job->writer->call(job->writer->ctx, job, &call));
}

static void take_verdict(void *ctx, roll_feed_t *feed, const struct roll_verdict_copy *verdict)
{
    struct roll_job *job = ctx;
    struct roll_job_run *run = job->stop || job->writer->verdict == NULL ? NULL : run_of(job, feed);
    if (run != NULL) {
        fail(job, job->writer->verdict(job->writer->ctx, job, (uint32_t)(run - job->run), verdict));
    }
}

static void take_gone(void *ctx, const roll_feed_t *feed)
{
    struct roll_job *job = ctx;
    for (size_t i = 0; i < job->runs; i++) {
        job->run[i].feed = job->run[i].feed == feed ? NULL : job->run[i].feed;
    }
}

/* all of it */

/* Rings of which nothing but their announcement has come. */
static void take_silent(struct roll_job *job, const roll_analysis_t *a)
{
    roll_feed_t *feed;
    struct roll_feed_stream view;
    for (size_t r = 0; (feed = roll_analysis_feed(a, r)) != NULL; r++) {
        fail(job, run_of(job, feed) == NULL ? ROLL_E_NOMEM : 0);
        for (size_t i = 0; roll_feed_stream(feed, i, &view) && !job->stop; i++) {
            fail(job, ring_of(job, feed, &view) == NULL ? ROLL_E_NOMEM : 0);
        }
    }
}

static void find_ranks(struct roll_job *job)
{
    for (size_t i = 0; i < job->rings && !job->stop; i++) { /* the newest last: it takes the place of the others */
        struct roll_map *at = &job->run[job->ring[i].run].rank_at;
        if (job->run[job->ring[i].run].feed == NULL) {
            continue;
        }
        int32_t rank = roll_job_rank(job, (uint32_t)i);
        uint32_t before = rank >= 0 ? roll_map_get(at, (uint64_t)rank) : 0;
        if (rank >= 0 && before != ROLL_MAP_NONE) {
            roll_map_remove(at, (uint64_t)rank, before);
        }
        fail(job, rank >= 0 ? roll_map_add(at, (uint64_t)rank, (uint32_t)i) : 0);
    }
}

static void end(struct roll_job *job, roll_analysis_t *a, const char *only, int err, char *const *path, size_t paths)
{
    struct roll_verdict_copy *verdict;
    fail(job, err);
    while (!job->stop && (verdict = roll_analysis_next(a)) != NULL) {
        fail(job, roll_verdict_list_add(&job->verdicts, verdict));
    }
    take_silent(job, a);
    find_ranks(job);
    roll_analysis_summary(a, &job->summary);
    if (!job->stop && job->summary.files == 0) {
        if (job->summary.unreadable == 0) {
            roll_file_say_none(job->writer->takes_all ? ROLL_NONE_JUDGED : ROLL_NONE_RECORDED, path, paths);
        }
        fail(job, ROLL_E_NOTFOUND);
    }
    if (!job->stop && only != NULL && job->summary.runs == 0 && job->summary.files > 0) {
        roll_analysis_say_none(a);
        fail(job, ROLL_E_NOTFOUND);
    }
    if (!job->stop) {
        fail(job, job->writer->end(job->writer->ctx, job));
    }
}

int roll_job_read(char **path, size_t paths, unsigned threads, const char *only, const struct roll_job_writer *writer,
                  struct roll_analysis_summary *summary)
{
    struct roll_engine_config config = {0};
    struct roll_job job = {.writer = writer};
    struct roll_feed_watch watch = {
        .ctx = &job, .define = take_define, .record = take_record, .verdict = take_verdict, .gone = take_gone};
    roll_analysis_t *a = roll_analysis_new(&config, false);
    int err = a == NULL ? ROLL_E_NOMEM : 0;
    if (err == 0) {
        roll_analysis_job(a, only);
        roll_analysis_watch(a, &watch, &job.stop);
        roll_analysis_threads(a, threads);
        if (writer->takes_all) {
            roll_analysis_take_all(a);
        }
        job.analysis = a;
        for (size_t i = 0; i < paths && err != ROLL_E_NOMEM; i++) {
            err = roll_analysis_add(a, path[i]); /* a path that cannot be read was one line, and costs that path */
        }
        err = err == ROLL_E_NOMEM ? err : roll_analysis_finish(a);
        end(&job, a, only, err, path, paths);
        err = job.err;
    }
    *summary = job.summary;
    roll_verdict_list_fini(&job.verdicts);
    roll_analysis_destroy(&a);
    for (size_t i = 0; i < job.runs; i++) {
        free(job.run[i].ring);
        roll_map_fini(&job.run[i].comm_at);
        roll_map_fini(&job.run[i].engine_at);
        roll_map_fini(&job.run[i].rank_at);
    }
    for (size_t i = 0; i < job.rings; i++) {
        free(job.ring[i].member);
    }
    free(job.run);
    free(job.ring);
    free(job.comm);
    return err;
}

/* for who writes */

void roll_job_ring_view(const struct roll_job *job, uint32_t ring, struct roll_feed_stream *out)
{
    const struct roll_job_ring *r = &job->ring[ring];
    if (!roll_feed_find(job->run[r->run].feed, r->stream, out)) {
        *out = (struct roll_feed_stream){.stream = r->stream, .world_rank = -1};
    }
    roll_job_plain(out->host, false);
    roll_job_plain(out->exe, false);
}

uint32_t roll_job_run_of(const struct roll_job *job, const struct roll_verdict_copy *verdict)
{
    for (size_t i = 0; i < job->runs; i++) {
        if (job->run[i].feed != NULL && roll_feed_restart(job->run[i].feed) == verdict->restart &&
            strcmp(roll_feed_job(job->run[i].feed), verdict->job) == 0) {
            return (uint32_t)i;
        }
    }
    return ROLL_JOB_NONE;
}

uint32_t roll_job_ring_of(const struct roll_job *job, uint32_t run, uint32_t rank)
{
    return run == ROLL_JOB_NONE ? ROLL_JOB_NONE : roll_map_get(&job->run[run].rank_at, rank);
}

int32_t roll_job_rank(const struct roll_job *job, uint32_t ring)
{
    const struct roll_job_ring *r = &job->ring[ring];
    struct roll_view_source v;
    bool known = roll_engine_source_brief(roll_feed_engine(job->run[r->run].feed), r->source, &v);
    return known ? v.info.world_rank : -1;
}

uint32_t roll_job_comm_of(const struct roll_job *job, uint32_t run, uint64_t key)
{
    return run == ROLL_JOB_NONE ? ROLL_JOB_NONE : roll_map_get(&job->run[run].comm_at, key);
}

/* Both number the communicators of a run in the order of their first definition. Where they do not agree, which only a
 * communicator that one of the two refuses can bring about, all of the engine's are entered in a map. */
bool roll_job_comm_view(const struct roll_job *job, uint32_t comm, struct roll_view_comm *out)
{
    const struct roll_job_comm *c = &job->comm[comm];
    struct roll_job_run *run = &job->run[c->run];
    const roll_engine_t *engine = roll_feed_engine(run->feed);
    if (roll_engine_comm(engine, c->order, out) && out->key == c->key) {
        return true;
    }
    for (uint32_t i = (uint32_t)run->engine_at.used; roll_engine_comm(engine, i, out); i++) {
        if (roll_map_add(&run->engine_at, out->key, i) != 0) {
            return false;
        }
    }
    uint32_t at = roll_map_get(&run->engine_at, c->key);
    return at != ROLL_MAP_NONE && roll_engine_comm(engine, at, out) && out->key == c->key;
}

void roll_job_comm_name(const struct roll_job *job, uint32_t comm, char *out, size_t size)
{
    const struct roll_job_comm *c = &job->comm[comm];
    struct roll_view_comm view;
    bool known = roll_job_comm_view(job, comm, &view);
    if (known && (view.named || view.seen >= view.size) && view.name[0] != '\0') {
        snprintf(out, size, "%s", view.name);
    } else if (c->label[0] != '\0') {
        snprintf(out, size, "%s", c->label);
    } else {
        snprintf(out, size, "%" PRIu32 " rank%s, %016" PRIx64, c->size, c->size == 1 ? "" : "s", c->key);
    }
    roll_job_plain(out, false);
}

int roll_job_frames(const struct roll_job *job, uint32_t ring, uint16_t callsite,
                    struct roll_symbol_frame out[ROLL_SYMBOL_FRAMES])
{
    const struct roll_job_ring *r = &job->ring[ring];
    roll_symbols_t *symbols = roll_feed_symbols(job->run[r->run].feed);
    int n = callsite == 0 ? 0 : roll_symbols_lines(symbols, r->stream, callsite, out, ROLL_SYMBOL_FRAMES);
    return callsite == 0 || n > 0 ? n : roll_symbols_callsite(symbols, r->stream, callsite, out, ROLL_SYMBOL_FRAMES);
}
