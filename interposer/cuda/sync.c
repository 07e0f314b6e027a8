/*
 * sync.c: the CUDA runtime's host waits: where a rank's host is blocked, and on which stream.
 *
 * A host that polls waits as well; poll.h has the loops of queries. So does a host that frees memory, and one that
 * copies to or from host memory: the runtime lets work end first. Nobody can see from outside whether such a call had
 * to wait, so it is recorded as one that may (S_MAY in trace/op.def). Copies that cannot wait are left out: those of
 * device memory, and asynchronous ones to the device.
 *
 * Waits are recorded only while there is a session, that is, in processes that use NCCL. cudaEventRecord is wrapped for
 * two reasons: to know which stream an event wait is about, and what a stream waits for (order.h). The waits of an
 * application that has the CUDA runtime linked in statically do not come by here and are not seen.
 */
#include "interposer/cuda/order_note.h"
#include "interposer/wrap/call.h"

/* The result of a wait when there is no CUDA runtime behind it: cudaErrorSharedObjectInitFailed. */
#define NO_RUNTIME 303

enum wait_function {
    STREAM_SYNC,
    STREAM_SYNC_PTSZ,
    EVENT_SYNC,
    DEVICE_SYNC,
    FREE,
    FREE_HOST,
    MEMCPY,
    MEMCPY_PTDS,
    MEMCPY_ASYNC,
    MEMCPY_ASYNC_PTSZ,
    EVENT_RECORD,
    EVENT_RECORD_PTSZ,
    EVENT_RECORD_FLAGS,
    EVENT_RECORD_FLAGS_PTSZ,
    STREAM_QUERY,
    STREAM_QUERY_PTSZ,
    EVENT_QUERY,
    WAIT_FUNCTIONS,
};

static const char *const names[WAIT_FUNCTIONS] = {
    [STREAM_SYNC] = "cudaStreamSynchronize",
    [STREAM_SYNC_PTSZ] = "cudaStreamSynchronize_ptsz",
    [EVENT_SYNC] = "cudaEventSynchronize",
    [DEVICE_SYNC] = "cudaDeviceSynchronize",
    [FREE] = "cudaFree",
    [FREE_HOST] = "cudaFreeHost",
    [MEMCPY] = "cudaMemcpy",
    [MEMCPY_PTDS] = "cudaMemcpy_ptds",
    [MEMCPY_ASYNC] = "cudaMemcpyAsync",
    [MEMCPY_ASYNC_PTSZ] = "cudaMemcpyAsync_ptsz",
    [EVENT_RECORD] = "cudaEventRecord",
    [EVENT_RECORD_PTSZ] = "cudaEventRecord_ptsz",
    [EVENT_RECORD_FLAGS] = "cudaEventRecordWithFlags",
    [EVENT_RECORD_FLAGS_PTSZ] = "cudaEventRecordWithFlags_ptsz",
    [STREAM_QUERY] = "cudaStreamQuery",
    [STREAM_QUERY_PTSZ] = "cudaStreamQuery_ptsz",
    [EVENT_QUERY] = "cudaEventQuery",
};
static roll_function_t reals[WAIT_FUNCTIONS];

static roll_function_t real_of(enum wait_function which)
{
    roll_function_t real = __atomic_load_n(&reals[which], __ATOMIC_ACQUIRE);
    if (ROLL_UNLIKELY(real == NULL)) {
        real = roll_symbol_resolve(names[which], "libcudart.so");
        __atomic_store_n(&reals[which], real, __ATOMIC_RELEASE);
    }
    return real;
}

/* How many records of waits there are. */
static _Atomic uint64_t wait_records;

/* Enters a wait. `place`: that of the event waited for, 0 where there is no event or its place is not known. `event`:
 * that event; NULL: the wait is for the stream. */
static void enter_wait(struct roll_thread *t, struct roll_call *call, uint8_t op, uint16_t stream, uint64_t place,
                       cudaEvent_t event, uintptr_t pc, const uintptr_t *frame)
{
    uint64_t behind[ROLL_BEHIND_MAX];
    struct roll_fill fill = {.count = place,
                             .peer = ROLL_PEER_NONE,
                             .stream = stream,
                             .op = op,
                             .dtype = ROLL_DTYPE_NONE,
                             .redop = ROLL_RED_NONE};
    unsigned calls = event != NULL ? roll_order_of_event(event, behind) : roll_order_of_stream(stream, behind);
    unsigned records = ROLL_UNLIKELY(calls != 0) ? roll_tell_wait(t, &fill, behind, calls) : 0;
    atomic_fetch_add_explicit(&wait_records, records + 1, memory_order_relaxed);
    roll_enter_fill(t, call, &fill, pc, frame);
    roll_enter_end(t);
}

