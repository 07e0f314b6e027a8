/*
 * feed.h: the feeder of one run: decoded frames in, verdicts out.
 *
 * The live root and the post-mortem analyzer drive the engine through this one object, so the frames of a trace file
 * give the same verdicts, byte for byte, as they gave live. It finds the ring (stream) that a frame is about, drops
 * what it has seen before (by ticket and by offset in the definitions), tells the engine about gaps, sets clocks, and
 * copies each verdict at the moment it appears. It has no clock and does no input or output. One thread per
 * feed.
 */
#ifndef ROLL_DAEMON_FEED_FEED_H
#define ROLL_DAEMON_FEED_FEED_H

#include "daemon/engine/engine.h"
#include "daemon/stack/symbol.h"
#include "daemon/verdict/verdict.h"
#include "trace/frame.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct roll_feed roll_feed_t;

/* What is known about one ring of the run. */
struct roll_feed_stream {
    uint64_t stream;    /* epoch of the ring */
    uint32_t source;    /* its number in the engine */
    int32_t world_rank; /* as the ring says; -1 unknown */
    int32_t local_rank;
    uint32_t pid;
    char host[ROLL_NAME_BYTES];
    char exe[128];
    uint64_t next_ticket; /* every record below has been fed or is lost */
    uint64_t defs_offset; /* every definition below has been fed */
    uint64_t open_ticket; /* lowest ticket fed as ENTERED that has not been seen to return; next_ticket when none */
    uint64_t fed;         /* records fed for the first time */
    uint64_t duplicates;  /* records that came again and brought nothing new */
    uint64_t lost;        /* records that never came */
    uint64_t losses[ROLL_LOSS_LIMIT]; /* by cause, as the rank and the agent count them */
    enum roll_proc_state proc;
    int32_t exit_status;
    bool heard;       /* its agent is, as far as frames have said */
    uint32_t starved; /* permille: struct roll_frame_sight */
};

/*
 * A feed for one run. Borrows all arguments. job = NULL: the first RING frame says which run it is (trace files).
 * NULL when out of memory.
 */
roll_feed_t *roll_feed_new(const struct roll_engine_config *config, const char *job, uint32_t restart);
void roll_feed_destroy(roll_feed_t **feed);

/* From here on no SETTINGS frame changes the policy: somebody asks to judge as under the one of `config`. */
void roll_feed_fix_policy(roll_feed_t *feed);

/*
 * One decoded frame (borrowed): RING, DEFS, RECORDS, UPDATES, STATUS, SIGHT, NOTE, SETTINGS and TICK matter, others are
 * ignored. 0, NOMEM, LIMIT (too many rings), NOTFOUND (a ring that was never announced), ARG (a ring of another run),
 * or what a malformed payload deserves (SIZE, MAGIC, VERSION, CHECKSUM, CORRUPT); the feed stays usable after each.
 */
int roll_feed_frame(roll_feed_t *feed, const struct roll_frame *frame);
/*
 * Would this STATUS (its payload, and what was said of the same ring before) change anything? An agent says twice a
 * second that a process runs on as it did; a trace needs that once. News: another state, exit status or loss, a clock
 * that was set, any word about a process that has ended. Pure.
 */
bool roll_feed_status_is_news(const struct roll_frame_status *before, const struct roll_frame_status *now);
/* Does this frame bring what the feed does not know yet? True for all but a STATUS that says nothing new. */
bool roll_feed_is_news(const roll_feed_t *feed, const struct roll_frame *frame);
/* Time passes for the engine, in ns. A trace file must hold a TICK frame for each such call that it is to repeat. */
int roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);
/*
 * The wall clock in ns: what verdicts show as time_ns from now on; before the first call they show the engine's time.
 * No time passes for the engine by it. A trace file must hold it, as the payload of a TICK frame.
 */
void roll_feed_stamp(roll_feed_t *feed, uint64_t real_ns);
/* No more input will come: decides what is decidable. A second call without input in between does nothing. */
int roll_feed_finish(roll_feed_t *feed);

/* The next verdict, returned owned, and of no further need of the feed; NULL when there is none. */
struct roll_verdict_copy *roll_feed_next(roll_feed_t *feed);
/* How many verdicts the engine gave for which there was no memory: roll_feed_next never returns them. */
uint64_t roll_feed_verdicts_lost(const roll_feed_t *feed);

/* Borrowed. */
roll_engine_t *roll_feed_engine(roll_feed_t *feed);
roll_symbols_t *roll_feed_symbols(roll_feed_t *feed);
/* The run; "" before the first RING frame of a feed that was made without a job. Borrowed. */
const char *roll_feed_job(const roll_feed_t *feed);

/* Ring i, from 0, in the order of their announcement; false when i is out of range. */
bool roll_feed_stream(const roll_feed_t *feed, size_t i, struct roll_feed_stream *out);
/* The ring with this epoch; false when it was never announced. */
bool roll_feed_find(const roll_feed_t *feed, uint64_t stream, struct roll_feed_stream *out);

/*
 * Checks a RING frame and says which run the ring belongs to, or the process of a NOTE frame; job is cleaned to
 * [A-Za-z0-9._-], terminated. 0, SIZE, MAGIC, VERSION, CHECKSUM, CORRUPT. Pure.
 */
int roll_feed_run_of(const struct roll_frame *frame, char job[ROLL_NAME_BYTES], uint32_t *restart);

#endif
