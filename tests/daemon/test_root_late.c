/*
 * test_root_late.c: whose lateness it was: a root that did not read blames no agent; an agent that was late is told
 * apart from its link; and what was missed is owed to the run once, however many missed it. The clock is a number here.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/root/root_state.h"

#include <stdlib.h>
#include <string.h>

#define S  (1000 * ROLL_MS)
#define T0 (5000 * S)

static struct roll_root *root;
static struct roll_run *run, *other;
static struct roll_peer peer[3];
static uint64_t now;

/* The root's loop comes round, and nothing has come. */
static void turn(bool behind)
{
    roll_root_late_turn(root, now);
    roll_root_late_read(root, now, behind);
}

static int set_up(void **state)
{
    (void)state;
    root = calloc(1, sizeof(*root));
    run = calloc(1, sizeof(*run));
    other = calloc(1, sizeof(*other));
    if (!root || !run || !other || ROLL_GROW(root->runs, root->runs_room, 2) != 0 ||
        ROLL_GROW(root->peers, root->peers_room, 3) != 0) {
        return -1;
    }
    root->runs[root->runs_used++] = run;
    root->runs[root->runs_used++] = other;
    now = T0;
    turn(false);
    for (int i = 0; i < 3; i++) {
        peer[i] = (struct roll_peer){.seen_ns = now, .synced = true, .relay = i == 2};
        struct roll_peer_stream *s = roll_streams_add(&peer[i], 100 + (uint64_t)i, run);
        if (!s) {
            return -1;
        }
        roll_streams_set(&peer[i], s, true, true);
        root->peers[root->peers_used++] = &peer[i];
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
    free(root->peers);
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
        turn(false);
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
    roll_root_late_turn(root, now);
    beat(&peer[0], 0, 0, 60 * S);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < S);
    roll_root_late_read(root, now, true);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < S);
    now += 3 * S;
    turn(true);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < S);
    assert_true(roll_root_lately(root, now) >= 62 * S);
    now += 10 * ROLL_MS;
    turn(false);
    assert_true(root->eye.late.total_ns >= 62 * S && root->eye.late.total_ns < 63 * S);
    turns(12 * S); /* now it listens, and the second says nothing */
    assert_true(roll_peer_silence_ns(root, &peer[1], now) >= 12 * S);
    assert_true(roll_peer_silence_ns(root, &peer[1], now) < 13 * S);
}

static void test_what_waited_in_the_root_is_not_the_links(void **state)
{
    (void)state;
    beats(S);
    now += 5 * S;
    turn(false);
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

/* How much time passes for the run's engine until peer[1], which says nothing any more, is taken for gone; *after: how
 * long that takes. In each turn the others are heard; of four turns so many leave something unread. */
static uint64_t passes_until_lost(uint64_t turn_ns, int behind, uint64_t *after)
{
    struct roll_feed_time time = {.engine_ns = 0};
    uint64_t begin = now, first = run->clock.engine_ns;
    for (int i = 0; !roll_peer_is_lost(root, &peer[1], now) && now - begin < 300 * S; i++) {
        now += turn_ns;
        roll_root_late_turn(root, now);
        beat(&peer[0], 0, 0, 2 * ROLL_MS);
        beat(&peer[2], 0, 0, 2 * ROLL_MS);
        roll_root_late_read(root, now, i % 4 < behind);
        if (roll_root_late_is_due(root, run, 3, false, now)) {
            roll_feed_clock_pass(&run->clock, now, 1, &time);
        }
    }
    *after = now - begin;
    return run->clock.engine_ns - first;
}

static void begin_clock(void)
{
    struct roll_feed_time time;
    roll_feed_clock_init(&run->clock, 0, now);
    roll_feed_clock_see(&run->clock, now, true);
    roll_feed_clock_pass(&run->clock, now, 1700000000 * S, &time);
}

/* The engine learns that ranks are not heard when their agent is taken for gone. Until then it must not lose patience
 * with them, however slow the root is. */
static void test_no_time_passes_until_a_dead_agent_is_gone(void **state)
{
    static const struct {
        uint64_t turn_ms;
        int behind; /* turns of four */
        uint64_t at_least, at_most;
    } c[] = {{10, 0, 10, 11},   {140, 0, 10, 11},  {150, 0, 14, 16}, {200, 0, 19, 22}, {300, 0, 29, 31},
             {1000, 0, 29, 32}, {2000, 0, 59, 63}, {20, 3, 29, 31},  {10, 4, 29, 31},  {100, 3, 29, 31}};
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        uint64_t after;
        assert_int_equal(i > 0 ? tear_down(state) || set_up(state) : 0, 0);
        beats(S);
        begin_clock();
        uint64_t passed = passes_until_lost(c[i].turn_ms * ROLL_MS, c[i].behind, &after);
        if (passed > 500 * ROLL_MS || after < c[i].at_least * S || after > c[i].at_most * S) {
            fail_msg("turns of %d ms, %d of 4 behind: gone after %.1f s, in which %.1f s passed", (int)c[i].turn_ms,
                     c[i].behind, (double)after * 1e-9, (double)passed * 1e-9);
        }
    }
}

