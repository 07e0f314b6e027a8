/*
 * test_newer.c: what NCCL 2.29 to 2.32 added: windows that are shared, put, signal and wait, peers' pointers, grow,
 * suspend and resume, collectives with settings; and what is refused by name.
 */
#include "hostnccl/include/nccl_newer.h"
#include "tests/hostnccl/nccl/harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PART = 64 * PAGE };

static char *pages(size_t size)
{
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

static ncclWindow_t shared(struct rank *r, void *buff, size_t size)
{
    ncclWindow_t window = NULL;

    NCCL(ncclCommWindowRegister(r->comm, buff, size, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    return window;
}

/* Everybody puts a block into everybody's window, its own included, and waits for all blocks. */
static void case_put(struct rank *r)
{
    char *in = pages(PART), *out = pages((size_t)PART * (size_t)r->n);
    ncclWaitSignalDesc_t *wait = calloc((size_t)r->n, sizeof(*wait));
    int looked = 1;

    memset(in, r->rank + 1, PART);
    out[0] = 77; /* what a window holds stays in it, at its place */
    ncclWindow_t from = shared(r, in, PART), to = shared(r, out, (size_t)PART * (size_t)r->n);
    CHECK(out[0] == 77 && in[PART - 1] == r->rank + 1);
    NCCL(ncclAllReduce(&looked, &looked, 1, ncclInt, ncclSum, r->comm, r->stream)); /* before the first put */
    finish(r);
    for (int round = 0; round < 3; round++) {
        NCCL(ncclGroupStart());
        for (int p = 0; p < r->n; p++) {
            wait[p] = (ncclWaitSignalDesc_t){.opCnt = 1, .peer = p, .sigIdx = round};
            NCCL(ncclPutSignal(in, PART, ncclUint8, p, to, (size_t)r->rank * PART, round, 0, 0, r->comm, r->stream));
        }
        NCCL(ncclWaitSignal(r->n, wait, r->comm, r->stream));
        NCCL(ncclGroupEnd());
        finish(r);
        for (int p = 0; p < r->n; p++) {
            CHECK(out[p * PART] == p + 1 && out[(p + 1) * PART - 1] == p + 1);
        }
        for (int i = 0; i < 2; i++) { /* no rank puts again before all have looked and cleared their windows */
            NCCL(ncclAllReduce(&looked, &looked, 1, ncclInt, ncclMax, r->comm, r->stream));
            finish(r);
            if (i == 0) {
                memset(out, 0, (size_t)PART * (size_t)r->n);
            }
        }
    }
    NCCL(ncclCommWindowDeregister(r->comm, from));
    NCCL(ncclCommWindowDeregister(r->comm, to));
    free(wait);
}

/* A window in device memory: the device's own fills and copies see what the peers write, and are seen by them. */
static void case_device_window(struct rank *r)
{
    ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = (r->rank + 1) % r->n};
    void *out = NULL, *copy = NULL;
    char *in = pages(PART), *seen = malloc(PART);

    memset(in, 5, PART);
    CHECK(seen && cudaMalloc(&out, PART) == cudaSuccess && cudaMalloc(&copy, PART) == cudaSuccess);
    ncclWindow_t from = shared(r, in, PART), to = shared(r, out, PART);
    NCCL(ncclPutSignal(in, PART, ncclUint8, (r->rank + r->n - 1) % r->n, to, 0, 0, 0, 0, r->comm, r->stream));
    NCCL(ncclWaitSignal(1, &wait, r->comm, r->stream));
    CHECK(cudaMemcpyAsync(copy, out, PART, cudaMemcpyDeviceToDevice, r->stream) == cudaSuccess);
    finish(r);
    CHECK(cudaMemcpy(seen, copy, PART, cudaMemcpyDeviceToHost) == cudaSuccess && seen[0] == 5 && seen[PART - 1] == 5);
    CHECK(cudaMemsetAsync(out, 0, PART, r->stream) == cudaSuccess);
    finish(r);
    CHECK(cudaMemcpy(seen, out, PART, cudaMemcpyDeviceToHost) == cudaSuccess && !seen[0] && !seen[PART - 1]);
    meet(r, "looked");
    NCCL(ncclCommWindowDeregister(r->comm, from));
    NCCL(ncclCommWindowDeregister(r->comm, to));
    CHECK(cudaFree(out) == cudaSuccess && cudaFree(copy) == cudaSuccess);
    free(seen);
}

/* A put waits for nobody; a wait waits for as many signals as it names. */
static void case_signals(struct rank *r)
{
    ncclWaitSignalDesc_t three = {.opCnt = 3, .peer = 0, .sigIdx = 1};

    if (r->rank == 0) {
        for (int i = 0; i < 2; i++) {
            NCCL(ncclSignal(1, 1, 0, 0, r->comm, r->stream));
        }
        NCCL(ncclSignal(1, 2, 0, 0, r->comm, r->stream)); /* another signal, which nobody waits for */
        finish(r);
        await(r, 1, "waits");
        NCCL(ncclSignal(1, 1, 0, 0, r->comm, r->stream));
        finish(r);
    } else if (r->rank == 1) {
        NCCL(ncclWaitSignal(1, &three, r->comm, r->stream));
        CHECK(still_busy(r->stream, 150));
        tell(r, "waits");
        finish(r);
        NCCL(ncclWaitSignal(1, &three, r->comm, r->stream)); /* those three are used up */
        expect_hang(r);
    }
}

static void case_pointers(struct rank *r)
{
    char *mine = pages(PART);
    void *at = NULL;

    mine[5] = (char)(10 + r->rank);
    ncclWindow_t window = shared(r, mine, PART);
    NCCL(ncclWinGetUserPtr(r->comm, window, &at));
    CHECK(at == mine);
    extern ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
    for (int p = 0; p < r->n; p++) {
        NCCL(ncclGetPeerDevicePointer(window, 5, p, &at));
        CHECK(*(char *)at == 10 + p && (p != r->rank || at == mine + 5));
    }
    NCCL_IS(ncclInvalidArgument, ncclGetPeerDevicePointer(window, 0, r->n, &at));
    NCCL_IS(ncclInvalidArgument, ncclGetPeerDevicePointer(window, PART, 0, &at));
    meet(r, "looked");
    NCCL(ncclCommWindowDeregister(r->comm, window));
}

/* A window of which only a few pages are real stays so. */
static void case_reserved(struct rank *r)
{
    const size_t size = (size_t)1 << 30;
    unsigned char *in = malloc(size / PAGE);
    char *big = pages(size);
    size_t found = 0;

    big[7 * PAGE] = 1;
    ncclWindow_t window = shared(r, big, size);
    CHECK(in && big[7 * PAGE] == 1 && !mincore(big, size, in));
    for (size_t i = 0; i < size / PAGE; i++) {
        found += in[i] & 1;
    }
    CHECK(found == 1);
    NCCL(ncclCommWindowDeregister(r->comm, window));
    munmap(big, size);
    free(in);
}

static void case_wrong_puts(struct rank *r)
{
    char *buff = pages(PART), *other = pages(PART);
    ncclWindow_t window = shared(r, buff, PART), plain = NULL;
    ncclWaitSignalDesc_t wrong = {.opCnt = -1};

    NCCL(ncclCommWindowRegister(r->comm, other, PART, &plain, NCCL_WIN_DEFAULT));
    NCCL_IS(ncclInvalidArgument, ncclPutSignal(buff, 8, ncclUint8, r->n, window, 0, 0, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclPutSignal(buff, 8, ncclUint8, 0, window, PART - 7, 0, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclPutSignal(other, 8, ncclUint8, 0, window, 0, 0, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidUsage, ncclPutSignal(buff, 8, ncclUint8, 0, plain, 0, 0, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclPutSignal(buff, 8, ncclUint8, 0, NULL, 0, 0, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclSignal(0, 8, 0, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclSignal(0, 0, 1, 0, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclSignal(0, 0, 0, 1, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclWaitSignal(0, &wrong, r->comm, r->stream));
    NCCL_IS(ncclInvalidArgument, ncclWaitSignal(1, &wrong, r->comm, r->stream));
    finish(r);
    NCCL(ncclCommWindowDeregister(r->comm, plain));
    NCCL(ncclCommWindowDeregister(r->comm, window));
}

/* One rank registers, another splits: all wait until they are aborted, and no file stays. */
static void *abort_later(void *arg)
{
    struct rank *r = arg;

    sleep_ms(300);
    NCCL(ncclCommAbort(r->comm));
    return NULL;
}

static void case_window_without_all(struct rank *r)
{
    ncclWindow_t window = NULL;
    pthread_t thread;

    if (r->rank == 1) {
        stay(r);
        return;
    }
    CHECK(!pthread_create(&thread, NULL, abort_later, r));
    NCCL_IS(ncclInternalError, ncclCommWindowRegister(r->comm, pages(PART), PART, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window == NULL);
    pthread_join(thread, NULL);
    r->aborted = true;
}

/* The unique id goes from rank 0 to the others by a file, as a program would send it. */
static void hand_over(struct rank *r, ncclUniqueId *id)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/told-grow-id", getenv("HOSTNCCL_DIR"));
    if (r->rank == 0) {
        FILE *f = fopen(path, "w");
        CHECK(f && fwrite(id, sizeof(*id), 1, f) == 1 && !fclose(f));
        tell(r, "id");
        return;
    }
    await(r, 0, "id");
    FILE *f = fopen(path, "r");
    CHECK(f && fread(id, sizeof(*id), 1, f) == 1 && !fclose(f));
}

/* All ranks but the last make a communicator; the last one joins it. */
static void case_grow(struct rank *r)
{
    bool is_new = r->rank == r->n - 1;
    ncclUniqueId id;
    ncclComm_t grown = NULL;
    int rank = -1, n = 0, x = r->rank + 1, sum = 0;

    if (!is_new) {
        NCCL(ncclCommInitRank(&r->comm, r->n - 1, r->id, r->rank));
    }
    if (r->rank == 0) {
        NCCL(ncclCommGetUniqueId(r->comm, &id));
        NCCL_IS(ncclInvalidArgument, ncclCommGrow(r->comm, r->n - 1, &id, -1, &grown, NULL));
        NCCL_IS(ncclInvalidArgument, ncclCommGrow(r->comm, r->n, &id, 0, &grown, NULL));
    }
    hand_over(r, &id);
    if (is_new) {
        NCCL_IS(ncclInvalidArgument, ncclCommGrow(NULL, r->n, NULL, r->rank, &grown, NULL));
        NCCL(ncclCommGrow(NULL, r->n, &id, r->rank, &grown, NULL));
    } else {
        NCCL(ncclCommGrow(r->comm, r->n, r->rank ? NULL : &id, -1, &grown, NULL));
    }
    NCCL(ncclCommUserRank(grown, &rank));
    NCCL(ncclCommCount(grown, &n));
    CHECK(rank == r->rank && n == r->n);
    NCCL(ncclAllReduce(&x, &sum, 1, ncclInt, ncclSum, grown, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    CHECK(sum == r->n * (r->n + 1) / 2);
    NCCL(ncclCommDestroy(grown));
    if (is_new) {
        tell(r, "done");
        _exit(0);
    }
}

/* Nobody brings the id: every rank is told so. */
static void case_grow_without_id(struct rank *r)
{
    ncclComm_t grown = NULL;

    NCCL_IS(ncclInvalidUsage, ncclCommGrow(r->comm, r->n + 1, NULL, -1, &grown, NULL));
    CHECK(grown == NULL && strstr(ncclGetLastError(r->comm), "0 ranks"));
}

static uint64_t stat_of(struct rank *r, ncclCommMemStat_t stat)
{
    uint64_t value = ~0ull;

    NCCL(ncclCommMemStats(r->comm, stat, &value));
    return value;
}

static void case_suspend(struct rank *r)
{
    static int x[50000], y[50000];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 50000; i++) {
            x[i] = r->rank + i;
        }
        NCCL(ncclAllReduce(x, y, 50000, ncclInt, ncclSum, r->comm, r->stream));
        finish(r);
        CHECK(y[49999] == r->n * 49999 + r->n * (r->n - 1) / 2);
        CHECK(stat_of(r, ncclStatGpuMemSuspended) == 0 && stat_of(r, ncclStatGpuMemSuspend) > 0);
        CHECK(stat_of(r, ncclStatGpuMemTotal) == stat_of(r, ncclStatGpuMemSuspend) + stat_of(r, ncclStatGpuMemPersist));
        NCCL_IS(ncclInvalidUsage, ncclCommResume(r->comm));
        NCCL(ncclCommSuspend(r->comm, NCCL_SUSPEND_MEM));
        CHECK(stat_of(r, ncclStatGpuMemSuspended) == 1 && stat_of(r, ncclStatGpuMemSuspend) == 0);
        NCCL_IS(ncclInvalidUsage, ncclAllReduce(x, y, 1, ncclInt, ncclSum, r->comm, r->stream));
        CHECK(strstr(ncclGetLastError(r->comm), "suspended"));
        NCCL_IS(ncclInvalidUsage, ncclCommSuspend(r->comm, NCCL_SUSPEND_MEM));
        NCCL_IS(ncclInvalidArgument, ncclCommSuspend(r->comm, 0));
        NCCL(ncclCommResume(r->comm));
    }
}

/* A configuration as long as that of 2.32; its event lies behind the rest. */
struct settings {
    size_t size;
    unsigned magic, version;
    char rest[48];
    void *event;
};

static void case_settings(struct rank *r)
{
    struct settings s = {.size = sizeof(s)};
    const ncclCollConfig_t *config = (const void *)&s;
    int x[64], y[64] = {0};

    for (int i = 0; i < 64; i++) {
        x[i] = r->rank;
    }
    NCCL(ncclAllReduceConfig(x, y, 1, ncclInt, ncclSum, r->comm, r->stream, config));
    finish(r);
    CHECK(y[0] == r->n * (r->n - 1) / 2);
    NCCL(ncclBroadcastConfig(x, y, 1, ncclInt, 1, r->comm, r->stream, NULL));
    NCCL(ncclReduceConfig(x, y + 1, 1, ncclInt, ncclSum, 0, r->comm, r->stream, config));
    NCCL(ncclAllGatherConfig(x, y + 2, 1, ncclInt, r->comm, r->stream, config));
    NCCL(ncclReduceScatterConfig(x, y + 10, 1, ncclInt, ncclSum, r->comm, r->stream, config));
    NCCL(ncclAlltoAllConfig(x, y + 11, 1, ncclInt, r->comm, r->stream, config));
    NCCL(ncclGatherConfig(x, y + 20, 1, ncclInt, 0, r->comm, r->stream, config));
    NCCL(ncclScatterConfig(x, y + 30, 1, ncclInt, 1, r->comm, r->stream, config));
    finish(r);
    CHECK(y[0] == 1 && y[3] == 1 && y[10] == r->n * (r->n - 1) / 2 && y[12] == 1 && y[30] == 1);
    CHECK(r->rank || (y[1] == r->n * (r->n - 1) / 2 && y[21] == 1));
    s.event = &s;
    NCCL_IS(ncclInvalidUsage, ncclAllReduceConfig(x, y, 1, ncclInt, ncclSum, r->comm, r->stream, config));
    CHECK(strstr(ncclGetLastError(r->comm), "launchCompletionEvent"));
}

struct team {
    int ranks, rank, stride;
};

static void case_device(struct rank *r)
{
    extern struct team ncclTeamWorld(ncclComm_t), ncclTeamRail(ncclComm_t);
    extern int ncclTeamRankToWorld(ncclComm_t, struct team, int);
    extern ncclResult_t ncclDevCommCreate(ncclComm_t, const void *, void *),
        ncclCommQueryProperties(ncclComm_t, void *);
    struct {
        size_t size;
        unsigned magic, version;
        int rank, ranks, device, nvml;
        bool has_device_api, has_multimem;
        int gin, teams;
        bool has_rma;
        int railed;
    } is = {.size = sizeof(is), .has_device_api = true};
    struct team world = ncclTeamWorld(r->comm);

    CHECK(world.ranks == r->n && world.rank == r->rank && world.stride == 1);
    CHECK(ncclTeamRankToWorld(r->comm, world, 0) == 0 && ncclTeamRail(r->comm).ranks == 1);
    NCCL(ncclCommQueryProperties(r->comm, &is));
    CHECK(is.rank == r->rank && is.ranks == r->n && !is.has_device_api && is.has_rma && is.teams == 1);
    NCCL_IS(ncclInvalidUsage, ncclDevCommCreate(r->comm, NULL, NULL));
    CHECK(strstr(ncclGetLastError(r->comm), "ncclDevCommCreate: not on hostnccl"));
}

static const struct rank_case CASES[] = {
    {"put", case_put, false},
    {"device_window", case_device_window, false},
    {"signals", case_signals, false},
    {"pointers", case_pointers, false},
    {"reserved", case_reserved, false},
    {"wrong_puts", case_wrong_puts, false},
    {"window_without_all", case_window_without_all, false},
    {"grow", case_grow, true},
    {"grow_without_id", case_grow_without_id, false},
    {"suspend", case_suspend, false},
    {"settings", case_settings, false},
    {"device", case_device, false},
    {0},
};

#define TEST(name, ...)                                                                                                \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        static const int counts[] = {__VA_ARGS__};                                                                     \
        (void)state;                                                                                                   \
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {                                              \
            ranks_run(#name, counts[i], 30, NULL);                                                                     \
        }                                                                                                              \
    }

TEST(put, 1, 2, 3, 4, 8)
TEST(device_window, 2, 3)
TEST(signals, 2, 3)
TEST(pointers, 2, 4)
TEST(reserved, 2)
TEST(wrong_puts, 2)
TEST(window_without_all, 3)
TEST(grow, 2, 3, 4)
TEST(grow_without_id, 2)
TEST(suspend, 2, 4)
TEST(settings, 2, 4)
TEST(device, 2)

static void test_put_of_threads(void **state)
{
    (void)state;
    threads_run(CASES, "put", 4);
}

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("a put is in the peer's window when its signal has come", put),
        ROW("fills and copies of the device work on a window in its memory", device_window),
        ROW("the same between threads", put_of_threads),
        ROW("signals are counted, by index", signals),
        ROW("a peer's window is at the pointer that is given out", pointers),
        ROW("registering touches no page that nobody has touched", reserved),
        ROW("wrong puts, signals and waits are refused", wrong_puts),
        ROW("a shared window waits for all ranks and leaves no file", window_without_all),
        ROW("a communicator grows", grow),
        ROW("a grow without a unique id is refused on all ranks", grow_without_id),
        ROW("a suspended communicator gives its buffers back", suspend),
        ROW("collectives with settings", settings),
        ROW("teams and properties; device communicators are refused", device),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
