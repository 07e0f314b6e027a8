/*
 * frame.h: the wire frame, and the same bytes in trace files. Byte by byte: docs/FRAME.md.
 *
 * One ZeroMQ message part is one frame: a 56-byte head, then the payload. Little-endian. Newer writers may make the
 * head longer (hdr_len) and records larger (rec_size): older readers skip the tail. Readers skip types that they do not
 * know.
 */
#ifndef ROLL_TRACE_FRAME_H
#define ROLL_TRACE_FRAME_H

#include "trace/control.h"
#include "trace/record.h"
#include "trace/ring.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_FRAME_MAGIC      0x52464c52u /* "RLFR" as bytes */
#define ROLL_FRAME_MAJOR      1u
#define ROLL_FRAME_MINOR      2u /* the newest: roll_frame_minor says which one a frame has */
#define ROLL_FRAME_HEAD_BYTES 56u
#define ROLL_FRAME_MAX_BYTES  (4u * 1024u * 1024u)

enum roll_frame_type {
    ROLL_FRAME_HELLO = 1,     /* agent -> root; JSON: {"agent":…,"host":…,"pid":…,"version":…} */
    ROLL_FRAME_WELCOME = 2,   /* root -> agent; JSON: {"resync":…,"policy":…}; see docs/FRAME.md */
    ROLL_FRAME_RING = 3,      /* payload: the first ROLL_RING_HEADER_BYTES of a ring; stream = its epoch */
    ROLL_FRAME_DEFS = 4,      /* first = offset in the definitions area; payload: whole entries; of an excerpt with
                                 ROLL_DEFS_NAMED */
    ROLL_FRAME_RECORDS = 5,   /* first = ticket of the first record; count records in ticket order, gaps = losses */
    ROLL_FRAME_UPDATES = 6,   /* count records already sent whose state has grown */
    ROLL_FRAME_STATUS = 7,    /* agent -> root; payload: struct roll_frame_status */
    ROLL_FRAME_HEARTBEAT = 8, /* both ways; payload: of agents and relays struct roll_frame_heartbeat */
    ROLL_FRAME_ACK = 9,       /* root -> agent; stream; payload: struct roll_frame_ack */
    ROLL_FRAME_CONTROL = 10,  /* root -> agent; payload: struct roll_frame_control */
    ROLL_FRAME_QUERY = 11,    /* console -> root; JSON; see docs/FRAME.md */
    ROLL_FRAME_REPLY = 12,    /* root -> console; JSON; seq = that of the query */
    ROLL_FRAME_VERDICT = 13,  /* root -> subscribed console; JSON rollcall.verdict/1; seq = number of the verdict */
    ROLL_FRAME_ERROR = 14,    /* JSON: {"error":…} */
    ROLL_FRAME_TICK =
        15, /* trace files only: seq = now_ns that the engine was given; payload: wall clock, u64 or none */
    ROLL_FRAME_BYE = 16,    /* the sender leaves in good order */
    ROLL_FRAME_ASK = 17,    /* root -> agent; JSON {"op":…}; seq = number of the question. See docs/FRAME.md */
    ROLL_FRAME_ANSWER = 18, /* agent -> root; JSON; seq = that of the question; first = number of this part, from 0 */
    ROLL_FRAME_PACK = 19,   /* trace files only: many frames in one, compressed; see docs/FRAME.md */
    ROLL_FRAME_NOTE = 20,   /* agent -> root; JSON: a fact that the agent saw and that is in no ring (docs/FRAME.md) */
    ROLL_FRAME_SIGHT = 21,  /* agent -> root, and root -> trace; payload: struct roll_frame_sight */
    ROLL_FRAME_SETTINGS = 22, /* root -> agent, and trace files; payload: struct roll_frame_settings */
    ROLL_FRAME_DIGEST = 23,   /* agent -> root; payload: a digest (daemon/digest/digest_bytes.h); stream = epoch of one
                                 ring of the run; first = calls that went into the sender's digests so far */
    ROLL_FRAME_EXCERPT = 24,  /* both ways; first = number of the excerpt, 0: no more. Root -> agent: struct
                                 roll_frame_excerpt; agent -> root: the beginning of the ring's header where the
                                 excerpt begins, or nothing and a flag of ROLL_EXCERPT_... docs/FRAME.md */
    ROLL_FRAME_PLACE = 25,    /* agent -> root: where the ring comes in; first = ticket of the first record that
                                 follows; payload: struct roll_frame_place, as many as there are */
};

