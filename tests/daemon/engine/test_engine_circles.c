/*
 * test_engine_circles.c: ranks that wait for each other in a circle, by the order of their calls on several
 * communicators; and orders that look alike and are healthy.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

static void expect_last(struct sim *sim, const char *what)
{
    char want[128];
    snprintf(want, sizeof(want), "%s %u", what, sim->ranks - 1);
    sim_expect(sim, want);
}

static void expect_words(struct sim *sim, bool sick, const char *words)
{
    char *text = sim_run(sim, 0, false, true);
    assert_int_equal(strstr(text, words) != NULL, sick);
    free(text);
}

/* A proven circle that names the last rank, of two ranks nobody; the healthy twin: nothing. */
static void expect_circle(struct sim *sim, int sick, const char *words)
{
    if (!sick) {
        sim_expect(sim, "");
    } else if (sim->ranks == 2) {
        sim_expect(sim, "proven circular-wait -");
    } else {
        expect_last(sim, "proven circular-wait");
    }
    expect_words(sim, sick, words);
}

static void test_opposite_order_with_host_waits_is_a_proven_circle(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, sizes[i]);
            scene_calls(sim, w, 2);
            scene_calls(sim, two, 2);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                bool swapped = sick && r == sizes[i] - 1;
                sim_call(sim, r, swapped ? two : w, AR, 512);
                if (sick) {
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                    sim_call(sim, r, two, AR, 512);
                    sim_sync(sim, r);
                }
            }
            expect_circle(sim, sick, "left out the call that another waits in");
            sim_destroy(&sim);
        }
    }
}

static void test_opposite_order_on_one_stream_is_a_proven_circle(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, sizes[i]);
            for (int k = 0; k < 4; k++) {
                for (uint32_t r = 0; r < sizes[i]; r++) {
                    bool swapped = sick && k == 2 && r == sizes[i] - 1;
                    sim_call(sim, r, swapped ? two : w, AR, 512);
                    sim_call(sim, r, swapped ? w : two, AR, 512);
                }
            }
            for (uint32_t r = 0; r < sizes[i]; r++) {
                if (sick) {
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                }
            }
            expect_circle(sim, sick, "They entered the communicators in opposite order");
            sim_destroy(&sim);
        }
    }
}

static void test_ring_of_pairs_is_a_circle_through_all(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        struct sim *sim = sim_new(n);
        uint32_t pair[8];
        for (uint32_t r = 0; r < n; r++) {
            uint32_t both[2] = {r, (r + 1) % n};
            pair[r] = sim_comm(sim, "pair", both, 2);
        }
        for (uint32_t r = 0; r < n; r++) {
            sim_call(sim, r, pair[r], AR, 512);
            sim_stuck(sim, r);
        }
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, false);
            assert_ptr_equal(strstr(got, "proven circular-wait"), got);
            assert_null(strchr(got, ';'));
            free(got);
        }
        sim_destroy(&sim);
    }
}

static void test_two_streams_in_any_order_are_healthy(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
    for (uint32_t r = 0; r < 4; r++) {
        for (int k = 0; k < 6; k++) {
            struct roll_record *rec = sim_call(sim, r, r % 2 ? two : w, AR, 512);
            rec->stream = r % 2 ? 3 : 2;
            rec = sim_call(sim, r, r % 2 ? w : two, AR, 512);
            rec->stream = r % 2 ? 2 : 3;
        }
        sim_sync(sim, r);
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opposite_order_with_host_waits_is_a_proven_circle),
        cmocka_unit_test(test_opposite_order_on_one_stream_is_a_proven_circle),
        cmocka_unit_test(test_ring_of_pairs_is_a_circle_through_all),
        cmocka_unit_test(test_two_streams_in_any_order_are_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
