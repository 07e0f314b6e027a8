/*
 * kernels_gemm.c: the grouped products: every kind, type and position of empty groups, host against GPU; graphs replayed with other counts; bad counts; speed.
 *
 * Slack rows of the inputs hold NaNs, outputs poison: who reads or writes beyond the sum of the counts is found. The own kernels that the table would not choose
 * here are called by name from libmoe_kernels.so. Timings stand beside cublasGemmGroupedBatchedEx, both in one run.
 */
#include "tests/gpu/kernels.h"

#include "kernels/kernels.h"

#include <dlfcn.h>
#include <math.h>

enum { GROUPS = 7, SLACK = 3 };

/* --- libmoe_kernels.so, as moe_core has loaded it --- */

static struct {
    int (*gemm_new)(int64_t groups, moe_kernel_gemm_t **out);
    void (*gemm_destroy)(moe_kernel_gemm_t **gemm);
    int (*linear)(moe_kernel_gemm_t *gemm, enum moe_kernel_backend backend, const struct moe_linear_pass *pass,
                  int *error, cudaStream_t stream);
    int (*linear_host)(moe_kernel_gemm_t *gemm, const struct moe_linear_pass *pass, const int64_t *m,
                       const struct moe_linear_group *group, cudaStream_t stream);
    int (*fp8)(moe_kernel_gemm_t *gemm, const struct moe_kernel_fp8 *args, int *error, cudaStream_t stream);
} api;

static moe_kernel_gemm_t *gemm; /* NULL in a rehearsal */

static void find(void *to, void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "gpu check: libmoe_kernels.so has no %s\n", name);
        exit(9);
    }
    memcpy(to, &symbol, sizeof symbol);
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
    launched(c, api.gemm_new(256, &gemm), "moe_kernel_gemm_new");
}

/* --- a case --- */

struct kinds {
    enum moe_dtype activation, weight, bias, grad;
    bool block_scales;
};

struct problem {
    struct kinds t;
    int64_t n, k, rows;
    float beta;
    bool has_bias;
    struct twin m, x, dy, weight, scale, bias, y, dx, d_weight, d_bias, table;
};

static const char *const positions[] = {"first", "middle", "last", "all", "none", "ragged", "one"};
#define POSITIONS (sizeof positions / sizeof positions[0])

static int64_t count_at(size_t position, int64_t group)
{
    static const int64_t primes[GROUPS] = {1, 131, 0, 61, 257, 0, 17};
    switch (position) {
    case 0:
        return group == 0 ? 0 : 40 + group;
    case 1:
        return group == GROUPS / 2 ? 0 : 65;
    case 2:
        return group == GROUPS - 1 ? 0 : 129 - group;
    case 3:
        return 0;
    case 4:
        return 64;
    case 5:
        return primes[group];
    default:
        return group == 4 ? 800 : 0;
    }
}

static void set_counts(struct check *c, struct problem *p, size_t position)
{
    int64_t *m = twin_at(&p->m, HOST);
    for (int64_t g = 0; g < GROUPS; g++) {
        m[g] = count_at(position, g);
    }
    twin_push(c, &p->m);
}

static int64_t sum_of(size_t position)
{
    int64_t sum = 0;
    for (int64_t g = 0; g < GROUPS; g++) {
        sum += count_at(position, g);
    }
    return sum;
}

/* Rows with NaNs behind the first `rows`. */
static struct twin rows_new(struct check *c, int64_t rows, int64_t slack, int64_t width, enum moe_dtype type)
{
    struct twin t = twin_random(c, (rows + slack) * width, type, 1);
    memset((char *)twin_at(&t, HOST) + (size_t)(rows * width) * t.size, 0xff, (size_t)(slack * width) * t.size);
    twin_push(c, &t);
    return t;
}

static struct twin scales_new(struct check *c, int64_t n)
{
    struct twin t = twin_new(c, n, sizeof(float));
    float *to = twin_at(&t, HOST);
    for (int64_t i = 0; i < n; i++) {
        to[i] = 0.25f + (float)random_below(c, 100) / 64.0f;
    }
    twin_push(c, &t);
    return t;
}

