/*
 * group.c: groups: what a thread has collected between ncclGroupStart and the outermost ncclGroupEnd.
 *
 * Every call is part of a group; a call outside one makes a group of its own. Work is collected per communicator in a
 * plan, and jobs (init, split, destroy, ...) in a list. At the end of the group the jobs run first; where there are
 * several, each runs on a thread of its own, because jobs wait for one another. Then the plans are launched. With
 * nonblocking communicators a detached thread does all that, and the caller gets ncclInProgress.
 *
 * Inside a plan collectives come before point-to-point, larger collectives first, as in NCCL. So a program whose ranks
 * differ in the order inside one group often runs by luck, here as with NCCL.
 *
 * The plans of a group are launched in ascending order of their communicators' hashes, which are equal on all members;
 * ranks of one communicator in the same process follow one another. So ranks that name two communicators in opposite
 * orders inside one group launch in the same order. Older releases of NCCL kept the program's order;
 * HOSTNCCL_GROUP_ORDER=program does as they did.
 */
#include "hostnccl/nccl/profiler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The content of one group; moved to the heap when a background thread runs it. */
struct batch {
    struct hn_plan **plans;
    size_t nplans, plans_cap;
    struct hn_job *jobs, *last_job;
    bool nonblocking, has_comm;
};

static _Thread_local struct {
    int depth;
    ncclResult_t error;
    struct batch batch;
} group;

/* Grows an array of pointers or structs by one. NULL without memory. */
static void *grow(void **array, size_t *count, size_t *cap, size_t size)
{
    if (*count == *cap) {
        size_t more = *cap ? 2 * *cap : 4;
        void *bigger = realloc(*array, more * size);
        if (!bigger) {
            return NULL;
        }
        *array = bigger;
        *cap = more;
    }
    return (char *)*array + (*count)++ * size;
}

#define GROW(array, count, cap) grow((void **)&(array), &(count), &(cap), sizeof(*(array)))

static void free_job(struct hn_job *job)
{
    if (job->free_args) {
        job->free_args(job->args);
    }
    hn_comm_unref(job->comm);
    free(job);
}

static void discard(struct batch *b)
{
    for (size_t i = 0; i < b->nplans; i++) {
        ncclComm_t comm = b->plans[i]->comm;
        hn_plan_free(b->plans[i]);
        hn_comm_unref(comm);
    }
    free(b->plans);
    for (struct hn_job *j = b->jobs, *next; j; j = next) {
        next = j->next;
        free_job(j);
    }
    *b = (struct batch){0};
}

ncclResult_t hn_group_error(ncclResult_t code)
{
    if (code != ncclSuccess && code != ncclInProgress && group.depth > 0 && group.error == ncclSuccess) {
        group.error = code;
    }
    return code;
}

ncclResult_t hn_group_start(void)
{
    group.depth++;
    return ncclSuccess;
}

/* Blocking and nonblocking communicators do not share a group. */
static ncclResult_t note_mode(bool blocking)
{
    if (group.batch.has_comm && group.batch.nonblocking == blocking) {
        return hn_fail(ncclInvalidArgument, "blocking and nonblocking communicators in one group");
    }
    group.batch.has_comm = true;
    group.batch.nonblocking = !blocking;
    return ncclSuccess;
}

static ncclResult_t no_memory(void)
{
    return hn_fail(ncclSystemError, "out of memory");
}

/* The place in the batch at which a new plan of the communicator is inserted. */
static size_t place_of(const struct batch *b, const struct ncclComm *comm)
{
    size_t at = 0;

    while (at < b->nplans && b->plans[at]->comm->hash != comm->hash) {
        at++;
    }
    if (at < b->nplans || hn_settings_get()->program_order) {
        return at; /* beside a sibling, or behind all */
    }
    for (at = 0; at < b->nplans && b->plans[at]->comm->hash < comm->hash; at++) {
    }
    return at;
}

/* Finds the plan of a communicator in this group, or makes one. NULL without memory. */
static struct hn_plan *plan_of(ncclComm_t comm)
{
    struct batch *b = &group.batch;
    size_t at = place_of(b, comm);

