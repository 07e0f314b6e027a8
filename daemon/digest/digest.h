/*
 * digest.h: what is told of calls that agree: how many, with which hash, and how far everybody has come.
 *
 * Equal work need not be sent. Each rank's calls are folded into hashes (fold.h); every level above, the node, a relay,
 * the root, adds up what its children tell (sum.h) and passes on only what it cannot decide itself, because members
 * stand elsewhere. A digest is one such message. It finds nothing by itself: where hashes differ, or something stands
 * still, it says so by a hint, and the engine judges the records of that place. So a hash that differs without need
 * costs records that are looked at for nothing, and never makes a verdict.
 *
 * All numbers in a digest are totals of what the sender knows, and no differences to the last one: a message that is
 * lost, comes twice, or is sent again to a root that was started anew does no harm.
 */
#ifndef ROLL_DAEMON_DIGEST_DIGEST_H
#define ROLL_DAEMON_DIGEST_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROLL_DIGEST_WINDOW  64u /* collectives of a communicator that are hashed together; a power of two */
#define ROLL_DIGEST_KEEP_NS UINT64_C(60000000000) /* so long is known what nobody uses any more */
#define ROLL_DIGEST_CLASSES 8u /* sums of messages of a communicator: message n of a pair is in class n / 64 % 8 */

/* How far the sender's members of a communicator have come. */
struct roll_digest_front {
    uint64_t key;
    uint64_t hash;      /* of the calls since the last window's end; of no meaning where low and high differ */
    uint32_t size;      /* members of the communicator */
    uint32_t members;   /* those of them for whom the sender speaks; 0: for none any more, or it judges all by itself */
    uint32_t low, high; /* the least and the most collectives that one of these has made; where the sender judges all by
                         * itself, of them all: low < high where they stand apart */
    bool differs;       /* low == high, and yet their calls since the last window's end differ */
    bool gone;          /* they use it no more: it was destroyed or aborted, or their processes have ended */
};

/* A window that all members for whom the sender speaks have filled, with calls of one hash; or a check point: its first
 * calls, which some member has made (points.h). */
struct roll_digest_window {
    uint64_t key;
    uint64_t hash;
    uint32_t window; /* number of its first collective / ROLL_DIGEST_WINDOW */
    uint32_t calls;  /* of a check point; 0: all of the window */
};

/* The messages of the sender's members on a communicator: what they have sent less what they have received, each
 * message by a hash of its two ends, its number in their pair and its bytes. All zero where each one met its like. */
struct roll_digest_messages {
    uint64_t key;
    uint64_t sum[ROLL_DIGEST_CLASSES];
};

/*
 * Something that every member who tells of this place must tell alike: what it has observed of an MoE layer in a step,
 * or 64 messages of a pair, of which each end tells. Where two tell another hash, that is a hint, at once, whoever else
 * has got there.
 */
struct roll_digest_like {
    uint64_t key;
    uint64_t place; /* a hash of what the two must have in common */
    uint64_t hash;
    uint32_t why, seq; /* of the hint: ROLL_HINT_OBSERVED or ROLL_HINT_MESSAGES */
};

/* What members have of a number that is to be the sum of their shares. Numbers as detect_numbers.c judges them. */
struct roll_digest_share {
    uint64_t key;
    uint64_t place;
    double part, size;  /* the shares added up, and the sums of their absolute values */
    double least, most; /* of what the members use as the sum; least > most: of no member that is a finite number */
    uint32_t members;   /* of whom this speaks */
    uint32_t seq;       /* of the hint, ROLL_HINT_OBSERVED */
};

