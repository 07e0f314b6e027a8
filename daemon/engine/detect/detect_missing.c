/*
 * detect_missing.c: some members of a communicator never make a call, or ended without waiting for it.
 *
 * Proven when the absent members cannot come any more: their process has ended in good order, or they have destroyed or
 * aborted the communicator. The vote says who is wrong, and counts absence like a call (judge/wait_judge.c): the few
 * who left, or the few who call, or, between equal camps, nobody. Suspected after suspect_ns, and only when nothing
 * harder explains the wait: a rank is inside a recorded host call for which no incomplete NCCL call is found (blocked),
 * or it has made no call at all (busy). A rank that still makes calls elsewhere is slow, not stuck, and nothing is said
 * about it. There is one verdict for each call and kind of absence; then the communicator is muted until the call is
 * over (judge/silence.c).
 */
#include "daemon/engine/detect/detector.h"

#include <stdio.h>

static const struct row {
    enum block_kind kind;
    enum roll_verdict_code code, tie; /* `tie`: the code when the vote does not say who is wrong */
    enum roll_certainty certainty;
} rows[] = {
    {BLOCK_FINISHED, ROLL_VERDICT_RANK_FINISHED, ROLL_VERDICT_RANK_FINISHED, ROLL_PROVEN},
    {BLOCK_LEFT, ROLL_VERDICT_RANK_FINISHED, ROLL_VERDICT_RANK_FINISHED, ROLL_PROVEN},
    {BLOCK_GONE, ROLL_VERDICT_CALL_SKIPPED, ROLL_VERDICT_SEQUENCE_TIE, ROLL_PROVEN},
    {BLOCK_ABORTED, ROLL_VERDICT_CALL_SKIPPED, ROLL_VERDICT_SEQUENCE_TIE, ROLL_PROVEN},
    {BLOCK_SHORT, ROLL_VERDICT_CALL_SKIPPED, ROLL_VERDICT_SEQUENCE_TIE, ROLL_SUSPECTED},
    {BLOCK_STUCK, ROLL_VERDICT_RANK_BLOCKED, ROLL_VERDICT_RANK_BLOCKED, ROLL_SUSPECTED},
    {BLOCK_BUSY, ROLL_VERDICT_RANK_BUSY, ROLL_VERDICT_RANK_BUSY, ROLL_SUSPECTED},
};

static void words_inside(struct words *w, const struct source *s)
{
    for (uint32_t i = 0; i < s->threads; i++) {
        const struct entry *in = s->thread[i].inside ? source_entry(s, s->thread[i].inside - 1) : NULL;
        if (in) {
            words_add(w, " inside ");
            words_call(w, &in->rec);
            /* The wrapper does not see a C++ exception pass through it. */
            if (roll_op_class(in->rec.op) == ROLL_CLASS_EXT) {
                words_add(w, " (or has left it by an exception)");
            }
            return;
        }
    }
}

static bool many(const struct roll_rankset *set)
{
    return roll_rankset_count(set) > 1;
}

static void tell_ended(struct words *w, const struct block *b)
{
    const struct roll_record *last = &b->rank->last;
    words_ranks(w, &b->absent);
    words_add(w, many(&b->absent) ? " have ended (rank %u: " : " has ended (", b->rank->world);
    words_exit(w, b->rank->exit_status);
    bool failed = b->rank->exit_status != ROLL_EXIT_UNKNOWN && b->rank->exit_status != 0;
    if (b->kind == BLOCK_LEFT && failed) {
        words_add(w,
                  ") with the call enqueued; what was not over by then ended with the process. It has failed: look at "
                  "what it printed last.");
    } else if (b->kind == BLOCK_LEFT) {
        words_add(w,
                  ") with the call enqueued, without waiting for it: what was not over by then ended with the process. "
                  "Synchronise (cudaStreamSynchronize, ncclCommFinalize) before a rank ends.");
    } else if (call_failed(last)) { /* the application may have ended because of this error */
        words_add(w, ") without making it. Its last call, ");
        words_call(w, last);
        words_add(w, ", had returned %s: look at what it said before it ended.", roll_result_name(last->result));
    } else if (failed) {
        words_add(
            w,
            ") without making it. It has failed: look at what it printed last. When one rank ends for a reason of its "
            "own (a bad loss, an exception), all ranks have to learn of it and agree before one of them leaves.");
    } else if (b->camp == CAMP_MADE) {
        words_add(w, ") without making it, after fewer calls than the others made. Look for a loop that ends early, or "
                     "an exit on some ranks only.");
    } else {
        words_add(w, ") without making it.");
    }
}

