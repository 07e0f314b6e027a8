/*
 * dispatch_expert.c: the linear expert, forward and backward.
 */
#include "tests/moe_core/dispatch_inside.h"

#include "moe_core/include/moe/ops.h"

int dr_widen(struct dr_work *w, const void *from, int64_t count, float *to)
{
    struct moe_cast cast = {.count = count, .from_type = w->type, .to_type = MOE_F32, .from = from, .to = w->wide};
    int rc = moe_device_ops(w->device)->cast(w->device, &cast);
    rc = rc ? rc : moe_device_sync(w->device);
    memcpy(to, w->wide, (size_t)count * sizeof(*to));
    return rc;
}

int dr_narrow(struct dr_work *w, const float *from, int64_t count, void *to)
{
    struct moe_cast cast = {.count = count, .from_type = MOE_F32, .to_type = w->type, .from = w->wide, .to = to};
    memcpy(w->wide, from, (size_t)count * sizeof(*from));
    int rc = moe_device_ops(w->device)->cast(w->device, &cast);
    return rc ? rc : moe_device_sync(w->device);
}

static bool own_column(const struct dr_work *w, int64_t h)
{
    return h % w->r->c->etp == w->r->etp_rank;
}

static const double *weight_of(const struct dr_work *w, int64_t i)
{
    int64_t expert = w->r->ep_rank * dr_local(w->r->c) + i;
    return w->data->w + expert * DR_HIDDEN * DR_HIDDEN;
}

/* The local expert of each row; -1: slack. */
static void owners(struct dr_work *w, int64_t rows, int *owner)
{
    const int64_t *m = moe_dispatcher_m(w->dispatcher);
    int64_t row = 0;
    for (int i = 0; i < dr_local(w->r->c); i++) {
        w->r->result->m[i] = m[i];
        for (int64_t j = 0; j < m[i] && row < rows; j++) {
            owner[row++] = i;
        }
    }
    while (row < rows) {
        owner[row++] = -1;
    }
}

/* NaN in rows that the expert is about to write: what it leaves out is seen. */
static void poison(const struct dr_work *w, void *to, int64_t rows)
{
    memset(to, 0xff, (size_t)(rows * DR_HIDDEN) * moe_dtype_bytes(w->type));
}

int dr_expert_forward(struct dr_work *w)
{
    int64_t rows = moe_dispatcher_plan(w->dispatcher)->received;
    int owner[DR_ROWS];
    const float *probs = moe_dispatcher_row_probs(w->dispatcher);
    int rc = dr_widen(w, moe_dispatcher_rows(w->dispatcher), rows * DR_HIDDEN, w->x);
    if (rc != 0) {
        return rc;
    }
    poison(w, moe_dispatcher_expert_out(w->dispatcher), rows);
    owners(w, rows, owner);
    for (int64_t r = 0; r < rows; r++) {
        w->probs[r] = probs != NULL ? probs[r] : 1;
        for (int64_t o = 0; o < DR_HIDDEN; o++) {
            double sum = 0;
            for (int64_t h = 0; h < DR_HIDDEN && owner[r] >= 0; h++) {
                sum +=
                    own_column(w, h) ? weight_of(w, owner[r])[o * DR_HIDDEN + h] * (double)w->x[r * DR_HIDDEN + h] : 0;
            }
            w->row[r * DR_HIDDEN + o] = (float)(sum * (double)w->probs[r]);
        }
    }
    return dr_narrow(w, w->row, rows * DR_HIDDEN, moe_dispatcher_expert_out(w->dispatcher));
}

int dr_expert_backward(void *arg)
{
    struct dr_work *w = arg;
    int64_t rows = moe_dispatcher_plan(w->dispatcher)->received;
    int owner[DR_ROWS];
    static _Thread_local float dy[DR_ROWS * DR_HIDDEN];
    float *d_probs = moe_dispatcher_d_row_probs(w->dispatcher);
    int rc = dr_widen(w, moe_dispatcher_d_expert_out(w->dispatcher), rows * DR_HIDDEN, dy);
    if (rc != 0) {
        return rc;
    }
    poison(w, moe_dispatcher_d_rows(w->dispatcher), rows);
    owners(w, rows, owner);
    memset(w->row, 0, sizeof(w->row));
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t o = 0; o < DR_HIDDEN && owner[r] >= 0; o++) {
            double g = (double)dy[r * DR_HIDDEN + o], p = (double)w->probs[r];
            for (int64_t h = 0; h < DR_HIDDEN; h++) {
                if (own_column(w, h)) {
                    double x = (double)w->x[r * DR_HIDDEN + h], weight = weight_of(w, owner[r])[o * DR_HIDDEN + h];
                    w->row[r * DR_HIDDEN + h] += (float)(g * p * weight);
                    w->r->result->d_w[(owner[r] * DR_HIDDEN + o) * DR_HIDDEN + h] += g * p * x;
                    dot += g * weight * x;
                }
            }
        }
        if (d_probs != NULL) {
            d_probs[r] = (float)dot;
        }
    }
    return dr_narrow(w, w->row, rows * DR_HIDDEN, moe_dispatcher_d_rows(w->dispatcher));
}
