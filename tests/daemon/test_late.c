/*
 * test_late.c: how late eyes were, link by link and ring by ring, and what follows for the engine's patience. Nothing
 * here reads a clock: each test hands its times in.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/agent/agent_late.h"
#include "daemon/feed/clock.h"
#include "daemon/feed/late.h"
#include "tests/daemon/engine/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MS   UINT64_C(1000000)
#define S    (1000 * MS)
#define T0   (5000 * S)
#define WALL UINT64_C(1700000000000000000)

static void the_longest_of_the_last_seconds_is_shown_and_then_forgotten(void **state)
{
    (void)state;
    struct roll_late late = {0};
    roll_late_note(&late, 3 * S, T0);
    roll_late_note(&late, 100 * MS, T0 + S);
    assert_true(roll_late_lately(&late, T0 + S) == 3 * S);
    assert_true(roll_late_lately(&late, T0 + 9 * S) == 3 * S);
    roll_late_note(&late, 200 * MS, T0 + 12 * S);
    assert_true(roll_late_lately(&late, T0 + 15 * S) == 3 * S);
    roll_late_note(&late, 0, T0 + 23 * S);
    assert_true(roll_late_lately(&late, T0 + 24 * S) == 200 * MS);
    assert_true(roll_late_lately(&late, T0 + 60 * S) == 0);
    assert_true(late.total_ns == 3300 * MS);
}

/* Frames 10 times a second that take `way`, by a clock that is `apart` from ours. */
static uint64_t frames(struct roll_late_link *link, uint64_t *made, uint64_t apart, unsigned n, uint64_t way)
{
    uint64_t late = 0;
    for (unsigned i = 0; i < n; i++) {
        *made += 100 * MS;
        late = roll_late_link_took(link, *made, *made + apart + way);
    }
    return late;
}

static void a_link_is_late_by_what_is_beyond_its_fastest_frame(void **state)
{
    (void)state;
    static const uint64_t aparts[] = {0, UINT64_C(1) << 62, (uint64_t) - (int64_t)(4000 * S)};
    for (size_t i = 0; i < 3; i++) {
        struct roll_late_link link = {.any = false};
        uint64_t made = T0;
        assert_true(frames(&link, &made, aparts[i], 50, 2 * MS) == 0);
        assert_true(frames(&link, &made, aparts[i], 1, 3002 * MS) == 3 * S);
        assert_true(frames(&link, &made, aparts[i], 1, 2 * MS) == 0);
        assert_true(frames(&link, &made, aparts[i], 20, 502 * MS) == 500 * MS);
        assert_true(frames(&link, &made, aparts[i], 1, 1 * MS) == 0); /* a faster one than ever */
        assert_true(frames(&link, &made, aparts[i], 1, 502 * MS) == 501 * MS);
    }
}

/* The receiver stands still for a minute: what waited comes at once, oldest first, and only the last is in time. */
static void behind_a_stop_frames_are_late_until_the_newest_has_come(void **state)
{
    (void)state;
    struct roll_late_link link = {.any = false};
    uint64_t made = T0;
    (void)frames(&link, &made, 0, 600, 2 * MS);
    uint64_t wakes = made + 60 * S;
    for (uint64_t at = made + 100 * MS; at < wakes; at += 100 * MS) {
        uint64_t late = roll_late_link_took(&link, at, wakes);
        uint64_t age = wakes - at - 2 * MS;
        assert_true(at + 31 * S > wakes || late >= age - 60 * S / 2);
        if (at - made < 29 * S) {
            assert_true(late == age);
        }
    }
}

/* A host that was suspended: its clock stood still, so all that it sends looks old. It is in time again a minute later.
 */
static void a_clock_that_stood_still_makes_a_link_late_for_a_minute_at_most(void **state)
{
    (void)state;
    struct roll_late_link link = {.any = false};
    uint64_t made = T0;
    (void)frames(&link, &made, 0, 100, 2 * MS);
    assert_true(frames(&link, &made, 3600 * S, 10, 2 * MS) == 3600 * S);
    assert_true(frames(&link, &made, 3600 * S, 600, 2 * MS) == 0);
    made = S; /* another clock */
    assert_true(frames(&link, &made, 0, 1, 7 * MS) == 0);
}

