/*
 * hazard.c: wrong programs around MoE layers, from one table; each also in its healthy form.
 *
 * Every row adds to the training step what the framework in question does there (a tracker of losses, a second
 * exchange, an update of expert biases, a norm of gradients, a check for infinities), rightly or with the mistake.
 * Faults in the plain step were rejected: the healthy twin of a program must issue the same calls, or silence about the
 * twin would prove nothing.
 */
#include "moe_core/train/hazard.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/train/job.h"
#include "moe_core/train/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    AUX_TRACKER,
    OVERLAP_ORDER,
    COMM_ORDER,
    BIAS_BF16,
    BIAS_GROUP,
    BIAS_TWICE,
    GRAD_NORM,
    FOUND_INF,
    IDLE_RANK,
};

struct hazard_row {
    const char *name, *number;
    enum kind kind;
    const char *help;
};

static const struct hazard_row rows[] = {
    {"aux-tracker", "H8", AUX_TRACKER, "one rank's tracker of auxiliary losses has an entry more (Megatron-LM #3401)"},
    {"overlap-order", "H10", OVERLAP_ORDER,
     "two exchanges of one communicator in opposite orders on odd and even ranks (Megatron-LM #1810)"},
    {"comm-order", "H11", COMM_ORDER, "world and ep in opposite orders on odd and even ranks (Megatron-LM #5749)"},
    {"bias-bf16", "H16", BIAS_BF16, "tokens per expert are summed in bfloat16 (Megatron-LM #7081)"},
    {"bias-group", "H16", BIAS_GROUP, "tokens per expert are summed over ep instead of world (torchtitan #4154)"},
    {"bias-twice", "H16", BIAS_TWICE, "tokens per expert are counted again in recompute (torchtitan #1593)"},
    {"grad-norm", "H17", GRAD_NORM, "the norm of gradients counts every replica of an expert (Megatron-LM #5916)"},
    {"found-inf", "H18", FOUND_INF,
     "a rank that finds a NaN in its gradients ends alone, before the ranks agree on it"},
    {"idle-rank", "H22", IDLE_RANK,
     "a rank without a batch leaves out the forward that its peers wait for (vllm #51984)"},
};
enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

/* How many tokens one counted token stands for: with a real batch bfloat16 cannot hold the counts. */
static const float tokens_each = 101.0f;

/* the command line */

static int parse_word(const char *at, size_t bytes, struct hazard_choice *choice)
{
    char word[32];
    if (bytes >= sizeof(word)) {
        return -1;
    }
    memcpy(word, at, bytes);
    word[bytes] = '\0';
    if (strcmp(word, "healthy") == 0) {
        choice->healthy = true;
        return 0;
    }
    char *value = strchr(word, '='), *end = NULL;
    long number = value != NULL ? strtol(value + 1, &end, 10) : -1;
    if (value == NULL || end == value + 1 || *end != '\0' || number < 0 || number > INT32_MAX) {
        return -1;
    }
    *value = '\0';
    if (strcmp(word, "rank") == 0) {
        choice->rank = (int32_t)number;
        return 0;
    }
    choice->step = (uint32_t)number;
    return strcmp(word, "step") == 0 ? 0 : -1;
}

int hazard_parse(const char *text, struct hazard_choice *choice)
{
    size_t bytes = strcspn(text, ":");
    *choice = (struct hazard_choice){.rank = 1, .step = 2};
    for (size_t i = 0; i < ROWS; i++) {
        if (strlen(rows[i].name) == bytes && memcmp(rows[i].name, text, bytes) == 0) {
            choice->row = &rows[i];
        }
    }
    if (choice->row == NULL) {
        fprintf(stderr, "moe_train: unknown hazard '%.*s'; --help lists them\n", (int)bytes, text);
        return -1;
    }
    for (const char *at = text + bytes; *at == ':'; at += strcspn(at, ":")) {
        at++;
        if (parse_word(at, strcspn(at, ":"), choice) != 0) {
            fprintf(stderr, "moe_train: '%s': expected healthy, rank=R or step=S\n", at);
            return -1;
        }
    }
    return 0;
}

void hazard_help(FILE *out)
{
    for (size_t i = 0; i < ROWS; i++) {
        fprintf(out, "      %-14s %-4s %s\n", rows[i].name, rows[i].number, rows[i].help);
    }
}

