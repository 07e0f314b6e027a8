/*
 * align.c: ranks disagree at one place of a communicator: who is right, and what did the others do instead?
 *
 * Right is what most members called (a tie is said to be one). Then the calls of a rank that differs are laid against the majority's calls
 * from that place on: shifted by nothing (one argument, or one operation, is wrong), by k (it skipped k calls), by -k (it added k), or k calls
 * permuted. The shift after which all known calls agree wins. Where the majority's own later calls are not known yet, the period of
 * the communicator's history continues them.
 *
 * When to speak: a wrong argument at once if the odd call looks like nothing that this communicator does nearby (then it
 * cannot be a call from another place); everything else when two later calls confirm one shift and no other, or after stall/5. A fixed
 * "wait for the stall" was rejected: most mistakes can be known within microseconds of the call.
 * After a verdict the communicator is muted (unless the mistake was an argument that NCCL does not stumble over): what follows is consequence.
 */
#include "daemon/engine/detector.h"

#include <stdlib.h>
#include <string.h>

#define CALLS      24u /* calls compared from the place on */
#define SHIFT_MAX  8u  /* largest number of calls skipped, added or permuted that is recognised */
#define NEARBY     64u /* calls of history among which an odd call may be at home */
#define PERIOD_MAX 512u

/* What one rank, or the template, calls from a place on. */
struct line {
    uint64_t sig[CALLS];
    uint64_t ticket[CALLS];
    uint32_t known;
};

struct vote {
    uint64_t major; /* signature */
    uint32_t majors, arrived;
    bool tie;
    uint32_t major_rank; /* the majority member that has gone furthest */
};

static uint64_t sig_of_rank(const struct roll_engine *e, const struct slot *s, uint32_t rank)
{
    for (uint32_t v = s->variant; v != 0; v = e->variant[v - 1].next) {
        if (e->variant[v - 1].rank == rank) {
            return e->variant[v - 1].sig;
        }
    }
    return s->sig;
}

static bool voted(const struct comm *c, uint32_t rank, uint32_t seq)
{
    const struct member *m = &c->member[rank];
    return m->next > seq && m->from <= seq;
}

static uint32_t votes_for(const struct roll_engine *e, const struct comm *c, const struct slot *s, uint32_t seq,
                          uint64_t sig)
{
    uint32_t variants = 0, same = 0, known = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        known += voted(c, r, seq);
    }
    for (uint32_t v = s->variant; v != 0; v = e->variant[v - 1].next) {
        variants++;
        same += e->variant[v - 1].sig == sig;
    }
    return sig == s->sig ? known - variants : same;
}

static void take_vote(const struct roll_engine *e, const struct comm *c, uint32_t seq, struct vote *out)
{
    const struct slot *s = comm_slot(c, seq);
    *out = (struct vote){.major = s->sig, .majors = votes_for(e, c, s, seq, s->sig), .major_rank = NO_SEQ};
    for (uint32_t v = s->variant; v != 0; v = e->variant[v - 1].next) {
        uint64_t sig = e->variant[v - 1].sig;
        uint32_t n = sig == out->major ? 0 : votes_for(e, c, s, seq, sig);
        if (n > out->majors) {
            out->major = sig;
            out->majors = n;
            out->tie = false;
        } else if (n == out->majors && sig != out->major) {
            out->tie = true;
        }
    }
    uint32_t best = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        out->arrived += voted(c, r, seq);
        if (voted(c, r, seq) && c->member[r].next > best && sig_of_rank(e, s, r) == out->major) {
            best = c->member[r].next;
            out->major_rank = r;
        }
    }
}

static void read_line(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint32_t seq, struct line *out)
{
    const struct member *m = &c->member[rank];
    const struct source *s = e->source[m->source];
    uint64_t ticket = s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
    memset(out, 0, sizeof(*out));
    for (; ticket < s->next && out->known < CALLS; ticket++) {
        const struct entry *entry = source_entry(s, ticket);
        if (entry && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL && entry->rec.count != 0 &&
            entry->index != COLL_REFUSED && entry->rec.seq == seq + out->known &&
            source_member(s, entry->rec.comm) == m) {
            out->sig[out->known] = match_signature(&entry->rec);
            out->ticket[out->known++] = ticket;
        }
    }
}

