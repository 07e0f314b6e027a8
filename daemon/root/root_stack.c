/*
 * root_stack.c: stacks on demand and on suspicion: which agents are asked, what has come, and how long the answers are
 * kept.
 *
 * The root never waits: a console's query starts a collection and gets the collection's number; the console asks again
 * for what has come meanwhile, and merges it. On suspicion (--stacks auto) the agents are asked once for the stacks of
 * a verdict's culprits, at most one rank of each node; the answers stand in the verdict and in `why`.
 */
#include "daemon/base/array.h"
#include "daemon/root/root_state.h"

#include "daemon/base/clock.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/wire/net.h"
#include "trace/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLLECTIONS     8u
#define KEPT_NS         (120000 * ROLL_MS) /* how long a collection is kept after its end; a slower console asks anew */
#define GRACE_NS        (2000 * ROLL_MS)   /* time that an agent gets beyond what it gives its helper */
#define TIMEOUT_MS      10000
#define TIMEOUT_MAX_MS  120000
#define ALL_RANKS       16u /* a job with no more ranks is shown whole */
#define SUSPECTS        4u  /* most ranks that are asked for one verdict */
#define REPLY_BYTES     (3u * 1024u * 1024u)
#define ASK_STREAMS_MAX 4096u

struct wanted {
    int32_t rank;
    uint64_t stream;
    char host[ROLL_NAME_BYTES];
    bool answered;
};

struct collection {
    uint64_t id;
    uint64_t run;        /* id of the run */
    uint64_t verdict;    /* number of the verdict whose culprits are asked; 0 = a console asked */
    struct wanted *rank; /* owned */
    size_t ranks, room, answered;
    json_t *answers; /* [{"rank","host","stack"}] in the order in which they came */
    uint64_t deadline_ns, done_ns;
};

struct roll_root_stacks {
    struct collection list[COLLECTIONS]; /* oldest first */
    size_t used;
    uint64_t last_id;
    json_t *top; /* "RUN.RANK" -> {"taken_ns", "top"}: what `why` tells; owned */
};

static struct roll_root_stacks *stacks_of(roll_root_t *root)
{
    if (!root->stacks && (root->stacks = calloc(1, sizeof(*root->stacks))) != NULL) {
        root->stacks->top = json_object();
    }
    return root->stacks;
}

static void drop(struct roll_root_stacks *s, size_t i)
{
    free(s->list[i].rank);
    json_decref(s->list[i].answers);
    memmove(&s->list[i], &s->list[i + 1], (--s->used - i) * sizeof(s->list[0]));
}

void roll_stacks_destroy(roll_root_t *root)
{
    if (root->stacks) {
        while (root->stacks->used > 0) {
            drop(root->stacks, 0);
        }
        json_decref(root->stacks->top);
        free(root->stacks);
        root->stacks = NULL;
    }
}

static struct roll_run *run_by_id(const roll_root_t *root, uint64_t id)
{
    for (size_t i = 0; i < root->runs_used; i++) {
        if (root->runs[i]->id == id) {
            return root->runs[i];
        }
    }
    return NULL;
}

/* who */

/* Collects the culprits of all findings that stand, and the ranks that keep a communicator waiting. */
static void suspects(const struct roll_run *run, struct roll_rankset *out)
{
    for (size_t i = 0; i < run->verdicts.used; i++) {
        if (roll_verdict_stands(run->verdicts.at[i])) {
            roll_rankset_union(out, &run->verdicts.at[i]->said.culprits);
        }
    }
    struct roll_view_comm comm;
    for (uint32_t k = 0; roll_engine_comm(roll_feed_engine(roll_run_judge(run)), k, &comm); k++) {
        roll_rankset_union(out, &comm.behind);
    }
}

/* Chooses the ranks where the query names none: all ranks of a small job; of a larger one those that others wait for,
 * and one that waits. */
