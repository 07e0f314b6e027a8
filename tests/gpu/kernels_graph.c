/*
 * kernels_graph.c: what a step of a layer enqueues, captured into a graph once and replayed with other numbers, against
 * the same functions called on the host.
 *
 * A function that waits, reads a count on the host, or takes memory in a way that a graph cannot keep, fails at the
 * capture or is right at the first replay only. One replay has a score that is NaN: the error must be reported, and
 * must not affect the next replay. The same for a device whose first call is a captured one, in every mode that forbids
 * allocations.
 */
#include "tests/gpu/kernels.h"

#include <math.h>

enum {
    T = 97,
    E = 16,
    K = 4,
    W = 24,
    N = 20,
    ROWS = T * K,
    PADDED = ROWS + 8 * E,
    FLEX = 128,
    RANKS = 4,
    CAPACITY = 20
};

/* All arrays of the step; inputs first. */
enum array {
    LOGITS,
    X,
    WEIGHT, /* inputs */
    SCORES,
    PROBS,
    INDEX,
    ALL,
    COUNTS,
    LOSSES,
    MAP,
    M,
    HID,
    ROW_PROBS,
    ACT,
    OUT,
    Y,
    D_ROWS,
    D_PROBS,
    D_LOGITS,
    SUM,
    NARROW,
    CHECK,
    SUMS,
    FINITE,
    DUMMY_M,
    DUMMY_MAP,
    DUMMY,
    PAD_M,
    PAD,
    CHUNKS,
    CHUNK_M,
    SORTED,
    FLEX_MAP,
    FLEX_RANKS,
    FLEX_COUNTS,
    WORDS,
    TOTAL,
    BIAS,
    ARRAYS
};

static const struct {
    const char *name;
    int64_t count;
    enum moe_dtype type;
    size_t size; /* 0: numbers of `type`, compared with a tolerance; else bytes of an integer or a copy, which must be
                    equal */
    double tolerance;
} arrays[ARRAYS] = {
    [LOGITS] = {"logits", T *E, MOE_F32, 0, 1e-6},
    [X] = {"x", T * 2 * W, MOE_F32, 0, 1e-6},
    [WEIGHT] = {"weight", E *N *W, MOE_F32, 0, 1e-6},
    [SCORES] = {"scores", T *E, MOE_F32, 0, 4e-6},
    [PROBS] = {"probs", T *E, MOE_F32, 0, 4e-6},
    [INDEX] = {"index", T *K, MOE_F32, 4, 0},
    [ALL] = {"all", T *K, MOE_F32, 4, 0},
    [COUNTS] = {"counts", E, MOE_F32, 8, 0},
    [LOSSES] = {"losses", MOE_LOSSES, MOE_F32, 0, 1e-5},
    [MAP] = {"map", 0, MOE_F32, 1, 0},
    [M] = {"m", E, MOE_F32, 8, 0},
    [HID] = {"rows", ROWS * 2 * W, MOE_F32, 0, 1e-6},
    [ROW_PROBS] = {"row_probs", ROWS, MOE_F32, 0, 4e-6},
    [ACT] = {"act", ROWS *W, MOE_F32, 0, 1e-5},
    [OUT] = {"out", ROWS *N, MOE_F32, 0, 1e-4},
    [Y] = {"y", T *N, MOE_F32, 0, 1e-4},
    [D_ROWS] = {"d_rows", ROWS *N, MOE_F32, 0, 1e-4},
    [D_PROBS] = {"d_probs", T *E, MOE_F32, 0, 1e-3},
    [D_LOGITS] = {"d_logits", T *E, MOE_F32, 0, 1e-3},
    [SUM] = {"sum", E, MOE_F32, 0, 1e-2},
    [NARROW] = {"narrow", T *N, MOE_BF16, 0, 1.0 / 64},
    [CHECK] = {"checksum", 1, MOE_F32, 8, 0},
    [SUMS] = {"sums", 2, MOE_F32, 8, -1},
    [FINITE] = {"not finite", 2, MOE_F32, 8, 0},
    [DUMMY_M] = {"padded m", E, MOE_F32, 8, 0},
    [DUMMY_MAP] = {"dummy map", ROWS + E, MOE_F32, 8, 0},
    [DUMMY] = {"dummy rows", (ROWS + E) * W, MOE_F32, 0, 1e-5},
    [PAD_M] = {"aligned m", E, MOE_F32, 8, 0},
    [PAD] = {"aligned rows", PADDED *W, MOE_F32, 0, 1e-5},
    [CHUNKS] = {"chunk map", 0, MOE_F32, 1, 0},
    [CHUNK_M] = {"chunk m", E, MOE_F32, 8, 0},
    [SORTED] = {"sorted", ROWS *W, MOE_F32, 0, 1e-5},
    [FLEX_MAP] = {"routing map", FLEX *E, MOE_F32, 1, 0},
    [FLEX_RANKS] = {"ranks of tokens", FLEX *RANKS, MOE_F32, 1, 0},
    [FLEX_COUNTS] = {"counts of ranks", RANKS + E + 1, MOE_F32, 8, 0},
    [WORDS] = {"words", FLEX * 2 * K, MOE_F32, 4, -1},
    [TOTAL] = {"total", E, MOE_F32, 8, 0},
    [BIAS] = {"bias", E, MOE_F32, 0, 1e-6},
};

