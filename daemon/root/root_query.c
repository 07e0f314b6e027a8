/*
 * root_query.c: consoles: queries, pushed verdicts, drains.
 *
 * The root remembers a console's routing id only as long as the console waits for something (a drain, verdicts). Each
 * subscriber has a cursor into the run's list of verdicts, so a subscriber that reads slowly delays only itself.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/feed/seen.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WAITING  256 /* most subscribers, and most drains, at a time */
#define DRAIN_MS     5000
#define DRAIN_MAX_MS 600000

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

/* What was asked is in order, and there is nothing here that could answer it: not now, not here, or not for this key.
 */
static json_t *unavailable(const char *text)
{
    return json_pack("{s:s,s:b}", "error", text, "unavailable", 1);
}

/* An answer that no message can hold is replaced by a word about it: the one who asked would wait for it in vain. */
static void reply(const struct roll_address *to, uint64_t seq, json_t *json)
{
    struct roll_frame_head head = {.type = ROLL_FRAME_REPLY, .seq = seq};
    int err = json ? roll_net_send_json(to->socket, to->id, to->bytes, &head, json) : 0;
    json_decref(json);
    json_t *why = err == ROLL_E_SIZE || err == ROLL_E_NOMEM
                      ? error(err == ROLL_E_SIZE ? "the answer is larger than a message may be: ask about less"
                                                 : "there is no memory for the answer")
                      : NULL;
    if (why) {
        roll_net_send_json(to->socket, to->id, to->bytes, &head, why);
    }
    json_decref(why);
}

static json_t *verdicts(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    (void)root;
    const json_t *one = json_object_get(query, "number");
    uint64_t from = (uint64_t)json_integer_value(one ? one : json_object_get(query, "from"));
    uint64_t last = one ? from : UINT64_MAX;
    json_t *list = json_array();
    for (size_t i = 0; i < run->verdicts.used; i++) {
        const struct roll_verdict_copy *verdict = run->verdicts.at[i];
        uint64_t number = verdict->said.number;
        if (number >= from && number <= last && json_array_append_new(list, roll_verdict_to_json(verdict)) != 0) {
            roll_run_lose_verdict(run, verdict->said.number, "is not in an answer: there is no memory");
        }
    }
    return json_pack("{s:o}", "verdicts", list);
}

/* All runs that are watched, or those of one job; the newest stands last. */
static json_t *runs(const roll_root_t *root, const char *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < root->runs_used; i++) {
        if (!job || !job[0] || strcmp(job, root->runs[i]->job) == 0) {
            json_array_append_new(list, roll_about_json(root->runs[i]));
        }
    }
    return list;
}

static bool holds_text(const json_t *list, const char *text)
{
    bool held = false;
    for (size_t i = 0; i < json_array_size(list) && !held; i++) {
        held = strcmp(json_string_value(json_array_get(list, i)), text) == 0;
    }
    return held;
}

/* Adds to an answer which other jobs could have been meant, where the query names none: first those of which a rank
 * runs, and how many these are. */
static void add_others(const roll_root_t *root, const struct roll_run *run, const json_t *query, json_t *answer)
{
    json_t *others = json_array();
    json_int_t live = 0;
    for (unsigned pass = 0; pass < 2 && !json_object_get(query, "job"); pass++) {
        for (size_t i = root->runs_used; i-- > 0;) {
            const struct roll_run *other = root->runs[i];
            if (roll_run_live(other) == (pass == 0) && strcmp(other->job, run->job) != 0 &&
                !holds_text(others, other->job)) {
                json_array_append_new(others, json_string(other->job));
                live += pass == 0;
            }
        }
    }
    json_object_set_new(answer, "other_jobs", others);
    json_object_set_new(answer, "other_jobs_live", json_integer(live));
}

/* Adds to an answer which run gave it, unless the answer says so itself, and the other jobs. */
static json_t *signed_by(const roll_root_t *root, const struct roll_run *run, const json_t *query, json_t *answer)
{
    if (answer && !json_object_get(answer, "error")) {
        if (!json_object_get(answer, "run")) {
            json_object_set_new(answer, "run", roll_about_json(run));
        }
        add_others(root, run, query, answer);
    }
    return answer;
}

