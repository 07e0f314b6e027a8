/*
 * source.h: one rank process, as its records show it: a log of its calls, a queue for each of its streams, the state of
 * each of its host threads; its captured graphs and its call sites.
 *
 * Tickets number the records of a source. Where a member holds a ticket and may hold none, the member is the ticket
 * plus 1, and 0 says "none"; where a function returns a ticket, NO_TICKET says so. The patience clock and the clock of
 * suspicion are `clock` and `calm` of struct roll_engine.
 */
#ifndef ROLL_DAEMON_ENGINE_MODEL_SOURCE_H
#define ROLL_DAEMON_ENGINE_MODEL_SOURCE_H

#include "daemon/engine/engine.h"
#include "trace/err.h"
#include "trace/op.h"

#include <stddef.h>
#include <sys/wait.h>

#define CACHE_LINE 64u
/*
 * For functions that only ask for memory (__builtin_prefetch). To the compiler these have no effect, and it leaves out
 * calls of them, unless they are parts of their callers from the start.
 */
#define ASKS_MEMORY static inline __attribute__((always_inline))
#define NO_SOURCE   UINT32_MAX
#define NO_CLOCK    UINT64_MAX
#define NO_TICKET   UINT64_MAX
#define THREADS_MAX 16u /* host threads followed in a source; a source with more is never called blocked */
#define POLLED_MAX  4u  /* things that one loop of polls asks about: interposer/record/thread.h records no more */
#define GROUP_COMMS 16u /* communicators of one group whose streams are joined */

struct comm;
struct member;
struct pair;
struct graph_span;
struct site_table;

/* How far a collective is. Of a message COLL_REFUSED alone is noted. */
enum coll_state {
    COLL_ISSUED = 0,
    COLL_READY,   /* the slot has counted the collective as ready */
    COLL_REFUSED, /* nothing was enqueued: the collective is no part of its slot */
    COLL_CHAINED  /* the slot has counted the collective as chained: struct slot */
};

/* One record in the log of a source. */
struct entry {
    struct roll_record rec;
    struct pair *pair; /* of a message; NULL: a call of another kind, or a message that has no node */
    uint32_t index;    /* of a message: the number of its node in the pair */
    uint32_t next;     /* distance in tickets to the next call on the same stream, where brief.next has no room */
};

/*
 * What the sweep needs of most calls: of collectives outside groups that stand behind no event, and that nobody leaves
 * before they are complete. The records of such calls are written once and not read again while nothing is wrong: eight
 * of these fit a line of the cache, and two lines an entry.
 */
struct brief {
    uint32_t seq;
    uint16_t comm;      /* 0: the call is none of those, and its entry tells */
    uint16_t next : 14; /* distance in tickets to the next call on the same stream; 0: entry.next tells */
    uint16_t state : 2; /* enum coll_state, of all calls */
};
#define BRIEF_NEXT_MOST 0x3fffu

/* A part of a log: so many tickets in a row, from a multiple of that on. */
#define LOG_CHUNK 32u
struct log_chunk {
    struct brief brief[LOG_CHUNK];
    struct entry entry[LOG_CHUNK];
};

/* The calls of one stream that are not known to be complete, oldest first. */
struct queue {
    uint64_t head, tail; /* tickets + 1 of the oldest and the newest call; 0 = the queue is empty */
    uint64_t since;      /* patience clock at which the head got to the front */
    bool marked;         /* the head, with the rest of its group, has been counted as ready */
    bool grouped;        /* the head is part of a group that had not been ended when that was last looked at */
    uint32_t visit; /* stall analysis: twice the number of the run that saw this queue, plus 1 while the queue is on
                       the path of the walk */
    uint64_t done;  /* the rank has been told that its device is through with all calls before this ticket; 0 = it has
                       been told of none */
};

