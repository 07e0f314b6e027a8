/*
 * calls.c: collectives and messages as their host makes them: numbered, launched at once or at the end of their group.
 */
#include "tests/simulation/oracle/machine.h"

/* A call that returns at once: its host goes on behind it. */
static void take_time(uint32_t rank, struct host *h)
{
    uint64_t back = sim.out->rank[rank].log[record_last(rank)].back_ns;
    h->clock = back > h->clock && back != NEVER ? back : h->clock;
}

static void number_call(uint32_t rank, struct log *log, const struct act *a)
{
    struct process *q = &sim.proc[rank];
    bool taken = a->error == 0;
    if (a->kind == ACT_COLL) {
        log->rec.seq = q->seq[a->comm];
        q->seq[a->comm] += a->count != 0 && taken;
        return;
    }
    uint16_t *n = &q->p2p[a->comm][a->peer][a->kind == ACT_RECV];
    log->rec.seq = *n;
    *n = (uint16_t)(*n + taken);
}

/* The first collective of a communicator makes connections: the host is held until all members have come. */
static void connect(uint32_t rank, struct host *h, int comm, uint32_t log)
{
    if (sim.p->connects && (sim.connected[comm] & BIT(rank)) == 0) {
        sim.connected[comm] = (mask_t)(sim.connected[comm] | BIT(rank));
        h->connects = (h->block == ON_CONNECT ? h->connects : 0) | 1ull << comm;
        h->block = ON_CONNECT;
        h->log = log;
        sim.out->rank[rank].log[log].back_ns = NEVER;
    }
}

void call_make(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &sim.p->act[act];
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    struct log *log = record_write(rank, thread, act,
                                   a->kind == ACT_COLL   ? (enum roll_op)a->op
                                   : a->kind == ACT_SEND ? ROLL_OP_SEND
                                                         : ROLL_OP_RECV);
    log->rec.comm = q->id[a->comm];
    log->rec.count = a->count;
    log->rec.dtype = a->dtype;
    log->rec.redop = a->redop;
    log->rec.stream = (uint16_t)(a->stream + 2);
    log->rec.peer = a->peer < 0 ? ROLL_PEER_NONE : (int32_t)comm_rank(sim.p, a->comm, (uint32_t)a->peer);
    log->rec.result = a->error;
    log->rec.flags = is_nonblocking(a) ? ROLL_FLAG_NONBLOCKING : 0;
    number_call(rank, log, a);
    if (h->in_group) {
        h->group_log = h->group ? h->group_log : record_last(rank);
        h->group = h->group ? h->group : ++q->groups;
        log->rec.group = h->group;
        log->rec.flags |= ROLL_FLAG_IN_GROUP;
        if (a->error == 0 && h->pendings < sizeof(h->pending) / sizeof(h->pending[0])) {
            h->pending[h->pendings++] = act;
        }
        return;
    }
    take_time(rank, h);
    if (a->error == 0) {
        uint32_t one = act;
        queue_launch(rank, &one, 1, a->comm, record_last(rank), record_last(rank));
        if (a->kind == ACT_COLL && a->count != 0 && !is_nonblocking(a)) {
            connect(rank, h, a->comm, record_last(rank));
        }
        if (is_nonblocking(a)) {
            log->rec.result = IN_PROGRESS;
            record_async(rank, thread, act, a->comm);
        }
    }
}

/* Nothing of the group was enqueued: its numbers are given again. */
static void take_back(struct process *q, struct host *h)
{
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &sim.p->act[h->pending[i]];
        if (a->kind == ACT_COLL) {
            q->seq[a->comm] -= a->count != 0;
        } else {
            q->p2p[a->comm][a->peer][a->kind == ACT_RECV]--;
        }
    }
    h->group = 0;
    h->pendings = 0;
}

static bool has_collective(const struct host *h, int comm)
{
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &sim.p->act[h->pending[i]];
        if (a->comm == comm && a->kind == ACT_COLL && a->count != 0) {
            return true;
        }
    }
    return false;
}

void call_end_group(uint32_t rank, uint32_t thread, uint16_t act)
{
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    h->in_group = false;
    if (h->group == 0) {
        return; /* empty: no record */
    }
    uint8_t error = sim.p->act[act].error;
    struct log *log = record_write(rank, thread, act, ROLL_OP_GROUP_END);
    uint32_t at = record_last(rank);
    log->rec.group = h->group;
    log->rec.aux = (uint16_t)h->pendings;
    take_time(rank, h);
    if (error != 0) {
        log->rec.result = error == SIMULATED ? 0 : error;
        log->rec.count = error == SIMULATED;
        take_back(q, h);
        return;
    }
    bool slow = false;
    uint64_t comms = 0;
    for (uint32_t i = 0; i < h->pendings; i++) {
        const struct act *a = &sim.p->act[h->pending[i]];
        log->rec.stream = log->rec.stream ? log->rec.stream : (uint16_t)(a->stream + 2);
        slow = slow || is_nonblocking(a);
        comms |= 1ull << a->comm;
    }
    for (int c = 0; c < (int)sim.p->comms && !slow; c++) {
        if ((comms & 1ull << c) != 0 && has_collective(h, c)) {
            connect(rank, h, c, at);
        }
    }
    while (comms != 0) {
        int best = -1;
        for (int c = 0; c < (int)sim.p->comms; c++) {
            if ((comms & 1ull << c) != 0 && (best < 0 || story_key(sim.p, c) < story_key(sim.p, best))) {
                best = c;
            }
        }
        comms &= ~(1ull << best);
        queue_launch(rank, h->pending, h->pendings, best, h->group_log, at);
        if (slow) {
            log->rec.result = IN_PROGRESS;
            record_async(rank, thread, act, best);
            log = &sim.out->rank[rank].log[at];
        }
    }
    h->group = 0;
    h->pendings = 0;
}
