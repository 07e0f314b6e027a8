/*
 * align.c: ranks disagree at one place of a communicator: who is right, and what did the others do instead?
 *
 * The call that most members made is right. The vote counts when no member that has not come could turn it: when more
 * than half of all members made the same call, or when everybody has come who ever will. Until then nobody is named,
 * and a verdict is only suspected. A verdict about a tie says that it is one. What the others did instead is found by
 * laying their calls against those of the majority (align_lines.c); where the majority's own later calls are not known
 * yet, the period of the communicator's history continues them.
 *
 * A disagreement is a dispute from the moment it is seen until nothing more can be learnt about it. A dispute speaks as
 * soon as one mistake alone is left; else when no next call of its ranks is on its way, or after stall/5, and then the
 * verdict names the mistakes that are open. Later calls and later ranks decide: a better verdict supersedes or confirms
 * the earlier one. A fixed "wait for the stall" was rejected: most mistakes can be known within microseconds of the
 * call. After a verdict the communicator is silent, because what follows is a consequence; unless the mistake may be
 * one over which NCCL does not stumble.
 */
#include "daemon/engine/judge/align.h"

#include <stdlib.h>
#include <string.h>

/*
 * A step looks at every member. One for each call that comes was half a minute of a processor where 16,384 ranks come
 * to a call that one of them has made otherwise; so on a large communicator some come before the next step, or some
 * time passes. No step says less for that: it knows more calls, a moment later.
 */
#define LARGE       256u  /* members */
#define LARGE_PART  64u   /* so many steps while all of them come */
#define LARGE_PAUSE 4000u /* ns for each member, between two steps as time goes by */

void align_drop(struct roll_engine *e, struct comm *c)
{
    struct dispute *d = c->dispute;
    if (!d) {
        return;
    }
    if (c->held >= c->base && c->held < c->high) {
        comm_slot(c, c->held)->held = false;
    }
    for (uint32_t i = 0; i < d->sides; i++) {
        roll_rankset_fini(&d->side[i].minor);
    }
    free(d->ballot);
    free(d);
    c->dispute = NULL;
    c->held = NO_SEQ;
    e->held_comms--;
    comm_stir(c);
}

static void forget_side(struct dispute *d, uint32_t i)
{
    roll_rankset_fini(&d->side[i].minor);
    d->side[i] = d->side[--d->sides];
}

/* Takes up the next disagreement, from this place on, that came up while another one was being judged. */
static void next_case(struct roll_engine *e, struct comm *c, uint32_t from)
{
    for (uint32_t seq = from; seq < c->high && !comm_silent_at(c, seq) && c->held == NO_SEQ && !c->retires; seq++) {
        if (seq >= c->base && comm_slot(c, seq)->variant != 0 && !comm_slot(c, seq)->judged) {
            align_open(e, c, seq);
        }
    }
}

void align_resume(struct roll_engine *e, struct comm *c)
{
    next_case(e, c, c->base); /* a dispute that is being judged goes on, and the others follow it */
}

static void take_up(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    memset(c->dispute->ballot, 0, c->room * sizeof(*c->dispute->ballot));
    c->dispute->state = 0;
    c->held = seq;
    c->held_ns = e->clock;
    align_step(e, c);
}

/* A later place was being judged when the place of this dispute came up, and has another cause: its judgement goes on
 * where it stood. False: there is none. */
static bool take_up_later(struct roll_engine *e, struct comm *c)
{
    struct dispute *d = c->dispute;
    uint32_t place = c->held, later = NO_SEQ;
    for (uint32_t i = 0; d->beside && i < d->sides; i++) {
        later = d->side[i].seq > place && d->side[i].seq < later ? d->side[i].seq : later;
    }
    if (later == NO_SEQ || later < c->base || later >= c->high) {
        return false;
    }
    for (uint32_t i = 0; i < d->sides;) {
        if (d->side[i].seq == place) {
            forget_side(d, i);
        } else {
            i++;
        }
    }
    if (place >= c->base) {
        comm_slot(c, place)->held = false;
        comm_stir(c);
    }
    for (uint32_t seq = place + 1 > c->base ? place + 1 : c->base; seq < later; seq++) {
        if (comm_slot(c, seq)->variant != 0 &&
            !comm_slot(c, seq)->judged) { /* a place between the two comes before the later one */
            comm_slot(c, seq)->held = true;
            d->spoken = false;
            take_up(e, c, seq);
            return true;
        }
    }
    comm_slot(c, later)->judged = false;
    d->beside = false;
    take_up(e, c, later);
    return true;
}

