/*
 * detect_p2p.c: sends and receives without partner, and what to say of two that differ in bytes.
 *
 * NCCL pairs the n-th send with the n-th receive and nothing else, empty ones included. A call without partner is
 * proven when the partner has ended, has left the communicator, or waits itself in a circle. Who is wrong, two calls do
 * not say: the one may be missing as well as the other may be one too many. A rank is named where several partners say
 * so (exchange.c), or where the majority waits in a collective that it lacks. Where most of the members are concerned
 * it is an all-to-all-v, and has a code of its own. Sends and receives that wait for each other in a circle are a
 * deadlock of their own code, and circles over several communicators are detect_circular.c's, unless one rank of it
 * lacks the exchange that its peers wait in.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/match/exchange.h"

#include <inttypes.h>

static const struct source *end_source(const struct roll_engine *e, const struct pair *p, unsigned side)
{
    uint32_t source = p->comm->member[p->end[side]].source;
    return source == NO_SOURCE ? NULL : e->source[source];
}

static void two_sides(struct roll_engine *e, struct roll_verdict *v, const struct pair *p,
                      const struct entry *const end[2], struct roll_rankset set[2])
{
    const struct comm *c = p->comm;
    for (unsigned side = 0; side < 2; side++) {
        uint32_t source = c->member[p->end[side]].source;
        if (source != NO_SOURCE) {
            (void)roll_rankset_add(&set[side], e->source[source]->world);
            say_side(v, e->source[source], source, &set[side], end[side] ? &end[side]->rec : NULL);
        }
    }
}

void p2p_say_bytes(struct roll_engine *e, struct pair *p, uint32_t index, const uint64_t ticket[2], bool proven)
{
    struct comm *c = p->comm;
    const struct entry *end[2] = {NULL, NULL};
    for (unsigned side = 0; side < 2; side++) {
        const struct source *s = end_source(e, p, side);
        end[side] = s ? source_entry(s, ticket[side]) : NULL;
    }
    if (!end[0] || !end[1]) {
        comm_explained(e, c);
        return;
    }
    comm_mute_at(e, c, end_source(e, p, 0), &end[0]->rec);
    comm_explained(e, c);
    struct roll_verdict *v = say(e, ROLL_VERDICT_P2P_BYTES, proven ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    say_comm(v, c, index);
    v->field = "count";
    struct roll_rankset set[2] = {{0}, {0}};
    two_sides(e, v, p, end, set);
    struct words w = {.used = 0};
    for (unsigned side = 0; side < 2; side++) {
        const struct roll_record *rec = &end[side]->rec;
        words_add(&w, side ? " where " : "");
        words_ranks(&w, &set[side]);
        words_add(&w, " %s %" PRIu64 " bytes (", side ? "receives" : "sends", p2p_bytes(rec));
        words_call(&w, rec);
        words_add(&w, ")");
    }
    words_add(&w, ", message %u between them on ", index);
    words_comm(&w, c);
    words_add(&w,
              ". NCCL does not check this: it hangs or truncates. Two calls alone do not say which of them is wrong.");
    if (p2p_bytes(&end[0]->rec) == 0 || p2p_bytes(&end[1]->rec) == 0) {
        words_add(&w, " An empty message is a message: the side that is one ahead has probably left it out.");
    }
    if (!proven) {
        words_add(&w, " Suspected: one of the two has not returned yet and may still be refused.");
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&set[0]);
    roll_rankset_fini(&set[1]);
}

/* calls without partner */

/* The partner in this message has not made its side. */
static bool lacks_partner(const struct entry *entry)
{
    const struct pair *p = entry->pair;
    return p && p2p_known(p, !p2p_side(&entry->rec)) && entry->index >= p->issued[!p2p_side(&entry->rec)];
}

static bool is_gone(const struct block *b)
{
    return b->kind == BLOCK_FINISHED || b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED;
}

