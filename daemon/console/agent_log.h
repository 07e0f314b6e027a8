/*
 * agent_log.h: what the agent that ranks start says of its link to the root, from its log file. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_AGENT_LOG_H
#define ROLL_DAEMON_CONSOLE_AGENT_LOG_H

#include <stdbool.h>
#include <stddef.h>

#define ROLL_AGENT_LINE_BYTES 512

/* The newest line of DIR/agent.log that tells how the agent stands with its root, or why it could not start, the reason
 * before what came of it; "": there is none. Returns whether it tells of trouble. */
bool roll_agent_log_look(const char *dir, char line[ROLL_AGENT_LINE_BYTES]);
/* Whether an agent serves this directory of rings now. */
bool roll_agent_log_runs(const char *dir);

#endif
