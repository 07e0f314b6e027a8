/*
 * test_engine_namesakes.c: what must not be said of numbers and tensors: things of one number (layers without numbers,
 * microbatches without), steps that are run again, missing records, communicators of unknown size.
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

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* What all ranks say about things that have one number (layers without numbers, microbatches without): each time
 * another value. */
enum saying { SAY_TOKENS, SAY_REPLICA, SAY_SUM, SAYINGS };

static void say(struct sim *sim, uint32_t rank, uint32_t comm, enum saying what, uint32_t value)
{
    float size = 1e4f;
    uint32_t size_bits;
    memcpy(&size_bits, &size, sizeof(size_bits));
    switch (what) {
    case SAY_TOKENS:
        scene_uniform(sim, rank, comm, MOE_UNIFORM_TOKENS, value);
        break;
    case SAY_REPLICA:
        scene_tensor(sim, rank, comm, MOE_TENSOR_ROUTER, MOE_TENSOR_REPLICA, value, 0);
        break;
    default:
        scene_tensor(sim, rank, comm, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(value), size_bits);
        scene_tensor(sim, rank, comm, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM,
                     scene_bits((double)value * sim->comm[comm].size), 0);
        break;
    }
}

static const char *const sick_code[SAYINGS] = {"predicted moe-tokens-unequal", "proven replica-mismatch",
                                               "proven gradient-not-summed"};

static void test_things_of_one_number_meet_in_their_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (enum saying what = 0; what < SAYINGS; what++) {
            for (int sick = 0; sick < 2; sick++) {
                uint32_t n = sizes[i];
                struct sim *sim = sim_new(n);
                uint32_t comm = sim_comm(sim, "tp", NULL, n);
                for (uint32_t step = 0; step < 3; step++) {
                    sim_step(sim, step);
                    for (uint32_t r = 0; r < n; r++) {
                        for (uint32_t k = 0; k < 5; k++) {
                            bool wrong = sick && step == 1 && k == 3 && r == n - 1;
                            say(sim, r, comm, what, 1000 * (k + 1) - (wrong ? 500 : 0));
                        }
                    }
                }
                char *text = sim_run(sim, 0, false, false);
                assert_int_equal(strstr(text, sick_code[what]) != NULL, sick);
                free(text);
                if (!sick) {
                    sim_expect(sim, "");
                }
                sim_destroy(&sim);
            }
        }
    }
}

/* More than there is room for in one step, in orders in which one rank is far ahead: what is left over must not meet
 * the wrong one. */
