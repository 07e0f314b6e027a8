/*
 * choose.c: whose last calls go into a bundle. All of 16,384 ranks would be gigabytes, and no part of them at random
 * shows a mistake; so those are taken that the findings name, and of those who only wait as many as there is room for:
 * they stand alike.
 */
#include "daemon/console/incident/incident.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <string.h>

/* Adds ranks of a list until there are `most`. */
static int add(struct roll_rankset *out, const json_t *ranks, uint32_t most)
{
    size_t i;
    json_t *rank;
    int err = 0;
    json_array_foreach(ranks, i, rank)
    {
        json_int_t n = json_integer_value(rank);
        if (err == 0 && json_is_integer(rank) && n >= 0 && n < (1 << 24) && roll_rankset_count(out) < most) {
            err = roll_rankset_add(out, (uint32_t)n);
        }
    }
    return err;
}

/* Whether a later verdict has taken this one's place. */
static bool is_ended(const json_t *verdicts, const json_t *verdict)
{
    static const char *const by[] = {"supersedes", "confirms", "withdraws"};
    int64_t number = roll_json_int(verdict, "number", -1);
    size_t i;
    json_t *one;
    json_array_foreach(verdicts, i, one)
    {
        for (size_t k = 0; k < sizeof(by) / sizeof(by[0]); k++) {
            if (roll_json_int(one, by[k], 0) == number) {
                return true;
            }
        }
    }
    return false;
}

static bool stands(const json_t *verdicts, const json_t *verdict)
{
    return strcmp(roll_json_text(verdict, "certainty", "note"), "note") != 0 && !is_ended(verdicts, verdict);
}

static int add_evidence(struct roll_rankset *out, const json_t *verdict, uint32_t most)
{
    size_t i;
    json_t *side;
    int err = 0;
    json_array_foreach(json_object_get(verdict, "evidence"), i, side)
    {
        err = err != 0 ? err : add(out, json_object_get(side, "ranks"), most);
    }
    return err;
}

static int add_numbered(const json_t *rows, struct roll_rankset *out, uint32_t most, bool only_inside)
{
    size_t i;
    json_t *row;
    int err = 0;
    json_array_foreach(rows, i, row)
    {
        bool inside = json_is_true(json_object_get(row, "in_call")) || roll_row_pending(row) > 0;
        int64_t rank = roll_json_int(row, "rank", -1);
        if (err == 0 && rank >= 0 && rank < (1 << 24) && (inside || !only_inside) && roll_rankset_count(out) < most) {
            err = roll_rankset_add(out, (uint32_t)rank);
        }
    }
    return err;
}

int roll_incident_choose(const json_t *verdicts, const json_t *status, uint32_t most, struct roll_rankset *out)
{
    const json_t *ranks = json_object_get(status, "ranks"), *groups = json_object_get(status, "groups");
    int64_t all = roll_json_int(json_object_get(status, "summary"), "ranks", 0);
    int err = 0;
    if (all <= (int64_t)most && json_array_size(ranks) > 0) {
        return add_numbered(ranks, out, most, false);
    }
    for (int pass = 0; pass < 3 && err == 0; pass++) { /* culprits of all findings come before the sides of any */
        for (size_t i = json_array_size(verdicts); i-- > 0 && err == 0;) {
            const json_t *verdict = json_array_get(verdicts, i);
            if (stands(verdicts, verdict)) {
                err = pass == 0   ? add(out, json_object_get(verdict, "culprits"), most)
                      : pass == 1 ? add_evidence(out, verdict, most)
                                  : add(out, json_object_get(verdict, "waiting"), most);
            }
        }
    }
    err = err != 0 || out->used > 0 ? err : add_numbered(ranks, out, most, true);
    err = err != 0 || out->used > 0 ? err : add_numbered(groups, out, most, false); /* one of each that stand alike */
    return err != 0 || out->used > 0 ? err : add_numbered(ranks, out, most, false);
}
