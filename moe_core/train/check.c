/*
 * check.c: gathers the ranks' gradients, compares them on rank 0 with the reference, and compares replicas on every
 * rank. The optimizer's step is checked after that, by each rank for its own share (check_optim.c).
 *
 * The reference takes the job's parameters at every step, so that differences do not add up over steps: the gradients
 * of each step are checked on their own. Replicas (dense over world, experts over edp) must be equal in every bit; all
 * ranks compare them by hash.
 */
#include "moe_core/train/check.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/train/gather.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Tolerances by the type of rows, relative to the largest element of the tensor: float32 sums of some hundred terms
 * against double; a few roundings to 8 or 11 bits per layer.
 */
static const double tolerances[] = {[MOE_F32] = 1e-4, [MOE_BF16] = 6e-2, [MOE_F16] = 1e-2};

static uint64_t hash(const float *data, int64_t count)
{
    uint64_t h = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < (size_t)count * sizeof(*data); i++) {
        h = (h ^ bytes[i]) * 0x100000001b3ull;
    }
    return h;
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
        {"shared parameters", m->job->data, m->shared.value, m->shared.count},
        {"shared gradients", m->job->data, m->shared.grad, m->shared.count},
    };
    for (size_t i = 0; i < sizeof(replicas) / sizeof(replicas[0]); i++) {
        if (replicas[i].count == 0) {
            continue;
        }
        uint64_t least = 0, most = 0;
        int rc = job_range(m->job, replicas[i].comm, hash(replicas[i].data, replicas[i].count), &least, &most);
        if (rc != 0) {
            return rc;
        }
        if (least != most) {
            fprintf(stderr, "moe_train: rank %d: step %u: %s are not equal on all replicas\n", m->job->rank, step,
                    replicas[i].what);
            check->failed = true;
        }
    }
    return 0;
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
static int reference(struct check *check, const struct model *m, const struct corpus *corpus, uint32_t step,
                     const struct ref_params *params, double *loss, const struct ref_params *grads)
{
    const struct train_options *o = m->options;
    uint8_t *batch = malloc((size_t)(o->tokens * (o->context + 1)));
    double weight = 1.0 / ((double)m->job->data_size * o->microbatches * (double)o->tokens);
    struct ref_how how = reference_how(m);
    int64_t counts = o->layers * o->experts;
    how.earlier = malloc((size_t)counts * sizeof(*how.earlier));
    how.room = o->tokens;
    how.regret = &check->regret;
    memset(check->chosen, 0, (size_t)counts * sizeof(*check->chosen));
    int rc = batch == NULL || how.earlier == NULL ? -1 : 0;
    for (int32_t rank = 0; rank < m->job->data_size && rc == 0; rank++) {
        memset(how.earlier, 0, (size_t)counts * sizeof(*how.earlier));
        for (uint32_t mb = 0; mb < o->microbatches && rc == 0; mb++) {
            struct moe_step at = {.step = step, .microbatch = (uint16_t)mb};
            how.microbatch = mb;
            if (check->routing.choice != NULL) {
                how.choice = check->routing.choice + routing_at(m, rank, mb);
                how.kept = check->routing.kept + routing_at(m, rank, mb);
            }
            model_batch(o, corpus, rank, &at, batch);
            rc = ref_model(&m->shape, &how, params, batch, model_tokens(o, rank, &at), weight, loss, grads);
        }
        for (int64_t i = 0; i < counts && rc == 0; i++) {
            check->chosen[i] += how.earlier[i];
        }
    }
    free(how.earlier);
    free(batch);
    return rc;
}

/* Memory on rank 0 for a whole buffer of the model. */
static double *whole_buffer(const struct check *check, int buffer)
{
    return calloc((size_t)check->whole.elements[buffer] + 1, sizeof(double));
}

static void free_params(struct ref_params *p)
{
    free(p->dense);
    free(p->experts);
    free(p->shared);
    *p = (struct ref_params){.dense = NULL};
}

static bool make_params(const struct check *check, struct ref_params *out)
{
    *out = (struct ref_params){.dense = whole_buffer(check, TENSOR_DENSE),
                               .experts = whole_buffer(check, TENSOR_EXPERTS),
                               .shared = whole_buffer(check, TENSOR_SHARED)};
    return out->dense != NULL && out->experts != NULL && out->shared != NULL;
}

/* What is kept over steps, and the memory of this one. Local. */
static int start(struct check *check, const struct model *m)
{
    if (check->tensors == NULL) {
        check->tensors = tensors_new(&m->shape, &check->count);
        check->chosen = calloc((size_t)(m->shape.layers * m->shape.experts), sizeof(*check->chosen));
        check->tolerance = tolerances[m->options->dtype];
    }
    int rc = check->tensors != NULL && check->chosen != NULL ? 0 : MOE_E_NOMEM;
    rc = rc ? rc : routing_new(m, &check->routing);
    rc = rc ? rc : gather_whole_new(m, &check->whole);
    if (rc == 0 && m->job->rank == 0 && (!make_params(check, &check->params) || !make_params(check, &check->got))) {
        rc = MOE_E_NOMEM;
    }
    return rc ? rc : optim_check_before(&check->optim, m);
}

static void end(struct check *check, const struct model *m)
{
    free_params(&check->params);
    free_params(&check->got);
    gather_whole_free(m, &check->whole);
    routing_free(m, &check->routing);
}

