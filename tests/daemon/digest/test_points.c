/*
 * test_points.c: check points: ranks and nodes of any speed tell hashes at the same numbers of calls, so a wrong call
 * is heard of long before its window is full; healthy ranks give no hint, and made-up points blind nobody.
 */
#include "tests/trace/cmocka_all.h"

#include "daemon/digest/digest_bytes.h"
#include "daemon/digest/fold.h"
#include "daemon/digest/points.h"
#include "daemon/digest/sum.h"
#include "trace/err.h"
#include "trace/op.h"

#include <string.h>

#define MS    1000000ull
#define KEY   0x77u
#define RANKS 6u
#define NODES 3u
#define MOST  5u /* calls that a rank makes between two looks */

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

static uint32_t roundness(uint32_t n)
{
    return (uint32_t)__builtin_ctz(n);
}

static void the_roundest_number_is_found(void **state)
{
    (void)state;
    for (uint32_t from = 0; from < 200; from++) {
        for (uint32_t to = from + 1; to < 200; to++) {
            uint32_t best = to;
            for (uint32_t n = from + 1; n <= to; n++) {
                best = roundness(n) > roundness(best) ? n : best;
            }
            assert_int_equal(roll_point_roundest(from, to), best);
        }
    }
    assert_int_equal(roll_point_roundest(UINT32_MAX - 1, UINT32_MAX), UINT32_MAX);
    assert_int_equal(roll_point_roundest(0, UINT32_MAX), UINT32_C(1) << 31);
}

static void what_was_told_first_is_what_others_are_compared_with(void **state)
{
    (void)state;
    struct roll_points p = {0};
    assert_false(roll_points_take(&p, 24, 1));
    assert_false(roll_points_take(&p, 24, 1));
    assert_true(roll_points_take(&p, 24, 2));
    assert_false(roll_points_take(&p, 24, 3)); /* once */
    assert_false(roll_points_take(&p, 63, 9));
    assert_false(roll_points_take(&p, 20, 7));
    assert_int_equal(roll_points_roundest(&p, 0, 100)->at, 24);
    assert_int_equal(roll_points_roundest(&p, 24, 100)->at, 63);
    assert_null(roll_points_roundest(&p, 24, 62));
    for (uint32_t at = 1; at < 100000; at++) { /* the newest of each kind stay */
        if (at % 64 != 0) {
            assert_false(roll_points_take(&p, at, at == 24 || at == 20 || at == 63 ? UINT32_MAX : at) && at > 64);
        }
    }
    assert_false(roll_points_take(&p, 24, 4)); /* long forgotten */
    assert_true(roll_points_take(&p, 99999, 4));
    assert_true(roll_points_take(&p, 98976, 4)); /* 32 * 3093, the 16th of its kind */
    assert_false(roll_points_take(&p, 98976 - 64, 4));
    assert_int_equal(roll_points_roundest(&p, 99990, 99999)->at, 99992);
}

/* One rank tells each `k` calls or oftener, another one otherwise: both tell each multiple of the next power of two. */
static void who_knows_nothing_of_each_other_meets(void **state)
{
    (void)state;
    uint32_t seed = 1;
    for (uint32_t k = 1; k < 32; k++) {
        uint32_t meet = 1;
        while (meet <= k) {
            meet *= 2;
        }
        for (uint32_t teller = 0; teller < 20; teller++) {
            bool told[1024] = {false};
            for (uint32_t at = 0; at < 900;) {
                uint32_t to = at + 1 + draw(&seed, k);
                told[roll_point_roundest(at, to)] = true;
                at = to;
            }
            for (uint32_t at = meet; at < 900; at += meet) {
                assert_true(told[at]);
            }
        }
    }
}

/* a job of three nodes of two ranks, a relay and a root */

struct job {
    roll_fold_t *fold[RANKS];
    roll_sum_t *node[NODES], *root;
    uint64_t ticket[RANKS], now;
    uint32_t seq[RANKS], wrong_rank, wrong_seq, hints, seed, hinted;
    uint32_t most; /* calls that a rank makes between two looks */
};

static void job_init(struct job *j, uint32_t seed)
{
    struct roll_sum_config config = {.stand_ns = 100000 * MS};
    *j = (struct job){.wrong_rank = UINT32_MAX, .seed = seed, .most = MOST};
    for (uint32_t r = 0; r < RANKS; r++) {
        struct roll_def_comm info = {.key = KEY, .rank = (int32_t)r, .nranks = RANKS};
        j->fold[r] = roll_fold_new(100000 * MS);
        assert_int_equal(roll_fold_comm(j->fold[r], 1, &info), 0);
    }
    for (uint32_t n = 0; n < NODES; n++) {
        j->node[n] = roll_sum_new(&config);
        assert_non_null(j->node[n]);
    }
    config.is_root = true;
    j->root = roll_sum_new(&config);
    assert_non_null(j->root);
}

