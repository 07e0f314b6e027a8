/*
 * test_digest.c: ranks that agree are told of by hashes, and each way to disagree gives its hint, at any level, also
 * where digests come twice, in pieces, or from somebody who lies.
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

#define MS     1000000ull
#define STAND  (250 * MS)
#define INSIDE (1000 * MS)
#define KEY    0x1234567890abcdefull
#define LOGS   1024u

/* One rank: its fold, and the records that it was fed. */
struct rank {
    roll_fold_t *fold;
    struct roll_record rec[LOGS];
    uint64_t next;
    uint32_t seq, sent[8], received[8];
};

static void rank_init(struct rank *r, uint32_t place, uint32_t size)
{
    struct roll_def_comm info = {.key = KEY, .rank = (int32_t)place, .nranks = (int32_t)size};
    memset(r, 0, sizeof(*r));
    r->fold = roll_fold_new(INSIDE);
    assert_non_null(r->fold);
    assert_int_equal(roll_fold_comm(r->fold, 1, &info), 0);
}

static void feed(struct rank *r, struct roll_record rec, enum roll_state state)
{
    rec.seal = roll_seal(r->next, state);
    rec.comm = 1;
    rec.thread = rec.thread ? rec.thread : 1;
    rec.enter_ns = r->next * 1000;
    rec.call_ns = 10;
    r->rec[r->next % LOGS] = rec;
    assert_int_equal(roll_fold_record(r->fold, &rec, 0), 0);
    r->next++;
}

static struct roll_record reduce_of(uint32_t seq, uint64_t count)
{
    return (struct roll_record){.op = ROLL_OP_ALLREDUCE,
                                .seq = seq,
                                .count = count,
                                .peer = ROLL_PEER_NONE,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_SUM};
}

static void calls(struct rank *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, r->seq++) {
        feed(r, reduce_of(r->seq, 100 + r->seq % 7), ROLL_STATE_RETURNED);
    }
}

static void message(struct rank *r, enum roll_op op, uint32_t peer, uint64_t count, uint32_t seq)
{
    struct roll_record rec = {.op = (uint8_t)op,
                              .seq = seq,
                              .count = count,
                              .peer = (int32_t)peer,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .redop = ROLL_RED_NONE};
    feed(r, rec, ROLL_STATE_RETURNED);
}

static roll_sum_t *sum_new(bool is_root)
{
    roll_sum_t *sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND, .is_root = is_root});
    assert_non_null(sum);
    return sum;
}

/* Rank `child` tells what is new. */
static void tell(roll_sum_t *sum, struct rank *r, uint32_t child, uint64_t now)
{
    struct roll_digest d = {0};
    roll_fold_cut(r->fold, now, &d);
    assert_int_equal(roll_sum_take(sum, child, &d, now), 0);
    assert_int_equal(roll_sum_take(sum, child, &d, now), 0); /* what comes twice counts once */
    roll_digest_fini(&d);
}

/* The hints that the level gives now about the communicator, as bits; *seq: of the last. */
static uint32_t hints(roll_sum_t *sum, uint64_t now, uint32_t *seq)
{
    struct roll_digest up = {0};
    uint32_t bits = 0;
    roll_sum_cut(sum, now, &up);
    for (size_t i = 0; i < up.hints; i++) {
        assert_true(up.hint[i].key == (up.hint[i].why == ROLL_HINT_QUIET ? 0 : KEY));
        if (up.hint[i].key == KEY) {
            bits |= 1u << up.hint[i].why;
            if (seq) {
                *seq = up.hint[i].seq;
            }
        }
    }
    roll_digest_fini(&up);
    return bits;
}

