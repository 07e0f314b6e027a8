/*
 * test_engine_state.c: how far a call has come, as `why` tells it: entered, in a group, in progress, captured, refused,
 * complete.
 */
#include "tests/daemon/engine/sim.h"
#include "trace/err.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AR ROLL_OP_ALLREDUCE

static char state_word[32]; /* of rank 0's last call, in the view of the last scenario */

/* An engine that has been fed all ranks of the scenario at one instant. Returns owned. */
static roll_engine_t *fed_at_once(const struct sim *sim)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    assert_non_null(e);
    for (uint32_t r = 0; r < sim->ranks; r++) {
        struct roll_source_info info = {.stream = r + 1, .world_rank = (int32_t)r, .world_size = (int32_t)sim->ranks};
        uint32_t source;
        assert_int_equal(roll_engine_open(e, &info, &source), 0);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            const struct sim_event *event = &sim->rank[r].event[i];
            assert_int_equal(event->kind == SIM_DEFINE ? roll_engine_define(e, source, &event->def)
                                                       : roll_engine_feed(e, source, &event->rec, 1),
                             0);
        }
    }
    return e;
}

/* Two ranks; what rank 0 is told to be doing after all events of the scenario. */
static void why(struct sim *sim, char *out, size_t size)
{
    roll_engine_t *e = fed_at_once(sim);
    assert_true(roll_engine_why(e, 0, out, size) > 0);
    struct roll_view_source view;
    assert_true(roll_engine_source(e, 0, &view));
    snprintf(state_word, sizeof(state_word), "%s", view.state);
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

static void expect(struct sim *sim, const char *part)
{
    char text[4096];
    why(sim, text, sizeof(text));
    if (strstr(text, part) == NULL) {
        fail_msg("wanted '%s' in: %s", part, text);
    }
}

static struct sim *two_ranks(uint32_t *world)
{
    struct sim *sim = sim_new(2);
    *world = sim_world(sim);
    sim_all(sim, *world, AR, 8);
    return sim;
}

static void again(struct sim *sim, uint32_t rank, const struct roll_record *rec, enum roll_state state, uint16_t stream)
{
    struct roll_record *copy = sim_record(sim, rank, (enum roll_op)rec->op, UINT32_MAX);
    *copy = *rec;
    copy->seal = roll_seal(roll_seal_ticket(rec->seal), state);
    copy->stream = stream;
    sim->rank[rank].ticket--;
}

static void test_a_call_that_has_not_returned(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    struct roll_record *rec = sim_call(sim, 0, w, AR, 16);
    rec->seal = roll_seal(roll_seal_ticket(rec->seal), ROLL_STATE_ENTERED);
    expect(sim, "Its last NCCL call: AllReduce of 16 float32 (sum) (entered, not returned), #1 on communicator world "
                "(2 ranks).");
    assert_string_equal(state_word, "entered");
}

static void test_a_call_in_an_open_group(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_group(sim, 0);
    sim_call(sim, 0, w, AR, 16);
    expect(sim, "AllReduce of 16 float32 (sum) (in a group that has not been ended: not enqueued yet), #1 on "
                "communicator world (2 ranks). It "
                "will wait in that call, for rank 1: ");
    assert_string_equal(state_word, "in group");
}

static void test_calls_in_progress_refused_and_captured(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16)->result = 7;
    expect(sim, "(returned, in progress in the background for ");
    assert_string_equal(state_word, "in progress");
    sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16)->result = 7;
    sim_record(sim, 0, ROLL_OP_COMM_ASYNC, w); /* done */
    expect(sim, "Its last NCCL call: AllReduce of 16 float32 (sum), #1 on communicator world (2 ranks). Its stream "
                "waits in that "
                "call, for rank 1: rank 1 is not inside any call");
    sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16)->result = 4;
    expect(sim, "(returned ncclInvalidArgument: nothing was enqueued), #1 on ");
    assert_string_equal(state_word, "refused");
    sim = two_ranks(&w);
    sim_capture(sim, 0, w, 3, 1, 16);
    expect(sim, "(captured into CUDA graph 3: it runs when that is launched), #1 on ");
    assert_string_equal(state_word, "captured");
}

