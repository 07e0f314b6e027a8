/*
 * top_view.c: status JSON in, lines and tables out; the tables are made by top_ranks.c and top_tables.c. Both faces of
 * `top` (full screen and --once) print these, so they cannot say different things, and tests need no terminal.
 */
#include "daemon/console/top/top_view.h"

#include "daemon/base/text.h"
#include "daemon/console/top/top_cell.h"
#include "daemon/verdict/verdict_tally.h"
#include "trace/err.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STALE_NS 5000000000u

const char *roll_top_tab_name(enum roll_top_tab tab)
{
    static const char *const names[] = {"ranks", "communicators", "verdicts"};
    return tab < ROLL_TOP_TABS ? names[tab] : "?";
}

static int by_rank(const void *a, const void *b)
{
    int64_t x = roll_json_int(*(json_t *const *)a, "rank", -1), y = roll_json_int(*(json_t *const *)b, "rank", -1);
    return (x > y) - (x < y);
}

void roll_top_sort(json_t *status)
{
    json_t *ranks = json_object_get(status, "ranks");
    size_t n = json_array_size(ranks);
    json_t **order = calloc(n + 1, sizeof(*order));
    if (order == NULL) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = json_incref(json_array_get(ranks, i));
    }
    qsort(order, n, sizeof(*order), by_rank);
    for (size_t i = 0; i < n; i++) {
        json_array_set_new(ranks, i, order[i]);
    }
    free(order);
    if (!json_is_array(json_object_get(status, "comms"))) {
        return;
    }
    json_t *names = json_object(), *comm; /* by key: each rank asks, and there may be thousands of both */
    size_t i;
    json_array_foreach(json_object_get(status, "comms"), i, comm)
    {
        json_object_set_new(names, roll_json_text(comm, "key", "-"), json_string(roll_top_comm_name(comm)));
    }
    json_object_set_new(status, "names", names);
}

/* Names of the remedies that are on, as text. */
static void remedies_text(const json_t *status, char *out, size_t size)
{
    const json_t *on = json_object_get(json_object_get(status, "remedies"), "on");
    size_t i, used = 0;
    json_t *name;
    out[0] = '\0';
    json_array_foreach(on, i, name)
    {
        if (json_is_string(name)) {
            int n = snprintf(out + used, size - used, "%s%s", used > 0 ? "," : "", json_string_value(name));
            used += n < 0 ? 0 : (size_t)n;
            used = used < size ? used : size - 1;
        }
    }
    if (used == 0) {
        snprintf(out, size, "none");
    }
}

/* Processes that do not simply run. */
static void add_states(const json_t *status, char *line, size_t size)
{
    static const char *const names[] = {"stopped", "finished", "dead"};
    char count[ROLL_TOP_CELL];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t used = strlen(line);
        if (roll_json_int(json_object_get(status, "states"), names[i], 0) > 0) {
            snprintf(line + used, size - used, "  %s %s", names[i],
                     roll_top_counted(json_object_get(status, "states"), names[i], count));
        }
    }
}

/* How many communicators there are. Where only digests are here, those of one node are judged there, and the root has
 * heard of none of them: then what a rank knows says more than their number. */
static void comms_text(const json_t *sum, const json_t *digests, char *out, size_t size)
{
    int64_t own = roll_json_int(digests, "comms_of_rank", 0);
    bool calm = digests != NULL && strcmp(roll_json_text(digests, "records", "none"), "none") == 0;
    char all[ROLL_TOP_CELL], of_rank[ROLL_TOP_CELL];
    roll_top_counted(sum, "comms", all);
    if (calm && own > 0) {
        snprintf(out, size, "%s across nodes, %s of a rank", all,
                 roll_count_text((uint64_t)own, of_rank, ROLL_TOP_CELL));
    } else {
        snprintf(out, size, "%s", all);
    }
}

/* Adds the other jobs of this root that run; where none does, those that are over. */
static void add_others(const json_t *status, char *line, size_t size)
{
    enum { NAMED = 3 };
    const json_t *jobs = json_object_get(status, "other_jobs");
    size_t all = json_array_size(jobs), live = (size_t)roll_json_int(status, "other_jobs_live", 0);
    size_t n = live > 0 && live < all ? live : all, used = strlen(line);
    const char *kind = live > 0 ? "  also running: " : "  ended: ";
    for (size_t i = 0; i < n && i < NAMED && used < size; i++) {
        used += (size_t)snprintf(line + used, size - used, "%s--job %s", i == 0 ? kind : ", ",
                                 json_string_value(json_array_get(jobs, i)));
    }
    if (n > NAMED && used < size) {
        snprintf(line + used, size - used, ", and %zu more", n - NAMED);
    }
}

