/*
 * queues.c: the devices: launches wait in the order of their streams and of their communicator, and run when they stand
 * at the head of all of them.
 */
#include "tests/simulation/oracle/machine.h"

void launch_add(struct launch *l, uint16_t act, uint16_t pair, unsigned side, uint64_t bytes)
{
    if (sim.ops == OPS_MAX) {
        sim.full = true;
        return;
    }
    sim.op[sim.ops++] = (struct op){.act = act, .pair = pair, .side = (uint8_t)side, .bytes = bytes};
    l->ops++;
}

void queue_launch(uint32_t rank, const uint32_t *act, uint32_t acts, int comm, uint32_t first, uint32_t log)
{
    struct process *q = &sim.proc[rank];
    if (q->launches == LAUNCHES_MAX) {
        sim.full = true;
        return;
    }
    struct launch *l = &q->launch[q->launches];
    *l = (struct launch){.first_op = sim.ops, .comm = (uint8_t)comm, .log = log, .first = first};
    for (uint32_t i = 0; i < acts; i++) {
        const struct act *a = &sim.p->act[act[i]];
        if (a->comm != comm) {
            continue;
        }
        l->streams = (uint8_t)(l->streams | 1u << a->stream);
        if (a->kind == ACT_COLL && !is_lowered(a->op) && a->count != 0) {
            collective_add(l, (uint16_t)act[i]);
        }
    }
    for (uint32_t i = 0; i < acts; i++) {
        const struct act *a = &sim.p->act[act[i]];
        if (a->comm == comm) {
            messages_add(l, (uint16_t)act[i], rank);
        }
    }
    if (l->ops == 0) {
        return; /* dropped */
    }
    uint16_t id = (uint16_t)q->launches++;
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        if ((l->streams & 1u << s) != 0) {
            q->stream[s].launch[q->stream[s].tail++] = id;
        }
    }
    q->comm[comm].launch[q->comm[comm].tail++] = id;
}

static bool at_head(const struct fifo *f, uint32_t id)
{
    return f->head < f->tail && f->launch[f->head] == id;
}

static bool may_start(const struct process *q, uint32_t id)
{
    const struct launch *l = &q->launch[id];
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        if ((l->streams & 1u << s) != 0 && !at_head(&q->stream[s], id)) {
            return false;
        }
    }
    return at_head(&q->comm[l->comm], id);
}

static void begin_stage(uint32_t rank, struct launch *l)
{
    if (l->at == l->colls) {
        messages_post(l);
    } else {
        collective_arrive(rank, l);
    }
}

static bool stage_done(struct launch *l)
{
    return l->at == l->colls ? messages_done(l) : collective_done(l);
}

static void leave_queues(struct process *q, struct launch *l)
{
    l->state = DONE;
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        q->stream[s].head += (l->streams & 1u << s) != 0;
    }
    q->comm[l->comm].head++;
}

static bool start_heads(uint32_t rank)
{
    struct process *q = &sim.proc[rank];
    bool any = false;
    if (q->jammed || q->over) {
        return false;
    }
    for (uint32_t s = 0; s < STREAMS_MAX; s++) {
        struct fifo *f = &q->stream[s];
        if (f->head == f->tail) {
            continue;
        }
        uint16_t id = f->launch[f->head];
        struct launch *l = &q->launch[id];
        if (l->state == QUEUED && may_start(q, id)) {
            if (sim.runnings == sizeof(sim.running) / sizeof(sim.running[0])) {
                sim.full = true;
                return any;
            }
            l->state = RUNNING;
            sim.running[sim.runnings].rank = (uint8_t)rank;
            sim.running[sim.runnings++].launch = id;
            begin_stage(rank, l);
            any = true;
        }
    }
    return any;
}

void queues_run(mask_t fresh)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (uint32_t r = 0; r < sim.p->ranks; r++) {
            if ((fresh & BIT(r)) != 0) {
                moved = start_heads(r) || moved;
            }
        }
        fresh = 0;
        for (uint32_t i = 0; i < sim.runnings;) {
            uint32_t rank = sim.running[i].rank;
            struct process *q = &sim.proc[rank];
            struct launch *l = &q->launch[sim.running[i].launch];
            if (l->state == RUNNING && stage_done(l)) {
                moved = true;
                if (l->at < l->colls && ++l->at <= l->colls && (l->at < l->colls || l->ops > l->colls)) {
                    begin_stage(rank, l);
                } else {
                    leave_queues(q, l);
                    sim.out->rank[rank].log[l->log].done_ns = sim.now + DEVICE_NS;
                    fresh = (mask_t)(fresh | BIT(rank));
                }
            }
            if (l->state == DONE) {
                sim.running[i] = sim.running[--sim.runnings];
            } else {
                i++;
            }
        }
    }
}

/* A launch that has not begun may stand anywhere in its queues. */
static void take_out(struct process *q, struct launch *l, uint32_t id)
{
    l->state = DONE;
    for (uint32_t s = 0; s < STREAMS_MAX + 1; s++) {
        struct fifo *f = s < STREAMS_MAX ? &q->stream[s] : &q->comm[l->comm];
        uint32_t kept = f->head;
        for (uint32_t k = f->head; k < f->tail; k++) {
            if (f->launch[k] != id) {
                f->launch[kept++] = f->launch[k];
            }
        }
        f->tail = kept;
    }
}

void queues_withdraw(uint32_t rank, int comm)
{
    struct process *q = &sim.proc[rank];
    for (uint32_t id = 0; id < q->launches; id++) {
        struct launch *l = &q->launch[id];
        if (l->state == DONE || (comm >= 0 && l->comm != comm)) {
            continue;
        }
        sim.out->stale = sim.out->stale || comm < 0;
        if (l->state == QUEUED) {
            take_out(q, l, id);
            continue;
        }
        if (l->at < l->colls) {
            collective_leave(rank, l);
        } else {
            messages_leave(l);
        }
        leave_queues(q, l);
    }
    for (uint32_t i = 0; i < sim.runnings;) {
        if (sim.running[i].rank == rank && q->launch[sim.running[i].launch].state == DONE) {
            sim.running[i] = sim.running[--sim.runnings];
        } else {
            i++;
        }
    }
}
