/*
 * text.c: columns, times and counts. Columns are laid out after all cells are known, so that a table is as narrow as
 * its content; fixed printf widths were rejected, because host and communicator names have no useful bound.
 */
#include "daemon/console/text.h"

#include "daemon/base/array.h"
#include "daemon/base/text.h"
#include "trace/err.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int roll_columns_row(struct roll_columns *t, const char *const *cells)
{
    int err = ROLL_GROW(t->cell, t->room, t->used + t->columns);
    if (err != 0) {
        return err;
    }
    for (size_t i = 0; i < t->columns; i++) {
        char *copy = strdup(cells[i] != NULL ? cells[i] : "");
        if (copy == NULL) {
            t->used -= i;
            for (size_t k = 0; k < i; k++) {
                free(t->cell[t->used + k]);
            }
            return ROLL_E_NOMEM;
        }
        /* Text from another process must not move the cursor or start a new line. */
        for (char *p = copy; *p != '\0'; p++) {
            if ((unsigned char)*p < 0x20 || *p == 0x7f) {
                *p = '?';
            }
        }
        t->cell[t->used++] = copy;
    }
    return 0;
}

size_t roll_columns_rows(const struct roll_columns *t)
{
    return t->columns == 0 ? 0 : t->used / t->columns;
}

#define LEFT_OUT SIZE_MAX

/* Computes the widths of all columns. What exceeds `width` is made up for by columns that are left out whole, because a
 * table that is cut at its right edge loses what happens to stand there; then by the column that may shrink. */
static void widths(const struct roll_columns *t, size_t width, size_t out[ROLL_COLUMNS_MAX])
{
    size_t sum = 0;
    for (size_t c = 0; c < t->columns; c++) {
        out[c] = (t->hide >> c & 1) != 0 ? LEFT_OUT : 0;
        if (out[c] == LEFT_OUT) {
            continue;
        }
        for (size_t i = c; i < t->used; i += t->columns) {
            size_t w = roll_text_width(t->cell[i]);
            out[c] = w > out[c] ? w : out[c];
        }
        sum += out[c] + (sum > 0 ? 2 : 0);
    }
    for (size_t i = 0; width != 0 && sum > width && i < sizeof(t->drop) && t->drop[i] != 0; i++) {
        if (out[t->drop[i] - 1u] == LEFT_OUT) {
            continue;
        }
        sum -= out[t->drop[i] - 1u] + 2;
        out[t->drop[i] - 1u] = LEFT_OUT;
    }
    const size_t shrink[] = {t->shrink, t->then};
    for (size_t i = 0; i < 2 && width != 0 && sum > width; i++) {
        size_t c = shrink[i] - 1, over = sum - width;
        if (shrink[i] == 0 || out[c] == LEFT_OUT || out[c] <= 4) {
            continue;
        }
        sum -= out[c];
        out[c] = out[c] > over + 4 ? out[c] - over : 4;
        sum += out[c];
    }
}

size_t roll_columns_line(const struct roll_columns *t, size_t row, size_t width, char *out, size_t size)
{
    size_t w[ROLL_COLUMNS_MAX], used = 0;
    out[0] = '\0';
    if (row >= roll_columns_rows(t) || size == 0) {
        return 0;
    }
    widths(t, width, w);
    for (size_t c = 0; c < t->columns; c++) {
        char cell[512];
        if (w[c] == LEFT_OUT) {
            continue;
        }
        snprintf(cell, sizeof(cell), "%s", t->cell[row * t->columns + c]);
        roll_text_fit(cell, sizeof(cell), w[c]);
        size_t pad = w[c] - roll_text_width(cell);
        bool right = (t->right >> c & 1) != 0;
        bool last = c + 1 == t->columns;
        int n = snprintf(out + used, size - used, "%s%*s%s%*s", used > 0 ? "  " : "", right ? (int)pad : 0, "", cell,
                         right || last ? 0 : (int)pad, "");
        used += n < 0 ? 0 : (size_t)n;
        if (used >= size) {
            used = size - 1;
            break;
        }
    }
    while (used > 0 && out[used - 1] == ' ') {
        out[--used] = '\0';
    }
    roll_text_fit(out, size, width);
    return strlen(out);
}

