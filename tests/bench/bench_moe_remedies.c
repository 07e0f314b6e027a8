/*
 * bench_moe_remedies.c: what remedies cost a step of a layer: `roll_bench moe`, part "remedies".
 *
 * Two ranks (threads on hostnccl) run forward and backward of one layer. This program defines moe_remedies itself, as a
 * preloaded tool does; what it does per question is the side: nothing (the least that a library which asks can cost),
 * reading a control page on which all is off, the same with every remedy on and nothing to do (nobody is empty), and
 * with a crowd, where half of the experts are empty, without and with remedies. Two builds of the library were
 * rejected: a call through the PLT is some nanoseconds, and different code layouts differ by more.
 *
 * The sides take turns step by step in one run, both ranks together, and what is compared is the processor time of the
 * process: on a machine with other work a step's wall time says more about the neighbours. The same side once more is
 * the noise that the other figures must be read against.
 */
#include "tests/bench/bench.h"

#include "moe_core/include/moe/layer.h"
#include "moe_core/include/moe/observe.h"
#include "trace/control.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 2, T = 128, H = 256, F = 256, L = 8, E = RANKS * L, K = 2, FEWEST = 15, ROUNDS = 401, SECONDS = 15 };
enum side { LEAST, NOISE, OFF, IDLE, CROWD, CROWD_ON, SIDES };

static const char *const names[SIDES] = {"nothing asked of anybody",    "the same once more: the noise",
                                         "off: a control page is read", "idle: all on, nobody is empty",
                                         "half of the experts empty",   "half empty, pad and dummy on"};
static const uint32_t everything = MOE_REMEDY_FILL | MOE_REMEDY_PAD | MOE_REMEDY_ZERO_WGRAD | MOE_REMEDY_SANITIZE |
                                   MOE_REMEDY_SPLITS | MOE_REMEDY_ROUTING | MOE_REMEDY_ROUTER_SUM | MOE_REMEDY_DUMMY;

static _Thread_local enum side asked;
static struct roll_control *pages[SIDES];

void moe_observe(const struct moe_event *event)
{
    (void)event;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    struct roll_control *page = pages[asked];
    if (page == NULL) {
        return 0;
    }
    return roll_control_mask(page, 1, layer, hazard);
}

struct rank {
    ncclUniqueId id;
    int rank;
    int rc;
    struct turns *turns;
};

/* What the ranks share: they begin and end each step together, and rank 0 takes the time and says whether there is
 * another round. */
struct turns {
    pthread_barrier_t barrier;
    double taken[SIDES][ROUNDS];
    int rounds;
    bool more;
    _Atomic bool failed;
};

struct tensors {
    float *x[2], *dy, *y, *dx, *gate, *w1, *w2, *d_gate, *d_w1, *d_w2; /* x[1]: the crowd's */
};

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fill(float *to, int64_t count, float scale, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        to[i] = scale * ((float)(seed >> 40) / 8388608.0f - 1.0f);
    }
}

static int make(moe_device_t *device, int rank, struct tensors *t)
{
    struct {
        float **at;
        int64_t count;
        float scale;
        uint64_t seed;
    } table[] = {
        {&t->x[0], T * H, 0.05f, 10 + (uint64_t)rank},
        {&t->x[1], T * H, 0.05f, 20 + (uint64_t)rank},
        {&t->dy, T * H, 1, 30 + (uint64_t)rank},
        {&t->y, T * H, 0, 1},
        {&t->dx, T * H, 0, 1},
        {&t->gate, E * H, 0.02f, 3},
        {&t->w1, L * 2 * F * H, 0.05f, 40},
        {&t->w2, L * H * F, 0.05f, 41},
        {&t->d_gate, E * H, 0, 1},
        {&t->d_w1, L * 2 * F * H, 0, 1},
        {&t->d_w2, L * H * F, 0, 1},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        rc = moe_device_alloc(device, (size_t)table[i].count * sizeof(float), (void **)table[i].at);
        if (rc == 0) {
            fill(*table[i].at, table[i].count, table[i].scale, table[i].seed);
        }
    }
    for (int64_t e = 0; e < E && rc == 0; e++) {
        t->gate[e * H + e] += 2; /* feature e asks for expert e */
    }
    for (int64_t i = 0; i < T && rc == 0; i++) {
        for (int64_t j = 0; j < K; j++) {
            t->x[0][i * H + (i * K + j) % E] += 4;
            t->x[1][i * H + (i * K + j) % (E / 2)] += 4; /* the first rank's only */
        }
    }
    return rc;
}