/* The smallest period with which the history before seq repeats at least twice; 0 = none. */
static uint32_t find_period(const struct comm *c, uint32_t seq)
{
    uint32_t low = c->high > c->slot_mask + 1 ? c->high - c->slot_mask - 1 : 0;
    while (low < seq && comm_slot(c, low)->ticket == 0) {
        low++;
    }
    uint32_t length = seq - low;
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

static bool in_history(const struct comm *c, uint32_t seq, uint64_t sig)
{
    uint32_t low = c->high > c->slot_mask + 1 ? c->high - c->slot_mask - 1 : 0;
    for (uint32_t i = 1; i <= NEARBY && seq >= low + i; i++) {
        if (comm_slot(c, seq - i)->sig == sig) {
            return true;
        }
    }
    return false;
}

static bool same_run(const uint64_t *a, const uint64_t *b, uint32_t n)
{
    return memcmp(a, b, n * sizeof(*a)) == 0;
}

static bool permuted(const uint64_t *a, const uint64_t *b, uint32_t n)
{
    bool used[SHIFT_MAX] = {false};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (k < n && (used[k] || b[k] != a[i])) {
            k++;
        }
        if (k == n) {
            return false;
        }
        used[k] = true;
    }
    return true;
}

struct guess {
    enum align_kind kind;
    uint32_t length, overlap;
    bool rival; /* another explanation holds as well */
};

/* The shortest shift wins: in periodic traffic every skip of k calls is also an addition of (period - k). */
static void consider(struct guess *best, enum align_kind kind, uint32_t length, uint32_t overlap)
{
    if (best->kind == ALIGN_UNKNOWN || length < best->length) {
        *best = (struct guess){.kind = kind, .length = length, .overlap = overlap};
    } else if (length == best->length) {
        best->rival = true;
    }
}

/* a: the majority's line (known calls, then what the template says); b: the other rank's. */
static struct guess compare_lines(const struct line *a, const struct line *b)
{
    struct guess best = {.kind = ALIGN_UNKNOWN};
    uint32_t reordered = 0;
    for (uint32_t k = 2; k <= SHIFT_MAX && k <= a->known && k <= b->known; k++) {
        uint32_t rest = (a->known < b->known ? a->known : b->known) - k;
        if (permuted(a->sig, b->sig, k) && same_run(a->sig + k, b->sig + k, rest)) {
            consider(&best, ALIGN_REORDER, 1, k + rest); /* one mistake, like one call skipped */
            reordered = k;
            break;
        }
    }
    uint32_t both = a->known < b->known ? a->known : b->known;
    if (both >= 2 && same_run(a->sig + 1, b->sig + 1, both - 1)) {
        consider(&best, ALIGN_ARGUMENT, 1, both - 1);
    }
    for (uint32_t k = 1; k <= SHIFT_MAX && k < a->known; k++) {
        uint32_t n = a->known - k < b->known ? a->known - k : b->known;
        if (n > 0 && same_run(a->sig + k, b->sig, n)) {
            consider(&best, ALIGN_SKIP, k, n);
            break;
        }
    }
    for (uint32_t k = 1; k <= SHIFT_MAX && k < b->known; k++) {
        uint32_t n = b->known - k < a->known ? b->known - k : a->known;
        if (n > 0 && same_run(a->sig, b->sig + k, n)) {
            consider(&best, ALIGN_ADD, k, n);
            break;
        }
    }
    best.length = best.kind == ALIGN_REORDER ? reordered : best.length;
    return best;
}

/* The last dropped (zero-count) call of this rank at this place that stands for the majority's call; 0 or ticket + 1. */
static uint64_t dropped_call(const struct member *m, uint32_t seq, const struct roll_record *major)
{
    struct roll_record as_one = *major;
    as_one.count = 1;
    as_one.result = 0;
    uint64_t sig = match_signature(&as_one);
    for (uint32_t i = 0; i < ZEROS_MAX && i < m->zeros; i++) {
        uint32_t at = (m->zeros - 1 - i) % ZEROS_MAX;
        if (m->zero[at].seq == seq && m->zero[at].sig == sig) {
            return m->zero[at].ticket + 1;
        }
    }
    return 0;
}

struct judge {
    struct roll_engine *e;
    struct comm *c;
    uint32_t seq;
    struct vote vote;
    struct line major;
    uint32_t real;         /* of major.known: calls that were really made */
    bool tmpl, tmpl_major; /* the history has a period; it continues with the majority's call */
    uint64_t age;
};

