/*
 * align.c: ranks disagree at one place of a communicator: who is right, and what did the others do instead?
 *
 * Right is what most members called. A vote counts when no member that has not come could turn it: when more than half
 * of all members made the same call, or when everybody has come who ever will. Until then nobody is named, and what is
 * said is suspected. A tie is said to be one. What the others did instead is found by laying their calls against the
 * majority's (align_lines.c); where the majority's own later calls are not known yet, the period of the communicator's
 * history continues them.
 *
 * A disagreement is a dispute from the moment it is seen until nothing can be learnt about it any more. It speaks as
 * soon as one mistake alone is left; else when no next call of its ranks is on its way, or after stall/5, and then
 * names the mistakes that are open. Later calls and later ranks decide: what was said is superseded or confirmed by a
 * better verdict. A fixed "wait for the stall" was rejected: most mistakes can be known within microseconds of the
 * call. After a verdict the communicator is silent (unless the mistake may be one that NCCL does not stumble over):
 * what follows is consequence.
 */
#include "daemon/engine/judge/align.h"

#include <stdlib.h>
#include <string.h>

#define PERIOD_MAX    512u
#define DISPUTE_SIDES 8u
#define ALIGN_MOMENT  20u /* a part of the stall time: so long without news, and no call is on its way */

/* What one member called at the place. Kept here, because the slot is used again when a mistake hangs nothing. */
struct ballot {
    uint64_t sig;
    bool in;
};

/* What has been said about some of the ranks. */
struct told_side {
    uint64_t number, sig, said_ns;
    enum align_kind kind;
    uint32_t seq, length, minors; /* seq: another place than the one that is judged, where that came up later */
    enum roll_certainty certainty;
    struct roll_rankset minor;
    bool named; /* as culprits */
    bool used;  /* in this round */
};

struct dispute {
    struct ballot *ballot; /* by rank; owned */
    uint64_t state;        /* of what is known, when it was judged last */
    bool spoken;
    struct told_side side[DISPUTE_SIDES];
    uint32_t sides;
    bool beside; /* some of them are about a later place, and stand */
};

struct vote {
    uint64_t major; /* signature */
    uint32_t majors, second;
    bool named;   /* no one who has not come could turn it */
    bool decided; /* named, or a tie that stays one */
    bool tie;
    uint32_t major_rank; /* the majority member that has gone furthest */
    struct camps camps;
};

struct judge {
    struct roll_engine *e;
    struct comm *c;
    struct dispute *d;
    uint32_t seq;
    struct vote vote;
    struct line major;
    bool tmpl, tmpl_major; /* the history has a period; it continues with the majority's call */
    uint64_t age;
};

/* --- votes --- */

static bool voted(const struct comm *c, uint32_t rank, uint32_t seq)
{
    const struct member *m = &c->member[rank];
    return m->next > seq && m->from <= seq && m->source != NO_SOURCE;
}

/* What it left has been read by now: its records may come a moment after its end is known. */
static bool is_over(const struct roll_engine *e, const struct source *s)
{
    bool ended = s->proc == ROLL_PROC_FINISHED || s->proc == ROLL_PROC_DEAD;
    return ended && (e->finishing || e->clock - s->proc_ns >= e->config.stall_ns / 5);
}

void vote_absent(const struct roll_engine *e, const struct comm *c, uint32_t seq, struct camps *out)
{
    *out = (struct camps){.made = 0};
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        if (voted(c, r, seq)) {
            out->made++;
        } else if (!s || m->next > seq) {
            out->unseen++;
        } else if (m->gone || m->ended || is_over(e, s)) {
            out->never++;
        } else {
            out->may++;
        }
    }
}

static uint64_t sig_of_rank(const struct roll_engine *e, const struct slot *s, uint32_t rank)
{
    for (uint32_t v = s->variant; v != 0; v = e->variant[v - 1].next) {
        if (e->variant[v - 1].rank == rank) {
            return e->variant[v - 1].sig;
        }
    }
    return s->sig;
}

/* All have come before a slot is complete, so the ballots are whole before it is used again. */
static void take_ballots(const struct roll_engine *e, const struct comm *c, struct dispute *d)
{
    for (uint32_t r = 0; c->held >= c->base && r < c->size; r++) {
        if (voted(c, r, c->held)) {
            d->ballot[r] = (struct ballot){.sig = sig_of_rank(e, comm_slot(c, c->held), r), .in = true};
        } else {
            d->ballot[r].in = false;
        }
    }
}

