/*
 * dispatcher.c: the front of the token dispatchers: groups, checks, order of calls, common buffers.
 *
 * Whatever this rank can refuse by itself is refused here, before a kind issues its first collective: a rank that
 * returns an error after its peers have begun to wait causes the hang that this library is about. The handle holds the
 * stage of the layer-forward and checks the order of calls, because a combine without a dispatch would send rows of the
 * previous forward.
 */
#include "moe_core/dispatch/dispatcher_kind.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/remedy.h"

#include <stdlib.h>

static const struct moe_dispatcher_kind_ops *const kinds[MOE_DISPATCH_KINDS] = {
    [MOE_DISPATCH_ALLTOALL] = &moe_dispatcher_alltoall,
    [MOE_DISPATCH_ALLGATHER] = &moe_dispatcher_allgather,
    [MOE_DISPATCH_DEEPEP] = &moe_dispatcher_deepep,
    [MOE_DISPATCH_HYBRIDEP] = &moe_dispatcher_hybridep,
};

static const char *const names[MOE_DISPATCH_KINDS] = {"alltoall", "allgather", "deepep", "hybridep"};

const char *moe_dispatcher_name(enum moe_dispatcher_kind kind)
{
    return (unsigned)kind < MOE_DISPATCH_KINDS ? names[kind] : "?";
}

/* groups and shape */

static int resolve_groups(moe_dispatcher_t *d)
{
    const struct moe_groups *g = &d->config.groups;
    const int32_t rank = d->config.world_rank;
    const uint32_t layer = d->config.layer;
    int rc = moe_group_resolve(g->ep, "ep", rank, layer, &d->ep);
    rc = rc ? rc : moe_group_resolve(g->etp, "etp", rank, layer, &d->etp);
    rc = rc ? rc : moe_group_resolve(g->tp, "tp", rank, layer, &d->tp);
    if (rc != 0) {
        return rc;
    }
    if (g->tp_ep == NULL && (d->etp.size == 1 || d->ep.size == 1)) {
        d->tp_ep = d->etp.size == 1 ? d->ep : d->etp;
        return 0;
    }
    rc = moe_group_resolve(g->tp_ep, "tp_ep", rank, layer, &d->tp_ep);
    int wanted = d->ep.rank * d->etp.size + d->etp.rank;
    if (rc == 0 && (d->tp_ep.size != d->ep.size * d->etp.size || d->tp_ep.rank != wanted)) {
        rc = DISPATCHER_FAIL(d, MOE_E_COMM,
                             "tp_ep has %d ranks and this is its rank %d; ep %d x etp %d makes %d ranks, rank %d",
                             d->tp_ep.size, d->tp_ep.rank, d->ep.size, d->etp.size, d->ep.size * d->etp.size, wanted);
    }
    return rc;
}

static int check_shape(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    if (c->experts < 1 || c->experts > INT32_MAX / 2 || c->experts % d->ep.size != 0 || c->topk < 1 ||
        c->topk > c->experts || c->hidden < 1 || c->max_tokens < 0) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld experts (top-%d) over %d ranks, hidden %lld, %lld tokens",
                               (long long)c->experts, c->topk, d->ep.size, (long long)c->hidden,
                               (long long)c->max_tokens);
    }
    if (c->expert_capacity < 0 || c->row_multiple < 0 || c->row_multiple > INT32_MAX || c->row_budget < 0 ||
        c->token_bound < 0 || c->max_tokens > INT32_MAX / (c->topk * (int64_t)d->tp_ep.size) ||
        c->expert_capacity > INT32_MAX / (c->experts * d->etp.size)) {
        return DISPATCHER_FAIL(
            d, MOE_E_SHAPE,
            "%lld tokens x top-%d x %d ranks, capacity %lld, row multiple %lld, budget %lld, bound %lld",
            (long long)c->max_tokens, c->topk, d->tp_ep.size, (long long)c->expert_capacity, (long long)c->row_multiple,
            (long long)c->row_budget, (long long)c->token_bound);
    }
    if (moe_nccl_type(c->type) == ncclNumTypes) {
        return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "rows of type %s", moe_dtype_name(c->type));
    }
    d->local = c->experts / d->ep.size;
    return 0;
}

