/*
 * test_engine_rehearsed.c: a job beside what was rehearsed of it: where it leaves that, what a tie is told as then, and
 * the same jobs that do what was rehearsed.
 */
#include "daemon/engine/detect/rehearsed.h"
#include "daemon/expect/expect.h"
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

#define AR ROLL_OP_ALLREDUCE
#define AG ROLL_OP_ALLGATHER

static const uint32_t sizes[] = {2, 3, 4, 8, 64};
#define EACH_SIZE(n) for (size_t at = 0, n = sizes[0]; at < sizeof(sizes) / sizeof(sizes[0]); n = sizes[++at % 5])

/* What was rehearsed, if `sim` was the rehearsal; all messages are part of it. */
static struct roll_expected *rehearsed(const struct sim *sim)
{
    struct roll_expect_build b;
    struct roll_expected *x;
    assert_int_equal(roll_expect_begin(&b, sim->ranks), 0);
    for (uint32_t c = 0; c < sim->comms; c++) {
        struct roll_expected_member member[64];
        char label[ROLL_NAME_BYTES] = "";
        for (uint32_t i = 0; i < sim->comm[c].size; i++) {
            const struct sim_rank *rank = &sim->rank[sim->comm[c].member[i]];
            uint32_t made[256], n = 0;
            for (size_t k = 0; k < rank->events; k++) {
                const struct sim_event *event = &rank->event[k];
                if (event->kind == SIM_DEFINE && event->def.type == ROLL_DEF_COMM &&
                    event->def.id == rank->comm_id[c]) {
                    snprintf(label, sizeof(label), "%.*s", (int)event->def.comm.info.label_bytes,
                             event->def.comm.label);
                }
                if (event->kind == SIM_RECORD && event->rec.comm == rank->comm_id[c] &&
                    roll_expected_counts(&event->rec)) {
                    struct roll_expected_call call = roll_expected_of(&event->rec, i, sim->comm[c].size);
                    assert_int_equal(roll_expect_call(&b, &call, &made[n++]), 0);
                }
            }
            member[i] = (struct roll_expected_member){sim->comm[c].member[i], 0, 0};
            assert_int_equal(roll_expect_sequence(&b, made, n, &member[i].sequence), 0);
        }
        const struct roll_expected_comm comm = {
            .label = label, .role = "", .made = "", .size = sim->comm[c].size, .messages = true};
        assert_int_equal(roll_expect_comm(&b, &comm, member), 0);
    }
    assert_int_equal(roll_expect_end(&b, &x), 0);
    return x;
}

/* A job of some steps: a sum of gradients, a smaller one, and a message to the next rank. */
struct job {
    uint32_t ranks, steps, more; /* more: elements that everybody has more of */
    int odd;                     /* in this step the last rank is wrong; -1: it never is */
    bool skips, sends_more;      /* it leaves the call out; its message is longer, else its sum is */
    int evaluates[2];            /* before these steps everybody gathers, too */
    bool hangs;                  /* all wait at the end */
};

static struct sim *play(const struct job *job)
{
    struct sim *sim = sim_new(job->ranks);
    uint32_t w = sim_world(sim), last = job->ranks - 1;
    for (uint32_t r = 0; r < job->ranks; r++) {
        sim_call(sim, r, w, ROLL_OP_BROADCAST, 100);
    }
    for (int step = 0; step < (int)job->steps; step++) {
        for (uint32_t r = 0; r < job->ranks; r++) {
            bool odd = step == job->odd && r == last;
            if (step > 0 && (step == job->evaluates[0] || step == job->evaluates[1])) {
                sim_call(sim, r, w, AG, 7);
            }
            if (!odd || !job->skips) {
                sim_call(sim, r, w, AR, 4096 + job->more + (odd && !job->sends_more ? 4096 : 0));
            }
            sim_call(sim, r, w, AG, 2);
            if (r % 2 == 0 && r < last) {
                sim_send(sim, r, w, r + 1, 64);
            } else if (r % 2 == 1) {
                sim_recv(sim, r, w, r - 1, odd && job->sends_more ? 128 : 64);
            }
        }
    }
    for (uint32_t r = 0; job->hangs && r < job->ranks; r++) {
        sim_stuck(sim, r);
    }
    return sim;
}

