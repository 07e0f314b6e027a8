/*
 * order.h: the calls of a rehearsal in their order, as order.c takes them in and step.c looks at them.
 */
#ifndef ROLL_DAEMON_CONSOLE_REHEARSE_ORDER_H
#define ROLL_DAEMON_CONSOLE_REHEARSE_ORDER_H

#include "daemon/console/rehearse/rehearse.h"

/* One call of a rank, or a wait of its host for a stream. */
struct made {
    uint32_t call; /* NONE: a wait */
    uint16_t comm;
    uint16_t stream; /* of a wait 0: for the device */
    bool message;
    bool empty; /* of no elements: part of a step, and of nothing that is expected */
};

/* What repeats in all calls of a rank. */
struct roll_rehearse_step {
    size_t first, last; /* in `made`: from the first call of a repetition on, and where the next one begins */
    uint32_t times;     /* 0 or 1: nothing repeats */
};

/* A communicator, as one rank has it. */
struct local {
    struct roll_def_comm def;
    uint32_t group; /* the group of its newest message, and how many each way there were in it */
    uint16_t thread;
    uint32_t sends, receives;
    bool exchanges; /* there were several in one group */
    uint32_t messages;
};

struct ring {
    uint64_t stream;
    uint32_t world;     /* rank in the job; NONE: not known */
    struct local *comm; /* owned; by the rank's own id */
    size_t comms;
    struct made *made; /* owned */
    size_t mades, room;
    struct roll_rehearse_step step;
};

struct roll_rehearse_order {
    struct roll_expect_build build;
    struct ring *ring; /* owned */
    size_t rings;
    bool cut; /* a rank made more calls than are kept */
};

#endif
