/*
 * flex_ranks.c: the ranks, their experts, the reference, and the NCCL calls counted on their way through.
 *
 * Experts work on the host in between: a wait of the test's own, which is why waits are counted only inside the
 * dispatcher's calls.
 */
#include "tests/moe_core/flex_ranks.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/plan.h"
#include "moe_core/include/moe/remedy.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

struct rank {
    const struct flex_case *c;
    struct flex_result *out;
    ncclUniqueId id;
    int rank;
    _Atomic(ncclComm_t) world, ep, etp;
    moe_device_t *device;
    moe_dispatcher_t *d;
    float *x, *dy, *dx, *y, *probs;
    void *narrow_x, *narrow_y, *narrow_dy, *narrow_dx;
    int32_t *index;
    int64_t *counts;
    /*
     * A rank that wakes up because its communicators were aborted must not use them again: as in a real job, the thread
     * that aborts says so first.
     */
    pthread_mutex_t gate;
    bool ended;
};

static _Thread_local struct rank *self;
static _Thread_local int in_group, group_sends, waits;
static _Thread_local bool passed; /* this thread holds its rank's gate */

/* the calls */

/* The vendor's header declares them without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static void *next(const char *name)
{
    void *fn = dlsym(RTLD_NEXT, name);
    if (fn == NULL) {
        fprintf(stderr, "no %s\n", name);
        abort();
    }
    return fn;
}

/* Whether this rank may call NCCL. If so, its communicators are not aborted before leave(). Groups enter once. */
static bool enter(void)
{
    if (self != NULL && in_group == 0) {
        pthread_mutex_lock(&self->gate);
        passed = !self->ended;
        if (!passed) {
            pthread_mutex_unlock(&self->gate);
        }
    }
    return self == NULL || passed;
}

static ncclResult_t leave(ncclResult_t result)
{
    if (self != NULL && in_group == 0 && passed) {
        passed = false;
        pthread_mutex_unlock(&self->gate);
    }
    return result;
}

static void end_rank(struct rank *r)
{
    pthread_mutex_lock(&r->gate);
    r->ended = true;
    pthread_mutex_unlock(&r->gate);
}

static void note(char op, size_t bytes)
{
    if (self != NULL && self->d != NULL && self->out->calls < FLEX_CALLS) {
        self->out->call[self->out->calls] = (struct flex_call){op, bytes};
        self->out->calls++;
    }
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    note(op == ncclMax && type == ncclInt64 && count == 1 ? 'R' : '?', count);
    return !enter()
               ? ncclInvalidUsage
               : leave(((__typeof__(ncclAllReduce) *)next("ncclAllReduce"))(send, recv, count, type, op, comm, stream));
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    note('G', count * (type == ncclInt64 ? 8 : type == ncclFloat32 ? 4 : type == ncclBfloat16 ? 2 : 1));
    return !enter()
               ? ncclInvalidUsage
               : leave(((__typeof__(ncclAllGather) *)next("ncclAllGather"))(send, recv, count, type, comm, stream));
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    note('S', count * (type == ncclFloat32 ? 4 : 2));
    return !enter() ? ncclInvalidUsage
                    : leave(((__typeof__(ncclReduceScatter) *)next("ncclReduceScatter"))(send, recv, count, type, op,
                                                                                         comm, stream));
}

ncclResult_t ncclGroupStart(void)
{
    bool may = enter();
    in_group++;
    group_sends = 0;
    return may ? ((__typeof__(ncclGroupStart) *)next("ncclGroupStart"))() : ncclInvalidUsage;
}

ncclResult_t ncclGroupEnd(void)
{
    bool may = self == NULL || passed;
    if (--in_group == 0) {
        note('A', 0);
    }
    return may ? leave(((__typeof__(ncclGroupEnd) *)next("ncclGroupEnd"))()) : ncclInvalidUsage;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    waits++;
    return ((__typeof__(cudaStreamSynchronize) *)next("cudaStreamSynchronize"))(stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    waits++;
    return ((__typeof__(cudaEventSynchronize) *)next("cudaEventSynchronize"))(event);
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return self != NULL ? hazard & self->c->granted : 0;
}

void moe_observe(const struct moe_event *event)
{
    if (self != NULL && event->kind == MOE_EV_OBLIGE) {
        self->out->obligations++;
    }
    if (self != NULL && event->kind == MOE_EV_UNIFORM) {
        self->out->uniform[event->peer]++;
        self->out->said[event->peer] = event->count;
        assert_non_null(event->comm);
    }
}

/* the model: equal in float and in double */

static int etp_of(const struct flex_case *c)
{
    return c->etp > 1 ? c->etp : 1;
}

static int64_t experts_of(const struct flex_case *c)
{
    return c->ranks / etp_of(c) * FLEX_L;
}

/* Rounded to what a row can hold. */
static double held(const struct flex_case *c, double v)
{
    float f = (float)v;
    if (c->type == MOE_BF16) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof(bits));
        bits &= 0xffff0000u;
        memcpy(&f, &bits, sizeof(f));
    }
    return (double)f;
}

