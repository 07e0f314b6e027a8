/*
 * ranks.h: lists of ranks, each read once for all dumps that hold it.
 *
 * Each rank's dump holds the ranks of all its groups as a text, and so the members of a group write the same text: of
 * the bytes of a large job's dumps, most are these. A text that was met before costs a hash and a comparison.
 * One thread per set of lists.
 */
#ifndef ROLL_DAEMON_DUMPS_RANKS_H
#define ROLL_DAEMON_DUMPS_RANKS_H

#include "daemon/base/map.h"
#include "daemon/dumps/value.h"

/* A list; its ranks are borrowed from the set of lists. */
struct roll_ranks {
    const uint32_t *rank;
    uint32_t ranks;
    bool rising;   /* each is larger than the one before it */
    uint64_t hash; /* of the ranks */
};

struct roll_ranks_known {
    const char *text; /* in the arena */
    size_t bytes;
    struct roll_ranks list;
};

struct roll_rank_lists {
    struct roll_arena arena; /* lists, and the texts that they were read from */
    struct roll_ranks_known *known;
    size_t knowns, room;
    struct roll_map at; /* hash of a text -> its number in `known` */
};

void roll_rank_lists_init(struct roll_rank_lists *lists);
void roll_rank_lists_fini(struct roll_rank_lists *lists);
/* Reads "[0, 1]" or a list of numbers; all else is a list of nobody. 0; CORRUPT: no list of ranks; NOMEM. */
int roll_rank_lists_read(struct roll_rank_lists *lists, const struct roll_value *v, struct roll_ranks *out);
/* The place of a rank in a list; -1: it is not there. */
int32_t roll_ranks_find(const struct roll_ranks *list, uint32_t rank);

#endif
