/*
 * nodes.c: see nodes.h. Memory is short nowhere here: what cannot be had ends the simulator.
 */
#include "tests/simulation/nodes.h"

#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/sum.h"
#include "tests/simulation/execute.h"

#include <stdlib.h>
#include <string.h>

#define INSIDE_NS   (1 * S_)
#define STAND_NS    (250 * MS_)
#define DEFS_MAX    4096u
#define RECORDS_MAX 65536u
#define WIDENED     3u /* so often others are found to be concerned; then everybody is */
#define GATHER_NS   (300 * MS_)
#define STOOD_NS    (2 * S_) /* so long after an engine has said nothing of some, all are looked at */

struct rank_node {
    struct roll_source_info info;
    char host[16];
    roll_fold_t *fold;
    struct roll_def *def;
    uint32_t defs;
    struct roll_record *rec; /* by ticket; state EMPTY: lost */
    uint32_t recs;
    uint64_t lost_first, lost_count;
    enum roll_proc_state proc;
    int32_t status;
    bool told_process, told_sight;
    bool failed, hinted; /* it has ended badly, or has hinted at something itself */
    bool asked;          /* its records go to the engine */
    struct roll_engine_sight sight;
    uint32_t source;
};

struct nodes {
    struct nodes_how how;
    struct rank_node rank[RANKS_MAX];
    roll_sum_t *node[RANKS_MAX], *relay[RANKS_MAX], *root;
    uint64_t next_ns[RANKS_MAX]; /* when a node tells next */
    uint32_t nodes, relays, hints;
    bool failed; /* a process has ended, and not in good order */
    struct rng rng;
    roll_engine_t *e;
    struct roll_digest digest, up, came, wanted; /* wanted: hints that name a place */
    struct roll_digest named;                    /* a hint of each communicator that is hinted at */
    bool said;                                   /* the engine has said something */
    bool everybody;                              /* all are looked at from the next engine on */
    bool wider;                                  /* others are concerned than the engine has seen */
    uint64_t opened_ns;
    uint64_t begin[RANKS_MAX]; /* from which ticket on the engine was fed */
    uint32_t opened;           /* how often an engine was opened */
};

static void *need(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

struct nodes *nodes_new(const struct nodes_how *how)
{
    struct nodes *n = need(calloc(1, sizeof(*n)));
    n->how = *how;
    n->rng.state = how->seed;
    n->nodes = (how->ranks + how->per_node - 1) / how->per_node;
    n->relays = (n->nodes + 1) / 2;
    struct roll_sum_config config = {.stand_ns = STAND_NS};
    for (uint32_t i = 0; i < n->nodes; i++) {
        n->node[i] = need(roll_sum_new(&config));
        n->relay[i] = need(roll_sum_new(&config));
    }
    config.is_root = true;
    n->root = need(roll_sum_new(&config));
    for (uint32_t r = 0; r < how->ranks; r++) {
        n->rank[r].fold = need(roll_fold_new(INSIDE_NS));
        n->rank[r].def = need(malloc(DEFS_MAX * sizeof(struct roll_def)));
        n->rank[r].rec = need(calloc(RECORDS_MAX, sizeof(struct roll_record)));
    }
    return n;
}

void nodes_destroy(struct nodes **pointer)
{
    struct nodes *n = *pointer;
    if (!n) {
        return;
    }
    for (uint32_t i = 0; i < n->nodes; i++) {
        roll_sum_destroy(&n->node[i]);
        roll_sum_destroy(&n->relay[i]);
    }
    roll_sum_destroy(&n->root);
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        roll_fold_destroy(&n->rank[r].fold);
        free(n->rank[r].def);
        free(n->rank[r].rec);
    }
    roll_engine_destroy(&n->e);
    roll_digest_fini(&n->digest);
    roll_digest_fini(&n->up);
    roll_digest_fini(&n->came);
    roll_digest_fini(&n->wanted);
    roll_digest_fini(&n->named);
    free(n);
    *pointer = NULL;
}

