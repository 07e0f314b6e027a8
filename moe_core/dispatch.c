/*
 * dispatch.c: the token-count exchange, the plan that follows from it, and the four all-to-alls.
 *
 * The counts of all ranks of the group are exchanged, not only those that concern this rank: every rank can then see
 * which ranks are empty and come to the same plan without another message. The proposed remedies travel as one more
 * int64 in the same exchange; a separate agreement was rejected because it would change the sequence of collectives
 * that it is meant to keep equal. The host waits once, for the counts: the sizes of an all-to-all-v are host numbers
 * in the NCCL API.
 */
#include "moe_core/include/moe/dispatch.h"

#include "moe_core/device_host.h"
#include "moe_core/fail.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"

#include <stdlib.h>
#include <string.h>

struct moe_dispatch {
    moe_device_t *device;
    struct moe_dispatch_config config;
    int ranks, rank;
    int64_t local;  /* experts of this rank */
    int64_t stride; /* int64 elements per rank in the exchange: counts, then the mask */
    int64_t max_sent, max_received;
    bool ready; /* a plan is valid */
    int64_t sent, received, padded, empty_experts;
    int64_t *own;                     /* device [stride]: what this rank contributes */
    int64_t *all;                     /* device [ranks, stride] */
    int64_t *host_all;                /* pinned host mirror of all */
    int64_t *host_mask;               /* pinned host [1] */
    int64_t *send_rows, *recv_rows;   /* host [ranks] */
    int64_t *m;                       /* device [local] */
    struct moe_map_header *chunk_map; /* device, for max_received rows */
    float *by_rank;                   /* device [max_received, H]: rows in source rank order */
};

#define FAIL(d, code, ...) moe_fail(code, (d)->config.world_rank, (d)->config.layer, __VA_ARGS__)

static int allocate(moe_dispatch_t *d)
{
    size_t word = sizeof(int64_t), ranks = (size_t)d->ranks, stride = (size_t)d->stride, rows = (size_t)d->max_received;
    d->send_rows = calloc(ranks, word);
    d->recv_rows = calloc(ranks, word);
    if (d->send_rows == NULL || d->recv_rows == NULL) {
        return FAIL(d, MOE_E_NOMEM, "splits");
    }
    int rc = moe_device_alloc(d->device, stride * word, (void **)&d->own);
    rc = rc ? rc : moe_device_alloc(d->device, ranks * stride * word, (void **)&d->all);
    rc = rc ? rc : moe_device_alloc(d->device, (size_t)d->local * word, (void **)&d->m);
    rc = rc ? rc
            : moe_device_alloc(d->device, moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, (int64_t)rows), (void **)&d->chunk_map);
    rc = rc ? rc : moe_device_alloc(d->device, rows * (size_t)d->config.hidden * sizeof(float), (void **)&d->by_rank);
    if (rc == 0 && (cudaMallocHost((void **)&d->host_all, ranks * stride * word) != cudaSuccess ||
                    cudaMallocHost((void **)&d->host_mask, word) != cudaSuccess)) {
        rc = FAIL(d, MOE_E_NOMEM, "pinned host memory");
    }
    return rc;
}

int moe_dispatch_new(moe_device_t *device, const struct moe_dispatch_config *config, moe_dispatch_t **out)
{
    *out = NULL;
    moe_dispatch_t *d = calloc(1, sizeof *d);
    if (d == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "a dispatcher");
    }
    d->device = device;
    d->config = *config;
    d->ranks = 1;
    int rc = 0;
    if (config->ep != NULL && (ncclCommCount(config->ep, &d->ranks) != ncclSuccess ||
                               ncclCommUserRank(config->ep, &d->rank) != ncclSuccess)) {
        rc = FAIL(d, MOE_E_COMM, "size and rank of the ep communicator");
    } else if (config->experts < 1 || config->experts % d->ranks != 0 || config->topk < 1 ||
               config->topk > config->experts || config->hidden < 1 || config->max_tokens < 0) {
        rc = FAIL(d, MOE_E_SHAPE, "%lld experts (top-%d) over %d ranks, hidden %lld", (long long)config->experts,
                  config->topk, d->ranks, (long long)config->hidden);
    } else {
        d->local = config->experts / d->ranks;
        d->stride = config->experts + 1;
        int64_t per_token = config->topk < d->local ? config->topk : d->local;
        d->max_sent = config->max_tokens * config->topk + 1; /* one row more: PAD */
        d->max_received = config->max_tokens * d->ranks * per_token + 1;
        rc = d->max_received > INT32_MAX ? FAIL(d, MOE_E_SHAPE, "%lld rows", (long long)d->max_received) : allocate(d);
    }
    if (rc != 0) {
        moe_dispatch_destroy(&d);
        return rc;
    }
    *out = d;
    return 0;
}

