/*
 * test_grouped.c: the grouped linear against products in double, with every position of empty groups.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/grouped.h"
#include "moe_core/include/moe/ops.h"

enum { GROUPS = 5, N = 7, K = 6, SLACK = 3 };

static const int64_t patterns[][GROUPS] = {
    {3, 1, 4, 2, 5}, /* none empty */
    {0, 3, 1, 4, 2}, /* first */
    {3, 1, 0, 4, 2}, /* middle */
    {3, 1, 4, 2, 0}, /* last */
    {0, 0, 4, 0, 0}, /* all but one */
    {0, 0, 0, 0, 0}, /* all */
};
enum { PATTERNS = sizeof(patterns) / sizeof(patterns[0]) };

struct fixture {
    moe_device_t *device;
    int64_t rows; /* sum of m */
    int64_t *m;
    float *x, *dy, *w, *y, *dx, *dw;
    double *xd, *dyd, *wd;
    uint64_t state;
};

static void set_up(struct fixture *f, const int64_t *pattern)
{
    memset(f, 0, sizeof(*f));
    f->state = 7;
    assert_int_equal(moe_device_new_host(&f->device), 0);
    f->m = support_array(f->device, GROUPS, sizeof(*f->m));
    for (int i = 0; i < GROUPS; i++) {
        f->m[i] = pattern[i];
        f->rows += pattern[i];
    }
    int64_t rows = f->rows + SLACK;
    f->x = support_floats(f->device, rows * K);
    f->dy = support_floats(f->device, rows * N);
    f->w = support_floats(f->device, GROUPS * N * K);
    f->y = support_floats(f->device, rows * N);
    f->dx = support_floats(f->device, rows * K);
    f->dw = support_floats(f->device, GROUPS * N * K);
    f->xd = support_doubles(rows * K);
    f->dyd = support_doubles(rows * N);
    f->wd = support_doubles(GROUPS * N * K);
    support_fill(f->x, f->xd, rows * K, 1, &f->state);
    support_fill(f->dy, f->dyd, rows * N, 1, &f->state);
    support_fill(f->w, f->wd, GROUPS * N * K, 1, &f->state);
}

static void tear_down(struct fixture *f)
{
    void *arrays[] = {&f->m, &f->x, &f->dy, &f->w, &f->y, &f->dx, &f->dw};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(f->device, arrays[i]);
    }
    free(f->xd);
    free(f->dyd);
    free(f->wd);
    moe_device_destroy(&f->device);
}

static struct moe_grouped_shape shape(const struct fixture *f)
{
    return (struct moe_grouped_shape){
        .groups = GROUPS, .out_features = N, .in_features = K, .rows = f->rows + SLACK, .m = f->m};
}

static void test_forward_and_dgrad_equal_the_reference(void **state)
{
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        struct fixture f;
        set_up(&f, patterns[p]);
        struct moe_grouped_shape s = shape(&f);
        support_poison(f.y, (f.rows + SLACK) * N);
        support_poison(f.dx, (f.rows + SLACK) * K);
        assert_int_equal(moe_grouped_forward(f.device, &s, f.x, f.w, f.y), 0);
        assert_int_equal(moe_grouped_dgrad(f.device, &s, f.dy, f.w, f.dx), 0);
        assert_int_equal(moe_device_sync(f.device), 0);
        double *y = support_doubles(f.rows * N), *dx = support_doubles(f.rows * K);
        int64_t row = 0;
        for (int g = 0; g < GROUPS; g++) {
            for (int64_t r = 0; r < patterns[p][g]; r++, row++) {
                for (int64_t n = 0; n < N; n++) {
                    for (int64_t k = 0; k < K; k++) {
                        y[row * N + n] += f.xd[row * K + k] * f.wd[(g * N + n) * K + k];
                        dx[row * K + k] += f.dyd[row * N + n] * f.wd[(g * N + n) * K + k];
                    }
                }
            }
        }
        support_close("y", f.y, y, f.rows * N, 1e-6);
        support_close("dx", f.dx, dx, f.rows * K, 1e-6);
        /* Slack rows are never written. */
        assert_true(support_is_poison(f.y + f.rows * N, SLACK * N));
        assert_true(support_is_poison(f.dx + f.rows * K, SLACK * K));
        free(y);
        free(dx);
        tear_down(&f);
    }
}

