/*
 * calls.h: the calls that every way of binding makes, and what they must leave in the ring: one rank, one communicator,
 * all-reduces, a group, a call that NCCL makes another public call in (ncclBcast), the end.
 *
 * Included after the functions are there under their names: by linking (calls_linked.c), or as pointers (program.c).
 */
#ifndef ROLL_TESTS_INTERPOSER_BINDING_CALLS_H
#define ROLL_TESTS_INTERPOSER_BINDING_CALLS_H

#include <nccl.h>

#include <stdio.h>

struct calls {
    ncclResult_t (*get_version)(int *);
    ncclResult_t (*get_unique_id)(ncclUniqueId *);
    ncclResult_t (*init_rank)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
    ncclResult_t (*bcast)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*destroy)(ncclComm_t);
};

/* The names, in the order of the struct. */
#define CALLS_NAMES                                                                                                    \
    {                                                                                                                  \
        "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce", "ncclBcast", "ncclGroupStart",       \
            "ncclGroupEnd", "ncclCommDestroy"                                                                          \
    }
#define CALLS_COUNT 8

#define CALLS_CHECK(call)                                                                                              \
    do {                                                                                                               \
        ncclResult_t calls_result = (call);                                                                            \
        if (calls_result != ncclSuccess) {                                                                             \
            fprintf(stderr, "%s: %d\n", #call, (int)calls_result);                                                     \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* 0 when all went well. */
static inline int calls_make(const struct calls *nccl)
{
    static float data[4];
    ncclUniqueId id;
    ncclComm_t comm;
    int version = 0;
    CALLS_CHECK(nccl->get_version(&version));
    CALLS_CHECK(nccl->get_unique_id(&id));
    CALLS_CHECK(nccl->init_rank(&comm, 1, id, 0));
    for (int i = 0; i < 3; i++) {
        CALLS_CHECK(nccl->all_reduce(data, data, 4, ncclFloat, ncclSum, comm, NULL));
    }
    CALLS_CHECK(nccl->group_start());
    CALLS_CHECK(nccl->all_reduce(data, data, 2, ncclFloat, ncclSum, comm, NULL));
    CALLS_CHECK(nccl->group_end());
    CALLS_CHECK(nccl->bcast(data, 4, ncclFloat, 0, comm, NULL));
    CALLS_CHECK(nccl->destroy(comm));
    return version >= 20000 ? 0 : 2;
}

#endif
