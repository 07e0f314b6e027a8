/*
 * test_dummy_view_4851.c: what dummy rows are, number by number (Megatron-LM #4851): m' = max(m, 1), zero rows and zero
 * probabilities where an expert has none, every other row where it belongs, and nothing else written.
 *
 * test_dummy_4851.c compares runs of experts with and without dummy rows; on a back end to which an empty group is no
 * trouble, such runs are equal when nothing is put in at all. So this file looks at the view itself, uses one object
 * after another's numbers and poison have been in its buffers, and needs the rows: a back end that refuses empty
 * groups.
 */
#include "tests/moe_core/experts_trial.h"
#include "tests/moe_core/refusing.h"

#include "moe_core/include/moe/dummy.h"

/* One object of dummy rows and what is given to it: MOST real rows at most, of any type. */
struct bench {
    moe_device_t *device;
    moe_dummy_t *dummy;
    enum moe_dtype type;
    enum moe_dummy_form form;
    struct moe_dummy_view view; /* the device form's buffers: of the first forward, the same in each */
    int64_t rows, *m;
    unsigned char *x, *y, *dy, *dx;
    float *probs, *d_probs;
};

static size_t row_of(const struct bench *b)
{
    return HIDDEN * moe_dtype_bytes(b->type);
}

static void set_up_bench(struct bench *b)
{
    struct moe_dummy_config config = {
        .max_rows = MOST, .hidden = HIDDEN, .experts = EXPERTS, .type = b->type, .form = b->form};
    assert_int_equal(moe_device_new_host(&b->device), 0);
    assert_int_equal(moe_dummy_new(b->device, &config, &b->dummy), 0);
    b->m = support_array(b->device, EXPERTS, sizeof(*b->m));
    b->x = support_array(b->device, MOST, row_of(b));
    b->y = support_array(b->device, MOST, row_of(b));
    b->dy = support_array(b->device, MOST, row_of(b));
    b->dx = support_array(b->device, MOST, row_of(b));
    b->probs = support_floats(b->device, MOST);
    b->d_probs = support_floats(b->device, MOST);
}

static void tear_down_bench(struct bench *b)
{
    void *arrays[] = {&b->m, &b->x, &b->y, &b->dy, &b->dx, &b->probs, &b->d_probs};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(b->device, arrays[i]);
    }
    moe_dummy_destroy(&b->dummy);
    moe_device_destroy(&b->device);
}

/* Bytes that name the array, the row and the place, none of them 0 and none a poison. */
static void name_rows(unsigned char *rows, unsigned array, int64_t count, size_t row)
{
    for (size_t i = 0; i < (size_t)count * row; i++) {
        rows[i] = (unsigned char)(1 + (array * 61 + i / row * 7 + i % row) % 200);
    }
}

enum { POISON = 0xff }; /* a NaN of every type, an impossible count, no row */

/* The memory that an earlier user left: every buffer of the view, and what is given to fill. */
static void poison(struct bench *b, bool view)
{
    struct moe_dummy_view *v = &b->view;
    size_t padded = view ? (size_t)(b->form == MOE_DUMMY_HOST ? EXPERTS : MOST + EXPERTS) : 0;
    union {
        const void *given;
        void *own;
    } x = {v->x}, probs = {v->row_probs}, m = {v->m};
    if (padded > 0) {
        memset(x.own, POISON, padded * row_of(b));
        memset(v->y, POISON, padded * row_of(b));
        memset(v->dy, POISON, padded * row_of(b));
        memset(v->dx, POISON, padded * row_of(b));
        memset(probs.own, POISON, padded * sizeof(float));
        memset(v->d_row_probs, POISON, padded * sizeof(float));
        memset(m.own, POISON, EXPERTS * sizeof(int64_t));
    }
    memset(b->y, POISON, MOST * row_of(b));
    memset(b->dx, POISON, MOST * row_of(b));
    memset(b->d_probs, POISON, MOST * sizeof(float));
}

static void all_bytes(const char *what, const void *got, unsigned char byte, size_t bytes)
{
    const unsigned char *b = got;
    for (size_t i = 0; i < bytes; i++) {
        if (b[i] != byte) {
            fail_msg("%s: byte %zu is %02x, not %02x", what, i, b[i], byte);
        }
    }
}

