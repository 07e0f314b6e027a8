/*
 * guard.h: what a connection may make its socket hold: a message that has no end, or more than is read.
 *
 * ZeroMQ hands a message over when its last part has come, and its limits count whole messages and the bytes of one
 * part: a peer that always says "more" fills the memory of a socket that never sees anything of it. And a queue of
 * messages that may become full is what libzmq 4.3.4 dies of: a PING that it meets behind such a queue, on a connection
 * that has ended meanwhile, is answered on a connection that is not there, which is an assertion
 * (stream_engine_base.cpp, !_io_error). Who is let in may send PINGs. So the queues of a ROUTER have no end
 * (roll_net_bind), and the guard bounds them: it knows how many bytes each connection has received (of TCP the kernel
 * counts them, of ipc counted.h), how many of these were taken as messages, and shuts a connection that is too far
 * ahead. Who keeps to its credit (credit.h) never is.
 *
 * One guard per ROUTER. The thread of the socket calls this, and the watch (roll_guard_watch) beside it, where that
 * thread is at work for long.
 */
#ifndef ROLL_DAEMON_WIRE_GUARD_H
#define ROLL_DAEMON_WIRE_GUARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

/* The most that is received on a connection without one whole message. A message of ours is 1 MiB and less; the rest is
 * what may wait in the kernel, of messages that are whole and have not been taken. */
#define ROLL_GUARD_BYTES (UINT64_C(64) << 20)
/* The most memory that what has come on a connection and was not taken may need: four times what one of ours ever has
 * on its way (credit.h), because small parts need more memory than bytes. */
#define ROLL_GUARD_WAITING (UINT64_C(256) << 20)

#define ROLL_GUARD_PEER_BYTES 64

#define ROLL_GUARD_SHUT 16u

struct roll_guard {
    const char *failed;      /* a handshake that has, until its connection is said to be over; borrowed */
    pthread_mutex_t lock;    /* guards the members below */
    struct roll_guarded *at; /* by descriptor; owned */
    size_t used;
    size_t suspects;   /* connections of which much has come since a message of theirs was taken */
    uint64_t wrapping; /* bytes around a part that CURVE adds; 0: no keys */
    struct {
        uint64_t asker;      /* a hash of who asked; 0: nobody */
        uint64_t ns;         /* when a question of it was seen last */
    } shut[ROLL_GUARD_SHUT]; /* askers that were shut last: what they had asked before comes after */
    unsigned shuts;
    unsigned closed; /* connections that were shut and of which nobody has been told */
};

/* A guard that watches nothing yet. curve: the connections of its socket have keys. */
void roll_guard_init(struct roll_guard *guard, bool curve);
/* A connection was accepted (ZMQ_EVENT_ACCEPTED) or is gone (ZMQ_EVENT_CLOSED, _DISCONNECTED), as the monitor says. One
 * for which there is no memory is not watched. */
void roll_guard_event(struct roll_guard *guard, uint16_t event, int fd);
/* Who is at the other end of this connection: an address, or a process of this host; "somebody" where that was not to
 * be found out. */
void roll_guard_peer(struct roll_guard *guard, int fd, char out[ROLL_GUARD_PEER_BYTES]);
/* A part of a message was taken from the socket, any but the first. */
void roll_guard_took(struct roll_guard *guard, zmq_msg_t *part);
/*
 * A question has come on this connection, from this id (borrowed; of libzmq's ROUTER). False: its answers are not read,
 * and it is shut, or has been: what it had asked before may come when its descriptor is another one's. Who asks again
 * and again and never reads would make the root hold all the answers; who is honest has read one before it asks the
 * next.
 */
bool roll_guard_reads(struct roll_guard *guard, int fd, const void *id, size_t bytes);
/* Looks at all connections, and shuts those that are too far ahead; where the socket was read empty meanwhile (!behind)
 * also those that go on without end. To be called some times a second. Returns how many were shut since it was asked
 * last. */
unsigned roll_guard_look(struct roll_guard *guard, bool behind);
void roll_guard_fini(struct roll_guard *guard);

/*
 * The thread that looks while the thread of the sockets does not get to it: a connection brings a gigabyte a second,
 * and a large analysis takes seconds. Connections that come meanwhile are looked at as well. One watch per process.
 */
struct roll_guard_watch {
    pthread_t thread;
    bool threaded;
    struct roll_guard *guard; /* borrowed: a row */
    int guards;
    int ends;         /* an eventfd: the watch is over */
    atomic_uint turn; /* changes with each turn of the watched thread, which reads its sockets in it */
};
/* Begins to watch; 0, or NOMEM: nobody looks meanwhile. */
int roll_guard_watch(struct roll_guard_watch *watch, struct roll_guard *guard, int guards);
/* The watched thread has come to its sockets again. */
void roll_guard_turn(struct roll_guard_watch *watch);
void roll_guard_watch_end(struct roll_guard_watch *watch);

#endif
