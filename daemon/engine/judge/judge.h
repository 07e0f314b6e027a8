/*
 * judge.h: what is wrong, and who: a disagreement at one slot (align*.c, astray.c), why nothing goes on (waitgraph.c,
 * order_vote.c, wait_judge.c, doubt.c), and what has been explained already (silence.c).
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_JUDGE_H
#define ROLL_DAEMON_ENGINE_JUDGE_JUDGE_H

#include "daemon/engine/say/say.h"
#include "daemon/engine/sweep/sweep.h"

/* room.c: where there is no room for a call */
/* Each makes room for one more: by a sweep, by growing, or by giving up what is incomplete. 0 or NOMEM. */
int room_in_log(struct roll_engine *e, struct source *s, uint64_t ticket);
int room_for_collective(struct roll_engine *e, struct comm *c, uint32_t seq);
int room_for_message(struct roll_engine *e, struct pair *p, uint32_t index); /* p->unsure: it was given up */
void comm_give_up(struct roll_engine *e, struct comm *c);                    /* it is judged no more; that is said */
void comm_ended(struct roll_engine *e, struct member *m, enum roll_op op);   /* m has aborted it */

/* silence.c: what has been explained, and until when */
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

/* align.c: a disagreement at one slot */
/* The calls at this place may differ: that is judged, unless a silence or an earlier place comes first. */
void align_look(struct roll_engine *e, struct comm *c, uint32_t seq);
void align_open(struct roll_engine *e, struct comm *c, uint32_t seq);
/* The call of m at this place, and that which came first there, differ in whether they are in one group with the call
 * before them. */
void align_grouped(struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t ticket);
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
};

/* align.c: the life of a finding, for the detectors that say it */
/* False when this cause has been told already. Sets nothing. */
bool finding_is_new(struct roll_engine *e, const struct finding *f, enum roll_verdict_code code);
/* Culprits or a tie, what is open, and which verdict this one takes the place of: into v and the words. Last before
 * say_text. */
void finding_life(struct roll_engine *e, struct roll_verdict *v, const struct finding *f, struct words *w);

/* The code of a wrong argument or operation, and the argument's name; NONE: nothing that is known differs.
 */
enum roll_verdict_code signature_code(enum align_kind kind, const struct roll_record *a, const struct roll_record *b,
                                      const char **field);

/* astray.c: a call made on another communicator than its peers */
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

/* waitgraph.c: why nothing goes on */
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
/* Follows all that has waited too long to its reasons: *found, owned by the caller, with the sets `absent` of each.
 * False: nothing waits. */
bool waitgraph_walk(struct roll_engine *e, struct block **found, uint32_t *founds);
bool waitgraph_old(const struct roll_engine *e, const struct queue *q); /* its head has waited for stall_ns */
uint32_t waitgraph_missing(const struct roll_engine *e, const struct source *s, const struct entry *entry,
                           struct roll_rankset *out); /* world ranks that have not issued their side */

/* The communicator under creation holds every rank of the job. */
bool creation_is_whole(const struct roll_engine *e, const struct source *s, const struct roll_record *rec);

/* wait_judge.c: which of the reasons found is the cause */
void waits_look(struct roll_engine *e);
/* The newest verdict says that these have ended (world ranks) and that this source waits for it: what was said of it
 * before, naming nobody, is replaced. */
void ended_say(struct roll_engine *e, const struct roll_rankset *ended, uint32_t waiter);
/* Why a circle is only suspected. */
void words_soft(struct words *w, const struct roll_engine *e, const struct block *b);

/* what the judge asks of the detectors */
enum ask {
    ASK_ALL,     /* whoever knows */
    ASK_END,     /* who knows about the end of a process or a member */
    ASK_CREATION /* who knows about a circle that leads through the creation of a communicator */
};
/* The floor above has it; engine.c hands it in. */
struct judge_ask {
    /* Ranks disagree at one place: true when it has been said, or is known. */
    bool (*disagree)(struct roll_engine *e, const struct finding *f);
    /* Ranks wait, and this is why: the same. */
    bool (*block)(struct roll_engine *e, const struct block *b, enum ask whom);
    /* That this process has ended was told with the error that came before it, whoever waits for it. */
    bool (*end_is_told)(const struct source *s);
};

/* doubt.c: suspicions that come to nothing */
void doubt_add(struct roll_engine *e, uint64_t number,
               const struct block *b); /* verdict `number` rests on the call of b */
/* The same for a wait of `waiter` in a call of this communicator for one rank. */
void doubt_call(struct roll_engine *e, uint64_t number, const struct source *waiter, uint64_t ticket,
                const struct source *absent, struct comm *comm);
void doubts_look(struct roll_engine *e);
void doubts_free(struct roll_engine *e);

/* order_vote.c: who of a circle goes another way than the others */
/* True: *odd (added to it; world ranks) lack the call of step *at of the circle and are in the call of the next step
 * instead, against most of those who belong to both. *awaits is set where somebody who belongs to both has come to
 * neither, and may come. */
bool order_vote(const struct roll_engine *e, const struct block *b, struct roll_rankset *odd, uint32_t *at,
                bool *awaits);
bool comm_is_sibling(const struct comm *a, const struct comm *b); /* the same place of the program */
/* How many of the last calls before seq are alike; -1: one is not. */
int comm_same_past(const struct comm *a, const struct comm *b, uint32_t seq);
bool comm_same_call(const struct comm *a, const struct comm *b,
                    uint32_t seq); /* both still know it, and it was alike */

#endif
