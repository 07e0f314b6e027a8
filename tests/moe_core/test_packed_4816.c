/*
 * test_packed_4816.c: packed sequences on 16 ranks, as the test that Megatron-LM #4816 brought: tensor, context,
 * pipeline and expert parallel 2 each, two replicas.
 *
 * rank = tp + 2 (cp + 2 (dp + 2 pp)). A stage has two MoE layers with residuals, and runs three microbatches as 1F1B.
 * Each replica packs sequences of its own lengths (THD): a sequence is padded to a multiple of 2 cp tp, cut into 2 cp
 * chunks of which cp rank r has the chunks r and 2 cp - 1 - r, and a rank's packed tokens are cut in two over tp
 * (sequence parallel). So ranks of a dispatch group have different numbers of tokens where it spans replicas, and none
 * where a replica has nothing to do. Experts are split over tp (etp 2), and owned by pairs over cp or over dp: both are
 * run. Every rank's outputs and gradients are held against the whole model in double, with the tokens of all ranks.
 */
#include "tests/moe_core/form_ranks.h"

#include "moe_core/include/moe/uneven.h"

#include <pthread.h>

enum {
    RANKS = 16,
    STAGE = 8, /* ranks of a stage */
    BATCHES = 3,
    LAYERS = 4, /* two in each stage */
    E = 4,
    H = 8,
    F = 4,
    K = 2,
    MOST = 16, /* tokens of a rank */
    UNIT = 8   /* 2 cp tp: sequences are padded to a multiple */
};

struct model {
    double gate[LAYERS][E * H], w1[LAYERS][E * 2 * F * H], w2[LAYERS][E * H * F];
};

/* Lengths of the sequences that a replica packs; 0 ends the list. */
static const int lengths[2][BATCHES][4] = {{{5, 11, 8}, {3}, {0}}, {{8}, {17, 2, 1, 9}, {6, 6}}};

static const double share = 0.125; /* of an MoE layer's output in the sum with its input */

struct scenario {
    enum moe_dispatcher_kind kind;
    bool over_dp; /* ep pairs are over dp, not over cp */
    bool recompute;
};

struct result {
    int rc;
    char message[256];
    float y[BATCHES][MOST * H], dx[BATCHES][MOST * H];
    float d_gate[2][E * H], d_w1[2][E * 2 * F * H], d_w2[2][E * H * F];
    struct form_result calls;
};

struct rank {
    const struct scenario *s;
    const struct model *m;
    ncclUniqueId id;
    int rank;
    struct result *out;
    ncclComm_t world, up, stage, tp, ep, tp_ep; /* world: activations to the next stage; up: gradients back */
    cudaStream_t side; /* of gradients to the stage before, which nobody waits for: 1F1B would wait in a circle */
    moe_device_t *device;
    moe_layer_t *layer[2];
    struct moe_layer_weights weights[2];
    float *parameter[2][3], *grad[2][3];
    float *x[BATCHES][3]; /* inputs of the two layers, and the stage's output */
    float *d[BATCHES][3]; /* their gradients */
    float *rows;
};

static int tp_of(int rank)
{
    return rank % 2;
}
static int cp_of(int rank)
{
    return rank / 2 % 2;
}
static int dp_of(int rank)
{
    return rank / 4 % 2;
}
static int stage_of(int rank)
{
    return rank / STAGE;
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
    uint64_t where = (uint64_t)(((dp * BATCHES + batch) * 4 + sequence) * 64 + place);
    bool wish = i == (place + sequence + dp) % E || i == (place * 3 + 1 + batch) % E;
    return (double)(float)(0.2 * drawn(where, (uint64_t)i, 1) + (wish ? 4 - (i % 2) : 0));
}

static double pull(int dp, int batch, int sequence, int place, int length, int i)
{
    uint64_t where = (uint64_t)(((dp * BATCHES + batch) * 4 + sequence) * 64 + place);
    return place >= length ? 0 : (double)(float)drawn(where, (uint64_t)i, 2);
}

