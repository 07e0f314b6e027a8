/*
 * test_shares.c: no sum of shares is lost while its members tell theirs: not where they tell many at once, one after
 * the other, not where one is steps behind the others; and one that never comes holds up nobody else's.
 */
#include "daemon/digest/like.h"
#include "daemon/digest/sum.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h needs the four above first. */
#include <cmocka.h>

#define SLOTS   2048u /* as a level has when nothing else is said */
#define MEMBERS 4u
#define LAYERS  4u
#define S       1000000000ull

/* A number that looks random, as keys and places do; the same in each run. */
static uint64_t mixed(uint64_t n)
{
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ n >> 31) * 0xbf58476d1ce4e5b9u;
    return n ^ n >> 29;
}

/* What each member tells: a share of 1, and as their sum what is right, or twice as much. */
static struct roll_digest_share share_of(uint64_t key, uint64_t place, bool wrong)
{
    double got = wrong ? 2.0 * MEMBERS : MEMBERS;
    return (struct roll_digest_share){
        .key = key, .place = mixed(place), .part = 1, .size = 1, .least = got, .most = got, .members = 1, .seq = 4};
}

static void take(struct roll_shares *t, uint32_t child, uint64_t key, uint64_t place)
{
    struct roll_digest_share one = share_of(key, place, false);
    assert_int_equal(roll_shares_take(t, child, &one, SLOTS), 0);
}

/* How many sums are whole now, as a cut takes them out; none has more members than there are. */
static uint32_t whole(struct roll_shares *t)
{
    struct roll_digest_share all;
    struct roll_share *s;
    uint32_t n = 0;
    while ((s = roll_shares_next(t, &all)) != NULL) {
        assert_in_range(all.members, 1, MEMBERS);
        s->over = all.members == MEMBERS;
        n += s->over;
        assert_true(!s->over || all.part == MEMBERS);
    }
    return n;
}

/* Four layers in six steps, of which an agent reads all at its first look: one ring after the other, and one sum of
 * them is wrong. A key for each run, as jobs have. */
static void of_sums_that_are_told_in_one_look_none_is_lost(void **state)
{
    (void)state;
    for (uint64_t run = 0; run < 1000; run++) {
        uint64_t key = mixed(run) | 1, sick = run % (6 * LAYERS);
        struct roll_digest d = {0}, up = {0};
        roll_sum_t *node = roll_sum_new(&(struct roll_sum_config){.stand_ns = S});
        assert_non_null(node);
        for (uint32_t child = 0; child < MEMBERS; child++) {
            roll_digest_clear(&d);
            roll_digest_add_front(
                &d, &(struct roll_digest_front){.key = key, .size = MEMBERS, .members = 1, .low = 9, .high = 9});
            for (uint64_t i = 0; i < 6 * LAYERS; i++) {
                struct roll_digest_share one = share_of(key, i, i == sick);
                roll_digest_add_share(&d, &one);
            }
            assert_int_equal(roll_sum_take(node, child, &d, S), 0);
        }
        roll_sum_cut(node, S, &up);
        assert_int_equal(up.hints, 1);
        assert_int_equal(up.hint[0].why, ROLL_HINT_OBSERVED);
        assert_int_equal(up.hint[0].seq, 4);
        roll_digest_fini(&d);
        roll_digest_fini(&up);
        roll_sum_destroy(&node);
    }
}

/* The last member is always 32 steps behind, and its shares come between those of later steps. */
static void a_member_may_be_steps_behind_the_others(void **state)
{
    (void)state;
    struct roll_shares t = {0};
    uint64_t key = mixed(77), behind = 32 * LAYERS;
    for (uint64_t i = 0; i < 4000; i++) {
        for (uint32_t child = 0; child + 1 < MEMBERS; child++) {
            take(&t, child, key, i);
        }
        assert_int_equal(whole(&t), 0);
        if (i >= behind) {
            take(&t, MEMBERS - 1, key, i - behind);
            assert_int_equal(whole(&t), 1);
        }
    }
    assert_int_equal(t.slots, SLOTS);
    roll_shares_fini(&t);
}

/* A member of one communicator is 64 steps behind, while another communicator's sums come and are whole. */
static void what_is_whole_makes_room_first(void **state)
{
    (void)state;
    struct roll_shares t = {0};
    uint64_t late = mixed(78), swift = mixed(81), steps = 64 * LAYERS;
    for (uint64_t i = 0; i < steps + 20000; i++) {
        for (uint32_t child = 0; child < MEMBERS; child++) {
            take(&t, child, swift, i);
            if (i < steps && child + 1 < MEMBERS) {
                take(&t, child, late, i);
            }
        }
        assert_int_equal(whole(&t), 1);
    }
    for (uint64_t i = 0; i < steps; i++) {
        take(&t, MEMBERS - 1, late, i);
    }
    assert_int_equal(whole(&t), steps);
    roll_shares_fini(&t);
}

/* One member of a communicator is never heard, and its others go on: the sums that lack it fill the table, and those of
 * another communicator are whole all the same. What has waited longest was forgotten. */
static void a_member_that_never_comes_holds_no_room(void **state)
{
    (void)state;
    struct roll_shares t = {0};
    uint64_t lame = mixed(79), sound = mixed(80), all = 20000;
    for (uint64_t i = 0; i < all; i++) {
        for (uint32_t child = 0; child + 1 < MEMBERS; child++) {
            take(&t, child, lame, i);
            take(&t, child, sound, i);
        }
        assert_int_equal(whole(&t), 0);
        take(&t, MEMBERS - 1, sound, i);
        assert_int_equal(whole(&t), 1);
    }
    assert_int_equal(t.slots, SLOTS);
    for (uint64_t i = 0; i < 32; i++) {
        take(&t, MEMBERS - 1, lame, all - 1 - i);
        assert_int_equal(whole(&t), 1);
        take(&t, MEMBERS - 1, lame, i);
        assert_int_equal(whole(&t), 0);
    }
    roll_shares_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_sums_that_are_told_in_one_look_none_is_lost),
        cmocka_unit_test(a_member_may_be_steps_behind_the_others),
        cmocka_unit_test(what_is_whole_makes_room_first),
        cmocka_unit_test(a_member_that_never_comes_holds_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
