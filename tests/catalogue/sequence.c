/*
 * sequence.c: the last rank makes the right call with one wrong argument.
 *
 * Each program makes ordinary steps before and after, so that a detector which also reports every later call is caught.
 */
#include "tests/catalogue/catalogue.h"

static void before(struct cat *c)
{
    for (int i = 0; i < 8; i++) {
        cat_step(c, 256);
    }
    cat_sync(c);
}

static void after(struct cat *c)
{
    for (int i = 0; i < 8; i++) {
        cat_step(c, 256);
    }
    cat_sync(c);
}

static void wrong_op(struct cat *c)
{
    before(c);
    if (c->culprit) {
        NCCL(ncclBroadcast(c->send, c->recv, 1024, ncclFloat32, 0, c->world, c->stream));
    } else {
        NCCL(ncclAllReduce(c->send, c->recv, 1024, ncclFloat32, ncclSum, c->world, c->stream));
    }
    cat_check_sum(c, 1024);
    after(c);
}

static void wrong_count(struct cat *c)
{
    before(c);
    NCCL(ncclAllReduce(c->send, c->recv, c->culprit ? 1000 : 1024, ncclFloat32, ncclSum, c->world, c->stream));
    cat_check_sum(c, c->culprit ? 1000 : 1024);
    after(c);
}

static void wrong_count_gather(struct cat *c)
{
    before(c);
    NCCL(ncclAllGather(c->send, c->recv, c->culprit ? 512 : 1024, ncclFloat32, c->world, c->stream));
    cat_check_gathered(c, c->culprit ? 512 : 1024);
    after(c);
}

static void wrong_dtype(struct cat *c)
{
    before(c);
    NCCL(ncclAllReduce(c->send, c->recv, 1024, c->culprit ? ncclInt32 : ncclFloat32, ncclSum, c->world, c->stream));
    cat_check_sum(c, 1024);
    after(c);
}

static void wrong_redop(struct cat *c)
{
    before(c);
    NCCL(ncclAllReduce(c->send, c->recv, 1024, ncclFloat32, c->culprit ? ncclMax : ncclSum, c->world, c->stream));
    cat_check_sum(c, 1024);
    after(c);
}

static void wrong_root(struct cat *c)
{
    before(c);
    NCCL(ncclBroadcast(c->send, c->recv, 1024, ncclFloat32, c->culprit ? c->rank : 0, c->world, c->stream));
    cat_check(c, 1024, 1);
    after(c);
}

static void zero_count(struct cat *c)
{
    before(c);
    NCCL(ncclReduceScatter(c->send, c->recv, c->culprit ? 0 : 64, ncclFloat32, ncclSum, c->world, c->stream));
    after(c);
}

const struct cat_program cat_sequence[] = {
    {"wrong-op", wrong_op, "op-mismatch", NULL, "proven", "last", 2, false},
    {"wrong-count", wrong_count, "count-mismatch", NULL, "proven", "last", 2, false},
    {"wrong-count-gather", wrong_count_gather, "count-mismatch", NULL, "proven", "last", 2, false},
    {"wrong-dtype", wrong_dtype, "dtype-mismatch", NULL, "proven", "last", 2, false},
    {"wrong-redop", wrong_redop, "redop-mismatch", NULL, "proven", "last", 2, false},
    {"wrong-root", wrong_root, "root-mismatch", NULL, "proven", "last", 2, false},
    {"zero-count", zero_count, "zero-count", NULL, "proven", "last!", 2, false},
    {0},
};
