/*
 * bench_moe_gemm.c: grouped products of the host back end beside the same products as single BLAS calls: a sub-part of
 * `roll_bench moe`.
 *
 * "Two cores" are two threads on either side: the BLAS splits each product over its own two, we give our two whole
 * parts of the list of products (MOE_HOST_THREADS). What is timed of ours is what a layer waits for: enqueue to the end
 * of the stream. Both sides read and write the same arrays.
 *
 * A machine is rarely idle. A ratio is taken of two runs that follow each other, in an order that alternates, and the
 * median of the ratios is the figure: what else runs hits both. Beside it stands the ratio of processor time with one
 * thread, which other programs change little: what the work itself costs. A product has a share of the minute that the
 * part may take, and as many rounds as fit, at least LEAST_ROUNDS. The fastest round of each side was rejected: it
 * rewards luck.
 */
#include "tests/bench/bench.h"

#include "moe_core/include/moe/device.h"
#include "moe_core/include/moe/dtype.h"
#include "moe_core/include/moe/ops.h"

#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 21, THREADS = 2 };
#define ROUND_SECONDS 1.0 /* for the rounds of one product */
#define SPIN_SECONDS                                                                                                   \
    0.04 /* a BLAS's second thread spins so long after its last product, on a core that the next side needs */
enum pass { FORWARD, DGRAD, WGRAD, PASSES };
enum side { OURS_1, BLAS_1, OURS_2, BLAS_2, SIDES };

static const char *const pass_names[PASSES] = {"forward", "dgrad", "wgrad"};

/* fc1 of an expert: n = 2F, k = H. Rows are drawn from [least, most], each group its own number. */
static const struct shape {
    const char *name;
    int64_t groups, n, k, least, most;
    bool small;
} shapes[] = {
    {"Qwen3-30B", 16, 1536, 2048, 5, 160, false},     {"gpt-oss", 4, 5760, 2880, 5, 96, false},
    {"DeepSeek-V3", 3, 4096, 7168, 5, 112, false},    {"Qwen3-30B", 32, 1536, 2048, 0, 4, true},
    {"gpt-oss", 4, 5760, 2880, 1, 4, true},           {"DeepSeek-V3", 3, 4096, 7168, 1, 4, true},
    {"Qwen3-30B, 1 row", 32, 1536, 2048, 1, 1, true},
};

struct problem {
    const struct shape *shape;
    enum moe_dtype type;
    moe_device_t *device;
    struct moe_linear_group *group;
    int64_t rows, *m;
    float *x, *dy, *y, *dx, *w, *dw, *want;
    uint16_t *narrow_x, *narrow_dy, *narrow_y, *narrow_w;
};

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_for(double s)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(s * 1e9)}, NULL);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), by_value);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static uint64_t next(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* The upper half of a float32 is the bfloat16 that truncation gives. */
static void fill(float *to, uint16_t *narrow, int64_t n, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        to[i] = (float)next(state) / 2147483648.0f - 0.5f;
        if (narrow != NULL) {
            uint32_t bits;
            memcpy(&bits, &to[i], sizeof(bits));
            narrow[i] = (uint16_t)(bits >> 16);
        }
    }
}

static void tear_down(struct problem *p)
{
    void *arrays[] = {&p->m,  &p->group, &p->x,        &p->dy,        &p->y,        &p->dx,      &p->w,
                      &p->dw, &p->want,  &p->narrow_x, &p->narrow_dy, &p->narrow_y, &p->narrow_w};
    if (p->device != NULL) {
        for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++) {
            moe_device_free(p->device, arrays[i]);
        }
        moe_device_destroy(&p->device);
    }
}

static int allocate(struct problem *p)
{
    const struct shape *s = p->shape;
    size_t cells = (size_t)(s->groups * s->n * s->k), in = (size_t)(p->rows * s->k), out = (size_t)(p->rows * s->n);
    size_t wide = in > out ? in : out;
    const struct {
        void *at;
        size_t bytes;
    } table[] = {{&p->x, in * 4},          {&p->dy, out * 4},        {&p->y, wide * 4},        {&p->dx, wide * 4},
                 {&p->w, cells * 4},       {&p->dw, cells * 4},      {&p->want, cells * 4},    {&p->narrow_x, in * 2},
                 {&p->narrow_dy, out * 2}, {&p->narrow_y, wide * 2}, {&p->narrow_w, cells * 2}};
    int rc = 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && rc == 0; i++) {
        void *memory = NULL;
        rc = moe_device_alloc(p->device, table[i].bytes, &memory);
        memcpy(table[i].at, &memory, sizeof(memory));
    }
    return rc;
}

