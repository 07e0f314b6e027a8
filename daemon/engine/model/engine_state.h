/*
 * engine_state.h: the engine itself: all sources and communicators of one run, and what is kept about the run as a
 * whole.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_ENGINE_STATE_H
#define ROLL_DAEMON_ENGINE_MODEL_ENGINE_STATE_H

#include "daemon/base/map.h"
#include "daemon/engine/model/due.h"
#include "daemon/engine/model/model.h"
#include "trace/control.h"

struct doubt;
struct tensors;
struct judge_ask;

/* A finding that has been said. It is kept as long as the run, because it may be taken back or said better. */
struct told {
    uint64_t number;
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    bool retired; /* a later verdict has superseded, confirmed or withdrawn it */
    uint64_t comm_key;
    char comm_label[ROLL_NAME_BYTES];
    uint32_t comm_size;
    uint64_t seq;
};

/* A line of the job's own Python: line.c. */
struct python_line {
    char file[ROLL_NAME_BYTES]; /* without its folder */
    char function[96];
    uint32_t number; /* from 1; 0: not known */
};

/* What the job calls a process group, whose communicators have this label and size: line.c. */
struct group {
    char label[ROLL_NAME_BYTES], name[ROLL_NAME_BYTES]; /* name "": the job gave none */
    uint32_t size;
    bool is_own;             /* the name is the job's own word, and no description of PyTorch's */
    struct python_line line; /* that made it */
};

struct file_name {
    char name[ROLL_NAME_BYTES];
};

/* What has been said or remembered under one key: say_once, say_remember. */
struct said_key {
    uint64_t number; /* the verdict that is remembered; 0 = none */
    bool forgotten;  /* the cause may be said again */
};

#define FOUND_KEPT 32u
/* A finding for which ranks may wait: where it was, and whom it names. */
struct found {
    uint64_t number;
    uint64_t clock;                            /* patience clock at which it was said */
    uint64_t comm_key[ROLL_VERDICT_SIDES + 1]; /* the communicators that it names; 0 = none */
    struct roll_rankset ranks;                 /* the ranks that it names, where it names no communicator */
};

/* One verdict in the queue of those that are to be fetched. */
struct said {
    struct roll_verdict verdict;
    char *text;
    struct said *next;
};

