/*
 * test_engine_doubt.c: what becomes of a suspicion of ranks that are quiet: of a group that is not ended there is none;
 * who has come is named no more, alone or with others; and what is wrong on the communicator afterwards is told.
 */
#include "tests/daemon/engine/story.h"

#include "tests/trace/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#define AR    ROLL_OP_ALLREDUCE
#define RANKS 4u
#define LONG                                                                                                           \
    (20 * S_) /* longer than what is merely quiet takes to be suspected, and than it takes to be looked at again */
#define SOON (1 * S_)
#define BUSY ROLL_VERDICT_RANK_BUSY

static struct story t;
static uint32_t world;

static void open_story(uint32_t order)
{
    story_open(&t, RANKS, order);
    world = sim_world(t.sim);
    sim_all(t.sim, world, AR, 1);
    story_pass(&t, LONG);
}

/* All have made the call, in a group that nobody has ended: nothing of it is enqueued, and nobody waits. */
static void a_group_that_is_not_ended_is_no_circle(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_group(t.sim, r);
            sim_call(t.sim, r, world, AR, 8);
            sim_send(t.sim, r, world, r, 8);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "");
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_recv(t.sim, r, world, r, 8);
            sim_group_end(t.sim, r);
            if (r + 1 == RANKS) {
                story_pass(&t, SOON / 4); /* the last one comes a moment later than the others */
                story_expect(&t, BUSY, "");
            }
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "");
        story_close(&t);
    }
}

/* One of them does not end it: the others have been waiting since they did. */
static void who_does_not_end_a_group_is_busy(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_group(t.sim, r);
            sim_call(t.sim, r, world, AR, 8);
        }
        story_pass(&t, LONG);
        for (uint32_t r = 0; r + 1 < RANKS; r++) {
            sim_group_end(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        story_close(&t);
    }
}

/* Three are named together. Two come: a while later the third is named alone; then it comes, too. */
static void who_has_come_is_named_no_more(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        sim_call(t.sim, 0, world, AR, 8);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 1-3");
        sim_call(t.sim, 1, world, AR, 8);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, ""); /* more than half are still away */
        sim_call(t.sim, 2, world, AR, 8);
        story_pass(&t, SOON);
        story_expect(&t, BUSY, ""); /* the third may be about to come */
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "");
        sim_call(t.sim, 3, world, AR, 8);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "withdrawn rank-busy");
        story_close(&t);
    }
}

/* Rank 1 has made the call, behind another one that rank 2 lacks: it was busy, and is no more. */
static void who_has_come_behind_another_trouble_is_named_no_more(void **state)
{
    (void)state;
    static const uint32_t pair[] = {1, 2};
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        uint32_t both = sim_comm(t.sim, "pair", pair, 2);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (r != 1) {
                sim_call(t.sim, r, world, AR, 8);
            }
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 1");
        sim_call(t.sim, 1, both, AR, 8);
        sim_call(t.sim, 1, world, AR, 8);
        story_pass(&t, SOON);
        story_expect(&t, BUSY, "suspected circular-wait -; withdrawn rank-busy");
        story_close(&t);
    }
}

/* A suspected circle has come undone, and nobody's host has been seen to come back from it: the communicators are
 * listened to again. */
static void what_comes_behind_a_withdrawn_circle_is_told(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        uint32_t other = sim_comm(t.sim, "other", NULL, RANKS);
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_call(t.sim, r, r < 2 ? world : other, AR, 8);
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, "suspected circular-wait -");
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_call(t.sim, r, r < 2 ? other : world, AR, 8)->stream = 3;
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, "withdrawn circular-wait");
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_call(t.sim, r, world, AR, r == 3 ? 9 : 8);
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_NONE, "suspected count-mismatch 3");
        story_close(&t);
    }
}

/* Ranks 0 and 1 exchange rows; in backward rank 1 routes otherwise. */
static void exchange(uint32_t ep)
{
    for (uint32_t r = 0; r < 2; r++) {
        scene_splits(t.sim, r, ep, 0, 2, 4, ROLL_PHASE_FORWARD, 0);
        sim_call(t.sim, r, ep, ROLL_OP_ALLGATHER, 2);
        scene_splits(t.sim, r, ep, 0, 2, 4, ROLL_PHASE_RECOMPUTE, 0);
    }
}

