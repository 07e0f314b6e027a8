/*
 * bench_rank.c: the rank that roll_bench measures: `roll_bench_rank [lttng]`, preloaded with librollcall.so or
 * librollcall_nop.so. Prints its figures as one line of JSON.
 *
 * Three things are timed in turn, in one process, in short batches, so that a change of clock rate or a noisy neighbour
 * hits all alike: the bare call (pncclAllReduce, which no preload stands before), the preloaded call (ncclAllReduce),
 * and, when asked, the bare call and an LTTng-UST tracepoint; then a group of sends and receives, and compute calls
 * seen from outside, bare and preloaded; then ranges of NVTX, with a tool and without. The call is made eight frames
 * deep: the walk is as long as it gets. The tracepoint's record is filled beforehand, so its figure includes neither
 * clock, call site nor lookup.
 */
#include "interposer/wrap/nccl_types.h"
#include "tests/interposer/bench_products.h"
#include "tests/interposer/nvtx.h"
#include "trace/record.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#ifdef ROLL_HAVE_LTTNG
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "tests/interposer/bench_tp.h"
#endif

#define BATCHES 2000
#define BATCH   500
#define SINGLES 200000
#define DEPTH   8
#define GROUPS  4000
#define PEERS   64

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t stream);

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);
#define MESSAGE(name)                                                                                                  \
    ncclResult_t name(const void *buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,                \
                      cudaStream_t stream)
MESSAGE(ncclSend);
MESSAGE(ncclRecv);
MESSAGE(pncclSend);
MESSAGE(pncclRecv);

enum variant { BARE, PRELOADED, TRACEPOINT, VARIANTS };

static ncclComm_t comm;
static float data[2];
static double per_call[VARIANTS][BATCHES];
static uint32_t singles[VARIANTS][SINGLES];

static inline uint64_t ticks(void)
{
#if defined(__x86_64__)
    _mm_lfence();
    uint64_t now = __rdtsc();
    _mm_lfence();
    return now;
#else
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
#endif
}

static double now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static inline void trace_one(const struct roll_record *rec)
{
#ifdef ROLL_HAVE_LTTNG
    lttng_ust_tracepoint(rollcall_bench, call, rec);
#else
    (void)rec;
#endif
}

static inline __attribute__((always_inline)) void call_once(enum variant variant, struct roll_record *rec)
{
    if (variant == PRELOADED) {
        ncclAllReduce(&data[0], &data[1], 1, 7, 0, comm, NULL);
    } else {
        pncclAllReduce(&data[0], &data[1], 1, 7, 0, comm, NULL);
    }
    if (variant == TRACEPOINT) {
        rec->seq++;
        trace_one(rec);
    }
}

static struct roll_record sample;

#define MEASURE(name, variant)                                                                                         \
    static __attribute__((noinline)) double name##_batch(void)                                                         \
    {                                                                                                                  \
        double start = now_ns();                                                                                       \
        for (int i = 0; i < BATCH; i++) {                                                                              \
            call_once(variant, &sample);                                                                               \
        }                                                                                                              \
        return (now_ns() - start) / BATCH;                                                                             \
    }                                                                                                                  \
    static __attribute__((noinline)) void name##_singles(uint32_t *out, int n)                                         \
    {                                                                                                                  \
        for (int i = 0; i < n; i++) {                                                                                  \
            uint64_t start = ticks();                                                                                  \
            call_once(variant, &sample);                                                                               \
            out[i] = (uint32_t)(ticks() - start);                                                                      \
        }                                                                                                              \
    }
MEASURE(bare, BARE)
MEASURE(preloaded, PRELOADED)
MEASURE(tracepoint, TRACEPOINT)

/* a group, as an all-to-all-v is issued: a send and a receive for each peer */

#define MEASURE_GROUP(name, prefix)                                                                                    \
    static __attribute__((noinline)) double name##_group(void)                                                         \
    {                                                                                                                  \
        double start = now_ns();                                                                                       \
        prefix##ncclGroupStart();                                                                                      \
        for (int peer = 0; peer < PEERS; peer++) {                                                                     \
            prefix##ncclSend(&data[0], 1, 7, peer, comm, NULL);                                                        \
            prefix##ncclRecv(&data[1], 1, 7, peer, comm, NULL);                                                        \
        }                                                                                                              \
        prefix##ncclGroupEnd();                                                                                        \
        return (now_ns() - start) / (2 * PEERS);                                                                       \
    }
