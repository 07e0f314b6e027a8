/*
 * align_tell.c: what is told of a dispute: one finding for all ranks that made the same mistake. It confirms what was
 * told of these ranks before, says it better or takes it back.
 *
 * A verdict for each rank was rejected: one wrong line of a program is made by many ranks at once.
 */
#include "daemon/engine/judge/align.h"

/* The mistake may be another reduction, which hangs nothing. */
static bool may_be_harmless(const struct align_guess *g, const struct roll_record *mine,
                            const struct roll_record *theirs)
{
    const char *field;
    uint32_t kinds = ALIGN_BIT(g->kind) | g->open;
    return (kinds & ALIGN_BIT(ALIGN_ARGUMENT)) != 0 &&
           signature_code(ALIGN_ARGUMENT, mine, theirs, &field) == ROLL_VERDICT_REDOP_MISMATCH;
}

/* The finding is about a call before the place of the dispute. */
static void step_back(const struct judge *j, struct finding *f, uint32_t rank, uint32_t back)
{
    const struct member *minor = &j->c->member[rank], *major = &j->c->member[j->vote.major_rank];
    uint64_t mine = source_ticket_of(f->minor_source, minor, j->seq - back);
    uint64_t theirs = source_ticket_of(f->major_source, major, j->seq - back);
    if (mine != NO_TICKET && theirs != NO_TICKET) {
        f->seq = j->seq - back;
        f->minor_ticket = mine;
        f->major_ticket = theirs;
    }
}

/* Fills in a finding about this rank, without the sets of ranks. */
static void fill(const struct judge *j, struct finding *f, uint32_t rank, const struct align_guess *g,
                 const struct line *line)
{
    const struct vote *v = &j->vote;
    bool stuck = !v->decided && v->camps.unseen == 0 && vote_rest_is_stuck(j);
    bool plurality = stuck && v->majors > v->second && !v->tie;
    bool history = stuck && v->majors == v->second && j->tmpl_major;
    *f = (struct finding){.comm = j->c,
                          .seq = j->seq,
                          .shown = j->seq,
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
    if (g->back > 0) {
        step_back(j, f, rank, g->back);
    }
    f->tie = !v->named && !plurality && !history;
    f->by_history = history;
    f->certainty = g->open == 0 && v->decided ? ROLL_PROVEN : ROLL_SUSPECTED;
    f->harmless = may_be_harmless(g, line->call[0].rec, j->major.call[0].rec);
    if (g->kind == ALIGN_ZERO) { /* no vote is needed to know whose call was dropped */
        f->tie = false;
        f->wait = 0;
        f->certainty = ROLL_PROVEN;
        f->minor_ticket = vote_dropped_call(j, rank, j->vote.major_rank, j->major.call[0].rec) - 1;
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

/* What was said here is not about this place but about a later one, and no consequence of this one: a mistake that
 * hangs nothing has no consequences. */
static bool is_another_story(const struct told_side *t, uint32_t seq, bool harmless)
{
    return harmless && t->seq != seq;
}

/* What was said before about the ranks that are wrong; else, where the sides have changed, about those that are right
 * now. NULL: nothing. */
static struct told_side *said_before(struct dispute *d, const struct finding *f)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < d->sides; i++) {
            if (!d->side[i].used && !is_another_story(&d->side[i], f->shown, f->harmless) &&
                sets_meet(&d->side[i].minor, pass == 0 ? &f->minor : &f->major)) {
                return &d->side[i];
            }
        }
    }
    return NULL;
}

/* The finding is better than what was said before, and worth a verdict of its own. */
static bool is_better(const struct judge *j, const struct told_side *t, const struct finding *f)
{
    bool same = t->kind == f->kind && t->length == f->length;
    uint32_t minors = (uint32_t)roll_rankset_count(&f->minor);
    if (t->certainty == ROLL_PROVEN) { /* a proven verdict stands; but more ranks may have made the same mistake */
        bool pause = j->vote.camps.may > 0 && j->e->clock - t->said_ns < j->e->config.stall_ns / 5;
        return same && f->certainty == ROLL_PROVEN && minors > t->minors && !pause;
    }
    bool nameless = f->tie && !t->named;
    return !same || (minors != t->minors && !nameless) || f->certainty != t->certainty || t->named == f->tie;
}

/* All these members stand so to what was rehearsed, with their calls at the place: `how`, or `too`. */
static bool all_stand(const struct judge *j, const struct roll_rankset *ranks, enum rehearsed how, enum rehearsed too)
{
    uint32_t seen = 0;
    for (uint32_t r = 0; r < j->c->size; r++) {
        const struct member *m = &j->c->member[r];
        uint32_t world = comm_world(j->e, j->c, r);
        if (world == NO_SOURCE || !roll_rankset_has(ranks, world)) {
            continue;
        }
        uint64_t ticket = source_ticket_of(j->e->source[m->source], m, j->seq);
        enum rehearsed stands = ticket == NO_TICKET ? REHEARSED_UNKNOWN : j->e->ask->rehearsed(m, ticket);
        if (stands == REHEARSED_UNKNOWN || (stands != how && stands != too)) {
            return false;
        }
        seen++;
    }
    return seen > 0;
}

