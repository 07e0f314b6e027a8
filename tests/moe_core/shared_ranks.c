/*
 * shared_ranks.c: see shared_ranks.h.
 */
#include "tests/moe_core/shared_ranks.h"

#include <pthread.h>

void shared_make_data(const struct shared_case *s, struct shared_data *d)
{
    uint64_t state = 77;
    double *all[] = {d->x, d->dy, d->w1, d->w2, d->b1, d->b2, d->gate};
    const int64_t sizes[] = {SHARED_TOKENS * SHARED_HIDDEN,
                             SHARED_TOKENS * SHARED_HIDDEN,
                             2 * SHARED_FFN * SHARED_HIDDEN,
                             SHARED_HIDDEN * SHARED_FFN,
                             2 * SHARED_FFN,
                             SHARED_HIDDEN,
                             SHARED_HIDDEN};
    for (int a = 0; a < 7; a++) {
        for (int64_t i = 0; i < sizes[a]; i++) {
            all[a][i] = typed_round(s->type, (a == 0 ? 2 : 1) * support_random(&state));
        }
    }
}

struct rank {
    const struct shared_case *scenarios;
    int n, ranks, rank;
    bool overlap;
    ncclUniqueId id;
    struct shared_result *results; /* [n] */
    int rc;
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
    double same[2 * SHARED_FFN * SHARED_HIDDEN + SHARED_TOKENS * SHARED_HIDDEN] = {0};
    for (int64_t i = 0; i < n; i++) {
        same[i] = (double)value;
    }
    return array_of(device, type, n, same);
}

int64_t shared_tokens(const struct shared_case *s, int ranks)
{
    return s->mode == MOE_SHARED_SEQUENCE ? s->tokens / ranks : s->tokens;
}

void shared_make_arrays(moe_device_t *device, const struct shared_case *s, int ranks, int rank, struct shared_arrays *a)
{
    struct shared_data d;
    double w1[2 * SHARED_FFN * SHARED_HIDDEN], w2[SHARED_HIDDEN * SHARED_FFN], b1[2 * SHARED_FFN];
    int64_t part = SHARED_FFN / ranks, tokens = shared_tokens(s, ranks);
    shared_make_data(s, &d);
    for (int64_t half = 0; half < 2; half++) {
        for (int64_t j = 0; j < part; j++) {
            int64_t from = half * SHARED_FFN + rank * part + j, to = half * part + j;
            memcpy(w1 + to * SHARED_HIDDEN, d.w1 + from * SHARED_HIDDEN, SHARED_HIDDEN * sizeof(double));
            b1[to] = d.b1[from];
        }
    }
    for (int64_t i = 0; i < SHARED_HIDDEN * part; i++) {
        w2[i] = d.w2[i / part * SHARED_FFN + rank * part + i % part];
    }
    int64_t first = s->mode == MOE_SHARED_SEQUENCE ? rank * tokens * SHARED_HIDDEN : 0;
    a->x = array_of(device, s->type, tokens * SHARED_HIDDEN, d.x + first);
    a->dy = array_of(device, s->type, tokens * SHARED_HIDDEN, d.dy + first);
    a->y = constant(device, s->type, tokens * SHARED_HIDDEN, SHARED_BEFORE_OUTPUT);
    a->dx = constant(device, s->type, tokens * SHARED_HIDDEN, SHARED_BEFORE_OUTPUT);
    a->other = constant(device, s->type, tokens * SHARED_HIDDEN, SHARED_BEFORE_OUTPUT);
    a->w.w1 = array_of(device, s->type, 2 * part * SHARED_HIDDEN, w1);
    a->w.w2 = array_of(device, s->type, SHARED_HIDDEN * part, w2);
    a->w.d_w1 = constant(device, s->main_grad, 2 * part * SHARED_HIDDEN, SHARED_BEFORE_GRAD);
    a->w.d_w2 = constant(device, s->main_grad, SHARED_HIDDEN * part, SHARED_BEFORE_GRAD);
    if (s->bias) {
        a->w.b1 = array_of(device, s->type, 2 * part, b1);
        a->w.b2 = array_of(device, s->type, SHARED_HIDDEN, d.b2);
        a->w.d_b1 = constant(device, s->main_grad, 2 * part, SHARED_BEFORE_GRAD);
        a->w.d_b2 = constant(device, s->main_grad, SHARED_HIDDEN, SHARED_BEFORE_GRAD);
    }
    if (s->gate) {
        a->w.gate = array_of(device, s->type, SHARED_HIDDEN, d.gate);
        a->w.d_gate = constant(device, s->main_grad, SHARED_HIDDEN, SHARED_BEFORE_GRAD);
    }
    a->w.overwrite = s->overwrite;
}

void shared_free_arrays(moe_device_t *device, struct shared_arrays *a)
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
    struct shared_result *r = arg;
    r->told[r->n_told++] = which;
}

static void run_scenario(const struct rank *r, const struct shared_case *s, moe_device_t *device, moe_device_t *side,
                         ncclComm_t tp, struct shared_result *out)
{
    struct shared_arrays a = {.x = NULL};
    moe_shared_t *shared = NULL;
    int64_t tokens = shared_tokens(s, r->ranks), part = SHARED_FFN / r->ranks;
    struct moe_shared_config config = {.max_tokens = SHARED_TOKENS,
                                       .hidden = SHARED_HIDDEN,
                                       .ffn = SHARED_FFN,
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
    shared_make_arrays(device, s, r->ranks, r->rank, &a);
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
    keep(s->type, a.y, tokens * SHARED_HIDDEN, out->y);
    keep(s->type, a.dx, tokens * SHARED_HIDDEN, out->dx);
    keep(s->main_grad, a.w.d_w1, 2 * part * SHARED_HIDDEN, out->w1);
    keep(s->main_grad, a.w.d_w2, SHARED_HIDDEN * part, out->w2);
    keep(s->main_grad, a.w.d_b1, 2 * part, out->b1);
    keep(s->main_grad, a.w.d_b2, SHARED_HIDDEN, out->b2);
    keep(s->main_grad, a.w.d_gate, SHARED_HIDDEN, out->gate);
    moe_shared_destroy(&shared);
    shared_free_arrays(device, &a);
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

void shared_run(const struct shared_case *scenarios, int n, int ranks, bool overlap, struct shared_result *results)
{
    pthread_t thread[SHARED_RANKS];
    struct rank rank[SHARED_RANKS];
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
