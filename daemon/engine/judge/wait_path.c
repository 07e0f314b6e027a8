/*
 * wait_path.c: the path of a walk through the wait graph, and the reasons at which the walk ends.
 *
 * A reason is written down where the walk meets it, with the path that led there, and judged when the walk is over
 * (wait_judge.c). To judge at once was rejected: which reason is the cause and which its echo shows only when all are
 * known.
 */
#include "daemon/base/array.h"
#include "daemon/engine/judge/walk.h"

#include <stdlib.h>

#define FOUND_MAX 1024u /* reasons kept in one walk; nobody reads more causes at once */

/* Room for one more reason; NULL when there is none. */
static struct block *find(struct walk *walk, enum block_kind kind)
{
    if (walk->founds == FOUND_MAX || ROLL_GROW(walk->found, walk->found_room, walk->founds + 1u) != 0) {
        return NULL;
    }
    struct block *b = &walk->found[walk->founds++];
    *b = (struct block){.kind = kind};
    return b;
}

void path_leaf(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard,
               struct roll_rankset *absent)
{
    struct block *b = find(walk, kind);
    if (!b) {
        roll_rankset_fini(absent);
        return;
    }
    b->rank = rank;
    b->comm = comm;
    b->hard = hard;
    b->absent = *absent;
    *absent = (struct roll_rankset){0};
    uint32_t skip = walk->depth > BLOCK_STEPS ? walk->depth - BLOCK_STEPS : 0;
    for (uint32_t i = skip; i < walk->depth; i++) {
        b->step[b->steps].rank = walk->path[i].source;
        b->step[b->steps++].ticket = walk->path[i].ticket;
    }
    if (walk->depth > 0) {
        b->waiter = walk->path[walk->depth - 1].source;
        b->ticket = walk->path[walk->depth - 1].ticket;
    }
}

void path_leaf_one(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard)
{
    struct roll_rankset one = {0};
    (void)roll_rankset_add(&one, rank->world);
    path_leaf(walk, kind, rank, comm, hard, &one);
}

void absences_told(struct walk *walk, struct absences *a, struct comm *c)
{
    for (unsigned kind = 0; kind < BLOCK_KINDS; kind++) {
        if (a->of[kind].one) {
            path_leaf(walk, kind, a->of[kind].one, c, a->of[kind].hard, &a->of[kind].ranks);
        }
    }
}

/* The ranks of the circle that poll were still polling when the last rank of the circle came to its wait. A rank that
 * had left its loop by then closes no circle. */
static bool still_polls(const struct walk *walk, uint32_t from)
{
    uint64_t last = 0;
    bool still = true;
    for (uint32_t i = from; i < walk->depth; i++) {
        const struct queue *q = walk->path[i].queue;
        last = q && q->since > last ? q->since : last;
    }
    for (uint32_t i = from; i < walk->depth; i++) {
        still = still && source_polls_after(walk->e, walk->path[i].source, last);
    }
    return still;
}

void path_circle(struct walk *walk, uint32_t from, struct comm *comm)
{
    struct block *b = find(walk, BLOCK_CYCLE);
    if (!b) {
        return;
    }
    if (!still_polls(walk, from)) {
        walk->founds--;
        return;
    }
    b->rank = walk->path[from].source;
    b->comm = comm;
    b->hard = true;
    for (uint32_t i = from; i < walk->depth && b->steps < BLOCK_STEPS; i++) {
        b->step[b->steps].rank = walk->path[i].source;
        b->step[b->steps++].ticket = walk->path[i].ticket;
        b->hard = b->hard && !walk->path[i].soft;
    }
    b->waiter = walk->path[walk->depth - 1].source;
    b->ticket = walk->path[walk->depth - 1].ticket;
}

bool path_closes(struct walk *walk, const struct source *s, const struct queue *q, uint64_t ticket, bool soft,
                 struct comm *comm)
{
    for (uint32_t i = 0; i < walk->depth; i++) {
        if (walk->path[i].source == s && walk->path[i].queue == q && (q || walk->path[i].ticket == ticket)) {
            bool was = walk->path[i].soft;
            walk->path[i].soft = soft;
            path_circle(walk, i, comm);
            walk->path[i].soft = was;
            return true;
        }
    }
    return false;
}
