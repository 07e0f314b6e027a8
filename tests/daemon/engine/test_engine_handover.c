/*
 * test_engine_handover.c: hosts that wait where nobody used to look: in a free or a copy, and on one of two threads
 * that take turns, as PyTorch's forward and backward do. Each with its healthy twin.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE

/* Enters a call and stays there; thread 0: the one that makes all calls. */
static void enter(struct sim *sim, uint32_t rank, enum roll_op op, uint16_t thread)
{
    struct roll_record *rec = sim_record(sim, rank, op, UINT32_MAX);
    rec->thread = thread != 0 ? thread : rec->thread;
    rec->stream = op == ROLL_OP_COPY ? 2 : 0;
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
}

/* A rank that is inside a free, or inside a copy to the host, waits for its stream as in a wait. */
static void test_free_and_copy_are_waits(void **state)
{
    (void)state;
    static const enum roll_op ops[] = {ROLL_OP_DEVICE_SYNC, ROLL_OP_FREE, ROLL_OP_COPY};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(4);
            uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
            scene_calls(sim, w, 2);
            scene_calls(sim, two, 2);
            for (uint32_t r = 0; r < 4; r++) {
                bool swapped = sick && r == 3;
                sim_call(sim, r, swapped ? two : w, AR, 512);
                enter(sim, r, ops[i], 0);
                if (!sick) {
                    sim_return(sim, r);
                    sim_call(sim, r, two, AR, 512);
                    sim_sync(sim, r);
                }
            }
            sim->patience_ns = 2 * S_; /* less than what a silent host is given */
            sim_expect(sim, sick ? "proven circular-wait 3" : "");
            sim_destroy(&sim);
        }
    }
}

/* A free that has come back proves nothing: the call before it may stand on, and the circle is there. A wait for the
 * device that has come back proves that the call is over. */
static void test_free_that_came_back_proves_nothing(void **state)
{
    (void)state;
    static const enum roll_op ops[] = {ROLL_OP_FREE, ROLL_OP_COPY, ROLL_OP_NONE, ROLL_OP_DEVICE_SYNC};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        scene_calls(sim, w, 2);
        scene_calls(sim, two, 2);
        for (uint32_t r = 0; r < 4; r++) {
            sim_call(sim, r, r == 3 ? two : w, AR, 512);
            if (ops[i] != ROLL_OP_NONE) {
                sim_record(sim, r, ops[i], UINT32_MAX)->stream = ops[i] == ROLL_OP_COPY ? 2 : 0;
            }
            sim_call(sim, r, r == 3 ? w : two, AR, 512);
            sim_stuck(sim, r);
        }
        char *got = sim_run(sim, 0, false, false);
        assert_int_equal(strstr(got, "proven circular-wait 3") != NULL, ops[i] != ROLL_OP_DEVICE_SYNC);
        free(got);
        sim_destroy(&sim);
    }
}

/* A step on two threads: counts are gathered on the first one, and the second one exchanges rows. waits: what the
 * second thread is inside at the end; NONE: it came back. together: the first thread is inside a wait meanwhile. */
static void step(struct sim *sim, uint32_t r, const uint32_t comm[2], bool exchanges, enum roll_op waits, bool together)
{
    uint64_t begin = 1000000ull * (sim->rank[r].events + 1);
    struct roll_record *rec = sim_call(sim, r, comm[0], ROLL_OP_ALLGATHER, 8);
    rec->thread = 1;
    rec->enter_ns = begin;
    rec->call_ns = together ? 5000 : 1000;
    if (exchanges) {
        rec = sim_call(sim, r, comm[1], AR, 512);
        rec->thread = 2;
        rec->enter_ns = begin + 2000;
        rec->call_ns = 1000;
        if (waits != ROLL_OP_NONE) {
            enter(sim, r, waits, 2);
        }
    }
}

/* The backward of rank 1 lacks the exchange; its next forward waits for the others, whose backward waits for rank 1.
 * Their first threads are inside nothing that is recorded. */
