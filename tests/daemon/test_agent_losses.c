/* test_agent_losses.c: what an agent cannot send of a ring is counted once, however often it begins a conversation. */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/agent_talk.h"

#define RECORDS 1024u
#define S       UINT64_C(1000000000)

/* A conversation with a root that has what was sent before; digest: it wants digests from now on. */
static void converse(struct agent_talk *p, bool digest)
{
    agent_talk_converse(p, 8, S, p->next, p->next, digest ? ROLL_ACK_DIGEST : 0);
    agent_talk_pump(p, 8, S);
}

static void damage(struct agent_talk *p, uint64_t ticket)
{
    p->rank.ring.records[ticket & p->rank.ring.mask].dtype = 77;
}

static uint64_t lost(const struct agent_talk *p, enum roll_loss cause)
{
    return atomic_load(&p->rank.ring.header->losses[cause]);
}

static void test_a_bad_record_at_the_end_is_counted_once(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "losses", RECORDS);
    damage(&p, agent_talk_calls(&p, 10));
    converse(&p, false);
    assert_int_equal(p.came, 9);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    converse(&p, false);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    assert_int_equal(p.came, 9);

    damage(&p, agent_talk_calls(&p, 3)); /* another one: behind what was counted, in one row with it */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    assert_int_equal(p.came, 11);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    agent_talk_end(&p);
}

static void test_records_that_were_overwritten_are_counted_once(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "losses", RECORDS);
    agent_talk_calls(&p, RECORDS + 100);
    converse(&p, false);
    uint64_t overrun = lost(&p, ROLL_LOSS_OVERRUN);
    assert_true(overrun >= 100);
    assert_int_equal(p.came + overrun, RECORDS + 100);
    p.next = 0; /* a root that was started anew has nothing */
    p.came = 0;
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_OVERRUN), overrun);
    assert_int_equal(p.came + overrun, RECORDS + 100);
    agent_talk_end(&p);
}

/* A run that is compared by digests from now on is read from its beginning. */
static void test_what_was_counted_is_not_counted_by_digests_again(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "losses", RECORDS);
    damage(&p, agent_talk_calls(&p, 10) - 4);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    converse(&p, true);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    damage(&p, agent_talk_calls(&p, 1));
    agent_talk_pump(&p, 8, S);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    agent_talk_end(&p);
}

static void test_a_new_agent_counts_nothing_again(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "losses", RECORDS);
    agent_talk_calls(&p, RECORDS + 100);
    damage(&p, agent_talk_calls(&p, 1));
    converse(&p, false);
    uint64_t overrun = lost(&p, ROLL_LOSS_OVERRUN), came = p.came;
    assert_true(overrun >= 100);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    agent_talk_restart(&p); /* the bad record lies behind the last one that came */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    assert_int_equal(p.came, came);
    agent_talk_restart(&p);
    p.next = 0; /* with a root that was started anew as well */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_OVERRUN), overrun);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);

    agent_talk_restart(&p); /* what is written, and lost, meanwhile counts */
    agent_talk_calls(&p, 2 * RECORDS);
    damage(&p, agent_talk_calls(&p, 1));
    uint64_t before = p.came;
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    assert_int_equal(p.came - before + lost(&p, ROLL_LOSS_OVERRUN) - overrun, 2 * RECORDS);
    agent_talk_end(&p);
}

/* Who writes a wild number there loses no more than what is there already. */
static void test_a_wild_word_hides_nothing_to_come(void **state)
{
    (void)state;
    static struct agent_talk p;
    agent_talk_begin(&p, "losses", RECORDS);
    agent_talk_calls(&p, 10);
    atomic_store(&p.rank.ring.header->counted, UINT64_MAX);
    agent_talk_restart(&p);
    converse(&p, false);
    assert_int_equal(p.came, 10);
    damage(&p, agent_talk_calls(&p, 3));
    agent_talk_pump(&p, 8, S);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    agent_talk_end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_bad_record_at_the_end_is_counted_once),
        cmocka_unit_test(test_records_that_were_overwritten_are_counted_once),
        cmocka_unit_test(test_what_was_counted_is_not_counted_by_digests_again),
        cmocka_unit_test(test_a_new_agent_counts_nothing_again),
        cmocka_unit_test(test_a_wild_word_hides_nothing_to_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