static void each_moment_is_missed_once(void **state)
{
    (void)state;
    struct roll_late_missed missed = {0};
    assert_true(roll_late_missed_gap(&missed, T0, T0 + 149 * MS) == 0);
    assert_true(roll_late_missed_gap(&missed, T0, T0 + 200 * MS) == 50 * MS);
    assert_true(roll_late_missed_gap(&missed, T0 + 10 * MS, T0 + 210 * MS) == 10 * MS);
    assert_true(roll_late_missed_gap(&missed, T0 + 1000 * MS, T0 + 60 * S) ==
                100 * MS); /* then the clock stood still */
    assert_true(roll_late_missed_add(&missed, T0 + 1000 * MS, T0 + 1250 * MS) == 0);
    assert_true(missed.total_ns == 160 * MS);
}

static void what_is_owed_is_left_out_and_time_goes_on_all_the_same(void **state)
{
    (void)state;
    struct roll_feed_clock clock;
    struct roll_feed_time time;
    uint64_t now = T0;
    roll_feed_clock_init(&clock, 0, now);
    roll_feed_clock_see(&clock, now, true);
    roll_feed_clock_pass(&clock, now, WALL, &time);
    roll_feed_clock_owe(&clock, 700 * MS);
    for (int i = 0; i < 40; i++) {
        now += 20 * MS;
        roll_feed_clock_pass(&clock, now, WALL, &time);
    }
    assert_true(clock.owed_ns == 0);
    assert_true(time.engine_ns == WALL + 100 * MS); /* an eighth of 800 ms, in which 700 were left out */
    roll_feed_clock_pass(&clock, now + 20 * MS, WALL, &time);
    assert_true(time.engine_ns == WALL + 120 * MS);
}

/* An hour in which nothing is seen in time leaves no debt, and no single word of anybody makes one without an end. */
static void no_debt_outlasts_its_cause(void **state)
{
    (void)state;
    static const uint64_t ticks[] = {5 * MS, 20 * MS, 100 * MS, 125 * MS, 3 * S};
    for (size_t i = 0; i < sizeof(ticks) / sizeof(ticks[0]); i++) {
        struct roll_feed_clock clock;
        struct roll_feed_time time;
        uint64_t now = T0, most = ticks[i] < 125 * MS ? ticks[i] : 125 * MS;
        roll_feed_clock_init(&clock, 0, now);
        roll_feed_clock_see(&clock, now, true);
        roll_feed_clock_pass(&clock, now, WALL, &time);
        for (uint64_t n = 0; n < 3600 * S / ticks[i]; n++) {
            now += ticks[i];
            roll_feed_clock_owe_tick(&clock, now);
            roll_feed_clock_pass(&clock, now, WALL, &time);
        }
        assert_true(clock.owed_ns == 0);
        assert_true(clock.engine_ns == WALL + 3600 * S / ticks[i] * (most / 8));
        roll_feed_clock_owe(&clock, 3600 * S);
        roll_feed_clock_owe(&clock, UINT64_MAX);
        assert_true(clock.owed_ns == ROLL_FEED_OWED_NS);
    }
}

/* rings */

static struct roll_agent_ring *a_ring(uint64_t sent, uint64_t upto)
{
    static struct roll_agent_ring ring;
    ring = (struct roll_agent_ring){.link = ROLL_LINK_LIVE, .sent = sent, .upto = upto};
    return &ring;
}

static uint64_t oldest_look(struct roll_agent_ring *ring)
{
    struct roll_agent_late late = {.schedstat = -1, .late_ns = 77};
    struct roll_frame_heartbeat beat;
    roll_agent_late_beat(&late, &ring, 1, &beat);
    assert_true(beat.late_ns == 77 && beat.made_ns != 0 && beat.agents == 0);
    assert_int_equal(beat.unheard, beat.look_ns > 0);
    return beat.look_ns;
}

static void a_ring_that_cannot_be_told_grows_old(void **state)
{
    (void)state;
    struct roll_frame_heartbeat beat;
    struct roll_agent_late late = {.schedstat = -1};
    roll_agent_late_beat(&late, NULL, 0, &beat);
    uint64_t now = beat.made_ns;
    struct roll_agent_ring *ring = a_ring(100, 100);
    roll_agent_late_read(ring, now - 3 * S);
    assert_true(oldest_look(ring) >= 3 * S);
    roll_agent_late_read(ring, now);
    assert_true(oldest_look(ring) < 3 * S);
    /* It is written all the time and never read to its end, but what was there a moment ago is told. */
    ring = a_ring(100, 100);
    for (uint64_t at = now - 2 * S; at < now; at += 100 * MS) {
        ring->sent = ring->upto;
        ring->upto += 1000;
        roll_agent_late_read(ring, at);
    }
    assert_true(now - ring->read_ns <= 300 * MS);
    /* Its window is full. */
    for (uint64_t at = now; at < now + 2 * S; at += 100 * MS) {
        ring->upto += 1000;
        roll_agent_late_read(ring, at);
    }
    assert_true(now + 2 * S - ring->read_ns >= 2 * S);
    /* A record that its thread has not written to the end is waited for elsewhere. */
    ring->stuck_ns = now;
    ring->stuck_ticket = ring->sent;
    roll_agent_late_read(ring, now + 2 * S);
    assert_true(ring->read_ns == now + 2 * S);
    /* Nothing is known of a ring that has not been taken up. */
    ring = a_ring(0, 5000);
    ring->link = ROLL_LINK_ANNOUNCED;
    ring->read_ns = 1;
    assert_true(oldest_look(ring) == 0);
}

