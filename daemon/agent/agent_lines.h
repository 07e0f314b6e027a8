/*
 * agent_lines.h: answers the question what the lines of Python around some lines say that ranks of this node have
 * defined (ASK with op "source"). Private to the agent.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_LINES_H
#define ROLL_DAEMON_AGENT_AGENT_LINES_H

#include "daemon/agent/agent_source.h"

typedef struct roll_agent_lines roll_agent_lines_t;

roll_agent_lines_t *roll_agent_lines_new(void); /* NULL when out of memory */
void roll_agent_lines_destroy(roll_agent_lines_t **lines);
/* Takes a question (borrowed) if it is one for lines of source, and has the lines read (sources: may be NULL). */
void roll_agent_lines_ask(roll_agent_lines_t *lines, roll_agent_sources_t *sources,
                          struct roll_agent_ring *const *rings, size_t used, const struct roll_frame *ask,
                          uint64_t now_ns);
/* Takes what was read, and sends an answer of which all is there, or whose time is over. At every turn of the loop. */
void roll_agent_lines_pump(roll_agent_lines_t *lines, roll_agent_sources_t *sources, void *socket, uint64_t now_ns);
/* Whether questions wait. */
bool roll_agent_lines_waits(const roll_agent_lines_t *lines);
/* Forgets all questions, because the conversation with the root begins anew. */
void roll_agent_lines_forget(roll_agent_lines_t *lines);

#endif
