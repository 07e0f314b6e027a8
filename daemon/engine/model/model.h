/*
 * model.h: what the engine knows of the job, and how this data is kept up. The lowest floor: it knows no other.
 * docs/ENGINE.md explains the model and the floors.
 *
 *   source   one rank process: a log of its calls that may still matter, one queue per stream, the state of its host
 *            threads
 *   comm     one communicator: its members, and a window of slots, one per collective (sequence number)
 *   pair     one (source, destination) of a communicator: a window of nodes, one per message
 *
 * A call is `arrived` on its slot or node when its record has come, and `ready` when everything before it on its stream
 * is complete. A slot whose members are all ready is complete. What never gets complete is what the stall analysis
 * (judge/waitgraph.c) explains.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_MODEL_H
#define ROLL_DAEMON_ENGINE_MODEL_MODEL_H

#include "daemon/engine/engine.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stddef.h>

#define NO_SOURCE        UINT32_MAX
#define NO_SEQ           UINT32_MAX
#define NO_CLOCK         UINT64_MAX
#define NO_TICKET        UINT64_MAX
#define NCCL_IN_PROGRESS 7u  /* ncclInProgress: no error */
#define THREADS_MAX      16u /* host threads followed per source; with more, the source is never called blocked */
#define POLLED_MAX       4u  /* things that one loop of polls is about: interposer/record/thread.h has no more */
#define GROUP_COMMS      16u /* communicators of one group whose streams are joined */
#define ZEROS_MAX        8u  /* zero-count collectives remembered per member */
#define LOG_MIN          256u
#define QUEUE_OF_COMM    4096u /* queue of a communicator's calls whose stream is not known; streams have smaller ids */
#define SLOTS_MIN        64u

struct comm;
struct pair;
struct graph_span;
struct site_table;
struct dispute;
struct lowered;

/* How far a collective is; entry.index. */
enum coll_state {
    COLL_ISSUED = 0,
    COLL_READY,   /* counted as ready on its slot */
    COLL_REFUSED, /* nothing was enqueued: it is no part of its slot */
};

/* One record in a source's log. */
struct entry {
    struct roll_record rec;
    struct pair *pair; /* p2p */
    uint32_t index;    /* p2p: number of its node in the pair; collective: enum coll_state */
    uint32_t next;     /* distance in tickets to the next call on the same stream; 0 = none yet */
};

/* The calls of one stream that are not known to be complete, oldest first. */
struct queue {
    uint64_t head, tail; /* ticket + 1; 0 = empty */
    uint64_t since;      /* patience clock at which head got to the front */
    bool marked;         /* head (with its group) has been counted as ready */
    uint32_t visit;      /* stall analysis: number of the run that saw it; doubled, odd while on the path */
    uint64_t
        done; /* all calls before this ticket are complete on the device, as its rank has been told; 0 = not known */
};

struct thread {
    uint16_t id;
    struct {
        uint16_t comm;
        uint32_t stream;
    } joined[GROUP_COMMS]; /* communicators of its open group, each with the queue of its first call there */
    uint32_t group;        /* its open group; 0 = none */
    uint32_t joins;
    uint64_t inside;  /* ticket + 1 of the call that it has entered and not left; 0 = none */
    uint64_t since;   /* patience clock at which it was seen to be inside */
    uint64_t calm;    /* and clock of suspicion; that at which its rank was heard again, if that is later */
    uint64_t renewed; /* patience clock of the newest word that it still polls */
    bool acts;        /* it has made calls other than polls */
    bool polls;       /* what it is inside is a loop of polls */
    uint8_t turns;    /* how many things that loop is about, and how many of them its words have named */
    uint8_t named;
    struct polled {
        uint64_t count;
        uint16_t stream, comm;
        uint8_t op;
    } thing[POLLED_MAX];
};

/* One call that was captured into a graph: what is left of its record. */
struct captured {
    uint64_t ticket, count;
    int32_t peer;
    uint16_t comm, callsite, graph;
    uint8_t op, dtype, redop, flags;
};

/* Collectives of one kind: number + 1 of the last and of the one before it; 0 = none. */
struct latest {
    uint32_t last, before;
};

