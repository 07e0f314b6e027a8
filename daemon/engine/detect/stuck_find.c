/*
 * stuck_find.c: the search for a call in which all members stand and from which none returns.
 *
 * The search starts at a host that waits and goes through the calls before its wait; for each of them it looks up the
 * same call in the logs of the other members. It is made only for waits that have lasted for seconds, and within a
 * bound on the log entries looked at; where the bound is met, nothing is found.
 */
#include "daemon/engine/detect/stuck.h"

#include <stdlib.h>

#define BACK_MAX   256u /* calls before a wait that are looked at */
#define SEEN_STAND 1u   /* bit of a key in `seen`: all members stand in that call */
/* Size of `seen`; half of it may be used, so one tick looks at so many calls with all their members. */
#define SEEN_ROOM 16384u

/*
 * Ticket + 1 of the member's collective with this number; 0: it is no longer in the log of s. Ranks run one program, so
 * the call usually stands where it stood in the log of the member before: `hint` and `hint_back`.
 */
static uint64_t ticket_of(struct stuck *k, const struct source *s, const struct member *m, uint32_t seq)
{
    if (!spend(&k->work)) {
        return 0;
    }
    if (k->hint != 0 && source_holds(s, k->hint - 1, m, seq)) {
        return k->hint;
    }
    if (k->hint_back != 0 && s->next >= k->hint_back && source_holds(s, s->next - k->hint_back, m, seq)) {
        return s->next - k->hint_back + 1;
    }
    for (uint64_t t = s->next; t > 0 && s->next - t <= s->log_mask && spend(&k->work); t--) {
        if (source_holds(s, t - 1, m, seq)) {
            k->hint = t;
            k->hint_back = s->next - t + 1;
            return t;
        }
    }
    return 0;
}

static uint64_t ticket_of_message(struct stuck *k, const struct source *s, const struct pair *p, uint32_t index,
                                  unsigned side)
{
    for (uint64_t t = s->next; t > 0 && s->next - t <= s->log_mask && spend(&k->work); t--) {
        const struct entry *entry = source_entry(s, t - 1);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_P2P && entry->pair == p && entry->index == index &&
            p2p_side(&entry->rec) == side) {
            return t;
        }
    }
    return 0;
}

static bool add_member(struct stuck *k, const struct source *s, const struct roll_record *call, uint64_t ticket)
{
    switch (stuck_standing(k, s, call, ticket)) {
    case STAND_IN:
        (void)roll_rankset_add(&k->in, s->world);
        return true;
    case STAND_LEFT:
        (void)roll_rankset_add(&k->left, s->world);
        return true;
    case STAND_AWAY:
        (void)roll_rankset_add(&k->away, s->world);
        return true;
    default:
        return false;
    }
}

/* Some thread of s is inside the call that destroys or finalizes the communicator; such a call waits for all calls made
 * there before. */
static bool is_leaving(const struct source *s, const struct member *m)
{
    bool leaving = false;
    for (uint32_t i = 0; m->gone && i < s->threads && !leaving; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        leaving = in && (in->rec.op == ROLL_OP_COMM_DESTROY || in->rec.op == ROLL_OP_COMM_FINALIZE) &&
                  source_member(s, in->rec.comm) == m;
    }
    return leaving;
}

/* The member is alive, and all its calls have been seen. Other trouble is looked for when a call has been found:
 * stuck_trouble.c. */
static bool is_sound(const struct stuck *k, const struct member *m)
{
    const struct source *s = m->source == NO_SOURCE ? NULL : k->e->source[m->source];
    if (!s || m->unsure || (m->gone && !is_leaving(s, m)) || m->ended) {
        return false;
    }
    return s->proc == ROLL_PROC_RUNNING && !(k->asked && source_explained(s)) && s->init == 0;
}

/* The member has ended, destroyed or aborted the communicator, and had left this collective before: its host had
 * returned from a wait for it. */
static bool left_and_gone(struct stuck *k, const struct member *m, uint32_t seq)
{
    const struct source *s = m->source == NO_SOURCE || m->unsure ? NULL : k->e->source[m->source];
    if (!s || (s->proc != ROLL_PROC_FINISHED && !m->gone && m->ended == 0) || !comm_member_issued(m, seq) ||
        seq < m->from) {
        return false;
    }
    bool perhaps;
    uint64_t ticket = ticket_of(k, s, m, seq);
    const struct entry *own = ticket ? source_entry(s, ticket - 1) : NULL;
    return own && stuck_has_left(k, s, &own->rec, ticket - 1, &perhaps);
}

