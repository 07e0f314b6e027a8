/*
 * root_query.c: consoles: queries, pushed verdicts, drains.
 *
 * The root remembers a console's routing id only as long as the console waits for something (a drain, verdicts). Each
 * subscriber has a cursor into the run's list of verdicts, so a subscriber that reads slowly delays only itself.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/feed/seen.h"
#include "daemon/verdict/verdict_json.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WAITING  256 /* most subscribers, and most drains, at a time */
#define DRAIN_MS     5000
#define DRAIN_MAX_MS 600000
#define WHY_BYTES    4096
#define WHY_RANKS    256 /* entries of single ranks in an answer to why */
#define WHY_GROUPS   10u /* paragraphs: a screen */

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
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

/* why, verdicts */

/* Ranks that stand alike and for which the same verdict is the reason share one paragraph. */
struct why_group {
    const struct roll_verdict_copy *verdict;
    struct roll_rankset ranks;
};

struct why_answer {
    struct why_group *group;
    size_t groups, room;
    struct roll_map at; /* from what its ranks have in common to a group */
};

static bool why_wanted(const struct roll_run *run, const json_t *rank, const struct roll_view_source *v)
{
    if (v->info.world_rank < 0) {
        return false;
    }
    if (json_is_integer(rank)) {
        return json_integer_value(rank) == v->info.world_rank;
    }
    bool is_inside = v->in_call && !roll_digested_calm(run); /* what was told of it then may be 5 s old */
    return v->waits_for > 0 || is_inside || roll_rankset_has(&run->looked_at, (uint32_t)v->info.world_rank);
}

/* The ranks that are asked for; owned; *n of them. A rank that is named is not looked for among all. */
static struct roll_view_source *why_ranks(const struct roll_run *run, const json_t *rank, size_t *n)
{
    struct roll_view_source v, *list = NULL;
    size_t room = 0;
    *n = 0;
    if (json_is_integer(rank)) {
        json_int_t r = json_integer_value(rank);
        bool there = r >= 0 && r <= INT32_MAX && roll_run_rank(run, (uint32_t)r, &v);
        if (there && ROLL_GROW(list, room, 1) == 0) {
            list[(*n)++] = v;
        }
        return list;
    }
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v); i++) {
        if (why_wanted(run, rank, &v) && ROLL_GROW(list, room, *n + 1) == 0) {
            list[(*n)++] = v;
        }
    }
    return list;
}

static void why_put(struct why_answer *w, uint64_t key, const struct roll_verdict_copy *verdict, uint32_t rank)
{
    uint64_t common = (key ^ (verdict ? verdict->said.number : 0) * UINT64_C(0x9e3779b97f4a7c15)) * 31;
    uint32_t at = roll_map_get(&w->at, common);
    if (at == ROLL_MAP_NONE) {
        if (ROLL_GROW(w->group, w->room, w->groups + 1) != 0 ||
            roll_map_add(&w->at, common, (uint32_t)w->groups) != 0) {
            return;
        }
        at = (uint32_t)w->groups++;
        w->group[at] = (struct why_group){.verdict = verdict};
    }
    (void)roll_rankset_add(&w->group[at].ranks, rank);
}

static void why_sort(struct why_answer *w, const struct roll_run *run, const json_t *rank)
{
    struct roll_why why;
    size_t n;
    struct roll_view_source *list = why_ranks(run, rank, &n);
    uint32_t *number = malloc((n + 1) * sizeof(*number));
    uint64_t *key = malloc((n + 1) * sizeof(*key));
    if (number && key && roll_why_begin(run, &why) == 0) {
        for (size_t i = 0; i < n; i++) {
            number[i] = (uint32_t)list[i].info.world_rank;
        }
        roll_engine_why_keys(roll_feed_engine(roll_run_judge(run)), number, n, key);
        for (size_t i = 0; i < n; i++) {
            if (key[i] != 0) {
                why_put(w, key[i], roll_why_verdict(&why, &list[i]), number[i]);
            }
        }
        roll_why_end(&why);
    }
    roll_map_fini(&w->at);
    free(number);
    free(key);
    free(list);
}

static int by_first(const void *a, const void *b)
{
    const struct why_group *one = a, *two = b;
    uint32_t x = roll_rankset_at(&one->ranks, 0), y = roll_rankset_at(&two->ranks, 0);
    return x < y ? -1 : x > y;
}

/* Writes the paragraph of one group into text; -1 when the engine has nothing to say of the group. */
static int why_text(roll_root_t *root, struct roll_run *run, const struct why_group *g, char *text)
{
    struct roll_view_source v;
    bool calm = roll_digested_calm(run);
    text[0] = '\0';
    if (!calm && roll_engine_why_told(roll_feed_engine(roll_run_judge(run)), &g->ranks, text, WHY_BYTES) < 0) {
        return -1;
    }
    size_t used = strlen(text);
    FILE *tail = fmemopen(text + used, WHY_BYTES - used, "w");
    if (tail && calm && roll_run_rank(run, roll_rankset_at(&g->ranks, 0), &v)) {
        roll_fronts_why(run, &v, tail);
    }
    if (tail && !calm) {
        roll_why_called(run, &g->ranks, tail);
    }
    if (tail && g->verdict) {
        roll_why_quote(&g->verdict->said, tail);
    }
    if (tail) {
        roll_stacks_why(root, run, &g->ranks, tail);
        fclose(tail);
    }
    return 0;
}

