/*
 * comm.c: the life of a communicator after it was made: references, asynchronous state, finalize, destroy, abort,
 * revoke.
 *
 * The user's handle, every queued plan and every pending job hold a reference, so abort does not have to wait for plans
 * that are still behind other work on their stream: such a plan finds the communicator stopped and returns. Abort does
 * wait for threads that are inside a plan or an exchange, and wakes them until they have left.
 */
#include "hostnccl/nccl/profiler.h"
#include "hostnccl/nccl/window.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hostnccl/cuda/private.h"

ncclResult_t hn_comm_check(ncclComm_t comm, const char *call)
{
    if (!comm) {
        return hn_fail(ncclInvalidArgument, "%s: comm is NULL", call);
    }
    if (comm->magic != hn_comm_magic()) {
        return hn_fail(ncclInvalidArgument, "%s: %p is not a communicator (destroyed?)", call, (void *)comm);
    }
    return ncclSuccess;
}

ncclResult_t hn_comm_ready(ncclComm_t comm, const char *call)
{
    ncclResult_t rc = hn_comm_check(comm, call), state = ncclSuccess;

    if (rc == ncclSuccess) {
        rc = hn_fault_check(call);
    }
    if (rc != ncclSuccess) {
        return rc;
    }
    if (comm->blocking) {
        state = (ncclResult_t)atomic_load(&comm->async);
    } else {
        ncclCommGetAsyncError(comm, &state); /* through the PLT, as NCCL does */
    }
    if (state == ncclInProgress) {
        return hn_fail(ncclInvalidArgument, "%s: the previous operation of the communicator is in progress", call);
    }
    return state;
}

ncclResult_t hn_comm_awake(ncclComm_t comm, const char *call)
{
    ncclResult_t rc = hn_comm_ready(comm, call);

    if (rc == ncclSuccess) {
        pthread_mutex_lock(&comm->lock);
        rc = comm->suspended ? hn_fail(ncclInvalidUsage, "%s: the communicator is suspended", call) : ncclSuccess;
        pthread_mutex_unlock(&comm->lock);
    }
    return rc;
}