static void equal_work_is_done_and_forgotten(void **state)
{
    (void)state;
    struct rank r[3];
    struct roll_sum_figures f;
    roll_sum_t *root = sum_new(true);
    for (uint32_t i = 0; i < 3; i++) {
        rank_init(&r[i], i, 3);
    }
    for (uint32_t look = 1; look <= 10; look++) {
        for (uint32_t i = 0; i < 3; i++) {
            calls(&r[i], 50 + 3 * i * (look % 2 ? 1 : 0)); /* never at one place when they tell */
            r[i].seq -= 0;
            tell(root, &r[i], i, look * 100 * MS);
        }
        assert_int_equal(hints(root, look * 100 * MS, NULL) & ~(1u << ROLL_HINT_STANDS), 0);
    }
    roll_sum_figures(root, &f);
    assert_int_equal(f.done, r[0].seq / ROLL_DIGEST_WINDOW);
    assert_true(f.done >= 7);
    assert_int_equal(f.refused + f.late, 0);
    struct roll_sum_place place;
    assert_true(roll_sum_place(root, KEY, &place));
    assert_int_equal(place.low, r[0].seq);
    assert_int_equal(place.high, r[2].seq);
    for (uint32_t i = 0; i < 3; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

/* Rank 1 of two calls another size as its n-th; is that heard of when both have gone on to 200, and at what place? */
static void another_size(uint32_t n, uint32_t gone_on)
{
    struct rank r[2];
    roll_sum_t *root = sum_new(true);
    uint32_t seq = UINT32_MAX;
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
        calls(&r[i], n);
        feed(&r[i], reduce_of(r[i].seq++, i == 1 ? 7 : 8), ROLL_STATE_RETURNED);
        calls(&r[i], gone_on + 5 * i * (gone_on != 0));
        tell(root, &r[i], i, 100 * MS);
    }
    assert_int_equal(hints(root, 100 * MS, &seq), 1u << ROLL_HINT_DIFFERS);
    assert_int_equal(seq, n - n % ROLL_DIGEST_WINDOW);
    assert_int_equal(hints(root, 150 * MS, &seq), 0); /* once */
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

static void another_size_is_heard_of(void **state)
{
    (void)state;
    another_size(0, 0); /* both wait in it */
    another_size(17, 0);
    another_size(63, 0); /* the last of its window */
    another_size(64, 0);
    another_size(17, 100); /* both have gone on, and are apart */
    another_size(130, 90);
}

static void who_stands_is_told_in_time(void **state)
{
    (void)state;
    struct rank r[2];
    roll_sum_t *root = sum_new(true);
    uint32_t seq = 0;
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
        calls(&r[i], 20 + i);
        tell(root, &r[i], i, 100 * MS);
    }
    assert_int_equal(hints(root, 100 * MS, NULL), 0);
    assert_int_equal(hints(root, 100 * MS + STAND - 1, NULL), 0);
    assert_int_equal(hints(root, 100 * MS + STAND, &seq), 1u << ROLL_HINT_STANDS);
    assert_int_equal(seq, 20);
    assert_int_equal(hints(root, 100 * MS + 2 * STAND, NULL), 0);
    /* Both at rest for long, and then one goes on: that is no long time behind. */
    calls(&r[0], 1);
    tell(root, &r[0], 0, 1000 * MS);
    assert_int_equal(hints(root, 1000 * MS, NULL), 0);
    calls(&r[1], 1);
    tell(root, &r[1], 1, 9000 * MS);
    assert_int_equal(hints(root, 9000 * MS, NULL), 0);
    assert_int_equal(hints(root, 9000 * MS + STAND, NULL), 1u << ROLL_HINT_STANDS);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

static void a_member_of_whom_nothing_is_heard_stands(void **state)
{
    (void)state;
    struct rank r;
    roll_sum_t *root = sum_new(true), *node = sum_new(false);
    rank_init(&r, 0, 2);
    calls(&r, 3);
    tell(root, &r, 0, 100 * MS);
    roll_fold_again(r.fold);
    tell(node, &r, 0, 100 * MS);
    (void)hints(root, 100 * MS, NULL);
    assert_int_equal(hints(root, 100 * MS + STAND, NULL), 1u << ROLL_HINT_STANDS);
    assert_int_equal(hints(node, 100 * MS, NULL) | hints(node, 100 * MS + STAND, NULL), 0); /* not its business */
    roll_fold_destroy(&r.fold);
    roll_sum_destroy(&root);
    roll_sum_destroy(&node);
}

static void messages_meet_their_like(void **state)
{
    (void)state;
    struct rank r[2];
    roll_sum_t *root = sum_new(true);
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
    }
    for (uint32_t i = 0; i < 700; i++) {
        message(&r[0], ROLL_OP_SEND, 1, i, i);
        message(&r[1], ROLL_OP_RECV, 0, i, i);
    }
    tell(root, &r[0], 0, 100 * MS);
    tell(root, &r[1], 1, 100 * MS);
    (void)hints(root, 100 * MS, NULL);
    assert_int_equal(hints(root, 100 * MS + STAND, NULL), 0);
    message(&r[0], ROLL_OP_SEND, 1, 5, 700);
    tell(root, &r[0], 0, 1000 * MS);
    assert_int_equal(hints(root, 1000 * MS, NULL), 0); /* it may be on its way */
    uint32_t classes = 0;
    assert_int_equal(hints(root, 1000 * MS + STAND, &classes), 1u << ROLL_HINT_MESSAGES);
    assert_int_equal(classes, 1u << 700 / ROLL_DIGEST_WINDOW % ROLL_DIGEST_CLASSES);
    assert_int_equal(hints(root, 1000 * MS + 3 * STAND, NULL), 0);
    message(&r[1], ROLL_OP_RECV, 0, 6, 700); /* another size */
    tell(root, &r[1], 1, 3000 * MS);
    (void)hints(root, 3000 * MS, NULL);
    assert_int_equal(hints(root, 3000 * MS + STAND, NULL), 1u << ROLL_HINT_MESSAGES);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

/* A refused call gives its number back: two ranks agree although one of them has made a call that NCCL refused. */
static void a_refused_call_leaves_no_trace_in_the_hash(void **state)
{
    (void)state;
    struct rank r[2];
    struct roll_digest d[2] = {{0}, {0}};
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
        calls(&r[i], 10);
        if (i == 1) {
            struct roll_record rec = reduce_of(r[i].seq, 999);
            feed(&r[i], rec, ROLL_STATE_ENTERED);
            rec = r[i].rec[r[i].next - 1];
            rec.seal = roll_seal(r[i].next - 1, ROLL_STATE_RETURNED);
            rec.result = 4;
            assert_int_equal(roll_fold_record(r[i].fold, &rec, 0), 0);
        }
        calls(&r[i], 100);
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

static void lost_records_make_no_window(void **state)
{
    (void)state;
    struct rank r;
    struct roll_digest d = {0};
    rank_init(&r, 0, 2);
    calls(&r, 70);
    r.next += 5;
    r.seq += 5;
    calls(&r, 125);
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

/* A communicator of which the other members turn out to be here, too, is taken back from the level above. */
static void a_level_takes_over_what_it_can_judge(void **state)
{
    (void)state;
    struct rank r[2];
    struct roll_digest up = {0};
    roll_sum_t *node = sum_new(false), *root = sum_new(true);
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
    }
    calls(&r[0], 5);
    tell(node, &r[0], 0, 100 * MS);
    roll_sum_cut(node, 100 * MS, &up);
    assert_int_equal(up.fronts, 1);
    assert_int_equal(up.front[0].members, 1);
    assert_int_equal(roll_sum_take(root, 0, &up, 100 * MS), 0);
    (void)hints(root, 100 * MS, NULL);
    calls(&r[1], 4);
    tell(node, &r[1], 1, 200 * MS);
    roll_digest_clear(&up);
    roll_sum_cut(node, 200 * MS, &up);
    assert_int_equal(up.fronts, 1);
    assert_int_equal(up.front[0].members, 0);
    assert_int_equal(roll_sum_take(root, 0, &up, 200 * MS), 0);
    assert_int_equal(hints(root, 5000 * MS, NULL), 0);
    assert_int_equal(hints(node, 5000 * MS, NULL), 1u << ROLL_HINT_STANDS);
    roll_digest_fini(&up);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&node);
    roll_sum_destroy(&root);
}

static void fronts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const struct roll_digest_front bad[] = {
        {.key = KEY, .size = 0, .members = 0},
        {.key = KEY, .size = 4, .members = 5},
        {.key = KEY, .size = 4, .members = 1, .low = 3, .high = 2},
        {.key = KEY, .size = 5, .members = 1}, /* another size than was said before */
    };
    /* With those of child 0, five of four: these may be of an agent that has moved, and are waited with for a while. */
    const struct roll_digest_front many = {.key = KEY, .size = 4, .members = 2, .low = 1, .high = 1};
    struct roll_digest d = {0};
    struct roll_sum_figures f;
    roll_sum_t *root = roll_sum_new(&(struct roll_sum_config){.stand_ns = STAND, .is_root = true, .most = 2});
    assert_non_null(root);
    roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 3, .low = 9, .high = 9});
    assert_int_equal(roll_sum_take(root, 0, &d, 0), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        roll_digest_clear(&d);
        roll_digest_add_front(&d, &bad[i]);
        assert_int_equal(roll_sum_take(root, 1, &d, 0), ROLL_E_ARG);
    }
    roll_digest_clear(&d);
    roll_digest_add_front(&d, &many);
    assert_int_equal(roll_sum_take(root, 1, &d, 0), 0);
    (void)hints(root, 9000 * MS, NULL);
    roll_sum_figures(root, &f);
    assert_int_equal(f.refused, sizeof(bad) / sizeof(*bad));
    (void)hints(root, 11000 * MS, NULL);
    roll_digest_clear(&d);
    assert_int_equal(roll_sum_take(root, 1, &d, 0), ROLL_E_ARG);
    assert_int_equal(roll_sum_take(root, 1, &d, 0), 0);
    /* A front far away costs no more than one nearby. */
    roll_digest_clear(&d);
    roll_digest_add_front(
        &d, &(struct roll_digest_front){.key = KEY, .size = 4, .members = 1, .low = UINT32_MAX, .high = UINT32_MAX});
    assert_int_equal(roll_sum_take(root, 1, &d, 0), 0);
    (void)hints(root, 0, NULL);
    /* The second communicator is taken, the third is one too many. */
    for (uint64_t k = 1; k <= 2; k++) {
        roll_digest_clear(&d);
        roll_digest_add_front(&d, &(struct roll_digest_front){.key = KEY + k, .size = 1, .members = 1});
        assert_int_equal(roll_sum_take(root, 1, &d, 0), k == 1 ? 0 : ROLL_E_NOMEM);
    }
    roll_sum_figures(root, &f);
    assert_int_equal(f.refused, sizeof(bad) / sizeof(*bad) + 2);
    assert_int_equal(f.comms, 2);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

