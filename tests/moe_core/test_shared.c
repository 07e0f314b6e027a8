/*
 * test_shared.c: the shared expert over 1, 2 and 4 ranks against a row-at-a-time reference in double, forward and
 * backward; with and without overlap, equal in every bit.
 */
#include "tests/moe_core/ffn_ref.h"
#include "tests/moe_core/shared_ranks.h"

enum { CASES = 256 };

static void reference(const struct shared_case *s, struct shared_result *want)
{
    struct shared_data d;
    shared_make_data(s, &d);
    struct ffn_ref f = {.hidden = SHARED_HIDDEN,
                        .ffn = SHARED_FFN,
                        .activation = s->activation,
                        .clamp = {1.702f, 1.5f, 1.0f},
                        .w1 = d.w1,
                        .w2 = d.w2,
                        .b1 = s->bias ? d.b1 : NULL,
                        .b2 = s->bias ? d.b2 : NULL,
                        .b2_scale = 1,
                        .exact = true};
    struct ffn_grads grads = {want->w1, want->b1, want->w2, want->b2};
    for (int64_t t = 0; t < s->tokens; t++) {
        const double *x = d.x + t * SHARED_HIDDEN, *dy = d.dy + t * SHARED_HIDDEN;
        double logit = 0, score = 1, d_score = 0, dp, up[SHARED_HIDDEN], *y = want->y + t * SHARED_HIDDEN,
               *dx = want->dx + t * SHARED_HIDDEN;
        for (int i = 0; i < SHARED_HIDDEN; i++) {
            logit += d.gate[i] * x[i];
        }
        score = s->gate ? ffn_sigmoid(logit) : 1;
        ffn_forward(&f, x, 1, y);
        for (int i = 0; i < SHARED_HIDDEN; i++) {
            d_score += dy[i] * y[i];
            up[i] = score * dy[i];
            y[i] *= score;
        }
        ffn_backward(&f, x, 1, up, dx, &dp, &grads);
        for (int i = 0; s->gate && i < SHARED_HIDDEN; i++) {
            dx[i] += d_score * score * (1 - score) * d.gate[i];
            want->gate[i] += d_score * score * (1 - score) * x[i];
        }
    }
}

/* Rows of all ranks as the mode puts them together: behind each other, summed, or each alone. */
static void check_rows(const char *what, const struct shared_case *s, int ranks, const double *const *got,
                       const double *want, double tolerance)
{
    int64_t tokens = shared_tokens(s, ranks);
    double size = 1e-3, base = s->add ? (double)SHARED_BEFORE_OUTPUT : 0;
    for (int64_t i = 0; i < s->tokens * SHARED_HIDDEN; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < s->tokens * SHARED_HIDDEN; i++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) {
            sum += s->mode == MOE_SHARED_PARTIAL ? got[r][i] - base : 0;
        }
        for (int r = 0; r < ranks; r++) {
            int64_t at = i - r * tokens * SHARED_HIDDEN;
            bool mine = s->mode != MOE_SHARED_SEQUENCE || (at >= 0 && at < tokens * SHARED_HIDDEN);
            double value = s->mode == MOE_SHARED_PARTIAL    ? sum
                           : s->mode == MOE_SHARED_SEQUENCE ? (mine ? got[r][at] - base : 0)
                                                            : got[r][i] - base;
            if (mine && !(fabs(value - want[i]) <= tolerance * (size + base * ranks))) {
                fail_msg("%s[%d]: got %.9g, want %.9g (mode %d, rank %d of %d)", what, (int)i, value, want[i],
                         (int)s->mode, r, ranks);
            }
        }
    }
}

static void near(const char *what, double got, double want, double size, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * size)) {
        fail_msg("%s: got %.9g, want %.9g", what, got, want);
    }
}