#define ALL_QUEUES UINT32_MAX
/* The bit that stands for a queue in a set of queues of one source; all queues of high numbers share one. */
static inline uint32_t queue_bit(uint32_t queue)
{
    return 1u << (queue < 31 ? queue : 31);
}

/* A host thread of the rank. */
struct thread {
    uint16_t id;
    uint32_t group;   /* the thread's open group; 0 = none */
    uint32_t joins;   /* how many of `joined` are in use */
    uint64_t inside;  /* ticket + 1 of the call that the thread has entered and not left; 0 = none */
    uint64_t since;   /* patience clock at which the thread was seen to be inside */
    uint64_t calm;    /* clock of suspicion at that moment, or when the rank was heard again, if that was later */
    uint64_t renewed; /* patience clock at which the newest record of the thread's loop of polls came */
    bool acts;        /* the thread has made calls other than polls */
    bool polls;       /* what the thread is inside is a loop of polls */
    uint8_t turns;    /* how many things that loop asks about */
    uint8_t named;    /* how many of them its records have named: those in `thing` */
    struct polled {
        uint64_t count;
        uint16_t stream, comm;
        uint8_t op;
    } thing[POLLED_MAX];
    struct {
        uint16_t comm;
        uint32_t stream;
    } joined[GROUP_COMMS]; /* communicators of the thread's open group, each with the queue of its first call there */
};

/* One call that was captured into a graph: what is left of its record. */
struct captured {
    uint64_t ticket, count;
    int32_t peer;
    uint16_t comm, callsite, graph;
    uint8_t op, dtype, redop, flags;
};

/* What each record needs stands first, close together. */
struct source {
    /* the log */
    _Alignas(CACHE_LINE) struct log_chunk **log; /* by (ticket & log_mask) / LOG_CHUNK; NULL: nothing was written there
                                                    yet */
    uint64_t log_mask;
    uint64_t next; /* the ticket after the last one */
    uint64_t kept; /* everybody has answered all calls before this ticket */
    uint64_t safe; /* no ticket below this one is still needed: a lower bound, found anew when the log is full */

    /* its parts */
    struct member **member; /* its place on each communicator, by the source's own small id of that communicator */
    struct comm **comm;     /* that communicator, likewise: who needs no more than it saves the way over the member */
    size_t members, comms;
    struct queue *queue; /* by stream id */
    size_t queue_room;
    uint32_t queues;   /* how many may be in use: the ids below this */
    bool crosses;      /* the calls of one communicator stand in several queues, or calls stand behind those of other
                          streams by events, so that one queue waits for another */
    bool completes;    /* the rank learns which calls its device has completed */
    bool many_threads; /* there are more threads than THREADS_MAX, or one was inside a call that is not known here */
    bool overlaps;     /* two threads have been inside calls at once: source_hands_over */
    bool late;         /* the first records of the process are not known */
    bool gap;          /* records have been lost since source_certain was asked last */
    enum roll_proc_state proc;
    uint32_t threads;
    uint32_t thread_last; /* index of the thread that was seen last */
    uint32_t turn;        /* 1 + index of the thread that acted last; 0 = none */
    uint8_t turn_op;      /* what that thread did */
    uint8_t phase;        /* the phase that the record of `step` reports */
    uint32_t turns;       /* how often another thread than before has acted */
    uint64_t turn_until;  /* when that thread has come back from its calls, by the clock of the records */
    uint64_t seen;        /* patience clock at which anything came from this source */
    uint64_t calm;        /* clock of suspicion at that moment */
    int64_t offset;       /* wall clock minus the clock of the records, as people are shown it: roll_engine_clock */
    int64_t line;         /* the same by which calls are judged: roll_engine_clock_set */
    uint64_t last_ns;     /* wall clock of the newest record that is no poll, as people are shown it; */
    uint64_t last_line;   /* and as it is judged by */
    uint64_t fast_next;   /* the calls below this ticket are of a clock that goes fast: silence.c */
    uint64_t records, calls, lost;
    uint64_t last_key;         /* key of the communicator of `last`; 0 = none */
    uint32_t step;             /* the step of the newest record that bears one */
    uint32_t first_step;       /* the step of the first such record */
    uint32_t went_back;        /* how often an observation has told of an earlier step than the one before */
    uint64_t step_wall;        /* wall clock at which `step` was first told */
    uint64_t again_wall;       /* of the last time it went back, or of its first step where it took the place of another
                                  process; 0: neither */
    uint64_t init;             /* ticket + 1 of the CommInit or CommSplit that the rank is inside; 0 = none */
    struct roll_record last;   /* the newest call of NCCL */
    struct roll_record failed; /* the same, if that call was refused; op NONE: it was not */
    uint64_t failed_clock;     /* patience clock at which that was read */
    struct thread *thread;     /* owned; there is room for thread_room of them, THREADS_MAX at most */
    uint32_t thread_room;

