/*
 * align.h: what the files of the alignment share: lines of calls, and which mistakes fit them. Private to align*.c.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_ALIGN_H
#define ROLL_DAEMON_ENGINE_JUDGE_ALIGN_H

#include "daemon/engine/judge/judge.h"

#define ALIGN_CALLS  24u /* calls compared from the place on */
#define ALIGN_BEFORE 64u /* and before it */

/* What one rank, or the history, calls. */
struct line_call {
    uint64_t sig, site; /* site 0 = not known */
    uint64_t ticket;
    uint32_t seq;
    const struct roll_record *rec; /* NULL: the history continues like this */
};

/* The calls of one rank from a place on, and those before it, the newest first. */
struct line {
    const struct source *source;
    struct line_call call[ALIGN_CALLS];
    uint32_t real;  /* calls that were made */
    uint32_t known; /* and those with which the history continues them */
    struct line_call before[ALIGN_BEFORE];
    uint32_t befores;
    bool ended; /* there will be no more */
};

void line_read(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint32_t seq, struct line *out);

/* Which mistake turns line a into line b. */
struct align_guess {
    enum align_kind kind; /* the likeliest; UNKNOWN: they make the same call */
    uint32_t length;      /* calls skipped, added or reordered */
    uint32_t overlap;     /* pairs of calls that agree under it */
    uint32_t open;        /* bits (1 << kind) of others that are not excluded; 0: it is the only one */
};
#define ALIGN_BIT(kind) (1u << (kind))

/* The lines differ in their first calls, both real. plain: ALIGN_ARGUMENT or ALIGN_OTHER_OP. tie: either side may be
 * the one that is wrong. */
void lines_compare(const struct line *a, const struct line *b, enum align_kind plain, bool tie,
                   struct align_guess *out);

#define DISPUTE_SIDES 8u

/* What one member called at the place. Kept here, because the slot is used again when a mistake hangs nothing. */
struct ballot {
    uint64_t sig;
    bool in;
};

/* What has been said about some of the ranks. */
struct told_side {
    uint64_t number, sig, said_ns;
    enum align_kind kind;
    uint32_t seq, length, minors; /* seq: another place than the one that is judged, where that came up later */
    enum roll_certainty certainty;
    struct roll_rankset minor;
    bool named; /* as culprits */
    bool used;  /* in this round */
};

struct dispute {
    struct ballot *ballot; /* by rank; owned */
    uint64_t state;        /* of what is known, when it was judged last */
    bool spoken;
    struct told_side side[DISPUTE_SIDES];
    uint32_t sides;
    bool beside; /* some of them are about a later place, and stand */
};

struct vote {
    uint64_t major; /* signature */
    uint32_t majors, second;
    bool named;   /* no one who has not come could turn it */
    bool decided; /* named, or a tie that stays one */
    bool tie;
    uint32_t major_rank; /* the majority member that has gone furthest */
    struct camps camps;
};

struct judge {
    struct roll_engine *e;
    struct comm *c;
    struct dispute *d;
    uint32_t seq;
    struct vote vote;
    struct line major;
    bool tmpl, tmpl_major; /* the history has a period; it continues with the majority's call */
    uint64_t age;
};

/* align_vote.c */
bool vote_is_over(const struct roll_engine *e,
                  const struct source *s); /* its process has ended, and all of it is read */
void vote_take_ballots(const struct roll_engine *e, const struct comm *c, struct dispute *d);
/* The vote on the communicator's dispute, and the majority's line. False: nobody's call is known any more. */
bool vote_take(struct roll_engine *e, struct comm *c, struct judge *j);
bool vote_rest_is_stuck(const struct judge *j);
uint64_t vote_dropped_call(const struct judge *j, uint32_t rank, uint32_t by, const struct roll_record *theirs);

/* align_rank.c */
/* Its next call is not on its way. */
bool rank_is_still(const struct roll_engine *e, const struct source *s);
/* What this rank did instead of the majority's call; UNKNOWN: that cannot be told yet. */
struct align_guess rank_judge(struct judge *j, uint32_t rank, struct line *line);
/* Ranks that made the same call made the same mistake. guess: by rank. */
void rank_agree(const struct judge *j, struct align_guess *guess);

/* align_tell.c */
/* Tells, or tells better, what is known. guess: by rank; used up. */
void align_tell(struct judge *j, struct align_guess *guess, struct line *line);

#endif
