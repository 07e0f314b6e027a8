/*
 * internal.h: what the files of the engine share. Nothing here is seen outside daemon/engine/. docs/ENGINE.md explains
 * the model.
 *
 *   source   one rank process: a log of its calls that may still matter, one queue per stream, the state of its host
 * threads comm     one communicator: its members, and a window of slots, one per collective (sequence number) pair one
 * (source, destination) of a communicator: a window of nodes, one per message
 *
 * A call is `arrived` on its slot or node when its record has come, and `ready` when everything before it on its stream
 * is complete. A slot whose members are all ready is complete. What never gets complete is what the stall analysis
 * (waitgraph.c) explains.
 */
#ifndef ROLL_ENGINE_INTERNAL_H
#define ROLL_ENGINE_INTERNAL_H

#include "daemon/engine/engine.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stddef.h>

#define NO_SOURCE        UINT32_MAX
#define NO_SEQ           UINT32_MAX
#define NO_CLOCK         UINT64_MAX
#define NCCL_IN_PROGRESS 7u   /* ncclInProgress: no error */
#define THREADS_MAX      16u  /* host threads followed per source; with more, the source is never called blocked */
#define POLLED_MAX       4u   /* things that one loop of polls is about: interposer/record/thread.h has no more */
#define GROUP_COMMS      16u  /* communicators of one group whose streams are joined */
#define ZEROS_MAX        8u   /* zero-count collectives remembered per member */
#define OBLIGE_MAX       256u /* obligations of one layer */
#define EXT_TICKETS      16u  /* expert products remembered per member */
#define LOG_MIN          256u
#define QUEUE_OF_COMM    4096u /* queue of a communicator's calls whose stream is not known; streams have smaller ids */
#define SLOTS_MIN        64u

struct comm;
struct pair;
struct graph_span;
struct gathered;
struct meeting;
struct split_table;
struct race;
struct site_table;
struct dispute;
struct refusal;
struct lowered;
struct words;
struct waits;
struct stuck_case;
struct lag;
struct doubt;

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

/* One promised collective. */
struct duty {
    uint64_t comm_key;
    uint64_t count;
    uint32_t op;
    uint32_t callsite;
};

struct duty_list {
    uint32_t step;
    uint16_t microbatch, layer;
    uint32_t used;
    bool broken; /* a record was lost or refused: the list says nothing */
    struct duty duty[OBLIGE_MAX];
};

/* One call that was captured into a graph: what is left of its record. */
struct captured {
    uint64_t ticket, count;
    int32_t peer;
    uint16_t comm, callsite, graph;
    uint8_t op, dtype, redop, flags;
};

/* In which intervals between two calls of a kind a member made a grouped product: see detect_moe_outside.c. */
struct intervals {
    uint64_t made; /* bit n: in the interval that ends with number `last` - n */
    uint32_t last;
    uint32_t from;                /* intervals that end below this number are not known */
    uint32_t shift;               /* by how much numbers have been raised: see outside_meet; 0 for collectives */
    uint64_t ticket[EXT_TICKETS]; /* by number - shift: ticket + 1 of its newest product in an interval */
};

/* The exchanges of a member: its groups of sends and receives, numbered so that those that meet have one number: the
 * place of the group among the member's own, from 1, + in.shift. */
struct exchanges {
    struct intervals in;
    uint32_t next;  /* number that its next group takes */
    uint32_t group; /* its newest group */
    bool lost;      /* records are: the numbers say nothing any more */
};

/* What a rank said about one MoE layer last. */
struct layer_note {
    uint32_t step;
    uint16_t microbatch;
    bool idle; /* it has no tokens of its own either */
    bool zero, skipped, remedied;
    bool said_zero, said_skip, said_remedy;
};

/* Collectives of one kind: number + 1 of the last and of the one before it; 0 = none. */
struct latest {
    uint32_t last, before;
};

/* A step of a job that may go back to an earlier one (from a checkpoint, or because evaluations have numbers of their
 * own). */
struct moment {
    uint32_t turn, step; /* turn: how often it has gone back */
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
    uint32_t group;             /* of its last collective here; 0 = none */
    uint16_t thread;            /* of that; NO_THREAD: not known */
    uint32_t splits;            /* CommSplit calls made with this communicator as parent */
    uint32_t split_gaps;        /* `gaps` when the last of them came */
    uint8_t async;              /* ncclResult_t: what ncclCommGetAsyncError said last here */
    bool passed;                /* its communicator is muted, and it has got past the trouble: silence.c */
    uint64_t late_ns;           /* by how much it came late here, at most, when that was told: doubt.c */
    uint64_t ended_calm;        /* clock of suspicion at which it aborted */
    uint16_t caller;            /* host thread of its last call here */
    bool many_callers;          /* several threads have made calls here */
    uint32_t queue;             /* queue of its last call here, + 1 */
    bool many_queues;           /* its calls here stand in several */
    uint8_t ended;              /* operation by which this rank aborted or revoked it; 0 = none */
    uint64_t settled;           /* ticket + 1 of the answer that nothing is in progress any more; 0 = none */
    struct race *race;          /* what its threads do here, where there are several; owned */
    struct refusal *refusal;    /* its last refused call here; owned */
    struct lowered *lowered;    /* its last Gathers and Scatters here: lowered.c; owned */
    struct moment word;         /* step of what it said last here about its MoE layers and tensors: meeting.h */
    bool spoken;                /* `word` is */
    struct intervals ext;       /* between collectives */
    struct exchanges *exchange; /* between groups of sends and receives; owned; NULL: none after a grouped product */
};