/* Writes x and the gradient of the model's output of a rank's packed tokens, and returns how many there are. */
static int64_t pack(int rank, int batch, double *x, double *dy)
{
    int dp = dp_of(rank), cp = cp_of(rank);
    double whole_x[2 * MOST * H], whole_dy[2 * MOST * H];
    int64_t n = 0;
    for (int s = 0; s < 4 && lengths[dp][batch][s] > 0; s++) {
        int length = lengths[dp][batch][s], chunk = (length + UNIT - 1) / UNIT * UNIT / 4;
        for (int half = 0; half < 2; half++) {
            int first = (half == 0 ? cp : 3 - cp) * chunk;
            for (int p = first; p < first + chunk; p++, n++) {
                for (int i = 0; i < H; i++) {
                    whole_x[n * H + i] = feature(dp, batch, s, p, length, i);
                    whole_dy[n * H + i] = pull(dp, batch, s, p, length, i);
                }
            }
        }
    }
    n /= 2; /* this tp rank's half */
    memcpy(x, whole_x + tp_of(rank) * n * H, (size_t)(n * H) * sizeof(double));
    memcpy(dy, whole_dy + tp_of(rank) * n * H, (size_t)(n * H) * sizeof(double));
    return n;
}

static void make_model(struct model *m)
{
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < E * H; i++) {
            m->gate[l][i] = (double)(float)(0.1 * drawn((uint64_t)l, (uint64_t)i, 3) + (i / H == i % H ? 2 : 0));
        }
        for (int i = 0; i < E * 2 * F * H; i++) {
            m->w1[l][i] = (double)(float)(0.5 * drawn((uint64_t)l, (uint64_t)i, 4));
        }
        for (int i = 0; i < E * H * F; i++) {
            m->w2[l][i] = (double)(float)(0.5 * drawn((uint64_t)l, (uint64_t)i, 5));
        }
    }
}

/* The owner of experts that a rank is in its pair. */
static int owner_of(const struct scenario *s, int rank)
{
    return s->over_dp ? dp_of(rank) : cp_of(rank);
}

/* one rank */

static int join(struct rank *r)
{
    int stage_rank = r->rank % STAGE, tp = tp_of(r->rank), cp = cp_of(r->rank), dp = dp_of(r->rank);
    int other = r->s->over_dp ? cp : dp; /* what the ranks of an ep pair have in common beside tp */
    if (ncclCommInitRank(&r->world, RANKS, r->id, r->rank) != ncclSuccess ||
        ncclCommSplit(r->world, 0, r->rank, &r->up, NULL) != ncclSuccess ||
        ncclCommSplit(r->world, stage_of(r->rank), stage_rank, &r->stage, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, cp + 2 * dp, tp, &r->tp, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, tp + 2 * other, owner_of(r->s, r->rank), &r->ep, NULL) != ncclSuccess ||
        ncclCommSplit(r->stage, other, owner_of(r->s, r->rank) * 2 + tp, &r->tp_ep, NULL) != ncclSuccess) {
        return MOE_E_COMM;
    }
    return 0;
}

static const int64_t sizes[3] = {E * H, E / 2 * F *H, E / 2 * H *F / 2};

