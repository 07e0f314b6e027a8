/*
 * test_engine_numbers.c: numbers that ranks must have alike, routing that must fit itself, tensors that must agree;
 * each with its healthy twin.
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
#include <stdlib.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void expect_text(struct sim *sim, const char *part)
{
    char *text = sim_run(sim, 0, true, true);
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' is not in: %s", part, text);
    }
    free(text);
}

static void last_rank(char *out, size_t size, const char *what, uint32_t ranks)
{
    /* the last one has less everywhere below; of two ranks nobody can be named */
    snprintf(out, size, ranks == 2 ? "%s -" : "%s %u", what, ranks - 1);
}

/* numbers that must be alike */

static const struct {
    enum moe_uniform what;
    const char *code, *text;
} uniforms[] = {
    {MOE_UNIFORM_TOKENS, "moe-tokens-unequal", "nothing pads them"},
    {MOE_UNIFORM_CAPACITY, "moe-capacity-differs", "must not come from the rank's own tokens"},
    {MOE_UNIFORM_BUFFER, "moe-buffer-differs", "made by all ranks together"},
};

static void test_a_number_that_differs_is_predicted_before_the_collective(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t k = 0; k < sizeof(uniforms) / sizeof(uniforms[0]); k++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
            sim_step(sim, 5);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                scene_uniform(sim, r, ep, uniforms[k].what, r == sizes[i] - 1 ? 17 : 24);
            }
            char what[64], want[96];
            snprintf(what, sizeof(what), "predicted %s", uniforms[k].code);
            last_rank(want, sizeof(want), what, sizes[i]);
            sim->patience_ns = S_ / 10;
            sim_expect(sim, want);
            expect_text(sim, uniforms[k].text);
            expect_text(sim, "17");
            expect_text(sim, "MoE layer 2, step 5");
            sim_destroy(&sim);
        }
    }
}

static void test_equal_numbers_and_others_in_the_next_step_are_healthy(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]);
        for (uint32_t step = 0; step < 600; step++) {
            sim_step(sim, step);
            for (uint32_t r = 0; r < sizes[i]; r++) {
                scene_uniform(sim, r, ep, MOE_UNIFORM_TOKENS, 24 + step);
                scene_uniform(sim, r, ep, MOE_UNIFORM_CAPACITY, 8 + step);
            }
        }
        sim_expect(sim, "");
        sim_destroy(&sim);
    }
}

/* The collective that follows differs in its count: the reason is told, not the bytes. */
static void test_the_mismatch_that_follows_is_called_by_its_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), last = sizes[i] - 1;
        sim_step(sim, 5);
        for (uint32_t r = 0; r < sizes[i]; r++) {
            scene_uniform(sim, r, ep, MOE_UNIFORM_TOKENS, r == last ? 17 : 24);
            struct roll_record *rec = sim_call(sim, r, ep, ROLL_OP_ALLGATHER, r == last ? 17 : 24);
            rec->layer = 2;
            sim_stuck(sim, r);
        }
        char want[128];
        last_rank(want, sizeof(want), "proven moe-tokens-unequal", sizes[i]); /* the prediction is confirmed by it */
        sim_expect(sim, want);
        expect_text(sim, "The predicted mismatch has happened");
        sim_destroy(&sim);
    }
}

/* The numbers differ, and do no harm: the calls agree. One rank is busy for long in that very step, which has nothing
 * to do with them. A rank without tokens that is not heard of again is another matter: it made no call. */
static void test_a_quiet_rank_is_not_the_mismatch_of_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (uint64_t tokens = 0; tokens < 18; tokens += 17) {
            uint32_t n = sizes[i], last = n - 1;
            struct sim *sim = sim_new(n);
            uint32_t ep = sim_comm(sim, "ep", NULL, n);
            char want[128];
            sim_step(sim, 5);
            for (uint32_t r = 0; r < n; r++) {
                scene_uniform(sim, r, ep, MOE_UNIFORM_TOKENS, r == last ? tokens : 24);
                sim_call(sim, r, ep, ROLL_OP_ALLREDUCE, 24);
                sim_sync(sim, r);
            }
            for (uint32_t r = 0; r < last; r++) {
                sim_call(sim, r, ep, ROLL_OP_ALLREDUCE, 24);
                sim_stuck(sim, r);
            }
            last_rank(want, sizeof(want), tokens == 0 ? "proven moe-tokens-unequal" : "predicted moe-tokens-unequal",
                      n);
            if (tokens != 0) {
                snprintf(want + strlen(want), sizeof(want) - strlen(want), "; suspected rank-busy %u", last);
            }
            sim_expect(sim, want);
            sim_destroy(&sim);
        }
    }
}

