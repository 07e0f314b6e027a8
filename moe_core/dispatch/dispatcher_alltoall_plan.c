/*
 * dispatcher_alltoall_plan.c: the token-count exchange of the all-to-all dispatcher, and the sizes that follow from it.
 *
 * All ranks of tp_ep exchange all their counts, not only those that concern one another. So every rank sees which ranks
 * are empty, makes the same plan without another message, and finds the same error. One more int64 per rank carries the
 * remedies that it proposes (low half) and its number of rows T k (high half). A separate collective for the remedies
 * was rejected: it would change the sequence of collectives that the remedies are meant to keep equal. The host waits
 * once, for the counts: the sizes of an all-to-all-v are host numbers in the NCCL API; everything derived goes back to
 * the device in one copy.
 *
 * In drop-and-pad (expert_capacity) all sizes are known beforehand: no exchange of numbers, no wait.
 */
#include "moe_core/dispatch/dispatcher_alltoall.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"

#include <stdlib.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void moe_alltoall_limits(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    const struct moe_dispatcher_config *c = &d->config;
    /* With legacy static_rows all slack may belong to one expert. */
    int64_t per_token = c->legacy.static_rows ? c->topk : smaller(c->topk, d->local);
    s->sources = d->ep.size * d->etp.size;
    s->stride = c->experts + 1;
    s->max_sent = c->max_tokens * c->topk + 1; /* one row more: PAD */
    d->max_rows = c->max_tokens * per_token * s->sources + 1;
    if (c->expert_capacity > 0) {
        s->max_sent = c->expert_capacity * c->experts;
        d->max_rows = c->expert_capacity * d->local * s->sources;
    }
    if (c->row_multiple > 1) {
        d->max_rows += d->local * (c->row_multiple - 1);
    }
}

int moe_alltoall_sizes_new(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    size_t word = sizeof(int64_t), stride = (size_t)s->stride, ranks = (size_t)d->tp_ep.size;
    size_t sizes = (size_t)(d->config.experts + s->sources * d->local);
    s->send_rows = calloc((size_t)d->ep.size, word);
    s->recv_rows = calloc((size_t)d->ep.size, word);
    s->etp_rows = calloc((size_t)d->etp.size, word);
    if (s->send_rows == NULL || s->recv_rows == NULL || s->etp_rows == NULL ||
        cudaMallocHost((void **)&s->host_all, ranks * stride * word) != cudaSuccess ||
        cudaMallocHost((void **)&s->host_own, word) != cudaSuccess ||
        cudaMallocHost((void **)&s->host_sizes, sizes * word) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "splits");
    }
    if (d->config.expert_capacity > 0 && cudaEventCreateWithFlags(&s->read, cudaEventDisableTiming) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_DEVICE, "an event");
    }
    int rc = moe_device_alloc(d->device, stride * word, (void **)&s->own);
    rc = rc ? rc : moe_device_alloc(d->device, ranks * stride * word, (void **)&s->all);
    rc = rc ? rc : moe_device_alloc(d->device, sizes * word, (void **)&s->sizes);
    return rc ? rc : moe_device_alloc(d->device, (size_t)d->local * word, (void **)&s->m);
}

void moe_alltoall_sizes_destroy(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    moe_device_free(d->device, &s->own);
    moe_device_free(d->device, &s->all);
    moe_device_free(d->device, &s->sizes);
    moe_device_free(d->device, &s->m);
    cudaFreeHost(s->host_all);
    cudaFreeHost(s->host_own);
    cudaFreeHost(s->host_sizes);
    if (s->read != NULL) {
        cudaEventDestroy(s->read);
    }
    free(s->send_rows);
    free(s->recv_rows);
    free(s->etp_rows);
}

/* the exchange */

/* The line of rank r of tp_ep in the exchange; the two functions below read its T k and its proposal. */
static int64_t *counts_of(struct moe_alltoall *s, int64_t r)
{
    return s->host_all + r * s->stride;
}

static int64_t tokens_rows(struct moe_alltoall *s, int64_t r)
{
    return (int64_t)((uint64_t)counts_of(s, r)[s->stride - 1] >> 32);
}

static uint32_t proposal(struct moe_alltoall *s, int64_t r)
{
    return (uint32_t)(counts_of(s, r)[s->stride - 1] & UINT32_MAX);
}

