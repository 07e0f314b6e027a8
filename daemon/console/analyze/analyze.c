/*
 * analyze.c: sorts recorded files into runs and drives one feed per run.
 *
 * Traces and rings of one run may be given together: the feeder drops what it has seen before, so the rings only
 * add what the trace lacks. Files of different runs never meet, because the verdicts of one job must not depend on
 * what else lies in the directory.
 */
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/analyze_report.h"

#include "daemon/base/array.h"
#include "daemon/base/json.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/dumps/dump.h"
#include "daemon/feed/merge.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define HEAD_BYTES 4096
#define DEPTH_MAX  2 /* DIR and its direct subdirectories: rings of several nodes, collected */

struct analyzed_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_feed_t *feed;
    struct roll_ring *ring; /* owned array of owned mappings */
    size_t rings, room;
};

struct roll_analysis {
    struct roll_engine_config config;
    const struct roll_expected *expected; /* borrowed; NULL = none */
    bool policy_fixed;
    struct analyzed_run *run; /* owned */
    size_t runs, run_room, files, unreadable;
    struct roll_analyze_file *trace; /* owned */
    size_t traces, trace_room;
    roll_dumps_t *dumps;     /* dumps of other tools; owned; NULL = none */
    roll_reports_t *reports; /* owned; of NCCL's own tools; NULL = none */
    bool cut;
};

roll_analysis_t *roll_analysis_new(const struct roll_engine_config *config, bool policy_fixed)
{
    roll_analysis_t *a = calloc(1, sizeof(*a));
    if (a != NULL) {
        a->config = *config;
        a->policy_fixed = policy_fixed;
    }
    return a;
}

void roll_analysis_expect(roll_analysis_t *a, const struct roll_expected *expected)
{
    a->expected = expected;
}

void roll_analysis_destroy(roll_analysis_t **analysis)
{
    roll_analysis_t *a = *analysis;
    *analysis = NULL;
    if (a == NULL) {
        return;
    }
    for (size_t i = 0; i < a->runs; i++) {
        for (size_t k = 0; k < a->run[i].rings; k++) {
            roll_ring_close(&a->run[i].ring[k]);
        }
        free(a->run[i].ring);
        roll_feed_destroy(&a->run[i].feed);
    }
    roll_reports_destroy(&a->reports);
    free(a->run);
    free(a->trace);
    roll_dumps_destroy(&a->dumps);
    free(a);
}

/* The run of this job and restart, which is made when it is new; NULL when out of memory. */
static struct analyzed_run *run_of(roll_analysis_t *a, const char *job, uint32_t restart)
{
    for (size_t i = 0; i < a->runs; i++) {
        if (a->run[i].restart == restart && strcmp(a->run[i].job, job) == 0) {
            return &a->run[i];
        }
    }
    if (ROLL_GROW(a->run, a->run_room, a->runs + 1) != 0) {
        return NULL;
    }
    struct analyzed_run *r = &a->run[a->runs];
    *r = (struct analyzed_run){.restart = restart};
    snprintf(r->job, sizeof(r->job), "%s", job);
    r->feed = roll_feed_new(&a->config, r->job, restart);
    if (r->feed == NULL) {
        return NULL;
    }
    if (a->policy_fixed) {
        roll_feed_fix_policy(r->feed);
    }
    roll_engine_expect(roll_feed_engine(r->feed), a->expected);
    a->runs++;
    return r;
}

/* The run of the ring that a frame announces, or of the process that it notes. */
static struct analyzed_run *run_of_frame(roll_analysis_t *a, const struct roll_frame *frame)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart = 0;
    return roll_feed_run_of(frame, job, &restart) == 0 ? run_of(a, job, restart) : NULL;
}

static roll_feed_t *feed_of_frame(void *ctx, const struct roll_frame *frame)
{
    struct analyzed_run *run = run_of_frame(ctx, frame);
    return run != NULL ? run->feed : NULL;
}

/* Adds a trace. Traces are only opened here, and fed when all of them are known, because some belong together. */
static int add_trace(roll_analysis_t *a, const char *path)
{
    roll_trace_reader_t *reader = NULL;
    int err = roll_trace_reader_new(path, &reader);
    roll_trace_reader_destroy(&reader);
    if (err != 0) {
        return err;
    }
    err = ROLL_GROW(a->trace, a->trace_room, a->traces + 1);
    if (err != 0) {
        return err;
    }
    struct roll_analyze_file *file = &a->trace[a->traces];
    *file = (struct roll_analyze_file){.number = 0};
    if (strlen(path) >= sizeof(file->path)) {
        return ROLL_E_LIMIT;
    }
    memcpy(file->path, path, strlen(path));
    if (!roll_segment_parse(path, file->series, sizeof(file->series), &file->number)) {
        memcpy(file->series, path, strlen(path));
    }
    a->traces++;
    return 0;
}

