/*
 * astray.c: a call that a rank made on another communicator than its peers.
 *
 * There it is one too many, here it is missing: two disagreements that come of one mistake. They are one when the same rank lacks a call here and has made one
 * like it (operation, count, datatype, reduction) there, between its calls before and behind the gap. So each communicator keeps what was told last
 * about one call that is missing or too many on it; who finds the other half tells both, in the place of what was told, or nothing where that says more: a
 * vote that names somebody says more than a tie, and what is proven more than what is suspected. Between two ties nobody is named.
 */
#include "daemon/engine/detector.h"

static bool is_like(const struct roll_record *a, const struct roll_record *b)
{
    return a->op == b->op && a->count == b->count && a->dtype == b->dtype && a->redop == b->redop;
}

/* One side of the finding lacks the call, the other has it. In a tie either side may be wrong; else the minor one is. */
static bool read_half(const struct finding *f, struct half *out)
{
    bool skip = f->kind == ALIGN_SKIP;
    const struct source *lacks = skip ? f->minor_source : f->major_source;
    const struct source *has = skip ? f->major_source : f->minor_source;
    uint64_t made = skip ? f->major_ticket : f->minor_ticket;
    const struct entry *entry = source_entry(has, made);
    if ((f->kind != ALIGN_SKIP && f->kind != ALIGN_ADD) || f->length != 1 || !entry) {
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

/* The rank lacks the call on c, and has made it elsewhere in the gap. */
static bool is_in_gap(const struct roll_engine *e, const struct comm *c, const struct half *gap,
                      const struct half *other)
{
    if (!gap->lacks || gap->lacks != other->has || other->made >= gap->gap || !is_like(&gap->call, &other->call)) {
        return false;
    }
    const struct member *m = comm_member_of(c, source_index(e, gap->lacks));
    uint64_t before = m && gap->seq > 0 ? source_ticket_of(gap->lacks, m, gap->seq - 1) : UINT64_MAX;
    return before == UINT64_MAX || before < other->made;
}

static struct comm *other_half(const struct roll_engine *e, const struct comm *c, const struct half *half,
                               const struct source *s, bool lacks)
{
    for (uint32_t i = 0; s && i < s->members; i++) {
        struct comm *o = s->member[i] ? s->member[i]->comm : NULL;
        if (!o || o == c || !say_stands(e, o->half.number)) {
            continue;
        }
        if (lacks ? is_in_gap(e, c, half, &o->half) : is_in_gap(e, o, &o->half, half)) {
            return o;
        }
    }
    return NULL;
}

bool astray_find(const struct roll_engine *e, const struct finding *f, struct astray *out)
{
    struct half half;
    if (!read_half(f, &half)) {
        return false;
    }
    struct comm *o = other_half(e, f->comm, &half, half.lacks, true);
    bool lacks = o != NULL;
    o = lacks ? o : other_half(e, f->comm, &half, half.has, false);
    if (!o) {
        return false;
    }
    *out = (struct astray){.rank = lacks ? half.lacks : half.has,
                           .told = o,
                           .right = lacks ? f->comm : o,
                           .wrong = lacks ? o : f->comm,
                           .right_seq = lacks ? half.seq : o->half.seq};
    return true;
}

void astray_keep(const struct finding *f, const struct roll_verdict *v, const struct astray *with)
{
    struct half half;
    if (!read_half(f, &half)) {
        return;
    }
    half.number = v->number;
    half.proven = v->certainty == ROLL_PROVEN;
    f->comm->half = half;
    if (with) {
        with->told->half.number = v->number;
    }
}
