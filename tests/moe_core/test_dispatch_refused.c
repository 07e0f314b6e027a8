/*
 * test_dispatch_refused.c: what the dispatchers refuse: each case has one code and a message that names rank and layer,
 * and is refused before any collective where the rank can know it. What only the exchange can show is the same error on
 * every rank, so that no rank waits.
 */
#include "tests/moe_core/dispatch_ranks.h"

#include "moe_core/include/moe/shared.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct dr_result results[DR_RANKS];

/* one rank, no communicator */

static const struct moe_dispatcher_config fine = {
    .max_tokens = 4, .hidden = 3, .experts = 4, .topk = 2, .world_rank = 5, .layer = 7};

static int try(const struct moe_dispatcher_config *config)
{
    moe_device_t *device = NULL;
    moe_dispatcher_t *d = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    int rc = moe_dispatcher_new(device, config, &d);
    assert_int_equal(rc == 0, d != NULL);
    moe_dispatcher_destroy(&d);
    moe_device_destroy(&device);
    return rc;
}

static void expect(struct moe_dispatcher_config config, int code, const char *text)
{
    assert_int_equal(try(&config), code);
    if (code != 0) {
        assert_non_null(strstr(moe_last_error(), "rank 5, layer 7"));
        if (strstr(moe_last_error(), text) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", moe_last_error(), text);
        }
    }
}

#define WITH(...)                                                                                                      \
    ({                                                                                                                 \
        struct moe_dispatcher_config config = fine;                                                                    \
        config.kind = kind;                                                                                            \
        __VA_ARGS__;                                                                                                   \
        config;                                                                                                        \
    })

static void test_wrong_configurations_are_refused_by_name(void **state)
{
    (void)state;
    for (enum moe_dispatcher_kind kind = MOE_DISPATCH_ALLTOALL; kind <= MOE_DISPATCH_ALLGATHER; kind++) {
        expect(WITH((void)0), 0, "");
        expect(WITH(config.hidden = 0), MOE_E_SHAPE, "hidden 0");
        expect(WITH(config.experts = 0), MOE_E_SHAPE, "0 experts");
        expect(WITH(config.topk = 5), MOE_E_SHAPE, "top-5");
        expect(WITH(config.topk = 0), MOE_E_SHAPE, "top-0");
        expect(WITH(config.max_tokens = -1), MOE_E_SHAPE, "-1 tokens");
        expect(WITH(config.max_tokens = INT32_MAX), MOE_E_SHAPE, "2147483647 tokens");
        expect(WITH(config.expert_capacity = -1), MOE_E_SHAPE, "capacity -1");
        expect(WITH(config.row_multiple = -2), MOE_E_SHAPE, "row multiple -2");
        expect(WITH(config.type = MOE_E4M3), MOE_E_UNSUPPORTED, "float8e4m3");
        expect(WITH(config.row_budget = 8), MOE_E_UNSUPPORTED, "row budget");
        expect(WITH(config.legacy.empty_returns_early = true), MOE_E_UNSUPPORTED, "empty_returns_early");
    }
    enum moe_dispatcher_kind kind = MOE_DISPATCH_ALLTOALL;
    expect(WITH(config.uneven = MOE_UNEVEN_MAX), MOE_E_UNSUPPORTED, "padding of tokens");
    expect(WITH(config.legacy.local_capacity = true), MOE_E_UNSUPPORTED, "without a capacity");
    expect(WITH(config.legacy.slack_uninitialised = true), MOE_E_UNSUPPORTED, "slack");
    expect(WITH(config.expert_capacity = 2; config.legacy.static_rows = true), MOE_E_UNSUPPORTED, "static");
    kind = MOE_DISPATCH_ALLGATHER;
    expect(WITH(config.expert_capacity = 2), MOE_E_UNSUPPORTED, "capacity");
    expect(WITH(config.uneven = MOE_UNEVEN_BOUND), MOE_E_UNSUPPORTED, "without a bound");
    expect(WITH(config.legacy.static_rows = true), MOE_E_UNSUPPORTED, "static_rows");
    expect(WITH(config.shared = (moe_shared_t *)&config), MOE_E_UNSUPPORTED, "shared");
    kind = MOE_DISPATCH_KINDS;
    expect(WITH((void)0), MOE_E_UNSUPPORTED, "dispatcher 4 (?)");
}

static void test_each_dispatcher_has_its_name(void **state)
{
    (void)state;
    static const char *const names[] = {"alltoall", "allgather", "deepep", "hybridep", "?"};
    for (int i = 0; i < 5; i++) {
        assert_string_equal(moe_dispatcher_name((enum moe_dispatcher_kind)i), names[i]);
    }
}