static int make_layers(struct rank *r)
{
    int64_t first = owner_of(r->s, r->rank) * (E / 2), f = tp_of(r->rank) * (F / 2);
    int rc = 0;
    for (int l = 0; l < 2 && rc == 0; l++) {
        const int whole = stage_of(r->rank) * 2 + l;
        for (int p = 0; p < 3; p++) {
            r->parameter[l][p] = support_floats(r->device, sizes[p]);
            r->grad[l][p] = support_floats(r->device, sizes[p]);
        }
        for (int64_t i = 0; i < sizes[0]; i++) {
            r->parameter[l][0][i] = (float)r->m->gate[whole][i];
        }
        for (int64_t i = 0; i < sizes[1]; i++) { /* [E/2, 2, F/2, H] */
            int64_t h = i % H, row = i / H % (F / 2), half = i / H / (F / 2);
            r->parameter[l][1][i] = (float)r->m->w1[whole][((first * 2 + half) * F + f + row) * H + h];
        }
        for (int64_t i = 0; i < sizes[2]; i++) { /* [E/2, H, F/2] */
            int64_t column = i % (F / 2), row = i / (F / 2);
            r->parameter[l][2][i] = (float)r->m->w2[whole][(first * H + row) * F + f + column];
        }
        struct moe_layer_config config = {
            .layer = (uint32_t)whole,
            .world_rank = r->rank,
            .max_tokens = MOST,
            .hidden = H,
            .ffn = F,
            .experts = E,
            .topk = K,
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
    int peer = (r->rank + STAGE) % RANKS;
    size_t count = (size_t)(tokens * H);
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
    int rc = stage_of(r->rank) == 1 ? pass_on(r, false, false, r->x[batch][0], tokens) : 0;
    for (int l = 0; l < 2 && rc == 0; l++) {
        support_poison(r->rows, MOST * H);
        rc = moe_layer_forward(r->layer[l], &r->weights[l], &step, r->x[batch][l], tokens, r->rows);
        int waited = moe_device_sync(r->device);
        rc = rc ? rc : waited;
        for (int64_t i = 0; i < tokens * H; i++) {
            r->x[batch][l + 1][i] = r->x[batch][l][i] + (float)share * r->rows[i];
        }
    }
    return rc == 0 && stage_of(r->rank) == 0 ? pass_on(r, true, false, r->x[batch][2], tokens) : rc;
}

static int backward(struct rank *r, int batch, int64_t tokens)
{
    struct moe_step step = {.step = 1, .microbatch = (uint16_t)batch};
    int rc = stage_of(r->rank) == 0 ? pass_on(r, false, true, r->d[batch][2], tokens) : 0;
    for (int l = 1; l >= 0 && rc == 0; l--) {
        support_poison(r->d[batch][l], MOST * H);
        for (int64_t i = 0; i < tokens * H; i++) {
            r->rows[i] = (float)share * r->d[batch][l + 1][i];
        }
        rc = moe_layer_backward_of(r->layer[l], &step, r->rows, r->d[batch][l]);
        int waited = moe_device_sync(r->device);
        rc = rc ? rc : waited;
        for (int64_t i = 0; i < tokens * H; i++) {
            r->d[batch][l][i] += r->d[batch][l + 1][i];
        }
    }
    return rc == 0 && stage_of(r->rank) == 1 ? pass_on(r, true, true, r->d[batch][0], tokens) : rc;
}

static int run_schedule(struct rank *r)
{
    const char *order = stage_of(r->rank) == 0 ? "ABaCbc" : "AaBbCc"; /* 1F1B over two stages */
    int64_t tokens[BATCHES];
    int rc = 0;
    for (int b = 0; b < BATCHES; b++) {
        double x[MOST * H], dy[MOST * H];
        tokens[b] = pack(r->rank, b, x, dy);
        for (int i = 0; i < 3; i++) {
            r->x[b][i] = support_floats(r->device, MOST * H);
            r->d[b][i] = support_floats(r->device, MOST * H);
        }
        for (int64_t i = 0; i < tokens[b] * H; i++) {
            r->x[b][0][i] = stage_of(r->rank) == 0 ? (float)x[i] : NAN;
            r->d[b][2][i] = stage_of(r->rank) == 1 ? (float)dy[i] : NAN;
        }
    }
    for (const char *at = order; *at != '\0' && rc == 0; at++) {
        int b = *at < 'a' ? *at - 'A' : *at - 'a';
        rc = *at < 'a' ? forward(r, b, tokens[b]) : backward(r, b, tokens[b]);
    }
    rc = rc == 0 && cudaStreamSynchronize(r->side) != cudaSuccess ? MOE_E_DEVICE : rc;
    for (int b = 0; b < BATCHES && rc == 0; b++) {
        memcpy(r->out->y[b], r->x[b][2], sizeof(r->out->y[b]));
        memcpy(r->out->dx[b], r->d[b][0], sizeof(r->out->dx[b]));
    }
    for (int l = 0; l < 2 && rc == 0; l++) {
        memcpy(r->out->d_gate[l], r->grad[l][0], (size_t)sizes[0] * sizeof(float));
        memcpy(r->out->d_w1[l], r->grad[l][1], (size_t)sizes[1] * sizeof(float));
        memcpy(r->out->d_w2[l], r->grad[l][2], (size_t)sizes[2] * sizeof(float));
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
    for (int b = 0; b < BATCHES * 3 && r->device != NULL; b++) {
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
        r->rows = support_floats(r->device, MOST * H);
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

/* the whole model */

struct truth {
    double x[STAGE][LAYERS + 1][MOST * H], d[STAGE][LAYERS + 1][MOST * H], y[STAGE][MOST * H], dy[STAGE][MOST * H];
    double gate[STAGE][LAYERS][E * H];                             /* of each rank's tokens */
    double w1[2][LAYERS][E * 2 * F * H], w2[2][LAYERS][E * H * F]; /* of the tokens of each dispatch group */
};

/* The dispatch group of a rank in its stage. */
static int group_of(const struct scenario *s, int rank)
{
    return s->over_dp ? cp_of(rank) : dp_of(rank);
}

static void run_reference(const struct scenario *s, const struct model *m, struct truth *t, int layer,
                          const int64_t *tokens, bool back)
{
    struct moe_ref_layer ref = {.router = {.hidden = H, .experts = E, .topk = K, .renormalise = true},
                                .ffn = F,
                                .weights = {.gate = m->gate[layer], .w1 = m->w1[layer], .w2 = m->w2[layer]}};
    struct moe_ref_set set[STAGE];
    for (int r = 0; r < STAGE; r++) {
        for (int64_t i = 0; back && i < tokens[r] * H; i++) {
            t->dy[r][i] = share * t->d[r][layer + 1][i];
        }
        set[r] = (struct moe_ref_set){
            .tokens = tokens[r], .x = t->x[r][layer], .dy = back ? t->dy[r] : NULL, .y = t->y[r], .dx = t->d[r][layer]};
        if (back) {
            int g = group_of(s, r);
            set[r].grads =
                (struct moe_ref_layer_grads){.gate = t->gate[r][layer], .w1 = t->w1[g][layer], .w2 = t->w2[g][layer]};
        }
    }
    assert_int_equal(moe_ref_layer_run(&ref, set, STAGE), 0);
    for (int r = 0; r < STAGE; r++) {
        for (int64_t i = 0; i < tokens[r] * H; i++) {
            if (back) {
                t->d[r][layer][i] += t->d[r][layer + 1][i];
            } else {
                t->x[r][layer + 1][i] = t->x[r][layer][i] + share * t->y[r][i];
            }
        }
    }
}

static void check_close(const char *what, int rank, const float *got, const double *want, int64_t count)
{
    double size = 1;
    for (int64_t i = 0; i < count; i++) {
        size = fmax(size, fabs(want[i]));
    }
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - want[i]) <= 3e-5 * size)) {
            fail_msg("rank %d: %s[%lld]: got %.9g, want %.9g", rank, what, (long long)i, (double)got[i], want[i]);
        }
    }
}

static void check_parameters(const struct scenario *s, const struct result *results, const struct truth *t)
{
    for (int r = 0; r < RANKS; r++) {
        int pair = r % STAGE / 2 * 2, g = group_of(s, r);
        int64_t first = owner_of(s, r) * (E / 2), f = tp_of(r) * (F / 2);
        for (int l = 0; l < 2; l++) {
            int whole = stage_of(r) * 2 + l;
            double gate[E * H], w1[E / 2 * F * H], w2[E / 2 * H * F / 2];
            for (int i = 0; i < E * H; i++) {
                gate[i] = t->gate[pair][whole][i] + t->gate[pair + 1][whole][i];
            }
            for (int64_t i = 0; i < sizes[1]; i++) {
                int64_t h = i % H, row = i / H % (F / 2), half = i / H / (F / 2);
                w1[i] = t->w1[g][whole][((first * 2 + half) * F + f + row) * H + h];
            }
            for (int64_t i = 0; i < sizes[2]; i++) {
                w2[i] = t->w2[g][whole][(first * H + i / (F / 2)) * F + f + i % (F / 2)];
            }
            check_close("d_gate", r, results[r].d_gate[l], gate, sizes[0]);
            check_close("d_w1", r, results[r].d_w1[l], w1, sizes[1]);
            check_close("d_w2", r, results[r].d_w2[l], w2, sizes[2]);
        }
    }
}

static void check(const struct scenario *s, const struct model *m, const struct result *results)
{
    struct truth *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    for (int b = 0; b < BATCHES; b++) {
        int64_t tokens[STAGE];
        for (int r = 0; r < STAGE; r++) {
            tokens[r] = pack(r, b, t->x[r][0], t->d[r][LAYERS]);
        }
        for (int l = 0; l < LAYERS; l++) {
            run_reference(s, m, t, l, tokens, false);
        }
        for (int l = LAYERS - 1; l >= 0; l--) {
            run_reference(s, m, t, l, tokens, true);
        }
        for (int r = 0; r < RANKS; r++) {
            int stage = stage_of(r);
            check_close("y", r, results[r].y[b], t->x[r % STAGE][stage == 0 ? 2 : 4], tokens[r % STAGE] * H);
            check_close("dx", r, results[r].dx[b], t->d[r % STAGE][stage == 0 ? 0 : 2], tokens[r % STAGE] * H);
        }
    }
    check_parameters(s, results, t);
    free(t);
}

static void run(const struct scenario *s, const struct model *m, struct result *results)
{
    static struct rank rank[RANKS];
    pthread_t thread[RANKS];
    ncclUniqueId id;
    memset(rank, 0, sizeof(rank));
    memset(results, 0, RANKS * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        rank[r] = (struct rank){.s = s, .m = m, .id = id, .rank = r, .out = &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
    for (int r = 0; r < RANKS; r++) {
        if (results[r].rc != 0) {
            fail_msg("rank %d: %d (%s)", r, results[r].rc, results[r].message);
        }
    }
}

static void test_the_packs_are_uneven_as_meant(void **state)
{
    (void)state;
    bool none = false, differ = false;
    for (int b = 0; b < BATCHES; b++) {
        int64_t tokens[STAGE];
        for (int r = 0; r < STAGE; r++) {
            double x[MOST * H], dy[MOST * H];
            tokens[r] = pack(r, b, x, dy);
            assert_true(tokens[r] <= MOST);
            none = none || tokens[r] == 0;
            assert_int_equal(tokens[r], tokens[r / 4 * 4]); /* cp and tp cut evenly */
        }
        differ = differ || tokens[0] != tokens[4];
    }
    assert_true(none && differ);
}

static void test_sixteen_ranks_train_on_packed_sequences(void **state)
{
    (void)state;
    static struct result results[RANKS];
    struct model *m = malloc(sizeof(*m));
    assert_non_null(m);
    make_model(m);
    for (int kind = 0; kind < MOE_DISPATCH_KINDS; kind++) {
        for (int over_dp = 0; over_dp < 2; over_dp++) {
            struct scenario s = {(enum moe_dispatcher_kind)kind, over_dp, (kind + over_dp) % 2 == 0};
            run(&s, m, results);
            check(&s, m, results);
            for (int r = 0; r < RANKS; r++) { /* one MAX for a microbatch, not for a layer, and none in recompute */
                size_t asked = 0;
                for (size_t i = 0; i < results[r].calls.calls; i++) {
                    const struct form_call *call = &results[r].calls.call[i];
                    asked += call->op == 'R' && call->kind == 'i' && call->count == 1;
                }
                assert_int_equal(asked, kind == MOE_DISPATCH_HYBRIDEP || kind == MOE_DISPATCH_ALLGATHER ? BATCHES : 0);
            }
        }
    }
    free(m);
}

int main(void)
{
    setenv("HOSTCUDA_DEVICES", "16", 1); /* a device for each rank; before the first call of the runtime */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_packs_are_uneven_as_meant),
        cmocka_unit_test(test_sixteen_ranks_train_on_packed_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
