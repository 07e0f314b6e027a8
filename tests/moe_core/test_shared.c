/*
 * test_shared.c: the shared expert over 1, 2 and 4 ranks (threads of this process, on hostnccl) against a row-at-a-time
 * reference in double, forward and backward; with and without overlap, equal in every bit; that the overlap is one; the
 * order of the steps.
 */
#include "tests/moe_core/ffn_ref.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/shared.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { MOST_RANKS = 4, TOKENS = 8, HIDDEN = 6, FFN = 8, CASES = 256 };

static const float before_output = 0.25f, before_grad = 0.125f; /* what lies there already */

struct scenario {
    enum moe_shared_mode mode;
    enum moe_activation activation;
    enum moe_dtype type, main_grad;
    bool bias, gate, add, overwrite;
    int64_t tokens; /* of all ranks */
};

/* What one rank wrote, widened; and as bytes, to compare runs. */
struct result {
    int rc;
    double y[TOKENS * HIDDEN], dx[TOKENS * HIDDEN];
    double w1[2 * FFN * HIDDEN], w2[HIDDEN * FFN], b1[2 * FFN], b2[HIDDEN], gate[HIDDEN];
    int told[8], n_told;
};

/* The model and all tokens, as numbers that the scenario's type has. */
struct data {
    double x[TOKENS * HIDDEN], dy[TOKENS * HIDDEN];
    double w1[2 * FFN * HIDDEN], w2[HIDDEN * FFN], b1[2 * FFN], b2[HIDDEN], gate[HIDDEN];
};

static void make_data(const struct scenario *s, struct data *d)
{
    uint64_t state = 77;
    double *all[] = {d->x, d->dy, d->w1, d->w2, d->b1, d->b2, d->gate};
    const int64_t sizes[] = {TOKENS * HIDDEN, TOKENS * HIDDEN, 2 * FFN * HIDDEN, HIDDEN * FFN, 2 * FFN, HIDDEN, HIDDEN};
    for (int a = 0; a < 7; a++) {
        for (int64_t i = 0; i < sizes[a]; i++) {
            all[a][i] = typed_round(s->type, (a == 0 ? 2 : 1) * support_random(&state));
        }
    }
}

/* one rank */

struct rank {
    const struct scenario *scenarios;
    int n, ranks, rank;
    bool overlap;
    ncclUniqueId id;
    struct result *results; /* [n] */
    int rc;
};

struct arrays {
    void *x, *dy, *y, *dx, *other;
    struct moe_shared_weights w;
};

/* Elements from[map(i)] as an array of the type; NULL without memory. */
static void *array_of(moe_device_t *device, enum moe_dtype type, int64_t n, const double *from)
{
    void *to = NULL;
    if (moe_device_alloc(device, (size_t)n * sizeof(float), &to) == 0) {
        for (int64_t i = 0; i < n; i++) {
            typed_put(type, to, i, from[i]);
        }
    }
    return to;
}

static void *constant(moe_device_t *device, enum moe_dtype type, int64_t n, float value)
{
    double same[2 * FFN * HIDDEN + TOKENS * HIDDEN] = {0};
    for (int64_t i = 0; i < n; i++) {
        same[i] = (double)value;
    }
    return array_of(device, type, n, same);
}

static int64_t tokens_of(const struct scenario *s, int ranks)
{
    return s->mode == MOE_SHARED_SEQUENCE ? s->tokens / ranks : s->tokens;
}

