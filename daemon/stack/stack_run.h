/*
 * stack_run.h: asks for the stacks of processes of this node: starts the helper (`rollcalld --stack`), reads it,
 * outlives it.
 *
 * No function here blocks or looks into a process: the caller polls a descriptor and the clock. A helper that dies or
 * hangs costs the one process that it was looking at; another helper goes on with the rest. One thread.
 */
#ifndef ROLL_DAEMON_STACK_STACK_RUN_H
#define ROLL_DAEMON_STACK_STACK_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_STACK_PIDS_MAX 4096u

struct roll_stack_ask {
    const char *helper; /* path of rollcalld; copied */
    const pid_t *pid;   /* copied */
    size_t pids;
    unsigned samples, interval_ms; /* 1 to 16; at most 10000 */
    bool native, python;
    const char *dir;     /* ring directory, for announced signal handlers; may be NULL; copied */
    uint64_t timeout_ns; /* time for all processes together */
};

typedef struct roll_stack_run roll_stack_run_t;

/* Starts a helper for these processes. NULL when it cannot be started; `why` holds one line. */
roll_stack_run_t *roll_stack_run_new(const struct roll_stack_ask *ask, char *why, size_t why_size);
void roll_stack_run_destroy(roll_stack_run_t **run); /* ends the helper, too, if it still works */
/* The descriptor to poll for reading; -1 when there is none at the moment (then call next when time has passed). It
 * changes. */
int roll_stack_run_fd(const roll_stack_run_t *run);
/*
 * The next answer: rollcall.stack/1 of one process, owned, with "error" for a process that could not be read. NULL:
 * there is none yet, or all were given. Each process is answered exactly once. To be called until it returns NULL,
 * after poll and about ten times a second.
 */
json_t *roll_stack_run_next(roll_stack_run_t *run, uint64_t now_ns);
bool roll_stack_run_over(const roll_stack_run_t *run);

#endif
