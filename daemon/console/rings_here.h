/*
 * rings_here.h: the jobs whose ranks run on this node, as their rings tell: what can be known where no daemon answers.
 */
#ifndef ROLL_DAEMON_CONSOLE_RINGS_HERE_H
#define ROLL_DAEMON_CONSOLE_RINGS_HERE_H

#include "trace/rankset.h"
#include "trace/ring.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rings of one job in one folder. */
struct roll_rings_here {
    char folder[PATH_MAX];
    char job[ROLL_NAME_BYTES];
    char exe[128]; /* program of the first ring */
    uint32_t restart;
    struct roll_rankset ranks; /* as far as their ranks are known; owned */
    uint32_t rings, live;      /* rings; those whose process lives */
    int32_t world;             /* ranks of the whole job; -1 = not known */
    uint32_t pid;              /* of the first process that lives; 0 = none */
    uint64_t calls;
    uint64_t since_ns; /* wall clock at which the first of the live processes began; 0 = not known */
    uint64_t last_ns;  /* wall clock of the newest record; 0 = there is none */
};

/*
 * Finds the jobs with rings of this user in the directory of rings and the folders of `rollcall run` below it, in the
 * order of their folders and names. *out is returned owned (roll_rings_here_free). 0, NOMEM. `base` receives that
 * directory.
 */
int roll_rings_here(struct roll_rings_here **out, size_t *count, char *base, size_t size);
void roll_rings_here_free(struct roll_rings_here *all, size_t count);

#endif
