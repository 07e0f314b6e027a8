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
    ncclComm_t world, ep, edp;
    moe_device_t *device;
};

/*
 * Reads RANK, WORLD_SIZE, LOCAL_RANK (a job of one where they are absent), meets the other ranks and makes the
 * communicators: ranks of one ep group are neighbours, an edp group holds the ranks with the same experts. 0, or -1
 * with one line on standard error.
 */
int job_start(const struct train_options *options, struct job *job);

/* Destroys what job_start made; collective. */
void job_end(struct job *job);

/* Prints "rank R: <what>: <message>" when nc is a failure. Whether it was one. */
bool job_nccl_failed(const struct job *job, const char *what, ncclResult_t nc);

#endif
