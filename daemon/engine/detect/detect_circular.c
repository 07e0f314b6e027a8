/*
 * detect_circular.c: ranks wait for each other in a circle: over several communicators, on one, or with sends and
 * receives alone.
 *
 * Proven when each link is: NCCL has no wildcards, so each rank of the circle needs the next one, and none can go on.
 * Suspected when the only evidence for a link is that a rank has made no call for suspect_ns. Who is wrong is decided
 * by the ranks that belong to two neighbouring calls of the circle (judge/order_vote.c); where they do not decide it,
 * nobody is named. In a circle each rank lacks the call in which the rank before it waits. Only where every rank made
 * that call too, behind the call in which it waits, is it proven that the order is wrong. Otherwise a call may have
 * been left out, or added.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/moe.h"

#include <string.h>

#define STEPS_TOLD 6u

static bool one_kind(struct roll_engine *e, const struct block *b, bool *all_p2p, bool *one_comm, uint64_t *keys)
{
    const struct comm *first = NULL;
    *all_p2p = *one_comm = true;
    *keys = 0;
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *entry = source_entry(b->step[i].rank, b->step[i].ticket);
        struct member *m = entry ? source_member(b->step[i].rank, entry->rec.comm) : NULL;
        if (!m) {
            return false;
        }
        *all_p2p = *all_p2p && entry->pair;
        *one_comm = *one_comm && (!first || first == m->comm);
        first = m->comm;
        bool again = false; /* a larger circle over the same communicators is the same trouble */
        for (uint32_t k = 0; k < i && !again; k++) {
            const struct entry *at = source_entry(b->step[k].rank, b->step[k].ticket);
            again = source_member(b->step[k].rank, at->rec.comm)->comm == m->comm;
        }
        *keys ^= again ? 0 : m->comm->key * 0x9e3779b97f4a7c15u;
        comm_mute_at(e, m->comm, b->step[i].rank, &entry->rec);
        comm_explained(e, m->comm);
    }
    return first != NULL;
}

/* Each rank of the circle has made the call in which the rank before it waits, but behind the call in which it waits
 * itself. */
static bool all_have_called(const struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *next = b->step[(i + 1) % b->steps].rank;
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct comm *c = source_member(b->step[i].rank, at->rec.comm)->comm;
        const struct member *m = comm_member_of(c, source_index(e, next));
        if (!m || roll_op_class(at->rec.op) != ROLL_CLASS_COLL || source_ticket_of(next, m, at->rec.seq) == NO_TICKET) {
            return false;
        }
    }
    return true;
}

static void words_at(struct words *w, const struct source *s, const struct entry *entry)
{
    words_call(w, &entry->rec);
    if (roll_op_class(entry->rec.op) != ROLL_CLASS_COMM) {
        words_add(w, ", #%u", entry->rec.seq);
    }
    words_add(w, " on ");
    words_comm(w, source_member(s, entry->rec.comm)->comm);
}

/* The ticket at which rank `next` has made the other end of the call `at` of s; NO_TICKET: it has not, or its log does
 * not hold the call. */
static uint64_t own_end(const struct roll_engine *e, const struct source *next, const struct source *s,
                        const struct entry *at)
{
    const struct comm *c = source_member(s, at->rec.comm)->comm;
    const struct member *m = comm_member_of(c, source_index(e, next));
    enum roll_op_class class = roll_op_class(at->rec.op);
    if (class == ROLL_CLASS_P2P && at->pair) {
        unsigned other = !p2p_side(&at->rec);
        const struct node *n = p2p_node(at->pair, at->index);
        bool its = (n->have & 1u << other) != 0 && &c->member[at->pair->end[other]] == m;
        return its ? n->ticket[other] : NO_TICKET;
    }
    return m && class == ROLL_CLASS_COLL ? source_ticket_of(next, m, at->rec.seq) : NO_TICKET;
}

/* Says where streams are kept apart by events: there the calls of a circle stand on several streams, and nothing that
 * the host does lets the later one run. */
static void words_events(struct words *w, const struct roll_engine *e, const struct block *b)
{
    uint32_t told = 0;
    for (uint32_t i = 0; i < b->steps && told < 2; i++) {
        uint32_t to = (i + 1) % b->steps;
        struct source *s = b->step[to].rank;
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct entry *in = source_entry(s, b->step[to].ticket);
        uint64_t ticket = own_end(e, s, b->step[i].rank, at);
        const struct entry *own = ticket == NO_TICKET ? NULL : source_entry(s, ticket);
        struct queue *before[ROLL_BEHIND_MAX];
        struct queue *q = own && own->rec.stream < s->queues ? &s->queue[own->rec.stream] : NULL;
        if (!q || own->rec.stream == in->rec.stream || ticket <= b->step[to].ticket || sweep_held(s, q, before) == 0) {
            continue;
        }
        words_add(w, told == 0 ? " On rank %u the stream of " : "; on rank %u that of ", s->world);
        words_comm(w, source_member(s, own->rec.comm)->comm);
        words_add(w, " waits by an event for ");
        words_at(w, s, in);
        told++;
    }
    words_add(w, told > 0 ? ". In PyTorch that comes of wait(): what is called next stands behind what was waited for."
                          : "");
}

