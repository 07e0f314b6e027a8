/*
 * test_engine_causes.c: who is named, and that one cause gives one finding: consequences of a told cause, ends of a
 * job, votes in a circle, communicators taken down, returned waits.
 */
#include "tests/daemon/engine/scenes.h"
#include "tests/daemon/engine/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE

/* All events of a scenario into an engine whose clock stands at `now`. */
static roll_engine_t *engine_of(const struct sim *sim, uint64_t now)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    assert_non_null(e);
    roll_engine_tick(e, now);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        struct roll_source_info info = {
            .stream = r + 1, .world_rank = (int32_t)r, .world_size = 3, .pid = 9, .host = "n", .exe = "x"};
        uint32_t source;
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            const struct sim_event *event = &sim->rank[r].event[i];
            if (event->kind == SIM_DEFINE) {
                assert_int_equal(roll_engine_define(e, source, &event->def), 0);
            } else if (event->kind == SIM_RECORD) {
                assert_int_equal(roll_engine_feed(e, source, &event->rec, 1), 0);
            } else {
                (void)roll_engine_process(e, source, event->proc, event->status);
            }
        }
    }
    return e;
}

/* After `patience` of waiting, rank 0 ends in a way of its own: time passes by a second engine run with ticks between
 * the events. */
static char *ends_later(const struct sim *sim, int32_t status)
{
    uint64_t now = 1000 * S_;
    roll_engine_t *e = engine_of(sim, now);
    for (uint32_t i = 0; i < 400; i++) {
        roll_engine_tick(e, now += S_ / 50);
    }
    (void)roll_engine_process(e, 0, ROLL_PROC_DEAD, status);
    for (uint32_t i = 0; i < 100; i++) {
        roll_engine_tick(e, now += S_ / 50);
    }
    char *out = calloc(1, 512);
    assert_non_null(out);
    for (const struct roll_verdict *v = roll_engine_next(e); v; v = roll_engine_next(e)) {
        char ranks[64];
        roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
        strcat(out, roll_verdict_name(v->code));
        strcat(strcat(strcat(out, " "), ranks), ";");
    }
    roll_engine_destroy(&e);
    return out;
}

static void test_watchdog_of_a_waiting_rank_is_a_consequence(void **state)
{
    (void)state;
    for (int cause = 0; cause < 3; cause++) { /* the last rank is stopped, dead, or busy */
        uint32_t w;
        struct sim *sim = scene_two_wait(&w);
        if (cause < 2) {
            sim_proc(sim, 2, cause ? ROLL_PROC_DEAD : ROLL_PROC_STOPPED,
                     cause ? SIM_SIGNAL(SIGKILL) : ROLL_EXIT_UNKNOWN);
        }
        char *got = ends_later(sim, SIM_EXIT(3));
        assert_string_equal(got, cause == 0 ? "rank-stopped 2;" : cause == 1 ? "rank-dead 2;" : "rank-busy 2;");
        free(got);
        got = ends_later(sim, SIM_SIGNAL(SIGSEGV)); /* a crash is a cause of its own */
        assert_non_null(strstr(got, "rank-dead 0;"));
        free(got);
        sim_destroy(&sim);
    }
}

static void test_exit_code_zero_is_a_good_end_however_it_came_about(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = scene_two_wait(&w);
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_EXIT(0));
    sim_expect(sim, "proven rank-finished 2");
    sim_destroy(&sim);
    sim = scene_two_wait(&w);
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_EXIT(1));
    sim_expect(sim, "proven rank-dead 2");
    sim_destroy(&sim);
}

/* A node's loss takes ranks in different calls along: each has its line, and the call in which it is felt is told. */
static void test_deaths_tell_their_last_calls_and_who_waits(void **state)
{
    (void)state;
    struct sim *sim = sim_new(6);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 100);
    for (uint32_t r = 0; r < 6; r++) {
        if (r != 4) {
            sim_call(sim, r, w, AR, 200);
        }
        if (r < 2 || r == 5) {
            sim_call(sim, r, w, AR, 300);
            sim_stuck(sim, r);
        }
    }
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
    sim_proc(sim, 3, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
    sim_proc(sim, 4, ROLL_PROC_DEAD, SIM_EXIT(3));
    char *text = sim_run(sim, 0, false, true);
    assert_non_null(strstr(text, "proven rank-dead 2-4 "));
    assert_non_null(strstr(text, "(rank 2 first: killed by signal 9 (SIGKILL); rank 4: exit code 3)"));
    assert_non_null(strstr(text, "Ranks 0-1,5 wait for rank 2 in AllReduce of 300 float32 (sum), #2 on "));
    free(text);
    sim_destroy(&sim);
}

