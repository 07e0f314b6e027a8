/*
 * test_far_numbers.c: numbers that come from outside and are far from each other: tickets 2^54 apart, collectives 2^31
 * apart, members by the million. Nothing walks from one to the other: whoever did would be caught by the alarm, and not
 * by a measurement of time.
 */
#include "daemon/digest/fold.h"
#include "daemon/digest/sum.h"
#include "daemon/feed/feed.h"
#include "tests/trace/cmocka_all.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS  2
#define ALARM  300 /* s; walking 2^40 numbers takes many minutes */
#define SECOND UINT64_C(1000000000)

static const uint64_t gaps[] = {70, 300, 5000, UINT64_C(1) << 20, UINT64_C(1) << 32, UINT64_C(1) << 54};
#define GAPS (sizeof(gaps) / sizeof(gaps[0]))

struct job {
    roll_feed_t *feed;
    uint64_t ticket[RANKS], now;
    uint32_t seq[RANKS];
};

static void give(struct job *j, struct roll_frame_head head, const void *payload, size_t bytes)
{
    static uint8_t raw[65536];
    struct roll_frame frame;
    assert_true(roll_frame_make(&head, payload, bytes, raw, sizeof(raw), &frame) > 0);
    assert_int_equal(roll_feed_frame(j->feed, &frame), 0);
}

static void define(struct job *j, unsigned rank, uint32_t id, uint64_t key, int32_t size)
{
    struct {
        struct roll_def_head head;
        struct roll_def_comm comm;
    } def = {.comm = {.key = key, .rank = (int32_t)rank, .nranks = size, .color = ROLL_COLOR_NONE, .origin = 1}};
    static uint64_t at[RANKS];
    at[rank] = id == 1 ? 0 : at[rank];
    def.head = (struct roll_def_head){.seal = 0x52440000u + ROLL_DEF_COMM, .bytes = sizeof(def), .id = id};
    give(j, (struct roll_frame_head){.type = ROLL_FRAME_DEFS, .stream = rank + 1, .first = at[rank]}, &def,
         sizeof(def));
    at[rank] += sizeof(def);
}

static int set_up(void **state)
{
    struct job *j = calloc(1, sizeof(*j));
    struct roll_engine_config config = {0};
    j->feed = roll_feed_new(&config, NULL, 0);
    j->now = 1000 * SECOND;
    assert_int_equal(roll_feed_tick(j->feed, j->now), 0);
    for (unsigned r = 0; r < RANKS; r++) {
        struct roll_ring_header h = {.version = ROLL_RING_VERSION,
                                     .oldest = ROLL_RING_OLDEST,
                                     .header_bytes = ROLL_RING_HEADER_BYTES,
                                     .record_bytes = ROLL_RECORD_BYTES,
                                     .capacity = 64,
                                     .world_rank = (int32_t)r,
                                     .world_size = RANKS,
                                     .local_rank = (int32_t)r,
                                     .epoch = r + 1,
                                     .job = "far"};
        memcpy(h.magic, ROLL_RING_MAGIC, sizeof(h.magic));
        h.static_crc = roll_crc32c(0, &h, offsetof(struct roll_ring_header, static_crc));
        give(j, (struct roll_frame_head){.type = ROLL_FRAME_RING, .stream = r + 1}, &h, sizeof(h));
        define(j, r, 1, 0x1000, RANKS);
    }
    *state = j;
    alarm(ALARM);
    return 0;
}

static int tear_down(void **state)
{
    struct job *j = *state;
    alarm(0);
    roll_feed_destroy(&j->feed);
    free(j);
    return 0;
}

static struct roll_record call_of(struct job *j, unsigned rank, uint64_t count, enum roll_state state)
{
    return (struct roll_record){.seal = roll_seal(j->ticket[rank]++, state),
                                .enter_ns = j->now,
                                .count = count,
                                .seq = j->seq[rank]++,
                                .peer = ROLL_PEER_NONE,
                                .step = ROLL_STEP_NONE,
                                .layer = ROLL_LAYER_NONE,
                                .comm = 1,
                                .stream = 1,
                                .thread = 1,
                                .op = ROLL_OP_ALLREDUCE,
                                .dtype = ROLL_DTYPE_FLOAT32};
}

