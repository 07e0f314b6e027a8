/*
 * ref_layer.c: the reference of a whole MoE layer.
 *
 * The unit is a feed-forward network over one token: routed experts and the shared expert differ only in their arrays.
 * Backward computes forward again instead of keeping it, so that each function can be compared with its formula alone.
 * Speed was given up on purpose.
 */
#include "moe_core/reference/ref_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One feed-forward network: w1 [2F,H], b1 [2F], w2 [H,F], b2 [H], and where its gradients go. */
struct network {
    const struct moe_ref_layer *layer;
    int64_t hidden, ffn;
    const double *w1, *b1, *w2, *b2;
    double *d_w1, *d_b1, *d_w2, *d_b2;
};

/* Numbers of one token in one network: x [H] in, h [2F], a [F] = act(h), out [H]. */
struct token {
    double *x, *h, *a, *out, *d_out, *dx;
};

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* to += factor * from; nothing happens where `to` is NULL */
static void add(double *to, double factor, const double *from, int64_t n)
{
    for (int64_t i = 0; to != NULL && i < n; i++) {
        to[i] += factor * from[i];
    }
}

static double sigmoid(double v)
{
    return 1 / (1 + exp(-v));
}

static const double *part(const double *array, int64_t i, int64_t size)
{
    return array != NULL ? array + i * size : NULL;
}

static double *out_part(double *array, int64_t i, int64_t size)
{
    return array != NULL ? array + i * size : NULL;
}

/* f(g) and its derivative, for the activations of the form f(g) u. */
static void gate_function(enum moe_activation kind, double g, double *f, double *df)
{
    const double pi = 3.14159265358979323846;
    if (kind == MOE_SWIGLU) {
        double s = sigmoid(g);
        *f = g * s;
        *df = s + g * s * (1 - s);
    } else if (kind == MOE_GEGLU) {
        double cdf = 0.5 * (1 + erf(g / sqrt(2)));
        *f = g * cdf;
        *df = cdf + g * exp(-g * g / 2) / sqrt(2 * pi);
    } else {
        double c = sqrt(2 / pi), t = tanh(c * (g + 0.044715 * g * g * g));
        *f = 0.5 * g * (1 + t);
        *df = 0.5 * (1 + t) + 0.5 * g * (1 - t * t) * c * (1 + 3 * 0.044715 * g * g);
    }
}

/* act(g, u) and its derivatives. */
static double activate(const struct moe_ref_layer *l, double g, double u, double *d_g, double *d_u)
{
    double f, df;
    if (l->activation != MOE_SWIGLU_CLAMPED) {
        gate_function(l->activation, g, &f, &df);
        *d_g = df * u;
        *d_u = f;
        return f * u;
    }
    bool given = l->clamp.alpha != 0 || l->clamp.limit != 0;
    double alpha = given ? (double)l->clamp.alpha : 1.702, limit = given ? (double)l->clamp.limit : 7,
           offset = given ? (double)l->clamp.offset : 1;
    double g_in = fmin(g, limit), u_in = fmax(fmin(u, limit), -limit), s = sigmoid(alpha * g_in);
    *d_g = g > limit ? 0 : (s + g_in * alpha * s * (1 - s)) * (u_in + offset);
    *d_u = u > limit || u < -limit ? 0 : g_in * s;
    return g_in * s * (u_in + offset);
}

/* out = w2 (scale act(w1 x + b1)) + scale b2 */
static void network_forward(const struct network *n, double scale, const struct token *t)
{
    double ignored;
    for (int64_t i = 0; i < 2 * n->ffn; i++) {
        t->h[i] = dot(n->w1 + i * n->hidden, t->x, n->hidden) + (n->b1 != NULL ? n->b1[i] : 0);
    }
    for (int64_t i = 0; i < n->ffn; i++) {
        t->a[i] = activate(n->layer, t->h[i], t->h[n->ffn + i], &ignored, &ignored);
    }
    for (int64_t i = 0; i < n->hidden; i++) {
        t->out[i] = scale * dot(n->w2 + i * n->ffn, t->a, n->ffn) + (n->b2 != NULL ? scale * n->b2[i] : 0);
    }
}

/*
 * The backward of network_forward, from t->d_out: overwrites t->dx, adds to the network's gradients, and returns the
 * gradient of scale.
 */
