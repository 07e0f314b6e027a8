/*
 * socket.c: libzmq as far as rollcall uses it, and the network between its sockets, in simulated time.
 *
 * What is kept of libzmq, because the daemons depend on it: whole messages or none; bounded queues; a DEALER that
 * queues before it is connected and keeps what it had not written when a connection breaks; a ROUTER that says
 * EHOSTUNREACH where nobody has that name; connections that are tried again at growing distances; ZMQ_FD, which is
 * readable only for what is new since the socket was last asked. What a connection held when it breaks is lost, in both
 * directions, and what had arrived stays. A link keeps the order of its messages, as TCP does; several links keep none.
 */
#include "tests/world/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define SOCKETS    64u
#define LINKS      32u
#define QUEUE      512u      /* messages that a side keeps, as the high-water marks of net.c say */
#define PARTS      64u       /* of a message */
#define FIRST_FD   (1 << 20) /* of ZMQ_FD: no file has such a number */
#define LATENCY_US 80u       /* of a link, with up to three times as much by chance */
#define RETRY_NS   (100 * MS_)
#define RETRY_MOST (5 * S_)
#define GIVE_UP_NS (4 * S_)  /* after which TCP gives a connection up that acknowledges nothing (net.c) */
#define IO_NS      (1 * MS_) /* what was sent so shortly before a kill may not have been written */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void __real_free(void *block);

struct piece {
    struct piece *before, *after; /* of all that there are */
    size_t bytes;
    uint8_t data[];
};
struct held { /* what is in a zmq_msg_t */
    struct piece *piece;
    bool more;
};
_Static_assert(sizeof(struct held) <= sizeof(zmq_msg_t), "a message is a handle");

struct message {
    struct message *next;
    uint64_t at_ns, sent_ns; /* when it arrives; NEVER: it is not on its way */
    uint32_t parts;
    struct piece *part[PARTS];
};
struct queue {
    struct message *first, *last;
    uint32_t n;
    uint64_t newest_ns;
};

struct sock {
    bool used;
    int type;
    struct process *owner;
    char name[256]; /* routing id of a DEALER; what a ROUTER is bound to; of the monitor */
    size_t name_bytes;
    struct sock *monitor, *monitored;
    uint32_t events;        /* of a monitor: connections that were made */
    bool half;              /* of a monitor: the address of one comes next */
    bool asleep, signalled; /* ZMQ_FD */
    struct message *out;    /* is being built */
    struct link *out_link;  /* of a ROUTER: to whom; NULL: nobody any more */
    bool out_begun;
    struct message *in;    /* is being read */
    uint32_t in_part;      /* of which this part comes next */
    struct piece *in_name; /* of a ROUTER: the name comes first */
    uint32_t turn;         /* of a ROUTER: the link that is read next */
};

struct link {
    bool used, up;
    struct sock *dealer, *router; /* dealer NULL: closed, what is on its way still comes */
    char target[256], name[256];
    size_t name_bytes;
    uint64_t timer_ns, retry_ns; /* the next try to connect */
    uint64_t cut_ns, break_ns;
    uint32_t slow_us;
    struct queue rise, fall; /* to the ROUTER, to the DEALER */
    struct {
        bool set;
        enum link_harm harm;
        uint32_t n;
    } harm[2];
};

static struct sock sockets[SOCKETS];
static struct link links[LINKS];
static struct piece *pieces;

/* pieces and messages */

static struct piece *piece_new(size_t bytes)
{
    struct piece *piece = __real_malloc(sizeof(*piece) + bytes);
    if (!piece) {
        abort();
    }
    piece->bytes = bytes;
    piece->before = NULL;
    piece->after = pieces;
    if (pieces) {
        pieces->before = piece;
    }
    pieces = piece;
    return piece;
}

static void piece_free(struct piece *piece)
{
    if (!piece) {
        return;
    }
    if (piece->before) {
        piece->before->after = piece->after;
    } else {
        pieces = piece->after;
    }
    if (piece->after) {
        piece->after->before = piece->before;
    }
    __real_free(piece);
}

static void message_free(struct message *m, uint32_t from)
{
    for (uint32_t i = from; m && i < m->parts; i++) {
        piece_free(m->part[i]);
    }
    __real_free(m);
}

static struct message *message_new(void)
{
    struct message *m = __real_calloc(1, sizeof(*m));
    if (!m) {
        abort();
    }
    return m;
}

static void queue_put(struct queue *q, struct message *m)
{
    *(q->last ? &q->last->next : &q->first) = m;
    q->last = m;
    m->next = NULL;
    q->n++;
}