static void test_end_of_unknown_kind_is_told_after_a_second(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = scene_two_wait(&w);
    sim_proc(sim, 2, ROLL_PROC_DEAD, ROLL_EXIT_UNKNOWN); /* a launcher may be ending all ranks one by one */
    sim->patience_ns = S_ * 9 / 10;
    sim_expect(sim, "");
    sim->patience_ns = 3 * S_;
    sim_expect(sim, "proven rank-dead 2");
    sim_destroy(&sim);
}

/* How it died is known long after that it died (a busy launcher): those who wait for it are named all the same. */
static void test_waiters_are_named_however_late_the_exit_status_comes(void **state)
{
    (void)state;
    for (uint64_t late_ms = 0; late_ms < 1000; late_ms += 60) {
        for (uint64_t step_ms = 20; step_ms <= 200; step_ms += 60) {
            uint32_t w;
            uint64_t now = 1000 * S_;
            struct sim *sim = scene_two_wait(&w);
            roll_engine_t *e = engine_of(sim, now);
            for (uint32_t i = 0; i < 40; i++) {
                roll_engine_tick(e, now += S_ / 50);
            }
            (void)roll_engine_process(e, 2, ROLL_PROC_DEAD, ROLL_EXIT_UNKNOWN);
            for (uint64_t end = now + late_ms * (S_ / 1000); now < end;) {
                roll_engine_tick(e, now += S_ / 50);
            }
            assert_null(roll_engine_next(e));
            (void)roll_engine_process(e, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
            const struct roll_verdict *v = NULL;
            for (uint32_t i = 0; i < 50 && !v; i++) {
                roll_engine_tick(e, now += step_ms * (S_ / 1000));
                v = roll_engine_next(e);
            }
            char ranks[64];
            assert_non_null(v);
            assert_string_equal(roll_verdict_name(v->code), "rank-dead");
            roll_rankset_format(&v->waiting, ranks, sizeof(ranks));
            assert_string_equal(ranks, "0-1");
            roll_engine_destroy(&e);
            sim_destroy(&sim);
        }
    }
}

static void test_ranks_told_to_go_may_take_their_time(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        sim_all(sim, w, AR, 64);
        sim_proc(sim, 1, ROLL_PROC_DEAD, SIM_SIGNAL(signals[i])); /* the others write a checkpoint first */
        sim->patience_ns = 9 * S_;
        sim_expect(sim, "");
        sim->patience_ns = 12 * S_;
        sim_expect(sim, "proven rank-dead 1");
        sim_destroy(&sim);
    }
}

/* The launcher ends the job while ranks hang: how each of them then ends is no finding; who died before that is. */
static void test_ranks_that_their_launcher_ends_are_no_finding(void **state)
{
    (void)state;
    static const int ends[] = {SIM_SIGNAL(SIGINT), SIM_SIGNAL(SIGKILL), SIM_SIGNAL(SIGSEGV),
                               SIM_EXIT(1),        SIM_EXIT(0),         ROLL_EXIT_UNKNOWN};
    for (size_t i = 0; i < 2 * sizeof(ends) / sizeof(ends[0]); i++) {
        uint32_t w;
        struct sim *sim = scene_two_wait(&w);
        sim_proc(sim, 2, i % 2 ? ROLL_PROC_DEAD : ROLL_PROC_FINISHED, ends[i / 2] | ROLL_EXIT_ASKED);
        sim->patience_ns = 15 * S_;
        sim_expect(sim, "");
        sim_destroy(&sim);

        sim = sim_new(3); /* the same where two wait for messages of the one that ends */
        w = sim_world(sim);
        for (uint32_t r = 0; r < 2; r++) {
            sim_recv(sim, r, w, 2, 512);
            sim_stuck(sim, r);
        }
        sim_call(sim, 2, w, AR, 0);
        sim_proc(sim, 2, i % 2 ? ROLL_PROC_DEAD : ROLL_PROC_FINISHED, ends[i / 2] | ROLL_EXIT_ASKED);
        sim->patience_ns = 15 * S_;
        sim_expect(sim, "");
        sim_destroy(&sim);

        sim = scene_two_wait(&w);
        sim_proc(sim, 0, ROLL_PROC_RUNNING, ROLL_EXIT_UNKNOWN | ROLL_EXIT_ASKED);
        sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
        sim_proc(sim, 0, ROLL_PROC_DEAD, ends[i / 2]);
        sim_expect(sim, "proven rank-dead 2");
        sim_destroy(&sim);
    }
}

