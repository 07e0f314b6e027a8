/*
 * waits.c: calls that hold their host, and when each of them lets it go on: synchronization, polls, the creation and
 * the end of communicators, connections, the process's own threads.
 */
#include "tests/simulation/oracle/machine.h"

static void come_back(uint32_t rank, struct host *h, uint64_t at)
{
    if (h->log != UINT32_MAX) {
        struct log *log = &sim.out->rank[rank].log[h->log];
        uint64_t least = log->enter_ns + sim.p->act[log->act].slow * 10000u; /* however soon its peers have connected */
        at = at > least ? at : least;
        log->back_ns = at;
        h->log = UINT32_MAX;
    }
    h->block = FREE;
    h->clock = at + rng_below(&sim.rng, sim.p->pace_ns);
}

static bool all_connected(const struct host *h)
{
    for (uint32_t c = 0; c < sim.p->comms; c++) {
        if ((h->connects & 1ull << c) != 0 && sim.connected[c] != sim.p->comm[c].members) {
            return false;
        }
    }
    return true;
}

/* Where an event was recorded: before launch `upto`. A record's place is its ticket plus 1, and tickets count from 0.
 */
static uint64_t event_place(uint32_t rank, const struct process *q, uint32_t upto)
{
    return upto < q->launches ? q->launch[upto].first + 1u : sim.out->rank[rank].logs + 1u;
}

void wait_begin(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &sim.p->act[act];
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    h->block = ON_STREAMS;
    h->streams = (uint8_t)(a->kind == ACT_DEVICE ? 0xffu : 1u << a->stream);
    h->upto = q->launches;
    const struct fifo *f = &q->stream[a->stream];
    if (a->kind == ACT_EVENT && a->count > 0) {
        h->upto = f->tail >= a->count ? f->launch[f->tail - a->count] : 0;
    }
    uint64_t place = event_place(rank, q, h->upto);
    if (a->kind == ACT_STREAM || a->kind == ACT_EVENT || a->kind == ACT_DEVICE) {
        struct log *log = record_write(rank, thread, act,
                                       a->kind == ACT_STREAM  ? ROLL_OP_STREAM_SYNC
                                       : a->kind == ACT_EVENT ? ROLL_OP_EVENT_SYNC
                                                              : ROLL_OP_DEVICE_SYNC);
        log->rec.stream = a->kind == ACT_DEVICE ? 0 : (uint16_t)(a->stream + 2);
        log->rec.count = a->kind == ACT_EVENT ? place : 0;
        log->back_ns = NEVER;
        h->log = record_last(rank);
    } else if (a->kind == ACT_POLL) {
        bool event = a->count != 0;
        polls_begin(h, event ? ROLL_OP_EVENT_QUERY : ROLL_OP_STREAM_QUERY, (uint16_t)(a->stream + 2), 0,
                    event ? place : 0);
    }
}

void creation_begin(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &sim.p->act[act];
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    bool init = a->kind == ACT_INIT;
    if (init) {
        record_define(rank, a->comm);
    }
    struct log *log = record_write(rank, thread, act, init ? ROLL_OP_COMM_INIT : ROLL_OP_COMM_SPLIT);
    log->rec.comm = q->id[a->comm];
    log->rec.count = init ? mask_count(sim.p->comm[a->comm].members) : 0;
    log->rec.peer = init ? (int32_t)comm_rank(sim.p, a->comm, rank) : a->child < 0 ? -1 : sim.p->comm[a->child].color;
    log->rec.aux = init ? 0 : q->splits[a->comm];
    h->creation = init ? 7u : q->splits[a->comm]++;
    h->comm = a->comm;
    h->block = ON_CREATION;
    sim.creation[a->comm][h->creation % 8] = (mask_t)(sim.creation[a->comm][h->creation % 8] | BIT(rank));
    if (is_nonblocking(a)) {
        log->rec.result = IN_PROGRESS;
        log->rec.flags = ROLL_FLAG_NONBLOCKING;
        polls_begin(h, ROLL_OP_COMM_QUERY, 0, q->id[a->comm], 0);
    } else {
        log->back_ns = NEVER;
        h->log = record_last(rank);
    }
}

void comm_end(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &sim.p->act[act];
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    struct log *log = record_write(rank, thread, act, a->kind == ACT_ABORT ? ROLL_OP_COMM_ABORT : ROLL_OP_COMM_DESTROY);
    log->rec.comm = q->id[a->comm];
    if (a->kind == ACT_ABORT) {
        queues_withdraw(rank, a->comm);
        return;
    }
    log->back_ns = NEVER;
    h->log = record_last(rank);
    h->block = ON_COMM;
    h->comm = a->comm;
}

bool others_ended(const struct process *q, const struct host *h)
{
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        const struct host *o = &q->host[t];
        if (o != h && !o->ended && (o->pc < o->acts || o->block != FREE)) {
            return false;
        }
    }
    return true;
}

/* Is the thread's wait over? */
static bool wait_over(uint32_t rank, struct host *h)
{
    struct process *q = &sim.proc[rank];
    const struct act *a = &sim.p->act[h->act];
    switch (h->block) {
    case ON_STREAMS:
        for (uint32_t s = 0; s < STREAMS_MAX; s++) {
            const struct fifo *f = &q->stream[s];
            if ((h->streams & 1u << s) != 0 && f->head < f->tail && f->launch[f->head] < h->upto) {
                return false;
            }
        }
        return true;
    case ON_CREATION:
        return sim.creation[h->comm][h->creation % 8] == sim.p->comm[a->comm].members;
    case ON_COMM:
        return q->comm[h->comm].head == q->comm[h->comm].tail;
    case ON_CONNECT:
        return all_connected(h);
    case ON_MEET:
        return q->met[0] == q->met[1];
    case ON_JOIN:
        return others_ended(q, h);
    default:
        return false;
    }
}

static void go_on(uint32_t rank, uint32_t thread)
{
    struct host *h = &sim.proc[rank].host[thread];
    const struct act *a = &sim.p->act[h->act];
    enum block block = h->block;
    polls_end(rank, h, sim.now + DEVICE_NS);
    come_back(rank, h, sim.now + DEVICE_NS + rng_below(&sim.rng, 2000));
    if (block == ON_MEET) {
        h->clock = sim.now + DEVICE_NS + rng_below(&sim.rng, 4000); /* both at once */
    }
    if (block != ON_CREATION) {
        return;
    }
    int made = a->kind == ACT_SPLIT ? a->child : a->comm;
    if (made >= 0) {
        record_define(rank, made);
        sim.proc[rank].made |= 1ull << made;
    }
    if (is_nonblocking(a)) {
        record_async(rank, thread, h->act, a->comm);
    }
}

void waits_end(void)
{
    for (uint32_t r = 0; r < sim.p->ranks; r++) {
        struct process *q = &sim.proc[r];
        for (uint32_t t = sim.threads; t-- > 0;) { /* the first thread waits for the others, and is asked last */
            struct host *h = &q->host[t];
            if (!q->over && !q->stopped && h->block != FREE && wait_over(r, h)) {
                go_on(r, t);
            }
        }
    }
}