/* Before the first step, in no layer; then steps as ever. */
static void test_a_buffer_made_before_the_first_step_is_compared(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t ep = sim_comm(sim, "ep", NULL, 4);
        for (uint32_t r = 0; r < 4; r++) {
            scene_uniform(sim, r, ep, MOE_UNIFORM_BUFFER, sick && r == 2 ? 8192 : 4096);
            sim->rank[r].event[sim->rank[r].events - 1].rec.layer = ROLL_LAYER_NONE;
        }
        for (uint32_t step = 0; step < 3; step++) {
            sim_step(sim, step);
            for (uint32_t r = 0; r < 4; r++) {
                scene_uniform(sim, r, ep, MOE_UNIFORM_TOKENS, 24 + step);
            }
        }
        sim->patience_ns = S_ / 10;
        sim_expect(sim, sick ? "predicted moe-buffer-differs 2" : "");
        if (sick) {
            expect_text(sim, "Rank 2 has 8192 bytes of communication buffer, ranks 0-1,3 have 4096, on ");
        }
        sim_destroy(&sim);
    }
}

/* routing that must fit itself */

static void test_splits_that_miss_the_buffer_are_proven(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t ep = sim_comm(sim, "ep", NULL, sizes[i]), n = sizes[i];
            for (uint32_t step = 0; step < 4; step++) {
                sim_step(sim, step);
                for (uint32_t r = 0; r < n; r++) {
                    bool wrong = sick && r == 0 && step >= 2;
                    scene_splits(sim, r, ep, 4 * n + (wrong ? 3 : 0), n, 4, ROLL_PHASE_FORWARD, 0);
                }
            }
            sim_expect(sim, sick ? "proven moe-split-sum 0" : "");
            if (sick) {
                expect_text(sim, "has fewer entries than tokens times top-k");
            }
            sim_destroy(&sim);
        }
    }
}

/* Rank 0's splits do not add up, so it gives up and destroys its communicators, and its peers wait for its rows. Its
 * records are read first; those of the exchange of counts before, which all have left, come after the trouble is known.
 * One finding, and nothing about messages without a partner. */
static void test_who_gives_up_an_exchange_is_told_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES * 2; i++) {
        uint32_t n = sizes[i % SIZES], source[64];
        bool ticks = i >= SIZES;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim), ep = sim_comm(sim, "ep", NULL, n);
        sim_step(sim, 2);
        for (uint32_t r = 0; r < n; r++) {
            sim_call(sim, r, ep, ROLL_OP_ALLGATHER, 33);
            sim_sync(sim, r);
            scene_splits(sim, r, ep, 4 * n + (r == 0 ? 3 : 0), n, 4, ROLL_PHASE_FORWARD, 0);
            if (r == 0) {
                (void)sim_record(sim, r, ROLL_OP_COMM_DESTROY, ep);
                (void)sim_record(sim, r, ROLL_OP_COMM_DESTROY, w);
                continue;
            }
            sim_group(sim, r);
            for (uint32_t p = 0; p < n; p++) {
                sim_send(sim, r, ep, p, 32);
                sim_recv(sim, r, ep, p, 32);
            }
            sim_group_end(sim, r);
            sim_stuck(sim, r);
        }
        roll_engine_t *e = roll_engine_new(&sim->config);
        uint64_t now = 0;
        assert_non_null(e);
        if (ticks) { /* a moment before the newest records */
            now = sim->rank[n - 1].event[sim->rank[n - 1].events - 1].rec.enter_ns - 1000;
            roll_engine_tick(e, now);
        }
        for (unsigned pass = 0; pass < 2; pass++) { /* who belongs to what is known before */
            for (uint32_t r = 0; r < n; r++) {
                source[r] = pass == 0 ? sim_open(sim, e, r) : source[r];
                for (size_t k = 0; k < sim->rank[r].events; k++) {
                    const struct sim_event *event = &sim->rank[r].event[k];
                    if ((event->kind == SIM_DEFINE) == (pass == 0)) {
                        sim_feed(e, source[r], event, &now);
                    }
                }
            }
        }
        sim_wait(e, 30 * S_, &now);
        roll_engine_finish(e);
        const struct roll_verdict *v = roll_engine_next(e);
        assert_non_null(v);
        assert_int_equal(v->code, ROLL_VERDICT_MOE_SPLIT_SUM);
        while ((v = roll_engine_next(e)) != NULL) {
            if (v->certainty != ROLL_NOTE) {
                fail_msg("%u ranks: %s", n, v->text);
            }
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

static void test_a_recompute_that_routes_differently_is_proven(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        uint32_t n = sizes[i];
        struct sim *sim = sim_new(n);
        uint32_t ep = sim_comm(sim, "ep", NULL, n);
        sim_step(sim, 9);
        for (uint32_t r = 0; r < n; r++) {
            for (uint16_t mb = 0; mb < 3; mb++) { /* pipelining: three forwards before the first recompute */
                scene_splits(sim, r, ep, 0, n, 4 + mb, ROLL_PHASE_FORWARD, mb);
            }
            for (uint16_t mb = 0; mb < 3; mb++) {
                scene_splits(sim, r, ep, 0, n, 4 + mb, ROLL_PHASE_RECOMPUTE, mb);
            }
        }
        /* ranks with an odd number send one row more to rank 0 */
        char want[256] = "proven moe-recompute-differs 1";
        for (uint32_t r = 3; r < n; r += 2) {
            size_t used = strlen(want);
            snprintf(want + used, sizeof(want) - used, ",%u", r);
        }
        sim_expect(sim, want);
        expect_text(sim, " rows to rank 0 in the recomputed forward, ");
        sim_destroy(&sim);
    }
}

