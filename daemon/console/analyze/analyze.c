/*
 * analyze.c: sorts recorded files into runs and drives one feed per run.
 *
 * Traces and rings of one run may be given together: the feeder drops what it has seen before, so the rings only
 * add what the trace lacks. Files of different runs never meet, because the verdicts of one job must not depend on
 * what else lies in the directory.
 */
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/analyze_report.h"
#include "daemon/console/analyze/digests.h"
#include "daemon/console/analyze/jobs.h"

#include "daemon/base/array.h"
#include "daemon/base/bus_guard.h"
#include "daemon/base/file.h"
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
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD_BYTES   65536 /* most dumps end before that: then the file is opened once */
#define KIND_BYTES   4096  /* what a file is, so many of its bytes say */
#define THREADS_MOST 8     /* where nothing is said: the engine is one thread, and has no use for more */
#define DEPTH_MAX    3     /* DIR, its folders (rings of nodes, bundles of --incident-dir), and trace/ of a bundle */

struct analyzed_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_feed_t *feed;
    struct roll_ring *ring; /* owned array of owned mappings */
    size_t rings, room;
    uint64_t missing; /* ranks of which there is no record */
    bool dumped;      /* it is known from dumps of other tools, which tell what they lack themselves */
};

/* The first bytes of a file, and what is known of it. */
struct head {
    char bytes[HEAD_BYTES];
    size_t n;
    int number;          /* errno where it could not be opened or read; else 0 */
    bool regular, whole; /* it is a plain file; these are all of its bytes */
    uint64_t written_ns;
};

struct roll_analysis {
    struct roll_engine_config config;
    const struct roll_expected *expected; /* borrowed; NULL = none */
    bool policy_fixed;
    struct roll_jobs jobs;    /* which are meant */
    struct analyzed_run *run; /* owned */
    size_t runs, run_room, files, unreadable;
    struct roll_analyze_file *trace; /* owned */
    size_t traces, trace_room;
    roll_dumps_t *dumps;        /* dumps of other tools; owned; NULL = none */
    roll_dump_reader_t *reader; /* owned; there where `dumps` are */
    size_t dumped;              /* dumps that were read */
    size_t unjudged;            /* jobs of whose dumps no entry was usable */
    struct head head;           /* of the file that is being looked at */
    roll_reports_t *reports;    /* owned; of NCCL's own tools; NULL = none */
    roll_digests_t *digests;    /* owned; NULL = none */
    bool cut;
    unsigned threads;                    /* that read traces */
    const struct roll_feed_watch *watch; /* borrowed; NULL = none */
    const bool *stop;                    /* borrowed; NULL = none */
    bool takes_all;                      /* although somebody watches */
};

int roll_read_options(const struct roll_command *cmd, const struct roll_option *options, int argc, char **argv,
                      const char *wants, int *code)
{
    int first = roll_options_read(cmd, options, false, argc, argv, code);
    if (first == argc) {
        *code = roll_usage(cmd, "%s", wants);
        return -1;
    }
    return first;
}

roll_analysis_t *roll_analysis_new(const struct roll_engine_config *config, bool policy_fixed)
{
    roll_analysis_t *a = calloc(1, sizeof(*a));
    if (a != NULL) {
        a->config = *config;
        a->policy_fixed = policy_fixed;
        a->threads = 1;
    }
    return a;
}

void roll_analysis_job(roll_analysis_t *a, const char *job)
{
    a->jobs.wanted = job;
}

void roll_analysis_say_none(const roll_analysis_t *a)
{
    roll_jobs_say_none(&a->jobs);
}

void roll_analysis_expect(roll_analysis_t *a, const struct roll_expected *expected)
{
    a->expected = expected;
}

void roll_analysis_watch(roll_analysis_t *a, const struct roll_feed_watch *watch, const bool *stop)
{
    a->watch = watch;
    a->stop = stop;
}

void roll_analysis_take_all(roll_analysis_t *a)
{
    a->takes_all = true;
}

roll_feed_t *roll_analysis_feed(const roll_analysis_t *a, size_t i)
{
    return i < a->runs ? a->run[i].feed : NULL;
}