MEASURE_GROUP(bare, p)
MEASURE_GROUP(preloaded, )

/* a host that polls: one poll of a loop */

int cudaStreamQuery(cudaStream_t stream);
int bare_cudaStreamQuery(cudaStream_t stream);
#define MEASURE_POLL(name, prefix)                                                                                     \
    static __attribute__((noinline)) double name##_poll(void)                                                          \
    {                                                                                                                  \
        double start = now_ns();                                                                                       \
        for (int i = 0; i < BATCH; i++) {                                                                              \
            prefix##cudaStreamQuery(NULL);                                                                             \
        }                                                                                                              \
        return (now_ns() - start) / BATCH;                                                                             \
    }
MEASURE_POLL(bare, bare_)
MEASURE_POLL(preloaded, )

/* An event is recorded on a stream, and another stream waits for it; with a call of NCCL before the event, or not. */

int cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
int bare_cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags);
int cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
int bare_cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
#define MEASURE_ORDER(name, prefix)                                                                                    \
    static __attribute__((noinline)) double name##_order(cudaStream_t from)                                            \
    {                                                                                                                  \
        cudaEvent_t event = (cudaEvent_t)0x9000;                                                                       \
        double start = now_ns();                                                                                       \
        for (int i = 0; i < BATCH; i++) {                                                                              \
            prefix##cudaEventRecordWithFlags(event, from, 0);                                                          \
            prefix##cudaStreamWaitEvent((cudaStream_t)0x8020, event, 0);                                               \
        }                                                                                                              \
        return (now_ns() - start) / BATCH;                                                                             \
    }
MEASURE_ORDER(bare, bare_)
MEASURE_ORDER(preloaded, )

static double per_order[2][2][BATCHES]; /* [with a call][variant] */
static double per_poll[2][BATCHES];
static double per_message[2][GROUPS];

static bool with_lttng;

static void measure(void)
{
    for (int b = 0; b < BATCHES; b++) {
        per_call[BARE][b] = bare_batch();
        per_call[PRELOADED][b] = preloaded_batch();
        per_call[TRACEPOINT][b] = with_lttng ? tracepoint_batch() : 0;
    }
    for (int at = 0; at < SINGLES; at += 1000) {
        bare_singles(&singles[BARE][at], 1000);
        preloaded_singles(&singles[PRELOADED][at], 1000);
        if (with_lttng) {
            tracepoint_singles(&singles[TRACEPOINT][at], 1000);
        }
    }
    for (int b = 0; b < BATCHES; b++) {
        per_poll[BARE][b] = bare_poll();
        per_poll[PRELOADED][b] = preloaded_poll();
        for (int with = 0; with < 2; with++) { /* the batches of calls are on stream 0, the legacy one */
            cudaStream_t from = with ? NULL : (cudaStream_t)0x8010;
            per_order[with][BARE][b] = bare_order(from);
            per_order[with][PRELOADED][b] = preloaded_order(from);
        }
    }
    for (int g = 0; g < GROUPS; g++) {
        per_message[BARE][g] = bare_group();
        per_message[PRELOADED][g] = preloaded_group();
    }
}

/* Calls itself `depth` times before it measures. */
static __attribute__((noinline)) void descend(volatile int depth)
{
    if (depth == 0) {
        measure();
    } else {
        descend(depth - 1);
    }
    __asm__ volatile("" ::: "memory");
}

/* a range of NVTX, begun and ended: with this library as the tool and without, its name a step and none */

enum range { RANGE_UNSEEN, RANGE_STEP, RANGE_OTHER, RANGES };
static double per_range[RANGES][BATCHES];

static __attribute__((noinline)) double range_batch(const char *name)
{
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        (void)nvtxRangePushA(name);
        (void)nvtxRangePop();
    }
    return (now_ns() - start) / BATCH;
}

