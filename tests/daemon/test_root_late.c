/*
 * test_root_late.c: whose lateness it was: a root that did not read blames no agent; an agent that was late is told
 * apart from its link; and what was missed is owed to the run once, however many missed it. The clock is a number here.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/root/root_state.h"

#include <stdlib.h>

#define S  (1000 * ROLL_MS)
#define T0 (5000 * S)

static struct roll_root *root;
static struct roll_run *run, *other;
static struct roll_peer peer[3];
static uint64_t now;

static int set_up(void **state)
{
    (void)state;
    root = calloc(1, sizeof(*root));
    run = calloc(1, sizeof(*run));
    other = calloc(1, sizeof(*other));
    if (!root || !run || !other || ROLL_GROW(root->runs, root->runs_room, 2) != 0) {
        return -1;
    }
    root->runs[root->runs_used++] = run;
    root->runs[root->runs_used++] = other;
    now = T0;
    roll_root_late_turn(root, now, false);
    for (int i = 0; i < 3; i++) {
        peer[i] = (struct roll_peer){.seen_ns = now, .synced = true, .relay = i == 2};
        struct roll_peer_stream *s = roll_streams_add(&peer[i], 100 + (uint64_t)i, run);
        if (!s) {
            return -1;
        }
        roll_streams_set(&peer[i], s, true, true);
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        roll_streams_fini(&peer[i]);
    }
    free(root->runs);
    free(root);
    free(run);
    free(other);
    return 0;
}

/* The root's loop goes round every 10 ms. */
static void turns(uint64_t ns)
{
    for (uint64_t end = now + ns; now < end;) {
        now += 10 * ROLL_MS;
        roll_root_late_turn(root, now, false);
    }
}

static void beat(struct roll_peer *p, uint64_t late_ns, uint64_t waited_ns, uint64_t way_ns)
{
    static struct roll_frame_heartbeat b[3];
    struct roll_frame_heartbeat *mine = &b[p - peer];
    if (p->eye.beat.made_ns == 0) {
        *mine = (struct roll_frame_heartbeat){.agents = p->relay};
    }
    mine->made_ns = now - way_ns;
    mine->late_ns += late_ns;
    mine->waited_ns += waited_ns;
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_HEARTBEAT, .payload = sizeof(*mine)},
                               .payload = (const uint8_t *)mine};
    roll_peer_late_heard(root, p, now);
    roll_peer_late_beat(root, p, &frame, now);
}

static void beats(uint64_t ns)
{
    for (uint64_t end = now + ns; now < end;) {
        turns(100 * ROLL_MS);
        for (int i = 0; i < 3; i++) {
            beat(&peer[i], 0, 0, 2 * ROLL_MS);
        }
    }
}

static void test_silence_counts_while_the_root_listens(void **state)
{
    (void)state;
    beats(S);
    now += 60 * S; /* it is stopped; not all that waits is read in its first turns */
    roll_root_late_turn(root, now, true);
    beat(&peer[0], 0, 0, 60 * S);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < S);
    now += 3 * S;
    roll_root_late_turn(root, now, true);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < S);
    assert_true(roll_root_lately(root, now) >= 63 * S);
    now += 10 * ROLL_MS;
    roll_root_late_turn(root, now, false);
    assert_true(root->eye.late.total_ns >= 63 * S && root->eye.late.total_ns < 64 * S);
    turns(12 * S); /* now it listens, and the second says nothing */
    assert_true(roll_peer_silence_ns(root, &peer[1], now) >= 12 * S);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < 13 * S);
}

static void test_what_waited_in_the_root_is_not_the_links(void **state)
{
    (void)state;
    beats(S);
    now += 5 * S;
    roll_root_late_turn(root, now, false);
    beat(&peer[0], 0, 0, 5 * S);
    assert_true(roll_late_lately(&peer[0].eye.way, now) == 0);
    assert_false(roll_peer_is_heard(&peer[0], now)); /* that was an old word of it */
    beat(&peer[0], 0, 0, 2 * ROLL_MS);
    assert_true(roll_peer_is_heard(&peer[0], now));
    assert_true(roll_root_lately(root, now) >= 4 * S);
}

