/*
 * align_vote.c: who is right at a place where ranks disagree: the votes, and what the history of the communicator says.
 *
 * To take the call that came first for the right one was rejected: which comes first depends on how fast ranks are
 * read.
 */
#include "daemon/engine/judge/align.h"

#define PERIOD_MAX 512u

/* The call that this member made at the place is known. */
static bool voted(const struct comm *c, uint32_t rank, uint32_t seq)
{
    const struct member *m = &c->member[rank];
    return m->next > seq && m->from <= seq && m->source != NO_SOURCE;
}

/* The process has ended, and its last records have been read: they may come a moment after the end is known. */
bool vote_is_over(const struct roll_engine *e, const struct source *s)
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
        } else if (m->gone || m->ended || vote_is_over(e, s)) {
            out->never++;
        } else {
            out->may++;
        }
    }
}

/* The signature of the call that a member made on this slot. */
static uint64_t sig_of_rank(const struct roll_engine *e, const struct slot *s, uint32_t rank)
{
    for (uint32_t v = s->variant; v != 0; v = e->variant[v - 1].next) {
        if (e->variant[v - 1].rank == rank) {
            return e->variant[v - 1].sig;
        }
    }
    return s->sig;
}

/* Reads the ballots from the slot, as long as the slot is there. Before a slot gets complete all members have come, so
 * the ballots are whole before the slot is used again. */
void vote_take_ballots(const struct roll_engine *e, const struct comm *c, struct dispute *d)
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

/* Counts the votes for each call, when the call is met first: only few different calls meet at one place. */
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

/* Finds the member of the majority that has gone furthest, because of that one most calls are known. */
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
    /* Members that stay away for good have not made the majority's call either. */
    uint32_t second = v->camps.never > v->second ? v->camps.never : v->second;
    uint32_t open = v->camps.may + v->camps.unseen;
    v->named = v->majors > second + open;
    v->decided = v->named || open == 0;
    v->tie = v->majors <= second;
    find_furthest(j, v);
}

/* All ranks that have not come are stuck elsewhere, and will not come by themselves. */
bool vote_rest_is_stuck(const struct judge *j)
{
    for (uint32_t r = 0; r < j->c->size; r++) {
        const struct member *m = &j->c->member[r];
        bool away = !voted(j->c, r, j->seq);
        const struct source *s = away && m->source != NO_SOURCE ? j->e->source[m->source] : NULL;
        if (away && (!s || m->next > j->seq || source_is_dark(s) || !source_blocked(j->e, s))) {
            return false;
        }
    }
    return true;
}

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

/* Adds to the line of the majority the calls that it would make next if it went on as it always did. */
static void continue_line(const struct comm *c, uint32_t seq, uint32_t period, struct line *line)
{
    for (uint32_t i = 0; i < line->real; i++) {
        if (line->call[i].sig != comm_slot(c, seq - period + i % period)->sig) {
            return; /* the majority does not go on as it did */
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

/*
 * Ticket + 1 of the last call of `rank` that was dropped at this place, for want of elements, and stands for the call
 * that `by` made; 0: there is none. `by` must have dropped no such call there. Where `by` has dropped the call as well,
 * behind its own call, all make the dropped call, and the call of `by` before it is one too many.
 */
uint64_t vote_dropped_call(const struct judge *j, uint32_t rank, uint32_t by, const struct roll_record *theirs)
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
 * Of equal camps the one is called majority that does what the communicator always did; else the camp of the lowest
 * rank, so that the order of arrival does not matter. The vote stays a tie.
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

/* A rank whose call was dropped here, for want of elements, is not right even when most ranks did the same: the next
 * calls of those ranks stand one place ahead. */
static void prefer_undropped(struct judge *j, struct line *line)
{
    const struct member *major = &j->c->member[j->vote.major_rank];
    for (uint32_t r = 0; r < j->c->size && major->zeros > 0; r++) {
        if (!j->d->ballot[r].in || j->d->ballot[r].sig == j->vote.major) {
            continue;
        }
        line_read(j->e, j->c, r, j->seq, line);
        const struct roll_record *rec = line->real ? line->call[0].rec : NULL;
        if (rec && vote_dropped_call(j, j->vote.major_rank, r, rec) != 0) {
            j->vote.major = j->d->ballot[r].sig;
            j->vote.major_rank = r;
            j->vote.tie = false;
            j->vote.named = j->vote.decided = true;
            return;
        }
    }
}

/* Takes the vote on the communicator's dispute, and reads the line of the majority: *j. False: nobody's call is known
 * any more. */
bool vote_take(struct roll_engine *e, struct comm *c, struct judge *j)
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