static bool all_stand_in_collective(struct stuck *k, const struct entry *entry)
{
    struct comm *c = k->comm;
    uint32_t seq = entry->rec.seq;
    if (!comm_complete(c, seq)) {
        return false;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        if (left_and_gone(k, m, seq)) {
            (void)roll_rankset_add(&k->left, k->e->source[m->source]->world);
            continue;
        }
        uint64_t ticket = is_sound(k, m) && comm_member_issued(m, seq) && seq >= m->from
                              ? ticket_of(k, k->e->source[m->source], m, seq)
                              : 0;
        const struct entry *own = ticket ? source_entry(k->e->source[m->source], ticket - 1) : NULL;
        if (!own || !add_member(k, k->e->source[m->source], &own->rec, ticket - 1)) {
            return false;
        }
    }
    return true;
}

static bool all_stand_in_message(struct stuck *k, const struct entry *entry)
{
    const struct pair *p = entry->pair;
    if (!p || p->unsure || !p2p_complete(entry)) {
        return false;
    }
    for (unsigned side = 0; side < 2; side++) {
        const struct member *m = &k->comm->member[p->end[side]];
        const struct source *s = is_sound(k, m) ? k->e->source[m->source] : NULL;
        uint64_t ticket = s ? ticket_of_message(k, s, p, entry->index, side) : 0;
        const struct entry *own = ticket ? source_entry(s, ticket - 1) : NULL;
        if (!own || !add_member(k, s, &own->rec, ticket - 1)) {
            return false;
        }
    }
    return p->end[0] != p->end[1];
}

/* No member leaves this operation before all members have arrived. */
static bool synchronises(enum roll_op op)
{
    return roll_op_has(op, ROLL_TRAIT_MEETS);
}

/* The operation lets some members leave before all have arrived; its root has not left, so the call has not ended. */
static bool root_is_in(const struct stuck *k, const struct entry *entry)
{
    bool rooted = roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && !synchronises(entry->rec.op) &&
                  entry->rec.peer >= 0 && (uint32_t)entry->rec.peer < k->comm->size;
    uint32_t world = rooted ? comm_world(k->e, k->comm, (uint32_t)entry->rec.peer) : NO_SOURCE;
    return world != NO_SOURCE && roll_rankset_has(&k->in, world);
}

/* The call is looked at for the first time in this tick. The answer for a call is the same for all its members, so it
 * is found once. */
static bool is_fresh(struct stuck *k, const struct comm *c, const struct entry *entry)
{
    uint64_t place = roll_op_class(entry->rec.op) == ROLL_CLASS_COLL
                         ? entry->rec.seq
                         : say_key((uint64_t)(uintptr_t)entry->pair, entry->index, 0, 0);
    uint64_t key = say_key(c->key, place, k->loose, k->lax);
    if (!k->seen && !(k->seen = calloc(SEEN_ROOM, sizeof(*k->seen)))) {
        return false;
    }
    key = (key | SEEN_STAND) ^ SEEN_STAND;
    uint32_t at = (uint32_t)(key >> 1) & (SEEN_ROOM - 1);
    while (k->seen[at] != 0 && ((k->seen[at] | SEEN_STAND) ^ SEEN_STAND) != key) {
        at = (at + 1) & (SEEN_ROOM - 1);
    }
    k->stands = (k->seen[at] & SEEN_STAND) != 0;
    if (k->seen[at] != 0 || k->seens == SEEN_ROOM / 2) {
        return false;
    }
    k->seen[at] = key;
    k->seens++;
    k->seen_at = at;
    return true;
}

static bool all_stand_in(struct stuck *k, const struct source *s, const struct entry *entry)
{
    const struct member *m = source_member(s, entry->rec.comm);
    roll_rankset_clear(&k->in);
    roll_rankset_clear(&k->left);
    roll_rankset_clear(&k->away);
    k->stands = false;
    k->since = k->longest_ns = 0;
    k->first_since = UINT64_MAX;
    k->known = k->ripe = true;
    if (!m || m->comm->size < 2 || m->comm->open || m->comm->aborted || m->comm->overflow || m->comm->muted ||
        m->comm->blamed || !is_fresh(k, m->comm, entry)) {
        return false;
    }
    k->hint = k->hint_back = 0;
    k->comm = m->comm;
    k->rec = entry->rec;
    k->first = s;
    bool collective = roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
    if (!(collective ? all_stand_in_collective(k, entry) : all_stand_in_message(k, entry)) || k->work == 0) {
        return false;
    }
    bool left = roll_rankset_count(&k->left) > 0;
    k->rooted = left && !(k->known && synchronises(entry->rec.op));
    bool stands = roll_rankset_count(&k->in) >= 2 && (!k->rooted || root_is_in(k, entry));
    k->seen[k->seen_at] |= stands ? SEEN_STAND : 0;
    return stands;
}

/* The first ticket that the search looks at: the calls that the host is known to have left are passed over. */
static uint64_t first_open(const struct source *s, uint64_t from)
{
    const struct stuck_source *w = stuck_of_source(s);
    return w && w->clear > from ? w->clear : from;
}

