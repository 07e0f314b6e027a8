/*
 * p2p.c: point-to-point calls that do not pair up.
 */
#include "tests/catalogue/catalogue.h"

static void ring_exchange(struct cat *c, size_t send_count, size_t recv_count)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, send_count, ncclFloat32, c->next, c->world, c->stream));
    NCCL(ncclRecv(c->recv, recv_count, ncclFloat32, c->prev, c->world, c->stream));
    NCCL(ncclGroupEnd());
}

static void pipeline(struct cat *c, size_t last_count)
{
    /* A pipeline stage receives from the one before and sends to the one after. */
    if (c->rank > 0) {
        NCCL(ncclRecv(c->recv, 512, ncclFloat32, c->rank - 1, c->world, c->stream));
    }
    if (c->rank < c->size - 1) {
        NCCL(ncclSend(c->send, c->rank == c->size - 2 ? last_count : 512, ncclFloat32, c->rank + 1, c->world,
                      c->stream));
    }
    cat_sync(c);
    if (c->rank > 0) {
        cat_check(c, 512, (float)c->rank);
    }
}

static void bytes_differ(struct cat *c)
{
    pipeline(c, 512);
    pipeline(c, c->sick ? 500 : 512);
    pipeline(c, 512);
}

/* The first rank sends once more than the last one receives, and the last one is done. */
static void unmatched(struct cat *c)
{
    cat_step(c, 128);
    cat_sync(c);
    if (c->rank == 0) {
        NCCL(ncclSend(c->send, 256, ncclFloat32, c->size - 1, c->world, c->stream));
        if (c->sick) {
            NCCL(ncclSend(c->send, 256, ncclFloat32, c->size - 1, c->world, c->stream));
        }
        cat_sync(c);
    } else if (c->rank == c->size - 1) {
        NCCL(ncclRecv(c->recv, 256, ncclFloat32, 0, c->world, c->stream));
        cat_sync(c);
    }
}

/* Everyone sends to its neighbour first and receives afterwards: only a group makes that safe. */
static void head_to_head(struct cat *c)
{
    ring_exchange(c, 256, 256);
    cat_sync(c);
    if (c->sick) {
        NCCL(ncclSend(c->send, 256, ncclFloat32, c->next, c->world, c->stream));
        cat_sync(c);
        NCCL(ncclRecv(c->recv, 256, ncclFloat32, c->prev, c->world, c->stream));
        cat_sync(c);
    } else {
        ring_exchange(c, 256, 256);
        cat_sync(c);
    }
}

static size_t rows(int from, int to)
{
    return (size_t)((from * 3 + to * 5) % 7) * 16;
}

/* All-to-all-v as frameworks issue it: zero counts are left out. The last rank expects a little more from rank 0. */
static void alltoallv(struct cat *c)
{
    for (int round = 0; round < 3; round++) {
        NCCL(ncclGroupStart());
        for (int peer = 0; peer < c->size; peer++) {
            size_t to = rows(c->rank, peer), from = rows(peer, c->rank);
            if (c->culprit && round == 1 && peer == 0) {
                from += 16;
            }
            if (to > 0) {
                NCCL(ncclSend(c->send, to, ncclFloat32, peer, c->world, c->stream));
            }
            if (from > 0) {
                NCCL(ncclRecv(c->recv, from, ncclFloat32, peer, c->world, c->stream));
            }
        }
        NCCL(ncclGroupEnd());
    }
    cat_sync(c);
}

const struct cat_program cat_p2p[] = {
    {"bytes-differ", bytes_differ, "p2p-bytes", NULL, "proven", "any", 2, false},
    {"unmatched", unmatched, "p2p-unmatched|rank-finished", NULL, "proven", "any", 2, false},
    {"head-to-head", head_to_head, "p2p-deadlock", NULL, "proven", "any", 2, false},
    {"alltoallv", alltoallv, "alltoallv-mismatch", "alltoallv-mismatch|p2p-bytes|p2p-unmatched", "proven", "any", 2,
     false},
    {0},
};