struct roll_engine {
    struct roll_engine_config config;
    const struct judge_ask *ask;          /* judge/judge.h */
    const struct roll_expected *expected; /* what was rehearsed; NULL: nothing is known */
    uint64_t now;                         /* wall clock of the last tick */
    uint64_t clock;       /* the patience clock (roll_engine_tick), by which `since` and `seen` are told */
    uint64_t calm;        /* the clock of suspicion: the same without the time in which ranks could not run */
    uint32_t starved;     /* permille of the live rank that is starved most */
    uint32_t unheard;     /* live ranks that are not heard */
    uint64_t heard_clock; /* patience clock at which the last of them was heard again */
    uint32_t silences;    /* how often the agent of a rank has fallen silent */
    bool sight_changed;   /* `starved` and `unheard` have to be found anew */
    struct source **source;
    uint32_t sources, live; /* live: those whose processes have not ended */
    size_t source_room;
    uint32_t *newest; /* by rank in the job: 1 + the number of its newest process in `source` */
    size_t newest_room;
    struct comm **comm;
    uint32_t comms;
    size_t comm_room;
    struct comm *first_over, *last_over;   /* those that are over, in the order in which they were: comm_is_over */
    bool (*forget)(struct roll_engine *e); /* comm_forget_one, which stands above those who ask for room */
    struct roll_map comm_at;               /* from the key of a communicator to its number in `comm` */
    struct file_name *file; /* files of Python, lines of the job's own, and process groups that it has named: line.c */
    struct python_line *line;
    struct group *group;
    uint32_t files, lines, groups;
    size_t file_room, line_room, group_room;
    struct roll_map file_at, line_at; /* from an identity (site.c) to its number */
    struct roll_map group_at;         /* from a hash of label and size */
    struct rounds *rounds;            /* what repeats in the calls of one rank: round.c; owned; NULL: no call yet */
    struct variant *variant;          /* a pool: variant.c */
    uint32_t variants;
    uint32_t variant_free; /* 1 + the number of the first free one; 0 = none is free */
    size_t variant_room;
    struct said_key *said_key; /* what has been said, so that one cause gets one verdict */
    uint32_t said_keys;
    size_t said_key_room;
    struct roll_map said_key_at; /* from the key of a cause to its number in `said_key` */
    struct told *told;           /* the findings so far, by rising number */
    uint32_t tolds;
    size_t told_room;
    struct said *out_first, *out_last; /* verdicts that are to be fetched */
    struct said *shown;                /* the verdict that was fetched last */
    uint32_t numbered; /* size of the communicator that has numbered the ranks; 0: they have ranks, or came */
    struct roll_engine_failed failed;
    uint64_t numbers, findings; /* verdicts so far; findings among them that stand */
    uint64_t records, calls, lost;
    uint64_t room;         /* config.memory as it was when the engine was made: parts of it are what a source has */
    uint64_t shared;       /* bytes that the sources have and that are not their own: budget.h */
    uint64_t refusals;     /* how often there was no room for what a source asked for */
    uint32_t no_rooms;     /* sources that are set aside for that: source_lacks_room, as of the last tick */
    bool room_told;        /* a note has said so */
    uint32_t world_told;   /* the largest size of the job that a source has told */
    uint64_t stall_run_ns; /* patience clock of the last stall analysis */
    uint64_t walk_work;    /* ranks that the walk of that analysis came to, each as often as it did */
    uint64_t swept_ns;     /* patience clock of the last sweep of all ranks before such an analysis */
    struct due walk_due;   /* ranks that a stall analysis may begin with: waitgraph.c */
    uint64_t walk_for;     /* what these times were found by: changes of processes and aborts by then */
    uint64_t proc_changes; /* how often the state of a process has changed */
    struct found found[FOUND_KEPT]; /* the newest findings for which ranks may wait; a ring */
    uint32_t founds;
    uint64_t trouble_ns;   /* patience clock at which the newest trouble that ranks are stuck in became known */
    uint64_t trouble_wall; /* wall clock at that moment */
    uint64_t enrolled;     /* members of all communicators of which something has come, and processes that came back */
    uint64_t wall;         /* the time of the job by its records: silence.c */
    uint64_t wall_clock;   /* 1 + the patience clock at which `wall` was found */
    uint64_t wall_records; /* records that had come by then */
    uint32_t visit;        /* stall analysis: number of the run */
    uint64_t effort; /* members and log entries that analyses have looked at; tests count them to see their bounds */
    uint64_t looks;  /* ranks that ticks, and members that come in, have looked at, for the same purpose */
    uint32_t held_comms;  /* communicators with a disagreement that is being judged */
    uint32_t muted_comms; /* communicators that are silent: silence.c */
    uint64_t mutes;       /* how often a communicator has fallen silent */
    uint32_t ended;       /* processes that have ended, one way or another */
    uint32_t aborts;      /* members that have aborted their communicator */
    bool mute_fresh;      /* a communicator has been silenced since silence_settle ran */
    bool finishing;       /* no more input will come: roll_engine_finish */
    bool dirty;           /* calls may have become complete since the last whole sweep */
    uint64_t *stirred; /* a bit for each source whose calls may have become complete since it was looked at: sweep.c */
    uint32_t *stirred_queues; /* by source: those of its queues (queue_bit) of which that is so */
    size_t stirred_room, stirred_queues_room;
    uint32_t stirs;                                /* how many bits are set */
    struct doubt *doubt;                           /* suspicions that may still come to nothing, oldest first */
    struct roll_rankset view_members, view_behind; /* roll_engine_comm lends them */
    uint64_t moe_layers[ROLL_CONTROL_LAYERS / 64]; /* a bit for each MoE layer of which a rank has told: layers.c */
    uint32_t moe_first;                            /* the first step of which one has told, where moe_told */
    bool moe_told, moe_whole;                      /* moe_whole: those who are heard have no other layers */
    struct tensors *tensors;                       /* what the job says that its collectives carry: tensors.c; owned */
    uint32_t tensors_used;
    size_t tensors_room;
    struct roll_map tensors_at;    /* from label, size and count to their place there */
    struct roll_map tensors_named; /* names that are known, by their hashes */
    void **state;                  /* what detectors keep of the run: detect/state.h */
};

/* layers.c: which MoE layers the job has. Takes a record of class MOE. */
void layers_note(struct roll_engine *e, const struct roll_record *rec);

/* tensors.c: names of what collectives carry */

#define TENSORS_BYTES ROLL_VERDICT_TENSORS_BYTES
/* Takes a definition of a name (ROLL_DEF_NAME). 0, NOMEM. */
int tensors_define(struct roll_engine *e, const struct roll_def *def);
/* What a collective of `count` elements on a communicator of this label and size carries; "" = not known. */
void tensors_text(const struct roll_engine *e, const char *label, uint32_t size, uint64_t count, char *out,
                  size_t room);
void tensors_free(struct roll_engine *e);

/* Calls in these queues (queue_bit) of the source with this number may have become complete. */
static inline void source_stir_queues(struct roll_engine *e, uint32_t source, uint32_t queues)
{
    uint64_t bit = 1ull << source % 64;
    e->stirs += (e->stirred[source / 64] & bit) == 0;
    e->stirred[source / 64] |= bit;
    e->stirred_queues[source] |= queues;
}

/* The same for all its queues. */
static inline void source_stir(struct roll_engine *e, uint32_t source)
{
    source_stir_queues(e, source, ALL_QUEUES);
}

static inline void comm_stir_at(const struct comm *c, uint32_t rank)
{
    const struct seat *at = &c->seat[rank];
    if (at->queues != 0) { /* else it has no calls here that could become complete */
        source_stir_queues(c->engine, at->source, at->queues);
    }
}

static inline void member_stir(const struct member *m)
{
    comm_stir_at(m->comm, (uint32_t)m->rank);
}

/* Messages of both sides of this pair may have become complete. */
static inline void pair_stir(const struct pair *p)
{
    member_stir(&p->comm->member[p->end[0]]);
    member_stir(&p->comm->member[p->end[1]]);
}

/* Calls of all members of this communicator may have become complete. */
static inline void comm_stir(const struct comm *c)
{
    for (uint32_t r = 0; r < c->size; r++) {
        comm_stir_at(c, r);
    }
}

#endif