static int allocate(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    if (d->max_rows < 0 || d->max_rows > INT32_MAX) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld rows for one rank", (long long)d->max_rows);
    }
    int rc = moe_device_alloc(d->device, (size_t)d->local * sizeof(int64_t), (void **)&d->m);
    if (rc != 0 || !d->standing) {
        return moe_fail_at(rc, c->world_rank, c->layer);
    }
    d->plan.received = d->max_rows;
    rc = moe_dispatcher_take_received(d, &d->rows, &d->row_probs);
    rc = rc ? rc : moe_dispatcher_take_received(d, &d->d_rows, &d->d_row_probs);
    rc = rc ? rc : moe_dispatcher_take_rows(d, d->max_rows, &d->expert_out);
    rc = rc ? rc : moe_dispatcher_take_rows(d, d->max_rows, &d->d_expert_out);
    return rc ? rc : moe_dispatcher_take(d, (size_t)(c->max_tokens * c->experts) * sizeof(float), &d->d_probs);
}

/* The buffers whose memory changes from forward to forward. */
#define CHANGING(d)                                                                                                    \
    {                                                                                                                  \
        &(d)->rows, &(d)->expert_out, &(d)->d_expert_out, &(d)->d_rows, &(d)->row_probs, &(d)->d_row_probs,            \
            &(d)->d_probs                                                                                              \
    }

int moe_dispatcher_open(moe_device_t *device, const struct moe_dispatcher_config *config, moe_dispatcher_t **out)
{
    *out = NULL;
    if ((unsigned)config->kind >= MOE_DISPATCH_KINDS || kinds[config->kind] == NULL) {
        return moe_fail(MOE_E_UNSUPPORTED, config->world_rank, config->layer, "dispatcher %d (%s)", (int)config->kind,
                        moe_dispatcher_name(config->kind));
    }
    moe_dispatcher_t *d = calloc(1, sizeof(*d));
    if (d == NULL) {
        return moe_fail(MOE_E_NOMEM, config->world_rank, config->layer, "a dispatcher");
    }
    d->kind = kinds[config->kind];
    d->device = device;
    d->config = *config;
    int rc = resolve_groups(d);
    rc = rc ? rc : check_shape(d);
    rc = rc ? rc : d->kind->open(d);
    if (rc != 0) {
        moe_dispatcher_destroy(&d);
        return moe_fail_at(rc, config->world_rank, config->layer);
    }
    *out = d;
    return 0;
}

int moe_dispatcher_make(moe_dispatcher_t *d)
{
    int rc = d->kind->create(d);
    rc = rc ? rc : allocate(d);
    return moe_fail_at(rc, d->config.world_rank, d->config.layer);
}

int moe_dispatcher_new(moe_device_t *device, const struct moe_dispatcher_config *config, moe_dispatcher_t **out)
{
    moe_dispatcher_t *d = NULL;
    *out = NULL;
    int rc = moe_dispatcher_open(device, config, &d);
    rc = rc ? rc : moe_dispatcher_make(d);
    if (rc != 0) {
        moe_dispatcher_destroy(&d);
    }
    *out = d;
    return rc;
}

void moe_dispatcher_destroy(moe_dispatcher_t **dispatcher)
{
    moe_dispatcher_t *d = *dispatcher;
    if (d == NULL) {
        return;
    }
    void *buffers[] = CHANGING(d);
    d->kind->destroy(d);
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_dispatcher_free(d, buffers[i]);
    }
    moe_device_free(d->device, &d->m);
    free(d);
    *dispatcher = NULL;
}

/* the layer-forward */