static void *part(const struct twin *t, int side, int64_t element)
{
    return (char *)twin_at(t, side) + (size_t)element * t->size;
}

/* The table of the groups' pointers: another one on each side. */
static void fill_table(struct check *c, struct problem *p)
{
    int64_t cells = p->n * p->k, scales = p->t.block_scales ? (p->n + 127) / 128 * ((p->k + 127) / 128) : 1;
    bool fp8 = p->t.weight == MOE_E4M3 || p->t.weight == MOE_E5M2;
    struct moe_linear_group group[SIDES][GROUPS];
    for (int side = 0; side < SIDES; side++) {
        for (int64_t g = 0; g < GROUPS; g++) {
            group[side][g] = (struct moe_linear_group){.weight = part(&p->weight, side, g * cells),
                                                       .scale = fp8 ? part(&p->scale, side, g * scales) : NULL,
                                                       .bias = p->has_bias ? part(&p->bias, side, g * p->n) : NULL,
                                                       .d_weight = part(&p->d_weight, side, g * cells),
                                                       .d_bias = part(&p->d_bias, side, g * p->n)};
        }
        launched(c, moe_device_copy(c->device[side], twin_at(&p->table, side), group[side], sizeof group[side]),
                 "copy");
        launched(c, moe_device_sync(c->device[side]), "copy");
    }
}

static struct problem problem_new(struct check *c, struct kinds t, int64_t n, int64_t k, size_t position,
                                  int64_t more_rows, float beta, bool has_bias)
{
    int64_t sum = sum_of(position), rows = sum + more_rows, cells = GROUPS * n * k;
    struct problem p = {.t = t, .n = n, .k = k, .rows = rows, .beta = beta, .has_bias = has_bias};
    p.m = twin_new(c, GROUPS, sizeof(int64_t));
    set_counts(c, &p, position);
    p.x = rows_new(c, sum, more_rows, k, t.activation);
    p.dy = rows_new(c, sum, more_rows, n, t.activation);
    p.weight = twin_random(c, cells, t.weight, 1);
    p.scale = scales_new(c, GROUPS * ((n + 127) / 128) * ((k + 127) / 128));
    p.bias = twin_random(c, GROUPS * n, t.bias, 1);
    p.y = twin_new(c, rows * n, moe_dtype_bytes(t.activation));
    p.dx = twin_new(c, rows * k, moe_dtype_bytes(t.activation));
    p.d_weight = twin_random(c, cells, t.grad, 1);
    p.d_bias = twin_new(c, GROUPS * n, moe_dtype_bytes(t.grad));
    p.table = twin_new(c, GROUPS, sizeof(struct moe_linear_group));
    twin_poison(c, &p.y);
    twin_poison(c, &p.dx);
    twin_poison(c, &p.d_bias);
    if (beta == 0.0f) {
        twin_poison(c, &p.d_weight);
    }
    fill_table(c, &p);
    return p;
}

static void problem_free(struct check *c, struct problem *p)
{
    struct twin *all[] = {&p->m, &p->x,  &p->dy,       &p->weight, &p->scale, &p->bias,
                          &p->y, &p->dx, &p->d_weight, &p->d_bias, &p->table};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        twin_free(c, all[i]);
    }
}

static struct moe_linear_pass pass_of(const struct problem *p, enum moe_linear_kind kind, int side)
{
    return (struct moe_linear_pass){.kind = kind,
                                    .groups = GROUPS,
                                    .n = p->n,
                                    .k = p->k,
                                    .rows = p->rows,
                                    .m = twin_at(&p->m, side),
                                    .group = twin_at(&p->table, side),
                                    .activation = p->t.activation,
                                    .weight = p->t.weight,
                                    .bias = p->t.bias,
                                    .grad = p->t.grad,
                                    .block_scales = p->t.block_scales,
                                    .x = twin_at(&p->x, side),
                                    .dy = twin_at(&p->dy, side),
                                    .out = twin_at(kind == MOE_LINEAR_FORWARD ? &p->y : &p->dx, side),
                                    .beta = p->beta};
}