static int step(moe_layer_t *layer, moe_device_t *device, const struct tensors *t, bool crowd)
{
    struct moe_layer_weights weights = {
        .gate = t->gate, .w1 = t->w1, .w2 = t->w2, .d_gate = t->d_gate, .d_w1 = t->d_w1, .d_w2 = t->d_w2};
    struct moe_step at = {.step = 0};
    int rc = moe_layer_forward(layer, &weights, &at, t->x[crowd], T, t->y);
    rc = rc ? rc : moe_layer_backward(layer, t->dy, t->dx);
    int waited = moe_device_sync(device);
    return rc ? rc : waited;
}

/* One step of each side, in an order in which none always comes after the same one. Round -1 warms up. */
static void run_round(struct rank *r, moe_layer_t *layer, moe_device_t *device, const struct tensors *t, int round)
{
    struct turns *turns = r->turns;
    for (int n = 0; n < SIDES; n++) {
        int at = round > 0 ? round : 0, s = at % 2 == 0 ? (n + at / 2) % SIDES : (SIDES - 1 - n + at / 2) % SIDES;
        asked = (enum side)s;
        pthread_barrier_wait(&turns->barrier);
        double start = now(CLOCK_PROCESS_CPUTIME_ID);
        if (step(layer, device, t, s >= CROWD) != 0) {
            turns->failed = true;
        }
        pthread_barrier_wait(&turns->barrier);
        if (r->rank == 0 && round >= 0) {
            turns->taken[s][round] = now(CLOCK_PROCESS_CPUTIME_ID) - start;
        }
    }
}

static void run_rounds(struct rank *r, moe_layer_t *layer, moe_device_t *device, const struct tensors *t)
{
    struct turns *turns = r->turns;
    double begin = now(CLOCK_MONOTONIC);
    bool more = true;
    for (int i = -1; more; i++) {
        run_round(r, layer, device, t, i);
        if (r->rank == 0) {
            turns->rounds = i + 1;
            turns->more =
                i + 1 < ROUNDS && !turns->failed && (i + 1 < FEWEST || now(CLOCK_MONOTONIC) - begin < SECONDS);
        }
        pthread_barrier_wait(&turns->barrier);
        more = turns->more;
    }
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    ncclComm_t ep = NULL;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    struct tensors t = {.dy = NULL};
    r->rc = cudaSetDevice(r->rank) != cudaSuccess || ncclCommInitRank(&ep, RANKS, r->id, r->rank) != ncclSuccess ||
            moe_device_new_host(&device) != 0 || make(device, r->rank, &t) != 0;
    struct moe_layer_config config = {.world_rank = r->rank,
                                      .max_tokens = T,
                                      .hidden = H,
                                      .ffn = F,
                                      .experts = E,
                                      .topk = K,
                                      .renormalise = true,
                                      .ep = ep};
    r->rc = r->rc || moe_layer_new(device, &config, &layer) != 0;
    if (r->rc != 0) {
        r->turns->failed = true;
    }
    pthread_barrier_wait(&r->turns->barrier); /* all are made, or nobody begins */
    if (!r->turns->failed) {
        run_rounds(r, layer, device, &t);
    }
    moe_layer_destroy(&layer);
    float **all[] = {&t.x[0], &t.x[1], &t.dy, &t.y, &t.dx, &t.gate, &t.w1, &t.w2, &t.d_gate, &t.d_w1, &t.d_w2};
    for (size_t i = 0; device != NULL && i < sizeof(all) / sizeof(all[0]); i++) {
        moe_device_free(device, all[i]);
    }
    moe_device_destroy(&device);
    if (ep != NULL) {
        ncclCommDestroy(ep);
    }
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the rounds of what a side took beside another in the same round, less one. */
static double more(const struct turns *t, enum side side, enum side beside)
{
    double ratio[ROUNDS];
    for (int i = 0; i < t->rounds; i++) {
        ratio[i] = t->taken[side][i] / t->taken[beside][i] - 1;
    }
    qsort(ratio, (size_t)t->rounds, sizeof(*ratio), by_value);
    return ratio[t->rounds / 2];
}

/* What one question takes, in seconds: a loop of them. */
static double one_question(enum side side)
{
    enum { MANY = 2000000 };
    volatile uint32_t sum = 0;
    asked = side;
    double start = now(CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < MANY; i++) {
        sum = sum + moe_remedies(NULL, i & 3, 0);
    }
    return (now(CLOCK_MONOTONIC) - start) / MANY;
}

static void print(json_t *out, FILE *table, struct turns *t)
{
    static const struct {
        enum side side, beside;
        const char *key, *goal;
    } lines[] = {{NOISE, LEAST, "noise", "-"},
                 {OFF, LEAST, "off", "< 0.5 %"},
                 {IDLE, LEAST, "idle", "< 0.5 %"},
                 {CROWD_ON, CROWD, "on", "-"}};
    char text[64];
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        double extra = more(t, lines[i].side, lines[i].beside);
        snprintf(text, sizeof(text), "%+.2f %% of a step", 100 * extra);
        roll_bench_line(table, names[lines[i].side], text, lines[i].goal);
        json_object_set_new(out, lines[i].key, json_real(extra));
    }
    qsort(t->taken[LEAST], (size_t)t->rounds, sizeof(double), by_value);
    double whole = t->taken[LEAST][t->rounds / 2] / RANKS, question = one_question(OFF);
    snprintf(text, sizeof(text), "%.1f ns, %.5f %%", 1e9 * question, 100 * 3 * question / whole);
    roll_bench_line(table, "one question; three of them in a step", text, "< 0.5 %");
    json_object_set_new(out, "rounds", json_integer(t->rounds));
    json_object_set_new(out, "step_s", json_real(whole));
    json_object_set_new(out, "question_s", json_real(question));
}

