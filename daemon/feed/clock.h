/*
 * clock.h: when time passes for an engine, and how far: one place for all who feed one.
 *
 * Patience is measured in this time, so it decides who looks late. The root paces a run that it watches, an agent the
 * clock of its own trace, and the analyzer goes by what was recorded. Pure: the callers read the clocks of their
 * machine and hand them in, all in ns ("mono": CLOCK_MONOTONIC, "real": the wall clock). A structure belongs to one
 * thread.
 */
#ifndef ROLL_DAEMON_FEED_CLOCK_H
#define ROLL_DAEMON_FEED_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a TICK frame holds: the engine's time, and the wall clock that verdicts show from here on. */
struct roll_feed_time {
    uint64_t engine_ns, wall_ns;
};

/*
 * Both on the grid of recorded times, which packs well: the engine's time rounded down, and the wall clock up, because
 * nothing may seem to be said before it happened. Pure.
 */
struct roll_feed_time roll_feed_time_on_grid(uint64_t engine_ns, uint64_t real_ns);

/* the root: a run that is watched */

#define ROLL_FEED_UNSEEN_NS UINT64_C(10000000000) /* a clock stands still for an unseen rank at most for so long */

/*
 * The engine's time begins as the wall clock and goes on as the monotonic one, without the time in which the clock
 * stood still: a wall clock that is set and a root that was away for an hour must not make anybody look late.
 */
struct roll_feed_clock {
    uint64_t stall_ns;          /* the engine's --stall-ms; 0 = its default */
    uint64_t engine_ns;         /* the time that the engine was given last, before rounding; 0 = none yet */
    uint64_t wall_ns;           /* the wall clock that the feed was given last, rounded */
    uint64_t input_ns, tick_ns; /* mono: of the last input, and of the last tick */
    uint64_t unseen_ns;         /* mono: since when some rank cannot be seen; 0 = all are seen */
    bool dirty;                 /* input since the last tick */
    bool stands_still;          /* no time passes for the engine */
};

/* A new run: its clock stands still until its ranks have been seen. */
void roll_feed_clock_init(struct roll_feed_clock *clock, uint64_t stall_ns, uint64_t mono_ns);
/* The time until now does not count: this process was busy with something else. */
void roll_feed_clock_skip(struct roll_feed_clock *clock, uint64_t mono_ns);
/* A tick of the run's past, read from its trace. */
void roll_feed_clock_replay(struct roll_feed_clock *clock, uint64_t engine_ns);
/*
 * Whether all live ranks of the run are seen at this moment, and all their news has been read. A rank that is not seen
 * looks like one that does not arrive, so the clock stands still until it is, or until ROLL_FEED_UNSEEN_NS have passed:
 * its host may have died, and the others have a right to know.
 */
void roll_feed_clock_see(struct roll_feed_clock *clock, uint64_t mono_ns, bool all_seen);
/* Input has been fed. moved: a rank may have moved by it. */
void roll_feed_clock_input(struct roll_feed_clock *clock, uint64_t mono_ns, bool moved);
/*
 * Is it time for a tick? Soon after input; else the more seldom the longer there has been none, because ticks are most
 * of what the trace of an idle job holds. live: some process of the run lives.
 */
bool roll_feed_clock_is_due(const struct roll_feed_clock *clock, uint64_t mono_ns, bool live);
/*
 * Time passes until now: *time is what feed and trace are to be told. A process that was held up finds news waiting in
 * its sockets that is not late: one tick never takes more than a quarter of a stall.
 */
void roll_feed_clock_pass(struct roll_feed_clock *clock, uint64_t mono_ns, uint64_t real_ns,
                          struct roll_feed_time *time);
/*
 * Before input is fed: is the wall clock that verdicts would show too old? Then *time is what feed and trace are to be
 * told; no time passes for the engine by it.
 */
bool roll_feed_clock_stamp(struct roll_feed_clock *clock, uint64_t real_ns, struct roll_feed_time *time);

/* an agent's own trace */

/* Zero-initialised is valid. */
struct roll_trace_clock {
    uint64_t tick_ns, moved_ns; /* mono: of the last tick, and of the last turn in which something moved */
    bool moved;                 /* something has been read since the last tick */
};
/* Is a TICK to be written behind what was read in this turn? at_once: something waits for it. Notes that it is. */
bool roll_trace_clock_is_due(struct roll_trace_clock *clock, uint64_t mono_ns, bool at_once);

/* the analyzer */

/*
 * Rings that a run left: the engine's time is that of the records. Is there a tick before a record of this time, which
 * is the earliest of those not fed yet? *ticked: the time of the last one, 0 at first; set when there is.
 */
bool roll_record_clock_is_due(uint64_t *ticked, uint64_t record_ns);

/* One of several traces of a run that are read side by side. */
struct roll_merge_part {
    uint64_t time_ns; /* of its last tick */
    bool ended;       /* it has been read to its end */
    bool any_runs;    /* some rank of it still ran when it was last seen */
};
/*
 * The time as far as all traces have come: no node looks late because its file is read later. When one has ended while
 * its ranks still ran, no more time passes: nobody knows what they did then. *clock: the time given last, 0 at first.
 * True when time passes; then it is the new *clock. Pure.
 */
bool roll_merge_clock_pass(uint64_t *clock, const struct roll_merge_part *part, size_t parts);

#endif