/* What the rank that lacks the call does instead. */
static void words_instead(struct words *w, const struct roll_engine *e, const struct block *b, uint32_t source)
{
    if (b->kind == BLOCK_FINISHED) {
        words_add(w, "its process has ended (");
        words_exit(w, e->source[source]->exit_status);
        words_add(w, ")");
        return;
    }
    if (b->kind == BLOCK_GONE) {
        words_add(w, "it has destroyed the communicator");
        return;
    }
    if (b->kind == BLOCK_ABORTED) {
        words_add(w, "it has aborted the communicator");
        return;
    }
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        if (b->step[i].rank == e->source[source] && at) {
            const struct member *m = source_member(b->step[i].rank, at->rec.comm);
            words_add(w, "it waits itself in ");
            words_call(w, &at->rec);
            if (m) {
                words_add(w, " on ");
                words_comm(w, m->comm);
            }
            words_add(w, ", for rank %u", b->step[(i + 1) % b->steps].rank->world);
            return;
        }
    }
    words_add(w, "it waits itself in another call");
}

static void words_empty(struct words *w)
{
    words_add(w,
              " An empty message is a message: it waits for its partner like any other, and is left out by both sides "
              "or by none.");
}

static enum roll_verdict_code code_of(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint64_t ticket)
{
    const struct source *s = e->source[c->member[rank].source];
    return p2p_is_alltoallv(s, ticket) ? ROLL_VERDICT_ALLTOALLV_MISMATCH : ROLL_VERDICT_P2P_UNMATCHED;
}

/* The rank waits itself: in a call that its peers do not make, or make later. */
static void may_be(struct roll_verdict *v, const struct block *b, const struct comm *c, const struct source *s)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = b->step[i].rank == s ? source_entry(s, b->step[i].ticket) : NULL;
        const struct member *m = at ? source_member(s, at->rec.comm) : NULL;
        if (m) {
            say_may_be(v, ROLL_VERDICT_CALL_ADDED);
            say_may_be(v, m->comm == c ? ROLL_VERDICT_CALLS_REORDERED : ROLL_VERDICT_CIRCULAR_WAIT);
            return;
        }
    }
}

/* All messages without partner are with one rank: it has left out the exchange, or some messages of it. */
static void say_lack(struct roll_engine *e, const struct block *b, struct comm *c, const struct exchange_lack *lack)
{
    uint32_t source = c->member[lack->rank].source, maker = c->member[lack->maker].source;
    const struct source *s = e->source[source], *peer = e->source[maker];
    enum roll_verdict_code code = code_of(e, c, lack->maker, roll_seal_ticket(lack->entry->rec.seal));
    comm_mute_at(e, c, peer, &lack->entry->rec);
    comm_explained(e, c);
    if (!say_once(e, say_key(code, c->key, 1, c->era))) {
        return;
    }
    struct roll_verdict *v = say(e, code, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, lack->entry->index);
    (void)roll_rankset_add(&v->culprits, s->world);
    say_side(v, s, source, &v->culprits, NULL);
    say_side(v, peer, maker, &lack->waiting, &lack->entry->rec);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    bool open = lack->whole && b->kind == BLOCK_CYCLE; /* it may come to them too late, too */
    words_add(&w, "Rank %u %s %s on ", s->world, open ? "has not made" : "left out",
              !lack->grouped ? "sends or receives"
              : lack->whole  ? "an exchange (a group of sends and receives)"
                             : "messages of an exchange (a group of sends and receives)");
    words_comm(&w, c);
    words_add(&w, ": ");
    words_wait(&w, &lack->waiting);
    words_add(&w, " in %s for it, rank %u in ", lack->grouped ? "theirs" : "calls", peer->world);
    words_call(&w, &lack->entry->rec);
    words_add(&w, ", and rank %u has made none of the %u messages that they need; ", s->world, lack->messages);
    words_instead(&w, e, b, source);
    words_add(&w, ".");
    if (lack->bytes == 0) {
        words_add(&w, " All of them are empty: a rank without tokens has to take part all the same.");
        words_empty(&w);
    } else if (!lack->whole) {
        words_add(&w, " Its other messages of that exchange are there: look at its split table.");
    }
    if (open) {
        words_add(&w, " That it lacks them while they wait is certain; whether it left them out is not.");
        may_be(v, b, c, s);
        words_may_be(&w, v);
    }
    say_text(e, v, "%s", w.text);
}

