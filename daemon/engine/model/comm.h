/*
 * comm.h: one communicator: its members, and a window of slots, one for each of its collectives (sequence number).
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_COMM_H
#define ROLL_DAEMON_ENGINE_MODEL_COMM_H

#include "daemon/engine/model/source.h"

#define NO_SEQ    UINT32_MAX
#define NO_THREAD UINT16_MAX
#define SLOTS_MIN 64u /* slots of the smallest window */
#define ZEROS_MAX 8u  /* collectives of no elements that are remembered per member */
#define HALVES    2u  /* what struct half is kept as: a call that is missing, and one too many */

struct dispute;
struct lowered;

/* Collectives of one kind: the numbers + 1 of the last one and of the one before it; 0 = there is none. */
struct latest {
    uint32_t last, before;
};

/* What one rank does on one communicator. What each record needs stands first, in one line of the cache. */
struct member {
    _Alignas(CACHE_LINE) struct comm *comm;
    uint32_t source; /* NO_SOURCE: nothing has come of this member */
    int32_t rank;    /* on the communicator */
    uint8_t ended;   /* the operation by which it has aborted or revoked the communicator; 0 = it has not */
    bool gone;       /* it has destroyed or finalized the communicator */

    /* all its calls here */
    bool many_queues;  /* its calls stand in several queues */
    bool many_callers; /* several host threads have made calls */
    bool unsure;       /* records were lost since its last call, which may have been calls here */
    bool touched;      /* it is among source.touched */
    bool was_refused;  /* a call was refused: calls that come later are shown to detect_refused.c */
    uint16_t caller;   /* the host thread of its last call; 0 = none yet */
    uint32_t queue;    /* 1 + the queue in which its last call stands */

    /* its collectives */
    uint32_t next;           /* the sequence number after its last collective */
    uint32_t from;           /* below this number its collectives are not known, and count as arrived and ready */
    uint32_t late;           /* 1 + its place in comm.late; 0: it has none */
    uint32_t group;          /* the group that its last collective was made in; 0 = none */
    uint16_t thread;         /* the host thread that made that collective; NO_THREAD: not known */
    struct latest alltoall;  /* its last AlltoAlls: lowered.c */
    struct lowered *lowered; /* its last Gathers and Scatters: lowered.c; owned */
    bool lowered_lost;       /* records are missing, so that `alltoall` and `lowered` say nothing */
    struct {
        uint64_t sig;
        uint64_t ticket;
        uint32_t seq;
    } zero[ZEROS_MAX]; /* its last calls of no elements; the newest is at (zeros - 1) % ZEROS_MAX: zero.c */
    uint32_t zeros;
    uint32_t gaps;       /* how often records were lost */
    uint32_t splits;     /* calls of CommSplit with this communicator as the parent */
    uint32_t windows;    /* bytes by which it has made the window of slots grow: budget.h */
    uint32_t split_gaps; /* `gaps` when the last of them came */

    /* how it leaves */
    uint8_t async;       /* ncclResult_t that ncclCommGetAsyncError has given last */
    uint64_t settled;    /* ticket + 1 of the answer that nothing is in progress any more; 0 = none */
    uint64_t ended_calm; /* clock of suspicion at which it aborted the communicator */

    /* what the judge knows of it */
    bool passed;      /* the communicator is silent, and this member has got past the trouble: silence.c */
    uint64_t late_ns; /* the longest time by which it came late, though it was suspected not to come: doubt.c */
    void **state;     /* what detectors keep of this member: detect/state.h */
};

/* Where the calls of a member stand: what is asked of all members when a slot is complete, close together in memory. */
struct seat {
    uint32_t source;
    uint32_t queues; /* bits (queue_bit) of the queues in which its calls stand; 0 = it has made none */
};

/* A call at a slot that differs from the call that came first there. */
struct variant {
    uint64_t sig, ticket;
    uint32_t rank; /* on the communicator */
    uint32_t next; /* 1 + the number of the next variant in the engine's pool; 0 = there is none */
};

