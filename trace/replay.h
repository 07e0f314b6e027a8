/*
 * replay.h: what `rollcall replay` hands to the ranks that make recorded calls again: for each rank N a file
 * rank-N.calls, its records by ticket (64 bytes each; all zero: there is none), and a file rank-N.plan: this head, then
 * its communicators. Both live as long as the replay, on one machine and from one build, so there is one version.
 */
#ifndef ROLL_TRACE_REPLAY_H
#define ROLL_TRACE_REPLAY_H

#include "trace/ring.h"

#include <stdint.h>

#define ROLL_REPLAY_MAGIC   "ROLLPLAY"
#define ROLL_REPLAY_VERSION 1u

/* What a rank does behind its last call. */
enum roll_replay_fate {
    ROLL_REPLAY_EXITS = 1,  /* with `code`, by exit() */
    ROLL_REPLAY_KILLED = 2, /* by signal `code` */
    ROLL_REPLAY_LEAVES = 4, /* with `code`, and says nothing: _exit() */
    ROLL_REPLAY_STAYS = 3,  /* it runs on and makes no call: it did so when the trace ended, or was ended for it */
};

struct roll_replay_head {
    char magic[8];
    uint32_t version, rank, ranks, comms;
    uint64_t calls;    /* slots of the file of calls */
    uint64_t begin_ns; /* when the job's first call was made, by the clock of this rank's records */
    uint32_t fate;     /* enum roll_replay_fate */
    int32_t code;
    uint32_t scaled; /* 1: sizes are made small, alike on all ranks */
    uint32_t reserved;
};

struct roll_replay_comm {
    uint64_t key, parent_key; /* as struct roll_def_comm, as what follows */
    int32_t rank, nranks, color;
    uint32_t child, origin;
    uint32_t id; /* the rank's own, as its records name it */
    char label[ROLL_NAME_BYTES];
};

#endif
