/*
 * test_engine_stuck_nodes.c: a collective that all have entered and none leaves, on several nodes: how long slow steps
 * make patient, and what the facts of the nodes say of where it hangs.
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

/* with time between the calls */

#define AR ROLL_OP_ALLREDUCE

#define LIVE_RANKS 160u
struct live {
    roll_engine_t *e;
    uint32_t ranks, source[LIVE_RANKS];
    uint64_t ticket[LIVE_RANKS], now;
    uint32_t seq;
};

/* Hosts of as many ranks each: two, a and b, or more, whose names fall while the ranks rise. */
static void live_new_on(struct live *l, uint32_t ranks, uint32_t hosts)
{
    assert_true(ranks <= LIVE_RANKS);
    struct roll_engine_config config = {.stall_ns = 0};
    *l = (struct live){.e = roll_engine_new(&config), .ranks = ranks, .now = 1000 * S_};
    assert_non_null(l->e);
    roll_engine_tick(l->e, l->now);
    for (uint32_t r = 0; r < ranks; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)ranks, .pid = 100 + r, .exe = "x"};
        char host[16];
        snprintf(host, sizeof(host), "node%u", hosts - r / (ranks / hosts));
        info.host = hosts > 2 ? host : r < ranks / 2 ? "a" : "b";
        assert_int_equal(roll_engine_open(l->e, &info, &l->source[r]), 0);
        struct roll_def def = {.type = ROLL_DEF_COMM, .id = 1, .comm.label = ""};
        def.comm.info = (struct roll_def_comm){.key = 77,
                                               .rank = (int32_t)r,
                                               .nranks = (int32_t)ranks,
                                               .color = ROLL_COLOR_NONE,
                                               .origin = ROLL_COMM_INIT};
        assert_int_equal(roll_engine_define(l->e, l->source[r], &def), 0);
    }
}

static void live_new(struct live *l, uint32_t ranks)
{
    live_new_on(l, ranks, 2);
}

static void live_feed(struct live *l, uint32_t r, uint64_t ticket, enum roll_op op, enum roll_state state,
                      uint64_t took)
{
    bool call = op == AR;
    struct roll_record rec = {.seal = roll_seal(ticket, state),
                              .enter_ns = l->now,
                              .count = call ? 64 : 0,
                              .seq = call ? l->seq : 0,
                              .peer = ROLL_PEER_NONE,
                              .call_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took,
                              .step = ROLL_STEP_NONE,
                              .comm = call ? 1 : 0,
                              .stream = 2,
                              .thread = 1,
                              .layer = ROLL_LAYER_NONE,
                              .op = (uint8_t)op,
                              .dtype = call ? ROLL_DTYPE_FLOAT32 : ROLL_DTYPE_NONE,
                              .redop = call ? ROLL_RED_SUM : ROLL_RED_NONE};
    assert_int_equal(roll_engine_feed(l->e, l->source[r], &rec, 1), 0);
}

static void live_pass(struct live *l, uint64_t ns)
{
    for (uint64_t end = l->now + ns; l->now < end;) {
        l->now += S_ / 50;
        roll_engine_tick(l->e, l->now);
    }
}

/* All make a call and wait behind it for as long. */
static void live_step(struct live *l, uint64_t ns)
{
    for (uint32_t r = 0; r < l->ranks; r++) {
        live_feed(l, r, l->ticket[r], AR, ROLL_STATE_RETURNED, 100);
        live_feed(l, r, l->ticket[r] + 1, ROLL_OP_STREAM_SYNC, ROLL_STATE_ENTERED, 0);
    }
    live_pass(l, ns);
    for (uint32_t r = 0; r < l->ranks; r++) {
        live_feed(l, r, l->ticket[r] + 1, ROLL_OP_STREAM_SYNC, ROLL_STATE_RETURNED, ns);
        l->ticket[r] += 2;
    }
    l->seq++;
}

static uint32_t live_said(struct live *l)
{
    uint32_t n = 0;
    for (const struct roll_verdict *v; (v = roll_engine_next(l->e));) {
        n += v->certainty != ROLL_NOTE;
        assert_true(v->certainty != ROLL_NOTE || v->withdraws != 0);
        assert_int_equal(v->code, ROLL_VERDICT_COLLECTIVE_STUCK);
        assert_int_equal(v->culprits.used, 0);
    }
    return n;
}