static int add_ring(roll_analysis_t *a, const char *path)
{
    struct roll_ring ring;
    int err = roll_ring_open(path, false, &ring);
    if (err != 0) {
        return err;
    }
    struct roll_frame frame = {
        .head = {.type = ROLL_FRAME_RING, .payload = ROLL_RING_HEADER_BYTES, .stream = ring.header->epoch},
        .payload = (const uint8_t *)ring.header};
    struct analyzed_run *run = run_of_frame(a, &frame);
    if (run == NULL || ROLL_GROW(run->ring, run->room, run->rings + 1) != 0) {
        roll_ring_close(&ring);
        return ROLL_E_NOMEM;
    }
    run->ring[run->rings++] = ring;
    return 0;
}

/* Adds what another tool has kept. `why` gets words where something is wrong with it. */
static int add_dump(roll_analysis_t *a, const char *path, char *why, size_t size)
{
    struct roll_dump *dump;
    int err = roll_dump_read(path, &dump, why, size);
    if (err != 0) {
        return err;
    }
    if (a->dumps == NULL) {
        a->dumps = roll_dumps_new();
    }
    if (a->dumps == NULL) {
        roll_dump_destroy(&dump);
        return ROLL_E_NOMEM;
    }
    return roll_dumps_add(a->dumps, dump);
}

static bool ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* The first bytes of a file, which say what kind of file it is. */
struct head {
    char bytes[HEAD_BYTES];
    size_t n;
};

static void read_head(const char *path, struct head *out)
{
    FILE *f = fopen(path, "re");
    *out = (struct head){.n = 0};
    if (f != NULL) {
        out->n = fread(out->bytes, 1, sizeof(out->bytes), f);
        fclose(f);
    }
}

/* A file of a directory whose name says nothing: dumps and reports of other tools have any name. */
static bool is_of_others(const char *path, struct head *head)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        return false;
    }
    read_head(path, head);
    /* Any JSON may lie there. Its first members say whether it is a dump. */
    bool named = head->bytes[0] != '{' || memmem(head->bytes, head->n, "\"entries\"", 9) ||
                 memmem(head->bytes, head->n, "\"pg_config\"", 11);
    return roll_report_is_likely(head->bytes, head->n) || (named && roll_dump_is_likely(head->bytes, 8));
}

/* Adds a report of a tool of NCCL's. What is odd in a report of which a part is used is one line as well. */
static int add_report(roll_analysis_t *a, const char *path)
{
    char why[256] = "";
    a->reports = a->reports != NULL ? a->reports : roll_reports_new();
    int err = a->reports != NULL ? roll_reports_add(a->reports, path, why, sizeof(why)) : ROLL_E_NOMEM;
    if (why[0] != '\0') {
        roll_say("%s: %s", path, why);
    }
    a->cut = a->cut || (err == 0 && why[0] != '\0');
    return err;
}

/* Adds one file. Its first bytes, and not its name, say what kind of file it is. */
static int add_file(roll_analysis_t *a, const char *path, const struct head *head)
{
    char why[256] = "";
    bool is_report = roll_report_is_likely(head->bytes, head->n); /* before dumps: JSON of both begins alike */
    int err = is_report                                      ? add_report(a, path)
              : memcmp(head->bytes, ROLL_RING_MAGIC, 8) == 0 ? add_ring(a, path)
              : roll_dump_is_likely(head->bytes, 8)          ? add_dump(a, path, why, sizeof(why))
                                                             : add_trace(a, path);
    if (err != 0) {
        if (why[0] != '\0') {
            roll_say("%s: %s", path, why);
        } else if (!is_report) {
            roll_file_complain(path, err);
        }
        a->unreadable++;
    } else {
        a->files++;
    }
    return err;
}

static int add_path(roll_analysis_t *a, const char *path, int depth)
{
    struct dirent **entry = NULL;
    struct stat st;
    struct head head;
    int err = 0, n;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        read_head(path, &head);
        return add_file(a, path, &head);
    }
    n = scandir(path, &entry, NULL, alphasort);
    if (n < 0) {
        roll_file_complain(path, ROLL_E_DENIED);
        a->unreadable++;
        return ROLL_E_DENIED;
    }
    for (int i = 0; i < n; i++) {
        char inner[PATH_MAX];
        const char *name = entry[i]->d_name;
        int len = snprintf(inner, sizeof(inner), "%s/%s", path, name);
        bool fits = len > 0 && (size_t)len < sizeof(inner) && name[0] != '.';
        bool ours = fits && (ends(name, ".rtrc") || ends(name, ".ring"));
        if (ours) {
            read_head(inner, &head);
        }
        if (ours || (fits && is_of_others(inner, &head))) {
            err = add_file(a, inner, &head);
        } else if (fits && depth + 1 < DEPTH_MAX && stat(inner, &st) == 0 && S_ISDIR(st.st_mode)) {
            err = add_path(a, inner, depth + 1);
        }
        free(entry[i]);
    }
    free(entry);
    return err;
}