/* One rank, with memory for its calls. */
struct one {
    moe_device_t *device;
    moe_dispatcher_t *d;
    float *x, *y, *probs;
    int32_t *index;
    int64_t *counts;
    struct moe_routing routing;
    uint32_t agreed;
};

static void open_one(struct one *o, enum moe_dispatcher_kind kind)
{
    struct moe_dispatcher_config config = fine;
    config.kind = kind;
    assert_int_equal(moe_device_new_host(&o->device), 0);
    assert_int_equal(moe_dispatcher_new(o->device, &config, &o->d), 0);
    o->x = support_floats(o->device, 12);
    o->y = support_floats(o->device, 12);
    o->probs = support_floats(o->device, 16);
    o->index = support_array(o->device, 8, sizeof(*o->index));
    o->counts = support_array(o->device, 4, sizeof(*o->counts));
    for (int t = 0; t < 4; t++) { /* all tokens choose experts 0 and 1 */
        o->index[2 * t + 1] = 1;
        o->probs[4 * t] = o->probs[4 * t + 1] = 0.5f;
    }
    o->counts[0] = o->counts[1] = 4;
    o->routing = (struct moe_routing){.tokens = 4, .index = o->index, .probs = o->probs, .counts = o->counts};
}

static void close_one(struct one *o)
{
    void *arrays[] = {&o->x, &o->y, &o->probs, &o->index, &o->counts};
    moe_dispatcher_destroy(&o->d);
    for (size_t i = 0; i < COUNT(arrays); i++) {
        moe_device_free(o->device, arrays[i]);
    }
    moe_device_destroy(&o->device);
}

static int prepare(struct one *o)
{
    return moe_dispatcher_prepare(o->d, &o->routing, 0, &o->agreed);
}

static void test_order_of_calls_and_missing_arguments(void **state)
{
    (void)state;
    for (enum moe_dispatcher_kind kind = MOE_DISPATCH_ALLTOALL; kind <= MOE_DISPATCH_ALLGATHER; kind++) {
        struct one o;
        struct moe_plan plan;
        open_one(&o, kind);
        moe_plan_reset(&plan);
        assert_int_equal(moe_dispatcher_forward(o.d, o.x), MOE_E_STATE);
        assert_int_equal(moe_dispatcher_combine(o.d, o.y), MOE_E_STATE);
        assert_int_equal(moe_dispatcher_push_dispatch(o.d, &plan), MOE_E_STATE);
        assert_int_equal(moe_dispatcher_push_combine(o.d, &plan), MOE_E_STATE);
        o.routing.tokens = 5;
        assert_int_equal(prepare(&o), MOE_E_SHAPE);
        o.routing.tokens = -1;
        assert_int_equal(prepare(&o), MOE_E_SHAPE);
        o.routing.tokens = 4;
        o.routing.counts = NULL;
        assert_int_equal(prepare(&o), MOE_E_ARG);
        o.routing.counts = o.counts;
        o.routing.probs = NULL;
        assert_int_equal(prepare(&o), MOE_E_ARG);
        o.routing.probs = o.probs;
        assert_int_equal(prepare(&o), 0);
        assert_int_equal(moe_dispatcher_combine(o.d, o.y), MOE_E_STATE);
        assert_int_equal(moe_dispatcher_forward(o.d, NULL), MOE_E_ARG);
        assert_int_equal(moe_dispatcher_forward(o.d, o.x), 0);
        assert_int_equal(moe_dispatcher_combine(o.d, NULL), MOE_E_ARG);
        assert_int_equal(moe_dispatcher_push_dispatch(o.d, &plan), 0);
        assert_int_equal(moe_dispatcher_push_combine(o.d, &plan), 0);
        assert_int_equal(moe_dispatcher_combine(o.d, o.y), 0);
        assert_int_equal(moe_plan_run(&plan), MOE_E_STATE); /* begin_backward is missing */
        o.routing.tokens = 5;
        assert_int_equal(prepare(&o), MOE_E_SHAPE); /* nothing is left of the forward before */
        assert_int_equal(moe_dispatcher_forward(o.d, o.x), MOE_E_STATE);
        assert_int_equal(moe_device_sync(o.device), 0);
        close_one(&o);
    }
}

