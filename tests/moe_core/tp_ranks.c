/*
 * tp_ranks.c: see tp_ranks.h.
 */
#include "tests/moe_core/tp_ranks.h"

#include "moe_core/include/moe/facts.h"
#include "moe_core/include/moe/observe.h"
#include "moe_core/include/moe/plan.h"

#include <dlfcn.h>
#include <pthread.h>

struct rank {
    const struct tp_case *c;
    const struct tp_model *model;
    ncclUniqueId world_id;
    int rank, phase;
    struct tp_result *result;
    ncclComm_t world, tp, ep, tokens; /* tokens: the ranks with tokens of their own */
    moe_device_t *device;
    bool counting; /* calls are the library's */
    moe_facts_t *facts;
};

/* what a preloaded tool sees */

static _Thread_local struct rank *self;

static struct tp_calls *noted(ncclComm_t comm)
{
    static _Thread_local struct tp_calls nobody;
    return self != NULL && self->counting && comm == self->tp ? &self->result->calls[self->phase] : &nobody;
}

static void note_fact(const struct moe_event *event)
{
    struct tp_facts *f = &self->result->facts;
    double number;
    memcpy(&number, &event->count, sizeof(number));
    if (event->peer != MOE_TENSOR_ROUTER || event->comm != self->tp) {
        return;
    }
    switch (event->aux) {
    case MOE_TENSOR_REPLICA:
        f->checksum = f->replica++ == 0 ? event->count : f->checksum;
        break;
    case MOE_TENSOR_PART:
        f->part_sum = f->part++ == 0 ? number : f->part_sum;
        break;
    case MOE_TENSOR_SUM:
        f->sum_sum = f->sum++ == 0 ? number : f->sum_sum;
        break;
    default:
        break;
    }
}

void moe_observe(const struct moe_event *event)
{
    if (event->kind == MOE_EV_TENSOR) {
        note_fact(event);
    }
    if (event->kind == MOE_EV_OBLIGE && event->comm == self->tp) {
        struct tp_obliged *to = &self->result->obliged;
        to->reduce += event->peer == MOE_OBLIGE_ALLREDUCE;
        to->reduced += event->peer == MOE_OBLIGE_ALLREDUCE ? event->count : 0;
        to->gather += event->peer == MOE_OBLIGE_ALLGATHER;
        to->scatter += event->peer == MOE_OBLIGE_REDUCESCATTER;
    }
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    (void)hazard;
    return 0;
}

