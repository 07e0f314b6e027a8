/*
 * test_engine_stuck.c: everyone has arrived and nothing completes; and what looks alike and is healthy: slow calls,
 * long kernels in front and behind, hosts that run ahead, ranks that have left.
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

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))
#define AR    ROLL_OP_ALLREDUCE
#define SICK  "suspected collective-stuck -"

/* All ranks make `n` calls and come back from a wait behind each: the place is known. */
static void steps(struct sim *sim, uint32_t w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            sim_sync(sim, r);
        }
    }
}

static void all_wait(struct sim *sim, uint32_t w)
{
    sim_all(sim, w, AR, 512);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        sim_stuck(sim, r);
    }
}

static void expect_after(struct sim *sim, uint64_t seconds, const char *findings)
{
    sim->patience_ns = seconds * S_;
    sim_expect(sim, findings);
}

static void test_all_arrived_and_none_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        steps(sim, w, 5);
        all_wait(sim, w);
        expect_after(sim, 19, "");
        expect_after(sim, 40, SICK);
        char *text = sim_run(sim, 0, false, true);
        assert_non_null(strstr(text, "AllReduce of 512 float32 (sum), #5"));
        assert_non_null(strstr(text, "host node0"));
        free(text);
        sim_destroy(&sim);
    }
}

static void test_the_first_waits_get_more_patience(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 2);
    all_wait(sim, w);
    expect_after(sim, 58, "");
    expect_after(sim, 70, SICK);
    sim_destroy(&sim);
}

static void test_long_waits_before_make_patient(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 5);
    sim_all(sim, w, AR, 512);
    for (uint32_t r = 0; r < 4; r++) {
        sim_sync(sim, r)->call_ns = r == 2 ? UINT32_MAX : 100; /* 4.3 s */
    }
    all_wait(sim, w);
    expect_after(sim, 21, "");
    expect_after(sim, 30, SICK);
    sim_destroy(&sim);
}

static void test_who_has_left_makes_it_a_matter_of_kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        steps(sim, w, 5);
        all_wait(sim, w);
        sim_return(sim, sizes[i] - 1);
        expect_after(sim, 200, "");
        sim_destroy(&sim);
    }
}

static void test_a_rank_that_is_elsewhere_makes_it_silent(void **state)
{
    (void)state;
    for (int stopped = 0; stopped < 3; stopped++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        steps(sim, w, 5);
        all_wait(sim, w);
        if (stopped == 0) {
            sim_proc(sim, 3, ROLL_PROC_STOPPED, ROLL_EXIT_UNKNOWN);
        } else if (stopped == 1) {
            sim_lose(sim, 3, 5);
        } else {
            sim_return(sim, 3); /* goes on, and comes back from another wait */
            sim_sync(sim, 3)->stream = 3;
        }
        expect_after(sim, 200, "");
        sim_destroy(&sim);
    }
}

static void test_completion_tells_who_is_left_in_it(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        for (int known = 0; known < 2; known++) {
            struct sim *sim = sim_new(sizes[i]);
            uint32_t w = sim_world(sim);
            steps(sim, w, 5);
            for (uint32_t r = 0; r < sim->ranks; r++) { /* the device says of the fifth that it is over */
                struct roll_record *rec = sim_call(sim, r, w, AR, 512);
                rec->seal = roll_seal(roll_seal_ticket(rec->seal), known ? ROLL_STATE_COMPLETE : ROLL_STATE_RETURNED);
            }
            sim_all(sim, w, AR, 512);
            for (uint32_t r = 0; r < sim->ranks; r++) {
                if (r == 0) {
                    sim_sync(sim, r);
                } else {
                    sim_stuck(sim, r);
                }
            }
            expect_after(sim, 40, known ? SICK : "");
            if (known) {
                char *text = sim_run(sim, 0, false, true);
                assert_non_null(strstr(text, "Rank 0 has left it"));
                free(text);
            }
            sim_destroy(&sim);
        }
    }
}