static int gather(moe_dispatcher_t *d, struct moe_alltoall *s, uint32_t proposed)
{
    size_t word = sizeof(int64_t), experts = (size_t)d->config.experts;
    bool declines = (proposed & MOE_DECLINED) != 0; /* there may be no routing */
    uint64_t rows = declines ? 0 : (uint64_t)(d->routing.tokens * d->config.topk);
    *s->host_own = (int64_t)(rows << 32 | proposed);
    int rc = declines ? moe_device_ops(d->device)->zero(d->device, s->own, experts * word)
                      : moe_device_copy(d->device, s->own, d->routing.counts, experts * word);
    rc = rc ? rc : moe_device_copy(d->device, s->own + experts, s->host_own, word);
    struct moe_collective c =
        moe_dispatcher_collective(d, &d->tp_ep, "AllGather of token counts", ncclInt64, s->stride);
    rc = rc ? rc : moe_all_gather(&c, s->own, s->all, 1);
    rc = rc ? rc : moe_device_copy(d->device, s->host_all, s->all, (size_t)d->tp_ep.size * (size_t)s->stride * word);
    return rc ? rc : moe_device_sync(d->device);
}

static int64_t counted_rows(struct moe_alltoall *s, int64_t r)
{
    int64_t sum = 0;
    for (int64_t e = 0; e < s->stride - 1; e++) {
        sum += counts_of(s, r)[e];
    }
    return sum;
}

/* Checks all ranks' counts, so that every rank finds the same error. */
static int check_counts(moe_dispatcher_t *d, struct moe_alltoall *s, int64_t r)
{
    for (int64_t e = 0; e < d->config.experts; e++) {
        int64_t c = counts_of(s, r)[e];
        if (c < 0 || c > d->config.max_tokens) {
            return DISPATCHER_FAIL(d, MOE_E_COUNT,
                                   "rank %lld of the group has %lld tokens for expert %lld, at most %lld are possible",
                                   (long long)r, (long long)c, (long long)e, (long long)d->config.max_tokens);
        }
    }
    int64_t sum = counted_rows(s, r);
    if (tokens_rows(s, r) >= s->max_sent || sum > tokens_rows(s, r)) {
        return DISPATCHER_FAIL(
            d, MOE_E_SPLIT,
            "the counts of rank %lld of the group add up to %lld rows, its tokens have %lld, made for %lld",
            (long long)r, (long long)sum, (long long)tokens_rows(s, r), (long long)s->max_sent - 1);
    }
    return 0;
}

/*
 * Hazard H12: the buffer of rank r has T k rows, whatever its map says. As in the frameworks, that rank alone finds
 * that the splits do not add up. With slack_uninitialised no rank checks, and the surplus rows are sent as if the last
 * expert had been chosen.
 */
static int static_rows(moe_dispatcher_t *d, struct moe_alltoall *s, int64_t r, uint32_t proposed)
{
    int64_t sum = counted_rows(s, r), missing = tokens_rows(s, r) - sum;
    bool mine = r == d->tp_ep.rank;
    if (!d->config.legacy.static_rows || missing == 0) {
        return 0;
    }
    if (d->config.legacy.slack_uninitialised) {
        bool cured = (proposal(s, r) & MOE_REMEDY_SPLITS) != 0; /* all must know, so only what was proposed counts */
        counts_of(s, r)[d->config.experts - 1] += cured ? 0 : missing;
        d->plan.remedied |= mine && cured ? MOE_REMEDY_SPLITS : 0;
        d->plan.slack += mine && !cured ? missing : 0;
        return 0;
    }
    if (!mine || (proposed & MOE_REMEDY_SPLITS) != 0 || moe_dispatcher_cured(d, MOE_REMEDY_SPLITS)) {
        d->plan.remedied |= mine ? MOE_REMEDY_SPLITS : 0;
        return 0;
    }
    return DISPATCHER_FAIL(d, MOE_E_SPLIT, "the splits add up to %lld rows, the buffer has %lld x %d = %lld",
                           (long long)sum, (long long)d->routing.tokens, d->config.topk, (long long)tokens_rows(s, r));
}

/* The rows for the experts of ep rank p, from all sources. */
static int64_t rows_of_owner(moe_dispatcher_t *d, struct moe_alltoall *s, int64_t p)
{
    int64_t rows = 0;
    for (int64_t r = 0; r < d->tp_ep.size; r++) {
        for (int64_t i = 0; i < d->local; i++) {
            rows += counts_of(s, r)[p * d->local + i];
        }
    }
    return rows;
}

