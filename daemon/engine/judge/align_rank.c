/*
 * align_rank.c: what one rank did instead of the call that the majority made, as far as that can be told yet.
 *
 * To lay the calls against each other as soon as both are there was rejected: a call may still turn out to be refused,
 * and the next call of either rank, which decides most questions, may be on its way.
 */
#include "daemon/engine/judge/align.h"

#define ALIGN_MOMENT 20u /* stall/20 without news, and no call of a rank is on its way */

/* Where captured calls disagree, the launches behind them differ as a consequence: all launches count as alike. */
static void blur_launches(struct line *line)
{
    for (uint32_t i = 0; i < line->real; i++) {
        if (line->call[i].rec->op == ROLL_OP_GRAPH_LAUNCH) {
            line->call[i].sig = ROLL_OP_GRAPH_LAUNCH;
        }
    }
}

/* One of the two calls was captured and the other was not, and else they are the same: no call from another place of
 * the program looks so. */
static bool is_captured_by_one(const struct roll_record *mine, const struct roll_record *theirs)
{
    struct roll_record as_theirs = *mine;
    as_theirs.flags ^= ROLL_FLAG_CAPTURED;
    return ((mine->flags ^ theirs->flags) & ROLL_FLAG_CAPTURED) != 0 &&
           match_signature(&as_theirs) == match_signature(theirs);
}

/* A call that failed spoils its group, and the end of the group is on its way. A call that rollcall refused failed
 * because of this very disagreement. */
static bool is_spoilt(const struct roll_record *rec)
{
    return call_failed(rec) && !call_declined(rec);
}

/* The next call of this rank is not on its way: the host is stuck, the process has ended, or nothing has come from the
 * rank for a while (it polls, copies or computes). */
bool rank_is_still(const struct roll_engine *e, const struct source *s)
{
    uint64_t moment = e->config.stall_ns / ALIGN_MOMENT;
    bool ended = !source_alive(s) && e->clock - s->proc_ns >= moment;
    return ended || (!s->unheard && source_blocked(e, s)) || source_quiet(e, s, moment);
}

/*
 * The calls alone do not say which mistake it is; that the program of the two ranks parts before the place does. Where
 * one call alone agrees behind the parting, the other mistakes stay open.
 */
static void look_back(const struct judge *j, uint32_t rank, struct align_guess *guess)
{
    const struct member *major = &j->c->member[j->vote.major_rank], *minor = &j->c->member[rank];
    struct parting part;
    if (!part_find(j->e, major, minor, j->seq, ALIGN_BEFORE, false, &part)) {
        return;
    }
    enum align_kind kind = part.skip ? ALIGN_SKIP : ALIGN_ADD;
    uint32_t open = part.overlap > 1 ? 0 : (guess->open | ALIGN_BIT(guess->kind)) & ~ALIGN_BIT(kind);
    *guess = (struct align_guess){
        .kind = kind, .length = part.length, .overlap = part.overlap, .open = open, .back = j->seq - part.seq};
}

/* What this rank did instead of the majority's call; UNKNOWN: that cannot be told yet. line: room for the rank's line.
 */
struct align_guess rank_judge(struct judge *j, uint32_t rank, struct line *line)
{
    const struct roll_engine *e = j->e;
    uint64_t stall = e->config.stall_ns;
    bool due = e->finishing || j->d->spoken || j->age >= stall / 5;
    struct align_guess guess = {.kind = ALIGN_UNKNOWN};
    line_read(e, j->c, rank, j->seq, line);
    const struct roll_record *mine = line->real ? line->call[0].rec : NULL, *theirs = j->major.call[0].rec;
    if (!mine || !theirs || is_spoilt(mine) || is_spoilt(theirs)) {
        return guess;
    }
    /* A call that may still turn out to be refused is judged when that has been so for a stall: the record that says so
     * may come late. */
    bool open = source_unsettled(line->source, mine) || source_unsettled(j->major.source, theirs);
    if (open && !e->finishing && j->age < stall) {
        return guess;
    }
    if (vote_dropped_call(j, rank, j->vote.major_rank, theirs) != 0) {
        /* Where both ranks drop such calls now and then, the majority's rank may still come to drop this one. */
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
    if (!captured && guess.open != 0) {
        look_back(j, rank, &guess);
    }
    /* Captured calls hold nobody up: a host that is blocked is blocked for another reason, and the next calls of the
     * other ranks are on their way. */
    bool still =
        !captured && j->age >= stall / 100 && rank_is_still(e, line->source) && rank_is_still(e, j->major.source);
    if (guess.open != 0 && !due && !still) {
        guess.kind = ALIGN_UNKNOWN;
    }
    return guess;
}

/* Ranks that made the same call made the same mistake: the rank of which most is known says which. guess: by rank. */
void rank_agree(const struct judge *j, struct align_guess *guess)
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
