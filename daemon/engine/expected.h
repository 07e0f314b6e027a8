/*
 * expected.h: what a rehearsal has shown that each rank does on each communicator, as data for the engine: sequences of
 * calls, with the parts that repeat. daemon/expect/ makes it, from the calls of a job or from a file
 * (docs/REHEARSE.md), and the engine only reads it.
 *
 * A communicator of another run is known again by what a rank sees when the communicator is made: its label, its size,
 * the rank's place in it, and how many such communicators the rank had before (`nth`). The key of a communicator is
 * another one in each run.
 */
#ifndef ROLL_DAEMON_ENGINE_EXPECTED_H
#define ROLL_DAEMON_ENGINE_EXPECTED_H

#include "trace/op.h"
#include "trace/record.h"

#include <stdbool.h>
#include <stdint.h>

#define ROLL_EXPECTED_ANY  UINT64_MAX /* of a count: it differs from time to time, and is not compared */
#define ROLL_EXPECTED_NONE UINT32_MAX /* no such rank, communicator or sequence */

/* One call, without what differs between runs. */
struct roll_expected_call {
    uint64_t count;
    int32_t peer; /* root; of a message how far its partner is, as ranks on the communicator upwards; else -1 */
    uint8_t op, dtype, redop;
    bool captured;
};

/* Calls that follow each other: made once, or so often in the rehearsal, and in another run any number of times. */
struct roll_expected_part {
    uint32_t first, calls; /* in `item` */
    uint32_t times;        /* 1: the part does not repeat */
};

/* What a rank does on a communicator: parts, one behind the other. */
struct roll_expected_sequence {
    uint32_t first, parts; /* in `part` */
};

struct roll_expected_member {
    uint32_t world;    /* rank in the job */
    uint32_t sequence; /* what the rank does there */
    uint32_t nth;      /* communicators of the same label, size and place that the rank had before */
};

struct roll_expected_comm {
    char *label, *role, *made; /* made: how, in words, without what its siblings differ in */
    char *name;                /* for people, where the label is none; else "" */
    uint32_t size;
    uint32_t first; /* its members, by their rank on it, in `member` */
    bool messages;  /* sends and receives are part of its sequences; else nothing is known of them */
};

/* The place of a rank of the job on one communicator. */
struct roll_expected_place {
    uint32_t comm, rank;
};

struct roll_expected {
    uint32_t ranks; /* of the job */
    uint64_t steps; /* that the job told; 0 = none */
    bool repeats;   /* some sequence has a part that repeats: the rehearsal was long enough to know what does not */
    struct roll_expected_call *call;
    uint32_t *item; /* numbers of calls */
    struct roll_expected_part *part;
    struct roll_expected_sequence *sequence;
    struct roll_expected_comm *comm;
    struct roll_expected_member *member;
    uint32_t calls, items, parts, sequences, comms, members;
    uint32_t *place_first; /* by rank in the job, ranks + 1: its places */
    struct roll_expected_place *place;
    uint64_t *device_bytes; /* by rank in the job: the most device memory that it had; 0 = not known */
};

/* The call of a record, made by `rank` of a communicator of `size` ranks. What a launch of a graph counts is a hash,
 * and no amount. */
static inline struct roll_expected_call roll_expected_of(const struct roll_record *rec, uint32_t rank, uint32_t size)
{
    struct roll_expected_call call = {rec->count, -1,         rec->op,
                                      rec->dtype, rec->redop, (rec->flags & ROLL_FLAG_CAPTURED) != 0};
    call.count = rec->op == ROLL_OP_GRAPH_LAUNCH ? ROLL_EXPECTED_ANY : call.count;
    if (roll_op_class(rec->op) == ROLL_CLASS_P2P && size > 0) {
        call.peer = (int32_t)(((uint32_t)rec->peer + size - rank) % size);
    } else if (roll_op_has(rec->op, ROLL_TRAIT_ROOT)) {
        call.peer = rec->peer;
    }
    return call;
}

/* Whether a record is a call that sequences hold. Calls of no elements are none: NCCL drops them, and how many there
 * are depends on data more often than not. A captured call is made once, and launched any number of times. */
static inline bool roll_expected_counts(const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    return (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) && rec->count != 0 &&
           (rec->flags & ROLL_FLAG_REPLAYED) == 0;
}

/* The call is as expected. A reduction that is not known, as in the records of the profiler plugin, is no difference.
 */
static inline bool roll_expected_fits(const struct roll_expected_call *want, const struct roll_expected_call *came)
{
    bool red = want->redop == came->redop || want->redop == ROLL_RED_NONE || came->redop == ROLL_RED_NONE;
    return want->op == came->op && want->dtype == came->dtype && want->peer == came->peer && red &&
           want->captured == came->captured && (want->count == came->count || want->count == ROLL_EXPECTED_ANY);
}

#endif