#define HALVES 2u /* as a call that is missing, and as one too many */
/* What was told last of one call that is missing or too many on a communicator: astray.c. */
struct half {
    uint64_t number; /* the verdict; 0 = none */
    uint32_t seq;
    const struct source *lacks, *has; /* who may be wrong: lacks it, or made it; NULL: not this side */
    uint64_t gap, made;               /* tickets: of the call behind the gap, of the call */
    struct roll_record call;
    bool named, proven; /* the vote says who is wrong; the verdict is proven */
};

#define NO_THREAD UINT16_MAX
struct member {
    struct comm *comm;
    uint32_t source;        /* NO_SOURCE: never seen */
    int32_t rank;           /* on the communicator */
    uint32_t next;          /* sequence number after its last collective */
    uint32_t from;          /* below this its collectives are unknown and count as arrived and ready */
    bool gone;              /* destroyed or finalized the communicator */
    bool unsure;            /* records were lost since its last call here */
    bool lowered_lost;      /* `alltoall` and `lowered` say nothing */
    struct latest alltoall; /* see lowered.c */
    uint32_t gaps;          /* how often records were lost */
    struct {
        uint64_t sig;
        uint64_t ticket;
        uint32_t seq;
    } zero[ZEROS_MAX]; /* newest at (zeros - 1) % ZEROS_MAX */
    uint32_t zeros;
    uint32_t group;          /* of its last collective here; 0 = none */
    uint16_t thread;         /* of that; NO_THREAD: not known */
    uint32_t splits;         /* CommSplit calls made with this communicator as parent */
    uint32_t split_gaps;     /* `gaps` when the last of them came */
    uint8_t async;           /* ncclResult_t: what ncclCommGetAsyncError said last here */
    bool passed;             /* its communicator is muted, and it has got past the trouble: silence.c */
    uint64_t late_ns;        /* by how much it came late here, at most, when that was told: doubt.c */
    uint64_t ended_calm;     /* clock of suspicion at which it aborted */
    uint16_t caller;         /* host thread of its last call here */
    bool many_callers;       /* several threads have made calls here */
    uint32_t queue;          /* queue of its last call here, + 1 */
    bool many_queues;        /* its calls here stand in several */
    uint8_t ended;           /* operation by which this rank aborted or revoked it; 0 = none */
    uint64_t settled;        /* ticket + 1 of the answer that nothing is in progress any more; 0 = none */
    struct lowered *lowered; /* its last Gathers and Scatters here: lowered.c; owned */
    void **state;            /* what detectors keep of it: detect/state.h */
    bool was_refused;        /* a call of it here was refused: those that come later are shown to detect_refused.c */
};

