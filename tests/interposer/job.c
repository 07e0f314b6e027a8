/*
 * job.c: the programs that the tests watch, in one: `job MODE [ARGUMENT]`. Linked with an NCCL, or loaded with one
 * through host.c. Exit status 0 when the job itself saw no mistake; the test checks the job's ring.
 */
#include "interposer/wrap/nccl_types.h"
#include "moe_core/include/moe/observe.h"
#include "tests/interposer/nvtx.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROLL_API_CALL(id, name, params, ...)      ncclResult_t name params;
#define ROLL_API_LIFE(id, name, params, args)     ncclResult_t name params;
#define ROLL_API_PASS(id, ret, name, params, ...) ret name params;
#define ROLL_API_JUMP(id, name)
#define ROLL_API_VERSION 22809
#include "interposer/wrap/api.def"
#undef ROLL_API_VERSION

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "job: line %d: %s\n", __LINE__, #condition);                                               \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

#define STREAM(n) ((cudaStream_t)(uintptr_t)(0x7000 + 16 * (n)))

int job_main(int argc, char **argv);

static char buffer[65536];

static ncclComm_t new_comm(int rank, int nranks)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclGetUniqueId(&id);
    return ncclCommInitRank(&comm, nranks, id, rank) == ncclSuccess ? comm : NULL;
}

/* Every operation once, with arguments that can be told apart. The test has the same list. */
static int every_operation(void)
{
    ncclComm_t comm = new_comm(1, 4);
    char *a = buffer, *b = buffer + 4096;
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

static int groups(void)
{
    ncclComm_t comm = new_comm(0, 2), grouped[2] = {NULL, NULL};
    ncclUniqueId id;
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclSend(buffer, 1, 0, 1, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclRecv(buffer, 2, 0, 1, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 3, 0, 0, comm, NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 4, 0, 0, comm, NULL) == ncclSuccess);
    ncclGetUniqueId(&id);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclCommInitRank(&grouped[0], 2, id, 0) == ncclSuccess);
    CHECK(ncclCommInitRank(&grouped[1], 2, id, 1) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 5, 0, 0, grouped[1], NULL) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    return 0;
}

static int children(void)
{
    ncclComm_t comm = new_comm(1, 4), a = NULL, none = NULL, late = NULL, shrunk = NULL, all[3];
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
    CHECK(ncclAllReduce(buffer, buffer, 1, 0, 0, late, NULL) == ncclSuccess);
    CHECK(ncclCommShrink(comm, &excluded, 1, &shrunk, NULL, 0) == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 2, 0, 0, shrunk, NULL) == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 3, 0, 0, a, NULL) == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        ncclGetUniqueId(&ids[i]);
    }
    config.size = offsetof(ncclConfig_t, commName); /* an older caller: it has no name to give */
    config.blocking = 1;
    CHECK(ncclCommInitRankScalable(&late, 8, 7, 3, ids, &config) == ncclSuccess);
    CHECK(ncclCommInitAll(all, 3, NULL) == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 4, 0, 0, all[2], NULL) == ncclSuccess);
    CHECK(ncclAllReduce(buffer, buffer, 5, 0, 0, (ncclComm_t)(void *)buffer, NULL) == ncclSuccess); /* never created */
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    return 0;
}

static int many(int calls)
{
    ncclComm_t comm = new_comm(0, 2);
    for (int i = 0; i < calls; i++) {
        CHECK(ncclAllReduce(buffer, buffer, (size_t)i + 1, 7, 0, comm, NULL) == ncclSuccess);
    }
    return 0;
}

/* Calls without end, to be killed. */
static int forever(void)
{
    ncclComm_t comm = new_comm(0, 2);
    size_t i = 1;
    while (ncclAllReduce(buffer, buffer, i, 7, 0, comm, NULL) == ncclSuccess) {
        i++;
    }
    return 1;
}

/* errno is what NCCL leaves, not what recording does. */
static int errno_is_kept(void)
{
    int *leave = dlsym(RTLD_DEFAULT, "fake_errno");
    ncclComm_t comm;
    ncclUniqueId id;
    errno = 77;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess && errno == 77);
    CHECK(ncclCommInitRank(&comm, 2, id, 0) == ncclSuccess && errno == 77);
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, STREAM(1)) == ncclSuccess && errno == 77);
    *leave = 78;
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, STREAM(2)) == ncclSuccess && errno == 78);
    *leave = 0;
    errno = 79;
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, (ncclComm_t)(void *)buffer, NULL) == ncclSuccess && errno == 79);
    CHECK(ncclCommDestroy(comm) == ncclSuccess && errno == 79);
    return 0;
}

