/*
 * root_collect.h: questions to the agents of some ranks, and what comes of them: stacks, calls, lines of source. The
 * root never waits: a query starts a collection and gets its number; whoever has asked asks again for what has come
 * meanwhile. Private to root_*.c; the root's one thread.
 */
#ifndef ROLL_DAEMON_ROOT_ROOT_COLLECT_H
#define ROLL_DAEMON_ROOT_ROOT_COLLECT_H

#include "daemon/root/root_state.h"

/* What is asked for. */
enum roll_collect {
    ROLL_COLLECT_STACKS, /* docs/STACKS.md */
    ROLL_COLLECT_CALLS,  /* docs/WEB.md */
    ROLL_COLLECT_SOURCE,
    ROLL_COLLECTS
};

/* A rank that is asked. */
struct roll_collected {
    int32_t rank;
    uint64_t stream;
    char host[ROLL_NAME_BYTES];
    bool answered;
};

struct roll_collection;
/* What whoever asks wants to hear at once: an answer has come; all have, or will not. Each may be NULL. */
struct roll_collect_hooks {
    void (*came)(roll_root_t *root, const struct roll_collection *c, const struct roll_collected *rank,
                 const json_t *answer);
    void (*done)(roll_root_t *root, const struct roll_collection *c);
};

struct roll_collection {
    enum roll_collect kind;
    uint64_t id;
    uint64_t run;                /* id of the run */
    uint64_t verdict;            /* number of the verdict that it is for; 0 = none */
    struct roll_collected *rank; /* owned */
    size_t ranks, room, answered;
    struct roll_collect_hooks hooks;
    json_t *answers; /* [{"rank","host",MEMBER}] in the order in which they came */
    uint64_t deadline_ns, done_ns;
};

/*
 * Asks the agents of these ranks (borrowed) of the run. options: members of the question besides `op` and `streams`
 * (takes). hooks: borrowed; NULL: none. NULL: no memory, or too many collections of this kind at work. One without
 * ranks is done at once.
 */
struct roll_collection *roll_collect(roll_root_t *root, const struct roll_run *run, enum roll_collect kind,
                                     const struct roll_rankset *ranks, json_t *options, unsigned timeout_ms,
                                     uint64_t verdict, const struct roll_collect_hooks *hooks);
/* The answers from number `from` on, as many as a reply takes: {"done","answers"}. Owned. */
json_t *roll_collect_fetch(const roll_root_t *root, enum roll_collect kind, uint64_t id, size_t from);
/* What has come of the earlier question whose `id` a query has; NULL: it has none, and is a question. Owned. */
json_t *roll_collect_fetched(const roll_root_t *root, enum roll_collect kind, const json_t *query);
/* What a query of this kind that has begun a collection is answered (NULL: it could not begin). Owned. */
json_t *roll_collect_begun(struct roll_collection *c, json_t *ranks_text); /* takes ranks_text */
/* A member of a query as a number from 1 to max. */
unsigned roll_collect_bounded(const json_t *query, const char *key, unsigned otherwise, unsigned max);

#endif
