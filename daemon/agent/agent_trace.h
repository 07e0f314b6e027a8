/*
 * agent_trace.h: the agent's own trace: keeps the contents of its rings in segments on its node (rollcalld --agent
 * --trace DIR).
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_TRACE_H
#define ROLL_DAEMON_AGENT_AGENT_TRACE_H

#include "daemon/agent/agent_ring.h"
#include "daemon/store/segment.h"

typedef struct roll_agent_trace roll_agent_trace_t;

struct roll_agent_trace_options {
    const char *dir; /* borrowed, for as long as the trace lives */
    const char *host;
    uint64_t segment_bytes, limit_bytes, age_ns; /* as in roll_segment_options */
};

/* Returns owned; NULL when out of memory. One thread. */
roll_agent_trace_t *roll_agent_trace_new(const struct roll_agent_trace_options *options);
/* Begins to keep a ring (borrowed until it is dropped). On an error one line says so, and the ring is not kept.
 */
void roll_agent_trace_add(roll_agent_trace_t *trace, const struct roll_agent_ring *ring);
/* Notes how the root's engine is set for the run of this ring, so that the trace is judged like that. */
void roll_agent_trace_settings(roll_agent_trace_t *trace, const struct roll_agent_ring *ring,
                               const struct roll_frame_settings *settings, uint64_t now);
/* Keeps the new contents of all rings, at most a batch of each. now: CLOCK_MONOTONIC. True: some ring has more. */
bool roll_agent_trace_pump(roll_agent_trace_t *trace, uint64_t now);
/* Keeps a note (the payload of a NOTE frame), and writes it out. */
void roll_agent_trace_note(roll_agent_trace_t *trace, const char *text, uint64_t now);
/* Keeps the rest of a ring, writes it out, and forgets the ring. */
void roll_agent_trace_drop(roll_agent_trace_t *trace, const struct roll_agent_ring *ring, uint64_t now);
/* Keeps the rest of all rings. */
void roll_agent_trace_destroy(roll_agent_trace_t **trace);

#endif
