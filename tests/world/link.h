/*
 * link.h: the network between the sockets of the world: messages, links that carry them, and what goes wrong with both.
 *
 * A link joins two ends: a DEALER's, which connects, and a ROUTER's, which is bound. What an end is for its owner is
 * socket.c's alone, as libzmq has it.
 */
#ifndef ROLL_TESTS_WORLD_LINK_H
#define ROLL_TESTS_WORLD_LINK_H

#include "tests/world/world.h"

#define LINKS 32u
#define PARTS 64u /* of a message */

/* A part of a message, owned by one message or one handle; those of a killed process go with link_reset. */
struct piece {
    struct piece *before, *after; /* of all that there are */
    size_t bytes;
    uint8_t data[];
};
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

/* One side of links. */
struct end {
    struct process *owner;
    char name[256]; /* what a connecting end is called; what a bound one is bound to, "": nothing */
    size_t name_bytes;
    uint64_t connections; /* that were made for a connecting end */
};

struct link {
    bool used, up;
    uint64_t number;             /* no other link has it */
    struct end *dealer, *router; /* dealer NULL: closed, what is on its way still comes */
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

/* Returns owned; it never fails. */
struct piece *piece_new(size_t bytes);
void piece_free(struct piece *piece);
struct message *message_new(void);
/* Frees it with its parts from this one on; those before it were given away. NULL is nothing. */
void message_free(struct message *m, uint32_t from);
/* Takes the first one; there is one. */
struct message *queue_take(struct queue *q);

/* Binds: 0, or -1 when the name is another's. An end that was bound is closed with link_unbind. */
int link_bind(struct end *end, const char *target);
void link_unbind(struct end *end);
/* Begins to connect to whatever is bound to target, now or later. 0, or -1 when there are too many links. */
int link_open(struct end *dealer, const char *target);
/* The end goes. orderly: what it has sent is still written. */
void link_close(struct end *end, bool orderly);
/* That of a connecting end; that of a bound one to whoever has this name and is connected. NULL: there is none. */
struct link *link_up_from(const struct end *dealer);
struct link *link_down_to(const struct end *router, const void *name, size_t bytes);
/* Whether one more message may be sent. */
bool link_has_place(const struct link *l, bool down);
/* A message (taken) goes on its way, harmed where that was asked for. */
void link_push(struct link *l, bool down, struct message *m);
/* The queue from which the end reads next; *turn is the link it begins with, and moves on. *from is its link. */
struct queue *link_pull(const struct end *end, uint32_t *turn, struct link **from);

#endif
