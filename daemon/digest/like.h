/*
 * like.h: what members of a communicator must have alike, at one level of digests: a table of what was told first of
 * each place, and of numbers that are sums of shares.
 *
 * Both tables are bounded: what comes new takes the place of what is oldest where they meet, of sums first of those of
 * which all has been told. What is forgotten is not compared, and costs no wrong hint. A list for each communicator was
 * rejected: how many places are under way depends on messages and layers, and not on communicators, and a child that
 * lies must not make it grow. Pure; one thread.
 */
#ifndef ROLL_DAEMON_DIGEST_LIKE_H
#define ROLL_DAEMON_DIGEST_LIKE_H

#include "daemon/digest/digest.h"

/* What was told first of a place. */
struct roll_like {
    struct roll_digest_like first;
    uint32_t age;                   /* when it came: a count of what has come */
    bool any, told, differs, fresh; /* told: to the level above; fresh: it stands in the list of what is new */
};
struct roll_likes {
    struct roll_like *slot; /* owned */
    uint32_t *fresh;        /* owned: slots that were filled since the last cut */
    size_t slots, news, room;
    uint32_t age;
};

/* One child's part of a sum of shares, and all of them. */
struct roll_share_part {
    struct roll_digest_share said;
    uint32_t child;
};
struct roll_share {
    struct roll_share_part *part; /* owned */
    size_t parts, room;
    uint64_t key, place;
    uint32_t age;     /* when its first part came: a count of such sums */
    bool over, fresh; /* over: judged, or told to the level above */
};
struct roll_shares {
    struct roll_share *slot; /* owned */
    uint32_t *fresh;         /* owned */
    size_t slots, news, room;
    uint32_t age;
};

/*
 * Takes what is told of a place; slots: of the table, a power of two, when it is made. 1: it differs from what was told
 * first, which has not been said yet; 0; NOMEM.
 */
int roll_likes_take(struct roll_likes *t, const struct roll_digest_like *like, size_t slots);
/* What was told first and has not been told above, one a call, until NULL; the caller sets `told` where it passes on.
 */
struct roll_like *roll_likes_next(struct roll_likes *t);
/* All of it will be given by roll_likes_next again. */
void roll_likes_again(struct roll_likes *t);
void roll_likes_fini(struct roll_likes *t);

/* Takes a child's part; what it told before is replaced. 0, NOMEM. */
int roll_shares_take(struct roll_shares *t, uint32_t child, const struct roll_digest_share *share, size_t slots);
/* Sums to which something has come, one a call, until NULL; *all: of all children. The caller sets `over`. */
struct roll_share *roll_shares_next(struct roll_shares *t, struct roll_digest_share *all);
void roll_shares_again(struct roll_shares *t);
void roll_shares_fini(struct roll_shares *t);
/* What members use is not the sum of the shares: as detect_numbers.c judges it, of a communicator of that size. */
bool roll_share_is_wrong(const struct roll_digest_share *all, uint32_t size);

#endif
