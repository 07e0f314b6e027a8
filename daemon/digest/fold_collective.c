/*
 * fold_collective.c: the collectives of one rank, put into windows (fold.h).
 *
 * The signatures of the last 64 collectives are kept beside the hash, because a call that NCCL refuses gives its number
 * back, and the next call takes its place in the window. A hash alone that is rolled on was rejected for that: nothing
 * can be taken out of it. A window is hashed when the first call behind it comes.
 */
#include "daemon/digest/fold_state.h"

#include "trace/op.h"
#include "trace/signature.h"

#include <string.h>

/* What must be equal of a call, and what the engine remarks on where it is not: as many bytes of another datatype, and
 * whether the call stands in one group with the call before it. */
static uint64_t word_of(const struct roll_fold_member *m, const struct roll_record *rec)
{
    bool joined = rec->group != 0 && rec->group == m->group && rec->thread == m->thread;
    return (roll_record_signature(rec) ^ (uint64_t)rec->dtype << 32 ^ (uint64_t)joined << 48) * 0x9e3779b97f4a7c15u;
}

uint64_t roll_fold_hash(const struct roll_fold_member *m, uint32_t calls)
{
    uint64_t hash = 0;
    for (uint32_t i = 0; i < calls; i++) {
        hash = roll_sequence_hash(hash, m->fill->sig[i]);
    }
    return hash ^ hash >> 31;
}

/* The windows up to the one that holds `seq` are filled: the first by what is known of it, the others by calls of which
 * nothing is known. */
static void fill_up_to(struct roll_fold_member *m, uint32_t seq)
{
    uint32_t first = m->next > 0 ? (m->next - 1) / ROLL_DIGEST_WINDOW : 0, last = seq / ROLL_DIGEST_WINDOW;
    for (uint32_t w = last - first > ROLL_FOLD_WINDOWS ? last - ROLL_FOLD_WINDOWS : first; w < last; w++) {
        bool known = w == first && m->known && m->next == (w + 1) * ROLL_DIGEST_WINDOW;
        m->fill->filled[w % ROLL_FOLD_WINDOWS] =
            (struct roll_fold_filled){known ? roll_fold_hash(m, ROLL_DIGEST_WINDOW) : 0, known};
    }
    if (last != first) {
        m->known = true;
    }
}

void roll_fold_step_back(struct roll_fold *fold, struct roll_fold_member *m, uint32_t seq)
{
    if (m->fill &&
        seq / ROLL_DIGEST_WINDOW != m->next / ROLL_DIGEST_WINDOW) { /* the window was told with the refused call */
        roll_fold_hint(fold, m, ROLL_HINT_REFUSED, seq);
        memset(m->fill->sig, 0, sizeof(m->fill->sig));
        m->known = false;
    }
    m->next = seq;
}

void roll_fold_collective(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec)
{
    uint32_t seq = rec->seq;
    if (rec->count == 0) {
        return;
    }
    if (seq > ROLL_FOLD_SEQ_MOST) {
        roll_fold_hint(fold, m, ROLL_HINT_OTHER, 0);
        return;
    }
    if (m->gone) {
        roll_fold_hint(fold, m, ROLL_HINT_LIFE, seq);
    }
    if (!m->fill) {
        m->next = seq + 1;
        return;
    }
    if (seq < m->next) {
        roll_fold_step_back(fold, m, seq);
    }
    fill_up_to(m, seq);
    if (seq > m->next) {
        m->known = false;
        m->sure = true;
    }
    m->fill->sig[seq & ROLL_FOLD_MASK] = word_of(m, rec);
    m->next = seq + 1;
    m->moved = true;
}