/* Somebody tells of windows that nobody has come to: the true ones are compared all the same. */
static void made_up_windows_blind_nobody(void **state)
{
    (void)state;
    struct roll_digest d = {0};
    struct roll_sum_figures f;
    struct rank r[2];
    roll_sum_t *root = sum_new(true);
    for (uint32_t i = 0; i < 300; i++) {
        roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = i, .window = UINT32_MAX - i});
        roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = i, .window = 128 + i});
    }
    assert_int_equal(roll_sum_take(root, 9, &d, 0), ROLL_E_ARG);
    roll_sum_figures(root, &f);
    assert_int_equal(f.refused, 600);
    for (uint32_t i = 0; i < 2; i++) {
        rank_init(&r[i], i, 2);
        calls(&r[i], 10);
        feed(&r[i], reduce_of(r[i].seq++, 7 + i), ROLL_STATE_RETURNED);
        calls(&r[i], 100 + i);
        tell(root, &r[i], i, 100 * MS);
        roll_fold_destroy(&r[i].fold);
    }
    assert_int_equal(hints(root, 100 * MS, NULL), 1u << ROLL_HINT_DIFFERS);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

static void fill(struct roll_digest *d)
{
    for (uint32_t i = 0; i < 9; i++) {
        struct roll_digest_messages sums = {.key = KEY + i, .sum = {i % 3, 0, 1, i}};
        for (uint32_t calls = 0; calls <= i; calls++) {
            roll_digest_add_window(
                d, &(struct roll_digest_window){.key = KEY + i, .hash = i * 77, .window = i, .calls = calls});
        }
        roll_digest_add_front(
            d, &(struct roll_digest_front){
                   .key = KEY + i, .hash = i, .size = 8, .members = 2, .low = i, .high = i + 1, .differs = i % 2 == 1});
        roll_digest_add_messages(d, &sums);
        roll_digest_add_like(
            d, &(struct roll_digest_like){.key = KEY, .place = i, .hash = ~i, .why = ROLL_HINT_OBSERVED, .seq = i});
        roll_digest_add_share(d, &(struct roll_digest_share){.key = KEY,
                                                             .place = i,
                                                             .part = i,
                                                             .size = i + 1,
                                                             .least = -HUGE_VAL,
                                                             .most = i,
                                                             .members = 3,
                                                             .seq = i});
        roll_digest_add_hint(d, KEY, (enum roll_digest_why)(i % 8 + 1), i);
    }
}

