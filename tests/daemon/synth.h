/*
 * synth.h: synthetic ranks for the daemon's tests and bench: they write rings as the interposer would, without NCCL.
 */
#ifndef ROLL_TESTS_DAEMON_SYNTH_H
#define ROLL_TESTS_DAEMON_SYNTH_H

#include "trace/ring.h"

#include <stdbool.h>
#include <stdint.h>

struct synth {
    struct roll_ring ring;
    int32_t rank, size;
    char path[512];
    const char *label; /* of its communicators, as the job gave it; borrowed; NULL = none */
    uint16_t site;     /* call site of its calls; 0 = none */
    uint32_t step;     /* of what it reports: synth_tokens */
    uint16_t layer;
    uint16_t comms;     /* communicators defined so far */
    uint32_t seq[4096]; /* next sequence number by communicator id */
};

/* The fields of one call that a test can choose. */
struct synth_call {
    uint16_t comm;
    uint64_t count;
    bool hang; /* enter, and never return */
};

/* Makes the ring of `rank` of `size` in dir, for this process. 0 or a roll error. */
int synth_open(struct synth *s, const char *dir, const char *job, int32_t rank, int32_t size, uint32_t capacity);
/* synth_open for a job that was started again `restart` times. */
int synth_open_restart(struct synth *s, const char *dir, const char *job, uint32_t restart, int32_t rank, int32_t size,
                       uint32_t capacity);
/* Defines a communicator of all ranks with this key; returns its id. */
uint16_t synth_comm(struct synth *s, uint64_t key);
/* The same of `size` ranks, of which this is number `rank` on the communicator. */
uint16_t synth_comm_of(struct synth *s, uint64_t key, int32_t rank, int32_t size);
/* From here on its calls are made at this line of Python. */
void synth_site(struct synth *s, const char *file, uint32_t line, const char *function);
/* One AllReduce of floats: entered, and returned unless it hangs. Returns its ticket. */
uint64_t synth_allreduce(struct synth *s, const struct synth_call *call);
/* What an MoE layer reports before a dispatch that needs equal numbers: so many tokens has this rank. */
void synth_tokens(struct synth *s, uint16_t comm, uint64_t tokens);
/* Notes the return of a call that was left hanging. */
void synth_return(struct synth *s, uint64_t ticket);
/* Marks the ring finished, as at exit(). */
void synth_finish(struct synth *s);
void synth_close(struct synth *s);

/* Appends encoded frames (borrowed) to a plain trace file, which gets its head when it is new. 0 or ROLL_E_IO. */
int synth_trace_append(const char *path, const void *frames, size_t bytes);

uint64_t synth_mono_ns(void);
/* Sleeps until this time (CLOCK_MONOTONIC). */
void synth_until(uint64_t mono_ns);

#endif
