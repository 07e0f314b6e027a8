/*
 * job.h: this process's place in the job: its rank, its communicators, its device.
 */
#ifndef MOE_CORE_TRAIN_JOB_H
#define MOE_CORE_TRAIN_JOB_H

#include "moe_core/include/moe/device.h"
#include "moe_core/train/options.h"

#include <nccl.h>
#include <stdint.h>

enum { JOB_WORDS = 16 };

struct job {
    int32_t rank, world_size, local_rank;
    int32_t ep_size, ep_rank, edp_size, edp_rank;
    int32_t parts, part; /* ranks that share each expert (etp, or tp in mode shard); number of this rank's part */
    int32_t tp_size, tp_rank;
    int32_t data_size, data_rank; /* number of data ranks, where ranks with the same tokens count once; this rank's
                                     number among them */
    ncclComm_t world, ep, edp;
    ncclComm_t etp, tp; /* NULL where the group has one rank */
    ncclComm_t block; /* parts x ep: the ranks that together hold one whole set of experts; where parts is 1 the same as
                         ep, and then not owned */
    ncclComm_t data;  /* ranks with the same tp rank; where tp is 1 the same as world, and then not owned */
    moe_device_t *device;
    int64_t *words; /* [JOB_WORDS], which NCCL can use: for agreements, so that a rank without memory can take part */
    bool joined;    /* all communicators are there: this rank's peers wait for it in job_all_start */
};

/* Whether the options can be laid out over so many ranks; where not, one line on standard error. Any thread. */
bool job_fits(const struct train_options *options, int32_t ranks);

/*
 * Reads RANK, WORLD_SIZE, LOCAL_RANK (a job of one where they are absent), meets the other ranks and makes the
 * communicators: ranks that share experts are neighbours, then come the ranks of an ep group, and an edp group holds
 * the ranks with the same part of the same experts. 0, or -1 with one line on standard error; where job->joined is set
 * then, it is the device that could not be made, and the peers are still to be told.
 */
int job_start(const struct train_options *options, struct job *job);

/* Destroys what job_start made; collective. */
void job_end(struct job *job);

/*
 * The least, or the largest, of all ranks' numbers of comm, on every rank; COLLECTIVE, and a wait. Takes no memory.
 * Errors: COMM, DEVICE.
 */
int job_least(const struct job *job, ncclComm_t comm, int64_t mine, int64_t *least);
int job_range(const struct job *job, ncclComm_t comm, uint64_t mine, uint64_t *least, uint64_t *most);
/*
 * Whether a rank of the job has `failed`: *who is the last such rank, -1 without one. COLLECTIVE on world, and a wait.
 * Errors: COMM, DEVICE.
 */
int job_failed(const struct job *job, bool failed, int32_t *who);

/*
 * Whether all ranks of the job have come so far: 0. `why` is what keeps this rank from it (one that has said so on
 * standard error), NULL: nothing. -1: a rank cannot start; each of the others says in one line which, and why.
 * COLLECTIVE on world, and a wait: AllReduce MIN int64 [1], then, where a rank cannot start, a Broadcast of bytes from
 * it. Takes no memory; a job of one rank issues nothing.
 */
int job_all_start(const struct job *job, const char *why);

/* Whether nc is a failure; if so, prints "rank R: <what>: <message>". */
bool job_nccl_failed(const struct job *job, const char *what, ncclResult_t nc);

#endif