/* the program */

static bool is_kind(const struct hazard *h, enum kind kind)
{
    return h->choice->row != NULL && h->choice->row->kind == kind;
}

/* Whether the mistake is made in this step, by this rank where `one` rank makes it. */
static bool sick(const struct hazard *h, uint32_t step, bool one)
{
    return !h->choice->healthy && step >= h->choice->step && (!one || h->job->rank == h->choice->rank);
}

int hazard_new(const struct hazard_choice *choice, const struct job *job, const struct model *model, struct hazard *h)
{
    *h = (struct hazard){.choice = choice, .job = job, .model = model};
    if (choice->row == NULL) {
        return 0;
    }
    int64_t floats = model->shape.experts + model->shape.layers + 2 + 4 * model->shape.hidden * job->ep_size;
    int rc = moe_facts_new(job->device, 8, &h->facts);
    rc = rc ? rc : moe_device_alloc(job->device, (size_t)floats * sizeof(float), (void **)&h->work);
    rc = rc ? rc : moe_device_alloc(job->device, (size_t)floats * sizeof(float), (void **)&h->reduced);
    rc = rc ? rc : moe_device_alloc(job->device, (size_t)model->shape.experts * sizeof(float), (void **)&h->bias);
    if (rc == 0 && cudaMallocHost((void **)&h->flag, sizeof(*h->flag)) != cudaSuccess) {
        rc = MOE_E_NOMEM;
    }
    return rc;
}

void hazard_destroy(struct hazard *h)
{
    if (h->choice == NULL || h->choice->row == NULL) {
        return;
    }
    moe_device_free(h->job->device, &h->work);
    moe_device_free(h->job->device, &h->reduced);
    moe_device_free(h->job->device, &h->bias);
    cudaFreeHost(h->flag);
    moe_facts_destroy(&h->facts);
}

static int reduce(const struct hazard *h, const char *what, const float *from, float *to, int64_t count,
                  ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm)
{
    ncclResult_t nc = ncclAllReduce(from, to, (size_t)count, type, op, comm, moe_device_stream(h->job->device));
    return job_nccl_failed(h->job, what, nc) ? MOE_E_COMM : 0;
}

/* H8: tracks the losses once per step, as loggers do. */
static int track_losses(struct hazard *h, uint32_t step)
{
    int64_t entries = h->model->shape.layers + (sick(h, step, true) ? 1 : 0);
    return reduce(h, "AllReduce of auxiliary losses", h->work, h->reduced, entries, ncclFloat32, ncclSum,
                  h->job->world);
}

/* H10: makes two exchanges that became ready together. */
static int exchange_twice(struct hazard *h, uint32_t step)
{
    int64_t hidden = h->model->shape.hidden;
    bool other = sick(h, step, false) && h->job->ep_rank % 2 == 1;
    cudaStream_t stream = moe_device_stream(h->job->device);
    for (int i = 0; i < 2; i++) {
        size_t count = (size_t)(hidden * ((i == 1) != other ? 2 : 1));
        ncclResult_t nc = ncclAllGather(h->work, h->reduced, count, ncclFloat32, h->job->ep, stream);
        if (job_nccl_failed(h->job, "AllGather of the overlap", nc)) {
            return MOE_E_COMM;
        }
    }
    return 0;
}