/* The recorded result of a wait. A wait that ended in an error says nothing about the work that it waited for: the
 * device may have faulted in the midst of that work. */
static int wait_result(cudaError_t error)
{
    return error == 0 ? 0 : 1; /* ncclUnhandledCudaError */
}

typedef cudaError_t (*stream_wait_t)(cudaStream_t);

static cudaError_t wait_stream(enum wait_function which, cudaStream_t stream, bool per_thread, uintptr_t pc,
                               const uintptr_t *frame)
{
    struct roll_thread *t = &roll_thread_self;
    struct roll_call call;
    stream_wait_t real = (stream_wait_t)real_of(which);
    if (real == NULL) {
        return NO_RUNTIME;
    }
    if (!roll_wanted(t)) {
        return real(stream);
    }
    roll_enter_begin(t);
    enter_wait(t, &call, ROLL_OP_STREAM_SYNC, roll_stream_id(t, stream, per_thread), 0, NULL, pc, frame);
    cudaError_t result = real(stream);
    roll_leave(t, &call, wait_result(result));
    return result;
}

ROLL_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream);
ROLL_OWN(cudaStreamSynchronize)
ROLL_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return wait_stream(STREAM_SYNC, stream, false, ROLL_PC, ROLL_FRAME);
}

ROLL_EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream);
ROLL_OWN(cudaStreamSynchronize_ptsz)
ROLL_EXPORT cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream)
{
    return wait_stream(STREAM_SYNC_PTSZ, stream, true, ROLL_PC, ROLL_FRAME);
}

ROLL_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event);
ROLL_OWN(cudaEventSynchronize)
ROLL_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    typedef cudaError_t (*real_t)(cudaEvent_t);
    struct roll_thread *t = &roll_thread_self;
    struct roll_call call;
    real_t real = (real_t)real_of(EVENT_SYNC);
    if (real == NULL) {
        return NO_RUNTIME;
    }
    if (!roll_wanted(t)) {
        return real(event);
    }
    roll_enter_begin(t);
    uint64_t place;
    uint16_t stream = roll_event_stream(event, &place);
    enter_wait(t, &call, ROLL_OP_EVENT_SYNC, stream, place, event, ROLL_PC, ROLL_FRAME);
    cudaError_t result = real(event);
    roll_leave(t, &call, wait_result(result));
    return result;
}

ROLL_EXPORT cudaError_t cudaDeviceSynchronize(void);
ROLL_OWN(cudaDeviceSynchronize)
ROLL_EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    typedef cudaError_t (*real_t)(void);
    struct roll_thread *t = &roll_thread_self;
    struct roll_call call;
    real_t real = (real_t)real_of(DEVICE_SYNC);
    if (real == NULL) {
        return NO_RUNTIME;
    }
    if (!roll_wanted(t)) {
        return real();
    }
    roll_enter_begin(t);
    enter_wait(t, &call, ROLL_OP_DEVICE_SYNC, 0, 0, NULL, ROLL_PC, ROLL_FRAME);
    cudaError_t result = real();
    roll_leave(t, &call, wait_result(result));
    return result;
}

/*
 * Enters a call in which the host may wait. False: it is not recorded. Such calls come by the hundred where a model is
 * freed, and a reader remembers only so many records. So one is recorded where something else than waits has been
 * recorded since the thread's last one of its kind, else there is nothing new for which the host could wait. That
 * another thread's wait is counted a moment late does no harm.
 */
static bool enter_may(struct roll_thread *t, struct roll_call *call, uint8_t op, cudaStream_t stream, bool per_thread,
                      uintptr_t pc, const uintptr_t *frame)
{
    uint64_t head = atomic_load_explicit(&roll_session->ring.header->head, memory_order_relaxed);
    uint64_t others = head - atomic_load_explicit(&wait_records, memory_order_relaxed) + 1;
    uint64_t *behind = op == ROLL_OP_FREE ? &t->freed_behind : &t->copied_behind;
    roll_enter_begin(t);
    uint16_t id = op == ROLL_OP_FREE ? 0 : roll_stream_id(t, stream, per_thread);
    if (*behind == others && (op == ROLL_OP_FREE || t->copied_stream == id)) {
        roll_enter_end(t);
        t->depth = 0;
        return false;
    }
    *behind = others;
    t->copied_stream = op == ROLL_OP_FREE ? t->copied_stream : id;
    enter_wait(t, call, op, id, 0, NULL, pc, frame);
    return true;
}

