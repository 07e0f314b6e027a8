/*
 * root_case_say.c: what the engines of cases find, as one run says it.
 *
 * Each case has an engine of its own, which knows nothing of what was said before. So what an engine finds that an
 * earlier one has found (root_case_same.c) is not said again while that stands and goes on, what it finds better takes
 * the place of what was said, and what was suspected and is over is withdrawn, though the engine that suspected it is
 * gone. To say all that an engine finds was rejected: a mistake that goes on opens case after case.
 */
#include "daemon/root/root_digest.h"

#include "daemon/base/array.h"
#include "daemon/base/clock.h"
#include "daemon/verdict/verdict.h"
#include "trace/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t number_of(const struct roll_digested *d, uint64_t number)
{
    return number != 0 && number <= d->saids ? d->said[number - 1] : 0;
}

/* The verdict rests on calls and numbers that are in the records, and not on what did not come. */
static bool is_by_records(const struct roll_verdict *v)
{
    enum roll_family family = roll_verdict_family(v->code);
    return family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_MOE || family == ROLL_FAMILY_NUMBERS ||
           (family == ROLL_FAMILY_ALIGNMENT && v->certainty == ROLL_PROVEN) || v->code == ROLL_VERDICT_P2P_BYTES ||
           v->code == ROLL_VERDICT_ALLTOALLV_MISMATCH || v->code == ROLL_VERDICT_CALL_REFUSED;
}

/* Nothing was asked of one of these ranks; or it was cut, and the verdict is about what it has not done: it may have
 * gone on since. */
static bool leaves_out(const struct roll_digested *d, const struct roll_rankset *ranks, bool by_records)
{
    for (size_t i = 0; i < d->rings; i++) {
        int32_t rank = roll_digested_rank(&d->ring[i]);
        if ((d->ring[i].aside || (d->ring[i].cut && !by_records)) && rank >= 0 &&
            roll_rankset_has(ranks, (uint32_t)rank)) {
            return true;
        }
    }
    return false;
}

/*
 * Whether a verdict of the case rests on what was not asked for, which the case then is widened by: on a communicator
 * of which some members were not asked, or on such a rank.
 */
static bool is_half_seen(struct roll_digested *d, const struct roll_verdict *v)
{
    bool known = v->comm_key == 0 || roll_case_is_hinted(d, v->comm_key) ||
                 roll_engine_has_all(roll_feed_engine(d->feed), v->comm_key);
    if (v->certainty == ROLL_NOTE && v->code != ROLL_VERDICT_AGENT_SILENT) {
        return false;
    }
    if (d->scoped && !known) {
        roll_digest_add_hint(&d->hints, v->comm_key, ROLL_HINT_STANDS, 0);
        d->wider = true;
        return true;
    }
    bool out = leaves_out(d, &v->culprits, is_by_records(v));
    if (out && d->scoped) {
        d->again = ROLL_CASE_SCOPED;
        d->wider = true;
    }
    return out;
}

/* what stands */

/* All members have made this collective, by the fronts or by the records that are here. */
static bool is_made(const struct roll_digested *d, uint64_t key, uint64_t seq)
{
    struct roll_sum_place place;
    bool here = roll_sum_place(d->sum, key, &place) && place.members != 0;
    return (here && place.members == place.size && place.low > seq) ||
           (d->fed && roll_engine_done(roll_feed_engine(d->feed), key) > seq);
}

/* The verdict rests on a collective that a member has not made, and may make. */
static bool is_awaiting(const struct roll_digested *d, const struct roll_verdict *v)
{
    bool call = false;
    for (uint32_t i = 0; i < v->sides; i++) {
        const struct roll_record *rec = &v->side[i].rec;
        call = call || (roll_op_class(rec->op) == ROLL_CLASS_COLL && rec->seq == v->seq);
    }
    return call && v->certainty == ROLL_SUSPECTED && v->comm_key != 0 && !is_by_records(v) &&
           !is_made(d, v->comm_key, v->seq);
}

static void forget_ended(struct roll_digested *d)
{
    size_t keep = 0;
    for (size_t i = 0; i < d->findings; i++) {
        if (roll_verdict_stands(d->finding[i].copy)) {
            d->finding[keep++] = d->finding[i];
        }
    }
    d->findings = keep;
}

static void keep_finding(struct roll_digested *d, const struct roll_run *run, uint64_t number)
{
    const struct roll_verdict_copy *copy = run->verdicts.used ? run->verdicts.at[run->verdicts.used - 1] : NULL;
    forget_ended(d);
    if (!copy || copy->said.number != number || !roll_verdict_is_finding(&copy->said) ||
        ROLL_GROW(d->finding, d->finding_room, d->findings + 1) != 0) {
        return; /* then it is said again when it is found again */
    }
    d->finding[d->findings++] = (struct digested_finding){
        .copy = copy,
        .engine = d->number,
        .seen_ns = roll_mono_ns(),
        .upto = (uint32_t)copy->said.seq,
        .awaits = is_awaiting(d, &copy->said),
        .ended = roll_case_have_ended(d, roll_case_missed(&copy->said), d->rings) ? d->rings : 0};
}

