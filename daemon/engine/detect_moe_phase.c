/*
 * detect_moe_phase.c: a rank left the backward of an MoE layer without making the calls that its peers wait in.
 *
 * It promised them in forward like its peers (else detect_moe_obligation.c has told), and then went past: peers wait in the backward of a layer, and
 * the rank has reported that it reduces gradients, or is in a later step (waitgraph.c: has_passed). Proven when its host waits as well; suspected
 * when it was not seen to, because a phase is what the job says of itself. A rank that runs far ahead of its peers is healthy and never gets here:
 * it has made its calls.
 */
#include "daemon/engine/detector.h"

static void speak(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    if (waits) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
    }
    comm_explained(e, b->comm);
    if (!waits || !say_once(e, say_key(ROLL_VERDICT_MOE_OBLIGATION, b->comm->key, b->rank->world, waits->rec.step))) {
        return;
    }
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_OBLIGATION, b->hard ? ROLL_PROVEN : ROLL_SUSPECTED);
    if (!v) {
        return;
    }
    struct roll_rankset waiter = {0};
    say_comm(v, b->comm, waits->rec.seq);
    (void)roll_rankset_add(&v->culprits, b->rank->world);
    (void)roll_rankset_add(&waiter, b->waiter->world);
    say_side(v, b->rank, source_index(e, b->rank), &v->culprits, b->rank->last.op ? &b->rank->last : NULL);
    say_side(v, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
    (void)roll_rankset_copy(&v->waiting, b->waiting);
    v->step = waits->rec.step;
    v->microbatch = waits->rec.microbatch;
    v->layer = waits->rec.layer;
    v->phase = ROLL_PHASE_BACKWARD;
    struct words w = {.used = 0};
    words_ranks(&w, &waiter);
    words_add(&w, " waits in ");
    words_call(&w, &waits->rec);
    words_add(&w, " on ");
    words_comm(&w, b->comm);
    words_add(&w, ", in the backward of ");
    words_place(&w, waits->rec.step, waits->rec.microbatch, waits->rec.layer);
    words_add(&w, ". Rank %u has left that backward without its side of it: it is in %s of step %u.", b->rank->world,
              roll_phase_name(b->rank->phase), b->rank->step);
    if (!b->hard) {
        words_add(&w, " Suspected: it reported so, but was not seen to wait itself.");
    }
    say_text(e, v, "%s", w.text);
    roll_rankset_fini(&waiter);
}

static bool phase_block(struct roll_engine *e, const struct block *b)
{
    if (b->kind == BLOCK_PASSED) {
        speak(e, b);
    }
    return b->kind == BLOCK_PASSED;
}

const struct detector detect_moe_phase = {.name = "moe_phase", .block = phase_block};