static void job_fini(struct job *j)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        roll_fold_destroy(&j->fold[r]);
    }
    for (uint32_t n = 0; n < NODES; n++) {
        roll_sum_destroy(&j->node[n]);
    }
    roll_sum_destroy(&j->root);
}

static void call(struct job *j, uint32_t r)
{
    bool wrong = r == j->wrong_rank && j->seq[r] == j->wrong_seq;
    struct roll_record rec = {.seal = roll_seal(j->ticket[r]++, ROLL_STATE_RETURNED),
                              .op = ROLL_OP_ALLREDUCE,
                              .comm = 1,
                              .thread = 1,
                              .enter_ns = j->now,
                              .seq = j->seq[r]++,
                              .count = wrong ? 7 : 8,
                              .peer = ROLL_PEER_NONE,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .redop = ROLL_RED_SUM};
    assert_int_equal(roll_fold_record(j->fold[r], &rec, j->now), 0);
}

static void send(roll_sum_t *from, roll_sum_t *to, uint32_t child, uint64_t now)
{
    struct roll_digest up = {0}, came = {0};
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[4096];
    roll_sum_cut(from, now, &up);
    for (size_t n; (n = roll_digest_encode(&up, &cursor, bytes, sizeof(bytes))) != 0;) {
        roll_digest_clear(&came);
        assert_int_equal(roll_digest_decode(bytes, n, &came), 0);
        assert_int_equal(roll_sum_take(to, child, &came, now), 0);
    }
    roll_digest_fini(&up);
    roll_digest_fini(&came);
}

/* Each rank goes on by up to so many calls, none further than three times that beyond the last one; then all tell. */
static void look(struct job *j)
{
    struct roll_digest d = {0};
    uint32_t last = UINT32_MAX;
    j->now += 100 * MS;
    for (uint32_t r = 0; r < RANKS; r++) {
        last = j->seq[r] < last ? j->seq[r] : last;
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t n = draw(&j->seed, j->most + 1); n > 0 && j->seq[r] < last + 3 * j->most; n--) {
            call(j, r);
        }
        roll_digest_clear(&d);
        roll_fold_cut(j->fold[r], j->now, &d);
        assert_int_equal(roll_sum_take(j->node[r / (RANKS / NODES)], r, &d, j->now), 0);
    }
    for (uint32_t n = 0; n < NODES; n++) {
        send(j->node[n], j->root, n, j->now);
    }
    roll_digest_clear(&d);
    roll_sum_cut(j->root, j->now, &d);
    for (size_t i = 0; i < d.hints; i++) {
        assert_int_equal(d.hint[i].why, ROLL_HINT_DIFFERS);
        assert_int_equal(d.hint[i].key, KEY);
        j->hints++;
        j->hinted = d.hint[i].seq;
    }
    roll_digest_fini(&d);
}

static uint32_t least(const struct job *j)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t r = 0; r < RANKS; r++) {
        least = j->seq[r] < least ? j->seq[r] : least;
    }
    return least;
}

/* Up to five calls between two looks: levels meet at each eighth call, and have told it two looks later at most. */
static void a_wrong_call_is_heard_of_before_its_window_is_full(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 2 * ROLL_DIGEST_WINDOW; n++) {
        struct job j;
        job_init(&j, n + 5);
        j.wrong_rank = n % RANKS;
        j.wrong_seq = n;
        while (least(&j) < n + 8 + MOST) {
            look(&j);
        }
        look(&j);
        if (j.hints == 0) {
            fail_msg("call %u of rank %u is not heard of when all have made %u", n, j.wrong_rank, least(&j));
        }
        assert_int_equal(j.hinted, n - n % ROLL_DIGEST_WINDOW);
        while (least(&j) < n + 3 * ROLL_DIGEST_WINDOW) {
            look(&j);
        }
        assert_in_range(j.hints, 1, 4); /* of its node and of the root, by a check point and by the window */
        job_fini(&j);
    }
}

static void tell_anew(struct job *j)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        roll_fold_again(j->fold[r]);
    }
    roll_sum_again(j->node[draw(&j->seed, NODES)]);
}

/* Where it is told by a check point that calls differ, the wrong one is known to lie behind the highest power of two
 * below: also of ranks and nodes that make more calls between two looks than a window has, and that are told anew. */