void moe_dispatch_destroy(moe_dispatch_t **dispatch)
{
    moe_dispatch_t *d = *dispatch;
    if (d == NULL) {
        return;
    }
    moe_device_free(d->device, &d->own);
    moe_device_free(d->device, &d->all);
    moe_device_free(d->device, &d->m);
    moe_device_free(d->device, &d->chunk_map);
    moe_device_free(d->device, &d->by_rank);
    cudaFreeHost(d->host_all);
    cudaFreeHost(d->host_mask);
    free(d->send_rows);
    free(d->recv_rows);
    free(d);
    *dispatch = NULL;
}

int32_t moe_dispatch_ranks(const moe_dispatch_t *d)
{
    return d->ranks;
}

int32_t moe_dispatch_rank(const moe_dispatch_t *d)
{
    return d->rank;
}

/* Every rank's counts and proposal into host_all and, on the device, all. */
static int gather(moe_dispatch_t *d, const int64_t *counts, uint32_t proposed)
{
    size_t word = sizeof(int64_t), stride = (size_t)d->stride;
    *d->host_mask = proposed;
    int rc = moe_device_copy(d->device, d->own, counts, (stride - 1) * word);
    rc = rc ? rc : moe_device_copy(d->device, d->own + d->stride - 1, d->host_mask, word);
    if (rc == 0 && d->ranks > 1) {
        ncclResult_t nc = ncclAllGather(d->own, d->all, stride, ncclInt64, d->config.ep, moe_device_stream(d->device));
        if (nc != ncclSuccess) {
            return FAIL(d, MOE_E_COMM, "AllGather of token counts: %s", ncclGetErrorString(nc));
        }
    } else if (rc == 0) {
        rc = moe_device_copy(d->device, d->all, d->own, stride * word);
    }
    rc = rc ? rc : moe_device_copy(d->device, d->host_all, d->all, (size_t)d->ranks * stride * word);
    return rc ? rc : moe_device_sync(d->device);
}

static int check_counts(const moe_dispatch_t *d, int64_t sent)
{
    int64_t sum = 0;
    for (int64_t p = 0; p < d->ranks; p++) {
        for (int64_t e = 0; e < d->config.experts; e++) {
            int64_t c = d->host_all[p * d->stride + e];
            if (c < 0 || c > d->config.max_tokens) {
                return FAIL(d, MOE_E_COUNT, "ep rank %lld has %lld tokens for expert %lld, at most %lld are possible",
                            (long long)p, (long long)c, (long long)e, (long long)d->config.max_tokens);
            }
            sum += p == d->rank ? c : 0;
        }
    }
    if (sum != sent) {
        return FAIL(d, MOE_E_SPLIT, "the counts add up to %lld rows, the buffer has %lld", (long long)sum,
                    (long long)sent);
    }
    return 0;
}

/* Splits and totals from host_all. */
static void derive_plan(moe_dispatch_t *d)
{
    d->sent = d->received = d->empty_experts = 0;
    for (int64_t p = 0; p < d->ranks; p++) {
        d->send_rows[p] = d->recv_rows[p] = 0;
        for (int64_t i = 0; i < d->local; i++) {
            d->send_rows[p] += d->host_all[d->rank * d->stride + p * d->local + i];
            d->recv_rows[p] += d->host_all[p * d->stride + d->rank * d->local + i];
        }
        d->sent += d->send_rows[p];
        d->received += d->recv_rows[p];
    }
    for (int64_t i = 0; i < d->local; i++) {
        int64_t rows = 0;
        for (int64_t p = 0; p < d->ranks; p++) {
            rows += d->host_all[p * d->stride + d->rank * d->local + i];
        }
        d->empty_experts += rows == 0;
    }
}

int moe_dispatch_exchange(moe_dispatch_t *d, const int64_t *counts, int64_t sent, uint32_t proposed, uint32_t *agreed)
{
    d->ready = false;
    if (sent < 0 || sent >= d->max_sent) {
        return FAIL(d, MOE_E_CAPACITY, "%lld rows to send, made for %lld", (long long)sent, (long long)d->max_sent - 1);
    }
    int rc = gather(d, counts, proposed);
    rc = rc ? rc : check_counts(d, sent);
    if (rc != 0) {
        return rc;
    }
    *agreed = UINT32_MAX;
    for (int64_t p = 0; p < d->ranks; p++) {
        *agreed &= (uint32_t)d->host_all[p * d->stride + d->stride - 1];
    }
    const struct moe_device_ops *ops = moe_device_ops(d->device);
    derive_plan(d);
    d->padded = 0;
    if ((*agreed & MOE_REMEDY_PAD) != 0) {
        int64_t before = d->received;
        struct moe_pad_counts pad = {
            .ranks = d->ranks, .experts = d->config.experts, .stride = d->stride, .counts = d->host_all};
        rc = moe_host_pad_counts(&pad);
        pad.counts = d->all;
        rc = rc ? rc : ops->pad_counts(d->device, &pad);
        derive_plan(d);
        d->padded = d->received - before;
    }
    struct moe_chunk_map chunks = {.ranks = d->ranks,
                                   .experts = d->config.experts,
                                   .stride = d->stride,
                                   .rank = d->rank,
                                   .rows = d->received,
                                   .counts = d->all,
                                   .m = d->m,
                                   .map = d->chunk_map};
    rc = rc ? rc : ops->chunk_map(d->device, &chunks);
    d->ready = rc == 0;
    return rc;
}

