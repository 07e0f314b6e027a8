/*
 * doubt.c: a suspicion that has turned out otherwise is withdrawn.
 *
 * A rank that peers waited for has come after all, or a circle has come undone: the call on which the suspicion rested
 * is complete, or all who were said to be busy elsewhere have made it, and it is not complete for another reason. The
 * withdrawal says so, the communicators that were silent because of it are listened to again, and the rank is given
 * twice the time that it took before it is suspected again on the same communicator. The list of open suspicions is
 * short, and a suspicion for which there is no room stays as it was said: a job with more of them at once has other
 * trouble. To withdraw nothing was rejected: a reader would take the suspicion for what still holds.
 *
 * A circle was suspected because a rank of it was merely quiet. When its ranks have made more calls and stand still
 * again it is looked at again: its communicators are listened to, and what is found there takes its place, be it that
 * the circle is certain now, or that calls differ. To withdraw it first was rejected: mostly it is right.
 */
#include "daemon/engine/judge/wait.h"

#include <stdio.h>
#include <stdlib.h>

#define DOUBTS_MAX 64u

struct doubt {
    uint64_t number;             /* the verdict that suspects */
    const struct source *waiter; /* a rank that waits */
    uint64_t ticket;             /* the call in which the waiter waits */
    struct comm *comm;           /* the communicator of that call */
    struct roll_rankset absent;  /* the ranks of the job for which the waiter waits */
    bool elsewhere;              /* it says that these are busy or stuck elsewhere */
    const struct source *alone;  /* the only one of them; NULL: there are several, or none is elsewhere */
    uint64_t from;               /* the ticket of its next record when it was suspected */
    bool open;                   /* these never make the call, and too few others have said whether it was to be made */
    uint64_t looked;             /* patience clock at which it was last asked who has, where it is open */
    uint32_t come;               /* of the members of the communicator before this one all of them have come */
    uint64_t since;              /* patience clock at which something had last come from the rank that is waited for */
    uint64_t said;               /* and that at which it was suspected */
    uint64_t left;               /* that at which all who are waited for had come or left, plus 1; 0: they have not */
    uint64_t asked;              /* that at which it was last asked whether they have */
    struct place_in *circle;     /* the steps of a circle; owned; NULL: it is none */
    uint32_t steps;
    uint64_t made;       /* what circle_made said when the circle was last looked at */
    bool again;          /* the circle is looked at again */
    uint64_t again_calm; /* clock of suspicion: since when, or since they went on last */
    uint64_t rest;       /* patience clock: until then a circle that was found again is not looked at once more */
    uint64_t pause;      /* and how long that was */
    struct doubt *next;
};

/* A rank of a circle, and the call in which it waits. */
struct place_in {
    const struct source *rank;
    const struct member *member; /* on the communicator of that call */
    uint64_t ticket;
};

/* This is another number when a rank of the circle has made a record since that is no poll, also of a wait: a rank that
 * was quiet may wait now. */
static uint64_t circle_made(const struct doubt *d)
{
    uint64_t made = 0;
    for (uint32_t i = 0; i < d->steps; i++) {
        made += d->circle[i].rank->last_line;
    }
    return made;
}

/* Without memory, or without the record of a call, the circle stays as it was said. */
static void keep_circle(struct doubt *d, const struct block *b)
{
    d->circle = b->kind == BLOCK_CYCLE ? calloc(b->steps, sizeof(*d->circle)) : NULL;
    d->steps = d->circle ? b->steps : 0;
    for (uint32_t i = 0; i < d->steps; i++) {
        const struct entry *at = source_entry(b->step[i].rank, b->step[i].ticket);
        const struct member *m = at ? source_member(b->step[i].rank, at->rec.comm) : NULL;
        d->circle[i] = (struct place_in){b->step[i].rank, m, b->step[i].ticket};
        d->steps = m ? d->steps : 0;
    }
    d->made = circle_made(d);
}

void doubt_call(struct roll_engine *e, uint64_t number, uint64_t mutes, const struct source *waiter, uint64_t ticket,
                const struct source *absent, struct comm *comm)
{
    struct block b = {.rank = e->source[source_index(e, absent)],
                      .waiter = e->source[source_index(e, waiter)],
                      .ticket = ticket,
                      .comm = comm};
    (void)roll_rankset_add(&b.absent, absent->world);
    doubt_add(e, number, mutes, &b);
    roll_rankset_fini(&b.absent);
}

