/*
 * dispatcher_allgather_back.c: the AllGather dispatcher's backward: the nodes of the plan, each a collective of forward
 * the other way round. Going through the forward's functions with a direction was rejected: the present contents of dx
 * and zeros for other ranks' columns belong to backward alone.
 */
#include "moe_core/dispatch/dispatcher_allgather.h"

#include "moe_core/include/moe/ops.h"

/* Gathers dY of every rank's tokens into all_rows; float32 on the wire. */
static int gather_outputs(moe_dispatcher_t *d, const void *own)
{
    struct allgather *s = moe_allgather_of(d);
    struct moe_collective c = moe_allgather_over(d, "AllGather of gradients of outputs", ncclFloat32, d->config.hidden);
    if (d->config.type == MOE_F32) {
        int rc = moe_allgather_take_rows(d, d->tp_ep.size, &s->all_rows);
        return rc ? rc : moe_all_gather(&c, own, s->all_rows, s->padded);
    }
    int rc = moe_allgather_take_wide(d, 1, &s->own_wide);
    rc = rc ? rc : moe_allgather_cast(d, own, d->config.type, s->own_wide, MOE_F32, s->padded);
    rc = rc ? rc : moe_allgather_take_wide(d, d->tp_ep.size, &s->all_wide);
    rc = rc ? rc : moe_all_gather(&c, s->own_wide, s->all_wide, s->padded);
    moe_dispatcher_give(d, &s->own_wide);
    rc = rc ? rc : moe_allgather_take_rows(d, d->tp_ep.size, &s->all_rows);
    rc = rc ? rc : moe_allgather_cast(d, s->all_wide, MOE_F32, s->all_rows, d->config.type, s->padded * d->tp_ep.size);
    moe_dispatcher_give(d, &s->all_wide);
    return rc;
}

static int back_combine(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = moe_allgather_of(d);
    const struct moe_movement move = moe_allgather_movement(d);
    bool merged = !d->config.probs_travel;
    const void *own = NULL;
    if (!d->backward) {
        return DISPATCHER_FAIL(d, MOE_E_STATE, "backward before begin_backward");
    }
    int rc = moe_allgather_padded(d, d->dy, &own);
    if (rc == 0 && !moe_allgather_alone(d)) {
        rc = gather_outputs(d, own);
        moe_dispatcher_give(d, &s->own_rows);
        own = s->all_rows;
    }
    rc = rc || !merged ? rc : moe_allgather_take_probs(d, d->tp_ep.size, d->local, &s->d_probs_here);
    rc = rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->d_expert_out);
    rc = rc ? rc
            : moe_map_unpermute_backward(s->map, &move, own, merged ? d->expert_out : NULL,
                                         merged ? s->probs_here : NULL, d->d_expert_out,
                                         merged ? s->d_probs_here : NULL);
    moe_dispatcher_give(d, &s->own_rows);
    moe_dispatcher_give(d, &s->all_rows);
    moe_dispatcher_give(d, &s->probs_here);
    moe_dispatcher_give(d, &d->expert_out);
    return rc ? rc : moe_dispatcher_take_received(d, &d->d_rows, &d->d_row_probs);
}

/* The present contents of dx go into this rank's part of the sum, so that the ReduceScatter itself adds to them. */
static int back_permute(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = moe_allgather_of(d);
    const struct moe_movement move = moe_allgather_movement(d);
    const bool travel = d->config.probs_travel;
    bool straight = moe_allgather_alone(d) && s->padded == d->routing.tokens;
    int rc = travel ? moe_allgather_take_probs(d, d->tp_ep.size, d->local, &s->d_probs_here) : 0;
    rc = rc || straight ? rc : moe_allgather_take_rows(d, d->tp_ep.size, &s->all_rows);
    char *all = s->all_rows;
    if (rc == 0 && !straight) {
        rc = moe_device_ops(d->device)->zero(d->device, all, (size_t)move.tokens * moe_allgather_row_bytes(d));
        rc = rc ? rc
                : moe_device_copy(d->device, all + (size_t)(d->tp_ep.rank * s->padded) * moe_allgather_row_bytes(d),
                                  d->dx, (size_t)d->routing.tokens * moe_allgather_row_bytes(d));
    }
    rc = rc ? rc
            : moe_map_permute_backward(s->map, &move, d->d_rows, travel ? d->d_row_probs : NULL, NULL, 1.0f,
                                       straight ? d->dx : all, travel ? s->d_probs_here : NULL);
    moe_dispatcher_give(d, &d->d_rows);
    moe_dispatcher_give(d, &d->d_row_probs);
    moe_row_map_drop(s->map);
    return rc;
}

