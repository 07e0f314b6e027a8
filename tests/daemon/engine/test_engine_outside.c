/*
 * test_engine_outside.c: moe-gemm-missing: a rank that made no expert product where its peers did, and whom they then
 * wait for; healthy twins.
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
#define SIZES  (sizeof(sizes) / sizeof(sizes[0]))
#define NOBODY UINT32_MAX

/* One step: dispatch, experts, combine; backward: two exchanges; gradients. `skips` leaves its experts out; `lacks`
 * also the exchanges of its backward. */
static void step(struct sim *sim, uint32_t ep, uint32_t dp, uint32_t skips, bool lacks)
{
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 64);
        if (r != skips) {
            sim_product(sim, r, 32 + r, (uint16_t)(2 + r));
            sim_product(sim, r, 32 + r, (uint16_t)(2 + r));
        }
        sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 128);
        for (int k = 0; k < 2 && !(r == skips && lacks); k++) {
            sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 256);
            sim_product(sim, r, 32 + r, 2);
        }
        sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 512);
        sim_sync(sim, r);
    }
}

static void test_a_skip_explains_the_wait(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), dp = sim_comm(sim, "dp", NULL, sizes[i]);
        for (int k = 0; k < 4; k++) {
            step(sim, ep, dp, NOBODY, false);
        }
        for (uint32_t r = 0; r < sim->ranks; r++) {
            bool skips = r == sim->ranks - 1;
            sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 64);
            if (!skips) {
                sim_product(sim, r, 77, 4);
            }
            sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 128);
            sim_call(sim, r, skips ? dp : ep, skips ? ROLL_OP_ALLREDUCE : ROLL_OP_ALLTOALL, skips ? 512 : 256);
            sim_stuck(sim, r);
        }
        char want[128];
        snprintf(want, sizeof(want), "suspected moe-gemm-missing %u", sizes[i] - 1);
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, true, true);
        snprintf(want, sizeof(want), "Rank %u made no expert product between #16 and #17 on communicator ep",
                 sizes[i] - 1);
        assert_non_null(strstr(text, want));
        assert_non_null(strstr(text, "made a grouped gemm of 4 groups and 77 rows"));
        free(text);
        sim_destroy(&sim);
    }
}

/* A rank without rows makes no call, and all goes well. */
static void test_a_skip_alone_is_no_finding(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), dp = sim_comm(sim, "dp", NULL, sizes[i]);
        for (int k = 0; k < 8; k++) {
            step(sim, ep, dp, k % 3 == 2 ? sizes[i] - 1 : NOBODY, false);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* A wait that has nothing to do with experts: a pipeline stage that never had any, and one where all ranks made theirs.
 */
static void wait_elsewhere(bool experts_everywhere, uint32_t size)
{
    struct sim *sim = sim_new(size);
    uint32_t world = sim_world(sim);
    for (int k = 0; k < 6; k++) {
        for (uint32_t r = 0; r < size; r++) {
            sim_call(sim, r, world, ROLL_OP_ALLREDUCE, 64);
            if (experts_everywhere || r + 1 != size) {
                sim_product(sim, r, 32, 2);
            }
            sim_call(sim, r, world, ROLL_OP_ALLREDUCE, 128);
            sim_sync(sim, r);
        }
    }
    for (uint32_t r = 0; r + 1 < size; r++) {
        sim_call(sim, r, world, ROLL_OP_ALLREDUCE, 64);
        sim_stuck(sim, r);
    }
    char want[64];
    snprintf(want, sizeof(want), "suspected rank-busy %u", size - 1);
    sim_expect(sim, want);
    sim_destroy(&sim);
}

static void test_other_waits_keep_their_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        wait_elsewhere(false, sizes[i]);
        wait_elsewhere(true, sizes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_skip_explains_the_wait),
        cmocka_unit_test(test_a_skip_alone_is_no_finding),
        cmocka_unit_test(test_other_waits_keep_their_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
