/*
 * firsts.c: for every code a first fault, what it is told as, and how the job goes on after it.
 *
 * Each scene plays on the left crew; its last rank errs (rank "L"). Hosts that were held up come back in `over`, where
 * they do. The file is long because it is one table, at its end, with the scenes that its rows name: a code's row and
 * its scene are read together, and no part of the table is an idea of its own.
 */
#include "daemon/engine/expected.h"
#include "tests/daemon/engine/faults.h"

#include <signal.h>
#include <stddef.h>

#define AR   ROLL_OP_ALLREDUCE
#define AG   ROLL_OP_ALLGATHER
#define A2A  ROLL_OP_ALLTOALL
#define BC   ROLL_OP_BROADCAST
#define LAST crew_last(&t->left)
#define MS   1000000ull

static struct roll_record *call(struct story *t, uint32_t r, uint32_t comm, enum roll_op op, uint64_t count,
                                uint16_t site)
{
    t->sim->site = site;
    return sim_call(t->sim, r, comm, op, count);
}

static void wait_for(struct story *t, uint32_t r, bool stuck)
{
    t->sim->site = 39;
    if (stuck) {
        sim_stuck(t->sim, r);
    } else {
        sim_sync(t->sim, r);
    }
}

static void all_wait(struct story *t, bool stuck)
{
    EACH(r, &t->left)
    {
        wait_for(t, r, stuck);
    }
}

/* All hosts of the left crew, whose last record is a wait, come back. */
static void all_return(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        story_return(t, r);
    }
}

/* All but the last rank are in a call of dp. */
static void others_wait(struct story *t)
{
    EACH(r, &t->left)
    {
        if (r != LAST) {
            call(t, r, t->left.dp, AR, 512, 38);
            wait_for(t, r, true);
        }
    }
}

/* The last one comes after all, and everybody goes on. */
static void comes_after_all(struct story *t, int kind)
{
    (void)kind;
    call(t, LAST, t->left.dp, AR, 512, 38);
    wait_for(t, LAST, true);
    all_return(t, 0);
}

/* one call, another argument: it comes to its end all the same, as wrong calls often do */

enum argument { OP, COUNT, DTYPE, REDOP, ROOT };

static void bends(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        struct roll_record *rec = call(t, r, t->left.dp, kind == ROOT ? BC : AR, 512, 20);
        if (r == LAST) {
            rec->op = kind == OP ? ROLL_OP_REDUCESCATTER : rec->op;
            rec->count = kind == COUNT ? 500 : rec->count;
            rec->dtype = kind == DTYPE ? ROLL_DTYPE_INT32 : rec->dtype;
            rec->redop = kind == REDOP ? ROLL_RED_MAX : rec->redop;
            rec->peer = kind == ROOT ? 1 : rec->peer;
        }
    }
    all_wait(t, false);
    story_pass(t, 2 * S_);
}

/* calls left out, added, moved */

enum shift { ZERO, SKIP, ADD };

/* On a stream of its own, which nobody waits for: the hosts go on. The ranks are out of step on this communicator for
 * good. */
static void shifts(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        bool odd = r == LAST;
        if (kind != ADD || odd) {
            if (kind != SKIP || !odd) {
                call(t, r, t->left.dp, AG, kind == ZERO && odd ? 0 : 100, 20)->stream = 4;
            }
        }
        for (uint16_t k = 0; k < 6; k++) {
            call(t, r, t->left.dp, k % 2 ? AG : AR, 200 + k, 21 + k)->stream = 4;
        }
    }
    story_pass(t, 3 * S_);
}

/* All wait behind what follows, for good. */
static void shifts_and_hangs(struct story *t, int kind)
{
    shifts(t, kind);
    EACH(r, &t->left)
    {
        t->sim->site = 39;
        sim_stuck(t->sim, r)->stream = 4;
    }
    story_pass(t, 8 * S_);
}

static void reorders(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        for (int i = 0; i < 2; i++) {
            bool first = (i == 0) != (r == LAST);
            call(t, r, t->left.dp, first ? AR : AG, first ? 128 : 64, first ? 20 : 21);
        }
        call(t, r, t->left.dp, AR, 32, 22);
    }
    all_wait(t, false);
    job_steps(t, &t->left, 1);
    story_pass(t, 2 * S_);
}