void roll_top_heading(const json_t *status, char first[], char second[], size_t size)
{
    const json_t *run = json_object_get(status, "run"), *sum = json_object_get(status, "summary");
    char a[ROLL_TOP_CELL], b[ROLL_TOP_CELL], c[ROLL_TOP_CELL], e[ROLL_TOP_CELL], on[ROLL_TOP_CELL];
    remedies_text(status, on, sizeof(on));
    snprintf(first, size, "rollcall  job %s  restart %s  policy %s  remedies %s", roll_top_any(run, "job", a),
             roll_top_any(run, "restart", b), roll_top_any(run, "policy", c), on);
    add_others(status, first, size);
    const json_t *digests = json_object_get(status, "digests");
    char rate[ROLL_TOP_CELL + 16] = "", comms[2 * ROLL_TOP_CELL];
    if (digests != NULL) {
        snprintf(rate, sizeof(rate), " (%s/s)",
                 roll_count_text((uint64_t)json_number_value(json_object_get(digests, "calls_per_s")), a, sizeof(a)));
    }
    comms_text(sum, digests, comms, sizeof(comms));
    snprintf(second, size, "ranks %s (%s live)  calls %s%s  communicators %s  findings %s",
             roll_top_counted(sum, "ranks", a), roll_top_counted(sum, "ranks_live", b),
             roll_top_counted(sum, "calls", c), rate, comms, roll_top_counted(sum, "findings", e));
    size_t used = strlen(second);
    bool whole = roll_json_int(sum, "lost", 0) == 0 && roll_json_int(sum, "incomplete", 0) == 0;
    if (digests == NULL || !whole) {
        snprintf(second + used, size - used, "  lost %s", roll_top_counted(sum, "lost", a));
        used = strlen(second);
    }
    if (roll_json_int(sum, "incomplete", 0) > 0) { /* the words of the summary line */
        snprintf(second + used, size - used, "  not made by all %s", roll_top_counted(sum, "incomplete", b));
    }
    used = strlen(second);
    if (json_is_integer(json_object_get(sum, "step"))) {
        bool learned = strcmp(roll_json_text(sum, "step_source", ""), "learned") == 0;
        snprintf(second + used, size - used, learned ? "  step ~%s (learned)" : "  step %s",
                 roll_top_counted(sum, "step", a));
        used = strlen(second);
    }
    int64_t failed = roll_json_int(json_object_get(sum, "failed"), "calls", 0);
    if (failed > 0) {
        snprintf(second + used, size - used, "  errors %s", roll_count_text((uint64_t)failed, a, sizeof(a)));
    }
    add_states(status, second, size);
    used = strlen(second);
    const char *records = roll_json_text(digests, "records", "none");
    if (strcmp(records, "none") != 0) {
        snprintf(second + used, size - used, "  records %s", records);
        used = strlen(second);
    }
    if (json_is_false(json_object_get(json_object_get(status, "trace"), "kept"))) {
        snprintf(second + used, size - used, "  no trace here");
        used = strlen(second);
    }
    const json_t *losses = json_object_get(status, "losses");
    if (roll_json_int(losses, "verdict", 0) > 0) {
        snprintf(second + used, size - used, "  verdicts lost %s", roll_top_counted(losses, "verdict", a));
    }
}

/* Adds the eyes that were late, which the root has words for; those that are silent stand before them. */
static void add_late(const json_t *status, char *out, size_t size)
{
    size_t i;
    json_t *eye;
    json_array_foreach(json_object_get(status, "eyes"), i, eye)
    {
        size_t used = strlen(out);
        if (strcmp(roll_json_text(eye, "eye", ""), "silent") != 0 && used < size) {
            snprintf(out + used, size - used, "%s%s", used > 0 ? "; " : "", roll_json_text(eye, "text", "?"));
        }
    }
}

const char *roll_top_stale(const json_t *status, uint64_t now_ns, char *out, size_t size)
{
    int64_t live = roll_json_int(json_object_get(status, "summary"), "ranks_live", 0), heard = 0;
    uint64_t longest = 0;
    unsigned silent = 0;
    const char *host = "?";
    size_t i;
    json_t *agent;
    out[0] = '\0';
    json_array_foreach(json_object_get(status, "agents"), i, agent)
    {
        int64_t seen = roll_json_int(agent, "seen_ns", 0);
        uint64_t since = seen > 0 && now_ns > (uint64_t)seen ? now_ns - (uint64_t)seen : 0;
        if (since <= STALE_NS && !json_is_true(json_object_get(agent, "gone"))) {
            heard += roll_json_int(agent, "ranks", 0);
            continue;
        }
        silent++;
        if (since >= longest) {
            longest = since;
            host = roll_json_text(agent, "host", "?");
        }
    }
    heard += roll_json_int(json_object_get(status, "agents_more"), "ranks", 0);
    if (silent > 0) {
        char span[ROLL_TOP_CELL], more[ROLL_TOP_CELL] = "", ranks[ROLL_TOP_CELL] = "";
        if (live > 0) {
            snprintf(ranks, sizeof(ranks), "%" PRId64 " of %" PRId64 " ranks heard, ", heard < live ? heard : live,
                     live);
        }
        if (silent > 1) {
            snprintf(more, sizeof(more), " (and %u more)", silent - 1);
        }
        snprintf(out, size, "%sagent of %s%s silent for %s", ranks, host, more,
                 roll_span_text(longest, span, sizeof(span)));
    }
    add_late(status, out, size);
    return out;
}

