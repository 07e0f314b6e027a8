/*
 * pysite.h: the lines of Python behind a call site: which of a thread's frames are kept, and their definitions.
 */
#ifndef ROLL_INTERPOSER_RECORD_PYSITE_H
#define ROLL_INTERPOSER_RECORD_PYSITE_H

#include "interposer/record/pymain.h"
#include "trace/def.h"

/* Reads what libraries are (ROLLCALL_PYTHON_LIBRARIES). Once, when recording starts: the environment is read where no
 * other thread of the job is likely to change it. */
void roll_pysite_start(void);

/*
 * The lines of this thread's frames, innermost first; returns how many. Of frames of libraries that follow each other
 * the innermost is kept and the others are counted (folded), and none is kept that no line of the user's called.
 * Without a line of the user's, all are kept that there is room for; *user says whether there is one. 0: the thread
 * runs no Python that can be read. Defines lines and files that are new. Under roll_lock.
 */
uint32_t roll_pysite_lines(struct roll_callsite_line out[ROLL_CALLSITE_LINES], bool *user);

/* The same of where the main thread stands; 0 also when no line there is the user's, or when the main thread has moved
 * on meanwhile. */
uint32_t roll_pysite_stand(const struct roll_pymain *stand, struct roll_callsite_line out[ROLL_CALLSITE_LINES]);

#endif
