/*
 * dispatcher_alltoall.c: the all-to-all dispatcher (Megatron-LM token_dispatcher.py, MoEAlltoAllTokenDispatcher).
 *
 *     forward                                            backward, in launch order from the bottom up
 *  1  AllGather int64 [E + 1] of counts     tp_ep
 *  2  [shared: AllGather of x               tp]          [shared: ReduceScatter                  tp]
 *     permute                                            permute backward; [shared fc1]
 *  3  AlltoAll-v tokens                     ep           AlltoAll-v of their gradient            ep
 *  4  [shared fc1]  AlltoAll-v probs        ep           AlltoAll-v of their gradient            ep
 *  5  AllGather-v tokens, then probs        etp          ReduceScatter-v probs, then tokens      etp
 *  6  sort to expert-major, pad                          and back
 *     experts                                            experts
 *  7  back; ReduceScatter-v                 etp          AllGather-v                             etp
 *  8  AlltoAll-v                            ep           AlltoAll-v                              ep
 *  9  [shared fc2, ReduceScatter            tp]          [shared: AllGather, fc2                 tp]
 *     unpermute                                          unpermute backward
 *
 * A group of one rank takes no part: its step is left out, and rows go straight into the next step's buffer.
 * Probabilities travel only with probs_travel; else unpermute merges with them. Every collective is one node of the
 * backward plan with its obligation.
 *
 * dispatcher_alltoall_steps.c has the steps; this file has their order, forward and as nodes of the plan.
 */
#include "moe_core/dispatch/dispatcher_alltoall.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/remedy.h"
#include "moe_core/include/moe/shared.h"

#include <stdlib.h>

static struct moe_alltoall *state_of(const moe_dispatcher_t *d)
{
    return d->state;
}

static struct moe_movement movement(const moe_dispatcher_t *d)
{
    return (struct moe_movement){.kind = MOE_MAP_MASK,
                                 .type = d->config.type,
                                 .tokens = d->routing.tokens,
                                 .rows = state_of(d)->map_rows,
                                 .hidden = d->config.hidden};
}

static int take_d_probs(moe_dispatcher_t *d)
{
    return moe_dispatcher_take(d, (size_t)(d->routing.tokens * d->config.experts) * sizeof(float), &d->d_probs);
}

/*
 * Legacy slack: rows that the map does not fill hold NaN, as recycled memory may, unless SANITIZE is granted. Their
 * probabilities are zero either way.
 */
static int sanitize(moe_dispatcher_t *d, enum moe_alltoall_cargo cargo)
{
    const struct moe_alltoall *s = state_of(d);
    size_t row = (size_t)d->config.hidden * moe_dtype_bytes(d->config.type);
    char *slack = (char *)moe_alltoall_at(d, cargo, AT_SOURCE) + (size_t)s->map_rows * row;
    if (d->plan.slack == 0) {
        return 0;
    }
    int rc = 0;
    if (cargo == ROWS && d->config.probs_travel) {
        rc = moe_device_ops(d->device)->zero(d->device, moe_alltoall_probs_at(d, cargo, AT_SOURCE) + s->map_rows,
                                             (size_t)d->plan.slack * sizeof(float));
    }
    if (rc != 0 || moe_dispatcher_cured(d, MOE_REMEDY_SANITIZE)) {
        return rc ? rc : moe_device_ops(d->device)->zero(d->device, slack, (size_t)d->plan.slack * row);
    }
    cudaError_t err = cudaMemsetAsync(slack, 0xff, (size_t)d->plan.slack * row, moe_device_stream(d->device));
    return err == cudaSuccess ? 0 : DISPATCHER_FAIL(d, MOE_E_DEVICE, "cudaMemsetAsync: %s", cudaGetErrorString(err));
}

/* forward */

/* Decides which of the frameworks' empty-rank hazards happen in this forward. */
static void decide_legacy(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_legacy *legacy = &d->config.legacy;
    struct moe_alltoall *s = state_of(d);
    s->cut_dispatch = legacy->empty_from_input && d->plan.received == 0 && !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
    s->view_fails = legacy->empty_unpermute && d->plan.sent == 0 && d->routing.tokens > 0 &&
                    !moe_dispatcher_cured(d, MOE_REMEDY_FILL);
}