static void test_slow_steps_are_healthy(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
        struct live l;
        live_new(&l, ranks);
        live_step(&l, 50 * S_); /* the first step: set-up, tuning */
        for (uint32_t i = 0; i < 5; i++) {
            live_step(&l, 3 * S_);
        }
        live_step(&l, 18 * S_); /* a long kernel in front of it */
        for (uint32_t i = 0; i < 5; i++) {
            live_step(&l, S_ / 10);
        }
        live_step(&l, 150 * S_); /* three times the longest so far */
        assert_int_equal(live_said(&l), 0);
        roll_engine_destroy(&l.e);
    }
}

static void test_told_once_and_again_when_it_has_moved(void **state)
{
    (void)state;
    struct live l;
    live_new(&l, 4);
    for (uint32_t i = 0; i < 5; i++) {
        live_step(&l, S_ / 10);
    }
    live_step(&l, 300 * S_);
    assert_int_equal(live_said(&l), 1);
    live_step(&l, 300 * S_);
    assert_int_equal(live_said(&l), 0); /* the step was slow, not stuck, and the engine has learnt it */
    live_step(&l, 1600 * S_);
    assert_int_equal(live_said(&l), 1);
    struct roll_engine_summary summary;
    roll_engine_summary(l.e, &summary);
    assert_int_equal(summary.findings, 0); /* both were withdrawn when the hosts came back */
    roll_engine_destroy(&l.e);
}

/* what the nodes know */

/* All stand in a call for as long as it takes; returns the number of the verdict. */
static uint64_t live_stuck(struct live *l)
{
    for (uint32_t i = 0; i < 5; i++) {
        live_step(l, S_ / 10);
    }
    for (uint32_t r = 0; r < l->ranks; r++) {
        live_feed(l, r, l->ticket[r], AR, ROLL_STATE_RETURNED, 100);
        live_feed(l, r, l->ticket[r] + 1, ROLL_OP_STREAM_SYNC, ROLL_STATE_ENTERED, 0);
    }
    live_pass(l, 25 * S_);
    const struct roll_verdict *v = roll_engine_next(l->e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_COLLECTIVE_STUCK);
    uint64_t number = v->number;
    assert_null(roll_engine_next(l->e));
    return number;
}

static void live_facts(struct live *l, uint64_t verdict, const char *host, enum roll_fact kind, const char *text)
{
    struct roll_engine_fact fact = {.kind = kind, .text = text};
    struct roll_engine_facts facts = {.verdict = verdict, .host = host, .fact = &fact, .facts = text ? 1 : 0};
    assert_int_equal(roll_engine_facts(l->e, &facts), 0);
}

/* The verdict that took the place of `number`: its culprits as text, and these words are in it. */
static uint64_t live_superseded(struct live *l, uint64_t number, const char *culprits, const char *words)
{
    char ranks[64];
    const struct roll_verdict *v = roll_engine_next(l->e);
    assert_non_null(v);
    assert_int_equal(v->supersedes, number);
    roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
    assert_string_equal(ranks, culprits);
    if (!strstr(v->text, words)) {
        fail_msg("no '%s' in: %s", words, v->text);
    }
    uint64_t next = v->number;
    assert_null(roll_engine_next(l->e));
    struct roll_engine_summary summary;
    roll_engine_summary(l->e, &summary);
    assert_int_equal(summary.findings, 1);
    return next;
}

static void test_the_host_that_alone_has_a_fault_stands_out(void **state)
{
    (void)state;
    struct live l;
    live_new(&l, 8);
    uint64_t number = live_stuck(&l);
    live_facts(&l, number + 1, "b", ROLL_FACT_GPU_XID, "of another question");
    live_facts(&l, number, "z", ROLL_FACT_GPU_XID, "of another host");
    live_facts(&l, number, "b", ROLL_FACT_GPU_XID, "GPU 3: Xid 79");
    live_facts(&l, number, "b", ROLL_FACT_GPU_LOST, "said twice");
    assert_null(roll_engine_next(l.e));
    live_facts(&l, number, "a", ROLL_FACT_CPU_PRESSURE, "CPU pressure 60 %");
    uint64_t next = live_superseded(&l, number, "4-7", "Host b: GPU 3: Xid 79. Host b stands out");
    for (uint32_t r = 0; r < 8; r++) { /* the job goes on */
        live_feed(&l, r, l.ticket[r] + 1, ROLL_OP_STREAM_SYNC, ROLL_STATE_RETURNED, 0);
    }
    const struct roll_verdict *v = roll_engine_next(l.e);
    assert_non_null(v);
    assert_int_equal(v->withdraws, next);
    roll_engine_destroy(&l.e);
}

