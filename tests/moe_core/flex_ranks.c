/*
 * flex_ranks.c: the ranks: threads with communicators and a dispatcher, and what each does.
 */
#include "tests/moe_core/flex_inside.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/plan.h"

#include <pthread.h>
#include <time.h>

static void fill(struct flex_rank *r);

static int send(struct flex_rank *r, const struct moe_routing *routing, int n)
{
    int before = flex_waits;
    if (r->c->recomputed) {
        struct moe_event at = {
            .size = sizeof(at), .phase = n == 0 ? MOE_PHASE_FORWARD : MOE_PHASE_RECOMPUTE, .step = 7, .microbatch = 2};
        moe_dispatcher_at(r->d, &at);
        moe_dispatcher_share(r->d, true);
    }
    int rc = moe_dispatcher_prepare(r->d, routing, r->c->proposed[r->rank], &r->out->agreed[n & 3]);
    rc = rc ? rc : moe_dispatcher_forward(r->d, r->narrow_x);
    r->out->forward_waits = flex_waits - before;
    return rc;
}

/* `send` as a graph, recorded before anything is routed: whatever the host decided while it recorded is wrong. */
static int send_captured(struct flex_rank *r, const struct moe_routing *routing, int n)
{
    cudaStream_t stream = moe_device_stream(r->device);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    for (int64_t i = 0; i < routing->tokens * r->c->topk; i++) {
        r->index[i] = -1;
    }
    int rc = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : send(r, routing, n);
    rc = cudaStreamEndCapture(stream, &graph) == cudaSuccess ? rc : MOE_E_DEVICE;
    rc = rc ? rc : cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess ? 0 : MOE_E_DEVICE;
    fill(r);
    for (int replay = 0; replay < 2 && rc == 0; replay++) {
        rc = cudaGraphLaunch(exec, stream) == cudaSuccess ? 0 : MOE_E_DEVICE;
    }
    rc = rc ? rc : moe_device_sync(r->device);
    if (exec != NULL) {
        cudaGraphExecDestroy(exec);
    }
    if (graph != NULL) {
        cudaGraphDestroy(graph);
    }
    return rc;
}

static int forward(struct flex_rank *r, int n, int64_t tokens)
{
    const struct flex_case *c = r->c;
    struct moe_routing routing = {.tokens = tokens, .index = r->index, .probs = r->probs, .counts = r->counts};
    union {
        const void *given;
        void *own;
    } rows = {moe_dispatcher_rows(r->d)};
    if (moe_dispatcher_standing(r->d)) { /* memory of the pool is poisoned by the pool: MOE_POISON */
        flex_poison(r, rows.own);
    }
    int rc = c->capture ? send_captured(r, &routing, n) : send(r, &routing, n);
    rc = rc ? rc : moe_device_sync(r->device);
    if (rc == 0) {
        int before = flex_waits;
        flex_count_stray(r);
        flex_experts_forward(r);
        rc = moe_dispatcher_combine(r->d, r->narrow_y);
        r->out->forward_waits += flex_waits - before;
    }
    return rc ? rc : moe_device_sync(r->device);
}

static int backward(struct flex_rank *r)
{
    struct moe_plan plan;
    struct moe_event base = {.size = sizeof(base)};
    struct moe_node experts = {.name = "experts", .run = flex_experts_backward, .arg = r};
    moe_plan_reset(&plan);
    int rc = moe_dispatcher_push_dispatch(r->d, &plan);
    rc = rc ? rc : moe_plan_push(&plan, &experts);
    rc = rc ? rc : moe_dispatcher_push_combine(r->d, &plan);
    if (rc == 0) {
        moe_plan_report(&plan, &base);
        moe_dispatcher_begin_backward(r->d, r->narrow_dy, r->narrow_dx);
        rc = moe_plan_run(&plan);
    }
    return rc ? rc : moe_device_sync(r->device);
}

