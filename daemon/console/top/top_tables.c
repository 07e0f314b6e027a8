/*
 * top_tables.c: the tables of communicators, one by one or by families, and of verdicts.
 */
#include "daemon/console/top/top_cell.h"
#include "daemon/console/top/top_view.h"

#include "daemon/verdict/verdict_tally.h"
#include "trace/rankset.h"

#include <string.h>

#define COMMS_MOST 64 /* of more, families are shown */

/* A set of ranks that came as text or as an array of numbers, folded. */
static const char *set_text(const json_t *object, const char *key, char out[ROLL_TOP_CELL])
{
    const json_t *v = json_object_get(object, key);
    struct roll_rankset set = {0};
    size_t i;
    json_t *n;
    if (!json_is_array(v)) {
        return roll_top_any(object, key, out);
    }
    json_array_foreach(v, i, n)
    {
        if (json_is_integer(n) && json_integer_value(n) >= 0) {
            roll_rankset_add(&set, (uint32_t)json_integer_value(n));
        }
    }
    roll_rankset_format(&set, out, ROLL_TOP_CELL);
    if (out[0] == '\0') {
        snprintf(out, ROLL_TOP_CELL, "-");
    }
    roll_rankset_fini(&set);
    return out;
}

/* A column that shows one member of each object of a list. */
struct column {
    const char *heading, *key;
    const char *(*text)(const json_t *object, const char *key, char out[ROLL_TOP_CELL]);
    bool is_number;    /* aligned to the right */
    bool may_be_empty; /* left out where no object has it */
};

static const char *comm_name(const json_t *comm, const char *key, char out[ROLL_TOP_CELL])
{
    (void)key;
    snprintf(out, ROLL_TOP_CELL, "%s", roll_top_comm_name(comm));
    return out;
}

/* Whether some object of the list has this member. */
static bool has_some(const json_t *list, const char *key)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        const json_t *member = json_object_get(one, key);
        if (member != NULL && !json_is_null(member)) {
            return true;
        }
    }
    return false;
}

/* The heading, and a row for each object. `drop` and `shrink` are the caller's, afterwards. */
static int table_of(const json_t *list, const struct column *column, size_t columns, struct roll_columns *t)
{
    const char *heading[ROLL_COLUMNS_MAX];
    size_t i;
    json_t *one;
    *t = (struct roll_columns){.columns = columns};
    for (size_t c = 0; c < columns; c++) {
        heading[c] = column[c].heading;
        t->right |= (uint32_t)column[c].is_number << c;
        t->hide |= (uint32_t)(column[c].may_be_empty && !has_some(list, column[c].key)) << c;
    }
    int err = roll_columns_row(t, heading);
    json_array_foreach((json_t *)list, i, one)
    {
        char cell[ROLL_COLUMNS_MAX][ROLL_TOP_CELL];
        for (size_t c = 0; c < columns; c++) {
            column[c].text(one, column[c].key, cell[c]);
        }
        err = err == 0 ? roll_top_row(t, cell) : err;
    }
    return err;
}

/* One row for each family of communicators. */
static int families(const json_t *list, struct roll_columns *t)
{
    enum { MEMBERS = 4, MADE_AT, APART, COLUMNS };
    static const struct column columns[COLUMNS] = {
        {"COMM", "name", roll_top_any, false, false},
        {"GROUPS", "groups", roll_top_counted, true, false},
        {"BY ALL", "done", roll_top_counted, true, false},
        {"FURTHEST", "ahead", roll_top_counted, true, false},
        [MEMBERS] = {"MEMBERS", "text", roll_top_any, false, false},
        [MADE_AT] = {"MADE AT", "made_at", roll_top_any, false, true},
        [APART] = {"APART", "apart", roll_top_counted, true, true}, /* only digests tell it */
    };
    int err = table_of(list, columns, COLUMNS, t);
    bool apart = (t->hide >> APART & 1) == 0, made = (t->hide >> MADE_AT & 1) == 0;
    t->shrink = 1 + (apart || !made ? MEMBERS : MADE_AT);
    return err;
}

int roll_top_comms(const json_t *status, bool fold, struct roll_columns *t)
{
    enum { ROLE = 1, SEEN = 3, MEMBERS = 7, MADE_AT, KEY, COLUMNS };
    static const struct column columns[COLUMNS] = {
        {"COMM", "name", comm_name, false, false},
        [ROLE] = {"ROLE", "role", roll_top_any, false, false},
        {"SIZE", "size", roll_top_any, true, false},
        [SEEN] = {"SEEN", "seen", roll_top_any, true, false},
        {"BY ALL", "done", roll_top_counted, true, false},
        {"FURTHEST", "ahead", roll_top_counted, true, false},
        {"BEHIND", "behind", set_text, false, false},
        [MEMBERS] = {"MEMBERS", "members", set_text, false, false},
        [MADE_AT] = {"MADE AT", "made_at", roll_top_any, false, true},
        [KEY] = {"KEY", "key", roll_top_any, false, false},
    };
    const json_t *comms = json_object_get(status, "comms"), *list = json_object_get(status, "families");
    size_t n = json_array_size(comms);
    bool fewer = json_array_size(list) < n || n == 0;
    if ((fold || n > COMMS_MOST || n == 0) && json_array_size(list) > 0 && fewer) {
        return families(list, t);
    }
    int err = table_of(comms, columns, COLUMNS, t);
    const uint8_t drop[] = {KEY + 1, ROLE + 1, SEEN + 1, MADE_AT + 1};
    memcpy(t->drop, drop, sizeof(drop));
    t->shrink = MEMBERS + 1;
    return err;
}

/* What a verdict calls its communicator, without what the other columns tell. */
static void verdict_comm(const json_t *comm, char cell[ROLL_TOP_CELL])
{
    static const char *const words[] = {"communicator ", "the communicator of ", "the "};
    const char *name = roll_json_text(comm, "name", ""), *end = strstr(name, " (");
    roll_top_any(comm, roll_json_text(comm, "label", "")[0] != '\0' ? "label" : "key", cell);
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
    snprintf(cell, ROLL_TOP_CELL, "%.*s", end != NULL && end > name ? (int)(end - name) : ROLL_TOP_CELL - 1, name);
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
        char cell[9][ROLL_TOP_CELL], time[ROLL_TIME_BYTES];
        roll_top_any(v, "number", cell[0]);
        roll_time_text((uint64_t)roll_json_int(v, "time_ns", 0), time);
        snprintf(cell[1], ROLL_TOP_CELL, "%.12s",
                 time + 11); /* hours to milliseconds; the date is on the verdict itself */
        const json_t *by = roll_verdict_json_retired_by(verdicts, v);
        roll_top_any(v, "certainty", cell[2]);
        if (by != NULL) {
            snprintf(cell[2], ROLL_TOP_CELL, "%s", roll_verdict_json_makes(by));
        }
        roll_top_any(v, "code", cell[3]);
        roll_top_any(v, "culprits_text", cell[4]);
        roll_top_any(v, "waiting_text", cell[5]);
        const json_t *comm = json_object_get(v, "comm");
        verdict_comm(comm, cell[6]);
        /* A report of moe_core is no call on its communicator, so its verdict has no sequence number. */
        roll_top_any(strcmp(roll_json_text(v, "family", ""), "moe") == 0 ? NULL : v, "seq", cell[7]);
        roll_top_any(v, "title", cell[8]);
        err = err == 0 ? roll_top_row(t, cell) : err;
    }
    return err;
}
