/*
 * wait_judge.c: the reasons that one walk of the wait graph has found are judged together: which is the cause, which
 * its echo, and who is wrong.
 *
 * One mistake shows at many places: from every rank that waits a path of its own leads to the mistake, over other
 * communicators as well. Therefore to tell each reason as it is met was rejected. The order is this:
 *
 *   1. what is certain by itself: a prediction that has come true, a process that is stopped or dead;
 *   2. calls to which some members can never come (wait_vote.c says who is wrong);
 *   3. circles, those first in which one rank goes another way than all others who can tell (order_vote.c);
 *   4. what is merely quiet, and only where nothing harder was found.
 *
 * What a verdict has explained is a consequence (silence.c), and stays untold.
 */
#include "daemon/engine/judge/wait.h"

#include <stdlib.h>

/* Circles of one run that are put to the vote: one cause seldom makes more, and each costs a look at all logs. */
#define CYCLES_MAX 32u

/* An analysis takes about a tenth of the time until the next one, of a large job too. */
#define WORK_NS       4000u       /* for each rank that the walk has come to; it takes a tenth of that there */
#define PAUSE_MOST_NS 1000000000u /* in the largest jobs it takes more of the time, for the verdict's sake */

/* The waiter has waited long enough for members that may still come and decide the vote. */
static bool is_overdue(const struct roll_engine *e, const struct block *b)
{
    uint64_t since = e->clock;
    for (uint32_t k = 0; k < b->waiter->queues; k++) {
        const struct queue *q = &b->waiter->queue[k];
        since = q->head != 0 && q->since < since ? q->since : since;
    }
    bool all = e->unheard == 0 && (!b->comm || comm_is_heard(e, b->comm));
    return e->finishing || (all && e->clock - since >= e->config.suspect_ns);
}

/* The circle is an echo: one of its ranks is stuck for a reason that has been told, or waits on a silent communicator.
 */
static bool is_echo(const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct entry *entry = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = entry ? source_member(b->step[i].rank, entry->rec.comm) : NULL;
        if (!m || m->comm->muted || source_explained(b->step[i].rank)) {
            return true;
        }
    }
    return false;
}

/* Some rank of the circle waits in the creation of a communicator: then the circle is no matter of messages, whatever
 * the others wait in. */
static bool has_creation(const struct block *b)
{
    bool any = false;
    for (uint32_t i = 0; b->kind == BLOCK_CYCLE && i < b->steps; i++) {
        const struct entry *entry = source_entry(b->step[i].rank, b->step[i].ticket);
        any = any || (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COMM);
    }
    return any;
}

/* Asks the detectors about one reason. Takes *waiting: who waits for it elsewhere as well. True: it has been told. */
static bool ask_for(struct roll_engine *e, struct block *b, struct roll_rankset *waiting)
{
    bool ended = (b->kind == BLOCK_FINISHED || b->kind == BLOCK_LEFT) && b->camp != CAMP_NEVER && b->waiter;
    if (ended) {
        return ended_ask(e, b, waiting);
    }
    waiting_at(e, b, waiting);
    b->waiting = waiting;
    bool told = e->ask->block(e, b, has_creation(b) ? ASK_CREATION : ASK_ALL);
    b->waiting = NULL;
    b->other = NULL;
    roll_rankset_fini(waiting);
    return told;
}

static bool ask(struct roll_engine *e, struct block *b)
{
    struct roll_rankset waiting = {0};
    return ask_for(e, b, &waiting);
}

static bool is_absence(enum block_kind kind)
{
    return kind == BLOCK_FINISHED || kind == BLOCK_GONE || kind == BLOCK_ABORTED;
}

static bool ask_absence(struct roll_engine *e, struct block *b)
{
    const struct entry *waits = b->comm && left_as_told(e, b) ? source_entry(b->waiter, b->ticket) : NULL;
    if (!waits) {
        return ask(e, b);
    }
    comm_mute_at(e, b->comm, b->waiter, &waits->rec);
    comm_explained(e, b->comm);
    return true;
}

/* Judges the calls that some members never will make: first calls that most members have made, then those that few have
 * made, then the ties, then those of which the vote is still open. */
