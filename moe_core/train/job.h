/*
 * job.h: this process's place in the job: its rank, its communicators, its device.
 */
#ifndef MOE_TRAIN_JOB_H
#define MOE_TRAIN_JOB_H

#include "moe_core/include/moe/device.h"
#include "moe_core/train/options.h"

#include <nccl.h>
#include <stdint.h>

struct job {
    int32_t rank, world_size, local_rank;
    int32_t ep_size, ep_rank, edp_size, edp_rank;
    int32_t parts, part; /* ranks that share each expert (etp, or tp in mode shard); this one's part */
    int32_t tp_size, tp_rank;
    int32_t data_size, data_rank; /* ranks with tokens of their own, counting those with the same tokens once */
    ncclComm_t world, ep, edp;
    ncclComm_t etp, tp; /* NULL where there is one rank */
    ncclComm_t block;   /* parts x ep: all ranks that together hold one whole set of experts; ep where parts is 1. Not
                           owned then */
    ncclComm_t data;    /* ranks with the same tp rank; world where tp is 1. Not owned then */
    moe_device_t *device;
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

/* Prints "rank R: <what>: <message>" when nc is a failure. Whether it was one. */
bool job_nccl_failed(const struct job *job, const char *what, ncclResult_t nc);

#endif
