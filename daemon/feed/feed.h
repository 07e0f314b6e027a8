/*
 * feed.h: the feeder of one run: decoded frames in, verdicts out.
 *
 * The live root and the post-mortem analyzer drive the engine through this one object, so the frames of a trace file
 * give the same verdicts, byte for byte, as they gave live. The feed finds the ring (stream) that a frame is about,
 * drops what it has seen before (by ticket and by offset in the definitions), tells the engine about gaps, sets clocks,
 * and copies each verdict at the moment it appears. The feed has no clock and does no input or output. One thread per
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
    uint32_t source;    /* number of the ring's source in the engine */
    int32_t world_rank; /* rank by the ring's header; -1 = unknown */
    int32_t local_rank;
    uint32_t pid;
    char host[ROLL_NAME_BYTES];
    char exe[128];
    uint64_t next_ticket; /* every record with a lower ticket has been fed or is lost */
    uint64_t defs_offset; /* every definition below this offset has been fed */
    uint64_t open_ticket; /* lowest ticket fed as ENTERED that has not been seen to return; next_ticket when none */
    uint64_t fed;         /* records fed for the first time */
    uint64_t duplicates;  /* records that came again and brought nothing new */
    uint64_t lost;        /* records that never came */
    uint64_t older;       /* of a recording: records before the first that is there, which are no loss */
    uint64_t losses[ROLL_LOSS_LIMIT]; /* counts of the rank and its agent, by cause */
    enum roll_proc_state proc;
    int32_t exit_status;
    bool heard;       /* the root hears the ring's agent, as far as frames have said */
    uint32_t starved; /* permille of the time; struct roll_frame_sight */
};

/*
 * Makes a feed for one run. Borrows all arguments. job = NULL: the first RING frame says which run it is (trace files).
 * NULL when out of memory.
 */
roll_feed_t *roll_feed_new(const struct roll_engine_config *config, const char *job, uint32_t restart);
void roll_feed_destroy(roll_feed_t **feed);

/* Keeps the policy of `config` from here on, whatever SETTINGS frames say: somebody asks to judge as under that policy.
 */
void roll_feed_fix_policy(roll_feed_t *feed);

/*
 * The frames come from files, before the first frame: what lies before a ring's first record was made before the
 * recording begins (the segments before are gone, an incident keeps the last calls, a ring was written over), and is
 * `older`, not lost. What a living root lacks at the beginning was dropped on the way to it. For the engine, both are
 * gaps.
 */
void roll_feed_of_recording(roll_feed_t *feed);

/* What a record is to who watches a feed. */
enum roll_feed_news {
    ROLL_FEED_FIRST = 1,     /* nothing was known of the call */
    ROLL_FEED_RETURNED = 2,  /* it was known as entered, and has come back since */
    ROLL_FEED_COMPLETED = 3, /* it was known as returned, and is complete; this may come more than once */
};
/*
 * Somebody who is told what a feed takes in the order in which the engine gets it: who writes a job down again in
 * another form needs each call once, whatever the frames repeat. What is handed over is borrowed for the call; nothing
 * may be fed from inside. real_ns: wall clock of the record.
 */
struct roll_feed_watch {
    void *ctx; /* borrowed */
    void (*define)(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *ring, const struct roll_def *def);
    void (*record)(void *ctx, roll_feed_t *feed, const struct roll_feed_stream *ring, const struct roll_record *rec,
                   uint64_t real_ns, enum roll_feed_news news);
    /* Each verdict (borrowed) at the moment it appears, for who wants to see how the ranks stood then; NULL = none. */
    void (*verdict)(void *ctx, roll_feed_t *feed, const struct roll_verdict_copy *verdict);
    /* The feed ends, and another one may come to its place in memory; NULL = none. */
    void (*gone)(void *ctx, const roll_feed_t *feed);
};
/* From now on (before the first frame, or what came is not told). Borrowed for the life of the feed. */
void roll_feed_watch(roll_feed_t *feed, const struct roll_feed_watch *watch);

