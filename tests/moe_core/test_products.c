/*
 * test_products.c: the host's products of groups: the loops for few rows of every instruction set against double, with
 * every remainder; the parts and the threads, which change no bit.
 */
#include "tests/moe_core/typed.h"

#include "moe_core/host/host_gemm.h"
#include "moe_core/include/moe/ops.h"

enum { MOST = 13, PAD = 3 }; /* PAD: strides are wider than rows */

/* few rows */

struct arrays {
    float in[MOST * 64], x[MOST * 64], out[64 * 64];
    unsigned char w[64 * 64 * 4];
    double ind[MOST * 64], xd[MOST * 64], wd[64 * 64], want[64 * 64];
};

static void fill(struct arrays *a, enum moe_dtype type, uint64_t *state)
{
    for (int i = 0; i < MOST * 64; i++) {
        a->in[i] = (float)support_random(state);
        a->x[i] = (float)support_random(state);
        a->ind[i] = (double)a->in[i];
        a->xd[i] = (double)a->x[i];
    }
    for (int i = 0; i < 64 * 64; i++) {
        typed_put(type, a->w, i, support_random(state));
        a->wd[i] = typed_get(type, a->w, i);
        a->out[i] = (float)support_random(state);
    }
}

/* What the product should give in column c of row r. */
static double wanted(const struct moe_product *p, const struct arrays *a, int64_t r, int64_t c)
{
    double sum = 0;
    int64_t length = p->kind == MOE_GROUPED_FORWARD ? p->k : p->kind == MOE_GROUPED_DGRAD ? p->n : p->m;
    for (int64_t i = 0; i < length; i++) {
        switch (p->kind) {
        case MOE_GROUPED_FORWARD:
            sum += a->ind[r * p->in_stride + i] * a->wd[c * p->w_stride + i];
            break;
        case MOE_GROUPED_DGRAD:
            sum += a->ind[r * p->in_stride + i] * a->wd[i * p->w_stride + c];
            break;
        default:
            sum += a->ind[i * p->in_stride + r] * a->xd[i * p->x_stride + c];
        }
    }
    return sum;
}

static void check_small(const struct moe_host_small *table, enum moe_grouped_kind kind, enum moe_dtype type, int64_t m,
                        int64_t n, int64_t k, float beta, uint64_t *state)
{
    static struct arrays a;
    struct moe_product p = {.kind = kind,
                            .m = m,
                            .n = n,
                            .k = k,
                            .in = a.in,
                            .in_stride = (kind == MOE_GROUPED_FORWARD ? k : n) + PAD,
                            .w = a.w,
                            .w_stride = k + PAD,
                            .w_type = type,
                            .x = a.x,
                            .x_stride = k + PAD,
                            .out = a.out,
                            .out_stride = (kind == MOE_GROUPED_FORWARD ? n : k) + PAD,
                            .beta = beta};
    fill(&a, type, state);
    int64_t rows = kind == MOE_GROUPED_WGRAD ? n : m, columns = kind == MOE_GROUPED_FORWARD ? n : k;
    static float before[64 * 64];
    memcpy(before, a.out, sizeof(before));
    (kind == MOE_GROUPED_WGRAD   ? table->wgrad
     : kind == MOE_GROUPED_DGRAD ? table->dgrad[type]
                                 : table->forward[type])(&p);
    for (int64_t i = 0; i < 64 * 64; i++) {
        int64_t r = i / p.out_stride, c = i % p.out_stride;
        if (r >= rows || c >= columns) {
            assert_true(a.out[i] == before[i]); /* nothing beside the result is written */
            continue;
        }
        double want = wanted(&p, &a, r, c) + (double)(beta * before[i]);
        if (!(fabs((double)a.out[i] - want) <= 3e-6 * (1 + fabs(want)))) {
            fail_msg("%s kind %d, %s, m %d n %d k %d: [%d,%d] is %.9g, not %.9g", table->name, (int)kind,
                     moe_dtype_name(type), (int)m, (int)n, (int)k, (int)r, (int)c, (double)a.out[i], want);
        }
    }
}

