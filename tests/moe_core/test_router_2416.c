/*
 * test_router_2416.c: the router's gradient under tensor parallelism (torchtitan #2416): a summand on every tp rank,
 * summed exactly once.
 *
 * The layouts of tp_ranks.h; score before and after the experts; softmax and sigmoid; with and without a shared expert;
 * with and without gate bias, auxiliary losses, biases and the shared expert's gate, some of them summands as well. Two
 * microbatches a step, so that a sum which takes the first one in again is seen, and a second step on the parameters
 * that the first one made. Ranks are threads on hostnccl; what they have is compared with one process in double
 * precision. Properties (i) to (vi) are numbered as they stand in docs/MOE.md.
 *
 * The same test is built with a library and a host back end whose numbers have 64 bits (wide_float.h): there they agree
 * to 1e-12 of the largest, and no error that rounding could hide is left.
 */
#include "tests/moe_core/tp_ranks.h"

#include "moe_core/reference/ref_layer.h"

/* Sums of some ten terms; a factor of 1/P or P is far beyond it. */
static double tolerance(void)
{
    return sizeof(float) == sizeof(double) ? 1e-12 : 2e-5;
}

/* one process */

struct truth {
    double y[TP_RUNS][TP_SETS][TP_T * TP_H], dx[TP_RUNS][TP_SETS][TP_T * TP_H];
    double summand[TP_STEPS][TP_SETS][TP_SUMMANDS]; /* of each set's tokens */
    double replica[TP_STEPS][TP_SUMMANDS];          /* after the step */
    double d_w1[TP_STEPS][TP_E * 2 * TP_F * TP_H], d_w2[TP_STEPS][TP_E * TP_H * TP_F];
    double d_b1[TP_STEPS][TP_E * 2 * TP_F], d_b2[TP_STEPS][TP_E * TP_H];
    double d_s1[TP_STEPS][TP_SETS][2 * TP_S * TP_H], d_s2[TP_STEPS][TP_SETS][TP_H * TP_S];
};

/* One microbatch of all sets, with the gate as it is now. earlier: what the global loss counted in this step before. */
static void find_batch(const struct tp_case *c, const struct tp_model *m, const double *replica, int run,
                       int64_t *earlier, struct truth *t)
{
    int step = run / TP_BATCHES, sets = tp_sets(c);
    int64_t counts[TP_SETS][TP_E];
    struct moe_ref_layer layer = {
        .router = {.hidden = TP_H,
                   .experts = TP_E,
                   .topk = TP_K,
                   .renormalise = true,
                   .options = {.score = c->score, .gate_bias = c->extras, .sequences = TP_SEQUENCES}},
        .ffn = TP_F,
        .shared_ffn = c->shared ? TP_S : 0,
        .place = c->before ? MOE_PROB_INPUT : MOE_PROB_SOURCE,
        .global_earlier = run % TP_BATCHES > 0 ? earlier : NULL,
        .microbatches = run % TP_BATCHES + 1,
        .weights = {.gate = replica, .w1 = m->w1, .w2 = m->w2, .shared_w1 = m->s1, .shared_w2 = m->s2}};
    struct moe_ref_set set[TP_SETS];
    if (c->extras) {
        layer.weights.gate_bias = replica + TP_BIAS_AT;
        layer.weights.b1 = m->b1;
        layer.weights.b2 = m->b2;
        layer.weights.shared_gate = c->shared ? replica + TP_SHARED_AT : NULL;
        for (int i = 0; i < MOE_LOSSES; i++) {
            layer.router.options.coeff[i] = (float)tp_losses[i];
        }
    }
    for (int i = 0; i < sets; i++) {
        double *summand = t->summand[step][i];
        set[i] = (struct moe_ref_set){.tokens = TP_T,
                                      .x = m->x[run][i],
                                      .dy = m->dy[run][i],
                                      .y = t->y[run][i],
                                      .dx = t->dx[run][i],
                                      .balance = c->layout == SEQUENCE,
                                      .global = 1,
                                      .counts = counts[i],
                                      .grads = {.gate = summand,
                                                .gate_bias = c->extras ? summand + TP_BIAS_AT : NULL,
                                                .shared_gate = c->extras ? summand + TP_SHARED_AT : NULL,
                                                .w1 = t->d_w1[step],
                                                .w2 = t->d_w2[step],
                                                .b1 = t->d_b1[step],
                                                .b2 = t->d_b2[step],
                                                .shared_w1 = t->d_s1[step][i],
                                                .shared_w2 = t->d_s2[step][i]}};
    }
    assert_int_equal(moe_ref_layer_run(&layer, set, sets), 0);
    for (int e = 0; e < TP_E; e++) {
        earlier[e] = run % TP_BATCHES > 0 ? earlier[e] : 0;
        for (int i = 0; i < sets; i++) {
            earlier[e] += counts[i][e];
        }
    }
}

