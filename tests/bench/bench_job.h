/*
 * bench_job.h: one run of moe_train, for the two parts of roll_bench that ask what a job loses. Private to bench_job.c
 * and bench_job_causes.c; one thread.
 */
#ifndef ROLL_TESTS_BENCH_BENCH_JOB_H
#define ROLL_TESTS_BENCH_BENCH_JOB_H

#include <sched.h>
#include <stdbool.h>

#define ROLL_BENCH_JOB_RANKS 8

struct roll_bench_job {
    const char *const *options; /* of moe_train, NULL at the end; borrowed */
    bool watched;               /* by rollcall run, with all that belongs to it */
    const char *dir;            /* the ranks record into this directory, and nobody else is started; NULL: no */
    const cpu_set_t *cpus;      /* for all its processes; NULL: as this process */
};

/* As the job itself says how long a step took; processor time of all its processes, their start and end included. */
struct roll_bench_job_cost {
    double step_ms, cpu_s;
};

/* Runs it to its end. 0, or a negative error with one line on stderr. */
int roll_bench_job_run(const struct roll_bench_job *job, struct roll_bench_job_cost *cost);

#endif