static struct roll_expected *rehearsal(uint32_t ranks)
{
    struct sim *sim = play(&(struct job){.ranks = ranks, .steps = 3, .odd = -1});
    struct roll_expected *x = rehearsed(sim);
    sim_destroy(&sim);
    return x;
}

/* What a job is told as beside the rehearsal of a healthy one, notes included. */
static void expect(const struct job *job, const char *said)
{
    struct roll_expected *x = rehearsal(job->ranks);
    struct sim *sim = play(job);
    sim->expected = x;
    sim_expect_with_notes(sim, said);
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

static void what_was_rehearsed_is_silent(void **state)
{
    (void)state;
    EACH_SIZE(n)
    {
        for (uint32_t steps = 1; steps < 30; steps += 7) {
            expect(&(struct job){.ranks = (uint32_t)n, .steps = steps, .odd = -1}, "");
        }
    }
}

static void all_leave_alike_and_are_told_once(void **state)
{
    char said[64];
    (void)state;
    EACH_SIZE(n)
    {
        snprintf(said, sizeof(said), "note rehearsal-left 0-%zu", n - 1);
        expect(&(struct job){.ranks = (uint32_t)n, .steps = 20, .more = 64, .odd = -1}, said);
    }
}

static void a_tie_is_decided_by_the_rehearsal(void **state)
{
    (void)state;
    struct job job = {.ranks = 2, .steps = 3, .odd = 1, .hangs = true};
    struct sim *sim = play(&job);
    sim_expect(sim, "suspected count-mismatch -");
    sim_destroy(&sim);
    expect(&job, "note rehearsal-left 1; suspected count-mismatch 1");
    job.skips = true;
    sim = play(&job);
    char *alone = sim_run(sim, 0, false, false), *beside;
    struct roll_expected *x = rehearsal(2);
    assert_null(strstr(alone, "call-skipped 1"));
    sim->expected = x;
    beside = sim_run(sim, 0, false, false);
    assert_string_equal(beside, "suspected call-skipped 1");
    free(alone);
    free(beside);
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

/*
 * A checkpoint that the rehearsal did not come to: a barrier, which one of two ranks leaves out. The other leaves what
 * was rehearsed, and is right.
 */
static void a_call_that_was_never_rehearsed_decides_nothing(void **state)
{
    (void)state;
    for (uint32_t lacks = 0; lacks < 2; lacks++) {
        for (int goes_on = 0; goes_on < 2; goes_on++) {
            struct sim *sim = sim_new(2);
            uint32_t w = sim_world(sim);
            struct roll_expected *x = rehearsal(2);
            for (uint32_t r = 0; r < 2; r++) {
                sim_call(sim, r, w, ROLL_OP_BROADCAST, 100);
                for (int step = 0; step < 4; step++) {
                    if (step == 2 && r != lacks) {
                        sim_call(sim, r, w, AR, 1);
                        if (!goes_on) {
                            break;
                        }
                    }
                    sim_call(sim, r, w, AR, 4096);
                    if (step == 2 && !goes_on) {
                        break;
                    }
                    sim_call(sim, r, w, AG, 2);
                    if (r == 0) {
                        sim_send(sim, r, w, 1, 64);
                    } else {
                        sim_recv(sim, r, w, 0, 64);
                    }
                }
                sim_stuck(sim, r);
            }
            sim->expected = x;
            for (uint32_t order = 0; order < SIM_ORDERS; order++) {
                char *got = sim_run(sim, order, false, false);
                char named[8];
                snprintf(named, sizeof(named), " %u", !lacks);
                assert_string_not_equal(got, "");
                assert_null(strstr(got, named)); /* the rank that is right */
                free(got);
            }
            sim_destroy(&sim);
            roll_expected_destroy(&x);
        }
    }
}

/*
 * One against one, and two against two, wait in different calls: the last half of the ranks leaves out a message and is
 * in the next call. No vote names them, and the rehearsal does: one of them,
 * for a message has two ends.
 */
static void a_message_and_another_call_that_no_vote_decides(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= 8; n *= 2) {
        struct roll_expected *x = NULL;
        for (int sick = 0; sick < 2; sick++) {
            struct sim *sim = sim_new(n);
            uint32_t w = sim_world(sim), half = n / 2;
            for (uint32_t r = 0; r < n; r++) {
                for (int step = 0; step < 3; step++) {
                    bool hangs = sick && step == 2;
                    sim_call(sim, r, w, AR, 64);
                    sim_sync(sim, r);
                    if (r < half) {
                        sim_send(sim, r, w, r + half, 32);
                    } else if (!hangs) {
                        sim_recv(sim, r, w, r - half, 32);
                    }
                    if (hangs && r < half) {
                        sim_stuck(sim, r);
                        break;
                    }
                    sim_sync(sim, r);
                    sim_call(sim, r, w, AG, 16);
                    if (hangs) {
                        sim_stuck(sim, r);
                    } else {
                        sim_sync(sim, r);
                    }
                }
            }
            if (!sick) {
                x = rehearsed(sim);
            } else {
                char *got = sim_run(sim, 0, false, false);
                assert_string_equal(got, "proven p2p-unmatched -");
                free(got);
                sim->expected = x;
                for (uint32_t order = 0; order < SIM_ORDERS; order++) {
                    uint32_t rank;
                    got = sim_run(sim, order, false, false);
                    assert_int_equal(sscanf(got, "suspected p2p-unmatched %u", &rank), 1);
                    assert_in_range(rank, half, n - 1);
                    assert_null(strchr(got, ';'));
                    free(got);
                }
            }
            sim_destroy(&sim);
        }
        roll_expected_destroy(&x);
    }
}

/* The majority is right, whatever was rehearsed; the rehearsal only adds its note. */
static void a_majority_needs_no_rehearsal(void **state)
{
    (void)state;
    expect(&(struct job){.ranks = 4, .steps = 3, .odd = 1, .hangs = true},
           "note rehearsal-left 3; suspected count-mismatch 3");
    struct roll_expected *x = rehearsal(4);
    struct sim *sim = play(&(struct job){.ranks = 4, .steps = 3, .odd = 1, .more = 4096, .hangs = true});
    sim->expected = x; /* three ranks leave alike, and the fourth otherwise */
    sim_expect(sim, "suspected count-mismatch 3");
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

static void a_message_of_another_size_names_its_rank(void **state)
{
    (void)state;
    struct job job = {.ranks = 2, .steps = 3, .odd = 1, .sends_more = true, .hangs = true};
    struct sim *sim = play(&job);
    sim_expect(sim, "proven p2p-bytes -");
    sim_destroy(&sim);
    expect(&job, "note rehearsal-left 1; suspected p2p-bytes 1");
}

/* An evaluation now and then is told once; each time the job falls in step again, and what differs later is told. */
static void a_job_falls_in_step_again(void **state)
{
    (void)state;
    struct job job = {.ranks = 4, .steps = 20, .odd = -1, .evaluates = {5, 12}};
    expect(&job, "note rehearsal-left 0-3");
    job.odd = 17;
    job.hangs = true;
    expect(&job, "note rehearsal-left 0-3; note rehearsal-left 3; suspected count-mismatch 3");
}

static void another_number_of_ranks_is_one_note(void **state)
{
    struct roll_expected *x = rehearsal(4);
    struct sim *sim = play(&(struct job){.ranks = 3, .steps = 5, .odd = 2});
    (void)state;
    sim->expected = x;
    char *said = sim_run(sim, 0, true, true);
    assert_non_null(strstr(said, "The job has 3 ranks, and 4 were rehearsed"));
    assert_null(strstr(strstr(said, "rehearsal-left") + 1, "rehearsal-left"));
    free(said);
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

static void a_communicator_that_was_not_rehearsed(void **state)
{
    struct roll_expected *x = rehearsal(2);
    struct sim *sim = play(&(struct job){.ranks = 2, .steps = 3, .odd = -1});
    (void)state;
    uint32_t other = sim_comm(sim, "new", NULL, 2);
    for (int i = 0; i < 9; i++) {
        sim_all(sim, other, AR, 5);
    }
    sim->expected = x;
    sim_expect_with_notes(sim, "note rehearsal-left -");
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

/* Of several communicators of one name each rank knows its own by their order. */
static void namesakes_are_known_by_their_order(void **state)
{
    (void)state;
    struct roll_expected *x = NULL;
    for (int live = 0; live < 2; live++) {
        struct sim *sim = sim_new(4);
        const uint32_t pairs[2][2] = {{0, 1}, {2, 3}};
        uint32_t comm[4] = {sim_comm(sim, "", pairs[0], 2), sim_comm(sim, "", pairs[1], 2),
                            sim_comm(sim, "x", pairs[0], 2), sim_comm(sim, "x", pairs[1], 2)};
        for (int step = 0; step < (live ? 9 : 3); step++) {
            for (uint32_t c = 0; c < 4; c++) {
                sim_all(sim, comm[c], AR, 10 + c);
            }
        }
        if (!live) {
            x = rehearsed(sim);
        } else {
            sim->expected = x;
            sim_expect_with_notes(sim, "");
        }
        sim_destroy(&sim);
    }
    roll_expected_destroy(&x);
}

/* After the end of a rehearsal in which nothing repeats nothing is known. */
static void a_short_rehearsal_says_nothing_about_what_follows(void **state)
{
    struct sim *one = play(&(struct job){.ranks = 2, .steps = 1, .odd = -1});
    struct roll_expected *x = rehearsed(one);
    (void)state;
    assert_false(x->repeats);
    struct sim *sim = play(&(struct job){.ranks = 2, .steps = 9, .odd = -1});
    sim->expected = x;
    sim_expect_with_notes(sim, "");
    sim_destroy(&one);
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

/* A rank of which records are missing is out of step, and nothing is said of it. */
static void lost_records_are_no_difference(void **state)
{
    struct roll_expected *x = rehearsal(2);
    struct sim *sim = play(&(struct job){.ranks = 2, .steps = 3, .odd = -1});
    (void)state;
    sim_lose(sim, 1, 7);
    for (uint32_t r = 0; r < 2; r++) {
        sim_call(sim, r, 0, AG, 2);
    }
    sim->expected = x;
    char *said = sim_run(sim, 0, true, false);
    assert_null(strstr(said, "rehearsal-left 1"));
    free(said);
    sim_destroy(&sim);
    roll_expected_destroy(&x);
}

/* Of a rank in the midst of a job one call says little about where it is: here it may be a warm-up or a step. */
/* Some steps, an evaluation behind each second one, a checkpoint at the end, which the last rank may leave out. */
static struct sim *evaluated(uint32_t ranks, uint32_t steps, bool without)
{
    struct sim *sim = sim_new(ranks);
    uint32_t w = sim_world(sim);
    for (uint32_t step = 1; step <= steps; step++) {
        for (uint32_t r = 0; r < ranks; r++) {
            sim_call(sim, r, w, AR, 4096);
            sim_call(sim, r, w, AG, 2);
            if (step % 2 == 0) {
                sim_call(sim, r, w, AG, 7);
                sim_call(sim, r, w, AR, 1);
            }
        }
    }
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t r = 0; r < ranks; r++) {
            sim_call(sim, r, w, AG, without && i == 1 ? 78 : 77 + 10 * i);
        }
    }
    return sim;
}

static void the_last_time_round_may_end_early(void **state)
{
    (void)state;
    for (uint32_t old = 6; old <= 9; old++) {
        for (uint32_t now = 3; now <= 12; now++) {
            for (int without = 0; without < 2; without++) {
                struct sim *sim = evaluated(3, old, false), *live = evaluated(3, now, without == 1);
                struct roll_expected *x = rehearsed(sim);
                live->expected = x;
                sim_expect_with_notes(live, without == 1 ? "note rehearsal-left 0-2" : "");
                sim_destroy(&sim);
                sim_destroy(&live);
                roll_expected_destroy(&x);
            }
        }
    }
}

static void one_call_does_not_say_where_a_rank_is(void **state)
{
    struct roll_expected *x = NULL;
    (void)state;
    for (int live = 0; live < 2; live++) {
        struct sim *sim = sim_new(2);
        uint32_t w = sim_world(sim);
        for (int i = 0; i < 4; i++) {
            sim_all(sim, w, AR, 8);
        }
        for (int step = 0; step < (live ? 12 : 3); step++) {
            if (live && step == 5) {
                sim_lose(sim, 1, 3);
            }
            sim_all(sim, w, AR, 8);
            sim_all(sim, w, AG, 2);
            sim_all(sim, w, ROLL_OP_BROADCAST, 3);
        }
        if (!live) {
            x = rehearsed(sim);
        } else {
            sim->expected = x;
            char *said = sim_run(sim, 0, true, false);
            assert_null(strstr(said, "rehearsal-left"));
            free(said);
        }
        sim_destroy(&sim);
    }
    roll_expected_destroy(&x);
}

/* A rank may be at several places for some calls, and come to one of them in two ways. */
static void many_places_are_no_difference(void **state)
{
    static const struct {
        const char *calls;
        uint32_t times;
    } parts[] = {{"1100", 1}, {"01", 3}, {"0101", 1}, {"0", 1}, {"1001", 3}, {"01", 3}};
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
    struct roll_expected_call call[2] = {{.count = 10, .op = AR}, {.count = 11, .op = AR}};
    struct roll_expected_part part[PARTS];
    struct roll_expected_sequence sequence = {0, PARTS};
    uint32_t item[64], n = 0;
    (void)state;
    for (size_t p = 0; p < PARTS; p++) {
        part[p] = (struct roll_expected_part){n, (uint32_t)strlen(parts[p].calls), parts[p].times};
        for (uint32_t k = 0; k < part[p].calls; k++) {
            item[n++] = (uint32_t)(parts[p].calls[k] - '0');
        }
    }
    const struct roll_expected x = {.call = call, .item = item, .part = part, .sequence = &sequence};
    for (uint32_t turns = 0; turns < 125; turns++) { /* how often each loop is made */
        struct rehearsed_member r = {.stand = REHEARSED_IN_STEP, .cursors = 1};
        uint32_t left = turns, want;
        for (size_t p = 0; p < PARTS; p++) {
            uint32_t times = parts[p].times > 1 ? left % 5 + 1 : 1;
            left = parts[p].times > 1 ? left / 5 : left;
            for (uint32_t t = 0; t < times; t++) {
                for (uint32_t k = 0; k < part[p].calls; k++) {
                    assert_true(rehearsed_follow(&x, &r, &call[item[part[p].first + k]], &want));
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_rehearsed_is_silent),
        cmocka_unit_test(all_leave_alike_and_are_told_once),
        cmocka_unit_test(a_tie_is_decided_by_the_rehearsal),
        cmocka_unit_test(a_message_and_another_call_that_no_vote_decides),
        cmocka_unit_test(a_call_that_was_never_rehearsed_decides_nothing),
        cmocka_unit_test(a_majority_needs_no_rehearsal),
        cmocka_unit_test(a_message_of_another_size_names_its_rank),
        cmocka_unit_test(a_job_falls_in_step_again),
        cmocka_unit_test(another_number_of_ranks_is_one_note),
        cmocka_unit_test(a_communicator_that_was_not_rehearsed),
        cmocka_unit_test(namesakes_are_known_by_their_order),
        cmocka_unit_test(a_short_rehearsal_says_nothing_about_what_follows),
        cmocka_unit_test(lost_records_are_no_difference),
        cmocka_unit_test(the_last_time_round_may_end_early),
        cmocka_unit_test(one_call_does_not_say_where_a_rank_is),
        cmocka_unit_test(many_places_are_no_difference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