/* Rows of the view against the real ones: `from` in place, zeros for dummy rows, poison behind them (NULL: none). */
static void check_spread(const struct bench *b, const char *what, const void *view, const void *from, size_t row)
{
    const unsigned char *v = view, *f = from;
    int64_t at = 0, real = 0;
    for (int e = 0; e < EXPERTS; e++) {
        same(what, v + (size_t)at * row, f + (size_t)real * row, (size_t)b->m[e] * row);
        at += b->m[e];
        real += b->m[e];
        if (b->m[e] == 0) {
            all_bytes(what, v + (size_t)at * row, 0, row);
            at++;
        }
    }
    all_bytes(what, v + (size_t)at * row, POISON, (size_t)(b->view.rows - at) * row);
}

/* The real rows of a view's buffer, whose rows were named, in `to`, and poison in the slack. */
static void check_gathered(const struct bench *b, const char *what, const void *view, const void *to, size_t row)
{
    const unsigned char *v = view, *t = to;
    int64_t at = 0, real = 0;
    for (int e = 0; e < EXPERTS; e++) {
        same(what, t + (size_t)real * row, v + (size_t)at * row, (size_t)b->m[e] * row);
        at += b->m[e] > 0 ? b->m[e] : 1;
        real += b->m[e];
    }
    all_bytes(what, t + (size_t)real * row, POISON, (size_t)(MOST - real) * row);
}

/* Forward, out and back with `rows` rows given, those beyond the counts slack. `used`: the object was used before. */
static void step(struct bench *b, const int64_t *pattern, int64_t slack, bool used)
{
    int64_t live = 0;
    for (int e = 0; e < EXPERTS; e++) {
        b->m[e] = pattern[e];
        live += pattern[e];
    }
    bool all = live == 0, host = b->form == MOE_DUMMY_HOST, padded = !host || all;
    b->rows = live + slack;
    name_rows(b->x, 1, MOST, row_of(b));
    name_rows(b->dy, 2, MOST, row_of(b));
    for (int i = 0; i < MOST; i++) {
        b->probs[i] = 0.5f + (float)i;
    }
    poison(b, used);
    assert_int_equal(moe_dummy_forward(b->dummy, b->x, b->probs, b->m, host ? pattern : NULL, b->rows, &b->view), 0);
    assert_int_equal(moe_device_sync(b->device), 0);
    assert_int_equal(moe_dummy_count(b->dummy), !host ? -1 : all ? EXPERTS : 0);
    assert_int_equal(b->view.rows, !padded ? b->rows : host ? EXPERTS : b->rows + EXPERTS);
    for (int e = 0; e < EXPERTS; e++) {
        assert_int_equal(b->view.m[e], padded && pattern[e] == 0 ? 1 : pattern[e]);
    }
    if (!padded) { /* the host form with rows gives the given arrays themselves: nothing is put in, nothing copied */
        assert_ptr_equal(b->view.x, b->x);
        assert_ptr_equal(b->view.row_probs, b->probs);
        assert_ptr_equal(b->view.m, b->m);
        return;
    }
    if (!used) { /* its buffers have just been found: this forward filled zeroed memory */
        poison(b, true);
        assert_int_equal(moe_dummy_forward(b->dummy, b->x, b->probs, b->m, host ? pattern : NULL, b->rows, &b->view),
                         0);
    }
    assert_int_equal(moe_dummy_strip_backward(b->dummy, b->dy), 0);
    assert_int_equal(moe_device_sync(b->device), 0);
    for (int e = 0; e < EXPERTS; e++) {
        assert_int_equal(b->view.m[e], pattern[e] == 0 ? 1 : pattern[e]);
    }
    check_spread(b, "x of the view", b->view.x, b->x, row_of(b));
    check_spread(b, "row_probs of the view", b->view.row_probs, b->probs, sizeof(float));
    check_spread(b, "dy of the view", b->view.dy, b->dy, row_of(b));
    name_rows(b->view.y, 3, b->view.rows, row_of(b));
    name_rows(b->view.dx, 4, b->view.rows, row_of(b));
    name_rows((unsigned char *)b->view.d_row_probs, 5, b->view.rows, sizeof(float));
    assert_int_equal(moe_dummy_strip(b->dummy, b->y), 0);
    assert_int_equal(moe_dummy_backward(b->dummy, b->dx, b->d_probs), 0);
    assert_int_equal(moe_device_sync(b->device), 0);
    check_gathered(b, "y", b->view.y, b->y, row_of(b));
    check_gathered(b, "dx", b->view.dx, b->dx, row_of(b));
    check_gathered(b, "d_row_probs", b->view.d_row_probs, b->d_probs, sizeof(float));
}

