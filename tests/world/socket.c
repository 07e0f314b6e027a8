/*
 * socket.c: libzmq as far as rollcall uses it, over the links of the world (link.c).
 *
 * What is kept of libzmq, because the daemons depend on it: whole messages or none; bounded queues; a DEALER that
 * queues before it is connected and keeps what it had not written when a connection breaks; a ROUTER that says
 * EHOSTUNREACH where nobody has that name; connections that are tried again at growing distances; ZMQ_FD, which is
 * readable only for what is new since the socket was last asked.
 */
#include "tests/world/link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#define SOCKETS  64u
#define FIRST_FD (1 << 20) /* of ZMQ_FD: no file has such a number */

struct held { /* what is in a zmq_msg_t */
    struct piece *piece;
    bool more;
};
_Static_assert(sizeof(struct held) <= sizeof(zmq_msg_t), "a message is a handle");

struct sock {
    bool used;
    int type;
    struct end end;
    struct sock *monitor, *monitored;
    uint64_t told;          /* of a monitor: connections of which it has told */
    bool half;              /* of a monitor: the address of one comes next */
    bool asleep, signalled; /* ZMQ_FD */
    struct message *out;    /* is being built */
    struct link *out_link;  /* to whom */
    uint64_t out_number;    /* that link's number: it may be gone meanwhile, and another one in its place */
    bool out_begun;
    struct message *in;    /* is being read */
    uint32_t in_part;      /* of which this part comes next */
    struct piece *in_name; /* of a ROUTER: the name comes first */
    uint32_t turn;         /* the link that is read next */
};

static struct sock sockets[SOCKETS];

/* sockets */

static bool has_input(struct sock *s)
{
    if (s->type == ZMQ_PAIR) {
        return s->half || (s->monitored && s->monitored->end.connections > s->told);
    }
    uint32_t turn = s->turn;
    struct link *from;
    return s->in || link_pull(&s->end, &turn, &from);
}

/* As libzmq takes its commands: what is new is known now. */
static bool ask(struct sock *s)
{
    bool input = has_input(s);
    s->signalled = false;
    s->asleep = !input;
    return input;
}

bool socket_is_fd(int fd)
{
    return fd >= FIRST_FD;
}

bool socket_fd_ready(int fd)
{
    struct sock *s = &sockets[fd - FIRST_FD];
    if (s->asleep && has_input(s)) {
        s->asleep = false;
        s->signalled = true;
    }
    return s->signalled;
}

static void sock_close(struct sock *s, bool orderly)
{
    link_close(&s->end, orderly);
    message_free(s->in, s->in_part);
    message_free(s->out, 0);
    piece_free(s->in_name);
    if (s->monitor) {
        s->monitor->monitored = NULL;
    }
    if (s->monitored) {
        s->monitored->monitor = NULL;
    }
    *s = (struct sock){0};
}

void socket_free(struct process *p, bool orderly)
{
    for (uint32_t i = 0; i < SOCKETS; i++) {
        if (sockets[i].used && sockets[i].end.owner == p) {
            sock_close(&sockets[i], orderly);
        }
    }
}

void socket_reset(void)
{
    for (uint32_t i = 0; i < SOCKETS; i++) {
        if (sockets[i].used) {
            sock_close(&sockets[i], false);
        }
    }
    link_reset();
}

/* what libzmq has */

void *zmq_ctx_new(void)
{
    return sockets;
}

int zmq_ctx_term(void *context)
{
    (void)context;
    return 0;
}

const char *zmq_strerror(int number)
{
    return strerror(number);
}

int zmq_has(const char *capability)
{
    (void)capability;
    return 0;
}

static int unsupported(void)
{
    errno = ENOTSUP;
    return -1;
}

int zmq_curve_keypair(char *public_key, char *secret_key)
{
    (void)public_key;
    (void)secret_key;
    return unsupported();
}

int zmq_curve_public(char *public_key, const char *secret_key)
{
    (void)public_key;
    (void)secret_key;
    return unsupported();
}

void *zmq_socket(void *context, int type)
{
    (void)context;
    for (uint32_t i = 0; i < SOCKETS; i++) {
        if (!sockets[i].used) {
            sockets[i] = (struct sock){.used = true, .type = type, .end.owner = process_now, .asleep = true};
            return &sockets[i];
        }
    }
    errno = EMFILE;
    return NULL;
}

