/*
 * sum_state.h: what the files of a sum share: what is known of each communicator, what each child has told of it, and
 * the fronts that wait. sum_level.c finds and makes them, sum_front.c takes fronts, sum_take.c all else that a child
 * tells, sum_cut.c judges and tells the level above, sum.c forgets, and answers.
 */
#ifndef ROLL_DAEMON_DIGEST_SUM_STATE_H
#define ROLL_DAEMON_DIGEST_SUM_STATE_H

#include "daemon/base/map.h"
#include "daemon/digest/like.h"
#include "daemon/digest/points.h"
#include "daemon/digest/sum.h"

#define ROLL_SUM_OPEN 128u /* windows of a communicator that are remembered: its members may be 8,192 calls apart */

/* What one child tells of one communicator. */
struct roll_sum_cell {
    uint64_t hash;
    uint64_t sum[ROLL_DIGEST_CLASSES];
    uint32_t child, members, low, high;
    uint32_t ahead; /* `high` of the newest front, taken or not */
    bool fronted;   /* the child has told a front of it: it has members, or has had some */
    bool differs, gone;
};

/* A front for which there was no room, because another child still speaks for its members: an agent has moved, and both
 * are heard of in any order. */
struct roll_sum_waiting {
    struct roll_digest_front front;
    uint64_t since_ns;
    uint32_t child;
    bool expired; /* it was refused, which its sender's next digest is answered with */
};

/* The hash that was told first of a window. */
struct roll_sum_first {
    uint64_t hash;
    uint32_t window; /* its number + 1; 0: nothing was told */
    bool differs;    /* that other calls were made there was told */
};

struct roll_sum_level {
    uint64_t key;
    struct roll_sum_cell *cell; /* owned */
    size_t cells, room;
    struct roll_sum_first first[ROLL_SUM_OPEN];
    struct roll_points points;
    uint64_t sum[ROLL_DIGEST_CLASSES];   /* of messages: of all cells */
    uint64_t known[ROLL_DIGEST_CLASSES]; /* what the sums were when somebody was told that they are not zero */
    uint64_t low_since_ns, sums_since_ns;
    uint64_t told_ns; /* when a child told something of it last */
    uint64_t hash;
    uint32_t size, members, low, high;
    uint32_t judged;     /* windows below it are done or passed on */
    uint32_t pointed;    /* how far the first member was when a check point was passed on */
    uint32_t differed;   /* the window of which was told last that calls in it differ; its number + 1 */
    uint32_t differs_at; /* of hints about check points that which reaches back most (roll_digest_first) in the newest
                            window; 0: there was none. Of the root also of those from below */
    uint32_t stands;     /* that the last member stands at this call has been told; its number + 1 */
    uint32_t alike;      /* the same of all members, at one call and not alike */
    bool differs, moved, sums_moved;
    bool over;  /* no member that is known uses it any more */
    bool past;  /* and none did when it was first heard of: who is not heard of need not come any more */
    bool apart; /* it is judged here, and the level above was told that its members stand apart */
    bool told;  /* the level above believes that it has to judge this communicator */
};

struct roll_sum {
    struct roll_sum_config config;
    struct roll_sum_level *level; /* owned */
    size_t levels, room;
    struct roll_map at;      /* key of a communicator -> its number */
    struct roll_map cell;    /* cell_key -> number of the cell */
    struct roll_map no_room; /* cell_key of what was refused for want of room */
    struct roll_likes likes;
    struct roll_shares shares;
    struct roll_digest hints;
    struct roll_sum_waiting *waiting; /* owned */
    size_t waitings, waiting_room;
    uint32_t *of_child; /* by child: the communicators of which it tells; owned */
    size_t children;
    uint64_t now_ns, forgot_ns;
    struct roll_sum_figures figures;
};

/* sum_level.c */

/* The communicator with this key, of which the child tells, made if it is new; NULL: no memory, or there are too many.
 */
struct roll_sum_level *roll_sum_level_of(struct roll_sum *sum, uint32_t child, uint64_t key);
void roll_sum_level_drop(struct roll_sum *sum, size_t at);
/* It is hinted at that calls before this check point differ. */
void roll_sum_level_differs(struct roll_sum_level *c, uint32_t at);
/* What the child has told of the communicator; NULL: nothing. */
struct roll_sum_cell *roll_sum_cell_known(const struct roll_sum *sum, const struct roll_sum_level *c, uint32_t child);
/* The same, made if there is nothing; NULL: no memory, or the child tells of too many. */
struct roll_sum_cell *roll_sum_cell_of(struct roll_sum *sum, struct roll_sum_level *c, uint32_t child);
/* The next cut passes it on. */
void roll_sum_hint(struct roll_sum *sum, uint64_t key, enum roll_digest_why why, uint32_t seq);

/* sum_front.c */

/* Takes a front, or keeps it until there is room for its members. 0, NOMEM; ARG: it cannot be. */
int roll_sum_front_take(struct roll_sum *sum, uint32_t child, const struct roll_digest_front *f);
/* Takes those that wait, as far as there is room now. */
void roll_sum_front_retry(struct roll_sum *sum, uint64_t now_ns);
/* Whether a front of this child has waited in vain, which is said once. */
bool roll_sum_front_expired(struct roll_sum *sum, uint32_t child);
/* What waits of the child for this communicator (key 0: for any) is void: a newer front has come, or the child left. */
void roll_sum_front_forget(struct roll_sum *sum, uint32_t child, uint64_t key);

#endif