/*
 * A snapshot shows the rank's device stuck: the oldest of its collectives that all other members have completed, and
 * its own device has not. NULL: there is none. Calls before the window of a member count as completed there.
 */
static const struct entry *stands_on_device(const struct roll_engine *e, const struct source *s, struct comm **on)
{
    for (uint64_t t = source_log_low(s); s->snapshot && t < s->next; t++) {
        const struct entry *entry = source_entry(s, t);
        const struct member *m = entry ? source_member(s, entry->rec.comm) : NULL;
        if (!m || m->comm->size < 2 || roll_op_class(entry->rec.op) != ROLL_CLASS_COLL ||
            roll_seal_state(entry->rec.seal) == ROLL_STATE_COMPLETE) {
            continue;
        }
        bool over = true;
        for (uint32_t r = 0; r < m->comm->size && over; r++) {
            const struct member *o = &m->comm->member[r];
            bool known = o->source != NO_SOURCE && !o->unsure && o->next > entry->rec.seq;
            uint64_t at = known && o->from <= entry->rec.seq ? source_ticket_of(e->source[o->source], o, entry->rec.seq)
                                                             : NO_TICKET;
            const struct entry *its = at != NO_TICKET ? source_entry(e->source[o->source], at) : NULL;
            over =
                o == m ||
                (known && (o->from > entry->rec.seq || (its && roll_seal_state(its->rec.seal) == ROLL_STATE_COMPLETE)));
        }
        if (over) {
            *on = m->comm;
            return entry;
        }
    }
    return NULL;
}

/* Of a snapshot nothing is known but the calls: where the host stands, and what came later, it does not say. */
static void tell_snapshot(struct words *w, const struct roll_engine *e, const struct block *b)
{
    struct comm *on;
    const struct entry *device = stands_on_device(e, b->rank, &on);
    bool one = !many(&b->absent);
    if (b->rank->lacking) {
        words_add(w, "all members of which there is a dump have made it, and of ");
        words_ranks(w, &b->absent);
        words_add(
            w,
            " there is none: %s or hang%s where no dump could be written, or the file%s not collected. Suspected: "
            "a rule of thumb.",
            one ? "it may have died, may have ended," : "they may have died, may have ended,", one ? "s" : "",
            one ? " was" : "s were");
        return;
    }
    words_add(w, one ? "the dump of " : "the dumps of ");
    words_ranks(w, &b->absent);
    words_add(w, one ? " ends before it." : " end before it.");
    if (device) {
        words_add(w, " The device of rank %u has not completed ", b->rank->world);
        words_call(w, &device->rec);
        words_add(w, ", #%u on ", device->rec.seq);
        words_comm(w, on);
        words_add(w, ", which all other members have: look at the device and the node of that rank.");
    } else {
        words_add(w, " Whether %s busy or stuck in host code, or only slow, a dump does not say.",
                  one ? "its host is" : "their hosts are");
    }
    words_add(w, " Suspected: dumps do not prove that the job stands still.");
}

/* What the ranks did that are in the communicator no more. */
static const char *how_left(const struct block *b)
{
    bool revoked = false, aborted = false;
    for (uint32_t r = 0; b->comm && r < b->comm->size; r++) {
        uint32_t world = comm_world(b->comm->engine, b->comm, r);
        bool here = world != NO_SOURCE && roll_rankset_has(&b->absent, world);
        revoked = revoked || (here && b->comm->member[r].ended == ROLL_OP_COMM_REVOKE);
        aborted = aborted || (here && b->comm->member[r].ended == ROLL_OP_COMM_ABORT);
    }
    return revoked && aborted ? "revoked or aborted" : revoked ? "revoked" : "aborted";
}

