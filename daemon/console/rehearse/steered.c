/*
 * steered.c: the notes of the Python package rollcall.rehearse as a part of the report: how much was computed on the
 * host, and which lines of the job read back values that nobody computed.
 *
 * Each process has a file of lines (hostnccl/python/rollcall/rehearse/notes.py describes them), which is right at every
 * moment. They are written by the job, so a line that cannot be read is passed over.
 */
#include "daemon/console/rehearse/steered.h"
#include "daemon/base/array.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/console/text.h"
#include "trace/err.h"
#include "trace/rankset.h"

#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define READS_BEHIND 8 /* a job that ends for a number reads little more */

/* One line of the job at which values were read back: of all ranks together. */
struct read {
    char value[16], how[16];
    char *file, *function; /* owned */
    unsigned line;
    uint64_t reads;
    struct roll_rankset ranks;
};

/* A read of nan or inf, as one process made it. */
struct odd {
    char what[8], value[16];
    char *file, *function; /* owned */
    unsigned line;
    uint64_t at; /* the how manyth read of the process */
};

/* What one process tells in several lines. */
struct process {
    int64_t rank; /* -1 = not known */
    uint64_t reads, step, odd_step;
    struct odd odd; /* the newest */
};

struct steered {
    struct read *read; /* owned */
    size_t reads, room;
    json_t *index;      /* owned: text of a line -> its place in `read` */
    json_t *operations; /* owned: word -> number */
    json_t *failed;     /* owned: operation -> number */
    json_t *left;       /* owned: the same of those that were left out */
    json_t *odd;        /* owned: array of what the report says of reads of nan and inf */
    json_t *totals;     /* owned: value -> number of reads */
    char values[64];
    uint64_t size_bytes, processes;
    uint64_t steps, told; /* after which processes stopped; that are over; the most of any */
    struct roll_rankset stopped;
};

static void add_to(json_t *numbers, const char *name, uint64_t by)
{
    json_t *before = json_object_get(numbers, name);
    json_object_set_new(numbers, name, json_integer(json_integer_value(before) + (json_int_t)by));
}

/* A line `read VALUE HOW NUMBER LINE FILE<tab>FUNCTION`. 0 or NOMEM. */
static int add_read(struct steered *s, const char *text, struct process *process)
{
    int64_t rank = process->rank;
    char value[16], how[16], key[2 * PATH_MAX];
    uint64_t number;
    unsigned line;
    int at = 0;
    if (sscanf(text, "read %15s %15s %" SCNu64 " %u %n", value, how, &number, &line, &at) != 4 || at == 0) {
        return 0;
    }
    const char *tab = strchr(text + at, '\t');
    size_t length = tab != NULL ? (size_t)(tab - text) - (size_t)at : strlen(text + at);
    snprintf(key, sizeof(key), "%s %s %u %s", value, how, line, text + at);
    json_t *place = json_object_get(s->index, key);
    if (place == NULL) {
        if (ROLL_GROW(s->read, s->room, s->reads + 1) != 0) {
            return ROLL_E_NOMEM;
        }
        struct read *new = &s->read[s->reads];
        *new = (struct read){.line = line, .file = strndup(text + at, length), .function = strdup(tab ? tab + 1 : "")};
        snprintf(new->value, sizeof(new->value), "%s", value);
        snprintf(new->how, sizeof(new->how), "%s", how);
        place = json_integer((json_int_t)s->reads++);
        if (new->file == NULL || new->function == NULL || json_object_set_new(s->index, key, place) != 0) {
            return ROLL_E_NOMEM;
        }
    }
    struct read *read = &s->read[json_integer_value(place)];
    read->reads += number;
    process->reads += number;
    add_to(s->totals, value, number);
    return rank >= 0 ? roll_rankset_add(&read->ranks, (uint32_t)rank) : 0;
}

