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
 * The maps lie in memory of the group (moe_ep_buffer_reserve), and the memory for the probabilities is taken before
 * they are exchanged: so a rank without memory can take part and say so in its tail, and no rank gathers probabilities
 * before it has read all tails. Waiting behind both gathers would keep the host back less, and leave that rank's peers
 * in the second one.
 *
 * The tail of the routing map is one int64: the remedies that the rank proposes. A separate collective for the remedies
 * was rejected: the sequence must stay AllGather, AllGather, AllGather, ReduceScatter. PAD is in force in the same
 * forward: a rank without rows sees from the map that it has none, and makes itself a zero row. UNEVEN and BOUND change
 * the size of the exchange that agrees on them, so they are in force in the next forward. For the first forward they
 * are agreed on when the dispatcher is made, in the exchange of the group's buffer (ep_buffer.h), of which this kind
 * wants no byte.
 */
#include "moe_core/dispatch/dispatcher_kind.h"

#include "moe_core/include/moe/ep_buffer.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/permute.h"
#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

#include <stdlib.h>

struct allgather {
    moe_uneven_group_t *uneven;
    moe_ep_buffer_t *first;        /* the group's exchange, for the first agreement; NULL: `uneven` is configured */
    uint32_t agreed;               /* the remedies agreed in the previous exchange, then those of this one */
    int64_t most, padded;          /* the largest possible T_pad; T_pad of this forward */
    int64_t numbers;               /* int64 numbers per rank in `counts` */
    bool no_unpermute, no_input;   /* legacy behaviours of this forward */
    int64_t *counts, *host_counts; /* device and pinned [ranks, numbers]: dispatcher_flex's layout of a routing map */
    int64_t *host_mask, *host_m;   /* pinned [1], [local] */
    moe_row_map_t *map;            /* from the tokens of all ranks to this rank's rows */
    moe_ep_buffer_t *area;         /* holds the routing maps: [T_pad E + 8] of this rank, and of every rank */
    /* What the pool gives, while it holds something. */
    float *own_probs, *all_probs; /* [T_pad,E] of this rank, and of every rank; their gradients in backward */
    uint8_t *map_here;            /* [T_pad x ranks, local]: the columns of this rank's experts */
    float *probs_here, *d_probs_here;
    void *own_rows, *all_rows;  /* [T_pad,H] of this rank, and of every rank, in the rows' type */
    float *own_wide, *all_wide; /* own_rows and all_rows in float32, where that is not the rows' type */
};

static struct allgather *state_of(const moe_dispatcher_t *d)
{
    return d->state;
}

static bool alone(const moe_dispatcher_t *d)
{
    return d->tp_ep.size == 1;
}