static uint32_t votes_for(const struct comm *c, const struct dispute *d, uint64_t sig)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        n += d->ballot[r].in && d->ballot[r].sig == sig;
    }
    return n;
}

/* Only few different calls meet: each is counted when it is met first. */
static void count_votes(const struct judge *j, struct vote *out)
{
    const struct dispute *d = j->d;
    uint64_t last = 0;
    for (uint32_t r = 0; r < j->c->size; r++) {
        bool met = !d->ballot[r].in || (out->majors > 0 && d->ballot[r].sig == out->major) || d->ballot[r].sig == last;
        last = d->ballot[r].in ? d->ballot[r].sig : last;
        uint32_t n = met ? 0 : votes_for(j->c, d, d->ballot[r].sig);
        if (n > out->majors) {
            out->second = out->majors;
            out->majors = n;
            out->major = d->ballot[r].sig;
        } else if (n > out->second) {
            out->second = n;
        }
    }
}

static void find_furthest(const struct judge *j, struct vote *v)
{
    uint32_t best = 0;
    v->major_rank = NO_SEQ;
    for (uint32_t r = 0; r < j->c->size; r++) {
        const struct member *m = &j->c->member[r];
        if (j->d->ballot[r].in && j->d->ballot[r].sig == v->major && m->next > best) {
            best = m->next;
            v->major_rank = r;
        }
    }
}

static void take_vote(struct judge *j)
{
    struct vote *v = &j->vote;
    vote_absent(j->e, j->c, j->seq, &v->camps);
    count_votes(j, v);
    /* Whoever stays away for good has not made the majority's call either. */
    uint32_t second = v->camps.never > v->second ? v->camps.never : v->second;
    uint32_t open = v->camps.may + v->camps.unseen;
    v->named = v->majors > second + open;
    v->decided = v->named || open == 0;
    v->tie = v->majors <= second;
    find_furthest(j, v);
}

/* The ranks that have not come are stuck elsewhere: they will not come by themselves. */
static bool rest_is_stuck(const struct judge *j)
{
    for (uint32_t r = 0; r < j->c->size; r++) {
        const struct member *m = &j->c->member[r];
        bool away = !voted(j->c, r, j->seq);
        if (away && (m->source == NO_SOURCE || m->next > j->seq || !source_blocked(j->e, j->e->source[m->source]))) {
            return false;
        }
    }
    return true;
}

/* --- the history --- */

/* The smallest period with which the history before seq repeats at least twice; 0 = none. */
static uint32_t find_period(const struct comm *c, uint32_t seq)
{
    uint32_t low = c->high > c->slot_mask + 1 ? c->high - c->slot_mask - 1 : 0;
    while (low < seq && comm_slot(c, low)->ticket == 0) {
        low++;
    }
    uint32_t length = seq > low ? seq - low : 0;
    for (uint32_t p = 1; p <= PERIOD_MAX && p * 2 <= length; p++) {
        uint32_t need = p * 2 > length - p ? length - p : p * 2, same = 0;
        while (same < need && comm_slot(c, seq - 1 - same)->sig == comm_slot(c, seq - 1 - same - p)->sig) {
            same++;
        }
        if (same == need && need >= p) {
            return p;
        }
    }
    return 0;
}

static const struct line_call *called_at(const struct line *line, uint32_t seq)
{
    for (uint32_t i = 0; i < line->befores; i++) {
        if (line->before[i].seq == seq) {
            return &line->before[i];
        }
    }
    return NULL;
}

/* Behind what the majority has called: what it would call next if it went on as it always did. */
static void continue_line(const struct comm *c, uint32_t seq, uint32_t period, struct line *line)
{
    for (uint32_t i = 0; i < line->real; i++) {
        if (line->call[i].sig != comm_slot(c, seq - period + i % period)->sig) {
            return; /* it does not go on as it did */
        }
    }
    for (uint32_t i = line->real; i < ALIGN_CALLS && i < line->real + period; i++) {
        uint32_t at = seq - period + i % period;
        const struct line_call *made = called_at(line, at);
        line->call[i] = made ? *made : (struct line_call){.seq = at};
        line->call[i].sig = comm_slot(c, at)->sig;
        line->known = i + 1;
    }
}

/* --- the judge --- */

/*
 * The last dropped (zero-count) call of this rank at this place that stands for the call of `by`, a rank that has
 * dropped none there itself; 0 or ticket + 1. One that `by` has dropped behind its call, too, is no call of too few
 * elements: it is made by all, and the call before it is one too many.
 */
