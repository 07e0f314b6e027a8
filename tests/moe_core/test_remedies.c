/*
 * test_remedies.c: remedies that are switched while layers run: ranks (threads of this process, on hostnccl) that see a
 * switch at different steps, or never, under random delays.
 *
 * This program defines moe_remedies itself, as a preloaded tool does. What must hold: every rank finds the same
 * symmetric remedies in force in a step, so that all issue the same collectives; outputs and gradients are those of a
 * run without remedies, bit by bit where no rank is empty. A divergence would be a hang: hostnccl's ranks would wait
 * for ever, and the program's alarm ends it.
 */
#include "tests/moe_core/support.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4, T = 8, L = 2, H = 16, F = 4, E = MOST * L, STEPS = 8, ALARM_S = 600 };
enum { NEVER = 1 << 20 };

struct scenario {
    int ranks;
    uint64_t seed;  /* 0: no delays, switches as given */
    uint32_t mask;  /* what is switched on */
    int from[MOST]; /* step at which each rank sees it, NEVER */
    int until;      /* step at which rank 0 sees it off again */
    bool crowd;     /* all tokens want the experts of the last rank */
    enum moe_dispatcher_kind kind;
    struct moe_options options;
    bool recompute, tp; /* tp: all ranks are one tp group, tokens split */
    int vary_from;      /* step from which ranks have different numbers of tokens; 0: never */
    int two_from;       /* step from which two microbatches are in flight; 0: never */
    int two_in;         /* and one step in which they are; 0: none */
    enum moe_uneven uneven;
    float capacity;     /* of the router; 0: none */
    int64_t row_budget; /* hybridep */
    int steps;          /* 0: STEPS */
    bool tp_alone;      /* switched for the communicator tp only */
};

struct result {
    float y[STEPS][T * H], dx[STEPS][T * H], d_gate[E * H], d_w1[L * 2 * F * H], d_w2[L * H * F];
    uint32_t in_force[STEPS];
    int rc;
    char message[256];
};

struct rank {
    const struct scenario *scenario;
    ncclUniqueId id;
    int rank, step;
    uint64_t random;
    struct result *result;
    ncclComm_t tp;
};

static _Thread_local struct rank *self;

void moe_observe(const struct moe_event *event)
{
    (void)event;
}

static void delay(void)
{
    if (self->scenario->seed != 0) {
        double r = (support_random(&self->random) + 1) / 2;
        struct timespec pause = {.tv_nsec = r < 0.5 ? 0 : (long)(r * 400000)};
        nanosleep(&pause, NULL);
    }
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    const struct scenario *s = self->scenario;
    (void)layer;
    (void)hazard;
    delay();
    if (s->tp_alone && comm != self->tp) {
        return 0;
    }
    bool off = self->rank == 0 && self->step >= s->until;
    return self->step >= s->from[self->rank] && !off ? s->mask : 0;
}

/* All ranks get the same weights; x is such that token t wants expert t % E, or with `crowd` the last one. */
static void fill(struct rank *r, float *x, float *dy, float *gate, float *w1, float *w2, int step)
{
    uint64_t weights = 9, tokens = 1000u + (uint64_t)(r->scenario->tp ? 0 : r->rank) * 100u + (uint64_t)step;
    for (int i = 0; i < E * H; i++) {
        gate[i] = (float)(0.1 * support_random(&weights)) + (i / H == i % H ? 3.0f : 0.0f);
    }
    for (int i = 0; i < MOST * L * 2 * F * H; i++) {
        float value = (float)(0.5 * support_random(&weights));
        if (i / (L * 2 * F * H) == r->rank) {
            w1[i % (L * 2 * F * H)] = value;
        }
    }
    for (int i = 0; i < MOST * L * H * F; i++) {
        float value = (float)(0.5 * support_random(&weights));
        if (i / (L * H * F) == r->rank) {
            w2[i % (L * H * F)] = value;
        }
    }
    for (int i = 0; i < T * H; i++) {
        int e = r->scenario->ranks * L, want = r->scenario->crowd ? e - 1 : (i / H) % e;
        x[i] = (float)(0.2 * support_random(&tokens)) + (i % H == want ? 4.0f : 0.0f);
        dy[i] = (float)support_random(&tokens);
    }
}

