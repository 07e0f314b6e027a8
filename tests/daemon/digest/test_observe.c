/*
 * test_observe.c: what `moe_core` has observed is compared where it is told, at the next cut, and what concerns one
 * rank is a hint only where it contradicts itself; messages of a pair that go on are compared while others do.
 */
#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/sum.h"
#include "trace/err.h"
#include "trace/op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define KEY   0x1234567890abcdefull
#define RANKS 4u
#define MS    1000000ull
#define STAND (250 * MS)
enum { REPLICA, PART, SUM, NOTFINITE }; /* enum moe_tensor_fact */
enum { EP = 1, DP = 2 };                /* ids of communicators; all ranks are members of both */

/* Four ranks on two nodes under one root. */
struct job {
    roll_fold_t *fold[RANKS];
    uint64_t next[RANKS];
    roll_sum_t *node[2], *root;
    uint64_t now;
};

static void job_init(struct job *j)
{
    memset(j, 0, sizeof(*j));
    struct roll_sum_config config = {.stand_ns = STAND};
    for (uint32_t i = 0; i < 2; i++) {
        j->node[i] = roll_sum_new(&config);
        assert_non_null(j->node[i]);
    }
    config.is_root = true;
    j->root = roll_sum_new(&config);
    assert_non_null(j->root);
    for (uint32_t r = 0; r < RANKS; r++) {
        j->fold[r] = roll_fold_new(1000 * MS);
        assert_non_null(j->fold[r]);
        for (uint32_t id = EP; id <= DP; id++) {
            struct roll_def_comm info = {.key = KEY + id, .rank = (int32_t)r, .nranks = (int32_t)RANKS};
            assert_int_equal(roll_fold_comm(j->fold[r], id, &info), 0);
        }
    }
}

static void job_fini(struct job *j)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        roll_fold_destroy(&j->fold[r]);
    }
    roll_sum_destroy(&j->node[0]);
    roll_sum_destroy(&j->node[1]);
    roll_sum_destroy(&j->root);
}

static void feed(struct job *j, uint32_t r, struct roll_record rec)
{
    rec.seal = roll_seal(j->next[r]++, ROLL_STATE_RETURNED);
    rec.thread = 1;
    assert_int_equal(roll_fold_record(j->fold[r], &rec, j->now), 0);
}

static struct roll_record observed(enum roll_op op, uint32_t step, uint16_t layer)
{
    return (struct roll_record){
        .op = (uint8_t)op, .step = step, .layer = layer, .comm = EP, .peer = -1, .phase = ROLL_PHASE_FORWARD};
}

/* The list of a layer: so many obligations, the last one on the other communicator. */
static void list(struct job *j, uint32_t r, uint32_t step, uint16_t layer, uint32_t n)
{
    struct roll_record rec = observed(ROLL_OP_MOE_OBLIGE, step, layer);
    for (uint32_t i = 0; i < n; i++) {
        rec.seq = i;
        rec.peer = ROLL_OP_ALLTOALL;
        rec.comm = i + 1 == n ? DP : EP;
        feed(j, r, rec);
    }
    rec = observed(ROLL_OP_MOE_OBLIGE_END, step, layer);
    rec.count = n;
    feed(j, r, rec);
}

static void number(struct job *j, uint32_t r, uint32_t step, uint64_t value)
{
    struct roll_record rec = observed(ROLL_OP_MOE_UNIFORM, step, 0);
    rec.peer = 1;
    rec.count = value;
    feed(j, r, rec);
}

static uint64_t bits(double value)
{
    uint64_t b;
    memcpy(&b, &value, sizeof(b));
    return b;
}

static void tensor(struct job *j, uint32_t r, uint32_t step, uint16_t fact, double value, float size)
{
    struct roll_record rec = observed(ROLL_OP_MOE_TENSOR, step, 0);
    rec.comm = DP;
    rec.phase = ROLL_PHASE_REDUCE;
    rec.peer = 0;
    rec.aux = fact;
    rec.count = bits(value);
    memcpy(&rec.group, &size, sizeof(size));
    feed(j, r, rec);
}