static void check_table(const struct moe_host_small *table)
{
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {8, 8}, {9, 17}, {12, 31}, {25, 16}, {31, 40}, {40, 33}};
    uint64_t state = 3;
    for (int64_t m = 1; m <= MOST; m++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            for (int type = MOE_F32; type <= MOE_F16; type++) {
                check_small(table, MOE_GROUPED_FORWARD, (enum moe_dtype)type, m, sizes[s][0], sizes[s][1], 0, &state);
                check_small(table, MOE_GROUPED_DGRAD, (enum moe_dtype)type, m, sizes[s][0], sizes[s][1], 0, &state);
            }
            check_small(table, MOE_GROUPED_WGRAD, MOE_F32, m, sizes[s][0], sizes[s][1], 0, &state);
            check_small(table, MOE_GROUPED_WGRAD, MOE_F32, m, sizes[s][0], sizes[s][1], 1, &state);
        }
    }
}

static void test_few_rows_equal_double_on_every_instruction_set(void **state)
{
    (void)state;
    check_table(&moe_host_small_plain);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
        check_table(&moe_host_small_avx2);
    } else {
        print_message("no AVX2, FMA and F16C here: only the plain loops were tested\n");
    }
#endif
}

/* the whole pass */

enum { GROUPS = 5, N = 576, K = 640 };
static const int64_t counts[GROUPS] = {3, 0, 150, 1, 20};

struct pass {
    moe_device_t *device;
    struct moe_linear_pass args;
    struct moe_linear_group *group;
    int64_t *m, rows;
    void *w, *out;
    double *xd, *dyd, *wd;
    size_t bytes; /* of what the pass writes */
};

static void set_up(struct pass *p, enum moe_linear_kind kind, enum moe_dtype type)
{
    uint64_t state = 9;
    memset(p, 0, sizeof(*p));
    assert_int_equal(moe_device_new_host(&p->device), 0);
    p->m = support_array(p->device, GROUPS, sizeof(*p->m));
    for (int g = 0; g < GROUPS; g++) {
        p->m[g] = counts[g];
        p->rows += counts[g];
    }
    void *x = typed_random(p->device, type, p->rows * K, 1, &state, &p->xd);
    void *dy = typed_random(p->device, type, p->rows * N, 1, &state, &p->dyd);
    p->w = typed_random(p->device, type, GROUPS * N * K, 1, &state, &p->wd);
    bool wgrad = kind == MOE_LINEAR_WGRAD;
    p->bytes = (size_t)(wgrad ? GROUPS * N * K : p->rows * (kind == MOE_LINEAR_FORWARD ? N : K)) *
               (wgrad ? sizeof(float) : moe_dtype_bytes(type));
    p->out = support_array(p->device, (int64_t)p->bytes, 1);
    p->group = support_array(p->device, GROUPS, sizeof(*p->group));
    for (int g = 0; g < GROUPS; g++) {
        p->group[g] = (struct moe_linear_group){.weight = (char *)p->w + (size_t)g * N * K * moe_dtype_bytes(type),
                                                .d_weight = wgrad ? (float *)p->out + g * N * K : NULL};
    }
    p->args = (struct moe_linear_pass){.kind = kind,
                                       .groups = GROUPS,
                                       .n = N,
                                       .k = K,
                                       .rows = p->rows,
                                       .m = p->m,
                                       .group = p->group,
                                       .activation = type,
                                       .weight = type,
                                       .x = x,
                                       .dy = dy,
                                       .out = p->out};
}

static void tear_down(struct pass *p)
{
    void *x = (void *)(uintptr_t)p->args.x, *dy = (void *)(uintptr_t)p->args.dy;
    void *arrays[] = {&p->m, &p->w, &p->out, &p->group, &x, &dy};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(p->device, arrays[i]);
    }
    free(p->xd);
    free(p->dyd);
    free(p->wd);
    moe_device_destroy(&p->device);
}

