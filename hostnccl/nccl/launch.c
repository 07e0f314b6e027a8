/*
 * launch.c: puts a plan on its streams.
 *
 * A plan runs on the first stream that its calls named. As in NCCL, that stream first waits for what the other streams
 * of the group hold so far, and the other streams wait for the plan. This file makes the memory real that the plan will
 * write, on the caller's thread, so that a full /dev/shm is an error of the call.
 */
#include "hostnccl/nccl/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hostnccl/cuda/private.h"

#define CUDA_TRY(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t cuda_error = (call);                                                                               \
        if (cuda_error != cudaSuccess) {                                                                               \
            rc = hn_fail(ncclUnhandledCudaError, "%s: %s", #call, cuda->error_text(cuda_error));                       \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

static ncclResult_t reserve(ncclComm_t comm, size_t at, size_t size)
{
    char dir[256] = "?";

    if (!hn_map_reserve(&comm->map, at, size)) {
        return ncclSuccess;
    }
    int err = errno;
    (void)hn_segment_dir(dir, sizeof(dir));
    return hn_fail(ncclSystemError, "no room for %zu bytes of communication buffer in %s: %s", size, dir,
                   strerror(err));
}

/* Under the communicator's lock. */
static ncclResult_t reserve_outbox(ncclComm_t comm, size_t need)
{
    size_t size = need < comm->map.chunk ? need : comm->map.chunk;

    if (size <= comm->outbox_ready) {
        return ncclSuccess;
    }
    for (uint32_t slot = 0; slot < HN_SLOTS; slot++) {
        ncclResult_t rc = reserve(comm, hn_map_slot_at(&comm->map, comm->rank, slot), size);
        if (rc != ncclSuccess) {
            return rc;
        }
    }
    comm->outbox_ready = size;
    return ncclSuccess;
}

static ncclResult_t reserve_ring(ncclComm_t comm, int peer, size_t need)
{
    size_t size = need < comm->map.window ? need : comm->map.window;

    if (size <= comm->ring_ready[peer]) {
        return ncclSuccess;
    }
    ncclResult_t rc = reserve(comm, hn_map_ring_at(&comm->map, comm->rank, peer), size);
    if (rc == ncclSuccess) {
        comm->ring_ready[peer] = size;
    }
    return rc;
}

/* Makes real all the memory that the plan will write. Under the communicator's lock. */
static ncclResult_t reserve_plan(const struct hn_plan *plan)
{
    ncclComm_t comm = plan->comm;
    ncclResult_t rc = ncclSuccess;

    for (size_t i = 0; i < plan->ncolls && comm->nranks > 1 && rc == ncclSuccess; i++) {
        const struct hn_coll *c = &plan->colls[i];
        if (hn_leaves_out(c->bytes)) {
            continue;
        }
        rc = reserve_outbox(comm, c->kind == HN_REDUCESCATTER ? c->bytes * (size_t)comm->nranks : c->bytes);
    }
    for (size_t i = 0; i < plan->np2ps && rc == ncclSuccess; i++) {
        const struct hn_p2p *op = &plan->p2ps[i];
        if (op->peer != comm->rank && !hn_is_absent(comm, op->peer) && op->is_send && op->bytes &&
            !hn_leaves_out_message(op)) {
            /* While bytes before it have not been taken, a message may begin anywhere in the ring. */
            rc = reserve_ring(comm, op->peer, hn_settings_get()->eager_bytes ? comm->map.window : op->bytes);
        }
    }
    return rc;
}

ncclResult_t hn_admit(struct hn_plan *plan)
{
    ncclComm_t comm = plan->comm;

    pthread_mutex_lock(&comm->lock);
    ncclResult_t rc = reserve_plan(plan);
    if (rc == ncclSuccess) {
        for (size_t i = 0; i < plan->np2ps; i++) {
            struct hn_p2p *op = &plan->p2ps[i];
            if (op->peer != comm->rank) {
                op->seq = op->is_send ? ++comm->send_seq[op->peer] : ++comm->recv_seq[op->peer];
            }
        }
        plan->ticket = comm->tickets++;
        comm->outstanding++;
        comm->refs++;
    }
    pthread_mutex_unlock(&comm->lock);
    return rc;
}

/* Makes real the memory of a captured plan, so that a full /dev/shm is an error of the call and not of a launch. */
static ncclResult_t reserve_captured(struct hn_plan *plan)
{
    pthread_mutex_lock(&plan->comm->lock);
    ncclResult_t rc = reserve_plan(plan);
    pthread_mutex_unlock(&plan->comm->lock);
    return rc;
}

static void dismiss(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->tickets--;
    comm->outstanding--;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
    hn_comm_unref(comm);
}

static void *itself(void *plan)
{
    return plan;
}

/*
 * Unlike a host function of the program, a plan runs even after a fault of the device: it must give up its place in the
 * order.
 */
static const struct hostcuda_prepared as_it_is = {.prepare = itself, .run = hn_plan_run};

static ncclResult_t enqueue(struct hn_plan *plan, cudaStream_t *streams, size_t nstreams)
{
    ncclComm_t comm = plan->comm;
    const struct hostcuda_private *cuda = hn_cuda();
    cudaEvent_t event = comm->event;
    ncclResult_t rc = ncclSuccess;
    bool launched = false;

    if (nstreams > 1 && !event) {
        CUDA_TRY(cuda->cudaEventCreateWithFlags(&comm->event, cudaEventDisableTiming));
        event = comm->event;
    }
    for (size_t i = 1; i < nstreams; i++) {
        CUDA_TRY(cuda->cudaEventRecordWithFlags(event, streams[i], 0));
        CUDA_TRY(cuda->cudaStreamWaitEvent(streams[0], event, 0));
    }
    launched = plan->graph != NULL; /* a captured plan counts as launched in any case: it has no place to give up */
    CUDA_TRY(plan->graph ? hn_capture_plan(plan, streams[0], plan->graph)
                         : cuda->launch_prepared(streams[0], &as_it_is, plan));
    launched = true; /* the plan and the communicator may be gone after this */
    if (nstreams > 1) {
        CUDA_TRY(cuda->cudaEventRecordWithFlags(event, streams[0], 0));
    }
    for (size_t i = 1; i < nstreams; i++) {
        CUDA_TRY(cuda->cudaStreamWaitEvent(streams[i], event, 0));
    }
out:
    if (!launched) {
        if (!plan->graph) {
            dismiss(comm);
        }
        hn_plan_free(plan);
    }
    return rc;
}

ncclResult_t hn_launch(struct hn_plan *plan)
{
    ncclComm_t comm = plan->comm;
    cudaStream_t *streams = plan->streams;
    size_t nstreams = plan->nstreams;
    const int device = comm->device;
    int before = device;
    ncclResult_t rc;

    (void)hn_cuda()->cudaGetDevice(&before);
    if (before != device) {
        (void)hn_cuda()->cudaSetDevice(
            device); /* a null stream means the default stream of the communicator's device */
    }
    /*
     * One launch at a time: tickets must have the order of the stream, or two plans of one stream would wait for each
     * other.
     */
    hn_comm_ref(comm);
    pthread_mutex_lock(&comm->launch_lock);
    rc = plan->graph ? reserve_captured(plan) : hn_admit(plan);
    if (rc == ncclSuccess) {
        plan->streams = NULL;
        rc = enqueue(plan, streams, nstreams);
    } else {
        plan->streams = NULL;
        hn_plan_free(plan);
    }
    pthread_mutex_unlock(&comm->launch_lock);
    hn_comm_unref(comm);
    free(streams);
    if (before != device) {
        (void)hn_cuda()->cudaSetDevice(before);
    }
    return rc;
}