static int set_up(struct problem *p, const struct shape *shape, enum moe_dtype type)
{
    uint64_t state = 11;
    memset(p, 0, sizeof(*p));
    p->shape = shape;
    p->type = type;
    int rc = moe_device_new_host(&p->device);
    rc = rc ? rc : moe_device_alloc(p->device, (size_t)shape->groups * sizeof(*p->m), (void **)&p->m);
    for (int64_t g = 0; rc == 0 && g < shape->groups; g++) {
        p->m[g] = shape->least + (int64_t)(next(&state) % (uint64_t)(shape->most - shape->least + 1));
        p->rows += p->m[g];
    }
    rc = rc ? rc : allocate(p);
    rc = rc ? rc : moe_device_alloc(p->device, (size_t)shape->groups * sizeof(*p->group), (void **)&p->group);
    if (rc == 0) {
        fill(p->x, p->narrow_x, p->rows * shape->k, &state);
        fill(p->dy, p->narrow_dy, p->rows * shape->n, &state);
        fill(p->w, p->narrow_w, shape->groups * shape->n * shape->k, &state);
        for (int64_t g = 0; g < shape->groups; g++) {
            int64_t at = g * shape->n * shape->k;
            const void *w = type == MOE_F32 ? (const void *)(p->w + at) : (const void *)(p->narrow_w + at);
            p->group[g] = (struct moe_linear_group){.weight = w, .d_weight = p->dw + at};
        }
    }
    return rc;
}

static int ours(struct problem *p, enum pass pass)
{
    static const enum moe_linear_kind kinds[PASSES] = {MOE_LINEAR_FORWARD, MOE_LINEAR_DGRAD, MOE_LINEAR_WGRAD};
    bool f32 = p->type == MOE_F32;
    struct moe_linear_pass args = {.kind = kinds[pass],
                                   .groups = p->shape->groups,
                                   .n = p->shape->n,
                                   .k = p->shape->k,
                                   .rows = p->rows,
                                   .m = p->m,
                                   .group = p->group,
                                   .activation = p->type,
                                   .weight = p->type,
                                   .x = f32 ? (void *)p->x : p->narrow_x,
                                   .dy = f32 ? (void *)p->dy : p->narrow_dy,
                                   .out = f32 ? (void *)(pass == FORWARD ? p->y : p->dx) : p->narrow_y};
    int rc = moe_device_ops(p->device)->linear(p->device, &args);
    return rc ? rc : moe_device_sync(p->device);
}

/* The products of one pass, one BLAS call each. */
static void blas(struct problem *p, enum pass pass)
{
    int n = (int)p->shape->n, k = (int)p->shape->k;
    int64_t row = 0;
    for (int64_t g = 0; g < p->shape->groups; row += p->m[g++]) {
        int m = (int)p->m[g];
        const float *x = p->x + row * k, *dy = p->dy + row * n, *w = p->w + g * n * k;
        if (m == 0) {
            continue;
        }
        switch (pass) {
        case FORWARD:
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, x, k, w, k, 0.0f, p->y + row * n, n);
            break;
        case DGRAD:
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1.0f, dy, n, w, k, 0.0f, p->dx + row * k,
                        k);
            break;
        default:
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1.0f, dy, n, x, k, 0.0f, p->dw + g * n * k,
                        k);
        }
    }
}

/* Seconds that one run of one side took, and processor seconds of the whole process in them. */
struct took {
    double wall, cpu;
};

static int run_once(struct problem *p, enum pass pass, enum side side, struct took *took)
{
    int rc = 0, threads = side == OURS_2 || side == BLAS_2 ? THREADS : 1;
    bool theirs = side == BLAS_1 || side == BLAS_2;
    moe_device_host_threads(threads);
    openblas_set_num_threads(theirs ? threads : 1);
    struct took begin = {seconds(CLOCK_MONOTONIC), seconds(CLOCK_PROCESS_CPUTIME_ID)};
    if (theirs) {
        blas(p, pass);
    } else {
        rc = ours(p, pass);
    }
    *took = (struct took){seconds(CLOCK_MONOTONIC) - begin.wall, seconds(CLOCK_PROCESS_CPUTIME_ID) - begin.cpu};
    openblas_set_num_threads(1);
    if (side == BLAS_2) {
        pause_for(SPIN_SECONDS);
    }
    return rc;
}

