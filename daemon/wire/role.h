/*
 * role.h: what a key may do at a root or a relay. Any thread; pure.
 *
 * A client's key is on the root's list with its roles (curve.h). What the list says comes with each message, as its
 * user id, so that a key that is taken from the list ends with its connection, and nothing is looked up for a frame.
 */
#ifndef ROLL_DAEMON_WIRE_ROLE_H
#define ROLL_DAEMON_WIRE_ROLE_H

#include "trace/ring.h"

#include <stdbool.h>
#include <stddef.h>
#include <zmq.h>

/* What may be denied. */
#define ROLL_DENY_REPORT (1u << 0) /* to send frames of an agent */
#define ROLL_DENY_ASK    (1u << 1) /* queries that change nothing */
#define ROLL_DENY_SWITCH                                                                                               \
    (1u << 2) /* queries that change something: remedies, policy, stacks, the last word on a job                       \
               */
#define ROLL_DENY_ALL 7u

/* All zero: may do everything, as everybody who needs no key. */
struct roll_role {
    unsigned denied;
    char host[ROLL_NAME_BYTES]; /* may report of this host only; "" = of any */
};

#define ROLL_ROLE_TEXT_BYTES (ROLL_NAME_BYTES + 16)

/* Reads "node", "viewer", "operator", or several of them with commas between; host may be NULL. false: another word, or
 * a host that is none. */
bool roll_role_read(const char *roles, const char *host, struct roll_role *out);
/* The user id of a role, and back. A text that is none denies everything. */
void roll_role_text(const struct roll_role *role, char out[ROLL_ROLE_TEXT_BYTES]);
void roll_role_of_text(const char *text, struct roll_role *out);
/* The role of who sent this message over a socket with keys. */
void roll_role_of(zmq_msg_t *msg, struct roll_role *out);

#endif
