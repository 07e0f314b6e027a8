/*
 * rdig.h: the bytes of an .rdig file: what one node's traces come to, small enough to be carried to one machine
 * (docs/RDIG.md).
 *
 * A head, then sections. A section is about one series of traces (daemon/store/segment.h), and holds the digest of all
 * its calls and an excerpt of its records, which is a trace by itself. The whole file bears one checksum: half a file
 * is refused, because what is missing in it would look like ranks that did nothing. Numbers are little-endian, and each
 * part begins at a multiple of 8 bytes. Pure; any thread.
 */
#ifndef ROLL_DAEMON_DIGEST_RDIG_H
#define ROLL_DAEMON_DIGEST_RDIG_H

#include "daemon/digest/span.h"
#include "trace/ring.h"

#include <stddef.h>
#include <stdint.h>

#define ROLL_RDIG_MAGIC   "ROLLRDIG"
#define ROLL_RDIG_VERSION 2u
#define ROLL_RDIG_OLDEST  1u                  /* oldest that this reader accepts */
#define ROLL_RDIG_NEEDS   2u                  /* oldest whose readers accept what this writer writes */
#define ROLL_RDIG_MOST    (UINT64_C(1) << 30) /* bytes of a file; larger ones are neither written nor read */
#define ROLL_RDIG_TEXT    4096u               /* bytes of a path */

struct roll_rdig_head {
    char magic[8];
    uint16_t version, oldest;
    uint32_t sections;
    uint64_t bytes; /* of the whole file */
    uint32_t crc;   /* CRC-32C of the whole file, with 0 in these four bytes */
    uint32_t reserved;
};
_Static_assert(sizeof(struct roll_rdig_head) == 32, "part of the format");

enum roll_rdig_kind {
    ROLL_RDIG_END = 1,   /* all calls by their digests, and the newest records */
    ROLL_RDIG_PLACE = 2, /* records around one call of a communicator, `key` and `seq` */
    ROLL_RDIG_RANGE = 3, /* spans of one communicator as fine as they can be had, from `seq` to `last`; no records */
};
#define ROLL_RDIG_WHOLE 1u /* flag: the excerpt is all of the traces */
#define ROLL_RDIG_CUT   2u /* flag: a trace was cut short or damaged, or its beginning is gone */

/* Parts follow in this order: rings, comms, spans, name, path, digest, head, trace. */
struct roll_rdig_section {
    uint64_t bytes; /* of the section, with all its parts */
    uint32_t kind, flags;
    char job[ROLL_NAME_BYTES];  /* terminated */
    char host[ROLL_NAME_BYTES]; /* terminated; "": no ring said it */
    uint32_t restart;
    uint32_t rings, comms, spans;
    uint64_t key;               /* of PLACE and RANGE */
    uint32_t seq, last;         /* collectives of it; PLACE: the same */
    uint64_t first_ns, last_ns; /* wall clock of the first and the last record of the traces; 0: there is none */
    uint64_t records, calls;    /* that the traces have */
    uint64_t lost;              /* that were made, are not in them, and are not older */
    uint32_t name_bytes;        /* of the series; not terminated */
    uint32_t path_bytes;        /* where the traces lie on the node; not terminated */
    uint32_t digest_bytes;      /* payload of DIGEST frames, one after the other, a u32 of its size before each */
    uint32_t head_bytes;        /* RING, DEFS and PLACE frames: where each ring comes in */
    uint64_t trace_bytes;       /* what was recorded from there on */
    uint64_t older;             /* records before the first that the traces have; version 2 */
};
_Static_assert(sizeof(struct roll_rdig_section) == 248, "part of the format");
#define ROLL_RDIG_SECTION_1 240u /* bytes of it in version 1, in which older records are among those that are lost */

struct roll_rdig_ring {
    uint64_t epoch;
    uint64_t begin, next; /* tickets of the excerpt, and one more than the last */
    uint64_t lost;        /* records that the traces lack, and that are not older than they */
    int32_t world_rank;   /* -1: not known */
    uint32_t proc_state;  /* enum roll_proc_state */
    int32_t exit_status;
    uint32_t hinted; /* a bit for each enum roll_digest_why of which there was one before `begin` */
};
_Static_assert(sizeof(struct roll_rdig_ring) == 48, "part of the format");

struct roll_rdig_comm {
    uint64_t key;
    uint32_t size;    /* members */
    uint32_t members; /* those of them that are in the section */
    uint32_t from;    /* the excerpt has all collectives of these members from this one on */
    uint32_t spans;   /* of it, behind those of the communicators before */
};
_Static_assert(sizeof(struct roll_rdig_comm) == 24, "part of the format");
_Static_assert(sizeof(struct roll_span) == 16, "part of the format");

/* A section that was read or is to be written; borrows all. Of one that was read, the arrays may lie anywhere: they are
 * read by the functions below. */
struct roll_rdig_view {
    struct roll_rdig_section is;
    const void *rings, *comms, *spans;
    const char *name, *path;
    const uint8_t *digest, *head, *trace;
};
void roll_rdig_ring(const struct roll_rdig_view *view, uint32_t i, struct roll_rdig_ring *out);
void roll_rdig_comm(const struct roll_rdig_view *view, uint32_t i, struct roll_rdig_comm *out);
/* All spans from number `first` on, n of them, copied. */
void roll_rdig_spans(const struct roll_rdig_view *view, uint32_t first, uint32_t n, struct roll_span *out);

/* A file that is being written. Zero-initialised is empty. */
struct roll_rdig_out {
    uint8_t *bytes; /* owned */
    size_t used, room;
    uint32_t sections;
};
/* Appends a section; its `is.bytes` is filled in. 0, NOMEM; LIMIT: the file would be larger than ROLL_RDIG_MOST. */
int roll_rdig_add(struct roll_rdig_out *out, const struct roll_rdig_view *section);
/* Makes the bytes a file, to which nothing is added any more. 0, NOMEM. */
int roll_rdig_seal(struct roll_rdig_out *out);
void roll_rdig_fini(struct roll_rdig_out *out);

/* Checks the bytes of a whole file. *sections: how many it has. 0, SHORT (cut), SIZE (longer than it says), MAGIC,
 * VERSION, CHECKSUM. */
int roll_rdig_check(const void *data, size_t bytes, uint32_t *sections);
/* The next section of bytes that were checked; *at: 0 at first. 0; NOTFOUND at the end; CORRUPT: what it says cannot
 * be, and nothing behind it can be read. */
int roll_rdig_next(const void *data, size_t bytes, size_t *at, struct roll_rdig_view *out);

#endif