static void find_truth(const struct tp_case *c, const struct tp_model *m, struct truth *t)
{
    double replica[TP_SUMMANDS];
    int64_t earlier[TP_E] = {0};
    memset(t, 0, sizeof(*t));
    memcpy(replica, m->replica, sizeof(replica));
    for (int run = 0; run < TP_RUNS; run++) {
        int step = run / TP_BATCHES;
        find_batch(c, m, replica, run, earlier, t);
        for (int i = 0; i < TP_SUMMANDS && run % TP_BATCHES == TP_BATCHES - 1; i++) {
            for (int s = 0; s < tp_sets(c); s++) {
                replica[i] -= tp_rate * t->summand[step][s][i];
            }
            t->replica[step][i] = replica[i];
        }
    }
}

/* comparing */

static double off(const float *got, const double *want, int64_t count)
{
    double worst = 0, size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        size = fmax(size, fabs(want[i]));
    }
    return worst / size;
}

/* The sum over the ranks that share a set: what is a summand over tp. */
static void sum_over_tp(const struct tp_case *c, int set, const struct tp_result *results, size_t offset, int64_t count,
                        float *out)
{
    int first = c->layout == SEQUENCE ? set : set * c->tp, ranks = c->layout == SEQUENCE ? 1 : c->tp;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int t = first; t < first + ranks; t++) {
            const float *part = (const float *)(const void *)((const char *)&results[t] + offset);
            sum += (double)part[i];
        }
        out[i] = (float)sum;
    }
}

/* What the sum over the tp group of rank r must give: over its set, or over all sets where each rank has its own. */
static void whole_of(const struct tp_case *c, int r, const double *sets, int64_t stride, int64_t count, double *out)
{
    bool all = c->layout == SEQUENCE;
    for (int64_t i = 0; i < count; i++) {
        out[i] = 0;
        for (int s = all ? 0 : tp_set_of(c, r); s < (all ? tp_sets(c) : tp_set_of(c, r) + 1); s++) {
            out[i] += sets[s * stride + i];
        }
    }
}

static void close_rows(const char *what, const float *got, const double *want, int64_t blocks, int64_t height,
                       int64_t first, int64_t rows, int64_t width)
{
    double cut[TP_E * 2 * TP_F * TP_H];
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(cut + b * rows * width, want + (b * height + first) * width, (size_t)(rows * width) * sizeof(*cut));
    }
    support_close(what, got, cut, blocks * rows * width, tolerance());
}

static void close_columns(const char *what, const float *got, const double *want, int64_t rows, int64_t width,
                          int64_t first, int64_t columns)
{
    double cut[TP_E * 2 * TP_F * TP_H];
    for (int64_t r = 0; r < rows; r++) {
        memcpy(cut + r * columns, want + r * width + first, (size_t)columns * sizeof(*cut));
    }
    support_close(what, got, cut, rows * columns, tolerance());
}