static const struct roll_record *record_of(const struct roll_engine *e, const struct comm *c, uint32_t rank,
                                           uint64_t ticket)
{
    const struct entry *entry = source_entry(e->source[c->member[rank].source], ticket);
    return entry ? &entry->rec : NULL;
}

/* Of equal camps the one that does what the communicator always did comes first; else that of the lowest rank, so that
 * the order of arrival does not matter. It stays a tie. */
static void break_tie(const struct roll_engine *e, const struct comm *c, struct judge *j, uint64_t expected)
{
    const struct slot *s = comm_slot(c, j->seq);
    for (unsigned pass = j->tmpl ? 0 : 1; pass < 2; pass++) {
        for (uint32_t r = 0; r < c->size; r++) {
            uint64_t sig = voted(c, r, j->seq) ? sig_of_rank(e, s, r) : 0;
            if (voted(c, r, j->seq) && votes_for(e, c, s, j->seq, sig) == j->vote.majors &&
                (pass == 1 || sig == expected)) {
                j->vote.major = sig;
                j->vote.major_rank = r;
                return;
            }
        }
    }
}

/* A rank whose zero-count call was dropped here is not right even when most ranks did the same: their calls are one place ahead. */
static void prefer_undropped(const struct roll_engine *e, const struct comm *c, struct judge *j)
{
    const struct slot *s = comm_slot(c, j->seq);
    const struct member *major = &c->member[j->vote.major_rank];
    struct line line;
    for (uint32_t r = 0; r < c->size && major->zeros > 0; r++) {
        if (!voted(c, r, j->seq) || sig_of_rank(e, s, r) == j->vote.major) {
            continue;
        }
        read_line(e, c, r, j->seq, &line);
        const struct roll_record *rec = line.known ? record_of(e, c, r, line.ticket[0]) : NULL;
        if (rec && dropped_call(major, j->seq, rec) != 0 && dropped_call(&c->member[r], j->seq, rec) == 0) {
            j->vote.major = sig_of_rank(e, s, r);
            j->vote.major_rank = r;
            j->vote.tie = false;
            return;
        }
    }
}

static bool prepare(struct roll_engine *e, struct comm *c, struct judge *j)
{
    *j = (struct judge){.e = e, .c = c, .seq = c->held, .age = e->clock - c->held_ns};
    take_vote(e, c, j->seq, &j->vote);
    if (j->vote.major_rank == NO_SEQ) {
        return false;
    }
    uint32_t period = find_period(c, j->seq);
    uint64_t expected = period ? comm_slot(c, j->seq - period)->sig : 0;
    j->tmpl = period != 0;
    if (j->vote.tie) {
        break_tie(e, c, j, expected);
    }
    prefer_undropped(e, c, j);
    j->tmpl_major = period != 0 && expected == j->vote.major;
    read_line(e, c, j->vote.major_rank, j->seq, &j->major);
    j->real = j->major.known;
    for (uint32_t i = j->real; j->tmpl_major && i < CALLS && i < j->real + period; i++) {
        j->major.sig[i] = comm_slot(c, j->seq - period + i % period)->sig;
        j->major.known = i + 1;
    }
    return j->real > 0;
}

/* Where captures disagree, the launches behind them do too, as a consequence: they count as alike. */
static void blur_launches(const struct roll_engine *e, const struct comm *c, uint32_t rank, struct line *line,
                          uint32_t real)
{
    for (uint32_t i = 0; i < real; i++) {
        const struct roll_record *rec = record_of(e, c, rank, line->ticket[i]);
        if (rec && rec->op == ROLL_OP_GRAPH_LAUNCH) {
            line->sig[i] = ROLL_OP_GRAPH_LAUNCH;
        }
    }
}

