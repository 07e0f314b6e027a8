/*
 * folded_rank.h: a rank that is fed calls by hand: its fold, and the records that it was fed. Shared by the tests of
 * folds, of levels and of the bytes of digests.
 */
#ifndef ROLL_TESTS_DAEMON_DIGEST_FOLDED_RANK_H
#define ROLL_TESTS_DAEMON_DIGEST_FOLDED_RANK_H

#include "tests/trace/cmocka_all.h"

#include "daemon/digest/fold.h"
#include "daemon/digest/sum.h"
#include "trace/op.h"

#define MS            1000000ull
#define FOLDED_STAND  (250 * MS)
#define FOLDED_INSIDE (1000 * MS)
#define FOLDED_KEY    0x1234567890abcdefull
#define FOLDED_LOGS   1024u

/* One rank: its fold, and the records that it was fed. */
struct folded_rank {
    roll_fold_t *fold;
    struct roll_record rec[FOLDED_LOGS];
    uint64_t next;
    uint32_t seq, sent[8], received[8];
};

/* Member `place` of a communicator of `size`, FOLDED_KEY, whose id is 1. */
void folded_init(struct folded_rank *r, uint32_t place, uint32_t size);
void folded_feed(struct folded_rank *r, struct roll_record rec, enum roll_state state);
struct roll_record folded_reduce(uint32_t seq, uint64_t count);
/* n calls that all ranks make alike. */
void folded_calls(struct folded_rank *r, uint32_t n);
void folded_message(struct folded_rank *r, enum roll_op op, uint32_t peer, uint64_t count, uint32_t seq);
/* A level whose members stand after FOLDED_STAND; returns owned. */
roll_sum_t *folded_sum(bool is_root);

#endif
