/*
 * check.c: gathers what the ranks have, compares it on rank 0 with the reference, and compares replicas everywhere.
 *
 * Parameters are taken from the job at every step, so that differences do not add up over steps: each step's gradients
 * are checked on their own. Replicas (dense over world, experts over edp) must be equal in every bit; that is checked
 * by hash, on all ranks.
 */
#include "moe_core/train/check.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/ref_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* float32 sums of some hundred terms against double; relative to the tensor's largest element. */
static const double tolerance = 1e-4;

static double *widen(const float *from, int64_t count)
{
    double *to = malloc((size_t)count * sizeof *to);
    for (int64_t i = 0; to != NULL && i < count; i++) {
        to[i] = (double)from[i];
    }
    return to;
}

/* All experts of the model in the layout of shape.h with E experts, from every rank's share; owned, NULL on failure. */
static double *gather_experts(const struct model *m, const float *share)
{
    const struct shape *s = &m->shape;
    int64_t all = shape_w1(s, s->layers, s->experts);
    int64_t w1 = s->local * 2 * s->ffn * s->hidden, w2 = s->local * s->hidden * s->ffn;
    float *gathered = NULL;
    double *out = NULL;
    if (moe_device_alloc(m->job->device, (size_t)all * sizeof(float), (void **)&gathered) != 0) {
        return NULL;
    }
    ncclResult_t nc = ncclSuccess;
    for (int64_t l = 0; l < s->layers && nc == ncclSuccess; l++) {
        nc = ncclAllGather(share + shape_w1(s, l, s->local), gathered + shape_w1(s, l, s->experts), (size_t)w1,
                           ncclFloat32, m->job->ep, moe_device_stream(m->job->device));
        nc = nc != ncclSuccess ? nc
                               : ncclAllGather(share + shape_w2(s, l, s->local), gathered + shape_w2(s, l, s->experts),
                                               (size_t)w2, ncclFloat32, m->job->ep, moe_device_stream(m->job->device));
    }
    if (!job_nccl_failed(m->job, "AllGather of experts", nc) && moe_device_sync(m->job->device) == 0) {
        out = widen(gathered, all);
    }
    moe_device_free(m->job->device, &gathered);
    return out;
}

static uint64_t hash(const float *data, int64_t count)
{
    uint64_t h = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < (size_t)count * sizeof *data; i++) {
        h = (h ^ bytes[i]) * 0x100000001b3ull;
    }
    return h;
}

/* Whether all ranks of comm hold the same `value`; -1 on failure. Collective. */
static int agree(const struct model *m, ncclComm_t comm, uint64_t value)
{
    uint64_t *pair = NULL;
    int same = -1;
    if (moe_device_alloc(m->job->device, 2 * sizeof *pair, (void **)&pair) != 0) {
        return -1;
    }
    pair[0] = pair[1] = value;
    cudaStream_t stream = moe_device_stream(m->job->device);
    ncclResult_t nc = ncclAllReduce(&pair[0], &pair[0], 1, ncclUint64, ncclMin, comm, stream);
    nc = nc != ncclSuccess ? nc : ncclAllReduce(&pair[1], &pair[1], 1, ncclUint64, ncclMax, comm, stream);
    if (!job_nccl_failed(m->job, "AllReduce of checksums", nc) && moe_device_sync(m->job->device) == 0) {
        same = pair[0] == pair[1];
    }
    moe_device_free(m->job->device, &pair);
    return same;
}

static int check_replicas(struct check *check, const struct model *m, uint32_t step)
{
    const struct {
        const char *what;
        ncclComm_t comm;
        const float *data;
        int64_t count;
    } replicas[] = {
        {"dense parameters", m->job->world, m->dense.value, m->dense.count},
        {"dense gradients", m->job->world, m->dense.grad, m->dense.count},
        {"expert parameters", m->job->edp, m->experts.value, m->experts.count},
        {"expert gradients", m->job->edp, m->experts.grad, m->experts.count},
    };
    for (size_t i = 0; i < sizeof replicas / sizeof replicas[0]; i++) {
        int same = agree(m, replicas[i].comm, hash(replicas[i].data, replicas[i].count));
        if (same < 0) {
            return MOE_E_COMM;
        }
        if (same == 0) {
            fprintf(stderr, "moe_train: rank %d: step %u: %s are not equal on all replicas\n", m->job->rank, step,
                    replicas[i].what);
            check->failed = true;
        }
    }
    return 0;
}

