/*
 * dispatcher_alltoall_steps.c: the way from tokens to experts as a list of steps, each with the buffer that the step
 * fills.
 *
 * The same functions walk the list up and down for rows, outputs and both gradients. Four hand-written sequences were
 * rejected: they differ in nothing but their end buffers. A step takes the buffer that it fills from the pool and gives
 * back the one that it has read, so that at most two of them, and what backward needs, are held at a time.
 */
#include "moe_core/dispatch/dispatcher_alltoall.h"

#include "moe_core/include/moe/ops.h"

static struct moe_alltoall *state_of(const moe_dispatcher_t *d)
{
    return d->state;
}

/* The place of the buffer that holds the rows after a step. */
static void **place(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    struct moe_alltoall *s = state_of(d);
    void **const ends[] = {&d->rows, &d->expert_out, &d->d_expert_out, &d->d_rows};
    enum moe_alltoall_step taken = s->taken[step];
    if (taken == s->last) {
        return ends[cargo];
    }
    return taken == AT_SOURCE && cargo == EXPERT_OUT ? &s->returned : &s->scratch[taken];
}

static float **probs_place(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step taken = s->taken[step];
    return taken != s->last ? &s->scratch_probs[taken] : cargo == ROWS ? &d->row_probs : &d->d_row_probs;
}

void *moe_alltoall_at(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    return *place(d, cargo, step);
}

float *moe_alltoall_probs_at(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    return d->config.probs_travel ? *probs_place(d, cargo, step) : NULL;
}

bool moe_alltoall_takes(const moe_dispatcher_t *d, enum moe_alltoall_step step)
{
    return state_of(d)->taken[step] == step;
}

/* memory */

static int64_t rows_after(const moe_dispatcher_t *d, enum moe_alltoall_step step)
{
    const struct moe_alltoall *s = state_of(d);
    switch (s->taken[step]) {
    case AT_SOURCE:
        return d->plan.sent;
    case AT_EP:
        return s->ep_rows;
    case AT_PADDED:
        return d->plan.received;
    default:
        return s->unpadded;
    }
}

/* Takes the buffer that a step fills. */
static int take(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    return moe_dispatcher_take_rows(d, rows_after(d, step), place(d, cargo, step));
}

static int take_probs(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    return moe_dispatcher_take(d, (size_t)rows_after(d, step) * sizeof(float), probs_place(d, cargo, step));
}

/* Gives back the buffer that a step has read. */
static void give(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    moe_dispatcher_give(d, place(d, cargo, step));
}

static void give_probs(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step step)
{
    moe_dispatcher_give(d, probs_place(d, cargo, step));
}

/* steps */

static struct moe_collective rows_over(const moe_dispatcher_t *d, const struct moe_group *group, const char *what)
{
    return moe_dispatcher_collective(d, group, what, moe_nccl_type(d->config.type), d->config.hidden);
}

static struct moe_collective probs_over(const moe_dispatcher_t *d, const struct moe_group *group, const char *what)
{
    return moe_dispatcher_collective(d, group, what, ncclFloat32, 1);
}

/* Moves rows over ep, up to the experts' rank or down to the tokens', or over etp. */
int moe_alltoall_over_ep(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what)
{
    const struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step from = down ? AT_EP : AT_SOURCE, to = down ? AT_SOURCE : AT_EP;
    struct moe_collective c = rows_over(d, &d->ep, what);
    int rc = moe_alltoall_takes(d, AT_EP) ? take(d, cargo, to) : 0;
    rc = rc ? rc
            : moe_all_to_all_v(&c, moe_alltoall_at(d, cargo, from), down ? s->recv_rows : s->send_rows,
                               moe_alltoall_at(d, cargo, to), down ? s->send_rows : s->recv_rows);
    if (moe_alltoall_takes(d, AT_EP)) {
        give(d, cargo, from);
    }
    return rc;
}

static int rows_over_etp(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what)
{
    enum moe_alltoall_step from = down ? AT_ETP : AT_EP, to = down ? AT_EP : AT_ETP;
    struct moe_collective c = rows_over(d, &d->etp, what);
    int rc = moe_alltoall_takes(d, AT_ETP) ? take(d, cargo, to) : 0;
    if (rc == 0) {
        const void *rows = moe_alltoall_at(d, cargo, from);
        rc = down ? moe_reduce_scatter_v(&c, rows, moe_alltoall_at(d, cargo, to), state_of(d)->etp_rows)
                  : moe_all_gather_v(&c, rows, moe_alltoall_at(d, cargo, to), state_of(d)->etp_rows);
    }
    if (moe_alltoall_takes(d, AT_ETP)) {
        give(d, cargo, from);
    }
    return rc;
}

int moe_alltoall_gather_up(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, const char *what)
{
    return rows_over_etp(d, cargo, false, what);
}

int moe_alltoall_scatter_down(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, const char *what)
{
    return rows_over_etp(d, cargo, true, what);
}

