/*
 * pack_inside.h: the state that packer and unpacker keep alike: rings, signatures, and the last values at each place.
 * Private to pack_model.c (frames) and pack_record.c (records in them).
 */
#ifndef ROLL_DAEMON_STORE_PACK_INSIDE_H
#define ROLL_DAEMON_STORE_PACK_INSIDE_H

#include "daemon/store/pack_model.h"

#include "trace/ring.h"

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* full-size tables are 10 MB to clear for each input, and a small     \
                                                   table is full sooner */
#define MAX_RINGS      4u
#define MAX_SIGNATURES 32u
#define SLOTS          64u
#define PLACES         64u
#else
#define MAX_RINGS      4096u   /* rings that are followed; frames of further rings are kept as they are */
#define MAX_SIGNATURES 65536u  /* signatures that are listed; further ones are written out each time */
#define SLOTS          131072u /* slots of the index of signatures: a power of two, at most half full */
#define PLACES         65536u  /* places in the pattern of calls; two that share a line only predict worse */
#endif
#define OPEN 64u /* calls of one ring that were sent as entered and are remembered */

struct pack_signature {
    int32_t peer;
    uint16_t comm, stream, callsite, thread, layer, microbatch;
    uint8_t op, dtype, redop, flags, phase, pad[3];
};
_Static_assert(sizeof(struct pack_signature) == 24, "compared as bytes");

/* The last values at a place in the pattern of calls, from which the next ones are predicted. */
struct pack_place {
    uint64_t count, gap_ns, call_ns, seq_step, group_step, step_step;
    uint16_t aux;
    bool seen;
};

struct pack_open_call {
    struct roll_record rec;
    uint32_t place;
    uint64_t bound_ns; /* duration of the call, as the beginning of the next one suggests; 0 = not known yet */
};

struct pack_ring {
    uint64_t epoch, seq, next_ticket;
    uint32_t history[3]; /* signatures, newest first */
    uint32_t group, step, place, call_ns;
    uint64_t enter_ns;
    struct roll_frame_status status;
    uint64_t status_real_ns;     /* wall clock of the tick before the last STATUS */
    struct pack_open_call *open; /* open calls by ticket, ascending; NULL until there is one */
    unsigned opened;
};

struct roll_pack_model {
    uint64_t seq; /* seq of the last frame of any ring */
    uint64_t tick_seq, tick_real;
    struct pack_ring *ring; /* rings in the order of their first frame */
    size_t rings, room;
    size_t last;                 /* the ring of the last frame */
    bool used;                   /* something below may be other than zero */
    struct roll_record *scratch; /* records of the frame that is being coded */
    size_t scratch_room;
    struct pack_signature signature[MAX_SIGNATURES];
    uint32_t signatures;
    uint32_t slot[SLOTS];  /* number of a signature + 1 */
    uint32_t next[PLACES]; /* by place: the signature that followed, + 1 */
    struct pack_place place[PLACES];
    uint64_t counter[PLACES]; /* last sequence number by ring, communicator, peer and direction */
};

/* roll_pack_code_record codes one record of a RECORDS frame, whose ticket is known; roll_pack_code_update one record of
 * an UPDATES frame. Errors are the coder's. */
void roll_pack_code_record(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring,
                           uint64_t ticket, struct roll_record *r);
void roll_pack_code_update(struct roll_pack_model *m, struct roll_pack_coder *c, struct pack_ring *ring,
                           struct roll_record *r);

#endif
