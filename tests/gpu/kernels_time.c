/*
 * kernels_time.c: how long work on the GPU's stream takes, and what a plain copy reaches on the same machine in the
 * same run.
 */
#include "tests/gpu/kernels.h"

enum { TIMES = 11 };

static double one_ms(struct check *c, void (*work)(struct check *c, const void *args), const void *args)
{
    cudaStream_t stream = moe_device_stream(c->device[GPU]);
    cudaEvent_t begin, end;
    float ms = 0;
    if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) {
        fprintf(stderr, "gpu check: no events\n");
        exit(9);
    }
    cudaEventRecord(begin, stream);
    work(c, args);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return (double)ms;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double time_ms(struct check *c, void (*work)(struct check *c, const void *args), const void *args)
{
    double ms[TIMES];
    if (c->sample) {
        return 0;
    }
    one_ms(c, work, args);
    for (int i = 0; i < TIMES; i++) {
        ms[i] = one_ms(c, work, args);
    }
    qsort(ms, TIMES, sizeof(ms[0]), ascending);
    return ms[TIMES / 2];
}

struct copy {
    void *to, *from;
    size_t bytes;
};

static void copy_once(struct check *c, const void *args)
{
    const struct copy *copy = args;
    launched(c, moe_device_copy(c->device[GPU], copy->to, copy->from, copy->bytes), "copy");
}

double copy_rate(struct check *c, size_t bytes)
{
    struct copy copy = {.bytes = bytes};
    double rate = 0;
    if (moe_device_alloc(c->device[GPU], bytes, &copy.to) == 0 &&
        moe_device_alloc(c->device[GPU], bytes, &copy.from) == 0) {
        rate = 2.0 * (double)bytes / (time_ms(c, copy_once, &copy) * 1e-3);
    }
    moe_device_free(c->device[GPU], &copy.to);
    moe_device_free(c->device[GPU], &copy.from);
    return rate;
}
