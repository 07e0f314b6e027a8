/*
 * plan.h: plan.py for the C and C++ jobs: rank, mistake, timeout.
 *
 * JOB_MISTAKE is none, skip, size or extra; the last rank makes it in step PLAN_MISTAKE_STEP. A rank that makes no
 * progress for JOB_TIMEOUT seconds ends with PLAN_TIMED_OUT: the timeout that rollcall must beat.
 */
#ifndef ROLL_TESTS_JOBS_PLAN_H
#define ROLL_TESTS_JOBS_PLAN_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAN_STEPS = 8, PLAN_MISTAKE_STEP = 4, PLAN_TIMED_OUT = 3, PLAN_LAYERS = 3 };

static const size_t plan_layer[PLAN_LAYERS] = {96, 160, 224};

struct plan {
    int rank, size;
    const char *kind;
    unsigned seconds;
};

static inline void plan_timed_out(int signal_number)
{
    (void)signal_number;
    static const char text[] = "job: no progress\n";
    ssize_t written = write(2, text, sizeof(text) - 1);
    (void)written;
    _exit(PLAN_TIMED_OUT);
}

/* Reads the mistake and the timeout; rank and size are the caller's business. */
static inline void plan_begin(struct plan *plan)
{
    const char *seconds = getenv("JOB_TIMEOUT");
    plan->kind = getenv("JOB_MISTAKE") ? getenv("JOB_MISTAKE") : "none";
    plan->seconds = seconds ? (unsigned)atoi(seconds) : 20;
    signal(SIGALRM, plan_timed_out);
    alarm(plan->seconds);
}

/* Whether this rank makes this mistake in this step. Also says that the job has moved. */
static inline int plan_mistake(const struct plan *plan, int step, const char *kind)
{
    alarm(plan->seconds);
    return strcmp(plan->kind, kind) == 0 && step == PLAN_MISTAKE_STEP && plan->rank == plan->size - 1;
}

/* A child without exec, which ends through exit handlers or by _exit: it must not disturb what the parent records. */
static inline int plan_forked_child(int through_handlers)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        if (through_handlers) {
            exit(0);
        }
        _exit(0);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

#endif
