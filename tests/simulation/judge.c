/*
 * judge.c: see judge.h. The rules stand in accept.def.
 */
#include "tests/simulation/judge.h"

const char *const outcome_name[OUTCOMES] = {"right",    "suspected", "wrong-code", "wrong-ranks",
                                            "innocent", "missed",    "false",      "extra"};

enum certainties { PROVEN, SUSPECTED, ANY, HIDDEN };
enum named { EXACT, OPEN, NOBODY, TIE, CIRCLE, NAMED, PART, UNSEEN, SHIFTED, SHARED };

/* Codes that engines of other days do not have: by number. */
#define CODE_ALLTOALLV        ROLL_VERDICT_ALLTOALLV_MISMATCH
#define CODE_OPPOSITE_ORDER   402
#define CODE_CROSSED_WAIT     404
#define CODE_CALL_REFUSED     502
#define CODE_COLLECTIVE_STUCK 606
#define CODE_THREAD_RACE      ROLL_VERDICT_THREAD_RACE
#define CODE_CALL_SKIPPED     ROLL_VERDICT_CALL_SKIPPED
#define CODE_CALL_ADDED       ROLL_VERDICT_CALL_ADDED
#define CODE_CALLS_REORDERED  ROLL_VERDICT_CALLS_REORDERED
#define CODE_SEQUENCE_TIE     ROLL_VERDICT_SEQUENCE_TIE
#define CODE_CIRCULAR_WAIT    ROLL_VERDICT_CIRCULAR_WAIT
#define CODE_OP_MISMATCH      ROLL_VERDICT_OP_MISMATCH
#define CODE_COUNT_MISMATCH   ROLL_VERDICT_COUNT_MISMATCH
#define CODE_DTYPE_MISMATCH   ROLL_VERDICT_DTYPE_MISMATCH
#define CODE_REDOP_MISMATCH   ROLL_VERDICT_REDOP_MISMATCH
#define CODE_ROOT_MISMATCH    ROLL_VERDICT_ROOT_MISMATCH
#define CODE_ZERO_COUNT       ROLL_VERDICT_ZERO_COUNT
#define CODE_P2P_BYTES        ROLL_VERDICT_P2P_BYTES
#define CODE_P2P_UNMATCHED    ROLL_VERDICT_P2P_UNMATCHED
#define CODE_P2P_DEADLOCK     ROLL_VERDICT_P2P_DEADLOCK
#define CODE_RANK_FINISHED    ROLL_VERDICT_RANK_FINISHED
#define CODE_RANK_DEAD        ROLL_VERDICT_RANK_DEAD
#define CODE_RANK_STOPPED     ROLL_VERDICT_RANK_STOPPED
#define CODE_RANK_BUSY        ROLL_VERDICT_RANK_BUSY
#define CODE_INIT_MISSING     ROLL_VERDICT_INIT_MISSING

static const struct rule {
    enum mutation_kind kind;
    unsigned code;
    enum certainties certainties;
    enum named named;
} rules[] = {
#define ACCEPT_ROW(mutation, verdict, certainty, who) {MUTATION_##mutation, CODE_##verdict, certainty, who},
#include "tests/simulation/accept.def"
#undef ACCEPT_ROW
};

/* Ranks that wait for ever in a way that proves nothing: a blocking copy leaves no record, a loop of polls may end by
 * itself, and a second thread that has made calls and is in none may still make the one that is missing. */
static mask_t waits_hidden(const struct program *p, const struct story *s)
{
    mask_t hidden = 0, threads[THREADS_MAX] = {0};
    for (uint32_t i = 0; i < p->acts; i++) {
        threads[p->act[i].thread] = (mask_t)(threads[p->act[i].thread] | p->act[i].ranks);
    }
    for (uint32_t r = 0; r < p->ranks; r++) {
        for (uint32_t t = 0; t < THREADS_MAX; t++) {
            uint16_t act = s->rank[r].stuck[t];
            bool unseen = act != NO_ACT && (p->act[act].kind == ACT_POLL || p->act[act].kind == ACT_COPY ||
                                            p->act[act].kind == ACT_EXIT);
            bool idle = act == NO_ACT && (threads[t] & threads[1] & BIT(r)) != 0;
            hidden = (mask_t)(hidden | ((unseen || idle) && (s->waiting & BIT(r)) != 0 ? BIT(r) : 0));
        }
    }
    return hidden;
}

static bool is_half(const struct program *p, int comm, mask_t who)
{
    mask_t members = comm >= 0 ? p->comm[comm].members : 0;
    return comm >= 0 && mask_count((mask_t)(members & who)) * 2 == mask_count(members);
}

