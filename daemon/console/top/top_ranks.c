/*
 * top_ranks.c: the table of ranks: one row for each, ranks that stand at one place in one row, or the rows that a root
 * with many ranks has made.
 */
#include "daemon/console/top/top_cell.h"
#include "daemon/console/top/top_view.h"

#include "trace/err.h"
#include "trace/rankset.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES (8 * ROLL_TOP_CELL)

/* Replaces a communicator's key by its name, where the status has one (roll_top_sort). */
static void name_comm(const json_t *status, char comm[ROLL_TOP_CELL])
{
    const json_t *names = json_object_get(status, "names");
    const char *name = roll_json_text(names, comm, "");
    size_t i;
    json_t *c;
    json_array_foreach(names == NULL ? json_object_get(status, "comms") : NULL, i, c)
    {
        name = strcmp(roll_json_text(c, "key", ""), comm) == 0 ? roll_top_comm_name(c) : name;
    }
    if (name[0] != '\0') {
        snprintf(comm, ROLL_TOP_CELL, "%s", name);
    }
}

/* The last call of a rank: its operation, communicator and sequence number. */
static void last_call(const json_t *status, const json_t *rank, char what[ROLL_TOP_CELL], char comm[ROLL_TOP_CELL],
                      char seq[ROLL_TOP_CELL])
{
    const json_t *last = json_object_get(rank, "last");
    roll_top_any(last, "op", what);
    roll_top_any(last, "comm", comm);
    name_comm(status, comm);
    roll_top_any(last, "seq", seq);
    const char *state = json_string_value(json_object_get(last, "state"));
    bool ordinary = !state || strcmp(state, "returned") == 0 || strcmp(state, "entered") == 0 || state[0] == '\0';
    if (!ordinary && strlen(what) + strlen(state) + 3 < ROLL_TOP_CELL) {
        strcat(what, ", ");
        strcat(what, state);
    }
}

/* Whether the last call of some row has a place that is known: a table without any has no column for them. */
static bool has_places(const json_t *rows)
{
    size_t i;
    json_t *row;
    json_array_foreach((json_t *)rows, i, row)
    {
        if (json_is_string(json_object_get(json_object_get(row, "last"), "place"))) {
            return true;
        }
    }
    return false;
}

static void age(const json_t *rank, uint64_t now_ns, char out[ROLL_TOP_CELL])
{
    int64_t last = roll_json_int(rank, "last_ns", 0);
    if (last <= 0 || (uint64_t)last > now_ns) {
        snprintf(out, ROLL_TOP_CELL, last <= 0 ? "-" : "0 ns");
    } else {
        roll_span_text(now_ns - (uint64_t)last, out, ROLL_TOP_CELL);
    }
}

/* A number, or the range of a row in which it differs: "120" or "120-164". */
static void ranged(const json_t *row, const char *key, const char *last_key, char out[ROLL_TOP_CELL])
{
    int64_t low = roll_json_int(row, key, -1), high = roll_json_int(row, last_key, low);
    if (low < 0) {
        snprintf(out, ROLL_TOP_CELL, "-");
    } else if (high > low) {
        snprintf(out, ROLL_TOP_CELL, "%" PRId64 "-%" PRId64, low, high);
    } else {
        snprintf(out, ROLL_TOP_CELL, "%" PRId64, low);
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
        snprintf(out, ROLL_TOP_CELL, "%s%.40s, %s", in_call ? "in " : "", in_call ? inside : state,
                 seen[0] != '\0' ? seen : "not heard");
    } else if (in_call) {
        snprintf(out, ROLL_TOP_CELL, "%s%sin %.40s", plain ? "" : stands, plain ? "" : " ", inside);
    } else {
        snprintf(out, ROLL_TOP_CELL, "%s", stands);
    }
    return out;
}

/* The ranks for which a rank waits; "-": it does not, or everybody has made the call. */
static const char *awaits_of(const json_t *rank, char *out)
{
    snprintf(out, ROLL_TOP_CELL, "%.95s", roll_row_awaits(rank, "-"));
    return out;
}

static const char *const folded_heading[] = {"RANKS", "N",   "STATE", "WAITS FOR", "LAST CALL",
                                             "COMM",  "SEQ", "STEP",  "OLDEST",    "PLACE"};

static struct roll_columns folded_table(const json_t *rows)
{
    bool places = has_places(rows);
    return (struct roll_columns){.columns = 10,
                                 .right = 1u << 1 | 1u << 6 | 1u << 7 | 1u << 8,
                                 .hide = places ? 0 : 1u << 9,
                                 .drop = {8},
                                 .shrink = places ? 10 : 1,
                                 .then = 3};
}