static void test_threads_that_take_turns(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) { /* 0: sick; 1: it happens in the first step; 2: threads overlap; 3: healthy */
        struct sim *sim = sim_new(4);
        uint32_t comm[2] = {sim_world(sim), sim_comm(sim, "ep", NULL, 4)};
        for (uint32_t r = 0; r < 4; r++) {
            for (int before = 0; before < (how == 1 ? 0 : 2); before++) {
                step(sim, r, comm, true, ROLL_OP_NONE, how == 2);
            }
            bool lacks = how != 3 && r == 1;
            step(sim, r, comm, !lacks, ROLL_OP_FREE, how == 2);
            if (lacks) {
                sim_call(sim, r, comm[0], ROLL_OP_ALLGATHER, 8)->thread = 1;
                enter(sim, r, ROLL_OP_FREE, 1);
            } else if (how == 3) {
                sim_return(sim, r);
                step(sim, r, comm, true, ROLL_OP_NONE, false);
            }
        }
        sim->patience_ns = 2 * S_;
        sim_expect(sim, how == 0 ? "suspected circular-wait 1" : "");
        sim->patience_ns = 12 * S_; /* what is not known to take turns is told all the same, after suspect_ns */
        sim_expect(sim, how == 3 ? "" : "suspected circular-wait 1");
        sim_destroy(&sim);
    }
}

/*
 * The second thread frees its last buffers while the first one goes on already, with a wait, with a free, or (calls)
 * with a call of NCCL, which a thread that waits for the other would not make.
 */
static void tail(struct sim *sim, uint32_t r, uint32_t comm, enum roll_op beside, bool calls, bool later)
{
    uint64_t begin = 1000000ull * (sim->rank[r].events + 1);
    for (uint32_t i = 0; i < 2; i++) {
        bool frees = later == (i == 1);
        struct roll_record *rec = frees   ? sim_record(sim, r, ROLL_OP_FREE, UINT32_MAX)
                                  : calls ? sim_call(sim, r, comm, ROLL_OP_ALLGATHER, 8)
                                          : sim_record(sim, r, beside, UINT32_MAX);
        rec->thread = frees ? 2 : 1;
        rec->enter_ns = begin + i * 1000;
        rec->call_ns = 5000;
    }
}

static void test_free_beside_a_wait_is_no_overlap(void **state)
{
    (void)state;
    static const enum roll_op beside[] = {ROLL_OP_STREAM_SYNC, ROLL_OP_DEVICE_SYNC, ROLL_OP_COPY, ROLL_OP_FREE};
    for (uint32_t how = 0; how < 4 * 2 * 2 * 3; how++) {
        uint32_t ranks = how % 3 == 0 ? 3 : how % 3 == 1 ? 4 : 8;
        bool calls = how / 3 % 2 == 1, later = how / 6 % 2 == 1;
        for (int healthy = 0; healthy < 2; healthy++) {
            struct sim *sim = sim_new(ranks);
            uint32_t comm[2] = {sim_world(sim), sim_comm(sim, "ep", NULL, ranks)};
            for (uint32_t r = 0; r < ranks; r++) {
                for (int before = 0; before < 2; before++) {
                    step(sim, r, comm, true, ROLL_OP_NONE, false);
                    tail(sim, r, comm[0], beside[how / 12], calls, later);
                }
                bool lacks = !healthy && r == 1;
                step(sim, r, comm, !lacks, ROLL_OP_FREE, false);
                if (lacks) {
                    sim_call(sim, r, comm[0], ROLL_OP_ALLGATHER, 8)->thread = 1;
                    enter(sim, r, ROLL_OP_FREE, 1);
                }
                if (healthy) {
                    sim_return(sim, r);
                    tail(sim, r, comm[0], beside[how / 12], calls, later);
                    step(sim, r, comm, true, ROLL_OP_NONE, false);
                }
            }
            sim->patience_ns = 2 * S_;
            sim_expect(sim, healthy || calls ? "" : "suspected circular-wait 1");
            sim_destroy(&sim);
        }
    }
}

/* A thread that only frees is none of those that keep a rank from being blocked. */
static void test_thread_that_only_frees(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
    scene_calls(sim, w, 2);
    scene_calls(sim, two, 2);
    for (uint32_t r = 0; r < 4; r++) {
        sim_record(sim, r, ROLL_OP_FREE, UINT32_MAX)->thread = 7;
        sim_call(sim, r, r == 3 ? two : w, AR, 512);
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven circular-wait 3");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_free_and_copy_are_waits), cmocka_unit_test(test_free_that_came_back_proves_nothing),
        cmocka_unit_test(test_threads_that_take_turns), cmocka_unit_test(test_free_beside_a_wait_is_no_overlap),
        cmocka_unit_test(test_thread_that_only_frees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
