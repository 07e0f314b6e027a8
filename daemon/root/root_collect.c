/*
 * root_collect.c: see root_collect.h: which agents are asked, what has come, and how long it is kept.
 *
 * Only agents that have a ring of the ranks in question hear of it, in runs of any size. An answer is an object of the
 * agent's making, bounded by its bytes, and goes on as it came: who shows it takes nothing in it for granted.
 */
#include "daemon/root/root_collect.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/wire/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECTIONS     16u
#define GRACE_NS        (2000 * ROLL_MS) /* time that an agent gets beyond what it has by itself */
#define REPLY_BYTES     (3u * 1024u * 1024u)
#define ASK_STREAMS_MAX 4096u

/* busy: most that are at work, or kept, at a time; kept_ns: how long after the end, a slower console asks anew. */
static const struct {
    const char *op, *member, *noun;
    unsigned busy;
    uint64_t kept_ns;
    uint32_t answer_bytes; /* of the frame */
} kinds[ROLL_COLLECTS] = {
    [ROLL_COLLECT_STACKS] = {"stacks", "stack", "stacks", 8, 120000 * ROLL_MS, UINT32_MAX},
    [ROLL_COLLECT_CALLS] = {"calls", "calls", "calls", 4, 20000 * ROLL_MS, 256u * 1024u},
    [ROLL_COLLECT_SOURCE] = {"source", "source", "lines", 4, 20000 * ROLL_MS, 64u * 1024u},
};

struct roll_root_collections {
    struct roll_collection list[COLLECTIONS]; /* oldest first */
    size_t used;
    uint64_t last_id;
};

static struct roll_root_collections *collections_of(roll_root_t *root)
{
    if (!root->collections) {
        root->collections = calloc(1, sizeof(*root->collections));
    }
    return root->collections;
}

static void drop(struct roll_root_collections *s, size_t i)
{
    free(s->list[i].rank);
    json_decref(s->list[i].answers);
    memmove(&s->list[i], &s->list[i + 1], (--s->used - i) * sizeof(s->list[0]));
}

void roll_collect_destroy(roll_root_t *root)
{
    while (root->collections && root->collections->used > 0) {
        drop(root->collections, 0);
    }
    free(root->collections);
    root->collections = NULL;
}

/* A place for one more; the oldest of the kind that is done goes for it. False: all are at work. */
static bool make_place(struct roll_root_collections *s, enum roll_collect kind)
{
    size_t n = 0, done = SIZE_MAX;
    for (size_t i = s->used; i-- > 0;) {
        n += s->list[i].kind == kind;
        done = s->list[i].kind == kind && s->list[i].done_ns ? i : done;
    }
    if (n >= kinds[kind].busy && done != SIZE_MAX) {
        drop(s, done);
        n--;
    }
    return n < kinds[kind].busy && s->used < COLLECTIONS;
}

/* asking */

static int want(struct roll_collection *c, const struct roll_view_source *v)
{
    for (size_t i = 0; i < c->ranks; i++) {
        if (c->rank[i].rank ==
            v->info.world_rank) { /* where a rank has two rings, the later ring is that of its present process */
            c->rank[i].stream = v->info.stream;
            return 0;
        }
    }
    int err = ROLL_GROW(c->rank, c->room, c->ranks + 1);
    if (!err) {
        struct roll_collected *w = &c->rank[c->ranks++];
        *w = (struct roll_collected){.rank = v->info.world_rank, .stream = v->info.stream};
        snprintf(w->host, sizeof(w->host), "%s", v->info.host ? v->info.host : "");
    }
    return err;
}

static void finish(roll_root_t *root, struct roll_collection *c, uint64_t now)
{
    if (c->done_ns == 0 && c->answered == c->ranks) {
        c->done_ns = now;
        if (c->hooks.done) {
            c->hooks.done(root, c);
        }
    }
}

static void add_answer(struct roll_collection *c, struct roll_collected *w, json_t *answer)
{
    w->answered = true;
    c->answered++;
    json_array_append_new(c->answers, json_pack("{s:i, s:o, s:o}", "rank", (int)w->rank, "host",
                                                roll_text_to_json(w->host), kinds[c->kind].member, answer));
}

