/* query.c: calls that only answer a question: version, texts, size and rank of a communicator. */
#include "hostnccl/nccl/internal.h"

HN_API(ncclResult_t, ncclGetVersion, int *version)
{
    if (!version) {
        return hn_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

HN_API(const char *, ncclGetErrorString, ncclResult_t result)
{
    switch ((int)result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (hostnccl: see ncclGetLastError)";
    case ncclSystemError:
        return "unhandled system error (hostnccl: see ncclGetLastError)";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "operation in progress";
    default:
        return "unknown result code";
    }
}

HN_API(const char *, ncclGetLastError, ncclComm_t comm)
{
    (void)comm;
    return hn_last_error();
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
HN_API(void, ncclResetDebugInit, void)
{
}
#pragma GCC diagnostic pop

static ncclResult_t tell(ncclComm_t comm, int *out, const char *call, int (*get)(ncclComm_t))
{
    ncclResult_t rc = hn_comm_check(comm, call);

    if (rc == ncclSuccess && !out) {
        rc = hn_fail(ncclInvalidArgument, "%s: the result pointer is NULL", call);
    }
    if (rc == ncclSuccess) {
        rc = hn_comm_ready(comm, call);
    }
    if (rc == ncclSuccess) {
        *out = get(comm);
    }
    return rc;
}

static int get_count(ncclComm_t comm)
{
    return comm->nranks;
}

static int get_device(ncclComm_t comm)
{
    return comm->device;
}

static int get_rank(ncclComm_t comm)
{
    return comm->rank;
}

HN_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
    return tell(comm, count, "ncclCommCount", get_count);
}

HN_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
    return tell(comm, device, "ncclCommCuDevice", get_device);
}

HN_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
    return tell(comm, rank, "ncclCommUserRank", get_rank);
}