int roll_columns_print(const struct roll_columns *t, size_t width, FILE *out)
{
    char line[1024];
    for (size_t i = 0; i < roll_columns_rows(t); i++) {
        roll_columns_line(t, i, width, line, sizeof(line));
        fprintf(out, "%s\n", line);
    }
    return ferror(out) ? ROLL_E_IO : 0;
}

void roll_columns_fini(struct roll_columns *t)
{
    for (size_t i = 0; i < t->used; i++) {
        free(t->cell[i]);
    }
    free(t->cell);
    *t = (struct roll_columns){0};
}

const char *roll_time_text(uint64_t ns, char out[ROLL_TIME_BYTES])
{
    time_t seconds = (time_t)(ns / 1000000000u);
    struct tm tm;
    char date[24] = "?";
    if (gmtime_r(&seconds, &tm) != NULL) {
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
    }
    snprintf(out, ROLL_TIME_BYTES, "%s.%09uZ", date, (unsigned)(ns % 1000000000u));
    return out;
}

const char *roll_span_text(uint64_t ns, char *out, size_t size)
{
    static const struct {
        uint64_t below, unit;
        const char *name;
        int digits;
    } steps[] = {
        {1000u, 1u, "ns", 0},
        {1000000u, 1000u, "us", 1},
        {1000000000u, 1000000u, "ms", 1},
        {120000000000u, 1000000000u, "s", 1},
        {7200000000000u, 60000000000u, "min", 0},
        {UINT64_MAX, 3600000000000u, "h", 1},
    };
    size_t i = 0;
    while (ns >= steps[i].below && i + 1 < sizeof(steps) / sizeof(steps[0])) {
        i++;
    }
    snprintf(out, size, "%.*f %s", steps[i].digits, (double)ns / (double)steps[i].unit, steps[i].name);
    return out;
}

const char *roll_count_text(uint64_t n, char *out, size_t size)
{
    char digits[24], grouped[32];
    int len = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    size_t used = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) {
            grouped[used++] = ',';
        }
        grouped[used++] = digits[i];
    }
    grouped[used] = '\0';
    snprintf(out, size, "%s", grouped);
    return out;
}

const char *roll_mean_text(double n, char *out, size_t size)
{
    if (n >= 999.95 && n < 1e18) {
        return roll_count_text((uint64_t)(n + 0.5), out, size);
    }
    snprintf(out, size, "%.4g", n);
    return out;
}

const char *roll_plural(uint64_t n, const char *one, const char *many, char *out, size_t size)
{
    char count[32];
    snprintf(out, size, "%s %s", roll_count_text(n, count, sizeof(count)), n == 1 ? one : many);
    return out;
}

void roll_summary_unrecorded(const json_t *object, struct roll_summary *out)
{
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        int64_t n = roll_json_int(object, roll_loss_name(k), 0);
        out->unrecorded[k] = n > 0 ? (uint64_t)n : 0;
    }
}

json_t *roll_summary_unrecorded_json(const struct roll_summary *s)
{
    json_t *by_cause = json_object();
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        if (s->unrecorded[k] > 0) {
            json_object_set_new(by_cause, roll_loss_name(k), json_integer((json_int_t)s->unrecorded[k]));
        }
    }
    return by_cause;
}

void roll_summary_failed(struct roll_summary *out, uint64_t calls, uint64_t rank, const char *op, const char *result)
{
    out->failed.calls = calls;
    out->failed.rank = rank;
    snprintf(out->failed.op, sizeof(out->failed.op), "%s", op);
    snprintf(out->failed.result, sizeof(out->failed.result), "%s", result);
}

/* ", 36 calls returned an error (the first, CommInit of rank 2: ncclInvalidArgument)"; "": none did. */
static const char *failed_text(const struct roll_summary *s, char *out, size_t size)
{
    char calls[48];
    out[0] = '\0';
    if (s->failed.calls > 0) {
        snprintf(out, size, ", %s returned an error (%s%s of rank %llu: %s)",
                 roll_plural(s->failed.calls, "call", "calls", calls, sizeof(calls)),
                 s->failed.calls > 1 ? "the first, " : "", s->failed.op, (unsigned long long)s->failed.rank,
                 s->failed.result);
    }
    return out;
}

