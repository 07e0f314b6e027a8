/*
 * flex_model.c: the model and the tokens of each rank, which the ranks and the reference make alike: every number is
 * the same in float and in double.
 */
#include "tests/moe_core/flex_inside.h"

int flex_etp(const struct flex_case *c)
{
    return c->etp > 1 ? c->etp : 1;
}

int64_t flex_experts(const struct flex_case *c)
{
    return c->ranks / flex_etp(c) * FLEX_L;
}

/* Rounded to what a row can hold. */
static double held(const struct flex_case *c, double v)
{
    float f = (float)v;
    if (c->type == MOE_BF16) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        bits &= 0xffff0000u;
        memcpy(&f, &bits, sizeof(f));
    }
    return (double)f;
}

double flex_a(int64_t e)
{
    return 0.5 + 0.25 * (double)e;
}

double flex_b(int64_t e)
{
    return 1.0 - 0.125 * (double)e;
}

double flex_share(const struct flex_case *c, int q)
{
    return flex_etp(c) == 1 ? 1.0 : q == 0 ? 0.25 : 0.75 / (flex_etp(c) - 1);
}

void flex_make_model(const struct flex_case *c, int rank, struct flex_model *m)
{
    int64_t experts = flex_experts(c);
    int32_t allowed[FLEX_E], n = 0;
    for (int32_t e = 0; e < experts; e++) {
        if ((c->empty >> (e / FLEX_L) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    memset(m, 0, sizeof(*m));
    for (int64_t t = 0; t < c->tokens[rank]; t++) {
        uint64_t seed = (uint64_t)(rank * 1000 + t) * 7919 + 13;
        support_random(&seed);
        for (int h = 0; h < FLEX_H; h++) {
            m->x[t * FLEX_H + h] = held(c, support_random(&seed));
            m->dy[t * FLEX_H + h] = held(c, support_random(&seed));
        }
        int32_t first = (int32_t)((support_random(&seed) + 1.0) * 1000.0);
        for (int32_t j = 0; j < c->topk; j++) {
            bool none = j >= n || (c->masked && (t + j) % 3 == 0);
            int32_t e = none ? -1 : allowed[(first + j * (n > c->topk ? n / c->topk : 1)) % n];
            m->index[t * c->topk + j] = e;
            if (e >= 0) {
                m->probs[t * experts + e] = (double)(float)(0.6 + 0.4 * support_random(&seed));
                m->counts[e]++;
            }
        }
    }
}

float flex_get(const struct flex_case *c, const void *rows, int64_t i)
{
    if (c->type == MOE_F32) {
        return ((const float *)rows)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)rows)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

void flex_put(const struct flex_case *c, void *rows, int64_t i, float value)
{
    if (c->type == MOE_F32) {
        ((float *)rows)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    ((uint16_t *)rows)[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
