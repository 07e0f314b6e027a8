/*
 * test_memory.c: the memory of a device: the pool and what it hands out, the caller's allocator, and layers over them.
 *
 * The allocator here counts what it gave and what came back, refuses the n-th request and the next one (the pool asks
 * again, for less) when it is told to, and fills everything with NaN. Layers run with MOE_POISON too (CMakeLists.txt),
 * so recycled memory is NaN whenever it changes hands.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/ep_buffer.h"
#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/linear.h"
#include "moe_core/include/moe/ops.h"

#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

/* an allocator that counts */

struct counting {
    size_t bytes;   /* given and not come back */
    int64_t given;  /* requests that were granted */
    int64_t refuse; /* the number of the first of two requests that are refused, from 0; -1: none */
    bool once;      /* only one is refused */
    int64_t asked;  /* requests so far */
    bool wrong;     /* something came back with another size, or was never given */
    struct {
        void *at;
        size_t bytes;
    } live[4096];
};

static void *counting_alloc(void *arg, size_t bytes, cudaStream_t stream)
{
    struct counting *c = arg;
    (void)stream;
    int64_t number = c->asked++;
    if (c->refuse >= 0 && number >= c->refuse && number < c->refuse + (c->once ? 1 : 2)) {
        return NULL;
    }
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    for (size_t i = 0; i < sizeof(c->live) / sizeof(c->live[0]); i++) {
        if (c->live[i].at == NULL) {
            c->live[i].at = at;
            c->live[i].bytes = bytes;
            c->bytes += bytes;
            c->given++;
            return memset(at, 0xff, bytes);
        }
    }
    abort();
}

static void counting_release(void *arg, void *memory, size_t bytes, cudaStream_t stream)
{
    struct counting *c = arg;
    cudaStreamSynchronize(stream); /* as the contract says: not before the work that uses it is done */
    for (size_t i = 0; i < sizeof(c->live) / sizeof(c->live[0]); i++) {
        if (c->live[i].at == memory) {
            c->wrong = c->wrong || c->live[i].bytes != bytes;
            c->bytes -= bytes;
            c->live[i].at = NULL;
            memset(memory, 0xff, bytes);
            free(memory);
            return;
        }
    }
    c->wrong = true;
}

static moe_device_t *device_of(struct counting *c)
{
    moe_device_t *device = NULL;
    const struct moe_allocator allocator = {counting_alloc, counting_release, c};
    c->refuse = -1;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &allocator), 0);
    return device;
}

/* a layer on one rank or several */

enum { T = 24, H = 64, F = 32, E = 8, K = 2, MOST_RANKS = 4 };

struct model {
    float *x, *dy, *y, *dx, *gate, *w1, *w2, *d_gate, *d_w1, *d_w2;
};

enum { TENSORS = sizeof(struct model) / sizeof(float *) };

static void tensors(struct model *m, int64_t local, float **at[TENSORS], int64_t count[TENSORS])
{
    float **all[TENSORS] = {&m->x, &m->dy, &m->y, &m->dx, &m->gate, &m->w1, &m->w2, &m->d_gate, &m->d_w1, &m->d_w2};
    const int64_t counts[TENSORS] = {
        T * H, T * H, T * H, T * H, E * H, local * 2 * F * H, local * H * F, E * H, local * 2 * F * H, local * H * F};
    memcpy(at, all, sizeof(all));
    memcpy(count, counts, sizeof(counts));
}

static void make_model(moe_device_t *device, struct model *m, int rank, int64_t local)
{
    float **at[TENSORS];
    int64_t count[TENSORS];
    uint64_t same = 3, own = 50 + (uint64_t)rank;
    tensors(m, local, at, count);
    for (size_t i = 0; i < TENSORS; i++) {
        *at[i] = support_floats(device, count[i]);
        if (i != 2 && i != 3 && i < 7) {
            support_fill(*at[i], NULL, count[i], 0.5, i == 4 ? &same : &own);
        }
    }
}

/* Makes bfloat16 numbers of [T,H] floats, in place. */
static void to_bf16(float *rows)
{
    uint16_t *to = (uint16_t *)(void *)rows;
    for (int i = 0; i < T * H; i++) {
        uint32_t bits;
        memcpy(&bits, &rows[i], sizeof(bits));
        to[i] = (uint16_t)(bits >> 16);
    }
}

static void free_model(moe_device_t *device, struct model *m)
{
    float **at[TENSORS];
    int64_t count[TENSORS];
    tensors(m, 1, at, count);
    for (size_t i = 0; i < TENSORS; i++) {
        moe_device_free(device, at[i]);
    }
}

static struct moe_layer_weights weights_of(const struct model *m, bool grads)
{
    struct moe_layer_weights w = {.gate = m->gate, .w1 = m->w1, .w2 = m->w2};
    if (grads) {
        w.d_gate = m->d_gate;
        w.d_w1 = m->d_w1;
        w.d_w2 = m->d_w2;
    }
    return w;
}