    /* what the engine keeps for it: budget.h */
    uint64_t held, shared; /* bytes; those of them that are not its own */
    uint32_t slack;        /* how often in a row the log was full and a sixteenth of it was needed */
    uint64_t refusals;     /* how often there was no room for what it asked for */
    bool no_room;          /* it is set aside for that */
    uint64_t fog;        /* ticket + 1 of the oldest of its calls that were not matched and may not be over; 0 = none */
    uint64_t fog_last;   /* of the newest one */
    uint32_t fog_stream; /* their stream; ALL_QUEUES: they have several, or it is not known */

    struct roll_source_info info;
    char host[ROLL_NAME_BYTES], exe[128];
    uint32_t number;     /* its place in the engine's list of sources */
    uint32_t world;      /* rank in the job */
    uint32_t generation; /* how many processes of the same rank came before this one */

    /* the process */
    int32_t exit_status; /* without ROLL_EXIT_ASKED */
    bool asked;          /* the launcher began to end the job while the process lived: its end is no cause */
    uint64_t proc_ns;    /* patience clock at which the engine learnt of `proc` */
    bool said_dead;      /* the death of the process has been told, or needs not be */
    uint64_t end_number; /* the verdict that says that the process ended before its peers; 0 = none */
    uint32_t end_waiter; /* the source that is said there to wait for the process */
    bool end_named;      /* that verdict names the process as a culprit: no other verdict about its end is needed */

    /* more of its parts */
    struct captured *captured; /* captured calls in the order of their tickets; a ring of CAPTURED_MAX: graph.c */
    uint32_t captures;         /* how many there have been */
    size_t capture_room;
    struct graph_span *graph; /* by graph id */
    size_t graphs;
    struct site_table *sites; /* call sites: site.c; owned */
    void **state;             /* what detectors keep of this source: detect/state.h */

    /* news and silence */
    uint64_t back_ns;   /* patience clock at which the host last came back from a wait without an error */
    uint64_t back_wall; /* wall clock at which that wait had begun */
    uint32_t starved;   /* permille: struct roll_engine_sight */
    bool unheard;       /* the agent of the rank is silent, or the rank was left aside */
    bool aside;         /* the latter */
    uint64_t gave_up;   /* ticket + 1 of the call by which it left a communicator in whose trouble, which had been told,
                           it was stuck; 0 = none, or it has made a collective or a message since */
    uint64_t excuse;    /* ticket + 1 of a call in which the rank waits for a reason that has been told; 0 = none */

    /* records that are missing */
    bool snapshot;           /* roll_engine_snapshot: nothing is known but the calls */
    bool lacking;            /* the same, and not even these */
    bool in_gap;             /* what the source says about step `gap_step` may not be all that it has said about it */
    struct member **touched; /* its members of which something has come since the newest loss; owned */
    size_t touches, touched_room;
    bool touched_all;    /* there was no memory to note one of them: any may be one */
    uint64_t gap_ticket; /* the first ticket behind the newest loss; 0 = nothing was lost */
    uint32_t gap_step;

