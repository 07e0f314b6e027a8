/*
 * detect_signature.c: ranks make the same call with different arguments, or different calls at the same place.
 *
 * Proven: both records are there. align.c has made sure that the calls really stand at the same place (no call skipped or added). What NCCL does
 * not compare is not compared: bytes for AllGather, Broadcast, AlltoAll, Gather and Scatter; the operator's handle of PreMulSum.
 * A different reduction does not hang, so the communicator goes on being judged after it; all others mute it.
 */
#include "daemon/engine/detector.h"

struct field {
    enum roll_verdict_code code;
    const char *name;
};

static struct field differing_field(const struct finding *f, const struct roll_record *a, const struct roll_record *b)
{
    bool reduction = a->op == ROLL_OP_ALLREDUCE || a->op == ROLL_OP_REDUCE || a->op == ROLL_OP_REDUCESCATTER;
    uint64_t bytes_a = a->count * roll_dtype_bytes(a->dtype), bytes_b = b->count * roll_dtype_bytes(b->dtype);
    if (f->kind == ALIGN_OTHER_OP) {
        return (struct field){ROLL_VERDICT_OP_MISMATCH, "op"};
    }
    if (reduction && a->dtype != b->dtype) {
        return (struct field){ROLL_VERDICT_DTYPE_MISMATCH, "dtype"};
    }
    if (reduction ? a->count != b->count : bytes_a != bytes_b) {
        return (struct field){ROLL_VERDICT_COUNT_MISMATCH, "count"};
    }
    /* What the profiler plugin tells has no reduction: unknown is not different. */
    bool known = a->redop != ROLL_RED_NONE && b->redop != ROLL_RED_NONE;
    if (reduction && known && a->redop != b->redop) {
        return (struct field){ROLL_VERDICT_REDOP_MISMATCH, "redop"};
    }
    if (reduction && !known && a->peer == b->peer) {
        return (struct field){.name = ""};
    }
    return (struct field){ROLL_VERDICT_ROOT_MISMATCH, "root"};
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
    struct field field = differing_field(f, &minor->rec, &major->rec);
    if (field.name[0] == '\0') {
        return true; /* nothing that is known differs */
    }
    if (field.code != ROLL_VERDICT_REDOP_MISMATCH) { /* that one hangs nothing, and explains nothing */
        comm_mute(e, f->comm, f->seq);
        comm_explained(e, f->comm);
    }
    if (!say_once(e, say_key(field.code, f->comm->key, roll_rankset_at(&f->minor, 0), roll_rankset_count(&f->minor)))) {
        return true;
    }
    struct roll_verdict *v = say(e, field.code, ROLL_PROVEN);
    if (!v) {
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = field.name;
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
    words_add(&w, " there: the %s differs. %s", field.code == ROLL_VERDICT_OP_MISMATCH ? "operation" : field.name,
              consequence(field.code));
    if (f->tie) {
        words_add(&w, " The vote is a tie: the calls alone do not say which side is wrong.");
    } else {
        (void)roll_rankset_copy(&v->culprits, &f->minor);
        (void)roll_rankset_copy(&v->waiting, &f->major);
    }
    say_text(e, v, "%s", w.text);
    return true;
}

const struct detector detect_signature = {.name = "signature", .disagree = signature_disagree};