static struct moe_layer_config config_of(ncclComm_t ep, int rank, enum moe_dispatcher_kind kind)
{
    return (struct moe_layer_config){
        .world_rank = rank,
        .max_tokens = T,
        .hidden = H,
        .ffn = F,
        .experts = E,
        .topk = K,
        .renormalise = true,
        .dispatcher = kind,
        .uneven = kind == MOE_DISPATCH_HYBRIDEP || kind == MOE_DISPATCH_ALLGATHER ? MOE_UNEVEN_MAX : MOE_UNEVEN_NONE,
        .ep = ep};
}

static int run_step(moe_device_t *device, moe_layer_t *layer, struct model *m, int64_t tokens)
{
    const struct moe_layer_weights w = weights_of(m, true);
    const struct moe_step step = {.step = 0};
    int rc = moe_layer_forward(layer, &w, &step, m->x, tokens, m->y);
    rc = rc ? rc : moe_layer_backward(layer, m->dy, m->dx);
    int waited = moe_device_sync(device);
    return rc ? rc : waited;
}

static struct moe_memory_figures figures_of(const moe_device_t *device)
{
    struct moe_memory_figures f;
    moe_device_memory(device, &f);
    return f;
}

/* the pool */

static void test_the_pool_grows_with_the_rows_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    make_model(device, &m, 0, E);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    assert_int_equal(figures_of(device).reserved, 0); /* nothing has come yet */
    assert_int_equal(run_step(device, layer, &m, 2), 0);
    struct moe_memory_figures few = figures_of(device);
    assert_true(few.most_in_use > 0);
    assert_int_equal(few.in_use, 0);
    assert_int_equal(few.reserved, few.most_reserved);
    assert_int_equal(run_step(device, layer, &m, T), 0);
    struct moe_memory_figures many = figures_of(device);
    /* All buffers of rows are twelve times as large; headers of maps are not. */
    assert_true(many.most_in_use > 4 * few.most_in_use);
    assert_true(many.most_in_use < 12 * few.most_in_use);
    for (int i = 0; i < 4; i++) { /* the second time it is made one piece, afterwards nothing is asked for any more */
        assert_int_equal(run_step(device, layer, &m, T), 0);
        many = i == 1 ? figures_of(device) : many;
    }
    assert_int_equal(figures_of(device).allocations, many.allocations);
    assert_int_equal(figures_of(device).in_use, 0);
    assert_int_equal(c.bytes, figures_of(device).fixed + figures_of(device).reserved);
    assert_int_equal(figures_of(device).most, figures_of(device).fixed + figures_of(device).most_reserved);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
    assert_false(c.wrong);
}

static void test_layers_share_it_and_hold_only_what_backward_needs(void **state)
{
    (void)state;
    enum { LAYERS = 4 };
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer[LAYERS] = {NULL};
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    const struct moe_step step = {.step = 0};
    make_model(device, &m, 0, E);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(moe_layer_new(device, &config, &layer[i]), 0);
    }
    const struct moe_layer_weights train = weights_of(&m, true), inference = weights_of(&m, false);
    for (int i = 0; i < LAYERS; i++) { /* one after the other: as much as one alone */
        assert_int_equal(run_step(device, layer[i], &m, T), 0);
    }
    size_t alone = figures_of(device).most_in_use;
    /* The worst moment is the activation's backward: x, h, the gradients of h and a, and of y and x (taken early). */
    size_t moment = (size_t)T * K * (3 * H + 5 * F) * sizeof(float);
    assert_in_range(alone, moment, moment + (size_t)T * (3 * E + 1) * sizeof(int32_t) + 16 * 512);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(run_step(device, layer[i], &m, T), 0);
        assert_int_equal(figures_of(device).most_in_use, alone);
        assert_int_equal(moe_layer_forward(layer[i], &inference, &step, m.x, T, m.y), 0);
        assert_int_equal(figures_of(device).in_use, 0); /* no backward follows */
    }
    size_t kept[LAYERS + 1] = {0};
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(moe_layer_forward(layer[i], &train, &step, m.x, T, m.y), 0);
        kept[i + 1] = figures_of(device).in_use;
        assert_int_equal(kept[i + 1] - kept[i], kept[1]);
    }
    /* The rows, h, a, and the rows' outputs for the gradient of the probabilities: and what the maps need. */
    size_t rows = (size_t)T * K * (2 * H + 3 * F) * sizeof(float);
    assert_in_range(kept[1], rows, rows + (size_t)T * (2 * E + 1) * sizeof(int32_t) + 16 * 512);
    for (int i = LAYERS; i-- > 0;) {
        assert_int_equal(moe_layer_backward(layer[i], m.dy, m.dx), 0);
        assert_int_equal(figures_of(device).in_use, kept[i]);
    }
    assert_int_equal(moe_device_sync(device), 0);
    for (int i = 0; i < LAYERS; i++) {
        moe_layer_destroy(&layer[i]);
    }
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