/* One pass on both sides; the GPU's by `backend` where that is not the table's choice. False: it cannot. */
static bool run_pass(struct check *c, const struct problem *p, enum moe_linear_kind kind,
                     enum moe_kernel_backend backend)
{
    struct moe_linear_pass host = pass_of(p, kind, HOST), gpu = pass_of(p, kind, GPU);
    int rc = 0;
    if (backend == MOE_KERNEL_AUTO || gemm == NULL) {
        rc = moe_device_ops(c->device[GPU])->linear(c->device[GPU], &gpu);
    } else {
        rc = api.linear(gemm, backend, &gpu, NULL, moe_device_stream(c->device[GPU]));
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

static void compare(struct check *c, const struct problem *p, enum moe_linear_kind kind)
{
    const struct twin *out[] = {&p->y, &p->dx, &p->d_weight, &p->d_bias};
    enum moe_dtype type = kind <= MOE_LINEAR_DGRAD ? p->t.activation : p->t.grad;
    int64_t depth = kind == MOE_LINEAR_FORWARD ? p->k : kind == MOE_LINEAR_DGRAD ? p->n : p->rows;
    twin_close(c, out[kind], type, tolerance(type), sqrt((double)depth), "out");
}

/* The table's choice, and every kernel of our own that takes the types. */
static const struct {
    const char *name;
    enum moe_kernel_backend backend;
} backends[] = {{"linear", MOE_KERNEL_AUTO},
                {"linear, wgmma", MOE_KERNEL_OWN_WGMMA},
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
#define TYPES (sizeof types / sizeof types[0])

static void products(struct check *c, const char *name, enum moe_kernel_backend backend)
{
    static const int64_t shape[][2] = {{136, 272}, {7, 13}, {384, 528}};
    row_begin(c, name);
    for (size_t t = 0; t < TYPES; t++) {
        for (size_t i = 0; i < POSITIONS; i++) {
            const int64_t *s = shape[(t + i) % 3];
            bool accumulate = (t + i) % 2 == 0;
            struct problem p =
                problem_new(c, types[t], s[0], s[1], i, i % 2 == 0 ? SLACK : 0, accumulate ? 1.0f : 0.0f, i % 3 != 0);
            for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_BGRAD; kind++) {
                if (run_pass(c, &p, (enum moe_linear_kind)kind, backend)) {
                    both_found(c, 0, positions[i]);
                    compare(c, &p, (enum moe_linear_kind)kind);
                }
            }
            problem_free(c, &p);
        }
    }
    row_end(c, "");
}

/* --- counts that cannot be right: nothing is touched, the error is found --- */

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
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            struct problem p = problem_new(c, types[t], 136, 272, 4, 0, 0.0f, false);
            ((int64_t *)twin_at(&p.m, HOST))[bad[i].group] = bad[i].count;
            twin_push(c, &p.m);
            for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_BGRAD; kind++) {
                run_pass(c, &p, (enum moe_linear_kind)kind, MOE_KERNEL_AUTO);
                both_found(c, bad[i].error, "bad count");
            }
            const struct twin *out[] = {&p.y, &p.dx, &p.d_weight, &p.d_bias};
            for (size_t o = 0; o < sizeof out / sizeof out[0]; o++) {
                twin_equal(c, out[o], "untouched");
            }
            problem_free(c, &p);
        }
    }
    row_end(c, "");
}

/* --- a graph of forward and weight gradient, replayed with counts that it was not captured with --- */

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
        struct problem p = problem_new(c, types[t], 384, 528, 6, 0, 0.0f, true); /* 800 rows: room for each position */
        cudaGraphExec_t exec[SIDES];
        for (int side = 0; side < SIDES; side++) {
            exec[side] = capture(c, &p, side);
        }
        for (size_t i = 0; i < POSITIONS; i++) {
            set_counts(c, &p, i);
            twin_poison(c, &p.y);
            twin_poison(c, &p.d_weight);
            for (int side = 0; side < SIDES; side++) {
                launched(c, (int)cudaGraphLaunch(exec[side], moe_device_stream(c->device[side])), "replay");
            }
            both_found(c, 0, positions[i]);
            compare(c, &p, MOE_LINEAR_FORWARD);
            compare(c, &p, MOE_LINEAR_WGRAD);
        }
        for (int side = 0; side < SIDES; side++) {
            cudaGraphExecDestroy(exec[side]);
        }
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* --- plain products, and grouped ones in one array --- */