/* H11: makes calls on two communicators, from the point of view of two streams. */
static int two_communicators(struct hazard *h, uint32_t step)
{
    bool other = sick(h, step, false) && h->job->rank % 2 == 1;
    ncclComm_t order[] = {other ? h->job->ep : h->job->world, other ? h->job->world : h->job->ep};
    for (int i = 0; i < 2; i++) {
        int rc = reduce(h, "AllReduce of the overlap", h->work, h->reduced, 1, ncclFloat32, ncclSum, order[i]);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

struct widen_counts_args {
    const int64_t *counts;
    float *to;
    int64_t experts;
};

static int widen_counts(const void *args)
{
    const struct widen_counts_args *a = args;
    for (int64_t e = 0; e < a->experts; e++) {
        a->to[e] = tokens_each * (float)a->counts[e];
    }
    return 0;
}

struct update_bias_args {
    const float *counts;
    float *bias;
    int64_t experts;
};

static int update_bias(const void *args)
{
    const struct update_bias_args *a = args;
    double sum = 0;
    for (int64_t e = 0; e < a->experts; e++) {
        sum += (double)a->counts[e];
    }
    for (int64_t e = 0; e < a->experts; e++) {
        double below = sum / (double)a->experts - (double)a->counts[e];
        a->bias[e] += 1e-3f * (below > 0 ? 1.0f : below < 0 ? -1.0f : 0.0f);
    }
    return 0;
}

/* Sums the counts as the program does: first in `work`, then in `reduced`. */
static int sum_counts(struct hazard *h, uint32_t step)
{
    int64_t experts = h->model->shape.experts;
    bool wrong = sick(h, step, false);
    const struct moe_ops *ops = moe_device_ops(h->job->device);
    if (wrong && is_kind(h, BIAS_BF16)) {
        struct moe_cast narrow = {
            .count = experts, .from_type = MOE_F32, .to_type = MOE_BF16, .from = h->work, .to = h->reduced};
        float *sum = h->reduced + experts / 2 + 1;
        struct moe_cast widen = {
            .count = experts, .from_type = MOE_BF16, .to_type = MOE_F32, .from = sum, .to = h->work};
        int rc = ops->cast(h->job->device, &narrow);
        rc = rc ? rc : reduce(h, "AllReduce of counts", h->reduced, sum, experts, ncclBfloat16, ncclSum, h->job->world);
        rc = rc ? rc : ops->cast(h->job->device, &widen);
        return rc ? rc : moe_device_copy(h->job->device, h->reduced, h->work, (size_t)experts * sizeof(float));
    }
    ncclComm_t comm = wrong && is_kind(h, BIAS_GROUP) ? h->job->ep : h->job->world;
    int rc = reduce(h, "AllReduce of counts", h->work, h->reduced, experts, ncclFloat32, ncclSum, comm);
    struct moe_scale twice = {.count = (size_t)experts, .factor = 2.0f, .data = h->reduced};
    return rc == 0 && wrong && is_kind(h, BIAS_TWICE) ? ops->scale(h->job->device, &twice) : rc;
}

/* H16: balances without a loss: takes the counts of the first layer, sums them, and moves each bias by a step. */
static int balance(struct hazard *h, uint32_t step)
{
    const struct moe_subject bias = {.tensor = MOE_TENSOR_EXPERT_BIAS, .layer = 0, .comm = h->job->world};
    int64_t experts = h->model->shape.experts;
    struct widen_counts_args counts = {moe_router_counts(moe_layer_router(h->model->layer[0])), h->work, experts};
    struct update_bias_args update = {h->reduced, h->bias, experts};
    int rc = moe_device_call(h->job->device, widen_counts, &counts, sizeof(counts));
    rc = rc ? rc : moe_facts_share(h->facts, &bias, h->work, (size_t)experts);
    rc = rc ? rc : sum_counts(h, step);
    rc = rc ? rc : moe_facts_sum(h->facts, &bias, h->reduced, (size_t)experts);
    rc = rc ? rc : moe_device_call(h->job->device, update_bias, &update, sizeof(update));
    return rc ? rc : moe_facts_replica(h->facts, &bias, h->bias, (size_t)experts * sizeof(float));
}

struct squares {
    const float *dense, *experts;
    int64_t dense_count, experts_count;
    double dense_copies, expert_copies; /* ranks that hold the same numbers */
    double counted_copies;              /* how many copies of the experts the program assumes */
    float *right, *used;
};

static int square_norms(const void *args)
{
    const struct squares *a = args;
    double dense = 0, experts = 0;
    for (int64_t i = 0; i < a->dense_count; i++) {
        dense += (double)a->dense[i] * (double)a->dense[i];
    }
    for (int64_t i = 0; i < a->experts_count; i++) {
        experts += (double)a->experts[i] * (double)a->experts[i];
    }
    *a->right = (float)(dense / a->dense_copies + experts / a->expert_copies);
    *a->used = (float)(dense / a->dense_copies + experts / a->counted_copies);
    return 0;
}

/* H17: a norm of gradients, in which every parameter counts once, however many ranks hold it. */
static int gradient_norm(struct hazard *h, uint32_t step)
{
    const struct moe_subject norm = {.tensor = MOE_TENSOR_NORM, .layer = UINT32_MAX, .comm = h->job->world};
    const struct params *dense = &h->model->dense, *experts = &h->model->experts;
    struct squares squares = {.dense = dense->grad,
                              .experts = experts->grad,
                              .dense_count = dense->count,
                              .experts_count = experts->count,
                              .dense_copies = h->job->world_size,
                              .expert_copies = h->job->edp_size,
                              .counted_copies = sick(h, step, false) ? 1 : h->job->edp_size,
                              .right = h->work,
                              .used = h->work + 1};
    int rc = moe_device_call(h->job->device, square_norms, &squares, sizeof(squares));
    rc = rc ? rc : moe_facts_share(h->facts, &norm, h->work, 1);
    rc = rc ? rc : reduce(h, "AllReduce of the norm", h->work + 1, h->reduced, 1, ncclFloat32, ncclSum, h->job->world);
    return rc ? rc : moe_facts_sum(h->facts, &norm, h->reduced, 1);
}

static int poison(const void *args)
{
    float *const *grad = args;
    **grad = NAN;
    return 0;
}

static int find_infinity(const void *args)
{
    const struct squares *a = args;
    float found = 0;
    for (int64_t i = 0; i < a->dense_count; i++) {
        found = isfinite(a->dense[i]) ? found : 1.0f;
    }
    *a->used = found;
    return 0;
}

/* H18, before the reduction: the chosen rank has a NaN. The wrong program looks at its own gradients and ends. */
static int look_for_nan(struct hazard *h, uint32_t step)
{
    float *first = h->model->dense.grad;
    if (step != h->choice->step || h->job->rank != h->choice->rank) {
        return 0;
    }
    int rc = moe_device_call(h->job->device, poison, &first, sizeof(first));
    if (rc == 0 && !h->choice->healthy) {
        rc = moe_device_sync(h->job->device);
        fprintf(stderr, "moe_train: rank %d: step %u: NaN in the gradients of this rank\n", h->job->rank, step);
        exit(1);
    }
    return rc;
}

/* H18, after the reduction: either all ranks see the NaN or none does. */
static int agree_on_infinity(struct hazard *h, bool *skip)
{
    struct squares args = {.dense = h->model->dense.grad, .dense_count = h->model->dense.count, .used = h->work};
    int rc = moe_device_call(h->job->device, find_infinity, &args, sizeof(args));
    rc = rc ? rc : reduce(h, "AllReduce of found_inf", h->work, h->reduced, 1, ncclFloat32, ncclMax, h->job->world);
    rc = rc ? rc : moe_device_copy(h->job->device, h->flag, h->reduced, sizeof(*h->flag));
    rc = rc ? rc : moe_device_sync(h->job->device);
    *skip = rc == 0 && *h->flag != 0.0f;
    return rc;
}

bool hazard_skips_microbatch(const struct hazard *h, uint32_t step)
{
    return is_kind(h, IDLE_RANK) && step == h->choice->step && sick(h, step, true);
}

int hazard_before_reduce(struct hazard *h, uint32_t step)
{
    if (h->choice->row == NULL) {
        return 0;
    }
    moe_facts_begin(h->facts, &(struct moe_step){.step = step});
    switch (h->choice->row->kind) {
    case OVERLAP_ORDER:
        return exchange_twice(h, step);
    case COMM_ORDER:
        return two_communicators(h, step);
    case FOUND_INF:
        return look_for_nan(h, step);
    default:
        return 0;
    }
}

int hazard_after_reduce(struct hazard *h, uint32_t step, bool *skip)
{
    *skip = false;
    if (h->choice->row == NULL) {
        return 0;
    }
    switch (h->choice->row->kind) {
    case AUX_TRACKER:
        return track_losses(h, step);
    case BIAS_BF16:
    case BIAS_GROUP:
    case BIAS_TWICE:
        return balance(h, step);
    case GRAD_NORM:
        return gradient_norm(h, step);
    case FOUND_INF:
        return agree_on_infinity(h, skip);
    default:
        return 0;
    }
}

void hazard_end_step(struct hazard *h)
{
    if (h->choice->row != NULL) {
        moe_facts_report(h->facts);
    }
}