int zmq_close(void *socket)
{
    sock_close(socket, true);
    return 0;
}

int zmq_setsockopt(void *socket, int option, const void *value, size_t bytes)
{
    struct sock *s = socket;
    if (option == ZMQ_ROUTING_ID && bytes < sizeof(s->end.name)) {
        memcpy(s->end.name, value, bytes);
        s->end.name_bytes = bytes;
    }
    return 0;
}

int zmq_getsockopt(void *socket, int option, void *value, size_t *bytes)
{
    struct sock *s = socket;
    int number = 0;
    if (option == ZMQ_LAST_ENDPOINT) {
        snprintf(value, *bytes, "%s", s->end.name);
        return 0;
    }
    if (option == ZMQ_FD) {
        number = FIRST_FD + (int)(s - sockets);
    } else if (option == ZMQ_EVENTS) {
        struct link *l = s->type == ZMQ_DEALER ? link_up_from(&s->end) : NULL;
        number =
            (ask(s) ? ZMQ_POLLIN : 0) | (s->type == ZMQ_ROUTER || (l && link_has_place(l, false)) ? ZMQ_POLLOUT : 0);
    } else {
        return unsupported();
    }
    memcpy(value, &number, sizeof(number));
    return 0;
}

int zmq_socket_monitor(void *socket, const char *endpoint, int events)
{
    struct sock *s = socket;
    (void)events;
    if (!endpoint && s->monitor) {
        s->monitor->monitored = NULL;
        s->monitor = NULL;
    }
    return 0;
}

int zmq_bind(void *socket, const char *endpoint)
{
    struct sock *s = socket;
    if (link_bind(&s->end, endpoint) != 0) {
        errno = EADDRINUSE;
        return -1;
    }
    return 0;
}

int zmq_unbind(void *socket, const char *endpoint)
{
    (void)endpoint;
    link_unbind(&((struct sock *)socket)->end);
    return 0;
}

/* The monitor of a socket is found by the address of the socket, which net.c puts at the end of its name. */
static int connect_monitor(struct sock *s, const char *endpoint)
{
    void *of = NULL;
    const char *dash = strrchr(endpoint, '-');
    if (!dash || sscanf(dash + 1, "%p", &of) != 1) {
        return unsupported();
    }
    s->monitored = of;
    s->monitored->monitor = s;
    s->told = s->monitored->end.connections;
    return 0;
}

int zmq_connect(void *socket, const char *endpoint)
{
    struct sock *s = socket;
    if (s->type == ZMQ_PAIR) {
        return connect_monitor(s, endpoint);
    }
    if (link_open(&s->end, endpoint) == 0) {
        return 0;
    }
    errno = EMFILE;
    return -1;
}

/* messages */

static struct held *held(zmq_msg_t *msg)
{
    return (struct held *)(void *)msg;
}

int zmq_msg_init(zmq_msg_t *msg)
{
    memset(msg, 0, sizeof(*msg));
    return 0;
}

int zmq_msg_init_size(zmq_msg_t *msg, size_t bytes)
{
    memset(msg, 0, sizeof(*msg));
    held(msg)->piece = piece_new(bytes);
    return 0;
}

int zmq_msg_close(zmq_msg_t *msg)
{
    piece_free(held(msg)->piece);
    held(msg)->piece = NULL;
    return 0;
}

void *zmq_msg_data(zmq_msg_t *msg)
{
    return held(msg)->piece ? held(msg)->piece->data : (void *)msg;
}

size_t zmq_msg_size(const zmq_msg_t *msg)
{
    const struct held *h = (const struct held *)(const void *)msg;
    return h->piece ? h->piece->bytes : 0;
}

int zmq_msg_more(const zmq_msg_t *msg)
{
    return ((const struct held *)(const void *)msg)->more;
}

int zmq_msg_get(const zmq_msg_t *msg, int property)
{
    (void)msg;
    (void)property;
    return -1;
}

const char *zmq_msg_gets(const zmq_msg_t *msg, const char *property)
{
    (void)msg;
    (void)property;
    return NULL;
}

int zmq_msg_move(zmq_msg_t *to, zmq_msg_t *from)
{
    zmq_msg_close(to);
    memcpy(to, from, sizeof(*to));
    return zmq_msg_init(from);
}

