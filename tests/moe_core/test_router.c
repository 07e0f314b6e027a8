/*
 * test_router.c: every way of routing against the reference: choices, weights, counts and losses exactly or to float's
 * precision; gradients against central differences of the reference's objective; counts over several ranks; the expert
 * bias; what does not fit.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/ops.h"
#include "moe_core/include/moe/permute.h"
#include "moe_core/include/moe/router.h"
#include "moe_core/reference/ref_router.h"

#include <pthread.h>

enum { T = 12, H = 5, E = 8 };

static const struct {
    const char *name;
    struct moe_router_config config;
} ways[] = {
    {"softmax", {.topk = 2}},
    {"softmax, renormalised", {.topk = 3, .renormalise = true}},
    {"softmax after", {.topk = 2, .options = {.after = true}}},
    {"softmax after, of one", {.topk = 1, .options = {.after = true}}},
    {"sigmoid", {.topk = 2, .options = {.score = MOE_SCORE_SIGMOID}}},
    {"sigmoid, renormalised", {.topk = 2, .renormalise = true, .options = {.score = MOE_SCORE_SIGMOID}}},
    {"sigmoid, one is not renormalised", {.topk = 1, .renormalise = true, .options = {.score = MOE_SCORE_SIGMOID}}},
    {"sigmoid with bias and scale",
     {.topk = 2, .renormalise = true, .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true, .scale = 2.5f}}},
    {"sqrtsoftplus",
     {.topk = 3, .renormalise = true, .options = {.score = MOE_SCORE_SQRTSOFTPLUS, .expert_bias = true}}},
    {"sqrtsoftplus, plain, gate bias", {.topk = 2, .options = {.score = MOE_SCORE_SQRTSOFTPLUS, .gate_bias = true}}},
    {"gate bias, after", {.topk = 3, .options = {.after = true, .gate_bias = true}}},
    {"groups", {.topk = 2, .options = {.groups = 4, .group_topk = 2}}},
    {"groups, the two best each",
     {.topk = 4,
      .renormalise = true,
      .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true, .groups = 4, .group_topk = 2, .scale = 2.5f}}},
    {"groups, after", {.topk = 2, .options = {.after = true, .groups = 2, .group_topk = 1}}},
    {"switch loss", {.topk = 2, .options = {.coeff = {[MOE_LOSS_SWITCH] = 0.7f}}}},
    {"sequence loss", {.topk = 2, .options = {.coeff = {[MOE_LOSS_SEQUENCE] = 0.7f}, .sequences = 3}}},
    {"global loss", {.topk = 2, .options = {.coeff = {[MOE_LOSS_GLOBAL] = 0.7f}}}},
    {"z loss", {.topk = 2, .options = {.coeff = {[MOE_LOSS_Z] = 0.7f}}}},
    {"all losses, sigmoid",
     {.topk = 2,
      .renormalise = true,
      .options = {.score = MOE_SCORE_SIGMOID, .coeff = {0.3f, 0.2f, 0.4f, 0.1f}, .sequences = 2}}},
    {"all losses, sqrtsoftplus, after nothing",
     {.topk = 2, .options = {.score = MOE_SCORE_SQRTSOFTPLUS, .coeff = {0.3f, 0.2f, 0.4f, 0.1f}, .sequences = 2}}},
    {"all losses, softmax after",
     {.topk = 2, .options = {.after = true, .coeff = {0.3f, 0.2f, 0.4f, 0.1f}, .sequences = 4}}},
    {"capacity by weight", {.topk = 2, .options = {.capacity_factor = 0.6f}}},
    {"capacity by position",
     {.topk = 2, .renormalise = true, .options = {.capacity_factor = 0.6f, .by_position = true}}},
    {"capacity, after, padded",
     {.topk = 2, .options = {.after = true, .capacity_factor = 0.8f, .pad_to_capacity = true}}},
    {"capacity, sigmoid, scaled, with a loss",
     {.topk = 3,
      .renormalise = true,
      .options = {.score = MOE_SCORE_SIGMOID, .scale = 1.5f, .capacity_factor = 0.5f, .coeff = {0.5f}}}},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

/* One problem, in the library's and in the reference's numbers. */
struct problem {
    moe_device_t *device;
    moe_router_t *router;
    struct moe_router_config config;
    float *x, *gate, *gate_bias, *expert_bias, *d_probs, *dx, *d_gate, *d_gate_bias;
    double twin_x[T * H], twin_gate[E * H], twin_gate_bias[E], twin_expert_bias[E], pull[T * E];
    int32_t index[T * E], all[T * E];
    double probs[T * E];
    int64_t counts[E];
    struct moe_ref_router ref;
    struct moe_ref_routing want;
};

