/*
 * test_layer_ranks.c: one MoE layer over several ranks: results, obligations, remedies.
 */
#include "tests/moe_core/layer_ranks.h"

#include "moe_core/reference/ref.h"

enum { FORWARD = 1, BACKWARD = 2 };

/* Outputs and all gradients against the single-process reference. */
static void check_against_reference(const struct layer_case *s, const struct layer_result *results)
{
    int64_t experts = s->ranks * LAYER_L;
    struct layer_data *d = malloc(sizeof(*d));
    double *d_gate = support_doubles(LAYER_E * LAYER_H), *d_w1 = support_doubles(LAYER_E * 2 * LAYER_F * LAYER_H),
           *d_w2 = support_doubles(LAYER_E * LAYER_H * LAYER_F);
    double got_gate[LAYER_E * LAYER_H] = {0};
    assert_non_null(d);
    for (int r = 0; r < s->ranks; r++) {
        double y[LAYER_T * LAYER_H], dx[LAYER_T * LAYER_H];
        layer_make_data(s, r, d);
        struct moe_ref ref = {.hidden = LAYER_H,
                              .ffn = LAYER_F,
                              .experts = experts,
                              .topk = s->topk,
                              .renormalise = s->topk > 1,
                              .gate = d->gate,
                              .w1 = d->w1,
                              .w2 = d->w2};
        struct moe_ref_grads grads = {d_gate, d_w1, d_w2};
        assert_int_equal(moe_ref_forward(&ref, LAYER_T, d->x, y), 0);
        assert_int_equal(moe_ref_backward(&ref, LAYER_T, d->x, d->dy, dx, &grads), 0);
        support_close("y", results[r].y, y, LAYER_T * LAYER_H, 1e-5);
        support_close("dx", results[r].dx, dx, LAYER_T * LAYER_H, 1e-5);
        for (int64_t i = 0; i < experts * LAYER_H; i++) {
            got_gate[i] += (double)results[r].d_gate[i];
        }
    }
    for (int r = 0; r < s->ranks; r++) {
        support_close("d_w1", results[r].d_w1, d_w1 + r * LAYER_L * 2 * LAYER_F * LAYER_H,
                      LAYER_L * 2 * LAYER_F * LAYER_H, 1e-5);
        support_close("d_w2", results[r].d_w2, d_w2 + r * LAYER_L * LAYER_H * LAYER_F, LAYER_L * LAYER_H * LAYER_F,
                      1e-5);
    }
    for (int64_t i = 0; i < experts * LAYER_H; i++) {
        assert_float_equal(got_gate[i], d_gate[i], 1e-4);
    }
    free(d);
    free(d_gate);
    free(d_w1);
    free(d_w2);
}

static void check_bitwise_equal(const struct layer_case *s, const struct layer_result *a, const struct layer_result *b)
{
    for (int r = 0; r < s->ranks; r++) {
        assert_memory_equal(a[r].y, b[r].y, sizeof(a[r].y));
        assert_memory_equal(a[r].dx, b[r].dx, sizeof(a[r].dx));
        assert_memory_equal(a[r].d_gate, b[r].d_gate, sizeof(a[r].d_gate));
        /* == and not bytes: a sum with PAD's zero row may turn -0 into 0 */
        for (size_t i = 0; i < LAYER_L * 2 * LAYER_F * LAYER_H; i++) {
            assert_true(a[r].d_w1[i] == b[r].d_w1[i]);
        }
        for (size_t i = 0; i < LAYER_L * LAYER_H * LAYER_F; i++) {
            assert_true(a[r].d_w2[i] == b[r].d_w2[i]);
        }
    }
}

static const struct moe_event *find(const struct layer_result *r, unsigned kind, unsigned phase, size_t nth)
{
    for (size_t i = 0; i < r->events; i++) {
        if (r->event[i].kind == kind && r->event[i].phase == phase && nth-- == 0) {
            return &r->event[i];
        }
    }
    return NULL;
}

static size_t count_events(const struct layer_result *r, unsigned kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->events; i++) {
        n += r->event[i].kind == kind;
    }
    return n;
}

static const uint32_t empties[] = {0, 1, 2, 8, 6, 7, 11}; /* none, first, middle, last, two, all but one (twice) */