static void send(const struct roll_digest *d, roll_sum_t *to, uint32_t child, uint64_t now)
{
    struct roll_digest_cursor cursor = {0};
    struct roll_digest came = {0};
    unsigned char payload[256];
    for (size_t n; (n = roll_digest_encode(d, &cursor, payload, sizeof(payload))) != 0;) {
        roll_digest_clear(&came);
        assert_int_equal(roll_digest_decode(payload, n, &came), 0);
        assert_int_equal(roll_sum_take(to, child, &came, now), 0);
        assert_int_equal(roll_sum_take(to, child, &came, now), 0); /* what comes twice counts once */
    }
    roll_digest_fini(&came);
}

/* One tenth of a second: what the root hears of, as bits; *seq: of the last hint. */
static uint32_t look(struct job *j, uint32_t *seq)
{
    struct roll_digest d = {0};
    uint32_t found = 0;
    j->now += 100 * MS;
    for (uint32_t n = 0; n < 2; n++) {
        for (uint32_t r = 2 * n; r < 2 * n + 2; r++) {
            roll_digest_clear(&d);
            roll_fold_cut(j->fold[r], j->now, &d);
            send(&d, j->node[n], r, j->now);
        }
        roll_digest_clear(&d);
        roll_sum_cut(j->node[n], j->now, &d);
        send(&d, j->root, n, j->now);
    }
    roll_digest_clear(&d);
    roll_sum_cut(j->root, j->now, &d);
    for (size_t i = 0; i < d.hints; i++) {
        if (d.hint[i].why != ROLL_HINT_QUIET) {
            found |= 1u << d.hint[i].why;
            if (seq) {
                *seq = d.hint[i].seq;
            }
        }
    }
    roll_digest_fini(&d);
    return found;
}

#define OBSERVED (1u << ROLL_HINT_OBSERVED)

static void ranks_that_promise_alike_are_not_heard_of(void **state)
{
    struct job j;
    (void)state;
    job_init(&j);
    for (uint32_t step = 0; step < 50; step++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            for (uint16_t layer = 0; layer < 6; layer++) {
                list(&j, r, step % 20, layer, layer % 3); /* the job goes back to step 0, twice */
                number(&j, r, step % 20, 7 + step);
            }
            if ((step + r) % 3 == 0) { /* ranks are somewhere else in their step */
                (void)look(&j, NULL);
            }
        }
        assert_int_equal(look(&j, NULL), 0);
    }
    job_fini(&j);
}

/* Also while a rank has not come there yet, and whichever two ranks differ. */
static void a_promise_that_lacks_is_heard_of_at_the_next_cut(void **state)
{
    (void)state;
    for (uint32_t culprit = 0; culprit < 3; culprit++) {
        struct job j;
        uint32_t seq = 0;
        job_init(&j);
        for (uint32_t r = 0; r < RANKS; r++) {
            list(&j, r, 3, 0, 2);
        }
        assert_int_equal(look(&j, NULL), 0);
        for (uint32_t r = 0; r < 3; r++) { /* rank 3 is late */
            list(&j, r, 4, 0, r == culprit ? 0 : 2);
        }
        assert_int_equal(look(&j, &seq), OBSERVED);
        assert_int_equal(seq, roll_observed_step(4));
        list(&j, 3, 4, 0, 2);
        /* Each level says it once: that of ranks 2 and 3 sees it only now where rank 2 was the one. */
        assert_int_equal(look(&j, NULL), culprit == 2 ? OBSERVED : 0);
        assert_int_equal(look(&j, NULL), 0);
        job_fini(&j);
    }
}

static void another_operation_or_communicator_differs_too(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_record rec = observed(ROLL_OP_MOE_OBLIGE, 0, 0);
        rec.peer = r == 2 ? ROLL_OP_ALLGATHER : ROLL_OP_ALLTOALL;
        feed(&j, r, rec);
        rec = observed(ROLL_OP_MOE_OBLIGE_END, 0, 0);
        rec.count = 1;
        feed(&j, r, rec);
    }
    assert_int_equal(look(&j, NULL), OBSERVED);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_record rec = observed(ROLL_OP_MOE_OBLIGE, 1, 0);
        rec.peer = ROLL_OP_ALLTOALL;
        rec.comm = r == 2 ? DP : EP;
        feed(&j, r, rec);
        rec = observed(ROLL_OP_MOE_OBLIGE_END, 1, 0);
        rec.count = 1;
        feed(&j, r, rec);
    }
    assert_int_equal(look(&j, NULL), OBSERVED);
    job_fini(&j);
}

