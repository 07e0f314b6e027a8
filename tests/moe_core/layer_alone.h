/*
 * layer_alone.h: a layer of one rank in the calling thread, on a device of its own: what needs no peers. The program
 * links layer_ranks.c, which answers the library's questions and keeps its events.
 */
#ifndef ROLL_TESTS_MOE_CORE_LAYER_ALONE_H
#define ROLL_TESTS_MOE_CORE_LAYER_ALONE_H

#include "tests/moe_core/layer_ranks.h"
#include "tests/moe_core/typed.h"

enum { ALONE_W1 = LAYER_L * 2 * LAYER_F * LAYER_H, ALONE_W2 = LAYER_L * LAYER_H * LAYER_F };

struct layer_alone {
    moe_device_t *device;
    moe_layer_t *layer;
    enum moe_dtype type; /* of rows */
    struct layer_rank self;
    struct layer_case c; /* remedies[0] is what is on */
    struct layer_result result;
    void *x, *dy, *y, *dx; /* rows */
    float *gate, *bias, *w1, *w2, *d_gate, *d_w1, *d_w2;
};

/* The plainest layer: LAYER_L experts, top-1, weights of the router inside the activation. */
static inline struct moe_layer_config alone_config(void)
{
    return (struct moe_layer_config){.layer = 3,
                                     .max_tokens = LAYER_T,
                                     .hidden = LAYER_H,
                                     .ffn = LAYER_F,
                                     .experts = LAYER_L,
                                     .topk = 1,
                                     .place = MOE_PROB_ACTIVATION};
}

static inline void alone_begin(struct layer_alone *a, const struct moe_layer_config *config)
{
    memset(a, 0, sizeof(*a));
    struct {
        void *at;
        int64_t count;
        bool rows;
    } arrays[] = {{&a->x, LAYER_T * LAYER_H, true},
                  {&a->dy, LAYER_T * LAYER_H, true},
                  {&a->y, LAYER_T * LAYER_H, true},
                  {&a->dx, LAYER_T * LAYER_H, true},
                  {&a->w1, ALONE_W1, false},
                  {&a->w2, ALONE_W2, false},
                  {&a->gate, LAYER_L * LAYER_H, false},
                  {&a->bias, LAYER_L, false},
                  {&a->d_w1, ALONE_W1, false},
                  {&a->d_w2, ALONE_W2, false},
                  {&a->d_gate, LAYER_L * LAYER_H, false}};
    uint64_t seed = 4;
    a->type = config->type;
    a->c = (struct layer_case){.ranks = 1};
    a->self = (struct layer_rank){.scenario = &a->c, .result = &a->result};
    layer_self = &a->self;
    assert_int_equal(moe_device_new_host(&a->device), 0);
    assert_int_equal(moe_layer_new(a->device, config, &a->layer), 0);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        void *array = support_array(a->device, arrays[i].count, sizeof(float));
        memcpy(arrays[i].at, &array, sizeof(array));
        for (int64_t j = 0; j < arrays[i].count; j++) {
            typed_put(arrays[i].rows ? a->type : MOE_F32, array, j, 0.5 * support_random(&seed));
        }
    }
    for (int i = 0; i < LAYER_L * LAYER_H; i++) {
        a->gate[i] = i / LAYER_H == i % LAYER_H ? 2.0f : 0.0f;
    }
    for (int i = 0; i < LAYER_L; i++) {
        a->bias[i] = 0;
    }
}

static inline void alone_end(struct layer_alone *a)
{
    void *arrays[] = {&a->x, &a->dy, &a->y, &a->dx, &a->gate, &a->bias, &a->w1, &a->w2, &a->d_gate, &a->d_w1, &a->d_w2};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(a->device, arrays[i]);
    }
    moe_layer_destroy(&a->layer);
    moe_device_destroy(&a->device);
    layer_self = NULL;
}

/* Forward, and backward where wanted, of `tokens` tokens that all want expert `want`; -1: each the next one. The error
 * of either, or of the stream. */
static inline int alone_pass(struct layer_alone *a, int64_t tokens, int want, bool backward)
{
    struct moe_step step = {.step = 9, .microbatch = 1};
    struct moe_layer_weights w = {.gate = a->gate,
                                  .expert_bias = a->bias,
                                  .w1 = a->w1,
                                  .w2 = a->w2,
                                  .d_gate = a->d_gate,
                                  .d_w1 = a->d_w1,
                                  .d_w2 = a->d_w2};
    for (int64_t t = 0; t < LAYER_T; t++) {
        for (int h = 0; h < LAYER_L; h++) {
            typed_put(a->type, a->x, t * LAYER_H + h, h == (want < 0 ? t % LAYER_L : want) ? 4 : 0);
        }
    }
    int rc = moe_layer_forward(a->layer, &w, &step, a->x, tokens, a->y);
    rc = rc || !backward ? rc : moe_layer_backward(a->layer, a->dy, a->dx);
    int waited = moe_device_sync(a->device);
    return rc ? rc : waited;
}

#endif
