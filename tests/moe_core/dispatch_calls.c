/*
 * dispatch_calls.c: what a preloaded tool sees: the calls of NCCL, recorded and passed on, and the tool interface.
 */
#include "tests/moe_core/dispatch_inside.h"

#include <dlfcn.h>

/* nccl.h declares these two without a prototype. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

_Thread_local struct dr_rank *dr_self;
atomic_uint dr_progress;

void moe_observe(const struct moe_event *event)
{
    (void)event;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    (void)comm;
    (void)layer;
    return dr_self->proposal | (hazard & dr_self->c->granted);
}

enum dr_role dr_role_of(ncclComm_t comm)
{
    return comm == dr_self->ep      ? DR_EP
           : comm == dr_self->etp   ? DR_ETP
           : comm == dr_self->world ? DR_TP_EP
           : comm == dr_self->tp    ? DR_TP
                                    : DR_NO_ROLE;
}

static uint64_t bytes_of(size_t count, ncclDataType_t type)
{
    switch (type) {
    case ncclInt64:
        return count * 8;
    case ncclInt32:
    case ncclFloat32:
        return count * 4;
    case ncclFloat16:
    case ncclBfloat16:
        return count * 2;
    default:
        return count;
    }
}

static void keep(const struct dr_unit *unit)
{
    atomic_fetch_add(&dr_progress, 1);
    struct dr_record *record = dr_self != NULL ? dr_self->record : NULL;
    if (record != NULL && record->units < DR_UNITS) {
        record->unit[record->units++] = *unit;
    }
}

static void note(enum dr_op op, ncclComm_t comm, uint64_t bytes)
{
    if (dr_self == NULL) {
        return;
    }
    if (dr_self->depth > 0) {
        dr_self->group.op = op;
        dr_self->group.role = dr_role_of(comm);
        dr_self->group.bytes += bytes;
    } else {
        keep(&(struct dr_unit){.op = op, .role = dr_role_of(comm), .bytes = bytes});
    }
}

/* The real function; a rank whose communicators were aborted calls nothing any more. */
#define PASS_ON(name, ...)                                                                                             \
    do {                                                                                                               \
        static __typeof__(name) *real;                                                                                 \
        __typeof__(name) *found = __atomic_load_n(&real, __ATOMIC_RELAXED);                                            \
        if (found == NULL) {                                                                                           \
            *(void **)&found = dlsym(RTLD_NEXT, #name);                                                                \
            __atomic_store_n(&real, found, __ATOMIC_RELAXED);                                                          \
        }                                                                                                              \
        return dr_self != NULL && atomic_load(&dr_self->aborted) ? ncclInvalidUsage : found(__VA_ARGS__);              \
    } while (0)

static uint64_t members(ncclComm_t comm)
{
    int count = 0; /* an aborted communicator is freed: nothing may be asked of it */
    if (dr_self == NULL || !atomic_load(&dr_self->aborted)) {
        ncclCommCount(comm, &count);
    }
    return (uint64_t)count;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    note(DR_ALLREDUCE, comm, bytes_of(count, type));
    PASS_ON(ncclAllReduce, send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    note(DR_ALLGATHER, comm, bytes_of(count, type) * members(comm));
    PASS_ON(ncclAllGather, send, recv, count, type, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    note(DR_REDUCESCATTER, comm, bytes_of(count, type) * members(comm));
    PASS_ON(ncclReduceScatter, send, recv, count, type, op, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    note(DR_ALLGATHER, comm, bytes_of(count, type));
    PASS_ON(ncclBroadcast, send, recv, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    note(DR_REDUCESCATTER, comm, bytes_of(count, type));
    PASS_ON(ncclReduce, send, recv, count, type, op, root, comm, stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    note(DR_ALLTOALL, comm, 0);
    if (dr_self != NULL) {
        dr_self->group.sent[peer] += bytes_of(count, type);
    }
    PASS_ON(ncclSend, send, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    note(DR_ALLTOALL, comm, 0);
    if (dr_self != NULL) {
        dr_self->group.received[peer] += bytes_of(count, type);
    }
    PASS_ON(ncclRecv, recv, count, type, peer, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    if (dr_self != NULL && dr_self->depth++ == 0) {
        memset(&dr_self->group, 0, sizeof(dr_self->group));
    }
    PASS_ON(ncclGroupStart);
}

ncclResult_t ncclGroupEnd(void)
{
    if (dr_self != NULL && --dr_self->depth == 0) {
        keep(&dr_self->group);
    }
    PASS_ON(ncclGroupEnd);
}
