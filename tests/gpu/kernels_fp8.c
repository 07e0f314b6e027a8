/*
 * kernels_fp8.c: rows rounded to FP8, and the products of FP8 by FP8, host against GPU: forward, dgrad and weight
 * gradient, one scale for a group or one for each block, both types of gradients, every position of empty groups; in
 * teams where they have them; replayed with other counts.
 *
 * The host's products are held against double precision by unit.moe_fp8; here it is the kernels that are judged. The
 * rounded rows must be the host's in every bit. Rows differ by binades from block to block, in both directions, so that
 * a scale of another block is a factor of two or more, and not within a tolerance.
 */
#include "tests/gpu/kernels_gemm.h"

#include <math.h>

static const struct gemm_api *api;

/* rows whose blocks differ */

/* Multiplies bfloat16 rows by powers of two that depend on the block, and clears some blocks; NaNs stay. */
static void spread(struct check *c, const struct twin *t, int64_t width)
{
    uint16_t *x = twin_at(t, HOST);
    for (int64_t i = 0; i < t->count; i++) {
        int64_t row = i / width, col = i % width, times = (2 * (col / 128) + row / 128 + col % 3 + row % 2) % 5 - 2;
        int exponent = x[i] >> 7 & 0xff;
        if (exponent == 0xff) {
            continue;
        }
        bool clear = (row % 11 == 3 && col / 128 == 0) || col == 7 || exponent < 8;
        x[i] = clear ? 0 : (uint16_t)(x[i] + times * 128);
    }
    twin_push(c, t);
}

/* rounding */

struct way {
    enum moe_fp8_rows how;
    enum moe_dtype grad;
    bool block_scales;
};

static const struct way ways[] = {{MOE_FP8_BLOCKS, MOE_E4M3, true},
                                  {MOE_FP8_TENSOR, MOE_E5M2, false},
                                  {MOE_FP8_BLOCKS, MOE_E5M2, false},
                                  {MOE_FP8_TENSOR, MOE_E4M3, true}};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* Numbers that are not finite, a largest one, and the smallest ones there are. */
static void put_edges(struct check *c, const struct twin *t, int64_t width)
{
    static const uint16_t edge[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f7f, 0x0001, 0x8001, 0x43e0, 0x43e1};
    uint16_t *x = twin_at(t, HOST);
    for (int64_t i = 0; i < (int64_t)(sizeof(edge) / sizeof(edge[0])) && (5 * i + 1) * width < t->count; i++) {
        x[5 * i * width + 37 * i % width] = edge[i];
    }
    twin_push(c, t);
}

static void quantize_one(struct check *c, struct moe_quantize q, size_t position, bool edges)
{
    struct problem p = problem_new(c, (struct kinds){.activation = q.type, .bias = MOE_F32, .grad = MOE_F32},
                                   (struct wanted){.n = 1, .k = q.width, .position = position, .more_rows = 3});
    int64_t pitch = (p.rows + 127) / 128 * 128 + GROUPS * 128, across = (q.width + 127) / 128;
    struct twin to = twin_new(c, q.down ? q.width * pitch : p.rows * q.width, 1),
                scales = twin_new(c, q.down ? pitch / 128 * q.width : p.rows * across, sizeof(float));
    if (q.type == MOE_BF16) {
        spread(c, &p.x, q.width);
    }
    if (q.type == MOE_BF16 && edges) {
        put_edges(c, &p.x, q.width);
    }
    twin_poison(c, &to);
    twin_poison(c, &scales);
    RUN_BOTH(c, quantize, struct moe_quantize, .how = q.how, .down = q.down, .groups = GROUPS, .rows = p.rows,
             .width = q.width, .m = ON(p.m), .type = q.type, .to_type = q.to_type, .from = ON(p.x), .to = ON(to),
             .scales = ON(scales));
    both_found(c, 0, gemm_positions[position]);
    twin_equal(c, &to, "bytes");
    twin_equal(c, &scales, "scales");
    twin_free(c, &to);
    twin_free(c, &scales);
    problem_free(c, &p);
}

