/*
 * agent_calls.h: answers the question which calls ranks of this node have made around a moment (ASK with op "calls"),
 * from their rings. Private to the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_CALLS_H
#define ROLL_DAEMON_AGENT_AGENT_CALLS_H

#include "daemon/agent/agent_ring.h"

typedef struct roll_agent_calls roll_agent_calls_t;

roll_agent_calls_t *roll_agent_calls_new(void); /* NULL when out of memory */
void roll_agent_calls_destroy(roll_agent_calls_t **calls);
/* Takes a question (borrowed) if it is one for calls. */
void roll_agent_calls_ask(roll_agent_calls_t *calls, const struct roll_frame *ask);
/* Reads the next of the rings that were asked for, and sends what it holds to `socket`: one ring at each turn of the
 * loop. */
void roll_agent_calls_pump(roll_agent_calls_t *calls, struct roll_agent_ring *const *rings, size_t used, void *socket);
/* Whether questions wait. */
bool roll_agent_calls_waits(const roll_agent_calls_t *calls);
/* Forgets all questions, because the conversation with the root begins anew. */
void roll_agent_calls_forget(roll_agent_calls_t *calls);

#endif
