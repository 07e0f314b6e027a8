/*
 * test_layer_ranks.c: one MoE layer over several ranks (threads of this process, on hostnccl): results, obligations,
 * remedies.
 *
 * This program defines moe_observe and moe_remedies itself, as a preloaded tool does, so it also proves that the
 * library calls them through the PLT. Which ranks are empty is decided by the input: token features are the experts
 * that they want.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/reference/ref.h"
#include "tests/moe_core/typed.h"

#include <pthread.h>

enum { MOST_RANKS = 4, T = 6, L = 2, H = 12, F = 5, MOST_E = MOST_RANKS * L, EVENTS = 64 };
enum { FORWARD = 1, BACKWARD = 2 };

struct scenario {
    int ranks;
    int32_t topk;
    uint32_t empty; /* bit per rank that must receive no token */
    bool legacy;
    bool backward;
    uint32_t remedies[MOST_RANKS]; /* what each rank is told is on */
    uint32_t granted;              /* local remedies granted when the hazard is met */
    enum moe_dispatcher_kind kind;
    int64_t row_multiple, row_budget;
    bool delay_wgrad;
    enum moe_dtype weight; /* of the experts; FP8 with a scale of SCALE */
};
#define SCALE 0.125

struct result {
    struct moe_event event[EVENTS];
    size_t events;
    float y[T * H], dx[T * H], d_gate[MOST_E * H], d_w1[L * 2 * F * H], d_w2[L * H * F];
    int64_t rows;
    bool skipped;
    int rc;
};

struct rank {
    const struct scenario *scenario;
    ncclUniqueId id;
    int rank;
    struct result *result;
};

static _Thread_local struct rank *self;

void moe_observe(const struct moe_event *event)
{
    struct result *r = self->result;
    if (r->events < EVENTS) {
        r->event[r->events++] = *event;
    }
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return self->scenario->remedies[self->rank] | (hazard & self->scenario->granted);
}

/* The model and the tokens of one rank, the same in float and double. */
struct data {
    double x[T * H], dy[T * H], gate[MOST_E * H], w1[MOST_E * 2 * F * H], w2[MOST_E * H * F];
};

static double rounded(uint64_t *state, double scale)
{
    return (double)(float)(scale * support_random(state));
}

/* A weight as the library's type has it. */
static double stored(const struct scenario *s, double value)
{
    bool fp8 = s->weight == MOE_E4M3 || s->weight == MOE_E5M2;
    return fp8 ? SCALE * typed_round(s->weight, value / SCALE) : typed_round(s->weight, value);
}