/* A sample of the pass's numbers in double; all of them would take longer than the pass. */
static void check_sample(const struct pass *p, enum moe_dtype type)
{
    uint64_t state = 4;
    int64_t row = 0;
    for (int g = 0; g < GROUPS; row += counts[g++]) {
        for (int i = 0; i < 200 && counts[g] > 0; i++) {
            int64_t r = row + (int64_t)((support_random(&state) + 1) / 2 * (double)counts[g]) % counts[g];
            int64_t n = (int64_t)((support_random(&state) + 1) / 2 * N) % N,
                    k = (int64_t)((support_random(&state) + 1) / 2 * K) % K;
            double want = 0, got;
            if (p->args.kind == MOE_LINEAR_FORWARD) {
                for (int64_t j = 0; j < K; j++) {
                    want += p->xd[r * K + j] * p->wd[(g * N + n) * K + j];
                }
                got = typed_get(type, p->out, r * N + n);
            } else if (p->args.kind == MOE_LINEAR_DGRAD) {
                for (int64_t j = 0; j < N; j++) {
                    want += p->dyd[r * N + j] * p->wd[(g * N + j) * K + k];
                }
                got = typed_get(type, p->out, r * K + k);
            } else {
                for (int64_t j = row; j < row + counts[g]; j++) {
                    want += p->dyd[j * N + n] * p->xd[j * K + k];
                }
                got = (double)((float *)p->out)[(g * N + n) * K + k];
            }
            double tolerance = p->args.kind == MOE_LINEAR_WGRAD ? 1e-5 : fmax(1e-5, typed_tolerance(type) / 2);
            if (!(fabs(got - want) <= tolerance * (2 + fabs(want)))) {
                fail_msg("kind %d %s group %d: %.9g, not %.9g", (int)p->args.kind, moe_dtype_name(type), g, got, want);
            }
        }
    }
}

static void test_a_pass_equals_double_and_no_bit_depends_on_the_threads(void **state)
{
    (void)state;
    for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_WGRAD; kind++) {
        for (int type = MOE_F32; type <= MOE_BF16; type++) {
            struct pass p;
            set_up(&p, (enum moe_linear_kind)kind, (enum moe_dtype)type);
            void *one = malloc(p.bytes);
            assert_non_null(one);
            assert_int_equal(moe_device_host_threads(1), 1);
            assert_int_equal(moe_device_ops(p.device)->linear(p.device, &p.args), 0);
            assert_int_equal(moe_device_sync(p.device), 0);
            check_sample(&p, (enum moe_dtype)type);
            memcpy(one, p.out, p.bytes);
            assert_int_equal(moe_device_host_threads(0), 3);
            for (int again = 0; again < 3; again++) {
                memset(p.out, 0x55, p.bytes);
                assert_int_equal(moe_device_ops(p.device)->linear(p.device, &p.args), 0);
                assert_int_equal(moe_device_sync(p.device), 0);
                assert_int_equal(memcmp(one, p.out, p.bytes), 0);
            }
            free(one);
            tear_down(&p);
        }
    }
}

/* Forward: six parts of 1537 columns, 256 each, and one is left over. DGRAD: two of 6165. Every number is written, and
 * as it should be. */
