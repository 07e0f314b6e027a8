/*
 * obligation_say.c: the prediction that ranks will be waited for in backward, and the verdict that the wait has come.
 */
#include "daemon/engine/detect/obligation.h"

static void words_missing(struct words *w, const struct roll_engine *e, const struct cause *cause)
{
    struct comm *on = comm_find(e, cause->obligation.comm_key);
    words_add(w, "%u backward %s (first: %s on ", cause->missing, cause->missing == 1 ? "collective" : "collectives",
              roll_op_name(cause->obligation.op));
    if (on) {
        words_comm(w, on);
    } else {
        words_add(w, "a communicator that is not known yet");
    }
    words_add(w, ")");
}

static void fill_verdict(struct roll_engine *e, struct roll_verdict *v, const struct cause *cause)
{
    const struct comm *ep = comm_find(e, cause->key);
    const struct entry *mine = source_entry(e->source[cause->source], cause->ticket);
    const struct entry *theirs = source_entry(e->source[cause->peer_source], cause->peer_ticket);
    say_comm(v, ep, 0);
    say_side(v, e->source[cause->source], cause->source, &cause->culprits, mine ? &mine->rec : NULL);
    say_side(v, e->source[cause->peer_source], cause->peer_source, &cause->waiting, theirs ? &theirs->rec : NULL);
    (void)roll_rankset_copy(&v->culprits, &cause->culprits);
    (void)roll_rankset_copy(&v->waiting, &cause->waiting);
    v->step = cause->step;
    v->microbatch = cause->microbatch;
    v->layer = cause->layer;
    v->remedy = ROLL_REMEDY_FILL;
    v->phase = ROLL_PHASE_FORWARD;
}

/* Adds what the culprits did in forward, as far as they reported it. */
static void words_deed(struct words *w, const struct cause *cause, bool zero, bool one)
{
    if (cause->skipped) {
        words_add(w, " and skipped %s experts", one ? "its" : "their");
    } else if (zero) {
        words_add(w, " and left that layer's exchange or cut its backward");
    }
    words_add(w, one ? ": it will not issue " : ": they will not issue ");
}

static void words_prediction(const struct roll_engine *e, const struct gathered *g, struct words *w)
{
    const struct cause *cause = &moe_obligation_of_engine(e)->cause[g->number_of[0]];
    bool zero = g->kind != 0, one = roll_rankset_count(&g->culprits) == 1;
    words_ranks(w, &g->culprits);
    words_add(w, zero ? " received no tokens in " : one ? " left its experts out in " : " left their experts out in ");
    words_add(w, g->several ? "some of " : "");
    gather_place(g, w);
    words_deed(w, cause, zero, one);
    words_missing(w, e, cause);
    words_add(w, roll_rankset_count(&g->layers) > 1 ? " of each. " : ". ");
    if (g->several) {
        words_add(w, "In each of them the other ranks will wait for them in backward, for ever.");
        return;
    }
    words_ranks(w, &g->waiting);
    words_add(w, " will wait for %s in backward, for ever.", one ? "it" : "them");
}

void obligation_predict(struct roll_engine *e, const struct cause *cause, bool zero)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    bool fresh;
    for (uint32_t i = 0; i < own->causes; i++) {
        if (own->cause[i].key == cause->key && own->cause[i].proven) {
            return;
        }
    }
    struct gathered *g = gather_open(e, cause->prediction, ROLL_VERDICT_MOE_OBLIGATION, ROLL_PREDICTED, &fresh);
    if (!g) {
        return;
    }
    if (fresh) {
        const struct entry *mine = source_entry(e->source[cause->source], cause->ticket);
        const struct entry *theirs = source_entry(e->source[cause->peer_source], cause->peer_ticket);
        gather_side(g, e->source[cause->source], cause->source, &cause->culprits, mine ? &mine->rec : NULL);
        gather_side(g, e->source[cause->peer_source], cause->peer_source, &cause->waiting,
                    theirs ? &theirs->rec : NULL);
        g->number_of[0] = (uint32_t)(cause - own->cause);
        g->kind = zero;
        g->phase = ROLL_PHASE_FORWARD;
        g->remedy = ROLL_REMEDY_FILL;
        g->words = words_prediction;
    }
    g->several = g->several || (!fresh && !roll_rankset_equal(&g->culprits, &cause->culprits));
    gather_add(e, g, comm_find(e, cause->key), cause->step, cause->microbatch, cause->layer, &cause->culprits,
               &cause->waiting);
}

/* Backward goes through the layers from the last to the first. So of several predictions for one step, that of the last
 * layer comes true first. */
static struct cause *first_in_backward(const struct roll_engine *e, struct cause *cause)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        struct cause *other = &own->cause[i];
        if (other->key == cause->key && other->step == cause->step && other->microbatch == cause->microbatch &&
            other->layer > cause->layer) {
            cause = other;
        }
    }
    return cause;
}

/* The wait came before backward: the host of a waiting rank has not come further than forward of that step. */
static bool in_forward(const struct roll_engine *e, const struct cause *cause)
{
    const struct roll_record *last = &e->source[cause->peer_source]->last;
    return !cause->skipped && last->step == cause->step && last->phase == ROLL_PHASE_FORWARD;
}

void obligation_came_true(struct roll_engine *e, struct cause *cause)
{
    const struct moe_obligation_engine *own = moe_obligation_of_engine(e);
    for (uint32_t i = 0; i < own->causes; i++) {
        if (own->cause[i].key == cause->key && own->cause[i].proven) {
            return;
        }
    }
    cause = first_in_backward(e, cause);
    cause->proven = true;
    gather_flush_code(e, ROLL_VERDICT_MOE_OBLIGATION);
    struct gathered *g = gather_find(e, cause->prediction);
    uint64_t predicted = g ? gather_flush(e, g) : 0;
    struct roll_verdict *v = say(e, ROLL_VERDICT_MOE_OBLIGATION, ROLL_PROVEN);
    if (!v) {
        return;
    }
    say_confirms(e, v, predicted);
    fill_verdict(e, v, cause);
    bool early = in_forward(e, cause);
    v->phase = early ? ROLL_PHASE_FORWARD : ROLL_PHASE_BACKWARD;
    struct words w = {.used = 0};
    words_add(&w, early ? "The predicted wait has come before backward: " : "The predicted wait has happened: ");
    words_wait(&w, &cause->waiting);
    words_add(&w, early ? " in forward for " : " in backward for ");
    words_ranks(&w, &cause->culprits);
    words_add(&w, early ? ", which left the exchange and would leave out " : ", which left out ");
    words_missing(&w, e, cause);
    words_add(&w, !cause->skipped                             ? " of "
                  : roll_rankset_count(&cause->culprits) == 1 ? " because it skipped its experts in "
                                                              : " because they skipped their experts in ");
    words_place(&w, cause->step, cause->microbatch, cause->layer);
    words_add(&w, ". For this step it is too late: remedy '%s' acts where %s.", roll_remedy_name(ROLL_REMEDY_FILL),
              cause->skipped ? "the experts are skipped" : "a rank finds that it received nothing");
    say_text(e, v, "%s", w.text);
}