static int prepare(moe_dispatcher_t *d, uint32_t proposed, uint32_t *agreed)
{
    struct moe_alltoall *s = state_of(d);
    int rc = moe_alltoall_exchange(d, s, proposed, agreed);
    if (rc != 0) {
        return rc;
    }
    decide_legacy(d);
    struct moe_map_source source = {
        .index = d->routing.index, .counts = s->sizes, .drop = d->config.legacy.local_capacity};
    return moe_row_map_build_from(s->map, &source, d->config.topk, d->routing.tokens, s->map_rows);
}

static int forward(moe_dispatcher_t *d, const void *x)
{
    const struct moe_movement move = movement(d);
    const bool travel = d->config.probs_travel;
    moe_shared_t *shared = d->config.shared;
    int rc = shared ? moe_shared_pre_forward_comm(shared, d->shared_weights, x, d->routing.tokens) : 0;
    rc = rc ? rc : moe_alltoall_take(d, ROWS, AT_SOURCE, travel);
    rc = rc ? rc
            : moe_map_permute(state_of(d)->map, &move, x, travel ? d->routing.probs : NULL,
                              moe_alltoall_at(d, ROWS, AT_SOURCE), moe_alltoall_probs_at(d, ROWS, AT_SOURCE));
    rc = rc ? rc : sanitize(d, ROWS);
    rc = rc ? rc : moe_alltoall_over_ep(d, ROWS, false, "AlltoAll of tokens");
    rc = rc || shared == NULL ? rc : moe_shared_fc1(shared);
    rc = rc || !travel ? rc : moe_alltoall_probs_over_ep(d, ROWS, false, "AlltoAll of probabilities");
    rc = rc ? rc : moe_alltoall_gather_up(d, ROWS, "AllGather of tokens");
    rc = rc || !travel ? rc : moe_alltoall_probs_over_etp(d, ROWS, false, "AllGather of probabilities");
    rc = rc ? rc : moe_alltoall_order_up(d, ROWS, travel);
    return rc ? rc : moe_dispatcher_take_rows(d, d->plan.received, &d->expert_out);
}

static int combine(moe_dispatcher_t *d, void *y)
{
    const struct moe_alltoall *s = state_of(d);
    const struct moe_movement move = movement(d);
    moe_shared_t *shared = d->config.shared;
    int rc = moe_alltoall_order_down(d, EXPERT_OUT, false);
    rc = rc ? rc : moe_alltoall_scatter_down(d, EXPERT_OUT, "ReduceScatter of outputs");
    rc = rc ? rc : moe_alltoall_over_ep(d, EXPERT_OUT, true, "AlltoAll of outputs");
    if (rc == 0 && s->view_fails) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "0 rows were unpermuted to 0 rows; the output has %lld tokens",
                               (long long)d->routing.tokens);
    }
    rc = rc || shared == NULL ? rc : moe_shared_fc2(shared);
    rc = rc || shared == NULL ? rc : moe_shared_post_forward_comm(shared);
    rc = rc ? rc
            : moe_map_unpermute(s->map, &move, moe_alltoall_at(d, EXPERT_OUT, AT_SOURCE),
                                d->config.probs_travel ? NULL : d->routing.probs, y);
    if (d->config.probs_travel) { /* merged probabilities need it for their gradient */
        moe_alltoall_give(d, EXPERT_OUT, AT_SOURCE, false);
    }
    return rc || shared == NULL ? rc : moe_shared_get_output(shared, y, true);
}

/* backward: one node for each step, named after the forward step */

static int back_unpermute(void *arg)
{
    moe_dispatcher_t *d = arg;
    const struct moe_movement move = movement(d);
    bool merged = !d->config.probs_travel;
    if (!d->backward) {
        return DISPATCHER_FAIL(d, MOE_E_STATE, "backward before begin_backward");
    }
    int rc = moe_alltoall_take(d, D_EXPERT_OUT, AT_SOURCE, false);
    rc = rc || !merged ? rc : take_d_probs(d);
    rc = rc ? rc
            : moe_map_unpermute_backward(state_of(d)->map, &move, d->dy,
                                         merged ? moe_alltoall_at(d, EXPERT_OUT, AT_SOURCE) : NULL,
                                         merged ? d->routing.probs : NULL, moe_alltoall_at(d, D_EXPERT_OUT, AT_SOURCE),
                                         merged ? d->d_probs : NULL);
    moe_alltoall_give(d, EXPERT_OUT, AT_SOURCE, false);
    return rc ? rc : sanitize(d, D_EXPERT_OUT);
}

