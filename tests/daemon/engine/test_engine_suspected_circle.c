/*
 * test_engine_suspected_circle.c: what becomes of a circle that was suspected because one of its ranks was merely
 * quiet, when that rank goes on: it is proven, something else takes its place, it stays, or it is withdrawn. Each time
 * one finding stands in the end, or none.
 */
#include "tests/daemon/engine/story.h"

#include "tests/trace/cmocka_all.h"

#include <stdio.h>
#include <string.h>

#define AR    ROLL_OP_ALLREDUCE
#define AG    ROLL_OP_ALLGATHER
#define RANKS 4u
#define LONG  (20 * S_) /* longer than what is merely quiet takes to be suspected, and than it is looked at again */
#define SOON  (1 * S_)

static struct story t;
static uint32_t world;

static void open_story(uint32_t order)
{
    story_open(&t, RANKS, order);
    world = sim_world(t.sim);
    sim_all(t.sim, world, AR, 1);
    story_pass(&t, LONG);
}

/* Rank 3 waits for a message of rank 2, which is in a collective, and was not seen to wait: no more than that is known
 * when the circle is suspected. */
static void suspect(uint32_t order)
{
    open_story(order);
    sim_recv(t.sim, 3, world, 2, 8);
    sim_stuck(t.sim, 3);
    for (uint32_t r = 0; r < 3; r++) {
        sim_call(t.sim, r, world, AG, 8);
        if (r < 2) {
            sim_stuck(t.sim, r);
        }
    }
    story_pass(&t, LONG);
    story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "suspected crossed-wait -");
}

/* It is told as it is where nobody was suspected before. */
static void a_missing_message_takes_its_place_when_the_quiet_rank_waits(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        suspect(order);
        sim_stuck(t.sim, 2);
        story_pass(&t, SOON);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "proven p2p-unmatched -");
        story_expect_findings(&t, 1);
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "");
        story_close(&t);
    }
}

/* Half of the ranks are in a call on each of two communicators. Those in one are seen to wait, and then the others. */
static void it_is_confirmed_when_the_quiet_rank_waits(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3 * 2; i++) {
        uint32_t quiet = i / 3; /* which half */
        open_story(i % 3);
        uint32_t other = sim_comm(t.sim, "other", NULL, RANKS);
        for (uint32_t r = 0; r < RANKS; r++) {
            sim_call(t.sim, r, r < 2 ? world : other, AR, 8);
            if (r / 2 != quiet) {
                sim_stuck(t.sim, r);
            }
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, "suspected circular-wait -");
        sim_stuck(t.sim, quiet * 2);
        sim_stuck(t.sim, quiet * 2 + 1);
        story_feed(&t);
        roll_engine_tick(t.e, t.now += S_ / 20);
        roll_engine_tick(t.e, t.now += S_ / 20);
        roll_engine_tick(t.e, t.now += S_ / 20);
        const struct roll_verdict *v = roll_engine_next(t.e);
        assert_non_null(v);
        assert_int_equal(v->code, ROLL_VERDICT_CIRCULAR_WAIT);
        assert_int_equal(v->certainty, ROLL_PROVEN);
        assert_int_equal(v->confirms, 1);
        story_expect_findings(&t, 1);
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, "");
        story_close(&t);
    }
}

/* Rank 3 goes on as well, and the call that it makes is not the one that the others have made there. */
static void calls_that_differ_take_its_place(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        open_story(order);
        sim_send(t.sim, 3, world, 2, 8);
        for (uint32_t r = 0; r < 3; r++) {
            sim_call(t.sim, r, world, AG, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "suspected crossed-wait -");
        sim_call(t.sim, 3, world, AR, 16);
        sim_stuck(t.sim, 3);
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "suspected op-mismatch 3");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* The quiet rank makes more calls, and is quiet again: what was said is not said again, each time. */
static void it_stays_as_long_as_the_rank_is_merely_quiet(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        suspect(order);
        for (uint32_t i = 0; i < 3; i++) {
            sim_call(t.sim, 2, world, AG, 8);
            story_pass(&t, LONG);
            story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "");
            story_expect_findings(&t, 1);
        }
        sim_stuck(t.sim, 2);
        story_pass(&t, SOON);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "proven p2p-unmatched -");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* Ranks 0-2 wait for each other on communicators of two, each for the next; then one of them makes, on another stream,
 * the call that the one before it waits in: nobody waits in a circle any more, and it is that one that is busy. */
