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
        if (e->source[i]->unheard && source_alive(e->source[i])) {
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

static bool unheard_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind != BLOCK_UNHEARD) {
        return false;
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

const struct detector detect_unheard = {.name = "unheard", .block = unheard_block};