static void feed_record(struct job *j, unsigned rank, const struct roll_record *rec)
{
    give(j,
         (struct roll_frame_head){.type = ROLL_FRAME_RECORDS,
                                  .stream = rank + 1,
                                  .first = roll_seal_ticket(rec->seal),
                                  .rec_size = sizeof(*rec),
                                  .count = 1},
         rec, sizeof(*rec));
}

static void call(struct job *j, unsigned rank, uint64_t count, enum roll_state state)
{
    struct roll_record rec = call_of(j, rank, count, state);
    feed_record(j, rank, &rec);
}

static void pass(struct job *j, uint64_t ns)
{
    for (uint64_t end = j->now + ns; j->now < end;) {
        j->now += SECOND / 10;
        assert_int_equal(roll_feed_tick(j->feed, j->now), 0);
    }
}

/* Findings, notes left out. */
static unsigned findings(struct job *j, enum roll_verdict_code *code)
{
    unsigned n = 0;
    struct roll_verdict_copy *v;
    while ((v = roll_feed_next(j->feed)) != NULL) {
        n += v->said.certainty != ROLL_NOTE;
        *code = v->said.certainty != ROLL_NOTE ? v->said.code : *code;
        roll_verdict_copy_destroy(&v);
    }
    return n;
}

/* Both ranks lose as much at the same place, one by one, in records, and by the end of a process. Then they are as they
 * were: a wrong call is found. */
static void test_gaps_between_tickets_are_no_way_to_go(void **state)
{
    struct job *j = *state;
    enum roll_verdict_code code = 0;
    for (size_t i = 0; i < GAPS; i++) {
        for (unsigned pending = 0; pending < 2; pending++) {
            for (unsigned n = 0; n < 20; n++) {
                call(j, 0, 64, ROLL_STATE_RETURNED);
                call(j, 1, 64, ROLL_STATE_RETURNED);
            }
            for (unsigned n = 0; n < pending * 3; n++) { /* calls that wait for an answer when the gap comes */
                call(j, 0, 64, ROLL_STATE_RETURNED);
            }
            j->seq[1] += pending * 3;
            j->ticket[0] += gaps[i];
            j->ticket[1] += gaps[i];
            call(j, 0, 64, ROLL_STATE_RETURNED);
            call(j, 1, 64, ROLL_STATE_RETURNED);
            pass(j, 2 * SECOND);
        }
    }
    assert_int_equal(findings(j, &code), 0);
    struct roll_feed_stream view;
    assert_true(roll_feed_stream(j->feed, 0, &view));
    assert_true(view.lost > (UINT64_C(1) << 54));
    call(j, 0, 64, ROLL_STATE_RETURNED);
    call(j, 1, 65, ROLL_STATE_RETURNED);
    for (unsigned n = 0; n < 3; n++) {
        call(j, 0, 64, ROLL_STATE_RETURNED);
        call(j, 1, 64, ROLL_STATE_RETURNED);
    }
    pass(j, 20 * SECOND);
    assert_int_equal(findings(j, &code), 1);
    assert_int_equal(code, ROLL_VERDICT_COUNT_MISMATCH);
}

/* Each record lies behind a gap, and of none it is known that it was answered. */
static void test_a_gap_before_each_record_costs_no_more_than_the_record(void **state)
{
    struct job *j = *state;
    enum roll_verdict_code code = 0;
    for (size_t i = 0; i < GAPS; i++) {
        for (unsigned n = 0; n < 20000 && j->ticket[0] < (UINT64_C(1) << 55) - gaps[i]; n++) {
            struct roll_record rec = call_of(j, 0, 64, n % 2 ? ROLL_STATE_ENTERED : ROLL_STATE_RETURNED);
            feed_record(j, 0, &rec);
            j->ticket[0] += gaps[i];
        }
    }
    pass(j, 10 * SECOND);
    assert_int_equal(findings(j, &code), 0);
}

