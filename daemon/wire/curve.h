/*
 * curve.h: CURVE keys and the list of clients that may connect.
 *
 *   DIR/server.key server.pub   the root's pair
 *   DIR/client.key client.pub   this node's pair
 *   DIR/allowed/NAME.pub        public keys of the clients that the root accepts
 *
 * A key file is one line of 40 characters (Z85). Secret keys are 0600; a key that others can read is refused.
 */
#ifndef ROLL_DAEMON_WIRE_CURVE_H
#define ROLL_DAEMON_WIRE_CURVE_H

#include <stdbool.h>
#include <stddef.h>

#define ROLL_CURVE_KEY_BYTES 41 /* 40 characters, terminated */

struct roll_curve_keys {
    char public_key[ROLL_CURVE_KEY_BYTES];
    char secret_key[ROLL_CURVE_KEY_BYTES];
    char server_key[ROLL_CURVE_KEY_BYTES]; /* the root's public key; in a root, its own */
};

/*
 * Makes both pairs in `dir` (made 0700 when missing) and puts the client's key on the list, as `rollcall keygen DIR`
 * does. Never overwrites keys. On error `why` holds one clear line. Errors: BUSY (keys are there already), DENIED, IO,
 * UNSUPPORTED (libzmq without CURVE).
 */
int roll_curve_keygen(const char *dir, char *why, size_t why_size);

/*
 * Reads the keys that a root (server.key, server.pub) or a client (client.key, client.pub, server.pub) needs. On error
 * `why` holds one clear line. Errors: NOTFOUND, DENIED (readable by others, or not readable by us), CORRUPT.
 */
int roll_curve_load(const char *dir, bool server, struct roll_curve_keys *keys, char *why, size_t why_size);

/* Whether this public key (40 characters) is in DIR/allowed. Reads the directory each time, so that keys may come and
 * go while the root runs. */
bool roll_curve_allowed(const char *dir, const char *public_key);

/*
 * The authenticator of a context (ZAP): a thread that answers every handshake from DIR/allowed. Make it before the
 * first bind with CURVE, destroy it after the sockets and before the context. Errors: NOMEM, IO.
 */
typedef struct roll_curve_zap roll_curve_zap_t;
int roll_curve_zap_new(void *zmq_context, const char *dir, roll_curve_zap_t **out);
void roll_curve_zap_destroy(roll_curve_zap_t **zap);

#endif