static void make_data(const struct scenario *s, int rank, struct data *d)
{
    uint64_t weights = 5, tokens = 100 + (uint64_t)rank;
    int64_t experts = s->ranks * L;
    int32_t allowed[MOST_E], n = 0;
    for (int32_t e = 0; e < experts; e++) {
        if ((s->empty >> (e / L) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    memset(d, 0, sizeof(*d));
    for (int64_t i = 0; i < experts * H; i++) {
        d->gate[i] = rounded(&weights, 0.1) + (i / H == i % H ? 2 : 0);
        d->gate[i] = (double)(float)d->gate[i];
    }
    for (int64_t i = 0; i < experts * 2 * F * H; i++) {
        d->w1[i] = stored(s, rounded(&weights, 0.5));
    }
    for (int64_t i = 0; i < experts * H * F; i++) {
        d->w2[i] = stored(s, rounded(&weights, 0.5));
    }
    for (int64_t i = 0; i < T * H; i++) {
        d->x[i] = rounded(&tokens, 0.3);
        d->dy[i] = rounded(&tokens, 1);
    }
    for (int64_t t = 0; t < T; t++) {
        int32_t first = (int32_t)(rank * T + t) % n;
        for (int32_t j = 0; j < s->topk; j++) {
            d->x[t * H + allowed[(first + j) % n]] += 5 - j;
        }
    }
    for (int64_t i = 0; i < T * H; i++) {
        d->x[i] = (double)(float)d->x[i];
    }
}

static float *narrow(moe_device_t *device, const double *from, int64_t count)
{
    float *to = NULL;
    if (moe_device_alloc(device, (size_t)count * sizeof(*to), (void **)&to) == 0) {
        for (int64_t i = 0; i < count; i++) {
            to[i] = (float)from[i];
        }
    }
    return to;
}

/* The weights of experts in the scenario's type. */
static void *pack(moe_device_t *device, enum moe_dtype type, const double *from, int64_t count)
{
    void *to = support_array(device, count, moe_dtype_bytes(type));
    double scale = type == MOE_E4M3 || type == MOE_E5M2 ? SCALE : 1;
    for (int64_t i = 0; i < count; i++) {
        typed_put(type, to, i, from[i] / scale);
    }
    return to;
}

static void run_layer(struct rank *r, ncclComm_t ep, moe_device_t *device)
{
    const struct scenario *s = r->scenario;
    struct result *out = r->result;
    struct data *d = malloc(sizeof(*d));
    moe_layer_t *layer = NULL;
    make_data(s, r->rank, d);
    int64_t experts = s->ranks * L, first = r->rank * L;
    float *x = narrow(device, d->x, T * H), *dy = narrow(device, d->dy, T * H),
          *gate = narrow(device, d->gate, experts * H);
    double ones[L] = {SCALE, SCALE};
    void *w1 = pack(device, s->weight, d->w1 + first * 2 * F * H, L * 2 * F * H),
         *w2 = pack(device, s->weight, d->w2 + first * H * F, L * H * F);
    float *scale = narrow(device, ones, L);
    float *y = NULL, *dx = NULL, *d_gate = NULL, *d_w1 = NULL, *d_w2 = NULL;
    struct {
        float **at;
        int64_t count;
        float *copy;
    } outputs[] = {{&y, T * H, out->y},
                   {&dx, T * H, out->dx},
                   {&d_gate, experts * H, out->d_gate},
                   {&d_w1, L * 2 * F * H, out->d_w1},
                   {&d_w2, L * H * F, out->d_w2}};
    for (size_t i = 0; i < 5; i++) {
        out->rc |= moe_device_alloc(device, (size_t)outputs[i].count * sizeof(float), (void **)outputs[i].at);
    }
    struct moe_layer_config config = {.layer = 3,
                                      .world_rank = r->rank,
                                      .max_tokens = T,
                                      .hidden = H,
                                      .ffn = F,
                                      .experts = experts,
                                      .topk = s->topk,
                                      .renormalise = s->topk > 1,
                                      .ep = ep,
                                      .dispatcher = s->kind,
                                      .row_multiple = s->row_multiple,
                                      .row_budget = s->row_budget,
                                      .delay_wgrad = s->delay_wgrad,
                                      .weight = s->weight,
                                      .options = {.legacy_skip_empty = s->legacy}};
    struct moe_layer_weights weights = {.gate = gate,
                                        .w1 = w1,
                                        .w2 = w2,
                                        .d_gate = d_gate,
                                        .d_w1 = d_w1,
                                        .d_w2 = d_w2,
                                        .scale1 = scale,
                                        .scale2 = scale};
    struct moe_step step = {.step = 9, .microbatch = 1};
    out->rc |= moe_layer_new(device, &config, &layer);
    if (out->rc == 0) {
        out->rc = moe_layer_forward(layer, &weights, &step, x, T, y);
        out->rc = out->rc != 0 || !s->backward ? out->rc : moe_layer_backward(layer, dy, dx);
        if (out->rc == 0 && s->delay_wgrad && s->backward) {
            out->rc = moe_device_sync(device);
            for (int64_t i = 0; i < L * H * F && out->rc == 0; i++) {
                out->rc = d_w2[i] == 0.0f ? 0 : MOE_E_STATE; /* nothing before backward_dw */
            }
            out->rc = out->rc != 0 ? out->rc : moe_layer_backward_dw(layer);
        }
        out->rc = out->rc != 0 ? out->rc : moe_device_sync(device);
        out->rows = moe_layer_rows(layer);
        out->skipped = moe_layer_skipped(layer);
    }
    for (size_t i = 0; i < 5 && out->rc == 0; i++) {
        memcpy(outputs[i].copy, *outputs[i].at, (size_t)outputs[i].count * sizeof(float));
    }
    void *arrays[] = {&x, &dy, &gate, &w1, &w2, &y, &dx, &d_gate, &d_w1, &d_w2, &scale};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, arrays[i]);
    }
    moe_layer_destroy(&layer);
    free(d);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    ncclComm_t ep = NULL;
    moe_device_t *device = NULL;
    self = r;
    r->result->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    r->result->rc |= ncclCommInitRank(&ep, r->scenario->ranks, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    r->result->rc |= moe_device_new_host(&device);
    if (r->result->rc == 0) {
        run_layer(r, ep, device);
    }
    moe_device_destroy(&device);
    if (ep != NULL) {
        ncclCommDestroy(ep);
    }
    return NULL;
}

static void run(const struct scenario *s, struct result *results)
{
    pthread_t thread[MOST_RANKS];
    struct rank rank[MOST_RANKS];
    ncclUniqueId id;
    memset(results, 0, MOST_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < s->ranks; r++) {
        rank[r] = (struct rank){s, id, r, &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < s->ranks; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(results[r].rc, 0);
    }
}

/* Outputs and all gradients against the single-process reference. */
static void check_against_reference(const struct scenario *s, const struct result *results)
{
    int64_t experts = s->ranks * L;
    struct data *d = malloc(sizeof(*d));
    double *d_gate = support_doubles(MOST_E * H), *d_w1 = support_doubles(MOST_E * 2 * F * H),
           *d_w2 = support_doubles(MOST_E * H * F);
    double got_gate[MOST_E * H] = {0};
    assert_non_null(d);
    for (int r = 0; r < s->ranks; r++) {
        double y[T * H], dx[T * H];
        make_data(s, r, d);
        struct moe_ref ref = {.hidden = H,
                              .ffn = F,
                              .experts = experts,
                              .topk = s->topk,
                              .renormalise = s->topk > 1,
                              .gate = d->gate,
                              .w1 = d->w1,
                              .w2 = d->w2};
        struct moe_ref_grads grads = {d_gate, d_w1, d_w2};
        assert_int_equal(moe_ref_forward(&ref, T, d->x, y), 0);
        assert_int_equal(moe_ref_backward(&ref, T, d->x, d->dy, dx, &grads), 0);
        support_close("y", results[r].y, y, T * H, 1e-5);
        support_close("dx", results[r].dx, dx, T * H, 1e-5);
        for (int64_t i = 0; i < experts * H; i++) {
            got_gate[i] += (double)results[r].d_gate[i];
        }
    }
    for (int r = 0; r < s->ranks; r++) {
        support_close("d_w1", results[r].d_w1, d_w1 + r * L * 2 * F * H, L * 2 * F * H, 1e-5);
        support_close("d_w2", results[r].d_w2, d_w2 + r * L * H * F, L * H * F, 1e-5);
    }
    for (int64_t i = 0; i < experts * H; i++) {
        assert_float_equal(got_gate[i], d_gate[i], 1e-4);
    }
    free(d);
    free(d_gate);
    free(d_w1);
    free(d_w2);
}

static void check_bitwise_equal(const struct scenario *s, const struct result *a, const struct result *b)
{
    for (int r = 0; r < s->ranks; r++) {
        assert_memory_equal(a[r].y, b[r].y, sizeof(a[r].y));
        assert_memory_equal(a[r].dx, b[r].dx, sizeof(a[r].dx));
        assert_memory_equal(a[r].d_gate, b[r].d_gate, sizeof(a[r].d_gate));
        /* == and not bytes: a sum with PAD's zero row may turn -0 into 0 */
        for (size_t i = 0; i < L * 2 * F * H; i++) {
            assert_true(a[r].d_w1[i] == b[r].d_w1[i]);
        }
        for (size_t i = 0; i < L * H * F; i++) {
            assert_true(a[r].d_w2[i] == b[r].d_w2[i]);
        }
    }
}

static const struct moe_event *find(const struct result *r, unsigned kind, unsigned phase, size_t nth)
{
    for (size_t i = 0; i < r->events; i++) {
        if (r->event[i].kind == kind && r->event[i].phase == phase && nth-- == 0) {
            return &r->event[i];
        }
    }
    return NULL;
}

static size_t count_events(const struct result *r, unsigned kind)
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
    static struct result results[MOST_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        for (int32_t topk = 1; topk <= 2; topk++) {
            struct scenario s = {.ranks = 4, .topk = topk, .empty = empties[i], .backward = true};
            run(&s, results);
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
    static struct result results[MOST_RANKS];
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
        {.kind = MOE_DISPATCH_HYBRIDEP, .row_budget = MOST_RANKS * T * 2 + 5},
        {.kind = MOE_DISPATCH_HYBRIDEP, .row_budget = MOST_RANKS * T * 2, .row_multiple = 4, .delay_wgrad = true},
        {.weight = MOE_BF16},
        {.weight = MOE_E4M3, .row_multiple = 16},
        {.weight = MOE_E5M2, .delay_wgrad = true},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        for (size_t n = 0; n < sizeof(empties) / sizeof(empties[0]); n++) {
            struct scenario s = {.ranks = 4, .topk = 2, .empty = empties[n], .backward = true};
            s.kind = table[i].kind;
            s.row_multiple = table[i].row_multiple;
            s.row_budget = table[i].row_budget;
            s.delay_wgrad = table[i].delay_wgrad;
            s.weight = table[i].weight;
            run(&s, results);
            check_against_reference(&s, results);
            for (int r = 0; r < 4 && s.row_budget == 0; r++) {
                assert_int_equal(results[r].rows == 0, empties[n] >> r & 1);
                assert_int_equal(find(&results[r], MOE_EV_COUNTS, FORWARD, 0)->count, results[r].rows);
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
    struct result result = {.rc = 0};
    struct scenario s = {.ranks = 1};
    struct rank r = {.scenario = &s, .result = &result};
    struct moe_layer_config config = {.max_tokens = T, .hidden = H, .ffn = F, .experts = L, .topk = 1};
    struct moe_step step = {.step = 0};
    self = &r;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    float *x = support_floats(device, T * H), *y = support_floats(device, T * H),
          *w = support_floats(device, L * 2 * F * H), *d = support_floats(device, L * 2 * F * H);
    struct moe_layer_weights weights = {.gate = w, .w1 = w, .w2 = w, .d_gate = d, .d_w1 = d, .d_w2 = d};
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, T, y), 0);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, T + 1, y), MOE_E_SHAPE);
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, 0, y), 0);
    assert_int_equal(moe_layer_backward(layer, y, x), 0);
    assert_int_equal(moe_layer_backward(layer, y, x), MOE_E_STATE);
    assert_int_equal(moe_layer_backward_dw(layer), MOE_E_STATE);
    weights.d_gate = weights.d_w1 = weights.d_w2 = NULL; /* inference: nothing to go back for */
    assert_int_equal(moe_layer_forward(layer, &weights, &step, x, T, y), 0);
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
    static struct result results[MOST_RANKS];
    struct scenario s = {.ranks = 4, .topk = 2, .empty = 4, .backward = true};
    run(&s, results);
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
    static struct result results[MOST_RANKS];
    struct scenario s = {.ranks = 4, .topk = 2, .empty = 2, .backward = true};
    run(&s, results);
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
        assert_int_equal(sent, T * 2);
        assert_int_equal(find(&results[r], MOE_EV_COUNTS, FORWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_GEMM, FORWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_GEMM, BACKWARD, 0)->count, received);
        assert_int_equal(find(&results[r], MOE_EV_ROUTE, FORWARD, 0)->count, T);
    }
    assert_int_equal(find(&results[1], MOE_EV_COUNTS, FORWARD, 0)->aux, L);
}

