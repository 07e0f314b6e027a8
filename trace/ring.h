/*
 * ring.h: the ring file of one rank process: header, definitions, records. Byte by byte: docs/RING.md.
 *
 *   [ header 4096 bytes | definitions area | records: capacity x 64 bytes ]
 *
 * The file is allocated in full before it is mapped (a sparse file on a full disk would be a SIGBUS in the training
 * job), mapped MAP_SHARED, and survives SIGKILL of its writer. Many threads of one process write: a slot is reserved by
 * fetch-add on `head`, cleared, filled and sealed by one release store. The newest records win: a full ring overwrites
 * the oldest, and the reader knows from the tickets exactly how many it missed. "Drop the newest" was rejected: in
 * a hang the newest records are the ones that matter, and the writer would have to read the reader's position.
 *
 * The writer half is inline in ring_write.h (the interposer's hot path); this header is the layout, life and reader.
 */
#ifndef ROLL_TRACE_RING_H
#define ROLL_TRACE_RING_H

#include "trace/record.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_RING_MAGIC              "ROLLRING"
#define ROLL_RING_VERSION            2u /* current */
#define ROLL_RING_OLDEST             1u /* oldest that this reader accepts */
#define ROLL_RING_NEEDS              2u /* oldest reader that can read what is written now */
#define ROLL_RING_HEADER_BYTES       4096u
#define ROLL_RING_DEFAULT_RECORDS    65536u
#define ROLL_RING_MIN_RECORDS        64u
#define ROLL_RING_MAX_RECORDS        (1u << 24)
#define ROLL_RING_DEFAULT_DEFS_BYTES (256u * 1024u)
#define ROLL_RING_MAX_DEFS_BYTES     (64u * 1024u * 1024u)
#define ROLL_EXIT_UNKNOWN            INT32_MIN
#define ROLL_EXIT_ASKED              0x10000 /* added to a wait status or to UNKNOWN: the launcher is ending the job */
#define ROLL_NAME_BYTES              64u
#define ROLL_RING_DONE_STREAMS       256u
#define ROLL_RING_DONE_GRAPHS        64u

/* Why something that happened is not in the records; indices of roll_ring_header.losses. Stable. */
enum roll_loss {
    ROLL_LOSS_OVERRUN = 0,      /* overwritten before the agent read it (counted by the reader) */
    ROLL_LOSS_LAPPED = 1,       /* a return could not be noted: the slot had been reused */
    ROLL_LOSS_DEFS_FULL = 2,    /* no room for a definition */
    ROLL_LOSS_COMM_UNKNOWN = 3, /* a call on a communicator that was never seen created */
    ROLL_LOSS_CALLSITE = 4,     /* call-site table full: recorded without a call site */
    ROLL_LOSS_STREAM = 5,       /* stream table full */
    ROLL_LOSS_SIGNAL = 6,       /* call made inside a signal handler while recording: not recorded */
    ROLL_LOSS_WIRE = 7,         /* dropped between agent and root (counted by the reader) */
    ROLL_LOSS_GRAPH = 8,        /* graph table full: its launches are not recorded */
    ROLL_LOSS_MOE_KIND = 9,     /* an MoE event of a kind that is not known here: not recorded */
    ROLL_LOSS_VERDICT = 10,     /* a verdict that was not kept, written or shown (counted by the root, in no ring) */
    ROLL_LOSS_CORRUPT = 11,     /* a record that cannot be one: roll_record_check (counted by the reader) */
    ROLL_LOSS_NO_ROOM = 12, /* the judge had no room for what a rank asked for (counted by the reader, in no ring) */
    ROLL_LOSS_LIMIT = 16,
};

/* Label of a cause of loss ("overrun", "comm_unknown"); NULL for a number that has none. Any thread. */
const char *roll_loss_name(unsigned loss);
/* Whether what is counted by this cause has no ticket, or none that says it: no gap in the tickets tells of it. */
bool roll_loss_is_unrecorded(unsigned loss);

/* How the completion of work on the device is learnt; roll_ring_header.completion. */
enum roll_completion {
    ROLL_COMPLETION_OFF = 0,
    ROLL_COMPLETION_WRITE = 1,   /* the stream writes into `done`; nothing under capture */
    ROLL_COMPLETION_COUNTER = 2, /* as WRITE, and under capture a node that counts in `graph_done` */
    ROLL_COMPLETION_EVENT = 3,   /* the rank asks an event and writes `done` itself */
};

