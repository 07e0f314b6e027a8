/*
 * detect_unheard.c: ranks wait for a rank whose agent is silent.
 *
 * It is not known what such a rank has done since its last record: it may run, wait, or have died with its node. So the
 * rank is never called busy, blocked or dead. One note per silence says for whom the others wait and where to look.
 * What the records prove by themselves (a circle, an ended process) is still told: a rank that waits for a call that
 * was not made waits on, whoever watches it. A finding instead of a note was rejected, because the silence of an agent
 * says nothing about the job.
 */
#include "daemon/engine/detect/detector.h"

static void add_unheard(const struct roll_engine *e, const struct source *first, struct roll_verdict *v,
                        struct words *w)
{
    struct roll_rankset ranks = {0};
    for (uint32_t i = 0; i < e->sources; i++) {
        if (e->source[i]->unheard && !e->source[i]->aside && source_alive(e->source[i])) {
            (void)roll_rankset_add(&ranks, e->source[i]->world);
        }
    }
    say_side(v, first, source_index(e, first), &ranks, first->last.op ? &first->last : NULL);
    words_ranks(w, &ranks);
    words_add(w,
              roll_rankset_count(&ranks) == 1 ? " is not heard: the agent on host %s is silent, and "
                                              : " are not heard: the agent on host %s is silent, and ",
              first->info.host);
    roll_rankset_fini(&ranks);
}

/* Ranks wait for one that was set aside for want of room: a note says so once. */
static bool no_room_block(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    if (!waits || !b->comm || !say_once(e, say_key(ROLL_VERDICT_DATA_INCOMPLETE, b->rank->number, 2, 0))) {
        return true;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_DATA_INCOMPLETE, ROLL_NOTE);
    if (!v) {
        return true;
    }
    struct words w = {.used = 0};
    struct roll_rankset waiter = {0};
    say_beside(e, b->waiter, waits, &waiter);
    say_side(v, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
    say_comm(v, b->comm, waits->rec.seq);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    words_wait(&w, b->waiting);
    words_add(&w, " in ");
    words_call(&w, &waits->rec);
    words_add(&w, ", #%u on ", waits->rec.seq);
    words_comm(&w, b->comm);
    words_add(&w,
              ", for rank %u, which was set aside because there was no room for what it defines. What it does is known "
              "in part only, so nobody is named.",
              b->rank->world);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
    return true;
}

static bool unheard_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind != BLOCK_UNHEARD) {
        return false;
    }
    if (b->rank->no_room) {
        return no_room_block(e, b);
    }
    if (b->rank->aside) { /* its agent is not silent; whoever left it aside may look at it next */
        return true;
    }
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    if (!waits || !b->comm || !say_once(e, say_key(ROLL_VERDICT_AGENT_SILENT, e->silences, 0, 0))) {
        return true;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_AGENT_SILENT, ROLL_NOTE);
    if (!v) {
        return true;
    }
    struct words w = {.used = 0};
    struct roll_rankset waiter = {0};
    add_unheard(e, b->rank, v, &w);
    say_beside(e, b->waiter, waits, &waiter);
    say_side(v, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
    say_comm(v, b->comm, waits->rec.seq);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    words_wait(&w, b->waiting);
    words_add(&w, ", in ");
    words_call(&w, &waits->rec);
    words_add(&w, ", #%u on ", waits->rec.seq);
    words_comm(&w, b->comm);
    words_add(
        &w, ". It is not known whether the ranks that are not heard run, wait or have died with their node, so nobody "
            "is named. Look at the node, and at rollcalld there: when they are heard again, everything is judged.");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
    return true;
}

/* The first rank whose agent is silent and of which no communicator is known. */
static struct source *nameless(const struct roll_engine *e)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        bool known = false;
        for (uint32_t r = 1; r < s->members && !known; r++) {
            known = source_member(s, r) != NULL;
        }
        if (s->unheard && !s->aside && source_alive(s) && !known) {
            return s;
        }
    }
    return NULL;
}

/* A call in which a rank waits for members of whom nothing has come. */
static const struct entry *waits_for_unseen(const struct source *s)
{
    for (uint32_t i = 0; i < s->queues; i++) {
        uint64_t ticket = s->queue[i].head - 1;
        const struct entry *at = s->queue[i].head ? source_entry(s, ticket) : NULL;
        const struct member *m = at ? source_member(s, at->rec.comm) : NULL;
        if (m && m->comm->seen < m->comm->size && !entry_complete(s, at)) {
            return at;
        }
    }
    return NULL;
}

int roll_engine_silent(roll_engine_t *e)
{
    const struct source *silent = nameless(e);
    const struct entry *at = NULL;
    uint32_t i = 0;
    while (silent && i < e->sources && !(at = waits_for_unseen(e->source[i]))) {
        i++;
    }
    if (!at || !say_once(e, say_key(ROLL_VERDICT_AGENT_SILENT, e->silences, 1, 0))) {
        return ROLL_E_NOTFOUND;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_AGENT_SILENT, ROLL_NOTE);
    if (!v) {
        return ROLL_E_NOMEM;
    }
    const struct source *s = e->source[i];
    const struct comm *c = source_member(s, at->rec.comm)->comm;
    struct words w = {.used = 0};
    struct roll_rankset waiter = {0};
    add_unheard(e, silent, v, &w);
    say_beside(e, s, at, &waiter);
    say_side(v, s, i, &waiter, &at->rec);
    say_comm(v, c, at->rec.seq);
    (void)roll_rankset_copy(&v->waiting, &waiter);
    words_wait(&w, &waiter);
    words_add(&w, " in ");
    words_call(&w, &at->rec);
    words_add(&w, ", #%u on ", at->rec.seq);
    words_comm(&w, c);
    words_add(&w,
              ", of which nothing is known of %u members. Which these are is not known either: they may be those that "
              "are not heard, so nobody is named. Look at the node, and at rollcalld there: when they are heard again, "
              "everything is judged.",
              c->size - c->seen);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
    return 0;
}

const struct detector detect_unheard = {.name = "unheard", .block = unheard_block};
