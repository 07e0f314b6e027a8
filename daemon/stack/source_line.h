/*
 * source_line.h: what lines of a rank's source say, read from the file that the rank itself would find.
 */
#ifndef ROLL_DAEMON_STACK_SOURCE_LINE_H
#define ROLL_DAEMON_STACK_SOURCE_LINE_H

#include "trace/def.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A file that this process maps. */
struct roll_source_mapping {
    char file[48]; /* device and inode, as /proc/PID/maps has them of all processes; "": no mapping is asked for */
    uid_t owner;
};

/* A process, as its ring names it. Whoever may write the ring may name any process there. */
struct roll_source_process {
    pid_t pid;
    uint64_t start_ticks;            /* so that another process with its number is not taken for it */
    struct roll_source_mapping ring; /* which the process maps, if it is the one that writes there */
};

/*
 * Reads line `line` (from 1) of the file at an absolute path as the process sees it, in the process's own root. Blanks
 * around it are left out, what steers a terminal becomes `?`, and what does not fit is cut. The file must be a plain
 * one that has not changed since the process began. False: nothing is said. May wait for a file system that does not
 * answer. Any thread.
 */
bool roll_source_line(const struct roll_source_process *process, const char *path, uint32_t line,
                      char out[ROLL_TEXT_BYTES + 1]);

#define ROLL_SOURCE_AROUND 3u /* lines before and behind one, that are read with it */

/* Some lines of a file. */
struct roll_source_lines {
    uint32_t first, lines; /* the number of text[0]; how many there are */
    char text[2 * ROLL_SOURCE_AROUND + 1][ROLL_TEXT_BYTES + 1];
};

/* The same for the lines around one, with the blanks before them, because in Python these mean something; and of files
 * of Python alone ("*.py"). False: nothing is said, or there is no such line. */
bool roll_source_around(const struct roll_source_process *process, const char *path, uint32_t line,
                        struct roll_source_lines *out);

/* The file that this process maps at an address, which lies at `path`. False: it is not, or not any more. */
bool roll_source_mapping(const void *at, const char *path, struct roll_source_mapping *out);

/* Whether the process is there, is our own user's, was born when the ring says, and maps the ring that has named it.
 * May wait for the process. Any thread. */
bool roll_source_is_writer(const struct roll_source_process *process);

/* The same out of the bytes of a file. Pure. */
bool roll_source_line_of(const char *bytes, size_t size, uint32_t line, char out[ROLL_TEXT_BYTES + 1]);
bool roll_source_around_of(const char *bytes, size_t size, uint32_t line, struct roll_source_lines *out);

#endif
