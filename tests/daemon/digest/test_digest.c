/*
 * test_digest.c: ranks that agree are told of by hashes, and each way to disagree gives its hint, at any level, also
 * where digests come twice or from somebody who lies. What one rank tells: test_fold.c; the bytes of it:
 * test_digest_bytes.c.
 */
#include "tests/daemon/digest/folded_rank.h"

#include "trace/err.h"

/* Rank `child` tells what is new. */
static void tell(roll_sum_t *sum, struct folded_rank *r, uint32_t child, uint64_t now)
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
        assert_true(up.hint[i].key == (up.hint[i].why == ROLL_HINT_QUIET ? 0 : FOLDED_KEY));
        if (up.hint[i].key == FOLDED_KEY) {
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
    struct folded_rank r[3];
    struct roll_sum_figures f;
    roll_sum_t *root = folded_sum(true);
    for (uint32_t i = 0; i < 3; i++) {
        folded_init(&r[i], i, 3);
    }
    for (uint32_t look = 1; look <= 10; look++) {
        for (uint32_t i = 0; i < 3; i++) {
            folded_calls(&r[i], 50 + 3 * i * (look % 2 ? 1 : 0)); /* never at one place when they tell */
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
    assert_true(roll_sum_place(root, FOLDED_KEY, &place));
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
    struct folded_rank r[2];
    roll_sum_t *root = folded_sum(true);
    uint32_t seq = UINT32_MAX;
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
        folded_calls(&r[i], n);
        folded_feed(&r[i], folded_reduce(r[i].seq++, i == 1 ? 7 : 8), ROLL_STATE_RETURNED);
        folded_calls(&r[i], gone_on + 5 * i * (gone_on != 0));
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
    struct folded_rank r[2];
    roll_sum_t *root = folded_sum(true);
    uint32_t seq = 0;
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
        folded_calls(&r[i], 20 + i);
        tell(root, &r[i], i, 100 * MS);
    }
    assert_int_equal(hints(root, 100 * MS, NULL), 0);
    assert_int_equal(hints(root, 100 * MS + FOLDED_STAND - 1, NULL), 0);
    assert_int_equal(hints(root, 100 * MS + FOLDED_STAND, &seq), 1u << ROLL_HINT_STANDS);
    assert_int_equal(seq, 20);
    assert_int_equal(hints(root, 100 * MS + 2 * FOLDED_STAND, NULL), 0);
    /* Both at rest for long, and then one goes on: that is no long time behind. */
    folded_calls(&r[0], 1);
    tell(root, &r[0], 0, 1000 * MS);
    assert_int_equal(hints(root, 1000 * MS, NULL), 0);
    folded_calls(&r[1], 1);
    tell(root, &r[1], 1, 9000 * MS);
    assert_int_equal(hints(root, 9000 * MS, NULL), 0);
    assert_int_equal(hints(root, 9000 * MS + FOLDED_STAND, NULL), 1u << ROLL_HINT_STANDS);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

static void a_member_of_whom_nothing_is_heard_stands(void **state)
{
    (void)state;
    struct folded_rank r;
    roll_sum_t *root = folded_sum(true), *node = folded_sum(false);
    folded_init(&r, 0, 2);
    folded_calls(&r, 3);
    tell(root, &r, 0, 100 * MS);
    roll_fold_again(r.fold);
    tell(node, &r, 0, 100 * MS);
    (void)hints(root, 100 * MS, NULL);
    assert_int_equal(hints(root, 100 * MS + FOLDED_STAND, NULL), 1u << ROLL_HINT_STANDS);
    assert_int_equal(hints(node, 100 * MS, NULL) | hints(node, 100 * MS + FOLDED_STAND, NULL),
                     0); /* not its business */
    roll_fold_destroy(&r.fold);
    roll_sum_destroy(&root);
    roll_sum_destroy(&node);
}

static void messages_meet_their_like(void **state)
{
    (void)state;
    struct folded_rank r[2];
    roll_sum_t *root = folded_sum(true);
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
    }
    for (uint32_t i = 0; i < 700; i++) {
        folded_message(&r[0], ROLL_OP_SEND, 1, i, i);
        folded_message(&r[1], ROLL_OP_RECV, 0, i, i);
    }
    tell(root, &r[0], 0, 100 * MS);
    tell(root, &r[1], 1, 100 * MS);
    (void)hints(root, 100 * MS, NULL);
    assert_int_equal(hints(root, 100 * MS + FOLDED_STAND, NULL), 0);
    folded_message(&r[0], ROLL_OP_SEND, 1, 5, 700);
    tell(root, &r[0], 0, 1000 * MS);
    assert_int_equal(hints(root, 1000 * MS, NULL), 0); /* it may be on its way */
    uint32_t classes = 0;
    assert_int_equal(hints(root, 1000 * MS + FOLDED_STAND, &classes), 1u << ROLL_HINT_MESSAGES);
    assert_int_equal(classes, 1u << 700 / ROLL_DIGEST_WINDOW % ROLL_DIGEST_CLASSES);
    assert_int_equal(hints(root, 1000 * MS + 3 * FOLDED_STAND, NULL), 0);
    folded_message(&r[1], ROLL_OP_RECV, 0, 6, 700); /* another size */
    tell(root, &r[1], 1, 3000 * MS);
    (void)hints(root, 3000 * MS, NULL);
    assert_int_equal(hints(root, 3000 * MS + FOLDED_STAND, NULL), 1u << ROLL_HINT_MESSAGES);
    for (uint32_t i = 0; i < 2; i++) {
        roll_fold_destroy(&r[i].fold);
    }
    roll_sum_destroy(&root);
}

/* A communicator of which the other members turn out to be here, too, is taken back from the level above. */
static void a_level_takes_over_what_it_can_judge(void **state)
{
    (void)state;
    struct folded_rank r[2];
    struct roll_digest up = {0};
    roll_sum_t *node = folded_sum(false), *root = folded_sum(true);
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
    }
    folded_calls(&r[0], 5);
    tell(node, &r[0], 0, 100 * MS);
    roll_sum_cut(node, 100 * MS, &up);
    assert_int_equal(up.fronts, 1);
    assert_int_equal(up.front[0].members, 1);
    assert_int_equal(roll_sum_take(root, 0, &up, 100 * MS), 0);
    (void)hints(root, 100 * MS, NULL);
    folded_calls(&r[1], 4);
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
        {.key = FOLDED_KEY, .size = 0, .members = 0},
        {.key = FOLDED_KEY, .size = 4, .members = 5},
        {.key = FOLDED_KEY, .size = 4, .members = 1, .low = 3, .high = 2},
        {.key = FOLDED_KEY, .size = 5, .members = 1}, /* another size than was said before */
    };
    /* With those of child 0, five of four: these may be of an agent that has moved, and are waited with for a while. */
    const struct roll_digest_front many = {.key = FOLDED_KEY, .size = 4, .members = 2, .low = 1, .high = 1};
    struct roll_digest d = {0};
    struct roll_sum_figures f;
    roll_sum_t *root = roll_sum_new(&(struct roll_sum_config){.stand_ns = FOLDED_STAND, .is_root = true, .most = 4});
    assert_non_null(root);
    roll_digest_add_front(&d,
                          &(struct roll_digest_front){.key = FOLDED_KEY, .size = 4, .members = 3, .low = 9, .high = 9});
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
    roll_digest_add_front(&d, &(struct roll_digest_front){
                                  .key = FOLDED_KEY, .size = 4, .members = 1, .low = UINT32_MAX, .high = UINT32_MAX});
    assert_int_equal(roll_sum_take(root, 1, &d, 0), 0);
    (void)hints(root, 0, NULL);
    /* The second communicator of this child is taken, the third is one too many for it. */
    for (uint64_t k = 1; k <= 2; k++) {
        roll_digest_clear(&d);
        roll_digest_add_front(&d, &(struct roll_digest_front){.key = FOLDED_KEY + k, .size = 1, .members = 1});
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
    struct folded_rank r[2];
    roll_sum_t *root = folded_sum(true);
    for (uint32_t i = 0; i < 300; i++) {
        roll_digest_add_window(&d,
                               &(struct roll_digest_window){.key = FOLDED_KEY, .hash = i, .window = UINT32_MAX - i});
        roll_digest_add_window(&d, &(struct roll_digest_window){.key = FOLDED_KEY, .hash = i, .window = 128 + i});
    }
    assert_int_equal(roll_sum_take(root, 9, &d, 0), ROLL_E_ARG);
    roll_sum_figures(root, &f);
    assert_int_equal(f.refused, 600);
    for (uint32_t i = 0; i < 2; i++) {
        folded_init(&r[i], i, 2);
        folded_calls(&r[i], 10);
        folded_feed(&r[i], folded_reduce(r[i].seq++, 7 + i), ROLL_STATE_RETURNED);
        folded_calls(&r[i], 100 + i);
        tell(root, &r[i], i, 100 * MS);
        roll_fold_destroy(&r[i].fold);
    }
    assert_int_equal(hints(root, 100 * MS, NULL), 1u << ROLL_HINT_DIFFERS);
    roll_digest_fini(&d);
    roll_sum_destroy(&root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_work_is_done_and_forgotten),  cmocka_unit_test(another_size_is_heard_of),
        cmocka_unit_test(who_stands_is_told_in_time),        cmocka_unit_test(a_member_of_whom_nothing_is_heard_stands),
        cmocka_unit_test(messages_meet_their_like),          cmocka_unit_test(a_level_takes_over_what_it_can_judge),
        cmocka_unit_test(fronts_that_cannot_be_are_refused), cmocka_unit_test(made_up_windows_blind_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