static int64_t tokens_of(const struct scenario *s, int rank, int step)
{
    return s->vary_from > 0 && step >= s->vary_from ? (rank * 3 + step * 5) % (T + 1) : T;
}

static void run_steps(struct rank *r, ncclComm_t comm, moe_device_t *device)
{
    const struct scenario *s = r->scenario;
    struct result *out = r->result;
    moe_layer_t *layer = NULL;
    float *x = support_floats(device, T * H), *dy = support_floats(device, T * H), *y = support_floats(device, T * H),
          *dx = support_floats(device, T * H), *gate = support_floats(device, E * H),
          *w1 = support_floats(device, L * 2 * F * H), *w2 = support_floats(device, L * H * F),
          *d_gate = support_floats(device, E * H), *d_w1 = support_floats(device, L * 2 * F * H),
          *d_w2 = support_floats(device, L * H * F);
    struct moe_layer_config config = {.world_rank = r->rank,
                                      .max_tokens = T,
                                      .hidden = H,
                                      .ffn = F,
                                      .experts = s->ranks * L,
                                      .topk = 1,
                                      .groups = {.ep = comm, .tp = r->tp},
                                      .tp_mode = MOE_TP_SPLIT_TOKENS,
                                      .dispatcher = s->kind,
                                      .uneven = s->uneven,
                                      .token_bound = T,
                                      .row_budget = s->row_budget,
                                      .router = {.capacity_factor = s->capacity},
                                      .recompute = s->recompute,
                                      .in_flight = s->two_from > 0 ? 2 : 0,
                                      .options = s->options};
    struct moe_layer_weights weights = {.gate = gate, .w1 = w1, .w2 = w2, .d_gate = d_gate, .d_w1 = d_w1, .d_w2 = d_w2};
    out->rc = moe_layer_new(device, &config, &layer);
    for (int step = 0; step < (s->steps > 0 ? s->steps : STEPS) && out->rc == 0; step++) {
        struct moe_step at = {.step = (uint32_t)step}, second = {.step = (uint32_t)step, .microbatch = 1};
        bool two = s->two_from > 0 && (step >= s->two_from || (s->two_in > 0 && step == s->two_in));
        int64_t tokens = tokens_of(s, r->rank, step);
        r->step = step;
        fill(r, x, dy, gate, w1, w2, step);
        out->rc = moe_layer_forward(layer, &weights, &at, x, tokens, y);
        out->rc = out->rc || !two ? out->rc : moe_layer_forward(layer, &weights, &second, x, tokens, y);
        delay();
        r->step += s->seed % 2 != 0; /* the switch may be seen between forward and backward, too */
        out->rc = out->rc ? out->rc : moe_layer_backward_of(layer, &at, dy, dx);
        out->rc = out->rc || !two ? out->rc : moe_layer_backward_of(layer, &second, dy, dx);
        int waited = moe_device_sync(device);
        out->rc = out->rc ? out->rc : waited;
        out->in_force[step] = moe_layer_remedies(layer);
        memcpy(out->y[step], y, (size_t)(tokens * H) * sizeof(*y));
        memcpy(out->dx[step], dx, (size_t)(tokens * H) * sizeof(*dx));
    }
    snprintf(out->message, sizeof(out->message), "%s", out->rc != 0 ? moe_last_error() : "");
    memcpy(out->d_gate, d_gate, sizeof(out->d_gate));
    memcpy(out->d_w1, d_w1, sizeof(out->d_w1));
    memcpy(out->d_w2, d_w2, sizeof(out->d_w2));
    float *arrays[] = {x, dy, y, dx, gate, w1, w2, d_gate, d_w1, d_w2};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
        moe_device_free(device, &arrays[i]);
    }
    moe_layer_destroy(&layer);
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    ncclComm_t comm = NULL;
    moe_device_t *device = NULL;
    self = r;
    r->random = r->scenario->seed * 977 + (uint64_t)r->rank * 13 + 1;
    r->result->rc = cudaSetDevice(r->rank) == cudaSuccess ? 0 : MOE_E_DEVICE;
    r->result->rc |= ncclCommInitRank(&comm, r->scenario->ranks, r->id, r->rank) == ncclSuccess ? 0 : MOE_E_COMM;
    r->result->rc |= r->scenario->tp && ncclCommSplit(comm, 0, r->rank, &r->tp, NULL) != ncclSuccess ? MOE_E_COMM : 0;
    r->result->rc |= moe_device_new_host(&device);
    if (r->result->rc == 0) {
        run_steps(r, comm, device);
    }
    moe_device_destroy(&device);
    if (r->tp != NULL) {
        ncclCommDestroy(r->tp);
    }
    if (comm != NULL) {
        ncclCommDestroy(comm);
    }
    return NULL;
}