struct source {
    struct roll_source_info info;
    char host[ROLL_NAME_BYTES], exe[128];
    uint32_t world;
    int64_t offset;
    enum roll_proc_state proc;
    int32_t exit_status;
    uint64_t proc_ns;  /* patience clock at which its end was known */
    struct entry *log; /* by ticket & log_mask */
    uint64_t log_mask;
    uint64_t next;          /* ticket after the last one */
    uint64_t kept;          /* all calls before this ticket have been answered by everybody */
    uint64_t safe;          /* no ticket below this is still needed: a lower bound, found again when the log is full */
    struct member **member; /* by communicator id of this source */
    size_t members;
    struct queue *queue; /* by stream id */
    uint32_t queues;
    size_t queue_room;
    struct thread thread[THREADS_MAX];
    uint32_t threads;
    uint32_t thread_last; /* index of the thread seen last */
    bool many_threads;
    uint64_t records, calls, lost;
    uint64_t last_ns, seen; /* wall clock of its last record; patience clock at which anything came */
    uint64_t calm;          /* clock of suspicion at that time */
    uint64_t back_ns;       /* patience clock at which its host came back from a wait, without an error, last */
    uint64_t back_wall;     /* and its wall clock when that wait began */
    uint32_t starved;       /* permille: struct roll_engine_sight */
    bool unheard;
    struct roll_record last;
    struct roll_record failed; /* its last call, if that was refused; op NONE: it was not */
    uint64_t last_key;
    uint32_t step;
    uint8_t phase;             /* in that step, as reported last */
    struct captured *captured; /* the newest, in the order of their tickets; a ring of CAPTURED_MAX: see graph.c */
    uint32_t captures;
    size_t capture_room;
    struct site_table *sites; /* its call sites: site.c; owned */
    struct graph_span *graph; /* by graph id */
    size_t graphs;
    bool said_dead;      /* its death has been told, or needs not be */
    uint64_t end_number; /* of the verdict that says that it has ended before its peers; 0 = none */
    uint32_t end_waiter; /* a source that waits for it there */
    bool end_named;      /* and it is named there: more need not be said */
    bool gap,
        in_gap; /* records are missing since source_certain was asked last; what it says about gap_step is not whole */
    uint64_t gap_ticket; /* first ticket after the newest gap; 0 = none */
    uint32_t gap_step;
    bool late;           /* its first records are not known */
    bool completes;      /* it learns what is complete on the device */
    uint32_t inits;      /* CommInit and CommSplit calls so far */
    uint64_t init;       /* ticket + 1 of the one that it is inside; 0 = none */
    uint64_t init_since; /* patience clock of that */
    uint64_t init_calm;  /* and that of suspicion */
    bool init_polled;    /* its call has returned: it is nonblocking, and goes on */
    uint64_t init_known; /* the same as init: why it waits there has been told, or is known */
    uint32_t visit;      /* stall analysis: number of the run that looked at the creation that it is inside */
    uint32_t defined;    /* and of the run that last found it among the members of one */
    uint32_t generation; /* how many processes of the same rank came before this one */
    uint64_t excuse;     /* ticket + 1 of a call in which it waits for a reason that has been told; 0 = none */
    void **state;        /* what detectors keep of it: detect/state.h */
};

/* A call at a slot that differs from the slot's first one. */
struct variant {
    uint64_t sig, ticket;
    uint32_t rank; /* on the communicator */
    uint32_t next; /* in the engine's pool; 0 = end */
};

struct slot {
    uint64_t sig;    /* of the call that came first; stays after the slot is complete: the history */
    uint64_t ticket; /* of that call */
    uint32_t rank;   /* its rank on the communicator */
    uint32_t arrived, ready;
    uint32_t variant;    /* 0 = all agree */
    uint32_t visit;      /* stall analysis, as in struct queue */
    uint32_t asked;      /* stall analysis: number of the run that found `holders` */
    uint8_t dtype;       /* of the call that came first */
    bool joined;         /* the first call is in one group with its rank's call before it on this communicator */
    bool known;          /* `joined` is: that call before was seen */
    bool held : 1;       /* a disagreement that is still being judged: not complete */
    bool judged : 1;     /* its disagreement has been judged */
    bool mixed : 1;      /* as many bytes, and another datatype */
    bool root_ready : 1; /* the root of a Gather or Scatter is: lowered.c */
    uint8_t holders : 2; /* how many members hold it up; 2: or more */
};

