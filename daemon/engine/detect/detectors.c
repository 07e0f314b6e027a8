/*
 * detectors.c: the table of detectors. The first that takes a case is the only one that speaks about it, so the more
 * special come first.
 */
#include "daemon/engine/detect/detector.h"

const struct detector *const detectors[] = {
    &detect_null,      &detect_moe_obligation,
    &detect_moe_phase, &detect_moe_outside,
    &detect_moe_zero,  &detect_moe_uniform,
    &detect_moe_route, &detect_numbers,
    &detect_lowered,   &detect_taken,
    &detect_refused,   &detect_zero,
    &detect_capture,   &detect_signature,
    &detect_group,     &detect_align,
    &detect_alltoallv, &detect_p2p,
    &detect_circular,  &detect_process,
    &detect_stuck,     &detect_missing,
    &detect_claim,     &detect_init,
    &detect_loss,      &detect_race,
    &detect_unheard,   &detect_straggler,
    &detect_order,     &detect_gather, /* last: what the others have gathered in this tick is said */
};
const size_t detector_count = sizeof(detectors) / sizeof(detectors[0]);

static bool ask_disagree(struct roll_engine *e, const struct finding *f)
{
    for (size_t i = 0; i < detector_count; i++) {
        if (detectors[i]->disagree && detectors[i]->disagree(e, f)) {
            return true;
        }
    }
    return false;
}

static bool ask_block(struct roll_engine *e, const struct block *b, enum ask whom)
{
    if (whom == ASK_END) {
        return detect_refused.block(e, b) || detect_missing.block(e, b);
    }
    if (whom == ASK_CREATION) {
        return detect_zero.block(e, b) || detect_circular.block(e, b);
    }
    for (size_t i = 0; i < detector_count; i++) {
        if (detectors[i]->block && detectors[i]->block(e, b)) {
            return true;
        }
    }
    return false;
}

const struct judge_ask detectors_ask = {.disagree = ask_disagree, .block = ask_block, .end_is_told = refused_end};

bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    for (size_t i = 0; i < detector_count; i++) {
        if (detectors[i]->pair && detectors[i]->pair(e, p, index)) {
            return true;
        }
    }
    return false;
}
