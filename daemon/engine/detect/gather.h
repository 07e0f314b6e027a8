/*
 * gather.h: one finding for one cause that shows in several layers, on several ranks, or on several communicators of
 * one kind.
 *
 * A detector opens the gathering of its cause, fills in what the verdict shows of the first case, and adds cases to it.
 * The verdict is said a moment after the last addition. Later cases make a fuller verdict that supersedes the one
 * before.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_GATHER_H
#define ROLL_DAEMON_ENGINE_DETECT_GATHER_H

#include "daemon/engine/detect/state.h"
#include "daemon/engine/say/say.h"

/* The cases of one cause, and the verdict about them. */
struct gathered {
    uint64_t key;
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    struct comm *comm;                                 /* communicator of the first case; NULL: none */
    struct roll_rankset culprits, waiting, layers;     /* world ranks; world ranks; numbers of MoE layers; owned */
    struct roll_rankset comms;                         /* ids of all communicators concerned; owned */
    struct roll_verdict_side side[ROLL_VERDICT_SIDES]; /* sides of the first case; their sets are owned */
    uint32_t sides;
    uint32_t step, microbatch, layer; /* of the first case */
    enum roll_phase phase;
    uint32_t remedy;
    bool many_steps;   /* some later case was in another step */
    bool several;      /* for the detector's use */
    uint64_t confirms; /* number of the prediction that this gathering proves; 0 = none */
    bool undone;       /* the verdict has been withdrawn, and is not said again */
    bool unnamed;  /* nobody can say who is wrong: `culprits` are the ranks concerned, and the verdict names nobody */
    uint32_t kind; /* for the detector's use, as are the next two */
    uint32_t number_of[2];
    double amount[2];
    void (*words)(const struct roll_engine *e, const struct gathered *g, struct words *w);

    uint64_t number; /* number of the last verdict about this cause; 0 = none yet */
    uint32_t told;   /* how often a verdict was said */
    /* Patience clock of the first case that has not been said (or, after a verdict, of that verdict), and of the last
     * addition. */
    uint64_t since, ago;
    bool pending;
    struct gathered *next;
};

struct gather_engine {
    struct gathered *first; /* newest first; owned */
};
STATE_OF_ENGINE(gather)

/* A number that is the same for communicators of one kind, that is, with the same label and size, as the
 * expert-parallel groups of a job are. Without a label each communicator is a kind of its own. */
uint64_t gather_family(const struct comm *c);
/*
 * The gathering of this cause, found or made; NULL: no memory. *fresh: it was made, and its sides, words and the like
 * have to be filled in.
 */
struct gathered *gather_open(struct roll_engine *e, uint64_t key, enum roll_verdict_code code,
                             enum roll_certainty certainty, bool *fresh);
/* Adds a side for the verdict to show. The set is borrowed; rec may be NULL. */
void gather_side(struct gathered *g, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
                 const struct roll_record *rec);
/* Adds one more case. The sets are borrowed; waiting may be NULL. */
void gather_add(struct roll_engine *e, struct gathered *g, struct comm *c, uint32_t step, uint32_t microbatch,
                uint32_t layer, const struct roll_rankset *culprits, const struct roll_rankset *waiting);
/* Says now what is still to be said. Returns the number of the last verdict; 0: none. */
uint64_t gather_flush(struct roll_engine *e, struct gathered *g);
/* Says everything with this code that has not been said yet, oldest first. Called before a verdict that follows from
 * it. */
void gather_flush_code(struct roll_engine *e, enum roll_verdict_code code);
struct gathered *gather_find(const struct roll_engine *e, uint64_t key); /* NULL: there is no such gathering */

/* Adds "MoE layers 0-3, step 17"; gather_comm adds "communicator tp (2 ranks)" or "each of 4 communicators tp (2 ranks
 * each)". */
void gather_place(const struct gathered *g, struct words *w);
void gather_comm(const struct gathered *g, struct words *w);

#endif