static bool judge_absences(struct roll_engine *e, struct block *found, uint32_t n)
{
    static const enum quorum order[] = {CAMP_MADE, CAMP_NEVER, CAMP_TIE, CAMP_OPEN};
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct comm *c;
        uint32_t seq;
        if (is_absence(found[i].kind)) {
            bool slot = block_slot(&found[i], &c, &seq);
            found[i].camp = slot ? block_camp(e, c, seq, &found[i].beside) : CAMP_TIE;
        }
    }
    for (size_t pass = 0; pass < sizeof(order) / sizeof(order[0]); pass++) {
        any = (order[pass] == CAMP_TIE && ended_judge(e, found, n)) || any;
        for (uint32_t i = 0; i < n; i++) {
            struct block *b = &found[i];
            if (!is_absence(b->kind) || b->camp != order[pass]) {
                continue;
            }
            /* The reason with the largest set of absent ranks comes first: it holds the sets of the others. */
            for (uint32_t k = i + 1; k < n; k++) {
                if (found[k].kind == b->kind && found[k].camp == b->camp &&
                    roll_rankset_count(&found[k].absent) > roll_rankset_count(&b->absent)) {
                    struct block larger = found[k];
                    found[k] = *b;
                    *b = larger;
                }
            }
            any = any || b->camp != CAMP_OPEN;
            if (b->camp == CAMP_TIE && ended_failed(e, b)) {
                b->camp = CAMP_MADE;
                b->beside = false;
            }
            if (!block_known(b) && !source_explained(b->waiter) && (b->camp != CAMP_OPEN || is_overdue(e, b))) {
                any = ask_absence(e, b) || any;
            }
        }
    }
    return any;
}

/* Judges groups of which some hold fewer calls than others: the ranks that made the call stand against those whose
 * group has ended without it. */
static bool judge_short(struct roll_engine *e, struct block *found, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct block *b = &found[i];
        struct comm *c;
        uint32_t seq, made = 0;
        if (b->kind != BLOCK_SHORT || block_known(b) || !block_slot(b, &c, &seq)) {
            continue;
        }
        for (uint32_t r = 0; r < c->size; r++) {
            made += comm_member_issued(&c->member[r], seq);
        }
        uint32_t absent = (uint32_t)roll_rankset_count(&b->absent);
        b->camp = made * 2 > c->size         ? CAMP_MADE
                  : absent * 2 > c->size     ? CAMP_NEVER
                  : made + absent == c->size ? CAMP_TIE
                                             : CAMP_OPEN;
        any = (b->camp != CAMP_OPEN && ask(e, b)) || any;
    }
    return any;
}

/* The reason rests on silence, and not on what the records prove. */
static bool is_soft(const struct block *b)
{
    return b->kind == BLOCK_STUCK || b->kind == BLOCK_BUSY || (b->kind == BLOCK_CYCLE && !b->hard);
}

/* This reason is none of silence, and it has not been told: ranks are stuck in trouble that is known from now on. */
static bool is_open(const struct block *b)
{
    bool told = b->kind == BLOCK_STOPPED || (b->comm && b->comm->muted) || (b->rank && source_explained(b->rank)) ||
                (b->kind == BLOCK_CYCLE && is_echo(b));
    return !is_soft(b) && !told;
}

/* This rank went on for long after all trouble that has been told, by the rank's own clock as well (its records may
 * come late), and is not stuck in that trouble. */
static bool went_on(const struct roll_engine *e, const struct source *s)
{
    uint64_t long_after = e->config.suspect_ns;
    return s->seen >= e->trouble_ns + long_after && s->last_line >= e->trouble_wall + long_after &&
           !source_explained(s);
}

/*
 * A rank that is merely quiet, while others are stuck for a known reason, may be quiet for the same reason. It is not
 * where all ranks concerned went on for long after that reason had become known.
 */
static bool is_apart(const struct roll_engine *e, const struct block *b)
{
    bool apart = went_on(e, b->rank) && (!b->waiter || went_on(e, b->waiter));
    for (uint32_t i = 0; b->kind == BLOCK_CYCLE && i < b->steps; i++) {
        apart = apart && went_on(e, b->step[i].rank);
    }
    for (uint32_t i = 0; i < e->sources && apart; i++) {
        apart = !roll_rankset_has(&b->absent, e->source[i]->world) || !source_alive(e->source[i]) ||
                went_on(e, e->source[i]);
    }
    return apart;
}

/* Moves the reasons that rest on silence and may be told all the same (is_apart) to the end, and returns how many they
 * are. */
static uint32_t keep_apart(const struct roll_engine *e, struct block *found, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = n; i-- > 0;) {
        if (is_soft(&found[i]) && is_apart(e, &found[i])) {
            struct block b = found[i];
            kept++;
            found[i] = found[n - kept];
            found[n - kept] = b;
        }
    }
    return kept;
}

/*
 * Some rank that can tell who is wrong in a circle has not come yet: the records of its node come late, or the rank is
 * still at work elsewhere. A circle does not go away, so its judgement waits for that rank, as a vote on a call does.
 */