static void run_to_the_end(const struct scenario *s, struct result *results)
{
    pthread_t thread[MOST];
    struct rank rank[MOST];
    ncclUniqueId id;
    memset(results, 0, MOST * sizeof(*results));
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < s->ranks; r++) {
        rank[r] = (struct rank){.scenario = s, .id = id, .rank = r, .result = &results[r]};
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &rank[r]), 0);
    }
    for (int r = 0; r < s->ranks; r++) {
        pthread_join(thread[r], NULL);
    }
}

static void run(const struct scenario *s, struct result *results)
{
    run_to_the_end(s, results);
    for (int r = 0; r < s->ranks; r++) {
        if (results[r].rc != 0) {
            fail_msg("rank %d: %s", r, results[r].message);
        }
    }
}

/* Slack rows make the experts' products larger, and those may then add in another order: only with SANITIZE results are
 * close and not equal. */
static float tolerance;

static void check_equal(const float *a, const float *b, size_t count, const char *what)
{
    for (size_t i = 0; i < count; i++) {
        if (!(a[i] == b[i]) &&
            !(fabsf(a[i] - b[i]) <= tolerance)) { /* == and not bytes: a sum with a zero row may turn -0 into 0 */
            fail_msg("%s[%zu]: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
        }
    }
}

static void check_results(const struct scenario *s, const struct result *a, const struct result *b)
{
    for (int r = 0; r < s->ranks; r++) {
        check_equal(a[r].y[0], b[r].y[0], STEPS * T * H, "y");
        check_equal(a[r].dx[0], b[r].dx[0], STEPS * T * H, "dx");
        check_equal(a[r].d_gate, b[r].d_gate, E * H, "d_gate");
        check_equal(a[r].d_w1, b[r].d_w1, L * 2 * F * H, "d_w1");
        check_equal(a[r].d_w2, b[r].d_w2, L * H * F, "d_w2");
    }
}

/* Every rank finds the same symmetric remedies in force in each step, and only when all have seen the switch. */
static void check_agreement(const struct scenario *s, const struct result *results, uint32_t bit, int late)
{
    for (int step = 0; step < STEPS; step++) {
        bool all = step < s->until + late;
        for (int r = 0; r < s->ranks; r++) {
            all = all && step >= s->from[r] + late;
            assert_int_equal(results[r].in_force[step] & bit, results[0].in_force[step] & bit);
        }
        if (late == 0) {
            assert_int_equal((results[0].in_force[step] & bit) != 0, all);
        }
    }
}

static struct scenario always(uint32_t mask)
{
    return (struct scenario){.ranks = MOST, .mask = mask, .until = NEVER};
}

enum {
    LOCAL = MOE_REMEDY_FILL | MOE_REMEDY_DUMMY | MOE_REMEDY_ZERO_WGRAD | MOE_REMEDY_SANITIZE | MOE_REMEDY_SPLITS |
            MOE_REMEDY_ROUTING
};
static const enum moe_dispatcher_kind kinds[] = {MOE_DISPATCH_ALLTOALL, MOE_DISPATCH_ALLGATHER, MOE_DISPATCH_DEEPEP,
                                                 MOE_DISPATCH_HYBRIDEP};

static void test_no_remedy_changes_a_bit_when_nobody_is_empty(void **state)
{
    (void)state;
    static struct result plain[MOST], with[MOST];
    const uint32_t bits[] = {MOE_REMEDY_FILL,   MOE_REMEDY_PAD,     MOE_REMEDY_ZERO_WGRAD, MOE_REMEDY_SANITIZE,
                             MOE_REMEDY_SPLITS, MOE_REMEDY_ROUTING, MOE_REMEDY_DUMMY,      MOE_REMEDY_ROUTER_SUM};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct scenario s = always(0);
        s.kind = kinds[k];
        s.recompute = k == 0;
        run(&s, plain);
        for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
            s.mask = bits[i];
            run(&s, with);
            for (int r = 0; r < MOST; r++) {
                assert_memory_equal(plain[r].y, with[r].y, sizeof(plain[r].y));
                assert_memory_equal(plain[r].dx, with[r].dx, sizeof(plain[r].dx));
                assert_memory_equal(plain[r].d_gate, with[r].d_gate, sizeof(plain[r].d_gate));
                assert_memory_equal(plain[r].d_w1, with[r].d_w1, sizeof(plain[r].d_w1));
                assert_memory_equal(plain[r].d_w2, with[r].d_w2, sizeof(plain[r].d_w2));
            }
        }
    }
}

