/*
 * finding.c: the words and the life of a finding, for the detectors that say it.
 *
 * Several detectors say findings, each with its own story. What all of them say alike stands here: who is named, which
 * other mistakes are open, and which earlier verdict this one takes the place of.
 */
#include "daemon/engine/judge/align.h"

/* The key of a finding's cause: the code, the communicator and the ranks that differ. */
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
    bool reduction = roll_op_has(a->op, ROLL_TRAIT_REDOP);
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
    /* The records of the profiler plugin name no reduction: a reduction that is not known is no difference. */
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

/* Names the culprits and those who wait; in a tie says so, and why. */
static void name_sides(struct roll_verdict *v, const struct finding *f, struct words *w)
{
    (void)roll_rankset_copy(&v->waiting, &f->major);
    if (f->tie) { /* each side waits, in its own call, for the other */
        (void)roll_rankset_union(&v->waiting, &f->minor);
    }
    if (f->rehearsed) {
        (void)roll_rankset_copy(&v->culprits, &f->minor);
        words_add(w, f->wait > 0 ? " Not all members have come to this place" : " The vote is a tie");
        words_add(w, "; it is the rehearsal that says who is right: ");
        words_ranks(w, &f->major);
        words_add(w, roll_rankset_count(&f->major) == 1 ? " does here what was rehearsed, "
                                                        : " do here what was rehearsed, ");
        words_ranks(w, &f->minor);
        words_add(w, roll_rankset_count(&f->minor) == 1 ? " does not." : " do not.");
        return;
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

/* The calls of the two sides surely stand at different places of the program. */
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
