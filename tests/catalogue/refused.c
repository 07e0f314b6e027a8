/*
 * refused.c: calls that NCCL refuses on one rank, and groups that are only simulated. Nothing is enqueued then. So a
 * rank that makes the right call afterwards has done nothing wrong, and a rank that does not leaves its peers waiting.
 */
#include "tests/catalogue/catalogue.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void steps(struct cat *c, int n)
{
    for (int i = 0; i < n; i++) {
        cat_step(c, 256 + (size_t)i);
    }
}

/* Whether this rank makes the refused call, in the healthy programs too. */
static bool odd(const struct cat *c)
{
    return c->rank == c->size - 1;
}

static void refused(ncclResult_t result, const char *what)
{
    if (result == ncclSuccess) {
        fprintf(stderr, "%s: was not refused\n", what);
        exit(9);
    }
}

/* A broadcast from a root that does not exist: NCCL refuses it at once. */
static void wrong_broadcast(struct cat *c)
{
    refused(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, c->size, c->world, c->stream), "a broadcast without root");
}

/* The application sees the error and makes the call again. */
static void retry(struct cat *c)
{
    for (int i = 0; i < 3; i++) {
        steps(c, 4);
        if (odd(c)) {
            wrong_broadcast(c);
            usleep(i == 2 ? 150 * 1000 : 0);
        }
        NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
    }
    steps(c, 4);
    cat_sync(c);
}

/* One call of a group is refused, and with it the whole group; the group is made again. */
static void retry_group(struct cat *c)
{
    steps(c, 4);
    for (int i = 0; i < 3; i++) {
        if (odd(c)) {
            NCCL(ncclGroupStart());
            cat_step(c, 100);
            wrong_broadcast(c);
            NCCL(ncclSend(c->send, 64, ncclFloat32, c->next, c->world, c->stream));
            cat_step(c, 200);
            refused(ncclGroupEnd(), "a group with a broadcast without root");
            usleep(i == 2 ? 150 * 1000 : 0);
        }
        NCCL(ncclGroupStart());
        cat_step(c, 100);
        NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
        cat_step(c, 200);
        NCCL(ncclSend(c->send, 64, ncclFloat32, c->next, c->world, c->stream));
        NCCL(ncclRecv(c->recv, 64, ncclFloat32, c->prev, c->world, c->stream));
        NCCL(ncclGroupEnd());
        steps(c, 3);
    }
    cat_sync(c);
}

static void ring(struct cat *c, size_t count)
{
    NCCL(ncclGroupStart());
    NCCL(ncclSend(c->send, count, ncclFloat32, c->next, c->world, c->stream));
    NCCL(ncclRecv(c->recv, count, ncclFloat32, c->prev, c->world, c->stream));
    NCCL(ncclGroupEnd());
}

/* A message with a datatype that does not exist. */
static void retry_message(struct cat *c)
{
    for (int i = 0; i < 4; i++) {
        ring(c, 64);
        if (odd(c)) {
            refused(ncclSend(c->send, 32, (ncclDataType_t)99, c->next, c->world, c->stream), "a send of nothing known");
        }
        ring(c, 32);
    }
    cat_sync(c);
}

/* One rank simulates the group, to know how long it would take, and makes no real one. */
static void simulate(struct cat *c)
{
    steps(c, 4);
    for (int i = 0; i < 3; i++) {
        if (odd(c)) {
            ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
            NCCL(ncclGroupStart());
            cat_step(c, 100);
            cat_step(c, 300);
            NCCL(ncclGroupSimulateEnd(&info));
            usleep(i == 2 ? 700 * 1000 : 0);
        }
        NCCL(ncclGroupStart());
        cat_step(c, 100);
        cat_step(c, 200);
        NCCL(ncclGroupEnd());
        steps(c, 3);
    }
    cat_sync(c);
}

/* The error is caught, and the rank goes on without the call. */
static void not_again(struct cat *c)
{
    steps(c, 4);
    if (c->culprit) {
        wrong_broadcast(c);
    } else {
        NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
    }
    cat_sync(c);
    usleep(c->culprit ? 700 * 1000 : 0);
}

/* One call of a group is refused, so nothing of the group is enqueued; the group is not made again. */
static void group_not_again(struct cat *c)
{
    steps(c, 4);
    NCCL(ncclGroupStart());
    cat_step(c, 100);
    if (c->culprit) {
        wrong_broadcast(c);
        refused(ncclGroupEnd(), "a group with a broadcast without root");
    } else {
        NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
        NCCL(ncclGroupEnd());
    }
    cat_sync(c);
    usleep(c->culprit ? 700 * 1000 : 0);
}

/* The rank sees the error and ends. */
static void leaves(struct cat *c)
{
    steps(c, 4);
    if (c->culprit) {
        wrong_broadcast(c);
        exit(3);
    }
    NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
    cat_sync(c);
}

/* Going on: the next call takes the place of the one that was refused. */
static void goes_on(struct cat *c)
{
    steps(c, 4);
    if (c->culprit) {
        wrong_broadcast(c);
    } else {
        NCCL(ncclBroadcast(c->send, c->recv, 64, ncclFloat32, 0, c->world, c->stream));
    }
    steps(c, 6);
    cat_sync(c);
}

/* A message to a rank that does not exist; the rank for which it was meant waits. */
static void to_nobody(struct cat *c)
{
    steps(c, 4);
    if (c->culprit) {
        refused(ncclSend(c->send, 64, ncclFloat32, c->size, c->world, c->stream), "a send to nobody");
        exit(3);
    }
    if (odd(c)) {
        NCCL(ncclSend(c->send, 64, ncclFloat32, 0, c->world, c->stream));
    } else if (c->rank == 0) {
        NCCL(ncclRecv(c->recv, 64, ncclFloat32, c->size - 1, c->world, c->stream));
    }
    steps(c, 2);
    cat_sync(c);
}

/* A receive from itself, without the send. */
static void from_itself(struct cat *c)
{
    steps(c, 4);
    if (odd(c)) {
        NCCL(ncclGroupStart());
        if (!c->sick) {
            NCCL(ncclSend(c->send, 64, ncclFloat32, c->rank, c->world, c->stream));
        }
        NCCL(ncclRecv(c->recv, 64, ncclFloat32, c->rank, c->world, c->stream));
        ncclResult_t result = ncclGroupEnd();
        if (c->culprit) {
            refused(result, "a receive from itself");
            exit(3);
        }
        NCCL(result);
    }
    steps(c, 2);
    cat_sync(c);
}

const struct cat_program cat_refused[] = {
    {"refused", not_again, "call-refused", NULL, "proven", "last!", 2, false},
    {"refused-group", group_not_again, "call-refused", NULL, "proven", "last!", 2, false},
    {"refused-leaves", leaves, "call-refused", NULL, "proven", "last!", 2, false},
    {"refused-goes-on", goes_on, "call-refused", NULL, "proven", "last!", 2, false},
    {"send-to-nobody", to_nobody, "call-refused", NULL, "proven", "last!", 2, false},
    {"from-itself", from_itself, "call-refused", NULL, "proven", "last!", 2, false},
    {0},
};

const struct cat_program cat_refused_healthy[] = {
    {"refused-retry", retry, "-", NULL, "-", "-", 2, false},
    {"refused-retry-group", retry_group, "-", NULL, "-", "-", 2, false},
    {"refused-retry-message", retry_message, "-", NULL, "-", "-", 2, false},
    {"simulate", simulate, "-", NULL, "-", "-", 2, false},
    {0},
};
