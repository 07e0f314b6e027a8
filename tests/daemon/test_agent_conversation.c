/*
 * test_agent_conversation.c: how a ring travels in one conversation with a root, and what begins anew in the next one:
 * the window, calls that return meanwhile, how the process has ended, and records that nobody will write any more.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_ring.h"
#include "trace/ring_write.h"

#include <string.h>

#define RECORDS 32768u
#define MS      UINT64_C(1000000)
#define MANY    (ROLL_AGENT_WINDOW + 4 * ROLL_AGENT_BATCH)

struct place {
    char dir[64];
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring;
    uint64_t seq, now;
    uint64_t next;                         /* behind the last record that came */
    uint64_t updates, update, rings, ends; /* that came: of calls, the last of them, RING, and STATUS of an end */
    uint8_t buffer[ROLL_AGENT_BATCH * ROLL_RECORD_BYTES];
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct place *p = ctx;
    struct roll_record last;
    struct roll_frame_status status;
    if (head.type == ROLL_FRAME_RECORDS || head.type == ROLL_FRAME_UPDATES) {
        memcpy(&last, (const uint8_t *)payload + bytes - sizeof(last), sizeof(last));
        uint64_t ticket = roll_seal_ticket(last.seal);
        bool updates = head.type == ROLL_FRAME_UPDATES;
        p->next = updates ? p->next : ticket + 1;
        p->update = updates ? ticket : p->update;
        p->updates += updates ? head.count : 0;
    } else if (head.type == ROLL_FRAME_STATUS) {
        memcpy(&status, payload, sizeof(status));
        p->ends += status.proc_state == ROLL_PROC_DEAD || status.proc_state == ROLL_PROC_FINISHED;
    }
    p->rings += head.type == ROLL_FRAME_RING;
    *seq = ++p->seq;
    return 0;
}

static void pump(struct place *p, int turns, uint64_t step_ns)
{
    struct roll_agent_out out = {.send = take, .ctx = p, .buffer = p->buffer};
    for (int turn = 0; turn < turns; turn++) {
        p->now += step_ns;
        p->ring->upto = roll_agent_ring_head(p->ring);
        assert_true(roll_agent_ring_pump(p->ring, &out, p->now) >= 0);
    }
}

/* The root has read up to this ticket; `open`: the first call that it knows as entered. */
static void acknowledge(struct place *p, uint64_t next, uint64_t open)
{
    struct roll_frame_ack ack = {.next_ticket = next};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_ACK, .payload = sizeof(ack), .first = open, .seq = p->seq},
                               .payload = (const uint8_t *)&ack};
    roll_agent_ring_ack(p->ring, &frame);
}

static void converse(struct place *p, uint64_t next, uint64_t open)
{
    p->ring->link = ROLL_LINK_NEW;
    pump(p, 1, MS);
    acknowledge(p, next, open);
    assert_int_equal(p->ring->link, ROLL_LINK_LIVE);
}

static void begin(struct place *p)
{
    memset(p, 0, sizeof(*p));
    p->now = 1000 * MS;
    scratch_make(p->dir);
    assert_int_equal(synth_open(&p->rank, p->dir, "talk", 0, 2, RECORDS), 0);
    p->comm = synth_comm(&p->rank, 7);
    assert_int_equal(roll_agent_ring_new(p->rank.path, &p->ring), 0);
}

static void end(struct place *p)
{
    roll_agent_ring_destroy(&p->ring);
    synth_close(&p->rank);
    scratch_remove(p->dir);
}

static uint64_t calls(struct place *p, unsigned n)
{
    uint64_t ticket = 0;
    for (unsigned i = 0; i < n; i++) {
        ticket = synth_allreduce(&p->rank, &(struct synth_call){.comm = p->comm, .count = 1});
    }
    return ticket;
}

/* A call that is entered; the one before it is its model. */
static uint64_t enter(struct place *p)
{
    uint64_t ticket, model = calls(p, 1);
    struct roll_record *rec = roll_ring_reserve(&p->rank.ring, &ticket);
    uint64_t seal = rec->seal;
    *rec = p->rank.ring.records[model & p->rank.ring.mask];
    rec->seal = seal;
    rec->seq++;
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    return ticket;
}

static void leave(struct place *p, uint64_t ticket)
{
    roll_ring_return(&p->rank.ring, &p->rank.ring.records[ticket & p->rank.ring.mask], ticket, 1000, 0);
}

