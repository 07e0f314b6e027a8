/*
 * view_wait.c: which call keeps a rank from going on, whom that call lacks, and since when. The sentences about it are
 * those of view_why.c; the root asks here whether a verdict and a rank's wait are one thing.
 *
 * To take the rank's last call for the one it waits in was rejected: a host runs ahead of its streams, and the newest
 * of twenty calls that stand in a queue is not the one that lacks somebody.
 */
#include "daemon/base/array.h"
#include "daemon/base/map.h"
#include "daemon/engine/judge/judge.h"
#include "daemon/engine/view.h"

#include <stdlib.h>

static uint64_t set_key(const struct roll_rankset *set)
{
    uint64_t key = 0;
    for (size_t i = 0; i < set->used; i++) {
        key = say_key(key, set->range[i].first, set->range[i].last, 0);
    }
    return key;
}

static struct view_lacks find_lacks(const struct roll_engine *e, const struct source *s, const struct entry *entry)
{
    struct roll_rankset missing = {0};
    uint32_t unknown = waitgraph_missing(e, s, entry, &missing);
    struct view_lacks l = {set_key(&missing), (uint32_t)roll_rankset_count(&missing), unknown};
    roll_rankset_fini(&missing);
    return l;
}

static struct view_lacks lacks_of(const struct roll_engine *e, const struct source *s, const struct entry *entry,
                                  struct view_memo *memo)
{
    const struct member *m = source_member(s, entry->rec.comm);
    if (!memo || !m || roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        return find_lacks(e, s, entry);
    }
    uint64_t key = say_key(m->comm->key, entry->rec.seq, 0, 0);
    uint32_t at = roll_map_get(&memo->at, key);
    if (at != ROLL_MAP_NONE) {
        return memo->lacks[at];
    }
    struct view_lacks l = find_lacks(e, s, entry);
    if (ROLL_GROW(memo->lacks, memo->room, memo->used + 1) == 0 &&
        roll_map_add(&memo->at, key, (uint32_t)memo->used) == 0) {
        memo->lacks[memo->used++] = l;
    }
    return l;
}

struct entry *view_find_wait(const struct roll_engine *e, const struct source *s, const struct queue *q,
                             struct view_memo *memo, struct view_lacks *lacks)
{
    uint64_t ticket = q->head - 1;
    struct entry *first = NULL;
    *lacks = (struct view_lacks){0};
    for (struct entry *entry = q->head ? source_entry(s, ticket) : NULL; entry; entry = source_chain(s, &ticket)) {
        if (entry_complete(s, entry) || !source_member(s, entry->rec.comm)) {
            continue;
        }
        first = first ? first : entry;
        *lacks = lacks_of(e, s, entry, memo);
        if (lacks->known + lacks->unknown > 0) {
            return entry;
        }
    }
    return first;
}

struct entry *view_in_the_way(const struct roll_engine *e, const struct source *s, const struct queue *q,
                              struct roll_rankset *missing, uint32_t *unknown)
{
    struct view_lacks lacks;
    struct entry *entry = view_find_wait(e, s, q, NULL, &lacks);
    *unknown = entry ? waitgraph_missing(e, s, entry, missing) : 0;
    return entry;
}

void roll_engine_awaited(roll_engine_t *e, uint32_t world_rank, struct roll_rankset *out)
{
    const struct source *s = source_newest(e, world_rank);
    for (uint32_t i = 0; s && source_alive(s) && i < s->queues; i++) {
        uint32_t unknown;
        (void)view_in_the_way(e, s, &s->queue[i], out, &unknown);
    }
}

uint64_t roll_engine_incomplete_since(const roll_engine_t *e, uint32_t world_rank, uint64_t comm_key)
{
    const struct source *s = source_newest(e, world_rank);
    uint64_t since = 0;
    for (uint32_t i = 0; s && source_alive(s) && i < s->queues; i++) {
        uint64_t ticket = s->queue[i].head - 1;
        struct entry *entry = s->queue[i].head ? source_entry(s, ticket) : NULL;
        for (bool found = false; entry && !found; entry = source_chain(s, &ticket)) {
            const struct member *m = source_member(s, entry->rec.comm);
            found = m && m->comm->key == comm_key && !entry_complete(s, entry);
            uint64_t at = source_wall(s, &entry->rec);
            since = found && (since == 0 || at < since) ? at : since;
        }
    }
    return since;
}
