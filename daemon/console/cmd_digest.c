/*
 * cmd_digest.c: rollcall digest: a node's traces made one small file, which `rollcall analyze` judges together with
 * those of the other nodes (docs/RDIG.md).
 *
 * For jobs whose traces are too many for one machine to read. What the exit code says is what it says of analyze: 3 a
 * file could not be read; 4 something was cut or lost; 0 otherwise. Whether the job is sick no single node can say.
 */
#include "daemon/base/dir.h"
#include "daemon/base/file.h"
#include "daemon/console/analyze/analyze.h"
#include "daemon/console/analyze/jobs.h"
#include "daemon/console/console.h"
#include "daemon/console/digest/digest.h"
#include "daemon/console/file.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cmd_digest(const struct roll_command *self, int argc, char **argv);

#define HISTORY      1024u
#define HISTORY_MOST (1u << 20)
#define ATS_MOST     64u
#define KEYS_NAMED   8u

struct asked {
    struct roll_digest_at at[ATS_MOST];
    size_t n;
};

static bool take_number(const char **text, int base, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(*text, &end, base);
    bool good = end != *text && errno == 0 && *out <= most && (*text)[0] != '-' && (*text)[0] != '+';
    *text = end;
    return good;
}

/* KEY:SEQ or KEY:SEQ-LAST, several with commas between. False: it is something else. */
static bool take_at(const char *text, struct asked *asked)
{
    asked->n = 0;
    do {
        uint64_t key, seq, last;
        if (asked->n == ATS_MOST || !take_number(&text, 16, UINT64_MAX, &key) || *text++ != ':' ||
            !take_number(&text, 10, UINT32_MAX, &seq)) {
            return false;
        }
        last = seq;
        if (*text == '-' && (text++, !take_number(&text, 10, UINT32_MAX, &last) || last < seq)) {
            return false;
        }
        asked->at[asked->n++] = (struct roll_digest_at){key, (uint32_t)seq, (uint32_t)last};
    } while (*text == ',' && *++text != '\0');
    return *text == '\0';
}

/* All series of the given files that are of a job that is meant. *cut: something was missing. */
static int digest_all(struct roll_analyze_file *file, size_t files, unsigned threads, const struct roll_digest_how *how,
                      struct roll_jobs *jobs, struct roll_rdig_out *out, bool *cut)
{
    struct roll_reading reading;
    struct roll_series *all = NULL;
    size_t n = 0;
    int err = roll_analyze_leave_out_copies(file, &files);
    err = err ? err : roll_series_of(file, &files, &all, &n);
    if (err) {
        return err;
    }
    roll_reading_begin(&reading, file, files, false); /* half a digest is none */
    roll_ahead_t *ahead = roll_ahead_new(threads, 1);
    err = ahead ? 0 : ROLL_E_NOMEM;
    for (size_t i = 0; i < n && !err; i++) {
        bool one = false;
        if (!roll_jobs_take_series(jobs, &all[i])) {
            continue;
        }
        all[i].ahead = ahead;
        all[i].reading = &reading;
        all[i].cut = &one;
        err = roll_digest_series(&all[i], how, out);
        if (err == ROLL_E_NOTFOUND) {
            roll_say("%s: no rank is recorded in it", all[i].file[0].path);
            err = 0;
            one = true;
        }
        *cut = *cut || one;
    }
    roll_ahead_destroy(&ahead);
    roll_reading_end(&reading);
    free(all);
    return err;
}

static bool is_known(const struct roll_rdig_out *out, uint64_t key)
{
    struct roll_rdig_view v;
    struct roll_rdig_comm comm;
    for (size_t at = 0; roll_rdig_next(out->bytes, out->used, &at, &v) == 0;) {
        for (uint32_t i = 0; i < v.is.comms; i++) {
            roll_rdig_comm(&v, i, &comm);
            if (v.is.kind == ROLL_RDIG_END && comm.key == key) {
                return true;
            }
        }
    }
    return false;
}

/* The keys that there are, for somebody who has mistyped one. */
static void known_keys(const struct roll_rdig_out *out, char *text, size_t size)
{
    struct roll_rdig_view v;
    struct roll_rdig_comm comm;
    size_t n = 0, used = 0;
    text[0] = '\0';
    for (size_t at = 0; roll_rdig_next(out->bytes, out->used, &at, &v) == 0;) {
        for (uint32_t i = 0; v.is.kind == ROLL_RDIG_END && i < v.is.comms; i++, n++) {
            roll_rdig_comm(&v, i, &comm);
            int len = n < KEYS_NAMED ? snprintf(text + used, size - used, "%s%" PRIx64 " (%u ranks)", n > 0 ? ", " : "",
                                                comm.key, comm.size)
                                     : 0;
            used += len > 0 && (size_t)len < size - used ? (size_t)len : 0;
        }
    }
    if (n > KEYS_NAMED) {
        snprintf(text + used, size - used, " and %zu more", n - KEYS_NAMED);
    }
}

/* Says which places that were asked for cannot be in these traces. How many. */
static size_t tell_unknown(const struct asked *asked, const struct roll_rdig_out *out)
{
    char known[KEYS_NAMED * 40 + 40];
    size_t unknown = 0;
    for (size_t i = 0; i < asked->n; i++) {
        if (is_known(out, asked->at[i].key)) {
            continue;
        }
        known_keys(out, known, sizeof(known));
        roll_say("--at %" PRIx64 ":%u: no rank of these traces is a member of that communicator; they have %s",
                 asked->at[i].key, asked->at[i].seq, known[0] != '\0' ? known : "none at all");
        unknown++;
    }
    return unknown;
}