static void test_results_equal_the_reference_whichever_rank_is_empty(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        for (int32_t topk = 1; topk <= 2; topk++) {
            struct layer_case s = {.ranks = 4, .topk = topk, .empty = empties[i], .backward = true};
            layer_run(&s, results);
            check_against_reference(&s, results);
            for (int r = 0; r < 4; r++) {
                assert_int_equal(results[r].rows == 0, empties[i] >> r & 1);
                assert_false(results[r].skipped);
            }
        }
    }
}

/* What a layer can be made with beside the plain one, at every place of an empty rank. */
static void test_options_of_the_layer_change_no_result(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    const struct {
        enum moe_dispatcher_kind kind;
        int64_t row_multiple, row_budget;
        bool delay_wgrad;
        enum moe_dtype weight;
    } table[] = {
        {.delay_wgrad = true},
        {.row_multiple = 4},
        {.kind = MOE_DISPATCH_ALLGATHER, .row_multiple = 4},
        {.kind = MOE_DISPATCH_DEEPEP, .row_multiple = 4, .delay_wgrad = true},
        {.kind = MOE_DISPATCH_HYBRIDEP, .row_budget = LAYER_RANKS * LAYER_T * 2 + 5},
        {.kind = MOE_DISPATCH_HYBRIDEP,
         .row_budget = LAYER_RANKS * LAYER_T * 2,
         .row_multiple = 4,
         .delay_wgrad = true},
        {.weight = MOE_BF16},
        {.weight = MOE_E4M3, .row_multiple = 16},
        {.weight = MOE_E5M2, .delay_wgrad = true},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        for (size_t n = 0; n < sizeof(empties) / sizeof(empties[0]); n++) {
            struct layer_case s = {.ranks = 4, .topk = 2, .empty = empties[n], .backward = true};
            s.kind = table[i].kind;
            s.row_multiple = table[i].row_multiple;
            s.row_budget = table[i].row_budget;
            s.delay_wgrad = table[i].delay_wgrad;
            s.weight = table[i].weight;
            layer_run(&s, results);
            check_against_reference(&s, results);
            for (int r = 0; r < 4 && s.row_budget == 0; r++) {
                assert_int_equal(results[r].rows == 0, empties[n] >> r & 1);
                assert_int_equal(find(&results[r], MOE_EV_COUNTS, FORWARD, 0)->count, results[r].rows);
            }
            for (int r = 0; r < 4 && s.row_budget > 0; r++) { /* an upper bound is not a count, and not told as one */
                assert_int_equal(results[r].rows, -1);
                assert_int_equal(count_events(&results[r], MOE_EV_COUNTS), 0);
            }
            for (int r = 0; r < 4 && s.kind == MOE_DISPATCH_ALLTOALL; r++) {
                uint64_t came = 0;
                for (size_t p = 0; p < 4; p++) {
                    came += find(&results[r], MOE_EV_SPLIT, FORWARD, p)->count2;
                }
                assert_int_equal(came, results[r].rows);
            }
        }
    }
}

/* A forward that is refused leaves nothing for backward: its sizes would be those of another one. */
static void test_backward_after_a_refused_forward_is_refused(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    struct layer_result result = {.rc = 0};
    struct layer_case s = {.ranks = 1};
    struct layer_rank r = {.scenario = &s, .result = &result};
    struct moe_layer_config config = {
        .max_tokens = LAYER_T, .hidden = LAYER_H, .ffn = LAYER_F, .experts = LAYER_L, .topk = 1};
    struct moe_step step = {.step = 0};
    layer_self = &r;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    float *x = support_floats(device, LAYER_T * LAYER_H), *y = support_floats(device, LAYER_T * LAYER_H),
          *w = support_floats(device, LAYER_L * 2 * LAYER_F * LAYER_H),
          *d = support_floats(device, LAYER_L * 2 * LAYER_F * LAYER_H);
    struct moe_layer_weights weights = {.gate = w, .w1 = w, .w2 = w, .d_gate = d, .d_w1 = d, .d_w2 = d};
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, LAYER_T, y), 0);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, LAYER_T + 1, y), MOE_E_SHAPE);
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, 0, y), 0);
    assert_int_equal(moe_layer_backward(layer, y, x), 0);
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_backward_dw(layer), MOE_E_STATE);
    weights.d_gate = weights.d_w1 = weights.d_w2 = NULL; /* inference: nothing to go back for */
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, LAYER_T, y), 0);
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "without gradients"));
    assert_int_equal(moe_device_sync(device), 0);
    float *arrays[] = {x, y, w, d};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, &arrays[i]);
    }
    moe_layer_destroy(&layer);
    moe_device_destroy(&device);
}

