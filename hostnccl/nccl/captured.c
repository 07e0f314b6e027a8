/*
 * captured.c: plans on captured streams. A call on a stream that is being captured makes a node of the graph, and
 * nothing runs. The node holds the plan as a pattern; every launch of the graph makes a plan from it, which takes its
 * place in the communicator's order at that moment, on the thread that launches, like a plan that was never captured.
 * So captured and other work of one communicator mixes in the order of the launches, and a launch is a collective act:
 * a launch that one rank leaves out hangs its peers.
 *
 * Taking the place when the node runs, on a worker, was rejected: work that was enqueued after the launch would be
 * ahead of the launch in the communicator's order and behind it on the stream, and both would wait for ever.
 *
 * A user object keeps the pattern as long as the graph, and the graphs made from it, live. The pattern counts as work
 * of the communicator: as in NCCL, finalize and destroy wait until the last such graph is gone.
 */
#include "hostnccl/nccl/internal.h"

#include <stdlib.h>
#include <string.h>

#include "hostnccl/cuda/private.h"

ncclResult_t hn_capture_of(cudaStream_t stream, cudaGraph_t *graph)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error;

    *graph = NULL;
    error = hn_cuda()->capture_info(stream, &status, NULL, graph, NULL, NULL);
    if (error != cudaSuccess) {
        return hn_fail(ncclUnhandledCudaError, "cudaStreamGetCaptureInfo: %s", hn_cuda()->error_text(error));
    }
    if (status == cudaStreamCaptureStatusInvalidated) {
        return hn_fail(ncclUnhandledCudaError, "the capture of the stream is not valid any more");
    }
    if (status != cudaStreamCaptureStatusActive) {
        *graph = NULL;
    }
    return ncclSuccess;
}

/* Makes a plan from the pattern, to run once. NULL without memory. */
static struct hn_plan *plan_like(const struct hn_plan *pattern)
{
    struct hn_plan *plan = calloc(1, sizeof(*plan));

    if (!plan) {
        return NULL;
    }
    plan->comm = pattern->comm;
    plan->ncolls = pattern->ncolls;
    plan->np2ps = pattern->np2ps;
    plan->nrmas = pattern->nrmas;
    plan->colls = malloc((plan->ncolls + 1) * sizeof(*plan->colls));
    plan->p2ps = malloc((plan->np2ps + 1) * sizeof(*plan->p2ps));
    plan->rmas = malloc((plan->nrmas + 1) * sizeof(*plan->rmas));
    if (!plan->colls || !plan->p2ps || !plan->rmas) {
        hn_plan_free(plan);
        return NULL;
    }
    if (plan->ncolls) {
        memcpy(plan->colls, pattern->colls, plan->ncolls * sizeof(*plan->colls));
    }
    for (size_t i = 0; i < plan->ncolls; i++) {
        plan->colls[i].captured = true;
    }
    if (plan->np2ps) {
        memcpy(plan->p2ps, pattern->p2ps, plan->np2ps * sizeof(*plan->p2ps));
    }
    if (plan->nrmas) {
        memcpy(plan->rmas, pattern->rmas, plan->nrmas * sizeof(*plan->rmas));
    }
    return plan;
}

/* Runs at every launch. An error here is fatal for the communicator, because the launch itself cannot report it. */
static void *prepare(void *pattern)
{
    const struct hn_plan *captured = pattern;
    ncclComm_t comm = captured->comm;
    struct hn_plan *plan = plan_like(captured);
    ncclResult_t rc = plan ? ncclSuccess : hn_fail(ncclSystemError, "out of memory");

    if (plan) {
        pthread_mutex_lock(&comm->launch_lock);
        rc = hn_admit(plan);
        pthread_mutex_unlock(&comm->launch_lock);
    }
    if (rc != ncclSuccess) {
        hn_comm_set_async(comm, rc);
        hn_plan_free(plan);
        return NULL;
    }
    return plan;
}

static void run(void *plan)
{
    if (plan) {
        hn_plan_run(plan);
    }
}

/* Runs when the last graph with the pattern is gone, on a thread of the runtime. */
static void forget(void *pattern)
{
    struct hn_plan *captured = pattern;
    ncclComm_t comm = captured->comm;

    hn_plan_free(captured);
    pthread_mutex_lock(&comm->lock);
    comm->graphs--;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
    hn_comm_unref(comm);
}

cudaError_t hn_capture_plan(struct hn_plan *plan, cudaStream_t stream, cudaGraph_t graph)
{
    static const struct hostcuda_prepared how = {.prepare = prepare, .run = run};
    const struct hostcuda_private *table = hn_cuda();
    ncclComm_t comm = plan->comm;
    cudaUserObject_t object;

    cudaError_t error = table->cudaUserObjectCreate(&object, plan, forget, 1, cudaUserObjectNoDestructorSync);
    if (error != cudaSuccess) {
        hn_plan_free(plan);
        return error;
    }
    pthread_mutex_lock(&comm->lock);
    comm->refs++;
    comm->graphs++;
    pthread_mutex_unlock(&comm->lock);
    error = table->cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    if (error != cudaSuccess) {
        (void)table->cudaUserObjectRelease(object, 1);
        return error;
    }
    return table->launch_prepared(stream, &how, plan);
}
