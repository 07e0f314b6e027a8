/*
 * nodes_engine.c: the engine that looks at records: from which on it has to see them, and how it is fed.
 */
#include "tests/simulation/nodes_state.h"

#include <stdlib.h>
#include <string.h>

void nodes_feed_one(struct nodes *n, struct rank_node *k, struct roll_record rec)
{
    uint64_t ticket = roll_seal_ticket(rec.seal);
    if (n->narrow) {
        if (ticket >= k->recs || !nodes_is_kept(n, k, &rec)) {
            return;
        }
        if (k->number_of[ticket] == 0) {
            k->number_of[ticket] = ++k->number;
        }
        rec.seal = roll_seal(k->number_of[ticket] - 1, roll_seal_state(rec.seal));
    }
    (void)roll_engine_feed(n->e, k->source, &rec, 1);
}

void nodes_lose(struct nodes *n, struct rank_node *k)
{
    (void)roll_engine_lost(n->e, k->source, n->narrow ? k->number++ : k->lost_first, n->narrow ? 1 : k->lost_count);
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct rank_node *k = from;
    *out = ticket < k->recs ? k->rec[ticket] : (struct roll_record){0};
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
        struct roll_record at = {.comm = list[i].comm};
        uint32_t first = 0, high;
        if (n->narrow && (list[i].op != ROLL_OP_NONE || !nodes_range(n, nodes_key(k, &at), &first, &high))) {
            continue;
        }
        list[i].next = list[i].next > first || !n->narrow ? list[i].next : first;
        if (list[i].op != ROLL_OP_NONE) {
            (void)roll_engine_place_made(n->e, k->source, list[i].comm, (enum roll_op)list[i].op, list[i].peer,
                                         list[i].next, list[i].sure ? list[i].made : UINT32_MAX);
        } else if (begin != 0 || first > 0) {
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

bool nodes_lack(struct nodes *n)
{
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct roll_excerpt_records records = records_of(&n->rank[r]);
        if (begin_of(n, &n->rank[r], &records) < n->begin[r]) {
            return true;
        }
    }
    return false;
}

void nodes_open_engine(struct nodes *n, uint64_t now)
{
    struct roll_engine_config config = {.memory = n->how.room};
    roll_engine_destroy(&n->e);
    n->opened++;
    n->asked = n->wanted.hints;
    n->narrow = n->how.narrow && !n->broad && !n->failed && !nodes_ask_everybody(n) && nodes_are_about_calls(n);
    n->stalls = n->narrow && n->stood.hints > 0;
    n->stalls_there = n->hurry = false;
    n->narrows += n->narrow;
    for (size_t i = 0; i < n->asked && i < SPANS; i++) {
        n->from[i] = nodes_hinted_from(n, &n->wanted.hint[i]);
    }
    n->front = nodes_front(n);
    n->since_ns = now;
    n->broad = n->broad || !n->narrow;
    n->wider = n->said = n->told = false;
    n->opened_ns = now;
    n->e = nodes_need(roll_engine_new(&config));
    (void)roll_engine_tick(n->e, now);
    for (uint32_t r = 0; r < n->how.ranks; r++) {
        struct rank_node *k = &n->rank[r];
        struct roll_engine_sight unheard = {.heard = false, .aside = true, .starved = k->sight.starved};
        k->asked = nodes_is_concerned(n, k);
        k->number = 0;
        if (k->room > 0) {
            memset(k->number_of, 0, k->room * sizeof(*k->number_of));
        }
        (void)roll_engine_open(n->e, &k->info, &k->source);
        if (!k->asked || n->narrow) {
            (void)roll_engine_sight(n->e, k->source, &unheard);
        }
        if (!k->asked) {
            continue;
        }
        if (k->told_sight && !n->narrow) {
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
                nodes_feed_one(n, k, k->rec[t]);
            } else if (t == k->lost_first) {
                nodes_lose(n, k);
            }
        }
        if (k->asked && k->lost_count != 0 && k->lost_first >= k->recs) { /* nothing has come behind the loss */
            nodes_lose(n, k);
        }
        if (k->asked && k->told_process && !n->narrow) {
            (void)roll_engine_process(n->e, k->source, k->proc, k->status);
        }
    }
}
