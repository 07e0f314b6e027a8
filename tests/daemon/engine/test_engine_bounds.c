/*
 * test_engine_bounds.c: what the analyses of waits cost, counted and not timed: the members and log entries that they
 * look at grow with the ranks of a job, not with their square. A job of eight times as many ranks may cost twelve times
 * as much; what is quadratic costs 64 times as much.
 */
#include "daemon/engine/model/engine_state.h"
#include "tests/daemon/engine/scenes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define AR   ROLL_OP_ALLREDUCE
#define FEW  64u
#define MANY 512u

/* A job under an engine: what its ranks do is written down, and read at once. */
struct crowd {
    struct sim *sim;
    roll_engine_t *e;
    uint32_t *source;
    size_t *fed;
    uint64_t now;
};

static void crowd_open(struct crowd *c, uint32_t ranks)
{
    *c = (struct crowd){.sim = sim_new(ranks), .now = 1000 * S_};
    c->e = roll_engine_new(&c->sim->config);
    c->source = calloc(ranks, sizeof(*c->source));
    c->fed = calloc(ranks, sizeof(*c->fed));
    assert_true(c->e && c->source && c->fed);
    assert_int_equal(roll_engine_tick(c->e, c->now), 0);
    for (uint32_t r = 0; r < ranks; r++) {
        c->source[r] = sim_open(c->sim, c->e, r);
    }
}

static void crowd_close(struct crowd *c)
{
    roll_engine_destroy(&c->e);
    sim_destroy(&c->sim);
    free(c->source);
    free(c->fed);
}

static void crowd_feed(struct crowd *c)
{
    for (uint32_t r = 0; r < c->sim->ranks; r++) {
        while (c->fed[r] < c->sim->rank[r].events) {
            sim_feed(c->e, c->source[r], &c->sim->rank[r].event[c->fed[r]++], &c->now);
        }
    }
}

static void crowd_pass(struct crowd *c, uint64_t ns)
{
    crowd_feed(c);
    sim_wait(c->e, ns, &c->now);
}

/* Findings of this code since it was asked last. */
static uint32_t crowd_said(struct crowd *c, enum roll_verdict_code code)
{
    uint32_t n = 0;
    const struct roll_verdict *v;
    while ((v = roll_engine_next(c->e)) != NULL) {
        n += v->code == code && v->certainty != ROLL_NOTE;
    }
    return n;
}

static void expect_linear(uint64_t (*cost)(uint32_t ranks))
{
    uint64_t few = cost(FEW), many = cost(MANY);
    if (few == 0 || many > few * (MANY / FEW) * 3 / 2) {
        fail_msg("%u ranks cost %llu, %u ranks cost %llu", FEW, (unsigned long long)few, MANY,
                 (unsigned long long)many);
    }
}

/* A word of a loop of polls over two things that has gone on for this long. */
static void say_poll(struct crowd *c, uint32_t rank, enum roll_op op, uint16_t comm, uint32_t ms)
{
    struct roll_record *rec = sim_record(c->sim, rank, op, 0);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    rec->comm = comm;
    rec->stream = comm == 0 ? 2 : 0;
    rec->peer = 2;
    rec->seq = ms;
    rec->aux = (uint16_t)ms;
    rec->thread = 1;
    rec->count = 0;
}

/* All but the last rank are in a call on one communicator, that one on another; each polls its stream and its
 * communicator by turns. */