/* Full, empty, full and everything between, in one object: what the last forward left must not be seen. */
static void test_a_view_is_max_m_1_with_zero_rows_and_zero_probabilities(void **state)
{
    (void)state;
    static const int order[] = {0, 5, 0, 4, 5, 1, 2, 5, 5, 3, 0};
    for (enum moe_dtype type = MOE_F32; type <= MOE_F16; type++) {
        for (int slack = 0; slack <= SLACK; slack += SLACK) { /* slack alone included: rows, and none of them live */
            struct bench device = {.type = type, .form = MOE_DUMMY_DEVICE}, host = {.type = type};
            set_up_bench(&device);
            set_up_bench(&host);
            for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
                step(&device, patterns[order[i]], slack, i > 0);
            }
            for (size_t i = 0; i < 3; i++) {
                step(&host, patterns[5], slack, i > 0);
            }
            tear_down_bench(&device);
            tear_down_bench(&host);
        }
    }
}

/* The host form with rows gives and takes whole arrays; between two of those stands a forward without any. */
static void test_the_host_form_forgets_what_the_last_forward_was(void **state)
{
    (void)state;
    struct bench b = {.type = MOE_BF16};
    set_up_bench(&b);
    for (int i = 0; i < 4; i++) {
        static const int64_t one[EXPERTS] = {0, 0, 1, 0}; /* one row is a row */
        const int64_t *pattern = i % 2 == 1 ? patterns[5] : i == 0 ? patterns[0] : one;
        bool all = i % 2 == 1;
        struct moe_dummy_view *v = &b.view;
        step(&b, pattern, 0, false);
        if (!all) { /* every row comes and goes, in order, by a copy */
            name_rows(v->y, 3, b.rows, row_of(&b));
            name_rows(v->dx, 4, b.rows, row_of(&b));
            name_rows((unsigned char *)v->d_row_probs, 5, b.rows, sizeof(float));
            assert_int_equal(moe_dummy_strip(b.dummy, b.y), 0);
            assert_int_equal(moe_dummy_strip_backward(b.dummy, b.dy), 0);
            assert_int_equal(moe_dummy_backward(b.dummy, b.dx, b.d_probs), 0);
            assert_int_equal(moe_device_sync(b.device), 0);
            same("y", v->y, b.y, (size_t)b.rows * row_of(&b));
            same("dy", v->dy, b.dy, (size_t)b.rows * row_of(&b));
            same("dx", v->dx, b.dx, (size_t)b.rows * row_of(&b));
            same("d_row_probs", v->d_row_probs, b.d_probs, (size_t)b.rows * sizeof(float));
            all_bytes("the slack of y", b.y + (size_t)b.rows * row_of(&b), POISON,
                      (size_t)(MOST - b.rows) * row_of(&b));
        }
    }
    tear_down_bench(&b);
}