enum roll_ring_state {
    ROLL_RING_ATTACHED = 1, /* the rank is running */
    ROLL_RING_FINISHED = 2, /* the process ended by exit() and said so here */
    ROLL_RING_DISABLED = 3, /* recording was switched off (fork, error) */
};

struct roll_ring_header {
    /* Written once, before the file gets its final name; covered by static_crc. */
    char magic[8];              /*   0 */
    uint16_t version;           /*   8 */
    uint16_t oldest;            /*  10: oldest reader version that can read this file */
    uint32_t header_bytes;      /*  12 */
    uint32_t record_bytes;      /*  16 */
    uint32_t capacity;          /*  20: records, a power of two */
    uint64_t defs_offset;       /*  24 */
    uint64_t defs_bytes;        /*  32 */
    uint64_t records_offset;    /*  40 */
    uint64_t file_bytes;        /*  48 */
    uint32_t pid;               /*  56 */
    int32_t world_rank;         /*  60: -1 when unknown */
    int32_t world_size;         /*  64: -1 when unknown */
    int32_t local_rank;         /*  68: -1 when unknown */
    uint32_t restart;           /*  72: restart count of the job */
    uint32_t flags;             /*  76: 0 */
    uint64_t start_ticks;       /*  80: start time of the process, field 22 of /proc/PID/stat */
    uint64_t epoch;             /*  88: random, non-zero: tells this ring from every other */
    uint8_t boot_id[16];        /*  96 */
    char job[ROLL_NAME_BYTES];  /* 112 */
    char host[ROLL_NAME_BYTES]; /* 176 */
    char exe[128];              /* 240: name of the program, terminated */
    uint32_t reserved0;         /* 368 */
    uint32_t static_crc;        /* 372: CRC-32C of bytes 0..371 */
    uint8_t pad0[136];          /* 376 */

    /* The fields from here on change while the job runs; each kind of writer has a cache line of its own. */
    _Atomic uint64_t head; /* 512: tickets handed out so far */
    uint8_t pad1[56];
    _Atomic uint64_t defs_used; /* 576: bytes of the definitions area handed out (may exceed defs_bytes when full) */
    uint8_t pad2[56];
    _Atomic uint32_t state;      /* 640: enum roll_ring_state */
    _Atomic int32_t exit_status; /* 644: wait status, by the launcher; ROLL_EXIT_UNKNOWN until then; with _ASKED */
    _Atomic uint64_t finish_ns;  /* 648: CLOCK_MONOTONIC of FINISHED */
    uint8_t pad3[48];
    _Atomic uint64_t clock_mono_ns; /* 704: clock pair, refreshed by the rank at attach and by the agent later */
    _Atomic uint64_t clock_real_ns; /* 712: CLOCK_REALTIME at clock_mono_ns */
    /* By agents: what was lost below this ticket is in `losses`, so a new agent counts from here on. 0 = not known. */
    _Atomic uint64_t counted; /* 720 */
    uint8_t pad4[40];
    _Atomic uint64_t losses[ROLL_LOSS_LIMIT]; /* 768 */
    _Atomic uint32_t completion;              /* 896: enum roll_completion */
    uint8_t pad5[124];
    /* By stream id: ticket + 1 of the newest call whose work on that stream is known to be complete; 0 = none yet.
     * Written by the device or by the rank. Streams with greater ids are not followed. */
    _Atomic uint64_t done[ROLL_RING_DONE_STREAMS]; /* 1024 */
    /* By graph id: replays whose work is complete. */
    _Atomic uint64_t graph_done[ROLL_RING_DONE_GRAPHS]; /* 3072 */
    uint8_t pad6[ROLL_RING_HEADER_BYTES - 3584];
};

_Static_assert(sizeof(struct roll_ring_header) == ROLL_RING_HEADER_BYTES, "the ring header is one page");
_Static_assert(offsetof(struct roll_ring_header, static_crc) == 372 && offsetof(struct roll_ring_header, head) == 512 &&
                   offsetof(struct roll_ring_header, defs_used) == 576 &&
                   offsetof(struct roll_ring_header, state) == 640 &&
                   offsetof(struct roll_ring_header, clock_mono_ns) == 704 &&
                   offsetof(struct roll_ring_header, losses) == 768 &&
                   offsetof(struct roll_ring_header, completion) == 896 &&
                   offsetof(struct roll_ring_header, done) == 1024 &&
                   offsetof(struct roll_ring_header, graph_done) == 3072,
               "ring header offsets are part of the format");