/* What `rank` did instead of the majority's call; UNKNOWN = cannot be told yet. */
static struct guess judge_rank(const struct judge *j, uint32_t rank, struct line *line)
{
    const struct roll_engine *e = j->e;
    uint64_t stall = e->config.stall_ns;
    bool due = e->finishing || j->age >= stall / 5;
    struct guess none = {.kind = ALIGN_UNKNOWN};
    read_line(e, j->c, rank, j->seq, line);
    const struct roll_record *mine = line->known ? record_of(e, j->c, rank, line->ticket[0]) : NULL;
    const struct roll_record *theirs = record_of(e, j->c, j->vote.major_rank, j->major.ticket[0]);
    if (!mine || !theirs || call_failed(mine) || call_failed(theirs)) {
        return none; /* a call that failed has spoilt its group, whose end is on its way */
    }
    /* A call that is refused returns at once: one that has not returned yet may still be. */
    bool entered =
        roll_seal_state(mine->seal) == ROLL_STATE_ENTERED || roll_seal_state(theirs->seal) == ROLL_STATE_ENTERED;
    if (!due && entered && j->age < stall / 100) {
        return none;
    }
    if (!due && (source_group_open(e->source[j->c->member[rank].source], mine) ||
                 source_group_open(e->source[j->c->member[j->vote.major_rank].source], theirs))) {
        return none; /* nothing is enqueued yet: the group may be refused, or only be simulated */
    }
    if (dropped_call(&j->c->member[rank], j->seq, theirs) != 0 &&
        dropped_call(&j->c->member[j->vote.major_rank], j->seq, theirs) == 0) {
        return (struct guess){.kind = ALIGN_ZERO, .length = 1};
    }
    enum align_kind plain = mine->op == theirs->op ? ALIGN_ARGUMENT : ALIGN_OTHER_OP;
    bool captured = (mine->flags & theirs->flags & ROLL_FLAG_CAPTURED) != 0;
    struct line major = j->major;
    if (captured) {
        blur_launches(e, j->c, j->vote.major_rank, &major, j->real);
        blur_launches(e, j->c, rank, line, line->known);
    }
    struct guess best = compare_lines(&major, line);
    best.kind = best.kind == ALIGN_ARGUMENT ? plain : best.kind;
    bool foreign = !in_history(j->c, j->seq, line->sig[0]);
    for (uint32_t i = 1; foreign && i < j->major.known; i++) {
        foreign = j->major.sig[i] != line->sig[0];
    }
    /* Captured calls hold nobody up: a host that is blocked is so for another reason, and the other ranks' next calls are on their way. */
    bool last_word =
        due || (!captured && (j->age >= stall / 100 || source_blocked(e->source[j->c->member[rank].source])));
    if (plain == ALIGN_ARGUMENT && foreign && best.kind != ALIGN_ADD && (best.kind == ALIGN_ARGUMENT || last_word)) {
        return (struct guess){.kind = ALIGN_ARGUMENT, .length = 1, .overlap = best.overlap};
    }
    if (best.kind != ALIGN_UNKNOWN && best.overlap >= 3 && !best.rival) {
        return best;
    }
    if (!due) {
        return none;
    }
    return best.kind != ALIGN_UNKNOWN ? best : (struct guess){.kind = plain, .length = 1};
}

static void fill(const struct judge *j, struct finding *f, uint32_t rank, const struct guess *g,
                 const struct line *line)
{
    const struct roll_engine *e = j->e;
    const struct comm *c = j->c;
    f->kind = g->kind;
    f->length = g->length;
    f->overlap = g->overlap;
    f->minor_source = e->source[c->member[rank].source];
    f->minor_ticket = line->ticket[0];
    f->after_ticket = 0;
    if (g->kind == ALIGN_ADD && g->length < line->known) {
        f->after_ticket = line->ticket[g->length] + 1;
    }
    if (g->kind == ALIGN_ZERO) {
        f->after_ticket = f->minor_ticket + 1;
        f->minor_ticket =
            dropped_call(&c->member[rank], j->seq, record_of(e, c, j->vote.major_rank, j->major.ticket[0])) - 1;
    }
}

static void close_case(struct roll_engine *e, struct comm *c)
{
    struct slot *s = comm_slot(c, c->held);
    s->held = false;
    s->judged = true;
    c->held = NO_SEQ;
    e->held_comms--;
}

/* Disagreements that came up while another one was being judged. */
static void next_case(struct roll_engine *e, struct comm *c, uint32_t from)
{
    for (uint32_t seq = from; seq < c->high && !comm_silent_at(c, seq) && c->held == NO_SEQ; seq++) {
        if (seq >= c->base && comm_slot(c, seq)->variant != 0 && !comm_slot(c, seq)->judged) {
            align_open(e, c, seq);
        }
    }
}