static void test_a_root_that_has_left_says_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 5);
    for (uint32_t r = 0; r < 4; r++) {
        struct roll_record *rec = sim_call(sim, r, w, AR, 512);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_COMPLETE);
        sim_call(sim, r, w, ROLL_OP_BROADCAST, 512);
        if (r == 0) {
            sim_sync(sim, r);
        } else {
            sim_stuck(sim, r);
        }
    }
    expect_after(sim, 200, "");
    sim_destroy(&sim);
}

static void test_others_who_wait_for_its_ranks_are_one_cause(void **state)
{
    (void)state;
    struct sim *sim = sim_new(6);
    uint32_t w = sim_world(sim), pair = sim_comm(sim, "pair", (uint32_t[]){0, 3}, 2);
    steps(sim, w, 5);
    sim_all(sim, pair, AR, 64);
    for (uint32_t r = 0; r < 6; r++) {
        if (r != 0 && r != 3) {
            sim_call(sim, r, w, AR, 512);
        }
        sim_stuck(sim, r);
    }
    expect_after(sim, 15, "");
    expect_after(sim, 60, SICK);
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "communicator pair"));
    free(text);
    sim_destroy(&sim);
}

/* The others have gone on and wait for the one that waits in it: nobody is known to have left it. */
static void test_some_have_gone_on_to_the_next_call(void **state)
{
    (void)state;
    for (size_t i = 1; i < SIZES; i++) {
        struct sim *sim = sim_new(sizes[i]);
        uint32_t w = sim_world(sim);
        steps(sim, w, 5);
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < sim->ranks; r++) {
            if (r > 0) {
                sim_call(sim, r, w, AR, 512);
            }
            sim_stuck(sim, r);
        }
        expect_after(sim, 18, "");
        expect_after(sim, 60, SICK);
        sim_destroy(&sim);
    }
}

static void test_what_is_missing_is_told_as_before(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 5);
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(sim, r, w, AR, 512);
        sim_stuck(sim, r);
    }
    expect_after(sim, 100, "suspected rank-busy 3");
    sim_destroy(&sim);
}

static void test_hosts_inside_the_call_itself(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t r = 0; r < 4; r++) {
        struct roll_record *rec = sim_call(sim, r, w, AR, 512);
        rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    }
    expect_after(sim, 58, "");
    expect_after(sim, 100, SICK);
    sim_destroy(&sim);
}

static void test_a_message_both_ends_of_which_wait(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        steps(sim, w, 5);
        sim_send(sim, 0, w, 1, 64);
        sim_recv(sim, 1, w, 0, 64);
        if (sick) {
            sim_stuck(sim, 0);
        } else {
            sim_sync(sim, 0);
        }
        sim_stuck(sim, 1);
        expect_after(sim, 100, sick ? SICK : "");
        sim_destroy(&sim);
    }
}

static void test_the_stream_of_the_wait_matters(void **state)
{
    (void)state;
    /* 0: waits for a stream without NCCL calls, which may wait for the others by events. 1: one that has its own. */
    for (int own = 0; own < 2; own++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        steps(sim, w, 5);
        sim_all(sim, w, AR, 512);
        for (uint32_t r = 0; r < 4; r++) {
            if (own) { /* over: a wait for this stream has come back */
                sim_call(sim, r, two, AR, 64)->stream = 3;
                sim_sync(sim, r)->stream = 3;
            }
            sim_stuck(sim, r)->stream = 3;
        }
        expect_after(sim, 100, own ? "" : SICK);
        sim_destroy(&sim);
    }
}

static void test_calls_behind_it_are_mentioned(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    steps(sim, w, 5);
    for (int i = 0; i < 3; i++) {
        sim_all(sim, w, AR, 512);
    }
    all_wait(sim, w);
    expect_after(sim, 40, SICK);
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, ", #5;"));
    assert_non_null(strstr(text, "one of the 3 calls"));
    free(text);
    sim_destroy(&sim);
}

