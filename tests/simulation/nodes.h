/*
 * nodes.h: a tree of digests over the ranks of a simulated job, with an engine that sees records only where the digests
 * say that something has to be looked at (docs/SCALE.md). feed.c feeds it in the place of an engine.
 */
#ifndef ROLL_TESTS_SIMULATION_NODES_H
#define ROLL_TESTS_SIMULATION_NODES_H

#include "daemon/engine/engine.h"
#include "tests/simulation/program.h"

struct nodes;

struct nodes_how {
    uint32_t ranks, per_node;
    uint32_t levels;    /* 1: the root alone; 2: nodes below; 3: relays of two nodes each between */
    uint32_t history;   /* records of each rank that are fed for the sake of what came before */
    uint64_t period_ns; /* between two digests of a node */
    uint64_t seed;      /* when in its period each node tells */
    bool faults;        /* digests are lost, and agents, relays and the root are started anew */
    uint64_t room;      /* roll_engine_config.memory; 0: as in a root */
    bool scoped;        /* as of a job of many ranks: the engine sees the records of those that are concerned */
    bool narrow;        /* and where calls differ first the calls on these communicators alone */
};

struct nodes *nodes_new(const struct nodes_how *how);
void nodes_destroy(struct nodes **nodes);

/* What an engine is told of a rank. */
void nodes_open(struct nodes *nodes, uint32_t rank, const struct roll_source_info *info);
void nodes_define(struct nodes *nodes, uint32_t rank, const struct roll_def *def);
void nodes_feed(struct nodes *nodes, uint32_t rank, const struct roll_record *recs, size_t n);
void nodes_lost(struct nodes *nodes, uint32_t rank, uint64_t first, uint64_t count);
void nodes_process(struct nodes *nodes, uint32_t rank, enum roll_proc_state state, int32_t status);
void nodes_sight(struct nodes *nodes, uint32_t rank, const struct roll_engine_sight *sight);
/* Time passes: digests go up, and where they say so an engine is opened. */
void nodes_tick(struct nodes *nodes, uint64_t now_ns);

/* The engine that looks at the records; NULL: nobody had to look. */
roll_engine_t *nodes_engine(struct nodes *nodes);
/* Whether a verdict of that engine is said: one about a communicator of which not all members were looked at is not,
 * and its members are looked at next. */
bool nodes_says(struct nodes *nodes, const struct roll_verdict *verdict);
/* How many engines have been opened: a later one looks further back, and its verdicts take the place of the earlier's.
 */
uint32_t nodes_opened(const struct nodes *nodes);
/* Hints that opened the first of them, as bits by kind. */
uint32_t nodes_hints(const struct nodes *nodes);

#endif