static void close_dispute(struct roll_engine *e, struct comm *c, uint64_t right)
{
    uint32_t seq = c->held;
    if (seq >= c->base && seq < c->high) {
        comm_slot(c, seq)->judged = true;
        comm_slot(c, seq)->sig = right; /* the history remembers the call that was right */
    }
    if (take_up_later(e, c)) {
        comm_advance(e, c);
        return;
    }
    align_drop(e, c);
    comm_advance(e, c);
    next_case(e, c, seq + 1);
}

/* A number of all that a judgement depends on. While the number stays, nothing is judged again. */
static uint64_t state_of(const struct roll_engine *e, const struct comm *c)
{
    uint64_t stall = e->config.stall_ns, age = e->clock - c->held_ns, h = say_key(c->held, e->finishing, c->gone, 0);
    uint64_t stage = age >= stall ? 200 : age >= stall / 5 ? 100 : age >= stall / 100 ? 50 : 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        uint64_t still = s && rank_is_still(e, s), open = s && s->threads > 0 ? s->thread[s->thread_last].group : 0;
        h = say_key(h, m->next < c->held + ALIGN_CALLS ? m->next : NO_SEQ, s && vote_is_over(e, s), still | open << 1);
    }
    return say_key(h, stage, age / (stall / 5 + 1), 0);
}

/* Nothing that may still come changes what has been said. */
static bool is_settled(const struct judge *j, const struct align_guess *guess)
{
    bool open = false, full = j->major.real == ALIGN_CALLS;
    for (uint32_t r = 0; r < j->c->size; r++) {
        bool odd = j->d->ballot[r].in && j->d->ballot[r].sig != j->vote.major;
        open = open || (odd && (guess[r].kind == ALIGN_UNKNOWN || guess[r].open != 0));
        full = full && (!odd || j->c->member[r].next >= j->seq + ALIGN_CALLS);
    }
    return j->e->finishing || (j->vote.camps.may + j->vote.camps.unseen == 0 && (!open || full));
}

/* It was predicted that somebody will be waited for on this communicator: this disagreement is what was meant. */
static void come_true(struct judge *j)
{
    struct block b = {.kind = BLOCK_BLAMED, .comm = j->c, .hard = true};
    b.rank = j->e->source[j->c->member[j->vote.major_rank].source];
    (void)j->e->ask->block(j->e, &b, ASK_ALL);
    comm_mute(j->e, j->c, j->seq);
    close_dispute(j->e, j->c, j->vote.major);
}

/* Finds what each rank that differs did instead. True: enough is known to speak. */
static bool is_ripe(struct judge *j, struct align_guess *guess, struct line *line)
{
    bool patience = j->e->finishing || j->d->spoken || j->age >= j->e->config.stall_ns;
    bool ready = j->vote.decided || patience, dropped = false;
    for (uint32_t r = 0; ready && r < j->c->size; r++) {
        if (j->d->ballot[r].in && j->d->ballot[r].sig != j->vote.major) {
            guess[r] = rank_judge(j, r, line);
            ready = guess[r].kind != ALIGN_UNKNOWN || patience;
            dropped = dropped || guess[r].kind == ALIGN_ZERO;
        }
    }
    /* One rank that has made the call proves that the call of another rank was dropped. The ranks that have not come
     * will wait in the call in a moment, or drop theirs: until then it is not known who is to be named. */
    return ready && (patience || !dropped || j->vote.camps.may == 0 || j->age >= j->e->config.stall_ns / 5);
}

void align_step(struct roll_engine *e, struct comm *c)
{
    struct dispute *d = c->dispute;
    if (!d) {
        return;
    }
    e->looks += c->size;
    d->came = 0;
    d->stepped_ns = e->clock;
    vote_take_ballots(e, c, d);
    uint64_t state = state_of(e, c);
    if (state == d->state) {
        return;
    }
    d->state = state;
    struct judge j;
    if (!vote_take(e, c, &j)) {
        if (d->spoken) {
            align_drop(e, c); /* the log has forgotten the calls, and the verdict stands */
        }
        return;
    }
    if (c->blamed && (j.vote.decided || j.age >= e->config.stall_ns || e->finishing)) {
        come_true(&j);
        return;
    }
    struct align_guess *guess = calloc(c->size, sizeof(*guess)), *copy = calloc(c->size, sizeof(*copy));
    struct line *line = malloc(sizeof(*line));
    if (guess && copy && line && !c->blamed && is_ripe(&j, guess, line)) {
        rank_agree(&j, guess);
        memcpy(copy, guess, c->size * sizeof(*copy));
        align_tell(&j, copy, line);
        d->spoken = true;
        if (c->held >= c->base) {
            /* From here on the slot may get complete, if the mistake hangs nothing. */
            comm_slot(c, c->held)->held = false;
            comm_stir(c);
        }
        if (is_settled(&j, guess)) {
            close_dispute(e, c, j.vote.major);
        } else {
            comm_advance(e, c);
        }
        e->dirty = true; /* the calls behind the slot go on, though no record may come any more */
    }
    free(guess);
    free(copy);
    free(line);
}