static void measure_ranges(void)
{
    enum { PUSH_A = 9 };
    nvtxMarkA("warm"); /* the tool fills the slots */
    nvtx_function_t push = nvtx_core[PUSH_A];
    for (int b = 0; b < BATCHES; b++) {
        nvtx_core[PUSH_A] = NULL; /* as without a tool */
        per_range[RANGE_UNSEEN][b] = range_batch("step 17");
        nvtx_core[PUSH_A] = push;
        per_range[RANGE_STEP][b] = range_batch("step 17");
        per_range[RANGE_OTHER][b] = range_batch("backward");
    }
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_ticks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double ns_per_tick(void)
{
    double start = now_ns();
    uint64_t from = ticks();
    usleep(50000);
    return (now_ns() - start) / (double)(ticks() - from);
}

static void print_variant(const char *name, enum variant variant, double scale)
{
    qsort(per_call[variant], BATCHES, sizeof(double), by_double);
    qsort(singles[variant], SINGLES, sizeof(uint32_t), by_ticks);
    printf("\"%s\":{\"batch_p50\":%.2f,\"batch_p99\":%.2f,\"single_p50\":%.1f,\"single_p90\":%.1f,\"single_p99\":%.1f,"
           "\"single_p999\":%.1f},",
           name, per_call[variant][BATCHES / 2], per_call[variant][BATCHES * 99 / 100],
           singles[variant][SINGLES / 2] * scale, singles[variant][SINGLES / 10 * 9] * scale,
           singles[variant][SINGLES / 100 * 99] * scale, singles[variant][SINGLES / 1000 * 999] * scale);
}

static void print_group(void)
{
    printf("\"group\":{\"messages\":%d,", 2 * PEERS);
    for (int v = BARE; v <= PRELOADED; v++) {
        qsort(per_message[v], GROUPS, sizeof(double), by_double);
        printf("\"%s_p50\":%.2f,\"%s_p99\":%.2f%s", v == BARE ? "bare" : "preloaded", per_message[v][GROUPS / 2],
               v == BARE ? "bare" : "preloaded", per_message[v][GROUPS * 99 / 100], v == BARE ? "," : "},");
    }
}

static void print_poll(void)
{
    printf("\"poll\":{");
    for (int v = BARE; v <= PRELOADED; v++) {
        const char *name = v == BARE ? "bare" : "preloaded";
        qsort(per_poll[v], BATCHES, sizeof(double), by_double);
        printf("\"%s_p50\":%.2f,\"%s_p99\":%.2f%s", name, per_poll[v][BATCHES / 2], name,
               per_poll[v][BATCHES * 99 / 100], v == BARE ? "," : "},");
    }
}

static void print_ranges(void)
{
    static const char *const names[] = {"unseen", "step", "other"};
    printf("\"range\":{");
    for (int r = 0; r < RANGES; r++) {
        qsort(per_range[r], BATCHES, sizeof(double), by_double);
        printf("\"%s_p50\":%.2f,\"%s_p99\":%.2f%s", names[r], per_range[r][BATCHES / 2], names[r],
               per_range[r][BATCHES * 99 / 100], r + 1 < RANGES ? "," : "},");
    }
}

static void print_order(void)
{
    for (int with = 0; with < 2; with++) {
        printf("\"order_%s\":{", with ? "with" : "without");
        for (int v = BARE; v <= PRELOADED; v++) {
            qsort(per_order[with][v], BATCHES, sizeof(double), by_double);
            printf("\"%s_p50\":%.2f%s", v == BARE ? "bare" : "preloaded", per_order[with][v][BATCHES / 2],
                   v == BARE ? "," : "},");
        }
    }
}

static bool tracing(void)
{
#ifdef ROLL_HAVE_LTTNG
    return lttng_ust_tracepoint_enabled(rollcall_bench, call);
#else
    return false;
#endif
}

int main(int argc, char **argv)
{
    ncclUniqueId id;
    bool wanted = argc > 1 && strcmp(argv[1], "lttng") == 0;
    if (ncclGetUniqueId(&id) != ncclSuccess || ncclCommInitRank(&comm, 2, id, 0) != ncclSuccess) {
        return 1;
    }
    /* Registration with the session daemon goes on in a thread of its own. */
    for (int i = 0; wanted && i < 300 && !tracing(); i++) {
        usleep(10000);
    }
    with_lttng = wanted && tracing();
    usleep(20000); /* the clock of the preload library has been calibrated by then */
    double scale = ns_per_tick();
    measure(); /* to warm up: caches, the clock rate, the session's buffers */
    descend(DEPTH);
    measure_ranges();
    printf("{");
    print_variant("bare", BARE, scale);
    print_variant("preloaded", PRELOADED, scale);
    if (with_lttng) {
        print_variant("tracepoint", TRACEPOINT, scale);
    }
    print_group();
    print_poll();
    print_ranges();
    print_order();
    print_products();
    printf("\"ns_per_tick\":%.4f,\"lttng\":%s}\n", scale, with_lttng ? "true" : "false");
    return 0;
}