/* A line `odd WHAT VALUE NUMBER LINE FILE<tab>FUNCTION`, of which the newest is kept. 0 or NOMEM. */
static int add_odd(struct odd *newest, const char *text)
{
    struct odd odd = {0};
    int at = 0;
    if (sscanf(text, "odd %7s %15s %" SCNu64 " %u %n", odd.what, odd.value, &odd.at, &odd.line, &at) != 4 || at == 0 ||
        odd.at < newest->at) {
        return 0;
    }
    const char *tab = strchr(text + at, '\t');
    odd.file = strndup(text + at, tab != NULL ? (size_t)(tab - text) - (size_t)at : strlen(text + at));
    odd.function = strdup(tab != NULL ? tab + 1 : "");
    free(newest->file);
    free(newest->function);
    *newest = odd;
    return odd.file != NULL && odd.function != NULL ? 0 : ROLL_E_NOMEM;
}

/* Keeps of a process that it read nan or inf, and little behind it. */
static void end_process(struct steered *s, struct process *process)
{
    const struct odd *odd = &process->odd;
    if (odd->file != NULL && odd->function != NULL && process->reads - odd->at <= READS_BEHIND &&
        process->odd_step == process->step) {
        json_array_append_new(s->odd, json_pack("{s:o,s:s,s:s,s:s,s:i,s:s}", "rank",
                                                process->rank >= 0 ? json_integer(process->rank) : json_null(), "read",
                                                odd->what, "value", odd->value, "file", odd->file, "line",
                                                (int)odd->line, "function", odd->function));
    }
    free(process->odd.file);
    free(process->odd.function);
}

static int add_process(struct steered *s, const char *path)
{
    char *text = NULL, *rest = NULL, word[64];
    size_t bytes = 0;
    struct process process = {.rank = -1};
    uint64_t number;
    int at = 0, err = 0;
    if (roll_read_whole(path, ROLL_STEERED_NOTES_MOST, &text, &bytes) != 0) {
        return 0;
    }
    s->processes++;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && err == 0; line = strtok_r(NULL, "\n", &rest)) {
        roll_steered_plain(line);
        if (sscanf(line, "rank %" SCNu64, &number) == 1) {
            process.rank = number <= INT32_MAX ? (int64_t)number : -1;
        } else if (sscanf(line, "ops %63s %" SCNu64, word, &number) == 2) {
            add_to(s->operations, word, number);
        } else if (sscanf(line, "failed %" SCNu64 " %n", &number, &at) == 1) {
            add_to(s->failed, line + at, number);
        } else if (sscanf(line, "left %" SCNu64 " %n", &number, &at) == 1) {
            add_to(s->left, line + at, number);
        } else if (sscanf(line, "stopped %" SCNu64, &number) == 1) {
            s->steps = number > s->steps ? number : s->steps;
            err = process.rank >= 0 ? roll_rankset_add(&s->stopped, (uint32_t)process.rank) : 0;
        } else if (sscanf(line, "step %" SCNu64, &number) == 1) {
            s->told = number > s->told ? number : s->told;
            process.step = number;
        } else if (sscanf(line, "odd_step %" SCNu64, &number) == 1) {
            process.odd_step = number;
        } else if (strncmp(line, "odd ", 4) == 0) {
            err = add_odd(&process.odd, line);
        } else if (sscanf(line, "size %" SCNu64, &number) == 1) {
            s->size_bytes = number;
        } else if (sscanf(line, "values %63s", word) == 1) {
            snprintf(s->values, sizeof(s->values), "%s", word);
        } else {
            err = add_read(s, line, &process);
        }
    }
    end_process(s, &process);
    free(text);
    return err;
}

bool roll_steered_is_doubtful(const char *value)
{
    return strcmp(value, "skipped") == 0 || strcmp(value, "partly") == 0 || strcmp(value, "random") == 0;
}

/* What nobody computed comes first, and of that what was read most often. */
static int by_doubt(const void *a, const void *b)
{
    const struct read *x = a, *y = b;
    int doubt = (int)roll_steered_is_doubtful(y->value) - (int)roll_steered_is_doubtful(x->value);
    int often = (x->reads < y->reads) - (x->reads > y->reads);
    int name = strcmp(x->file, y->file);
    return doubt != 0 ? doubt : often != 0 ? often : name != 0 ? name : (x->line > y->line) - (x->line < y->line);
}

