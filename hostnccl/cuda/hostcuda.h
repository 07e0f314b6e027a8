/*
 * hostcuda.h: hostcuda: the part of the CUDA runtime that NCCL programs use, on host memory. This header is what its
 * own files share; programs see the vendor's <cuda_runtime.h>, or ours of the same ABI in hostnccl/include.
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

/* shared.c: what other processes of the rehearsal use, HOSTCUDA_SHARED */

struct hostcuda_user {
    int pid;
    size_t used_bytes;
};

/* Takes a place for this process, once, when the runtime starts. */
void hostcuda_shared_join(void);

/* Tells what this process uses of a device, which is named by its number before CUDA_VISIBLE_DEVICES. Any thread. */
void hostcuda_shared_set(int physical, size_t used);

/* What all others use; without is_exact, processes that have ended may still count. Any thread. */
size_t hostcuda_shared_others(int physical, bool is_exact);

/* The others that use the device. Returns how many there are, which may be more than the room. */
size_t hostcuda_shared_users(int physical, struct hostcuda_user *users, size_t room);

/* pages.c: memory that is reserved, and committed page by page when it is written */

/* Addresses of zeroes; NULL where the machine gives none. Returns owned. */
void *hostcuda_pages_reserve(size_t bytes);
void hostcuda_pages_release(void *memory, size_t bytes);

/* Zeroes reserved memory, and copies reserved memory to other reserved memory that does not overlap it; pages are
 * committed only where they must be. */
void hostcuda_pages_zero(void *memory, size_t bytes);
void hostcuda_pages_copy(void *dst, const void *src, size_t bytes);

/* Copies reserved memory to fresh memory, which is zero and does not overlap the source. */
void hostcuda_pages_carry(void *dst, const void *src, size_t bytes);

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

/* mark.c: points in time of streams */

/* A mark: reached when `open` is 0. A new mark has open = 1, which its maker closes or hands to a stream. */
struct hostcuda_mark {
    _Atomic uint32_t open; /* futex word */
    atomic_int refs;
    _Atomic uint64_t time_ns; /* when the mark was reached; read it only after that */
};

/* A new mark with one reference and open = 1, or NULL without memory. Returns owned. */
struct hostcuda_mark *hostcuda_mark_new(void);
struct hostcuda_mark *hostcuda_mark_ref(struct hostcuda_mark *mark);
void hostcuda_mark_put(struct hostcuda_mark *mark); /* NULL is allowed */

/* Adds one place that must be passed before the mark is reached. */
void hostcuda_mark_open(struct hostcuda_mark *mark);

/* Notes that one place was passed; the last one stamps the time and wakes the waiters. */
void hostcuda_mark_close(struct hostcuda_mark *mark);
bool hostcuda_mark_reached(const struct hostcuda_mark *mark);
void hostcuda_mark_wait(struct hostcuda_mark *mark); /* sleeps until reached */

/* work.c: what a stream, or a node of a graph, does */

/*
 * A host function that must know of every launch before it runs. `prepare` is called when the work is enqueued or its
 * graph launched, on the caller's thread and in the order of the launches; its result goes to `run`, on a worker.
 */
struct hostcuda_prepared {
    void *(*prepare)(void *data);
    void (*run)(void *instance);
};

/* Bytes, rows and slices; one slice of one row is a plain copy. */
struct hostcuda_copy {
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch; /* from row to row */
    size_t dst_slice, src_slice; /* from slice to slice */
    size_t width, height, depth;
    enum cudaMemcpyKind kind; /* as the caller said */
};

struct hostcuda_fill {
    void *dst;
    unsigned int value, element; /* bytes of an element: 1, 2 or 4 */
    size_t pitch, width, height; /* width in bytes */
};

/* One operation on memory that the driver interface batches. */
struct hostcuda_memory_op {
    enum { HOSTCUDA_WRITE_32, HOSTCUDA_WRITE_64, HOSTCUDA_WAIT_32, HOSTCUDA_WAIT_64, HOSTCUDA_BARRIER } what;
    unsigned int how; /* of a wait: the driver's flag for the comparison */
    void *address;
    uint64_t value;
};

