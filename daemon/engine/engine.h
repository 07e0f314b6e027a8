/*
 * engine.h: the matcher and its detectors. The engine is pure: records, definitions, process states and time go in, and
 * verdicts come out.
 *
 * It has no threads, no input or output, no clock and no randomness. The live daemon, the post-mortem analyzer, the
 * catalogue and the simulations all run this code, and the same input in the same order gives the same verdicts, byte
 * for byte.
 *
 * One engine watches one run (job, restart). A source is one rank process, and so one ring. All times are ns of the
 * wall clock (CLOCK_REALTIME), converted by the feeder with the clock pair of each ring. One thread per engine.
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
struct roll_expected;

struct roll_engine_config {
    uint64_t stall_ns;       /* after this time an incomplete operation is looked into; 0 = 500 ms */
    uint64_t suspect_ns;     /* after this time without news a rank may be suspected; 0 = 5 s */
    uint32_t window;         /* operations kept per communicator; 0 = 4096 */
    uint64_t memory;         /* bytes that its sources share for what they ask for beyond what they send; 0 = 512 MiB */
    enum roll_policy policy; /* ADVISE and AUTO add the command of the remedy to a text */
};

/* Who a source is. Strings are copied. */
struct roll_source_info {
    uint64_t stream;    /* epoch of its ring */
    int32_t world_rank; /* -1: numbered as the first communicator of all sources does, by order of opening before */
    int32_t world_size;
    int32_t local_rank;
    uint32_t pid;
    const char *host;
    const char *exe;
};

#define ROLL_VERDICT_TENSORS_BYTES 208u

/* One side of a disagreement: ranks that did the same. */
struct roll_verdict_side {
    struct roll_rankset ranks; /* as ranks in the job */
    struct roll_record rec;    /* the call of one of them, with enter_ns in wall clock; op NONE: they did nothing */
    uint32_t source;           /* the source of that call, which its call-site id belongs to */
    bool has_last_step;        /* there is no such call, but one rank, and its newest record told a step: */
    uint32_t last_step;
    char tensors[ROLL_VERDICT_TENSORS_BYTES]; /* what that call carries, as the job names it; "" = not known */
};
#define ROLL_VERDICT_SIDES 4
#define ROLL_VERDICT_MAYBE 4
#define ROLL_SEQ_NONE      UINT64_MAX /* of a verdict about no call: other tools tell of ranks and times alone */

/* One verdict. The engine owns everything in it, until the next call of roll_engine_next. */
struct roll_verdict {
    uint64_t number; /* from 1 */
    enum roll_verdict_code code;
    enum roll_certainty certainty;
    uint64_t
        time_ns; /* engine time, that of the last tick, when it was said; the feeder shows its wall clock instead */
    uint64_t event_ns; /* wall clock of the first call shown as evidence; for a death, of the rank's last call */
    struct roll_rankset culprits; /* as ranks in the job; empty where nobody can be named (the text of a tie says so) */
    uint64_t comm_key;            /* 0 = no communicator */
    char comm_label[ROLL_NAME_BYTES];
    char comm_name[128];         /* the communicator for people, as words_comm writes it; "" = none */
    char comm_made[160];         /* how the communicator was made; "" = not known */
    char comm_place[200];        /* the job's line that made it: "train.py:91 main"; "" = not known */
    uint32_t comm_made_source;   /* the source whose call made it: of the lowest rank on it of which that is known */
    uint16_t comm_made_callsite; /* the call site of that call, by that source's own id; 0 = not known */
    uint32_t comm_size;
    uint64_t seq;                                      /* the sequence number on the communicator, or ROLL_SEQ_NONE */
    const char *field;                                 /* the argument that differs: "count", "op", ...; "" = none */
    struct roll_verdict_side side[ROLL_VERDICT_SIDES]; /* the culprits first, then the majority */
    uint32_t sides;
    struct roll_rankset waiting;      /* the ranks that wait for the culprits */
    uint32_t step, microbatch, layer; /* ROLL_STEP_NONE, 0, ROLL_LAYER_NONE = not known */
    uint32_t step_learned;            /* how often the job has gone round its loop, as its calls show; 0 = not known */
    struct roll_rankset layers; /* all MoE layers concerned, where there are some; `layer` showed the mistake first */
    enum roll_phase phase;
    uint32_t remedy;  /* the bit of a remedy that would help; 0 = none */
    bool remedied;    /* a remedy has acted already */
    const char *text; /* the explanation: plain words, one paragraph */
    /*
     * The life of a verdict. At most one of these three numbers is not 0, and that one names an earlier verdict, which
     * counts as a finding no more. This verdict says better what was wrong (supersedes), proves it (confirms), or says
     * that nothing was (withdraws; then this verdict is a note, and no finding).
     */
    uint64_t supersedes, confirms, withdraws;
    enum roll_verdict_code may_be[ROLL_VERDICT_MAYBE]; /* codes besides `code` that the records do not exclude yet */
    uint32_t may_bes;
};