/* Largest difference of a tensor relative to its largest reference element. */
static void compare(struct check *check, uint32_t step, const char *name, int64_t layer, const double *got,
                    const double *want, int64_t count)
{
    double difference = 0, size = 1e-12;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs(got[i] - want[i]);
        difference = isnan(d) ? INFINITY : fmax(difference, d);
        size = fmax(size, fabs(want[i]));
    }
    double relative = difference / size;
    check->worst = fmax(check->worst, relative);
    if (!(relative <= tolerance)) {
        fprintf(stderr, "moe_train: step %u: gradient of %s, layer %lld, differs from the reference: %.3g relative\n",
                step, name, (long long)layer, relative);
        check->failed = true;
    }
}

static void compare_all(struct check *check, const struct shape *s, uint32_t step, const struct ref_params *got,
                        const struct ref_params *want)
{
    int64_t h = s->hidden, e = s->experts, embed = s->context * VOCAB * h;
    compare(check, step, "embedding", -1, got->dense, want->dense, embed);
    for (int64_t l = 0; l < s->layers; l++) {
        int64_t gate = shape_gate(s, l), norm = shape_norm(s, l), w1 = shape_w1(s, l, e), w2 = shape_w2(s, l, e);
        compare(check, step, "norm", l, got->dense + norm, want->dense + norm, h);
        compare(check, step, "gate", l, got->dense + gate, want->dense + gate, e * h);
        compare(check, step, "w1", l, got->experts + w1, want->experts + w1, e * 2 * s->ffn * h);
        compare(check, step, "w2", l, got->experts + w2, want->experts + w2, e * h * s->ffn);
    }
    compare(check, step, "final norm", -1, got->dense + shape_final_norm(s), want->dense + shape_final_norm(s), h);
    compare(check, step, "head", -1, got->dense + shape_head(s), want->dense + shape_head(s), VOCAB * h);
}

/* On rank 0: the reference over all ranks' tokens. */
static int reference(const struct model *m, const struct corpus *corpus, uint32_t step, const struct ref_params *params,
                     double *loss, const struct ref_params *grads)
{
    const struct train_options *o = m->options;
    uint8_t *batch = malloc((size_t)(o->tokens * (o->context + 1)));
    double weight = 1.0 / ((double)m->job->world_size * o->microbatches * (double)o->tokens);
    int rc = batch == NULL ? -1 : 0;
    for (int32_t rank = 0; rank < m->job->world_size && rc == 0; rank++) {
        for (uint32_t mb = 0; mb < o->microbatches && rc == 0; mb++) {
            corpus_batch(corpus, step, mb, rank, o->tokens, batch);
            rc = ref_model(&m->shape, params, batch, o->tokens, weight, loss, grads);
        }
    }
    free(batch);
    return rc;
}

int check_step(struct check *check, struct model *m, const struct corpus *corpus, uint32_t step, double loss)
{
    int rc = check_replicas(check, m, step);
    if (rc != 0) {
        return rc;
    }
    struct ref_params params = {NULL, gather_experts(m, m->experts.value)};
    struct ref_params got = {NULL, gather_experts(m, m->experts.grad)};
    struct ref_params want = {NULL, NULL};
    check->steps++;
    if (m->job->rank != 0) {
        goto out;
    }
    params.dense = widen(m->dense.value, m->dense.count);
    got.dense = widen(m->dense.grad, m->dense.count);
    want.dense = calloc((size_t)m->dense.count, sizeof(double));
    want.experts = calloc((size_t)shape_w1(&m->shape, m->shape.layers, m->shape.experts), sizeof(double));
    double want_loss = 0;
    if (params.dense == NULL || params.experts == NULL || got.dense == NULL || got.experts == NULL ||
        want.dense == NULL || want.experts == NULL || reference(m, corpus, step, &params, &want_loss, &want) != 0) {
        rc = MOE_E_NOMEM;
        goto out;
    }
    double relative = fabs(loss - want_loss) / want_loss;
    check->worst_loss = fmax(check->worst_loss, isnan(relative) ? INFINITY : relative);
    if (!(relative <= tolerance)) {
        fprintf(stderr, "moe_train: step %u: loss %.9g, the reference has %.9g\n", step, loss, want_loss);
        check->failed = true;
    }
    compare_all(check, &m->shape, step, &got, &want);
out:
    free(params.dense);
    free(params.experts);
    free(got.dense);
    free(got.experts);
    free(want.dense);
    free(want.experts);
    return rc;
}