static void test_errors_aborts_and_revocations(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_record(sim, 0, ROLL_OP_COMM_ASYNC, w)->result = 6;
    expect(sim, "NCCL reports ncclRemoteError on communicator world (2 ranks) (ncclCommGetAsyncError).");
    sim = two_ranks(&w);
    sim_record(sim, 0, ROLL_OP_COMM_ABORT, w);
    expect(sim, "It has aborted communicator world (2 ranks): what was not done there stays undone, and its peers are");
    sim = two_ranks(&w); /* the last one takes it down */
    sim_record(sim, 0, ROLL_OP_COMM_ABORT, w);
    sim_record(sim, 1, ROLL_OP_COMM_ABORT, w);
    expect(sim, "It has aborted communicator world (2 ranks): nothing on it is judged any more.");
    sim = two_ranks(&w);
    sim_record(sim, 0, ROLL_OP_COMM_REVOKE, w);
    expect(sim, "It has revoked communicator world (2 ranks)");
}

static void test_what_is_complete_on_the_device(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    struct roll_record first = *sim_call(sim, 0, w, AR, 16);
    again(sim, 0, &first, ROLL_STATE_COMPLETE, first.stream);
    expect(sim, "AllReduce of 16 float32 (sum) (complete on the device), #1 on communicator world (2 ranks).");
    assert_string_equal(state_word, "complete");
    sim = two_ranks(&w);
    first = *sim_call(sim, 0, w, AR, 16);
    again(sim, 0, &first, ROLL_STATE_COMPLETE, first.stream);
    sim_call(sim, 0, w, AR, 32);
    expect(sim, "AllReduce of 32 float32 (sum) (returned, not complete on the device), #2 on ");
}

/* What is said of the last call holds for all before it on the stream: rank 0 waits for nothing any more. */
static void test_completion_takes_what_is_before_it_along(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16);
    sim_call(sim, 0, w, AR, 24);
    struct roll_record last = *sim_call(sim, 0, w, AR, 32);
    again(sim, 0, &last, ROLL_STATE_COMPLETE, last.stream);
    expect(sim, "Everything that it has issued could be matched.");
    sim = two_ranks(&w); /* the twin, without it */
    sim_call(sim, 0, w, AR, 16);
    sim_call(sim, 0, w, AR, 24);
    expect(sim, "Its stream waits in AllReduce of 16 float32 (sum), #1 on communicator world (2 ranks), for rank 1: ");
}

/* A group is over when its end is; its calls stand on the stream of the first. */
static void test_a_group_completes_as_a_whole(void **state)
{
    (void)state;
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_group(sim, 0);
    sim_call(sim, 0, w, AR, 16);
    sim_call(sim, 0, w, AR, 24)->stream = 3;
    sim_group_end(sim, 0);
    struct roll_record end = sim->rank[0].event[sim->rank[0].events - 1].rec;
    again(sim, 0, &end, ROLL_STATE_COMPLETE, 2);
    expect(sim, "AllReduce of 24 float32 (sum) (complete on the device), #2 on communicator world (2 ranks). "
                "Everything that it "
                "has issued could be matched.");
}

/* A call of no elements waits in no queue. The device says all the same that its group is over. */
static void test_a_group_completes_on_a_stream_without_a_queue(void **state)
{
    (void)state;
    uint32_t w;
    for (uint16_t stream = 3; stream < 40; stream = (uint16_t)(stream * 2)) {
        struct sim *sim = two_ranks(&w);
        sim_group(sim, 0);
        sim_call(sim, 0, w, AR, 0)->stream = stream;
        sim_group_end(sim, 0);
        struct roll_record end = sim->rank[0].event[sim->rank[0].events - 1].rec;
        again(sim, 0, &end, ROLL_STATE_COMPLETE, stream);
        expect(sim, "AllReduce of 0 float32 (sum) (complete on the device), #1 on communicator world (2 ranks).");
        assert_string_equal(state_word, "complete");
    }
}

