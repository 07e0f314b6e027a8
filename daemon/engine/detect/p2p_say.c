/*
 * p2p_say.c: verdicts about sends and receives that differ in bytes, that have no partner, or that stand before a
 * collective which their partners made first.
 */
#include "daemon/engine/detect/p2p.h"

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

/* Which of the two calls is not the one that was rehearsed, where the other one is; 2: that is not known. */
static unsigned odd_end(const struct pair *p, const uint64_t ticket[2])
{
    enum rehearsed send = rehearsed_of(&p->comm->member[p->end[0]], ticket[0]),
                   receive = rehearsed_of(&p->comm->member[p->end[1]], ticket[1]);
    bool send_leaves = send == REHEARSED_LEAVES || send == REHEARSED_UNHEARD;
    bool receive_leaves = receive == REHEARSED_LEAVES || receive == REHEARSED_UNHEARD;
    return send_leaves && receive == REHEARSED_FITS ? 0 : send == REHEARSED_FITS && receive_leaves ? 1 : 2;
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
    const struct source *from = end_source(e, p, 0), *to = end_source(e, p, 1);
    bool later = source_line(to, &end[1]->rec) > source_line(from, &end[0]->rec);
    comm_mute_at(e, c, later ? to : from, &end[later]->rec); /* the trouble begins when both have come */
    comm_explained(e, c);
    bool itself = p->end[0] == p->end[1]; /* whichever call is wrong, one rank has made both */
    unsigned odd = itself ? 2 : odd_end(p, ticket);
    bool certain = proven && odd == 2;
    struct roll_verdict *v = say(e, ROLL_VERDICT_P2P_BYTES, certain ? ROLL_PROVEN : ROLL_SUSPECTED);
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
    words_add(&w, ". NCCL does not check this: it hangs or truncates. Two calls alone do not say which of them is "
                  "wrong");
    words_add(&w,
              itself     ? ", but both are this rank's, to itself."
              : odd == 2 ? "."
                         : "; it is the rehearsal that does: rank %u does here what was rehearsed, rank %u does "
                           "not.",
              odd == 2 ? 0 : roll_rankset_at(&set[!odd], 0), odd == 2 ? 0 : roll_rankset_at(&set[odd], 0));
    if (itself || odd != 2) {
        (void)roll_rankset_copy(&v->culprits, &set[itself ? 0 : odd]);
    }
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

/* Adds what the rank that lacks the call does instead. */
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
        const struct member *m = b->comm ? comm_member_of(b->comm, source) : NULL;
        words_add(w, "it has %s the communicator", m && m->ended == ROLL_OP_COMM_REVOKE ? "revoked" : "aborted");
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

/* Adds the other possible mistakes of a rank that waits itself: its peers do not make the call that it waits in, or
 * make that call later. */
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

/* Ranks that have made the collective of this communicator in which the rank waits, and that not only behind their
 * exchange with it: it is not alone with its line of calls, so what it lacks may be the fault of those that wait for
 * it.
 */
static void made_too(const struct roll_engine *e, const struct block *b, const struct comm *c,
                     const struct exchange_lack *lack, struct roll_rankset *out)
{
    const struct source *s = e->source[c->member[lack->rank].source];
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *at = b->step[i].rank == s ? source_entry(s, b->step[i].ticket) : NULL;
        const struct member *m = at && !at->pair ? source_member(s, at->rec.comm) : NULL;
        for (uint32_t r = 0; m && m->comm == c && roll_op_class(at->rec.op) == ROLL_CLASS_COLL && r < c->size; r++) {
            const struct member *other = &c->member[r];
            if (other != m && other->source != NO_SOURCE && other->next > at->rec.seq &&
                !exchange_comes_first(e, c, lack, other, at)) {
                (void)roll_rankset_add(out, e->source[other->source]->world);
            }
        }
    }
}

void p2p_say_lack(struct roll_engine *e, const struct block *b, struct comm *c, const struct exchange_lack *lack)
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
    struct roll_rankset lacks = {0}, made = {0};
    (void)roll_rankset_add(&lacks, s->world);
    bool open = lack->whole && b->kind == BLOCK_CYCLE; /* the rank may also come to these messages, but too late */
    if (open) {
        made_too(e, b, c, lack, &made);
    }
    if (roll_rankset_count(&made) == 0) {
        (void)roll_rankset_copy(&v->culprits, &lacks);
    }
    say_side(v, s, source, &lacks, NULL);
    say_side(v, peer, maker, &lack->waiting, &lack->entry->rec);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    struct words w = {.used = 0};
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
        words_add(&w, " It is certain that it lacks them while they wait; it is not certain that it left them out.");
        if (roll_rankset_count(&made) > 0) {
            words_add(&w, " ");
            words_ranks(&w, &made);
            words_add(&w, roll_rankset_count(&made) == 1 ? " has made that call, too" : " have made that call, too");
            words_add(&w, ", so the records do not say which ranks are wrong.");
            say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
        }
        may_be(v, b, c, s);
        words_may_be(&w, v);
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&lacks);
    roll_rankset_fini(&made);
}

