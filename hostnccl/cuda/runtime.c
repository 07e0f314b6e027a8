/*
 * runtime.c: the runtime as a whole: it starts with the first call that needs it, knows its devices from the
 * environment, refuses to work in a forked child, and keeps what belongs to a thread (current device, last error) and
 * what belongs to all: a fault of the device, after which nothing runs any more and every call that would need it
 * returns the same error.
 *
 * The runtime is never torn down: workers are detached and the state that they use is static, so a process may exit
 * with work pending, in whatever order its destructors run. A destructor that joins the workers was rejected: it would
 * hang at exit exactly in the jobs that this library exists to reproduce.
 */
#include "hostnccl/cuda/kernel.h"
#include "hostnccl/cuda/memory.h"
#include "hostnccl/cuda/private.h"
#include "hostnccl/cuda/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The memory of the device whose other properties are shown, see properties.c. */
static const size_t MEMORY_DEFAULT = (size_t)80 << 30;

static pthread_once_t start_once = PTHREAD_ONCE_INIT;
static atomic_bool is_started;
static atomic_bool is_forked;
static bool is_second;    /* the runtime of another release is at work in this process */
static _Atomic int fault; /* a cudaError_t that stays; cudaSuccess: no fault */
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;
static _Atomic int device_count; /* others ask for it before they have started the runtime */
static int physical_count;
static size_t device_bytes;
static int fill_byte;
static enum hostcuda_policy policy;
static struct hostcuda_device devices[HOSTCUDA_DEVICES_MAX];
static pthread_key_t thread_key; /* used for its destructor only */
static _Thread_local struct hostcuda_thread self = {.capture_mode = cudaStreamCaptureModeGlobal};

unsigned long long hostcuda_env(const char *name, unsigned long long low, unsigned long long high,
                                unsigned long long fallback)
{
    const char *text = getenv(name);
    if (!text || !*text) {
        return fallback;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    if (errno || *end || end == text || *text == '-' || value < low || value > high) {
        fprintf(stderr, "hostcuda: %s=%s is not a number from %llu to %llu; using %llu\n", name, text, low, high,
                fallback);
        return fallback;
    }
    return value;
}

size_t hostcuda_env_bytes(const char *name, size_t fallback)
{
    const char *text = getenv(name);
    if (!text || !*text) {
        return fallback;
    }
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 0);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (errno || end == text || *text == '-' || end[shift ? 1 : 0] || !value || value > SIZE_MAX >> shift) {
        fprintf(stderr, "hostcuda: %s=%s is not a number of bytes, with K, M or G behind it or not; using %zuG\n", name,
                text, fallback >> 30);
        return fallback;
    }
    return (size_t)value << shift;
}

cudaError_t hostcuda_unsupported(const char *call, const char *why)
{
    enum { SAID_MAX = 64 };
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *said[SAID_MAX];
    static size_t count;
    bool is_new = true;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        is_new = is_new && strcmp(said[i], call) != 0;
    }
    is_new = is_new && count < SAID_MAX;
    if (is_new) {
        said[count++] = call;
    }
    pthread_mutex_unlock(&lock);
    if (is_new) {
        fprintf(stderr, "hostcuda: %s is not supported: %s\n", call, why);
    }
    return cudaErrorNotSupported;
}

/* Fills visible[] from CUDA_VISIBLE_DEVICES; as the vendor's, the list ends at the first entry that is no device. */
static int visible_devices(int physical, int *visible)
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    if (!text) {
        for (; count < physical; count++) {
            visible[count] = count;
        }
        return count;
    }
    while (*text && count < HOSTCUDA_DEVICES_MAX) {
        char *end = NULL;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= physical) {
            break;
        }
        visible[count++] = (int)number;
        if (*end != ',') {
            break;
        }
        text = end + 1;
    }
    return count;
}

static enum hostcuda_policy read_policy(void)
{
    static const struct {
        const char *word;
        enum hostcuda_policy policy;
    } words[] = {{"skip", HOSTCUDA_KERNELS_SKIP}, {"host", HOSTCUDA_KERNELS_HOST}, {"refuse", HOSTCUDA_KERNELS_REFUSE}};
    const char *text = getenv("HOSTCUDA_KERNELS");
    if (!text || !*text) {
        return HOSTCUDA_KERNELS_OWN;
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (!strcmp(text, words[i].word)) {
            return words[i].policy;
        }
    }
    fprintf(stderr, "hostcuda: HOSTCUDA_KERNELS=%s is not skip, host or refuse; using refuse\n", text);
    return HOSTCUDA_KERNELS_REFUSE;
}

static void forget_in_child(void)
{
    if (atomic_load(&is_started)) {
        atomic_store(&is_forked, true);
    }
}