static void test_every_rank_reports_the_same_obligations(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    struct layer_case s = {.ranks = 4, .topk = 2, .empty = 4, .backward = true};
    layer_run(&s, results);
    for (int r = 0; r < 4; r++) {
        assert_int_equal(count_events(&results[r], MOE_EV_OBLIGE), 2);
        const struct moe_event *end = find(&results[r], MOE_EV_OBLIGE_END, FORWARD, 0);
        assert_int_equal(end->count, 2);
        for (uint32_t i = 0; i < 2; i++) {
            const struct moe_event *e = find(&results[r], MOE_EV_OBLIGE, FORWARD, i);
            assert_int_equal(e->aux, i);
            assert_int_equal(e->peer, 6); /* AlltoAll */
            assert_non_null(e->comm);
            assert_int_equal(e->step, 9);
            assert_int_equal(e->microbatch, 1);
            assert_int_equal(e->layer, 3);
        }
    }
}

static void test_reported_counts_and_splits_fit_together(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    struct layer_case s = {.ranks = 4, .topk = 2, .empty = 2, .backward = true};
    layer_run(&s, results);
    for (int r = 0; r < 4; r++) {
        uint64_t received = 0, sent = 0;
        for (int p = 0; p < 4; p++) {
            const struct moe_event *mine = find(&results[r], MOE_EV_SPLIT, FORWARD, (size_t)p);
            const struct moe_event *theirs = find(&results[p], MOE_EV_SPLIT, FORWARD, (size_t)r);
            assert_int_equal(mine->peer, p);
            assert_int_equal(mine->count, theirs->count2);
            sent += mine->count;
            received += mine->count2;
            assert_int_equal(find(&results[r], MOE_EV_SPLIT, BACKWARD, (size_t)p)->count, mine->count);
        }
        assert_int_equal(sent, LAYER_T * 2);
        assert_int_equal(find(&results[r], MOE_EV_COUNTS, FORWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_GEMM, FORWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_GEMM, BACKWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_ROUTE, FORWARD, 0)->count, LAYER_T);
    }
    assert_int_equal(find(&results[1], MOE_EV_COUNTS, FORWARD, 0)->aux, LAYER_L);
}

static void test_legacy_rank_without_rows_lacks_its_obligations(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    struct layer_case s = {.ranks = 4, .topk = 1, .empty = 4, .legacy = true};
    layer_run(&s, results);
    for (int r = 0; r < 4; r++) {
        bool empty = r == 2;
        assert_int_equal(results[r].skipped, empty);
        assert_int_equal(count_events(&results[r], MOE_EV_SKIP), empty);
        assert_int_equal(count_events(&results[r], MOE_EV_GEMM), !empty);
        assert_int_equal(count_events(&results[r], MOE_EV_OBLIGE), empty ? 0 : 2);
        assert_int_equal(find(&results[r], MOE_EV_OBLIGE_END, FORWARD, 0)->count, empty ? 0 : 2);
    }
}

static void test_fill_granted_at_the_hazard_equals_the_run_without_skipping(void **state)
{
    (void)state;
    static struct layer_result plain[LAYER_RANKS], filled[LAYER_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        struct layer_case s = {.ranks = 4, .topk = 2, .empty = empties[i], .backward = true};
        layer_run(&s, plain);
        s.legacy = true;
        s.granted = MOE_REMEDY_FILL;
        layer_run(&s, filled);
        check_bitwise_equal(&s, plain, filled);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(count_events(&filled[r], MOE_EV_REMEDY), empties[i] >> r & 1);
            assert_int_equal(find(&filled[r], MOE_EV_OBLIGE_END, FORWARD, 0)->count, 2);
        }
    }
}

static void test_fill_that_only_the_empty_rank_knows_of_is_enough(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    struct layer_case s = {
        .ranks = 2, .topk = 2, .empty = 1, .legacy = true, .backward = true, .remedies = {MOE_REMEDY_FILL, 0}};
    layer_run(&s, results);
    check_against_reference(&s, results);
    const struct moe_event *e = find(&results[0], MOE_EV_REMEDY, FORWARD, 0);
    assert_int_equal(e->peer, MOE_REMEDY_FILL);
}