/*
 * The ranks that stand in the call of a step. Hosts may have gone on, so that all have made all calls, and who has made
 * one says nothing: then those that are wrong stand in theirs, and the others in the other one.
 */
static void in_step(const struct roll_engine *e, const struct block *b, uint32_t step, struct roll_rankset *out)
{
    const struct source *s = b->step[step].rank;
    struct roll_rankset made = {0};
    say_beside(e, s, source_entry(s, b->step[step].ticket), &made);
    bool apart = b->decided && b->steps == 2 && all_have_called(e, b), odd = roll_rankset_has(&b->odd, s->world);
    for (size_t i = 0; i < roll_rankset_count(&made); i++) {
        uint32_t rank = roll_rankset_at(&made, i);
        if (!apart || roll_rankset_has(&b->odd, rank) == odd) {
            (void)roll_rankset_add(out, rank);
        }
    }
    roll_rankset_fini(&made);
}

/* Says who lacks which call, or has not come to it. This comes first in the text. */
static void words_odd(struct words *w, const struct roll_engine *e, const struct block *b)
{
    const struct source *waits = b->step[b->odd_at].rank, *other = b->step[(b->odd_at + 1) % b->steps].rank;
    const struct entry *lacked = source_entry(waits, b->step[b->odd_at].ticket);
    const struct entry *in = source_entry(other, b->step[(b->odd_at + 1) % b->steps].ticket);
    struct roll_rankset in_it = {0};
    in_step(e, b, b->odd_at, &in_it);
    bool one = roll_rankset_count(&b->odd) == 1;
    if (all_have_called(e, b)) { /* its host may have made the call long ago */
        words_add(w, one ? "The stream of " : "The streams of ");
        words_ranks(w, &b->odd);
        words_add(w, one ? " has not come to " : " have not come to ");
    } else {
        words_ranks(w, &b->odd);
        words_add(w, one ? " has not made " : " have not made ");
    }
    words_at(w, waits, lacked);
    words_add(w, ", in which ");
    words_wait(w, &in_it);
    words_add(w, ": instead %s in ", one ? "it is" : "they are");
    words_at(w, other, in);
    words_add(w, b->steps == 2 ? ", which needs rank %u" : ". ", waits->world);
    roll_rankset_fini(&in_it);
}

static void words_cause(struct words *w, const struct roll_engine *e, const struct block *b, struct roll_verdict *v)
{
    if (v->code == ROLL_VERDICT_P2P_DEADLOCK) {
        words_add(w, " Put the sends and receives that belong together into one group.");
    } else if (all_have_called(e, b)) {
        words_add(w, " They entered the communicators in opposite order: use the same order on every rank.");
    } else {
        words_add(w, " Either ");
        if (b->decided) {
            words_ranks(w, &b->odd);
        } else {
            words_add(w, "one of them");
        }
        words_add(w,
                  " left out the call that another waits in, or made one that the others do not make, or makes them in "
                  "another order: make the same calls in the same order on every rank.");
        say_may_be(v, ROLL_VERDICT_CALL_SKIPPED);
        say_may_be(v, ROLL_VERDICT_CALL_ADDED);
    }
    if (!b->decided) {
        words_add(w, " The calls do not say which of them is wrong.");
    }
}

/* Number of the suspicion about a creation that a rank of the circle is inside; 0: none. */
static uint64_t suspected_creation(const struct roll_engine *e, const struct block *b)
{
    uint64_t number = 0;
    for (uint32_t i = 0; i < b->steps && number == 0; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        bool creation = roll_op_class(at->rec.op) == ROLL_CLASS_COMM;
        number = creation ? say_recall(e, creation_key(b->step[i].rank, &at->rec)) : 0;
        number = say_stands(e, number) ? number : 0;
    }
    return number;
}

/* Each of those that are missing in the creation which rank s of the circle is inside is a rank of the circle. */
static bool misses_circle(const struct roll_engine *e, const struct block *b, const struct source *s,
                          const struct member *m, const struct roll_record *rec)
{
    struct roll_rankset circle = {0};
    bool init = rec->op == ROLL_OP_COMM_INIT;
    size_t missing = 0;
    for (uint32_t r = 0; r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        missing += o->source == NO_SOURCE || (!init && o->splits < m->splits);
    }
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct member *o = comm_member_of(m->comm, source_index(e, b->step[i].rank));
        if (init ? !o : o && o->splits < m->splits) {
            (void)roll_rankset_add(&circle, b->step[i].rank->world);
        }
    }
    bool all = missing > 0 && roll_rankset_count(&circle) == missing && (!init || creation_is_whole(e, s, rec));
    roll_rankset_fini(&circle);
    return all;
}

