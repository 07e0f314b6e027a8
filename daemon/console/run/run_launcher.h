/*
 * run_launcher.h: what the files share that put `rollcall run` together: run_launch.c begins and ends it, run_reap.c
 * takes the ends of children and the signals, run_time.c looks at the clock, run_end.c says what came of it. The main
 * thread's.
 */
#ifndef ROLL_DAEMON_CONSOLE_RUN_RUN_LAUNCHER_H
#define ROLL_DAEMON_CONSOLE_RUN_RUN_LAUNCHER_H

#include "daemon/console/run/run.h"

#include <limits.h>
#include <stdlib.h>
#include <time.h>

#define ROLL_LAUNCHER_ROOM_HELP                                                                                        \
    "free some, enlarge it (mount -o remount,size=2G /dev/shm), or name another folder with ROLLCALL_DIR"

struct roll_launcher {
    struct roll_run_options o;
    struct roll_place place;
    struct roll_bind bind;
    char dir[PATH_MAX];
    int dir_lock; /* held while the directory is in use; -1 = there is none */
    struct roll_warden warden;
    struct roll_run_daemon daemon;
    struct roll_run_job job;
    roll_announcer_t *announcer;
    FILE *json;           /* borrowed */
    uint64_t *peak_bytes; /* borrowed; NULL = not wanted */
    sigset_t old_mask;
    int signal_fd;

    bool timed_out, daemon_died, begun;
    const char *unwatched; /* why nobody watched the job, or not to its end; NULL = it was watched */
    bool unheard;          /* the root did not send its last verdicts */
    bool is_short;         /* where rings are made, there was no room for a single one */
    bool stood;            /* that a rehearsal stands has been said */
    int asked;             /* how many signals have asked us to stop */
    uint64_t kill_at;      /* when SIGKILL follows; 0 = never */
    uint64_t moved_at;     /* when a rank last made a call or printed */
    uint64_t progress, output;
};

static inline uint64_t roll_launcher_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* getenv(3), as roll_ident_read wants it. */
static inline const char *roll_launcher_environment(const char *name)
{
    return getenv(name);
}

/* run_reap.c */

/* Asks the job to end with this signal. SIGKILL follows after the grace time, or at once when the user asks again. */
void roll_launcher_end_job(struct roll_launcher *launcher, int sig);
/* Takes the signals that have come: children that ended are reaped, what asks us to stop is passed on. */
void roll_launcher_signals(struct roll_launcher *launcher);

/* run_time.c */

/* Checks whether anything has moved and whether the grace time has run out. Returns ms until the next look, -1 for
 * none. */
int roll_launcher_time(struct roll_launcher *launcher);

/* run_end.c */

/* Says what the job did and what was found, once the root has sent its last word. */
void roll_launcher_sum_up(struct roll_launcher *launcher);
/* Repeats at the end what was said before the job, which may have printed pages since. Also with --quiet, which leaves
 * out what was found: that nobody looked is something else. */
void roll_launcher_say_unwatched(const struct roll_launcher *launcher);
/* The exit code; start_error: why the job was not started, 0 = it was. */
int roll_launcher_code(const struct roll_launcher *launcher, int start_error);

#endif
