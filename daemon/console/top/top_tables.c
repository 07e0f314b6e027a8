/*
 * top_tables.c: the tables of communicators, one by one or by families, and of verdicts.
 */
#include "daemon/console/top/top_cell.h"
#include "daemon/console/top/top_view.h"

#include "daemon/verdict/verdict_tally.h"
#include "trace/rankset.h"

#include <stdlib.h>
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

/* Whether some member of the list has a text under this key: a table without any has no column for it. */
static bool has_text(const json_t *list, const char *key)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)list, i, one)
    {
        if (json_is_string(json_object_get(one, key))) {
            return true;
        }
    }
    return false;
}

/* One row for each family of communicators. */
static int families(const json_t *list, struct roll_columns *t)
{
    static const char *const heading[] = {"COMM", "GROUPS", "BY ALL", "FURTHEST", "MEMBERS", "MADE AT", "APART"};
    size_t i;
    json_t *family;
    /* Only digests tell how far the members of one communicator are apart at most, and only jobs in Python where. */
    bool apart = json_object_get(json_array_get(list, 0), "apart") != NULL, made = has_text(list, "made_at");
    *t = (struct roll_columns){.columns = 7,
                               .right = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 6,
                               .hide = (made ? 0 : 1u << 5) | (apart ? 0 : 1u << 6),
                               .shrink = apart || !made ? 5 : 6};
    int err = roll_columns_row(t, heading);
    json_array_foreach((json_t *)list, i, family)
    {
        char cell[7][ROLL_TOP_CELL];
        roll_top_any(family, "name", cell[0]);
        roll_top_counted(family, "groups", cell[1]);
        roll_top_counted(family, "done", cell[2]);
        roll_top_counted(family, "ahead", cell[3]);
        roll_top_any(family, "text", cell[4]);
        roll_top_any(family, "made_at", cell[5]);
        roll_top_counted(family, "apart", cell[6]);
        err = err == 0 ? roll_top_row(t, cell) : err;
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
    *t = (struct roll_columns){.columns = 10,
                               .right = 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5,
                               .hide = has_text(comms, "made_at") ? 0 : 1u << 8,
                               .drop = {10, 2, 4, 9},
                               .shrink = 8};
    int err = roll_columns_row(t, heading);
    json_array_foreach((json_t *)comms, i, comm)
    {
        char cell[10][ROLL_TOP_CELL];
        snprintf(cell[0], ROLL_TOP_CELL, "%s", roll_top_comm_name(comm));
        roll_top_any(comm, "role", cell[1]);
        roll_top_any(comm, "size", cell[2]);
        roll_top_any(comm, "seen", cell[3]);
        roll_top_counted(comm, "done", cell[4]);
        roll_top_counted(comm, "ahead", cell[5]);
        set_text(comm, "behind", cell[6]);
        set_text(comm, "members", cell[7]);
        roll_top_any(comm, "made_at", cell[8]);
        roll_top_any(comm, "key", cell[9]);
        err = err == 0 ? roll_top_row(t, cell) : err;
    }
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
