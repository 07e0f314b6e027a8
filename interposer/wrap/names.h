/* names.h: how the parts of this library tell the step that the job is in (names.c). */
#ifndef ROLL_INTERPOSER_WRAP_NAMES_H
#define ROLL_INTERPOSER_WRAP_NAMES_H

#include "interposer/record/session.h"

/* From here on the records of this thread, and of threads without a word of their own, carry this step, unless
 * something better has told of one. A few nanoseconds. Any thread. */
void roll_step_tell(uint32_t step, enum roll_step_by by);

/* Recording is about to begin: what was told before counts from its first record on. */
void roll_step_begin(struct roll_session *session);

#endif