static void plain(struct check *c)
{
    static const int64_t shape[][3] = {{1, 1, 1}, {7, 5, 0}, {0, 4, 3}, {65, 33, 129}, {256, 384, 512}};
    row_begin(c, "gemm");
    for (size_t i = 0; i < 4 * sizeof shape / sizeof shape[0]; i++) {
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
        size_t position = i / 3;
        enum moe_grouped_kind kind = (enum moe_grouped_kind)(i % 3);
        struct problem p = problem_new(c, types[0], 36, 51, position, SLACK, position % 2 == 0 ? 1.0f : 0.0f, false);
        struct twin *out = kind == MOE_GROUPED_FORWARD ? &p.y : kind == MOE_GROUPED_DGRAD ? &p.dx : &p.d_weight;
        struct twin *in = kind == MOE_GROUPED_FORWARD ? &p.x : &p.dy;
        RUN_BOTH(c, grouped, struct moe_grouped, .kind = kind, .groups = GROUPS, .n = p.n, .k = p.k, .rows = p.rows,
                 .m = ON(p.m), .in = ON(*in), .w = ON(p.weight), .x = ON(p.x), .out = ON(*out), .beta = p.beta);
        both_found(c, 0, positions[position]);
        twin_close(c, out, MOE_F32, 2e-5, 10, "out");
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* --- FP8 by FP8: the host's back end multiplies the same numbers, widened and scaled --- */

static void scaled_rows(const struct problem *p, const float *scales, struct moe_cast *cast)
{
    float *x = cast->to;
    int64_t across = (p->k + 127) / 128;
    for (int64_t i = 0; i < p->rows * p->k; i++) {
        x[i] *= scales[i / p->k * across + i % p->k / 128];
    }
}

static void fp8(struct check *c)
{
    struct kinds t = {MOE_F32, MOE_E4M3, MOE_F32, MOE_F32, true};
    if (gemm == NULL) {
        return;
    }
    row_begin(c, "gemm_fp8");
    for (size_t i = 0; i < POSITIONS; i++) {
        struct problem p = problem_new(c, t, 136, 272 + 16 * (int64_t)i, i, 0, 0.0f, false);
        struct twin x = twin_random(c, p.rows * p.k, MOE_E4M3, 1), y = twin_new(c, p.rows * p.n, 2),
                    scales = scales_new(c, p.rows * ((p.k + 127) / 128));
        struct moe_cast widen = {.count = p.rows * p.k,
                                 .from_type = MOE_E4M3,
                                 .to_type = MOE_F32,
                                 .from = twin_at(&x, HOST),
                                 .to = twin_at(&p.x, HOST)};
        launched(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &widen), "cast");
        both_found(c, 0, "cast");
        scaled_rows(&p, twin_at(&scales, HOST), &widen);
        struct moe_linear_pass host = pass_of(&p, MOE_LINEAR_FORWARD, HOST);
        struct moe_kernel_fp8 args = {GROUPS,
                                      p.n,
                                      p.k,
                                      p.rows,
                                      twin_at(&p.m, GPU),
                                      twin_at(&p.table, GPU),
                                      twin_at(&x, GPU),
                                      twin_at(&scales, GPU),
                                      twin_at(&y, GPU)};
        int rc = api.fp8(gemm, &args, NULL, moe_device_stream(c->device[GPU]));
        if (rc != MOE_E_UNSUPPORTED) {
            launched(c, rc, "gemm_fp8");
            launched(c, moe_device_ops(c->device[HOST])->linear(c->device[HOST], &host), "linear, host");
            both_found(c, 0, positions[i]);
            struct moe_cast narrow = {.count = p.rows * p.n,
                                      .from_type = MOE_F32,
                                      .to_type = MOE_BF16,
                                      .from = twin_at(&p.y, HOST),
                                      .to = twin_at(&y, HOST)};
            launched(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &narrow), "cast");
            both_found(c, 0, "cast");
            twin_close(c, &y, MOE_BF16, 8e-3, sqrt((double)p.k), "y"); /* the unit keeps fewer bits of FP8 sums */
        }
        twin_free(c, &x);
        twin_free(c, &y);
        twin_free(c, &scales);
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* --- speed --- */

struct race {
    int64_t groups, m, n, k;
    bool ragged; /* m is the rows of all */
};

struct racer {
    struct moe_linear_pass pass;
    int64_t *m; /* host */
    struct moe_linear_group *group;
    struct moe_kernel_fp8 fp8;
};

/* Several calls at a time: the device never waits for the host, on either side. */
enum { CALLS = 8 };

static void own(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api.linear(gemm, MOE_KERNEL_AUTO, &r->pass, NULL, moe_device_stream(c->device[GPU])), "own");
    }
}

