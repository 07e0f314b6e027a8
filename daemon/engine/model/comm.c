/*
 * comm.c: communicators, their members, and the window of slots: one slot per collective.
 *
 * The window holds what is not complete yet, and behind it as much history as fits: the signatures of complete
 * collectives stay in their slots until the window comes round, and serve as the template when ranks disagree
 * (align.c). It doubles while some rank runs ahead, up to config.window; a linked list of operations was rejected: one
 * index per record is what makes the matcher fast.
 */
#include "daemon/engine/model/engine_state.h"

#include <stdlib.h>
#include <string.h>

/* A definition that comes so few calls after a gap may be older than the gap, which then may hold calls on it. */
#define LATE_DEFINITION 4096u

static uint32_t hash_place(const struct roll_engine *e, uint64_t key)
{
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & e->comm_hash_mask;
    while (e->comm_hash[i] != 0 && e->comm[e->comm_hash[i] - 1]->key != key) {
        i = (i + 1) & e->comm_hash_mask;
    }
    return i;
}

struct comm *comm_find(const struct roll_engine *e, uint64_t key)
{
    if (!e->comm_hash || key == 0) {
        return NULL;
    }
    uint32_t at = e->comm_hash[hash_place(e, key)];
    return at ? e->comm[at - 1] : NULL;
}

static int hash_grow(struct roll_engine *e)
{
    if (e->comm_hash && (e->comms + 1) * 2 <= e->comm_hash_mask) {
        return 0;
    }
    uint32_t room = e->comm_hash ? (e->comm_hash_mask + 1) * 2 : 64;
    uint32_t *hash = calloc(room, sizeof(*hash));
    if (!hash) {
        return ROLL_E_NOMEM;
    }
    free(e->comm_hash);
    e->comm_hash = hash;
    e->comm_hash_mask = room - 1;
    for (uint32_t i = 0; i < e->comms; i++) {
        e->comm_hash[hash_place(e, e->comm[i]->key)] = i + 1;
    }
    return 0;
}

static struct comm *comm_new(struct roll_engine *e, const struct roll_def_comm *def)
{
    struct comm *c = NULL;
    if (hash_grow(e) != 0) {
        return NULL;
    }
    if (e->comms == e->comm_room) {
        uint32_t room = e->comm_room ? e->comm_room * 2 : 16;
        struct comm **table = realloc(e->comm, room * sizeof(struct comm *));
        if (!table) {
            return NULL;
        }
        e->comm = table;
        e->comm_room = room;
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
    c->held = NO_SEQ;
    c->member = calloc(c->room, sizeof(*c->member));
    c->slot = calloc(SLOTS_MIN, sizeof(*c->slot));
    c->slot_mask = SLOTS_MIN - 1;
    if (!c->member || !c->slot) {
        comm_free(c);
        return NULL;
    }
    for (uint32_t r = 0; r < c->room; r++) {
        c->member[r] = (struct member){.comm = c, .source = NO_SOURCE, .rank = (int32_t)r};
    }
    c->id = e->comms;
    e->comm[e->comms++] = c;
    e->comm_hash[hash_place(e, c->key)] = e->comms;
    return c;
}

static int member_table(struct source *s, uint32_t id)
{
    if (id < s->members) {
        return 0;
    }
    uint32_t room = s->members ? s->members * 2 : 16;
    while (room <= id) {
        room *= 2;
    }
    struct member **table = realloc(s->member, room * sizeof(struct member *));
    if (!table) {
        return ROLL_E_NOMEM;
    }
    memset(table + s->members, 0, (room - s->members) * sizeof(struct member *));
    s->member = table;
    s->members = room;
    return 0;
}

/* The call that made it, for the faces: a child's is the newest one on its parent; of one made from a unique id it is
 * still to come (comm_made). */
static void note_made(struct comm *c, uint32_t source, const struct source *s, const struct roll_def_comm *def)
{
    enum { LOOKED_AT = 256 };
    uint64_t low = s->next > LOOKED_AT ? s->next - LOOKED_AT : 0;
    for (uint64_t t = s->next; c->made_callsite == 0 && def->origin != ROLL_COMM_INIT && t-- > low;) {
        const struct entry *at = source_entry(s, t);
        const struct member *parent = at ? source_member(s, at->rec.comm) : NULL;
        if (parent && parent->comm->key == def->parent_key && at->rec.op == ROLL_OP_COMM_SPLIT &&
            at->rec.aux == def->child) {
            c->made_source = source;
            c->made_callsite = at->rec.callsite;
        }
    }
}

void comm_made(struct comm *c, uint32_t source, const struct roll_record *rec)
{
    if (c->made_callsite == 0) {
        c->made_source = source;
        c->made_callsite = rec->callsite;
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
    if (!c) {
        c = comm_new(e, def);
    }
    if (!c || member_table(s, id) != 0) {
        return ROLL_E_NOMEM;
    }
    /* Of an open one the size is not known: it has the members that have been seen. */
    bool open = (def->flags & ROLL_DEF_COMM_OPEN) != 0;
    if (open != c->open || (open ? (uint32_t)def->rank >= c->room : c->size != (uint32_t)def->nranks)) {
        *contradicts = c;
        return 0;
    }
    c->size = (uint32_t)def->rank >= c->size ? (uint32_t)def->rank + 1 : c->size;
    struct member *m = &c->member[def->rank];
    if (m->source == NO_SOURCE) {
        m->source = source;
        m->unsure = s->gap_ticket != 0 && s->next - s->gap_ticket < LATE_DEFINITION;
        c->seen++;
        e->enrolled++;
    } else if (m->source != source) {
        *contradicts = c;
        return 0;
    }
    if (label && def->label_bytes > 0 && c->label[0] == '\0') {
        size_t n = def->label_bytes < ROLL_NAME_BYTES - 1 ? def->label_bytes : ROLL_NAME_BYTES - 1;
        memcpy(c->label, label, n);
        c->label[n] = '\0';
    }
    s->member[id] = m;
    note_made(c, source, s, def);
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

void comm_advance(struct roll_engine *e, struct comm *c)
{
    while (c->base < c->high) {
        struct slot *s = comm_slot(c, c->base);
        if (s->ready < c->size || s->held) {
            return;
        }
        slot_release(e, s);
        c->base++;
    }
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

void comm_open_slots(struct comm *c, uint32_t upto)
{
    for (; c->high != upto; c->high++) {
        struct slot *s = comm_slot(c, c->high);
        memset(s, 0, sizeof(*s));
        if (c->high < c->max_from) {
            for (uint32_t r = 0; r < c->size; r++) {
                s->arrived += c->member[r].from > c->high;
            }
            s->ready = s->arrived;
        }
    }
}

uint32_t comm_world(const struct roll_engine *e, const struct comm *c, uint32_t rank)
{
    uint32_t source = c->member[rank].source;
    return source == NO_SOURCE ? NO_SOURCE : e->source[source]->world;
}

const struct member *comm_member_of(const struct comm *c, uint32_t source)
{
    for (uint32_t r = 0; r < c->size; r++) {
        if (c->member[r].source == source) {
            return &c->member[r];
        }
    }
    return NULL;
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
    free(c->slot);
    free(c);
}
