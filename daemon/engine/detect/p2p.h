/*
 * p2p.h: what detect_p2p.c (what a wait in a message means) and p2p_say.c (the verdicts about it) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_P2P_H
#define ROLL_DAEMON_ENGINE_DETECT_P2P_H

#include "daemon/engine/detect/detector.h"
#include "daemon/engine/match/exchange.h"

/* The calls of a circle of waits on one communicator. */
struct p2p_mix {
    struct comm *comm;
    uint32_t p2ps;       /* number of ranks that wait in a message */
    uint32_t unmatched;  /* index + 1 of a step whose message has no partner; 0 = none */
    uint32_t collective; /* index + 1 of the step that waits in the collective with the lowest number; 0 = none */
    uint32_t seq;        /* sequence number of that collective */
};

/* p2p_say.c: each function mutes the communicator and says one verdict per cause */
/* All messages without partner are one rank's: the rank left out the exchange, or some messages of it. */
void p2p_say_lack(struct roll_engine *e, const struct block *b, struct comm *c, const struct exchange_lack *lack);
/* A message has no partner, and two calls alone do not say whether one is missing there or one is too many here: a tie.
 * mixed: the message stands in a circle with a collective. */
void p2p_say_unmatched(struct roll_engine *e, const struct block *b, const struct source *s, uint64_t ticket,
                       bool mixed);
/* The rank of this step waits in messages before a collective, and its partners and most members made that collective
 * before their messages. */
void p2p_say_early(struct roll_engine *e, const struct block *b, const struct p2p_mix *mix, uint32_t step);

#endif