static void choose(const struct roll_run *run, struct roll_rankset *out)
{
    struct roll_view_source v;
    struct roll_rankset waiting = {0};
    roll_engine_t *engine = roll_feed_engine(roll_run_judge(run));
    for (uint32_t i = 0; roll_run_source_brief(run, i, &v); i++) {
        if (v.info.world_rank >= 0) {
            roll_rankset_add(v.waits_for > 0 || v.in_call ? &waiting : out, (uint32_t)v.info.world_rank);
        }
    }
    if (roll_rankset_count(out) + roll_rankset_count(&waiting) <= ALL_RANKS) {
        roll_rankset_union(out, &waiting);
    } else {
        roll_rankset_clear(out);
        suspects(run, out);
        for (size_t i = 0, n = roll_rankset_count(&waiting); i < n; i++) {
            if (!roll_rankset_has(out, roll_rankset_at(&waiting, i))) {
                roll_rankset_add(out, roll_rankset_at(&waiting, i));
                break;
            }
        }
        for (uint32_t i = 0; out->used == 0 && roll_engine_source(engine, i, &v); i++) {
            if (v.info.world_rank >= 0) {
                roll_rankset_add(out, (uint32_t)v.info.world_rank);
            }
        }
    }
    roll_rankset_fini(&waiting);
}

static int want(struct collection *c, const struct roll_view_source *v)
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
        struct wanted *w = &c->rank[c->ranks++];
        *w = (struct wanted){.rank = v->info.world_rank, .stream = v->info.stream};
        snprintf(w->host, sizeof(w->host), "%s", v->info.host ? v->info.host : "");
    }
    return err;
}

/* asking */

static void add_answer(struct collection *c, struct wanted *w, json_t *stack)
{
    w->answered = true;
    c->answered++;
    json_array_append_new(c->answers, json_pack("{s:i, s:o, s:o}", "rank", (int)w->rank, "host",
                                                roll_text_to_json(w->host), "stack", stack));
}

static void refuse(struct collection *c, struct wanted *w, const char *why)
{
    add_answer(c, w, json_pack("{s:s, s:s}", "schema", "rollcall.stack/1", "error", why));
}

static bool serves(const struct roll_peer *peer, uint64_t stream)
{
    for (size_t i = 0; i < peer->used && !peer->gone; i++) {
        if (peer->streams[i].stream == stream) {
            return true;
        }
    }
    return false;
}

static void ask_peer(const struct roll_peer *peer, struct collection *c, const json_t *options)
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
    json_object_set_new(ask, "op", json_string("stacks"));
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

static void ask_all(roll_root_t *root, struct collection *c, const json_t *options)
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
    for (size_t k = 0; k < root->peers_used; k++) {
        ask_peer(root->peers[k], c, options);
    }
}

static unsigned bounded(const json_t *query, const char *key, unsigned otherwise, unsigned max)
{
    const json_t *value = json_object_get(query, key);
    json_int_t n = json_is_integer(value) ? json_integer_value(value) : (json_int_t)otherwise;
    return n < 1 ? 1 : n > (json_int_t)max ? max : (unsigned)n;
}

/* Starts a collection for these ranks (borrowed). NULL: no memory, or too many collections at work. */
static struct collection *collect(roll_root_t *root, const struct roll_run *run, const struct roll_rankset *ranks,
                                  const json_t *query, uint64_t verdict)
{
    struct roll_root_stacks *s = stacks_of(root);
    struct roll_view_source v;
    for (size_t i = 0; s && s->used == COLLECTIONS && i < s->used; i++) {
        if (s->list[i].done_ns) {
            drop(s, i);
            break;
        }
    }
    if (!s || s->used == COLLECTIONS) {
        return NULL;
    }
    unsigned timeout = bounded(query, "timeout_ms", TIMEOUT_MS, TIMEOUT_MAX_MS);
    struct collection *c = &s->list[s->used];
    *c = (struct collection){.id = ++s->last_id,
                             .run = run->id,
                             .verdict = verdict,
                             .answers = json_array(),
                             .deadline_ns = roll_mono_ns() + timeout * ROLL_MS + GRACE_NS};
    for (uint32_t i = 0; roll_engine_source(roll_feed_engine(roll_run_judge(run)), i, &v); i++) {
        if (v.info.world_rank >= 0 && roll_rankset_has(ranks, (uint32_t)v.info.world_rank)) {
            want(c, &v);
        }
    }
    s->used++;
    json_t *options = json_pack("{s:i, s:i, s:i, s:b, s:b}", "samples", (int)bounded(query, "samples", 3, 16),
                                "interval_ms", (int)bounded(query, "interval_ms", 200, 10000), "timeout_ms",
                                (int)timeout, "native", !json_is_false(json_object_get(query, "native")), "python",
                                !json_is_false(json_object_get(query, "python")));
    ask_all(root, c, options);
    json_decref(options);
    return c;
}