static struct message *queue_take(struct queue *q)
{
    struct message *m = q->first;
    q->first = m->next;
    q->last = q->first ? q->last : NULL;
    q->n--;
    return m;
}

/* Drops what is not to arrive: of messages on their way, or of all. */
static void queue_drop(struct queue *q, bool (*goes)(const struct message *m))
{
    struct queue kept = {.newest_ns = q->newest_ns};
    while (q->first) {
        struct message *m = queue_take(q);
        if (goes(m)) {
            message_free(m, 0);
        } else {
            queue_put(&kept, m);
        }
    }
    *q = kept;
}

static bool is_on_its_way(const struct message *m)
{
    return m->at_ns != WORLD_NEVER && m->at_ns > world.now_ns;
}

static bool is_any(const struct message *m)
{
    (void)m;
    return true;
}

/* links */

static void send_off(struct link *l, struct queue *q, struct message *m)
{
    uint64_t at = world.now_ns + (LATENCY_US + world_below(3 * LATENCY_US + l->slow_us)) * US_;
    at = l->cut_ns > world.now_ns && at < l->cut_ns ? l->cut_ns + world_below(200) * MS_ : at;
    m->at_ns = at > q->newest_ns ? at : q->newest_ns;
    q->newest_ns = m->at_ns;
    struct sock *to = q == &l->rise ? l->router : l->dealer;
    if (to && to->owner) {
        process_wake(to->owner, m->at_ns);
    }
}

static void flip(struct message *m)
{
    struct piece *piece = m->part[world_below(m->parts)];
    uint32_t n = 1 + world_below(4);
    for (uint32_t i = 0; i < n && piece->bytes > 0; i++) {
        piece->data[world_below((uint32_t)piece->bytes)] ^= (uint8_t)(1u << world_below(8));
    }
}

/* A message goes on its way, harmed where that was asked for. */
static void push(struct link *l, bool down, struct message *m)
{
    struct queue *q = down ? &l->fall : &l->rise;
    m->sent_ns = world.now_ns;
    m->at_ns = WORLD_NEVER;
    struct message *again = NULL;
    if (l->harm[down].set && m->parts > 0) {
        l->harm[down].set = l->harm[down].n-- > 1;
        if (l->harm[down].harm == LINK_LOSE) {
            message_free(m, 0);
            return;
        }
        if (l->harm[down].harm == LINK_FLIP) {
            flip(m);
        } else {
            again = message_new();
            *again = *m;
            for (uint32_t i = 0; i < m->parts; i++) {
                again->part[i] = piece_new(m->part[i]->bytes);
                memcpy(again->part[i]->data, m->part[i]->data, m->part[i]->bytes);
            }
        }
    }
    for (; m; m = again, again = NULL) {
        queue_put(q, m);
        if (l->up) {
            send_off(l, q, m);
        }
    }
}

static void notify(struct sock *dealer)
{
    if (dealer && dealer->monitor) {
        dealer->monitor->events++;
        process_wake(dealer->owner, world.now_ns);
    }
}

static void go_down(struct link *l)
{
    l->up = false;
    l->break_ns = WORLD_NEVER;
    queue_drop(&l->rise, is_on_its_way);
    queue_drop(&l->fall, is_on_its_way);
    l->retry_ns = RETRY_NS;
    l->timer_ns = world.now_ns + RETRY_NS;
}

static struct sock *bound(const char *target)
{
    for (uint32_t i = 0; i < SOCKETS; i++) {
        if (sockets[i].used && sockets[i].type == ZMQ_ROUTER && strcmp(sockets[i].name, target) == 0) {
            return &sockets[i];
        }
    }
    return NULL;
}

static void try_connect(struct link *l)
{
    struct sock *router = bound(l->target);
    if (!router || l->cut_ns > world.now_ns || (router->owner && router->owner->stopped_ns > world.now_ns)) {
        l->timer_ns = world.now_ns + l->retry_ns;
        l->retry_ns = l->retry_ns * 2 < RETRY_MOST ? l->retry_ns * 2 : RETRY_MOST;
        return;
    }
    l->router = router;
    l->up = true;
    l->timer_ns = WORLD_NEVER;
    l->break_ns = WORLD_NEVER;
    notify(l->dealer);
    for (struct message *m = l->rise.first; m; m = m->next) {
        if (m->at_ns == WORLD_NEVER) {
            send_off(l, &l->rise, m);
        }
    }
}

static void link_clear(struct link *l)
{
    queue_drop(&l->rise, is_any);
    queue_drop(&l->fall, is_any);
    for (uint32_t i = 0; i < SOCKETS; i++) {
        sockets[i].out_link = sockets[i].out_link == l ? NULL : sockets[i].out_link;
    }
    *l = (struct link){0};
}

