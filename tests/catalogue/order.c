/*
 * order.c: two communicators over the same ranks, entered in opposite order.
 */
#include "tests/catalogue/catalogue.h"

static ncclComm_t second(struct cat *c)
{
    ncclComm_t comm;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &comm, NULL));
    return comm;
}

static void reduce(struct cat *c, ncclComm_t comm)
{
    NCCL(ncclAllReduce(c->send, c->recv, 512, ncclFloat32, ncclSum, comm, c->stream));
}

/* The host waits between the two calls: the classic deadlock. */
static void opposite_host(struct cat *c)
{
    ncclComm_t two = second(c);
    for (int i = 0; i < 4; i++) {
        bool swapped = c->culprit && i == 2;
        reduce(c, swapped ? two : c->world);
        cat_sync(c);
        reduce(c, swapped ? c->world : two);
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
}

/* Nobody waits on the host: all calls are issued everywhere, and one stream per rank holds them in opposite order. */
static void opposite_stream(struct cat *c)
{
    ncclComm_t two = second(c);
    for (int i = 0; i < 4; i++) {
        bool swapped = c->culprit && i == 2;
        reduce(c, swapped ? two : c->world);
        reduce(c, swapped ? c->world : two);
    }
    cat_sync(c);
    NCCL(ncclCommDestroy(two));
}

/* What is called on `next` stands behind what has been called on `before`. */
static void stream_behind(cudaStream_t next, cudaStream_t before, cudaEvent_t event)
{
    CUDA(cudaEventRecord(event, before));
    CUDA(cudaStreamWaitEvent(next, event, 0));
}

/* As PyTorch's async_op=True and wait(): a stream for each communicator, and one between them on which nothing of NCCL
 * runs. Each call stands behind the one before by events, and no host waits. */
static void opposite_events(struct cat *c)
{
    ncclComm_t two = second(c);
    cudaStream_t own[2] = {c->stream, c->other}, middle;
    cudaEvent_t event;
    CUDA(cudaStreamCreateWithFlags(&middle, cudaStreamNonBlocking));
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 2; k++) {
            int at = c->culprit && i == 2 ? 1 - k : k;
            stream_behind(own[at], middle, event);
            NCCL(ncclAllReduce(c->send, c->recv, 512, ncclFloat32, ncclSum, at ? two : c->world, own[at]));
            stream_behind(middle, own[at], event);
        }
    }
    CUDA(cudaStreamSynchronize(middle));
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(middle));
    NCCL(ncclCommDestroy(two));
}

/* A ring of communicators, one for each pair of neighbours; each rank takes its own first. */
static void ring_of_pairs(struct cat *c)
{
    ncclComm_t pair[2]; /* [0]: with the next rank, [1]: with the one before */
    for (int color = 0; color < c->size; color++) {
        ncclComm_t comm = NULL;
        bool member = c->rank == color || c->rank == (color + 1) % c->size;
        NCCL(ncclCommSplit(c->world, member ? color : NCCL_SPLIT_NOCOLOR, c->rank, &comm, NULL));
        if (member) {
            pair[c->rank == color ? 0 : 1] = comm;
        }
    }
    for (int i = 0; i < 3; i++) {
        /* Healthy: everybody visits the pairs in the same global order, by colour. */
        int first = c->sick && i == 1 ? 0 : (c->rank < c->prev ? 0 : 1);
        reduce(c, pair[first]);
        cat_sync(c);
        reduce(c, pair[1 - first]);
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(pair[0]));
    NCCL(ncclCommDestroy(pair[1]));
}

const struct cat_program cat_order[] = {
    {"opposite-host", opposite_host, "circular-wait", NULL, "proven", "any", 2, false},
    {"opposite-stream", opposite_stream, "circular-wait", NULL, "proven", "any", 2, false},
    {"opposite-events", opposite_events, "circular-wait", NULL, "proven", "any", 2, false},
    {"ring-of-pairs", ring_of_pairs, "circular-wait", NULL, "proven", "any", 3, false},
    {0},
};
