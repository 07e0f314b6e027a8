/*
 * test_engine_moe_left.c: backwards that a rank has promised and left out: who, where, in which step; also when a job
 * goes back to a checkpoint, and when a process takes the place of another; each with its healthy twin. What is known
 * from the forward pass alone: test_engine_moe.c.
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

/* Rank 1 promises like the others, leaves the backward of layer 0 out, and goes on to the reduction; its host waits
 * there, or is not seen to. */
static void test_rank_that_leaves_a_promised_backward_out_is_named(void **state)
{
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), low[2] = {0, 1}, high[2] = {2, 3};
        uint32_t ep[2] = {sim_comm(sim, "ep", low, 2), sim_comm(sim, "ep", high, 2)};
        sim_step(sim, 3);
        for (uint32_t r = 0; r < 4; r++) {
            sim_moe_forward(sim, r, ep[r / 2], 0, 8, 2);
            if (r != 1) {
                sim_group(sim, r);
                for (uint32_t p = 0; p < 2; p++) {
                    for (unsigned side = 0; side < 2; side++) {
                        struct roll_record *rec = (side ? sim_recv : sim_send)(sim, r, ep[r / 2], p, 16);
                        rec->phase = ROLL_PHASE_BACKWARD;
                        rec->layer = 0;
                    }
                }
                sim_group_end(sim, r);
            }
            sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = ROLL_PHASE_REDUCE;
            sim_call(sim, r, w, ROLL_OP_ALLREDUCE, 512)->phase = ROLL_PHASE_REDUCE;
            if (waits) {
                sim_stuck(sim, r)->phase = ROLL_PHASE_REDUCE;
            }
        }
        sim->patience_ns = 2 * S_;
        sim_expect(sim, waits ? "proven moe-obligation-missing 1" : "suspected moe-obligation-missing 1");
        sim_destroy(&sim);
    }
}

/* A message of the backward of this layer, in this microbatch. */
static void in_backward(struct sim *sim, uint32_t rank, uint32_t ep, uint32_t peer, uint16_t layer, uint16_t microbatch)
{
    struct roll_record *rec = sim_recv(sim, rank, ep, peer, 16);
    rec->phase = ROLL_PHASE_BACKWARD;
    rec->layer = layer;
    rec->microbatch = microbatch;
    sim_stuck(sim, rank)->phase = ROLL_PHASE_BACKWARD;
}

/*
 * On one communicator ranks 2 and 3 wait for ranks 0 and 1, each for one: in two layers of a microbatch, in one layer
 * of two microbatches, in one layer and microbatch, or in two layers while rank 1 is not seen to wait. Each pair is
 * told, and what one pair proves is proven.
 */
static void test_backwards_that_differ_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        uint16_t layer, microbatch;
        bool soft;
        const char *want, *one, *two;
    } ways[] = {
        {5, 0, false, "proven moe-obligation-missing 0-1", "in the backward of MoE layers 3,5, step 7. Ranks 0-1", ""},
        {3, 2, false, "proven moe-obligation-missing 0; proven moe-obligation-missing 1",
         "MoE layer 3, step 7. Rank 0 has left", "MoE layer 3, step 7, microbatch 2. Rank 1 has left"},
        {3, 0, false, "proven moe-obligation-missing 0-1", "MoE layer 3, step 7. Ranks 0-1 have left", ""},
        {5, 0, true, "proven moe-obligation-missing 0; suspected moe-obligation-missing 1",
         "MoE layer 3, step 7. Rank 0 has left", "MoE layer 5, step 7. Rank 1 has left"},
    };
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), ep = sim_comm(sim, "ep", NULL, 4);
        sim_step(sim, 7);
        for (uint32_t r = 0; r < 2; r++) {
            sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = ROLL_PHASE_REDUCE;
            sim_call(sim, r, w, ROLL_OP_ALLREDUCE, 512)->phase = ROLL_PHASE_REDUCE;
            if (r == 0 || !ways[i].soft) {
                sim_stuck(sim, r)->phase = ROLL_PHASE_REDUCE;
            }
        }
        in_backward(sim, 2, ep, 0, 3, 0);
        in_backward(sim, 3, ep, 1, ways[i].layer, ways[i].microbatch);
        sim->patience_ns = 2 * S_;
        sim_expect(sim, ways[i].want);
        for (uint32_t order = 0; order < 2; order++) {
            struct roll_rankset waiting = {0};
            uint32_t source[4];
            roll_engine_t *e = roll_engine_new(&sim->config);
            uint64_t now = 0;
            char text[4096] = "";
            assert_non_null(e);
            for (uint32_t r = 0; r < 4; r++) {
                uint32_t at = order ? 3 - r : r;
                source[at] = sim_open(sim, e, at);
                for (size_t k = 0; k < sim->rank[at].events; k++) {
                    sim_feed(e, source[at], &sim->rank[at].event[k], &now);
                }
            }
            sim_wait(e, 4 * S_, &now);
            for (const struct roll_verdict *v; (v = roll_engine_next(e));) {
                (void)roll_rankset_union(&waiting, &v->waiting);
                strncat(text, v->text, sizeof(text) - strlen(text) - 1);
            }
            if (!strstr(text, ways[i].one) || !strstr(text, ways[i].two)) {
                fail_msg("way %zu: %s", i, text);
            }
            assert_true(roll_rankset_has(&waiting, 2) && roll_rankset_has(&waiting, 3));
            roll_rankset_fini(&waiting);
            roll_engine_destroy(&e);
        }
        sim_destroy(&sim);
    }
}