static void test_trim_gives_back_what_nothing_uses(void **state)
{
    (void)state;
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = config_of(NULL, 0, MOE_DISPATCH_ALLTOALL);
    const struct moe_step step = {.step = 0};
    size_t bytes = 1;
    make_model(device, &m, 0, E);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    const struct moe_layer_weights train = weights_of(&m, true);
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(run_step(device, layer, &m, T), 0);
    size_t reserved = figures_of(device).reserved;
    float *y = malloc(T * H * sizeof(*y)), *dx = malloc(T * H * sizeof(*dx));
    memcpy(y, m.y, T * H * sizeof(*y));
    memcpy(dx, m.dx, T * H * sizeof(*dx));
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_int_equal(bytes, reserved);
    assert_int_equal(figures_of(device).reserved, 0);
    assert_int_equal(c.bytes, figures_of(device).fixed);
    /* Between forward and backward the rows stay, and backward is right. */
    assert_int_equal(moe_layer_forward(layer, &train, &step, m.x, T, m.y), 0);
    assert_int_equal(moe_device_trim(device, &bytes), 0);
    assert_true(figures_of(device).reserved >= figures_of(device).in_use && figures_of(device).in_use > 0);
    assert_int_equal(moe_layer_backward(layer, m.dy, m.dx), 0);
    assert_int_equal(moe_device_sync(device), 0);
    assert_memory_equal(y, m.y, T * H * sizeof(*y));
    assert_memory_equal(dx, m.dx, T * H * sizeof(*dx));
    moe_device_memory_restart(device);
    assert_int_equal(figures_of(device).most_in_use, 0);
    assert_int_equal(figures_of(device).most_reserved, figures_of(device).reserved);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    free(y);
    free(dx);
    assert_int_equal(c.bytes, 0);
}

static void test_an_allocator_is_set_before_anything_is_made(void **state)
{
    (void)state;
    struct counting c = {.refuse = -1};
    moe_device_t *device = NULL;
    const struct moe_allocator half = {counting_alloc, NULL, &c}, whole = {counting_alloc, counting_release, &c};
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &half), MOE_E_ARG);
    float *array = support_floats(device, 100);
    assert_int_equal(moe_device_set_allocator(device, &whole), MOE_E_STATE);
    moe_device_free(device, &array);
    assert_int_equal(moe_device_set_allocator(device, &whole), 0);
    array = support_floats(device, 100);
    assert_int_equal(c.bytes, 400);
    for (int i = 0; i < 100; i++) {
        assert_true(array[i] == 0.0f); /* the allocator gave NaN */
    }
    assert_int_equal(moe_device_set_allocator(device, NULL), MOE_E_STATE);
    moe_device_free(device, &array);
    assert_int_equal(c.bytes, 0);
    assert_int_equal(moe_device_set_allocator(device, NULL), 0);
    moe_device_destroy(&device);
    assert_int_equal(c.given, 1);
}

/* several ranks */

struct scene {
    int ranks;
    enum moe_dispatcher_kind kind;
    int recompute; /* 0; MOE_RECOMPUTE_ACTIVATION, MOE_RECOMPUTE_FC1; LAYER: the whole layer */
    bool delay_wgrad;
    bool travel;
    bool own_memory; /* a fresh device in every step */
    int64_t row_budget, row_multiple;
    enum moe_dtype type;
    pthread_barrier_t barrier;
};

enum { STEPS = 4, LAYER = 3 };

struct answer {
    int rc;
    float y[STEPS][T * H], dx[STEPS][T * H], d_gate[E * H], d_w1[E * 2 * F * H], d_w2[E * H * F];
    struct moe_memory_figures figures;
    char message[160];
};

struct rank {
    struct scene *scene;
    struct answer *answer;
    ncclUniqueId id;
    int rank;
};

