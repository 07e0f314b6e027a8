/*
 * map.h: from 64-bit keys to the numbers of elements in somebody's array.
 *
 * Open addressing with linear steps, at most half full, so that a search ends soon and always ends. The elements stay
 * in an array of their owner, who can go through them in order and may move them; the map holds numbers only. uthash
 * was rejected: its handles lie inside the elements and are lost when an array grows, and it ends the process when
 * memory is short unless each use is taught otherwise.
 *
 * What is longer than 64 bits is entered under a hash of it (roll_hash64); several elements may then stand under one
 * key, and roll_map_each gives them all to the caller, who compares. What is taken out leaves no mark behind: the slots
 * behind it move up, so a map of things that come and go for months does not fill with what was there once.
 *
 * The functions take memory and do nothing else. Any thread, for maps of its own.
 */
#ifndef ROLL_DAEMON_BASE_MAP_H
#define ROLL_DAEMON_BASE_MAP_H

#include "trace/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define ROLL_MAP_NONE  UINT32_MAX /* no number: nothing is entered under this key */
#define ROLL_MAP_FIRST 64u        /* slots of the smallest map, a power of two */

struct roll_map_slot {
    uint64_t key;
    uint32_t mark; /* the number, and one more: 0 is a free slot */
};

/* Zero-initialised is empty. */
struct roll_map {
    struct roll_map_slot *slot; /* owned */
    size_t slots;               /* a power of two */
    size_t used;
};

/* Where the search for a key begins. The golden ratio spreads keys that follow each other. */
static inline size_t roll_map_begin(uint64_t key, size_t slots)
{
    return (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (slots - 1);
}

/*
 * The numbers under `key`, one a call, in the order in which they were entered; ROLL_MAP_NONE after the last. `*step`
 * is 0 for the first call and belongs to this function until then.
 */
static inline uint32_t roll_map_each(const struct roll_map *map, uint64_t key, size_t *step)
{
    while (map->slots > 0) {
        const struct roll_map_slot *s = &map->slot[(roll_map_begin(key, map->slots) + *step) & (map->slots - 1)];
        if (s->mark == 0) {
            break;
        }
        ++*step;
        if (s->key == key) {
            return s->mark - 1;
        }
    }
    return ROLL_MAP_NONE;
}

/* The number under a key that is entered once at most. */
static inline uint32_t roll_map_get(const struct roll_map *map, uint64_t key)
{
    size_t step = 0;
    return roll_map_each(map, key, &step);
}

/* Enters without looking for room. */
static inline void roll_map_enter(struct roll_map *map, uint64_t key, uint32_t mark)
{
    size_t at = roll_map_begin(key, map->slots);
    while (map->slot[at].mark != 0) {
        at = (at + 1) & (map->slots - 1);
    }
    map->slot[at] = (struct roll_map_slot){key, mark};
    map->used++;
}

/* Makes sure that one more can be entered: the next roll_map_add cannot fail. 0, NOMEM; LIMIT: there are too many. */
static inline int roll_map_reserve(struct roll_map *map)
{
    if (map->used < map->slots / 2) {
        return 0;
    }
    if (map->slots >= (size_t)1 << 31) {
        return ROLL_E_LIMIT;
    }
    struct roll_map grown = {.slots = map->slots > 0 ? map->slots * 2 : ROLL_MAP_FIRST};
    grown.slot = calloc(grown.slots, sizeof(*grown.slot));
    if (!grown.slot) {
        return ROLL_E_NOMEM;
    }
    /* Begin behind a free slot: what stands under one key then moves in the order in which it was entered. */
    size_t begin = 0;
    while (begin < map->slots && map->slot[begin].mark != 0) {
        begin++;
    }
    for (size_t i = 0; i < map->slots; i++) {
        const struct roll_map_slot *s = &map->slot[(begin + i) & (map->slots - 1)];
        if (s->mark != 0) {
            roll_map_enter(&grown, s->key, s->mark);
        }
    }
    free(map->slot);
    *map = grown;
    return 0;
}

/* Enters a number below ROLL_MAP_NONE under a key, beside what may stand there. 0, NOMEM, LIMIT: then nothing has
 * changed. */
static inline int roll_map_add(struct roll_map *map, uint64_t key, uint32_t number)
{
    int err = roll_map_reserve(map);
    if (!err) {
        roll_map_enter(map, key, number + 1);
    }
    return err;
}

/* The slot that holds this number under this key; `slots` of the map when there is none. */
static inline size_t roll_map_slot_of(const struct roll_map *map, uint64_t key, uint32_t number)
{
    size_t at = map->slots > 0 ? roll_map_begin(key, map->slots) : 0;
    while (map->slots > 0 && map->slot[at].mark != 0) {
        if (map->slot[at].key == key && map->slot[at].mark == number + 1) {
            return at;
        }
        at = (at + 1) & (map->slots - 1);
    }
    return map->slots;
}

/* The element that was number `from` is number `to` now: its owner has moved it. Nothing happens where it is not
 * entered. */
static inline void roll_map_renumber(struct roll_map *map, uint64_t key, uint32_t from, uint32_t to)
{
    size_t at = roll_map_slot_of(map, key, from);
    if (at < map->slots) {
        map->slot[at].mark = to + 1;
    }
}

/* Takes out a number that stands under a key. Nothing happens where it does not. */
static inline void roll_map_remove(struct roll_map *map, uint64_t key, uint32_t number)
{
    size_t hole = roll_map_slot_of(map, key, number);
    if (hole >= map->slots) {
        return;
    }
    for (size_t at = (hole + 1) & (map->slots - 1); map->slot[at].mark != 0; at = (at + 1) & (map->slots - 1)) {
        size_t begin = roll_map_begin(map->slot[at].key, map->slots);
        /* It may move up unless its search begins behind the hole. */
        if (((at - begin) & (map->slots - 1)) >= ((at - hole) & (map->slots - 1))) {
            map->slot[hole] = map->slot[at];
            hole = at;
        }
    }
    map->slot[hole].mark = 0;
    map->used--;
}

static inline void roll_map_fini(struct roll_map *map)
{
    free(map->slot);
    *map = (struct roll_map){0};
}

#endif
