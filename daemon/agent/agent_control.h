/*
 * agent_control.h: the control pages of an agent's directory, one per (job, restart). Private to the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_CONTROL_H
#define ROLL_DAEMON_AGENT_AGENT_CONTROL_H

#include "trace/control.h"
#include "trace/frame.h"
#include "trace/ring.h"

struct roll_agent_page {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    char path[512];
    struct roll_control *control;
    uint64_t cuts; /* roll_guard_cuts, when it was opened */
};

/* The control pages of a directory. Zero-initialised is empty. */
struct roll_agent_controls {
    struct roll_agent_page *page;
    size_t used, room;
};

/* Opens or makes the page of this run; when the page cannot be had, one log line says so, and the run has no remedies.
 */
void roll_agent_controls_need(struct roll_agent_controls *c, const char *dir, const char *job, uint32_t restart,
                              enum roll_policy policy);
/* Removes the page of a run whose last ring is gone. */
void roll_agent_controls_drop(struct roll_agent_controls *c, const char *job, uint32_t restart);
/* Applies a CONTROL frame to the page of its job and restart, or of all restarts where an older root names none.
 * Malformed ones are logged and ignored. */
void roll_agent_controls_apply(struct roll_agent_controls *c, const struct roll_frame *frame);
/* Sets the policy of all pages that have another one, and were told none: what a root told goes on until it tells
 * another one, frame by frame. */
void roll_agent_controls_policy(struct roll_agent_controls *c, enum roll_policy policy);
/* Answers the question (ASK with op "switches", borrowed) what is switched on the page of a run; any other question,
 * and one about a run that has no page here, is left alone. */
void roll_agent_controls_ask(const struct roll_agent_controls *c, const struct roll_frame *ask, void *socket);
/* Leaves the pages whose files have been cut: what is written there reaches no rank any more. */
void roll_agent_controls_leave_cut(struct roll_agent_controls *c);
/* Tells the ranks that an agent is there. */
void roll_agent_controls_seen(struct roll_agent_controls *c, uint64_t now);
/* Unmaps all pages; their files stay. */
void roll_agent_controls_fini(struct roll_agent_controls *c);

#endif
