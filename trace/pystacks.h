/*
 * pystacks.h: the file in which a rank announces that it writes its Python stacks when it is sent a signal, and into
 * which it then writes them.
 *
 * DIR/PID.pystacks: one line, then dumps, appended. Written by librollcall.so (CPython up to 3.12) or by the helper
 * that `rollcall run --python-stacks` puts before the program (any version). See docs/STACKS.md.
 */
#ifndef ROLL_TRACE_PYSTACKS_H
#define ROLL_TRACE_PYSTACKS_H

#define ROLL_PYSTACKS_NAME   "%d.pystacks"
#define ROLL_PYSTACKS_SUFFIX ".pystacks"
#define ROLL_PYSTACKS_HEAD   "rollcall python stacks 1 pid %d signal %d\n"
#define ROLL_PYSTACKS_SCAN   "rollcall python stacks 1 pid %d signal %d"
#define ROLL_PYSTACKS_END    "\nrollcall end\n" /* librollcall.so's handler ends a dump with this line */
#define ROLL_PYSTACKS_COOKIE                                                                                           \
    0x726f6c6c                 /* value sent with the signal; librollcall.so ignores a signal with another value */
#define ROLL_PYSTACKS_SIGNAL 7 /* SIGRTMIN + this, unless ROLLCALL_STACK_SIGNAL says otherwise */

#endif
