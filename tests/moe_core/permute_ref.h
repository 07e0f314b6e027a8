/*
 * permute_ref.h: what permute means, in double precision and by definition, for the tests; and buffers with canaries.
 *
 * Nothing here is fast or shared with the library: the row of a choice is counted anew each time it is asked for.
 */
#ifndef ROLL_TESTS_MOE_CORE_PERMUTE_REF_H
#define ROLL_TESTS_MOE_CORE_PERMUTE_REF_H

#include "tests/moe_core/support.h"

#include "common/smallfloat.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/permute.h"

#include <stdbool.h>

enum { CANARY = 64, CANARY_BYTE = 0xA5 };

/* `bytes` of device memory between two canaries, all poisoned. */
struct guarded {
    unsigned char *base;
    void *data;
    size_t bytes;
};

static inline struct guarded guarded_new(moe_device_t *device, size_t bytes)
{
    struct guarded g = {.base = support_array(device, (int64_t)bytes + 2 * CANARY, 1), .bytes = bytes};
    memset(g.base, CANARY_BYTE, bytes + 2 * CANARY);
    g.data = g.base + CANARY;
    return g;
}

static inline bool guarded_intact(const struct guarded *g)
{
    for (size_t i = 0; i < CANARY; i++) {
        if (g->base[i] != CANARY_BYTE || g->base[CANARY + g->bytes + i] != CANARY_BYTE) {
            return false;
        }
    }
    return true;
}

/* Nothing was written at all. */
static inline bool guarded_untouched(const struct guarded *g)
{
    for (size_t i = 0; i < g->bytes + 2 * CANARY; i++) {
        if (g->base[i] != CANARY_BYTE) {
            return false;
        }
    }
    return true;
}

static inline void guarded_free(moe_device_t *device, struct guarded *g)
{
    assert_true(guarded_intact(g));
    moe_device_free(device, &g->base);
}

static inline double typed_get(enum moe_dtype type, const void *data, int64_t i)
{
    switch (type) {
    case MOE_BF16:
        return (double)hn_bf16_get(((const uint16_t *)data)[i]);
    case MOE_F16:
        return (double)hn_f16_get(((const uint16_t *)data)[i]);
    default:
        return (double)((const float *)data)[i];
    }
}

static inline void typed_put(enum moe_dtype type, void *data, int64_t i, double value)
{
    switch (type) {
    case MOE_BF16:
        ((uint16_t *)data)[i] = hn_bf16_put((float)value);
        break;
    case MOE_F16:
        ((uint16_t *)data)[i] = hn_f16_put((float)value);
        break;
    default:
        ((float *)data)[i] = (float)value;
    }
}

/* Largest error of a sum of a few products in float32, cast once: half a unit in the last place, and some. */
static inline double typed_tolerance(enum moe_dtype type)
{
    return type == MOE_F32 ? 1e-6 : type == MOE_BF16 ? 1.01 / 256 : 1.01 / 2048;
}

/* The choices of the tokens, and the rows of each expert. */
struct choices {
    int64_t tokens, experts, rows;
    int32_t k;
    const int32_t *index; /* [T,k] */
    const int64_t *m;     /* [E]: rows of each expert, as far as the buffer has them */
};

/* The row of choice j of token t, -1: none. */
static inline int64_t ref_row(const struct choices *c, int64_t t, int32_t j)
{
    int32_t e = c->index[t * c->k + j];
    int64_t start = 0, before = 0;
    if (e < 0) {
        return -1;
    }
    for (int32_t i = 0; i < e; i++) {
        start += c->m[i];
    }
    for (int64_t i = 0; i < t * c->k; i++) {
        before += c->index[i] == e;
    }
    return before < c->m[e] && start + before < c->rows ? start + before : -1;
}

/* The flat choice of a row, -1: padding. */
static inline int64_t ref_choice(const struct choices *c, int64_t row)
{
    for (int64_t i = 0; i < c->tokens * c->k; i++) {
        if (ref_row(c, i / c->k, (int32_t)(i % c->k)) == row) {
            return i;
        }
    }
    return -1;
}

#endif