static uint64_t cost_of_polling(uint32_t ranks)
{
    struct crowd c;
    crowd_open(&c, ranks);
    uint32_t a = sim_comm(c.sim, "a", NULL, ranks), b = sim_comm(c.sim, "b", NULL, ranks);
    sim_all(c.sim, a, AR, 64);
    sim_all(c.sim, b, AR, 64);
    for (uint32_t r = 0; r < ranks; r++) {
        sim_sync(c.sim, r);
        sim_call(c.sim, r, r + 1 < ranks ? a : b, AR, 128);
    }
    crowd_pass(&c, S_ / 10);
    uint64_t before = c.e->effort;
    for (uint32_t ms = 100; ms <= 1300; ms += 200) {
        for (uint32_t r = 0; r < ranks; r++) {
            uint16_t comm = c.sim->rank[r].comm_id[r + 1 < ranks ? a : b];
            say_poll(&c, r, ROLL_OP_STREAM_QUERY, 0, ms);
            say_poll(&c, r, ROLL_OP_COMM_QUERY, comm, ms);
        }
        crowd_pass(&c, S_ / 5);
    }
    assert_int_equal(crowd_said(&c, ROLL_VERDICT_CIRCULAR_WAIT), 1);
    uint64_t cost = c.e->effort - before;
    crowd_close(&c);
    return cost;
}

static void test_ranks_that_poll_one_collective_ask_once_what_holds_it_up(void **state)
{
    (void)state;
    expect_linear(cost_of_polling);
}

/* All have left the communicator, and one has died there: it is not asked about for ever, and is when somebody is heard
 * that has not left. */
static void test_dead_rank_that_nobody_needs_is_not_asked_about_for_ever(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct crowd c;
        crowd_open(&c, FEW);
        uint32_t few[FEW];
        for (uint32_t r = 0; r < FEW; r++) {
            few[r] = r;
        }
        uint32_t half = sim_comm(c.sim, "half", few, FEW / 2), part = sim_comm(c.sim, "part", few, FEW / 2 - 1);
        struct roll_def heard = c.sim->rank[0].event[0].def;
        sim_all(c.sim, half, AR, 64);
        sim_all(c.sim, part, AR, 64);
        for (uint32_t r = 1; r < FEW / 2; r++) {
            sim_sync(c.sim, r);
            sim_record(c.sim, r, ROLL_OP_COMM_DESTROY, half);
        }
        sim_sync(c.sim, 0);
        sim_record(c.sim, 0, ROLL_OP_COMM_DESTROY, part);
        sim_proc(c.sim, 0, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
        for (uint32_t r = 1; r < FEW / 2 - 1; r++) {
            sim_record(c.sim, r, ROLL_OP_COMM_DESTROY, part);
        }
        crowd_pass(&c, 5 * S_);
        uint64_t before = c.e->effort;
        crowd_pass(&c, 20 * S_);
        assert_true(c.e->effort == before);
        if (late) { /* a communicator with it that another rank tells of only now */
            heard.comm.info.key = 4711;
            heard.comm.info.nranks = 2;
            heard.comm.info.rank = 0;
            heard.id = 9;
            assert_int_equal(roll_engine_define(c.e, c.source[0], &heard), 0);
            heard.comm.info.rank = 1;
            assert_int_equal(roll_engine_define(c.e, c.source[FEW - 1], &heard), 0);
            crowd_pass(&c, 5 * S_);
        }
        assert_int_equal(crowd_said(&c, ROLL_VERDICT_RANK_DEAD), late);
        crowd_close(&c);
    }
}

/* Two ranks make calls, the others wait for nobody, and one of them has died: for ten seconds of ticks every 2 ms all
 * ranks are looked at some times, and not at each tick. */
static void test_tick_does_not_look_at_ranks_without_news(void **state)
{
    (void)state;
    struct crowd c;
    crowd_open(&c, MANY);
    uint32_t all = sim_comm(c.sim, "all", NULL, MANY), two = sim_comm(c.sim, "two", NULL, 2);
    sim_all(c.sim, all, AR, 64);
    for (uint32_t r = 0; r < MANY; r++) {
        sim_sync(c.sim, r);
    }
    sim_proc(c.sim, MANY - 1, ROLL_PROC_FINISHED, 0);
    crowd_pass(&c, S_);
    uint64_t before = c.e->looks;
    for (uint32_t tick = 0; tick < 5000; tick++) {
        struct roll_engine_sight sight = {.heard = true, .starved = tick % 7};
        assert_int_equal(roll_engine_sight(c.e, c.source[tick % MANY], &sight), 0);
        sight.starved = 50; /* the most starved rank, which decides, stays the same */
        assert_int_equal(roll_engine_sight(c.e, c.source[MANY / 2], &sight), 0);
        sim_all(c.sim, two, AR, 64);
        crowd_feed(&c);
        c.now += S_ / 500;
        assert_int_equal(roll_engine_tick(c.e, c.now), 0);
    }
    uint64_t looks = c.e->looks - before;
    if (looks > 250 * MANY) {
        fail_msg("%llu looks at %u ranks", (unsigned long long)looks, MANY);
    }
    assert_null(roll_engine_next(c.e));
    crowd_close(&c);
}