/* Withdraws what was suspected of creations that ranks of the circle are inside, for which all are missed that wait in
 * the circle: those come when the circle comes undone. */
static void withdraw_creations(struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *s = b->step[i].rank;
        const struct entry *at = s->init != 0 ? source_entry(s, s->init - 1) : NULL;
        const struct member *m = at ? source_member(s, at->rec.comm) : NULL;
        uint64_t key = m ? creation_key(s, &at->rec) : 0, number = m ? say_recall(e, key) : 0;
        if (number != 0 && misses_circle(e, b, s, m, &at->rec) &&
            say_withdraw(e, number, "those that did not join wait in a circle, which is told")) {
            say_forget(e, key);
            say_forget(e, say_key(key, 1, 0, 0)); /* they may be missing for another reason later */
        }
    }
}

static bool circular_block(struct roll_engine *e, const struct block *b)
{
    bool all_p2p, one_comm;
    uint64_t keys, mutes = e->mutes;
    if (b->kind != BLOCK_CYCLE || !one_kind(e, b, &all_p2p, &one_comm, &keys)) {
        return b->kind == BLOCK_CYCLE;
    }
    enum roll_verdict_code code = !one_comm ? ROLL_VERDICT_CIRCULAR_WAIT
                                  : all_p2p ? ROLL_VERDICT_P2P_DEADLOCK
                                            : ROLL_VERDICT_CROSSED_WAIT;
    const struct entry *lacked = b->decided ? source_entry(b->step[b->odd_at].rank, b->step[b->odd_at].ticket) : NULL;
    if (lacked && roll_op_class(lacked->rec.op) == ROLL_CLASS_COMM) {
        code = ROLL_VERDICT_INIT_MISSING;
    }
    if (!b->hard && doubt_found_again(e, mutes, b)) {
        return true;
    }
    uint64_t before = suspected_creation(e, b);
    if (before != 0 && !b->hard && (code == ROLL_VERDICT_INIT_MISSING || !b->decided)) {
        return true; /* the circle says no more than that suspicion */
    }
    struct roll_verdict *v = say(e, code, b->hard ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return true;
    }
    say_supersedes(e, v, before);
    if (!b->hard) {
        doubt_add(e, v->number, mutes, b);
    }
    struct words w = {.used = 0};
    uint32_t from = b->decided ? (b->odd_at + 1) % b->steps : 0; /* the step of the odd ranks comes first */
    if (b->decided) {
        (void)roll_rankset_copy(&v->culprits, &b->odd);
        words_odd(&w, e, b);
    }
    uint32_t listed = b->decided && b->steps == 2 ? 0 : STEPS_TOLD; /* of two steps, words_odd has told both */
    if (listed > 0) {
        words_add(&w, "A circle of %u %s in which each waits for the next: ", b->steps,
                  all_p2p && b->steps == 1 ? "rank" : "ranks");
    }
    for (uint32_t n = 0; n < b->steps; n++) {
        uint32_t i = (from + n) % b->steps;
        const struct source *s = b->step[i].rank;
        const struct entry *entry = source_entry(s, b->step[i].ticket);
        if (n == 0) {
            uint32_t at = b->decided ? b->odd_at : 0;
            const struct entry *first = source_entry(b->step[at].rank, b->step[at].ticket);
            say_comm(v, source_member(b->step[at].rank, first->rec.comm)->comm, first->rec.seq);
        }
        if (n < ROLL_VERDICT_SIDES) {
            struct roll_rankset beside = {0};
            in_step(e, b, i, &beside);
            say_side(v, s, source_index(e, s), &beside, &entry->rec);
            roll_rankset_fini(&beside);
        }
        if (n < listed) {
            words_add(&w, "%srank %u in ", n ? "; " : "", s->world);
            words_at(&w, s, entry);
            words_add(&w, ", needs rank %u", b->step[(i + 1) % b->steps].rank->world);
        }
    }
    if (listed > 0 && b->steps > listed) {
        words_add(&w, "; and %u more", b->steps - listed);
    }
    words_add(&w, ". None of them can go on.");
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    words_events(&w, e, b);
    words_cause(&w, e, b, v);
    for (uint32_t i = 0; i < b->steps && v->remedy == 0; i++) {
        uint32_t step = source_entry(b->step[i].rank, b->step[i].ticket)->rec.step;
        struct roll_rankset one = {0};
        (void)roll_rankset_add(&one, b->step[i].rank->world);
        v->remedy = words_left_out_experts(&w, e, &one, step);
        roll_rankset_fini(&one);
    }
    if (!b->hard) {
        words_soft(&w, e, b);
    }
    if (v->remedy != 0) {
        words_remedy(&w, e, v->remedy, ROLL_LAYER_NONE);
    }
    say_text(e, v, "%s", w.text);
    if (b->hard) {
        withdraw_creations(e, b);
    }
    return true;
}

const struct detector detect_circular = {.name = "circular", .block = circular_block};
