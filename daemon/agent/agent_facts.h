/*
 * agent_facts.h: answers the question what this node knows (ASK with op "facts"): one helper at a time, never waiting.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_FACTS_H
#define ROLL_DAEMON_AGENT_AGENT_FACTS_H

#include "trace/frame.h"

#include <stdint.h>

typedef struct roll_agent_facts roll_agent_facts_t;

/* host, dir (of the rings), trace (may be NULL): borrowed. NULL when out of memory. */
roll_agent_facts_t *roll_agent_facts_new(const char *host, const char *dir, const char *trace);
void roll_agent_facts_destroy(roll_agent_facts_t **facts); /* ends the helper, too, if it still works */
/* Takes a question (borrowed) if it is one for facts. */
void roll_agent_facts_ask(roll_agent_facts_t *facts, const struct roll_frame *ask);
/* Does the next work: starts the helper for the next question, reads it, sends answers to `socket`. To be called at
 * every turn of the loop. */
void roll_agent_facts_pump(roll_agent_facts_t *facts, void *socket, uint64_t now_ns);
/* Forgets all questions, because the conversation with the root begins anew. */
void roll_agent_facts_forget(roll_agent_facts_t *facts);

#endif
