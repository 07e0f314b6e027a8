/*
 * judge.h: what is wrong, and who: a disagreement at one slot (align*.c, astray.c), why nothing goes on (waitgraph.c,
 * order_vote.c, wait_judge.c, doubt.c), and what has been explained already (silence.c).
 */
#ifndef ROLL_DAEMON_ENGINE_JUDGE_JUDGE_H
#define ROLL_DAEMON_ENGINE_JUDGE_JUDGE_H

#include "daemon/engine/say/say.h"
#include "daemon/engine/sweep/sweep.h"

/* room.c: where there is no room for a call */

/* Each makes room for one more: by a sweep, by growing, or by giving up what is incomplete. 0, NOMEM. */
int room_in_log(struct roll_engine *e, struct source *s, uint64_t ticket);
/* The same for a gap up to this ticket, which is excluded. Calls before it that have no room are given up. */
void room_for_gap(struct roll_engine *e, struct source *s, uint64_t upto);
int room_for_collective(struct roll_engine *e, struct member *m, uint32_t seq);
/* The same. Where the messages of the pair had to be given up, the pair is unsure afterwards. */
int room_for_message(struct roll_engine *e, const struct member *m, struct pair *p, uint32_t index);
/* Says a note, once in a run, when a source has been set aside because there was no room for it (model/budget.h). */
void room_tell(struct roll_engine *e);
/* Nothing on the communicator is judged any more, and a note says so. */
void comm_give_up(struct roll_engine *e, struct comm *c);
/* The member has aborted or revoked its communicator, by the operation op. */
void comm_ended(struct roll_engine *e, struct member *m, enum roll_op op);

/* silence.c, silence_end.c: what has been explained, and until when */

/* What follows on the communicator is a consequence of what has been said. seq: the collective at which the trouble
 * began; NO_SEQ: it began at another call, or that is not known. */
void comm_mute(struct roll_engine *e, struct comm *c, uint32_t seq);
/* The same, where the trouble began at this call of s. */
void comm_mute_at(struct roll_engine *e, struct comm *c, const struct source *s, const struct roll_record *rec);
/* The same, where this record of s, which is member m, tells of the trouble, and no call: it begins behind the
 * collectives that the member has made so far. To go by time for them, too, was rejected: a collective that all have
 * left is behind it by a clock that is a moment ahead. */
void comm_mute_behind(struct roll_engine *e, const struct member *m, const struct source *s,
                      const struct roll_record *rec);
/* The same, and the members are stuck for that trouble. */
void comm_explained(struct roll_engine *e, struct comm *c);
/* What was told of this place is taken back, and a call that was part of it is gone: the silence that began there ends.
 */
void comm_taken_back(struct roll_engine *e, struct comm *c, uint32_t seq);
/* The communicators that have fallen silent since there had been `mutes` of e->mutes did so for verdict `number`,
 * a suspicion. To go by how many verdicts had been said before each was rejected: a communicator may fall silent for
 * one that has been said already, or for none, and would then seem to do so for the next one. */
void comms_doubtful(struct roll_engine *e, uint64_t mutes, uint64_t number);
/* A suspicion is withdrawn: the silences that rest on it end, and what is wrong besides is told. */
void comms_taken_back(struct roll_engine *e, uint64_t number);
/* A suspicion is looked at again: these silences end, and the next finding about one of these communicators, for which
 * ranks may wait, takes its place. */
void comms_doubted(struct roll_engine *e, uint64_t number);
/* That look is over, whatever came of it. */
void comms_decided(struct roll_engine *e, uint64_t number);
/* What happens at this collective is a consequence. */
bool comm_silent_at(const struct comm *c, uint32_t seq);
/* The rank is stuck for a reason that has been told. */
bool source_explained(const struct source *s);
/* It was, and has left the communicator of that trouble, and made no collective or message since: that it leaves others
 * as well, and ends, follows. */