struct comm {
    const struct roll_engine *engine;
    uint64_t key, parent_key;
    uint32_t origin;      /* enum roll_comm_origin */
    uint32_t made_source; /* who showed the call that made it, and where in the program; 0 = not known */
    uint16_t made_callsite;
    char label[ROLL_NAME_BYTES];
    uint32_t id, size, seen, gone;
    uint32_t child; /* which split of the parent it comes from, and its colour there */
    int32_t color;
    uint32_t room;         /* members that there is room for: more than size where the size is not known (open) */
    struct member *member; /* by rank */
    struct slot *slot;     /* by sequence number & slot_mask */
    uint32_t slot_mask;
    uint32_t base; /* lowest sequence number that is not complete */
    uint32_t high; /* highest that has arrived, plus one */
    uint32_t max_from;
    struct pair **pair; /* hash table by (src, dst) */
    uint32_t pairs, pair_mask;
    uint32_t refusals; /* members whose last call here was refused */
    bool open;         /* nothing has told its size: it grows with the members that are seen */
    bool aborted;
    bool retires;       /* judged no more: detect_lowered.c */
    bool muted;         /* a cause was found here: what follows on it is its consequence, until silence.c ends it */
    bool explains;      /* and its members are stuck for that cause */
    uint32_t mute_seq;  /* collective at which the trouble began; NO_SEQ: not a collective */
    uint64_t mute_ns;   /* wall clock of the call at which it began */
    uint64_t mute_wall; /* wall clock at which that became known */
    uint32_t era;       /* silences that have ended here: part of the keys of what is said once */
    bool overflow;
    bool group_told;          /* group boundaries were seen to differ */
    struct half half[HALVES]; /* a call that may have been made on another communicator: astray.c */
    uint32_t held;            /* sequence number being judged, NO_SEQ = none */
    uint64_t held_ns;         /* patience clock at which the judging began */
    struct dispute *dispute;  /* that judging: align.c; owned; NULL = none */
    uint64_t ended_calm;      /* clock of suspicion at which the last of its members aborted it */
    uint32_t visit;           /* stall analysis: number of the run that looked into a creation on it */
    uint32_t creation;        /* and where in its table */
    uint32_t coll, p2p;       /* calls seen, for the guess of its role */
    uint32_t empties;         /* messages of 0 bytes: who makes them does not leave them out */
    uint32_t moe;             /* MoE events that named it as ep */
    bool blamed;              /* somebody will be waited for here, as was predicted: detect_moe_obligation.c */
    void **state;             /* what detectors keep of it: detect/state.h */
};

struct node {
    uint64_t ticket[2]; /* of the send and of the receive */
    uint64_t bytes;
    uint32_t exchange;   /* of the side that came first: see outside_meet; 0 = none */
    uint32_t before[2];  /* the last collective that NCCL makes of messages of this pair, on each side: lowered.c */
    uint8_t have, ready; /* bit 0 the send, bit 1 the receive */
};

struct pair {
    struct comm *comm;
    uint32_t end[2];   /* ranks: source, destination */
    struct node *node; /* by index & mask */
    uint32_t mask, base;
    uint32_t issued[2]; /* sends and receives so far, but for captured ones */
    uint32_t calls[2];  /* all of them, as numbered by the records */
    uint32_t gaps[2];   /* member.gaps at the last of them: after a loss it is not known whether more were made */
    bool unsure;        /* records lost: no longer matched */
    bool said;
};

/* on the path of every record, and therefore here */
/* The record of a ticket; NULL when it is not there any more. */
static inline struct entry *source_entry(const struct source *s, uint64_t ticket)
{
    if (!s->log || ticket >= s->next) {
        return NULL;
    }
    struct entry *entry = &s->log[ticket & s->log_mask];
    bool same = roll_seal_state(entry->rec.seal) != ROLL_STATE_EMPTY && roll_seal_ticket(entry->rec.seal) == ticket;
    return same ? entry : NULL;
}

/* The oldest ticket that its log may still hold. */
static inline uint64_t source_log_low(const struct source *s)
{
    return s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
}

/* Some call of its streams is not known to be complete. */
static inline bool source_pending(const struct source *s)
{
    for (uint32_t i = 0; i < s->queues; i++) {
        if (s->queue[i].head != 0) {
            return true;
        }
    }
    return false;
}

/* A communicator of this source by its small id; NULL: not defined. */
static inline struct member *source_member(const struct source *s, uint32_t id)
{
    return id < s->members ? s->member[id] : NULL;
}

static inline struct slot *comm_slot(const struct comm *c, uint32_t seq)
{
    return &c->slot[seq & c->slot_mask];
}

/* The next call on the same stream; NULL at the end. *ticket moves along. */
static inline struct entry *source_chain(const struct source *s, uint64_t *ticket)
{
    struct entry *entry = source_entry(s, *ticket);
    if (!entry || entry->next == 0) {
        return NULL;
    }
    *ticket += entry->next;
    return source_entry(s, *ticket);
}

static inline bool source_same_unit(const struct roll_record *a, const struct roll_record *b)
{
    return a->group != 0 && a->group == b->group && a->thread == b->thread;
}

static inline bool comm_complete(const struct comm *c, uint32_t seq)
{
    if (seq < c->base || c->aborted || c->overflow) {
        return true;
    }
    if (seq >= c->high) {
        return false;
    }
    const struct slot *s = comm_slot(c, seq);
    return s->ready >= c->size && !s->held;
}

