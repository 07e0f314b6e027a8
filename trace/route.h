/*
 * route.h: whether what a rank reports about its own routing (MOE_COUNTS, MOE_SPLIT) contradicts itself. One rule for
 * two: the engine says what is wrong (detect_moe_route.c), and where calls are compared by digests the fold asks for
 * the records of a rank of which the engine would speak (observe_route.c). Two copies of it were rejected: they would
 * part.
 *
 *   - The rows that the rank will send to its peers (MOE_SPLIT of forward) do not add up to the rows of the buffer that
 *     it sends (MOE_COUNTS).
 *   - The splits of a recomputed forward differ from those of the first forward.
 *
 * Only complete lists are compared: one MOE_SPLIT per member, in order, with no record lost between them. A recomputed
 * forward is compared only where it can repeat only one forward of its step, microbatch and layer. Where several
 * forwards wait to be recomputed (layers or microbatches without numbers), nobody can say which one it repeats. Pure.
 */
#ifndef ROLL_TRACE_ROUTE_H
#define ROLL_TRACE_ROUTE_H

#include "trace/record.h"

#include <stdbool.h>
#include <stdint.h>

/* The list of splits that is being read for one layer and microbatch, and the last complete list of a forward.
 * Zero-initialised, nothing has come. */
struct roll_route {
    uint32_t step, next; /* next: the peer whose split must come next; UINT32_MAX: a split is missing */
    uint16_t microbatch, comm;
    uint8_t phase;
    uint32_t pending; /* forwards that have not been recomputed yet */
    bool known;       /* `forward` is that of the only forward that has not been recomputed */
    bool compares;    /* the current list is a recomputation, and can only repeat the forward of `forward` */
    uint32_t buffer;  /* rows of the buffer that is sent; 0 = not known */
    uint64_t sum;     /* rows of the splits that have come so far */
    uint64_t hash, forward;
};

enum roll_route_says {
    ROLL_ROUTE_GOES_ON,   /* the list is not whole, or says nothing */
    ROLL_ROUTE_FORWARD,   /* the list of a forward is whole, and adds up */
    ROLL_ROUTE_SPLIT_SUM, /* it is whole, and does not */
    ROLL_ROUTE_RECOMPUTE, /* the list of a recomputed forward is another one than that of the forward */
};

/* Which of a rank's lists a record belongs to; negative: it is no record of routing, or has no layer. */
int64_t roll_route_place(const struct roll_record *rec);
/* Takes a record with a place. members: of its communicator, above 0. */
enum roll_route_says roll_route_take(struct roll_route *route, const struct roll_record *rec, uint32_t members);
/* Records are missing: the current list says nothing, nor does what came before. */
void roll_route_lost(struct roll_route *route);

#endif