static void set_up(struct problem *p, const struct moe_router_config *config, uint64_t seed)
{
    memset(p, 0, sizeof(*p));
    p->config = *config;
    p->config.max_tokens = T;
    p->config.hidden = H;
    p->config.experts = E;
    assert_int_equal(moe_device_new_host(&p->device), 0);
    assert_int_equal(moe_router_new(p->device, &p->config, &p->router), 0);
    p->x = support_floats(p->device, T * H);
    p->gate = support_floats(p->device, E * H);
    p->gate_bias = support_floats(p->device, E);
    p->expert_bias = support_floats(p->device, E);
    p->d_probs = support_floats(p->device, T * E);
    p->dx = support_floats(p->device, T * H);
    p->d_gate = support_floats(p->device, E * H);
    p->d_gate_bias = support_floats(p->device, E);
    support_fill(p->x, p->twin_x, T * H, 1, &seed);
    support_fill(p->gate, p->twin_gate, E * H, 1, &seed);
    support_fill(p->gate_bias, p->twin_gate_bias, E, 1, &seed);
    support_fill(p->expert_bias, p->twin_expert_bias, E, 0.3, &seed);
    support_fill(p->d_probs, p->pull, T * E, 1, &seed);
    const struct moe_router_options *o = &p->config.options;
    p->ref = (struct moe_ref_router){.config = p->config,
                                     .gate = p->twin_gate,
                                     .gate_bias = o->gate_bias ? p->twin_gate_bias : NULL,
                                     .expert_bias = o->expert_bias ? p->twin_expert_bias : NULL};
    p->want = (struct moe_ref_routing){.index = p->index, .all = p->all, .probs = p->probs, .counts = p->counts};
}

static void tear_down(struct problem *p)
{
    void *arrays[] = {&p->x,       &p->gate, &p->gate_bias, &p->expert_bias,
                      &p->d_probs, &p->dx,   &p->d_gate,    &p->d_gate_bias};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(p->device, arrays[i]);
    }
    moe_router_destroy(&p->router);
    moe_device_destroy(&p->device);
}

static struct moe_router_weights weights_of(const struct problem *p)
{
    return (struct moe_router_weights){p->gate, p->gate_bias, p->expert_bias};
}

static void forward(struct problem *p, int64_t tokens)
{
    struct moe_router_weights weights = weights_of(p);
    assert_int_equal(moe_router_forward(p->router, p->x, &weights, tokens), 0);
    assert_int_equal(moe_device_sync(p->device), 0);
    assert_int_equal(moe_ref_router_forward(&p->ref, tokens, p->twin_x, &p->want), 0);
}

static void check_forward(struct problem *p, const char *name, int64_t tokens)
{
    const int32_t *index = moe_router_index(p->router);
    for (int64_t i = 0; i < tokens * p->config.topk; i++) {
        if (index[i] != p->index[i]) {
            fail_msg("%s: choice %lld is expert %d, want %d", name, (long long)i, index[i], p->index[i]);
        }
    }
    support_close(name, moe_router_probs(p->router), p->probs, tokens * E, 1e-5);
    assert_memory_equal(moe_router_counts(p->router), p->counts, sizeof(p->counts));
    for (int i = 0; i < MOE_LOSSES; i++) {
        if (p->config.options.coeff[i] != 0.0f && fabs((double)moe_router_losses(p->router)[i] - p->want.losses[i]) >
                                                      1e-5 * fabs(p->want.losses[i]) + 1e-30) {
            fail_msg("%s: loss %d is %.9g, want %.9g", name, i, (double)moe_router_losses(p->router)[i],
                     p->want.losses[i]);
        }
    }
}

