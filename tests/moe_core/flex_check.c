/*
 * flex_check.c: what is expected: results that equal the reference or each other, and the calls that were counted.
 */
#include "tests/moe_core/flex_inside.h"

static bool chosen(const struct flex_case *c, const struct flex_model *m, int64_t t, int64_t e)
{
    for (int32_t j = 0; j < c->topk; j++) {
        if (m->index[t * c->topk + j] == e) {
            return true;
        }
    }
    return false;
}

/* Which choices have a row: a rank's experts in order, of each the source ranks in order, of each its tokens, until the
 * budget is used up. */
static void keep_choices(const struct flex_case *c, bool kept[FLEX_RANKS][FLEX_T * FLEX_E])
{
    int64_t experts = flex_experts(c);
    struct flex_model *m = malloc(sizeof(*m));
    for (int64_t e = 0, rows = 0; e < experts; e++) {
        rows = e % FLEX_L == 0 ? 0 : rows;
        for (int r = 0; r < c->ranks; r++) {
            flex_make_model(c, r, m);
            for (int64_t t = 0; t < c->tokens[r]; t++) {
                bool here = chosen(c, m, t, e);
                rows += here;
                kept[r][t * experts + e] = here && (c->row_budget == 0 || rows <= c->row_budget);
            }
        }
    }
    free(m);
}

void flex_check(const struct flex_case *c, const struct flex_result *results, double tolerance)
{
    for (int r = 0; r < c->ranks; r++) {
        assert_int_equal(results[r].stray, 0);
    }
    int64_t experts = flex_experts(c);
    double d_a[FLEX_E] = {0}, d_b[FLEX_E] = {0};
    static bool kept[FLEX_RANKS][FLEX_T * FLEX_E];
    struct flex_model *m = malloc(sizeof(*m));
    keep_choices(c, kept);
    double *y = support_doubles(FLEX_T * FLEX_H), *dx = support_doubles(FLEX_T * FLEX_H),
           *d_probs = support_doubles(FLEX_T * FLEX_E);
    for (int r = 0; r < c->ranks; r++) {
        flex_make_model(c, r, m);
        memset(d_probs, 0, FLEX_T * FLEX_E * sizeof(*d_probs));
        for (int64_t i = 0; i < c->tokens[r] * FLEX_H; i++) {
            int64_t t = i / FLEX_H;
            double x = m->x[i];
            y[i] = 0;
            dx[i] = 0.5;
            for (int64_t e = 0; e < experts; e++) {
                if (kept[r][t * experts + e]) {
                    double p = m->probs[t * experts + e], f = flex_a(e) * x + flex_b(e) * x * x;
                    y[i] += p * f;
                    dx[i] += m->dy[i] * p * (flex_a(e) + 2 * flex_b(e) * x);
                    d_probs[t * experts + e] += m->dy[i] * f;
                    d_a[e] += m->dy[i] * p * x;
                    d_b[e] += m->dy[i] * p * x * x;
                }
            }
        }
        support_close("y", results[r].y, y, c->tokens[r] * FLEX_H, tolerance);
        if (!c->no_backward) {
            support_close("dx", results[r].dx, dx, c->tokens[r] * FLEX_H, tolerance);
            support_close("d_probs", results[r].d_probs, d_probs, c->tokens[r] * experts, tolerance);
        }
    }
    for (int r = 0; r < c->ranks && !c->no_backward; r++) {
        for (int64_t l = 0; l < FLEX_L; l++) {
            int64_t e = r / flex_etp(c) * FLEX_L + l;
            double part = flex_share(c, r % flex_etp(c));
            if (fabs(results[r].d_a[l] - part * d_a[e]) > tolerance * 100 ||
                fabs(results[r].d_b[l] - part * d_b[e]) > tolerance * 100) {
                fail_msg("rank %d, expert %lld: gradients %g %g, want %g %g", r, (long long)e, results[r].d_a[l],
                         results[r].d_b[l], part * d_a[e], part * d_b[e]);
            }
        }
    }
    free(m);
    free(y);
    free(dx);
    free(d_probs);
}

void flex_equal(const struct flex_case *c, const struct flex_result *a, const struct flex_result *b)
{
    for (int r = 0; r < c->ranks; r++) {
        size_t rows = (size_t)(c->tokens[r] * FLEX_H) * sizeof(float);
        assert_memory_equal(a[r].y, b[r].y, rows);
        assert_memory_equal(a[r].dx, b[r].dx, rows);
        assert_memory_equal(a[r].d_probs, b[r].d_probs, (size_t)(c->tokens[r] * flex_experts(c)) * sizeof(float));
        assert_memory_equal(a[r].d_a, b[r].d_a, sizeof(a[r].d_a));
        assert_memory_equal(a[r].d_b, b[r].d_b, sizeof(a[r].d_b));
    }
}

void flex_same_calls(const struct flex_case *c, const struct flex_result *results)
{
    for (int r = 1; r < c->ranks; r++) {
        assert_int_equal(results[r].calls, results[0].calls);
        for (size_t i = 0; i < results[0].calls; i++) {
            if (results[r].call[i].op != results[0].call[i].op ||
                results[r].call[i].bytes != results[0].call[i].bytes) {
                fail_msg("call %zu: rank 0 %c of %zu bytes, rank %d %c of %zu", i, results[0].call[i].op,
                         results[0].call[i].bytes, r, results[r].call[i].op, results[r].call[i].bytes);
            }
        }
    }
}

size_t flex_count(const struct flex_result *r, char op)
{
    size_t n = 0;
    for (size_t i = 0; i < r->calls; i++) {
        n += r->call[i].op == op;
    }
    return n;
}