static bool is_named(const struct nodes *n, uint64_t key)
{
    for (size_t i = 0; i < n->named.hints; i++) {
        if (n->named.hint[i].key == key) {
            return true;
        }
    }
    return false;
}

static bool asks_everybody(const struct nodes *n)
{
    return !n->how.scoped || n->opened > WIDENED || n->everybody;
}

static bool is_concerned(const struct nodes *n, const struct rank_node *k)
{
    bool concerned = asks_everybody(n) || k->failed || k->hinted;
    for (uint32_t i = 0; i < k->defs && !concerned; i++) {
        concerned = k->def[i].type == ROLL_DEF_COMM && is_named(n, k->def[i].comm.info.key);
    }
    return concerned;
}

void nodes_open(struct nodes *n, uint32_t rank, const struct roll_source_info *info)
{
    n->rank[rank].info = *info;
    snprintf(n->rank[rank].host, sizeof(n->rank[rank].host), "%s", info->host);
    n->rank[rank].info.host = n->rank[rank].host;
}

void nodes_define(struct nodes *n, uint32_t rank, const struct roll_def *def)
{
    struct rank_node *k = &n->rank[rank];
    if (k->defs < DEFS_MAX) {
        k->def[k->defs++] = *def;
    }
    if (def->type == ROLL_DEF_COMM) {
        (void)roll_fold_comm(k->fold, def->id, &def->comm.info);
    }
    if (n->e && k->asked) {
        (void)roll_engine_define(n->e, k->source, def);
    }
    /* A node that is late comes in when its ranks turn out to be members. */
    n->wider = n->wider || (n->e && !k->asked && is_concerned(n, k));
}

void nodes_feed(struct nodes *n, uint32_t rank, const struct roll_record *recs, size_t count)
{
    struct rank_node *k = &n->rank[rank];
    for (size_t i = 0; i < count; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        if (ticket < RECORDS_MAX) {
            k->rec[ticket] = recs[i];
            k->recs = ticket + 1 > k->recs ? (uint32_t)ticket + 1 : k->recs;
        }
        (void)roll_fold_record(k->fold, &recs[i], recs[i].enter_ns);
    }
    if (n->e && k->asked) {
        (void)roll_engine_feed(n->e, k->source, recs, count);
    }
}

void nodes_lost(struct nodes *n, uint32_t rank, uint64_t first, uint64_t count)
{
    struct rank_node *k = &n->rank[rank];
    k->lost_first = first;
    k->lost_count = count;
    roll_fold_lost(k->fold);
    if (n->e && k->asked) {
        (void)roll_engine_lost(n->e, k->source, first, count);
    }
}

void nodes_process(struct nodes *n, uint32_t rank, enum roll_proc_state state, int32_t status)
{
    struct rank_node *k = &n->rank[rank];
    k->proc = state;
    k->status = status;
    k->told_process = true;
    k->failed = state == ROLL_PROC_DEAD || state == ROLL_PROC_STOPPED || (state == ROLL_PROC_FINISHED && status != 0);
    n->failed = n->failed || (k->failed && state != ROLL_PROC_STOPPED);
    n->wider = n->wider || (k->failed && !k->asked);
    if (n->e && k->asked) {
        (void)roll_engine_process(n->e, k->source, state, status);
    }
}

void nodes_sight(struct nodes *n, uint32_t rank, const struct roll_engine_sight *sight)
{
    struct rank_node *k = &n->rank[rank];
    k->sight = *sight;
    k->told_sight = true;
    struct roll_engine_sight aside = {.heard = false, .aside = true, .starved = sight->starved};
    if (n->e) {
        (void)roll_engine_sight(n->e, k->source, k->asked ? sight : &aside);
    }
}

roll_engine_t *nodes_engine(struct nodes *n)
{
    return n->e;
}