static void test_choice_weights_counts_and_losses_equal_the_reference(void **state)
{
    (void)state;
    static struct problem p;
    for (int i = 0; i < WAYS; i++) {
        for (uint64_t seed = 1; seed <= 5; seed++) {
            set_up(&p, &ways[i].config, seed * 977);
            forward(&p, T);
            check_forward(&p, ways[i].name, T);
            tear_down(&p);
        }
    }
}

static void test_no_tokens_are_no_error_and_no_division_by_zero(void **state)
{
    (void)state;
    static struct problem p;
    for (int i = 0; i < WAYS; i++) {
        set_up(&p, &ways[i].config, 5);
        struct moe_router_weights weights = weights_of(&p);
        assert_int_equal(moe_router_forward(p.router, p.x, &weights, 0), 0);
        assert_int_equal(moe_router_backward(p.router, p.d_probs, p.dx, p.d_gate, p.d_gate_bias), 0);
        assert_int_equal(moe_device_sync(p.device), 0);
        for (int e = 0; e < E; e++) {
            assert_int_equal(moe_router_counts(p.router)[e], 0);
        }
        for (int k = 0; k < MOE_LOSSES; k++) {
            assert_true(moe_router_losses(p.router)[k] == 0.0f);
        }
        for (int j = 0; j < E * H; j++) {
            assert_true(p.d_gate[j] == 0.0f);
        }
        tear_down(&p);
    }
}

/* Central differences of the objective by each of `values`, against what the library added to a gradient that began at
 * `start`. */
static void check_gradient(struct problem *p, const char *way, const char *what, double *values, const float *got,
                           int count, double start)
{
    const double h = 1e-5;
    for (int i = 0; i < count; i++) {
        double keep = values[i];
        values[i] = keep + h;
        double up = moe_ref_router_objective(&p->ref, T, p->twin_x, p->pull, 3.0, &p->want);
        values[i] = keep - h;
        double down = moe_ref_router_objective(&p->ref, T, p->twin_x, p->pull, 3.0, &p->want);
        values[i] = keep;
        double want = start + (up - down) / (2 * h);
        if (!(fabs((double)got[i] - want) <= 4e-6 * (1 + fabs(want)))) {
            fail_msg("%s: %s[%d] is %.9g, want %.9g", way, what, i, (double)got[i], want);
        }
    }
}

static void test_gradients_equal_differences_of_the_reference(void **state)
{
    (void)state;
    static struct problem p;
    for (int i = 0; i < WAYS; i++) {
        set_up(&p, &ways[i].config, 4242);
        moe_router_set_loss_scale(p.router, 3.0f);
        forward(&p, T);
        for (int j = 0; j < E * H; j++) {
            p.d_gate[j] = 0.25f; /* main_grads are added to */
        }
        assert_int_equal(
            moe_router_backward(p.router, p.d_probs, p.dx, p.d_gate, p.config.options.gate_bias ? p.d_gate_bias : NULL),
            0);
        assert_int_equal(moe_device_sync(p.device), 0);
        /* Counts are constants of the gradient: hold them as they were. */
        int64_t counts[E] = {0}, sequences[4 * E] = {0};
        int64_t parts = p.config.options.sequences > 0 ? p.config.options.sequences : 1;
        for (int t = 0; t < T; t++) {
            for (int k = 0; k < p.config.topk; k++) {
                counts[p.all[t * p.config.topk + k]]++;
                sequences[t % parts * E + p.all[t * p.config.topk + k]]++;
            }
        }
        p.ref.balance_counts = p.ref.global_counts = counts;
        p.ref.sequence_counts = sequences;
        p.ref.microbatches = 1;
        check_gradient(&p, ways[i].name, "dx", p.twin_x, p.dx, T * H, 0);
        check_gradient(&p, ways[i].name, "d_gate", p.twin_gate, p.d_gate, E * H, 0.25);
        if (p.config.options.gate_bias) {
            check_gradient(&p, ways[i].name, "d_gate_bias", p.twin_gate_bias, p.d_gate_bias, E, 0);
        }
        tear_down(&p);
    }
}