static void make_arrays(moe_device_t *device, const struct scenario *s, int ranks, int rank, struct arrays *a)
{
    struct data d;
    double w1[2 * FFN * HIDDEN], w2[HIDDEN * FFN], b1[2 * FFN];
    int64_t part = FFN / ranks, tokens = tokens_of(s, ranks);
    make_data(s, &d);
    for (int64_t half = 0; half < 2; half++) {
        for (int64_t j = 0; j < part; j++) {
            int64_t from = half * FFN + rank * part + j, to = half * part + j;
            memcpy(w1 + to * HIDDEN, d.w1 + from * HIDDEN, HIDDEN * sizeof(double));
            b1[to] = d.b1[from];
        }
    }
    for (int64_t i = 0; i < HIDDEN * part; i++) {
        w2[i] = d.w2[i / part * FFN + rank * part + i % part];
    }
    int64_t first = s->mode == MOE_SHARED_SEQUENCE ? rank * tokens * HIDDEN : 0;
    a->x = array_of(device, s->type, tokens * HIDDEN, d.x + first);
    a->dy = array_of(device, s->type, tokens * HIDDEN, d.dy + first);
    a->y = constant(device, s->type, tokens * HIDDEN, before_output);
    a->dx = constant(device, s->type, tokens * HIDDEN, before_output);
    a->other = constant(device, s->type, tokens * HIDDEN, before_output);
    a->w.w1 = array_of(device, s->type, 2 * part * HIDDEN, w1);
    a->w.w2 = array_of(device, s->type, HIDDEN * part, w2);
    a->w.d_w1 = constant(device, s->main_grad, 2 * part * HIDDEN, before_grad);
    a->w.d_w2 = constant(device, s->main_grad, HIDDEN * part, before_grad);
    if (s->bias) {
        a->w.b1 = array_of(device, s->type, 2 * part, b1);
        a->w.b2 = array_of(device, s->type, HIDDEN, d.b2);
        a->w.d_b1 = constant(device, s->main_grad, 2 * part, before_grad);
        a->w.d_b2 = constant(device, s->main_grad, HIDDEN, before_grad);
    }
    if (s->gate) {
        a->w.gate = array_of(device, s->type, HIDDEN, d.gate);
        a->w.d_gate = constant(device, s->main_grad, HIDDEN, before_grad);
    }
    a->w.overwrite = s->overwrite;
}

static void free_arrays(moe_device_t *device, struct arrays *a)
{
    void *all[] = {&a->x,    &a->other,  &a->dy,     &a->y,      &a->dx,     &a->w.w1,   &a->w.w2,    &a->w.b1,
                   &a->w.b2, &a->w.gate, &a->w.d_w1, &a->w.d_w2, &a->w.d_b1, &a->w.d_b2, &a->w.d_gate};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        moe_device_free(device, all[i]);
    }
}

static void keep(enum moe_dtype type, const void *from, int64_t n, double *to)
{
    for (int64_t i = 0; from != NULL && i < n; i++) {
        to[i] = typed_get(type, from, i);
    }
}

static void note(void *arg, int which)
{
    struct result *r = arg;
    r->told[r->n_told++] = which;
}