uint64_t socket_next(void)
{
    uint64_t next = WORLD_NEVER;
    for (uint32_t i = 0; i < LINKS; i++) {
        const struct link *l = &links[i];
        if (l->used && l->dealer) {
            next = !l->up && l->timer_ns < next ? l->timer_ns : next;
            next = l->up && l->break_ns < next ? l->break_ns : next;
        }
    }
    return next;
}

void socket_turn(void)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (!l->used) {
            continue;
        }
        if (!l->dealer && !l->rise.first) {
            link_clear(l);
        } else if (l->dealer && l->up && l->break_ns <= world.now_ns) {
            go_down(l);
        } else if (l->dealer && !l->up && l->timer_ns <= world.now_ns) {
            try_connect(l);
        }
    }
}

/* Of a process; there is one: that of its DEALER. */
static struct link *link_of(const struct process *p)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        if (links[i].used && links[i].dealer && links[i].dealer->owner == p) {
            return &links[i];
        }
    }
    return NULL;
}

void link_break(struct process *p)
{
    struct link *l = link_of(p);
    if (l && l->up) {
        go_down(l);
    }
}

void link_cut(struct process *p, uint64_t until_ns)
{
    struct link *l = link_of(p);
    if (!l) {
        return;
    }
    l->cut_ns = until_ns;
    l->break_ns = until_ns - world.now_ns > GIVE_UP_NS ? world.now_ns + GIVE_UP_NS : WORLD_NEVER;
    for (int down = 0; down < 2; down++) {
        struct queue *q = down ? &l->fall : &l->rise;
        for (struct message *m = q->first; m; m = m->next) {
            if (is_on_its_way(m) && m->at_ns < until_ns) {
                m->at_ns = until_ns;
                q->newest_ns = q->newest_ns > until_ns ? q->newest_ns : until_ns;
            }
        }
    }
    if (l->router) {
        process_wake(l->router->owner, until_ns);
    }
    process_wake(p, until_ns);
}

void link_slow(struct process *p, uint32_t us)
{
    struct link *l = link_of(p);
    if (l) {
        l->slow_us = us;
    }
}

void link_harm(struct process *p, bool down, enum link_harm harm, uint32_t n)
{
    struct link *l = link_of(p);
    if (l) {
        l->harm[down].set = n > 0;
        l->harm[down].harm = harm;
        l->harm[down].n = n;
    }
}

/* sockets */

static struct message *arrived(const struct queue *q)
{
    return q->first && q->first->at_ns <= world.now_ns ? q->first : NULL;
}

/* The queue from which the socket reads next; *from is its link. */
static struct queue *next_queue(struct sock *s, struct link **from)
{
    for (uint32_t k = 0; k < LINKS; k++) {
        struct link *l = &links[(s->turn + k) % LINKS];
        struct queue *q = !l->used ? NULL : l->router == s ? &l->rise : l->dealer == s ? &l->fall : NULL;
        if (q && arrived(q)) {
            *from = l;
            s->turn = (s->turn + k + 1) % LINKS;
            return q;
        }
    }
    return NULL;
}

static bool has_input(struct sock *s)
{
    if (s->type == ZMQ_PAIR) {
        return s->events > 0 || s->half;
    }
    uint32_t turn = s->turn;
    struct link *from;
    bool input = s->in || next_queue(s, &from);
    s->turn = turn;
    return input;
}

/* As libzmq takes its commands: what is new is known now. */
static bool ask(struct sock *s)
{
    bool input = has_input(s);
    s->signalled = false;
    s->asleep = !input;
    return input;
}

uint64_t socket_soonest(const struct process *p)
{
    uint64_t soonest = WORLD_NEVER;
    for (uint32_t i = 0; i < LINKS; i++) {
        const struct link *l = &links[i];
        const struct queue *q[2] = {l->router && l->router->owner == p ? &l->rise : NULL,
                                    l->dealer && l->dealer->owner == p ? &l->fall : NULL};
        for (int k = 0; k < 2 && l->used; k++) {
            if (q[k] && q[k]->first && is_on_its_way(q[k]->first) && q[k]->first->at_ns < soonest) {
                soonest = q[k]->first->at_ns;
            }
        }
    }
    return soonest;
}

static struct link *own_link(const struct sock *s)
{
    for (uint32_t i = 0; i < LINKS; i++) {
        if (links[i].used && links[i].dealer == s) {
            return &links[i];
        }
    }
    return NULL;
}

