/*
 * rehearsed.h: where each rank stands in what was rehearsed (daemon/engine/expected.h): the files of
 * detect_rehearsed.c.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_REHEARSED_H
#define ROLL_DAEMON_ENGINE_DETECT_REHEARSED_H

#include "daemon/engine/detect/detector.h"
#include "daemon/engine/expected.h"

#define REHEARSED_CURSORS 8u
#define REHEARSED_LEFTS   4u

/* Behind which call of a sequence a rank is: behind `at` calls of this part. */
struct rehearsed_cursor {
    uint32_t part, at;
};

enum rehearsed_stand {
    REHEARSED_NEW = 0, /* no call of the member has come */
    REHEARSED_IN_STEP,
    REHEARSED_OUT, /* it may fall in step again */
    REHEARSED_OFF  /* nothing is compared any more */
};

/* A call at which a member left what was rehearsed. */
struct rehearsed_left {
    uint64_t ticket;
    uint64_t calls; /* which of its calls that was, from 1 */
    uint32_t want;  /* the call that was expected; NONE: none, the rehearsal was at its end */
    struct roll_expected_call came;
    bool unknown; /* the communicator was not rehearsed */
    bool told;
};

/* What a member does, beside what it did in the rehearsal. */
struct rehearsed_member {
    enum rehearsed_stand stand;
    uint32_t comm, sequence;                       /* of the rehearsal */
    uint64_t calls;                                /* made here, of those that are compared */
    uint64_t since;                                /* the ticket from which on it is in step */
    struct rehearsed_cursor at[REHEARSED_CURSORS]; /* in step: where it may be */
    uint32_t cursors;
    bool crowded;                  /* there were more places than that: that none fits proves nothing */
    struct rehearsed_cursor again; /* out of step: where it would be if its last `fits` calls were a repetition */
    uint32_t fits, fails, pause;   /* pause: calls that are let pass before the next try */

    uint64_t last;                               /* ticket + 1 of the call at which it left last; 0 = it never did */
    struct rehearsed_left left[REHEARSED_LEFTS]; /* not told yet, oldest first */
    uint32_t lefts;
};
STATE_OF_MEMBER(rehearsed)

/* rehearsed_follow.c */

/* Finds what was rehearsed for this member: IN_STEP; OUT where its first calls were not seen; OFF: nothing. False: the
 * communicator was not rehearsed. */
bool rehearsed_bind(const struct roll_engine *e, const struct source *s, const struct member *m, uint32_t id,
                    struct rehearsed_member *r);
/* Takes the next call of a member that is in step. False: *want was rehearsed instead (NONE: no further call). */
bool rehearsed_follow(const struct roll_expected *x, struct rehearsed_member *r, const struct roll_expected_call *came,
                      uint32_t *want);
/* Takes the next call of a member that is out of step. True: it has made all calls of a repetition and is in step. */
bool rehearsed_again(const struct roll_expected *x, struct rehearsed_member *r, const struct roll_expected_call *came);

#endif