static size_t row_bytes(const moe_dispatcher_t *d)
{
    return (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
}

static struct moe_collective over(const moe_dispatcher_t *d, const char *what, ncclDataType_t type, int64_t width)
{
    return moe_dispatcher_collective(d, &d->tp_ep, what, type, width);
}

static struct moe_movement movement(const moe_dispatcher_t *d)
{
    return (struct moe_movement){.kind = MOE_MAP_MASK,
                                 .type = d->config.type,
                                 .tokens = state_of(d)->padded * d->tp_ep.size,
                                 .rows = d->plan.received,
                                 .hidden = d->config.hidden};
}

/* memory: of routing maps, and of probabilities for T_pad tokens of `ranks` ranks, of `width` numbers each */

static size_t map_bytes(const moe_dispatcher_t *d, int64_t padded)
{
    return (size_t)(padded * d->config.experts) + sizeof(int64_t);
}

/* This rank's map lies in front of those of all ranks, both aligned. */
static uint8_t *own_map(const moe_dispatcher_t *d)
{
    return moe_ep_buffer_exchange(state_of(d)->area);
}

static uint8_t *all_maps(const moe_dispatcher_t *d)
{
    return own_map(d) + moe_ep_buffer_aligned(map_bytes(d, state_of(d)->padded));
}

static size_t area_bytes(const moe_dispatcher_t *d)
{
    size_t bytes = map_bytes(d, state_of(d)->most);
    return moe_ep_buffer_aligned(bytes) + (size_t)d->tp_ep.size * bytes;
}

static int take_probs(moe_dispatcher_t *d, int64_t ranks, int64_t width, float **at)
{
    return moe_dispatcher_take(d, (size_t)(ranks * state_of(d)->padded * width) * sizeof(float), at);
}

/* Rows of T_pad tokens of `ranks` ranks, in the rows' type or in float32. */
static int take_rows(moe_dispatcher_t *d, int64_t ranks, void **at)
{
    return moe_dispatcher_take_rows(d, ranks * state_of(d)->padded, at);
}

static int take_wide(moe_dispatcher_t *d, int64_t ranks, float **at)
{
    return take_probs(d, ranks, d->config.hidden, at);
}

static int take_d_probs(moe_dispatcher_t *d)
{
    return moe_dispatcher_take(d, (size_t)(d->routing.tokens * d->config.experts) * sizeof(float), &d->d_probs);
}

/* prepare: who chose this rank's experts */

/* Gathers the routing maps and the words of all ranks, and waits for what they say. A rank that declines chose
 * nothing. */
static int gather_map(moe_dispatcher_t *d, uint32_t word)
{
    struct allgather *s = state_of(d);
    bool declines = (word & MOE_DECLINED) != 0;
    int64_t experts = d->config.experts, bytes = s->padded * experts;
    const struct moe_ops *ops = moe_device_ops(d->device);
    struct moe_flex_layout own = {.blocks = 1,
                                  .tokens = d->routing.tokens,
                                  .padded = s->padded,
                                  .experts = experts,
                                  .ranks = d->tp_ep.size,
                                  .etp = d->etp.size,
                                  .k = d->config.topk,
                                  .mask_row = experts,
                                  .index = d->routing.index,
                                  .map = own_map(d),
                                  .counts = s->counts};
    struct moe_flex_layout all = own;
    all.blocks = d->tp_ep.size;
    all.tokens = s->padded;
    all.mask_stride = bytes + (int64_t)sizeof(int64_t);
    all.index = NULL;
    all.map = NULL;
    all.mask = all_maps(d);
    *s->host_mask = word;
    int rc = declines ? ops->zero(d->device, own_map(d), (size_t)bytes) : ops->flex_layout(d->device, &own);
    rc = rc ? rc : moe_device_copy(d->device, own_map(d) + bytes, s->host_mask, sizeof(*s->host_mask));
    struct moe_collective c = over(d, "AllGather of the routing map", ncclUint8, all.mask_stride);
    rc = rc ? rc : moe_all_gather(&c, own_map(d), all_maps(d), 1);
    rc = rc ? rc : ops->flex_layout(d->device, &all);
    rc = rc ? rc
            : moe_device_copy(d->device, s->host_counts, s->counts,
                              (size_t)(d->tp_ep.size * s->numbers) * sizeof(int64_t));
    return rc ? rc : moe_device_sync(d->device);
}

/* Takes what the gather of probabilities needs: before the exchange in which a rank can still say that it has none. */
static int take_gathered(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    int rc = take_probs(d, d->tp_ep.size, d->config.experts, &s->all_probs);
    return rc || s->padded == d->routing.tokens ? rc : take_probs(d, 1, d->config.experts, &s->own_probs);
}

static int gather_probs(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    const float *own = d->routing.probs;
    int rc = 0;
    if (s->padded > d->routing.tokens) {
        rc = moe_uneven_pad(d->device, own, d->routing.tokens, s->padded, (size_t)d->config.experts * sizeof(float),
                            s->own_probs);
        own = s->own_probs;
    }
    struct moe_collective c = over(d, "AllGather of probabilities", ncclFloat32, d->config.experts);
    return rc ? rc : moe_all_gather(&c, own, s->all_probs, s->padded);
}

/* Copies `rows` lines of `width` bytes that lie `from_pitch` and `to_pitch` bytes apart. */
static int copy_columns(moe_dispatcher_t *d, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                        size_t width, int64_t rows)
{
    if (rows == 0) {
        return 0;
    }
    cudaError_t err = cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, (size_t)rows, cudaMemcpyDefault,
                                        moe_device_stream(d->device));
    return err == cudaSuccess ? 0 : DISPATCHER_FAIL(d, MOE_E_DEVICE, "cudaMemcpy2DAsync: %s", cudaGetErrorString(err));
}

