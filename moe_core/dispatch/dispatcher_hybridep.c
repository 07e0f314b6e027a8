/*
 * dispatcher_hybridep.c: the Flex dispatcher in HybridEP's style: every rank's routing map first, and with a row
 * budget no wait for this forward's numbers.
 *
 * Collectives on tp_ep, none with one rank:
 *
 *   stage                     forward                                 backward
 *   making the buffer         AllGather int64 [4], when the group's   none
 *                             buffer is made or grows
 *   prepare, uneven MAX       AllReduce MAX int64 [1], once per       none
 *                             microbatch; the host waits
 *   prepare (metadata)        AllGather bytes [T_pad * E8 + 8]        none: the saved handle
 *   forward                   all-to-all-v of rows [*,H]              3rd: all-to-all-v of gradients of rows, splits
 *   (dispatch_with_permute)                                           swapped
 *                             all-to-all-v of choices, int32 [*,2k]   2nd: all-to-all-v of gradients of probabilities,
 *                                                                     float32 [*,k]
 *   combine                   all-to-all-v of rows, splits swapped    1st: all-to-all-v of rows
 *   (combine_with_unpermute)
 *   end of a step, with a     AllReduce MAX int64 [1]                 none
 *   budget                    (moe_flex_replay)
 *
 * The metadata are the routing map as bytes, E8 = E rounded up to 8 for each token, then the remedies proposed as one
 * int64. All ranks must have the same T_pad: without MAX or BOUND, different numbers of tokens make an AllGather of
 * different sizes (hazard H7, Megatron-LM #4816).
 *
 * No rank decides by itself what is sent. T_pad is a maximum of all ranks, or a bound that all have; whether a remedy
 * pads was agreed in an exchange before. With a budget each peer gets T_pad rows. Without one there are as many as the
 * maps say, which all ranks read, and no map has a padding token: what a rank pads behind the maps is memory of its own
 * (`pad` and `words` of dispatcher_flex.h), and T_pad need not be cut to what ranks have, as in allgather.
 *
 * Without a budget (exact) the host waits once, for the counts that the device derives from the maps, and splits are as
 * many rows as there are. With a budget nothing waits in this forward (but for what was said before): each rank sends
 * each peer T_pad rows, used or not, and counts stay on the device. Choices beyond the budget have no row; the choices
 * of the last local experts lose their rows first, and among those the choices of the last source ranks and tokens. The
 * device sums what was dropped. A graph can capture the budget form with BOUND or with equal T.
 *
 * The metadata lie in memory of the group without a budget (moe_ep_buffer_reserve), in the dispatcher's own with one.
 * So a rank that has no memory for the rest can take part in their exchange and say so.
 *
 * Remedies, and what ranks must give alike: dispatcher_hybridep_said.c.
 *
 * Source: Megatron-LM fused_a2a.py and token_dispatcher.py (_HybridEPManager), over DeepEP's branch hybrid-ep.
 */
#include "moe_core/dispatch/dispatcher_hybridep.h"

#include "moe_core/include/moe/flex.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/uneven.h"

#include <limits.h>
#include <stdlib.h>

int64_t moe_flex_budget(int64_t tokens, int32_t k, float factor, int64_t multiple)
{
    double rows = (double)tokens * (double)k * (double)factor;
    int64_t whole = rows < 9e15 ? (int64_t)rows : INT64_C(9000000000000000);
    return multiple > 1 ? (whole + multiple - 1) / multiple * multiple : whole;
}

/* The rows of the experts' buffer for `tokens` (T_pad) tokens. */
static int64_t budget(const moe_dispatcher_t *d, int64_t tokens)
{
    int64_t multiple = d->config.row_multiple > 1 ? d->config.row_multiple : 1;
    return d->config.row_budget > 0 ? (d->config.row_budget + multiple - 1) / multiple * multiple
                                    : moe_flex_budget(tokens, d->config.topk, d->config.budget_factor, multiple);
}

