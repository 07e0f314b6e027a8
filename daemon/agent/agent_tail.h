/*
 * agent_tail.h: what an agent gives for a bundle about a finding (docs/INCIDENT.md): the tail of a rank's ring, the
 * rank's environment and libraries, and what the node and this agent say of themselves.
 *
 * One thread: the agent's. A question names one ring and is answered by one ANSWER; one is answered at a turn, because
 * an image takes some milliseconds, and ranks are still served between two.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_TAIL_H
#define ROLL_DAEMON_AGENT_AGENT_TAIL_H

#include "daemon/agent/agent_ring.h"
#include "trace/frame.h"

#include <stdint.h>

typedef struct roll_agent_tails roll_agent_tails_t;

/* The ring with this epoch; borrowed; NULL: it is not here. */
typedef const struct roll_agent_ring *(*roll_agent_ring_fn)(void *ctx, uint64_t epoch);

/* host: borrowed. NULL when out of memory. */
roll_agent_tails_t *roll_agent_tails_new(const char *host);
void roll_agent_tails_destroy(roll_agent_tails_t **tails);
/* Takes a question (borrowed) if it is one for tails. */
void roll_agent_tails_ask(roll_agent_tails_t *tails, const struct roll_frame *ask);
/* Answers the next question, if there is one and the socket has room. To be called at every turn of the loop. Returns
 * whether others wait. */
bool roll_agent_tails_pump(roll_agent_tails_t *tails, void *socket, roll_agent_ring_fn find, void *ctx);
/* Forgets all questions, because the conversation with the root begins anew. */
void roll_agent_tails_forget(roll_agent_tails_t *tails);

#endif
