/*
 * job_calls.c: modes in which a job makes calls: every operation, groups, children of communicators, many calls, and
 * functions of other releases.
 */
#include "tests/interposer/job.h"

#include <dlfcn.h>
#include <string.h>

/* Every operation once, with arguments that can be told apart. The test has the same list. */
int job_mode_every_operation(void)
{
    ncclComm_t comm = job_comm(1, 4);
    char *a = job_buffer, *b = job_buffer + 4096;
    CHECK(comm != NULL);
    CHECK(ncclAllReduce(a, b, 10, 7, ncclSum, comm, NULL) == ncclSuccess);
    CHECK(ncclBroadcast(a, a, 11, 0, 2, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclBcast(a, 12, 1, 3, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclReduce(a, b, 13, 2, 1, 0, comm, STREAM(2)) == ncclSuccess);
    CHECK(ncclAllGather(b + 14 * 4, b, 14, 2, comm, STREAM(2)) == ncclSuccess);
    CHECK(ncclReduceScatter(a, a + 15 * 8, 15, 8, 2, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclAlltoAll(a, b, 0, 9, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclAlltoAll(a, b, 16, 9, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclGather(a + 17, a, 17, 0, 1, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclScatter(a, b, 18, 10, 1, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclSend(a, 19, 7, 2, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclSend(a, 20, 7, 2, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclSend(a, 21, 7, 3, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclRecv(b, 22, 7, 2, comm, STREAM(1)) == ncclSuccess);
    CHECK(ncclAllReduce(a, b, 666, 7, 5, comm, STREAM(1)) == ncclInvalidArgument);
    CHECK(ncclCommRevoke(comm, 0) == ncclSuccess);
    CHECK(ncclCommFinalize(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(strcmp(ncclGetErrorString(ncclSuccess), "fake success") == 0);
    return 0;
}

int job_mode_groups(void)
{
    ncclComm_t comm = job_comm(0, 2), grouped[2] = {NULL, NULL};
    ncclUniqueId id;
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(job_buffer, 1, 0, 1, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclRecv(job_buffer, 2, 0, 1, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 3, 0, 0, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 0, 0, comm, NULL) == ncclSuccess);
    ncclGetUniqueId(&id);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommInitRank(&grouped[0], 2, id, 0) == ncclSuccess);
    CHECK(ncclCommInitRank(&grouped[1], 2, id, 1) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 5, 0, 0, grouped[1], NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    return 0;
}

int job_mode_children(void)
{
    ncclComm_t comm = job_comm(1, 4), a = NULL, none = NULL, late = NULL, shrunk = NULL, all[3];
    ncclUniqueId ids[3];
    void (*progress)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "fake_progress");
    ncclConfig_t config = {
        .size = sizeof(config), .magic = ROLL_NCCL_CONFIG_MAGIC, .version = 22809, .blocking = 1, .commName = "tensor"};
    int excluded = 3;
    CHECK(ncclCommSplit(comm, 5, 0, &a, &config) == ncclSuccess);
    CHECK(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, NULL) == ncclSuccess);
    CHECK(none == NULL);
    config.blocking = 0;
    config.commName = "late";
    CHECK(ncclCommSplit(comm, 6, 0, &late, &config) == ncclInProgress);
    progress();
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 0, 0, late, NULL) == ncclSuccess);
    CHECK(ncclCommShrink(comm, &excluded, 1, &shrunk, NULL, 0) == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 2, 0, 0, shrunk, NULL) == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 3, 0, 0, a, NULL) == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        ncclGetUniqueId(&ids[i]);
    }
    config.size = offsetof(ncclConfig_t, commName); /* an older caller: it has no name to give */
    config.blocking = 1;
    CHECK(ncclCommInitRankScalable(&late, 8, 7, 3, ids, &config) == ncclSuccess);
    CHECK(ncclCommInitAll(all, 3, NULL) == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 0, 0, all[2], NULL) == ncclSuccess);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 5, 0, 0, (ncclComm_t)(void *)job_buffer, NULL) ==
          ncclSuccess); /* never created */
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    return 0;
}

int job_mode_many(int calls)
{
    ncclComm_t comm = job_comm(0, 2);
    for (int i = 0; i < calls; i++) {
        CHECK(ncclAllReduce(job_buffer, job_buffer, (size_t)i + 1, 7, 0, comm, NULL) == ncclSuccess);
    }
    return 0;
}

/* Calls without end, to be killed. */
int job_mode_forever(void)
{
    ncclComm_t comm = job_comm(0, 2);
    size_t i = 1;
    while (ncclAllReduce(job_buffer, job_buffer, i, 7, 0, comm, NULL) == ncclSuccess) {
        i++;
    }
    return 1;
}

/* Where the calls of mode `callsites` come from; the test looks these names up. */
__attribute__((noinline)) void job_inner(ncclComm_t comm);
__attribute__((noinline)) void job_outer(ncclComm_t comm);

void job_inner(ncclComm_t comm)
{
    ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL);
    __asm__ volatile("" ::: "memory");
}

void job_outer(ncclComm_t comm)
{
    job_inner(comm);
    __asm__ volatile("" ::: "memory");
}

int job_mode_callsites(void)
{
    ncclComm_t comm = job_comm(0, 2);
    for (volatile int i = 0; i < 3; i++) { /* volatile: unrolled, each would be a call site of its own */
        job_outer(comm);
    }
    job_inner(comm);
    return 0;
}

/* One function of unknown prototype, and two that this NCCL lacks. Weak: a program that is linked with such names gets
 * our wrappers; one that looks them up is told that they are not there. */
struct team {
    int ranks, rank, stride;
};
struct team ncclTeamRail(ncclComm_t comm, double factor, int a, int b, int c, int d, int e, int f, float last);
int ncclCommResume(ncclComm_t comm) __attribute__((weak));
int ncclParamBind(void *out, int key) __attribute__((weak));

int job_mode_odd_functions(void)
{
    ncclComm_t comm = job_comm(0, 2);
    for (int i = 0; i < 2; i++) {
        struct team team = ncclTeamRail(comm, 1.5, 1, 2, 3, 4, 5, 6, 7.0f);
        CHECK(team.ranks == 2 && team.rank == 15 && team.stride == 28);
    }
    CHECK(ncclCommResume != NULL && ncclCommResume(comm) == ncclInvalidUsage);
    CHECK(ncclParamBind != NULL && ncclParamBind(comm, 0) == ncclInvalidUsage);
    CHECK(dlsym(RTLD_DEFAULT, "ncclTeamRail") != NULL && dlerror() == NULL);
    CHECK(dlsym(RTLD_DEFAULT, "ncclCommResume") == NULL && strstr(dlerror(), "ncclCommResume") != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "ncclParamBind") == NULL && strstr(dlerror(), "ncclParamBind") != NULL);
    return 0;
}

/* A thousand communicators made and destroyed: the table must not fill up with them. */
int job_mode_churn(void)
{
    for (int i = 0; i < 20000; i++) {
        ncclComm_t comm = job_comm(0, 4);
        CHECK(comm != NULL && ncclSend(job_buffer, 1, 0, 3, comm, NULL) == ncclSuccess);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    }
    return 0;
}

int job_mode_quiet(void)
{
    return 0;
}