    /* creations of communicators */
    uint32_t inits;      /* calls of CommInit so far */
    uint64_t init_since; /* patience clock at which the rank came there */
    uint64_t init_calm;  /* clock of suspicion at that moment, or when the rank was heard again, if that was later */
    uint64_t heard_calm; /* clock of suspicion when the rank was heard again last, or was heard no more; 0: never */
    bool init_polled;    /* that call is nonblocking: it has returned, and the creation goes on */
    uint64_t init_known; /* `init` of a creation in which the rank waits for a reason that is known */
    uint64_t init_dark;  /* the same, where the reason is that a rank is not heard: it holds until all are */
    uint32_t visit;      /* stall analysis: number of the run that looked at the creation that the rank is inside */
    uint32_t defined; /* stall analysis: number of the run that last found the rank among the members of a creation */
};

/* What stands on the path of every record is defined here and not in source.c. */

/* The part of the log in which a ticket has its place; NULL: nothing was written there. The log must be open. */
static inline struct log_chunk *source_chunk(const struct source *s, uint64_t ticket)
{
    return s->log[(ticket & s->log_mask) / LOG_CHUNK];
}

/* Asks for the memory of a ticket's place. */
ASKS_MEMORY void source_ask(const struct source *s, uint64_t ticket)
{
    const struct log_chunk *chunk = source_chunk(s, ticket);
    if (chunk) {
        __builtin_prefetch(&chunk->entry[ticket % LOG_CHUNK], 1);
    }
}

/* The record with a ticket; NULL: the log does not hold it. What lies further back than the log is long is not held,
 * also where a gap has left it in its place: so whoever goes on from a record that is held has no longer way than that.
 */
static inline struct entry *source_entry(const struct source *s, uint64_t ticket)
{
    if (!s->log || s->next - 1 - ticket > s->log_mask) { /* a ticket that has not come yet is far above as well */
        return NULL;
    }
    struct log_chunk *chunk = source_chunk(s, ticket);
    if (!chunk) {
        return NULL;
    }
    struct entry *entry = &chunk->entry[ticket % LOG_CHUNK];
    bool same = roll_seal_state(entry->rec.seal) != ROLL_STATE_EMPTY && roll_seal_ticket(entry->rec.seal) == ticket;
    return same ? entry : NULL;
}

/* The oldest ticket that the log of a source may still hold. */
static inline uint64_t source_log_low(const struct source *s)
{
    return s->next > s->log_mask + 1 ? s->next - s->log_mask - 1 : 0;
}

/* The log is long enough for a record with this ticket, without losing one that is still needed. */
static inline bool source_log_spans(const struct source *s, uint64_t ticket)
{
    return s->log && (ticket <= s->log_mask || ticket - s->log_mask <= s->safe);
}

/* The same, and there is memory for it: it can be written. */
static inline bool source_log_fits(const struct source *s, uint64_t ticket)
{
    return source_log_spans(s, ticket) && source_chunk(s, ticket);
}

/* Some call on the streams of the source is not known to be complete. */
static inline bool source_pending(const struct source *s)
{
    for (uint32_t i = 0; i < s->queues; i++) {
        if (s->queue[i].head != 0) {
            return true;
        }
    }
    return false;
}

/* The source's place on a communicator, by the source's own id of that; NULL: no definition with this id has come. */
static inline struct member *source_member(const struct source *s, uint32_t id)
{
    return id < s->members ? s->member[id] : NULL;
}

/* Something has come of a member: the next loss of records changes what is known of it. */
void source_touch(struct source *s, struct member *m);
/* The members of which that is so, one after the other: *i begins with 0. NULL: these were all. */
struct member *source_touched(const struct source *s, size_t *i);
void source_untouch(struct source *s);

/* The communicator with the source's own id; NULL likewise. */
static inline struct comm *source_comm(const struct source *s, uint32_t id)
{
    return id < s->comms ? s->comm[id] : NULL;
}

