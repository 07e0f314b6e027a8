/*
 * exchange.h: which member of a communicator lacks messages that the others have made with it: exchange.c.
 */
#ifndef ROLL_DAEMON_ENGINE_MATCH_EXCHANGE_H
#define ROLL_DAEMON_ENGINE_MATCH_EXCHANGE_H

#include "daemon/engine/model/engine_state.h"

/* What a member lacks of the messages that others have made with it. All is about one communicator. */
struct exchange_lack {
    uint32_t rank;             /* the rank of the member on the communicator */
    uint32_t makers;           /* members that have made messages which it lacks */
    uint32_t ahead;            /* the same, and members that have made a collective which it lacks */
    uint32_t messages;         /* messages that it lacks */
    uint32_t answers;          /* messages that it has made and others lack */
    uint64_t bytes;            /* the first message that it lacks of each pair, added up */
    bool grouped;              /* some of the makers made theirs in a group */
    bool partly;               /* it has answered other messages of the same groups */
    bool whole;                /* it lacks the exchange as a whole: it has answered nothing, and waits in no message */
    bool alone;                /* the vote: all messages without partner are with this member */
    const struct entry *entry; /* the first message that it lacks, by `maker` */
    uint32_t maker;            /* the rank of that maker on the communicator */
    struct roll_rankset waiting; /* the makers, as ranks in the job */
};

/* Fills *out for a member, and returns whether the member stands alone (`alone`). The caller frees *out with
 * exchange_fini, whatever is returned. */
bool exchange_lacks(const struct roll_engine *e, const struct comm *c, uint32_t rank, struct exchange_lack *out);
/*
 * The member itself waits in the call of s with this ticket (and its group). How many ranks of that call have come to
 * their exchange with the member first? Where it is one alone, that one may have passed over the call.
 */
uint32_t exchange_against(const struct roll_engine *e, const struct comm *c, const struct exchange_lack *lack,
                          const struct source *s, uint64_t ticket);
/* The maker m came to its exchange with the member that lacks it before m came to call `at`, in which that member
 * waits; false for a member that has made no messages which the other one lacks. */
bool exchange_comes_first(const struct roll_engine *e, const struct comm *c, const struct exchange_lack *lack,
                          const struct member *m, const struct entry *at);
/* The member has made all messages without partner on the communicator, with two others at least who are a majority,
 * and all of these have ended or left the communicator. */
bool exchange_adds(const struct roll_engine *e, const struct comm *c, uint32_t rank);
/*
 * The rank may be early with the messages of this call (and its group): how many of its partners have made collective
 * #seq first, and their side of the messages after that or not at all. 0 where one partner has done otherwise.
 */
uint32_t exchange_early(const struct roll_engine *e, const struct source *s, uint64_t ticket, uint32_t seq);
/* Frees what *lack owns. */
void exchange_fini(struct exchange_lack *lack);

#endif
