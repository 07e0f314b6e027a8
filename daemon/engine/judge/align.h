/*
 * align.h: what the files of the alignment share: lines of calls, the mistakes that fit them, the dispute and its vote.
 * Private to align*.c and finding.c.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_ALIGN_H
#define ROLL_DAEMON_ENGINE_JUDGE_ALIGN_H

#include "daemon/engine/judge/judge.h"

/* The place of a disagreement is a sequence number of the communicator. */

#define ALIGN_CALLS  24u /* calls of a rank that are compared, from the place on */
#define ALIGN_BEFORE 64u /* calls of a rank that are looked at before the place */

/* One call of a line: a rank has made it, or the history says that it comes next. */
struct line_call {
    uint64_t sig, site; /* site 0 = not known */
    uint64_t ticket;
    uint32_t seq;
    const struct roll_record *rec; /* NULL: the call is the history's */
};

/* The calls of one rank from the place on, and those before it, the newest first. */
struct line {
    const struct source *source;
    struct line_call call[ALIGN_CALLS];
    uint32_t real;  /* calls that the rank has made */
    uint32_t known; /* the same, and the calls with which the history continues them */
    struct line_call before[ALIGN_BEFORE];
    uint32_t befores;
    bool ended; /* the rank makes no more calls here */
};

/* Reads the line of a rank from place `seq` on. */
void line_read(const struct roll_engine *e, const struct comm *c, uint32_t rank, uint32_t seq, struct line *out);

/* Which mistake turns one line into another. */
struct align_guess {
    enum align_kind kind; /* the likeliest mistake; UNKNOWN: there is none, or none can be told yet */
    uint32_t length;      /* calls skipped, added or reordered */
    uint32_t overlap;     /* pairs of calls that agree if this is the mistake */
    uint32_t open;        /* bits (1 << kind) of other mistakes that are not excluded; 0: there are none */
    uint32_t back;        /* so many calls before the place the program parts already (part.c) */
};
#define ALIGN_BIT(kind) (1u << (kind))

/* Finds the mistake that turns line a into line b (align_lines.c). The lines differ in their first calls, which both
 * ranks have made. plain: ALIGN_ARGUMENT or ALIGN_OTHER_OP. tie: either rank may be the one that is wrong. */
void lines_compare(const struct line *a, const struct line *b, enum align_kind plain, bool tie,
                   struct align_guess *out);

#define DISPUTE_SIDES 8u

/* What one member called at the place. The ballot is kept apart from the slot, because a mistake that hangs nothing
 * lets the slot be used again. */
struct ballot {
    uint64_t sig;
    bool in; /* the member has called there */
};

/* What has been said about some of the ranks. */
struct told_side {
    uint64_t number, sig, said_ns;
    enum align_kind kind;
    uint32_t seq; /* the place; not that which is judged now where an earlier place came up afterwards */
    uint32_t length, minors;
    enum roll_certainty certainty;
    struct roll_rankset minor;
    bool named;  /* the ranks were named as culprits */
    bool used;   /* this side has been looked at in this round */
    bool stands; /* a rank of it still differs, and nothing can be read of what the rank did instead */
};

/* A disagreement from the moment at which it is seen until nothing more can be learnt about it: align.c. */
struct dispute {
    struct ballot *ballot; /* by rank; owned */
    uint64_t state;        /* a number of all that was known when the dispute was judged last */
    uint32_t came;         /* calls that have come since then, and were not looked at: of a large communicator */
    uint64_t stepped_ns;   /* patience clock of that moment */
    bool spoken;           /* something has been said about it */
    struct told_side side[DISPUTE_SIDES];
    uint32_t sides;
    bool beside; /* some of the sides are about a later place, and stand */
};

/* How the members voted at the place. */
struct vote {
    uint64_t major;  /* the signature of the call that most members made */
    uint32_t majors; /* votes for that call */
    uint32_t second; /* votes for the call with the second most */
    bool named;      /* no member that has not come could turn the vote */
    bool decided;    /* the same, or the vote is a tie that stays one */
    bool tie;
    uint32_t major_rank; /* of the members that made that call the one that has gone furthest */
    struct camps camps;
};

/* One judgement of a dispute. */
struct judge {
    struct roll_engine *e;
    struct comm *c;
    struct dispute *d;
    uint32_t seq; /* the place */
    struct vote vote;
    struct line major; /* the line of vote.major_rank */
    bool tmpl;         /* the communicator's history has a period */
    bool tmpl_major;   /* the history would go on with the majority's call */
    uint64_t age;      /* how long the place has been judged, by the patience clock */
};

/* align_vote.c: who is right; each function is described there */
bool vote_is_over(const struct roll_engine *e, const struct source *s);
void vote_take_ballots(const struct roll_engine *e, const struct comm *c, struct dispute *d);
bool vote_take(struct roll_engine *e, struct comm *c, struct judge *j);
bool vote_rest_is_stuck(const struct judge *j);
uint64_t vote_dropped_call(const struct judge *j, uint32_t rank, uint32_t by, const struct roll_record *theirs);

/* align_rank.c: what one rank did instead; each function is described there */
bool rank_is_still(const struct roll_engine *e, const struct source *s);
struct align_guess rank_judge(struct judge *j, uint32_t rank, struct line *line);
void rank_agree(const struct judge *j, struct align_guess *guess);

/* align_tell.c: what is told; described there. guess: by rank; used up. */
void align_tell(struct judge *j, struct align_guess *guess, struct line *line);

#endif