/* The brief in a ticket's place; NULL: nothing was written there. The log must be open. */
static inline struct brief *source_brief_at(const struct source *s, uint64_t ticket)
{
    struct log_chunk *chunk = source_chunk(s, ticket);
    return chunk ? &chunk->brief[ticket % LOG_CHUNK] : NULL;
}

/* The brief of an entry that the log holds. */
static inline struct brief *source_brief(const struct source *s, const struct entry *entry)
{
    uint64_t ticket = roll_seal_ticket(entry->rec.seal);
    return &source_chunk(s, ticket)->brief[ticket % LOG_CHUNK];
}

/* How far the collective of this entry is. */
static inline enum coll_state source_state(const struct source *s, const struct entry *entry)
{
    return (enum coll_state)source_brief(s, entry)->state;
}

/* The next call on the same stream, to which *ticket is moved; NULL: there is none. */
static inline struct entry *source_chain(const struct source *s, uint64_t *ticket)
{
    struct entry *entry = source_entry(s, *ticket);
    uint32_t brief = entry ? source_brief(s, entry)->next : 0, next = brief != 0 || !entry ? brief : entry->next;
    *ticket += next;
    return next != 0 ? source_entry(s, *ticket) : NULL;
}

/* Two calls of one rank stand in one group. */
static inline bool source_same_unit(const struct roll_record *a, const struct roll_record *b)
{
    return a->group != 0 && a->group == b->group && a->thread == b->thread;
}

/* The process has ended by itself, in order, and with an exit code that says failure: it did not choose to leave calls
 * out. A signal does not count: one that comes after exit() has begun does not tell why the process had left. */
static inline bool source_failed(const struct source *s)
{
    return s->proc == ROLL_PROC_FINISHED && s->exit_status != ROLL_EXIT_UNKNOWN && WIFEXITED(s->exit_status) &&
           WEXITSTATUS(s->exit_status) != 0;
}

/* The process of the source has not ended. */
static inline bool source_alive(const struct source *s)
{
    return s->proc == ROLL_PROC_RUNNING || s->proc == ROLL_PROC_STOPPED;
}

/* It is not known what the rank does, or what it has done: its agent is silent, or there was no room for it. */
static inline bool source_is_dark(const struct source *s)
{
    return s->unheard && (s->no_room || source_alive(s));
}

/* source.c: a source and its log */

/* The source is the newest process of its rank from now on; `index` is its number in the engine. 0, NOMEM. */
int source_enlist(struct roll_engine *e, struct source *s, uint32_t index);
/* The newest process of a rank; NULL: none has come. */
struct source *source_newest(const struct roll_engine *e, uint32_t world);
/* The source is set aside for want of room, and nothing has taken its place: it is the newest process of its rank, or
 * still runs. */
bool source_lacks_room(const struct roll_engine *e, const struct source *s);
/* The number of a source in the engine; NO_SOURCE: it is none of the engine's. */
uint32_t source_index(const struct roll_engine *e, const struct source *s);
/* Makes the log of a source whose first record has this ticket. 0, NOMEM. */
int source_log_open(struct source *s, uint64_t ticket);
/* No record will come of the tickets before this one that have not come. Room for it has been made (room_for_gap). */
void source_log_gap(struct source *s, uint64_t upto);
/* The oldest ticket that is still needed; `upto` where none before it is. */
uint64_t source_log_needed(struct source *s, uint64_t upto);
/* Makes the place of a ticket that the log is long enough for. 0, NOMEM. */
int source_log_place(struct source *s, uint64_t ticket);
/* Writes a record into the log, which has room for it (source_log_fits), and returns its entry. */
struct entry *source_log_put(struct source *s, const struct roll_record *rec, uint64_t ticket);
/* Doubles the log. 0, NOMEM. */
int source_log_grow(struct source *s);
/* Halves the log: what it held of the older tickets is gone. 0, NOMEM. */
int source_log_shrink(struct source *s);
void source_log_free(struct source *s);
/* The wall clock at which the host entered this call, as people are shown it. */
uint64_t source_wall(const struct source *s, const struct roll_record *rec);
/* The same as calls are judged by: a clock that is set does not move it. */
uint64_t source_line(const struct source *s, const struct roll_record *rec);
/* From here on calls are judged by this offset, those that are known as well. */
void source_set_line(struct source *s, int64_t offset);
/* Something came from this source: its silence begins anew. */
void source_news(const struct roll_engine *e, struct source *s);
/* The rank is heard, and nothing has come from it for `ns` of the clock of suspicion. */
bool source_quiet(const struct roll_engine *e, const struct source *s, uint64_t ns);
/*
 * False where records are missing, so that what the source says about the step of this record may be only a part of
 * what it has said. Asked for every record of class MOE that is compared with those of other ranks.
 */
