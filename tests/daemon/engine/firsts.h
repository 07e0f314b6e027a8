/*
 * firsts.h: what the scenes of first faults share (first_*.c), and their tables.
 *
 * Each scene plays on the left crew; its last rank errs (rank "L"). Hosts that were held up come back in `over`, where
 * they do.
 */
#ifndef ROLL_TESTS_DAEMON_ENGINE_FIRSTS_H
#define ROLL_TESTS_DAEMON_ENGINE_FIRSTS_H

#include "tests/daemon/engine/faults.h"

#include <stddef.h>

#define AR   ROLL_OP_ALLREDUCE
#define AG   ROLL_OP_ALLGATHER
#define A2A  ROLL_OP_ALLTOALL
#define BC   ROLL_OP_BROADCAST
#define LAST crew_last(&t->left)
#define MS   1000000ull

#define ROW(NAME) ROLL_VERDICT_##NAME
struct first_table {
    const struct first *at;
    size_t count;
};
extern const struct first_table first_calls, first_life, first_moe;

/* A call of a rank, from this site. */
struct roll_record *first_call(struct story *t, uint32_t r, uint32_t comm, enum roll_op op, uint64_t count,
                               uint16_t site);
/* The host waits for its device; stuck: it does not come back by itself. */
void first_wait(struct story *t, uint32_t r, bool stuck);
void first_all_wait(struct story *t, bool stuck);
/* All hosts of the left crew, whose last record is a wait, come back. */
void first_all_return(struct story *t, int kind);
/* All but the last rank are in a call of dp. */
void first_others_wait(struct story *t);
/* The last one comes after all, and everybody goes on. */
void first_comes_after_all(struct story *t, int kind);

#endif
