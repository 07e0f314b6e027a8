/*
 * dispatcher_allgather_plan.c: the AllGather dispatcher's exchange: who chose which experts, and the sizes that follow.
 *
 * The maps lie in memory of the group (moe_ep_buffer_reserve), and all that the numbers of tokens alone give the size
 * of, up to the gather of tokens, is taken before they are exchanged: so a rank without memory can take part and say so
 * in its tail, and no rank gathers probabilities or tokens before it has read all tails. Waiting behind both gathers
 * would keep the host back less, and leave that rank's peers in the second one. What depends on how many rows come is
 * taken behind the maps, as in every kind. To take the most that could come before them was rejected: that is as many
 * times the rows as a token has local experts.
 *
 * The tails say how many tokens each rank has. Where a remedy pads, which has to be in force before that is known, the
 * maps alone are padded to the bound; all that is larger is padded by what was told, and not at all where all ranks
 * have the same.
 */
#include "moe_core/dispatch/dispatcher_allgather.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"

static size_t map_bytes(const moe_dispatcher_t *d, int64_t padded)
{
    return (size_t)(padded * d->config.experts) + sizeof(int64_t);
}

/* This rank's map lies in front of those of all ranks, both aligned. */
static uint8_t *own_map(const moe_dispatcher_t *d)
{
    return moe_ep_buffer_exchange(moe_allgather_of(d)->area);
}

static uint8_t *all_maps(const moe_dispatcher_t *d)
{
    return own_map(d) + moe_ep_buffer_aligned(map_bytes(d, moe_allgather_of(d)->mapped));
}

size_t moe_allgather_area_bytes(const moe_dispatcher_t *d)
{
    size_t bytes = map_bytes(d, moe_allgather_of(d)->most);
    return moe_ep_buffer_aligned(bytes) + (size_t)d->tp_ep.size * bytes;
}

/* what all steps use */

void moe_allgather_release(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    void *buffers[] = {&s->own_probs, &s->all_probs, &s->map_here, &s->probs_here, &s->d_probs_here,
                       &s->own_rows,  &s->all_rows,  &s->own_wide, &s->all_wide};
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_dispatcher_give(d, buffers[i]);
    }
    moe_row_map_drop(s->map);
}

int moe_allgather_padded(moe_dispatcher_t *d, const void *rows, const void **out)
{
    struct allgather *s = moe_allgather_of(d);
    *out = rows;
    if (s->padded == d->routing.tokens) {
        return 0;
    }
    int rc = s->own_rows != NULL ? 0 : moe_allgather_take_rows(d, 1, &s->own_rows); /* forward's is there */
    *out = s->own_rows;
    return rc ? rc
              : moe_uneven_pad(d->device, rows, d->routing.tokens, s->padded, moe_allgather_row_bytes(d), s->own_rows);
}

int moe_allgather_cast(moe_dispatcher_t *d, const void *from, enum moe_dtype from_type, void *to,
                       enum moe_dtype to_type, int64_t rows)
{
    struct moe_cast args = {
        .count = rows * d->config.hidden, .from_type = from_type, .to_type = to_type, .from = from, .to = to};
    return moe_device_ops(d->device)->cast(d->device, &args);
}

/* prepare: who chose this rank's experts */

/* Gathers the routing maps and the words of all ranks, and waits for what they say. A rank that declines chose
 * nothing. */
