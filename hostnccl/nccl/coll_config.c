/*
 * coll_config.c: the collectives of 2.31 that take settings of one call.
 *
 * The settings ask for a way of moving the bytes, and here is only one way; so they are accepted and change nothing.
 * One of them is more than a wish: an event that is to be recorded at the launch (2.32). A program that waits for that
 * event would go on too early, so a call with it is refused.
 */
#include "hostnccl/include/nccl_newer.h"
#include "hostnccl/nccl/internal.h"

#include <string.h>

/* Where a configuration of 2.32 has its event; shorter ones have none. */
enum { EVENT_AT = 64 };

static ncclResult_t check_config(const ncclCollConfig_t *config, const char *call)
{
    const char *bytes = (const char *)config;
    void *event = NULL;
    size_t size = 0;

    if (!config) {
        return ncclSuccess;
    }
    memcpy(&size, bytes, sizeof(size)); /* the first member, as in every structure of NCCL that carries its size */
    if (size >= EVENT_AT + sizeof(event)) {
        memcpy(&event, bytes + EVENT_AT, sizeof(event));
    }
    return event ? hn_group_error(hn_fail(ncclInvalidUsage, "%s: hostnccl records no launchCompletionEvent", call))
                 : ncclSuccess;
}

/* Defines ncclNAMEConfig: the same call without settings, by the name that no tool wraps a second time. */
#define WITH_CONFIG(name, parameters, arguments)                                                                       \
    HN_API(ncclResult_t, name##Config, PARAMETERS parameters, ncclComm_t comm, cudaStream_t stream,                    \
           const ncclCollConfig_t *config)                                                                             \
    {                                                                                                                  \
        ncclResult_t rc = check_config(config, #name "Config");                                                        \
        return rc != ncclSuccess ? rc : p##name arguments;                                                             \
    }
#define PARAMETERS(...) __VA_ARGS__

WITH_CONFIG(ncclAllReduce,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op),
            (sendbuff, recvbuff, count, datatype, op, comm, stream))
WITH_CONFIG(ncclBroadcast, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
WITH_CONFIG(ncclReduce,
            (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root),
            (sendbuff, recvbuff, count, datatype, op, root, comm, stream))
WITH_CONFIG(ncclAllGather, (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype),
            (sendbuff, recvbuff, sendcount, datatype, comm, stream))
WITH_CONFIG(ncclReduceScatter,
            (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op),
            (sendbuff, recvbuff, recvcount, datatype, op, comm, stream))
WITH_CONFIG(ncclAlltoAll, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype),
            (sendbuff, recvbuff, count, datatype, comm, stream))
WITH_CONFIG(ncclGather, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
WITH_CONFIG(ncclScatter, (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root),
            (sendbuff, recvbuff, count, datatype, root, comm, stream))