static void test_each_cure_gives_the_results_of_the_run_without_its_hazard(void **state)
{
    (void)state;
    static struct result plain[MOST], cured[MOST];
    const struct {
        struct moe_options options;
        uint32_t remedy;
        bool recompute, tp;
        float capacity;
    } table[] = {
        {{.legacy_skip_empty = true}, MOE_REMEDY_FILL, false, false, 0},
        {{.legacy_skip_empty = true}, MOE_REMEDY_PAD, false, false, 0},
        {{.legacy_skip_empty = true}, MOE_REMEDY_DUMMY, false, false, 0},
        {{.legacy_skip_empty = true}, MOE_REMEDY_FILL, true, false, 0},
        {{.legacy_wgrad_uninitialised = true}, MOE_REMEDY_ZERO_WGRAD, false, false, 0},
        {{.legacy_recompute_flip = true}, MOE_REMEDY_ROUTING, true, false, 0},
        {{.legacy_router_unsummed = true}, MOE_REMEDY_ROUTER_SUM, false, true, 0},
        {{.legacy_router_unsummed = true}, MOE_REMEDY_ROUTER_SUM, true, true, 0},
        {{.dispatcher = {.static_rows = true}}, MOE_REMEDY_SPLITS, false, false, 0.5f},
        {{.dispatcher = {.static_rows = true}}, MOE_REMEDY_SPLITS, true, false, 0.5f},
        {{.dispatcher = {.static_rows = true, .slack_uninitialised = true}}, MOE_REMEDY_SPLITS, false, false, 0.5f},
        {{.dispatcher = {.static_rows = true, .slack_uninitialised = true}}, MOE_REMEDY_SANITIZE, false, false, 0.5f},
        {{.dispatcher = {.static_rows = true, .slack_uninitialised = true}}, MOE_REMEDY_SANITIZE, true, false, 0.5f},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct scenario s = always(0);
        s.crowd = true;
        s.capacity = table[i].capacity;
        s.recompute = table[i].recompute;
        s.tp = table[i].tp;
        run(&s, plain);
        s.options = table[i].options;
        s.mask = table[i].remedy;
        run(&s, cured);
        tolerance = (table[i].remedy & MOE_REMEDY_SANITIZE) != 0 ? 1e-5f : 0.0f;
        check_results(&s, plain, cured);
        tolerance = 0;
        uint32_t used = 0;
        for (int r = 0; r < MOST; r++) {
            used |= cured[r].in_force[STEPS - 1];
        }
        assert_int_equal(used & table[i].remedy, table[i].remedy);
    }
}

