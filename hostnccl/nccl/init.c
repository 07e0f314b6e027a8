/*
 * init.c: making communicators: unique ids, ncclCommInitRank and its relatives.
 *
 * The unique id carries a random 64-bit name. No process listens behind that name, so the id stays valid when the
 * process that made it ends (NCCL's does not: see docs/HOSTNCCL.md). The handle is given to the caller before the ranks
 * have met, so that another thread can abort a communicator whose last rank never comes.
 */
#include "hostnccl/nccl/profiler.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "hostnccl/cuda/private.h"

/* The contents of the 128 bytes of a unique id. */
struct unique_id {
    char magic[8];
    uint64_t name;
    unsigned char random[NCCL_UNIQUE_ID_BYTES - 16];
};
_Static_assert(sizeof(struct unique_id) == sizeof(ncclUniqueId), "the id is passed by value, 128 bytes");
static const char ID_MAGIC[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};
static const uint64_t COMM_MAGIC = 0x636f6d6d6e636c68u;

uint64_t hn_comm_magic(void)
{
    return COMM_MAGIC;
}

HN_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *uniqueId)
{
    struct unique_id id;

    if (!uniqueId) {
        return hn_fail(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    }
    if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id)) {
        return hn_fail(ncclSystemError, "ncclGetUniqueId: no random bytes");
    }
    memcpy(id.magic, ID_MAGIC, sizeof(id.magic));
    memcpy(uniqueId, &id, sizeof(id));
    hn_debug("ncclGetUniqueId %016llx", (unsigned long long)id.name);
    return ncclSuccess;
}

bool hn_id_name(const ncclUniqueId *given, uint64_t *name)
{
    struct unique_id id;

    memcpy(&id, given, sizeof(id));
    *name = id.name;
    return !memcmp(id.magic, ID_MAGIC, sizeof(ID_MAGIC));
}

ncclResult_t hn_comm_allocate(ncclComm_t comm)
{
    size_t n = (size_t)comm->nranks;

    free(comm->send_seq);
    free(comm->recv_seq);
    free(comm->ring_ready);
    free(comm->signals_taken);
    comm->send_seq = calloc(n, sizeof(*comm->send_seq));
    comm->recv_seq = calloc(n, sizeof(*comm->recv_seq));
    comm->ring_ready = calloc(n, sizeof(*comm->ring_ready));
    comm->signals_taken = calloc(n * HN_SIGNALS, sizeof(*comm->signals_taken));
    hn_comm_watch_peers(comm);
    if (!comm->send_seq || !comm->recv_seq || !comm->ring_ready || !comm->signals_taken) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    return ncclSuccess;
}

ncclResult_t hn_comm_new(ncclComm_t *out, int nranks, int rank, uint64_t hash, const ncclConfig_t *config)
{
    ncclComm_t comm = calloc(1, sizeof(*comm));

    *out = NULL;
    if (!comm) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    comm->magic = COMM_MAGIC;
    comm->rank = rank;
    comm->nranks = nranks;
    comm->hash = hash;
    comm->config = *config;
    comm->config.netName = NULL;
    comm->blocking = config->blocking != 0;
    comm->map.fd = -1;
    comm->refs = 1;
    comm->name = config->commName ? strdup(config->commName) : NULL;
    comm->config.commName = comm->name;
    pthread_mutex_init(&comm->launch_lock, NULL);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->idle, NULL);
    ncclResult_t rc = hn_cuda_check();
    if (rc == ncclSuccess) {
        cudaError_t err = hn_cuda()->cudaGetDevice(&comm->device);
        rc = hn_comm_allocate(comm);
        if (err != cudaSuccess) {
            rc = hn_fail(ncclUnhandledCudaError, "cudaGetDevice: %s", hn_cuda()->error_text(err));
        }
        hn_fault_watch(comm);
    }
    if (rc != ncclSuccess) {
        hn_comm_unref(comm);
        return rc;
    }
    *out = comm;
    return ncclSuccess;
}

static ncclResult_t join_job(struct hn_job *job)
{
    ncclComm_t *handle = job->args;
    ncclResult_t rc = hn_join(job->comm);

    if (rc == ncclSuccess) {
        hn_profiler_init(job->comm);
    }
    /* A blocking call that fails leaves no communicator; a nonblocking one leaves it to be aborted. An aborting thread
     * has taken the handle's reference already. */
    if (rc != ncclSuccess && job->blocking && hn_comm_release(job->comm)) {
        hn_publish(handle, NULL);
    }
    return rc;
}