/* Half of the ranks have taken the communicator down, half call once more. Who goes on: the others of the job. */
static void half_leaves(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        if (r % 2 == 0) {
            call(t, r, t->left.dp, AR, 100, 20);
            wait_for(t, r, true);
        } else {
            t->sim->site = 21;
            sim_record(t->sim, r, ROLL_OP_COMM_DESTROY, t->left.dp);
        }
    }
    story_pass(t, 8 * S_);
}

static void groups_differ(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        if (r == LAST) {
            sim_group(t->sim, r);
        }
        call(t, r, t->left.dp, AR, 100, 20);
        call(t, r, t->left.dp, AR, 200, 21);
        if (r == LAST) {
            sim_group_end(t->sim, r);
        }
    }
    all_wait(t, false);
    story_pass(t, 2 * S_);
}

/* The last rank captures what the others issue. */
static void captures_alone(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        t->sim->site = 20;
        if (r == LAST) {
            sim_capture(t->sim, r, t->left.dp, 1, 3, 100);
        }
        for (uint16_t k = 0; k < 3 && r != LAST; k++) {
            call(t, r, t->left.dp, AR, 100 + k, 20);
        }
        wait_for(t, r, r != LAST);
    }
    story_pass(t, 3 * S_);
}

static void other_graph(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        t->sim->site = 20;
        sim_capture(t->sim, r, t->left.dp, 1, 4, 100);
        sim_capture(t->sim, r, t->left.dp, 2, 4, 200);
        t->sim->site = 21;
        sim_launch(t->sim, r, t->left.dp, r == LAST ? 2 : 1);
    }
    all_wait(t, false);
    story_pass(t, 3 * S_);
}

/* messages */

