/*
 * harness.h: runs a job under the preload in a ring directory of its own, and reads back what it left.
 *
 * Paths of the products come from the environment that ctest sets: ROLL_TEST_PRELOAD, ROLL_TEST_JOB, ...
 */
#ifndef ROLL_TESTS_INTERPOSER_HARNESS_H
#define ROLL_TESTS_INTERPOSER_HARNESS_H

#include "tests/trace/cmocka_all.h"

#include "trace/def.h"
#include "trace/op.h"
#include "trace/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#define JOB_OUTPUT 8192u
#define JOB_DEFS   512u

/* One run of one program. */
struct job {
    char dir[64];                /* ROLLCALL_DIR, made by job_begin */
    const char *environment[16]; /* "NAME=value", ended by NULL */
    size_t variables;
    pid_t pid;
    int status; /* as waitpid gives it */
    char output[JOB_OUTPUT], errors[JOB_OUTPUT];
    int output_fd, errors_fd;
};

/* The decoded contents of a ring. */
struct dump {
    struct roll_ring ring;
    struct roll_record *records;
    size_t count;
    uint64_t lost;
    struct roll_def defs[JOB_DEFS];
    size_t def_count;
};

/* The value that ctest gave; fails the test when it is missing. */
const char *job_path(const char *name);

void job_begin(struct job *job);
/* Another rank of the same job: the same directory. job_end is called for one of them, job_leave for the others. */
void job_join(struct job *job, const struct job *other);
void job_leave(struct job *job);
/* Adds a variable to the job's environment. Borrows the string. */
void job_env(struct job *job, const char *assignment);
/* Starts argv (ended by NULL) with the preload and ROLLCALL_DIR set; output is caught. */
void job_start(struct job *job, char *const argv[]);
/* Waits for the job to end (for 20 s; then it is killed and the test fails). */
void job_wait(struct job *job);
/* Start and wait: `program MODE [ARGUMENT]`. */
void job_run(struct job *job, const char *program, const char *mode, const char *argument);
/* Removes the directory and all in it. */
void job_end(struct job *job);

/* How many files of the job's directory end like this. */
size_t job_files(const struct job *job, const char *suffix);
/* Opens the ring of the job's process and decodes all of it; the ring stays mapped until dump_close. */
void dump_open(const struct job *job, struct dump *dump);
void dump_close(struct dump *dump);
/* The definition of a type and id; fails the test when there is none. */
const struct roll_def *dump_def(const struct dump *dump, enum roll_def_type type, uint32_t id);
/* The next record with this operation, from *at on; NULL at the end. */
const struct roll_record *dump_next(const struct dump *dump, size_t *at, enum roll_op op);

/* The functions of a call site, by the module definitions and addr2line: the process may be gone. "" where unknown. */
void dump_frames(const struct dump *dump, uint16_t site, char names[ROLL_CALLSITE_DEPTH][64]);

#define JOB_SUCCEEDED(job)                                                                                             \
    do {                                                                                                               \
        if ((job)->status != 0) {                                                                                      \
            print_message("job: status %x\n%s%s", (unsigned)(job)->status, (job)->output, (job)->errors);              \
        }                                                                                                              \
        assert_int_equal((job)->status, 0);                                                                            \
    } while (0)

#endif