/* The tokens of a rank in a step; sometimes none, and then all. */
static int64_t tokens_in(int rank, int step)
{
    return step == 1 && rank == 0 ? 0 : step == 2 ? T : 3 + 5 * rank + step;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct scene *s = r->scene;
    struct answer *out = r->answer;
    struct model m = {0};
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    ncclComm_t ep = NULL;
    struct counting *c = calloc(1, sizeof(*c));
    out->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    out->rc |= ncclCommInitRank(&ep, s->ranks, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    device = device_of(c);
    int64_t local = E / s->ranks;
    make_model(device, &m, r->rank, local);
    struct moe_layer_config config = config_of(ep, r->rank, s->kind);
    config.recompute = s->recompute == LAYER;
    config.experts_recompute = s->recompute == LAYER ? MOE_RECOMPUTE_NONE : (enum moe_recompute)s->recompute;
    config.delay_wgrad = s->delay_wgrad;
    config.place = s->travel ? MOE_PROB_ACTIVATION : MOE_PROB_SOURCE;
    config.row_budget = s->row_budget;
    config.row_multiple = s->row_multiple;
    out->rc = out->rc ? out->rc : moe_layer_new(device, &config, &layer);
    for (int i = 0; i < STEPS && out->rc == 0; i++) {
        if (s->own_memory) { /* what the last step left in the pool is of no use to this one */
            size_t bytes = 0;
            moe_layer_destroy(&layer);
            out->rc = moe_device_trim(device, &bytes);
            out->rc = out->rc ? out->rc : moe_layer_new(device, &config, &layer);
        }
        int64_t n = tokens_in(r->rank, i);
        out->rc = out->rc ? out->rc : run_step(device, layer, &m, n);
        if (out->rc == 0 && s->delay_wgrad) {
            out->rc = moe_layer_backward_dw(layer);
            out->rc = out->rc ? out->rc : moe_device_sync(device);
        }
        memcpy(out->y[i], m.y, (size_t)(n * H) * sizeof(float));
        memcpy(out->dx[i], m.dx, (size_t)(n * H) * sizeof(float));
    }
    snprintf(out->message, sizeof(out->message), "%s", out->rc ? moe_last_error() : "");
    memcpy(out->d_gate, m.d_gate, sizeof(out->d_gate));
    memcpy(out->d_w1, m.d_w1, (size_t)(local * 2 * F * H) * sizeof(float));
    memcpy(out->d_w2, m.d_w2, (size_t)(local * H * F) * sizeof(float));
    moe_device_memory(device, &out->figures);
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    ncclCommDestroy(ep);
    out->rc = out->rc == 0 && (c->bytes != 0 || c->wrong) ? MOE_E_STATE : out->rc;
    free(c);
    return NULL;
}

static void run(struct scene *s, struct answer *answers)
{
    pthread_t thread[MOST_RANKS];
    struct rank rank[MOST_RANKS];
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    memset(answers, 0, MOST_RANKS * sizeof(*answers));
    for (int i = 0; i < s->ranks; i++) {
        rank[i] = (struct rank){.scene = s, .answer = &answers[i], .id = id, .rank = i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &rank[i]), 0);
    }
    for (int i = 0; i < s->ranks; i++) {
        pthread_join(thread[i], NULL);
        if (answers[i].rc != 0) {
            fail_msg("rank %d: %d: %s", i, answers[i].rc, answers[i].message);
        }
    }
}

/* Every dispatcher, several steps over recycled memory that is NaN: the same bits as with new memory in each step. */
static void test_recycled_memory_never_shows(void **state)
{
    (void)state;
    static struct answer recycled[MOST_RANKS], fresh[MOST_RANKS];
    const struct scene scenes[] = {
        {.ranks = 1, .kind = MOE_DISPATCH_ALLTOALL},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLTOALL},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLTOALL, .travel = true, .row_multiple = 4},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = LAYER},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = MOE_RECOMPUTE_ACTIVATION},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .recompute = MOE_RECOMPUTE_FC1, .delay_wgrad = true},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLTOALL, .delay_wgrad = true},
        {.ranks = 4, .kind = MOE_DISPATCH_ALLGATHER},
        {.ranks = 2, .kind = MOE_DISPATCH_ALLGATHER, .travel = true},
        {.ranks = 4, .kind = MOE_DISPATCH_DEEPEP},
        {.ranks = 2, .kind = MOE_DISPATCH_DEEPEP, .travel = true, .row_multiple = 4},
        {.ranks = 4, .kind = MOE_DISPATCH_HYBRIDEP},
        {.ranks = 2, .kind = MOE_DISPATCH_HYBRIDEP, .travel = true, .recompute = LAYER},
        {.ranks = 2, .kind = MOE_DISPATCH_HYBRIDEP, .row_budget = 3 * T * K},
    };
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        struct scene s = scenes[i];
        run(&s, recycled);
        s.own_memory = true;
        run(&s, fresh);
        for (int r = 0; r < s.ranks; r++) {
            assert_memory_equal(recycled[r].y, fresh[r].y, sizeof(fresh[r].y));
            assert_memory_equal(recycled[r].dx, fresh[r].dx, sizeof(fresh[r].dx));
            assert_memory_equal(recycled[r].d_gate, fresh[r].d_gate, sizeof(fresh[r].d_gate));
            assert_memory_equal(recycled[r].d_w1, fresh[r].d_w1, sizeof(fresh[r].d_w1));
            assert_memory_equal(recycled[r].d_w2, fresh[r].d_w2, sizeof(fresh[r].d_w2));
            assert_int_equal(recycled[r].figures.in_use, 0);
            for (int j = 0; j < T * H; j++) {
                assert_true(isfinite(recycled[r].y[STEPS - 1][j]) && isfinite(recycled[r].dx[STEPS - 1][j]));
            }
            assert_true(s.row_budget > 0 || recycled[r].figures.most_in_use > 0);
        }
    }
}

