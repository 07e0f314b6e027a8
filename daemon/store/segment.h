/*
 * segment.h: a trace as a series of segments: DIR/SERIES.NUMBER.rtrc, each a trace file of its own that can be read
 * alone.
 *
 * SERIES is JOB.RESTART of a root and JOB.RESTART@HOST of an agent; numbers have eight digits and begin at 1, so names
 * sort by time. A segment begins with the frames of earlier segments that still hold; then come its own PACK frames
 * (docs/FRAME.md).
 */
#ifndef ROLL_DAEMON_STORE_SEGMENT_H
#define ROLL_DAEMON_STORE_SEGMENT_H

#include "trace/frame.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_SEGMENT_BYTES       (UINT64_C(64) << 20) /* default size of a segment */
#define ROLL_SEGMENT_BYTES_LEAST (64u << 10)
#define ROLL_SEGMENT_LIMIT_LEAST (256u << 10) /* least limit for all segments of a trace: room for four */
#define ROLL_SEGMENT_WHY         96
#define ROLL_SEGMENT_REMOVE      64 /* segments removed at once */

struct roll_segment_options {
    const char *dir;        /* borrowed only while the writer is made; the directory is made when it does not exist */
    const char *series;     /* borrowed only while the writer is made */
    uint64_t segment_bytes; /* a segment ends when it has this many; 0 = the default */
    uint64_t limit_bytes;   /* all segments in DIR of the same kind (root, or agents of this host); 0 = no limit */
    uint64_t age_ns;        /* segments whose last byte is older are removed; 0 = never */
};

struct roll_segment_name {
    char path[4096];
    uint64_t number; /* 0: a trace file from before there were segments */
};

/* Counts of what a writer has kept and has not kept. */
struct roll_segment_count {
    uint64_t segments, bytes, records, removed; /* written by this writer; removed: segments */
    uint64_t lost;                              /* records that were not kept */
    bool stopped;                               /* an error ended the recording */
};

/* How much of a ring is kept. */
struct roll_segment_cursor {
    uint64_t next_ticket, defs_offset; /* records and definitions below are in the file or were noted */
    uint64_t open_ticket;              /* lowest ticket of a call that has not returned there */
};

typedef struct roll_segments roll_segments_t;

/*
 * Makes DIR (0700), or checks that it belongs to this user: DENIED when it does not, or when everybody may write there;
 * `why` says which. NOTFOUND, IO, ARG (no directory).
 */
int roll_segment_dir(const char *dir, char *why, size_t why_size);
/* The segments of a series, oldest first, in *out (returns owned, free it). 0 (also when there is none), NOTFOUND,
 * DENIED, NOMEM. */
int roll_segment_list(const char *dir, const char *series, struct roll_segment_name **out, size_t *count);
/* DIR/SERIES.NUMBER.rtrc; false when that is too long. */
bool roll_segment_path(const char *dir, const char *series, uint64_t number, char out[PATH_MAX]);
/* Splits a path into series (with the directory) and number; false when it is not named like a segment. */
bool roll_segment_parse(const char *path, char *series, size_t series_bytes, uint64_t *number);

/*
 * Removes segments of the same kind that are too old, then the oldest until the others and `coming` bytes are within
 * the limit; never one that a process is writing. Returns how many: at most ROLL_SEGMENT_REMOVE, because removing takes
 * time and the daemon has other work; *more: there are more to remove.
 */
uint64_t roll_segment_expire(const struct roll_segment_options *options, uint64_t coming, bool *more);
/* The error code (err.def) for errno. */
int roll_segment_errno(void);

/* Makes a writer that goes on behind the newest segment of the series, in a new one. BUSY: another process writes it,
 * *pid is its pid (0 unknown; it may be on another host); NOMEM, LIMIT, and those of the list and of the lock. */
int roll_segments_new(const struct roll_segment_options *options, roll_segments_t **out, int *pid);
/* An error of roll_segments_new in words, with the process that is in the way, if one is known. Returns `out`. */
const char *roll_segment_why(int err, int pid, char out[ROLL_SEGMENT_WHY]);
/* Takes note of a frame that an earlier segment holds, without writing it. 0 or NOMEM. */
int roll_segments_note(roll_segments_t *segments, const struct roll_frame *frame);
/*
 * Keeps a frame (decoded, and as encoded; both borrowed). now: CLOCK_MONOTONIC. The first error is returned once and
 * ends the recording; after that frames are only counted. SPACE, IO, DENIED, NOMEM.
 */
int roll_segments_append(roll_segments_t *segments, const struct roll_frame *frame, const void *raw, size_t bytes,
                         uint64_t now);
/* Writes the waiting frames when they have waited long enough, or at once. Errors as roll_segments_append. */
int roll_segments_turn(roll_segments_t *segments, uint64_t now, bool at_once);
void roll_segments_cursor(const roll_segments_t *segments, uint64_t epoch, struct roll_segment_cursor *out);
void roll_segments_count(const roll_segments_t *segments, struct roll_segment_count *out);
/* Writes the waiting frames and ends the writer. */
void roll_segments_destroy(roll_segments_t **segments);

/* segment_state.c: the state that a segment has to repeat. Private to segment*.c. */
struct roll_segment_state;
struct roll_segment_state *roll_segment_state_new(void); /* NULL when out of memory */
void roll_segment_state_destroy(struct roll_segment_state **state);
void roll_segment_state_cursor(const struct roll_segment_state *state, uint64_t epoch, struct roll_segment_cursor *out);
int roll_segment_state_note(struct roll_segment_state *state, const struct roll_frame *frame);
/* Gives each frame to repeat, in order, to `give`; ends at its first error. */
int roll_segment_state_repeat(const struct roll_segment_state *state,
                              int (*give)(void *ctx, const struct roll_frame_head *head, const void *payload,
                                          size_t bytes),
                              void *ctx);

#endif