/* A new engine; NULL: no memory. Borrows config, which is copied. */
roll_engine_t *roll_engine_new(const struct roll_engine_config *config);
/* Sets another patience (0 = the engine's own) and policy from here on. The window stays, and so does what was said. */
void roll_engine_set(roll_engine_t *engine, const struct roll_engine_config *config);
/* How the engine is set, with its own numbers in the place of zeros. */
void roll_engine_settings(const roll_engine_t *engine, struct roll_engine_config *out);
void roll_engine_destroy(roll_engine_t **engine);

/* What was rehearsed of this job (daemon/engine/expected.h), before the first record; NULL: nothing. Borrowed for the
 * life of the engine. */
void roll_engine_expect(roll_engine_t *engine, const struct roll_expected *expected);

/* Opens a new source. *source: its number, from 0. Errors: NOMEM, LIMIT. */
int roll_engine_open(roll_engine_t *e, const struct roll_source_info *info, uint32_t *source);
/* Sets the clock pair of a source: wall clock = monotonic + offset_ns (which wraps as two's complement). To be called
 * before the source's first record. */
int roll_engine_clock(roll_engine_t *e, uint32_t source, int64_t offset_ns);
/*
 * The wall clock of the source's host was set, and stands at monotonic `mono_ns` + offset_ns now: what people are shown
 * of the source bears that time from here on. What calls are judged by keeps the clock that the source came with,
 * unless the new one is nearer to the engine's time, which no clock that is set moves, or nothing of the source has
 * come yet: so that calls of before and after such a step compare, and a host whose clock was wrong is not taken for
 * one that lags for ever. Errors: ARG.
 */
int roll_engine_clock_set(roll_engine_t *e, uint32_t source, int64_t offset_ns, uint64_t mono_ns);
/*
 * The newest record of a source that has been fed just now was written so long ago, and nothing since: its silence, and
 * that its host is inside a call, began then, as far as the engine's clock goes back. Errors: ARG.
 */
int roll_engine_quiet(roll_engine_t *e, uint32_t source, uint64_t quiet_ns);
/* Feeds a definition of a source, before the records that use it. Late definitions are tolerated. */
int roll_engine_define(roll_engine_t *e, uint32_t source, const struct roll_def *def);
/*
 * A source is no ring but a snapshot: the calls that a rank had issued when somebody else's tool wrote them down.
 * Nothing is known of where its host stands, and what happened later is not known either: what rests on its silence is
 * suspected, and the text says no more than that its calls end there. there false: of this rank nobody has written
 * anything, and all that is known is that it belongs to the job. Before the source's first record. Errors: ARG.
 */
int roll_engine_snapshot(roll_engine_t *e, uint32_t source, bool there);
/*
 * Where a source of which only the newest calls are known comes in on a communicator: it has made its collectives below
 * `next`, whatever they were. sure false: it may have made more than its records show, and nobody says that it lacks
 * one. To be called for each communicator of each such source when all are defined and before the first record; numbers
 * may begin anywhere. Errors: ARG (no such communicator).
 */
int roll_engine_place(roll_engine_t *e, uint32_t source, uint16_t comm, uint32_t next, bool sure);
/* The same of one direction between two members: the source's next send to `peer` (op SEND), or its next receive from
 * it (op RECV), has number `next`; those before are of no interest. Errors: ARG, NOMEM; LIMIT: refused, as below. */
int roll_engine_place_messages(roll_engine_t *e, uint32_t source, uint16_t comm, enum roll_op op, uint32_t peer,
                               uint32_t next);
/* The same where how many of its messages are no captured ones, `made`, is known as well: then messages of the two
 * sides meet by their numbers, wherever each side comes in. To be called for both sides. made UINT32_MAX: that is not
 * known, and the pair is not matched. */
int roll_engine_place_made(roll_engine_t *e, uint32_t source, uint16_t comm, enum roll_op op, uint32_t peer,
                           uint32_t next, uint32_t made);