/* All ranks make a row of calls on one communicator, one rank after the other: when the last one has come, each rank is
 * looked at some times, and not once for each call. */
static void test_row_of_calls_takes_few_looks_at_each_rank(void **state)
{
    (void)state;
    enum { ROW = 200 }; /* fits the smallest log */
    struct crowd c;
    crowd_open(&c, MANY);
    uint32_t all = sim_comm(c.sim, "all", NULL, MANY);
    for (uint32_t i = 0; i < ROW; i++) {
        sim_all(c.sim, all, AR, 64);
    }
    uint64_t before = c.e->looks;
    crowd_feed(&c);
    c.now += S_ / 500;
    assert_int_equal(roll_engine_tick(c.e, c.now), 0);
    uint64_t looks = c.e->looks - before;
    assert_int_equal(c.e->comm[0]->base, ROW);
    for (uint32_t r = 0; r < MANY; r++) {
        assert_false(source_pending(c.e->source[c.source[r]]));
    }
    if (looks > 5 * MANY) {
        fail_msg("%llu looks at %u ranks", (unsigned long long)looks, MANY);
    }
    assert_null(roll_engine_next(c.e));
    crowd_close(&c);
}

/* One of many ranks makes a call in another way than the others, who come to it one after the other: the disagreement
 * is looked at some times meanwhile, and not once for each that comes. */
static void test_wrong_call_of_many_is_not_judged_anew_with_each_rank(void **state)
{
    (void)state;
    enum { WRONG = 3, STEPS = 128 };
    struct crowd c;
    crowd_open(&c, MANY);
    uint32_t all = sim_comm(c.sim, "all", NULL, MANY);
    for (uint32_t i = 0; i < 20; i++) {
        sim_all(c.sim, all, AR, 64);
    }
    crowd_pass(&c, S_ / 10);
    for (uint32_t r = 0; r < MANY; r++) {
        sim_call(c.sim, r, all, AR, r == WRONG ? 65 : 64);
        sim_return(c.sim, r);
    }
    uint64_t before = c.e->looks;
    crowd_feed(&c);
    uint64_t looks = c.e->looks - before;
    if (looks < MANY || looks > STEPS * MANY) {
        fail_msg("%llu looks at %u ranks", (unsigned long long)looks, MANY);
    }
    for (uint32_t tick = 0; tick < 10; tick++) { /* 0.1 ms each: so soon nothing is looked at again */
        before = tick == 1 ? c.e->looks : before;
        c.now += S_ / 10000;
        assert_int_equal(roll_engine_tick(c.e, c.now), 0);
    }
    assert_true(c.e->looks - before < 4 * MANY);
    crowd_pass(&c, 2 * S_);
    const struct roll_verdict *v = roll_engine_next(c.e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_COUNT_MISMATCH);
    assert_int_equal(roll_rankset_count(&v->culprits), 1);
    assert_true(roll_rankset_has(&v->culprits, WRONG));
    crowd_close(&c);
}

/* The next verdict about a refused call; NULL: there is none left. Others are passed over. */
static const struct roll_verdict *next_refused(struct crowd *c)
{
    const struct roll_verdict *v;
    do {
        v = roll_engine_next(c->e);
    } while (v && (v->code != ROLL_VERDICT_CALL_REFUSED || v->certainty == ROLL_NOTE));
    return v;
}

