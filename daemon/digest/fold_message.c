/*
 * fold_message.c: the messages of one rank: a sum for each communicator, in which what was sent and what was received
 * cancel out, and a hash for each 64 messages of a pair (fold.h).
 *
 * A list of the messages that have not met their like was rejected: it grows with what is under way, and half of each
 * pair is on another node.
 */
#include "daemon/digest/fold_state.h"

#include "daemon/base/array.h"
#include "trace/op.h"

#include <stdlib.h>

static uint64_t mix(uint64_t h, uint64_t v)
{
    uint64_t x = (h ^ v) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static struct roll_fold_pair *pair_of(struct roll_fold *fold, const struct roll_record *rec)
{
    uint64_t key = (uint64_t)rec->comm << 48 | (uint64_t)(rec->op == ROLL_OP_RECV) << 40 | (uint32_t)rec->peer;
    uint32_t at = roll_map_get(&fold->pair_at, key);
    if (at != ROLL_MAP_NONE) {
        return &fold->pair[at];
    }
    if (ROLL_GROW(fold->pair, fold->pair_room, fold->pairs + 1) != 0 ||
        roll_map_add(&fold->pair_at, key, (uint32_t)fold->pairs) != 0) {
        return NULL;
    }
    fold->pair[fold->pairs] = (struct roll_fold_pair){
        .peer = (uint32_t)rec->peer, .losses = fold->losses, .comm = rec->comm, .op = rec->op, .sure = true};
    return &fold->pair[fold->pairs++];
}

static uint64_t bytes_of(const struct roll_record *rec)
{
    return (rec->flags & ROLL_FLAG_UNSIZED) != 0 ? 0 : rec->count * roll_dtype_bytes(rec->dtype);
}

/* A hash of the pair: what is mixed into it must not meet the numbers of the ends. */
static uint64_t ends_of(const struct roll_fold_member *m, const struct roll_record *rec)
{
    bool sends = rec->op == ROLL_OP_SEND;
    uint64_t source = sends ? m->rank : (uint32_t)rec->peer, target = sends ? (uint32_t)rec->peer : m->rank;
    return mix(source << 32 | target, 3);
}

/*
 * A window of 64 messages of a pair is told by both ends, when each has filled it: a mistake in messages that go on is
 * heard of then, whoever else sends. The sums of a communicator rest only when nothing is under way on it, which may be
 * never; and to wait until all members have passed a number was rejected, because pairs have different numbers of
 * messages, and one that has stopped would hold up all others.
 */
static int add_to_window(struct roll_fold *fold, const struct roll_fold_member *m, struct roll_fold_pair *p,
                         const struct roll_record *rec, bool follows)
{
    uint32_t window = rec->seq / ROLL_DIGEST_WINDOW;
    if ((rec->seq & ROLL_FOLD_MASK) == 0) {
        p->hash = 0;
        p->whole = true;
    }
    p->whole = p->whole && ((follows && p->losses == fold->losses) || (rec->seq & ROLL_FOLD_MASK) == 0);
    p->losses = fold->losses;
    p->hash = mix(p->hash, bytes_of(rec) + 1);
    if ((rec->seq & ROLL_FOLD_MASK) != ROLL_FOLD_MASK || !p->whole) {
        return 0;
    }
    fold->like = fold->like ? fold->like : calloc(ROLL_FOLD_LIKES, sizeof(*fold->like));
    if (!fold->like) {
        return ROLL_E_NOMEM;
    }
    fold->like[fold->likes++ % ROLL_FOLD_LIKES] =
        (struct roll_digest_like){.key = m->key,
                                  .place = mix(mix(ends_of(m, rec), window), 2),
                                  .hash = p->hash,
                                  .why = ROLL_HINT_MESSAGES,
                                  .seq = 1u << window % ROLL_DIGEST_CLASSES};
    return 0;
}

/* What a message adds to the sum of its class; `back`: it is taken out again. */
static void add_term(struct roll_fold_member *m, const struct roll_record *rec, bool back)
{
    uint64_t term = mix(mix(mix(ends_of(m, rec), rec->seq), bytes_of(rec)), 1);
    m->sum[rec->seq / ROLL_DIGEST_WINDOW % ROLL_DIGEST_CLASSES] += (rec->op == ROLL_OP_SEND) != back ? term : -term;
    m->sums_moved = true;
}

int roll_fold_message(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec)
{
    if (rec->peer < 0 || (uint32_t)rec->peer >= m->size || (rec->op != ROLL_OP_SEND && rec->op != ROLL_OP_RECV)) {
        return 0;
    }
    if (rec->seq > ROLL_FOLD_SEQ_MOST) {
        roll_fold_hint(fold, m, ROLL_HINT_OTHER, 0);
        return 0;
    }
    struct roll_fold_pair *p = pair_of(fold, rec);
    if (!p) {
        return ROLL_E_NOMEM;
    }
    if (m->gone) {
        roll_fold_hint(fold, m, ROLL_HINT_LIFE, 0);
    }
    if (rec->seq < p->next) {
        roll_fold_hint(fold, m, ROLL_HINT_REFUSED, 0); /* what the refused one added to the sum stays there */
        p->made -= p->made < p->next - rec->seq ? p->made : p->next - rec->seq;
    }
    bool follows = rec->seq == p->next;
    p->sure = p->sure && rec->seq <= p->next;
    p->made += (rec->flags & ROLL_FLAG_CAPTURED) == 0;
    p->next = rec->seq + 1;
    if ((rec->flags & ROLL_FLAG_CAPTURED) != 0) {
        p->whole = false;
        return 0;
    }
    add_term(m, rec, false);
    return add_to_window(fold, m, p, rec, follows);
}

void roll_fold_message_back(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec)
{
    struct roll_fold_pair *p = pair_of(fold, rec);
    if (p && p->next == rec->seq + 1) {
        bool captured = (rec->flags & ROLL_FLAG_CAPTURED) != 0;
        p->next = rec->seq;
        p->whole = false;
        p->made -= !captured;
        if (!captured) {
            add_term(m, rec, true);
        }
    }
}
