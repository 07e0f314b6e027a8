/*
 * observe_route.c: a rank's routing contradicts itself: its splits do not add up to the buffer, or a recomputed forward
 * has others than the first. The rule is that of detect_moe_route.c, without what it says: where it would speak, the
 * rank's records are asked for. To ask for them whenever something is recomputed was rejected: that is every layer of
 * most jobs.
 */
#include "daemon/base/array.h"
#include "daemon/digest/observe_state.h"
#include "trace/op.h"

#define BATCHES 64u /* microbatches of one layer that may be under way at once (pipelining) */
#define LAYERS  1024u
#define MISSING UINT32_MAX

static struct roll_observed_route *note_of(struct roll_observed *o, const struct roll_record *rec)
{
    uint64_t key = (uint64_t)rec->layer * BATCHES + rec->microbatch % BATCHES;
    uint32_t at = roll_map_get(&o->route_at, key);
    if (at != ROLL_MAP_NONE) {
        return &o->route[at];
    }
    if (ROLL_GROW(o->route, o->route_room, o->routes + 1) != 0 ||
        roll_map_add(&o->route_at, key, (uint32_t)o->routes) != 0) {
        return NULL;
    }
    o->route[o->routes] = (struct roll_observed_route){0};
    return &o->route[o->routes++];
}

/* MOE_COUNTS has come: a new list begins. */
static void begin(struct roll_observed_route *n, const struct roll_record *rec)
{
    if (n->step != rec->step || n->microbatch != rec->microbatch) {
        n->pending = 0;
        n->known = false;
    }
    if (rec->phase == ROLL_PHASE_FORWARD) {
        n->pending++;
        n->known = n->compares = false;
    } else {
        n->compares = n->known && n->pending == 1;
        n->pending -= n->pending > 0;
        n->known = false;
    }
    n->step = rec->step;
    n->microbatch = rec->microbatch;
    n->comm = rec->comm;
    n->phase = rec->phase;
    n->buffer = rec->group;
    n->next = 0;
    n->sum = n->hash = 0;
}

static bool contradicts(struct roll_observed_route *n)
{
    if (n->phase != ROLL_PHASE_FORWARD) {
        return n->compares && n->hash != n->forward;
    }
    n->forward = n->hash;
    n->known = n->pending == 1;
    /* UINT32_MAX: the rows may be more than the field can hold */
    return n->buffer != 0 && n->buffer != UINT32_MAX && n->sum != n->buffer;
}

int roll_observed_route(struct roll_observed *o, const struct roll_record *rec, uint32_t size)
{
    bool phase = rec->phase == ROLL_PHASE_FORWARD || rec->phase == ROLL_PHASE_RECOMPUTE;
    if (!phase || size == 0 || rec->layer >= LAYERS) {
        return 0;
    }
    struct roll_observed_route *n = note_of(o, rec);
    if (!n) {
        return ROLL_E_NOMEM;
    }
    if (!roll_observed_certain(o, rec)) {
        *n = (struct roll_observed_route){.next = MISSING};
        return 0;
    }
    if (rec->op == ROLL_OP_MOE_COUNTS) {
        begin(n, rec);
        return 0;
    }
    bool follows = n->step == rec->step && n->microbatch == rec->microbatch && n->phase == rec->phase &&
                   n->comm == rec->comm && rec->peer >= 0 && (uint32_t)rec->peer == n->next;
    if (!follows) {
        n->next = MISSING;
        return 0;
    }
    n->next++;
    n->sum += rec->count;
    n->hash = roll_observed_mix(roll_observed_mix(n->hash, rec->count), (uint64_t)rec->group << 32 | n->next);
    return n->next == size && contradicts(n);
}
