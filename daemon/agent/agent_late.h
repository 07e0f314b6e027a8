/*
 * agent_late.h: how late the agent itself is, for its heartbeats. Private to the agent; its thread.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_LATE_H
#define ROLL_DAEMON_AGENT_AGENT_LATE_H

#include "daemon/agent/agent_ring.h"

#include <stddef.h>
#include <stdint.h>

struct roll_agent_late {
    int schedstat;                    /* descriptor of the thread's own; -1: it cannot be read */
    uint64_t late_ns;                 /* in all */
    uint64_t read_late_ns, waited_ns; /* when the latter was read last: late_ns, and what it was */
    unsigned beats;                   /* since then */
};

/* In the thread whose waiting for a CPU is meant. proc: "/proc". */
void roll_agent_late_init(struct roll_agent_late *late, const char *proc);
void roll_agent_late_fini(struct roll_agent_late *late);

/* The agent looks now, and wanted to at due_ns. */
void roll_agent_late_looked(struct roll_agent_late *late, uint64_t due_ns, uint64_t now);
/* Behind a look: notes how far it has read the ring. now: when the look began. */
void roll_agent_late_read(struct roll_agent_ring *ring, uint64_t now);
/* What a heartbeat says. */
void roll_agent_late_beat(struct roll_agent_late *late, struct roll_agent_ring *const *rings, size_t n,
                          struct roll_frame_heartbeat *beat);

#endif