uint32_t nodes_opened(const struct nodes *n)
{
    return n->opened;
}

uint32_t nodes_hints(const struct nodes *n)
{
    return n->hints;
}

/* the engine */

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct rank_node *k = from;
    *out = k->rec[ticket];
    return roll_seal_state(out->seal) != ROLL_STATE_EMPTY;
}

static void place(struct nodes *n, struct rank_node *k, const struct roll_excerpt_records *records, uint64_t begin)
{
    struct roll_fold_place *list;
    size_t places;
    if (roll_excerpt_places(records, k->fold, begin, &list, &places) != 0) {
        return;
    }
    for (size_t i = 0; i < places; i++) {
        if (list[i].op != ROLL_OP_NONE) {
            (void)roll_engine_place_made(n->e, k->source, list[i].comm, (enum roll_op)list[i].op, list[i].peer,
                                         list[i].next, list[i].sure ? list[i].made : UINT32_MAX);
        } else if (begin != 0) {
            (void)roll_engine_place(n->e, k->source, list[i].comm, list[i].next, list[i].sure);
            (void)roll_engine_place_splits(n->e, k->source, list[i].comm, list[i].made);
        }
    }
    free(list);
}

/* All members of the communicator are below this level. */
static bool knows_all(const roll_sum_t *sum, uint64_t key, struct roll_sum_place *out)
{
    return roll_sum_place(sum, key, out) && out->members == out->size;
}

static uint64_t begin_of(struct nodes *n, struct rank_node *k, const struct roll_excerpt_records *records)
{
    struct roll_excerpt_want want[COMMS_MAX];
    size_t wants = 0;
    for (uint32_t i = 0; i < k->defs && wants < COMMS_MAX; i++) {
        struct roll_sum_place place;
        if (k->def[i].type != ROLL_DEF_COMM) {
            continue;
        }
        uint64_t key = k->def[i].comm.info.key;
        uint32_t node = (uint32_t)(k - n->rank) / n->how.per_node;
        bool known = knows_all(n->node[node], key, &place) || knows_all(n->relay[node / 2], key, &place) ||
                     knows_all(n->root, key, &place);
        struct roll_excerpt_want *w = &want[wants++];
        *w = (struct roll_excerpt_want){.comm = (uint16_t)k->def[i].id, .low = known ? place.low : 0};
        for (size_t h = 0; h < n->wanted.hints; h++) {
            const struct roll_digest_hint *hint = &n->wanted.hint[h];
            if (hint->key == key && hint->why == ROLL_HINT_DIFFERS && hint->seq < w->low) {
                w->low = hint->seq;
            } else if (hint->key == key && hint->why == ROLL_HINT_MESSAGES) {
                w->classes |= hint->seq;
            }
        }
    }
    uint64_t begin = roll_excerpt_begin(records, k->fold, want, wants, n->how.history);
    uint64_t former = n->begin[k - n->rank];
    return n->opened > 1 && former < begin ? former : begin;
}

static struct roll_excerpt_records records_of(struct rank_node *k)
{
    return (struct roll_excerpt_records){.from = k, .record = record_of, .next = k->recs};
}

bool nodes_says(struct nodes *n, const struct roll_verdict *v)
{
    bool retires = v->supersedes != 0 || v->confirms != 0 || v->withdraws != 0;
    bool known = v->comm_key == 0 || is_named(n, v->comm_key) || roll_engine_has_all(n->e, v->comm_key), out = false;
    if (retires || (v->certainty == ROLL_NOTE && v->code != ROLL_VERDICT_AGENT_SILENT)) {
        return true;
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        out = out || (!n->rank[r].asked && roll_rankset_has(&v->culprits, r));
    }
    if (!known && !asks_everybody(n)) {
        roll_digest_add_hint(&n->named, v->comm_key, ROLL_HINT_STANDS, 0);
        n->wider = true;
        return false;
    }
    if (out) {
        n->everybody = n->wider = true;
    }
    n->said = n->said || !out;
    return !out;
}