/* The child goes on calling; the ring belongs to the parent. */
static int forks(void)
{
    ncclComm_t comm = new_comm(0, 2);
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    pid_t child = fork();
    if (child == 0) {
        ncclComm_t own = new_comm(0, 2);
        for (int i = 0; i < 100; i++) {
            ncclAllReduce(buffer, buffer, 99, 7, 0, comm, STREAM(i));
        }
        ncclGroupStart();
        ncclGroupEnd();
        ncclCommDestroy(own);
        exit(own != NULL ? 7 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); /* libc does not know of this child */
    if (child == 0) {
        for (int i = 0; i < 100; i++) {
            ncclAllReduce(buffer, buffer, 98, 7, 0, comm, NULL);
        }
        _exit(8);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 8);
    CHECK(ncclAllReduce(buffer, buffer, 2, 7, 0, comm, NULL) == ncclSuccess);
    _exit(0); /* no destructor may run: the child would mark the ring finished */
}

struct caller {
    ncclComm_t comm;
    size_t count;
    int calls;
};

static void *call_in_thread(void *arg)
{
    const struct caller *caller = arg;
    for (int i = 0; i < caller->calls; i++) {
        ncclAllReduce(buffer, buffer, caller->count, 7, 0, caller->comm, STREAM((int)caller->count));
    }
    return NULL;
}

/* Two threads on a communicator each, then both on one. */
static int threads(void)
{
    struct caller one = {new_comm(0, 2), 1, 5000}, two = {new_comm(0, 2), 2, 5000};
    pthread_t a, b;
    CHECK(pthread_create(&a, NULL, call_in_thread, &one) == 0 && pthread_create(&b, NULL, call_in_thread, &two) == 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    struct caller race = {new_comm(0, 2), 3, 5000};
    CHECK(pthread_create(&a, NULL, call_in_thread, &race) == 0 && pthread_create(&b, NULL, call_in_thread, &race) == 0);
    pthread_join(a, NULL);
    pthread_join(b, NULL);
    return 0;
}

static ncclComm_t in_handler;
static volatile sig_atomic_t handled;

static void call_from_handler(int number)
{
    (void)number;
    ncclAllReduce(buffer, buffer, 2, 7, 0, in_handler, NULL);
    handled++;
}

static int signals(void)
{
    struct itimerval every = {.it_interval = {0, 50}, .it_value = {0, 50}}, never = {{0, 0}, {0, 0}};
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = call_from_handler;
    action.sa_flags = SA_RESTART;
    in_handler = new_comm(0, 2);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (time_t start = time(NULL); handled <= 100 || (handled < 2000 && time(NULL) - start < 10);) {
        CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, in_handler, NULL) == ncclSuccess);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    CHECK(handled > 100);
    return 0;
}

/* Where the calls of mode `callsites` come from; the test looks these names up. */
__attribute__((noinline)) void job_inner(ncclComm_t comm);
__attribute__((noinline)) void job_outer(ncclComm_t comm);

void job_inner(ncclComm_t comm)
{
    ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL);
    __asm__ volatile("" ::: "memory");
}

void job_outer(ncclComm_t comm)
{
    job_inner(comm);
    __asm__ volatile("" ::: "memory");
}