void roll_case_goes_on(struct roll_digested *d, const struct roll_digest *up, uint64_t now)
{
    for (size_t i = 0; i < up->hints && d->findings > 0; i++) {
        const struct roll_digest_hint *h = &up->hint[i];
        for (size_t k = 0; k < d->findings && roll_hint_is_urgent(h); k++) {
            struct digested_finding *f = &d->finding[k];
            if (f->copy->said.comm_key != h->key) {
                continue;
            }
            bool follows = h->why == ROLL_HINT_DIFFERS && h->seq <= f->upto + ROLL_DIGEST_WINDOW;
            f->upto = follows && h->seq + ROLL_DIGEST_WINDOW - 1 > f->upto ? h->seq + ROLL_DIGEST_WINDOW - 1 : f->upto;
            f->seen_ns = now;
        }
    }
}

/* what is over */

static void withdraw(roll_root_t *root, struct roll_run *run, const struct roll_verdict *said, const char *why)
{
    struct roll_digested *d = run->digested;
    char text[160];
    snprintf(text, sizeof(text), "Verdict %" PRIu64 " (%s) is withdrawn: %s.", said->number,
             roll_verdict_name(said->code), why);
    struct roll_verdict v = {.code = said->code,
                             .certainty = ROLL_NOTE,
                             .time_ns = roll_real_ns(),
                             .comm_key = said->comm_key,
                             .comm_size = said->comm_size,
                             .seq = said->seq,
                             .field = "",
                             .step = ROLL_STEP_NONE,
                             .layer = ROLL_LAYER_NONE,
                             .text = text,
                             .withdraws = said->number};
    memcpy(v.comm_label, said->comm_label, sizeof(v.comm_label));
    memcpy(v.comm_name, said->comm_name, sizeof(v.comm_name));
    struct roll_verdict_copy *copy = roll_verdict_copy_new(&v, NULL, NULL, run->job, run->restart);
    if (copy) {
        copy->said.number = ++d->numbers;
        roll_run_say(root, run, copy);
    }
}

/* Silence is what the verdict rests on: an engine that looks at the same ranks again suspects them again, unless they
 * go on. */
static bool is_by_silence(const struct roll_verdict *v)
{
    static const enum roll_verdict_code codes[] = {
        ROLL_VERDICT_P2P_UNMATCHED, ROLL_VERDICT_P2P_DEADLOCK, ROLL_VERDICT_CIRCULAR_WAIT,    ROLL_VERDICT_CROSSED_WAIT,
        ROLL_VERDICT_INIT_MISSING,  ROLL_VERDICT_RANK_BUSY,    ROLL_VERDICT_RANK_BLOCKED,     ROLL_VERDICT_RANK_STUCK,
        ROLL_VERDICT_CALL_SKIPPED,  ROLL_VERDICT_SEQUENCE_TIE, ROLL_VERDICT_COLLECTIVE_STUCK,
    };
    bool silent = false;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        silent = silent || v->code == codes[i];
    }
    return silent && v->certainty == ROLL_SUSPECTED;
}

/* The open case has looked at all that the verdict is about. */
static bool is_looked_at(const struct roll_digested *d, const struct roll_verdict *v)
{
    bool known = v->comm_key == 0 || roll_engine_has_all(roll_feed_engine(d->feed), v->comm_key);
    return d->fed && !d->narrow && known && !leaves_out(d, &v->culprits, false) && !leaves_out(d, &v->waiting, false);
}

void roll_case_take_back(roll_root_t *root, struct roll_run *run, bool closes)
{
    struct roll_digested *d = run->digested;
    for (size_t i = 0; i < d->findings; i++) {
        const struct digested_finding *f = &d->finding[i];
        const struct roll_verdict *said = &f->copy->said;
        bool gone = f->engine != d->number; /* the engine that has said it takes it back itself */
        if (!gone || !roll_verdict_stands(f->copy)) {
            continue;
        }
        if (f->awaits && is_made(d, said->comm_key, said->seq)) {
            withdraw(root, run, said, "the call was completed after all");
        } else if (closes && is_by_silence(said) && is_looked_at(d, said)) {
            withdraw(root, run, said, "everybody has gone on since, and it was not found again");
        }
    }
    forget_ended(d);
}

/* saying */

/* A note like this one was said already: of a note nothing is ever taken back. */
static bool is_noted(const struct roll_run *run, const struct roll_verdict *v)
{
    for (size_t i = run->verdicts.used; i-- > 0;) {
        const struct roll_verdict *c = &run->verdicts.at[i]->said;
        if (c->code == v->code && c->comm_key == v->comm_key && c->certainty == v->certainty &&
            roll_rankset_equal(&c->culprits, &v->culprits)) {
            return true;
        }
    }
    return false;
}