/* Flag of DEFS of an excerpt: what its records name, in the order in which they do; `first` is 0, and what comes twice
 * is the same. Communicators are not among them: the engine is told of each once, by frames without the flag. */
#define ROLL_DEFS_NAMED 1u

/* Flag of RECORDS, set by who reads a trace: the segment repeats them of an earlier one. Excerpts (.rdig) keep it. */
#define ROLL_RECORDS_REPEATED 1u

struct roll_frame_head {
    uint32_t magic;    /*  0 */
    uint8_t major;     /*  4 */
    uint8_t minor;     /*  5 */
    uint16_t type;     /*  6: enum roll_frame_type */
    uint32_t flags;    /*  8: of ACK: ROLL_ACK_...; of DEFS of an excerpt: ROLL_DEFS_...; of EXCERPT: ROLL_EXCERPT_...;
                              of RECORDS that were read: ROLL_RECORDS_...; else 0 */
    uint16_t hdr_len;  /* 12: bytes of this head, >= 56 */
    uint16_t rec_size; /* 14: bytes of one record in RECORDS and UPDATES, >= 64; else 0 */
    uint32_t count;    /* 16: records in RECORDS and UPDATES; else 0 */
    uint32_t payload;  /* 20: bytes after the head */
    uint64_t seq;      /* 24: per sender, from 1; or as the type says */
    uint64_t stream;   /* 32: epoch of the ring that this frame is about; 0 = none */
    uint64_t first;    /* 40: as the type says */
    uint32_t crc;      /* 48: CRC-32C of head (with crc = 0) and payload */
    uint32_t reserved; /* 52 */
};
_Static_assert(sizeof(struct roll_frame_head) == ROLL_FRAME_HEAD_BYTES, "the frame head is 56 bytes");

/* State of one rank's process and ring, as its agent sees it. All times in ns. */
enum roll_proc_state {
    ROLL_PROC_RUNNING = 1,
    ROLL_PROC_STOPPED = 2,  /* SIGSTOP, debugger */
    ROLL_PROC_FINISHED = 3, /* the process ended by exit() and said so in its ring */
    ROLL_PROC_DEAD = 4, /* the process is gone and has not said that it ends; exit_status where the launcher knows it */
};

struct roll_frame_status {
    uint64_t head; /* tickets handed out in the ring */
    uint64_t defs_used;
    uint64_t clock_mono_ns; /* clock pair: REALTIME at this MONOTONIC, on the agent's host, now */
    uint64_t clock_real_ns;
    uint64_t finish_ns;  /* CLOCK_MONOTONIC of FINISHED, or when it was found DEAD; 0 while running */
    uint32_t proc_state; /* enum roll_proc_state */
    int32_t exit_status; /* wait status or ROLL_EXIT_UNKNOWN */
    uint64_t losses[16]; /* by enum roll_loss */
};
_Static_assert(sizeof(struct roll_frame_status) == 48 + 128, "part of the wire format");

/* How well a rank is seen, and how freely it runs, from here on. A rank is heard and not starved until such a frame
 * says otherwise. */
struct roll_frame_sight {
    uint32_t heard; /* 1; 0: the rank's agent is silent, as the root noticed. Any other frame about the ring makes it 1
                       again; a RING frame also makes `starved` 0 */
    uint32_t starved; /* permille of the last time in which a thread of the rank wanted a CPU and had none */
    uint64_t reserved;
};
_Static_assert(sizeof(struct roll_frame_sight) == 16, "part of the wire format");

/* Behind a struct roll_frame_status, in runs that are compared by digests: what the rank has called, for people. A
 * reader does without where the payload ends before it. */
struct roll_frame_last {
    uint64_t calls;    /* NCCL calls of the ring that have been folded */
    uint64_t comm;     /* key of the newest call's communicator; 0 = none */
    uint64_t enter_ns; /* when it was entered, monotonic; 0: there was no call */
    uint32_t seq;
    uint32_t comms; /* communicators that the ring has defined */
    uint8_t op;     /* enum roll_op */
    uint8_t inside; /* 1: it has not returned */
    uint8_t pad[6];
};
_Static_assert(sizeof(struct roll_frame_last) == 40, "part of the wire format");

/* How the engine was set from here on. Without one: its own patience, and policy observe. */
struct roll_frame_settings {
    uint64_t stall_ns; /* 1 to ROLL_SETTINGS_MOST_NS, both */
    uint64_t suspect_ns;
    uint32_t policy; /* enum roll_policy */
    uint32_t reserved;
};
_Static_assert(sizeof(struct roll_frame_settings) == 24, "part of the wire format");
#define ROLL_SETTINGS_MOST_NS UINT64_C(1000000000000000) /* more than rollcalld takes; the engine multiplies it */

