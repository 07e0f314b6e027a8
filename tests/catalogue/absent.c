/*
 * absent.c: the last rank is not where its peers wait: it left out an exchange, stayed behind alone, aborted, or ended
 * with work that nobody will do any more.
 *
 * In all of them the culprit has made no wrong call at the place of the hang: only the others' calls, or its own calls
 * elsewhere, show whose mistake it is.
 */
#include "tests/catalogue/catalogue.h"

#include <stdlib.h>
#include <unistd.h>

static void steps(struct cat *c, int n)
{
    for (int i = 0; i < n; i++) {
        cat_step(c, 512);
    }
    cat_sync(c);
}

/* Rows that go from one rank to another: the last rank has none in the layer that it is not needed in. */
static size_t rows(const struct cat *c, int layer, int from, int to)
{
    bool idle = layer == 1 && (from == c->size - 1 || to == c->size - 1);
    return idle ? 0 : (size_t)(1 + (from * 3 + to * 5 + layer) % 7) * 16;
}

/* All-to-all-v as PyTorch makes it today: empty messages are posted like others. Backward the rows go the other way. */
static void exchange(struct cat *c, int layer, bool backward)
{
    NCCL(ncclGroupStart());
    for (int peer = 0; peer < c->size; peer++) {
        size_t to = rows(c, layer, c->rank, peer), from = rows(c, layer, peer, c->rank);
        NCCL(ncclSend(c->send, backward ? from : to, ncclFloat32, peer, c->world, c->stream));
        NCCL(ncclRecv(c->recv, backward ? to : from, ncclFloat32, peer, c->world, c->stream));
    }
    NCCL(ncclGroupEnd());
}

/* Three MoE layers, dispatch and combine, forward and backward, then the gradients. */
static void moe_step(struct cat *c, bool skip_forward, bool skip_backward)
{
    for (int layer = 0; layer < 3; layer++) {
        if (!(skip_forward && layer == 1)) {
            exchange(c, layer, false);
            exchange(c, layer, true);
        }
    }
    for (int layer = 2; layer >= 0; layer--) {
        if (!(skip_backward && layer == 1)) {
            exchange(c, layer, false);
            exchange(c, layer, true);
        }
    }
    cat_step(c, 256);
    cat_sync(c);
}

/* The last rank has no rows in one layer and leaves out its exchanges, in which all of its messages are empty. */
static void empty_forward(struct cat *c)
{
    moe_step(c, false, false);
    moe_step(c, c->culprit, false);
}

/* The last rank takes part in forward and not in backward, as when an expert without tokens drops out of autograd. */
static void empty_backward(struct cat *c)
{
    moe_step(c, false, false);
    moe_step(c, false, c->culprit);
}

/* One exchange of nothing but empty messages, left out by the last rank. */
static void empty_alone(struct cat *c)
{
    steps(c, 3);
    for (int i = 0; i < 2; i++) {
        if (i && c->culprit) {
            continue;
        }
        NCCL(ncclGroupStart());
        for (int peer = 0; peer < c->size; peer++) {
            NCCL(ncclSend(c->send, 0, ncclFloat32, peer, c->world, c->stream));
            NCCL(ncclRecv(c->recv, 0, ncclFloat32, peer, c->world, c->stream));
        }
        NCCL(ncclGroupEnd());
    }
    steps(c, 3);
}

/* All have destroyed the communicator and ended, the last rank makes one more call on it. */
static void lone_caller(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        steps(c, 1);
    }
}

static ncclComm_t twin(struct cat *c)
{
    ncclComm_t comm;
    NCCL(ncclCommSplit(c->world, 0, c->rank, &comm, NULL));
    return comm;
}

static void reduce(struct cat *c, ncclComm_t comm)
{
    NCCL(ncclAllReduce(c->send, c->recv, 320, ncclFloat32, ncclSum, comm, c->stream));
}

/* As lone_caller, but the others go on with another communicator and wait there. */
static void lone_behind(struct cat *c)
{
    ncclComm_t two = twin(c);
    for (int i = 0; i < 3; i++) {
        reduce(c, two);
    }
    cat_sync(c);
    if (c->culprit) {
        reduce(c, two);
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
    steps(c, 3);
}

/* The last rank calls on a split what the others call on its parent. */
static void wrong_comm(struct cat *c)
{
    ncclComm_t two = twin(c);
    for (int i = 0; i < 4; i++) {
        reduce(c, c->culprit && i == 2 ? two : c->world);
        cat_sync(c);
        reduce(c, two);
        cat_sync(c);
    }
    NCCL(ncclCommDestroy(two));
}

/* The last rank aborts and ends; its peers wait for it. The healthy ones all end with an abort. */
static void abort_left(struct cat *c)
{
    steps(c, 5);
    if (!c->culprit) {
        steps(c, 2);
    }
    NCCL(ncclCommAbort(c->world));
    c->world = NULL;
}

/* As abort_left, but the last rank stays, inside another call. */
static void abort_stays(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        NCCL(ncclCommAbort(c->world));
        c->world = NULL;
        pause();
        return;
    }
    steps(c, 2);
}