enum { ROWS = 21 };

struct experts_answer {
    float y[2][ROWS * H], dx[2][ROWS * H], d_w1[E * 2 * F * H], d_w2[E * H * F];
};

/* Forward of one object, forward of another, backward of the first, backward of the second; twice. */
static void run_experts(bool pooled, enum moe_recompute recompute, bool delay, struct experts_answer *out)
{
    struct counting c = {0};
    moe_device_t *device = device_of(&c);
    struct model m = {0};
    moe_experts_t *experts[2] = {NULL, NULL};
    const struct moe_experts_config config = {.max_rows = ROWS,
                                              .hidden = H,
                                              .ffn = F,
                                              .experts = E,
                                              .recompute = recompute,
                                              .delay_wgrad = delay,
                                              .pooled = pooled};
    make_model(device, &m, 0, E);
    int64_t *counts = support_array(device, E, sizeof(*counts));
    for (int i = 0; i < ROWS; i++) {
        counts[i * i % E]++;
    }
    const struct moe_experts_weights w = {.w1 = m.w1, .w2 = m.w2, .d_w1 = m.d_w1, .d_w2 = m.d_w2};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moe_experts_new(device, &config, &experts[i]), 0);
    }
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            assert_int_equal(moe_experts_forward(experts[i], &w, m.x + i * H, NULL, counts, ROWS, m.y), 0);
            assert_int_equal(moe_device_copy(device, out->y[i], m.y, sizeof(out->y[i])), 0);
        }
        for (int i = 0; i < 2; i++) {
            assert_int_equal(moe_experts_backward(experts[i], &w, m.dy + i * H, m.dx, NULL), 0);
            assert_int_equal(delay ? moe_experts_backward_dw(experts[i]) : 0, 0);
            assert_int_equal(moe_device_copy(device, out->dx[i], m.dx, sizeof(out->dx[i])), 0);
        }
    }
    assert_int_equal(moe_device_sync(device), 0);
    assert_int_equal(figures_of(device).in_use, 0);
    assert_int_equal(figures_of(device).most_in_use > 0, pooled);
    memcpy(out->d_w1, m.d_w1, sizeof(out->d_w1));
    memcpy(out->d_w2, m.d_w2, sizeof(out->d_w2));
    for (int i = 0; i < 2; i++) {
        moe_experts_destroy(&experts[i]);
    }
    moe_device_free(device, &counts);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

/* What is computed again in backward comes to other memory than in forward: another object has that by then. */
static void test_experts_of_the_pool_equal_those_with_memory_of_their_own(void **state)
{
    (void)state;
    static struct experts_answer own, pool;
    for (int i = 0; i < 6; i++) {
        enum moe_recompute recompute = (enum moe_recompute)(i % 3);
        run_experts(false, recompute, i >= 3, &own);
        run_experts(true, recompute, i >= 3, &pool);
        assert_memory_equal(&own, &pool, sizeof(own));
    }
}

/* A placeholder gradient belongs to the process: it must not go with the allocator of the device that asked first. */
static void test_a_placeholder_outlives_the_device_and_its_allocator(void **state)
{
    (void)state;
    void *first = NULL;
    for (int i = 0; i < 2; i++) {
        struct counting c = {0};
        moe_device_t *device = device_of(&c);
        moe_linear_t *linear = NULL;
        const struct moe_linear_config config = {
            .groups = 1, .out_features = 37, .in_features = 41, .max_rows = 1, .fuse_wgrad_accumulation = true};
        float *weight = support_floats(device, 37 * 41), *main_grad = support_floats(device, 37 * 41),
              *x = support_floats(device, 41), *y = support_floats(device, 37);
        int64_t *m = support_array(device, 1, sizeof(*m));
        struct moe_param param = {
            .data = weight, .main_grad = main_grad, .has_added_flag = true, .zero_out_wgrad = true};
        struct moe_param *params[1] = {&param};
        struct moe_grad grad;
        assert_int_equal(moe_linear_new(device, &config, &linear), 0);
        assert_int_equal(moe_linear_forward(linear, params, NULL, x, m, 1, y), 0);
        assert_int_equal(moe_linear_backward(linear, y, NULL, MOE_MICROBATCH_UNKNOWN), 0);
        assert_int_equal(moe_linear_weight_grad(linear, 0, &grad), 0);
        assert_int_equal(moe_device_sync(device), 0);
        assert_true(grad.placeholder && grad.data != NULL && (i == 0 || grad.data == first));
        assert_true(((const float *)grad.data)[37 * 41 - 1] == 0.0f);
        first = grad.data;
        moe_linear_destroy(&linear);
        void *arrays[] = {&weight, &main_grad, &x, &y, &m};
        for (size_t j = 0; j < 5; j++) {
            moe_device_free(device, arrays[j]);
        }
        moe_device_destroy(&device);
        assert_int_equal(c.bytes, 0); /* the placeholder is not among them */
    }
}

