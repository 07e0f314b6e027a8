/*
 * top_view.c: status JSON in, tables out. Both faces of `top` (full screen and --once) print these tables, so they
 * cannot say different things, and tests need no terminal.
 */
#include "daemon/console/top/top_view.h"

#include "daemon/base/text.h"
#include "daemon/verdict/verdict_tally.h"
#include "trace/err.h"
#include "trace/rankset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STALE_NS   5000000000u
#define CELL       96
#define KEY_BYTES  (8 * CELL)
#define COMMS_MOST 64 /* of more, families are shown */

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

/* What a communicator of the status is called: its name, else its label, else its key. */
static const char *comm_name(const json_t *comm)
{
    const char *label = roll_json_text(comm, "label", "");
    return roll_json_text(comm, "name", label[0] != '\0' ? label : roll_json_text(comm, "key", "-"));
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
        json_object_set_new(names, roll_json_text(comm, "key", "-"), json_string(comm_name(comm)));
    }
    json_object_set_new(status, "names", names);
}

/* A member as text whatever its type; "-" when it is absent, null, or a negative number. */
static const char *any(const json_t *object, const char *key, char out[CELL])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_string(v)) {
        snprintf(out, CELL, "%s", json_string_value(v));
    } else if (json_is_integer(v) && json_integer_value(v) >= 0) {
        snprintf(out, CELL, "%lld", (long long)json_integer_value(v));
    } else if (json_is_true(v) || json_is_false(v)) {
        snprintf(out, CELL, "%s", json_is_true(v) ? "yes" : "no");
    } else {
        snprintf(out, CELL, "-");
    }
    return out;
}

static const char *counted(const json_t *object, const char *key, char out[CELL])
{
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v) && json_integer_value(v) >= 0) {
        return roll_count_text((uint64_t)json_integer_value(v), out, CELL);
    }
    return any(object, key, out);
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
    char count[CELL];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t used = strlen(line);
        if (roll_json_int(json_object_get(status, "states"), names[i], 0) > 0) {
            snprintf(line + used, size - used, "  %s %s", names[i],
                     counted(json_object_get(status, "states"), names[i], count));
        }
    }
}

/* How many communicators there are. Where only digests are here, those of one node are judged there, and the root has
 * heard of none of them: then what a rank knows says more than their number. */
