/*
 * merge.h: what was recorded of one run at several places, fed in one order: traces of several agents, or the rings
 * that a run left.
 *
 * Nothing here knows files: a trace is a function that gives the next frame, so the same merging reads segments, one
 * file, or what a test wrote. One thread per feed.
 */
#ifndef ROLL_DAEMON_FEED_MERGE_H
#define ROLL_DAEMON_FEED_MERGE_H

#include "daemon/feed/feed.h"
#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Gives the next frame of a trace, which borrows the memory of ctx until the next call. 0; NOTFOUND at the end; NOMEM.
 */
typedef int roll_merge_next_fn(void *ctx, struct roll_frame *frame);

/* One of the traces. The caller sets the first two members, and the others to zero. */
struct roll_merge_trace {
    roll_merge_next_fn *next;
    void *ctx; /* borrowed */

    struct roll_frame frame; /* the next frame that is to be fed */
    bool ended;
    uint64_t time_ns; /* of its last tick */
    uint64_t *epoch;  /* of its rings; owned by roll_merge_traces while it runs */
    size_t epochs, room;
};

/*
 * Feeds all frames of these traces of one run. They are merged by the clocks of their ticks; time passes for the engine
 * only as far as all of them have come, so no node looks late because its file is read later. When one ends while its
 * ranks still run, no more time passes: nobody knows what they did then. A frame that the feed refuses costs nothing
 * but itself: *refused is set. 0 or NOMEM.
 */
int roll_merge_traces(roll_feed_t *feed, struct roll_merge_trace *trace, size_t n, bool *refused);

/*
 * Feeds these rings (borrowed) of one run, merged in time order, and says of each how its process ended. 0 or an error
 * of the feed.
 */
int roll_merge_rings(roll_feed_t *feed, const struct roll_ring *ring, size_t n);

/* Who takes the frames of merged rings, and the times between them. An error of either ends the merging. */
struct roll_merge_sink {
    int (*frame)(void *ctx, const struct roll_frame *frame);
    int (*tick)(void *ctx, uint64_t time_ns);
    void *ctx; /* borrowed */
};
/*
 * The same for anybody. proc: the state of each ring's process as somebody saw it who was there; 0, or NULL for all: as
 * it is on this host now. 0, NOMEM, or the sink's error.
 */
int roll_merge_rings_into(const struct roll_merge_sink *sink, const struct roll_ring *ring,
                          const enum roll_proc_state *proc, size_t n);

#endif