/* The first rank is done, aborts, and ends. Its abort must not hide the mistake among the others. */
static void abort_beside(struct cat *c)
{
    ncclComm_t rest = NULL;
    steps(c, 2);
    NCCL(ncclCommSplit(c->world, c->rank ? 0 : NCCL_SPLIT_NOCOLOR, c->rank, &rest, NULL));
    NCCL(ncclCommAbort(c->world));
    c->world = NULL;
    if (!rest) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        if (!(c->culprit && i == 2)) {
            NCCL(ncclAllReduce(c->send, c->recv, 64 + (size_t)i * 64, ncclFloat32, ncclSum, rest, c->stream));
        }
    }
    cat_sync(c);
    NCCL(ncclCommDestroy(rest));
}

/* Work on the stream that does not end while the process lives. */
static void for_ever(void *arg)
{
    (void)arg;
    pause();
}

static void at_once(void *arg)
{
    (void)arg;
}

/* The last rank has enqueued all calls, behind something long, and ends without waiting for them. */
static void left_behind(struct cat *c)
{
    steps(c, 5);
    CUDA(cudaLaunchHostFunc(c->stream, c->culprit ? for_ever : at_once, NULL));
    for (int i = 0; i < 3; i++) {
        cat_step(c, 512);
    }
    if (c->culprit) {
        exit(0);
    }
    cat_sync(c);
}

/* The last rank leaves out a call, and then all split: it waits for them in the split. */
static void skip_then_split(struct cat *c)
{
    ncclComm_t two;
    steps(c, 4);
    if (!c->culprit) {
        cat_step(c, 640);
        cat_sync(c);
    }
    two = twin(c);
    reduce(c, two);
    cat_sync(c);
    NCCL(ncclCommDestroy(two));
}

/* The last rank leaves out the split. */
static void split_skipped(struct cat *c)
{
    ncclComm_t two = NULL;
    steps(c, 4);
    if (!c->culprit) {
        two = twin(c);
    }
    steps(c, 4);
    if (two) {
        NCCL(ncclCommDestroy(two));
    }
}

/* The last rank believes that there is one rank more. */
static void sizes_differ(struct cat *c)
{
    ncclUniqueId id;
    cat_share(c, "sizes", &id);
    NCCL(ncclCommInitRank(&c->world, c->size + c->culprit, id, c->rank));
    steps(c, 2);
}

/* The last rank takes the place of the one before it. */
static void rank_twice(struct cat *c)
{
    ncclUniqueId id;
    cat_share(c, "twice", &id);
    NCCL(ncclCommInitRank(&c->world, c->size, id, c->culprit ? c->rank - 1 : c->rank));
    steps(c, 2);
}

#define EXCHANGE "alltoallv-mismatch|p2p-unmatched"
const struct cat_program cat_absent[] = {
    {"empty-forward", empty_forward, EXCHANGE, EXCHANGE "|p2p-bytes", "proven", "last", 2, false},
    {"empty-backward", empty_backward, EXCHANGE, EXCHANGE "|p2p-bytes", "proven", "last", 2, false},
    {"empty-alone", empty_alone, EXCHANGE, NULL, "proven", "last", 2, false},
    {"lone-caller", lone_caller, "call-added", "call-added|sequence-tie", "proven", "last", 2, false},
    {"lone-behind", lone_behind, "call-added", "call-added|sequence-tie", "proven", "last", 2, false},
    {"wrong-comm", wrong_comm, "circular-wait|call-skipped|call-added", "circular-wait|sequence-tie", "proven", "last",
     2, false},
    {"abort-left", abort_left, "call-skipped|rank-finished", "sequence-tie|call-skipped", "proven", "last", 2, false},
    {"abort-stays", abort_stays, "call-skipped", "sequence-tie|call-skipped", "proven", "last", 2, false},
    {"abort-beside", abort_beside, "call-skipped", NULL, "any", "last", 4, false},
    {"left-behind", left_behind, "rank-finished", NULL, "proven", "last!", 2, false},
    {"skip-then-split", skip_then_split, "crossed-wait|call-skipped", "crossed-wait|sequence-tie", "proven@7", "last",
     2, false},
    {"split-skipped", split_skipped, "init-missing|crossed-wait|call-skipped", NULL, "proven@7", "last", 2, false},
    {"sizes-differ", sizes_differ, "init-missing", NULL, "any", "last", 2, true},
    {"rank-twice", rank_twice, "init-missing", NULL, "any", "last", 2, true},
    {0},
};
