/*
 * test_virtual.c: memory that is reserved and not committed: sizes, marks, pages, pools, and memory of other
 * processes.
 */
#include "tests/hostnccl/cuda/child.h"

enum { MB = 1 << 20 };
static const size_t GB = (size_t)1 << 30;

/* Bytes of memory that the process really has. */
static size_t resident_bytes(void)
{
    size_t total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    expect(file && fscanf(file, "%zu %zu", &total, &resident) == 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void holds_more_than_the_machine(void)
{
    char report[4096], *big, *same, byte = 1;
    size_t free_bytes, total;
    setenv("HOSTCUDA_REPORT", report_folder(), 1);
    setenv("RANK", "3", 1);
    expect(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total == 80 * GB && free_bytes == total);
    expect(cudaMalloc((void **)&big, 70 * GB) == cudaSuccess);
    expect(cudaMalloc((void **)&same, 11 * GB) == cudaErrorMemoryAllocation);
    expect(cudaMalloc((void **)&same, 9 * GB) == cudaSuccess);
    expect(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes == GB);
    expect(cudaMemset(big, 0, 70 * GB) == cudaSuccess);
    expect(cudaMemcpy(same, big, 9 * GB, cudaMemcpyDeviceToDevice) == cudaSuccess);
    expect(cudaMemcpy(&byte, same + 5 * GB, 1, cudaMemcpyDeviceToHost) == cudaSuccess && byte == 0);
    expect(cudaDeviceSynchronize() == cudaSuccess);
    expect(resident_bytes() < 512 * (size_t)MB);
    expect(cudaFree(big) == cudaSuccess);
    expect(cudaFree(same) == cudaSuccess);
    read_report(report, sizeof(report));
    expect(!strncmp(report, "rank 3\n", 7));
    expect(strstr(report, "memory 0 peak 00000000084825604096 of 00000000085899345920\n"));
    expect(!strstr(report, "memory 1"));
}

/* A copy that leaves out pages gives the same bytes as one that does not, whatever the alignment. */
static void copies_what_is_written(void)
{
    enum { SIZE = 3 * MB };
    static const size_t skews[] = {0, 1, 4096, 5000};
    char *src, *dst, *model = calloc(1, SIZE + MB), *read = malloc(SIZE);
    expect(cudaMalloc((void **)&src, SIZE + MB) == cudaSuccess);
    expect(cudaMalloc((void **)&dst, SIZE + MB) == cudaSuccess);
    for (size_t at = 0; at < SIZE + MB; at += 40000 + at % 12345) { /* islands on some pages */
        memset(model + at, (int)(at % 255) + 1, 700);
        expect(cudaMemcpy(src + at, model + at, 700, cudaMemcpyHostToDevice) == cudaSuccess);
    }
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++) {
            expect(cudaMemset(dst, 0x5a, SIZE + MB) == cudaSuccess);
            expect(cudaMemcpy(dst + skews[k], src + skews[i], SIZE, cudaMemcpyDeviceToDevice) == cudaSuccess);
            expect(cudaMemcpy(read, dst + skews[k], SIZE, cudaMemcpyDeviceToHost) == cudaSuccess);
            expect(!memcmp(read, model + skews[i], SIZE));
            expect(cudaMemcpy(read, dst + skews[k] + SIZE, 1, cudaMemcpyDeviceToHost) == cudaSuccess);
            expect(read[0] == 0x5a);
        }
    }
    expect(cudaMemset(dst + 100, 0, 2 * MB) == cudaSuccess);
    expect(cudaMemcpy(read, dst, SIZE, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t at = 100; at < 100 + 2 * MB; at++) {
        expect(!read[at]);
    }
    free(model);
    free(read);
}

static void takes_sizes(void)
{
    size_t free_bytes, total;
    setenv("HOSTCUDA_MEMORY", "3G", 1);
    expect(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total == 3 * GB);
}

static void refuses_sizes(void)
{
    size_t free_bytes, total;
    setenv("HOSTCUDA_MEMORY", "3GB", 1);
    expect(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total == 80 * GB);
}

static uint64_t number_of(cudaMemPool_t pool, enum cudaMemPoolAttr attribute)
{
    uint64_t value = 0;
    expect(cudaMemPoolGetAttribute(pool, attribute, &value) == cudaSuccess);
    return value;
}

static void pools(void)
{
    cudaMemPool_t main_pool, pool, now;
    uint64_t zero = 0, threshold = 77;
    char *a, *b;
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {.type = cudaMemLocationTypeDevice, .id = 1},
                                          .maxSize = 3 * MB};
    expect(cudaDeviceGetDefaultMemPool(&main_pool, 0) == cudaSuccess);
    expect(cudaMallocAsync((void **)&a, MB, NULL) == cudaSuccess);
    expect(cudaMallocAsync((void **)&b, MB, NULL) == cudaSuccess);
    expect(cudaFreeAsync(a, NULL) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess);
    expect(number_of(main_pool, cudaMemPoolAttrUsedMemCurrent) == MB);
    expect(number_of(main_pool, cudaMemPoolAttrUsedMemHigh) == 2 * MB);
    expect(cudaMemPoolSetAttribute(main_pool, cudaMemPoolAttrUsedMemHigh, &zero) == cudaSuccess);
    expect(number_of(main_pool, cudaMemPoolAttrUsedMemHigh) == MB);
    expect(cudaMemPoolSetAttribute(main_pool, cudaMemPoolAttrUsedMemCurrent, &zero) == cudaErrorInvalidValue);
    expect(cudaMemPoolSetAttribute(main_pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess);
    expect(number_of(main_pool, cudaMemPoolAttrReleaseThreshold) == 77);
    expect(cudaFree(b) == cudaSuccess && number_of(main_pool, cudaMemPoolAttrUsedMemCurrent) == 0);

    expect(cudaMemPoolCreate(&pool, &properties) == cudaSuccess);
    expect(cudaMallocFromPoolAsync((void **)&a, 2 * MB, pool, NULL) == cudaSuccess);
    expect(cudaMallocFromPoolAsync((void **)&b, 2 * MB, pool, NULL) == cudaErrorMemoryAllocation);
    struct cudaPointerAttributes about;
    expect(cudaPointerGetAttributes(&about, a) == cudaSuccess && about.device == 1);
    expect(cudaDeviceSetMemPool(0, pool) == cudaErrorInvalidValue);
    expect(cudaDeviceSetMemPool(1, pool) == cudaSuccess);
    expect(cudaDeviceGetMemPool(&now, 1) == cudaSuccess && now == pool);
    expect(cudaMemPoolDestroy(main_pool) == cudaErrorInvalidValue);
    expect(cudaMemPoolDestroy(pool) == cudaSuccess);
    expect(cudaMemPoolTrimTo(pool, 0) == cudaErrorInvalidValue);
    expect(cudaFree(a) == cudaSuccess);
}

/* Two processes: one owns memory, the other opens it, writes, and both see what the other wrote. */
static void shares(void)
{
    int to[2], back[2];
    char *memory, content[16] = "", ready;
    cudaIpcMemHandle_t handle;
    expect(!pipe(to) && !pipe(back));
    pid_t pid = fork();
    if (!pid) {
        expect(read(to[0], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
        expect(cudaIpcOpenMemHandle((void **)&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess);
        expect(cudaMemcpy(content, memory + 5 * MB, 6, cudaMemcpyDeviceToHost) == cudaSuccess);
        expect(!strcmp(content, "owner"));
        expect(cudaMemcpy(memory + 7, "peer", 5, cudaMemcpyHostToDevice) == cudaSuccess);
        expect(cudaFree(memory) == cudaErrorInvalidValue);
        expect(cudaIpcCloseMemHandle(memory) == cudaSuccess);
        expect(cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue);
        memset(&handle, 1, sizeof(handle));
        expect(cudaIpcOpenMemHandle((void **)&memory, handle, 1) == cudaErrorInvalidValue);
        expect(write(back[1], "d", 1) == 1);
        _exit(0);
    }
    expect(cudaMalloc((void **)&memory, 64 * (size_t)MB) == cudaSuccess);
    expect(cudaMemcpy(memory + 5 * MB, "owner", 6, cudaMemcpyHostToDevice) == cudaSuccess);
    expect(cudaIpcGetMemHandle(&handle, memory + 9) == cudaSuccess);
    expect(write(to[1], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    close(back[1]);
    expect(read(back[0], &ready, 1) == 1);
    expect(cudaMemcpy(content, memory + 7, 5, cudaMemcpyDeviceToHost) == cudaSuccess && !strcmp(content, "peer"));
    expect(cudaIpcOpenMemHandle((void **)&memory, handle, 1) == cudaErrorDeviceUninitialized);
    expect(cudaFree(memory) == cudaSuccess);
    int status;
    expect(waitpid(pid, &status, 0) == pid && !status);
    cudaEvent_t event; /* which says so when it is made */
    cudaIpcEventHandle_t event_handle;
    expect(cudaEventCreate(&event) == cudaSuccess);
    expect(cudaIpcGetEventHandle(&event_handle, event) == cudaErrorInvalidResourceHandle);
}

static void hold(void *end)
{
    char byte;
    expect(read(*(int *)end, &byte, 1) == 1);
}

/* The pipes of two processes: one to each, and one to a host function of each that holds a stream. */
static int to_peer[2], to_owner[2], gate_of_peer[2], gate_of_owner[2];

static void say(const int ends[2])
{
    expect(write(ends[1], "s", 1) == 1);
}

static void hear(const int ends[2])
{
    char byte;
    expect(read(ends[0], &byte, 1) == 1);
}

static void note(void *what)
{
    atomic_fetch_add((atomic_int *)what, 1);
}

static void opens_events(void)
{
    cudaIpcEventHandle_t handle;
    cudaEvent_t event, none;
    cudaStream_t stream;
    static atomic_int passed;
    expect(read(to_peer[0], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    expect(cudaIpcOpenEventHandle(&event, handle) == cudaSuccess);
    expect(cudaIpcGetEventHandle(&handle, event) == cudaErrorInvalidResourceHandle); /* it is another's */
    expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaEventQuery(event) == cudaErrorNotReady);
    expect(cudaStreamWaitEvent(stream, event, 0) == cudaSuccess);
    expect(cudaLaunchHostFunc(stream, note, &passed) == cudaSuccess);
    expect(cudaStreamQuery(stream) == cudaErrorNotReady && atomic_load(&passed) == 0);
    say(to_owner); /* the owner opens its gate */
    expect(cudaStreamSynchronize(stream) == cudaSuccess && atomic_load(&passed) == 1);
    expect(cudaEventQuery(event) == cudaSuccess && cudaEventSynchronize(event) == cudaSuccess);

    /* a record of this process is what the owner waits for */
    expect(cudaLaunchHostFunc(stream, hold, &gate_of_peer[0]) == cudaSuccess);
    expect(cudaEventRecord(event, stream) == cudaSuccess);
    expect(cudaEventQuery(event) == cudaErrorNotReady);
    say(to_owner);
    hear(to_peer);
    say(gate_of_peer);
    expect(cudaEventSynchronize(event) == cudaSuccess);
    expect(cudaEventDestroy(event) == cudaSuccess);
    memset(&handle, 1, sizeof(handle));
    expect(cudaIpcOpenEventHandle(&none, handle) == cudaErrorInvalidResourceHandle);
    hear(to_peer);
    _exit(0);
}

static void shares_events(void)
{
    cudaIpcEventHandle_t handle;
    cudaEvent_t event, plain;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphNode_t node;
    expect(!pipe(to_peer) && !pipe(to_owner) && !pipe(gate_of_peer) && !pipe(gate_of_owner));
    pid_t pid = fork();
    if (!pid) {
        opens_events();
    }
    expect(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    expect(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) == cudaSuccess);
    expect(cudaEventQuery(event) == cudaSuccess); /* it was never recorded */
    expect(cudaLaunchHostFunc(stream, hold, &gate_of_owner[0]) == cudaSuccess);
    expect(cudaEventRecord(event, stream) == cudaSuccess);
    expect(cudaIpcGetEventHandle(&handle, event) == cudaSuccess);
    expect(write(to_peer[1], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    hear(to_owner);
    expect(cudaEventQuery(event) == cudaErrorNotReady);
    say(gate_of_owner);
    hear(to_owner); /* the peer has recorded */
    expect(cudaEventQuery(event) == cudaErrorNotReady);
    expect(cudaStreamSynchronize(stream) == cudaSuccess);
    say(to_peer);
    expect(cudaEventSynchronize(event) == cudaSuccess);
    say(to_peer);
    int status;
    expect(waitpid(pid, &status, 0) == pid && !status);

    /* What it is not: an event of this process alone, opened by its owner, a node of a graph. */
    expect(cudaIpcOpenEventHandle(&plain, handle) == cudaErrorDeviceUninitialized);
    expect(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming) == cudaSuccess);
    expect(cudaIpcGetEventHandle(&handle, plain) == cudaErrorInvalidResourceHandle);
    expect(cudaEventCreateWithFlags(&plain, cudaEventInterprocess) == cudaErrorInvalidValue);
    expect(cudaGraphCreate(&graph, 0) == cudaSuccess);
    expect(cudaGraphAddEventRecordNode(&node, graph, NULL, 0, event) == cudaErrorNotSupported);
    expect(cudaEventDestroy(event) == cudaSuccess);
    for (int i = 0; i < 100; i++) { /* places are used again, and a new event was never recorded */
        expect(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming) == cudaSuccess);
        expect(cudaEventQuery(event) == cudaSuccess);
        expect(cudaEventRecord(event, stream) == cudaSuccess && cudaEventSynchronize(event) == cudaSuccess);
        expect(cudaEventDestroy(event) == cudaSuccess);
    }
}

static void test_an_allocation_costs_addresses_and_no_memory(void **state)
{
    (void)state;
    char text[1024];
    run_child(holds_more_than_the_machine, text, sizeof(text));
    assert_string_equal(text, "");
    run_child(copies_what_is_written, text, sizeof(text));
}

static void test_the_size_of_a_device_is_chosen(void **state)
{
    (void)state;
    char text[1024];
    run_child(takes_sizes, text, sizeof(text));
    run_child(refuses_sizes, text, sizeof(text));
    assert_non_null(strstr(text, "HOSTCUDA_MEMORY=3GB"));
}

static void test_pools_count_what_is_theirs(void **state)
{
    (void)state;
    char text[1024];
    run_child(pools, text, sizeof(text));
}

static void test_another_process_uses_the_memory(void **state)
{
    (void)state;
    char text[1024];
    run_child(shares, text, sizeof(text));
    assert_string_equal(text, "");
}

static void test_another_process_waits_for_an_event(void **state)
{
    (void)state;
    char text[1024];
    run_child(shares_events, text, sizeof(text));
    assert_non_null(strstr(text, "an event of several processes in a graph is not supported"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_allocation_costs_addresses_and_no_memory),
        cmocka_unit_test(test_the_size_of_a_device_is_chosen),
        cmocka_unit_test(test_pools_count_what_is_theirs),
        cmocka_unit_test(test_another_process_uses_the_memory),
        cmocka_unit_test(test_another_process_waits_for_an_event),
    };
    return cmocka_run_group_tests(tests, make_reports, remove_reports);
}
