/*
 * comm.c: communicators, their members, and the window of slots: one slot per collective.
 *
 * The window holds what is not complete yet, and behind it as much history as fits: the signatures of complete
 * collectives stay in their slots until the window comes round, and serve as the template when ranks disagree
 * (align.c). It doubles while some rank runs ahead, up to config.window; a linked list of operations was rejected: one
 * index per record is what makes the matcher fast.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/budget.h"

#include <stdlib.h>
#include <string.h>

/*
 * A definition that comes at most so many calls after a loss of records may be older than the loss: then calls on the
 * communicator may be among what was lost.
 */
#define LATE_DEFINITION 4096u

/* What a communicator needs with its first window, and each of its members. */
#define COMM_BYTES   (sizeof(struct comm) + SLOTS_MIN * sizeof(struct slot))
#define MEMBER_BYTES (sizeof(struct member) + sizeof(struct seat))

struct comm *comm_find(const struct roll_engine *e, uint64_t key)
{
    uint32_t at = key == 0 ? ROLL_MAP_NONE : roll_map_get(&e->comm_at, key);
    return at == ROLL_MAP_NONE ? NULL : e->comm[at];
}

static struct comm *comm_new(struct roll_engine *e, uint32_t source, const struct roll_def_comm *def)
{
    struct comm *c = NULL;
    if (roll_map_reserve(&e->comm_at) != 0 || ROLL_GROW(e->comm, e->comm_room, e->comms + 1u) != 0) {
        return NULL;
    }
    c = calloc(1, sizeof(*c));
    if (!c) {
        return NULL;
    }
    c->engine = e;
    c->key = def->key;
    c->parent_key = def->parent_key;
    c->origin = def->origin;
    c->child = def->child;
    c->color = def->color;
    c->room = (uint32_t)def->nranks;
    c->open = (def->flags & ROLL_DEF_COMM_OPEN) != 0;
    c->size = c->open ? (uint32_t)def->rank + 1 : c->room;
    c->believed = def->flags >> ROLL_DEF_COMM_BELIEVED_SHIFT;
    c->held = NO_SEQ;
    c->member = aligned_alloc(CACHE_LINE, c->room * sizeof(*c->member));
    c->seat = calloc(c->room, sizeof(*c->seat));
    c->slot = calloc(SLOTS_MIN, sizeof(*c->slot));
    c->slot_mask = SLOTS_MIN - 1;
    if (!c->member || !c->seat || !c->slot) {
        comm_free(c);
        return NULL;
    }
    for (uint32_t r = 0; r < c->room; r++) {
        c->member[r] = (struct member){.comm = c, .source = NO_SOURCE, .rank = (int32_t)r};
    }
    c->payer = source;
    c->id = e->comms;
    e->comm[e->comms++] = c;
    (void)roll_map_add(&e->comm_at, c->key, c->id);
    return c;
}

void comm_made(struct roll_engine *e, const struct member *m, const struct roll_record *rec)
{
    struct comm *c = m->comm;
    if (rec->callsite == 0) {
        return;
    }
    if (c->made_rank !=
        0) { /* the ranks are asked in the order of their arrival, and the answer is not to depend on it */
        uint64_t mine = site_line(e, e->source[m->source], rec->callsite);
        uint64_t other = site_line(e, e->source[c->made_source], c->made_callsite);
        c->made_elsewhere = c->made_elsewhere || (mine != other && mine != 0 && other != 0);
    }
    if (c->made_rank == 0 || (uint32_t)m->rank + 1 < c->made_rank) {
        c->made_rank = (uint32_t)m->rank + 1;
        c->made_source = m->source;
        c->made_callsite = rec->callsite;
    }
}

enum roll_op comm_made_by(uint32_t origin)
{
    static const enum roll_op by[] = {ROLL_OP_NONE, ROLL_OP_COMM_INIT, ROLL_OP_COMM_SPLIT, ROLL_OP_COMM_SHRINK,
                                      ROLL_OP_COMM_GROW};
    return origin < sizeof(by) / sizeof(by[0]) ? by[origin] : ROLL_OP_NONE;
}