/* what is kept of an answer */

static void keep_top(struct roll_root_stacks *s, const struct collection *c, const struct wanted *w,
                     const json_t *stack)
{
    char key[64];
    json_t *top = roll_stacks_top(stack), *taken = json_object_get(stack, "taken_ns");
    snprintf(key, sizeof(key), "%llu.%d", (unsigned long long)c->run, (int)w->rank);
    if (top) {
        json_object_set_new(s->top, key, json_pack("{s:O, s:o}", "taken_ns", taken ? taken : json_null(), "top", top));
    }
}

/* Attaches the stacks that were taken on suspicion to their verdict. */
static void attach(roll_root_t *root, const struct collection *c)
{
    struct roll_run *run = run_by_id(root, c->run);
    for (size_t i = 0; run && i < run->verdicts.used; i++) {
        if (run->verdicts.at[i]->said.number == c->verdict) {
            if (roll_verdict_attach(run->verdicts.at[i], "stacks", roll_stacks_answers(c->answers)) != 0) {
                roll_run_lose_verdict(run, c->verdict, "is shown without its stacks: there is no memory");
            }
        }
    }
}

static void finish(roll_root_t *root, struct collection *c, uint64_t now)
{
    if (c->done_ns == 0 && c->answered == c->ranks) {
        c->done_ns = now;
        if (c->verdict) {
            attach(root, c);
        }
    }
}

/* outside */

void roll_stacks_answer(roll_root_t *root, const struct roll_frame *frame)
{
    struct roll_root_stacks *s = root->stacks;
    json_t *json = roll_net_json(frame);
    const char *op = json_string_value(json_object_get(json, "op"));
    const char *stream = json_string_value(json_object_get(json, "stream"));
    json_t *stack = json_object_get(json, "stack");
    for (size_t i = 0; s && op && strcmp(op, "stacks") == 0 && stream && json_is_object(stack) && i < s->used; i++) {
        struct collection *c = &s->list[i];
        for (size_t k = 0; c->id == frame->head.seq && k < c->ranks; k++) {
            if (!c->rank[k].answered && c->rank[k].stream == strtoull(stream, NULL, 16)) {
                keep_top(s, c, &c->rank[k], stack);
                add_answer(c, &c->rank[k], json_incref(stack));
                finish(root, c, roll_mono_ns());
                break;
            }
        }
    }
    json_decref(json);
}

void roll_stacks_tick(roll_root_t *root, uint64_t now)
{
    struct roll_root_stacks *s = root->stacks;
    for (size_t i = s ? s->used : 0; i-- > 0;) {
        struct collection *c = &s->list[i];
        for (size_t k = 0; now >= c->deadline_ns && k < c->ranks; k++) {
            if (!c->rank[k].answered) {
                refuse(c, &c->rank[k], "its agent did not answer in time");
            }
        }
        finish(root, c, now);
        if (c->done_ns && now - c->done_ns > KEPT_NS) {
            drop(s, i);
        }
    }
}

static json_t *error(const char *text)
{
    return json_pack("{s:s}", "error", text);
}

/* As error, of a question that is in order. */
static json_t *unavailable(const char *text)
{
    return json_pack("{s:s,s:b}", "error", text, "unavailable", 1);
}

