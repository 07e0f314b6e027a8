/*
 * relay.h: a level between agents and a root: to the agents it is their root, to the root it is one agent.
 */
#ifndef ROLL_DAEMON_RELAY_RELAY_H
#define ROLL_DAEMON_RELAY_RELAY_H

#include "daemon/wire/curve.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define ROLL_RELAY_LISTEN_MAX 8

struct roll_relay_options {
    void *context;                             /* ZeroMQ; borrowed */
    const char *listen[ROLL_RELAY_LISTEN_MAX]; /* endpoints for the agents, `listens` of them; borrowed */
    unsigned listens;
    const char *above;                         /* endpoint of the root, or of a relay; borrowed */
    bool beyond;                               /* endpoints in `listen` may be reached from other hosts */
    const struct roll_curve_keys *server_keys; /* for tcp endpoints in `listen`; borrowed; NULL = none */
    const struct roll_curve_keys *client_keys; /* for `above`; borrowed; NULL = none */
    const _Atomic bool *stop;                  /* set from outside: finish in good order */
};

typedef struct roll_relay roll_relay_t;

/* Opens and binds the sockets. 0; NOMEM, IO, ARG (an endpoint), BUSY and DENIED (where it listens); `why` holds one
 * line about it. The options are copied, what they point to is borrowed. */
int roll_relay_new(const struct roll_relay_options *options, roll_relay_t **out, char *why, size_t why_size);
void roll_relay_destroy(roll_relay_t **relay);
/* The endpoint that listen[i] became (a port chosen by the system is in it); borrowed; NULL: there is none. */
const char *roll_relay_endpoint(const roll_relay_t *relay, unsigned i);
/* Works until *stop. The thread that made the relay. */
void roll_relay_run(roll_relay_t *relay);

#endif