/* failures */

/* One rank whose every request fails once: always NOMEM, nothing leaks, and the next step is the one that it always
 * was. */
static void test_each_request_fails_once(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_DEEPEP,
                                                     MOE_DISPATCH_HYBRIDEP};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        float y[T * H], dx[T * H];
        int64_t failures = 0;
        for (int64_t n = 0, more = 1; more; n++) {
            struct counting c = {0};
            moe_device_t *device = device_of(&c);
            struct model m = {0};
            moe_layer_t *layer = NULL;
            struct moe_layer_config config = config_of(NULL, 0, kinds[k]);
            size_t trimmed = 0;
            make_model(device, &m, 0, E);
            size_t before = c.bytes;
            c.asked = 0;
            c.refuse = n == 0 ? -1 : n - 1;
            int rc = moe_layer_new(device, &config, &layer);
            if (rc != 0) {
                assert_int_equal(rc, MOE_E_NOMEM);
                assert_null(layer);
                assert_int_equal(c.bytes, before);
                c.refuse = -1;
                assert_int_equal(moe_layer_new(device, &config, &layer), 0);
                failures++;
            }
            for (int i = 0; i < 2; i++) { /* the pool is asked twice: it grows, and then becomes one piece */
                rc = run_step(device, layer, &m, i == 0 ? 3 : T);
                if (rc != 0) {
                    assert_int_equal(rc, MOE_E_NOMEM);
                    assert_non_null(strstr(moe_last_error(), "layer 0"));
                    assert_int_equal(figures_of(device).in_use, 0);
                    failures++;
                }
            }
            more = n == 0 || c.refuse < c.asked; /* it was reached */
            c.refuse = -1;
            memset(m.d_gate, 0, E * H * sizeof(float));
            assert_int_equal(run_step(device, layer, &m, T), 0);
            if (n == 0) {
                memcpy(y, m.y, sizeof(y));
                memcpy(dx, m.dx, sizeof(dx));
            }
            assert_memory_equal(y, m.y, sizeof(y));
            assert_memory_equal(dx, m.dx, sizeof(dx));
            assert_int_equal(figures_of(device).in_use, 0);
            moe_layer_destroy(&layer);
            assert_int_equal(moe_device_trim(device, &trimmed), 0);
            assert_int_equal(c.bytes, before);
            free_model(device, &m);
            moe_device_destroy(&device);
            assert_int_equal(c.bytes, 0);
            assert_false(c.wrong);
        }
        assert_true(failures > 10);
    }
}

/* One rank finds no memory before the exchange of numbers: all ranks are told, and all can go on. */
enum { TELL_RANKS = 4, SICK = 2 };

struct told {
    struct rank rank;
    enum moe_dispatcher_kind kind;
    int rc[3];
    char message[160];
};

static void *run_told(void *arg)
{
    struct told *t = arg;
    struct model m = {0};
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    ncclComm_t ep = NULL;
    struct counting *c = calloc(1, sizeof(*c));
    const bool sick = t->rank.rank == SICK;
    t->rc[0] = cudaSetDevice(t->rank.rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    t->rc[0] |= ncclCommInitRank(&ep, TELL_RANKS, t->rank.id, t->rank.rank) == ncclSuccess ? 0 : MOE_E_COMM;
    device = device_of(c);
    make_model(device, &m, t->rank.rank, E / TELL_RANKS);
    to_bf16(m.x);
    to_bf16(m.dy);
    struct moe_layer_config config = config_of(ep, t->rank.rank, t->kind);
    config.type = MOE_BF16; /* the router's input is made of it, in memory of the pool, before anything is exchanged */
    t->rc[0] = t->rc[0] ? t->rc[0] : moe_layer_new(device, &config, &layer);
    for (int i = 0; i < 3 && t->rc[0] == 0; i++) {
        size_t bytes = 0;
        moe_device_trim(device, &bytes);
        c->refuse = sick && i == 1 ? c->asked : -1;
        t->rc[i] = run_step(device, layer, &m, T);
        if (i == 1) {
            snprintf(t->message, sizeof(t->message), "%s", moe_last_error());
            t->rc[0] = figures_of(device).in_use != 0 ? MOE_E_STATE : t->rc[0];
        }
    }
    moe_layer_destroy(&layer);
    free_model(device, &m);
    moe_device_destroy(&device);
    ncclCommDestroy(ep);
    t->rc[0] = c->bytes != 0 ? MOE_E_STATE : t->rc[0];
    free(c);
    return NULL;
}

static void test_a_rank_without_memory_is_named_to_its_peers(void **state)
{
    (void)state;
    static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_DEEPEP};
    for (size_t k = 0; k < 2; k++) {
        struct told told[TELL_RANKS];
        pthread_t thread[TELL_RANKS];
        ncclUniqueId id;
        assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
        for (int i = 0; i < TELL_RANKS; i++) {
            told[i] = (struct told){.kind = kinds[k], .rank = {.id = id, .rank = i}};
            assert_int_equal(pthread_create(&thread[i], NULL, run_told, &told[i]), 0);
        }
        for (int i = 0; i < TELL_RANKS; i++) {
            pthread_join(thread[i], NULL);
        }
        for (int i = 0; i < TELL_RANKS; i++) {
            assert_int_equal(told[i].rc[0], 0);
            assert_int_equal(told[i].rc[1], MOE_E_NOMEM);
            assert_int_equal(told[i].rc[2], 0);
            assert_non_null(strstr(told[i].message, i == SICK ? "bytes of host device memory"
                                                              : "rank 2 of the group has none for this forward"));
        }
    }
}