static uint64_t dropped_call(const struct judge *j, uint32_t rank, uint32_t by, const struct roll_record *theirs)
{
    const struct roll_engine *e = j->e;
    const struct member *o = &j->c->member[by];
    const struct source *s = o->source != NO_SOURCE ? e->source[o->source] : NULL;
    uint64_t ticket = 0, other;
    uint32_t mine = s ? zero_dropped(e, &j->c->member[rank], j->seq, s, theirs, &ticket) : 0;
    bool alone = mine > 0 && zero_dropped(e, o, j->seq, s, theirs, &other) == 0;
    return alone && mine > zero_dropped(e, o, j->seq + 1, s, theirs, &other) ? ticket + 1 : 0;
}

/*
 * Of equal camps the one that does what the communicator always did comes first; else that of the lowest rank, so that
 * the order of arrival does not matter. It stays a tie.
 */
static void break_tie(struct judge *j, uint64_t expected)
{
    for (unsigned pass = j->tmpl ? 0 : 1; pass < 2; pass++) {
        for (uint32_t r = 0; r < j->c->size; r++) {
            const struct ballot *b = &j->d->ballot[r];
            if (b->in && votes_for(j->c, j->d, b->sig) == j->vote.majors && (pass == 1 || b->sig == expected)) {
                j->vote.major = b->sig;
                find_furthest(j, &j->vote);
                return;
            }
        }
    }
}

/* A rank whose zero-count call was dropped here is not right even when most ranks did the same: their calls are one
 * place ahead. */
static void prefer_undropped(struct judge *j, struct line *line)
{
    const struct member *major = &j->c->member[j->vote.major_rank];
    for (uint32_t r = 0; r < j->c->size && major->zeros > 0; r++) {
        if (!j->d->ballot[r].in || j->d->ballot[r].sig == j->vote.major) {
            continue;
        }
        line_read(j->e, j->c, r, j->seq, line);
        const struct roll_record *rec = line->real ? line->call[0].rec : NULL;
        if (rec && dropped_call(j, j->vote.major_rank, r, rec) != 0) {
            j->vote.major = j->d->ballot[r].sig;
            j->vote.major_rank = r;
            j->vote.tie = false;
            j->vote.named = j->vote.decided = true;
            return;
        }
    }
}

static bool prepare(struct roll_engine *e, struct comm *c, struct judge *j)
{
    *j = (struct judge){.e = e, .c = c, .d = c->dispute, .seq = c->held, .age = e->clock - c->held_ns};
    take_vote(j);
    if (j->vote.major_rank == NO_SEQ) {
        return false;
    }
    uint32_t period = j->seq >= c->base || c->high - j->seq < c->slot_mask ? find_period(c, j->seq) : 0;
    uint64_t expected = period ? comm_slot(c, j->seq - period)->sig : 0;
    j->tmpl = period != 0;
    if (j->vote.majors == j->vote.second) {
        break_tie(j, expected);
    }
    prefer_undropped(j, &j->major);
    j->tmpl_major = period != 0 && expected == j->vote.major;
    line_read(e, c, j->vote.major_rank, j->seq, &j->major);
    if (j->tmpl_major) {
        continue_line(c, j->seq, period, &j->major);
    }
    return j->major.real > 0;
}

/* Where captures disagree, the launches behind them do too, as a consequence: they count as alike. */
static void blur_launches(struct line *line)
{
    for (uint32_t i = 0; i < line->real; i++) {
        if (line->call[i].rec->op == ROLL_OP_GRAPH_LAUNCH) {
            line->call[i].sig = ROLL_OP_GRAPH_LAUNCH;
        }
    }
}

/* The same call, but for that: no call from another place looks so. */
static bool is_captured_by_one(const struct roll_record *mine, const struct roll_record *theirs)
{
    struct roll_record as_theirs = *mine;
    as_theirs.flags ^= ROLL_FLAG_CAPTURED;
    return ((mine->flags ^ theirs->flags) & ROLL_FLAG_CAPTURED) != 0 &&
           match_signature(&as_theirs) == match_signature(theirs);
}

/* Its next call is not on its way: its host is stuck, its process has ended, or nothing has come from it for a while
 * (it polls, copies or computes). */
