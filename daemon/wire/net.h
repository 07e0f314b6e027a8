/*
 * net.h: ZeroMQ sockets as rollcall uses them: bounded queues, never blocking, dead links given up, keys, log lines
 * about handshakes.
 *
 * A socket belongs to the thread that made it.
 */
#ifndef ROLL_DAEMON_WIRE_NET_H
#define ROLL_DAEMON_WIRE_NET_H

#include "daemon/wire/curve.h"
#include "daemon/wire/guard.h"
#include "trace/frame.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#define ROLL_NET_RELAY "rollcalld --relay" /* `agent` in the HELLO of a relay (docs/FRAME.md) */

/* Whether this endpoint reaches beyond this host: tcp on any address except 127/8, ::1 and localhost. */
bool roll_net_beyond_loopback(const char *endpoint);
/* Whether CURVE is used on this endpoint when there are keys: on every tcp endpoint. ipc and inproc stay on this host.
 */
bool roll_net_takes_keys(const char *endpoint);
/* Whether this endpoint has a form that we can bind or connect: tcp://HOST:PORT, ipc://PATH, inproc://NAME. One
 * address: no list of several, and no source address before it. */
bool roll_net_endpoint_ok(const char *endpoint);

/* A ROUTER (root) with all options set, not yet bound; keys (borrowed) may be NULL. NULL on error, errno set. */
void *roll_net_router(void *context, const struct roll_curve_keys *keys);
/* zmq_bind, IPv6 where the endpoint asks for it. beyond: whether it may be reached from other hosts, which is judged by
 * what was bound, whatever the endpoint looks like. 0, or -1 and errno, EPERM where it may not. */
int roll_net_bind(void *socket, const char *endpoint, bool beyond);
/* The socket file of an ipc endpoint that was bound here: from now on only its user may connect. Returns its inode, by
 * which it is known again; 0 where the endpoint is no file. */
uint64_t roll_net_own_file(const char *endpoint);
/* Removes that file, which libzmq leaves, unless somebody has bound its name again meanwhile. */
void roll_net_leave_file(const char *endpoint, uint64_t file);
/* A DEALER (agent, console) with this identity (may be empty), not yet connected. linger_ms: how long close waits for
 * frames to be sent. */
void *roll_net_dealer(void *context, const struct roll_curve_keys *keys, const char *identity, int linger_ms);

/* The monitor of a socket: a PAIR to poll, whose events roll_net_monitor_read turns into log lines. NULL on error. */
void *roll_net_monitor(void *context, void *socket, const char *name);
/* Whether a DEALER's connection is lost, and since when nothing says that libzmq tries again. All zero: it is not. */
struct roll_net_dial {
    uint64_t lost_ns;
    unsigned told; /* which troubles were told since the last handshake that succeeded */
};
/* Reads all waiting events; `who` is the other side in log lines, "root" or "agent"; guard (of a ROUTER, else NULL) is
 * told of connections that come and go, dial (of a DEALER, else NULL) of one that is lost. Returns which of these
 * happened to any connection. */
enum {
    ROLL_NET_CONNECTED = 1, /* one was (re)established */
    ROLL_NET_LOST = 2,      /* one that had been established, or was about to be, is gone */
};
unsigned roll_net_monitor_read(void *monitor, const char *who, struct roll_guard *guard, struct roll_net_dial *dial);
/* Connects anew where libzmq has given up, as it does for good when the other side breaks the protocol: who stands at
 * that address later may be the root again. Call it now and then. */
void roll_net_dial_again(struct roll_net_dial *dial, void *socket, const char *endpoint);

/*
 * Encodes and sends one frame, never waiting. identity: the routing id to prefix (ROUTER), or NULL (DEALER).
 * 0; BUSY when the queue is full; UNREACHABLE when a ROUTER knows no such identity; NOMEM, SIZE, IO.
 */
int roll_net_send(void *socket, const void *identity, size_t identity_bytes, const struct roll_frame_head *head,
                  const void *payload, size_t payload_bytes);
/* Sends a frame with a JSON payload (borrowed), as roll_net_send does. */
int roll_net_send_json(void *socket, const void *identity, size_t identity_bytes, const struct roll_frame_head *head,
                       const json_t *payload);
/*
 * Frames that are to travel together: each is a part of its own of one message, so that the thread of the socket is
 * woken once, and writes once, for all of them. A receiver takes the parts as it takes single frames; it needs to know
 * nothing of batches. A message has at most ROLL_NET_PARTS parts; what is more goes into the next one.
 *
 * Between the first _add and _flush nobody else may send through the socket. All zero is an empty batch.
 */
#define ROLL_NET_PARTS 16 /* a root reads no more parts of a message than these, whoever sends it */
struct roll_net_batch {
    zmq_msg_t held; /* the newest frame: whether another one follows shows with the next call */
    unsigned parts; /* of the message that is being built, `held` among them; 0: there is none */
    bool room; /* to be set by a caller that has just seen room for a message, and is then not asked for the next */
};
/*
 * Adds a frame (encoded here); socket and identity as for roll_net_send, the same for the whole batch. Errors as
 * roll_net_send, BUSY and UNREACHABLE with the first part of a message only: then the frame was not taken. A connection
 * that breaks later takes frames with it that were taken here, as it takes those that the socket had taken.
 */
int roll_net_batch_add(struct roll_net_batch *batch, void *socket, const void *identity, size_t identity_bytes,
                       const struct roll_frame_head *head, const void *payload, size_t payload_bytes);
void roll_net_batch_flush(struct roll_net_batch *batch, void *socket);
/* The descriptor of a socket, for poll: readable when something has changed since the socket was last asked or read
 * empty, once at least. -1 on error. */
int roll_net_fd(void *socket);
/* Asks a socket once for both: whether a frame can be received, and whether one can be sent, now. */
void roll_net_ask(void *socket, bool *input, bool *room);
/* Whether a frame can be received now. After a socket was used to send, its descriptor alone does not tell. */
bool roll_net_has_input(void *socket);
/* Whether a frame can be sent now without waiting (DEALER). */
bool roll_net_has_room(void *socket);
/* zmq_msg_recv without waiting; every message is received through this, so that ThreadSanitizer sees the handover. -1
 * and errno. */
int roll_net_recv(zmq_msg_t *msg, void *socket);
/* The JSON payload of a frame, owned; NULL when it is not JSON (at most 1 MiB, an object). */
json_t *roll_net_json(const struct roll_frame *frame);

#endif
