/*
 * job_waits.c: modes in which a host waits for its device, polls it, orders its streams, or is stuck in a call.
 */
#include "tests/interposer/job.h"

#include <dlfcn.h>
#include <errno.h>
#include <time.h>

#define EVENT(n) ((void *)(uintptr_t)(0x9000 + 16 * (n)))
#define REDUCE(comm, n)                                                                                                \
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 7, 0, comm, STREAM(n)) == ncclSuccess) /* one record */

/* Calls in which a host may wait. The fake runtime adds up what it gets. */
int job_mode_may_wait(void)
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
    CHECK(job_comm(0, 2) != NULL);
    CHECK(release(NULL) == 40); /* waits for nothing */
    CHECK(release(a) == 1040);
    CHECK(stream(STREAM(1)) == 31);
    CHECK(release_host(a) == 1041); /* nothing but waits has been recorded since the other one */
    CHECK(job_comm(0, 2) != NULL);
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
int job_mode_waits(void)
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
    ncclComm_t comm = job_comm(0, 2);
    CHECK(comm != NULL);
    CHECK(stream(STREAM(1)) == 31);
    CHECK(stream(NULL) == 31);
    CHECK(own(NULL) == 32);
    CHECK(event(job_buffer) == 33); /* never recorded */
    CHECK(record(job_buffer, STREAM(1)) == 35);
    CHECK(event(job_buffer) == 33);
    CHECK(device() == 34);
    return 0;
}

/* Streams that wait for each other by events, with calls on them. test_record.c knows which call is behind which. */
int job_mode_orders(void)
{
    typedef int (*two_t)(void *, void *, unsigned);
    typedef int (*one_t)(void *);
    two_t record = (two_t)dlsym(RTLD_DEFAULT, "cudaEventRecordWithFlags");
    two_t wait = (two_t)dlsym(RTLD_DEFAULT, "cudaStreamWaitEvent");
    one_t forget_event = (one_t)dlsym(RTLD_DEFAULT, "cudaEventDestroy");
    one_t forget_stream = (one_t)dlsym(RTLD_DEFAULT, "cudaStreamDestroy");
    one_t sync = (one_t)dlsym(RTLD_DEFAULT, "cudaStreamSynchronize");
    CHECK(record != NULL && wait != NULL && forget_event != NULL && forget_stream != NULL && sync != NULL);
    ncclComm_t comm = job_comm(0, 2);
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
int job_mode_polls(void)
{
    typedef int (*poll_t)(void *);
    typedef int (*record_t)(void *, void *);
    poll_t stream = (poll_t)dlsym(RTLD_DEFAULT, "cudaStreamQuery");
    poll_t event = (poll_t)dlsym(RTLD_DEFAULT, "cudaEventQuery");
    record_t record = (record_t)dlsym(RTLD_DEFAULT, "cudaEventRecord");
    void (*set_ready)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "fake_set_ready");
    CHECK(stream != NULL && event != NULL && record != NULL && set_ready != NULL);
    ncclComm_t comm = job_comm(0, 2);
    CHECK(comm != NULL);
    uint64_t begin = now_ms();
    while (now_ms() < begin + 700) {
        CHECK(stream(STREAM(1)) == 600);
    }
    set_ready(1);
    CHECK(stream(STREAM(1)) == 0);
    set_ready(0);
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    CHECK(record(job_buffer, STREAM(1)) == 35);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        CHECK(event(job_buffer) == 600);
        set_ready(1);
        CHECK(stream(STREAM(1)) == 0); /* another thing that is ready does not end the loop */
        set_ready(0);
    }
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        CHECK(stream(STREAM(1)) == 600);
        CHECK(stream(STREAM(2)) == 600);
    }
    CHECK(ncclAllReduce(job_buffer, job_buffer, 4, 7, 0, comm, STREAM(1)) == ncclSuccess);
    begin = now_ms();
    while (now_ms() < begin + 300) {
        for (int i = 1; i <= 5; i++) {
            CHECK(stream(STREAM(i)) == 600);
        }
    }
    CHECK(event(job_buffer) == 600);
    set_ready(1);
    CHECK(event(job_buffer) == 0);
    return 0;
}

static int *knob(const char *name)
{
    return (int *)dlsym(RTLD_DEFAULT, name);
}

/* A communicator's state changes: in progress, done, an error. Each is asked for twice. */
int job_mode_async_errors(void)
{
    ncclComm_t comm = job_comm(0, 2);
    ncclResult_t state = ncclInProgress;
    int *async = knob("fake_async");
    CHECK(async != NULL);
    CHECK(ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclSuccess);
    *async = ncclInProgress;
    CHECK(ncclAllReduce(job_buffer, job_buffer, 1, 7, 0, comm, NULL) == ncclInProgress);
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
int job_mode_stuck_in_send(void)
{
    ncclComm_t comm = job_comm(0, 2);
    *knob("fake_block") = 1;
    return (int)ncclSend(job_buffer, 1, 7, 1, comm, NULL);
}

int job_mode_stuck_in_group(void)
{
    ncclComm_t comm = job_comm(0, 2);
    *knob("fake_block") = 2;
    ncclGroupStart();
    ncclSend(job_buffer, 1, 7, 1, comm, NULL);
    return (int)ncclGroupEnd();
}

int job_mode_stuck_in_init(void)
{
    *knob("fake_block") = 3;
    return job_comm(0, 2) == NULL;
}