/* An agent is about to be given up, and nobody does so: its run goes on all the same. */
static void test_no_run_waits_for_ever(void **state)
{
    (void)state;
    beats(S);
    begin_clock();
    uint64_t begin = now, first = run->clock.engine_ns;
    while (now - begin < 300 * S) {
        struct roll_feed_time time;
        now += 100 * ROLL_MS;
        turn(false);
        if (roll_root_late_is_due(root, run, 3, false, now)) {
            roll_feed_clock_pass(&run->clock, now, 1, &time);
        }
    }
    uint64_t passed = run->clock.engine_ns - first; /* an eighth, behind the standstill */
    assert_true(passed > 20 * S && passed < 35 * S);
    assert_true(run->clock.owed_ns <= 100 * ROLL_MS);
}

/* The root is stopped for a minute; halfway an agent dies. What it had sent by then waits in the root's sockets. */
static void test_what_a_dead_agent_had_sent_excuses_it_for_no_stop(void **state)
{
    (void)state;
    uint64_t after;
    beats(S);
    begin_clock();
    now += 60 * S;
    roll_root_late_turn(root, now);
    for (uint64_t way = 60 * S; way >= 30 * S; way -= S) {
        beat(&peer[1], 0, 0, way);
    }
    beat(&peer[0], 0, 0, 2 * ROLL_MS);
    beat(&peer[2], 0, 0, 2 * ROLL_MS);
    roll_root_late_read(root, now, false);
    assert_true(roll_late_lately(&peer[1].eye.way, now) == 0);
    assert_false(roll_peer_is_lost(root, &peer[1], now));
    uint64_t passed = passes_until_lost(10 * ROLL_MS, 0, &after);
    assert_true(after >= 10 * S && after < 11 * S);
    assert_true(passed < 500 * ROLL_MS);
}

static void test_a_stop_in_the_middle_of_a_turn_blames_nobody(void **state)
{
    (void)state;
    beats(S);
    now += 10 * ROLL_MS;
    roll_root_late_turn(root, now);
    now += 60 * S;
    roll_root_late_read(root, now, false);
    for (int i = 0; i < 3; i++) {
        assert_true(roll_peer_silence_ns(root, &peer[i], now) < S);
        assert_false(roll_peer_is_lost(root, &peer[i], now));
    }
    assert_true(roll_root_lately(root, now) >= 59 * S);
    roll_root_late_turn(root, now + 10 * ROLL_MS);
    assert_true(root->eye.closed_ns < 60 * S);
}

