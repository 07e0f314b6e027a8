/*
 * packed_ranks.c: what packed_ranks.h says: packs, one rank of 1F1B, all of them.
 *
 * rank = tp + 2 (cp + 2 (dp + 2 pp)). A stage has two MoE layers with residuals, and runs three microbatches as 1F1B.
 * Each replica packs sequences of its own lengths (THD): a sequence is padded to a multiple of 2 cp tp, cut into 2 cp
 * chunks of which cp rank r has the chunks r and 2 cp - 1 - r, and a rank's packed tokens are cut in two over tp
 * (sequence parallel). So ranks of a dispatch group have different numbers of tokens where it spans replicas, and none
 * where a replica has nothing to do. Experts are split over tp (etp 2), and owned by pairs over cp or over dp: both are
 * run. Every rank's outputs and gradients are held against the whole model in double, with the tokens of all ranks.
 */
#include "tests/moe_core/packed_ranks.h"
#include "tests/moe_core/form_ranks.h"

#include "moe_core/include/moe/uneven.h"

#include <pthread.h>

/* Lengths of the sequences that a replica packs; 0 ends the list. */
static const int packed_lengths[2][PACKED_BATCHES][4] = {{{5, 11, 8}, {3}, {0}}, {{8}, {17, 2, 1, 9}, {6, 6}}};

const double packed_share = 0.125;

struct rank {
    const struct packed_scenario *s;
    const struct packed_model *m;
    ncclUniqueId id;
    int rank;
    struct packed_result *out;
    ncclComm_t world, up, stage, tp, ep, tp_ep; /* world: activations to the next stage; up: gradients back */
    cudaStream_t side; /* of gradients to the stage before, which nobody waits for: 1F1B would wait in a circle */
    moe_device_t *device;
    moe_layer_t *layer[2];
    struct moe_layer_weights weights[2];
    float *parameter[2][3], *grad[2][3];
    float *x[PACKED_BATCHES][3]; /* inputs of the two layers, and the stage's output */
    float *d[PACKED_BATCHES][3]; /* their gradients */
    float *rows;
};

int packed_tp_of(int rank)
{
    return rank % 2;
}
int packed_cp_of(int rank)
{
    return rank / 2 % 2;
}
int packed_dp_of(int rank)
{
    return rank / 4 % 2;
}
int packed_stage_of(int rank)
{
    return rank / PACKED_STAGE;
}

static double drawn(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * 1000003 + b * 10007 + c * 101 + 12345;
    support_random(&state);
    return support_random(&state);
}

/* The feature of a place in a sequence; places past its end are zero rows, padding inside the pack. */
static double feature(int dp, int batch, int sequence, int place, int length, int i)
{
    if (place >= length) {
        return 0;
    }
    uint64_t where = (uint64_t)(((dp * PACKED_BATCHES + batch) * 4 + sequence) * 64 + place);
    bool wish = i == (place + sequence + dp) % PACKED_E || i == (place * 3 + 1 + batch) % PACKED_E;
    return (double)(float)(0.2 * drawn(where, (uint64_t)i, 1) + (wish ? 4 - (i % 2) : 0));
}

static double pull(int dp, int batch, int sequence, int place, int length, int i)
{
    uint64_t where = (uint64_t)(((dp * PACKED_BATCHES + batch) * 4 + sequence) * 64 + place);
    return place >= length ? 0 : (double)(float)drawn(where, (uint64_t)i, 2);
}

int64_t packed_tokens(int rank, int batch, double *x, double *dy)
{
    int dp = packed_dp_of(rank), cp = packed_cp_of(rank);
    double whole_x[2 * PACKED_MOST * PACKED_H], whole_dy[2 * PACKED_MOST * PACKED_H];
    int64_t n = 0;
    for (int s = 0; s < 4 && packed_lengths[dp][batch][s] > 0; s++) {
        int length = packed_lengths[dp][batch][s], chunk = (length + PACKED_UNIT - 1) / PACKED_UNIT * PACKED_UNIT / 4;
        for (int half = 0; half < 2; half++) {
            int first = (half == 0 ? cp : 3 - cp) * chunk;
            for (int p = first; p < first + chunk; p++, n++) {
                for (int i = 0; i < PACKED_H; i++) {
                    whole_x[n * PACKED_H + i] = feature(dp, batch, s, p, length, i);
                    whole_dy[n * PACKED_H + i] = pull(dp, batch, s, p, length, i);
                }
            }
        }
    }
    n /= 2; /* this tp rank's half */
    memcpy(x, whole_x + packed_tp_of(rank) * n * PACKED_H, (size_t)(n * PACKED_H) * sizeof(double));
    memcpy(dy, whole_dy + packed_tp_of(rank) * n * PACKED_H, (size_t)(n * PACKED_H) * sizeof(double));
    return n;
}

