/*
 * moe.h: what the detectors of MoE layers share: what a rank said about one layer.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_MOE_H
#define ROLL_DAEMON_ENGINE_DETECT_MOE_H

#include "daemon/engine/detect/detector.h"

/* What a rank said about one MoE layer last. */
struct layer_note {
    uint32_t step;
    uint16_t microbatch;
    bool idle; /* it has no tokens of its own either */
    bool zero, skipped, remedied;
    bool said_zero, said_skip, said_remedy;
};

/* detect_moe_zero.c */
const struct layer_note *layer_note_of(const struct source *s, uint32_t layer); /* NULL: nothing is known */
/* Says that this rank left out the experts of some MoE layer of this step because it had no tokens for them; the remedy
 * for that, 0: it did not. */
uint32_t words_left_out_experts(struct words *w, const struct source *s, uint32_t step);

#endif
