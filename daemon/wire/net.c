/*
 * net.c: see net.h. Bare libzmq is used: czmq would bring signal handlers, and a linger of zero that loses the last
 * messages.
 *
 * Every queue is bounded, by messages (ZMQ_SNDHWM, ZMQ_RCVHWM) or by the guard (guard.h), and every message by size;
 * and no call ever waits for the other side: the ring is the queue (agent.c), the trace file is the memory (root.c).
 */
#include "daemon/wire/net.h"

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/base/memory.h"
#include "daemon/wire/doors.h"
#include "trace/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUEUE_FRAMES   512 /* per connection and direction: with frames of at most 64 KiB, 32 MiB at the very worst */
#define JSON_MAX_BYTES (1u << 20)
#define HOST_CHARS     "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]%*"
#define DIAL_AGAIN_NS  (3000 * ROLL_MS) /* with its own tries libzmq waits at most 5 s between two */
#define GIVE_UP_MS     4000 /* less than the 10 s for which patience stands still: a connection is made anew in time */

static bool starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool roll_net_endpoint_ok(const char *endpoint)
{
    if (starts(endpoint, "ipc://") || starts(endpoint, "inproc://")) {
        return strchr(endpoint, ':')[3] != '\0' && !starts(endpoint, "ipc://@"); /* abstract: open to every user */
    }
    if (!starts(endpoint, "tcp://")) {
        return false;
    }
    const char *colon = strrchr(endpoint + 6, ':');
    if (!colon || colon == endpoint + 6 || colon[1] == '\0' ||
        strspn(endpoint + 6, HOST_CHARS) < (size_t)(colon - endpoint - 6)) {
        return false;
    }
    const char *port = colon + 1;
    bool digits = strspn(port, "0123456789") == strlen(port) && strlen(port) <= 5;
    return strcmp(port, "*") == 0 || (digits && atol(port) <= 65535);
}

bool roll_net_beyond_loopback(const char *endpoint)
{
    if (!starts(endpoint, "tcp://")) {
        return false;
    }
    const char *host = endpoint + 6;
    return !(starts(host, "127.") || starts(host, "localhost:") || starts(host, "[::1]:") ||
             starts(host, "[::ffff:127.") || starts(host, "lo:"));
}

bool roll_net_takes_keys(const char *endpoint)
{
    return starts(endpoint, "tcp://");
}

static int set_int(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value));
}

/*
 * Sets the options of both kinds of socket. HEARTBEAT frames watch the process of the other side; a dead host or a cut
 * link is noticed by TCP, which gives a connection up whose bytes are not acknowledged. ZeroMQ's own heartbeats are not
 * used: in libzmq 4.3.4 a heartbeat that is due on a connection that has ended while its receive queue was full ends
 * the process (epoll.cpp: Bad file descriptor).
 */
static void set_common(void *socket, int linger_ms)
{
    int64_t largest = ROLL_FRAME_MAX_BYTES + ROLL_FRAME_HEAD_BYTES;
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &largest, sizeof(largest));
    set_int(socket, ZMQ_SNDHWM, QUEUE_FRAMES);
    set_int(socket, ZMQ_RCVHWM, QUEUE_FRAMES);
    set_int(socket, ZMQ_LINGER, linger_ms);
    set_int(socket, ZMQ_TCP_MAXRT, GIVE_UP_MS);
    set_int(socket, ZMQ_TCP_KEEPALIVE, 1);
    set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 5);
    set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, 2);
    set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 3);
    set_int(socket, ZMQ_HANDSHAKE_IVL, 5000);
}

void *roll_net_router(void *context, const struct roll_curve_keys *keys)
{
    void *socket = zmq_socket(context, ZMQ_ROUTER);
    if (!socket) {
        return NULL;
    }
    set_common(socket, 500);
    set_int(socket, ZMQ_BACKLOG, 4096);
    set_int(socket, ZMQ_ROUTER_MANDATORY, 1);
    set_int(socket, ZMQ_ROUTER_HANDOVER, 1); /* an agent that comes back over a new connection replaces its old one */
    if (keys) {
        set_int(socket, ZMQ_CURVE_SERVER, 1);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret_key, ROLL_CURVE_KEY_BYTES);
        zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "rollcall", 8);
    }
    return socket;
}