static void other_numbers_and_replicas_are_heard_of(void **state)
{
    (void)state;
    struct job j;
    uint32_t seq = 0;
    job_init(&j);
    for (uint32_t r = 0; r < RANKS; r++) {
        number(&j, r, ROLL_STEP_NONE, 5 + (r == 1));
    }
    assert_int_equal(look(&j, &seq), OBSERVED);
    assert_int_equal(seq, ROLL_OBSERVED_OUTSIDE);
    for (uint32_t r = 0; r < RANKS; r++) {
        tensor(&j, r, 6, REPLICA, r == 3 ? 2 : 1, 0);
    }
    assert_int_equal(look(&j, &seq), OBSERVED);
    assert_int_equal(seq, roll_observed_step(6));
    job_fini(&j);
}

/* Of a step of which records are missing nothing is compared, as in the engine; of the next one it is. */
static void what_was_lost_is_not_compared(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    for (uint32_t r = 0; r < RANKS; r++) {
        list(&j, r, 0, 0, 2);
        if (r == 2) {
            j.next[r] += 3;
        }
        number(&j, r, 0, 5 + (r == 2));
        list(&j, r, 0, 0, 1 + (r == 2));
    }
    assert_int_equal(look(&j, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        number(&j, r, 1, 5 + (r == 2));
    }
    assert_int_equal(look(&j, NULL), OBSERVED);
    job_fini(&j);
}

static void shares_add_up_or_are_heard_of(void **state)
{
    (void)state;
    struct job j;
    uint32_t seq = 0;
    job_init(&j);
    for (uint32_t step = 0; step < 40; step++) {
        bool wrong = step == 30;
        for (uint32_t r = 0; r < RANKS; r++) {
            tensor(&j, r, step, PART, r - 1.5 + step, 100);
            if (r == 2) {
                assert_int_equal(look(&j, NULL), 0);
            }
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            double sum = 4.0 * step + 1e-3 * r; /* rounding may change 0.04 */
            tensor(&j, r, step, SUM, wrong && r == 1 ? sum + 1 : step % 7 == 5 ? NAN : sum, 0);
        }
        assert_int_equal(look(&j, &seq), wrong ? OBSERVED : 0);
    }
    assert_int_equal(seq, roll_observed_step(30));
    job_fini(&j);
}

static void a_share_of_a_level_that_begins_anew_is_told_again(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    for (uint32_t r = 0; r < RANKS; r++) {
        tensor(&j, r, 0, PART, 1, 1);
        tensor(&j, r, 0, SUM, 4 + (r == 0), 0);
        number(&j, r, 0, 5 + (r == 0));
    }
    assert_int_equal(look(&j, NULL), OBSERVED);
    roll_sum_destroy(&j.root);
    j.root = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND, .is_root = true});
    roll_sum_again(j.node[0]);
    roll_sum_again(j.node[1]);
    assert_int_equal(look(&j, NULL), OBSERVED);
    roll_sum_destroy(&j.node[0]);
    j.node[0] = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND});
    roll_fold_again(j.fold[0]);
    roll_fold_again(j.fold[1]);
    assert_int_equal(look(&j, NULL), OBSERVED); /* the node compares anew */
    job_fini(&j);
}

/* The splits of one layer: the k-th member gets k rows and `more`. */
static void splits(struct job *j, uint32_t r, uint32_t step, uint8_t phase, uint32_t more, uint32_t buffer)
{
    struct roll_record rec = observed(ROLL_OP_MOE_COUNTS, step, 0);
    rec.phase = phase;
    rec.count = 0; /* a rank that received nothing is no news */
    rec.group = buffer;
    feed(j, r, rec);
    for (uint32_t k = 0; k < RANKS; k++) {
        rec = observed(ROLL_OP_MOE_SPLIT, step, 0);
        rec.phase = phase;
        rec.peer = (int32_t)k;
        rec.count = k + (k == 1 ? more : 0);
        feed(j, r, rec);
    }
}