/* A function that stands for a kernel; its parameters are as a launch lays them out, one pointer each. */
typedef void hostcuda_kernel_fn(void **parameters);

/* Tells the library of device code, if there is one, of memory that kernels may touch. kernel_code.c. */
void hostcuda_code_memory(const void *start, size_t bytes, bool is_there);

struct hostcuda_code_entry;

struct hostcuda_kernel {
    hostcuda_kernel_fn *fn;                 /* a twin; NULL: none */
    const struct hostcuda_code_entry *code; /* or code that runs on the processor; neither: the launch is skipped */
    struct hostcuda_function *function;
    void *block; /* owned: pointers, then the values of the parameters; NULL: none */
    size_t block_bytes, count, shared_bytes;
    unsigned int grid[3], threads[3];
    bool is_overlapped;   /* code.h */
    unsigned int cluster; /* code.h */
};

/* Runs or skips a launch, and counts it. kernel_count.c. */
void hostcuda_kernel_run(const struct hostcuda_kernel *kernel);

enum { HOSTCUDA_NODE_BATCH = 12 }; /* the driver's number for a node that holds a batch of memory operations */

/* A node that runs one of its bodies, or none. */
struct hostcuda_condition {
    unsigned long long handle;
    enum cudaGraphConditionalNodeType type;
    struct hostcuda_graph **bodies; /* owned, as is each of them; to the program an array of handles */
    unsigned int count;
};

struct hostcuda_work {
    int type; /* a cudaGraphNodeType, or HOSTCUDA_NODE_BATCH */
    union {
        struct {
            cudaHostFn_t fn;
            void *data;
            const struct hostcuda_prepared *how; /* NULL: the work is fn(data) and nothing else */
        } host;
        struct hostcuda_copy copy;
        struct hostcuda_fill fill;
        struct hostcuda_event *event;         /* owned reference; nodes that record or await an event */
        struct hostcuda_graph *child;         /* owned; nodes that are graphs */
        struct hostcuda_graph_memory *memory; /* owned reference; nodes that allocate or free it */
        struct {
            struct hostcuda_memory_op *ops; /* owned */
            size_t count;
        } batch;
        struct hostcuda_kernel kernel;
        struct hostcuda_condition condition;
    } arg;
};

/*
 * Performs the work in the calling thread. After a fault of the device nothing runs but prepared work, which checks for
 * the fault itself. `instance`: the result of `prepare`; NULL for other work.
 */
void hostcuda_work_run(const struct hostcuda_work *work, void *instance);

/* Makes a copy that owns what it needs. cudaErrorMemoryAllocation. */
cudaError_t hostcuda_work_copy(struct hostcuda_work *copy, const struct hostcuda_work *work);

/* Gives back what the work owns. */
void hostcuda_work_drop(struct hostcuda_work *work);

/* graph_memory.c: memory that a graph owns. Any thread; NULL is allowed for put. */
struct hostcuda_graph_memory *hostcuda_graph_memory_ref(struct hostcuda_graph_memory *memory);
void hostcuda_graph_memory_put(struct hostcuda_graph_memory *memory);

/* What a node does. */
void hostcuda_graph_memory_run(struct hostcuda_graph_memory *memory, bool allocates);

/* stream.c: queues and workers */

struct hostcuda_op {
    struct hostcuda_op *next;
    void (*run)(struct hostcuda_op
                    *op); /* called on the worker; releases what the arguments own, but not the operation itself */
    union {
        struct hostcuda_mark *mark; /* owned */
        struct {
            struct hostcuda_work work;
            void *staged;   /* owned copy of the source of a copy, or NULL */
            void *instance; /* of prepared work */
        } work;
        struct {
            cudaStreamCallback_t fn;
            void *data;
            cudaStream_t stream; /* as the caller named it */
        } callback;
        struct {
            struct hostcuda_launch *launch; /* owned reference */
            size_t index;
        } step;
        void *memory; /* to be freed */
    } arg;
};

/* Operations in a row, which a stream takes together. */
struct hostcuda_chain {
    struct hostcuda_op *head, **tail; /* the last one's `next`, which is NULL */
    uint64_t count;
};