static void test_memory_that_nobody_cleared_is_seen_without_the_cure(void **state)
{
    (void)state;
    static struct result plain[MOST], dirty[MOST];
    struct scenario s = always(0);
    s.crowd = true;
    run(&s, plain);
    s.options.legacy_wgrad_uninitialised = true;
    run(&s, dirty);
    assert_true(isnan(dirty[0].d_w1[0]));                 /* rank 0 never gets a token: step 0 zeros, then NaN */
    assert_true(!isnan(dirty[MOST - 1].d_w1[2 * F * H])); /* the last expert gets all */
    assert_true(!isnan(plain[0].d_w1[0]));
    s.options = (struct moe_options){.dispatcher = {.static_rows = true, .slack_uninitialised = true}};
    s.capacity = 0.5f;
    run(&s, dirty);
    assert_true(isnan(dirty[MOST - 1].d_w1[2 * F * H])); /* slack goes to the last expert */
    assert_true(!isnan(dirty[0].d_w1[0]));
}

/*
 * The switch goes off between the last forward and its backward, which begins with that forward again: PAD must hold
 * there, or the ranks without rows skip their experts the second time, and the others wait in backward for ever.
 */
static void test_what_was_agreed_in_a_forward_holds_when_it_is_recomputed(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    for (int until = 1; until <= 3; until++) {
        struct scenario s = always(0);
        s.crowd = s.recompute = true;
        s.steps = until;
        run(&s, plain);
        s.options.legacy_skip_empty = true;
        s.mask = MOE_REMEDY_PAD;
        s.until = until;
        s.seed = 1;
        run(&s, switched);
        check_results(&s, plain, switched);
        assert_int_equal(switched[0].in_force[until - 1] & MOE_REMEDY_PAD, MOE_REMEDY_PAD);
    }
}

/* H9: both ranks' first tokens move from the second rank's expert to the first's, so both have other rows than in the
 * forward, and both stop. */
static void test_a_rank_whose_recomputed_rows_differ_stops(void **state)
{
    (void)state;
    static struct result results[MOST];
    struct scenario s = always(0);
    s.ranks = 2;
    s.crowd = s.recompute = s.options.legacy_recompute_flip = true;
    run_to_the_end(&s, results);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(results[r].rc, MOE_E_SPLIT);
        assert_non_null(
            strstr(results[r].message, r == 0 ? "received 2 rows, the forward 0" : "received 14 rows, the forward 16"));
    }
    s.mask = MOE_REMEDY_ROUTING;
    run(&s, results);
}

/* A row budget: the host knows only in the next forward what was agreed, and a recomputed forward comes in between. */
static void test_padding_is_agreed_where_only_the_device_knows_the_rows(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct scenario s = {.ranks = 2 + (int)(seed % 3),
                             .seed = seed,
                             .kind = MOE_DISPATCH_HYBRIDEP,
                             .row_budget = T * MOST,
                             .recompute = seed % 3 != 0,
                             .crowd = seed % 4 == 0,
                             .until = NEVER};
        s.mask = seed % 2 == 0 ? MOE_REMEDY_UNEVEN : MOE_REMEDY_BOUND;
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = (int)(seed + (uint64_t)r) % 3;
        }
        s.vary_from = 4;
        run(&s, switched);
        check_agreement(&s, switched, s.mask, 1);
        assert_int_equal(switched[0].in_force[STEPS - 1] & s.mask, s.mask);
        s.mask = 0;
        s.seed = 0;
        s.uneven = MOE_UNEVEN_MAX;
        run(&s, plain);
        check_results(&s, plain, switched);
    }
}

static void test_symmetric_remedies_begin_and_end_on_all_ranks_at_once(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed * 31;
        struct scenario s = {.ranks = 2 + (int)(seed % 3), .seed = seed, .crowd = seed % 2 == 0};
        s.tp = seed % 4 == 1 && T % s.ranks == 0;
        s.recompute = seed % 5 == 0;
        s.mask = MOE_REMEDY_PAD | MOE_REMEDY_ROUTER_SUM;
        s.until = seed % 3 == 0 ? 5 : NEVER;
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = (int)((support_random(&random) + 1) * 3);
        }
        s.from[s.ranks - 1] = seed % 7 == 0 ? NEVER : s.from[s.ranks - 1];
        run(&s, switched);
        check_agreement(&s, switched, MOE_REMEDY_PAD, 0);
        s.mask = 0;
        s.seed = 0;
        run(&s, plain);
        check_results(&s, plain, switched);
    }
}