/* Whether ours gave what the BLAS gives, within float32 rounding of sums this long. */
static bool agrees(struct problem *p, enum pass pass)
{
    const struct shape *s = p->shape;
    float *at = pass == FORWARD ? p->y : pass == DGRAD ? p->dx : p->dw;
    int64_t n = pass == FORWARD ? p->rows * s->n : pass == DGRAD ? p->rows * s->k : s->groups * s->n * s->k;
    int64_t length = pass == FORWARD ? s->k : pass == DGRAD ? s->n : s->most;
    if (ours(p, pass) != 0) {
        return false;
    }
    memcpy(p->want, at, (size_t)n * sizeof(*at));
    blas(p, pass);
    for (int64_t i = 0, row = 0, g = 0; i < n; i++) {
        for (; pass == WGRAD && g < i / (s->n * s->k); g++) {
            row += p->m[g];
        }
        bool written =
            pass != WGRAD || p->m[i / (s->n * s->k)] > 0; /* the loop of BLAS calls leaves empty groups out */
        if (written && fabsf(p->want[i] - at[i]) > 1e-6f * sqrtf((float)length) * 8) {
            return false;
        }
    }
    return true;
}

/* What one product gave: seconds of each side, and the BLAS's over ours of runs that followed each other. */
struct figures {
    double wall[SIDES];
    double two, one, work; /* ratios: two threads, one thread, processor time with one thread */
    int rounds;
};

/* One side after the other, in an order that turns around from round to round. */
static int one_round(struct problem *p, enum pass pass, int round, struct took *took)
{
    int rc = 0;
    for (int i = 0; i < SIDES && rc == 0; i++) {
        enum side side = (enum side)(round % 2 == 0 ? i : SIDES - 1 - i);
        rc = run_once(p, pass, side, &took[side]);
    }
    return rc;
}

static int measure(struct problem *p, enum pass pass, struct figures *f)
{
    double wall[SIDES][MOST_ROUNDS], two[MOST_ROUNDS], one[MOST_ROUNDS], work[MOST_ROUNDS];
    struct took took[SIDES];
    int rc = one_round(p, pass, 0, took), n = 0; /* to warm up */
    double end = seconds(CLOCK_MONOTONIC) + ROUND_SECONDS;
    for (; rc == 0 && n < MOST_ROUNDS && (n < LEAST_ROUNDS || seconds(CLOCK_MONOTONIC) < end); n++) {
        rc = one_round(p, pass, n, took);
        for (int side = 0; side < SIDES; side++) {
            wall[side][n] = took[side].wall;
        }
        two[n] = took[BLAS_2].wall / took[OURS_2].wall;
        one[n] = took[BLAS_1].wall / took[OURS_1].wall;
        work[n] = took[BLAS_1].cpu / took[OURS_1].cpu;
    }
    for (int side = 0; rc == 0 && side < SIDES; side++) {
        f->wall[side] = median(wall[side], n);
    }
    if (rc == 0) {
        f->two = median(two, n);
        f->one = median(one, n);
        f->work = median(work, n);
        f->rounds = n;
    }
    return rc;
}

/* Ratios (struct figures) of the float32 products, [0] ragged and [1] small: the least, and the sum of their
 * logarithms. `n`: how many there are. */
struct totals {
    struct ratio {
        double least, sum;
    } two[2], work[2];
    int n[2];
    double least_work[PASSES]; /* of each pass, small groups included */
};

static void count_in(struct ratio *r, double ratio)
{
    r->least = ratio < r->least ? ratio : r->least;
    r->sum += log(ratio);
}

