/*
 * kernels_router.c: the router's functions, host against GPU: the choice in every way of scoring, its gradient,
 * capacity, losses.
 *
 * Logits are multiples of 1/16, so that equal scores really come (the tie order is put to the test) and unequal ones
 * differ by more than a rounding.
 */
#include "tests/gpu/exact.h"
#include "tests/gpu/kernels.h"

#include <math.h>

static const struct {
    int64_t tokens, experts;
    int32_t k, groups, group_topk;
} shapes[] = {{0, 8, 2, 0, 0},    {1, 1, 1, 0, 0},     {3, 5, 5, 0, 0},     {33, 16, 4, 4, 2},
              {257, 64, 6, 0, 0}, {130, 256, 8, 8, 4}, {65, 300, 33, 0, 0}, {1024, 128, 8, 0, 0}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* softmax, softmax after, sigmoid, sqrtsoftplus; with and without renormalising and scaling. */
static struct moe_scoring scoring(int i, int32_t groups, int32_t group_topk)
{
    return (struct moe_scoring){.score = i / 2 == 0   ? MOE_SCORE_SOFTMAX
                                         : i / 2 == 1 ? MOE_SCORE_SOFTMAX
                                         : i / 2 == 2 ? MOE_SCORE_SIGMOID
                                                      : MOE_SCORE_SQRTSOFTPLUS,
                                .after = i / 2 == 1,
                                .renormalise = i % 2 == 1,
                                .scale = i % 2 == 1 ? 2.5f : 1.0f,
                                .groups = groups,
                                .group_topk = group_topk};
}
enum { SCORINGS = 8 };

static double *doubles(int64_t count)
{
    double *d = calloc((size_t)count + 1, sizeof(*d));
    if (d == NULL) {
        perror("gpu check");
        exit(9);
    }
    return d;
}

/* A choice, kept for what follows it. */
struct routed {
    struct twin logits, scores, probs, index, counts;
};

static struct routed route(struct check *c, size_t s, int how, bool nan)
{
    int64_t tokens = shapes[s].tokens, experts = shapes[s].experts;
    struct routed r = {.logits = twin_grid(c, tokens * experts, how % 2 == 0 ? 64 : 12),
                       .scores = twin_new(c, tokens * experts, sizeof(float)),
                       .probs = twin_new(c, tokens * experts, sizeof(float)),
                       .index = twin_new(c, tokens * shapes[s].k, sizeof(int32_t)),
                       .counts = twin_new(c, experts, sizeof(int64_t))};
    struct twin gate_bias = twin_grid(c, experts, 8), expert_bias = twin_grid(c, experts, 5);
    struct twin *poisoned[] = {&r.scores, &r.probs, &r.index, &r.counts};
    for (size_t i = 0; i < 4; i++) {
        twin_poison(c, poisoned[i]);
    }
    if (nan && tokens * experts > 2) {
        float *logit = twin_at(&r.logits, HOST);
        logit[tokens * experts / 2] = NAN;
        logit[0] = -INFINITY;
        twin_push(c, &r.logits);
    }
    RUN_BOTH(c, topk, struct moe_topk, .tokens = tokens, .experts = experts, .k = shapes[s].k,
             .how = scoring(how, shapes[s].groups, shapes[s].group_topk),
             .gate_bias = how % 3 == 0 ? ON(gate_bias) : NULL,
             .expert_bias = how / 2 != 0 && how % 2 == 1 ? ON(expert_bias) : NULL, .logits = ON(r.logits),
             .scores = ON(r.scores), .probs = ON(r.probs), .index = ON(r.index), .counts = ON(r.counts));
    both_found(c, nan && tokens * experts > 2 ? MOE_E_NAN : 0, "topk");
    twin_free(c, &gate_bias);
    twin_free(c, &expert_bias);
    return r;
}

static void routed_free(struct check *c, struct routed *r)
{
    struct twin *all[] = {&r->logits, &r->scores, &r->probs, &r->index, &r->counts};
    for (size_t i = 0; i < 5; i++) {
        twin_free(c, all[i]);
    }
}

static void topk(struct check *c)
{
    row_begin(c, "topk");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int how = 0; how < SCORINGS; how++) {
            if (!taken(c)) {
                continue;
            }
            struct routed r = route(c, s, how, false);
            twin_equal(c, &r.logits, "logits");
            twin_equal(c, &r.index, "index");
            twin_equal(c, &r.counts, "counts");
            double *scores = doubles(r.scores.count), *probs = doubles(r.probs.count);
            struct moe_topk exact = {.tokens = shapes[s].tokens,
                                     .experts = shapes[s].experts,
                                     .k = shapes[s].k,
                                     .how = scoring(how, shapes[s].groups, shapes[s].group_topk),
                                     .logits = twin_at(&r.logits, HOST),
                                     .index = twin_at(&r.index, HOST)};
            exact_topk(&exact, scores, probs);
            twin_exact(c, &r.scores, MOE_F32, scores, 4e-6, 1, "scores");
            twin_exact(c, &r.probs, MOE_F32, probs, 4e-6, 1, "probs");
            routed_free(c, &r);
        }
    }
    row_end(c, "");
    row_begin(c, "topk: no numbers"); /* the softmax's row is all NaN then; sigmoid's choice must still be the same and
                                         distinct */
    for (size_t s = 2; s < SHAPES; s++) {
        struct routed r = route(c, s, 4, true);
        twin_equal(c, &r.index, "index");
        twin_equal(c, &r.counts, "counts");
        routed_free(c, &r);
    }
    row_end(c, "");
}