/* World first, then the own half; rank `odd` the other way round. All of it is enqueued, on one stream. */
static void test_circle_of_halves_is_judged_by_sibling_communicators(void **state)
{
    (void)state;
    for (uint32_t odd = 0; odd < 4; odd++) {
        struct sim *sim = sim_new(4);
        uint32_t w = sim_world(sim), low[2] = {0, 2}, high[2] = {1, 3};
        uint32_t half[2] = {sim_comm(sim, "edp", low, 2), sim_comm(sim, "edp", high, 2)};
        for (uint32_t r = 0; r < 4; r++) {
            sim_call(sim, r, r == odd ? half[r % 2] : w, AR, 512);
            sim_call(sim, r, r == odd ? w : half[r % 2], AR, 512);
            sim_stuck(sim, r);
        }
        char want[64] = "proven circular-wait ?";
        want[strlen(want) - 1] = (char)('0' + odd);
        sim_expect(sim, want);
        sim_destroy(&sim);
    }
}

/* Ranks 2 and 3 have nothing to do with the pair that is stuck: they do not outvote its waiting side. */
static void test_bystanders_do_not_outvote_a_victim(void **state)
{
    (void)state;
    struct sim *sim = sim_new(4);
    uint32_t w = sim_world(sim), both[2] = {0, 1}, pair = sim_comm(sim, "pair", both, 2);
    sim_call(sim, 0, pair, AR, 64);
    for (uint32_t r = 1; r < 4; r++) {
        sim_call(sim, r, w, AR, 512);
    }
    for (uint32_t r = 0; r < 4; r++) {
        sim_stuck(sim, r);
    }
    sim_expect(sim, "proven circular-wait -");
    sim_destroy(&sim);
}

/*
 * Three siblings with a long common past. In the first, one rank makes one more call, one has ended before it, two are
 * under way; all of the second make it and go on, all of the third have ended before it: five against five, and two
 * that may still come. Whoever made the call is not named.
 */
static void test_siblings_vote_after_a_long_past_as_well(void **state)
{
    (void)state;
    struct sim *sim = sim_new(12);
    uint32_t dp[3];
    for (uint32_t g = 0; g < 3; g++) {
        uint32_t ranks[4] = {4 * g, 4 * g + 1, 4 * g + 2, 4 * g + 3};
        dp[g] = sim_comm(sim, "dp", ranks, 4);
    }
    for (uint32_t i = 0; i < 12; i++) {
        for (uint32_t r = 0; r < 12; r++) {
            sim_call(sim, r, dp[r / 4], AR, 512);
        }
    }
    for (uint32_t r = 4; r < 8; r++) {
        sim_call(sim, r, dp[1], AR, 512);
        sim_sync(sim, r);
    }
    for (uint32_t r = 8; r < 12; r++) {
        sim_proc(sim, r, ROLL_PROC_FINISHED, 0);
    }
    sim_proc(sim, 1, ROLL_PROC_FINISHED, 0);
    sim_call(sim, 0, dp[0], AR, 512);
    sim_stuck(sim, 0);
    sim->patience_ns = 8 * S_;
    sim_expect(sim, "suspected rank-finished 1");
    sim_destroy(&sim);
}

