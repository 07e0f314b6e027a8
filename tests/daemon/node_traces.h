/*
 * node_traces.h: traces of several nodes as their agents would have written them, from what a test says; and what the
 * console says of them, read at once or through `rollcall digest`.
 */
#ifndef ROLL_TESTS_DAEMON_NODE_TRACES_H
#define ROLL_TESTS_DAEMON_NODE_TRACES_H

#include "daemon/console/analyze/analyze.h"
#include "daemon/console/digest/digest.h"
#include "trace/def.h"
#include "trace/frame.h"

#include <limits.h>

#define NODES_MOST 8u
#define RANKS_MOST 64u

extern char node_traces_dir[64]; /* of the test that runs */
int node_traces_set_up(void **state);
int node_traces_tear_down(void **state);

struct node_traces {
    uint32_t nodes, ranks;
    FILE *file[NODES_MOST];
    struct {
        uint64_t defs;
        uint32_t node;
    } rank[RANKS_MOST];
};
/* Begins traces of so many nodes, on which the ranks stand in their order. */
void node_traces_begin(struct node_traces *t, uint32_t nodes, uint32_t ranks);
void node_traces_comm(struct node_traces *t, uint32_t rank, uint32_t id, const struct roll_def_comm *comm);
void node_traces_records(struct node_traces *t, uint32_t rank, const struct roll_record *recs, uint32_t n,
                         bool updates);
void node_traces_process(struct node_traces *t, uint32_t rank, uint64_t head, uint64_t now, enum roll_proc_state state,
                         int32_t status);
void node_traces_sight(struct node_traces *t, uint32_t rank, uint32_t starved);
void node_traces_tick(struct node_traces *t, uint32_t node, uint64_t now);
void node_traces_end(struct node_traces *t);
/* The trace of a node; its digest number `round`. */
void node_traces_path(uint32_t node, char out[PATH_MAX]);
void node_traces_rdig(uint32_t node, uint32_t round, char out[PATH_MAX]);

/* `rollcall digest` of a node's trace into its file of this round. `at`: may be NULL. Returns the file's bytes. */
size_t node_traces_digest(uint32_t node, uint32_t round, uint32_t history, const struct roll_digest_at *at, size_t ats);

/* What analyze says. */
struct node_told {
    struct {
        enum roll_verdict_code code;
        enum roll_certainty certainty;
        uint64_t comm_key, seq;
        struct roll_rankset culprits; /* owned */
    } v[64];
    uint32_t n;        /* verdicts; with notes or without */
    uint32_t standing; /* findings that stand */
    struct roll_analysis_summary summary;
    char unreached[2048]; /* JSON */
};
/* Analyzes these files. all: every verdict as it was said; else the findings that stand. */
void node_told_of(struct node_told *out, char (*path)[PATH_MAX], size_t n, bool all);
/* The traces of so many nodes; the digests of round 0 to `rounds` - 1. */
void node_told_of_traces(struct node_told *out, uint32_t nodes, bool all);
void node_told_of_digests(struct node_told *out, uint32_t nodes, uint32_t rounds, bool all);
bool node_told_equal(const struct node_told *a, const struct node_told *b);
void node_told_print(const char *what, const struct node_told *t);
void node_told_fini(struct node_told *t);

#endif
