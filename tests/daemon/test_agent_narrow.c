/*
 * test_agent_narrow.c: what an agent sends where the calls on some communicators alone are asked for
 * (daemon/agent/agent_narrow.c): from where on, under which numbers, behind what is lost, and again where it could not
 * be sent. The ring is an array here; how whole jobs are judged so: test_digest_cases.c and `roll_sim --narrow`.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/agent/agent_digest_state.h"
#include "daemon/agent/agent_ring.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>

#define COMMS  3u
#define ROUND  4u /* tickets: a call on each communicator, and a message */
#define ROUNDS 40u
#define ALL    (ROUNDS * ROUND)
#define KEY(c) (100u * (c))

/* What was sent. */
struct sent {
    struct roll_frame_head head;
    struct roll_record rec[ROLL_AGENT_BATCH];
    unsigned frames;
    bool full; /* nothing can be sent */
};

static struct roll_record ring[2 * ALL];
static struct sent sent;
static struct folded f;
static struct folded_run run;
static struct roll_agent_ring copy;
static struct roll_agent_digests digests;
static struct roll_frame_want want[COMMS];

static int send_frame(void *ctx, struct roll_frame_head head, const void *payload, size_t bytes, uint64_t *seq)
{
    struct sent *s = ctx;
    if (s->full) {
        return ROLL_E_BUSY;
    }
    assert_int_equal(bytes, head.count * sizeof(s->rec[0]));
    s->head = head;
    memcpy(s->rec, payload, bytes);
    *seq = ++s->frames;
    return 0;
}

/* Ticket t: in each round a call on communicator 1, one on 2, a message on 1, and a call on 3. */
static struct roll_record record(uint64_t t)
{
    static const uint16_t comm[ROUND] = {1, 2, 1, 3};
    bool message = t % ROUND == 2;
    return (struct roll_record){.seal = roll_seal(t, ROLL_STATE_RETURNED),
                                .enter_ns = 1000 + t,
                                .count = 8,
                                .seq = (uint32_t)(t / ROUND),
                                .peer = message ? 1 : ROLL_PEER_NONE,
                                .comm = comm[t % ROUND],
                                .stream = 1,
                                .thread = 1,
                                .layer = ROLL_LAYER_NONE,
                                .op = message ? ROLL_OP_SEND : ROLL_OP_ALLREDUCE,
                                .redop = message ? ROLL_RED_NONE : ROLL_RED_SUM};
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct roll_record *rec = from;
    *out = rec[ticket];
    return roll_seal_state(out->seal) != ROLL_STATE_EMPTY;
}

