/*
 * walk.h: one walk through the wait graph: its path, and what it has found. Private to waitgraph.c and to
 * wait_begin.c, wait_rank.c, wait_members.c, wait_path.c, wait_creation.c, wait_polls.c and wait_left.c.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_WALK_H
#define ROLL_DAEMON_ENGINE_JUDGE_WALK_H

#include "daemon/engine/judge/judge.h"

#define PATH_MAX_STEPS 256u
#define HELD_MAX       1024u /* heads that stand behind others by events, one inside another: each takes stack */

/* One node on the path: a rank, and the call that it waits in. */
struct step {
    struct source *source;
    struct queue *queue; /* the queue in which the call stands; NULL: in none, the host is inside the call */
    uint64_t ticket;
    bool soft; /* the link into this step */
};

/* The creation of a communicator, and who keeps it from ending. All ranks that wait in the creation share one. */
struct creation {
    uint32_t splits; /* number of the split of its parent; of a communicator from a unique id splits are 0 */
    bool done;       /* the walk has looked into the creation */
    bool any;        /* somebody is absent */
    struct absentee {
        const struct member *member; /* on the parent; NULL: of a communicator that the rank has not defined */
        struct source *source;
    } * absentee;
    uint32_t absentees;
};

/* A collective whose members the walk follows: in wait_members.c. */
struct collective {
    struct comm *comm;
    uint32_t seq;
    bool is_missing;     /* the list holds the members that have not made it; else those that may be followed again */
    uint32_t *list;      /* owned; members, in order */
    uint32_t used, next; /* next: members from there on have not been followed yet */
    size_t room;
    struct collective *up; /* that from which the walk came here */
};

struct walk {
    struct roll_engine *e;
    struct collective *collective; /* the innermost */
    struct creation *creation;
    uint32_t creations;
    size_t creation_room;
    struct step path[PATH_MAX_STEPS];
    uint32_t depth;
    bool alive; /* some process of the job still runs */
    struct block *found;
    uint32_t founds;
    size_t found_room;
    uint32_t soft; /* while this is not 0, all links are soft */
    uint32_t held; /* how many such heads the walk is inside now */
};

/* waitgraph.c: the links */

/* Follows the head of a queue, with its group. soft: the link that leads here is. */
void walk_head(struct walk *walk, struct source *s, struct queue *q, bool soft);
/* Follows a host that is inside the creation of a communicator; described there. */
bool walk_creation(struct walk *walk, struct source *t, uint64_t ticket);

/* wait_rank.c: what the records say of one rank, one queue, one call; each function is described there */
uint64_t queue_group_start(struct source *t, const struct queue *q, const struct roll_record *end);
bool queue_holds_stream(const struct source *t, const struct queue *q, uint32_t stream, uint64_t upto);
struct queue *queue_held_behind(struct source *t, uint32_t comm_id, uint32_t seq, uint64_t p2p_ticket);
uint64_t wait_behind(struct source *s, const struct queue *q, uint64_t inside);
bool rank_waits_for_queue(struct source *s, const struct roll_record *wait, uint64_t inside);
bool rank_has_passed(const struct walk *walk, const struct source *t);
bool rank_thread_blocked(const struct roll_engine *e, const struct member *m, const struct source *t);
bool rank_abort_is_due(const struct roll_engine *e, const struct member *m, const struct source *t);
bool rank_seen_over(const struct source *s, uint64_t ticket);
bool rank_is_short(const struct walk *walk, const struct member *m, const struct source *t);
uint32_t rank_comm_id(const struct source *s, const struct member *m);

/* wait_members.c: which members of a collective are followed; each function is described there */
bool members_begin(struct collective *at);
bool members_next(struct collective *at, uint32_t *r);
void members_done(struct collective *at, uint32_t r);

/* wait_path.c: the path, and the reasons at which the walk ends */

/*
 * The path ends at a reason: the ranks in `absent`, of which `rank` is one, hold up the rank in the last step. Takes
 * *absent.
 */
void path_leaf(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard,
               struct roll_rankset *absent);
/* The same for one rank alone. */
void path_leaf_one(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard);
/* The ranks that are absent at one place, by the kind of reason: those of one kind are told together. */
struct absences {
    struct {
        struct roll_rankset ranks;
        struct source *one; /* one of them; NULL: there is none */
        bool hard;
    } of[BLOCK_KINDS];
};
/* Each kind becomes a reason at which the path ends. Takes the sets. */
void absences_told(struct walk *walk, struct absences *a, struct comm *c);
/* The path from step `from` on is a circle. The soft mark of that step is that of the link that closes the circle. */
void path_circle(struct walk *walk, uint32_t from, struct comm *comm);
/* The path has come to queue q of s, or, where q is NULL, to the call that the host of s is inside. True: that is a
 * step of the path already, so the path closes a circle, which is written down. */
bool path_closes(struct walk *walk, const struct source *s, const struct queue *q, uint64_t ticket, bool soft,
                 struct comm *comm);

/* wait_creation.c: the creations in which ranks wait */

/* The number, in the table of the walk, of the creation in which t waits inside the call rec; UINT32_MAX: no memory. */
uint32_t creation_find(struct walk *walk, const struct source *t, const struct member *m,
                       const struct roll_record *rec);

/* wait_polls.c: hosts that poll; each function is described there */
bool polls_in_vain(const struct walk *walk, const struct source *s, const struct thread *t);
uint64_t polls_left_upto(const struct roll_engine *e, const struct source *s, const struct thread *t,
                         const struct roll_record *in);

/* wait_left.c: what processes that have ended have left behind; described there. left_anything: some process, or member
 * of a communicator, has ended */
bool left_anything(const struct roll_engine *e);
bool left_visit(struct walk *walk, struct source *t, const struct roll_record *wait, uint64_t upto);

#endif