static void topk_backward(struct check *c)
{
    row_begin(c, "topk_backward");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int how = 0; how < SCORINGS; how++) {
            if (!taken(c)) {
                continue;
            }
            int64_t cells = shapes[s].tokens * shapes[s].experts;
            struct routed r = route(c, s, how, false);
            struct twin d_probs = twin_random(c, cells, MOE_F32, 1), d_logits = twin_new(c, cells, sizeof(float));
            struct twin kept = twin_new(c, r.index.count, sizeof(int32_t));
            int32_t *index = twin_at(&kept, HOST);
            memcpy(index, twin_at(&r.index, HOST), (size_t)r.index.count * sizeof(*index));
            for (int64_t i = 0; i < r.index.count; i += 7) {
                index[i] = -1; /* dropped */
            }
            twin_push(c, &kept);
            twin_poison(c, &d_logits);
            /* Backward starts from the host's forward on both sides. */
            twin_push(c, &r.scores);
            twin_push(c, &r.probs);
            double *want = doubles(cells);
            for (int side = 0; side < SIDES; side++) {
                struct moe_topk_backward a = {.tokens = shapes[s].tokens,
                                              .experts = shapes[s].experts,
                                              .k = shapes[s].k,
                                              .how = scoring(how, shapes[s].groups, shapes[s].group_topk),
                                              .logits = ON(r.logits),
                                              .scores = ON(r.scores),
                                              .probs = ON(r.probs),
                                              .d_probs = ON(d_probs),
                                              .index = ON(kept),
                                              .all = ON(r.index),
                                              .d_logits = ON(d_logits)};
                launched(c, moe_device_ops(c->device[side])->topk_backward(c->device[side], &a), "topk_backward");
                if (side == HOST) {
                    exact_topk_backward(&a, want);
                }
            }
            both_found(c, 0, "topk_backward");
            twin_exact(c, &d_logits, MOE_F32, want, 1e-5, 1, "d_logits");
            twin_free(c, &d_probs);
            twin_free(c, &d_logits);
            twin_free(c, &kept);
            routed_free(c, &r);
        }
    }
    row_end(c, "");
}

