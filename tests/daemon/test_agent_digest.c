/*
 * test_agent_digest.c: what an agent tells of rings that are only folded: how many calls each rank has made, all of a
 * digest anew when it could not be sent, or in a new conversation, what stands when its process ends; and which records
 * an excerpt of such a ring has.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_digest.h"
#include "daemon/agent/agent_ring.h"
#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <string.h>

#define MS    UINT64_C(1000000)
#define CALLS 5u

struct place {
    char dir[64];
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring;
    roll_agent_digests_t *digests;
    uint64_t seq, now;
    bool full;               /* nothing can be sent */
    size_t fronts;           /* that came in the newest digest */
    size_t gone;             /* those of them that say that nobody uses the communicator any more */
    size_t inside;           /* hints that a host is inside a call for long, in the newest digest */
    uint64_t first, records; /* of the excerpt: its first ticket, and how many came before the mark of its end */
    bool begun, all;
    uint64_t refused; /* digests that could not be sent */
    struct roll_frame_last last;
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct place *p = ctx;
    struct roll_digest digest = {0};
    if (p->full && head.type == ROLL_FRAME_DIGEST) {
        p->refused++;
        return ROLL_E_BUSY;
    }
    if (head.type == ROLL_FRAME_DIGEST && bytes > 0) {
        assert_int_equal(roll_digest_decode(payload, bytes, &digest), 0);
        p->fronts = digest.fronts;
        for (size_t i = 0; i < digest.fronts; i++) {
            p->gone += digest.front[i].gone;
        }
        for (size_t i = 0; i < digest.hints; i++) {
            p->inside += digest.hint[i].why == ROLL_HINT_INSIDE;
        }
    } else if (head.type == ROLL_FRAME_RECORDS && !p->all) {
        p->first = p->begun ? p->first : head.first;
        p->begun = true;
        p->records += head.count;
    } else if (head.type == ROLL_FRAME_EXCERPT && (head.flags & ROLL_EXCERPT_ALL) != 0) {
        p->all = true;
    } else if (head.type == ROLL_FRAME_STATUS) {
        memcpy(&p->last, (const uint8_t *)payload + sizeof(struct roll_frame_status), sizeof(p->last));
    }
    roll_digest_fini(&digest);
    *seq = ++p->seq;
    return 0;
}

static void calls(struct place *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        synth_allreduce(&p->rank, &(struct synth_call){.comm = p->comm, .count = 1});
    }
}

/* A ring of a job of so many ranks. */
static void begin_of(struct place *p, int32_t ranks)
{
    memset(p, 0, sizeof(*p));
    p->now = 5000 * MS;
    scratch_make(p->dir);
    assert_int_equal(synth_open(&p->rank, p->dir, "folds", 0, ranks, 1024), 0);
    p->comm = synth_comm(&p->rank, 7);
    calls(p, CALLS);
    assert_int_equal(roll_agent_ring_new(p->rank.path, &p->ring), 0);
    p->ring->link = ROLL_LINK_LIVE;
    p->ring->digest = true;
    p->digests = roll_agent_digests_new(take, p);
    assert_non_null(p->digests);
}

static void begin(struct place *p)
{
    begin_of(p, 2);
}

static void end(struct place *p)
{
    roll_agent_digests_drop(p->digests, p->ring);
    roll_agent_digests_destroy(&p->digests);
    roll_agent_ring_destroy(&p->ring);
    synth_close(&p->rank);
    scratch_remove(p->dir);
}

static void look(struct place *p, uint64_t step_ns)
{
    p->now += step_ns;
    p->ring->upto = roll_agent_ring_head(p->ring);
    assert_true(roll_agent_digests_pump(p->digests, p->ring, p->now) >= 0);
    p->fronts = p->gone = p->inside = 0;
    roll_agent_digests_tell(p->digests, p->now);
}

static void test_a_status_says_how_many_calls_were_made(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    look(&p, MS);
    assert_int_equal(p.last.calls, CALLS);
    end(&p);
}

static void test_a_digest_that_could_not_be_sent_is_told_anew(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    p.full = true;
    for (int i = 0; i < 20; i++) { /* it moves, and stands */
        look(&p, 100 * MS);
    }
    assert_true(p.refused > 0);
    p.full = false;
    look(&p, 100 * MS);
    assert_int_equal(p.fronts, 1);
    look(&p, 100 * MS);
    assert_int_equal(p.fronts, 0); /* nothing is new any more */
    end(&p);
}

/* Nobody is left who could move: what stands is told with the first look, and that nobody goes on. */
static void test_what_stands_at_the_end_is_told_at_once(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1, .hang = true});
    look(&p, MS);
    assert_int_equal(p.inside, 0); /* it may return yet */
    p.ring->gone = true;
    p.ring->gone_ns = p.now;
    p.ring->gone_head = roll_agent_ring_head(p.ring);
    look(&p, MS);
    assert_int_equal(p.inside, 1);
    assert_int_equal(p.gone, 1);
    end(&p);
}