/* The gradients that are no summands: of each rank's part of the experts and of the shared expert. */
static void check_parts(const struct tp_case *c, const struct tp_result *results, const struct truth *t, int step)
{
    for (int r = 0; r < tp_size(c); r++) {
        struct tp_part p = tp_part_of(c, r);
        double s1[2 * TP_S * TP_H], s2[TP_H * TP_S];
        close_rows("d_w1", results[r].d_w1[step], t->d_w1[step] + p.expert * 2 * TP_F * TP_H, p.experts * 2, TP_F, p.f,
                   p.fs, TP_H);
        close_columns("d_w2", results[r].d_w2[step], t->d_w2[step] + p.expert * TP_H * TP_F, p.experts * TP_H, TP_F,
                      p.f, p.fs);
        if (c->extras) { /* every rank of an expert has the gradient of the whole second bias */
            close_rows("d_b1", results[r].d_b1[step], t->d_b1[step] + p.expert * 2 * TP_F, p.experts * 2, TP_F, p.f,
                       p.fs, 1);
            support_close("d_b2", results[r].d_b2[step], t->d_b2[step] + p.expert * TP_H, p.experts * TP_H,
                          tolerance());
        }
        if (c->shared) {
            whole_of(c, r, &t->d_s1[step][0][0], 2 * TP_S * TP_H, 2 * TP_S * TP_H, s1);
            whole_of(c, r, &t->d_s2[step][0][0], TP_H * TP_S, TP_H * TP_S, s2);
            close_rows("d_shared_w1", results[r].d_s1[step], s1, 2, TP_S, p.s, p.ss, TP_H);
            close_columns("d_shared_w2", results[r].d_s2[step], s2, TP_H, TP_S, p.s, p.ss);
        }
    }
}

/* (iii) y and dx. */
static void check_rows(const struct tp_case *c, const struct tp_result *results, const struct truth *t, int run)
{
    float sum[TP_T * TP_H];
    for (int set = 0; set < tp_sets(c); set++) {
        sum_over_tp(c, set, results, offsetof(struct tp_result, y[run]), TP_T * TP_H, sum);
        support_close("y", sum, t->y[run][set], TP_T * TP_H, tolerance());
        sum_over_tp(c, set, results, offsetof(struct tp_result, dx[run]), TP_T * TP_H, sum);
        support_close("dx", sum, t->dx[run][set], TP_T * TP_H, tolerance());
    }
}

/* (i) the same on all tp ranks in every bit, (ii) equal to one process. */
static void check_summed(const struct tp_case *c, const struct tp_result *results, const struct truth *t, int step,
                         double times)
{
    double want[TP_SUMMANDS];
    for (int r = 0; r < tp_size(c); r++) {
        assert_memory_equal(results[r].summand[step], results[r / c->tp * c->tp].summand[step],
                            sizeof(results[r].summand[step]));
        whole_of(c, r, &t->summand[step][0][0], TP_SUMMANDS, TP_SUMMANDS, want);
        for (int i = 0; i < TP_SUMMANDS; i++) {
            want[i] *= times;
        }
        support_close("d_gate", results[r].summand[step], want, TP_BIAS_AT, tolerance());
        support_close("d_gate_bias", results[r].summand[step] + TP_BIAS_AT, want + TP_BIAS_AT, TP_E, tolerance());
        support_close("d_shared_gate", results[r].summand[step] + TP_SHARED_AT, want + TP_SHARED_AT, TP_H, tolerance());
    }
}

/* (iv) before the sum each rank has a share: they add up, and none is the whole. */
static void check_unsummed(const struct tp_case *c, const struct tp_result *results, const struct truth *t, int step)
{
    double want[TP_SUMMANDS], sum[TP_SUMMANDS];
    float got[TP_SUMMANDS];
    const int64_t at[] = {0, TP_BIAS_AT, TP_SHARED_AT, TP_SUMMANDS};
    for (int first = 0; first < tp_size(c); first += c->tp) {
        whole_of(c, first, &t->summand[step][0][0], TP_SUMMANDS, TP_SUMMANDS, want);
        memset(sum, 0, sizeof(sum));
        for (int r = first; r < first + c->tp; r++) {
            for (int i = 0; i < TP_SUMMANDS; i++) {
                sum[i] += (double)results[r].summand[step][i];
                got[i] = (float)sum[i];
            }
        }
        for (int i = 0; i < 3; i++) {
            bool there = i == 0 || (c->extras && (i == 1 || c->shared));
            int64_t count = at[i + 1] - at[i];
            support_close("sum of the shares", got + at[i], want + at[i], count, tolerance());
            for (int r = first; r < first + c->tp && there; r++) {
                assert_true(off(results[r].summand[step] + at[i], want + at[i], count) > 1e-2);
            }
        }
    }
}