static void keep(struct flex_rank *r)
{
    const struct flex_case *c = r->c;
    struct flex_result *out = r->out;
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(r->d);
    int64_t tokens = c->tokens[r->rank], experts = flex_experts(c);
    out->tokens = tokens;
    out->received = plan->received;
    out->exact = plan->exact;
    out->empty_experts = plan->empty_experts;
    out->pad_rows = plan->padded;
    out->sent = plan->sent;
    out->remedied = plan->remedied;
    out->padded = moe_flex_padded(r->d);
    memcpy(out->m, moe_dispatcher_m(r->d), sizeof(out->m));
    for (int64_t i = 0; i < tokens * FLEX_H; i++) {
        out->y[i] = flex_get(c, r->narrow_y, i);
        out->dx[i] = flex_get(c, r->narrow_dx, i);
    }
    if (!c->no_backward) {
        memcpy(out->d_probs, moe_dispatcher_d_probs(r->d), (size_t)(tokens * experts) * sizeof(float));
    }
    if (c->kind == MOE_DISPATCH_DEEPEP || c->kind == MOE_DISPATCH_HYBRIDEP) {
        moe_flex_buffer(r->d, &out->buffer);
    }
    out->dropped = moe_flex_dropped_sum(r->d) != NULL ? *moe_flex_dropped_sum(r->d) : 0;
}

static int run_dispatcher(struct flex_rank *r)
{
    const struct flex_case *c = r->c;
    int rc = 0;
    for (int n = 0; n < (c->forwards > 1 ? c->forwards : 1) && rc == 0; n++) {
        rc = forward(r, n, c->first_tokens > 0 && n == 0 ? c->first_tokens : c->tokens[r->rank]);
    }
    r->out->forward_calls = r->out->calls;
    rc = rc || c->no_backward ? rc : backward(r);
    if (rc == 0) {
        keep(r);
        if (moe_flex_dropped_sum(r->d) != NULL) {
            bool again = true;
            int64_t left = -1;
            rc = moe_flex_replay(r->d, c->alone, &r->out->replay, &r->out->most_dropped);
            rc = rc ? rc : moe_flex_replay(r->d, true, &again, &left);
            rc = rc || (!again && left == 0) ? rc : MOE_E_STATE; /* an overflow is told once */
        }
    }
    return rc;
}

static void fill(struct flex_rank *r)
{
    const struct flex_case *c = r->c;
    struct flex_model *m = malloc(sizeof(*m));
    flex_make_model(c, r->rank, m);
    for (int64_t i = 0; i < c->tokens[r->rank] * FLEX_H; i++) {
        flex_put(c, r->narrow_x, i, (float)m->x[i]);
        flex_put(c, r->narrow_dy, i, (float)m->dy[i]);
        flex_put(c, r->narrow_dx, i, 0.5f); /* added to */
        flex_put(c, r->narrow_y, i, NAN);
    }
    for (int64_t i = 0; i < c->tokens[r->rank] * flex_experts(c); i++) {
        r->probs[i] = (float)m->probs[i];
    }
    memcpy(r->index, m->index, sizeof(m->index));
    memcpy(r->counts, m->counts, sizeof(m->counts));
    free(m);
}

static int allocate(struct flex_rank *r)
{
    struct {
        void *at;
        size_t bytes;
    } arrays[] = {{&r->narrow_x, FLEX_T * FLEX_H * sizeof(float)},
                  {&r->narrow_y, FLEX_T * FLEX_H * sizeof(float)},
                  {&r->narrow_dy, FLEX_T * FLEX_H * sizeof(float)},
                  {&r->narrow_dx, FLEX_T * FLEX_H * sizeof(float)},
                  {&r->probs, FLEX_T * FLEX_E * sizeof(float)},
                  {&r->index, FLEX_T * 4 * sizeof(int32_t)},
                  {&r->counts, FLEX_E * sizeof(int64_t)}};
    int rc = 0;
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && rc == 0; i++) {
        rc = moe_device_alloc(r->device, arrays[i].bytes, arrays[i].at);
    }
    return rc;
}

static int join_groups(struct flex_rank *r)
{
    const struct flex_case *c = r->c;
    ncclComm_t world = NULL, ep = NULL, etp = NULL;
    if (ncclCommInitRank(&world, c->ranks, r->id, r->rank) != ncclSuccess) {
        return MOE_E_COMM;
    }
    r->world = world;
    if (flex_etp(c) > 1) {
        if (ncclCommSplit(world, r->rank % c->etp, r->rank, &ep, NULL) != ncclSuccess ||
            ncclCommSplit(world, r->rank / c->etp, r->rank, &etp, NULL) != ncclSuccess) {
            return MOE_E_COMM;
        }
        r->ep = ep;
        r->etp = etp;
    }
    return 0;
}

