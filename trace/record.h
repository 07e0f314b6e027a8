/*
 * record.h: the 64-byte record, one per call, the same bytes in the ring, on the wire and in trace files.
 *
 * The record holds its own state: it is written when the call is entered, and its seal is rewritten when the call
 * returns, so a call that never comes back is visible from outside. A separate "return" record was rejected: it doubles
 * the traffic, and the reader would have to pair the two. Little-endian; every field is naturally aligned; no padding.
 *
 * MOE records reuse the fields; the table stands in moe_core/include/moe/observe.h and docs/RING.md.
 */
#ifndef ROLL_TRACE_RECORD_H
#define ROLL_TRACE_RECORD_H

#include <stddef.h>
#include <stdint.h>

/*
 * CUDA graphs. A call made while its stream is captured carries CAPTURED and, in `aux`, the id of the graph's
 * definition (ROLL_DEF_GRAPH); it takes its number on the communicator like any other call, but nothing runs. Each
 * launch writes one GRAPH_LAUNCH per communicator on which the graph holds collectives: `count` is the hash of those
 * collectives, in order (never 0), `aux` the graph, `seq` a number of its own; and one record per captured
 * point-to-point call, flagged REPLAYED. A launch that writes more than one record is a group, closed by a GROUP_END.
 */

/*
 * Order between streams. A stream that has been made to wait for an event of another one stands behind the calls that
 * stood before the event there. The next call on it says so: in the `aux` of a collective or message (which is neither
 * captured nor a replay), and of a host's wait (class SYNC), stands how many tickets before it the call is behind which
 * it stands; 0: none. The record there may be a STREAM_WAIT in place of a call: up to four such distances, from its own
 * ticket, are packed into its `count`, and one more, of a call or of another STREAM_WAIT, is its `aux`. Launches of
 * graphs have no `aux` for it: where the record right before that of the launch is a STREAM_WAIT of the same thread and
 * stream, it is meant for the launch. A call that no distance reaches (65,535) is left out.
 */
#define ROLL_BEHIND_PACKED 4u
#define ROLL_BEHIND_MAX    8u /* calls that are told for one call */

static inline uint64_t roll_behind_packed(uint64_t count, unsigned i)
{
    return count >> 16 * i & UINT16_MAX;
}

/* The state of a call, which only ever grows. */
enum roll_state {
    ROLL_STATE_EMPTY = 0,    /* slot never written, or being written now */
    ROLL_STATE_ENTERED = 1,  /* the call has been entered and has not returned */
    ROLL_STATE_RETURNED = 2, /* the call has returned; result and call_ns are valid */
    ROLL_STATE_COMPLETE = 3, /* the work is known to be complete on the device */
};

enum roll_record_flag {
    ROLL_FLAG_CAPTURED = 1 << 0,    /* the stream was capturing a graph */
    ROLL_FLAG_IN_GROUP = 1 << 1,    /* between ncclGroupStart and ncclGroupEnd: issued when the group ends */
    ROLL_FLAG_INPLACE = 1 << 2,     /* send and receive buffer overlap as NCCL defines in-place */
    ROLL_FLAG_NONBLOCKING = 1 << 3, /* nonblocking communicator: ncclInProgress is not an error */
    ROLL_FLAG_BYTES = 1 << 4,       /* NCCL compares bytes, not (count, datatype) */
    ROLL_FLAG_REPLAYED = 1 << 5,    /* point-to-point of a captured graph, written again by each launch of it */
    ROLL_FLAG_PLUGIN = 1 << 6,      /* recorded by way of NCCL's profiler plugin: no call site, no reduction */
    ROLL_FLAG_UNSIZED = 1 << 7,     /* what the call moves is not known, or may differ between members: not compared */
};

/* In the `result` of a call that rollcall itself refused, because it did not fit the call of another rank (fail fast):
 * beside it stands the ncclResult_t that the program was given. */
#define ROLL_RESULT_DECLINED 0x80u

#define ROLL_RECORD_BYTES 64u
#define ROLL_PEER_NONE    (-1)
#define ROLL_LAYER_NONE   UINT16_MAX
#define ROLL_STEP_NONE    UINT32_MAX

