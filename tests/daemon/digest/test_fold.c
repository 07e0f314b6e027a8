/*
 * test_fold.c: what one rank tells: calls that were refused, records that were lost, hosts that stay inside a call or
 * call nothing, and how far back an excerpt of its records reaches.
 */
#include "tests/daemon/digest/folded_rank.h"

#include "daemon/digest/excerpt.h"
#include "trace/err.h"

#include <stdlib.h>

static void refused_call(struct folded_rank *r)
{
    struct roll_record rec = folded_reduce(r->seq, 999);
    folded_feed(r, rec, ROLL_STATE_ENTERED);
    rec = r->rec[r->next - 1];
    rec.seal = roll_seal(r->next - 1, ROLL_STATE_RETURNED);
    rec.result = 4;
    assert_int_equal(roll_fold_record(r->fold, &rec, 0), 0);
}

/* A refused call gives its number back: two ranks agree although one of them has made a call that NCCL refused. */
static void a_refused_call_leaves_no_trace_in_the_hash(void **state)
{
    (void)state;
    struct folded_rank r[2];
    struct roll_digest d[2] = {{0}, {0}};
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
        folded_calls(&r[i], 10);
        if (i == 1) {
            refused_call(&r[i]);
        }
        folded_calls(&r[i], 100);
        roll_fold_cut(r[i].fold, 100 * MS, &d[i]);
    }
    assert_int_equal(d[0].windows, 2); /* the first one, and a check point in the second */
    assert_int_equal(d[1].windows, 2);
    assert_true(d[0].window[0].hash == d[1].window[0].hash);
    assert_true(d[0].window[1].hash == d[1].window[1].hash && d[0].window[1].calls == d[1].window[1].calls);
    assert_true(d[0].front[0].hash == d[1].front[0].hash);
    assert_int_equal(d[0].hints, 0);
    assert_int_equal(d[1].hints, 1);
    assert_int_equal(d[1].hint[0].why, ROLL_HINT_REFUSED);
    for (uint32_t i = 0; i < 2; i++) {
        roll_digest_fini(&d[i]);
        roll_fold_destroy(&r[i].fold);
    }
}

/* And it is no call at which a rank stands. */
static void a_refused_call_is_not_where_a_rank_is(void **state)
{
    (void)state;
    struct folded_rank r[2];
    struct roll_digest d[2] = {{0}, {0}};
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
        folded_calls(&r[i], 10);
    }
    refused_call(&r[1]);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_cut(r[i].fold, 100 * MS, &d[i]);
        assert_int_equal(d[i].fronts, 1);
    }
    assert_int_equal(d[1].front[0].high, d[0].front[0].high);
    assert_true(d[1].front[0].hash == d[0].front[0].hash);
    for (uint32_t i = 0; i < 2; i++) {
        roll_digest_fini(&d[i]);
        roll_fold_destroy(&r[i].fold);
    }
}

static void a_creation_that_failed_is_hinted_at(void **state)
{
    (void)state;
    for (uint8_t result = 0; result <= 4; result += 4) {
        struct folded_rank r;
        struct roll_digest d = {0};
        folded_init(&r, 0, 2);
        struct roll_record rec = {.op = ROLL_OP_COMM_SPLIT, .comm = 1, .result = result};
        folded_feed(&r, rec, ROLL_STATE_RETURNED);
        roll_fold_cut(r.fold, 100 * MS, &d);
        assert_int_equal(d.hints, result != 0);
        assert_true(d.hints == 0 || d.hint[0].why == ROLL_HINT_REFUSED);
        roll_digest_fini(&d);
        roll_fold_destroy(&r.fold);
    }
}

static void lost_records_make_no_window(void **state)
{
    (void)state;
    struct folded_rank r;
    struct roll_digest d = {0};
    folded_init(&r, 0, 2);
    folded_calls(&r, 70);
    r.next += 5;
    r.seq += 5;
    folded_calls(&r, 125);
    roll_fold_cut(r.fold, 100 * MS, &d);
    assert_int_equal(d.windows, 3); /* 0 and 2: of window 1 five calls are not known; and a check point in 3 */
    assert_int_equal(d.window[0].window, 0);
    assert_int_equal(d.window[1].window, 2);
    assert_int_equal(d.window[2].window, 3);
    assert_int_equal(d.window[2].calls, 8);
    assert_int_equal(d.front[0].low, 200);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct folded_rank *r = from;
    *out = r->rec[ticket % FOLDED_LOGS];
    return true;
}

