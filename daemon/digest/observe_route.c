/*
 * observe_route.c: a rank's routing contradicts itself, by the rule of trace/route.h: the rank's records are asked for.
 * To ask for them whenever something is recomputed was rejected: that is every layer of most jobs.
 */
#include "daemon/base/array.h"
#include "daemon/digest/observe_state.h"

static struct roll_route *note_of(struct roll_observed *o, uint64_t place)
{
    uint32_t at = roll_map_get(&o->route_at, place);
    if (at != ROLL_MAP_NONE) {
        return &o->route[at];
    }
    if (ROLL_GROW(o->route, o->route_room, o->routes + 1) != 0 ||
        roll_map_add(&o->route_at, place, (uint32_t)o->routes) != 0) {
        return NULL;
    }
    o->route[o->routes] = (struct roll_route){0};
    return &o->route[o->routes++];
}

int roll_observed_route(struct roll_observed *o, const struct roll_record *rec, uint32_t size)
{
    int64_t place = roll_route_place(rec);
    if (place < 0 || size == 0) {
        return 0;
    }
    struct roll_route *r = note_of(o, (uint64_t)place);
    if (!r) {
        return ROLL_E_NOMEM;
    }
    if (!roll_observed_certain(o, rec)) {
        roll_route_lost(r);
        return 0;
    }
    enum roll_route_says says = roll_route_take(r, rec, size);
    return says == ROLL_ROUTE_SPLIT_SUM || says == ROLL_ROUTE_RECOMPUTE;
}
