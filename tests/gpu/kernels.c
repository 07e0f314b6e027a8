/*
 * kernels.c: each kernel of kernels/ on the device against its twin on the host, over shapes that include nothing, one and odd ones.
 *
 * Outputs are poisoned on both sides first: what a kernel must not touch has to stay poison, and what it must write cannot be right by
 * luck. One line of JSON for each kernel: shapes tried, the largest error in units of the tolerance, and milliseconds of a large shape.
 */
#include "kernels/kernels.h"
#include "kernels/ref.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* expf, one division and three products in single precision against double: a few units in the last place of float. */
#define TOLERANCE 2e-6
#define POISON    0x7fc12345u /* a NaN that no arithmetic makes */

static uint64_t random_state = 1;

static void cuda(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "gpu check: %s: %s\n", what, cudaGetErrorString(error));
        exit(9);
    }
}
#define CUDA(call) cuda((call), #call)

static uint64_t next_random(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

/* An array on both sides. */
struct pair {
    size_t bytes;
    void *host, *device;
};

static struct pair pair_new(int64_t n, size_t size)
{
    struct pair p = {.bytes = (size_t)(n > 0 ? n : 1) * size};
    p.host = malloc(p.bytes);
    if (!p.host) {
        perror("gpu check");
        exit(9);
    }
    CUDA(cudaMalloc(&p.device, p.bytes));
    return p;
}

static void pair_free(struct pair *p)
{
    free(p->host);
    CUDA(cudaFree(p->device));
}

static void push(const struct pair *p)
{
    CUDA(cudaMemcpy(p->device, p->host, p->bytes, cudaMemcpyHostToDevice));
}

static struct pair floats(int64_t n, float range)
{
    struct pair p = pair_new(n, sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        ((float *)p.host)[i] = ((float)(next_random() % 20001) / 10000.0f - 1.0f) * range;
    }
    push(&p);
    return p;
}

static struct pair poisoned(int64_t n)
{
    struct pair p = pair_new(n, sizeof(float));
    for (size_t i = 0; i < p.bytes / sizeof(uint32_t); i++) {
        ((uint32_t *)p.host)[i] = POISON;
    }
    push(&p);
    return p;
}

/* The largest error of the device's side against the host's, in units of the tolerance; poison must meet poison. */
static double compare(const struct pair *p, const char *kernel)
{
    float *got = malloc(p->bytes), *want = p->host;
    double worst = 0;
    if (!got) {
        perror("gpu check");
        exit(9);
    }
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(got, p->device, p->bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < p->bytes / sizeof *got; i++) {
        double scale = fmax(1, fabs((double)want[i])),
               error = fabs((double)got[i] - (double)want[i]) / scale / TOLERANCE;
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 && !(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
        }
    }
    if (!(worst <= 1)) {
        fprintf(stderr, "gpu check: %s: error of %g tolerances\n", kernel, worst);
    }
    free(got);
    return worst;
}

struct result {
    int shapes;
    double worst;
    float ms;
};

static void launched(int rc, const char *kernel)
{
    if (rc != 0) {
        fprintf(stderr, "gpu check: %s: refused with %d\n", kernel, rc);
        exit(9);
    }
}

static void note(struct result *r, double error)
{
    r->shapes++;
    r->worst = fmax(r->worst, error);
}

static cudaEvent_t event_at(cudaStream_t stream)
{
    cudaEvent_t event;
    CUDA(cudaEventCreate(&event));
    CUDA(cudaEventRecord(event, stream));
    return event;
}

static float elapsed(cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0;
    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms, from, to));
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
    return ms;
}

static void zero_empty(struct result *r, cudaStream_t stream)
{
    static const int64_t shape[][2] = {{0, 8}, {1, 1}, {1, 7}, {5, 4}, {64, 129}, {257, 1024}, {64, 65536}};
    for (size_t s = 0; s < sizeof shape / sizeof shape[0]; s++) {
        int64_t groups = shape[s][0], elements = shape[s][1];
        struct pair out = poisoned(groups * elements), m = pair_new(groups, sizeof(int64_t));
        memset(m.host, 0, m.bytes);
        for (int64_t g = 0; g < groups; g++) {
            ((int64_t *)m.host)[g] = (int64_t)(next_random() % 3);
        }
        push(&m);
        cudaEvent_t begin = event_at(stream);
        launched(moe_kernel_zero_empty(out.device, m.device, groups, elements, stream), "zero_empty");
        r->ms = elapsed(begin, event_at(stream));
        moe_kernel_ref_zero_empty(out.host, m.host, groups, elements);
        note(r, compare(&out, "zero_empty"));
        pair_free(&out);
        pair_free(&m);
    }
}