    for (size_t i = 0; i < b->nplans; i++) {
        if (b->plans[i]->comm == comm) {
            return b->plans[i];
        }
    }
    struct hn_plan **last = GROW(b->plans, b->nplans, b->plans_cap);
    struct hn_plan *plan = last ? calloc(1, sizeof(*plan)) : NULL;
    if (!plan) {
        b->nplans -= last != NULL;
        return NULL;
    }
    plan->comm = comm;
    hn_comm_ref(comm);
    for (struct hn_plan **p = last; p > &b->plans[at]; p--) {
        *p = p[-1];
    }
    b->plans[at] = plan;
    return plan;
}

/*
 * Finds the plan and adds the stream to its streams. As in NCCL, all streams of a plan are captured into one graph, or
 * none is captured.
 */
static ncclResult_t plan_on(ncclComm_t comm, cudaStream_t stream, struct hn_plan **out)
{
    cudaGraph_t graph = NULL;
    ncclResult_t rc = hn_capture_of(stream, &graph);
    struct hn_plan *plan = rc == ncclSuccess ? plan_of(comm) : NULL;

    if (!plan) {
        return rc != ncclSuccess ? rc : no_memory();
    }
    if (plan->nstreams && plan->graph != graph) {
        return hn_fail(ncclInvalidUsage, "the streams of a communicator in a group must be captured into one graph, "
                                         "or none of them captured");
    }
    plan->graph = graph;
    *out = plan;
    for (size_t i = 0; i < plan->nstreams; i++) {
        if (plan->streams[i] == stream) {
            return ncclSuccess;
        }
    }
    cudaStream_t *s = GROW(plan->streams, plan->nstreams, plan->streams_cap);
    if (!s) {
        return no_memory();
    }
    *s = stream;
    return ncclSuccess;
}

ncclResult_t hn_submit_coll(ncclComm_t comm, const struct hn_coll *coll, cudaStream_t stream)
{
    ncclResult_t rc = note_mode(comm->blocking);

    if (rc == ncclSuccess) {
        struct hn_plan *plan = NULL;
        rc = plan_on(comm, stream, &plan);
        struct hn_coll *place = rc == ncclSuccess ? GROW(plan->colls, plan->ncolls, plan->colls_cap) : NULL;
        if (!place) {
            return rc != ncclSuccess ? rc : no_memory();
        }
        *place = *coll;
        hn_profiler_coll_call(comm, place, stream, group.depth);
    }
    return rc;
}

ncclResult_t hn_submit_p2p(ncclComm_t comm, const struct hn_p2p *ops, size_t count, cudaStream_t stream)
{
    struct hn_plan *plan = NULL;
    ncclResult_t rc = note_mode(comm->blocking);

    if (rc == ncclSuccess) {
        rc = plan_on(comm, stream, &plan);
    }
    for (size_t i = 0; i < count && rc == ncclSuccess; i++) {
        struct hn_p2p *place = GROW(plan->p2ps, plan->np2ps, plan->p2ps_cap);
        if (!place) {
            return no_memory();
        }
        *place = ops[i];
        hn_profiler_p2p_call(comm, place, stream, group.depth);
    }
    return rc;
}

ncclResult_t hn_submit_rma(ncclComm_t comm, const struct hn_rma *ops, size_t count, cudaStream_t stream)
{
    struct hn_plan *plan = NULL;
    ncclResult_t rc = note_mode(comm->blocking);

    if (rc == ncclSuccess) {
        rc = plan_on(comm, stream, &plan);
    }
    for (size_t i = 0; i < count && rc == ncclSuccess; i++) {
        struct hn_rma *place = GROW(plan->rmas, plan->nrmas, plan->rmas_cap);
        if (!place) {
            return no_memory();
        }
        *place = ops[i];
    }
    return rc;
}

bool hn_is_grouped(void)
{
    return group.depth > 1;
}

