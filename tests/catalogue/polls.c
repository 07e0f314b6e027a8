/*
 * polls.c: hosts that do not wait in the CUDA runtime but ask again and again: for a stream, for an event, and with a
 * watchdog thread beside.
 *
 * The mistakes are those of other families. What differs is that no host stands in a call: a rank that polls looks,
 * call by call, like one that goes on.
 */
#include "tests/catalogue/catalogue.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static cudaEvent_t event_of(void)
{
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static void ask(cudaError_t answer)
{
    if (answer != cudaSuccess && answer != cudaErrorNotReady) {
        CUDA(answer);
    }
}

/* Even ranks poll the stream without a pause, odd ones an event behind their work, as often as the scheduler lets them.
 */
static void wait_by_polls(struct cat *c, cudaEvent_t event)
{
    cudaError_t answer = cudaErrorNotReady;
    CUDA(cudaEventRecord(event, c->stream));
    while (answer == cudaErrorNotReady) {
        answer = c->rank % 2 == 0 ? cudaStreamQuery(c->stream) : cudaEventQuery(event);
        ask(answer);
        sched_yield();
    }
}

static void reduce(struct cat *c, ncclComm_t comm, size_t count)
{
    NCCL(ncclAllReduce(c->send, c->recv, count, ncclFloat32, ncclSum, comm, c->stream));
}

/* Two communicators, entered by the last rank in the other order; the host waits for each call in the given way. */
static void opposite(struct cat *c, void (*wait)(struct cat *c, cudaEvent_t event))
{
    ncclComm_t two;
    cudaEvent_t event = event_of();
    NCCL(ncclCommSplit(c->world, 0, c->rank, &two, NULL));
    for (int i = 0; i < 4; i++) {
        bool swapped = c->culprit && i == 2;
        reduce(c, swapped ? two : c->world, 512);
        wait(c, event);
        reduce(c, swapped ? c->world : two, 512);
        wait(c, event);
    }
    NCCL(ncclCommDestroy(two));
    CUDA(cudaEventDestroy(event));
}

static void poll_opposite(struct cat *c)
{
    opposite(c, wait_by_polls);
}

/* One call of a step, left out by the last rank. */
static void poll_skipped(struct cat *c)
{
    cudaEvent_t event = event_of();
    for (int i = 0; i < 6; i++) {
        for (size_t k = 0; k < 4; k++) {
            if (!(c->culprit && i == 3 && k == 1)) {
                reduce(c, c->world, 64 + 64 * k);
            }
            if (k % 2 == 1) {
                wait_by_polls(c, event);
            }
        }
    }
    wait_by_polls(c, event);
    CUDA(cudaEventDestroy(event));
}

/* Asks for an event behind its work and for its stream, one after the other, until both are ready. */
static void wait_by_turns(struct cat *c, cudaEvent_t event)
{
    cudaError_t first = cudaErrorNotReady, second = cudaErrorNotReady;
    CUDA(cudaEventRecord(event, c->stream));
    while (first == cudaErrorNotReady || second == cudaErrorNotReady) {
        ask(first = cudaEventQuery(event));
        ask(second = cudaStreamQuery(c->stream));
        sched_yield();
    }
}

/* As poll-opposite; each host polls two things by turns. */
static void poll_turns(struct cat *c)
{
    opposite(c, wait_by_turns);
}

/*
 * Its healthy twin: the hosts poll two streams for whichever is ready first. The last rank waits in the call that they
 * make next, and they have made the call that it makes next; rank 0, late and inside no call, sets them all free.
 */
static void poll_either(struct cat *c)
{
    ncclComm_t two, three;
    cudaStream_t beside;
    bool last = c->rank == c->size - 1;
    cudaError_t first = cudaErrorNotReady, second = cudaErrorNotReady;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &two, NULL));
    NCCL(ncclCommSplit(c->world, 0, c->rank, &three, NULL));
    CUDA(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking));
    reduce(c, c->world, 64);
    cat_sync(c);
    if (!last) {
        reduce(c, c->world, 512);
    }
    if (c->rank == 0) {
        usleep(2500000);
    }
    NCCL(ncclAllReduce(c->send, c->recv, 256, ncclFloat32, ncclSum, two, beside));
    while (c->rank != 0 && !last && first == cudaErrorNotReady && second == cudaErrorNotReady) {
        ask(first = cudaStreamQuery(c->stream));
        ask(second = cudaStreamQuery(beside));
        sched_yield();
    }
    NCCL(ncclAllReduce(c->send, c->recv, 128, ncclFloat32, ncclSum, three, beside));
    if (last) {
        CUDA(cudaStreamSynchronize(beside));
        reduce(c, c->world, 512);
    }
    cat_sync(c);
    CUDA(cudaStreamSynchronize(beside));
    CUDA(cudaStreamDestroy(beside));
    NCCL(ncclCommDestroy(three));
    NCCL(ncclCommDestroy(two));
}

struct watchdog {
    cudaEvent_t event;
    atomic_bool over;
};

/* A watchdog like that of a process group: looks at the calls in flight, and sleeps. */
static void *watch(void *argument)
{
    struct watchdog *w = argument;
    while (!atomic_load(&w->over)) {
        for (int i = 0; i < 3; i++) {
            ask(cudaEventQuery(w->event));
        }
        usleep(50000);
    }
    return NULL;
}

/* Every rank is late once, by more than a stall, and all others poll meanwhile: longer than any loop of a healthy step
 * would. */
static void poll_late(struct cat *c)
{
    struct watchdog w = {.event = event_of()};
    cudaEvent_t event = event_of();
    pthread_t thread;
    CUDA(cudaEventRecord(w.event, c->stream));
    if (pthread_create(&thread, NULL, watch, &w) != 0) {
        exit(9);
    }
    for (int i = 0; i < 4; i++) {
        if (c->rank == (i * 3) % c->size) {
            usleep(1500000);
        }
        CUDA(cudaEventRecord(w.event, c->stream));
        reduce(c, c->world, 512);
        wait_by_polls(c, event);
    }
    atomic_store(&w.over, true);
    pthread_join(thread, NULL);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaEventDestroy(w.event));
}

const struct cat_program cat_polls[] = {
    {"poll-opposite", poll_opposite, "circular-wait", NULL, "suspected", "any", 2, false},
    {"poll-turns", poll_turns, "circular-wait", NULL, "suspected", "any", 2, false},
    {"poll-skipped", poll_skipped, "call-skipped", "call-skipped|sequence-tie", "any", "last", 2, false},
    {0},
};

const struct cat_program cat_polls_healthy[] = {
    {"poll-late", poll_late, "-", NULL, "-", "-", 2, false},
    {"poll-either", poll_either, "-", NULL, "-", "-", 2, false},
    {0},
};
