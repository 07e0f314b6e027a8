/*
 * memory_trial.h: what the tests of a device's memory share: an allocator that counts and refuses, and one layer.
 *
 * The allocator counts what it gave and what came back, refuses the n-th request and the next one (the pool asks again,
 * for less) when it is told to, and fills everything with NaN. Layers run with MOE_POISON too (CMakeLists.txt), so
 * recycled memory is NaN whenever it changes hands.
 */
#ifndef ROLL_TESTS_MOE_CORE_MEMORY_TRIAL_H
#define ROLL_TESTS_MOE_CORE_MEMORY_TRIAL_H

#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"

#include <stdbool.h>

/* an allocator that counts */

struct counting {
    size_t bytes;          /* given and not come back */
    int64_t given;         /* requests that were granted */
    int64_t refuse;        /* the number of the first of two requests that are refused, from 0; -1: none */
    bool once;             /* only one is refused */
    bool for_good;         /* all from that one on are refused */
    int64_t asked;         /* requests so far */
    bool wrong;            /* something came back with another size, or was never given */
    cudaStream_t stream;   /* of the first request */
    int64_t other_streams; /* requests for another */
    struct {
        void *at;
        size_t bytes;
    } live[4096];
};

static inline void *counting_alloc(void *arg, size_t bytes, cudaStream_t stream)
{
    struct counting *c = arg;
    int64_t number = c->asked++;
    c->stream = number == 0 ? stream : c->stream;
    c->other_streams += stream != c->stream;
    if (c->refuse >= 0 && number >= c->refuse && (c->for_good || number < c->refuse + (c->once ? 1 : 2))) {
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

static inline void counting_release(void *arg, void *memory, size_t bytes, cudaStream_t stream)
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

static inline moe_device_t *device_of(struct counting *c)
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

static inline void tensors(struct model *m, int64_t local, float **at[TENSORS], int64_t count[TENSORS])
{
    float **all[TENSORS] = {&m->x, &m->dy, &m->y, &m->dx, &m->gate, &m->w1, &m->w2, &m->d_gate, &m->d_w1, &m->d_w2};
    const int64_t counts[TENSORS] = {
        T * H, T * H, T * H, T * H, E * H, local * 2 * F * H, local * H * F, E * H, local * 2 * F * H, local * H * F};
    memcpy(at, all, sizeof(all));
    memcpy(count, counts, sizeof(counts));
}

static inline void make_model(moe_device_t *device, struct model *m, int rank, int64_t local)
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
static inline void to_bf16(float *rows)
{
    uint16_t *to = (uint16_t *)(void *)rows;
    for (int i = 0; i < T * H; i++) {
        uint32_t bits;
        memcpy(&bits, &rows[i], sizeof(bits));
        to[i] = (uint16_t)(bits >> 16);
    }
}

static inline void free_model(moe_device_t *device, struct model *m)
{
    float **at[TENSORS];
    int64_t count[TENSORS];
    tensors(m, 1, at, count);
    for (size_t i = 0; i < TENSORS; i++) {
        moe_device_free(device, at[i]);
    }
}

static inline struct moe_layer_weights weights_of(const struct model *m, bool grads)
{
    struct moe_layer_weights w = {.gate = m->gate, .w1 = m->w1, .w2 = m->w2};
    if (grads) {
        w.d_gate = m->d_gate;
        w.d_w1 = m->d_w1;
        w.d_w2 = m->d_w2;
    }
    return w;
}

static inline struct moe_layer_config config_of(ncclComm_t ep, int rank, enum moe_dispatcher_kind kind)
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

static inline int run_step(moe_device_t *device, moe_layer_t *layer, struct model *m, int64_t tokens)
{
    const struct moe_layer_weights w = weights_of(m, true);
    const struct moe_step step = {.step = 0};
    int rc = moe_layer_forward(layer, &w, &step, m->x, tokens, m->y);
    rc = rc ? rc : moe_layer_backward(layer, m->dy, m->dx);
    int waited = moe_device_sync(device);
    return rc ? rc : waited;
}

static inline struct moe_memory_figures figures_of(const moe_device_t *device)
{
    struct moe_memory_figures f;
    moe_device_memory(device, &f);
    return f;
}

#endif
