/*
 * process.c: the last rank's process dies, ends, stops, is busy, or waits for something else, while its peers need it.
 */
#include "tests/catalogue/catalogue.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void steps(struct cat *c, int n)
{
    for (int i = 0; i < n; i++) {
        cat_step(c, 512);
    }
    cat_sync(c);
}

static void killed(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        raise(SIGKILL);
    }
    steps(c, 5);
}

static void crashed(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        abort();
    }
    steps(c, 5);
}

static void finished(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        exit(0);
    }
    steps(c, 5);
}

static void stopped(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        raise(SIGSTOP);
    }
    steps(c, 5);
}

/* The host computes (or loads data) far longer than anybody expects, and than suspicion may be stretched on a loaded
 * machine: the verdict ends it. Of 4 ranks it computes all the time, as of a whole core; elsewhere a fifth of the time,
 * since these programs, tried beside others, would take their processors for a minute each. */
enum { BUSY_S = 600 };
#define BUSY_ON_NS 2000000L

static void busy(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        struct timespec start, now, rest = {.tv_nsec = 4 * BUSY_ON_NS};
        clock_gettime(CLOCK_MONOTONIC, &start);
        do {
            clock_gettime(CLOCK_MONOTONIC, &now);
            if (c->size != 4 && now.tv_nsec % (2 * BUSY_ON_NS) >= BUSY_ON_NS) {
                nanosleep(&rest, NULL);
            }
        } while (now.tv_sec - start.tv_sec < BUSY_S);
    }
    steps(c, 5);
}

/* The last rank waits for a message from rank 0 that was never sent; all others wait for the last rank. */
static void blocked(struct cat *c)
{
    steps(c, 5);
    if (c->culprit) {
        NCCL(ncclRecv(c->recv, 64, ncclFloat32, 0, c->world, c->stream));
        cat_sync(c);
    }
    steps(c, 5);
}

static void never_joined(struct cat *c)
{
    if (c->culprit) {
        pause();
    }
    c->world = cat_join(c, "late");
    steps(c, 5);
}

const struct cat_program cat_process[] = {
    {"killed", killed, "rank-dead", NULL, "proven", "last!", 2, false},
    {"crashed", crashed, "rank-dead", NULL, "proven", "last!", 2, false},
    {"finished", finished, "rank-finished", NULL, "proven", "last", 2, false},
    {"stopped", stopped, "rank-stopped", NULL, "proven", "last!", 2, false},
    {"busy", busy, "rank-busy", NULL, "suspected", "last!", 2, false},
    {"blocked", blocked, "rank-blocked|circular-wait|p2p-unmatched|p2p-deadlock", NULL, "any", "any", 2, false},
    {"never-joined", never_joined, "init-missing", NULL, "any", "any", 2, true},
    {0},
};