/* The hints of this moment ask for records that the engine has not been given. */
static bool lacks(struct nodes *n)
{
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct roll_excerpt_records records = records_of(&n->rank[r]);
        if (begin_of(n, &n->rank[r], &records) < n->begin[r]) {
            return true;
        }
    }
    return false;
}

/* Everybody's newest records go to an engine, and from here on all that comes. */
static void open_engine(struct nodes *n, uint64_t now)
{
    struct roll_engine_config config = {.memory = n->how.room};
    roll_engine_destroy(&n->e);
    n->opened++;
    n->wider = n->said = false;
    n->opened_ns = now;
    n->e = need(roll_engine_new(&config));
    (void)roll_engine_tick(n->e, now);
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        struct roll_engine_sight unheard = {.heard = false, .aside = true, .starved = k->sight.starved};
        k->asked = is_concerned(n, k);
        (void)roll_engine_open(n->e, &k->info, &k->source);
        if (!k->asked) {
            (void)roll_engine_sight(n->e, k->source, &unheard);
            continue;
        }
        if (k->told_sight) {
            (void)roll_engine_sight(n->e, k->source, &k->sight);
        }
        for (uint32_t i = 0; i < k->defs; i++) {
            (void)roll_engine_define(n->e, k->source, &k->def[i]);
        }
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        struct roll_excerpt_records records = records_of(k);
        n->begin[r] = begin_of(n, k, &records);
        if (k->asked) {
            place(n, k, &records, n->begin[r]);
        }
    }
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        for (uint64_t t = n->begin[r]; k->asked && t < k->recs; t++) {
            if (roll_seal_state(k->rec[t].seal) != ROLL_STATE_EMPTY) {
                (void)roll_engine_feed(n->e, k->source, &k->rec[t], 1);
            } else if (t == k->lost_first) {
                (void)roll_engine_lost(n->e, k->source, k->lost_first, k->lost_count);
            }
        }
        if (k->asked && k->lost_count != 0 && k->lost_first >= k->recs) { /* nothing has come behind the loss */
            (void)roll_engine_lost(n->e, k->source, k->lost_first, k->lost_count);
        }
        if (k->asked && k->told_process) {
            (void)roll_engine_process(n->e, k->source, k->proc, k->status);
        }
    }
}

/* digests */

/* A digest goes up, in payloads so small that most need several. */
static void tell(struct nodes *n, roll_sum_t *to, uint32_t child, const struct roll_digest *d, uint64_t now)
{
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[256];
    for (size_t used; (used = roll_digest_encode(d, &cursor, bytes, sizeof(bytes))) != 0;) {
        roll_digest_clear(&n->came);
        if (roll_digest_decode(bytes, used, &n->came) != 0 || roll_sum_take(to, child, &n->came, now) != 0) {
            abort();
        }
    }
}

static void tell_node(struct nodes *n, uint32_t node, uint64_t now)
{
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        roll_digest_clear(&n->digest);
        roll_fold_cut(n->rank[r].fold, now, &n->digest);
        n->rank[r].hinted = n->rank[r].hinted || n->digest.hints > 0;
        n->wider = n->wider || (n->e && n->digest.hints > 0 && !n->rank[r].asked);
        tell(n, n->how.levels == 1 ? n->root : n->node[node], r, &n->digest, now);
    }
    if (n->how.levels > 1) {
        roll_digest_clear(&n->up);
        roll_sum_cut(n->node[node], now, &n->up);
        tell(n, n->how.levels == 2 ? n->root : n->relay[node / 2], node, &n->up, now);
    }
}

/* The levels above a node tell everything anew. */
static void tell_again(struct nodes *n, uint32_t node)
{
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        roll_fold_again(n->rank[r].fold);
    }
    roll_sum_again(n->node[node]);
}

