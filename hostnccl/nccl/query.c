/* query.c: calls that only answer a question: version, texts, size and rank of a communicator. */
#include "hostnccl/nccl/internal.h"

#include <stdio.h>
#include <stdlib.h>

/* The newest release of NCCL whose public functions are all here. Programs ask for the version to choose among them, so
 * it is not that of our header, which is older. */
static const int NEWEST = NCCL_VERSION(2, 32, 3);

static int version_told;

/* A rehearsal should meet the version that the job will meet on its cluster; an older one hides no function. */
static void choose_version(void)
{
    const char *text = getenv("HOSTNCCL_VERSION");
    int major = 0, minor = 0, patch = 0, length = 0;

    version_told = NEWEST;
    if (!text || !*text) {
        return;
    }
    if (sscanf(text, "%2d.%2d.%2d%n", &major, &minor, &patch, &length) == 3 && !text[length] && major >= 2 &&
        minor >= 0 && patch >= 0 && NCCL_VERSION(major, minor, patch) <= NEWEST) {
        version_told = NCCL_VERSION(major, minor, patch);
    } else {
        fprintf(stderr,
                "hostnccl: HOSTNCCL_VERSION=%s is not a release like 2.30.7, or newer than 2.32.3; using 2.32.3\n",
                text);
    }
}

HN_API(ncclResult_t, ncclGetVersion, int *version)
{
    if (!version) {
        return hn_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    }
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_version);
    *version = version_told;
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