static int set_up(void **state)
{
    (void)state;
    memset(&sent, 0x5a, sizeof(sent));
    sent.frames = 0;
    sent.full = false;
    f = (struct folded){.fold = roll_fold_new(UINT64_C(3600000000000)), .copy = &copy, .next = ALL};
    f.comm = calloc(COMMS, sizeof(*f.comm));
    copy = (struct roll_agent_ring){.sent = 1, .acked = 1};
    memset(want, 0, sizeof(want));
    run = (struct folded_run){.want = want, .ask = {.scope = ROLL_EXCERPT_NARROW}};
    digests = (struct roll_agent_digests){.send = send_frame, .ctx = &sent};
    if (!f.fold || !f.comm) {
        return -1;
    }
    for (uint16_t c = 1; c <= COMMS; c++) {
        struct roll_def_comm info = {.key = KEY(c), .rank = 0, .nranks = 2};
        f.comm[f.comms++] = (struct comm_of_ring){.key = KEY(c), .id = c};
        if (roll_fold_comm(f.fold, c, &info) != 0) {
            return -1;
        }
    }
    for (uint64_t t = 0; t < 2 * ALL; t++) {
        ring[t] = record(t);
        if (t < ALL && roll_fold_record(f.fold, &ring[t], t) != 0) {
            return -1;
        }
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    roll_agent_narrow_end(&f);
    assert_null(f.narrow);
    roll_fold_destroy(&f.fold);
    free(f.comm);
    free(f.place);
    return 0;
}

/* Names communicator c, from call `low` on. */
static void name(uint32_t c, uint32_t low)
{
    want[run.ask.wants++] = (struct roll_frame_want){.key = KEY(c), .low = low};
}

static void begin(uint64_t oldest)
{
    struct roll_excerpt_records records = {.from = ring, .record = record_of, .oldest = oldest, .next = ALL};
    assert_true(roll_agent_narrow_is_asked(&run));
    assert_int_equal(roll_agent_narrow_begin(&run, &f, &records), 0);
    assert_int_equal(f.end, ALL);
    assert_int_equal(copy.sent, f.begin);
    assert_int_equal(copy.acked, f.begin);
}

static void expect_place(size_t i, uint16_t comm, uint32_t next)
{
    assert_true(i < f.places);
    assert_int_equal(f.place[i].comm, comm);
    assert_int_equal(f.place[i].op, ROLL_OP_NONE);
    assert_int_equal(f.place[i].next, next);
}

/* Sends tickets first .. upto - 1 of the ring, but for those that were lost. Returns what that gives. */
static int give(enum roll_frame_type type, uint64_t first, uint64_t upto)
{
    static struct roll_record recs[2 * ALL];
    struct roll_frame_head head = {.type = (uint16_t)type, .stream = 7, .first = first};
    struct turn turn = {.d = &digests, .f = &f};
    uint64_t seq = 99;
    for (uint64_t t = first; t < upto; t++) {
        if (roll_seal_state(ring[t].seal) != ROLL_STATE_EMPTY) {
            recs[head.count++] = ring[t];
        }
    }
    unsigned before = sent.frames;
    int err = roll_agent_narrow_send(&turn, head, recs, &seq);
    assert_int_equal(seq, sent.frames > before ? sent.frames : 0);
    return err;
}

/* The i-th record that was sent last is call `seq` on communicator `comm`, under this number. */
static void expect(uint32_t i, uint64_t number, uint16_t comm, uint32_t seq)
{
    assert_true(i < sent.head.count);
    assert_int_equal(roll_seal_ticket(sent.rec[i].seal), number);
    assert_int_equal(sent.rec[i].comm, comm);
    assert_int_equal(sent.rec[i].seq, seq);
    assert_int_equal(sent.rec[i].op, ROLL_OP_ALLREDUCE);
}

static void lose(uint64_t first, uint64_t upto)
{
    for (uint64_t t = first; t < upto; t++) {
        ring[t].seal = 0;
    }
}

static void test_it_begins_some_calls_before_the_first_that_is_wanted(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    begin(0);
    assert_int_equal(f.begin, 26 * ROUND);
    assert_false(f.lacks);
    assert_int_equal(f.places, 1); /* where it stands elsewhere, and in messages, nobody asks */
    expect_place(0, 1, 26);
}

static void test_of_two_communicators_the_older_call_decides(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    name(3, 12);
    begin(0);
    assert_int_equal(f.begin, 8 * ROUND + 3);
    assert_int_equal(f.places, 2);
    expect_place(0, 1, 26); /* nobody wants those before it, though they lie behind the beginning */
    expect_place(1, 3, 8);
    assert_false(f.lacks);
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, ALL), 0);
    assert_int_equal(sent.head.count, (ROUNDS - 8) + (ROUNDS - 26));
    expect(0, f.begin, 3, 8);
    expect(18, f.begin + 18, 1, 26);
    expect(19, f.begin + 19, 3, 26);
}

static void test_what_the_ring_does_not_hold_is_told_of(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    begin(33 * ROUND + 1); /* which is behind call 33 */
    assert_int_equal(f.begin, 34 * ROUND);
    expect_place(0, 1, 34);
    assert_true(f.lacks);
}

static void test_no_more_is_read_back_than_the_root_takes(void **state)
{
    (void)state;
    run.ask.history = 4;
    run.ask.most = 6;
    name(1, 0);
    begin(0);
    assert_int_equal(f.begin, (ROUNDS - 6) * ROUND);
    expect_place(0, 1, ROUNDS - 6);
    assert_true(f.lacks);
}

/* A rank that is ahead sends the calls around the place, and not those of the seconds since. */
static void test_it_ends_behind_the_last_that_is_wanted(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 10);
    want[0].high = 20;
    begin(0);
    assert_int_equal(f.begin, 6 * ROUND);
    assert_false(f.lacks);
    assert_false(roll_agent_narrow_is_full(&f, UINT64_MAX));
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 20 * ROUND), 0);
    assert_int_equal(sent.head.count, 14);
    expect(0, 6 * ROUND, 1, 6);
    expect(13, 6 * ROUND + 13, 1, 19);
    assert_false(roll_agent_narrow_is_full(&f, UINT64_MAX));
    assert_int_equal(give(ROLL_FRAME_RECORDS, 20 * ROUND, ALL), 0);
    assert_int_equal(sent.frames, 1);
    assert_true(roll_agent_narrow_is_full(&f, UINT64_MAX));
}