/* The ranks that made the mistake are half of the communicator. A mistake between communicators may be in either of
 * them, and a process that ends leaves all of its communicators. */
bool mutation_is_tie(const struct program *p, const struct mutation *k)
{
    if (is_half(p, k->comm, k->who)) {
        return true;
    }
    bool ends = k->kind == MUTATION_EXIT || k->kind == MUTATION_EXIT_CODE || k->kind == MUTATION_EXIT_UNDONE;
    bool several = k->kind == MUTATION_SWAP_COMMS || k->kind == MUTATION_WRONG_COMM || ends;
    for (uint32_t c = 0; several && c < p->comms; c++) {
        if ((p->comm[c].members & k->who) != 0 && is_half(p, (int)c, k->who)) {
            return true;
        }
    }
    return false;
}

/* What the rank made next, before anything else, is the very call that was refused: in the records the same as making
 * it again. */
static bool next_is_alike(const struct program *p, const struct mutation *k)
{
    const struct act *a = &p->act[k->mark];
    for (uint32_t i = k->mark + 1; i < p->acts; i++) {
        const struct act *b = &p->act[i];
        if ((b->ranks & k->who) != 0 && b->thread == a->thread && b->kind != ACT_PAUSE) {
            return b->kind == ACT_COLL && b->comm == a->comm && b->op == a->op && b->count == a->count &&
                   b->dtype == a->dtype && b->redop == a->redop && b->peer == a->peer;
        }
    }
    return false;
}

/* NCCL refused the call. A nonblocking communicator's answer that it is in progress is no refusal. */
static bool is_refused(const struct log *log)
{
    enum { IN_PROGRESS = 7 };
    return log->rec.result != 0 && log->rec.result != IN_PROGRESS;
}

/* The first call of this rank that is never done: what it waits in. */
static const struct log *waits_in(const struct story *s, uint32_t rank)
{
    const struct rank_story *story = &s->rank[rank];
    for (uint32_t i = 0; i < story->logs; i++) {
        enum roll_op_class class = roll_op_class(story->log[i].rec.op);
        bool call = (class == ROLL_CLASS_COLL && story->log[i].rec.count != 0) || class == ROLL_CLASS_P2P;
        bool refused = is_refused(&story->log[i]);
        if (call && !refused && story->log[i].done_ns == NEVER) {
            return &story->log[i];
        }
    }
    return NULL;
}

/*
 * What a rank that did wrong waits in is shared with no more others than did wrong: with the partner of a message, or
 * on a communicator of two. Its order against another call only those know, and each of them may be the one who has it
 * wrong.
 */
static bool is_shared_by_half(const struct program *p, const struct mutation *k, const struct story *s)
{
    const struct log *log = k->who != 0 ? waits_in(s, mask_first(k->who)) : NULL;
    if (!log) {
        return false;
    }
    const struct act *a = &p->act[log->act];
    mask_t others = a->kind == ACT_COLL ? p->comm[a->comm].members : 0;
    for (uint32_t i = 0; i < p->acts && a->kind != ACT_COLL; i++) {
        const struct act *b = &p->act[i];
        bool message = (b->kind == ACT_SEND || b->kind == ACT_RECV) && b->unit == a->unit && (b->ranks & k->who) != 0;
        bool same = log->rec.group != 0 || b == a;
        others = (mask_t)(others | (message && same ? BIT(b->peer) : 0));
    }
    return mask_count((mask_t)(others & ~k->who)) <= mask_count(k->who);
}

static bool names_well(const struct program *p, const struct mutation *k, const struct story *s, enum named named,
                       mask_t culprits)
{
    bool tie = mutation_is_tie(p, k);
    switch (named) {
    case EXACT:
        return culprits == k->who || (culprits == 0 && tie);
    case NAMED:
        return culprits == k->who;
    case SHARED:
        return culprits == k->who || (culprits == 0 && (tie || is_shared_by_half(p, k, s)));
    case SHIFTED:
        return (culprits == k->who || (culprits == 0 && tie)) && next_is_alike(p, k);
    case OPEN:
        return culprits == k->who || culprits == 0;
    case NOBODY:
        return culprits == 0;
    case TIE:
        return culprits == 0 && tie;
    case PART:
        return culprits != 0 && (culprits & ~k->who) == 0;
    case UNSEEN:
        return culprits != 0 && (culprits & ~waits_hidden(p, s)) == 0;
    case CIRCLE:
        return (culprits & ~s->waiting) == 0;
    }
    return false;
}

