/*
 * dispatch_ranks.c: the ranks: threads with communicators and a dispatcher, and what each does in a step.
 */
#include "tests/moe_core/dispatch_inside.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/shared.h"

#include <pthread.h>
#include <time.h>

static void keep_obligations(struct dr_rank *r, const struct moe_plan *plan)
{
    struct dr_result *out = r->result;
    out->obligations = 0;
    for (size_t i = plan->used; i-- > 0;) {
        const struct moe_node *node = &plan->node[i];
        enum dr_op op = node->op == MOE_OBLIGE_ALLREDUCE       ? DR_ALLREDUCE
                        : node->op == MOE_OBLIGE_ALLGATHER     ? DR_ALLGATHER
                        : node->op == MOE_OBLIGE_REDUCESCATTER ? DR_REDUCESCATTER
                        : node->op == MOE_OBLIGE_ALLTOALL      ? DR_ALLTOALL
                                                               : DR_NOTHING;
        if (op != DR_NOTHING) {
            out->obligation[out->obligations++] =
                (struct dr_unit){.op = op, .role = dr_role_of(node->comm), .bytes = node->count};
        }
    }
}

struct shared {
    moe_device_t *side;
    moe_shared_t *expert;
    struct moe_shared_weights weights;
    float *numbers, *grads; /* w1 then w2, of this rank */
};

static int make_shared(struct dr_rank *r, moe_device_t *device, struct shared *s)
{
    int64_t part = DR_SHARED_FFN / dr_ranks(r->c);
    uint64_t state = 70 + (uint64_t)r->rank;
    struct moe_shared_config config = {.max_tokens = DR_TOKENS,
                                       .hidden = DR_HIDDEN,
                                       .ffn = DR_SHARED_FFN,
                                       .mode = MOE_SHARED_SEQUENCE,
                                       .tp = r->tp,
                                       .type = r->c->type,
                                       .world_rank = r->rank,
                                       .layer = 3};
    if (r->c->shared == DR_NO_SHARED) {
        return 0;
    }
    int rc = moe_device_new_host(&s->side);
    rc = rc ? rc : moe_shared_new(device, s->side, &config, &s->expert);
    rc = rc ? rc : moe_device_alloc(device, DR_SHARED_NUMBERS * sizeof(float), (void **)&s->numbers);
    rc = rc ? rc : moe_device_alloc(device, DR_SHARED_NUMBERS * sizeof(float), (void **)&s->grads);
    for (int64_t i = 0; i < 3 * part * DR_HIDDEN && rc == 0; i++) {
        s->numbers[i] = (float)dr_eighth(&state);
    }
    s->weights = (struct moe_shared_weights){.w1 = s->numbers,
                                             .w2 = s->numbers + 2 * part * DR_HIDDEN,
                                             .d_w1 = s->grads,
                                             .d_w2 = s->grads + 2 * part * DR_HIDDEN};
    return rc;
}

static void destroy_shared(moe_device_t *device, struct shared *s)
{
    moe_shared_destroy(&s->expert);
    moe_device_free(device, &s->numbers);
    moe_device_free(device, &s->grads);
    moe_device_destroy(&s->side);
}

struct arrays {
    void *x, *dy, *y, *dx;
    float *probs;
    int32_t *index;
    int64_t *counts;
};

/* NaN in the outputs that a step must write, as an earlier user of the memory may leave them. */
static void poison(const struct dr_work *w, const struct arrays *a)
{
    const float *d_probs = moe_dispatcher_d_probs(w->dispatcher); /* still the last step's, of as many tokens */
    memset(a->y, 0xff, DR_TOKENS * DR_HIDDEN * moe_dtype_bytes(w->type));
    if (d_probs != NULL) {
        memset((void *)(uintptr_t)d_probs, 0xff, (size_t)(w->data->tokens * dr_experts(w->r->c)) * sizeof(float));
    }
}

