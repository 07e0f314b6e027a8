/*
 * wait_begin.c: where walks through the wait graph begin: at the calls and the hosts that have waited for too long.
 *
 * Each process says when it will next have such a call, so that a look costs what is due and not what there is; to look
 * at all of them each time was rejected for that. The walk itself is in waitgraph.c.
 */
#include "daemon/engine/judge/walk.h"

#include <stdlib.h>

static bool anyone_alive(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        if (source_alive(e->source[i])) {
            return true;
        }
    }
    return false;
}

/*
 * Follows the host of s where it has been inside a creation, or inside a wait that no incomplete call explains, for
 * long enough. False: there is nothing to follow. *due: is made earlier where the host will have been there for long
 * enough at an earlier time.
 */
static bool visit_host(struct walk *walk, struct source *s, uint64_t *due)
{
    const struct roll_engine *e = walk->e;
    bool any = false, left = left_anything(e);
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct thread *t = &s->thread[i];
        const struct entry *in = t->inside ? source_entry(s, t->inside - 1) : NULL;
        enum roll_op_class class = in ? roll_op_class(in->rec.op) : ROLL_CLASS_SYNC;
        /* What others have left behind is asked about later: a call that lacks a partner says more. */
        uint64_t patience =
            e->config.stall_ns * (class == ROLL_CLASS_COMM ? 1 : 3) / (class == ROLL_CLASS_COMM ? 1 : 2);
        if (t->inside == 0 || (class != ROLL_CLASS_COMM && !left)) {
            continue;
        }
        *due = t->since + patience < *due ? t->since + patience : *due;
        if (!in || (!e->finishing && (e->clock <= t->since || e->clock - t->since <= patience))) {
            continue;
        }
        if (class == ROLL_CLASS_COMM) {
            any = walk_creation(walk, s, t->inside - 1) || any;
        } else if (!rank_waits_for_queue(s, &in->rec, t->inside)) {
            any = left_visit(walk, s, &in->rec, polls_left_upto(e, s, t, &in->rec)) || any;
        }
    }
    return any;
}

/* The head belongs to a group that a live process has not ended: nothing of it is enqueued, so nothing of it waits. Who
 * waits for that process comes to it from elsewhere. */
static bool is_held_back(const struct roll_engine *e, const struct source *s, const struct queue *q)
{
    const struct entry *head = source_entry(s, q->head - 1);
    return head && !e->finishing && source_alive(s) && source_group_open(s, &head->rec);
}

/* Begins with the calls and with the host of s that have waited for too long. *due: the time before which there will be
 * none. */
static bool visit_source(struct walk *walk, struct source *s, uint64_t *due)
{
    const struct roll_engine *e = walk->e;
    bool any = false;
    *due = e->clock + e->config.stall_ns; /* what begins to wait from now on has waited for long enough then */
    for (uint32_t k = 0; k < s->queues && (source_alive(s) || !walk->alive); k++) {
        struct queue *q = &s->queue[k];
        *due = q->head != 0 && q->since + e->config.stall_ns < *due ? q->since + e->config.stall_ns : *due;
        if (waitgraph_old(e, q) && is_held_back(e, s, q)) {
            q->since = e->clock; /* to be looked at when that may have changed */
        } else if (waitgraph_old(e, q)) {
            any = true;
            walk_head(walk, s, q, false);
        }
    }
    return (source_alive(s) && visit_host(walk, s, due)) || any;
}

bool waitgraph_due(struct roll_engine *e)
{
    uint64_t found_by = e->proc_changes + e->aborts;
    if (e->walk_for != found_by || e->finishing) {
        due_anew(&e->walk_due);
        e->walk_for = found_by;
    }
    return e->finishing || due_next(&e->walk_due, 0, e->sources, e->clock) < e->sources;
}

bool waitgraph_walk(struct roll_engine *e, struct block **found, uint32_t *founds)
{
    struct walk walk = {.e = e, .alive = anyone_alive(e)};
    bool any = false;
    e->visit++;
    e->walk_work = 0;
    uint64_t clock = e->finishing ? UINT64_MAX : e->clock; /* at the end, all are */
    for (uint32_t i = due_next(&e->walk_due, 0, e->sources, clock); i < e->sources;
         i = due_next(&e->walk_due, i + 1, e->sources, clock)) {
        e->looks++;
        any = visit_source(&walk, e->source[i], &e->walk_due.at[i]) || any;
    }
    for (uint32_t i = 0; i < walk.creations; i++) {
        free(walk.creation[i].absentee);
    }
    free(walk.creation);
    *found = walk.found;
    *founds = walk.founds;
    return any;
}
