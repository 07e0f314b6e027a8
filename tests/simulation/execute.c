/*
 * execute.c: see execute.h. Time is virtual: the thread with the lowest clock makes its next act, then the devices do
 * all that they can, then hosts whose wait is over go on. Who can go on does not depend on the order of these steps
 * (every wait is for all of its conditions, and none is ever taken back but by the end of a process), so the outcome
 * belongs to the program, and the order of times only to the records. The parts of a step are in oracle/.
 */
#include "tests/simulation/execute.h"

#include "tests/simulation/oracle/machine.h"

#include <string.h>

struct machine sim;

static void make_act(uint32_t rank, uint32_t thread, uint16_t act)
{
    const struct act *a = &sim.p->act[act];
    struct process *q = &sim.proc[rank];
    struct host *h = &q->host[thread];
    h->act = act;
    h->clock = sim.now + 300 + rng_below(&sim.rng, a->slow ? 2000 : sim.p->pace_ns);
    if (act >= sim.mark && (sim.who & BIT(rank)) != 0 && sim.out->event_ns == NEVER) {
        sim.out->event_ns = sim.now;
    }
    switch ((enum kind)a->kind) {
    case ACT_COLL:
    case ACT_SEND:
    case ACT_RECV:
        call_make(rank, thread, act);
        break;
    case ACT_GROUP:
        h->in_group = true;
        break;
    case ACT_END:
        call_end_group(rank, thread, act);
        break;
    case ACT_STREAM:
    case ACT_EVENT:
    case ACT_DEVICE:
    case ACT_COPY:
    case ACT_POLL:
        wait_begin(rank, thread, act);
        break;
    case ACT_PAUSE:
        h->clock = sim.now + a->count;
        break;
    case ACT_INIT:
    case ACT_SPLIT:
        creation_begin(rank, thread, act);
        break;
    case ACT_DESTROY:
    case ACT_ABORT:
        comm_end(rank, thread, act);
        break;
    case ACT_EXIT:
        if (a->error == 0 && !others_ended(q, h)) {
            h->block = ON_JOIN;
            h->pc--; /* again */
            break;
        }
        process_exit(rank, a);
        break;
    case ACT_DOOM:
        q->doom = sim.now + a->count;
        q->doom_signal = a->peer;
        break;
    case ACT_STOP:
        q->halt = sim.now + a->count;
        break;
    case ACT_SPIN:
        h->block = ON_NOTHING;
        break;
    case ACT_MEET:
        q->met[thread]++;
        h->block = ON_MEET;
        break;
    case ACT_JAM:
        q->jammed = true;
        break;
    case ACT_KINDS:
        break;
    }
}

/* A second thread begins with a communicator when the first one has made it. */
static bool is_ready(const struct process *q, const struct host *h)
{
    if (h->block != FREE || h->pc == h->acts) {
        return false;
    }
    const struct act *a = &sim.p->act[h->list[h->pc]];
    return a->comm < 0 || a->kind == ACT_INIT || (q->made & 1ull << a->comm) != 0;
}

static bool step(void)
{
    uint32_t rank = 0, thread = 0, fated = 0;
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < sim.p->ranks; r++) {
        const struct process *q = &sim.proc[r];
        for (uint32_t t = 0; !q->over && !q->stopped && t < sim.threads; t++) {
            const struct host *h = &q->host[t];
            if (is_ready(q, h) && h->clock < at) {
                at = h->clock;
                rank = r;
                thread = t;
            }
        }
    }
    uint64_t fate = fate_next(&fated);
    if (at == NEVER && fate == NEVER) {
        return false;
    }
    uint32_t poller = 0, polling = 0;
    uint64_t poll = polls_next(&poller, &polling);
    if (poll <= at && poll <= fate) {
        sim.now = poll > sim.now ? poll : sim.now;
        polls_write(poller, polling);
        return !sim.full;
    }
    if (fate <= at) {
        sim.now = fate > sim.now ? fate : sim.now;
        fate_strike(fated, fate);
    } else {
        struct host *h = &sim.proc[rank].host[thread];
        sim.now = at > sim.now ? at : sim.now;
        make_act(rank, thread, h->list[h->pc++]);
        fated = rank;
    }
    queues_run(BIT(fated));
    waits_end();
    return !sim.full;
}

