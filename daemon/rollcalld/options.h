/*
 * options.h: the command line of rollcalld.
 */
#ifndef ROLL_DAEMON_ROLLCALLD_OPTIONS_H
#define ROLL_DAEMON_ROLLCALLD_OPTIONS_H

#include "daemon/relay/relay.h"
#include "daemon/root/root.h"

enum roll_mode { ROLL_MODE_STANDALONE, ROLL_MODE_AGENT, ROLL_MODE_ROOT, ROLL_MODE_RELAY };

struct roll_options {
    enum roll_mode mode;
    char dir[4096]; /* "" = none (a root without a directory) */
    const char *listen[ROLL_ROOT_LISTEN_MAX];
    unsigned listens;
    const char *connect;
    bool policy_set;
    enum roll_policy policy;
    const char *trace, *json, *http, *curve_dir, *incident;
    uint64_t incident_keep;                            /* bundles of a run; 0 = the default */
    const char *expect;                                /* a file of `rollcall rehearse --save`; NULL = none */
    uint64_t trace_segment, trace_limit, trace_age_ns; /* 0 = default, none, never */
    bool insecure, detach, if_none, own_dir, no_supervise;
    unsigned linger_s;
    pid_t parent; /* 0 = none */
    int ready_fd; /* -1 = none */
    bool stacks_auto;
    bool digest, stream; /* as given */
    enum roll_root_compare compare;
    uint64_t case_ranks, case_records; /* 0 = the root's own */
    uint64_t stall_ns, suspect_ns;
};

/* Reads the command line. Returns -1 when the daemon is to run, else the exit code: 0 after --help and --version, 2
 * after one line on standard error. */
int roll_options_parse(int argc, char **argv, struct roll_options *out);

#endif