static void own_fp8(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api.fp8(gemm, &r->fp8, NULL, moe_device_stream(c->device[GPU])), "own, FP8");
    }
}

static void cublas(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api.linear_host(gemm, &r->pass, r->m, r->group, moe_device_stream(c->device[GPU])), "cublas");
    }
}

/* Device memory full of random bfloat16 numbers in [-1, 1) (or bytes that are small FP8 numbers, too): what the numbers are decides the power. */
static void *noise(struct check *c, size_t bytes)
{
    enum { PIECE = 8 << 20 };
    static uint16_t *some;
    char *to = NULL;
    if (some == NULL) {
        some = malloc(PIECE);
        for (size_t i = 0; some != NULL && i < PIECE / 2; i++) {
            float f = (float)(next_random(c) % 20001) / 10000.0f - 1.0f;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            some[i] = (uint16_t)(bits >> 16);
        }
    }
    launched(c, moe_device_alloc(c->device[GPU], bytes, (void **)&to), "memory");
    for (size_t at = 0; at < bytes; at += PIECE) {
        launched(c, moe_device_copy(c->device[GPU], to + at, some, bytes - at < PIECE ? bytes - at : PIECE), "copy");
    }
    return to;
}

static void race(struct check *c, const struct race *s, enum moe_linear_kind kind)
{
    static const char *const kinds[] = {"forward", "dgrad", "wgrad"};
    int64_t rows = s->ragged ? s->m : s->groups * s->m, across = (s->k + 127) / 128, left = rows;
    size_t cells = (size_t)(s->n * s->k);
    struct racer r = {.m = calloc((size_t)s->groups, sizeof *r.m), .group = calloc((size_t)s->groups, sizeof *r.group)};
    void *x = noise(c, (size_t)(rows * s->k) * 2), *y = noise(c, (size_t)(rows * s->n) * 2),
         *w = noise(c, (size_t)s->groups * cells * 2), *m = NULL, *table = NULL, *scales = NULL, *d_weight = NULL;
    if (kind == MOE_LINEAR_WGRAD) {
        launched(c, moe_device_alloc(c->device[GPU], (size_t)s->groups * cells * 2, &d_weight), "memory");
    }
    size_t scale_bytes = (size_t)(rows * across + s->groups * ((s->n + 127) / 128) * across) * sizeof(float);
    launched(c, moe_device_alloc(c->device[GPU], scale_bytes, &scales), "memory");
    for (int64_t g = 0; g < s->groups; g++) { /* ragged: from nearly nothing to twice the mean */
        int64_t share = 2 * s->m * (g + 1) / (s->groups * (s->groups + 1));
        r.m[g] = !s->ragged ? s->m : g + 1 == s->groups ? left : share;
        left -= r.m[g];
        r.group[g] = (struct moe_linear_group){.weight = (char *)w + (size_t)g * cells * 2,
                                               .scale = (float *)scales + rows * across,
                                               .d_weight = d_weight ? (char *)d_weight + (size_t)g * cells * 2 : NULL};
    }
    size_t m_bytes = (size_t)s->groups * sizeof *r.m, table_bytes = (size_t)s->groups * sizeof *r.group;
    launched(c, moe_device_alloc(c->device[GPU], m_bytes, &m), "memory");
    launched(c, moe_device_alloc(c->device[GPU], table_bytes, &table), "memory");
    launched(c, moe_device_copy(c->device[GPU], m, r.m, m_bytes), "copy");
    launched(c, moe_device_copy(c->device[GPU], table, r.group, table_bytes), "copy");
    launched(c, moe_device_sync(c->device[GPU]), "copy");
    r.pass = (struct moe_linear_pass){.kind = kind,
                                      .groups = s->groups,
                                      .n = s->n,
                                      .k = s->k,
                                      .rows = rows,
                                      .m = m,
                                      .group = table,
                                      .activation = MOE_BF16,
                                      .weight = MOE_BF16,
                                      .grad = MOE_BF16,
                                      .x = kind == MOE_LINEAR_DGRAD ? NULL : x,
                                      .dy = kind == MOE_LINEAR_FORWARD ? NULL : y,
                                      .out = kind == MOE_LINEAR_FORWARD ? y : x};
    r.fp8 = (struct moe_kernel_fp8){s->groups, s->n, s->k, rows, m, table, x, scales, y};
    double flop = 2.0 * (double)rows * (double)s->n * (double)s->k, own_ms = time_ms(c, own, &r) / CALLS,
           cublas_ms = time_ms(c, cublas, &r) / CALLS;
    char name[96], more[256], eight[64] = "";
    if (kind == MOE_LINEAR_FORWARD) {
        snprintf(eight, sizeof eight, ", own FP8 by FP8 %.0f", CALLS * flop / time_ms(c, own_fp8, &r) * 1e-9);
    }
    snprintf(name, sizeof name, "%s bf16 %lldx%s%lldx%lldx%lld", kinds[kind], (long long)s->groups,
             s->ragged ? "ragged " : "", (long long)s->m, (long long)s->n, (long long)s->k);
    snprintf(more, sizeof more, "\"large_shape_ms\":%.4f,\"tflops\":%.0f,\"beside\":\"cuBLAS grouped %.0f%s\"", own_ms,
             flop / own_ms * 1e-9, flop / cublas_ms * 1e-9, eight);
    row_begin(c, name);
    c->shapes = 1;
    row_end(c, more);
    void *memory[] = {x, y, w, m, table, scales, d_weight};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        moe_device_free(c->device[GPU], &memory[i]);
    }
    free(r.m);
    free(r.group);
}