/* Facts about the writer that go into the header of a ring. */
struct roll_ring_params {
    uint32_t capacity;   /* records; rounded up to a power of two; 0 = default */
    uint64_t defs_bytes; /* 0 = default; rounded up to a page */
    int32_t world_rank, world_size, local_rank;
    uint32_t restart;
    const char *job;  /* borrowed */
    const char *host; /* borrowed; NULL = this host's name */
    const char *exe;  /* borrowed; NULL = this program's name */
};

/* A mapped ring, of a writer or a reader. Plain struct: the interposer keeps it in static storage. */
struct roll_ring {
    struct roll_ring_header *header;
    uint8_t *defs;
    struct roll_record *records;
    uint64_t mask;       /* capacity - 1 */
    uint64_t defs_bytes; /* as checked, for readers: the job may have overwritten the header since */
    size_t bytes;        /* of the mapping */
    bool writable;
    bool anonymous; /* there is no file: the ring is private to this process */
};

/*
 * Makes and maps the ring file `path` (mode 0600, fully allocated, given its name when it is whole, so that
 * a reader never sees half a header). Borrows all arguments; fills ring. Not on any hot path; no malloc.
 * path NULL: an anonymous ring, private to the process. A file that has the name already is replaced.
 * Errors: SPACE, DENIED, NOTFOUND (no such directory), IO, ARG, LIMIT (RLIMIT_FSIZE, RLIMIT_AS, descriptors).
 * One thread per ring.
 */
int roll_ring_create(const char *path, const struct roll_ring_params *params, struct roll_ring *ring);

/*
 * Maps an existing ring file for reading (writable = false), or also for the few fields that an agent or a launcher may
 * write: exit_status, the clock pair, losses, counted (writable = true). Checks everything first. Any thread.
 * Errors: NOTFOUND, DENIED, IO, SHORT, MAGIC, VERSION, SIZE, CHECKSUM, CORRUPT.
 */
int roll_ring_open(const char *path, bool writable, struct roll_ring *ring);

/* Checks `bytes` bytes that should be a ring file (a mapping or a copy); pure. Errors as roll_ring_open. */
int roll_ring_check(const void *data, size_t bytes);

/* Checks a header alone, as it travels in a RING frame: everything but whether the rest of the file is there. Pure. */
int roll_ring_check_header(const void *data, size_t bytes);

/* Makes a read-only struct roll_ring over a checked copy in memory (borrowed; not unmapped by close). */
int roll_ring_view(const void *data, size_t bytes, struct roll_ring *ring);

/* Unmaps; leaves the file. Idempotent. */
void roll_ring_close(struct roll_ring *ring);

/*
 * Copies up to max records from ticket `from` on that are sealed (any state but EMPTY), in ticket order, into out.
 * *next becomes the ticket to ask for next time; *lost is increased by the records that were overwritten before they
 * were read. Stops early at a slot that is still being written; where a whole lap has been written behind that slot,
 * its record counts as lost instead. Returns the number copied. Wait-free; one reader; safe beside writers.
 *
 * A writer that was killed or is held up inside a slot stops the reader there: n is 0 and *next < head. How long to
 * wait is the caller's choice; to go past it, count one loss and ask again from *next + 1 (at once when the process is
 * dead).
 */
size_t roll_ring_read(const struct roll_ring *ring, uint64_t from, struct roll_record *out, size_t max, uint64_t *next,
                      uint64_t *lost);

/*
 * The ticket that the next call gets. Seals have room for 56 bits of a ticket, so what stands above these in `head` is
 * damage, and is left out: the tickets go on as they were. Borrows ring. Any thread.
 */
#define ROLL_TICKET_LIMIT (UINT64_C(1) << 56)
static inline uint64_t roll_ring_head(const struct roll_ring *ring)
{
    return atomic_load_explicit(&ring->header->head, memory_order_acquire) & (ROLL_TICKET_LIMIT - 1);
}

/* Copies the record with this ticket. 0, or ROLL_E_NOTFOUND when it has been overwritten or is not there yet. */
int roll_ring_get(const struct roll_ring *ring, uint64_t ticket, struct roll_record *out);

#endif