unsigned roll_analysis_thread_count(unsigned threads)
{
    cpu_set_t mine; /* a scheduler may have left fewer processors than the machine has */
    unsigned own = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? (unsigned)CPU_COUNT(&mine) : 1;
    return threads > 0 ? threads : own > THREADS_MOST ? THREADS_MOST : own;
}

void roll_analysis_threads(roll_analysis_t *a, unsigned threads)
{
    a->threads = roll_analysis_thread_count(threads);
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
    roll_digests_destroy(&a->digests);
    roll_jobs_fini(&a->jobs);
    free(a->run);
    free(a->trace);
    roll_dumps_destroy(&a->dumps);
    roll_dump_reader_destroy(&a->reader);
    free(a);
}

/* Gives the run a feed that knows nothing, in the place of the one that it has. */
static bool begin_feed(const roll_analysis_t *a, struct analyzed_run *r)
{
    roll_feed_destroy(&r->feed);
    r->feed = roll_feed_new(&a->config, r->job, r->restart);
    if (r->feed == NULL) {
        return false;
    }
    roll_feed_of_recording(r->feed);
    if (a->policy_fixed) {
        roll_feed_fix_policy(r->feed);
    }
    roll_engine_expect(roll_feed_engine(r->feed), a->expected);
    roll_feed_watch(r->feed, a->watch);
    return true;
}

/* The run of this job and restart, which is made when it is new. 0; NOTFOUND: it is not meant; NOMEM. */
static int run_of(roll_analysis_t *a, const char *job, uint32_t restart, struct analyzed_run **out)
{
    *out = NULL;
    if (!roll_jobs_take(&a->jobs, job, restart)) {
        return ROLL_E_NOTFOUND;
    }
    for (size_t i = 0; i < a->runs; i++) {
        if (a->run[i].restart == restart && strcmp(a->run[i].job, job) == 0) {
            *out = &a->run[i];
            return 0;
        }
    }
    if (ROLL_GROW(a->run, a->run_room, a->runs + 1) != 0) {
        return ROLL_E_NOMEM;
    }
    struct analyzed_run *r = &a->run[a->runs];
    *r = (struct analyzed_run){.restart = restart};
    snprintf(r->job, sizeof(r->job), "%s", job);
    if (!begin_feed(a, r)) {
        return ROLL_E_NOMEM;
    }
    a->runs++;
    *out = r;
    return 0;
}

/* The run of the ring that a frame announces, or of the process that it notes. Errors as of run_of; CORRUPT. */
static int run_of_frame(roll_analysis_t *a, const struct roll_frame *frame, struct analyzed_run **out)
{
    char job[ROLL_NAME_BYTES];
    uint32_t restart = 0;
    *out = NULL;
    return roll_feed_run_of(frame, job, &restart) == 0 ? run_of(a, job, restart, out) : ROLL_E_CORRUPT;
}

static int feed_of_frame(void *ctx, const struct roll_frame *frame, roll_feed_t **out)
{
    struct analyzed_run *run;
    int err = run_of_frame(ctx, frame, &run);
    *out = run != NULL ? run->feed : NULL;
    return err;
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
    struct analyzed_run *run;
    err = run_of_frame(a, &frame, &run);
    err = err == 0 ? ROLL_GROW(run->ring, run->room, run->rings + 1) : err;
    if (err != 0) {
        roll_ring_close(&ring);
        return err == ROLL_E_NOTFOUND ? 0 : err; /* of another job */
    }
    run->ring[run->rings++] = ring;
    return 0;
}

/* Adds what another tool has kept; the head is the file's. `why` gets words where something is wrong with it. */
static int add_dump(roll_analysis_t *a, const char *path, char *why, size_t size)
{
    struct roll_dump *dump = NULL;
    char *data = NULL;
    size_t bytes = a->head.n;
    a->reader = a->reader != NULL ? a->reader : roll_dump_reader_new();
    a->dumps = a->dumps != NULL ? a->dumps : roll_dumps_new();
    int err = a->reader == NULL || a->dumps == NULL ? ROLL_E_NOMEM : 0;
    err = err == 0 && !a->head.whole ? roll_read_whole(path, ROLL_DUMP_FILE_MOST, &data, &bytes) : err;
    if (err == ROLL_E_LIMIT) {
        snprintf(why, size, "larger than %u MiB: no rank's dump is", ROLL_DUMP_FILE_MOST >> 20);
    }
    err =
        err != 0 ? err : roll_dump_parse(a->reader, path, data != NULL ? data : a->head.bytes, bytes, &dump, why, size);
    free(data);
    if (err == 0) {
        dump->written_ns = a->head.written_ns;
        err = roll_dumps_add(a->dumps, dump);
        a->dumped += err == 0;
    }
    return err;
}

