/*
 * sum_level.c: the communicators of a sum and what each child has told of them: found by key, made, dropped.
 *
 * What a child tells of a communicator is found by a map of both numbers, and not in the list of the communicator: a
 * root has thousands of children, each of which may tell of the world.
 */
#include "daemon/digest/sum_state.h"

#include "daemon/base/array.h"

#include <stdlib.h>
#include <string.h>

#define CELLS_MOST    (1u << 21) /* communicators of all children together: 350 MiB */
#define CHILDREN_MOST (1u << 20)
#define REFUSED_MOST  (1u << 16) /* refusals that are remembered: 2 MiB */

static uint64_t cell_key(uint64_t key, uint32_t child)
{
    uint64_t x = (key ^ ((uint64_t)child + 1) * 0x9e3779b97f4a7c15u) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* What a child tells is refused for want of room. It tells it again with each digest, and of one communicator it counts
 * once. Beyond REFUSED_MOST, or without memory, nothing more is counted: who reads the figure knows enough then. */
static void refuse(struct roll_sum *sum, uint32_t child, uint64_t key)
{
    uint64_t hash = cell_key(key, child);
    if (roll_map_get(&sum->no_room, hash) == ROLL_MAP_NONE && sum->no_room.used < REFUSED_MOST &&
        roll_map_add(&sum->no_room, hash, 0) == 0) {
        sum->figures.no_room++;
        sum->figures.refused++;
    }
}

/* A child may tell of half of the communicators that a level may have: no child takes all of the room. */
static bool has_room(struct roll_sum *sum, uint32_t child, uint64_t key)
{
    uint32_t told = child < sum->children ? sum->of_child[child] : 0;
    uint64_t cells = (uint64_t)sum->config.most * 16 < CELLS_MOST ? (uint64_t)sum->config.most * 16 : CELLS_MOST;
    if (child >= CHILDREN_MOST || told >= (sum->config.most + 1) / 2 || sum->figures.cells >= cells) {
        refuse(sum, child, key);
        return false;
    }
    return true;
}

struct roll_sum_level *roll_sum_level_of(struct roll_sum *sum, uint32_t child, uint64_t key)
{
    uint32_t at = roll_map_get(&sum->at, key);
    if (at != ROLL_MAP_NONE) {
        sum->level[at].told_ns = sum->now_ns;
        return &sum->level[at];
    }
    if (!has_room(sum, child, key)) {
        return NULL;
    }
    if (sum->levels == sum->config.most) {
        refuse(sum, child, key);
        return NULL;
    }
    if (ROLL_GROW(sum->level, sum->room, sum->levels + 1) != 0 ||
        roll_map_add(&sum->at, key, (uint32_t)sum->levels) != 0) {
        return NULL;
    }
    struct roll_sum_level *c = &sum->level[sum->levels++];
    memset(c, 0, sizeof(*c));
    c->key = key;
    c->told_ns = sum->now_ns;
    c->past = true;
    sum->figures.comms++;
    return c;
}

struct roll_sum_cell *roll_sum_cell_known(const struct roll_sum *sum, const struct roll_sum_level *c, uint32_t child)
{
    uint64_t hash = cell_key(c->key, child);
    size_t step = 0;
    for (uint32_t i; (i = roll_map_each(&sum->cell, hash, &step)) != ROLL_MAP_NONE;) {
        if (i < c->cells && c->cell[i].child == child) {
            return &c->cell[i];
        }
    }
    return NULL;
}

struct roll_sum_cell *roll_sum_cell_of(struct roll_sum *sum, struct roll_sum_level *c, uint32_t child)
{
    struct roll_sum_cell *known = roll_sum_cell_known(sum, c, child);
    uint64_t hash = cell_key(c->key, child);
    if (known) {
        return known;
    }
    if (!has_room(sum, child, c->key) || ROLL_GROW_ZERO(sum->of_child, sum->children, child + 1u) != 0) {
        return NULL;
    }
    if (ROLL_GROW(c->cell, c->room, c->cells + 1) != 0 || roll_map_add(&sum->cell, hash, (uint32_t)c->cells) != 0) {
        return NULL;
    }
    c->cell[c->cells] = (struct roll_sum_cell){.child = child};
    sum->figures.cells++;
    sum->of_child[child]++;
    return &c->cell[c->cells++];
}

void roll_sum_level_differs(struct roll_sum_level *c, uint32_t at)
{
    bool same = roll_digest_window_of(at) == roll_digest_window_of(c->differs_at) && c->differs_at != 0;
    if (!same || roll_digest_first(at) < roll_digest_first(c->differs_at)) {
        c->differs_at = at;
    }
}

void roll_sum_hint(struct roll_sum *sum, uint64_t key, enum roll_digest_why why, uint32_t seq)
{
    roll_digest_add_hint(&sum->hints, key, why, seq);
}

void roll_sum_level_drop(struct roll_sum *sum, size_t at)
{
    struct roll_sum_level *c = &sum->level[at];
    size_t last = --sum->levels;
    for (size_t i = 0; i < c->cells; i++) {
        roll_map_remove(&sum->cell, cell_key(c->key, c->cell[i].child), (uint32_t)i);
        sum->of_child[c->cell[i].child]--;
    }
    sum->figures.cells -= (uint32_t)c->cells;
    sum->figures.comms--;
    sum->figures.forgotten++;
    free(c->cell);
    roll_map_remove(&sum->at, c->key, (uint32_t)at);
    if (at != last) {
        roll_map_renumber(&sum->at, sum->level[last].key, (uint32_t)last, (uint32_t)at);
        *c = sum->level[last];
    }
}