static void partner_ends(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        t->sim->site = 20;
        if (r == LAST) {
            sim_proc(t->sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        } else {
            sim_recv(t->sim, r, t->left.dp, LAST, 64);
            wait_for(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

static void bytes_differ(struct story *t, int kind)
{
    (void)kind;
    t->sim->site = 20;
    sim_send(t->sim, LAST, t->left.dp, 0, 64);
    sim_recv(t->sim, 0, t->left.dp, LAST, 32);
    all_wait(t, false);
    story_pass(t, 2 * S_);
}

/* Everybody sends before it receives. kind: the last one's host does not wait, so it may still come. */
static void sends_in_a_ring(struct story *t, int kind)
{
    uint32_t n = t->left.size;
    EACH(r, &t->left)
    {
        t->sim->site = 20;
        sim_send(t->sim, r, t->left.dp, (r + 1) % n, 64);
        if (r != LAST || kind == 0) {
            wait_for(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

/* The last one receives, and so, one after the other, do they all. */
static void ring_comes_undone(struct story *t, int kind)
{
    (void)kind;
    uint32_t n = t->left.size;
    EACH(r, &t->left)
    {
        if (r != LAST) {
            story_return(t, r);
        }
        t->sim->site = 21;
        sim_recv(t->sim, r, t->left.dp, (r + n - 1) % n, 64);
        wait_for(t, r, false);
    }
    story_pass(t, S_);
}

/* An all-to-all-v. kind 0: the last rank sends one row more to everybody; 1: it leaves the exchange out. */
static void exchanges(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        bool odd = r == LAST;
        t->sim->site = 20;
        if (!odd || kind == 0) {
            sim_group(t->sim, r);
            EACH(p, &t->left)
            {
                sim_send(t->sim, r, t->left.ep, p, odd && p != r ? 33 : 32);
                sim_recv(t->sim, r, t->left.ep, p, 32);
            }
            sim_group_end(t->sim, r);
            sim_return(t->sim, r);
        } else {
            call(t, r, t->left.dp, AR, 512, 21);
        }
        wait_for(t, r, kind == 1);
    }
    story_pass(t, 8 * S_);
}

/* over several communicators */

/* kind 0: two calls in the other order, all wait. 1: the last rank has made the second one only, and its host goes on.
 */
static void crosses(struct story *t, int kind)
{
    const struct crew *c = &t->left;
    EACH(r, c)
    {
        if (r != LAST) {
            call(t, r, c->dp, AR, 77, 20);
        }
        if (r == LAST || kind == 0) {
            call(t, r, c->ep, AR, 77, 21);
        }
        if (r == LAST && kind == 0) {
            call(t, r, c->dp, AR, 77, 20);
        }
        if (r != LAST || kind == 0) {
            wait_for(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

/* The odd rank comes to the first call after all (on another stream); then the others come to the second. */
static void cross_comes_undone(struct story *t, int kind)
{
    (void)kind;
    const struct crew *c = &t->left;
    call(t, LAST, c->dp, AR, 77, 20)->stream = 3;
    EACH(r, c)
    {
        if (r != LAST) {
            story_return(t, r);
            call(t, r, c->ep, AR, 77, 21);
        }
        t->sim->site = 39;
        sim_record(t->sim, r, ROLL_OP_DEVICE_SYNC, UINT32_MAX);
    }
    story_pass(t, S_);
}

static void orders_differ(struct story *t, int kind)
{
    (void)kind;
    for (int k = 0; k < 3; k++) {
        EACH(r, &t->left)
        {
            for (int i = 0; i < 2; i++) {
                bool first = (i == 0) != (k == 1 && r == LAST);
                call(t, r, first ? t->left.dp : t->left.ep, first ? BC : AR, 300, first ? 20 : 21);
            }
        }
        all_wait(t, false);
        story_pass(t, S_);
    }
}

static void threads_race(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        for (uint64_t k = 0; k < 6; k++) {
            struct roll_record *rec = call(t, r, t->left.dp, AR, 256, 20);
            rec->thread = (uint16_t)(r == LAST ? 1 + k % 2 : 1);
            story_at(rec, t->now + k * 100000, r == LAST ? 150000 : 90000);
        }
    }
    story_pass(t, S_ / 10);
    all_wait(t, false);
    story_pass(t, S_);
}

/* The last rank has left a call out and is in the creation of a split, in which it waits for those who wait in the
 * call. */
static void splits(struct story *t, int kind)
{
    (void)kind;
    others_wait(t);
    t->sim->site = 21;
    struct roll_record *rec = sim_record(t->sim, LAST, ROLL_OP_COMM_SPLIT, t->left.dp);
    rec->stream = 0;
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    story_pass(t, 8 * S_);
}

/* the life of a communicator */

static void joined(struct story *t)
{
    uint32_t rank[STORY_RANKS];
    EACH(r, &t->left)
    {
        rank[r] = r;
    }
    t->sim->site = 20;
    scene_creation(t->sim, rank, t->left.size - 1, t->left.size);
}

static void does_not_join(struct story *t, int kind)
{
    (void)kind;
    joined(t);
    story_pass(t, 8 * S_);
}

static void joins_after_all(struct story *t, int kind)
{
    (void)kind;
    struct sim *sim = t->sim;
    struct sim_rank *r = &sim->rank[LAST], *zero = &sim->rank[0];
    uint32_t c = sim->comms - 1;
    r->in_comm[c] = (int32_t)LAST;
    r->comm_id[c] = ++r->comms;
    sim->site = 20;
    struct roll_record *rec = sim_record(sim, LAST, ROLL_OP_COMM_INIT, c);
    rec->count = t->left.size;
    rec->peer = (int32_t)LAST;
    /* the definition comes before the record that uses it */
    struct sim_event record = r->event[r->events - 1], define = {.kind = SIM_DEFINE};
    for (size_t i = 0; i < zero->events; i++) {
        if (zero->event[i].kind == SIM_DEFINE && zero->event[i].def.type == ROLL_DEF_COMM) {
            define = zero->event[i];
        }
    }
    define.def.id = r->comm_id[c];
    define.def.comm.info.rank = (int32_t)LAST;
    r->event[r->events - 1] = define;
    (void)sim_record(sim, LAST, ROLL_OP_COMM_INIT, c);
    r->ticket--;
    r->event[r->events - 1] = record;
    EACH(k, &t->left)
    {
        if (k != LAST) {
            story_return(t, k);
        }
    }
    story_pass(t, S_);
}

/* kind 1: it logs the error and leaves. */
static void is_refused(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        if (r != LAST) {
            call(t, r, t->left.dp, AR, 512, 38);
            wait_for(t, r, true);
        }
    }
    t->sim->site = 38;
    scene_refused(t->sim, LAST, t->left.dp, 512, AT_ONCE);
    if (kind == 1) {
        sim_proc(t->sim, LAST, ROLL_PROC_FINISHED, SIM_EXIT(1));
    }
    story_pass(t, 8 * S_);
}

/* The odd rank's peers take the communicator down: their calls are over, and nobody has made the one that was
 * refused. */
static void waiters_abort(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        if (r != LAST) {
            sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.dp);
        }
    }
    story_pass(t, 2 * S_);
}

/* processes */

enum end { KILLED, FINISHED, STOPPED, BUSY, BLOCKED };

static void does_not_come(struct story *t, int kind)
{
    others_wait(t);
    if (kind == KILLED) {
        sim_proc(t->sim, LAST, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
    } else if (kind == FINISHED) {
        sim_proc(t->sim, LAST, ROLL_PROC_FINISHED, SIM_EXIT(0));
    } else if (kind == STOPPED) {
        sim_proc(t->sim, LAST, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
    } else if (kind == BLOCKED) {
        t->sim->site = 37;
        sim_stuck(t->sim, LAST)->stream = 9;
    }
    story_pass(t, 8 * S_);
}

static void lets_go(struct story *t, int kind)
{
    if (kind == STOPPED) {
        sim_proc(t->sim, LAST, ROLL_PROC_RUNNING, ROLL_EXIT_UNKNOWN);
    } else if (kind == BLOCKED) {
        story_return(t, LAST);
    }
    comes_after_all(t, 0);
}

/* The other ranks' watchdogs abort, and these ranks make new communicators without the odd one. */
static void survivors(struct story *t, int kind)
{
    (void)kind;
    struct crew rest = {.first = 0, .size = t->left.size - 1};
    EACH(r, &rest)
    {
        story_return(t, r);
        t->sim->site = 36;
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.dp);
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->left.ep);
        sim_record(t->sim, r, ROLL_OP_COMM_ABORT, t->world);
    }
    t->right = story_crew(t, 0, rest.size);
    story_pass(t, S_);
}

static void all_are_killed(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        call(t, r, t->left.dp, AR, 512, 20);
        wait_for(t, r, true);
        sim_proc(t->sim, r, ROLL_PROC_DEAD, SIM_SIGNAL(SIGTERM));
    }
    story_pass(t, 15 * S_);
}

/* All are in the call, and nobody comes back. */
static void is_stuck(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        call(t, r, t->left.dp, AR, 512, 5);
        t->sim->site = 6;
        sim_stuck(t->sim, r);
    }
    story_pass(t, 25 * S_);
}

/* The last rank is in a wait of its own, and nobody waits for it. */
static void stays_alone(struct story *t, int kind)
{
    (void)kind;
    t->sim->site = 6;
    sim_stuck(t->sim, LAST)->stream = 9;
    story_pass(t, 65 * S_);
}

static void returns_alone(struct story *t, int kind)
{
    (void)kind;
    story_return(t, LAST);
}

/* Steps of 100 ms; the last rank takes 40 ms longer. */
static void lags(struct story *t, int kind)
{
    (void)kind;
    for (uint32_t i = 0; i < 120; i++) {
        uint64_t leave = t->now, arrive = leave + 140 * MS, back = arrive + 2 * MS;
        t->step++;
        EACH(r, &t->left)
        {
            uint64_t own = arrive - (r == LAST ? 0 : 40 * MS);
            t->sim->rank[r].step = t->step;
            story_at(call(t, r, t->left.dp, AR, 512, 20), own, 5000);
            t->sim->site = 39;
            story_at(sim_sync(t->sim, r), own + 6000, back - own - 6000);
        }
        t->now = back - 2 * MS;
        story_pass(t, 2 * MS);
        t->now = back;
    }
}

/* mixture of experts */

static void one_layer(struct story *t, uint32_t layer, uint64_t rows, uint32_t duties, uint32_t rows_of_last,
                      uint32_t duties_of_last)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        call(t, r, t->left.ep, A2A, 64, 20);
        sim_moe_forward(t->sim, r, t->left.ep, layer, r == LAST ? rows_of_last : rows,
                        r == LAST ? duties_of_last : duties);
        call(t, r, t->left.ep, A2A, 64, 21);
        wait_for(t, r, false);
    }
    story_pass(t, S_);
}

static void has_no_tokens(struct story *t, int kind)
{
    one_layer(t, 2, 8, kind ? 0 : 2, 0, kind ? 0 : 2);
}

/* kind 0: an evaluation, without backward. 1: the others wait in backward, the last one goes on to the sum of
 * gradients. */
static void owes(struct story *t, int kind)
{
    one_layer(t, 2, 8, 2, 0, 0);
    EACH(r, &t->left)
    {
        if (kind == 1) {
            call(t, r, r == LAST ? t->left.dp : t->left.ep, r == LAST ? AR : A2A, 64, r == LAST ? 23 : 22);
            wait_for(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

static void is_remedied(struct story *t, int kind)
{
    (void)kind;
    struct roll_record *rec = scene_moe(t->sim, LAST, t->left.ep, ROLL_OP_MOE_REMEDY, 2, ROLL_PHASE_FORWARD);
    rec->peer = ROLL_REMEDY_FILL;
    rec->step = ++t->step;
    story_pass(t, S_);
}

static void product_steps(struct story *t, uint32_t steps, bool last_skips)
{
    for (uint32_t i = 0; i < steps; i++) {
        EACH(r, &t->left)
        {
            bool skips = last_skips && r == LAST;
            call(t, r, t->left.ep, A2A, 64, 20);
            t->sim->site = 21;
            if (!skips) {
                sim_product(t->sim, r, 77, 4);
            }
            call(t, r, t->left.ep, A2A, 128, 22);
            if (!skips) {
                call(t, r, t->left.ep, A2A, 256, 23);
                wait_for(t, r, last_skips);
            }
        }
        story_pass(t, S_ / 5);
    }
}

/* Experts of a job without moe_core. kind 1: the last rank waits for the sum of gradients. */
static void makes_no_product(struct story *t, int kind)
{
    product_steps(t, 4, false);
    product_steps(t, 1, true);
    if (kind == 1) {
        call(t, LAST, t->left.dp, AR, 512, 24);
        wait_for(t, LAST, true);
    }
    story_pass(t, 8 * S_);
}

static void makes_its_backward_late(struct story *t, int kind)
{
    (void)kind;
    call(t, LAST, t->left.ep, A2A, 256, 23);
    wait_for(t, LAST, true);
    all_return(t, 0);
    story_pass(t, S_);
}

/* Numbers that must be alike; then the collective, which comes to its end. kind + 100: no such collective is made. */
static void number_differs(struct story *t, int kind)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        scene_uniform(t->sim, r, t->left.ep, kind % 100, r == LAST ? 17 : 24);
        if (kind < 100) {
            call(t, r, t->left.ep, AG, r == LAST ? 17 : 24, 20)->layer = 2;
        }
        wait_for(t, r, false);
    }
    story_pass(t, 2 * S_);
}

/* kind 0: the last rank's buffer does not fit its splits. 1: its router chooses others when it runs again. */
static void routes(struct story *t, int kind)
{
    uint32_t n = t->left.size;
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        scene_splits(t->sim, r, t->left.ep, 4 * n + (kind == 0 && r == LAST ? 3 : 0), n, 4, ROLL_PHASE_FORWARD, 0);
    }
    if (kind == 1) {
        scene_splits(t->sim, LAST, t->left.ep, 0, n, 5, ROLL_PHASE_RECOMPUTE, 0);
    }
    story_pass(t, 2 * S_);
}

enum number { REPLICA, NOT_SUMMED, NOT_FINITE };

static void numbers_are_wrong(struct story *t, int kind)
{
    t->step++;
    EACH(r, &t->left)
    {
        t->sim->rank[r].step = t->step;
        if (kind == REPLICA) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_REPLICA, 1000 + (r == LAST), 0);
        } else if (kind == NOT_SUMMED) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(3.0 + r),
                         scene_bits_float(90.0f));
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(3.0 + r), 0);
        } else if (r == LAST) {
            scene_tensor(t->sim, r, t->left.dp, MOE_TENSOR_EXPERTS, MOE_TENSOR_NOTFINITE, 512, 0);
        }
    }
    story_pass(t, 2 * S_);
}

