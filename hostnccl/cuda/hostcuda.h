/*
 * hostcuda.h: hostcuda: the part of the CUDA runtime that NCCL programs use, on host memory. This header is what all of
 * its own files share; work.h, stream.h, memory.h and graph.h are about one thing each. Programs see the vendor's
 * <cuda_runtime.h>, or ours of the same ABI in hostnccl/include.
 *
 * Vocabulary. A *stream* is a queue of *operations* that one worker thread runs in order. A *mark* is a point in one or
 * more streams that is reached at some time: events, synchronisation and waits between streams are all marks. Workers
 * only ever sleep on condition variables and futexes.
 *
 * Locks, in the order in which they may be nested: an executable graph's lock, the lock of graphs, device.order,
 * stream.lock. The registry of handles, the table of allocations and each event have a lock of their own, inside which
 * nothing else is locked; for the lock of graphs' memory see graph_memory.h.
 */
#ifndef ROLL_HOSTNCCL_CUDA_HOSTCUDA_H
#define ROLL_HOSTNCCL_CUDA_HOSTCUDA_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HOSTCUDA_EXPORT __attribute__((visibility("default")))

/* The name of the form with data of edges: the plain one in CUDA 13, one with a number in CUDA 12. */
#if CUDART_VERSION >= 13000
#define HOSTCUDA_FORM(name, number) name
#else
#define HOSTCUDA_FORM(name, number) name##number
#endif

enum {
    HOSTCUDA_DEVICES_DEFAULT = 8,
    HOSTCUDA_DEVICES_MAX = 64,
    HOSTCUDA_PRIORITY_LEAST = 0,
    HOSTCUDA_PRIORITY_GREATEST = -5,
    HOSTCUDA_PITCH_ALIGN = 512,
    HOSTCUDA_MALLOC_ALIGN = 256,
    HOSTCUDA_VIRTUAL_GRANULE = 2 << 20,
};

struct hostcuda_capture;
struct hostcuda_event;
struct hostcuda_function;
struct hostcuda_graph;
struct hostcuda_graph_memory;
struct hostcuda_memory;
struct hostcuda_node;
struct hostcuda_op;
struct hostcuda_pool;
struct hostcuda_stream;

/* runtime.c: start, fork, the calling thread */

struct hostcuda_device {
    int physical;                    /* number before CUDA_VISIBLE_DEVICES */
    size_t total_bytes;              /* limit of allocations */
    _Atomic size_t used_bytes;       /* allocated by this process */
    size_t peak_bytes;               /* the most that used_bytes has been; guarded by the lock in memory.c */
    off_t peak_at;                   /* place of that number in the report */
    pthread_mutex_t order;           /* guards streams, legacy, and the order of enqueues to blocking streams */
    struct hostcuda_stream *streams; /* every stream of the device that is not drained and destroyed */
    struct hostcuda_stream *legacy;  /* the default stream; NULL until used */
    atomic_bool peers[HOSTCUDA_DEVICES_MAX];
};

struct hostcuda_thread {
    int device;
    cudaError_t last_error;
    enum cudaStreamCaptureMode capture_mode;
    unsigned long long number; /* number of the thread in this process; 0 until it was asked for */
    bool is_quiet;             /* errors do not become the thread's last error */
    bool is_worker;            /* runs host functions: most calls are not permitted */
    struct hostcuda_stream *per_thread[HOSTCUDA_DEVICES_MAX]; /* the thread's default streams, owned */
};

/* The calling thread's state; never NULL. Any thread. */
struct hostcuda_thread *hostcuda_self(void);

/*
 * Starts the runtime once. Errors: cudaErrorInitializationError in a child that was forked after the start,
 * cudaErrorNoDevice without devices.
 */
cudaError_t hostcuda_enter(void);

/*
 * hostcuda_enter for calls that enqueue, wait or allocate. Errors: cudaErrorNotPermitted inside a host function; after
 * a fault of the device, the error of that fault.
 */
cudaError_t hostcuda_enter_work(void);

/*
 * Notes a fault of the device (something that runs on it did what it must not): from now on nothing that is queued
 * runs, and calls return the error until the process ends. True for the first fault. Any thread.
 */
bool hostcuda_fault_set(cudaError_t error);

/* The error of such a fault; cudaSuccess when there was none. */
cudaError_t hostcuda_fault(void);