static void renew(roll_sum_t **sum, bool is_root)
{
    roll_sum_destroy(sum);
    *sum = need(roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = is_root}));
}

/* An agent is started anew: it has what the ring still holds, which may not be everything. */
static void renew_agent(struct nodes *n, uint32_t node, uint64_t now)
{
    renew(&n->node[node], false);
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        roll_fold_destroy(&k->fold);
        k->fold = need(roll_fold_new(INSIDE_NS));
        for (uint32_t i = 0; i < k->defs; i++) {
            if (k->def[i].type == ROLL_DEF_COMM) {
                (void)roll_fold_comm(k->fold, k->def[i].id, &k->def[i].comm.info);
            }
        }
        for (uint32_t t = k->recs > 100 ? k->recs - 100 : 0; t < k->recs; t++) {
            (void)roll_fold_record(k->fold, &k->rec[t], k->rec[t].enter_ns < now ? k->rec[t].enter_ns : now);
        }
    }
}

/* Something dies, and comes back at once. */
static void fault(struct nodes *n, uint64_t now)
{
    uint32_t node = rng_below(&n->rng, n->nodes);
    switch (rng_below(&n->rng, 4)) {
    case 0: /* a digest is lost with its link */
        for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
            roll_digest_clear(&n->digest);
            roll_fold_cut(n->rank[r].fold, now, &n->digest);
        }
        tell_again(n, node);
        break;
    case 1:
        renew_agent(n, node, now);
        break;
    case 2:
        renew(&n->relay[node / 2], false);
        tell_again(n, node / 2 * 2);
        if (node / 2 * 2 + 1 < n->nodes) {
            tell_again(n, node / 2 * 2 + 1);
        }
        break;
    default:
        renew(&n->root, true);
        for (uint32_t i = 0; i < n->nodes; i++) {
            tell_again(n, i);
            roll_sum_again(n->relay[i / 2]);
        }
        break;
    }
}

void nodes_tick(struct nodes *n, uint64_t now)
{
    if (n->how.faults && rng_chance(&n->rng, 10)) {
        fault(n, now);
    }
    for (uint32_t i = 0; i < n->nodes; i++) {
        if (now >= n->next_ns[i]) {
            tell_node(n, i, now);
            n->next_ns[i] = now + n->how.period_ns / 2 + rng_below(&n->rng, (uint32_t)n->how.period_ns);
        }
    }
    for (uint32_t i = 0; i < n->relays && n->how.levels == 3; i++) {
        roll_digest_clear(&n->up);
        roll_sum_cut(n->relay[i], now, &n->up);
        tell(n, n->root, i, &n->up, now);
    }
    roll_digest_clear(&n->up);
    roll_sum_cut(n->root, now, &n->up);
    size_t before = n->wanted.hints;
    for (size_t i = 0; i < n->up.hints; i++) {
        const struct roll_digest_hint *h = &n->up.hint[i];
        n->hints |= n->opened == 0 ? 1u << h->why : 0;
        if (h->why == ROLL_HINT_DIFFERS || h->why == ROLL_HINT_MESSAGES) {
            roll_digest_add_hint(&n->wanted, h->key, (enum roll_digest_why)h->why, h->seq);
        }
        if (h->key != 0 && !is_named(n, h->key)) {
            roll_digest_add_hint(&n->named, h->key, (enum roll_digest_why)h->why, h->seq);
            n->wider = n->wider || !asks_everybody(n);
        }
    }
    if (n->e && !n->said && !asks_everybody(n) && now - n->opened_ns > STOOD_NS) {
        n->everybody = n->wider = true;
    }
    if (n->e && n->wider && now - n->opened_ns > GATHER_NS) {
        open_engine(n, now);
    } else if (n->e ? n->wanted.hints > before && lacks(n) : n->up.hints > 0 || n->failed) {
        open_engine(n, now);
    }
}
