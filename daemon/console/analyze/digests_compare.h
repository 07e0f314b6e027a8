/*
 * digests_compare.h: what digests_compare.c finds and digests_place.c judges or tells. Private to these two.
 */
#ifndef ROLL_DAEMON_CONSOLE_ANALYZE_DIGESTS_COMPARE_H
#define ROLL_DAEMON_CONSOLE_ANALYZE_DIGESTS_COMPARE_H

#include "daemon/console/analyze/digests.h"

#include "daemon/base/map.h"
#include "daemon/digest/sum.h"

/* What is known of one communicator, over all sections of the end. */
struct digest_known {
    uint64_t key;
    uint32_t size;
    uint32_t first, sections; /* in `member`: sections that have members of it */
    uint32_t from;            /* the excerpts have all collectives from this one on */
    bool whole;               /* of all of them */
};
struct digest_member {
    const struct digest_section *section;
    struct roll_rdig_comm comm;
    uint32_t spans_at, next;
};
/* Something that has to be looked at. */
struct digest_place {
    uint64_t key;
    uint32_t seq, last;
    bool stands, messages, observed; /* observed: seq is the step, as roll_observed_step tells it */
};
struct digests_compared {
    roll_digests_t *digests;
    const struct digest_run *run;
    struct digest_known *known;
    size_t knowns, known_room;
    struct roll_map known_at;
    struct digest_member *member; /* by communicator, in the order of sections, linked by `next` */
    size_t members, member_room;
    struct digest_place *place;
    size_t places, place_room;
    roll_sum_t *sum;
    size_t told; /* places */
};

/* The communicator; NULL: no section of the end has members of it. */
static inline const struct digest_known *digest_known_of(const struct digests_compared *c, uint64_t key)
{
    uint32_t at = roll_map_get(&c->known_at, key);
    return at == ROLL_MAP_NONE ? NULL : &c->known[at];
}

/* Judges a place, or tells that it cannot be judged and what fetches its records. 0, NOMEM. */
int roll_digests_look_at(struct digests_compared *compared, const struct digest_place *place);
/* Tells what digests do not compare and lies before the excerpts, and how many places were not told one by one. */
void roll_digests_tell_rest(struct digests_compared *compared);

#endif
