/*
 * test_relay.c: what a relay passes on, under which numbers, and what it refuses: frames about another agent's ring and
 * digests that are none go no further, and are told of; when it tells a root that was started anew, and which runs it
 * keeps.
 *
 * Root and agents are sockets of the test, the relay is real. What begins anew with a new root: test_relay_again.c; how
 * whole jobs fare behind relays: test_digest_mode.c.
 */
#include "tests/daemon/relay_stage.h"

static void test_frames_of_rings(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank;
    static struct got got;
    struct agent one, two;
    stage_open(&s);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 2, 0), 0);
    uint64_t stream = rank.ring.header->epoch;
    agent_comes(&s, &one, "one", 100);
    agent_comes(&s, &two, "two", 7000);

    /* The root acknowledges the relay's number, the agent hears its own. */
    agent_announces(&one, &rank);
    root_takes(&s, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_RING);
    assert_int_equal(got.head.stream, stream);
    struct roll_frame_ack ack = {.next_ticket = 5, .defs_offset = 6};
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_ACK, .seq = got.head.seq, .stream = stream}, &ack,
               sizeof(ack));
    agent_takes(&one, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_ACK);
    assert_int_equal(got.head.seq, one.seq);
    assert_memory_equal(got.payload, &ack, sizeof(ack));

    /* Nobody speaks for another agent's ring, and bytes that are no digest are no part of the sum. */
    struct roll_frame_status status = {.proc_state = ROLL_PROC_DEAD, .exit_status = 9};
    agent_sends(&two, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    assert_true(harness_logged("relay.err", "the agent on two is refused"));
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = stream}, "no digest", 9);
    status.proc_state = ROLL_PROC_RUNNING;
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    root_takes(&s, &got); /* the next one is the ring's own agent's */
    assert_int_equal(got.head.type, ROLL_FRAME_STATUS);
    memcpy(&status, got.payload, sizeof(status));
    assert_int_equal(status.proc_state, ROLL_PROC_RUNNING);
    do { /* both were refused before that frame was passed on */
        root_takes_any(&s, &got);
    } while (got.head.type != ROLL_FRAME_HEARTBEAT);
    struct roll_frame_heartbeat beat;
    assert_int_equal(got.head.payload, sizeof(beat));
    memcpy(&beat, got.payload, sizeof(beat));
    assert_int_equal(beat.refused, 2);

    /* What is asked of a run goes to agents with rings of it: the other one hears the drain first. */
    struct roll_frame_excerpt ask = {.history = 3};
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_EXCERPT, .stream = stream, .first = 1}, &ask,
               sizeof(ask));
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .first = 42}, NULL, 0);
    agent_takes(&one, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_EXCERPT);
    assert_int_equal(got.head.stream, stream);
    agent_takes(&two, &got);
    assert_int_equal(got.head.type, ROLL_FRAME_HEARTBEAT);
    assert_int_equal(got.head.first, 42);

    /* After a gap the agent is asked to begin again, and nothing of it is passed on. */
    one.seq += 5;
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream}, &status, sizeof(status));
    do {
        agent_takes(&one, &got);
    } while (got.head.type == ROLL_FRAME_HEARTBEAT);
    expect_begin_again(&got);
    stage_close_all(&s, &one, &two, &rank);
}

#define KEY 0x1000u

struct telling {
    struct roll_digest *digest;
    int rings; /* RING frames that came before it */
};

static bool is_telling(const struct got *got, void *ctx)
{
    struct telling *t = ctx;
    t->rings += got->head.type == ROLL_FRAME_RING;
    if (got->head.type == ROLL_FRAME_DIGEST && got->head.payload > 0) {
        assert_int_equal(roll_digest_decode(got->payload, got->head.payload, t->digest), 0);
    }
    return t->digest->fronts + t->digest->hints > 0;
}

/* The next digest of the relay that has fronts or hints; *rings: RING frames that came before it. */
static void root_takes_digest(struct stage *s, struct roll_digest *d, int *rings)
{
    static struct got got;
    struct telling t = {.digest = d};
    roll_digest_clear(d);
    root_waits(s, &got, is_telling, &t);
    *rings += t.rings;
}