static json_t *status(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *rows = json_object_get(query, "rows");
    json_int_t n = json_is_integer(rows) ? json_integer_value(rows) : ROLL_STATUS_ROWS;
    return roll_status_json(root, run, n < 0 ? 0 : n > ROLL_STATUS_ROWS ? ROLL_STATUS_ROWS : (size_t)n);
}

/* The jobs that there are, for who asks for another one. Borrowed until the next call. */
static const char *no_such_job(const roll_root_t *root)
{
    static char text[1024];
    size_t used = (size_t)snprintf(text, sizeof(text), "no such job here");
    for (size_t i = 0; i < root->runs_used && used < sizeof(text); i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s %s", i == 0 ? "; those here:" : ",",
                                 root->runs[i]->job);
    }
    return text;
}

/* subscribe */

static json_t *subscribe(roll_root_t *root, const struct roll_address *from, const json_t *query)
{
    if (root->subscribers_used >= MAX_WAITING ||
        ROLL_GROW(root->subscribers, root->subscribers_room, root->subscribers_used + 1) != 0) {
        return unavailable("too many subscribers");
    }
    for (size_t i = 0; i < root->subscribers_used; i++) {
        const struct roll_address *at = &root->subscribers[i].at;
        if (at->socket == from->socket && at->bytes == from->bytes && memcmp(at->id, from->id, at->bytes) == 0) {
            return json_pack("{s:b,s:o}", "subscribed", 1, "runs",
                             runs(root, json_string_value(json_object_get(query, "job"))));
        }
    }
    struct roll_subscriber *s = &root->subscribers[root->subscribers_used++];
    *s = (struct roll_subscriber){.at = *from, .from = (uint64_t)json_integer_value(json_object_get(query, "from"))};
    const char *job = json_string_value(json_object_get(query, "job"));
    strncpy(s->job, job ? job : "", sizeof(s->job) - 1);
    return json_pack("{s:b,s:o}", "subscribed", 1, "runs", runs(root, s->job));
}

static struct roll_cursor *cursor_of(struct roll_subscriber *s, uint64_t run)
{
    for (size_t i = 0; i < s->used; i++) {
        if (s->cursor[i].run == run) {
            return &s->cursor[i];
        }
    }
    if (ROLL_GROW(s->cursor, s->room, s->used + 1) != 0) {
        return NULL;
    }
    s->cursor[s->used] = (struct roll_cursor){.run = run};
    return &s->cursor[s->used++];
}

/* Sends one verdict to a subscriber. Errors: BUSY (the subscriber reads slowly: the text waits at the cursor),
 * UNREACHABLE (the subscriber is gone), and whatever else keeps this verdict from being sent at all. */
static int push_one(const struct roll_subscriber *s, struct roll_cursor *cursor,
                    const struct roll_verdict_copy *verdict)
{
    cursor->text = cursor->text ? cursor->text : roll_verdict_to_text(verdict);
    if (!cursor->text) {
        return ROLL_E_NOMEM;
    }
    struct roll_frame_head head = {.type = ROLL_FRAME_VERDICT, .seq = verdict->said.number};
    int err = roll_net_send(s->at.socket, s->at.id, s->at.bytes, &head, cursor->text, strlen(cursor->text));
    if (err != ROLL_E_BUSY) {
        free(cursor->text);
        cursor->text = NULL;
    }
    return err;
}

/* False when the subscriber is gone. A verdict that cannot be sent is skipped: those behind it must not wait for it. */
static bool push(struct roll_subscriber *s, struct roll_run *run)
{
    struct roll_cursor *cursor = cursor_of(s, run->id);
    for (; cursor && cursor->next < run->verdicts.used; cursor->next++) {
        const struct roll_verdict_copy *verdict = run->verdicts.at[cursor->next];
        int err = verdict->said.number >= s->from ? push_one(s, cursor, verdict) : 0;
        if (err == ROLL_E_BUSY) {
            return true;
        }
        if (err == ROLL_E_UNREACHABLE) {
            return false;
        }
        if (err) {
            roll_run_lose_verdict(run, verdict->said.number, "is not sent to a subscriber");
        }
    }
    return true;
}

