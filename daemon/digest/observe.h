/*
 * observe.h: what `moe_core` has observed on one rank, folded: what its peers must have observed alike becomes a hash
 * of a place (roll_digest_like), what must add up a share (roll_digest_share), and what concerns the rank alone a hint
 * where it contradicts itself.
 *
 * The rules are those of the engine's detectors (detect_moe_obligation.c, detect_moe_uniform.c, detect_numbers.c,
 * detect_moe_route.c, compare.c); which of them say nothing without a wait (grouped products, phases) need no fold, and
 * ranks without tokens and skipped experts are no hint by themselves. Each observation is told at the next cut, and not
 * with 64 others: a prediction is worth nothing when it comes late. Pure; one thread.
 */
#ifndef ROLL_DAEMON_DIGEST_OBSERVE_H
#define ROLL_DAEMON_DIGEST_OBSERVE_H

#include "daemon/digest/digest.h"
#include "trace/record.h"

struct roll_observed; /* of one rank */

void roll_observed_destroy(struct roll_observed **o);
/*
 * Takes a new record of class MOE; *o is made with the first. key, size: of the record's communicator; size 0: it is
 * not known. whole: no record of the rank has been missing so far. 0; NOMEM; 1: the engine has to see what the rank has
 * observed in this step.
 */
int roll_observed_record(struct roll_observed **o, const struct roll_record *rec, uint64_t key, uint32_t size,
                         bool whole);
/* Records were lost: nothing is told of the step in which the rank is. */
void roll_observed_lost(struct roll_observed *o);
void roll_observed_cut(struct roll_observed *o, struct roll_digest *out);
void roll_observed_again(struct roll_observed *o);
/* What was told on a communicator that is gone: the rank's own id of it. o: may be NULL. */
void roll_observed_forget(struct roll_observed *o, uint32_t comm);
/* The ticket of a record behind which all of a step stands (roll_observed_step), or of the oldest step that is known
 * where that is later; UINT64_MAX: the rank has not come so far, or has not observed anything. It is the last
 * observation of the step before: an engine that is fed from the middle of a step on compares nothing of that step. */
uint64_t roll_observed_begin(const struct roll_observed *o, uint32_t step);
/* The step is older than those of which the beginning is known (64). */
bool roll_observed_forgot(const struct roll_observed *o, uint32_t step);

#endif
