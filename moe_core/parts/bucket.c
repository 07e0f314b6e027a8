/*
 * bucket.c: gradient buckets with a hook per parameter.
 *
 * A bucket is ready when each of its parameters has as many gradients as in the first batch. The simpler idea, "each
 * parameter once", fails with several microbatches and with parameters that are used twice. A list of parameters that
 * are allowed to be missing was rejected: the list differs between ranks, and the ranks must issue the same
 * collectives. Grouped weight gradients count for experts without rows too, so with the experts of this library every
 * bucket becomes ready; the buckets of a detached rank do not, which is hazard H2.
 */
#include "moe_core/include/moe/bucket.h"

#include "moe_core/base/fail.h"
#include "moe_core/include/moe/ops.h"

#include <stdio.h>
#include <stdlib.h>

struct parameter {
    struct moe_bucket_parameter is;
    int32_t bucket;
    uint32_t gradients, golden; /* gradients counted in this batch; in the first batch */
};

struct bucket {
    int32_t first, last; /* the bucket's parameters */
    size_t offset, count;
    int32_t waits; /* parameters whose gradients are not golden yet */
    bool issued;
};

struct moe_buckets {
    moe_device_t *device;
    struct moe_buckets_config config;
    int ranks, rank;
    struct parameter *parameter;
    struct bucket *bucket;
    int32_t parameters, buckets;
    bool golden;       /* the first batch is done */
    cudaEvent_t grads; /* for a separate stream of collectives: the gradients are ready; the collectives are done */
    cudaEvent_t done;
    float *packed; /* legacy_only_with_grad: the gradients that arrived, one after the other */
};

#define FAIL(b, code, ...) moe_fail(code, (b)->config.world_rank, MOE_NO_LAYER, __VA_ARGS__)

/* making */

static int check(const moe_buckets_t *b)
{
    size_t end = 0;
    for (int32_t i = 0; i < b->parameters; i++) {
        const struct moe_bucket_parameter *p = &b->parameter[i].is;
        if (p->offset < end || p->count == 0 || p->count > b->config.count || p->offset > b->config.count - p->count) {
            return FAIL(b, MOE_E_SHAPE, "parameter %d (%s): elements %zu to %zu of a buffer of %zu", (int)i, p->name,
                        p->offset, p->offset + p->count, b->config.count);
        }
        end = p->offset + p->count;
    }
    return 0;
}

/*
 * Fills buckets from the last parameter to the first: a bucket takes parameters until the next one would make it too
 * large.
 */
static void fill_buckets(moe_buckets_t *b)
{
    size_t most = b->config.bucket_bytes, end = b->config.count;
    for (int32_t i = b->parameters; i-- > 0;) {
        size_t offset = i == 0 ? 0 : b->parameter[i].is.offset;
        struct bucket *open = b->buckets > 0 ? &b->bucket[b->buckets - 1] : NULL;
        bool full = open != NULL && most > 0 && (open->offset + open->count - offset) * sizeof(float) > most;
        if (open == NULL || full) {
            end = open != NULL ? open->offset : end;
            open = &b->bucket[b->buckets++];
            open->last = i;
        }
        open->first = i;
        open->offset = offset;
        open->count = end - offset;
        b->parameter[i].bucket = b->buckets - 1;
    }
}

static int check_parts(const moe_buckets_t *b)
{
    for (int32_t i = 0; i < b->buckets && b->config.op == MOE_BUCKET_REDUCESCATTER; i++) {
        if (b->bucket[i].count % (size_t)b->ranks != 0) {
            return FAIL(b, MOE_E_SHAPE, "bucket %d has %zu elements, which %d ranks do not divide: pad its parameters",
                        (int)i, b->bucket[i].count, b->ranks);
        }
    }
    return 0;
}

static int make(moe_buckets_t *b, const struct moe_bucket_parameter *parameters)
{
    ncclComm_t comm = b->config.comm;
    b->ranks = 1;
    if (comm != NULL &&
        (ncclCommCount(comm, &b->ranks) != ncclSuccess || ncclCommUserRank(comm, &b->rank) != ncclSuccess)) {
        return FAIL(b, MOE_E_COMM, "size of the reduction's communicator");
    }
    b->parameter = calloc((size_t)b->parameters, sizeof(*b->parameter));
    b->bucket = calloc((size_t)b->parameters, sizeof(*b->bucket));
    if (b->parameter == NULL || b->bucket == NULL) {
        return FAIL(b, MOE_E_NOMEM, "%d gradient buckets", (int)b->parameters);
    }
    for (int32_t i = 0; i < b->parameters; i++) {
        b->parameter[i].is = parameters[i];
    }
    int rc = check(b);
    if (rc != 0) {
        return rc;
    }
    fill_buckets(b);
    rc = check_parts(b);
    if (rc == 0 && b->config.legacy_only_with_grad) {
        rc = moe_device_alloc(b->device, b->config.count * sizeof(float), (void **)&b->packed);
    }
    if (rc == 0 && b->config.stream != NULL &&
        (cudaEventCreateWithFlags(&b->grads, cudaEventDisableTiming) != cudaSuccess ||
         cudaEventCreateWithFlags(&b->done, cudaEventDisableTiming) != cudaSuccess)) {
        rc = FAIL(b, MOE_E_DEVICE, "events of the gradient buckets");
    }
    return rc;
}

