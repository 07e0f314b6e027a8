/*
 * suspend.c: suspend and resume, of a communicator that gives its buffers back for a while.
 *
 * Both are collective calls here, as the releases that have them let all ranks meet: when every rank has finished its
 * work, no rank reads another's buffers any more, so each punches its own out of the shared file. The next call after a
 * resume reserves them again.
 */
#include "hostnccl/include/nccl_newer.h"
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

enum { EXCHANGE_SUSPEND = 5, EXCHANGE_RESUME = 6 };

static ncclResult_t meet(ncclComm_t comm, uint64_t what)
{
    const uint64_t mine[HN_CTL_WORDS] = {what};
    uint64_t(*all)[HN_CTL_WORDS] = calloc((size_t)comm->nranks, sizeof(*all));
    ncclResult_t rc = all ? hn_exchange(comm, mine, all) : hn_fail(ncclSystemError, "out of memory");

    free(all);
    return rc;
}

/* Own buffers that are real memory. With the communicator's lock. */
static uint64_t reserved(ncclComm_t comm)
{
    uint64_t sum = HN_SLOTS * (uint64_t)comm->outbox_ready;

    for (int r = 0; r < comm->nranks; r++) {
        sum += comm->ring_ready[r];
    }
    return sum;
}

static void give_back(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    for (uint32_t slot = 0; slot < HN_SLOTS && comm->outbox_ready; slot++) {
        hn_map_release(&comm->map, hn_map_slot_at(&comm->map, comm->rank, slot), comm->outbox_ready);
    }
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->ring_ready[r]) {
            hn_map_release(&comm->map, hn_map_ring_at(&comm->map, comm->rank, r), comm->ring_ready[r]);
        }
        comm->ring_ready[r] = 0;
    }
    comm->outbox_ready = 0;
    pthread_mutex_unlock(&comm->lock);
}

static void set_suspended(ncclComm_t comm, bool suspended)
{
    pthread_mutex_lock(&comm->lock);
    comm->suspended = suspended;
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t suspend_job(struct hn_job *job)
{
    hn_comm_wait_quiet(job->comm);
    ncclResult_t rc = meet(job->comm, EXCHANGE_SUSPEND);
    if (rc == ncclSuccess) {
        give_back(job->comm);
        set_suspended(job->comm, true);
    }
    return rc;
}

static ncclResult_t resume_job(struct hn_job *job)
{
    ncclResult_t rc = meet(job->comm, EXCHANGE_RESUME);
    if (rc == ncclSuccess) {
        set_suspended(job->comm, false);
    }
    return rc;
}

static bool is_suspended(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool suspended = comm->suspended;
    pthread_mutex_unlock(&comm->lock);
    return suspended;
}

/* One call: as a group of its own, or as part of the caller's. */
static ncclResult_t change(ncclComm_t comm, bool suspend, const char *call)
{
    ncclResult_t rc = hn_comm_ready(comm, call);

    if (rc == ncclSuccess && is_suspended(comm) == suspend) {
        rc = hn_fail(ncclInvalidUsage, "%s: the communicator is %s", call, suspend ? "suspended" : "not suspended");
    }
    hn_group_start();
    if (rc == ncclSuccess) {
        rc = hn_submit_job(suspend ? suspend_job : resume_job, comm, comm, comm->blocking, NULL, NULL);
    }
    (void)hn_group_error(rc);
    ncclResult_t end = hn_group_end();
    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommSuspend, ncclComm_t comm, int flags)
{
    hn_debug("ncclCommSuspend comm %p flags %d", (void *)comm, flags);
    if (flags != NCCL_SUSPEND_MEM) {
        return hn_group_error(hn_fail(ncclInvalidArgument, "ncclCommSuspend: flags %d", flags));
    }
    return change(comm, true, "ncclCommSuspend");
}

HN_API(ncclResult_t, ncclCommResume, ncclComm_t comm)
{
    hn_debug("ncclCommResume comm %p", (void *)comm);
    return change(comm, false, "ncclCommResume");
}

HN_API(ncclResult_t, ncclCommMemStats, ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclCommMemStats");

    if (rc == ncclSuccess && (!value || (unsigned)stat > ncclStatGpuMemTotal)) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommMemStats: statistic %d, result %p", (int)stat, (void *)value);
    }
    if (rc != ncclSuccess) {
        return rc;
    }
    pthread_mutex_lock(&comm->lock);
    uint64_t buffers = reserved(comm), persists = comm->map.outbox_at / (uint64_t)comm->nranks;
    *value = stat == ncclStatGpuMemSuspend     ? buffers
             : stat == ncclStatGpuMemSuspended ? comm->suspended
             : stat == ncclStatGpuMemPersist   ? persists
                                               : buffers + persists;
    pthread_mutex_unlock(&comm->lock);
    return ncclSuccess;
}