static int step(struct dr_rank *r, struct dr_work *w, const struct arrays *a, struct shared *shared)
{
    struct dr_result *out = r->result;
    moe_dispatcher_t *d = w->dispatcher;
    struct moe_plan plan;
    struct moe_node experts = {.name = "experts", .run = dr_expert_backward, .arg = w};
    int64_t more = r->c->wrong == DR_TOO_MANY_TOKENS && r->rank == 0 ? DR_TOKENS : 0;
    struct moe_routing routing = {
        .tokens = w->data->tokens + more, .index = a->index, .probs = a->probs, .counts = a->counts};
    moe_plan_reset(&plan);
    memset(&out->forward, 0, sizeof(out->forward));
    memset(&out->backward, 0, sizeof(out->backward));
    memset(out->d_w, 0, sizeof(out->d_w));
    r->record = &out->forward;
    int rc = moe_dispatcher_prepare(d, &routing, r->proposal, &out->agreed);
    rc = rc ? rc : moe_dispatcher_forward(d, a->x);
    out->plan = *moe_dispatcher_plan(d);
    for (int p = 0; p < out->plan.peers; p++) {
        out->sent[p] = out->plan.split_sent[p];
        out->received[p] = out->plan.split_received[p];
    }
    rc = rc ? rc : dr_expert_forward(w);
    if (rc == 0 && (r->c->detach >> r->rank & 1) != 0) {
        moe_dispatcher_detach(d);
    }
    rc = rc ? rc : moe_dispatcher_push_dispatch(d, &plan);
    rc = rc || (r->c->detach >> r->rank & 1) != 0 ? rc : moe_plan_push(&plan, &experts);
    rc = rc ? rc : moe_dispatcher_push_combine(d, &plan);
    keep_obligations(r, &plan);
    rc = rc ? rc : moe_dispatcher_combine(d, a->y);
    if (rc == 0 && r->c->shared == DR_SHARED_AFTER) {
        rc = moe_shared_forward(shared->expert, &shared->weights, a->x, w->data->tokens, a->y, true);
    }
    rc = rc ? rc : moe_device_sync(w->device);
    out->forward_done = rc == 0 && !atomic_load(&r->aborted);
    r->record = &out->backward;
    moe_dispatcher_begin_backward(d, a->dy, a->dx);
    rc = rc ? rc : moe_plan_run(&plan);
    if (rc == 0 && r->c->shared == DR_SHARED_AFTER) {
        rc = moe_shared_backward(shared->expert, a->dy, a->dx, true);
    }
    rc = rc ? rc : moe_device_sync(w->device);
    r->record = NULL;
    return rc;
}

/* What this rank proposes in step i, after its delay. */
static void begin_step(struct dr_rank *r, int i)
{
    uint64_t state = (uint64_t)(r->rank * DR_STEPS + i + 1);
    support_random(&state);
    double delay = fabs(support_random(&state)) * 1000.0 * r->c->delay_us;
    nanosleep(&(struct timespec){.tv_nsec = (long)delay}, NULL);
    r->proposal = i >= r->c->from_step[r->rank] ? r->c->proposed[r->rank] : 0;
}

