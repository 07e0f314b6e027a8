/*
 * test_engine_exchange.c: moe-gemm-missing where exchanges are groups of sends and receives; and whoever is not to be
 * blamed there.
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

/* Whether empty messages are made, as PyTorch does, or left out on both sides. All tests are run both ways. */
static bool posts;

/*
 * One exchange of a rank, as frameworks make it: an all-to-all-v in one group. Ranks send `rows` + their number to each
 * rank but `starved`, which gets nothing; back: the other way round. `idle` has no tokens of its own.
 */
static void exchange(struct sim *sim, uint32_t r, uint32_t comm, uint32_t starved, uint32_t idle, bool back)
{
    sim_group(sim, r);
    for (uint32_t peer = 0; peer < sim->ranks; peer++) {
        bool out = peer != starved && r != idle, in = r != starved && peer != idle;
        bool sends = back ? in : out, receives = back ? out : in;
        if (sends || posts) {
            sim_send(sim, r, comm, peer, sends ? 32 + (back ? peer : r) : 0);
        }
        if (receives || posts) {
            sim_recv(sim, r, comm, peer, receives ? 32 + (back ? r : peer) : 0);
        }
    }
    sim_group_end(sim, r);
    sim_return(sim, r);
}

/* One layer: dispatch, experts, combine. A rank without rows makes no product, as with Transformer Engine. */
static void layer(struct sim *sim, uint32_t r, uint32_t ep, uint32_t starved, uint32_t idle)
{
    exchange(sim, r, ep, starved, idle, false);
    if (r != starved) {
        sim_product(sim, r, 77, 4);
    }
    exchange(sim, r, ep, starved, idle, true);
}

/* Steps of a job that exchanges by sends and receives only, `layers` deep. Backward is like forward. */
static void exchange_steps(struct sim *sim, uint32_t ep, uint32_t dp, uint32_t layers, uint32_t steps, uint32_t idle_at)
{
    for (uint32_t k = 0; k < steps; k++) {
        for (uint32_t r = 0; r < sim->ranks; r++) {
            for (uint32_t l = 0; l < 2 * layers; l++) {
                layer(sim, r, ep, NOBODY, k == idle_at ? 0 : NOBODY);
            }
            sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 512);
            sim_sync(sim, r);
        }
    }
}

/* In the last step the last rank gets no rows in the first layer, leaves its experts out, and lacks the backward of
 * that layer. */
static void skip_in_exchange(uint32_t size, uint32_t layers, uint32_t idle_at)
{
    struct sim *sim = sim_new(size);
    uint32_t ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size), last = size - 1;
    exchange_steps(sim, ep, dp, layers, 4, idle_at);
    for (uint32_t r = 0; r < size; r++) {
        for (uint32_t l = 0; l < 2 * layers - 1; l++) {
            layer(sim, r, ep, l == 0 ? last : NOBODY, NOBODY);
        }
        if (r == last) {
            sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 512);
        } else {
            exchange(sim, r, ep, last, NOBODY, false);
        }
        sim_stuck(sim, r);
    }
    char want[160];
    snprintf(want, sizeof(want), "suspected moe-gemm-missing %u", last);
    sim_expect(sim, want);
    for (uint32_t order = 0; order < SIM_ORDERS; order++) {
        char *text = sim_run(sim, order, false, true);
        snprintf(want, sizeof(want),
                 "Rank %u made no expert product between two exchanges (groups of sends and receives) on communicator "
                 "ep (%u "
                 "ranks), %s",
                 last, size, layers == 1 ? "the last that it made" : "8 exchanges before the last that it made");
        assert_non_null(strstr(text, want));
        assert_non_null(strstr(text, "made a grouped gemm of 4 groups and 77 rows"));
        free(text);
    }
    sim_destroy(&sim);
}

static void test_a_skip_between_exchanges(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        skip_in_exchange(sizes[i], 1, NOBODY);
        skip_in_exchange(sizes[i], 3, NOBODY);
    }
}

/*
 * Once, a rank has nothing to send and nothing to get: its group is empty and leaves no record on the communicator.
 * From then on its second exchange is its peers' third, and is to be compared with that one. Then it is away for
 * another reason.
 */
