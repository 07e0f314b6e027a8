/*
 * bench_moe_memory.c: what a layer's memory is beside the rows that it works on: `roll_bench memory`.
 *
 * 1 to 64 ranks (threads on hostnccl) run a layer forward and backward, with another routing in every step, at first
 * even and then crowded on a part of the experts. Measured is what the pool had from the allocator at most, in any
 * step, the first included, and the fixed memory of the layer; both without weights and gradients. It is compared with
 * the rows' own bytes: each row once in each form that forward must leave to backward (x and h = 2 ffn and a = ffn for
 * each row received, y for each row sent; with allgather, which sends every token to every rank, y for each token of
 * the group).
 *
 * Beside it stand two sums on paper for the same rows: buffers for the worst case that could arrive, and what PyTorch
 * with Megatron-LM's all-to-all dispatcher and grouped MLP holds at its worst moment, by the tensors that autograd
 * saves and the operators allocate (paper_peak). The latter is without what a caching allocator keeps on top.
 */
#include "tests/bench/bench.h"

#include "moe_core/include/moe/error.h"
#include "moe_core/include/moe/layer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 64, T = 256, H = 256, F = 128, E = 64, K = 4, STEPS = 4, WORD = sizeof(float) };

struct trial {
    enum moe_dispatcher_kind kind;
    int ranks;
    pthread_barrier_t barrier;
    atomic_bool failed;
};

struct rank {
    struct trial *trial;
    ncclUniqueId id;
    int rank;
    size_t had, used, fixed; /* the pool's most reserved and most in use; the layer's fixed memory */
    int64_t received;        /* the most rows of a step */
};

struct tensors {
    float *x, *dy, *y, *dx, *gate, *w1, *w2, *d_gate, *d_w1, *d_w2;
};

static float next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

static int make(moe_device_t *device, const struct rank *r, struct tensors *t)
{
    int64_t local = E / r->trial->ranks;
    const struct {
        float **at;
        int64_t count;
    } all[] = {{&t->x, T * H},           {&t->dy, T * H},     {&t->y, T * H},
               {&t->dx, T * H},          {&t->gate, E * H},   {&t->w1, local * 2 * F * H},
               {&t->w2, local * H * F},  {&t->d_gate, E * H}, {&t->d_w1, local * 2 * F * H},
               {&t->d_w2, local * H * F}};
    uint64_t same = 3, own = 100 + (uint64_t)r->rank;
    int rc = 0;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && rc == 0; i++) {
        rc = moe_device_alloc(device, (size_t)all[i].count * WORD, (void **)all[i].at);
        for (int64_t j = 0; i < 7 && i != 2 && i != 3 && j < all[i].count && rc == 0; j++) {
            (*all[i].at)[j] = 0.1f * next_random(i == 4 ? &same : &own);
        }
    }
    return rc;
}

static void destroy(moe_device_t *device, struct tensors *t)
{
    float **all[] = {&t->x, &t->dy, &t->y, &t->dx, &t->gate, &t->w1, &t->w2, &t->d_gate, &t->d_w1, &t->d_w2};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        moe_device_free(device, all[i]);
    }
}

/* Other tokens in every step; from the third on they lean towards one direction, and so crowd on a part of the experts.
 */
static void fill(float *x, int rank, int step)
{
    uint64_t state = 1000 + 10 * (uint64_t)rank + (uint64_t)step, lean = 7;
    for (int t = 0; t < T; t++) {
        lean = 7;
        for (int h = 0; h < H; h++) {
            x[t * H + h] = next_random(&state) + (step >= 2 ? 0.5f : 0.0f) * next_random(&lean);
        }
    }
}

