/*
 * python_dump.h: Python stacks that the process writes itself, when a signal asks for them; and py-spy, where it is
 * installed.
 *
 * Both are for processes whose memory may not be read. A signal is only sent to a process that has announced its
 * handler in a file; see docs/STACKS.md.
 */
#ifndef ROLL_DAEMON_STACK_PYTHON_DUMP_H
#define ROLL_DAEMON_STACK_PYTHON_DUMP_H

#include "daemon/stack/python.h"

/* Reads the text that CPython's dumper (faulthandler) writes: threads, innermost frame first. Hostile input. 0,
 * NOTFOUND (no thread), NOMEM. */
int roll_py_dump_parse(const char *text, size_t bytes, struct roll_text_pool *pool, struct roll_py_stacks *out);
/* Reads the output of `py-spy dump --json`. 0, CORRUPT, NOTFOUND, NOMEM. */
int roll_py_spy_parse(const char *text, size_t bytes, struct roll_text_pool *pool, struct roll_py_stacks *out);

/*
 * Asks process `pid` by signal, if DIR/PID.pystacks announces a handler; waits at most `patience_ms` for what it
 * writes. 0; NOTFOUND: nothing is announced; TIMEOUT; DENIED; IO. `why` holds one line on error (empty for NOTFOUND).
 */
int roll_py_dump_by_signal(pid_t pid, const char *dir, unsigned patience_ms, struct roll_text_pool *pool,
                           struct roll_py_stacks *out, char why[ROLL_STACK_WHY_BYTES]);
/* Runs py-spy, found through PATH. 0; NOTFOUND: not installed; else one line in `why`. */
int roll_py_dump_by_spy(pid_t pid, unsigned patience_ms, struct roll_text_pool *pool, struct roll_py_stacks *out,
                        char why[ROLL_STACK_WHY_BYTES]);

#endif
