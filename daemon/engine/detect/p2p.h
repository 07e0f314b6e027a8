/*
 * p2p.h: what detect_p2p.c (which wait is whose) and p2p_say.c (the words) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_P2P_H
#define ROLL_DAEMON_ENGINE_DETECT_P2P_H

#include "daemon/engine/detect/detector.h"
#include "daemon/engine/match/exchange.h"

/* What a circle on one communicator is made of. */
struct p2p_mix {
    struct comm *comm;
    uint32_t p2ps;       /* ranks that wait in a message */
    uint32_t without;    /* index + 1 of one whose message has no partner; 0 = none */
    uint32_t collective; /* index + 1 of the one that waits in the first collective; 0 = none */
    uint32_t seq;        /* of that collective */
};

/* p2p_say.c: each mutes the communicator and says one verdict per cause. */
/* All messages without partner are with one rank: it has left out the exchange, or some messages of it. */
void p2p_say_lack(struct roll_engine *e, const struct block *b, struct comm *c, const struct exchange_lack *lack);
/* One rank lacks what its partner has made, or the partner has made one too many: a tie. mixed: in a circle with a
 * collective. */
void p2p_say_unmatched(struct roll_engine *e, const struct block *b, const struct source *s, uint64_t ticket,
                       bool mixed);
/* The rank waits in messages before a collective that its partners and the majority have made before theirs. */
void p2p_say_early(struct roll_engine *e, const struct block *b, const struct p2p_mix *mix, uint32_t step);

#endif