static void test_creation_in_which_all_are(void **state)
{
    (void)state;
    for (int sick = 0; sick < 2; sick++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_record(sim, r, ROLL_OP_COMM_INIT, w);
            rec->count = 4;
            rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
        }
        if (!sick) {
            sim_return(sim, 2);
        }
        expect_after(sim, 115, "");
        expect_after(sim, 130, sick ? SICK : "");
        sim_destroy(&sim);
    }
}

/* with time between the calls */

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
    assert_int_equal(live_said(&l), 0); /* it was slow, not stuck: that is learnt */
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
    for (uint32_t r = 0; r < 8; r++) { /* and then it goes on */
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
    live_superseded(&l, number, "", "Of 1 host nothing was heard."); /* the other may have one, too */
    live_facts(&l, number, "b", ROLL_FACT_GPU_XID, "too late");
    assert_null(roll_engine_next(l.e));
    roll_engine_destroy(&l.e);
}

/* trouble elsewhere, and trouble that is over: it explains a wait only where the waiters depend on it */

#define OLD_STEPS 300u

/* What has been lost is over when the host has come back from a wait behind it, and not before. */
static void test_a_record_lost_long_ago_explains_nothing(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim);
        steps(sim, w, over ? 3 : OLD_STEPS);
        sim_lose(sim, 1, 1);
        if (over) {
            steps(sim, w, OLD_STEPS);
        } else {
            sim_all(sim, w, AR, 512);
        }
        all_wait(sim, w);
        expect_after(sim, 100, over ? SICK : "");
        sim_destroy(&sim);
    }
}

/* Other streams: what was lost may have been a call there, and the stream that is waited for may wait for it by an
 * event. */
static void test_a_wait_for_one_stream_does_not_end_a_loss_on_another(void **state)
{
    (void)state;
    for (uint32_t later = 5; later <= 305; later += 300) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, 4);
        steps(sim, w, 5);
        for (uint32_t r = 0; r < 4; r++) {
            sim_call(sim, r, two, AR, 64)->stream = 3;
            sim_record(sim, r, ROLL_OP_DEVICE_SYNC, 0);
        }
        sim_lose(sim, 1, 1);
        steps(sim, w, later);
        all_wait(sim, w);
        expect_after(sim, 100, later > 100 ? SICK : "");
        sim_destroy(&sim);
    }
}

/* Rank 4 shares a communicator with rank 3 only and dies early. 0-2: nobody has to do with it. 0-3: rank 3 has come
 * back from all it had called there, or not. */
static void test_a_rank_that_died_elsewhere_explains_nothing(void **state)
{
    (void)state;
    for (uint32_t members = 3; members <= 4; members++) {
        for (int through = 0; through < 2; through++) {
            struct sim *sim = sim_new(5);
            uint32_t a = sim_comm(sim, "a", NULL, members), b = sim_comm(sim, "b", (uint32_t[]){3, 4}, 2);
            for (uint32_t i = 0; i < 20; i++) {
                for (uint32_t r = 0; r < members; r++) {
                    sim_call(sim, r, a, AR, 512);
                    sim_sync(sim, r);
                }
            }
            sim_all(sim, b, AR, 8);
            if (through) {
                sim_sync(sim, 3);
            }
            sim_proc(sim, 4, ROLL_PROC_DEAD, SIM_SIGNAL(9));
            for (uint32_t r = 0; r < members; r++) {
                sim_call(sim, r, a, AR, 512);
                sim_stuck(sim, r);
            }
            bool silent = members == 4 && !through;
            expect_after(sim, 100, silent ? "proven rank-dead 4" : "proven rank-dead 4; " SICK);
            sim_destroy(&sim);
        }
    }
}

/* Rank 3 has aborted what rank 2 keeps: rank 2 is through with its calls there, or not. */
static void test_a_communicator_that_one_side_aborted(void **state)
{
    (void)state;
    for (int through = 0; through < 2; through++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), b = sim_comm(sim, "b", (uint32_t[]){2, 3}, 2);
        steps(sim, w, 5);
        sim_all(sim, b, AR, 5);
        if (through) {
            sim_sync(sim, 2);
        }
        sim_sync(sim, 3);
        sim_record(sim, 3, ROLL_OP_COMM_ABORT, b);
        if (through) {
            steps(sim, w, 30);
        }
        all_wait(sim, w);
        expect_after(sim, 100, through ? SICK : "");
        sim_destroy(&sim);
    }
}