static int run_steps(struct rank *r, moe_device_t *device, moe_layer_t *layer, struct tensors *t)
{
    const struct moe_layer_weights weights = {
        .gate = t->gate, .w1 = t->w1, .w2 = t->w2, .d_gate = t->d_gate, .d_w1 = t->d_w1, .d_w2 = t->d_w2};
    int rc = 0;
    for (int i = 0; i < STEPS && rc == 0; i++) {
        struct moe_step step = {.step = (uint32_t)i};
        fill(t->x, r->rank, i);
        rc = moe_layer_forward(layer, &weights, &step, t->x, T, t->y);
        rc = rc ? rc : moe_layer_backward(layer, t->dy, t->dx);
        rc = rc ? rc : moe_device_sync(device);
        r->received = moe_layer_rows(layer) > r->received ? moe_layer_rows(layer) : r->received;
    }
    return rc;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;
    struct trial *trial = r->trial;
    ncclComm_t ep = NULL;
    moe_device_t *device = NULL;
    moe_layer_t *layer = NULL;
    struct tensors t = {.x = NULL};
    struct moe_memory_figures before = {0}, after = {0};
    bool ok = cudaSetDevice(r->rank) == cudaSuccess &&
              (trial->ranks == 1 || ncclCommInitRank(&ep, trial->ranks, r->id, r->rank) == ncclSuccess) &&
              moe_device_new_host(&device) == 0 && make(device, r, &t) == 0;
    struct moe_layer_config config = {.world_rank = r->rank,
                                      .max_tokens = T,
                                      .hidden = H,
                                      .ffn = F,
                                      .experts = E,
                                      .topk = K,
                                      .renormalise = true,
                                      .dispatcher = trial->kind,
                                      .ep = ep};
    if (ok) {
        moe_device_memory(device, &before);
    }
    ok = ok && moe_layer_new(device, &config, &layer) == 0;
    if (!ok) {
        trial->failed = true;
    }
    pthread_barrier_wait(&trial->barrier); /* all are made, or nobody begins */
    if (!trial->failed && run_steps(r, device, layer, &t) != 0) {
        fprintf(stderr, "roll_bench: memory: %s\n", moe_last_error());
        trial->failed = true;
    }
    if (!trial->failed) {
        moe_device_memory(device, &after);
        r->had = after.most_reserved;
        r->used = after.most_in_use;
        r->fixed = after.fixed - before.fixed;
    }
    moe_layer_destroy(&layer);
    if (device != NULL) {
        destroy(device, &t);
    }
    moe_device_destroy(&device);
    if (ep != NULL) {
        ncclCommDestroy(ep);
    }
    return NULL;
}

/* sums on paper, in bytes; s and r: rows sent and received */

static double own_bytes(double s, double r)
{
    return WORD * (r * (H + 3 * F) + s * H);
}

/* The buffers of a layer made for the worst case: rows, outputs, both gradients, h, a and their gradients, three orders
 * on the way. */
static double worst_bytes(int ranks)
{
    int local = E / ranks, each = K < local ? K : local;
    double r = (double)T * each * ranks, s = (double)T * K;
    return WORD * (r * (4 * H + 6 * F + (ranks > 1 ? H : 0)) + (ranks > 1 ? 2 * s * H : 0));
}

/* The tensors that are alive at once in PyTorch, moment by moment; kept: x, h, a of the experts, y of the tokens. */
static double paper_peak(double s, double r)
{
    const double kept = r * (H + 3 * F);
    const double moments[] = {
        s * H + r * H,           /* all-to-all of permuted rows */
        2 * r * H,               /* sort to expert-major order */
        kept + r * H,            /* fc2 */
        kept + 2 * r * H,        /* sort back */
        kept + r * H + s * H,    /* all-to-all back; y of the tokens is kept for the probabilities' gradient */
        kept + 2 * s * H,        /* unpermute's backward */
        kept + s * H + r * H,    /* all-to-all of its gradient */
        kept + 2 * r * H,        /* sort */
        kept + r * H + r * F,    /* fc2's backward */
        r * (H + 2 * F + 3 * F), /* the activation's: a is gone */
        r * (H + 2 * F + H),     /* fc1's */
        2 * r * H,
        r * H + s * H, /* back to the tokens */
    };
    double most = 0;
    for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
        most = moments[i] > most ? moments[i] : most;
    }
    return WORD * most;
}