static void a_check_point_says_from_where_on_calls_may_differ(void **state)
{
    (void)state;
    uint32_t by_points = 0, calls = 0;
    for (uint32_t n = 0; n < 6 * ROLL_DIGEST_WINDOW; n++) {
        struct job j;
        struct roll_sum_place place = {0};
        job_init(&j, n + 77);
        j.most = 1 + n % 5 * 20;
        j.wrong_rank = n % RANKS;
        j.wrong_seq = n / 2;
        while (j.hints == 0) {
            if (draw(&j.seed, 10) == 0) {
                tell_anew(&j);
            }
            look(&j);
        }
        assert_true(roll_sum_place(j.root, KEY, &place));
        if (place.differs_at != 0) {
            uint32_t first = roll_digest_first(place.differs_at);
            assert_int_equal(roll_digest_window_of(place.differs_at), j.hinted);
            assert_in_range(j.wrong_seq, first, place.differs_at - 1);
            by_points++;
            calls += place.differs_at - first;
        }
        job_fini(&j);
    }
    assert_true(by_points > ROLL_DIGEST_WINDOW);
    assert_true(calls < by_points * ROLL_DIGEST_WINDOW / 3);
}

/* A level whose first member has gone past the end of a window since it told last: it tells of the newest window, so
 * that who hears of its later calls has heard of their highest power of two. */
static void a_level_tells_of_the_newest_window(void **state)
{
    (void)state;
    roll_sum_t *node = roll_sum_new(&(struct roll_sum_config){.stand_ns = 100000 * MS});
    struct roll_digest_front front = {.key = KEY, .size = RANKS, .members = 1, .low = 28, .high = 28};
    struct roll_digest d = {0}, up = {0};
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 1, .calls = 24});
    roll_digest_add_front(&d, &front);
    assert_int_equal(roll_sum_take(node, 0, &d, MS), 0);
    roll_sum_cut(node, MS, &up);
    assert_int_equal(up.windows, 1);
    assert_int_equal(up.window[0].calls, 24);
    roll_digest_clear(&d);
    roll_digest_clear(&up);
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 2, .calls = 32});
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 3, .window = 1, .calls = 16});
    front.low = front.high = ROLL_DIGEST_WINDOW + 17;
    roll_digest_add_front(&d, &front);
    assert_int_equal(roll_sum_take(node, 0, &d, 2 * MS), 0);
    roll_sum_cut(node, 2 * MS, &up);
    assert_int_equal(up.windows, 1); /* and not of the 32 calls, which are rounder */
    assert_int_equal(up.window[0].window, 1);
    assert_int_equal(up.window[0].calls, 16);
    roll_digest_fini(&d);
    roll_digest_fini(&up);
    roll_sum_destroy(&node);
}

/* What is told of one window, in this order: the calls of a check point and another hash than before, or the same. */
static void who_comes_later_may_have_been_wrong_before(void **state)
{
    (void)state;
    static const struct {
        uint32_t calls, hash;
        uint32_t hint; /* that calls before this check point differ; 0: none */
    } told[] = {{8, 1, 0},  {32, 2, 0}, {45, 3, 0}, {45, 4, 45}, {50, 5, 0}, {50, 6, 0}, {40, 7, 0},
                {40, 8, 0}, {8, 1, 0},  {8, 9, 8},  {4, 1, 0},   {4, 2, 0},  {32, 9, 0}};
    roll_sum_t *node = roll_sum_new(&(struct roll_sum_config){.stand_ns = 100000 * MS});
    roll_sum_t *root = roll_sum_new(&(struct roll_sum_config){.stand_ns = 100000 * MS, .is_root = true});
    for (uint32_t i = 0; i < sizeof(told) / sizeof(*told); i++) {
        struct roll_digest d = {0}, up = {0}, top = {0};
        struct roll_sum_place place;
        roll_digest_add_window(
            &d, &(struct roll_digest_window){.key = KEY, .hash = told[i].hash, .window = 1, .calls = told[i].calls});
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = KEY, .size = RANKS, .members = 1, .low = 60, .high = 127});
        assert_int_equal(roll_sum_take(node, i % 2, &d, MS), 0);
        roll_sum_cut(node, MS, &up);
        assert_int_equal(up.hints, told[i].hint != 0);
        assert_int_equal(roll_sum_take(root, 0, &up, MS), 0);
        roll_sum_cut(root, MS, &top);
        assert_int_equal(top.hints, told[i].hint != 0);
        if (told[i].hint != 0) {
            assert_int_equal(up.hint[0].seq, ROLL_DIGEST_WINDOW + told[i].hint);
            assert_int_equal(top.hint[0].seq, ROLL_DIGEST_WINDOW);
            assert_true(roll_sum_place(root, KEY, &place));
            assert_int_equal(place.differs_at, ROLL_DIGEST_WINDOW + told[i].hint);
        }
        roll_digest_fini(&d);
        roll_digest_fini(&up);
        roll_digest_fini(&top);
    }
    roll_sum_destroy(&node);
    roll_sum_destroy(&root);
}

