/*
 * story.h: a program that is fed as it runs: what the ranks do next is written down, read by the engine, time passes,
 * and what it has said since is looked at.
 *
 * For tests in which something is told and the job goes on: there the moments matter, and sim_expect knows the end
 * only.
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_STORY_H
#define ROLL_TESTS_DAEMON_ENGINE_STORY_H

#include "tests/daemon/engine/scenes.h"

#define STORY_RANKS 20u
#define STORY_SAID  512u

/* Some ranks, one after the other, and their communicators. */
struct crew {
    uint32_t first, size, dp, ep;
};

struct story {
    struct sim *sim;
    roll_engine_t *e;
    uint64_t now;
    uint32_t order; /* 0: in turn; 1: rank after rank; 2: the last rank first */
    uint32_t step;
    struct crew left, right; /* left has the first fault, right the second one */
    uint32_t world;          /* a communicator of all */
    uint32_t source[STORY_RANKS];
    size_t fed[STORY_RANKS];
    uint64_t ahead_ns[STORY_RANKS]; /* by how much the times of what is fed now are damaged */
    struct {
        uint64_t *enter_ns; /* by ticket */
        size_t room;
    } stamp[STORY_RANKS];
};

/* A story of so many ranks, without communicators. */
void story_open(struct story *t, uint32_t ranks, uint32_t order);
void story_close(struct story *t);

/* All of `size` ranks from `first` on make their communicators. */
struct crew story_crew(struct story *t, uint32_t first, uint32_t size);
static inline uint32_t crew_last(const struct crew *c)
{
    return c->first + c->size - 1;
}

/* Calls that follow bear this time, not that at which they are read. */
void story_at(struct roll_record *rec, uint64_t now, uint64_t took);
/* What has been written down is read now. */
void story_feed(struct story *t);
/* story_feed, and then time passes. */
void story_pass(struct story *t, uint64_t ns);
/* The rank's last record has returned after all. */
void story_return(struct story *t, uint32_t rank);

/*
 * What has been said since it was asked last: lines "certainty code culprits", sorted, joined by "; "; notes of `code`
 * too, other notes not. What took the place of something said within that time stands for it; what takes back something
 * told before is "withdrawn code".
 */
const char *story_said(struct story *t, enum roll_verdict_code code, char out[STORY_SAID]);
/* Asserts that this is what story_said says. */
void story_expect(struct story *t, enum roll_verdict_code code, const char *want);
/* Asserts that so many findings stand. */
void story_expect_findings(const struct story *t, uint64_t findings);

#endif
