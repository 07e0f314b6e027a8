/*
 * execute.h: the oracle: runs a program to its end, or until nothing can go on, and writes down what a job like that
 * would have recorded.
 *
 * Its own model of NCCL, written apart from the engine and only from docs/HOSTNCCL.md ("what a disagreement does"):
 * hosts that make calls, streams in order, launches of one communicator in order, collectives that need all members,
 * messages that pair up. There is no search and no vote here: it only knows who can take a step.
 */
#ifndef ROLL_TESTS_SIMULATION_EXECUTE_H
#define ROLL_TESTS_SIMULATION_EXECUTE_H

#include "tests/simulation/program.h"
#include "trace/def.h"
#include "trace/frame.h"
#include "trace/record.h"

#define NEVER    UINT64_MAX
#define START_NS (1000 * S_)
#define LOGS_MAX 4000u /* records of one rank */
#define NO_ACT   UINT16_MAX

/* One record and when its states came about. */
struct log {
    struct roll_record rec; /* as returned; seal without state */
    uint64_t enter_ns, back_ns, done_ns;
    uint16_t act;
};

/* A loop of polls of one thread (interposer/cuda/poll.h). */
struct poll {
    uint64_t since_ns, next_ns; /* when the next record about it is written */
    uint32_t log;               /* the newest one; UINT32_MAX = none yet */
    uint64_t place;             /* of an event */
    uint16_t stream, comm;
    uint8_t op;
    bool on;
};
#define POLL_FIRST_NS (100 * MS_)
#define POLL_GOES_ON  2u
#ifdef ROLL_SIM_BEFORE /* an engine from before polls were recorded: they are of no class that it knows */
#define ROLL_OP_STREAM_QUERY 52
#define ROLL_OP_EVENT_QUERY  53
#define ROLL_OP_COMM_QUERY   54
#endif

/* What one rank's process leaves. */
struct rank_story {
    uint32_t logs;
    struct log log[LOGS_MAX];
    struct {
        uint32_t before; /* number of the record before which it stands */
        int comm;
    } def[COMMS_MAX];
    uint32_t defs;
    uint64_t stop_ns;              /* when a signal stopped the process; NEVER */
    uint64_t end_ns;               /* when the process ended; NEVER */
    enum roll_proc_state state;    /* at the process's end */
    int32_t status;                /* at the process's end */
    struct poll poll[THREADS_MAX]; /* loops that still go on when nothing else moves */
    uint16_t stuck[THREADS_MAX];   /* the act in which each thread waits for ever; NO_ACT */
};

struct story {
    bool hangs;        /* some thread waits for ever, whose process has not ended */
    bool stale;        /* work of a process that has ended was left undone */
    mask_t waiting;    /* ranks with such a thread */
    uint64_t event_ns; /* when a rank of `who` first came to act `mark` */
    uint64_t still_ns; /* nothing moves from here on */
    struct rank_story rank[RANKS_MAX];
};

/* Runs it. `mark` and `who`: where the mistake is, for event_ns. Returns 0, or -1 when a bound was too small. */
int execute(const struct program *p, struct story *out, uint32_t mark, mask_t who, uint64_t seed);

/* Makes the record that a loop of polls writes next. */
void story_poll(struct log *out, const struct poll *poll, uint32_t thread);
/* The loop has written its record: sets when the next one is due. */
void story_poll_on(struct poll *poll);
/* Key and definition of a communicator as seen by one rank. */
uint64_t story_key(const struct program *p, int comm);

#endif
