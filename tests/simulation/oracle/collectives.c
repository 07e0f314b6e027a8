/*
 * collectives.c: what collectives wait for. The n-th collective of each rank on a communicator has the n-th slot, and
 * is done when all members have arrived there with calls that fit.
 */
#include "tests/simulation/oracle/machine.h"

static uint32_t size_class(const struct act *a)
{
    return 63u - (uint32_t)__builtin_clzll(act_bytes(a) | 1);
}

/* Inside a group NCCL runs collectives by size, then function, reduction and type. */
static bool goes_first(const struct act *a, const struct act *b)
{
    if (size_class(a) != size_class(b)) {
        return size_class(a) > size_class(b);
    }
    if (a->op != b->op) {
        return a->op < b->op;
    }
    return a->redop != b->redop ? a->redop < b->redop : a->dtype < b->dtype;
}

void collective_add(struct launch *l, uint16_t act)
{
    launch_add(l, act, 0, 0, 0);
    for (uint32_t k = sim.ops - 1; k > l->first_op; k--) {
        if (!goes_first(&sim.p->act[sim.op[k].act], &sim.p->act[sim.op[k - 1].act])) {
            break;
        }
        struct op swap = sim.op[k];
        sim.op[k] = sim.op[k - 1];
        sim.op[k - 1] = swap;
    }
    l->colls++;
}

/* Can two ranks' calls be one collective? NCCL goes on with another reduction, and with another datatype of as many
 * bytes. */
static bool fits(const struct act *a, const struct act *b)
{
    return a->op == b->op && act_bytes(a) == act_bytes(b) && a->peer == b->peer;
}

void collective_arrive(uint32_t rank, struct launch *l)
{
    uint32_t k = sim.proc[rank].coll[l->comm]++;
    if (k >= SLOTS_MAX) {
        sim.full = true;
        return;
    }
    struct slot *s = &sim.slot[l->comm][k];
    uint16_t act = sim.op[l->first_op + l->at].act;
    if (s->arrived == 0 && !s->bad) {
        s->act = act;
    } else if (!fits(&sim.p->act[s->act], &sim.p->act[act])) {
        s->bad = true;
    }
    s->arrived = (mask_t)(s->arrived | BIT(rank));
    l->slot = (uint16_t)k;
}

bool collective_done(const struct launch *l)
{
    const struct slot *s = &sim.slot[l->comm][l->slot];
    return s->arrived == sim.p->comm[l->comm].members && !s->bad;
}

void collective_leave(uint32_t rank, const struct launch *l)
{
    struct slot *s = &sim.slot[l->comm][l->slot];
    s->bad = s->arrived != sim.p->comm[l->comm].members || s->bad;
    s->arrived = (mask_t)(s->arrived & ~BIT(rank));
}
