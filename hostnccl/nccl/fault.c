/*
 * fault.c: a fault of the device: a collective or message was given a null buffer. NCCL looks at no pointer before its
 * kernel does; the kernel then reads or writes address 0, the context dies, and CUDA reports an illegal address at the
 * next call that asks. Neither NCCL's call nor ncclCommGetAsyncError reports anything, and the peers wait for the dead
 * kernel. This library does the same: it tells the runtime, every communicator of the process stops, and queued work
 * does not run.
 *
 * Only address 0 is checked. Host pointers are as good as device pointers here, and only the operating system's kernel
 * knows which other addresses are mapped; unmapped addresses end in a SIGSEGV.
 *
 * The thread that finds the fault is running a plan, and another thread may find a fault in another plan at the same
 * time: neither may wait until the other's communicator has stopped. So a thread made for the purpose waits.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>

#include "hostnccl/cuda/private.h"

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before a communicator's */
static ncclComm_t all;

void hn_fault_watch(ncclComm_t comm)
{
    pthread_mutex_lock(&all_lock);
    comm->next = all;
    all = comm;
    pthread_mutex_unlock(&all_lock);
}

void hn_fault_forget(ncclComm_t comm)
{
    pthread_mutex_lock(&all_lock);
    for (ncclComm_t *at = &all; *at; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&all_lock);
}

/* Finds a communicator that still runs plans, and takes a reference; NULL when all have stopped. */
static ncclComm_t next_running(void)
{
    ncclComm_t found = NULL;

    pthread_mutex_lock(&all_lock);
    for (ncclComm_t c = all; c && !found; c = c->next) {
        pthread_mutex_lock(&c->lock);
        if (c->refs > 0 && !c->stopped) { /* a communicator without references is about to leave the list */
            c->refs++;
            found = c;
        }
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&all_lock);
    return found;
}

static void *stop_all(void *none)
{
    (void)none;
    for (ncclComm_t comm = next_running(); comm; comm = next_running()) {
        hn_comm_stop(comm);
        hn_comm_unref(comm);
    }
    return NULL;
}

bool hn_faulted(void)
{
    const struct hostcuda_private *cuda = hn_cuda();

    return cuda && cuda->fault() != cudaSuccess; /* a call may come before any runtime */
}

int hn_fault(ncclComm_t comm, const char *what)
{
    const struct hostcuda_private *cuda = hn_cuda();
    pthread_t thread;

    hn_debug("rank %d of %d: %s: a null buffer", comm->rank, comm->nranks, what);
    if (cuda->fault_set(cudaErrorIllegalAddress) && !pthread_create(&thread, NULL, stop_all, NULL)) {
        pthread_detach(thread);
    }
    return -1;
}

ncclResult_t hn_fault_check(const char *call)
{
    return hn_faulted() ? hn_fail(ncclUnhandledCudaError, "%s: Cuda failure %d '%s'", call, cudaErrorIllegalAddress,
                                  hn_cuda()->error_text(cudaErrorIllegalAddress))
                        : ncclSuccess;
}