struct step {
    struct twin t[ARRAYS];
    struct moe_linear_group *group[SIDES]; /* device memory */
};

static void step_new(struct check *c, struct step *s)
{
    for (int a = 0; a < ARRAYS; a++) {
        int64_t count = a == MAP      ? (int64_t)moe_map_bytes(MOE_MAP_INDEX, T, E, K, ROWS)
                        : a == CHUNKS ? (int64_t)moe_map_bytes(MOE_MAP_CHUNK, 0, 0, 0, ROWS)
                                      : arrays[a].count;
        s->t[a] = arrays[a].size == 0 ? twin_random(c, count, arrays[a].type, 1) : twin_new(c, count, arrays[a].size);
    }
    for (int side = 0; side < SIDES; side++) {
        struct moe_linear_group group[E] = {0};
        for (int64_t e = 0; e < E; e++) {
            group[e].weight = (const float *)ON(s->t[WEIGHT]) + e * N * W;
        }
        launched(c, moe_device_alloc(c->device[side], sizeof(group), (void **)&s->group[side]), "memory");
        launched(c, moe_device_copy(c->device[side], s->group[side], group, sizeof(group)), "copy");
        launched(c, moe_device_sync(c->device[side]), "copy");
    }
}

static void step_free(struct check *c, struct step *s)
{
    for (int a = 0; a < ARRAYS; a++) {
        twin_free(c, &s->t[a]);
    }
    for (int side = 0; side < SIDES; side++) {
        moe_device_free(c->device[side], &s->group[side]);
    }
}