int roll_bench_moe_remedies(json_t *out, FILE *table)
{
    char path[] = "/tmp/roll-bench-XXXXXX", file[64];
    struct rank rank[RANKS] = {{.rank = 0}};
    struct turns *turns = calloc(1, sizeof(*turns));
    pthread_t thread[RANKS];
    ncclUniqueId id;
    int rc = turns == NULL || mkdtemp(path) == NULL || ncclGetUniqueId(&id) != ncclSuccess ||
                     pthread_barrier_init(&turns->barrier, NULL, RANKS) != 0
                 ? -1
                 : 0;
    for (int s = OFF; s < SIDES && rc == 0; s++) {
        if (s != CROWD) {
            snprintf(file, sizeof(file), "%s/%d.ctl", path, s);
            rc = roll_control_open(file, true, ROLL_POLICY_OBSERVE, &pages[s]);
            unlink(file);
        }
    }
    if (rc == 0) {
        atomic_store(&pages[IDLE]->on, everything);
        atomic_store(&pages[CROWD_ON]->on, (uint32_t)(MOE_REMEDY_PAD | MOE_REMEDY_DUMMY));
        fprintf(table,
                "remedies: a layer's forward and backward, %d ranks, %d tokens each, hidden %d, %d experts; processor "
                "time, medians of pairs\n",
                RANKS, T, H, E);
        for (int r = 0; r < RANKS; r++) {
            rank[r].id = id;
            rank[r].rank = r;
            rank[r].turns = turns;
            if (pthread_create(&thread[r], NULL, run_rank, &rank[r]) != 0) {
                abort(); /* the other rank would wait for ever */
            }
        }
        for (int r = 0; r < RANKS; r++) {
            pthread_join(thread[r], NULL);
            rc = rc != 0 || rank[r].rc != 0 || turns->failed ? -1 : 0;
        }
        pthread_barrier_destroy(&turns->barrier);
    }
    if (rc == 0) {
        print(out, table, turns);
    } else {
        fprintf(stderr, "roll_bench: remedies: the ranks failed\n");
    }
    for (int s = 0; s < SIDES; s++) {
        roll_control_close(&pages[s]);
    }
    rmdir(path);
    free(turns);
    return rc;
}