bool source_gave_up(const struct source *s);
/* The rank goes on beside the trouble of m's communicator, so its calls there do not hold it up: long after the trouble
 * was known its host came back from a wait, and the host is in no wait for that communicator. */
bool source_beside(const struct source *s, const struct member *m);
/* As far as is known, the host of s does not go on because the calls in this queue do not. */
bool source_held_by(const struct roll_engine *e, const struct source *s, const struct queue *q);
/* Each tells the silence that a rank goes on: this call is over; this wait has come back; the member has destroyed its
 * communicator in good order. */
void silence_over(struct roll_engine *e, struct source *s, const struct roll_record *rec);
void silence_waited(struct roll_engine *e, struct source *s, const struct roll_record *wait);
void silence_gone(struct roll_engine *e, struct member *m);
/* A rank that gave up (source_gave_up) has made this call: where it is a collective or a message, the rank goes on, and
 * what it leaves or ends in later does not follow from that trouble. */
void silence_made(struct source *s, const struct roll_record *rec);
/* From now on it is known that ranks are stuck, and why. */
void silence_trouble(struct roll_engine *e);
/* Ends the silences that all members had got past before they began; to be called while e->mute_fresh is set. */
void silence_settle(struct roll_engine *e);

/* align.c: a disagreement at one slot */

/* The calls at this slot may differ. If they do, that is judged, unless a silence or an earlier slot comes first. */
void align_look(struct roll_engine *e, struct comm *c, uint32_t seq);
/* The calls at this slot differ: that is judged from now on. */
void align_open(struct roll_engine *e, struct comm *c, uint32_t seq);
/* One of two calls at this slot is in one group with the call before it and the other is not: the call of m, which has
 * this ticket, and the call that came first. */
void align_grouped(struct roll_engine *e, const struct member *m, uint32_t seq, uint64_t ticket);
/* A member has made a call while a disagreement on its communicator is being judged. */
void align_arrived(struct roll_engine *e, const struct member *m, const struct entry *entry);
/* Decides the disagreement that is being judged, as far as that can be done now. */
void align_step(struct roll_engine *e, struct comm *c);
/* The same as time goes by; of a large communicator not with each tick. */
void align_tick(struct roll_engine *e, struct comm *c);
/* Forgets the disagreement that is being judged. */
void align_drop(struct roll_engine *e, struct comm *c);
/* The silence of the communicator has ended: disagreements that came up meanwhile are judged. */
void align_resume(struct roll_engine *e, struct comm *c);
/* A call was taken out of this slot, because it had been refused. */
void align_withdraw(struct roll_engine *e, struct comm *c, uint32_t seq);

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

/* How many members of a communicator stand how at a collective. */
struct camps {
    uint32_t made;   /* they have made some call there */
    uint32_t never;  /* they never will: they have ended or died, or have left the communicator */
    uint32_t unseen; /* nothing is known of them: they were never seen, or their record is lost */
    uint32_t may;    /* they still may make a call there */
};
/* Counts them (align_vote.c). */
void vote_absent(const struct roll_engine *e, const struct comm *c, uint32_t seq, struct camps *out);

/* part.c: where the program of two ranks parts, while their calls still look alike */

struct parting {
    uint32_t seq;     /* the first call that stands at another place of the program */
    uint32_t length;  /* calls left out (skip) or made too many by the second rank; 0: nothing was found */
    uint32_t overlap; /* calls behind it that agree in their places, too */
    bool skip;
    const struct roll_record *a, *b; /* the calls of the two there */
};

/* Looks back from collective `upto`, at most `look_back` calls; before it the calls of the two members agree. ended: b
 * makes no more calls. False: their places are the same, are not known, or fit no calls left out or added. */
bool part_find(const struct roll_engine *e, const struct member *a, const struct member *b, uint32_t upto,
               uint32_t look_back, bool ended, struct parting *out);