static bool is_still(const struct roll_engine *e, const struct source *s)
{
    uint64_t moment = e->config.stall_ns / ALIGN_MOMENT;
    bool ended = !source_alive(s) && e->clock - s->proc_ns >= moment;
    return ended || source_blocked(e, s) || source_quiet(e, s, moment);
}

/* What `rank` did instead of the majority's call; UNKNOWN = cannot be told yet. */
static struct align_guess judge_rank(struct judge *j, uint32_t rank, struct line *line)
{
    const struct roll_engine *e = j->e;
    uint64_t stall = e->config.stall_ns;
    bool due = e->finishing || j->d->spoken || j->age >= stall / 5;
    struct align_guess guess = {.kind = ALIGN_UNKNOWN};
    line_read(e, j->c, rank, j->seq, line);
    const struct roll_record *mine = line->real ? line->call[0].rec : NULL, *theirs = j->major.call[0].rec;
    if (!mine || !theirs || call_failed(mine) || call_failed(theirs)) {
        return guess; /* a call that failed has spoilt its group, whose end is on its way */
    }
    /* What may still be refused, because the news of it comes late, is judged when it has stayed so for a stall. */
    bool open = source_unsettled(line->source, mine) || source_unsettled(j->major.source, theirs);
    if (open && !e->finishing && j->age < stall) {
        return guess;
    }
    if (dropped_call(j, rank, j->vote.major_rank, theirs) != 0) {
        /* Where both drop such calls now and then, the other one may still come to its own. */
        bool coming = j->major.real == 1 && zero_drops(&j->c->member[j->vote.major_rank], theirs) && !due;
        return (struct align_guess){.kind = coming ? ALIGN_UNKNOWN : ALIGN_ZERO, .length = 1};
    }
    enum align_kind plain = mine->op == theirs->op ? ALIGN_ARGUMENT : ALIGN_OTHER_OP;
    bool captured = (mine->flags & theirs->flags & ROLL_FLAG_CAPTURED) != 0;
    if (is_captured_by_one(mine, theirs)) {
        return (struct align_guess){.kind = ALIGN_ARGUMENT, .length = 1};
    }
    if (captured) {
        blur_launches(&j->major);
        blur_launches(line);
    }
    lines_compare(&j->major, line, plain, j->vote.tie, &guess);
    /* Captured calls hold nobody up: a host that is blocked is so for another reason, and the other ranks' next calls
     * are on their way. */
    bool still = !captured && j->age >= stall / 100 && is_still(e, line->source) && is_still(e, j->major.source);
    if (guess.open != 0 && !due && !still) {
        guess.kind = ALIGN_UNKNOWN;
    }
    return guess;
}

/* --- what is said --- */

/* It may be another reduction: that hangs nothing. */
static bool may_be_harmless(const struct align_guess *g, const struct roll_record *mine,
                            const struct roll_record *theirs)
{
    const char *field;
    uint32_t kinds = ALIGN_BIT(g->kind) | g->open;
    return (kinds & ALIGN_BIT(ALIGN_ARGUMENT)) != 0 &&
           signature_code(ALIGN_ARGUMENT, mine, theirs, &field) == ROLL_VERDICT_REDOP_MISMATCH;
}

static void fill(const struct judge *j, struct finding *f, uint32_t rank, const struct align_guess *g,
                 const struct line *line)
{
    const struct vote *v = &j->vote;
    bool stuck = !v->decided && v->camps.unseen == 0 && rest_is_stuck(j);
    bool plurality = stuck && v->majors > v->second && !v->tie;
    bool history = stuck && v->majors == v->second && j->tmpl_major;
    *f = (struct finding){.comm = j->c,
                          .seq = j->seq,
                          .kind = g->kind,
                          .length = g->length,
                          .overlap = g->overlap,
                          .open = g->open,
                          .template_major = j->tmpl_major,
                          .come = v->camps.made,
                          .wait = v->named ? 0 : v->camps.may + v->camps.unseen,
                          .minor_source = line->source,
                          .minor_ticket = line->call[0].ticket,
                          .major_source = j->major.source,
                          .major_ticket = j->major.call[0].ticket};
    f->tie = !v->named && !plurality && !history;
    f->by_history = history;
    f->certainty = g->open == 0 && v->decided ? ROLL_PROVEN : ROLL_SUSPECTED;
    f->harmless = may_be_harmless(g, line->call[0].rec, j->major.call[0].rec);
    if (g->kind == ALIGN_ADD && g->length < line->real) {
        f->after_ticket = line->call[g->length].ticket + 1;
    }
    if (g->kind == ALIGN_ZERO) { /* whose call was dropped is no question of votes */
        f->tie = false;
        f->wait = 0;
        f->certainty = ROLL_PROVEN;
        f->after_ticket = f->minor_ticket + 1;
        f->minor_ticket = dropped_call(j, rank, j->vote.major_rank, j->major.call[0].rec) - 1;
    }
}

