/*
 * test_engine_gradients.c: tensors that must agree: replicas, sums of gradients, elements that are no number; each with
 * its healthy twin.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void test_replicas_that_differ_are_proven_and_equal_ones_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            uint32_t n = sizes[i];
            struct sim *sim = sim_new(n);
            uint32_t tp = sim_comm(sim, "tp", NULL, n);
            for (uint32_t step = 0; step < 4; step++) {
                sim_step(sim, step);
                for (uint32_t r = 0; r < n; r++) {
                    bool wrong = sick && step >= 1 && r == n - 1;
                    scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_REPLICA, 1000 + step + (wrong ? 1 : 0), 0);
                }
            }
            char want[64];
            snprintf(want, sizeof(want), n == 2 ? "proven replica-mismatch -" : "proven replica-mismatch %u", n - 1);
            sim_expect(sim, sick ? want : "");
            if (sick) {
                scene_expect_text(sim, "The router weight of MoE layer 3, step 1");
                scene_expect_text(sim, n == 2 ? "no majority says who is right" : " has other bits than ranks 0-");
            }
            sim_destroy(&sim);
        }
    }
}

enum reduction { RIGHT, NEVER, TWICE, NOISE };

static void test_gradients_that_are_no_sum_are_proven(void **state)
{
    (void)state;
    static const char *const text[] = {"", "they were never summed", "it was reduced once more than it should be",
                                       "use is not their sum (a checksum of it is off by"};
    for (size_t i = 0; i < SIZES; i++) {
        for (enum reduction how = RIGHT; how <= NOISE; how++) {
            uint32_t n = sizes[i];
            struct sim *sim = sim_new(n);
            uint32_t tp = sim_comm(sim, "tp", NULL, n);
            float size = 90.0f;
            uint32_t size_bits;
            memcpy(&size_bits, &size, sizeof(size_bits));
            double total = 0;
            for (uint32_t r = 0; r < n; r++) {
                total += 3.0 + r;
            }
            for (uint32_t step = 0; step < 3; step++) {
                sim_step(sim, step);
                for (uint32_t r = 0; r < n; r++) {
                    double got[] = {total * (1 + 1e-6), 3.0 + r, n * total, total + 5};
                    scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(3.0 + r), size_bits);
                    scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(got[how]), 0);
                }
            }
            char want[64];
            snprintf(want, sizeof(want), "proven gradient-not-summed 0-%u", n - 1);
            sim_expect(sim, how == RIGHT ? "" : want);
            if (how != RIGHT) {
                scene_expect_text(sim, text[how]);
            }
            sim_destroy(&sim);
        }
    }
}

/* One rank's share holds a NaN or an infinity: another verdict tells that. What the ranks use then, a sum that is no
 * number or, where the step is skipped, zero, is no sum that somebody forgot. */