void packed_make_model(struct packed_model *m)
{
    for (int l = 0; l < PACKED_LAYERS; l++) {
        for (int i = 0; i < PACKED_E * PACKED_H; i++) {
            m->gate[l][i] =
                (double)(float)(0.1 * drawn((uint64_t)l, (uint64_t)i, 3) + (i / PACKED_H == i % PACKED_H ? 2 : 0));
        }
        for (int i = 0; i < PACKED_E * 2 * PACKED_F * PACKED_H; i++) {
            m->w1[l][i] = (double)(float)(0.5 * drawn((uint64_t)l, (uint64_t)i, 4));
        }
        for (int i = 0; i < PACKED_E * PACKED_H * PACKED_F; i++) {
            m->w2[l][i] = (double)(float)(0.5 * drawn((uint64_t)l, (uint64_t)i, 5));
        }
    }
}

int packed_owner_of(const struct packed_scenario *s, int rank)
{
    return s->over_dp ? packed_dp_of(rank) : packed_cp_of(rank);
}

/* one rank */

static int join(struct rank *r)
{
    int stage_rank = r->rank % PACKED_STAGE, tp = packed_tp_of(r->rank), cp = packed_cp_of(r->rank),
        dp = packed_dp_of(r->rank);
    int other = r->s->over_dp ? cp : dp; /* what the ranks of an ep pair have in common beside tp */
    if (ncclCommInitRank(&r->world, PACKED_RANKS, r->id, r->rank) != ncclSuccess ||
        ncclCommSplit(r->world, 0, r->rank, &r->up, NULL) != ncclSuccess ||
        ncclCommSplit(r->world, packed_stage_of(r->rank), stage_rank, &r->stage, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, cp + 2 * dp, tp, &r->tp, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, tp + 2 * other, packed_owner_of(r->s, r->rank), &r->ep, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, other, packed_owner_of(r->s, r->rank) * 2 + tp, &r->tp_ep, NULL) != ncclSuccess) {
        return MOE_E_COMM;
    }
    return 0;
}

const int64_t packed_sizes[3] = {PACKED_E * PACKED_H, PACKED_E / 2 * PACKED_F *PACKED_H,
                                 PACKED_E / 2 * PACKED_H *PACKED_F / 2};

static int make_layers(struct rank *r)
{
    int64_t first = packed_owner_of(r->s, r->rank) * (PACKED_E / 2), f = packed_tp_of(r->rank) * (PACKED_F / 2);
    int rc = 0;
    for (int l = 0; l < 2 && rc == 0; l++) {
        const int whole = packed_stage_of(r->rank) * 2 + l;
        for (int p = 0; p < 3; p++) {
            r->parameter[l][p] = support_floats(r->device, packed_sizes[p]);
            r->grad[l][p] = support_floats(r->device, packed_sizes[p]);
        }
        for (int64_t i = 0; i < packed_sizes[0]; i++) {
            r->parameter[l][0][i] = (float)r->m->gate[whole][i];
        }
        for (int64_t i = 0; i < packed_sizes[1]; i++) { /* [PACKED_E/2, 2, PACKED_F/2, PACKED_H] */
            int64_t h = i % PACKED_H, row = i / PACKED_H % (PACKED_F / 2), half = i / PACKED_H / (PACKED_F / 2);
            r->parameter[l][1][i] = (float)r->m->w1[whole][((first * 2 + half) * PACKED_F + f + row) * PACKED_H + h];
        }
        for (int64_t i = 0; i < packed_sizes[2]; i++) { /* [PACKED_E/2, PACKED_H, PACKED_F/2] */
            int64_t column = i % (PACKED_F / 2), row = i / (PACKED_F / 2);
            r->parameter[l][2][i] = (float)r->m->w2[whole][(first * PACKED_H + row) * PACKED_F + f + column];
        }
        struct moe_layer_config config = {
            .layer = (uint32_t)whole,
            .world_rank = r->rank,
            .max_tokens = PACKED_MOST,
            .hidden = PACKED_H,
            .ffn = PACKED_F,
            .experts = PACKED_E,
            .topk = PACKED_K,
            .renormalise = true,
            .dispatcher = r->s->kind,
            .groups = {.ep = r->ep, .etp = r->tp, .tp_ep = r->tp_ep, .tp = r->tp},
            .tp_mode = MOE_TP_SEQUENCE,
            .uneven = r->s->kind == MOE_DISPATCH_HYBRIDEP || r->s->kind == MOE_DISPATCH_ALLGATHER ? MOE_UNEVEN_MAX
                                                                                                  : MOE_UNEVEN_NONE,
            .recompute = r->s->recompute,
            .in_flight = 2};
        r->weights[l] = (struct moe_layer_weights){.gate = r->parameter[l][0],
                                                   .w1 = r->parameter[l][1],
                                                   .w2 = r->parameter[l][2],
                                                   .d_gate = r->grad[l][0],
                                                   .d_w1 = r->grad[l][1],
                                                   .d_w2 = r->grad[l][2]};
        rc = moe_layer_new(r->device, &config, &r->layer[l]);
    }
    return rc;
}