static void test_the_expert_bias_chooses_but_never_weighs(void **state)
{
    (void)state;
    static struct problem p;
    struct moe_router_config config = {.topk = 1, .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true}};
    set_up(&p, &config, 9);
    for (int e = 0; e < E; e++) {
        p.expert_bias[e] = e == 6 ? 100.0f : 0.0f;
    }
    struct moe_router_weights weights = weights_of(&p);
    assert_int_equal(moe_router_forward(p.router, p.x, &weights, T), 0);
    assert_int_equal(moe_device_sync(p.device), 0);
    assert_int_equal(moe_router_counts(p.router)[6], T);
    for (int t = 0; t < T; t++) {
        assert_true(moe_router_probs(p.router)[t * E + 6] < 1.0f);
    }
    tear_down(&p);
}

/* The counts of a global loss are the mean over the microbatches; not counting leaves them as they are. */
static void test_the_global_loss_is_of_the_mean_over_microbatches(void **state)
{
    (void)state;
    static struct problem p;
    struct moe_router_config config = {.topk = 2, .options = {.coeff = {[MOE_LOSS_GLOBAL] = 1.0f}}};
    set_up(&p, &config, 31);
    forward(&p, T);
    int64_t total[E];
    memcpy(total, p.counts, sizeof(total));
    for (int64_t i = 0; i < T * H; i++) {
        p.x[i] = -p.x[i];
        p.twin_x[i] = -p.twin_x[i];
    }
    forward(&p, T);
    for (int e = 0; e < E; e++) {
        total[e] += p.counts[e];
    }
    p.ref.global_counts = total;
    p.ref.microbatches = 2;
    for (int again = 0; again < 2; again++) { /* the second time without counting: the same loss */
        assert_int_equal(moe_ref_router_forward(&p.ref, T, p.twin_x, &p.want), 0);
        check_forward(&p, "global loss over two microbatches", T);
        moe_router_set_counting(p.router, false);
        forward(&p, T);
    }
    moe_router_set_counting(p.router, true);
    assert_int_equal(moe_router_global_reset(p.router), 0);
    p.ref.global_counts = NULL;
    forward(&p, T);
    check_forward(&p, "global loss, begun anew", T);
    tear_down(&p);
}

/* several ranks: threads with a communicator */

enum { RANKS = 3 };

struct rank {
    pthread_t thread;
    int rank;
    ncclUniqueId id;
    uint64_t seed;
    int64_t tokens;
    double losses[MOE_LOSSES];
    float bias[E];
    int64_t counts[E];
    bool anew;
};

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    static const struct moe_router_config config = {
        .topk = 2, .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true, .coeff = {1, 1, 1, 1}, .sequences = 2}};
    struct problem *p = calloc(1, sizeof(*p));
    ncclComm_t comm = NULL;
    assert_non_null(p);
    /* A device each: freeing memory waits for all streams of a device, and they wait for each other. */
    assert_int_equal(cudaSetDevice(r->rank), cudaSuccess);
    assert_int_equal(ncclCommInitRank(&comm, RANKS, r->id, r->rank), ncclSuccess);
    struct moe_router_config mine = config;
    mine.balance = comm;
    mine.global = comm;
    set_up(p, &mine, 77);
    uint64_t seed = r->seed;
    support_fill(p->x, p->twin_x, T * H, 1, &seed);
    memset(p->expert_bias, 0, E * sizeof(float));
    struct moe_router_weights weights = weights_of(p);
    assert_int_equal(moe_router_forward(p->router, p->x, &weights, r->tokens), 0);
    assert_int_equal(moe_device_sync(p->device), 0);
    for (int i = 0; i < MOE_LOSSES; i++) {
        r->losses[i] = (double)moe_router_losses(p->router)[i];
    }
    memcpy(r->counts, moe_router_counts(p->router), sizeof(r->counts));
    /* A second router of the same tokens, twice: its counts are summed in the same call, and have the same signs. */
    moe_router_t *both[2] = {p->router, NULL};
    float *biases[2] = {p->expert_bias, support_floats(p->device, E)};
    mine.max_tokens = T;
    mine.hidden = H;
    mine.experts = E;
    assert_int_equal(moe_router_new(p->device, &mine, &both[1]), 0);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(moe_router_forward(both[1], p->x, &weights, r->tokens), 0);
    }
    assert_int_equal(moe_router_update_bias(both, biases, 2, comm, 0.125f), 0);
    assert_int_equal(moe_device_sync(p->device), 0);
    assert_memory_equal(biases[0], biases[1], E * sizeof(float));
    moe_router_destroy(&both[1]);
    moe_device_free(p->device, &biases[1]);
    /* Counts begin anew: an update without a forward in between finds all equal and changes nothing. */
    memcpy(r->bias, p->expert_bias, sizeof(r->bias));
    assert_int_equal(moe_router_update_bias(&p->router, &p->expert_bias, 1, comm, 0.125f), 0);
    assert_int_equal(moe_device_sync(p->device), 0);
    r->anew = memcmp(r->bias, p->expert_bias, sizeof(r->bias)) == 0;
    tear_down(p);
    free(p);
    ncclCommDestroy(comm);
    return NULL;
}

