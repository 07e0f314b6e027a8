/*
 * agent_look.h: looking at a rank's process for a bundle: its environment and libraries, with a deadline.
 *
 * What /proc tells of a process may take as long as the process holds its memory map, and a process that hangs is what
 * bundles are about. So a thread of its own looks, and the agent goes on.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_LOOK_H
#define ROLL_DAEMON_AGENT_AGENT_LOOK_H

#include "daemon/stack/source_line.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct roll_agent_look roll_agent_look_t;

/* Begins to look at the process that a ring names (borrowed), which has to be the one that writes the ring. NULL, with
 * a reason (static) in *why: no memory, no thread, or too many processes have not answered. The agent's thread. */
roll_agent_look_t *roll_agent_look_new(const struct roll_source_process *process, const char **why);
/* Whether it has been looked; then what it told, owned, and NULL for what cannot be read, or with a reason in *why
 * (static): the ring has named another process. */
bool roll_agent_look_done(roll_agent_look_t *look, json_t **environment, json_t **libraries, const char **why);
/* Leaves it: a thread that still waits for the process ends by itself when that answers. Clears the pointer. */
void roll_agent_look_leave(roll_agent_look_t **look);

#endif