static void drop(struct check *c)
{
    row_begin(c, "drop");
    for (size_t s = 0; s < SHAPES; s++) {
        for (int mode = 0; mode < 4; mode++) {
            if (!taken(c)) {
                continue;
            }
            struct routed r = route(c, s, 5, false);
            int64_t capacity = shapes[s].tokens * shapes[s].k / shapes[s].experts * 3 / 4;
            twin_push(c, &r.probs); /* equal weights stay equal */
            RUN_BOTH(c, drop, struct moe_drop, .tokens = shapes[s].tokens, .experts = shapes[s].experts,
                     .capacity = capacity, .k = shapes[s].k, .by_position = mode % 2 == 1, .pad = mode / 2 == 1,
                     .probs = ON(r.probs), .index = ON(r.index), .counts = ON(r.counts));
            both_found(c, 0, "drop");
            twin_equal(c, &r.index, "index");
            twin_equal(c, &r.probs, "probs");
            twin_equal(c, &r.counts, "counts");
            routed_free(c, &r);
        }
    }
    row_end(c, "");
}

static void balance(struct check *c)
{
    static const float coefficients[][MOE_LOSSES] = {
        {1e-2f, 0, 0, 0}, {0, 1e-2f, 0, 0}, {0, 0, 1e-2f, 0}, {0, 0, 0, 1e-3f}, {1, 2, 3, 4}};
    for (int backward = 0; backward < 2; backward++) {
        row_begin(c, backward ? "balance_backward" : "balance");
        for (size_t s = 0; s < SHAPES; s++) {
            for (int i = 0; i < 15; i++) { /* five coefficients for each score */
                if (!taken(c)) {
                    continue;
                }
                int64_t tokens = shapes[s].tokens, experts = shapes[s].experts, sequences = tokens % 3 == 0 ? 3 : 1;
                struct routed r = route(c, s, (int[]){4, 6, 0}[i / 5], false);
                struct twin per_sequence = twin_new(c, sequences * experts, sizeof(int64_t)),
                            losses = twin_new(c, MOE_LOSSES, sizeof(float));
                struct twin d_logits = twin_random(c, tokens * experts, MOE_F32, 1);
                int64_t *count = twin_at(&per_sequence, HOST);
                for (int64_t e = 0; e < sequences * experts; e++) {
                    count[e] = random_below(c, 50);
                }
                twin_push(c, &per_sequence);
                twin_push(c, &r.scores);
                twin_poison(c, &losses);
                const float *coeff = coefficients[i % 5];
                double *want = backward ? twin_wide(c, &d_logits, MOE_F32) : doubles(MOE_LOSSES);
                for (int side = 0; side < SIDES; side++) {
                    struct moe_balance b = {.tokens = tokens,
                                            .experts = experts,
                                            .k = shapes[s].k,
                                            .score = scoring((int[]){4, 6, 0}[i / 5], 0, 0).score,
                                            .coeff = {coeff[0], coeff[1], coeff[2], coeff[3]},
                                            .sequences = sequences,
                                            .ranks = 2,
                                            .microbatches = 3,
                                            .logits = ON(r.logits),
                                            .scores = ON(r.scores),
                                            .counts = ON(r.counts),
                                            .sequence_counts = ON(per_sequence),
                                            .global_counts = ON(r.counts),
                                            .losses = ON(losses),
                                            .loss_scale = 1.5f,
                                            .d_logits = ON(d_logits)};
                    const struct moe_ops *ops = moe_device_ops(c->device[side]);
                    launched(c,
                             backward ? ops->balance_backward(c->device[side], &b) : ops->balance(c->device[side], &b),
                             c->name);
                    if (side == HOST && backward) {
                        exact_balance_backward(&b, want);
                    } else if (side == HOST) {
                        exact_balance(&b, want);
                    }
                }
                both_found(c, 0, c->name);
                twin_exact(c, backward ? &d_logits : &losses, MOE_F32, want, 1e-6, 1, "result");
                twin_free(c, &per_sequence);
                twin_free(c, &losses);
                twin_free(c, &d_logits);
                routed_free(c, &r);
            }
        }
        row_end(c, "");
    }
}

void check_router(struct check *c)
{
    topk(c);
    topk_backward(c);
    drop(c);
    balance(c);
}