static double expert_a(int64_t e)
{
    return 0.5 + 0.25 * (double)e;
}

static double expert_b(int64_t e)
{
    return 1.0 - 0.125 * (double)e;
}

/* The part of an expert that etp rank q has. */
static double share(const struct flex_case *c, int q)
{
    return etp_of(c) == 1 ? 1.0 : q == 0 ? 0.25 : 0.75 / (etp_of(c) - 1);
}

struct model {
    double x[FLEX_T * FLEX_H], dy[FLEX_T * FLEX_H], probs[FLEX_T * FLEX_E];
    int32_t index[FLEX_T * 4];
    int64_t counts[FLEX_E];
};

static void make_model(const struct flex_case *c, int rank, struct model *m)
{
    int64_t experts = experts_of(c);
    int32_t allowed[FLEX_E], n = 0;
    for (int32_t e = 0; e < experts; e++) {
        if ((c->empty >> (e / FLEX_L) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    memset(m, 0, sizeof(*m));
    for (int64_t t = 0; t < c->tokens[rank]; t++) {
        uint64_t seed = (uint64_t)(rank * 1000 + t) * 7919 + 13;
        support_random(&seed);
        for (int h = 0; h < FLEX_H; h++) {
            m->x[t * FLEX_H + h] = held(c, support_random(&seed));
            m->dy[t * FLEX_H + h] = held(c, support_random(&seed));
        }
        int32_t first = (int32_t)((support_random(&seed) + 1.0) * 1000.0);
        for (int32_t j = 0; j < c->topk; j++) {
            bool none = j >= n || (c->masked && (t + j) % 3 == 0);
            int32_t e = none ? -1 : allowed[(first + j * (n > c->topk ? n / c->topk : 1)) % n];
            m->index[t * c->topk + j] = e;
            if (e >= 0) {
                m->probs[t * experts + e] = (double)(float)(0.6 + 0.4 * support_random(&seed));
                m->counts[e]++;
            }
        }
    }
}

/* experts */

static float get(const struct flex_case *c, const void *rows, int64_t i)
{
    if (c->type == MOE_F32) {
        return ((const float *)rows)[i];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)rows)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void put(const struct flex_case *c, void *rows, int64_t i, float value)
{
    if (c->type == MOE_F32) {
        ((float *)rows)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    ((uint16_t *)rows)[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Runs fn on every element of every row of every local expert. */
static void experts_rows(struct rank *r, void (*fn)(struct rank *r, int64_t local, int64_t row, int64_t i))
{
    const int64_t *m = moe_dispatcher_m(r->d);
    int64_t row = 0;
    for (int64_t l = 0; l < FLEX_L; l++) {
        for (int64_t n = 0; n < m[l]; n++, row++) {
            for (int h = 0; h < FLEX_H; h++) {
                fn(r, l, row, row * FLEX_H + h);
            }
        }
    }
}

static int64_t number_of(const struct rank *r, int64_t local)
{
    return r->rank / etp_of(r->c) * FLEX_L + local;
}

static float prob_of(const struct rank *r, int64_t row)
{
    const float *probs = moe_dispatcher_row_probs(r->d);
    return probs != NULL ? probs[row] : 1.0f;
}

static void forward_element(struct rank *r, int64_t local, int64_t row, int64_t i)
{
    double x = (double)get(r->c, moe_dispatcher_rows(r->d), i), part = share(r->c, r->rank % etp_of(r->c));
    int64_t e = number_of(r, local);
    put(r->c, moe_dispatcher_expert_out(r->d), i,
        (float)((double)prob_of(r, row) * part * (expert_a(e) * x + expert_b(e) * x * x)));
}

static void backward_element(struct rank *r, int64_t local, int64_t row, int64_t i)
{
    double x = (double)get(r->c, moe_dispatcher_rows(r->d), i), part = share(r->c, r->rank % etp_of(r->c)),
           p = (double)prob_of(r, row), up = (double)get(r->c, moe_dispatcher_d_expert_out(r->d), i);
    int64_t e = number_of(r, local);
    float *d_probs = moe_dispatcher_d_row_probs(r->d);
    put(r->c, moe_dispatcher_d_rows(r->d), i, (float)(up * p * part * (expert_a(e) + 2 * expert_b(e) * x)));
    if (d_probs != NULL) {
        float before = i % FLEX_H == 0 ? 0.0f : d_probs[row];
        d_probs[row] = before + (float)(up * part * (expert_a(e) * x + expert_b(e) * x * x));
    }
    r->out->d_a[local] += up * p * part * x;
    r->out->d_b[local] += up * p * part * x * x;
}

/* Fills rows that nothing may read. */
static void poison(const struct rank *r, void *rows)
{
    for (int64_t i = 0; i < moe_dispatcher_max_rows(r->d) * FLEX_H; i++) {
        put(r->c, rows, i, NAN);
    }
}

/* Counts the rows beyond the received ones that were written, which nothing may do. */
static void count_stray(struct rank *r)
{
    const void *rows = moe_dispatcher_rows(r->d);
    r->out->canaries = r->out->stray = 0;
    for (int64_t row = moe_dispatcher_plan(r->d)->received; row < moe_dispatcher_max_rows(r->d); row++) {
        bool whole = true;
        for (int h = 0; h < FLEX_H; h++) {
            whole = whole && isnan(get(r->c, rows, row * FLEX_H + h));
        }
        r->out->canaries++;
        r->out->stray += !whole;
    }
}

static int experts_backward(void *arg)
{
    struct rank *r = arg;
    int rc = moe_device_sync(r->device);
    if (rc == 0) {
        poison(r, moe_dispatcher_d_rows(r->d));
        experts_rows(r, backward_element);
    }
    return rc;
}

/* a rank */

static void fill(struct rank *r);

static int send(struct rank *r, const struct moe_routing *routing, int n)
{
    int before = waits;
    int rc = moe_dispatcher_prepare(r->d, routing, r->c->proposed[r->rank], &r->out->agreed[n & 3]);
    rc = rc ? rc : moe_dispatcher_forward(r->d, r->narrow_x);
    r->out->forward_waits = waits - before;
    return rc;
}

/* The same as a graph, recorded before anything is routed: whatever the host decided while it recorded is wrong. */
static int send_captured(struct rank *r, const struct moe_routing *routing, int n)
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

static int forward(struct rank *r, int n, int64_t tokens)
{
    const struct flex_case *c = r->c;
    struct moe_routing routing = {.tokens = tokens, .index = r->index, .probs = r->probs, .counts = r->counts};
    union {
        const void *given;
        void *own;
    } rows = {moe_dispatcher_rows(r->d)};
    poison(r, rows.own);
    int rc = c->capture ? send_captured(r, &routing, n) : send(r, &routing, n);
    rc = rc ? rc : moe_device_sync(r->device);
    if (rc == 0) {
        int before = waits;
        count_stray(r);
        poison(r, moe_dispatcher_expert_out(r->d));
        experts_rows(r, forward_element);
        rc = moe_dispatcher_combine(r->d, r->narrow_y);
        r->out->forward_waits += waits - before;
    }
    return rc ? rc : moe_device_sync(r->device);
}

static int backward(struct rank *r)
{
    struct moe_plan plan;
    struct moe_event base = {.size = sizeof(base)};
    struct moe_node experts = {.name = "experts", .run = experts_backward, .arg = r};
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

static void keep(struct rank *r)
{
    const struct flex_case *c = r->c;
    struct flex_result *out = r->out;
    const struct moe_dispatch_plan *plan = moe_dispatcher_plan(r->d);
    int64_t tokens = c->tokens[r->rank], experts = experts_of(c);
    out->tokens = tokens;
    out->received = plan->received;
    out->exact = plan->exact;
    out->empty_experts = plan->empty_experts;
    out->pad_rows = plan->padded;
    out->padded = moe_flex_padded(r->d);
    memcpy(out->m, moe_dispatcher_m(r->d), sizeof(out->m));
    for (int64_t i = 0; i < tokens * FLEX_H; i++) {
        out->y[i] = get(c, r->narrow_y, i);
        out->dx[i] = get(c, r->narrow_dx, i);
    }
    if (!c->no_backward) {
        memcpy(out->d_probs, moe_dispatcher_d_probs(r->d), (size_t)(tokens * experts) * sizeof(float));
    }
    if (c->kind == MOE_DISPATCH_DEEPEP || c->kind == MOE_DISPATCH_HYBRIDEP) {
        moe_flex_buffer(r->d, &out->buffer);
    }
    out->dropped = moe_flex_dropped_sum(r->d) != NULL ? *moe_flex_dropped_sum(r->d) : 0;
}

static int run_dispatcher(struct rank *r)
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
            rc = moe_flex_replay(r->d, c->alone, &r->out->replay, &r->out->most_dropped);
        }
    }
    return rc;
}

static void fill(struct rank *r)
{
    const struct flex_case *c = r->c;
    struct model *m = malloc(sizeof(*m));
    make_model(c, r->rank, m);
    for (int64_t i = 0; i < c->tokens[r->rank] * FLEX_H; i++) {
        put(c, r->narrow_x, i, (float)m->x[i]);
        put(c, r->narrow_dy, i, (float)m->dy[i]);
        put(c, r->narrow_dx, i, 0.5f); /* added to */
        put(c, r->narrow_y, i, NAN);
    }
    for (int64_t i = 0; i < c->tokens[r->rank] * experts_of(c); i++) {
        r->probs[i] = (float)m->probs[i];
    }
    memcpy(r->index, m->index, sizeof(m->index));
    memcpy(r->counts, m->counts, sizeof(m->counts));
    free(m);
}

static int allocate(struct rank *r)
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

static int join_groups(struct rank *r)
{
    const struct flex_case *c = r->c;
    ncclComm_t world = NULL, ep = NULL, etp = NULL;
    if (ncclCommInitRank(&world, c->ranks, r->id, r->rank) != ncclSuccess) {
        return MOE_E_COMM;
    }
    r->world = world;
    if (etp_of(c) > 1) {
        if (ncclCommSplit(world, r->rank % c->etp, r->rank, &ep, NULL) != ncclSuccess ||
            ncclCommSplit(world, r->rank / c->etp, r->rank, &etp, NULL) != ncclSuccess) {
            return MOE_E_COMM;
        }
        r->ep = ep;
        r->etp = etp;
    }
    return 0;
}

static int make_dispatcher(struct rank *r)
{
    const struct flex_case *c = r->c;
    bool split = etp_of(c) > 1;
    struct moe_dispatcher_config config = {
        .kind = c->kind,
        .max_tokens = c->max_tokens > 0 ? c->max_tokens : FLEX_T,
        .hidden = FLEX_H,
        .experts = experts_of(c),
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
    struct rank *r = arg;
    struct flex_result *out = r->out;
    self = r;
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

/* all ranks */

static void clean(struct rank *r, bool aborted)
{
    self = NULL;
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
    static struct rank rank[FLEX_RANKS];
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
        end_rank(&rank[r]);
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

/* comparison */

static bool chosen(const struct flex_case *c, const struct model *m, int64_t t, int64_t e)
{
    for (int32_t j = 0; j < c->topk; j++) {
        if (m->index[t * c->topk + j] == e) {
            return true;
        }
    }
    return false;
}

/* Which choices have a row: a rank's experts in order, of each the source ranks in order, of each its tokens, until the
 * budget is used up. */
static void keep_choices(const struct flex_case *c, bool kept[FLEX_RANKS][FLEX_T * FLEX_E])
{
    int64_t experts = experts_of(c);
    struct model *m = malloc(sizeof(*m));
    for (int64_t e = 0, rows = 0; e < experts; e++) {
        rows = e % FLEX_L == 0 ? 0 : rows;
        for (int r = 0; r < c->ranks; r++) {
            make_model(c, r, m);
            for (int64_t t = 0; t < c->tokens[r]; t++) {
                bool here = chosen(c, m, t, e);
                rows += here;
                kept[r][t * experts + e] = here && (c->row_budget == 0 || rows <= c->row_budget);
            }
        }
    }
    free(m);
}

void flex_check(const struct flex_case *c, const struct flex_result *results, double tolerance)
{
    for (int r = 0; r < c->ranks; r++) {
        assert_int_equal(results[r].stray, 0);
    }
    int64_t experts = experts_of(c);
    double d_a[FLEX_E] = {0}, d_b[FLEX_E] = {0};
    static bool kept[FLEX_RANKS][FLEX_T * FLEX_E];
    struct model *m = malloc(sizeof(*m));
    keep_choices(c, kept);
    double *y = support_doubles(FLEX_T * FLEX_H), *dx = support_doubles(FLEX_T * FLEX_H),
           *d_probs = support_doubles(FLEX_T * FLEX_E);
    for (int r = 0; r < c->ranks; r++) {
        make_model(c, r, m);
        memset(d_probs, 0, FLEX_T * FLEX_E * sizeof(*d_probs));
        for (int64_t i = 0; i < c->tokens[r] * FLEX_H; i++) {
            int64_t t = i / FLEX_H;
            double x = m->x[i];
            y[i] = 0;
            dx[i] = 0.5;
            for (int64_t e = 0; e < experts; e++) {
                if (kept[r][t * experts + e]) {
                    double p = m->probs[t * experts + e], f = expert_a(e) * x + expert_b(e) * x * x;
                    y[i] += p * f;
                    dx[i] += m->dy[i] * p * (expert_a(e) + 2 * expert_b(e) * x);
                    d_probs[t * experts + e] += m->dy[i] * f;
                    d_a[e] += m->dy[i] * p * x;
                    d_b[e] += m->dy[i] * p * x * x;
                }
            }
        }
        support_close("y", results[r].y, y, c->tokens[r] * FLEX_H, tolerance);
        if (!c->no_backward) {
            support_close("dx", results[r].dx, dx, c->tokens[r] * FLEX_H, tolerance);
            support_close("d_probs", results[r].d_probs, d_probs, c->tokens[r] * experts, tolerance);
        }
    }
    for (int r = 0; r < c->ranks && !c->no_backward; r++) {
        for (int64_t l = 0; l < FLEX_L; l++) {
            int64_t e = r / etp_of(c) * FLEX_L + l;
            double part = share(c, r % etp_of(c));
            if (fabs(results[r].d_a[l] - part * d_a[e]) > tolerance * 100 ||
                fabs(results[r].d_b[l] - part * d_b[e]) > tolerance * 100) {
                fail_msg("rank %d, expert %lld: gradients %g %g, want %g %g", r, (long long)e, results[r].d_a[l],
                         results[r].d_b[l], part * d_a[e], part * d_b[e]);
            }
        }
    }
    free(m);
    free(y);
    free(dx);
    free(d_probs);
}

void flex_equal(const struct flex_case *c, const struct flex_result *a, const struct flex_result *b)
{
    for (int r = 0; r < c->ranks; r++) {
        size_t rows = (size_t)(c->tokens[r] * FLEX_H) * sizeof(float);
        assert_memory_equal(a[r].y, b[r].y, rows);
        assert_memory_equal(a[r].dx, b[r].dx, rows);
        assert_memory_equal(a[r].d_probs, b[r].d_probs, (size_t)(c->tokens[r] * experts_of(c)) * sizeof(float));
        assert_memory_equal(a[r].d_a, b[r].d_a, sizeof(a[r].d_a));
        assert_memory_equal(a[r].d_b, b[r].d_b, sizeof(a[r].d_b));
    }
}

void flex_same_calls(const struct flex_case *c, const struct flex_result *results)
{
    for (int r = 1; r < c->ranks; r++) {
        assert_int_equal(results[r].calls, results[0].calls);
        for (size_t i = 0; i < results[0].calls; i++) {
            if (results[r].call[i].op != results[0].call[i].op ||
                results[r].call[i].bytes != results[0].call[i].bytes) {
                fail_msg("call %zu: rank 0 %c of %zu bytes, rank %d %c of %zu", i, results[0].call[i].op,
                         results[0].call[i].bytes, r, results[r].call[i].op, results[r].call[i].bytes);
            }
        }
    }
}

size_t flex_count(const struct flex_result *r, char op)
{
    size_t n = 0;
    for (size_t i = 0; i < r->calls; i++) {
        n += r->call[i].op == op;
    }
    return n;
}