static size_t map_bytes(const struct hybridep *s, int64_t padded)
{
    return (size_t)(padded * s->map_row) + sizeof(int64_t);
}

/*
 * Makes the memory of the metadata. A graph goes on to use that of a standing dispatcher; otherwise the group's does,
 * which is there whatever memory a rank lacks: it can take part in the exchange, and say so.
 */
static int make_maps(moe_dispatcher_t *d, struct hybridep *s)
{
    size_t map = map_bytes(s, s->flex.most), maps = (size_t)d->tp_ep.size * map;
    if (!d->standing) {
        return moe_ep_buffer_reserve(d->device, d->tp_ep.comm, moe_ep_buffer_aligned(map) + maps, &s->area);
    }
    int rc = moe_dispatcher_take(d, map, &s->map);
    return rc ? rc : moe_dispatcher_take(d, maps, &s->maps);
}

/* Finds the metadata of this rank and of every rank: the group's memory may have moved. */
static void place_maps(moe_dispatcher_t *d, struct hybridep *s)
{
    if (!d->standing) {
        s->map = moe_ep_buffer_exchange(s->area);
        s->maps = s->map + moe_ep_buffer_aligned(map_bytes(s, s->flex.padded));
    }
}

static int allocate(moe_dispatcher_t *d, struct hybridep *s)
{
    size_t ranks = (size_t)d->tp_ep.size, numbers = (size_t)s->flex.numbers, word = sizeof(int64_t);
    int rc = moe_device_alloc(d->device, numbers * word, (void **)&s->own);
    rc = rc ? rc : moe_device_alloc(d->device, ranks * numbers * word, (void **)&s->counts);
    rc = rc ? rc : moe_device_alloc(d->device, word, (void **)&s->dropped);
    rc = rc ? rc : make_maps(d, s);
    if (rc == 0 && cudaMallocHost((void **)&s->host_dropped, word) != cudaSuccess) {
        rc = DISPATCHER_FAIL(d, MOE_E_NOMEM, "pinned host memory");
    }
    for (int i = 0; i < (moe_hybridep_has_budget(d) ? MOE_HYBRIDEP_SAID : 1) && rc == 0; i++) {
        if (cudaMallocHost((void **)&s->said[i].host, ranks * numbers * word) != cudaSuccess) {
            rc = DISPATCHER_FAIL(d, MOE_E_NOMEM, "pinned host memory");
        } else if (cudaEventCreateWithFlags(&s->said[i].read, cudaEventDisableTiming) != cudaSuccess) {
            rc = DISPATCHER_FAIL(d, MOE_E_DEVICE, "an event");
        }
    }
    return rc;
}

static struct moe_uneven_config uneven_config(const moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    return (struct moe_uneven_config){.max_tokens = c->max_tokens,
                                      .token_bound = c->token_bound,
                                      .comm = d->tp_ep.comm,
                                      .world_rank = c->world_rank,
                                      .layer = c->layer};
}

static int open_state(moe_dispatcher_t *d)
{
    struct hybridep *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "a dispatcher");
    }
    d->state = s;
    const struct moe_dispatcher_config *c = &d->config;
    const struct moe_uneven_config uneven = uneven_config(d);
    if (moe_hybridep_has_budget(d) &&
        (c->legacy.empty_returns_early || c->legacy.empty_from_input || c->legacy.empty_unpermute)) {
        return DISPATCHER_FAIL(
            d, MOE_E_UNSUPPORTED,
            "a row budget with legacy ways of a rank without rows: it does not know that it has none");
    }
    if ((!moe_hybridep_has_budget(d) && c->legacy.local_capacity) || (c->row_budget > 0 && c->budget_factor > 0.0f)) {
        return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "%s",
                               moe_hybridep_has_budget(d) ? "a row budget and a factor"
                                                          : "legacy local_capacity without a row budget");
    }
    int64_t most = moe_uneven_bound(&uneven), k = (int64_t)c->topk * d->etp.size, ranks = d->tp_ep.size;
    return moe_flex_open(d, &s->flex, most, moe_hybridep_has_budget(d) || k > ranks ? ranks : k);
}

