/*
 * work.h: what streams and graphs do: the work of one operation, and marks, the points in time that streams reach.
 */
#ifndef ROLL_HOSTNCCL_CUDA_WORK_H
#define ROLL_HOSTNCCL_CUDA_WORK_H

#include "hostnccl/cuda/hostcuda.h"

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

#endif