/* Of two communicators it ends when both have been passed. */
static void test_it_is_full_when_all_are_passed(void **state)
{
    (void)state;
    name(1, 10);
    name(3, 30);
    want[0].high = 12;
    want[1].high = 35;
    begin(0);
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 35 * ROUND + 1), 0);
    assert_int_equal(sent.head.count, 2 + 5);
    assert_false(roll_agent_narrow_is_full(&f, UINT64_MAX));
    assert_int_equal(give(ROLL_FRAME_RECORDS, 35 * ROUND + 1, 36 * ROUND), 0);
    assert_true(roll_agent_narrow_is_full(&f, UINT64_MAX));
}

/* A rank that is behind comes to the place as the others do: its calls until then are not sent, and count as made. */
static void test_a_rank_that_is_behind_comes_to_the_place(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, ROUNDS + 20);
    want[0].high = ROUNDS + 22;
    begin(0);
    assert_int_equal(f.begin, ALL);
    assert_int_equal(roll_agent_narrow_first(&f), ALL);
    expect_place(0, 1, ROUNDS + 16);
    assert_false(f.lacks);
    assert_int_equal(give(ROLL_FRAME_RECORDS, ALL, ALL + 16 * ROUND), 0);
    assert_int_equal(sent.frames, 0);
    assert_false(roll_agent_narrow_is_full(&f, 6));
    assert_int_equal(give(ROLL_FRAME_RECORDS, ALL + 16 * ROUND, ALL + 22 * ROUND), 0);
    assert_int_equal(sent.head.count, 6);
    expect(0, ALL, 1, ROUNDS + 16);
    expect(5, ALL + 5, 1, ROUNDS + 21);
    assert_false(roll_agent_narrow_is_full(&f, 7));
    assert_true(roll_agent_narrow_is_full(&f, 6));  /* as many as may follow, */
    assert_false(roll_agent_narrow_has_passed(&f)); /* and calls that are wanted may be behind these */
    assert_int_equal(give(ROLL_FRAME_RECORDS, ALL + 22 * ROUND, ALL + 23 * ROUND), 0);
    assert_int_equal(sent.frames, 1);
    assert_true(roll_agent_narrow_is_full(&f, 7));
    assert_true(roll_agent_narrow_has_passed(&f));
}

/* A ring in which there is nothing yet: what stands before number 0 would be passed over by the root. */
static void test_a_rank_without_calls_has_a_place(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 20);
    roll_fold_destroy(&f.fold);
    f.fold = roll_fold_new(UINT64_C(3600000000000));
    struct roll_def_comm info = {.key = KEY(1), .rank = 0, .nranks = 2};
    assert_int_equal(roll_fold_comm(f.fold, 1, &info), 0);
    f.next = 0;
    struct roll_excerpt_records records = {.from = ring, .record = record_of};
    assert_int_equal(roll_agent_narrow_begin(&run, &f, &records), 0);
    assert_int_equal(f.begin, 0);
    assert_int_equal(copy.sent, 0);
    assert_int_equal(roll_agent_narrow_first(&f), 1);
    expect_place(0, 1, 16);
    assert_int_equal(give(ROLL_FRAME_RECORDS, 0, 17 * ROUND), 0);
    assert_int_equal(sent.head.count, 1);
    expect(0, 1, 1, 16);
}

static void test_numbers_have_no_gap_but_for_what_is_lost(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    begin(0);
    assert_int_equal(give(ROLL_FRAME_RECORDS, 26 * ROUND, 32 * ROUND), 0);
    assert_int_equal(sent.head.count, 6);
    assert_int_equal(sent.head.first, 26 * ROUND);
    assert_int_equal(sent.head.stream, 7);
    for (uint32_t i = 0; i < 6; i++) {
        expect(i, 26 * ROUND + i, 1, 26 + i);
    }
    /* A frame with nothing of it is none; and one of four lost records was such a call, which only the ring knew. */
    lose(33 * ROUND, 34 * ROUND);
    unsigned before = sent.frames;
    assert_int_equal(give(ROLL_FRAME_RECORDS, 32 * ROUND + 1, 33 * ROUND), 0);
    assert_int_equal(sent.frames, before);
    assert_int_equal(give(ROLL_FRAME_RECORDS, 34 * ROUND, 36 * ROUND), 0);
    assert_int_equal(sent.head.count, 2);
    expect(0, 26 * ROUND + 6 + 2, 1, 34); /* a number is left out for each of the two gaps */
    expect(1, 26 * ROUND + 6 + 3, 1, 35);
    assert_int_equal(sent.head.first, 26 * ROUND + 8);
    assert_false(roll_agent_narrow_is_full(&f, 1));
    assert_int_equal(give(ROLL_FRAME_RECORDS, 36 * ROUND, 42 * ROUND), 0);
    assert_int_equal(sent.head.count, 6);
    assert_true(roll_agent_narrow_is_full(&f, 2)); /* 40 and 41 were written behind its beginning */
    assert_false(roll_agent_narrow_is_full(&f, 3));
}