/* Half of the ranks promise like the others and leave the backward of layer 0 out; `beyond` of them are in the forward
 * of the next step by then, the last ones, and the others in the reduction. Their hosts wait. */
static struct sim *half_leave(uint32_t n, uint32_t beyond)
{
    struct sim *sim = sim_new(n);
    uint32_t w = sim_world(sim), ep = sim_comm(sim, "ep", NULL, n);
    sim_step(sim, 3);
    for (uint32_t r = 0; r < n; r++) {
        sim_moe_forward(sim, r, ep, 0, 8, 2);
        sim_group(sim, r);
        for (uint32_t p = 0; p < n && r < n / 2; p++) {
            for (unsigned side = 0; side < 2; side++) {
                struct roll_record *rec = (side ? sim_recv : sim_send)(sim, r, ep, p, 16);
                rec->phase = ROLL_PHASE_BACKWARD;
                rec->layer = 0;
            }
        }
        sim_group_end(sim, r);
        bool next = r >= n - beyond;
        uint8_t phase = r < n / 2 ? ROLL_PHASE_BACKWARD : next ? ROLL_PHASE_FORWARD : ROLL_PHASE_REDUCE;
        if (r >= n / 2) {
            sim_call(sim, r, w, ROLL_OP_ALLREDUCE, 512)->phase = ROLL_PHASE_REDUCE;
        }
        sim->rank[r].step += next;
        sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = phase;
        sim_stuck(sim, r)->phase = phase;
    }
    sim->patience_ns = 2 * S_;
    return sim;
}

/* Where each of those is that have left a backward is told of each; of one place for all only where they are at one. */
static void test_each_rank_that_left_a_backward_is_told_where_it_is(void **state)
{
    (void)state;
    static const uint32_t ranks[] = {4, 8, 64};
    for (size_t i = 0; i < 3; i++) {
        for (uint32_t beyond = 0; beyond < 3; beyond++) {
            uint32_t n = ranks[i], half = n / 2, apart = beyond > 0 && beyond < half;
            char want[96], one[96], two[96];
            struct sim *sim = half_leave(n, beyond);
            snprintf(want, sizeof(want), "proven moe-obligation-missing %u-%u", half, n - 1);
            sim_expect(sim, want);
            char low[32], high[32];
            snprintf(low, sizeof(low), half + 1 < n - beyond ? "ranks %u-%u are" : "rank %u is", half, n - beyond - 1);
            snprintf(high, sizeof(high), beyond > 1 ? "ranks %u-%u are" : "rank %u is", n - beyond, n - 1);
            snprintf(one, sizeof(one), "%s in %s of step %u", apart ? low : "they are",
                     beyond == half ? "forward" : "reduce", beyond == half ? 4 : 3);
            snprintf(two, sizeof(two), ", %s in forward of step 4", high);
            for (uint32_t order = 0; order < SIM_ORDERS; order++) {
                char *got = sim_run(sim, order, false, true);
                if (!strstr(got, one) || (strstr(got, two) != NULL) != apart) {
                    fail_msg("order %u: no '%s', or '%s' %s: %s", order, one, two, apart ? "lacks" : "is there", got);
                }
                free(got);
            }
            sim_destroy(&sim);
        }
    }
}

/* The rank skipped its experts, left the reduction of their gradients out and is in the next step, where it has tokens,
 * or skips them again: what it left out in the step of the wait is told, and not what it does now. */