static int create(moe_dispatcher_t *d)
{
    struct hybridep *s = d->state;
    const struct moe_uneven_config uneven = uneven_config(d);
    const int64_t most = s->flex.most;
    int rc = moe_uneven_new(d->device, &uneven, &s->uneven);
    s->map_row = (d->config.experts + 7) / 8 * 8;
    d->standing = moe_hybridep_has_budget(d);
    s->flex.proposed = moe_dispatcher_proposed_first(d);
    rc = moe_flex_create(d, &s->flex, rc);
    s->agreed = rc ? 0 : moe_ep_buffer_agreed(s->flex.buffer);
    d->max_rows = moe_hybridep_has_budget(d) ? budget(d, most) : moe_flex_max_rows(d, most);
    s->flex.drop = moe_hybridep_has_budget(d);
    return rc ? rc : allocate(d, s);
}

static void release(moe_dispatcher_t *d)
{
    moe_flex_release(d);
}

static void destroy(moe_dispatcher_t *d)
{
    struct hybridep *s = d->state;
    if (s == NULL) {
        return;
    }
    if (d->standing) {
        moe_device_free(d->device, &s->map);
        moe_device_free(d->device, &s->maps);
    }
    moe_ep_buffer_release(&s->area);
    moe_device_free(d->device, &s->own);
    moe_device_free(d->device, &s->counts);
    moe_device_free(d->device, &s->dropped);
    moe_flex_destroy(d, &s->flex);
    moe_uneven_destroy(&s->uneven);
    cudaFreeHost(s->host_dropped);
    for (int i = 0; i < MOE_HYBRIDEP_SAID; i++) {
        cudaFreeHost(s->said[i].host);
        if (s->said[i].read != NULL) {
            cudaEventDestroy(s->said[i].read);
        }
    }
    free(s);
    d->state = NULL;
}

/* Gathers every rank's metadata, derives every rank's counts from them on the device, and sends those to the host. */
static int gather_maps(moe_dispatcher_t *d, struct hybridep *s, int64_t *host, uint32_t word)
{
    struct moe_flex *f = &s->flex;
    int64_t bytes = (int64_t)map_bytes(s, f->padded);
    struct moe_fill_counts mask = {
        .count = 1, .value = moe_dispatcher_word(d, word), .to = (int64_t *)(void *)(s->map + f->padded * s->map_row)};
    struct moe_collective c = moe_dispatcher_collective(d, &d->tp_ep, "AllGather of routing maps", ncclUint8, bytes);
    struct moe_flex_layout layout = {.blocks = d->tp_ep.size,
                                     .tokens = f->padded,
                                     .padded = f->padded,
                                     .experts = d->config.experts,
                                     .ranks = d->tp_ep.size,
                                     .etp = d->etp.size,
                                     .k = d->config.topk,
                                     .mask_row = s->map_row,
                                     .mask_stride = bytes,
                                     .mask = s->maps,
                                     .counts = s->counts};
    int rc = moe_device_ops(d->device)->fill_counts(d->device, &mask);
    rc = rc ? rc : moe_all_gather(&c, s->map, s->maps, 1);
    rc = rc ? rc : moe_device_ops(d->device)->flex_layout(d->device, &layout);
    return rc ? rc : moe_device_copy(d->device, host, s->counts, (size_t)(d->tp_ep.size * f->numbers) * sizeof(*host));
}

/* Sets the splits and rows that the host knows without asking the device. */
static int reserve(moe_dispatcher_t *d, struct hybridep *s, bool capturing)
{
    struct moe_flex *f = &s->flex;
    f->slot = d->config.legacy.local_capacity ? f->tokens : f->padded;
    f->sent = f->came = f->slot * d->tp_ep.size;
    if (d->config.legacy.local_capacity) {
        moe_dispatcher_uniform(d, &d->tp_ep, MOE_UNIFORM_CAPACITY, f->slot);
    }
    for (int p = 0; p < d->tp_ep.size; p++) {
        f->split_sent[p] = f->split_came[p] = f->slot;
    }
    d->plan.received = budget(d, f->slot);
    d->plan.empty_experts = -1;
    if (!capturing && cudaEventRecord(s->said[s->turn].read, moe_device_stream(d->device)) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_DEVICE, "an event");
    }
    s->said[s->turn].pending = !capturing;
    return 0;
}