/* What has been found out about the ranks that do not follow the majority. */
struct finding {
    struct comm *comm;
    uint32_t seq;
    uint32_t shown; /* where it came to light: behind seq where up to there the calls differ in their places alone */
    enum align_kind kind;
    uint32_t length;  /* calls skipped, added or reordered */
    uint32_t overlap; /* calls that agree afterwards */
    bool tie;         /* there is no majority: `minor` and `major` only say which side is which */
    bool rehearsed;   /* only the rehearsal says who is right: there is no majority */
    bool by_history;  /* only the communicator's history says who is right; the others are stuck elsewhere */
    bool harmless;    /* the mistake may be one that hangs nothing: nothing is silenced for it */
    enum roll_certainty certainty; /* PROVEN: the vote and the kind are both decided; else SUSPECTED */
    uint32_t open;                 /* bits (1 << kind) of mistakes besides `kind` that are not excluded */
    uint32_t come, wait;           /* members that have called there; members that have not, and still may */
    uint64_t earlier;              /* the verdict about the same ranks and place whose place this one takes; 0 = none */
    uint64_t *number;              /* receives the number of the verdict; NULL: nobody asks */
    bool template_major;           /* the communicator's history speaks for the side called majority */
    struct roll_rankset minor, major;                 /* ranks in the job */
    const struct source *minor_source, *major_source; /* a rank of each side, as the example */
    uint64_t minor_ticket, major_ticket; /* the calls of these two at seq; ALIGN_ZERO: minor's is the dropped call */
};

/* finding.c: the life of a finding, for the detectors that say it */

/* False: this cause has been told already. The question alone changes nothing. */
bool finding_is_new(struct roll_engine *e, const struct finding *f, enum roll_verdict_code code);
/* Writes into v and the words who is wrong or that it is a tie, what is open, and which verdict this one takes the
 * place of. To be called last before say_text. */
void finding_life(struct roll_engine *e, struct roll_verdict *v, const struct finding *f, struct words *w);

/* The code of a wrong argument or operation, and the name of the argument; NONE: nothing that is known differs. */
enum roll_verdict_code signature_code(enum align_kind kind, const struct roll_record *a, const struct roll_record *b,
                                      const char **field);

/* astray.c: a call that a rank made on another communicator than its peers */

struct astray {
    const struct source *rank;  /* the rank that made the call */
    enum align_kind kind;       /* what the finding is in this light: a call skipped, or one added */
    struct comm *told;          /* the other communicator, about which something was told */
    struct half half;           /* what was told about it */
    struct comm *right, *wrong; /* where the peers made the call, and where the rank did */
    uint32_t right_seq;
};
/* True: what was told about another communicator is the other half of this finding, described in *out. */
bool astray_find(const struct roll_engine *e, const struct finding *f, struct astray *out);
/* Keeps what verdict v says as a half. with: the other half; NULL: none is known yet. */
void astray_keep(const struct finding *f, const struct roll_verdict *v, const struct astray *with);

/* waitgraph.c: why nothing goes on */

/* Why a rank does not make the call that others wait for. */
enum block_kind {
    BLOCK_DEAD = 1,
    BLOCK_STOPPED,
    BLOCK_FINISHED, /* its process has ended in good order */
    BLOCK_GONE,     /* the rank has destroyed or finalized the communicator */
    BLOCK_CYCLE,    /* the rank waits, over others, for those who wait for it */
    BLOCK_STUCK,    /* its host is inside a call that no incomplete call explains, and has been silent for long */
    BLOCK_BUSY,     /* its host is inside no call, and has been silent for long */
    BLOCK_KNOWN,    /* the trouble of the communicator, or of the rank, has been told */
    BLOCK_BLAMED,   /* it was predicted that somebody will be waited for on this communicator */
    BLOCK_PASSED,   /* the rank has reported that it is beyond the MoE backward to which the call belongs */
    BLOCK_UNHEARD,  /* the agent of the rank is silent */
    BLOCK_ABORTED,  /* the rank has aborted or revoked the communicator */
    BLOCK_LEFT,     /* the rank has made the call, and has ended without waiting for it */
    BLOCK_SHORT,    /* the group of the rank held fewer calls than that of the waiter, and its host waits behind it */
    BLOCK_KINDS
};

