/*
 * root_page.c: what the web page asks, and what it is told as it happens.
 *
 * A question is answered as a console's: the same queries, the same rights. What is told to listeners is made once for
 * all of them, only while somebody listens, and more rarely where it costs much: looking must not keep the root from
 * its work.
 */
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_NS      (1000 * ROLL_MS)
#define EVERY_MOST_NS (10000 * ROLL_MS)
#define COST_SHARE    100u /* what is told may take so small a part of the time */
#define FRESH_PART    10u  /* who has been told nothing waits for this part of the time between */
#define ASKS          8u   /* questions that are answered in one turn of the loop */

int roll_root_page_open(roll_root_t *root, char *why, size_t why_size)
{
    if (!root->o.http) {
        return 0;
    }
    why[0] = '\0';
    int err = roll_page_words(&root->page_words, why, why_size);
    err = err ? err : roll_page_new(root->page_words.viewer, root->page_words.operator_, &root->page);
    if (err == ROLL_E_NOMEM) {
        snprintf(why, why_size, "%s", roll_strerror(err));
        return err;
    }
    if (err) { /* the metrics, which need no password, are served all the same */
        roll_log(ROLL_LOG_WARNING, "root: no page: %s", why[0] != '\0' ? why : roll_strerror(err));
    }
    return 0;
}

int roll_root_page_fd(const roll_root_t *root)
{
    return root->page ? roll_page_fd(root->page) : -1;
}

/* Members of queries that are numbers; all others are texts. */
static bool is_number(const char *name)
{
    static const char *const names[] = {"restart", "from", "number",  "rank",  "rows",
                                        "layer",   "id",   "samples", "calls", "around_ms"};
    bool found = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        found = found || strcmp(name, names[i]) == 0;
    }
    return found;
}

static json_t *query_of(const struct roll_page_ask *ask)
{
    json_t *query = json_pack("{s:o}", "op", roll_text_to_json(ask->op));
    for (unsigned i = 0; query && i < ask->args; i++) {
        const char *name = ask->arg[i].name, *value = ask->arg[i].value;
        char *end;
        long long number = strtoll(value, &end, 10);
        bool whole = *value != '\0' && *end == '\0';
        if (strcmp(name, "op") != 0) {
            json_object_set_new(query, name,
                                is_number(name) && whole ? json_integer(number) : roll_text_to_json(value));
        }
    }
    return query;
}

static void answer(roll_root_t *root, const struct roll_page_ask *ask)
{
    struct roll_role role = {.denied = ROLL_DENY_REPORT | (ask->operates ? 0 : ROLL_DENY_SWITCH)};
    json_t *query = query_of(ask);
    /* A browser sends what it knows of passwords with any GET, whatever page asks: so this is a matter of the method,
     * and not of who asks. */
    bool refused = query && !ask->operates && roll_query_switches(query);
    json_t *reply = refused ? json_pack("{s:s,s:b}", "error",
                                        "this stops ranks or switches something: it is asked by POST, from the page "
                                        "itself, by the user operator (`rollcall page --operator`)",
                                        "unavailable", 1)
                    : query ? roll_query_answer(root, &role, query)
                            : NULL;
    char *text = reply ? json_dumps(reply, JSON_COMPACT) : NULL;
    roll_page_answer(root->page, ask->number, refused ? 403 : json_object_get(reply, "error") ? 400 : 200, text);
    json_decref(reply);
    json_decref(query);
}

void roll_root_page_answer(roll_root_t *root)
{
    struct roll_page_ask ask;
    for (unsigned i = 0; root->page && i < ASKS && roll_page_take(root->page, &ask); i++) {
        answer(root, &ask);
    }
}

static void publish(roll_root_t *root, const struct roll_page_topic *topic, enum roll_page_part part, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (text) {
        roll_page_publish(root->page, topic->id, part, text);
    }
    free(text);
    json_decref(json);
}

static void tell(roll_root_t *root, const struct roll_page_topic *topic)
{
    json_t *query = json_object(), *places, *field;
    if (topic->job[0] != '\0') {
        json_object_set_new(query, "job", roll_text_to_json(topic->job));
    }
    if (topic->restart != ROLL_PAGE_NEWEST) {
        json_object_set_new(query, "restart", json_integer((json_int_t)topic->restart));
    }
    struct roll_run *run = roll_run_select(root, query);
    json_decref(query);
    if (!run) {
        publish(root, topic, ROLL_PAGE_STATUS, json_pack("{s:n,s:I}", "run", "time_ns", (json_int_t)roll_real_ns()));
        return;
    }
    roll_page_field(run, &places, &field);
    publish(root, topic, ROLL_PAGE_PLACES, places);
    publish(root, topic, ROLL_PAGE_FIELD, field);
    publish(root, topic, ROLL_PAGE_FINDINGS, roll_page_findings(run));
    publish(root, topic, ROLL_PAGE_WAITS, roll_page_waits(root, run));
    publish(root, topic, ROLL_PAGE_STATUS, roll_status_json(root, run, 0));
}

void roll_root_page_tell(roll_root_t *root, uint64_t now)
{
    struct roll_page_topic topic;
    bool due = now - root->page_ns >= root->page_every_ns;
    bool soon = now - root->page_fresh_ns >= root->page_every_ns / FRESH_PART;
    uint64_t begin = roll_mono_ns();
    for (unsigned i = 0; root->page && i < ROLL_PAGE_TOPICS; i++) {
        if (roll_page_topic(root->page, i, &topic) && (due || (topic.fresh && soon))) {
            tell(root, &topic);
            root->page_fresh_ns = now;
        }
    }
    if (due) {
        uint64_t every = (roll_mono_ns() - begin) * COST_SHARE;
        root->page_ns = now;
        root->page_every_ns = every < EVERY_NS ? EVERY_NS : every < EVERY_MOST_NS ? every : EVERY_MOST_NS;
    }
}