void *roll_net_dealer(void *context, const struct roll_curve_keys *keys, const char *identity, int linger_ms)
{
    void *socket = zmq_socket(context, ZMQ_DEALER);
    if (!socket) {
        return NULL;
    }
    set_common(socket, linger_ms);
    set_int(socket, ZMQ_IPV6, 1);
    set_int(socket, ZMQ_RECONNECT_IVL, 100);
    set_int(socket, ZMQ_RECONNECT_IVL_MAX, 5000);
    if (identity[0]) {
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, identity, strlen(identity));
    }
    if (keys) {
        zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, keys->server_key, ROLL_CURVE_KEY_BYTES);
        zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, keys->public_key, ROLL_CURVE_KEY_BYTES);
        zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, keys->secret_key, ROLL_CURVE_KEY_BYTES);
    }
    return socket;
}

int roll_net_bind(void *socket, const char *endpoint, bool beyond)
{
    char bound[256] = "";
    size_t size = sizeof(bound);
    /* With IPv6 on, 127.0.0.1 would be bound, and shown, as ::ffff:127.0.0.1. */
    set_int(socket, ZMQ_IPV6, strpbrk(endpoint, "[*") != NULL);
    set_int(socket, ZMQ_RCVHWM, 0); /* the guard bounds it (guard.h) */
    roll_doors_watch(true);
    int err = zmq_bind(socket, endpoint);
    roll_doors_watch(false);
    if (err != 0) {
        return -1;
    }
    if (!beyond && (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0 || roll_net_beyond_loopback(bound))) {
        zmq_unbind(socket, bound);
        errno = EPERM;
        return -1;
    }
    return 0;
}

uint64_t roll_net_own_file(const char *endpoint)
{
    struct stat st;
    if (!starts(endpoint, "ipc://") || chmod(endpoint + 6, 0600) != 0 || lstat(endpoint + 6, &st) != 0) {
        return 0;
    }
    return st.st_ino;
}