/* Three ranks, one without tokens: the losses add up to those of one process with all tokens, the biases are equal and
 * those of the total counts. */
static void test_counts_are_summed_over_the_group(void **state)
{
    (void)state;
    static struct problem whole;
    static const int64_t tokens[RANKS] = {6, 0, 4}; /* 20 choices of 8 experts: the mean is no integer */
    struct rank rank[RANKS];
    ncclUniqueId id;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int i = 0; i < RANKS; i++) {
        rank[i] = (struct rank){.rank = i, .id = id, .seed = (uint64_t)(100 + i), .tokens = tokens[i]};
        assert_int_equal(pthread_create(&rank[i].thread, NULL, run_rank, &rank[i]), 0);
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(rank[i].thread, NULL);
    }
    struct moe_router_config config = {
        .topk = 2, .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true, .coeff = {1, 1, 1, 1}, .sequences = 2}};
    set_up(&whole, &config, 77);
    float scratch[T * H];
    int64_t all = 0;
    for (int i = 0; i < RANKS; i++) { /* even numbers of tokens: the sequences stay what they were */
        double twin[T * H];
        uint64_t seed = (uint64_t)(100 + i);
        support_fill(scratch, twin, T * H, 1, &seed);
        memcpy(whole.twin_x + all * H, twin, sizeof(double) * (size_t)(tokens[i] * H));
        all += tokens[i];
    }
    memset(whole.twin_expert_bias, 0, sizeof(whole.twin_expert_bias));
    assert_int_equal(moe_ref_router_forward(&whole.ref, all, whole.twin_x, &whole.want), 0);
    for (int k = 0; k < MOE_LOSS_Z; k++) {
        double sum = rank[0].losses[k] + rank[1].losses[k] + rank[2].losses[k];
        if (fabs(sum - whole.want.losses[k]) > 1e-5 * whole.want.losses[k]) {
            fail_msg("loss %d: ranks together %.9g, one process %.9g", k, sum, whole.want.losses[k]);
        }
    }
    int64_t total[E], sum = 0;
    for (int e = 0; e < E; e++) {
        total[e] = rank[0].counts[e] + rank[1].counts[e] + rank[2].counts[e];
        sum += total[e];
        assert_int_equal(total[e], whole.counts[e]);
    }
    for (int e = 0; e < E; e++) {
        float want = total[e] * E < sum ? 0.125f : total[e] * E > sum ? -0.125f : 0.0f;
        for (int i = 0; i < RANKS; i++) {
            assert_true(rank[i].anew);
            assert_true(rank[i].bias[e] == want);
        }
    }
    tear_down(&whole);
}

/* A padded capacity gives every expert as many rows; the permutation leaves the rows of dropped choices out. */
static void test_dropped_choices_have_no_row(void **state)
{
    (void)state;
    static struct problem p;
    struct moe_router_config config = {.topk = 2, .options = {.capacity_factor = 0.7f, .pad_to_capacity = true}};
    set_up(&p, &config, 3);
    forward(&p, T);
    int64_t capacity = moe_router_capacity(&p.config, T), kept = 0;
    assert_int_equal(capacity, 3); /* ceil(12 * 2 / 8 * 0.7) */
    moe_row_map_t *map = NULL;
    float *rows = support_floats(p.device, capacity * E * H), *back = support_floats(p.device, T * H);
    support_poison(rows, capacity * E * H);
    assert_int_equal(moe_row_map_new(p.device, T, E, &map), 0);
    assert_int_equal(
        moe_row_map_build_index(map, moe_router_index(p.router), 2, T, moe_router_counts(p.router), capacity * E), 0);
    assert_int_equal(moe_permute(map, p.x, H, rows), 0);
    assert_int_equal(moe_unpermute(map, rows, NULL, H, back), 0);
    assert_int_equal(moe_device_sync(p.device), 0);
    for (int t = 0; t < T; t++) {
        int choices = (p.index[2 * t] >= 0) + (p.index[2 * t + 1] >= 0);
        kept += choices;
        for (int h = 0; h < H; h++) {
            assert_true(back[t * H + h] == (float)choices * p.x[t * H + h]);
        }
    }
    assert_in_range(kept, 1, 2 * T - 1);
    moe_row_map_destroy(&map);
    moe_device_free(p.device, &rows);
    moe_device_free(p.device, &back);
    tear_down(&p);
}