static void run_scenario(const struct rank *r, const struct scenario *s, moe_device_t *device, moe_device_t *side,
                         ncclComm_t tp, struct result *out)
{
    struct arrays a = {.x = NULL};
    moe_shared_t *shared = NULL;
    int64_t tokens = tokens_of(s, r->ranks), part = FFN / r->ranks;
    struct moe_shared_config config = {.max_tokens = TOKENS,
                                       .hidden = HIDDEN,
                                       .ffn = FFN,
                                       .mode = s->mode,
                                       .tp = tp,
                                       .type = s->type,
                                       .weight = s->type,
                                       .main_grad = s->main_grad,
                                       .activation = s->activation,
                                       .clamp = {1.702f, 1.5f, 1.0f},
                                       .has_bias = s->bias,
                                       .has_gate = s->gate,
                                       .world_rank = r->rank,
                                       .ready = note,
                                       .ready_arg = out};
    make_arrays(device, s, r->ranks, r->rank, &a);
    out->rc = moe_shared_new(device, side, &config, &shared);
    /* Twice: the second forward overwrites what the first one's output is still read from. */
    for (int again = 0; again < 2 && out->rc == 0; again++) {
        out->rc = moe_shared_forward(shared, &a.w, a.x, tokens, again ? a.y : a.other, s->add);
    }
    out->rc = out->rc ? out->rc : moe_shared_backward(shared, a.dy, a.dx, s->add);
    out->rc = out->rc ? out->rc : moe_device_sync(device);
    if (side != NULL) {
        out->rc = out->rc ? out->rc : moe_device_sync(side);
    }
    keep(s->type, a.y, tokens * HIDDEN, out->y);
    keep(s->type, a.dx, tokens * HIDDEN, out->dx);
    keep(s->main_grad, a.w.d_w1, 2 * part * HIDDEN, out->w1);
    keep(s->main_grad, a.w.d_w2, HIDDEN * part, out->w2);
    keep(s->main_grad, a.w.d_b1, 2 * part, out->b1);
    keep(s->main_grad, a.w.d_b2, HIDDEN, out->b2);
    keep(s->main_grad, a.w.d_gate, HIDDEN, out->gate);
    moe_shared_destroy(&shared);
    free_arrays(device, &a);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    ncclComm_t tp = NULL;
    moe_device_t *device = NULL, *side = NULL;
    r->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    if (r->ranks > 1) {
        r->rc |= ncclCommInitRank(&tp, r->ranks, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    }
    r->rc |= moe_device_new_host(&device);
    r->rc |= r->overlap ? moe_device_new_host(&side) : 0;
    for (int i = 0; i < r->n && r->rc == 0; i++) {
        run_scenario(r, &r->scenarios[i], device, side, tp, &r->results[i]);
    }
    moe_device_destroy(&side);
    moe_device_destroy(&device);
    if (tp != NULL) {
        ncclCommDestroy(tp);
    }
    return NULL;
}

/* results [ranks][n] */
static void run(const struct scenario *scenarios, int n, int ranks, bool overlap, struct result *results)
{
    pthread_t thread[MOST_RANKS];
    struct rank rank[MOST_RANKS];
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < ranks; r++) {
        rank[r] = (struct rank){scenarios, n, ranks, r, overlap, id, results + r * n, 0};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < ranks; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(rank[r].rc, 0);
    }
    for (int i = 0; i < ranks * n; i++) {
        assert_int_equal(results[i].rc, 0);
    }
}

/* the reference */

static void reference(const struct scenario *s, struct result *want)
{
    struct data d;
    make_data(s, &d);
    struct ffn_ref f = {.hidden = HIDDEN,
                        .ffn = FFN,
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
        const double *x = d.x + t * HIDDEN, *dy = d.dy + t * HIDDEN;
        double logit = 0, score = 1, d_score = 0, dp, up[HIDDEN], *y = want->y + t * HIDDEN,
               *dx = want->dx + t * HIDDEN;
        for (int i = 0; i < HIDDEN; i++) {
            logit += d.gate[i] * x[i];
        }
        score = s->gate ? ffn_sigmoid(logit) : 1;
        ffn_forward(&f, x, 1, y);
        for (int i = 0; i < HIDDEN; i++) {
            d_score += dy[i] * y[i];
            up[i] = score * dy[i];
            y[i] *= score;
        }
        ffn_backward(&f, x, 1, up, dx, &dp, &grads);
        for (int i = 0; s->gate && i < HIDDEN; i++) {
            dx[i] += d_score * score * (1 - score) * d.gate[i];
            want->gate[i] += d_score * score * (1 - score) * x[i];
        }
    }
}