/* Moves probabilities, or down their gradients, over ep or over etp. */
int moe_alltoall_probs_over_ep(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what)
{
    const struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step from = down ? AT_EP : AT_SOURCE, to = down ? AT_SOURCE : AT_EP;
    struct moe_collective c = probs_over(d, &d->ep, what);
    int rc = moe_alltoall_takes(d, AT_EP) ? take_probs(d, cargo, to) : 0;
    rc = rc ? rc
            : moe_all_to_all_v(&c, moe_alltoall_probs_at(d, cargo, from), down ? s->recv_rows : s->send_rows,
                               moe_alltoall_probs_at(d, cargo, to), down ? s->send_rows : s->recv_rows);
    if (moe_alltoall_takes(d, AT_EP)) {
        give_probs(d, cargo, from);
    }
    return rc;
}

int moe_alltoall_probs_over_etp(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, const char *what)
{
    const struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step from = down ? AT_ETP : AT_EP, to = down ? AT_EP : AT_ETP;
    struct moe_collective c = probs_over(d, &d->etp, what);
    float *probs = NULL;
    int rc = moe_alltoall_takes(d, AT_ETP) ? take_probs(d, cargo, to) : 0;
    if (rc == 0) {
        probs = moe_alltoall_probs_at(d, cargo, from);
        rc = down ? moe_reduce_scatter_v(&c, probs, moe_alltoall_probs_at(d, cargo, to), s->etp_rows)
                  : moe_all_gather_v(&c, probs, moe_alltoall_probs_at(d, cargo, to), s->etp_rows);
    }
    if (moe_alltoall_takes(d, AT_ETP)) {
        give_probs(d, cargo, from);
    }
    return rc;
}

/* Takes what `sort` or `pad` fills; probabilities beside the rows where they go along. */
int moe_alltoall_take(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step to, bool probs)
{
    int rc = take(d, cargo, to);
    return rc || !probs ? rc : take_probs(d, cargo, to);
}

void moe_alltoall_give(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, enum moe_alltoall_step from, bool probs)
{
    give(d, cargo, from);
    if (probs) {
        give_probs(d, cargo, from);
    }
}

static int sort(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, bool probs)
{
    const struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step from = down ? AT_SORTED : AT_ETP, to = down ? AT_ETP : AT_SORTED;
    if (!moe_alltoall_takes(d, AT_SORTED)) {
        return 0;
    }
    int rc = moe_alltoall_take(d, cargo, to, probs);
    if (rc != 0) {
        return rc;
    }
    struct moe_chunk_sort args = {.rows = s->unpadded,
                                  .width = d->config.hidden,
                                  .type = d->config.type,
                                  .inverse = down,
                                  .map = s->chunks,
                                  .from = moe_alltoall_at(d, cargo, from),
                                  .to = moe_alltoall_at(d, cargo, to),
                                  .probs_from = probs ? moe_alltoall_probs_at(d, cargo, from) : NULL,
                                  .probs_to = probs ? moe_alltoall_probs_at(d, cargo, to) : NULL};
    rc = moe_device_ops(d->device)->chunk_sort(d->device, &args);
    moe_alltoall_give(d, cargo, from, probs);
    return rc;
}

static int pad(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool down, bool probs)
{
    const struct moe_alltoall *s = state_of(d);
    enum moe_alltoall_step from = down ? AT_PADDED : AT_SORTED, to = down ? AT_SORTED : AT_PADDED;
    if (!moe_alltoall_takes(d, AT_PADDED)) {
        return 0;
    }
    int rc = moe_alltoall_take(d, cargo, to, probs);
    if (rc != 0) {
        return rc;
    }
    struct moe_pad_rows args = {.type = d->config.type,
                                .trim = down,
                                .rows = s->unpadded,
                                .padded = d->plan.received,
                                .width = d->config.hidden,
                                .groups = d->local,
                                .m = s->m,
                                .align = d->config.row_multiple,
                                .padded_m = down ? NULL : d->m,
                                .from = moe_alltoall_at(d, cargo, from),
                                .to = moe_alltoall_at(d, cargo, to)};
    rc = moe_device_ops(d->device)->pad_rows(d->device, &args);
    if (rc == 0 && probs) {
        args.type = MOE_F32;
        args.width = 1;
        args.padded_m = NULL;
        args.from = moe_alltoall_probs_at(d, cargo, from);
        args.to = moe_alltoall_probs_at(d, cargo, to);
        rc = moe_device_ops(d->device)->pad_rows(d->device, &args);
    }
    moe_alltoall_give(d, cargo, from, probs);
    return rc;
}

/* Moves rows from AT_ETP to the experts' order; the function below moves them back. */
int moe_alltoall_order_up(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool probs)
{
    int rc = sort(d, cargo, false, probs);
    return rc ? rc : pad(d, cargo, false, probs);
}

int moe_alltoall_order_down(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo, bool probs)
{
    int rc = pad(d, cargo, true, probs);
    return rc ? rc : sort(d, cargo, true, probs);
}
