/*
 * test_relay_runs.c: what a relay keeps at most, and for how long: runs, rings, and numbers for the directories of its
 * agents, with a clock of the test's own, because ten minutes and a hundred thousand rings are no matter for real
 * processes (test_relay.c tries with those how an agent is refused, and begins anew).
 */
#include "daemon/base/clock.h"
#include "daemon/relay/relay_state.h"
#include "trace/err.h"
#include "trace/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in relay_runs.c, which explains them. */
#define MINUTE     (60000 * ROLL_MS)
#define FORGET     (10 * MINUTE)
#define RUNS       64u
#define CHILD_RUNS 16u
#define RINGS      131072u

static struct roll_relay relay;

static int set_up(void **state)
{
    (void)state;
    relay = (struct roll_relay){.seq = 0};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (size_t i = 0; i < relay.places; i++) {
        free(relay.place[i]);
    }
    free(relay.place);
    free(relay.child);
    roll_relay_runs_fini(&relay);
    return 0;
}

/* A child announces ring number `stream`, of a process of run "job.restart". */
static int announce(struct relay_child *child, uint64_t stream, uint32_t restart, uint64_t now)
{
    struct roll_ring_header h = {.magic = ROLL_RING_MAGIC,
                                 .version = ROLL_RING_VERSION,
                                 .oldest = ROLL_RING_OLDEST,
                                 .record_bytes = ROLL_RECORD_BYTES,
                                 .epoch = stream,
                                 .restart = restart,
                                 .job = "job"};
    h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
    const struct roll_frame frame = {.head = {.type = ROLL_FRAME_RING, .stream = stream, .payload = sizeof(h)},
                                     .payload = (const uint8_t *)&h};
    int err = roll_relay_note_ring(&relay, child, &frame, now);
    if (!err) {
        roll_relay_ring_of(&relay, stream)->live = true;
    }
    return err;
}

static size_t runs(void)
{
    size_t n = 0;
    for (size_t i = 0; i < relay.runs; i++) {
        n += relay.run[i].sum != NULL;
    }
    return n;
}

/* A run of which no process lives is kept for ten minutes; one that lives, for as long as it does. */
static void test_a_run_is_forgotten_ten_minutes_after_its_last_process(void **state)
{
    (void)state;
    struct relay_child child = {.place = 0};
    assert_int_equal(announce(&child, 1, 0, MINUTE), 0);
    assert_int_equal(announce(&child, 2, 1, MINUTE), 0);
    uint64_t now = 20 * MINUTE;
    roll_relay_runs_look(&relay, now);
    assert_int_equal(runs(), 2);
    roll_relay_ring_of(&relay, 1)->live = false;
    roll_relay_runs_look(&relay, now + FORGET);
    assert_int_equal(runs(), 2);
    assert_non_null(roll_relay_ring_of(&relay, 1));
    assert_false(child.forgot);
    roll_relay_runs_look(&relay, now + FORGET + 1);
    assert_int_equal(runs(), 1);
    assert_null(roll_relay_ring_of(&relay, 1));
    assert_non_null(roll_relay_ring_of(&relay, 2));
    assert_true(child.forgot); /* what it says of that ring later makes it announce it anew */
}

/* A process whose agent is silent is not known to live, and one whose agent has left is nobody's. */
static void test_who_is_not_heard_does_not_keep_a_run(void **state)
{
    (void)state;
    struct relay_child silent = {.place = 0}, gone = {.place = 1};
    assert_int_equal(announce(&silent, 1, 0, MINUTE), 0);
    assert_int_equal(announce(&gone, 2, 1, MINUTE), 0);
    silent.silent = true;
    roll_relay_ring_of(&relay, 2)->child = NULL;
    roll_relay_ring_of(&relay, 2)->left_ns = MINUTE;
    roll_relay_runs_look(&relay, MINUTE + FORGET);
    assert_int_equal(runs(), 2);
    roll_relay_runs_look(&relay, MINUTE + FORGET + 1);
    assert_int_equal(runs(), 0);
    assert_int_equal(relay.rings, 0);
}

/* A ring whose agent has left does not stay for good in a run that goes on. */
static void test_a_ring_that_nobody_has_is_forgotten(void **state)
{
    (void)state;
    struct relay_child child = {.place = 0};
    assert_int_equal(announce(&child, 1, 0, MINUTE), 0);
    assert_int_equal(announce(&child, 2, 0, MINUTE), 0);
    roll_relay_ring_of(&relay, 1)->child = NULL;
    roll_relay_ring_of(&relay, 1)->left_ns = 2 * MINUTE;
    roll_relay_runs_look(&relay, 2 * MINUTE + FORGET);
    assert_int_equal(relay.rings, 2);
    roll_relay_runs_look(&relay, 2 * MINUTE + FORGET + 1);
    assert_int_equal(relay.rings, 1);
    assert_null(roll_relay_ring_of(&relay, 1));
    assert_true(roll_relay_ring_of(&relay, 2)->child == &child);
}

