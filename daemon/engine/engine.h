/*
 * engine.h: the matcher and its detectors. Pure: records, definitions, process states and time go in, verdicts come
 * out.
 *
 * No threads, no input or output, no clock, no randomness: the live daemon, the post-mortem analyzer, the catalogue and
 * simulations all run this code, and the same input in the same order gives the same verdicts, byte for byte.
 *
 * One engine watches one run (job, restart). A "source" is one rank process, i.e. one ring. All times are wall-clock ns
 * (CLOCK_REALTIME), converted by the feeder with each ring's clock pair. One thread per engine.
 */
#ifndef ROLL_DAEMON_ENGINE_ENGINE_H
#define ROLL_DAEMON_ENGINE_ENGINE_H

#include "trace/def.h"
#include "trace/fact.h"
#include "trace/frame.h"
#include "trace/op.h"
#include "trace/rankset.h"
#include "trace/record.h"
#include "trace/remedy.h"
#include "trace/verdict.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct roll_engine roll_engine_t;

struct roll_engine_config {
    uint64_t stall_ns;       /* an incomplete operation is looked into after this long; 0 = 500 ms */
    uint64_t suspect_ns;     /* "busy elsewhere" is only said after this long; 0 = 5 s */
    uint32_t window;         /* operations kept per communicator for alignment; 0 = 4096 */
    enum roll_policy policy; /* ADVISE and AUTO add the remedy's command to the text */
};

/* Who a source is. Strings are copied. */
struct roll_source_info {
    uint64_t stream;    /* epoch of its ring */
    int32_t world_rank; /* -1: numbered by order of opening */
    int32_t world_size;
    int32_t local_rank;
    uint32_t pid;
    const char *host;
    const char *exe;
};

/* One side of a disagreement: these ranks did this. */
struct roll_verdict_side {
    struct roll_rankset ranks; /* world ranks */
    struct roll_record rec;    /* an example of what they did, with enter_ns in wall clock; op NONE = nothing */
    uint32_t source;           /* the source that rec, and its call-site id, belong to */
};
#define ROLL_VERDICT_SIDES 4
#define ROLL_VERDICT_MAYBE 4

/* One verdict. Everything in it is owned by the engine until the next call of roll_engine_next. */
struct roll_verdict {
    uint64_t number; /* from 1 */
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    uint64_t time_ns; /* engine time when it was said, that of the last tick; the feeder shows its wall clock instead */
    uint64_t event_ns;            /* wall clock of the first call shown as evidence, of the rank's last for a death */
    struct roll_rankset culprits; /* world ranks; empty when nobody can be named (a tie says so) */
    uint64_t comm_key;            /* 0 = no communicator */
    char comm_label[ROLL_NAME_BYTES];
    char comm_name[128];         /* for people: words_comm without the word; "" none */
    char comm_made[160];         /* how it was made; "" not known */
    uint32_t comm_made_source;   /* and where: */
    uint16_t comm_made_callsite; /* id of the source; 0 = not known */
    uint32_t comm_size;
    uint64_t seq;                                      /* on the communicator */
    const char *field;                                 /* the argument that differs: "count", "op", ...; "" when none */
    struct roll_verdict_side side[ROLL_VERDICT_SIDES]; /* culprits first, then the majority */
    uint32_t sides;
    struct roll_rankset waiting;      /* who waits for the culprits */
    uint32_t step, microbatch, layer; /* ROLL_STEP_NONE, 0, ROLL_LAYER_NONE when unknown */
    struct roll_rankset
        layers; /* all MoE layers concerned, where it is about some; `layer` is the first that showed it */
    enum roll_phase phase;
    uint32_t remedy;  /* remedy bit that would help; 0 = none */
    bool remedied;    /* a remedy has already acted */
    const char *text; /* the explanation, plain words, one paragraph */
    /*
     * The life of a verdict. At most one of these three numbers is not 0, and it names an earlier verdict, which counts
     * as a finding no more: this one says better what was wrong; or the same, which is proven now; or nothing in its
     * place (then this one is a note, and no finding).
     */
    uint64_t supersedes, confirms, withdraws;
    enum roll_verdict_code
        may_be[ROLL_VERDICT_MAYBE]; /* what the records do not exclude yet besides `code`: the class is open */
    uint32_t may_bes;
};

/* Borrows config (copied). NULL when out of memory. */
roll_engine_t *roll_engine_new(const struct roll_engine_config *config);
/* Other patience (0 = the engine's own) and policy from here on; the window stays. What was said stays as it was said.
 */
void roll_engine_set(roll_engine_t *engine, const struct roll_engine_config *config);
/* How the engine is set, its own numbers in the place of zeros. */
void roll_engine_settings(const roll_engine_t *engine, struct roll_engine_config *out);
void roll_engine_destroy(roll_engine_t **engine);

/* A new source. *source is its small number, from 0. Errors: NOMEM, LIMIT. */
int roll_engine_open(roll_engine_t *e, const struct roll_source_info *info, uint32_t *source);
/* The clock pair of a source: wall clock = monotonic + offset_ns (wraps as two's complement). Before its first record.
 */
