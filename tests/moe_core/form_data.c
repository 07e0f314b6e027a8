/*
 * form_data.c: the model and the tokens, and which part of each parameter a rank has.
 *
 * A token's features say which experts it wants, so the input decides which ranks are empty.
 */
#include "tests/moe_core/form_ranks.h"
#include "tests/moe_core/typed.h"

const char *form_name(enum form_layout layout)
{
    static const char *const names[] = {"ep 4", "etp 2 x ep 2", "sequence tp 2, ep 4", "split tp 2, ep 4",
                                        "shard tp 2 x ep 2"};
    return names[layout];
}

bool form_on_tp(const struct form_case *c)
{
    return c->layout == FORM_SEQ || c->layout == FORM_SPLIT || c->layout == FORM_SHARD;
}

int64_t form_tokens(const struct form_case *c, int rank)
{
    for (int r = 0; r < FORM_RANKS; r++) {
        if (c->tokens[r] != 0) {
            return c->tokens[rank];
        }
    }
    return FORM_T;
}

bool form_has(const struct form_case *c, enum moe_layer_parameter p)
{
    const struct moe_layer_config *l = &c->config;
    bool shared = l->shared_ffn > 0;
    const bool has[MOE_LAYER_PARAMETERS] = {[MOE_LAYER_GATE] = true,
                                            [MOE_LAYER_GATE_BIAS] = l->router.gate_bias,
                                            [MOE_LAYER_W1] = true,
                                            [MOE_LAYER_B1] = l->has_bias,
                                            [MOE_LAYER_W2] = true,
                                            [MOE_LAYER_B2] = l->has_bias,
                                            [MOE_LAYER_SHARED_W1] = shared,
                                            [MOE_LAYER_SHARED_B1] = shared && l->shared_bias,
                                            [MOE_LAYER_SHARED_W2] = shared,
                                            [MOE_LAYER_SHARED_B2] = shared && l->shared_bias,
                                            [MOE_LAYER_SHARED_GATE] = shared && l->shared_gate};
    return has[p];
}

static bool named(const struct form_case *c, int letter)
{
    return strchr(c->order != NULL ? c->order : "Aa", letter) != NULL;
}

bool form_goes(const struct form_case *c, int batch)
{
    return named(c, 'A' + batch);
}

bool form_goes_back(const struct form_case *c, int batch)
{
    return named(c, 'a' + batch);
}

uint32_t form_frozen(const struct form_case *c, int rank, int batch)
{
    return (c->thawed > 0 && batch >= c->thawed) || batch < c->freezes ? 0 : c->frozen[rank];
}

static void draw(double *to, int64_t count, double scale, enum moe_dtype type, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = typed_round(type, scale * support_random(state));
    }
}

void form_make_model(const struct form_case *c, struct form_model *m)
{
    uint64_t state = 5;
    const struct moe_layer_config *l = &c->config;
    const struct {
        int64_t count;
        double scale;
        enum moe_dtype type;
    } table[MOE_LAYER_PARAMETERS] = {[MOE_LAYER_GATE] = {FORM_E * FORM_H, 0.1, l->router.gate_type},
                                     [MOE_LAYER_GATE_BIAS] = {FORM_E, 0.2, l->router.gate_type},
                                     [MOE_LAYER_W1] = {FORM_E * 2 * FORM_F * FORM_H, 0.5, l->weight},
                                     [MOE_LAYER_B1] = {FORM_E * 2 * FORM_F, 0.5, l->bias},
                                     [MOE_LAYER_W2] = {FORM_E * FORM_H * FORM_F, 0.5, l->weight},
                                     [MOE_LAYER_B2] = {FORM_E * FORM_H, 0.5, l->bias},
                                     [MOE_LAYER_SHARED_W1] = {2 * FORM_S * FORM_H, 0.5, MOE_F32},
                                     [MOE_LAYER_SHARED_B1] = {2 * FORM_S, 0.5, MOE_F32},
                                     [MOE_LAYER_SHARED_W2] = {FORM_H * FORM_S, 0.5, MOE_F32},
                                     [MOE_LAYER_SHARED_B2] = {FORM_H, 0.5, MOE_F32},
                                     [MOE_LAYER_SHARED_GATE] = {FORM_H, 0.5, MOE_F32}};
    for (int p = 0; p < MOE_LAYER_PARAMETERS; p++) {
        draw(m->parameter[p], table[p].count, table[p].scale, table[p].type, &state);
    }
    draw(m->expert_bias, FORM_E, 0.05, MOE_F32, &state);
    for (int64_t i = 0; i < FORM_E; i++) { /* feature e is the wish for expert e */
        double *wish = &m->parameter[MOE_LAYER_GATE][i * FORM_H + i];
        *wish = typed_round(table[MOE_LAYER_GATE].type, *wish + 2);
    }
}

