/*
 * completion.c: see completion.h. There are three ways, none of which disturbs a capture of another thread:
 *
 * - write: the stream itself writes the call's ticket + 1 into the ring's header, a page of its own that is registered
 *   with the driver, so that no CUDA call has to ask later. Captured calls write nothing: the value would be that of
 *   the capture.
 * - counter: as write, and each captured graph with NCCL calls ends in a kernel that counts its replays.
 * - event: for devices without memory operations. An event is recorded after the call and asked about at later calls,
 *   never while any capture is open, and with the thread's capture mode relaxed.
 *
 * A host function in the stream was rejected: it holds the stream up until the function has run. All functions of CUDA
 * are found late, in the driver that the process has anyway. Where a function or ability is missing, or a call fails
 * that should not, one line says so and the mode is off for good. Streams are in order, so the newest ticket of a
 * stream covers all earlier ones. A stream whose id is beyond the header's cells is not followed; nor is the legacy
 * stream while a capture is open, because it may not be used then.
 */
#include "interposer/cuda/completion.h"

#include "interposer/cuda/count_ptx.h"
#include "interposer/cuda/graphs.h"
#include "interposer/record/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EVENTS       64u
#define ASKED        4u /* events asked about at one call */
#define PORTABLE     1u /* CU_MEMHOSTREGISTER_* */
#define DEVICEMAP    2u
#define NO_TIMING    2u /* CU_EVENT_DISABLE_TIMING */
#define NOT_READY    600
#define WIDE_MEM_OPS 122 /* CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS */
#define RELAXED      2

_Atomic uint32_t roll_completion_mode;

typedef int (*get_device_t)(int *);
typedef int (*attribute_t)(int *, int, int);
typedef int (*host_register_t)(void *, size_t, unsigned);
typedef int (*device_pointer_t)(uint64_t *, void *, unsigned);
typedef int (*write_t)(cudaStream_t, uint64_t, uint64_t, unsigned);
typedef int (*event_create_t)(void **, unsigned);
typedef int (*event_record_t)(void *, cudaStream_t);
typedef int (*event_query_t)(void *);
typedef int (*exchange_t)(int *);
typedef int (*module_load_t)(void **, const void *);
typedef int (*module_function_t)(void **, void *, const char *);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t,
                        void **, void **);

static struct roll_ring_header *page;
static atomic_flag lock =
    ATOMIC_FLAG_INIT;      /* only ever tried, never waited for: a thread that cannot have it skips its work */
static _Atomic bool ready; /* the functions below are found and the page is registered */

static struct {
    write_t write;
    event_create_t event_create;
    event_record_t event_record;
    event_query_t event_query;
    exchange_t exchange;
    launch_t launch;
    uint64_t address; /* address of the page, as the device sees it */
    void *count;      /* the kernel that counts replays; NULL: not loaded */
} cuda;

static struct {
    void *event;
    uint64_t ticket;
    uint16_t stream;
} events[EVENTS]; /* a queue, oldest first from events_first; under lock */
static uint32_t events_first, events_used;

static void off(const char *why)
{
    if (atomic_exchange_explicit(&roll_completion_mode, ROLL_COMPLETION_OFF, memory_order_relaxed) !=
        ROLL_COMPLETION_OFF) {
        atomic_store_explicit(&page->completion, ROLL_COMPLETION_OFF, memory_order_relaxed);
        roll_say("completion on the device cannot be learnt: %s", why);
    }
}

void roll_completion_start(struct roll_ring_header *header)
{
    static const char *const words[] = {"off", "write", "counter", "event"};
    const char *wanted = getenv("ROLLCALL_COMPLETION");
    page = header;
    if (wanted == NULL || wanted[0] == '\0') {
        return;
    }
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(wanted, words[i]) == 0) {
            atomic_store_explicit(&header->completion, i, memory_order_relaxed);
            atomic_store_explicit(&roll_completion_mode, i, memory_order_relaxed);
            return;
        }
    }
    roll_say("ROLLCALL_COMPLETION=%.32s is none of off, write, counter, event", wanted);
}

static roll_function_t find(const char *name)
{
    return roll_symbol_resolve(name, "libcuda.so");
}

static const char *prepare_write(void)
{
    get_device_t get_device = (get_device_t)find("cuCtxGetDevice");
    attribute_t attribute = (attribute_t)find("cuDeviceGetAttribute");
    host_register_t host_register = (host_register_t)find("cuMemHostRegister_v2");
    device_pointer_t device_pointer = (device_pointer_t)find("cuMemHostGetDevicePointer_v2");
    int device = 0, wide = 0;
    cuda.write = (write_t)find("cuStreamWriteValue64_v2");
    if (cuda.write == NULL || get_device == NULL || attribute == NULL || host_register == NULL ||
        device_pointer == NULL) {
        return "the process has no driver with stream memory operations (libcuda.so.1)";
    }
    if (get_device(&device) != 0 || attribute(&wide, WIDE_MEM_OPS, device) != 0 || wide == 0) {
        return "this device has no 64-bit stream memory operations; ROLLCALL_COMPLETION=event does without";
    }
    if (host_register(page, sizeof(*page), PORTABLE | DEVICEMAP) != 0 || device_pointer(&cuda.address, page, 0) != 0) {
        return "the driver does not take the ring's page; it may where ROLLCALL_DIR is in memory, as /dev/shm is";
    }
    return NULL;
}

