/*
 * fakenccl.c: an NCCL that does nothing, for tests of the interposer alone: one process, no devices, every call returns
 * at once. Laid out as the real one: each function has a strong pncclX and a weak ncclX of the same address, ncclBcast
 * and ncclCommInitAll call public functions through the PLT, and functions of newer releases are missing.
 *
 * It is harsher than NCCL where that is allowed: inside a group a new communicator's handle is written by ncclGroupEnd
 * only, and a nonblocking one's by fake_progress.
 */
#include "interposer/wrap/nccl_types.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ncclComm {
    int rank, nranks;
};

#define FAKE(ret, name, params)                                                                                        \
    ret name params __attribute__((weak, alias("p" #name)));                                                           \
    ret p##name params;                                                                                                \
    ret p##name params

#define LATE 16
static struct {
    ncclComm_t *where;
    ncclComm_t comm;
    bool nonblocking;
} late[LATE];
static int lates, group_depth;

void fake_progress(void);
extern int fake_errno;
int fake_errno; /* value that a collective leaves in errno; 0 = errno is left alone */
extern int fake_late, fake_early, fake_block, fake_async;
int fake_late;  /* the end of a group leaves its nonblocking communicators to fake_progress */
int fake_early; /* handles are written at once, in a group too, and never again */
int fake_block; /* a collective waits for a signal; 2: the end of a group, 3: a creation */
int fake_async; /* state of a communicator when nothing is late; with InProgress collectives return it, too */

static void write_handles(bool nonblocking_too)
{
    int kept = 0;
    for (int i = 0; i < lates; i++) {
        if (late[i].nonblocking && !nonblocking_too) {
            late[kept++] = late[i];
        } else {
            *late[i].where = late[i].comm;
        }
    }
    lates = kept;
}

void fake_progress(void)
{
    write_handles(true);
}

static ncclResult_t make(ncclComm_t *out, int rank, int nranks, const ncclConfig_t *config)
{
    ncclComm_t comm = malloc(sizeof(*comm));
    comm->rank = rank;
    comm->nranks = nranks;
    bool nonblocking = config != NULL && config->blocking == 0;
    if (!fake_early && (group_depth > 0 || nonblocking)) {
        *out = NULL;
        late[lates].nonblocking = nonblocking;
        late[lates].where = out;
        late[lates++].comm = comm;
        return group_depth > 0 ? ncclSuccess : ncclInProgress;
    }
    *out = comm;
    return ncclSuccess;
}

static ncclResult_t work(void)
{
    if (fake_errno != 0) {
        errno = fake_errno;
    }
    if (fake_block == 1) {
        pause();
    }
    return fake_async == ncclInProgress ? ncclInProgress : ncclSuccess;
}

FAKE(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id))
{
    static char next;
    memset(id, ++next, sizeof(*id));
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
    if (fake_block == 3) {
        pause();
    }
    (void)id;
    return make(comm, rank, nranks, NULL);
}

FAKE(ncclResult_t, ncclCommInitRankConfig,
     (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
    (void)id;
    return make(comm, rank, nranks, config);
}

FAKE(ncclResult_t, ncclCommInitRankScalable,
     (ncclComm_t * comm, int nranks, int rank, int ids, ncclUniqueId *id, ncclConfig_t *config))
{
    (void)ids;
    (void)id;
    return make(comm, rank, nranks, config);
}

FAKE(ncclResult_t, ncclCommInitAll, (ncclComm_t * comm, int ndev, const int *devices))
{
    ncclUniqueId id;
    (void)devices;
    ncclGetUniqueId(&id); /* through the PLT, as NCCL does */
    for (int i = 0; i < ndev; i++) {
        make(&comm[i], i, ndev, NULL);
    }
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *config))
{
    (void)key;
    if (color == NCCL_SPLIT_NOCOLOR) {
        *out = NULL;
        return ncclSuccess;
    }
    return make(out, comm->rank / 2, comm->nranks / 2 + (comm->nranks == 1), config);
}

FAKE(ncclResult_t, ncclCommShrink,
     (ncclComm_t comm, int *excluded, int count, ncclComm_t *out, ncclConfig_t *config, int flags))
{
    (void)excluded;
    (void)flags;
    return make(out, comm->rank, comm->nranks - count, config);
}

FAKE(ncclResult_t, ncclCommFinalize, (ncclComm_t comm))
{
    (void)comm;
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommDestroy, (ncclComm_t comm))
{
    free(comm);
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommAbort, (ncclComm_t comm))
{
    free(comm);
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags))
{
    (void)comm;
    return flags == 0 ? ncclSuccess : ncclInvalidArgument;
}

FAKE(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count))
{
    *count = comm->nranks;
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank))
{
    *rank = comm->rank;
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclGroupStart, (void))
{
    group_depth++;
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclGroupEnd, (void))
{
    if (fake_block == 2) {
        pause();
    }
    if (group_depth == 0) {
        return ncclInvalidUsage;
    }
    if (--group_depth == 0) {
        write_handles(!fake_late);
    }
    return group_depth == 0 && lates > 0 ? ncclInProgress : ncclSuccess;
}

