/*
 * dispatcher_allgather.c: the AllGather dispatcher (Megatron-LM token_dispatcher.py, MoEAllGatherTokenDispatcher).
 *
 *     forward, all on tp_ep                                   backward, in launch order from the bottom up
 *     [making it, uneven NONE: AllGather int64 [4], when the group's first such layer is made]
 *     [uneven MAX: AllReduce MAX of T, once per microbatch; the host waits]
 *  1  AllGather of the routing map, bytes [T,E] and a tail
 *     the host waits for the tokens of each expert
 *  2  AllGather of probabilities, float32 [T,E]               ReduceScatter of their gradient
 *  3  AllGather of tokens [T,H]                               ReduceScatter of their gradient
 *     permute to this rank's experts                          permute backward
 *     experts                                                 experts
 *     unpermute to [T x ranks, H], cast to float32            unpermute backward
 *  4  ReduceScatter of outputs, float32 [T,H]                 AllGather of their gradient, float32
 *
 * Every rank sees every token and works on those that chose its experts, so all sizes are equal by construction if all
 * ranks have the same T. If ranks have different T, no rank can know before the collective hangs (hazard H7), unless
 * `uneven` says how to pad. Outputs travel in the type of the probabilities, as in the original.
 *
 * The tail of the routing map is one int64: the remedies that the rank proposes. A separate collective for the remedies
 * was rejected: the sequence must stay AllGather, AllGather, AllGather, ReduceScatter. PAD is in force in the same
 * forward: a rank without rows sees from the map that it has none, and makes itself a zero row. UNEVEN and BOUND change
 * the size of the exchange that agrees on them, so they are in force in the next forward, and pad the routing map
 * before anybody knows whether ranks have different T; the map says so, and what follows is padded by that. For the
 * first forward they are agreed on when the dispatcher is made, in the exchange of the group's buffer (ep_buffer.h), of
 * which this kind wants no byte.
 */
#include "moe_core/dispatch/dispatcher_allgather.h"

#include "moe_core/include/moe/ops.h"

#include <stdlib.h>

/* forward */

static int forward(moe_dispatcher_t *d, const void *x)
{
    struct allgather *s = moe_allgather_of(d);
    const struct moe_movement move = moe_allgather_movement(d);
    const void *own = NULL;
    const bool travel = d->config.probs_travel;
    int rc = moe_allgather_padded(d, x, &own);
    if (rc == 0 && !moe_allgather_alone(d)) {
        struct moe_collective c =
            moe_allgather_over(d, "AllGather of tokens", moe_nccl_type(d->config.type), d->config.hidden);
        rc = moe_all_gather(&c, own, s->all_rows, s->padded);
        moe_dispatcher_give(d, &s->own_rows);
        own = s->all_rows;
    }
    rc = rc ? rc : moe_dispatcher_take_received(d, &d->rows, &d->row_probs);
    rc = rc ? rc
            : moe_map_permute(s->map, &move, own, travel ? s->probs_here : NULL, d->rows, travel ? d->row_probs : NULL);
    moe_dispatcher_give(d, &s->own_rows);
    moe_dispatcher_give(d, &s->all_rows);
    if (travel) { /* otherwise unpermute merges with them */
        moe_dispatcher_give(d, &s->probs_here);
    }
    return rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->expert_out);
}

/* Sums all ranks' rows in all_rows, which are given back, into `to` [T_pad,H], this rank's tokens; float32 on the wire.
 */