static int one_shape(json_t *list, FILE *table, const struct shape *shape, enum moe_dtype type, struct totals *totals)
{
    struct problem p;
    int rc = set_up(&p, shape, type);
    for (int pass = 0; pass < PASSES && rc == 0; pass++) {
        char what[96], text[64], other[96];
        struct figures f;
        if (type == MOE_F32 && !agrees(&p, (enum pass)pass)) {
            fprintf(stderr, "roll_bench: moe: %s of %s differs from the BLAS\n", pass_names[pass], shape->name);
            rc = -1;
            break;
        }
        rc = measure(&p, (enum pass)pass, &f);
        if (rc != 0) {
            break;
        }
        double work = 2e-9 * (double)(p.rows * shape->n * shape->k);
        if (type == MOE_F32) {
            count_in(&totals->two[shape->small], f.two);
            count_in(&totals->work[shape->small], f.work);
            totals->n[shape->small]++;
            totals->least_work[pass] = fmin(totals->least_work[pass], f.work);
        }
        snprintf(what, sizeof(what), "%s %s %s: %lld groups, %lld rows, N %lld K %lld", shape->name, pass_names[pass],
                 moe_dtype_name(type), (long long)shape->groups, (long long)p.rows, (long long)shape->n,
                 (long long)shape->k);
        snprintf(text, sizeof(text), "%.1f GFLOP/s, %.2f", work / f.wall[OURS_2], f.two);
        snprintf(other, sizeof(other), "(BLAS %.1f; one core %.1f, %.2f; work %.2f; %d rounds)", work / f.wall[BLAS_2],
                 work / f.wall[OURS_1], f.one, f.work, f.rounds);
        fprintf(table, "  %-72s %22s   %s\n", what, text, other);
        fflush(table);
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, "
                            "s:f, s:i}",
                            "model", shape->name, "pass", pass_names[pass], "type", moe_dtype_name(type), "small",
                            shape->small, "groups", (json_int_t)shape->groups, "rows", (json_int_t)p.rows, "n",
                            (json_int_t)shape->n, "k", (json_int_t)shape->k, "ours", f.wall[OURS_2], "blas",
                            f.wall[BLAS_2], "ours_one_core", f.wall[OURS_1], "blas_one_core", f.wall[BLAS_1], "ratio",
                            f.two, "ratio_one_core", f.one, "ratio_work", f.work, "rounds", f.rounds));
    }
    tear_down(&p);
    return rc;
}

int roll_bench_moe_gemm(json_t *out, FILE *table)
{
    static const char *const names[2] = {"ragged", "small groups (at most 4 rows)"};
    static const char *const goals[2] = {">= 0.95", ">= 1.20"};
    static const char *const keys[2] = {"ragged", "small"};
    struct totals totals = {.two = {{1e9, 0}, {1e9, 0}}, .work = {{1e9, 0}, {1e9, 0}}, .least_work = {1e9, 1e9, 1e9}};
    json_t *list = json_array();
    int rc = 0;
    fprintf(table,
            "  gemm: grouped products of fc1 over the same as single BLAS calls, %d threads each; bfloat16 beside "
            "float32 BLAS\n",
            moe_device_host_threads(0));
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]) && rc == 0; i++) {
        rc = one_shape(list, table, &shapes[i], MOE_F32, &totals);
        if (rc == 0 && shapes[i].groups > 8) { /* one model is enough to see what narrow types do */
            rc = one_shape(list, table, &shapes[i], MOE_BF16, &totals);
        }
    }
    for (int kind = 0; rc == 0 && kind < 2; kind++) {
        char what[96], text[64], goal[96];
        double mean = exp(totals.two[kind].sum / totals.n[kind]), work = exp(totals.work[kind].sum / totals.n[kind]);
        snprintf(what, sizeof(what), "%s, float32: mean and least ratio to BLAS", names[kind]);
        snprintf(text, sizeof(text), "%.2f, %.2f", mean, totals.two[kind].least);
        snprintf(goal, sizeof(goal), "%s (processor time, one core: %.2f, %.2f)", goals[kind], work,
                 totals.work[kind].least);
        roll_bench_line(table, what, text, goal);
        json_object_set_new(out, keys[kind],
                            json_pack("{s:f, s:f, s:f, s:f}", "mean", mean, "least", totals.two[kind].least,
                                      "mean_work", work, "least_work", totals.work[kind].least));
    }
    for (int pass = 0; rc == 0 && pass < PASSES; pass++) {
        char what[96], text[64];
        snprintf(what, sizeof(what), "%s, float32, every shape: least ratio to BLAS", pass_names[pass]);
        snprintf(text, sizeof(text), "%.2f", totals.least_work[pass]);
        roll_bench_line(table, what, text, ">= 0.95 (processor time, one core)");
        json_object_set_new(out, pass_names[pass], json_real(totals.least_work[pass]));
    }
    moe_device_host_threads(1);
    json_object_set_new(out, "shapes", list);
    return rc;
}
