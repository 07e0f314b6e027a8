/*
 * agent_stack.h: answers questions for stacks (ASK with op "stacks"): they are queued, with one helper at a time, and
 * the agent never waits.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_STACK_H
#define ROLL_DAEMON_AGENT_AGENT_STACK_H

#include "trace/frame.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct roll_agent_stacks roll_agent_stacks_t;

/* The process behind a ring: its pid, or 0 and one line in *why (static). */
typedef pid_t (*roll_agent_pid_fn)(void *ctx, uint64_t epoch, const char **why);

/* dir: ring directory, borrowed. NULL when out of memory. */
roll_agent_stacks_t *roll_agent_stacks_new(const char *dir);
void roll_agent_stacks_destroy(roll_agent_stacks_t **stacks); /* ends the helper, too, if it still works */
/* Takes a question (borrowed) if it is one for stacks. Its processes are looked up at once. */
void roll_agent_stacks_ask(roll_agent_stacks_t *stacks, const struct roll_frame *ask, roll_agent_pid_fn pid, void *ctx);
/* Does the next work: starts the next question, reads the helper, sends answers to `socket`. To be called at every turn
 * of the loop. */
void roll_agent_stacks_pump(roll_agent_stacks_t *stacks, void *socket, uint64_t now_ns);
/* The descriptor to poll for reading; -1 when no helper works. */
int roll_agent_stacks_fd(const roll_agent_stacks_t *stacks);
/* Forgets all questions, because the conversation with the root begins anew. */
void roll_agent_stacks_forget(roll_agent_stacks_t *stacks);

#endif
