/*
 * flex_experts.c: the experts, element by element, on the host: a wait of the test's own, which is why waits are
 * counted only inside the dispatcher's calls.
 */
#include "tests/moe_core/flex_inside.h"

/* Runs fn on every element of every row of every local expert. */
static void each_row(struct flex_rank *r, void (*fn)(struct flex_rank *r, int64_t local, int64_t row, int64_t i))
{
    const int64_t *m = moe_dispatcher_m(r->d);
    int64_t row = 0;
    for (int64_t l = 0; l < FLEX_L; l++) {
        for (int64_t n = 0; n < m[l]; n++, row++) {
            for (int h = 0; h < FLEX_H; h++) {
                fn(r, l, row, row * FLEX_H + h);
            }
        }
    }
}

static int64_t number_of(const struct flex_rank *r, int64_t local)
{
    return r->rank / flex_etp(r->c) * FLEX_L + local;
}

static float prob_of(const struct flex_rank *r, int64_t row)
{
    const float *probs = moe_dispatcher_row_probs(r->d);
    return probs != NULL ? probs[row] : 1.0f;
}

static void forward_element(struct flex_rank *r, int64_t local, int64_t row, int64_t i)
{
    double x = (double)flex_get(r->c, moe_dispatcher_rows(r->d), i), part = flex_share(r->c, r->rank % flex_etp(r->c));
    int64_t e = number_of(r, local);
    flex_put(r->c, moe_dispatcher_expert_out(r->d), i,
             (float)((double)prob_of(r, row) * part * (flex_a(e) * x + flex_b(e) * x * x)));
}

static void backward_element(struct flex_rank *r, int64_t local, int64_t row, int64_t i)
{
    double x = (double)flex_get(r->c, moe_dispatcher_rows(r->d), i), part = flex_share(r->c, r->rank % flex_etp(r->c)),
           p = (double)prob_of(r, row), up = (double)flex_get(r->c, moe_dispatcher_d_expert_out(r->d), i);
    int64_t e = number_of(r, local);
    float *d_probs = moe_dispatcher_d_row_probs(r->d);
    flex_put(r->c, moe_dispatcher_d_rows(r->d), i, (float)(up * p * part * (flex_a(e) + 2 * flex_b(e) * x)));
    if (d_probs != NULL) {
        float before = i % FLEX_H == 0 ? 0.0f : d_probs[row];
        d_probs[row] = before + (float)(up * part * (flex_a(e) * x + flex_b(e) * x * x));
    }
    r->out->d_a[local] += up * p * part * x;
    r->out->d_b[local] += up * p * part * x * x;
}

/* The rows that the dispatcher's buffers have memory for. */
static int64_t room(const struct flex_rank *r)
{
    return moe_dispatcher_standing(r->d) ? moe_dispatcher_max_rows(r->d) : moe_dispatcher_plan(r->d)->received;
}

void flex_poison(const struct flex_rank *r, void *rows)
{
    for (int64_t i = 0; i < room(r) * FLEX_H; i++) {
        flex_put(r->c, rows, i, NAN);
    }
}

void flex_count_stray(struct flex_rank *r)
{
    const void *rows = moe_dispatcher_rows(r->d);
    r->out->canaries = r->out->stray = 0;
    for (int64_t row = moe_dispatcher_plan(r->d)->received; row < room(r); row++) {
        bool whole = true;
        for (int h = 0; h < FLEX_H; h++) {
            whole = whole && isnan(flex_get(r->c, rows, row * FLEX_H + h));
        }
        r->out->canaries++;
        r->out->stray += !whole;
    }
}

void flex_experts_forward(struct flex_rank *r)
{
    flex_poison(r, moe_dispatcher_expert_out(r->d));
    each_row(r, forward_element);
}

int flex_experts_backward(void *arg)
{
    struct flex_rank *r = arg;
    int rc = moe_device_sync(r->device);
    if (rc == 0) {
        flex_poison(r, moe_dispatcher_d_rows(r->d));
        each_row(r, backward_element);
    }
    return rc;
}