FAKE(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info))
{
    (void)info;
    group_depth--;
    lates = 0;
    return ncclSuccess;
}

FAKE(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *async))
{
    (void)comm;
    *async = lates > 0 ? ncclInProgress : (ncclResult_t)fake_async;
    return ncclSuccess;
}

FAKE(const char *, ncclGetErrorString, (ncclResult_t result))
{
    return result == ncclSuccess ? "fake success" : "fake error";
}

FAKE(ncclResult_t, ncclAllReduce,
     (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream))
{
    (void)send, (void)recv, (void)count, (void)type, (void)comm, (void)stream;
    ncclResult_t result = work();
    return op == 5 ? ncclInvalidArgument : result;
}

FAKE(ncclResult_t, ncclBroadcast,
     (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)recv, (void)count, (void)type, (void)root, (void)comm, (void)stream;
    return work();
}

FAKE(ncclResult_t, ncclBcast,
     (void *buff, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream))
{
    return ncclBroadcast(buff, buff, count, type, root, comm, stream); /* through the PLT, as NCCL does */
}

FAKE(ncclResult_t, ncclReduce,
     (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
      cudaStream_t stream))
{
    (void)send, (void)recv, (void)count, (void)type, (void)op, (void)root, (void)comm, (void)stream;
    return work();
}

#define FAKE_PLAIN(name)                                                                                               \
    FAKE(ncclResult_t, name,                                                                                           \
         (const void *send, void *recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream))      \
    {                                                                                                                  \
        (void)send, (void)recv, (void)count, (void)type, (void)comm, (void)stream;                                     \
        return work();                                                                                                 \
    }
FAKE_PLAIN(ncclAllGather)
FAKE_PLAIN(ncclAlltoAll)

FAKE(ncclResult_t, ncclReduceScatter,
     (const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
      cudaStream_t stream))
{
    (void)send, (void)recv, (void)count, (void)type, (void)op, (void)comm, (void)stream;
    return work();
}

#define FAKE_ROOTED(name)                                                                                              \
    FAKE(ncclResult_t, name,                                                                                           \
         (const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,                  \
          cudaStream_t stream))                                                                                        \
    {                                                                                                                  \
        (void)send, (void)recv, (void)count, (void)type, (void)root, (void)comm, (void)stream;                         \
        return work();                                                                                                 \
    }
FAKE_ROOTED(ncclGather)
FAKE_ROOTED(ncclScatter)

FAKE(ncclResult_t, ncclSend,
     (const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))
{
    (void)send, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return work();
}

FAKE(ncclResult_t, ncclRecv,
     (void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))
{
    (void)recv, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
    return work();
}

/* Stands for a function whose prototype the interposer does not know: a struct by value, floating point and more
 * arguments than there are registers. */
struct team {
    int ranks, rank, stride;
};
FAKE(struct team, ncclTeamRail, (ncclComm_t comm, double factor, int a, int b, int c, int d, int e, int f, float last))
{
    struct team team = {comm->nranks, (int)(factor * 10), a + b + c + d + e + f + (int)last};
    return team;
}
