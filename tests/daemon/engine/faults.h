/*
 * faults.h: the first faults after which a job, or a part of it, goes on (firsts.c), and the second ones that must then
 * be told as if they were the first (seconds.c). test_engine_silence.c puts them together.
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_FAULTS_H
#define ROLL_TESTS_DAEMON_ENGINE_FAULTS_H

#include "tests/daemon/engine/story.h"

/* The ranks that go on after the first fault, and that make the second one. */
enum where {
    SAME, /* the ranks of the first fault, on the same communicators */
    /* The ranks of the first fault, on other communicators: on the first ones these ranks are out of step for good. */
    OTHER,
    APART, /* other ranks: those of the first fault are stuck for good */
    REST,  /* all ranks but the last, on communicators that they make anew */
    ENDS   /* nobody: the first fault has ended the job for all */
};

struct first {
    enum roll_verdict_code code;
    const char *what;
    enum where where;
    void (*happens)(struct story *t, int kind);
    int kind;
    const char *said; /* in it "L" is the last rank of the left crew */
    void (*over)(struct story *t, int kind);
    const char *unsaid; /* what is said when it is over */
    const char *reason; /* ENDS: why */
};
const struct first *first_at(size_t i); /* NULL: there are no more */

struct second {
    const char *what;
    void (*happens)(struct story *t, uint32_t victim);
    const char *said; /* in it "V" is the victim */
};
extern const struct second seconds[];
extern const size_t second_count;

/* Steps of a healthy MoE job: a layer forward and backward, and the sum of all gradients. */
void job_steps(struct story *t, const struct crew *c, uint32_t steps);

#define EACH(r, c) for (uint32_t r = (c)->first; r < (c)->first + (c)->size; r++)

#endif