static void tell(struct words *w, const struct roll_engine *e, const struct block *b)
{
    if (b->kind == BLOCK_BUSY && b->rank->snapshot) {
        tell_snapshot(w, e, b);
        return;
    }
    double quiet = e->clock > b->rank->seen ? (double)(e->clock - b->rank->seen) / 1e9 : 0;
    char stretched[160] = "";
    uint64_t counted = e->calm > b->rank->calm ? e->calm - b->rank->calm : 0;
    if (patience_is_stretched((uint64_t)(quiet * 1e9), counted)) {
        snprintf(stretched, sizeof(stretched), " (%.1f s of that count: CPUs were short, so patience was stretched)",
                 (double)counted / 1e9);
    }
    switch (b->kind) {
    case BLOCK_FINISHED:
    case BLOCK_LEFT:
        tell_ended(w, b);
        break;
    case BLOCK_GONE:
        words_ranks(w, &b->absent);
        words_add(w, "%s destroyed the communicator without making it.", many(&b->absent) ? " have" : " has");
        break;
    case BLOCK_ABORTED:
        words_ranks(w, &b->absent);
        words_add(w, "%s %s the communicator; the others have not, and what was not over stays undone.",
                  many(&b->absent) ? " have" : " has", how_left(b));
        break;
    case BLOCK_SHORT:
        words_add(w, "the group of ");
        words_ranks(w, &b->absent);
        words_add(w,
                  " there has ended without it, and %s behind that. NCCL sorts what a group holds: where groups differ "
                  "between ranks, calls meet that do not belong together, and none of them completes. Suspected: the "
                  "call may still come outside of the group.",
                  many(&b->absent) ? "they wait" : "it waits");
        break;
    case BLOCK_STUCK:
        words_add(w, "rank %u has been", b->rank->world);
        words_inside(w, b->rank);
        words_add(w,
                  " for at least %.1f s%s, for a reason that is not among the recorded NCCL calls (a kernel that does "
                  "not end, another library's communication). Suspected: a rule of thumb.",
                  quiet, stretched);
        break;
    default:
        words_ranks(w, &b->absent);
        words_add(w,
                  " %s made no call for %.1f s%s and %s not inside one: busy or stuck in host code (data "
                  "loading, a checkpoint, a lock, a loop). While it runs, `rollcall stacks %u` shows where. "
                  "Suspected: it may only be slow.",
                  many(&b->absent) ? "have" : "has", quiet, stretched, many(&b->absent) ? "are" : "is", b->rank->world);
        break;
    }
}

struct missing_source {
    /* Ticket + 2 of the rank's last call (1: none) when it was told that the rank does not come; 0 = never. */
    uint64_t told;
    uint64_t number;      /* of the suspicion that said so; 0: there was none */
    uint32_t named, left; /* how many ranks it names; how many of them had not come when that was last looked at, */
    uint64_t looked_ns;   /* at this moment of the engine's clock */
};
STATE_OF_SOURCE(missing)

bool missing_is_told(const struct source *s)
{
    const struct missing_source *own = missing_of_source(s);
    return own && own->told == roll_seal_ticket(s->last.seal) + 2;
}

void missing_set_told(struct source *s)
{
    struct missing_source *own = missing_make_source(s);
    if (own) {
        own->told = roll_seal_ticket(s->last.seal) + 2;
    }
}

/* The ranks of b are told as missing, by the verdict that will have this number. */
static void set_told(struct roll_engine *e, const struct block *b, uint64_t number)
{
    for (uint32_t i = 0; i < e->sources; i++) {
        struct source *s = e->source[i];
        struct missing_source *own = roll_rankset_has(&b->absent, s->world) ? missing_make_source(s) : NULL;
        if (own) {
            missing_set_told(s);
            own->number = number;
            own->named = own->left = (uint32_t)roll_rankset_count(&b->absent);
            own->looked_ns = e->clock;
        }
    }
}

/* Half of the ranks that the suspicion names have called something since, and no more of them for a while: the others,
 * which b misses, are to be named alone. */
static bool has_shrunk(struct roll_engine *e, const struct block *b)
{
    struct missing_source *own = missing_of_source(b->rank);
    uint32_t left = 0;
    bool all = true;
    if (!own || own->number == 0 || e->clock - own->looked_ns < e->config.suspect_ns || !say_stands(e, own->number)) {
        return false;
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct missing_source *other = missing_of_source(e->source[i]);
        if (other && other->number == own->number && missing_is_told(e->source[i])) {
            left++;
            all = all && roll_rankset_has(&b->absent, e->source[i]->world);
        }
    }
    bool rests = left == own->left;
    own->left = left;
    own->looked_ns = e->clock;
    return rests && all && left * 2 <= own->named;
}

/* A rank that once came late here gets twice that time again. */
static bool has_patience(const struct roll_engine *e, const struct block *b)
{
    const struct member *m = comm_member_of(b->comm, source_index(e, b->rank));
    return m && e->clock - b->rank->seen < m->late_ns * 2;
}