/*
 * Remedy PAD: one zero row for the first expert of each ep rank without rows, sent by the first etp rank of the next ep
 * rank.
 */
static void pad_empty(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    for (int64_t p = 0; p < d->ep.size; p++) {
        if (rows_of_owner(d, s, p) == 0) {
            counts_of(s, (p + 1) % d->ep.size * d->etp.size)[p * d->local]++;
            d->plan.padded += p == d->ep.rank;
        }
    }
}

/* sizes */

/*
 * Writes this rank's counts, and the rows of each source for each local expert in the order in which they lie after the
 * gather over etp.
 */
static void fill_sizes(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    int64_t experts = d->config.experts, *own = s->host_sizes, *chunk = s->host_sizes + experts;
    bool fixed = d->config.expert_capacity > 0;
    for (int64_t e = 0; e < experts; e++) {
        own[e] = fixed ? s->capacity : counts_of(s, d->tp_ep.rank)[e];
    }
    for (int64_t q = 0; q < d->etp.size; q++) {
        for (int64_t p = 0; p < d->ep.size; p++) {
            for (int64_t i = 0; i < d->local; i++) {
                *chunk++ = fixed ? s->capacity : counts_of(s, p * d->etp.size + q)[d->ep.rank * d->local + i];
            }
        }
    }
}

static void derive_splits(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    const int64_t *own = s->host_sizes, *chunk = s->host_sizes + d->config.experts;
    struct moe_dispatch_plan *plan = &d->plan;
    plan->sent = s->ep_rows = s->unpadded = 0;
    for (int64_t p = 0; p < d->ep.size; p++) {
        s->send_rows[p] = s->recv_rows[p] = 0;
        for (int64_t i = 0; i < d->local; i++) {
            s->send_rows[p] += own[p * d->local + i];
        }
        plan->sent += s->send_rows[p];
    }
    for (int64_t q = 0; q < d->etp.size; q++) {
        s->etp_rows[q] = 0;
        for (int64_t p = 0; p < d->ep.size; p++) {
            for (int64_t i = 0; i < d->local; i++) {
                int64_t rows = chunk[(q * d->ep.size + p) * d->local + i];
                s->etp_rows[q] += rows;
                s->recv_rows[p] += q == d->etp.rank ? rows : 0;
            }
        }
        s->unpadded += s->etp_rows[q];
    }
    s->ep_rows = s->etp_rows[d->etp.rank];
    s->map_rows = plan->sent - plan->slack;
}

static void derive_experts(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    const int64_t *chunk = s->host_sizes + d->config.experts;
    int64_t align = d->config.row_multiple > 1 ? d->config.row_multiple : 1;
    d->plan.received = d->plan.filler = d->plan.empty_experts = 0;
    for (int64_t i = 0; i < d->local; i++) {
        int64_t rows = 0;
        for (int64_t v = 0; v < s->sources; v++) {
            rows += chunk[v * d->local + i];
        }
        d->plan.empty_experts += rows == 0;
        d->plan.received += (rows + align - 1) / align * align;
        d->plan.filler += (align - rows % align) % align;
    }
    d->plan.exact = true;
    d->plan.peers = d->ep.size;
    d->plan.split_sent = s->send_rows;
    d->plan.split_received = s->recv_rows;
}

/* Copies to the device what the host derived: counts for the row map, the chunk map, rows per expert. */
static int upload(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    size_t count = (size_t)(d->config.experts + s->sources * d->local);
    s->host_sizes[d->config.experts - 1] -= d->plan.slack; /* the row map knows nothing of slack */
    int rc = moe_device_copy(d->device, s->sizes, s->host_sizes, count * sizeof(int64_t));
    rc = rc ? rc : moe_dispatcher_take(d, moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, s->unpadded), &s->chunks);
    if (rc != 0) {
        return rc;
    }
    struct moe_chunk_map chunks = {.ranks = s->sources,
                                   .experts = s->sources * d->local,
                                   .stride = d->local,
                                   .rows = s->unpadded,
                                   .counts = s->sizes + d->config.experts,
                                   .m = s->taken[AT_PADDED] == AT_PADDED ? s->m : d->m,
                                   .map = s->chunks};
    return moe_device_ops(d->device)->chunk_map(d->device, &chunks);
}

/*
 * Sizes in drop-and-pad, where no exchange is needed. Hazard H13: a capacity computed from this rank's own T differs
 * from rank to rank.
 */
