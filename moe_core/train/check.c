/*
 * check.c: gathers the ranks' gradients, compares them on rank 0 with the reference, and compares replicas on every
 * rank.
 *
 * The reference takes the job's parameters at every step, so that differences do not add up over steps: the gradients
 * of each step are checked on their own. Replicas (dense over world, experts over edp) must be equal in every bit; all
 * ranks compare them by hash.
 */
#include "moe_core/train/check.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/check_gather.h"
#include "moe_core/train/ref_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Tolerances by the type of rows, relative to the largest element of the tensor: float32 sums of some hundred terms
 * against double; a few roundings to 8 or 11 bits per layer.
 */
static const double tolerances[] = {[MOE_F32] = 1e-4, [MOE_BF16] = 6e-2, [MOE_F16] = 1e-2};

static double *widen(const float *from, int64_t count)
{
    double *to = malloc((size_t)count * sizeof(*to));
    for (int64_t i = 0; to != NULL && i < count; i++) {
        to[i] = (double)from[i];
    }
    return to;
}

static uint64_t hash(const float *data, int64_t count)
{
    uint64_t h = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < (size_t)count * sizeof(*data); i++) {
        h = (h ^ bytes[i]) * 0x100000001b3ull;
    }
    return h;
}

/* Whether all ranks of comm hold the same `value`; -1 on failure. Collective. */
static int agree(const struct model *m, ncclComm_t comm, uint64_t value)
{
    uint64_t *pair = NULL;
    int same = -1;
    if (moe_device_alloc(m->job->device, 2 * sizeof(*pair), (void **)&pair) != 0) {
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

static int check_replicas(struct gradient_check *check, const struct model *m, uint32_t step)
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
        {"shared parameters", m->job->data, m->shared.value, m->shared.count},
        {"shared gradients", m->job->data, m->shared.grad, m->shared.count},
    };
    for (size_t i = 0; i < sizeof(replicas) / sizeof(replicas[0]); i++) {
        if (replicas[i].count == 0) {
            continue;
        }
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
static void compare(struct gradient_check *check, uint32_t step, const char *name, int64_t layer, const double *got,
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
    if (!(relative <= check->tolerance)) {
        fprintf(stderr, "moe_train: step %u: gradient of %s, layer %lld, differs from the reference: %.3g relative\n",
                step, name, (long long)layer, relative);
        check->failed = true;
    }
}

static void compare_all(struct gradient_check *check, const struct shape *s, uint32_t step,
                        const struct ref_params *got, const struct ref_params *want)
{
    struct share all = share_all(s);
    int64_t h = s->hidden, e = s->experts, outside = -1, shared = s->shared;
    const struct {
        const char *name;
        const double *got, *want;
        int64_t from, to;
    } whole[] = {
        {"embedding", got->dense, want->dense, 0, s->context * VOCAB * h},
        {"final norm", got->dense, want->dense, shape_final_norm(s), shape_head(s)},
        {"head", got->dense, want->dense, shape_head(s), shape_dense(s)},
    };
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        compare(check, step, whole[i].name, outside, whole[i].got + whole[i].from, whole[i].want + whole[i].from,
                whole[i].to - whole[i].from);
    }
    for (int64_t l = 0; l < s->layers; l++) {
        const struct {
            const char *name;
            const double *got, *want;
            int64_t from, count;
        } tensors[] = {
            {"norm", got->dense, want->dense, shape_norm(s, l), h},
            {"gate", got->dense, want->dense, shape_gate(s, l), e * h},
            {"gate bias", got->dense, want->dense, shape_gate_bias(s, l), s->gate_bias ? e : 0},
            {"w1", got->experts, want->experts, shape_w1(s, all, l), e * 2 * s->ffn * h},
            {"w2", got->experts, want->experts, shape_w2(s, all, l), e * h * s->ffn},
            {"b1", got->experts, want->experts, shape_b1(s, all, l), s->bias ? e * 2 * s->ffn : 0},
            {"b2", got->experts, want->experts, shape_b2(s, all, l), s->bias ? e * h : 0},
            {"shared w1", got->shared, want->shared, shape_shared_w1(s, shared, l), 2 * shared * h},
            {"shared w2", got->shared, want->shared, shape_shared_w2(s, shared, l), h * shared},
            {"shared b1", got->shared, want->shared, shape_shared_b1(s, shared, l), s->bias ? 2 * shared : 0},
            {"shared b2", got->shared, want->shared, shape_shared_b2(s, shared, l), shared > 0 && s->bias ? h : 0},
            {"shared gate", got->dense, want->dense, shape_shared_gate(s, l), shared > 0 && s->shared_gate ? h : 0},
        };
        for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
            compare(check, step, tensors[i].name, l, tensors[i].got + tensors[i].from,
                    tensors[i].want + tensors[i].from, tensors[i].count);
        }
    }
}