/* Something at this communicator has to be looked at by the engine. */
enum roll_digest_why {
    ROLL_HINT_DIFFERS = 1,   /* calls of one number differ, or may differ */
    ROLL_HINT_STANDS = 2,    /* members have come to different calls, and the last one does not go on */
    ROLL_HINT_MESSAGES = 3,  /* messages have no partner of their kind, and nothing moves */
    ROLL_HINT_INSIDE = 4,    /* a host has been inside one call for long */
    ROLL_HINT_REFUSED = 5,   /* a call was refused, or a group of calls came to nothing */
    ROLL_HINT_THREADS = 6,   /* two host threads were inside calls of one communicator at once */
    ROLL_HINT_LIFE = 7,      /* a communicator was aborted or revoked, or was used behind its end */
    ROLL_HINT_OTHER = 8,     /* calls that are not folded: the judgement needs them themselves */
    ROLL_HINT_QUIET = 9,     /* a rank has called nothing for long, and what it called last may not be over */
    ROLL_HINT_OBSERVED = 10, /* members have observed what differs, or a rank what is out of the ordinary */
    ROLL_HINT_LAST = ROLL_HINT_OBSERVED,
};
#define ROLL_OBSERVED_OUTSIDE 1u /* the step of an observation that was made in no step: see roll_observed_step */
struct roll_digest_hint {
    uint64_t key; /* 0 = no communicator */
    uint32_t why; /* enum roll_digest_why */
    uint32_t seq; /* the first collective that may be concerned, of DIFFERS roll_digest_differs; of MESSAGES: a bit for
                   * each class; of OBSERVED: the step (roll_observed_step); else 0 */
};
/*
 * `seq` of a hint that calls differ is a multiple of a window, which is then the window; or so many calls behind one,
 * as many as the check point has that differs. The first call of the window.
 */
static inline uint32_t roll_digest_window_of(uint32_t differs)
{
    return differs - differs % ROLL_DIGEST_WINDOW;
}
/*
 * The first call that may differ. Whoever tells of a check point has told of the number in its window that is the
 * highest power of two below it, because in the time that he went over this one there was none that is rounder
 * (points.h): what lies before has been compared, and is alike.
 */
static inline uint32_t roll_digest_first(uint32_t differs)
{
    uint32_t calls = differs % ROLL_DIGEST_WINDOW;
    uint32_t power = calls != 0 ? 1u << (31 - __builtin_clz(calls)) : 0;
    return roll_digest_window_of(differs) + (power < calls ? power : 0);
}

/* One message. Zero-initialised is empty. */
struct roll_digest {
    struct roll_digest_front *front; /* all six owned */
    struct roll_digest_window *window;
    struct roll_digest_messages *messages;
    struct roll_digest_like *like;
    struct roll_digest_share *share;
    struct roll_digest_hint *hint;
    size_t fronts, windows, sums, likes, shares, hints;
    size_t front_room, window_room, sum_room, like_room, share_room, hint_room;
    bool short_of_memory; /* some part could not be kept: the next digest must not be taken for all there is */
};

/* A step as hints and those who ask for records tell it: never 0, and the smaller the longer ago. */
static inline uint32_t roll_observed_step(uint32_t step)
{
    return step == UINT32_MAX ? ROLL_OBSERVED_OUTSIDE : step < UINT32_MAX - 2 ? step + 2 : UINT32_MAX;
}

/* Empties a digest and keeps its memory. */
void roll_digest_clear(struct roll_digest *d);
void roll_digest_fini(struct roll_digest *d);
/* Append one part; without memory the digest says so. */
void roll_digest_add_front(struct roll_digest *d, const struct roll_digest_front *front);
void roll_digest_add_window(struct roll_digest *d, const struct roll_digest_window *window);
void roll_digest_add_messages(struct roll_digest *d, const struct roll_digest_messages *messages);
void roll_digest_add_like(struct roll_digest *d, const struct roll_digest_like *like);
void roll_digest_add_share(struct roll_digest *d, const struct roll_digest_share *share);
void roll_digest_add_hint(struct roll_digest *d, uint64_t key, enum roll_digest_why why, uint32_t seq);
/*
 * A child cannot speak for more members of a communicator than it has rings of the run: parts that do lie, or are
 * another node's. They are left out; the rest is kept, which may be that of other nodes behind the same relay. Returns
 * how many were left out.
 */
size_t roll_digest_leave_out(struct roll_digest *d, size_t rings);
/*
 * Keeps the newest hints of `up`, which a level tells now and only once, in `said`; again: the level above was started
 * anew, and those that were kept before are appended to `up`.
 */
void roll_digest_keep_hints(struct roll_digest *said, struct roll_digest *up, bool again);

#endif
