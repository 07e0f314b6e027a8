/*
 * verdict_tally.c: counts the findings that stand.
 *
 * The tally takes verdicts of this process typed and those of another process as JSON, so that the daemon, the consoles
 * and the analyzer count alike. Findings are few, so a plain list is searched; a count that goes up and down without
 * knowing which verdicts it holds was rejected: a console that subscribes late sees withdrawals of verdicts that it
 * never saw.
 */
#include "daemon/verdict/verdict_tally.h"

#include "daemon/base/array.h"

#include <stdlib.h>
#include <string.h>

/* What the tally needs to know of a verdict. Borrows. */
struct life {
    const char *job;
    uint32_t restart;
    uint64_t number, retires; /* retires: the earlier verdict that this one ends; 0 = none */
    bool is_finding;
};

static const struct way {
    const char *member, *done;
} ways[] = {
#define WAY(member, does, done) {#member, done},
#include "daemon/verdict/life.def"
};

/* How the verdict ends an earlier one, whose number goes into *number; NULL: it ends none. */
static const struct way *way_of(const json_t *verdict, uint64_t *number)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        json_int_t n = json_integer_value(json_object_get(verdict, ways[i].member));
        if (n > 0) {
            *number = (uint64_t)n;
            return &ways[i];
        }
    }
    *number = 0;
    return NULL;
}

uint64_t roll_verdict_json_retires(const json_t *verdict)
{
    uint64_t number;
    (void)way_of(verdict, &number);
    return number;
}

const char *roll_verdict_json_makes(const json_t *verdict)
{
    uint64_t number;
    const struct way *way = way_of(verdict, &number);
    return way ? way->done : "ended";
}

bool roll_verdict_json_is_finding(const json_t *verdict)
{
    const char *certainty = json_string_value(json_object_get(verdict, "certainty"));
    return certainty != NULL && strcmp(certainty, "note") != 0;
}

static uint64_t number_of(const json_t *verdict)
{
    json_int_t number = json_integer_value(json_object_get(verdict, "number"));
    return number > 0 ? (uint64_t)number : 0;
}

static const char *job_of(const json_t *verdict)
{
    const char *job = json_string_value(json_object_get(verdict, "job"));
    return job != NULL ? job : "";
}

static uint32_t restart_of(const json_t *verdict)
{
    return (uint32_t)json_integer_value(json_object_get(verdict, "restart"));
}

const json_t *roll_verdict_json_retired_by(const json_t *list, const json_t *verdict)
{
    uint64_t number = number_of(verdict);
    bool finding = roll_verdict_json_is_finding(verdict);
    for (size_t i = json_array_size(list); i-- > 0 && finding;) {
        const json_t *other = json_array_get(list, i);
        if (other == verdict) {
            break; /* only a later verdict can end this one */
        }
        if (number != 0 && roll_verdict_json_retires(other) == number && restart_of(other) == restart_of(verdict) &&
            strcmp(job_of(other), job_of(verdict)) == 0) {
            return other;
        }
    }
    return NULL;
}

static const char *text_of(const json_t *verdict, const char *member)
{
    const char *text = json_string_value(json_object_get(verdict, member));
    return text != NULL ? text : "";
}

bool roll_verdict_json_is_new(json_t *heard, const json_t *verdict)
{
    /* Both are as long as they have to be: the name of a job is the site's, and thousands of ranks take long to list.
     */
    json_t *key =
        json_sprintf("%s.%u.%llu", job_of(verdict), restart_of(verdict), (unsigned long long)number_of(verdict));
    json_t *words = json_sprintf("%s %s %s", text_of(verdict, "code"), text_of(verdict, "certainty"),
                                 text_of(verdict, "culprits_text"));
    const json_t *before = key != NULL ? json_object_get(heard, json_string_value(key)) : NULL;
    bool is_known = before != NULL && json_equal(before, words);
    if (!is_known && key != NULL && words != NULL) {
        json_object_set(heard, json_string_value(key), words);
    }
    json_decref(key);
    json_decref(words);
    return !is_known;
}

/* The row of verdict `number` of this run; NULL = none. */
static struct roll_tally_row *find(struct roll_tally *tally, const struct life *life, uint64_t number)
{
    for (size_t i = 0; i < tally->used; i++) {
        struct roll_tally_row *row = &tally->row[i];
        if (row->number == number && row->restart == life->restart && strcmp(row->job, life->job) == 0) {
            return row;
        }
    }
    return NULL;
}

static void add(struct roll_tally *tally, const struct life *life)
{
    struct roll_tally_row *old = life->retires != 0 ? find(tally, life, life->retires) : NULL;
    if (old != NULL) {
        free(old->job);
        *old = tally->row[--tally->used];
    }
    if (!life->is_finding || find(tally, life, life->number) != NULL) {
        return;
    }
    char *copy = strdup(life->job);
    if (copy == NULL || ROLL_GROW(tally->row, tally->room, tally->used + 1) != 0) {
        free(copy);
        tally->full = true;
        return;
    }
    tally->row[tally->used++] = (struct roll_tally_row){.job = copy, .restart = life->restart, .number = life->number};
}

void roll_tally_add(struct roll_tally *tally, const struct roll_verdict_copy *verdict)
{
    const struct life life = {.job = verdict->job,
                              .restart = verdict->restart,
                              .number = verdict->said.number,
                              .retires = roll_verdict_retires(&verdict->said),
                              .is_finding = roll_verdict_is_finding(&verdict->said)};
    add(tally, &life);
}

void roll_tally_add_json(struct roll_tally *tally, const json_t *verdict)
{
    const struct life life = {.job = job_of(verdict),
                              .restart = restart_of(verdict),
                              .number = number_of(verdict),
                              .retires = roll_verdict_json_retires(verdict),
                              .is_finding = roll_verdict_json_is_finding(verdict)};
    add(tally, &life);
}

uint64_t roll_tally_findings(const struct roll_tally *tally)
{
    return tally->used + tally->full;
}

void roll_tally_fini(struct roll_tally *tally)
{
    for (size_t i = 0; i < tally->used; i++) {
        free(tally->row[i].job);
    }
    free(tally->row);
    *tally = (struct roll_tally){.row = NULL};
}