static int make_dispatcher(struct flex_rank *r)
{
    const struct flex_case *c = r->c;
    bool split = flex_etp(c) > 1;
    struct moe_dispatcher_config config = {
        .kind = c->kind,
        .max_tokens = c->max_tokens > 0 ? c->max_tokens : FLEX_T,
        .hidden = FLEX_H,
        .experts = flex_experts(c),
        .topk = c->topk,
        .type = c->type,
        .probs_travel = c->travel,
        .row_multiple = c->row_multiple,
        .row_budget = c->row_budget,
        .budget_factor = c->budget_factor,
        .node_ranks = c->node_ranks,
        .uneven = c->uneven,
        .token_bound = c->bound,
        .groups = {.ep = split ? r->ep : r->world, .etp = split ? r->etp : NULL, .tp_ep = split ? r->world : NULL},
        .legacy = c->legacy,
        .world_rank = r->rank,
        .layer = 3};
    return moe_dispatcher_new(r->device, &config, &r->d);
}

static void *run_rank(void *arg)
{
    struct flex_rank *r = arg;
    struct flex_result *out = r->out;
    flex_self = r;
    out->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    out->rc = out->rc ? out->rc : moe_device_new_host(&r->device);
    out->rc = out->rc ? out->rc : join_groups(r);
    out->rc = out->rc ? out->rc : allocate(r);
    out->rc = out->rc ? out->rc : make_dispatcher(r);
    out->ready = 1;
    if (out->rc == 0) {
        fill(r);
        out->rc = run_dispatcher(r);
    }
    if (out->rc != 0) {
        snprintf(out->message, sizeof(out->message), "%s", moe_last_error());
    }
    out->done = 1;
    return NULL;
}

static void clean(struct flex_rank *r, bool aborted)
{
    flex_self = NULL;
    void *arrays[] = {&r->narrow_x, &r->narrow_y, &r->narrow_dy, &r->narrow_dx, &r->probs, &r->index, &r->counts};
    moe_dispatcher_destroy(&r->d);
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && r->device != NULL; i++) {
        moe_device_free(r->device, arrays[i]);
    }
    moe_device_destroy(&r->device);
    ncclComm_t comms[] = {r->ep, r->etp, r->world};
    for (size_t i = 0; i < 3 && !aborted; i++) {
        if (comms[i] != NULL) {
            ncclCommDestroy(comms[i]);
        }
    }
}

/*
 * Waits until all ranks are done (returns 0), until no rank has made progress for `ms`, or for minutes at most; returns
 * how many ranks are not done.
 */
static int wait_for(const struct flex_case *c, const struct flex_result *results, int ms)
{
    size_t before = 0;
    int missing = c->ranks, quiet = 0;
    for (int waited = 0; missing > 0 && quiet < ms && waited < 200000; waited++) {
        size_t calls = 0;
        int ready = 0;
        missing = 0;
        for (int r = 0; r < c->ranks; r++) {
            missing += results[r].done == 0;
            ready += results[r].ready;
            calls += results[r].calls + (size_t)results[r].done;
        }
        quiet = ready == c->ranks && calls == before ? quiet + 1 : 0;
        before = calls;
        if (missing > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
    return missing;
}

static bool run(const struct flex_case *c, struct flex_result *results, int ms)
{
    static struct flex_rank rank[FLEX_RANKS];
    pthread_t thread[FLEX_RANKS];
    ncclUniqueId id;
    memset(rank, 0, sizeof(rank));
    memset(results, 0, FLEX_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < c->ranks; r++) {
        rank[r].c = c;
        rank[r].id = id;
        rank[r].rank = r;
        rank[r].out = &results[r];
        pthread_mutex_init(&rank[r].gate, NULL);
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    bool hung = wait_for(c, results, ms) > 0;
    for (int r = 0; hung && r < c->ranks; r++) {
        flex_end_rank(&rank[r]);
        ncclComm_t comms[] = {rank[r].ep, rank[r].etp, rank[r].world};
        for (size_t i = 0; i < 3; i++) {
            if (comms[i] != NULL) {
                ncclCommAbort(comms[i]);
            }
        }
    }
    for (int r = 0; r < c->ranks; r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < c->ranks; r++) {
        clean(&rank[r], hung);
    }
    return hung;
}

void flex_run(const struct flex_case *c, struct flex_result *results)
{
    if (run(c, results, 20000)) {
        fail_msg("%d ranks hang", c->ranks);
    }
}

bool flex_hangs(const struct flex_case *c, struct flex_result *results, int ms)
{
    return run(c, results, ms);
}