#define AT(a) twin_at(&s->t[a], side)
#define DO(op, type, ...)                                                                                              \
    do {                                                                                                               \
        const struct type args = {__VA_ARGS__};                                                                        \
        launched(c, moe_device_ops(d)->op(d, &args), #op);                                                             \
    } while (0)

/* The choice, its losses, and where its rows are. */
static void enqueue_routing(struct check *c, struct step *s, int side)
{
    moe_device_t *d = c->device[side];
    DO(topk, moe_topk, .tokens = T, .experts = E, .k = K, .how = {.renormalise = true, .scale = 1},
       .logits = AT(LOGITS), .scores = AT(SCORES), .probs = AT(PROBS), .index = AT(INDEX), .counts = AT(COUNTS));
    launched(c, moe_device_copy(d, AT(ALL), AT(INDEX), T * K * sizeof(int32_t)), "copy");
    DO(balance, moe_balance, .tokens = T, .experts = E, .k = K, .coeff = {1, 0, 2, 0.5f}, .sequences = 1, .ranks = 1,
       .microbatches = 1, .logits = AT(LOGITS), .scores = AT(SCORES), .counts = AT(COUNTS), .global_counts = AT(COUNTS),
       .losses = AT(LOSSES));
    DO(drop, moe_drop, .tokens = T, .experts = E, .capacity = CAPACITY, .k = K, .probs = AT(PROBS), .index = AT(INDEX),
       .counts = AT(COUNTS));
    DO(row_map_build, moe_row_map_build, .kind = MOE_MAP_INDEX, .tokens = T, .experts = E, .k = K, .rows = ROWS,
       .index = AT(INDEX), .m = AT(M), .map = AT(MAP));
    DO(fill_counts, moe_fill_counts, .count = E, .value = 3, .to = AT(TOTAL));
    DO(add_counts, moe_add_counts, .count = E, .from = AT(COUNTS), .to = AT(TOTAL));
    DO(bias_update, moe_bias_update, .experts = E, .rate = 0.25f, .counts = AT(TOTAL), .bias = AT(BIAS));
}

static struct moe_map_view view_of(struct step *s, int side)
{
    return (struct moe_map_view){
        .kind = MOE_MAP_INDEX, .k = K, .tokens = T, .experts = E, .rows = ROWS, .map = AT(MAP)};
}

/* Permute, activation, a product per expert, unpermute; and back. */
static void enqueue_experts(struct check *c, struct step *s, int side)
{
    moe_device_t *d = c->device[side];
    DO(map_gather, moe_map_gather, .view = view_of(s, side), .width = 2L * W, .from = AT(X), .to = AT(HID),
       .probs = AT(PROBS), .row_probs = AT(ROW_PROBS));
    DO(act, moe_act, .groups = E, .m = AT(M), .rows = ROWS, .width = W, .h = AT(HID), .probs = AT(ROW_PROBS),
       .act = AT(ACT));
    DO(zero_slack, moe_zero_slack, .groups = E, .rows = ROWS, .row_bytes = W * sizeof(float), .m = AT(M),
       .data = AT(ACT));
    DO(linear, moe_linear_pass, .kind = MOE_LINEAR_FORWARD, .groups = E, .n = N, .k = W, .rows = ROWS, .m = AT(M),
       .group = s->group[side], .x = AT(ACT), .out = AT(OUT));
    DO(zero_slack, moe_zero_slack, .groups = E, .rows = ROWS, .row_bytes = N * sizeof(float), .m = AT(M),
       .data = AT(OUT));
    DO(map_scatter, moe_map_scatter, .view = view_of(s, side), .width = N, .probs = AT(PROBS), .from = AT(OUT),
       .to = AT(Y));
    DO(map_scatter_backward, moe_map_scatter_backward, .view = view_of(s, side), .width = N, .probs = AT(PROBS),
       .dy = AT(Y), .from = AT(OUT), .d_from = AT(D_ROWS), .d_probs = AT(D_PROBS));
    DO(topk_backward, moe_topk_backward, .tokens = T, .experts = E, .k = K, .how = {.renormalise = true, .scale = 1},
       .logits = AT(LOGITS), .scores = AT(SCORES), .probs = AT(PROBS), .d_probs = AT(D_PROBS), .index = AT(INDEX),
       .all = AT(ALL), .d_logits = AT(D_LOGITS));
    DO(balance_backward, moe_balance, .tokens = T, .experts = E, .k = K, .coeff = {1, 0, 2, 0.5f}, .sequences = 1,
       .ranks = 1, .microbatches = 1, .logits = AT(LOGITS), .scores = AT(SCORES), .counts = AT(COUNTS),
       .global_counts = AT(COUNTS), .loss_scale = 2, .d_logits = AT(D_LOGITS));
    launched(c, moe_device_ops(d)->zero(d, AT(SUM), E * sizeof(float)), "zero");
    DO(column_sum, moe_column_sum, .rows = T, .width = E, .in = AT(D_LOGITS), .out = AT(SUM));
}

/* What goes beside: facts, dummy rows, padding, chunks, the Flex layout. */
static void enqueue_rest(struct check *c, struct step *s, int side)
{
    moe_device_t *d = c->device[side];
    DO(cast, moe_cast, .count = T * N, .to_type = MOE_BF16, .from = AT(Y), .to = AT(NARROW));
    DO(checksum, moe_checksum, .data = AT(INDEX), .bytes = T * K * sizeof(int32_t), .out = AT(CHECK));
    DO(sum_abs, moe_sum_abs, .count = T * N, .in = AT(Y), .out = AT(SUMS));
    DO(not_finite, moe_not_finite, .groups = 1, .elements = T * N, .in = AT(Y), .out = AT(FINITE));
    DO(dummy_rows, moe_dummy_rows, .groups = E, .rows = ROWS, .m = AT(M), .padded = AT(DUMMY_M), .map = AT(DUMMY_MAP));
    DO(pick_rows, moe_pick_rows, .rows = ROWS + E, .row_bytes = W * sizeof(float), .map = AT(DUMMY_MAP),
       .from = AT(ACT), .to = AT(DUMMY));
    DO(pad_rows, moe_pad_rows, .rows = ROWS, .padded = PADDED, .width = W, .groups = E, .m = AT(M), .align = 8,
       .padded_m = AT(PAD_M), .from = AT(ACT), .to = AT(PAD));
    DO(chunk_map, moe_chunk_map, .ranks = 1, .experts = E, .stride = E, .rows = ROWS, .slack = true, .counts = AT(M),
       .m = AT(CHUNK_M), .map = AT(CHUNKS));
    DO(chunk_sort, moe_chunk_sort, .rows = ROWS, .width = W, .map = AT(CHUNKS), .from = AT(ACT), .to = AT(SORTED));
    DO(flex_layout, moe_flex_layout, .blocks = 1, .tokens = T, .padded = FLEX, .experts = E, .ranks = RANKS, .etp = 1,
       .k = K, .mask_row = E, .index = AT(INDEX), .map = AT(FLEX_MAP), .to_ranks = AT(FLEX_RANKS),
       .counts = AT(FLEX_COUNTS));
    DO(flex_pack, moe_flex_pack, .tokens = T, .padded = FLEX, .experts = E, .k = K, .index = AT(INDEX),
       .probs = AT(PROBS), .words = AT(WORDS));
}

static void enqueue(struct check *c, struct step *s, int side)
{
    enqueue_routing(c, s, side);
    enqueue_experts(c, s, side);
    enqueue_rest(c, s, side);
}

/* Other numbers in, poison in all that is overwritten: the same on both sides. Few scores are equal to none, so that
 * capacity is really exceeded by some expert. */
static void refresh(struct check *c, struct step *s, bool nan)
{
    struct twin fresh[] = {twin_grid(c, T * E, 48), twin_random(c, T * 2L * W, MOE_F32, 3)};
    for (int i = 0; i < 2; i++) {
        memcpy(twin_at(&s->t[i], HOST), twin_at(&fresh[i], HOST), (size_t)fresh[i].count * sizeof(float));
        twin_free(c, &fresh[i]);
    }
    float *logits = twin_at(&s->t[LOGITS], HOST);
    for (int64_t t = 0; t < T; t++) {
        logits[t * E + 5] += 2;
        logits[t * E + 9] -= 90; /* without tokens, or nearly */
    }
    logits[T * E / 2] = nan ? NAN : logits[T * E / 2];
    twin_push(c, &s->t[LOGITS]);
    twin_push(c, &s->t[X]);
    for (int a = SCORES; a < BIAS; a++) {                  /* the bias is kept over the replays */
        if (a != MAP && a != CHUNKS && a != FLEX_COUNTS) { /* of those, cells that nobody writes begin alike */
            twin_poison(c, &s->t[a]);
        }
    }
}

static void compare(struct check *c, struct step *s)
{
    for (int a = 0; a < ARRAYS; a++) {
        if (arrays[a].size == 0) {
            twin_close(c, &s->t[a], arrays[a].type, arrays[a].tolerance, 1, arrays[a].name);
        } else if (arrays[a].tolerance == 0) {
            twin_equal(c, &s->t[a], arrays[a].name);
        }
    }
}

/* What `work` enqueues on the GPU's side, as a graph. */
static cudaError_t capture(struct check *c, void (*work)(struct check *c, void *data), void *data,
                           enum cudaStreamCaptureMode mode, cudaGraphExec_t *out)
{
    cudaStream_t stream = moe_device_stream(c->device[GPU]);
    cudaGraph_t graph = NULL;
    cudaError_t err = cudaStreamBeginCapture(stream, mode);
    if (err == cudaSuccess) {
        work(c, data);
        err = cudaStreamEndCapture(stream, &graph);
    }
    err = err != cudaSuccess ? err : cudaGraphInstantiate(out, graph, 0);
    if (graph != NULL) {
        cudaGraphDestroy(graph);
    }
    if (err != cudaSuccess) {
        row_wrong(c, "capture: %s", cudaGetErrorString(err));
    }
    return err;
}

static void enqueue_step(struct check *c, void *data)
{
    enqueue(c, data, GPU);
}

static cudaError_t replay(struct check *c, cudaGraphExec_t exec, int number)
{
    cudaError_t err = cudaGraphLaunch(exec, moe_device_stream(c->device[GPU]));
    if (err != cudaSuccess) {
        row_wrong(c, "replay %d: %s", number, cudaGetErrorString(err));
    }
    return err;
}

static void step_replayed(struct check *c)
{
    struct step s;
    cudaGraphExec_t exec = NULL;
    int replays = c->sample ? 3 : 5;
    row_begin(c, "a step, captured and replayed");
    step_new(c, &s);
    refresh(c, &s, false);
    enqueue(c, &s, HOST);
    enqueue(c, &s, GPU);
    both_found(c, 0, "the step, enqueued");
    compare(c, &s);
    cudaError_t err = capture(c, enqueue_step, &s, cudaStreamCaptureModeThreadLocal, &exec);
    for (int i = 0; i < replays && err == cudaSuccess; i++) {
        bool nan = i == replays / 2;
        refresh(c, &s, nan);
        enqueue(c, &s, HOST);
        err = replay(c, exec, i);
        both_found(c, nan ? MOE_E_NAN : 0, "the step, replayed");
        if (!nan) {
            compare(c, &s);
        }
    }
    if (exec != NULL) {
        cudaGraphExecDestroy(exec);
    }
    step_free(c, &s);
    row_end(c, "");
}

/* The first call of a device is a captured one: what products make once and keep is made in the capture. A device of
 * its own, because the other has run. */

enum { PRODUCT_M = 33, PRODUCT_N = 20, PRODUCT_K = 24 };

struct product {
    struct twin a, b, out;
};

static void enqueue_product_on(struct check *c, struct product *p, int side)
{
    moe_device_t *d = c->device[side];
    DO(gemm, moe_gemm, .m = PRODUCT_M, .n = PRODUCT_N, .k = PRODUCT_K, .alpha = 1, .a = ON(p->a), .b = ON(p->b),
       .c = ON(p->out));
}

static void enqueue_product(struct check *c, void *data)
{
    enqueue_product_on(c, data, GPU);
}

static void product_captured_first(struct check *c, enum cudaStreamCaptureMode mode)
{
    struct product p = {twin_random(c, PRODUCT_M * PRODUCT_K, MOE_F32, 1),
                        twin_random(c, PRODUCT_K * PRODUCT_N, MOE_F32, 1),
                        twin_new(c, PRODUCT_M * PRODUCT_N, sizeof(float))};
    cudaGraphExec_t exec = NULL;
    enqueue_product_on(c, &p, HOST);
    cudaError_t err = capture(c, enqueue_product, &p, mode, &exec);
    for (int i = 0; i < 2 && err == cudaSuccess; i++) {
        twin_poison(c, &p.out);
        enqueue_product_on(c, &p, HOST);
        err = replay(c, exec, i);
        both_found(c, 0, "a product, replayed");
        twin_close(c, &p.out, MOE_F32, 1e-5, 1, "product");
    }
    if (exec != NULL) {
        cudaGraphExecDestroy(exec);
    }
    struct twin *every[] = {&p.a, &p.b, &p.out};
    for (int i = 0; i < 3; i++) {
        twin_free(c, every[i]);
    }
}

static void step_captured_first(struct check *c)
{
    struct step s;
    cudaGraphExec_t exec = NULL;
    step_new(c, &s);
    refresh(c, &s, false);
    cudaError_t err = capture(c, enqueue_step, &s, cudaStreamCaptureModeGlobal, &exec);
    if (err == cudaSuccess) {
        enqueue(c, &s, HOST);
        replay(c, exec, 0);
        both_found(c, 0, "the step, replayed");
        compare(c, &s);
    }
    step_free(c, &s);
    if (exec != NULL) {
        cudaGraphExecDestroy(exec);
    }
}

static void captured_first(struct check *c)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal};
    moe_device_t *used = c->device[GPU];
    row_begin(c, "the first call of a device, captured");
    for (int i = 0; i < 3; i++) {
        moe_device_t *fresh = NULL;
        launched(c, moe_device_new(c->rehearsal ? "host" : "cuda", &fresh), "a device of its own");
        if (fresh == NULL) {
            break;
        }
        c->device[GPU] = fresh;
        if (i < 2) {
            product_captured_first(c, modes[i]);
        } else {
            step_captured_first(c);
        }
        c->device[GPU] = used;
        moe_device_destroy(&fresh);
    }
    row_end(c, "");
}

void check_graph(struct check *c)
{
    step_replayed(c);
    captured_first(c);
}