/* How well agents and relays see, and those below them. Older relays end after `agents` or `missed_ns`, older agents
 * after that or send no payload: then nothing is known of the rest. What is "in all" counts from the sender's start. */
struct roll_frame_heartbeat {
    uint32_t unheard;   /* rings of live processes of which 250 ms are missing: of an agent, that it has not read to
                           their ends; of a relay, whose agents it has not heard and does not take for gone, and those
                           of which its agents say so */
    uint32_t agents;    /* that the relay serves; 0: this is an agent */
    uint64_t made_ns;   /* the sender's CLOCK_MONOTONIC, now */
    uint64_t late_ns;   /* how late its looks were, in all */
    uint64_t waited_ns; /* how long its thread stood ready and had no CPU, in all */
    uint64_t look_ns;   /* how old its oldest look at one of these rings is, where that is more than 250 ms; else 0 */
    uint64_t below_ns;  /* of a relay: how late agents and links below it were, in all; of those that were late at once
                           the latest counts */
    uint64_t missed_ns; /* of a relay: how much of the time it did not see all that is below it, though it was heard as
                           ever, in all */
    uint64_t refused;   /* of a relay: frames, parts of digests and connections that it has refused, and those that the
                           relays below it have, in all */
};
_Static_assert(sizeof(struct roll_frame_heartbeat) == 64, "part of the wire format");
#define ROLL_FRAME_HEARTBEAT_OLDEST_BYTES 8u
#define ROLL_REFUSED_MOST                 UINT64_C(0x100000000) /* `refused` does not grow by so much at a time */

struct roll_frame_ack {
    uint64_t next_ticket; /* every record below has been fed to the engine */
    uint64_t defs_offset; /* every definition below has been fed to the engine */
};
_Static_assert(sizeof(struct roll_frame_ack) == 16, "part of the wire format");
#define ROLL_ACK_DIGEST 1u /* the run is compared by digests: no records are sent but those that are asked for */
#define ROLL_ACK_KEEP   2u /* the ring is kept when its process has ended: its records may be asked for */

/* Which records the root wants of each ring of a run: the newest `history`, what the wants say besides, and a number
 * of those that are written from then on. */
struct roll_frame_excerpt {
    uint64_t history;
    uint64_t most;   /* of those that are there: no more than these; 0: no bound */
    uint64_t follow; /* of those that come later: so many; 0: no bound */
    uint32_t wants;  /* struct roll_frame_want, that many, follow */
    uint32_t scope;  /* enum roll_excerpt_scope */
};
_Static_assert(sizeof(struct roll_frame_excerpt) == 32, "part of the wire format");
/* The rings of which something is wanted. */
enum roll_excerpt_scope {
    ROLL_EXCERPT_EVERYONE = 0,
    ROLL_EXCERPT_CONCERNED = 1, /* those of members of the communicators of the wants, of processes that have ended
                                   badly or are stopped, and those that have given a hint of their own */
    ROLL_EXCERPT_NARROW = 2,    /* the same; and of their records those of these communicators alone, but for messages,
                                   in a numbering of their own: `history`, `most` and `follow` count these */
};
#define ROLL_EXCERPT_BEGINS_BYTES 8u /* of the header, which the root has had; of older agents it comes whole */
/* Flags of an agent's EXCERPT without payload. */
#define ROLL_EXCERPT_ALL   1u /* all that there was has been sent */
#define ROLL_EXCERPT_ASIDE 2u /* the ring is not concerned: nothing of it is sent */
#define ROLL_EXCERPT_CUT   4u /* `follow` records have been sent: what the rank does from here on is not told */
#define ROLL_EXCERPT_SHORT                                                                                             \
    8u /* with ALL: of what was wanted something is not in the ring any more, or above `most`                          \
        */
#define ROLL_EXCERPT_PASSED                                                                                            \
    16u /* with CUT, of ROLL_EXCERPT_NARROW: all that was wanted has been sent, because the rank has made a call       \
         behind it on each of these communicators; without it the rank was cut before, or its agent is an older one */
#define ROLL_EXCERPT_QUIET                                                                                             \
    8u /* with ALL: from this bit on, for how many tenths of a second the rank has written nothing */