static void refuse(struct roll_collection *c, struct roll_collected *w, const char *why)
{
    char schema[32];
    snprintf(schema, sizeof(schema), "rollcall.%s/1", kinds[c->kind].member);
    add_answer(c, w, json_pack("{s:s, s:s}", "schema", schema, "error", why));
}

static bool serves(struct roll_peer *peer, uint64_t stream)
{
    return !peer->gone && roll_streams_find(peer, stream) != NULL;
}

static void ask_peer(struct roll_peer *peer, struct roll_collection *c, const json_t *options)
{
    json_t *streams = json_array();
    for (size_t i = 0; i < c->ranks; i++) {
        char text[24];
        snprintf(text, sizeof(text), "%016llx", (unsigned long long)c->rank[i].stream);
        if (!c->rank[i].answered && serves(peer, c->rank[i].stream) && json_array_size(streams) < ASK_STREAMS_MAX) {
            json_array_append_new(streams, json_string(text));
        }
    }
    if (json_array_size(streams) == 0) {
        json_decref(streams);
        return;
    }
    json_t *ask = json_copy((json_t *)options);
    json_object_set_new(ask, "op", json_string(kinds[c->kind].op));
    json_object_set_new(ask, "streams", streams);
    struct roll_frame_head head = {.type = ROLL_FRAME_ASK, .seq = c->id};
    int err = ask ? roll_net_send_json(peer->at.socket, peer->at.id, peer->at.bytes, &head, ask) : ROLL_E_NOMEM;
    json_decref(ask);
    for (size_t i = 0; err && i < c->ranks; i++) {
        if (!c->rank[i].answered && serves(peer, c->rank[i].stream)) {
            refuse(c, &c->rank[i], "its agent cannot be asked");
        }
    }
}

static void ask_all(roll_root_t *root, struct roll_collection *c, const json_t *options)
{
    for (size_t i = 0; i < c->ranks; i++) {
        bool served = false;
        for (size_t k = 0; k < root->peers_used && !served; k++) {
            served = serves(root->peers[k], c->rank[i].stream);
        }
        if (!served) {
            refuse(c, &c->rank[i], "its agent is not connected");
        }
    }
    for (size_t k = 0; k < root->peers_used && c->answered < c->ranks; k++) {
        ask_peer(root->peers[k], c, options);
    }
}

