/*
 * job.h: what the modes of the programs that the tests watch share (job.c): NCCL's functions, a buffer, communicators.
 */
#ifndef ROLL_TESTS_INTERPOSER_JOB_H
#define ROLL_TESTS_INTERPOSER_JOB_H

#include "interposer/wrap/nccl_types.h"

#include <stdint.h>
#include <stdio.h>

#define ROLL_API_CALL(id, name, params, ...)      ncclResult_t name params;
#define ROLL_API_LIFE(id, name, params, args)     ncclResult_t name params;
#define ROLL_API_PASS(id, ret, name, params, ...) ret name params;
#define ROLL_API_JUMP(id, name)
#define ROLL_API_VERSION 22809
#include "interposer/wrap/api.def"
#undef ROLL_API_VERSION

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "job: line %d: %s\n", __LINE__, #condition);                                               \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#define STREAM(n) ((cudaStream_t)(uintptr_t)(0x7000 + 16 * (n)))

extern char job_buffer[65536];

/* A new communicator; NULL: NCCL refused it. */
ncclComm_t job_comm(int rank, int nranks);

/* A call that a thread makes. */
struct job_caller {
    ncclComm_t comm;
    size_t count;
    int calls;
};
void *job_call_in_thread(void *caller);

/* The modes: 0, or 1 after a mistake that the job itself saw. */
int job_mode_every_operation(void);
int job_mode_groups(void);
int job_mode_children(void);
int job_mode_forever(void);
int job_mode_errno_is_kept(void);
int job_mode_forks(void);
int job_mode_threads(void);
int job_mode_signals(void);
int job_mode_callsites(void);
int job_mode_odd_functions(void);
int job_mode_waits(void);
int job_mode_may_wait(void);
int job_mode_orders(void);
int job_mode_polls(void);
int job_mode_moe(void);
int job_mode_names(void);
int job_mode_marks(void);
int job_mode_own_mark(void);
int job_mode_starts_agent(void);
int job_mode_wild_frames(void);
int job_mode_churn(void);
int job_mode_clocks(void);
int job_mode_async_errors(void);
int job_mode_stuck_in_send(void);
int job_mode_stuck_in_group(void);
int job_mode_stuck_in_init(void);
int job_mode_quiet(void);
int job_mode_many(int n);

#endif
