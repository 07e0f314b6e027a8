/*
 * collectives.c: the public collectives and point-to-point calls: check, resolve, append to the group.
 *
 * The checks are those that NCCL makes on the host: communicator, root, peer, type, operation. Counts and buffers are
 * not checked: a null buffer becomes a fault of the device later (fault.c). A collective of zero elements is dropped
 * here, on this rank alone. AlltoAll, Gather and Scatter become sends and receives, as in NCCL, so they match the
 * peers' sends and receives, whichever calls those came from.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>

/* The arguments of any call. An argument that the call does not have is zero; a root that it does not have is -1. */
struct call {
    const char *name;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    bool has_op, has_root;
    ncclComm_t comm;
    cudaStream_t stream;
};

static ncclResult_t check_call(const struct call *c)
{
    ncclResult_t rc = hn_comm_usable(c->comm, c->name);

    if (rc != ncclSuccess) {
        return rc;
    }
    if (c->has_root && (c->root < 0 || c->root >= c->comm->nranks)) {
        return hn_fail(ncclInvalidArgument, "%s: root or peer %d of %d ranks", c->name, c->root, c->comm->nranks);
    }
    if (!hn_type_size(c->type)) {
        return hn_fail(ncclInvalidArgument, "%s: data type %d", c->name, (int)c->type);
    }
    return rc;
}

static void log_call(const struct call *c)
{
    hn_debug("%s count %zu type %d op %d root %d send %p recv %p comm %p rank %d nranks %d stream %p", c->name,
             c->count, (int)c->type, c->has_op ? (int)c->op : -1, c->has_root ? c->root : -1, c->send, c->recv,
             (void *)c->comm, c->comm ? c->comm->rank : -1, c->comm ? c->comm->nranks : -1, (void *)c->stream);
}

static ncclResult_t append_coll(const struct call *c, enum hn_kind kind)
{
    struct hn_coll coll = {.kind = kind,
                           .send = c->send,
                           .recv = c->recv,
                           .count = c->count,
                           .bytes = c->count * hn_type_size(c->type),
                           .type = c->type,
                           .root = c->has_root ? c->root : -1};
    ncclResult_t rc = check_call(c);

    if (rc == ncclSuccess && c->has_op) {
        rc = hn_redop_resolve(c->comm, c->op, c->type, &coll.op, c->name);
    }
    if (rc != ncclSuccess || c->count == 0) {
        return rc;
    }
    return hn_submit_coll(c->comm, &coll, c->stream);
}

static ncclResult_t run_coll(const struct call *c, enum hn_kind kind)
{
    log_call(c);
    hn_group_start();
    ncclResult_t rc = hn_group_error(append_coll(c, kind));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclAllReduce",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .op = op,
                     .has_op = true,
                     .comm = comm,
                     .stream = stream};

    return run_coll(&c, HN_ALLREDUCE);
}

HN_API(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
       ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclReduce",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .op = op,
                     .has_op = true,
                     .root = root,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_coll(&c, HN_REDUCE);
}

HN_API(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
       int root, ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclBroadcast",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_coll(&c, HN_BROADCAST);
}

HN_API(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
       cudaStream_t stream)
{
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream); /* through the PLT, as NCCL does */
}

HN_API(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
       ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclAllGather",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = sendcount,
                     .type = datatype,
                     .comm = comm,
                     .stream = stream};

    return run_coll(&c, HN_ALLGATHER);
}

HN_API(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclReduceScatter",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = recvcount,
                     .type = datatype,
                     .op = op,
                     .has_op = true,
                     .comm = comm,
                     .stream = stream};

    return run_coll(&c, HN_REDUCESCATTER);
}

/* The address of block `index` of a buffer; NULL where the buffer is NULL. */
static void *block(const void *buf, int index, size_t bytes)
{
    return buf ? (char *)(uintptr_t)buf + (size_t)index * bytes : NULL;
}