/* All groups empty: what the launches alone cost; beta 1, so that nothing is to be stored. */
static void nothing_to_do(struct check *c)
{
    struct problem p = problem_new(c, types[1], 136, 272, 3, 0, 1.0f, false);
    struct racer r = {.pass = pass_of(&p, MOE_LINEAR_WGRAD, GPU)};
    char more[64];
    row_begin(c, "linear, all groups empty");
    snprintf(more, sizeof more, "\"large_shape_ms\":%.4f", time_ms(c, own, &r) / CALLS);
    c->shapes = 1;
    row_end(c, more);
    problem_free(c, &p);
}

static void races(struct check *c)
{
    static const struct race shape[] = {
        {8, 4096, 768, 2048, false},    {16, 2048, 768, 2048, false}, {16, 4096, 7168, 2048, false},
        {16, 4096, 2048, 7168, false},  {16, 8192, 8192, 5120, true}, {128, 16, 2048, 7168, false},
        {128, 65536, 1536, 2048, true},
    };
    if (gemm == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
        for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_WGRAD; kind++) {
            race(c, &shape[i], (enum moe_linear_kind)kind);
        }
    }
    nothing_to_do(c);
}

void check_gemm(struct check *c)
{
    open_library(c);
    for (size_t i = 0; i < (gemm == NULL ? 1 : sizeof backends / sizeof backends[0]); i++) {
        products(c, backends[i].name, backends[i].backend);
    }
    bad_counts(c);
    graphs(c);
    plain(c);
    fp8(c);
    races(c);
    if (gemm != NULL) {
        api.gemm_destroy(&gemm);
    }
}