static void only_a_routing_that_contradicts_itself_is_a_hint(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    for (uint32_t step = 0; step < 20; step++) {
        for (uint32_t r = 0; r < RANKS; r++) {
            splits(&j, r, step, ROLL_PHASE_FORWARD, r, 6 + r);
            feed(&j, r, observed(ROLL_OP_MOE_SKIP, step, 0));
            splits(&j, r, step, ROLL_PHASE_RECOMPUTE, r, 6 + r);
        }
        assert_int_equal(look(&j, NULL), 0);
    }
    splits(&j, 1, 20, ROLL_PHASE_FORWARD, 1, 9);
    assert_int_equal(look(&j, NULL), OBSERVED);
    splits(&j, 2, 21, ROLL_PHASE_FORWARD, 1, 7);
    splits(&j, 2, 21, ROLL_PHASE_RECOMPUTE, 2, 8);
    assert_int_equal(look(&j, NULL), OBSERVED);
    tensor(&j, 3, 22, NOTFINITE, 1, 0);
    assert_int_equal(look(&j, NULL), OBSERVED);
    struct roll_record remedy = observed(ROLL_OP_MOE_REMEDY, 23, 0);
    feed(&j, 0, remedy);
    assert_int_equal(look(&j, NULL), OBSERVED);
    feed(&j, 0, remedy);
    struct roll_record product = observed(ROLL_OP_EXT_GROUPED_GEMM, 23, 0);
    feed(&j, 0, product);
    feed(&j, 0, (struct roll_record){.op = ROLL_OP_PUTSIGNAL, .comm = EP, .step = 23, .peer = 1});
    assert_int_equal(look(&j, NULL), 0);
    job_fini(&j);
}

/* Of a rank that tells of each step with six records. */
static bool any_record(void *from, uint64_t ticket, struct roll_record *out)
{
    (void)from;
    *out = (struct roll_record){
        .seal = roll_seal(ticket, ROLL_STATE_RETURNED), .op = ROLL_OP_MOE_OBLIGE, .step = (uint32_t)(ticket / 6)};
    return true;
}

static void an_excerpt_reaches_back_to_the_step(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    uint64_t first[100];
    for (uint32_t step = 0; step < 100; step++) {
        first[step] = j.next[0];
        list(&j, 0, step, 0, 2);
        list(&j, 0, step, 1, 2);
    }
    struct roll_excerpt_records records = {.from = &j, .record = any_record, .next = j.next[0]};
    struct roll_excerpt_want want = {.comm = EP, .low = UINT32_MAX, .step = roll_observed_step(90)};
    /* With the observation before it: an engine compares nothing of the step in which it begins. */
    assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), first[90] - 1);
    want.step = roll_observed_step(7); /* longer ago than is known without the records */
    assert_int_equal(first[7], 6 * 7);
    assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), first[7] - 1);
    assert_int_equal(roll_excerpt_observed(&records, j.fold[0], &want, 1), first[7] - 1);
    records.oldest = first[7] - 1;
    assert_int_equal(roll_excerpt_observed(&records, j.fold[0], &want, 1), first[7] - 1);
    for (uint32_t i = 0; i < 30; i++) { /* and they do not begin before it any more: what is wanted is not there */
        records.oldest = first[7] + i;
        assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), first[36] - 1);
        assert_true(roll_excerpt_observed(&records, j.fold[0], &want, 1) < records.oldest);
    }
    records.oldest = 0;
    want.step = roll_observed_step(100); /* to come */
    assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), j.next[0] - 4);
    want.step = ROLL_OBSERVED_OUTSIDE;
    assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), 0);
    want.step = 0;
    assert_int_equal(roll_excerpt_begin(&records, j.fold[0], &want, 1, 4), j.next[0] - 4);
    assert_true(roll_fold_observed(j.fold[1], roll_observed_step(3)) == UINT64_MAX);
    job_fini(&j);
}