/* One rank lacks what its partner has made, or the partner has made one too many: a tie. mixed: in a circle with a
 * collective. */
static void say_unmatched(struct roll_engine *e, const struct block *b, const struct source *s, uint64_t ticket,
                          bool mixed)
{
    const struct entry *entry = source_entry(s, ticket);
    struct pair *p = entry->pair;
    struct comm *c = p->comm;
    unsigned side = p2p_side(&entry->rec);
    uint32_t other = c->member[p->end[!side]].source;
    enum roll_verdict_code code =
        p2p_is_alltoallv(s, ticket) ? ROLL_VERDICT_ALLTOALLV_MISMATCH : ROLL_VERDICT_P2P_UNMATCHED;
    comm_mute_at(e, c, s, &entry->rec);
    comm_explained(e, c);
    if (other == NO_SOURCE || !say_once(e, say_key(code, c->key, 1, c->era))) {
        return;
    }
    struct roll_verdict *v = say(e, code, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_comm(v, c, entry->index);
    struct roll_rankset set[2] = {{0}, {0}};
    const struct entry *end[2] = {NULL, NULL};
    end[side] = entry;
    two_sides(e, v, p, end, set);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    bool itself = p->end[0] == p->end[1];
    bool adds = !itself && exchange_adds(e, c, p->end[side]);
    struct words w = {.used = 0};
    if (code == ROLL_VERDICT_ALLTOALLV_MISMATCH) {
        words_add(&w, "In an all-to-all-v ");
    }
    words_ranks(&w, &set[side]);
    words_add(&w, " waits in ");
    words_call(&w, &entry->rec);
    words_add(&w, " (message %u of this pair on ", entry->index);
    words_comm(&w, c);
    words_add(&w, "), but ");
    words_ranks(&w, &set[!side]);
    words_add(&w, " has not %s: ", side == 0 ? "received it" : "sent it");
    words_instead(&w, e, b, other);
    words_add(&w, ", %u such calls made against %u here.", p->issued[!side], p->issued[side]);
    if (itself) {
        (void)roll_rankset_copy(&v->culprits, &set[side]);
        words_add(&w, " A message to oneself needs both its send and its receive, in one group.");
    } else if (adds) {
        (void)roll_rankset_copy(&v->culprits, &set[side]);
        words_add(&w, " All messages without partner are rank %u's: it makes calls that none of its partners makes.",
                  s->world);
    } else {
        words_add(&w,
                  " The calls alone do not say which side is wrong: one is missing there, or one is too many here.");
    }
    if (p2p_bytes(&entry->rec) == 0) {
        words_empty(&w);
    }
    if (mixed) { /* the one waits in a collective, the other in a message: either may be what the other left out, or
                    made alone */
        say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
        say_may_be(v, ROLL_VERDICT_CALL_ADDED);
        words_may_be(&w, v);
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&set[0]);
    roll_rankset_fini(&set[1]);
}

/* circles that mix messages and collectives of one communicator */

/* What a circle on one communicator is made of. */
struct mix {
    struct comm *comm;
    uint32_t p2ps;       /* ranks that wait in a message */
    uint32_t without;    /* index + 1 of one whose message has no partner; 0 = none */
    uint32_t collective; /* index + 1 of the one that waits in the first collective; 0 = none */
    uint32_t seq;        /* of that collective */
};

static bool read_mix(const struct block *b, struct mix *out)
{
    *out = (struct mix){.seq = NO_SEQ};
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = at ? source_member(b->step[i].rank, at->rec.comm) : NULL;
        if (!m || (out->comm && out->comm != m->comm)) {
            return false;
        }
        out->comm = m->comm;
        if (at->pair) {
            out->p2ps++;
            out->without = !out->without && lacks_partner(at) ? i + 1 : out->without;
        } else if (at->rec.seq < out->seq) {
            out->seq = at->rec.seq;
            out->collective = i + 1;
        }
    }
    return out->comm != NULL;
}