const char *roll_top_found(const json_t *status, const json_t *verdicts, char *out, size_t size)
{
    size_t i, n = 0;
    json_t *v, *newest = NULL;
    json_array_foreach(verdicts, i, v)
    {
        if (roll_verdict_json_is_finding(v) && roll_verdict_json_retired_by(verdicts, v) == NULL) {
            newest = v;
            n++;
        }
    }
    out[0] = '\0';
    if (newest != NULL) {
        char culprits[ROLL_TOP_CELL];
        roll_top_any(newest, "culprits_text", culprits);
        snprintf(out, size, "FOUND (%s) %s%s%s: %s; `rollcall why` says more", roll_json_text(newest, "certainty", "?"),
                 roll_json_text(newest, "code", "?"), culprits[0] == '-' || culprits[0] == '\0' ? "" : ", rank ",
                 culprits[0] == '-' ? "" : culprits, roll_json_text(newest, "title", "?"));
    } else if (roll_json_text(status, "ripening", NULL) != NULL) {
        snprintf(out, size, "nothing found yet: %s", roll_json_text(status, "ripening", ""));
    }
    return out;
}

const char *roll_top_unseen(const json_t *status, char *out, size_t size)
{
    const json_t *unseen = json_object_get(status, "unseen");
    int64_t n = roll_json_int(unseen, "count", 0);
    out[0] = '\0';
    if (n > 0) {
        snprintf(out, size,
                 "no record of rank%s %.100s (%" PRId64 " of %" PRId64
                 "): not begun, or the agent there does not reach "
                 "this root (`rollcall doctor` on that node)",
                 n == 1 ? "" : "s", roll_json_text(unseen, "ranks_text", "?"), n, roll_json_int(unseen, "of", 0));
    }
    return out;
}

/* Prints what stands apart by two blanks, broken there where a line would be too wide. */
static void print_items(const char *line, size_t width, FILE *out)
{
    size_t column = 0;
    for (const char *at = line; *at != '\0';) {
        const char *end = strstr(at, "  ");
        size_t bytes = end != NULL ? (size_t)(end - at) : strlen(at);
        char item[512];
        snprintf(item, sizeof(item), "%.*s", (int)bytes, at);
        size_t wide = roll_text_width(item);
        bool breaks = width != 0 && column > 0 && column + 2 + wide > width;
        roll_text_fit(item, sizeof(item), width > 2 ? width - 2 : width);
        fprintf(out, "%s%s", breaks ? "\n  " : column > 0 ? "  " : "", item);
        column = breaks ? 2 + wide : column + (column > 0 ? 2 : 0) + wide;
        at += bytes + (end != NULL ? strspn(end, " ") : 0);
    }
    fputc('\n', out);
}

int roll_top_print(const json_t *status, const json_t *verdicts, uint64_t now_ns, bool fold, size_t width, FILE *out)
{
    char first[256], second[256], stale[256];
    struct roll_columns table[ROLL_TOP_TABS] = {{0}, {0}, {0}};
    roll_top_heading(status, first, second, sizeof(first));
    print_items(first, width, out);
    print_items(second, width, out);
    char found[1024];
    if (roll_top_found(status, NULL, found, sizeof(found))[0] != '\0') { /* findings have their table */
        roll_text_fit(found, sizeof(found), width);
        fprintf(out, "%s\n", found);
    }
    if (roll_top_stale(status, now_ns, stale, sizeof(stale))[0] != '\0') {
        fprintf(out, "%s\n", stale);
    }
    if (roll_top_unseen(status, stale, sizeof(stale))[0] != '\0') {
        roll_text_fit(stale, sizeof(stale), width);
        fprintf(out, "%s\n", stale);
    }
    int err = roll_top_ranks(status, now_ns, fold, &table[ROLL_TOP_RANKS]);
    err = err == 0 ? roll_top_comms(status, fold, &table[ROLL_TOP_COMMS]) : err;
    err = err == 0 ? roll_top_verdicts(verdicts, &table[ROLL_TOP_VERDICTS]) : err;
    for (unsigned tab = 0; tab < ROLL_TOP_TABS; tab++) {
        if (err == 0 && roll_columns_rows(&table[tab]) > 1) {
            fputc('\n', out);
            err = roll_columns_print(&table[tab], width, out);
        }
        roll_columns_fini(&table[tab]);
    }
    return err;
}
