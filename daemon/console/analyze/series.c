/*
 * series.c: see series.h. A segment that its writer removed meanwhile, or that a killed one has torn, costs what was in
 * it and no more; each is one line.
 */
#include "daemon/console/analyze/series.h"

#include "daemon/base/clock.h"
#include "daemon/console/console.h"
#include "trace/err.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_FRAMES 64u /* frames between two looks at the clock */
#define SHOW_NS     (1000 * ROLL_MS)

/* how far it has come */

static volatile sig_atomic_t interrupted;

static void interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void roll_reading_begin(struct roll_reading *r, const struct roll_analyze_file *file, size_t n, bool may_end)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    struct stat st;
    *r = (struct roll_reading){.shows = isatty(STDERR_FILENO) == 1, .shown_ns = roll_mono_ns()};
    for (size_t i = 0; i < n; i++) {
        r->total += stat(file[i].path, &st) == 0 ? (uint64_t)st.st_size : 0;
    }
    interrupted = 0;
    if (may_end && sigaction(SIGINT, NULL, &before) == 0 &&
        before.sa_handler == SIG_DFL) { /* who ignores it wants that */
        sigaction(SIGINT, &action, NULL);
    }
}

static void take_away(struct roll_reading *r)
{
    if (r->shown) {
        fputs("\r\033[K", stderr);
        r->shown = false;
    }
}

void roll_reading_end(struct roll_reading *r)
{
    struct sigaction now;
    take_away(r);
    if (sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == interrupt) {
        now = (struct sigaction){.sa_handler = SIG_DFL};
        sigaction(SIGINT, &now, NULL);
    }
}

static void show(struct roll_reading *r, const struct roll_series *s)
{
    uint64_t now = roll_mono_ns();
    if (r->total > 0 && now - r->shown_ns >= SHOW_NS) {
        uint64_t read = r->before + (s->reader ? roll_ahead_offset(s->reader) : 0);
        read = read < r->total ? read : r->total; /* some of it may be read twice */
        fprintf(stderr, "\r\033[Krollcall: %3.0f %% of %.1f MB read", 100.0 * (double)read / (double)r->total,
                (double)r->total / 1e6);
        r->shown_ns = now;
        r->shown = true;
    }
}

/* Whether reading goes on. */
static bool look(struct roll_series *s)
{
    struct roll_reading *r = s->reading;
    if (interrupted && !r->told) {
        take_away(r);
        roll_say("interrupted: what was read until now is judged; once more ends it at once");
        r->told = true;
    }
    if (!interrupted && r->shows && ++r->frames % LOOK_FRAMES == 0) {
        show(r, s);
    }
    return !interrupted && !(r->stop && *r->stop);
}

/* one series */

static bool follows(const struct roll_analyze_file *a, const struct roll_analyze_file *b)
{
    return b->number == a->number + 1 && b->number > 1;
}

/* Judges the end of a file. A killed writer leaves a torn end, from which the next segment goes on: then nothing is
 * missing. */
static void judge_end(const struct roll_series *s, int err)
{
    const struct roll_analyze_file *file = &s->file[s->at];
    bool continued = s->at + 1 < s->files && follows(file, file + 1);
    if (err == ROLL_E_NOTFOUND || (err == ROLL_E_SHORT && continued)) {
        return;
    }
    if (!s->quiet) {
        take_away(s->reading);
        roll_say("%s: %s at offset %zu; everything before it is judged", file->path,
                 err == ROLL_E_SHORT ? "cut short" : roll_strerror(err), roll_ahead_offset(s->reader));
    }
    *s->cut = true;
}

/* Opens the segment at s->at. `resume`: the segment before it has been read to its end. */
static int open_file(struct roll_series *s, bool resume)
{
    return roll_ahead_open(s->ahead, s->file[s->at].path, resume, &s->reader);
}

/* Goes past the segment at s->at, which cannot be opened. A moment ago it could, so its writer has removed it since. */
static void skip_file(struct roll_series *s, int err)
{
    if (!s->quiet) {
        take_away(s->reading);
        roll_say("%s: %s", s->file[s->at].path, roll_strerror(err));
    }
    *s->cut = true;
    s->at++;
    s->ended = s->at == s->files;
}

int roll_series_advance(struct roll_series *s)
{
    if (!s->ended && !look(s)) {
        *s->cut = s->ended = true;
    }
    while (!s->ended) {
        int err = s->reader ? roll_ahead_next(s->reader, &s->frame) : ROLL_E_NOTFOUND;
        if (err == 0 || err == ROLL_E_NOMEM) {
            return err;
        }
        bool whole = s->reader && (err == ROLL_E_NOTFOUND || err == ROLL_E_SHORT);
        if (s->reader) {
            judge_end(s, err);
            s->reading->before += roll_ahead_offset(s->reader);
            roll_ahead_close(&s->reader);
            s->at++;
        }
        if (s->at == s->files) {
            s->ended = true;
        } else {
            whole = whole && follows(&s->file[s->at - 1], &s->file[s->at]);
            err = open_file(s, whole);
            if (err) {
                skip_file(s, err);
            }
        }
    }
    return 0;
}

int roll_series_begin(struct roll_series *s, size_t at)
{
    s->at = at;
    s->ended = false;
    if (at == 0 && s->file[0].number > 1 && !s->quiet) {
        roll_say(
            "%s: the segments before it are gone (--trace-limit, --trace-age); their calls are not in this recording",
            s->file[0].path);
    }
    int err = open_file(s, false);
    if (err == ROLL_E_NOMEM) {
        return err;
    }
    if (err) {
        skip_file(s, err);
    }
    return roll_series_advance(s);
}

void roll_series_end(struct roll_series *s)
{
    roll_ahead_close(&s->reader);
}

/* all */

static int by_series(const void *a, const void *b)
{
    const struct roll_analyze_file *x = a, *y = b;
    int order = strcmp(x->series, y->series);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

int roll_series_of(struct roll_analyze_file *file, size_t *files, struct roll_series **out, size_t *n)
{
    struct roll_series *all = calloc(*files + 1, sizeof(*all));
    size_t kept = 0, used = 0;
    if (!all) {
        return ROLL_E_NOMEM;
    }
    if (*files > 1) {
        qsort(file, *files, sizeof(*file), by_series);
    }
    for (size_t i = 0; i < *files; i++) {
        bool same = kept > 0 && strcmp(file[i].series, file[kept - 1].series) == 0;
        if (same && file[i].number == file[kept - 1].number) {
            continue; /* the user gave this file twice */
        }
        file[kept] = file[i];
        if (same) {
            all[used - 1].files++;
        } else {
            all[used++] = (struct roll_series){.file = &file[kept], .files = 1};
        }
        kept++;
    }
    *files = kept;
    *out = all;
    *n = used;
    return 0;
}