static int callsites(void)
{
    ncclComm_t comm = new_comm(0, 2);
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

static int odd_functions(void)
{
    ncclComm_t comm = new_comm(0, 2);
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

/* Calls in which a host may wait. The fake runtime adds up what it gets. */
static int may_wait(void)
{
    typedef int (*free_t)(void *);
    typedef int (*copy_t)(void *, const void *, size_t, int);
    typedef int (*queue_t)(void *, const void *, size_t, int, void *);
    free_t release = (free_t)dlsym(RTLD_DEFAULT, "cudaFree");
    free_t release_host = (free_t)dlsym(RTLD_DEFAULT, "cudaFreeHost");
    copy_t copy = (copy_t)dlsym(RTLD_DEFAULT, "cudaMemcpy");
    copy_t copy_own = (copy_t)dlsym(RTLD_DEFAULT, "cudaMemcpy_ptds");
    queue_t queue = (queue_t)dlsym(RTLD_DEFAULT, "cudaMemcpyAsync");
    queue_t queue_own = (queue_t)dlsym(RTLD_DEFAULT, "cudaMemcpyAsync_ptsz");
    free_t stream = (free_t)dlsym(RTLD_DEFAULT, "cudaStreamSynchronize");
    void *a = (void *)1000, *b = (void *)100;
    CHECK(release != NULL && release_host != NULL && copy != NULL && copy_own != NULL && queue != NULL &&
          queue_own != NULL);
    CHECK(release(a) == 1040); /* before there is a session */
    CHECK(new_comm(0, 2) != NULL);
    CHECK(release(NULL) == 40); /* waits for nothing */
    CHECK(release(a) == 1040);
    CHECK(stream(STREAM(1)) == 31);
    CHECK(release_host(a) == 1041); /* nothing but waits has been recorded since the other one */
    CHECK(new_comm(0, 2) != NULL);
    CHECK(release_host(a) == 1041);
    CHECK(copy(a, b, 10, 3) == 1000 + 200 + 30 + 12 + 42); /* within the device */
    CHECK(copy(a, b, 10, 1) == 1000 + 200 + 30 + 4 + 42);
    CHECK(copy_own(a, b, 10, 2) == 1000 + 200 + 30 + 8 + 43);
    CHECK(queue(a, b, 10, 1, STREAM(1)) == (int)(1000 + 200 + 30 + 4 + 44 + 5 * (uintptr_t)STREAM(1)));
    CHECK(queue(a, b, 10, 2, STREAM(1)) == (int)(1000 + 200 + 30 + 8 + 44 + 5 * (uintptr_t)STREAM(1)));
    CHECK(queue_own(a, b, 10, 2, NULL) == 1000 + 200 + 30 + 8 + 45);
    return 0;
}

/* Waits, by every function that the interposer knows. */
static int waits(void)
{
    typedef int (*wait_t)(void *);
    typedef int (*record_t)(void *, void *);
    wait_t stream = (wait_t)dlsym(RTLD_DEFAULT, "cudaStreamSynchronize");
    wait_t own = (wait_t)dlsym(RTLD_DEFAULT, "cudaStreamSynchronize_ptsz");
    wait_t event = (wait_t)dlsym(RTLD_DEFAULT, "cudaEventSynchronize");
    int (*device)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "cudaDeviceSynchronize");
    record_t record = (record_t)dlsym(RTLD_DEFAULT, "cudaEventRecord");
    CHECK(stream != NULL && own != NULL && event != NULL && device != NULL && record != NULL);
    CHECK(stream(NULL) == 31); /* before there is a session: forwarded, not recorded */
    ncclComm_t comm = new_comm(0, 2);
    CHECK(comm != NULL);
    CHECK(stream(STREAM(1)) == 31);
    CHECK(stream(NULL) == 31);
    CHECK(own(NULL) == 32);
    CHECK(event(buffer) == 33); /* never recorded */
    CHECK(record(buffer, STREAM(1)) == 35);
    CHECK(event(buffer) == 33);
    CHECK(device() == 34);
    return 0;
}

#define EVENT(n)        ((void *)(uintptr_t)(0x9000 + 16 * (n)))
#define REDUCE(comm, n) CHECK(ncclAllReduce(buffer, buffer, 4, 7, 0, comm, STREAM(n)) == ncclSuccess) /* one record */

/* Streams that wait for each other by events, with calls on them. test_record.c knows which call is behind which. */
static int orders(void)
{
    typedef int (*two_t)(void *, void *, unsigned);
    typedef int (*one_t)(void *);
    two_t record = (two_t)dlsym(RTLD_DEFAULT, "cudaEventRecordWithFlags");
    two_t wait = (two_t)dlsym(RTLD_DEFAULT, "cudaStreamWaitEvent");
    one_t forget_event = (one_t)dlsym(RTLD_DEFAULT, "cudaEventDestroy");
    one_t forget_stream = (one_t)dlsym(RTLD_DEFAULT, "cudaStreamDestroy");
    one_t sync = (one_t)dlsym(RTLD_DEFAULT, "cudaStreamSynchronize");
    CHECK(record != NULL && wait != NULL && forget_event != NULL && forget_stream != NULL && sync != NULL);
    ncclComm_t comm = new_comm(0, 2);
    CHECK(comm != NULL);
#define RECORD(event, stream) CHECK(record(EVENT(event), STREAM(stream), 0) == 0)
#define WAIT(stream, event)   CHECK(wait(STREAM(stream), EVENT(event), 0) == 0)
    RECORD(0, 1); /* nothing stands before it */
    WAIT(2, 0);
    REDUCE(comm, 1); /* 1 */
    RECORD(1, 1);
    WAIT(9, 1); /* a stream without calls, between two that have some */
    RECORD(2, 9);
    WAIT(2, 2);
    REDUCE(comm, 2); /* 2: behind 1 */
    WAIT(2, 2);
    REDUCE(comm, 2); /* 3: that is known */
    REDUCE(comm, 3); /* 4 */
    RECORD(3, 3);
    RECORD(4, 2);
    WAIT(4, 1);
    WAIT(4, 3);
    WAIT(4, 4);
    REDUCE(comm, 4);                    /* 5 says, and 6 is: behind 3 and 4, and by 3 behind 1 */
    CHECK(sync(STREAM(9)) == 31);       /* 7: behind 1 */
    CHECK(forget_event(EVENT(1)) == 0); /* another event may get the address */
    WAIT(5, 1);
    REDUCE(comm, 5); /* 8 */
    RECORD(5, 1);
    WAIT(6, 5);
    CHECK(forget_stream(STREAM(6)) == 0);
    REDUCE(comm, 6); /* 9 */
    CHECK(ncclGroupStart() == ncclSuccess);
    REDUCE(comm, 1); /* 10 */
    RECORD(6, 1);
    CHECK(ncclGroupEnd() == ncclSuccess); /* 11 */
    RECORD(7, 1);
    WAIT(7, 6);
    REDUCE(comm, 7); /* 12: behind 1, as the group had not been ended */
    WAIT(8, 7);
    REDUCE(comm, 8); /* 13: behind 10 */
    RECORD(8, 8);
    RECORD(8, 10); /* the event is another one now */
    WAIT(1, 8);
    REDUCE(comm, 1); /* 14 */
#undef RECORD
#undef WAIT
    return 0;
}

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Loops of polls: one that ends well, one that is left for another call, one over two things by turns, one over more
 * things than are followed, and one too short to be recorded. */
static int polls(void)
{
    typedef int (*poll_t)(void *);
    typedef int (*record_t)(void *, void *);
    poll_t stream = (poll_t)dlsym(RTLD_DEFAULT, "cudaStreamQuery");
    poll_t event = (poll_t)dlsym(RTLD_DEFAULT, "cudaEventQuery");
    record_t record = (record_t)dlsym(RTLD_DEFAULT, "cudaEventRecord");
    void (*set_ready)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "fake_set_ready");
    CHECK(stream != NULL && event != NULL && record != NULL && set_ready != NULL);
    ncclComm_t comm = new_comm(0, 2);
    CHECK(comm != NULL);
    uint64_t begin = now_ms();
    while (now_ms() < begin + 700) {
        CHECK(stream(STREAM(1)) == 600);
    }
    set_ready(1);
    CHECK(stream(STREAM(1)) == 0);
    set_ready(0);
    CHECK(ncclAllReduce(buffer, buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    CHECK(record(buffer, STREAM(1)) == 35);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        CHECK(event(buffer) == 600);
        set_ready(1);
        CHECK(stream(STREAM(1)) == 0); /* another thing that is ready does not end the loop */
        set_ready(0);
    }
    CHECK(ncclAllReduce(buffer, buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        CHECK(stream(STREAM(1)) == 600);
        CHECK(stream(STREAM(2)) == 600);
    }
    CHECK(ncclAllReduce(buffer, buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        for (int i = 1; i <= 5; i++) {
            CHECK(stream(STREAM(i)) == 600);
        }
    }
    CHECK(event(buffer) == 600);
    set_ready(1);
    CHECK(event(buffer) == 0);
    return 0;
}

static int moe(void)
{
    typedef void (*observe_t)(const struct moe_event *);
    typedef uint32_t (*remedies_t)(void *, uint32_t, uint32_t);
    observe_t observe = (observe_t)dlsym(RTLD_DEFAULT, "moe_observe");
    remedies_t remedies = (remedies_t)dlsym(RTLD_DEFAULT, "moe_remedies");
    CHECK(observe != NULL && remedies != NULL);
    ncclComm_t comm = new_comm(0, 2);
    struct moe_event event = {.size = sizeof(event),
                              .kind = MOE_EV_COUNTS,
                              .phase = 1,
                              .step = 70,
                              .microbatch = 2,
                              .layer = 3,
                              .peer = 4,
                              .aux = 70000,
                              .count = 5,
                              .count2 = UINT64_C(1) << 40,
                              .comm = comm};
    observe(&event);
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    event.kind = MOE_EV_OBLIGE;
    event.aux = 6;
    event.phase = 2;
    observe(&event);
    event.kind = 200; /* unknown: not recorded, but counted */
    observe(&event);
    /* Another thread, which has had no event of its own, gets that of the process. */
    struct caller caller = {comm, 2, 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_in_thread, &caller) == 0);
    pthread_join(thread, NULL);
    printf("%u %u %u %u\n", remedies(comm, 3, 0), remedies(comm, 4, 0), remedies(NULL, 4, 1), remedies(comm, 4, 1));
    return 0;
}

/* What rollcall.torch does: steps, and names of what collectives carry. */
static int names(void)
{
    typedef void (*step_t)(uint32_t);
    typedef void (*name_t)(uint32_t, uint64_t, uint32_t, const char *, const char *, const char *, const char *,
                           uint32_t);
    typedef void (*observe_t)(const struct moe_event *);
    step_t step = (step_t)dlsym(RTLD_DEFAULT, "rollcall_step");
    name_t name = (name_t)dlsym(RTLD_DEFAULT, "rollcall_name");
    observe_t observe = (observe_t)dlsym(RTLD_DEFAULT, "moe_observe");
    CHECK(step != NULL && name != NULL && observe != NULL);
    char longer[1000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ncclComm_t comm = new_comm(0, 2);
    step(7);
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    struct caller caller = {comm, 2, 1};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, call_in_thread, &caller) == 0);
    pthread_join(thread, NULL);
    name(2, 25, 2, "0", "bucket 3", NULL, NULL, 0);
    name(1, 0, 2, "0", "dp", "/x/train.py", longer, 91);
    name(9, 0, 2, "0", "of no kind", NULL, NULL, 0);
    struct moe_event event = {
        .size = sizeof(event), .kind = MOE_EV_COUNTS, .step = 70, .layer = UINT16_MAX, .peer = -1, .comm = comm};
    observe(&event);
    step(8); /* moe_core counts here */
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL) == ncclSuccess);
    return 0;
}