static void test_what_was_left_out_is_told_of_the_step_of_the_wait(void **state)
{
    (void)state;
    for (uint32_t again = 0; again < 2; again++) {
        struct sim *sim = sim_new(4);
        uint32_t edp = sim_comm(sim, "edp", NULL, 4);
        sim_step(sim, 1);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t ep = sim_comm(sim, "ep", &r, 1);
            sim_moe_forward(sim, r, ep, 0, r == 3 ? 0 : 5, r == 3 ? 0 : 1);
            if (r < 3) {
                struct roll_record *rec = sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, 64);
                rec->phase = ROLL_PHASE_BACKWARD;
                rec->layer = 0;
            } else {
                sim->rank[r].step = 2;
                sim_moe_forward(sim, r, ep, 0, 0, again ? 0 : 1);
            }
            sim_stuck(sim, r);
        }
        sim->patience_ns = 2 * S_;
        sim_expect(sim, "proven moe-obligation-missing 3");
        char *got = sim_run(sim, 0, false, true);
        if (!strstr(got, "In step 1 rank 3 received no tokens in MoE layer 0 and skipped its experts")) {
            fail_msg("%s", got);
        }
        free(got);
        sim_destroy(&sim);
    }
}

/* The rank skips its experts in a step; the job goes back, and there it has tokens in that step. What it leaves out
 * then is told, and not that it skipped its experts before: `from` is the step to which the job goes back. */
static void test_a_step_that_runs_again_is_told_as_it_runs_now(void **state)
{
    (void)state;
    static const uint32_t from[] = {90, 99, 100};
    for (size_t i = 0; i < 3 * 2; i++) {
        bool skips = i >= 3; /* again */
        struct sim *sim = sim_new(4);
        uint32_t edp = sim_comm(sim, "edp", NULL, 4);
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t ep = sim_comm(sim, "ep", &r, 1);
            sim->rank[r].step = 100;
            sim_moe_forward(sim, r, ep, 0, r == 3 ? 0 : 5, r == 3 ? 0 : 1);
            sim->rank[r].step = 101;
            sim_moe_forward(sim, r, ep, 0, 5, 1);
            for (uint32_t step = from[i % 3]; step <= 100; step++) {
                bool none = skips && step == 100 && r == 3;
                sim->rank[r].step = step;
                sim_moe_forward(sim, r, ep, 0, none ? 0 : 5, none ? 0 : 1);
            }
            uint8_t phase = r == 3 ? ROLL_PHASE_REDUCE : ROLL_PHASE_BACKWARD;
            sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = phase;
            if (r < 3) {
                struct roll_record *rec = sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, 64);
                rec->phase = ROLL_PHASE_BACKWARD;
                rec->layer = 0;
            }
            sim_stuck(sim, r)->phase = phase;
        }
        sim->patience_ns = 2 * S_;
        sim_expect(sim, "proven moe-obligation-missing 3");
        for (uint32_t order = 0; order < SIM_ORDERS; order++) {
            char *got = sim_run(sim, order, false, true);
            if ((strstr(got, "skipped its experts") != NULL) != skips) {
                fail_msg("back to %u, order %u: %s", from[i % 3], order, got);
            }
            free(got);
        }
        sim_destroy(&sim);
    }
}

/* Feeds the events of a rank up to this one, which is excluded. *at: the first that has not been fed. */
static void feed_upto(roll_engine_t *e, const struct sim *sim, uint32_t rank, uint32_t source, size_t *at, size_t upto,
                      uint64_t *now)
{
    for (; *at < upto && *at < sim->rank[rank].events; (*at)++) {
        sim_feed(e, source, &sim->rank[rank].event[*at], now);
    }
}

/* The job goes back from step 100 to step 90. Half of the ranks read the checkpoint for seconds, their hosts in a wait,
 * and their steps are still the later ones. They are behind, and have left nothing out. */
