/*
 * dispatch_ranks.c: the ranks, the linear expert, the reference and the record of NCCL calls.
 */
#include "tests/moe_core/dispatch_ranks.h"

#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/shared.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* nccl.h declares these two without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

struct rank {
    const struct dr_case *c;
    ncclUniqueId id;
    int rank, ep_rank, etp_rank;
    ncclComm_t world, ep, etp, tp;
    uint32_t proposal;        /* of the step under way */
    struct dr_record *record; /* what is being recorded into; NULL: nothing */
    struct dr_unit group;     /* of the open ncclGroupStart */
    int depth;
    struct dr_result *result;
    atomic_bool started, done, aborted;
};

static _Thread_local struct rank *self;
static atomic_uint progress; /* of all ranks: calls of NCCL, and what else takes time */

int dr_ranks(const struct dr_case *c)
{
    return c->etp * c->ep;
}

static int64_t local_of(const struct dr_case *c)
{
    return c->local > 0 ? c->local : DR_LOCAL;
}

static int64_t experts_of(const struct dr_case *c)
{
    return c->ep * local_of(c);
}

void dr_describe(const struct dr_case *c, char *text, size_t room)
{
    snprintf(text, room, "%s etp %d ep %d empty %x%s%s%s", moe_dispatcher_name(c->kind), c->etp, c->ep, c->empty,
             c->travel ? " travel" : "", c->masked || c->mute ? " masked" : "",
             c->tokens == DR_EQUAL ? "" : " different T");
}

/* the tool interface, as a preloaded tool defines it */

void moe_observe(const struct moe_event *event)
{
    (void)event;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return self->proposal | (hazard & self->c->granted);
}

/* the NCCL calls, recorded and passed on */

static enum dr_role role_of(ncclComm_t comm)
{
    return comm == self->ep      ? DR_EP
           : comm == self->etp   ? DR_ETP
           : comm == self->world ? DR_TP_EP
           : comm == self->tp    ? DR_TP
                                 : DR_NO_ROLE;
}

static uint64_t bytes_of(size_t count, ncclDataType_t type)
{
    switch (type) {
    case ncclInt64:
        return count * 8;
    case ncclFloat32:
        return count * 4;
    case ncclFloat16:
    case ncclBfloat16:
        return count * 2;
    default:
        return count;
    }
}

static void keep(const struct dr_unit *unit)
{
    atomic_fetch_add(&progress, 1);
    struct dr_record *record = self != NULL ? self->record : NULL;
    if (record != NULL && record->units < DR_UNITS) {
        record->unit[record->units++] = *unit;
    }
}

static void note(enum dr_op op, ncclComm_t comm, uint64_t bytes)
{
    if (self == NULL) {
        return;
    }
    if (self->depth > 0) {
        self->group.op = op;
        self->group.role = role_of(comm);
        self->group.bytes += bytes;
    } else {
        keep(&(struct dr_unit){.op = op, .role = role_of(comm), .bytes = bytes});
    }
}