/* What a communicator has of windows and its front, in a payload of its own. */
#define LARGEST (32u + 9u * 24u + 40u)

/* Of each communicator all has come, or nothing. */
static void assert_together(const struct roll_digest *d, const struct roll_digest *back)
{
    size_t windows = 0;
    for (size_t i = 0; i < back->fronts; i++) {
        for (size_t k = 0; k < d->windows; k++) {
            windows += d->window[k].key == back->front[i].key;
        }
    }
    assert_int_equal(back->windows, windows);
}

static void bytes_say_the_same_in_pieces_of_any_size(void **state)
{
    (void)state;
    struct roll_digest d = {0};
    unsigned char bytes[4096];
    fill(&d);
    for (size_t room = 96; room < sizeof(bytes); room += 37) {
        struct roll_digest_cursor cursor = {0};
        struct roll_digest back = {0};
        for (size_t n; (n = roll_digest_encode(&d, &cursor, bytes, room)) != 0;) {
            assert_true(n <= room);
            assert_int_equal(roll_digest_decode(bytes, n, &back), 0);
            if (room >= LARGEST) {
                assert_together(&d, &back);
            }
        }
        assert_int_equal(back.windows, d.windows);
        assert_int_equal(back.fronts, d.fronts);
        assert_int_equal(back.sums, d.sums);
        assert_int_equal(back.likes, d.likes);
        assert_int_equal(back.shares, d.shares);
        assert_int_equal(back.hints, d.hints);
        for (size_t i = 0; i < d.windows; i++) {
            assert_true(back.window[i].key == d.window[i].key && back.window[i].hash == d.window[i].hash &&
                        back.window[i].window == d.window[i].window && back.window[i].calls == d.window[i].calls);
        }
        for (size_t i = 0; i < d.fronts; i++) {
            assert_true(back.front[i].key == d.front[i].key && back.front[i].hash == d.front[i].hash &&
                        back.front[i].size == d.front[i].size && back.front[i].members == d.front[i].members &&
                        back.front[i].low == d.front[i].low && back.front[i].high == d.front[i].high &&
                        back.front[i].differs == d.front[i].differs);
            assert_memory_equal(&back.messages[i], &d.messages[i], sizeof(d.messages[i]));
            assert_memory_equal(&back.like[i], &d.like[i], sizeof(d.like[i]));
            assert_memory_equal(&back.share[i], &d.share[i], sizeof(d.share[i]));
            assert_memory_equal(&back.hint[i], &d.hint[i], sizeof(d.hint[i]));
        }
        roll_digest_fini(&back);
    }
    struct roll_digest_cursor cursor = {0};
    assert_int_equal(roll_digest_encode(&d, &cursor, bytes, 47),
                     0); /* no part has room: the caller does not turn for ever */
    roll_digest_fini(&d);
}

