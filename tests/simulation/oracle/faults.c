/*
 * faults.c: how processes end, and the hour at which one is killed or stopped.
 */
#include "tests/simulation/oracle/machine.h"

void process_end(uint32_t rank, enum roll_proc_state state, int32_t status)
{
    struct process *q = &sim.proc[rank];
    struct rank_story *s = &sim.out->rank[rank];
    queues_withdraw(rank, -1);
    q->over = true;
    s->end_ns = sim.now;
    s->state = state;
    s->status = status;
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        q->host[t].ended = true;
    }
}

void process_exit(uint32_t rank, const struct act *a)
{
    int32_t code = (int32_t)a->count;
    bool quick = a->error == 1; /* _exit: no last words */
    process_end(rank, quick && code != 0 ? ROLL_PROC_DEAD : ROLL_PROC_FINISHED, code << 8);
}

uint64_t fate_next(uint32_t *rank)
{
    uint64_t at = NEVER;
    for (uint32_t r = 0; r < sim.p->ranks; r++) {
        const struct process *q = &sim.proc[r];
        uint64_t when = q->doom < q->halt ? q->doom : q->halt;
        if (!q->over && when < at) {
            at = when;
            *rank = r;
        }
    }
    return at;
}

void fate_strike(uint32_t rank, uint64_t at)
{
    struct process *q = &sim.proc[rank];
    if (q->doom == at) {
        process_end(rank, ROLL_PROC_DEAD, q->doom_signal);
    } else {
        q->halt = NEVER;
        q->stopped = true;
        sim.out->rank[rank].stop_ns = sim.now;
    }
    q->doom = q->over ? NEVER : q->doom;
}