/* Does the verdict say itself that it may be what is right? */
static bool is_open(const struct mutation *k, const struct found *f)
{
    for (uint32_t i = 0; i < f->may_bes; i++) {
        for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
            if (rules[r].kind == k->kind && rules[r].code == (unsigned)f->may_be[i] &&
                rules[r].certainties != SUSPECTED) {
                return true;
            }
        }
    }
    return false;
}

/* What the records say, as far as the rules ask. */
struct sight {
    mask_t hidden; /* ranks that wait in a way that proves nothing */
    bool certain;  /* the class of the mistake is beyond doubt */
};

static struct sight look(const struct program *p, const struct mutation *k, const struct story *s)
{
    return (struct sight){.hidden = waits_hidden(p, s), .certain = !mutation_is_tie(p, k) && class_is_certain(p, k, s)};
}

static bool certain_enough(const struct rule *r, const struct found *f, const struct sight *sight, bool open,
                           bool *weak)
{
    bool proven = f->certainty == ROLL_PROVEN;
    *weak = false;
    switch (r->certainties) {
    case PROVEN:
        *weak = !proven;
        return true;
    case HIDDEN:
        *weak = !proven && sight->hidden == 0;
        return true;
    case SUSPECTED:
        return (!proven || open) && !sight->certain;
    case ANY:
        *weak = !proven && sight->certain;
        return true;
    }
    return false;
}

enum merit { GOOD, WEAK, BAD_CODE, BAD_RANKS };

/* A race leaves the order of the rank's calls to chance; what comes of that may be told besides, about the same rank or
 * nobody. */
static bool is_consequence(const struct mutation *k, const struct found *f)
{
    bool order = roll_verdict_family(f->code) == ROLL_FAMILY_ALIGNMENT ||
                 roll_verdict_family(f->code) == ROLL_FAMILY_SEQUENCE || f->code == ROLL_VERDICT_CIRCULAR_WAIT ||
                 (unsigned)f->code == CODE_CROSSED_WAIT;
    return k->kind == MUTATION_RACE && order && (f->culprits & ~k->who) == 0;
}

static enum merit judge_one(const struct program *p, const struct mutation *k, const struct story *s,
                            const struct found *f, const struct sight *sight)
{
    bool weak = false, weak_only = false, ranks = false;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const struct rule *r = &rules[i];
        if (r->kind != k->kind) {
            continue;
        }
        bool named = names_well(p, k, s, r->named, f->culprits);
        ranks = ranks || named;
        if (r->code != (unsigned)f->code || !named || !certain_enough(r, f, sight, is_open(k, f), &weak)) {
            continue;
        }
        if (!weak) {
            return GOOD;
        }
        weak_only = true;
    }
    return weak_only ? WEAK : ranks && f->culprits != 0 ? BAD_CODE : ranks ? BAD_CODE : BAD_RANKS;
}

/* The rank has made the collective that this one of another rank belongs to. */
static bool has_made(const struct program *p, const struct rank_story *r, const struct log *other)
{
    for (uint32_t i = 0; i < r->logs; i++) {
        const struct log *log = &r->log[i];
        if (roll_op_class(log->rec.op) == ROLL_CLASS_COLL && log->rec.count != 0 && !is_refused(log) &&
            p->act[log->act].comm == p->act[other->act].comm && log->rec.seq == other->rec.seq) {
            return true;
        }
    }
    return false;
}

/* All that waits in it waits in blocking copies, of which nothing is recorded. */
static bool is_silent(const struct program *p, const struct rank_story *r)
{
    bool silent = true;
    for (uint32_t t = 0; t < THREADS_MAX; t++) {
        uint16_t act = r->stuck[t];
        silent = silent && (act == NO_ACT || p->act[act].kind == ACT_COPY || p->act[act].kind == ACT_EXIT);
    }
    return silent;
}

/* Nobody is seen to wait: everyone has arrived, and in the records it is a job whose ranks all do something by
 * themselves (a checkpoint). */
static bool nobody_waits(const struct program *p, const struct story *s)
{
    bool silent = true;
    for (mask_t left = s->waiting; left != 0; left = (mask_t)(left & (left - 1))) {
        silent = silent && is_silent(p, &s->rank[mask_first(left)]);
    }
    return silent;
}

/*
 * Who is left waits in a blocking copy, of which nothing is recorded, for calls that those who have ended have made as
 * well. In the records it is a job whose first ranks have waited in a copy too, and have ended, and whose last ranks
 * still do something by themselves.
 */
