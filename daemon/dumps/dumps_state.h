/*
 * dumps_state.h: what the files of a set of dumps share. Private to dumps.c, define.c, place.c and messages.c; one
 * thread per set.
 */
#ifndef ROLL_DAEMON_DUMPS_DUMPS_STATE_H
#define ROLL_DAEMON_DUMPS_DUMPS_STATE_H

#include "daemon/dumps/dump.h"
#include "trace/rankset.h"

#define DUMPS_GROUPS_MAX 65534u /* communicators of a rank: their ids have 16 bits */

struct dumps_job {
    char name[ROLL_NAME_BYTES];
    uint32_t world;
    struct roll_dump **dump; /* owned */
    size_t dumps, room;
    struct roll_rankset ranks;
};

struct roll_dumps {
    struct dumps_job *job;
    size_t jobs, room;
};

/* A group as all dumps show it, and the collective at which a member of which there is no dump would come in. */
struct dumps_common {
    const struct roll_dump_group *group; /* of one of the dumps; borrowed */
    uint32_t next;
};

/* What was seen when the dumps were laid side by side. */
struct dumps_seen {
    bool runs;                   /* a call is complete that some rank's dump does not hold yet */
    char words[256];             /* which, in brackets */
    struct dumps_common *common; /* owned by whoever called dumps_place */
    size_t commons;
};

/* The epoch of the ring that a dump stands for: one a rank, in a feed of its own. */
uint64_t dumps_epoch(const struct roll_dump *d);
/* The engine's number of the rank that wrote a dump. */
uint32_t dumps_source(roll_feed_t *feed, const struct roll_dump *d);
/* The id by which the records of a dump know a group; 0: none, because the rank is no member. */
uint16_t dumps_comm(const struct roll_dump *d, uint32_t group);
/* define.c: gives the communicators, lines and places of a dump to the feed, as definitions. Codes of
 * roll_feed_frame. */
int dumps_define(roll_feed_t *feed, const struct roll_dump *d);
/*
 * unknown.c: collectives under names that are not known here. Where another member's dump knows the collective of that
 * number, the rank has come to it, and nothing more is compared; where none does, it counts as made when later ones
 * come. One line says so. To be called before dumps_place. 0, NOMEM.
 */
int dumps_adopt_unknown(struct dumps_job *job, roll_dumps_say *say, void *ctx);
/* place.c: numbers all calls for the engine, and tells it where each rank comes in on each group. 0, NOMEM. */
int dumps_place(roll_feed_t *feed, struct dumps_job *job, struct dumps_seen *seen);
/* messages.c: the same of messages. A message that nobody can say the partner of is left to no communicator. */
int dumps_place_messages(roll_feed_t *feed, struct dumps_job *job);

#endif
