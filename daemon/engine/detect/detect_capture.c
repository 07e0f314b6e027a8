/*
 * detect_capture.c: CUDA graphs that do not agree: a call captured on some ranks and issued on others, and launches of
 * graphs that hold different collectives.
 *
 * The records prove both: by the flag CAPTURED on one side, or by two hashes of captured collectives that differ. The
 * minority of the vote is named, as in every disagreement at one place. For launches the first captured call that
 * differs is looked up (model/graph.c). Where that call is not remembered any more, the text says so and the verdict
 * stays proven, because the hashes alone prove the difference. Calls that differ in more than the capture are left to
 * detect_signature.c.
 */
#include "daemon/engine/detect/detector.h"
#include "trace/signature.h"

static bool captured(const struct roll_record *rec)
{
    return (rec->flags & ROLL_FLAG_CAPTURED) != 0;
}

static bool tell_capture(struct roll_engine *e, const struct finding *f, const struct roll_record *minor,
                         const struct roll_record *major)
{
    struct words w = {.used = 0};
    struct roll_verdict *v = say(e, ROLL_VERDICT_CAPTURE_MISMATCH, f->certainty);
    if (!v) {
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = "capture";
    say_side(v, f->minor_source, source_index(e, f->minor_source), &f->minor, minor);
    say_side(v, f->major_source, source_index(e, f->major_source), &f->major, major);
    words_ranks(&w, &f->minor);
    words_add(&w, captured(minor) ? " captured " : " issued ");
    words_call(&w, minor);
    if (captured(minor)) {
        words_add(&w, " into CUDA graph %u", minor->aux);
    }
    words_add(&w, " as #%u on ", f->seq);
    words_comm(&w, f->comm);
    words_add(&w, "; ");
    words_ranks(&w, &f->major);
    words_add(&w, captured(major) ? " captured it, where nothing runs yet." : " issued it.");
    words_add(&w, " The ranks that issued it wait on the device for ranks that only captured it.");
    finding_life(e, v, f, &w);
    say_text(e, v, "%s", w.text);
    return true;
}

/* Says at which place the captured collectives of the two launches first differ. False: that is not known any more. */
static bool first_difference(const struct finding *f, const struct roll_record *minor, const struct roll_record *major,
                             struct words *w)
{
    uint32_t of_minor = 0, of_major = 0;
    for (uint32_t n = 0; n < CAPTURED_MAX; n++) {
        struct roll_record a, b;
        bool have_a = graph_collective(f->minor_source, minor->aux, minor->comm, n, &a, &of_minor);
        bool have_b = graph_collective(f->major_source, major->aux, major->comm, n, &b, &of_major);
        if (have_a && have_b) {
            if (match_signature(&a) == match_signature(&b)) {
                continue;
            }
            words_add(w, " The first that differs is number %u: ", n + 1);
            words_call(w, &a);
            words_add(w, " in the first, ");
            words_call(w, &b);
            words_add(w, " in the second.");
            return true;
        }
        /* One list has ended, and the other goes on. A list has not ended while its definition counts more calls than
         * are remembered. */
        bool ends = (!have_a && n == of_minor && have_b) || (!have_b && n == of_major && have_a);
        if (ends) {
            words_add(w, " The graphs hold %u and %u collectives here; ", of_minor, of_major);
            words_call(w, have_a ? &a : &b);
            words_add(w, ", number %u, is only in the %s.", n + 1, have_a ? "first" : "second");
        }
        return ends;
    }
    return false;
}

static bool tell_graph(struct roll_engine *e, const struct finding *f, const struct roll_record *minor,
                       const struct roll_record *major)
{
    struct words w = {.used = 0};
    struct roll_verdict *v = say(e, ROLL_VERDICT_GRAPH_MISMATCH, f->certainty);
    if (!v) {
        return true;
    }
    say_comm(v, f->comm, f->seq);
    v->field = "graph";
    say_side(v, f->minor_source, source_index(e, f->minor_source), &f->minor, minor);
    say_side(v, f->major_source, source_index(e, f->major_source), &f->major, major);
    words_ranks(&w, &f->minor);
    words_add(&w, " launched CUDA graph %u as #%u on ", minor->aux, f->seq);
    words_comm(&w, f->comm);
    words_add(&w, ", which holds other collectives than graph %u, launched there by ", major->aux);
    words_ranks(&w, &f->major);
    words_add(&w, ".");
    if (!first_difference(f, minor, major, &w)) {
        words_add(&w, " Which captured call differs is not known any more: only the hashes of both lists are.");
    }
    finding_life(e, v, f, &w);
    say_text(e, v, "%s", w.text);
    return true;
}

static bool capture_disagree(struct roll_engine *e, const struct finding *f)
{
    const struct entry *minor = source_entry(f->minor_source, f->minor_ticket);
    const struct entry *major = source_entry(f->major_source, f->major_ticket);
    if (f->kind != ALIGN_ARGUMENT || !minor || !major || minor->rec.op != major->rec.op) {
        return false;
    }
    bool launches = minor->rec.op == ROLL_OP_GRAPH_LAUNCH;
    if (!launches) {
        struct roll_record as_major = minor->rec;
        as_major.flags = (uint8_t)((as_major.flags & ~ROLL_FLAG_CAPTURED) | (major->rec.flags & ROLL_FLAG_CAPTURED));
        if (captured(&minor->rec) == captured(&major->rec) ||
            match_signature(&as_major) != match_signature(&major->rec)) {
            return false;
        }
    }
    comm_mute(e, f->comm, f->seq);
    comm_explained(e, f->comm);
    enum roll_verdict_code code = launches ? ROLL_VERDICT_GRAPH_MISMATCH : ROLL_VERDICT_CAPTURE_MISMATCH;
    if (!finding_is_new(e, f, code)) {
        return true;
    }
    return launches ? tell_graph(e, f, &minor->rec, &major->rec) : tell_capture(e, f, &minor->rec, &major->rec);
}

const struct detector detect_capture = {.name = "capture", .disagree = capture_disagree};
