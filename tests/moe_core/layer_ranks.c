/*
 * layer_ranks.c: see layer_ranks.h.
 */
#include "tests/moe_core/layer_ranks.h"

#include "tests/moe_core/typed.h"

#include <pthread.h>

_Thread_local struct layer_rank *layer_self;

void moe_observe(const struct moe_event *event)
{
    struct layer_result *r = layer_self->result;
    if (r->events < LAYER_EVENTS) {
        r->event[r->events++] = *event;
    }
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return layer_self->scenario->remedies[layer_self->rank] | (hazard & layer_self->scenario->granted);
}

static double rounded(uint64_t *state, double scale)
{
    return (double)(float)(scale * support_random(state));
}

/* A weight as the library's type has it. */
static double stored(const struct layer_case *s, double value)
{
    bool fp8 = s->weight == MOE_E4M3 || s->weight == MOE_E5M2;
    return fp8 ? LAYER_SCALE * typed_round(s->weight, value / LAYER_SCALE) : typed_round(s->weight, value);
}

void layer_make_data(const struct layer_case *s, int rank, struct layer_data *d)
{
    uint64_t weights = 5, tokens = 100 + (uint64_t)rank;
    int64_t experts = s->ranks * LAYER_L;
    int32_t allowed[LAYER_E], n = 0;
    for (int32_t e = 0; e < experts; e++) {
        if ((s->empty >> (e / LAYER_L) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    memset(d, 0, sizeof(*d));
    for (int64_t i = 0; i < experts * LAYER_H; i++) {
        d->gate[i] = rounded(&weights, 0.1) + (i / LAYER_H == i % LAYER_H ? 2 : 0);
        d->gate[i] = (double)(float)d->gate[i];
    }
    for (int64_t i = 0; i < experts * 2 * LAYER_F * LAYER_H; i++) {
        d->w1[i] = stored(s, rounded(&weights, 0.5));
    }
    for (int64_t i = 0; i < experts * LAYER_H * LAYER_F; i++) {
        d->w2[i] = stored(s, rounded(&weights, 0.5));
    }
    for (int64_t i = 0; i < LAYER_T * LAYER_H; i++) {
        d->x[i] = rounded(&tokens, 0.3);
        d->dy[i] = rounded(&tokens, 1);
    }
    for (int64_t t = 0; t < LAYER_T; t++) {
        int32_t first = (int32_t)(rank * LAYER_T + t) % n;
        for (int32_t j = 0; j < s->topk; j++) {
            d->x[t * LAYER_H + allowed[(first + j) % n]] += 5 - j;
        }
    }
    for (int64_t i = 0; i < LAYER_T * LAYER_H; i++) {
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
    double scale = type == MOE_E4M3 || type == MOE_E5M2 ? LAYER_SCALE : 1;
    for (int64_t i = 0; i < count; i++) {
        typed_put(type, to, i, from[i] / scale);
    }
    return to;
}

static void run_layer(struct layer_rank *r, ncclComm_t ep, moe_device_t *device)
{
    const struct layer_case *s = r->scenario;
    struct layer_result *out = r->result;
    struct layer_data *d = malloc(sizeof(*d));
    moe_layer_t *layer = NULL;
    layer_make_data(s, r->rank, d);
    int64_t experts = s->ranks * LAYER_L, first = r->rank * LAYER_L;
    float *x = narrow(device, d->x, LAYER_T * LAYER_H), *dy = narrow(device, d->dy, LAYER_T * LAYER_H),
          *gate = narrow(device, d->gate, experts * LAYER_H);
    double ones[LAYER_L] = {LAYER_SCALE, LAYER_SCALE};
    void *w1 = pack(device, s->weight, d->w1 + first * 2 * LAYER_F * LAYER_H, LAYER_L * 2 * LAYER_F * LAYER_H),
         *w2 = pack(device, s->weight, d->w2 + first * LAYER_H * LAYER_F, LAYER_L * LAYER_H * LAYER_F);
    float *scale = narrow(device, ones, LAYER_L);
    float *y = NULL, *dx = NULL, *d_gate = NULL, *d_w1 = NULL, *d_w2 = NULL;
    struct {
        float **at;
        int64_t count;
        float *copy;
    } outputs[] = {{&y, LAYER_T * LAYER_H, out->y},
                   {&dx, LAYER_T * LAYER_H, out->dx},
                   {&d_gate, experts * LAYER_H, out->d_gate},
                   {&d_w1, LAYER_L * 2 * LAYER_F * LAYER_H, out->d_w1},
                   {&d_w2, LAYER_L * LAYER_H * LAYER_F, out->d_w2}};
    for (size_t i = 0; i < 5; i++) {
        out->rc |= moe_device_alloc(device, (size_t)outputs[i].count * sizeof(float), (void **)outputs[i].at);
    }
    struct moe_layer_config config = {.layer = 3,
                                      .world_rank = r->rank,
                                      .max_tokens = LAYER_T,
                                      .hidden = LAYER_H,
                                      .ffn = LAYER_F,
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
        out->rc = moe_layer_forward(layer, &weights, &step, x, LAYER_T, y);
        out->rc = out->rc != 0 || !s->backward ? out->rc : moe_layer_backward(layer, dy, dx);
        if (out->rc == 0 && s->delay_wgrad && s->backward) {
            out->rc = moe_device_sync(device);
            for (int64_t i = 0; i < LAYER_L * LAYER_H * LAYER_F && out->rc == 0; i++) {
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
    struct layer_rank *r = arg;
    ncclComm_t ep = NULL;
    moe_device_t *device = NULL;
    layer_self = r;
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

void layer_run(const struct layer_case *s, struct layer_result *results)
{
    pthread_t thread[LAYER_RANKS];
    struct layer_rank rank[LAYER_RANKS];
    ncclUniqueId id;
    memset(results, 0, LAYER_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < s->ranks; r++) {
        rank[r] = (struct layer_rank){s, id, r, &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < s->ranks; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(results[r].rc, 0);
    }
}
