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
    bool empty;     /* of no elements: part of a step, and of nothing that is expected */
    uint32_t at_us; /* since the first one of the rank; MAX: later than fits */
};

/* One step of a rank: what the job tells, else what repeats in all of its calls. */
struct roll_rehearse_step {
    size_t first, last; /* in `made`: from its first call on, and where the next one begins */
    uint32_t times;     /* how many there are; 0 or 1: there is none to show */
};

/* What a rank does with one operation on one communicator, in `rounds` steps. */
struct step_sum {
    uint64_t calls, bytes;
};

/* A communicator, as one rank has it. */
struct local {
    struct roll_def_comm def;
    uint32_t group; /* the group of its newest message, and how many each way there were in it */
    uint16_t thread;
    uint32_t sends, receives;
    bool exchanges; /* there were several in one group */
    uint32_t messages;
    struct step_sum *step; /* owned; by operation; NULL: none */
};

struct ring {
    uint64_t stream;
    uint32_t world;     /* rank in the job; NONE: not known */
    struct local *comm; /* owned; by the rank's own id */
    size_t comms;
    struct made *made; /* owned */
    size_t mades, room;
    uint64_t first_ns; /* when the first of them was made */
    struct roll_rehearse_step step;
    uint64_t rounds; /* steps that the sums of the communicators stand for */
};

/* Calls that are searched once for what repeats in them: those of many ranks are equal. */
struct searched {
    uint64_t check;
    size_t calls;
    uint32_t first, end, times; /* of the part, as calls */
};

struct roll_rehearse_order {
    struct roll_expect_build build;
    struct ring *ring; /* owned */
    size_t rings;
    struct searched *searched; /* owned */
    size_t searches, search_room;
    struct roll_map searched_at;
    uint64_t told; /* steps that the job told; 0: none */
    bool cut;      /* a rank made more calls than are kept */
};

#endif
