/*
 * pair.c: the pairs of ranks that send each other messages, and the window of nodes of each: one per message.
 *
 * The pairs of a communicator stand in a hash table of their own. The map that others use (daemon/base/map.h) was
 * rejected here: the table is searched for each message, the map holds numbers and not pointers, which costs one more
 * load, and the smallest map takes 1 KB, which is much for the many communicators that have two or three pairs.
 */
#include "daemon/engine/model/engine_state.h"

#include <stdlib.h>

static uint32_t place(const struct comm *c, uint32_t src, uint32_t dst)
{
    uint32_t i = (src * 0x9e3779b1u ^ dst * 0x85ebca77u) & c->pair_mask;
    while (c->pair[i] && (c->pair[i]->end[0] != src || c->pair[i]->end[1] != dst)) {
        i = (i + 1) & c->pair_mask;
    }
    return i;
}

struct pair *p2p_pair(const struct comm *c, uint32_t src, uint32_t dst)
{
    return c->pair ? c->pair[place(c, src, dst)] : NULL;
}

static int table_grow(struct comm *c)
{
    if (c->pair && (c->pairs + 1) * 2 <= c->pair_mask) {
        return 0;
    }
    uint32_t old_room = c->pair ? c->pair_mask + 1 : 0;
    uint32_t room = old_room ? old_room * 2 : 16;
    struct pair **old = c->pair;
    c->pair = calloc(room, sizeof(struct pair *));
    if (!c->pair) {
        c->pair = old;
        return ROLL_E_NOMEM;
    }
    c->pair_mask = room - 1;
    for (uint32_t i = 0; i < old_room; i++) {
        if (old[i]) {
            c->pair[place(c, old[i]->end[0], old[i]->end[1])] = old[i];
        }
    }
    free(old);
    return 0;
}

struct pair *pair_get(struct comm *c, uint32_t src, uint32_t dst)
{
    struct pair *p = p2p_pair(c, src, dst);
    if (p || table_grow(c) != 0) {
        return p;
    }
    p = calloc(1, sizeof(*p));
    struct node *node = calloc(PAIR_NODES, sizeof(*node));
    if (!p || !node) {
        free(p);
        free(node);
        return NULL;
    }
    p->comm = c;
    p->end[0] = src;
    p->end[1] = dst;
    p->node = node;
    p->mask = PAIR_NODES - 1;
    c->pair[place(c, src, dst)] = p;
    c->pairs++;
    return p;
}

struct node *p2p_node(const struct pair *p, uint32_t index)
{
    return &p->node[index & p->mask];
}

void pair_advance(struct pair *p)
{
    uint32_t low = p->issued[0] > p->issued[1] ? p->issued[0] : p->issued[1];
    while (p->base != low && p2p_node(p, p->base)->ready == 3 && !p->said) {
        *p2p_node(p, p->base) = (struct node){0};
        p->base++;
    }
}

int pair_grow(struct pair *p, uint32_t index)
{
    uint32_t room = (p->mask + 1) * 2;
    struct node *node = calloc(room, sizeof(*node));
    if (!node) {
        return ROLL_E_NOMEM;
    }
    for (uint32_t i = p->base; i != index; i++) {
        node[i & (room - 1)] = *p2p_node(p, i);
    }
    free(p->node);
    p->node = node;
    p->mask = room - 1;
    return 0;
}

bool p2p_known(const struct pair *p, unsigned side)
{
    return !p->unsure && p->gaps[side] == p->comm->member[p->end[side]].gaps;
}

bool p2p_complete(const struct entry *entry)
{
    const struct pair *p = entry->pair;
    if (p && p->said && !p->comm->muted) {
        return false; /* the difference is about to be told, and its evidence must stay */
    }
    return !p || p->unsure || p->comm->aborted || p->comm->overflow || entry->index - p->base > p->mask ||
           p2p_node(p, entry->index)->ready == 3;
}
