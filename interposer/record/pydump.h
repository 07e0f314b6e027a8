/*
 * pydump.h: lets the rank's stacks be taken from outside: the rank names the process that may look, and, where it runs
 * Python, writes its Python stacks when a signal asks for them.
 */
#ifndef ROLL_INTERPOSER_RECORD_PYDUMP_H
#define ROLL_INTERPOSER_RECORD_PYDUMP_H

#include <stdint.h>

/*
 * At session start: installs the handler of the stack signal and announces it in DIR/PID.pystacks, if this process has
 * a CPython that exports its dumper (up to 3.12) and nobody has taken that signal. Otherwise the function does nothing,
 * without a message.
 */
void roll_pydump_start(const char *dir);
/* Takes the announcement back, at exit. */
void roll_pydump_end(void);

/*
 * Lets the agent of the control page look at this process (PR_SET_PTRACER), where the kernel asks for that. To be
 * called on slow paths only: a load and a comparison, and a system call when the agent has changed. An application that
 * names a tracer later than we do is left alone until the agent changes. dir: the ring directory at session start,
 * later NULL. With ROLLCALL_PTRACER=any every process of this user may look, with off none.
 */
void roll_ptracer_refresh(const char *dir);

#endif
