/*
 * test_window.c: windows over memory that lies elsewhere as well: mapped by cuMemMap from several handles and at a
 * second address, opened by another process, part of another window. Whoever had the memory before sees what is
 * written after.
 */
#include "hostnccl/include/cuda.h"
#include "hostnccl/include/nccl_newer.h"
#include "tests/hostnccl/nccl/harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PIECE = 2 << 20, PIECES = 3 };

extern ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);

static ncclWindow_t shared(struct rank *r, void *buff, size_t size)
{
    ncclWindow_t window = NULL;

    NCCL(ncclCommWindowRegister(r->comm, buff, size, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    return window;
}

/* Puts `bytes` of `source` to the next rank's window, and waits for the put of the rank before. */
static void put_round(struct rank *r, const char *source, size_t bytes, ncclWindow_t to, size_t at)
{
    ncclWaitSignalDesc_t wait = {.opCnt = 1, .peer = (r->rank + r->n - 1) % r->n};

    NCCL(ncclPutSignal(source, bytes, ncclUint8, (r->rank + 1) % r->n, to, at, 0, 0, 0, r->comm, r->stream));
    NCCL(ncclWaitSignal(1, &wait, r->comm, r->stream));
    finish(r);
}

static char *reserved(size_t bytes)
{
    CUdeviceptr address = 0;

    CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0) == CUDA_SUCCESS);
    return (char *)(uintptr_t)address;
}

static CUmemAllocationProp properties_of(CUmemAllocationHandleType type)
{
    int device = 0;

    CUDA(cudaGetDevice(&device));
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                 .requestedHandleTypes = type};
}

static void map(char *at, CUmemGenericAllocationHandle handle, const CUmemAllocationProp *properties)
{
    CUmemAccessDesc access = {.location = properties->location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)at;

    CHECK(cuMemMap(address, PIECE, 0, handle, 0) == CUDA_SUCCESS);
    CHECK(cuMemSetAccess(address, PIECE, &access, 1) == CUDA_SUCCESS);
}

/* As PyTorch's symmetric memory: pieces of several handles, one of which lies elsewhere too. */
static void case_mapped(struct rank *r)
{
    CUmemGenericAllocationHandle handle[PIECES];
    char *base = reserved((size_t)PIECE * (PIECES + 1)), *twin = reserved(PIECE), *source = malloc(PIECE);
    void *of_peer = NULL;
    int next = (r->rank + 1) % r->n, before = (r->rank + r->n - 1) % r->n, looked = 1;

    CHECK(source != NULL);
    for (int i = 0; i < PIECES; i++) {
        CUmemAllocationProp is =
            properties_of(i == 1 ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE);
        CHECK(cuMemCreate(&handle[i], PIECE, &is, 0) == CUDA_SUCCESS);
        map(base + (size_t)i * PIECE, handle[i], &is);
        if (i == 1) {
            map(twin, handle[i], &is);
        }
    }
    base[PIECE] = (char)(40 + r->rank); /* what is there stays */
    memset(source, r->rank + 1, PIECE);
    ncclWindow_t window = shared(r, base + PAGE, (size_t)PIECE * PIECES - PAGE);
    ncclWindow_t from = shared(r, source - (uintptr_t)source % PAGE + PAGE, PIECE / 2);
    CHECK(base[PIECE] == 40 + r->rank && twin[0] == 40 + r->rank);
    NCCL(ncclGetPeerDevicePointer(window, PIECE - PAGE, next, &of_peer));
    CHECK(*(char *)of_peer == 40 + next);
    NCCL(ncclAllReduce(&looked, &looked, 1, ncclInt, ncclSum, r->comm, r->stream)); /* before the first put */
    finish(r);
    /* a put over the border of the first two handles, seen at both addresses */
    put_round(r, source - (uintptr_t)source % PAGE + PAGE, 200, window, PIECE - PAGE - 100);
    CHECK(base[PIECE - 100] == before + 1 && base[PIECE - 101] == 0);
    CHECK(base[PIECE + 99] == before + 1 && twin[99] == before + 1 && twin[100] == 0);
    /* and a later write at the other address is seen by the peer */
    twin[5000] = (char)(60 + r->rank);
    meet(r, "written");
    NCCL(ncclGetPeerDevicePointer(window, PIECE - PAGE + 5000, next, &of_peer));
    CHECK(*(char *)of_peer == 60 + next);
    meet(r, "looked");
    NCCL(ncclCommWindowDeregister(r->comm, window));
    NCCL(ncclCommWindowDeregister(r->comm, from));
    NCCL_IS(ncclInvalidArgument, ncclCommWindowRegister(r->comm, base + PIECE, (size_t)PIECE * PIECES, &window,
                                                        NCCL_WIN_COLL_SYMMETRIC)); /* nothing lies at its end */
}