static void bytes_that_are_cut_or_lie_are_refused_whole(void **state)
{
    (void)state;
    struct roll_digest d = {0}, back = {0};
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[4096];
    fill(&d);
    size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(roll_digest_decode(bytes, cut, &back), cut < 32 ? ROLL_E_SHORT : ROLL_E_SIZE);
        assert_int_equal(back.windows + back.fronts + back.sums + back.likes + back.shares + back.hints, 0);
    }
    bytes[n] = 0;
    assert_int_equal(roll_digest_decode(bytes, n + 1, &back), ROLL_E_SIZE); /* something behind the end */
    uint32_t many = UINT32_MAX;
    memcpy(bytes + 8, &many, sizeof(many)); /* windows */
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_SIZE);
    assert_int_equal(back.windows, 0);
    bytes[0]++;
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_VERSION);
    /* A share that is no number would be everybody's above. */
    roll_digest_clear(&d);
    roll_digest_add_share(&d, &(struct roll_digest_share){.key = KEY, .part = NAN, .members = 1});
    cursor = (struct roll_digest_cursor){0};
    n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_SIZE);
    roll_digest_fini(&d);
    roll_digest_fini(&back);
}

/* Digests of the form before check points are windows and fronts as they are now. */
static void the_form_without_check_points_is_read(void **state)
{
    (void)state;
    struct roll_digest d = {0}, back = {0};
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[256];
    const uint16_t oldest = 1, before = 0;
    const uint32_t whole = ROLL_DIGEST_WINDOW;
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY, .hash = 5, .window = 3});
    size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    memcpy(bytes, &oldest, sizeof(oldest));
    assert_int_equal(roll_digest_decode(bytes, n, &back), 0);
    assert_int_equal(back.windows, 1);
    assert_int_equal(back.window[0].window, 3);
    assert_int_equal(back.window[0].calls, 0);
    memcpy(bytes, &before, sizeof(before));
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_VERSION);
    memcpy(bytes, &oldest, sizeof(oldest));
    memcpy(bytes + n - sizeof(whole), &whole, sizeof(whole)); /* a check point lies within its window */
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_SIZE);
    roll_digest_fini(&d);
    roll_digest_fini(&back);
}

