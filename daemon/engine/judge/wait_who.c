/*
 * wait_who.c: who waits: for a verdict, the ranks that are in the very call that lacks somebody.
 *
 * To count everybody who waits for anything was rejected: most ranks of a job that hangs wait for the echo of one
 * mistake.
 */
#include "daemon/engine/judge/wait.h"

void waiting_in(const struct roll_engine *e, const struct source *s, uint64_t ticket, struct roll_rankset *out)
{
    const struct entry *entry = source_entry(s, ticket);
    const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
    (void)roll_rankset_add(out, s->world);
    if (!m || roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        return;
    }
    bool creation = roll_op_class(entry->rec.op) == ROLL_CLASS_COMM;
    for (uint32_t r = 0; r < m->comm->size; r++) {
        const struct member *o = &m->comm->member[r];
        const struct source *other = o->source == NO_SOURCE ? NULL : e->source[o->source];
        bool in =
            other && (creation ? other->init != 0 && o->splits >= m->splits : comm_member_issued(o, entry->rec.seq));
        if (in && source_alive(other) && o->ended == 0) {
            (void)roll_rankset_add(out, other->world);
        }
    }
}

void waiting_at(const struct roll_engine *e, const struct block *b, struct roll_rankset *out)
{
    for (uint32_t i = 0; b->kind == BLOCK_CYCLE && i < b->steps; i++) {
        waiting_in(e, b->step[i].rank, b->step[i].ticket, out);
    }
    if (b->kind != BLOCK_CYCLE && b->waiter) {
        waiting_in(e, b->waiter, b->ticket, out);
    }
}

void waiting_for(const struct roll_engine *e, const struct block *found, uint32_t n, struct block *b,
                 struct roll_rankset *out)
{
    struct roll_rankset all = {0};
    waiting_at(e, b, &all);
    size_t here = roll_rankset_count(&all);
    b->other = NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (found[i].kind == b->kind && roll_rankset_has(&found[i].absent, b->rank->world)) {
            waiting_at(e, &found[i], &all);
            b->other = !b->other && roll_rankset_count(&all) > here ? &found[i] : b->other;
        }
    }
    (void)roll_rankset_union(out, &all);
    roll_rankset_fini(&all);
}
