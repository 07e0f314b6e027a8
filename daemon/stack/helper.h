/*
 * helper.h: `rollcalld --stack WISH`: the process that looks at other processes, so that an agent never does.
 *
 * The helper may be killed at any instant: no process that it looked at stays stopped or traced. WISH is JSON:
 * {"pids":[…],"samples":3,"interval_ms":200,"native":true,"python":true,"dir":…}. On standard output, one JSON object a
 * line:
 * {"begin":PID} before each look at a process, and at the end one rollcall.stack/1 for each.
 */
#ifndef ROLL_DAEMON_STACK_HELPER_H
#define ROLL_DAEMON_STACK_HELPER_H

/* Returns the exit code: 0, 2 for a malformed wish, 3 when it cannot go on. */
int roll_stack_helper(const char *wish);

#endif