/*
 * Takes one decoded frame (borrowed): RING, DEFS, PLACE, RECORDS, UPDATES, STATUS, SIGHT, NOTE, SETTINGS and TICK
 * matter, others are ignored. 0, NOMEM, LIMIT (too many rings), NOTFOUND (a ring that was never announced), ARG (a ring
 * of another run), or the error of a malformed payload (SIZE, MAGIC, VERSION, CHECKSUM, CORRUPT); the feed stays usable
 * after each.
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
/* Tells the engine the time, in ns. A trace file must hold a TICK frame for each such call that a replay is to repeat.
 */
int roll_feed_tick(roll_feed_t *feed, uint64_t now_ns);
/*
 * Sets the wall clock, in ns, which verdicts show as time_ns from now on; before the first call they show the engine's
 * time. No time passes for the engine. A trace file must hold each such call as the payload of a TICK frame.
 */
void roll_feed_stamp(roll_feed_t *feed, uint64_t real_ns);
/* Called when no more input will come: the engine decides what is decidable. A second call without input in between
 * does nothing. */
int roll_feed_finish(roll_feed_t *feed);

/* The next verdict, returned owned, which does not need the feed any more; NULL when there is none. */
struct roll_verdict_copy *roll_feed_next(roll_feed_t *feed);
/* How many verdicts the engine gave for which there was no memory: roll_feed_next never returns them. */
uint64_t roll_feed_verdicts_lost(const roll_feed_t *feed);

/* Borrowed. */
roll_engine_t *roll_feed_engine(roll_feed_t *feed);
roll_symbols_t *roll_feed_symbols(roll_feed_t *feed);
/* The run; "" before the first RING frame of a feed that was made without a job. Borrowed. */
const char *roll_feed_job(const roll_feed_t *feed);
uint32_t roll_feed_restart(const roll_feed_t *feed);

/* Ring i, from 0, in the order of their announcement; false when i is out of range. */
bool roll_feed_stream(const roll_feed_t *feed, size_t i, struct roll_feed_stream *out);
/*
 * What the rings' own counters say, summed over them, by cause. Returns how many records are lost in all, by the
 * engine's gaps or by the counters, whichever knows of more: of a ring that is folded no gap comes to the engine, and
 * of a trace that was cut no counter.
 */
uint64_t roll_feed_losses(const roll_feed_t *feed, uint64_t sum[ROLL_LOSS_LIMIT]);
/* Records of all rings that are older than this recording, and that no ring counts as lost; 0 of what is live. */
uint64_t roll_feed_older(const roll_feed_t *feed);
/*
 * What is missing of one ring. Lost: by its gaps or by its counters, whichever knows of more, as what a ring has
 * counted leaves gaps as well. Older: the rest of what a recording lacks. Pure.
 */
void roll_feed_missing(const struct roll_feed_stream *ring, uint64_t *lost, uint64_t *older);
/* The newest STATUS that was fed of this ring; false: none was. */
bool roll_feed_status(const roll_feed_t *feed, uint64_t stream, struct roll_frame_status *out);
/* The ring with this epoch; false when it was never announced. */
bool roll_feed_find(const roll_feed_t *feed, uint64_t stream, struct roll_feed_stream *out);
/* How freely the rank of this ring runs, permille (struct roll_frame_sight); false when it was never announced. */
bool roll_feed_starved(const roll_feed_t *feed, uint64_t stream, uint32_t *starved);
/* The records of this ring were not asked for (struct roll_engine_sight), until a frame about it comes; stays: until a
 * RING or a SIGHT comes, because only a part of its records does. 0, NOTFOUND. */
int roll_feed_aside(roll_feed_t *feed, uint64_t stream, uint32_t starved, bool stays);
/* The rank of this ring had written nothing for so long when its records were fed (roll_engine_quiet). 0, NOTFOUND. */
int roll_feed_quiet(roll_feed_t *feed, uint64_t stream, uint64_t quiet_ns);

/* The name of a job as a feed knows it and as it may stand in file names: of [A-Za-z0-9._-], never empty. Pure. */
void roll_feed_clean_job(const char *from, char job[ROLL_NAME_BYTES]);
/*
 * Checks a RING frame and says which run the ring belongs to, or the process of a NOTE frame; job is cleaned to
 * [A-Za-z0-9._-], terminated. 0, SIZE, MAGIC, VERSION, CHECKSUM, CORRUPT. Pure.
 */
int roll_feed_run_of(const struct roll_frame *frame, char job[ROLL_NAME_BYTES], uint32_t *restart);

#endif
