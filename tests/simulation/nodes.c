/*
 * nodes.c: see nodes.h: what the ranks do, kept, and handed on to the engine that looks.
 */
#include "tests/simulation/nodes_state.h"

#include <stdlib.h>
#include <string.h>

void *nodes_need(void *memory)
{
    if (!memory) {
        abort();
    }
    return memory;
}

struct nodes *nodes_new(const struct nodes_how *how)
{
    struct nodes *n = nodes_need(calloc(1, sizeof(*n)));
    n->how = *how;
    n->rng.state = how->seed;
    n->nodes = (how->ranks + how->per_node - 1) / how->per_node;
    n->relays = (n->nodes + 1) / 2;
    struct roll_sum_config config = {.stand_ns = STAND_NS};
    for (uint32_t i = 0; i < n->nodes; i++) {
        n->node[i] = nodes_need(roll_sum_new(&config));
        n->relay[i] = nodes_need(roll_sum_new(&config));
    }
    config.is_root = true;
    n->root = nodes_need(roll_sum_new(&config));
    for (uint32_t r = 0; r < how->ranks; r++) {
        n->rank[r].fold = nodes_need(roll_fold_new(INSIDE_NS));
        n->rank[r].def = nodes_need(malloc(DEFS_MAX * sizeof(struct roll_def)));
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
        free(n->rank[r].number_of);
    }
    roll_engine_destroy(&n->e);
    roll_digest_fini(&n->digest);
    roll_digest_fini(&n->up);
    roll_digest_fini(&n->came);
    roll_digest_fini(&n->wanted);
    roll_digest_fini(&n->named);
    roll_digest_fini(&n->stood);
    free(n);
    *pointer = NULL;
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
    n->wider = n->wider || (n->e && !k->asked && nodes_is_concerned(n, k));
}

/* Room for the record of a ticket. It grows with what comes: most programs have some hundred calls, and clearing
 * RECORDS_MAX of each rank takes longer than all the rest. */
static void room_for(struct rank_node *k, uint32_t ticket)
{
    uint32_t room = k->room > 0 ? k->room : RECORDS_FIRST;
    while (room <= ticket) {
        room *= 2;
    }
    if (room > k->room) {
        k->rec = nodes_need(realloc(k->rec, room * sizeof(*k->rec)));
        k->number_of = nodes_need(realloc(k->number_of, room * sizeof(*k->number_of)));
        memset(k->rec + k->room, 0, (room - k->room) * sizeof(*k->rec));
        memset(k->number_of + k->room, 0, (room - k->room) * sizeof(*k->number_of));
        k->room = room;
    }
}

void nodes_feed(struct nodes *n, uint32_t rank, const struct roll_record *recs, size_t count)
{
    struct rank_node *k = &n->rank[rank];
    for (size_t i = 0; i < count; i++) {
        uint64_t ticket = roll_seal_ticket(recs[i].seal);
        if (ticket < RECORDS_MAX) {
            room_for(k, (uint32_t)ticket);
            k->rec[ticket] = recs[i];
            k->recs = ticket + 1 > k->recs ? (uint32_t)ticket + 1 : k->recs;
        }
        (void)roll_fold_record(k->fold, &recs[i], recs[i].enter_ns);
    }
    for (size_t i = 0; n->e && k->asked && n->narrow && i < count; i++) {
        nodes_feed_one(n, k, recs[i]);
    }
    if (n->e && k->asked && !n->narrow) {
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
        nodes_lose(n, k);
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
    if (k->failed && n->narrow) {
        nodes_broaden(n);
    }
    if (n->e && k->asked && !n->narrow) {
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
        (void)roll_engine_sight(n->e, k->source, k->asked && !n->narrow ? sight : &aside);
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
