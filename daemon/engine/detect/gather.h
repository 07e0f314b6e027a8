/*
 * gather.h: one finding for one cause that shows in several layers, on several ranks, or on several communicators of
 * one kind.
 *
 * A detector opens the gathering of its cause, fills in what it wants to show the first time, and adds to it. It is
 * said a moment after the last addition; what is added later makes a new verdict that takes the place of the one
 * before.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_GATHER_H
#define ROLL_DAEMON_ENGINE_DETECT_GATHER_H

#include "daemon/engine/detect/state.h"
#include "daemon/engine/say/say.h"

struct gathered {
    uint64_t key;
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    struct comm *comm;                                 /* the first; NULL: none */
    struct roll_rankset culprits, waiting, layers;     /* world ranks; numbers of MoE layers; owned */
    struct roll_rankset comms;                         /* ids of the communicators concerned; owned */
    struct roll_verdict_side side[ROLL_VERDICT_SIDES]; /* of the first case; their sets are owned */
    uint32_t sides;
    uint32_t step, microbatch, layer; /* of the first case */
    enum roll_phase phase;
    uint32_t remedy;
    bool many_steps;   /* later cases were in other steps */
    bool several;      /* the detector's */
    uint64_t confirms; /* number of the prediction that this one proves */
    bool undone;       /* it has been taken back: not said again */
    bool unnamed;      /* nobody can say who is wrong: the culprits are those concerned */
    uint32_t kind;     /* the detector's */
    uint32_t number_of[2];
    double amount[2];
    void (*words)(const struct roll_engine *e, const struct gathered *g, struct words *w);

    uint64_t number;     /* of the verdict, once it has been said */
    uint32_t told;       /* how often */
    uint64_t since, ago; /* patience clock of the last addition, and of the last verdict */
    bool pending;
    struct gathered *next;
};

struct gather_engine {
    struct gathered *first; /* newest first; owned */
};
STATE_OF_ENGINE(gather)

/* The same for communicators of one kind: same label and size, as the expert-parallel groups of a job are. */
uint64_t gather_family(const struct comm *c);
/*
 * The gathering of this cause, new or not; NULL when there is no memory. *fresh: sides, words and the like have to be
 * filled in.
 */
struct gathered *gather_open(struct roll_engine *e, uint64_t key, enum roll_verdict_code code,
                             enum roll_certainty certainty, bool *fresh);
void gather_side(struct gathered *g, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
                 const struct roll_record *rec);
/* One more case. Sets are borrowed; waiting may be NULL. */
void gather_add(struct roll_engine *e, struct gathered *g, struct comm *c, uint32_t step, uint32_t microbatch,
                uint32_t layer, const struct roll_rankset *culprits, const struct roll_rankset *waiting);
/* Says now what is still to be said; its number, 0 when there is none. */
uint64_t gather_flush(struct roll_engine *e, struct gathered *g);
/* All that is still to be said with this code, oldest first: before something is said that comes of it. */
void gather_flush_code(struct roll_engine *e, enum roll_verdict_code code);
struct gathered *gather_find(const struct roll_engine *e, uint64_t key); /* NULL: nothing of the kind */

/* "MoE layers 0-3, step 17"; "on communicator tp (2 ranks)", "on each of 4 communicators tp (2 ranks each)". */
void gather_place(const struct gathered *g, struct words *w);
void gather_comm(const struct gathered *g, struct words *w);

#endif