static bool sets_meet(const struct roll_rankset *a, const struct roll_rankset *b)
{
    for (size_t i = 0; i < a->used; i++) {
        for (size_t k = 0; k < b->used; k++) {
            if (a->range[i].first <= b->range[k].last && b->range[k].first <= a->range[i].last) {
                return true;
            }
        }
    }
    return false;
}

/* What hangs nothing has no consequences: what was said about a later place is not about this one. */
static bool is_another_story(const struct told_side *t, uint32_t seq, bool harmless)
{
    return harmless && t->seq != seq;
}

/* What was said about these ranks before; else, where the sides have changed, what was said about those that are right
 * now. */
static struct told_side *said_before(struct dispute *d, const struct finding *f)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < d->sides; i++) {
            if (!d->side[i].used && !is_another_story(&d->side[i], f->seq, f->harmless) &&
                sets_meet(&d->side[i].minor, pass == 0 ? &f->minor : &f->major)) {
                return &d->side[i];
            }
        }
    }
    return NULL;
}

/* What is known now is worth a verdict of its own. */
static bool is_better(const struct judge *j, const struct told_side *t, const struct finding *f)
{
    bool same = t->kind == f->kind && t->length == f->length;
    uint32_t minors = (uint32_t)roll_rankset_count(&f->minor);
    if (t->certainty == ROLL_PROVEN) { /* it stands; more ranks may have made the same mistake */
        bool pause = j->vote.camps.may > 0 && j->e->clock - t->said_ns < j->e->config.stall_ns / 5;
        return same && f->certainty == ROLL_PROVEN && minors > t->minors && !pause;
    }
    bool nameless = f->tie && !t->named;
    return !same || (minors != t->minors && !nameless) || f->certainty != t->certainty || t->named == f->tie;
}

static void speak(struct judge *j, struct finding *f, uint64_t sig)
{
    struct dispute *d = j->d;
    struct told_side *t = said_before(d, f);
    uint64_t number = 0;
    if (t) {
        t->used = true;
        if (!is_better(j, t, f)) {
            return;
        }
        f->earlier = t->number;
    }
    f->number = &number;
    (void)j->e->ask->disagree(j->e, f);
    if (number == 0 || (!t && d->sides == DISPUTE_SIDES)) {
        return;
    }
    t = t ? t : &d->side[d->sides++];
    roll_rankset_fini(&t->minor);
    *t = (struct told_side){.number = number,
                            .sig = sig,
                            .said_ns = j->e->clock,
                            .kind = f->kind,
                            .seq = f->seq,
                            .length = f->length,
                            .minors = (uint32_t)roll_rankset_count(&f->minor),
                            .certainty = f->certainty,
                            .named = !f->tie,
                            .used = true};
    (void)roll_rankset_copy(&t->minor, &f->minor);
}

/* What was said about ranks that turn out to be no minority, and about which there is nothing else to say. */
static void take_back(struct judge *j, bool harmless)
{
    struct dispute *d = j->d;
    d->beside = false;
    for (uint32_t i = 0; i < d->sides; i++) {
        if (is_another_story(&d->side[i], j->seq, harmless)) {
            d->beside = true;
        } else if (!d->side[i].used && j->vote.decided) {
            (void)say_withdraw(j->e, d->side[i].number, "the calls of the ranks that came later decide otherwise");
        }
    }
}

/* Ranks that made the same call made the same mistake: the one of which most is known says which. */
static void agree_on_guesses(const struct judge *j, struct align_guess *guess)
{
    for (uint32_t r = 0; r < j->c->size; r++) {
        struct align_guess *g = &guess[r];
        for (uint32_t k = 0; g->kind != ALIGN_UNKNOWN && g->kind != ALIGN_ZERO && k < j->c->size; k++) {
            const struct align_guess *o = &guess[k];
            bool alike = k != r && o->kind != ALIGN_UNKNOWN && o->kind != ALIGN_ZERO &&
                         j->d->ballot[k].sig == j->d->ballot[r].sig;
            bool more = (o->open == 0) != (g->open == 0) ? o->open == 0 : o->overlap > g->overlap;
            *g = alike && more ? *o : *g;
        }
    }
}