static void test_presets_are_routers(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral", "deepseek-v3", "qwen3-moe", "gpt-oss"};
    static const int32_t topk[] = {2, 8, 8, 4};
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (int i = 0; i < 4; i++) {
        struct moe_router_config config = {.max_tokens = 3, .hidden = 2};
        moe_router_t *router = NULL;
        assert_int_equal(moe_router_preset(names[i], &config), 0);
        assert_int_equal(config.topk, topk[i]);
        assert_int_equal(config.hidden, 2);
        assert_int_equal(moe_router_new(device, &config, &router), 0);
        moe_router_destroy(&router);
    }
    struct moe_router_config config = {0};
    assert_int_equal(moe_router_preset("mixtrel", &config), MOE_E_ARG);
    assert_non_null(strstr(moe_last_error(), "mixtrel"));
    moe_device_destroy(&device);
}

static void test_what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct moe_router_config config;
        int code;
    } bad[] = {
        {{.topk = 9}, MOE_E_SHAPE},
        {{.topk = 0}, MOE_E_SHAPE},
        {{.topk = 2, .options = {.groups = 3, .group_topk = 1}}, MOE_E_SHAPE},
        {{.topk = 2, .options = {.groups = 4, .group_topk = 5}}, MOE_E_SHAPE},
        {{.topk = 3, .options = {.groups = 4, .group_topk = 1}}, MOE_E_SHAPE},
        {{.topk = 3, .options = {.groups = 4, .group_topk = 2}}, MOE_E_SHAPE},
        {{.topk = 2, .options = {.score = MOE_SCORE_SIGMOID, .after = true}}, MOE_E_ARG},
        {{.topk = 2, .options = {.capacity_factor = -1.0f}}, MOE_E_ARG},
        {{.topk = 2, .options = {.capacity_factor = INFINITY}}, MOE_E_ARG},
        {{.topk = 2, .options = {.scale = INFINITY}}, MOE_E_ARG},
        {{.topk = 2, .options = {.coeff = {[MOE_LOSS_Z] = NAN}}}, MOE_E_ARG},
        {{.topk = 2, .options = {.coeff = {[MOE_LOSS_SWITCH] = INFINITY}}}, MOE_E_ARG},
        {{.topk = 2, .options = {.sequences = -2}}, MOE_E_ARG},
    };
    moe_device_t *device = NULL;
    assert_int_equal(moe_device_new_host(&device), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct moe_router_config config = bad[i].config;
        moe_router_t *router = NULL;
        config.max_tokens = T;
        config.hidden = H;
        config.experts = E;
        assert_int_equal(moe_router_new(device, &config, &router), bad[i].code);
        assert_null(router);
    }
    moe_device_destroy(&device);
    static struct problem p;
    struct moe_router_config config = {
        .topk = 2, .options = {.score = MOE_SCORE_SIGMOID, .expert_bias = true, .gate_bias = true, .sequences = 5}};
    set_up(&p, &config, 1);
    struct moe_router_weights weights = weights_of(&p);
    assert_int_equal(moe_router_forward(p.router, p.x, &weights, T), MOE_E_SHAPE); /* 12 tokens in 5 sequences */
    assert_int_equal(moe_router_backward(p.router, p.d_probs, p.dx, p.d_gate, p.d_gate_bias), MOE_E_STATE);
    weights.expert_bias = NULL;
    assert_int_equal(moe_router_forward(p.router, p.x, &weights, 10), MOE_E_ARG);
    weights = weights_of(&p);
    p.x[3] = NAN;
    assert_int_equal(moe_router_forward(p.router, p.x, &weights, 10), 0);
    assert_int_equal(moe_device_sync(p.device), MOE_E_NAN);
    for (int t = 0; t < 10; t++) { /* still two different experts each */
        const int32_t *index = moe_router_index(p.router) + 2 * t;
        assert_in_range(index[0], 0, E - 1);
        assert_in_range(index[1], 0, E - 1);
        assert_int_not_equal(index[0], index[1]);
    }
    assert_int_equal(moe_router_update_bias(&p.router, &(float *){NULL}, 1, NULL, 0.1f), MOE_E_ARG);
    assert_int_equal(moe_router_update_bias(&(moe_router_t *){NULL}, &p.expert_bias, 1, NULL, 0.1f), MOE_E_ARG);
    tear_down(&p);
}