/* Passes the time in which the relay tells what it has, more than once. */
static void root_hears_beats(struct stage *s, int beats, int *digests)
{
    static struct got got;
    while (beats > 0) {
        root_takes_any(s, &got);
        beats -= got.head.type == ROLL_FRAME_HEARTBEAT;
        *digests += got.head.type == ROLL_FRAME_DIGEST;
    }
}

/*
 * What a relay has judged itself it tells a new root when that knows the rings, however long they take: what is told of
 * a ring that is not known is dropped there, and nothing moves that would have it told again.
 */
static void test_a_new_root_is_told_when_it_knows_the_rings(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank;
    static struct got got;
    struct agent one;
    struct roll_digest d = {0};
    int rings = 0, digests = 0;
    static const char again[] = "{\"host\":\"one\",\"dir\":\"/one\"}", resync[] = "{\"resync\":true}";
    stage_open(&s);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 2, 0), 0);
    uint64_t stream = rank.ring.header->epoch;
    const struct roll_frame_head ring = {.type = ROLL_FRAME_RING, .stream = stream};
    agent_comes(&s, &one, "one", 100);
    agent_sends(&one, ring, rank.ring.header, ROLL_RING_HEADER_BYTES);
    roll_digest_add_hint(&d, KEY, ROLL_HINT_DIFFERS, 64);
    agent_digests(&one, stream, &d, 10);
    root_takes_digest(&s, &d, &rings);
    assert_int_equal(rings, 1);
    assert_int_equal(d.hints, 1);

    /* Another root: it has never heard of the relay. */
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME}, resync, strlen(resync));
    do {
        root_takes_any(&s, &got);
    } while (got.head.type != ROLL_FRAME_HELLO);
    assert_non_null(memmem(got.payload, got.head.payload, ROLL_NET_RELAY, strlen(ROLL_NET_RELAY)));
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_WELCOME, .seq = got.head.seq}, "{}", 2);
    root_hears_beats(&s, 5, &digests);
    assert_int_equal(digests, 0);
    do {
        agent_takes(&one, &got);
    } while (got.head.type != ROLL_FRAME_WELCOME);
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_HELLO}, again, strlen(again));
    agent_sends(&one, ring, rank.ring.header, ROLL_RING_HEADER_BYTES);
    rings = 0;
    root_takes_digest(&s, &d, &rings);
    assert_int_equal(rings, 1);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].seq, 64);
    roll_digest_fini(&d);
    zmq_close(one.socket);
    synth_close(&rank);
    stage_close(&s);
}

/* An agent cannot speak for another node's ranks. */
static void test_who_speaks_for_others_is_refused(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank;
    struct agent one;
    struct roll_digest d = {0};
    int rings = 0;
    stage_open(&s);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 4, 0), 0);
    uint64_t stream = rank.ring.header->epoch;
    agent_comes(&s, &one, "liar", 100);
    agent_announces(&one, &rank);
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 2, .low = 9, .high = 9});
    roll_digest_add_front(&d,
                          &(struct roll_digest_front){.key = KEY + 1, .size = 4, .members = 1, .low = 3, .high = 3});
    agent_digests(&one, stream, &d, 10);
    root_takes_digest(&s, &d, &rings);
    assert_int_equal(d.fronts, 1);
    assert_true(d.front[0].key == KEY + 1);
    assert_true(harness_logged("relay.err", "the agent on liar is refused: a digest speaks for more ranks"));
    roll_digest_fini(&d);
    zmq_close(one.socket);
    synth_close(&rank);
    stage_close(&s);
}

/* Two of another release, by the form of their digests and by the size of their windows: what they tell is no part of
 * the sum, and it is said why. What one of this release tells goes on. */