void roll_net_leave_file(const char *endpoint, uint64_t file)
{
    struct stat st;
    if (file != 0 && lstat(endpoint + 6, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == file) {
        unlink(endpoint + 6);
    }
}

/* monitor */

static const struct {
    int event;
    enum roll_log_level level;
    const char *text;
} monitor_table[] = {
    {ZMQ_EVENT_CONNECTED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_CONNECT_DELAYED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_CONNECT_RETRIED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_ACCEPTED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_CLOSED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_DISCONNECTED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_HANDSHAKE_SUCCEEDED, ROLL_LOG_INFO, NULL},
    {ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL, ROLL_LOG_WARNING,
     "handshake failed: the peer went away, speaks no ZeroMQ, or has other keys"},
    {ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, ROLL_LOG_WARNING,
     "handshake failed: the peer has no CURVE keys, or the wrong server.pub"},
    {ZMQ_EVENT_HANDSHAKE_FAILED_AUTH, ROLL_LOG_WARNING, "key refused: the client's public key is not in allowed/"},
};

void *roll_net_monitor(void *context, void *socket, const char *name)
{
    char endpoint[96];
    snprintf(endpoint, sizeof(endpoint), "inproc://monitor-%s-%p", name, socket);
    int events = 0;
    for (size_t i = 0; i < sizeof(monitor_table) / sizeof(*monitor_table); i++) {
        events |= monitor_table[i].event;
    }
    if (zmq_socket_monitor(socket, endpoint, events) != 0) {
        return NULL;
    }
    void *pair = zmq_socket(context, ZMQ_PAIR);
    if (pair && zmq_connect(pair, endpoint) != 0) {
        zmq_close(pair);
        pair = NULL;
    }
    if (pair) {
        set_int(pair, ZMQ_LINGER, 0);
    }
    return pair;
}

/* With the end of a connection libzmq tells at once when it will try again; or nothing more. */
static void note_dial(struct roll_net_dial *dial, uint16_t event)
{
    dial->told = event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? 0 : dial->told;
    switch (event) {
    case ZMQ_EVENT_DISCONNECTED:
    case ZMQ_EVENT_CLOSED:
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        dial->lost_ns = roll_mono_ns();
        break;
    default:
        dial->lost_ns = 0;
        break;
    }
}

void roll_net_dial_again(struct roll_net_dial *dial, void *socket, const char *endpoint)
{
    if (dial->lost_ns == 0 || roll_mono_ns() - dial->lost_ns < DIAL_AGAIN_NS) {
        return;
    }
    roll_log(ROLL_LOG_WARNING, "%s: the connection is over, and libzmq does not try again; we do", endpoint);
    dial->lost_ns = roll_mono_ns();         /* should this fail */
    (void)zmq_disconnect(socket, endpoint); /* of which nothing may be left */
    if (zmq_connect(socket, endpoint) != 0) {
        roll_log(ROLL_LOG_WARNING, "%s: %s", endpoint, zmq_strerror(errno));
    }
}

/*
 * A line about an event. Who dials tries again some times a second, and says of each trouble once what it is, until a
 * handshake has succeeded. Who listens says whose trouble it is: a handshake that failed is told with the end of its
 * connection, which comes next and has a number by which the guard knows the other side.
 */
static void tell(uint16_t event, int value, const char *address, const char *who, struct roll_guard *guard,
                 struct roll_net_dial *dial)
{
    size_t rows = sizeof(monitor_table) / sizeof(*monitor_table), row = 0;
    char peer[ROLL_GUARD_PEER_BYTES];
    while (row < rows && monitor_table[row].event != event) {
        row++;
    }
    const char *text = row < rows ? monitor_table[row].text : NULL;
    if (text && dial) {
        if (!(dial->told & 1u << row)) {
            roll_log(monitor_table[row].level, "%s: %s: %s", who, address, text);
        }
        dial->told |= 1u << row;
    } else if (text && guard) {
        guard->failed = text;
    } else if (text) {
        roll_log(monitor_table[row].level, "%s: %s: %s", who, address, text);
    }
    if (guard && guard->failed && event == ZMQ_EVENT_DISCONNECTED) {
        roll_guard_peer(guard, value, peer);
        roll_log_about(ROLL_LOG_WARNING, peer, "%s: %s, from %s: %s", who, address, peer, guard->failed);
        guard->failed = NULL;
    }
}

unsigned roll_net_monitor_read(void *monitor, const char *who, struct roll_guard *guard, struct roll_net_dial *dial)
{
    unsigned happened = 0;
    for (;;) {
        uint8_t head[6] = {0};
        char address[256] = "";
        if (zmq_recv(monitor, head, sizeof(head), ZMQ_DONTWAIT) < 0) {
            return happened;
        }
        int n = zmq_recv(monitor, address, sizeof(address) - 1, ZMQ_DONTWAIT);
        address[n < 0 ? 0 : (n < (int)sizeof(address) ? n : (int)sizeof(address) - 1)] = '\0';
        uint16_t event;
        int32_t value;
        memcpy(&event, head, sizeof(event));
        memcpy(&value, head + sizeof(event), sizeof(value));
        tell(event, value, address, who, guard, dial);
        if (guard) {
            roll_guard_event(guard, event, value);
        }
        if (dial) {
            note_dial(dial, event);
        }
        happened |= event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED ? ROLL_NET_CONNECTED : 0;
        happened |= event == ZMQ_EVENT_DISCONNECTED ? ROLL_NET_LOST : 0;
    }
}

/* frames */

/* libzmq is not instrumented for ThreadSanitizer, and over inproc a message's memory goes from thread to thread. The
 * annotations here declare the order that its queues ensure. */
#ifdef __SANITIZE_THREAD__
void __tsan_acquire(void *address);
void __tsan_release(void *address);
static char handover;
#define HAND_OVER() __tsan_release(&handover)
#define TAKE_OVER() __tsan_acquire(&handover)
#else
#define HAND_OVER() ((void)0)
#define TAKE_OVER() ((void)0)
#endif

int roll_net_recv(zmq_msg_t *msg, void *socket)
{
    int n = zmq_msg_recv(msg, socket, ZMQ_DONTWAIT);
    TAKE_OVER();
    return n;
}

int roll_net_fd(void *socket)
{
    int fd = -1;
    size_t size = sizeof(fd);
    return zmq_getsockopt(socket, ZMQ_FD, &fd, &size) == 0 ? fd : -1;
}

static int events_of(void *socket)
{
    int events = 0;
    size_t size = sizeof(events);
    return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 ? events : 0;
}

bool roll_net_has_input(void *socket)
{
    return (events_of(socket) & ZMQ_POLLIN) != 0;
}

bool roll_net_has_room(void *socket)
{
    return (events_of(socket) & ZMQ_POLLOUT) != 0;
}

void roll_net_ask(void *socket, bool *input, bool *room)
{
    int events = events_of(socket);
    *input = (events & ZMQ_POLLIN) != 0;
    *room = (events & ZMQ_POLLOUT) != 0;
}

static int send_error(void)
{
    switch (errno) {
    case EAGAIN:
        return ROLL_E_BUSY;
    case EHOSTUNREACH:
        return ROLL_E_UNREACHABLE;
    default:
        return ROLL_E_IO;
    }
}

int roll_net_send(void *socket, const void *identity, size_t identity_bytes, const struct roll_frame_head *head,
                  const void *payload, size_t payload_bytes)
{
    zmq_msg_t msg;
    if (zmq_msg_init_size(&msg, ROLL_FRAME_HEAD_BYTES + payload_bytes) != 0) {
        return ROLL_E_NOMEM;
    }
    int64_t n = roll_frame_encode(head, payload, payload_bytes, zmq_msg_data(&msg), zmq_msg_size(&msg));
    int err = n < 0 ? (int)n : 0;
    if (!err && identity && zmq_send(socket, identity, identity_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
        err = send_error();
    }
    HAND_OVER();
    if (!err && zmq_msg_send(&msg, socket, ZMQ_DONTWAIT) < 0) {
        err = send_error();
    }
    if (err) {
        zmq_msg_close(&msg);
    }
    return err;
}

/* Ends a part of the batch's message, or the message. An error here means that the connection is gone: the receiver
 * notices by the numbers of the frames. */
static void pass_on(struct roll_net_batch *batch, void *socket, bool more)
{
    HAND_OVER();
    if (zmq_msg_send(&batch->held, socket, ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) < 0) {
        zmq_msg_close(&batch->held);
    }
}

void roll_net_batch_flush(struct roll_net_batch *batch, void *socket)
{
    if (batch->parts > 0) {
        pass_on(batch, socket, false);
        batch->parts = 0;
    }
}

/* Whether a message can begin: an identity is sent, without one the socket must have room. */
static int begin_message(struct roll_net_batch *batch, void *socket, const void *identity, size_t identity_bytes)
{
    bool room = batch->room;
    batch->room = false; /* it is good for one message */
    if (identity) {
        return zmq_send(socket, identity, identity_bytes, ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0 ? send_error() : 0;
    }
    return room || roll_net_has_room(socket) ? 0 : ROLL_E_BUSY;
}

int roll_net_batch_add(struct roll_net_batch *batch, void *socket, const void *identity, size_t identity_bytes,
                       const struct roll_frame_head *head, const void *payload, size_t payload_bytes)
{
    zmq_msg_t msg;
    if (batch->parts == ROLL_NET_PARTS) {
        roll_net_batch_flush(batch, socket);
    }
    if (zmq_msg_init_size(&msg, ROLL_FRAME_HEAD_BYTES + payload_bytes) != 0) {
        return ROLL_E_NOMEM;
    }
    int64_t n = roll_frame_encode(head, payload, payload_bytes, zmq_msg_data(&msg), zmq_msg_size(&msg));
    int err = n < 0 ? (int)n : 0;
    if (!err && batch->parts == 0) {
        err = begin_message(batch, socket, identity, identity_bytes);
    }
    if (err) {
        zmq_msg_close(&msg);
        return err;
    }
    if (batch->parts > 0) {
        pass_on(batch, socket, true);
    }
    zmq_msg_init(&batch->held);
    zmq_msg_move(&batch->held, &msg);
    zmq_msg_close(&msg);
    batch->parts++;
    return 0;
}

int roll_net_send_json(void *socket, const void *identity, size_t identity_bytes, const struct roll_frame_head *head,
                       const json_t *payload)
{
    uint64_t before = roll_memory_failures();
    char *text = json_dumps(payload, JSON_COMPACT);
    if (!text || roll_memory_failures() != before) { /* jansson may give what it had until then */
        free(text);
        return ROLL_E_NOMEM;
    }
    int err = roll_net_send(socket, identity, identity_bytes, head, text, strlen(text));
    free(text);
    return err;
}

json_t *roll_net_json(const struct roll_frame *frame)
{
    if (frame->head.payload > JSON_MAX_BYTES && frame->head.type != ROLL_FRAME_REPLY) {
        return NULL;
    }
    json_t *json = json_loadb((const char *)frame->payload, frame->head.payload, JSON_REJECT_DUPLICATES, NULL);
    if (json && !json_is_object(json)) {
        json_decref(json);
        json = NULL;
    }
    return json;
}