struct buffer_rank {
    ncclUniqueId id;
    int rank;
    int rc[3];
    char message[160];
    struct moe_ep_buffer_info info;
};

/* The group's buffer: rank 1 says that it failed, then finds no memory, then has it. */
static void *run_buffer(void *arg)
{
    struct buffer_rank *r = arg;
    struct counting *c = calloc(1, sizeof(*c));
    ncclComm_t comm = NULL;
    moe_ep_buffer_t *buffer = NULL;
    cudaSetDevice(r->rank);
    moe_device_t *device = device_of(c);
    ncclCommInitRank(&comm, 2, r->id, r->rank);
    for (int i = 0; i < 3; i++) {
        struct moe_ep_buffer_want want = {.receive_bytes = 5000, .send_bytes = 3000, .bounds = i == 0};
        want.failed = i == 0 && r->rank == 1 ? MOE_E_SHAPE : 0;
        c->refuse = i == 1 && r->rank == 1 ? c->asked : -1;
        c->once = true; /* the exchange itself needs a few bytes */
        r->rc[i] = moe_ep_buffer_acquire_as(device, comm, &want, &buffer);
        if (i == 1) {
            snprintf(r->message, sizeof(r->message), "%s", moe_last_error());
            c->refuse = -1;
        }
    }
    if (buffer != NULL) {
        moe_ep_buffer_describe(buffer, &r->info);
    }
    moe_ep_buffer_release(&buffer);
    moe_device_destroy(&device);
    ncclCommDestroy(comm);
    r->rc[2] = c->bytes != 0 ? MOE_E_STATE : r->rc[2];
    free(c);
    return NULL;
}

static void test_a_rank_without_memory_for_the_groups_buffer_says_so(void **state)
{
    (void)state;
    struct buffer_rank rank[2] = {{.rank = 0}, {.rank = 1}};
    pthread_t thread[2];
    assert_int_equal(ncclGetUniqueId(&rank[0].id), ncclSuccess);
    rank[1].id = rank[0].id;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, run_buffer, &rank[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(rank[i].rc[0], i == 0 ? MOE_E_NOMEM : MOE_E_SHAPE);
        assert_int_equal(rank[i].rc[1], MOE_E_NOMEM);
        assert_int_equal(rank[i].rc[2], 0);
        assert_int_equal(rank[i].info.held_bytes, 5120 + 3072);
        assert_int_equal(rank[i].info.made, 1);
    }
    assert_non_null(strstr(rank[0].message, "rank 1 of the group"));
    assert_non_null(strstr(rank[1].message, "8192 bytes"));
}

/* capture */

static int64_t in_capture;

static void *capture_alloc(void *arg, size_t bytes, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    in_capture += status != cudaStreamCaptureStatusNone;
    return counting_alloc(arg, bytes, stream);
}

/*
 * With a row budget nothing is asked for while a graph is captured, not even in the first forward, and the graph's
 * memory is not given to others.
 */
