/*
 * job.h: this process's place in the job: its rank, its communicators, its device.
 */
#ifndef MOE_CORE_TRAIN_JOB_H
#define MOE_CORE_TRAIN_JOB_H

#include "moe_core/include/moe/device.h"
#include "moe_core/train/options.h"

#include <nccl.h>
#include <stdint.h>

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
    int64_t *words; /* device [2]: for agreements, so that a rank without memory can take part in them */
};

/* Whether the options can be laid out over so many ranks; where not, one line on standard error. Any thread. */
bool job_fits(const struct train_options *options, int32_t ranks);

/*
 * Reads RANK, WORLD_SIZE, LOCAL_RANK (a job of one where they are absent), meets the other ranks and makes the
 * communicators: ranks that share experts are neighbours, then come the ranks of an ep group, and an edp group holds
 * the ranks with the same part of the same experts. 0, or -1 with one line on standard error.
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

/* Whether nc is a failure; if so, prints "rank R: <what>: <message>". */
bool job_nccl_failed(const struct job *job, const char *what, ncclResult_t nc);

#endif