/* A digest tells a hint once, and in each conversation. */
static void test_a_hint_is_told_in_each_conversation(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1, .hang = true});
    size_t told = 0;
    for (int i = 0; i < 20; i++) {
        look(&p, 100 * MS);
        told += p.inside;
    }
    assert_int_equal(told, 1);
    roll_agent_digests_again(p.digests);
    look(&p, 100 * MS);
    assert_int_equal(p.inside, 1);
    assert_int_equal(p.fronts, 1);
    look(&p, 100 * MS);
    assert_int_equal(p.inside + p.fronts, 0);
    end(&p);
}

/* An excerpt has the history that is asked for, all of it before the mark of its end, whatever it is to follow. */
static void test_an_excerpt_begins_where_it_is_asked_to(void **state)
{
    (void)state;
    static struct place p;
    struct roll_frame_excerpt ask = {.history = 10, .follow = 4, .scope = ROLL_EXCERPT_EVERYONE};
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(ask)];
    struct roll_frame frame;
    begin(&p);
    calls(&p, 95);                 /* 100 tickets */
    for (int i = 0; i < 20; i++) { /* until nothing is under way */
        look(&p, 100 * MS);
    }
    assert_false(p.begun);
    struct roll_frame_head head = {.type = ROLL_FRAME_EXCERPT, .stream = p.ring->map.header->epoch, .first = 1};
    assert_true(roll_frame_make(&head, &ask, sizeof(ask), raw, sizeof(raw), &frame) > 0);
    roll_agent_digests_ask(p.digests, &frame);
    look(&p, 100 * MS);
    assert_true(p.all);
    assert_int_equal(p.first, 90);
    assert_int_equal(p.records, 10);
    end(&p);
}

/* The root asks for records of the only ring. */
static void ask(struct place *p, enum roll_excerpt_scope scope, uint64_t number)
{
    struct {
        struct roll_frame_excerpt ask;
        struct roll_frame_want want;
    } both = {.ask = {.history = 10, .follow = 100, .scope = scope, .wants = 1}, .want = {.key = 7}};
    uint8_t raw[ROLL_FRAME_HEAD_BYTES + sizeof(both)];
    struct roll_frame frame;
    struct roll_frame_head head = {.type = ROLL_FRAME_EXCERPT, .stream = p->ring->map.header->epoch, .first = number};
    assert_true(roll_frame_make(&head, &both, sizeof(both), raw, sizeof(raw), &frame) > 0);
    roll_agent_digests_ask(p->digests, &frame);
}

/* Of calls on some communicators alone, those that a rank of a large job makes later can wait for the next beat; all
 * records cannot, because who goes on is seen by them. */
static void test_calls_that_follow_wait_for_the_next_beat(void **state)
{
    (void)state;
    static struct place p;
    begin_of(&p, 8192);
    look(&p, 100 * MS);
    assert_false(roll_agent_digests_sends(p.digests));
    ask(&p, ROLL_EXCERPT_NARROW, 1);
    assert_true(roll_agent_digests_sends(p.digests));
    look(&p, 100 * MS);
    assert_true(p.all);
    assert_int_equal(p.records, CALLS);
    assert_false(roll_agent_digests_sends(p.digests));
    p.all = false; /* what is sent from here on is counted, too */
    calls(&p, 3);
    assert_false(roll_agent_digests_sends(p.digests));
    look(&p, 100 * MS);
    assert_int_equal(p.records, CALLS + 3);
    ask(&p, ROLL_EXCERPT_CONCERNED, 2);
    look(&p, 100 * MS);
    assert_true(p.all);
    assert_true(roll_agent_digests_sends(p.digests));
    ask(&p, ROLL_EXCERPT_NARROW, 3); /* another one is sent at once */
    assert_true(roll_agent_digests_sends(p.digests));
    look(&p, 100 * MS);
    assert_false(roll_agent_digests_sends(p.digests));
    ask(&p, ROLL_EXCERPT_NARROW, 0);
    assert_false(roll_agent_digests_sends(p.digests));
    end(&p);
}

static void test_in_a_smaller_job_calls_that_follow_do_not_wait(void **state)
{
    (void)state;
    static struct place p;
    begin_of(&p, 8191);
    look(&p, 100 * MS);
    ask(&p, ROLL_EXCERPT_NARROW, 1);
    look(&p, 100 * MS);
    assert_true(p.all);
    assert_true(roll_agent_digests_sends(p.digests));
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_status_says_how_many_calls_were_made),
        cmocka_unit_test(test_a_digest_that_could_not_be_sent_is_told_anew),
        cmocka_unit_test(test_what_stands_at_the_end_is_told_at_once),
        cmocka_unit_test(test_a_hint_is_told_in_each_conversation),
        cmocka_unit_test(test_an_excerpt_begins_where_it_is_asked_to),
        cmocka_unit_test(test_calls_that_follow_wait_for_the_next_beat),
        cmocka_unit_test(test_in_a_smaller_job_calls_that_follow_do_not_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
