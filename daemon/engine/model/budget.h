/*
 * budget.h: how much an engine keeps for what comes from outside, and whose share it is.
 *
 * A definition of some bytes may name millions of members, and one number may ask for a window of thousands of places.
 * So what grows by such words counts for the source that asks, and is refused beyond a bound. Each source has some room
 * by itself, and more with each record that it sends: what a job really makes is never refused for that. Beyond it all
 * sources of a run share the engine's room, of which one gets no more than half. So a rank that asks for too much uses
 * up its own room, and its neighbours keep theirs.
 *
 * A source for which there was no room is set aside (budget_refuse): its calls are still matched where they can be, but
 * of some it is not known what they wait for. It is never a culprit, nothing is proven beside it (say/say.c), and calls
 * of its that stand behind one that is not known count as ready only when its host has waited for them (source.fog).
 * To drop all its records was rejected: what its peers call with it would never get complete, and fill their logs. To
 * refuse the definition alone and judge on was rejected: the ranks that stood behind it were accused.
 *
 * The heap's own account (mallinfo) was rejected: it knows no owner, and a run would be judged otherwise when it is
 * replayed.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_BUDGET_H
#define ROLL_DAEMON_ENGINE_MODEL_BUDGET_H

#include "daemon/engine/model/engine_state.h"

#define BUDGET_DEFAULT (UINT64_C(512) << 20) /* shared by the sources of a run: roll_engine_config.memory */

/* Bytes that one source may have in all. */
uint64_t budget_most(const struct roll_engine *e);
/* There is room for so many bytes more of this source's, if need be because communicators that are over are forgotten.
 */
bool budget_has(struct roll_engine *e, const struct source *s, uint64_t bytes);
/* Room for so many bytes more, which count for the source. False: there is none, and nothing has changed. */
bool budget_take(struct roll_engine *e, struct source *s, uint64_t bytes);
/* The same for what has a bound of its own for each source: it counts, and is never refused. */
void budget_charge(struct roll_engine *e, struct source *s, uint64_t bytes);
/* What counted for the source is not kept any more. */
void budget_give_back(struct roll_engine *e, struct source *s, uint64_t bytes);
/* What counted for one source counts for another one from now on, who has it in any case. */
void budget_hand_over(struct roll_engine *e, struct source *from, struct source *to, uint64_t bytes);
/* Something that the source asked for was refused: counts it, and sets the source aside. */
void budget_refuse(struct roll_engine *e, struct source *s);
/* The same for what is needed for words alone (call sites): it counts, and the source is judged as ever. */
void budget_refuse_words(struct roll_engine *e, struct source *s);
/*
 * A call of a source that is set aside was not matched: until its host has waited for the calls before a later ticket,
 * calls behind it need not run.
 */
void budget_fog(struct source *s, const struct roll_record *rec, uint64_t ticket);
/* The calls of this stream (ALL_QUEUES: of all) before ticket `upto` are over. */
void budget_fog_lifts(struct source *s, uint32_t stream, uint64_t upto);

#endif
