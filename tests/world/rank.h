/*
 * rank.h: the ranks of the simulated jobs: they write rings, with the writer's half of the ring that the interposer
 * has.
 */
#ifndef ROLL_TESTS_WORLD_RANK_H
#define ROLL_TESTS_WORLD_RANK_H

#include "tests/simulation/execute.h"
#include "tests/world/world.h"
#include "trace/ring.h"

/* A job: what its ranks do (borrowed), and how their rings are made. */
struct job {
    const char *name;
    const struct program *program;
    const struct story *story;
    uint32_t first_host, per_node; /* ranks of a host, hosts in order */
    uint32_t records;              /* of a ring */
    bool statuses;                 /* the launcher notes how processes end, as `rollcall run` does */
};

/* Begins the ranks of a job; their rings appear when they begin. 0, or an error of roll_ring_create. */
int ranks_begin(const struct job *job);
void ranks_end(void); /* closes the rings; the files stay */
/* When the next process begins, ends or is stopped; WORLD_NEVER. */
uint64_t ranks_next(void);
/* When anything of them is to be written next, and when something last was; WORLD_NEVER, and 0. */
uint64_t ranks_stir_next(void);
uint64_t ranks_stirred(void);
/* Writes all that has happened by now. */
void ranks_turn(void);
/* Notes how much has been written by now: somebody who looks at once is told of no less. */
void ranks_mark(void);
/* In what state the process of this number is on this host, as in /proc: R, T; 0: there is none. */
char rank_process(const struct host *host, pid_t pid);

/* How much of a ring was written. */
struct rank_written {
    const char *job;
    uint32_t rank;
    uint64_t epoch, records;
    uint64_t marked; /* of these, as many were there when ranks_mark was called */
    bool there;      /* the file is */
    bool hostile;    /* somebody else has written into it */
};
/* Rank number i of all jobs; false: there is none. */
bool rank_written(uint32_t i, struct rank_written *out);
/* Harms the ring of rank number i: one wild record, a head that jumps, a file that is cut. */
enum rank_harm { RANK_WILD, RANK_JUMP, RANK_CUT, RANK_HARMS };
void rank_harm(uint32_t i, enum rank_harm harm);

#endif
