/*
 * first_calls.c: first faults in what ranks call: arguments, calls left out, added and moved, groups and graphs,
 * messages, and the order of several communicators.
 */
#include "tests/daemon/engine/firsts.h"

/* one call, another argument: it comes to its end all the same, as wrong calls often do */

enum argument { OP, COUNT, DTYPE, REDOP, ROOT };

static void bends(struct story *t, int kind)
{
    EACH(r, &t->left)
    {
        struct roll_record *rec = first_call(t, r, t->left.dp, kind == ROOT ? BC : AR, 512, 20);
        if (r == LAST) {
            rec->op = kind == OP ? ROLL_OP_REDUCESCATTER : rec->op;
            rec->count = kind == COUNT ? 500 : rec->count;
            rec->dtype = kind == DTYPE ? ROLL_DTYPE_INT32 : rec->dtype;
            rec->redop = kind == REDOP ? ROLL_RED_MAX : rec->redop;
            rec->peer = kind == ROOT ? 1 : rec->peer;
        }
    }
    first_all_wait(t, false);
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
                first_call(t, r, t->left.dp, AG, kind == ZERO && odd ? 0 : 100, 20)->stream = 4;
            }
        }
        for (uint16_t k = 0; k < 6; k++) {
            first_call(t, r, t->left.dp, k % 2 ? AG : AR, 200 + k, 21 + k)->stream = 4;
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
            first_call(t, r, t->left.dp, first ? AR : AG, first ? 128 : 64, first ? 20 : 21);
        }
        first_call(t, r, t->left.dp, AR, 32, 22);
    }
    first_all_wait(t, false);
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
            first_call(t, r, t->left.dp, AR, 100, 20);
            first_wait(t, r, true);
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
        first_call(t, r, t->left.dp, AR, 100, 20);
        first_call(t, r, t->left.dp, AR, 200, 21);
        if (r == LAST) {
            sim_group_end(t->sim, r);
        }
    }
    first_all_wait(t, false);
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
            first_call(t, r, t->left.dp, AR, 100 + k, 20);
        }
        first_wait(t, r, r != LAST);
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
    first_all_wait(t, false);
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
            first_wait(t, r, true);
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
    first_all_wait(t, false);
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
            first_wait(t, r, true);
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
        first_wait(t, r, false);
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
            first_call(t, r, t->left.dp, AR, 512, 21);
        }
        first_wait(t, r, kind == 1);
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
            first_call(t, r, c->dp, AR, 77, 20);
        }
        if (r == LAST || kind == 0) {
            first_call(t, r, c->ep, AR, 77, 21);
        }
        if (r == LAST && kind == 0) {
            first_call(t, r, c->dp, AR, 77, 20);
        }
        if (r != LAST || kind == 0) {
            first_wait(t, r, true);
        }
    }
    story_pass(t, 8 * S_);
}

/* The odd rank comes to the first call after all (on another stream); then the others come to the second. */
static void cross_comes_undone(struct story *t, int kind)
{
    (void)kind;
    const struct crew *c = &t->left;
    first_call(t, LAST, c->dp, AR, 77, 20)->stream = 3;
    EACH(r, c)
    {
        if (r != LAST) {
            story_return(t, r);
            first_call(t, r, c->ep, AR, 77, 21);
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
                first_call(t, r, first ? t->left.dp : t->left.ep, first ? BC : AR, 300, first ? 20 : 21);
            }
        }
        first_all_wait(t, false);
        story_pass(t, S_);
    }
}

static void threads_race(struct story *t, int kind)
{
    (void)kind;
    EACH(r, &t->left)
    {
        for (uint64_t k = 0; k < 6; k++) {
            struct roll_record *rec = first_call(t, r, t->left.dp, AR, 256, 20);
            rec->thread = (uint16_t)(r == LAST ? 1 + k % 2 : 1);
            story_at(rec, t->now + k * 100000, r == LAST ? 150000 : 90000);
        }
    }
    story_pass(t, S_ / 10);
    first_all_wait(t, false);
    story_pass(t, S_);
}

/* The last rank has left a call out and is in the creation of a split, in which it waits for those who wait in the
 * call. */
static void splits(struct story *t, int kind)
{
    (void)kind;
    first_others_wait(t);
    t->sim->site = 21;
    struct roll_record *rec = sim_record(t->sim, LAST, ROLL_OP_COMM_SPLIT, t->left.dp);
    rec->stream = 0;
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    story_pass(t, 8 * S_);
}

static const struct first at[] = {
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
};
const struct first_table first_calls = {at, sizeof(at) / sizeof(at[0])};
