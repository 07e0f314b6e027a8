/*
 * two_runtimes.c: arguments FIRST [SECOND]: NCCL and the driver interface work beside the runtime of either release of
 * CUDA, which they find by themselves; the second runtime of a process refuses, and harms nobody. FIRST "none": NCCL is
 * loaded before any runtime. FIRST "nvml": a program asks NVML how many GPUs there are, then chooses one and forks, and
 * its child uses the runtime SECOND, though the other one is loaded, too. Everything is found by name, as a Python
 * program finds it.
 */
#include <dlfcn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(int is_so, const char *what)
{
    if (!is_so) {
        fprintf(stderr, "two_runtimes: not so: %s\n", what);
        exit(1);
    }
}
#define CHECK(is_so) check((is_so) != 0, #is_so)

static void *library(const char *name)
{
    void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!found) {
        fprintf(stderr, "two_runtimes: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static void get(void *from, const char *name, void *function, size_t bytes)
{
    void *found = dlsym(from, name);
    check(found != NULL, name);
    memcpy(function, &found, bytes);
}
#define GET(from, type, name, ...)                                                                                     \
    type (*name)(__VA_ARGS__);                                                                                         \
    get(from, #name, &name, sizeof(name))

static void work(void *runtime)
{
    enum { COUNT = 1024, FROM_DEVICE = 2, TO_DEVICE = 1 };
    static float sent[COUNT], received[COUNT];
    void *nccl = library("libnccl.so.2"), *driver = library("libcuda.so.1"), *memory = NULL, *stream = NULL;
    ncclComm_t comm;
    int version = 0, theirs = 0, count = 0;
    GET(runtime, int, cudaMalloc, void **, size_t);
    GET(runtime, int, cudaStreamCreate, void **);
    GET(runtime, int, cudaStreamSynchronize, void *);
    GET(runtime, int, cudaMemcpy, void *, const void *, size_t, int);
    GET(runtime, int, cudaRuntimeGetVersion, int *);
    GET(nccl, int, ncclCommInitAll, ncclComm_t *, int, const int *);
    GET(nccl, int, ncclAllReduce, const void *, void *, size_t, int, int, ncclComm_t, void *);
    GET(nccl, int, ncclCommDestroy, ncclComm_t);
    GET(driver, int, cuInit, unsigned int);
    GET(driver, int, cuDeviceGetCount, int *);
    GET(driver, int, cuDriverGetVersion, int *);
    for (int i = 0; i < COUNT; i++) {
        sent[i] = (float)i;
    }
    CHECK(!cudaMalloc(&memory, sizeof(sent)) && !cudaStreamCreate(&stream));
    CHECK(!cudaMemcpy(memory, sent, sizeof(sent), TO_DEVICE));
    CHECK(!ncclCommInitAll(&comm, 1, NULL));
    CHECK(!ncclAllReduce(memory, memory, COUNT, ncclFloat, ncclSum, comm, stream));
    CHECK(!cudaStreamSynchronize(stream));
    CHECK(!cudaMemcpy(received, memory, sizeof(received), FROM_DEVICE));
    CHECK(!memcmp(sent, received, sizeof(sent)));
    CHECK(!ncclCommDestroy(comm));
    CHECK(!cuInit(0) && !cuDeviceGetCount(&count) && count == 8);
    unsigned gpus = 0;
    void *nvml = library("libnvidia-ml.so.1"), *gpu = NULL, *same = NULL;
    unsigned long long bytes[3] = {0};
    char uuid[96];
    GET(nvml, int, nvmlInit_v2, void);
    GET(nvml, int, nvmlDeviceGetCount_v2, unsigned *);
    GET(nvml, int, nvmlDeviceGetHandleByIndex_v2, unsigned, void **);
    GET(nvml, int, nvmlDeviceGetHandleByPciBusId_v2, const char *, void **);
    GET(nvml, int, nvmlDeviceGetHandleByUUID, const char *, void **);
    GET(nvml, int, nvmlDeviceGetUUID, void *, char *, unsigned);
    GET(nvml, int, nvmlDeviceGetMemoryInfo, void *, unsigned long long *);
    CHECK(!nvmlInit_v2() && !nvmlDeviceGetCount_v2(&gpus) && gpus == 8);
    CHECK(!nvmlDeviceGetHandleByIndex_v2(0, &gpu) && !nvmlDeviceGetMemoryInfo(gpu, bytes));
    CHECK(bytes[2] >= sizeof(sent) && bytes[0] == bytes[1] + bytes[2]);
    CHECK(!nvmlDeviceGetUUID(gpu, uuid, sizeof(uuid)) && !nvmlDeviceGetHandleByUUID(uuid, &same) && same == gpu);
    CHECK(!nvmlDeviceGetHandleByPciBusId_v2("0000:10:00.0", &same) && same == gpu);
    CHECK(nvmlDeviceGetHandleByPciBusId_v2("0000:99:00.0", &same) && nvmlDeviceGetHandleByIndex_v2(8, &same));
    CHECK(!cudaRuntimeGetVersion(&version) && !cuDriverGetVersion(&theirs) && version == theirs);
}

/* NVML starts nothing that a fork would leave behind, and decides neither about devices nor about the runtime. */
static void ask_nvml_and_fork(const char *name)
{
    void *runtime = library(name), *memory = NULL;
    void *nvml = library("libnvidia-ml.so.1"), *gpu = NULL;
    unsigned gpus = 0;
    unsigned long long bytes[3] = {0};
    int count = 0, status = 0;
    library("libcudart.so.13");
    GET(nvml, int, nvmlInit_v2, void);
    GET(nvml, int, nvmlDeviceGetCount_v2, unsigned *);
    GET(nvml, int, nvmlDeviceGetHandleByIndex_v2, unsigned, void **);
    GET(nvml, int, nvmlDeviceGetMemoryInfo, void *, unsigned long long *);
    GET(runtime, int, cudaMalloc, void **, size_t);
    GET(runtime, int, cudaGetDeviceCount, int *);
    CHECK(!nvmlInit_v2() && !nvmlDeviceGetCount_v2(&gpus) && gpus == 8);
    CHECK(!nvmlDeviceGetHandleByIndex_v2(7, &gpu) && !nvmlDeviceGetMemoryInfo(gpu, bytes) && bytes[0] > 0);
    CHECK(!setenv("CUDA_VISIBLE_DEVICES", "2", 1));
    pid_t child = fork();
    CHECK(child >= 0);
    CHECK(!cudaMalloc(&memory, 4096) && memory);
    CHECK(!cudaGetDeviceCount(&count) && count == 1);
    CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
}

int main(int argc, char *argv[])
{
    if (argc < 2) {
        return 2;
    }
    if (!strcmp(argv[1], "nvml") && argc > 2) {
        ask_nvml_and_fork(argv[2]);
        return 0;
    }
    if (!strcmp(argv[1], "none")) {
        void *nccl = library("libnccl.so.2"), *memory = NULL;
        GET(nccl, int, ncclMemAlloc, void **, size_t);
        GET(nccl, int, ncclMemFree, void *);
        GET(nccl, int, ncclGetVersion, int *);
        const char *wanted = getenv("WANTED_VERSION");
        int version = 0;
        CHECK(!ncclGetVersion(&version) && (!wanted || version == atoi(wanted)));
        CHECK(!ncclMemAlloc(&memory, 4096) && !ncclMemFree(memory));
        return 0;
    }
    void *first = library(argv[1]), *second = argc > 2 ? library(argv[2]) : NULL;
    work(first);
    if (second) {
        enum { SYSTEM_DRIVER_MISMATCH = 803 };
        int count = 0;
        void *memory = NULL;
        GET(second, int, cudaGetDeviceCount, int *);
        GET(second, int, cudaMalloc, void **, size_t);
        CHECK(cudaMalloc(&memory, 16) == SYSTEM_DRIVER_MISMATCH && !memory);
        CHECK(cudaGetDeviceCount(&count) == SYSTEM_DRIVER_MISMATCH);
        work(first);
    }
    return 0;
}