/* A communicator is named by its label, by its members where others have the label, and by its members alone where
 * there is none. */
static void test_communicators_are_told_apart_by_who_is_in_them(void **state)
{
    (void)state;
    static const uint32_t low[] = {0, 1, 2, 3}, high[] = {4, 5, 6, 7}, apart[] = {0, 4, 8, 12}, odd[] = {0, 3, 5};
    static const struct {
        const char *label;
        const uint32_t *ranks;
        uint32_t size, before; /* communicators with the same members before it */
        bool namesake;         /* another one has the label; without a label: the members */
        const char *name;
    } rows[] = {
        {"ep", low, 4, 0, false, "on communicator ep (4 ranks)"},
        {"ep", low, 4, 0, true, "on communicator ep of ranks 0-3 (4 ranks)"},
        {"", low, 4, 0, false, "on the communicator of ranks 0-3 (4 ranks)"},
        {"", low, 4, 0, true, "on the 1st communicator of ranks 0-3 (4 ranks)"},
        {"", low, 4, 1, false, "on the 2nd communicator of ranks 0-3 (4 ranks)"},
        {"", low, 4, 2, false, "on the 3rd communicator of ranks 0-3 (4 ranks)"},
        {"", apart, 4, 0, false, "on the communicator of every 4th rank from 0 (4 ranks)"},
        {"", odd, 3, 0, false, "on the communicator of ranks 0,3,5 (3 ranks)"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sim *sim = sim_new(16);
        for (uint32_t k = 0; k < rows[i].before; k++) {
            (void)sim_comm(sim, "", rows[i].ranks, rows[i].size);
        }
        uint32_t c = sim_comm(sim, rows[i].label, rows[i].ranks, rows[i].size);
        if (rows[i].namesake) {
            (void)sim_comm(sim, rows[i].label, rows[i].label[0] ? high : rows[i].ranks, 4);
        }
        sim_call(sim, 0, c, AR, 16);
        sim_stuck(sim, 0);
        expect(sim, rows[i].name);
    }
}

/* What one paragraph says of many ranks: those that wait in one call are alike, who has not come is not. */
static void test_ranks_that_stand_alike_are_one_paragraph(void **state)
{
    (void)state;
    enum { RANKS = 300, LATE = 7 };
    struct sim *sim = sim_new(RANKS);
    uint32_t w = sim_world(sim);
    sim_all(sim, w, AR, 8);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (r != LATE) {
            sim_call(sim, r, w, AR, 16);
            sim_stuck(sim, r);
        }
    }
    roll_engine_t *e = fed_at_once(sim);
    struct roll_rankset alike = {0};
    uint64_t key = roll_engine_why_key(e, 0);
    assert_true(key != 0);
    assert_true(roll_engine_why_key(e, RANKS) == 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(roll_engine_why_key(e, r) == key, r != LATE);
        if (r != LATE) {
            (void)roll_rankset_add(&alike, r);
        }
    }
    char text[4096];
    assert_true(roll_engine_why_alike(e, &alike, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "Ranks 0-6,8-299 are inside cudaStreamSynchronize."));
    assert_non_null(strstr(
        text, " Their last NCCL call: AllReduce of 16 float32 (sum), #1 on communicator world (300 ranks). They wait "
              "in that call, for rank 7: rank 7 is not inside any call"));
    roll_rankset_fini(&alike);
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

/* An engine that has been fed all ranks of the scenario, rank after rank; source: by rank. Returns owned. */
static roll_engine_t *fed(const struct sim *sim, uint32_t *source, uint64_t *now)
{
    roll_engine_t *e = roll_engine_new(&sim->config);
    assert_non_null(e);
    *now = 0;
    for (uint32_t r = 0; r < sim->ranks; r++) {
        source[r] = sim_open(sim, e, r);
        for (size_t i = 0; i < sim->rank[r].events; i++) {
            sim_feed(e, source[r], &sim->rank[r].event[i], now);
        }
    }
    return e;
}

/* Rank 0 waits for rank 1, which does not come; a suspicion takes five seconds. */
static struct sim *one_waits(void)
{
    uint32_t w;
    struct sim *sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16);
    sim_stuck(sim, 0);
    sim->config.suspect_ns = 5 * S_;
    return sim;
}

