/*
 * bench_daemon.h: real agents and roots, and processes that stand for ranks, for the parts of roll_bench that measure
 * them. Private to bench_daemon.c and bench_agent.c; one thread.
 */
#ifndef ROLL_TESTS_BENCH_BENCH_DAEMON_H
#define ROLL_TESTS_BENCH_BENCH_DAEMON_H

#include "daemon/wire/client.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_BENCH_TRIALS 120
#define ROLL_BENCH_RANKS  16

/* Shared with the rank processes. */
struct roll_bench_board {
    _Atomic uint32_t trial;                   /* grows by one: everybody calls once */
    _Atomic uint32_t done[ROLL_BENCH_TRIALS]; /* ranks that have called in this trial */
    _Atomic uint64_t wrong_ns[ROLL_BENCH_TRIALS];
    _Atomic uint32_t ready, stop;
};

struct roll_bench_daemons {
    char dir[64], log[96];
    pid_t daemon[2], rank[ROLL_BENCH_RANKS];
    struct roll_bench_board *board;
    roll_client_t *client;
};

/* Makes the ring directory and the board. 0 or a negative error; roll_bench_close is called in either case. */
int roll_bench_open(struct roll_bench_daemons *b);
/* Starts rollcalld in place `slot` with these options (borrowed, NULL at the end), and reads the endpoint that it says
 * on its ready descriptor. */
int roll_bench_start(struct roll_bench_daemons *b, int slot, const char *const *extra, char *endpoint, size_t size);
/* Starts rollcalld with these options (borrowed, NULL at the end), and reads the endpoint that it says when it is
 * ready. 0 or a negative error; the process is to be ended in either case. */
int roll_bench_launch(pid_t *daemon, const char *const *options, char *endpoint, size_t size);
/* Ends the ranks and the daemons, and removes the directory. */
void roll_bench_close(struct roll_bench_daemons *b);

#endif
