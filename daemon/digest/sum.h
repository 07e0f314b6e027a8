/*
 * sum.h: one level of a tree of digests: a node over its ranks, a relay over nodes, the root over relays. All levels
 * are this one thing.
 *
 * A level judges a communicator of which all members are below it, and passes on the others, as one member set. So a
 * tensor-parallel group is never heard of beyond its node. Windows that all members have filled with calls of one hash
 * are done and forgotten. Pure: time comes from the caller. One thread per sum.
 */
#ifndef ROLL_DAEMON_DIGEST_SUM_H
#define ROLL_DAEMON_DIGEST_SUM_H

#include "daemon/digest/digest.h"

typedef struct roll_sum roll_sum_t;

struct roll_sum_config {
    uint64_t stand_ns; /* members at different calls, and the last one does not go on, for so long: a hint */
    uint32_t most;     /* communicators; 0 = 131,072 (about 520 MiB). More are refused: a child may be hostile,
                       and has room for half of them; all children together have room for 16 times as many (350 MiB) */
    uint32_t likes;    /* places of which is remembered what was told first, a power of two; 0 = 16,384: 1 MiB, when
                       there are any */
    uint32_t shares;   /* sums of shares that may be under way, a power of two; 0 = 2,048 */
    bool is_root;      /* nobody is above: members of whom nothing is heard are judged as members that have not come */
};

/* NULL: no memory. */
roll_sum_t *roll_sum_new(const struct roll_sum_config *config);
void roll_sum_destroy(roll_sum_t **sum);
/* Takes what a child tells; borrows the digest. child: the caller's number of it. 0, NOMEM (also at the limit); ARG: a
 * part that cannot be (then the rest of the digest is taken, and what was refused is counted). */
int roll_sum_take(roll_sum_t *sum, uint32_t child, const struct roll_digest *d, uint64_t now_ns);
/* Appends what the level above has to know, and hints: those from below, and those of communicators that are judged
 * here. Those of a root that calls differ are about whole windows; differs_at below says more. */
void roll_sum_cut(roll_sum_t *sum, uint64_t now_ns, struct roll_digest *up);
/* Forgets communicators that nobody below uses any more since ROLL_DIGEST_KEEP_NS, and of which all is told. Their keys
 * are those of new communicators from then on. To be called behind a cut; not of a run that is over, which people may
 * ask about. */
void roll_sum_forget(roll_sum_t *sum, uint64_t now_ns);
/* The child speaks for nobody any more: another one does. What it told is taken out, and the next cut says so. */
void roll_sum_leave(roll_sum_t *sum, uint32_t child, uint64_t now_ns);
/* Makes the next cut tell everything that is still known: the level above was started anew. */
void roll_sum_again(roll_sum_t *sum);

struct roll_sum_figures {
    uint64_t fronts, windows, hints; /* taken; check points are no windows */
    uint64_t done;                   /* windows that were judged here and were alike */
    uint64_t refused;                /* parts of digests that cannot be */
    uint64_t
        no_room;   /* those of them for which there was no room: once for each child and communicator, up to 65,536 */
    uint64_t late; /* windows that came when they had been forgotten, and were compared with nothing */
    uint32_t comms, cells; /* communicators; communicators of each child */
    uint64_t forgotten;    /* communicators that were */
};
void roll_sum_figures(const roll_sum_t *sum, struct roll_sum_figures *out);

/* How far the members below this level have come on a communicator; false: nothing is known of it. members 0: a level
 * below judges it, which tells low and high where they stand apart (low < high), and else nothing. */
struct roll_sum_place {
    uint32_t low, high, size, members;
    /* Of the root: of the check points at which calls of the newest such window were told to differ that which reaches
     * back most (roll_digest_first); 0: there was none. */
    uint32_t differs_at;
};
/* The same of communicator i, from 0, in the order in which they were first heard of; false: there is none. */
bool roll_sum_at(const roll_sum_t *sum, size_t i, uint64_t *key, struct roll_sum_place *out);
bool roll_sum_place(const roll_sum_t *sum, uint64_t key, struct roll_sum_place *out);

#endif