unsigned roll_collect_bounded(const json_t *query, const char *key, unsigned otherwise, unsigned max)
{
    const json_t *value = json_object_get(query, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : (json_int_t)otherwise;
    return n < 1 ? 1 : n > (json_int_t)max ? max : (unsigned)n;
}

struct roll_collection *roll_collect(roll_root_t *root, const struct roll_run *run, enum roll_collect kind,
                                     const struct roll_rankset *ranks, json_t *options, unsigned timeout_ms,
                                     uint64_t verdict, const struct roll_collect_hooks *hooks)
{
    struct roll_root_collections *s = collections_of(root);
    struct roll_view_source v;
    if (!s || !options || !make_place(s, kind)) {
        json_decref(options);
        return NULL;
    }
    struct roll_collection *c = &s->list[s->used++];
    *c = (struct roll_collection){.kind = kind,
                                  .id = ++s->last_id,
                                  .run = run->id,
                                  .verdict = verdict,
                                  .hooks = hooks ? *hooks : (struct roll_collect_hooks){0},
                                  .answers = json_array(),
                                  .deadline_ns = roll_mono_ns() + timeout_ms * ROLL_MS + GRACE_NS};
    for (uint32_t i = 0; roll_engine_source_brief(roll_feed_engine(roll_run_judge(run)), i, &v); i++) {
        if (v.info.world_rank >= 0 && roll_rankset_has(ranks, (uint32_t)v.info.world_rank)) {
            want(c, &v);
        }
    }
    ask_all(root, c, options);
    json_decref(options);
    finish(root, c, roll_mono_ns());
    return c;
}

/* answers */

static struct roll_collected *asked(struct roll_collection *c, uint64_t stream)
{
    for (size_t k = 0; k < c->ranks; k++) {
        if (!c->rank[k].answered && c->rank[k].stream == stream) {
            return &c->rank[k];
        }
    }
    return NULL;
}

static void take(roll_root_t *root, struct roll_peer *peer, struct roll_collection *c, const json_t *json, size_t bytes)
{
    const char *stream = json_string_value(json_object_get(json, "stream"));
    json_t *answer = json_object_get(json, kinds[c->kind].member);
    struct roll_collected *w = stream && json_is_object(answer) ? asked(c, strtoull(stream, NULL, 16)) : NULL;
    if (w && !serves(peer, w->stream)) { /* whoever knows numbers must not speak for the ranks of others */
        root->refused_frames++;
        return;
    }
    if (w && bytes > kinds[c->kind].answer_bytes) {
        refuse(c, w, "its answer is too large");
    } else if (w) {
        if (c->hooks.came) {
            c->hooks.came(root, c, w, answer);
        }
        add_answer(c, w, json_incref(answer));
    }
    if (w) {
        finish(root, c, roll_mono_ns());
    }
}

void roll_collect_answer(roll_root_t *root, struct roll_peer *peer, const struct roll_frame *frame)
{
    struct roll_root_collections *s = root->collections;
    struct roll_collection *c = NULL;
    for (size_t i = 0; s && i < s->used; i++) {
        c = s->list[i].id == frame->head.seq ? &s->list[i] : c;
    }
    json_t *json = c ? roll_net_json(frame) : NULL; /* an answer to what nobody asks any more is not read */
    const char *op = json_string_value(json_object_get(json, "op"));
    if (op && strcmp(op, kinds[c->kind].op) == 0) {
        take(root, peer, c, json, frame->head.payload);
    }
    json_decref(json);
}

void roll_collect_tick(roll_root_t *root, uint64_t now)
{
    struct roll_root_collections *s = root->collections;
    for (size_t i = s ? s->used : 0; i-- > 0;) {
        struct roll_collection *c = &s->list[i];
        for (size_t k = 0; now >= c->deadline_ns && k < c->ranks; k++) {
            if (!c->rank[k].answered) {
                refuse(c, &c->rank[k], "its agent did not answer in time");
            }
        }
        finish(root, c, now);
        if (c->done_ns && now - c->done_ns > kinds[c->kind].kept_ns) {
            drop(s, i);
        }
    }
}

/* queries */

/* Of a question that is in order, and cannot be answered. */
static json_t *unavailable(const char *text)
{
    return json_pack("{s:s,s:b}", "error", text, "unavailable", 1);
}

json_t *roll_collect_fetch(const roll_root_t *root, enum roll_collect kind, uint64_t id, size_t from)
{
    const struct roll_root_collections *s = root->collections;
    char text[80];
    for (size_t i = 0; s && i < s->used; i++) {
        const struct roll_collection *c = &s->list[i];
        if (c->id != id || c->kind != kind) {
            continue;
        }
        json_t *answers = json_array();
        size_t bytes = 0, next = from;
        for (; next < json_array_size(c->answers); next++) {
            json_t *answer = json_array_get(c->answers, next);
            bytes += json_dumpb(answer, NULL, 0, JSON_COMPACT);
            if (bytes > REPLY_BYTES && next > from) {
                break;
            }
            json_array_append(answers, answer);
        }
        bool done = c->done_ns != 0 && next == json_array_size(c->answers);
        return json_pack("{s:b, s:o}", "done", (int)done, "answers", answers);
    }
    snprintf(text, sizeof(text), "these %s are no longer kept: ask anew", kinds[kind].noun);
    return unavailable(text);
}

json_t *roll_collect_fetched(const roll_root_t *root, enum roll_collect kind, const json_t *query)
{
    const json_t *id = json_object_get(query, "id");
    json_int_t from = json_integer_value(json_object_get(query, "from"));
    return json_is_integer(id)
               ? roll_collect_fetch(root, kind, (uint64_t)json_integer_value(id), from > 0 ? (size_t)from : 0)
               : NULL;
}

json_t *roll_collect_begun(struct roll_collection *c, json_t *ranks_text)
{
    if (c && c->ranks > 0) {
        return json_pack("{s:I, s:I, s:o}", "id", (json_int_t)c->id, "count", (json_int_t)c->ranks, "ranks",
                         ranks_text);
    }
    json_decref(ranks_text);
    if (!c) {
        return json_pack("{s:s,s:b,s:b}", "error",
                         "as much is being collected for others as there may be: try again in a moment", "unavailable",
                         1, "again", 1);
    }
    return json_pack("{s:s}", "error", "no such rank in this run");
}