/* Says how many records were made and are in no trace, in the words of a summary line. Whether there are any. */
static bool tell_lacking(const struct roll_rdig_out *out)
{
    struct roll_rdig_view v;
    uint64_t lost = 0, older = 0;
    char one[48], two[48];
    for (size_t at = 0; roll_rdig_next(out->bytes, out->used, &at, &v) == 0;) {
        lost += v.is.kind == ROLL_RDIG_END ? v.is.lost : 0;
        older += v.is.kind == ROLL_RDIG_END ? v.is.older : 0;
    }
    if (lost > 0) {
        roll_say("%s: the digest says so to `rollcall analyze`",
                 roll_plural(lost, "record lost", "records lost", one, sizeof(one)));
    }
    if (older > 0) {
        roll_say("%s not in these traces: what lies before them is not judged",
                 roll_plural(older, "older call is", "older calls are", two, sizeof(two)));
    }
    return lost > 0 || older > 0;
}

/* Writes the file; beside its place first, so that nobody sees half of one. 0 or errno. */
static int write_out(const struct roll_rdig_out *out, const char *path)
{
    char beside[PATH_MAX + 8];
    if (!path) {
        return roll_write_all(STDOUT_FILENO, out->bytes, out->used) == out->used ? 0 : errno;
    }
    snprintf(beside, sizeof(beside), "%s.part", path);
    int fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int number = fd < 0 || roll_write_all(fd, out->bytes, out->used) != out->used ? errno : 0;
    number = fd >= 0 && close(fd) != 0 && number == 0 ? errno : number;
    number = number == 0 && rename(beside, path) != 0 ? errno : number;
    if (number != 0 && fd >= 0) {
        unlink(beside);
    }
    return number;
}

int cmd_digest(const struct roll_command *self, int argc, char **argv)
{
    static struct asked asked;
    static char path[PATH_MAX];
    uint32_t threads = 0, history = HISTORY;
    const char *output = NULL, *at = NULL;
    struct roll_jobs jobs = {.wanted = NULL};
    const struct roll_option options[] = {
        {"output", 'o', ROLL_OPT_TEXT, "FILE", "write to this file instead of standard output", &output},
        {"at", 0, ROLL_OPT_TEXT, "KEY:SEQ[-LAST]", "records of this place as well, where analyze asks for them", &at},
        {"history", 0, ROLL_OPT_COUNT, "N", "newest records of each rank that go along (default 1024)", &history},
        ROLL_JOB_OPTION(jobs.wanted),
        ROLL_READ_OPTIONS(threads),
        {0},
    };
    int code;
    int first = roll_read_options(self, options, argc, argv, "name the directory of a node's traces", &code);
    if (first < 0) {
        return code;
    }
    asked.n = 0;
    if (at && !take_at(at, &asked)) {
        return roll_usage(self, "option '--at %s': wants KEY:SEQ or KEY:SEQ-LAST, as analyze says it", at);
    }
    if (history > HISTORY_MOST) {
        return roll_usage(self, "option '--history %u': at most %u", history, HISTORY_MOST);
    }
    if (!output && isatty(STDOUT_FILENO)) {
        return roll_usage(self, "a digest is no text: redirect it, or name a file with --output");
    }
    struct roll_analyze_file *file = NULL;
    struct roll_rdig_out out = {0};
    struct roll_digest_found found = {0};
    bool cut = false;
    snprintf(path, sizeof(path), "%s", argv[first]);
    if (argc - first == 1 && realpath(argv[first], path) == NULL) {
        snprintf(path, sizeof(path), "%s", argv[first]);
    }
    int err = roll_digest_find(argv + first, (size_t)(argc - first), &file, &found);
    struct roll_digest_how how = {.history = history, .at = asked.at, .ats = asked.n, .path = path};
    err = err ? err : digest_all(file, found.traces, roll_analysis_thread_count(threads), &how, &jobs, &out, &cut);
    err = err ? err : out.sections > 0 ? roll_rdig_seal(&out) : 0;
    free(file);
    if (err || out.sections == 0) {
        if (err == ROLL_E_LIMIT) {
            roll_say(
                "what is to be written is more than %u MiB: give fewer directories at once, or a smaller --history",
                (unsigned)(ROLL_RDIG_MOST >> 20));
        } else if (err) {
            roll_say("%s", roll_strerror(err));
        } else if (jobs.wanted && found.traces > 0) {
            roll_jobs_say_none(&jobs);
        } else if (found.unreadable == 0) {
            roll_file_say_none(found.rings > 0 ? "no trace (*.rtrc) with a rank in it, only rings, which `rollcall "
                                                 "analyze` judges,"
                                               : "no trace (*.rtrc) with a rank in it",
                               argv + first, (size_t)(argc - first));
        }
        roll_jobs_fini(&jobs);
        roll_rdig_fini(&out);
        return ROLL_EXIT_UNREACHABLE;
    }
    if (cut) {
        roll_say("not all could be read: the digest is incomplete");
    }
    bool lacking = tell_lacking(&out);
    cut = tell_unknown(&asked, &out) > 0 || cut;
    int number = write_out(&out, output);
    if (number != 0) {
        char why[PATH_MAX + 128];
        if (output && (number == ENOENT || number == ENOTDIR)) {
            roll_say("%s", roll_dir_cannot_make(output, number, why, sizeof(why)));
        } else {
            roll_say("%s: %s", output ? output : "standard output", strerror(number));
        }
        code = ROLL_EXIT_UNREACHABLE;
    } else {
        code = found.unreadable > 0 ? ROLL_EXIT_UNREACHABLE : cut || lacking ? ROLL_EXIT_INCOMPLETE : ROLL_EXIT_CLEAN;
    }
    roll_jobs_fini(&jobs);
    roll_rdig_fini(&out);
    return code;
}
