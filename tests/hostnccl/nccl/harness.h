/*
 * harness.h: runs rank functions as real processes and as threads of one process.
 *
 * A test program names its cases in a table. cmocka tests call ranks_run("case", n, ...): the program executes itself n
 * times with RANK, WORLD_SIZE and the name of a file for the unique id, in a HOSTNCCL_DIR of their own; all are killed
 * at the time limit. The directory must be empty afterwards: a segment left behind fails the test. threads_run does the
 * same with ncclCommInitAll and one thread per rank.
 */
#ifndef ROLL_TESTS_HOSTNCCL_NCCL_HARNESS_H
#define ROLL_TESTS_HOSTNCCL_NCCL_HARNESS_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h> /* needs the four before it */

struct rank {
    int rank, n;
    ncclComm_t comm; /* of all ranks; NULL in cases that make it themselves */
    cudaStream_t stream;
    ncclUniqueId id;
    bool aborted; /* the case has aborted `comm` */
};

struct rank_case {
    const char *name;
    void (*run)(struct rank *r);
    bool makes_comm; /* the case makes its own communicator from r->id */
};

/* Ends the process of the rank with a line when `what` is false. */
#define CHECK(what) check_true((what), #what, __FILE__, __LINE__)
/* An NCCL or CUDA call that must succeed. */
#define NCCL(call) check_result((int)(call), (int)ncclSuccess, #call, __FILE__, __LINE__)
#define CUDA(call) check_result((int)(call), (int)cudaSuccess, #call, __FILE__, __LINE__)
/* An NCCL call that must return exactly `code`. */
#define NCCL_IS(code, call) check_result((int)(call), (int)(code), #call, __FILE__, __LINE__)

void check_true(bool ok, const char *text, const char *file, int line);
void check_result(int got, int want, const char *text, const char *file, int line);

/* From main: runs one rank when the environment says so, else returns. `cases` ends with a NULL name. */
void rank_main(int argc, char **argv, const struct rank_case *cases);

/* Runs the case on n processes; fails the cmocka test when a rank fails or does not end. `limit_s`: what it may take on
 * an idle machine; it gets many times as much. `env`: "NAME=value" or NULL. */
void ranks_run(const char *name, int n, int limit_s, const char *env);
/* As ranks_run, with n threads of this process. Cases with makes_comm are not for threads. */
void threads_run(const struct rank_case *cases, const char *name, int n);

/* For tests that steer processes themselves. */
struct job {
    char dir[64];
    int n;
    int pids[128];
};
void job_start(struct job *j, const char *name, int n, const char *env);
/* Waits for all; returns the number of ranks that did not exit 0. Kills what is left at the limit. */
int job_wait(struct job *j, int limit_s);
void job_kill(struct job *j);
/* Waits until every rank has told this. */
void job_await(const struct job *j, const char *what);
/* Number of segments in the job's directory. */
int job_segments(const struct job *j);
void job_clean(struct job *j);

void sleep_ms(int ms);
/* The stream is not done after `ms` milliseconds. */
bool still_busy(cudaStream_t stream, int ms);
/* The communicator hangs for 150 ms; an abort frees the stream. */
void expect_hang(struct rank *r);
/* Tells the other ranks that this rank has reached `what`. Tests use this instead of times. For processes only. */
void tell(const struct rank *r, const char *what);
/* Waits until this rank has told that. */
void await(const struct rank *r, int rank, const char *what);
/* Lets all ranks meet, so that no rank gives up a call before the slowest one has seen that the call hangs. */
void meet(const struct rank *r, const char *what);
/* Waits until all ranks but those that stay as well have ended their cases: for a rank that leaves something out, and
 * must not be gone before the others have seen that they hang. */
void stay(const struct rank *r);
/* Waits for the stream and checks that it ends well. */
void finish(struct rank *r);

#endif
