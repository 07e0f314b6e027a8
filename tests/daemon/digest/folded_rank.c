/*
 * folded_rank.c: see folded_rank.h.
 */
#include "tests/daemon/digest/folded_rank.h"

#include <string.h>

void folded_init(struct folded_rank *r, uint32_t place, uint32_t size)
{
    struct roll_def_comm info = {.key = FOLDED_KEY, .rank = (int32_t)place, .nranks = (int32_t)size};
    memset(r, 0, sizeof(*r));
    r->fold = roll_fold_new(FOLDED_INSIDE);
    assert_non_null(r->fold);
    assert_int_equal(roll_fold_comm(r->fold, 1, &info), 0);
}

void folded_feed(struct folded_rank *r, struct roll_record rec, enum roll_state state)
{
    rec.seal = roll_seal(r->next, state);
    rec.comm = 1;
    rec.thread = rec.thread ? rec.thread : 1;
    rec.enter_ns = r->next * 1000;
    rec.call_ns = 10;
    r->rec[r->next % FOLDED_LOGS] = rec;
    assert_int_equal(roll_fold_record(r->fold, &rec, 0), 0);
    r->next++;
}

struct roll_record folded_reduce(uint32_t seq, uint64_t count)
{
    return (struct roll_record){.op = ROLL_OP_ALLREDUCE,
                                .seq = seq,
                                .count = count,
                                .peer = ROLL_PEER_NONE,
                                .dtype = ROLL_DTYPE_FLOAT32,
                                .redop = ROLL_RED_SUM};
}

void folded_calls(struct folded_rank *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, r->seq++) {
        folded_feed(r, folded_reduce(r->seq, 100 + r->seq % 7), ROLL_STATE_RETURNED);
    }
}

void folded_message(struct folded_rank *r, enum roll_op op, uint32_t peer, uint64_t count, uint32_t seq)
{
    struct roll_record rec = {.op = (uint8_t)op,
                              .seq = seq,
                              .count = count,
                              .peer = (int32_t)peer,
                              .dtype = ROLL_DTYPE_FLOAT32,
                              .redop = ROLL_RED_NONE};
    folded_feed(r, rec, ROLL_STATE_RETURNED);
}

roll_sum_t *folded_sum(bool is_root)
{
    roll_sum_t *sum = roll_sum_new(&(struct roll_sum_config){.stand_ns = FOLDED_STAND, .is_root = is_root});
    assert_non_null(sum);
    return sum;
}