static bool awaits_votes(const struct roll_engine *e, const struct block *b)
{
    uint64_t closed = 0;
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *s = b->step[i].rank;
        uint64_t since = s->init != 0 ? s->init_since : e->clock;
        for (uint32_t k = 0; k < s->queues; k++) {
            since = s->queue[k].head != 0 && s->queue[k].since < since ? s->queue[k].since : since;
        }
        closed = since > closed ? since : closed;
    }
    return b->awaits && !b->decided && !e->finishing && e->clock - closed < e->config.suspect_ns;
}

/* Judges the circles that are hard, or those that are soft. True: there are some. */
static bool judge_cycles(struct roll_engine *e, struct block *found, uint32_t n, bool hard)
{
    uint32_t votes = 0;
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct block *b = &found[i];
        if (b->kind == BLOCK_CYCLE && b->hard == hard && !is_echo(b) && votes++ < CYCLES_MAX) {
            b->decided = order_vote(e, b, &b->odd, &b->odd_at, &b->awaits);
        }
    }
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < n; i++) {
            struct block *b = &found[i];
            if (b->kind == BLOCK_CYCLE && b->hard == hard && b->decided == (pass == 0)) {
                any = true;
                if (!is_echo(b) && !awaits_votes(e, b)) {
                    (void)ask(e, b);
                }
            }
        }
    }
    return any;
}

/* Both wait on one communicator, in the same backward. */
static bool is_alike(const struct block *a, const struct block *b)
{
    const struct entry *x = a->waiter ? source_entry(a->waiter, a->ticket) : NULL;
    const struct entry *y = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    return a->comm == b->comm && a->hard == b->hard && x && y && x->rec.step == y->rec.step &&
           x->rec.layer == y->rec.layer && x->rec.microbatch == y->rec.microbatch;
}

/* Several ranks have left one backward, each before messages of its own: they are told together, with all who wait for
 * them. Where one of them proves it and another does not, each is told by itself. */
static void add_alike(const struct roll_engine *e, struct block *b, struct block *found, uint32_t n,
                      struct roll_rankset *waiting)
{
    for (uint32_t k = 0; k < n; k++) {
        if (&found[k] != b && found[k].due && is_alike(b, &found[k])) {
            found[k].due = false;
            (void)roll_rankset_union(&b->absent, &found[k].absent);
            waiting_at(e, &found[k], waiting);
        }
    }
}

/* Judges the ranks that have left a backward. Which of them are to be told is settled first: the first verdict silences
 * the communicator, and another backward of it is none of its echoes. True: there are some. */
static bool judge_passed(struct roll_engine *e, struct block *found, uint32_t n)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        found[i].due = found[i].kind == BLOCK_PASSED && !block_known(&found[i]);
        any = any || found[i].kind == BLOCK_PASSED;
    }
    for (uint32_t i = 0; any && i < n; i++) {
        struct block *b = &found[i];
        if (b->due) {
            struct roll_rankset waiting = {0};
            b->due = false;
            add_alike(e, b, found, n, &waiting);
            (void)ask_for(e, b, &waiting);
        }
    }
    return any;
}

/* Judges the reasons of one kind. True: there are some. */
static bool judge_kind(struct roll_engine *e, struct block *found, uint32_t n, enum block_kind kind)
{
    bool any = false;
    for (uint32_t i = 0; i < n; i++) {
        struct block *b = &found[i];
        if (b->kind != kind) {
            continue;
        }
        any = true;
        if (!block_known(b)) {
            struct roll_rankset waiting = {0};
            if (kind == BLOCK_BUSY || kind == BLOCK_STUCK || kind == BLOCK_STOPPED) {
                waiting_for(e, found, n, b, &waiting);
            }
            (void)ask_for(e, b, &waiting);
        }
    }
    return any;
}

static void mark(struct source *s, bool passes)
{
    *(passes ? &s->init_dark : &s->init_known) = s->init;
}

/* These ranks wait, in a creation or beside it, for a reason that is known: detect_init.c need not look for one. That a
 * rank is not heard is none any more when it is heard again; where it was set aside, it stays so. */
static void mark_known(struct block *b)
{
    bool passes = b->kind == BLOCK_UNHEARD && !b->rank->aside && !b->rank->no_room;
    for (uint32_t i = 0; i < b->steps; i++) {
        mark(b->step[i].rank, passes);
    }
    mark(b->rank, passes);
}

/*
 * Marks the ranks that wait for a reason that has been told: when a watchdog ends one of them now, that is a
 * consequence (detect_process.c). deaths_only: all that is known is that some ranks have died; that excuses those who
 * wait, and not the dead.
 */