/* NCCL refuses a call of all ranks but the first, which waits in it. They go on, or do not (at_once), and end one after
 * the other within two fifths of a second. Told is what each of them did, once for all of them. */
static uint64_t cost_of_refused(uint32_t ranks, uint8_t error, bool at_once)
{
    enum { TIMES = 20, SYSTEM_ERROR = 2 }; /* which is an echo where a peer has died, not where it has left */
    enum roll_proc_state end = error == SYSTEM_ERROR ? ROLL_PROC_FINISHED : ROLL_PROC_DEAD;
    struct crowd c;
    crowd_open(&c, ranks);
    uint32_t all = sim_comm(c.sim, "all", NULL, ranks);
    sim_all(c.sim, all, AR, 64);
    for (uint32_t r = 0; r < ranks; r++) {
        sim_sync(c.sim, r);
        sim_call(c.sim, r, all, AR, 128)->result = r == 0 ? 0 : error;
    }
    sim_stuck(c.sim, 0);
    uint64_t before = c.e->effort;
    crowd_pass(&c, at_once ? S_ / 50 : 7 * S_);
    const struct roll_verdict *v = next_refused(&c);
    assert_true(at_once == (v == NULL));
    if (v) {
        assert_int_equal(v->certainty, ROLL_SUSPECTED);
        assert_int_equal(roll_rankset_count(&v->culprits), ranks - 1);
        assert_null(next_refused(&c));
    }
    for (uint32_t k = 0; k < TIMES; k++) {
        for (uint32_t r = 1 + k; r < ranks; r += TIMES) {
            assert_int_equal(roll_engine_process(c.e, c.source[r], end, SIM_EXIT(1)), 0);
        }
        crowd_pass(&c, S_ / 50);
    }
    crowd_pass(&c, 7 * S_);
    v = next_refused(&c); /* they end within one stall: they are told together, and once */
    assert_non_null(v);
    assert_int_equal(v->certainty, ROLL_PROVEN);
    assert_int_equal(roll_rankset_count(&v->culprits), ranks - 1);
    assert_null(next_refused(&c));
    uint64_t cost = c.e->effort - before;
    crowd_close(&c);
    return cost;
}

static uint64_t cost_of_wrong_argument(uint32_t ranks)
{
    return cost_of_refused(ranks, 4, false);
}

static uint64_t cost_of_error(uint32_t ranks)
{
    return cost_of_refused(ranks, 2, false); /* ncclSystemError */
}

static uint64_t cost_of_sudden_end(uint32_t ranks)
{
    return cost_of_refused(ranks, 4, true);
}

static void test_one_error_of_all_ranks_is_looked_at_once_for_all(void **state)
{
    (void)state;
    expect_linear(cost_of_wrong_argument);
    expect_linear(cost_of_error);
    expect_linear(cost_of_sudden_end);
}

/* Half of the ranks wait in a creation to which one more belongs, and the other half were refused another one: who
 * waits is not compared with each of those. */
static uint64_t cost_of_creation(uint32_t ranks)
{
    struct crowd c;
    crowd_open(&c, ranks);
    uint32_t half = ranks / 2, *few = calloc(ranks, sizeof(*few));
    assert_non_null(few);
    for (uint32_t r = 0; r < ranks; r++) {
        few[r] = r;
    }
    (void)scene_creation(c.sim, few, half, half + 1);
    uint32_t other = sim_comm(c.sim, "other", few + half, half);
    for (uint32_t r = half; r < ranks; r++) {
        struct roll_record *rec = sim_record(c.sim, r, ROLL_OP_COMM_INIT, other);
        rec->count = half;
        rec->peer = (int32_t)(r - half);
        rec->result = 4;
    }
    free(few);
    uint64_t before = c.e->effort;
    crowd_pass(&c, 2 * S_);
    uint64_t cost = c.e->effort - before;
    assert_null(roll_engine_next(c.e));
    crowd_close(&c);
    return cost;
}

static void test_refused_creation_is_sought_once_for_all_who_wait_in_one(void **state)
{
    (void)state;
    expect_linear(cost_of_creation);
}