/* Rows to (sends) or from the same place of the other stage; gradients go back on a stream of their own. */
static int pass_on(struct rank *r, bool sends, bool gradients, float *rows, int64_t tokens)
{
    int peer = (r->rank + PACKED_STAGE) % PACKED_RANKS;
    size_t count = (size_t)(tokens * PACKED_H);
    bool aside = sends && gradients;
    cudaStream_t stream = aside ? r->side : moe_device_stream(r->device);
    ncclComm_t comm = gradients ? r->up : r->world;
    ncclResult_t nc = ncclSuccess;
    if (count > 0) {
        nc = sends ? ncclSend(rows, count, ncclFloat32, peer, comm, stream)
                   : ncclRecv(rows, count, ncclFloat32, peer, comm, stream);
    }
    return nc != ncclSuccess ? MOE_E_COMM : aside ? 0 : moe_device_sync(r->device);
}

static int forward(struct rank *r, int batch, int64_t tokens)
{
    struct moe_step step = {.step = 1, .microbatch = (uint16_t)batch};
    int rc = packed_stage_of(r->rank) == 1 ? pass_on(r, false, false, r->x[batch][0], tokens) : 0;
    for (int l = 0; l < 2 && rc == 0; l++) {
        support_poison(r->rows, PACKED_MOST * PACKED_H);
        rc = moe_layer_forward(r->layer[l], &r->weights[l], &step, r->x[batch][l], tokens, r->rows);
        int waited = moe_device_sync(r->device);
        rc = rc ? rc : waited;
        for (int64_t i = 0; i < tokens * PACKED_H; i++) {
            r->x[batch][l + 1][i] = r->x[batch][l][i] + (float)packed_share * r->rows[i];
        }
    }
    return rc == 0 && packed_stage_of(r->rank) == 0 ? pass_on(r, true, false, r->x[batch][2], tokens) : rc;
}

static int backward(struct rank *r, int batch, int64_t tokens)
{
    struct moe_step step = {.step = 1, .microbatch = (uint16_t)batch};
    int rc = packed_stage_of(r->rank) == 0 ? pass_on(r, false, true, r->d[batch][2], tokens) : 0;
    for (int l = 1; l >= 0 && rc == 0; l--) {
        support_poison(r->d[batch][l], PACKED_MOST * PACKED_H);
        for (int64_t i = 0; i < tokens * PACKED_H; i++) {
            r->rows[i] = (float)packed_share * r->d[batch][l + 1][i];
        }
        rc = moe_layer_backward_of(r->layer[l], &step, r->rows, r->d[batch][l]);
        int waited = moe_device_sync(r->device);
        rc = rc ? rc : waited;
        for (int64_t i = 0; i < tokens * PACKED_H; i++) {
            r->d[batch][l][i] += r->d[batch][l + 1][i];
        }
    }
    return rc == 0 && packed_stage_of(r->rank) == 1 ? pass_on(r, true, true, r->d[batch][0], tokens) : rc;
}

