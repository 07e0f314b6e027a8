/*
 * kernels_layer.c: a whole MoE layer, forward and backward, on the GPU against the host: alone, and over NCCL with one
 * rank.
 *
 * Other parts compare the functions one by one; this part checks what is between them: memory, order on the stream, the
 * dispatcher's copies, errors at the end.
 */
#include "tests/gpu/kernels.h"

#include "moe_core/include/moe/layer.h"

enum { T = 61, H = 48, F = 72, E = 8, K = 3 };

static const struct {
    const char *name;
    enum moe_dtype type;
    bool bias, router_bias;
    enum moe_prob_place place;
    enum moe_activation activation;
    int64_t tokens;
    double tolerance;
} cases[] = {
    {"float32", MOE_F32, false, false, MOE_PROB_SOURCE, MOE_SWIGLU, T, 2e-4},
    {"float32, biases, clamped, probabilities inside", MOE_F32, true, true, MOE_PROB_ACTIVATION, MOE_SWIGLU_CLAMPED, T,
     2e-4},
    {"float32, one token", MOE_F32, false, false, MOE_PROB_SOURCE, MOE_GEGLU, 1, 2e-4},
    {"float32, no tokens", MOE_F32, true, false, MOE_PROB_ACTIVATION, MOE_SWIGLU, 0, 2e-4},
    {"bfloat16", MOE_BF16, false, false, MOE_PROB_SOURCE, MOE_SWIGLU, T, 4e-2},
    {"float16, probabilities inside", MOE_F16, true, false, MOE_PROB_ACTIVATION, MOE_SWIGLU, T, 8e-3},
};

enum array { X, DY, GATE, GATE_BIAS, W1, W2, B1, B2, Y, DX, D_GATE, D_GATE_BIAS, D_W1, D_W2, D_B1, D_B2, ARRAYS };
static const char *const names[ARRAYS] = {"x", "dy", "gate",   "gate_bias",   "w1",   "w2",   "b1",   "b2",
                                          "y", "dx", "d_gate", "d_gate_bias", "d_w1", "d_w2", "d_b1", "d_b2"};

static struct twin array_of(struct check *c, enum array a, enum moe_dtype type, int64_t tokens)
{
    static const int64_t size[ARRAYS] = {0, 0, E * H, E, E * 2 * F * H, E * H * F, E * 2 * F, E * H,
                                         0, 0, E * H, E, E * 2 * F * H, E * H * F, E * 2 * F, E * H};
    bool rows = a == X || a == DY || a == Y || a == DX, router = a == GATE || a == GATE_BIAS || a >= D_GATE;
    return twin_random(c, rows ? tokens * H : size[a], router ? MOE_F32 : type, a == X || a == DY ? 1.0f : 0.25f);
}

static int run_side(struct check *c, size_t i, const struct twin *t, int side, ncclComm_t ep)
{
    struct moe_layer_config config = {.max_tokens = T,
                                      .hidden = H,
                                      .ffn = F,
                                      .experts = E,
                                      .topk = K,
                                      .renormalise = true,
                                      .ep = ep,
                                      .world_rank = 0,
                                      .type = cases[i].type,
                                      .weight = cases[i].type,
                                      .bias = cases[i].type,
                                      .has_bias = cases[i].bias,
                                      .activation = cases[i].activation,
                                      .place = cases[i].place,
                                      .router = {.gate_bias = cases[i].router_bias}};
    struct moe_layer_weights w = {.gate = ON(t[GATE]),
                                  .w1 = ON(t[W1]),
                                  .w2 = ON(t[W2]),
                                  .d_gate = ON(t[D_GATE]),
                                  .d_w1 = ON(t[D_W1]),
                                  .d_w2 = ON(t[D_W2])};
    if (cases[i].bias) {
        w.b1 = ON(t[B1]);
        w.b2 = ON(t[B2]);
        w.d_b1 = ON(t[D_B1]);
        w.d_b2 = ON(t[D_B2]);
    }
    if (cases[i].router_bias) {
        w.gate_bias = ON(t[GATE_BIAS]);
        w.d_gate_bias = ON(t[D_GATE_BIAS]);
    }
    const struct moe_step step = {0};
    moe_layer_t *layer = NULL;
    int rc = moe_layer_new(c->device[side], &config, &layer);
    rc = rc ? rc : moe_layer_forward(layer, &w, &step, ON(t[X]), cases[i].tokens, ON(t[Y]));
    rc = rc ? rc : moe_layer_backward(layer, ON(t[DY]), ON(t[DX]));
    int found = moe_device_sync(c->device[side]);
    moe_layer_destroy(&layer);
    return rc ? rc : found;
}

static void one_layer(struct check *c, size_t i, ncclComm_t ep)
{
    struct twin t[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) {
        t[a] = array_of(c, (enum array)a, cases[i].type, cases[i].tokens);
    }
    twin_poison(c, &t[Y]);
    twin_poison(c, &t[DX]);
    for (int side = 0; side < SIDES; side++) {
        int rc = run_side(c, i, t, side, ep);
        if (rc != 0) {
            row_wrong(c, "%s: the %s: %s", cases[i].name, side == GPU ? "GPU" : "host", moe_last_error());
        }
    }
    c->shapes++;
    for (int a = Y; a < ARRAYS && !c->row_wrong; a++) {
        bool rows = a == Y || a == DX;
        twin_close(c, &t[a], rows ? cases[i].type : MOE_F32, cases[i].tolerance, 1, names[a]);
    }
    for (int a = 0; a < ARRAYS; a++) {
        twin_free(c, &t[a]);
    }
}

void check_layer(struct check *c)
{
    row_begin(c, "layer, alone");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (!taken(c)) {
            continue;
        }
        one_layer(c, i, NULL);
    }
    row_end(c, "");
    row_begin(c, "layer, NCCL with one rank");
    ncclUniqueId id;
    ncclComm_t ep = NULL;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&ep, 1, id, 0) != ncclSuccess) {
        row_wrong(c, "no communicator of one rank");
    } else {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            if (!taken(c)) {
                continue;
            }
            one_layer(c, i, ep);
        }
        ncclCommDestroy(ep);
    }
    row_end(c, "");
}
