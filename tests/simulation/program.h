/*
 * program.h: what a job does, as one ordered list of acts.
 *
 * An act is one call of one or several ranks (a mask). The list is one order of the whole job: each thread of each rank
 * makes those of its acts that name it, in the order of the list. A correct program is written down in an order in
 * which it could run, so it cannot hang by itself; a mutation moves, changes or takes acts away for some ranks. One
 * list for all ranks, rather than one list per rank, keeps programs short enough to read, and lets a shrinker drop a
 * call on all ranks at once. Acts of one `unit` belong together: the calls of one group, one collective of all siblings
 * of a split.
 *
 * Ranks are world ranks everywhere (roots and peers too); execute.c translates them.
 */
#ifndef ROLL_TESTS_SIMULATION_PROGRAM_H
#define ROLL_TESTS_SIMULATION_PROGRAM_H

#include "trace/op.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define RANKS_MAX   16u
#define COMMS_MAX   48u
#define THREADS_MAX 2u
#define STREAMS_MAX 8u
#define ACTS_MAX    6000u
#define US_         1000ull
#define MS_         1000000ull
#define S_          1000000000ull

typedef uint16_t mask_t; /* a set of world ranks */
#define SIMULATED 255u
#define BIT(rank) ((mask_t)(1u << (rank)))

enum kind {
#define ACT_ROW(name, word) ACT_##name,
#include "tests/simulation/act.def"
#undef ACT_ROW
    ACT_KINDS
};

struct act {
    mask_t ranks;
    uint16_t unit;
    uint8_t kind;   /* enum kind */
    uint8_t thread; /* 0 or 1 */
    uint8_t stream; /* 0 .. STREAMS_MAX - 1 */
    uint8_t op, dtype, redop;
    int8_t comm;    /* index; -1 = none */
    int8_t child;   /* of a split: the communicator made; -1 = no colour */
    int8_t peer;    /* root, or peer of a message: a world rank; -1 = none */
    uint16_t site;  /* where in the source the call stands; 0 = not known */
    uint8_t error;  /* the ncclResult_t with which NCCL refuses it; 0 = taken; of a group's end: SIMULATED too */
    uint8_t slow;   /* the call takes so many times 10 us on the host */
    uint64_t count; /* elements; nanoseconds of a pause; exit code; signal */
};

struct comm_info {
    mask_t members;
    int8_t parent; /* -1: made from a unique id */
    int8_t color;
    uint8_t child; /* number of the split on the parent */
    bool nonblocking;
    char label[12];
};

struct program {
    uint32_t ranks, comms, acts, units;
    uint32_t pace_ns; /* a host call takes about this long */
    uint32_t starved; /* thousandths of the time in which ranks want a CPU and have none */
    bool completion;  /* the device's completions are learnt */
    bool connects;    /* the first collective on a communicator holds the host until all have called theirs */
    struct comm_info comm[COMMS_MAX];
    struct act act[ACTS_MAX];
};

/* A small generator of numbers; the same everywhere. */
struct rng {
    uint64_t state;
};
uint32_t rng_next(struct rng *rng);
uint32_t rng_below(struct rng *rng, uint32_t n); /* 0 .. n - 1; 0 when n is 0 */
bool rng_chance(struct rng *rng, uint32_t percent);

uint32_t mask_count(mask_t set);
uint32_t mask_first(mask_t set);
/* The i-th rank of a set, ascending. */
uint32_t mask_at(mask_t set, uint32_t i);
/* "0-3,7", in one of a few static buffers. */
const char *mask_text(mask_t set);
int mask_parse(const char *text, mask_t *set);

/* The rank's number in the communicator. */
uint32_t comm_rank(const struct program *p, int comm, uint32_t rank);

/* Appends an act; false when there is no room. */
bool program_add(struct program *p, const struct act *act);
/* Puts an act before place `at`. */
bool program_insert(struct program *p, uint32_t at, const struct act *act);
/* Drops acts without ranks. */
void program_tidy(struct program *p);
/* NCCL refuses a call of this unit. (The rank then makes it again.) */
bool program_unit_refused(const struct program *p, uint16_t unit);

bool act_is_call(const struct act *a);       /* a collective or a message */
bool act_is_collective(const struct act *a); /* that NCCL takes, with something in it, made by several ranks */
uint32_t dtype_width(unsigned dtype);

void program_print(const struct program *p, FILE *out);
/* Reads lines as printed until one that is "end"; false with a line on standard error when one is malformed. */
bool program_parse(struct program *p, FILE *in);
/* One line of it; false when malformed. */
bool program_parse_line(struct program *p, const char *line);

#endif
