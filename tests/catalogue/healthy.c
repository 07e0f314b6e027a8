/*
 * healthy.c: correct programs that look odd. Both twins are healthy: a verdict here is a false alarm.
 */
#include "tests/catalogue/catalogue.h"

#include <unistd.h>

/* All-gather moves bytes: another datatype with as many bytes is fine. */
static void same_bytes(struct cat *c)
{
    bool odd = c->rank == c->size - 1;
    for (int i = 0; i < 5; i++) {
        NCCL(ncclAllGather(c->send, c->recv, odd ? 1024 : 256, odd ? ncclUint8 : ncclFloat32, c->world, c->stream));
    }
    cat_check_gathered(c, 256);
    cat_sync(c);
}

/* Zero elements everywhere: NCCL drops the call on every rank. */
static void all_zero(struct cat *c)
{
    for (int i = 0; i < 5; i++) {
        cat_step(c, 0);
        cat_step(c, 128);
    }
    cat_sync(c);
}

/* Ranks make the same calls in different orders, inside one group of sends and receives to different peers. */
static void group_order(struct cat *c)
{
    for (int i = 0; i < 5; i++) {
        NCCL(ncclGroupStart());
        for (int k = 0; k < c->size; k++) {
            int peer = c->rank % 2 ? k : c->size - 1 - k;
            NCCL(ncclSend(c->send, 64, ncclFloat32, peer, c->world, c->stream));
            NCCL(ncclRecv(c->recv, 64, ncclFloat32, peer, c->world, c->stream));
        }
        NCCL(ncclGroupEnd());
    }
    cat_sync(c);
}

/* One rank is slow, again and again, but not stuck. */
static void straggler(struct cat *c)
{
    for (int i = 0; i < 4; i++) {
        if (c->rank == c->size - 1) {
            usleep(700 * 1000);
        }
        cat_step(c, 256);
        cat_sync(c);
    }
}

/* Only some ranks use a communicator; the others go on and finish. */
static void half_communicator(struct cat *c)
{
    ncclComm_t half;
    NCCL(ncclCommSplit(c->world, c->rank % 2, c->rank, &half, NULL));
    for (int i = 0; i < (c->rank % 2 ? 20 : 3); i++) {
        NCCL(ncclAllReduce(c->send, c->recv, 64, ncclFloat32, ncclSum, half, c->stream));
    }
    cat_sync(c);
    NCCL(ncclCommDestroy(half));
    cat_step(c, 64);
    cat_sync(c);
}

/* Two communicators on two streams, in the same order everywhere, overlapping. */
static void overlap(struct cat *c)
{
    ncclComm_t two;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &two, NULL));
    for (int i = 0; i < 10; i++) {
        cat_step(c, 512);
        NCCL(ncclAllReduce(c->send, c->recv, 256, ncclFloat32, ncclSum, two, c->other));
    }
    cat_sync(c);
    CUDA(cudaStreamSynchronize(c->other));
    NCCL(ncclCommDestroy(two));
}

/* Two communicators on two streams of which none waits for the other: both orders at once go well. */
static void opposite_apart(struct cat *c)
{
    ncclComm_t two;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &two, NULL));
    for (int i = 0; i < 10; i++) {
        for (int k = 0; k < 2; k++) {
            bool second = (k == 1) != (c->rank == c->size - 1);
            NCCL(ncclAllReduce(c->send, c->recv, 256, ncclFloat32, ncclSum, second ? two : c->world,
                               second ? c->other : c->stream));
        }
    }
    cat_sync(c);
    CUDA(cudaStreamSynchronize(c->other));
    NCCL(ncclCommDestroy(two));
}

/* PreMulSum: the scalar and the operator's handle differ from rank to rank, and that is right. */
static void premul(struct cat *c)
{
    ncclRedOp_t op;
    float scalar = 1.0f / (float)(c->rank + 1);
    NCCL(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, c->world));
    NCCL(ncclAllReduce(c->send, c->recv, 256, ncclFloat32, op, c->world, c->stream));
    NCCL(ncclRedOpDestroy(op, c->world));
    cat_sync(c);
}

#define HEALTHY(name, run)                                                                                             \
    {                                                                                                                  \
        name, run, "-", NULL, "-", "-", 2, false                                                                       \
    }
const struct cat_program cat_healthy[] = {
    HEALTHY("same-bytes", same_bytes),
    HEALTHY("all-zero", all_zero),
    HEALTHY("group-order", group_order),
    HEALTHY("opposite-apart", opposite_apart),
    HEALTHY("straggler", straggler),
    HEALTHY("half-communicator", half_communicator),
    HEALTHY("overlap", overlap),
    HEALTHY("premul", premul),
    {0},
};
