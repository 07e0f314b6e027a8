/*
 * out.h: a file that is there as a whole or not at all: it is written beside its place, and gets its name when it is
 * done. A signal that ends the program takes the unfinished file away. One file at a time; one thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_OUT_H
#define ROLL_DAEMON_CONSOLE_EXPORT_OUT_H

#include <stdbool.h>

/* Begins a file that is to be called `path`; its descriptor, open for writing, which roll_out_end closes, or an error
 * (IO, DENIED, SPACE, NOTFOUND, LIMIT), of which one line was said. Readable by its owner alone, as traces are. */
int roll_out_begin(const char *path);
/* Where it is written until then. Borrowed. */
const char *roll_out_part(void);
/* Says on a terminal what takes so long; NULL takes the line away. */
void roll_out_progress(const char *words);
/* Ends it. whole: it gets its name once it is on the disk; else it is taken away. 0, or an error of which one line was
 * said. */
int roll_out_end(bool whole);
/* The error of the project that stands for this errno. */
int roll_out_error(int number);

#endif