static int back_combine_ep(void *arg)
{
    return moe_alltoall_over_ep(arg, D_EXPERT_OUT, false, "AlltoAll of gradients of outputs");
}

static int back_combine_etp(void *arg)
{
    return moe_alltoall_gather_up(arg, D_EXPERT_OUT, "AllGather of gradients of outputs");
}

static int back_combine_order(void *arg)
{
    moe_dispatcher_t *d = arg;
    int rc = moe_alltoall_order_up(d, D_EXPERT_OUT, false);
    return rc ? rc : moe_dispatcher_take_received(d, &d->d_rows, &d->d_row_probs);
}

static int back_dispatch_order(void *arg)
{
    moe_dispatcher_t *d = arg;
    int rc = moe_alltoall_order_down(d, D_ROWS, d->config.probs_travel);
    moe_dispatcher_give(d, &state_of(d)->chunks);
    return rc;
}

static int back_probs_etp(void *arg)
{
    return moe_alltoall_probs_over_etp(arg, D_ROWS, true, "ReduceScatter of gradients of probabilities");
}

static int back_tokens_etp(void *arg)
{
    return moe_alltoall_scatter_down(arg, D_ROWS, "ReduceScatter of gradients of tokens");
}

static int back_probs_ep(void *arg)
{
    return moe_alltoall_probs_over_ep(arg, D_ROWS, true, "AlltoAll of gradients of probabilities");
}

static int back_tokens_ep(void *arg)
{
    return moe_alltoall_over_ep(arg, D_ROWS, true, "AlltoAll of gradients of tokens");
}

static int back_permute(void *arg)
{
    moe_dispatcher_t *d = arg;
    const struct moe_movement move = movement(d);
    const bool travel = d->config.probs_travel;
    int rc = travel ? take_d_probs(d) : 0;
    rc = rc ? rc
            : moe_map_permute_backward(state_of(d)->map, &move, moe_alltoall_at(d, D_ROWS, AT_SOURCE),
                                       moe_alltoall_probs_at(d, D_ROWS, AT_SOURCE), NULL, 1.0f, d->dx,
                                       travel ? d->d_probs : NULL);
    moe_alltoall_give(d, D_ROWS, AT_SOURCE, travel);
    moe_row_map_drop(state_of(d)->map);
    return rc;
}

/*
 * Stands in the plan for permute's backward where no gradient comes back: probabilities that travelled have no gradient
 * then.
 */
static int back_nothing(void *arg)
{
    moe_dispatcher_t *d = arg;
    int rc = take_d_probs(d);
    return rc ? rc
              : moe_device_ops(d->device)->zero(d->device, d->d_probs,
                                                (size_t)(d->routing.tokens * d->config.experts) * sizeof(float));
}

/* The backward steps of the shared expert; dy and dx are those of begin_backward. */
static int back_shared_gather(void *arg)
{
    moe_dispatcher_t *d = arg;
    return moe_shared_pre_backward_comm(d->config.shared, d->dy);
}

static int back_shared_fc2(void *arg)
{
    return moe_shared_fc2_backward(((moe_dispatcher_t *)arg)->config.shared);
}

static int back_shared_fc1(void *arg)
{
    return moe_shared_fc1_backward(((moe_dispatcher_t *)arg)->config.shared);
}

static int back_shared_scatter(void *arg)
{
    moe_dispatcher_t *d = arg;
    int rc = moe_shared_post_backward_comm(d->config.shared);
    return rc ? rc : moe_shared_get_grad(d->config.shared, d->dx, true);
}

static int push_shared(moe_dispatcher_t *d, struct moe_plan *plan, const char *name, int (*run)(void *), bool after)
{
    struct moe_node node = {.name = name, .run = run, .arg = d};
    if (d->config.shared == NULL) {
        return 0;
    }
    moe_shared_obligation(d->config.shared, after, &node);
    return moe_plan_push(plan, &node);
}

/* The elements per rank of a collective whose size is the same on all ranks; 0 where sizes differ. */
static uint64_t fixed_count(const moe_dispatcher_t *d, int64_t sources, int64_t width)
{
    int64_t capacity = d->config.legacy.local_capacity ? 0 : d->config.expert_capacity;
    return (uint64_t)(capacity * d->local * sources * width);
}