static void test_legacy_rank_without_rows_lacks_its_obligations(void **state)
{
    (void)state;
    static struct result results[MOST_RANKS];
    struct scenario s = {.ranks = 4, .topk = 1, .empty = 4, .legacy = true};
    run(&s, results);
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
    static struct result plain[MOST_RANKS], filled[MOST_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        struct scenario s = {.ranks = 4, .topk = 2, .empty = empties[i], .backward = true};
        run(&s, plain);
        s.legacy = true;
        s.granted = MOE_REMEDY_FILL;
        run(&s, filled);
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
    static struct result results[MOST_RANKS];
    struct scenario s = {
        .ranks = 2, .topk = 2, .empty = 1, .legacy = true, .backward = true, .remedies = {MOE_REMEDY_FILL, 0}};
    run(&s, results);
    check_against_reference(&s, results);
    const struct moe_event *e = find(&results[0], MOE_EV_REMEDY, FORWARD, 0);
    assert_int_equal(e->peer, MOE_REMEDY_FILL);
}

static void test_pad_agreed_by_all_leaves_nobody_empty_and_changes_no_result(void **state)
{
    (void)state;
    static struct result plain[MOST_RANKS], padded[MOST_RANKS];
    for (size_t i = 0; i < sizeof(empties) / sizeof(empties[0]); i++) {
        struct scenario s = {.ranks = 4, .topk = 2, .empty = empties[i], .backward = true};
        run(&s, plain);
        s.legacy = true;
        for (int r = 0; r < 4; r++) {
            s.remedies[r] = MOE_REMEDY_PAD;
        }
        run(&s, padded);
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
    static struct result results[MOST_RANKS];
    struct scenario s = {.ranks = 4, .topk = 1, .empty = 8, .backward = true};
    for (int missing = 0; missing < 4; missing++) {
        for (int r = 0; r < 4; r++) {
            s.remedies[r] = r == missing ? 0 : MOE_REMEDY_PAD;
        }
        run(&s, results);
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
    static struct result plain[MOST_RANKS], remedied[MOST_RANKS];
    struct scenario s = {.ranks = 4, .topk = 2, .backward = true};
    run(&s, plain);
    for (int r = 0; r < 4; r++) {
        s.remedies[r] = MOE_REMEDY_PAD | MOE_REMEDY_FILL;
    }
    s.legacy = true;
    run(&s, remedied);
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