static void it_is_withdrawn_when_it_has_come_undone(void **state)
{
    (void)state;
    static const char *const name[] = {"first", "second", "third"};
    for (uint32_t i = 0; i < 3 * 3; i++) {
        uint32_t pair[3], comes = i / 3, before = (comes + 2) % 3;
        open_story(i % 3);
        for (uint32_t r = 0; r < 3; r++) {
            uint32_t both[2] = {r, (r + 1) % 3};
            pair[r] = sim_comm(t.sim, name[r], both, 2);
        }
        for (uint32_t r = 0; r < 3; r++) {
            sim_call(t.sim, r, pair[r], AR, 8);
        }
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, "suspected circular-wait -");
        sim_call(t.sim, comes, pair[before], AR, 8)->stream = 3;
        story_pass(&t, LONG);
        char want[64];
        snprintf(want, sizeof(want), "suspected rank-busy %u; withdrawn circular-wait", before);
        story_expect(&t, ROLL_VERDICT_CIRCULAR_WAIT, want);
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* A watchdog aborts the communicator on each rank of the circle, and ends the processes: that is what comes of it, and
 * no finding of its own. */
static void who_gives_up_is_a_consequence(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3 * 2; i++) {
        bool aborts = i / 3 == 0;
        suspect(i % 3);
        for (uint32_t r = RANKS; r-- > 0;) {
            if (aborts) {
                sim_record(t.sim, r, ROLL_OP_COMM_ABORT, world);
                story_pass(&t, LONG);
            }
            sim_proc(t.sim, r, ROLL_PROC_FINISHED, SIM_EXIT(1));
            story_pass(&t, LONG);
        }
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* The quiet rank goes on, and a moment later the one that waits for it is ended by its watchdog. */
static void who_gives_up_while_another_goes_on_is_a_consequence(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        suspect(order);
        sim_call(t.sim, 2, world, AG, 8);
        story_pass(&t, SOON);
        sim_proc(t.sim, 3, ROLL_PROC_FINISHED, SIM_EXIT(1));
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* Meanwhile a rank has been stopped, for which another waits: what is merely quiet may be so for that reason, and the
 * circle is not found again when its ranks have gone on. */
static void suspect_beside_another_trouble(uint32_t order)
{
    static const uint32_t first[] = {0, 1};
    suspect(order);
    uint32_t pair = sim_comm(t.sim, "pair", first, 2);
    sim_call(t.sim, 0, pair, AR, 8)->stream = 3;
    sim_proc(t.sim, 1, ROLL_PROC_STOPPED, 0);
    story_pass(&t, LONG);
    story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "proven rank-stopped 1");
    story_expect_findings(&t, 2);
    sim_call(t.sim, 2, world, AG, 8);
}

/* An engine that goes while a circle is looked at again leaves nothing behind (the sanitizer sees it). */
static void it_may_be_forgotten_at_any_moment(void **state)
{
    (void)state;
    for (uint64_t s = 1; s < 15; s++) {
        suspect_beside_another_trouble(0);
        story_pass(&t, s * S_);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "");
        story_expect_findings(&t, 2);
        story_close(&t);
    }
}

/* While the circle is looked at again a watchdog ends a rank of it: because of the circle, which stays as it was said.
 */
static void who_gives_up_while_it_is_looked_at_is_a_consequence(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        suspect_beside_another_trouble(order);
        story_pass(&t, 10 * S_);
        sim_proc(t.sim, 3, ROLL_PROC_FINISHED, SIM_EXIT(1));
        story_pass(&t, 2 * LONG);
        char said[STORY_SAID];
        story_said(&t, ROLL_VERDICT_CROSSED_WAIT, said);
        assert_null(strstr(said, "withdrawn"));
        story_close(&t);
    }
}

static void it_is_withdrawn_when_another_trouble_may_explain_it(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        suspect_beside_another_trouble(order);
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_CROSSED_WAIT, "withdrawn crossed-wait");
        story_expect_findings(&t, 1);
        story_close(&t);
    }
}

/* Rank r sends to the next one and receives from the one before it, without a group, but for ranks 0-2 that have not
 * come to the receive yet. Rank 3 has, and waits in a split for the others: until it is proven that those wait in the
 * circle. */
static void a_creation_is_not_suspected_beside_a_circle_of_those_it_lacks(void **state)
{
    (void)state;
    for (uint32_t order = 0; order < 3; order++) {
        char said[STORY_SAID];
        open_story(order);
        sim_send(t.sim, 3, world, 0, 8);
        sim_recv(t.sim, 3, world, 2, 8);
        struct roll_record *split = sim_record(t.sim, 3, ROLL_OP_COMM_SPLIT, world);
        split->seal = roll_seal(roll_seal_ticket(split->seal), ROLL_STATE_ENTERED);
        story_pass(&t, LONG);
        assert_non_null(strstr(story_said(&t, ROLL_VERDICT_P2P_DEADLOCK, said), "suspected init-missing 0-2"));
        for (uint32_t r = 0; r < 3; r++) {
            sim_send(t.sim, r, world, r + 1, 8);
        }
        story_pass(&t, LONG);
        assert_non_null(strstr(story_said(&t, ROLL_VERDICT_P2P_DEADLOCK, said), "suspected p2p-deadlock -"));
        for (uint32_t r = 0; r < 3; r++) {
            sim_recv(t.sim, r, world, (r + 3) % RANKS, 8);
            sim_stuck(t.sim, r);
        }
        story_pass(&t, SOON);
        assert_non_null(strstr(story_said(&t, ROLL_VERDICT_P2P_DEADLOCK, said), "proven p2p-deadlock -"));
        assert_non_null(strstr(said, "withdrawn init-missing"));
        story_expect_findings(&t, 1);
        story_pass(&t, LONG);
        story_expect(&t, ROLL_VERDICT_P2P_DEADLOCK, "");
        story_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_message_takes_its_place_when_the_quiet_rank_waits),
        cmocka_unit_test(it_is_confirmed_when_the_quiet_rank_waits),
        cmocka_unit_test(calls_that_differ_take_its_place),
        cmocka_unit_test(it_stays_as_long_as_the_rank_is_merely_quiet),
        cmocka_unit_test(it_is_withdrawn_when_it_has_come_undone),
        cmocka_unit_test(who_gives_up_is_a_consequence),
        cmocka_unit_test(who_gives_up_while_another_goes_on_is_a_consequence),
        cmocka_unit_test(it_is_withdrawn_when_another_trouble_may_explain_it),
        cmocka_unit_test(it_may_be_forgotten_at_any_moment),
        cmocka_unit_test(who_gives_up_while_it_is_looked_at_is_a_consequence),
        cmocka_unit_test(a_creation_is_not_suspected_beside_a_circle_of_those_it_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