/* The rows of a root that has more ranks than it lists: made there, because the ranks themselves would be megabytes. */
static int rows_of_root(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    size_t i;
    json_t *row;
    const json_t *groups = json_object_get(status, "groups");
    *t = folded_table(groups);
    t->shrink = 1;
    int err = roll_columns_row(t, folded_heading);
    json_array_foreach((json_t *)groups, i, row)
    {
        char cell[10][ROLL_TOP_CELL], unused[ROLL_TOP_CELL];
        const json_t *last = json_object_get(row, "last");
        roll_top_any(row, "ranks_text", cell[0]);
        roll_top_counted(row, "count", cell[1]);
        (void)state_of(row, cell[2]);
        (void)awaits_of(row, cell[3]);
        last_call(status, row, cell[4], cell[5], unused);
        const char *name = roll_json_text(last, "comm_name", "");
        if (name[0] != '\0') {
            snprintf(cell[5], ROLL_TOP_CELL, "%s", name);
        }
        ranged(last, "seq", "seq_last", cell[6]);
        ranged(row, "step", "step_last", cell[7]);
        age(row, now_ns, cell[8]);
        roll_top_any(last, "place", cell[9]);
        err = err == 0 ? roll_top_row(t, cell) : err;
    }
    return err;
}

static int one_row_each(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    static const char *const heading[] = {"RANK", "HOST", "PID",  "STATE", "WAITS FOR", "LAST CALL", "COMM",
                                          "SEQ",  "AGE",  "STEP", "CALLS", "LOST",      "PLACE"};
    size_t i;
    json_t *rank;
    bool places = has_places(json_object_get(status, "ranks"));
    *t = (struct roll_columns){.columns = 13,
                               .right = 1u << 0 | 1u << 2 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 11,
                               .hide = places ? 0 : 1u << 12,
                               .drop = {3, 12, 11, 10, 9},
                               .shrink = places ? 13 : 2,
                               .then = 4};
    int err = roll_columns_row(t, heading);
    json_array_foreach(json_object_get(status, "ranks"), i, rank)
    {
        char cell[13][ROLL_TOP_CELL];
        roll_top_any(rank, "rank", cell[0]);
        roll_top_any(rank, "host", cell[1]);
        roll_top_any(rank, "pid", cell[2]);
        (void)state_of(rank, cell[3]);
        (void)awaits_of(rank, cell[4]);
        last_call(status, rank, cell[5], cell[6], cell[7]);
        age(rank, now_ns, cell[8]);
        roll_top_any(rank, "step", cell[9]);
        roll_top_counted(rank, "calls", cell[10]);
        roll_top_counted(rank, "lost", cell[11]);
        roll_top_any(json_object_get(rank, "last"), "place", cell[12]);
        err = err == 0 ? roll_top_row(t, cell) : err;
    }
    return err;
}

/* Writes a key that is equal for ranks that stand at the same place. */
static void place_key(const json_t *status, const json_t *rank, char *out, size_t size)
{
    char state[ROLL_TOP_CELL], awaits[ROLL_TOP_CELL], what[ROLL_TOP_CELL], comm[ROLL_TOP_CELL], seq[ROLL_TOP_CELL],
        step[ROLL_TOP_CELL], place[ROLL_TOP_CELL];
    last_call(status, rank, what, comm, seq);
    snprintf(out, size, "%s%d\n%s\n%s\n%s\n%s\n%s\n%s", state_of(rank, state),
             json_is_false(json_object_get(rank, "heard")), awaits_of(rank, awaits), what, comm, seq,
             roll_top_any(rank, "step", step), roll_top_any(json_object_get(rank, "last"), "place", place));
}

static int folded_row(const json_t *status, size_t from, const char *key, bool *done, uint64_t now_ns,
                      struct roll_columns *t)
{
    struct roll_rankset set = {0};
    const json_t *ranks = json_object_get(status, "ranks");
    char cell[10][ROLL_TOP_CELL];
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
    roll_rankset_format(&set, cell[0], ROLL_TOP_CELL);
    roll_rankset_fini(&set);
    snprintf(cell[1], ROLL_TOP_CELL, "%zu", members);
    (void)state_of(first, cell[2]);
    (void)awaits_of(first, cell[3]);
    last_call(status, first, cell[4], cell[5], cell[6]);
    roll_top_any(first, "step", cell[7]);
    json_t *aged = json_pack("{s:I}", "last_ns", (json_int_t)oldest);
    age(aged, now_ns, cell[8]);
    json_decref(aged);
    roll_top_any(json_object_get(first, "last"), "place", cell[9]);
    return err == 0 ? roll_top_row(t, cell) : err;
}

static int folded(const json_t *status, uint64_t now_ns, struct roll_columns *t)
{
    const json_t *ranks = json_object_get(status, "ranks");
    size_t n = json_array_size(ranks);
    bool *done = calloc(n + 1, sizeof(*done));
    *t = folded_table(ranks);
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