static void check_wgrad(const int64_t *pattern, bool accumulate)
{
    struct fixture f;
    set_up(&f, pattern);
    struct moe_grouped_shape s = shape(&f);
    double *dw = support_doubles(GROUPS * N * K);
    support_fill(f.dw, dw, GROUPS * N * K, 1, &f.state);
    float before[GROUPS * N * K];
    memcpy(before, f.dw, sizeof(before));
    assert_int_equal(moe_grouped_wgrad(f.device, &s, f.dy, f.x, accumulate, f.dw), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    int64_t row = 0;
    for (int g = 0; g < GROUPS; g++) {
        for (int64_t i = 0; !accumulate && i < N * K; i++) {
            dw[g * N * K + i] = 0;
        }
        for (int64_t r = 0; r < pattern[g]; r++, row++) {
            for (int64_t i = 0; i < N * K; i++) {
                dw[g * N * K + i] += f.dyd[row * N + i / K] * f.xd[row * K + i % K];
            }
        }
        if (pattern[g] == 0) {
            static const float zeros[N * K];
            assert_memory_equal(f.dw + g * N * K, accumulate ? before + g * N * K : zeros, sizeof(zeros));
        }
    }
    support_close("dw", f.dw, dw, GROUPS * N * K, 1e-6);
    free(dw);
    tear_down(&f);
}

static void test_wgrad_of_an_empty_group_is_zero_when_not_accumulating(void **state)
{
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        check_wgrad(patterns[p], false);
    }
}

static void test_wgrad_of_an_empty_group_leaves_main_grad_bitwise_alone_when_accumulating(void **state)
{
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        check_wgrad(patterns[p], true);
    }
}

/* A product of no terms, as of a rank without tokens: what it is added to, or zero, and never what the memory held. */
static void test_a_product_of_no_terms_is_what_it_is_added_to(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    float *c = support_floats(device, N * K), *none = support_floats(device, 1);
    for (int way = 0; way < 4; way++) {
        bool adds = way % 2 == 1;
        struct moe_gemm gemm = {
            .ta = way > 1, .m = N, .n = K, .alpha = 1, .beta = adds ? 1 : 0, .a = none, .b = none, .c = c};
        for (int i = 0; i < N * K; i++) {
            c[i] = adds ? (float)i : NAN;
        }
        assert_int_equal(moe_device_ops(device)->gemm(device, &gemm), 0);
        assert_int_equal(moe_device_sync(device), 0);
        for (int i = 0; i < N * K; i++) {
            assert_true(c[i] == (adds ? (float)i : 0.0f));
        }
    }
    moe_device_free(device, &c);
    moe_device_free(device, &none);
    moe_device_destroy(&device);
}

static void test_row_numbers_are_read_when_the_stream_runs(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, patterns[0]);
    struct moe_grouped_shape s = shape(&f);
    int64_t late[GROUPS] = {0, 0, 0, 0, 2};
    support_poison(f.y, (f.rows + SLACK) * N);
    assert_int_equal(moe_device_copy(f.device, f.m, late, sizeof(late)), 0);
    assert_int_equal(moe_grouped_forward(f.device, &s, f.x, f.w, f.y), 0);
    assert_int_equal(moe_device_sync(f.device), 0);
    assert_true(support_is_poison(f.y + 2 * N, (f.rows + SLACK - 2) * N));
    assert_false(support_is_poison(f.y, N));
    tear_down(&f);
}

static void test_bad_row_numbers_are_errors_and_write_nothing(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, patterns[0]);
    struct moe_grouped_shape s = shape(&f);
    support_poison(f.y, (f.rows + SLACK) * N);
    f.m[2] = -1;
    assert_int_equal(moe_grouped_forward(f.device, &s, f.x, f.w, f.y), 0);
    assert_int_equal(moe_device_sync(f.device), MOE_E_COUNT);
    f.m[2] = INT64_MAX;
    assert_int_equal(moe_grouped_forward(f.device, &s, f.x, f.w, f.y), 0);
    assert_int_equal(moe_device_sync(f.device), MOE_E_SPLIT);
    assert_true(support_is_poison(f.y, (f.rows + SLACK) * N));
    assert_int_equal(moe_device_sync(f.device), 0); /* an error is reported once */
    s.groups = 0;
    assert_int_equal(moe_grouped_forward(f.device, &s, f.x, f.w, f.y), MOE_E_SHAPE);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_and_dgrad_equal_the_reference),
        cmocka_unit_test(test_wgrad_of_an_empty_group_is_zero_when_not_accumulating),
        cmocka_unit_test(test_wgrad_of_an_empty_group_leaves_main_grad_bitwise_alone_when_accumulating),
        cmocka_unit_test(test_a_product_of_no_terms_is_what_it_is_added_to),
        cmocka_unit_test(test_row_numbers_are_read_when_the_stream_runs),
        cmocka_unit_test(test_bad_row_numbers_are_errors_and_write_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