/* All ranks' shares of a set of buffers; collective. */
static int gather_all(struct check *check, const struct model *m, bool gradients, const struct ref_params *out)
{
    const struct params *dense = &m->dense, *experts = &m->experts, *shared = &m->shared;
    struct gather_whole *g = &check->whole;
    int rc = gather_buffer(m, g, TENSOR_DENSE, gradients ? dense->grad : dense->value, out->dense);
    rc = rc ? rc : gather_buffer(m, g, TENSOR_EXPERTS, gradients ? experts->grad : experts->value, out->experts);
    return rc ? rc : gather_buffer(m, g, TENSOR_SHARED, gradients ? shared->grad : shared->value, out->shared);
}

static void report_first(const struct check *check, const struct model *m, uint32_t step, const struct difference *d)
{
    const struct tensor *t = &d->first;
    char layer[32] = "";
    if (t->layer >= 0) {
        snprintf(layer, sizeof(layer), ", layer %lld,", (long long)t->layer);
    }
    fprintf(stderr,
            "moe_train: step %u: gradient of %s%s differs from the reference: element %lld (rank %d) is %.9g, the "
            "reference has %.9g: %.3g of the tensor's largest, allowed is %.3g; %d of %d tensors differ, this is the "
            "first of backward\n",
            step, t->kind, layer, (long long)d->element, tensor_owner(t, m->job, d->element), d->got, d->want,
            d->first_relative, check->tolerance, d->tensors, check->count);
}

/* Compares loss, gradients and routing with the reference, on rank 0. */
static int compare_step(struct check *check, const struct model *m, const struct corpus *corpus, uint32_t step,
                        double loss, struct ref_params *params, const struct ref_params *got)
{
    const struct shape *s = &m->shape;
    int64_t biases = m->expert_bias != NULL ? s->layers * s->experts : 0;
    double *bias = malloc((size_t)biases * sizeof(*bias) + 1), want_loss = 0;
    struct ref_params want = {.dense = calloc((size_t)m->dense.count, sizeof(double)),
                              .experts = calloc((size_t)shape_w1(s, share_all(s), s->layers), sizeof(double)),
                              .shared = calloc((size_t)shape_shared_w1(s, s->shared, s->layers) + 1, sizeof(double))};
    struct difference found = {.worst = check->worst};
    int rc = bias != NULL && want.dense != NULL && want.experts != NULL && want.shared != NULL ? 0 : MOE_E_NOMEM;
    for (int64_t i = 0; i < biases && rc == 0; i++) {
        bias[i] = (double)m->expert_bias[i];
    }
    params->expert_bias = biases > 0 ? bias : NULL;
    rc = rc == 0 && reference(check, m, corpus, step, params, &want_loss, &want) != 0 ? MOE_E_NOMEM : rc;
    if (rc != 0) {
        goto out;
    }
    double relative = fabs(loss - want_loss) / fmax(want_loss, 1e-12); /* no rank may have any tokens */
    check->worst_loss = fmax(check->worst_loss, isnan(relative) ? INFINITY : relative);
    if (!(relative <= check->tolerance)) {
        fprintf(stderr, "moe_train: step %u: loss %.9g, the reference has %.9g\n", step, loss, want_loss);
        check->failed = true;
    }
    if (!(check->regret <= check->tolerance)) {
        fprintf(stderr,
                "moe_train: step %u: a token's experts are worse than the best ones by %.3g of them; roundings make at "
                "most %.3g\n",
                step, check->regret, check->tolerance);
        check->failed = true;
    }
    compare_gradients(check->tensors, check->count, got, &want, check->tolerance, &found);
    check->worst = found.worst;
    if (found.tensors > 0) {
        report_first(check, m, step, &found);
        check->failed = true;
    }
out:
    free(want.dense);
    free(want.experts);
    free(want.shared);
    free(bias);
    return rc;
}

/* Whether all ranks can go on with the check; where one cannot, it says so. Collective. */
static int all_can(const struct model *m, uint32_t step, int mine)
{
    int32_t who = -1;
    if (mine == MOE_E_NOMEM) {
        fprintf(stderr, "moe_train: --check: rank %d has no memory to check step %u\n", m->job->rank, step);
    }
    int rc = job_failed(m->job, mine != 0, &who);
    return mine ? mine : rc ? rc : who >= 0 ? MOE_E_NOMEM : 0;
}

int check_step(struct check *check, const struct model *m, const struct corpus *corpus, uint32_t step, double loss)
{
    int rc = all_can(m, step, start(check, m));
    if (rc == 0) {
        rc = check_replicas(check, m, step);
        rc = rc ? rc : routing_gather(m, &check->routing);
        rc = rc ? rc : gather_all(check, m, false, &check->params);
        rc = rc ? rc : gather_all(check, m, true, &check->got);
        check->steps++;
    }
    if (rc == 0) { /* what failed before is the groups', and no rank would be heard */
        bool compares = m->job->rank == 0;
        rc = all_can(m, step, compares ? compare_step(check, m, corpus, step, loss, &check->params, &check->got) : 0);
    }
    end(check, m);
    return rc;
}

void check_update(struct check *check, const struct model *m, uint32_t step)
{
    const int64_t *chosen = m->job->rank == 0 ? check->chosen : NULL;
    check->failed |= !optim_check_after(&check->optim, m, check->tensors, check->count, step, chosen);
}

void check_destroy(struct check *check, const struct model *m)
{
    end(check, m);
    optim_check_destroy(&check->optim);
    free(check->tensors);
    free(check->chosen);
    *check = (struct check){.tensors = NULL};
}