ncclResult_t hn_submit_job(hn_job_fn *run, ncclComm_t comm, ncclComm_t meets, bool blocking, void *args,
                           void (*free_args)(void *))
{
    struct hn_job *job = calloc(1, sizeof(*job));
    ncclResult_t rc = job ? note_mode(blocking) : no_memory();

    if (rc != ncclSuccess) {
        free(job);
        if (free_args) {
            free_args(args);
        }
        return rc;
    }
    *job = (struct hn_job){
        .run = run, .comm = comm, .meets = meets, .blocking = blocking, .args = args, .free_args = free_args};
    hn_comm_ref(comm);
    if (group.batch.last_job) {
        group.batch.last_job->next = job;
    } else {
        group.batch.jobs = job;
    }
    group.batch.last_job = job;
    return ncclSuccess;
}

/* Checks sends of a rank to itself, which only a receive of the same group can meet. */
static ncclResult_t check_self(const struct hn_plan *plan)
{
    size_t sends = 0, receives = 0;

    for (size_t i = 0; i < plan->np2ps; i++) {
        if (plan->p2ps[i].peer == plan->comm->rank) {
            sends += plan->p2ps[i].is_send;
            receives += !plan->p2ps[i].is_send;
        }
    }
    return sends == receives ? ncclSuccess
                             : hn_fail(ncclInvalidUsage, "rank %d: %zu sends to itself but %zu receives in the group",
                                       plan->comm->rank, sends, receives);
}

static int size_class(size_t bytes)
{
    return bytes ? 63 - __builtin_clzll(bytes) : 0;
}

static int order(const struct hn_coll *a, const struct hn_coll *b)
{
    int by_size = size_class(b->bytes) - size_class(a->bytes);

    return by_size                    ? by_size
           : a->kind != b->kind       ? (int)a->kind - (int)b->kind
           : a->op.kind != b->op.kind ? (int)a->op.kind - (int)b->op.kind
           : a->type != b->type       ? (int)a->type - (int)b->type
                                      : 0;
}

/*
 * Sorts the collectives. The sort is stable, so that equal calls keep the program's order; insertion sort, because
 * groups are short.
 */
static void sort_colls(struct hn_plan *plan)
{
    for (size_t i = 1; i < plan->ncolls; i++) {
        struct hn_coll c = plan->colls[i];
        size_t at = i;
        for (; at > 0 && order(&c, &plan->colls[at - 1]) < 0; at--) {
            plan->colls[at] = plan->colls[at - 1];
        }
        plan->colls[at] = c;
    }
}

static void *job_main(void *arg)
{
    struct hn_job *job = arg;

    if (job->meets) {
        hn_host_turn_wait(job->meets, job->ticket);
    }
    job->result = job->run(job);
    if (job->meets) {
        hn_host_turn_end(job->meets);
    }
    return NULL;
}

/*
 * Gives each job its ticket, on the caller's thread: so the exchanges of a communicator have the program's order on
 * every rank.
 */
static void take_tickets(struct hn_job *jobs)
{
    for (struct hn_job *j = jobs; j; j = j->next) {
        if (j->meets) {
            pthread_mutex_lock(&j->meets->lock);
            j->ticket = j->meets->host_tickets++;
            pthread_mutex_unlock(&j->meets->lock);
        }
    }
}

static ncclResult_t run_jobs(struct hn_job *jobs)
{
    ncclResult_t rc = ncclSuccess;

    for (struct hn_job *j = jobs; j; j = j->next) {
        j->threaded = jobs->next && !pthread_create(&j->thread, NULL, job_main, j);
        if (!j->threaded) {
            job_main(j);
        }
    }
    for (struct hn_job *j = jobs; j; j = j->next) {
        if (j->threaded) {
            pthread_join(j->thread, NULL);
        }
        if (!j->blocking) {
            hn_comm_set_async(j->comm, j->result);
        }
        rc = rc == ncclSuccess ? j->result : rc;
    }
    return rc;
}

static ncclResult_t run_batch(struct batch *b)
{
    ncclResult_t rc = run_jobs(b->jobs);

    for (size_t i = 0; i < b->nplans; i++) {
        ncclComm_t comm = b->plans[i]->comm;
        if (rc == ncclSuccess) {
            sort_colls(b->plans[i]);
            hn_profiler_tasks(b->plans[i]);
            rc = hn_launch(b->plans[i]);
        } else {
            hn_plan_free(b->plans[i]);
        }
        if (b->nonblocking || rc != ncclSuccess) { /* an error of the launch is fatal for the communicator */
            hn_comm_set_async(comm, rc);
        }
        hn_comm_unref(comm);
    }
    b->nplans = 0;
    discard(b);
    return rc;
}

