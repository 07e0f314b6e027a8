/*
 * detect_group.c: ranks make the same calls in the same order, but begin or end groups at different places.
 *
 * NCCL chooses algorithm and protocol by what a group holds together, so ranks with different groups may choose
 * differently. This is inferred from NCCL's scheduling and not documented, and often nothing happens. So the verdict is
 * suspected, and said once per communicator. Two cases are healthy: a group of one call equals a call outside of
 * groups, and any grouping will do that all ranks share. Only two ranks are named, as the two sides; which of them is
 * wrong is not known.
 */
#include "daemon/engine/detect/detector.h"

static bool group_disagree(struct roll_engine *e, const struct finding *f)
{
    if (f->kind != ALIGN_GROUP) {
        return false;
    }
    const struct entry *one = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *two = source_entry(f->major_source, f->major_ticket);
    struct roll_verdict *v = one && two ? say(e, ROLL_VERDICT_GROUP_MISMATCH, ROLL_SUSPECTED) : NULL;
    if (!v) {
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = "group";
    say_side(v, f->minor_source, source_index(e, f->minor_source), &f->minor, &one->rec);
    say_side(v, f->major_source, source_index(e, f->major_source), &f->major, &two->rec);
    struct words w = {.used = 0};
    words_add(&w, "One of ");
    words_ranks(&w, &f->minor);
    words_add(&w, " and ");
    words_ranks(&w, &f->major);
    words_add(&w, " has ");
    words_call(&w, &one->rec);
    words_add(&w, " (#%u on ", f->seq);
    words_comm(&w, f->comm);
    words_add(
        &w,
        ") in one group with the call before it, the other has not. NCCL chooses its algorithm from what a group holds "
        "together: open and close groups at the same places on every rank. Suspected: it may go well.");
    say_text(e, v, "%s", w.text);
    return true;
}

const struct detector detect_group = {.name = "group", .disagree = group_disagree};
