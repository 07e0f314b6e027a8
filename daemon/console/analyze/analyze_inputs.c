/*
 * analyze_inputs.c: what is given to an analysis: files, and directories in which they lie. Its first bytes, and not
 * its name, say what a file is; only in a directory a name decides what is meant at all.
 *
 * One kind of file a subcommand was rejected: people have a folder of what was left of a job, and want to know what was
 * wrong.
 */
#include "daemon/console/analyze/analyze_state.h"

#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/console/console.h"
#include "daemon/console/file.h"
#include "daemon/store/segment.h"
#include "daemon/store/trace_file.h"
#include "trace/err.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIND_BYTES 4096 /* what a file is, so many of its bytes say */
#define DEPTH_MAX  3    /* DIR, its folders (rings of nodes, bundles of --incident-dir), and trace/ of a bundle */

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
    err = roll_analyze_run_of_frame(a, &frame, &run);
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

static void read_head(const char *path, struct analyzed_head *out)
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

static bool is_report(const struct analyzed_head *head)
{
    return roll_report_is_likely(head->bytes, head->n < KIND_BYTES ? head->n : KIND_BYTES);
}

/* A file of a directory whose name says nothing: dumps and reports of other tools have any name. */
static bool is_of_others(const struct analyzed_head *head)
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
        snprintf(why, size, "not judged: %s; `rollcall digest` on its node makes it again", roll_strerror(err));
    }
    return err;
}

/* What may be given, in words. */
static const char *wanted(const roll_analysis_t *a)
{
    return a->watch && !a->takes_all ? ROLL_WANTED_RECORDED : ROLL_WANTED_JUDGED;
}

/* Adds the file whose head was read. Its first bytes, and not its name, say what kind of file it is. */
static int add_file(roll_analysis_t *a, const char *path)
{
    char why[256] = "";
    const struct analyzed_head *head = &a->head;
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
            roll_file_complain(path, err, wanted(a));
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
        err = roll_segment_errno();
        roll_file_complain(path, err, wanted(a));
        a->unreadable++;
        return err;
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
