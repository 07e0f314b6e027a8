/*
 * test_flight.c: one layer with several microbatches between forward and backward, in the orders of pipelines, and a
 * device on the caller's stream.
 *
 * Every order is held against the reference in double, and its outputs against one microbatch after the other, bit by
 * bit: a state that two microbatches share shows in either.
 */
#include "tests/moe_core/form_ranks.h"

static struct form_result a[FORM_RANKS], b[FORM_RANKS];

static const char *const orders[] = {"ABab", "ABba", "ABaCbc", "ABCabc", "ABCcba", "ABbCac"};
enum { ORDERS = sizeof(orders) / sizeof(orders[0]) };

static void check_rows_equal(void)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_memory_equal(a[r].y, b[r].y, sizeof(a[r].y));
        assert_memory_equal(a[r].dx, b[r].dx, sizeof(a[r].dx));
    }
}

static void test_every_order_in_every_layout(void **state)
{
    (void)state;
    static const uint32_t empties[] = {0, 1, 2, 8, 6, 7};
    for (int layout = 0; layout < FORM_LAYOUTS; layout++) {
        bool halves = layout == FORM_ETP || layout == FORM_SHARD;
        for (size_t n = 0; n < ORDERS; n++) {
            struct form_case c = {.layout = (enum form_layout)layout,
                                  .empty = halves ? empties[n] & 1 : empties[n],
                                  .order = orders[n][2] == 'C' || n == 2 || n == 5 ? "AaBbCc" : "AaBb",
                                  .config = {.dispatcher = (enum moe_dispatcher_kind)((layout + (int)n) % 4),
                                             .renormalise = true,
                                             .router = {.gate_bias = true, .coeff = {[MOE_LOSS_GLOBAL] = 0.5f}},
                                             .has_bias = true,
                                             .place = (enum moe_prob_place)(n % 3),
                                             .recompute = n % 3 == 1,
                                             .delay_wgrad = n == 3,
                                             .shared_ffn = FORM_S,
                                             .shared_gate = true}};
            c.config.type = layout == FORM_SEQ && n == 3 ? MOE_BF16 : MOE_F32;
            form_run(&c, a);
            c.order = orders[n];
            c.config.in_flight = 3;
            form_run(&c, b);
            form_check(&c, b, c.config.type == MOE_F32 ? 2e-5 : 3e-2);
            check_rows_equal();
        }
    }
}

/* The numbers of tokens of a microbatch are asked about once, however many are in flight. */
static void test_uneven_tokens_in_flight(void **state)
{
    (void)state;
    for (int kind = MOE_DISPATCH_ALLGATHER; kind <= MOE_DISPATCH_HYBRIDEP; kind += 2) {
        struct form_case c = {.tokens = {0, 6, 2, 4},
                              .layers = 2,
                              .order = "ABaCbc",
                              .config = {.dispatcher = (enum moe_dispatcher_kind)kind,
                                         .uneven = MOE_UNEVEN_MAX,
                                         .recompute = true,
                                         .in_flight = 2}};
        form_run(&c, a);
        form_check(&c, a, 2e-5);
        for (int r = 0; r < FORM_RANKS; r++) {
            size_t asked = 0;
            for (size_t i = 0; i < a[r].calls; i++) {
                asked += a[r].call[i].op == 'R' && a[r].call[i].kind == 'i';
            }
            assert_int_equal(asked, 3);
        }
    }
}

/* The same name again takes the place of the one that waited: as a graph that a framework drops. */
static void test_a_forward_by_the_same_name_takes_its_place(void **state)
{
    (void)state;
    struct form_case c = {.order = "ABBAAab", .config = {.in_flight = 2}};
    form_run(&c, a);
    form_check(&c, a, 1e-5);
}

static void check_refused(const struct form_case *c, const char *says, size_t calls)
{
    form_run(c, a);
    for (int r = 0; r < FORM_RANKS; r++) {
        assert_int_equal(a[r].rc, MOE_E_STATE);
        assert_non_null(strstr(a[r].message, says));
        assert_int_equal(a[r].calls, calls);
    }
}

static void test_one_microbatch_too_many_is_refused_before_any_call(void **state)
{
    (void)state;
    struct form_case c = {.order = "AB", .config = {.in_flight = 2}};
    form_run(&c, b);
    size_t calls = b[0].calls;
    c.order = "ABC";
    check_refused(&c, "forward of one more microbatch while 2 wait for their backward", calls);
    c.order = "ABc";
    check_refused(&c, "no forward of microbatch 2 of step 9 waits", calls);
    c.order = "ABa";
    c.unnamed = true;
    check_refused(&c, "2 microbatches wait for their backward: say which", calls);
    c.order = "AaBb"; /* with one that waits there is no question */
    form_run(&c, a);
    form_check(&c, a, 1e-5);
    c.unnamed = false;
    c.config.in_flight = 0; /* one at a time: the second forward drops the first, and no place is made for it */
    c.order = "ABa";
    check_refused(&c, "no forward of microbatch 0 of step 9 waits", calls - 2);
    c.config.in_flight = -1;
    form_run(&c, a);
    assert_int_equal(a[0].rc, MOE_E_ARG);
}

/* Work of the caller's and of the library follow one another on one stream, which stays the caller's. */
static void test_a_device_on_the_stream_of_the_caller(void **state)
{
    (void)state;
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        struct form_case c = {.order = "ABab",
                              .layout = kind % 2 == 0 ? FORM_SEQ : FORM_ETP,
                              .config = {.dispatcher = (enum moe_dispatcher_kind)kind, .in_flight = 2}};
        form_run(&c, a);
        c.streams = true;
        form_run(&c, b);
        form_check(&c, b, 1e-5);
        form_equal(&c, a, b);
    }
    struct form_case c = {.layout = FORM_SEQ, .order = "ABab", .streams = true};
    c.config.in_flight = 2; /* the shared expert on a second stream of each microbatch */
    c.config.shared_ffn = FORM_S;
    c.config.shared_overlap = true;
    form_run(&c, b);
    form_check(&c, b, 1e-5);
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_on("nothing", NULL, &device), MOE_E_ARG);
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_order_in_every_layout),
        cmocka_unit_test(test_uneven_tokens_in_flight),
        cmocka_unit_test(test_a_forward_by_the_same_name_takes_its_place),
        cmocka_unit_test(test_one_microbatch_too_many_is_refused_before_any_call),
        cmocka_unit_test(test_a_device_on_the_stream_of_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
