/*
 * pair.h: one (source, destination) of a communicator: a window of nodes, one for each message between the two.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_PAIR_H
#define ROLL_DAEMON_ENGINE_MODEL_PAIR_H

#include "daemon/engine/model/comm.h"

/* One message. Index 0 of an array and bit 0 of a mask are the send, 1 the receive. */
struct node {
    uint64_t ticket[2];
    uint64_t bytes;      /* of the side that came first */
    uint32_t exchange;   /* the exchange of that side: detect_moe_outside.c (outside_meet); 0 = none */
    uint32_t before[2];  /* the last collective before each side that NCCL makes of messages of this pair: lowered.c */
    uint8_t have, ready; /* masks of the sides that have come, and that are ready */
    uint8_t past;        /* mask of the sides that came before anybody looked: their ticket is 0 */
};

/* Index 0 of an array is the side of the source, which sends; 1 that of the destination. */
struct pair {
    struct comm *comm;
    uint32_t end[2];   /* the two ranks on the communicator */
    struct node *node; /* by index & mask */
    uint32_t mask, base;
    uint32_t issued[2]; /* sends and receives so far, without captured ones */
    uint32_t calls[2];  /* all sends and receives, as the records number them */
    uint32_t gaps[2];   /* member.gaps at the last of them: behind a loss it is not known whether there were more */
    bool unsure;        /* records were lost: the pair is matched no more */
    bool placed;        /* the window begins where its first side came in (p2p_place) */
    bool said;          /* a send and a receive differ, and that is being judged */
};

/* What a pair needs with its first window, and its places in the table. */
#define PAIR_NODES 4u
#define PAIR_BYTES (sizeof(struct pair) + PAIR_NODES * sizeof(struct node) + 4 * sizeof(struct pair *))

/* There is room for the node with this index, or it is there. */
static inline bool pair_fits(const struct pair *p, uint32_t index)
{
    return index - p->base <= p->mask;
}

/* The pair of two ranks; NULL: no message between them has come. */
struct pair *p2p_pair(const struct comm *c, uint32_t src, uint32_t dst);
/* The same, made if there is none; NULL: no memory. */
struct pair *pair_get(struct comm *c, uint32_t src, uint32_t dst);
struct node *p2p_node(const struct pair *p, uint32_t index);
/* Doubles the window, in which nodes before `index` are kept. 0, NOMEM. */
int pair_grow(struct pair *p, uint32_t index);
/* Moves the beginning of the window past the nodes of which both sides are ready. */
void pair_advance(struct pair *p);
/* It is known how many messages this side of the pair has made. */
bool p2p_known(const struct pair *p, unsigned side);
/* Nobody waits for the message of this entry any more: both sides are ready, or the pair is not judged. False while a
 * difference in the pair is being judged, because its evidence must stay. */
bool p2p_complete(const struct entry *entry);

#endif
