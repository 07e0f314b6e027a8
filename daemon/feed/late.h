/*
 * late.h: how late those are that look at the ranks: agents, relays, the root, and the links between them.
 *
 * An eye that was closed saw nobody move, which is no evidence against anybody. So each of them measures how late it
 * is, and for the engine's patience such time is as if it had not passed (roll_feed_clock_owe). Pure: the callers hand
 * in their clocks, CLOCK_MONOTONIC in ns. A structure belongs to one thread; zero-initialised is valid for all.
 */
#ifndef ROLL_DAEMON_FEED_LATE_H
#define ROLL_DAEMON_FEED_LATE_H

#include <stdbool.h>
#include <stdint.h>

/* Who sends ten times a second, and half a time longer for one who was kept waiting a little: no later than that
 * something comes. */
#define ROLL_LATE_BEAT_NS UINT64_C(150000000)
/* Who has not been heard for so long may have news that is missing, so no time passes. */
#define ROLL_LATE_HEARD_NS UINT64_C(250000000)
/* Of what is shown as lately: the last so long, to twice as long. */
#define ROLL_LATE_WINDOW_NS UINT64_C(10000000000)

/* How late somebody was. */
struct roll_late {
    uint64_t total_ns;         /* in all */
    uint64_t most_ns, last_ns; /* at a time: the longest in this window, and in the one before */
    uint64_t window_ns;        /* when this window began */
};
/* Notes that something was so much later than it should have been; 0: that it was not. */
void roll_late_note(struct roll_late *late, uint64_t late_ns, uint64_t now);
/* How late it was lately, at a time. */
uint64_t roll_late_lately(const struct roll_late *late, uint64_t now);

/*
 * How long a link takes, from the times at which frames were made, by the sender's clock, and have come, by the
 * receiver's. The clocks have nothing in common, so the fastest frame of the sender's last half minute counts as in
 * time; the minute goes by the sender's clock, because behind a stop all frames that waited come at once. A distance of
 * the clocks that is learnt once was rejected: a host that was suspended would look late for ever.
 */
struct roll_late_link {
    uint64_t least, least_before; /* the shortest ways, come less made modulo 2^64, in this window and the one before */
    uint64_t window_ns;           /* when this window began, by the sender's clock */
    bool any, any_before;
    uint64_t late_ns; /* how much longer than that the newest frame was on its way */
};
/* Takes a frame that was made then. Returns late_ns. */
uint64_t roll_late_link_took(struct roll_late_link *link, uint64_t made_ns, uint64_t now);

/* What of the time passed unseen; each moment counts once, whoever has missed it. */
struct roll_late_missed {
    uint64_t upto_ns; /* counted up to here */
    uint64_t total_ns;
};
/* Notes that from `from` to `to` somebody was not seen. Returns how much of it had not been counted. */
uint64_t roll_late_missed_add(struct roll_late_missed *missed, uint64_t from, uint64_t to);
/* The same of somebody who was last heard at `heard` and is heard again now. Behind ROLL_LATE_HEARD_NS no time passed
 * anyhow. */
uint64_t roll_late_missed_gap(struct roll_late_missed *missed, uint64_t heard, uint64_t now);

#endif