static bool leaves_no_trace(const struct program *p, const struct mutation *k, const struct story *s)
{
    for (mask_t left = (mask_t)(s->waiting & ~k->who); left != 0; left = (mask_t)(left & (left - 1))) {
        const struct rank_story *r = &s->rank[mask_first(left)];
        if (!is_silent(p, r)) {
            return false;
        }
        for (uint32_t i = 0; i < r->logs; i++) {
            const struct log *log = &r->log[i];
            enum roll_op_class class = roll_op_class(log->rec.op);
            bool undone = log->done_ns == NEVER && !is_refused(log);
            if (undone && class == ROLL_CLASS_P2P) {
                return false;
            }
            mask_t members = undone && class == ROLL_CLASS_COLL && log->rec.count != 0
                                 ? (mask_t)(p->comm[p->act[log->act].comm].members & k->who)
                                 : 0;
            for (; members != 0; members = (mask_t)(members & (members - 1))) {
                if (!has_made(p, &s->rank[mask_first(members)], log)) {
                    return false;
                }
            }
        }
    }
    return true;
}

/* Must it be told? Not when nobody waits in the end and no result is wrong. */
static bool must_be_told(const struct program *p, const struct mutation *k, const struct story *s)
{
    switch (k->kind) {
    case MUTATION_DTYPE: /* of as many bytes: the sums are wrong */
        return s->hangs || p->act[k->mark].redop != ROLL_RED_NONE;
    case MUTATION_REDOP:
        return true;
    case MUTATION_EXIT_UNDONE:
        return (s->waiting & ~k->who) != 0 && !leaves_no_trace(p, k, s);
    case MUTATION_EXIT:
    case MUTATION_EXIT_CODE:
    case MUTATION_KILL_HOST:
    case MUTATION_KILL_WAIT:
    case MUTATION_STOP:
    case MUTATION_SPIN:
        return (s->waiting & ~k->who) != 0;
    case MUTATION_RACE:
        return true;
    case MUTATION_JAM:
        return s->hangs && !nobody_waits(p, s);
    default:
        return s->hangs;
    }
}

/* A verdict that has been taken back, or has been replaced by a better one, is no finding any more; but a proven one is
 * not taken back. */
static bool stands(const struct found *f)
{
    return !f->superseded || (f->withdrawn && f->certainty == ROLL_PROVEN);
}

static enum outcome judge_healthy(const struct findings *f)
{
    for (uint32_t i = 0; i < f->founds; i++) {
        if (stands(&f->found[i])) {
            return OUTCOME_FALSE;
        }
    }
    return OUTCOME_RIGHT;
}

static void note_latency(struct latency *latency, const struct story *s, const struct found *one)
{
    if (!latency->known && s->event_ns != NEVER && one->now_ns > s->event_ns) {
        latency->known = true;
        latency->event_ns = one->now_ns - s->event_ns;
        latency->still_ns = one->now_ns > s->still_ns ? one->now_ns - s->still_ns : 0;
    }
}

/* Have all members made the call in which this mistake was made? A job that stops before it has nothing to compare. */
static bool was_met(const struct program *p, const struct mutation *k, const struct story *s)
{
    const struct log *odd = NULL;
    const struct rank_story *own = &s->rank[mask_first(k->who)];
    for (uint32_t i = 0; i < own->logs && !odd; i++) {
        odd = own->log[i].act == k->mark && roll_op_class(own->log[i].rec.op) == ROLL_CLASS_COLL ? &own->log[i] : NULL;
    }
    for (mask_t left = p->comm[k->comm].members; odd && left != 0; left = (mask_t)(left & (left - 1))) {
        const struct rank_story *r = &s->rank[mask_first(left)];
        bool met = false;
        for (uint32_t i = 0; i < r->logs && !met; i++) {
            const struct log *log = &r->log[i];
            met = roll_op_class(log->rec.op) == ROLL_CLASS_COLL && log->rec.count != 0 && !is_refused(log) &&
                  p->act[log->act].comm == k->comm && log->rec.seq == odd->rec.seq;
        }
        odd = met ? odd : NULL;
    }
    return odd != NULL;
}

/*
 * Two mistakes, one after the other: each is told once, the second in any case; but the first only where all have come
 * to it, and the second only where it was made: the first may stop the job (inside a group another reduction is another
 * order). A verdict that is right for either is about the one that nothing else has told.
 */
