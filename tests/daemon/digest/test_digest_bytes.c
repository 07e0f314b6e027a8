/*
 * test_digest_bytes.c: digests as bytes: in pieces of any size they say the same, and bytes that are cut or lie are
 * refused whole.
 */
#include "tests/daemon/digest/folded_rank.h"

#include "daemon/digest/digest_bytes.h"
#include "trace/err.h"

#include <math.h>
#include <string.h>

static void fill(struct roll_digest *d)
{
    for (uint32_t i = 0; i < 9; i++) {
        struct roll_digest_messages sums = {.key = FOLDED_KEY + i, .sum = {i % 3, 0, 1, i}};
        for (uint32_t calls = 0; calls <= i; calls++) {
            roll_digest_add_window(
                d, &(struct roll_digest_window){.key = FOLDED_KEY + i, .hash = i * 77, .window = i, .calls = calls});
        }
        roll_digest_add_front(d, &(struct roll_digest_front){.key = FOLDED_KEY + i,
                                                             .hash = i,
                                                             .size = 8,
                                                             .members = 2,
                                                             .low = i,
                                                             .high = i + 1,
                                                             .differs = i % 2 == 1});
        roll_digest_add_messages(d, &sums);
        roll_digest_add_like(d, &(struct roll_digest_like){
                                    .key = FOLDED_KEY, .place = i, .hash = ~i, .why = ROLL_HINT_OBSERVED, .seq = i});
        roll_digest_add_share(d, &(struct roll_digest_share){.key = FOLDED_KEY,
                                                             .place = i,
                                                             .part = i,
                                                             .size = i + 1,
                                                             .least = -HUGE_VAL,
                                                             .most = i,
                                                             .members = 3,
                                                             .seq = i});
        roll_digest_add_hint(d, FOLDED_KEY, (enum roll_digest_why)(i % 8 + 1), i);
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
    roll_digest_add_share(&d, &(struct roll_digest_share){.key = FOLDED_KEY, .part = NAN, .members = 1});
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
    roll_digest_add_window(&d, &(struct roll_digest_window){.key = FOLDED_KEY, .hash = 5, .window = 3});
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

/* What an older reader would take for something else has a number above its own, for which it refuses all of it; this
 * one does so with the next number. */
static void another_form_has_another_number(void **state)
{
    (void)state;
    struct roll_digest d = {0}, back = {0};
    struct roll_digest_cursor cursor = {0};
    unsigned char bytes[256];
    uint16_t version;
    const uint32_t point = ROLL_DIGEST_WINDOW + 8; /* it differs in the second window, at its 8th call */
    roll_digest_add_hint(&d, FOLDED_KEY, ROLL_HINT_DIFFERS, point);
    size_t n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    memcpy(&version, bytes, sizeof(version));
    assert_int_equal(version, 3); /* those of 2 take the number for that of a window */
    assert_int_equal(roll_digest_decode(bytes, n, &back), 0);
    assert_int_equal(back.hint[0].seq, point);
    version = 4;
    memcpy(bytes, &version, sizeof(version));
    assert_int_equal(roll_digest_decode(bytes, n, &back), ROLL_E_VERSION);
    assert_int_equal(back.hints, 1); /* and nothing is added */
    /* From who writes 2: the whole window. */
    roll_digest_clear(&d);
    roll_digest_clear(&back);
    cursor = (struct roll_digest_cursor){0};
    roll_digest_add_hint(&d, FOLDED_KEY, ROLL_HINT_DIFFERS, ROLL_DIGEST_WINDOW);
    n = roll_digest_encode(&d, &cursor, bytes, sizeof(bytes));
    version = 2;
    memcpy(bytes, &version, sizeof(version));
    assert_int_equal(roll_digest_decode(bytes, n, &back), 0);
    assert_int_equal(roll_digest_first(back.hint[0].seq), ROLL_DIGEST_WINDOW);
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
    roll_sum_t *node = folded_sum(false), *fresh[2] = {folded_sum(true), folded_sum(false)};
    struct roll_digest up = {0}, came = {0};
    struct roll_sum_figures f;
    static unsigned char bytes[PAYLOAD];
    uint32_t payloads = 0;
    for (uint32_t c = 0; c < COMMS; c++) {
        struct roll_digest d = {0};
        uint32_t low = (LATE + TOLD) * ROLL_DIGEST_WINDOW + c % 7;
        for (uint32_t w = LATE; w < LATE + TOLD; w++) {
            roll_digest_add_window(&d, &(struct roll_digest_window){.key = FOLDED_KEY + c, .hash = c + w, .window = w});
        }
        roll_digest_add_front(
            &d, &(struct roll_digest_front){.key = FOLDED_KEY + c, .size = 2, .members = 1, .low = low, .high = low});
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_say_the_same_in_pieces_of_any_size),
        cmocka_unit_test(bytes_that_are_cut_or_lie_are_refused_whole),
        cmocka_unit_test(the_form_without_check_points_is_read),
        cmocka_unit_test(another_form_has_another_number),
        cmocka_unit_test(a_new_receiver_takes_all_of_a_digest_of_many_payloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