#define FREE_WRAPPER(name, which)                                                                                      \
    ROLL_EXPORT cudaError_t name(void *memory);                                                                        \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT cudaError_t name(void *memory)                                                                         \
    {                                                                                                                  \
        typedef cudaError_t (*real_t)(void *);                                                                         \
        struct roll_thread *t = &roll_thread_self;                                                                     \
        struct roll_call call;                                                                                         \
        real_t real = (real_t)real_of(which);                                                                          \
        if (real == NULL) {                                                                                            \
            return NO_RUNTIME;                                                                                         \
        }                                                                                                              \
        if (memory == NULL || !roll_wanted(t) ||                                                                       \
            !enter_may(t, &call, ROLL_OP_FREE, NULL, false, ROLL_PC, ROLL_FRAME)) {                                    \
            return real(memory);                                                                                       \
        }                                                                                                              \
        cudaError_t result = real(memory);                                                                             \
        roll_leave(t, &call, wait_result(result));                                                                     \
        return result;                                                                                                 \
    }
FREE_WRAPPER(cudaFree, FREE)
FREE_WRAPPER(cudaFreeHost, FREE_HOST)

/* cudaMemcpyKind: the two directions of which a host memory is the target, or the source. */
#define HOST_TO_DEVICE 1
#define DEVICE_TO_HOST 2

/* A copy waits for its stream, which for a synchronous one is stream 0. */
#define MEMCPY_WRAPPER(name, which, per_thread)                                                                        \
    ROLL_EXPORT cudaError_t name(void *to, const void *from, size_t bytes, int kind);                                  \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT cudaError_t name(void *to, const void *from, size_t bytes, int kind)                                   \
    {                                                                                                                  \
        typedef cudaError_t (*real_t)(void *, const void *, size_t, int);                                              \
        struct roll_thread *t = &roll_thread_self;                                                                     \
        struct roll_call call;                                                                                         \
        real_t real = (real_t)real_of(which);                                                                          \
        if (real == NULL) {                                                                                            \
            return NO_RUNTIME;                                                                                         \
        }                                                                                                              \
        if ((kind != HOST_TO_DEVICE && kind != DEVICE_TO_HOST) || !roll_wanted(t) ||                                   \
            !enter_may(t, &call, ROLL_OP_COPY, NULL, per_thread, ROLL_PC, ROLL_FRAME)) {                               \
            return real(to, from, bytes, kind);                                                                        \
        }                                                                                                              \
        cudaError_t result = real(to, from, bytes, kind);                                                              \
        roll_leave(t, &call, wait_result(result));                                                                     \
        return result;                                                                                                 \
    }
MEMCPY_WRAPPER(cudaMemcpy, MEMCPY, false)
MEMCPY_WRAPPER(cudaMemcpy_ptds, MEMCPY_PTDS, true)

#define MEMCPY_ASYNC_WRAPPER(name, which, per_thread)                                                                  \
    ROLL_EXPORT cudaError_t name(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);             \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT cudaError_t name(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream)              \
    {                                                                                                                  \
        typedef cudaError_t (*real_t)(void *, const void *, size_t, int, cudaStream_t);                                \
        struct roll_thread *t = &roll_thread_self;                                                                     \
        struct roll_call call;                                                                                         \
        real_t real = (real_t)real_of(which);                                                                          \
        if (real == NULL) {                                                                                            \
            return NO_RUNTIME;                                                                                         \
        }                                                                                                              \
        if (kind != DEVICE_TO_HOST || !roll_wanted(t) ||                                                               \
            !enter_may(t, &call, ROLL_OP_COPY, stream, per_thread, ROLL_PC, ROLL_FRAME)) {                             \
            return real(to, from, bytes, kind, stream);                                                                \
        }                                                                                                              \
        cudaError_t result = real(to, from, bytes, kind, stream);                                                      \
        roll_leave(t, &call, wait_result(result));                                                                     \
        return result;                                                                                                 \
    }
MEMCPY_ASYNC_WRAPPER(cudaMemcpyAsync, MEMCPY_ASYNC, false)
MEMCPY_ASYNC_WRAPPER(cudaMemcpyAsync_ptsz, MEMCPY_ASYNC_PTSZ, true)