/* 64 runs, of which one agent may have 16. A run that is over makes room: the one that nobody spoke of for longest. */
static void test_runs_are_bounded(void **state)
{
    (void)state;
    struct relay_child child[RUNS / CHILD_RUNS + 1] = {{.place = 0}};
    uint32_t run = 0;
    for (uint32_t i = 0; i < RUNS / CHILD_RUNS; i++) {
        child[i].place = i;
        for (uint32_t k = 0; k < CHILD_RUNS; k++, run++) {
            assert_int_equal(announce(&child[i], 1 + run, run, MINUTE + run), 0);
        }
        assert_int_equal(announce(&child[i], 1000 + i, 1000 + i, MINUTE + run), ROLL_E_LIMIT);
    }
    struct relay_child *last = &child[RUNS / CHILD_RUNS];
    last->place = RUNS / CHILD_RUNS;
    assert_int_equal(runs(), RUNS);
    assert_int_equal(announce(last, 2000, 2000, 2 * MINUTE), ROLL_E_LIMIT);
    assert_int_equal(announce(last, 2001, 7, 2 * MINUTE), 0); /* a ring of a run that is here is no run */

    assert_int_equal(announce(&child[2], 1 + 33, 33, 3 * MINUTE), 0);
    roll_relay_ring_of(&relay, 1 + 33)->live = false;
    roll_relay_ring_of(&relay, 1 + 40)->live = false; /* was heard of before the other */
    assert_int_equal(announce(last, 2000, 2000, 4 * MINUTE), 0);
    assert_int_equal(runs(), RUNS);
    assert_int_equal(relay.runs, RUNS); /* its place is used again */
    assert_null(roll_relay_ring_of(&relay, 1 + 40));
    assert_non_null(roll_relay_ring_of(&relay, 1 + 33));
    assert_true(child[2].forgot);
    assert_false(child[1].forgot);
}

/* An agent that has as many runs as one may have loses one of its own, and nobody else's. */
static void test_an_agent_makes_room_among_its_own_runs(void **state)
{
    (void)state;
    struct relay_child one = {.place = 0}, two = {.place = 1};
    assert_int_equal(announce(&two, 1, 0, MINUTE), 0);
    roll_relay_ring_of(&relay, 1)->live = false;
    for (uint32_t k = 1; k <= CHILD_RUNS; k++) {
        assert_int_equal(announce(&one, 1 + k, k, 2 * MINUTE), 0);
    }
    roll_relay_ring_of(&relay, 1 + 5)->live = false;
    assert_int_equal(announce(&one, 100, 100, 3 * MINUTE), 0);
    assert_null(roll_relay_ring_of(&relay, 1 + 5));
    assert_non_null(roll_relay_ring_of(&relay, 1));
    assert_false(two.forgot);
}

static void test_rings_are_bounded(void **state)
{
    (void)state;
    struct relay_child child = {.place = 0};
    for (uint64_t i = 1; i <= RINGS; i++) {
        assert_int_equal(announce(&child, i, 0, MINUTE), 0);
    }
    assert_int_equal(announce(&child, RINGS + 1, 0, MINUTE), ROLL_E_LIMIT);
    assert_null(roll_relay_ring_of(&relay, RINGS + 1));
    assert_int_equal(announce(&child, 5, 0, MINUTE), 0); /* one that is known is no other */
    assert_int_equal(relay.rings, RINGS);
    assert_int_equal(runs(), 1);
}

/* 4,096 directories have numbers. One of a directory that is gone is used again, when nothing is known of it. */
static void test_numbers_of_directories_are_used_again(void **state)
{
    (void)state;
    static struct relay_child child[ROLL_RELAY_CHILDREN];
    struct relay_run *run;
    uint32_t place = 0, again = 0;
    char dir[32];
    relay.child = calloc(ROLL_RELAY_CHILDREN, sizeof(struct relay_child *));
    assert_non_null(relay.child);
    for (uint32_t i = 0; i < ROLL_RELAY_CHILDREN; i++) {
        snprintf(dir, sizeof(dir), "/d%u", i);
        assert_true(roll_relay_place_of(&relay, "host", dir, &place));
        assert_int_equal(place, i);
        child[i].place = place;
        relay.child[relay.children++] = &child[i];
    }
    assert_true(roll_relay_place_of(&relay, "host", "/d77", &again)); /* its successor's is the same */
    assert_int_equal(again, 77);
    assert_false(roll_relay_place_of(&relay, "host", "/new", &place));
    assert_false(roll_relay_place_of(&relay, "other", "/d77", &place)); /* another host's directory of this name */

    /* Two agents leave; of one of them a run has been told something, which must not become another agent's. */
    assert_int_equal(announce(&child[0], 1, 0, MINUTE), 0);
    run = &relay.run[0];
    run->parts = ROLL_RELAY_CHILDREN;
    run->part = calloc(run->parts, sizeof(*run->part));
    assert_non_null(run->part);
    run->part[10].told = true;
    child[10].place = child[20].place = 0;
    assert_true(roll_relay_place_of(&relay, "host", "/new", &place));
    assert_int_equal(place, 20);
    child[20].place = place;
    assert_false(roll_relay_place_of(&relay, "host", "/d20", &place));
    assert_false(roll_relay_place_of(&relay, "host", "/newer", &place));

    /* The run is forgotten, and with it what that one had told. */
    roll_relay_ring_of(&relay, 1)->live = false;
    roll_relay_runs_look(&relay, MINUTE + FORGET + 1);
    assert_true(roll_relay_place_of(&relay, "host", "/newer", &place));
    assert_int_equal(place, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_run_is_forgotten_ten_minutes_after_its_last_process, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_who_is_not_heard_does_not_keep_a_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_ring_that_nobody_has_is_forgotten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_runs_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_an_agent_makes_room_among_its_own_runs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rings_are_bounded, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_numbers_of_directories_are_used_again, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
