/*
 * kernels_gemm.c: the grouped products: every kind, type and position of empty groups, against the host and against
 * double precision; graphs replayed with other counts; bad counts.
 *
 * Slack rows of the inputs hold NaNs, outputs hold poison: a read or write beyond the sum of the counts is found. The
 * own kernels that the table would not choose here are called by name from libmoe_kernels.so. Timings:
 * kernels_gemm_race.c.
 */
#include "tests/gpu/kernels_gemm.h"

#include <dlfcn.h>
#include <math.h>

enum { SLACK = 3 };

/* libmoe_kernels.so, as moe_core has loaded it */

static struct gemm_api api;

static void find(void *to, void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "gpu check: libmoe_kernels.so has no %s\n", name);
        exit(9);
    }
    memcpy(to, &symbol, sizeof(symbol));
}

static void open_library(struct check *c)
{
    void *library = c->rehearsal ? NULL : dlopen("libmoe_kernels.so", RTLD_NOW | RTLD_NOLOAD);
    if (c->rehearsal) {
        return;
    }
    if (library == NULL) {
        fprintf(stderr, "gpu check: %s\n", dlerror());
        exit(9);
    }
    find(&api.gemm_new, library, "moe_kernel_gemm_new");
    find(&api.gemm_destroy, library, "moe_kernel_gemm_destroy");
    find(&api.linear, library, "moe_kernel_linear");
    find(&api.linear_host, library, "moe_kernel_linear_host");
    find(&api.fp8, library, "moe_kernel_gemm_fp8");
    launched(c, api.gemm_new(256, &api.gemm), "moe_kernel_gemm_new");
}

/* passes */

/* One pass on both sides; the GPU's by `backend` where that is not the table's choice. False: it cannot. */
static bool run_pass(struct check *c, const struct problem *p, enum moe_linear_kind kind,
                     enum moe_kernel_backend backend)
{
    struct moe_linear_pass host = pass_of(p, kind, HOST), gpu = pass_of(p, kind, GPU);
    int rc = 0;
    if (backend == MOE_KERNEL_AUTO || api.gemm == NULL) {
        rc = moe_device_ops(c->device[GPU])->linear(c->device[GPU], &gpu);
    } else {
        rc = api.linear(api.gemm, backend, &gpu, NULL, moe_device_stream(c->device[GPU]));
        if (rc == MOE_E_UNSUPPORTED) {
            return false;
        }
    }
    launched(c, rc, "linear, GPU");
    launched(c, moe_device_ops(c->device[HOST])->linear(c->device[HOST], &host), "linear, host");
    return true;
}

static double tolerance(enum moe_dtype type)
{
    return type == MOE_F32 ? 2e-5 : type == MOE_F16 ? 1e-3 : 8e-3;
}

/* Rounding to a type, relative. */
static double half_unit(enum moe_dtype type)
{
    return type == MOE_F32 ? 0x1p-24 : type == MOE_F16 ? 0x1p-11 : 0x1p-8;
}

/* A pass on both sides: against the host, all of it, and where `exact` against double precision. False: this kernel
 * does not do it. */
static bool try_pass(struct check *c, const struct problem *p, enum moe_linear_kind kind,
                     enum moe_kernel_backend backend, bool exact, const char *what)
{
    enum moe_dtype type;
    const struct twin *out = output_of(p, kind, &type);
    int64_t depth = kind == MOE_LINEAR_FORWARD                             ? p->k
                    : kind == MOE_LINEAR_DGRAD || kind == MOE_LINEAR_PGRAD ? p->n
                                                                           : p->rows;
    double *want = exact ? gemm_expected(c, p, kind, 3) : NULL, size = sqrt((double)(depth + 1));
    bool ran = run_pass(c, p, kind, backend);
    if (ran) {
        both_found(c, 0, what);
        twin_close(c, out, type, tolerance(type), size, what);
        if (exact) {
            twin_near(c, out, type, want, half_unit(type), 2e-5 * size, what);
        }
    }
    free(want);
    return ran;
}

