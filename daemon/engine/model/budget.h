/*
 * budget.h: how much an engine keeps for what comes from outside.
 *
 * A definition of some bytes may name millions of members, and one number may ask for a window of thousands of places.
 * So what grows by such words is counted, for the engine and for the source that asks, and refused beyond a bound: a
 * rank that asks for too much has no room then, and the others have. What grows by as much as was sent, and lists of
 * the engine's own, are not counted: their bounds are numbers of things.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_BUDGET_H
#define ROLL_DAEMON_ENGINE_MODEL_BUDGET_H

#include "daemon/engine/model/engine_state.h"

#define BUDGET_DEFAULT (UINT64_C(4) << 30)
#define BUDGET_SOURCE                                                                                                  \
    16u /* one source has at most this part of it: its own calls, and communicators that it tells of */

/* Room for so many bytes, which count for the source as well; s NULL: for the engine alone. False: there is none. */
static inline bool budget_take(struct roll_engine *e, struct source *s, uint64_t bytes)
{
    uint64_t most = e->config.memory;
    if (bytes > most || e->held > most - bytes || (s && s->held + bytes > most / BUDGET_SOURCE)) {
        e->refusals++;
        return false;
    }
    e->held += bytes;
    if (s) {
        s->held += bytes;
    }
    return true;
}

/* What was taken for one source is another one's from now on, who has it in any case. */
static inline void budget_hand_over(struct source *from, struct source *to, uint64_t bytes)
{
    from->held -= bytes < from->held ? bytes : from->held;
    to->held += bytes;
}

#endif