static int run_schedule(struct rank *r)
{
    const char *order = packed_stage_of(r->rank) == 0 ? "ABaCbc" : "AaBbCc"; /* 1F1B over two stages */
    int64_t tokens[PACKED_BATCHES];
    int rc = 0;
    for (int b = 0; b < PACKED_BATCHES; b++) {
        double x[PACKED_MOST * PACKED_H], dy[PACKED_MOST * PACKED_H];
        tokens[b] = packed_tokens(r->rank, b, x, dy);
        for (int i = 0; i < 3; i++) {
            r->x[b][i] = support_floats(r->device, PACKED_MOST * PACKED_H);
            r->d[b][i] = support_floats(r->device, PACKED_MOST * PACKED_H);
        }
        for (int64_t i = 0; i < tokens[b] * PACKED_H; i++) {
            r->x[b][0][i] = packed_stage_of(r->rank) == 0 ? (float)x[i] : NAN;
            r->d[b][2][i] = packed_stage_of(r->rank) == 1 ? (float)dy[i] : NAN;
        }
    }
    for (const char *at = order; *at != '\0' && rc == 0; at++) {
        int b = *at < 'a' ? *at - 'A' : *at - 'a';
        rc = *at < 'a' ? forward(r, b, tokens[b]) : backward(r, b, tokens[b]);
    }
    rc = rc == 0 && cudaStreamSynchronize(r->side) != cudaSuccess ? MOE_E_DEVICE : rc;
    for (int b = 0; b < PACKED_BATCHES && rc == 0; b++) {
        memcpy(r->out->y[b], r->x[b][2], sizeof(r->out->y[b]));
        memcpy(r->out->dx[b], r->d[b][0], sizeof(r->out->dx[b]));
    }
    for (int l = 0; l < 2 && rc == 0; l++) {
        memcpy(r->out->d_gate[l], r->grad[l][0], (size_t)packed_sizes[0] * sizeof(float));
        memcpy(r->out->d_w1[l], r->grad[l][1], (size_t)packed_sizes[1] * sizeof(float));
        memcpy(r->out->d_w2[l], r->grad[l][2], (size_t)packed_sizes[2] * sizeof(float));
    }
    return rc;
}

static void clean(struct rank *r)
{
    for (int l = 0; l < 2; l++) {
        moe_layer_destroy(&r->layer[l]);
        for (int p = 0; p < 3 && r->device != NULL; p++) {
            moe_device_free(r->device, &r->parameter[l][p]);
            moe_device_free(r->device, &r->grad[l][p]);
        }
    }
    for (int b = 0; b < PACKED_BATCHES * 3 && r->device != NULL; b++) {
        moe_device_free(r->device, &r->x[b / 3][b % 3]);
        moe_device_free(r->device, &r->d[b / 3][b % 3]);
    }
    if (r->device != NULL) {
        moe_device_free(r->device, &r->rows);
    }
    moe_device_destroy(&r->device);
    if (r->side != NULL) {
        cudaStreamDestroy(r->side);
    }
    ncclComm_t comms[] = {r->tp_ep, r->ep, r->tp, r->stage, r->up, r->world};
    for (size_t i = 0; i < sizeof(comms) / sizeof(comms[0]); i++) {
        if (comms[i] != NULL) {
            ncclCommDestroy(comms[i]);
        }
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    static const struct form_case nothing;
    struct form_self self = {.result = &r->out->calls, .scenario = &nothing};
    int rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : join(r);
    rc = rc ? rc : cudaStreamCreate(&r->side) == cudaSuccess ? 0 : MOE_E_DEVICE;
    rc = rc ? rc : moe_device_new_host(&r->device);
    if (rc == 0) {
        r->rows = support_floats(r->device, PACKED_MOST * PACKED_H);
        form_self = &self;
        rc = make_layers(r);
        rc = rc ? rc : run_schedule(r);
        form_self = NULL;
    }
    r->out->rc = rc;
    snprintf(r->out->message, sizeof(r->out->message), "%s", rc != 0 ? moe_last_error() : "");
    clean(r);
    return NULL;
}

void packed_run(const struct packed_scenario *s, const struct packed_model *m, struct packed_result *results)
{
    static struct rank rank[PACKED_RANKS];
    pthread_t thread[PACKED_RANKS];
    ncclUniqueId id;
    memset(rank, 0, sizeof(rank));
    memset(results, 0, PACKED_RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < PACKED_RANKS; r++) {
        rank[r] = (struct rank){.s = s, .m = m, .id = id, .rank = r, .out = &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < PACKED_RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < PACKED_RANKS; r++) {
        if (results[r].rc != 0) {
            fail_msg("rank %d: %d (%s)", r, results[r].rc, results[r].message);
        }
    }
}