/* A relay says for a minute that it has not heard all below, and what it has missed: the latter is in the former. */
static void test_what_is_late_is_not_owed_twice(void **state)
{
    (void)state;
    struct roll_feed_time time;
    beats(S);
    begin_clock();
    struct roll_frame_heartbeat b = peer[2].eye.beat;
    struct roll_frame frame = {.head = {.payload = sizeof(b)}, .payload = (const uint8_t *)&b};
    uint64_t first = run->clock.engine_ns;
    for (int i = 0; i < 600; i++) {
        turns(100 * ROLL_MS);
        b.made_ns = now - 2 * ROLL_MS;
        b.missed_ns += 100 * ROLL_MS;
        b.unheard = 1;
        for (int k = 0; k < 3; k++) {
            roll_peer_late_heard(root, &peer[k], now);
        }
        roll_peer_late_beat(root, &peer[2], &frame, now);
        peer[2].unheard = b.unheard;
        if (roll_root_late_is_due(root, run, 3, false, now)) {
            roll_feed_clock_pass(&run->clock, now, 1, &time);
        }
    }
    assert_true(run->clock.owed_ns <= 300 * ROLL_MS);
    assert_true(run->clock.engine_ns - first > 5 * S); /* an eighth of the 50 s behind the standstill */
    assert_true(run->clock.engine_ns - first < 7 * S);
}

/* An agent of two jobs says how many of its rings it has not read, and not of which job. */
static void test_a_ring_of_one_job_holds_up_no_other(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        struct roll_peer_stream *s = roll_streams_add(&peer[0], 200 + i, other);
        assert_non_null(s);
        roll_streams_set(&peer[0], s, true, true);
    }
    static const struct {
        uint32_t unheard;
        size_t of_run, of_other;
    } c[] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 1}, {3, 1, 2}};
    for (size_t i = 0; i < sizeof(c) / sizeof(c[0]); i++) {
        beats(S);
        peer[0].unheard = c[i].unheard;
        assert_int_equal(roll_streams_unread(&peer[0], run), c[i].of_run);
        assert_int_equal(roll_streams_unread(&peer[0], other), c[i].of_other);
        roll_root_late_see(root, run, 3, now);
        roll_root_late_see(root, other, 2, now);
        assert_int_equal(run->seen, c[i].of_run == 0);
        assert_int_equal(run->late_ns != 0, c[i].of_run > 0);
        assert_int_equal(other->seen, c[i].of_other == 0);
    }
    /* The other job ends: now its ring can only be that of the run. */
    peer[0].unheard = 1;
    roll_streams_set(&peer[0], roll_streams_find(&peer[0], 200), false, true);
    assert_int_equal(roll_streams_unread(&peer[0], run), 0);
    roll_streams_drop(&peer[0], roll_streams_find(&peer[0], 201));
    assert_int_equal(roll_streams_unread(&peer[0], run), 1);
    assert_int_equal(roll_streams_live(&peer[0], other), 0);
}

/* An agent that was away for long is back: its rings are announced, and what they did meanwhile has not come. The clock
 * stands still anew, and behind that as little time passes as for one that is not heard. */
static void test_who_comes_back_is_awaited_anew(void **state)
{
    (void)state;
    beats(S);
    begin_clock();
    peer[0].gone = true; /* the engine has been told that its rank is not heard */
    for (uint64_t end = now + 30 * S; now < end; now += 100 * ROLL_MS) {
        turn(false);
        roll_peer_late_heard(root, &peer[1], now);
        roll_peer_late_heard(root, &peer[2], now);
        roll_root_late_see(root, run, 3, now);
        assert_true(run->seen);
    }
    peer[0].gone = false;
    roll_streams_set(&peer[0], roll_streams_find(&peer[0], 100), true, false);
    uint64_t begin = now, first = run->clock.engine_ns;
    while (now - begin < 18 * S) {
        struct roll_feed_time time;
        now += 100 * ROLL_MS;
        turn(false);
        for (int i = 0; i < 3; i++) {
            roll_peer_late_heard(root, &peer[i], now);
        }
        if (roll_root_late_is_due(root, run, 3, false, now)) {
            roll_feed_clock_pass(&run->clock, now, 1, &time);
            assert_true(now - begin >= ROLL_FEED_UNSEEN_NS);
        }
        assert_false(run->seen);
    }
    assert_true(run->clock.engine_ns - first <= 2 * S);
}