/* The other side is wrong: what it did is the reverse. */
static void turn(struct finding *f)
{
    struct roll_rankset minor = f->minor;
    const struct source *source = f->minor_source;
    uint64_t ticket = f->minor_ticket;
    f->minor = f->major;
    f->minor_source = f->major_source;
    f->minor_ticket = f->major_ticket;
    f->major = minor;
    f->major_source = source;
    f->major_ticket = ticket;
    uint32_t skip = f->open & ALIGN_BIT(ALIGN_SKIP), add = f->open & ALIGN_BIT(ALIGN_ADD);
    f->open &= ~(ALIGN_BIT(ALIGN_SKIP) | ALIGN_BIT(ALIGN_ADD));
    f->open |= (skip ? ALIGN_BIT(ALIGN_ADD) : 0) | (add ? ALIGN_BIT(ALIGN_SKIP) : 0);
    f->kind = f->kind == ALIGN_SKIP ? ALIGN_ADD : f->kind == ALIGN_ADD ? ALIGN_SKIP : f->kind;
}

/*
 * Nobody has a majority: where one side does what was rehearsed and the other does not, the other is named. What is
 * certain stays so, that the calls differ; who is wrong is suspected, because a rehearsal may be of another program.
 *
 * A call that was rehearsed nowhere says nothing where a call may have been left out or added, and no later call
 * agrees: the rank that makes a checkpoint's barrier, to which the rehearsal did not come, leaves what was rehearsed,
 * and the rank that leaves the barrier out goes on as rehearsed.
 */
static void ask_rehearsal(const struct judge *j, struct finding *f)
{
    if (!j->e->expected || !f->tie || f->kind == ALIGN_ZERO || f->kind == ALIGN_GROUP) {
        return;
    }
    bool open = (f->open & (ALIGN_BIT(ALIGN_SKIP) | ALIGN_BIT(ALIGN_ADD))) != 0;
    bool shift = f->kind == ALIGN_SKIP || f->kind == ALIGN_ADD || (open && f->overlap == 0);
    enum rehearsed too = shift ? REHEARSED_LEAVES : REHEARSED_UNHEARD;
    bool minor =
        all_stand(j, &f->minor, REHEARSED_LEAVES, too) && all_stand(j, &f->major, REHEARSED_FITS, REHEARSED_FITS);
    bool major = !minor && all_stand(j, &f->major, REHEARSED_LEAVES, too) &&
                 all_stand(j, &f->minor, REHEARSED_FITS, REHEARSED_FITS);
    if (major) {
        turn(f);
    }
    if (minor || major) {
        f->tie = false;
        f->rehearsed = true;
        f->certainty = ROLL_SUSPECTED;
    }
}

/* Has a finding told, unless what was said before says as much. */
static void speak(struct judge *j, struct finding *f, uint64_t sig)
{
    struct dispute *d = j->d;
    ask_rehearsal(j, f);
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
                            .seq = f->shown,
                            .length = f->length,
                            .minors = (uint32_t)roll_rankset_count(&f->minor),
                            .certainty = f->certainty,
                            .named = !f->tie,
                            .used = true};
    (void)roll_rankset_copy(&t->minor, &f->minor);
}

/* The rank still differs from the majority, and nothing can be read of what it did instead: its calls may have left its
 * log, because calls that all ranks have entered are kept no longer than there is room. */
static bool is_unread(const struct judge *j, const struct align_guess *guess, uint32_t rank)
{
    const struct ballot *b = &j->d->ballot[rank];
    return b->in && b->sig != j->vote.major && guess[rank].kind == ALIGN_UNKNOWN;
}

/* Notes which of the things said so far are about such a rank: they stand. */
static void note_unread(struct judge *j, const struct align_guess *guess)
{
    for (uint32_t i = 0; i < j->d->sides; i++) {
        j->d->side[i].stands = false;
    }
    for (uint32_t r = 0; r < j->c->size; r++) {
        uint32_t world = is_unread(j, guess, r) ? comm_world(j->e, j->c, r) : NO_SOURCE;
        for (uint32_t i = 0; world != NO_SOURCE && i < j->d->sides; i++) {
            struct told_side *t = &j->d->side[i];
            t->stands = t->stands || roll_rankset_has(&t->minor, world);
        }
    }
}

/* Takes back what was said about ranks that turn out to be no minority, and about which there is nothing else to say.
 */
static void take_back(struct judge *j, bool harmless)
{
    struct dispute *d = j->d;
    d->beside = false;
    for (uint32_t i = 0; i < d->sides; i++) {
        if (is_another_story(&d->side[i], j->seq, harmless)) {
            d->beside = true;
        } else if (!d->side[i].used && !d->side[i].stands && j->vote.decided) {
            (void)say_withdraw(j->e, d->side[i].number, "the calls of the ranks that came later decide otherwise");
        }
    }
}

/* Tells, or tells better, what is known: one finding for all ranks that made the same call and the same mistake. */
void align_tell(struct judge *j, struct align_guess *guess, struct line *line)
{
    struct comm *c = j->c;
    bool harmless = true;
    for (uint32_t i = 0; i < j->d->sides; i++) {
        j->d->side[i].used = false;
    }
    note_unread(j, guess);
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