/* The table's choice, and every kernel of our own that takes the types. */
static const struct {
    const char *name;
    enum moe_kernel_backend backend;
} backends[] = {{"linear", MOE_KERNEL_AUTO},
                {"linear, wgmma", MOE_KERNEL_OWN_WGMMA},
                {"linear, wgmma, pairs", MOE_KERNEL_OWN_WGMMA_PAIRS},
                {"linear, wgmma, fours", MOE_KERNEL_OWN_WGMMA_FOURS},
                {"linear, mma", MOE_KERNEL_OWN_MMA},
                {"linear, simt", MOE_KERNEL_OWN_SIMT}};

static const struct kinds types[] = {
    {MOE_F32, MOE_F32, MOE_F32, MOE_F32, false},     {MOE_BF16, MOE_BF16, MOE_BF16, MOE_F32, false},
    {MOE_BF16, MOE_BF16, MOE_F32, MOE_BF16, false},  {MOE_F16, MOE_F16, MOE_F16, MOE_F16, false},
    {MOE_F16, MOE_F16, MOE_F16, MOE_F32, false},     {MOE_BF16, MOE_E4M3, MOE_BF16, MOE_F32, true},
    {MOE_BF16, MOE_E5M2, MOE_BF16, MOE_BF16, false}, {MOE_F16, MOE_E4M3, MOE_F16, MOE_F32, false},
    {MOE_F16, MOE_E5M2, MOE_F16, MOE_F32, true},     {MOE_F32, MOE_E4M3, MOE_BF16, MOE_F32, true},
    {MOE_BF16, MOE_F32, MOE_F32, MOE_F32, false},
};
#define TYPES (sizeof(types) / sizeof(types[0]))

/* Whether a backend that is called by name has a product of these: else a row samples what it cannot compare. */
static bool has_product(enum moe_kernel_backend backend, const struct kinds *t, int64_t n)
{
    bool simple = backend == MOE_KERNEL_AUTO || backend == MOE_KERNEL_OWN_SIMT;
    return simple || (t->activation != MOE_F32 && (backend == MOE_KERNEL_OWN_MMA || n % 8 == 0));
}

static void products(struct check *c, const char *name, enum moe_kernel_backend backend)
{
    static const int64_t shape[][2] = {{136, 272}, {7, 13}, {384, 528}};
    row_begin(c, name);
    for (size_t t = 0; t < TYPES; t++) {
        for (size_t i = 0; i < POSITIONS; i++) {
            const int64_t *s = shape[(t + i) % 3];
            bool accumulate = (t + i) % 2 == 0;
            bool probs = (t + i) % 4 < 2;
            struct wanted w = {.n = s[0],
                               .k = s[1],
                               .position = i,
                               .more_rows = i % 2 == 0 ? SLACK : 0,
                               .beta = accumulate ? 1.0f : 0.0f,
                               .bias_scale = probs ? 0.5f : 0.0f,
                               .has_bias = i % 3 != 0,
                               .has_probs = probs};
            if (!has_product(backend, &types[t], w.n) || !taken(c)) {
                continue;
            }
            struct problem p = problem_new(c, types[t], w);
            int last = backend != MOE_KERNEL_AUTO ? MOE_LINEAR_WGRAD /* sums have one kernel */
                       : w.has_bias               ? MOE_LINEAR_PGRAD
                                                  : MOE_LINEAR_BGRAD;
            for (int kind = MOE_LINEAR_FORWARD; kind <= last; kind++) {
                bool exact = !c->rehearsal || (t + i) % 5 == (size_t)kind; /* a rehearsal is to be short */
                try_pass(c, &p, (enum moe_linear_kind)kind, backend, exact, gemm_positions[i]);
            }
            problem_free(c, &p);
        }
    }
    row_end(c, "");
}

/* counts that cannot be right: nothing is touched, the error is found */