int64_t moe_dispatch_rows_sent(const moe_dispatch_t *d)
{
    return d->sent;
}

int64_t moe_dispatch_rows_received(const moe_dispatch_t *d)
{
    return d->received;
}

int64_t moe_dispatch_split_sent(const moe_dispatch_t *d, int32_t peer)
{
    return d->send_rows[peer];
}

int64_t moe_dispatch_split_received(const moe_dispatch_t *d, int32_t peer)
{
    return d->recv_rows[peer];
}

int64_t moe_dispatch_rows_padded(const moe_dispatch_t *d)
{
    return d->padded;
}

int64_t moe_dispatch_empty_experts(const moe_dispatch_t *d)
{
    return d->empty_experts;
}

const int64_t *moe_dispatch_counts(const moe_dispatch_t *d)
{
    return d->all + d->rank * d->stride;
}

const int64_t *moe_dispatch_m(const moe_dispatch_t *d)
{
    return d->m;
}

/* One group of sends and receives; calls of zero rows are left out. */
static int all_to_all_v(moe_dispatch_t *d, const float *send, const int64_t *send_rows, float *recv,
                        const int64_t *recv_rows, const char *what)
{
    size_t width = (size_t)d->config.hidden;
    if (!d->ready) {
        return FAIL(d, MOE_E_STATE, "%s before the exchange of counts", what);
    }
    if (d->ranks == 1) {
        return moe_device_copy(d->device, recv, send, (size_t)send_rows[0] * width * sizeof(float));
    }
    cudaStream_t stream = moe_device_stream(d->device);
    ncclResult_t nc = ncclGroupStart();
    for (int p = 0; p < d->ranks && nc == ncclSuccess; p++) {
        if (send_rows[p] > 0) {
            nc = ncclSend(send, (size_t)send_rows[p] * width, ncclFloat32, p, d->config.ep, stream);
            send += send_rows[p] * d->config.hidden;
        }
        if (recv_rows[p] > 0 && nc == ncclSuccess) {
            nc = ncclRecv(recv, (size_t)recv_rows[p] * width, ncclFloat32, p, d->config.ep, stream);
            recv += recv_rows[p] * d->config.hidden;
        }
    }
    ncclResult_t end = ncclGroupEnd();
    nc = nc != ncclSuccess ? nc : end;
    return nc == ncclSuccess ? 0 : FAIL(d, MOE_E_COMM, "%s: %s", what, ncclGetErrorString(nc));
}

static int sort_chunks(moe_dispatch_t *d, const float *from, float *to, bool inverse)
{
    struct moe_chunk_sort sort = {.rows = d->received,
                                  .width = d->config.hidden,
                                  .inverse = inverse,
                                  .map = d->chunk_map,
                                  .from = from,
                                  .to = to};
    return moe_device_ops(d->device)->chunk_sort(d->device, &sort);
}

static int towards_experts(moe_dispatch_t *d, const float *rows, float *expert_rows, const char *what)
{
    int rc = all_to_all_v(d, rows, d->send_rows, d->by_rank, d->recv_rows, what);
    return rc ? rc : sort_chunks(d, d->by_rank, expert_rows, false);
}

static int towards_tokens(moe_dispatch_t *d, const float *expert_rows, float *rows, const char *what)
{
    if (!d->ready) {
        return FAIL(d, MOE_E_STATE, "%s before the exchange of counts", what);
    }
    int rc = sort_chunks(d, expert_rows, d->by_rank, true);
    return rc ? rc : all_to_all_v(d, d->by_rank, d->recv_rows, rows, d->send_rows, what);
}

int moe_dispatch_forward(moe_dispatch_t *d, const float *rows, float *expert_rows)
{
    return towards_experts(d, rows, expert_rows, "dispatch");
}

int moe_combine_forward(moe_dispatch_t *d, const float *expert_rows, float *rows)
{
    return towards_tokens(d, expert_rows, rows, "combine");
}

int moe_combine_backward(moe_dispatch_t *d, const float *d_rows, float *d_expert_rows)
{
    return towards_experts(d, d_rows, d_expert_rows, "combine backward");
}

int moe_dispatch_backward(moe_dispatch_t *d, const float *d_expert_rows, float *d_rows)
{
    return towards_tokens(d, d_expert_rows, d_rows, "dispatch backward");
}