static void test_parts_leave_no_column_out(void **state)
{
    (void)state;
    enum { ROWS = 150, WIDE = 1537, DEEP = 900 };
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    int64_t *m = support_array(device, 1, sizeof(*m));
    struct moe_linear_group *group = support_array(device, 1, sizeof(*group));
    float *x = support_floats(device, ROWS * DEEP), *w = support_floats(device, WIDE * DEEP),
          *y = support_floats(device, ROWS * WIDE);
    support_poison(y, ROWS * WIDE);
    m[0] = ROWS;
    group->weight = w;
    struct moe_linear_pass pass = {
        .groups = 1, .n = WIDE, .k = DEEP, .rows = ROWS, .m = m, .group = group, .x = x, .out = y};
    assert_int_equal(moe_device_ops(device)->linear(device, &pass), 0);
    assert_int_equal(moe_device_sync(device), 0);
    for (int64_t i = 0; i < ROWS * WIDE; i++) {
        assert_true(y[i] == 0.0f);
    }
    enum { LONG = 6165 };
    float *dy = support_floats(device, ROWS * DEEP), *wide = support_floats(device, DEEP * LONG),
          *dx = support_floats(device, ROWS * LONG);
    support_poison(dx, ROWS * LONG);
    for (int i = 0; i < DEEP * LONG; i++) {
        wide[i] = i / LONG == 0 ? (float)(i % LONG) : 0.0f; /* the first row of weights numbers the columns */
    }
    for (int i = 0; i < ROWS * DEEP; i++) {
        dy[i] = i % DEEP == 0 ? 2.0f : 1.0f;
    }
    group->weight = wide;
    struct moe_linear_pass dgrad = {.kind = MOE_LINEAR_DGRAD,
                                    .groups = 1,
                                    .n = DEEP,
                                    .k = LONG,
                                    .rows = ROWS,
                                    .m = m,
                                    .group = group,
                                    .dy = dy,
                                    .out = dx};
    assert_int_equal(moe_device_ops(device)->linear(device, &dgrad), 0);
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < ROWS * LONG; i++) {
        assert_true(dx[i] == 2.0f * (float)(i % LONG));
    }
    void *arrays[] = {&m, &group, &x, &w, &y, &dy, &wide, &dx};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_device_destroy(&device);
}

/* Thousands of lists of a few tiny tasks: one thread is still at work when another has found the list empty. Under
 * ThreadSanitizer this is the pool's own test. */
static void test_short_lists_one_after_the_other(void **state)
{
    (void)state;
    enum { LISTS = 4000, TASKS = 7, WIDE = 3, DEEP = 5 };
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    int64_t *m = support_array(device, TASKS, sizeof(*m));
    struct moe_linear_group *group = support_array(device, TASKS, sizeof(*group));
    float *x = support_floats(device, TASKS * DEEP), *w = support_floats(device, WIDE * DEEP),
          *y = support_floats(device, LISTS * TASKS * WIDE);
    support_poison(y, LISTS * TASKS * WIDE);
    for (int i = 0; i < TASKS * DEEP; i++) {
        x[i] = (float)(i / DEEP + 1);
    }
    for (int i = 0; i < WIDE * DEEP; i++) {
        w[i] = 1.0f;
    }
    for (int g = 0; g < TASKS; g++) {
        m[g] = 1;
        group[g].weight = w;
    }
    assert_int_equal(moe_device_host_threads(0), 3);
    for (int i = 0; i < LISTS; i++) {
        struct moe_linear_pass pass = {.groups = TASKS,
                                       .n = WIDE,
                                       .k = DEEP,
                                       .rows = TASKS,
                                       .m = m,
                                       .group = group,
                                       .x = x,
                                       .out = y + (size_t)i * TASKS * WIDE};
        assert_int_equal(moe_device_ops(device)->linear(device, &pass), 0);
    }
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < LISTS * TASKS * WIDE; i++) {
        assert_true(y[i] == (float)(DEEP * (i / WIDE % TASKS + 1))); /* every task, once, with its own list */
    }
    void *arrays[] = {&m, &group, &x, &w, &y};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_rows_equal_double_on_every_instruction_set),
        cmocka_unit_test(test_a_pass_equals_double_and_no_bit_depends_on_the_threads),
        cmocka_unit_test(test_parts_leave_no_column_out),
        cmocka_unit_test(test_short_lists_one_after_the_other),
    };
    setenv("MOE_HOST_THREADS", "3", 1); /* read at the first product */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
