/*
 * tagged.c: NCCLs that can be told apart: every call returns the number that the file was compiled with. As NCCL does,
 * ncclBcast calls ncclBroadcast by its public name, and one team helper another: a call from here must stay in this
 * NCCL as well. ncclReduce ends with such a call, which has fewer arguments and which compilers make a jump.
 */
typedef struct {
    char bytes[128];
} id_t128;

#define TAGGED(name, params)                                                                                           \
    int name params __attribute__((weak, alias("p" #name)));                                                           \
    int p##name params;                                                                                                \
    int p##name params

TAGGED(ncclGetVersion, (int *version))
{
    *version = 22809;
    return TAG;
}

TAGGED(ncclCommInitRank, (void **comm, int nranks, id_t128 id, int rank))
{
    (void)id;
    (void)rank;
    *comm = (void *)(unsigned long)(nranks * 0x1000 + TAG);
    return 0;
}

TAGGED(ncclBroadcast, (const void *send, void *recv, unsigned long n, int type, int root, void *comm, void *stream))
{
    (void)send, (void)recv, (void)n, (void)type, (void)root, (void)comm, (void)stream;
    return TAG;
}

TAGGED(ncclBcast, (void *data, unsigned long n, int type, int root, void *comm, void *stream))
{
    return ncclBroadcast(data, data, n, type, root, comm, stream);
}

TAGGED(ncclAllReduce, (const void *send, void *recv, unsigned long n, int type, int op, void *comm, void *stream))
{
    (void)send, (void)recv, (void)n, (void)type, (void)op, (void)comm, (void)stream;
    return TAG;
}

TAGGED(ncclReduce,
       (const void *send, void *recv, unsigned long n, int type, int op, int root, void *comm, void *stream))
{
    (void)root;
    return ncclAllReduce(send, recv, n, type, op, comm, stream);
}

TAGGED(ncclTeamRankToWorld, (void *comm, int rank))
{
    (void)comm;
    return TAG + rank;
}

TAGGED(ncclTeamRankToLsa, (void *comm, int rank))
{
    volatile int world = ncclTeamRankToWorld(
        comm, rank); /* volatile, so that the compiler makes no jump: a jump would not show which NCCL calls */
    return world;
}