int roll_engine_clock(roll_engine_t *e, uint32_t source, int64_t offset_ns);
/* A definition of a source; before the records that use it (late ones are tolerated). */
int roll_engine_define(roll_engine_t *e, uint32_t source, const struct roll_def *def);
/* Records of a source, in ticket order, first time or as updates (a ticket seen before, with a later state). */
int roll_engine_feed(roll_engine_t *e, uint32_t source, const struct roll_record *recs, size_t n);
/* Tickets [first, first+count) of a source are lost for good. */
int roll_engine_lost(roll_engine_t *e, uint32_t source, uint64_t first, uint64_t count);
/* What has become of the process behind a source. */
int roll_engine_process(roll_engine_t *e, uint32_t source, enum roll_proc_state state, int32_t exit_status);
/* What an agent saw that is in no ring: a process in which NCCL is at work, and no call of it was seen. Borrowed. */
struct roll_engine_note {
    uint32_t pid;
    int32_t world_rank; /* -1 = unknown */
    const char *host, *exe;
    const char *reason; /* how it is known that NCCL is at work: "threads named NCCL Service" */
};
/* Gives one note (attached-unseen) per process. Errors: ARG, NOMEM. */
int roll_engine_note(roll_engine_t *e, const struct roll_engine_note *note);
/* What the agent of one node found when it was asked because of a verdict. Strings are copied. */
struct roll_engine_fact {
    enum roll_fact kind;
    const char *text; /* a part of a sentence: "GPU 3: Xid 79 (...)" */
};
struct roll_engine_facts {
    uint64_t verdict; /* number of the verdict that made somebody ask */
    const char *host;
    const struct roll_engine_fact *fact;
    size_t facts;
    size_t more; /* that are not among them */
};
/*
 * When all nodes of the ranks in question have answered, or some time after the first, a verdict with what they know
 * takes the earlier one's place. Facts about a verdict that nobody waits for are ignored. Errors: ARG.
 */
int roll_engine_facts(roll_engine_t *e, const struct roll_engine_facts *facts);
/* How well a source is seen, and how freely it runs. A source begins heard and not starved. */
struct roll_engine_sight {
    bool heard;       /* false: its agent is silent, and what its rank has done since its last record is not known */
    uint32_t starved; /* permille of the last time in which it, or what works for it, wanted a CPU and had none */
};
/*
 * Suspicion rests on time without news, so it needs eyes and a rank that is let run: a rank that is not heard is never
 * suspected, and the time for suspicion passes as much more slowly as the most starved rank of the run is starved.
 * Errors: ARG.
 */
int roll_engine_sight(roll_engine_t *e, uint32_t source, const struct roll_engine_sight *sight);
/* Time passes. `now` never goes back (an earlier one is ignored). */
int roll_engine_tick(roll_engine_t *e, uint64_t now_ns);
/* The last word: no more input will come; everything that is decidable now is decided (analyze, end of a job). */
int roll_engine_finish(roll_engine_t *e);

/* The next verdict, or NULL. Borrowed until the next call of any engine function. */
const struct roll_verdict *roll_engine_next(roll_engine_t *e);

struct roll_engine_summary {
    uint64_t calls; /* NCCL calls recorded, MOE and SYNC records not counted */
    uint64_t records;
    uint64_t verdicts; /* all */
    uint64_t findings; /* suspected, predicted, proven; those that still stand */
    uint64_t lost;     /* records */
    uint32_t sources, comms;
    uint32_t sources_live;
    uint32_t incomplete; /* operations that some but not all members have issued */
};
void roll_engine_summary(const roll_engine_t *e, struct roll_engine_summary *out);

/* For the faces (top, why, metrics): read-only views. Strings and sets are borrowed until the next feeding call. */
struct roll_view_source {
    struct roll_source_info info;
    enum roll_proc_state proc;
    int32_t exit_status;
    uint64_t records, calls, lost;
    uint64_t last_ns;        /* wall clock of its last record */
    struct roll_record last; /* its last NCCL call */
    uint64_t last_comm_key;
    const char *state;  /* how far `last` has come: "entered", "refused", "captured", "in group", "in progress",
                           "complete", "returned" */
    bool in_call;       /* entered and not returned */
    bool heard;         /* its agent is; else nothing is known about it since last_ns */
    uint32_t waits_for; /* operations that it has issued and that are incomplete */
    uint32_t step;
};
struct roll_view_comm {
    uint64_t key;
    char label[ROLL_NAME_BYTES];
    char role[16];               /* guess: "dp", "ep", ...; "" when none */
    uint32_t size, seen;         /* members, and members that have a source */
    uint64_t done;               /* collectives that all members have issued */
    uint64_t ahead;              /* highest sequence number that some member has issued, plus one */
    struct roll_rankset members; /* world ranks */
    struct roll_rankset behind;  /* members that have not issued `done` yet while others have */
};
/* i from 0; false when i is out of range. */
bool roll_engine_source(const roll_engine_t *e, uint32_t i, struct roll_view_source *out);
bool roll_engine_comm(const roll_engine_t *e, uint32_t i, struct roll_view_comm *out);

/*
 * Why does this world rank not go on? One paragraph in plain words into out (terminated; at most size bytes): what it
 * issued last, what that waits for, whom, and what those are doing. Returns the length wanted, or ROLL_E_NOTFOUND.
 */
int roll_engine_why(roll_engine_t *e, uint32_t world_rank, char *out, size_t size);
/* Ranks that stand alike have the same key (0: no such rank): one paragraph says it of all of them, with the numbers of
 * the first where they differ. */
uint64_t roll_engine_why_key(roll_engine_t *e, uint32_t world_rank);
int roll_engine_why_alike(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size);

#endif
