/*
 * detectors.c: the table of detectors, made of detectors.def, and who is asked in its order.
 */
#include "daemon/engine/detect/detector.h"

const struct detector *const detectors[DETECTORS] = {
#define DETECTOR(name, engine, source, comm, member) [DETECTOR_##name] = &detect_##name,
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
};

static bool ask_disagree(struct roll_engine *e, const struct finding *f)
{
    for (size_t i = 0; i < DETECTORS; i++) {
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
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->block && detectors[i]->block(e, b)) {
            return true;
        }
    }
    return false;
}

const struct judge_ask detectors_ask = {.disagree = ask_disagree, .block = ask_block, .end_is_told = refused_end};

bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index)
{
    for (size_t i = 0; i < DETECTORS; i++) {
        if (detectors[i]->pair && detectors[i]->pair(e, p, index)) {
            return true;
        }
    }
    return false;
}
