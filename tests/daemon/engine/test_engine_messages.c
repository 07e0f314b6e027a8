/*
 * test_engine_messages.c: messages that are missing, empty, one too many, or of another size: who is named, and who is
 * not.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 5, 8, 12};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE

/* `n` steps. A step has four exchanges, of dispatch and combine, forward and backward; then a sum over all. */
static void steps(struct sim *sim, uint32_t ep, uint32_t dp, uint32_t starved, uint32_t n)
{
    for (uint32_t step = 0; step < n; step++) {
        for (uint32_t r = 0; r < sim->ranks; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                scene_exchange(sim, r, ep, starved, SCENE_NOBODY);
            }
            sim_call(sim, r, dp, AR, 512);
            sim_sync(sim, r);
        }
    }
}

enum then { COLLECTIVE, ELSEWHERE, ENDED, GONE, THENS };

/*
 * All but two ranks leave out a collective before an exchange. Rank 0 waits in the collective, so it is the only one
 * whose messages lack; rank 1 made the collective as well, and its host did not wait. Nobody is named: rank 0 is right.
 */
static void collective_left_out(uint32_t size)
{
    struct sim *sim = sim_new(size);
    uint32_t ep = sim_comm(sim, "ep", NULL, size);
    for (uint32_t r = 0; r < size; r++) {
        if (r < 2) {
            sim_call(sim, r, ep, AR, 512);
        }
        if (r > 0) {
            scene_exchange(sim, r, ep, SCENE_NOBODY, SCENE_NOBODY);
        }
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven alltoallv-mismatch -");
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "Rank 0 has not made an exchange"));
    assert_non_null(strstr(text, "Rank 1 has made that call, too, so the records do not say which ranks are wrong."));
    assert_non_null(strstr(text, "call-skipped"));
    free(text);
    sim_destroy(&sim);
}

static void test_nobody_is_named_who_does_not_wait_alone(void **state)
{
    (void)state;
    collective_left_out(4);
    collective_left_out(8);
}

/* The rank skips exchange number `at` of a step, in which all its messages are empty, and then waits or ends. */
static void skip_empty(uint32_t size, uint32_t at, enum then then, bool ahead)
{
    struct sim *sim = sim_new(size);
    uint32_t ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size), odd = size - 1;
    steps(sim, ep, dp, odd, 2);
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t i = 0; i < at + (r != odd); i++) {
            scene_exchange(sim, r, ep, odd, SCENE_NOBODY);
        }
        if (r != odd && ahead) { /* their hosts do not wait */
            sim_call(sim, r, dp, AR, 512);
        }
        if (r != odd) {
            sim_stuck(sim, r);
        } else if (then == COLLECTIVE || then == ELSEWHERE) {
            sim_call(sim, r, then == COLLECTIVE ? ep : dp, AR, 512);
            sim_stuck(sim, r);
        } else if (then == ENDED) {
            sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
        } else {
            sim_record(sim, r, ROLL_OP_COMM_DESTROY, ep);
        }
    }
    char want[128];
    if (size > 2) {
        snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, false, true);
        bool waits = then == COLLECTIVE || then == ELSEWHERE; /* the rank may only be late */
        snprintf(want, sizeof(want), "Rank %u %s an exchange", odd, waits ? "has not made" : "left out");
        assert_non_null(strstr(text, want));
        assert_non_null(strstr(text, "All of them are empty"));
        assert_null(strstr(text, "which side is wrong"));
        free(text);
    } else if (then == ELSEWHERE) {
        sim_expect(sim, ahead ? "proven p2p-unmatched -" : "proven circular-wait -");
    } else {
        sim_expect(sim, "proven p2p-unmatched -"); /* one against one */
    }
    sim_destroy(&sim);
}

static void test_a_rank_skips_an_exchange_of_empty_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t at = 0; at < 4; at++) {
            for (enum then then = 0; then < THENS; then++) {
                bool same_place = sizes[i] == 2 && then == ELSEWHERE;
                skip_empty(sizes[i], at, then, false);
                if (!same_place) {
                    skip_empty(sizes[i], at, then, true);
                }
            }
        }
    }
}

