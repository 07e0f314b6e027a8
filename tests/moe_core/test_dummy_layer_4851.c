/*
 * test_dummy_layer_4851.c: dummy rows in a layer (Megatron-LM #4851; remedy DUMMY): what ranks without rows report and
 * compute, which form a layer uses, and that a back end which refuses empty groups is given none.
 */
#include "tests/moe_core/layer_alone.h"
#include "tests/moe_core/refusing.h"

#include "moe_core/include/moe/remedy.h"

static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_DEEPEP,
                                                 MOE_DISPATCH_HYBRIDEP};

/* The n-th event of a kind; NULL: there are fewer. */
static const struct moe_event *event(const struct layer_result *r, unsigned kind, size_t n)
{
    for (size_t i = 0; i < r->events; i++) {
        if (r->event[i].kind == kind && n-- == 0) {
            return &r->event[i];
        }
    }
    return NULL;
}

/* A rank tells of dummy rows once: in the forward that has them, with how many, before its products. */
static void check_told(const struct layer_result *r, bool told)
{
    const struct moe_event *remedy = event(r, MOE_EV_REMEDY, 0), *counts = event(r, MOE_EV_COUNTS, 0),
                           *product = event(r, MOE_EV_GEMM, 0);
    assert_non_null(product);
    assert_non_null(event(r, MOE_EV_GEMM, 1)); /* forward and backward: the experts ran on every rank */
    assert_null(event(r, MOE_EV_SKIP, 0));
    if (!told) {
        assert_null(remedy);
        return;
    }
    assert_non_null(remedy);
    assert_null(event(r, MOE_EV_REMEDY, 1));
    assert_int_equal(remedy->peer, MOE_REMEDY_DUMMY);
    assert_int_equal(remedy->phase, MOE_PHASE_FORWARD);
    assert_int_equal(remedy->step, 9);
    assert_int_equal(remedy->microbatch, 1);
    assert_int_equal(remedy->layer, 3);
    assert_int_equal(remedy->count, counts->aux); /* a row for each local expert without one */
    assert_true(counts < remedy && remedy < product);
}

static void check_equal(const struct layer_case *s, const struct layer_result *a, const struct layer_result *b)
{
    for (int r = 0; r < s->ranks; r++) {
        assert_memory_equal(a[r].y, b[r].y, sizeof(a[r].y));
        assert_memory_equal(a[r].dx, b[r].dx, sizeof(a[r].dx));
        assert_memory_equal(a[r].d_gate, b[r].d_gate, sizeof(a[r].d_gate));
        for (size_t i = 0; i < sizeof(a[r].d_w1) / sizeof(float); i++) { /* a zero may change its sign */
            assert_true(a[r].d_w1[i] == b[r].d_w1[i]);
        }
        for (size_t i = 0; i < sizeof(a[r].d_w2) / sizeof(float); i++) {
            assert_true(a[r].d_w2[i] == b[r].d_w2[i]);
        }
    }
}

/* The remedy on all ranks, or on the ranks without rows alone: it is local. */
static void test_the_rank_without_rows_tells_of_its_dummy_rows(void **state)
{
    (void)state;
    static struct layer_result plain[LAYER_RANKS], dummy[LAYER_RANKS];
    static const uint32_t empties[] = {0, 1, 8, 6, 7};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
            struct layer_case s = {.ranks = 4, .topk = 2, .empty = empties[i], .backward = true, .kind = kinds[k]};
            layer_run(&s, plain);
            for (int alone = 0; alone < 2; alone++) {
                s.legacy = true;
                for (int r = 0; r < 4; r++) {
                    s.remedies[r] = !alone || (empties[i] >> r & 1) != 0 ? MOE_REMEDY_DUMMY : 0;
                }
                layer_run(&s, dummy);
                check_equal(&s, plain, dummy);
                for (int r = 0; r < 4; r++) {
                    const struct moe_event *counts = event(&dummy[r], MOE_EV_COUNTS, 0);
                    assert_non_null(counts);
                    assert_int_equal(dummy[r].rows == 0, empties[i] >> r & 1);
                    assert_int_equal(counts->aux == LAYER_L, empties[i] >> r & 1);
                    check_told(&dummy[r], s.remedies[r] != 0 && counts->aux > 0);
                }
            }
        }
    }
}

/* A pass on a back end that refuses what `how` says, with a remedy on. */
static int pass(struct layer_alone *a, int64_t tokens, int want, enum refusing how, uint32_t remedy)
{
    a->c.remedies[0] = remedy;
    refuse(a->device, how);
    return alone_pass(a, tokens, want, true);
}

/* One layer, full, empty and half empty in turn: the host form where no expert has a row, the device's where some do.
 */
static void test_a_layer_uses_the_form_that_its_rows_ask_for(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens;
        int want;
        bool refused; /* without the remedy */
        bool some;    /* an expert has rows beside one that has none: the device form */
    } steps[] = {{LAYER_T, -1, false, false}, {0, -1, true, false},        {LAYER_T, 1, true, true},
                 {0, -1, true, false},        {LAYER_T, -1, false, false}, {LAYER_T, 0, true, true}};
    for (int recompute = 0; recompute < 2; recompute++) {
        static struct layer_alone a;
        struct moe_layer_config config = alone_config();
        float before1[ALONE_W1], before2[ALONE_W2];
        config.recompute = recompute != 0;
        alone_begin(&a, &config);
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
            int passes = recompute ? 2 : 1;
            assert_int_equal(pass(&a, steps[i].tokens, steps[i].want, REFUSE_ANY, 0),
                             steps[i].refused ? MOE_E_SHAPE : 0);
            memcpy(before1, a.d_w1, sizeof(before1));
            memcpy(before2, a.d_w2, sizeof(before2));
            a.result.events = 0;
            assert_int_equal(pass(&a, steps[i].tokens, steps[i].want, REFUSE_ANY, MOE_REMEDY_DUMMY), 0);
            assert_int_equal(atomic_load(&refusing_state.spread), steps[i].some ? passes : 0);
            /* in: rows and probabilities, and out: rows, in each forward; dy in, dx and d_probs out */
            assert_int_equal(atomic_load(&refusing_state.moved), steps[i].some ? 3 * passes + 3 : 0);
            for (int h = 0; h < ALONE_W1; h++) { /* an expert without rows adds nothing */
                bool empty = steps[i].tokens == 0 || (steps[i].want >= 0 && h / (ALONE_W1 / LAYER_L) != steps[i].want);
                assert_true(!empty || a.d_w1[h] == before1[h]);
            }
            for (int h = 0; h < ALONE_W2; h++) {
                bool empty = steps[i].tokens == 0 || (steps[i].want >= 0 && h / (ALONE_W2 / LAYER_L) != steps[i].want);
                assert_true(!empty || a.d_w2[h] == before2[h]);
            }
            assert_true(steps[i].tokens == 0 || memcmp(before2, a.d_w2, sizeof(before2)) != 0);
        }
        alone_end(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rank_without_rows_tells_of_its_dummy_rows),
        cmocka_unit_test(test_a_layer_uses_the_form_that_its_rows_ask_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