/* What was found and hangs nothing is no reason to wait, and neither is what was found of calls that are over. */
static void test_findings_that_hang_nothing(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim);
    for (uint32_t i = 0; i < 50; i++) {
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 9);
            rec->redop = r == 1 && i == 3 ? ROLL_RED_MAX : rec->redop;
            sim_sync(sim, r);
        }
    }
    all_wait(sim, w);
    expect_after(sim, 150, "proven redop-mismatch 1; " SICK);
    sim_destroy(&sim);
    sim = sim_new(4); /* at every step, the last one too */
    w = sim_world(sim);
    for (uint32_t i = 0; i < 51; i++) {
        for (uint32_t r = 0; r < 4; r++) {
            struct roll_record *rec = sim_call(sim, r, w, AR, 9);
            rec->redop = r == 1 ? ROLL_RED_MAX : rec->redop;
            if (i < 50) {
                sim_sync(sim, r);
            } else {
                sim_stuck(sim, r);
            }
        }
    }
    expect_after(sim, 150, "proven redop-mismatch 1; " SICK);
    sim_destroy(&sim);
    sim = sim_new(4);
    w = sim_world(sim);
    uint32_t b = sim_comm(sim, "b", NULL, 2);
    for (uint32_t r = 0; r < 2; r++) {
        if (r == 0) {
            sim_group(sim, r);
        }
        sim_call(sim, r, b, AR, 5);
        sim_call(sim, r, b, AR, 6);
        if (r == 0) {
            sim_group_end(sim, r);
        }
        sim_sync(sim, r);
    }
    steps(sim, w, 30);
    all_wait(sim, w);
    expect_after(sim, 150, SICK "; suspected group-mismatch -");
    sim_destroy(&sim);
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
        cmocka_unit_test(test_all_arrived_and_none_left),
        cmocka_unit_test(test_the_first_waits_get_more_patience),
        cmocka_unit_test(test_long_waits_before_make_patient),
        cmocka_unit_test(test_who_has_left_makes_it_a_matter_of_kernels),
        cmocka_unit_test(test_a_rank_that_is_elsewhere_makes_it_silent),
        cmocka_unit_test(test_completion_tells_who_is_left_in_it),
        cmocka_unit_test(test_a_root_that_has_left_says_nothing),
        cmocka_unit_test(test_others_who_wait_for_its_ranks_are_one_cause),
        cmocka_unit_test(test_some_have_gone_on_to_the_next_call),
        cmocka_unit_test(test_what_is_missing_is_told_as_before),
        cmocka_unit_test(test_hosts_inside_the_call_itself),
        cmocka_unit_test(test_a_message_both_ends_of_which_wait),
        cmocka_unit_test(test_the_stream_of_the_wait_matters),
        cmocka_unit_test(test_calls_behind_it_are_mentioned),
        cmocka_unit_test(test_creation_in_which_all_are),
        cmocka_unit_test(test_slow_steps_are_healthy),
        cmocka_unit_test(test_told_once_and_again_when_it_has_moved),
        cmocka_unit_test(test_the_host_that_alone_has_a_fault_stands_out),
        cmocka_unit_test(test_faults_on_both_sides_name_nobody),
        cmocka_unit_test(test_what_is_merely_odd_names_nobody),
        cmocka_unit_test(test_a_node_that_does_not_answer_is_not_waited_for),
        cmocka_unit_test(test_a_record_lost_long_ago_explains_nothing),
        cmocka_unit_test(test_a_wait_for_one_stream_does_not_end_a_loss_on_another),
        cmocka_unit_test(test_a_rank_that_died_elsewhere_explains_nothing),
        cmocka_unit_test(test_a_communicator_that_one_side_aborted),
        cmocka_unit_test(test_findings_that_hang_nothing),
        cmocka_unit_test(test_many_hosts_are_named_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
