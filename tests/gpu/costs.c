/*
 * costs.c: what single calls cost the host on this machine: NCCL's enqueue, and the ways of learning that the device is
 * done.
 *
 * Each figure is the time that the calling thread spends in one call, p50 and p99 over many, on a stream that is
 * drained now and then so that its queue never fills (a full queue would measure the device). gpu-check runs this bare
 * and under the preload, several times in turn: the difference of the NCCL rows is rollcall's cost. Rank 0 prints one
 * JSON object; a missing function gives null instead of a figure. Ranks that share a GPU take turns on it, so a
 * collective may last anything from microseconds to a tenth of a second: the slowest rank's time for one collective
 * decides how many are made, and all ranks make the same number.
 */
#include "tests/gpu/meet.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CALLS = 4096, DRAIN = 64, ELEMENTS = 1024, PAIRS = 8, WARM = 16, ROW_SECONDS = 6 };

static uint64_t ns[CALLS];

static uint64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* what is measured */

struct cost {
    struct gpu_rank rank;
    float *send, *recv;
    cudaEvent_t event, done;
    uint64_t *word; /* mapped: the device writes into it */
    void *word_device;
    int (*stream_write)(void *stream, uint64_t address, uint64_t value, unsigned flags);
};

static void host_function(void *data)
{
    (void)data;
}

static void all_reduce(struct cost *c)
{
    NCCL(ncclAllReduce(c->send, c->recv, ELEMENTS, ncclFloat32, ncclSum, c->rank.comm, c->rank.stream));
}

static void group_of_pairs(struct cost *c)
{
    int next = (c->rank.rank + 1) % c->rank.size, prev = (c->rank.rank + c->rank.size - 1) % c->rank.size;
    NCCL(ncclGroupStart());
    for (int i = 0; i < PAIRS; i++) {
        NCCL(ncclSend(c->send, 16, ncclFloat32, next, c->rank.comm, c->rank.stream));
        NCCL(ncclRecv(c->recv, 16, ncclFloat32, prev, c->rank.comm, c->rank.stream));
    }
    NCCL(ncclGroupEnd());
}

static void event_record(struct cost *c)
{
    CUDA(cudaEventRecord(c->event, c->rank.stream));
}

static void event_query(struct cost *c)
{
    CUDA(cudaEventQuery(c->done));
}

static void host_func(struct cost *c)
{
    CUDA(cudaLaunchHostFunc(c->rank.stream, host_function, NULL));
}

static void stream_write(struct cost *c)
{
    if (c->stream_write((void *)c->rank.stream, (uint64_t)(uintptr_t)c->word_device, 1, 0) != 0) {
        fprintf(stderr, "gpu check: cuStreamWriteValue64 refused\n");
        exit(9);
    }
}

static bool always(const struct cost *c)
{
    (void)c;
    return true;
}

static bool has_stream_write(const struct cost *c)
{
    return c->stream_write != NULL;
}

static const struct {
    const char *name;
    void (*call)(struct cost *c);
    bool (*there)(const struct cost *c);
    int calls;
    bool collective; /* the device time depends on the peers */
} rows[] = {
    {"nccl_all_reduce_enqueue", all_reduce, always, 1024, true},
    {"nccl_group_of_16_enqueue", group_of_pairs, always, 256, true},
    {"event_record", event_record, always, CALLS, false},
    {"event_query", event_query, always, CALLS, false},
    {"stream_write_64", stream_write, has_stream_write, CALLS, false},
    {"host_function", host_func, always, 1024, false},
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

/* measuring */

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void prepare(struct cost *c)
{
    void *driver = gpu_driver();
    gpu_meet(&c->rank);
    size_t bytes = ELEMENTS * sizeof(float);
    CUDA(cudaMalloc((void **)&c->send, bytes));
    CUDA(cudaMalloc((void **)&c->recv, bytes));
    CUDA(cudaMemset(c->send, 0, bytes));
    CUDA(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming));
    CUDA(cudaEventCreateWithFlags(&c->done, cudaEventDisableTiming));
    CUDA(cudaEventRecord(c->done, c->rank.stream));
    CUDA(cudaStreamSynchronize(c->rank.stream));
    CUDA(cudaHostAlloc((void **)&c->word, sizeof(*c->word), cudaHostAllocMapped));
    CUDA(cudaHostGetDevicePointer(&c->word_device, c->word, 0));
    void *symbol = driver ? dlsym(driver, "cuStreamWriteValue64_v2") : NULL;
    *(void **)&c->stream_write = symbol;
}

/* The seconds of one collective with its group of messages on the slowest rank: the same figure on all ranks. */
static float seconds_of_one(struct cost *c)
{
    for (int i = 0; i < WARM; i++) { /* connections, modules, caches */
        all_reduce(c);
        group_of_pairs(c);
    }
    CUDA(cudaStreamSynchronize(c->rank.stream));
    uint64_t begin = now();
    for (int i = 0; i < WARM; i++) {
        all_reduce(c);
        group_of_pairs(c);
    }
    CUDA(cudaStreamSynchronize(c->rank.stream));
    float seconds = (float)(now() - begin) / 1e9f / WARM;
    CUDA(cudaMemcpy(c->send, &seconds, sizeof(seconds), cudaMemcpyHostToDevice));
    CUDA(cudaDeviceSynchronize()); /* the copy is not ordered with a stream that does not wait */
    NCCL(ncclAllReduce(c->send, c->recv, 1, ncclFloat32, ncclMax, c->rank.comm, c->rank.stream));
    CUDA(cudaStreamSynchronize(c->rank.stream));
    CUDA(cudaMemcpy(&seconds, c->recv, sizeof(seconds), cudaMemcpyDeviceToHost));
    return seconds;
}

/* How many calls of a row fit into ROW_SECONDS; at least DRAIN, because a p99 of fewer calls is nearly the maximum. */
static int affordable(size_t row, float seconds)
{
    float fit = seconds > 0 ? (float)ROW_SECONDS / seconds : (float)CALLS;
    int most = rows[row].calls;
    if (!rows[row].collective || fit >= (float)most) {
        return most;
    }
    return fit > (float)DRAIN ? (int)fit : DRAIN;
}

static void measure(struct cost *c, size_t row, int calls)
{
    for (int i = 0; i < calls; i++) {
        if (i % DRAIN == 0) {
            CUDA(cudaStreamSynchronize(c->rank.stream));
        }
        uint64_t begin = now();
        rows[row].call(c);
        ns[i] = now() - begin;
    }
    CUDA(cudaStreamSynchronize(c->rank.stream));
    qsort(ns, (size_t)calls, sizeof(*ns), by_size);
}

int main(void)
{
    struct cost c = {.send = NULL};
    prepare(&c);
    float seconds = seconds_of_one(&c);
    if (c.rank.rank == 0) {
        printf("{");
    }
    for (size_t r = 0; r < ROWS; r++) {
        bool there = rows[r].there(&c);
        int n = affordable(r, seconds);
        if (there) {
            measure(&c, r, n);
        }
        if (c.rank.rank != 0) {
            continue;
        }
        printf("%s\"%s\":", r ? "," : "", rows[r].name);
        if (there) {
            printf("{\"calls\":%d,\"p50_ns\":%llu,\"p99_ns\":%llu}", n, (unsigned long long)ns[n / 2],
                   (unsigned long long)ns[n * 99 / 100]);
        } else {
            printf("null");
        }
    }
    if (c.rank.rank == 0) {
        printf("}\n");
    }
    NCCL(ncclCommDestroy(c.rank.comm));
    return 0;
}
