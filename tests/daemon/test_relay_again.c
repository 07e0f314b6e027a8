/*
 * test_relay_again.c: what a relay adds up of its agents, and what of it begins anew: with a new root, with an agent
 * that has moved, with one that was started anew, and with one that has left.
 *
 * Nothing is judged by how long it took here: what must not be told is looked for in the relay's next beats, by the
 * time that is in them.
 */
#include "tests/daemon/relay_stage.h"

#define S         UINT64_C(1000000000)
#define KEY       0x1000u
#define COME_NS   (5 * S) /* as in relay_runs.c: a run is told by then, whoever has not announced its rings */
#define BEATS     5       /* in which the relay has told more than once what it has */
#define ONE_CALLS 10u
#define TWO_CALLS 7u

static struct stage s;
static struct agent one, two;
static struct synth rank[2];
static struct got got;

/* Two agents, with a ring each. */
static void begin(void)
{
    stage_open(&s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(synth_open(&rank[i], harness_path("."), "job", i, 4, 0), 0);
    }
    agent_comes(&s, &one, "one", 100);
    agent_comes(&s, &two, "two", 7000);
    agent_announces(&one, &rank[0]);
    agent_announces(&two, &rank[1]);
}

static void end(void)
{
    synth_close(&rank[1]);
    stage_close_all(&s, &one, &two, &rank[0]);
}

static uint64_t stream(int i)
{
    return rank[i].ring.header->epoch;
}

static void tell_front(struct agent *a, int i, uint64_t calls)
{
    struct roll_digest d = {0};
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 1, .low = 7, .high = 7});
    agent_digests(a, stream(i), &d, calls);
}

/* A digest by which so many members of the communicator stand, and so many calls were made. */
struct sum {
    uint32_t members;
    uint64_t calls;
};

static bool is_sum(const struct got *frame, void *ctx)
{
    const struct sum *sum = ctx;
    struct roll_digest d = {0};
    bool is = false;
    if (frame->head.type == ROLL_FRAME_DIGEST && frame->head.payload > 0) {
        assert_int_equal(roll_digest_decode(frame->payload, frame->head.payload, &d), 0);
        is = d.fronts == 1 && d.front[0].key == KEY && d.front[0].members == sum->members &&
             frame->head.first == sum->calls;
    }
    roll_digest_fini(&d);
    return is;
}

static void root_is_told(uint32_t members, uint64_t calls)
{
    struct sum sum = {members, calls};
    root_waits(&s, &got, is_sum, &sum);
}

static uint64_t made_ns(const struct got *frame)
{
    struct roll_frame_heartbeat beat;
    assert_int_equal(frame->head.payload, sizeof(beat));
    memcpy(&beat, frame->payload, sizeof(beat));
    return beat.made_ns;
}

static bool is_beat(const struct got *frame, void *ctx)
{
    (void)ctx;
    return frame->head.type == ROLL_FRAME_HEARTBEAT;
}

/* What two agents tell is one sum. A new root is told it when both have announced their rings, and none before: a part
 * of it would be told again, and what a root knows of nobody is refused there. */
static void test_a_new_root_is_told_of_both(void **state)
{
    (void)state;
    begin();
    tell_front(&one, 0, ONE_CALLS);
    tell_front(&two, 1, TWO_CALLS);
    root_is_told(2, ONE_CALLS + TWO_CALLS);

    root_waits(&s, &got, is_beat, NULL);
    uint64_t before_ns = made_ns(&got);
    root_is_another(&s, &got);
    agent_comes_again(&one, "one");
    agent_announces(&one, &rank[0]);
    bool told = false;
    for (int beats = 0; beats < BEATS;) {
        root_takes_any(&s, &got);
        told = told || got.head.type == ROLL_FRAME_DIGEST;
        if (is_beat(&got, NULL)) {
            beats++;
            assert_true(!told || made_ns(&got) - before_ns >= COME_NS);
        }
    }
    agent_comes_again(&two, "two");
    agent_announces(&two, &rank[1]);
    if (told) { /* on a machine that slow it was taken out */
        tell_front(&two, 1, TWO_CALLS);
    }
    root_is_told(2, ONE_CALLS + TWO_CALLS);
    end();
}

static bool are_calls(const struct got *frame, void *ctx)
{
    return frame->head.type == ROLL_FRAME_DIGEST && frame->head.first == *(uint64_t *)ctx;
}

/* Calls on no communicator are in no front, and are told all the same: to each root. */
static void test_calls_alone_are_told_anew(void **state)
{
    (void)state;
    uint64_t calls = 5;
    begin();
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_DIGEST, .stream = stream(0), .first = calls}, NULL,
                0);
    root_waits(&s, &got, are_calls, &calls);
    root_is_another(&s, &got);
    agent_comes_again(&one, "one");
    agent_announces(&one, &rank[0]);
    root_waits(&s, &got, are_calls, &calls);
    end();
}