void comm_split_made(struct roll_engine *e, const struct source *s, const struct member *parent,
                     const struct roll_record *rec)
{
    for (size_t i = 0; i < s->members; i++) {
        const struct member *m = s->member[i];
        if (m && m->comm->origin == ROLL_COMM_SPLIT && m->comm->parent_key == parent->comm->key &&
            m->comm->child == rec->aux) {
            comm_made(e, m, rec);
        }
    }
}

/*
 * Notes which call of this member made the communicator: for a child, the newest split of its parent that has its
 * number. Where that call comes after the definition, as in a trace that is read definitions first, it is told to
 * comm_split_made; the call that makes a communicator from a unique id always does, and is told to comm_made.
 */
static void note_made(struct roll_engine *e, const struct member *m, const struct source *s,
                      const struct roll_def_comm *def)
{
    enum { LOOKED_AT = 256 };
    uint64_t low = s->next > LOOKED_AT ? s->next - LOOKED_AT : 0;
    for (uint64_t t = s->next; def->origin != ROLL_COMM_INIT && t-- > low;) {
        const struct entry *at = source_entry(s, t);
        const struct member *parent = at ? source_member(s, at->rec.comm) : NULL;
        if (parent && parent->comm->key == def->parent_key && at->rec.op == ROLL_OP_COMM_SPLIT &&
            at->rec.aux == def->child) {
            comm_made(e, m, &at->rec);
            return;
        }
    }
}

/*
 * Ranks of a program that tells nobody its rank (an inference server's, say) are numbered as they come. Once a
 * communicator of all of them is whole, its numbers take that place: they are what the program calls its ranks. Only
 * before a verdict has named one.
 */
static void number_ranks(struct roll_engine *e, const struct comm *c)
{
    if (c->open || c->seen != c->size || c->size != e->sources || c->size <= e->numbered || c->size > e->newest_room ||
        e->numbers > 0) {
        return;
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i]->info.world_rank >= 0) {
            return;
        }
    }
    e->numbered = c->size;
    e->sight_changed = true;
    for (uint32_t r = 0; r < c->size; r++) {
        e->source[c->member[r].source]->world = UINT32_MAX;
    }
    bool all = true;
    for (uint32_t r = 0; r < c->size; r++) {
        struct source *s = e->source[c->member[r].source];
        all = all && s->world == UINT32_MAX;
        s->world = r;
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        s->world = all ? s->world : i; /* where one process is two of its members, as they came */
        e->newest[s->world] = i + 1;
    }
}

int comm_define(struct roll_engine *e, uint32_t source, uint32_t id, const struct roll_def_comm *def, const char *label,
                struct comm **contradicts)
{
    *contradicts = NULL;
    struct source *s = e->source[source];
    if (def->key == 0 || def->nranks <= 0 || def->rank < 0 || def->rank >= def->nranks || id == 0 || id > UINT16_MAX) {
        return ROLL_E_CORRUPT;
    }
    struct comm *c = comm_find(e, def->key);
    uint64_t bytes = COMM_BYTES + (uint64_t)def->nranks * MEMBER_BYTES;
    if (!c && !budget_take(e, s, bytes)) {
        budget_refuse(e, s);
        return 0;
    }
    if (!c) {
        c = comm_new(e, source, def);
    }
    if (id >= s->members) {
        budget_charge(e, s, (id + 1u - s->members) * (sizeof(*s->member) + sizeof(*s->comm)));
    }
    if (!c || ROLL_GROW_ZERO(s->member, s->members, id + 1u) != 0 || ROLL_GROW_ZERO(s->comm, s->comms, id + 1u) != 0) {
        return ROLL_E_NOMEM;
    }
    /* The size of an open communicator is not known: it has the members that have been seen. */
    bool open = (def->flags & ROLL_DEF_COMM_OPEN) != 0;
    if (open != c->open || (open ? (uint32_t)def->rank >= c->room : c->size != (uint32_t)def->nranks)) {
        *contradicts = c;
        return 0;
    }
    c->size = (uint32_t)def->rank >= c->size ? (uint32_t)def->rank + 1 : c->size;
    struct member *m = &c->member[def->rank];
    if (m->source == NO_SOURCE) {
        m->source = c->seat[def->rank].source = source;
        m->unsure = s->gap_ticket != 0 && s->next - s->gap_ticket < LATE_DEFINITION;
        c->seen++;
        e->enrolled++;
        budget_hand_over(e, e->source[c->payer], s, MEMBER_BYTES + COMM_BYTES / c->room);
    } else if (m->source != source) {
        *contradicts = c;
        return 0;
    }
    if (label && def->label_bytes > 0 && c->label[0] == '\0') {
        line_clean(c->label, sizeof(c->label), label, def->label_bytes);
    }
    s->member[id] = m;
    if (!m->touched) {
        source_touch(s, m);
    }
    s->comm[id] = c;
    source_stir(e, source);
    note_made(e, m, s, def);
    number_ranks(e, c);
    return 0;
}

