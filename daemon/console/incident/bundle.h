/*
 * bundle.h: a folder that appears whole or not at all, and never grows beyond what it may hold. One at a time; one
 * thread.
 *
 * It is made below the folder that the user names, under a name that begins with a dot, and gets its own name when
 * everything is on the disk. An archive was rejected: `rollcall analyze` reads a folder as it is, and whoever sends it
 * makes an archive with the tool of his choice.
 */
#ifndef ROLL_DAEMON_CONSOLE_INCIDENT_BUNDLE_H
#define ROLL_DAEMON_CONSOLE_INCIDENT_BUNDLE_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_BUNDLE_NAME 128 /* bytes that hold the name of a bundle */

/* How much there may be in the folder; 0: any. */
struct roll_bundle_bounds {
    unsigned keep;       /* bundles of this run */
    unsigned most;       /* bundles of all jobs and restarts */
    uint64_t most_bytes; /* of them all, with this one */
};

struct roll_bundle {
    char dir[PATH_MAX], name[ROLL_BUNDLE_NAME], part[ROLL_BUNDLE_NAME + 16];
    char path[2 * PATH_MAX]; /* dir/part, while it is made */
    int dir_fd, fd;          /* of the folder that was named, and of the part, which is locked */
    uint64_t limit, used;    /* bytes */
    struct roll_bundle_bounds bounds;
    char begin[ROLL_BUNDLE_NAME]; /* of the names of all bundles of this run, and of no other */
    json_t *files;                /* [{"name", "bytes", "what"}] in the order of writing */
    json_t *left_out;             /* texts: what is not in it, and why */
    int number;                   /* errno of the first error; 0 */
};

/* The name of a job as a part of a file's name: letters, digits, '-' and '_' of it; what is none becomes '_'. Pure. */
void roll_bundle_word(const char *text, char *out, size_t size);
/* How the names of all bundles of this run begin. Another job or restart has another beginning: a name that is cut or
 * changed to become a word has its hash behind it. Pure. */
void roll_bundle_begins(const char *job, uint32_t restart, char out[ROLL_BUNDLE_NAME]);

/*
 * Begins a bundle in `dir` (made, 0700, where it is missing) about this restart of a job, of `limit` bytes at most. 0;
 * LIMIT: the folder holds as much as it may already; BUSY: others do not let go of it; the errors of roll_dir_open; IO,
 * SPACE, DENIED. After an error one line has been said, and nothing is to be ended.
 */
int roll_bundle_begin(struct roll_bundle *b, const char *dir, const char *job, uint32_t restart,
                      const struct roll_bundle_bounds *bounds, uint64_t limit);
/* Writes one file; what it is, in words. More than there is room for is cut at the end of a line, and told. After an
 * error of writing nothing more is written. */
void roll_bundle_text(struct roll_bundle *b, const char *file, const char *what, const char *text, size_t bytes);
/* Counts a file that somebody else has written into the bundle. */
void roll_bundle_count(struct roll_bundle *b, const char *file, const char *what, uint64_t bytes);
/* Notes what is not in the bundle. */
void roll_bundle_left_out(struct roll_bundle *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* How many bytes may still be written. */
uint64_t roll_bundle_room(const struct roll_bundle *b);
/* Gives the bundle its name. 0; or one line was said, and it is taken away: SPACE, DENIED, NOTFOUND, IO, BUSY; LIMIT:
 * others were made meanwhile. */
int roll_bundle_end(struct roll_bundle *b);
/* Takes away what was begun. */
void roll_bundle_drop(struct roll_bundle *b);

#endif
