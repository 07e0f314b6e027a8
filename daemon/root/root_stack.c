/*
 * root_stack.c: stacks on demand and on suspicion: of which ranks, and what is kept of them.
 *
 * A console's query starts a collection (root_collect.c), and the console merges what comes. On suspicion (--stacks
 * auto) the agents are asked once for the stacks of a verdict's culprits, at most one rank of each node; the answers
 * stand in the verdict and in `why`.
 */
#include "daemon/root/root_collect.h"

#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS     10000
#define TIMEOUT_MAX_MS 120000
#define ALL_RANKS      16u /* a job with no more ranks is shown whole */
#define SUSPECTS       4u  /* most ranks that are asked for one verdict */

void roll_stacks_destroy(roll_root_t *root)
{
    json_decref(root->stack_tops);
    root->stack_tops = NULL;
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
            roll_rankset_add(v.pending > 0 || v.in_call ? &waiting : out, (uint32_t)v.info.world_rank);
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

/* what is kept of an answer */

static void keep_top(roll_root_t *root, const struct roll_collection *c, const struct roll_collected *rank,
                     const json_t *stack)
{
    char key[64];
    json_t *top = roll_stacks_top(stack), *own = top ? roll_stacks_own(stack) : NULL;
    json_t *taken = json_object_get(stack, "taken_ns");
    snprintf(key, sizeof(key), "%llu.%d", (unsigned long long)c->run, (int)rank->rank);
    root->stack_tops = root->stack_tops ? root->stack_tops : json_object();
    if (top) {
        json_object_set_new(root->stack_tops, key,
                            json_pack("{s:O, s:o, s:o}", "taken_ns", taken ? taken : json_null(), "top", top, "own",
                                      own ? own : json_array()));
    }
}

/* Stacks that were taken on suspicion stand with their verdict. */
static void attach(roll_root_t *root, const struct roll_collection *c)
{
    struct roll_run *run = c->verdict ? run_by_id(root, c->run) : NULL;
    for (size_t i = 0; run && i < run->verdicts.used; i++) {
        if (run->verdicts.at[i]->said.number == c->verdict) {
            if (roll_verdict_attach(run->verdicts.at[i], "stacks", roll_stacks_answers(c->answers)) != 0) {
                roll_run_lose_verdict(run, c->verdict, "is shown without its stacks: there is no memory");
            }
        }
    }
}

/* asking */

/* Starts a collection for these ranks (borrowed). NULL: no memory, or too many collections at work. */
static struct roll_collection *collect(roll_root_t *root, const struct roll_run *run, const struct roll_rankset *ranks,
                                       const json_t *query, uint64_t verdict)
{
    static const struct roll_collect_hooks hooks = {.came = keep_top, .done = attach};
    unsigned timeout = roll_collect_bounded(query, "timeout_ms", TIMEOUT_MS, TIMEOUT_MAX_MS);
    json_t *options = json_pack(
        "{s:i, s:i, s:i, s:b, s:b}", "samples", (int)roll_collect_bounded(query, "samples", 3, 16), "interval_ms",
        (int)roll_collect_bounded(query, "interval_ms", 200, 10000), "timeout_ms", (int)timeout, "native",
        !json_is_false(json_object_get(query, "native")), "python", !json_is_false(json_object_get(query, "python")));
    return roll_collect(root, run, ROLL_COLLECT_STACKS, ranks, options, timeout, verdict, &hooks);
}

/* outside */

json_t *roll_stacks_query(roll_root_t *root, struct roll_run *run, const json_t *query)
{
    const json_t *id = json_object_get(query, "id");
    const char *text = json_string_value(json_object_get(query, "ranks"));
    struct roll_rankset ranks = {0};
    if (json_is_integer(id)) {
        json_int_t from = json_integer_value(json_object_get(query, "from"));
        return roll_collect_fetch(root, ROLL_COLLECT_STACKS, (uint64_t)json_integer_value(id),
                                  from > 0 ? (size_t)from : 0);
    }
    if (text && roll_rankset_parse(text, &ranks) != 0) {
        roll_rankset_fini(&ranks);
        return json_pack("{s:s}", "error", "ranks: a set such as 0-3,7");
    }
    if (!text) {
        choose(run, &ranks);
    }
    struct roll_collection *c = collect(root, run, &ranks, query, 0);
    json_t *folded = roll_ranks_text_json(&ranks);
    roll_rankset_fini(&ranks);
    return roll_collect_begun(c, folded);
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
    return json_object_get(root->stack_tops, key);
}

void roll_stacks_forget(roll_root_t *root, const struct roll_run *run)
{
    char prefix[32];
    const char *key;
    void *next;
    json_t *value;
    int n = snprintf(prefix, sizeof(prefix), "%llu.", (unsigned long long)run->id);
    json_object_foreach_safe(root->stack_tops, next, key, value)
    {
        if (strncmp(key, prefix, (size_t)n) == 0) {
            json_object_del(root->stack_tops, key);
        }
    }
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