static void begin_batch(moe_buckets_t *b)
{
    for (int32_t i = 0; i < b->buckets; i++) {
        b->bucket[i].waits = b->bucket[i].last - b->bucket[i].first + 1;
        b->bucket[i].issued = false;
    }
    for (int32_t i = 0; i < b->parameters; i++) {
        b->parameter[i].gradients = 0;
    }
}

int moe_buckets_new(moe_device_t *device, const struct moe_buckets_config *config,
                    const struct moe_bucket_parameter *parameters, int32_t n, moe_buckets_t **out)
{
    *out = NULL;
    if (n < 1) {
        return moe_fail(MOE_E_ARG, config->world_rank, MOE_NO_LAYER, "gradient buckets of %d parameters", (int)n);
    }
    moe_buckets_t *b = calloc(1, sizeof(*b));
    if (b == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, MOE_NO_LAYER, "gradient buckets");
    }
    b->device = device;
    b->config = *config;
    b->parameters = n;
    int rc = make(b, parameters);
    if (rc != 0) {
        moe_buckets_destroy(&b);
        return rc;
    }
    begin_batch(b);
    *out = b;
    return 0;
}

void moe_buckets_destroy(moe_buckets_t **buckets)
{
    moe_buckets_t *b = *buckets;
    if (b == NULL) {
        return;
    }
    if (b->config.stream != NULL) {
        cudaStreamSynchronize(b->config.stream);
        if (b->grads != NULL) {
            cudaEventDestroy(b->grads);
        }
        if (b->done != NULL) {
            cudaEventDestroy(b->done);
        }
    }
    moe_device_free(b->device, &b->packed);
    free(b->parameter);
    free(b->bucket);
    free(b);
    *buckets = NULL;
}

/* one bucket */

static float prescale(const moe_buckets_t *b)
{
    int32_t dp = b->config.dp > 0 ? b->config.dp : b->ranks;
    return b->config.average_in_collective ? (float)b->ranks / (float)dp : 1.0f / (float)dp;
}

static int collective(const moe_buckets_t *b, float *data, size_t count, bool scatter)
{
    cudaStream_t stream = b->config.stream != NULL ? b->config.stream : moe_device_stream(b->device);
    ncclRedOp_t op = b->config.average_in_collective ? ncclAvg : ncclSum;
    size_t part = count / (size_t)b->ranks;
    ncclResult_t nc =
        scatter ? ncclReduceScatter(data, data + (size_t)b->rank * part, part, ncclFloat32, op, b->config.comm, stream)
                : ncclAllReduce(data, data, count, ncclFloat32, op, b->config.comm, stream);
    return nc == ncclSuccess ? 0
                             : FAIL(b, MOE_E_COMM, "%s of gradients: %s", scatter ? "ReduceScatter" : "AllReduce",
                                    ncclGetErrorString(nc));
}

/* Makes the stream of the collectives wait for the gradients, or the device's stream wait for the collectives. */
static int hand_over(const moe_buckets_t *b, cudaEvent_t event, cudaStream_t from, cudaStream_t to)
{
    if (b->config.stream == NULL) {
        return 0;
    }
    bool ok = cudaEventRecord(event, from) == cudaSuccess && cudaStreamWaitEvent(to, event, 0) == cudaSuccess;
    return ok ? 0 : FAIL(b, MOE_E_DEVICE, "order of the streams of gradients");
}

/*
 * Copies the gradients that arrived into `packed`, one after the other, or back from there; *count is the number of
 * elements.
 */
static int pack(const moe_buckets_t *b, const struct bucket *bucket, bool back, size_t *count)
{
    int rc = 0;
    *count = 0;
    for (int32_t i = bucket->first; i <= bucket->last && rc == 0; i++) {
        const struct parameter *p = &b->parameter[i];
        float *there = b->config.grad + p->is.offset, *here = b->packed + *count;
        if (p->gradients > 0) {
            rc = moe_device_copy(b->device, back ? there : here, back ? here : there, p->is.count * sizeof(float));
            *count += p->is.count;
        }
    }
    return rc;
}