static void bad_counts(struct check *c)
{
    static const struct {
        int64_t group, count;
        int error;
    } bad[] = {{0, -1, MOE_E_COUNT},
               {GROUPS - 1, INT64_MIN, MOE_E_COUNT},
               {2, 100000, MOE_E_SPLIT},
               {3, INT64_MAX, MOE_E_SPLIT}};
    row_begin(c, "linear, bad counts");
    for (size_t t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            if (!taken(c)) {
                continue;
            }
            struct problem p =
                problem_new(c, types[t], (struct wanted){.n = 136, .k = 272, .position = 4, .has_bias = true});
            ((int64_t *)twin_at(&p.m, HOST))[bad[i].group] = bad[i].count;
            twin_push(c, &p.m);
            for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_PGRAD; kind++) {
                run_pass(c, &p, (enum moe_linear_kind)kind, MOE_KERNEL_AUTO);
                both_found(c, bad[i].error, "bad count");
                twin_equal(c, output_of(&p, (enum moe_linear_kind)kind, NULL), "untouched");
            }
            problem_free(c, &p);
        }
    }
    row_end(c, "");
}

/* a graph of forward and weight gradient, replayed with counts that it was not captured with */

static cudaGraphExec_t capture(struct check *c, const struct problem *p, int side)
{
    struct moe_linear_pass forward = pass_of(p, MOE_LINEAR_FORWARD, side), wgrad = pass_of(p, MOE_LINEAR_WGRAD, side);
    cudaStream_t stream = moe_device_stream(c->device[side]);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int rc = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    rc = rc ? rc : moe_device_ops(c->device[side])->linear(c->device[side], &forward);
    rc = rc ? rc : moe_device_ops(c->device[side])->linear(c->device[side], &wgrad);
    rc = rc ? rc : (int)cudaStreamEndCapture(stream, &graph);
    rc = rc ? rc : (int)cudaGraphInstantiate(&exec, graph, 0);
    launched(c, rc, "capture");
    cudaGraphDestroy(graph);
    return exec;
}