bool source_certain(struct source *s, const struct roll_record *rec);
/*
 * The call with this ticket is the collective of member m with number seq: a call that has elements and was not
 * refused, so that no other call of the member bears the number.
 */
bool source_holds(const struct source *s, uint64_t ticket, const struct member *m, uint32_t seq);
/* The ticket of that collective; NO_TICKET: the log does not hold it. The search begins with the newest call. */
uint64_t source_ticket_of(const struct source *s, const struct member *m, uint32_t seq);

/* source.c: the host threads of a source, its streams, and what a host waits for */

/* The thread with this id, which is made if it is new, and others move then; NULL: there are too many, or no memory. */
struct thread *source_thread(struct source *s, uint16_t id);
bool source_thread_known(const struct source *s, uint16_t id);
/*
 * The threads that make the calls of s hand over to each other, and the one whose turn it is stands inside a call that
 * is no loop of polls: PyTorch's forward runs on one thread and its backward on another, for which the first one waits
 * in a place that nobody records. What speaks for that is that no two of them were ever inside calls at once (but for a
 * free beside a wait), and that each has had its turn before.
 */
bool source_hands_over(const struct source *s);
/* The queue of this stream is there to be used from now on. 0, NOMEM. */
int source_queue_open(struct source *s, uint32_t stream);
/* The call goes to the end of its stream's queue. 0, NOMEM. */
int source_queue_push(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket);
/*
 * The calls behind which this one, with its ticket, stands by events of other streams (trace/record.h): their tickets,
 * into out[ROLL_BEHIND_MAX]; returns how many. Only such as the log still holds: what it has lost is over.
 */
uint32_t source_behind(const struct source *s, const struct entry *entry, uint64_t ticket, uint64_t *out);
/* The queue in which the call with this ticket, or one before it on its stream, is not known to be complete; NULL: all
 * of them are. */
struct queue *source_before(struct source *s, uint64_t ticket);
/* The group of this call has not been ended yet. */
bool source_group_open(const struct source *s, const struct roll_record *rec);
/* This call may still turn out to be refused: it has not returned, or its group has not been ended. */
bool source_unsettled(const struct source *s, const struct roll_record *rec);
/* The host cannot go on: every thread that has made calls other than polls is inside a call. */
bool source_blocked(const struct roll_engine *e, const struct source *s);
/* What a host that is inside a call waits for on a stream: all calls before `upto`. */
struct host_wait {
    uint64_t upto;
    bool waits; /* false: a loop of polls of which it is not known that it goes on */
    bool soft;  /* the host could go on all the same: one that polls may leave its loop */
    bool vague; /* which calls the host waits for is not known: it waits for an event */
};
struct host_wait source_wait(const struct roll_engine *e, const struct source *s, const struct thread *t,
                             const struct roll_record *in);