static void test_the_sum_of_the_router_is_switched_on_all_ranks_at_once(void **state)
{
    (void)state;
    static struct result results[MOST];
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t random = seed * 77;
        struct scenario s = {.ranks = 2 + (int)(seed % 2) * 2, .seed = seed, .tp = true, .mask = MOE_REMEDY_ROUTER_SUM};
        s.options.legacy_router_unsummed = true;
        s.tp_alone = seed % 5 == 0;
        s.recompute = seed % 3 == 0;
        s.until = seed % 4 == 0 ? 6 : NEVER;
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = (int)((support_random(&random) + 1) * 3);
        }
        run(&s, results);
        check_agreement(&s, results, MOE_REMEDY_ROUTER_SUM, 0);
    }
}

static void test_padding_of_uneven_tokens_is_switched_without_a_hang(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    const uint32_t bits[] = {MOE_REMEDY_UNEVEN, MOE_REMEDY_BOUND, MOE_REMEDY_UNEVEN | MOE_REMEDY_BOUND};
    for (uint64_t seed = 1; seed <= 24; seed++) {
        uint64_t random = seed * 5;
        struct scenario s = {.ranks = 2 + (int)(seed % 3),
                             .seed = seed,
                             .kind = seed % 2 == 0 ? MOE_DISPATCH_HYBRIDEP : MOE_DISPATCH_ALLGATHER,
                             .mask = bits[seed % 3],
                             .recompute = seed % 5 == 0,
                             .crowd = seed % 4 == 1};
        s.until = seed % 4 == 0 ? 5 : NEVER;
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = (int)((support_random(&random) + 1) * 3);
        }
        int last = 0;
        for (int r = 0; r < s.ranks; r++) {
            last = s.from[r] > last ? s.from[r] : last;
        }
        s.vary_from = s.until == NEVER ? last + 1 : 0; /* agreed on in `last`, in force from the next exchange on */
        run(&s, switched);
        check_agreement(&s, switched, bits[seed % 3], 1);
        s.mask = 0;
        s.seed = 0;
        s.uneven = MOE_UNEVEN_MAX;
        run(&s, plain);
        check_results(&s, plain, switched);
    }
}

/*
 * What was agreed on holds for all microbatches of a layer: also for one whose place is made, or was last used, before
 * that.
 */
static void test_padding_holds_for_a_microbatch_more_in_flight(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    for (uint64_t seed = 1; seed <= 12; seed++) {
        bool budget = seed % 3 == 0, again = seed % 4 < 2;
        struct scenario s = {.ranks = 2 + (int)(seed % 2) * 2,
                             .seed = seed,
                             .kind = seed % 3 == 1 ? MOE_DISPATCH_ALLGATHER : MOE_DISPATCH_HYBRIDEP,
                             .row_budget = budget ? T * MOST : 0,
                             .mask = seed % 2 == 0 ? MOE_REMEDY_UNEVEN : MOE_REMEDY_BOUND,
                             .recompute = seed % 5 == 0,
                             .two_from = 5,
                             .vary_from = 5,
                             .until = NEVER};
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = 2; /* before that, two were in flight in step 1 */
        }
        s.two_in = again ? 1 : 0;
        run(&s, switched);
        s.mask = 0;
        s.seed = 0;
        s.uneven = MOE_UNEVEN_MAX;
        run(&s, plain);
        check_results(&s, plain, switched);
    }
}

static void test_local_remedies_act_on_one_rank_alone(void **state)
{
    (void)state;
    static struct result plain[MOST], switched[MOST];
    for (uint64_t seed = 1; seed <= 16; seed++) {
        struct scenario s = {.ranks = 2 + (int)(seed % 3),
                             .crowd = seed % 2 == 0,
                             .recompute = seed % 3 == 0,
                             .until = NEVER,
                             .kind = kinds[seed % 4]};
        run(&s, plain);
        s.seed = seed;
        s.mask = LOCAL;
        for (int r = 0; r < s.ranks; r++) {
            s.from[r] = r == (int)(seed % (uint64_t)s.ranks) ? (int)(seed % STEPS) : NEVER;
        }
        run(&s, switched);
        check_results(&s, plain, switched);
    }
}