/* A reduction, whose count tells the test which step it must carry: 1000 + step; 999: none. */
static bool reduces(ncclComm_t comm, size_t count)
{
    return ncclAllReduce(buffer, buffer, count, 7, 0, comm, NULL) == ncclSuccess;
}

static nvtxEventAttributes_t event_of(const char *text)
{
    nvtxEventAttributes_t event = {.version = NVTX_VERSION, .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE};
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = text;
    return event;
}

/* The ways in which NVTX names a step, and names that are none. */
static int marks(void)
{
    typedef void (*step_by_t)(uint32_t, uint32_t);
    step_by_t step_by = (step_by_t)dlsym(RTLD_DEFAULT, "rollcall_step_by");
    ncclComm_t comm = new_comm(0, 2);
    CHECK(step_by != NULL && reduces(comm, 999));
    static const char *const none[] = {"step",          "stepping 4", "step 0.5",     "optimizer step 9", "",
                                       "micro-step 12", "step four",  "step 12beta3", "step 12345678901", "train"};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        nvtxMarkA(none[i]);
    }
    CHECK(reduces(comm, 999));
    nvtxMarkA("ProfilerStep#70"); /* a profiler's count is the worst: what comes next beats it */
    CHECK(reduces(comm, 1070));
    CHECK(nvtxRangePushA("train_step") == -2 && reduces(comm, 1000));
    CHECK(nvtxRangePop() == -2 && reduces(comm, 1000)); /* until the next one begins */
    CHECK(nvtxRangePushA("Train Step") == -2 && reduces(comm, 1001));
    nvtxMarkA("iteration"); /* another name that counts, beside it: not taken */
    CHECK(reduces(comm, 1001));
    step_by(40, 3); /* an optimizer's steps beat names that are counted */
    CHECK(nvtxRangePushA("train_step") == -2 && reduces(comm, 1040));
    CHECK(nvtxRangePushA("Step #17/1000") == -2 && reduces(comm, 1017));
    CHECK(nvtxRangePushW(L"step=18") == -2 && reduces(comm, 1018));
    nvtxEventAttributes_t event = event_of("step_19_forward");
    CHECK(nvtxRangePushEx(&event) == -2 && reduces(comm, 1019));
    CHECK(nvtxRangeStartA("step 20") == 0 && reduces(comm, 1020));
    event = event_of("step 21");
    nvtxMarkEx(&event);
    CHECK(reduces(comm, 1021));
    void *domain = nvtxDomainCreateA("train");
    event = event_of("step: 22");
    CHECK(domain == NULL && nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1022));
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "step 23");
    CHECK(nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1023));
    event.message.registered = nvtxDomainRegisterStringA(domain, "forward");
    CHECK(event.message.registered == NULL && nvtxDomainRangePushEx(domain, &event) == -2 && reduces(comm, 1023));
    event = event_of("step 99");
    event.size = 8; /* of a release that never was */
    nvtxMarkEx(&event);
    CHECK(reduces(comm, 1023));
    nvtxMarkA("iteration 900"); /* not the job's steps: "step" came first, */
    CHECK(reduces(comm, 1023));
    for (int i = 0; i < 63; i++) {
        nvtxMarkA("iteration 901");
    }
    CHECK(reduces(comm, 1023));
    nvtxMarkA("iteration 902"); /* until it comes no more */
    CHECK(reduces(comm, 1902));
    step_by(24, 5); /* the job's own word beats all */
    nvtxMarkA("step 25");
    CHECK(reduces(comm, 1024));
    return 0;
}