/* One collective of a communicator. */
struct slot {
    uint64_t sig;    /* the signature of the call that came first; as history it stays when the slot is complete */
    uint64_t ticket; /* ticket + 1 of that call; 0 = no call is known */
    uint32_t rank;   /* the rank on the communicator that made that call */
    uint32_t arrived, ready; /* members whose call has come, and whose call is ready */
    uint32_t chained;        /* members whose call stands right behind their call before it on this communicator, and
                                so is ready once the collective before this one is complete; none of `ready` */
    uint32_t variant;        /* 1 + the number of the first variant; 0 = all calls agree */
    uint32_t visit;          /* stall analysis, as in struct queue */
    uint32_t asked;          /* stall analysis: number of the run that found `holders` */
    uint8_t dtype;           /* the datatype of the call that came first */
    bool joined;             /* that call is in one group with its rank's call before it on this communicator */
    bool known;              /* that call before it was seen, so that `joined` can be believed */
    bool held : 1;           /* the calls disagree, and that is still being judged: the slot is not complete */
    bool judged : 1;         /* the disagreement has been judged */
    bool mixed : 1;          /* the calls move as many bytes, but not of one datatype */
    bool root_ready : 1;     /* of a Gather or Scatter: the call of its root is ready (lowered.c) */
    uint8_t holders : 2;     /* stall analysis: how many members hold the collective up; 2 stands for more as well */
};

/* What was told last of one call that is missing or too many on a communicator: astray.c. */
struct half {
    uint64_t number; /* the verdict; 0 = none */
    uint32_t seq;
    const struct source *lacks, *has; /* the rank that lacks the call, and the rank that made it, as far as that rank
                                         may be the one that is wrong; else NULL */
    uint64_t gap, made;               /* tickets: of the call behind the gap, and of the call itself */
    struct roll_record call;
    bool named, proven; /* the vote says who is wrong; the verdict is proven */
};

/* What each record needs stands first, close together. */
struct comm {
    struct roll_engine *engine;
    uint64_t key; /* of its definition */

    /* its collectives */
    struct slot *slot; /* by sequence number & slot_mask */
    uint32_t slot_mask;
    uint32_t size;      /* its members */
    uint32_t base;      /* the lowest sequence number that is not complete */
    uint32_t high;      /* the highest sequence number that has arrived, plus 1 */
    uint32_t held;      /* the sequence number that is being judged; NO_SEQ = none: align.c */
    uint32_t coll, p2p; /* calls seen, for the guess of its role */
    bool waits_over;    /* it is over, and one of those that are forgotten when there is no room */
    struct comm *next_over;
    bool aborted;    /* no member is left that could still call */
    bool overflow;   /* there was no room for its incomplete calls: room.c */
    bool muted;      /* a cause was found here; until silence.c ends that, what follows is its consequence */
    bool group_told; /* members were seen to differ in where a group begins or ends: align.c */

    /* what its members have called, for the faces */
    struct roll_view_traffic traffic;

    uint32_t id;    /* the number of this communicator in the engine */
    uint32_t payer; /* the source for which those of its members count that have not come: budget.h */

    /* what its definition says */
    uint64_t parent_key;
    uint32_t origin;        /* enum roll_comm_origin */
    uint32_t child;         /* the number of the split of the parent that made it */
    int32_t color;          /* the colour of its members in that split */
    uint32_t made_source;   /* the source of the call that made it, of the lowest rank of which that is known */
    uint16_t made_callsite; /* the call site of that call, by the id of that source; 0 = not known */
    uint32_t made_rank;     /* that rank on the communicator, plus 1; 0 = none */
    bool made_elsewhere;    /* members made it at different lines of Python */
    char label[ROLL_NAME_BYTES];
    bool open;         /* nothing has told its size: the communicator grows with the members that are seen */
    uint32_t believed; /* ranks that the job believes it to have, where some are stood in for; 0: `size` */

    /* its members */
    uint32_t seen, gone;   /* members of which something has come; those that have left it */
    uint32_t room;         /* members that there is room for: more than `size` where it is open */
    struct member *member; /* by rank */
    struct seat *seat;     /* by rank */

    /* its collectives and messages */
    struct member **late; /* those that have a `from`: first the `ahead` whose it may be beyond `high`; owned */
    size_t lates, ahead, late_room;
    struct pair **pair; /* hash table by (source, destination): pair.c */
    uint32_t pairs, pair_mask;
    uint32_t moe;      /* MoE events that named it as their expert-parallel communicator */
    uint32_t empties;  /* messages of 0 bytes: whoever makes them does not leave them out */
    uint32_t refusals; /* members whose last call here was refused */

    /* why it is judged no more */
    bool retires; /* it will be given up in the next tick: detect_lowered.c */