/* "not recorded: 1,317 defs_full and 2 signal", which follows how many records were lost, or stands in its place. */
static const char *unrecorded_text(const struct roll_summary *s, char *out, size_t size)
{
    char count[32];
    size_t used = 0;
    out[0] = '\0';
    for (unsigned k = 0; roll_loss_name(k) != NULL; k++) {
        if (s->unrecorded[k] > 0 && used < size) {
            used += (size_t)snprintf(out + used, size - used, "%s%s %s", used == 0 ? "not recorded: " : " and ",
                                     roll_count_text(s->unrecorded[k], count, sizeof(count)), roll_loss_name(k));
        }
    }
    return out;
}

const char *roll_summary_text(const struct roll_summary *s, char *out, size_t size)
{
    char ranks[48], calls[48], comms[48], findings[48], lost[48], open[64], older[48], other[320], of[32] = "";
    char failed[160];
    bool unrecorded = unrecorded_text(s, other, sizeof(other))[0] != '\0';
    bool partly = s->of_ranks > s->ranks; /* the calls of the other ranks are in no record, which is a loss as well */
    if (partly) {
        snprintf(of, sizeof(of), "%llu of ", (unsigned long long)s->ranks);
    }
    const char *where = roll_plural(s->comms, "communicator", "communicators", comms, sizeof(comms));
    snprintf(out, size, "%s%s, %s %s%s: %s, %s%s%s%s%s%s%s%s%s", of,
             roll_plural(partly ? s->of_ranks : s->ranks, "rank", "ranks", ranks, sizeof(ranks)),
             roll_plural(s->calls, "call", "calls", calls, sizeof(calls)), s->digests ? "compared by digests" : "on ",
             s->digests ? "" : where, roll_plural(s->findings, "finding", "findings", findings, sizeof(findings)),
             s->lost > 0  ? roll_plural(s->lost, "record lost", "records lost", lost, sizeof(lost))
             : partly     ? "the other ranks were not recorded"
             : unrecorded ? other
                          : "nothing lost",
             unrecorded && (s->lost > 0 || partly) ? ", " : "", unrecorded && (s->lost > 0 || partly) ? other : "",
             s->older > 0 ? ", " : "",
             s->older > 0 ? roll_plural(s->older, "older call", "older calls", older, sizeof(older)) : "",
             s->older == 0  ? ""
             : s->older > 1 ? " are not in this recording"
                            : " is not in this recording",
             s->incomplete > 0 ? ", " : "",
             s->incomplete > 0 ? roll_plural(s->incomplete, "call that not all its ranks made",
                                             "calls that not all their ranks made", open, sizeof(open))
                               : "",
             failed_text(s, failed, sizeof(failed)));
    return out;
}

void roll_line_print(const char *text, FILE *out)
{
    size_t columns = roll_columns_terminal(fileno(out));
    if (columns > 0 && roll_text_width(text) > columns) {
        roll_text_wrap(text, 0, columns, out);
    } else {
        roll_text_put(text, strlen(text), out);
        fputc('\n', out);
    }
}

uint64_t roll_now_real_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int roll_json_line(const json_t *object, FILE *out)
{
    if (json_dumpf(object, out, JSON_COMPACT) != 0 || fputc('\n', out) == EOF || fflush(out) != 0) {
        return ROLL_E_IO;
    }
    return 0;
}

const char *roll_json_text(const json_t *object, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : otherwise;
}

int64_t roll_json_int(const json_t *object, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : otherwise;
}

const char *roll_row_awaits(const json_t *row, const char *otherwise)
{
    return roll_json_text(row, "waits_for", roll_json_text(row, "awaits", otherwise));
}

int64_t roll_row_pending(const json_t *row)
{
    return roll_json_int(row, "pending", roll_json_int(row, "waits_for", 0));
}