static void test_a_rank_that_goes_back_later_has_left_nothing_out(void **state)
{
    (void)state;
    enum { MOST = 64 };
    static const uint32_t ranks[] = {2, 4, 8, MOST};
    for (size_t i = 0; i < 4; i++) {
        uint32_t n = ranks[i], source[MOST];
        size_t wait[MOST], at[MOST] = {0}; /* the event in which the rank waits when time passes */
        struct sim *sim = sim_new(n);
        uint32_t edp = sim_comm(sim, "edp", NULL, n);
        for (uint32_t r = 0; r < n; r++) {
            bool slow = r >= n / 2;
            sim->rank[r].step = 100;
            sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = ROLL_PHASE_REDUCE;
            sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, 32)->phase = ROLL_PHASE_REDUCE;
            sim_sync(sim, r)->phase = ROLL_PHASE_REDUCE;
            if (slow) { /* the copy of the checkpoint to the device */
                sim_stuck(sim, r)->phase = ROLL_PHASE_REDUCE;
                wait[r] = sim->rank[r].events - 1;
                sim_return(sim, r);
            }
            sim->rank[r].step = 90;
            sim_record(sim, r, ROLL_OP_MOE_STEP, UINT32_MAX)->phase = ROLL_PHASE_FORWARD;
            struct roll_record *rec = sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, 64);
            rec->phase = ROLL_PHASE_BACKWARD;
            rec->layer = 0;
            sim_stuck(sim, r);
            wait[r] = slow ? wait[r] : sim->rank[r].events - 1;
            sim_return(sim, r);
        }
        roll_engine_t *e = roll_engine_new(&sim->config);
        uint64_t now = 0;
        assert_non_null(e);
        for (uint32_t r = 0; r < n; r++) {
            source[r] = sim_open(sim, e, r);
        }
        for (uint32_t r = 0; r < n; r++) {
            feed_upto(e, sim, r, source[r], &at[r], wait[r] + 1, &now);
        }
        sim_wait(e, 3 * S_, &now);
        for (uint32_t r = 0; r < n; r++) {
            feed_upto(e, sim, r, source[r], &at[r], SIZE_MAX, &now);
        }
        sim_wait(e, 10 * S_, &now);
        roll_engine_finish(e);
        const struct roll_verdict *v = roll_engine_next(e);
        if (v) {
            fail_msg("%u ranks: %s", n, v->text);
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

/* The rank tells of a step, so much later than its records are otherwise apart. */
static void tells_step(struct sim *sim, uint32_t rank, uint32_t step, uint8_t phase, uint64_t later)
{
    sim->rank[rank].step = step;
    struct roll_record *rec = sim_record(sim, rank, ROLL_OP_MOE_STEP, UINT32_MAX);
    rec->phase = phase;
    rec->enter_ns += later;
}

/*
 * Rank 0 has ended in step 100 and another process takes its place: it begins at step 90, to which the others go back.
 * In step 91 one of ranks 0 and 1 leaves the backward in which the other one waits (`leaves`), which is told. Where
 * rank 1 has not gone back yet (`leaves` is 2) it is behind, and has left nothing out.
 */
static void test_a_process_that_takes_a_place_is_compared_with_those_that_went_back(void **state)
{
    (void)state;
    for (uint32_t leaves = 0; leaves < 3; leaves++) {
        uint32_t source[2], pair[2] = {0, 1}, before;
        struct sim *sim = sim_new(2);
        uint32_t edp = sim_comm(sim, "edp", pair, 2);
        tells_step(sim, 1, 100, ROLL_PHASE_REDUCE, 0);
        for (uint32_t r = 0; r < 2; r++) {
            bool behind = leaves == 2 && r == 1, left = leaves == r || behind;
            uint8_t phase = left ? ROLL_PHASE_REDUCE : ROLL_PHASE_BACKWARD;
            for (uint32_t step = 90; step < 92 && !behind; step++) {
                tells_step(sim, r, step, step == 91 ? phase : ROLL_PHASE_FORWARD, (step - 89) * S_);
            }
            if (!left) {
                struct roll_record *rec = sim_call(sim, r, edp, ROLL_OP_ALLREDUCE, 64);
                rec->phase = phase;
                rec->layer = 0;
            }
            sim_stuck(sim, r)->phase = phase;
        }
        roll_engine_t *e = roll_engine_new(&sim->config);
        struct roll_source_info info = {
            .stream = 99, .world_rank = 0, .world_size = 2, .pid = 1, .host = "node0", .exe = "train"};
        uint64_t now = 0;
        assert_non_null(e);
        assert_int_equal(roll_engine_open(e, &info, &before), 0);
        assert_int_equal(roll_engine_process(e, before, ROLL_PROC_FINISHED, SIM_EXIT(0)), 0);
        for (uint32_t r = 0; r < 2; r++) {
            size_t at = 0;
            source[r] = sim_open(sim, e, r);
            feed_upto(e, sim, r, source[r], &at, SIZE_MAX, &now);
        }
        sim_wait(e, 4 * S_, &now);
        const struct roll_verdict *v = roll_engine_next(e);
        if (leaves == 2 ? v != NULL : !v) {
            fail_msg("%u leaves: %s", leaves, v ? v->text : "nothing");
        }
        if (v) {
            assert_int_equal(v->code, ROLL_VERDICT_MOE_OBLIGATION);
            assert_int_equal(v->certainty, ROLL_PROVEN);
            assert_int_equal(roll_rankset_count(&v->culprits), 1);
            assert_true(roll_rankset_has(&v->culprits, leaves));
            assert_null(roll_engine_next(e));
        }
        roll_engine_destroy(&e);
        sim_destroy(&sim);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_that_leaves_a_promised_backward_out_is_named),
        cmocka_unit_test(test_backwards_that_differ_are_told_apart),
        cmocka_unit_test(test_each_rank_that_left_a_backward_is_told_where_it_is),
        cmocka_unit_test(test_what_was_left_out_is_told_of_the_step_of_the_wait),
        cmocka_unit_test(test_a_step_that_runs_again_is_told_as_it_runs_now),
        cmocka_unit_test(test_a_rank_that_goes_back_later_has_left_nothing_out),
        cmocka_unit_test(test_a_process_that_takes_a_place_is_compared_with_those_that_went_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