struct source {
    struct roll_source_info info;
    char host[ROLL_NAME_BYTES], exe[128];
    uint32_t world;
    int64_t offset;
    enum roll_proc_state proc;
    int32_t exit_status;
    uint64_t proc_ns;  /* patience clock at which its end was known */
    uint64_t due_ns;   /* and at which its death could be told first; 0 = not yet */
    uint64_t unneeded; /* `enrolled`, plus one, when nobody was found that needs it: detect_process.c */
    struct entry *log; /* by ticket & log_mask */
    uint64_t log_mask;
    uint64_t next;          /* ticket after the last one */
    uint64_t kept;          /* all calls before this ticket have been answered by everybody */
    uint64_t safe;          /* no ticket below this is still needed: a lower bound, found again when the log is full */
    struct member **member; /* by communicator id of this source */
    uint32_t members;
    struct queue *queue; /* by stream id */
    uint32_t queues;
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
    uint8_t phase;              /* in that step, as reported last */
    struct duty_list *duties;   /* being collected */
    struct layer_note *layer;   /* by layer */
    struct split_table *splits; /* of its MoE layers: detect_moe_route.c; owned */
    struct waits *waits;        /* what its host's waits have been like: detect_stuck.c; owned */
    uint32_t layers;
    struct captured *captured; /* the newest, in the order of their tickets; a ring of CAPTURED_MAX: see graph.c */
    uint32_t captures;
    struct site_table *sites; /* its call sites: site.c; owned */
    struct graph_span *graph; /* by graph id */
    uint32_t graphs;
    bool told_dead, said_lost, said_dead, said_failed;
    bool noted_failed;   /* that it got an error is said in a note only: nobody has waited for it */
    uint64_t end_number; /* of the verdict that says that it has ended before its peers; 0 = none */
    uint32_t end_waiter; /* a source that waits for it there */
    bool end_named;      /* and it is named there: more need not be said */
    bool gap,
        in_gap; /* records are missing since source_certain was asked last; what it says about gap_step is not whole */
    uint64_t gap_ticket; /* first ticket after the newest gap; 0 = none */
    uint32_t gap_step;
    bool late;           /* its first records are not known */
    bool products;       /* it has made grouped products, seen from outside */
    bool completes;      /* it learns what is complete on the device */
    uint32_t inits;      /* CommInit and CommSplit calls so far */
    uint64_t init;       /* ticket + 1 of the one that it is inside; 0 = none */
    uint64_t init_since; /* patience clock of that */
    uint64_t init_calm;  /* and that of suspicion */
    bool init_polled;    /* its call has returned: it is nonblocking, and goes on */
    uint64_t busy_told; /* ticket + 2 of its last call (1: it has made none) when it was told that it does not come; 0 =
                           never */
    uint64_t init_known; /* the same as init: why it waits there has been told, or is known */
    uint32_t visit;      /* stall analysis: number of the run that looked at the creation that it is inside */
    uint32_t defined;    /* and of the run that last found it among the members of one */
    uint32_t generation; /* how many processes of the same rank came before this one */
    uint64_t excuse;     /* ticket + 1 of a call in which it waits for a reason that has been told; 0 = none */
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

/* A prediction about a communicator: see detect_moe_obligation.c. */
struct blame {
    uint32_t cause; /* index + 1 in e->cause */
    uint32_t step;
};

/* A definition that contradicts another one of the same communicator: see detect_claim.c. */
struct claim {
    uint32_t source;
    int32_t rank, nranks;
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
    bool init_told;      /* why its creation cannot end */
    struct claim *claim; /* owned */
    uint32_t claims;
    uint64_t claim_ns;        /* patience clock of the last one */
    bool group_told;          /* group boundaries were seen to differ */
    struct half half[HALVES]; /* a call that may have been made on another communicator: astray.c */
    uint32_t held;            /* sequence number being judged, NO_SEQ = none */
    uint64_t held_ns;         /* patience clock at which the judging began */
    struct dispute *dispute;  /* that judging: align.c; owned; NULL = none */
    uint64_t init_ns;         /* patience clock at which its creation was looked into */
    uint64_t ended_calm;      /* clock of suspicion at which the last of its members aborted it */
    uint64_t init_stuck_ns;   /* the same, plus one, by detect_stuck.c */
    uint32_t visit;           /* stall analysis: number of the run that looked into a creation on it */
    uint32_t creation;        /* and where in its table */
    uint32_t coll, p2p;       /* calls seen, for the guess of its role */
    uint32_t empties;         /* messages of 0 bytes: who makes them does not leave them out */
    uint32_t moe;             /* MoE events that named it as ep */
    struct blame blame;
    uint32_t order_seq;      /* below this its calls have been looked at by detect_order.c */
    struct lag *lag;         /* who arrives last, as far as it was looked at: detect_straggler.c; owned */
    struct cell *cell;       /* obligations under comparison, newest first */
    struct meeting *meeting; /* other words of the members under comparison, newest first: meeting.h */
    uint32_t meetings;
    struct closed {
        struct moment upto;
        bool any;
    } cells_closed, meetings_closed; /* steps in which some comparison was given up for want of room: nothing more is
                                        compared there */
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

/* The rank that will not issue what its peers expect. */
struct cause {
    uint64_t key;                          /* ep communicator */
    struct roll_rankset culprits, waiting; /* world ranks */
    uint32_t step, microbatch, layer, source, peer_source;
    uint64_t ticket, peer_ticket;
    uint32_t missing;
    struct duty duty; /* the first one missing */
    bool told, proven;
    bool skipped;        /* the culprit said that it skipped its experts */
    uint64_t prediction; /* key of the gathering in which it is told (gather.h) */
};

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
    uint64_t key;    /* 0 = free */
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
    uint64_t now;   /* wall clock of the last tick */
    uint64_t clock; /* patience: see roll_engine_tick; all `since` and `seen` are on it */
    uint64_t calm;  /* suspicion: the same, but for the time in which ranks could not run; all `calm` are on it */
    uint32_t starved, unheard; /* permille of the live rank that is starved most; live ranks that are not heard */
    uint32_t silences;         /* how often ranks have fallen silent */
    bool sight_changed;        /* `starved` and `unheard` have to be found anew */
    struct source **source;
    uint32_t sources, source_room;
    uint32_t *newest; /* by world rank: index + 1 of its newest process */
    uint32_t newest_room;
    uint32_t claims;       /* of all communicators */
    uint64_t inits_ns;     /* patience clock at which a creation without definition was looked into */
    uint32_t inits_looked; /* and its number among those of its rank */
    uint64_t inits_size;   /* and of how many ranks */
    struct comm **comm;
    uint32_t comms, comm_room;
    uint32_t *comm_hash; /* index + 1 by key */
    uint32_t comm_hash_mask;
    struct variant *variant;
    uint32_t variants, variant_room, variant_free;
    struct cause *cause;
    uint32_t causes, cause_room;
    struct said_key *said_key; /* keys of what has been said: one verdict per cause */
    uint32_t said_keys, said_mask;
    struct told *told; /* the findings so far, by rising number */
    uint32_t tolds, told_room;
    struct said *out_first, *out_last, *shown;
    uint64_t numbers, findings;
    uint64_t records, calls, lost;
    uint64_t stall_run_ns;          /* patience clock of the last stall analysis */
    uint64_t init_run_ns;           /* the same for creations that do not return */
    uint64_t lag_run_ns;            /* the same for ranks that arrive last */
    struct found found[FOUND_KEPT]; /* the newest findings that somebody may wait for; a ring */
    uint32_t founds;
    uint64_t trouble_ns;           /* patience clock at which the newest trouble that ranks are stuck in became known */
    uint64_t trouble_wall;         /* and wall clock */
    uint64_t enrolled;             /* members that have been heard for the first time, of all communicators */
    uint64_t wall;                 /* time of the job by its records, as found at `wall_clock`: silence.c */
    uint64_t wall_clock;           /* patience clock of that, plus one */
    uint64_t wall_records;         /* and how many records had come */
    uint64_t order_run_ns;         /* the same for opposite orders */
    uint32_t order_next;           /* communicator that is looked at next for those */
    uint32_t lag_logs;             /* entries by which it has made logs longer */
    uint32_t lag_next;             /* communicator that is looked at next for those */
    uint64_t stuck_run_ns;         /* the same for calls that have all they need */
    uint64_t stuck_work_ns;        /* patience clock of the tick that `stuck_work` belongs to */
    uint32_t stuck_work;           /* what is left of its bound: stuck_find.c */
    uint32_t stuck_next;           /* source that is looked at first in the next run */
    uint32_t stuck_waiter;         /* a source that was last seen to wait still: detect_stuck.c */
    struct stuck_case *stuck_case; /* the one that the nodes are asked about: stuck_facts.c; owned */
    uint32_t visit;
    uint64_t effort; /* members and log entries that analyses have looked at so far: tests of their bounds count it */
    uint32_t held_comms; /* communicators with a held slot */
    uint32_t muted_comms;
    bool retiring;          /* some communicator retires */
    uint32_t ended, aborts; /* processes that have ended, one way or another; members that have aborted */
    bool mute_fresh, finishing, dirty, job_over_said;
    bool errors;         /* some call was refused */
    struct doubt *doubt; /* suspicions that may still come to nothing, oldest first */
    struct p2p_case *p2p_case;
    struct gathered *gathered;                     /* findings that show in several places: gather.h */
    uint32_t taken_comm, taken_pair;               /* detect_taken.c: where its round is; UINT32_MAX: it rests */
    uint64_t taken_ns;                             /* patience clock at which that was asked last */
    struct crossings *crossings;                   /* detect_lowered.c */
    struct roll_rankset view_members, view_behind; /* lent by roll_engine_comm */
};

/* --- on the path of every record, and therefore here --- */
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

/* --- source.c: the log of a source, its threads, its streams --- */
int source_enlist(struct roll_engine *e, struct source *s, uint32_t index); /* as the newest process of its rank */
struct source *source_newest(const struct roll_engine *e, uint32_t world);  /* NULL: none has come */
int source_log_add(struct roll_engine *e, struct source *s, const struct roll_record *rec, struct entry **out);
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

/* --- comm.c: communicators and their slots --- */
struct comm *comm_find(const struct roll_engine *e, uint64_t key);
int comm_define(struct roll_engine *e, uint32_t source, uint32_t id, const struct roll_def_comm *def,
                const char *label);
void comm_made(struct comm *c, uint32_t source, const struct roll_record *rec); /* the call that makes it */
int comm_reach(struct roll_engine *e, struct comm *c, uint32_t seq);            /* makes room for seq; 0 or NOMEM */
bool comm_member_issued(const struct member *m, uint32_t seq);
void comm_advance(struct roll_engine *e, struct comm *c);
bool comm_behind(const struct member *m);                                  /* it has calls here that are not complete */
void comm_ended(struct roll_engine *e, struct member *m, enum roll_op op); /* m has aborted it */
void comm_give_up(struct roll_engine *e, struct comm *c);                  /* too much is incomplete: judged no more */
void comm_free(struct comm *c);
uint32_t comm_world(const struct roll_engine *e, const struct comm *c,
                    uint32_t rank); /* world rank, NO_SOURCE unknown */

/* --- silence.c: what has been explained, and until when --- */
/* What follows on c is a consequence of what has been said; seq: the collective at which the trouble began, NO_SEQ: not
 * a collective, or not known; comm_mute_at: that call itself. comm_explained adds that the members are stuck for it. */
void comm_mute(struct roll_engine *e, struct comm *c, uint32_t seq);
void comm_mute_at(struct roll_engine *e, struct comm *c, const struct source *s, const struct roll_record *rec);
void comm_explained(struct roll_engine *e, struct comm *c);
bool comm_silent_at(const struct comm *c, uint32_t seq); /* what happens at this collective is a consequence */
bool source_explained(const struct source *s);           /* it is stuck for a reason that has been told */
/* Long after the trouble of this communicator was known its host has come back from a wait, and it is in none for it:
 * it goes on beside the trouble, and its calls there are not what holds it up. */
bool source_beside(const struct source *s, const struct member *m);
/* As far as is known its host does not go on because the calls of this queue do not. */
bool source_held_by(const struct roll_engine *e, const struct source *s, const struct queue *q);
/* Evidence that a rank goes on: a call is over, a wait has returned, the communicator is destroyed in good order. */
void silence_over(struct roll_engine *e, struct source *s, const struct roll_record *rec);
void silence_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait);
void silence_gone(struct roll_engine *e, struct member *m);
void silence_trouble(struct roll_engine *e); /* it is known from now on that ranks are stuck, and why */
void silence_settle(struct roll_engine *e);  /* e->mute_fresh: something was muted since it was called last */