/* Begins a message: of a ROUTER, to the link of this name. */
static int begin(struct sock *s, const void *name, size_t bytes)
{
    bool down = s->type == ZMQ_ROUTER;
    struct link *l = down ? link_down_to(&s->end, name, bytes) : link_up_from(&s->end);
    if (!l || !link_has_place(l, down)) {
        errno = l ? EAGAIN : EHOSTUNREACH;
        return -1;
    }
    s->out_begun = true;
    s->out_link = l;
    s->out_number = l->number;
    s->out = message_new();
    return 0;
}

static int send_piece(struct sock *s, struct piece *piece, bool more)
{
    if (process_call()) {
        process_die();
    }
    s->signalled = false; /* a socket that sends takes note of what is new */
    bool begins = !s->out_begun;
    if (begins && begin(s, piece->data, piece->bytes) != 0) {
        return -1;
    }
    if (begins && s->type == ZMQ_ROUTER) {
        piece_free(piece); /* the name */
    } else if (s->out->parts == PARTS) {
        world_fail("a message of more than %u parts", PARTS);
        piece_free(piece);
    } else {
        s->out->part[s->out->parts++] = piece;
    }
    if (more) {
        return 0;
    }
    struct link *l = s->out_link;
    bool there = l->number == s->out_number;
    if (there && (s->type == ZMQ_DEALER || (l->up && l->router == &s->end))) {
        link_push(l, s->type == ZMQ_ROUTER, s->out);
    } else {
        message_free(s->out, 0);
    }
    s->out = NULL;
    s->out_begun = false;
    return 0;
}

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
    struct held *h = held(msg);
    int bytes = (int)zmq_msg_size(msg);
    struct piece *piece = h->piece ? h->piece : piece_new(0);
    h->piece = piece;
    if (send_piece(socket, piece, (flags & ZMQ_SNDMORE) != 0) != 0) {
        return -1;
    }
    zmq_msg_init(msg);
    return bytes;
}

int zmq_send(void *socket, const void *data, size_t bytes, int flags)
{
    struct piece *piece = piece_new(bytes);
    memcpy(piece->data, data, bytes);
    if (send_piece(socket, piece, (flags & ZMQ_SNDMORE) != 0) != 0) {
        piece_free(piece);
        return -1;
    }
    return (int)bytes;
}

int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
    struct sock *s = socket;
    (void)flags;
    if (!s->in) {
        struct link *from;
        struct queue *q = link_pull(&s->end, &s->turn, &from);
        if (!q) {
            (void)ask(s);
            errno = EAGAIN;
            return -1;
        }
        s->in = queue_take(q);
        s->in_part = 0;
        if (s->type == ZMQ_ROUTER) {
            s->in_name = piece_new(from->name_bytes);
            memcpy(s->in_name->data, from->name, from->name_bytes);
        }
    }
    zmq_msg_close(msg);
    if (s->in_name) {
        held(msg)->piece = s->in_name;
        held(msg)->more = true;
        s->in_name = NULL;
    } else {
        held(msg)->piece = s->in->part[s->in_part++];
        held(msg)->more = s->in_part < s->in->parts;
        if (!held(msg)->more) {
            message_free(s->in, s->in_part);
            s->in = NULL;
        }
    }
    return (int)held(msg)->piece->bytes;
}

/* Of a monitor only. */
int zmq_recv(void *socket, void *out, size_t bytes, int flags)
{
    struct sock *s = socket;
    (void)flags;
    if (s->half) {
        s->half = false;
        return snprintf(out, bytes, "sim");
    }
    if (!s->monitored || s->monitored->end.connections == s->told) {
        (void)ask(s);
        errno = EAGAIN;
        return -1;
    }
    uint16_t event = ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    memset(out, 0, bytes < 6 ? bytes : 6);
    memcpy(out, &event, sizeof(event));
    s->told++;
    s->half = true;
    return 6;
}

int zmq_poll(zmq_pollitem_t *items, int n, long timeout_ms)
{
    uint64_t until =
        timeout_ms < 0 ? WORLD_NEVER : world.now_ns + (uint64_t)(timeout_ms ? timeout_ms * 1000 : 10) * US_;
    for (;;) {
        int ready = 0;
        if (process_call()) {
            process_die();
        }
        for (int i = 0; i < n; i++) {
            items[i].revents = ask(items[i].socket) ? ZMQ_POLLIN : 0;
            ready += items[i].revents != 0;
        }
        if (ready > 0 || world.now_ns >= until) {
            return ready;
        }
        process_wait(until);
    }
}