/* Takes the columns of this rank's experts out of all ranks' maps and probabilities. */
static int slice_here(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    size_t experts = (size_t)d->config.experts, local = (size_t)d->local, first = (size_t)d->ep.rank * local;
    size_t stride = (size_t)s->padded * experts + sizeof(int64_t);
    int rc = moe_dispatcher_take(d, (size_t)(s->padded * d->tp_ep.size) * local, &s->map_here);
    rc = rc ? rc : take_probs(d, d->tp_ep.size, d->local, &s->probs_here);
    for (size_t r = 0; r < (size_t)d->tp_ep.size && rc == 0; r++) {
        rc = copy_columns(d, s->map_here + r * (size_t)s->padded * local, local, all_maps(d) + r * stride + first,
                          experts, local, s->padded);
    }
    return rc ? rc
              : copy_columns(d, s->probs_here, local * sizeof(float), s->all_probs + first, experts * sizeof(float),
                             local * sizeof(float), s->padded * d->tp_ep.size);
}

static void derive_plan(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    struct moe_dispatch_plan *plan = &d->plan;
    int64_t align = d->config.row_multiple > 1 ? d->config.row_multiple : 1, rows = 0;
    s->agreed = moe_dispatcher_agreed(d, s->host_counts + s->numbers - 1, s->numbers);
    for (int64_t i = 0; i < d->local; i++) {
        s->host_m[i] = 0;
        for (int64_t r = 0; r < d->tp_ep.size; r++) {
            s->host_m[i] += s->host_counts[r * s->numbers + d->tp_ep.size + d->ep.rank * d->local + i];
        }
        rows += s->host_m[i];
    }
    if (rows == 0 && (s->agreed & MOE_REMEDY_PAD) != 0) {
        plan->padded = s->host_m[0] = 1;
    }
    plan->empty_experts = 0;
    for (int64_t i = 0; i < d->local; i++) {
        plan->empty_experts += s->host_m[i] == 0;
        plan->filler += (align - s->host_m[i] % align) % align;
        s->host_m[i] = (s->host_m[i] + align - 1) / align * align;
        plan->received += s->host_m[i];
    }
    plan->sent = s->padded;
    plan->exact = true;
}

static void decide_legacy(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_legacy *legacy = &d->config.legacy;
    struct allgather *s = state_of(d);
    bool sick = d->plan.received == 0 && (legacy->empty_unpermute || legacy->empty_from_input) &&
                !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
    s->no_unpermute = sick && legacy->empty_unpermute;
    s->no_input = sick && legacy->empty_from_input;
}

/* What precedes the exchange: T_pad. */
static int pad_tokens(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    enum moe_uneven padding = moe_dispatcher_padding(d, s->agreed);
    if (padding == MOE_UNEVEN_NONE) {
        moe_dispatcher_uniform(d, &d->tp_ep, MOE_UNIFORM_TOKENS, d->routing.tokens);
    }
    return moe_dispatcher_pad(d, s->uneven, padding, &s->padded);
}

static void release(moe_dispatcher_t *d);

static void decline(moe_dispatcher_t *d)
{
    if (pad_tokens(d) == 0) {
        (void)gather_map(d, MOE_DECLINED);
    }
}

/* The words of all ranks: where one declined, all stop here, and what was agreed before stays so. */
static int exchange(moe_dispatcher_t *d, uint32_t word)
{
    const struct allgather *s = state_of(d);
    int rc = pad_tokens(d);
    int taken = rc ? rc : take_gathered(d);
    if (rc == 0 && taken == MOE_E_NOMEM) {
        struct moe_failure own;
        moe_failure_keep(&own);
        release(d);
        (void)gather_map(d, MOE_DECLINED);
        moe_failure_restore(&own);
    }
    rc = taken ? taken : gather_map(d, word);
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = moe_dispatcher_declined(d, r, (uint32_t)s->host_counts[(r + 1) * s->numbers - 1]);
    }
    return rc;
}