static void test_agent_and_link_are_told_apart(void **state)
{
    (void)state;
    beats(S);
    turns(3 * S);
    beat(&peer[0], 2900 * ROLL_MS, 2800 * ROLL_MS, 2 * ROLL_MS);
    beat(&peer[1], 0, 0, 2 * ROLL_MS);
    assert_true(roll_late_lately(&peer[0].eye.own, now) == 2900 * ROLL_MS);
    assert_true(roll_late_lately(&peer[0].eye.waited, now) == 2800 * ROLL_MS);
    assert_true(roll_late_lately(&peer[0].eye.way, now) < 100 * ROLL_MS);
    assert_true(roll_late_lately(&peer[1].eye.own, now) == 0);
    assert_true(roll_late_lately(&peer[1].eye.way, now) >= 2800 * ROLL_MS);
    beat(&peer[0], 0, 50 * ROLL_MS, 2 * ROLL_MS); /* what it waited without being late is left out */
    assert_true(roll_late_lately(&peer[0].eye.waited, now) == 2800 * ROLL_MS);
}

static void test_each_moment_is_owed_once_and_to_its_run(void **state)
{
    (void)state;
    beats(S);
    assert_true(run->clock.owed_ns == 0);
    turns(240 * ROLL_MS);
    beat(&peer[0], 0, 0, 2 * ROLL_MS);
    beat(&peer[1], 0, 0, 2 * ROLL_MS);
    assert_true(run->clock.owed_ns == 90 * ROLL_MS);
    assert_true(other->clock.owed_ns == 0);
    assert_true(root->eye.missed_ns == 90 * ROLL_MS);
    /* Behind the relay 100 ms were not seen, though it is heard as ever. */
    beat(&peer[2], 0, 0, 2 * ROLL_MS);
    beats(S);
    struct roll_frame_heartbeat b = peer[2].eye.beat;
    struct roll_frame frame = {.head = {.payload = sizeof(b)}, .payload = (const uint8_t *)&b};
    turns(100 * ROLL_MS);
    b.missed_ns += 100 * ROLL_MS;
    roll_peer_late_heard(root, &peer[2], now);
    roll_peer_late_beat(root, &peer[2], &frame, now);
    assert_true(run->clock.owed_ns == 190 * ROLL_MS);
    b.missed_ns += 3600 * S; /* nobody can make the patience longer by more than the time that passes */
    roll_peer_late_beat(root, &peer[2], &frame, now);
    assert_true(run->clock.owed_ns <= 190 * ROLL_MS + ROLL_LATE_HEARD_NS);
}

static void test_numbers_that_go_back_and_short_payloads_are_passed_over(void **state)
{
    (void)state;
    beats(S);
    struct roll_frame_heartbeat b = {.made_ns = now, .late_ns = UINT64_MAX};
    for (uint32_t bytes = 0; bytes <= sizeof(b); bytes++) {
        struct roll_frame frame = {.head = {.payload = bytes}, .payload = (const uint8_t *)&b};
        roll_peer_late_beat(root, &peer[0], &frame, now);
    }
    assert_true(roll_late_lately(&peer[0].eye.own, now) == 86400 * S);
    b.late_ns = 5;
    struct roll_frame frame = {.head = {.payload = sizeof(b)}, .payload = (const uint8_t *)&b};
    uint64_t before = roll_late_lately(&peer[0].eye.own, now);
    roll_peer_late_beat(root, &peer[0], &frame, now);
    assert_true(roll_late_lately(&peer[0].eye.own, now) == before);
    assert_true(run->clock.owed_ns == 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_silence_counts_while_the_root_listens),
        TEST(test_what_waited_in_the_root_is_not_the_links),
        TEST(test_agent_and_link_are_told_apart),
        TEST(test_each_moment_is_owed_once_and_to_its_run),
        TEST(test_numbers_that_go_back_and_short_payloads_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
