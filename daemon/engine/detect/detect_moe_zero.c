/*
 * detect_moe_zero.c: a rank received no tokens in an MoE layer, skipped its expert GEMM, or had a remedy act on it.
 *
 * All three are notes. A rank without tokens is ordinary routing skew, and becomes a fault only when its backward pass
 * lacks collectives (detect_moe_obligation.c). There is one note per rank and layer: a note in every step would hide
 * what matters; of a remedy one per rank, layer and remedy, so that none hides another. Source of the hazard:
 * Megatron-LM pull requests #3626 and #4851 (a rank with no routed tokens skips its expert subgraph).
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

/* The rank left out the experts of the layer in the step and microbatch of which the note tells. */
static bool left_out_now(const struct layer_note *note)
{
    return note->skipped && !note->remedied;
}

/* The rank has gone back to an earlier step, from a checkpoint: the steps from this one on run again, and what was left
 * out in them before says nothing of what is left out now. */
static void note_again(const struct source *s, struct layer_note *note, const struct roll_record *rec)
{
    if (note->went_back != s->went_back && rec->step != ROLL_STEP_NONE) {
        bool again = note->step == ROLL_STEP_NONE || note->step >= rec->step;
        note->left_out = note->left_out >= rec->step ? ROLL_STEP_NONE : note->left_out;
        note->idle = note->idle && !again;
        note->zero = note->zero && !again;
        note->skipped = note->skipped && !again;
        note->remedied = note->remedied && !again;
        note->went_back = s->went_back;
    }
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
    size_t layers = own->layers;
    if (ROLL_GROW_ZERO(own->layer, own->layers, rec->layer + 1u) != 0) {
        return NULL;
    }
    for (; layers < own->layers; layers++) {
        own->layer[layers].left_out = ROLL_STEP_NONE;
    }
    struct layer_note *note = &own->layer[rec->layer];
    note_again(s, note, rec);
    if (note->step != rec->step || note->microbatch != rec->microbatch) {
        note->left_out = left_out_now(note) ? note->step : note->left_out;
        note->step = rec->step;
        note->microbatch = rec->microbatch;
        note->idle = note->zero = note->skipped = note->remedied = false;
    }
    return note;
}

/* The layers whose experts this rank left out in this step, or in a microbatch of it. The rank may be in the next step
 * by now, and have left them out there, too. */
static void layers_left_out(const struct source *s, uint32_t step, struct roll_rankset *layers)
{
    const struct layer_note *note;
    roll_rankset_clear(layers);
    for (uint32_t layer = 0; step != ROLL_STEP_NONE && (note = layer_note_of(s, layer)); layer++) {
        if ((note->step == step && left_out_now(note)) || note->left_out == step) {
            (void)roll_rankset_add(layers, layer);
        }
    }
}

/* The ranks that left out the layers, with what follows from it. */
static void words_same_layers(struct words *w, const struct roll_rankset *ranks, const struct roll_rankset *layers,
                              uint32_t step)
{
    char who[128], which[128];
    bool one = roll_rankset_count(ranks) == 1;
    (void)roll_rankset_format(ranks, who, sizeof(who));
    (void)roll_rankset_format(layers, which, sizeof(which));
    words_add(
        w,
        " In step %u rank%s %s received no tokens in MoE layer%s %s and skipped %s experts: their gradients never "
        "come, and %s what the others reduce with them.",
        step, one ? "" : "s", who, roll_rankset_count(layers) == 1 ? "" : "s", which, one ? "its" : "their",
        one ? "the rank leaves out" : "the ranks leave out");
}

uint32_t words_left_out_experts(struct words *w, const struct roll_engine *e, const struct roll_rankset *ranks,
                                uint32_t step)
{
    struct roll_rankset told = {0}, layers = {0}, same = {0}, others = {0};
    for (uint32_t i = 0; i < e->sources; i++) {
        const struct source *s = e->source[i];
        if (!roll_rankset_has(ranks, s->world) || roll_rankset_has(&told, s->world)) {
            continue;
        }
        layers_left_out(s, step, &layers);
        roll_rankset_clear(&same);
        for (uint32_t k = i; roll_rankset_count(&layers) > 0 && k < e->sources; k++) {
            layers_left_out(e->source[k], step, &others);
            if (roll_rankset_has(ranks, e->source[k]->world) && roll_rankset_equal(&layers, &others)) {
                (void)roll_rankset_add(&same, e->source[k]->world);
            }
        }
        if (roll_rankset_count(&same) > 0) {
            words_same_layers(w, &same, &layers, step);
            (void)roll_rankset_union(&told, &same);
        }
    }
    bool any = roll_rankset_count(&told) > 0;
    roll_rankset_fini(&told);
    roll_rankset_fini(&layers);
    roll_rankset_fini(&same);
    roll_rankset_fini(&others);
    return any ? ROLL_REMEDY_FILL : 0;
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
        bool empty = ((uint32_t)rec->peer & (ROLL_REMEDY_FILL | ROLL_REMEDY_PAD | ROLL_REMEDY_DUMMY)) != 0;
        words_add(&w, empty ? " had no tokens, and remedy '%s' acted in " : " let remedy '%s' act in ",
                  roll_remedy_name((uint32_t)rec->peer));
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
    bool tokens = !relevant && (rec->op == ROLL_OP_MOE_COUNTS || rec->op == ROLL_OP_MOE_ROUTE);
    if (first && tokens && layer_note_of(e->source[source], rec->layer)) {
        note_again(e->source[source], &moe_zero_of_source(e->source[source])->layer[rec->layer], rec);
    }
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
        if (((uint32_t)rec->peer & ~note->said_remedies) != 0) {
            note->said_remedies |= (uint32_t)rec->peer;
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
