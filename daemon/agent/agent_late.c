/*
 * agent_late.c: how late the agent itself is: an eye that knows when it was closed.
 *
 * Three numbers, all read where the loop is anyhow, so nothing wakes for them: how much later than it wanted each look
 * came, be it that the agent was stopped, had no CPU, or waited for a disk; how long its thread stood ready without a
 * CPU meanwhile, which tells these apart; and how old the oldest look at a ring is, for an agent that looks in time may
 * still be unable to tell what it sees (a window that is full, more records than a look takes). A time of its own for
 * each ring in each frame was rejected: what the root does about it, it does for all ranks of the run.
 */
#include "daemon/agent/agent_late.h"

#include "daemon/base/clock.h"
#include "daemon/feed/late.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLACK_NS (5 * ROLL_MS) /* a sleep is rounded up to a millisecond, and timers are not exact */
#define BEATS    8u            /* of an agent that is not late, for one look at how long its thread stood ready */

void roll_agent_late_init(struct roll_agent_late *late, const char *proc)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/thread-self/schedstat", proc);
    *late = (struct roll_agent_late){.schedstat = open(path, O_RDONLY | O_CLOEXEC)};
}

void roll_agent_late_fini(struct roll_agent_late *late)
{
    if (late->schedstat >= 0) {
        close(late->schedstat);
        late->schedstat = -1;
    }
}

void roll_agent_late_looked(struct roll_agent_late *late, uint64_t due_ns, uint64_t now)
{
    late->late_ns += now > due_ns + SLACK_NS ? now - due_ns : 0;
}

/*
 * A ring that is written all the time is never read to its end, so the end of an earlier look counts: what was there
 * then has been told. A record that its thread has not written to the end holds up nobody: it is given up after a
 * while.
 */
void roll_agent_late_read(struct roll_agent_ring *ring, uint64_t now)
{
    bool held = ring->stuck_ns != 0 && ring->stuck_ticket == ring->sent;
    if (ring->link != ROLL_LINK_LIVE || ring->sent >= ring->upto || held) {
        ring->read_ns = ring->mark_ns = now;
        ring->mark = ring->upto;
    } else if (ring->sent >= ring->mark) {
        ring->read_ns = ring->mark_ns;
        ring->mark_ns = now;
        ring->mark = ring->upto;
    }
}

/*
 * The second number: how long the thread stood ready. Read without opening it again, as the load is (agent_sight.c). It
 * only tells what an agent that was late was late by, so where it was not a second-old number does: each beat of an
 * agent that has nothing to do would cost some percent more.
 */
static uint64_t waited(struct roll_agent_late *late)
{
    if (late->beats++ % BEATS != 0 && late->late_ns == late->read_late_ns) {
        return late->waited_ns;
    }
    char text[128];
    ssize_t n = late->schedstat >= 0 ? pread(late->schedstat, text, sizeof(text) - 1, 0) : 0;
    text[n > 0 ? n : 0] = '\0';
    const char *second = strchr(text, ' ');
    late->waited_ns = second ? strtoull(second + 1, NULL, 10) : 0;
    late->read_late_ns = late->late_ns;
    return late->waited_ns;
}

void roll_agent_late_beat(struct roll_agent_late *late, struct roll_agent_ring *const *rings, size_t n,
                          struct roll_frame_heartbeat *beat)
{
    uint64_t now = roll_mono_ns();
    *beat = (struct roll_frame_heartbeat){.made_ns = now, .late_ns = late->late_ns, .waited_ns = waited(late)};
    for (size_t i = 0; i < n; i++) {
        uint64_t age = rings[i]->link == ROLL_LINK_LIVE && rings[i]->read_ns != 0 ? now - rings[i]->read_ns : 0;
        beat->unheard += age >= ROLL_LATE_HEARD_NS;
        beat->look_ns = age >= ROLL_LATE_HEARD_NS && age > beat->look_ns ? age : beat->look_ns;
    }
}
