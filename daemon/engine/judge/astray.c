/*
 * astray.c: a call that a rank made on another communicator than its peers.
 *
 * On the one communicator the call is too many, on the other it is missing: two disagreements that come of one mistake.
 * They belong together when one rank lacks a call on the one communicator and has made a call like it (operation,
 * count, datatype, reduction) on the other, between its calls before and behind the gap. Therefore each communicator
 * keeps what was told last about one call that is missing or too many there: a half. Whoever finds the other half tells
 * both, in the place of the earlier verdict. Where the earlier verdict says more, nothing is told: a vote that names
 * somebody says more than a tie, and a proven verdict more than a suspected one. Between two ties nobody is named.
 *
 * A rank that hangs makes no calls any more, so most findings leave several mistakes open, and the likeliest of them
 * need not be the right one. Each half is kept as both: as a call that is missing, and as a call too many. Between the
 * two it is decided by where the same call is found: elsewhere, in the gap. To keep the likeliest reading alone was
 * rejected for that reason.
 */
#include "daemon/engine/judge/judge.h"

static bool is_like(const struct roll_record *a, const struct roll_record *b)
{
    return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop;
}

/*
 * Reads a finding as a half of this kind: one side lacks the call, the other has made it. In a tie either side may be
 * the wrong one, else the minor side is. False: the finding cannot be read so.
 */
static bool read_half(const struct finding *f, enum align_kind kind, struct half *out)
{
    bool skip = kind == ALIGN_SKIP;
    const struct source *lacks = skip ? f->minor_source : f->major_source;
    const struct source *has = skip ? f->major_source : f->minor_source;
    uint64_t made = skip ? f->major_ticket : f->minor_ticket;
    const struct entry *entry = source_entry(has, made);
    bool fits = f->kind == kind ? f->length == 1 : (f->open & 1u << kind) != 0;
    if (!fits || !entry) {
        return false;
    }
    *out = (struct half){.seq = f->seq,
                         .lacks = f->tie || skip ? lacks : NULL,
                         .gap = skip ? f->minor_ticket : f->major_ticket,
                         .has = f->tie || !skip ? has : NULL,
                         .made = made,
                         .call = entry->rec,
                         .named = !f->tie};
    return true;
}

/* The rank that lacks the call of `gap` on c has made it elsewhere, as `other` says, in the gap. */
static bool is_in_gap(const struct roll_engine *e, const struct comm *c, const struct half *gap,
                      const struct half *other)
{
    if (!gap->lacks || gap->lacks != other->has || other->made >= gap->gap || !is_like(&gap->call, &other->call)) {
        return false;
    }
    const struct member *m = comm_member_of(c, source_index(e, gap->lacks));
    uint64_t before = m && gap->seq > 0 ? source_ticket_of(gap->lacks, m, gap->seq - 1) : NO_TICKET;
    return before == NO_TICKET || before < other->made;
}

/* Finds on another communicator of s the half that belongs to this one on c. lacks: s is the rank that lacks the call
 * here. */
static struct comm *other_half(const struct roll_engine *e, const struct comm *c, const struct half *half,
                               const struct source *s, bool lacks, const struct half **found)
{
    for (uint32_t i = 0; s && i < s->members; i++) {
        struct comm *o = s->member[i] ? s->member[i]->comm : NULL;
        for (unsigned k = 0; o && o != c && k < HALVES; k++) {
            const struct half *other = &o->half[k];
            if (say_stands(e, other->number) && (lacks ? is_in_gap(e, c, half, other) : is_in_gap(e, o, other, half))) {
                *found = other;
                return o;
            }
        }
    }
    return NULL;
}

/* Finds the other half of a finding that is read as one of this kind. */
static bool find_as(const struct roll_engine *e, const struct finding *f, enum align_kind kind, struct astray *out)
{
    struct half half;
    const struct half *other = NULL;
    if (!read_half(f, kind, &half)) {
        return false;
    }
    struct comm *o = other_half(e, f->comm, &half, half.lacks, true, &other);
    bool lacks = o != NULL;
    o = lacks ? o : other_half(e, f->comm, &half, half.has, false, &other);
    if (!o) {
        return false;
    }
    *out = (struct astray){.rank = lacks ? half.lacks : half.has,
                           .kind = kind,
                           .told = o,
                           .half = *other,
                           .right = lacks ? f->comm : o,
                           .wrong = lacks ? o : f->comm,
                           .right_seq = lacks ? half.seq : other->seq};
    return true;
}

bool astray_find(const struct roll_engine *e, const struct finding *f, struct astray *out)
{
    enum align_kind other = f->kind == ALIGN_SKIP ? ALIGN_ADD : ALIGN_SKIP;
    bool either = f->kind == ALIGN_SKIP || f->kind == ALIGN_ADD;
    return find_as(e, f, either ? f->kind : ALIGN_ADD, out) || find_as(e, f, other, out);
}

void astray_keep(const struct finding *f, const struct roll_verdict *v, const struct astray *with)
{
    static const enum align_kind kinds[HALVES] = {ALIGN_SKIP, ALIGN_ADD};
    for (unsigned k = 0; k < HALVES; k++) {
        struct half half;
        if (!read_half(f, kinds[k], &half)) {
            continue;
        }
        half.number = v->number;
        half.proven = v->certainty == ROLL_PROVEN;
        f->comm->half[k] = half;
        if (with) {
            with->told->half[k].number = with->told->half[k].number != 0 ? v->number : 0;
        }
    }
}