#define ROLL_EXCERPT_QUIET_MOST 0xffffffu
struct roll_frame_want {
    uint64_t key;     /* of a communicator */
    uint32_t low;     /* the first collective that is wanted */
    uint32_t classes; /* messages of these classes, a bit for each */
    uint32_t step;    /* 0: none; 1: what was observed in no step, and since; n + 2: since step n */
    uint32_t high;    /* of ROLL_EXCERPT_NARROW: the collective behind the last one that is wanted; 0: there is no such,
                         as with older roots */
};
_Static_assert(sizeof(struct roll_frame_want) == 24, "part of the wire format");

/* Where a rank stands on one communicator before its first record that is sent. */
struct roll_frame_place {
    uint16_t comm; /* the rank's own id */
    uint8_t op;    /* ROLL_OP_SEND, ROLL_OP_RECV; ROLL_OP_NONE: collectives */
    uint8_t sure;  /* 1: no call may be missing */
    uint32_t peer; /* of messages */
    uint32_t next; /* the number that the next call has */
    uint32_t made; /* of messages: those that were no captured ones; else the calls of CommSplit */
};
_Static_assert(sizeof(struct roll_frame_place) == 16, "part of the wire format");

/*
 * One change of the control page of one run. Frames of older roots end before `restart`: such a frame changes the pages
 * of all restarts of the job, as it did when it was written.
 */
struct roll_frame_control {
    char job[ROLL_NAME_BYTES]; /* terminated */
    struct roll_control_change change;
    uint32_t restart;
    uint32_t reserved;
};
_Static_assert(sizeof(struct roll_frame_control) == 96, "part of the wire format");
#define ROLL_FRAME_CONTROL_OLDEST_BYTES 88u /* what a frame without `restart` holds */

/*
 * The minor version of a frame: the lowest one whose readers know all that is in it, so that what has not changed stays
 * byte for byte what it was, in packed traces, too. 2: DEFS with ROLL_DEFS_NAMED, whose `first` is no offset. Pure.
 */
static inline uint8_t roll_frame_minor(const struct roll_frame_head *head)
{
    return head->type == ROLL_FRAME_DEFS && (head->flags & ROLL_DEFS_NAMED) != 0 ? ROLL_FRAME_MINOR : 1u;
}

/* A decoded frame; payload borrows the buffer. */
struct roll_frame {
    struct roll_frame_head head;
    const uint8_t *payload;
};

/*
 * Encodes head (magic, versions, lengths and crc are filled in here) and payload into out.
 * Returns the bytes written, or ROLL_E_SIZE when out_bytes or ROLL_FRAME_MAX_BYTES is too small. Borrows all. Any
 * thread.
 */
int64_t roll_frame_encode(const struct roll_frame_head *head, const void *payload, size_t payload_bytes, void *out,
                          size_t out_bytes);
/*
 * roll_frame_encode for a writer that goes on with its own frame: *frame is what roll_frame_decode of `out` would give,
 * and borrows it. The payload is checked as for a frame that came from elsewhere. Errors of both; then *frame is
 * untouched.
 */
int64_t roll_frame_make(const struct roll_frame_head *head, const void *payload, size_t payload_bytes, void *out,
                        size_t out_bytes, struct roll_frame *frame);

/*
 * Decodes one frame that begins at `data`. *used becomes the bytes that it took; with `used` NULL the frame must fill
 * all `bytes` bytes. Pure, bounded. Errors: SHORT, MAGIC, VERSION, SIZE, CHECKSUM, CORRUPT (counts that contradict
 * sizes). Records of RECORDS and UPDATES have been checked by roll_record_check.
 */
int roll_frame_decode(const void *data, size_t bytes, struct roll_frame *out, size_t *used);

/* Record i of a decoded RECORDS or UPDATES frame, copied out (rec_size may be larger than the record). i < count. */
void roll_frame_record(const struct roll_frame *frame, uint32_t i, struct roll_record *out);

/*
 * Trace files: "ROLLTRCE", u16 version, u16 oldest, u32 0, then frames end to end. Written by append: a file cut
 * anywhere is valid up to its last whole frame.
 */
#define ROLL_TRACE_MAGIC      "ROLLTRCE"
#define ROLL_TRACE_VERSION    2u
#define ROLL_TRACE_OLDEST     1u /* oldest that this reader accepts */
#define ROLL_TRACE_HEAD_BYTES 16u
/* Fills the 16 bytes that begin a trace file. */
void roll_trace_head(uint8_t out[ROLL_TRACE_HEAD_BYTES]);
/* Checks the bytes that begin a trace file. 0, SHORT, MAGIC, VERSION. */
int roll_trace_check(const void *data, size_t bytes);

/* CRC-32C (Castagnoli): continues the running `crc`, which starts at 0, with `bytes` bytes. Any thread. */
uint32_t roll_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