/*
 * A node that has run for long tells a root that was started anew, in so many payloads that fronts alone fill several.
 * All of its windows are compared; none is taken for made up, though their numbers are high.
 */
static void a_new_receiver_takes_all_of_a_digest_of_many_payloads(void **state)
{
    (void)state;
    enum { COMMS = 2000, LATE = 5000, TOLD = 3, PAYLOAD = 32768 };
    roll_sum_t *node = sum_new(false), *fresh[2] = {sum_new(true), sum_new(false)};
    struct roll_digest up = {0}, came = {0};
    struct roll_sum_figures f;
    static unsigned char bytes[PAYLOAD];
    uint32_t payloads = 0;
    for (uint32_t c = 0; c < COMMS; c++) {
        struct roll_digest d = {0};
        uint32_t low = (LATE + TOLD) * ROLL_DIGEST_WINDOW + c % 7;
        for (uint32_t w = LATE; w < LATE + TOLD; w++) {
            roll_digest_add_window(&d, &(struct roll_digest_window){.key = KEY + c, .hash = c + w, .window = w});
        }
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = KEY + c, .size = 2, .members = 1, .low = low, .high = low});
        assert_int_equal(roll_sum_take(node, 0, &d, 0), 0);
        roll_digest_fini(&d);
    }
    roll_sum_cut(node, 0, &up);
    roll_digest_clear(&up);
    roll_sum_again(node);
    roll_sum_cut(node, 0, &up);
    assert_int_equal(up.windows, COMMS * TOLD);
    struct roll_digest_cursor cursor = {0};
    for (size_t n; (n = roll_digest_encode(&up, &cursor, bytes, sizeof(bytes))) != 0; payloads++) {
        roll_digest_clear(&came);
        assert_int_equal(roll_digest_decode(bytes, n, &came), 0);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(roll_sum_take(fresh[i], 0, &came, 0), 0);
            /* What a relay tells before the rest has come it does not tell later. */
            struct roll_digest on = {0};
            roll_sum_cut(fresh[i], 0, &on);
            assert_int_equal(on.windows, i == 1 ? came.windows : 0);
            assert_int_equal(on.fronts, i == 1 ? came.fronts : 0);
            roll_digest_fini(&on);
        }
    }
    assert_true(payloads > COMMS * sizeof(uint64_t) * 5 / PAYLOAD); /* as many as fronts alone fill, and more */
    /* The other member of each tells the same, but for one window. */
    for (size_t i = 0; i < up.windows; i++) {
        up.window[i].hash ^= i == up.windows - 2;
    }
    assert_int_equal(roll_sum_take(fresh[0], 1, &up, 0), 0);
    roll_digest_clear(&came);
    roll_sum_cut(fresh[0], 0, &came);
    assert_int_equal(came.hints, 1);
    assert_int_equal(came.hint[0].why, ROLL_HINT_DIFFERS);
    assert_int_equal(came.hint[0].seq, (LATE + 1) * ROLL_DIGEST_WINDOW);
    roll_sum_figures(fresh[0], &f);
    assert_int_equal(f.refused + f.late, 0);
    assert_int_equal(f.windows, 2 * COMMS * TOLD);
    roll_digest_fini(&up);
    roll_digest_fini(&came);
    roll_sum_destroy(&node);
    roll_sum_destroy(&fresh[0]);
    roll_sum_destroy(&fresh[1]);
}

static bool record_of(void *from, uint64_t ticket, struct roll_record *out)
{
    const struct rank *r = from;
    *out = r->rec[ticket % LOGS];
    return true;
}

