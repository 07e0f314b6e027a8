/*
 * replay_calls.c: from a record to a call of NCCL. A call that NCCL refused gets no buffers, so that it is refused
 * again whatever was wrong with it then; sizes that are made small stay equal where they were, and different where they
 * were not (to one in four thousand).
 */
#include "hostnccl/replay/replay.h"

#include "trace/def.h"
#include "trace/op.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SMALL_STEPS 4096u
#define SMALL_BYTES 8u /* a multiple of every datatype's */

const struct roll_replay_comm *comm_of(const struct rank *r, uint32_t id)
{
    for (uint32_t i = 0; i < r->head.comms; i++) {
        if (r->comm[i].id == id) {
            return &r->comm[i];
        }
    }
    return NULL;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 29;
}

size_t elements_of(const struct rank *r, const struct roll_record *rec)
{
    size_t width = roll_dtype_bytes(rec->dtype);
    if (!r->head.scaled || rec->count == 0 || width == 0) {
        return rec->count;
    }
    return (1 + mix(rec->count * width) % SMALL_STEPS) * SMALL_BYTES / width;
}

size_t bytes_of(const struct rank *r, const struct roll_record *rec)
{
    enum roll_op_class class = roll_op_class(rec->op);
    const struct roll_replay_comm *c = comm_of(r, rec->comm);
    bool moves = class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P;
    bool many = rec->op == ROLL_OP_ALLGATHER || rec->op == ROLL_OP_REDUCESCATTER || rec->op == ROLL_OP_ALLTOALL ||
                rec->op == ROLL_OP_GATHER || rec->op == ROLL_OP_SCATTER;
    return !moves || c == NULL ? 0
                               : elements_of(r, rec) * roll_dtype_bytes(rec->dtype) * (many ? (size_t)c->nranks : 1);
}

/* The id under which all members of a communicator meet: whoever comes first makes it. */
static void share_id(const struct rank *r, uint64_t key, ncclUniqueId *id)
{
    char path[4096], own[4200];
    snprintf(path, sizeof(path), "%s/comm-%016llx.id", r->dir, (unsigned long long)key);
    snprintf(own, sizeof(own), "%s.%u", path, r->head.rank);
    ncclGetUniqueId(id);
    FILE *f = fopen(own, "wb");
    bool good = f != NULL && fwrite(id, sizeof(*id), 1, f) == 1;
    good = f != NULL && fclose(f) == 0 && good;
    (void)link(own, path); /* the first one stays */
    (void)unlink(own);
    f = good ? fopen(path, "rb") : NULL;
    if (f == NULL || fread(id, sizeof(*id), 1, f) != 1) {
        stop(path, "cannot be written or read");
    }
    fclose(f);
}

static void make_comm(struct rank *r, const struct roll_record *rec)
{
    const struct roll_replay_comm *c = comm_of(r, rec->comm);
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (c == NULL) {
        return;
    }
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    config.commName = c->label[0] != '\0' ? c->label : NULL;
#endif
    share_id(r, c->key, &id);
    (void)ncclCommInitRankConfig(&r->handle[rec->comm], c->nranks, id, c->rank, &config);
}

/* A split's record names the parent, and its `peer` the colour. The child is known by how many were asked before. */
static void split_comm(struct rank *r, const struct roll_record *rec)
{
    const struct roll_replay_comm *parent = comm_of(r, rec->comm), *child = NULL;
    uint32_t number = r->split[rec->comm]++;
    ncclComm_t made = NULL;
    for (uint32_t i = 0; parent != NULL && i < r->head.comms; i++) {
        const struct roll_replay_comm *c = &r->comm[i];
        child = c->parent_key == parent->key && c->child == number && c->origin == ROLL_COMM_SPLIT ? c : child;
    }
    (void)ncclCommSplit(r->handle[rec->comm], rec->peer, child != NULL ? child->rank : 0,
                        child != NULL ? &r->handle[child->id] : &made, NULL);
}

static void collective(struct rank *r, const struct roll_record *rec)
{
    bool refused = roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED && rec->result != 0;
    void *send = refused ? NULL : r->send, *recv = refused ? NULL : r->recv;
    size_t n = elements_of(r, rec);
    ncclDataType_t type = (ncclDataType_t)rec->dtype;
    ncclRedOp_t op = (ncclRedOp_t)rec->redop;
    ncclComm_t comm = r->handle[rec->comm];
    cudaStream_t stream = stream_of(r, rec->stream);
    double one = 1; /* as wide as any datatype; what it means to a narrower one does not matter */
    bool made = rec->redop == ROLL_RED_PREMUL;
    if (made) {
        made = ncclRedOpCreatePreMulSum(&op, &one, type, ncclScalarHostImmediate, comm) == ncclSuccess;
    }
    switch (rec->op) {
    case ROLL_OP_ALLREDUCE:
        (void)ncclAllReduce(send, recv, n, type, op, comm, stream);
        break;
    case ROLL_OP_BROADCAST:
        (void)ncclBroadcast(send, recv, n, type, rec->peer, comm, stream);
        break;
    case ROLL_OP_REDUCE:
        (void)ncclReduce(send, recv, n, type, op, rec->peer, comm, stream);
        break;
    case ROLL_OP_ALLGATHER:
        (void)ncclAllGather(send, recv, n, type, comm, stream);
        break;
    case ROLL_OP_REDUCESCATTER:
        (void)ncclReduceScatter(send, recv, n, type, op, comm, stream);
        break;
    case ROLL_OP_SEND:
        (void)ncclSend(send, n, type, rec->peer, comm, stream);
        break;
    case ROLL_OP_RECV:
        (void)ncclRecv(recv, n, type, rec->peer, comm, stream);
        break;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    case ROLL_OP_ALLTOALL:
        (void)ncclAlltoAll(send, recv, n, type, comm, stream);
        break;
    case ROLL_OP_GATHER:
        (void)ncclGather(send, recv, n, type, rec->peer, comm, stream);
        break;
    case ROLL_OP_SCATTER:
        (void)ncclScatter(send, recv, n, type, rec->peer, comm, stream);
        break;
#endif
    default:
        stop(roll_op_name(rec->op), "this NCCL has no such call");
    }
    if (made && rec->group == 0) {
        (void)ncclRedOpDestroy(op, comm);
    }
}

void make_call(struct rank *r, const struct roll_record *rec)
{
    ncclComm_t comm = r->handle[rec->comm];
    enum roll_op_class class = roll_op_class(rec->op);
    ncclResult_t said;
    if (rec->op == ROLL_OP_COMM_INIT) {
        make_comm(r, rec);
    } else if (comm == NULL) {
        return; /* it was never made here, as then */
    } else if (class == ROLL_CLASS_COLL || class == ROLL_CLASS_P2P) {
        collective(r, rec);
    } else if (rec->op == ROLL_OP_COMM_SPLIT) {
        split_comm(r, rec);
    } else if (rec->op == ROLL_OP_COMM_FINALIZE) {
        (void)ncclCommFinalize(comm);
    } else if (rec->op == ROLL_OP_COMM_DESTROY || rec->op == ROLL_OP_COMM_ABORT) {
        r->handle[rec->comm] = NULL;
        (void)(rec->op == ROLL_OP_COMM_ABORT ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    } else if (rec->op == ROLL_OP_COMM_ASYNC || rec->op == ROLL_OP_COMM_QUERY) {
        (void)ncclCommGetAsyncError(comm, &said);
    }
}
