/*
 * wait.h: the judgement of what a walk has found (struct block of judge.h). Private to wait_judge.c, wait_ended.c,
 * wait_vote.c and wait_who.c, and to doubt.c, which asks for the vote again.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_WAIT_H
#define ROLL_DAEMON_ENGINE_JUDGE_WAIT_H

#include "daemon/engine/judge/judge.h"

/* The communicator is silent, so this reason is a consequence of what has been told. */
static inline bool block_known(const struct block *b)
{
    return b->comm && b->comm->muted && b->kind != BLOCK_BLAMED;
}

/* wait_who.c: who waits */

/* Adds the ranks that are in the call in which s waits: those that wait for what is missing there, and nobody else. */
void waiting_in(const struct roll_engine *e, const struct source *s, uint64_t ticket, struct roll_rankset *out);
/* Adds those that wait for the rank of b at any place where that rank is absent for the same kind of reason. b->other
 * becomes the first of these places at which ranks wait that do not wait in the call of b. */
void waiting_for(const struct roll_engine *e, const struct block *found, uint32_t n, struct block *b,
                 struct roll_rankset *out);

/* wait_vote.c: absence is a vote */

/* The waiter of b waits in a collective of its communicator: which. False: it waits in another call. */
bool block_slot(const struct block *b, struct comm **c, uint32_t *seq);
/* The vote on collective #seq. *beside: the members of siblings decide it, and not those of c alone. */
enum quorum block_camp(const struct roll_engine *e, const struct comm *c, uint32_t seq, bool *beside);

/* wait_ended.c: the end of a process is told once */

/* Asks the detectors about a process that has ended before it made a call. Takes *waiting: who waits for it elsewhere.
 * True: the end has been told. */
bool ended_ask(struct roll_engine *e, struct block *b, struct roll_rankset *waiting);
/* All processes that are absent for the reason b have ended by themselves with an exit code that says failure. */
bool ended_failed(const struct roll_engine *e, const struct block *b);
/* Judges all processes that have ended, for which ranks wait at several places. True: one of them was told. */
bool ended_judge(struct roll_engine *e, struct block *found, uint32_t n);
/* Judges all processes that have died: they are one cause, told with all ranks that wait for them. True: there are
 * some.
 */
bool dead_judge(struct roll_engine *e, struct block *found, uint32_t n);
/*
 * Who is absent because it has left the communicator of b has left for a reason that has been told: an error in the
 * trouble of another communicator, say, upon which a rank takes down all that it has. Whether that is seen before the
 * process has ended, or that communicator is destroyed before this one, makes no difference.
 */
bool left_as_told(const struct roll_engine *e, const struct block *b);

#endif
