/*
 * moe.h: what the detectors about MoE layers share: what a rank has reported about each layer.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_MOE_H
#define ROLL_DAEMON_ENGINE_DETECT_MOE_H

#include "daemon/engine/detect/detector.h"

/* What a rank reported about one MoE layer in the last step. */
struct layer_note {
    uint32_t step;
    uint16_t microbatch;
    bool idle; /* the rank has no tokens of its own either */
    bool zero, skipped, remedied;
    bool said_zero, said_skip, said_remedy;
};

/* detect_moe_zero.c */
const struct layer_note *layer_note_of(const struct source *s, uint32_t layer); /* NULL: nothing is known */
/* Adds that this rank left out the experts of some MoE layer of this step because it had no tokens for them. Returns
 * the remedy for that; 0: the rank left nothing out. */
uint32_t words_left_out_experts(struct words *w, const struct source *s, uint32_t step);

#endif