/* the tool itself */

static void loses_records(struct story *t, int kind)
{
    (void)kind;
    sim_lose(t->sim, LAST, 3);
    story_pass(t, 2 * S_);
}

static void is_unseen(struct story *t, int kind)
{
    (void)kind;
    struct roll_engine_note note = {.pid = 77, .world_rank = -1, .host = "node0", .exe = "x", .reason = "its threads"};
    (void)roll_engine_note(t->e, &note);
    story_pass(t, S_);
}

static void is_not_heard(struct story *t, int kind)
{
    (void)kind;
    struct roll_engine_sight sight = {.heard = false};
    others_wait(t);
    story_feed(t);
    (void)roll_engine_sight(t->e, t->source[LAST], &sight);
    story_pass(t, 20 * S_);
}

static void is_heard_again(struct story *t, int kind)
{
    struct roll_engine_sight sight = {.heard = true};
    (void)roll_engine_sight(t->e, t->source[LAST], &sight);
    comes_after_all(t, kind);
}

/* What was rehearsed had one rank. */
static void is_not_rehearsed(struct story *t, int kind)
{
    static const struct roll_expected rehearsed = {.ranks = 1};
    (void)kind;
    roll_engine_expect(t->e, &rehearsed);
    story_pass(t, S_);
}

#define ROW(NAME) ROLL_VERDICT_##NAME
const struct first firsts[] = {
    {ROW(OP_MISMATCH), "an argument", SAME, bends, OP, "proven op-mismatch L", NULL, NULL, NULL},
    {ROW(COUNT_MISMATCH), "an argument", SAME, bends, COUNT, "proven count-mismatch L", NULL, NULL, NULL},
    {ROW(DTYPE_MISMATCH), "an argument", SAME, bends, DTYPE, "proven dtype-mismatch L", NULL, NULL, NULL},
    {ROW(REDOP_MISMATCH), "an argument", SAME, bends, REDOP, "proven redop-mismatch L", NULL, NULL, NULL},
    {ROW(ROOT_MISMATCH), "an argument", SAME, bends, ROOT, "proven root-mismatch L", NULL, NULL, NULL},
    {ROW(ZERO_COUNT), "hangs", APART, shifts_and_hangs, ZERO, "proven zero-count L", NULL, NULL, NULL},
    {ROW(ZERO_COUNT), "out of step", OTHER, shifts, ZERO, "proven zero-count L", NULL, NULL, NULL},
    {ROW(GROUP_MISMATCH), "one groups", SAME, groups_differ, 0, "suspected group-mismatch -", NULL, NULL, NULL},
    {ROW(CAPTURE_MISMATCH), "hangs", APART, captures_alone, 0, "proven capture-mismatch L", NULL, NULL, NULL},
    {ROW(GRAPH_MISMATCH), "another graph", SAME, other_graph, 0, "proven graph-mismatch L", NULL, NULL, NULL},
    {ROW(CALL_SKIPPED), "hangs", APART, shifts_and_hangs, SKIP, "proven call-skipped L", NULL, NULL, NULL},
    {ROW(CALL_SKIPPED), "out of step", OTHER, shifts, SKIP, "proven call-skipped L", NULL, NULL, NULL},
    {ROW(CALL_ADDED), "hangs", APART, shifts_and_hangs, ADD, "proven call-added L", NULL, NULL, NULL},
    {ROW(CALL_ADDED), "out of step", OTHER, shifts, ADD, "proven call-added L", NULL, NULL, NULL},
    {ROW(CALLS_REORDERED), "goes on", SAME, reorders, 0, "proven calls-reordered L", NULL, NULL, NULL},
    {ROW(SEQUENCE_TIE), "half leaves", APART, half_leaves, 0, "proven sequence-tie -", NULL, NULL, NULL},
    {ROW(P2P_UNMATCHED), "the partner ended", APART, partner_ends, 0, "proven p2p-unmatched L", NULL, NULL, NULL},
    {ROW(P2P_BYTES), "goes on", SAME, bytes_differ, 0, "proven p2p-bytes -", NULL, NULL, NULL},
    {ROW(P2P_DEADLOCK), "hangs", APART, sends_in_a_ring, 0, "proven p2p-deadlock -", NULL, NULL, NULL},
    {ROW(P2P_DEADLOCK), "comes undone", SAME, sends_in_a_ring, 1, "suspected p2p-deadlock -", ring_comes_undone,
     "withdrawn p2p-deadlock", NULL},
    {ROW(ALLTOALLV_MISMATCH), "rows differ", SAME, exchanges, 0, "proven alltoallv-mismatch L", NULL, NULL, NULL},
    {ROW(ALLTOALLV_MISMATCH), "left out", APART, exchanges, 1, "proven alltoallv-mismatch L", NULL, NULL, NULL},
    {ROW(CIRCULAR_WAIT), "hangs", APART, crosses, 0, "proven circular-wait L", NULL, NULL, NULL},
    {ROW(CIRCULAR_WAIT), "comes undone", SAME, crosses, 1, "suspected circular-wait L", cross_comes_undone,
     "withdrawn circular-wait", NULL},
    {ROW(OPPOSITE_ORDER), "goes on", SAME, orders_differ, 0, "predicted opposite-order L", NULL, NULL, NULL},
    {ROW(THREAD_RACE), "goes on", SAME, threads_race, 0, "proven thread-race L", NULL, NULL, NULL},
    {ROW(CROSSED_WAIT), "a split", APART, splits, 0, "proven crossed-wait L", NULL, NULL, NULL},
    {ROW(INIT_MISSING), "joins late", SAME, does_not_join, 0, "suspected init-missing L", joins_after_all,
     "withdrawn init-missing", NULL},
    {ROW(INIT_MISSING), "never joins", APART, does_not_join, 0, "suspected init-missing -", NULL, NULL, NULL},
    {ROW(CALL_REFUSED), "made again late", SAME, is_refused, 0, "suspected call-refused L", comes_after_all,
     "withdrawn call-refused", NULL},
    {ROW(CALL_REFUSED), "not made again", APART, is_refused, 0, "suspected call-refused L", NULL, NULL, NULL},
    {ROW(CALL_REFUSED), "given up", APART, is_refused, 0, "suspected call-refused L", waiters_abort, NULL, NULL},
    {ROW(CALL_REFUSED), "it leaves", APART, is_refused, 1, "proven call-refused L", NULL, NULL, NULL},
    {ROW(RANK_DEAD), "others of the job", APART, does_not_come, KILLED, "proven rank-dead L", NULL, NULL, NULL},
    {ROW(RANK_DEAD), "the survivors", REST, does_not_come, KILLED, "proven rank-dead L", survivors, NULL, NULL},
    {ROW(RANK_DEAD), "all", ENDS, all_are_killed, 0, "note rank-dead -", NULL, NULL, "no rank is left"},
    {ROW(RANK_FINISHED), "others of the job", APART, does_not_come, FINISHED, "proven rank-finished L", NULL, NULL,
     NULL},
    {ROW(RANK_FINISHED), "the survivors", REST, does_not_come, FINISHED, "proven rank-finished L", survivors, NULL,
     NULL},
    {ROW(RANK_BUSY), "comes late", SAME, does_not_come, BUSY, "suspected rank-busy L", lets_go, "withdrawn rank-busy",
     NULL},
    {ROW(RANK_BLOCKED), "comes late", SAME, does_not_come, BLOCKED, "suspected rank-blocked L", lets_go,
     "withdrawn rank-blocked", NULL},
    {ROW(RANK_STOPPED), "is continued", SAME, does_not_come, STOPPED, "proven rank-stopped L", lets_go, NULL, NULL},
    {ROW(RANK_STOPPED), "others of the job", APART, does_not_come, STOPPED, "proven rank-stopped L", NULL, NULL, NULL},
    {ROW(COLLECTIVE_STUCK), "comes to its end", SAME, is_stuck, 0, "suspected collective-stuck -", all_return,
     "withdrawn collective-stuck", NULL},
    {ROW(RANK_STUCK), "comes back", SAME, stays_alone, 0, "suspected rank-stuck L", returns_alone,
     "withdrawn rank-stuck", NULL},
    {ROW(RANK_STUCK), "others of the job", APART, stays_alone, 0, "suspected rank-stuck L", NULL, NULL, NULL},
    {ROW(STRAGGLER), "slow", SAME, lags, 0, "note straggler L; suspected straggler L", NULL, NULL, NULL},
    {ROW(MOE_ZERO_TOKENS), "goes on", SAME, has_no_tokens, 0, "note moe-zero-tokens L", NULL, NULL, NULL},
    {ROW(MOE_GEMM_SKIPPED), "goes on", SAME, has_no_tokens, 1, "note moe-gemm-skipped L", NULL, NULL, NULL},
    {ROW(MOE_OBLIGATION), "an evaluation", SAME, owes, 0, "predicted moe-obligation-missing L", NULL,
     "withdrawn moe-obligation-missing", NULL},
    {ROW(MOE_OBLIGATION), "hangs", APART, owes, 1, "proven moe-obligation-missing L", NULL, NULL, NULL},
    {ROW(MOE_REMEDIED), "goes on", SAME, is_remedied, 0, "note moe-remedied L", NULL, NULL, NULL},
    {ROW(MOE_GEMM_MISSING), "comes late", SAME, makes_no_product, 0, "suspected moe-gemm-missing L",
     makes_its_backward_late, "withdrawn moe-gemm-missing", NULL},
    {ROW(MOE_GEMM_MISSING), "hangs", APART, makes_no_product, 1, "suspected moe-gemm-missing L", NULL, NULL, NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "comes true", SAME, number_differs, MOE_UNIFORM_TOKENS, "proven moe-tokens-unequal L",
     NULL, NULL, NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "does not come true", SAME, number_differs, 100 + MOE_UNIFORM_TOKENS,
     "predicted moe-tokens-unequal L", NULL, "withdrawn moe-tokens-unequal", NULL},
    {ROW(MOE_TOKENS_UNEQUAL), "goes no further", APART, number_differs, 100 + MOE_UNIFORM_TOKENS,
     "predicted moe-tokens-unequal L", NULL, NULL, NULL},
    {ROW(MOE_SPLIT_SUM), "goes on", SAME, routes, 0, "proven moe-split-sum L", NULL, NULL, NULL},
    {ROW(MOE_RECOMPUTE), "goes on", SAME, routes, 1, "proven moe-recompute-differs L", NULL, NULL, NULL},
    {ROW(MOE_CAPACITY), "comes true", SAME, number_differs, MOE_UNIFORM_CAPACITY, "proven moe-capacity-differs L", NULL,
     NULL, NULL},
    {ROW(MOE_CAPACITY), "does not come true", SAME, number_differs, 100 + MOE_UNIFORM_CAPACITY,
     "predicted moe-capacity-differs L", NULL, "withdrawn moe-capacity-differs", NULL},
    {ROW(MOE_BUFFER), "shows nowhere", SAME, number_differs, 100 + MOE_UNIFORM_BUFFER, "predicted moe-buffer-differs L",
     NULL, NULL, NULL},
    {ROW(MOE_BUFFER), "comes true", SAME, number_differs, MOE_UNIFORM_BUFFER, "proven moe-buffer-differs L", NULL, NULL,
     NULL},
    {ROW(REPLICA_MISMATCH), "goes on", SAME, numbers_are_wrong, REPLICA, "proven replica-mismatch L", NULL, NULL, NULL},
    {ROW(GRADIENT_NOT_SUMMED), "goes on", SAME, numbers_are_wrong, NOT_SUMMED, "proven gradient-not-summed 0-L", NULL,
     NULL, NULL},
    {ROW(GRADIENT_NOT_FINITE), "goes on", SAME, numbers_are_wrong, NOT_FINITE, "proven gradient-not-finite L", NULL,
     NULL, NULL},
    {ROW(DATA_INCOMPLETE), "goes on", SAME, loses_records, 0, "note data-incomplete L", NULL, NULL, NULL},
    {ROW(ATTACHED_UNSEEN), "goes on", SAME, is_unseen, 0, "note attached-unseen -", NULL, NULL, NULL},
    {ROW(AGENT_SILENT), "is heard again", SAME, is_not_heard, 0, "note agent-silent -", is_heard_again, NULL, NULL},
    {ROW(REHEARSAL_LEFT), "goes on", SAME, is_not_rehearsed, 0, "note rehearsal-left -", NULL, NULL, NULL},
};
const size_t first_count = sizeof(firsts) / sizeof(firsts[0]);