static const char *prepare_event(void)
{
    cuda.event_create = (event_create_t)find("cuEventCreate");
    cuda.event_record = (event_record_t)find("cuEventRecord");
    cuda.event_query = (event_query_t)find("cuEventQuery");
    cuda.exchange = (exchange_t)find("cuThreadExchangeStreamCaptureMode");
    return cuda.event_create == NULL || cuda.event_record == NULL || cuda.event_query == NULL || cuda.exchange == NULL
               ? "the process has no driver with events (libcuda.so.1)"
               : NULL;
}

static const char *prepare_counter(void)
{
    module_load_t load = (module_load_t)find("cuModuleLoadData");
    module_function_t function = (module_function_t)find("cuModuleGetFunction");
    void *module = NULL;
    cuda.launch = (launch_t)find("cuLaunchKernel");
    if (load == NULL || function == NULL || cuda.launch == NULL) {
        return "the driver cannot launch kernels";
    }
    return load(&module, ROLL_COUNT_PTX) != 0 || function(&cuda.count, module, ROLL_COUNT_KERNEL) != 0
               ? "the driver does not take the counting kernel"
               : NULL;
}

/* Finds the driver's functions and registers the page, at the first call that needs them, on a thread that has a
 * device, with no capture open. True when everything is there. */
static bool prepared(uint32_t mode)
{
    if (atomic_load_explicit(&ready, memory_order_acquire)) {
        return true;
    }
    if (atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0 || atomic_flag_test_and_set(&lock)) {
        return false;
    }
    const char *missing = NULL;
    if (!atomic_load_explicit(&ready, memory_order_relaxed)) {
        missing = mode == ROLL_COMPLETION_EVENT ? prepare_event() : prepare_write();
        missing = missing == NULL && mode == ROLL_COMPLETION_COUNTER ? prepare_counter() : missing;
        atomic_store_explicit(&ready, missing == NULL, memory_order_release);
    }
    atomic_flag_clear(&lock);
    if (missing != NULL) {
        off(missing);
    }
    return missing == NULL;
}

static void done(uint16_t stream, uint64_t ticket)
{
    _Atomic uint64_t *cell = &page->done[stream];
    if (atomic_load_explicit(cell, memory_order_relaxed) < ticket + 1) {
        atomic_store_explicit(cell, ticket + 1, memory_order_release);
    }
}

/* Asks the oldest events whether they are complete. Under `lock`, with the thread's capture mode relaxed. */
static void ask_events(void)
{
    for (uint32_t asked = 0; events_used != 0 && asked < ASKED; asked++) {
        uint32_t at = events_first % EVENTS;
        int state = cuda.event_query(events[at].event);
        if (state == NOT_READY) {
            return;
        }
        if (state == 0) {
            done(events[at].stream, events[at].ticket);
        }
        events_first++;
        events_used--;
    }
}

static void record_event(const struct roll_thread *t, uint64_t ticket)
{
    if (events_used == EVENTS) {
        return; /* a later call of the stream covers this one too */
    }
    uint32_t at = (events_first + events_used) % EVENTS;
    if (events[at].event == NULL && cuda.event_create(&events[at].event, NO_TIMING) != 0) {
        events[at].event = NULL;
        return;
    }
    if (cuda.event_record(events[at].event, t->work_stream) == 0) {
        events[at].ticket = ticket;
        events[at].stream = t->work_id;
        events_used++;
    }
}

static void by_event(const struct roll_thread *t, uint64_t ticket)
{
    int mode = RELAXED;
    if (atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0 || atomic_flag_test_and_set(&lock)) {
        return;
    }
    if (cuda.exchange(&mode) == 0) {
        ask_events();
        record_event(t, ticket);
        cuda.exchange(&mode);
    }
    atomic_flag_clear(&lock);
}

void roll_completion_after(struct roll_thread *t, uint64_t ticket)
{
    int saved = errno;
    uint32_t mode = atomic_load_explicit(&roll_completion_mode, memory_order_relaxed);
    bool legacy = (uintptr_t)t->work_stream <= 1;
    bool capturing = atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0;
    if (t->work_id != 0 && t->work_id < ROLL_RING_DONE_STREAMS && !(legacy && capturing) && prepared(mode)) {
        uint64_t at = cuda.address + offsetof(struct roll_ring_header, done) + t->work_id * sizeof(page->done[0]);
        if (mode == ROLL_COMPLETION_EVENT) {
            by_event(t, ticket);
        } else if (cuda.write(t->work_stream, at, ticket + 1, 0) != 0) {
            off("a stream refuses to write into the ring's page");
        }
    }
    t->work_id = 0;
    errno = saved;
}

void roll_completion_before_capture(void)
{
    uint32_t mode = atomic_load_explicit(&roll_completion_mode, memory_order_relaxed);
    if (mode == ROLL_COMPLETION_COUNTER) {
        (void)prepared(mode);
    }
}

void roll_completion_count(cudaStream_t stream, uint16_t id)
{
    if (atomic_load_explicit(&roll_completion_mode, memory_order_relaxed) != ROLL_COMPLETION_COUNTER ||
        !atomic_load_explicit(&ready, memory_order_acquire) || id == 0 || id >= ROLL_RING_DONE_GRAPHS) {
        return;
    }
    uint64_t at = cuda.address + offsetof(struct roll_ring_header, graph_done) + id * sizeof(page->graph_done[0]);
    void *arguments[] = {&at};
    if (cuda.launch(cuda.count, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) != 0) {
        off("the counting kernel cannot be captured");
    }
}
