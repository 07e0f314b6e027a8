/*
 * mixed.c: several kinds of calls or several faults together: collectives beside messages, groups over communicators
 * and streams, a second mistake after one that hangs nothing, buffers that are there or not.
 */
#include "tests/catalogue/catalogue.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void steps(struct cat *c, int n)
{
    for (int i = 0; i < n; i++) {
        cat_step(c, 512);
    }
    cat_sync(c);
}

static void ring(struct cat *c, ncclComm_t comm, cudaStream_t stream)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, 96, ncclFloat32, c->next, comm, stream));
    NCCL(ncclRecv(c->recv, 96, ncclFloat32, c->prev, comm, stream));
    NCCL(ncclGroupEnd());
}

/* The last rank leaves out a collective, and goes on to the messages of the same communicator. */
static void skip_then_messages(struct cat *c)
{
    for (int i = 0; i < 4; i++) {
        if (!(c->culprit && i == 2)) {
            cat_step(c, 640);
            cat_sync(c);
        }
        ring(c, c->world, c->stream);
        cat_sync(c);
    }
}

/* The last rank calls the collective with no elements, which NCCL treats as no call. */
static void zero_then_messages(struct cat *c)
{
    for (int i = 0; i < 4; i++) {
        cat_step(c, c->culprit && i == 2 ? 0 : 640);
        cat_sync(c);
        ring(c, c->world, c->stream);
        cat_sync(c);
    }
}

/* A call too many, inside a group. */
static void added_in_group(struct cat *c)
{
    for (int i = 0; i < 4; i++) {
        NCCL(ncclGroupStart());
        cat_step(c, 100);
        cat_step(c, 200);
        if (c->culprit && i == 2) {
            cat_step(c, 50);
        }
        NCCL(ncclGroupEnd());
        cat_sync(c);
    }
    steps(c, 3);
}

static void wrong_max(struct cat *c)
{
    NCCL(ncclAllReduce(c->send, c->recv, 640, ncclFloat32, c->culprit ? ncclMax : ncclSum, c->world, c->stream));
    cat_sync(c);
}

/* Wrong numbers, which hang nothing; much later the rank dies. */
static void then_killed(struct cat *c)
{
    steps(c, 3);
    wrong_max(c);
    for (int i = 0; i < 20; i++) {
        steps(c, 2);
    }
    if (c->culprit) {
        raise(SIGKILL);
    }
    steps(c, 2);
}

/* Wrong numbers, and then a call left out. */
static void then_skipped(struct cat *c)
{
    steps(c, 3);
    wrong_max(c);
    for (int i = 0; i < 20; i++) {
        steps(c, 2);
    }
    if (!c->culprit) {
        cat_step(c, 128);
    }
    cat_step(c, 256);
    cat_step(c, 384);
    cat_sync(c);
}

static ncclComm_t twin(struct cat *c)
{
    ncclComm_t comm;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &comm, NULL));
    return comm;
}

static void reduce(struct cat *c, ncclComm_t comm, cudaStream_t stream)
{
    NCCL(ncclAllReduce(c->send, c->recv, 320, ncclFloat32, ncclSum, comm, stream));
}

/* Opposite orders inside one group: NCCL launches by its own order. The job goes on, with a late rank in every round.
 */
