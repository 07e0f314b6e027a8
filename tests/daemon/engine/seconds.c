/*
 * seconds.c: faults of one rank in a job that goes well; and that job.
 */
#include "tests/daemon/engine/faults.h"

#include <signal.h>

#define AR  ROLL_OP_ALLREDUCE
#define A2A ROLL_OP_ALLTOALL

/* Each call of a step stands at a place of its own. */
void job_steps(struct story *t, const struct crew *c, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        t->step++;
        EACH(r, c)
        {
            t->sim->rank[r].step = t->step;
            sim_moe_forward(t->sim, r, c->ep, 0, 8, 2);
            for (uint16_t k = 0; k < 4; k++) {
                t->sim->site = 1 + k;
                sim_call(t->sim, r, c->ep, A2A, 64);
            }
            t->sim->site = 5;
            sim_call(t->sim, r, c->dp, AR, 512);
            t->sim->site = 6;
            sim_sync(t->sim, r);
        }
        story_pass(t, S_ / 5);
    }
}

/* All but the victim wait in a call that it does not make. */
static void others_wait(struct story *t, uint32_t victim)
{
    const struct crew *c = &t->right;
    EACH(r, c)
    {
        if (r != victim) {
            t->sim->site = 40;
            sim_call(t->sim, r, c->dp, AR, 512);
            t->sim->site = 41;
            sim_stuck(t->sim, r);
        }
    }
}

static void ends(struct story *t, uint32_t victim, enum roll_proc_state state, int32_t status)
{
    others_wait(t, victim);
    sim_proc(t->sim, victim, state, status);
}

static void killed(struct story *t, uint32_t victim)
{
    ends(t, victim, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
}

static void crashed(struct story *t, uint32_t victim)
{
    ends(t, victim, ROLL_PROC_DEAD, SIM_SIGNAL(SIGSEGV));
}

static void exited(struct story *t, uint32_t victim)
{
    ends(t, victim, ROLL_PROC_DEAD, SIM_EXIT(1));
}

static void stopped(struct story *t, uint32_t victim)
{
    ends(t, victim, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
}

static void finished(struct story *t, uint32_t victim)
{
    ends(t, victim, ROLL_PROC_FINISHED, SIM_EXIT(0));
}

static void busy(struct story *t, uint32_t victim)
{
    others_wait(t, victim);
}

/* In each of the threads that it has. */
static void blocked(struct story *t, uint32_t victim)
{
    const struct sim_rank *rank = &t->sim->rank[victim];
    uint16_t threads = 1;
    for (size_t i = 0; i < rank->events; i++) {
        bool call = rank->event[i].kind == SIM_RECORD;
        threads = call && rank->event[i].rec.thread > threads ? rank->event[i].rec.thread : threads;
    }
    others_wait(t, victim);
    t->sim->site = 42;
    for (uint16_t thread = 1; thread <= threads; thread++) {
        struct roll_record *rec = sim_stuck(t->sim, victim);
        rec->stream = 9;
        rec->thread = thread;
    }
}

/* Another argument in one call. */
static void bends(struct story *t, uint32_t victim, enum roll_op op, bool hangs)
{
    const struct crew *c = &t->right;
    EACH(r, c)
    {
        t->sim->site = 43;
        struct roll_record *rec = sim_call(t->sim, r, c->dp, op, 512);
        if (r == victim) {
            rec->redop = op == AR ? ROLL_RED_MAX : rec->redop;
            rec->peer = op == AR ? rec->peer : 1;
        }
        t->sim->site = 44;
        if (hangs) {
            sim_stuck(t->sim, r);
        } else {
            sim_sync(t->sim, r);
        }
    }
}

static void other_reduction(struct story *t, uint32_t victim)
{
    bends(t, victim, AR, false);
}

static void other_root(struct story *t, uint32_t victim)
{
    bends(t, victim, ROLL_OP_BROADCAST, true);
}

/* The victim goes on to the next call at once. */
static void skips(struct story *t, uint32_t victim)
{
    const struct crew *c = &t->right;
    EACH(r, c)
    {
        t->sim->site = 45;
        if (r != victim) {
            sim_call(t->sim, r, c->dp, AR, 96);
        }
        for (uint16_t k = 0; k < 6; k++) {
            t->sim->site = 60 + k;
            sim_call(t->sim, r, c->dp, k % 2 ? ROLL_OP_BROADCAST : ROLL_OP_ALLGATHER, 64 + k);
        }
        t->sim->site = 48;
        sim_stuck(t->sim, r);
    }
}

/* Nothing in forward, so nothing in backward; it goes on to the sum of all gradients. */
static void owes(struct story *t, uint32_t victim)
{
    const struct crew *c = &t->right;
    t->step++;
    EACH(r, c)
    {
        bool odd = r == victim;
        t->sim->rank[r].step = t->step;
        t->sim->site = 49;
        sim_call(t->sim, r, c->ep, A2A, 64);
        sim_moe_forward(t->sim, r, c->ep, 6, odd ? 0 : 8, odd ? 0 : 2);
        t->sim->site = 50;
        sim_call(t->sim, r, c->ep, A2A, 64);
        t->sim->site = odd ? 5 : 51;
        sim_call(t->sim, r, odd ? c->dp : c->ep, odd ? AR : A2A, odd ? 512 : 64);
        t->sim->site = 52;
        sim_stuck(t->sim, r);
    }
}

static void other_bytes(struct story *t, uint32_t victim)
{
    const struct crew *c = &t->right;
    uint32_t peer = victim == c->first ? crew_last(c) : c->first;
    t->sim->site = 53;
    sim_send(t->sim, victim, c->dp, peer - c->first, 64);
    sim_recv(t->sim, peer, c->dp, victim - c->first, 32);
    EACH(r, c)
    {
        t->sim->site = 54;
        sim_sync(t->sim, r);
    }
}

/* The victim makes two calls on two communicators in the other order. */
static void crosses(struct story *t, uint32_t victim)
{
    const struct crew *c = &t->right;
    EACH(r, c)
    {
        t->sim->site = 55;
        sim_call(t->sim, r, r == victim ? c->ep : c->dp, AR, 77);
        t->sim->site = 56;
        sim_call(t->sim, r, r == victim ? c->dp : c->ep, AR, 77);
        t->sim->site = 57;
        sim_stuck(t->sim, r);
    }
}

const struct second seconds[] = {
    {"killed", killed, "proven rank-dead V"},
    {"crashed", crashed, "proven rank-dead V"},
    {"ended with a code", exited, "proven rank-dead V"},
    {"finished", finished, "proven rank-finished V"},
    {"stopped", stopped, "proven rank-stopped V"},
    {"busy", busy, "suspected rank-busy V"},
    {"blocked", blocked, "suspected rank-blocked V"},
    {"another reduction", other_reduction, "proven redop-mismatch V"},
    {"another root", other_root, "proven root-mismatch V"},
    {"a call skipped", skips, "proven call-skipped V"},
    {"a backward missed", owes, "proven moe-obligation-missing V"},
    {"other bytes", other_bytes, "proven p2p-bytes -"},
    {"the other order", crosses, "proven circular-wait V"},
};
const size_t second_count = sizeof(seconds) / sizeof(seconds[0]);
