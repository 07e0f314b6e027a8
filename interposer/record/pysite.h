/*
 * pysite.h: the lines of Python behind a call site: which of a thread's frames are kept, and their definitions.
 */
#ifndef ROLL_INTERPOSER_RECORD_PYSITE_H
#define ROLL_INTERPOSER_RECORD_PYSITE_H

#include "trace/def.h"

/*
 * The lines of this thread's frames, innermost first; returns how many. Of frames of libraries that follow each other
 * the innermost is kept and the others are counted (folded), and none is kept that no line of the user's called.
 * Without a line of the user's, all are kept that there is room for. 0: the thread runs no Python that can be read.
 * Defines lines and files that are new. Under roll_lock.
 */
uint32_t roll_pysite_lines(struct roll_callsite_line out[ROLL_CALLSITE_LINES]);

#endif