static enum outcome judge_double(const struct program *p, const struct mutation *k, const struct story *s,
                                 const struct findings *f, struct latency *latency)
{
    struct mutation first = mutation_first(k), second = mutation_second(k);
    uint32_t firsts = 0, seconds = 0, either = 0, bad = 0, bad_ranks = 0;
    mask_t who = (mask_t)(first.who | second.who);
    struct sight sight = look(p, k, s), sight2 = look(p, &second, s);
    bool innocent = false, weak = false, made = s->event_ns != NEVER;
    for (uint32_t i = 0; i < f->founds; i++) {
        const struct found *one = &f->found[i];
        enum merit of_first = judge_one(p, &first, s, one, &sight), of_second = judge_one(p, &second, s, one, &sight2);
        bool good = of_first <= WEAK || of_second <= WEAK;
        innocent = innocent || (!good && one->certainty == ROLL_PROVEN && (one->culprits & ~who) != 0);
        if (!stands(one)) {
            continue;
        }
        if (of_first <= WEAK && of_second <= WEAK && k->kind == MUTATION_AFTER_REDOP) {
            either++;
            weak = weak || (of_first == WEAK && of_second == WEAK);
        } else if (of_second <= WEAK) {
            seconds++;
            weak = weak || of_second == WEAK;
            note_latency(latency, s, one);
        } else if (of_first <= WEAK) {
            firsts++;
        } else {
            bad++;
            bad_ranks += of_second == BAD_RANKS;
        }
    }
    if (firsts == 0 && either > 0) {
        firsts++;
        either--;
    }
    seconds += either;
    bool must_first = k->kind == MUTATION_AFTER_REDOP && was_met(p, &first, s);
    bool must_second = made && must_be_told(p, &second, s);
    if (innocent) {
        return OUTCOME_INNOCENT;
    }
    if (f->lossy) {
        return OUTCOME_RIGHT;
    }
    if ((seconds == 0 && bad == 0 && must_second) || (must_first && firsts == 0)) {
        return OUTCOME_MISSED;
    }
    if (firsts > 1 || seconds > mask_count(second.who) || (bad > 0 && seconds > 0)) {
        return OUTCOME_EXTRA;
    }
    if (bad > 0) {
        return bad_ranks > 0 ? OUTCOME_WRONG_RANKS : OUTCOME_WRONG_CODE;
    }
    return weak ? OUTCOME_SUSPECTED : OUTCOME_RIGHT;
}

enum outcome judge(const struct program *p, const struct mutation *k, const struct story *s, const struct findings *f,
                   struct latency *latency)
{
    uint32_t good = 0, weak = 0, bad_ranks = 0, standing = 0;
    unsigned first_code = 0;
    mask_t told = 0;
    struct sight sight = look(p, k, s);
    bool innocent = false;
    *latency = (struct latency){0};
    if (k->kind == MUTATION_NONE) {
        return judge_healthy(f);
    }
    if (mutation_is_double(k)) {
        return judge_double(p, k, s, f, latency);
    }
    for (uint32_t i = 0; i < f->founds; i++) {
        const struct found *one = &f->found[i];
        enum merit merit = judge_one(p, k, s, one, &sight);
        innocent = innocent || (merit >= BAD_CODE && one->certainty == ROLL_PROVEN && (one->culprits & ~k->who) != 0);
        if (!stands(one) || is_consequence(k, one)) {
            continue;
        }
        good += merit == GOOD;
        weak += merit == WEAK;
        bad_ranks += merit == BAD_RANKS;
        /* Several ranks that end, each in its own time, may be told one by one: still one finding. */
        bool part = merit <= WEAK && (unsigned)one->code == first_code && one->culprits != 0 && told != 0 &&
                    (told & one->culprits) == 0;
        standing += !part;
        first_code = first_code ? first_code : (unsigned)one->code;
        told = (mask_t)(told | one->culprits);
        if (merit <= WEAK) {
            note_latency(latency, s, one);
        }
    }
    if (innocent) {
        return OUTCOME_INNOCENT;
    }
    if (f->lossy) {
        return OUTCOME_RIGHT; /* after losses only innocents are protected */
    }
    if (standing == 0) {
        return must_be_told(p, k, s) ? OUTCOME_MISSED : OUTCOME_RIGHT;
    }
    if (standing > 1 && good + weak > 0) {
        return OUTCOME_EXTRA;
    }
    if (good > 0 && weak == 0) {
        return OUTCOME_RIGHT;
    }
    return weak > 0 ? OUTCOME_SUSPECTED : bad_ranks > 0 ? OUTCOME_WRONG_RANKS : OUTCOME_WRONG_CODE;
}
