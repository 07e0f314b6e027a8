/*
 * messages.c: sends and receives, and what is made of them. The n-th send of one rank to another on a communicator
 * meets the n-th receive.
 */
#include "tests/simulation/oracle/machine.h"

bool is_lowered(unsigned op)
{
    return op == ROLL_OP_ALLTOALL || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}

static uint16_t get_pair(int comm, uint32_t src, uint32_t dst)
{
    uint16_t *at = &sim.pair_of[comm][src][dst];
    if (*at == 0) {
        if (sim.pairs + 1 >= PAIRS_MAX) {
            sim.full = true;
            return 1;
        }
        *at = (uint16_t)++sim.pairs;
        sim.pair[*at].posted[0] = sim.pair[*at].posted[1] = 0;
    }
    return *at;
}

static void add_message(struct launch *l, uint16_t act, int comm, uint32_t src, uint32_t dst, unsigned side,
                        uint64_t bytes)
{
    launch_add(l, act, get_pair(comm, src, dst), side, bytes);
}

/* AlltoAll, Gather and Scatter are sends and receives. */
static void add_lowered(struct launch *l, uint16_t act, uint32_t rank)
{
    const struct act *a = &sim.p->act[act];
    mask_t others = sim.p->comm[a->comm].members;
    for (uint32_t r = 0; r < RANKS_MAX; r++) {
        if ((others & BIT(r)) == 0 || r == rank) {
            continue;
        }
        bool to = a->op == ROLL_OP_ALLTOALL || (a->op == ROLL_OP_GATHER ? (int)r == a->peer : (int)rank == a->peer);
        bool from = a->op == ROLL_OP_ALLTOALL || (a->op == ROLL_OP_GATHER ? (int)rank == a->peer : (int)r == a->peer);
        if (to) {
            add_message(l, act, a->comm, rank, r, 0, act_bytes(a));
        }
        if (from) {
            add_message(l, act, a->comm, r, rank, 1, act_bytes(a));
        }
    }
}

void messages_add(struct launch *l, uint16_t act, uint32_t rank)
{
    const struct act *a = &sim.p->act[act];
    if (a->kind == ACT_COLL && is_lowered(a->op) && a->count != 0) {
        add_lowered(l, act, rank);
    } else if (a->kind == ACT_SEND && a->peer != (int)rank) {
        add_message(l, act, a->comm, rank, (uint32_t)a->peer, 0, act_bytes(a));
    } else if (a->kind == ACT_RECV && a->peer != (int)rank) {
        add_message(l, act, a->comm, (uint32_t)a->peer, rank, 1, act_bytes(a));
    }
}

void messages_post(struct launch *l)
{
    for (uint32_t i = l->first_op + l->colls; i < l->first_op + l->ops; i++) {
        struct op *o = &sim.op[i];
        uint8_t *posted = &sim.pair[o->pair].posted[o->side];
        if (*posted == MESSAGES_MAX) {
            sim.full = true;
            return;
        }
        o->n = (*posted)++;
        sim.pair[o->pair].bytes[o->side][o->n] = (uint32_t)o->bytes;
        sim.pair[o->pair].gone[o->side][o->n] = 0;
    }
}

bool messages_done(struct launch *l)
{
    bool all = true;
    for (uint32_t i = l->first_op + l->colls; i < l->first_op + l->ops; i++) {
        struct op *o = &sim.op[i];
        if (!o->over) {
            uint32_t other = !o->side;
            bool there = sim.pair[o->pair].posted[other] > o->n && !sim.pair[o->pair].gone[other][o->n];
            uint32_t peers = sim.pair[o->pair].bytes[other][o->n];
            o->over = there && (o->side == 0 ? o->bytes <= peers : peers >= o->bytes);
            all = all && o->over;
        }
    }
    return all;
}

void messages_leave(const struct launch *l)
{
    for (uint32_t i = l->first_op + l->colls; i < l->first_op + l->ops; i++) {
        sim.pair[sim.op[i].pair].gone[sim.op[i].side][sim.op[i].n] = !sim.op[i].over;
    }
}
