/*
 * thread.h: what the library keeps per thread, in the initial-exec model so that touching it never allocates. Kept
 * small: a library that is loaded late has to find room in what the loader left over at start, about a kilobyte and a
 * half.
 */
#ifndef ROLL_INTERPOSER_RECORD_THREAD_H
#define ROLL_INTERPOSER_RECORD_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#define ROLL_STREAM_CACHE 8u
#define ROLL_GROUP_ORDERS 4u

struct roll_comm;
struct roll_group_list;
struct roll_record;

/* Where in the training step a call is made, as moe_core last reported. */
struct roll_moe_context {
    uint32_t step;
    uint16_t microbatch;
    uint16_t layer;
    uint8_t phase;
};

/* A call that is being captured into a CUDA graph: see graphs.c. */
struct roll_captured_call {
    unsigned long long id; /* CUDA's id of the capture */
    struct roll_comm *comm;
    uint64_t count;
    int32_t peer;
    uint8_t op, dtype, redop, flags;
    bool pending;
};

#define ROLL_POLL_THINGS 4u

/* The loop of polls that this thread is in: see poll.h. A "thing" is a stream, event or communicator that the loop asks
 * about; bit i of `asked` and `told` is that of thing i. */
struct roll_poll {
    uintptr_t key[ROLL_POLL_THINGS]; /* the things, each with the function that asks about it; key[0] 0: no loop */
    uint64_t since_ns, next_ns;
    struct roll_record *rec; /* the loop's open record; NULL: none yet */
    uint64_t ticket, said_ns;
    uint32_t polls;
    uint8_t things, said; /* number of things; which of them rec names */
    uint8_t asked, told;  /* things polled since the last record; things named since each had its turn */
};

struct roll_thread {
    /* Above zero while one of our wrappers is between its entry and its return: what NCCL calls then is not the
     * application's call. `busy` is set while our own code runs: a call seen then comes from a signal handler. */
    volatile uint32_t depth;
    volatile bool busy;
    bool moe_known;
    uint8_t set; /* set of the open wrapper: which NCCL it forwards to */
    uint16_t id; /* id of the thread's definition; 0 = not defined yet */

    uintptr_t frame; /* stack frame of the open wrapper: see roll_outside */

    uint32_t group_depth;
    uint32_t group_id;
    uint32_t group_calls;
    struct roll_group_list
        *group_list;   /* the open group's collectives, kept by failfast_group.c; NULL: none are kept */
    uint8_t group_set; /* set of the NCCL whose group is open */
    bool group_mixed;  /* calls of another NCCL came in between, so nobody knows whose group ends when */

    struct {
        uint64_t ticket;
        uint16_t stream;
    } group_order[ROLL_GROUP_ORDERS]; /* of the open group: its last call on each stream, of the first few */
    uint8_t group_orders;

    struct roll_captured_call captured;

    /* The stream that has the work of the open call, or of the open group: see completion.h. work_id 0: no stream. */
    void *work_stream;
    uint16_t work_id;
    uint16_t group_stream; /* id of the stream of the group's first call that has one */

    uint64_t tsc_base; /* counter and CLOCK_MONOTONIC at the last look at the clock */
    uint64_t ns_base;
    uint64_t ns_last; /* time never goes back in a thread */

    uintptr_t stack_low, stack_high; /* 0, 0 = unknown: no walk */

    uintptr_t comm_handle;
    struct roll_comm *comm;

    struct roll_poll poll;

    struct roll_moe_context moe;

    /* Dense products (ext.c): how many tickets had been handed out when the last one was recorded, and how many
     * products were left out since. */
    uint64_t dense_head;
    uint32_t dense_skipped;

    /* Frees and copies (sync.c): how many records other than waits there were when the thread's last free and its last
     * copy were recorded, and the stream of that copy. */
    uint64_t freed_behind, copied_behind;
    uint16_t copied_stream;

    struct {
        uint64_t handle;
        uint32_t id;
        uint32_t known;
    } stream[ROLL_STREAM_CACHE];
};

extern __thread struct roll_thread roll_thread_self __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* First recorded call of a thread: its id and definition, its stack bounds. May call into libc; keeps errno. */
void roll_thread_attach(struct roll_thread *t);

#endif
