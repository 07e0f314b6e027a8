/*
 * thread.h: what the library keeps per thread, in the initial-exec model so that touching it never allocates.
 */
#ifndef ROLL_INTERPOSER_THREAD_H
#define ROLL_INTERPOSER_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#define ROLL_CALLSITE_CACHE 128u /* entries, a power of two: call sites that a thread uses in turn */
#define ROLL_STREAM_CACHE   8u

struct roll_comm;

/* Where in the training step a call is made, as moe_core last said. */
struct roll_moe_context {
    uint32_t step;
    uint16_t microbatch;
    uint16_t layer;
    uint8_t phase;
};

struct roll_thread {
    /* Above zero while one of our wrappers is between its entry and its return: what NCCL calls then is not the
     * application's call. `busy` is set while our own code runs: a call seen then comes from a signal handler. */
    volatile uint32_t depth;
    volatile bool busy;
    bool moe_known;
    uint16_t id; /* of the thread definition; 0 = not yet */

    uintptr_t frame; /* of the wrapper that is open: see roll_outside */

    uint32_t group_depth;
    uint32_t group_id;
    uint32_t group_calls;

    uint64_t tsc_base; /* counter and CLOCK_MONOTONIC at the last look at the clock */
    uint64_t ns_base;
    uint64_t ns_last; /* time never goes back in a thread */

    uintptr_t stack_low, stack_high; /* 0, 0 = unknown: no walk */

    uintptr_t comm_handle;
    struct roll_comm *comm;

    struct roll_moe_context moe;

    struct {
        uint64_t handle;
        uint32_t id;
        uint32_t known;
    } stream[ROLL_STREAM_CACHE];
    struct {
        uint64_t hash;
        uint32_t id;
        uint32_t known;
    } callsite[ROLL_CALLSITE_CACHE];
};

extern __thread struct roll_thread roll_thread_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* First recorded call of a thread: its id and definition, its stack bounds. May call into libc; keeps errno. */
void roll_thread_attach(struct roll_thread *t);

#endif