/* --- match.c --- */
uint64_t match_signature(const struct roll_record *rec);
int match_collective(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket);
/* A call meets those that are on its slot already; match_open has a disagreement judged. 0 or NOMEM. */
int match_meet(struct roll_engine *e, const struct member *m, struct slot *s, const struct entry *entry,
               uint64_t ticket);
void match_open(struct roll_engine *e, struct comm *c, uint32_t seq);
/* It returned an error: nothing was enqueued. */
static inline bool call_failed(const struct roll_record *rec)
{
    return rec->result != 0 && rec->result != NCCL_IN_PROGRESS && roll_seal_state(rec->seal) >= ROLL_STATE_RETURNED;
}
void match_ready(struct member *m, uint32_t seq);
void match_release(struct roll_engine *e, struct comm *c, struct slot *s); /* drops the variants */

/* --- p2p.c --- */
int p2p_call(struct roll_engine *e, struct member *m, struct entry *entry, uint64_t ticket);
uint64_t p2p_bytes(const struct roll_record *rec); /* of one message */
/* It is known how many messages this side of the pair has made. */
bool p2p_known(const struct pair *p, unsigned side);
bool p2p_complete(const struct entry *entry);
void p2p_ready(struct entry *entry);
/* Nothing was enqueued: the call does not count. */
void p2p_refused(struct roll_engine *e, struct member *m, struct entry *entry);
/* A call that was refused bears the number of earlier ones: they were, too. */
void p2p_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec);
struct pair *p2p_pair(const struct comm *c, uint32_t src, uint32_t dst);
struct node *p2p_node(const struct pair *p, uint32_t index);
static inline unsigned p2p_side(const struct roll_record *rec)
{
    return rec->op == ROLL_OP_RECV;
}
/* The group of this call touches more than half of the communicator: an all-to-all-v. */
bool p2p_is_alltoallv(const struct source *s, uint64_t ticket);

