/*
 * wait_vote.c: absence is a vote: which members of a communicator have made a call, which never will, and which of the
 * two are right.
 *
 * The members of siblings (order_vote.c) vote as well. To let the communicator's own members decide alone was rejected:
 * many communicators have two ranks, and every question on one of them would be a tie.
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

/* What a member has to do with a call. */
enum fate {
    FATE_OPEN, /* the member may still make it, or nothing is known */
    FATE_MADE,
    FATE_NEVER,  /* the member has ended, or has left the communicator, without it */
    FATE_DEAD,   /* the member has died without it */
    FATE_FAILED, /* the member has ended without it, with an exit code that says failure */
    FATES
};

static enum fate fate_of(const struct roll_engine *e, const struct member *m, uint32_t seq)
{
    const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
    if (!s || m->unsure) {
        return FATE_OPEN;
    }
    if (comm_member_issued(m, seq)) {
        return FATE_MADE;
    }
    if (s->proc == ROLL_PROC_DEAD || source_failed(s)) { /* such a process has not chosen to leave the call out */
        return s->proc == ROLL_PROC_DEAD ? FATE_DEAD : FATE_FAILED;
    }
    return m->gone || m->ended != 0 || s->proc == ROLL_PROC_FINISHED ? FATE_NEVER : FATE_OPEN;
}

/*
 * Adds the votes of a sibling's members. A member counts as one that has made the call where that was this very call;
 * as one that never will where it has left right after calls that were the same. But absence elsewhere does not outvote
 * half of a communicator, because another stage of a pipeline may have had less to do; and a sibling on which no call
 * was made says nothing.
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

/*
 * Where the majority of those who vote stands. A member that has died or failed does not vote: what a member that has
 * failed would have done is not known. Where others have left the call out in good order, the failed ones might have
 * gone with them, or not.
 */
static enum quorum camp_of(const uint32_t count[FATES])
{
    uint32_t all = count[FATE_MADE] + count[FATE_NEVER] + count[FATE_OPEN];
    uint32_t might = count[FATE_NEVER] > 0 ? count[FATE_FAILED] : 0;
    if (count[FATE_MADE] * 2 > all + might) {
        return CAMP_MADE;
    }
    if (count[FATE_NEVER] * 2 > all + might) {
        return CAMP_NEVER;
    }
    return count[FATE_OPEN] == 0 ? CAMP_TIE : CAMP_OPEN;
}

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