/* The real function; a rank whose communicators were aborted calls nothing any more. */
#define PASS_ON(name, ...)                                                                                             \
    do {                                                                                                               \
        static __typeof__(name) *real;                                                                                 \
        __typeof__(name) *found = __atomic_load_n(&real, __ATOMIC_RELAXED);                                            \
        if (found == NULL) {                                                                                           \
            *(void **)&found = dlsym(RTLD_NEXT, #name);                                                                \
            __atomic_store_n(&real, found, __ATOMIC_RELAXED);                                                          \
        }                                                                                                              \
        return self != NULL && atomic_load(&self->aborted) ? ncclInvalidUsage : found(__VA_ARGS__);                    \
    } while (0)

static uint64_t members(ncclComm_t comm)
{
    int count = 0; /* an aborted communicator is freed: nothing may be asked of it */
    if (self == NULL || !atomic_load(&self->aborted)) {
        ncclCommCount(comm, &count);
    }
    return (uint64_t)count;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    note(DR_ALLREDUCE, comm, bytes_of(count, type));
    PASS_ON(ncclAllReduce, send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    note(DR_ALLGATHER, comm, bytes_of(count, type) * members(comm));
    PASS_ON(ncclAllGather, send, recv, count, type, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    note(DR_REDUCESCATTER, comm, bytes_of(count, type) * members(comm));
    PASS_ON(ncclReduceScatter, send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    note(DR_ALLGATHER, comm, bytes_of(count, type));
    PASS_ON(ncclBroadcast, send, recv, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    note(DR_REDUCESCATTER, comm, bytes_of(count, type));
    PASS_ON(ncclReduce, send, recv, count, type, op, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    note(DR_ALLTOALL, comm, 0);
    if (self != NULL) {
        self->group.sent[peer] += bytes_of(count, type);
    }
    PASS_ON(ncclSend, send, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    note(DR_ALLTOALL, comm, 0);
    if (self != NULL) {
        self->group.received[peer] += bytes_of(count, type);
    }
    PASS_ON(ncclRecv, recv, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    if (self != NULL && self->depth++ == 0) {
        memset(&self->group, 0, sizeof(self->group));
    }
    PASS_ON(ncclGroupStart);
}

ncclResult_t ncclGroupEnd(void)
{
    if (self != NULL && --self->depth == 0) {
        keep(&self->group);
    }
    PASS_ON(ncclGroupEnd);
}

/* the model and the tokens of one rank */

struct data {
    int64_t tokens;
    double x[DR_TOKENS * DR_HIDDEN], dy[DR_TOKENS * DR_HIDDEN], probs[DR_TOKENS * DR_EXPERTS];
    int32_t index[DR_TOKENS * DR_TOPK];
    int64_t counts[DR_EXPERTS];
    double w[DR_EXPERTS * DR_HIDDEN * DR_HIDDEN];
};

/* Numbers that every row type holds exactly. */
static double eighth(uint64_t *state)
{
    return (double)(int)(support_random(state) * 8) / 8;
}

static int64_t tokens_of(const struct dr_case *c, int rank)
{
    switch (c->tokens) {
    case DR_DIFFERENT:
        return 3 + rank % 4;
    case DR_ONE_WITHOUT:
        return rank == dr_ranks(c) - 1 ? 0 : 3 + rank % 4;
    case DR_SINGLE:
        return rank == 0 ? 1 : rank % 2 == 0 ? 0 : 4;
    default:
        return 4;
    }
}

/* Drop-and-pad: choices beyond the capacity go, in token order; every expert has as many rows as the capacity. */
static void drop(const struct dr_case *c, struct data *d)
{
    int64_t used[DR_EXPERTS] = {0};
    for (int64_t i = 0; i < d->tokens * DR_TOPK; i++) {
        int32_t e = d->index[i];
        if (e >= 0 && ++used[e] > c->capacity) {
            d->probs[i / DR_TOPK * experts_of(c) + e] = 0;
            d->index[i] = -1;
        }
    }
    for (int64_t e = 0; e < experts_of(c); e++) {
        d->counts[e] = c->capacity;
    }
}

static void make_data(const struct dr_case *c, int rank, struct data *d)
{
    uint64_t weights = 5, tokens = 100 + (uint64_t)rank;
    int64_t experts = experts_of(c);
    int32_t allowed[DR_EXPERTS], n = 0;
    memset(d, 0, sizeof(*d));
    for (int32_t e = 0; e < experts; e++) {
        if ((c->empty >> (e / local_of(c)) & 1) == 0) {
            allowed[n++] = e;
        }
    }
    d->tokens = tokens_of(c, rank);
    for (int64_t i = 0; i < experts * DR_HIDDEN * DR_HIDDEN; i++) {
        d->w[i] = eighth(&weights);
    }
    for (int64_t i = 0; i < d->tokens * DR_HIDDEN; i++) {
        d->x[i] = eighth(&tokens);
        d->dy[i] = eighth(&tokens);
    }
    for (int64_t t = 0; t < d->tokens; t++) {
        for (int32_t j = 0; j < DR_TOPK; j++) {
            bool masked = (c->mute >> rank & 1) != 0 || ((c->masked >> rank & 1) != 0 && (t + j) % 3 == 2);
            bool chosen = j < n && !masked;
            int32_t e = chosen ? allowed[(rank * 5 + t * 3 + j) % n] : -1;
            d->index[t * DR_TOPK + j] = e;
            if (chosen) {
                d->probs[t * experts + e] = 0.25 + 0.5 * fabs(eighth(&tokens));
                d->counts[e]++;
            }
        }
    }
    if (c->capacity > 0) {
        drop(c, d);
    }
    if (c->spoil_counts && rank == 0) {
        d->counts[0] = -1;
    }
}

/* the expert */

struct work {
    struct rank *r;
    moe_device_t *device;
    moe_dispatcher_t *dispatcher;
    const struct data *data;
    enum moe_dtype type;
    float *wide; /* device, [DR_ROWS * DR_HIDDEN] */
    float x[DR_ROWS * DR_HIDDEN], row[DR_ROWS * DR_HIDDEN], probs[DR_ROWS];
};

/* Rows of the type from and to floats, by the device's own cast. */
static int widen(struct work *w, const void *from, int64_t count, float *to)
{
    struct moe_cast cast = {.count = count, .from_type = w->type, .to_type = MOE_F32, .from = from, .to = w->wide};
    int rc = moe_device_ops(w->device)->cast(w->device, &cast);
    rc = rc ? rc : moe_device_sync(w->device);
    memcpy(to, w->wide, (size_t)count * sizeof(*to));
    return rc;
}

static int narrow(struct work *w, const float *from, int64_t count, void *to)
{
    struct moe_cast cast = {.count = count, .from_type = MOE_F32, .to_type = w->type, .from = w->wide, .to = to};
    memcpy(w->wide, from, (size_t)count * sizeof(*from));
    int rc = moe_device_ops(w->device)->cast(w->device, &cast);
    return rc ? rc : moe_device_sync(w->device);
}

static bool own_column(const struct work *w, int64_t h)
{
    return h % w->r->c->etp == w->r->etp_rank;
}

static const double *weight_of(const struct work *w, int64_t i)
{
    int64_t expert = w->r->ep_rank * local_of(w->r->c) + i;
    return w->data->w + expert * DR_HIDDEN * DR_HIDDEN;
}

/* The local expert of each row; -1: slack. */
static void owners(struct work *w, int64_t rows, int *owner)
{
    const int64_t *m = moe_dispatcher_m(w->dispatcher);
    int64_t row = 0;
    for (int i = 0; i < local_of(w->r->c); i++) {
        w->r->result->m[i] = m[i];
        for (int64_t j = 0; j < m[i] && row < rows; j++) {
            owner[row++] = i;
        }
    }
    while (row < rows) {
        owner[row++] = -1;
    }
}

static int expert_forward(struct work *w)
{
    int64_t rows = moe_dispatcher_plan(w->dispatcher)->received;
    int owner[DR_ROWS];
    const float *probs = moe_dispatcher_row_probs(w->dispatcher);
    int rc = widen(w, moe_dispatcher_rows(w->dispatcher), rows * DR_HIDDEN, w->x);
    if (rc != 0) {
        return rc;
    }
    owners(w, rows, owner);
    for (int64_t r = 0; r < rows; r++) {
        w->probs[r] = probs != NULL ? probs[r] : 1;
        for (int64_t o = 0; o < DR_HIDDEN; o++) {
            double sum = 0;
            for (int64_t h = 0; h < DR_HIDDEN && owner[r] >= 0; h++) {
                sum +=
                    own_column(w, h) ? weight_of(w, owner[r])[o * DR_HIDDEN + h] * (double)w->x[r * DR_HIDDEN + h] : 0;
            }
            w->row[r * DR_HIDDEN + o] = (float)(sum * (double)w->probs[r]);
        }
    }
    return narrow(w, w->row, rows * DR_HIDDEN, moe_dispatcher_expert_out(w->dispatcher));
}

static int expert_backward(void *arg)
{
    struct work *w = arg;
    int64_t rows = moe_dispatcher_plan(w->dispatcher)->received;
    int owner[DR_ROWS];
    static _Thread_local float dy[DR_ROWS * DR_HIDDEN];
    float *d_probs = moe_dispatcher_d_row_probs(w->dispatcher);
    int rc = widen(w, moe_dispatcher_d_expert_out(w->dispatcher), rows * DR_HIDDEN, dy);
    if (rc != 0) {
        return rc;
    }
    owners(w, rows, owner);
    memset(w->row, 0, sizeof(w->row));
    for (int64_t r = 0; r < rows; r++) {
        double dot = 0;
        for (int64_t o = 0; o < DR_HIDDEN && owner[r] >= 0; o++) {
            double g = (double)dy[r * DR_HIDDEN + o], p = (double)w->probs[r];
            for (int64_t h = 0; h < DR_HIDDEN; h++) {
                if (own_column(w, h)) {
                    double x = (double)w->x[r * DR_HIDDEN + h], weight = weight_of(w, owner[r])[o * DR_HIDDEN + h];
                    w->row[r * DR_HIDDEN + h] += (float)(g * p * weight);
                    w->r->result->d_w[(owner[r] * DR_HIDDEN + o) * DR_HIDDEN + h] += g * p * x;
                    dot += g * weight * x;
                }
            }
        }
        if (d_probs != NULL) {
            d_probs[r] = (float)dot;
        }
    }
    return narrow(w, w->row, rows * DR_HIDDEN, moe_dispatcher_d_rows(w->dispatcher));
}

/* one layer-forward and its backward */

static void keep_obligations(struct rank *r, const struct moe_plan *plan)
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
                (struct dr_unit){.op = op, .role = role_of(node->comm), .bytes = node->count};
        }
    }
}

/* the shared expert, where there is one */

struct shared {
    moe_device_t *side;
    moe_shared_t *expert;
    struct moe_shared_weights weights;
    float *numbers, *grads; /* w1 then w2, of this rank */
};

static int make_shared(struct rank *r, moe_device_t *device, struct shared *s)
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
        s->numbers[i] = (float)eighth(&state);
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

static int step(struct rank *r, struct work *w, const struct arrays *a, struct shared *shared)
{
    struct dr_result *out = r->result;
    moe_dispatcher_t *d = w->dispatcher;
    struct moe_plan plan;
    struct moe_node experts = {.name = "experts", .run = expert_backward, .arg = w};
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
    rc = rc ? rc : expert_forward(w);
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
static void begin_step(struct rank *r, int i)
{
    uint64_t state = (uint64_t)(r->rank * DR_STEPS + i + 1);
    support_random(&state);
    double delay = fabs(support_random(&state)) * 1000.0 * r->c->delay_us;
    nanosleep(&(struct timespec){.tv_nsec = (long)delay}, NULL);
    r->proposal = i >= r->c->from_step[r->rank] ? r->c->proposed[r->rank] : 0;
}

static int run_dispatcher(struct rank *r, struct work *w)
{
    const struct dr_case *c = r->c;
    const struct data *data = w->data;
    struct dr_result *out = r->result;
    size_t bytes = DR_TOKENS * DR_HIDDEN * sizeof(float);
    struct arrays a = {0};
    int64_t n = data->tokens * DR_HIDDEN, experts = experts_of(c);
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
        rc = narrow(w, wide, n, a.x);
        for (int64_t j = 0; j < n; j++) {
            wide[j] = (float)data->dy[j];
        }
        rc = rc ? rc : narrow(w, wide, n, a.dy);
        for (int64_t j = 0; j < n; j++) {
            wide[j] = 1; /* dx is added to */
        }
        rc = rc ? rc : narrow(w, wide, n, a.dx);
        begin_step(r, i);
        rc = rc ? rc : step(r, w, &a, &shared);
        if (i < DR_STEPS) {
            out->agreed_at[i] = out->agreed;
            out->units_at[i] = out->forward.units;
        }
    }
    if (rc == 0 && !atomic_load(&r->aborted)) {
        const float *d_probs = moe_dispatcher_d_probs(w->dispatcher);
        rc = widen(w, a.y, n, wide);
        for (int64_t j = 0; j < n; j++) {
            out->y[j] = (double)wide[j];
        }
        rc = rc ? rc : widen(w, a.dx, n, wide);
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

/* ranks */

static int join(struct rank *r)
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
    struct rank *r = arg;
    moe_device_t *device = NULL;
    struct data *data = calloc(1, sizeof(*data));
    struct work *work = calloc(1, sizeof(*work));
    self = r;
    int rc = data != NULL && work != NULL ? 0 : MOE_E_NOMEM;
    rc = rc ? rc : cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : join(r);
    rc = rc ? rc : moe_device_new_host(&device);
    atomic_store(&r->started, rc == 0);
    if (rc == 0) {
        make_data(r->c, r->rank, data);
        r->result->tokens = data->tokens;
        *work = (struct work){.r = r, .device = device, .data = data, .type = r->c->type};
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

static void abort_all(struct rank *rank, int ranks)
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
static bool wait_for(struct rank *rank, int ranks, unsigned patience_ms)
{
    bool all = false;
    unsigned before = atomic_load(&progress), quiet = 0;
    while (!all && quiet < patience_ms) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        all = true;
        bool started = true;
        for (int r = 0; r < ranks; r++) {
            rank[r].result->hung = !atomic_load(&rank[r].done);
            started = started && (atomic_load(&rank[r].started) || !rank[r].result->hung);
            all = all && !rank[r].result->hung;
        }
        unsigned now = atomic_load(&progress);
        quiet = now != before || !started ? 0 : quiet + 1;
        before = now;
    }
    return all;
}

void dr_run(const struct dr_case *c, struct dr_result *results)
{
    pthread_t thread[DR_RANKS];
    static struct rank rank[DR_RANKS];
    ncclUniqueId id;
    int ranks = dr_ranks(c);
    assert_in_range(ranks, 1, DR_RANKS);
    assert_true(experts_of(c) <= DR_EXPERTS);
    memset(results, 0, DR_RANKS * sizeof(*results));
    memset(rank, 0, sizeof(rank));
    self = NULL;
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

/* the reference */

static void close_to(const struct dr_case *c, int rank, const char *what, const double *got, const double *want,
                     int64_t count)
{
    double size = 1e-30, tolerance = c->type == MOE_F32 ? 1e-5 : c->type == MOE_F16 ? 4e-3 : 3e-2;
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(got[i] - want[i]) <= tolerance * size)) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d: %s[%lld]: got %.9g, want %.9g", text, rank, what, (long long)i, got[i], want[i]);
        }
    }
}

/* One choice of one token: adds to the token's output, gradients and the expert's weight gradient. */
static void reference_choice(const struct data *d, int64_t experts, int64_t t, int32_t e, double *y, double *dx,
                             double *d_probs, double *d_w)
{
    const double *w = d->w + e * DR_HIDDEN * DR_HIDDEN, *x = d->x + t * DR_HIDDEN, *dy = d->dy + t * DR_HIDDEN;
    double p = d->probs[t * experts + e];
    for (int64_t o = 0; o < DR_HIDDEN; o++) {
        for (int64_t h = 0; h < DR_HIDDEN; h++) {
            y[t * DR_HIDDEN + o] += p * w[o * DR_HIDDEN + h] * x[h];
            dx[t * DR_HIDDEN + h] += p * w[o * DR_HIDDEN + h] * dy[o];
            d_probs[t * experts + e] += dy[o] * w[o * DR_HIDDEN + h] * x[h];
            d_w[(e * DR_HIDDEN + o) * DR_HIDDEN + h] += p * dy[o] * x[h];
        }
    }
}

void dr_check_reference(const struct dr_case *c, const struct dr_result *results)
{
    enum { WEIGHT = DR_HIDDEN * DR_HIDDEN };
    int64_t experts = experts_of(c);
    struct data *d = malloc(sizeof(*d));
    double *d_w = support_doubles(DR_EXPERTS * WEIGHT);
    assert_non_null(d);
    for (int r = 0; r < dr_ranks(c); r++) {
        double y[DR_TOKENS * DR_HIDDEN] = {0}, dx[DR_TOKENS * DR_HIDDEN], d_probs[DR_TOKENS * DR_EXPERTS] = {0};
        if (results[r].rc != 0) {
            char text[160];
            dr_describe(c, text, sizeof(text));
            fail_msg("%s: rank %d: %s", text, r, results[r].message);
        }
        make_data(c, r, d);
        for (int64_t i = 0; i < DR_TOKENS * DR_HIDDEN; i++) {
            dx[i] = 1;
        }
        for (int64_t i = 0; i < d->tokens * DR_TOPK; i++) {
            if (d->index[i] >= 0) {
                reference_choice(d, experts, i / DR_TOPK, d->index[i], y, dx, d_probs, d_w);
            }
        }
        close_to(c, r, "y", results[r].y, y, d->tokens * DR_HIDDEN);
        close_to(c, r, "dx", results[r].dx, dx, d->tokens * DR_HIDDEN);
        close_to(c, r, "d_probs", results[r].d_probs, d_probs, d->tokens * experts);
    }
    for (int p = 0; p < c->ep; p++) {
        int64_t local = local_of(c);
        double got[DR_LOCAL * WEIGHT] = {0};
        for (int q = 0; q < c->etp; q++) {
            for (int64_t i = 0; i < local * WEIGHT; i++) {
                got[i] += results[p * c->etp + q].d_w[i];
            }
        }
        close_to(c, p * c->etp, "d_w", got, d_w + p * local * WEIGHT, local * WEIGHT);
    }
    free(d);
    free(d_w);
}

/* the record */

static const char *op_name(enum dr_op op)
{
    static const char *const names[] = {"nothing", "AllReduce", "AllGather", "ReduceScatter", "AlltoAll"};
    return names[op];
}

static const char *role_name(enum dr_role role)
{
    static const char *const names[] = {"?", "ep", "etp", "tp_ep", "tp"};
    return names[role];
}

/* Members of r's communicator of a role, in its order. */
static int member(const struct dr_case *c, int r, enum dr_role role, int i)
{
    return role == DR_EP ? i * c->etp + r % c->etp : role == DR_ETP ? r / c->etp * c->etp + i : i;
}

static int size_of(const struct dr_case *c, enum dr_role role)
{
    return role == DR_EP ? c->ep : role == DR_ETP ? c->etp : dr_ranks(c);
}

/* Unit i of rank r against the wanted one and against the same unit of its peers. */
static void check_unit(const struct dr_case *c, const struct dr_result *results, bool backward, int r, size_t i,
                       const struct dr_want *want)
{
    char text[160];
    const struct dr_record *mine = backward ? &results[r].backward : &results[r].forward;
    const struct dr_unit *unit = &mine->unit[i];
    dr_describe(c, text, sizeof(text));
    if (unit->op != DR_NOTHING && (unit->op != want->op || unit->role != want->role)) {
        fail_msg("%s: rank %d: %s %zu is %s on %s, want %s on %s", text, r, backward ? "backward" : "forward", i,
                 op_name(unit->op), role_name(unit->role), op_name(want->op), role_name(want->role));
    }
    uint64_t sent = 0, received = 0;
    for (int p = 0; p < DR_RANKS; p++) {
        sent += unit->sent[p];
        received += unit->received[p];
    }
    uint64_t rows = (uint64_t)(want->op == DR_ALLTOALL ? results[r].plan.sent : results[r].plan.received);
    uint64_t bytes = want->op != DR_ALLTOALL ? unit->bytes : want->back ? received : sent;
    if ((want->bytes > 0 && unit->bytes != want->bytes) || (want->row_bytes > 0 && bytes != rows * want->row_bytes)) {
        fail_msg("%s: rank %d: %s %zu (%s on %s) has %llu bytes, want %llu, or %llu for each of %llu rows", text, r,
                 backward ? "backward" : "forward", i, op_name(want->op), role_name(want->role),
                 (unsigned long long)bytes, (unsigned long long)want->bytes, (unsigned long long)want->row_bytes,
                 (unsigned long long)rows);
    }
    for (int p = 0; p < size_of(c, want->role); p++) {
        int peer = member(c, r, want->role, p), me = want->role == DR_EP    ? r / c->etp
                                                     : want->role == DR_ETP ? r % c->etp
                                                                            : r;
        const struct dr_unit *other = backward ? &results[peer].backward.unit[i] : &results[peer].forward.unit[i];
        if (unit->bytes != other->bytes || unit->sent[p] != other->received[me]) {
            fail_msg("%s: %s %zu (%s on %s): rank %d has %llu bytes, sends %llu; rank %d has %llu, receives %llu", text,
                     backward ? "backward" : "forward", i, op_name(want->op), role_name(want->role), r,
                     (unsigned long long)unit->bytes, (unsigned long long)unit->sent[p], peer,
                     (unsigned long long)other->bytes, (unsigned long long)other->received[me]);
        }
    }
}

static void check_list(const struct dr_case *c, const struct dr_result *results, bool backward,
                       const struct dr_want *want, size_t count)
{
    char text[160];
    dr_describe(c, text, sizeof(text));
    for (int r = 0; r < dr_ranks(c); r++) {
        const struct dr_record *record = backward ? &results[r].backward : &results[r].forward;
        if (record->units != count) {
            fail_msg("%s: rank %d: %zu units %s, want %zu", text, r, record->units, backward ? "backward" : "forward",
                     count);
        }
    }
    for (int r = 0; r < dr_ranks(c); r++) {
        for (size_t i = 0; i < count; i++) {
            check_unit(c, results, backward, r, i, &want[i]);
        }
    }
}

/* The number of elements that an obligation gives, where it gives one, is what was issued. */
static void check_count(const struct dr_case *c, const struct dr_unit *obligation, const struct dr_unit *issued)
{
    uint64_t bytes = obligation->bytes * sizeof(float);
    if (bytes > 0 && c->type == MOE_F32) {
        assert_int_equal(obligation->op == DR_ALLTOALL ? issued->sent[0]
                                                       : issued->bytes / (uint64_t)size_of(c, obligation->role),
                         bytes);
    }
}

void dr_check_sequence(const struct dr_case *c, const struct dr_result *results, const struct dr_want *forward,
                       size_t forwards, const struct dr_want *backward, size_t backwards)
{
    check_list(c, results, false, forward, forwards);
    check_list(c, results, true, backward, backwards);
    for (int r = 0; r < dr_ranks(c); r++) {
        assert_int_equal(results[r].obligations, backwards);
        for (size_t i = 0; i < backwards; i++) {
            assert_int_equal(results[r].obligation[i].op, backward[i].op);
            assert_int_equal(results[r].obligation[i].role, backward[i].role);
            check_count(c, &results[r].obligation[i], &results[r].backward.unit[i]);
        }
    }
}