/* Rows of all ranks as the mode puts them together: behind each other, summed, or each alone. */
static void check_rows(const char *what, const struct scenario *s, int ranks, const double *const *got,
                       const double *want, double tolerance)
{
    int64_t tokens = tokens_of(s, ranks);
    double size = 1e-3, base = s->add ? (double)before_output : 0;
    for (int64_t i = 0; i < s->tokens * HIDDEN; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < s->tokens * HIDDEN; i++) {
        double sum = 0;
        for (int r = 0; r < ranks; r++) {
            sum += s->mode == MOE_SHARED_PARTIAL ? got[r][i] - base : 0;
        }
        for (int r = 0; r < ranks; r++) {
            int64_t at = i - r * tokens * HIDDEN;
            bool mine = s->mode != MOE_SHARED_SEQUENCE || (at >= 0 && at < tokens * HIDDEN);
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

static void check(const struct scenario *s, int n, int ranks, const struct result *results)
{
    struct result *want = calloc(1, sizeof(*want));
    const double *y[MOST_RANKS], *dx[MOST_RANKS];
    int64_t part = FFN / ranks;
    double base = s->overwrite ? 0 : (double)before_grad;
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
    double sum[HIDDEN] = {0}, size = 4;
    for (int r = 0; r < ranks; r++) {
        const struct result *got = &results[r * n];
        for (int64_t i = 0; i < 2 * part * HIDDEN; i++) {
            int64_t row = i / HIDDEN, from = row / part * FFN + r * part + row % part;
            near("d_w1", got->w1[i] - base, want->w1[from * HIDDEN + i % HIDDEN], size, grads);
        }
        for (int64_t i = 0; i < HIDDEN * part; i++) {
            near("d_w2", got->w2[i] - base, want->w2[i / part * FFN + r * part + i % part], size, grads);
        }
        for (int64_t i = 0; s->bias && i < 2 * part; i++) {
            near("d_b1", got->b1[i] - base, want->b1[i / part * FFN + r * part + i % part], size, grads);
        }
        for (int64_t i = 0; i < HIDDEN; i++) {
            near("d_b2", got->b2[i] - (s->bias ? base : 0), want->b2[i] * s->bias, size, grads);
            sum[i] += s->gate ? got->gate[i] - base : 0;
            if (s->mode == MOE_SHARED_REPLICATED) {
                near("d_gate", got->gate[i] - (s->gate ? base : 0), want->gate[i], size, grads);
            }
        }
    }
    for (int64_t i = 0; i < HIDDEN && s->mode != MOE_SHARED_REPLICATED; i++) {
        near("sum of d_gate", sum[i], want->gate[i], size, grads);
    }
    free(want);
}

/* tests */

static int make_scenarios(int ranks, struct scenario *to)
{
    static const struct {
        enum moe_dtype type, main_grad;
    } types[] = {{MOE_F32, MOE_F32}, {MOE_BF16, MOE_F32}, {MOE_F16, MOE_F16}};
    int n = 0;
    for (int mode = 0; mode < 4; mode++) {
        for (int i = 0; i < MOE_ACTIVATIONS * 4 * 3; i++) {
            bool fits = mode == MOE_SHARED_SINGLE ? ranks == 1 : true;
            if (fits && n < CASES) {
                to[n++] = (struct scenario){.mode = (enum moe_shared_mode)mode,
                                            .activation = (enum moe_activation)(i % 4),
                                            .type = types[i / 16].type,
                                            .main_grad = types[i / 16].main_grad,
                                            .bias = i / 4 % 2,
                                            .gate = i / 8 % 2,
                                            .add = (i + i / 4) % 2,
                                            .overwrite = (i / 2) % 2,
                                            .tokens = i % 16 == 15 ? 0 : TOKENS};
            }
        }
    }
    return n;
}

static void test_equals_the_reference_on_any_number_of_ranks(void **state)
{
    (void)state;
    static struct scenario scenarios[CASES];
    for (int ranks = 1; ranks <= MOST_RANKS; ranks *= 2) {
        int n = make_scenarios(ranks, scenarios);
        struct result *plain = calloc((size_t)(ranks * n), sizeof(*plain));
        struct result *overlapped = calloc((size_t)(ranks * n), sizeof(*overlapped));
        assert_non_null(plain);
        assert_non_null(overlapped);
        run(scenarios, n, ranks, false, plain);
        run(scenarios, n, ranks, true, overlapped);
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
    struct scenario s = {.bias = true, .gate = true, .tokens = TOKENS};
    static struct result result;
    run(&s, 1, 1, false, &result);
    assert_int_equal(result.n_told, 5);
    assert_memory_equal(result.told, all, sizeof(all));
}

/* that the overlap is one */

static _Atomic int passed;

static int pass(const void *args)
{
    (void)args;
    atomic_store(&passed, 1);
    return 0;
}

/* The main stream's own work: ends only when the side stream has got as far as pass. */
static int wait_for_pass(const void *args)
{
    (void)args;
    for (int i = 0; i < 200000 && atomic_load(&passed) == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return atomic_load(&passed) != 0 ? 0 : MOE_E_STATE;
}

static void test_steps_run_while_the_main_stream_is_busy(void **state)
{
    (void)state;
    struct scenario s = {.bias = true, .gate = true, .tokens = TOKENS};
    struct arrays a = {.x = NULL};
    moe_device_t *device = NULL, *side = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {
        .max_tokens = TOKENS, .hidden = HIDDEN, .ffn = FFN, .has_bias = true, .has_gate = true};
    char none = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_new_host(&side), 0);
    make_arrays(device, &s, 1, 0, &a);
    assert_int_equal(moe_shared_new(device, side, &config, &shared), 0);
    assert_ptr_equal(moe_shared_stream(shared), moe_device_stream(side));
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, TOKENS), 0);
    assert_int_equal(moe_device_call(device, wait_for_pass, &none, 1), 0);
    assert_int_equal(moe_shared_fc1(shared), 0);
    assert_int_equal(moe_shared_fc2(shared), 0);
    assert_int_equal(moe_shared_post_forward_comm(shared), 0);
    assert_int_equal(moe_device_call(side, pass, &none, 1), 0);
    assert_int_equal(moe_shared_get_output(shared, a.y, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    moe_shared_destroy(&shared);
    free_arrays(device, &a);
    moe_device_destroy(&side);
    moe_device_destroy(&device);
}

/* Work that ends late, and only then gives (or takes) its numbers. */
struct late {
    float *to;
    const float *from;
    int64_t n;
};

static int copy_late(const void *args)
{
    const struct late *l = args;
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
    memcpy(l->to, l->from, (size_t)l->n * sizeof(float));
    return 0;
}

static void test_each_stream_waits_for_what_the_other_gives_it(void **state)
{
    (void)state;
    struct scenario s = {.tokens = TOKENS};
    struct arrays a = {.x = NULL};
    moe_device_t *device = NULL, *side = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {
        .max_tokens = TOKENS, .hidden = HIDDEN, .ffn = FFN, .clamp = {1.702f, 1.5f, 1.0f}};
    enum { N = TOKENS * HIDDEN };
    float x[N], dy[N], y[N], dx[N], w1[2 * FFN * HIDDEN];
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_new_host(&side), 0);
    make_arrays(device, &s, 1, 0, &a);
    assert_int_equal(moe_shared_new(device, NULL, &config, &shared), 0);
    assert_int_equal(moe_shared_forward(shared, &a.w, a.x, TOKENS, a.y, false), 0);
    assert_int_equal(moe_shared_backward(shared, a.dy, a.dx, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    memcpy(y, a.y, sizeof(y));
    memcpy(dx, a.dx, sizeof(dx));
    memcpy(x, a.x, sizeof(x));
    memcpy(dy, a.dy, sizeof(dy));
    memcpy(w1, a.w.w1, sizeof(w1));
    moe_shared_destroy(&shared);
    memset(a.x, 0, sizeof(x));
    memset(a.dy, 0, sizeof(dy));
    memset((void *)(uintptr_t)a.w.w1, 0, sizeof(w1));
    const struct late late_x = {a.x, x, N}, late_dy = {a.dy, dy, N};
    const struct late late_w1 = {(float *)(uintptr_t)a.w.w1, w1, 2 * FFN * HIDDEN};
    assert_int_equal(moe_shared_new(device, side, &config, &shared), 0);
    assert_int_equal(moe_device_call(device, copy_late, &late_x, sizeof(late_x)), 0); /* main gives x late */
    assert_int_equal(moe_device_call(side, copy_late, &late_w1, sizeof(late_w1)), 0); /* side has y late */
    assert_int_equal(moe_shared_forward(shared, &a.w, a.x, TOKENS, a.y, false), 0);
    assert_int_equal(moe_device_call(device, copy_late, &late_dy, sizeof(late_dy)), 0);
    assert_int_equal(moe_shared_backward(shared, a.dy, a.dx, false), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(y, a.y, sizeof(y));
    assert_memory_equal(dx, a.dx, sizeof(dx));
    moe_shared_destroy(&shared);
    free_arrays(device, &a);
    moe_device_destroy(&side);
    moe_device_destroy(&device);
}

/* order and errors */

static struct arrays order_arrays;

static int step(moe_shared_t *s, int which)
{
    switch (which) {
    case 0:
        return moe_shared_pre_forward_comm(s, &order_arrays.w, order_arrays.x, TOKENS);
    case 1:
        return moe_shared_fc1(s);
    case 2:
        return moe_shared_fc2(s);
    case 3:
        return moe_shared_post_forward_comm(s);
    case 4:
        return moe_shared_get_output(s, order_arrays.y, false);
    case 5:
        return moe_shared_pre_backward_comm(s, order_arrays.dy);
    case 6:
        return moe_shared_fc2_backward(s);
    case 7:
        return moe_shared_fc1_backward(s);
    case 8:
        return moe_shared_post_backward_comm(s);
    default:
        return moe_shared_get_grad(s, order_arrays.dx, false);
    }
}

static void test_a_step_out_of_order_is_an_error_and_changes_nothing(void **state)
{
    (void)state;
    enum { STEPS = 10 };
    struct scenario s = {.tokens = TOKENS};
    moe_device_t *device = NULL;
    moe_shared_t *shared = NULL;
    struct moe_shared_config config = {.max_tokens = TOKENS, .hidden = HIDDEN, .ffn = FFN};
    assert_int_equal(moe_device_new_host(&device), 0);
    make_arrays(device, &s, 1, 0, &order_arrays);
    assert_int_equal(moe_shared_new(device, NULL, &config, &shared), 0);
    for (int done = 0; done <= STEPS; done++) {
        for (int wrong = 0; wrong < STEPS; wrong++) {
            bool right = wrong == done % STEPS || (done == 5 && wrong == 0); /* a forward may follow a forward */
            if (!right) {
                assert_int_equal(step(shared, wrong), MOE_E_STATE);
            }
        }
        if (done < STEPS) {
            assert_int_equal(step(shared, done), 0);
        }
    }
    assert_int_equal(moe_device_sync(device), 0);
    moe_shared_destroy(&shared);
    free_arrays(device, &order_arrays);
    moe_device_destroy(&device);
}

static void test_bad_input_is_an_error(void **state)
{
    (void)state;
    struct scenario s = {.tokens = TOKENS, .bias = true, .gate = true};
    struct arrays a = {.x = NULL};
    moe_device_t *device = NULL;
    moe_shared_t *shared = NULL;
    const struct moe_shared_config good = {.max_tokens = TOKENS,
                                           .hidden = HIDDEN,
                                           .ffn = FFN,
                                           .has_bias = true,
                                           .has_gate = true,
                                           .world_rank = 3,
                                           .layer = 5};
    assert_int_equal(moe_device_new_host(&device), 0);
    make_arrays(device, &s, 1, 0, &a);
    struct moe_shared_config bad = good;
    bad.ffn = 0;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_SHAPE);
    bad = good;
    bad.type = MOE_E4M3;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_ARG);
    bad = good;
    bad.mode = (enum moe_shared_mode)4;
    assert_int_equal(moe_shared_new(device, NULL, &bad, &shared), MOE_E_ARG);
    assert_null(shared);
    assert_non_null(strstr(moe_last_error(), "rank 3, layer 5"));
    assert_int_equal(moe_shared_new(device, NULL, &good, &shared), 0);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, TOKENS + 1), MOE_E_CAPACITY);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, -1), MOE_E_CAPACITY);
    struct moe_shared_weights lacking = a.w;
    lacking.gate = NULL;
    assert_int_equal(moe_shared_pre_forward_comm(shared, &lacking, a.x, TOKENS), MOE_E_ARG);
    assert_int_equal(moe_shared_pre_forward_comm(shared, &a.w, a.x, TOKENS), 0);
    moe_shared_destroy(&shared);
    free_arrays(device, &a);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_reference_on_any_number_of_ranks),
        cmocka_unit_test(test_parameters_are_told_ready_in_the_order_of_backward),
        cmocka_unit_test(test_steps_run_while_the_main_stream_is_busy),
        cmocka_unit_test(test_each_stream_waits_for_what_the_other_gives_it),
        cmocka_unit_test(test_a_step_out_of_order_is_an_error_and_changes_nothing),
        cmocka_unit_test(test_bad_input_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