void doubt_add(struct roll_engine *e, uint64_t number, uint64_t mutes, const struct block *b)
{
    uint32_t n = 0;
    struct doubt **at = &e->doubt;
    while (*at && n < DOUBTS_MAX) {
        at = &(*at)->next;
        n++;
    }
    struct doubt *d = n < DOUBTS_MAX ? calloc(1, sizeof(*d)) : NULL;
    if (!d) {
        return;
    }
    *d = (struct doubt){.number = number,
                        .waiter = b->waiter,
                        .ticket = b->ticket,
                        .since = b->rank->seen,
                        .said = e->clock,
                        .comm = b->comm};
    d->elsewhere = b->kind == BLOCK_BUSY || b->kind == BLOCK_STUCK;
    d->alone = d->elsewhere && roll_rankset_count(&b->absent) == 1 ? b->rank : NULL;
    d->from = b->rank->next;
    d->open = (b->kind == BLOCK_GONE || b->kind == BLOCK_ABORTED || b->kind == BLOCK_FINISHED) && b->camp == CAMP_OPEN;
    (void)roll_rankset_copy(&d->absent, &b->absent);
    keep_circle(d, b);
    *at = d;
    comms_doubtful(e, mutes, number);
}

/* Remembers how late the suspected ranks came: a rank that always takes so long is not suspected for it again. */
static void learn(struct roll_engine *e, const struct doubt *d)
{
    uint64_t late = e->clock - d->since;
    for (uint32_t r = 0; r < d->comm->size; r++) {
        struct member *m = &d->comm->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        if (s && roll_rankset_has(&d->absent, s->world) && late > m->late_ns) {
            m->late_ns = late;
        }
    }
}

/* The member has made its side of the call, and not only within a group that has not been ended. */
static bool has_made(const struct roll_engine *e, const struct member *m, uint64_t ticket)
{
    const struct entry *own = ticket == NO_TICKET ? NULL : source_entry(e->source[m->source], ticket);
    return !own || !source_group_open(e->source[m->source], &own->rec);
}

/* Since the suspicion the member has made its side of this call, or of one behind it, and NCCL has refused it, so that
 * it does not count: the rank is elsewhere no more, and what keeps the waiter is the refusal. */
static bool was_refused(const struct doubt *d, const struct source *s, const struct member *m,
                        const struct roll_record *call)
{
    const struct roll_record *rec = &s->failed;
    enum roll_op_class class = roll_op_class(call->op);
    const struct member *w = source_member(d->waiter, call->comm);
    bool there = s->failed_clock >= d->said && rec->op != ROLL_OP_NONE && roll_op_class(rec->op) == class &&
                 source_member(s, rec->comm) == m && rec->seq >= call->seq;
    return there && (class != ROLL_CLASS_P2P || (w && rec->peer == w->rank && rec->op != call->op));
}

/* All who were said to be elsewhere have made the call. It is asked in each tick, and mostly the first one of them has
 * not, so it goes on where it has come to. */
static bool have_come(const struct roll_engine *e, struct doubt *d, const struct entry *entry)
{
    enum roll_op_class class = roll_op_class(entry->rec.op);
    if (d->elsewhere && class == ROLL_CLASS_P2P && entry->pair) {
        unsigned other = !p2p_side(&entry->rec);
        const struct member *m = &d->comm->member[entry->pair->end[other]];
        return m->source != NO_SOURCE &&
               (was_refused(d, e->source[m->source], m, &entry->rec) ||
                (p2p_complete(entry) && has_made(e, m, p2p_node(entry->pair, entry->index)->ticket[other])));
    }
    if (!d->elsewhere || class != ROLL_CLASS_COLL) {
        return false;
    }
    for (; d->come < d->comm->size; d->come++) {
        const struct member *m = &d->comm->member[d->come];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        if (s && roll_rankset_has(&d->absent, s->world) && !was_refused(d, s, m, &entry->rec) &&
            (!comm_member_issued(m, entry->rec.seq) || !has_made(e, m, source_ticket_of(s, m, entry->rec.seq)))) {
            return false;
        }
    }
    return true;
}

/* All who were said to be elsewhere have made the collective or left the communicator, and some have left. */
static bool have_left(const struct roll_engine *e, const struct doubt *d, const struct entry *entry)
{
    bool coll = entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL, some = false;
    for (uint32_t r = 0; d->elsewhere && r < d->comm->size; r++) {
        const struct member *m = &d->comm->member[r];
        if (m->source == NO_SOURCE || !roll_rankset_has(&d->absent, e->source[m->source]->world)) {
            continue;
        }
        bool left = m->gone || m->ended != 0;
        some = some || left;
        if (!left && !(coll && comm_member_issued(m, entry->rec.seq))) {
            return false;
        }
    }
    return some;
}

