/*
 * job_base.c: see job.h.
 */
#include "tests/interposer/job.h"

#include <stddef.h>

char job_buffer[65536];

ncclComm_t job_comm(int rank, int nranks)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclGetUniqueId(&id);
    return ncclCommInitRank(&comm, nranks, id, rank) == ncclSuccess ? comm : NULL;
}

void *job_call_in_thread(void *arg)
{
    const struct job_caller *caller = arg;
    for (int i = 0; i < caller->calls; i++) {
        ncclAllReduce(job_buffer, job_buffer, caller->count, 7, 0, caller->comm, STREAM((int)caller->count));
    }
    return NULL;
}
