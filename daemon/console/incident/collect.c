/*
 * collect.c: what is asked of the root, in which order: first what the ranks overwrite (the tails of their rings), then
 * what stops them for a moment (stacks), and last what the root keeps in any case. A few tails are asked for at a time,
 * so that neither the root nor an agent has much of them to hold.
 */
#include "daemon/base/clock.h"
#include "daemon/console/incident/incident.h"
#include "daemon/console/text.h"
#include "trace/err.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT_A_TIME   6u /* tails that are asked for; a root keeps 16 */
#define POLL_MS     10
#define TAILS_NS    (60000 * ROLL_MS) /* most time for all tails */
#define STACKS_NS   (20000 * ROLL_MS) /* and for the stacks */
#define SETTLE_NS   (1500 * ROLL_MS)  /* behind the beginning, verdicts are asked for */
#define BUSY_NS     (20000 * ROLL_MS) /* most time for a root that has no room for a question */
#define BUSY_MS     50
#define STACK_RANKS 16u /* whose stacks are taken, of the ranks concerned */

struct wanted {
    uint32_t rank;
    int64_t id;        /* 0: not asked yet */
    bool done, waited; /* waited: the root had no room for the question, because others were asking */
};

/* Sends a question (takes it). *again: the root has no room for it now, because others are asking. */
static json_t *ask_once(struct roll_incident *i, json_t *query, int *err, bool *again)
{
    json_t *reply = NULL;
    if (query != NULL && i->o->link.job != NULL) {
        json_object_set_new(query, "job", json_string(i->o->link.job));
    }
    *err = query == NULL ? ROLL_E_NOMEM : roll_client_query(i->client, query, ROLL_CLIENT_TIMEOUT_MS, &reply);
    *again = *err == 0 && json_is_true(json_object_get(reply, "again"));
    return reply;
}

json_t *roll_incident_ask(struct roll_incident *i, json_t *query, const char *what)
{
    json_int_t asked = json_integer_value(json_object_get(query, "rank"));
    uint64_t end = roll_mono_ns() + BUSY_NS;
    bool again;
    int err;
    json_t *copy = json_deep_copy(query), *reply = ask_once(i, query, &err, &again);
    while (again && roll_mono_ns() < end) {
        json_decref(reply);
        poll(NULL, 0, BUSY_MS);
        reply = ask_once(i, json_deep_copy(copy), &err, &again);
    }
    json_decref(copy);
    const char *refused = err == 0 ? roll_json_text(reply, "error", NULL) : roll_strerror(err);
    if (refused != NULL) {
        if (what != NULL) {
            asked > 0 ? roll_bundle_left_out(&i->bundle, "%s %lld: %s", what, (long long)asked, refused)
                      : roll_bundle_left_out(&i->bundle, "%s: %s", what, refused);
        }
        json_decref(reply);
        return NULL;
    }
    return reply;
}

/* tails */

static void add_to_list(json_t *object, const char *key, uint32_t rank)
{
    json_t *list = json_object_get(object, key);
    if (list == NULL) {
        list = json_array();
        json_object_set_new(object, key, list);
    }
    json_array_append_new(list, json_integer(rank));
}

/* What the answer says besides the tail: of the node once, of the process for its rank. */
static void take_surroundings(struct roll_incident *i, uint32_t rank, const json_t *answer)
{
    const char *host = roll_json_text(answer, "host", "?"), *name;
    json_t *value, *path;
    size_t k;
    if (json_object_get(i->hosts, host) == NULL) {
        json_object_set_new(i->hosts, host,
                            json_pack("{s:O?, s:O?}", "software", json_object_get(answer, "software"), "log",
                                      json_object_get(answer, "log")));
    }
    json_t *variables = json_object_get(json_object_get(answer, "environment"), "variables");
    json_object_foreach(variables, name, value)
    {
        json_t *values = json_object_get(i->variables, name);
        if (values == NULL) {
            values = json_object();
            json_object_set_new(i->variables, name, values);
        }
        add_to_list(values, json_is_string(value) ? json_string_value(value) : "?", rank);
    }
    const char *why = roll_json_text(answer, "process_error", NULL);
    if ((variables == NULL || why != NULL) && json_object_get(answer, "error") == NULL) {
        roll_bundle_left_out(&i->bundle, "the environment and libraries of rank %u: %.300s", rank,
                             why != NULL ? why : "its process cannot be looked at any more");
    }
    json_array_foreach(json_object_get(answer, "libraries"), k, path)
    {
        add_to_list(i->libraries, json_is_string(path) ? json_string_value(path) : "?", rank);
    }
}