/* Ranks of a pair with the same tokens draw the same. */
static int source_of(const struct form_case *c, int rank)
{
    return c->layout == FORM_SPLIT || c->layout == FORM_SHARD ? rank / 2 : rank;
}

void form_make_tokens(const struct form_case *c, int rank, int batch, double *x, double *dy)
{
    uint64_t state = 100 + (uint64_t)source_of(c, rank) * 17 + (uint64_t)batch * 1001;
    int64_t owned = c->layout == FORM_ETP || c->layout == FORM_SHARD ? FORM_E / 2 : FORM_E / FORM_RANKS, n = 0;
    int32_t allowed[FORM_E], k = c->config.topk > 0 ? c->config.topk : 2;
    for (int32_t e = 0; e < FORM_E; e++) {
        if ((c->empty >> (e / owned) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    for (int64_t i = 0; i < FORM_T * FORM_H; i++) {
        x[i] = 0.3 * support_random(&state);
        dy[i] = typed_round(c->config.type, support_random(&state));
    }
    for (int64_t t = 0; t < FORM_T; t++) {
        int64_t first = source_of(c, rank) * FORM_T + t + 3 * batch;
        for (int32_t j = 0; j < k; j++) {
            x[t * FORM_H + allowed[(first + j) % n]] += 5 - j;
        }
    }
    for (int64_t i = 0; i < FORM_T * FORM_H; i++) {
        x[i] = typed_round(c->config.type, x[i]);
    }
}

struct form_cut form_cut_of(const struct form_case *c, int rank, enum moe_layer_parameter p)
{
    bool shared_experts = c->layout == FORM_ETP || c->layout == FORM_SHARD;
    int64_t local = shared_experts ? FORM_E / 2 : FORM_E / FORM_RANKS,
            first = (shared_experts ? rank / 2 : rank) * local;
    int64_t f = shared_experts ? FORM_F / 2 : FORM_F, at = shared_experts ? rank % 2 * f : 0;
    int64_t s = form_on_tp(c) ? FORM_S / 2 : FORM_S, s_at = form_on_tp(c) ? rank % 2 * s : 0;
    const struct form_cut cuts[MOE_LAYER_PARAMETERS] = {
        [MOE_LAYER_GATE] = {1, FORM_E, 0, FORM_E, FORM_H, 0, FORM_H, 0},
        [MOE_LAYER_GATE_BIAS] = {1, 1, 0, 1, FORM_E, 0, FORM_E, 0},
        [MOE_LAYER_W1] = {local * 2, FORM_F, at, f, FORM_H, 0, FORM_H, first * 2 * FORM_F * FORM_H},
        [MOE_LAYER_B1] = {local * 2, FORM_F, at, f, 1, 0, 1, first * 2 * FORM_F},
        [MOE_LAYER_W2] = {local, FORM_H, 0, FORM_H, FORM_F, at, f, first * FORM_H * FORM_F},
        [MOE_LAYER_B2] = {local, FORM_H, 0, FORM_H, 1, 0, 1, first * FORM_H},
        [MOE_LAYER_SHARED_W1] = {2, FORM_S, s_at, s, FORM_H, 0, FORM_H, 0},
        [MOE_LAYER_SHARED_B1] = {2, FORM_S, s_at, s, 1, 0, 1, 0},
        [MOE_LAYER_SHARED_W2] = {1, FORM_H, 0, FORM_H, FORM_S, s_at, s, 0},
        [MOE_LAYER_SHARED_B2] = {1, FORM_H, 0, FORM_H, 1, 0, 1, 0},
        [MOE_LAYER_SHARED_GATE] = {1, 1, 0, 1, FORM_H, 0, FORM_H, 0}};
    return cuts[p];
}

int64_t form_cut_count(const struct form_cut *cut)
{
    return cut->blocks * cut->rows * cut->columns;
}

double form_cut_get(const struct form_cut *cut, const double *whole, int64_t i)
{
    int64_t column = i % cut->columns, row = i / cut->columns % cut->rows, block = i / cut->columns / cut->rows;
    return whole[cut->skip + (block * cut->height + cut->first_row + row) * cut->width + cut->first_column + column];
}