/*
 * It has made this collective, but so far fewer of them than its peers, and each that it has made from there on is like
 * the one behind: they may be the next ones, and the first left out.
 */
static bool has_fewer(const struct comm *c, const struct member *m, uint32_t seq)
{
    bool fewer = m->next > seq && c->high > m->next && c->high - seq <= c->slot_mask;
    for (uint32_t at = seq; fewer && at < m->next; at++) {
        const struct slot *slot = comm_slot(c, at), *next = comm_slot(c, at + 1);
        fewer = next->ticket != 0 && next->sig == slot->sig;
    }
    return fewer;
}

/* The rank waits in messages before a collective that its partners and the majority have made before theirs. */
static void say_early(struct roll_engine *e, const struct block *b, const struct mix *mix, uint32_t step)
{
    struct comm *c = mix->comm;
    const struct source *s = b->step[step].rank, *peer = b->step[mix->collective - 1].rank;
    const struct entry *mine = source_entry(s, b->step[step].ticket);
    const struct entry *theirs = source_entry(peer, b->step[mix->collective - 1].ticket);
    const struct member *m = source_member(s, mine->rec.comm);
    bool fewer = has_fewer(c, m, mix->seq), later = comm_member_issued(m, mix->seq) && !fewer;
    enum roll_verdict_code code = later ? ROLL_VERDICT_CALLS_REORDERED : ROLL_VERDICT_CALL_SKIPPED;
    comm_mute_at(e, c, s, &mine->rec);
    comm_explained(e, c);
    if (!say_once(e, say_key(code, c->key, mix->seq, 3 + (uint64_t)c->era * 8))) {
        return;
    }
    struct roll_verdict *v = say(e, code, later ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    struct roll_rankset waiter = {0};
    say_comm(v, c, mix->seq);
    v->field = "op";
    (void)roll_rankset_add(&v->culprits, s->world);
    say_beside(e, peer, theirs, &waiter);
    say_side(v, s, source_index(e, s), &v->culprits, &mine->rec);
    say_side(v, peer, source_index(e, peer), &waiter, &theirs->rec);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
    words_wait(&w, &waiter);
    words_add(&w, " in ");
    words_call(&w, &theirs->rec);
    words_add(&w, ", #%u on ", mix->seq);
    words_comm(&w, c);
    words_add(&w, ", for rank %u, which has %s: it waits in ", s->world,
              later   ? "made it only behind its messages"
              : fewer ? "made one such call less than its peers, and that behind its messages"
                      : "not made it");
    words_call(&w, &mine->rec);
    words_add(&w, ", with partners that wait in that %s or have made it first. ", roll_op_name(theirs->rec.op));
    words_add(&w, later ? "Make the same calls in the same order on every rank."
                        : "It left that call out, makes it later than its peers, or makes messages that they do not: "
                          "suspected, because the calls do not say which.");
    if (!later) {
        say_may_be(v, ROLL_VERDICT_CALLS_REORDERED);
        say_may_be(v, code_of(e, c, (uint32_t)m->rank, b->step[step].ticket));
        words_may_be(&w, v);
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
}

/* A zero-count call that NCCL dropped explains the circle as well: asked for the rank that waits in the collective. */
static bool dropped(struct roll_engine *e, const struct block *b, const struct mix *mix)
{
    struct block at = *b;
    at.waiter = b->step[mix->collective - 1].rank;
    at.ticket = b->step[mix->collective - 1].ticket;
    return detect_zero.block(e, &at);
}

/* NCCL refused a call of this rank with that number: what it made later is not the same call moved. */
static bool was_refused(const struct source *s, const struct comm *c, uint32_t seq)
{
    uint64_t low = source_log_low(s);
    for (uint64_t t = s->next; t-- > low;) {
        const struct entry *at = source_entry(s, t);
        const struct member *m = at ? source_member(s, at->rec.comm) : NULL;
        if (m && m->comm == c && roll_op_class(at->rec.op) == ROLL_CLASS_COLL && at->rec.seq == seq &&
            refused_call(at)) {
            return true;
        }
    }
    return false;
}

static bool mixed_circle(struct roll_engine *e, const struct block *b, const struct mix *mix)
{
    const struct comm *c = mix->comm;
    uint32_t made = 0;
    if (dropped(e, b, mix)) {
        return true;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        made += comm_member_issued(&c->member[r], mix->seq);
    }
    for (uint32_t i = 0; made * 2 > c->size && i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        if (at->pair && exchange_early(e, b->step[i].rank, b->step[i].ticket, mix->seq) > 1 &&
            !was_refused(b->step[i].rank, c, mix->seq)) {
            say_early(e, b, mix, i);
            return true;
        }
    }
    if (mix->without == 0) {
        return false;
    }
    say_unmatched(e, b, b->step[mix->without - 1].rank, b->step[mix->without - 1].ticket, true);
    return true;
}

/* What stands still on the other communicators of the circle does so for the same reason. */
static void explain_circle(struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = at ? source_member(b->step[i].rank, at->rec.comm) : NULL;
        if (m) {
            comm_mute_at(e, m->comm, b->step[i].rank, &at->rec);
            comm_explained(e, m->comm);
        }
    }
}

/* One rank of the circle lacks an exchange that its peers wait in: that comes before the circle, also over several
 * communicators. */
static bool lacking_circle(struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        if (!at || !lacks_partner(at)) {
            continue;
        }
        struct comm *c = at->pair->comm;
        struct exchange_lack lack = {.waiting = {0}};
        uint32_t rank = at->pair->end[!p2p_side(&at->rec)];
        uint32_t next =
            (i + 1) % b->steps; /* what the rank itself waits in: it may be held up there by one that has passed it */
        bool alone = exchange_lacks(e, c, rank, &lack) && lack.entry &&
                     c->member[rank].source == source_index(e, b->step[next].rank) &&
                     exchange_against(e, c, &lack, b->step[next].rank, b->step[next].ticket) > 1;
        if (alone) {
            say_lack(e, b, c, &lack);
            explain_circle(e, b);
        }
        exchange_fini(&lack);
        if (alone) {
            return true;
        }
    }
    return false;
}