static void looks_in_time_add_nothing(void **state)
{
    (void)state;
    struct roll_agent_late late = {.schedstat = -1};
    roll_agent_late_looked(&late, T0, T0 - 10 * MS);
    roll_agent_late_looked(&late, T0, T0 + 2 * MS);
    assert_true(late.late_ns == 0);
    roll_agent_late_looked(&late, T0, T0 + 3100 * MS);
    assert_true(late.late_ns == 3100 * MS);
}

/* The thread's own waiting is read from the kernel, where it says so. */
static void the_own_thread_tells_how_long_it_stood_ready(void **state)
{
    (void)state;
    struct roll_agent_late late;
    struct roll_frame_heartbeat beat, again;
    roll_agent_late_init(&late, "/proc");
    roll_agent_late_beat(&late, NULL, 0, &beat);
    roll_agent_late_beat(&late, NULL, 0, &again);
    assert_true(again.waited_ns >= beat.waited_ns);
    roll_agent_late_fini(&late);
    roll_agent_late_init(&late, "/nowhere");
    roll_agent_late_beat(&late, NULL, 0, &beat);
    assert_true(beat.waited_ns == 0);
    roll_agent_late_fini(&late);
}

/* The kernel is asked where that tells something, and now and then. */
static void how_long_it_stood_ready_is_read_where_it_was_late(void **state)
{
    (void)state;
    char text[] = "1 100 1\n";
    struct roll_frame_heartbeat beat;
    struct roll_agent_late late = {.schedstat = memfd_create("schedstat", MFD_CLOEXEC)};
    uint64_t told[10];
    for (int i = 0; i < 10; i++) {
        text[2] = (char)('0' + i);
        assert_int_equal(pwrite(late.schedstat, text, sizeof(text) - 1, 0), sizeof(text) - 1);
        roll_agent_late_looked(&late, T0, T0 + (i == 5 ? 3000 * MS : 0));
        roll_agent_late_beat(&late, NULL, 0, &beat);
        told[i] = beat.waited_ns;
    }
    static const uint64_t want[10] = {0, 0, 0, 0, 0, 500, 500, 500, 800, 800};
    assert_memory_equal(told, want, sizeof(want));
    close(late.schedstat);
}

/* patience: 64 ranks, of which the last does not come; an agent that is heard every now and then, and a root's clock */

#define RANKS   64u
#define SUSPECT (5 * S)

struct hung {
    struct sim *sim;
    roll_engine_t *e;
    struct roll_feed_clock clock;
    struct roll_late_missed missed;
    uint64_t now, heard, passed; /* passed: until something was found */
};

static void begin(struct hung *h, bool sick)
{
    *h = (struct hung){.sim = sim_new(RANKS), .now = T0, .heard = T0};
    struct roll_feed_time time;
    uint32_t world = sim_world(h->sim);
    sim_all(h->sim, world, ROLL_OP_ALLREDUCE, 512);
    for (uint32_t r = 0; r < RANKS; r++) {
        sim_sync(h->sim, r);
    }
    for (uint32_t r = 0; r < RANKS - sick; r++) {
        sim_call(h->sim, r, world, ROLL_OP_ALLREDUCE, 512);
        if (sick) {
            sim_stuck(h->sim, r);
        }
    }
    h->sim->config.suspect_ns = SUSPECT;
    h->e = roll_engine_new(&h->sim->config);
    assert_non_null(h->e);
    roll_feed_clock_init(&h->clock, h->sim->config.stall_ns, T0);
    roll_feed_clock_see(&h->clock, T0, true);
    roll_feed_clock_pass(&h->clock, T0, WALL, &time);
    assert_int_equal(roll_engine_tick(h->e, time.engine_ns), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        uint64_t fed = 0;
        uint32_t source = sim_open(h->sim, h->e, r);
        for (size_t i = 0; i < h->sim->rank[r].events; i++) {
            sim_feed(h->e, source, &h->sim->rank[r].event[i], &fed);
        }
    }
}