/* The same names, of which the user says which one is a step. */
static int own_mark(void)
{
    nvtxMarkA("batch"); /* before recording begins */
    nvtxMarkA("step 3");
    ncclComm_t comm = new_comm(0, 2);
    CHECK(reduces(comm, 1000));
    nvtxMarkA("batch");
    CHECK(reduces(comm, 1001));
    nvtxMarkA("Batch 17");
    CHECK(reduces(comm, 1017));
    return 0;
}

static volatile sig_atomic_t children_signalled;

static void count_child(int number)
{
    (void)number;
    children_signalled++;
}

/* The job that starts the agent: it must see no SIGCHLD and have no child to wait for. */
static int starts_agent(void)
{
    signal(SIGCHLD, count_child);
    int fd = dup(1);
    CHECK(fd > 2 && new_comm(0, 2) != NULL);
    usleep(300000);
    CHECK(children_signalled == 0);
    CHECK(waitpid(-1, NULL, WNOHANG | __WALL) == -1 && errno == ECHILD);
    return 0;
}

/* Frame pointers that lead to no frame: recording must not follow them. Calls ncclAllReduce with this frame pointer. */
int job_wild_call(ncclComm_t comm, uintptr_t frame, void *data);
#if defined(__x86_64__)
__asm__(".text\n"
        ".globl job_wild_call\n"
        ".type job_wild_call,@function\n"
        "job_wild_call:\n"
        "  pushq %rbp\n"
        "  movq %rdi, %r9\n"
        "  movq %rsi, %rbp\n"
        "  movq %rdx, %rdi\n"
        "  movq %rdx, %rsi\n"
        "  movl $1, %edx\n"
        "  movl $7, %ecx\n"
        "  xorl %r8d, %r8d\n"
        "  pushq $0\n"
        "  pushq $0\n"
        "  call ncclAllReduce@PLT\n"
        "  addq $16, %rsp\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size job_wild_call, .-job_wild_call\n");
