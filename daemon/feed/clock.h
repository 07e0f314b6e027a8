/*
 * clock.h: when time passes for an engine, and how far: one place for all who feed one.
 *
 * The engine measures its patience in this time, so this time decides who looks late. The root paces a run that it
 * watches, an agent the clock of its own trace, and the analyzer goes by what was recorded. Pure: the callers read the
 * clocks of their machine and hand them in, all in ns ("mono": CLOCK_MONOTONIC, "real": the wall clock). A structure
 * belongs to one thread.
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
 * Rounds both times to the grid of recorded times, which packs well: the engine's time down, and the wall clock up,
 * because no verdict may seem to be said before its cause happened. Pure.
 */
struct roll_feed_time roll_feed_time_on_grid(uint64_t engine_ns, uint64_t real_ns);

/* the root: a run that is watched */

#define ROLL_FEED_UNSEEN_NS UINT64_C(10000000000) /* a clock stands still for an unseen rank no longer than this */

/*
 * The engine's time begins as the wall clock and goes on as the monotonic one, without the time in which the clock
 * stood still: a wall clock that is set and a root that was away for an hour must not make anybody look late.
 */
struct roll_feed_clock {
    uint64_t stall_ns;          /* the engine's --stall-ms; 0 = its default */
    uint64_t engine_ns;         /* the time that the engine was given last, before rounding; 0 = none yet */
    uint64_t wall_ns;           /* the wall clock that the feed was given last, rounded */
    uint64_t input_ns, tick_ns; /* mono: of the last input, and of the last tick */
    uint64_t unseen_ns;         /* mono: when some rank was first not seen; 0 = all are seen */
    uint64_t owed_ns;           /* time that has passed for the engine and was not seen: as much is left out */
    bool dirty;                 /* input since the last tick */
    bool stands_still;          /* at this moment no time passes for the engine */
};

/* Begins the clock of a new run, which stands still until the run's ranks have been seen. */
void roll_feed_clock_init(struct roll_feed_clock *clock, uint64_t stall_ns, uint64_t mono_ns);
/* Leaves out the time until now: this process was busy with something else. */
void roll_feed_clock_skip(struct roll_feed_clock *clock, uint64_t mono_ns);
/* Takes a tick of the run's past, which was read from its trace. */
void roll_feed_clock_replay(struct roll_feed_clock *clock, uint64_t engine_ns);
/*
 * Notes whether all live ranks of the run are seen at this moment and all their news has been read. A rank that is not
 * seen looks like one that does not arrive, so the clock stands still until the rank is seen, or until
 * ROLL_FEED_UNSEEN_NS have passed: the host of the rank may have died, and the others have a right to know.
 */
void roll_feed_clock_see(struct roll_feed_clock *clock, uint64_t mono_ns, bool all_seen);
/*
 * Notes that so much of the time that has passed for the engine was seen by nobody, as is known only now (late.h).
 * While such time is owed, an eighth of what passes does so for the engine: patience is longer by what was missed, and
 * whoever hangs is told all the same, also where eyes are late all the time.
 */
void roll_feed_clock_owe(struct roll_feed_clock *clock, uint64_t missed_ns);
/* Notes that input has been fed. moved: the input may mean that a rank has moved. */
void roll_feed_clock_input(struct roll_feed_clock *clock, uint64_t mono_ns, bool moved);
/*
 * Is it time for a tick? Ticks come soon after input; the longer there has been no input, the rarer they are, because
 * ticks are most of what the trace of an idle job holds. live: some process of the run lives.
 */
bool roll_feed_clock_is_due(const struct roll_feed_clock *clock, uint64_t mono_ns, bool live);
/*
 * How long it is, in ns, until it will be time for a tick if no input comes; 0: it is time now. UINT64_MAX: the clock
 * stands still, so nothing but roll_feed_clock_see can make it time, or the run has been over for so long that nothing
 * but input can.
 */
uint64_t roll_feed_clock_wait_ns(const struct roll_feed_clock *clock, uint64_t mono_ns, bool live);
/*
 * Lets time pass until now, less what is owed; the caller tells feed and trace *time. One tick lets at most a quarter
 * of a stall pass: a process that was held up finds news in its sockets which only seems late.
 */
void roll_feed_clock_pass(struct roll_feed_clock *clock, uint64_t mono_ns, uint64_t real_ns,
                          struct roll_feed_time *time);
/*
 * Called before input is fed: is the wall clock that verdicts would show too old? Then the caller tells feed and trace
 * *time, by which no time passes for the engine.
 */
bool roll_feed_clock_stamp(struct roll_feed_clock *clock, uint64_t real_ns, struct roll_feed_time *time);

/* an agent's own trace */

/* Zero-initialised is valid. */
struct roll_trace_clock {
    uint64_t tick_ns, moved_ns; /* mono: of the last tick, and of the last turn in which something moved */
    bool moved;                 /* something has been read since the last tick */
};
/* Is a TICK to be written behind what was read in this turn? at_once: something waits for the tick. Where the answer is
 * yes, the clock notes the tick. */
bool roll_trace_clock_is_due(struct roll_trace_clock *clock, uint64_t mono_ns, bool at_once);

/* the analyzer */

/*
 * For the rings that a run left, where the engine's time is that of the records. Is a tick due before the earliest
 * record that has not been fed, which is of this time? *ticked: the time of the last tick, 0 at first; set where the
 * answer is yes.
 */
bool roll_record_clock_is_due(uint64_t *ticked, uint64_t record_ns);

/* One of several traces of a run that are read side by side. */
struct roll_merge_part {
    uint64_t time_ns; /* wall clock of its last tick */
    bool ended;       /* the trace has been read to its end */
    bool any_runs;    /* some rank of the trace still ran when it was last seen */
};
/*
 * Lets time pass as far as all traces have come: no node looks late because its file is read later. When one has ended
 * while its ranks still ran, no more time passes: nobody knows what they did then. *clock: the time given last, 0 at
 * first. True when time passes; then it is the new *clock. Pure.
 */
bool roll_merge_clock_pass(uint64_t *clock, const struct roll_merge_part *part, size_t parts);

#endif