static int gather_map(moe_dispatcher_t *d, uint32_t word)
{
    struct allgather *s = moe_allgather_of(d);
    bool declines = (word & MOE_DECLINED) != 0;
    int64_t experts = d->config.experts, bytes = s->mapped * experts;
    const struct moe_ops *ops = moe_device_ops(d->device);
    struct moe_flex_layout own = {.blocks = 1,
                                  .tokens = d->routing.tokens,
                                  .padded = s->mapped,
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
    all.tokens = s->mapped;
    all.mask_stride = bytes + (int64_t)sizeof(int64_t);
    all.index = NULL;
    all.map = NULL;
    all.mask = all_maps(d);
    *s->host_mask = moe_dispatcher_word(d, word);
    int rc = declines ? ops->zero(d->device, own_map(d), (size_t)bytes) : ops->flex_layout(d->device, &own);
    rc = rc ? rc : moe_device_copy(d->device, own_map(d) + bytes, s->host_mask, sizeof(*s->host_mask));
    struct moe_collective c = moe_allgather_over(d, "AllGather of the routing map", ncclUint8, all.mask_stride);
    rc = rc ? rc : moe_all_gather(&c, own_map(d), all_maps(d), 1);
    rc = rc ? rc : ops->flex_layout(d->device, &all);
    rc = rc ? rc
            : moe_device_copy(d->device, s->host_counts, s->counts,
                              (size_t)(d->tp_ep.size * s->numbers) * sizeof(int64_t));
    return rc ? rc : moe_device_sync(d->device);
}

/*
 * Takes what the gathers need, and the columns of this rank's experts: before the exchange in which a rank can still
 * say that it has none. Where a remedy pads, this is for as many tokens as the maps have.
 */
static int take_ahead(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    const bool pads = s->padded > d->routing.tokens;
    int rc = moe_allgather_take_probs(d, d->tp_ep.size, d->config.experts, &s->all_probs);
    rc = rc || !pads ? rc : moe_allgather_take_probs(d, 1, d->config.experts, &s->own_probs);
    rc = rc ? rc : moe_dispatcher_take(d, (size_t)(s->padded * d->tp_ep.size * d->local), &s->map_here);
    rc = rc ? rc : moe_allgather_take_probs(d, d->tp_ep.size, d->local, &s->probs_here);
    rc = rc || !pads ? rc : moe_allgather_take_rows(d, 1, &s->own_rows);
    return rc || moe_allgather_alone(d) ? rc : moe_allgather_take_rows(d, d->tp_ep.size, &s->all_rows);
}

static int gather_probs(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    const float *own = d->routing.probs;
    int rc = 0;
    if (s->padded > d->routing.tokens) {
        rc = moe_uneven_pad(d->device, own, d->routing.tokens, s->padded, (size_t)d->config.experts * sizeof(float),
                            s->own_probs);
        own = s->own_probs;
    }
    struct moe_collective c = moe_allgather_over(d, "AllGather of probabilities", ncclFloat32, d->config.experts);
    return rc ? rc : moe_all_gather(&c, own, s->all_probs, s->padded);
}

int moe_allgather_columns(moe_dispatcher_t *d, void *to, size_t to_pitch, const void *from, size_t from_pitch,
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
    struct allgather *s = moe_allgather_of(d);
    size_t experts = (size_t)d->config.experts, local = (size_t)d->local, first = (size_t)d->ep.rank * local;
    size_t stride = (size_t)s->mapped * experts + sizeof(int64_t);
    int rc = 0;
    for (size_t r = 0; r < (size_t)d->tp_ep.size && rc == 0; r++) {
        rc = moe_allgather_columns(d, s->map_here + r * (size_t)s->padded * local, local,
                                   all_maps(d) + r * stride + first, experts, local, s->padded);
    }
    return rc ? rc
              : moe_allgather_columns(d, s->probs_here, local * sizeof(float), s->all_probs + first,
                                      experts * sizeof(float), local * sizeof(float), s->padded * d->tp_ep.size);
}

static void derive_plan(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    struct moe_dispatch_plan *plan = &d->plan;
    int64_t align = d->config.row_multiple > 1 ? d->config.row_multiple : 1, rows = 0;
    s->agreed = moe_dispatcher_agreed(d, s->host_counts + s->numbers - 1, s->numbers);
    s->padded = moe_dispatcher_evened(d, s->host_counts + s->numbers - 1, s->numbers, s->mapped);
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
    struct allgather *s = moe_allgather_of(d);
    bool sick = d->plan.received == 0 && (legacy->empty_unpermute || legacy->empty_from_input) &&
                !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
    s->no_unpermute = sick && legacy->empty_unpermute;
    s->no_input = sick && legacy->empty_from_input;
}

/* What precedes the exchange: T_pad. */
static int pad_tokens(moe_dispatcher_t *d)
{
    struct allgather *s = moe_allgather_of(d);
    s->agreed = d->follows != NULL ? moe_allgather_of(d->follows)->agreed : s->agreed;
    enum moe_uneven padding = moe_dispatcher_padding(d, s->agreed);
    if (padding == MOE_UNEVEN_NONE) {
        moe_dispatcher_uniform(d, &d->tp_ep, MOE_UNIFORM_TOKENS, d->routing.tokens);
    }
    int rc = moe_dispatcher_pad(d, s->uneven, padding, &s->padded);
    s->mapped = s->padded;
    return rc;
}

void moe_allgather_decline(moe_dispatcher_t *d)
{
    if (pad_tokens(d) == 0) {
        (void)gather_map(d, MOE_DECLINED);
    }
}

/* The words of all ranks: where one declined, all stop here, and what was agreed before stays so. */
static int exchange(moe_dispatcher_t *d, uint32_t word)
{
    const struct allgather *s = moe_allgather_of(d);
    int rc = pad_tokens(d);
    int taken = rc ? rc : take_ahead(d);
    if (rc == 0 && taken == MOE_E_NOMEM) {
        struct moe_failure own;
        moe_failure_keep(&own);
        moe_allgather_release(d);
        (void)gather_map(d, MOE_DECLINED);
        moe_failure_restore(&own);
    }
    rc = taken ? taken : gather_map(d, word);
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = moe_dispatcher_declined(d, r, (uint32_t)s->host_counts[(r + 1) * s->numbers - 1]);
    }
    return rc;
}

int moe_allgather_prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed)
{
    struct allgather *s = moe_allgather_of(d);
    int rc = exchange(d, proposed);
    if (rc == 0) { /* the numbers of tokens are known from here on */
        derive_plan(d);
        rc = gather_probs(d);
    }
    if (rc != 0) {
        return rc;
    }
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