static void test_the_end_of_a_process_may_lie_far_behind_its_records(void **state)
{
    struct job *j = *state;
    enum roll_verdict_code code = 0;
    call(j, 0, 64, ROLL_STATE_RETURNED);
    call(j, 1, 64, ROLL_STATE_RETURNED);
    for (unsigned r = 0; r < RANKS; r++) {
        struct roll_frame_status status = {.head = UINT64_MAX - 1, .proc_state = ROLL_PROC_FINISHED};
        give(j, (struct roll_frame_head){.type = ROLL_FRAME_STATUS, .stream = r + 1}, &status, sizeof(status));
    }
    pass(j, 10 * SECOND);
    assert_int_equal(roll_feed_finish(j->feed), 0);
    assert_int_equal(findings(j, &code), 0);
}

/* Numbers of collectives, on communicators of few and of very many members; and places where ranks come in. */
static void test_numbers_of_collectives_may_lie_far_apart(void **state)
{
    struct job *j = *state;
    for (unsigned big = 0; big < 2; big++) {
        define(j, 0, 2 + big, 0x2000 + big, big ? 1 << 16 : 2);
        define(j, 1, 2 + big, 0x2000 + big, big ? 1 << 16 : 2);
        for (unsigned n = 0; n < 3000; n++) {
            unsigned rank = n % 2;
            struct roll_record rec = call_of(j, rank, 64, ROLL_STATE_RETURNED);
            rec.comm = (uint16_t)(2 + big);
            rec.seq = n < 1000 ? n * 60 + rank : n < 2000 ? n * 100000 : UINT32_MAX - (n % 3);
            feed_record(j, rank, &rec);
        }
        pass(j, 5 * SECOND);
    }
}

/* The digests of a rank that says so. */
static void test_digests_of_far_numbers(void **state)
{
    (void)state;
    roll_fold_t *fold = roll_fold_new(SECOND);
    roll_sum_t *sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = SECOND, .is_root = true});
    struct roll_digest d = {0}, up = {0};
    struct roll_def_comm comm = {.key = 0x1000, .rank = 0, .nranks = 1 << 24};
    uint64_t now = SECOND;
    assert_int_equal(roll_fold_comm(fold, 1, &comm), 0);
    struct job j = {.now = SECOND};
    for (size_t i = 0; i < GAPS; i++) {
        for (unsigned n = 0; n < 3000; n++) {
            struct roll_record rec = call_of(&j, 0, 64, ROLL_STATE_RETURNED);
            rec.seq = n % 3 == 0 ? UINT32_MAX - (1u << 25) + n : n * 100003u;
            rec.op = n % 5 == 0 ? ROLL_OP_SEND : ROLL_OP_ALLREDUCE;
            rec.peer = n % 5 == 0 ? (int32_t)(n % 1000) : ROLL_PEER_NONE;
            assert_int_equal(roll_fold_record(fold, &rec, now++), 0);
            j.ticket[0] += gaps[i];
            roll_digest_clear(&d);
            roll_fold_cut(fold, now, &d);
            (void)roll_sum_take(sum, n % 7, &d, now);
            roll_digest_clear(&up);
            roll_sum_cut(sum, now, &up);
        }
    }
    for (unsigned n = 0; n < 3000; n++) { /* what no fold tells, and a liar might */
        roll_digest_clear(&d);
        roll_digest_add_front(&d, &(struct roll_digest_front){.key = n % 9 + 1,
                                                              .size = UINT32_MAX,
                                                              .members = n % 2 ? UINT32_MAX : 1,
                                                              .low = n % 3 ? 0 : UINT32_MAX,
                                                              .high = UINT32_MAX});
        roll_digest_add_window(&d, &(struct roll_digest_window){.key = n % 9 + 1, .hash = n, .window = UINT32_MAX - n});
        (void)roll_sum_take(sum, n % 7, &d, now);
        roll_digest_clear(&up);
        roll_sum_cut(sum, now += SECOND, &up);
        if (n % 5 == 0) {
            roll_sum_again(sum);
        }
    }
    roll_digest_fini(&d);
    roll_digest_fini(&up);
    roll_fold_destroy(&fold);
    roll_sum_destroy(&sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gaps_between_tickets_are_no_way_to_go, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_gap_before_each_record_costs_no_more_than_the_record, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_the_end_of_a_process_may_lie_far_behind_its_records, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_numbers_of_collectives_may_lie_far_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_digests_of_far_numbers, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