static void group_opposite(struct cat *c)
{
    ncclComm_t two = twin(c);
    for (int i = 0; i < 3; i++) {
        bool swapped = c->rank % 2;
        if (c->rank == c->size - 1) {
            usleep(400 * 1000);
        }
        NCCL(ncclGroupStart());
        reduce(c, swapped ? two : c->world, c->stream);
        reduce(c, swapped ? c->world : two, c->stream);
        NCCL(ncclGroupEnd());
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
}

/* group_opposite on a release that keeps the program's order. */
static void group_opposite_old(struct cat *c)
{
    setenv("HOSTNCCL_GROUP_ORDER", "program", 1);
    c->world = cat_join(c, "old");
    ncclComm_t two = twin(c);
    for (int i = 0; i < 3; i++) {
        bool swapped = c->culprit && i == 1;
        NCCL(ncclGroupStart());
        reduce(c, swapped ? two : c->world, c->stream);
        reduce(c, swapped ? c->world : two, c->stream);
        NCCL(ncclGroupEnd());
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
}

/*
 * A group of the world on one stream and of a second communicator on another. The first rank has a receive before it;
 * the last sends when its second stream is done. A group is joined for each communicator: behind the first stream the
 * receive holds nothing that the last rank waits for, behind the second one it is a circle.
 */
static void second_stream(struct cat *c)
{
    ncclComm_t two = twin(c), talk = twin(c);
    cudaStream_t third;
    CUDA(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) {
        if (c->rank == 0) {
            NCCL(ncclRecv(c->recv, 32, ncclFloat32, c->size - 1, talk, c->sick && i == 1 ? c->other : c->stream));
        }
        NCCL(ncclGroupStart());
        reduce(c, c->world, c->stream);
        reduce(c, two, c->other);
        NCCL(ncclGroupEnd());
        CUDA(cudaStreamSynchronize(c->other));
        if (c->rank == c->size - 1) {
            NCCL(ncclSend(c->send, 32, ncclFloat32, 0, talk, third));
            CUDA(cudaStreamSynchronize(third));
        }
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
    NCCL(ncclCommDestroy(talk));
}

/* Calls of one communicator are in order also on two streams: the second call waits for the first, and for everything
 * before that. */
static void order_across_streams(struct cat *c)
{
    ncclComm_t talk = twin(c);
    cudaStream_t third;
    CUDA(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    for (int i = 0; i < 3; i++) {
        if (c->rank == 0) {
            NCCL(ncclRecv(c->recv, 32, ncclFloat32, c->size - 1, talk, c->stream));
        }
        reduce(c, c->world, c->stream);
        reduce(c, c->world, c->other);
        if (c->culprit && i == 1) { /* the culprit waits before it has sent the message that the first rank waits for */
            CUDA(cudaStreamSynchronize(c->other));
        }
        if (c->rank == c->size - 1) {
            usleep(300 * 1000);
            NCCL(ncclSend(c->send, 32, ncclFloat32, 0, talk, third));
            CUDA(cudaStreamSynchronize(third));
        }
        CUDA(cudaStreamSynchronize(c->other));
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(talk));
}

/* Everyone sends to its neighbour first: short messages fit NCCL's buffers. Then one rank is late, so all wait for a
 * while. */
static void eager(struct cat *c)
{
    setenv("HOSTNCCL_EAGER", "4096", 1);
    c->world = cat_join(c, "eager");
    for (int i = 0; i < 3; i++) {
        NCCL(ncclSend(c->send, 256, ncclFloat32, c->next, c->world, c->stream));
        cat_sync(c);
        NCCL(ncclRecv(c->recv, 256, ncclFloat32, c->prev, c->world, c->stream));
        if (c->rank == c->size - 1) {
            usleep(400 * 1000);
        }
        cat_step(c, 128);
        cat_sync(c);
    }
}

/* Everyone sends before it receives: messages longer than NCCL's buffers hang; `eager` has the short ones. */
static void send_first(struct cat *c)
{
    cat_step(c, 128);
    cat_sync(c);
    if (c->sick) {
        NCCL(ncclSend(c->send, 256, ncclFloat32, c->next, c->world, c->stream));
        NCCL(ncclRecv(c->recv, 256, ncclFloat32, c->prev, c->world, c->stream));
    } else {
        ring(c, c->world, c->stream);
    }
    cat_sync(c);
}

/* The last rank passes no buffer: its device faults, and the rank sees the error and ends. */
static void null_buffer(struct cat *c)
{
    steps(c, 4);
    NCCL(ncclAllReduce(c->culprit ? NULL : c->send, c->recv, 640, ncclFloat32, ncclSum, c->world, c->stream));
    CUDA(cudaStreamSynchronize(c->stream));
    steps(c, 4);
}

/* As many bytes of another datatype: NCCL moves bytes, and nothing hangs. The numbers are garbage all the same. */
static void other_type(struct cat *c, bool broadcast)
{
    ncclDataType_t type = c->culprit ? ncclInt32 : ncclFloat32;
    steps(c, 3);
    for (int i = 0; i < 5; i++) {
        if (broadcast) {
            NCCL(ncclBroadcast(c->send, c->recv, 256, type, 0, c->world, c->stream));
        } else {
            NCCL(ncclAllGather(c->send, c->recv, 256, type, c->world, c->stream));
        }
        cat_sync(c);
    }
    steps(c, 3);
}

static void other_type_gather(struct cat *c)
{
    other_type(c, false);
}

static void other_type_broadcast(struct cat *c)
{
    other_type(c, true);
}

#define CIRCLE "circular-wait|p2p-unmatched|p2p-deadlock|rank-blocked"
const struct cat_program cat_mixed[] = {
    {"skip-then-messages", skip_then_messages, "call-skipped", "call-skipped|sequence-tie|p2p-unmatched|circular-wait",
     "any", "last", 2, false},
    {"zero-then-messages", zero_then_messages, "zero-count", NULL, "proven", "last!", 2, false},
    {"added-in-group", added_in_group, "call-added", NULL, "any", "last", 2, false},
    {"then-killed", then_killed, "redop-mismatch+rank-dead", NULL, "proven", "last+last!", 2, false},
    {"then-skipped", then_skipped, "redop-mismatch+call-skipped", "redop-mismatch+call-skipped|call-added|sequence-tie",
     "proven+any", "last", 2, false},
    {"group-opposite-old", group_opposite_old, "circular-wait|collective-stuck", NULL, "any", "any", 2, true},
    {"second-stream", second_stream, CIRCLE, NULL, "proven", "first?", 2, false},
    {"order-across-streams", order_across_streams, CIRCLE, NULL, "proven", "last?", 2, false},
    {"send-first", send_first, "p2p-deadlock", NULL, "any", "any", 2, false},
    {"other-type-gather", other_type_gather, "dtype-mismatch", NULL, "note", "any", 2, false},
    {"other-type-broadcast", other_type_broadcast, "dtype-mismatch", NULL, "note", "any", 2, false},
    {"null-buffer", null_buffer, "rank-dead|rank-finished", NULL, "proven", "last!", 2, false},
    {0},
};

#define HEALTHY(name, run, no_world)                                                                                   \
    {                                                                                                                  \
        name, run, "-", NULL, "-", "-", 2, no_world                                                                    \
    }
const struct cat_program cat_mixed_healthy[] = {
    HEALTHY("group-opposite", group_opposite, false),
    HEALTHY("eager", eager, true),
    {0},
};