static bool p2p_block(struct roll_engine *e, const struct block *b)
{
    if (is_gone(b)) {
        const struct entry *entry = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
        if (!entry || !entry->pair) {
            return false;
        }
        struct comm *c = entry->pair->comm;
        struct exchange_lack lack = {.waiting = {0}};
        if (lacks_partner(entry) && exchange_lacks(e, c, entry->pair->end[!p2p_side(&entry->rec)], &lack) &&
            lack.entry) {
            say_lack(e, b, c, &lack);
        } else {
            say_unmatched(e, b, b->waiter, b->ticket, false);
        }
        exchange_fini(&lack);
        return true;
    }
    if (b->kind != BLOCK_CYCLE || !b->hard) {
        return false;
    }
    if (lacking_circle(e, b)) {
        return true;
    }
    struct mix mix;
    if (!read_mix(b, &mix) || mix.p2ps == 0) {
        return false;
    }
    if (mix.collective != 0) {
        return mixed_circle(e, b, &mix);
    }
    if (mix.without == 0) {
        return false;
    }
    /* Messages alone: a deadlock, unless one of an all-to-all-v has no partner, or one to oneself. */
    struct source *s = b->step[mix.without - 1].rank;
    uint64_t ticket = b->step[mix.without - 1].ticket;
    if (b->steps > 1 && !p2p_is_alltoallv(s, ticket)) {
        return false;
    }
    say_unmatched(e, b, s, ticket, false);
    return true;
}

const struct detector detect_p2p = {.name = "p2p", .block = p2p_block};