/* The source has made so many CommSplit calls on this communicator before. Errors: ARG. */
int roll_engine_place_splits(roll_engine_t *e, uint32_t source, uint16_t comm, uint32_t splits);
/*
 * What the job calls a process group. A source that knows names which are not those of NCCL tells them so: a rehearsal
 * by the notes of its Python, a dump by its description of the group. Strings are borrowed and copied; NULL = "".
 */
struct roll_group_name {
    const char *label; /* the label that its communicators have (ncclConfig_t.commName; PyTorch: the group's number) */
    uint32_t size;     /* ranks that the job believes it to have */
    const char *name;  /* PyTorch: group_desc; "default_pg" is shown as "default group", "undefined" as none */
    const char *file, *function; /* the job's own line that made it, where that is known better than by call sites */
    uint32_t line;               /* 0 = not known */
    bool is_own;                 /* the job's own word for the group, which beats a description */
};
/* Tells a name, which counts for communicators of this label and size, also for those that are there already. The first
 * name counts, and the first one of the job's own beats descriptions. 0, NOMEM. */
int roll_engine_group(roll_engine_t *e, const struct roll_group_name *group);
/* Feeds records of a source in the order of their tickets, or updates (a known ticket with a later state). */
int roll_engine_feed(roll_engine_t *e, uint32_t source, const struct roll_record *recs, size_t n);
/* Tickets [first, first+count) of a source are lost for good. */
int roll_engine_lost(roll_engine_t *e, uint32_t source, uint64_t first, uint64_t count);
/*
 * The members' calls [first, upto) of a communicator differ by what somebody has heard who has no records of them, and
 * the records are not to be had any more. Says a note of it. 0; NOTFOUND (no such communicator).
 */
int roll_engine_unjudged(roll_engine_t *e, uint64_t comm_key, uint32_t first, uint32_t upto);
/*
 * Says a note (agent-silent) where ranks wait for members of whom nothing is known while there are ranks whose agents
 * are silent, and of whose communicators nothing has come: they may be those members. 0; NOTFOUND: there is nothing to
 * say.
 */
int roll_engine_silent(roll_engine_t *e);
/* Tells what has become of the process behind a source. */
int roll_engine_process(roll_engine_t *e, uint32_t source, enum roll_proc_state state, int32_t exit_status);
/* What an agent saw that is in no ring: a process in which NCCL is at work, but of which no call was seen. Borrowed. */
struct roll_engine_note {
    uint32_t pid;
    int32_t world_rank; /* -1 = unknown */
    const char *host, *exe;
    const char *reason; /* why NCCL must be at work there: "threads named NCCL Service" */
};
/* Says one note (attached-unseen) for each such process. Errors: ARG, NOMEM. */
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
    size_t more; /* how many facts are not among these */
};
/*
 * Feeds such facts. When all nodes of the ranks in question have answered, or some time after the first, a verdict with
 * their facts takes the place of the earlier one. Facts about another verdict are ignored. Errors: ARG.
 */
int roll_engine_facts(roll_engine_t *e, const struct roll_engine_facts *facts);
/* How well a source is seen, and how freely it runs. A source begins heard and not starved. */
struct roll_engine_sight {
    bool heard;       /* false: the agent is silent, and what the rank has done since its last record is not known */
    uint32_t starved; /* permille of the last time in which the rank, or what works for it, wanted a CPU and had none */
    bool aside;       /* with heard false: its records were not asked for, because others are looked at. Nothing is
                         evidence against it, and the others are judged as if everybody were heard: whoever leaves a
                         rank aside answers for it that they do not wait for that rank */
};
/*
 * Tells how a source is seen. A suspicion rests on time without news, which means something only of a rank that is
 * heard and is let run: a rank that is not heard is never suspected, and the more the most starved rank of the run is
 * starved, the more slowly the time for suspicion passes. Errors: ARG.
 */
int roll_engine_sight(roll_engine_t *e, uint32_t source, const struct roll_engine_sight *sight);
/* Time passes. An earlier time than that of the last tick is ignored. */
int roll_engine_tick(roll_engine_t *e, uint64_t now_ns);
/* No more input will come (analyze, end of a job): everything that can be decided now is decided. */
int roll_engine_finish(roll_engine_t *e);

/* The next verdict, or NULL. Borrowed until the next call of any engine function. */
const struct roll_verdict *roll_engine_next(roll_engine_t *e);