static void an_excerpt_holds_what_is_asked_for(void **state)
{
    (void)state;
    struct folded_rank r;
    folded_init(&r, 0, 4);
    folded_calls(&r, 100);
    struct roll_record rec = folded_reduce(r.seq, 3);
    folded_feed(&r, rec, ROLL_STATE_ENTERED); /* ticket 100: a host is inside */
    r.seq++;
    for (uint32_t i = 0; i < 4; i++) { /* 101-104: one group */
        rec = folded_reduce(r.seq++, 3);
        rec.group = 9;
        folded_feed(&r, rec, ROLL_STATE_RETURNED);
    }
    folded_message(&r, ROLL_OP_SEND, 2, 5, 0); /* 105 */
    folded_calls(&r, 95);                      /* 106-200 */
    folded_message(&r, ROLL_OP_SEND, 2, 5, 1); /* 201 */
    folded_message(&r, ROLL_OP_RECV, 2, 5, 0); /* 202 */
    struct roll_excerpt_records records = {.from = &r, .record = record_of, .next = r.next};
    struct roll_excerpt_want want = {.comm = 1, .low = UINT32_MAX};
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 10), 100);
    r.rec[100].seal = roll_seal(100, ROLL_STATE_RETURNED);
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 10), 193);
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 5000), 0);
    want.low = r.seq - 20;
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 10), 181);
    want.low = 103;
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 10), 101); /* and the group whole */
    want = (struct roll_excerpt_want){.comm = 1, .low = UINT32_MAX, .classes = 1};
    assert_int_equal(roll_excerpt_begin(&records, r.fold, &want, 1, 10), 105);
    struct roll_fold_place *list;
    size_t n;
    assert_int_equal(roll_excerpt_places(&records, r.fold, 193, &list, &n), 0);
    uint32_t found = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(list[i].comm, 1); /* ids that nobody has defined have no place: a root would refuse them */
        if (list[i].op == ROLL_OP_NONE) {
            assert_int_equal(list[i].next, r.seq - 8);
            found++;
        } else if (list[i].op == ROLL_OP_SEND) {
            assert_int_equal(list[i].next, 1);
            assert_int_equal(list[i].made, 1);
            found++;
        } else if (list[i].op == ROLL_OP_RECV) {
            assert_int_equal(list[i].next, 0);
            assert_int_equal(list[i].made, 0);
            found++;
        }
    }
    assert_int_equal(found, 3);
    free(list);
    roll_fold_destroy(&r.fold);
}

static void a_host_that_stays_inside_is_told_of_once(void **state)
{
    (void)state;
    struct folded_rank r;
    struct roll_digest d = {0};
    folded_init(&r, 0, 2);
    folded_feed(&r, folded_reduce(0, 3), ROLL_STATE_ENTERED);
    roll_fold_cut(r.fold, FOLDED_INSIDE - 1, &d);
    assert_int_equal(d.hints, 0);
    roll_fold_cut(r.fold, FOLDED_INSIDE, &d);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].why, ROLL_HINT_INSIDE);
    roll_fold_cut(r.fold, 2 * FOLDED_INSIDE - 1, &d);
    assert_int_equal(d.hints, 1);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

/* A rank that calls nothing is told of while its last calls may go on, and not when it has waited for them. */
static void a_quiet_rank_is_told_of_once(void **state)
{
    (void)state;
    struct folded_rank r;
    struct roll_digest d = {0};
    folded_init(&r, 0, 2);
    folded_calls(&r, 3);
    roll_fold_cut(r.fold, 2 * FOLDED_INSIDE - 1, &d);
    assert_int_equal(d.hints, 0);
    roll_fold_cut(r.fold, 2 * FOLDED_INSIDE, &d);
    roll_fold_cut(r.fold, 9 * FOLDED_INSIDE, &d);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].why, ROLL_HINT_QUIET);
    folded_calls(&r, 1);
    folded_feed(&r, (struct roll_record){.op = ROLL_OP_DEVICE_SYNC, .peer = ROLL_PEER_NONE}, ROLL_STATE_RETURNED);
    roll_fold_cut(r.fold, 20 * FOLDED_INSIDE, &d);
    assert_int_equal(d.hints, 1);

    /* A wait that is read while the host is inside is heard of a second time, here behind the call that followed it: it
     * says nothing about that call. */
    struct roll_record wait = {.op = ROLL_OP_DEVICE_SYNC, .peer = ROLL_PEER_NONE};
    folded_feed(&r, wait, ROLL_STATE_ENTERED);
    uint64_t ticket = r.next - 1;
    folded_calls(&r, 1);
    wait = r.rec[ticket % FOLDED_LOGS];
    wait.seal = roll_seal(ticket, ROLL_STATE_RETURNED);
    assert_int_equal(roll_fold_record(r.fold, &wait, 21 * FOLDED_INSIDE), 0);
    roll_fold_cut(r.fold, 40 * FOLDED_INSIDE, &d);
    assert_int_equal(d.hints, 2);
    assert_int_equal(d.hint[1].why, ROLL_HINT_QUIET);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

/* The records of a loop of polls tell of one stay, since the first of them. */
static void a_loop_of_polls_is_one_stay(void **state)
{
    (void)state;
    struct folded_rank r;
    struct roll_digest d = {0};
    folded_init(&r, 0, 2);
    for (uint64_t i = 0; i < 4; i++) {
        struct roll_record rec = {.op = ROLL_OP_STREAM_QUERY, .peer = ROLL_PEER_NONE, .thread = 1};
        rec.seal = roll_seal(r.next++, ROLL_STATE_ENTERED);
        assert_int_equal(roll_fold_record(r.fold, &rec, i * FOLDED_INSIDE / 4), 0);
    }
    roll_fold_cut(r.fold, FOLDED_INSIDE - 1, &d);
    assert_int_equal(d.hints, 0);
    roll_fold_cut(r.fold, FOLDED_INSIDE, &d);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].why, ROLL_HINT_INSIDE);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_call_leaves_no_trace_in_the_hash),
        cmocka_unit_test(a_refused_call_is_not_where_a_rank_is),
        cmocka_unit_test(a_creation_that_failed_is_hinted_at),
        cmocka_unit_test(lost_records_make_no_window),
        cmocka_unit_test(an_excerpt_holds_what_is_asked_for),
        cmocka_unit_test(a_host_that_stays_inside_is_told_of_once),
        cmocka_unit_test(a_quiet_rank_is_told_of_once),
        cmocka_unit_test(a_loop_of_polls_is_one_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