static int by_count(const void *a, const void *b)
{
    json_int_t x = json_integer_value(json_object_get(*(json_t *const *)a, "count")),
               y = json_integer_value(json_object_get(*(json_t *const *)b, "count"));
    return (y > x) - (y < x);
}

/* Operations with their numbers, the most frequent first; owned. */
static json_t *counts_json(const json_t *counts)
{
    json_t *out = json_array(), *number;
    size_t n = json_object_size(counts), used = 0;
    json_t **one = calloc(n + 1, sizeof(json_t *));
    const char *name;
    json_object_foreach((json_t *)counts, name, number)
    {
        if (one != NULL && used < n) {
            one[used++] = json_pack("{s:s,s:O}", "operation", name, "count", number);
        }
    }
    if (used > 1) {
        qsort(one, used, sizeof(*one), by_count);
    }
    for (size_t i = 0; i < used; i++) {
        json_array_append_new(out, one[i]);
    }
    free(one);
    return out;
}

static json_t *steered_json(struct steered *s)
{
    json_t *at = json_array();
    if (s->reads > 1) {
        qsort(s->read, s->reads, sizeof(*s->read), by_doubt);
    }
    for (size_t i = 0; i < s->reads; i++) {
        const struct read *r = &s->read[i];
        json_array_append_new(at, json_pack("{s:s,s:s,s:s,s:i,s:s,s:I,s:o}", "value", r->value, "how", r->how, "file",
                                            r->file, "line", (int)r->line, "function", r->function, "reads",
                                            (json_int_t)r->reads, "ranks", roll_ranks_text_json(&r->ranks)));
    }
    json_t *stopped = roll_rankset_count(&s->stopped) > 0 ? json_pack("{s:I,s:o}", "steps", (json_int_t)s->steps,
                                                                      "ranks", roll_ranks_text_json(&s->stopped))
                                                          : json_null();
    return json_pack("{s:I,s:I,s:s,s:O,s:o,s:o,s:O,s:o,s:O,s:o,s:o}", "processes", (json_int_t)s->processes,
                     "size_bytes", (json_int_t)s->size_bytes, "values", s->values, "operations", s->operations,
                     "failed", counts_json(s->failed), "left", counts_json(s->left), "reads", s->totals, "read_at", at,
                     "odd", s->odd, "steps", s->told > 0 ? json_integer((json_int_t)s->told) : json_null(), "stopped",
                     stopped);
}

json_t *roll_steered_json(const char *notes)
{
    static const char *const words[] = {"computed", "left", "compiled", "failed", "captured"};
    struct steered s = {.index = json_object(),
                        .operations = json_object(),
                        .failed = json_object(),
                        .left = json_object(),
                        .odd = json_array(),
                        .totals = json_object()};
    char pattern[PATH_MAX];
    glob_t files = {0};
    int err = 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        add_to(s.operations, words[i], 0);
    }
    snprintf(pattern, sizeof(pattern), "%s/steered.*", notes);
    (void)glob(pattern, 0, NULL, &files);
    for (size_t i = 0; i < files.gl_pathc && err == 0; i++) {
        err = add_process(&s, files.gl_pathv[i]);
    }
    globfree(&files);
    json_t *out = err == 0 && s.processes > 0 ? steered_json(&s) : NULL;
    for (size_t i = 0; i < s.reads; i++) {
        free(s.read[i].file);
        free(s.read[i].function);
        roll_rankset_fini(&s.read[i].ranks);
    }
    free(s.read);
    roll_rankset_fini(&s.stopped);
    json_decref(s.index);
    json_decref(s.operations);
    json_decref(s.failed);
    json_decref(s.left);
    json_decref(s.odd);
    json_decref(s.totals);
    return out;
}