void align_arrived(struct roll_engine *e, const struct member *m, const struct entry *entry)
{
    struct comm *c = m->comm;
    if (c->dispute && entry->rec.seq == c->held) {
        c->dispute->ballot[m->rank] = (struct ballot){.sig = match_signature(&entry->rec), .in = true};
    }
    /* Before half of the members have come there is no majority. Ticks look after the places where that stays so, and
     * after those about which something has been said. */
    bool open = c->held >= c->base && comm_slot(c, c->held)->held;
    if (!open || comm_slot(c, c->held)->arrived * 2 <= c->size) {
        return;
    }
    c->dispute->came += entry->rec.seq == c->held; /* what members call next is looked at as time goes by */
    if (c->size < LARGE || c->dispute->came >= c->size / LARGE_PART) {
        align_step(e, c);
    }
}

void align_tick(struct roll_engine *e, struct comm *c)
{
    const struct dispute *d = c->dispute;
    bool soon = d && c->size >= LARGE && d->state != 0 && e->clock - d->stepped_ns < (uint64_t)c->size * LARGE_PAUSE;
    if (!soon || e->finishing) {
        align_step(e, c);
    }
}

/* An earlier disagreement comes up. What is proven about the later one stands, and is forgotten here; what was only
 * suspected was a consequence of the earlier one, whose verdict takes its place. */
static void forget_proven(struct comm *c)
{
    struct dispute *d = c->dispute;
    if (c->held >= c->base && c->held < c->high) {
        comm_slot(c, c->held)->judged = true;
    }
    for (uint32_t i = 0; i < d->sides;) {
        if (d->side[i].certainty == ROLL_PROVEN) {
            forget_side(d, i);
        } else {
            i++;
        }
    }
}

void align_open(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    struct slot *s = comm_slot(c, seq);
    if (s->judged || c->retires) {
        return;
    }
    /*
     * The first disagreement comes first. A later one that was being judged stays held, and is taken up again
     * afterwards. If something has been said about it, it was a consequence of this one, whose verdict takes its place.
     */
    if (!c->dispute) {
        struct dispute *d = calloc(1, sizeof(*d));
        struct ballot *ballot = calloc(c->room, sizeof(*ballot));
        if (!d || !ballot) {
            free(d);
            free(ballot);
            return;
        }
        d->ballot = ballot;
        c->dispute = d;
        e->held_comms++;
    } else if (c->dispute->spoken) {
        forget_proven(c);
    }
    c->dispute->spoken = false;
    s->held = true;
    take_up(e, c, seq);
}

void align_look(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    if (comm_slot(c, seq)->variant != 0 && !comm_silent_at(c, seq) && !c->overflow &&
        (c->held == NO_SEQ || seq < c->held)) {
        align_open(e, c, seq);
    }
}

void align_grouped(struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t ticket)
{
    struct comm *c = m->comm;
    const struct slot *s = comm_slot(c, seq);
    struct finding f = {.comm = c, .seq = seq, .shown = seq, .kind = ALIGN_GROUP, .length = 1, .tie = true};
    c->group_told = true;
    f.minor_source = e->source[m->source];
    f.minor_ticket = ticket;
    f.major_source = e->source[c->member[s->rank].source];
    f.major_ticket = s->ticket - 1;
    (void)roll_rankset_add(&f.minor, f.minor_source->world);
    (void)roll_rankset_add(&f.major, f.major_source->world);
    (void)e->ask->disagree(e, &f);
    roll_rankset_fini(&f.minor);
    roll_rankset_fini(&f.major);
}

void align_withdraw(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    struct slot *s = comm_slot(c, seq);
    if (c->held != seq) {
        s->held = s->held && s->variant != 0;
        comm_stir(c);
        return;
    }
    if (s->variant != 0) {
        c->dispute->state = 0;
        return;
    }
    for (uint32_t i = 0; i < c->dispute->sides; i++) {
        (void)say_withdraw(e, c->dispute->side[i].number, "one of the calls was refused, and no other disagrees");
    }
    align_drop(e, c);
    comm_advance(e, c);
    next_case(e, c, seq + 1);
}
