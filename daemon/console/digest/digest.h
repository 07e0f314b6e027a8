/*
 * digest.h: a series of traces made a section of an .rdig file (daemon/digest/rdig.h): the digest of all calls, and
 * excerpts of the records. Shared by the files of this folder and cmd_digest.c; one thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_DIGEST_DIGEST_H
#define ROLL_DAEMON_CONSOLE_DIGEST_DIGEST_H

#include "daemon/base/map.h"
#include "daemon/console/analyze/series.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/rdig.h"
#include "daemon/digest/sum.h"
#include "trace/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Collectives that are asked for: one, or a range in which something differs. */
struct roll_digest_at {
    uint64_t key;
    uint32_t seq, last;
};
struct roll_digest_how {
    uint32_t history; /* newest records of each ring that the excerpt has in any case */
    const struct roll_digest_at *at;
    size_t ats;
    const char *path; /* where the traces lie */
};
/* Adds the sections of one series. 0; NOTFOUND: it announces no ring; NOMEM, LIMIT. */
int roll_digest_series(struct roll_series *series, const struct roll_digest_how *how, struct roll_rdig_out *out);

/* find.c: the traces in these places. *file: returned owned (also after an error); what cannot be read is one line on
 * standard error. 0, NOMEM. */
struct roll_digest_found {
    size_t traces, rings, unreadable; /* rings: that lie there, too, and are not looked at */
};
int roll_digest_find(char *const *path, size_t paths, struct roll_analyze_file **file, struct roll_digest_found *found);

/* take.c: all of a series in one pass */

struct taken_chunk {
    uint64_t first; /* offset of its first entry in the definitions area */
    size_t at, bytes;
};
struct taken_comm {
    uint64_t key;
    uint32_t size;
    uint16_t id; /* the rank's own */
};
struct taken_ring {
    uint64_t epoch;
    uint8_t *header; /* owned, as all that follows */
    uint8_t *defs;
    size_t defs_used, defs_room;
    uint64_t defs_offset; /* definitions below it are known */
    struct taken_chunk *chunk;
    size_t chunks, chunk_room;
    struct taken_comm *comm;
    size_t comms, comm_room;
    roll_fold_t *fold;
    struct roll_record *image;           /* the newest records, by ticket; as many as a ring holds */
    uint64_t slots;                      /* of the image; a power of two */
    uint64_t first, next;                /* tickets: the first that was seen, and one more than the last */
    bool begun;                          /* a record has come that is not repeated of a segment that is gone */
    uint64_t cut;                        /* `next` when the fold was cut last */
    uint64_t lost, older;                /* records that are not there; older: before the first that is (feed.h) */
    struct roll_frame_status status;     /* the newest; proc_state 0: none */
    int64_t clock_offset;                /* wall clock - monotonic */
    uint64_t hinted[ROLL_HINT_LAST + 1]; /* by why: no record before this ticket gave reason to it; ticket + 1 */
};
/* What a level of digests has told of a communicator that goes beyond the node. */
struct taken_key {
    uint64_t key;
    struct roll_spans spans;
};
/* A place whose records are wanted while they are there. */
struct taken_place {
    struct roll_digest_at at;
    bool asked, passed;      /* passed: an excerpt of it has been noted */
    struct roll_spans spans; /* of a range: of its windows */
};
/* Since when what `moe_core` has observed on a communicator has to be looked at: the first hint of that. */
struct taken_observed {
    uint64_t key;
    uint32_t step; /* roll_observed_step */
};
/* Where each ring's part of an excerpt lies, noted when all records of it had been read. */
struct taken_part {
    uint64_t begin, end; /* tickets */
    struct roll_fold_place *place;
    size_t places;
};
struct taken_excerpt {
    uint32_t kind;
    struct roll_digest_at at;
    struct taken_part *part; /* of each ring that was there */
    size_t parts;
    struct roll_rdig_comm *comm;
    size_t comms, comm_room;
    size_t segment; /* reading may begin there */
    bool whole;
};
/* How far each ring was when a segment began. */
struct taken_segment {
    size_t at, rings; /* in `nexts` */
};
struct roll_taken {
    const struct roll_digest_how *how;
    char job[ROLL_NAME_BYTES], host[ROLL_NAME_BYTES];
    uint32_t restart;
    bool named;
    struct taken_ring **ring; /* the rings, each owned */
    size_t rings, ring_room;
    struct roll_map ring_at;
    roll_sum_t *sum;
    struct roll_digest cut, up; /* scratch */
    struct taken_key *key;
    size_t keys, key_room;
    struct roll_map key_at;
    struct taken_place *place;
    size_t places, place_room;
    struct taken_observed *observed;
    size_t observeds, observed_room;
    struct taken_excerpt *excerpt;
    size_t excerpts, excerpt_room;
    struct taken_segment *segment;
    size_t segments, segment_room;
    uint64_t *nexts;
    size_t nexts_used, nexts_room;
    struct roll_digest hints; /* of the level, at the end: communicators that are all here and do not agree */
    uint64_t now_ns, first_ns, last_ns, records, calls;
    uint64_t since_sum; /* records since the level was cut */
};
/* Reads all of a series. 0, NOMEM. */
int roll_take(struct roll_taken *taken, struct roll_series *series, const struct roll_digest_how *how);
void roll_taken_fini(struct roll_taken *taken);
struct taken_ring *roll_taken_ring(const struct roll_taken *taken, uint64_t epoch);

/* take_rings.c: takes a frame that announces a ring, or has definitions of it. *cut: the frame is damaged, or of
 * another run. 0, NOMEM. */
int roll_taken_add_ring(struct roll_taken *taken, const struct roll_frame *frame, bool *cut);
int roll_taken_add_defs(struct taken_ring *ring, const struct roll_frame *frame, bool *cut);

/* take_level.c: each 0, NOMEM */

/* A place whose records are wanted. asked: by the user; others are told by the level, and there are few of them. */
int roll_taken_add_place(struct roll_taken *taken, const struct roll_digest_at *at, bool asked);
/* Cuts the fold of ring number i into the level. */
int roll_taken_cut_ring(struct roll_taken *taken, uint32_t i);
/* The level is cut, and what waits to be passed by all members is looked at. */
int roll_taken_cut_level(struct roll_taken *taken);
/* Takes what the level tells upward (`up`). */
int roll_taken_up(struct roll_taken *taken);

/* parts.c: where excerpts begin. Notes one; of a place, what the rings' images still have of it. 0, NOMEM. */
int roll_taken_note_place(struct roll_taken *taken, const struct roll_digest_at *at);
int roll_taken_note_end(struct roll_taken *taken);

/* cut.c: reads the series once more and writes an excerpt: its head and its records, two traces. *head and *trace:
 * returned owned. 0, NOMEM, LIMIT. */
struct roll_cut {
    uint8_t *head, *trace;
    size_t head_bytes, trace_bytes;
};
int roll_cut(const struct roll_taken *taken, const struct taken_excerpt *excerpt, struct roll_series *series,
             struct roll_cut *out);

#endif
