/*
 * guard.h: refuses a connection whose message has no end.
 *
 * ZeroMQ hands a message over when its last part has come, and its limits count whole messages and the bytes of one
 * part: a peer that always says "more" fills the memory of a socket that never sees anything of it. The guard knows how
 * many bytes each TCP connection has received (the kernel counts them) and whether messages came of them.
 *
 * One guard per ROUTER; only its thread calls this.
 */
#ifndef ROLL_DAEMON_WIRE_GUARD_H
#define ROLL_DAEMON_WIRE_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

/* The most that is received on a connection without one whole message. A message of ours is 1 MiB and less; the rest is
 * what may wait in the kernel, of messages that are whole and have not been taken. */
#define ROLL_GUARD_BYTES (UINT64_C(64) << 20)

struct roll_guard {
    struct roll_guarded *at;
    size_t used, room;
    size_t suspects;  /* connections of which much has come since a message of theirs was taken */
    uint64_t refused; /* connections that were closed for it, ever */
};

/* A connection was accepted (ZMQ_EVENT_ACCEPTED) or is gone (ZMQ_EVENT_CLOSED, _DISCONNECTED), as the monitor says. One
 * that is not TCP, or for which there is no memory, is not watched. */
void roll_guard_event(struct roll_guard *guard, uint16_t event, int fd);
/* A message was taken from the socket; `part` is any part of it but the first. */
void roll_guard_took(struct roll_guard *guard, zmq_msg_t *part);
/* Looks at all connections, and closes those that go on without end. To be called some times a second, and only when
 * the socket has been read meanwhile. Returns how many were closed. */
unsigned roll_guard_look(struct roll_guard *guard);
void roll_guard_fini(struct roll_guard *guard);

#endif