/* As the root does (root.c, root_late.c): a look each 10 ms; the agent is heard again `gap` after it was heard. */
static uint64_t found_after(uint64_t gap, bool sick, uint64_t limit, char *what, size_t size)
{
    struct hung h;
    struct roll_feed_time time;
    begin(&h, sick);
    what[0] = '\0';
    while (what[0] == '\0' && h.now - T0 < limit) {
        h.now += 10 * MS;
        if (h.now - h.heard >= gap) {
            roll_feed_clock_owe(&h.clock, roll_late_missed_gap(&h.missed, h.heard, h.now));
            h.heard = h.now;
        }
        roll_feed_clock_see(&h.clock, h.now, h.now - h.heard < ROLL_LATE_HEARD_NS);
        if (roll_feed_clock_is_due(&h.clock, h.now, true)) {
            roll_feed_clock_pass(&h.clock, h.now, WALL, &time);
            assert_int_equal(roll_engine_tick(h.e, time.engine_ns), 0);
        }
        const struct roll_verdict *v = roll_engine_next(h.e);
        if (v) {
            char ranks[64];
            roll_rankset_format(&v->culprits, ranks, sizeof(ranks));
            snprintf(what, size, "%s %s %s", roll_certainty_name(v->certainty), roll_verdict_name(v->code), ranks);
        }
    }
    h.passed = h.now - T0;
    roll_engine_destroy(&h.e);
    sim_destroy(&h.sim);
    return h.passed;
}

static void a_hung_rank_is_found_later_by_what_was_missed(void **state)
{
    (void)state;
    char what[128];
    uint64_t open = found_after(100 * MS, true, 60 * S, what, sizeof(what));
    assert_string_equal(what, "suspected rank-busy 63");
    assert_true(open >= SUSPECT && open < SUSPECT + S);
    static const struct {
        uint64_t gap, seen; /* of each gap as much counts */
    } late[] = {
        {150 * MS, 150 * MS}, {200 * MS, 150 * MS}, {240 * MS, 150 * MS}, {1000 * MS, 150 * MS}, {3000 * MS, 150 * MS}};
    for (size_t i = 0; i < sizeof(late) / sizeof(late[0]); i++) {
        uint64_t after = found_after(late[i].gap, true, 600 * S, what, sizeof(what));
        assert_string_equal(what, "suspected rank-busy 63");
        /* The patience is over when as much has been seen; later where the clock stood still before a tick was due. */
        uint64_t want = open * late[i].gap / late[i].seen, slack = late[i].gap * 2 + 500 * MS + want / 20;
        if (after + slack < want || after > 2 * want + slack) {
            fail_msg("heard every %d ms: found after %d ms, and not after %d", (int)(late[i].gap / MS),
                     (int)(after / MS), (int)(want / MS));
        }
    }
}

static void nothing_is_found_where_all_have_come(void **state)
{
    (void)state;
    static const uint64_t gaps[] = {100 * MS, 240 * MS, 3000 * MS, 9000 * MS};
    for (size_t i = 0; i < sizeof(gaps) / sizeof(gaps[0]); i++) {
        char what[128];
        (void)found_after(gaps[i], false, 60 * S, what, sizeof(what));
        assert_string_equal(what, "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_of_the_last_seconds_is_shown_and_then_forgotten),
        cmocka_unit_test(a_link_is_late_by_what_is_beyond_its_fastest_frame),
        cmocka_unit_test(behind_a_stop_frames_are_late_until_the_newest_has_come),
        cmocka_unit_test(a_clock_that_stood_still_makes_a_link_late_for_a_minute_at_most),
        cmocka_unit_test(each_moment_is_missed_once),
        cmocka_unit_test(what_is_owed_is_left_out_and_time_goes_on_all_the_same),
        cmocka_unit_test(no_debt_outlasts_its_cause),
        cmocka_unit_test(a_ring_that_cannot_be_told_grows_old),
        cmocka_unit_test(looks_in_time_add_nothing),
        cmocka_unit_test(the_own_thread_tells_how_long_it_stood_ready),
        cmocka_unit_test(how_long_it_stood_ready_is_read_where_it_was_late),
        cmocka_unit_test(a_hung_rank_is_found_later_by_what_was_missed),
        cmocka_unit_test(nothing_is_found_where_all_have_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