/*
 * Of a case that has the calls on some communicators alone: a wrong argument, which these calls prove or make likely as
 * they do beside all others. What is one of several calls that are missing, too many or on another communicator, is a
 * part of a group or is made of messages, is judged with all records; so is what takes back what was said, unless it
 * is about calls as well.
 */
static bool is_seen_narrowly(const struct roll_verdict *v, bool retires)
{
    enum roll_family family = roll_verdict_family(v->code);
    bool argument = v->code == ROLL_VERDICT_COUNT_MISMATCH || v->code == ROLL_VERDICT_DTYPE_MISMATCH ||
                    v->code == ROLL_VERDICT_REDOP_MISMATCH || v->code == ROLL_VERDICT_ROOT_MISMATCH ||
                    v->code == ROLL_VERDICT_OP_MISMATCH;
    bool plain = true;
    for (uint32_t i = 0; i < v->sides; i++) {
        const struct roll_record *rec = &v->side[i].rec;
        plain = plain && rec->group == 0 && !roll_op_has(rec->op, ROLL_TRAIT_LOWERED);
    }
    return plain && (argument || (retires && (family == ROLL_FAMILY_SEQUENCE || family == ROLL_FAMILY_ALIGNMENT)));
}

/* The verdict is not said: the case has not seen enough for it, and more is asked for where it may be one. */
static bool is_left_out(struct roll_digested *d, const struct roll_verdict *v, bool retires)
{
    if (!d->narrow || v->code == ROLL_VERDICT_DATA_INCOMPLETE || is_seen_narrowly(v, retires)) {
        return !retires && is_half_seen(d, v);
    }
    if (v->certainty != ROLL_NOTE) {
        roll_case_broaden(d);
    }
    return true;
}

static void say(roll_root_t *root, struct roll_run *run, struct roll_verdict_copy *copy, uint64_t *number)
{
    struct roll_digested *d = run->digested;
    struct roll_verdict *v = &copy->said;
    bool retires = roll_verdict_retires(v) != 0;
    *number = 0;
    if (is_left_out(d, v, retires)) {
        roll_verdict_copy_destroy(&copy);
        return;
    }
    v->supersedes = number_of(d, v->supersedes);
    v->confirms = number_of(d, v->confirms);
    v->withdraws = number_of(d, v->withdraws);
    struct digested_finding *before = roll_verdict_is_finding(v) ? roll_case_said_before(d, v) : NULL;
    if (before && (roll_verdict_retires(v) == 0 || roll_verdict_retires(v) == before->copy->said.number)) {
        before->engine = d->number;
        before->seen_ns = roll_mono_ns();
        before->upto = v->seq > before->upto ? (uint32_t)v->seq : before->upto;
        *number = before->copy->said.number;
        roll_verdict_copy_destroy(&copy);
        return;
    }
    if (v->certainty == ROLL_NOTE && (retires ? v->withdraws == 0 : is_noted(run, v))) {
        roll_verdict_copy_destroy(&copy);
        return;
    }
    if (roll_verdict_is_finding(v) && roll_verdict_retires(v) == 0) {
        v->supersedes = roll_case_said_worse(d, v);
    }
    *number = v->number = ++d->numbers;
    d->news = d->engine_news = true;
    if (v->certainty == ROLL_PROVEN || roll_rankset_count(&v->culprits) > 0) {
        d->named = true;
        if (d->named_keys < ROLL_CASE_TOLD) {
            bool at = roll_case_is_of_collective(v) && v->seq < ROLL_CASE_ANYWHERE;
            d->named_seq[d->named_keys] = at ? (uint32_t)v->seq : ROLL_CASE_ANYWHERE;
            d->named_key[d->named_keys++] = v->comm_key;
        }
    }
    d->rest_ns = roll_mono_ns();
    roll_run_say(root, run, copy);
    keep_finding(d, run, *number);
}

void roll_digested_verdicts(roll_root_t *root, struct roll_run *run)
{
    struct roll_digested *d = run->digested;
    struct roll_verdict_copy *copy;
    uint64_t number;
    /* The engine that gets no records can know no more than what agents tell of processes without rings. */
    while ((copy = roll_feed_next(run->feed)) != NULL) {
        if (copy->said.code == ROLL_VERDICT_ATTACHED_UNSEEN) {
            copy->said.number = ++d->numbers;
            roll_run_say(root, run, copy);
        } else {
            roll_verdict_copy_destroy(&copy);
        }
    }
    while (d->feed && d->fed && (copy = roll_feed_next(d->feed)) != NULL) {
        say(root, run, copy, &number);
        if (ROLL_GROW(d->said, d->said_room, d->saids + 1) == 0) {
            d->said[d->saids++] = number;
        }
    }
}
