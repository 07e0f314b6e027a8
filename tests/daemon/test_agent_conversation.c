/*
 * test_agent_conversation.c: how a ring travels in one conversation with a root, and what begins anew in the next one:
 * the window, calls that return meanwhile, how the process has ended, and records that nobody will write any more.
 */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/agent_talk.h"

#include "trace/ring_write.h"

#define RECORDS 32768u
#define MS      UINT64_C(1000000)
#define MANY    (ROLL_AGENT_WINDOW + 4 * ROLL_AGENT_BATCH)

static void converse(struct agent_talk *p, uint64_t next, uint64_t open)
{
    agent_talk_converse(p, 1, MS, next, open, 0);
}

/* A call that is entered; the one before it is its model. */
static uint64_t enter(struct agent_talk *p)
{
    uint64_t ticket, model = agent_talk_calls(p, 1);
    struct roll_record *rec = roll_ring_reserve(&p->rank.ring, &ticket);
    uint64_t seal = rec->seal;
    *rec = p->rank.ring.records[model & p->rank.ring.mask];
    rec->seal = seal;
    rec->seq++;
    roll_ring_publish(rec, ticket, ROLL_STATE_ENTERED);
    return ticket;
}

static void leave(struct agent_talk *p, uint64_t ticket)
{
    roll_ring_return(&p->rank.ring, &p->rank.ring.records[ticket & p->rank.ring.mask], ticket, 1000, 0);
}

/* The process is gone, as the agent saw it. */
static void die(struct agent_talk *p)
{
    p->ring->gone = true;
    p->ring->gone_ns = p->now;
    p->ring->gone_head = roll_agent_ring_head(p->ring);
}

static void test_the_window_closes_and_opens_with_what_is_acknowledged(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_calls(&p, MANY);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 40, MS);
    assert_in_range(p.next, ROLL_AGENT_WINDOW, ROLL_AGENT_WINDOW + ROLL_AGENT_BATCH);
    agent_talk_acknowledge(&p, p.next, p.next, 0);
    agent_talk_pump(&p, 40, MS);
    assert_int_equal(p.next, MANY);
    agent_talk_end(&p);
}

static void test_an_end_is_told_behind_the_last_records_and_at_once(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_calls(&p, MANY);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 40, MS);
    die(&p);
    agent_talk_pump(&p, 40, 100 * MS);
    assert_true(p.next < MANY); /* the window is closed */
    assert_int_equal(p.ends, 0);
    agent_talk_acknowledge(&p, p.next, p.next, 0);
    agent_talk_pump(&p, 10, 10 * MS);
    assert_int_equal(p.next, MANY);
    assert_int_equal(p.ends, 1);
    agent_talk_end(&p);
}

static void test_an_end_without_news_is_told(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_calls(&p, 3);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 40, 100 * MS);
    assert_int_equal(p.ends, 0);
    die(&p);
    agent_talk_pump(&p, 10, 10 * MS); /* the launcher had its time to say more */
    assert_int_equal(p.ends, 1);
    agent_talk_end(&p);
}

static void test_a_ring_that_is_not_acknowledged_is_announced_again(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_pump(&p, 10, 10 * MS);
    assert_int_equal(p.rings, 1);
    agent_talk_pump(&p, 30, 100 * MS);
    assert_in_range(p.rings, 2, 3);
    agent_talk_end(&p);
}

static void test_what_a_dead_process_left_unsealed_is_given_up_at_once(void **state)
{
    (void)state;
    static struct agent_talk p;
    uint64_t ticket;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_calls(&p, 3);
    (void)roll_ring_reserve(&p.rank.ring, &ticket);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 3);
    die(&p);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 4);
    agent_talk_end(&p);
}

static void test_a_wild_head_is_waited_for_once(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    agent_talk_calls(&p, 3);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 5, MS);
    atomic_fetch_add(&p.rank.ring.header->head, 5000);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.ring->sent, 3);
    agent_talk_pump(&p, 12, 300 * MS);
    assert_int_equal(p.ring->sent, 5003);
    agent_talk_end(&p);
}

static void test_calls_that_were_open_are_told_when_they_return(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    uint64_t before = enter(&p), behind = enter(&p);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.next, behind + 1);
    leave(&p, before); /* between two conversations, and in the second one */
    converse(&p, p.next, before);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.updates, behind - before); /* and the call between them, of which nobody knows whether it was */
    leave(&p, behind);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.updates, behind - before + 1);
    assert_int_equal(p.update, behind);
    agent_talk_end(&p);
}

static void test_a_call_returns_once_in_a_conversation(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "talk", RECORDS);
    uint64_t ticket = enter(&p);
    converse(&p, 0, 0);
    agent_talk_pump(&p, 5, MS);
    converse(&p, 0, 0); /* with a root that has nothing: all of it is sent again */
    agent_talk_pump(&p, 5, MS);
    leave(&p, ticket);
    agent_talk_pump(&p, 5, MS);
    assert_int_equal(p.updates, 1);
    assert_int_equal(p.update, ticket);
    agent_talk_end(&p);
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
