/*
 * kernels_gemm_race.c: the speed of the grouped products, beside cublasGemmGroupedBatchedEx in the same run.
 */
#include "tests/gpu/kernels_gemm.h"

static const struct gemm_api *api;

struct race {
    int64_t groups, m, n, k;
    bool ragged; /* m is the rows of all */
};

struct racer {
    struct moe_linear_pass pass;
    int64_t *m; /* host */
    struct moe_linear_group *group;
    struct moe_kernel_fp8 fp8;
    enum moe_kernel_backend backend;
};

/* Several calls at a time: the device never waits for the host, on either side. */
enum { CALLS = 8 };

static void own(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api->linear(api->gemm, r->backend, &r->pass, NULL, moe_device_stream(c->device[GPU])), "own");
    }
}

static void own_fp8(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api->fp8(api->gemm, &r->fp8, NULL, moe_device_stream(c->device[GPU])), "own, FP8");
    }
}

static void cublas(struct check *c, const void *args)
{
    const struct racer *r = args;
    for (int i = 0; i < CALLS; i++) {
        launched(c, api->linear_host(api->gemm, &r->pass, r->m, r->group, moe_device_stream(c->device[GPU])), "cublas");
    }
}

/* TFLOP/s of our own product when clusters of two and of four blocks share copies; nothing where there are none. */
static void teams(struct check *c, struct racer *r, double flop, char *to, size_t size)
{
    static const struct {
        enum moe_kernel_backend backend;
        const char *name;
    } way[] = {{MOE_KERNEL_OWN_WGMMA_PAIRS, "pairs"}, {MOE_KERNEL_OWN_WGMMA_FOURS, "fours"}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++) {
        r->backend = way[i].backend;
        if (api->linear(api->gemm, r->backend, &r->pass, NULL, moe_device_stream(c->device[GPU])) ==
            MOE_E_UNSUPPORTED) {
            continue;
        }
        at += (size_t)snprintf(to + at, size - at, ", own in %s %.0f", way[i].name,
                               CALLS * flop / time_ms(c, own, r) * 1e-9);
    }
    r->backend = MOE_KERNEL_AUTO;
}

/* Device memory full of random bfloat16 numbers in [-1, 1) (or bytes that are small FP8 numbers, too): what the numbers
 * are decides the power. */
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
    struct racer r = {.m = calloc((size_t)s->groups, sizeof(*r.m)),
                      .group = calloc((size_t)s->groups, sizeof(*r.group))};
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
    size_t m_bytes = (size_t)s->groups * sizeof(*r.m), table_bytes = (size_t)s->groups * sizeof(*r.group);
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
    r.fp8 = (struct moe_kernel_fp8){.kind = MOE_LINEAR_FORWARD,
                                    .groups = s->groups,
                                    .n = s->n,
                                    .k = s->k,
                                    .rows = rows,
                                    .m = m,
                                    .group = table,
                                    .in_type = MOE_E4M3,
                                    .in = x,
                                    .in_scales = scales,
                                    .out = y,
                                    .block_scales = true};
    double flop = 2.0 * (double)rows * (double)s->n * (double)s->k, own_ms = time_ms(c, own, &r) / CALLS,
           cublas_ms = time_ms(c, cublas, &r) / CALLS;
    char name[96], more[320], eight[96] = "", shared[80] = "";
    teams(c, &r, flop, shared, sizeof(shared));
    if (kind == MOE_LINEAR_FORWARD) {
        double alone = CALLS * flop / time_ms(c, own_fp8, &r) * 1e-9;
        r.fp8.backend = MOE_KERNEL_OWN_WGMMA_FOURS;
        bool fours = api->fp8(api->gemm, &r.fp8, NULL, moe_device_stream(c->device[GPU])) == 0;
        snprintf(eight, sizeof(eight), ", own FP8 by FP8 %.0f, in fours %.0f", alone,
                 fours ? CALLS * flop / time_ms(c, own_fp8, &r) * 1e-9 : 0.0);
    }
    snprintf(name, sizeof(name), "%s bf16 %lldx%s%lldx%lldx%lld", kinds[kind], (long long)s->groups,
             s->ragged ? "ragged " : "", (long long)s->m, (long long)s->n, (long long)s->k);
    snprintf(more, sizeof(more), "\"large_shape_ms\":%.4f,\"tflops\":%.0f,\"beside\":\"cuBLAS grouped %.0f%s%s\"",
             own_ms, flop / own_ms * 1e-9, flop / cublas_ms * 1e-9, shared, eight);
    row_begin(c, name);
    c->shapes = 1;
    row_end(c, more);
    void *memory[] = {x, y, w, m, table, scales, d_weight};
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        moe_device_free(c->device[GPU], &memory[i]);
    }
    free(r.m);
    free(r.group);
}

/* All groups empty: what the launches alone cost; beta 1, so that nothing is to be stored. */
static void nothing_to_do(struct check *c)
{
    static const struct kinds t = {MOE_BF16, MOE_BF16, MOE_BF16, MOE_F32, false};
    struct problem p = problem_new(c, t, (struct wanted){.n = 136, .k = 272, .position = 3, .beta = 1.0f});
    struct racer r = {.pass = pass_of(&p, MOE_LINEAR_WGRAD, GPU)};
    char more[64];
    row_begin(c, "linear, all groups empty");
    snprintf(more, sizeof(more), "\"large_shape_ms\":%.4f", time_ms(c, own, &r) / CALLS);
    c->shapes = 1;
    row_end(c, more);
    problem_free(c, &p);
}

void gemm_races(struct check *c, const struct gemm_api *found)
{
    static const struct race shape[] = {
        {8, 4096, 768, 2048, false},    {16, 2048, 768, 2048, false}, {16, 4096, 7168, 2048, false},
        {16, 4096, 2048, 7168, false},  {16, 8192, 8192, 5120, true}, {128, 16, 2048, 7168, false},
        {128, 65536, 1536, 2048, true},
    };
    api = found;
    if (api->gemm == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof(shape) / sizeof(shape[0]); i++) {
        for (int kind = MOE_LINEAR_FORWARD; kind <= MOE_LINEAR_WGRAD; kind++) {
            race(c, &shape[i], (enum moe_linear_kind)kind);
        }
    }
    nothing_to_do(c);
}