static bool ends(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

static void read_head(const char *path, struct head *out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* who writes into a pipe is not waited for */
    ssize_t n = 0;
    out->n = 0;
    out->number = fd < 0 ? errno : 0;
    out->regular = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    out->whole = false;
    while (out->regular && out->n < sizeof(out->bytes) &&
           (n = read(fd, out->bytes + out->n, sizeof(out->bytes) - out->n)) > 0) {
        out->n += (size_t)n;
        if (out->n == (size_t)st.st_size) {
            break;
        }
    }
    if (out->regular) {
        out->number = n < 0 ? errno : 0;
        out->whole = n >= 0 && out->n == (size_t)st.st_size;
        out->written_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    }
    if (fd >= 0) {
        close(fd);
    }
}

static bool is_report(const struct head *head)
{
    return roll_report_is_likely(head->bytes, head->n < KIND_BYTES ? head->n : KIND_BYTES);
}

/* A file of a directory whose name says nothing: dumps and reports of other tools have any name. */
static bool is_of_others(const struct head *head)
{
    /* Any JSON may lie there. Its first members say whether it is a dump. */
    size_t n = head->n < KIND_BYTES ? head->n : KIND_BYTES;
    bool named = n > 0 && (head->bytes[0] != '{' || memmem(head->bytes, n, "\"entries\"", 9) ||
                           memmem(head->bytes, n, "\"pg_config\"", 11));
    return is_report(head) || (named && roll_dump_is_likely(head->bytes, n));
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

/* Adds what `rollcall digest` made of a node's traces. */
static int add_digest(roll_analysis_t *a, const char *path, char *why, size_t size)
{
    a->digests = a->digests != NULL ? a->digests : roll_digests_new(&a->config);
    int err = a->digests != NULL ? roll_digests_add(a->digests, path) : ROLL_E_NOMEM;
    if (err != 0 && err != ROLL_E_NOMEM) {
        snprintf(why, size, "%s: nothing of it is used; `rollcall digest` on its node makes it again",
                 roll_strerror(err));
    }
    return err;
}

/* Adds the file whose head was read. Its first bytes, and not its name, say what kind of file it is. */
static int add_file(roll_analysis_t *a, const char *path)
{
    char why[256] = "";
    const struct head *head = &a->head;
    bool report = is_report(head); /* before dumps: JSON of both begins alike */
    bool ring = head->n >= 8 && memcmp(head->bytes, ROLL_RING_MAGIC, 8) == 0;
    bool digest = head->n >= 8 && memcmp(head->bytes, ROLL_RDIG_MAGIC, 8) == 0;
    if (a->watch && !a->takes_all && (report || digest || (!ring && roll_dump_is_likely(head->bytes, head->n)))) {
        roll_say("%s: left out: only traces (*.rtrc) and rings hold all calls", path);
        return 0;
    }
    int err = report                                      ? add_report(a, path)
              : ring                                      ? add_ring(a, path)
              : digest                                    ? add_digest(a, path, why, sizeof(why))
              : roll_dump_is_likely(head->bytes, head->n) ? add_dump(a, path, why, sizeof(why))
              : head->number == 0 && !head->regular       ? ROLL_E_IO
                                                          : add_trace(a, path);
    if (err != 0) {
        if (why[0] != '\0') {
            roll_say("%s: %s", path, why);
        } else if (!report) {
            roll_file_complain(path, err);
        }
        a->unreadable++;
    } else {
        a->files++;
    }
    return err;
}

/*
 * A directory holds what is not meant as well, and says nothing of it. But what has the name of a dump that lies there,
 * and another rank's number, is meant as one.
 */
struct series {
    char name[PATH_MAX]; /* of a dump; "" = there is none */
    size_t begin, end;   /* where the rank stands in it */
};

static bool is_of_series(const struct series *s, const char *path)
{
    size_t begin, end;
    return s->name[0] != '\0' && roll_dump_rank_in(path, &begin, &end) >= 0 && begin == s->begin &&
           memcmp(path, s->name, begin) == 0 && strcmp(path + end, s->name + s->end) == 0;
}

static void say_left_out(roll_analysis_t *a, const char *path)
{
    read_head(path, &a->head);
    roll_say("%s: %s", path,
             a->head.number != 0 ? strerror(a->head.number)
             : !a->head.regular  ? "no plain file"
             : a->head.n == 0    ? "empty: nothing was written into it"
                                 : "neither a trace nor a ring of rollcall nor a dump of a tool that is known here");
    a->unreadable++;
}

static int add_path(roll_analysis_t *a, const char *path, int depth);

/* Looks at one entry of a directory. False: it was left out. */
static bool add_entry(roll_analysis_t *a, const char *path, int depth, struct series *series, int *err)
{
    struct stat st;
    bool ours = ends(path, ".rtrc") || ends(path, ".ring") || ends(path, ".rdig");
    read_head(path, &a->head);
    if (ours || is_of_others(&a->head)) {
        size_t dumps = a->dumped;
        *err = add_file(a, path);
        if (a->dumped > dumps && series->name[0] == '\0' &&
            roll_dump_rank_in(path, &series->begin, &series->end) >= 0) {
            snprintf(series->name, sizeof(series->name), "%s", path);
        }
        return true;
    }
    if (!a->head.regular && a->head.number == 0 && depth + 1 < DEPTH_MAX && stat(path, &st) == 0 &&
        S_ISDIR(st.st_mode)) {
        size_t before = a->files;
        *err = add_path(a, path, depth + 1);
        return a->files > before;
    }
    return false;
}

static int add_folder(roll_analysis_t *a, const char *path, int depth)
{
    struct dirent **entry = NULL;
    struct series series = {.name = ""};
    int err = 0, n = scandir(path, &entry, NULL, alphasort);
    if (n < 0) {
        roll_file_complain(path, ROLL_E_DENIED);
        a->unreadable++;
        return ROLL_E_DENIED;
    }
    char inner[PATH_MAX];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n; i++) {
            const char *name = entry[i] != NULL ? entry[i]->d_name : ".";
            int len = snprintf(inner, sizeof(inner), "%s/%s", path, name);
            bool looked = name[0] == '.' || len < 0 || (size_t)len >= sizeof(inner);
            if (!looked && pass == 0) {
                looked = add_entry(a, inner, depth, &series, &err);
            } else if (!looked && is_of_series(&series, inner)) {
                say_left_out(a, inner);
            }
            if (looked || pass == 1) {
                free(entry[i]);
                entry[i] = NULL;
            }
        }
    }
    free(entry);
    return err;
}

