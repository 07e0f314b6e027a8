/*
 * test_microbatches.c: what the layers of a microbatch share: one MAX of the numbers of tokens (Megatron-LM #4816),
 * agreed on even for the first batch.
 *
 * Every run is held against the reference in double; what the ranks issue is counted.
 */
#include "tests/moe_core/form_ranks.h"

#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

static struct form_result a[FORM_RANKS], b[FORM_RANKS];

static const enum moe_dispatcher_kind equal_kinds[] = {MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_HYBRIDEP};
enum { KINDS = 2 };

/* Tokens of the ranks: all different, none on one rank at each place, none but on one; a pair has the same. */
enum { PATTERNS = 6 };
static struct form_case uneven(enum form_layout layout, enum moe_dispatcher_kind kind, int pattern)
{
    static const int64_t tokens[PATTERNS][FORM_RANKS] = {{2, 4, 6, 0}, {0, 2, 6, 4}, {6, 0, 2, 2},
                                                         {4, 6, 0, 2}, {0, 0, 0, 6}, {6, 0, 0, 0}};
    struct form_case c = {.layout = layout, .config = {.dispatcher = kind, .uneven = MOE_UNEVEN_MAX}};
    bool pairs = layout == FORM_SPLIT || layout == FORM_SHARD;
    for (int r = 0; r < FORM_RANKS; r++) {
        c.tokens[r] = tokens[pattern][pairs ? r / 2 * 2 + pattern % 2 : r];
    }
    c.tokens[pairs ? 1 : 0] += pairs && c.tokens[0] + c.tokens[2] == 0 ? 2 : 0; /* not nothing at all */
    c.tokens[0] = pairs ? c.tokens[1] : c.tokens[0];
    return c;
}

/* MAX is the only AllReduce of int64 that there is here. */
static size_t asked(const struct form_result *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->calls; i++) {
        n += r->call[i].op == 'R' && r->call[i].kind == 'i' && r->call[i].count == 1;
    }
    return n;
}

static void check_asked(const struct form_result *results, size_t want)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(asked(&results[r]), want);
    }
}

static void test_one_question_for_all_layers_of_a_microbatch(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
            for (int pattern = 0; pattern < PATTERNS; pattern++) {
                struct form_case c = uneven((enum form_layout)layout, equal_kinds[k], pattern);
                c.layers = 1 + (pattern + layout) % FORM_LAYERS;
                c.order = pattern % 2 == 0 ? "AaBb" : "AaBbCc";
                c.config.recompute = pattern % 3 == 0;
                form_run(&c, a);
                form_check(&c, a, 2e-5);
                check_asked(a, strlen(c.order) / 2);
            }
        }
    }
}

/* Where layers need not have the same tokens, each asks, and again in recompute; the numbers are the same. */
static void test_a_forward_that_is_alone_asks_for_itself(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct form_case c = uneven(FORM_EP, equal_kinds[k], 1);
        c.layers = 3;
        c.config.recompute = true;
        form_run(&c, a);
        check_asked(a, 1);
        c.alone = true;
        form_run(&c, b);
        form_check(&c, b, 2e-5);
        check_asked(b, 6);
        form_equal(&c, a, b);
    }
}

/* The same name for another microbatch: the layer that asked asks anew, the others follow. */
static void test_a_microbatch_by_the_same_name_is_asked_about_again(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct form_case c = uneven(FORM_EP, equal_kinds[k], 0);
        c.layers = 2;
        c.order = "AAa";
        form_run(&c, a);
        form_check(&c, a, 2e-5);
        check_asked(a, 2);
    }
}

