/*
 * memory.c: ncclMemAlloc and buffer registration.
 *
 * Host memory needs no registration. The handles exist so that the rules can be checked for programs that use them: a
 * handle is valid on its communicator until it is given back, once.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>

#include "hostnccl/cuda/private.h"

struct hn_registration {
    struct hn_registration *next;
    void *buff;
    size_t size;
};

HN_API(ncclResult_t, ncclMemAlloc, void **ptr, size_t size)
{
    cudaError_t err;
    ncclResult_t rc;

    if (!ptr || !size) {
        return hn_fail(ncclInvalidArgument, "ncclMemAlloc: %s", ptr ? "size is 0" : "ptr is NULL");
    }
    rc = hn_cuda_check();
    if (rc != ncclSuccess) {
        return rc;
    }
    err = hn_cuda()->cudaMalloc(ptr, size);
    return err == cudaSuccess
               ? ncclSuccess
               : hn_fail(ncclUnhandledCudaError, "ncclMemAlloc of %zu bytes: %s", size, hn_cuda()->error_text(err));
}

HN_API(ncclResult_t, ncclMemFree, void *ptr)
{
    ncclResult_t rc = hn_cuda_check();
    if (rc != ncclSuccess) {
        return rc;
    }
    cudaError_t err = hn_cuda()->cudaFree(ptr);

    return err == cudaSuccess ? ncclSuccess
                              : hn_fail(ncclUnhandledCudaError, "ncclMemFree: %s", hn_cuda()->error_text(err));
}

void hn_registrations_free(ncclComm_t comm)
{
    for (struct hn_registration *r = comm->registrations, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    comm->registrations = NULL;
}

static struct hn_registration *add(ncclComm_t comm, void *buff, size_t size)
{
    struct hn_registration *r = malloc(sizeof(*r));

    if (r) {
        pthread_mutex_lock(&comm->lock);
        *r = (struct hn_registration){comm->registrations, buff, size};
        comm->registrations = r;
        pthread_mutex_unlock(&comm->lock);
    }
    return r;
}

static bool take_off(ncclComm_t comm, const void *handle)
{
    struct hn_registration *found = NULL;

    pthread_mutex_lock(&comm->lock);
    for (struct hn_registration **at = &comm->registrations; *at && !found; at = found ? at : &(*at)->next) {
        if (*at == handle) {
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
        *handle = add(comm, buff, size);
        rc = *handle ? ncclSuccess : hn_fail(ncclSystemError, "out of memory");
    }
    return rc;
}

HN_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void *handle)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommDeregister");

    if (rc == ncclSuccess && !take_off(comm, handle)) {
        rc = hn_fail(ncclInvalidUsage, "ncclCommDeregister: %p is not a registration of this communicator", handle);
    }
    return rc;
}
