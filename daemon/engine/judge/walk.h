/*
 * walk.h: one walk through the wait graph: its path, and what it has found. Private to waitgraph.c and wait_*.c.
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_WALK_H
#define ROLL_DAEMON_ENGINE_JUDGE_WALK_H

#include "daemon/engine/judge/judge.h"

#define PATH_MAX_STEPS 256u

struct step {
    struct source *source;
    struct queue *queue; /* NULL: the host is inside the call, which stands in no queue */
    uint64_t ticket;
    bool soft; /* the link into this step */
};

/* The creation of a communicator, and who keeps it from ending: one list for all that wait in it, who may be ten
 * thousand. */
struct creation {
    uint32_t splits; /* number of the split on its parent */
    bool done, any;  /* it has been looked into; somebody is absent */
    struct absentee {
        const struct member *member; /* of the parent; NULL: of a communicator that the rank has not defined */
        struct source *source;
    } * absentee;
    uint32_t absentees;
};

struct walk {
    struct roll_engine *e;
    struct creation *creation;
    uint32_t creations;
    size_t creation_room;
    struct step path[PATH_MAX_STEPS];
    uint32_t depth;
    bool alive; /* some process of the job still runs */
    struct block *found;
    uint32_t founds;
    size_t found_room;
    uint32_t soft; /* all links are soft while this is not 0 */
};

/* wait_rank.c */
uint64_t queue_group_start(struct source *t, const struct queue *q, const struct roll_record *end);
bool queue_holds_stream(const struct source *t, const struct queue *q, uint32_t stream, uint64_t upto);
struct queue *queue_held_behind(struct source *t, uint32_t comm_id, uint32_t seq, uint64_t p2p_ticket);
bool rank_waits_for_queue(const struct source *s, const struct roll_record *wait, uint64_t inside);
bool rank_has_passed(const struct walk *walk, const struct source *t);
bool rank_thread_blocked(const struct roll_engine *e, const struct member *m, const struct source *t);
bool rank_abort_is_due(const struct roll_engine *e, const struct member *m, const struct source *t);
bool rank_seen_over(const struct source *s, uint64_t ticket); /* its own host has seen that this call is over */
bool rank_is_short(const struct walk *walk, const struct member *m, const struct source *t);
uint32_t rank_comm_id(const struct source *s, const struct member *m);

/* wait_path.c */
/* The end of the path is a reason: `absent`, of which `rank` is one, hold up who waits in the last step. Takes absent.
 */
void path_leaf(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard,
               struct roll_rankset *absent);
void path_leaf_one(struct walk *walk, enum block_kind kind, struct source *rank, struct comm *comm, bool hard);
/* Those who are absent for one kind of reason are told together. */
struct absences {
    struct {
        struct roll_rankset ranks;
        struct source *one; /* one of them; NULL: there is none */
        bool hard;
    } of[BLOCK_KINDS];
};
void absences_told(struct walk *walk, struct absences *a, struct comm *c);
/* The path from `from` on is a circle; the soft mark of its first step is that of the link that closes it. */
void path_circle(struct walk *walk, uint32_t from, struct comm *comm);
/* True when the path comes back to this queue of s, or, without a queue, to this call that its host is inside. */
bool path_closes(struct walk *walk, const struct source *s, const struct queue *q, uint64_t ticket, bool soft,
                 struct comm *comm);

/* wait_creation.c */
/* Index of the creation that t waits in; UINT32_MAX: no memory. */
uint32_t creation_find(struct walk *walk, const struct source *t, const struct member *m,
                       const struct roll_record *rec);

/* wait_polls.c */
bool polls_in_vain(const struct walk *walk, const struct source *s, const struct thread *t);
/* The number of calls before this wait, or loop of polls, that a process that has ended may have taken along; 0: none.
 */
uint64_t polls_left_upto(const struct roll_engine *e, const struct source *s, const struct thread *t,
                         const struct roll_record *in);

/* wait_left.c */
bool left_visit(struct walk *walk, struct source *t, const struct roll_record *wait, uint64_t upto);

#endif