static int run_dispatcher(struct dr_rank *r, struct dr_work *w)
{
    const struct dr_case *c = r->c;
    const struct dr_data *data = w->data;
    struct dr_result *out = r->result;
    size_t bytes = DR_TOKENS * DR_HIDDEN * sizeof(float);
    struct arrays a = {0};
    int64_t n = data->tokens * DR_HIDDEN, experts = dr_experts(c);
    float wide[DR_TOKENS * DR_HIDDEN];
    int rc = moe_device_alloc(w->device, sizeof(float) * DR_ROWS * DR_HIDDEN, (void **)&w->wide);
    void **rows[] = {&a.x, &a.dy, &a.y, &a.dx};
    for (size_t i = 0; i < 4; i++) {
        rc = rc ? rc : moe_device_alloc(w->device, bytes, rows[i]);
    }
    rc = rc ? rc : moe_device_alloc(w->device, DR_TOKENS * DR_EXPERTS * sizeof(float), (void **)&a.probs);
    rc = rc ? rc : moe_device_alloc(w->device, DR_TOKENS * DR_TOPK * sizeof(int32_t), (void **)&a.index);
    rc = rc ? rc : moe_device_alloc(w->device, DR_EXPERTS * sizeof(int64_t), (void **)&a.counts);
    for (int64_t i = 0; i < data->tokens * experts && rc == 0; i++) {
        a.probs[i] = (float)data->probs[i];
    }
    if (rc == 0) {
        memcpy(a.index, data->index, DR_TOKENS * DR_TOPK * sizeof(int32_t));
        memcpy(a.counts, data->counts, DR_EXPERTS * sizeof(int64_t));
    }
    struct moe_dispatcher_config config = {
        .kind = c->kind,
        .max_tokens = DR_TOKENS,
        .hidden = DR_HIDDEN,
        .experts = experts,
        .topk = DR_TOPK,
        .type = c->type,
        .probs_travel = c->travel,
        .expert_capacity = c->capacity,
        .row_multiple = c->row_multiple,
        .row_budget = c->row_budget,
        .uneven = c->uneven,
        .token_bound = c->token_bound,
        .groups = {.ep = r->ep, .etp = r->etp, .tp_ep = (c->etp > 1 && c->ep > 1) || c->use_tp_ep ? r->world : NULL},
        .legacy = c->legacy,
        .world_rank = r->rank,
        .layer = 3,
    };
    struct shared shared = {0};
    switch (c->wrong) {
    case DR_TP_EP_TOO_SMALL:
        config.groups.tp_ep = r->ep;
        break;
    case DR_TP_EP_REVERSED: /* etp rank x ep + ep rank */
        config.groups = (struct moe_groups){.ep = r->etp, .etp = r->ep, .tp_ep = r->world};
        break;
    case DR_NO_TP_EP:
        config.groups.tp_ep = NULL;
        break;
    case DR_EXPERTS_DO_NOT_DIVIDE:
        config.experts++;
        break;
    default:
        break;
    }
    rc = rc ? rc : make_shared(r, w->device, &shared);
    config.shared = c->shared == DR_SHARED_INSIDE ? shared.expert : NULL;
    rc = rc ? rc : moe_dispatcher_new(w->device, &config, &w->dispatcher);
    if (rc == 0 && c->shared == DR_SHARED_INSIDE) {
        moe_dispatcher_set_shared_weights(w->dispatcher, &shared.weights);
    }
    for (int i = 0; i < (c->steps > 0 ? c->steps : 1) && rc == 0; i++) {
        for (int64_t j = 0; j < n; j++) {
            wide[j] = (float)data->x[j];
        }
        rc = dr_narrow(w, wide, n, a.x);
        for (int64_t j = 0; j < n; j++) {
            wide[j] = (float)data->dy[j];
        }
        rc = rc ? rc : dr_narrow(w, wide, n, a.dy);
        for (int64_t j = 0; j < n; j++) {
            wide[j] = 1; /* dx is added to */
        }
        rc = rc ? rc : dr_narrow(w, wide, n, a.dx);
        begin_step(r, i);
        if (rc == 0) {
            poison(w, &a);
        }
        rc = rc ? rc : step(r, w, &a, &shared);
        if (i < DR_STEPS) {
            out->agreed_at[i] = out->agreed;
            out->units_at[i] = out->forward.units;
        }
    }
    if (rc == 0 && !atomic_load(&r->aborted)) {
        const float *d_probs = moe_dispatcher_d_probs(w->dispatcher);
        rc = dr_widen(w, a.y, n, wide);
        for (int64_t j = 0; j < n; j++) {
            out->y[j] = (double)wide[j];
        }
        rc = rc ? rc : dr_widen(w, a.dx, n, wide);
        for (int64_t j = 0; j < n; j++) {
            out->dx[j] = (double)wide[j];
        }
        for (int64_t j = 0; j < data->tokens * experts; j++) {
            out->d_probs[j] = (double)d_probs[j];
        }
        if (shared.side != NULL) {
            rc = rc ? rc : moe_device_sync(shared.side);
            memcpy(out->d_shared, shared.grads, sizeof(out->d_shared));
        }
    }
    moe_dispatcher_destroy(&w->dispatcher);
    destroy_shared(w->device, &shared);
    void *all[] = {&w->wide, &a.x, &a.dy, &a.y, &a.dx, &a.probs, &a.index, &a.counts};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        moe_device_free(w->device, all[i]);
    }
    return rc;
}

