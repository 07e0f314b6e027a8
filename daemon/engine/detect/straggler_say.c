/*
 * straggler_say.c: the verdicts about ranks that arrive last, and about steps that get longer.
 */
#include "daemon/engine/detect/straggler.h"

#define SUSPECT_SHARE 10u
#define SUSPECT_NS    5000000u
#define SUSPECT_LATE  60

static void words_since(struct words *w, uint32_t step, uint32_t seq)
{
    if (step != ROLL_STEP_NONE) {
        words_add(w, "step %u (#%u)", step, seq);
    } else {
        words_add(w, "#%u", seq);
    }
}

static void words_spent(struct words *w, const struct lateness *l)
{
    if (l->op != ROLL_OP_NONE && l->own_ns >= l->mean_ns / 2) {
        bool wait = roll_op_class(l->op) == ROLL_CLASS_SYNC;
        words_add(w, " It spends the time inside %s (%.1f ms)%s.", roll_op_name(l->op), (double)l->own_ns / 1e6,
                  wait ? ", where it waits for its own device" : "");
    } else {
        words_add(w, " The time passes outside all recorded calls: in its own host code (data loading, Python, a "
                     "starved CPU). While it runs, `rollcall stacks` shows where.");
    }
}

static void speak(struct roll_engine *e, struct comm *c, struct place *p, const struct roll_rankset *late,
                  uint32_t worst, const struct stretch *x, enum roll_certainty certainty)
{
    const struct lateness *l = &p->member[worst];
    const struct source *s = e->source[c->member[worst].source];
    const struct entry *call = source_entry(s, x[worst].call);
    struct roll_verdict *v = call ? say(e, ROLL_VERDICT_STRAGGLER, certainty) : NULL;
    if (!v) {
        return;
    }
    bool one = roll_rankset_count(late) == 1;
    uint32_t of = certainty == ROLL_NOTE ? NOTE_LOOKS : SUSPECT_LOOKS;
    uint64_t mask = of == 64 ? UINT64_MAX : (1ull << of) - 1;
    (void)roll_rankset_copy(&v->culprits, late);
    for (uint32_t r = 0; r < c->size; r++) {
        uint32_t world = comm_world(e, c, r);
        if (world != NO_SOURCE && !roll_rankset_has(late, world)) {
            (void)roll_rankset_add(&v->waiting, world);
        }
    }
    say_comm(v, c, call->rec.seq);
    say_side(v, s, c->member[worst].source, late, &call->rec);
    struct words w = {.used = 0};
    words_ranks(&w, late);
    words_add(&w, one ? " arrives last at " : " arrive last at ");
    words_call(&w, &call->rec);
    words_add(&w, " on ");
    words_comm(&w, c);
    words_add(&w, ", in %d of the last %u that were looked at, by %.1f ms of the %.1f ms from one to the next",
              __builtin_popcountll(l->looks & mask), of, (double)l->mean_ns / 1e6, (double)p->interval_ns / 1e6);
    words_add(&w, "%s, since ", one ? "" : " (the latest of them)");
    words_since(&w, l->step, l->seq);
    words_add(&w, "; ");
    words_wait(&w, &v->waiting);
    words_add(&w, " for it there each time.");
    words_spent(&w, l);
    words_add(&w,
              " Slow, not stuck. The time is counted from the return of all hosts from the call before, so the nodes' "
              "clocks do not matter; these hosts wait behind each of the two calls, so they do not run ahead of their "
              "devices there.%s",
              certainty == ROLL_NOTE ? "" : " Suspected: what the rank does meanwhile may be its job.");
    say_text(e, v, "%s", w.text);
}

void straggler_tell_late(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x, bool suspect)
{
    uint64_t mask = suspect ? UINT64_MAX : (1ull << NOTE_LOOKS) - 1;
    struct roll_rankset late = {0};
    uint32_t worst = 0, count = 0;
    for (uint32_t r = 0; r < c->size; r++) {
        const struct lateness *l = &p->member[r];
        bool heavy = !suspect || (l->mean_ns >= SUSPECT_NS && l->mean_ns >= p->interval_ns / SUSPECT_SHARE);
        if (heavy && __builtin_popcountll(l->looks & mask) >= (suspect ? SUSPECT_LATE : NOTE_LATE)) {
            worst = count == 0 || l->mean_ns > p->member[worst].mean_ns ? r : worst;
            count++;
            (void)roll_rankset_add(&late, comm_world(e, c, r));
        }
    }
    uint64_t key = say_key(ROLL_VERDICT_STRAGGLER, c->key, worst, suspect);
    if (count > 0 && count * 2 <= c->size) {
        p->noted = true;
        p->suspected = p->suspected || suspect;
        if (say_once(e, key)) {
            speak(e, c, p, &late, worst, x, suspect ? ROLL_SUSPECTED : ROLL_NOTE);
        }
    }
    roll_rankset_fini(&late);
}

void straggler_tell_slow(struct roll_engine *e, struct comm *c, struct place *p, const struct stretch *x,
                         uint64_t now_ns)
{
    const struct source *s = e->source[c->member[0].source];
    const struct entry *call = source_entry(s, x[0].call);
    p->slow_said = true;
    struct roll_verdict *v = call && say_once(e, say_key(ROLL_VERDICT_STRAGGLER, c->key, 0, 3))
                                 ? say(e, ROLL_VERDICT_STRAGGLER, ROLL_NOTE)
                                 : NULL;
    if (!v) {
        return;
    }
    struct roll_rankset all = {0};
    for (uint32_t r = 0; r < c->size; r++) {
        (void)roll_rankset_add(&all, comm_world(e, c, r));
    }
    say_comm(v, c, call->rec.seq);
    say_side(v, s, c->member[0].source, &all, &call->rec);
    struct words w = {.used = 0};
    words_add(&w, "From one ");
    words_call(&w, &call->rec);
    words_add(&w, " to the next on ");
    words_comm(&w, c);
    words_add(&w, " the job takes %.1f ms now, and took %.1f ms: it has been slower since ", (double)now_ns / 1e6,
              (double)p->base_ns / 1e6);
    words_since(&w, p->slow_step, p->slow_seq);
    words_add(&w, ". No rank arrives last more often than others: all are slower, or their devices are.");
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&all);
}