/* (v) after each step the replicas are the same in every bit, and those of one process: what the second step computed,
 * it computed with them. */
static void check_replicas(const struct tp_case *c, const struct tp_result *results, const struct truth *t, int step)
{
    for (int r = 0; r < tp_size(c); r++) {
        assert_memory_equal(results[r].replica[step], results[0].replica[step], sizeof(results[r].replica[step]));
        support_close("a replica", results[r].replica[step], t->replica[step], TP_SUMMANDS, tolerance());
    }
}

/* Where nobody sums, or twice, the second step goes wrong: its outputs are not those of one process. */
static void check_apart(const struct tp_case *c, const struct tp_result *results, const struct truth *t)
{
    float sum[TP_T * TP_H];
    bool parted = c->sums == NOBODY_SUMS;
    for (int r = 0; r < tp_size(c); r++) {
        int same = r / c->tp * c->tp;
        assert_true(r == same || (memcmp(results[r].replica[0], results[same].replica[0],
                                         sizeof(results[r].replica[0])) != 0) == parted);
        assert_true(off(results[r].replica[0], t->replica[0], TP_SUMMANDS) > 1e-3);
    }
    for (int set = 0; set < tp_sets(c); set++) {
        sum_over_tp(c, set, results, offsetof(struct tp_result, y[TP_BATCHES]), TP_T * TP_H, sum);
        assert_true(off(sum, t->y[TP_BATCHES][set], TP_T * TP_H) > 1e-3);
    }
}

/* (vi) what is issued on tp: the shared expert's gathers of SEQUENCE, and in each backward one sum of all summands. */
static void check_calls(const struct tp_case *c, const struct tp_result *results)
{
    int each = c->sums == LAYER_SUMS ? 1 : c->sums == TWICE ? 2 : 0, shared = c->layout == SEQUENCE && c->shared;
    int elements = TP_BIAS_AT + (c->extras ? TP_E : 0) + (c->extras && c->shared ? TP_H : 0);
    for (int r = 0; r < tp_size(c); r++) {
        const struct tp_calls *forward = &results[r].calls[TP_FORWARD], *backward = &results[r].calls[TP_BACKWARD];
        assert_int_equal(forward->reduce, c->sums == NOBODY_SUMS ? TP_RUNS : 0); /* the vote on ROUTER_SUM */
        assert_int_equal(backward->reduce, each * TP_RUNS);
        assert_int_equal(backward->reduced, each * TP_RUNS * elements);
        assert_int_equal(forward->gather, shared * TP_RUNS);
        assert_int_equal(forward->scatter, shared * TP_RUNS);
        assert_int_equal(backward->gather, shared * TP_RUNS);
        assert_int_equal(backward->scatter, shared * TP_RUNS);
        assert_int_equal(forward->other + backward->other, 0);
        const struct tp_obliged *obliged = &results[r].obliged; /* what forward said is what backward issued */
        assert_int_equal(obliged->reduce, backward->reduce);
        assert_int_equal(obliged->reduced, backward->reduced);
        assert_int_equal(obliged->gather, backward->gather);
        assert_int_equal(obliged->scatter, backward->scatter);
    }
}

/* What an observer is told of the gate, in the first microbatch of each step: the same replica on all ranks, and shares
 * that add up to the gradient that is used, where it is summed once. A caller that sums tells of it himself. */