/* The remedy, granted where its hazard is met: agreed when the layers are made, so it is there for the first batch. */
static void test_the_remedy_cures_the_first_uneven_batch(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            for (int bound = 0; bound < 2; bound++) {
                struct form_case c = uneven(pattern % 2 == 0 ? FORM_EP : FORM_ETP, equal_kinds[k], pattern);
                c.config.uneven = MOE_UNEVEN_NONE;
                c.config.token_bound = bound ? FORM_T : 0;
                c.granted = bound ? MOE_REMEDY_BOUND : MOE_REMEDY_UNEVEN;
                c.layers = 2;
                c.order = "AaBb";
                c.config.row_budget = pattern == 3 && k == 1 ? 4 * FORM_T * 2 : 0;
                form_run(&c, a);
                form_check(&c, a, 2e-5);
                check_asked(a, bound ? 0 : 2);
                for (int r = 0; r < FORM_RANKS; r++) {
                    assert_int_equal(a[r].remedies & (MOE_REMEDY_UNEVEN | MOE_REMEDY_BOUND), c.granted);
                }
            }
        }
    }
}

/* What the book of a group keeps: 64 microbatches, by step and number; the rules need no other rank to be seen. */
static void test_the_book_of_a_group(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_uneven_group_t *group[3] = {NULL};
    struct moe_uneven_config config = {.max_tokens = 1000};
    struct moe_uneven_place place = {.step = 4, .microbatch = 1};
    int64_t padded = -1;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(moe_uneven_new(device, &config, &group[i]), 0);
    }
    assert_int_equal(moe_uneven_agree(group[0], MOE_UNEVEN_MAX, &place, 100, &padded), 0);
    assert_int_equal(padded, 128);
    assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &place, 7, &padded), 0);
    assert_int_equal(padded, 128);
    assert_int_equal(moe_uneven_agree(group[2], MOE_UNEVEN_MAX, &place, 129, &padded), MOE_E_CAPACITY);
    assert_non_null(strstr(moe_last_error(), "129 tokens; microbatch 1 of step 4 was padded to 128"));
    assert_int_equal(moe_uneven_agree(group[2], MOE_UNEVEN_MAX, NULL, 129, &padded), 0);
    assert_int_equal(padded, 192);
    place.microbatch = 2; /* another one */
    assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &place, 300, &padded), 0);
    assert_int_equal(padded, 320);
    assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &place, 5, &padded), 0); /* who asked asks anew */
    assert_int_equal(padded, 64);
    place.again = true; /* and in recompute does not */
    assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &place, 3, &padded), 0);
    assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &place, 65, &padded), MOE_E_CAPACITY);
    place = (struct moe_uneven_place){.step = 4, .microbatch = 1};
    moe_uneven_destroy(&group[0]); /* what it agreed on stays for the others, and no new object is taken for it */
    assert_int_equal(moe_uneven_new(device, &config, &group[0]), 0);
    assert_int_equal(moe_uneven_agree(group[0], MOE_UNEVEN_MAX, &place, 5, &padded), 0);
    assert_int_equal(padded, 128);
    for (uint16_t i = 0; i < MOE_UNEVEN_MICROBATCHES; i++) {
        struct moe_uneven_place other = {.step = 5, .microbatch = i};
        assert_int_equal(moe_uneven_agree(group[1], MOE_UNEVEN_MAX, &other, 10, &padded), 0);
    }
    assert_int_equal(moe_uneven_agree(group[0], MOE_UNEVEN_MAX, &place, 5, &padded), 0); /* forgotten: asked again */
    assert_int_equal(padded, 64);
    for (int i = 0; i < 3; i++) {
        moe_uneven_destroy(&group[i]);
    }
    assert_int_equal(moe_uneven_new(device, &config, &group[0]), 0); /* a new book */
    assert_int_equal(moe_uneven_agree(group[0], MOE_UNEVEN_MAX, &place, 70, &padded), 0);
    assert_int_equal(padded, 128);
    moe_uneven_destroy(&group[0]);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_question_for_all_layers_of_a_microbatch),
        cmocka_unit_test(test_a_forward_that_is_alone_asks_for_itself),
        cmocka_unit_test(test_a_microbatch_by_the_same_name_is_asked_about_again),
        cmocka_unit_test(test_the_remedy_cures_the_first_uneven_batch),
        cmocka_unit_test(test_the_book_of_a_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