static void quantize(struct check *c)
{
    static const enum moe_dtype types[] = {MOE_BF16, MOE_F32, MOE_F16};
    static const int64_t widths[] = {272, 1, 67, 128, 400};
    row_begin(c, "quantize");
    for (size_t i = 0; i < 8 * WAYS * POSITIONS; i++) {
        size_t type = i % 8 < 6 ? 0 : i % 2 + 1;
        struct moe_quantize q = {.how = ways[i % WAYS].how,
                                 .down = i / WAYS % 2 != 0,
                                 .type = types[type],
                                 .to_type = i % 3 == 0 ? MOE_E4M3 : MOE_E5M2,
                                 .width = widths[i % 5]};
        if (taken(c)) {
            quantize_one(c, q, i / (8 * WAYS), i % 3 != 1);
        }
    }
    row_end(c, "");
}

/* products by the table */

static struct problem fp8_problem(struct check *c, const struct way *w, size_t position, int64_t n, int64_t k)
{
    struct kinds t = {MOE_BF16, MOE_E4M3, MOE_BF16, position % 2 ? MOE_F32 : MOE_BF16, w->block_scales};
    struct problem p = problem_new(c, t,
                                   (struct wanted){.n = n,
                                                   .k = k,
                                                   .position = position,
                                                   .more_rows = (int64_t)(position % 3),
                                                   .beta = position % 2 ? 1.0f : 0.0f,
                                                   .bias_scale = 0.5f,
                                                   .has_bias = position % 2 == 0,
                                                   .has_probs = position % 3 == 0});
    spread(c, &p.x, k);
    spread(c, &p.dy, n);
    return p;
}

static int run_side(struct check *c, const struct problem *p, const struct way *w, enum moe_linear_kind kind, int side)
{
    struct moe_linear_pass pass = pass_of(p, kind, side);
    pass.fp8 = w->how;
    pass.fp8_grad = w->grad;
    return moe_device_ops(c->device[side])->linear(c->device[side], &pass);
}

/* The unit keeps some 14 bits of its FP8 sums, of at most 128 products each: a part of the sums' own size. */
static double tolerance(enum moe_dtype type)
{
    return type == MOE_F32 ? 1e-3 : 8e-3;
}

static void compare(struct check *c, const struct problem *p, enum moe_linear_kind kind, const char *what)
{
    enum moe_dtype type;
    const struct twin *out = output_of(p, kind, &type);
    int64_t depth = kind == MOE_LINEAR_FORWARD ? p->k : kind == MOE_LINEAR_DGRAD ? p->n : p->rows;
    twin_close(c, out, type, tolerance(type), sqrt((double)(depth + 1)), what);
}

/* False where the GPU has no such products. */
static bool try_kind(struct check *c, const struct problem *p, const struct way *w, enum moe_linear_kind kind,
                     const char *what)
{
    int rc = run_side(c, p, w, kind, GPU);
    if (rc == MOE_E_UNSUPPORTED) {
        return false;
    }
    launched(c, rc, "linear, GPU");
    launched(c, run_side(c, p, w, kind, HOST), "linear, host");
    both_found(c, 0, what);
    compare(c, p, kind, what);
    return true;
}