static void graphs(struct check *c)
{
    row_begin(c, "linear, graph");
    for (size_t t = 0; t < 2; t++) {
        struct problem p = problem_new(
            c, types[t],
            (struct wanted){
                .n = 384, .k = 528, .position = 6, .has_bias = true}); /* 800 rows: room for each position */
        cudaGraphExec_t exec[SIDES];
        for (int side = 0; side < SIDES; side++) {
            exec[side] = capture(c, &p, side);
        }
        for (size_t i = 0; i < POSITIONS; i++) {
            if (!taken(c)) {
                continue;
            }
            problem_counts(c, &p, i);
            twin_poison(c, &p.y);
            twin_poison(c, &p.d_weight);
            for (int side = 0; side < SIDES; side++) {
                launched(c, (int)cudaGraphLaunch(exec[side], moe_device_stream(c->device[side])), "replay");
            }
            both_found(c, 0, gemm_positions[i]);
            twin_close(c, &p.y, types[t].activation, tolerance(types[t].activation), sqrt((double)p.k), "y");
            twin_close(c, &p.d_weight, types[t].grad, tolerance(types[t].grad), sqrt((double)p.rows), "d_weight");
        }
        for (int side = 0; side < SIDES; side++) {
            cudaGraphExecDestroy(exec[side]);
        }
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* plain products, and grouped ones in one array */

static void plain(struct check *c)
{
    static const int64_t shape[][3] = {{1, 1, 1}, {7, 5, 0}, {0, 4, 3}, {65, 33, 129}, {256, 384, 512}};
    row_begin(c, "gemm");
    for (size_t i = 0; i < 4 * sizeof(shape) / sizeof(shape[0]); i++) {
        if (!taken(c)) {
            continue;
        }
        const int64_t *s = shape[i / 4];
        bool ta = i % 2 != 0, tb = i / 2 % 2 != 0;
        struct twin a = twin_random(c, s[0] * s[2], MOE_F32, 1), b = twin_random(c, s[1] * s[2], MOE_F32, 1),
                    out = twin_random(c, s[0] * s[1], MOE_F32, 1);
        RUN_BOTH(c, gemm, struct moe_gemm, .ta = ta, .tb = tb, .m = s[0], .n = s[1], .k = s[2], .alpha = 0.5f,
                 .beta = i % 3 == 0 ? 0.0f : 1.0f, .a = ON(a), .b = ON(b), .c = ON(out));
        both_found(c, 0, "gemm");
        twin_close(c, &out, MOE_F32, 1e-5, sqrt((double)s[2]), "c");
        twin_free(c, &a);
        twin_free(c, &b);
        twin_free(c, &out);
    }
    row_end(c, "");
    row_begin(c, "grouped");
    for (size_t i = 0; i < 3 * POSITIONS; i++) {
        if (!taken(c)) {
            continue;
        }
        size_t position = i / 3;
        enum moe_grouped_kind kind = (enum moe_grouped_kind)(i % 3);
        struct problem p = problem_new(
            c, types[0],
            (struct wanted){
                .n = 36, .k = 51, .position = position, .more_rows = SLACK, .beta = position % 2 == 0 ? 1.0f : 0.0f});
        struct twin *out = kind == MOE_GROUPED_FORWARD ? &p.y : kind == MOE_GROUPED_DGRAD ? &p.dx : &p.d_weight;
        struct twin *in = kind == MOE_GROUPED_FORWARD ? &p.x : &p.dy;
        RUN_BOTH(c, grouped, struct moe_grouped, .kind = kind, .groups = GROUPS, .n = p.n, .k = p.k, .rows = p.rows,
                 .m = ON(p.m), .in = ON(*in), .w = ON(p.weight), .x = ON(p.x), .out = ON(*out), .beta = p.beta);
        both_found(c, 0, gemm_positions[position]);
        twin_close(c, out, MOE_F32, 2e-5, 10, "out");
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* One small product of each kind for each kernel of our own that passes its operands through shared memory: for the
 * mutants of the emulator, each of which must spoil one of these. A group has 3 rows more than a tile, and more stages
 * follow each other than a ring has. */
void check_product(struct check *c)
{
    static const struct {
        size_t type;
        enum moe_kernel_backend backend;
    } own[] = {{1, MOE_KERNEL_OWN_WGMMA}, {5, MOE_KERNEL_OWN_WGMMA}, {1, MOE_KERNEL_OWN_MMA}};
    open_library(c);
    row_begin(c, "products, one of each");
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        struct problem p = problem_new(c, types[own[i].type], (struct wanted){.n = 136, .k = 272, .position = 5});
        for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_WGRAD && !c->row_wrong; kind++) {
            try_pass(c, &p, (enum moe_linear_kind)kind, own[i].backend, false, gemm_positions[5]);
        }
        problem_free(c, &p);
    }
    row_end(c, "");
    if (api.gemm != NULL) {
        api.gemm_destroy(&api.gemm);
    }
}

/* The same of FP8 by FP8. */
void check_product8(struct check *c)
{
    row_begin(c, "products of FP8 by FP8, one of each");
    gemm_fp8_product(c);
    row_end(c, "");
}

void check_fp8(struct check *c)
{
    open_library(c);
    gemm_fp8(c, &api);
    if (api.gemm != NULL) {
        api.gemm_destroy(&api.gemm);
    }
}

void check_gemm(struct check *c)
{
    open_library(c);
    for (size_t i = 0; i < (api.gemm == NULL ? 1 : sizeof(backends) / sizeof(backends[0])); i++) {
        products(c, backends[i].name, backends[i].backend);
    }
    bad_counts(c);
    graphs(c);
    plain(c);
    if (!c->sample) {
        gemm_races(c, &api);
    }
    if (api.gemm != NULL) {
        api.gemm_destroy(&api.gemm);
    }
}
