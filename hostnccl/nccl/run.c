/*
 * run.c: runs plans on the worker of a stream.
 *
 * A plan is a host function on the user's stream, so it starts when everything before it on the stream is done and
 * holds the stream until it returns: exactly what NCCL's kernel does. Plans of one communicator run one at a time in
 * the order of their launch, whatever streams they are on, because they share the communicator's buffers; NCCL orders
 * its kernels likewise. A hung collective is a worker asleep on a futex: it costs nothing and dies with the process.
 */
#include "hostnccl/nccl/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void hn_plan_free(struct hn_plan *plan)
{
    if (plan) {
        free(plan->colls);
        free(plan->p2ps);
        free(plan->rmas);
        free(plan->streams);
        free(plan);
    }
}

/* Waits for the plans before this one. false: the communicator was stopped, nothing may run. */
static bool enter(ncclComm_t comm, const struct hn_plan *plan)
{
    bool run;

    pthread_mutex_lock(&comm->lock);
    while (!comm->stopped && comm->turn != plan->ticket) {
        pthread_cond_wait(&comm->idle, &comm->lock);
    }
    run = !comm->stopped && !hn_faulted();
    comm->running += run;
    pthread_mutex_unlock(&comm->lock);
    return run;
}

static void leave(ncclComm_t comm, bool ran)
{
    pthread_mutex_lock(&comm->lock);
    comm->running -= ran;
    comm->turn++;
    comm->outstanding--;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
    hn_comm_unref(comm);
}

/*
 * An all-gather of blocks of several sizes is a group of broadcasts, one from each rank. Where the root of one of them
 * is absent, the rank that stands in for it gives what it gives in its own broadcast, the n-th for the n-th.
 */
static void stand_in(struct hn_plan *plan)
{
    const ncclComm_t comm = plan->comm;

    for (size_t i = 0; comm->place && comm->rank == comm->lowest && i < plan->ncolls; i++) {
        struct hn_coll *c = &plan->colls[i];
        size_t before = 0;
        if (c->kind != HN_BROADCAST || !hn_is_absent(comm, c->root)) {
            continue;
        }
        for (size_t k = 0; k < i; k++) {
            before += plan->colls[k].kind == HN_BROADCAST && plan->colls[k].root == c->root;
        }
        for (size_t k = 0; k < plan->ncolls; k++) {
            const struct hn_coll *own = &plan->colls[k];
            if (own->kind == HN_BROADCAST && own->root == comm->rank && before-- == 0) {
                c->instead = own->send;
                c->instead_bytes = own->bytes;
                break;
            }
        }
    }
}

void hn_plan_run(void *arg)
{
    struct hn_plan *plan = arg;
    ncclComm_t comm = plan->comm;
    bool ran = enter(comm, plan);

    if (ran) {
        int rc = 0;
        stand_in(plan);
        hn_run_puts(comm, plan->rmas, plan->nrmas);
        for (size_t i = 0; i < plan->ncolls && !rc; i++) {
            rc = hn_run_coll(comm, &plan->colls[i]);
        }
        if (!rc && plan->np2ps) {
            rc = hn_run_p2p(comm, plan->p2ps, plan->np2ps);
        }
        if (!rc) {
            (void)hn_run_waits(comm, plan->rmas, plan->nrmas);
        }
    }
    hn_plan_free(plan);
    leave(comm, ran);
}

int hn_mismatch_found(ncclComm_t comm, const char *format, ...)
{
    enum hn_mismatch choice = hn_settings_get()->mismatch;
    struct hn_word never = {0};
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (choice == HN_MISMATCH_ERROR) {
        hn_comm_set_async(comm, hn_fail(ncclInvalidUsage, "rank %d of %d: %s", comm->rank, comm->nranks, text));
        pthread_mutex_lock(&comm->lock);
        comm->stopped = true;
        pthread_mutex_unlock(&comm->lock);
        return -1;
    }
    if (choice == HN_MISMATCH_PRINT) {
        fprintf(stderr, "hostnccl: comm %p rank %d of %d: %s; hanging\n", (void *)comm, comm->rank, comm->nranks, text);
    }
    (void)hn_word_wait_change(&comm->exec_wait, &never, 0);
    return -1;
}