static int issue(moe_buckets_t *b, struct bucket *bucket)
{
    float factor = prescale(b), *data = b->config.grad + bucket->offset;
    cudaStream_t own = moe_device_stream(b->device);
    struct moe_scale scale = {.count = bucket->count, .factor = factor, .data = data};
    bool legacy = b->config.legacy_only_with_grad;
    size_t count = bucket->count;
    int rc = factor != 1.0f ? moe_device_ops(b->device)->scale(b->device, &scale) : 0;
    bucket->issued = true;
    if (rc != 0 || b->ranks == 1) {
        return rc;
    }
    if (legacy) {
        rc = pack(b, bucket, false, &count);
        data = b->packed;
    }
    rc = rc ? rc : hand_over(b, b->grads, own, b->config.stream);
    rc = rc ? rc : collective(b, data, count, b->config.op == MOE_BUCKET_REDUCESCATTER && !legacy);
    if (rc == 0 && legacy) { /* one memory for all buckets */
        rc = hand_over(b, b->done, b->config.stream, own);
        rc = rc ? rc : pack(b, bucket, true, &count);
    }
    return rc;
}

/* a batch */

int moe_buckets_ready(moe_buckets_t *b, int32_t which)
{
    if (which < 0 || which >= b->parameters) {
        return FAIL(b, MOE_E_ARG, "parameter %d of %d", (int)which, (int)b->parameters);
    }
    struct parameter *p = &b->parameter[which];
    struct bucket *bucket = &b->bucket[p->bucket];
    p->gradients++;
    if (!b->config.overlap || !b->golden || p->gradients < p->golden) {
        return 0;
    }
    if (p->gradients > p->golden) {
        return FAIL(b, MOE_E_STATE, "gradient %u of parameter %s: the first batch had %u", p->gradients, p->is.name,
                    p->golden);
    }
    return --bucket->waits == 0 ? issue(b, bucket) : 0;
}

/* Names the parameters of a bucket that lack gradients, as many as fit. */
static int incomplete(const moe_buckets_t *b, int32_t i, const char *what)
{
    char names[256] = "";
    size_t used = 0;
    int32_t missing = 0, from = b->bucket[i].first, to = b->bucket[i].last;
    for (int32_t p = from; p <= to; p++) {
        const struct parameter *at = &b->parameter[p];
        uint32_t wanted = b->golden ? at->golden : 1;
        if (at->gradients >= wanted) {
            continue;
        }
        if (used < sizeof(names) - 1) {
            int n = snprintf(names + used, sizeof(names) - used, "%s%s", missing > 0 ? ", " : "", at->is.name);
            used += n > 0 ? (size_t)n : 0;
        }
        missing++;
    }
    return FAIL(b, MOE_E_STATE, "%s for gradient bucket %d: %d of %d parameters have no gradient: %s", what, (int)i,
                (int)missing, (int)(to - from + 1), names);
}

/* With overlap, after the first batch: a bucket that no hook has issued is incomplete. */
static int finish_overlapped(const moe_buckets_t *b)
{
    int rc = 0;
    for (int32_t i = 0; i < b->buckets && rc == 0; i++) {
        if (!b->bucket[i].issued && !b->config.legacy_wait) {
            rc = incomplete(b, i, "communication was not issued");
        }
    }
    return rc;
}

/*
 * Issues every bucket that was not issued, in order; in the first batch with overlap every parameter must have been
 * counted.
 */
static int finish_all(moe_buckets_t *b)
{
    int rc = 0;
    for (int32_t i = 0; i < b->buckets && rc == 0; i++) {
        rc = issue(b, &b->bucket[i]);
    }
    for (int32_t i = 0; i < b->parameters && rc == 0 && b->config.overlap; i++) {
        struct parameter *p = &b->parameter[i];
        p->golden = p->gradients;
        if (p->golden == 0 && !b->config.legacy_wait) {
            rc = incomplete(b, p->bucket, "the first batch is not whole");
        }
    }
    return rc;
}

int moe_buckets_finish(moe_buckets_t *b)
{
    int rc = b->config.overlap && b->golden ? finish_overlapped(b) : finish_all(b);
    b->golden = b->golden || rc == 0;
    begin_batch(b);
    return rc ? rc : hand_over(b, b->done, b->config.stream, moe_device_stream(b->device));
}

/* what is known */

int32_t moe_buckets_count(const moe_buckets_t *b)
{
    return b->buckets;
}

int32_t moe_buckets_issued(const moe_buckets_t *b)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->buckets; i++) {
        n += b->bucket[i].issued;
    }
    return n;
}

void moe_buckets_range(const moe_buckets_t *b, int32_t i, size_t *offset, size_t *count)
{
    *offset = b->bucket[i].offset;
    *count = b->bucket[i].count;
}

void moe_buckets_shard(const moe_buckets_t *b, int32_t i, size_t *offset, size_t *count)
{
    moe_buckets_range(b, i, offset, count);
    if (b->config.op == MOE_BUCKET_REDUCESCATTER) {
        *count /= (size_t)b->ranks;
        *offset += *count * (size_t)b->rank;
    }
}
