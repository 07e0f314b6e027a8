/*
 * agent_sight.h: how freely the ranks of this node run: in what share of the time they want a CPU and have none.
 * Private to the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_SIGHT_H
#define ROLL_DAEMON_AGENT_AGENT_SIGHT_H

#include "daemon/agent/agent_ring.h"

#include <stdint.h>

typedef struct roll_agent_sight roll_agent_sight_t;

/* proc: "/proc"; cgroup: "/sys/fs/cgroup". Both are borrowed and must outlive the result. NULL without memory. Returns
 * owned. */
roll_agent_sight_t *roll_agent_sight_new(const char *proc, const char *cgroup);
void roll_agent_sight_destroy(roll_agent_sight_t **sight);

/* Notes that the agent itself came back from a sleep this much later than it had asked for. */
void roll_agent_sight_late(roll_agent_sight_t *sight, uint64_t late_ns);

/* Sets `starved` of each ring whose process lives, twice a second. now: CLOCK_MONOTONIC. A NULL sight does nothing. */
void roll_agent_sight_look(roll_agent_sight_t *sight, struct roll_agent_ring **rings, size_t n, uint64_t now);

#endif