/*
 * A source may ask for more than it sends: members, windows, tables. What there was no room for (config.memory, of
 * which a source gets half) is refused and counted, the source is set aside, and a note says so once: it is never a
 * culprit, and nothing is proven from there on. How often that happened to one source; false: there is no such source.
 */
bool roll_engine_refused(const roll_engine_t *e, uint32_t source, uint64_t *count);
/* The same of all sources. */
uint64_t roll_engine_refusals(const roll_engine_t *e);
/* Bytes that the sources have beyond their own. */
uint64_t roll_engine_shared(const roll_engine_t *e);
/* Sets config.memory anew: what is there stays. */
void roll_engine_room(roll_engine_t *e, uint64_t memory);

/* Calls of NCCL that returned an error, and the first of them. */
struct roll_engine_failed {
    uint64_t calls;
    uint64_t first_ns; /* wall clock at which the first was entered */
    uint32_t rank;     /* of the first: its world rank, what it called, and its ncclResult_t */
    uint8_t op, result;
};
/* Adds those of `more` to `sum`. Pure. */
void roll_engine_failed_add(struct roll_engine_failed *sum, const struct roll_engine_failed *more);

struct roll_engine_summary {
    uint64_t calls; /* NCCL calls recorded, MOE and SYNC records not counted */
    uint64_t records;
    uint64_t verdicts; /* all */
    uint64_t findings; /* verdicts that are suspected, predicted or proven, and still stand */
    uint64_t lost;     /* records */
    uint32_t sources, comms;
    uint32_t sources_live;
    uint32_t incomplete;  /* operations that some but not all members have issued */
    uint32_t step;        /* the furthest that a rank has told; else learned (model/round.c); ROLL_STEP_NONE */
    bool step_is_learned; /* about so many: from what repeats in the calls of one rank */
    struct roll_engine_failed failed;
};
/* Looks at every source and every call that is not complete: for somebody who asks, not for each frame. */
void roll_engine_summary(const roll_engine_t *e, struct roll_engine_summary *out);
/* `sources` and `sources_live` of it, at no cost. */
uint32_t roll_engine_sources(const roll_engine_t *e);
uint32_t roll_engine_live(const roll_engine_t *e);

/* For the faces (top, why, metrics): read-only views. Strings and sets are borrowed until the next feeding call. */
struct roll_view_source {
    struct roll_source_info info;
    enum roll_proc_state proc;
    int32_t exit_status;
    uint64_t records, calls, lost;
    uint64_t last_ns;        /* wall clock of the source's last record that is no poll */
    struct roll_record last; /* the rank's last call of NCCL */
    uint64_t last_comm_key;
    const char *state;   /* how far `last` has come: "entered", "refused", "captured", "in group", "in progress",
                            "complete", "returned" */
    bool in_call;        /* a thread of the rank has entered a call and not left it */
    enum roll_op inside; /* that call, the oldest: one of NCCL or a wait of the host; NONE: it is not known, or none */
    bool heard;          /* false: the agent is silent, and nothing is known of the rank since last_ns */
    uint32_t pending;    /* operations that the rank has issued and that are incomplete */
    uint32_t step;
    uint32_t first_step; /* the step that its first record told which told one; ROLL_STEP_NONE: none did */
};

/* What the members of a communicator have called there, and moved, as passed by the callers. */
struct roll_view_traffic {
    uint64_t calls, bytes;
    uint64_t step_calls, step_bytes; /* those of them that told their step */
    uint64_t ops;                    /* a bit for each of their operations */
};
struct roll_view_comm {
    uint64_t key;
    char label[ROLL_NAME_BYTES];
    char role[16];               /* a guess: "dp", "ep", ...; "" = none */
    char name[128];              /* what people call it: "default group", "mesh_dp", "group 3", the label; else its
                                    members: "ranks 0-3" */
    bool named;                  /* the name is one that the job gave */
    char place[200];             /* the job's line that made it: "train.py:91 main"; "" = not known */
    enum roll_op made_by;        /* NONE = not known */
    uint64_t family;             /* the same for communicators that are one thing of the program many times */
    uint32_t stride;             /* distance between the ranks of its members; 0 = they have no common one */
    uint64_t parent_key;         /* 0 = none */
    int32_t color;               /* ROLL_COLOR_NONE = none */
    uint32_t believed;           /* ranks that the job believes it to have, where some are stood in for; else 0 */
    uint32_t made_source;        /* the source of the call that made it */
    uint16_t made_callsite;      /* by that source's own id; 0 = not known */
    uint32_t size, seen;         /* members, and members that have a source */
    uint64_t done;               /* collectives that all members have issued */
    uint64_t ahead;              /* the highest sequence number that some member has issued, plus 1 */
    struct roll_rankset members; /* as ranks in the job */
    struct roll_rankset behind;  /* those that have not issued collective `done` yet while others have */
    struct roll_view_traffic traffic;
};
/* Who is slowest: by how much later than the median rank a rank comes to the calls that were looked at, counted from
 * the return of all hosts from the call before (detect_straggler.c). */
