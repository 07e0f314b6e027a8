/*
 * detect_signature.c: ranks make the same call with different arguments, or different calls at the same place.
 *
 * Proven when the records show that the calls stand at the same place: no call was left out or added
 * (judge/align_lines.c), and nobody who may still come could turn the vote. What NCCL does not compare is not compared
 * here either: for AllGather, Broadcast, AlltoAll, Gather and Scatter only the bytes count, and the handle of a
 * PreMulSum operator does not. When the bytes differ because the datatypes differ, the verdict is about the datatype;
 * equally many bytes of another datatype are a note (detect_dtype.c). A different reduction does not hang, so the
 * communicator is judged on behind it; every other difference mutes it. So does a reduction where rollcall refused the
 * calls of one side (fail fast): then the other side waits.
 */
#include "daemon/engine/detect/detector.h"

/* rollcall compares the calls of one node, and refuses that of whoever comes later there. So on one node the wrong rank
 * is refused and on another all others: neither side need be one of those whose calls were made. The latter wait in
 * vain. */
static void words_declined(struct words *w, const struct finding *f, const struct roll_rankset *late)
{
    bool minors = false, majors = false;
    for (size_t i = 0; i < roll_rankset_count(late); i++) {
        minors = minors || roll_rankset_has(&f->minor, roll_rankset_at(late, i));
        majors = majors || roll_rankset_has(&f->major, roll_rankset_at(late, i));
    }
    size_t all = roll_rankset_count(&f->minor) + roll_rankset_count(&f->major);
    bool one = roll_rankset_count(late) == 1;
    words_add(w, one ? "rollcall refused the call of " : "rollcall refused the calls of ");
    words_ranks(w, late);
    words_add(w, one ? " (ROLLCALL_ON_MISMATCH), which came later: it was not made."
                     : " (ROLLCALL_ON_MISMATCH), which came later: they were not made.");
    if (minors && majors) {
        words_add(w, " It compares the calls of one node: what came first differs from node to node.");
    }
    if (roll_rankset_count(late) < all) {
        words_add(w, " The other calls were made, as far as is known.");
    }
}

static const char *consequence(enum roll_verdict_code code)
{
    return code == ROLL_VERDICT_REDOP_MISMATCH ? "NCCL does not notice: the results are silently wrong."
                                               : "NCCL does not check this: it hangs or corrupts data.";
}

static bool signature_disagree(struct roll_engine *e, const struct finding *f)
{
    if (f->kind != ALIGN_ARGUMENT && f->kind != ALIGN_OTHER_OP) {
        return false;
    }
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    if (!minor || !major) {
        return true;
    }
    const char *field;
    enum roll_verdict_code code = signature_code(f->kind, &minor->rec, &major->rec, &field);
    if (code == ROLL_VERDICT_NONE) {
        return true; /* nothing differs that is compared */
    }
    struct astray astray;
    if (astray_find(e, f, &astray)) {
        return false; /* the call belongs to another communicator: detect_align.c tells it */
    }
    bool fresh = finding_is_new(e, f, code);
    if (!fresh && f->comm->muted && f->comm->explains) {
        return true; /* it has been told, and whoever waits because of it is known to */
    }
    /* A wrong reduction hangs nothing, and explains nothing. */
    struct roll_rankset late = {0};
    declined_among(e, f->comm, f->seq, &f->minor, &late);
    declined_among(e, f->comm, f->seq, &f->major, &late);
    bool declined = roll_rankset_count(&late) > 0;
    if ((code != ROLL_VERDICT_REDOP_MISMATCH && !f->harmless) || declined) {
        comm_mute(e, f->comm, f->seq);
        comm_explained(e, f->comm);
    }
    if (declined) {
        refused_mute_groups(e, f->comm);
    }
    struct roll_verdict *v = fresh ? say(e, code, f->certainty) : NULL;
    if (!v) {
        roll_rankset_fini(&late);
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = field;
    say_side(v, f->minor_source, source_index(e, f->minor_source), &f->minor, &minor->rec);
    say_side(v, f->major_source, source_index(e, f->major_source), &f->major, &major->rec);
    struct words w = {.used = 0};
    words_ranks(&w, &f->minor);
    words_add(&w, " called ");
    words_call(&w, &minor->rec);
    words_add(&w, " as #%u on ", f->seq);
    words_comm(&w, f->comm);
    words_add(&w, "; ");
    words_ranks(&w, &f->major);
    words_add(&w, " called ");
    words_call(&w, &major->rec);
    words_add(&w, " there: the %s differs. %s", code == ROLL_VERDICT_OP_MISMATCH ? "operation" : field,
              declined ? "" : consequence(code));
    if (declined) {
        words_declined(&w, f, &late);
    }
    roll_rankset_fini(&late);
    finding_life(e, v, f, &w);
    astray_keep(f, v, NULL);
    say_text(e, v, "%s", w.text);
    return true;
}

const struct detector detect_signature = {.name = "signature", .disagree = signature_disagree};