bool comm_member_issued(const struct member *m, uint32_t seq)
{
    return m->next > seq;
}

bool comm_behind(const struct member *m)
{
    return m->next > m->comm->base;
}

/*
 * The collective at the beginning of the window is complete: those before it are, so chained calls are ready. Where
 * calls disagree only calls that were found to be ready count, because the judge looks at such a slot in between.
 */
static bool base_complete(const struct comm *c, const struct slot *s)
{
    return !s->held && (s->variant == 0 ? s->ready + s->chained : s->ready) >= c->size;
}

void comm_advance(struct roll_engine *e, struct comm *c)
{
    bool chained = false;
    while (c->base < c->high) {
        struct slot *s = comm_slot(c, c->base);
        if (!base_complete(c, s)) {
            break;
        }
        chained = chained || s->ready < c->size;
        slot_release(e, s);
        c->base++;
    }
    if (chained) { /* where all were found to be ready, match_ready has stirred them */
        comm_stir(c);
    }
    if (c->gone >= c->size) {
        comm_is_over(e, c);
    }
}

/* Whether nothing can come of it any more, and nothing is left to be judged but what looks back. */
static bool is_over(const struct comm *c)
{
    bool over = c->aborted || (!c->open && c->seen == c->size && c->gone >= c->size);
    return over && c->base == c->high && c->held == NO_SEQ && c->slot_mask != 0;
}

void comm_is_over(struct roll_engine *e, struct comm *c)
{
    if (!c->waits_over && is_over(c)) {
        c->waits_over = true;
        c->next_over = NULL;
        *(e->last_over ? &e->last_over->next_over : &e->first_over) = c;
        e->last_over = c;
    }
}

/* Of what it keeps the newest slot is left. */
static void shrink(struct roll_engine *e, struct comm *c)
{
    struct slot *one = calloc(1, sizeof(*one));
    if (!one) {
        return; /* its window stays as it is */
    }
    *one = *comm_slot(c, c->high - 1);
    free(c->slot);
    c->slot = one;
    c->slot_mask = 0;
    /* COMM_BYTES counts for the members alike, as comm_define has handed it over. */
    uint64_t each = (SLOTS_MIN - 1) * sizeof(*one) / c->room;
    for (uint32_t r = 0; r < c->size; r++) {
        struct member *m = &c->member[r];
        if (m->source != NO_SOURCE) {
            budget_give_back(e, e->source[m->source], each + m->windows);
            m->windows = 0;
        }
    }
}

bool comm_forget_one(struct roll_engine *e)
{
    struct comm *c = e->first_over;
    if (!c) {
        return false;
    }
    e->first_over = c->next_over;
    e->last_over = e->first_over ? e->last_over : NULL;
    c->waits_over = false;
    if (is_over(c)) { /* who called after all has been taken in again */
        shrink(e, c);
    }
    return true;
}