static int join(struct dr_rank *r)
{
    const struct dr_case *c = r->c;
    if (ncclCommInitRank(&r->world, dr_ranks(c), r->id, r->rank) != ncclSuccess) {
        return MOE_E_COMM;
    }
    if (c->shared != DR_NO_SHARED && ncclCommSplit(r->world, 0, r->rank, &r->tp, NULL) != ncclSuccess) {
        return MOE_E_COMM;
    }
    if (c->etp == 1 && !c->use_tp_ep) {
        r->ep = r->world;
        return 0;
    }
    if (c->ep == 1) {
        r->etp = r->world;
        return 0;
    }
    bool ok = ncclCommSplit(r->world, r->etp_rank, r->ep_rank, &r->ep, NULL) == ncclSuccess &&
              (c->etp == 1 || ncclCommSplit(r->world, r->ep_rank, r->etp_rank, &r->etp, NULL) == ncclSuccess);
    return ok ? 0 : MOE_E_COMM;
}

static void *run_rank(void *arg)
{
    struct dr_rank *r = arg;
    moe_device_t *device = NULL;
    struct dr_data *data = calloc(1, sizeof(*data));
    struct dr_work *work = calloc(1, sizeof(*work));
    dr_self = r;
    int rc = data != NULL && work != NULL ? 0 : MOE_E_NOMEM;
    rc = rc ? rc : cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : join(r);
    rc = rc ? rc : moe_device_new_host(&device);
    atomic_store(&r->started, rc == 0);
    if (rc == 0) {
        dr_make_data(r->c, r->rank, data);
        r->result->tokens = data->tokens;
        *work = (struct dr_work){.r = r, .device = device, .data = data, .type = r->c->type};
        rc = run_dispatcher(r, work);
    }
    r->result->rc = rc;
    if (rc != 0) {
        snprintf(r->result->message, sizeof(r->result->message), "%s", moe_last_error());
    }
    moe_device_destroy(&device);
    free(data);
    free(work);
    atomic_store(&r->done, true);
    return NULL;
}

static void abort_all(struct dr_rank *rank, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        atomic_store(&rank[r].aborted, true);
    }
    for (int r = 0; r < ranks; r++) {
        ncclComm_t comm[] = {rank[r].ep != rank[r].world ? rank[r].ep : NULL,
                             rank[r].etp != rank[r].world ? rank[r].etp : NULL, rank[r].tp, rank[r].world};
        for (size_t i = 0; i < 4; i++) {
            if (comm[i] != NULL) {
                ncclCommAbort(comm[i]);
            }
        }
    }
}

/* Waits until all ranks are done, or nothing moves for patience_ms; says which are not. */
static bool wait_for(struct dr_rank *rank, int ranks, unsigned patience_ms)
{
    bool all = false;
    unsigned before = atomic_load(&dr_progress), quiet = 0;
    while (!all && quiet < patience_ms) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        all = true;
        bool started = true;
        for (int r = 0; r < ranks; r++) {
            rank[r].result->hung = !atomic_load(&rank[r].done);
            started = started && (atomic_load(&rank[r].started) || !rank[r].result->hung);
            all = all && !rank[r].result->hung;
        }
        unsigned now = atomic_load(&dr_progress);
        quiet = now != before || !started ? 0 : quiet + 1;
        before = now;
    }
    return all;
}

void dr_run(const struct dr_case *c, struct dr_result *results)
{
    pthread_t thread[DR_RANKS];
    static struct dr_rank rank[DR_RANKS];
    ncclUniqueId id;
    int ranks = dr_ranks(c);
    assert_in_range(ranks, 1, DR_RANKS);
    assert_true(dr_experts(c) <= DR_EXPERTS);
    memset(results, 0, DR_RANKS * sizeof(*results));
    memset(rank, 0, sizeof(rank));
    dr_self = NULL;
    setenv("HOSTCUDA_DEVICES", "16", 1); /* before the first call of the runtime */
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < ranks; r++) {
        rank[r].c = c;
        rank[r].id = id;
        rank[r].rank = r;
        rank[r].ep_rank = r / c->etp;
        rank[r].etp_rank = r % c->etp;
        rank[r].result = &results[r];
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    bool all = wait_for(rank, ranks, c->patience_ms > 0 ? c->patience_ms : 20000);
    abort_all(rank, ranks);
    for (int r = 0; r < ranks; r++) {
        pthread_join(thread[r], NULL);
    }
    if (!all && c->patience_ms == 0) {
        char text[160];
        const char *why = "no rank reports an error";
        dr_describe(c, text, sizeof(text));
        for (int r = 0; r < ranks; r++) {
            why = !results[r].hung && results[r].rc != 0 ? results[r].message : why;
        }
        fail_msg("%s: hangs: %s", text, why);
    }
}