struct hostcuda_stream {
    struct hostcuda_handle handle;
    int device;
    unsigned int flags;
    int priority;
    unsigned long long id;
    struct hostcuda_stream *next; /* on the device; guarded by device.order */

    pthread_mutex_t lock;
    pthread_cond_t work;
    struct hostcuda_op *head, **tail; /* guarded by lock, as all below down to the empty line */
    struct hostcuda_op
        *running; /* the operation that the worker runs: for debuggers, and for leak checkers in a forked child */
    uint64_t pushed, done; /* operations */
    bool has_worker, closing;

    /* Implicit order with the legacy stream, guarded by device.order. Numbers count submitted operations. */
    uint64_t submitted;
    uint64_t legacy_seen;    /* operations of the legacy stream behind which this stream is ordered */
    uint64_t seen_by_legacy; /* operations of this stream behind which the legacy stream is ordered */

    /* Capture, guarded by the lock of graphs; `capture` may be read without it. */
    _Atomic(struct hostcuda_capture *) capture;
    struct hostcuda_stream *next_captured;
    struct hostcuda_node **tips; /* the nodes on which the stream's next node depends; owned array of borrowed nodes */
    size_t tip_count;
};

/* A new stream on a device; the device's list keeps it until it is drained. Returns owned (one reference), NULL without
 * memory. */
struct hostcuda_stream *hostcuda_stream_new(int device, unsigned int flags, int priority);

/*
 * Blocks signals in a thread that the program did not make: all signals but those that the thread's own code raises,
 * and profiling. `before` receives the previous mask.
 */
void hostcuda_block_signals(sigset_t *before);

/* Takes the owner's reference: queued work still runs, then the stream is freed. Returns at once. */
void hostcuda_stream_close(struct hostcuda_stream **stream);

/* Gives a reference back. */
void hostcuda_stream_put(struct hostcuda_stream *stream);

/*
 * Appends an operation behind everything that it must follow. Takes op on success; on failure the caller keeps it.
 * Errors: cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_submit(struct hostcuda_stream *stream, struct hostcuda_op *op);

/*
 * The same for a chain, all of it or nothing; one that is not empty. hostcuda_stream_ready makes beforehand what it
 * takes: behind that, submitting fails only where the stream is being destroyed, or must follow new work of the legacy
 * stream. The same errors.
 */
cudaError_t hostcuda_stream_ready(struct hostcuda_stream *stream);
cudaError_t hostcuda_stream_submit_chain(struct hostcuda_stream *stream, struct hostcuda_chain *chain);

/* Operations that close a mark, or wait until it is reached; each takes a reference of its own. NULL without memory. */
struct hostcuda_op *hostcuda_op_close(struct hostcuda_mark *mark);
struct hostcuda_op *hostcuda_op_wait(struct hostcuda_mark *mark);

/* Enqueues work, or adds it to the capture of the stream. Takes what the work owns, also on failure.
 * cudaErrorMemoryAllocation, errors of capture. */
cudaError_t hostcuda_stream_do(struct hostcuda_stream *stream, struct hostcuda_work *work);

/*
 * Enqueues a copy; `staged` (taken) holds the source's content where the source may change. Errors:
 * cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_copy(struct hostcuda_stream *stream, const struct hostcuda_copy *copy, void *staged);

/* Closes one place of the mark when everything enqueued so far has run; at once when there is nothing. Takes that place
 * on success; keeps a reference while pending. cudaErrorMemoryAllocation. */
cudaError_t hostcuda_stream_record(struct hostcuda_stream *stream, struct hostcuda_mark *mark);

/*
 * Makes the stream wait for a mark; the calling thread does not wait, because the wait is work of the stream. Borrows
 * the mark. Errors: cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_stream_follow(struct hostcuda_stream *stream, struct hostcuda_mark *mark);

/* Sleeps until everything enqueued before the call has run. */
cudaError_t hostcuda_stream_synchronize(struct hostcuda_stream *stream);