static void test_empty_groups_do_not_shift_the_comparison(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (uint32_t steps = 1; steps < 4; steps++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size);
            exchange_steps(sim, ep, dp, 1, 3, NOBODY);
            for (uint32_t r = 0; r < size; r++) {
                exchange(sim, r, ep, 0, 0, false);
            }
            exchange_steps(sim, ep, dp, 1, steps, NOBODY);
            for (uint32_t r = 1; r < size; r++) {
                exchange(sim, r, ep, NOBODY, NOBODY, false);
                sim_stuck(sim, r);
            }
            sim_expect(sim, "suspected rank-busy 0");
            sim_destroy(&sim);
        }
    }
}

/* Transformer Engine's grouped tensors keep their rows on the device: what is not known is not said. */
static void test_unknown_rows_are_not_told(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t ep = sim_comm(sim, "ep", NULL, 2);
    for (uint32_t r = 0; r < 2; r++) {
        for (uint32_t k = 0; k < 4 - r; k++) { /* rank 1 leaves out the last, and stays away then */
            exchange(sim, r, ep, NOBODY, NOBODY, false);
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_EXT_GROUPED_GEMM, 0);
            rec->count = 0;
            rec->peer = ROLL_PEER_NONE;
            rec->aux = 9;
            sim_return(sim, r);
            exchange(sim, r, ep, NOBODY, NOBODY, true);
        }
    }
    exchange(sim, 1, ep, NOBODY, NOBODY, false);
    exchange(sim, 1, ep, NOBODY, NOBODY, true);
    exchange(sim, 0, ep, NOBODY, NOBODY, false);
    sim_stuck(sim, 0);
    sim_expect(sim, "suspected moe-gemm-missing 1");
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "rank 0 made a grouped gemm of 9 groups, as all its peers did"));
    free(text);
    sim_destroy(&sim);
}

/* A rank is inside a product (modules are loaded), or an exception has left its record open. */
static void test_a_product_that_does_not_return(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            exchange(sim, r, ep, NOBODY, NOBODY, false);
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_EXT_GROUPED_GEMM, 0);
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
            if (r + 1 < sizes[i]) {
                sim_return(sim, r);
                exchange(sim, r, ep, NOBODY, NOBODY, true);
                sim_stuck(sim, r);
            }
        }
        char want[128];
        snprintf(want, sizeof(want), "suspected rank-blocked %u", sizes[i] - 1);
        sim_expect(sim, want);
        char *text = sim_run(sim, 0, true, true);
        snprintf(want, sizeof(want), "rank %u has been inside grouped gemm (or has left it by an exception) for",
                 sizes[i] - 1);
        assert_non_null(strstr(text, want));
        free(text);
        sim_destroy(&sim);
    }
}

/* Empty groups, and then a skip: the skip is still found. */
static void test_a_skip_after_empty_groups(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        skip_in_exchange(sizes[i], 1, 1);
    }
}

/* A rank without rows now and then, whose backward is whole: healthy, and not the reason of a later wait for it. */
static void test_starved_ranks_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t hangs = 0; hangs < 2; hangs++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), last = size - 1;
            for (uint32_t step = 0; step < 8; step++) {
                for (uint32_t r = 0; r < size; r++) {
                    uint32_t starved = step % 2 == 1 ? last : NOBODY;
                    layer(sim, r, ep, NOBODY, NOBODY);
                    layer(sim, r, ep, starved, NOBODY);
                    layer(sim, r, ep, starved, NOBODY);
                    layer(sim, r, ep, NOBODY, NOBODY);
                    sim_sync(sim, r);
                }
            }
            for (uint32_t r = 0; hangs && r < last; r++) {
                exchange(sim, r, ep, NOBODY, NOBODY, false);
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "suspected rank-busy %u", last);
            sim_expect(sim, hangs ? want : "");
            sim_destroy(&sim);
        }
    }
}

/* Once without rows, in one layer of one step, forward and backward; `later` steps after that the rank is away for
 * another reason. */
static void starved_once(uint32_t size, bool sends, uint32_t later)
{
    struct sim *sim = sim_new(size);
    uint32_t ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size), last = size - 1;
    for (uint32_t step = 0; step < 5 + later; step++) {
        for (uint32_t r = 0; r < size; r++) {
            uint32_t starved = step == 4 ? last : NOBODY;
            for (uint32_t pass = 0; pass < 2; pass++) {
                if (sends) {
                    layer(sim, r, ep, starved, NOBODY);
                    continue;
                }
                sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 64);
                if (r != starved) {
                    sim_product(sim, r, 77, 4);
                }
                sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 128);
            }
            sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 512);
            sim_sync(sim, r);
        }
    }
    for (uint32_t r = 0; r < last; r++) {
        sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 512);
        sim_stuck(sim, r);
    }
    char want[64];
    snprintf(want, sizeof(want), "suspected rank-busy %u", last);
    sim_expect(sim, want);
    sim_destroy(&sim);
}

