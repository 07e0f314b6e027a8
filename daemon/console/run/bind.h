/*
 * bind.h: which of preload, auditor, profiler plugin and front `rollcall run` uses to see a job's NCCL calls, and why.
 */
#ifndef ROLL_DAEMON_CONSOLE_RUN_BIND_H
#define ROLL_DAEMON_CONSOLE_RUN_BIND_H

#include "daemon/console/place.h"

#include <stdbool.h>

enum roll_bind_kind {
    ROLL_BIND_AUTO,
    ROLL_BIND_PRELOAD,
    ROLL_BIND_AUDIT,
    ROLL_BIND_PLUGIN,
    ROLL_BIND_FRONT,
};
/* "auto", "preload", ...; -1 for anything else. */
int roll_bind_by_name(const char *name);

/* The ways of binding that were picked. The preload is always one of them: the others only lead calls to it. */
struct roll_bind {
    bool audit, plugin;
    char front[PATH_MAX]; /* the front's file; "" = none */
    char real[PATH_MAX];  /* the NCCL behind the front */
    char why[512];        /* one line: what, and why */
};

/* Picks the ways of binding. hostnccl: the job will have the stand-ins first. Borrows command (ended by NULL). Never
 * fails: a way that cannot be had is left out, and out->why says so. */
void roll_bind_pick(int kind, const struct roll_place *place, bool hostnccl, char *const command[],
                    struct roll_bind *out);
/* Sets the environment of the job, in the process that becomes the job. */
void roll_bind_apply(const struct roll_bind *bind, const struct roll_place *place);

/* The profiler plugin that the user's environment names; NULL when it names none, or librollcall.so. Borrowed. */
const char *roll_bind_users_plugin(void);

#endif