/* Memory that another process has opened by a handle, and the memory of its window, are one. */
static void case_opened(struct rank *r)
{
    cudaIpcMemHandle_t handle;
    char *memory = NULL, *mine = NULL, source[PAGE] = {0}, seen[2] = {0};
    ncclWindow_t none = NULL;
    int looked = 1;

    CUDA(cudaMalloc((void **)&mine, 4 * PAGE));
    memset(source, r->rank + 1, sizeof(source));
    if (r->rank == 0) {
        CUDA(cudaIpcGetMemHandle(&handle, mine));
    }
    NCCL(ncclBroadcast(&handle, &handle, sizeof(handle), ncclUint8, 0, r->comm, r->stream));
    finish(r);
    if (r->rank) {
        CUDA(cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess));
    }
    ncclWindow_t window = shared(r, mine + PAGE, 3 * PAGE), whole = shared(r, mine, 4 * PAGE);
    NCCL(ncclAllReduce(&looked, &looked, 1, ncclInt, ncclSum, r->comm, r->stream));
    finish(r);
    CUDA(cudaMemset(mine + 2 * PAGE, 50, 1));
    CUDA(cudaDeviceSynchronize());
    meet(r, "written");
    if (r->rank) {
        CUDA(cudaMemcpy(seen, memory + 2 * PAGE, 1, cudaMemcpyDeviceToHost));
        CHECK(seen[0] == 50);
    }
    /* a window over memory that is a window already, and neither is cut off */
    for (int i = 0; i < 2; i++) {
        void *of_peer = NULL;
        NCCL(ncclGetPeerDevicePointer(i ? whole : window, i ? 2 * PAGE : PAGE, (r->rank + 1) % r->n, &of_peer));
        CHECK(*(char *)of_peer == 50);
    }
    /* memory of another process has no window of its own */
    NCCL_IS(r->rank ? ncclInvalidUsage : ncclSystemError,
            ncclCommWindowRegister(r->comm, r->rank ? memory : mine, 4 * PAGE, &none, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(none == NULL);
    meet(r, "looked");
    /* a handle that is asked for behind the window */
    CUDA(cudaIpcGetMemHandle(&handle, mine));
    if (r->rank) {
        CUDA(cudaIpcCloseMemHandle(memory));
    }
    NCCL(ncclCommWindowDeregister(r->comm, window));
    NCCL(ncclCommWindowDeregister(r->comm, whole));
    CUDA(cudaFree(mine));
}

/* Windows of host memory that hold each other share a file; one that reaches out of another is refused. */
static void case_host_twice(struct rank *r)
{
    char *mine = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ncclWindow_t none = NULL;
    void *of_peer = NULL;

    CHECK(mine != MAP_FAILED);
    ncclWindow_t first = shared(r, mine, 3 * PAGE), inside = shared(r, mine + PAGE, PAGE);
    mine[PAGE] = (char)(30 + r->rank);
    meet(r, "written");
    NCCL(ncclGetPeerDevicePointer(first, PAGE, (r->rank + 1) % r->n, &of_peer));
    CHECK(*(char *)of_peer == 30 + (r->rank + 1) % r->n);
    NCCL(ncclGetPeerDevicePointer(inside, 0, (r->rank + 1) % r->n, &of_peer));
    CHECK(*(char *)of_peer == 30 + (r->rank + 1) % r->n);
    NCCL_IS(ncclInvalidUsage, ncclCommWindowRegister(r->comm, mine + PAGE, 3 * PAGE, &none, NCCL_WIN_COLL_SYMMETRIC));
    meet(r, "looked");
    NCCL(ncclCommWindowDeregister(r->comm, first));
    NCCL(ncclCommWindowDeregister(r->comm, inside));
    NCCL(ncclCommWindowDeregister(r->comm, shared(r, mine, 4 * PAGE)));
    munmap(mine, 4 * PAGE);
}

static const struct rank_case CASES[] = {
    {"mapped", case_mapped, false},
    {"opened", case_opened, false},
    {"host_twice", case_host_twice, false},
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

TEST(mapped, 1, 2, 4)
TEST(opened, 2, 3)
TEST(host_twice, 1, 3)

#define ROW(text, name)                                                                                                \
    {                                                                                                                  \
        text, test_##name, NULL, NULL, NULL                                                                            \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        ROW("a window over mapped memory leaves its other mapping alone", mapped),
        ROW("another process that has the memory, and another window of it, are not cut off", opened),
        ROW("windows of host memory that hold each other", host_twice),
    };

    rank_main(argc, argv, CASES);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