/* --- lowered.c: AlltoAll, Gather and Scatter are messages --- */
#define LOWERED_UNKNOWN UINT32_MAX
static inline bool lowered_op(unsigned op)
{
    return op == ROLL_OP_ALLTOALL || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}
/* A Gather or Scatter, of its root; of another member, which waits for the root alone. */
static inline bool lowered_root(const struct member *m, const struct roll_record *rec)
{
    return (rec->op == ROLL_OP_GATHER || rec->op == ROLL_OP_SCATTER) && rec->peer == m->rank;
}
static inline bool lowered_leaf(const struct member *m, const struct roll_record *rec)
{
    return (rec->op == ROLL_OP_GATHER || rec->op == ROLL_OP_SCATTER) && rec->peer != m->rank;
}
void lowered_note(struct member *m, const struct roll_record *rec, bool made); /* false: it was refused after all */
/* Number + 1 of the last such collective with a message from src to dst that the member, one of the two, has made; 0:
 * none. */
uint32_t lowered_before(const struct member *m, uint32_t src, uint32_t dst);
void lowered_free(struct member *m);

/* --- sweep.c: what is complete --- */
void sweep(struct roll_engine *e);
/* NCCL keeps the calls of one communicator in order, whatever their streams: the queue whose head this call waits for;
 * NULL: it has its turn. */
