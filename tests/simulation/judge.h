/*
 * judge.h: what a mistake in a program should have been told as, and how well it was.
 */
#ifndef ROLL_TESTS_SIMULATION_JUDGE_H
#define ROLL_TESTS_SIMULATION_JUDGE_H

#include "tests/simulation/feed.h"
#include "tests/simulation/mutate.h"

enum outcome {
    OUTCOME_RIGHT,
    OUTCOME_SUSPECTED,   /* right, but said with less certainty than documented */
    OUTCOME_WRONG_CODE,  /* the right ranks under another code */
    OUTCOME_WRONG_RANKS, /* ranks that did not make the mistake, or nobody where the culprits can be known */
    OUTCOME_INNOCENT,    /* a proven verdict names a rank that did nothing wrong */
    OUTCOME_MISSED,
    OUTCOME_FALSE, /* a finding about a correct program */
    OUTCOME_EXTRA, /* the mistake is told, and something else as well */
    OUTCOMES,
};
extern const char *const outcome_name[OUTCOMES];

/* How late the first right finding was: since the mistake was made, and since the job stands still (0 when it did not
 * yet). */
struct latency {
    uint64_t event_ns, still_ns;
    bool known;
};

/* Judges what was found in a program with this mistake (MUTATION_NONE: a correct one). */
enum outcome judge(const struct program *p, const struct mutation *k, const struct story *s, const struct findings *f,
                   struct latency *latency);

/* The ranks that made the mistake are exactly half: nobody can be known to be wrong. */
bool mutation_is_tie(const struct program *p, const struct mutation *k);
/* Do the records leave one explanation only? certain.c */
bool class_is_certain(const struct program *p, const struct mutation *k, const struct story *s);

#endif