static double network_backward(const struct network *n, double scale, const struct token *t)
{
    double d_scale = n->b2 != NULL ? dot(t->d_out, n->b2, n->hidden) : 0;
    memset(t->dx, 0, (size_t)n->hidden * sizeof(double));
    add(n->d_b2, scale, t->d_out, n->hidden);
    for (int64_t i = 0; i < n->hidden; i++) {
        add(out_part(n->d_w2, i, n->ffn), scale * t->d_out[i], t->a, n->ffn);
    }
    for (int64_t i = 0; i < n->ffn; i++) {
        double d_product = 0, d_act[2]; /* of scale * a[i]; of act by g and by u */
        for (int64_t r = 0; r < n->hidden; r++) {
            d_product += t->d_out[r] * n->w2[r * n->ffn + i];
        }
        d_scale += d_product * t->a[i];
        activate(n->layer, t->h[i], t->h[n->ffn + i], &d_act[0], &d_act[1]);
        for (int64_t half = 0; half < 2; half++) {
            int64_t row = half * n->ffn + i;
            double d_h = scale * d_product * d_act[half];
            if (n->d_b1 != NULL) {
                n->d_b1[row] += d_h;
            }
            add(out_part(n->d_w1, row, n->hidden), d_h, t->x, n->hidden);
            add(t->dx, d_h, n->w1 + row * n->hidden, n->hidden);
        }
    }
    return d_scale;
}

static struct network expert_of(const struct moe_ref_layer *l, const struct moe_ref_layer_grads *g, int64_t e)
{
    const struct moe_ref_weights *w = &l->weights;
    int64_t h = l->router.hidden, f = l->ffn;
    return (struct network){.layer = l,
                            .hidden = h,
                            .ffn = f,
                            .w1 = part(w->w1, e, 2 * f * h),
                            .b1 = part(w->b1, e, 2 * f),
                            .w2 = part(w->w2, e, h * f),
                            .b2 = part(w->b2, e, h),
                            .d_w1 = out_part(g->w1, e, 2 * f * h),
                            .d_b1 = out_part(g->b1, e, 2 * f),
                            .d_w2 = out_part(g->w2, e, h * f),
                            .d_b2 = out_part(g->b2, e, h)};
}

static struct network shared_of(const struct moe_ref_layer *l, const struct moe_ref_layer_grads *g)
{
    const struct moe_ref_weights *w = &l->weights;
    return (struct network){.layer = l,
                            .hidden = l->router.hidden,
                            .ffn = l->shared_ffn,
                            .w1 = w->shared_w1,
                            .b1 = w->shared_b1,
                            .w2 = w->shared_w2,
                            .b2 = w->shared_b2,
                            .d_w1 = g->shared_w1,
                            .d_b1 = g->shared_b1,
                            .d_w2 = g->shared_w2,
                            .d_b2 = g->shared_b2};
}

/*
 * One choice (token, expert) of weight w: adds to y, and with dy to dx; returns the gradient of w. y, dy and dx may be
 * NULL.
 */
static double run_choice(const struct moe_ref_layer *l, const struct network *n, double w, const double *x,
                         const struct token *t, double *y, const double *dy, double *dx)
{
    double in = l->place == MOE_PROB_INPUT ? w : 1, inside = l->place == MOE_PROB_ACTIVATION ? w : 1,
           out = l->place == MOE_PROB_SOURCE ? w : 1;
    memset(t->x, 0, (size_t)n->hidden * sizeof(double));
    add(t->x, in, x, n->hidden);
    network_forward(n, inside, t);
    add(y, out, t->out, n->hidden);
    if (dy == NULL) {
        return 0;
    }
    double d_out = dot(dy, t->out, n->hidden);
    memset(t->d_out, 0, (size_t)n->hidden * sizeof(double));
    add(t->d_out, out, dy, n->hidden);
    double d_inside = network_backward(n, inside, t);
    double d_in = dot(t->dx, x, n->hidden);
    add(dx, in, t->dx, n->hidden);
    return l->place == MOE_PROB_SOURCE ? d_out : l->place == MOE_PROB_ACTIVATION ? d_inside : d_in;
}

