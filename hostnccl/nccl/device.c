/*
 * device.c: the host side of NCCL's device interface.
 *
 * Teams are arithmetic, and the memory of a peer's window is mapped here, so those calls are done. No kernel runs that
 * could use a device communicator: the rest is refused, by name and with a reason, and ncclCommQueryProperties says so
 * beforehand. Giving out an empty device communicator was rejected: a program would believe that its kernels have
 * communicated.
 */
#include "hostnccl/nccl/internal.h"
#include "hostnccl/nccl/window.h"

#include <string.h>

struct hn_team {
    int ranks, rank, stride;
};

static struct hn_team team_of(ncclComm_t comm, const char *call, bool whole)
{
    if (hn_comm_ready(comm, call) != ncclSuccess) {
        return (struct hn_team){0};
    }
    return whole ? (struct hn_team){comm->nranks, comm->rank, 1} : (struct hn_team){1, 0, 1};
}

HN_API(struct hn_team, ncclTeamWorld, ncclComm_t comm)
{
    return team_of(comm, "ncclTeamWorld", true);
}

/* All ranks are on one host and reach each other's windows. */
HN_API(struct hn_team, ncclTeamLsa, ncclComm_t comm)
{
    return team_of(comm, "ncclTeamLsa", true);
}

/* The ranks of other hosts at the same place: this one alone. */
HN_API(struct hn_team, ncclTeamRail, ncclComm_t comm)
{
    return team_of(comm, "ncclTeamRail", false);
}

HN_API(int, ncclTeamRankToWorld, ncclComm_t comm, struct hn_team team, int rank)
{
    return comm->rank + (rank - team.rank) * team.stride;
}

HN_API(int, ncclTeamRankToLsa, ncclComm_t comm, struct hn_team team, int rank)
{
    return comm->rank + (rank - team.rank) * team.stride;
}

/* Slots of an all-to-all inside a kernel; arithmetic that needs no device. */
HN_API(int, ncclLLA2ACalcSlots, int maxElts, int maxEltSize)
{
    return maxElts * ((maxEltSize + 7) / 8);
}

/* The leading members of ncclCommProperties_t; what the caller's version lacks is not written. */
struct properties {
    size_t size;
    unsigned magic, version;
    int rank, nranks, cuda_device, nvml_device;
    bool has_device_api, has_multimem;
    int gin_type, lsa_teams;
    bool has_host_rma;
    int railed_gin_type;
};

HN_API(ncclResult_t, ncclCommQueryProperties, ncclComm_t comm, void *props)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclCommQueryProperties");
    struct properties p;
    size_t size = 0;

    if (rc != ncclSuccess) {
        return rc;
    }
    if (props) {
        memcpy(&size, props, sizeof(size));
    }
    if (size < offsetof(struct properties, rank)) {
        return hn_fail(ncclInvalidUsage, "ncclCommQueryProperties: the structure was not initialised");
    }
    size = size < sizeof(p) ? size : sizeof(p);
    memcpy(&p, props, offsetof(struct properties, rank));
    p.rank = comm->rank;
    p.nranks = comm->nranks;
    p.cuda_device = p.nvml_device = comm->device;
    p.has_device_api = p.has_multimem = false;
    p.gin_type = p.railed_gin_type = 0;
    p.lsa_teams = 1;
    p.has_host_rma = true;
    memcpy(props, &p, size);
    return ncclSuccess;
}

static ncclResult_t peer_pointer(ncclWindow_t window, size_t offset, int peer, void **out, const char *call)
{
    char *base = NULL;
    size_t size = 0;

    if (!window || !out) {
        return hn_fail(ncclInvalidArgument, "%s: %s is NULL", call, window ? "the result pointer" : "the window");
    }
    ncclResult_t rc = hn_window_of_peer(window, peer, &base, &size);
    if (rc == ncclSuccess && offset >= size) {
        rc = hn_fail(ncclInvalidArgument, "%s: offset %zu of %zu bytes", call, offset, size);
    }
    if (rc == ncclSuccess) {
        *out = base + offset;
    }
    return rc;
}

HN_API(ncclResult_t, ncclGetPeerDevicePointer, ncclWindow_t window, size_t offset, int peer, void **outPtr)
{
    return peer_pointer(window, offset, peer, outPtr, "ncclGetPeerDevicePointer");
}

HN_API(ncclResult_t, ncclGetLsaDevicePointer, ncclWindow_t window, size_t offset, int lsaRank, void **outPtr)
{
    return peer_pointer(window, offset, lsaRank, outPtr, "ncclGetLsaDevicePointer");
}

HN_API(void, ncclParamDumpAll, void)
{
}

#define HN_REFUSED(name, reason)                                                                                       \
    HN_API(ncclResult_t, name, void)                                                                                   \
    {                                                                                                                  \
        return hn_fail(ncclInvalidUsage, #name ": not on hostnccl: " reason);                                          \
    }
#include "hostnccl/nccl/refused.def"
#undef HN_REFUSED