/* Where the majority stands to one call: absence is a vote as well. */
enum quorum {
    CAMP_MADE = 0, /* most members have made it */
    CAMP_NEVER,    /* most members have ended, or left the communicator, without it */
    CAMP_TIE,
    CAMP_OPEN, /* members that may still come decide */
};

/* So much less time has counted as patience than has passed that who is told of it wants to know why. */
static inline bool patience_is_stretched(uint64_t passed_ns, uint64_t counted_ns)
{
    return passed_ns > counted_ns + UINT64_C(1000000000) && passed_ns - counted_ns > passed_ns / 5;
}

#define BLOCK_STEPS 64u
/* One reason why ranks wait: what the detectors are asked about. */
struct block {
    enum block_kind kind;
    struct source *rank;   /* the rank that holds the others up; of a circle any of its ranks */
    struct source *waiter; /* a rank that waits for `rank` */
    uint64_t ticket;       /* the call in which the waiter waits */
    struct comm *comm;     /* the communicator of that call */
    bool hard;             /* the records prove every link */
    struct {
        struct source *rank;
        uint64_t ticket; /* the call in which the rank waits */
    } step[BLOCK_STEPS]; /* CYCLE: the circle; other kinds: the chain from a waiter to the rank */
    uint32_t steps;
    /* The ranks that wait in the call, or in the calls of the circle; and those that wait elsewhere for `rank`. */
    const struct roll_rankset *waiting;
    const struct block *other;  /* of a reason with such ranks: the same reason where some of them wait; NULL: none */
    struct roll_rankset absent; /* the ranks in the job that do not come for this kind of reason, `rank` among
                                   them */
    enum quorum camp;           /* FINISHED, GONE, ABORTED, LEFT, SHORT: the vote on the call */
    bool beside;                /* the members of siblings decide that vote, and not those of `comm` alone */
    bool decided;               /* CYCLE: the ranks in `odd` go another way than all others who can tell */
    struct roll_rankset odd;
    uint32_t odd_at; /* those ranks lack the call of this step, and are in the call of the next one */
    bool awaits;     /* CYCLE: no rank is odd so far, and one that can tell may still come */
    bool due;        /* PASSED: it is still to be told in this judgement, by itself */
};
/* Walks from all calls that have waited too long to their reasons. *found: the reasons; the caller owns them, and the
 * set `absent` of each. False: nothing waits. */
bool waitgraph_walk(struct roll_engine *e, struct block **found, uint32_t *founds);

/* Some call or host may have waited for too long: waitgraph_walk has something to begin with. */
bool waitgraph_due(struct roll_engine *e);

/* wait_rank.c: what the records say of one rank, one queue, one call; each function is described there */
bool comm_is_heard(const struct roll_engine *e, const struct comm *c); /* see wait_rank.c */
/* No member of it is set aside for want of room, as far as is known; rank_has_room: of any of the rank's. */
bool comm_has_room(const struct roll_engine *e, const struct comm *c);
bool rank_has_room(const struct roll_engine *e, const struct source *s);
bool waitgraph_old(const struct roll_engine *e, const struct queue *q);
uint32_t waitgraph_missing(const struct roll_engine *e, const struct source *s, const struct entry *entry,
                           struct roll_rankset *out);

/* wait_who.c: adds those that wait for this reason: in the call of its waiter, or in each call of the circle. */
void waiting_at(const struct roll_engine *e, const struct block *b, struct roll_rankset *out);

/* wait_creation.c: the communicator that is being created holds every rank of the job. */
bool creation_is_whole(const struct roll_engine *e, const struct source *s, const struct roll_record *rec);

/* wait_judge.c: which of the reasons found is the cause */