/* A row map as moe_core makes it (moe/permute.h): for each token its rows, descending, their experts, how many; two experts a token. */
static struct pair row_map(int64_t tokens, int64_t experts, int64_t *rows, int padding)
{
    int64_t stride = 2 * experts + 1, each = experts < 2 ? 1 : 2;
    struct pair map = pair_new(tokens * stride, sizeof(int32_t));
    int32_t *line = map.host;
    memset(map.host, 0xff, map.bytes);
    for (int64_t t = 0; t < tokens; t++, line += stride) {
        for (int64_t i = 0; i < each; i++) {
            line[i] = (int32_t)((each - 1 - i) * (tokens + padding) + (tokens - 1 - t));
            line[experts + i] = (int32_t)(each - 1 - i);
        }
        line[2 * experts] = (int32_t)each;
    }
    *rows = each * (tokens + padding);
    push(&map);
    return map;
}

static void map_gather(struct result *r, cudaStream_t stream)
{
    static const int64_t shape[][4] = {/* tokens, experts, width, padding */
                                       {1, 1, 4, 0},   {5, 4, 8, 0},     {5, 4, 8, 3},
                                       {63, 8, 12, 1}, {513, 64, 96, 2}, {8192, 8, 2048, 0}};
    for (size_t s = 0; s < sizeof shape / sizeof shape[0]; s++) {
        int64_t tokens = shape[s][0], experts = shape[s][1], width = shape[s][2], rows = 0;
        int padding = (int)shape[s][3];
        struct pair map = row_map(tokens, experts, &rows, padding), from = floats(tokens * width, 4),
                    to = poisoned(rows * width);
        cudaEvent_t begin = event_at(stream);
        launched(moe_kernel_map_gather(from.device, map.device, tokens, experts, rows, width, padding > 0, to.device,
                                       stream),
                 "map_gather");
        r->ms = elapsed(begin, event_at(stream));
        moe_kernel_ref_map_gather(from.host, map.host, tokens, experts, rows, width, padding > 0, to.host);
        note(r, compare(&to, "map_gather"));
        pair_free(&map);
        pair_free(&from);
        pair_free(&to);
    }
}

static const int64_t swiglu_shape[][2] = {{0, 4}, {1, 4}, {3, 8}, {7, 100}, {255, 516}, {4096, 4096}};
#define SWIGLU_SHAPES (sizeof swiglu_shape / sizeof swiglu_shape[0])

static void swiglu(struct result *r, cudaStream_t stream)
{
    for (size_t s = 0; s < SWIGLU_SHAPES; s++) {
        int64_t rows = swiglu_shape[s][0], width = swiglu_shape[s][1];
        struct pair h = floats(rows * 2 * width, 8), act = poisoned(rows * width);
        cudaEvent_t begin = event_at(stream);
        launched(moe_kernel_swiglu(h.device, rows, width, act.device, stream), "swiglu");
        r->ms = elapsed(begin, event_at(stream));
        moe_kernel_ref_swiglu(h.host, rows, width, act.host);
        note(r, compare(&act, "swiglu"));
        pair_free(&h);
        pair_free(&act);
    }
}

static void swiglu_backward(struct result *r, cudaStream_t stream)
{
    for (size_t s = 0; s < SWIGLU_SHAPES; s++) {
        int64_t rows = swiglu_shape[s][0], width = swiglu_shape[s][1];
        struct pair h = floats(rows * 2 * width, 8), d_act = floats(rows * width, 1), d_h = poisoned(rows * 2 * width);
        cudaEvent_t begin = event_at(stream);
        launched(moe_kernel_swiglu_backward(h.device, d_act.device, rows, width, d_h.device, stream),
                 "swiglu_backward");
        r->ms = elapsed(begin, event_at(stream));
        moe_kernel_ref_swiglu_backward(h.host, d_act.host, rows, width, d_h.host);
        note(r, compare(&d_h, "swiglu_backward"));
        pair_free(&h);
        pair_free(&d_act);
        pair_free(&d_h);
    }
}

static const struct {
    const char *name;
    void (*check)(struct result *r, cudaStream_t stream);
} kernels[] = {
    {"zero_empty", zero_empty},
    {"map_gather", map_gather},
    {"swiglu", swiglu},
    {"swiglu_backward", swiglu_backward},
};

int main(void)
{
    bool all_right = true;
    cudaStream_t stream;
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        struct result r = {0};
        kernels[k].check(&r, stream);
        all_right = all_right && r.worst <= 1;
        printf("{\"kernel\":\"%s\",\"shapes\":%d,\"worst_in_tolerances\":%.4g,\"right\":%s,\"large_shape_ms\":%.4f}\n",
               kernels[k].name, r.shapes, isinf(r.worst) ? 1e30 : r.worst, r.worst <= 1 ? "true" : "false",
               (double)r.ms);
        fflush(stdout);
    }
    CUDA(cudaStreamDestroy(stream));
    return all_right ? 0 : 1;
}
