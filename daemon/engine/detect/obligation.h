/*
 * obligation.h: what the files of the detector `moe_obligation` share. An obligation is a collective that a rank has
 * promised in forward to issue in backward.
 *
 *   detect_moe_obligation.c   reads the lists, judges them, and sees what comes of a prediction
 *   obligation_list.c         the lists of all members, side by side
 *   obligation_say.c          the verdicts: the prediction, and that it has come true
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

/* Ranks that will not issue what their peers expect, and the prediction about it. */
struct cause {
    uint64_t key;                          /* key of the expert-parallel communicator */
    struct roll_rankset culprits, waiting; /* world ranks; owned */
    uint32_t step, microbatch, layer, source, peer_source;
    uint64_t ticket, peer_ticket;
    uint32_t missing;
    struct obligation obligation; /* the first missing obligation */
    bool told, proven;
    bool skipped;        /* the culprit reported that it skipped its experts */
    uint64_t prediction; /* key of the gathering that tells it: gather.h */
};

struct moe_obligation_engine {
    struct cause *cause; /* owned */
    uint32_t causes;
    size_t cause_room;
    bool any; /* the job reports obligations */
};
STATE_OF_ENGINE(moe_obligation)

/* One member's list of obligations. */
struct list {
    uint32_t source, used;
    uint64_t ticket; /* ticket of the end of the list */
    struct obligation *obligation;
};

/* The lists of all members for one step, microbatch and layer. */
struct cell {
    struct moment at;
    uint32_t step; /* the step of `at` */
    uint16_t microbatch, layer;
    uint32_t arrived;
    bool differ, told;
    uint64_t since;
    struct list *list; /* by rank; source NO_SOURCE: that member's list has not come */
    struct cell *next;
};

struct moe_obligation_comm {
    struct cell *cell; /* newest first; owned */
    struct closed closed;
    /* Valid while comm.blamed: index and step of the cause that predicts a wait on this communicator. */
    uint32_t cause;
    uint32_t step;
};
STATE_OF_COMM(moe_obligation)

/* obligation_list.c */
void obligation_cell_drop(struct comm *c, struct cell *cell);
/* Gives up this step and all earlier ones, because the order of their lists is not complete: they are not compared any
 * more. */
void obligation_give_up(struct comm *c, const struct moment *step);
/*
 * The cell to which this list belongs: the oldest for its step, microbatch and layer to which the member has not added
 * a list yet. A job may have several layers of one number (two models, or numbers that were never given), so the first
 * list of each member meets the first lists of the others, the second the second ones. NULL: no memory, or the step was
 * given up.
 */
struct cell *obligation_cell_get(struct comm *c, const struct roll_record *rec, const struct moment *at, uint32_t rank);
/* How many entries of `full` the other list lacks; *first: index in `full` of the first of them. */
uint32_t obligation_lacks(const struct comm *ep, const struct list *full, const struct list *other, uint32_t *first);
/* The rank whose list is longest; NO_SEQ: no list has come. */
uint32_t obligation_longest(const struct comm *c, const struct cell *cell);

/* obligation_say.c */
/* Predicts that the culprits of this cause will be waited for. Several layers are one finding. Nothing is said when a
 * prediction about this communicator has already come true: what follows is its consequence. */
void obligation_predict(struct roll_engine *e, const struct cause *cause, bool zero);
/* Says, once for each communicator, that the predicted wait has come. */
void obligation_came_true(struct roll_engine *e, struct cause *cause);

#endif