static int back_tokens(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = moe_allgather_of(d);
    bool trims = s->padded > d->routing.tokens;
    struct moe_collective c =
        moe_allgather_over(d, "ReduceScatter of gradients of tokens", moe_nccl_type(d->config.type), d->config.hidden);
    if (moe_allgather_alone(d) && !trims) {
        return 0;
    }
    int rc = trims ? moe_allgather_take_rows(d, 1, &s->own_rows) : 0;
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_rows, trims ? s->own_rows : d->dx, s->padded);
    rc = rc || !trims ? rc
                      : moe_uneven_trim(d->device, s->own_rows, d->routing.tokens, moe_allgather_row_bytes(d), d->dx);
    moe_dispatcher_give(d, &s->own_rows);
    moe_dispatcher_give(d, &s->all_rows);
    return rc;
}

static int back_probs(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = moe_allgather_of(d);
    size_t experts = (size_t)d->config.experts, local = (size_t)d->local;
    int64_t rows = s->padded * d->tp_ep.size;
    bool trims = s->padded > d->routing.tokens;
    struct moe_collective c =
        moe_allgather_over(d, "ReduceScatter of gradients of probabilities", ncclFloat32, d->config.experts);
    int rc = moe_allgather_take_probs(d, d->tp_ep.size, d->config.experts, &s->all_probs);
    rc = rc ? rc : moe_allgather_take_d_probs(d);
    rc = rc || !trims ? rc : moe_allgather_take_probs(d, 1, d->config.experts, &s->own_probs);
    float *own = trims ? s->own_probs : d->d_probs;
    rc = rc ? rc : moe_device_ops(d->device)->zero(d->device, s->all_probs, (size_t)rows * experts * sizeof(float));
    rc = rc ? rc
            : moe_allgather_columns(d, s->all_probs + (size_t)d->ep.rank * local, experts * sizeof(float),
                                    s->d_probs_here, local * sizeof(float), local * sizeof(float), rows);
    moe_dispatcher_give(d, &s->d_probs_here);
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_probs, own, s->padded);
    moe_dispatcher_give(d, &s->all_probs);
    rc = rc || !trims ? rc : moe_uneven_trim(d->device, own, d->routing.tokens, experts * sizeof(float), d->d_probs);
    moe_dispatcher_give(d, &s->own_probs);
    return rc;
}

/* Stands in the plan for the gradients of a forward whose gradients do not come back. */
static int back_nothing(void *arg)
{
    moe_dispatcher_t *d = arg;
    int rc = moe_allgather_take_d_probs(d);
    return rc ? rc
              : moe_device_ops(d->device)->zero(d->device, d->d_probs,
                                                (size_t)(d->routing.tokens * d->config.experts) * sizeof(float));
}

int moe_allgather_push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan)
{
    const struct allgather *s = moe_allgather_of(d);
    if (d->detached || s->no_input) {
        return moe_dispatcher_push(d, plan, "no gradient", back_nothing, MOE_OBLIGE_NONE, NULL, 0);
    }
    int rc = moe_dispatcher_push(d, plan, "gather probs", back_probs, MOE_OBLIGE_REDUCESCATTER, &d->tp_ep,
                                 (uint64_t)(s->padded * d->config.experts));
    rc = rc ? rc
            : moe_dispatcher_push(d, plan, "gather tokens", back_tokens, MOE_OBLIGE_REDUCESCATTER, &d->tp_ep,
                                  (uint64_t)(s->padded * d->config.hidden));
    return rc ? rc : moe_dispatcher_push(d, plan, "permute", back_permute, MOE_OBLIGE_NONE, NULL, 0);
}

int moe_allgather_push_combine(moe_dispatcher_t *d, struct moe_plan *plan)
{
    return d->detached ? 0
                       : moe_dispatcher_push(d, plan, "combine", back_combine, MOE_OBLIGE_ALLGATHER, &d->tp_ep,
                                             (uint64_t)(moe_allgather_of(d)->padded * d->config.hidden));
}