struct step {
    const char *name;
    int (*run)(void *);
    enum moe_obligation_op op;
    const struct moe_group *group;
    uint64_t count;
    bool wanted;
};

static int push_steps(moe_dispatcher_t *d, struct moe_plan *plan, const struct step *steps, size_t count)
{
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++) {
        if (steps[i].wanted) {
            rc = moe_dispatcher_push(d, plan, steps[i].name, steps[i].run, steps[i].op, steps[i].group, steps[i].count);
        }
    }
    return rc;
}

static int push_dispatch(moe_dispatcher_t *d, struct moe_plan *plan)
{
    bool probs = d->config.probs_travel, cut = d->detached || state_of(d)->cut_dispatch;
    bool ep = moe_alltoall_takes(d, AT_EP), etp = moe_alltoall_takes(d, AT_ETP);
    bool shared = d->config.shared != NULL;
    int64_t h = d->config.hidden;
    const struct step steps[] = {
        {"no gradient", back_nothing, MOE_OBLIGE_NONE, NULL, 0, cut && probs},
        {"permute", back_permute, MOE_OBLIGE_NONE, NULL, 0, !cut},
        {"shared fc1", back_shared_fc1, MOE_OBLIGE_NONE, NULL, 0, shared},
        {"dispatch tokens", back_tokens_ep, MOE_OBLIGE_ALLTOALL, &d->ep, fixed_count(d, 1, h), !cut && ep},
        {"dispatch probs", back_probs_ep, MOE_OBLIGE_ALLTOALL, &d->ep, fixed_count(d, 1, 1), !cut && ep && probs},
        {"gather tokens", back_tokens_etp, MOE_OBLIGE_REDUCESCATTER, &d->etp, fixed_count(d, d->ep.size, h),
         !cut && etp},
        {"gather probs", back_probs_etp, MOE_OBLIGE_REDUCESCATTER, &d->etp, fixed_count(d, d->ep.size, 1),
         !cut && etp && probs},
        {"sort", back_dispatch_order, MOE_OBLIGE_NONE, NULL, 0, !cut},
    };
    int rc = push_shared(d, plan, "shared end", back_shared_scatter, true);
    return rc ? rc : push_steps(d, plan, steps, sizeof(steps) / sizeof(steps[0]));
}

static int push_combine(moe_dispatcher_t *d, struct moe_plan *plan)
{
    bool ep = moe_alltoall_takes(d, AT_EP) && !d->detached, etp = moe_alltoall_takes(d, AT_ETP) && !d->detached;
    int64_t h = d->config.hidden;
    const struct step steps[] = {
        {"unsort", back_combine_order, MOE_OBLIGE_NONE, NULL, 0, !d->detached},
        {"combine etp", back_combine_etp, MOE_OBLIGE_ALLGATHER, &d->etp, fixed_count(d, d->ep.size, h), etp},
        {"combine", back_combine_ep, MOE_OBLIGE_ALLTOALL, &d->ep, fixed_count(d, 1, h), ep},
        {"shared fc2", back_shared_fc2, MOE_OBLIGE_NONE, NULL, 0, d->config.shared != NULL},
    };
    int rc = push_steps(d, plan, steps, sizeof(steps) / sizeof(steps[0]));
    rc = rc ? rc : push_shared(d, plan, "shared begin", back_shared_gather, false);
    return rc ? rc : moe_dispatcher_push(d, plan, "unpermute", back_unpermute, MOE_OBLIGE_NONE, NULL, 0);
}

/* life */