static void *real(const char *name)
{
    void *fn = dlsym(RTLD_NEXT, name);
    if (fn == NULL) {
        fprintf(stderr, "no %s\n", name);
        abort();
    }
    return fn;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    noted(comm)->reduce++;
    noted(comm)->reduced += count;
    return ((__typeof__(ncclAllReduce) *)real("ncclAllReduce"))(send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    noted(comm)->gather++;
    return ((__typeof__(ncclAllGather) *)real("ncclAllGather"))(send, recv, count, type, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    noted(comm)->scatter++;
    return ((__typeof__(ncclReduceScatter) *)real("ncclReduceScatter"))(send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    noted(comm)->other++;
    return ((__typeof__(ncclBroadcast) *)real("ncclBroadcast"))(send, recv, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    noted(comm)->other++;
    return ((__typeof__(ncclReduce) *)real("ncclReduce"))(send, recv, count, type, op, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    noted(comm)->other++;
    return ((__typeof__(ncclSend) *)real("ncclSend"))(send, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    noted(comm)->other++;
    return ((__typeof__(ncclRecv) *)real("ncclRecv"))(recv, count, type, peer, comm, stream);
}

/* the layouts */

int tp_size(const struct tp_case *c)
{
    return c->layout == DP2EP ? c->tp * c->ep : c->tp;
}

static int tp_rank(const struct tp_case *c, int rank)
{
    return rank % c->tp;
}

int tp_set_of(const struct tp_case *c, int rank)
{
    return c->layout == SEQUENCE ? rank : rank / c->tp;
}

int tp_sets(const struct tp_case *c)
{
    return c->layout == SEQUENCE ? c->tp : tp_size(c) / c->tp;
}

struct tp_part tp_part_of(const struct tp_case *c, int rank)
{
    int64_t t = tp_rank(c, rank);
    struct tp_part p = {.experts = TP_E, .fs = TP_F, .ss = TP_S / c->tp, .s = t * (TP_S / c->tp)};
    if (c->layout == TP2EP || c->layout == SEQUENCE) {
        p.experts = TP_E / c->tp;
        p.expert = t * p.experts;
        return p;
    }
    p.fs = TP_F / c->tp;
    p.f = t * p.fs;
    if (c->layout == DP2EP) {
        p.experts = TP_E / c->ep;
        p.expert = rank / c->tp * p.experts;
    }
    return p;
}

static void draw(double *to, int64_t count, double scale, uint64_t *state)
{
    for (int64_t i = 0; i < count; i++) {
        to[i] = (double)(float)(scale * support_random(state));
    }
}

void tp_make_model(struct tp_model *m, uint64_t seed)
{
    draw(m->replica, TP_SUMMANDS, 1.0, &seed);
    draw(m->w1, TP_E * 2 * TP_F * TP_H, 0.6, &seed);
    draw(m->w2, TP_E * TP_H * TP_F, 0.6, &seed);
    draw(m->s1, 2 * TP_S * TP_H, 0.6, &seed);
    draw(m->s2, TP_H * TP_S, 0.6, &seed);
    draw(m->b1, TP_E * 2 * TP_F, 0.6, &seed);
    draw(m->b2, TP_E * TP_H, 0.6, &seed);
    for (int r = 0; r < TP_RUNS; r++) {
        for (int i = 0; i < TP_SETS; i++) {
            draw(m->x[r][i], TP_T * TP_H, 1.5, &seed);
            draw(m->dy[r][i], TP_T * TP_H, 1.0, &seed);
        }
    }
}

void tp_cut_rows(float *to, const double *from, int64_t blocks, int64_t height, int64_t first, int64_t rows,
                 int64_t width)
{
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t i = 0; i < rows * width; i++) {
            to[b * rows * width + i] = (float)from[(b * height + first) * width + i];
        }
    }
}

void tp_cut_columns(float *to, const double *from, int64_t rows, int64_t width, int64_t first, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < columns; i++) {
            to[r * columns + i] = (float)from[r * width + first + i];
        }
    }
}

/* one rank */

struct arrays {
    float *x, *dy, *y, *dx, *replica, *summand, *w1, *d_w1, *w2, *d_w2, *b1, *d_b1, *b2, *d_b2, *s1, *d_s1, *s2, *d_s2;
};

static struct moe_layer_config config_of(const struct rank *r)
{
    const struct tp_case *c = r->c;
    struct moe_layer_config config = {
        .layer = 1,
        .world_rank = r->rank,
        .max_tokens = TP_T,
        .hidden = TP_H,
        .ffn = TP_F,
        .experts = TP_E,
        .topk = TP_K,
        .renormalise = true,
        .router = {.score = c->score, .gate_bias = c->extras, .sequences = TP_SEQUENCES},
        .options = {.legacy_router_unsummed = c->sums == NOBODY_SUMS, .legacy_router_summed_twice = c->sums == TWICE},
        .groups = {.ep = r->ep, .tp = r->tp},
        .balance = c->layout == TP2EP || c->layout == SEQUENCE ? r->tokens : NULL,
        .global = r->tokens,
        .router_sum = c->sums == CALLER_SUMS ? MOE_ROUTER_SUM_CALLER : MOE_ROUTER_SUM_LAYER,
        .tp_mode = c->layout == TP2EP      ? MOE_TP_SPLIT_TOKENS
                   : c->layout == SEQUENCE ? MOE_TP_SEQUENCE
                                           : MOE_TP_SHARD_EXPERTS,
        .place = c->before ? MOE_PROB_INPUT : MOE_PROB_SOURCE,
        .has_bias = c->extras,
        .facts = r->facts,
        .shared_ffn = c->shared ? TP_S : 0,
        .shared_gate = c->shared && c->extras};
    for (int i = 0; i < MOE_LOSSES; i++) {
        config.router.coeff[i] = c->extras ? (float)tp_losses[i] : 0.0f;
    }
    return config;
}

static void load(const struct rank *r, const struct arrays *a)
{
    const struct tp_model *m = r->model;
    struct tp_part p = tp_part_of(r->c, r->rank);
    tp_cut_rows(a->replica, m->replica, 1, TP_SUMMANDS, 0, TP_SUMMANDS, 1);
    tp_cut_rows(a->w1, m->w1 + p.expert * 2 * TP_F * TP_H, p.experts * 2, TP_F, p.f, p.fs, TP_H);
    tp_cut_columns(a->w2, m->w2 + p.expert * TP_H * TP_F, p.experts * TP_H, TP_F, p.f, p.fs);
    tp_cut_rows(a->b1, m->b1 + p.expert * 2 * TP_F, p.experts * 2, TP_F, p.f, p.fs, 1);
    tp_cut_rows(a->b2, m->b2 + p.expert * TP_H, 1, p.experts * TP_H, 0, p.experts * TP_H, 1);
    tp_cut_rows(a->s1, m->s1, 2, TP_S, p.s, p.ss, TP_H);
    tp_cut_columns(a->s2, m->s2, TP_H, TP_S, p.s, p.ss);
}

static struct moe_layer_weights weights_of(const struct rank *r, const struct arrays *a)
{
    struct moe_layer_weights w = {
        .gate = a->replica, .w1 = a->w1, .w2 = a->w2, .d_gate = a->summand, .d_w1 = a->d_w1, .d_w2 = a->d_w2};
    if (r->c->extras) {
        w.gate_bias = a->replica + TP_BIAS_AT;
        w.d_gate_bias = a->summand + TP_BIAS_AT;
        w.b1 = a->b1;
        w.b2 = a->b2;
        w.d_b1 = a->d_b1;
        w.d_b2 = a->d_b2;
    }
    if (r->c->shared) {
        w.shared = (struct moe_shared_weights){.w1 = a->s1, .w2 = a->s2, .d_w1 = a->d_s1, .d_w2 = a->d_s2};
        w.shared.gate = r->c->extras ? a->replica + TP_SHARED_AT : NULL;
        w.shared.d_gate = r->c->extras ? a->summand + TP_SHARED_AT : NULL;
    }
    return w;
}

/* Forward and backward of one microbatch, whose outputs nobody has cleared. */
static int run_batch(struct rank *r, moe_layer_t *layer, const struct arrays *a, int run)
{
    struct moe_layer_weights weights = weights_of(r, a);
    struct moe_step step = {.step = (uint32_t)(run / TP_BATCHES), .microbatch = (uint16_t)(run % TP_BATCHES)};
    int set = tp_set_of(r->c, r->rank);
    tp_cut_rows(a->x, r->model->x[run][set], 1, TP_T, 0, TP_T, TP_H);
    tp_cut_rows(a->dy, r->model->dy[run][set], 1, TP_T, 0, TP_T, TP_H);
    for (int i = 0; i < TP_T * TP_H; i++) {
        a->y[i] = a->dx[i] = NAN;
    }
    r->phase = TP_FORWARD;
    moe_facts_begin(r->facts, &step);
    int rc = moe_layer_forward(layer, &weights, &step, a->x, TP_T, a->y);
    r->phase = TP_BACKWARD;
    rc = rc ? rc : moe_layer_backward(layer, a->dy, a->dx);
    rc = rc ? rc : moe_device_sync(r->device);
    moe_facts_report(r->facts);
    memcpy(r->result->y[run], a->y, sizeof(r->result->y[run]));
    memcpy(r->result->dx[run], a->dx, sizeof(r->result->dx[run]));
    return rc;
}

/* What is left to a job: a sum of the caller's own, the sum over data parallel ranks, and the optimizer. */
static int optimize(struct rank *r, const struct arrays *a, int step)
{
    struct tp_result *out = r->result;
    struct tp_part p = tp_part_of(r->c, r->rank);
    int rc = 0;
    memcpy(out->summand[step], a->summand, sizeof(out->summand[step]));
    memcpy(out->d_w1[step], a->d_w1, (size_t)(p.experts * 2 * p.fs * TP_H) * sizeof(float));
    memcpy(out->d_w2[step], a->d_w2, (size_t)(p.experts * TP_H * p.fs) * sizeof(float));
    memcpy(out->d_b1[step], a->d_b1, (size_t)(p.experts * 2 * p.fs) * sizeof(float));
    memcpy(out->d_b2[step], a->d_b2, (size_t)(p.experts * TP_H) * sizeof(float));
    memcpy(out->d_s1[step], a->d_s1, (size_t)(2 * p.ss * TP_H) * sizeof(float));
    memcpy(out->d_s2[step], a->d_s2, (size_t)(TP_H * p.ss) * sizeof(float));
    ncclComm_t sums[] = {r->c->sums == CALLER_SUMS ? r->tp : NULL, r->c->layout == DP2EP ? r->ep : NULL};
    r->counting = false;
    for (int i = 0; i < 2 && rc == 0; i++) {
        rc = sums[i] == NULL || ncclAllReduce(a->summand, a->summand, TP_SUMMANDS, ncclFloat32, ncclSum, sums[i],
                                              moe_device_stream(r->device)) == ncclSuccess
                 ? 0
                 : MOE_E_COMM;
    }
    r->counting = true;
    rc = rc ? rc : moe_device_sync(r->device);
    for (int i = 0; i < TP_SUMMANDS; i++) {
        a->replica[i] -= (float)tp_rate * a->summand[i];
        out->replica[step][i] = a->replica[i];
        a->summand[i] = 0;
    }
    memset(a->d_w1, 0, sizeof(out->d_w1[0]));
    memset(a->d_w2, 0, sizeof(out->d_w2[0]));
    memset(a->d_b1, 0, sizeof(out->d_b1[0]));
    memset(a->d_b2, 0, sizeof(out->d_b2[0]));
    memset(a->d_s1, 0, sizeof(out->d_s1[0]));
    memset(a->d_s2, 0, sizeof(out->d_s2[0]));
    return rc;
}

static void run_layer(struct rank *r)
{
    struct tp_result *out = r->result;
    moe_layer_t *layer = NULL;
    struct arrays a;
    struct {
        float **at;
        int64_t count;
    } all[] = {{&a.x, TP_T * TP_H},
               {&a.dy, TP_T * TP_H},
               {&a.y, TP_T * TP_H},
               {&a.dx, TP_T * TP_H},
               {&a.replica, TP_SUMMANDS},
               {&a.summand, TP_SUMMANDS},
               {&a.w1, TP_E * 2 * TP_F * TP_H},
               {&a.d_w1, TP_E * 2 * TP_F * TP_H},
               {&a.w2, TP_E * TP_H * TP_F},
               {&a.d_w2, TP_E * TP_H * TP_F},
               {&a.b1, TP_E * 2 * TP_F},
               {&a.d_b1, TP_E * 2 * TP_F},
               {&a.b2, TP_E * TP_H},
               {&a.d_b2, TP_E * TP_H},
               {&a.s1, 2 * TP_S * TP_H},
               {&a.d_s1, 2 * TP_S * TP_H},
               {&a.s2, TP_H * TP_S},
               {&a.d_s2, TP_H * TP_S}};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        *all[i].at = support_floats(r->device, all[i].count);
    }
    load(r, &a);
    assert_int_equal(moe_facts_new(r->device, 16, &r->facts), 0);
    struct moe_layer_config config = config_of(r);
    out->rc = moe_layer_new(r->device, &config, &layer);
    r->counting = true;
    for (int run = 0; run < TP_RUNS && out->rc == 0; run++) {
        if (run % TP_BATCHES == 0) {
            out->rc = moe_router_global_reset(moe_layer_router(layer));
        }
        out->rc = out->rc ? out->rc : run_batch(r, layer, &a, run);
        if (out->rc == 0 && run % TP_BATCHES == TP_BATCHES - 1) {
            out->rc = optimize(r, &a, run / TP_BATCHES);
        }
    }
    for (int i = 0; i < 2 && out->rc == 0; i++) {
        out->declared[i] = moe_layer_declare_router_sum(layer);
    }
    if (out->rc != 0) {
        fprintf(stderr, "rank %d: %s\n", r->rank, moe_last_error());
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        moe_device_free(r->device, all[i].at);
    }
    moe_layer_destroy(&layer);
    moe_facts_destroy(&r->facts);
}

static int join(struct rank *r)
{
    const struct tp_case *c = r->c;
    bool sliced = c->layout == TP2EP || c->layout == SEQUENCE;
    int t = tp_rank(c, r->rank), group = r->rank / c->tp;
    if (cudaSetDevice(r->rank) != cudaSuccess ||
        ncclCommInitRank(&r->world, tp_size(c), r->world_id, r->rank) != ncclSuccess ||
        ncclCommSplit(r->world, group, t, &r->tp, NULL) != ncclSuccess ||
        ncclCommSplit(r->world, sliced ? 0 : t, r->rank, &r->tokens, NULL) != ncclSuccess) {
        return MOE_E_COMM;
    }
    return c->layout == TP_ONLY || ncclCommSplit(r->world, sliced ? 0 : t, r->rank, &r->ep, NULL) == ncclSuccess
               ? moe_device_new_host(&r->device)
               : MOE_E_COMM;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    self = r;
    r->result->rc = join(r);
    if (r->result->rc == 0) {
        run_layer(r);
    }
    self = NULL;
    moe_device_destroy(&r->device);
    ncclComm_t comms[] = {r->ep, r->tp, r->tokens, r->world};
    for (size_t i = 0; i < sizeof(comms) / sizeof(comms[0]); i++) {
        if (comms[i] != NULL) {
            ncclCommDestroy(comms[i]);
        }
    }
    return NULL;
}

void tp_run(const struct tp_case *c, const struct tp_model *m, struct tp_result *results)
{
    pthread_t thread[TP_RANKS];
    struct rank rank[TP_RANKS];
    ncclUniqueId id;
    memset(results, 0, TP_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < tp_size(c); r++) {
        rank[r] = (struct rank){.c = c, .model = m, .world_id = id, .rank = r, .result = &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < tp_size(c); r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < tp_size(c); r++) {
        assert_int_equal(results[r].rc, 0);
    }
}