/* The level above has heard of the ring elsewhere: what its agent told here is told by another one. */
static void test_what_an_agent_told_goes_with_its_last_ring(void **state)
{
    (void)state;
    struct roll_frame_sight sight = {.heard = 0};
    begin();
    tell_front(&one, 0, ONE_CALLS);
    tell_front(&two, 1, TWO_CALLS);
    root_is_told(2, ONE_CALLS + TWO_CALLS);
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_SIGHT, .stream = stream(1)}, &sight, sizeof(sight));
    root_is_told(1, ONE_CALLS);
    end();
}

static bool is_drained(const struct got *frame, void *ctx)
{
    return frame->head.type == ROLL_FRAME_HEARTBEAT && frame->head.first == *(uint64_t *)ctx;
}

static void drain(uint64_t number)
{
    root_sends(&s, &(struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .first = number}, NULL, 0);
    for (int i = 0; i < 2; i++) {
        agent_waits(i ? &two : &one, &got, ROLL_FRAME_HEARTBEAT);
        assert_int_equal(got.head.first, number);
    }
}

static void echo(struct agent *a, uint64_t number)
{
    struct roll_frame_heartbeat beat = {.made_ns = 1};
    agent_sends(a, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT, .first = number}, &beat, sizeof(beat));
}

/* The numbers of a new root begin anew: what an agent has answered its predecessor is no answer. */
static void test_a_drain_waits_for_who_has_answered_another_root(void **state)
{
    (void)state;
    uint64_t first = 42, next = 7;
    begin();
    drain(first);
    echo(&one, first);
    echo(&two, first);
    root_waits(&s, &got, is_drained, &first);
    root_is_another(&s, &got);
    for (int i = 0; i < 2; i++) {
        agent_comes_again(i ? &two : &one, i ? "two" : "one");
        agent_announces(i ? &two : &one, &rank[i]);
    }
    drain(next);
    echo(&one, next);
    for (int beats = 0; beats < BEATS; beats += is_beat(&got, NULL)) {
        root_takes_any(&s, &got);
        assert_false(is_drained(&got, &next));
    }
    echo(&two, next);
    root_waits(&s, &got, is_drained, &next);
    end();
}

static bool is_unheard(const struct got *frame, void *ctx)
{
    struct roll_frame_sight sight = {.heard = 1};
    bool is = frame->head.type == ROLL_FRAME_SIGHT && frame->head.stream == *(uint64_t *)ctx;
    if (is) {
        memcpy(&sight, frame->payload, sizeof(sight));
    }
    return is && sight.heard == 0;
}

/* In its new conversation it has heard of no drain, and whoever waits for it would wait for ever. */
static void test_an_agent_that_begins_anew_is_told_of_the_drain_again(void **state)
{
    (void)state;
    uint64_t number = 42;
    begin();
    drain(number);
    echo(&one, number);
    two.seq += 5; /* frames are missing */
    echo(&two, 0);
    agent_comes_again(&two, "two");
    agent_announces(&two, &rank[1]);
    agent_waits(&two, &got, ROLL_FRAME_HEARTBEAT);
    assert_int_equal(got.head.first, number);
    echo(&two, number);
    root_waits(&s, &got, is_drained, &number);
    end();
}

static void test_ranks_of_an_agent_that_leaves_are_not_heard(void **state)
{
    (void)state;
    begin();
    uint64_t its = stream(1);
    agent_sends(&two, (struct roll_frame_head){.type = ROLL_FRAME_BYE}, NULL, 0);
    root_waits(&s, &got, is_unheard, &its);
    end();
}

static bool is_late(const struct got *frame, void *ctx)
{
    struct roll_frame_heartbeat beat;
    if (!is_beat(frame, NULL)) {
        return false;
    }
    memcpy(&beat, frame->payload, sizeof(beat));
    return beat.below_ns >= *(uint64_t *)ctx;
}

/* So late that nothing which this machine does comes near it. */
static void test_how_late_an_agent_was_is_told(void **state)
{
    (void)state;
    uint64_t late_ns = 1000000 * S;
    struct roll_frame_heartbeat beat = {.made_ns = 1};
    begin();
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT}, &beat, sizeof(beat));
    beat.made_ns = 2;
    beat.late_ns = late_ns;
    agent_sends(&one, (struct roll_frame_head){.type = ROLL_FRAME_HEARTBEAT}, &beat, sizeof(beat));
    root_waits(&s, &got, is_late, &late_ns);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_new_root_is_told_of_both, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_calls_alone_are_told_anew, harness_set_up, harness_tear_down),
        cmocka_unit_test_setup_teardown(test_what_an_agent_told_goes_with_its_last_ring, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_an_agent_that_begins_anew_is_told_of_the_drain_again, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_a_drain_waits_for_who_has_answered_another_root, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_ranks_of_an_agent_that_leaves_are_not_heard, harness_set_up,
                                        harness_tear_down),
        cmocka_unit_test_setup_teardown(test_how_late_an_agent_was_is_told, harness_set_up, harness_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
