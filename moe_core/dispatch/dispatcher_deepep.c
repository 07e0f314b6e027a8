/*
 * dispatcher_deepep.c: the Flex dispatcher in DeepEP's style: counts first, then rows; any number of tokens on any
 * rank.
 *
 * Collectives on tp_ep, none with one rank:
 *
 *   stage               forward                                 backward
 *   making the buffer   AllGather int64 [4], when the group's   none
 *                       buffer is made or grows
 *   prepare (notify)    AllGather int64 [ranks + E + 1];        none: the saved handle
 *                       the host waits
 *   forward (dispatch)  all-to-all-v of rows [*,H]              3rd: all-to-all-v of gradients of rows, splits swapped
 *                       all-to-all-v of choices, int32 [*,2k]   2nd: all-to-all-v of gradients of probabilities,
 *                                                               float32 [*,k]
 *   combine             all-to-all-v of rows, splits swapped    1st: all-to-all-v of rows
 *
 * Each rank gathers from every rank the tokens to each rank, the tokens of each expert, and the remedies proposed; the
 * bitwise AND of the proposals is in force in the same layer-forward. DeepEP sends each peer only the numbers for that
 * peer. Here all ranks get all numbers: so every rank knows which ranks are empty, remedies need no message of their
 * own, and a bad count is the same error on every rank.
 *
 * Source: Megatron-LM fused_a2a.py and token_dispatcher.py (_DeepepManager), over DeepEP's get_dispatch_layout,
 * dispatch and combine.
 */
#include "moe_core/dispatch/dispatcher_flex.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"

#include <stdlib.h>

struct deepep {
    struct moe_flex flex; /* first: dispatcher_flex.h */
    int64_t *own;         /* device [numbers] */
    int64_t *all;         /* device [ranks, numbers] */
    int64_t *host;        /* pinned [ranks, numbers] */
};

static int open_state(moe_dispatcher_t *d)
{
    struct deepep *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "a dispatcher");
    }
    d->state = s;
    if (d->config.row_budget > 0 || d->config.budget_factor > 0.0f || d->config.legacy.local_capacity) {
        return DISPATCHER_FAIL(
            d, MOE_E_UNSUPPORTED,
            "row_budget, budget_factor or local_capacity: this dispatcher always knows the number of rows");
    }
    int64_t k = (int64_t)d->config.topk * d->etp.size, ranks = d->tp_ep.size;
    return moe_flex_open(d, &s->flex, d->config.max_tokens, k < ranks ? k : ranks);
}

static int create(moe_dispatcher_t *d)
{
    struct deepep *s = d->state;
    int64_t ranks = d->tp_ep.size;
    int rc = moe_flex_create(d, &s->flex, 0);
    d->max_rows = moe_flex_max_rows(d, d->config.max_tokens);
    size_t bytes = (size_t)s->flex.numbers * sizeof(*s->own);
    rc = rc ? rc : moe_device_alloc(d->device, bytes, (void **)&s->own);
    rc = rc ? rc : moe_device_alloc(d->device, (size_t)ranks * bytes, (void **)&s->all);
    if (rc == 0 && cudaMallocHost((void **)&s->host, (size_t)ranks * bytes) != cudaSuccess) {
        rc = DISPATCHER_FAIL(d, MOE_E_NOMEM, "pinned host memory");
    }
    return rc;
}

static void destroy(moe_dispatcher_t *d)
{
    struct deepep *s = d->state;
    if (s != NULL) {
        moe_flex_destroy(d, &s->flex);
        moe_device_free(d->device, &s->own);
        moe_device_free(d->device, &s->all);
        cudaFreeHost(s->host);
        free(s);
        d->state = NULL;
    }
}

/* Gathers the numbers of all ranks; `own` holds this rank's, but not what it proposes. */
static int gather(moe_dispatcher_t *d, struct deepep *s, uint32_t proposed)
{
    struct moe_flex *f = &s->flex;
    struct moe_fill_counts mask = {.count = 1, .value = proposed, .to = s->own + f->numbers - 1};
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, "AllGather of token counts", ncclInt64, f->numbers);
    size_t bytes = (size_t)(d->tp_ep.size * f->numbers) * sizeof(*s->all);
    int rc = moe_device_ops(d->device)->fill_counts(d->device, &mask);
    rc = rc ? rc : moe_all_gather(&c, s->own, s->all, 1);
    rc = rc ? rc : moe_device_copy(d->device, s->host, s->all, bytes);
    return rc ? rc : moe_device_sync(d->device);
}

static void decline(moe_dispatcher_t *d)
{
    struct deepep *s = d->state;
    moe_device_ops(d->device)->zero(d->device, s->own, (size_t)s->flex.numbers * sizeof(*s->own));
    gather(d, s, MOE_DECLINED);
}

static int prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed)
{
    struct deepep *s = d->state;
    struct moe_flex *f = &s->flex;
    f->tokens = f->padded = d->routing.tokens;
    int rc = moe_flex_lay_out(d, f, NULL, 0, s->own);
    if (rc == MOE_E_NOMEM) { /* what was taken goes back, and the peers, who wait in the exchange, are told */
        if (!d->standing) {
            moe_flex_release(d);
        }
        decline(d);
        return rc;
    }
    rc = rc ? rc : gather(d, s, proposed);
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = moe_dispatcher_declined(d, r, (uint32_t)s->host[(r + 1) * f->numbers - 1]);
    }
    if (rc != 0) {
        return rc;
    }
    *agreed = moe_flex_agreed(d, f, s->host);
    rc = moe_flex_derive(d, f, s->host, (*agreed & MOE_REMEDY_PAD) != 0);
    return rc ? rc : moe_flex_build_out(d, f);
}

const struct moe_dispatcher_kind_ops moe_dispatcher_deepep = {
    .name = "deepep",
    .open = open_state,
    .create = create,
    .destroy = destroy,
    .release = moe_flex_release,
    .prepare = prepare,
    .decline = decline,
    .forward = moe_flex_forward,
    .combine = moe_flex_combine,
    .push_dispatch = moe_flex_push_dispatch,
    .push_combine = moe_flex_push_combine,
};
