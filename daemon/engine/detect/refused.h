/*
 * refused.h: calls of which nothing was enqueued: what detect_refused.c (who waits for such a call, and when that is
 * told), refused_match.c (such calls are taken out of what they had been matched with), refused_why.c (what was wrong
 * with them) and refused_say.c (the words) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_REFUSED_H
#define ROLL_DAEMON_ENGINE_DETECT_REFUSED_H

#include "daemon/engine/detect/detector.h"

/* A refused call of a member, until it has made another one in its place. */
struct refusal_of {
    struct roll_record rec; /* op NONE: there was none */
    uint64_t since;         /* patience clock */
    bool open;              /* nothing has come in its place */
    bool left_out;          /* what came there is another call: it was not made again */
    bool passed_over;       /* it may have been made again, but only after the rank had done something else */
    bool told;
};

struct refused_engine {
    bool errors; /* some call was refused */
};
STATE_OF_ENGINE(refused)

struct refused_source {
    bool said;  /* that it was refused a call ... */
    bool noted; /* ... in a note only: nobody has waited for it */
};
STATE_OF_SOURCE(refused)

struct refused_member {
    struct refusal_of coll, message; /* the last of each */
};
STATE_OF_MEMBER(refused)

/* ncclResult_t, as far as it matters who is to blame. */
enum { NCCL_INVALID_ARGUMENT = 4, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_TIMEOUT = 8 };

/* How the rank did without the call. */
enum without { NOT_AGAIN, DESTROYED, ENDED, WENT_ON, PASSED_OVER };

struct telling {
    struct source *rank; /* one of those that were refused, with its call */
    const struct member *member;
    const struct roll_record *rec;
    struct roll_rankset culprits, waiting; /* world ranks; owned */
    struct roll_rankset behind;            /* who waits in other calls for the same; owned */
    const struct source *waiter;           /* NULL: nobody waits */
    const struct roll_record *waits;       /* in this */
    const struct roll_record *instead;     /* WENT_ON */
    struct comm *comm;
    enum without without;
    enum roll_certainty certainty;
};

/* refused_match.c */
bool refused_is_said(const struct source *s);
bool refused_is_noted(const struct source *s);
/* Marks s as told: it was refused a call. False: there is no memory for the mark; then the verdict is not said either,
 * because it would be said again. */
bool refused_set_said(struct source *s, bool noted);
/* The entry with which a member has taken the number seq, newest first; NULL when it is not known any more. */
struct entry *refused_entry_at(const struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t *ticket);
/* A call made again: what was wrong may be another of its arguments. */
bool refused_is_alike(const struct roll_record *a, const struct roll_record *b);
void refused_lost(struct roll_engine *e, uint32_t source, uint64_t count);

/* refused_why.c */
/* The argument that NCCL cannot have taken, and why; "" where the record does not show it. */
const char *refused_wrong_argument(const struct roll_engine *e, const struct source *s, const struct member *m,
                                   const struct roll_record *rec, struct words *w);
bool refused_is_wrong(const struct roll_engine *e, const struct member *m, const struct roll_record *rec);
/* Another call of the refused group, one whose argument NCCL cannot have taken: the one that voids them all. NULL: none
 * is known. */
const struct roll_record *refused_wrong_in_group(const struct roll_engine *e, const struct source *s,
                                                 const struct roll_record *rec);
/* The error that a rank got last, after which it has made no call that was taken; NULL: none. */
const struct roll_record *refused_last_error(const struct source *s);
/* The error itself says that the cause is not in this call. */
bool refused_is_from_elsewhere(const struct roll_record *rec);
/* Any error but a wrong argument may be the echo of a death, or of an abort of its own. */
bool refused_is_echo(const struct roll_engine *e, const struct source *s, const struct member *m,
                     const struct roll_record *rec);

/* refused_say.c */
void refused_telling_fini(struct telling *t);
uint64_t refused_speak(struct roll_engine *e, const struct telling *t, uint64_t before);
/*
 * World ranks that wait in the call `waits` of this source for what was refused. Of a refused message the one that it
 * was meant for is not in the record where the peer was wrong: who waits for a message of that rank is nearer to it
 * than who waits for the rank elsewhere.
 */
void refused_add_waiting(const struct roll_engine *e, struct telling *t, const struct source *waiter,
                         const struct entry *waits);
enum without refused_without_of(const struct source *s, const struct member *m);
struct member *refused_member_in(const struct comm *c, const struct roll_engine *e, const struct source *s);
/* One verdict for one refused call, however many wait for it and wherever; said better when more such calls at its
 * place are known. */
void refused_tell_once(struct roll_engine *e, struct telling *t);

#endif