static void test_a_backward_that_was_made_excuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t later = 0; later < 3; later++) {
            starved_once(sizes[i], true, later);
            starved_once(sizes[i], false, later);
        }
    }
}

/* Evaluation has no backward: a rank without rows in one layer of it misses once, and is right. */
static void test_evaluation_has_no_backward(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t size = sizes[i], last = size - 1;
        uint32_t ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size);
        for (uint32_t batch = 0; batch < 6; batch++) {
            for (uint32_t r = 0; r < size; r++) {
                layer(sim, r, ep, batch == 4 ? last : NOBODY, NOBODY);
            }
        }
        for (uint32_t r = 0; r < last; r++) { /* the last one does not come to sum up */
            sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 1);
            sim_stuck(sim, r);
        }
        char want[64];
        snprintf(want, sizeof(want), "suspected rank-busy %u", last);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

/* Stages of a pipeline hand on by batched sends and receives; all have experts. A stage that is away is only away. */
static void test_pipelines_are_no_exchanges_of_experts(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t size = sizes[i], pp = sim_comm(sim, "pp", NULL, size);
        for (uint32_t batch = 0; batch < 6; batch++) {
            for (uint32_t r = 0; r < size; r++) {
                if (r > 0) {
                    sim_group(sim, r);
                    sim_recv(sim, r, pp, r - 1, 64);
                    sim_group_end(sim, r);
                    sim_return(sim, r);
                }
                sim_product(sim, r, 77, 4);
                sim_product(sim, r, 77, 4);
                if (r + 1 < size) {
                    sim_group(sim, r);
                    sim_send(sim, r, pp, r + 1, 64);
                    sim_group_end(sim, r);
                    sim_return(sim, r);
                }
                sim_sync(sim, r);
            }
        }
        for (uint32_t r = 1; r < size; r++) { /* the first stage does not come */
            sim_group(sim, r);
            sim_recv(sim, r, pp, r - 1, 64);
            sim_group_end(sim, r);
            sim_return(sim, r);
            sim_stuck(sim, r);
        }
        sim_expect(sim, "suspected rank-busy 0");
        sim_destroy(&sim);
    }
}

/* The product that was not seen may have been among the records that are lost. */
static void test_lost_records_are_no_skip(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t collectives = 0; collectives < 2; collectives++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t size = sizes[i], ep = sim_comm(sim, "ep", NULL, size), dp = sim_comm(sim, "dp", NULL, size);
            for (uint32_t step = 0; step < 5; step++) {
                for (uint32_t r = 0; r < size; r++) {
                    bool loses = step == 4 && r + 1 == size;
                    if (collectives) {
                        sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 64);
                    } else {
                        exchange(sim, r, ep, NOBODY, NOBODY, false);
                    }
                    if (loses) {
                        sim_lose(sim, r, 1);
                    } else {
                        sim_product(sim, r, 77, 4);
                    }
                    if (collectives) {
                        sim_call(sim, r, ep, ROLL_OP_ALLTOALL, 64);
                    } else {
                        exchange(sim, r, ep, NOBODY, NOBODY, true);
                    }
                    sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 64);
                    sim_sync(sim, r);
                }
            }
            for (uint32_t r = 0; r + 1 < size; r++) {
                sim_call(sim, r, dp, ROLL_OP_ALLREDUCE, 64);
                sim_stuck(sim, r);
            }
            char want[64];
            snprintf(want, sizeof(want), "suspected rank-busy %u", size - 1);
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_skip_between_exchanges),
        cmocka_unit_test(test_empty_groups_do_not_shift_the_comparison),
        cmocka_unit_test(test_unknown_rows_are_not_told),
        cmocka_unit_test(test_a_product_that_does_not_return),
        cmocka_unit_test(test_a_skip_after_empty_groups),
        cmocka_unit_test(test_starved_ranks_are_healthy),
        cmocka_unit_test(test_a_backward_that_was_made_excuses),
        cmocka_unit_test(test_evaluation_has_no_backward),
        cmocka_unit_test(test_pipelines_are_no_exchanges_of_experts),
        cmocka_unit_test(test_lost_records_are_no_skip),
    };
    int failed = cmocka_run_group_tests_name("left out", tests, NULL, NULL);
    posts = true;
    return failed + cmocka_run_group_tests_name("made", tests, NULL, NULL);
}