/* So long all peers are heard, of four live ranks; returns how much time passes for the engine. */
static uint64_t passes_of_four(uint64_t ns)
{
    uint64_t begin = now, first = run->clock.engine_ns;
    while (now - begin < ns) {
        struct roll_feed_time time;
        now += 100 * ROLL_MS;
        turn(false);
        for (int i = 0; i < 3; i++) {
            roll_peer_late_heard(root, &peer[i], now);
        }
        if (roll_root_late_is_due(root, run, 4, false, now)) {
            roll_feed_clock_pass(&run->clock, now, 1, &time);
        }
    }
    return run->clock.engine_ns - first;
}

/* Nobody holds the ring of a fourth live rank. Its agent may come, so hardly any time passes; but for ever it is not
 * awaited, and behind that the engine is as patient as ever. One that is missing besides is awaited anew. */
static void test_who_never_announces_is_awaited_for_a_while(void **state)
{
    (void)state;
    beats(S);
    begin_clock();
    assert_true(passes_of_four(ROLL_FEED_AWAITED_NS - S) <= 8 * S);
    assert_true(run->late_ns != 0 && !run->forgoes && !run->seen);
    (void)passes_of_four(20 * S); /* what is owed by then runs out */
    assert_true(run->late_ns == 0 && run->forgoes && run->seen);
    assert_true(passes_of_four(60 * S) >= 55 * S);
    struct roll_peer_stream *s = roll_streams_find(&peer[1], 101);
    roll_streams_set(&peer[1], s, false, true); /* as if it had begun anew */
    assert_true(passes_of_four(18 * S) <= 2 * S);
    assert_true(run->late_ns != 0);
    roll_streams_set(&peer[1], s, true, true);
    (void)passes_of_four(S);
    assert_true(run->late_ns == 0 && run->seen);
    roll_streams_set(&peer[1], roll_streams_add(&peer[1], 103, run), true, true); /* the dead one comes after all */
    (void)passes_of_four(S);
    assert_int_equal(run->forgone, 0);
    roll_streams_drop(&peer[1], roll_streams_find(&peer[1], 103));
    assert_true(passes_of_four(18 * S) <= 2 * S);
}

/* An answer about many ranks looks at all peers once. */
static void test_the_peer_of_a_ring_is_found_in_a_map(void **state)
{
    (void)state;
    struct roll_eyes_at at = {.is_made = false};
    assert_non_null(roll_streams_add(&peer[0], 200, other));
    assert_non_null(roll_streams_add(&peer[2], 101, run)); /* twice: the first that has it counts */
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(roll_eyes_peer(root, run, 100 + (uint64_t)i, &at), &peer[i]);
    }
    assert_null(roll_eyes_peer(root, run, 200, &at));
    assert_null(roll_eyes_peer(root, run, 1, &at));
    root->peers_used = 1; /* nobody is looked through again */
    assert_int_equal(at.peer.used, 3);
    assert_null(roll_eyes_peer(root, run, 7, &at));
    roll_eyes_at_fini(&at);
}

/* Behind a relay are ranks of many nodes. Of those that are heard it is not said that they are not, because the agent
 * of another one is dead or late. */