/* One unit of a bounded search; false when nothing is left. Asked in the conditions of nested loops, so it never goes
 * below 0. */
static inline bool spend(uint32_t *work)
{
    if (*work == 0) {
        return false;
    }
    --*work;
    return true;
}

/* source.c: the log of a source, its threads, its streams */
int source_enlist(struct roll_engine *e, struct source *s, uint32_t index); /* as the newest process of its rank */
struct source *source_newest(const struct roll_engine *e, uint32_t world);  /* NULL: none has come */
int source_log_open(struct source *s, uint64_t ticket); /* its first record will have this ticket. 0 or NOMEM */
static inline bool source_log_fits(const struct source *s, uint64_t ticket)
{
    return s->log && (ticket <= s->log_mask || ticket - s->log_mask <= s->safe);
}
uint64_t source_log_needed(struct source *s, uint64_t upto); /* no ticket below this is needed any more */
/* Where there is room for it. */
struct entry *source_log_put(struct source *s, const struct roll_record *rec, uint64_t ticket);
int source_log_grow(struct source *s); /* to twice its length. 0 or NOMEM */
struct thread *source_thread(struct source *s, uint16_t id);
int source_queue_push(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket);
bool source_group_open(const struct source *s, const struct roll_record *rec);
/* This call may still turn out to be refused: it has not returned, or its group has not been ended. */
bool source_unsettled(const struct source *s, const struct roll_record *rec);
uint64_t source_wall(const struct source *s, const struct roll_record *rec);
/* Something came from this source: it is not quiet. */
void source_news(const struct roll_engine *e, struct source *s);
/* The host cannot go on: every thread that has made calls is inside one. *quiet: it is heard, and for so long of the
 * time of suspicion nothing has come. */
bool source_blocked(const struct roll_engine *e, const struct source *s);
/* What a host that is inside this call waits for on a stream: all calls before `upto`. */
struct host_wait {
    uint64_t upto;
    bool waits; /* it does, as far as is known: a loop of polls that goes on */
    bool soft;  /* it could go on all the same: a host that polls may leave its loop */
    bool vague; /* which calls those are is not known: an event */
};
struct host_wait source_wait(const struct roll_engine *e, const struct source *s, const struct thread *t,
                             const struct roll_record *in);
/* A word of a loop of polls over several things names one of them: it is remembered while the loop goes on. */
void source_polled(struct thread *t, const struct roll_record *rec, bool goes_on);
bool source_polls(const struct source *s); /* some thread that acts is in a loop of polls */
/* Every loop of polls that holds it up was still going on after this moment of the patience clock; true without such a
 * loop. */
bool source_polls_after(const struct roll_engine *e, const struct source *s, uint64_t clock);
bool source_quiet(const struct roll_engine *e, const struct source *s, uint64_t ns);
static inline bool source_alive(const struct source *s)
{
    return s->proc == ROLL_PROC_RUNNING || s->proc == ROLL_PROC_STOPPED;
}
/* False where what it says about this step may be a part of what it has said: records are missing. Asked for all
 * records of class MOE that are compared. */
bool source_certain(struct source *s, const struct roll_record *rec);
/* The call with this ticket is the collective of member m with number seq: one that has elements and was not refused,
 * so that no other call of the member bears the number. */
bool source_holds(const struct source *s, uint64_t ticket, const struct member *m, uint32_t seq);
/* The ticket of that collective; NO_TICKET: the log does not hold it. The search begins with the newest call. */
uint64_t source_ticket_of(const struct source *s, const struct member *m, uint32_t seq);
uint32_t source_index(const struct roll_engine *e, const struct source *s); /* NO_SOURCE: none */

/* comm.c: communicators and their slots */
struct comm *comm_find(const struct roll_engine *e, uint64_t key);
/* *contradicts: a communicator of which the definition says something else than those before it, and which has
 * therefore not got this member; NULL as a rule. Errors: NOMEM, CORRUPT. */
int comm_define(struct roll_engine *e, uint32_t source, uint32_t id, const struct roll_def_comm *def, const char *label,
                struct comm **contradicts);
