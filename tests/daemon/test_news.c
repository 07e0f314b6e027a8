/* test_news.c: when a glance at a ring finds reason for a look: what must not wait, and what may. */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_ring.h"

#define RECORDS 1024u
#define MANY    (RECORDS / 4)

struct place {
    char dir[64];
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring; /* everything of it is sent */
};

static void begin(struct place *p)
{
    scratch_make(p->dir);
    assert_int_equal(synth_open(&p->rank, p->dir, "news", 0, 2, RECORDS), 0);
    p->comm = synth_comm(&p->rank, 7);
    assert_int_equal(roll_agent_ring_new(p->rank.path, &p->ring), 0);
    p->ring->link = ROLL_LINK_LIVE;
    p->ring->status.proc_state = ROLL_PROC_RUNNING;
}

static void end(struct place *p)
{
    roll_agent_ring_destroy(&p->ring);
    synth_close(&p->rank);
    scratch_remove(p->dir);
}

static void sent(struct place *p)
{
    p->ring->sent = p->ring->acked = p->ring->upto = roll_agent_ring_head(p->ring);
}

static void test_a_record_is_news(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    sent(&p);
    assert_false(roll_agent_ring_has_news(p.ring, 0));
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    assert_true(roll_agent_ring_has_news(p.ring, 0));
    sent(&p);
    assert_false(roll_agent_ring_has_news(p.ring, 0));
    end(&p);
}

/* A ring that is only folded is read before it is full, and else with the next heartbeat. */
static void test_records_that_may_wait_do_until_they_are_many(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    sent(&p);
    for (unsigned i = 0; i < MANY; i++) {
        synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    }
    assert_false(roll_agent_ring_has_news(p.ring, MANY));
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    assert_true(roll_agent_ring_has_news(p.ring, MANY));
    end(&p);
}

static void test_a_call_that_returns_is_news(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    uint64_t ticket = synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1, .hang = true});
    sent(&p);
    p.ring->pending[p.ring->pending_used++] = ticket;
    assert_false(roll_agent_ring_has_news(p.ring, 0));
    synth_return(&p.rank, ticket);
    assert_true(roll_agent_ring_has_news(p.ring, 0));
    assert_false(roll_agent_ring_has_news(p.ring, MANY));
    end(&p);
}

static void test_a_call_that_is_complete_is_news(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    sent(&p);
    atomic_store(&p.ring->map.header->done[3], 1);
    assert_false(roll_agent_ring_has_news(p.ring, 0)); /* nothing is noted as complete in this job */
    atomic_store(&p.ring->map.header->completion, ROLL_COMPLETION_WRITE);
    assert_true(roll_agent_ring_has_news(p.ring, 0));
    end(&p);
}

static void test_an_end_that_is_not_told_never_waits(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    sent(&p);
    p.ring->gone = true;
    assert_true(roll_agent_ring_has_news(p.ring, MANY));
    p.ring->status.proc_state = ROLL_PROC_DEAD;
    assert_false(roll_agent_ring_has_news(p.ring, MANY));
    end(&p);
}

static void test_a_ring_is_announced_and_then_waits_for_the_answer(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    p.ring->link = ROLL_LINK_NEW;
    assert_true(roll_agent_ring_has_news(p.ring, 0));
    p.ring->link = ROLL_LINK_ANNOUNCED;
    assert_false(roll_agent_ring_has_news(p.ring, 0));
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_is_news),
        cmocka_unit_test(test_records_that_may_wait_do_until_they_are_many),
        cmocka_unit_test(test_a_call_that_returns_is_news),
        cmocka_unit_test(test_a_call_that_is_complete_is_news),
        cmocka_unit_test(test_an_end_that_is_not_told_never_waits),
        cmocka_unit_test(test_a_ring_is_announced_and_then_waits_for_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
