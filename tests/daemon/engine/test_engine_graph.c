/*
 * test_engine_graph.c: calls captured into CUDA graphs, and their launches: sick and healthy, at several rank counts.
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

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

static void eager(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t calls, uint64_t count)
{
    for (uint32_t i = 0; i < calls; i++) {
        sim_call(sim, rank, comm, AR, count + i);
    }
}

static void launch(struct sim *sim, uint32_t rank, uint32_t comm, uint32_t id, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        sim_launch(sim, rank, comm, id);
    }
}

/* "" at all sizes but where a finding is wanted: with the last rank as culprit, or nobody in a tie of two. */
static void expect(struct sim *sim, const char *finding)
{
    char want[128] = "";
    if (finding != NULL && sim->ranks == 2) {
        snprintf(want, sizeof(want), "%s -", finding);
    } else if (finding != NULL) {
        snprintf(want, sizeof(want), "%s %u", finding, sim->ranks - 1);
    }
    sim_expect(sim, want);
    sim_destroy(&sim);
}

static void test_warm_up_then_capture_then_launches_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            eager(sim, r, w, 6, 100);
            sim_capture(sim, r, w, 1, 6, 100);
            launch(sim, r, w, 1, 20);
            sim_sync(sim, r);
        }
        expect(sim, NULL);
    }
}

static void test_a_graph_captured_and_never_launched_waits_for_nobody(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            if (r == 0) {
                sim_capture(sim, r, w, 1, 6, 100); /* the others have not come so far */
            }
            sim_sync(sim, r);
        }
        expect(sim, NULL);
    }
}

static void test_two_graphs_in_turn_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim_capture(sim, r, w, 1, 4, 100);
            sim_capture(sim, r, w, 2, 5, 200);
            for (uint32_t k = 0; k < 10; k++) {
                launch(sim, r, w, 1 + k % 2, 1);
            }
            sim_sync(sim, r);
        }
        expect(sim, NULL);
    }
}

static void test_a_graph_with_several_communicators_and_messages_is_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i];
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim), other = sim_comm(sim, "dp", NULL, n);
        for (uint32_t r = 0; r < n; r++) {
            sim_capture(sim, r, w, 1, 3, 100);
            sim_capture(sim, r, other, 2, 2, 100);
            sim->rank[r].graph[1] += 1; /* whatever it is, it is the same everywhere */
            struct roll_record *rec = sim_send(sim, r, w, (r + 1) % n, 64);
            rec->flags |= ROLL_FLAG_CAPTURED;
            rec = sim_recv(sim, r, w, (r + n - 1) % n, 64);
            rec->flags |= ROLL_FLAG_CAPTURED;
            for (uint32_t k = 0; k < 5; k++) {
                sim_group(sim, r);
                launch(sim, r, w, 1, 1);
                launch(sim, r, other, 2, 1);
                sim_send(sim, r, w, (r + 1) % n, 64)->flags |= ROLL_FLAG_REPLAYED;
                sim_recv(sim, r, w, (r + n - 1) % n, 64)->flags |= ROLL_FLAG_REPLAYED;
                sim_group_end(sim, r);
            }
            sim_sync(sim, r);
        }
        expect(sim, NULL);
    }
}

static void test_a_rank_that_issues_what_others_capture_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int warm = 0; warm < 2; warm++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                eager(sim, r, w, warm ? 6 : 0, 100);
                if (r == last) {
                    eager(sim, r, w, 6, 100);
                    sim_stuck(sim, r);
                } else {
                    sim_capture(sim, r, w, 1, 6, 100);
                    launch(sim, r, w, 1, 3);
                    sim_stuck(sim, r);
                }
            }
            expect(sim, "proven capture-mismatch");
        }
    }
}

static void test_a_rank_that_captures_what_others_issue_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            eager(sim, r, w, 6, 100);
            if (r == last) {
                sim_capture(sim, r, w, 1, 6, 100);
                launch(sim, r, w, 1, 3);
            } else {
                eager(sim, r, w, 6, 100);
            }
            sim_stuck(sim, r);
        }
        expect(sim, "proven capture-mismatch");
    }
}

static void test_a_different_graph_is_named_with_the_call_that_differs(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int shorter = 0; shorter < 2; shorter++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), last = sizes[i] - 1;
            for (uint32_t r = 0; r < sizes[i]; r++) {
                /* Captured alike (all make the same calls), but the last rank launches another graph. */
                sim_capture(sim, r, w, 1, 6, 100);
                sim_capture(sim, r, w, 2, shorter ? 5 : 6, shorter ? 100 : 98);
                launch(sim, r, w, r == last ? 2 : 1, 4);
                sim_stuck(sim, r);
            }
            char *text = sim_run(sim, 0, false, true);
            assert_non_null(strstr(text, "launched CUDA graph 2 as #"));
            if (shorter) {
                assert_non_null(
                    strstr(text, "hold 5 and 6 collectives here; AllReduce of 105 float32 (sum), number 6"));
            } else {
                assert_non_null(strstr(text, "number 1: AllReduce of 98 float32 (sum) in the first, AllReduce of 100"));
            }
            free(text);
            expect(sim, "proven graph-mismatch");
        }
    }
}

/* Whatever of the others' calls is known when the odd one comes. */
static void test_a_layer_left_out_of_a_capture_is_aligned(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim_capture(sim, r, w, 1, r == last ? 3 : 4, 100);
            sim_capture(sim, r, w, 2, 4, 600);
            launch(sim, r, w, 1, 2);
            sim_stuck(sim, r);
        }
        expect(sim, "proven call-skipped");
    }
}

static void test_a_launch_left_out_is_aligned_like_a_collective(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim), last = sizes[i] - 1;
        for (uint32_t r = 0; r < sizes[i]; r++) {
            sim_capture(sim, r, w, 1, 6, 100);
            launch(sim, r, w, 1, 3);
            if (r != last) {
                launch(sim, r, w, 1, 1);
            }
            eager(sim, r, w, 6, 500);
            sim_stuck(sim, r);
        }
        expect(sim, "proven call-skipped");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warm_up_then_capture_then_launches_are_healthy),
        cmocka_unit_test(test_a_graph_captured_and_never_launched_waits_for_nobody),
        cmocka_unit_test(test_two_graphs_in_turn_are_healthy),
        cmocka_unit_test(test_a_graph_with_several_communicators_and_messages_is_healthy),
        cmocka_unit_test(test_a_rank_that_issues_what_others_capture_is_named),
        cmocka_unit_test(test_a_rank_that_captures_what_others_issue_is_named),
        cmocka_unit_test(test_a_different_graph_is_named_with_the_call_that_differs),
        cmocka_unit_test(test_a_layer_left_out_of_a_capture_is_aligned),
        cmocka_unit_test(test_a_launch_left_out_is_aligned_like_a_collective),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