static void test_a_share_that_is_no_number_says_nothing_about_sums(void **state)
{
    (void)state;
    static const double odd[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t i = 0; i < SIZES * 6; i++) {
        uint32_t n = sizes[i % SIZES];
        double one = odd[i / SIZES % 3], got = i / SIZES < 3 ? 0 : one;
        struct sim *sim = sim_new(n);
        uint32_t tp = sim_comm(sim, "tp", NULL, n);
        sim_step(sim, 1);
        for (uint32_t r = 0; r < n; r++) {
            double part = r == n - 1 ? one : 3;
            scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(part),
                         scene_bits_float(fabsf((float)part)));
            scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(got), 0);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* One cause in all layers, on two communicators of one kind: one finding. Replicas that drift apart for it are a note,
 * others are not. */
static void test_one_cause_in_several_layers_is_one_finding(void **state)
{
    (void)state;
    for (int other = 0; other < 3; other++) { /* 2: another tensor, from the step after on */
        static const uint32_t half[2][2] = {{0, 1}, {2, 3}};
        struct sim *sim = sim_new(4);
        uint32_t tp[2] = {sim_comm(sim, "tp", half[0], 2), sim_comm(sim, "tp", half[1], 2)};
        float size = 90.0f;
        uint32_t size_bits;
        memcpy(&size_bits, &size, sizeof(size_bits));
        for (uint32_t step = 0; step < 3; step++) {
            sim_step(sim, step);
            for (uint32_t r = 0; r < 4; r++) {
                for (uint16_t layer = 0; layer < 4; layer++) {
                    enum moe_tensor drifts = other ? MOE_TENSOR_SHARED : MOE_TENSOR_ROUTER;
                    scene_tensor(sim, r, tp[r / 2], MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(3.0 + r), size_bits);
                    sim->rank[r].event[sim->rank[r].events - 1].rec.layer = layer;
                    scene_tensor(sim, r, tp[r / 2], MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(3.0 + r), 0);
                    sim->rank[r].event[sim->rank[r].events - 1].rec.layer = layer;
                    scene_tensor(sim, r, tp[r / 2], drifts, MOE_TENSOR_REPLICA,
                                 other == 2 && step == 0 ? 1000 : 1000 + r, 0);
                    sim->rank[r].event[sim->rank[r].events - 1].rec.layer = layer;
                }
            }
        }
        sim_expect(sim, other == 1 ? "proven gradient-not-summed 0-3; proven replica-mismatch -"
                                   : "proven gradient-not-summed 0-3");
        scene_expect_text(sim, "MoE layers 0-3");
        scene_expect_text(sim, "each of 2 communicators tp (2 ranks each)");
        if (other != 1) {
            scene_expect_text(sim, "note replica-mismatch");
            scene_expect_text(
                sim, other == 0 ? " This is a consequence of the gradient of the router weight, which is not the sum"
                                : "which has not been the sum of the shares since step 0 (told before)");
        }
        sim_destroy(&sim);
    }
}

static void test_elements_that_are_no_number_are_told_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint32_t empty = 0; empty < 2; empty++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t edp = sim_comm(sim, "edp", NULL, sizes[i]);
            for (uint32_t step = 1; step < 4; step++) {
                sim_step(sim, step);
                scene_tensor(sim, 1, edp, MOE_TENSOR_EXPERTS, MOE_TENSOR_NOTFINITE, 512, empty * 512);
            }
            sim_expect(sim, "proven gradient-not-finite 1");
            scene_expect_text(sim, empty ? "nobody wrote their gradient" : "before it was reduced");
            sim_destroy(&sim);
        }
    }
}

/* What rounding can lose, over a thousand ranks with much cancellation; sums too large for a number; numbers too small
 * for full precision. */
static void test_rounding_is_no_fault(void **state)
{
    (void)state;
    static const struct {
        double part, size, got; /* got: over the sum of the parts */
    } trials[] = {{0.001, 1.0, 0.15}, {-0.5, 1.0, -0.15}, {1e38, 1e38, INFINITY}, {1e-41, 1e-41, 1e-38}};
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]); i++) {
        uint32_t n = 1024;
        struct sim *sim = sim_new(n);
        uint32_t tp = sim_comm(sim, "tp", NULL, n);
        float size = (float)trials[i].size;
        uint32_t size_bits;
        memcpy(&size_bits, &size, sizeof(size_bits));
        sim_step(sim, 1);
        for (uint32_t r = 0; r < n; r++) {
            scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_PART, scene_bits(trials[i].part), size_bits);
            scene_tensor(sim, r, tp, MOE_TENSOR_ROUTER, MOE_TENSOR_SUM, scene_bits(n * trials[i].part + trials[i].got),
                         0);
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicas_that_differ_are_proven_and_equal_ones_are_healthy),
        cmocka_unit_test(test_gradients_that_are_no_sum_are_proven),
        cmocka_unit_test(test_a_share_that_is_no_number_says_nothing_about_sums),
        cmocka_unit_test(test_one_cause_in_several_layers_is_one_finding),
        cmocka_unit_test(test_elements_that_are_no_number_are_told_once),
        cmocka_unit_test(test_rounding_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