/* What precedes the exchange: T_pad. */
static int pad_tokens(moe_dispatcher_t *d, struct hybridep *s)
{
    struct moe_flex *f = &s->flex;
    enum moe_uneven padding = moe_dispatcher_padding(d, s->agreed);
    f->tokens = d->routing.tokens;
    if (padding == MOE_UNEVEN_NONE) {
        moe_dispatcher_uniform(d, &d->tp_ep, MOE_UNIFORM_TOKENS, f->tokens);
    }
    int rc = moe_dispatcher_pad(d, s->uneven, padding, &f->padded);
    place_maps(d, s);
    return rc;
}

/* Gathers metadata of no choices, with the word that says why, and waits as its peers do. */
static void say_declined(moe_dispatcher_t *d, struct hybridep *s)
{
    int rc = moe_device_ops(d->device)->zero(d->device, s->map, map_bytes(s, s->flex.padded));
    rc = rc ? rc : gather_maps(d, s, s->said[0].host, MOE_DECLINED);
    (void)(rc ? rc : moe_device_sync(d->device));
}

static void decline(moe_dispatcher_t *d)
{
    if (d->follows != NULL) {
        (void)moe_hybridep_read_followed(d, d->state,
                                         false); /* without a budget: it waits for nothing, and cannot fail */
    }
    if (pad_tokens(d, d->state) == 0) {
        say_declined(d, d->state);
    }
}

/* Writes this rank's metadata. Without a budget a rank that has no memory for it says so in the exchange. */
static int lay_out(moe_dispatcher_t *d, struct hybridep *s)
{
    int rc = moe_flex_lay_out(d, &s->flex, s->map, s->map_row, s->own);
    if (rc == MOE_E_NOMEM && !d->standing) {
        struct moe_failure own;
        moe_failure_keep(&own);
        moe_flex_release(d);
        say_declined(d, s);
        moe_failure_restore(&own);
    }
    return rc;
}

/* Reads the counts of all ranks: what follows from them, and from what they said beside. */
static int read_counts(moe_dispatcher_t *d, struct hybridep *s, uint32_t *agreed)
{
    struct moe_flex *f = &s->flex;
    int rc = moe_device_sync(d->device);
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = moe_dispatcher_declined(d, r, (uint32_t)s->said[0].host[(r + 1) * f->numbers - 1]);
    }
    if (rc != 0) { /* what was agreed before stays so, on all ranks */
        return rc;
    }
    s->agreed = *agreed = moe_flex_agreed(d, f, s->said[0].host);
    /* The map alone is padded. */
    (void)moe_dispatcher_evened(d, s->said[0].host + f->numbers - 1, f->numbers, f->padded);
    return moe_flex_derive(d, f, s->said[0].host, (*agreed & MOE_REMEDY_PAD) != 0);
}