static void test_another_release_is_refused_and_told(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank[2];
    struct agent old, one;
    struct roll_digest d = {0};
    int rings = 0;
    stage_open(&s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(synth_open(&rank[i], harness_path("."), "job", i, 4, 0), 0);
    }
    agent_comes(&s, &old, "old", 100);
    agent_comes(&s, &one, "one", 100);
    agent_announces(&old, &rank[0]);
    agent_announces(&one, &rank[1]);
    for (int at = 0; at <= 2; at += 2) { /* the version, the size of windows */
        uint8_t bytes[4096];
        struct roll_digest_cursor cursor = {0};
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 1, .low = 900, .high = 900});
        size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
        bytes[at] ^= 0x40;
        agent_sends(
            &old,
            (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = rank[0].ring.header->epoch, .first = 10},
            bytes, n);
        roll_digest_fini(&d);
    }
    assert_true(harness_logged("relay.err", "the agent on old is refused: a digest is of another release"));
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 1, .low = 7, .high = 7});
    agent_digests(&one, rank[1].ring.header->epoch, &d, 10);
    root_takes_digest(&s, &d, &rings);
    assert_int_equal(d.fronts, 1);
    assert_int_equal(d.front[0].members, 1);
    assert_int_equal(d.front[0].high, 7);
    roll_digest_fini(&d);
    synth_close(&rank[1]);
    stage_close_all(&s, &old, &one, &rank[0]);
}

/* Announces a ring of another run, and says whether its process lives. */
static void announce(struct agent *a, const struct synth *rank, uint64_t i, enum roll_proc_state proc)
{
    uint8_t raw[ROLL_RING_HEADER_BYTES];
    struct roll_ring_header h;
    struct roll_frame_status status = {.proc_state = proc};
    memcpy(raw, rank->ring.header, sizeof(raw));
    memcpy(&h, raw, sizeof(h));
    h.epoch += i;
    h.restart = (uint32_t)i;
    memcpy(raw, &h, sizeof(h));
    h.static_crc = roll_crc32c(0, raw, offsetof(struct roll_ring_header, static_crc));
    memcpy(raw, &h, sizeof(h));
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = h.epoch}, raw, sizeof(raw));
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = h.epoch}, &status, sizeof(status));
}

static void root_takes_status_of(struct stage *s, uint64_t stream)
{
    static struct got got;
    do {
        root_takes(s, &got);
    } while (got.head.type != ROLL_FRAME_STATUS || got.head.stream != stream);
}

/* One agent cannot take the room of the others; a run that is over makes room, and who speaks of it afterwards begins
 * again. */
static void test_runs_are_bounded_and_forgotten(void **state)
{
    (void)state;
    static struct stage s;
    static struct synth rank;
    static struct got got;
    struct agent one, two;
    enum { MOST = 16 };
    stage_open(&s);
    assert_int_equal(synth_open(&rank, harness_path("."), "job", 0, 4, 0), 0);
    uint64_t stream = rank.ring.header->epoch;
    agent_comes(&s, &one, "one", 100);
    agent_comes(&s, &two, "two", 100);
    for (uint64_t i = 1; i <= MOST; i++) {
        announce(&one, &rank, i, ROLL_PROC_RUNNING);
    }
    root_takes_status_of(&s, stream + MOST);
    announce(&one, &rank, MOST + 1, ROLL_PROC_RUNNING);
    assert_true(harness_logged("relay.err", "too many rings or runs"));
    announce(&two, &rank, MOST + 2, ROLL_PROC_RUNNING);
    root_takes_status_of(&s, stream + MOST + 2);
    announce(&one, &rank, 3, ROLL_PROC_FINISHED);
    announce(&one, &rank, MOST + 1, ROLL_PROC_RUNNING);
    root_takes_status_of(&s, stream + MOST + 1);
    struct roll_frame_status status = {.proc_state = ROLL_PROC_FINISHED};
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = stream + 3}, &status,
                sizeof(status));
    agent_takes(&one, &got);
    expect_begin_again(&got);
    stage_close_all(&s, &one, &two, &rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_frames_of_rings, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_new_root_is_told_when_it_knows_the_rings, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_who_speaks_for_others_is_refused, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_another_release_is_refused_and_told, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_runs_are_bounded_and_forgotten, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
