/*
 * agent.h: the agent of one ring directory: maps its rings, streams them to a root, writes its control pages.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_H
#define ROLL_DAEMON_AGENT_AGENT_H

#include "daemon/wire/curve.h"
#include "trace/remedy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct roll_agent_options {
    void *context;                      /* ZeroMQ; borrowed */
    const char *dir;                    /* ring directory; borrowed */
    const char *endpoint;               /* endpoint of the root; borrowed */
    const struct roll_curve_keys *keys; /* borrowed; NULL = none */
    enum roll_policy policy;            /* policy of the control pages that the agent has to make */
    unsigned linger_s;                  /* return this long after the last live rank is gone; 0 = never */
    pid_t parent;                       /* while this process lives the linger time does not run; 0 = none */
    const char *trace_dir;              /* NULL = no trace of its own; borrowed */
    uint64_t trace_segment, trace_limit,
        trace_age_ns;         /* limits of segments (daemon/store/segment.h); 0 = default, none, never */
    bool with_root;           /* its root is in this process, and ends it when it wants nothing more */
    const _Atomic bool *stop; /* set from outside: finish in good order */
};

/*
 * Takes DIR/agent.lock and writes the pid into it; *fd holds the lock. BUSY when another agent has the lock (*pid is
 * its pid, 0 unknown); DENIED, IO. The lock lasts until roll_agent_unlock, and dies with the process.
 */
int roll_agent_lock(const char *dir, int *fd, int *pid);
/* Removes the lock file and releases the lock. */
void roll_agent_unlock(const char *dir, int *fd);

/* Runs until *stop or the linger time. Returns 0, or the error that kept the agent from starting (NOMEM, IO, ARG);
 * `why` holds one line about it. */
int roll_agent_run(const struct roll_agent_options *options, char *why, size_t why_size);

#endif