/* Calls of one place differ in a way that hangs nothing: where rollcall has refused no call of the job, nobody is asked
 * which calls it has refused there. */
static void test_nobody_is_asked_what_rollcall_refused_where_it_refused_nothing(void **state)
{
    (void)state;
    struct crowd c;
    crowd_open(&c, MANY);
    uint32_t all = sim_comm(c.sim, "all", NULL, MANY);
    for (uint32_t r = 0; r < MANY; r++) {
        sim_call(c.sim, r, all, AR, 64)->redop = r == 3 ? ROLL_RED_MAX : ROLL_RED_SUM;
        sim_return(c.sim, r);
    }
    uint64_t before = c.e->effort;
    crowd_feed(&c);
    c.now += S_ / 10;
    assert_int_equal(roll_engine_tick(c.e, c.now), 0);
    assert_int_equal(crowd_said(&c, ROLL_VERDICT_REDOP_MISMATCH), 1);
    assert_true(c.e->effort - before < MANY);
    crowd_close(&c);
}

/* An excerpt begins with the places of its ranks: of thousands each comes in before anybody has called. */
static void test_who_comes_in_before_anybody_has_called_has_nobody_looked_at(void **state)
{
    (void)state;
    struct crowd c;
    crowd_open(&c, MANY);
    uint32_t all = sim_comm(c.sim, "all", NULL, MANY);
    crowd_feed(&c);
    uint64_t before = c.e->looks;
    for (uint32_t r = 0; r < MANY; r++) {
        assert_int_equal(roll_engine_place(c.e, c.source[r], c.sim->rank[r].comm_id[all], 100, true), 0);
    }
    assert_int_equal(c.e->looks, before);
    crowd_close(&c);
}

static uint32_t pending_of(const struct crowd *c, uint32_t rank)
{
    struct roll_view_source v;
    assert_true(roll_engine_source(c->e, c->source[rank], &v));
    return v.pending;
}

/* One comes in late, behind calls of the others, for which they need not wait any more. */
static void test_calls_are_over_behind_which_the_last_member_comes_in(void **state)
{
    (void)state;
    struct crowd c;
    crowd_open(&c, 3);
    uint32_t all = sim_comm(c.sim, "all", NULL, 3);
    for (uint32_t i = 0; i < 4; i++) {
        sim_call(c.sim, 0, all, AR, 64);
        sim_call(c.sim, 1, all, AR, 64);
    }
    crowd_pass(&c, S_ / 10);
    assert_int_equal(pending_of(&c, 0), 4);
    assert_int_equal(roll_engine_place(c.e, c.source[2], c.sim->rank[2].comm_id[all], 3, true), 0);
    c.sim->rank[2].seq[all] = 3;
    sim_call(c.sim, 2, all, AR, 64);
    crowd_pass(&c, S_ / 10);
    assert_int_equal(pending_of(&c, 0), 0);
    assert_int_equal(pending_of(&c, 1), 0);
    assert_int_equal(crowd_said(&c, ROLL_VERDICT_CALL_SKIPPED), 0);
    crowd_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_poll_one_collective_ask_once_what_holds_it_up),
        cmocka_unit_test(test_dead_rank_that_nobody_needs_is_not_asked_about_for_ever),
        cmocka_unit_test(test_tick_does_not_look_at_ranks_without_news),
        cmocka_unit_test(test_row_of_calls_takes_few_looks_at_each_rank),
        cmocka_unit_test(test_wrong_call_of_many_is_not_judged_anew_with_each_rank),
        cmocka_unit_test(test_one_error_of_all_ranks_is_looked_at_once_for_all),
        cmocka_unit_test(test_refused_creation_is_sought_once_for_all_who_wait_in_one),
        cmocka_unit_test(test_nobody_is_asked_what_rollcall_refused_where_it_refused_nothing),
        cmocka_unit_test(test_who_comes_in_before_anybody_has_called_has_nobody_looked_at),
        cmocka_unit_test(test_calls_are_over_behind_which_the_last_member_comes_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
