/*
 * alike.h: what stands in two recordings of a job, compared for people: whether a replay has shown the verdicts of the
 * trace that it repeats, and where it has not, why. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_EXPORT_ALIKE_H
#define ROLL_DAEMON_CONSOLE_EXPORT_ALIKE_H

#include "daemon/console/export/job.h"

#include <stdbool.h>
#include <stdio.h>

/* The findings that stand in one recording. Zero-initialised is empty. */
struct roll_standing {
    struct roll_stands {
        enum roll_verdict_code code;
        enum roll_certainty certainty;
        char ranks[128]; /* "0-3,7"; "": nobody is named */
    } * at;              /* owned */
    size_t used, room;
};

/* Takes what stands in a job that has been read (roll_job_writer.end). 0, NOMEM. */
int roll_standing_take(struct roll_standing *out, const struct roll_job *job);
/* Reads the traces under `path` for nothing else. 0; otherwise as roll_job_read. */
int roll_standing_read(char *path, unsigned threads, struct roll_standing *out);
void roll_standing_fini(struct roll_standing *standing);

/*
 * Says in lines, each of which begins with "rollcall: replay: ", how the second recording compares with the first.
 * ended_after_s:
 * the second was ended when nothing had moved for so long; 0: it ended by itself. True: the same stands in both.
 */
bool roll_standing_compare(FILE *out, const struct roll_standing *was, const struct roll_standing *now,
                           double ended_after_s);

#endif