int roll_analysis_add(roll_analysis_t *a, const char *path)
{
    return add_path(a, path, 0);
}

static void say_line(void *ctx, const char *line)
{
    (void)ctx;
    roll_say("%s", line);
}

/* Each job of the dumps becomes a run. Jobs whose folders have one name are told apart by a number. */
static int feed_dumps(roll_analysis_t *a)
{
    size_t jobs = a->dumps != NULL ? roll_dumps_jobs(a->dumps) : 0;
    int err = 0;
    if (jobs > 1) {
        roll_say("the dumps are of %zu jobs, which are judged one by one", jobs);
    }
    for (size_t j = 0; j < jobs && err == 0; j++) {
        uint32_t restart = 0;
        for (size_t i = 0; i < a->runs; i++) {
            bool same = strcmp(a->run[i].job, roll_dumps_job(a->dumps, j)) == 0;
            restart = same && a->run[i].restart >= restart ? a->run[i].restart + 1 : restart;
        }
        struct analyzed_run *run = run_of(a, roll_dumps_job(a->dumps, j), restart);
        err = run == NULL ? ROLL_E_NOMEM : roll_dumps_feed(a->dumps, j, run->feed, say_line, NULL);
    }
    return err;
}

int roll_analysis_finish(roll_analysis_t *a)
{
    int err = roll_analyze_traces(a->trace, a->traces, feed_of_frame, a, &a->cut);
    err = err != 0 ? err : feed_dumps(a);
    for (size_t i = 0; i < a->runs && err == 0; i++) {
        if (a->run[i].rings > 0) {
            err = roll_merge_rings(a->run[i].feed, a->run[i].ring, a->run[i].rings);
        }
        if (err == 0) {
            err = roll_feed_finish(a->run[i].feed);
        }
    }
    return err == 0 && a->reports != NULL ? roll_reports_judge(a->reports) : err;
}

struct roll_verdict_copy *roll_analysis_next(roll_analysis_t *a)
{
    for (size_t i = 0; i < a->runs; i++) {
        struct roll_verdict_copy *verdict = roll_feed_next(a->run[i].feed);
        if (verdict != NULL) {
            return verdict;
        }
    }
    return a->reports != NULL ? roll_reports_next(a->reports) : NULL;
}

/* Whether a process died while a rank was inside a call. */
static bool ended_badly(roll_engine_t *engine)
{
    struct roll_engine_summary summary;
    struct roll_view_source v;
    bool dead = false, inside = false;
    roll_engine_summary(engine, &summary);
    for (uint32_t i = 0; summary.findings == 0 && roll_engine_source(engine, i, &v); i++) {
        dead = dead || v.proc == ROLL_PROC_DEAD;
        inside = inside || v.in_call || v.waits_for > 0;
    }
    return dead && inside;
}

json_t *roll_analysis_standing(const roll_analysis_t *a)
{
    json_t *list = json_array();
    for (size_t i = 0; i < a->runs; i++) {
        roll_engine_t *engine = roll_feed_engine(a->run[i].feed);
        struct roll_view_source v;
        char text[4096];
        bool tell = ended_badly(engine);
        for (uint32_t k = 0; tell && roll_engine_source(engine, k, &v); k++) {
            if (v.info.world_rank >= 0 &&
                roll_engine_why(engine, (uint32_t)v.info.world_rank, text, sizeof(text)) >= 0) {
                json_array_append_new(list, json_pack("{s:o, s:i, s:i, s:o}", "job", roll_text_to_json(a->run[i].job),
                                                      "restart", (int)a->run[i].restart, "rank", (int)v.info.world_rank,
                                                      "text", roll_text_to_json(text)));
            }
        }
    }
    return list;
}

void roll_analysis_summary(const roll_analysis_t *a, struct roll_analysis_summary *out)
{
    *out =
        (struct roll_analysis_summary){.runs = a->runs, .files = a->files, .unreadable = a->unreadable, .cut = a->cut};
    for (size_t i = 0; i < a->runs; i++) {
        struct roll_engine_summary s;
        roll_engine_summary(roll_feed_engine(a->run[i].feed), &s);
        out->verdicts_lost += roll_feed_verdicts_lost(a->run[i].feed);
        out->engine.calls += s.calls;
        out->engine.records += s.records;
        out->engine.verdicts += s.verdicts;
        out->engine.findings += s.findings;
        out->engine.lost += s.lost;
        out->engine.sources += s.sources;
        out->engine.comms += s.comms;
        out->engine.sources_live += s.sources_live;
        out->engine.incomplete += s.incomplete;
    }
    if (a->reports != NULL) {
        struct roll_reports_summary s;
        roll_reports_summary(a->reports, &s);
        out->engine.sources += (uint32_t)s.ranks;
        out->engine.comms += (uint32_t)s.comms;
        out->engine.calls += s.calls;
        out->engine.findings += s.findings;
    }
}
