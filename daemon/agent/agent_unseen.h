/*
 * agent_unseen.h: finds processes of this node that have librollcall.so mapped and NCCL at work, but none of whose
 * calls was seen.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_UNSEEN_H
#define ROLL_DAEMON_AGENT_AGENT_UNSEEN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct roll_unseen roll_unseen_t;

/* dir: the ring directory of this agent, copied; only processes that would put their ring there are looked at. NULL
 * without memory. */
roll_unseen_t *roll_unseen_new(const char *dir, const char *host);
void roll_unseen_destroy(roll_unseen_t **unseen);

/* Tells every note again, because a new conversation with the root begins. */
void roll_unseen_again(roll_unseen_t *unseen);

/* Whether this process has a ring with calls in it. */
typedef bool roll_unseen_seen_t(void *ctx, uint32_t pid);
/* Takes the note (borrowed): the payload of a NOTE frame. */
typedef void roll_unseen_tell_t(void *ctx, json_t *note);

/*
 * Looks at the processes whose turn it is; does nothing more often than once a second. Reads /proc of this user's
 * processes only. One thread.
 */
void roll_unseen_look(roll_unseen_t *unseen, uint64_t now_ns, roll_unseen_seen_t *seen, roll_unseen_tell_t *tell,
                      void *ctx);

#endif
