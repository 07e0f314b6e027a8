/*
 * feed.h: what a story left, given to an engine in one of many ways, and what the engine says.
 */
#ifndef ROLL_TESTS_SIMULATION_FEED_H
#define ROLL_TESTS_SIMULATION_FEED_H

#include "daemon/engine/engine.h"
#include "tests/simulation/execute.h"

#define FOUND_MAX 24u

struct found {
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    mask_t culprits;
    uint64_t number;
    uint64_t now_ns;                  /* virtual time at which the verdict was said */
    bool withdrawn, superseded;       /* the verdict stands no more: nothing, or a later one, has taken its place */
    enum roll_verdict_code may_be[4]; /* codes that the finding may be besides */
    uint32_t may_bes;
    char *text; /* owned where options ask for texts, else NULL */
};

struct findings {
    struct found found[FOUND_MAX]; /* no notes */
    uint32_t founds;
    bool live;      /* fed as a job runs, with no node late: times mean something */
    bool lossy;     /* records were lost on purpose */
    uint32_t hints; /* why: a bit for each enum roll_digest_why; 0: a process had failed */
    bool looked;    /* an engine saw records: always, but where digests go before it */
    const char *style;
};

struct feed_options {
    bool losses;                 /* records are lost */
    bool texts;                  /* the texts of verdicts are wanted */
    uint32_t patience_s;         /* time that passes after the last record; at least 14 */
    uint32_t levels;             /* of digests before the engine (nodes.h); 0: the engine sees all records */
    uint32_t history;            /* nodes.h */
    bool faults, scoped, narrow; /* nodes.h */
    uint64_t room;               /* roll_engine_config.memory; 0: as in a root */
};
/* Feeds the story once, in the way that `order` chooses. 0, or -1 without memory. */
int feed(const struct program *p, const struct story *s, uint64_t order, const struct feed_options *o,
         struct findings *out);
void findings_fini(struct findings *out);

#endif