static void test_sequence_that_jumps_far_is_given_up_with_a_note(void **state)
{
    (void)state;
    struct sim *sim = sim_new(2);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    sim->rank[0].seq[w] += 1000000;
    sim_call(sim, 0, w, AR, 64);
    sim_call(sim, 1, w, AR, 77);
    sim_stuck(sim, 1);
    sim_expect_with_notes(sim, "note data-incomplete -");
    sim_destroy(&sim);
}

static void test_wait_that_came_back_is_over_whatever_the_others_called(void **state)
{
    (void)state;
    for (int back = 0; back < 2; back++) { /* everybody sends first: small messages were buffered, or not */
        struct sim *sim = sim_new(3);
        uint32_t w = sim_world(sim);
        for (uint32_t r = 0; r < 3; r++) {
            sim_send(sim, r, w, (r + 1) % 3, 4);
            sim_stuck(sim, r);
            if (back) {
                sim_return(sim, r);
                sim_recv(sim, r, w, (r + 2) % 3, 4);
                sim_sync(sim, r);
            }
        }
        sim_expect(sim, back ? "" : "proven p2p-deadlock -");
        sim_destroy(&sim);
    }
}

/* Neither mismatch hangs in NCCL: the job runs on, and the evidence must still be there when the mismatch is judged. */
static void test_mismatch_that_everybody_runs_past_is_told(void **state)
{
    (void)state;
    for (int messages = 0; messages < 2; messages++) {
        uint32_t n = messages ? 5 : 3;
        struct sim *sim = sim_new(n);
        uint32_t w = sim_world(sim);
        for (uint32_t i = 0; i < 40; i++) {
            for (uint32_t r = 0; r < n; r++) {
                if (messages) {
                    sim_group(sim, r);
                    sim_send(sim, r, w, (r + 1) % n, 64);
                    sim_recv(sim, r, w, (r + n - 1) % n, r == 1 && i == 10 ? 32 : 64);
                    sim_group_end(sim, r);
                } else {
                    struct roll_record *rec = sim_call(sim, r, w, AR, 64);
                    rec->dtype = r == 1 && i == 10 ? ROLL_DTYPE_INT32 : rec->dtype;
                    sim_call(sim, r, w, AR, 1);
                }
                sim_sync(sim, r);
                for (uint32_t k = 0; k < 50; k++) {
                    sim_record(sim, r, ROLL_OP_MOE_SPLIT, w);
                }
            }
        }
        sim_expect(sim, messages ? "proven p2p-bytes -" : "proven dtype-mismatch 1");
        sim_destroy(&sim);
    }
}

static void test_calls_that_failed_everywhere_hold_nobody_up(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    for (uint32_t i = 0; i < 10; i++) {
        for (uint32_t r = 0; r < 3; r++) {
            sim_call(sim, r, w, AR, 64)->result = i == 5 ? 4 : 0;
        }
    }
    sim->config.window = 64;
    for (uint32_t i = 0; i < 500; i++) {
        sim_all(sim, w, AR, 64);
    }
    for (uint32_t r = 0; r < 3; r++) {
        sim_sync(sim, r);
    }
    char *got = sim_run(sim, 0, true, false); /* round robin: in other orders ranks run ahead of the window */
    assert_string_equal(got, "");
    free(got);
    sim_destroy(&sim);
}

static void test_calls_that_fail_because_a_peer_died_are_no_skips(void **state)
{
    (void)state;
    struct sim *sim = sim_new(3);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 64);
    sim_call(sim, 0, w, AR, 64);
    sim_stuck(sim, 0);
    sim_call(sim, 1, w, AR, 64)->result = 6; /* ncclRemoteError */
    sim_proc(sim, 2, ROLL_PROC_DEAD, SIM_SIGNAL(SIGKILL));
    sim_expect(sim, "proven rank-dead 2");
    sim_destroy(&sim);
}

/* The ranks that wait, by the next verdict of this code; "none" where there is no such verdict. */
static const char *waiting_in(roll_engine_t *e, enum roll_verdict_code code, char out[64])
{
    const struct roll_verdict *v;
    snprintf(out, 64, "none");
    while ((v = roll_engine_next(e)) != NULL) {
        if (v->code == code) {
            roll_rankset_format(&v->waiting, out, 64);
        }
    }
    return out;
}