/* One finding for all ranks that made the same call and the same mistake. */
static void tell(struct judge *j, struct align_guess *guess, struct line *line)
{
    struct comm *c = j->c;
    bool harmless = true;
    for (uint32_t i = 0; i < j->d->sides; i++) {
        j->d->side[i].used = false;
    }
    for (uint32_t r = 0; r < c->size; r++) {
        if (guess[r].kind == ALIGN_UNKNOWN) {
            continue;
        }
        struct finding f;
        struct align_guess g = guess[r];
        uint64_t sig = j->d->ballot[r].sig;
        line_read(j->e, c, r, j->seq, line);
        if (line->real == 0) {
            continue;
        }
        fill(j, &f, r, &g, line);
        for (uint32_t k = 0; k < c->size; k++) {
            uint32_t world = comm_world(j->e, c, k);
            if (!j->d->ballot[k].in || world == NO_SOURCE) {
                continue;
            }
            if (j->d->ballot[k].sig == j->vote.major) {
                (void)roll_rankset_add(&f.major, world);
            } else if (guess[k].kind == g.kind && guess[k].length == g.length &&
                       (g.kind == ALIGN_ZERO || j->d->ballot[k].sig == sig)) {
                (void)roll_rankset_add(&f.minor, world);
                guess[k].kind = ALIGN_UNKNOWN;
            }
        }
        speak(j, &f, sig);
        harmless = harmless && f.harmless;
        for (uint32_t i = 1; f.kind == ALIGN_REORDER && i < f.length && j->seq + i < c->high; i++) {
            comm_slot(c, j->seq + i)->judged = true;
        }
        roll_rankset_fini(&f.minor);
        roll_rankset_fini(&f.major);
    }
    take_back(j, harmless);
}

/* --- the life of a dispute --- */

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
}

static void forget_side(struct dispute *d, uint32_t i)
{
    roll_rankset_fini(&d->side[i].minor);
    d->side[i] = d->side[--d->sides];
}

/* Disagreements that came up while another one was being judged. */
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
    next_case(e, c, c->base); /* what is still being judged goes on, and the others follow it */
}

static void take_up(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    memset(c->dispute->ballot, 0, c->room * sizeof(*c->dispute->ballot));
    c->dispute->state = 0;
    c->held = seq;
    c->held_ns = e->clock;
    align_step(e, c);
}

/* A later place that was being judged when this one came up, and has another cause: its dispute goes on where it stood.
 */
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
    }
    for (uint32_t seq = place + 1 > c->base ? place + 1 : c->base; seq < later; seq++) {
        if (comm_slot(c, seq)->variant != 0 &&
            !comm_slot(c, seq)->judged) { /* one between the two comes before the later one */
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
        comm_slot(c, seq)->sig = right; /* as part of the history */
    }
    if (take_up_later(e, c)) {
        comm_advance(e, c);
        return;
    }
    align_drop(e, c);
    comm_advance(e, c);
    next_case(e, c, seq + 1);
}