static int add_path(roll_analysis_t *a, const char *path, int depth)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return add_folder(a, path, depth);
    }
    read_head(path, &a->head);
    return add_file(a, path);
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

/* What stands for the restart of a job of the dumps, so that it is told apart from every other job of that name. */
static uint32_t number_of_dumps(const roll_analysis_t *a, size_t job)
{
    const char *name = roll_dumps_job(a->dumps, job);
    uint32_t number = 0;
    for (size_t i = 0; i < a->runs; i++) {
        bool same = !a->run[i].dumped && strcmp(a->run[i].job, name) == 0;
        number = same && a->run[i].restart >= number ? a->run[i].restart + 1 : number;
    }
    for (size_t i = 0; i < job; i++) {
        number += strcmp(roll_dumps_job(a->dumps, i), name) == 0;
    }
    return number;
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
        struct analyzed_run *run;
        err = run_of(a, roll_dumps_job(a->dumps, j), number_of_dumps(a, j), &run);
        if (err == ROLL_E_NOTFOUND) {
            err = 0;
            continue;
        }
        if (run != NULL) {
            run->dumped = true;
        }
        err = err != 0 ? err : roll_dumps_feed(a->dumps, j, run->feed, say_line, NULL);
        bool refused = err != 0 && err != ROLL_E_NOMEM;
        a->unjudged += refused || roll_dumps_unusable(a->dumps, j);
        if (refused) { /* the other jobs are judged all the same */
            roll_say("%s: nothing could be judged: %s", roll_dumps_job(a->dumps, j), roll_strerror(err));
            err = 0;
        }
    }
    return err;
}

