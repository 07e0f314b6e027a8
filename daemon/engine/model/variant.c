/*
 * variant.c: the calls at a slot that differ from the call that came first.
 *
 * The variants of all slots stand in one pool of the engine, and each slot has a list in it. An array in each slot was
 * rejected: few slots ever have a variant.
 */
#include "daemon/base/array.h"
#include "daemon/engine/model/engine_state.h"

static uint32_t new_variant(struct roll_engine *e)
{
    uint32_t at = e->variant_free;
    if (at != 0) {
        e->variant_free = e->variant[at - 1].next;
        return at;
    }
    return ROLL_GROW(e->variant, e->variant_room, e->variants + 1u) == 0 ? ++e->variants : 0;
}

int slot_add_variant(struct roll_engine *e, struct slot *s, const struct variant *v)
{
    uint32_t at = new_variant(e);
    if (at == 0) {
        return ROLL_E_NOMEM;
    }
    e->variant[at - 1] = *v;
    e->variant[at - 1].next = s->variant;
    s->variant = at;
    return 0;
}

void slot_release(struct roll_engine *e, struct slot *s)
{
    while (s->variant != 0) {
        uint32_t at = s->variant;
        s->variant = e->variant[at - 1].next;
        e->variant[at - 1].next = e->variant_free;
        e->variant_free = at;
    }
}