void moe_dispatcher_release(moe_dispatcher_t *d)
{
    void *buffers[] = CHANGING(d);
    for (size_t i = 0; i < sizeof(buffers) / sizeof(buffers[0]); i++) {
        moe_dispatcher_give(d, buffers[i]);
    }
    if (!d->standing) {
        d->kind->release(d);
    }
    d->stage = MOE_DISPATCHER_IDLE;
    d->backward = false;
}

void moe_dispatcher_experts_done(moe_dispatcher_t *d)
{
    moe_dispatcher_give(d, &d->rows);
    moe_dispatcher_give(d, &d->row_probs);
    moe_dispatcher_give(d, &d->d_expert_out);
}

void moe_dispatcher_at(moe_dispatcher_t *d, const struct moe_event *at)
{
    d->at = *at;
}

int moe_dispatcher_prepare(moe_dispatcher_t *d, const struct moe_routing *routing, uint32_t proposed, uint32_t *agreed)
{
    moe_dispatcher_release(d); /* what the last forward left: no backward of it follows */
    d->unlike = 0;
    if (routing->tokens < 0 || routing->tokens > d->config.max_tokens) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld tokens, made for at most %lld", (long long)routing->tokens,
                               (long long)d->config.max_tokens);
    }
    if (routing->counts == NULL || (routing->tokens > 0 && (routing->index == NULL || routing->probs == NULL))) {
        return DISPATCHER_FAIL(d, MOE_E_ARG, "index, probs or counts of the routing is NULL");
    }
    d->routing = *routing;
    d->plan = (struct moe_dispatch_plan){.empty_experts = -1};
    d->detached = false;
    *agreed = 0;
    uint32_t word = (proposed & MOE_WORD_PROPOSED) | (uint32_t)d->alike << MOE_WORD_ALIKE_SHIFT;
    int rc = d->kind->prepare(d, word, agreed);
    d->follows = NULL;
    if (rc == 0 && d->plan.received > d->max_rows) {
        rc = DISPATCHER_FAIL(d, MOE_E_CAPACITY, "%lld rows to receive, made for %lld", (long long)d->plan.received,
                             (long long)d->max_rows);
    }
    d->stage = rc == 0 ? MOE_DISPATCHER_PREPARED : MOE_DISPATCHER_IDLE;
    return rc;
}

void moe_dispatcher_share(moe_dispatcher_t *d, bool microbatch)
{
    d->shares = microbatch;
}

void moe_dispatcher_follow(moe_dispatcher_t *d, const moe_dispatcher_t *last)
{
    d->follows = last;
}

void moe_dispatcher_set_alike(moe_dispatcher_t *d, uint16_t number)
{
    d->alike = number & MOE_WORD_ALIKE;
    d->compares = true;
}

bool moe_dispatcher_alike(const moe_dispatcher_t *d, int32_t *rank, uint16_t *theirs, uint16_t *first)
{
    *rank = d->unlike;
    *theirs = d->theirs;
    *first = d->first;
    return d->unlike == 0;
}

int moe_dispatcher_decline(moe_dispatcher_t *d, int64_t tokens)
{
    struct moe_failure own;
    moe_failure_keep(&own);
    moe_dispatcher_release(d);
    d->routing = (struct moe_routing){.tokens = tokens};
    if (!d->standing) {
        d->kind->decline(d);
    }
    d->follows = NULL;
    moe_failure_restore(&own);
    return MOE_E_NOMEM;
}

static int expect(const moe_dispatcher_t *d, enum moe_dispatcher_stage stage, const char *what)
{
    return d->stage >= stage ? 0
                             : DISPATCHER_FAIL(d, MOE_E_STATE, "%s before %s", what,
                                               stage == MOE_DISPATCHER_PREPARED ? "prepare" : "forward");
}

