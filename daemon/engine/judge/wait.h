/*
 * wait.h: the judgement of what a walk has found (judge.h, struct block). Private to wait_judge.c, wait_ended.c,
 * wait_vote.c and wait_who.c.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_WAIT_H
#define ROLL_DAEMON_ENGINE_JUDGE_WAIT_H

#include "daemon/engine/judge/judge.h"

static inline bool block_known(const struct block *b)
{
    return b->comm && b->comm->muted && b->kind != BLOCK_BLAMED;
}

/* wait_who.c */
void waiting_in(const struct roll_engine *e, const struct source *s, uint64_t ticket, struct roll_rankset *out);
void waiting_at(const struct roll_engine *e, const struct block *b, struct roll_rankset *out);
void waiting_for(const struct roll_engine *e, const struct block *found, uint32_t n, const struct block *b,
                 struct roll_rankset *out);

/* wait_vote.c */
bool block_slot(const struct block *b, struct comm **c, uint32_t *seq);
enum quorum block_camp(const struct roll_engine *e, const struct comm *c, uint32_t seq, bool *beside);

/* wait_ended.c */
bool ended_ask(struct roll_engine *e, struct block *b, struct roll_rankset *waiting);
bool ended_judge(struct roll_engine *e, struct block *found, uint32_t n);
bool dead_judge(struct roll_engine *e, struct block *found, uint32_t n);

#endif