struct queue *sweep_turn(struct source *s, const struct entry *entry, uint64_t ticket);
void sweep_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait); /* the host came back */
void sweep_done(struct roll_engine *e, struct source *s, const struct roll_record *rec);    /* the device says so */
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
/* On its own rank: it may be complete nowhere else. */
bool entry_over(const struct source *s, const struct entry *entry);

/* --- graph.c: what was captured into which graph --- */
#define CAPTURED_MAX 8192u /* captured calls remembered per source */
void graph_note_call(struct source *s, const struct roll_record *rec, uint64_t ticket);
void graph_define(struct source *s, const struct roll_def *def);
void graph_forget(struct source *s);
/* The n-th collective that graph `id` holds on a communicator of this source, as far as it is remembered: false when it
 * is not. *total: how many there are, by the graph's definition; 0 = not known. */
bool graph_collective(const struct source *s, uint32_t id, uint32_t comm, uint32_t n, struct roll_record *out,
                      uint32_t *total);

/* --- site.c: call sites that can be compared between ranks --- */
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

/* --- detect_refused.c: calls of which nothing was enqueued --- */
bool refused_call(const struct entry *entry);              /* it is such a call, as far as is known */
bool refused_is_group_void(const struct roll_record *rec); /* this GROUP_END ends a group in vain */
void refused_fresh(struct roll_engine *e, struct member *m, struct entry *entry);
void refused_late(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket);
void refused_group(struct roll_engine *e, struct source *s, const struct roll_record *end, uint64_t ticket);
void refused_repeat(struct roll_engine *e, struct member *m,
                    const struct roll_record *rec); /* its number comes again */
void refused_over(const struct roll_engine *e, struct member *m,
                  const struct roll_record *rec); /* it has made a call here that counts */
/* The newest call of its process, when it comes and when it has returned. */
void refused_last(struct roll_engine *e, struct source *s, const struct roll_record *rec);
bool refused_death(struct roll_engine *e, struct source *s); /* it ended after an error: told here */
bool refused_end(const struct source *s);                    /* and that has been told, whoever else waits for it */
void refused_forget(struct source *s);                       /* records are lost: it may have been made again */
void refused_renew(const struct roll_engine *e,
                   struct source *s); /* it is heard again: time to make them again begins anew */
void refused_free(struct member *m);

/* --- detect_zero.c: calls of no elements --- */
/* How many calls m has dropped at this place that may stand for what `by` made; *ticket: the last one. */
uint32_t zero_dropped(const struct roll_engine *e, const struct member *m, uint32_t seq, const struct source *by,
                      const struct roll_record *made, uint64_t *ticket);
bool zero_drops(const struct member *m, const struct roll_record *rec); /* it has dropped calls like this one */

/* --- detect_claim.c: definitions that contradict each other --- */
/* Keeps what cannot be a member: 0, CORRUPT where it is no claim of its own, NOMEM. */
int claim_add(struct roll_engine *e, struct comm *c, uint32_t source, const struct roll_def_comm *def);
const struct claim *claim_of(const struct roll_engine *e, const struct source *s,
                             const struct comm **out); /* or NULL */