static void take_answer(struct roll_incident *i, uint32_t rank, const json_t *answer)
{
    char why[160];
    int err = roll_tails_add(&i->tails, rank, answer, why, sizeof(why));
    take_surroundings(i, rank, answer);
    if (err != 0) {
        roll_bundle_left_out(&i->bundle, "the last calls of rank %u: %s", rank, why);
    } else {
        (void)roll_rankset_add(&i->got, rank);
    }
}

/* Asks for one, or for the answer. Returns whether something has happened. */
static bool step(struct roll_incident *i, struct wanted *w, json_int_t records)
{
    json_t *query =
        w->id == 0 ? json_pack("{s:s, s:I, s:I}", "op", "incident", "rank", (json_int_t)w->rank, "records", records)
                   : json_pack("{s:s, s:I}", "op", "incident", "id", (json_int_t)w->id);
    bool moved = true, again;
    int err;
    json_t *reply = ask_once(i, query, &err, &again);
    const char *refused = err == 0 ? roll_json_text(reply, "error", NULL) : roll_strerror(err);
    if (again) { /* another bundle asks at the same time: it is this one's turn when the root has room */
        w->id = 0;
        w->waited = true;
        moved = false;
    } else if (refused != NULL) {
        roll_bundle_left_out(&i->bundle, "the last calls of rank %u: %s", w->rank, refused);
        w->done = true;
    } else if (w->id == 0) {
        w->id = roll_json_int(reply, "id", -1);
    } else if (json_is_true(json_object_get(reply, "done"))) {
        take_answer(i, w->rank, json_object_get(reply, "answer"));
        w->done = true;
    } else {
        moved = false;
    }
    json_decref(reply);
    return moved;
}

/* How many records of each rank fit, even if none of them could be packed. */
static json_int_t records_of(const struct roll_incident *i)
{
    uint64_t n = i->o->bytes / 2 / ROLL_RECORD_BYTES / (roll_rankset_count(&i->concerned) + 1);
    return (json_int_t)(n < 1 << 20 ? n : 1 << 20);
}

static int collect_tails(struct roll_incident *i)
{
    size_t n = roll_rankset_count(&i->concerned), begin = 0;
    struct wanted *w = calloc(n > 0 ? n : 1, sizeof(*w));
    uint64_t end = roll_mono_ns() + TAILS_NS;
    if (w == NULL) {
        return ROLL_E_NOMEM;
    }
    for (size_t k = 0; k < n; k++) {
        w[k].rank = roll_rankset_at(&i->concerned, k);
    }
    while (begin < n && roll_mono_ns() < end) {
        bool moved = false;
        size_t under_way = 0;
        for (size_t k = begin; k < n && under_way < AT_A_TIME; k++) {
            moved = (!w[k].done && step(i, &w[k], records_of(i))) || moved;
            under_way += !w[k].done;
        }
        while (begin < n && w[begin].done) {
            begin++;
        }
        if (!moved) {
            poll(NULL, 0, POLL_MS);
        }
    }
    for (size_t k = begin; k < n; k++) {
        if (!w[k].done) {
            roll_bundle_left_out(&i->bundle, "the last calls of rank %u: there was no time for them%s", w[k].rank,
                                 w[k].waited ? ", others were asking at the same time" : "");
        }
    }
    i->taken_ns = roll_now_real_ns();
    free(w);
    return 0;
}

