/*
 * curve.h: CURVE keys and the list of clients that may connect, with what each of them may do; and the cookie, by which
 * the processes of one user on one host know each other where nobody has made keys.
 *
 *   DIR/server.key server.pub   the root's pair
 *   DIR/client.key client.pub   this node's pair
 *   DIR/allowed/NAME.pub        public keys of the clients that the root accepts
 *   DIR/NAME/                   what is given to client NAME: client.key, client.pub, server.pub
 *
 * A key file is one line of 40 characters (Z85). In allowed/, lines may follow: `role ROLES` (role.h; without it the
 * key may do everything) and `host NAME`. Secret keys are 0600; a key that others can read is refused, and so is a
 * directory that others can write, or that is a link.
 */
#ifndef ROLL_DAEMON_WIRE_CURVE_H
#define ROLL_DAEMON_WIRE_CURVE_H

#include "daemon/wire/role.h"

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
 * Adds a client: makes DIR/NAME with its pair, and puts it on the list with its roles ("node", "viewer", "operator", or
 * several with commas) and, where host is not NULL, bound to that host. Errors: ARG (a role, a host or a name that is
 * none), NOTFOUND (no keys in dir yet), and those of roll_curve_keygen.
 */
int roll_curve_keygen_client(const char *dir, const char *name, const char *roles, const char *host, char *why,
                             size_t why_size);

/*
 * Reads the keys that a root (server.key, server.pub) or a client (client.key, client.pub, server.pub) needs. On error
 * `why` holds one clear line. Errors: NOTFOUND, DENIED (readable by others, or not readable by us), CORRUPT.
 */
int roll_curve_load(const char *dir, bool server, struct roll_curve_keys *keys, char *why, size_t why_size);

/* Whether this public key (40 characters) is in DIR/allowed, and what it may do. Reads the directory each time, so that
 * keys may come and go while the root runs. */
bool roll_curve_allowed(const char *dir, const char *public_key, struct roll_role *role);

/*
 * The cookie: one pair of keys, which server and clients share, in a file that only this user can read
 * (ROLLCALL_COOKIE, else the file "cookie" in roll_default_dir()). Whoever needs it first makes it. Over CURVE it is
 * never sent, so nobody learns it by listening on a port of ours. On error `why` holds one line. DENIED, CORRUPT, IO,
 * UNSUPPORTED.
 */
int roll_curve_cookie(struct roll_curve_keys *keys, char *why, size_t why_size);

/*
 * The keys of a client for an endpoint: none for ipc and inproc; of curve_dir where it is given; the cookie for
 * loopback tcp, unless ROLLCALL_INSECURE=1; none for any other. *used: whether *keys holds some.
 */
int roll_curve_for(const char *endpoint, const char *curve_dir, struct roll_curve_keys *keys, bool *used, char *why,
                   size_t why_size);

/*
 * The authenticator of a context (ZAP): a thread that answers every handshake from DIR/allowed; where dir is NULL it
 * lets in who has the keys of the server itself, which are those of the cookie. Make it before the first bind with
 * CURVE, destroy it after the sockets and before the context. Errors: NOMEM, IO.
 */
typedef struct roll_curve_zap roll_curve_zap_t;
int roll_curve_zap_new(void *zmq_context, const char *dir, const struct roll_curve_keys *server,
                       roll_curve_zap_t **out);
void roll_curve_zap_destroy(roll_curve_zap_t **zap);

#endif
