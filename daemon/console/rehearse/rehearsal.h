/*
 * rehearsal.h: one rehearsal from its options to its report. cmd_rehearse.c reads the options and puts the parts
 * together; each part takes the rehearsal as the one before has left it. One thread.
 */
#ifndef ROLL_DAEMON_CONSOLE_REHEARSE_REHEARSAL_H
#define ROLL_DAEMON_CONSOLE_REHEARSE_REHEARSAL_H

#include "daemon/console/console.h"
#include "daemon/console/rehearse/rehearse.h"
#include "daemon/console/rehearse/steered.h"
#include "daemon/console/run/run.h"

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define ROLL_REHEARSAL_PRELOAD (64 * 1024)

struct roll_rehearsal {
    struct roll_run_options o;
    struct roll_place place;
    struct roll_steering steering;
    const char *json, *memory, *save, *against, *zygote, *python, *represent;
    struct roll_rankset run;    /* owned; of --represent: the ranks that run; empty = all */
    char interpreter[PATH_MAX]; /* of the job, as far as the command tells */
    bool has_wheel;
    bool force, fail_on_difference;
    const volatile sig_atomic_t *asked; /* borrowed: the signal that asks this program to end; 0 = none */
    char preload[ROLL_REHEARSAL_PRELOAD];
    char folder[PATH_MAX]; /* ours: the notes of the devices, and the trace where the user names no place; "" = none */
    FILE *out;             /* of --json; NULL = none */
    struct roll_expected *before; /* of --against; owned; NULL = none */
};

/* The ranks that are started. */
uint32_t roll_rehearsal_started(const struct roll_rehearsal *r);

/* check.c: what keeps the rehearsal from starting, said in one line; each 0, or the exit code */

/* Options that contradict each other. */
int roll_rehearsal_check_options(const struct roll_command *self, struct roll_rehearsal *r);
/* Reads what is compared with, and sees whether the file of --save can be written, before the job runs for nothing. */
int roll_rehearsal_check_files(struct roll_rehearsal *r);
/* Finds the interpreter of the job, and whether it has a CUDA wheel of PyTorch; picks what the ranks import once. */
int roll_rehearsal_find_python(struct roll_rehearsal *r);
/* The stand-ins, a GPU, the wheel, memory, and room for rings. */
int roll_rehearsal_check_machine(struct roll_rehearsal *r);

/* set_up.c */

/* Makes our folder, with stand-ins for a wheel, and opens the file of --json before the job starts. 0, or the exit
 * code. */
int roll_rehearsal_prepare(struct roll_rehearsal *r);
/* What the stand-ins read. A variable that the user has set stays. */
void roll_rehearsal_set_environment(const struct roll_rehearsal *r);

/* conclude.c */

/* Reports, keeps and compares; peak: the most host memory of each rank, borrowed. Returns the exit code, which was
 * `code` so far: the job's own comes first. */
int roll_rehearsal_report(struct roll_rehearsal *r, const uint64_t *peak, uint32_t ranks, int code);

#endif
