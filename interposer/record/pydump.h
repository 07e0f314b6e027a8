/*
 * pydump.h: what a rank does so that its stacks can be had from outside: it names who may look, and, where it runs
 * Python, writes its Python stacks when it is asked by signal.
 */
#ifndef ROLL_INTERPOSER_PYDUMP_H
#define ROLL_INTERPOSER_PYDUMP_H

#include <stdint.h>

/*
 * At session start: installs the handler of the stack signal and announces it in DIR/PID.pystacks, if this process has
 * a CPython that exports its dumper (up to 3.12) and nobody has taken that signal. Says nothing and does nothing
 * otherwise.
 */
void roll_pydump_start(const char *dir);
/* At exit: takes the announcement back. */
void roll_pydump_end(void);

/*
 * Lets the agent of the control page look at this process (PR_SET_PTRACER), where the kernel asks for that. To be
 * called on slow paths only: a load and a comparison, and a system call when the agent has changed. An application that
 * names a tracer later than we do is left alone until the agent changes. dir: the ring directory at session start,
 * later NULL. ROLLCALL_PTRACER=any lets every process of this user, off nobody.
 */
void roll_ptracer_refresh(const char *dir);

#endif
