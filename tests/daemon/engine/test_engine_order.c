/*
 * test_engine_order.c: opposite orders that have gone well, and groups whose boundaries differ over two communicators.
 * For each what is legal and looks alike: these are the counterexamples to any wider rule.
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

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE
#define BC    ROLL_OP_BROADCAST

/* The rank makes both calls. swap: the second one first; wait: the host waits between them; on_a, on_b: their
 * streams. */
static void two(struct sim *sim, uint32_t r, uint32_t a, uint32_t b, bool swap, bool wait, uint16_t on_a, uint16_t on_b)
{
    for (int i = 0; i < 2; i++) {
        bool first = (i == 0) != swap;
        struct roll_record *rec = sim_call(sim, r, first ? a : b, first ? BC : AR, 512);
        rec->stream = first ? on_a : on_b;
        if (wait && i == 0) {
            sim_record(sim, r, ROLL_OP_DEVICE_SYNC, UINT32_MAX);
        }
    }
}

static void all_wait(struct sim *sim)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_record(sim, r, ROLL_OP_DEVICE_SYNC, UINT32_MAX);
    }
}

static void test_a_swap_that_a_buffer_let_through_is_predicted(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int wait = 0; wait < 2; wait++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t a = sim_comm(sim, "a", NULL, sizes[i]), b = sim_comm(sim, "b", NULL, sizes[i]);
            for (int k = 0; k < 3; k++) {
                for (uint32_t r = 0; r < sim->ranks; r++) {
                    two(sim, r, a, b, k == 1 && r == sim->ranks - 1, wait, 2, wait ? 3 : 2);
                }
                all_wait(sim);
            }
            char want[64];
            snprintf(want, sizeof(want), "predicted opposite-order %u", sizes[i] - 1);
            sim_expect(sim, sizes[i] == 2 ? "predicted opposite-order -" : want);
            sim_destroy(&sim);
        }
    }
}

/* Two streams on one of the ranks: nothing orders the calls there. Whether a device runs both at once is in no record.
 */
static void test_opposite_order_on_two_streams_is_legal(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int both = 0; both < 2; both++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t a = sim_comm(sim, "a", NULL, sizes[i]), b = sim_comm(sim, "b", NULL, sizes[i]);
            for (uint32_t r = 0; r < sim->ranks; r++) {
                bool odd = r == sim->ranks - 1;
                two(sim, r, a, b, odd, false, 2, odd || both ? 3 : 2);
            }
            all_wait(sim);
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

static void test_orders_that_change_on_all_ranks_alike(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t a = sim_comm(sim, "a", NULL, 4), b = sim_comm(sim, "b", NULL, 4);
    for (int k = 0; k < 6; k++) {
        for (uint32_t r = 0; r < 4; r++) {
            two(sim, r, a, b, k % 2 == 1, k % 3 == 0, 2, 2);
        }
        all_wait(sim);
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* Different threads of one rank: in which order they have enqueued is not certain from their records. */
static void test_calls_of_two_threads_have_no_order(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t a = sim_comm(sim, "a", NULL, 3), b = sim_comm(sim, "b", NULL, 3);
    for (uint32_t r = 0; r < 3; r++) {
        for (int i = 0; i < 2; i++) {
            bool first = (i == 0) != (r == 2);
            struct roll_record *rec = sim_call(sim, r, first ? a : b, first ? BC : AR, 512);
            rec->thread = first ? 1 : 2;
            rec->stream = 2;
        }
    }
    all_wait(sim);
    sim_expect(sim, "");
    sim_destroy(&sim);
}

static void grouped(struct sim *sim, uint32_t r, uint32_t a, uint32_t b, bool group, uint16_t on_b)
{
    if (group) {
        sim_group(sim, r);
    }
    sim_call(sim, r, a, AR, 512);
    sim_call(sim, r, b, AR, 256)->stream = on_b;
    if (group) {
        sim_group_end(sim, r);
    }
}

static void test_a_group_on_one_rank_only_is_suspected(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t a = sim_comm(sim, "a", NULL, sizes[i]), b = sim_comm(sim, "b", NULL, sizes[i]);
        for (int k = 0; k < 3; k++) {
            for (uint32_t r = 0; r < sim->ranks; r++) {
                grouped(sim, r, a, b, r == 0, 2);
            }
            all_wait(sim);
        }
        sim_expect(sim, "suspected group-mismatch -");
        sim_destroy(&sim);
    }
}

static void test_groups_that_agree_or_bind_nothing(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct sim *sim = sim_new(4);
        uint32_t a = sim_comm(sim, "a", NULL, 4), b = sim_comm(sim, "b", NULL, 4);
        for (uint32_t r = 0; r < 4; r++) {
            /* all in groups; none; a group here and two streams there, where nothing orders the calls */
            grouped(sim, r, a, b, kind == 0 || (kind == 2 && r == 0), kind == 2 ? 3 : 2);
        }
        all_wait(sim);
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* What nobody leaves before all have come cannot go well in opposite order: it is the circle, and no prediction. */
static void test_a_circle_is_told_as_one(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t a = sim_comm(sim, "a", NULL, 3), b = sim_comm(sim, "b", NULL, 3);
    for (uint32_t r = 0; r < 3; r++) {
        for (int i = 0; i < 2; i++) {
            sim_call(sim, r, (i == 0) != (r == 2) ? a : b, AR, 512);
        }
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven circular-wait 2");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_swap_that_a_buffer_let_through_is_predicted),
        cmocka_unit_test(test_opposite_order_on_two_streams_is_legal),
        cmocka_unit_test(test_orders_that_change_on_all_ranks_alike),
        cmocka_unit_test(test_calls_of_two_threads_have_no_order),
        cmocka_unit_test(test_a_group_on_one_rank_only_is_suspected),
        cmocka_unit_test(test_groups_that_agree_or_bind_nothing),
        cmocka_unit_test(test_a_circle_is_told_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