static int feed_of_digests(void *ctx, const char *job, uint32_t restart, bool anew, bool *traced, roll_feed_t **out)
{
    roll_analysis_t *a = ctx;
    struct analyzed_run *run;
    int err = run_of(a, job, restart, &run);
    err = err == 0 && anew && !begin_feed(a, run) ? ROLL_E_NOMEM : err;
    if (err != 0) {
        return err;
    }
    struct roll_feed_stream s;
    *traced = roll_feed_stream(run->feed, 0, &s);
    *out = run->feed;
    return 0;
}

int roll_analysis_finish(roll_analysis_t *a)
{
    int err = roll_analyze_leave_out_copies(a->trace, &a->traces);
    err = err != 0 ? err : roll_analyze_traces(a->trace, a->traces, a->threads, a->stop, feed_of_frame, a, &a->cut);
    err = err != 0 ? err : feed_dumps(a);
    if (err == 0 && a->digests != NULL) {
        err = roll_digests_judge(a->digests, feed_of_digests, a, &a->cut);
    }
    for (size_t i = 0; i < a->runs && err == 0; i++) {
        if (a->run[i].rings > 0) {
            err = roll_merge_rings(a->run[i].feed, a->run[i].ring, a->run[i].rings);
        }
        if (err == 0) {
            err = roll_feed_finish(a->run[i].feed);
        }
        bool stopped = a->stop && *a->stop; /* who is not there may only not have been read */
        if (err == 0 && !a->run[i].dumped && !stopped) {
            err = roll_analyze_missing(roll_feed_engine(a->run[i].feed), a->run[i].job, &a->run[i].missing);
        }
    }
    if (a->reports != NULL && a->jobs.wanted != NULL) {
        roll_say("reports of NCCL's own tools do not name their job: they are left out, because --job was given");
        roll_reports_destroy(&a->reports);
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
    struct roll_verdict_copy *verdict = a->digests != NULL ? roll_digests_next(a->digests) : NULL;
    return verdict != NULL ? verdict : a->reports != NULL ? roll_reports_next(a->reports) : NULL;
}

json_t *roll_analysis_unreached(const roll_analysis_t *a)
{
    return a->digests != NULL ? roll_digests_unreached(a->digests) : json_array();
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
        inside = inside || v.in_call || v.pending > 0;
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

bool roll_analysis_run(const roll_analysis_t *a, size_t i, struct roll_analysis_run *out)
{
    if (i >= a->runs) {
        return false;
    }
    *out = (struct roll_analysis_run){.job = a->run[i].job, .restart = a->run[i].restart, .missing = a->run[i].missing};
    roll_engine_summary(roll_feed_engine(a->run[i].feed), &out->engine);
    out->engine.lost = roll_feed_losses(a->run[i].feed, out->losses);
    out->older = roll_feed_older(a->run[i].feed);
    return true;
}

void roll_analysis_summary(const roll_analysis_t *a, struct roll_analysis_summary *out)
{
    *out = (struct roll_analysis_summary){
        .runs = a->runs, .files = a->files, .unreadable = a->unreadable, .unjudged = a->unjudged};
    out->cut = a->cut || roll_guard_cuts() > 0; /* a file may be cut while it is read */
    struct roll_analysis_run run;
    for (size_t i = 0; roll_analysis_run(a, i, &run); i++) {
        const struct roll_engine_summary s = run.engine;
        for (unsigned k = 0; k < ROLL_LOSS_LIMIT; k++) {
            out->losses[k] += run.losses[k];
        }
        out->missing += run.missing;
        out->older += run.older;
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
        roll_engine_failed_add(&out->engine.failed, &s.failed);
    }
    if (a->digests != NULL) {
        struct roll_digests_summary s;
        roll_digests_summary(a->digests, &s);
        out->digests = s.files;
        out->digested = s.calls;
        out->unreached = s.unreached;
        out->engine.lost += s.lost;
        out->older += s.older;
        out->engine.findings += s.findings;
        out->engine.verdicts += s.findings;
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