static void products(struct check *c)
{
    static const int64_t shape[][2] = {{144, 272}, {16, 48}, {272, 400}};
    row_begin(c, "linear, FP8 by FP8");
    for (size_t i = 0; i < WAYS * POSITIONS; i++) {
        const int64_t *s = shape[i % 3];
        if (!taken(c)) {
            continue;
        }
        struct problem p = fp8_problem(c, &ways[i % WAYS], i / WAYS, s[0], s[1]);
        bool there = true;
        for (int kind = MOE_LINEAR_FORWARD; there && kind <= MOE_LINEAR_WGRAD; kind++) {
            there = try_kind(c, &p, &ways[i % WAYS], (enum moe_linear_kind)kind, gemm_positions[i / WAYS]);
        }
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* Both operands have a scale for each block: one that is left out, or another block's, is seen. */
void gemm_fp8_product(struct check *c)
{
    static const struct way way = {MOE_FP8_BLOCKS, MOE_E5M2, true};
    struct problem p = fp8_problem(c, &way, 5, 144, 272);
    for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_WGRAD && !c->row_wrong; kind++) {
        try_kind(c, &p, &way, (enum moe_linear_kind)kind, gemm_positions[5]);
    }
    problem_free(c, &p);
}

/* a graph of all three, replayed with counts that it was not captured with */

static cudaGraphExec_t capture(struct check *c, const struct problem *p, const struct way *w, int side)
{
    cudaStream_t stream = moe_device_stream(c->device[side]);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    int rc = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    for (int kind = MOE_LINEAR_FORWARD; rc == 0 && kind <= MOE_LINEAR_WGRAD; kind++) {
        rc = run_side(c, p, w, (enum moe_linear_kind)kind, side);
    }
    rc = rc ? rc : (int)cudaStreamEndCapture(stream, &graph);
    rc = rc ? rc : (int)cudaGraphInstantiate(&exec, graph, 0);
    launched(c, rc, "capture");
    cudaGraphDestroy(graph);
    return exec;
}

static void graphs(struct check *c)
{
    row_begin(c, "linear, FP8 by FP8, graph");
    for (size_t w = 0; w < 2; w++) {
        struct problem p = fp8_problem(c, &ways[w], 6, 144, 272); /* 800 rows: room for each position */
        cudaGraphExec_t exec[SIDES] = {NULL, NULL};
        bool there = run_side(c, &p, &ways[w], MOE_LINEAR_FORWARD, GPU) == 0;
        for (int side = 0; there && side < SIDES; side++) {
            exec[side] = capture(c, &p, &ways[w], side);
        }
        for (size_t i = 0; there && i < POSITIONS; i++) {
            if (!taken(c)) {
                continue;
            }
            problem_counts(c, &p, i);
            twin_poison(c, &p.y);
            twin_poison(c, &p.dx);
            twin_poison(c, &p.d_weight);
            for (int side = 0; side < SIDES; side++) {
                launched(c, (int)cudaGraphLaunch(exec[side], moe_device_stream(c->device[side])), "replay");
            }
            both_found(c, 0, gemm_positions[i]);
            compare(c, &p, MOE_LINEAR_FORWARD, "y");
            compare(c, &p, MOE_LINEAR_DGRAD, "dx");
            compare(c, &p, MOE_LINEAR_WGRAD, "d_weight");
        }
        for (int side = 0; there && side < SIDES; side++) {
            cudaGraphExecDestroy(exec[side]);
        }
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* counts that cannot be right: nothing is touched, the error is found */

static void bad_counts(struct check *c)
{
    static const struct {
        int64_t group, count;
        int error;
    } bad[] = {{0, -1, MOE_E_COUNT}, {2, 100000, MOE_E_SPLIT}, {3, INT64_MAX, MOE_E_SPLIT}};
    row_begin(c, "linear, FP8 by FP8, bad counts");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (!taken(c)) {
            continue;
        }
        struct problem p = fp8_problem(c, &ways[i % WAYS], 4, 144, 272);
        ((int64_t *)twin_at(&p.m, HOST))[bad[i].group] = bad[i].count;
        twin_push(c, &p.m);
        bool there = run_side(c, &p, &ways[i % WAYS], MOE_LINEAR_FORWARD, GPU) != MOE_E_UNSUPPORTED;
        for (int kind = MOE_LINEAR_FORWARD; there && kind <= MOE_LINEAR_WGRAD; kind++) {
            run_side(c, &p, &ways[i % WAYS], (enum moe_linear_kind)kind, GPU);
            run_side(c, &p, &ways[i % WAYS], (enum moe_linear_kind)kind, HOST);
            both_found(c, bad[i].error, "bad count");
            twin_equal(c, output_of(&p, (enum moe_linear_kind)kind, NULL), "untouched");
        }
        problem_free(c, &p);
    }
    row_end(c, "");
}

/* by name: rows that are FP8 already, with scales that are no powers of two; teams */

static struct twin turned(struct check *c, const struct problem *p)
{
    struct twin t = twin_new(c, GROUPS * p->n * p->k, 1);
    const uint8_t *from = twin_at(&p->weight, HOST);
    uint8_t *to = twin_at(&t, HOST);
    for (int64_t i = 0; i < t.count; i++) {
        int64_t g = i / (p->n * p->k), k = i / p->n % p->k, n = i % p->n;
        to[i] = from[(g * p->n + n) * p->k + k];
    }
    twin_push(c, &t);
    return t;
}

/* FP8 numbers, widened and scaled, where the host's product reads them. */
static void scaled_rows(struct check *c, const struct twin *from, enum moe_dtype type, const struct twin *scales,
                        int64_t width, const struct twin *wide)
{
    struct moe_cast widen = {.count = from->count,
                             .from_type = type,
                             .to_type = MOE_F32,
                             .from = twin_at(from, HOST),
                             .to = twin_at(wide, HOST)};
    launched(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &widen), "cast");
    both_found(c, 0, "cast");
    float *x = twin_at(wide, HOST);
    const float *scale = twin_at(scales, HOST);
    for (int64_t i = 0; i < from->count; i++) {
        x[i] *= scale[i / width * ((width + 127) / 128) + i % width / 128];
    }
}

static void by_name_one(struct check *c, const struct problem *p, enum moe_linear_kind kind, enum moe_dtype type,
                        enum moe_kernel_backend backend, const char *what)
{
    bool forward = kind == MOE_LINEAR_FORWARD;
    int64_t width = forward ? p->k : p->n;
    struct twin in = twin_random(c, p->rows * width, type, 1), weights = turned(c, p),
                out = twin_new(c, p->rows * (forward ? p->n : p->k), 2),
                scales = scales_new(c, p->rows * ((width + 127) / 128));
    const struct twin *exact = forward ? &p->y : &p->dx;
    scaled_rows(c, &in, type, &scales, width, forward ? &p->x : &p->dy);
    twin_poison(c, &out);
    struct moe_linear_pass host = pass_of(p, kind, HOST);
    struct moe_kernel_fp8 args = {.kind = kind,
                                  .groups = GROUPS,
                                  .n = p->n,
                                  .k = p->k,
                                  .rows = p->rows,
                                  .m = twin_at(&p->m, GPU),
                                  .group = twin_at(&p->table, GPU),
                                  .in_type = type,
                                  .in = twin_at(&in, GPU),
                                  .other = forward ? NULL : twin_at(&weights, GPU),
                                  .in_scales = twin_at(&scales, GPU),
                                  .out = twin_at(&out, GPU),
                                  .block_scales = p->t.block_scales,
                                  .backend = backend};
    int rc = api->fp8(api->gemm, &args, NULL, moe_device_stream(c->device[GPU]));
    if (rc != MOE_E_UNSUPPORTED) {
        launched(c, rc, "gemm_fp8");
        launched(c, moe_device_ops(c->device[HOST])->linear(c->device[HOST], &host), "linear, host");
        both_found(c, 0, what);
        struct moe_cast narrow = {.count = out.count,
                                  .from_type = MOE_F32,
                                  .to_type = MOE_BF16,
                                  .from = twin_at(exact, HOST),
                                  .to = twin_at(&out, HOST)};
        launched(c, moe_device_ops(c->device[HOST])->cast(c->device[HOST], &narrow), "cast");
        both_found(c, 0, "cast");
        twin_close(c, &out, MOE_BF16, tolerance(MOE_BF16), sqrt((double)width), what);
    }
    twin_free(c, &in);
    twin_free(c, &weights);
    twin_free(c, &out);
    twin_free(c, &scales);
}

static void by_name(struct check *c, const char *name, enum moe_kernel_backend backend)
{
    row_begin(c, name);
    for (size_t i = 0; i < 4 * POSITIONS; i++) {
        if (!taken(c)) {
            continue;
        }
        struct kinds t = {MOE_F32, MOE_E4M3, MOE_F32, MOE_F32, i % 3 != 0};
        struct problem p =
            problem_new(c, t, (struct wanted){.n = 144, .k = 272 + 16 * (int64_t)(i % 7), .position = i / 4});
        by_name_one(c, &p, i % 2 ? MOE_LINEAR_DGRAD : MOE_LINEAR_FORWARD, i / 2 % 2 ? MOE_E5M2 : MOE_E4M3, backend,
                    gemm_positions[i / 4]);
        problem_free(c, &p);
    }
    row_end(c, "");
}

void gemm_fp8(struct check *c, const struct gemm_api *with)
{
    api = with;
    quantize(c);
    products(c);
    graphs(c);
    bad_counts(c);
    if (api->gemm != NULL) {
        by_name(c, "gemm_fp8", MOE_KERNEL_AUTO);
        by_name(c, "gemm_fp8, pairs", MOE_KERNEL_OWN_WGMMA_PAIRS);
        by_name(c, "gemm_fp8, fours", MOE_KERNEL_OWN_WGMMA_FOURS);
    }
}
