/*
 * collective.h: rows of any type over one communicator, as the dispatchers need them: whole ranks, or a number of rows
 * each.
 *
 * A communicator of one rank is bypassed: the data is copied, or nothing is done where both pointers are equal.
 */
#ifndef MOE_CORE_DISPATCH_COLLECTIVE_H
#define MOE_CORE_DISPATCH_COLLECTIVE_H

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

/* What a collective moves (the type and width of a row), and what its failure is called. */
struct moe_collective {
    moe_device_t *device;
    const struct moe_group *group;
    const char *what; /* in messages, such as "token AlltoAll" */
    ncclDataType_t type;
    int64_t width; /* elements of a row */
    int32_t world_rank;
    uint32_t layer;
};

/* NCCL's type for float32, bfloat16 and float16 rows; ncclNumTypes for another type. */
ncclDataType_t moe_nccl_type(enum moe_dtype type);

/*
 * Puts the size of comm and this rank into *group; NULL is one rank. `what` names the communicator in messages. Errors:
 * COMM.
 */
int moe_group_resolve(ncclComm_t comm, const char *what, int32_t world_rank, uint32_t layer, struct moe_group *group);

/* AllGather: recv [size,rows] = every rank's send [rows], in rank order. Errors of all four functions: COMM, DEVICE. */
int moe_all_gather(const struct moe_collective *c, const void *send, void *recv, int64_t rows);
/* ReduceScatter: recv [rows] = this rank's part of the sum over all ranks' send [size,rows]. */
int moe_reduce_scatter(const struct moe_collective *c, const void *send, void *recv, int64_t rows);

/*
 * AllGather and ReduceScatter where rank r has rows[r] rows; all ranks know all numbers. Equal numbers are one
 * AllGather or ReduceScatter; different numbers are a group of one Broadcast or Reduce per rank that has rows.
 * PyTorch's all_gather and reduce_scatter of lists issue the same calls, so that a trace looks alike.
 */
int moe_all_gather_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows);
int moe_reduce_scatter_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows);

/*
 * Sends send_rows[p] rows to rank p and receives recv_rows[p] rows from it: one group of sends and receives, those of
 * zero rows left out.
 */
int moe_all_to_all_v(const struct moe_collective *c, const void *send, const int64_t *send_rows, void *recv,
                     const int64_t *recv_rows);

#pragma GCC visibility pop

#endif
