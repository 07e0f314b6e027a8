/*
 * engine_state.h: the engine itself: all sources and communicators of one run, and what is kept about the run as a
 * whole.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_ENGINE_STATE_H
#define ROLL_DAEMON_ENGINE_MODEL_ENGINE_STATE_H

#include "daemon/base/map.h"
#include "daemon/engine/model/model.h"

struct doubt;
struct judge_ask;

/* A finding that has been said, for as long as the run: it may be taken back, or said better. */
struct told {
    uint64_t number;
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    bool retired; /* superseded, confirmed or withdrawn */
    uint64_t comm_key;
    char comm_label[ROLL_NAME_BYTES];
    uint32_t comm_size;
    uint64_t seq;
};

/* What a key stands for: said (and by which verdict, where that is remembered). */
struct said_key {
    uint64_t number; /* 0 = none */
    bool forgotten;  /* it may be said again */
};

/* A finding that somebody may wait for: where, and who. */
#define FOUND_KEPT 32u
struct found {
    uint64_t number;
    uint64_t clock;                            /* patience */
    uint64_t comm_key[ROLL_VERDICT_SIDES + 1]; /* 0 = none */
    struct roll_rankset ranks;                 /* those it names; only where it has no communicator */
};

struct said { /* one verdict in the queue */
    struct roll_verdict verdict;
    char *text;
    struct said *next;
};

struct roll_engine {
    struct roll_engine_config config;
    const struct judge_ask *ask; /* judge/judge.h */
    uint64_t now;                /* wall clock of the last tick */
    uint64_t clock;              /* patience: see roll_engine_tick; all `since` and `seen` are on it */
    uint64_t calm; /* suspicion: the same, but for the time in which ranks could not run; all `calm` are on it */
    uint32_t starved, unheard; /* permille of the live rank that is starved most; live ranks that are not heard */
    uint32_t silences;         /* how often ranks have fallen silent */
    bool sight_changed;        /* `starved` and `unheard` have to be found anew */
    struct source **source;
    uint32_t sources;
    size_t source_room;
    uint32_t *newest; /* by world rank: index + 1 of its newest process */
    size_t newest_room;
    struct comm **comm;
    uint32_t comms;
    size_t comm_room;
    struct roll_map comm_at; /* from the key of a communicator to its number in `comm` */
    struct variant *variant;
    uint32_t variants, variant_free;
    size_t variant_room;
    struct said_key *said_key; /* what has been said: one verdict for each cause */
    uint32_t said_keys;
    size_t said_key_room;
    struct roll_map said_key_at; /* from the key of a cause to its number in `said_key` */
    struct told *told;           /* the findings so far, by rising number */
    uint32_t tolds;
    size_t told_room;
    struct said *out_first, *out_last, *shown;
    uint64_t numbers, findings;
    uint64_t records, calls, lost;
    uint64_t stall_run_ns;          /* patience clock of the last stall analysis */
    struct found found[FOUND_KEPT]; /* the newest findings that somebody may wait for; a ring */
    uint32_t founds;
    uint64_t trouble_ns;   /* patience clock at which the newest trouble that ranks are stuck in became known */
    uint64_t trouble_wall; /* and wall clock */
    uint64_t enrolled;     /* members that have been heard for the first time, of all communicators */
    uint64_t wall;         /* time of the job by its records, as found at `wall_clock`: silence.c */
    uint64_t wall_clock;   /* patience clock of that, plus one */
    uint64_t wall_records; /* and how many records had come */
    uint32_t visit;
    uint64_t effort; /* members and log entries that analyses have looked at so far: tests of their bounds count it */
    uint32_t held_comms; /* communicators with a held slot */
    uint32_t muted_comms;
    uint32_t ended, aborts; /* processes that have ended, one way or another; members that have aborted */
    bool mute_fresh, finishing, dirty;
    struct doubt *doubt;                           /* suspicions that may still come to nothing, oldest first */
    struct roll_rankset view_members, view_behind; /* lent by roll_engine_comm */
    void **state;                                  /* what detectors keep of the run: detect/state.h */
};

#endif
