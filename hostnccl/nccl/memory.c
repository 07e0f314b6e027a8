/*
 * memory.c: ncclMemAlloc, buffer registration and windows.
 *
 * Host memory needs no registration. The handles exist so that the rules can be checked for programs that use them: a
 * handle is valid on its communicator until it is given back, once. Registering a window is a collective call: it waits
 * for all ranks, as in NCCL.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>

struct hn_registration {
    struct hn_registration *next;
    void *buff;
    size_t size;
    bool window;
};

HN_API(ncclResult_t, ncclMemAlloc, void **ptr, size_t size)
{
    cudaError_t err;

    if (!ptr || !size) {
        return hn_fail(ncclInvalidArgument, "ncclMemAlloc: %s", ptr ? "size is 0" : "ptr is NULL");
    }
    err = cudaMalloc(ptr, size);
    return err == cudaSuccess
               ? ncclSuccess
               : hn_fail(ncclUnhandledCudaError, "ncclMemAlloc of %zu bytes: %s", size, cudaGetErrorString(err));
}

HN_API(ncclResult_t, ncclMemFree, void *ptr)
{
    cudaError_t err = cudaFree(ptr);

    return err == cudaSuccess ? ncclSuccess
                              : hn_fail(ncclUnhandledCudaError, "ncclMemFree: %s", cudaGetErrorString(err));
}

void hn_registrations_free(ncclComm_t comm)
{
    for (struct hn_registration *r = comm->registrations, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    comm->registrations = NULL;
}

static struct hn_registration *add(ncclComm_t comm, void *buff, size_t size, bool window)
{
    struct hn_registration *r = malloc(sizeof(*r));

    if (r) {
        pthread_mutex_lock(&comm->lock);
        *r = (struct hn_registration){comm->registrations, buff, size, window};
        comm->registrations = r;
        pthread_mutex_unlock(&comm->lock);
    }
    return r;
}

static bool take_off(ncclComm_t comm, const void *handle, bool window)
{
    struct hn_registration *found = NULL;

    pthread_mutex_lock(&comm->lock);
    for (struct hn_registration **at = &comm->registrations; *at && !found; at = found ? at : &(*at)->next) {
        if (*at == handle && (*at)->window == window) {
            found = *at;
            *at = found->next;
        }
        if (found) {
            break;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    free(found);
    return found != NULL;
}

HN_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclCommRegister");

    if (rc == ncclSuccess && (!buff || !size || !handle)) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommRegister: buff %p size %zu handle %p", buff, size, (void *)handle);
    }
    if (rc == ncclSuccess) {
        *handle = add(comm, buff, size, false);
        rc = *handle ? ncclSuccess : hn_fail(ncclSystemError, "out of memory");
    }
    return rc;
}

HN_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommDeregister");

    if (rc == ncclSuccess && !take_off(comm, handle, false)) {
        rc = hn_fail(ncclInvalidUsage, "ncclCommDeregister: %p is not a registration of this communicator", handle);
    }
    return rc;
}

struct window_args {
    void *buff;
    size_t size;
    ncclWindow_t *out;
};

enum { EXCHANGE_WINDOW = 2 };

static ncclResult_t window_job(struct hn_job *job)
{
    struct window_args *w = job->args;
    uint64_t mine[HN_CTL_WORDS] = {EXCHANGE_WINDOW, w->size};
    uint64_t(*all)[HN_CTL_WORDS] = calloc((size_t)job->comm->nranks, sizeof(*all));
    ncclResult_t rc = all ? hn_exchange(job->comm, mine, all) : hn_fail(ncclSystemError, "out of memory");

    if (rc == ncclSuccess) {
        *w->out = (ncclWindow_t)(void *)add(job->comm, w->buff, w->size, true);
        rc = *w->out ? ncclSuccess : hn_fail(ncclSystemError, "out of memory");
    }
    free(all);
    return rc;
}

static ncclResult_t submit_window(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int flags)
{
    ncclResult_t rc = hn_comm_ready(comm, "ncclCommWindowRegister");
    struct window_args *args;

    if (rc != ncclSuccess) {
        return rc;
    }
    if (!buff || !size || !win || (flags & ~NCCL_WIN_COLL_SYMMETRIC) || (uintptr_t)buff % NCCL_WIN_REQUIRED_ALIGNMENT) {
        return hn_fail(ncclInvalidArgument, "ncclCommWindowRegister: buff %p (4096-aligned) size %zu win %p flags %d",
                       buff, size, (void *)win, flags);
    }
    args = malloc(sizeof(*args));
    if (!args) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    *args = (struct window_args){buff, size, win};
    return hn_submit_job(window_job, comm, comm, comm->blocking, args, free);
}

HN_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
    hn_debug("ncclCommWindowRegister comm %p buff %p size %zu flags %d", (void *)comm, buff, size, winFlags);
    hn_group_start();
    ncclResult_t rc = hn_group_error(submit_window(comm, buff, size, win, winFlags));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommWindowDeregister");

    if (rc == ncclSuccess && win && !take_off(comm, win, true)) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommWindowDeregister: %p is not a window of this communicator",
                     (void *)win);
    }
    return rc;
}