static int prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed)
{
    struct allgather *s = state_of(d);
    int rc = exchange(d, proposed);
    rc = rc ? rc : gather_probs(d);
    if (rc != 0) {
        return rc;
    }
    derive_plan(d);
    *agreed = s->agreed;
    decide_legacy(d);
    rc = moe_device_copy(d->device, d->m, s->host_m, (size_t)d->local * sizeof(int64_t));
    rc = rc ? rc : slice_here(d);
    moe_dispatcher_give(d, &s->own_probs);
    moe_dispatcher_give(d, &s->all_probs);
    const struct moe_map_source source = {.mask = s->map_here, .counts = d->m};
    rc = rc ? rc : moe_row_map_build_from(s->map, &source, 0, s->padded * d->tp_ep.size, d->plan.received);
    moe_dispatcher_give(d, &s->map_here);
    return rc;
}

/* forward */

/* Gives this rank's rows as the collectives take them: T_pad of them. */
static int padded_rows(moe_dispatcher_t *d, const void *rows, const void **out)
{
    struct allgather *s = state_of(d);
    *out = rows;
    if (s->padded == d->routing.tokens) {
        return 0;
    }
    int rc = take_rows(d, 1, &s->own_rows);
    *out = s->own_rows;
    return rc ? rc : moe_uneven_pad(d->device, rows, d->routing.tokens, s->padded, row_bytes(d), s->own_rows);
}

static int cast(moe_dispatcher_t *d, const void *from, enum moe_dtype from_type, void *to, enum moe_dtype to_type,
                int64_t rows)
{
    struct moe_cast args = {
        .count = rows * d->config.hidden, .from_type = from_type, .to_type = to_type, .from = from, .to = to};
    return moe_device_ops(d->device)->cast(d->device, &args);
}

static int forward(moe_dispatcher_t *d, const void *x)
{
    struct allgather *s = state_of(d);
    const struct moe_movement move = movement(d);
    const void *own = NULL;
    const bool travel = d->config.probs_travel;
    int rc = padded_rows(d, x, &own);
    if (rc == 0 && !alone(d)) {
        struct moe_collective c = over(d, "AllGather of tokens", moe_nccl_type(d->config.type), d->config.hidden);
        rc = take_rows(d, d->tp_ep.size, &s->all_rows);
        rc = rc ? rc : moe_all_gather(&c, own, s->all_rows, s->padded);
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
    struct allgather *s = state_of(d);
    struct moe_collective c = over(d, "ReduceScatter of outputs", ncclFloat32, d->config.hidden);
    int64_t rows = s->padded * d->tp_ep.size;
    if (d->config.type == MOE_F32) {
        int rc = moe_reduce_scatter(&c, s->all_rows, to, s->padded);
        moe_dispatcher_give(d, &s->all_rows);
        return rc;
    }
    int rc = take_wide(d, d->tp_ep.size, &s->all_wide);
    rc = rc ? rc : cast(d, s->all_rows, d->config.type, s->all_wide, MOE_F32, rows);
    moe_dispatcher_give(d, &s->all_rows);
    rc = rc ? rc : take_wide(d, 1, &s->own_wide);
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_wide, s->own_wide, s->padded);
    moe_dispatcher_give(d, &s->all_wide);
    rc = rc ? rc : cast(d, s->own_wide, MOE_F32, to, d->config.type, s->padded);
    moe_dispatcher_give(d, &s->own_wide);
    return rc;
}

/* Hazard H4: this rank enters the ReduceScatter with nothing. */
static int combine_nothing(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    struct moe_collective c = over(d, "ReduceScatter of no outputs", ncclFloat32, d->config.hidden);
    int rc = moe_dispatcher_take_rows(d, 0, &s->all_rows);
    rc = rc ? rc : moe_dispatcher_take_rows(d, 0, &s->own_rows);
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_rows, s->own_rows, 0);
    return rc ? rc
              : DISPATCHER_FAIL(d, MOE_E_SHAPE, "0 rows were unpermuted to 0 rows; the output has %lld tokens",
                                (long long)d->routing.tokens);
}