/* stacks */

static void collect_stacks(struct roll_incident *i)
{
    struct roll_rankset some = {0};
    char text[512];
    for (size_t k = 0; k < roll_rankset_count(&i->concerned) && k < STACK_RANKS; k++) {
        (void)roll_rankset_add(&some, roll_rankset_at(&i->concerned, k));
    }
    size_t left = roll_rankset_count(&i->concerned) - roll_rankset_count(&some);
    (void)roll_rankset_format(&some, text, sizeof(text));
    roll_rankset_fini(&some);
    if (i->o->no_stacks || text[0] == '\0') {
        roll_bundle_left_out(&i->bundle, "stacks: %s",
                             i->o->no_stacks ? "--no-stacks was given" : "no rank was chosen");
        return;
    }
    json_t *reply = roll_incident_ask(
        i, json_pack("{s:s, s:s, s:i, s:i}", "op", "stacks", "ranks", text, "samples", 2, "interval_ms", 100),
        "stacks");
    int64_t id = roll_json_int(reply, "id", 0);
    uint64_t end = roll_mono_ns() + STACKS_NS;
    bool done = reply == NULL;
    i->stacks = done ? NULL : json_array();
    json_decref(reply);
    while (!done && roll_mono_ns() < end) {
        reply = roll_incident_ask(i,
                                  json_pack("{s:s, s:I, s:I}", "op", "stacks", "id", (json_int_t)id, "from",
                                            (json_int_t)json_array_size(i->stacks)),
                                  "stacks");
        done = reply == NULL || json_is_true(json_object_get(reply, "done"));
        json_array_extend(i->stacks, json_object_get(reply, "answers"));
        json_decref(reply);
        if (!done) {
            poll(NULL, 0, POLL_MS);
        }
    }
    if (left > 0) {
        roll_bundle_left_out(&i->bundle, "stacks of %zu other ranks: rollcall stacks RANKS takes them", left);
    }
}

/* all of it */

static json_t *ask_verdicts(struct roll_incident *i)
{
    return roll_incident_ask(i, json_pack("{s:s, s:I}", "op", "verdicts", "from", (json_int_t)0), "verdicts");
}

static json_t *ask_status(struct roll_incident *i)
{
    return roll_incident_ask(i, json_pack("{s:s}", "op", "status"), "status");
}

static void settle(const struct roll_incident *i)
{
    uint64_t passed = roll_mono_ns() - i->begin_ns;
    if (i->o->settle && passed < SETTLE_NS) {
        poll(NULL, 0, (int)((SETTLE_NS - passed) / ROLL_MS));
    }
}

int roll_incident_collect(struct roll_incident *i)
{
    i->begin_ns = roll_mono_ns();
    json_t *verdicts = ask_verdicts(i), *status = ask_status(i);
    int err = roll_incident_choose(json_object_get(verdicts, "verdicts"), status, i->o->ranks, &i->concerned);
    json_decref(verdicts);
    json_decref(status);
    err = err != 0 ? err : collect_tails(i);
    if (err == 0) {
        collect_stacks(i);
        settle(i);
        i->verdicts = ask_verdicts(i);
        i->status = ask_status(i);
        i->why = roll_incident_ask(i, json_pack("{s:s}", "op", "why"), "why");
        i->about = roll_incident_ask(i, json_pack("{s:s}", "op", "incident"), "what the root says of itself");
        i->run = json_object_get(i->verdicts, "run");
    }
    if (err == 0 && i->verdicts == NULL) {
        roll_say("%s: does not answer any more; no bundle is written", roll_client_endpoint(i->client));
        return ROLL_EXIT_UNREACHABLE;
    }
    if (err != 0) {
        roll_say("no bundle is written: %s", roll_strerror(err));
    }
    return err != 0 ? ROLL_EXIT_UNREACHABLE : 0;
}