static void check(const struct shared_case *s, int n, int ranks, const struct shared_result *results)
{
    struct shared_result *want = calloc(1, sizeof(*want));
    const double *y[SHARED_RANKS], *dx[SHARED_RANKS];
    int64_t part = SHARED_FFN / ranks;
    double base = s->overwrite ? 0 : (double)SHARED_BEFORE_GRAD;
    double tolerance = s->type == MOE_F32 ? 5e-6 : s->type == MOE_BF16 ? 0.05 : 0.008;
    double grads = fmax(tolerance, s->main_grad == MOE_F32 ? 0 : 0.02);
    assert_non_null(want);
    reference(s, want);
    for (int r = 0; r < ranks; r++) {
        y[r] = results[r * n].y;
        dx[r] = results[r * n].dx;
    }
    check_rows("y", s, ranks, y, want->y, tolerance);
    check_rows("dx", s, ranks, dx, want->dx, tolerance);
    double sum[SHARED_HIDDEN] = {0}, size = 4;
    for (int r = 0; r < ranks; r++) {
        const struct shared_result *got = &results[r * n];
        for (int64_t i = 0; i < 2 * part * SHARED_HIDDEN; i++) {
            int64_t row = i / SHARED_HIDDEN, from = row / part * SHARED_FFN + r * part + row % part;
            near("d_w1", got->w1[i] - base, want->w1[from * SHARED_HIDDEN + i % SHARED_HIDDEN], size, grads);
        }
        for (int64_t i = 0; i < SHARED_HIDDEN * part; i++) {
            near("d_w2", got->w2[i] - base, want->w2[i / part * SHARED_FFN + r * part + i % part], size, grads);
        }
        for (int64_t i = 0; s->bias && i < 2 * part; i++) {
            near("d_b1", got->b1[i] - base, want->b1[i / part * SHARED_FFN + r * part + i % part], size, grads);
        }
        for (int64_t i = 0; i < SHARED_HIDDEN; i++) {
            near("d_b2", got->b2[i] - (s->bias ? base : 0), want->b2[i] * s->bias, size, grads);
            sum[i] += s->gate ? got->gate[i] - base : 0;
            if (s->mode == MOE_SHARED_REPLICATED) {
                near("d_gate", got->gate[i] - (s->gate ? base : 0), want->gate[i], size, grads);
            }
        }
    }
    for (int64_t i = 0; i < SHARED_HIDDEN && s->mode != MOE_SHARED_REPLICATED; i++) {
        near("sum of d_gate", sum[i], want->gate[i], size, grads);
    }
    free(want);
}

static int make_scenarios(int ranks, struct shared_case *to)
{
    static const struct {
        enum moe_dtype type, main_grad;
    } types[] = {{MOE_F32, MOE_F32}, {MOE_BF16, MOE_F32}, {MOE_F16, MOE_F16}};
    int n = 0;
    for (int mode = 0; mode < 4; mode++) {
        for (int i = 0; i < MOE_ACTIVATIONS * 4 * 3; i++) {
            bool fits = mode == MOE_SHARED_SINGLE ? ranks == 1 : true;
            if (fits && n < CASES) {
                to[n++] = (struct shared_case){.mode = (enum moe_shared_mode)mode,
                                               .activation = (enum moe_activation)(i % 4),
                                               .type = types[i / 16].type,
                                               .main_grad = types[i / 16].main_grad,
                                               .bias = i / 4 % 2,
                                               .gate = i / 8 % 2,
                                               .add = (i + i / 4) % 2,
                                               .overwrite = (i / 2) % 2,
                                               .tokens = i % 16 == 15 ? 0 : SHARED_TOKENS};
            }
        }
    }
    return n;
}

static void test_equals_the_reference_on_any_number_of_ranks(void **state)
{
    (void)state;
    static struct shared_case scenarios[CASES];
    for (int ranks = 1; ranks <= SHARED_RANKS; ranks *= 2) {
        int n = make_scenarios(ranks, scenarios);
        struct shared_result *plain = calloc((size_t)(ranks * n), sizeof(*plain));
        struct shared_result *overlapped = calloc((size_t)(ranks * n), sizeof(*overlapped));
        assert_non_null(plain);
        assert_non_null(overlapped);
        shared_run(scenarios, n, ranks, false, plain);
        shared_run(scenarios, n, ranks, true, overlapped);
        for (int i = 0; i < n; i++) {
            check(&scenarios[i], n, ranks, plain + i);
        }
        for (int i = 0; i < ranks * n; i++) { /* through widened numbers, bit for bit */
            assert_memory_equal(&plain[i], &overlapped[i], sizeof(plain[i]));
        }
        free(plain);
        free(overlapped);
    }
}

static void test_parameters_are_told_ready_in_the_order_of_backward(void **state)
{
    (void)state;
    static const int all[] = {MOE_SHARED_W2, MOE_SHARED_B2, MOE_SHARED_W1, MOE_SHARED_B1, MOE_SHARED_GATE};
    struct shared_case s = {.bias = true, .gate = true, .tokens = SHARED_TOKENS};
    static struct shared_result result;
    shared_run(&s, 1, 1, false, &result);
    assert_int_equal(result.n_told, 5);
    assert_memory_equal(result.told, all, sizeof(all));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_reference_on_any_number_of_ranks),
        cmocka_unit_test(test_parameters_are_told_ready_in_the_order_of_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