static void test_more_things_than_there_is_room_for_are_healthy(void **state)
{
    (void)state;
    for (enum saying what = 0; what < SAYINGS; what++) {
        struct sim *sim = sim_new(3);
        uint32_t comm = sim_comm(sim, "tp", NULL, 3);
        for (uint32_t step = 0; step < 3; step++) {
            sim_step(sim, step);
            for (uint32_t r = 0; r < 3; r++) {
                for (uint32_t k = 0; k < 400; k++) {
                    say(sim, r, comm, what, 3 * k + 1);
                }
            }
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* Records of the last rank are missing: in the middle, or before the ring was first read. */
static void test_what_is_missing_shifts_nothing(void **state)
{
    (void)state;
    for (enum saying what = 0; what < SAYINGS; what++) {
        for (int late = 0; late < 2; late++) {
            struct sim *sim = sim_new(4);
            uint32_t comm = sim_comm(sim, "tp", NULL, 4);
            sim->rank[3].ticket += late ? 7 : 0;
            for (uint32_t step = 0; step < 3; step++) {
                sim_step(sim, step);
                for (uint32_t r = 0; r < 4; r++) {
                    for (uint32_t k = 0; k < 6; k++) {
                        bool missing = r == 3 && (late ? step == 0 && k < 2 : step == 1 && k == 2);
                        if (!missing) {
                            say(sim, r, comm, what, 1000 * (k + 1) + step);
                        } else if (!late) {
                            sim_lose(sim, 3, what == SAY_SUM ? 2 : 1);
                        }
                    }
                }
            }
            sim_expect(sim, "");
            sim_destroy(&sim);
        }
    }
}

/* Back to an earlier step, from a checkpoint: what a rank never said in the first run is not missed in the second. */
static void test_a_step_that_is_run_again_starts_anew(void **state)
{
    (void)state;
    for (enum saying what = 0; what < SAYINGS; what++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(3);
            uint32_t comm = sim_comm(sim, "tp", NULL, 3);
            for (uint32_t run = 0; run < 4; run++) {
                for (uint32_t step = 0; step < 5; step++) {
                    sim_step(sim, step);
                    for (uint32_t r = 0; r < 3; r++) {
                        bool silent = run < 2 && r == 1 + run && step % 2 == 1; /* facts in some steps only */
                        bool wrong = sick && run == 3 && step == 3 && r == 2;
                        if (!silent) {
                            say(sim, r, comm, what, 1000 * (run + 1) + step - (wrong ? 500 : 0));
                        }
                    }
                }
            }
            char *text = sim_run(sim, 0, false, false);
            assert_int_equal(strstr(text, sick_code[what]) != NULL, sick);
            free(text);
            if (!sick) {
                sim_expect(sim, "");
            }
            sim_destroy(&sim);
        }
    }
}

static void test_nothing_is_compared_where_the_size_is_not_known(void **state)
{
    (void)state;
    for (enum saying what = 0; what < SAYINGS; what++) {
        struct sim *sim = sim_new(4);
        uint32_t comm = sim_comm(sim, "tp", NULL, 4);
        for (uint32_t r = 0; r < 4; r++) {
            sim->rank[r].event[0].def.comm.info.flags = ROLL_DEF_COMM_OPEN;
        }
        sim_step(sim, 1);
        for (uint32_t r = 0; r < 4; r++) {
            say(sim, r, comm, what, 10 + r);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* Two layers of one number, recomputed last first; and the same with the lists of the first forward lost. */
static void test_recomputes_of_layers_of_one_number_are_healthy(void **state)
{
    (void)state;
    for (int missing = 0; missing < 2; missing++) {
        struct sim *sim = sim_new(2);
        uint32_t ep = sim_comm(sim, "ep", NULL, 2);
        for (uint32_t step = 0; step < 3; step++) {
            sim_step(sim, step);
            scene_splits(sim, 0, ep, 0, 2, 4, ROLL_PHASE_FORWARD, 0);
            if (missing && step == 1) {
                sim_lose(sim, 0, 3);
            } else {
                scene_splits(sim, 0, ep, 0, 2, 9, ROLL_PHASE_FORWARD, 0);
            }
            scene_splits(sim, 0, ep, 0, 2, 9, ROLL_PHASE_RECOMPUTE, 0);
            scene_splits(sim, 0, ep, 0, 2, 4, ROLL_PHASE_RECOMPUTE, 0);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* An evaluation's forward is never recomputed; the next step's is judged again. */
static void test_an_evaluation_hides_its_own_step_only(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t ep = sim_comm(sim, "ep", NULL, 2);
    for (uint32_t step = 0; step < 3; step++) {
        sim_step(sim, step);
        if (step < 2) {
            scene_splits(sim, 1, ep, 0, 2, 5, ROLL_PHASE_FORWARD, 0);
        }
        scene_splits(sim, 1, ep, 0, 2, 4, ROLL_PHASE_FORWARD, 0);
        scene_splits(sim, 1, ep, 0, 2, step == 2 ? 4 : 3, ROLL_PHASE_RECOMPUTE, 0);
    }
    sim_expect(sim, "proven moe-recompute-differs 1"); /* rank 1 sends one row more: splits */
    scene_expect_text(sim, "step 2");
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_things_of_one_number_meet_in_their_order),
        cmocka_unit_test(test_more_things_than_there_is_room_for_are_healthy),
        cmocka_unit_test(test_what_is_missing_shifts_nothing),
        cmocka_unit_test(test_a_step_that_is_run_again_starts_anew),
        cmocka_unit_test(test_nothing_is_compared_where_the_size_is_not_known),
        cmocka_unit_test(test_recomputes_of_layers_of_one_number_are_healthy),
        cmocka_unit_test(test_an_evaluation_hides_its_own_step_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