/* The same, and what is told of those who have left has had the time to take the place of the suspicion. All members
 * are gone through, so it is asked now and then. */
static bool are_over(const struct roll_engine *e, struct doubt *d, const struct entry *entry)
{
    if (e->clock - d->asked >= e->config.stall_ns) {
        d->asked = e->clock;
        d->left = !have_left(e, d, entry) ? 0 : d->left != 0 ? d->left : e->clock + 1;
    }
    return d->left != 0 && e->clock + 1 - d->left >= 2 * e->config.suspect_ns;
}

/* The only one who was said to be elsewhere has made calls since, beside the one that is waited for, and its host
 * waits: why it does, and who left out what, is another matter. Where it stays elsewhere it is told again, as it has
 * called. */
static bool waits_itself(const struct roll_engine *e, const struct doubt *d)
{
    const struct source *s = d->alone;
    return s && source_alive(s) && roll_seal_ticket(s->last.seal) >= d->from && source_pending(s) &&
           source_blocked(e, s);
}

/* The vote on the call was open, and is not any more: the walk comes to it again, and what it finds is certain. Asking
 * is dear where there are many communicators, so it is asked now and then. */
static void look_at_vote(struct roll_engine *e, struct doubt *d, const struct entry *entry)
{
    bool beside;
    if (!d->open || !entry || roll_op_class(entry->rec.op) != ROLL_CLASS_COLL ||
        e->clock - d->looked < e->config.stall_ns) {
        return;
    }
    d->looked = e->clock;
    d->open = block_camp(e, d->comm, entry->rec.seq, &beside) == CAMP_OPEN;
    if (!d->open) {
        comms_taken_back(e, d->number);
    }
}

/* The two wait in one call: the same message, or one collective. */
static bool is_same_call(const struct doubt *d, const struct block *b)
{
    const struct entry *one = source_entry(d->waiter, d->ticket), *two = source_entry(b->waiter, b->ticket);
    bool both = one && two && !one->pair && !two->pair && one->rec.seq == two->rec.seq &&
                roll_op_class(one->rec.op) == ROLL_CLASS_COLL && roll_op_class(two->rec.op) == ROLL_CLASS_COLL;
    return d->comm == b->comm && (both || (d->waiter == b->waiter && d->ticket == b->ticket));
}

uint64_t doubt_of(const struct roll_engine *e, const struct block *b)
{
    uint64_t number = 0;
    for (const struct doubt *d = e->doubt; d && number == 0; d = d->next) {
        bool same = d->elsewhere && is_same_call(d, b) && roll_rankset_equal(&d->absent, &b->absent);
        number = same && say_stands(e, d->number) ? d->number : 0;
    }
    return number;
}

/* Some call of the circle is complete, in good order: the rank in it waits no more. */
static bool is_undone(const struct doubt *d)
{
    bool undone = false;
    for (uint32_t i = 0; i < d->steps && !undone; i++) {
        const struct source *s = d->circle[i].rank;
        const struct member *m = d->circle[i].member;
        const struct entry *at = source_entry(s, d->circle[i].ticket);
        bool call = at && (at->pair || roll_op_class(at->rec.op) == ROLL_CLASS_COLL);
        bool judged = call && m->ended == 0 && !m->comm->aborted && !m->comm->overflow && source_alive(s);
        undone = judged && entry_complete(s, at);
    }
    return undone;
}

/* Some rank of the circle has given up, as a watchdog makes it do: what it does since is a consequence. */
static bool is_given_up(const struct doubt *d)
{
    bool up = false;
    for (uint32_t i = 0; i < d->steps && !up; i++) {
        const struct member *m = d->circle[i].member;
        up = !source_alive(d->circle[i].rank) || m->ended != 0 || m->gone || m->comm->aborted;
    }
    return up;
}

/* Each rank of the circle waits, or has been quiet for so long that it may be taken for one that does. */
static bool stands_still(const struct roll_engine *e, const struct doubt *d)
{
    bool still = true;
    for (uint32_t i = 0; i < d->steps && still; i++) {
        const struct source *s = d->circle[i].rank;
        still = !source_is_dark(s) && (source_blocked(e, s) || source_quiet(e, s, e->config.suspect_ns));
    }
    return still;
}

/* The second look ends, and the suspicion stays as it was said. */
static void look_no_more(struct roll_engine *e, struct doubt *d)
{
    d->again = false;
    comms_decided(e, d->number);
}

