/*
 * detect_moe_phase.c: a rank left the backward of an MoE layer without making the calls in which its peers wait.
 *
 * The rank promised these calls in forward like its peers (otherwise detect_moe_obligation.c has told). Then the peers
 * wait in the backward of a layer, while the rank has reported that it reduces gradients, or is in a later step
 * (judge/waitgraph.c: has_passed). Proven when the rank's host waits as well. Otherwise suspected, because a phase is
 * only what the job says of itself. A rank that runs far ahead of its peers is healthy and is never shown to this
 * detector, because it has made its calls.
 */
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"
#include "daemon/engine/detect/moe.h"

static void words_phase(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    bool one = roll_rankset_count(&g->culprits) == 1;
    words_wait(w, &g->side[1].ranks);
    words_add(w, " in ");
    words_call(w, &g->side[1].rec);
    words_add(w, " on ");
    gather_comm(g, w);
    words_add(w, ", in the backward of ");
    gather_place(g, w);
    words_add(w, ". ");
    words_ranks(w, &g->culprits);
    words_add(w,
              one ? " has left that backward without its side of it: it is in %s of step %u."
                  : " have left that backward without their side of it: they are in %s of step %u.",
              roll_phase_name(g->kind), g->number_of[0]);
    (void)words_left_out_experts(w, e, &g->culprits, g->step);
    if (g->certainty == ROLL_SUSPECTED) {
        words_add(w, " Suspected: only the report of the job says so; such a rank was not seen to wait.");
    }
}

static void speak(struct roll_engine *e, const struct block *b)
{
    const struct entry *waits = source_entry(b->waiter, b->ticket);
    if (waits) {
        comm_mute_at(e, b->comm, b->waiter, &waits->rec);
    }
    comm_explained(e, b->comm);
    if (!waits) {
        return;
    }
    bool fresh;
    enum roll_certainty certainty = b->hard ? ROLL_PROVEN : ROLL_SUSPECTED;
    uint64_t key =
        say_key(ROLL_VERDICT_MOE_OBLIGATION, gather_family(b->comm), waits->rec.step, (uint64_t)certainty + 16);
    struct gathered *g = gather_open(e, key, ROLL_VERDICT_MOE_OBLIGATION, certainty, &fresh);
    if (!g) {
        return;
    }
    struct roll_rankset left = {0}, waiter = {0};
    (void)roll_rankset_copy(&left, &b->absent); /* all that have left it, and not only the first */
    say_beside(e, b->waiter, waits, &waiter);
    if (fresh) {
        struct words none = {.used = 0};
        gather_side(g, b->rank, source_index(e, b->rank), &left, b->rank->last.op ? &b->rank->last : NULL);
        gather_side(g, b->waiter, source_index(e, b->waiter), &waiter, &waits->rec);
        g->phase = ROLL_PHASE_BACKWARD;
        g->kind = b->rank->phase;
        g->number_of[0] = b->rank->step;
        g->remedy = words_left_out_experts(&none, e, &left, waits->rec.step);
        g->words = words_phase;
    }
    gather_add(e, g, b->comm, waits->rec.step, waits->rec.microbatch, waits->rec.layer, &left, b->waiting);
    roll_rankset_fini(&left);
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
