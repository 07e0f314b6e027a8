/*
 * exchange.h: which member of a communicator lacks messages that the others have made with it: exchange.c.
 */
#ifndef ROLL_DAEMON_ENGINE_MATCH_EXCHANGE_H
#define ROLL_DAEMON_ENGINE_MATCH_EXCHANGE_H

#include "daemon/engine/model/engine_state.h"

/* What a member lacks of the messages that others have made with it. All numbers are of one communicator. */
struct exchange_lack {
    uint32_t rank;               /* the member, on the communicator */
    uint32_t makers;             /* members whose messages it lacks */
    uint32_t ahead;              /* those, and members that have made a collective which it lacks */
    uint32_t messages;           /* that it lacks */
    uint32_t answers;            /* messages that it has made and that are lacking elsewhere */
    uint64_t bytes;              /* of the first ones that it lacks */
    bool grouped;                /* some of them are in a group */
    bool partly;                 /* it has made other messages of the same groups */
    bool whole;                  /* it has made none of them, and no other message that waits */
    bool alone;                  /* the vote: no message without partner is another member's matter */
    const struct entry *entry;   /* the first message that it lacks, of `maker` */
    uint32_t maker;              /* on the communicator */
    struct roll_rankset waiting; /* world ranks of the makers */
};

/* True: the member stands alone. *out owns a set in any case: exchange_fini. */
bool exchange_lacks(const struct roll_engine *e, const struct comm *c, uint32_t rank, struct exchange_lack *out);
/*
 * How many of those that wait for the member have come to that before they came to the call that it waits in itself
 * (with its group). With one alone it may as well be that one that has passed over the call.
 */
uint32_t exchange_against(const struct roll_engine *e, const struct comm *c, const struct exchange_lack *lack,
                          const struct source *s, uint64_t ticket);
/* All messages without partner are this member's, made with two others at least, and all those have ended or left. */
bool exchange_adds(const struct roll_engine *e, const struct comm *c, uint32_t rank);
/*
 * How many partners of this call (with its group) have made collective #seq of the communicator before their side of
 * it, or have not made their side: the rank is early with it. 0 where one of them has not.
 */
uint32_t exchange_early(const struct roll_engine *e, const struct source *s, uint64_t ticket, uint32_t seq);
void exchange_fini(struct exchange_lack *lack);

#endif