static bool has_place(const struct link *l, const struct queue *q)
{
    return q->n < (l->up ? 2 * QUEUE : QUEUE);
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
    for (uint32_t i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (l->used && l->dealer == s) {
            l->dealer = NULL;
            uint64_t since = orderly ? WORLD_NEVER : world.now_ns - world_below(2) * IO_NS;
            struct queue kept = {0};
            while (l->rise.first) {
                struct message *m = queue_take(&l->rise);
                if (m->at_ns == WORLD_NEVER || (m->sent_ns >= since && m->at_ns > world.now_ns)) {
                    message_free(m, 0);
                } else {
                    queue_put(&kept, m);
                }
            }
            l->rise = kept;
            queue_drop(&l->fall, is_any);
            l->up = false;
        } else if (l->used && l->router == s) {
            queue_drop(&l->rise, is_on_its_way);
            while (l->rise.first && l->rise.first->at_ns != WORLD_NEVER) { /* it had been received, and is not read */
                message_free(queue_take(&l->rise), 0);
            }
            l->router = NULL;
            if (l->dealer) {
                if (l->up) {
                    go_down(l);
                }
            } else {
                link_clear(l);
            }
        }
    }
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
        if (sockets[i].used && sockets[i].owner == p) {
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
    for (uint32_t i = 0; i < LINKS; i++) {
        link_clear(&links[i]);
    }
    while (pieces) { /* those that a killed process held */
        piece_free(pieces);
    }
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
            sockets[i] = (struct sock){.used = true, .type = type, .owner = process_now, .asleep = true};
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
    if (option == ZMQ_ROUTING_ID && bytes < sizeof(s->name)) {
        memcpy(s->name, value, bytes);
        s->name_bytes = bytes;
    }
    return 0;
}

int zmq_getsockopt(void *socket, int option, void *value, size_t *bytes)
{
    struct sock *s = socket;
    int number = 0;
    if (option == ZMQ_LAST_ENDPOINT) {
        snprintf(value, *bytes, "%s", s->name);
        return 0;
    }
    if (option == ZMQ_FD) {
        number = FIRST_FD + (int)(s - sockets);
    } else if (option == ZMQ_EVENTS) {
        struct link *l = s->type == ZMQ_DEALER ? own_link(s) : NULL;
        number = (ask(s) ? ZMQ_POLLIN : 0) | (s->type == ZMQ_ROUTER || (l && has_place(l, &l->rise)) ? ZMQ_POLLOUT : 0);
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
    if (bound(endpoint)) {
        errno = EADDRINUSE;
        return -1;
    }
    snprintf(s->name, sizeof(s->name), "%s", endpoint);
    return 0;
}

int zmq_unbind(void *socket, const char *endpoint)
{
    (void)endpoint;
    ((struct sock *)socket)->name[0] = '\0';
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
    return 0;
}

int zmq_connect(void *socket, const char *endpoint)
{
    struct sock *s = socket;
    if (s->type == ZMQ_PAIR) {
        return connect_monitor(s, endpoint);
    }
    for (uint32_t i = 0; i < LINKS; i++) {
        struct link *l = &links[i];
        if (!l->used) {
            *l = (struct link){.used = true, .dealer = s, .retry_ns = RETRY_NS, .break_ns = WORLD_NEVER};
            snprintf(l->target, sizeof(l->target), "%s", endpoint);
            memcpy(l->name, s->name, s->name_bytes);
            l->name_bytes = s->name_bytes;
            l->timer_ns = world.now_ns + world_below(1000) * US_;
            return 0;
        }
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
    struct link *l = s->type == ZMQ_DEALER ? own_link(s) : NULL;
    for (uint32_t i = 0; i < LINKS && s->type == ZMQ_ROUTER && !l; i++) {
        bool is_it = links[i].used && links[i].up && links[i].router == s && links[i].name_bytes == bytes &&
                     memcmp(links[i].name, name, bytes) == 0;
        l = is_it ? &links[i] : NULL;
    }
    if (!l || !has_place(l, s->type == ZMQ_ROUTER ? &l->fall : &l->rise)) {
        errno = l ? EAGAIN : EHOSTUNREACH;
        return -1;
    }
    s->out_begun = true;
    s->out_link = l;
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
    if (l && (s->type == ZMQ_DEALER || (l->up && l->router == s))) {
        push(l, s->type == ZMQ_ROUTER, s->out);
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
        struct queue *q = next_queue(s, &from);
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
            __real_free(s->in);
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
    if (s->events == 0) {
        (void)ask(s);
        errno = EAGAIN;
        return -1;
    }
    uint16_t event = ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
    memset(out, 0, bytes < 6 ? bytes : 6);
    memcpy(out, &event, sizeof(event));
    s->events--;
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
