/*
 * out.h: a file that is there as a whole or not at all: it is written beside its place, and gets its name when it is
 * done. A signal that ends the program takes the unfinished file away. One file at a time; one thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_OUT_H
#define ROLL_DAEMON_CONSOLE_EXPORT_OUT_H

#include <stdbool.h>

/*
 * Whether the next file may be called `path`, asked before long work. One that is there is not written over, unless
 * `replace`: a report that was sent, or a database that somebody works in, may be the only one. 0; DENIED,
 * of which one line was said.
 */
int roll_out_name(const char *path, bool replace);
/* The same of a directory that is to be filled: one that holds anything already is not, unless `replace`, because what
 * is left of another job there would be read together with this one. */
int roll_out_folder(const char *path, bool replace);
/* Whether this is a directory that holds anything. */
bool roll_out_is_full(const char *path);
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