/* One rank with the call proves that another one's was dropped; who comes to wait in it a moment later is listed as
 * well. */
static void test_all_who_wait_for_a_dropped_call_are_listed(void **state)
{
    (void)state;
    for (uint32_t n = 3; n <= 8; n++) {
        char got[64], want[64];
        struct story t;
        story_open(&t, n, 0);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, ROLL_OP_ALLREDUCE, 64);
        story_feed(&t);
        sim_call(t.sim, n - 1, w, ROLL_OP_REDUCESCATTER, 0);
        sim_call(t.sim, n - 1, w, ROLL_OP_ALLREDUCE, 64);
        sim_stuck(t.sim, n - 1);
        for (uint32_t r = 0; r + 1 < n; r++) {
            sim_call(t.sim, r, w, ROLL_OP_REDUCESCATTER, 64);
            sim_stuck(t.sim, r);
            story_feed(&t);
            t.now += S_ / 500;
            roll_engine_tick(t.e, t.now);
        }
        story_pass(&t, S_);
        snprintf(want, sizeof(want), "0-%u", n - 2);
        assert_string_equal(waiting_in(t.e, ROLL_VERDICT_ZERO_COUNT, got), want);
        story_close(&t);
    }
}

/* In a tie nobody is named, and each side waits in its call for the other. */
static void test_both_sides_of_a_tie_wait(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 8; n += 2) {
        char got[64], want[64];
        struct story t;
        story_open(&t, n, 0);
        uint32_t w = sim_world(t.sim);
        sim_all(t.sim, w, ROLL_OP_ALLREDUCE, 64);
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t i = 0; i < 4; i++) {
                sim_call(t.sim, r, w, r < n / 2 ? ROLL_OP_ALLGATHER : ROLL_OP_REDUCESCATTER, 300);
            }
            sim_stuck(t.sim, r);
        }
        story_pass(&t, 2 * S_);
        snprintf(want, sizeof(want), "0-%u", n - 1);
        assert_string_equal(waiting_in(t.e, ROLL_VERDICT_OP_MISMATCH, got), want);
        story_close(&t);
    }
}

/* Rank 1 ends, or makes no more calls: rank 0 waits for it in a message between the two, the others in a collective of
 * all. Each side of the verdict, and each sentence of it, names only ranks that are in the call that it shows. */
static void test_who_waits_in_another_call_is_told_apart(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 6; kind++) {
        bool ends = kind % 2 == 0;
        struct story t;
        story_open(&t, 4, kind / 2);
        uint32_t pair[2] = {0, 1}, w = sim_world(t.sim), ep = sim_comm(t.sim, "expert_parallel", pair, 2);
        sim_all(t.sim, w, AR, 64);
        sim_all(t.sim, ep, AR, 64);
        story_pass(&t, S_ / 10);
        (void)sim_send(t.sim, 0, ep, 1, 1024);
        sim_stuck(t.sim, 0);
        for (uint32_t r = 2; r < 4; r++) {
            sim_call(t.sim, r, w, AR, 64);
            sim_stuck(t.sim, r);
        }
        if (ends) {
            sim_proc(t.sim, 1, ROLL_PROC_FINISHED, 0);
        }
        story_pass(&t, 8 * S_);
        const struct roll_verdict *v;
        uint32_t verdicts = 0;
        while ((v = roll_engine_next(t.e)) != NULL) {
            char got[64];
            uint32_t sends = 0, reduces = 0;
            verdicts++;
            assert_int_equal(v->code, ends ? ROLL_VERDICT_RANK_FINISHED : ROLL_VERDICT_RANK_BUSY);
            roll_rankset_format(&v->waiting, got, sizeof(got));
            assert_string_equal(got, "0,2-3");
            assert_int_equal(v->sides, 3);
            for (uint32_t i = 1; i < v->sides; i++) {
                bool send = v->side[i].rec.op == ROLL_OP_SEND;
                sends += send;
                reduces += v->side[i].rec.op == AR;
                roll_rankset_format(&v->side[i].ranks, got, sizeof(got));
                assert_string_equal(got, send ? "0" : "2-3");
            }
            assert_int_equal(sends, 1);
            assert_int_equal(reduces, 1);
            bool first = strncmp(v->text, "Rank 0 waits, in Send of 1024 float32", 37) == 0;
            assert_non_null(strstr(v->text, first ? "Ranks 2-3 wait for rank 1 elsewhere, in AllReduce of 64 float32"
                                                  : "Rank 0 waits for rank 1 elsewhere, in Send of 1024 float32"));
            assert_true(first || strncmp(v->text, "Ranks 2-3 wait, in AllReduce of 64 float32", 42) == 0);
        }
        assert_int_equal(verdicts, 1);
        story_close(&t);
    }
}