ncclResult_t hn_comm_usable(ncclComm_t comm, const char *call)
{
    ncclResult_t rc = hn_comm_awake(comm, call);

    if (rc != ncclSuccess) {
        return rc;
    }
    pthread_mutex_lock(&comm->lock);
    if (comm->revoked || comm->stopped) {
        rc = hn_fail(ncclInvalidUsage, "%s: the communicator was revoked or aborted", call);
    } else if (comm->finalized || comm->destroyed) {
        rc = hn_fail(ncclInvalidArgument, "%s: the communicator was finalized", call);
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

void hn_comm_ref(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->refs++;
    pthread_mutex_unlock(&comm->lock);
}

static void close_pidfds(ncclComm_t comm)
{
    for (int r = 0; comm->pidfds && r < comm->npidfds; r++) {
        if (comm->pidfds[r]) {
            close(comm->pidfds[r] - 1);
        }
    }
    free(comm->pidfds);
    comm->pidfds = NULL;
}

static void comm_free(ncclComm_t comm)
{
    hn_fault_forget(comm);
    comm->magic = 0;
    hn_registrations_free(comm);
    hn_windows_free(comm);
    hn_map_close(&comm->map);
    pthread_cond_destroy(&comm->idle);
    pthread_mutex_destroy(&comm->lock);
    pthread_mutex_destroy(&comm->launch_lock);
    free(comm->send_seq);
    free(comm->recv_seq);
    free(comm->ring_ready);
    free(comm->signals_taken);
    free(comm->ops);
    close_pidfds(comm);
    free(comm->place);
    free(comm->name);
    free(comm);
}

void hn_comm_unref(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    int left = --comm->refs;
    pthread_mutex_unlock(&comm->lock);
    if (left == 0) {
        comm_free(comm);
    }
}

bool hn_comm_release(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool first = !comm->destroyed;
    comm->destroyed = true;
    pthread_mutex_unlock(&comm->lock);
    if (first) {
        hn_profiler_finalize(comm);
        if (comm->event) { /* destroyed here and not with the last reference, which a stream's worker may give up */
            (void)hn_cuda()->cudaEventDestroy(comm->event);
        }
        hn_comm_unref(comm);
    }
    return first;
}

void hn_comm_set_async(ncclComm_t comm, ncclResult_t result)
{
    int now = atomic_load(&comm->async);

    /* The first error stays. */
    while ((now == ncclSuccess || now == ncclInProgress) &&
           !atomic_compare_exchange_weak(&comm->async, &now, (int)result)) {
    }
}

/* With HOSTNCCL_PEER_DEATH=error: looks, during a wait, whether a process of the communicator has ended. */
static int peer_died(void *arg)
{
    ncclComm_t comm = arg;

    for (int r = 0; comm->map.base && r < comm->nranks; r++) {
        struct hn_rank *peer = hn_map_rank(&comm->map, r);
        if (r == comm->rank || !hn_word_get(&peer->joined) || !peer->pid || peer->pid == (uint32_t)getpid()) {
            continue;
        }
        int kept = atomic_load(&comm->pidfds[r]);
        if (!kept) {
            /*
             * A descriptor names the process itself, where a number could be used again. The descriptor of a dead
             * process becomes readable and stays so.
             */
            int fd = (int)syscall(SYS_pidfd_open, (pid_t)peer->pid, 0);
            if (fd < 0 && errno != ESRCH) {
                continue; /* no descriptors left, or an old kernel: nothing is known, so the peer counts as alive */
            }
            if (fd >= 0 && !atomic_compare_exchange_strong(&comm->pidfds[r], &kept, fd + 1)) {
                close(fd); /* the other waiting thread has stored its descriptor first */
            }
            kept = fd < 0 ? 0 : kept ? kept : fd + 1;
        }
        struct pollfd p = {.fd = kept - 1, .events = POLLIN};
        if (!kept || poll(&p, 1, 0) == 1) {
            hn_comm_set_async(comm, hn_fail(ncclRemoteError, "the process of rank %d has ended", r));
            return 1;
        }
    }
    return 0;
}

void hn_comm_watch_peers(ncclComm_t comm)
{
    if (!hn_settings_get()->peer_death_is_error) {
        return;
    }
    close_pidfds(comm);
    comm->pidfds = calloc((size_t)comm->nranks, sizeof(*comm->pidfds));
    if (comm->pidfds) {
        comm->npidfds = comm->nranks;
        comm->exec_wait.check = comm->host_wait.check = peer_died;
        comm->exec_wait.check_arg = comm->host_wait.check_arg = comm;
    }
}

static void pause_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Stops every running and queued plan and waits until no thread runs one. */
void hn_comm_stop(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->stopped = true;
    atomic_store(&comm->exec_wait.stop, 1);
    pthread_cond_broadcast(&comm->idle);
    while (comm->running) {
        pthread_mutex_unlock(&comm->lock);
        hn_wait_kick(&comm->exec_wait);
        pause_ms();
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

static void stop_host(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->aborted = true;
    atomic_store(&comm->host_wait.stop, 1);
    pthread_cond_broadcast(&comm->idle);
    while (comm->host_running || comm->joining) {
        ncclComm_t child = comm->joining;
        if (child) {
            hn_comm_ref(child);
        }
        pthread_mutex_unlock(&comm->lock);
        if (child) { /* a job of this communicator, and what it waits for is the child */
            stop_host(child);
            hn_comm_unref(child);
        }
        hn_wait_kick(&comm->host_wait);
        pause_ms();
        pthread_mutex_lock(&comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

void hn_comm_wait_quiet(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while ((comm->outstanding || comm->graphs) && !comm->stopped) {
        pthread_cond_wait(&comm->idle, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t quiet_job(struct hn_job *job)
{
    hn_comm_wait_quiet(job->comm);
    return ncclSuccess;
}

static ncclResult_t destroy_job(struct hn_job *job)
{
    hn_comm_wait_quiet(job->comm);
    hn_comm_release(job->comm);
    return hn_fault_check("ncclCommDestroy");
}

/* Runs one job as a group of its own, or as part of the caller's group. */
static ncclResult_t run_job(hn_job_fn *run, ncclComm_t comm)
{
    hn_group_start();
    ncclResult_t rc = hn_group_error(hn_submit_job(run, comm, NULL, comm->blocking, NULL, NULL));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclCommFinalize");

    if (rc != ncclSuccess) {
        return hn_group_error(rc);
    }
    hn_debug("ncclCommFinalize comm %p rank %d nranks %d", (void *)comm, comm->rank, comm->nranks);
    pthread_mutex_lock(&comm->lock);
    if (comm->revoked) {
        rc = hn_fail(ncclInvalidUsage, "ncclCommFinalize: the communicator was revoked");
    } else if (comm->finalized) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommFinalize: called twice");
    }
    comm->finalized = true;
    pthread_mutex_unlock(&comm->lock);
    return rc == ncclSuccess ? run_job(quiet_job, comm) : hn_group_error(rc);
}

HN_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
    ncclResult_t rc;

    if (!comm) {
        return ncclSuccess;
    }
    rc = hn_comm_check(comm, "ncclCommDestroy");
    if (rc != ncclSuccess) {
        return hn_group_error(rc);
    }
    hn_debug("ncclCommDestroy comm %p rank %d nranks %d", (void *)comm, comm->rank, comm->nranks);
    rc = run_job(destroy_job, comm);
    return rc == ncclInProgress ? ncclSuccess : rc;
}

HN_API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
    ncclResult_t rc;

    if (!comm) {
        return ncclSuccess;
    }
    rc = hn_comm_check(comm, "ncclCommAbort");
    if (rc != ncclSuccess) {
        return rc;
    }
    hn_debug("ncclCommAbort comm %p rank %d nranks %d", (void *)comm, comm->rank, comm->nranks);
    hn_comm_ref(comm);
    hn_comm_stop(comm);
    stop_host(comm);
    hn_comm_release(comm);
    hn_comm_unref(comm);
    return ncclSuccess;
}

static ncclResult_t revoke_job(struct hn_job *job)
{
    hn_comm_stop(job->comm);
    return ncclSuccess;
}

HN_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommRevoke");

    if (rc == ncclSuccess && revokeFlags != NCCL_REVOKE_DEFAULT) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommRevoke: flags %d", revokeFlags);
    }
    if (rc != ncclSuccess) {
        return hn_group_error(rc);
    }
    hn_debug("ncclCommRevoke comm %p rank %d nranks %d", (void *)comm, comm->rank, comm->nranks);
    pthread_mutex_lock(&comm->lock);
    bool again = comm->revoked;
    comm->revoked = true;
    pthread_mutex_unlock(&comm->lock);
    return again ? ncclSuccess : run_job(revoke_job, comm);
}

HN_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommGetAsyncError");

    if (rc == ncclSuccess && !asyncError) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is NULL");
    }
    if (rc == ncclSuccess) {
        *asyncError = (ncclResult_t)atomic_load(&comm->async);
    }
    return rc;
}
