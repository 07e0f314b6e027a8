/*
 * mutate.h: one mistake put into a correct program, and its truth.
 */
#ifndef ROLL_TESTS_SIMULATION_MUTATE_H
#define ROLL_TESTS_SIMULATION_MUTATE_H

#include "tests/simulation/program.h"

enum mutation_kind {
#define MUTATION_ROW(name, text) MUTATION_##name,
#include "tests/simulation/mutation.def"
#undef MUTATION_ROW
    MUTATION_KINDS,
    MUTATION_NONE = MUTATION_KINDS,
};

struct mutation {
    enum mutation_kind kind;
    uint16_t unit; /* the unit in which the mistake is made */
    uint8_t nth;   /* the n-th call of the unit that fits */
    mask_t who;    /* the ranks that make the mistake */
    int8_t comm;   /* the communicator; -1 = none */
    uint32_t param;
    /* Set by mutation_apply: */
    uint32_t mark; /* the first act of the changed program that is not as it should be */
    /* AFTER_*: the second mistake, later in the program. */
    struct {
        enum mutation_kind kind;
        uint16_t unit;
        uint8_t nth;
        mask_t who;
        int8_t comm;
        uint32_t param, mark;
    } then;
};

/* The two mistakes of one that is AFTER_*, each by itself. */
bool mutation_is_double(const struct mutation *k);
struct mutation mutation_first(const struct mutation *k);
struct mutation mutation_second(const struct mutation *k);

const char *mutation_name(enum mutation_kind kind);
enum mutation_kind mutation_by_name(const char *name);

/* Chooses a mistake of this kind; false when the program has no place for one. */
bool mutation_choose(const struct program *p, enum mutation_kind kind, struct rng *rng, struct mutation *out);
/* Makes the mistake; false when it cannot be made (a shrunk program may have lost its place) or would change
 * nothing. */
bool mutation_apply(struct program *p, struct mutation *mutation);
/* mutate_make.c: makes the mistake at act `at`, which fits, and sets its mark. False when it cannot be made. */
bool mutation_make(struct program *p, struct mutation *k, uint32_t at);

#endif