/* Both ranks of tp, which tell each other whether they have a layer. */
struct sums {
    ncclComm_t tp;
    int rank, refused[2], made[2];
};

static void *make_sums(void *arg)
{
    struct sums *s = arg;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    if (cudaSetDevice(s->rank) != cudaSuccess || moe_device_new_host(&device) != 0) {
        return NULL;
    }
    for (int twice = 0; twice < 2; twice++) {
        struct moe_layer_config config = {.max_tokens = T,
                                          .hidden = H,
                                          .ffn = F,
                                          .experts = L,
                                          .topk = 1,
                                          .groups = {.tp = s->tp},
                                          .router_sum = MOE_ROUTER_SUM_CALLER};
        config.options.legacy_router_unsummed = !twice;
        config.options.legacy_router_summed_twice = twice;
        s->refused[twice] = moe_layer_new(device, &config, &layer);
        config.router_sum = MOE_ROUTER_SUM_LAYER;
        s->made[twice] = layer != NULL ? MOE_E_STATE : moe_layer_new(device, &config, &layer);
        moe_layer_destroy(&layer);
    }
    moe_device_destroy(&device);
    return NULL;
}

static void test_a_legacy_sum_where_the_caller_sums_is_refused(void **state)
{
    (void)state;
    struct sums sums[2];
    pthread_t thread[2];
    ncclComm_t pair[2];
    assert_int_equal(ncclCommInitAll(pair, 2, NULL), ncclSuccess);
    for (int r = 0; r < 2; r++) {
        sums[r] = (struct sums){.tp = pair[r], .rank = r, .made = {1, 1}};
        assert_int_equal(pthread_create(&thread[r], NULL, make_sums, &sums[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(thread[r], NULL);
        for (int twice = 0; twice < 2; twice++) {
            assert_int_equal(sums[r].refused[twice], MOE_E_ARG);
            assert_int_equal(sums[r].made[twice], 0);
        }
        ncclCommDestroy(pair[r]);
    }
}

static void test_a_second_sum_of_the_router_is_refused(void **state)
{
    (void)state;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    struct moe_layer_config config = {
        .max_tokens = T, .hidden = H, .ffn = F, .experts = L, .topk = 1, .router_sum = MOE_ROUTER_SUM_CALLER};
    assert_int_equal(moe_device_new_host(&device), 0);
    assert_int_equal(moe_layer_new(device, &config, &layer), 0);
    assert_int_equal(moe_layer_declare_router_sum(layer), 0);
    assert_int_equal(moe_layer_declare_router_sum(layer), MOE_E_STATE);
    moe_layer_destroy(&layer);
    config.options.legacy_router_unsummed = config.options.legacy_router_summed_twice = true;
    assert_int_equal(moe_layer_new(device, &config, &layer), MOE_E_ARG);
    assert_null(layer);
    moe_device_destroy(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_remedy_changes_a_bit_when_nobody_is_empty),
        cmocka_unit_test(test_each_cure_gives_the_results_of_the_run_without_its_hazard),
        cmocka_unit_test(test_memory_that_nobody_cleared_is_seen_without_the_cure),
        cmocka_unit_test(test_what_was_agreed_in_a_forward_holds_when_it_is_recomputed),
        cmocka_unit_test(test_a_rank_whose_recomputed_rows_differ_stops),
        cmocka_unit_test(test_padding_is_agreed_where_only_the_device_knows_the_rows),
        cmocka_unit_test(test_symmetric_remedies_begin_and_end_on_all_ranks_at_once),
        cmocka_unit_test(test_the_sum_of_the_router_is_switched_on_all_ranks_at_once),
        cmocka_unit_test(test_padding_of_uneven_tokens_is_switched_without_a_hang),
        cmocka_unit_test(test_padding_holds_for_a_microbatch_more_in_flight),
        cmocka_unit_test(test_local_remedies_act_on_one_rank_alone),
        cmocka_unit_test(test_a_legacy_sum_where_the_caller_sums_is_refused),
        cmocka_unit_test(test_a_second_sum_of_the_router_is_refused),
    };
    alarm(ALARM_S); /* a divergence is a hang */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