static int fixed_sizes(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    const struct moe_dispatcher_config *c = &d->config;
    int64_t capacity = c->expert_capacity;
    if (c->legacy.local_capacity && c->max_tokens > 0) {
        capacity = (capacity * d->routing.tokens + c->max_tokens - 1) / c->max_tokens;
    }
    moe_dispatcher_uniform(d, &d->ep, MOE_UNIFORM_CAPACITY, capacity);
    /* The pinned sizes may still be on their way to the device; only the legacy behaviour changes them. */
    int rc = c->legacy.local_capacity ? moe_device_sync(d->device) : 0;
    s->capacity = capacity;
    if (s->unpadded != capacity * d->local * s->sources || c->legacy.local_capacity) {
        fill_sizes(d, s);
    }
    derive_splits(d, s);
    derive_experts(d, s);
    return rc ? rc : upload(d, s);
}

void moe_alltoall_decline(moe_dispatcher_t *d)
{
    gather(d, d->state, MOE_DECLINED);
}

/* Reads the words of the last comparison. */
static int read_words(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    if (cudaEventSynchronize(s->read) != cudaSuccess) {
        return DISPATCHER_FAIL(d, MOE_E_DEVICE, "what the ranks said in the last step");
    }
    (void)moe_dispatcher_agreed(d, s->host_all, 1);
    s->compared = d->unlike == 0; /* else the next layer-forward begins anew, and waits */
    return d->unlike == 0 ? 0 : DISPATCHER_FAIL(d, MOE_E_ARG, "the ranks did not say the same");
}

/*
 * Drop-and-pad: compares what ranks must give alike. Its layer-forwards exchange no numbers, so this has a collective
 * of its own, once in a step, which nobody waits for: it is read when the next step's is due. The first one is waited
 * for, because ranks that differ mostly do so from the beginning. In each layer-forward it would cost what drop-and-pad
 * is there to save.
 */
static int compare(moe_dispatcher_t *d, struct moe_alltoall *s, uint32_t word)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(moe_device_stream(d->device), &status);
    if (!d->compares || d->tp_ep.size == 1 || status != cudaStreamCaptureStatusNone || moe_dispatcher_again(d) ||
        (s->compared && s->step == d->at.step)) {
        return 0;
    }
    bool first = !s->compared;
    int rc = first ? 0 : read_words(d, s);
    struct moe_fill_counts own = {.count = 1, .value = word, .to = s->own};
    struct moe_collective c = moe_dispatcher_collective(d, &d->tp_ep, "AllGather of one word", ncclInt64, 1);
    rc = rc ? rc : moe_device_ops(d->device)->fill_counts(d->device, &own);
    rc = rc ? rc : moe_all_gather(&c, s->own, s->all, 1);
    rc = rc ? rc : moe_device_copy(d->device, s->host_all, s->all, (size_t)d->tp_ep.size * sizeof(int64_t));
    if (rc == 0 && cudaEventRecord(s->read, moe_device_stream(d->device)) != cudaSuccess) {
        rc = DISPATCHER_FAIL(d, MOE_E_DEVICE, "an event");
    }
    s->step = d->at.step;
    s->compared = s->compared || rc == 0;
    return rc || !first ? rc : read_words(d, s);
}

int moe_alltoall_exchange(moe_dispatcher_t *d, struct moe_alltoall *s, uint32_t proposed, uint32_t *agreed)
{
    if (d->config.expert_capacity > 0) {
        *agreed = 0;
        int differs = compare(d, s, proposed);
        return differs ? differs : fixed_sizes(d, s);
    }
    int rc = gather(d, s, proposed);
    *agreed = rc ? 0 : moe_dispatcher_agreed(d, counts_of(s, 0) + s->stride - 1, s->stride);
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = moe_dispatcher_declined(d, r, proposal(s, r));
    }
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = check_counts(d, s, r);
    }
    for (int64_t r = 0; r < d->tp_ep.size && rc == 0; r++) {
        rc = static_rows(d, s, r, proposed);
    }
    if (rc == MOE_E_SPLIT) { /* what does not fit is known, and worth telling */
        fill_sizes(d, s);
        derive_splits(d, s);
        derive_experts(d, s);
        d->plan.sent = tokens_rows(s, d->tp_ep.rank);
    }
    if (rc != 0) {
        return rc;
    }
    if ((*agreed & MOE_REMEDY_PAD) != 0) {
        pad_empty(d, s);
    }
    fill_sizes(d, s);
    derive_splits(d, s);
    derive_experts(d, s);
    return upload(d, s);
}
