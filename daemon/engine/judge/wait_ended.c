/*
 * wait_ended.c: the end of a process is told once, however many ranks wait for the process and wherever they do.
 *
 * To ask the detectors about each place at which a process is missed was rejected: a process that ends too early is
 * missed on every communicator to which it belongs.
 */
#include "daemon/engine/judge/wait.h"

#include <sys/wait.h>

void ended_say(struct roll_engine *e, const struct roll_rankset *ended, uint32_t waiter)
{
    struct roll_verdict *v = e->out_last ? &e->out_last->verdict : NULL;
    for (uint32_t i = 0; v && i < e->sources; i++) {
        struct source *s = e->source[i];
        if (roll_rankset_has(ended, s->world) && !source_alive(s)) {
            say_supersedes(e, v, v->supersedes == 0 && !s->end_named ? s->end_number : 0);
            s->end_named = s->end_named || roll_rankset_has(&v->culprits, s->world);
            s->end_number = v->number;
            s->end_waiter = waiter;
        }
    }
}

/* What is new about the end of the processes that are absent for one reason. */
enum end_news {
    END_NEW,
    END_TOLD, /* it has been told */
    END_AGAIN /* it has been told and nobody was named for it, but now another rank waits as well */
};

static enum end_news end_news(const struct roll_engine *e, const struct block *b)
{
    enum end_news news = END_TOLD;
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!roll_rankset_has(&b->absent, s->world) || source_alive(s)) {
            continue;
        }
        if (s->end_number == 0 && !e->ask->end_is_told(s)) {
            return END_NEW;
        }
        news =
            !s->end_named && !e->ask->end_is_told(s) && s->end_waiter != source_index(e, b->waiter) ? END_AGAIN : news;
    }
    return news;
}

/* Adds the ranks of which it was said that they wait for these processes elsewhere, and that still do. */
static void add_earlier(const struct roll_engine *e, const struct block *b, struct roll_rankset *waiting)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        bool ended = roll_rankset_has(&b->absent, s->world) && !source_alive(s) && s->end_number != 0;
        if (ended && s->end_waiter < e->sources && source_alive(e->source[s->end_waiter])) {
            (void)roll_rankset_add(waiting, e->source[s->end_waiter]->world);
        }
    }
}

/*
 * One end is told once, however many communicators miss the process. Between two ranks, one that has ended and one that
 * waits for it, the calls do not say who is wrong. When another rank waits for the same process elsewhere they do, and
 * the verdict that says so takes the place of the first.
 */
bool ended_ask(struct roll_engine *e, struct block *b, struct roll_rankset *waiting)
{
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    enum end_news news = end_news(e, b);
    if (news == END_TOLD && waits && b->comm) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
        comm_explained(e, b->comm);
        roll_rankset_fini(waiting);
        return true;
    }
    uint64_t said = e->numbers;
    waiting_at(e, b, waiting);
    if (news == END_AGAIN) {
        add_earlier(e, b, waiting);
    }
    b->waiting = waiting;
    b->camp = news == END_AGAIN && b->camp == CAMP_TIE ? CAMP_MADE : b->camp;
    bool told = e->ask->block(e, b, news == END_AGAIN ? ASK_END : ASK_ALL);
    if (e->numbers != said) {
        ended_say(e, &b->absent, source_index(e, b->waiter));
    }
    b->waiting = NULL;
    roll_rankset_fini(waiting);
    return told;
}

bool dead_judge(struct roll_engine *e, struct block *found, uint32_t n)
{
    struct block *first = NULL;
    struct roll_rankset waiting = {0};
    for (uint32_t i = 0; i < n; i++) {
        if (found[i].kind == BLOCK_DEAD && found[i].waiter) {
            first = first ? first : &found[i];
            waiting_in(e, found[i].waiter, found[i].ticket, &waiting);
        }
    }
    if (first) {
        first->waiting = &waiting;
        (void)e->ask->block(e, first, ASK_ALL);
        first->waiting = NULL;
    }
    for (uint32_t i = 0; i < n; i++) { /* nobody asks again about the ranks that are stuck for it */
        const struct entry *waits = found[i].waiter ? source_entry(found[i].waiter, found[i].ticket) : NULL;
        if (found[i].kind == BLOCK_DEAD && found[i].rank->said_dead && waits && found[i].comm) {
            comm_mute_at(e, found[i].comm, found[i].waiter, &waits->rec);
            comm_explained(e, found[i].comm);
        }
    }
    roll_rankset_fini(&waiting);
    return first != NULL;
}

bool ended_failed(const struct roll_engine *e, const struct block *b)
{
    uint32_t failed = 0;
    for (uint32_t i = 0; b->kind == BLOCK_FINISHED && i < e->sources; i++) {
        failed += roll_rankset_has(&b->absent, e->source[i]->world) && source_failed(e->source[i]);
    }
    return failed > 0 && failed == roll_rankset_count(&b->absent);
}

/*
 * Between two ranks, one that has ended and one that waits for it, the calls do not say who is wrong. But where ranks
 * wait for the same process at several places, each of these ties says the same: that process has ended too early. It
 * is one cause, and told as one.
 */
bool ended_judge(struct roll_engine *e, struct block *found, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct block *b = &found[i];
        if (b->kind != BLOCK_FINISHED || b->camp != CAMP_TIE || block_known(b) || source_explained(b->waiter) ||
            end_news(e, b) == END_TOLD) {
            continue;
        }
        struct roll_rankset waiting = {0};
        bool several = false; /* at several communicators; on one alone the messages say more: detect_p2p.c */
        for (uint32_t k = 0; k < n; k++) {
            several = several || (found[k].kind == BLOCK_FINISHED && found[k].comm != b->comm &&
                                  roll_rankset_has(&found[k].absent, b->rank->world));
        }
        waiting_for(e, found, n, b, &waiting);
        if (!several || roll_rankset_count(&waiting) < 2) {
            roll_rankset_fini(&waiting);
            continue;
        }
        b->camp = CAMP_MADE;
        b->waiting = &waiting;
        uint64_t said = e->numbers;
        any = e->ask->block(e, b, ASK_END) || any;
        if (e->numbers != said) {
            ended_say(e, &b->absent, source_index(e, b->waiter));
        }
        b->waiting = NULL;
        b->other = NULL;
        for (uint32_t k = 0; k < n; k++) { /* the other places at which the process is missed are explained by it */
            if (found[k].kind == BLOCK_FINISHED && found[k].camp == CAMP_TIE && found[k].rank == b->rank &&
                found[k].comm) {
                comm_explained(e, found[k].comm);
            }
        }
        roll_rankset_fini(&waiting);
    }
    return any;
}

bool left_as_told(const struct roll_engine *e, const struct block *b)
{
    bool left = b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED, any = false;
    for (uint32_t i = 0; left && i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (roll_rankset_has(&b->absent, s->world) && source_newest(e, s->world) == s) {
            any = true;
            left = source_alive(s) ? source_explained(s) || source_gave_up(s) : e->ask->end_is_told(s);
        }
    }
    return left && any;
}
