/*
 * detect_circular.c: ranks wait for each other in a circle: over several communicators, or with sends and receives alone.
 *
 * Proven when every link is: NCCL has no wildcards, so each rank of the circle needs the next one, and none can go on. When the only evidence for a link is that
 * a rank has made no call for suspect_ns, it is suspected. Who entered in the wrong order is decided by majority: each rank
 * votes for the call that it made first itself; equal camps are a tie and all of the circle is named. Only ranks that could have chosen otherwise have
 * a vote: members of all communicators of the circle, or of a sibling (same label and size, as the ep groups of a job are).
 */
#include "daemon/engine/detector.h"

#include <string.h>

#define NO_TICKET UINT64_MAX

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
        *keys ^= m->comm->key * 0x9e3779b97f4a7c15u;
        comm_mute_at(e, m->comm, b->step[i].rank, &entry->rec);
        comm_explained(e, m->comm);
    }
    return first != NULL;
}

static const struct member *member_of(const struct comm *c, uint32_t source)
{
    for (uint32_t r = 0; r < c->size; r++) {
        if (c->member[r].source == source) {
            return &c->member[r];
        }
    }
    return NULL;
}

/* Where this source stands for communicator c: as its member, or as that of a sibling. */
static const struct member *stand_in(const struct roll_engine *e, uint32_t source, const struct comm *c)
{
    const struct source *s = e->source[source];
    const struct member *found = member_of(c, source);
    for (uint32_t i = 0; i < s->members && !found && c->label[0] != '\0'; i++) {
        const struct member *m = s->member[i];
        found = m && m->comm->size == c->size && strcmp(m->comm->label, c->label) == 0 ? m : NULL;
    }
    return found;
}

/* Ticket of the collective with this number; NO_TICKET when it is not in the log. */
static uint64_t ticket_of(const struct source *s, const struct member *m, uint32_t seq)
{
    uint64_t ticket = s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
    for (; ticket < s->next; ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.seq == seq &&
            entry->rec.count != 0 && source_member(s, entry->rec.comm) == m) {
            return ticket;
        }
    }
    return NO_TICKET;
}

/* One vote for the call of the circle that this rank made first. Of messages nobody but their own two ranks can say when they were due. */
static void cast_vote(const struct roll_engine *e, const struct block *b, uint32_t source, struct roll_rankset *vote,
                      uint32_t n)
{
    uint64_t ticket[ROLL_VERDICT_SIDES], first = NO_TICKET;
    for (uint32_t i = 0; i < n; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct comm *c = source_member(b->step[i].rank, at->rec.comm)->comm;
        const struct member *m = stand_in(e, source, c);
        if (!m || (at->pair && e->source[source] != b->step[i].rank)) {
            return;
        }
        ticket[i] = at->pair ? b->step[i].ticket : ticket_of(e->source[source], m, at->rec.seq);
        first = ticket[i] < first ? ticket[i] : first;
    }
    for (uint32_t i = 0; i < n && first != NO_TICKET; i++) {
        if (ticket[i] == first) {
            (void)roll_rankset_add(&vote[i], e->source[source]->world);
        }
    }
}

static void name_culprits(const struct roll_engine *e, const struct block *b, struct roll_verdict *v, uint32_t n)
{
    struct roll_rankset vote[ROLL_VERDICT_SIDES] = {{0}};
    size_t least = SIZE_MAX, most = 0;
    for (uint32_t s = 0; s < e->sources; s++) {
        cast_vote(e, b, s, vote, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)roll_rankset_add(&vote[i], b->step[i].rank->world);
        size_t count = roll_rankset_count(&vote[i]);
        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (roll_rankset_count(&vote[i]) == least) {
            (void)roll_rankset_union(&v->culprits, &vote[i]);
        }
        roll_rankset_fini(&vote[i]);
    }
    for (uint32_t i = 0; i < b->steps && least == most; i++) {
        (void)roll_rankset_add(&v->culprits, b->step[i].rank->world);
    }
}

/* Whether each rank of the circle has made the call that the one before it waits in, and only has it standing behind its own. */
static bool all_have_called(const struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *next = b->step[(i + 1) % b->steps].rank;
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct comm *c = source_member(b->step[i].rank, at->rec.comm)->comm;
        const struct member *m = member_of(c, source_index(e, next));
        if (!m || at->pair || ticket_of(next, m, at->rec.seq) == NO_TICKET) {
            return false;
        }
    }
    return true;
}

/* What to look for. A call that is to come and one that was left out look alike as long as the rank waits: only a call that was made proves the order. */
static void words_cause(struct words *w, const struct roll_engine *e, const struct block *b,
                        const struct roll_verdict *v)
{
    if (v->code == ROLL_VERDICT_P2P_DEADLOCK) {
        words_add(w, " Put the sends and receives that belong together into one group.");
    } else if (all_have_called(e, b)) {
        words_add(w, " They entered the communicators in opposite order: use the same order on every rank.");
    } else {
        words_add(w, " Either ");
        if (roll_rankset_count(&v->culprits) == 1) {
            words_ranks(w, &v->culprits);
        } else {
            words_add(w, "one of them");
        }
        words_add(w, " left out the call that another waits in, or it enters the communicators in another order: make "
                     "the same calls in the same order on every rank.");
    }
}

static bool circular_block(struct roll_engine *e, const struct block *b)
{
    bool all_p2p, one_comm;
    uint64_t keys;
    if (b->kind != BLOCK_CYCLE || !one_kind(e, b, &all_p2p, &one_comm, &keys)) {
        return b->kind == BLOCK_CYCLE;
    }
    enum roll_verdict_code code = all_p2p && one_comm ? ROLL_VERDICT_P2P_DEADLOCK : ROLL_VERDICT_CIRCULAR_WAIT;
    if (!say_once(e, say_key(code, keys, 0, 0))) {
        return true;
    }
    struct roll_verdict *v = say(e, code, b->hard ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return true;
    }
    struct words w = {.used = 0};
    struct roll_rankset set[ROLL_VERDICT_SIDES] = {{0}};
    uint32_t told = b->steps < ROLL_VERDICT_SIDES ? b->steps : ROLL_VERDICT_SIDES;
    words_add(&w, "A circle of %u ranks in which each waits for the next: ", b->steps);
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *s = b->step[i].rank;
        const struct entry *entry = source_entry(s, b->step[i].ticket);
        struct member *m = source_member(s, entry->rec.comm);
        if (i < told) {
            say_beside(e, s, entry, &set[i]);
        }
        words_add(&w, "%srank %u", i ? "; " : "", s->world);
        words_add(&w, " in ");
        words_call(&w, &entry->rec);
        words_add(&w, ", #%u on ", entry->rec.seq);
        words_comm(&w, m->comm);
        words_add(&w, ", needs rank %u", b->step[(i + 1) % b->steps].rank->world);
        if (i == 0) {
            say_comm(v, m->comm, entry->rec.seq);
        }
    }
    words_add(&w, ". None of them can go on.");
    name_culprits(e, b, v, told);
    for (uint32_t i = 0; i < told; i++) {
        const struct source *s = b->step[i].rank;
        say_side(v, s, source_index(e, s), &set[i], &source_entry(s, b->step[i].ticket)->rec);
        roll_rankset_fini(&set[i]);
    }
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    words_cause(&w, e, b, v);
    if (!b->hard) {
        words_soft(&w, e, b);
    }
    say_text(e, v, "%s", w.text);
    return true;
}

const struct detector detect_circular = {.name = "circular", .block = circular_block};