void align_resume(struct roll_engine *e, struct comm *c)
{
    next_case(e, c, c->base);
}

static bool tells_all(struct judge *j)
{
    struct roll_engine *e = j->e;
    struct comm *c = j->c;
    const struct slot *s = comm_slot(c, j->seq);
    struct guess *guess = calloc(c->size, sizeof(*guess));
    struct line *line = malloc(sizeof(*line));
    bool ready = guess && line;
    for (uint32_t r = 0; ready && r < c->size; r++) {
        if (voted(c, r, j->seq) && sig_of_rank(e, s, r) != j->vote.major) {
            guess[r] = judge_rank(j, r, line);
            ready = guess[r].kind != ALIGN_UNKNOWN || e->finishing || j->age >= e->config.stall_ns;
        }
    }
    for (uint32_t r = 0; ready && r < c->size; r++) {
        if (guess[r].kind == ALIGN_UNKNOWN) {
            continue;
        }
        /* One finding for all ranks that made the same call and the same mistake. */
        struct finding f = {.comm = c, .seq = j->seq, .tie = j->vote.tie, .template_major = j->tmpl_major};
        struct guess g = guess[r];
        uint64_t sig = sig_of_rank(e, s, r);
        read_line(e, c, r, j->seq, line);
        fill(j, &f, r, &g, line);
        f.major_source = e->source[c->member[j->vote.major_rank].source];
        f.major_ticket = j->major.ticket[0];
        for (uint32_t k = 0; k < c->size; k++) {
            uint32_t world = comm_world(e, c, k);
            if (!voted(c, k, j->seq) || world == NO_SOURCE) {
                continue;
            }
            if (sig_of_rank(e, s, k) == j->vote.major) {
                (void)roll_rankset_add(&f.major, world);
            } else if (guess[k].kind == g.kind && guess[k].length == g.length &&
                       (g.kind == ALIGN_ZERO || sig_of_rank(e, s, k) == sig)) {
                (void)roll_rankset_add(&f.minor, world);
                guess[k].kind = ALIGN_UNKNOWN;
            }
        }
        (void)detectors_disagree(e, &f);
        for (uint32_t i = 1; f.kind == ALIGN_REORDER && i < f.length && j->seq + i < c->high; i++) {
            comm_slot(c, j->seq + i)->judged = true;
        }
        roll_rankset_fini(&f.minor);
        roll_rankset_fini(&f.major);
    }
    free(guess);
    free(line);
    return ready;
}

void align_step(struct roll_engine *e, struct comm *c)
{
    struct judge j;
    if (!prepare(e, c, &j)) {
        return;
    }
    bool due = e->finishing || j.age >= e->config.stall_ns / 5;
    bool majority = j.vote.majors * 2 > c->size;
    bool all = j.vote.arrived == c->size;
    if (!(majority || all || (due && !j.vote.tie) || e->finishing || j.age >= e->config.stall_ns)) {
        return;
    }
    if (c->blame.cause == 0 && !tells_all(&j)) {
        return;
    }
    uint32_t seq = c->held;
    if (c->blame.cause != 0) { /* predicted before: this is it */
        struct block b = {.kind = BLOCK_BLAMED, .comm = c, .hard = true};
        b.rank = e->source[c->member[j.vote.major_rank].source];
        (void)detectors_block(e, &b);
        comm_mute(e, c, seq);
    }
    comm_slot(c, seq)->sig = j.vote.major;
    close_case(e, c);
    comm_advance(e, c);
    next_case(e, c, seq + 1);
}

void align_open(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    struct slot *s = comm_slot(c, seq);
    if (s->judged) {
        return;
    }
    /* The first disagreement comes first: a later one that was being judged stays held, and is taken up again afterwards. */
    e->held_comms += c->held == NO_SEQ;
    s->held = true;
    c->held = seq;
    c->held_ns = e->clock;
    align_step(e, c);
}

void align_withdraw(struct roll_engine *e, struct comm *c, uint32_t seq)
{
    struct slot *s = comm_slot(c, seq);
    if (s->variant != 0 || !s->held) {
        return;
    }
    s->held = false;
    if (c->held == seq) {
        c->held = NO_SEQ;
        e->held_comms--;
        comm_advance(e, c);
        next_case(e, c, seq + 1);
    }
}