static int prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed)
{
    struct hybridep *s = d->state;
    struct moe_flex *f = &s->flex;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(moe_device_stream(d->device), &status);
    bool capturing = status == cudaStreamCaptureStatusActive;
    /*
     * With a budget, the exchange carries `proposed` to the next forward, and the proposal of the first forward must
     * arrive there.
     */
    bool again = moe_dispatcher_again(d);
    int rc = again || !moe_hybridep_has_budget(d) ? 0 : moe_hybridep_read_agreed(d, s, capturing);
    rc = rc || d->follows == NULL ? rc : moe_hybridep_read_followed(d, s, capturing);
    rc = rc ? rc : pad_tokens(d, s);
    proposed = capturing ? 0 : again && moe_hybridep_has_budget(d) ? s->proposed : proposed;
    rc = rc ? rc : lay_out(d, s);
    if (rc == 0 && moe_hybridep_has_budget(d) && !capturing &&
        !again) { /* a recomputed forward says what the first one said */
        s->turn = (s->turn + 1) % MOE_HYBRIDEP_TURNS;
    }
    rc = rc ? rc
            : gather_maps(d, s, s->said[capturing && moe_hybridep_has_budget(d) ? MOE_HYBRIDEP_CAPTURED : s->turn].host,
                          proposed);
    if (rc != 0) {
        return rc;
    }
    s->proposed = proposed;
    if (moe_hybridep_has_budget(d)) {
        moe_dispatcher_note_padding(d); /* no host reads the numbers of tokens of this forward */
        *agreed = s->agreed;
        rc = reserve(d, s, capturing);
    } else {
        rc = read_counts(d, s, agreed);
    }
    return rc ? rc : moe_flex_build_out(d, f);
}

static int forward(moe_dispatcher_t *d, const void *x)
{
    struct hybridep *s = d->state;
    struct moe_flex_dropped dropped = {.groups = d->local, .chosen = s->flex.chosen, .m = d->m, .dropped = s->dropped};
    int rc = moe_flex_forward(d, x);
    return rc || !moe_hybridep_has_budget(d) ? rc : moe_device_ops(d->device)->flex_dropped(d->device, &dropped);
}

const struct moe_dispatcher_kind_ops moe_dispatcher_hybridep = {
    .name = "hybridep",
    .open = open_state,
    .create = create,
    .destroy = destroy,
    .release = release,
    .prepare = prepare,
    .decline = decline,
    .forward = forward,
    .combine = moe_flex_combine,
    .push_dispatch = moe_flex_push_dispatch,
    .push_combine = moe_flex_push_combine,
};

int64_t moe_flex_padded(const moe_dispatcher_t *d)
{
    return d->kind == &moe_dispatcher_hybridep ? ((const struct hybridep *)d->state)->flex.padded : d->routing.tokens;
}

const int64_t *moe_flex_dropped_sum(const moe_dispatcher_t *d)
{
    return d->kind == &moe_dispatcher_hybridep && moe_hybridep_has_budget(d)
               ? ((const struct hybridep *)d->state)->dropped
               : NULL;
}

int moe_flex_replay(moe_dispatcher_t *d, bool alone, bool *replay, int64_t *dropped)
{
    if (moe_flex_dropped_sum(d) == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED,
                               "no row budget that could overflow: set row_budget or budget_factor");
    }
    struct hybridep *s = d->state;
    int rc = 0;
    if (!alone && d->tp_ep.size > 1) {
        ncclResult_t nc =
            ncclAllReduce(s->dropped, s->dropped, 1, ncclInt64, ncclMax, d->tp_ep.comm, moe_device_stream(d->device));
        rc = nc == ncclSuccess
                 ? 0
                 : DISPATCHER_FAIL(d, MOE_E_COMM, "AllReduce of the overflow: %s", ncclGetErrorString(nc));
    }
    rc = rc ? rc : moe_device_copy(d->device, s->host_dropped, s->dropped, sizeof(*s->dropped));
    rc = rc ? rc : moe_device_ops(d->device)->zero(d->device, s->dropped, sizeof(*s->dropped));
    rc = rc ? rc : moe_device_sync(d->device);
    *dropped = rc ? 0 : *s->host_dropped;
    *replay = *dropped > 0;
    return rc;
}

int moe_flex_buffer(const moe_dispatcher_t *d, struct moe_ep_buffer_info *info)
{
    if (d->kind != &moe_dispatcher_hybridep && d->kind != &moe_dispatcher_deepep) {
        return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "the buffer of the %s dispatcher", d->kind->name);
    }
    moe_ep_buffer_describe(((const struct moe_flex *)d->state)->buffer, info);
    return 0;
}
