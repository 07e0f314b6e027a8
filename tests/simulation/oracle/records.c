/*
 * records.c: what a rank writes down: the record of each call, and the definitions that stand before it.
 */
#include "tests/simulation/oracle/machine.h"
#include "trace/ident.h"

uint64_t story_key(const struct program *p, int comm)
{
    const struct comm_info *k = &p->comm[comm];
    if (k->parent < 0) {
        uint64_t id[2] = {(uint64_t)comm + 1, 77};
        return roll_key_unique_id(id, sizeof(id));
    }
    return roll_key_child(story_key(p, k->parent), k->child, k->color);
}

struct log *record_write(uint32_t rank, uint32_t thread, uint16_t act, enum roll_op op)
{
    struct rank_story *s = &sim.out->rank[rank];
    if (s->logs == LOGS_MAX) {
        sim.full = true;
        return &s->log[0];
    }
    const struct act *a = &sim.p->act[act];
    struct log *log = &s->log[s->logs++];
    *log = (struct log){.rec = {.enter_ns = sim.now,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .comm = 0,
                                .callsite = (uint16_t)(a->site),
                                .thread = (uint16_t)(thread + 1),
                                .layer = ROLL_LAYER_NONE,
                                .op = (uint8_t)op,
                                .dtype = ROLL_DTYPE_NONE,
                                .redop = ROLL_RED_NONE},
                        .enter_ns = sim.now,
                        .back_ns = sim.now + 200,
                        .done_ns = NEVER,
                        .act = act};
    uint32_t longest = sim.p->pace_ns < 20000 ? sim.p->pace_ns : 20000;
    log->back_ns = sim.now + 200 + rng_below(&sim.rng, longest) + a->slow * 10000u;
    return log;
}

uint32_t record_last(uint32_t rank)
{
    return sim.out->rank[rank].logs - 1;
}

void record_define(uint32_t rank, int comm)
{
    struct rank_story *s = &sim.out->rank[rank];
    struct process *q = &sim.proc[rank];
    if (q->id[comm] == 0) {
        q->id[comm] = ++q->ids;
        s->def[s->defs].before = s->logs;
        s->def[s->defs++].comm = comm;
    }
}

void record_async(uint32_t rank, uint32_t thread, uint16_t act, int comm)
{
    struct log *log = record_write(rank, thread, act, ROLL_OP_COMM_ASYNC);
    log->rec.comm = sim.proc[rank].id[comm];
    log->rec.flags = ROLL_FLAG_NONBLOCKING;
}