void comm_made(struct comm *c, uint32_t source, const struct roll_record *rec); /* the call that makes it */
int comm_grow(struct comm *c);                                                  /* its window, twofold. 0 or NOMEM */
void comm_open_slots(struct comm *c, uint32_t upto);                            /* those that there is room for */
bool comm_member_issued(const struct member *m, uint32_t seq);
void comm_advance(struct roll_engine *e, struct comm *c);
bool comm_behind(const struct member *m); /* it has calls here that are not complete */
const struct member *comm_member_of(const struct comm *c, uint32_t source); /* NULL: none */
void comm_free(struct comm *c);
uint32_t comm_world(const struct roll_engine *e, const struct comm *c,
                    uint32_t rank); /* world rank, NO_SOURCE unknown */

/* A call of which nothing was enqueued, as far as is known. */
static inline bool refused_call(const struct entry *entry)
{
    return entry->index == COLL_REFUSED && !entry->pair;
}

/* variant.c: the calls at a slot that differ from its first one */
int slot_add_variant(struct roll_engine *e, struct slot *s, const struct variant *v); /* v is copied. 0 or NOMEM */
void slot_release(struct roll_engine *e, struct slot *s);                             /* drops the variants */

/* pair.c: messages */
struct pair *p2p_pair(const struct comm *c, uint32_t src, uint32_t dst); /* NULL: none so far */
struct pair *pair_get(struct comm *c, uint32_t src, uint32_t dst);       /* makes it; NULL: no memory */
struct node *p2p_node(const struct pair *p, uint32_t index);
static inline bool pair_fits(const struct pair *p, uint32_t index)
{
    return index - p->base <= p->mask;
}
int pair_grow(struct pair *p, uint32_t index); /* to twice its window; nodes before `index` are kept. 0 or NOMEM */
void pair_advance(struct pair *p);             /* past the nodes of which both sides are ready */
/* It is known how many messages this side of the pair has made. */
bool p2p_known(const struct pair *p, unsigned side);
bool p2p_complete(const struct entry *entry);

/* calls */
/* It returned an error: nothing was enqueued. */
static inline bool call_failed(const struct roll_record *rec)
{
    return rec->result != 0 && rec->result != NCCL_IN_PROGRESS && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}

/* All sides are ready. */
static inline bool entry_answered(const struct source *s, const struct entry *entry)
{
    if (roll_op_class(entry->rec.op) == ROLL_CLASS_P2P) {
        return p2p_complete(entry);
    }
    const struct member *m = source_member(s, entry->rec.comm);
    return !m || entry->index == COLL_REFUSED || comm_complete(m->comm, entry->rec.seq);
}
/* Or nobody here waits for it any more: the process has ended, or it has aborted the communicator. */
static inline bool entry_complete(const struct source *s, const struct entry *entry)
{
    const struct member *m = source_member(s, entry->rec.comm);
    return !source_alive(s) || (m && m->ended != 0) || entry_answered(s, entry);
}

/* graph.c: what was captured into which graph */
#define CAPTURED_MAX 8192u /* captured calls remembered per source */
void graph_note_call(struct source *s, const struct roll_record *rec, uint64_t ticket);
void graph_define(struct source *s, const struct roll_def *def);
void graph_forget(struct source *s);
/* The n-th collective that graph `id` holds on a communicator of this source, as far as it is remembered: false when it
 * is not. *total: how many there are, by the graph's definition; 0 = not known. */
bool graph_collective(const struct source *s, uint32_t id, uint32_t comm, uint32_t n, struct roll_record *out,
                      uint32_t *total);

/* site.c: call sites that can be compared between ranks */
int site_define(struct source *s, const struct roll_def *def);           /* a call site or a module. 0 or NOMEM */
uint64_t site_of(const struct source *s, const struct roll_record *rec); /* 0 = not known */
enum site_relation {
    SITE_UNKNOWN = 0,
    SITE_SAME, /* the whole stack */
    SITE_OTHER /* surely another place */
};
enum site_relation site_compare(const struct source *a, const struct roll_record *of_a, const struct source *b,
                                const struct roll_record *of_b);
bool site_is_known(const struct source *s, uint64_t site); /* this rank has called from there */
void site_forget(struct source *s);

#endif