static void an_excerpt_holds_what_is_asked_for(void **state)
{
    (void)state;
    struct rank r;
    rank_init(&r, 0, 4);
    calls(&r, 100);
    struct roll_record rec = reduce_of(r.seq, 3);
    feed(&r, rec, ROLL_STATE_ENTERED); /* ticket 100: a host is inside */
    r.seq++;
    for (uint32_t i = 0; i < 4; i++) { /* 101-104: one group */
        rec = reduce_of(r.seq++, 3);
        rec.group = 9;
        feed(&r, rec, ROLL_STATE_RETURNED);
    }
    message(&r, ROLL_OP_SEND, 2, 5, 0); /* 105 */
    calls(&r, 95);                      /* 106-200 */
    message(&r, ROLL_OP_SEND, 2, 5, 1); /* 201 */
    message(&r, ROLL_OP_RECV, 2, 5, 0); /* 202 */
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
    struct rank r;
    struct roll_digest d = {0};
    rank_init(&r, 0, 2);
    feed(&r, reduce_of(0, 3), ROLL_STATE_ENTERED);
    roll_fold_cut(r.fold, INSIDE - 1, &d);
    assert_int_equal(d.hints, 0);
    roll_fold_cut(r.fold, INSIDE, &d);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].why, ROLL_HINT_INSIDE);
    roll_fold_cut(r.fold, 2 * INSIDE - 1, &d);
    assert_int_equal(d.hints, 1);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

/* A rank that calls nothing is told of while its last calls may go on, and not when it has waited for them. */
static void a_quiet_rank_is_told_of_once(void **state)
{
    (void)state;
    struct rank r;
    struct roll_digest d = {0};
    rank_init(&r, 0, 2);
    calls(&r, 3);
    roll_fold_cut(r.fold, 2 * INSIDE - 1, &d);
    assert_int_equal(d.hints, 0);
    roll_fold_cut(r.fold, 2 * INSIDE, &d);
    roll_fold_cut(r.fold, 9 * INSIDE, &d);
    assert_int_equal(d.hints, 1);
    assert_int_equal(d.hint[0].why, ROLL_HINT_QUIET);
    calls(&r, 1);
    feed(&r, (struct roll_record){.op = ROLL_OP_DEVICE_SYNC, .peer = ROLL_PEER_NONE}, ROLL_STATE_RETURNED);
    roll_fold_cut(r.fold, 20 * INSIDE, &d);
    assert_int_equal(d.hints, 1);

    /* A wait that is read while the host is inside is heard of a second time, here behind the call that followed it: it
     * says nothing about that call. */
    struct roll_record wait = {.op = ROLL_OP_DEVICE_SYNC, .peer = ROLL_PEER_NONE};
    feed(&r, wait, ROLL_STATE_ENTERED);
    uint64_t ticket = r.next - 1;
    calls(&r, 1);
    wait = r.rec[ticket % LOGS];
    wait.seal = roll_seal(ticket, ROLL_STATE_RETURNED);
    assert_int_equal(roll_fold_record(r.fold, &wait, 21 * INSIDE), 0);
    roll_fold_cut(r.fold, 40 * INSIDE, &d);
    assert_int_equal(d.hints, 2);
    assert_int_equal(d.hint[1].why, ROLL_HINT_QUIET);
    roll_digest_fini(&d);
    roll_fold_destroy(&r.fold);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_work_is_done_and_forgotten),
        cmocka_unit_test(another_size_is_heard_of),
        cmocka_unit_test(who_stands_is_told_in_time),
        cmocka_unit_test(a_member_of_whom_nothing_is_heard_stands),
        cmocka_unit_test(messages_meet_their_like),
        cmocka_unit_test(a_refused_call_leaves_no_trace_in_the_hash),
        cmocka_unit_test(lost_records_make_no_window),
        cmocka_unit_test(a_level_takes_over_what_it_can_judge),
        cmocka_unit_test(fronts_that_cannot_be_are_refused),
        cmocka_unit_test(made_up_windows_blind_nobody),
        cmocka_unit_test(bytes_say_the_same_in_pieces_of_any_size),
        cmocka_unit_test(bytes_that_are_cut_or_lie_are_refused_whole),
        cmocka_unit_test(the_form_without_check_points_is_read),
        cmocka_unit_test(a_new_receiver_takes_all_of_a_digest_of_many_payloads),
        cmocka_unit_test(an_excerpt_holds_what_is_asked_for),
        cmocka_unit_test(a_host_that_stays_inside_is_told_of_once),
        cmocka_unit_test(a_quiet_rank_is_told_of_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