/* Appends one message of a lowered collective. */
static void add(struct hn_p2p *ops, size_t *n, bool is_send, int peer, void *buf, size_t bytes)
{
    ops[(*n)++] = (struct hn_p2p){.is_send = is_send, .peer = peer, .buf = buf, .bytes = bytes};
}

static size_t lower_alltoall(const struct call *c, struct hn_p2p *ops, size_t bytes)
{
    size_t n = 0;

    for (int r = 0; r < c->comm->nranks; r++) {
        add(ops, &n, true, r, block(c->send, r, bytes), bytes);
        add(ops, &n, false, r, block(c->recv, r, bytes), bytes);
    }
    return n;
}

static size_t lower_gather(const struct call *c, struct hn_p2p *ops, size_t bytes)
{
    size_t n = 0;

    add(ops, &n, true, c->root, block(c->send, 0, bytes), bytes);
    for (int r = 0; r < c->comm->nranks && c->comm->rank == c->root; r++) {
        add(ops, &n, false, r, block(c->recv, r, bytes), bytes);
    }
    return n;
}

static size_t lower_scatter(const struct call *c, struct hn_p2p *ops, size_t bytes)
{
    size_t n = 0;

    for (int r = 0; r < c->comm->nranks && c->comm->rank == c->root; r++) {
        add(ops, &n, true, r, block(c->send, r, bytes), bytes);
    }
    add(ops, &n, false, c->root, block(c->recv, 0, bytes), bytes);
    return n;
}

static size_t lower_send(const struct call *c, struct hn_p2p *ops, size_t bytes)
{
    size_t limit = hn_settings_get()->eager_bytes;

    ops[0] = (struct hn_p2p){.is_send = true,
                             .eager = limit && bytes <= limit && !hn_is_grouped(),
                             .peer = c->root,
                             .buf = (void *)(uintptr_t)c->send,
                             .bytes = bytes};
    return 1;
}

static size_t lower_recv(const struct call *c, struct hn_p2p *ops, size_t bytes)
{
    ops[0] = (struct hn_p2p){.peer = c->root, .buf = c->recv, .bytes = bytes};
    return 1;
}

typedef size_t lower_fn(const struct call *c, struct hn_p2p *ops, size_t bytes);

static ncclResult_t append_p2p(const struct call *c, lower_fn *lower, bool drops_empty)
{
    ncclResult_t rc = check_call(c);
    struct hn_p2p *ops;

    if (rc != ncclSuccess || (drops_empty && c->count == 0)) {
        return rc;
    }
    ops = malloc(((size_t)c->comm->nranks * 2 + 1) * sizeof(*ops));
    if (!ops) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    size_t n = lower(c, ops, c->count * hn_type_size(c->type));
    for (size_t i = 0; i < n; i++) {
        ops[i].count = c->count;
        ops[i].type = c->type;
    }
    rc = hn_submit_p2p(c->comm, ops, n, c->stream);
    free(ops);
    return rc;
}

static ncclResult_t run_p2p(const struct call *c, lower_fn *lower, bool drops_empty)
{
    log_call(c);
    hn_group_start();
    ncclResult_t rc = hn_group_error(append_p2p(c, lower, drops_empty));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
       ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclAlltoAll",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .comm = comm,
                     .stream = stream};

    return run_p2p(&c, lower_alltoall, true);
}

HN_API(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
       ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclGather",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_p2p(&c, lower_gather, true);
}

HN_API(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
       ncclComm_t comm, cudaStream_t stream)
{
    struct call c = {.name = "ncclScatter",
                     .send = sendbuff,
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_p2p(&c, lower_scatter, true);
}

HN_API(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
       cudaStream_t stream)
{
    struct call c = {.name = "ncclSend",
                     .send = sendbuff,
                     .count = count,
                     .type = datatype,
                     .root = peer,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_p2p(&c, lower_send, false);
}

HN_API(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
       cudaStream_t stream)
{
    struct call c = {.name = "ncclRecv",
                     .recv = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = peer,
                     .has_root = true,
                     .comm = comm,
                     .stream = stream};

    return run_p2p(&c, lower_recv, false);
}