void roll_subscriber_fini(struct roll_subscriber *s)
{
    for (size_t i = 0; i < s->used; i++) {
        free(s->cursor[i].text);
    }
    free(s->cursor);
}

void roll_push_verdicts(roll_root_t *root)
{
    for (size_t i = root->subscribers_used; i-- > 0;) {
        struct roll_subscriber *s = &root->subscribers[i];
        bool here = true;
        for (size_t r = 0; r < root->runs_used && here; r++) {
            struct roll_run *run = root->runs[r];
            if (s->job[0] == '\0' || strcmp(s->job, run->job) == 0) {
                here = push(s, run);
            }
        }
        if (!here) {
            roll_subscriber_fini(s);
            *s = root->subscribers[--root->subscribers_used];
        }
    }
}

/* drain */

static json_t *begin_drain(roll_root_t *root, const struct roll_address *from, uint64_t seq, const json_t *query)
{
    if (root->drains_used >= MAX_WAITING || ROLL_GROW(root->drains, root->drains_room, root->drains_used + 1) != 0) {
        return unavailable("too many drains at a time");
    }
    const json_t *timeout = json_object_get(query, "timeout_ms");
    json_int_t ms = json_is_integer(timeout) ? json_integer_value(timeout) : DRAIN_MS;
    ms = ms < 0 ? 0 : (ms > DRAIN_MAX_MS ? DRAIN_MAX_MS : ms);
    struct roll_drain *d = &root->drains[root->drains_used++];
    *d = (struct roll_drain){.at = *from,
                             .seq = seq,
                             .token = ++root->token,
                             .deadline_ns = roll_mono_ns() + (uint64_t)ms * ROLL_MS,
                             .final = json_is_true(json_object_get(query, "final"))};
    const char *job = json_string_value(json_object_get(query, "job"));
    strncpy(d->job, job ? job : "", sizeof(d->job) - 1);
    return NULL;
}

/* Has every agent sent what its rings held when it was asked? Agents that were not asked yet are asked here. */
static bool all_drained(roll_root_t *root, const struct roll_drain *d)
{
    bool all = true, any = false;
    for (size_t i = 0; i < root->peers_used; i++) {
        struct roll_peer *peer = root->peers[i];
        if (peer->gone) {
            continue;
        }
        any = true;
        if (peer->synced && peer->drain_sent < d->token) {
            struct roll_frame_head head = {.type = ROLL_FRAME_HEARTBEAT, .first = d->token};
            if (roll_net_send(peer->at.socket, peer->at.id, peer->at.bytes, &head, NULL, 0) == 0) {
                peer->drain_sent = d->token;
            }
        }
        all = all && peer->drain_echo >= d->token;
    }
    return any && all;
}

/* The runs that are compared by digests are looked at once more: everything that the agents had is here. Returns
 * whether records are on their way that have to be judged, too. */
static bool looks_on(roll_root_t *root, uint64_t now)
{
    bool waits = false;
    for (size_t i = 0; i < root->runs_used; i++) {
        roll_digested_look(root, root->runs[i], now, true);
        waits = waits || roll_digested_waits(root->runs[i]);
    }
    return waits;
}

static void finish_drain(roll_root_t *root, const struct roll_drain *d, bool drained)
{
    json_t *job = d->job[0] ? json_pack("{s:s}", "job", d->job) : NULL;
    struct roll_run *run = roll_run_select(root, job);
    json_decref(job);
    uint64_t now = roll_mono_ns();
    for (size_t i = 0; i < root->runs_used; i++) {
        if (d->job[0] == '\0' || root->runs[i] == run) {
            roll_run_tick(root, root->runs[i], now, d->final);
        }
    }
    roll_push_verdicts(root);
    reply(&d->at, d->seq,
          json_pack("{s:b,s:o,s:o*}", "drained", (int)drained, "summary", run ? roll_summary_json(run) : json_null(),
                    "seen",
                    !run            ? NULL
                    : run->digested ? roll_fronts_seen(run)
                                    : roll_feed_seen(roll_run_judge(run))));
}