/* A number of all that a judgement depends on: nothing is judged again while it stays. */
static uint64_t state_of(const struct roll_engine *e, const struct comm *c)
{
    uint64_t stall = e->config.stall_ns, age = e->clock - c->held_ns, h = say_key(c->held, e->finishing, c->gone, 0);
    uint64_t stage = age >= stall ? 200 : age >= stall / 5 ? 100 : age >= stall / 100 ? 50 : 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct member *m = &c->member[r];
        const struct source *s = m->source == NO_SOURCE ? NULL : e->source[m->source];
        uint64_t still = s && is_still(e, s), open = s && s->threads > 0 ? s->thread[s->thread_last].group : 0;
        h = say_key(h, m->next < c->held + ALIGN_CALLS ? m->next : NO_SEQ, s && is_over(e, s), still | open << 1);
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

/* The calls of a prediction about this communicator: this is it. */
static void come_true(struct judge *j)
{
    struct block b = {.kind = BLOCK_BLAMED, .comm = j->c, .hard = true};
    b.rank = j->e->source[j->c->member[j->vote.major_rank].source];
    (void)j->e->ask->block(j->e, &b, ASK_ALL);
    comm_mute(j->e, j->c, j->seq);
    close_dispute(j->e, j->c, j->vote.major);
}

/* The vote, and what each rank that differs did instead. True when enough is known to speak. */
static bool is_ripe(struct judge *j, struct align_guess *guess, struct line *line)
{
    bool patience = j->e->finishing || j->d->spoken || j->age >= j->e->config.stall_ns;
    bool ready = j->vote.decided || patience, dropped = false;
    for (uint32_t r = 0; ready && r < j->c->size; r++) {
        if (j->d->ballot[r].in && j->d->ballot[r].sig != j->vote.major) {
            guess[r] = judge_rank(j, r, line);
            ready = guess[r].kind != ALIGN_UNKNOWN || patience;
            dropped = dropped || guess[r].kind == ALIGN_ZERO;
        }
    }
    /* One rank with the call is enough to prove that another one's was dropped; the others come to wait in it in a
     * moment, or drop theirs. */
    return ready && (patience || !dropped || j->vote.camps.may == 0 || j->age >= j->e->config.stall_ns / 5);
}

void align_step(struct roll_engine *e, struct comm *c)
{
    struct dispute *d = c->dispute;
    if (!d) {
        return;
    }
    take_ballots(e, c, d);
    uint64_t state = state_of(e, c);
    if (state == d->state) {
        return;
    }
    d->state = state;
    struct judge j;
    if (!prepare(e, c, &j)) {
        if (d->spoken) {
            align_drop(e, c); /* its calls are forgotten: what was said stands */
        }
        return;
    }
    if (c->blame.cause != 0 && (j.vote.decided || j.age >= e->config.stall_ns || e->finishing)) {
        come_true(&j);
        return;
    }
    struct align_guess *guess = calloc(c->size, sizeof(*guess)), *copy = calloc(c->size, sizeof(*copy));
    struct line *line = malloc(sizeof(*line));
    if (guess && copy && line && c->blame.cause == 0 && is_ripe(&j, guess, line)) {
        agree_on_guesses(&j, guess);
        memcpy(copy, guess, c->size * sizeof(*copy));
        tell(&j, copy, line);
        d->spoken = true;
        if (c->held >= c->base) {
            comm_slot(c, c->held)->held = false; /* a mistake that hangs nothing holds nothing up */
        }
        if (is_settled(&j, guess)) {
            close_dispute(e, c, j.vote.major);
        } else {
            comm_advance(e, c);
        }
        e->dirty = true; /* what stood behind it goes on, though no record may come any more */
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
    /* With fewer there is no majority yet; ticks look after those that stay so, and after what has been spoken about.
     */
    bool open = c->held >= c->base && comm_slot(c, c->held)->held;
    if (open && comm_slot(c, c->held)->arrived * 2 > c->size) {
        align_step(e, c);
    }
}

/* An earlier disagreement comes up: what is proven about the later one stands, the rest was its consequence. */
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
     * The first disagreement comes first: a later one that was being judged stays held, and is taken up again
     * afterwards, unless it has been spoken about; then it was the consequence of this one, and this one's verdict
     * takes its place.
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
    struct finding f = {.comm = c, .seq = seq, .kind = ALIGN_GROUP, .length = 1, .tie = true};
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

/* --- for the detectors --- */

static uint64_t finding_key(const struct finding *f, enum roll_verdict_code code)
{
    return say_key((uint64_t)f->comm->era << 32 | code, f->comm->key, roll_rankset_at(&f->minor, 0),
                   roll_rankset_count(&f->minor));
}

bool finding_is_new(struct roll_engine *e, const struct finding *f, enum roll_verdict_code code)
{
    return f->earlier != 0 || say_recall(e, finding_key(f, code)) == 0;
}

enum roll_verdict_code signature_code(enum align_kind kind, const struct roll_record *a, const struct roll_record *b,
                                      const char **field)
{
    bool reduction = a->op == ROLL_OP_ALLREDUCE || a->op == ROLL_OP_REDUCE || a->op == ROLL_OP_REDUCESCATTER;
    uint64_t bytes_a = a->count * roll_dtype_bytes(a->dtype), bytes_b = b->count * roll_dtype_bytes(b->dtype);
    *field = "op";
    if (kind == ALIGN_OTHER_OP) {
        return ROLL_VERDICT_OP_MISMATCH;
    }
    bool amounts_differ = reduction ? a->count != b->count : bytes_a != bytes_b;
    *field = "dtype";
    if (a->dtype != b->dtype && (reduction || amounts_differ)) {
        return ROLL_VERDICT_DTYPE_MISMATCH; /* a wrong type makes wrong bytes */
    }
    *field = "count";
    if (amounts_differ) {
        return ROLL_VERDICT_COUNT_MISMATCH;
    }
    /* What the profiler plugin tells has no reduction: unknown is not different. */
    bool known = a->redop != ROLL_RED_NONE && b->redop != ROLL_RED_NONE;
    *field = "redop";
    if (reduction && known && a->redop != b->redop) {
        return ROLL_VERDICT_REDOP_MISMATCH;
    }
    *field = "root";
    return reduction && !known && a->peer == b->peer ? ROLL_VERDICT_NONE : ROLL_VERDICT_ROOT_MISMATCH;
}

static enum roll_verdict_code code_of(const struct finding *f, enum align_kind kind)
{
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    const char *field;
    switch (kind) {
    case ALIGN_ARGUMENT:
        if (minor && major && minor->rec.op == ROLL_OP_GRAPH_LAUNCH) {
            return ROLL_VERDICT_GRAPH_MISMATCH;
        }
        if (minor && major && ((minor->rec.flags ^ major->rec.flags) & ROLL_FLAG_CAPTURED) != 0) {
            return ROLL_VERDICT_CAPTURE_MISMATCH;
        }
        __attribute__((fallthrough));
    case ALIGN_OTHER_OP:
        return minor && major ? signature_code(kind, &minor->rec, &major->rec, &field) : ROLL_VERDICT_NONE;
    case ALIGN_SKIP:
        return ROLL_VERDICT_CALL_SKIPPED;
    case ALIGN_ADD:
        return ROLL_VERDICT_CALL_ADDED;
    case ALIGN_REORDER:
        return ROLL_VERDICT_CALLS_REORDERED;
    default:
        return ROLL_VERDICT_NONE;
    }
}

static void name_sides(struct roll_verdict *v, const struct finding *f, struct words *w)
{
    (void)roll_rankset_copy(&v->waiting, &f->major);
    if (f->tie) { /* each side waits in its call for the other */
        (void)roll_rankset_union(&v->waiting, &f->minor);
    }
    if (!f->tie) {
        (void)roll_rankset_copy(&v->culprits, &f->minor);
    } else if (f->wait > 0) {
        words_add(w, " %u of %u members have come to this place: who is right is not known before the others come.",
                  f->come, f->comm->size);
    } else if (f->template_major && f->kind != ALIGN_ARGUMENT && f->kind != ALIGN_OTHER_OP) {
        words_add(w, " The vote is a tie; it is the earlier steps of this communicator that speak for this reading.");
    } else {
        words_add(w, " The vote is a tie: the calls alone do not say which side is wrong.");
    }
    if (!f->tie && f->wait > 0) {
        words_add(w, " %u of %u members have come to this place; the others wait elsewhere.%s", f->come, f->comm->size,
                  f->by_history ? " It is the earlier steps of this communicator that say who is right." : "");
    }
}

static bool stand_apart(const struct finding *f)
{
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    return minor && major && site_compare(f->minor_source, &minor->rec, f->major_source, &major->rec) == SITE_OTHER;
}

void finding_life(struct roll_engine *e, struct roll_verdict *v, const struct finding *f, struct words *w)
{
    name_sides(v, f, w);
    for (unsigned kind = ALIGN_ARGUMENT; kind <= ALIGN_REORDER; kind++) {
        enum roll_verdict_code code = (f->open & ALIGN_BIT(kind)) != 0 ? code_of(f, kind) : ROLL_VERDICT_NONE;
        if (code != ROLL_VERDICT_NONE) {
            say_may_be(v, code);
        }
    }
    if (v->may_bes > 0) {
        words_add(w, " That these calls meet and differ is certain; which mistake led there is not.");
        words_may_be(w, v);
        if ((f->open & ALIGN_BIT(ALIGN_ARGUMENT)) != 0 && stand_apart(f)) {
            words_add(w, " They stand at different places of the program: it is a wrong argument only if these are "
                         "two arms of one branch.");
        }
    }
    const struct told *earlier = say_told(e, f->earlier);
    if (earlier && earlier->code == v->code && v->certainty == ROLL_PROVEN && earlier->certainty != ROLL_PROVEN) {
        say_confirms(e, v, f->earlier);
    } else {
        say_supersedes(e, v, f->earlier);
    }
    say_remember(e, finding_key(f, v->code), v->number);
    if (f->number) {
        *f->number = v->number;
    }
}
