/*
 * agent_stack.h: the agent answers questions for stacks (ASK with op "stacks"): queued, one helper at a time, never
 * waiting.
 */
#ifndef ROLL_DAEMON_AGENT_STACK_H
#define ROLL_DAEMON_AGENT_STACK_H

#include "trace/frame.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct roll_agent_stacks roll_agent_stacks_t;

/* The process behind a ring: its pid, or 0 and one line in *why (static). */
typedef pid_t (*roll_agent_pid_fn)(void *ctx, uint64_t stream, const char **why);

/* dir: ring directory, borrowed. NULL when out of memory. */
roll_agent_stacks_t *roll_agent_stacks_new(const char *dir);
void roll_agent_stacks_destroy(roll_agent_stacks_t **stacks); /* ends a helper that still works */
/* Takes a question if it is one for stacks (borrowed). Processes are looked up at once. */
void roll_agent_stacks_ask(roll_agent_stacks_t *stacks, const struct roll_frame *ask, roll_agent_pid_fn pid, void *ctx);
/* Goes on: starts the next question, reads the helper, sends what can be sent to `socket`. Call it at every turn. */
void roll_agent_stacks_pump(roll_agent_stacks_t *stacks, void *socket, uint64_t now_ns);
/* To be polled for reading; -1 when nothing works. */
int roll_agent_stacks_fd(const roll_agent_stacks_t *stacks);
/* The conversation with the root begins anew: what was asked before is forgotten. */
void roll_agent_stacks_forget(roll_agent_stacks_t *stacks);

#endif