static struct ref_how reference_how(const struct model *m)
{
    static const int digits[] = {[MOE_F32] = 0, [MOE_BF16] = 8, [MOE_F16] = 11};
    const struct train_options *o = m->options;
    struct moe_layer_config layer = model_layer_config(m, 0);
    bool split = options_replicate(o) && o->tp_mode == MOE_TP_SPLIT_TOKENS;
    return (struct ref_how){.router = {.hidden = layer.hidden,
                                       .experts = layer.experts,
                                       .topk = layer.topk,
                                       .renormalise = layer.renormalise,
                                       .options = layer.router},
                            .activation = layer.activation,
                            .place = layer.place,
                            .slices = split ? o->tp : 1,
                            .digits = digits[o->dtype],
                            .loss_scale = 1.0 / ((double)m->job->data_size * o->microbatches)};
}

/* Runs the reference on rank 0, over all ranks' tokens. */
static int reference(const struct model *m, const struct corpus *corpus, uint32_t step, const struct ref_params *params,
                     double *loss, const struct ref_params *grads)
{
    const struct train_options *o = m->options;
    uint8_t *batch = malloc((size_t)(o->tokens * (o->context + 1)));
    double weight = 1.0 / ((double)m->job->data_size * o->microbatches * (double)o->tokens);
    struct ref_how how = reference_how(m);
    size_t counts = (size_t)(o->layers * o->experts);
    how.earlier = malloc(counts * sizeof(*how.earlier));
    int rc = batch == NULL || how.earlier == NULL ? -1 : 0;
    for (int32_t rank = 0; rank < m->job->data_size && rc == 0; rank++) {
        memset(how.earlier, 0, counts * sizeof(*how.earlier));
        for (uint32_t mb = 0; mb < o->microbatches && rc == 0; mb++) {
            struct moe_step at = {.step = step, .microbatch = (uint16_t)mb};
            how.microbatch = mb;
            model_batch(o, corpus, rank, &at, batch);
            rc = ref_model(&m->shape, &how, params, batch, model_tokens(o, rank, &at), weight, loss, grads);
        }
    }
    free(how.earlier);
    free(batch);
    return rc;
}

int check_step(struct gradient_check *check, struct model *m, const struct corpus *corpus, uint32_t step, double loss)
{
    int rc = check_replicas(check, m, step);
    if (rc != 0) {
        return rc;
    }
    const struct shape *s = &m->shape;
    struct ref_params params = {.experts = check_gather_experts(m, m->experts.value),
                                .shared = check_gather_shared(m, m->shared.value)};
    struct ref_params got = {.experts = check_gather_experts(m, m->experts.grad),
                             .shared = check_gather_shared(m, m->shared.grad)};
    struct ref_params want = {.dense = NULL};
    double *bias = NULL;
    check->steps++;
    check->tolerance = tolerances[m->options->dtype];
    if (m->job->rank != 0) {
        goto out;
    }
    params.dense = widen(m->dense.value, m->dense.count);
    bias = m->expert_bias != NULL ? widen(m->expert_bias, s->layers * s->experts) : NULL;
    params.expert_bias = bias;
    got.dense = widen(m->dense.grad, m->dense.count);
    want.dense = calloc((size_t)m->dense.count, sizeof(double));
    want.experts = calloc((size_t)shape_w1(s, share_all(s), s->layers), sizeof(double));
    want.shared = calloc((size_t)shape_shared_w1(s, s->shared, s->layers) + 1, sizeof(double));
    double want_loss = 0;
    if (params.dense == NULL || params.experts == NULL || params.shared == NULL || got.dense == NULL ||
        got.experts == NULL || got.shared == NULL || want.dense == NULL || want.experts == NULL ||
        want.shared == NULL || reference(m, corpus, step, &params, &want_loss, &want) != 0) {
        rc = MOE_E_NOMEM;
        goto out;
    }
    double relative = fabs(loss - want_loss) / fmax(want_loss, 1e-12); /* no rank may have any tokens */
    check->worst_loss = fmax(check->worst_loss, isnan(relative) ? INFINITY : relative);
    if (!(relative <= check->tolerance)) {
        fprintf(stderr, "moe_train: step %u: loss %.9g, the reference has %.9g\n", step, loss, want_loss);
        check->failed = true;
    }
    compare_all(check, &m->shape, step, &got, &want);
out:
    for (size_t i = 0; i < 3; i++) {
        const struct ref_params *p = i == 0 ? &params : i == 1 ? &got : &want;
        free(p->dense);
        free(p->experts);
        free(p->shared);
    }
    free(bias);
    return rc;
}
