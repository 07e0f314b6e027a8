/* test_agent_losses.c: what an agent cannot send of a ring is counted once, however often it begins a conversation. */
#include "tests/trace/cmocka_all.h"

#include "tests/daemon/synth.h"
#include "tests/trace/scratch.h"

#include "daemon/agent/agent_ring.h"

#include <string.h>

#define RECORDS 1024u
#define S       UINT64_C(1000000000)

struct place {
    char dir[64];
    struct synth rank;
    uint16_t comm;
    struct roll_agent_ring *ring;
    uint64_t seq, now;
    uint64_t next; /* behind the last record that came: what a root says in a new conversation */
    uint64_t came;
    uint8_t buffer[ROLL_AGENT_BATCH * ROLL_RECORD_BYTES];
};

static int take(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct place *p = ctx;
    struct roll_record last;
    if (head.type == ROLL_FRAME_RECORDS) {
        memcpy(&last, (const uint8_t *)payload + bytes - sizeof(last), sizeof(last));
        p->next = roll_seal_ticket(last.seal) + 1;
        p->came += head.count;
    }
    *seq = ++p->seq;
    return 0;
}

static void pump(struct place *p)
{
    struct roll_agent_out out = {.send = take, .ctx = p, .buffer = p->buffer};
    p->ring->upto = roll_agent_ring_head(p->ring);
    for (int turn = 0; turn < 8; turn++) {
        p->now += S;
        assert_true(roll_agent_ring_pump(p->ring, &out, p->now) >= 0);
    }
}

/* A conversation with a root that has what was sent before; digest: it wants digests from now on. */
static void converse(struct place *p, bool digest)
{
    struct roll_frame_ack ack = {.next_ticket = p->next};
    struct roll_frame frame = {.head = {.type = ROLL_FRAME_ACK, .payload = sizeof(ack), .first = p->next},
                               .payload = (const uint8_t *)&ack};
    p->ring->link = ROLL_LINK_NEW;
    pump(p);
    assert_int_equal(p->ring->link, ROLL_LINK_ANNOUNCED);
    frame.head.seq = p->seq;
    frame.head.flags = digest ? ROLL_ACK_DIGEST : 0;
    roll_agent_ring_ack(p->ring, &frame);
    assert_int_equal(p->ring->link, ROLL_LINK_LIVE);
    pump(p);
}

static void begin(struct place *p)
{
    memset(p, 0, sizeof(*p));
    p->now = S;
    scratch_make(p->dir);
    assert_int_equal(synth_open(&p->rank, p->dir, "losses", 0, 2, RECORDS), 0);
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

static void damage(struct place *p, uint64_t ticket)
{
    p->rank.ring.records[ticket & p->rank.ring.mask].dtype = 77;
}

static uint64_t lost(const struct place *p, enum roll_loss cause)
{
    return atomic_load(&p->rank.ring.header->losses[cause]);
}

static void test_a_bad_record_at_the_end_is_counted_once(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    damage(&p, calls(&p, 10));
    converse(&p, false);
    assert_int_equal(p.came, 9);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    converse(&p, false);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    assert_int_equal(p.came, 9);

    damage(&p, calls(&p, 3)); /* another one: behind what was counted, in one row with it */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    assert_int_equal(p.came, 11);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    end(&p);
}

static void test_records_that_were_overwritten_are_counted_once(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    calls(&p, RECORDS + 100);
    converse(&p, false);
    uint64_t overrun = lost(&p, ROLL_LOSS_OVERRUN);
    assert_true(overrun >= 100);
    assert_int_equal(p.came + overrun, RECORDS + 100);
    p.next = 0; /* a root that was started anew has nothing */
    p.came = 0;
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_OVERRUN), overrun);
    assert_int_equal(p.came + overrun, RECORDS + 100);
    end(&p);
}

/* A run that is compared by digests from now on is read from its beginning. */
static void test_what_was_counted_is_not_counted_by_digests_again(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    damage(&p, calls(&p, 10) - 4);
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    converse(&p, true);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    damage(&p, calls(&p, 1));
    pump(&p);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    end(&p);
}

/* The agent is started anew, and finds the ring as its predecessor left it. */
static void restart(struct place *p)
{
    roll_agent_ring_destroy(&p->ring);
    assert_int_equal(roll_agent_ring_new(p->rank.path, &p->ring), 0);
}

static void test_a_new_agent_counts_nothing_again(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    calls(&p, RECORDS + 100);
    damage(&p, calls(&p, 1));
    converse(&p, false);
    uint64_t overrun = lost(&p, ROLL_LOSS_OVERRUN), came = p.came;
    assert_true(overrun >= 100);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    restart(&p); /* the bad record lies behind the last one that came */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    assert_int_equal(p.came, came);
    restart(&p);
    p.next = 0; /* with a root that was started anew as well */
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_OVERRUN), overrun);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);

    restart(&p); /* what is written, and lost, meanwhile counts */
    calls(&p, 2 * RECORDS);
    damage(&p, calls(&p, 1));
    uint64_t before = p.came;
    converse(&p, false);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 2);
    assert_int_equal(p.came - before + lost(&p, ROLL_LOSS_OVERRUN) - overrun, 2 * RECORDS);
    end(&p);
}

/* Who writes a wild number there loses no more than what is there already. */
static void test_a_wild_word_hides_nothing_to_come(void **state)
{
    (void)state;
    struct place p;
    begin(&p);
    calls(&p, 10);
    atomic_store(&p.rank.ring.header->counted, UINT64_MAX);
    restart(&p);
    converse(&p, false);
    assert_int_equal(p.came, 10);
    damage(&p, calls(&p, 3));
    pump(&p);
    assert_int_equal(lost(&p, ROLL_LOSS_CORRUPT), 1);
    end(&p);
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