static void message(struct job *j, enum roll_op op, uint32_t r, uint32_t peer, uint32_t seq, uint64_t count)
{
    feed(j, r,
         (struct roll_record){.op = (uint8_t)op,
                              .comm = EP,
                              .seq = seq,
                              .count = count,
                              .peer = (int32_t)peer,
                              .step = ROLL_STEP_NONE,
                              .dtype = ROLL_DTYPE_FLOAT32});
}

static uint64_t count_of(uint32_t from, uint32_t to, uint32_t seq)
{
    return 100 + (from * 7 + to * 3 + seq * 5) % 11;
}

/* Messages are always under way: each pair has its own pace, what is received is behind what is sent, and the pairs of
 * rank 3 stop early, with two messages that nobody receives. Message `wrong` from rank 1 to rank 2 has another size. */
static uint32_t traffic(struct job *j, uint32_t wrong, uint32_t *classes, uint32_t *heard)
{
    uint32_t sent[RANKS][RANKS] = {{0}}, taken[RANKS][RANKS] = {{0}}, draw = 1, found = 0;
    for (uint32_t i = 0; i < 6000; i++) {
        draw = draw * 1664525 + 1013904223;
        uint32_t from = draw >> 30, to = draw >> 28 & 3, lag = from == 3 ? 2 : 1 + from + to;
        if (from != 3 || sent[from][to] < 5) {
            uint32_t seq = sent[from][to]++;
            bool is_wrong = from == 1 && to == 2 && seq == wrong;
            message(j, ROLL_OP_SEND, from, to, seq, count_of(from, to, seq) + is_wrong);
        }
        for (; taken[from][to] + lag < sent[from][to]; taken[from][to]++) {
            message(j, ROLL_OP_RECV, to, from, taken[from][to], count_of(from, to, taken[from][to]));
        }
        if (i % 40 == 39) {
            uint32_t now = look(j, found == 0 ? classes : NULL);
            *heard = found == 0 && now != 0 ? sent[1][2] : *heard;
            found |= now;
        }
    }
    return found;
}

static void messages_that_go_on_are_compared(void **state)
{
    (void)state;
    struct job j;
    uint32_t classes = 0, heard = 0;
    job_init(&j);
    assert_int_equal(traffic(&j, UINT32_MAX, &classes, &heard), 0);
    job_fini(&j);
    job_init(&j);
    assert_int_equal(traffic(&j, 150, &classes, &heard), 1u << ROLL_HINT_MESSAGES);
    assert_int_equal(classes, 1u << 150 / ROLL_DIGEST_WINDOW);
    assert_in_range(heard, 192, 220); /* when both ends have passed the window */
    job_fini(&j);
}

static void pairs_whose_numbers_look_alike_are_kept_apart(void **state)
{
    (void)state;
    struct job j;
    job_init(&j);
    for (uint32_t seq = 0; seq < 256; seq++) { /* window 1 of 0 -> 0, and window 0 of 0 -> 1 */
        for (uint32_t to = 0; to < 2; to++) {
            message(&j, ROLL_OP_SEND, 0, to, seq, 10 + to + seq / 64);
            message(&j, ROLL_OP_RECV, to, 0, seq, 10 + to + seq / 64);
        }
    }
    assert_int_equal(look(&j, NULL), 0);
    job_fini(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_promise_alike_are_not_heard_of),
        cmocka_unit_test(a_promise_that_lacks_is_heard_of_at_the_next_cut),
        cmocka_unit_test(another_operation_or_communicator_differs_too),
        cmocka_unit_test(other_numbers_and_replicas_are_heard_of),
        cmocka_unit_test(what_was_lost_is_not_compared),
        cmocka_unit_test(shares_add_up_or_are_heard_of),
        cmocka_unit_test(a_share_of_a_level_that_begins_anew_is_told_again),
        cmocka_unit_test(only_a_routing_that_contradicts_itself_is_a_hint),
        cmocka_unit_test(an_excerpt_reaches_back_to_the_step),
        cmocka_unit_test(messages_that_go_on_are_compared),
        cmocka_unit_test(pairs_whose_numbers_look_alike_are_kept_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
