/*
 * bench_scale.h: what the files of roll_bench scale share: the fleet of processes, what they tell each other, and what
 * is measured. Private to bench_scale*.c.
 */
#ifndef ROLL_TESTS_BENCH_BENCH_SCALE_H
#define ROLL_TESTS_BENCH_BENCH_SCALE_H

#include "daemon/wire/client.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SCALE_RELAY   512u /* ranks of the nodes of one process, which are below one relay */
#define SCALE_HOSTS   33u  /* 16,384 ranks, and one process for a node that dies alone */
#define SCALE_RATE    500u
#define SCALE_SKEW_NS UINT64_C(2000000000)
#define SCALE_SLOW_NS UINT64_C(1000000000) /* by so much one rank in a hundred is behind all others */
#define SCALE_AHEAD   256u /* calls that ranks still make when one of them has stopped: then their hosts wait, too */
#define SCALE_NOBODY  UINT32_MAX
#define SCALE_TRIALS  256u

/* Shared by all processes of a fleet. */
struct scale_board {
    _Atomic uint32_t writers, agents; /* processes that are ready */
    _Atomic uint32_t go;              /* the agents may begin */
    _Atomic uint64_t start_ns;        /* 0: ranks do not call yet */
    _Atomic uint64_t hold;            /* no rank makes more calls than these */
    _Atomic uint32_t trial, wrong_rank;
    _Atomic bool worldwide; /* each wrong call is on the communicator of all ranks */
    _Atomic uint64_t wrong_ns, wrong_key;
    _Atomic uint32_t still_rank;           /* makes no call */
    _Atomic uint64_t still_ns;             /* since when it has been seen to make none; 0 = not yet */
    _Atomic uint64_t late_ns[SCALE_HOSTS]; /* by how much writers were late at most */
    _Atomic uint64_t calls[SCALE_HOSTS];   /* made by their ranks */
};

struct scale_fleet {
    char dir[64], keys[96], console[128], root_at[256];
    uint32_t ranks, per_node, nodes, hosts, relays; /* hosts: the last one has one node alone */
    bool direct; /* there are no relays, and agents come to the root by tcp with CURVE */
    pid_t root, relay[SCALE_HOSTS], writer[SCALE_HOSTS], agent[SCALE_HOSTS];
    char door[SCALE_HOSTS][256];
    struct scale_board *board;
    roll_client_t *client;
};

/* bench_scale_ranks.c: the ranks and agents of some nodes */
uint32_t scale_first_node(const struct scale_fleet *f, uint32_t host);
uint32_t scale_nodes_of(const struct scale_fleet *f, uint32_t host);
uint32_t scale_spread(uint32_t x);                                /* a number that looks like chance */
uint64_t scale_job_ns(const struct scale_board *b, uint64_t now); /* since the job began */
pid_t scale_fork_writers(const struct scale_fleet *f, uint32_t host);
pid_t scale_fork_agents(const struct scale_fleet *f, uint32_t host);

/* bench_scale_fleet.c: processes */
int scale_open(struct scale_fleet *f, uint32_t ranks, uint32_t per_node, bool direct);
void scale_close(struct scale_fleet *f);
int scale_start_root(struct scale_fleet *f, const char *listen);
/* A console that is connected to the root, in place of the one that was; it hears of all verdicts from `from` on, 0:
 * of none. */
int scale_console(struct scale_fleet *f, int from);
void scale_kill(pid_t *pid);
json_t *scale_ask(const struct scale_fleet *f, const char *op); /* owned; NULL: no answer */
double scale_cpu_s(pid_t pid);
double scale_peak_mib(pid_t pid);
double scale_relays_s(const struct scale_fleet *f, double *busiest, double *before);
double scale_agents_s(const struct scale_fleet *f);
uint64_t scale_calls(const struct scale_fleet *f);

/* One run as the job sees it: seconds are those of the job's time. */
struct scale_measured {
    uint32_t ranks, per_node, factor;
    double rings_s;            /* real: to make all rings */
    double begin_s, begin_cpu; /* until all ranks were announced; processor time of the root meanwhile */
    double calls, root, relay, relay_most, agent, into_root, late_ms; /* each second, calm; of a core */
    uint32_t opened; /* cases until then: records were looked at for nothing */
    double root_mib, relay_mib, agent_mib;
    double status_ms, why_ms, runs_ms;
    uint32_t tried, told, named, others;
    double told_ms[SCALE_TRIALS], told_cpu_ms[SCALE_TRIALS];
    uint32_t wrong[SCALE_TRIALS];
    double still_s, still_cpu_s; /* from the last call of a rank to its verdict; < 0: none came */
    char still_code[32];
    uint32_t still_right;
    double again_s, again_cpu; /* the root is killed: until all ranks are announced again */
    bool again_whole;          /* and no call has been forgotten */
    uint32_t again_others;
    uint32_t agent_others; /* told while an agent was killed and came back */
    double dead_s;         /* from the death of a node to the first word about it */
    char dead_code[32], dead_ranks[64];
    uint32_t dead_others;
};

/* bench_scale_trials.c: what is done to a fleet */
/* m->ranks, per_node and factor are set already. */
int scale_measure(uint32_t trials, const char *only, struct scale_measured *m);

#endif
