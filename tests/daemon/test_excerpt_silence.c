/*
 * test_excerpt_silence.c: for how long a rank has been silent, as its agent says it with an excerpt: counted in steps
 * of the agent's own looks, and only while the rank could run. And how far back an excerpt reaches that is asked for
 * all there is; and that a loop of polls never looks as if its thread had left it. The clock is a number here.
 *
 * The ring is a real one, and what is read of it is sent to the test.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_digest.h"
#include "daemon/base/clock.h"
#include "trace/err.h"
#include "trace/op.h"
#include "trace/ring_write.h"

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
    uint32_t end;    /* flags of the mark that no more will be sent; 0: it has not come */
    uint64_t first;  /* where the excerpt begins, as its places say */
    uint64_t history;
    uint64_t polls,
        polls_left; /* records of loops of polls that have come; those that had returned when none followed */
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct node *n = ctx;
    if (head.type == ROLL_FRAME_EXCERPT && bytes == 0 && (head.flags & ROLL_EXCERPT_ALL) != 0) {
        assert_true(head.first == n->number);
        n->all = true;
        n->tenths = head.flags >> ROLL_EXCERPT_QUIET;
    }
    bool ends = head.type == ROLL_FRAME_EXCERPT && bytes == 0 && (head.flags & ROLL_EXCERPT_CUT) != 0;
    n->end = ends ? head.flags : n->end;
    n->first = head.type == ROLL_FRAME_PLACE ? head.first : n->first;
    bool records = head.type == ROLL_FRAME_RECORDS, updates = head.type == ROLL_FRAME_UPDATES;
    for (uint32_t i = 0; (records || updates) && i < head.count; i++) {
        const struct roll_record *rec = (const struct roll_record *)payload + i;
        bool poll = roll_op_class(rec->op) == ROLL_CLASS_POLL;
        uint64_t ticket = roll_seal_ticket(rec->seal);
        n->polls = poll && ticket + 1 > n->polls ? ticket + 1 : n->polls;
        n->polls_left += poll && roll_seal_state(rec->seal) == ROLL_STATE_RETURNED && ticket + 1 == n->polls;
    }
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

/* A loop of polls goes on in a new record, which is written before the one before returns. */
static uint64_t poll_again(struct node *n, uint64_t before)
{
    uint64_t ticket;
    struct roll_record *rec = roll_ring_reserve(&n->rank.ring, &ticket);
    uint64_t seal = rec->seal;
    *rec = (struct roll_record){
        .seal = seal, .enter_ns = n->now, .peer = ROLL_PEER_NONE, .thread = 1, .op = ROLL_OP_STREAM_QUERY};
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    if (before != UINT64_MAX) {
        roll_ring_return(&n->rank.ring, &n->rank.ring.records[before & n->rank.ring.mask], before, 1000,
                         ROLL_POLL_GOES_ON);
    }
    return ticket;
}

/* An excerpt is a look behind the agent's own reading, and the end of the old record must not run ahead of the new one.
 * Otherwise an engine takes each record for a loop that has just begun, and its patience never ends. */
static void a_loop_of_polls_goes_on_in_an_excerpt(void **state)
{
    (void)state;
    struct node n;
    begin(&n);
    uint64_t at = poll_again(&n, UINT64_MAX);
    beats(&n, 1);
    (void)said(&n);
    for (int i = 0; i < 20; i++) {
        at = poll_again(&n, at);
        for (int k = 0; k < i % 3; k++) {
            call(&n); /* of another thread */
        }
        beats(&n, 1 + i % 2);
    }
    n.ring->upto = roll_agent_ring_head(n.ring);
    at = poll_again(&n, at); /* behind the moment at which the agent looks at all rings */
    look(&n);
    assert_true(n.polls < at + 1);
    assert_int_equal(n.polls_left, 0);
    beats(&n, 2);
    assert_int_equal(n.polls, at + 1);
    assert_int_equal(n.polls_left, 0);
    roll_ring_return(&n.rank.ring, &n.rank.ring.records[at & n.rank.ring.mask], at, 1000, ROLL_POLL_READY);
    beats(&n, 1);
    assert_int_equal(n.polls_left, 1);
    end(&n);
}

/* Of calls on one communicator alone: whether a rank of which no more is sent was cut behind all that is wanted, or
 * because so many have followed. */
static void the_end_of_an_excerpt_says_whether_all_has_come(void **state)
{
    (void)state;
    static const struct {
        uint32_t high;
        uint64_t follow;
        uint32_t end;
    } rows[] = {{4, 512, ROLL_EXCERPT_CUT | ROLL_EXCERPT_PASSED}, {400, 3, ROLL_EXCERPT_CUT}, {400, 512, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct node n;
        begin(&n);
        struct {
            struct roll_frame_excerpt ask;
            struct roll_frame_want want;
        } payload = {{.history = 1, .follow = rows[i].follow, .wants = 1, .scope = ROLL_EXCERPT_NARROW},
                     {.key = 7, .low = 1, .high = rows[i].high}};
        uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(payload)];
        struct roll_frame_head head = {
            .type = ROLL_FRAME_EXCERPT, .stream = n.ring->map.header->epoch, .first = ++n.number};
        struct roll_frame frame;
        assert_true(roll_frame_make(&head, &payload, sizeof(payload), raw, sizeof(raw), &frame) > 0);
        roll_agent_digests_ask(n.digests, &frame);
        look(&n);
        assert_int_equal(n.end, 0);
        calls(&n, 6);
        assert_int_equal(n.end, rows[i].end);
        end(&n);
    }
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
        cmocka_unit_test(a_loop_of_polls_goes_on_in_an_excerpt),
        cmocka_unit_test(the_end_of_an_excerpt_says_whether_all_has_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