/* Keeps an error as the thread's last error; returns it. Every public call ends with it. */
cudaError_t hostcuda_leave(cudaError_t error);

/* Makes the runtime close the calling thread's default streams when the thread ends. */
void hostcuda_thread_ends_with_streams(void);

/* Number of visible devices; 0 before hostcuda_enter. */
int hostcuda_device_count(void);

/* Number of devices before CUDA_VISIBLE_DEVICES, and the memory of each. These start nothing. */
int hostcuda_physical_count(void);
size_t hostcuda_physical_bytes(void);

/* The device with that number; NULL out of range. Borrowed. */
struct hostcuda_device *hostcuda_device_of(int number);

/* A number from the environment within [low, high]; prints one line and returns fallback when it is not one. */
unsigned long long hostcuda_env(const char *name, unsigned long long low, unsigned long long high,
                                unsigned long long fallback);

/*
 * A number of bytes from the environment, with K, M or G behind it for powers of 1024; otherwise as hostcuda_env. At
 * least 1.
 */
size_t hostcuda_env_bytes(const char *name, size_t fallback);

/*
 * Says once in the life of the process, on standard error, that a call is not there and why. Returns
 * cudaErrorNotSupported. `call` must stay valid.
 */
cudaError_t hostcuda_unsupported(const char *call, const char *why);

/* The byte that fresh memory is filled with, HOSTCUDA_FILL; negative for none. */
int hostcuda_fill_byte(void);

/* A number that no other thread of the process has or had. */
unsigned long long hostcuda_thread_number(void);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t hostcuda_now_ns(void);

/* report.c: what the process did, as a file */

void hostcuda_report_start(void);
bool hostcuda_report_is_wanted(void);

/* Appends a line; returns the place of its number of 20 digits, which begins number_at bytes into the line. Negative:
 * no report. Any thread. */
off_t hostcuda_report_line(int number_at, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Overwrites the number at a place; nothing happens where the place is negative. Any thread. */
void hostcuda_report_number(off_t at, unsigned long long number);

/* registry.c: which handles live */

enum hostcuda_handle_kind {
    HOSTCUDA_STREAM,
    HOSTCUDA_EVENT,
    HOSTCUDA_GRAPH,
    HOSTCUDA_NODE,
    HOSTCUDA_EXEC,
    HOSTCUDA_USER_OBJECT,
    HOSTCUDA_KERNEL,
    HOSTCUDA_LIBRARY,
    HOSTCUDA_POOL,
    HOSTCUDA_MEMORY,
    HOSTCUDA_HANDLE_KINDS
};

/* The first member of every object that has a handle. */
struct hostcuda_handle {
    atomic_int refs;
    void (*release)(struct hostcuda_handle *); /* frees the object; called when refs reaches 0 */
};

/* Makes a handle known to the registry, which keeps one reference. Errors: cudaErrorMemoryAllocation. */
cudaError_t hostcuda_handle_add(enum hostcuda_handle_kind kind, struct hostcuda_handle *handle);

/* Takes one more reference if the handle is alive, else returns NULL; any value is allowed. */
struct hostcuda_handle *hostcuda_handle_get(enum hostcuda_handle_kind kind, const void *value);

/* Forgets a handle and hands its registry reference to the caller; NULL when it is not alive. */
struct hostcuda_handle *hostcuda_handle_remove(enum hostcuda_handle_kind kind, const void *value);

/* Gives a reference back. NULL is allowed. */
void hostcuda_handle_put(struct hostcuda_handle *handle);

/* properties.c */

/* What the driver interface tells of a device; its layout is the same for every release of CUDA. */
struct hostcuda_about {
    char name[64], uuid[16], bus[32]; /* the place on the bus as text */
    int physical;                     /* number before CUDA_VISIBLE_DEVICES */
    int major, minor;
    size_t total_bytes, used_bytes; /* used by this process */
    size_t others_bytes;            /* and by others of the rehearsal */
};
cudaError_t hostcuda_about(int number, struct hostcuda_about *about);

/* The same by the number before CUDA_VISIBLE_DEVICES, also of a device that is not visible. It does not start the
 * runtime: NVML may be asked before a fork, or before the program chooses its devices, and before it has chosen one of
 * two runtimes. */
cudaError_t hostcuda_about_physical(int physical, struct hostcuda_about *about);

#endif