static void test_faults_on_both_sides_name_nobody(void **state)
{
    (void)state;
    struct live l;
    live_new(&l, 4);
    uint64_t number = live_stuck(&l);
    live_facts(&l, number, "a", ROLL_FACT_KERNEL_OOM, "killed a process");
    live_facts(&l, number, "b", ROLL_FACT_KERNEL_OOM, "killed a process");
    live_superseded(&l, number, "", "Host a, b: killed a process.");
    roll_engine_destroy(&l.e);
}

static void test_what_is_merely_odd_names_nobody(void **state)
{
    (void)state;
    struct live l;
    live_new(&l, 4);
    uint64_t number = live_stuck(&l);
    live_facts(&l, number, "a", ROLL_FACT_IB_ERRORS, "mlx5_0: symbol_error rose by 3");
    live_facts(&l, number, "b", ROLL_FACT_NONE, NULL);
    live_superseded(&l, number, "", "Host b: nothing out of order.");
    roll_engine_destroy(&l.e);
}

static void test_a_node_that_does_not_answer_is_not_waited_for(void **state)
{
    (void)state;
    struct live l;
    live_new(&l, 4);
    uint64_t number = live_stuck(&l);
    live_facts(&l, number, "a", ROLL_FACT_GPU_XID, "GPU 0: Xid 48");
    live_pass(&l, 4 * S_);
    assert_null(roll_engine_next(l.e));
    live_pass(&l, 2 * S_);
    live_superseded(&l, number, "", "Nothing was heard from 1 host."); /* the other may have one, too */
    live_facts(&l, number, "b", ROLL_FACT_GPU_XID, "too late");
    assert_null(roll_engine_next(l.e));
    roll_engine_destroy(&l.e);
}

/* A job of many hosts is spoken of in a tick, and what it says is the same as for few: the first ones in the order of
 * their ranks, and how many more. */
static void test_many_hosts_are_named_in_order(void **state)
{
    (void)state;
    static const struct {
        uint32_t ranks, hosts;
        const char *said;
    } jobs[] = {
        {8, 2, "host a (ranks 0-3), host b (ranks 4-7)."},
        {32, 8,
         "host node8 (ranks 0-3), host node7 (ranks 4-7), host node6 (ranks 8-11), host node5 (ranks 12-15), host "
         "node4 (ranks 16-19), host node3 (ranks 20-23), host node2 (ranks 24-27), host node1 (ranks 28-31)."},
        {160, 40,
         "host node40 (ranks 0-3), host node39 (ranks 4-7), host node38 (ranks 8-11), host node37 (ranks 12-15), "
         "host node36 (ranks 16-19), host node35 (ranks 20-23), host node34 (ranks 24-27), host node33 (ranks "
         "28-31) and 32 more hosts."},
    };
    for (size_t k = 0; k < sizeof(jobs) / sizeof(jobs[0]); k++) {
        struct live l;
        live_new_on(&l, jobs[k].ranks, jobs[k].hosts);
        for (uint32_t i = 0; i < 5; i++) {
            live_step(&l, S_ / 10);
        }
        for (uint32_t r = 0; r < l.ranks; r++) {
            live_feed(&l, r, l.ticket[r], AR, ROLL_STATE_RETURNED, 100);
            live_feed(&l, r, l.ticket[r] + 1, ROLL_OP_STREAM_SYNC, ROLL_STATE_ENTERED, 0);
        }
        live_pass(&l, 25 * S_);
        const struct roll_verdict *v = roll_engine_next(l.e);
        assert_non_null(v);
        if (!strstr(v->text, jobs[k].said)) {
            fail_msg("%u hosts: %s", jobs[k].hosts, v->text);
        }
        roll_engine_destroy(&l.e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_steps_are_healthy),
        cmocka_unit_test(test_told_once_and_again_when_it_has_moved),
        cmocka_unit_test(test_the_host_that_alone_has_a_fault_stands_out),
        cmocka_unit_test(test_faults_on_both_sides_name_nobody),
        cmocka_unit_test(test_what_is_merely_odd_names_nobody),
        cmocka_unit_test(test_a_node_that_does_not_answer_is_not_waited_for),
        cmocka_unit_test(test_many_hosts_are_named_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
