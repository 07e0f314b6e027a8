/*
 * run.h: what roll_sim does with one seed, and what it counts.
 */
#ifndef ROLL_TESTS_SIMULATION_RUN_H
#define ROLL_TESTS_SIMULATION_RUN_H

#include "tests/simulation/generate.h"
#include "tests/simulation/shrink.h"

struct options {
    uint64_t first, last;
    uint32_t orders, failures, report;
    bool healthy, sick, print, shrink;
    const char *limits, *sample;
    uint32_t samples;
    enum mutation_kind only;
};

/* The correct program of the last seed, the same with its mistake, and what became of that. */
/* Digests before the engine (nodes.h); levels 0: none. */
extern uint32_t run_levels, run_history;
extern bool run_faults, run_scoped, run_narrow;
extern uint64_t run_room;
extern struct program run_base, run_sick;
extern struct story run_story;

/* Makes both; odd seeds are sick unless one kind is asked for. False when the program has no place for such a mistake.
 */
bool run_make(uint64_t seed, const struct options *o, struct mutation *k);
/* One order of run_sick; prints what is found when `show`. */
enum outcome run_order(uint64_t seed, uint32_t order, const struct mutation *k, bool show, struct findings *f);
/* All orders, counted. Returns the worst outcome; *worst_order: where. */
enum outcome run_all(uint64_t seed, const struct options *o, const struct mutation *k, bool show,
                     uint32_t *worst_order);
/* Makes, checks that the correct program is correct, runs, counts. */
void run_seed(uint64_t seed, const struct options *o, uint32_t *failures);
void run_show_story(void);

void table_show(double seconds);
/* 0; 1 when a row has more that is not right than the file allows; 2. */
int table_check(const char *path);
uint64_t table_programs(void);
/* Programs that hang without a mistake. */
uint64_t table_hung(void);

/* sample.c: programs that can be run for real, as files. 0, or 2. */
int sample_write(const char *folder, uint32_t wanted, const struct options *o);
/* rows.c */
int rows_run(const char *path, bool show);
int rows_shrink(uint64_t seed, const struct options *o);
/* Remembers a failure by its kind; then prints the most frequent kinds, each with its smallest program. */
void report_add(uint64_t seed, const struct mutation *k, enum outcome outcome, const struct findings *f);
void report_show(const struct options *o);

#endif