static void check_facts(const struct tp_case *c, const struct tp_result *results)
{
    int told = c->sums == CALLER_SUMS ? 0 : TP_STEPS;
    for (int first = 0; first < tp_size(c); first += c->tp) {
        double shares = 0, size = 0;
        for (int r = first; r < first + c->tp; r++) {
            const struct tp_facts *f = &results[r].facts;
            assert_int_equal(f->replica, TP_STEPS);
            assert_int_equal(f->part, told);
            assert_int_equal(f->sum, told);
            assert_true(f->checksum == results[first].facts.checksum);
            shares += f->part_sum;
            size += fabs(f->part_sum);
        }
        for (int r = first; r < first + c->tp && told > 0; r++) {
            const struct tp_facts *f = &results[r].facts;
            double want = c->sums == NOBODY_SUMS ? f->part_sum : c->sums == TWICE ? c->tp * shares : shares;
            assert_true(size > 0 && fabs(f->sum_sum - want) <= 1e-4 * size);
        }
    }
}

/* A second declared reduction is refused: it would make the gradient too large by P (#2416 after #1878). */
static void check_declared(const struct tp_case *c, const struct tp_result *results)
{
    for (int r = 0; r < tp_size(c); r++) {
        assert_int_equal(results[r].declared[0], c->sums == LAYER_SUMS || c->sums == TWICE ? MOE_E_STATE : 0);
        assert_int_equal(results[r].declared[1], MOE_E_STATE);
    }
}

static void check(const struct tp_case *c, const struct tp_result *results, const struct truth *t)
{
    bool good = c->sums == LAYER_SUMS || c->sums == CALLER_SUMS;
    for (int step = 0; step < (good ? TP_STEPS : 1); step++) {
        if (c->sums == LAYER_SUMS || c->sums == TWICE) {
            check_summed(c, results, t, step, c->sums == TWICE ? c->tp : 1);
        } else {
            check_unsummed(c, results, t, step);
        }
        check_parts(c, results, t, step);
        for (int run = step * TP_BATCHES; run < (step + 1) * TP_BATCHES; run++) {
            check_rows(c, results, t, run);
        }
        if (good) {
            check_replicas(c, results, t, step);
        }
    }
    if (!good) {
        check_apart(c, results, t);
    }
    check_calls(c, results);
    check_facts(c, results);
    check_declared(c, results);
}

static void try_layout(enum tp_layout layout, int tp, int ep)
{
    static struct tp_result results[TP_RANKS];
    static struct tp_model model;
    static struct truth truth;
    for (int bits = 0; bits < 16; bits++) {
        for (enum tp_sums sums = LAYER_SUMS; sums <= CALLER_SUMS; sums++) {
            struct tp_case c = {.layout = layout,
                                .tp = tp,
                                .ep = ep,
                                .score = bits & 1 ? MOE_SCORE_SIGMOID : MOE_SCORE_SOFTMAX,
                                .before = bits & 2,
                                .shared = bits & 4,
                                .extras = bits & 8,
                                .sums = sums};
            tp_make_model(&model, 77 + (uint64_t)bits);
            find_truth(&c, &model, &truth);
            tp_run(&c, &model, results);
            check(&c, results, &truth);
        }
    }
}

static void test_tp2ep_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(TP2EP, 2, 1);
    try_layout(TP2EP, 4, 1);
}

static void test_dp2ep_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(DP2EP, 2, 2);
}

static void test_tp_alone_sums_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(TP_ONLY, 2, 1);
    try_layout(TP_ONLY, 4, 1);
}

static void test_sequence_parallel_ranks_sum_the_routers_gradient_once(void **state)
{
    (void)state;
    try_layout(SEQUENCE, 2, 1);
    try_layout(SEQUENCE, 4, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tp2ep_sums_the_routers_gradient_once),
        cmocka_unit_test(test_dp2ep_sums_the_routers_gradient_once),
        cmocka_unit_test(test_tp_alone_sums_the_routers_gradient_once),
        cmocka_unit_test(test_sequence_parallel_ranks_sum_the_routers_gradient_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
