/*
 * bench.h: the parts of roll_bench. Each measures real code on this machine, prints both sides of one run as a table
 * and adds its figures to one JSON object. Nothing here is a timed test: a figure out of reach is printed, not failed.
 */
#ifndef ROLL_TESTS_BENCH_BENCH_H
#define ROLL_TESTS_BENCH_BENCH_H

#include <jansson.h>
#include <stdio.h>

/* Each adds members to `out` (borrowed) and lines to `table` (borrowed). 0, or a negative error with one line on
 * stderr. */
int roll_bench_record(json_t *out, FILE *table);  /* recording one collective in the rank, over the bare call */
int roll_bench_python(json_t *out, FILE *table);  /* what the lines of Python cost a recorded call */
int roll_bench_binding(json_t *out, FILE *table); /* one call: needed, looked up, through the auditor */
int roll_bench_compare(json_t *out, FILE *table); /* fail-fast: what the compare adds to a call */
int roll_bench_graph(json_t *out, FILE *table);   /* launches of graphs, completion: in the rank, on a fake driver */
int roll_bench_engine(json_t *out, FILE *table);  /* records in to verdict state, one core */
int roll_bench_engine_scale(json_t *out, FILE *table); /* the same for 64 to 16,384 ranks, in step and apart */
int roll_bench_scale(json_t *out, FILE *table);
int roll_bench_faces(json_t *out, FILE *table);      /* how long a root takes to answer consoles */
int roll_bench_digest(json_t *out, FILE *table);     /* calls compared by digests: folds, nodes, relays, root */
int roll_bench_verdict(json_t *out, FILE *table);    /* wrong call to printed verdict, 16 ranks */
int roll_bench_symbol(json_t *out, FILE *table);     /* names of the first verdict */
int roll_bench_trace(json_t *out, FILE *table);      /* what a call costs in a trace */
int roll_bench_analyze(json_t *out, FILE *table);    /* traces of many nodes, judged with one thread and two */
int roll_bench_agent(json_t *out, FILE *table);      /* agent + root for 8 ranks at 10,000 calls/s each */
int roll_bench_job(json_t *out, FILE *table);        /* moe_train with 8 ranks, with and without rollcall, in pairs */
int roll_bench_job_causes(json_t *out, FILE *table); /* what a job loses to whom, at its start and for each step */
int roll_bench_stacks(json_t *out, FILE *table);     /* stacks of 8 hung ranks, merged and printed */
int roll_bench_moe(json_t *out, FILE *table); /* moe_core on the host: rows moved, products, beside memcpy and BLAS */

int roll_bench_moe_memory(json_t *out, FILE *table); /* a layer's memory beside the bytes of its rows, ep 1 to 64 */

int roll_bench_moe_remedies(json_t *out, FILE *table); /* of moe: what remedies cost that are off, idle, on */
int roll_bench_moe_gemm(json_t *out,
                        FILE *table); /* of moe: ragged and small groups, beside a BLAS call for each product */

/* One line of the table: figure, measured, goal; aligned for all parts. */
static inline void roll_bench_line(FILE *table, const char *figure, const char *measured, const char *goal)
{
    fprintf(table, "  %-52s %22s   %s\n", figure, measured, goal);
}

#endif