/* Looks at all waits, at most every stall/8, and has those judged that have lasted too long. */
void waits_look(struct roll_engine *e);
/* The newest verdict says that these ranks of the job have ended, and that source `waiter` waits for them
 * (wait_ended.c). It takes the place of what was said about their end before without naming anybody. */
void ended_say(struct roll_engine *e, const struct roll_rankset *ended, uint32_t waiter);
/* Says why a circle is only suspected. */
void words_soft(struct words *w, const struct roll_engine *e, const struct block *b);

/* what the judge asks of the detectors */

/* Which detectors are asked. */
enum ask {
    ASK_ALL,
    ASK_END,     /* those that know about the end of a process or a member */
    ASK_CREATION /* those that know about a circle which leads through the creation of a communicator */
};
/* How a call stands to what was rehearsed. */
enum rehearsed {
    REHEARSED_UNKNOWN = 0,
    REHEARSED_FITS,
    REHEARSED_LEAVES,  /* its rank did what was rehearsed up to this call, which is another one */
    REHEARSED_UNHEARD, /* the same, and no such call was rehearsed on the communicator at all */
};
/* The answers come from the floor above: detectors.c fills the table in, and engine.c hands it in. */
struct judge_ask {
    /* Ranks disagree at one place. True: that has been said now, or was known. */
    bool (*disagree)(struct roll_engine *e, const struct finding *f);
    /* Ranks wait, and this is why. True: that has been said now, or was known. */
    bool (*block)(struct roll_engine *e, const struct block *b, enum ask whom);
    /* The end of this process has been told, whoever waits for it: with the error that came before the end. */
    bool (*end_is_told)(const struct source *s);
    /* How the call of a member with this ticket stands to what was rehearsed. */
    enum rehearsed (*rehearsed)(const struct member *m, uint64_t ticket);
};

/* doubt.c: suspicions that come to nothing */

/* Verdict `number` is a suspicion that rests on the call of b: it is withdrawn when the call gets complete. With it end
 * the silences that had begun for it: those behind the first `mutes` of e->mutes. */
void doubt_add(struct roll_engine *e, uint64_t number, uint64_t mutes, const struct block *b);
/* The same, where `waiter` waits in a call on this communicator for one rank. */
void doubt_call(struct roll_engine *e, uint64_t number, uint64_t mutes, const struct source *waiter, uint64_t ticket,
                const struct source *absent, struct comm *comm);
/* The suspicion, which stands, that these very ranks are busy or stuck while others wait in the call of b; 0: none. */
uint64_t doubt_of(const struct roll_engine *e, const struct block *b);
/* A circle of silence is found again while the suspicion of it is looked at again: it stays as it was said, and with it
 * the silences behind the first `mutes`. False: it was not suspected so far. */
bool doubt_found_again(struct roll_engine *e, uint64_t mutes, const struct block *b);
/* Withdraws the suspicions that have come to nothing, and has circles looked at again whose ranks have gone on. */
void doubts_look(struct roll_engine *e);
void doubts_free(struct roll_engine *e);

/* order_vote.c: who of a circle goes another way than the others */

/*
 * True: the ranks that are added to *odd lack the call of step *at of the circle and are in the call of the next step
 * instead, against most of those who belong to both calls. *awaits is set where a rank that belongs to both has come to
 * neither, and may come.
 */
bool order_vote(const struct roll_engine *e, const struct block *b, struct roll_rankset *odd, uint32_t *at,
                bool *awaits);
/* Two communicators are the same place of the program: they come of one split, or have one label and one size. */
bool comm_is_sibling(const struct comm *a, const struct comm *b);
/* How many of the last calls before #seq are alike on both; -1: one is not. */
int comm_same_past(const struct comm *a, const struct comm *b, uint32_t seq);
/* Both still know collective #seq, and it was alike. */
bool comm_same_call(const struct comm *a, const struct comm *b, uint32_t seq);

#endif