/* Whether nothing is queued or running, implicit predecessors included. */
bool hostcuda_stream_is_idle(struct hostcuda_stream *stream);

/* Whether something is queued or running on the stream itself. */
bool hostcuda_stream_is_busy(struct hostcuda_stream *stream);

/* Sleeps until every stream of the device has run what was enqueued before the call. */
cudaError_t hostcuda_device_drain(int device);

/* The same, for so long at most, for a caller whom the work of the device may wait for. */
void hostcuda_device_settle(int device, unsigned int at_most_ms);

/* handle.c: which stream a handle means */

/*
 * Finds the stream that a handle means for the calling thread; the caller puts back the reference. Errors:
 * cudaErrorInvalidResourceHandle. hostcuda_enter_stream does hostcuda_enter_work before, and has its errors as well.
 */
cudaError_t hostcuda_stream_get(cudaStream_t handle, struct hostcuda_stream **stream);
cudaError_t hostcuda_enter_stream(cudaStream_t handle, struct hostcuda_stream **stream);

/* Closes every stream that a program made on the device and, unless work is still running, frees its memory. Never
 * waits. */
void hostcuda_device_reset(int device);

/* copy.c: what graphs need of copies */

/*
 * Checks that both sides are what the direction says and lie inside one allocation each. Errors: those of
 * cudaMemcpyAsync.
 */
cudaError_t hostcuda_copy_check(const struct hostcuda_copy *copy);

/* Checks the destination of a fill; *type receives its kind of memory, unless `type` is NULL. */
cudaError_t hostcuda_fill_check(const struct hostcuda_fill *fill, enum cudaMemoryType *type);

/* event.c: what graphs need of events */

struct hostcuda_event *hostcuda_event_ref(struct hostcuda_event *event);
void hostcuda_event_put(struct hostcuda_event *event);

/* The event behind a handle with a reference to put back; NULL when it is not alive. */
struct hostcuda_event *hostcuda_event_get(cudaEvent_t handle);

/* The mark that the event stands for, with a reference; NULL before the first record and after a captured one. */
struct hostcuda_mark *hostcuda_event_mark(struct hostcuda_event *event);

/* Makes the event stand for the mark from now on. Takes the reference. */
void hostcuda_event_set(struct hostcuda_event *event, struct hostcuda_mark *mark);

/* Whether other processes may have the event; then it has no mark, and no place in a graph. */
bool hostcuda_event_is_shared(const struct hostcuda_event *event);

/* event_shared.c: events of several processes */

struct hostcuda_shared_event;

struct hostcuda_shared_event *hostcuda_shared_event_new(void);       /* one reference; NULL without memory */
void hostcuda_shared_event_put(struct hostcuda_shared_event *event); /* NULL is allowed */
bool hostcuda_shared_event_reached(const struct hostcuda_shared_event *event);
void hostcuda_shared_event_wait(struct hostcuda_shared_event *event);

/* The operation of a stream that records the event, or waits for the last record until now; owned, NULL without memory.
 * One that no stream takes must be dropped. */
struct hostcuda_op *hostcuda_shared_event_record(struct hostcuda_shared_event *event);
struct hostcuda_op *hostcuda_shared_event_follow(struct hostcuda_shared_event *event);
void hostcuda_shared_event_drop(struct hostcuda_op *op);

/* Writes the handle for another process; false where the event is another process's. */
bool hostcuda_shared_event_give(struct hostcuda_shared_event *event, cudaIpcEventHandle_t *handle);

/* Returns owned. cudaErrorInvalidResourceHandle, cudaErrorDeviceUninitialized for the own process's handle,
 * cudaErrorMapBufferObjectFailed where the owner is gone, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_shared_event_open(struct hostcuda_shared_event **out, const cudaIpcEventHandle_t *handle);

/* capture.c: streams that record instead of run */

static inline bool hostcuda_stream_is_captured(struct hostcuda_stream *stream)
{
    return atomic_load_explicit(&stream->capture, memory_order_acquire) != NULL;
}

/*
 * Adds work to the capture of the stream, as a node behind the stream's tips that becomes the new tip. Takes what the
 * work owns, also on failure. Errors: cudaErrorStreamCaptureInvalidated, cudaErrorMemoryAllocation.
 */