#else
int job_wild_call(ncclComm_t comm, uintptr_t frame, void *data)
{
    (void)frame;
    return (int)ncclAllReduce(data, data, 1, 7, 0, comm, NULL);
}
#endif

static int wild_frames(void)
{
    ncclComm_t comm = new_comm(0, 2);
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    uintptr_t wild[] = {0,
                        1,
                        8,
                        here + 1,
                        here + 8,
                        here | 7,
                        UINTPTR_MAX,
                        UINTPTR_MAX - 15,
                        (uintptr_t)buffer,
                        here - 64,
                        here + (1u << 20),
                        here + 4096};
    for (size_t i = 0; i < sizeof(wild) / sizeof(wild[0]); i++) {
        CHECK(job_wild_call(comm, wild[i], buffer) == 0);
    }
    return 0;
}

/* A thousand communicators made and destroyed: the table must not fill up with them. */
static int churn(void)
{
    for (int i = 0; i < 20000; i++) {
        ncclComm_t comm = new_comm(0, 4);
        CHECK(comm != NULL && ncclSend(buffer, 1, 0, 3, comm, NULL) == ncclSuccess);
        CHECK(ncclCommDestroy(comm) == ncclSuccess);
    }
    return 0;
}

/* The count of each call is the time just before the call. */
static int clocks(void)
{
    ncclComm_t comm = new_comm(0, 2);
    for (int i = 0; i < 3000; i++) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        size_t ns = (size_t)now.tv_sec * 1000000000u + (size_t)now.tv_nsec;
        CHECK(ncclAllReduce(buffer, buffer, ns, 7, 0, comm, NULL) == ncclSuccess);
        usleep(i % 50 == 0 ? 12000 : 20);
    }
    return 0;
}

