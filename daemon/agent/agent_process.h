/*
 * agent_process.h: what may be told of a rank's process: its environment without secrets, and the libraries that it has
 * loaded. Any thread.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_PROCESS_H
#define ROLL_DAEMON_AGENT_AGENT_PROCESS_H

#include <jansson.h>
#include <stddef.h>
#include <sys/types.h>

#define ROLL_PROCESS_HIDDEN "(hidden)" /* what is told in place of a secret */

/*
 * The variables that environment.def lets out, of an environment as /proc/PID/environ has it (NAME=VALUE, each ended by
 * a 0; borrowed): an object by name. Values with user and password in front of a host lose these. At most 256 variables
 * and 1 KiB of a value; "more" of the object that is returned says how many there were beyond. {"variables", "more"},
 * owned; NULL without memory. Pure.
 */
json_t *roll_process_variables(const char *environment, size_t bytes);

/* The same of a process; and {"libraries": [...]}, the files of NCCL, CUDA and their like that it has mapped. NULL when
 * it cannot be read: it has ended, or is another user's. */
json_t *roll_process_environment(pid_t pid);
json_t *roll_process_libraries(pid_t pid);

#endif
