/*
 * nodes_digest.c: digests that go up the tree, level by level, get lost with links and levels, and come again; and what
 * the root does about what they say.
 */
#include "tests/simulation/nodes_state.h"

#include "daemon/digest/digest_bytes.h"

#include <stdlib.h>

#define GATHER_NS (300 * MS_)
#define FRONT_NS  (200 * MS_)
#define NARROW_NS (3 * S_)
#define STOOD_NS  (2 * S_) /* so long after an engine has said nothing of some, all are looked at */

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
    *sum = nodes_need(roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND_NS, .is_root = is_root}));
}

/* An agent is started anew: it has what the ring still holds, which may not be everything. */
static void renew_agent(struct nodes *n, uint32_t node, uint64_t now)
{
    renew(&n->node[node], false);
    for (uint32_t r = node * n->how.per_node; r < (node + 1) * n->how.per_node && r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        roll_fold_destroy(&k->fold);
        k->fold = nodes_need(roll_fold_new(INSIDE_NS));
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

/* Somebody still stands on a communicator whose calls differ. */
static bool stands_there(const struct nodes *n)
{
    bool stands = false;
    for (size_t i = 0; i < n->stood.hints && !stands; i++) {
        const struct roll_digest_hint *h = &n->stood.hint[i];
        struct roll_sum_place place;
        bool known = h->why == ROLL_HINT_STANDS && roll_sum_place(n->root, h->key, &place);
        bool still = !known || (place.low == h->seq && (place.low < place.high || place.members < place.size));
        stands = still && nodes_differ_there(n, h->key);
    }
    return stands;
}

/* As root_digest.c says it. */
static bool hangs_there(struct nodes *n, uint64_t now)
{
    uint64_t front = nodes_front(n);
    if (n->stalls_there && front > n->stall_front) {
        n->stall_front = front;
        n->stall_ns = now;
    }
    return (now > n->opened_ns + FRONT_NS && front <= n->front) ||
           (n->stalls_there && now > n->stall_ns + FRONT_NS && stands_there(n));
}

void nodes_tick(struct nodes *n, uint64_t now)
{
    n->now = now;
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
        bool stands = h->why == ROLL_HINT_STANDS || h->why == ROLL_HINT_QUIET || h->why == ROLL_HINT_INSIDE;
        if (n->narrow && h->why != ROLL_HINT_DIFFERS && !stands) {
            nodes_broaden(n);
        }
        if (stands) {
            roll_digest_add_hint(&n->stood, h->key, (enum roll_digest_why)h->why, h->seq);
        }
        n->others = n->others || (!stands && h->why != ROLL_HINT_DIFFERS);
        n->stalls = n->stalls || (n->narrow && stands);
        if (n->narrow && stands && !n->stalls_there && nodes_differ_there(n, h->key)) {
            n->stalls_there = true;
            n->stall_front = nodes_front(n);
            n->stall_ns = now;
        }
        n->wider = n->wider || (n->e && nodes_is_beyond(n, h));
        if (h->why == ROLL_HINT_DIFFERS || h->why == ROLL_HINT_MESSAGES) {
            roll_digest_add_hint(&n->wanted, h->key, (enum roll_digest_why)h->why, h->seq);
        }
        if (h->key != 0 && !nodes_is_named(n, h->key)) {
            roll_digest_add_hint(&n->named, h->key, (enum roll_digest_why)h->why, h->seq);
            n->wider = n->wider || !nodes_ask_everybody(n);
        }
    }
    bool late = now > n->since_ns + NARROW_NS, elsewhere = n->stalls && n->said && now > n->since_ns + S_;
    if (n->e && n->narrow && (elsewhere || (!n->told && hangs_there(n, now)) || (!n->said && late))) {
        nodes_broaden(n);
    }
    if (n->e && !n->narrow && !n->said && !nodes_ask_everybody(n) && now - n->opened_ns > STOOD_NS) {
        n->everybody = n->wider = true;
    }
    if (n->e && n->wider && (n->hurry || now - n->opened_ns > GATHER_NS)) {
        nodes_open_engine(n, now);
    } else if (n->e ? n->wanted.hints > before && nodes_lack(n) : n->up.hints > 0 || n->failed) {
        nodes_open_engine(n, now);
    }
}