/* The `result` of a record of class POLL that has returned. */
enum roll_poll_end {
    ROLL_POLL_READY = 0,
    ROLL_POLL_LEFT = 1,    /* the thread has made another recorded call, or the poll failed */
    ROLL_POLL_GOES_ON = 2, /* in the thread's next record, which was written before this one returned */
};

struct roll_record {
    uint64_t seal;       /*  0: (ticket + 1) << 8 | state; state EMPTY while being written; 0 = never written */
    uint64_t enter_ns;   /*  8: CLOCK_MONOTONIC of the rank's host when the call was entered */
    uint64_t count;      /* 16: elements, as passed by the caller (per NCCL's definition for that call);
                                GROUP_END: 1 = the group was only simulated, so nothing of it was enqueued */
    uint32_t seq;        /* 24: collectives: number on the communicator, from 0, counting non-zero counts only;
                                p2p: number on (communicator, peer, direction), from 0; else 0. A call that returned
                                an error, and all calls of a group that did or was only simulated, give their
                                numbers back: the next call has the number again */
    uint32_t group;      /* 28: id of the outermost explicit group, counted from 1; 0 = not in a group */
    int32_t peer;        /* 32: root of a rooted collective, peer of p2p, else ROLL_PEER_NONE */
    uint32_t call_ns;    /* 36: time from enter to return in ns, saturating; valid from RETURNED on */
    uint32_t step;       /* 40: training step, ROLL_STEP_NONE when unknown */
    uint16_t comm;       /* 44: id of the communicator definition; 0 = none or unknown */
    uint16_t stream;     /* 46: id of the stream definition; 0 = none; 1 = the legacy default stream */
    uint16_t callsite;   /* 48: id of the call-site definition; 0 = unknown */
    uint16_t thread;     /* 50: id of the host thread, counted from 1 */
    uint16_t layer;      /* 52: MoE layer, ROLL_LAYER_NONE when unknown */
    uint16_t microbatch; /* 54: microbatch in the step, from 0 */
    uint8_t op;          /* 56: enum roll_op */
    uint8_t dtype;       /* 57: enum roll_dtype */
    uint8_t redop;       /* 58: enum roll_redop */
    uint8_t flags;       /* 59: enum roll_record_flag */
    uint8_t phase;       /* 60: enum roll_phase */
    uint8_t result;      /* 61: ncclResult_t of the call, with ROLL_RESULT_DECLINED where rollcall refused it; of polls
                                enum roll_poll_end; valid from RETURNED on */
    uint16_t aux;        /* 62: GROUP_END: calls in the group, saturating; MOE, EXT: see the table;
                            CAPTURED, REPLAYED, GRAPH_LAUNCH: the graph; other calls, SYNC, STREAM_WAIT: how far
                            before it a call is behind which it stands by an event, see above */
};

_Static_assert(sizeof(struct roll_record) == ROLL_RECORD_BYTES, "the record is 64 bytes");
_Static_assert(offsetof(struct roll_record, seq) == 24 && offsetof(struct roll_record, comm) == 44 &&
                   offsetof(struct roll_record, op) == 56 && offsetof(struct roll_record, aux) == 62,
               "record offsets are part of the format");

static inline uint64_t roll_seal(uint64_t ticket, enum roll_state state)
{
    return (ticket + 1) << 8 | (uint64_t)state;
}

/* The ticket of a sealed record: its number in the ring, from 0. Meaningless when the state is EMPTY. */
static inline uint64_t roll_seal_ticket(uint64_t seal)
{
    return (seal >> 8) - 1;
}

static inline enum roll_state roll_seal_state(uint64_t seal)
{
    return (enum roll_state)(seal & 0xff);
}

/*
 * Checks a record that came from outside: state, datatype, reduction and phase ranges. An operation that is not known
 * here passes: its writer may be newer, and what is known of the record is that some call was made.
 * Borrows rec. Returns 0 or ROLL_E_CORRUPT. Any thread.
 */
int roll_record_check(const struct roll_record *rec);

/*
 * Writes one record as a line for people ("#12 AllReduce comm 1 seq 4 count 1024 float32 sum returned 1.2 us ...").
 * Borrows rec; writes at most size bytes, always terminated. Returns the length that was wanted, as snprintf.
 */
int roll_record_format(const struct roll_record *rec, char *out, size_t size);

#endif
