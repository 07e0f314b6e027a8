/*
 * report_fold.c: the tables of a rehearsal's report with a row for each family of communicators. The JSON has all of
 * them; a table of 2,048 groups of one thing tells nobody anything. Few groups are not folded: each then has its
 * members and how it was made in its row.
 */
#include "daemon/base/json.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/text.h"

#include <stdio.h>
#include <string.h>

#define FEW 4 /* groups of a family that have a row each */

/* How it was made, without what differs from sibling to sibling: "CommSplit of world, color 0 at job.c:12 main". */
static json_t *made_alike(const json_t *comm)
{
    const char *made = roll_json_text(comm, "made", ""), *color = strstr(made, ", color ");
    const char *rest = color != NULL ? color + strlen(", color ") : "";
    rest += strspn(rest, "-0123456789");
    return color != NULL ? json_sprintf("%.*s%s", (int)(color - made), made, rest) : json_string(made);
}

/* Adds to a row what another communicator of its family did, by operation: the most of all, and the least. */
static void add_calls(json_t *row, const json_t *calls, bool first)
{
    json_t *sums = json_object_get(row, "calls"), *call, *sum;
    size_t i, k;
    json_array_foreach(sums, k, sum)
    {
        bool found = false;
        json_array_foreach((json_t *)calls, i, call)
        {
            found = found || strcmp(roll_json_text(call, "op", ""), roll_json_text(sum, "op", "")) == 0;
        }
        if (!found) {
            json_object_set_new(sum, "calls_least", json_integer(0));
        }
    }
    json_array_foreach((json_t *)calls, i, call)
    {
        json_t *same = NULL;
        json_array_foreach(sums, k, sum)
        {
            same = strcmp(roll_json_text(call, "op", ""), roll_json_text(sum, "op", "")) == 0 ? sum : same;
        }
        if (same == NULL) {
            same = json_deep_copy(call);
            if (!first) {
                json_object_set_new(same, "calls_least", json_integer(0));
            }
            json_array_append_new(sums, same);
            continue;
        }
        int64_t least = roll_json_int(call, "calls_least", 0);
        least = least < roll_json_int(same, "calls_least", 0) ? least : roll_json_int(same, "calls_least", 0);
        if (roll_json_int(call, "calls", 0) > roll_json_int(same, "calls", 0)) {
            json_object_update(same, (json_t *)call);
        }
        json_object_set_new(same, "calls_least", json_integer(least));
    }
}

json_t *roll_rehearse_fold(const json_t *report, json_t **numbers)
{
    const json_t *comms = json_object_get(report, "communicators"), *families = json_object_get(report, "families");
    json_t *rows = json_array(), *row_of = json_object(), *comm;
    size_t i;
    *numbers = json_array();
    json_array_foreach((json_t *)comms, i, comm)
    {
        int64_t number = roll_json_int(comm, "family", 0);
        const json_t *family = number > 0 ? json_array_get(families, (size_t)number - 1) : NULL;
        char key[24];
        snprintf(key, sizeof(key), "%lld", (long long)number);
        bool folds = family != NULL && roll_json_int(family, "groups", 1) > FEW;
        json_t *row = folds ? json_object_get(row_of, key) : NULL;
        if (row == NULL) {
            row = json_copy(comm);
            json_object_set_new(row, "number", json_integer((json_int_t)i + 1));
            json_array_append_new(rows, row);
            if (folds) {
                json_object_set(row_of, key, row);
                json_object_set(row, "name", json_object_get(family, "name"));
                json_object_set(row, "ranks", json_object_get(family, "text"));
                json_object_set_new(row, "made", made_alike(comm));
                json_object_set_new(row, "calls", json_array());
                json_object_del(row, "of");
                add_calls(row, json_object_get(comm, "calls"), true);
            }
        } else {
            add_calls(row, json_object_get(comm, "calls"), false);
        }
        json_array_append(*numbers, json_object_get(row, "number"));
    }
    json_decref(row_of);
    return rows;
}