/* Each rank of a group has an entry of its own, as long as there are few: 16,384 times the same text fits no message.
 */
static void why_add(json_t *all, json_t *groups, const struct why_group *g, const char *text)
{
    size_t n = roll_rankset_count(&g->ranks);
    json_t *said = roll_text_to_json(text);
    for (size_t i = 0; i < n && json_array_size(all) < WHY_RANKS; i++) {
        json_t *one = json_pack("{s:i,s:O}", "rank", (int)roll_rankset_at(&g->ranks, i), "text", said);
        if (one && g->verdict) {
            json_object_set_new(one, "verdict", json_integer((json_int_t)g->verdict->said.number));
        }
        json_array_append_new(all, one);
    }
    char folded[256] = "";
    (void)roll_rankset_format(&g->ranks, folded, sizeof(folded));
    json_t *one = json_pack("{s:s,s:i,s:I,s:o}", "ranks_text", folded, "rank",
                            n > 0 ? (int)roll_rankset_at(&g->ranks, 0) : -1, "count", (json_int_t)n, "text", said);
    if (one && g->verdict) {
        json_object_set_new(one, "verdict", json_integer((json_int_t)g->verdict->said.number));
    }
    json_array_append_new(groups, one);
}

/* The ranks that stand elsewhere, beyond the paragraphs that an answer has. */
static void why_more(const struct why_answer *w, FILE *parts, json_t *groups)
{
    struct roll_rankset others = {0};
    char folded[256] = "", text[512];
    for (size_t i = WHY_GROUPS; i < w->groups; i++) {
        (void)roll_rankset_union(&others, &w->group[i].ranks);
    }
    if (others.used > 0) {
        (void)roll_rankset_format(&others, folded, sizeof(folded));
        snprintf(text, sizeof(text), "Ranks %s wait elsewhere, in %zu other ways: ask for one of them by its number.",
                 folded, w->groups - WHY_GROUPS);
        fprintf(parts, "\n\n%s", text);
        json_array_append_new(groups, json_pack("{s:s,s:i,s:I,s:s}", "ranks_text", folded, "rank",
                                                (int)roll_rankset_at(&others, 0), "count",
                                                (json_int_t)roll_rankset_count(&others), "text", text));
    }
    roll_rankset_fini(&others);
}

/* A user who mistypes a rank, or asks the wrong job, is told which ranks there are. */
static json_t *no_rank(const struct roll_run *run)
{
    char text[512];
    json_t *about = roll_about_json(run);
    const char *ranks = json_string_value(json_object_get(about, "ranks_text"));
    snprintf(text, sizeof(text), "no such rank in job %s, whose ranks are %s", run->job, ranks ? ranks : "?");
    json_decref(about);
    return error(text);
}

static json_t *why(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *rank = json_object_get(query, "rank");
    struct why_answer w = {.groups = 0};
    char *text = malloc(WHY_BYTES);
    json_t *all = json_array(), *groups = json_array();
    char *joined = NULL;
    size_t room = 0;
    FILE *parts = open_memstream(&joined, &room);
    if (roll_digested_calm(run)) {
        roll_digested_wanted(run, json_is_integer(rank) ? json_integer_value(rank) : -1);
    }
    why_sort(&w, run, rank);
    if (w.groups > 1) {
        qsort(w.group, w.groups, sizeof(*w.group), by_first);
    }
    for (size_t i = 0; i < w.groups && i < WHY_GROUPS; i++) {
        if (text && parts && why_text(root, run, &w.group[i], text) == 0) {
            fprintf(parts, "%s%s", i ? "\n\n" : "", text);
            why_add(all, groups, &w.group[i], text);
        }
    }
    if (parts) {
        why_more(&w, parts, groups);
    }
    for (size_t i = 0; i < w.groups; i++) {
        roll_rankset_fini(&w.group[i].ranks);
    }
    free(w.group);
    free(text);
    if (parts) {
        fclose(parts);
    }
    json_t *answer;
    if (json_array_size(all) > 0 && joined) {
        answer = json_pack("{s:o,s:O,s:O}", "text", roll_text_to_json(joined), "ranks", all, "groups", groups);
    } else if (json_is_integer(rank)) {
        answer = no_rank(run);
    } else {
        answer =
            json_pack("{s:s,s:[],s:[]}", "text",
                      roll_digested_calm(run) ? "Nothing stands: no records of this job are here, because its calls "
                                                "are compared by digests. Ask for a rank by its number."
                                              : "No rank waits.",
                      "ranks", "groups");
    }
    json_decref(all);
    json_decref(groups);
    free(joined);
    return answer;
}