/* Infinite logits: the choice by logits sees numbers, but no weight can be made of them. Each score function, before
 * and after; weights that are numbers are none too many. */
static void test_infinite_scores_are_told(void **state)
{
    (void)state;
    static const struct {
        struct moe_router_options options;
        float logit;
        int error;
    } cases[] = {
        {{.score = MOE_SCORE_SOFTMAX}, INFINITY, MOE_E_NAN},
        {{.score = MOE_SCORE_SOFTMAX, .after = true}, INFINITY, MOE_E_NAN},
        {{.score = MOE_SCORE_SQRTSOFTPLUS}, INFINITY, MOE_E_NAN},
        {{.score = MOE_SCORE_SIGMOID}, INFINITY, 0},
        {{.score = MOE_SCORE_SIGMOID}, -INFINITY, 0},
        {{.score = MOE_SCORE_SOFTMAX, .after = true}, -INFINITY, 0},
        {{.score = MOE_SCORE_SOFTMAX, .after = true}, NAN, MOE_E_NAN},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct problem p;
        struct moe_router_config config = {.topk = 2, .renormalise = true, .options = cases[i].options};
        config.options.gate_bias = true;
        set_up(&p, &config, 2);
        struct moe_router_weights weights = weights_of(&p);
        p.gate_bias[3] = cases[i].logit;
        assert_int_equal(moe_router_forward(p.router, p.x, &weights, T), 0);
        assert_int_equal(moe_device_sync(p.device), cases[i].error);
        for (int j = 0; cases[i].error == 0 && j < T * E; j++) {
            assert_true(isfinite(moe_router_probs(p.router)[j]));
        }
        tear_down(&p);
    }
}

/* A factor is the decimal number that was written: the float beside 1.2 is a little more, and would give every expert a
 * row more. */
static void test_capacity_rounds_as_a_framework_does(void **state)
{
    (void)state;
    static const struct {
        float factor;
        int64_t tokens, experts, want;
    } cases[] = {{1.2f, 80, 16, 12}, {1.1f, 80, 16, 11}, {0.7f, 160, 32, 7}, {1.25f, 64, 8, 20}, {1.3f, 1600, 32, 130},
                 {1e-3f, 5, 10, 1},  {1e30f, 16, 8, 32}, {0.0f, 16, 8, 32},  {2.0f, 0, 8, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct moe_router_config config = {
            .experts = cases[i].experts, .topk = 2, .options = {.capacity_factor = cases[i].factor}};
        assert_int_equal(moe_router_capacity(&config, cases[i].tokens), cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice_weights_counts_and_losses_equal_the_reference),
        cmocka_unit_test(test_no_tokens_are_no_error_and_no_division_by_zero),
        cmocka_unit_test(test_gradients_equal_differences_of_the_reference),
        cmocka_unit_test(test_the_expert_bias_chooses_but_never_weighs),
        cmocka_unit_test(test_the_global_loss_is_of_the_mean_over_microbatches),
        cmocka_unit_test(test_counts_are_summed_over_the_group),
        cmocka_unit_test(test_dropped_choices_have_no_row),
        cmocka_unit_test(test_presets_are_routers),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
        cmocka_unit_test(test_infinite_scores_are_told),
        cmocka_unit_test(test_capacity_rounds_as_a_framework_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