/* The process is gone, as the agent saw it. */
static void die(struct place *p)
{
    p->ring->gone = true;
    p->ring->gone_ns = p->now;
    p->ring->gone_head = roll_agent_ring_head(p->ring);
}

static void test_the_window_closes_and_opens_with_what_is_acknowledged(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    calls(&p, MANY);
    converse(&p, 0, 0);
    pump(&p, 40, MS);
    assert_in_range(p.next, ROLL_AGENT_WINDOW, ROLL_AGENT_WINDOW + ROLL_AGENT_BATCH);
    acknowledge(&p, p.next, p.next);
    pump(&p, 40, MS);
    assert_int_equal(p.next, MANY);
    end(&p);
}

static void test_an_end_is_told_behind_the_last_records_and_at_once(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    calls(&p, MANY);
    converse(&p, 0, 0);
    pump(&p, 40, MS);
    die(&p);
    pump(&p, 40, 100 * MS);
    assert_true(p.next < MANY); /* the window is closed */
    assert_int_equal(p.ends, 0);
    acknowledge(&p, p.next, p.next);
    pump(&p, 10, 10 * MS);
    assert_int_equal(p.next, MANY);
    assert_int_equal(p.ends, 1);
    end(&p);
}

static void test_an_end_without_news_is_told(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    calls(&p, 3);
    converse(&p, 0, 0);
    pump(&p, 40, 100 * MS);
    assert_int_equal(p.ends, 0);
    die(&p);
    pump(&p, 10, 10 * MS); /* the launcher had its time to say more */
    assert_int_equal(p.ends, 1);
    end(&p);
}

static void test_a_ring_that_is_not_acknowledged_is_announced_again(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    pump(&p, 10, 10 * MS);
    assert_int_equal(p.rings, 1);
    pump(&p, 30, 100 * MS);
    assert_in_range(p.rings, 2, 3);
    end(&p);
}

static void test_what_a_dead_process_left_unsealed_is_given_up_at_once(void **state)
{
    (void)state;
    static struct place p;
    uint64_t ticket;
    begin(&p);
    calls(&p, 3);
    (void)roll_ring_reserve(&p.rank.ring, &ticket);
    converse(&p, 0, 0);
    pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 3);
    die(&p);
    pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 4);
    end(&p);
}

static void test_a_wild_head_is_waited_for_once(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    calls(&p, 3);
    converse(&p, 0, 0);
    pump(&p, 5, MS);
    atomic_fetch_add(&p.rank.ring.header->head, 5000);
    pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 3);
    pump(&p, 12, 300 * MS);
    assert_int_equal(p.ring->sent, 5003);
    end(&p);
}

static void test_calls_that_were_open_are_told_when_they_return(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    uint64_t before = enter(&p), behind = enter(&p);
    converse(&p, 0, 0);
    pump(&p, 5, MS);
    assert_int_equal(p.next, behind + 1);
    leave(&p, before); /* between two conversations, and in the second one */
    converse(&p, p.next, before);
    pump(&p, 5, MS);
    assert_int_equal(p.updates, behind - before); /* and the call between them, of which nobody knows whether it was */
    leave(&p, behind);
    pump(&p, 5, MS);
    assert_int_equal(p.updates, behind - before + 1);
    assert_int_equal(p.update, behind);
    end(&p);
}

static void test_a_call_returns_once_in_a_conversation(void **state)
{
    (void)state;
    static struct place p;
    begin(&p);
    uint64_t ticket = enter(&p);
    converse(&p, 0, 0);
    pump(&p, 5, MS);
    converse(&p, 0, 0); /* with a root that has nothing: all of it is sent again */
    pump(&p, 5, MS);
    leave(&p, ticket);
    pump(&p, 5, MS);
    assert_int_equal(p.updates, 1);
    assert_int_equal(p.update, ticket);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_window_closes_and_opens_with_what_is_acknowledged),
        cmocka_unit_test(test_an_end_is_told_behind_the_last_records_and_at_once),
        cmocka_unit_test(test_an_end_without_news_is_told),
        cmocka_unit_test(test_a_ring_that_is_not_acknowledged_is_announced_again),
        cmocka_unit_test(test_what_a_dead_process_left_unsealed_is_given_up_at_once),
        cmocka_unit_test(test_a_wild_head_is_waited_for_once),
        cmocka_unit_test(test_calls_that_were_open_are_told_when_they_return),
        cmocka_unit_test(test_a_call_returns_once_in_a_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
