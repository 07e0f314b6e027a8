/*
 * bind.h: how `rollcall run` stands before a job's NCCL: which of preload, auditor, profiler plugin and front, and why.
 */
#ifndef ROLL_CONSOLE_BIND_H
#define ROLL_CONSOLE_BIND_H

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

/* What was picked. The preload is always part of it: the others only lead calls to it. */
struct roll_bind {
    bool audit, plugin;
    char front[PATH_MAX]; /* the front's file; "" = none */
    char real[PATH_MAX];  /* the NCCL behind the front */
    char why[512];        /* one line: what, and why */
};

/* Picks. hostnccl: the job will have the stand-ins first. Borrows command (ended by NULL). Never fails: what cannot be
 * had is left out, and why says so. */
void roll_bind_pick(int kind, const struct roll_place *place, bool hostnccl, char *const command[],
                    struct roll_bind *out);
/* Sets the environment of the job, in the process that becomes it. */
void roll_bind_apply(const struct roll_bind *bind, const struct roll_place *place);

/* The profiler plugin that the user's environment names; NULL when it is none, or librollcall.so. Borrowed. */
const char *roll_bind_users_plugin(void);

#endif
