/*
 * detect_align.c: a rank left out a call, made one too many, or made the same calls in another order.
 *
 * Proven when no other mistake fits the calls of both sides (judge/align_lines.c) and the vote is decided
 * (judge/align_vote.c). The text names the first call that differs and the call that was left out or added. Until then
 * the verdict is suspected, with the other possible mistakes. Without a majority the finding is the same, but nobody is
 * named. Inside one group NCCL sorts the calls itself, so another order there is only suspected.
 */
#include "daemon/engine/detect/detector.h"

#include <stdio.h>

static bool all_in_one_group(const struct source *s, uint64_t ticket, uint32_t n, uint32_t comm)
{
    const struct entry *first = source_entry(s, ticket);
    uint32_t found = 0;
    for (uint64_t t = ticket; first && first->rec.group != 0 && found < n; t++) {
        const struct entry *entry = source_entry(s, t);
        if (!entry || !source_same_unit(&first->rec, &entry->rec)) {
            return false;
        }
        found += entry->rec.comm == comm && roll_op_class(entry->rec.op) == ROLL_CLASS_COLL;
    }
    return found == n && n > 0;
}

static const char *calls(uint32_t n)
{
    return n == 1 ? "call" : "calls";
}

static enum roll_verdict_code code_of(enum align_kind kind)
{
    switch (kind) {
    case ALIGN_SKIP:
        return ROLL_VERDICT_CALL_SKIPPED;
    case ALIGN_ADD:
        return ROLL_VERDICT_CALL_ADDED;
    case ALIGN_REORDER:
        return ROLL_VERDICT_CALLS_REORDERED;
    default:
        return ROLL_VERDICT_SEQUENCE_TIE;
    }
}

/* What is seen of a block may be its beginning. */
static const char *at_least(const struct finding *f)
{
    return f->length > 1 && f->overlap == 0 && f->open != 0 ? "at least " : "";
}

/* The others have come to the end of the block: the calls that they make there are known, and not taken on trust. */
static bool are_known(const struct finding *f)
{
    const struct member *m = comm_member_of(f->comm, source_index(f->comm->engine, f->major_source));
    return m && m->next >= f->seq + f->length;
}

static void tell_story(struct words *w, const struct finding *f, const struct roll_record *minor,
                       const struct roll_record *major)
{
    switch (f->kind) {
    case ALIGN_SKIP:
        words_ranks(w, &f->minor);
        words_add(w, " left out %s%u %s, beginning with ", at_least(f), f->length, calls(f->length));
        words_call(w, major);
        words_add(w, ", and went on with ");
        words_call(w, minor);
        break;
    case ALIGN_ADD:
        words_ranks(w, &f->minor);
        words_add(w, " made %s%u %s that the others did not make, beginning with ", at_least(f), f->length,
                  calls(f->length));
        words_call(w, minor);
        words_add(w, ", where the others called ");
        words_call(w, major);
        break;
    default:
        words_ranks(w, &f->minor);
        words_add(w, " made the same %u calls in another order%s: first ", f->length,
                  are_known(f) ? "" : ", as far as the others have come");
        words_call(w, minor);
        words_add(w, ", where the others first called ");
        words_call(w, major);
        break;
    }
}

/* Adds that a call is missing on one communicator and is one too many on another, which is one mistake. */
static void words_astray(struct words *w, const struct astray *a)
{
    words_add(w, " Rank %u has called on ", a->rank->world);
    words_comm(w, a->wrong);
    words_add(w, " what the others call as #%u on ", a->right_seq);
    words_comm(w, a->right);
    words_add(w, ": this is one mistake, seen on two communicators.");
}

/* The verdict about the other communicator says more than this one would: it names somebody and this one does not, or
 * it is proven and this one is not. */
static bool says_less(const struct finding *f, const struct astray *with)
{
    if (with->half.number == f->earlier) {
        return false;
    }
    bool proven = with->half.proven && f->certainty != ROLL_PROVEN;
    return with->half.named ? f->tie || proven : f->tie && proven;
}

static bool align_disagree(struct roll_engine *e, const struct finding *given)
{
    struct finding copy = *given, *f = &copy;
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    struct astray astray;
    bool two = astray_find(e, f, &astray);
    if (two && f->kind != astray.kind) { /* the other half of the mistake says which of the possible ones it is */
        f->open = (f->open | 1u << f->kind) & ~(1u << astray.kind);
        f->kind = astray.kind;
        f->length = 1;
    }
    if (f->kind == ALIGN_ARGUMENT || f->kind == ALIGN_OTHER_OP || f->kind == ALIGN_ZERO || !minor || !major) {
        return false;
    }
    bool nameless = f->tie && !f->template_major;
    enum roll_verdict_code code = nameless && f->kind != ALIGN_REORDER ? ROLL_VERDICT_SEQUENCE_TIE : code_of(f->kind);
    bool grouped = f->kind == ALIGN_REORDER &&
                   all_in_one_group(f->minor_source, f->minor_ticket, f->length, minor->rec.comm) &&
                   all_in_one_group(f->major_source, f->major_ticket, f->length, major->rec.comm);
    if (!grouped && !f->harmless) {
        comm_mute(e, f->comm, f->shown);
        comm_explained(e, f->comm);
    }
    if (two && says_less(f, &astray)) {
        return true;
    }
    struct roll_verdict *v = finding_is_new(e, f, code) ? say(e, code, grouped ? ROLL_SUSPECTED : f->certainty) : NULL;
    if (!v) {
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = "op";
    say_side(v, f->minor_source, source_index(e, f->minor_source), &f->minor, &minor->rec);
    say_side(v, f->major_source, source_index(e, f->major_source), &f->major, &major->rec);
    struct words w = {.used = 0};
    if (nameless) {
        words_add(&w, "The sequences of ");
        words_ranks(&w, &f->minor);
        words_add(&w, " and ");
        words_ranks(&w, &f->major);
        words_add(&w, " part at #%u on ", f->seq);
        words_comm(&w, f->comm);
        words_add(&w, ". Seen from the second side, ");
    }
    tell_story(&w, f, &minor->rec, &major->rec);
    if (!nameless) {
        words_add(&w, " (#%u on ", f->seq);
        words_comm(&w, f->comm);
        words_add(&w, ")");
    }
    words_add(&w, ".");
    if (grouped) {
        words_add(
            &w, " All are in one group, in which NCCL sorts calls itself; its documentation still demands one order.");
    } else {
        words_add(&w, " From there on calls meet that do not belong together: NCCL hangs or corrupts data.");
    }
    if (f->shown > f->seq) {
        char upto[32] = "";
        if (f->shown - f->seq > 1) {
            (void)snprintf(upto, sizeof(upto), " to #%u", f->shown - 1);
        }
        words_add(&w, " #%u%s look%s alike on both sides, and only the lines of the program differ; it shows at #%u.",
                  f->seq, upto, f->shown - f->seq > 1 ? "" : "s", f->shown);
    }
    if (two) {
        words_astray(&w, &astray);
    }
    finding_life(e, v, f, &w);
    if (two && v->supersedes == 0 && v->confirms == 0) { /* this verdict tells the other half as well */
        say_supersedes(e, v, astray.half.number);
    }
    astray_keep(f, v, two ? &astray : NULL);
    say_text(e, v, "%s", w.text);
    return true;
}

const struct detector detect_align = {.name = "align", .disagree = align_disagree};