static void print(json_t *out, FILE *table, const struct trial *trial, const struct rank *ranks)
{
    const struct rank *worst = &ranks[0];
    const double sent = trial->kind == MOE_DISPATCH_ALLGATHER ? (double)T * trial->ranks : (double)T * K;
    double most = 0;
    for (int i = 0; i < trial->ranks; i++) {
        double ratio = (double)(ranks[i].had + ranks[i].fixed) / own_bytes(sent, (double)ranks[i].received);
        worst = ratio > most ? &ranks[i] : worst;
        most = ratio > most ? ratio : most;
    }
    char name[64], text[128];
    double own = own_bytes(sent, (double)worst->received), mib = 1024 * 1024;
    snprintf(name, sizeof(name), "%s, ep %d: rows %.2f MiB, in use %.2f", moe_dispatcher_name(trial->kind),
             trial->ranks, own / mib, (double)worst->used / mib);
    snprintf(text, sizeof(text), "%.2f + %.2f MiB, %.2f x", (double)worst->had / mib, (double)worst->fixed / mib, most);
    roll_bench_line(table, name, text, "<= 3 x");
    if (trial->kind != MOE_DISPATCH_ALLGATHER) { /* the sums are of what an all-to-all sends */
        snprintf(text, sizeof(text), "%.1f x, %.2f x", worst_bytes(trial->ranks) / own,
                 paper_peak(sent, (double)worst->received) / own);
        roll_bench_line(table, "  on paper: worst-case buffers; PyTorch, Megatron-LM", text, "-");
    }
    snprintf(name, sizeof(name), "%s_ep%d", moe_dispatcher_name(trial->kind), trial->ranks);
    json_t *line =
        json_pack("{s:f, s:I, s:I, s:I, s:f}", "own_bytes", own, "reserved_bytes", (json_int_t)worst->had,
                  "in_use_bytes", (json_int_t)worst->used, "fixed_bytes", (json_int_t)worst->fixed, "ratio", most);
    if (trial->kind != MOE_DISPATCH_ALLGATHER) {
        json_object_set_new(line, "worst_case_ratio", json_real(worst_bytes(trial->ranks) / own));
        json_object_set_new(line, "pytorch_ratio", json_real(paper_peak(sent, (double)worst->received) / own));
    }
    json_object_set_new(out, name, line);
}

static int run_trial(json_t *out, FILE *table, enum moe_dispatcher_kind kind, int ranks)
{
    static struct rank rank[MOST_RANKS];
    struct trial trial = {.kind = kind, .ranks = ranks};
    pthread_t thread[MOST_RANKS];
    ncclUniqueId id;
    if (ncclGetUniqueId(&id) != ncclSuccess || pthread_barrier_init(&trial.barrier, NULL, (unsigned)ranks) != 0) {
        return -1;
    }
    for (int i = 0; i < ranks; i++) {
        rank[i] = (struct rank){.trial = &trial, .id = id, .rank = i};
        if (pthread_create(&thread[i], NULL, run_rank, &rank[i]) != 0) {
            abort(); /* the other ranks would wait for ever */
        }
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(thread[i], NULL);
    }
    pthread_barrier_destroy(&trial.barrier);
    if (trial.failed) {
        fprintf(stderr, "roll_bench: memory: the ranks failed\n");
        return -1;
    }
    print(out, table, &trial, rank);
    return 0;
}

int roll_bench_moe_memory(json_t *out, FILE *table)
{
    static const struct {
        enum moe_dispatcher_kind kind;
        int ranks;
    } trials[] = {{MOE_DISPATCH_ALLTOALL, 1},  {MOE_DISPATCH_ALLTOALL, 2},  {MOE_DISPATCH_ALLTOALL, 4},
                  {MOE_DISPATCH_ALLTOALL, 8},  {MOE_DISPATCH_ALLTOALL, 16}, {MOE_DISPATCH_ALLTOALL, 32},
                  {MOE_DISPATCH_ALLTOALL, 64}, {MOE_DISPATCH_DEEPEP, 8},    {MOE_DISPATCH_DEEPEP, 64},
                  {MOE_DISPATCH_HYBRIDEP, 8},  {MOE_DISPATCH_HYBRIDEP, 64}, {MOE_DISPATCH_ALLGATHER, 8},
                  {MOE_DISPATCH_ALLGATHER, 64}};
    int rc = 0;
    setenv("HOSTCUDA_DEVICES", "64", 1); /* before the first call of the runtime */
    fprintf(
        table,
        "memory: a layer's forward and backward, %d tokens a rank, top-%d of %d experts, hidden %d, ffn %d, float32; "
        "the rank with the most beside its rows, in %d steps\n",
        T, K, E, H, F, STEPS);
    for (size_t i = 0; i < sizeof(trials) / sizeof(trials[0]) && rc == 0; i++) {
        rc = run_trial(out, table, trials[i].kind, trials[i].ranks);
    }
    return rc;
}
