/*
 * agent_digest.h: the rings of runs that are compared by digests (docs/SCALE.md). Instead of the records the agent
 * sends what they add up to, and records only where the root asks for an excerpt.
 *
 * Everything belongs to the agent's one thread.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_DIGEST_H
#define ROLL_DAEMON_AGENT_AGENT_DIGEST_H

#include "daemon/agent/agent_ring.h"

typedef struct roll_agent_digests roll_agent_digests_t;

/* NULL: no memory. send and ctx: as in struct roll_agent_out; borrowed. */
roll_agent_digests_t *roll_agent_digests_new(roll_agent_send_fn send, void *ctx);
void roll_agent_digests_destroy(roll_agent_digests_t **digests);

/* Adds up what is new in the ring, and sends what is to be known of its process; with an excerpt, its records as well.
 * In the place of roll_agent_ring_pump, for a ring whose `digest` is set. Borrows the ring until _drop. */
int64_t roll_agent_digests_pump(roll_agent_digests_t *d, struct roll_agent_ring *ring, uint64_t now);
/* Sends what is new since the last time. */
void roll_agent_digests_tell(roll_agent_digests_t *d, uint64_t now);
/* Whether the root has asked for records of some run, and gets them at each look until it ends that. In a job of 8,192
 * ranks and more, of calls on some communicators alone (scope 2), that is so until all that there was has been sent:
 * what follows has time until the next beat. Looks at each ring. */
bool roll_agent_digests_sends(const roll_agent_digests_t *d);
/* Takes an EXCERPT of the root. */
void roll_agent_digests_ask(roll_agent_digests_t *d, const struct roll_frame *frame);
/* Whether an excerpt of this ring still lacks records below `head`. */
bool roll_agent_digests_lacks(const roll_agent_digests_t *d, const struct roll_agent_ring *ring, uint64_t head);
/* A new conversation with the root begins: everything is told again, and excerpts are asked for again. */
void roll_agent_digests_again(roll_agent_digests_t *d);
/* The ring is about to be destroyed, or is streamed from here on. */
void roll_agent_digests_drop(roll_agent_digests_t *d, const struct roll_agent_ring *ring);

#endif