/* What is said of ranks that wait for the same rank, but in other calls than that of the verdict. */
static void tell_elsewhere(struct roll_engine *e, const struct block *b, const struct roll_rankset *in,
                           struct roll_verdict *v, struct words *w)
{
    const struct block *o = b->other;
    const struct entry *waits = o && o->waiter ? source_entry(o->waiter, o->ticket) : NULL;
    struct roll_rankset rest = {0}, there = {0}, part = {0};
    if (waits && o->comm) {
        waiting_at(e, o, &there);
    }
    for (uint32_t i = 0; i < e->sources; i++) {
        uint32_t world = e->source[i]->world;
        if (roll_rankset_has(b->waiting, world) && !roll_rankset_has(in, world)) {
            (void)roll_rankset_add(&rest, world);
            if (roll_rankset_has(&there, world)) {
                (void)roll_rankset_add(&part, world);
            }
        }
    }
    if (roll_rankset_count(&rest) > 0) {
        words_add(w, " ");
        words_wait(w, &rest);
        words_add(w, " for rank %u elsewhere", b->rank->world);
        if (roll_rankset_count(&part) > 0) {
            say_side(v, o->waiter, source_index(e, o->waiter), &part, &waits->rec);
            words_add(w, ", ");
            if (!roll_rankset_equal(&part, &rest)) {
                words_ranks(w, &part);
                words_add(w, " of them ");
            }
            words_add(w, "in ");
            words_call(w, &waits->rec);
            if (roll_op_class(waits->rec.op) != ROLL_CLASS_COMM) {
                words_add(w, ", #%u", waits->rec.seq);
            }
            words_add(w, " on ");
            words_comm(w, o->comm);
        }
        words_add(w, ".");
    }
    roll_rankset_fini(&rest);
    roll_rankset_fini(&there);
    roll_rankset_fini(&part);
}

/* The key of what is said of this call while the vote is open: when it is not any more, that is said in its place. */
static uint64_t open_key(const struct block *b, const struct entry *waits)
{
    return say_key(ROLL_VERDICT_CALL_SKIPPED, b->comm->key, waits->rec.seq, UINT64_MAX);
}

/* What was suspected of this call while the vote was open, or of this rank alone on the communicator while it was
 * merely quiet; 0: nothing that stands. */
static uint64_t said_before(const struct roll_engine *e, const struct block *b, const struct entry *waits)
{
    const struct missing_source *own = missing_of_source(b->rank);
    uint64_t number = say_recall(e, open_key(b, waits));
    if (number == 0 && own && own->named == 1 && own->number != 0) {
        const struct told *told = say_told(e, own->number);
        number = told && told->comm_key == b->comm->key && told->certainty == ROLL_SUSPECTED ? own->number : 0;
    }
    return number != 0 && say_stands(e, number) ? number : 0;
}

/* What is said of this reason. lone: of those that call; tie: of two sides. */
static enum roll_verdict_code code_of(const struct roll_engine *e, const struct block *b, const struct row *row,
                                      bool lone, bool tie)
{
    struct comm *on;
    enum roll_verdict_code code = lone ? ROLL_VERDICT_CALL_ADDED : tie ? row->tie : row->code;
    return b->kind == BLOCK_BUSY && stands_on_device(e, b->rank, &on) ? ROLL_VERDICT_RANK_BLOCKED : code;
}

/* Says it, in the place of `earlier`; 0: of nothing. */
static void speak(struct roll_engine *e, const struct block *b, const struct row *row, const struct entry *waits,
                  uint64_t earlier, uint64_t mutes)
{
    bool vote = row->certainty == ROLL_PROVEN || b->kind == BLOCK_SHORT;
    bool tie = b->camp == CAMP_TIE && vote, lone = b->camp == CAMP_NEVER;
    bool open = b->camp == CAMP_OPEN && row->certainty == ROLL_PROVEN;
    enum roll_verdict_code code = code_of(e, b, row, lone, tie);
    struct roll_verdict *v = say(e, code, open ? ROLL_SUSPECTED : row->certainty);
    if (!v) {
        return;
    }
    say_supersedes(e, v, earlier);
    struct roll_rankset in = {0}; /* those that wait in this call; `waiting` may hold ranks that wait elsewhere */
    waiting_at(e, b, &in);
    say_comm(v, b->comm, waits->rec.seq);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    if (!tie) {
        (void)roll_rankset_copy(&v->culprits, lone ? &in : &b->absent);
    }
    const struct roll_record *last = b->rank->last.op ? &b->rank->last : NULL;
    if (lone) {
        say_side(v, b->waiter, source_index(e, b->waiter), &in, &waits->rec);
        say_side(v, b->rank, source_index(e, b->rank), &b->absent, last);
    } else {
        say_side(v, b->rank, source_index(e, b->rank), &b->absent, last);
        say_side(v, b->waiter, source_index(e, b->waiter), &in, &waits->rec);
    }
    if (v->certainty == ROLL_SUSPECTED) {
        doubt_add(e, v->number, mutes, b);
    }
    if (open) {
        say_remember(e, open_key(b, waits), v->number);
    }
    stuck_lone_taken(e, v, &b->absent);
    struct words w = {.used = 0};
    words_wait(&w, &in);
    words_add(&w, ", in ");
    words_call(&w, &waits->rec);
    words_add(&w, ", #%u on ", waits->rec.seq);
    words_comm(&w, b->comm);
    words_add(&w, "; ");
    tell(&w, e, b);
    if (lone) {
        words_add(&w, b->beside
                          ? " Most members of this communicator and of those that were made beside it, and that have "
                            "made the same calls so far, never make this one: "
                          : " Most members never make this call: ");
        words_ranks(&w, &in);
        words_add(&w, " made one too many.");
    } else if (tie) {
        words_add(&w, " As many made the call as did not: the calls alone do not say which side is wrong.");
    } else if (b->beside && b->camp == CAMP_MADE) {
        words_add(&w,
                  " As many made the call as did not; the communicators that were made beside this one, by the same "
                  "split or for the same use, have made it after the same calls.");
    } else if (open) {
        words_add(&w, " Suspected: others have neither made the call nor left, and they decide who is wrong.");
    }
    tell_elsewhere(e, b, &in, v, &w);
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&in);
}