static json_t *verdicts(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    (void)root;
    uint64_t from = (uint64_t)json_integer_value(json_object_get(query, "from"));
    json_t *list = json_array();
    for (size_t i = 0; i < run->verdicts.used; i++) {
        const struct roll_verdict_copy *verdict = run->verdicts.at[i];
        if (verdict->said.number >= from && json_array_append_new(list, roll_verdict_to_json(verdict)) != 0) {
            roll_run_lose_verdict(run, verdict->said.number, "is not in an answer: there is no memory");
        }
    }
    return json_pack("{s:o}", "verdicts", list);
}

/* All runs that are watched, or those of one job; the newest stands last, and answers when no job is named. */
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

/* Adds to an answer which run gave it and, where the query names no job, which other jobs could have been meant. */
static json_t *signed_by(const roll_root_t *root, const struct roll_run *run, const json_t *query, json_t *answer)
{
    if (answer && !json_object_get(answer, "error")) {
        json_t *others = json_array();
        for (size_t i = 0; !json_object_get(query, "job") && i < root->runs_used; i++) {
            if (strcmp(root->runs[i]->job, run->job) != 0 && !holds_text(others, root->runs[i]->job)) {
                json_array_append_new(others, json_string(root->runs[i]->job));
            }
        }
        json_object_set_new(answer, "run", roll_about_json(run));
        json_object_set_new(answer, "other_jobs", others);
    }
    return answer;
}

static json_t *status(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *rows = json_object_get(query, "rows");
    json_int_t n = json_is_integer(rows) ? json_integer_value(rows) : ROLL_STATUS_ROWS;
    return roll_status_json(root, run, n < 0 ? 0 : n > ROLL_STATUS_ROWS ? ROLL_STATUS_ROWS : (size_t)n);
}

/* subscribe */

static json_t *subscribe(roll_root_t *root, const struct roll_address *from, const json_t *query)
{
    if (root->subscribers_used >= MAX_WAITING ||
        ROLL_GROW(root->subscribers, root->subscribers_room, root->subscribers_used + 1) != 0) {
        return error("too many subscribers");
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
        return error("too many drains at a time");
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
    {"status", status, false},
    {"why", why, true},
    {"verdicts", verdicts, true},
    {"remedy", roll_remedy_query, false},
    {"policy", roll_policy_query, false},
    {"stacks", roll_stacks_query, false},
};

/* Whether a query changes what the job or the daemon does, or stops a rank for a moment. */
static bool switches(const char *op, const json_t *query)
{
    const char *action = json_string_value(json_object_get(query, "action"));
    return strcmp(op, "policy") == 0 || (strcmp(op, "remedy") == 0 && !(action && strcmp(action, "list") == 0)) ||
           (strcmp(op, "stacks") == 0 && !json_object_get(query, "id")) ||
           (strcmp(op, "drain") == 0 && json_is_true(json_object_get(query, "final")));
}

static const char *denied(const struct roll_address *from, const char *op, const json_t *query)
{
    return from->role.denied & ROLL_DENY_ASK ? "this key may not ask: it needs the role viewer or operator"
           : from->role.denied & ROLL_DENY_SWITCH && switches(op, query)
               ? "this key may ask, and not switch: that needs the role operator"
               : NULL;
}

void roll_query(roll_root_t *root, const struct roll_address *from, const struct roll_frame *frame)
{
    json_t *query = roll_net_json(frame);
    const char *op = json_string_value(json_object_get(query, "op"));
    json_t *answer = NULL;
    bool later = false;
    if (!op) {
        answer = error("a query is a JSON object with the member op");
    } else if (denied(from, op, query)) {
        answer = error(denied(from, op, query));
    } else if (strcmp(op, "subscribe") == 0) {
        answer = subscribe(root, from, query);
    } else if (strcmp(op, "runs") == 0) {
        answer = json_pack("{s:o}", "runs", runs(root, json_string_value(json_object_get(query, "job"))));
    } else if (strcmp(op, "drain") == 0) {
        answer = begin_drain(root, from, frame->head.seq, query);
        later = answer == NULL;
    } else {
        struct roll_run *run = roll_run_select(root, query);
        for (size_t i = 0; i < sizeof(table) / sizeof(*table) && !answer; i++) {
            if (strcmp(op, table[i].op) == 0) {
                answer = run ? table[i].answer(root, run, query)
                             : error(json_object_get(query, "job") ? "no such job here"
                                                                   : "no run yet: no rank has been seen");
                answer = run && table[i].is_signed ? signed_by(root, run, query, answer) : answer;
            }
        }
        if (!answer) {
            answer = error("unknown op");
        }
    }
    json_decref(query);
    if (!later) {
        reply(from, frame->head.seq, answer);
    }
}