static void *batch_main(void *arg)
{
    (void)run_batch(arg);
    free(arg);
    return NULL;
}

/*
 * Drops the batch. That is fatal for its communicators, as an error of the launch is, because their tickets are lost.
 */
static ncclResult_t give_up(struct batch *b, int err)
{
    for (size_t i = 0; i < b->nplans; i++) {
        hn_comm_set_async(b->plans[i]->comm, ncclSystemError);
    }
    for (struct hn_job *j = b->jobs; j; j = j->next) {
        hn_comm_set_async(j->comm, ncclSystemError);
        hn_comm_set_async(j->meets ? j->meets : j->comm, ncclSystemError);
    }
    discard(b);
    return hn_fail(ncclSystemError, "cannot start a thread: %s", strerror(err));
}

static ncclResult_t run_in_background(struct batch *b)
{
    struct batch *own = malloc(sizeof(*own));
    pthread_attr_t attr;
    pthread_t thread;

    if (!own) {
        return give_up(b, ENOMEM);
    }
    *own = *b;
    for (size_t i = 0; i < own->nplans; i++) {
        hn_comm_set_async(own->plans[i]->comm, ncclInProgress);
    }
    for (struct hn_job *j = own->jobs; j; j = j->next) {
        hn_comm_set_async(j->comm, ncclInProgress);
    }
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int err = pthread_create(&thread, &attr, batch_main, own);
    pthread_attr_destroy(&attr);
    if (err) {
        ncclResult_t rc = give_up(own, err);
        free(own);
        return rc;
    }
    return ncclInProgress;
}

ncclResult_t hn_group_end(void)
{
    struct batch b;
    ncclResult_t rc = group.error;

    if (group.depth == 0) {
        return hn_fail(ncclInvalidUsage, "ncclGroupEnd: not in a group call");
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    b = group.batch;
    group.batch = (struct batch){0};
    group.error = ncclSuccess;
    for (size_t i = 0; i < b.nplans && rc == ncclSuccess; i++) {
        rc = check_self(b.plans[i]);
    }
    hn_profiler_group_ends();
    if (rc == ncclSuccess) {
        take_tickets(b.jobs);
        rc = b.nonblocking ? run_in_background(&b) : run_batch(&b);
    } else {
        discard(&b);
    }
    hn_profiler_group_ended();
    return rc;
}

HN_API(ncclResult_t, ncclGroupStart, void)
{
    hn_debug("ncclGroupStart depth %d", group.depth);
    return hn_group_start();
}

HN_API(ncclResult_t, ncclGroupEnd, void)
{
    hn_debug("ncclGroupEnd depth %d", group.depth);
    return hn_group_end();
}

/* Ends the group without launching anything. The estimate is that of copying every byte once at 1 GB/s. */
HN_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *simInfo)
{
    double bytes = 0;

    if (group.depth == 0) {
        return hn_fail(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call");
    }
    if (simInfo && simInfo->magic != 0x74685283) {
        return hn_group_error(hn_fail(ncclInvalidArgument, "simInfo was not made with NCCL_SIM_INFO_INITIALIZER"));
    }
    for (size_t i = 0; i < group.batch.nplans; i++) {
        const struct hn_plan *p = group.batch.plans[i];
        for (size_t k = 0; k < p->ncolls; k++) {
            bytes += (double)p->colls[k].bytes;
        }
        for (size_t k = 0; k < p->np2ps; k++) {
            bytes += (double)p->p2ps[k].bytes;
        }
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    if (simInfo && simInfo->size >= sizeof(*simInfo)) {
        simInfo->estimatedTime = (float)(bytes / 1000.0); /* microseconds */
    }
    ncclResult_t rc = group.error;
    group.error = ncclSuccess;
    discard(&group.batch);
    hn_profiler_group_ended();
    return rc;
}
