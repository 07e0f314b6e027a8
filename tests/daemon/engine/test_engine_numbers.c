/*
 * test_engine_numbers.c: numbers that ranks must have alike, and routing that must fit itself; each with its healthy
 * twin.
 */
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const uint32_t sizes[] = {2, 3, 4, 8};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

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
            scene_expect_text(sim, uniforms[k].text);
            scene_expect_text(sim, "17");
            scene_expect_text(sim, "MoE layer 2, step 5");
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
        scene_expect_text(sim, "The predicted mismatch has happened");
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
            scene_expect_text(sim, "Rank 2 has 8192 bytes of communication buffer, ranks 0-1,3 have 4096, on ");
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
                scene_expect_text(sim, "has fewer entries than tokens times top-k");
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
        scene_expect_text(sim, " rows to rank 0 in the recomputed forward, ");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_number_that_differs_is_predicted_before_the_collective),
        cmocka_unit_test(test_equal_numbers_and_others_in_the_next_step_are_healthy),
        cmocka_unit_test(test_the_mismatch_that_follows_is_called_by_its_reason),
        cmocka_unit_test(test_a_quiet_rank_is_not_the_mismatch_of_numbers),
        cmocka_unit_test(test_a_buffer_made_before_the_first_step_is_compared),
        cmocka_unit_test(test_splits_that_miss_the_buffer_are_proven),
        cmocka_unit_test(test_who_gives_up_an_exchange_is_told_once),
        cmocka_unit_test(test_a_recompute_that_routes_differently_is_proven),
        cmocka_unit_test(test_a_recompute_that_routes_alike_is_healthy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
