/*
 * quiet.c: see quiet.h.
 *
 * An hour of a small cluster in which nothing happens is half a million turns of its daemons: glances, heartbeats,
 * acknowledgements, ticks. To leave out what such a turn does was rejected: it is the daemons' own, and to find the
 * state in which an hour of it leaves them would be to write them a second time. What the world may choose is when a
 * timer ends, as a kernel may that saves power, or a machine that has no time for anybody: in a quiet stretch all end
 * together at whole multiples of the slack. What comes over a link comes when it comes. Each daemon does all that it
 * does, fewer times an hour, and knows that it is late: with more slack than a heartbeat the eyes of the root are
 * closed (docs/DAEMON.md), so the engine's own clock hardly moves there. Patience is tried where timers are exact:
 * until all has been said about what last happened, and from LEAD_NS before the next thing on, in which what is owed to
 * that clock is paid.
 */
#include "tests/world/quiet.h"

#include "tests/world/rank.h"

#define LEAD_NS (15 * S_)  /* at most 10 s are owed, and seven eighths of a second are paid in each */
#define WORK_NS (10 * MS_) /* who waits for less has something to do */

static struct quiet quiet;

void quiet_begin(const struct quiet *q)
{
    quiet = *q;
    world.slack_ns = world.quiet_ns = 0;
}

void quiet_look(void)
{
    uint64_t since_ns = ranks_stirred(), next_ns = ranks_stir_next();
    if (quiet.slack_ns == 0 || world.now_ns < world.quiet_ns) {
        return;
    }
    for (uint32_t i = 0; i < quiet.stirs; i++) {
        const struct stir *s = &quiet.stir[i];
        if (s->from_ns > world.now_ns) {
            next_ns = s->from_ns < next_ns ? s->from_ns : next_ns;
        } else {
            since_ns = s->to_ns > since_ns ? s->to_ns : since_ns;
        }
    }
    bool settled = since_ns < world.now_ns && world.now_ns - since_ns >= quiet.settle_ns;
    bool far = next_ns > world.now_ns + LEAD_NS + quiet.slack_ns;
    world.slack_ns = settled && far ? quiet.slack_ns : 0;
    world.quiet_ns = settled && far ? next_ns - LEAD_NS : 0;
}

uint64_t quiet_until(uint64_t until_ns)
{
    if (world.slack_ns == 0 || until_ns >= world.quiet_ns || until_ns < world.now_ns + WORK_NS) {
        return until_ns;
    }
    uint64_t together = (until_ns + world.slack_ns - 1) / world.slack_ns * world.slack_ns;
    return together < world.quiet_ns ? together : world.quiet_ns;
}