static void thread_end(void *value)
{
    struct hostcuda_thread *thread = value;
    for (int d = 0; d < HOSTCUDA_DEVICES_MAX; d++) {
        if (thread->per_thread[d] && !atomic_load(&is_forked)) {
            hostcuda_stream_close(&thread->per_thread[d]);
        }
    }
}

/* The vendor's runtimes share a driver. These two would have devices, streams and memory of their own, and a handle of
 * one is nothing to the other: so the second one refuses. */
static bool another_has_started(void)
{
    const struct hostcuda_private *found = hostcuda_find();
    if (!found || !found->is_started()) {
        return false;
    }
    fprintf(stderr,
            "hostcuda: this process uses the CUDA runtime of another release already, and can use only one "
            "stand-in: calls of libcudart.so.%d fail\n",
            CUDART_VERSION / 1000);
    return true;
}

static void read_machine(void)
{
    physical_count = (int)hostcuda_env("HOSTCUDA_DEVICES", 0, HOSTCUDA_DEVICES_MAX, HOSTCUDA_DEVICES_DEFAULT);
    device_bytes = hostcuda_env_bytes("HOSTCUDA_MEMORY", MEMORY_DEFAULT);
}

static void start(void)
{
    is_second = another_has_started();
    if (is_second) {
        return;
    }
    int visible[HOSTCUDA_DEVICES_MAX];
    int count = visible_devices(hostcuda_physical_count(), visible);
    fill_byte = getenv("HOSTCUDA_FILL") ? (int)hostcuda_env("HOSTCUDA_FILL", 0, 255, 255) : -1;

    for (int d = 0; d < count; d++) {
        devices[d].physical = visible[d];
        devices[d].total_bytes = device_bytes;
        pthread_mutex_init(&devices[d].order, NULL);
    }
    policy = read_policy();
    hostcuda_shared_join();
    hostcuda_report_start();
    for (int d = 0; d < count; d++) {
        devices[d].peak_at = -1;
    }
    pthread_key_create(&thread_key, thread_end);
    pthread_atfork(NULL, NULL, forget_in_child);
    device_count = count;
    atomic_store(&is_started, true);
}

struct hostcuda_thread *hostcuda_self(void)
{
    return &self;
}

cudaError_t hostcuda_enter(void)
{
    if (atomic_load_explicit(&is_forked, memory_order_relaxed)) {
        return cudaErrorInitializationError;
    }
    pthread_once(&start_once, start);
    return device_count ? cudaSuccess : is_second ? cudaErrorSystemDriverMismatch : cudaErrorNoDevice;
}

cudaError_t hostcuda_enter_work(void)
{
    cudaError_t error = self.is_worker ? cudaErrorNotPermitted : hostcuda_enter();
    return error ? error : hostcuda_fault();
}

bool hostcuda_fault_set(cudaError_t error)
{
    int none = cudaSuccess;
    return atomic_compare_exchange_strong(&fault, &none, (int)error);
}

cudaError_t hostcuda_fault(void)
{
    return (cudaError_t)atomic_load_explicit(&fault, memory_order_relaxed);
}

cudaError_t hostcuda_leave(cudaError_t error)
{
    if (error != cudaSuccess && !self.is_quiet) {
        self.last_error = error;
    }
    return error;
}

void hostcuda_thread_ends_with_streams(void)
{
    pthread_setspecific(thread_key, &self);
}

int hostcuda_device_count(void)
{
    return device_count;
}

int hostcuda_physical_count(void)
{
    pthread_once(&machine_once, read_machine);
    return physical_count;
}

size_t hostcuda_physical_bytes(void)
{
    pthread_once(&machine_once, read_machine);
    return device_bytes;
}

struct hostcuda_device *hostcuda_device_of(int number)
{
    return number >= 0 && number < device_count ? &devices[number] : NULL;
}

enum hostcuda_policy hostcuda_policy(void)
{
    return policy;
}

int hostcuda_fill_byte(void)
{
    return fill_byte;
}

unsigned long long hostcuda_thread_number(void)
{
    static _Atomic unsigned long long last;
    if (!self.number) {
        self.number = atomic_fetch_add(&last, 1) + 1;
    }
    return self.number;
}

uint64_t hostcuda_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

HOSTCUDA_EXPORT cudaError_t cudaGetLastError(void)
{
    cudaError_t error = self.last_error;
    self.last_error = cudaSuccess;
    return hostcuda_fault() ? hostcuda_fault() : error;
}

HOSTCUDA_EXPORT cudaError_t cudaPeekAtLastError(void)
{
    return hostcuda_fault() ? hostcuda_fault() : self.last_error;
}

HOSTCUDA_EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version) {
        return hostcuda_leave(cudaErrorInvalidValue);
    }
    *version = CUDART_VERSION;
    return cudaSuccess;
}

HOSTCUDA_EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    return cudaRuntimeGetVersion(version);
}