static ncclResult_t init_rank(ncclComm_t *newcomm, int nranks, int rank, int nids, const ncclUniqueId *ids,
                              const ncclConfig_t *given, const char *call)
{
    struct unique_id id;
    uint64_t hash = 0;
    ncclConfig_t config;
    ncclComm_t comm;
    ncclResult_t rc;

    if (!newcomm || !ids) {
        return hn_fail(ncclInvalidArgument, "%s: %s is NULL", call, newcomm ? "commId" : "comm");
    }
    hn_publish(newcomm, NULL);
    if (nranks < 1 || nranks > HN_MAX_RANKS || rank < 0 || rank >= nranks) {
        return hn_fail(ncclInvalidArgument, "%s: rank %d of %d", call, rank, nranks);
    }
    if (nids < 1 || nids > nranks) {
        return hn_fail(ncclInvalidArgument, "%s: %d unique ids for %d ranks", call, nids, nranks);
    }
    for (int i = 0; i < nids; i++) {
        memcpy(&id, &ids[i], sizeof(id));
        if (memcmp(id.magic, ID_MAGIC, sizeof(ID_MAGIC))) {
            return hn_fail(ncclInvalidArgument, "%s: the unique id was not made by ncclGetUniqueId", call);
        }
        hash = i || nids > 1 ? hn_hash(hash, &id, sizeof(id)) : id.name;
    }
    rc = hn_fault_check(call);
    if (rc == ncclSuccess) {
        rc = hn_config_read(&config, given, NULL);
    }
    if (rc == ncclSuccess) {
        rc = hn_comm_new(&comm, nranks, rank, hash, &config);
    }
    /* ncclCommInitAll's ranks are all in this process. */
    if (rc == ncclSuccess && strcmp(call, "ncclCommInitAll") != 0) {
        rc = hn_present_set(comm, call);
        if (rc != ncclSuccess) {
            hn_comm_unref(comm);
        }
    }
    if (rc == ncclSuccess) {
        hn_debug("%s comm %p rank %d nranks %d id %016llx name %s", call, (void *)comm, rank, nranks,
                 (unsigned long long)hash, config.commName ? config.commName : "-");
        rc = hn_submit_job(join_job, comm, NULL, config.blocking != 0, newcomm, NULL);
        if (rc == ncclSuccess) {
            hn_publish(newcomm, comm);
        } else {
            hn_comm_unref(comm);
        }
    }
    return rc;
}

/* Runs one call as a group of its own, or as part of the caller's group. */
static ncclResult_t init_call(ncclComm_t *newcomm, int nranks, int rank, int nids, const ncclUniqueId *ids,
                              const ncclConfig_t *given, const char *call)
{
    hn_group_start();
    ncclResult_t rc = hn_group_error(init_rank(newcomm, nranks, rank, nids, ids, given, call));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    return init_call(comm, nranks, rank, 1, &commId, NULL, "ncclCommInitRank");
}

HN_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
       ncclConfig_t *config)
{
    return init_call(comm, nranks, rank, 1, &commId, config, "ncclCommInitRankConfig");
}

HN_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
       ncclUniqueId *commIds, ncclConfig_t *config)
{
    return init_call(newcomm, nranks, myrank, nId, commIds, config, "ncclCommInitRankScalable");
}

static ncclResult_t check_devices(int ndev, const int *devlist)
{
    int present = 0;
    ncclResult_t rc = hn_cuda_check();

    if (rc != ncclSuccess) {
        return rc;
    }
    if (hn_cuda()->cudaGetDeviceCount(&present) != cudaSuccess) {
        return hn_fail(ncclUnhandledCudaError, "ncclCommInitAll: cudaGetDeviceCount failed");
    }
    for (int i = 0; i < ndev; i++) {
        int device = devlist ? devlist[i] : i;
        if (device < 0 || device >= present) {
            return hn_fail(ncclInvalidArgument, "ncclCommInitAll: device %d of %d", device, present);
        }
        for (int k = 0; devlist && k < i; k++) {
            if (devlist[k] == device) {
                return hn_fail(ncclInvalidUsage, "ncclCommInitAll: device %d twice", device);
            }
        }
    }
    return ncclSuccess;
}

HN_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comm, int ndev, const int *devlist)
{
    ncclUniqueId id;
    int before = 0;
    ncclResult_t rc, end;

    if (!comm || ndev < 1) {
        return hn_fail(ncclInvalidArgument, "ncclCommInitAll: %s", comm ? "ndev is below 1" : "comm is NULL");
    }
    rc = check_devices(ndev, devlist);
    if (rc == ncclSuccess) {
        rc = ncclGetUniqueId(&id); /* through the PLT, as NCCL does */
    }
    if (rc != ncclSuccess) {
        return hn_group_error(rc);
    }
    (void)hn_cuda()->cudaGetDevice(&before);
    hn_group_start();
    for (int i = 0; i < ndev && rc == ncclSuccess; i++) {
        (void)hn_cuda()->cudaSetDevice(devlist ? devlist[i] : i);
        rc = hn_group_error(init_rank(&comm[i], ndev, i, 1, &id, NULL, "ncclCommInitAll"));
    }
    end = hn_group_end();
    (void)hn_cuda()->cudaSetDevice(before);
    return rc != ncclSuccess ? rc : end;
}