static void test_who_is_heard_behind_a_relay_is_not_called_unheard(void **state)
{
    (void)state;
    char seen[160];
    struct roll_view_source healthy = {.info = {.stream = 102}, .heard = true};
    struct roll_view_source dead = {.info = {.stream = 200}, .heard = false};
    uint64_t real = roll_mono_ns();
    struct roll_peer_stream *s = roll_streams_add(&peer[2], 200, run);
    assert_non_null(s);
    roll_streams_set(&peer[2], s, true, true);
    roll_streams_darken(&peer[2], roll_streams_find(&peer[2], 200), real - 6000 * S);
    peer[2].seen_ns = real;
    root->eye.closed_ns = 3600 * S; /* however long this takes, the relay is not silent */
    assert_string_equal(roll_eyes_of(root, run, &peer[2], &healthy, seen, sizeof(seen)), "");
    roll_eyes_of(root, run, &peer[2], &dead, seen, sizeof(seen));
    assert_memory_equal(seen, "not heard since 60", 18);
    assert_non_null(strstr(seen, "(behind the relay)"));
    peer[2].eye.beat.unheard = 1; /* an agent that is late, but not given up: one of those that are not heard */
    peer[2].eye.beat.look_ns = 3 * S;
    assert_string_equal(roll_eyes_of(root, run, &peer[2], &healthy, seen, sizeof(seen)), "");
    healthy.heard = false;
    assert_string_equal(roll_eyes_of(root, run, &peer[2], &healthy, seen, sizeof(seen)),
                        "not heard since 3.0 s (behind the relay)");
    json_t *all = roll_eyes_json(root, run), *eye; /* the whole job is told of both, once */
    size_t i, rings = 0;
    json_array_foreach(all, i, eye)
    {
        bool is_rings = strcmp(json_string_value(json_object_get(eye, "eye")), "rings") == 0;
        rings += is_rings;
        assert_true(!is_rings || json_integer_value(json_object_get(eye, "ranks")) == 2);
    }
    assert_int_equal(rings, 1);
    json_decref(all);
}

/* What relays refuse is told in their heartbeats, as totals: each grows the root's sum by what is new. */
static void test_what_relays_refuse_is_summed(void **state)
{
    (void)state;
    beats(S);
    struct roll_frame_heartbeat b = peer[2].eye.beat;
    struct roll_frame frame = {.head = {.payload = sizeof(b)}, .payload = (const uint8_t *)&b};
    static const uint64_t told[] = {0, 3, 3, 10, 4, 6}, sum[] = {0, 3, 3, 10, 10, 12};
    assert_int_equal(root->refused_below, 0);
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        b.refused = told[i];
        roll_peer_late_beat(root, &peer[2], &frame, now);
        assert_int_equal(root->refused_below, sum[i]);
    }
    roll_peer_late_begin(root, &peer[2]); /* the same process says hello again: its numbers go on */
    b.refused = 7;
    roll_peer_late_beat(root, &peer[2], &frame, now);
    assert_int_equal(root->refused_below, 13);
    roll_peer_late_beat(root, &peer[1], &frame, now); /* an agent refuses nothing */
    b.refused = UINT64_MAX;
    roll_peer_late_beat(root, &peer[2], &frame, now); /* nobody refuses so much in a tenth of a second */
    frame.head.payload = offsetof(struct roll_frame_heartbeat, refused); /* of an older relay */
    roll_peer_late_beat(root, &peer[2], &frame, now);
    assert_int_equal(root->refused_below, 13);
    struct roll_peer anew = {.relay = true}; /* the same relay, but its connection has another name now */
    frame.head.payload = sizeof(b);
    b.refused = 9;
    roll_peer_late_beat(root, &anew, &frame, now);
    assert_int_equal(root->refused_below, 13);
    b.refused = 11;
    roll_peer_late_beat(root, &anew, &frame, now);
    assert_int_equal(root->refused_below, 15);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_silence_counts_while_the_root_listens),
        TEST(test_what_waited_in_the_root_is_not_the_links),
        TEST(test_agent_and_link_are_told_apart),
        TEST(test_each_moment_is_owed_once_and_to_its_run),
        TEST(test_no_time_passes_until_a_dead_agent_is_gone),
        TEST(test_no_run_waits_for_ever),
        TEST(test_what_a_dead_agent_had_sent_excuses_it_for_no_stop),
        TEST(test_a_stop_in_the_middle_of_a_turn_blames_nobody),
        TEST(test_what_is_late_is_not_owed_twice),
        TEST(test_a_ring_of_one_job_holds_up_no_other),
        TEST(test_who_comes_back_is_awaited_anew),
        TEST(test_who_never_announces_is_awaited_for_a_while),
        TEST(test_the_peer_of_a_ring_is_found_in_a_map),
        TEST(test_numbers_that_go_back_and_short_payloads_are_passed_over),
        TEST(test_who_is_heard_behind_a_relay_is_not_called_unheard),
        TEST(test_what_relays_refuse_is_summed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