    /* its silence: silence.c */
    bool explains;       /* besides, its members are stuck for that cause */
    uint32_t zeros;      /* calls of no elements that its members have made */
    uint32_t mute_seq;   /* the collective at which the trouble began; NO_SEQ: not a collective */
    uint64_t mute_ns;    /* wall clock of the call at which the trouble began */
    uint64_t mute_wall;  /* wall clock at which the trouble became known */
    uint64_t mute_turn;  /* how many silences of communicators had begun by then, with it */
    uint64_t mute_doubt; /* the suspicion that it rests on: it ends where that is withdrawn; 0 = none */
    uint64_t doubted;    /* a suspicion that is looked at again, whose place the next finding here takes; 0 = none */
    uint32_t era;        /* silences that have ended: a part of the keys of what is said once */

    /* its disagreements: align.c */
    uint64_t held_ns;         /* patience clock at which the judging began */
    struct dispute *dispute;  /* that judging; owned; NULL = none */
    struct half half[HALVES]; /* a call that may have been made on another communicator: astray.c */
    bool blamed;              /* it was predicted that somebody will be waited for here: detect_moe_obligation.c */

    uint64_t ended_calm; /* clock of suspicion at which a member last aborted it */
    uint32_t visit;      /* stall analysis: number of the run that looked into a creation with this communicator */
    uint32_t creation;   /* stall analysis: the number of that creation in the table of the run */
    void **state;        /* what detectors keep of this communicator: detect/state.h */
};

static inline struct slot *comm_slot(const struct comm *c, uint32_t seq)
{
    return &c->slot[seq & c->slot_mask];
}

/* All members are ready at this collective, or nothing is judged on the communicator any more. */
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

/* comm.c: communicators and their slots */

/* The communicator with this key; NULL: none. */
struct comm *comm_find(const struct roll_engine *e, uint64_t key);
/*
 * Takes the definition of a communicator by a source. *contradicts: the communicator of which this definition says
 * something else than those before it, and which has therefore not got this member; NULL as a rule. NOMEM, CORRUPT.
 */
int comm_define(struct roll_engine *e, uint32_t source, uint32_t id, const struct roll_def_comm *def, const char *label,
                struct comm **contradicts);
/* This record is the call by which member m made the communicator. */
void comm_made(struct roll_engine *e, const struct member *m, const struct roll_record *rec);
/* This record is a split of `parent` by source s: notes it with the children that it made, as far as they are defined.
 */
void comm_split_made(struct roll_engine *e, const struct source *s, const struct member *parent,
                     const struct roll_record *rec);
/* Where the communicator is over, what it keeps of its calls may be forgotten when there is no room for something else
 * (comm_forget_one): a job may make and destroy communicators for months. Not before, because what is judged later
 * looks back at it. */
void comm_is_over(struct roll_engine *e, struct comm *c);
/* Forgets what the one keeps that has been over for the longest time, and gives back what that counted for its sources.
 * false: there is none. */
bool comm_forget_one(struct roll_engine *e);
/* Doubles the window of slots. 0, NOMEM. */
int comm_grow(struct comm *c);
/* Opens the slots before `upto`, which there is room for. */
void comm_open_slots(struct comm *c, uint32_t upto);
/* The collectives of member m below this number are not known, and count as made. */
void comm_came_in(struct member *m, uint32_t seq);
/* The window, in which there is nothing, begins at this number. */
void comm_begin_at(struct comm *c, uint32_t seq);
/* The member has made the collective with this number. */
bool comm_member_issued(const struct member *m, uint32_t seq);
/* Moves the beginning of the window past the collectives that are complete. */
void comm_advance(struct roll_engine *e, struct comm *c);
/* The member has made calls here that are not complete. */
bool comm_behind(const struct member *m);
/* The member that a source is; NULL: the source is none. */
const struct member *comm_member_of(const struct comm *c, uint32_t source);
/* The rank in the job of a member; NO_SOURCE: not known. */
uint32_t comm_world(const struct roll_engine *e, const struct comm *c, uint32_t rank);
/* The call by which communicators of this origin (enum roll_comm_origin) are made. */
enum roll_op comm_made_by(uint32_t origin);
void comm_free(struct comm *c);

/* variant.c: the calls at a slot that differ from the call that came first */

/* Copies *v into the slot's list. 0, NOMEM. */
int slot_add_variant(struct roll_engine *e, struct slot *s, const struct variant *v);
/* Empties that list. */
void slot_release(struct roll_engine *e, struct slot *s);

#endif
