/*
 * supervise.h: the daemon is two processes: a supervisor, which does nothing, and a worker, which does everything and
 * is started again when it dies.
 *
 * A worker that was killed, or that aborted, is started again at once; one that ended by itself (by a signal to end,
 * with an exit status of its own) is not. After `deaths_a_minute` deaths within a minute the supervisor gives up. What
 * a worker needs to go on where its predecessor was is in the directory, in the rings and in the other side of each
 * connection; only the addresses are kept here, because a port that the system chose would be another one.
 */
#ifndef ROLL_DAEMON_ROLLCALLD_SUPERVISE_H
#define ROLL_DAEMON_ROLLCALLD_SUPERVISE_H

#include "daemon/root/root.h"

#include <stdbool.h>
#include <stdint.h>

#define ROLL_SUPERVISE_DEATHS 10 /* in a minute; more, and whatever kills the worker will do so again */

/* What a worker tells its successors: memory that all of them share with the supervisor. */
struct roll_supervised {
    uint32_t deaths;                          /* of workers, so far */
    bool ready;                               /* a worker has announced itself; there is nobody left to tell */
    char endpoint[ROLL_ROOT_LISTEN_MAX][256]; /* what was bound for --listen; "" = nothing yet */
};

/*
 * Returns -1 in the worker, each time that one is started, with *out (of all of them); in the supervisor, when all is
 * over, the exit code: the worker's, or 3 where it is given up. The worker dies with its supervisor.
 * name: "root", "agent", "relay", for lines. to_log: called in the supervisor when a worker is ready, and when one has
 * died, before the line about it: a daemon in the background has its log elsewhere then, and whoever reads from what it
 * began with (srun, a shell's pipe) waits until nobody holds that any more. Nothing of the process but main's thread
 * may run yet.
 */
int roll_supervise(const char *name, void (*to_log)(void *arg), void *arg, struct roll_supervised **out);

/* In the worker: it can be reached now; the supervisor closes what it holds open for whoever waits for that. */
void roll_supervise_ready(struct roll_supervised *s);

/* Whether a signal to end is the second of its kind: of those that the supervisor passes on, and of all others. A
 * terminal, Slurm and systemd send theirs to both processes, and that is one wish, not two. Async-signal-safe. */
bool roll_supervise_insists(pid_t sender);

#endif