int comm_grow(struct comm *c)
{
    uint32_t room = (c->slot_mask + 1) * 2;
    struct slot *slot = calloc(room, sizeof(*slot));
    if (!slot) {
        return ROLL_E_NOMEM;
    }
    uint32_t first = c->high > c->slot_mask ? c->high - c->slot_mask - 1 : 0;
    for (uint32_t seq = first; seq != c->high; seq++) {
        slot[seq & (room - 1)] = *comm_slot(c, seq);
    }
    free(c->slot);
    c->slot = slot;
    c->slot_mask = room - 1;
    return 0;
}

/* Moves the member to this place of comm.late, and the one that was there to its own. */
static void swap_late(struct comm *c, struct member *m, size_t place)
{
    struct member *other = c->late[place];
    c->late[m->late - 1] = other;
    other->late = m->late;
    c->late[place] = m;
    m->late = (uint32_t)place + 1;
}

void comm_came_in(struct member *m, uint32_t seq)
{
    struct comm *c = m->comm;
    m->from = seq;
    if (m->late == 0 && ROLL_GROW(c->late, c->late_room, c->lates + 1) != 0) {
        return; /* it counts as one that is still to come where it has passed */
    }
    if (m->late == 0) {
        c->late[c->lates++] = m;
        m->late = (uint32_t)c->lates;
    }
    if (m->late > c->ahead) {
        swap_late(c, m, c->ahead++);
    }
}

void comm_begin_at(struct comm *c, uint32_t seq)
{
    c->base = c->high = seq;
    c->ahead = c->lates;
}

/* Members that have come in later count as arrived at what was before. Each of them is noted where it ends to count,
 * and the slots are summed up from there: numbers come from outside, and a member may be ahead by all slots that there
 * are. */
void comm_open_slots(struct comm *c, uint32_t upto)
{
    uint32_t first = c->high, opened = upto - first;
    for (; c->high != upto; c->high++) {
        memset(comm_slot(c, c->high), 0, sizeof(struct slot));
    }
    bool any = c->ahead > 0;
    for (size_t i = c->ahead; i-- > 0;) {
        struct member *m = c->late[i];
        uint32_t ahead = m->from > first ? m->from - first : 0;
        if (ahead > 0) {
            comm_slot(c, first + (ahead < opened ? ahead : opened) - 1)->arrived++;
        }
        if (ahead <= opened) {
            swap_late(c, m, --c->ahead);
        }
    }
    for (uint32_t i = opened; any && i-- > 0;) {
        struct slot *s = comm_slot(c, first + i);
        s->arrived += i + 1 < opened ? comm_slot(c, first + i + 1)->arrived : 0;
        s->ready = s->arrived;
    }
}

uint32_t comm_world(const struct roll_engine *e, const struct comm *c, uint32_t rank)
{
    uint32_t source = c->member[rank].source;
    return source == NO_SOURCE ? NO_SOURCE : e->source[source]->world;
}

/* Of the members of the communicator and the communicators of the source the fewer are looked at: ids are never used
 * again, so a source knows all communicators of which it is a member. */
const struct member *comm_member_of(const struct comm *c, uint32_t source)
{
    const struct source *s = source < c->engine->sources ? c->engine->source[source] : NULL;
    const struct member *found = NULL;
    if (s && c->size > s->members) {
        for (size_t i = 0; i < s->members; i++) {
            const struct member *m = s->member[i];
            found = m && m->comm == c && (!found || m->rank < found->rank) ? m : found;
        }
        c->engine->effort += s->members;
    }
    for (uint32_t r = 0; s && c->size <= s->members && r < c->size && !found; r++) {
        found = c->member[r].source == source ? &c->member[r] : NULL;
        c->engine->effort++;
    }
    return found;
}

void comm_free(struct comm *c)
{
    if (!c) {
        return;
    }
    for (uint32_t i = 0; c->pair && i <= c->pair_mask; i++) {
        if (c->pair[i]) {
            free(c->pair[i]->node);
            free(c->pair[i]);
        }
    }
    free(c->pair);
    free(c->member);
    free(c->seat);
    free(c->late);
    free(c->slot);
    free(c);
}