static int combine(moe_dispatcher_t *d, void *y)
{
    struct allgather *s = state_of(d);
    const struct moe_movement move = movement(d);
    const float *probs = d->config.probs_travel ? NULL : s->probs_here;
    bool trims = s->padded > d->routing.tokens;
    if (s->no_unpermute) {
        return combine_nothing(d);
    }
    int rc = trims ? take_rows(d, 1, &s->own_rows) : 0;
    void *own = trims ? s->own_rows : y;
    rc = rc || alone(d) ? rc : take_rows(d, d->tp_ep.size, &s->all_rows);
    rc = rc ? rc : moe_map_unpermute(s->map, &move, d->expert_out, probs, alone(d) ? own : s->all_rows);
    if (d->config.probs_travel) { /* merged probabilities need it for their gradient */
        moe_dispatcher_give(d, &d->expert_out);
    }
    rc = rc || alone(d) ? rc : scatter_outputs(d, own);
    rc = rc || !trims ? rc : moe_uneven_trim(d->device, own, d->routing.tokens, row_bytes(d), y);
    moe_dispatcher_give(d, &s->own_rows);
    return rc;
}

/* backward */

/* Gathers dY of every rank's tokens into all_rows; float32 on the wire. */
static int gather_outputs(moe_dispatcher_t *d, const void *own)
{
    struct allgather *s = state_of(d);
    struct moe_collective c = over(d, "AllGather of gradients of outputs", ncclFloat32, d->config.hidden);
    if (d->config.type == MOE_F32) {
        int rc = take_rows(d, d->tp_ep.size, &s->all_rows);
        return rc ? rc : moe_all_gather(&c, own, s->all_rows, s->padded);
    }
    int rc = take_wide(d, 1, &s->own_wide);
    rc = rc ? rc : cast(d, own, d->config.type, s->own_wide, MOE_F32, s->padded);
    rc = rc ? rc : take_wide(d, d->tp_ep.size, &s->all_wide);
    rc = rc ? rc : moe_all_gather(&c, s->own_wide, s->all_wide, s->padded);
    moe_dispatcher_give(d, &s->own_wide);
    rc = rc ? rc : take_rows(d, d->tp_ep.size, &s->all_rows);
    rc = rc ? rc : cast(d, s->all_wide, MOE_F32, s->all_rows, d->config.type, s->padded * d->tp_ep.size);
    moe_dispatcher_give(d, &s->all_wide);
    return rc;
}