static void test_counts_and_choices_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        int64_t counts[4];
        int code;
    } cases[] = {
        {{-1, 4, 0, 0}, MOE_E_COUNT},
        {{5, 3, 0, 0}, MOE_E_COUNT},
        {{4, 4, 4, 0}, MOE_E_SPLIT},
        {{INT64_MAX, 4, 0, 0}, MOE_E_COUNT},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct one o;
        open_one(&o, MOE_DISPATCH_ALLTOALL);
        memcpy(o.counts, cases[i].counts, sizeof(cases[i].counts));
        assert_int_equal(prepare(&o), cases[i].code);
        assert_non_null(strstr(moe_last_error(), "rank 5, layer 7"));
        close_one(&o);
    }
    /* Counts that the choices contradict: found by the stream, nothing is written. */
    struct one o;
    open_one(&o, MOE_DISPATCH_ALLTOALL);
    o.counts[0] = 3;
    support_poison(o.y, 12);
    assert_int_equal(prepare(&o), 0);
    assert_int_equal(moe_dispatcher_forward(o.d, o.x), 0);
    assert_int_equal(moe_dispatcher_combine(o.d, o.y), 0);
    assert_int_equal(moe_device_sync(o.device), MOE_E_SPLIT);
    assert_true(support_is_poison(o.y, 12));
    close_one(&o);
    for (enum moe_dispatcher_kind kind = MOE_DISPATCH_ALLTOALL; kind <= MOE_DISPATCH_ALLGATHER; kind++) {
        open_one(&o, kind);
        o.index[3] = 4; /* there are experts 0 to 3 */
        int rc = prepare(&o);
        rc = rc ? rc : moe_device_sync(o.device);
        assert_int_equal(rc, MOE_E_EXPERT);
        close_one(&o);
    }
}

/* several ranks */

static void test_one_rank_with_bad_counts_is_an_error_on_all(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        struct dr_case c = {.etp = ranks == 4 ? 2 : 1, .ep = ranks == 4 ? 2 : ranks, .spoil_counts = true};
        dr_run(&c, results);
        for (int r = 0; r < ranks; r++) {
            char text[32];
            snprintf(text, sizeof(text), "rank %d, layer 3", r);
            assert_int_equal(results[r].rc, MOE_E_COUNT);
            assert_non_null(strstr(results[r].message, text));
            assert_non_null(strstr(results[r].message, "rank 0 of the group"));
            assert_int_equal(results[r].forward.units, 1); /* the exchange, and nothing after it */
        }
    }
}

static void test_communicators_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        int etp, ep;
        enum dr_wrong wrong;
        int code;
        const char *text;
    } cases[] = {
        {2, 2, DR_TP_EP_TOO_SMALL, MOE_E_COMM, "ep 2 x etp 2 makes 4 ranks"},
        {2, 2, DR_NO_TP_EP, MOE_E_COMM, "tp_ep has 1 ranks"},
        {1, 3, DR_EXPERTS_DO_NOT_DIVIDE, MOE_E_SHAPE, "over 3 ranks"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t k = 0; k < 2; k++) {
            struct dr_case c = {.kind = k == 0 ? MOE_DISPATCH_ALLTOALL : MOE_DISPATCH_ALLGATHER,
                                .etp = cases[i].etp,
                                .ep = cases[i].ep,
                                .wrong = cases[i].wrong};
            dr_run(&c, results);
            for (int r = 0; r < dr_ranks(&c); r++) {
                assert_int_equal(results[r].rc, cases[i].code);
                assert_non_null(strstr(results[r].message, cases[i].text));
                assert_int_equal(results[r].forward.units, 0);
            }
        }
    }
}

/* tp_ep numbered the other way round: ranks 0 and 3 are the same in both and cannot know. */
static void test_tp_ep_in_another_order(void **state)
{
    (void)state;
    struct dr_case c = {.etp = 2, .ep = 2, .patience_ms = 200, .wrong = DR_TP_EP_REVERSED};
    dr_run(&c, results);
    for (int r = 1; r < 3; r++) {
        assert_int_equal(results[r].rc, MOE_E_COMM);
        assert_non_null(strstr(results[r].message, r == 1 ? "its rank 1" : "its rank 2"));
        assert_int_equal(results[r].forward.units, 0);
    }
    assert_true(results[0].hung && results[3].hung);
}

static void test_more_tokens_than_made_for_ask_nobody(void **state)
{
    (void)state;
    struct dr_case c = {.etp = 1, .ep = 2, .patience_ms = 200, .wrong = DR_TOO_MANY_TOKENS};
    for (size_t k = 0; k < 2; k++) {
        c.kind = k == 0 ? MOE_DISPATCH_ALLTOALL : MOE_DISPATCH_ALLGATHER;
        dr_run(&c, results);
        assert_int_equal(results[0].rc, MOE_E_SHAPE);
        assert_int_equal(results[0].forward.units, 0);
        assert_true(results[1].hung);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_configurations_are_refused_by_name),
        cmocka_unit_test(test_each_dispatcher_has_its_name),
        cmocka_unit_test(test_order_of_calls_and_missing_arguments),
        cmocka_unit_test(test_counts_and_choices_that_do_not_fit),
        cmocka_unit_test(test_one_rank_with_bad_counts_is_an_error_on_all),
        cmocka_unit_test(test_communicators_that_do_not_fit),
        cmocka_unit_test(test_tp_ep_in_another_order),
        cmocka_unit_test(test_more_tokens_than_made_for_ask_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
