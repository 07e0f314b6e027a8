/*
 * trace_ahead.h: many trace files read at once, by several threads, for one thread that wants their frames in an order
 * of its own.
 *
 * What a file gives, frame by frame and error by error, is what trace_file.h gives: threads only make it ready earlier.
 * All functions are called by one thread, which decodes as well whenever what it wants is not ready.
 */
#ifndef ROLL_DAEMON_STORE_TRACE_AHEAD_H
#define ROLL_DAEMON_STORE_TRACE_AHEAD_H

#include "trace/frame.h"

#include <stdbool.h>
#include <stddef.h>

#define ROLL_AHEAD_THREADS 64u /* at most */

typedef struct roll_ahead roll_ahead_t;
typedef struct roll_ahead_file roll_ahead_file_t;

/*
 * threads: in all, with the caller's own; 1: nothing is read ahead, and no thread is started. files: about how many are
 * open at once, by which it is settled how much is kept ready of each. Threads that cannot be had are done without.
 * NULL: no memory.
 */
roll_ahead_t *roll_ahead_new(unsigned threads, size_t files);
/* All files are closed before. */
void roll_ahead_destroy(roll_ahead_t **ahead);

/* Opens a trace file; resume: roll_trace_reader_resume. Errors of roll_trace_reader_new. */
int roll_ahead_open(roll_ahead_t *ahead, const char *path, bool resume, roll_ahead_file_t **out);
/* roll_trace_reader_next, and its errors; the frame borrows the file until the next call for it. */
int roll_ahead_next(roll_ahead_file_t *file, struct roll_frame *out);
/* After an error of roll_ahead_next: where the damage begins. */
size_t roll_ahead_offset(const roll_ahead_file_t *file);
void roll_ahead_close(roll_ahead_file_t **file);

#endif