/*
 * A second exchange goes wrong as the first one did, which has been told: its communicator falls silent for that
 * verdict, and no other. A suspicion about other ranks is the next that is said, and is withdrawn: that ends no silence
 * but its own, so who gives up the exchange is told no more than where nobody was suspected.
 */
static void a_withdrawn_suspicion_ends_no_silence_of_another_cause(void **state)
{
    (void)state;
    static const uint32_t first[] = {0, 1}, sizes[] = {4, 8};
    for (uint32_t way = 0; way < 3 * 2 * 2; way++) {
        uint32_t n = sizes[way / 6], others[2] = {n - 2, n - 1};
        bool suspected = way / 3 % 2 != 0;
        story_open(&t, n, way % 3);
        world = sim_world(t.sim);
        uint32_t ep[2], side;
        for (int i = 0; i < 2; i++) {
            ep[i] = sim_comm(t.sim, "ep", first, 2);
        }
        side = sim_comm(t.sim, "side", others, 2);
        sim_step(t.sim, 9);
        sim_all(t.sim, world, AR, 1);
        story_pass(&t, SOON);
        exchange(ep[0]);
        story_pass(&t, SOON);
        story_expect(&t, ROLL_VERDICT_NONE, "proven moe-recompute-differs 1");
        for (uint32_t r = 0; r < 2; r++) { /* they get past it */
            sim_call(t.sim, r, ep[0], ROLL_OP_ALLGATHER, 2);
            sim_sync(t.sim, r);
        }
        exchange(ep[1]);
        for (uint32_t i = suspected ? 0 : 2; i < 2; i++) {
            sim_call(t.sim, others[i], side, AR, 8);
            story_pass(&t, LONG);
            char want[64];
            snprintf(want, sizeof(want), i == 0 ? "suspected rank-busy %u" : "withdrawn rank-busy", n - 1);
            story_expect(&t, BUSY, want);
        }
        for (uint32_t r = 0; r < 2; r++) { /* each is stuck in that exchange, gives up, and ends */
            sim_record(t.sim, r, ROLL_OP_COMM_DESTROY, world);
            sim_proc(t.sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
        }
        for (uint32_t r = 2; r < n; r++) {
            sim_call(t.sim, r, world, AR, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "");
        story_close(&t);
    }
}

/* The one that was missed comes, and NCCL refuses its call, alone or in a group: it is busy no more, and what is told
 * of the refusal stands alone. */
static void who_comes_and_is_refused_is_not_busy(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 9; i++) {
        uint32_t late = RANKS - 1, grouped = i / 3 == 1, message = i / 3 == 2;
        open_story(i % 3);
        for (uint32_t r = 0; r < late; r++) {
            if (message) {
                sim_recv(t.sim, r, world, late, 8);
            } else {
                sim_call(t.sim, r, world, AR, 8);
            }
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        if (grouped) {
            sim_group(t.sim, late);
            sim_call(t.sim, late, world, AR, 8);
            sim_group_end(t.sim, late);
            t.sim->rank[late].event[t.sim->rank[late].events - 1].rec.result = SCENE_BAD;
        } else if (message) {
            sim_send(t.sim, late, world, 0, 8)->result = SCENE_BAD;
        } else {
            scene_refused(t.sim, late, world, 8, AT_ONCE);
        }
        story_feed(&t);
        roll_engine_tick(t.e, t.now += S_ / 20);
        story_expect(&t, BUSY, "withdrawn rank-busy");
        sim_proc(t.sim, late, ROLL_PROC_FINISHED, SIM_EXIT(1));
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "proven call-refused 3");
        story_close(&t);
    }
}

/* One has left without a call, one waits in it, and the others have not come yet: they decide. When they have come to
 * the call as well, it is certain who is wrong. */
static void what_the_others_decide_is_proven_when_they_have(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        sim_record(t.sim, 0, ROLL_OP_COMM_ABORT, world);
        sim_call(t.sim, 1, world, AR, 8);
        sim_stuck(t.sim, 1);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected call-skipped 0; suspected rank-busy 2-3");
        sim_call(t.sim, 2, world, AR, 8);
        sim_stuck(t.sim, 2);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "");
        sim_call(t.sim, 3, world, AR, 8);
        sim_stuck(t.sim, 3);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "proven call-skipped 0; withdrawn rank-busy");
        story_expect_findings(&t, 1); /* and what was suspected stands no more */
        story_close(&t);
    }
}

/* The one that was said to be busy leaves the message out for which it was waited, and waits for the others: it is busy
 * no more, and what it left out is what stands. */