cudaError_t hostcuda_capture_add(struct hostcuda_stream *stream, struct hostcuda_work *work);

/*
 * Refuses what a capture cannot hold. On a captured stream: invalidates the capture, cudaErrorStreamCaptureUnsupported.
 * On a legacy stream that would have to wait for a captured stream: invalidates the capture of that stream,
 * cudaErrorStreamCaptureImplicit.
 */
cudaError_t hostcuda_capture_refuse(struct hostcuda_stream *stream);

/* Does only the second half of hostcuda_capture_refuse. */
cudaError_t hostcuda_capture_refuse_implicit(struct hostcuda_stream *stream);

/*
 * Refuses, as the modes of the capture and of the calling thread demand, a call that no capture sees although it may
 * depend on it (allocations, queries): cudaErrorStreamCaptureUnsupported, and the capture is invalidated.
 */
cudaError_t hostcuda_capture_unsafe(void);

/*
 * Refuses a call about a whole device while streams of the device are captured: cudaErrorStreamCaptureUnsupported, and
 * its captures are invalidated.
 */
cudaError_t hostcuda_capture_refuse_device(int device);

/*
 * Takes a stream that is being destroyed out of its capture, which is invalid from then on. If the stream began the
 * capture, the capture ends.
 */
void hostcuda_capture_forget(struct hostcuda_stream *stream);

/* The part of an event that says where in a capture it was recorded. Guarded by the lock of graphs. */
struct hostcuda_captured {
    struct hostcuda_capture *capture; /* owned reference; NULL: not captured */
    struct hostcuda_node **tips;      /* owned array */
    size_t tip_count;
};

/* Records an event in a captured stream. */
cudaError_t hostcuda_capture_record(struct hostcuda_stream *stream, struct hostcuda_captured *at);

/* Makes a stream wait for a captured event, which joins the stream to the capture. */
cudaError_t hostcuda_capture_follow(struct hostcuda_stream *stream, const struct hostcuda_captured *at);

/*
 * Refuses the wait of a captured stream for an event outside its capture: cudaErrorStreamCaptureIsolation, and the
 * capture is invalidated.
 */
cudaError_t hostcuda_capture_isolate(struct hostcuda_stream *stream);

/*
 * Refuses an event that was recorded in a capture, ended or not: cudaErrorCapturedEvent; a capture under way is
 * invalidated.
 */
cudaError_t hostcuda_capture_refuse_event(const struct hostcuda_captured *at);
void hostcuda_captured_clear(struct hostcuda_captured *at);

/* memory.c: who owns which address */

/* One allocation or registration. */
struct hostcuda_range {
    uintptr_t start, end; /* [start, end), the key of the table */
    enum cudaMemoryType type;
    int device;
    unsigned int flags;
    bool is_registered; /* the memory belongs to the program and is not freed */
    bool is_reserved;   /* pages of pages.c that no other process sees */
    bool is_virtual;    /* addresses of virtual.c, with memory at some of them, or of graph_memory.c */
    bool is_of_graph;   /* of graph_memory.c, which tells the library of device code when it is there */
    bool is_mapped;     /* pages that other processes see */
    int file;           /* of mapped pages: the file under them, owned; negative: another process owns the memory */
    struct hostcuda_pool *pool; /* from which it was allocated, owned reference; NULL: none */
};

/* Copies the range that holds all of [address, address + bytes); false when no range does. Any thread. */
bool hostcuda_range_find(const void *address, size_t bytes, struct hostcuda_range *range);

/* Lets `share` turn the range that holds an address into mapped memory, unless it is that already, and copies the
 * result. Errors: those of share; cudaErrorInvalidValue when no range does. */
cudaError_t hostcuda_range_share(const void *address, cudaError_t (*share)(struct hostcuda_range *range),
                                 struct hostcuda_range *copy);

/* Makes memory of another process known as memory of the calling thread's device, until it is removed, which unmaps it.
 * cudaErrorMemoryAllocation; cudaErrorInvalidValue when it is not known. */