static int refuse_options(moe_dispatcher_t *d)
{
    const struct moe_dispatcher_config *c = &d->config;
    const struct {
        bool set;
        const char *what;
    } refused[] = {
        {c->row_budget > 0, "a row budget: every row is received"},
        {c->uneven != MOE_UNEVEN_NONE, "padding of tokens: different numbers are no trouble"},
        {c->legacy.empty_returns_early, "the legacy behaviour empty_returns_early"},
        {c->expert_capacity > 0 && c->legacy.static_rows, "static rows with a capacity: all sizes are static"},
        {c->expert_capacity == 0 && c->legacy.local_capacity, "a local capacity without a capacity"},
        {c->legacy.slack_uninitialised && !c->legacy.static_rows, "slack without static rows: there is none"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (refused[i].set) {
            return DISPATCHER_FAIL(d, MOE_E_UNSUPPORTED, "%s (alltoall dispatcher)", refused[i].what);
        }
    }
    return 0;
}

static void lay_out(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    const bool does[AT_STEPS] = {true, d->ep.size > 1, d->etp.size > 1, s->sources > 1 && d->local > 1,
                                 d->config.row_multiple > 1};
    for (int i = 0; i < AT_STEPS; i++) {
        s->taken[i] = does[i] ? (enum moe_alltoall_step)i : s->taken[i - 1];
    }
    s->last = s->taken[AT_STEPS - 1];
}

/* Makes the memory of a dispatcher whose sizes are the same in every forward. */
static int stand(moe_dispatcher_t *d, struct moe_alltoall *s)
{
    /* The most rows that a step can leave. */
    const int64_t most[AT_STEPS] = {s->max_sent, d->max_rows, d->max_rows, d->max_rows, 0};
    int rc = moe_dispatcher_take(d, moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, d->max_rows), &s->chunks);
    for (int i = 0; i < AT_STEPS && rc == 0; i++) {
        if (s->taken[i] == (enum moe_alltoall_step)i && (enum moe_alltoall_step)i != s->last) {
            rc = moe_dispatcher_take_rows(d, most[i], &s->scratch[i]);
            rc = rc ? rc : moe_dispatcher_take(d, (size_t)most[i] * sizeof(float), &s->scratch_probs[i]);
        }
    }
    return rc || s->last == AT_SOURCE ? rc : moe_dispatcher_take_rows(d, s->max_sent, &s->returned);
}

static void release(moe_dispatcher_t *d)
{
    struct moe_alltoall *s = state_of(d);
    moe_row_map_drop(s->map);
    moe_dispatcher_give(d, &s->chunks);
    moe_dispatcher_give(d, &s->returned);
    for (int i = 0; i < AT_STEPS; i++) {
        moe_dispatcher_give(d, &s->scratch[i]);
        moe_dispatcher_give(d, &s->scratch_probs[i]);
    }
}

static int open_state(moe_dispatcher_t *d)
{
    int rc = refuse_options(d);
    if (rc != 0) {
        return rc;
    }
    struct moe_alltoall *s = d->state = calloc(1, sizeof(*s));
    if (s == NULL) {
        return DISPATCHER_FAIL(d, MOE_E_NOMEM, "an all-to-all dispatcher");
    }
    moe_alltoall_limits(d, s);
    if (d->max_rows > INT32_MAX) {
        return DISPATCHER_FAIL(d, MOE_E_SHAPE, "%lld rows for one rank", (long long)d->max_rows);
    }
    lay_out(d, s);
    return 0;
}

static int create(moe_dispatcher_t *d)
{
    struct moe_alltoall *s = state_of(d);
    d->standing = d->config.expert_capacity > 0;
    const struct moe_row_map_config map = {
        .kind = MOE_MAP_MASK, .max_tokens = d->config.max_tokens, .experts = d->config.experts, .pooled = !d->standing};
    int rc = moe_alltoall_sizes_new(d, s);
    rc = rc ? rc : moe_row_map_create(d->device, &map, &s->map);
    return rc || !d->standing ? rc : stand(d, s);
}

static void destroy(moe_dispatcher_t *d)
{
    struct moe_alltoall *s = state_of(d);
    if (s == NULL) {
        return;
    }
    moe_alltoall_sizes_destroy(d, s);
    moe_row_map_destroy(&s->map);
    moe_dispatcher_free(d, &s->chunks);
    moe_dispatcher_free(d, &s->returned);
    for (int i = 0; i < AT_STEPS; i++) {
        moe_dispatcher_free(d, &s->scratch[i]);
        moe_dispatcher_free(d, &s->scratch_probs[i]);
    }
    free(s);
    d->state = NULL;
}

const struct moe_dispatcher_kind_ops moe_dispatcher_alltoall = {.name = "alltoall",
                                                                .open = open_state,
                                                                .create = create,
                                                                .destroy = destroy,
                                                                .release = release,
                                                                .prepare = prepare,
                                                                .decline = moe_alltoall_decline,
                                                                .forward = forward,
                                                                .combine = combine,
                                                                .push_dispatch = push_dispatch,
                                                                .push_combine = push_combine};