static void who_goes_on_and_waits_itself_is_not_busy(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        sim_send(t.sim, 0, world, 3, 8);
        sim_stuck(t.sim, 0);
        for (uint32_t r = 1; r < 3; r++) {
            sim_call(t.sim, r, world, AR, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        sim_call(t.sim, 3, world, AR, 8); /* it may come to the message yet */
        story_pass(&t, SOON);
        story_expect(&t, BUSY, "");
        sim_stuck(t.sim, 3);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "proven p2p-unmatched -; withdrawn rank-busy");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* The one that was said to be busy leaves the communicator without the call. */
static void who_leaves_is_told_in_place_of_the_suspicion(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        for (uint32_t r = 0; r + 1 < RANKS; r++) {
            sim_call(t.sim, r, world, AR, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        sim_record(t.sim, 3, ROLL_OP_COMM_ABORT, world);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "proven call-skipped 3");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* The one that is busy makes another call, on another communicator, and is quiet again, three times: that is one thing,
 * and is said once. */
static void who_stays_away_is_told_once(void **state)
{
    (void)state;
    static const uint32_t last[] = {2, 3};
    for (uint32_t i = 0; i < 3 * 2; i++) {
        bool message = i / 3 == 1;
        open_story(i % 3);
        uint32_t other = sim_comm(t.sim, "other", last, 2);
        if (message) {
            sim_recv(t.sim, 0, world, 3, 8);
        } else {
            sim_call(t.sim, 0, world, AR, 8);
            sim_call(t.sim, 1, world, AR, 8);
        }
        sim_stuck(t.sim, 0);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, message ? "suspected rank-busy 3" : "suspected rank-busy 2-3");
        for (uint32_t n = 0; n < 3; n++) {
            sim_all(t.sim, other, AR, 8);
            story_pass(&t, LONG);
            story_expect(&t, BUSY, "");
        }
        if (message) {
            sim_send(t.sim, 3, world, 0, 8);
        } else {
            sim_call(t.sim, 2, world, AR, 8);
            sim_call(t.sim, 3, world, AR, 8);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "withdrawn rank-busy");
        story_close(&t);
    }
}

/* The one that was said to be busy leaves the communicator, and what it has not done is told in another way: nothing
 * has taken the place of the suspicion, which ends all the same. */
static void who_has_left_is_busy_no_more(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        sim_recv(t.sim, 0, world, 3, 8);
        sim_stuck(t.sim, 0);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 3");
        sim_record(t.sim, 3, ROLL_OP_COMM_DESTROY, world);
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "proven p2p-unmatched -; withdrawn rank-busy");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* One of two leaves: the other may still come. When that one has left as well, it is told of both. */
static void who_is_away_beside_one_that_has_left_stays_suspected(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        char said[STORY_SAID];
        open_story(order);
        for (uint32_t r = 0; r < 2; r++) {
            sim_call(t.sim, r, world, AR, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, BUSY, "suspected rank-busy 2-3");
        sim_record(t.sim, 2, ROLL_OP_COMM_DESTROY, world);
        story_pass(&t, LONG);
        assert_null(strstr(story_said(&t, BUSY, said), "withdrawn"));
        sim_record(t.sim, 3, ROLL_OP_COMM_DESTROY, world);
        story_pass(&t, LONG);
        assert_non_null(strstr(story_said(&t, BUSY, said), "proven"));
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_that_is_not_ended_is_no_circle),
        cmocka_unit_test(who_does_not_end_a_group_is_busy),
        cmocka_unit_test(who_has_come_is_named_no_more),
        cmocka_unit_test(who_has_come_behind_another_trouble_is_named_no_more),
        cmocka_unit_test(what_comes_behind_a_withdrawn_circle_is_told),
        cmocka_unit_test(a_withdrawn_suspicion_ends_no_silence_of_another_cause),
        cmocka_unit_test(who_comes_and_is_refused_is_not_busy),
        cmocka_unit_test(what_the_others_decide_is_proven_when_they_have),
        cmocka_unit_test(who_goes_on_and_waits_itself_is_not_busy),
        cmocka_unit_test(who_stays_away_is_told_once),
        cmocka_unit_test(who_has_left_is_busy_no_more),
        cmocka_unit_test(who_is_away_beside_one_that_has_left_stays_suspected),
        cmocka_unit_test(who_leaves_is_told_in_place_of_the_suspicion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
