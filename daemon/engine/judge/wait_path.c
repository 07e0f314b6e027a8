/*
 * wait_path.c: the path of a walk through the wait graph, and the reasons that it ends at.
 */
#include "daemon/base/array.h"
#include "daemon/engine/judge/walk.h"

#include <stdlib.h>

#define FOUND_MAX 1024u /* reasons kept in one walk; more than that many causes at once nobody reads */

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

/* The end of the path is a reason: `absent`, of which `rank` is one, hold up who waits in the last step. Takes absent.
 */
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

/* Those in the circle that poll were still at it when the last of them all had come to its wait: one that had left its
 * loop before that closes none. */
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

/* The path from `from` on is a circle; the soft mark of its first step is that of the link that closes it. */
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

/* True when the path comes back to this queue of s, or, without a queue, to this call that its host is inside. */
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