/* --- detect_race.c: calls of several host threads --- */
void race_call(struct roll_engine *e, struct member *m, const struct roll_record *rec);
void race_returned(struct roll_engine *e, struct source *s,
                   const struct roll_record *rec); /* news of a call, or of a group's end */
void race_forget(struct source *s);

/* --- detect_stuck.c: what host waits have been like --- */
/* A loop of polls (ticket + 1 of its record) is now told by another record. */
void stuck_goes_on(struct source *s, uint64_t inside, uint64_t now_inside);
/* A wait of the host has returned; since: patience clock at which it was seen to be inside, NO_CLOCK: it was not. */
void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since);

void stuck_polled(struct source *s, uint64_t ticket); /* polls that were over before they were seen */

/* stuck_find.c: its host stands in a call in which everybody stands, and that is why it does not come (yet) to where
 * others wait for it. */
bool stuck_stands(struct roll_engine *e, const struct source *s);

/* --- detect_straggler.c --- */
void lag_free(struct comm *c);

/* --- align.c: a disagreement at one slot --- */
void align_open(struct roll_engine *e, struct comm *c, uint32_t seq);
/* A member has made a call while a disagreement is being judged. */
void align_arrived(struct roll_engine *e, const struct member *m, const struct entry *entry);
void align_step(struct roll_engine *e, struct comm *c);   /* decides when it can */
void align_drop(struct roll_engine *e, struct comm *c);   /* forgets what is being judged */
void align_resume(struct roll_engine *e, struct comm *c); /* its silence has ended: what came up meanwhile is judged */
void align_withdraw(struct roll_engine *e, struct comm *c, uint32_t seq); /* a call there was taken out */

enum align_kind {
    ALIGN_UNKNOWN = 0,
    ALIGN_ARGUMENT,
    ALIGN_OTHER_OP,
    ALIGN_SKIP,
    ALIGN_ADD,
    ALIGN_REORDER,
    ALIGN_GROUP,
    ALIGN_ZERO
};

/* How the members of a communicator stand at a collective. */
struct camps {
    uint32_t made;   /* have made some call there */
    uint32_t never;  /* never will: ended, dead, or they have destroyed the communicator */
    uint32_t unseen; /* nothing is known: never seen, or the record is lost */
    uint32_t may;    /* still may */
};
void vote_absent(const struct roll_engine *e, const struct comm *c, uint32_t seq, struct camps *out);

/* What has been found out about the ranks that do not follow the majority. */
struct finding {
    struct comm *comm;
    uint32_t seq;
    enum align_kind kind;
    uint32_t length;               /* calls skipped, added or reordered */
    uint32_t overlap;              /* calls that agree afterwards */
    bool tie;                      /* no majority: culprits only say which side is which */
    bool by_history;               /* it alone says who is right; the others are stuck elsewhere */
    bool harmless;                 /* it may be a mistake that hangs nothing: nothing is silenced for it */
    enum roll_certainty certainty; /* PROVEN: the vote is decided and so is the kind; else SUSPECTED */
    uint32_t open;                 /* bits (1 << kind) of mistakes that are not excluded besides `kind` */
    uint32_t come, wait;           /* members that have called there, and those that have not and still may */
    uint64_t earlier;    /* the verdict about these ranks and this place that this one takes the place of; 0 = none */
    uint64_t *number;    /* receives that of the verdict; NULL: nobody asks */
    bool template_major; /* the communicator's own history speaks for the side called majority */
    struct roll_rankset minor, major; /* world ranks */
    const struct source *minor_source, *major_source;
    uint64_t minor_ticket, major_ticket; /* their calls at seq; ALIGN_ZERO: minor's is the dropped call */
    uint64_t after_ticket;               /* minor: the first call that agrees again; 0 unknown; ticket + 1 */
};

/* --- align.c: the life of a finding, for the detectors that say it --- */
/* False when this cause has been told already. Sets nothing. */
bool finding_is_new(struct roll_engine *e, const struct finding *f, enum roll_verdict_code code);
/* Culprits or a tie, what is open, and which verdict this one takes the place of: into v and the words. Last before
 * say_text. */
void finding_life(struct roll_engine *e, struct roll_verdict *v, const struct finding *f, struct words *w);
/* --- astray.c: a call made on another communicator than its peers --- */
struct astray {
    const struct source *rank; /* that made it */
    enum align_kind kind;      /* what the finding is, then */
    struct comm *told;         /* the other communicator, of which something was told ... */
    struct half half;          /* ... this */
    struct comm *right, *wrong;
    uint32_t right_seq;
};
/* Is what was told about another communicator the other half of this finding? */
bool astray_find(const struct roll_engine *e, const struct finding *f, struct astray *out);
/* with: NULL where there is no other half yet. */
void astray_keep(const struct finding *f, const struct roll_verdict *v, const struct astray *with);
/* The code of a wrong argument or operation, and the argument's name; NONE: nothing that is known differs.
 * detect_signature.c */