/* Rank 1 has ended. Rank 0 alone waits for it, and between two nobody is named; when rank 2 waits for it on another
 * communicator as well, rank 1 is. Both wait then, and the verdict says so. */
static void test_who_waits_since_earlier_is_not_forgotten(void **state)
{
    (void)state;
    struct story t;
    story_open(&t, 3, 0);
    uint32_t one[2] = {0, 1}, two[2] = {1, 2};
    uint32_t a = sim_comm(t.sim, "a", one, 2), b = sim_comm(t.sim, "b", two, 2);
    sim_all(t.sim, a, AR, 64);
    sim_all(t.sim, b, AR, 64);
    story_pass(&t, S_ / 10);
    sim_call(t.sim, 0, a, AR, 64);
    sim_stuck(t.sim, 0);
    sim_proc(t.sim, 1, ROLL_PROC_FINISHED, 0);
    story_pass(&t, 3 * S_);
    const struct roll_verdict *v = roll_engine_next(t.e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_RANK_FINISHED);
    assert_int_equal(roll_rankset_count(&v->culprits), 0);
    uint64_t number = v->number;
    assert_null(roll_engine_next(t.e));
    sim_call(t.sim, 2, b, AR, 64);
    sim_stuck(t.sim, 2);
    story_pass(&t, 3 * S_);
    v = roll_engine_next(t.e);
    assert_non_null(v);
    char got[64];
    assert_int_equal(v->supersedes, number);
    roll_rankset_format(&v->culprits, got, sizeof(got));
    assert_string_equal(got, "1");
    roll_rankset_format(&v->waiting, got, sizeof(got));
    assert_string_equal(got, "0,2");
    assert_non_null(strstr(v->text, " Rank 0 waits for rank 1 elsewhere."));
    story_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_watchdog_of_a_waiting_rank_is_a_consequence),
        cmocka_unit_test(test_who_waits_since_earlier_is_not_forgotten),
        cmocka_unit_test(test_exit_code_zero_is_a_good_end_however_it_came_about),
        cmocka_unit_test(test_deaths_tell_their_last_calls_and_who_waits),
        cmocka_unit_test(test_end_of_unknown_kind_is_told_after_a_second),
        cmocka_unit_test(test_waiters_are_named_however_late_the_exit_status_comes),
        cmocka_unit_test(test_ranks_told_to_go_may_take_their_time),
        cmocka_unit_test(test_ranks_that_their_launcher_ends_are_no_finding),
        cmocka_unit_test(test_circle_of_halves_is_judged_by_sibling_communicators),
        cmocka_unit_test(test_bystanders_do_not_outvote_a_victim),
        cmocka_unit_test(test_siblings_vote_after_a_long_past_as_well),
        cmocka_unit_test(test_sequence_that_jumps_far_is_given_up_with_a_note),
        cmocka_unit_test(test_wait_that_came_back_is_over_whatever_the_others_called),
        cmocka_unit_test(test_mismatch_that_everybody_runs_past_is_told),
        cmocka_unit_test(test_calls_that_failed_everywhere_hold_nobody_up),
        cmocka_unit_test(test_calls_that_fail_because_a_peer_died_are_no_skips),
        cmocka_unit_test(test_all_who_wait_for_a_dropped_call_are_listed),
        cmocka_unit_test(test_both_sides_of_a_tie_wait),
        cmocka_unit_test(test_who_waits_in_another_call_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
