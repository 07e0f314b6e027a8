/*
 * zero.c: calls of no elements, which NCCL drops without a word.
 *
 * The newest of each member are remembered, because one of them may be the call that the others wait for
 * (detect_zero.c, align.c). To give them slots like other calls was rejected: a dropped call takes no number, so the
 * member's next call would look like the one after it.
 */
#include "daemon/engine/match/match.h"

/* The signature of the call as if it had one element and had not failed. */
static uint64_t as_one(const struct roll_record *rec)
{
    struct roll_record one = *rec;
    one.count = 1;
    one.result = 0;
    return match_signature(&one);
}

/*
 * The dropped call of s is the call that `by` made, but for its count. The datatypes are compared as well, because the
 * signature of a call that moves bytes holds none.
 *
 * A dropped call from another place of the program does not count where `by` has made calls at that place as well: it
 * is another call, which `by` may make later. A place of which `by` knows nothing may be the branch that s takes when
 * it has no elements. Places are compared only where the two calls bear one number: later calls that look like
 * the dropped one may stand anywhere.
 */
bool zero_stands_for(const struct source *s, const struct entry *dropped, uint64_t sig, const struct source *by,
                     const struct roll_record *made)
{
    return dropped && sig == as_one(made) && dropped->rec.dtype == made->dtype &&
           (dropped->rec.seq < made->seq || site_compare(s, &dropped->rec, by, made) != SITE_OTHER ||
            !site_is_known(by, site_of(s, &dropped->rec)));
}

uint32_t zero_dropped(const struct roll_engine *e, const struct member *m, uint32_t seq, const struct source *by,
                      const struct roll_record *made, uint64_t *ticket)
{
    const struct source *s = m->source != NO_SOURCE ? e->source[m->source] : NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; s && i < ZEROS_MAX && i < m->zeros; i++) {
        uint32_t at = (m->zeros - 1 - i) % ZEROS_MAX;
        if (m->zero[at].seq == seq &&
            zero_stands_for(s, source_entry(s, m->zero[at].ticket), m->zero[at].sig, by, made)) {
            *ticket = count++ == 0 ? m->zero[at].ticket : *ticket;
        }
    }
    return count;
}

bool zero_drops(const struct member *m, const struct roll_record *rec)
{
    uint64_t sig = as_one(rec);
    for (uint32_t i = 0; i < ZEROS_MAX && i < m->zeros; i++) {
        if (m->zero[i].sig == sig) {
            return true;
        }
    }
    return false;
}

void zero_remember(struct member *m, const struct roll_record *rec, uint64_t ticket)
{
    uint32_t at = m->zeros++ % ZEROS_MAX;
    m->comm->zeros++;
    m->zero[at].sig = as_one(rec);
    m->zero[at].ticket = ticket;
    m->zero[at].seq = rec->seq;
}
