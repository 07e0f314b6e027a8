/*
 * observe_state.h: what observe.c and observe_route.c share: what is kept of one rank's observations.
 */
#ifndef ROLL_DAEMON_DIGEST_OBSERVE_STATE_H
#define ROLL_DAEMON_DIGEST_OBSERVE_STATE_H

#include "daemon/base/map.h"
#include "daemon/digest/observe.h"
#include "trace/route.h"

#define ROLL_OBSERVED_LIKES  1024u /* the newest of a communicator: what one cut can tell, and tell again */
#define ROLL_OBSERVED_SHARES 256u
#define ROLL_OBSERVED_LIST   256u /* obligations of one layer */
#define ROLL_OBSERVED_STEPS  64u  /* steps of which the first record is known */

/* A sum of shares of which only one side may have been told. */
struct roll_observed_share {
    struct roll_digest_share said;
    bool part, sum, told;
};

/* What the rank tells on one communicator. */
struct roll_observed_line {
    struct roll_map seen; /* what was told in this step -> number in `count` */
    uint16_t *count;      /* owned: how often */
    size_t counts, room;
    struct roll_digest_like *like;     /* owned: ROLL_OBSERVED_LIKES, by number */
    struct roll_observed_share *share; /* owned: ROLL_OBSERVED_SHARES */
    uint64_t likes, likes_told, shares, shares_told;
    uint32_t turn, step, outside; /* outside: what was told in no step */
    bool spoken;
};

struct roll_observed {
    struct roll_observed_line **line; /* owned; by the rank's id of the communicator */
    size_t lines;
    struct roll_map route_at; /* layer and microbatch -> number */
    struct roll_route *route;
    size_t routes, route_room;
    struct {
        uint32_t op;
        uint16_t comm;
    } list[ROLL_OBSERVED_LIST];
    uint32_t listed, list_step;
    uint16_t list_microbatch, list_layer;
    bool list_any, list_broken;
    struct {
        uint64_t ticket; /* of the observation before its first one: its records are whole behind it */
        uint32_t step;
    } begin[ROLL_OBSERVED_STEPS];
    uint64_t steps, last; /* last: ticket of the newest observation */
    bool gap, in_gap;     /* records are missing: of the step `gap_step` nothing is told */
    uint32_t gap_step;
    bool outside_lost; /* how often something was told in no step is not known */
    bool remedied;     /* that a remedy acted was a hint */
};

/* Both may be small numbers, so the first is spread before the second meets it. */
static inline uint64_t roll_observed_mix(uint64_t h, uint64_t v)
{
    uint64_t x = ((h + 1) * 0x9e3779b97f4a7c15u ^ v) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* What the rank says of the record's step may be all that it has said: as source_certain of the engine. */
static inline bool roll_observed_certain(struct roll_observed *o, const struct roll_record *rec)
{
    if (o->gap) {
        o->gap = false;
        o->in_gap = true;
        o->gap_step = rec->step;
    }
    o->in_gap = o->in_gap && o->gap_step == rec->step;
    return !o->in_gap;
}
/* observe_route.c. 1: the rank's routing contradicts itself. 0, NOMEM. */
int roll_observed_route(struct roll_observed *o, const struct roll_record *rec, uint32_t size);

#endif