/* The runtime's inner call of the driver is no event of its own. */
static bool note_event(cudaEvent_t event, cudaStream_t stream, bool per_thread, const uintptr_t *frame)
{
    struct roll_thread *t = &roll_thread_self;
    if (!roll_wanted(t)) {
        return false;
    }
    roll_note_event(t, event, stream, per_thread);
    t->depth = 1;
    t->frame = (uintptr_t)frame;
    return true;
}

static cudaError_t noted(bool was, cudaEvent_t event, cudaError_t result)
{
    if (was) {
        roll_thread_self.depth = 0;
        if (result != 0) {
            roll_order_forget_event(event);
        }
    }
    return result;
}

#define EVENT_RECORD_WRAPPER(name, which, per_thread)                                                                  \
    ROLL_EXPORT cudaError_t name(cudaEvent_t event, cudaStream_t stream);                                              \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT cudaError_t name(cudaEvent_t event, cudaStream_t stream)                                               \
    {                                                                                                                  \
        typedef cudaError_t (*real_t)(cudaEvent_t, cudaStream_t);                                                      \
        real_t real = (real_t)real_of(which);                                                                          \
        bool was = note_event(event, stream, per_thread, ROLL_FRAME);                                                  \
        return noted(was, event, real != NULL ? real(event, stream) : NO_RUNTIME);                                     \
    }
EVENT_RECORD_WRAPPER(cudaEventRecord, EVENT_RECORD, false)
EVENT_RECORD_WRAPPER(cudaEventRecord_ptsz, EVENT_RECORD_PTSZ, true)

#define EVENT_RECORD_FLAGS_WRAPPER(name, which, per_thread)                                                            \
    ROLL_EXPORT cudaError_t name(cudaEvent_t event, cudaStream_t stream, unsigned int flags);                          \
    ROLL_OWN(name)                                                                                                     \
    ROLL_EXPORT cudaError_t name(cudaEvent_t event, cudaStream_t stream, unsigned int flags)                           \
    {                                                                                                                  \
        typedef cudaError_t (*real_t)(cudaEvent_t, cudaStream_t, unsigned int);                                        \
        real_t real = (real_t)real_of(which);                                                                          \
        bool was = note_event(event, stream, per_thread, ROLL_FRAME);                                                  \
        return noted(was, event, real != NULL ? real(event, stream, flags) : NO_RUNTIME);                              \
    }
EVENT_RECORD_FLAGS_WRAPPER(cudaEventRecordWithFlags, EVENT_RECORD_FLAGS, false)
EVENT_RECORD_FLAGS_WRAPPER(cudaEventRecordWithFlags_ptsz, EVENT_RECORD_FLAGS_PTSZ, true)

#define NOT_READY 600

static cudaError_t poll_stream(enum wait_function which, cudaStream_t stream, bool per_thread, uintptr_t pc,
                               const uintptr_t *frame)
{
    struct roll_thread *t = &roll_thread_self;
    stream_wait_t real = (stream_wait_t)real_of(which);
    cudaError_t result = real != NULL ? real(stream) : NO_RUNTIME;
    if (roll_wanted(t)) {
        roll_polled(t, ROLL_OP_STREAM_QUERY, (uintptr_t)stream, per_thread, result == NOT_READY, result == 0, pc,
                    frame);
    }
    return result;
}

ROLL_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream);
ROLL_OWN(cudaStreamQuery)
ROLL_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return poll_stream(STREAM_QUERY, stream, false, ROLL_PC, ROLL_FRAME);
}

ROLL_EXPORT cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream);
ROLL_OWN(cudaStreamQuery_ptsz)
ROLL_EXPORT cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream)
{
    return poll_stream(STREAM_QUERY_PTSZ, stream, true, ROLL_PC, ROLL_FRAME);
}

ROLL_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event);
ROLL_OWN(cudaEventQuery)
ROLL_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    typedef cudaError_t (*real_t)(cudaEvent_t);
    struct roll_thread *t = &roll_thread_self;
    real_t real = (real_t)real_of(EVENT_QUERY);
    cudaError_t result = real != NULL ? real(event) : NO_RUNTIME;
    if (roll_wanted(t)) {
        roll_polled(t, ROLL_OP_EVENT_QUERY, (uintptr_t)event, false, result == NOT_READY, result == 0, ROLL_PC,
                    ROLL_FRAME);
    }
    return result;
}