static int scatter_outputs(moe_dispatcher_t *d, void *to)
{
    struct allgather *s = moe_allgather_of(d);
    struct moe_collective c = moe_allgather_over(d, "ReduceScatter of outputs", ncclFloat32, d->config.hidden);
    int64_t rows = s->padded * d->tp_ep.size;
    if (d->config.type == MOE_F32) {
        int rc = moe_reduce_scatter(&c, s->all_rows, to, s->padded);
        moe_dispatcher_give(d, &s->all_rows);
        return rc;
    }
    int rc = moe_allgather_take_wide(d, d->tp_ep.size, &s->all_wide);
    rc = rc ? rc : moe_allgather_cast(d, s->all_rows, d->config.type, s->all_wide, MOE_F32, rows);
    moe_dispatcher_give(d, &s->all_rows);
    rc = rc ? rc : moe_allgather_take_wide(d, 1, &s->own_wide);
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_wide, s->own_wide, s->padded);
    moe_dispatcher_give(d, &s->all_wide);
    rc = rc ? rc : moe_allgather_cast(d, s->own_wide, MOE_F32, to, d->config.type, s->padded);
    moe_dispatcher_give(d, &s->own_wide);
    return rc;
}

/* Hazard H4: this rank enters the ReduceScatter with nothing. */
static int combine_nothing(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    struct moe_collective c = moe_allgather_over(d, "ReduceScatter of no outputs", ncclFloat32, d->config.hidden);
    int rc = moe_dispatcher_take_rows(d, 0, &s->all_rows);
    rc = rc ? rc : moe_dispatcher_take_rows(d, 0, &s->own_rows);
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_rows, s->own_rows, 0);
    return rc ? rc
              : DISPATCHER_FAIL(d, MOE_E_SHAPE, "0 rows were unpermuted to 0 rows; the output has %lld tokens",
                                (long long)d->routing.tokens);
}

static int combine(moe_dispatcher_t *d, void *y)
{
    struct allgather *s = moe_allgather_of(d);
    const struct moe_movement move = moe_allgather_movement(d);
    const float *probs = d->config.probs_travel ? NULL : s->probs_here;
    bool trims = s->padded > d->routing.tokens;
    if (s->no_unpermute) {
        return combine_nothing(d);
    }
    int rc = trims ? moe_allgather_take_rows(d, 1, &s->own_rows) : 0;
    void *own = trims ? s->own_rows : y;
    rc = rc || moe_allgather_alone(d) ? rc : moe_allgather_take_rows(d, d->tp_ep.size, &s->all_rows);
    rc = rc ? rc : moe_map_unpermute(s->map, &move, d->expert_out, probs, moe_allgather_alone(d) ? own : s->all_rows);
    if (d->config.probs_travel) { /* merged probabilities need it for their gradient */
        moe_dispatcher_give(d, &d->expert_out);
    }
    rc = rc || moe_allgather_alone(d) ? rc : scatter_outputs(d, own);
    rc = rc || !trims ? rc : moe_uneven_trim(d->device, own, d->routing.tokens, moe_allgather_row_bytes(d), y);
    moe_dispatcher_give(d, &s->own_rows);
    return rc;
}

/* life */

static int refuse_options(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    const struct {
        bool set;
        const char *what;
    } refused[] = {
        {c->expert_capacity > 0, "a capacity with padding: its sizes are those of all tokens"},
        {c->row_budget > 0, "a row budget: every row is received"},
        {c->shared != NULL, "a shared expert to overlap with"},
        {c->uneven == MOE_UNEVEN_BOUND && c->token_bound == 0, "padding to a bound without a bound"},
        {c->legacy.empty_returns_early, "the legacy behaviour empty_returns_early"},
        {c->legacy.static_rows, "the legacy behaviour static_rows"},
        {c->legacy.local_capacity, "the legacy behaviour local_capacity"},
        {c->legacy.slack_uninitialised, "the legacy behaviour slack_uninitialised"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (refused[i].set) {
            return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "%s (allgather dispatcher)", refused[i].what);
        }
    }
    return 0;
}

