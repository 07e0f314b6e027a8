/*
 * feed_state.h: what the files of the feeder share. Private to feed.c, feed_ring.c and feed_records.c; one thread per
 * feed.
 */
#ifndef ROLL_DAEMON_FEED_FEED_STATE_H
#define ROLL_DAEMON_FEED_FEED_STATE_H

#include "daemon/base/map.h"
#include "daemon/feed/feed.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_FEED_BATCH 512u /* records given to the engine at once */

struct roll_stream {
    struct roll_feed_stream view;
    int64_t clock_offset;
    struct roll_frame_status status; /* newest STATUS that was fed; proc_state 0: none yet */
    uint64_t dropped;                /* records that are missing here, and that the ring does not count */
    bool begun;                      /* a record has come that is not repeated of an earlier segment */
    bool stays_aside;                /* what comes of it does not say that it is heard */
    uint64_t *open;                  /* tickets fed as ENTERED, ascending */
    size_t open_used, open_room;
};

struct roll_feed {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    bool named;
    bool finished;
    bool policy_fixed; /* no SETTINGS frame changes the policy */
    bool recorded;     /* the frames come from files */
    roll_engine_t *engine;
    roll_symbols_t *symbols;
    struct roll_stream *streams; /* in the order of announcement */
    size_t used, room;
    struct roll_map index;             /* from a ring's epoch to its place in `streams` */
    struct roll_verdict_list verdicts; /* a queue; the verdicts below `taken` belong to others */
    size_t taken;
    uint64_t verdicts_lost;              /* verdicts of the engine for which there was no memory */
    uint64_t stamp_ns;                   /* wall clock that verdicts show; 0 = the engine's time */
    const struct roll_feed_watch *watch; /* borrowed; NULL: nobody watches */
    struct roll_record batch[ROLL_FEED_BATCH];
};

/* feed_ring.c: the rings of the run, and what is said of a whole ring. Codes as roll_feed_frame. */
struct roll_stream *roll_feed_stream_of(const roll_feed_t *feed, uint64_t epoch); /* NULL: never announced */
int roll_feed_take_ring(roll_feed_t *feed, const struct roll_frame *frame);
int roll_feed_take_defs(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame);
int roll_feed_take_sight(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame);
int roll_feed_note_heard(roll_feed_t *feed, struct roll_stream *s);

/* feed_records.c: the records of a ring, and how far the ring has come. */
int roll_feed_take_records(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame);
int roll_feed_take_place(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame);
int roll_feed_take_status(roll_feed_t *feed, struct roll_stream *s, const struct roll_frame *frame);

#endif