/* Where ranks of the circle have gone on and stand still again it is looked at again from now on. While they go on it
 * is not: a rank that gives up meanwhile does so because of the circle, which nobody would find then. */
static void look_at_circle(struct roll_engine *e, struct doubt *d)
{
    uint64_t made = circle_made(d);
    bool news = made != d->made, up = d->circle && is_given_up(d);
    if (d->again && up) {
        look_no_more(e, d);
    }
    if (d->again && (news || e->unheard > 0)) {
        d->made = made;
        d->again_calm = e->calm;
    }
    if (!d->again && news && !up && !e->finishing && e->clock >= d->rest && stands_still(e, d)) {
        d->made = made;
        d->again = true;
        d->again_calm = e->calm;
        comms_doubted(e, d->number);
    }
}

/* The ranks of the block wait in the very calls of the circle. */
static bool is_same_circle(const struct doubt *d, const struct block *b)
{
    bool same = d->steps == b->steps;
    for (uint32_t i = 0; i < d->steps && same; i++) {
        bool found = false;
        for (uint32_t k = 0; k < b->steps && !found; k++) {
            found = d->circle[i].rank == b->step[k].rank && d->circle[i].ticket == b->step[k].ticket;
        }
        same = found;
    }
    return same;
}

bool doubt_found_again(struct roll_engine *e, uint64_t mutes, const struct block *b)
{
    for (struct doubt *d = e->doubt; d; d = d->next) {
        if (d->again && say_stands(e, d->number) && is_same_circle(d, b)) {
            look_no_more(e, d);
            comms_doubtful(e, mutes, d->number);
            d->pause = d->pause == 0 ? e->config.stall_ns : 2 * d->pause;
            d->rest =
                e->clock + d->pause; /* a thread that copies beside the one that waits has it looked at less often */
            return true;
        }
    }
    return false;
}

/* What came of the second look at a circle. True: the suspicion is over. */
static bool circle_is_over(struct roll_engine *e, const struct doubt *d)
{
    bool over = d->circle && !say_stands(e, d->number); /* something has taken its place */
    if (!over && d->again && e->calm - d->again_calm >= 2 * e->config.suspect_ns) {
        over = say_withdraw(e, d->number, "its ranks have gone on since, and it was not found again");
    }
    return over;
}

/* The entry of a suspicion that is over leaves the list. */
static void doubt_remove(struct roll_engine *e, struct doubt **at)
{
    struct doubt *d = *at;
    if (d->again) {
        comms_decided(e, d->number);
    }
    *at = d->next;
    roll_rankset_fini(&d->absent);
    free(d->circle);
    free(d);
}

void doubts_look(struct roll_engine *e)
{
    for (struct doubt **at = &e->doubt; *at;) {
        struct doubt *d = *at;
        const struct entry *entry = source_entry(d->waiter, d->ticket);
        look_at_vote(e, d, entry);
        if (circle_is_over(e, d)) {
            doubt_remove(e, at);
            continue;
        }
        bool complete = !entry || entry_complete(d->waiter, entry) || is_undone(d);
        bool come = entry && have_come(e, d, entry);
        bool over = !come && !complete && are_over(e, d, entry);
        bool beside = over || (!come && !complete && waits_itself(e, d));
        /* A call for which nobody waits any more counts as complete, and says nothing about the suspicion; who is said
         * to be elsewhere may come all the same. */
        bool dead = !source_alive(d->waiter);
        if (!come && !beside && (!complete || (entry && dead && d->elsewhere))) {
            look_at_circle(e, d);
            at = &d->next;
            continue;
        }
        const struct member *m = entry ? source_member(d->waiter, entry->rec.comm) : NULL;
        bool given_up = m && (m->ended != 0 || m->comm->aborted || m->comm->overflow);
        char why[96];
        snprintf(why, sizeof(why),
                 over     ? "who was waited for has left the communicator"
                 : beside ? "the rank has gone on, and waits itself"
                          : "the call was %s after all, %.1f s later",
                 come && !(complete && !dead) ? "made" : "completed", (double)(e->clock - d->since) / 1e9);
        if ((come || !dead) && !given_up && say_withdraw(e, d->number, why)) {
            if (!beside) {
                learn(e, d);
            }
            comms_taken_back(e, d->number);
        }
        doubt_remove(e, at);
    }
}

void doubts_free(struct roll_engine *e)
{
    while (e->doubt) {
        doubt_remove(e, &e->doubt);
    }
}