cudaError_t hostcuda_range_add_mapped(void *memory, size_t bytes);
cudaError_t hostcuda_range_remove_mapped(const void *memory);

/* The same for addresses of virtual.c, and of graph_memory.c, which stay when the range is removed; `device` is that of
 * the memory. */
cudaError_t hostcuda_range_add_virtual(void *memory, size_t bytes, int device, bool is_of_graph);

/* Counts memory of a device that is not in the table; false: the device has no room. */
bool hostcuda_bytes_take(int device, size_t bytes);
void hostcuda_bytes_give(int device, size_t bytes);

/* A piece of a file of this process that lies somewhere in memory; `file` is borrowed. */
struct hostcuda_piece {
    int file;
    off_t at;
    size_t bytes;
};

/*
 * ipc.c: the files under device memory, in the order of the addresses, so that another process can map the same bytes;
 * memory that has none gets one, in its place and with its content. *out is owned by the caller; *count is 0 where this
 * is no memory of a device. Errors: cudaErrorInvalidValue when the bytes lie in no single allocation, or at addresses
 * without memory; cudaErrorNotSupported for memory that belongs to another process; those of memory and of files.
 */
cudaError_t hostcuda_pieces_of(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count);

/* virtual.c: addresses and memory apart. Sizes are multiples of HOSTCUDA_VIRTUAL_GRANULE. All return
 * cudaErrorInvalidValue for what is not known or does not fit, cudaErrorMemoryAllocation, cudaErrorOperatingSystem. */
cudaError_t hostcuda_virtual_reserve(void **out, size_t bytes, size_t alignment);
cudaError_t hostcuda_virtual_free(void *memory, size_t bytes);
cudaError_t hostcuda_virtual_create(struct hostcuda_memory **out, size_t bytes, int device, bool is_shared);
cudaError_t hostcuda_virtual_release(struct hostcuda_memory *memory);
cudaError_t hostcuda_virtual_retain(struct hostcuda_memory **out,
                                    const void *at); /* one more handle of what lies there */
cudaError_t hostcuda_virtual_about(struct hostcuda_memory *memory, int *device, bool *is_shared);
cudaError_t hostcuda_virtual_map(void *at, size_t bytes, size_t offset, struct hostcuda_memory *handle);
cudaError_t hostcuda_virtual_unmap(void *at, size_t bytes);
cudaError_t hostcuda_virtual_access(void *at, size_t bytes, bool can_read, bool can_write);

/* The second half of hostcuda_pieces_of, for addresses of virtual.c. */
cudaError_t hostcuda_virtual_pieces(const void *at, size_t bytes, struct hostcuda_piece **out, size_t *count);

/* `file` belongs to the caller in both. */
cudaError_t hostcuda_virtual_export(int *file, struct hostcuda_memory *handle);
cudaError_t hostcuda_virtual_import(struct hostcuda_memory **out, int file);

/* Frees everything that belongs to a device; for cudaDeviceReset. */
void hostcuda_memory_reset(int device);

/* For memory_order.c: an allocation of a pool, whose reference it takes on success (cudaErrorMemoryAllocation); whether
 * such a one, or one of cudaMalloc, begins at an address; and its end, at once. */
cudaError_t hostcuda_memory_allocate(void **out, size_t bytes, struct hostcuda_pool *pool);
bool hostcuda_memory_may_free(const void *memory);
void hostcuda_memory_free(const void *memory);

/* What cudaFree does with it: waits for the device first. */
cudaError_t hostcuda_memory_free_now(void *memory);

/* pool.c */

/* Counts bytes that are allocated from a pool, the device's own when the handle is NULL. Returns an owned reference,
 * which hostcuda_pool_give takes. cudaErrorInvalidValue, cudaErrorInvalidDevice, cudaErrorMemoryAllocation. */
cudaError_t hostcuda_pool_take(cudaMemPool_t handle, int device, size_t bytes, struct hostcuda_pool **pool);
void hostcuda_pool_give(struct hostcuda_pool *pool, size_t bytes); /* NULL is allowed */
int hostcuda_pool_device(const struct hostcuda_pool *pool);

#endif