static void capture_a_budget(enum moe_dtype type)
{
    struct counting c = {.refuse = -1};
    const struct moe_allocator allocator = {capture_alloc, counting_release, &c};
    const size_t bytes_of_rows = (size_t)T * H * moe_dtype_bytes(type);
    moe_device_t *device = NULL;
    struct model m = {0};
    moe_layer_t *layer[3] = {NULL, NULL, NULL}; /* to be captured; with the same budget, not captured; of the pool */
    struct moe_layer_config budget = config_of(NULL, 0, MOE_DISPATCH_HYBRIDEP), pool = budget;
    budget.row_budget = T * K;
    budget.uneven = MOE_UNEVEN_NONE;
    budget.type = pool.type = type;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    const struct moe_step step = {.step = 0};
    in_capture = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &allocator), 0);
    make_model(device, &m, 0, E);
    if (type == MOE_BF16) {
        to_bf16(m.x);
        to_bf16(m.dy);
    }
    const struct moe_layer_weights train = weights_of(&m, true);
    assert_int_equal(moe_layer_new(device, &budget, &layer[0]), 0);
    assert_int_equal(moe_layer_new(device, &budget, &layer[1]), 0);
    assert_int_equal(moe_layer_new(device, &pool, &layer[2]), 0);
    assert_int_equal(run_step(device, layer[1], &m, T), 0);
    float *y = malloc(bytes_of_rows), *dx = malloc(bytes_of_rows);
    memcpy(y, m.y, bytes_of_rows);
    memcpy(dx, m.dx, bytes_of_rows);
    cudaStream_t stream = moe_device_stream(device);
    int64_t asked = c.asked;
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    int rc = moe_layer_forward(layer[0], &train, &step, m.x, T, m.y);
    rc = rc ? rc : moe_layer_backward(layer[0], m.dy, m.dx);
    size_t bytes = 0;
    assert_int_equal(moe_device_trim(device, &bytes), MOE_E_STATE);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(rc, 0);
    assert_int_equal(c.asked, asked);
    assert_int_equal(in_capture, 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 3; i++) { /* between two replays another layer uses the pool, and the pool is emptied */
        assert_int_equal(run_step(device, layer[2], &m, T), 0);
        assert_int_equal(moe_device_trim(device, &bytes), 0);
        memset(m.y, 0xff, bytes_of_rows);
        memset(m.dx, 0xff, bytes_of_rows);
        assert_int_equal(cudaGraphLaunch(exec, stream), cudaSuccess);
        assert_int_equal(moe_device_sync(device), 0);
        assert_memory_equal(y, m.y, bytes_of_rows);
        assert_memory_equal(dx, m.dx, bytes_of_rows);
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    for (int i = 0; i < 3; i++) {
        moe_layer_destroy(&layer[i]);
    }
    free_model(device, &m);
    moe_device_destroy(&device);
    free(y);
    free(dx);
    assert_int_equal(c.bytes, 0);
}

static void test_a_row_budget_is_captured_without_a_request(void **state)
{
    (void)state;
    capture_a_budget(MOE_F32);
    capture_a_budget(MOE_BF16);
}

/* Experts of the pool are not captured, whether or not it would have to grow: the graph's memory would be others'. */
static void test_the_pool_is_not_for_captured_work(void **state)
{
    (void)state;
    struct counting c = {.refuse = -1};
    const struct moe_allocator allocator = {capture_alloc, counting_release, &c};
    moe_device_t *device = NULL;
    struct model m = {0};
    moe_experts_t *experts = NULL;
    const struct moe_experts_config config = {.max_rows = T, .hidden = H, .ffn = F, .experts = E, .pooled = true};
    cudaGraph_t graph = NULL;
    in_capture = 0;
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_device_set_allocator(device, &allocator), 0);
    make_model(device, &m, 0, E);
    int64_t *counts = support_array(device, E, sizeof(*counts));
    assert_int_equal(moe_experts_new(device, &config, &experts), 0);
    const struct moe_experts_weights w = {.w1 = m.w1, .w2 = m.w2, .d_w1 = m.d_w1, .d_w2 = m.d_w2};
    cudaStream_t stream = moe_device_stream(device);
    for (int i = 0; i < 2; i++) { /* the second time the pool has what is asked for */
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        assert_int_equal(moe_experts_forward(experts, &w, m.x, NULL, counts, T, m.y), MOE_E_STATE);
        assert_non_null(strstr(moe_last_error(), "captured"));
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        assert_int_equal(in_capture, 0);
        cudaGraphDestroy(graph);
        assert_int_equal(moe_experts_forward(experts, &w, m.x, NULL, counts, T, m.y), 0);
        assert_int_equal(moe_experts_backward(experts, &w, m.dy, m.dx, NULL), 0);
        assert_int_equal(moe_device_sync(device), 0);
    }
    moe_experts_destroy(&experts);
    moe_device_free(device, &counts);
    free_model(device, &m);
    moe_device_destroy(&device);
    assert_int_equal(c.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_pool_grows_with_the_rows_and_keeps_what_it_has),
        cmocka_unit_test(test_layers_share_it_and_hold_only_what_backward_needs),
        cmocka_unit_test(test_trim_gives_back_what_nothing_uses),
        cmocka_unit_test(test_an_allocator_is_set_before_anything_is_made),
        cmocka_unit_test(test_recycled_memory_never_shows),
        cmocka_unit_test(test_experts_of_the_pool_equal_those_with_memory_of_their_own),
        cmocka_unit_test(test_a_placeholder_outlives_the_device_and_its_allocator),
        cmocka_unit_test(test_each_request_fails_once),
        cmocka_unit_test(test_a_rank_without_memory_is_named_to_its_peers),
        cmocka_unit_test(test_a_rank_without_memory_for_the_groups_buffer_says_so),
        cmocka_unit_test(test_a_row_budget_is_captured_without_a_request),
        cmocka_unit_test(test_the_pool_is_not_for_captured_work),
    };
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