/* How well both ranks are seen: they are heard, and kept waiting for a processor for so much of the time. */
static void seen(roll_engine_t *e, const uint32_t *source, uint32_t starved)
{
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(
            roll_engine_sight(e, source[r], &(struct roll_engine_sight){.heard = true, .starved = starved}), 0);
    }
}

/* Nothing is found yet, and whoever asks is told what is lacking, by the clock that the suspicion waits for. */
static void test_a_suspicion_ripens(void **state)
{
    (void)state;
    uint32_t source[2];
    char text[4096];
    uint64_t now;
    struct sim *sim = one_waits();
    roll_engine_t *e = fed(sim, source, &now);
    sim_wait(e, UINT64_C(500000000), &now);
    assert_int_equal(roll_engine_ripening(e, 0, true, text, sizeof(text)), ROLL_E_NOTFOUND); /* it is no news yet */
    sim_wait(e, UINT64_C(2500000000), &now);
    assert_int_equal(roll_engine_ripening(e, 1, true, text, sizeof(text)), ROLL_E_NOTFOUND); /* it waits for nobody */
    static const char want[] = "told once rank 1 has been silent for 5 s, of which ";
    for (int alone = 0; alone < 2; alone++) {
        assert_true(roll_engine_ripening(e, 0, alone != 0, text, sizeof(text)) > 0);
        const char *at = strstr(text, want);
        double counted = at ? strtod(at + sizeof(want) - 1, NULL) : 0;
        if (counted < 2 || counted > 4 ||
            (strstr(text, "rank 1 has not made AllReduce of 16 float32 (sum), #") != NULL) != (alone != 0)) {
            fail_msg("no \"%s\" in: %s", want, text);
        }
    }
    struct roll_view_source view;
    assert_true(roll_engine_rank(e, 0, &view));
    assert_int_equal(view.inside, ROLL_OP_STREAM_SYNC);
    assert_true(roll_engine_rank(e, 1, &view));
    assert_int_equal(view.inside, ROLL_OP_NONE);
    sim_wait(e, UINT64_C(4000000000), &now);
    const struct roll_verdict *v = roll_engine_next(e);
    assert_non_null(v);
    assert_int_equal(v->certainty, ROLL_SUSPECTED);
    assert_int_equal(roll_engine_ripening(e, 0, true, text, sizeof(text)), ROLL_E_NOTFOUND); /* it is told */
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

/* Where CPUs are short, time counts less, and both the wait for the suspicion and the suspicion say so. */
static void test_patience_that_was_stretched_is_told(void **state)
{
    (void)state;
    uint32_t source[2];
    char text[4096];
    uint64_t now;
    struct sim *sim = one_waits();
    roll_engine_t *e = fed(sim, source, &now);
    seen(e, source, 950);
    sim_wait(e, 12 * S_, &now); /* of which 0.6 s count */
    assert_null(roll_engine_next(e));
    assert_true(roll_engine_ripening(e, 0, true, text, sizeof(text)) > 0);
    if (!strstr(text, "5 s, of which 0.6 s count so far (12.0 s have passed, but CPUs were short") ||
        !strstr(text, "now 95 % of the time)")) {
        fail_msg("%s", text);
    }
    seen(e, source, 0); /* they run freely again */
    sim_wait(e, 8 * S_, &now);
    const struct roll_verdict *v = roll_engine_next(e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_RANK_BUSY);
    if (!strstr(v->text, " s of that count: CPUs were short, so patience was stretched)")) {
        fail_msg("%s", v->text);
    }
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

/* All ranks have made the call, and none goes on: a verdict says why, and the answer names its number. */
static void test_why_names_the_finding_on_its_communicator(void **state)
{
    (void)state;
    uint32_t w, source[2];
    struct sim *sim = two_ranks(&w);
    sim_call(sim, 0, w, AR, 16);
    sim_call(sim, 1, w, AR, 32);
    sim_stuck(sim, 0);
    sim_stuck(sim, 1);
    uint64_t now;
    roll_engine_t *e = fed(sim, source, &now);
    sim_wait(e, UINT64_C(2000000000), &now);
    char text[4096];
    assert_true(roll_engine_why(e, 1, text, sizeof(text)) > 0);
    if (strstr(
            text,
            "To each call that it has issued every peer has made one with the same number; why it goes no further on "
            "communicator world (2 ranks) is what verdict 1 says.") == NULL) {
        fail_msg("no number in: %s", text);
    }
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

/* Both hosts have made all calls, in opposite order on one stream. The verdict speaks of the stream as the answer does:
 * nobody is said to have made a call and not to have come to it. */
static void test_why_does_not_contradict_a_circle_of_streams(void **state)
{
    (void)state;
    enum { RANKS = 3 };
    struct sim *sim = sim_new(RANKS);
    uint32_t w = sim_world(sim), two = sim_comm(sim, "two", NULL, RANKS), source[RANKS];
    for (uint32_t r = 0; r < RANKS; r++) {
        sim_call(sim, r, r == 2 ? two : w, AR, 512);
        sim_call(sim, r, r == 2 ? w : two, AR, 512);
    }
    uint64_t now;
    roll_engine_t *e = fed(sim, source, &now);
    sim_wait(e, UINT64_C(2000000000), &now);
    const struct roll_verdict *v = roll_engine_next(e);
    assert_non_null(v);
    assert_int_equal(v->code, ROLL_VERDICT_CIRCULAR_WAIT);
    if (strstr(v->text, "The stream of rank 2 has not come to AllReduce of 512 float32 (sum), #0 on communicator world "
                        "(3 ranks), in which ranks 0-1 wait: instead it is in ") != v->text) {
        fail_msg("the verdict: %s", v->text);
    }
    char text[4096];
    assert_true(roll_engine_why(e, 0, text, sizeof(text)) > 0);
    if (strstr(text, "Its stream waits in AllReduce of 512 float32 (sum), #0 on communicator world (3 ranks); every "
                     "member has issued it, but the streams of some of them have not come to it") == NULL) {
        fail_msg("the answer: %s", text);
    }
    roll_engine_destroy(&e);
    sim_destroy(&sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_that_has_not_returned),
        cmocka_unit_test(test_a_call_in_an_open_group),
        cmocka_unit_test(test_calls_in_progress_refused_and_captured),
        cmocka_unit_test(test_errors_aborts_and_revocations),
        cmocka_unit_test(test_what_is_complete_on_the_device),
        cmocka_unit_test(test_completion_takes_what_is_before_it_along),
        cmocka_unit_test(test_a_group_completes_as_a_whole),
        cmocka_unit_test(test_a_group_completes_on_a_stream_without_a_queue),
        cmocka_unit_test(test_communicators_are_told_apart_by_who_is_in_them),
        cmocka_unit_test(test_ranks_that_stand_alike_are_one_paragraph),
        cmocka_unit_test(test_a_suspicion_ripens),
        cmocka_unit_test(test_patience_that_was_stretched_is_told),
        cmocka_unit_test(test_why_names_the_finding_on_its_communicator),
        cmocka_unit_test(test_why_does_not_contradict_a_circle_of_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