void roll_serve_drains(roll_root_t *root, uint64_t now)
{
    for (size_t i = root->drains_used; i-- > 0;) {
        struct roll_drain *d = &root->drains[i];
        bool drained = all_drained(root, d) && !looks_on(root, now);
        if (drained || now >= d->deadline_ns) {
            struct roll_drain done = *d;
            *d = root->drains[--root->drains_used];
            finish_drain(root, &done, drained);
        }
    }
}

/* dispatch */

static const struct {
    const char *op;
    json_t *(*answer)(roll_root_t *root, struct roll_run *run, const json_t *query);
    bool is_signed;
} table[] = {
    {"status", status, true},
    {"why", roll_why_query, true},
    {"verdicts", verdicts, true},
    {"remedy", roll_remedy_query, false},
    {"policy", roll_policy_query, false},
    {"nodes", roll_nodes_query, false},
    {"stacks", roll_stacks_query, false},
    {"calls", roll_calls_query, false},
    {"source", roll_source_query, false},
    {"incident", roll_incident_query, false},
};

bool roll_query_switches(const json_t *query)
{
    const char *op = json_string_value(json_object_get(query, "op"));
    op = op ? op : "";
    const char *action = json_string_value(json_object_get(query, "action"));
    return strcmp(op, "policy") == 0 || (strcmp(op, "remedy") == 0 && !(action && strcmp(action, "list") == 0)) ||
           (strcmp(op, "stacks") == 0 && !json_object_get(query, "id")) || strcmp(op, "incident") == 0 ||
           (strcmp(op, "drain") == 0 && json_is_true(json_object_get(query, "final")));
}

static const char *denied(const struct roll_role *role, const json_t *query)
{
    return role->denied & ROLL_DENY_ASK ? "this key may not ask, it is for ranks: take one with the role viewer or "
                                          "operator (`rollcall keygen --role viewer "
                                          "--name NAME DIR`)"
           : role->denied & ROLL_DENY_SWITCH && roll_query_switches(query)
               ? "this key may not do that, it is for looking: stacks, which stop a rank for a moment, and all that "
                 "switches something need the role operator "
                 "(`rollcall keygen --role operator --name NAME DIR`)"
               : NULL;
}

json_t *roll_query_answer(roll_root_t *root, const struct roll_role *role, const json_t *query)
{
    const char *op = json_string_value(json_object_get(query, "op"));
    if (!op) {
        return error("a query is a JSON object with the member op");
    }
    if (denied(role, query)) {
        return unavailable(denied(role, query));
    }
    if (strcmp(op, "runs") == 0) {
        return json_pack("{s:o}", "runs", runs(root, json_string_value(json_object_get(query, "job"))));
    }
    if (strcmp(op, "page") == 0) {
        return roll_page_query(root);
    }
    struct roll_run *run = roll_run_select(root, query);
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        if (strcmp(op, table[i].op) == 0) {
            json_t *answer = run ? table[i].answer(root, run, query)
                                 : unavailable(json_object_get(query, "job") ? no_such_job(root)
                                                                             : "no run yet: no rank has been seen");
            return run && table[i].is_signed ? signed_by(root, run, query, answer) : answer;
        }
    }
    return error("unknown op");
}

void roll_query(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame)
{
    json_t *query = roll_net_json(frame);
    const char *op = json_string_value(json_object_get(query, "op"));
    bool later = op && !denied(&from->role, query);
    json_t *answer;
    if (later && strcmp(op, "subscribe") == 0) {
        answer = subscribe(root, from, query);
    } else if (later && strcmp(op, "drain") == 0) {
        answer = begin_drain(root, from, frame->head.seq, query);
    } else {
        answer = roll_query_answer(root, &from->role, query);
        later = false;
    }
    json_decref(query);
    if (!later || answer) {
        reply(from, frame->head.seq, answer);
    }
}
