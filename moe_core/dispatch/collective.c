/*
 * collective.c: the NCCL calls behind the dispatchers, with one way to fail.
 *
 * Uneven gathers as grouped sends and receives were rejected. The frameworks issue one broadcast or reduce per root;
 * that form needs no sums of our own, and every member issues the same list, so that a plain comparison of sequences
 * shows a divergence.
 */
#include "moe_core/dispatch/collective.h"

#include "moe_core/base/fail.h"

static size_t element(ncclDataType_t type)
{
    switch (type) {
    case ncclInt64:
        return sizeof(int64_t);
    case ncclInt32:
        return sizeof(int32_t);
    case ncclFloat32:
        return sizeof(float);
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    default:
        return 1;
    }
}

static size_t row_bytes(const struct moe_collective *c)
{
    return (size_t)c->width * element(c->type);
}

static int outcome(const struct moe_collective *c, ncclResult_t nc)
{
    return nc == ncclSuccess ? 0
                             : moe_fail(MOE_E_COMM, c->world_rank, c->layer, "%s: %s", c->what, ncclGetErrorString(nc));
}

static int bypass(const struct moe_collective *c, const void *send, void *recv, int64_t rows)
{
    return send == recv ? 0 : moe_device_copy(c->device, recv, send, (size_t)rows * row_bytes(c));
}

ncclDataType_t moe_nccl_type(enum moe_dtype type)
{
    switch (type) {
    case MOE_F32:
        return ncclFloat32;
    case MOE_BF16:
        return ncclBfloat16;
    case MOE_F16:
        return ncclFloat16;
    default:
        return ncclNumTypes;
    }
}

int moe_group_resolve(ncclComm_t comm, const char *what, int32_t world_rank, uint32_t layer, struct moe_group *group)
{
    *group = (struct moe_group){.comm = comm, .size = 1};
    if (comm != NULL && (ncclCommCount(comm, &group->size) != ncclSuccess ||
                         ncclCommUserRank(comm, &group->rank) != ncclSuccess || group->size < 1)) {
        return moe_fail(MOE_E_COMM, world_rank, layer, "size and rank of the %s communicator", what);
    }
    return 0;
}

int moe_all_gather(const struct moe_collective *c, const void *send, void *recv, int64_t rows)
{
    if (c->group->size == 1) {
        return bypass(c, send, recv, rows);
    }
    return outcome(
        c, ncclAllGather(send, recv, (size_t)(rows * c->width), c->type, c->group->comm, moe_device_stream(c->device)));
}

int moe_reduce_scatter(const struct moe_collective *c, const void *send, void *recv, int64_t rows)
{
    if (c->group->size == 1) {
        return bypass(c, send, recv, rows);
    }
    return outcome(c, ncclReduceScatter(send, recv, (size_t)(rows * c->width), c->type, ncclSum, c->group->comm,
                                        moe_device_stream(c->device)));
}

static int equal(const struct moe_collective *c, const int64_t *rows)
{
    for (int p = 1; p < c->group->size; p++) {
        if (rows[p] != rows[0]) {
            return 0;
        }
    }
    return 1;
}

int moe_all_gather_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows)
{
    if (equal(c, rows)) {
        return moe_all_gather(c, send, recv, rows[0]);
    }
    char *to = recv;
    ncclResult_t nc = ncclGroupStart();
    for (int p = 0; p < c->group->size && nc == ncclSuccess; p++) {
        if (rows[p] > 0) {
            nc = ncclBroadcast(p == c->group->rank ? send : to, to, (size_t)(rows[p] * c->width), c->type, p,
                               c->group->comm, moe_device_stream(c->device));
            to += (size_t)rows[p] * row_bytes(c);
        }
    }
    ncclResult_t end = ncclGroupEnd();
    return outcome(c, nc != ncclSuccess ? nc : end);
}

int moe_reduce_scatter_v(const struct moe_collective *c, const void *send, void *recv, const int64_t *rows)
{
    if (equal(c, rows)) {
        return moe_reduce_scatter(c, send, recv, rows[0]);
    }
    const char *from = send;
    ncclResult_t nc = ncclGroupStart();
    for (int p = 0; p < c->group->size && nc == ncclSuccess; p++) {
        if (rows[p] > 0) {
            nc = ncclReduce(from, recv, (size_t)(rows[p] * c->width), c->type, ncclSum, p, c->group->comm,
                            moe_device_stream(c->device));
            from += (size_t)rows[p] * row_bytes(c);
        }
    }
    ncclResult_t end = ncclGroupEnd();
    return outcome(c, nc != ncclSuccess ? nc : end);
}

int moe_all_to_all_v(const struct moe_collective *c, const void *send, const int64_t *send_rows, void *recv,
                     const int64_t *recv_rows)
{
    if (c->group->size == 1) {
        return bypass(c, send, recv, send_rows[0]);
    }
    cudaStream_t stream = moe_device_stream(c->device);
    const char *from = send;
    char *to = recv;
    ncclResult_t nc = ncclGroupStart();
    for (int p = 0; p < c->group->size && nc == ncclSuccess; p++) {
        if (send_rows[p] > 0) {
            nc = ncclSend(from, (size_t)(send_rows[p] * c->width), c->type, p, c->group->comm, stream);
            from += (size_t)send_rows[p] * row_bytes(c);
        }
        if (recv_rows[p] > 0 && nc == ncclSuccess) {
            nc = ncclRecv(to, (size_t)(recv_rows[p] * c->width), c->type, p, c->group->comm, stream);
            to += (size_t)recv_rows[p] * row_bytes(c);
        }
    }
    ncclResult_t end = ncclGroupEnd();
    return outcome(c, nc != ncclSuccess ? nc : end);
}
