/*
 * wait_vote.c: absence is a vote: who of a communicator has made a call, who never will, and which of the two is right.
 *
 * The members of siblings (order_vote.c) vote as well. To let the communicator's own members decide alone was rejected:
 * in a job with many groups of two ranks each of which has the same two calls, every question would be a tie.
 */
#include "daemon/engine/judge/wait.h"

bool block_slot(const struct block *b, struct comm **c, uint32_t *seq)
{
    const struct entry *entry = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    struct member *m = entry ? source_member(b->waiter, entry->rec.comm) : NULL;
    if (!m || m->comm != b->comm || roll_op_class(entry->rec.op) != ROLL_CLASS_COLL) {
        return false;
    }
    *c = m->comm;
    *seq = entry->rec.seq;
    return true;
}

enum fate { FATE_OPEN, FATE_MADE, FATE_NEVER, FATE_DEAD, FATES };

/* What a member has to do with call `seq`. */
static enum fate fate_of(const struct roll_engine *e, const struct member *m, uint32_t seq)
{
    const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
    if (!s || m->unsure) {
        return FATE_OPEN;
    }
    if (comm_member_issued(m, seq)) {
        return FATE_MADE;
    }
    if (s->proc == ROLL_PROC_DEAD) {
        return FATE_DEAD; /* it was ended, and did not choose */
    }
    return m->gone || m->ended != 0 || s->proc == ROLL_PROC_FINISHED ? FATE_NEVER : FATE_OPEN;
}

/*
 * A sibling has a vote where it has done the same: made, where that was this very call; never, where its members have
 * left right after calls that were the same. But absence elsewhere does not outvote half of a communicator: another
 * stage of a pipeline may have had less to do. And a sibling that was never called says nothing.
 */
static void count_sibling(const struct roll_engine *e, const struct comm *sibling, const struct comm *c, uint32_t seq,
                          bool half, uint32_t count[FATES])
{
    int past = comm_same_past(sibling, c, seq);
    bool made = past >= 0 && comm_same_call(sibling, c, seq);
    for (uint32_t r = 0; r < sibling->size; r++) {
        enum fate fate = fate_of(e, &sibling->member[r], seq);
        count[FATE_MADE] += fate == FATE_MADE && made;
        count[FATE_NEVER] += fate == FATE_NEVER && past > 0 && !half && sibling->member[r].next == seq;
    }
}

static enum quorum camp_of(const uint32_t count[FATES])
{
    uint32_t all = count[FATE_MADE] + count[FATE_NEVER] + count[FATE_OPEN];
    if (count[FATE_MADE] * 2 > all) {
        return CAMP_MADE;
    }
    if (count[FATE_NEVER] * 2 > all) {
        return CAMP_NEVER;
    }
    return count[FATE_OPEN] == 0 ? CAMP_TIE : CAMP_OPEN;
}

/* *beside: its own members do not decide, those of its siblings do. */
enum quorum block_camp(const struct roll_engine *e, const struct comm *c, uint32_t seq, bool *beside)
{
    uint32_t count[FATES] = {0};
    for (uint32_t r = 0; r < c->size; r++) {
        count[fate_of(e, &c->member[r], seq)]++;
    }
    enum quorum own = camp_of(count);
    bool half = count[FATE_MADE] * 2 >= c->size;
    for (uint32_t i = 0; i < e->comms; i++) {
        if (comm_is_sibling(e->comm[i], c)) {
            count_sibling(e, e->comm[i], c, seq, half, count);
        }
    }
    enum quorum camp = camp_of(count);
    *beside = camp != own;
    return camp;
}
