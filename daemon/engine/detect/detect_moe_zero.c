/*
 * detect_moe_zero.c: a rank received no tokens in an MoE layer, skipped its expert GEMM, or had a remedy act on it.
 *
 * All three are notes. A rank without tokens is ordinary routing skew, and becomes a fault only when its backward pass
 * lacks collectives (detect_moe_obligation.c). There is one note per rank and layer: a note in every step would hide
 * what matters. Source of the hazard: Megatron-LM pull requests #3626 and #4851 (a rank with no routed tokens skips its
 * expert subgraph).
 */
#include "daemon/base/array.h"
#include "daemon/engine/detect/moe.h"

#include <stdlib.h>
#include <string.h>

struct moe_zero_source {
    struct layer_note *layer; /* by layer; owned */
    size_t layers;
};
STATE_OF_SOURCE(moe_zero)

const struct layer_note *layer_note_of(const struct source *s, uint32_t layer)
{
    const struct moe_zero_source *own = moe_zero_of_source(s);
    return own && layer < own->layers ? &own->layer[layer] : NULL;
}

static struct layer_note *moe_layer(struct source *s, const struct roll_record *rec)
{
    if (rec->layer == ROLL_LAYER_NONE || rec->layer >= 4096) {
        return NULL;
    }
    struct moe_zero_source *own = moe_zero_make_source(s);
    if (!own) {
        return NULL;
    }
    if (ROLL_GROW_ZERO(own->layer, own->layers, rec->layer + 1u) != 0) {
        return NULL;
    }
    struct layer_note *note = &own->layer[rec->layer];
    if (note->step != rec->step || note->microbatch != rec->microbatch) {
        note->step = rec->step;
        note->microbatch = rec->microbatch;
        note->idle = note->zero = note->skipped = note->remedied = false;
    }
    return note;
}

uint32_t words_left_out_experts(struct words *w, const struct source *s, uint32_t step)
{
    struct roll_rankset layers = {0};
    char folded[128];
    const struct layer_note *note;
    for (uint32_t layer = 0; step != ROLL_STEP_NONE && (note = layer_note_of(s, layer)); layer++) {
        if (note->step == step && note->skipped && !note->remedied) {
            (void)roll_rankset_add(&layers, layer);
        }
    }
    size_t count = roll_rankset_count(&layers);
    if (count > 0) {
        (void)roll_rankset_format(&layers, folded, sizeof(folded));
        words_add(w,
                  " In step %u rank %u received no tokens in MoE %s %s and skipped its experts: their gradients never "
                  "come, and the rank leaves out what the others reduce with them.",
                  step, s->world, count == 1 ? "layer" : "layers", folded);
    }
    roll_rankset_fini(&layers);
    return count > 0 ? ROLL_REMEDY_FILL : 0;
}

static void speak(struct roll_engine *e, uint32_t source, const struct roll_record *rec, enum roll_verdict_code code)
{
    const struct source *s = e->source[source];
    const struct member *m = source_member(s, rec->comm);
    struct roll_verdict *v = say(e, code, ROLL_NOTE);
    if (!v) {
        return;
    }
    struct words w = {.used = 0};
    (void)roll_rankset_add(&v->culprits, s->world);
    say_side(v, s, source, &v->culprits, rec);
    v->step = rec->step;
    v->microbatch = rec->microbatch;
    v->layer = rec->layer;
    v->phase = rec->phase;
    if (m) {
        say_comm(v, m->comm, 0);
    }
    words_add(&w, "Rank %u", s->world);
    if (code == ROLL_VERDICT_MOE_ZERO_TOKENS) {
        words_add(&w, " received no tokens in ");
    } else if (code == ROLL_VERDICT_MOE_GEMM_SKIPPED) {
        words_add(&w, " skipped its expert GEMM in ");
    } else {
        v->remedy = (uint32_t)rec->peer;
        v->remedied = true;
        words_add(&w, " had no tokens, and remedy '%s' acted in ", roll_remedy_name((uint32_t)rec->peer));
    }
    words_place(&w, rec->step, rec->microbatch, rec->layer);
    words_add(&w, ". Further steps in which the same happens to this rank and layer are not told.");
    say_text(e, v, "%s", w.text);
}

static void zero_record(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                        bool first)
{
    (void)ticket;
    bool relevant = ((rec->op == ROLL_OP_MOE_COUNTS || rec->op == ROLL_OP_MOE_ROUTE) && rec->count == 0) ||
                    rec->op == ROLL_OP_MOE_SKIP || rec->op == ROLL_OP_MOE_REMEDY;
    struct layer_note *note = first && relevant ? moe_layer(e->source[source], rec) : NULL;
    if (!note) {
        return;
    }
    if (rec->op == ROLL_OP_MOE_ROUTE) {
        note->idle = true;
    } else if (rec->op == ROLL_OP_MOE_COUNTS) {
        note->zero = true;
        if (!note->said_zero) {
            note->said_zero = true;
            speak(e, source, rec, ROLL_VERDICT_MOE_ZERO_TOKENS);
        }
    } else if (rec->op == ROLL_OP_MOE_SKIP) {
        note->skipped = true;
        if (!note->said_skip) {
            note->said_skip = true;
            speak(e, source, rec, ROLL_VERDICT_MOE_GEMM_SKIPPED);
        }
    } else {
        note->remedied = true;
        if (!note->said_remedy) {
            note->said_remedy = true;
            speak(e, source, rec, ROLL_VERDICT_MOE_REMEDIED);
        }
    }
}

static void zero_source_fini(struct source *s)
{
    if (moe_zero_of_source(s)) {
        free(moe_zero_of_source(s)->layer);
    }
}

const struct detector detect_moe_zero = {.name = "moe_zero", .record = zero_record, .source_fini = zero_source_fini};