static void test_updates_bear_the_numbers_of_their_records(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    begin(0);
    lose(28 * ROUND, 29 * ROUND);
    assert_int_equal(give(ROLL_FRAME_RECORDS, 26 * ROUND, 32 * ROUND), 0);
    ring[30 * ROUND].seal = roll_seal(30 * ROUND, ROLL_STATE_COMPLETE);
    ring[28 * ROUND].seal = roll_seal(28 * ROUND, ROLL_STATE_RETURNED); /* which nobody was sent */
    assert_int_equal(give(ROLL_FRAME_UPDATES, 27 * ROUND, 31 * ROUND), 0);
    assert_int_equal(sent.head.type, ROLL_FRAME_UPDATES);
    assert_int_equal(sent.head.count, 3);
    expect(0, 26 * ROUND + 1, 1, 27);
    expect(1, 26 * ROUND + 3, 1, 29); /* behind the gap, whose number has no record */
    expect(2, 26 * ROUND + 4, 1, 30);
    assert_int_equal(roll_seal_state(sent.rec[2].seal), ROLL_STATE_COMPLETE);
    unsigned before = sent.frames;
    assert_int_equal(give(ROLL_FRAME_UPDATES, 27 * ROUND + 1, 28 * ROUND), 0);
    assert_int_equal(sent.frames, before);
}

static void test_what_was_not_sent_is_sent_again_alike(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 36);
    begin(0);
    lose(38 * ROUND, 39 * ROUND);
    sent.full = true;
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 41 * ROUND), ROLL_E_BUSY);
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 41 * ROUND), ROLL_E_BUSY);
    assert_false(roll_agent_narrow_is_full(&f, 1));
    sent.full = false;
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 41 * ROUND), 0);
    assert_int_equal(sent.head.count, 8);
    expect(5, f.begin + 5, 1, 37);
    expect(6, f.begin + 7, 1, 39);
    expect(7, f.begin + 8, 1, 40);
    assert_true(roll_agent_narrow_is_full(&f, 1));
    assert_false(roll_agent_narrow_is_full(&f, 2));
}

/* The end has been read, and could not be sent: the ring is not done with. */
static void test_the_end_that_was_not_sent_is_not_passed(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 36);
    want[0].high = 38;
    begin(0);
    sent.full = true;
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 40 * ROUND), ROLL_E_BUSY);
    assert_false(roll_agent_narrow_is_full(&f, UINT64_MAX));
    sent.full = false;
    assert_int_equal(give(ROLL_FRAME_RECORDS, f.begin, 40 * ROUND), 0);
    assert_int_equal(sent.head.count, 6);
    assert_true(roll_agent_narrow_is_full(&f, UINT64_MAX));
}

/* More than a reader gives at a time has no room here, and is refused as a whole. */
static void test_a_frame_that_is_too_large_is_refused(void **state)
{
    (void)state;
    run.ask.history = 4;
    name(1, 30);
    begin(0);
    struct roll_frame_head head = {.type = ROLL_FRAME_RECORDS, .count = ROLL_AGENT_BATCH + 1};
    struct turn turn = {.d = &digests, .f = &f};
    uint64_t seq;
    assert_int_equal(roll_agent_narrow_send(&turn, head, ring, &seq), ROLL_E_SIZE);
    assert_int_equal(sent.frames, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_it_begins_some_calls_before_the_first_that_is_wanted),
        TEST(test_of_two_communicators_the_older_call_decides),
        TEST(test_what_the_ring_does_not_hold_is_told_of),
        TEST(test_no_more_is_read_back_than_the_root_takes),
        TEST(test_it_ends_behind_the_last_that_is_wanted),
        TEST(test_it_is_full_when_all_are_passed),
        TEST(test_a_rank_that_is_behind_comes_to_the_place),
        TEST(test_a_rank_without_calls_has_a_place),
        TEST(test_numbers_have_no_gap_but_for_what_is_lost),
        TEST(test_updates_bear_the_numbers_of_their_records),
        TEST(test_what_was_not_sent_is_sent_again_alike),
        TEST(test_the_end_that_was_not_sent_is_not_passed),
        TEST(test_a_frame_that_is_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