static int *knob(const char *name)
{
    return (int *)dlsym(RTLD_DEFAULT, name);
}

/* A communicator's state changes: in progress, done, an error. Each is asked for twice. */
static int async_errors(void)
{
    ncclComm_t comm = new_comm(0, 2);
    ncclResult_t state = ncclInProgress;
    int *async = knob("fake_async");
    CHECK(async != NULL);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
    *async = ncclInProgress;
    CHECK(ncclAllReduce(buffer, buffer, 1, 7, 0, comm, NULL) == ncclInProgress);
    for (int i = 0; i < 100; i++) {
        CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress);
    }
    *async = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
    *async = 6;
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && (int)state == 6);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && (int)state == 6);
    return 0;
}

/* Calls that never return, to be killed. */
static int stuck_in_send(void)
{
    ncclComm_t comm = new_comm(0, 2);
    *knob("fake_block") = 1;
    return (int)ncclSend(buffer, 1, 7, 1, comm, NULL);
}

static int stuck_in_group(void)
{
    ncclComm_t comm = new_comm(0, 2);
    *knob("fake_block") = 2;
    ncclGroupStart();
    ncclSend(buffer, 1, 7, 1, comm, NULL);
    return (int)ncclGroupEnd();
}

static int stuck_in_init(void)
{
    *knob("fake_block") = 3;
    return new_comm(0, 2) == NULL;
}

static int quiet(void)
{
    return 0;
}

static const struct {
    const char *name;
    int (*run)(void);
} modes[] = {
    {"operations", every_operation},
    {"groups", groups},
    {"children", children},
    {"forever", forever},
    {"errno", errno_is_kept},
    {"fork", forks},
    {"threads", threads},
    {"signals", signals},
    {"callsites", callsites},
    {"odd", odd_functions},
    {"waits", waits},
    {"may_wait", may_wait},
    {"orders", orders},
    {"polls", polls},
    {"moe", moe},
    {"names", names},
    {"marks", marks},
    {"own_mark", own_mark},
    {"agent", starts_agent},
    {"wild-frames", wild_frames},
    {"churn", churn},
    {"clocks", clocks},
    {"async", async_errors},
    {"stuck-send", stuck_in_send},
    {"stuck-group", stuck_in_group},
    {"stuck-init", stuck_in_init},
    {"nothing", quiet},
};

int job_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "many") == 0) {
        return many(atoi(argv[2]));
    }
    for (size_t i = 0; argc >= 2 && i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].run();
        }
    }
    fprintf(stderr, "job: no such mode\n");
    return 2;
}

#ifndef JOB_PLUGIN
int main(int argc, char **argv)
{
    return job_main(argc, argv);
}
#endif