static void comms_text(const json_t *sum, const json_t *digests, char *out, size_t size)
{
    int64_t own = roll_json_int(digests, "comms_of_rank", 0);
    bool calm = digests != NULL && strcmp(roll_json_text(digests, "records", "none"), "none") == 0;
    char all[CELL], of_rank[CELL];
    counted(sum, "comms", all);
    if (calm && own > 0) {
        snprintf(out, size, "%s across nodes, %s of a rank", all, roll_count_text((uint64_t)own, of_rank, CELL));
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
    char a[CELL], b[CELL], c[CELL], e[CELL], on[CELL];
    remedies_text(status, on, sizeof(on));
    snprintf(first, size, "rollcall  job %s  restart %s  policy %s  remedies %s", any(run, "job", a),
             any(run, "restart", b), any(run, "policy", c), on);
    add_others(status, first, size);
    const json_t *digests = json_object_get(status, "digests");
    char rate[CELL + 16] = "", comms[2 * CELL];
    if (digests != NULL) {
        snprintf(rate, sizeof(rate), " (%s/s)",
                 roll_count_text((uint64_t)json_number_value(json_object_get(digests, "calls_per_s")), a, sizeof(a)));
    }
    comms_text(sum, digests, comms, sizeof(comms));
    snprintf(second, size, "ranks %s (%s live)  calls %s%s  communicators %s  findings %s", counted(sum, "ranks", a),
             counted(sum, "ranks_live", b), counted(sum, "calls", c), rate, comms, counted(sum, "findings", e));
    size_t used = strlen(second);
    bool whole = roll_json_int(sum, "lost", 0) == 0 && roll_json_int(sum, "incomplete", 0) == 0;
    if (digests == NULL || !whole) {
        snprintf(second + used, size - used, "  lost %s", counted(sum, "lost", a));
        used = strlen(second);
    }
    if (roll_json_int(sum, "incomplete", 0) > 0) { /* the words of the summary line */
        snprintf(second + used, size - used, "  not made by all %s", counted(sum, "incomplete", b));
    }
    used = strlen(second);
    if (json_is_integer(json_object_get(sum, "step"))) {
        bool learned = strcmp(roll_json_text(sum, "step_source", ""), "learned") == 0;
        snprintf(second + used, size - used, learned ? "  step ~%s (learned)" : "  step %s", counted(sum, "step", a));
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
        snprintf(second + used, size - used, "  verdicts lost %s", counted(losses, "verdict", a));
    }
}

/* Replaces a communicator's key by its name, where the status has one (roll_top_sort). */
static void name_comm(const json_t *status, char comm[CELL])
{
    const json_t *names = json_object_get(status, "names");
    const char *name = roll_json_text(names, comm, "");
    size_t i;
    json_t *c;
    json_array_foreach(names == NULL ? json_object_get(status, "comms") : NULL, i, c)
    {
        name = strcmp(roll_json_text(c, "key", ""), comm) == 0 ? comm_name(c) : name;
    }
    if (name[0] != '\0') {
        snprintf(comm, CELL, "%s", name);
    }
}

/* The last call of a rank: its operation, communicator and sequence number. */
static void last_call(const json_t *status, const json_t *rank, char what[CELL], char comm[CELL], char seq[CELL])
{
    const json_t *last = json_object_get(rank, "last");
    any(last, "op", what);
    any(last, "comm", comm);
    name_comm(status, comm);
    any(last, "seq", seq);
    const char *state = json_string_value(json_object_get(last, "state"));
    bool ordinary = !state || strcmp(state, "returned") == 0 || strcmp(state, "entered") == 0 || state[0] == '\0';
    if (!ordinary && strlen(what) + strlen(state) + 3 < CELL) {
        strcat(what, ", ");
        strcat(what, state);
    }
}

/* Whether some rank's last call has a place in Python: a table without any has no column for them. */
static bool has_places(const json_t *status)
{
    size_t i;
    json_t *rank;
    json_array_foreach(json_object_get(status, "ranks"), i, rank)
    {
        if (json_is_string(json_object_get(json_object_get(rank, "last"), "place"))) {
            return true;
        }
    }
    return false;
}

static void age(const json_t *rank, uint64_t now_ns, char out[CELL])
{
    int64_t last = roll_json_int(rank, "last_ns", 0);
    if (last <= 0 || (uint64_t)last > now_ns) {
        snprintf(out, CELL, last <= 0 ? "-" : "0 ns");
    } else {
        roll_span_text(now_ns - (uint64_t)last, out, CELL);
    }
}

/* A number, or the range of a row in which it differs: "120" or "120-164". */
static void ranged(const json_t *row, const char *key, const char *last_key, char out[CELL])
{
    int64_t low = roll_json_int(row, key, -1), high = roll_json_int(row, last_key, low);
    if (low < 0) {
        snprintf(out, CELL, "-");
    } else if (high > low) {
        snprintf(out, CELL, "%" PRId64 "-%" PRId64, low, high);
    } else {
        snprintf(out, CELL, "%" PRId64, low);
    }
}

/* How a rank stands, in the word that the page has for it, and the call that it is inside: an AllReduce has returned
 * long before the host waits for it in a synchronize. Of one that is not heard, the state of its process when it was
 * heard last, and since when it is not; so it is with a root of before it told how ranks stand. */
static const char *state_of(const json_t *rank, char *out)
{
    const char *seen = roll_json_text(rank, "seen", ""), *state = roll_json_text(rank, "state", "?");
    const char *inside = roll_json_text(rank, "inside", "a call"), *stands = roll_json_text(rank, "stands", state);
    bool in_call = strcmp(state, "running") == 0 && json_is_true(json_object_get(rank, "in_call"));
    bool plain = strcmp(stands, "inside") == 0 || strcmp(stands, "running") == 0; /* the call says it */
    if (json_is_false(json_object_get(rank, "heard"))) {
        snprintf(out, CELL, "%s%.40s, %s", in_call ? "in " : "", in_call ? inside : state,
                 seen[0] != '\0' ? seen : "not heard");
    } else if (in_call) {
        snprintf(out, CELL, "%s%sin %.40s", plain ? "" : stands, plain ? "" : " ", inside);
    } else {
        snprintf(out, CELL, "%s", stands);
    }
    return out;
}

/* The ranks for which a rank waits; "-": it does not, or everybody has made the call. */
static const char *awaits_of(const json_t *rank, char *out)
{
    snprintf(out, CELL, "%.95s", roll_json_text(rank, "awaits", "-"));
    return out;
}

#define FOLDED_RIGHT (1u << 1 | 1u << 6 | 1u << 7 | 1u << 8)
static const char *const folded_heading[] = {"RANKS", "N",   "STATE", "WAITS FOR", "LAST CALL",
                                             "COMM",  "SEQ", "STEP",  "OLDEST",    "PLACE"};

/* The rows of a root that has more ranks than it lists: made there, because the ranks themselves would be megabytes. */
static int rows_of_root(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    size_t i;
    json_t *row;
    *t = (struct roll_columns){.columns = 10, .right = FOLDED_RIGHT, .shrink = 1};
    int err = roll_columns_row(t, folded_heading);
    json_array_foreach(json_object_get(status, "groups"), i, row)
    {
        char cell[10][CELL], unused[CELL];
        const json_t *last = json_object_get(row, "last");
        any(row, "ranks_text", cell[0]);
        counted(row, "count", cell[1]);
        (void)state_of(row, cell[2]);
        (void)awaits_of(row, cell[3]);
        last_call(status, row, cell[4], cell[5], unused);
        const char *name = roll_json_text(last, "comm_name", "");
        if (name[0] != '\0') {
            snprintf(cell[5], CELL, "%s", name);
        }
        ranged(last, "seq", "seq_last", cell[6]);
        ranged(row, "step", "step_last", cell[7]);
        age(row, now_ns, cell[8]);
        any(last, "place", cell[9]);
        const char *cells[10];
        for (size_t k = 0; k < 10; k++) {
            cells[k] = cell[k][0] != '\0' ? cell[k] : "-";
        }
        err = err == 0 ? roll_columns_row(t, cells) : err;
    }
    return err;
}

static int one_row_each(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    static const char *const heading[] = {"RANK", "HOST", "PID",  "STATE", "WAITS FOR", "LAST CALL", "COMM",
                                          "SEQ",  "AGE",  "STEP", "CALLS", "LOST",      "PLACE"};
    size_t i;
    json_t *rank;
    bool places = has_places(status);
    *t = (struct roll_columns){.columns = places ? 13 : 12,
                               .right = 1u << 0 | 1u << 2 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11,
                               .drop = {3, 12, 11, 10, 9},
                               .shrink = places ? 13 : 2};
    int err = roll_columns_row(t, heading);
    json_array_foreach(json_object_get(status, "ranks"), i, rank)
    {
        char cell[13][CELL];
        any(rank, "rank", cell[0]);
        any(rank, "host", cell[1]);
        any(rank, "pid", cell[2]);
        (void)state_of(rank, cell[3]);
        (void)awaits_of(rank, cell[4]);
        last_call(status, rank, cell[5], cell[6], cell[7]);
        age(rank, now_ns, cell[8]);
        any(rank, "step", cell[9]);
        counted(rank, "calls", cell[10]);
        counted(rank, "lost", cell[11]);
        any(json_object_get(rank, "last"), "place", cell[12]);
        const char *cells[13];
        for (size_t k = 0; k < 13; k++) {
            cells[k] = cell[k];
        }
        err = err == 0 ? roll_columns_row(t, cells) : err;
    }
    return err;
}

/* Writes a key that is equal for ranks that stand at the same place. */
static void place_key(const json_t *status, const json_t *rank, char *out, size_t size)
{
    char state[CELL], awaits[CELL], what[CELL], comm[CELL], seq[CELL], step[CELL], place[CELL];
    last_call(status, rank, what, comm, seq);
    snprintf(out, size, "%s%d\n%s\n%s\n%s\n%s\n%s\n%s", state_of(rank, state),
             json_is_false(json_object_get(rank, "heard")), awaits_of(rank, awaits), what, comm, seq,
             any(rank, "step", step), any(json_object_get(rank, "last"), "place", place));
}

static int folded_row(const json_t *status, size_t from, const char *key, bool *done, uint64_t now_ns,
                      struct roll_columns *t)
{
    struct roll_rankset set = {0};
    const json_t *ranks = json_object_get(status, "ranks");
    char cell[9][CELL], count[CELL];
    json_t *first = json_array_get(ranks, from), *rank;
    uint64_t oldest = UINT64_MAX;
    size_t members = 0;
    int err = 0;
    for (size_t i = from; i < json_array_size(ranks) && err == 0; i++) {
        char other[KEY_BYTES];
        rank = json_array_get(ranks, i);
        place_key(status, rank, other, sizeof(other));
        if (!done[i] && strcmp(other, key) == 0) {
            done[i] = true;
            members++;
            int64_t last = roll_json_int(rank, "last_ns", 0), number = roll_json_int(rank, "rank", -1);
            oldest = (uint64_t)last < oldest ? (uint64_t)last : oldest;
            err = number >= 0 ? roll_rankset_add(&set, (uint32_t)number) : 0;
        }
    }
    roll_rankset_format(&set, cell[0], CELL);
    roll_rankset_fini(&set);
    snprintf(count, sizeof(count), "%zu", members);
    (void)state_of(first, cell[1]);
    (void)awaits_of(first, cell[2]);
    last_call(status, first, cell[3], cell[4], cell[5]);
    any(first, "step", cell[6]);
    json_t *aged = json_pack("{s:I}", "last_ns", (json_int_t)oldest);
    age(aged, now_ns, cell[7]);
    json_decref(aged);
    any(json_object_get(first, "last"), "place", cell[8]);
    const char *cells[] = {cell[0], count, cell[1], cell[2], cell[3], cell[4], cell[5], cell[6], cell[7], cell[8]};
    return err == 0 ? roll_columns_row(t, cells) : err;
}

static int folded(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    const json_t *ranks = json_object_get(status, "ranks");
    size_t n = json_array_size(ranks);
    bool *done = calloc(n + 1, sizeof(*done));
    bool places = has_places(status);
    *t = (struct roll_columns){
        .columns = places ? 10 : 9, .right = FOLDED_RIGHT, .drop = {8}, .shrink = places ? 10 : 1};
    int err = done == NULL ? ROLL_E_NOMEM : roll_columns_row(t, folded_heading);
    for (size_t i = 0; i < n && err == 0; i++) {
        char key[KEY_BYTES];
        if (!done[i]) {
            place_key(status, json_array_get(ranks, i), key, sizeof(key));
            err = folded_row(status, i, key, done, now_ns, t);
        }
    }
    free(done);
    return err;
}

int roll_top_ranks(const json_t *status, uint64_t now_ns, bool fold, struct roll_columns *out)
{
    if (json_array_size(json_object_get(status, "groups")) > 0) {
        return rows_of_root(status, now_ns, out);
    }
    return fold ? folded(status, now_ns, out) : one_row_each(status, now_ns, out);
}

/* A set of ranks that came as text or as an array of numbers, folded. */
static const char *set_text(const json_t *object, const char *key, char out[CELL])
{
    const json_t *v = json_object_get(object, key);
    struct roll_rankset set = {0};
    size_t i;
    json_t *n;
    if (!json_is_array(v)) {
        return any(object, key, out);
    }
    json_array_foreach(v, i, n)
    {
        if (json_is_integer(n) && json_integer_value(n) >= 0) {
            roll_rankset_add(&set, (uint32_t)json_integer_value(n));
        }
    }
    roll_rankset_format(&set, out, CELL);
    if (out[0] == '\0') {
        snprintf(out, CELL, "-");
    }
    roll_rankset_fini(&set);
    return out;
}

/* One row for each family of communicators. */
static int families(const json_t *list, struct roll_columns *t)
{
    static const char *const heading[] = {"COMM", "GROUPS", "BY ALL", "FURTHEST", "MEMBERS", "MADE AT", "APART"};
    size_t i;
    json_t *family;
    /* Only digests tell how far the members of one communicator are apart at most. */
    bool apart = json_object_get(json_array_get(list, 0), "apart") != NULL;
    *t = (struct roll_columns){
        .columns = apart ? 7 : 6, .right = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 6, .shrink = apart ? 5 : 6};
    int err = roll_columns_row(t, heading);
    json_array_foreach((json_t *)list, i, family)
    {
        char cell[7][CELL];
        any(family, "name", cell[0]);
        counted(family, "groups", cell[1]);
        counted(family, "done", cell[2]);
        counted(family, "ahead", cell[3]);
        any(family, "text", cell[4]);
        any(family, "made_at", cell[5]);
        counted(family, "apart", cell[6]);
        const char *cells[] = {cell[0], cell[1], cell[2], cell[3], cell[4], cell[5], cell[6]};
        err = err == 0 ? roll_columns_row(t, cells) : err;
    }
    return err;
}

int roll_top_comms(const json_t *status, bool fold, struct roll_columns *t)
{
    static const char *const heading[] = {"COMM",     "ROLE",   "SIZE",    "SEEN",    "BY ALL",
                                          "FURTHEST", "BEHIND", "MEMBERS", "MADE AT", "KEY"};
    const json_t *comms = json_object_get(status, "comms"), *list = json_object_get(status, "families");
    size_t i, n = json_array_size(comms);
    json_t *comm;
    bool fewer = json_array_size(list) < n || n == 0;
    if ((fold || n > COMMS_MOST || n == 0) && json_array_size(list) > 0 && fewer) {
        return families(list, t);
    }
    *t = (struct roll_columns){
        .columns = 10, .right = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5, .drop = {10, 2, 4, 9}, .shrink = 8};
    int err = roll_columns_row(t, heading);
    json_array_foreach((json_t *)comms, i, comm)
    {
        char cell[10][CELL];
        snprintf(cell[0], CELL, "%s", comm_name(comm));
        any(comm, "role", cell[1]);
        any(comm, "size", cell[2]);
        any(comm, "seen", cell[3]);
        counted(comm, "done", cell[4]);
        counted(comm, "ahead", cell[5]);
        set_text(comm, "behind", cell[6]);
        set_text(comm, "members", cell[7]);
        any(comm, "made_at", cell[8]);
        any(comm, "key", cell[9]);
        const char *cells[10];
        for (size_t k = 0; k < 10; k++) {
            cells[k] = cell[k][0] != '\0' ? cell[k] : "-";
        }
        err = err == 0 ? roll_columns_row(t, cells) : err;
    }
    return err;
}

/* What a verdict calls its communicator, without what the other columns tell. */
static void verdict_comm(const json_t *comm, char cell[CELL])
{
    static const char *const words[] = {"communicator ", "the communicator of ", "the "};
    const char *name = roll_json_text(comm, "name", ""), *end = strstr(name, " (");
    any(comm, roll_json_text(comm, "label", "")[0] != '\0' ? "label" : "key", cell);
    if (name[0] == '\0') {
        return;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t n = strlen(words[i]);
        if (strncmp(name, words[i], n) == 0) {
            name += n;
            break;
        }
    }
    snprintf(cell, CELL, "%.*s", end != NULL && end > name ? (int)(end - name) : CELL - 1, name);
}

int roll_top_verdicts(const json_t *verdicts, struct roll_columns *t)
{
    static const char *const heading[] = {"#",       "TIME (UTC)", "CERTAINTY", "VERDICT", "RANKS",
                                          "WAITING", "COMM",       "SEQ",       "TITLE"};
    size_t i;
    json_t *v;
    *t = (struct roll_columns){.columns = 9, .right = 1u << 0 | 1u << 7, .drop = {8, 2}, .shrink = 9};
    int err = roll_columns_row(t, heading);
    json_array_foreach(verdicts, i, v)
    {
        char cell[9][CELL], time[ROLL_TIME_BYTES];
        any(v, "number", cell[0]);
        roll_time_text((uint64_t)roll_json_int(v, "time_ns", 0), time);
        snprintf(cell[1], CELL, "%.12s", time + 11); /* hours to milliseconds; the date is on the verdict itself */
        const json_t *by = roll_verdict_json_retired_by(verdicts, v);
        any(v, "certainty", cell[2]);
        if (by != NULL) {
            snprintf(cell[2], CELL, "%s", roll_json_int(by, "withdraws", 0) > 0 ? "withdrawn" : "replaced");
        }
        any(v, "code", cell[3]);
        any(v, "culprits_text", cell[4]);
        any(v, "waiting_text", cell[5]);
        const json_t *comm = json_object_get(v, "comm");
        verdict_comm(comm, cell[6]);
        /* A report of moe_core is no call on its communicator, so its verdict has no sequence number. */
        any(strcmp(roll_json_text(v, "family", ""), "moe") == 0 ? NULL : v, "seq", cell[7]);
        any(v, "title", cell[8]);
        const char *cells[9];
        for (size_t k = 0; k < 9; k++) {
            cells[k] = cell[k][0] != '\0' ? cell[k] : "-";
        }
        err = err == 0 ? roll_columns_row(t, cells) : err;
    }
    return err;
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
        char span[CELL], more[CELL] = "", ranks[CELL] = "";
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
        char culprits[CELL];
        any(newest, "culprits_text", culprits);
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

int roll_top_print(const json_t *status, const json_t *verdicts, uint64_t now_ns, bool fold, size_t width, FILE *out)
{
    char first[256], second[256], stale[256];
    struct roll_columns table[ROLL_TOP_TABS] = {{0}, {0}, {0}};
    roll_top_heading(status, first, second, sizeof(first));
    roll_text_fit(first, sizeof(first), width);
    roll_text_fit(second, sizeof(second), width);
    fprintf(out, "%s\n%s\n", first, second);
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