/*
 * The ranks that never make the call have left out an earlier one: from there on their calls are those that their peers
 * make behind it, by the lines of the program. That is what is told then, and not where the calls run out.
 */
static bool tell_parting(struct roll_engine *e, const struct block *b, const struct entry *waits)
{
    const struct member *a = comm_member_of(b->comm, source_index(e, b->waiter));
    const struct member *m = comm_member_of(b->comm, source_index(e, b->rank));
    bool in_order = (b->kind == BLOCK_FINISHED && !source_failed(b->rank)) || b->kind == BLOCK_GONE;
    struct parting part;
    /* Ranks that run out at the same call are taken to have left out the same one; each could have its own. */
    bool one = roll_rankset_count(&b->absent) == 1 && b->camp == CAMP_MADE && !b->beside;
    if (!in_order || !one || !a || !m || m->next > waits->rec.seq ||
        !part_find(e, a, m, m->next, e->config.window, true, &part) || part.overlap < 2) {
        return false;
    }
    struct finding f = {.comm = b->comm,
                        .seq = part.seq,
                        .shown = waits->rec.seq,
                        .kind = ALIGN_SKIP,
                        .length = part.length,
                        .overlap = part.overlap,
                        .certainty = ROLL_PROVEN,
                        .minor_source = b->rank,
                        .minor_ticket = roll_seal_ticket(part.b->seal),
                        .major_source = b->waiter,
                        .major_ticket = roll_seal_ticket(part.a->seal)};
    (void)roll_rankset_copy(&f.minor, &b->absent);
    waiting_at(e, b, &f.major);
    bool told = detect_align.disagree(e, &f);
    roll_rankset_fini(&f.minor);
    roll_rankset_fini(&f.major);
    return told;
}

static bool missing_block(struct roll_engine *e, const struct block *b)
{
    const struct row *row = NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        row = rows[i].kind == b->kind ? &rows[i] : row;
    }
    if (!row) {
        return false;
    }
    const struct entry *waits = b->waiter ? source_entry(b->waiter, b->ticket) : NULL;
    if (!waits || !b->comm) {
        return true;
    }
    uint64_t earlier = 0, mutes = e->mutes;
    if (row->certainty == ROLL_PROVEN || b->kind == BLOCK_SHORT) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
        comm_explained(e, b->comm);
        earlier = said_before(e, b, waits);
    } else if (has_patience(e, b)) {
        return true;
    } else if (missing_is_told(b->rank)) {
        if (!has_shrunk(e, b)) {
            return true;
        }
        earlier = missing_of_source(b->rank)->number;
    } else {
        earlier = doubt_of(e, b); /* of the same ranks, which have called something else since, and are quiet again */
        const struct told *told = say_told(e, earlier);
        if (told && told->code == code_of(e, b, row, false, false)) {
            set_told(e, b, earlier);
            return true;
        }
    }
    if (row->certainty == ROLL_SUSPECTED) {
        set_told(e, b, e->numbers + 1);
    }
    if (!tell_parting(e, b, waits)) {
        speak(e, b, row, waits, earlier, mutes);
    }
    return true;
}

const struct detector detect_missing = {.name = "missing", .block = missing_block};