enum roll_verdict_code signature_code(enum align_kind kind, const struct roll_record *a, const struct roll_record *b,
                                      const char **field);

/* --- say.c: building verdicts --- */
struct roll_verdict *say(struct roll_engine *e, enum roll_verdict_code code, enum roll_certainty certainty);
bool say_once(struct roll_engine *e, uint64_t key); /* true the first time */
bool say_is_said(const struct roll_engine *e, uint64_t key);
uint64_t say_key(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void say_comm(struct roll_verdict *v, const struct comm *c, uint64_t seq);
void say_side(struct roll_verdict *v, const struct source *s, uint32_t index, const struct roll_rankset *ranks,
              const struct roll_record *rec);
/* World ranks that wait in the same call as this one of s, s included: one side of a verdict. */
void say_beside(const struct roll_engine *e, const struct source *s, const struct entry *at, struct roll_rankset *out);
void say_text(struct roll_engine *e, struct roll_verdict *v, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
uint32_t source_index(const struct roll_engine *e, const struct source *s);

/*
 * The life of a verdict. A detector that says something before all is known remembers its number under a key of its own
 * (say_key with what identifies the case: code or a tag, communicator, place), and later supersedes, confirms or
 * withdraws it.
 *
 *     v = say(e, ...);                       say_remember(e, key, v->number);
 *     v = say(e, ... PROVEN);                say_confirms(e, v, say_recall(e, key));
 *     say_withdraw(e, say_recall(e, key), "the call came after all");   say_forget(e, key);
 *
 * All take 0, a number that is not that of a finding, and one that is retired already, and then do nothing. What is
 * proven is never withdrawn: say_withdraw refuses. Each finding is retired at most once, by the first that does it.
 */
void say_supersedes(struct roll_engine *e, struct roll_verdict *v, uint64_t number); /* v says it better */
void say_confirms(struct roll_engine *e, struct roll_verdict *v, uint64_t number); /* v says the same, and proves it */
/* One note: "Verdict 3 (call-skipped) is withdrawn: <why>." True when it was. why: part of a sentence, without its full
 * stop. */
bool say_withdraw(struct roll_engine *e, uint64_t number, const char *why);
/* The class of mistake is open: it may be this code as well. The detector's text says so, too: words_may_be. */
void say_may_be(struct roll_verdict *v, enum roll_verdict_code code);
bool say_stands(const struct roll_engine *e, uint64_t number);             /* it is a finding and not retired */
const struct told *say_told(const struct roll_engine *e, uint64_t number); /* NULL: no finding */
void say_keep(struct roll_engine *e, const struct roll_verdict *v); /* it leaves the queue: what a withdrawal shows */
void say_remember(struct roll_engine *e, uint64_t key, uint64_t number);
uint64_t say_recall(const struct roll_engine *e, uint64_t key); /* 0 = nothing */
void say_forget(struct roll_engine *e, uint64_t key);           /* say_once is true again */

/* --- explain.c: words --- */
struct block;
struct words {
    char text[4096];
    size_t used;
};
void words_add(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void words_call(struct words *w, const struct roll_record *rec);   /* "AllReduce of 1024 float32 (sum)" */
void words_ranks(struct words *w, const struct roll_rankset *set); /* "rank 3", "ranks 0-2,5" */
void words_wait(struct words *w, const struct roll_rankset *set);  /* \"rank 3 waits\", \"ranks 0-2 wait\" */
/* The one name of a communicator: "communicator ep (8 ranks)"; "communicator ep of ranks 0-7 (8 ranks)" where others
 * have that label; without a label "communicator of every 8th rank from 3 (4 ranks)", "the 2nd communicator of ranks
 * 0-7 (8 ranks)". */
void words_comm(struct words *w, const struct comm *c);
void words_comm_made(struct words *w,
                     const struct comm *c); /* "made by CommSplit of communicator world (16 ranks), color 1" */
void words_place(struct words *w, uint32_t step, uint32_t microbatch, uint32_t layer); /* "MoE layer 3, step 17" */
void words_exit(struct words *w, int32_t status);                                      /* "by signal 9 (Killed)" */
/* " The calls known so far fit call-skipped and op-mismatch as well." Nothing where the class is certain. */
void words_may_be(struct words *w, const struct roll_verdict *v);
void words_soft(struct words *w, const struct roll_engine *e,
                const struct block *b); /* why a circle is only suspected */
void words_remedy(struct words *w, const struct roll_engine *e, uint32_t remedy, uint64_t key, uint32_t layer);

/* --- detect_moe_zero.c --- */
/* Says that this rank left out the experts of some MoE layer of this step because it had no tokens for them; the remedy
 * for that, 0: it did not. */
uint32_t words_left_out_experts(struct words *w, const struct source *s, uint32_t step);

/* --- waitgraph.c: why nothing goes on --- */
enum block_kind {
    BLOCK_DEAD = 1,
    BLOCK_STOPPED,
    BLOCK_FINISHED,
    BLOCK_GONE,
    BLOCK_CYCLE,
    BLOCK_STUCK,
    BLOCK_BUSY,
    BLOCK_KNOWN,
    BLOCK_BLAMED,
    BLOCK_PASSED,
    BLOCK_UNHEARD,
    BLOCK_ABORTED, /* it has aborted or revoked the communicator */
    BLOCK_LEFT,    /* it has made the call and ended without waiting for it */
    BLOCK_SHORT,   /* its group held fewer calls than that of the waiter, and its host waits behind it */
    BLOCK_KINDS
};

/* How the members of a communicator stand to one call: absence is a vote as well. */
enum quorum {
    CAMP_MADE = 0, /* most have made it */
    CAMP_NEVER,    /* most have ended or left the communicator without it */
    CAMP_TIE,
    CAMP_OPEN, /* those who may still come decide */
};

#define BLOCK_STEPS 64u
/* One reason why ranks wait: what the detectors are asked about. */
struct block {
    enum block_kind kind;
    struct source *rank;   /* the rank that holds the others up; CYCLE: any of them */
    struct source *waiter; /* one that waits for it, with the call that waits */
    uint64_t ticket;
    struct comm *comm; /* of that call */
    bool hard;         /* every link is proven by the records */
    struct {
        struct source *rank;
        uint64_t ticket; /* what it waits in */
    } step[BLOCK_STEPS]; /* CYCLE: the circle; others: the chain from a waiter to the rank */
    uint32_t steps;
    const struct roll_rankset *waiting; /* those who wait in this call; CYCLE: in the calls of the circle */
    struct roll_rankset absent;         /* world ranks of this kind that do not come, `rank` among them */
    enum quorum camp;                   /* FINISHED, GONE, ABORTED, LEFT, SHORT */
    bool beside;                        /* ... the members of siblings decide it, not those of `comm` alone */
    bool decided;                       /* CYCLE: `odd` go another way than all others who can tell ... */
    struct roll_rankset odd;
    uint32_t odd_at; /* ... they lack the call of this step, and are in that of the next one */
    bool awaits;     /* CYCLE: nobody is odd so far, and somebody who can tell may still come */
};
void waitgraph_run(struct roll_engine *e);
bool waitgraph_old(const struct roll_engine *e, const struct queue *q); /* its head has waited for stall_ns */
uint32_t waitgraph_missing(const struct roll_engine *e, const struct source *s, const struct entry *entry,
                           struct roll_rankset *out); /* world ranks that have not issued their side */

/* --- wait_judge.c: which of the reasons found is the cause --- */
void waits_judge(struct roll_engine *e, struct block *found, uint32_t n);
/* The newest verdict says that these have ended (world ranks) and that this source waits for it: what was said of it
 * before, naming nobody, is replaced. */
void ended_say(struct roll_engine *e, const struct roll_rankset *ended, uint32_t waiter);

/* --- doubt.c: suspicions that come to nothing --- */
void doubt_add(struct roll_engine *e, uint64_t number,
               const struct block *b); /* verdict `number` rests on the call of b */
/* The same for a wait of `waiter` in a call of this communicator for one rank. */
void doubt_call(struct roll_engine *e, uint64_t number, const struct source *waiter, uint64_t ticket,
                const struct source *absent, struct comm *comm);
void doubts_look(struct roll_engine *e);
void doubts_free(struct roll_engine *e);

/* --- order_vote.c: who of a circle goes another way than the others --- */
/* True: *odd (added to it; world ranks) lack the call of step *at of the circle and are in the call of the next step
 * instead, against most of those who belong to both. *awaits is set where somebody who belongs to both has come to
 * neither, and may come. */
bool order_vote(const struct roll_engine *e, const struct block *b, struct roll_rankset *odd, uint32_t *at,
                bool *awaits);
const struct member *comm_member_of(const struct comm *c, uint32_t source); /* NULL: none */
bool comm_is_sibling(const struct comm *a, const struct comm *b);           /* the same place of the program */
/* How many of the last calls before seq are alike; -1: one is not. */
int comm_same_past(const struct comm *a, const struct comm *b, uint32_t seq);
bool comm_same_call(const struct comm *a, const struct comm *b,
                    uint32_t seq); /* both still know it, and it was alike */
/* Ticket of the collective with this number; UINT64_MAX when it is not in the log. */
uint64_t source_ticket_of(const struct source *s, const struct member *m, uint32_t seq);

/* --- detect_init.c --- */
/* A nonblocking creation of this source is over, if it is inside one: it goes on with other calls. */
void creation_over(struct source *s);
/* It has asked how a communicator stands (rec), and nothing is in progress there. */
void creation_asked(struct roll_engine *e, struct source *s, const struct roll_record *rec);
uint64_t creation_key(const struct source *s, const struct roll_record *rec); /* of the verdict about it */
/* The communicator under creation holds every rank of the job. */
bool creation_is_whole(const struct roll_engine *e, const struct source *s, const struct roll_record *rec);

/* --- detector.h has the table --- */
#endif
