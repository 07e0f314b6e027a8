/*
 * obligation.h: what ranks will not issue in backward: what detect_moe_obligation.c (when lists are judged, and what
 * comes of it), obligation_list.c (the lists of the members, side by side) and obligation_say.c (the prediction, and
 * that it has come true) share.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_OBLIGATION_H
#define ROLL_DAEMON_ENGINE_DETECT_OBLIGATION_H

#include "daemon/engine/detect/compare.h"
#include "daemon/engine/detect/detector.h"
#include "daemon/engine/detect/gather.h"
#include "daemon/engine/detect/moe.h"

/* One promised collective. */
struct obligation {
    uint64_t comm_key;
    uint64_t count;
    uint32_t op;
    uint32_t callsite;
};

/* The rank that will not issue what its peers expect. */
struct cause {
    uint64_t key;                          /* ep communicator */
    struct roll_rankset culprits, waiting; /* world ranks */
    uint32_t step, microbatch, layer, source, peer_source;
    uint64_t ticket, peer_ticket;
    uint32_t missing;
    struct obligation obligation; /* the first one missing */
    bool told, proven;
    bool skipped;        /* the culprit said that it skipped its experts */
    uint64_t prediction; /* key of the gathering in which it is told (gather.h) */
};

struct moe_obligation_engine {
    struct cause *cause; /* owned */
    uint32_t causes;
    size_t cause_room;
};
STATE_OF_ENGINE(moe_obligation)

struct list {
    uint32_t source, used;
    uint64_t ticket; /* of its end */
    struct obligation *obligation;
};

/* The lists of all members for one (step, microbatch, layer). */
struct cell {
    struct moment at;
    uint32_t step; /* of `at` */
    uint16_t microbatch, layer;
    uint32_t arrived;
    bool differ, told;
    uint64_t since;
    struct list *list; /* by rank; obligation NULL and used 0 with source NO_SOURCE: not there yet */
    struct cell *next;
};

struct moe_obligation_comm {
    struct cell *cell; /* newest first; owned */
    struct closed closed;
    uint32_t cause; /* comm.blamed: the index of the prediction, and its step */
    uint32_t step;
};
STATE_OF_COMM(moe_obligation)

/* obligation_list.c */
void obligation_cell_drop(struct comm *c, struct cell *cell);
/* The order of this step's lists is not whole any more: neither it nor an earlier step is compared further. */
void obligation_give_up(struct comm *c, const struct moment *step);
/*
 * The cell of this list: the oldest for its step, microbatch and layer in which the member has not spoken yet. A job
 * may have several layers of one number (two models, or numbers that were never given): the first list of each member
 * meets the others' first, the second their second.
 */
struct cell *obligation_cell_get(struct comm *c, const struct roll_record *rec, const struct moment *at, uint32_t rank);
/* How many entries of `full` the other list lacks; *first: index of the first one in `full`. */
uint32_t obligation_lacks(const struct comm *ep, const struct list *full, const struct list *other, uint32_t *first);
uint32_t obligation_longest(const struct comm *c, const struct cell *cell);

/* obligation_say.c */
/* Ranks leave out several layers: one finding. What comes after the wait has come true is its consequence. */
void obligation_predict(struct roll_engine *e, const struct cause *cause, bool zero);
void obligation_came_true(struct roll_engine *e, struct cause *cause);

#endif