static void test_a_recompute_that_routes_alike_is_healthy(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t ep = sim_comm(sim, "ep", NULL, 2);
    for (uint32_t step = 0; step < 5; step++) {
        sim_step(sim, step);
        for (uint16_t mb = 0; mb < 70; mb++) {
            scene_splits(sim, 0, ep, 2u * (4u + mb + step), 2, 4u + mb + step, ROLL_PHASE_FORWARD, mb);
            scene_splits(sim, 0, ep, 0, 2, 4u + mb + step, ROLL_PHASE_RECOMPUTE, mb); /* rank 0: even */
        }
    }
    sim_expect(sim, "");
    sim_destroy(&sim);
}

/* tensors */

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
                expect_text(sim, "The router weight of MoE layer 3, step 1");
                expect_text(sim, n == 2 ? "no majority says who is right" : " has other bits than ranks 0-");
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
                expect_text(sim, text[how]);
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
        expect_text(sim, "MoE layers 0-3");
        expect_text(sim, "each of 2 communicators tp (2 ranks each)");
        if (other != 1) {
            expect_text(sim, "note replica-mismatch");
            expect_text(sim, other == 0
                                 ? " This is a consequence of the gradient of the router weight, which is not the sum"
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
            expect_text(sim, empty ? "nobody wrote their gradient" : "before it was reduced");
            sim_destroy(&sim);
        }
    }
}

/* What must not be said: things of one number, steps run again, missing records, communicators of unknown size. */

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
    expect_text(sim, "step 2");
    sim_destroy(&sim);
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
        cmocka_unit_test(test_a_number_that_differs_is_predicted_before_the_collective),
        cmocka_unit_test(test_equal_numbers_and_others_in_the_next_step_are_healthy),
        cmocka_unit_test(test_the_mismatch_that_follows_is_called_by_its_reason),
        cmocka_unit_test(test_a_quiet_rank_is_not_the_mismatch_of_numbers),
        cmocka_unit_test(test_a_share_that_is_no_number_says_nothing_about_sums),
        cmocka_unit_test(test_a_buffer_made_before_the_first_step_is_compared),
        cmocka_unit_test(test_splits_that_miss_the_buffer_are_proven),
        cmocka_unit_test(test_who_gives_up_an_exchange_is_told_once),
        cmocka_unit_test(test_a_recompute_that_routes_differently_is_proven),
        cmocka_unit_test(test_a_recompute_that_routes_alike_is_healthy),
        cmocka_unit_test(test_replicas_that_differ_are_proven_and_equal_ones_are_healthy),
        cmocka_unit_test(test_gradients_that_are_no_sum_are_proven),
        cmocka_unit_test(test_one_cause_in_several_layers_is_one_finding),
        cmocka_unit_test(test_elements_that_are_no_number_are_told_once),
        cmocka_unit_test(test_things_of_one_number_meet_in_their_order),
        cmocka_unit_test(test_more_things_than_there_is_room_for_are_healthy),
        cmocka_unit_test(test_what_is_missing_shifts_nothing),
        cmocka_unit_test(test_a_step_that_is_run_again_starts_anew),
        cmocka_unit_test(test_nothing_is_compared_where_the_size_is_not_known),
        cmocka_unit_test(test_recomputes_of_layers_of_one_number_are_healthy),
        cmocka_unit_test(test_an_evaluation_hides_its_own_step_only),
        cmocka_unit_test(test_rounding_is_no_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
