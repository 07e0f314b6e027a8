/*
 * moe.h: what the detectors about MoE layers share: what a rank has reported about each layer.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_MOE_H
#define ROLL_DAEMON_ENGINE_DETECT_MOE_H

#include "daemon/engine/detect/detector.h"

/* What a rank reported about one MoE layer in the last microbatch. */
struct layer_note {
    uint32_t step;
    uint16_t microbatch;
    uint32_t left_out;  /* the step before that, or microbatch, in which its experts were left out; NONE: none */
    uint32_t went_back; /* how often the rank had gone back to an earlier step when this was written down */
    bool idle;          /* the rank has no tokens of its own either */
    bool zero, skipped, remedied;
    bool said_zero, said_skip;
    uint32_t said_remedies; /* bits of the remedies that were told */
};

/* detect_moe_zero.c */
const struct layer_note *layer_note_of(const struct source *s, uint32_t layer); /* NULL: nothing is known */
/* Adds that some of these ranks left out the experts of some MoE layers of this step because they had no tokens for
 * them; ranks that left out the same layers in one sentence. Returns the remedy for that; 0: none left anything out. */
uint32_t words_left_out_experts(struct words *w, const struct roll_engine *e, const struct roll_rankset *ranks,
                                uint32_t step);

#endif
