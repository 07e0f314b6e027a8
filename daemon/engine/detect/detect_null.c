/*
 * detect_null.c: the template: a detector that never says anything. Copy it to begin a new one; docs/ADDING.md has the
 * steps.
 *
 * The head comment of a detector says which mistake it finds, from which evidence, how sure it is and why, and which
 * healthy behaviour looks alike and how the two are told apart. That last sentence is the one that matters.
 */
#include "daemon/engine/detect/detector.h"

/* Ranks disagree at one place of a communicator. Return true when this case is yours, also when you have decided to
 * stay silent. */
static bool null_disagree(struct roll_engine *e, const struct finding *f)
{
    (void)e;
    (void)f;
    /*
     * A verdict is built in four steps:
     *   if (!say_once(e, say_key(CODE, comm key, ...)))  return true;     one verdict per cause
     *   struct roll_verdict *v = say(e, CODE, certainty);                 NULL when out of memory
     *   say_comm, say_side (culprits first), roll_rankset_copy(&v->culprits, ...)
     *   say_text(e, v, ...)                                               last: words from explain.c
     */
    return false;
}

/* Time has passed: called at every tick, so it must be cheap when there is nothing to do. */
static void null_tick(struct roll_engine *e)
{
    (void)e;
}

/* Leave out what you do not need: absent functions are not called. */
const struct detector detect_null = {
    .name = "null",
    .disagree = null_disagree,
    .tick = null_tick,
};