static void test_pad_agreed_by_all_leaves_nobody_empty_and_changes_no_result(void **state)
{
    (void)state;
    static struct layer_result plain[LAYER_RANKS], padded[LAYER_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        struct layer_case s = {.ranks = 4, .topk = 2, .empty = empties[i], .backward = true};
        layer_run(&s, plain);
        s.legacy = true;
        for (int r = 0; r < 4; r++) {
            s.remedies[r] = MOE_REMEDY_PAD;
        }
        layer_run(&s, padded);
        check_bitwise_equal(&s, plain, padded);
        for (int r = 0; r < 4; r++) {
            bool empty = empties[i] >> r & 1;
            assert_false(padded[r].skipped);
            assert_int_equal(find(&padded[r], MOE_EV_GEMM, FORWARD, 0)->count == 1, empty);
            assert_int_equal(count_events(&padded[r], MOE_EV_REMEDY), empty);
            assert_int_equal(find(&padded[r], MOE_EV_COUNTS, FORWARD, 0)->count == 0, empty);
            /* The row comes from the next rank, and from no other. */
            for (int p = 0; empty && p < 4; p++) {
                assert_int_equal(find(&padded[r], MOE_EV_SPLIT, FORWARD, (size_t)p)->count2, p == (r + 1) % 4);
            }
        }
    }
}

static void test_pad_is_not_used_unless_all_propose_it(void **state)
{
    (void)state;
    static struct layer_result results[LAYER_RANKS];
    struct layer_case s = {.ranks = 4, .topk = 1, .empty = 8, .backward = true};
    for (int missing = 0; missing < 4; missing++) {
        for (int r = 0; r < 4; r++) {
            s.remedies[r] = r == missing ? 0 : MOE_REMEDY_PAD;
        }
        layer_run(&s, results);
        check_against_reference(&s, results);
        for (int r = 0; r < 4; r++) {
            assert_int_equal(count_events(&results[r], MOE_EV_REMEDY), 0);
            assert_int_equal(find(&results[r], MOE_EV_GEMM, FORWARD, 0)->count == 0, r == 3);
        }
    }
}

static void test_remedies_change_no_bit_when_nobody_is_empty(void **state)
{
    (void)state;
    static struct layer_result plain[LAYER_RANKS], remedied[LAYER_RANKS];
    struct layer_case s = {.ranks = 4, .topk = 2, .backward = true};
    layer_run(&s, plain);
    for (int r = 0; r < 4; r++) {
        s.remedies[r] = MOE_REMEDY_PAD | MOE_REMEDY_FILL;
    }
    s.legacy = true;
    layer_run(&s, remedied);
    for (int r = 0; r < 4; r++) {
        assert_memory_equal(plain[r].y, remedied[r].y, sizeof(plain[r].y));
        assert_memory_equal(plain[r].dx, remedied[r].dx, sizeof(plain[r].dx));
        assert_memory_equal(plain[r].d_gate, remedied[r].d_gate, sizeof(plain[r].d_gate));
        assert_memory_equal(plain[r].d_w1, remedied[r].d_w1, sizeof(plain[r].d_w1));
        assert_memory_equal(plain[r].d_w2, remedied[r].d_w2, sizeof(plain[r].d_w2));
        assert_int_equal(count_events(&remedied[r], MOE_EV_REMEDY), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_equal_the_reference_whichever_rank_is_empty),
        cmocka_unit_test(test_options_of_the_layer_change_no_result),
        cmocka_unit_test(test_backward_after_a_refused_forward_is_refused),
        cmocka_unit_test(test_every_rank_reports_the_same_obligations),
        cmocka_unit_test(test_reported_counts_and_splits_fit_together),
        cmocka_unit_test(test_legacy_rank_without_rows_lacks_its_obligations),
        cmocka_unit_test(test_fill_granted_at_the_hazard_equals_the_run_without_skipping),
        cmocka_unit_test(test_fill_that_only_the_empty_rank_knows_of_is_enough),
        cmocka_unit_test(test_pad_agreed_by_all_leaves_nobody_empty_and_changes_no_result),
        cmocka_unit_test(test_pad_is_not_used_unless_all_propose_it),
        cmocka_unit_test(test_remedies_change_no_bit_when_nobody_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