/* The shared expert on one token: y += g out, g = sigmoid(<shared_gate, x>) or 1. */
static void run_shared(const struct moe_ref_layer *l, const struct moe_ref_layer_grads *grads, const double *x,
                       const struct token *t, double *y, const double *dy, double *dx)
{
    struct network n = shared_of(l, grads);
    const double *gate = l->weights.shared_gate;
    double g = gate != NULL ? sigmoid(dot(gate, x, n.hidden)) : 1;
    memcpy(t->x, x, (size_t)n.hidden * sizeof(double));
    network_forward(&n, 1, t);
    add(y, g, t->out, n.hidden);
    if (dy == NULL) {
        return;
    }
    memset(t->d_out, 0, (size_t)n.hidden * sizeof(double));
    add(t->d_out, g, dy, n.hidden);
    network_backward(&n, 1, t);
    add(dx, 1, t->dx, n.hidden);
    if (gate != NULL) {
        double d_score = dot(dy, t->out, n.hidden) * g * (1 - g);
        add(grads->shared_gate, d_score, x, n.hidden);
        add(dx, d_score, gate, n.hidden);
    }
}

/* The working memory of one set. */
struct work {
    struct moe_ref_routing routing;
    struct moe_ref_router router;
    int64_t *balance_counts, *sequence_counts, *global_counts;
    double *d_probs, *numbers;
};

static bool work_new(const struct moe_ref_layer *l, const struct moe_ref_set *set, struct work *w)
{
    int64_t experts = l->router.experts, sequences = l->router.options.sequences > 0 ? l->router.options.sequences : 1;
    int64_t wide = 2 * (l->ffn > l->shared_ffn ? l->ffn : l->shared_ffn);
    size_t choices = (size_t)(set->tokens * l->router.topk + 1), cells = (size_t)(set->tokens * experts + 1);
    w->routing.index = calloc(choices, sizeof(int32_t));
    w->routing.all = calloc(choices, sizeof(int32_t));
    w->routing.probs = calloc(cells, sizeof(double));
    w->d_probs = calloc(cells, sizeof(double));
    w->balance_counts = calloc((size_t)experts, sizeof(int64_t));
    w->global_counts = calloc((size_t)experts, sizeof(int64_t));
    w->sequence_counts = calloc((size_t)(experts * sequences), sizeof(int64_t));
    w->numbers = calloc((size_t)(4 * l->router.hidden + 2 * wide), sizeof(double));
    return w->routing.index && w->routing.all && w->routing.probs && w->d_probs && w->balance_counts &&
           w->global_counts && w->sequence_counts && w->numbers;
}

static void work_free(struct work *w)
{
    free(w->routing.index);
    free(w->routing.all);
    free(w->routing.probs);
    free(w->d_probs);
    free(w->balance_counts);
    free(w->global_counts);
    free(w->sequence_counts);
    free(w->numbers);
}

static struct token token_of(const struct moe_ref_layer *l, const struct work *w)
{
    int64_t h = l->router.hidden, wide = 2 * (l->ffn > l->shared_ffn ? l->ffn : l->shared_ffn);
    double *at = w->numbers;
    return (struct token){
        .x = at, .out = at + h, .d_out = at + 2 * h, .dx = at + 3 * h, .h = at + 4 * h, .a = at + 4 * h + wide};
}

static bool together(int32_t a, int32_t b, bool same_set)
{
    return same_set || (a != 0 && a == b);
}

/* The counts that the losses of a set see: those of all sets of its group. */
static void count_groups(const struct moe_ref_layer *l, const struct moe_ref_set *sets, struct work *works, int32_t n,
                         int32_t self)
{
    struct work *w = &works[self];
    int64_t sequences = l->router.options.sequences > 0 ? l->router.options.sequences : 1, experts = l->router.experts;
    int64_t ranks = 0;
    for (int32_t i = 0; i < n; i++) {
        bool balance = together(sets[i].balance, sets[self].balance, i == self);
        bool global = together(sets[i].global, sets[self].global, i == self);
        ranks += balance;
        for (int64_t c = 0; c < sets[i].tokens * l->router.topk; c++) {
            int32_t e = works[i].routing.all[c];
            if (e >= 0) {
                w->balance_counts[e] += balance;
                w->sequence_counts[c / l->router.topk % sequences * experts + e] += balance;
                w->global_counts[e] += global;
            }
        }
    }
    for (int64_t e = 0; l->global_earlier != NULL && e < experts; e++) {
        w->global_counts[e] += l->global_earlier[e];
    }
    w->router.ranks = ranks;
    w->router.balance_counts = w->balance_counts;
    w->router.sequence_counts = w->sequence_counts;
    w->router.global_counts = w->global_counts;
    w->router.microbatches = l->microbatches > 0 ? l->microbatches : 1;
}

