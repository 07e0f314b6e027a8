/*
 * route.c: see route.h.
 */
#include "trace/route.h"

#include "common/mix.h"
#include "trace/op.h"

#define BATCHES 64u /* microbatches of one layer that may be under way at once (pipelining) */
#define LAYERS  1024u
#define MISSING UINT32_MAX

int64_t roll_route_place(const struct roll_record *rec)
{
    bool phase = rec->phase == ROLL_PHASE_FORWARD || rec->phase == ROLL_PHASE_RECOMPUTE;
    bool routes = rec->op == ROLL_OP_MOE_COUNTS || rec->op == ROLL_OP_MOE_SPLIT;
    return phase && routes && rec->layer < LAYERS ? (int64_t)(rec->layer * BATCHES + rec->microbatch % BATCHES) : -1;
}

void roll_route_lost(struct roll_route *r)
{
    *r = (struct roll_route){.next = MISSING};
}

/* MOE_COUNTS has come: a new list begins. */
static void begin(struct roll_route *r, const struct roll_record *rec)
{
    if (r->step != rec->step || r->microbatch != rec->microbatch) {
        r->pending = 0;
        r->known = false;
    }
    if (rec->phase == ROLL_PHASE_FORWARD) {
        r->pending++;
        r->known = r->compares = false;
    } else {
        r->compares = r->known && r->pending == 1;
        r->pending -= r->pending > 0;
        r->known = false;
    }
    r->step = rec->step;
    r->microbatch = rec->microbatch;
    r->comm = rec->comm;
    r->phase = rec->phase;
    r->buffer = rec->group;
    r->next = 0;
    r->sum = r->hash = 0;
}

static enum roll_route_says whole(struct roll_route *r)
{
    if (r->phase != ROLL_PHASE_FORWARD) {
        return r->compares && r->hash != r->forward ? ROLL_ROUTE_RECOMPUTE : ROLL_ROUTE_GOES_ON;
    }
    r->forward = r->hash;
    r->known = r->pending == 1;
    /* UINT32_MAX: the rows may be more than the field can hold */
    bool sized = r->buffer != 0 && r->buffer != UINT32_MAX;
    return sized && r->sum != r->buffer ? ROLL_ROUTE_SPLIT_SUM : ROLL_ROUTE_FORWARD;
}

enum roll_route_says roll_route_take(struct roll_route *r, const struct roll_record *rec, uint32_t members)
{
    if (rec->op == ROLL_OP_MOE_COUNTS) {
        begin(r, rec);
        return ROLL_ROUTE_GOES_ON;
    }
    bool follows = r->step == rec->step && r->microbatch == rec->microbatch && r->phase == rec->phase &&
                   r->comm == rec->comm && rec->peer >= 0 && (uint32_t)rec->peer == r->next;
    if (!follows) {
        r->next = MISSING; /* a split is missing: the list says nothing */
        return ROLL_ROUTE_GOES_ON;
    }
    r->next++;
    r->sum += rec->count;
    r->hash = moe_mix(moe_mix(r->hash + r->next) ^ moe_mix_word(rec->count, rec->group));
    return r->next == members ? whole(r) : ROLL_ROUTE_GOES_ON;
}