static void the_first_call_that_may_differ_lies_in_the_window(void **state)
{
    (void)state;
    static const uint32_t of[][2] = {{0, 0},          {1, 0},
                                     {2, 0},          {3, 2},
                                     {32, 0},         {33, 32},
                                     {40, 32},        {63, 32},
                                     {64, 64},        {64 + 17, 64 + 16},
                                     {128 + 16, 128}, {UINT32_MAX, UINT32_MAX - 31}};
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        assert_int_equal(roll_digest_first(of[i][0]), of[i][1]);
        assert_int_equal(roll_digest_window_of(of[i][0]), of[i][0] / ROLL_DIGEST_WINDOW * ROLL_DIGEST_WINDOW);
    }
}

/* A second wrong call in the window is heard of with the whole window: the first one may have been looked at long ago.
 */
static void a_second_wrong_call_is_heard_of_with_its_window(void **state)
{
    (void)state;
    struct job j;
    job_init(&j, 11);
    j.wrong_rank = 2;
    j.wrong_seq = 3;
    while (least(&j) < 40) {
        look(&j);
    }
    assert_in_range(j.hints, 1, 2);
    uint32_t hints = j.hints;
    j.wrong_rank = 4;
    j.wrong_seq = 60;
    while (least(&j) < ROLL_DIGEST_WINDOW) {
        look(&j);
    }
    look(&j);
    assert_true(j.hints > hints);
    assert_int_equal(j.hinted, 0);
    job_fini(&j);
}

static void equal_calls_give_no_hint(void **state)
{
    (void)state;
    struct roll_sum_figures f;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        struct job j;
        job_init(&j, seed);
        while (least(&j) < 20 * ROLL_DIGEST_WINDOW) {
            look(&j);
            if (draw(&j.seed, 50) == 0) {
                tell_anew(&j);
            }
        }
        assert_int_equal(j.hints, 0);
        roll_sum_figures(j.root, &f);
        assert_int_equal(f.refused, 0);
        assert_true(f.done + 1 >= least(&j) / ROLL_DIGEST_WINDOW);
        job_fini(&j);
    }
}

/* Somebody tells of points that nobody has come to, or that do not lie in a window: they are refused, and the true ones
 * are compared. */
static void made_up_points_blind_nobody(void **state)
{
    (void)state;
    struct job j;
    struct roll_digest d = {0};
    struct roll_sum_figures f;
    job_init(&j, 3);
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = RANKS, .low = 20, .high = 20});
    for (uint32_t at = 21; at < 2000; at++) {
        roll_digest_add_window(&d,
                               &(struct roll_digest_window){.key = KEY,
                                                            .hash = at,
                                                            .window = at / ROLL_DIGEST_WINDOW,
                                                            .calls = at % ROLL_DIGEST_WINDOW ? at % ROLL_DIGEST_WINDOW
                                                                                             : ROLL_DIGEST_WINDOW + 1});
    }
    assert_int_equal(roll_sum_take(j.root, 9, &d, 0), ROLL_E_ARG);
    roll_sum_figures(j.root, &f);
    assert_int_equal(f.refused, 2000 - 21);
    j.wrong_rank = 1;
    j.wrong_seq = 30;
    while (least(&j) < 60) {
        look(&j);
    }
    assert_in_range(j.hints, 1, 2);
    roll_digest_fini(&d);
    job_fini(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_roundest_number_is_found),
        cmocka_unit_test(what_was_told_first_is_what_others_are_compared_with),
        cmocka_unit_test(who_knows_nothing_of_each_other_meets),
        cmocka_unit_test(a_wrong_call_is_heard_of_before_its_window_is_full),
        cmocka_unit_test(a_check_point_says_from_where_on_calls_may_differ),
        cmocka_unit_test(a_level_tells_of_the_newest_window),
        cmocka_unit_test(who_comes_later_may_have_been_wrong_before),
        cmocka_unit_test(the_first_call_that_may_differ_lies_in_the_window),
        cmocka_unit_test(a_second_wrong_call_is_heard_of_with_its_window),
        cmocka_unit_test(equal_calls_give_no_hint),
        cmocka_unit_test(made_up_points_blind_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