int moe_dispatcher_forward(moe_dispatcher_t *d, const void *x)
{
    int rc = expect(d, MOE_DISPATCHER_PREPARED, "forward");
    if (rc == 0 && x == NULL && d->routing.tokens > 0) {
        rc = DISPATCHER_FAIL(d, MOE_E_ARG, "%lld tokens, and x is NULL", (long long)d->routing.tokens);
    }
    if (rc == 0 && d->config.shared != NULL && d->shared_weights == NULL) {
        rc = DISPATCHER_FAIL(d, MOE_E_STATE, "forward before the shared expert's weights");
    }
    d->x = x;
    rc = rc ? rc : d->kind->forward(d, x);
    d->stage = rc == 0 ? MOE_DISPATCHER_SENT : d->stage;
    return rc;
}

int moe_dispatcher_combine(moe_dispatcher_t *d, void *y)
{
    int rc = expect(d, MOE_DISPATCHER_SENT, "combine");
    if (rc == 0 && y == NULL && d->routing.tokens > 0) {
        rc = DISPATCHER_FAIL(d, MOE_E_ARG, "%lld tokens, and y is NULL", (long long)d->routing.tokens);
    }
    rc = rc ? rc : d->kind->combine(d, y);
    d->stage = rc == 0 ? MOE_DISPATCHER_COMBINED : d->stage;
    return rc;
}

void moe_dispatcher_set_shared_weights(moe_dispatcher_t *d, const struct moe_shared_weights *weights)
{
    d->shared_weights = weights;
}

void moe_dispatcher_detach(moe_dispatcher_t *d)
{
    d->detached = true;
}

/* backward */

int moe_dispatcher_push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan)
{
    int rc = expect(d, MOE_DISPATCHER_PREPARED, "backward nodes of dispatch");
    return rc ? rc : d->kind->push_dispatch(d, plan);
}

int moe_dispatcher_push_combine(moe_dispatcher_t *d, struct moe_plan *plan)
{
    int rc = expect(d, MOE_DISPATCHER_PREPARED, "backward nodes of combine");
    return rc ? rc : d->kind->push_combine(d, plan);
}

void moe_dispatcher_begin_backward(moe_dispatcher_t *d, const void *dy, void *dx)
{
    d->dy = dy;
    d->dx = dx;
    d->backward = true;
}

/* what is known */

const struct moe_dispatch_plan *moe_dispatcher_plan(const moe_dispatcher_t *d)
{
    return &d->plan;
}

ncclComm_t moe_dispatcher_comm(const moe_dispatcher_t *d)
{
    return d->tp_ep.comm;
}

int32_t moe_dispatcher_ranks(const moe_dispatcher_t *d)
{
    return d->tp_ep.size;
}

int32_t moe_dispatcher_rank(const moe_dispatcher_t *d)
{
    return d->tp_ep.rank;
}

int64_t moe_dispatcher_local(const moe_dispatcher_t *d)
{
    return d->local;
}

int64_t moe_dispatcher_max_rows(const moe_dispatcher_t *d)
{
    return d->max_rows;
}

bool moe_dispatcher_standing(const moe_dispatcher_t *d)
{
    return d->standing;
}

const void *moe_dispatcher_rows(const moe_dispatcher_t *d)
{
    return d->rows;
}

const float *moe_dispatcher_row_probs(const moe_dispatcher_t *d)
{
    return d->config.probs_travel ? d->row_probs : NULL;
}

const int64_t *moe_dispatcher_m(const moe_dispatcher_t *d)
{
    return d->m;
}

void *moe_dispatcher_expert_out(moe_dispatcher_t *d)
{
    return d->expert_out;
}

const void *moe_dispatcher_d_expert_out(const moe_dispatcher_t *d)
{
    return d->d_expert_out;
}

void *moe_dispatcher_d_rows(moe_dispatcher_t *d)
{
    return d->d_rows;
}

float *moe_dispatcher_d_row_probs(moe_dispatcher_t *d)
{
    return d->config.probs_travel ? d->d_row_probs : NULL;
}

const float *moe_dispatcher_d_probs(const moe_dispatcher_t *d)
{
    return d->d_probs;
}