static void excuse_waiters(struct roll_engine *e, bool deaths_only)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        for (uint32_t k = 0; k < s->queues && !(deaths_only && s->proc == ROLL_PROC_DEAD); k++) {
            const struct queue *q = &s->queue[k];
            bool held = source_held_by(e, s, q);
            if (q->head != 0 && q->head == s->excuse && !held) {
                s->excuse = 0; /* the rank goes on beside the trouble */
            }
            s->excuse = held && waitgraph_old(e, q) ? q->head : s->excuse;
        }
    }
}

/* Judges all reasons that one walk has found, in the order that stands at the head of this file. */
static void waits_judge(struct roll_engine *e, struct block *found, uint32_t n)
{
    uint64_t before = e->numbers, said = before;
    bool explained = judge_kind(e, found, n, BLOCK_BLAMED);
    for (uint32_t i = 0; i < n; i++) {
        explained = explained || found[i].kind == BLOCK_KNOWN;
    }
    explained = judge_kind(e, found, n, BLOCK_STOPPED) || explained;
    bool other = explained || e->numbers != said;
    bool deaths = dead_judge(e, found, n);
    said = e->numbers;
    explained = false; /* from here on: by anything but deaths */
    explained = judge_passed(e, found, n) || explained;
    explained = judge_absences(e, found, n) || explained;
    explained = judge_short(e, found, n) || explained;
    explained = judge_cycles(e, found, n, true) || explained;
    other = explained || other;
    explained = other || deaths;
    if (!explained) { /* the weakest of what is proven: a wait that looks like this may have another reason */
        other = explained = judge_kind(e, found, n, BLOCK_LEFT);
    }
    explained = judge_kind(e, found, n, BLOCK_UNHEARD) || explained;
    bool open = false;
    for (uint32_t i = 0; i < n; i++) {
        open = open || is_open(&found[i]);
    }
    if (open || e->numbers != before) {
        silence_trouble(e);
    }
    uint32_t quiet = explained ? keep_apart(e, found, n) : n;
    if (!e->finishing && quiet > 0) {
        (void)judge_cycles(e, found + n - quiet, quiet, false);
        (void)judge_kind(e, found + n - quiet, quiet, BLOCK_STUCK);
        (void)judge_kind(e, found + n - quiet, quiet, BLOCK_BUSY);
    }
    for (uint32_t i = 0; i < n; i++) {
        bool soft = found[i].kind == BLOCK_STUCK || found[i].kind == BLOCK_BUSY;
        if (!soft && (found[i].kind != BLOCK_CYCLE || found[i].hard || !explained)) {
            mark_known(&found[i]);
        }
        roll_rankset_fini(&found[i].odd);
    }
    if (explained || e->numbers != said) {
        excuse_waiters(e, deaths && !other && e->numbers == said);
    }
}

/* The time between two analyses of a job that stands: each looks at all ranks that wait, and nothing is new for long.
 */
static uint64_t pause_of(const struct roll_engine *e)
{
    uint64_t least = e->config.stall_ns / 8, pause = e->walk_work * WORK_NS;
    pause = pause < PAUSE_MOST_NS ? pause : PAUSE_MOST_NS;
    return pause > least ? pause : least;
}

void waits_look(struct roll_engine *e)
{
    bool is_early = !e->finishing && e->clock - e->stall_run_ns < pause_of(e);
    bool due = !is_early && waitgraph_due(e);
    if (e->dirty && due && (e->finishing || e->clock - e->swept_ns >= e->config.stall_ns)) {
        e->swept_ns = e->clock;
        sweep(e);
    } else if (e->dirty) {
        sweep_stirred(e);
        e->dirty = false;
    }
    doubts_look(e);
    if (!due) {
        return;
    }
    struct block *found;
    uint32_t founds;
    if (waitgraph_walk(e, &found, &founds)) {
        e->stall_run_ns = e->clock;
        waits_judge(e, found, founds);
    }
    for (uint32_t i = 0; i < founds; i++) {
        roll_rankset_fini(&found[i].absent);
    }
    free(found);
}

void words_soft(struct words *w, const struct roll_engine *e, const struct block *b)
{
    for (uint32_t i = 0; i < b->steps; i++) {
        const struct source *s = b->step[i].rank;
        for (uint32_t t = 0; t < s->threads; t++) {
            const struct entry *in = s->thread[t].inside ? source_entry(s, s->thread[t].inside - 1) : NULL;
            if (s->thread[t].acts && in && source_wait(e, s, &s->thread[t], &in->rec).waits && s->thread[t].polls) {
                words_add(w, " Suspected: what they have called is proven, but not that rank %u stays in ", s->world);
                words_call(w, &in->rec);
                words_add(w, ", in which it made no other recorded call.");
                return;
            }
        }
    }
    words_add(w, " Suspected: at least one of them has only been silent, and was not seen to wait.");
}