struct roll_view_slowest {
    uint32_t rank;        /* in the job */
    uint64_t late_ns;     /* how late it comes, mean of all looks */
    uint64_t interval_ns; /* from one such call to the next, mean */
    uint64_t looks;
};
/* False: no two calls could be compared, because no hosts wait between them or no rank was looked at. */
bool roll_engine_slowest(const roll_engine_t *e, struct roll_view_slowest *out);

/* Fills in the view of source i, or of communicator i, from 0. False: there is none. */
bool roll_engine_source(const roll_engine_t *e, uint32_t i, struct roll_view_source *out);
/* The same with `pending` at most 1: to count more, all calls of the source have to be looked through. */
bool roll_engine_source_brief(const roll_engine_t *e, uint32_t i, struct roll_view_source *out);
/* The same for the newest process of a rank of the job. */
bool roll_engine_rank(const roll_engine_t *e, uint32_t world_rank, struct roll_view_source *out);
bool roll_engine_comm(const roll_engine_t *e, uint32_t i, struct roll_view_comm *out);
/* How many collectives all members of the communicator with this key have issued; 0 when it is not known. */
uint64_t roll_engine_done(const roll_engine_t *e, uint64_t key);
/* Something has come of each member of the communicator with this key; false also where there is no such. */
bool roll_engine_has_all(const roll_engine_t *e, uint64_t comm_key);

/* Whether the communicator with this key is known. */
bool roll_engine_knows(const roll_engine_t *e, uint64_t comm_key);
/* Adds the MoE layers (those that a control page has a place for) that ranks have reported, and says whether others
 * are to be doubted: false until a rank has come two steps on, and in a job that does not tell its steps. A stage of
 * which nothing has been heard may have others all the same. */
bool roll_engine_layers(const roll_engine_t *e, struct roll_rankset *layers);

/* Adds the ranks whose calls the calls in this rank's way lack; none where the rank goes on or everybody has made them.
 */
void roll_engine_awaited(roll_engine_t *e, uint32_t world_rank, struct roll_rankset *out);
/* When the rank issued the oldest of its calls on this communicator that are incomplete, in ns of the wall clock of its
 * host. 0: none is. Costs what the rank's streams hold, whatever the number of ranks. */
uint64_t roll_engine_incomplete_since(const roll_engine_t *e, uint32_t world_rank, uint64_t comm_key);

/*
 * Says why a rank of the job does not go on, in one paragraph of plain words: what the rank issued last, for what and
 * for whom that call waits, and what those ranks are doing. Writes at most `size` bytes, with the end mark. Returns the
 * length of the whole text; ROLL_E_NOTFOUND.
 */
int roll_engine_why(roll_engine_t *e, uint32_t world_rank, char *out, size_t size);
/*
 * A suspicion that ripens: for a rank that waits and about whose wait nothing has been found, how long it must go on
 * until it is suspected, and how much of that counts so far. alone: a part of a sentence that stands by itself ("rank 3
 * has not made ..."); else a sentence behind that of roll_engine_why. For somebody who has asked why just before, or
 * does not mind that calls which have been completed meanwhile seem to wait. Returns the length; ROLL_E_NOTFOUND:
 * nothing ripens there.
 */
int roll_engine_ripening(roll_engine_t *e, uint32_t world_rank, bool alone, char *out, size_t size);
/* A key of how a rank stands: ranks that stand alike have the same; 0: there is no such rank. */
uint64_t roll_engine_why_key(roll_engine_t *e, uint32_t world_rank);
/* The keys of n ranks: what they lack in common is looked up once. */
void roll_engine_why_keys(roll_engine_t *e, const uint32_t *world_rank, size_t n, uint64_t *key);
/* The same paragraph about ranks that stand alike, with the numbers of the first where theirs differ. */
int roll_engine_why_alike(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size);
/* The same for somebody who has asked for keys just before, and has fed nothing since: what is complete is known. */
int roll_engine_why_told(roll_engine_t *e, const struct roll_rankset *ranks, char *out, size_t size);

#endif