static void start(const struct program *p, struct story *out, uint64_t seed)
{
    sim.p = p;
    sim.out = out;
    sim.rng.state = seed;
    sim.now = START_NS;
    sim.ops = sim.pairs = sim.runnings = 0;
    sim.threads = 1;
    sim.polls = false;
    sim.full = false;
    memset(sim.slot, 0, sizeof(sim.slot[0]) * p->comms);
    memset(sim.creation, 0, sizeof(sim.creation));
    memset(sim.connected, 0, sizeof(sim.connected));
    memset(sim.pair_of, 0, sizeof(sim.pair_of[0]) * p->comms);
    for (uint32_t r = 0; r < p->ranks; r++) {
        struct process *q = &sim.proc[r];
        struct rank_story *s = &out->rank[r];
        q->made = 0;
        q->launches = q->ids = 0;
        q->groups = q->met[0] = q->met[1] = 0;
        q->over = q->stopped = q->jammed = false;
        q->doom = q->halt = NEVER;
        memset(q->seq, 0, sizeof(q->seq));
        memset(q->coll, 0, sizeof(q->coll));
        memset(q->p2p, 0, sizeof(q->p2p));
        memset(q->id, 0, sizeof(q->id));
        memset(q->splits, 0, sizeof(q->splits));
        for (uint32_t i = 0; i < STREAMS_MAX; i++) {
            q->stream[i].head = q->stream[i].tail = 0;
        }
        for (uint32_t i = 0; i < p->comms; i++) {
            q->comm[i].head = q->comm[i].tail = 0;
        }
        s->logs = s->defs = 0;
        s->stop_ns = s->end_ns = NEVER;
        s->state = ROLL_PROC_RUNNING;
        s->status = ROLL_EXIT_UNKNOWN;
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            struct host *h = &q->host[t];
            h->clock = START_NS + MS_ + rng_below(&sim.rng, p->pace_ns);
            h->acts = h->pc = h->group = h->pendings = 0;
            h->block = FREE;
            h->log = UINT32_MAX;
            h->in_group = h->ended = h->poll.on = false;
            s->stuck[t] = NO_ACT;
        }
    }
    for (uint32_t i = 0; i < p->acts; i++) {
        const struct act *a = &p->act[i];
        sim.threads = a->thread != 0 ? THREADS_MAX : sim.threads;
        for (mask_t left = a->ranks; left != 0; left = (mask_t)(left & (left - 1))) {
            struct host *h = &sim.proc[mask_first(left)].host[a->thread];
            h->list[h->acts++] = (uint16_t)i;
        }
    }
}

int execute(const struct program *p, struct story *out, uint32_t mark, mask_t who, uint64_t seed)
{
    start(p, out, seed);
    sim.mark = mark;
    sim.who = who;
    out->hangs = out->stale = false;
    out->waiting = 0;
    out->event_ns = NEVER;
    while (step()) {
    }
    if (sim.full) {
        return -1;
    }
    out->still_ns = sim.now;
    for (uint32_t r = 0; r < p->ranks; r++) {
        struct process *q = &sim.proc[r];
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            out->rank[r].poll[t] = q->host[t].poll;
            out->rank[r].poll[t].on = q->host[t].poll.on && !q->over && !q->stopped;
        }
        for (uint32_t t = 0; t < THREADS_MAX && !q->over; t++) {
            if (q->host[t].block != FREE && q->host[t].block != ON_NOTHING) {
                out->hangs = true;
                out->waiting = (mask_t)(out->waiting | BIT(r));
                out->rank[r].stuck[t] = q->host[t].act;
            }
        }
    }
    return 0;
}
