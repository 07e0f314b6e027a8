/*
 * root.h: the root: takes the frames of all agents, runs one feed per run, gives verdicts, answers consoles, switches
 * remedies.
 */
#ifndef ROLL_DAEMON_ROOT_ROOT_H
#define ROLL_DAEMON_ROOT_ROOT_H

#include "daemon/wire/curve.h"
#include "trace/remedy.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define ROLL_ROOT_LISTEN_MAX 8

struct roll_expected;

/* How a run's calls are compared. */
enum roll_root_compare {
    ROLL_COMPARE_AUTO,   /* by how many ranks its first ring says that it has: ROLL_DIGEST_RANKS and more by digests */
    ROLL_COMPARE_STREAM, /* every record is sent */
    ROLL_COMPARE_DIGEST  /* by digests, and records are asked for where they differ */
};
/* From so many ranks on digests cost less than they save: below, a root takes every record for a few percent of a core,
 * and its trace holds them. */
#define ROLL_DIGEST_RANKS 128

struct roll_root_options {
    void *context; /* ZeroMQ; borrowed */
    const char *listen[ROLL_ROOT_LISTEN_MAX];
    unsigned listens;
    const struct roll_curve_keys *keys; /* borrowed; NULL = none; used on tcp endpoints */
    bool policy_set;                    /* `policy` overrules the policy of the control pages */
    enum roll_policy policy;
    const char *trace_dir; /* NULL = no trace */
    uint64_t trace_segment, trace_limit,
        trace_age_ns;              /* limits of segments (daemon/store/segment.h); 0 = default, none, never */
    const char *json_path;         /* NULL = no NDJSON */
    const char *http;              /* NULL = no metrics */
    const char *incident_dir;      /* a bundle about each proven finding goes there; NULL = none is written */
    unsigned incident_keep;        /* so many of a run */
    const char *curve_dir;         /* of who asks this root; NULL = the environment's */
    uint64_t stall_ns, suspect_ns; /* 0 = the engine's own */
    const struct roll_expected
        *expected; /* what was rehearsed of the jobs that are watched; borrowed; NULL = nothing */
    enum roll_root_compare compare;
    uint64_t case_ranks;            /* up to so many ranks all are asked; 0 = 1,024 */
    uint64_t case_records;          /* records that all of them together are asked for, about; 0 = 2,097,152 */
    uint64_t room;                  /* bytes for what ranks of all runs ask for beyond what they send; 0 = 4 GiB */
    bool stacks_auto;               /* take the stacks of each verdict's culprits */
    unsigned linger_s;              /* end so long after the last live rank; 0 = never */
    pid_t parent;                   /* while this process lives the linger time does not run; 0 = none */
    bool beyond;                    /* tcp endpoints may be reached from other hosts */
    uint64_t deaths;                /* processes of this daemon that died before this one was started */
    const _Atomic bool *stop;       /* finish in good order */
    _Atomic bool *agent_stop;       /* standalone: tells the agent thread to finish; NULL = none */
    const _Atomic bool *agent_done; /* standalone: the agent thread has finished */
};

typedef struct roll_root roll_root_t;

/*
 * Binds and opens everything. On error `why` holds one clear line. Errors: BUSY (address in use), ARG, DENIED, IO,
 * NOMEM, SPACE. The thread that makes a root runs it.
 */
int roll_root_new(const struct roll_root_options *options, roll_root_t **out, char *why, size_t why_size);
/* The actual endpoint number i ("*" resolved); borrowed; NULL when out of range. */
const char *roll_root_endpoint(const roll_root_t *root, unsigned i);
/* Runs until *stop or the end of the linger time. Returns whether a finding stands. */
bool roll_root_run(roll_root_t *root);
void roll_root_destroy(roll_root_t **root);

#endif
