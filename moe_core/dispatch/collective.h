/*
 * collective.h: rows of any type over one communicator, as the dispatchers need them: whole ranks, or a number of rows
 * each.
 *
 * A communicator of one rank is bypassed: what would be sent is copied, and nothing where both pointers are the same.
 */
#ifndef MOE_COLLECTIVE_H
#define MOE_COLLECTIVE_H

#include "moe_core/include/moe/device.h"
#include "moe_core/include/moe/dtype.h"

#include <nccl.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* One communicator with its size and this rank in it; one rank where comm is NULL. */
struct moe_group {
    ncclComm_t comm;
    int size, rank;
};

/* What a row is, and how a failure is to be named. */
struct moe_collective {
    moe_device_t *device;
    const struct moe_group *group;
    const char *what; /* "token AlltoAll": for messages */
    ncclDataType_t type;
    int64_t width; /* elements of a row */
    int32_t world_rank;
    uint32_t layer;
};

/* Of float32, bfloat16, float16 rows; ncclNumTypes for another type. */
ncclDataType_t moe_nccl_type(enum moe_dtype type);

/* Size and rank of comm into *group; NULL is one rank. `what` names it. Errors: COMM. */
int moe_group_resolve(ncclComm_t comm, const char *what, int32_t world_rank, uint32_t layer, struct moe_group *group);

/* recv [size,rows]: everybody's send [rows], in rank order. Errors of all: COMM, DEVICE. */
int moe_all_gather(const struct moe_collective *c, const void *send, void *recv, int64_t rows);
/* recv [rows] = the sum over ranks of their send [size,rows], this rank's part. */
int moe_reduce_scatter(const struct moe_collective *c, const void *send, void *recv, int64_t rows);

/*
 * The same where rank r has rows[r]; all ranks know all numbers. Equal numbers are one AllGather or ReduceScatter,
 * different ones a group of one Broadcast or Reduce per rank that has rows: what PyTorch's all_gather and
 * reduce_scatter of lists do, so that a trace looks alike.
 */
int moe_all_gather_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows);
int moe_reduce_scatter_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows);

/* send_rows[p] rows to rank p and recv_rows[p] from it: one group of sends and receives, those of zero rows left out.
 */
int moe_all_to_all_v(const struct moe_collective *c, const void *send, const int64_t *send_rows, void *recv,
                     const int64_t *recv_rows);

#pragma GCC visibility pop

#endif