static int back_combine(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = state_of(d);
    const struct moe_movement move = movement(d);
    bool merged = !d->config.probs_travel;
    const void *own = NULL;
    if (!d->backward) {
        return DISPATCHER_FAIL(d, MOE_E_STATE, "backward before begin_backward");
    }
    int rc = padded_rows(d, d->dy, &own);
    if (rc == 0 && !alone(d)) {
        rc = gather_outputs(d, own);
        moe_dispatcher_give(d, &s->own_rows);
        own = s->all_rows;
    }
    rc = rc || !merged ? rc : take_probs(d, d->tp_ep.size, d->local, &s->d_probs_here);
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
    struct allgather *s = state_of(d);
    const struct moe_movement move = movement(d);
    const bool travel = d->config.probs_travel;
    bool straight = alone(d) && s->padded == d->routing.tokens;
    int rc = travel ? take_probs(d, d->tp_ep.size, d->local, &s->d_probs_here) : 0;
    rc = rc || straight ? rc : take_rows(d, d->tp_ep.size, &s->all_rows);
    char *all = s->all_rows;
    if (rc == 0 && !straight) {
        rc = moe_device_ops(d->device)->zero(d->device, all, (size_t)move.tokens * row_bytes(d));
        rc = rc ? rc
                : moe_device_copy(d->device, all + (size_t)(d->tp_ep.rank * s->padded) * row_bytes(d), d->dx,
                                  (size_t)d->routing.tokens * row_bytes(d));
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
    struct allgather *s = state_of(d);
    bool trims = s->padded > d->routing.tokens;
    struct moe_collective c =
        over(d, "ReduceScatter of gradients of tokens", moe_nccl_type(d->config.type), d->config.hidden);
    if (alone(d) && !trims) {
        return 0;
    }
    int rc = trims ? take_rows(d, 1, &s->own_rows) : 0;
    rc = rc ? rc : moe_reduce_scatter(&c, s->all_rows, trims ? s->own_rows : d->dx, s->padded);
    rc = rc || !trims ? rc : moe_uneven_trim(d->device, s->own_rows, d->routing.tokens, row_bytes(d), d->dx);
    moe_dispatcher_give(d, &s->own_rows);
    moe_dispatcher_give(d, &s->all_rows);
    return rc;
}

static int back_probs(void *arg)
{
    moe_dispatcher_t *d = arg;
    struct allgather *s = state_of(d);
    size_t experts = (size_t)d->config.experts, local = (size_t)d->local;
    int64_t rows = s->padded * d->tp_ep.size;
    bool trims = s->padded > d->routing.tokens;
    struct moe_collective c = over(d, "ReduceScatter of gradients of probabilities", ncclFloat32, d->config.experts);
    int rc = take_probs(d, d->tp_ep.size, d->config.experts, &s->all_probs);
    rc = rc ? rc : take_d_probs(d);
    rc = rc || !trims ? rc : take_probs(d, 1, d->config.experts, &s->own_probs);
    float *own = trims ? s->own_probs : d->d_probs;
    rc = rc ? rc : moe_device_ops(d->device)->zero(d->device, s->all_probs, (size_t)rows * experts * sizeof(float));
    rc = rc ? rc
            : copy_columns(d, s->all_probs + (size_t)d->ep.rank * local, experts * sizeof(float), s->d_probs_here,
                           local * sizeof(float), local * sizeof(float), rows);
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
    int rc = take_d_probs(d);
    return rc ? rc
              : moe_device_ops(d->device)->zero(d->device, d->d_probs,
                                                (size_t)(d->routing.tokens * d->config.experts) * sizeof(float));
}

static int push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan)
{
    const struct allgather *s = state_of(d);
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

static int push_combine(moe_dispatcher_t *d, struct moe_plan *plan)
{
    return d->detached ? 0
                       : moe_dispatcher_push(d, plan, "combine", back_combine, MOE_OBLIGE_ALLGATHER, &d->tp_ep,
                                             (uint64_t)(state_of(d)->padded * d->config.hidden));
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
    return rc ? rc : moe_ep_buffer_reserve(d->device, d->tp_ep.comm, area_bytes(d), &s->area);
}

static int create(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    int rc = refuse_options(d);
    if (rc != 0) {
        return rc;
    }
    struct allgather *s = d->state = calloc(1, sizeof(*s));
    if (s == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "an AllGather dispatcher");
    }
    const struct moe_uneven_config uneven = {.max_tokens = c->max_tokens,
                                             .token_bound = c->token_bound,
                                             .comm = d->tp_ep.comm,
                                             .world_rank = c->world_rank,
                                             .layer = c->layer};
    /* What fails from here on is told in the exchange below: peers that meet there must not wait for this rank. */
    rc = c->failed ? c->failed : moe_uneven_new(d->device, &uneven, &s->uneven);
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

static void release(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    void *buffers[] = {&s->own_probs, &s->all_probs, &s->map_here, &s->probs_here, &s->d_probs_here,
                       &s->own_rows,  &s->all_rows,  &s->own_wide, &s->all_wide};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_dispatcher_give(d, buffers[i]);
    }
    moe_row_map_drop(s->map);
}

static void destroy(moe_dispatcher_t *d)
{
    struct allgather *s = state_of(d);
    if (s == NULL) {
        return;
    }
    release(d);
    moe_row_map_destroy(&s->map);
    moe_device_free(d->device, &s->counts);
    moe_uneven_destroy(&s->uneven);
    moe_ep_buffer_release(&s->first);
    moe_ep_buffer_release(&s->area);
    cudaFreeHost(s->host_counts);
    cudaFreeHost(s->host_mask);
    cudaFreeHost(s->host_m);
    free(s);
    d->state = NULL;
}

const struct moe_dispatcher_kind_ops moe_dispatcher_allgather = {.name = "allgather",
                                                                 .create = create,
                                                                 .destroy = destroy,
                                                                 .release = release,
                                                                 .prepare = prepare,
                                                                 .decline = decline,
                                                                 .forward = forward,
                                                                 .combine = combine,
                                                                 .push_dispatch = push_dispatch,
                                                                 .push_combine = push_combine};