static void test_empty_messages_on_both_sides_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), dp = sim_comm(sim, "dp", NULL, sizes[i]);
        for (uint32_t starved = 0; starved < sizes[i]; starved++) {
            steps(sim, ep, dp, starved, 2);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* The rank that skipped goes on to the next exchange, which has rows: each of the rank's messages meets a peer's empty
 * one. */
static void test_a_skip_that_shows_in_the_next_exchange(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t ahead = 0; ahead < 2; ahead++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                scene_exchange(sim, r, ep, SCENE_NOBODY, SCENE_NOBODY);
                if (r != odd) {
                    scene_exchange(sim, r, ep, odd, SCENE_NOBODY);
                }
                if (r == odd || ahead) {
                    scene_exchange(sim, r, ep, SCENE_NOBODY, SCENE_NOBODY);
                }
                sim_stuck(sim, r);
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, want);
            char *text = sim_run(sim, 0, false, true);
            assert_non_null(strstr(text, ahead ? "it has left out an exchange, for its messages here are those of its "
                                                 "peers' next one"
                                               : "it has left out empty messages or a whole exchange of them"));
            free(text);
            sim_destroy(&sim);
        }
    }
}

/* One rank makes an exchange that nobody else makes. */
static void test_an_exchange_too_many_is_told(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t empty = 0; empty < 2; empty++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size / 2;
            for (uint32_t r = 0; r < size; r++) {
                scene_exchange(sim, r, ep, SCENE_NOBODY, SCENE_NOBODY);
                if (r == odd) {
                    scene_exchange(sim, r, ep, empty ? odd : SCENE_NOBODY, SCENE_NOBODY);
                    sim_stuck(sim, r);
                } else {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                }
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* A rank leaves out what is empty; its peers do not. It takes part in the exchange otherwise. */
static void test_empty_messages_left_out_on_one_side(void **state)
{
    (void)state;
    for (size_t i = 2; i < SIZES; i++) {
        for (uint32_t many = 0; many < 2; many++) { /* of several peers, or of one */
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), odd = size - 1;
            for (uint32_t r = 0; r < size; r++) {
                sim_group(sim, r);
                for (uint32_t p = 0; p < size; p++) {
                    uint32_t least = r < p ? r : p, most = r < p ? p : r;
                    bool empty = most == odd && least < (many ? 2u : 1u);
                    if (empty && r == odd) {
                        continue;
                    }
                    sim_send(sim, r, ep, p, empty ? 0 : 64);
                    sim_recv(sim, r, ep, p, empty ? 0 : 64);
                }
                sim_group_end(sim, r);
                sim_return(sim, r);
                if (r == odd || (r >= 2 || (!many && r == 1))) {
                    sim_sync(sim, r);
                    sim_proc(sim, r, ROLL_PROC_FINISHED, SIM_EXIT(0));
                } else {
                    sim_stuck(sim, r);
                }
            }
            char want[128];
            snprintf(want, sizeof(want), "proven alltoallv-mismatch %u", odd);
            sim_expect(sim, many ? want : "proven alltoallv-mismatch -");
            sim_destroy(&sim);
        }
    }
}

static void test_nothing_against_something_differs_in_bytes(void **state)
{
    (void)state;
    for (unsigned side = 0; side < 2; side++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        sim_send(sim, 0, w, 1, side ? 64 : 0);
        sim_recv(sim, 1, w, 0, side ? 0 : 64);
        sim_stuck(sim, 0);
        sim_stuck(sim, 1);
        sim_expect(sim, "proven p2p-bytes -");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nobody_is_named_who_does_not_wait_alone),
        cmocka_unit_test(test_a_rank_skips_an_exchange_of_empty_messages),
        cmocka_unit_test(test_empty_messages_on_both_sides_are_healthy),
        cmocka_unit_test(test_a_skip_that_shows_in_the_next_exchange),
        cmocka_unit_test(test_an_exchange_too_many_is_told),
        cmocka_unit_test(test_empty_messages_left_out_on_one_side),
        cmocka_unit_test(test_nothing_against_something_differs_in_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
