/*
 * layers.c: which MoE layers the job has, as its ranks report them: who switches a remedy for one layer is told of a
 * layer that is not there.
 *
 * Nobody announces layers, so they are all known only when a step is over: of the first step that is seen perhaps only
 * the end was, and of the one behind it all had come when some rank tells of the next one: all of those that are heard.
 * A pipeline's stage of which nothing has come may have others, so nobody is told that a layer does not exist. To take
 * a definition into the ring for each layer was rejected: the records tell the same.
 */
#include "daemon/engine/model/engine_state.h"

void layers_note(struct roll_engine *e, const struct roll_record *rec)
{
    if (rec->layer >= ROLL_CONTROL_LAYERS) {
        return;
    }
    e->moe_layers[rec->layer / 64] |= 1ull << rec->layer % 64;
    if (rec->step != ROLL_STEP_NONE) {
        e->moe_first = e->moe_told ? e->moe_first : rec->step;
        e->moe_told = true;
        e->moe_whole = e->moe_whole || rec->step > e->moe_first + 1;
    }
}
