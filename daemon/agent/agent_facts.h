/*
 * agent_facts.h: the agent answers what its node knows (ASK with op "facts"): one helper at a time, never waiting.
 */
#ifndef ROLL_DAEMON_AGENT_FACTS_H
#define ROLL_DAEMON_AGENT_FACTS_H

#include "trace/frame.h"

#include <stdint.h>

typedef struct roll_agent_facts roll_agent_facts_t;

/* host, dir (of the rings), trace (may be NULL): borrowed. NULL when out of memory. */
roll_agent_facts_t *roll_agent_facts_new(const char *host, const char *dir, const char *trace);
void roll_agent_facts_destroy(roll_agent_facts_t **facts); /* ends a helper that still works */
/* Takes a question if it is one for facts (borrowed). */
void roll_agent_facts_ask(roll_agent_facts_t *facts, const struct roll_frame *ask);
/* Goes on: starts the helper for the next question, reads it, sends what can be sent to `socket`. Call it at every
 * turn. */
void roll_agent_facts_pump(roll_agent_facts_t *facts, void *socket, uint64_t now_ns);
/* The conversation with the root begins anew: what was asked before is forgotten. */
void roll_agent_facts_forget(roll_agent_facts_t *facts);

#endif