static int allocate(moe_dispatcher_t *d, struct allgather *s)
{
    size_t word = sizeof(int64_t), counts = (size_t)(d->tp_ep.size * s->numbers) * word;
    const struct moe_row_map_config map = {
        .kind = MOE_MAP_MASK, .max_tokens = s->most * d->tp_ep.size, .experts = d->local, .pooled = true};
    if (cudaMallocHost((void **)&s->host_counts, counts) != cudaSuccess ||
        cudaMallocHost((void **)&s->host_mask, word) != cudaSuccess ||
        cudaMallocHost((void **)&s->host_m, (size_t)d->local * word) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "pinned host memory");
    }
    int rc = moe_device_alloc(d->device, counts, (void **)&s->counts);
    rc = rc ? rc : moe_row_map_create(d->device, &map, &s->map);
    return rc ? rc : moe_ep_buffer_reserve(d->device, d->tp_ep.comm, moe_allgather_area_bytes(d), &s->area);
}

static int open_state(moe_dispatcher_t *d)
{
    int rc = refuse_options(d);
    if (rc != 0) {
        return rc;
    }
    struct allgather *s = d->state = calloc(1, sizeof(*s));
    if (s == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "an AllGather dispatcher");
    }
    return d->config.uneven != MOE_UNEVEN_NONE ? 0 : moe_ep_buffer_open(d->device, d->tp_ep.comm, &s->opened);
}

static int create(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    struct allgather *s = moe_allgather_of(d);
    const struct moe_uneven_config uneven = {.max_tokens = c->max_tokens,
                                             .token_bound = c->token_bound,
                                             .comm = d->tp_ep.comm,
                                             .world_rank = c->world_rank,
                                             .layer = c->layer};
    /* What fails from here on is told in the exchange below: peers that meet there must not wait for this rank. */
    int rc = moe_uneven_new(d->device, &uneven, &s->uneven);
    s->most = moe_uneven_bound(&uneven);
    s->numbers = d->tp_ep.size + c->experts + 1;
    int64_t per_token = c->topk < d->local ? c->topk : d->local;
    int64_t align = c->row_multiple > 1 ? c->row_multiple : 1;
    d->max_rows = c->max_tokens * d->tp_ep.size * per_token + 1 + d->local * (align - 1); /* one row more: PAD */
    if (rc == 0 && (d->max_rows > INT32_MAX || s->most * d->tp_ep.size > INT32_MAX)) {
        rc = DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld rows for one rank, %lld tokens of all ranks", (long long)d->max_rows,
                             (long long)(s->most * d->tp_ep.size));
    }
    rc = rc ? rc : allocate(d, s);
    if (c->uneven != MOE_UNEVEN_NONE) {
        return rc;
    }
    const struct moe_ep_buffer_want want = {
        .failed = rc, .proposed = moe_dispatcher_proposed_first(d), .node_ranks = c->node_ranks, .bounds = true};
    rc = moe_ep_buffer_acquire_as(d->device, d->tp_ep.comm, &want, &s->first);
    s->agreed = rc ? 0 : moe_ep_buffer_agreed(s->first);
    return rc;
}

static void destroy(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    if (s == NULL) {
        return;
    }
    moe_allgather_release(d);
    moe_row_map_destroy(&s->map);
    moe_device_free(d->device, &s->counts);
    moe_uneven_destroy(&s->uneven);
    moe_ep_buffer_release(&s->opened);
    moe_ep_buffer_release(&s->first);
    moe_ep_buffer_release(&s->area);
    cudaFreeHost(s->host_counts);
    cudaFreeHost(s->host_mask);
    cudaFreeHost(s->host_m);
    free(s);
    d->state = NULL;
}

const struct moe_dispatcher_kind_ops moe_dispatcher_allgather = {.name = "allgather",
                                                                 .open = open_state,
                                                                 .create = create,
                                                                 .destroy = destroy,
                                                                 .release = moe_allgather_release,
                                                                 .prepare = moe_allgather_prepare,
                                                                 .decline = moe_allgather_decline,
                                                                 .forward = forward,
                                                                 .combine = combine,
                                                                 .push_dispatch = moe_allgather_push_dispatch,
                                                                 .push_combine = moe_allgather_push_combine};