uint64_t stuck_newest(struct stuck *k, const struct source *s, uint64_t upto)
{
    const struct entry *last;
    while (upto > 0 && (last = source_entry(s, upto - 1)) && roll_op_class(last->rec.op) == ROLL_CLASS_POLL &&
           spend(&k->work)) {
        upto--;
    }
    return upto;
}

/* The ticket to which the search goes back from `upto`. */
static uint64_t far_back(struct stuck *k, const struct source *s, uint64_t upto)
{
    uint64_t newest = stuck_newest(k, s, upto);
    return newest > BACK_MAX ? newest - BACK_MAX : 0;
}

bool stuck_find(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at)
{
    const struct entry *in = t ? source_entry(s, t->inside - 1) : NULL;
    uint64_t upto = t ? t->inside : s->next, from = far_back(k, s, upto);
    if (t ? !in || stuck_is_explained(s, &in->rec, t->inside - 1) : stuck_is_inside(s)) {
        return false;
    }
    struct stuck_source *w = stuck_of_source(s);
    k->loose = t != NULL;
    bool clear = w && first_open(s, from) == w->clear; /* all calls before this one have been left */
    for (uint64_t ticket = first_open(s, from); ticket < upto && spend(&k->work); ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        enum standing where = STAND_LEFT;
        if (entry && stuck_is_call(&entry->rec) && !refused_call(s, entry)) {
            where = stuck_standing(k, s, &entry->rec, ticket);
        }
        clear = clear && where == STAND_LEFT && k->work > 0;
        if (clear) {
            w->clear = ticket + 1;
        } else if ((where == STAND_IN || (!t && where == STAND_AWAY)) && all_stand_in(k, s, entry)) {
            *at = ticket;
            return true;
        } else if (k->stands) {
            /* All stand in this call, as was found from another member: calls behind it are not looked at. */
            return false;
        }
    }
    return false;
}

bool stuck_find_last(struct stuck *k, const struct source *s, const struct thread *t, uint64_t *at)
{
    const struct entry *in = source_entry(s, t->inside - 1);
    uint64_t from = first_open(s, far_back(k, s, t->inside));
    bool found = false;
    k->lax = true;
    for (uint64_t ticket = t->inside;
         in && !stuck_is_explained(s, &in->rec, t->inside - 1) && !found && ticket > from && spend(&k->work);) {
        const struct entry *entry = source_entry(s, --ticket);
        found = entry && stuck_is_call(&entry->rec) && !refused_call(s, entry) &&
                stuck_standing(k, s, &entry->rec, ticket) == STAND_IN && all_stand_in(k, s, entry);
        *at = ticket;
    }
    k->lax = found;
    return found;
}

/*
 * Answers whether s stands in a call in which all stand. All who ask in one tick share the bound of that tick. Where
 * the bound is used up, the answer is yes: yes only delays what the asker would say. Answers are kept for stall_ns,
 * which leaves room in the next tick for those that had none. Where a whole tick is not enough for one rank alone, the
 * answer for that rank is no.
 */
bool stuck_stands(struct roll_engine *e, const struct source *s)
{
    struct stuck_source *w = stuck_of_source(s);
    uint32_t room = stuck_work(e);
    bool short_of = room < STUCK_WORK_MAX; /* others have asked in this tick */
    if (w && w->asked_ns != 0 && short_of && e->clock - (w->asked_ns - 1) <= e->config.stall_ns) {
        return w->stands;
    }
    struct stuck k = {.e = e, .work = room, .asked = true};
    uint64_t ticket;
    bool found = stuck_find(&k, s, NULL, &ticket);
    for (uint32_t i = 0; i < s->threads && !found; i++) {
        found = s->thread[i].inside != 0 && stuck_find(&k, s, &s->thread[i], &ticket);
    }
    for (uint32_t i = 0; i < s->threads && !found && !k.stands; i++) {
        found = s->thread[i].inside != 0 && stuck_find_last(&k, s, &s->thread[i], &ticket);
    }
    stuck_of_engine(e)->work = k.work;
    found = found || k.stands || (k.work == 0 && short_of);
    if (w && (k.work > 0 || !short_of)) {
        w->asked_ns = e->clock + 1;
        w->stands = found;
    }
    stuck_fini(&k);
    return found;
}

uint32_t stuck_work(struct roll_engine *e)
{
    struct stuck_engine *own = stuck_of_engine(e);
    if (own->work_ns != e->clock) {
        own->work_ns = e->clock;
        own->work = STUCK_WORK_MAX;
    }
    return own->work;
}

void stuck_fini(struct stuck *k)
{
    roll_rankset_fini(&k->in);
    roll_rankset_fini(&k->left);
    roll_rankset_fini(&k->away);
    roll_rankset_fini(&k->awaited);
    free(k->seen);
}