/* A record of a loop of polls over several things names one of them, which is remembered while the loop goes on. */
void source_polled(struct thread *t, const struct roll_record *rec, bool goes_on);
/* Some thread that has made calls other than polls is in a loop of polls now. */
bool source_polls(const struct source *s);
/* Every such loop was still going on after this moment of the patience clock; true where there is none. */
bool source_polls_after(const struct roll_engine *e, const struct source *s, uint64_t clock);

/* graph.c: what was captured into which graph */

#define CAPTURED_MAX 8192u /* captured calls remembered per source */
void graph_note_call(struct source *s, const struct roll_record *rec, uint64_t ticket);
void graph_define(struct source *s, const struct roll_def *def);
void graph_forget(struct source *s);
/*
 * The n-th collective that graph `id` holds on a communicator of this source; false: it is not remembered. *total: how
 * many there are, by the definition of the graph; 0 = not known.
 */
bool graph_collective(const struct source *s, uint32_t id, uint32_t comm, uint32_t n, struct roll_record *out,
                      uint32_t *total);

/* site.c: call sites that can be compared between ranks */

/* Takes the definition of a call site, of what its lines are made of, or of a module. 0, NOMEM. */
int site_define(struct roll_engine *e, struct source *s, const struct roll_def *def);
/* The identity of the innermost line of the job's own Python at a call site; 0 = there is none, or it is not known. */
uint64_t site_line(const struct roll_engine *e, const struct source *s, uint32_t callsite);
/* The number of the place at which a call stands, the same on each rank; 0 = not known. */
uint64_t site_of(const struct source *s, const struct roll_record *rec);
enum site_relation {
    SITE_UNKNOWN = 0,
    SITE_SAME, /* the whole stacks are equal */
    SITE_OTHER /* the two are surely different places */
};
enum site_relation site_compare(const struct source *a, const struct roll_record *of_a, const struct source *b,
                                const struct roll_record *of_b);
/* The rank has made a call at this place. */
bool site_is_known(const struct source *s, uint64_t site);
/* The same of the place of a call of another rank: by its lines of Python where native stacks cannot be compared. */
bool site_is_home(const struct source *s, const struct source *other, const struct roll_record *of_other);
void site_forget(struct source *s);

/* Some line of the job's own at this call site is in a function that is named as what stands beside a training loop:
 * evaluations, tests, checkpoints. */
bool site_stands_aside(const struct roll_engine *e, const struct source *s, uint32_t callsite);

/* round.c: which time round of its loop the job is in */

/* Takes the next collective of a source. */
void round_call(struct roll_engine *e, const struct source *s, const struct roll_record *rec);
/* How often the loop has been gone round; ROLL_STEP_NONE: it is not known, or not for sure. */
uint32_t round_now(const struct roll_engine *e);
void rounds_free(struct roll_engine *e);

/* line.c: lines of Python as texts, and what the job calls its process groups */

struct python_line;
struct group;
/* A running hash of bytes. trace/ident.h has one as well, in a file that looks at the process. */
uint64_t line_hash(uint64_t seed, const void *data, size_t bytes);
/* Copies at most room - 1 bytes of a text: what has no room is left out, and control characters become '?'. */
void line_clean(char *out, size_t room, const char *text, size_t bytes);
int line_note_file(struct roll_engine *e, uint64_t identity, const char *path, uint32_t bytes);
/* Keeps a line, unless it is a library's. 0, NOMEM. */
int line_note(struct roll_engine *e, uint64_t identity, uint64_t file, const struct roll_def_line *info,
              const char *function);
/* NULL: it is no line of the job's, or not known. */
const struct python_line *line_find(const struct roll_engine *e, uint64_t identity);
/* Takes the definition of a process group's name (ROLL_DEF_NAME). 0, NOMEM. */
int group_define(struct roll_engine *e, const struct roll_def *def);
/* What roll_engine_group told of communicators with this label and size; NULL: nothing. */
const struct group *group_find(const struct roll_engine *e, const char *label, uint32_t size);
void lines_free(struct roll_engine *e);

#endif
