/*
 * nodes_state.h: what the files of nodes.h share: nodes.c takes what ranks do, nodes_digest.c lets digests go up,
 * nodes_engine.c opens an engine and feeds it, and nodes_scope.c says who and what it sees. Memory is short nowhere
 * here: what cannot be had ends the simulator.
 */
#ifndef ROLL_TESTS_SIMULATION_NODES_STATE_H
#define ROLL_TESTS_SIMULATION_NODES_STATE_H

#include "daemon/digest/excerpt.h"
#include "daemon/digest/sum.h"
#include "tests/simulation/execute.h"
#include "tests/simulation/nodes.h"

#define INSIDE_NS     (1 * S_)
#define STAND_NS      (250 * MS_)
#define DEFS_MAX      4096u
#define RECORDS_MAX   65536u
#define RECORDS_FIRST 256u /* room to begin with; it doubles */
#define SPANS         16u  /* hints of which a part of the window is asked for */

struct rank_node {
    struct roll_source_info info;
    char host[16];
    roll_fold_t *fold;
    struct roll_def *def;
    uint32_t defs;
    struct roll_record *rec; /* by ticket; state EMPTY: lost */
    uint32_t recs, room;
    uint64_t lost_first, lost_count;
    enum roll_proc_state proc;
    int32_t status;
    bool told_process, told_sight;
    bool failed, hinted; /* it has ended badly, or has hinted at something itself */
    bool asked;          /* its records go to the engine */
    uint32_t number;     /* of a narrow engine: how many records of it have gone there, */
    uint32_t *number_of; /* and by ticket the number under which that was, plus 1; 0: it was not */
    struct roll_engine_sight sight;
    uint32_t source;
};

struct nodes {
    struct nodes_how how;
    struct rank_node rank[RANKS_MAX];
    roll_sum_t *node[RANKS_MAX], *relay[RANKS_MAX], *root;
    uint64_t next_ns[RANKS_MAX]; /* when a node tells next */
    uint32_t nodes, relays, hints;
    bool failed; /* a process has ended, and not in good order */
    struct rng rng;
    roll_engine_t *e;
    struct roll_digest digest, up, came, wanted; /* wanted: hints that name a place */
    struct roll_digest stood;                    /* hints that somebody stands */
    struct roll_digest named;                    /* a hint of each communicator that is hinted at */
    bool said, told;                             /* the engine has said something, and of somebody, or for certain */
    bool everybody;                              /* all are looked at from the next engine on */
    bool wider;                                  /* others are concerned than the engine has seen */
    bool narrow;                                 /* the engine sees the calls on the communicators of `named` alone */
    bool stalls, stalls_there;                   /* meanwhile it is hinted at that somebody stands, and there */
    uint64_t front;                              /* how far members had come there when it was opened, */
    uint64_t stall_front, stall_ns;              /* and when somebody stood there, or later; since then no further */
    uint64_t since_ns;                           /* when something was said then, else when it was opened */
    bool others;       /* what is hinted at is not only that calls differ, or somebody stands */
    bool broad, hurry; /* no engine does from here on; this one is to be replaced at once */
    uint32_t narrows;  /* engines that did */
    uint64_t opened_ns, now;
    uint32_t from[SPANS];      /* of the first of `wanted`, where its calls are asked for from */
    size_t asked;              /* a narrow engine sees the calls around the first so many of `wanted` */
    uint64_t begin[RANKS_MAX]; /* from which ticket on the engine was fed */
    uint32_t opened;           /* how often an engine was opened */
};

void *nodes_need(void *memory);

/* nodes_scope.c */

/* A communicator is hinted at; calls on it are hinted at to differ. */
bool nodes_is_named(const struct nodes *n, uint64_t key);
bool nodes_differ_there(const struct nodes *n, uint64_t key);
/* The calls on some communicators are not enough. */
void nodes_broaden(struct nodes *n);
bool nodes_ask_everybody(const struct nodes *n);
bool nodes_is_concerned(const struct nodes *n, const struct rank_node *k);
/* The communicator of this record, by its key; 0: it is not known. */
uint64_t nodes_key(const struct rank_node *k, const struct roll_record *rec);
/* The first call of the window that may differ, as root_case_ask.c says it. */
uint32_t nodes_hinted_from(const struct nodes *n, const struct roll_digest_hint *h);
/* Which calls on a communicator a narrow engine sees: from *first on, before *high (root_case_ask.c, agent_narrow.c).
 */
bool nodes_range(const struct nodes *n, uint64_t key, uint32_t *first, uint32_t *high);
/* The call is on a communicator whose calls differ, around these, and no message. */
bool nodes_is_kept(const struct nodes *n, const struct rank_node *k, const struct roll_record *rec);
/* A wrong call is hinted at that a narrow engine does not see. */
bool nodes_is_beyond(const struct nodes *n, const struct roll_digest_hint *h);
/* These two as the root's (root_case_ask.c). */
uint64_t nodes_front(const struct nodes *n);
bool nodes_are_about_calls(const struct nodes *n);

/* nodes_engine.c */

/* Feeds a record to the engine, to a narrow one under a number of its own, as an agent numbers them (agent_narrow.c).
 */
void nodes_feed_one(struct nodes *n, struct rank_node *k, struct roll_record rec);
/* A narrow engine is told of no loss but that one of the calls that it would see may be among those that are gone. */
void nodes_lose(struct nodes *n, struct rank_node *k);
/* The hints of this moment ask for records that the engine has not been given. */
bool nodes_lack(struct nodes *n);
/* Everybody's newest records go to an engine, and from here on all that comes. */
void nodes_open_engine(struct nodes *n, uint64_t now);

#endif
