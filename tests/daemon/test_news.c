/* test_news.c: when a glance at a ring finds reason for a look: what must not wait, and what may. */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_ring.h"
#include "daemon/base/clock.h"

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

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    (void)payload, (void)bytes;
    uint64_t *records = ctx;
    *seq = 1;
    records[0] += head.type == ROLL_FRAME_RECORDS ? head.count : 0;
    records[1] += head.type == ROLL_FRAME_UPDATES ? head.count : 0;
    return 0;
}

/* The link was cut in mid-run: what the root held as entered is looked at again, and that look ends. */
static void test_a_ring_that_travels_anew_has_no_news_when_all_is_sent(void **state)
{
    (void)state;
    struct place p;
    uint64_t records[2] = {0};
    uint8_t *buffer = malloc(ROLL_AGENT_BATCH * ROLL_RECORD_BYTES);
    struct roll_agent_out out = {take, records, buffer};
    struct roll_frame_ack ack = {.next_ticket = 5};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_ACK, .first = 3, .payload = sizeof(ack)},
                               .payload = (const uint8_t *)&ack};
    begin(&p);
    for (unsigned i = 0; i < 9; i++) {
        synth_allreduce(&p.rank, &(struct synth_call){.comm = p.comm, .count = 1});
    }
    uint64_t head = roll_agent_ring_head(p.ring);
    p.ring->link = ROLL_LINK_ANNOUNCED;
    roll_agent_ring_ack(p.ring, &frame);
    p.ring->upto = head;
    assert_true(roll_agent_ring_pump(p.ring, &out, roll_mono_ns()) > 0);
    assert_int_equal(records[0], head - 5);
    assert_int_equal(records[1], 2);
    assert_true(roll_agent_ring_drained(p.ring));
    assert_false(roll_agent_ring_has_news(p.ring, 0));
    end(&p);
    free(buffer);
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
        cmocka_unit_test(test_a_ring_that_travels_anew_has_no_news_when_all_is_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
