/*
 * align.h: what the files of the alignment share: lines of calls, and which mistakes fit them. Private to align*.c.
 */
#ifndef ROLL_ENGINE_ALIGN_H
#define ROLL_ENGINE_ALIGN_H

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

#endif