/* The answers from number `from` on, as many as a reply takes. */
static json_t *fetch(const struct roll_root_stacks *s, uint64_t id, size_t from)
{
    for (size_t i = 0; s && i < s->used; i++) {
        const struct collection *c = &s->list[i];
        if (c->id != id) {
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
    return unavailable("these stacks are no longer kept: ask anew");
}

json_t *roll_stacks_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *id = json_object_get(query, "id");
    const char *text = json_string_value(json_object_get(query, "ranks"));
    struct roll_rankset ranks = {0};
    if (json_is_integer(id)) {
        json_int_t from = json_integer_value(json_object_get(query, "from"));
        return fetch(root->stacks, (uint64_t)json_integer_value(id), from > 0 ? (size_t)from : 0);
    }
    if (text && roll_rankset_parse(text, &ranks) != 0) {
        roll_rankset_fini(&ranks);
        return error("ranks: a set such as 0-3,7");
    }
    if (!text) {
        choose(run, &ranks);
    }
    struct collection *c = collect(root, run, &ranks, query, 0);
    json_t *folded = roll_ranks_text_json(&ranks);
    roll_rankset_fini(&ranks);
    if (!c || c->ranks == 0) {
        json_decref(folded);
    }
    if (!c) {
        return unavailable("stacks are being collected for others: try again in a moment");
    }
    if (c->ranks == 0) {
        c->done_ns = roll_mono_ns();
        return error("no such rank in this run");
    }
    finish(root, c, roll_mono_ns());
    return json_pack("{s:I, s:I, s:o}", "id", (json_int_t)c->id, "count", (json_int_t)c->ranks, "ranks", folded);
}

/* Whether the culprits' stacks are worth a look after such a verdict: a rank has not come, or is stuck where the
 * records cannot see. */
static bool worth_a_look(enum roll_verdict_code code)
{
    return code == ROLL_VERDICT_RANK_BUSY || code == ROLL_VERDICT_RANK_BLOCKED || code == ROLL_VERDICT_RANK_STUCK ||
           code == ROLL_VERDICT_INIT_MISSING || code == ROLL_VERDICT_CALL_SKIPPED || code == ROLL_VERDICT_P2P_UNMATCHED;
}

void roll_stacks_suspect(roll_root_t *root, struct roll_run *run, const struct roll_verdict *verdict)
{
    struct roll_rankset chosen = {0};
    struct roll_view_source v;
    char host[SUSPECTS][ROLL_NAME_BYTES];
    size_t n = 0;
    if (!root->o.stacks_auto || root->peers_used == 0 || !worth_a_look(verdict->code)) {
        return;
    }
    for (uint32_t i = 0; n < SUSPECTS && roll_engine_source(roll_feed_engine(roll_run_judge(run)), i, &v); i++) {
        bool fresh = v.info.world_rank >= 0 && roll_rankset_has(&verdict->culprits, (uint32_t)v.info.world_rank) &&
                     !roll_rankset_has(&run->looked_at, (uint32_t)v.info.world_rank);
        for (size_t k = 0; fresh && k < n; k++) {
            fresh = strcmp(host[k], v.info.host ? v.info.host : "") != 0;
        }
        if (fresh) {
            snprintf(host[n++], ROLL_NAME_BYTES, "%s", v.info.host ? v.info.host : "");
            roll_rankset_add(&chosen, (uint32_t)v.info.world_rank);
            roll_rankset_add(&run->looked_at, (uint32_t)v.info.world_rank);
        }
    }
    if (chosen.used > 0) {
        collect(root, run, &chosen, NULL, verdict->number);
    }
    roll_rankset_fini(&chosen);
}

static const json_t *top_of(const roll_root_t *root, const struct roll_run *run, uint32_t rank)
{
    char key[64];
    snprintf(key, sizeof(key), "%llu.%u", (unsigned long long)run->id, rank);
    return root->stacks ? json_object_get(root->stacks->top, key) : NULL;
}

void roll_stacks_why(const roll_root_t *root, const struct roll_run *run, const struct roll_rankset *ranks, FILE *out)
{
    struct roll_rankset told = {0};
    size_t n = roll_rankset_count(ranks);
    for (size_t i = 0; i < n; i++) {
        const json_t *kept = top_of(root, run, roll_rankset_at(ranks, i)), *top = json_object_get(kept, "top");
        if (!top || roll_rankset_has(&told, roll_rankset_at(ranks, i))) {
            continue;
        }
        struct roll_rankset alike = {0};
        for (size_t k = i; k < n; k++) { /* few ranks of a run have stacks that were kept */
            const json_t *other = top_of(root, run, roll_rankset_at(ranks, k));
            if (other && json_equal(json_object_get(other, "top"), top)) {
                (void)roll_rankset_add(&alike, roll_rankset_at(ranks, k));
            }
        }
        roll_stacks_tell_top(kept, &alike, out);
        (void)roll_rankset_union(&told, &alike);
        roll_rankset_fini(&alike);
    }
    roll_rankset_fini(&told);
}