/* The map itself, as any back end must make it: a row of the buffer, -1 for a dummy row, -2 behind the last. */
static void test_the_map_names_each_row_once(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    int64_t *m = support_array(device, EXPERTS, sizeof(*m)), *padded = support_array(device, EXPERTS, sizeof(*m)),
            *map = support_array(device, MOST + EXPERTS, sizeof(*map));
    for (int p = 0; p < PATTERNS; p++) {
        int64_t live = 0, want[MOST + EXPERTS], n = 0;
        memcpy(m, patterns[p], sizeof(patterns[p]));
        for (int e = 0; e < EXPERTS; e++) {
            for (int64_t r = 0; r < m[e]; r++) {
                want[n++] = live++;
            }
            if (m[e] == 0) {
                want[n++] = -1;
            }
        }
        for (int64_t rows = live; rows <= live + SLACK; rows++) {
            struct moe_dummy_rows args = {.groups = EXPERTS, .rows = rows, .m = m, .padded = padded, .map = map};
            memset(padded, POISON, EXPERTS * sizeof(*padded));
            for (int i = 0; i < MOST + EXPERTS; i++) {
                map[i] = 77;
            }
            assert_int_equal(moe_device_ops(device)->dummy_rows(device, &args), 0);
            assert_int_equal(moe_device_sync(device), 0);
            for (int e = 0; e < EXPERTS; e++) {
                assert_int_equal(padded[e], m[e] > 0 ? m[e] : 1);
            }
            for (int64_t i = 0; i < MOST + EXPERTS; i++) {
                assert_int_equal(map[i], i < n ? want[i] : i < rows + EXPERTS ? -2 : 77);
            }
        }
    }
    moe_device_free(device, &m);
    moe_device_free(device, &padded);
    moe_device_free(device, &map);
    moe_device_destroy(&device);
}

static int run_experts(struct trial *t, moe_dummy_t *dummy, bool host)
{
    struct moe_dummy_view v = {.x = t->x, .row_probs = row_probs(t), .m = t->m, .rows = t->live, .y = t->y};
    int rc = dummy ? moe_dummy_forward(dummy, t->x, row_probs(t), t->m, host ? t->pattern : NULL, t->live, &v) : 0;
    rc = rc ? rc : moe_experts_forward(t->experts, &t->weights, v.x, v.row_probs, v.m, v.rows, v.y);
    if (dummy == NULL) {
        rc = rc ? rc : moe_experts_backward(t->experts, &t->weights, t->dy, t->dx, d_row_probs(t));
    } else {
        rc = rc ? rc : moe_dummy_strip(dummy, t->y);
        rc = rc ? rc : moe_dummy_strip_backward(dummy, t->dy);
        rc = rc ? rc : moe_experts_backward(t->experts, &t->weights, v.dy, v.dx, v.d_row_probs);
        rc = rc ? rc : moe_dummy_backward(dummy, t->dx, d_row_probs(t));
    }
    return rc ? rc : moe_device_sync(t->device);
}

/* Where products refuse empty groups the rows are needed, and enough: of no expert for the host form, of any for the
 * device's. */
static void test_a_back_end_that_refuses_empty_groups_is_given_none(void **state)
{
    (void)state;
    for (int p = 0; p < PATTERNS; p++) {
        for (int form = MOE_DUMMY_HOST; form <= MOE_DUMMY_DEVICE; form++) {
            struct trial t = {.pattern = patterns[p],
                              .config = {.max_rows = MOST + EXPERTS, .place = MOE_PROB_ACTIVATION, .has_bias = true}};
            struct moe_dummy_config config = {
                .max_rows = MOST, .hidden = HIDDEN, .experts = EXPERTS, .form = (enum moe_dummy_form)form};
            bool host = form == MOE_DUMMY_HOST, all = p == 5, any = p > 0;
            moe_dummy_t *dummy = NULL;
            set_up(&t);
            assert_int_equal(moe_dummy_new(t.device, &config, &dummy), 0);
            refuse(t.device, host ? REFUSE_ALL : REFUSE_ANY);
            assert_int_equal(run_experts(&t, NULL, host), (host ? all : any) ? MOE_E_SHAPE : 0);
            assert_int_equal(run_experts(&t, dummy, host), 0);
            /* fc1 and fc2 with forward, three gradients each and those of the probabilities, twice: none left out */
            assert_true(atomic_load(&refusing_state.products) >= 16);
            assert_int_equal(atomic_load(&refusing_state.spread), !host);
            if (host && any && !all) { /* and some expert empty beside others is what the host form does not cover */
                refuse(t.device, REFUSE_ANY);
                assert_int_equal(run_experts(&t, dummy, host), MOE_E_SHAPE);
            }
            moe_dummy_destroy(&dummy);
            tear_down(&t);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_view_is_max_m_1_with_zero_rows_and_zero_probabilities),
        cmocka_unit_test(test_the_host_form_forgets_what_the_last_forward_was),
        cmocka_unit_test(test_the_map_names_each_row_once),
        cmocka_unit_test(test_a_back_end_that_refuses_empty_groups_is_given_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