static int route(const struct moe_ref_layer *l, const struct moe_ref_set *set, struct work *w)
{
    w->router.config = l->router;
    w->router.gate = l->weights.gate;
    w->router.gate_bias = l->weights.gate_bias;
    w->router.expert_bias = l->weights.expert_bias;
    w->router.choice = set->choice;
    w->router.kept = set->kept;
    return moe_ref_router_forward(&w->router, set->tokens, set->x, &w->routing);
}

/*
 * Runs the experts and the shared expert on every token; with dy also their gradients and those of the probabilities.
 */
static void run_tokens(const struct moe_ref_layer *l, struct moe_ref_set *set, struct work *w)
{
    int64_t h = l->router.hidden, experts = l->router.experts;
    struct token t = token_of(l, w);
    size_t bytes = (size_t)(set->tokens * h) * sizeof(double);
    if (set->y != NULL) {
        memset(set->y, 0, bytes);
    }
    if (set->dx != NULL) {
        memset(set->dx, 0, bytes);
    }
    for (int64_t i = 0; i < set->tokens; i++) {
        const double *x = set->x + i * h, *dy = part(set->dy, i, h);
        double *y = out_part(set->y, i, h), *dx = out_part(set->dx, i, h);
        for (int32_t j = 0; j < l->router.topk; j++) {
            int32_t e = w->routing.index[i * l->router.topk + j];
            if (e >= 0) {
                struct network n = expert_of(l, &set->grads, e);
                w->d_probs[i * experts + e] = run_choice(l, &n, w->routing.probs[i * experts + e], x, &t, y, dy, dx);
            }
        }
        if (l->shared_ffn > 0) {
            run_shared(l, &set->grads, x, &t, y, dy, dx);
        }
    }
}

static void copy_out(void *to, const void *from, int64_t count, size_t size)
{
    if (to != NULL) {
        memcpy(to, from, (size_t)count * size);
    }
}

static void count_chosen(const struct moe_ref_layer *l, const struct moe_ref_set *set, const struct work *w)
{
    if (set->chosen == NULL) {
        return;
    }
    memset(set->chosen, 0, (size_t)l->router.experts * sizeof(*set->chosen));
    for (int64_t i = 0; i < set->tokens * l->router.topk; i++) {
        if (w->routing.all[i] >= 0) {
            set->chosen[w->routing.all[i]]++;
        }
    }
}

static int run_set(const struct moe_ref_layer *l, struct moe_ref_set *set, struct work *w)
{
    w->routing.counts = set->counts;
    int rc = route(l, set, w); /* a second time, with the counts of the groups, for the losses */
    if (rc != 0) {
        return rc;
    }
    copy_out(set->index, w->routing.index, set->tokens * l->router.topk, sizeof(int32_t));
    copy_out(set->probs, w->routing.probs, set->tokens * l->router.experts, sizeof(double));
    copy_out(set->losses, w->routing.losses, MOE_LOSSES, sizeof(double));
    copy_out(set->regret, &w->routing.regret, 1, sizeof(double));
    count_chosen(l, set, w);
    run_tokens(l, set, w);
    if (set->dy == NULL) {
        return 0;
    }
    struct moe_ref_router_grads grads = {set->dx, set->grads.gate, set->grads.gate_bias};
    return moe_ref_router_backward(&w->router, set->tokens, set->x, &w->routing, w->d_probs,
                                   l->loss_scale != 0 ? l->loss_scale : 1, &grads);
}

int moe_ref_layer_run(const struct moe_ref_layer *layer, struct moe_ref_set *sets, int32_t n)
{
    struct work *works = calloc((size_t)n + 1, sizeof(*works));
    int rc = works != NULL ? 0 : -1;
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        rc = work_new(layer, &sets[i], &works[i]) ? route(layer, &sets[i], &works[i]) : -1;
    }
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        count_groups(layer, sets, works, n, i);
        rc = run_set(layer, &sets[i], &works[i]);
    }
    for (int32_t i = 0; works != NULL && i < n; i++) {
        work_free(&works[i]);
    }
    free(works);
    return rc;
}
