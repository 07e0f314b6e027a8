/*
 * test_engine_part.c: ranks whose calls look alike, and whose lines of the program part long before a call differs; and
 * lists that one line gathers with a call for each tensor.
 */
#include "tests/daemon/engine/sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE
#define BC ROLL_OP_BROADCAST

static void expect_text(const struct sim *sim, const char *piece)
{
    char *text = sim_run(sim, 0, false, true);
    if (!strstr(text, piece)) {
        print_error("%s\n", text);
    }
    assert_non_null(strstr(text, piece));
    free(text);
}

enum branch { ONE_LINE, BRANCHED };

/* Twelve steps of two equal calls at two lines. In step 5 the last rank leaves out the second one (`skip`); in each
 * step it makes the first one in the other arm of a branch (`branch`). */
static struct sim *twins(uint32_t ranks, bool skip, enum branch branch, bool lines)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    sim->helper = 9;
    sim->python = lines;
    for (uint32_t r = 0; r < ranks; r++) {
        bool odd = r == ranks - 1;
        for (uint32_t step = 0; step < 12; step++) {
            sim->site = !lines ? 0 : branch == BRANCHED && odd ? 3 : 1;
            sim_call(sim, r, w, AR, 5);
            sim->site = lines ? 2 : 0;
            if (!(skip && odd && step == 5)) {
                sim_call(sim, r, w, AR, 5);
            }
            sim->site = lines ? 50 : 0;
            if (step < 11 || !skip || odd) {
                sim_sync(sim, r);
            } else {
                sim_stuck(sim, r);
            }
        }
        if (!skip || odd) {
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
    }
    return sim;
}

static void test_a_skip_among_equal_calls_is_placed_where_the_lines_part(void **state)
{
    (void)state;
    struct sim *sim = twins(4, true, ONE_LINE, true);
    sim_expect(sim, "proven call-skipped 3");
    expect_text(sim, "(#11 on communicator world");
    expect_text(sim, "#11 to #22 look alike on both sides, and only the lines of the program differ; it shows at #23");
    sim_destroy(&sim);
    sim = twins(4, true, ONE_LINE, false); /* without lines nothing is known but the end */
    sim_expect(sim, "proven rank-finished 3");
    sim_destroy(&sim);
    sim = twins(4, true, BRANCHED, true); /* the shifted calls stand apart too, in the branch: nothing is read there */
    sim_expect(sim, "proven rank-finished 3");
    sim_destroy(&sim);
    sim = twins(2, true, ONE_LINE, true); /* nobody else votes: who is wrong stays open, as ever */
    sim_expect(sim, "proven rank-finished -");
    sim_destroy(&sim);
    for (int branch = ONE_LINE; branch <= BRANCHED; branch++) {
        sim = twins(4, false, branch, true);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A barrier is a reduction like that of the loss, but at a line of its own; what differs by itself is the next step. */
static void test_a_call_too_many_that_looks_alike_is_named(void **state)
{
    (void)state;
    for (unsigned sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        sim->helper = 9;
        sim->python = true;
        for (uint32_t r = 0; r < 4; r++) {
            for (uint32_t step = 0; step < 4; step++) {
                bool last = sick && step == 3;
                sim->site = 1;
                if (!(last && r == 3)) {
                    sim_call(sim, r, w, AR, 9352);
                }
                sim->site = 2;
                if (sick && r == 3 && step == 2) {
                    sim_call(sim, r, w, AR, 1);
                }
                sim->site = 3;
                if (!last) {
                    sim_call(sim, r, w, AR, 1);
                }
                sim->site = 50;
                if (last || (sick && r == 3 && step == 2)) {
                    sim_stuck(sim, r);
                    break;
                }
                sim_sync(sim, r);
            }
            if (!sick) {
                sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
            }
        }
        sim_expect(sim, sick ? "suspected call-added 3" : "");
        if (sick) {
            expect_text(sim, "#5 looks alike on both sides");
        }
        sim_destroy(&sim);
    }
}

/* A list is gathered with a broadcast from each root, at one line. */
static struct sim *lists(uint32_t wrong, bool loops, bool alone)
{
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    sim->python = true;
    for (uint32_t r = 0; r < 4; r++) {
        for (uint32_t step = 0; step < 6; step++) {
            sim->site = 1;
            sim_group(sim, r);
            for (uint32_t root = 0; root < 4; root++) {
                bool odd = r == 2 && step == 5 && (wrong & 1u << root) != 0;
                sim_call(sim, r, w, BC, 5 + (loops ? step % 2 : 0) + (odd ? 3 : 0))->peer = (int32_t)root;
            }
            sim_group_end(sim, r);
            sim->site = alone ? 1 : 2;
            if (step < 5 || wrong == 0) {
                sim_call(sim, r, w, AR, 1);
                sim_sync(sim, r);
            }
        }
        if (wrong != 0) {
            sim_stuck(sim, r);
        } else {
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        }
    }
    return sim;
}

static void test_a_list_of_another_size_is_a_wrong_argument(void **state)
{
    (void)state;
    static const uint32_t wrong[] = {15, 4}; /* all tensors of the list, or one */
    for (size_t i = 0; i < 2; i++) {
        struct sim *sim = lists(wrong[i], false, false);
        sim_expect(sim, "proven count-mismatch 2");
        sim_destroy(&sim);
        sim = lists(wrong[i], true, false); /* the line gathers lists of several sizes: it may be another list */
        sim_expect(sim, "suspected count-mismatch 2");
        sim_destroy(&sim);
        sim = lists(wrong[i], false, true); /* all calls come from this line: the place says nothing */
        sim_expect(sim, "suspected count-mismatch 2");
        sim_destroy(&sim);
    }
    struct sim *sim = lists(0, true, false);
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* The message's partner has failed: the exit code says who is wrong, where the calls do not. */
static void test_a_message_to_a_rank_that_failed(void **state)
{
    (void)state;
    for (int code = 0; code < 2; code++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 512);
        sim_recv(sim, 0, w, 1, 64);
        sim_stuck(sim, 0);
        sim_sync(sim, 1);
        sim_proc(sim, 1, ROLL_PROC_FINISHED, SIM_EXIT(code));
        sim_expect(sim, code ? "proven p2p-unmatched 1" : "proven p2p-unmatched -");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_skip_among_equal_calls_is_placed_where_the_lines_part),
        cmocka_unit_test(test_a_call_too_many_that_looks_alike_is_named),
        cmocka_unit_test(test_a_list_of_another_size_is_a_wrong_argument),
        cmocka_unit_test(test_a_message_to_a_rank_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
