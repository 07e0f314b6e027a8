/*
 * test_excerpt_silence.c: for how long a rank has been silent, as its agent says it with an excerpt: counted in steps
 * of the agent's own looks, and only while the rank could run. And how far back an excerpt reaches that is asked for
 * all there is. The clock is a number here.
 *
 * The ring is a real one, and what is read of it is sent to the test.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_digest.h"
#include "daemon/base/clock.h"
#include "trace/err.h"

#define BEAT_NS (100 * ROLL_MS)
#define SLOTS   1024u /* of the ring */

struct node {
    char dir[64];
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring;
    roll_agent_digests_t *digests;
    uint64_t now, seq, number;
    bool all;        /* the mark behind the excerpt has come, */
    uint32_t tenths; /* and says this */
    uint64_t first;  /* where the excerpt begins, as its places say */
    uint64_t history;
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct node *n = ctx;
    (void)payload;
    if (head.type == ROLL_FRAME_EXCERPT && bytes == 0 && (head.flags & ROLL_EXCERPT_ALL) != 0) {
        assert_true(head.first == n->number);
        n->all = true;
        n->tenths = head.flags >> ROLL_EXCERPT_QUIET;
    }
    n->first = head.type == ROLL_FRAME_PLACE ? head.first : n->first;
    *seq = ++n->seq;
    return 0;
}

static void call(struct node *n)
{
    synth_allreduce(&n->rank, &(struct synth_call){.comm = n->comm, .count = 1});
}

/* The agent looks at the ring, and goes on to what is written later with its next look. */
static void look(struct node *n)
{
    assert_true(roll_agent_digests_pump(n->digests, n->ring, n->now) >= 0);
}

static void beats(struct node *n, int count)
{
    for (int i = 0; i < count; i++) {
        n->now += BEAT_NS;
        n->ring->upto = roll_agent_ring_head(n->ring);
        look(n);
        roll_agent_digests_tell(n->digests, n->now);
    }
}

/* A rank has made a call, which its agent has seen. */
static void begin(struct node *n)
{
    *n = (struct node){.now = 1000 * 1000 * ROLL_MS, .history = 64};
    scratch_make(n->dir);
    assert_int_equal(synth_open(&n->rank, n->dir, "silence", 0, 2, SLOTS), 0);
    n->comm = synth_comm(&n->rank, 7);
    assert_int_equal(roll_agent_ring_new(n->rank.path, &n->ring), 0);
    n->ring->link = ROLL_LINK_LIVE;
    n->ring->digest = true;
    assert_non_null(n->digests = roll_agent_digests_new(take, n));
    call(n);
    beats(n, 1);
}

static void end(struct node *n)
{
    roll_agent_digests_destroy(&n->digests);
    roll_agent_ring_destroy(&n->ring);
    synth_close(&n->rank);
    scratch_remove(n->dir);
}

/* What the agent says of the rank's silence to a root that asks now. */
static uint32_t said(struct node *n)
{
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(struct roll_frame_excerpt)];
    struct roll_frame_excerpt ask = {.history = n->history, .scope = ROLL_EXCERPT_EVERYONE};
    struct roll_frame_head head = {
        .type = ROLL_FRAME_EXCERPT, .stream = n->ring->map.header->epoch, .first = ++n->number};
    struct roll_frame frame;
    assert_true(roll_frame_make(&head, &ask, sizeof(ask), raw, sizeof(raw), &frame) > 0);
    roll_agent_digests_ask(n->digests, &frame);
    n->all = false;
    look(n);
    assert_true(n->all);
    return n->tenths;
}

static void calls(struct node *n, int count)
{
    for (int i = 0; i < count; i++) {
        call(n);
        if (i % 100 == 99) {
            beats(n, 1);
        }
    }
    beats(n, 1);
}

/* A live rank would write over the oldest records while they are read, once its ring has gone round. */
static void an_excerpt_reaches_as_far_back_as_records_stay(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    n.history = 8 * SLOTS;
    calls(&n, 900);
    (void)said(&n);
    assert_int_equal(n.first, 0);
    calls(&n, 900);
    (void)said(&n);
    uint64_t head = roll_agent_ring_head(n.ring);
    assert_true(head > SLOTS);
    assert_int_equal(n.first, head - (SLOTS - SLOTS / 8));
    n.ring->gone = true;
    n.ring->gone_ns = 1;
    (void)said(&n);
    assert_int_equal(n.first, head - SLOTS);
    end(&n);
}

static void a_rank_that_stands_is_said_to_have_stood(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    assert_int_equal(said(&n), 0);
    beats(&n, 9);
    assert_int_equal(said(&n), 9);
    beats(&n, 31);
    assert_int_equal(said(&n), 40);
    end(&n);
}

static void a_call_ends_the_silence(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    beats(&n, 30);
    call(&n);
    beats(&n, 1);
    assert_int_equal(said(&n), 0);
    beats(&n, 7);
    assert_int_equal(said(&n), 7);
    end(&n);
}

/* A call that was written behind the agent's last look is one that the silence does not know of. */
static void a_call_that_nobody_has_looked_at_ends_the_silence(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    beats(&n, 30);
    call(&n);
    assert_int_equal(said(&n), 0);
    end(&n);
}

/* An agent that was stopped does not know what the rank could have done meanwhile: perhaps both were stopped. */
static void a_time_without_looks_is_not_counted(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    beats(&n, 10);
    n.now += 60 * 1000 * ROLL_MS;
    beats(&n, 10);
    assert_int_equal(said(&n), 10 + 2 + 9); /* of the long step two tenths */
    end(&n);
}

static void a_rank_that_waits_for_a_processor_does_not_stand(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    beats(&n, 10);
    n.ring->starved = 300;
    beats(&n, 25);
    n.ring->starved = 0;
    beats(&n, 5);
    assert_int_equal(said(&n), 15);
    call(&n);
    n.ring->starved = 300;
    beats(&n, 10);
    assert_int_equal(said(&n), 0); /* what lay before the call does not count any more */
    end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_excerpt_reaches_as_far_back_as_records_stay),
        cmocka_unit_test(a_rank_that_stands_is_said_to_have_stood),
        cmocka_unit_test(a_call_ends_the_silence),
        cmocka_unit_test(a_call_that_nobody_has_looked_at_ends_the_silence),
        cmocka_unit_test(a_time_without_looks_is_not_counted),
        cmocka_unit_test(a_rank_that_waits_for_a_processor_does_not_stand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