/* Who is wrong by the rehearsal where one rank waits in a message (entry, with this ticket) and its partner in another
 * call of the circle: 0 the sender, 1 the receiver; 2: the rehearsal does not say. */
static unsigned rehearsed_end(const struct roll_engine *e, const struct block *b, const struct entry *entry,
                              uint64_t ticket)
{
    const struct pair *p = entry->pair;
    unsigned side = p2p_side(&entry->rec);
    const struct member *mine = &p->comm->member[p->end[side]], *theirs = &p->comm->member[p->end[!side]];
    enum rehearsed waits = e->expected ? rehearsed_of(mine, ticket) : REHEARSED_UNKNOWN;
    for (uint32_t i = 0; waits != REHEARSED_UNKNOWN && i < b->steps; i++) {
        const struct source *s = b->step[i].rank;
        const struct entry *at = source_entry(s, b->step[i].ticket);
        if (s == e->source[theirs->source] && at && source_member(s, at->rec.comm) == theirs) {
            enum rehearsed other = rehearsed_of(theirs, b->step[i].ticket);
            return waits == REHEARSED_FITS && other == REHEARSED_LEAVES   ? !side
                   : waits == REHEARSED_LEAVES && other == REHEARSED_FITS ? side
                                                                          : 2;
        }
    }
    return 2;
}

void p2p_say_unmatched(struct roll_engine *e, const struct block *b, const struct source *s, uint64_t ticket,
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
    bool itself = p->end[0] == p->end[1];
    /* Two calls do not say who is wrong, but an exit code does. */
    bool failed = !itself && b->kind == BLOCK_FINISHED && source_failed(e->source[other]);
    bool adds = !itself && !failed && exchange_adds(e, c, p->end[side]);
    unsigned odd = itself || adds || failed ? 2 : rehearsed_end(e, b, entry, ticket);
    struct roll_verdict *v = say(e, code, odd == 2 ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    say_comm(v, c, entry->index);
    struct roll_rankset set[2] = {{0}, {0}};
    const struct entry *end[2] = {NULL, NULL};
    end[side] = entry;
    two_sides(e, v, p, end, set);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
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
    words_add(&w, "; of the messages of this pair it has made %u, its partner %u.", p->issued[!side], p->issued[side]);
    if (itself) {
        (void)roll_rankset_copy(&v->culprits, &set[side]);
        words_add(&w, " A message to oneself needs both its send and its receive, in one group.");
    } else if (failed) {
        (void)roll_rankset_copy(&v->culprits, &set[!side]);
        words_add(&w, " It has failed: look at what it printed last.");
    } else if (adds) {
        (void)roll_rankset_copy(&v->culprits, &set[side]);
        words_add(&w, " All messages without partner are rank %u's: it makes calls that none of its partners makes.",
                  s->world);
    } else if (odd != 2) {
        (void)roll_rankset_copy(&v->culprits, &set[odd]);
        words_add(&w, " The calls alone do not say which side is wrong; it is the rehearsal that does: ");
        words_ranks(&w, &set[!odd]);
        words_add(&w, " does here what was rehearsed, ");
        words_ranks(&w, &set[odd]);
        words_add(&w, " does not. Suspected: the rehearsal may have been of another program.");
    } else {
        words_add(&w,
                  " The calls alone do not say which side is wrong: one is missing there, or one is too many here.");
    }
    if (p2p_bytes(&entry->rec) == 0) {
        words_empty(&w);
    }
    /* One rank waits in a collective, the other in a message: each may have left out what the other made, or made alone
     * what it waits in. */
    if (mixed) {
        say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
        say_may_be(v, ROLL_VERDICT_CALL_ADDED);
        words_may_be(&w, v);
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&set[0]);
    roll_rankset_fini(&set[1]);
}

/*
 * The member has made this collective, but fewer collectives than its peers, and each from this one on is like the one
 * behind it. So those that it has made may be the later ones, and the first may be the one left out.
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

void p2p_say_early(struct roll_engine *e, const struct block *b, const struct p2p_mix *mix, uint32_t step)
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
