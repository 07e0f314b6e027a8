/*
 * detector.h: what a detector is: a row of functions that the engine calls at fixed moments. docs/ADDING.md says how to
 * add one.
 *
 * A detector judges; it does not match. The lower floors hand it what they have found (a disagreement, a pair, a reason
 * for waiting, a record), and it stays silent or says one verdict per cause. Each function may be NULL. The detectors
 * are asked in the order of the table detectors.def.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_DETECTOR_H
#define ROLL_DAEMON_ENGINE_DETECT_DETECTOR_H

#include "daemon/engine/detect/state.h"
#include "daemon/engine/judge/judge.h"

struct detector {
    const char *name;
    /* Size and place of the detector's state of the engine; ENGINE_STATE(name) fills in both. The state is made, all
     * zero, before init. */
    size_t engine_bytes;
    uint32_t engine_place;
    /* The run begins. Returns 0 or a negative code; with a code no engine is made. Only for states that must not begin
     * as zeros. */
    int (*init)(struct roll_engine *e);
    /* Ranks disagree at one place of a communicator, and *f says how. True: the detector has said it or knows it, and
     * no other detector is asked. */
    bool (*disagree)(struct roll_engine *e, const struct finding *f);
    /* A send and a receive that meet differ in bytes. True: as for disagree. */
    bool (*pair)(struct roll_engine *e, struct pair *p, uint32_t index);
    /* Ranks wait, and *b says why. True: as for disagree. */
    bool (*block)(struct roll_engine *e, const struct block *b);
    /* A record of class MOE, EXT or COMM has come; first: for the first time, else in a later state. Collectives and
     * messages are not shown here: their path is hot. */
    void (*record)(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket, bool first);
    /* `count` records of this source are lost. 0: one is there that says no more than that some call was made. */
    void (*lost)(struct roll_engine *e, uint32_t source, uint64_t count);
    /* Time has passed. */
    void (*tick)(struct roll_engine *e);
    /* The run is over. The four functions are called in this order; each frees what the detector's states own, and
     * state.c frees the states themselves. An object of which no detector has kept anything is not shown. */
    void (*fini)(struct roll_engine *e);
    void (*source_fini)(struct source *s);
    void (*member_fini)(struct member *m);
    void (*comm_fini)(struct comm *c);
};

#define ENGINE_STATE(name) .engine_bytes = sizeof(struct name##_engine), .engine_place = STATE_ENGINE_##name

/* The row detect_<name> of each detector, one per file; detect_null is the template. */
#define DETECTOR(name, engine, source, comm, member) extern const struct detector detect_##name;
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
extern const struct detector detect_null;

/* The number of each detector is its place in the table. */
enum detector_id {
#define DETECTOR(name, engine, source, comm, member) DETECTOR_##name,
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    DETECTORS
};
extern const struct detector *const detectors[DETECTORS];

/* Makes the state that the detector keeps of the engine, and calls its init. 0, NOMEM, or what init returned. */
int detector_open(struct roll_engine *e, const struct detector *detector);
int detectors_open(struct roll_engine *e); /* opens all detectors; stops at the first error */
/* Frees what all detectors keep of the engine, its sources, communicators and members. */
void detectors_close(struct roll_engine *e);

extern const struct judge_ask detectors_ask; /* the questions of the judge, answered by the detectors */
bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index);

/* detect_moe_outside.c: the number, from 1, of the exchange of m to which this send or receive in a group belongs; 0 =
 * not followed. */
uint32_t outside_exchange(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* A send and a receive that meet belong to one exchange, so the two members' counts of exchanges are made equal. place:
 * what outside_exchange returned for the call of m; 0 = none. */
void outside_meet(struct member *m, struct member *other, struct node *n, uint32_t place);
/* detect_rehearsed.c */
/* The next call of a member, where a rehearsal is known (e->expected); before the call is matched. */
void rehearsed_call(struct roll_engine *e, const struct source *s, struct member *m, const struct roll_record *rec,
                    uint64_t ticket);
/* How the call of a member with this ticket stands to what was rehearsed. */
enum rehearsed rehearsed_of(const struct member *m, uint64_t ticket);

/* detect_dtype.c: notes that the members moved equally many bytes in this collective, but with different datatypes;
 * once per place. */
void dtype_note(struct roll_engine *e, struct comm *c, uint32_t seq);
/* detect_lowered.c: a send and a receive form a pair, and the two ranks have made different numbers of collectives
 * before it that NCCL makes of messages. */
void lowered_cross(struct roll_engine *e, const struct pair *p, uint32_t index);
/* p2p_say.c: says that a send and a receive differ in bytes; ticket: those of the two calls. */
void p2p_say_bytes(struct roll_engine *e, struct pair *p, uint32_t index, const uint64_t ticket[2], bool proven);

/* detect_refused.c, refused_match.c, refused_place.c, refused_declined.c: calls of which nothing was enqueued */
/* this GROUP_END returned an error or was only simulated */
bool refused_is_group_void(const struct roll_record *rec);
/* A call has come that NCCL has refused already. */
void refused_fresh(struct roll_engine *e, struct member *m, struct entry *entry);
/* A call that has been matched turns out to be refused. */
void refused_late(struct roll_engine *e, struct source *s, struct entry *entry, uint64_t ticket);
/* rollcall itself has refused this call, which stays matched: the disagreement is what is told (refused_declined.c). */
void refused_declined(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* Adds those of these world ranks whose calls at this place rollcall refused, as far as that is known. */
void declined_among(const struct roll_engine *e, const struct comm *c, uint32_t seq, const struct roll_rankset *ranks,
                    struct roll_rankset *out);
/* A disagreement of c is told in which rollcall refused calls: whoever waits for other calls of the same groups waits
 * for the same reason. */
void refused_mute_groups(struct roll_engine *e, const struct comm *c);
/* A group has ended in vain (refused_is_group_void): none of its calls was enqueued. */
void refused_group(struct roll_engine *e, struct source *s, const struct roll_record *end, uint64_t ticket);
/* A call has come whose number was taken before: the calls of its thread from that number on were refused. */
void refused_repeat(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* The member has made a call here that counts. */
void refused_over(const struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* Notes the newest call of the process, when it comes and again when it has returned. */
void refused_last(struct roll_engine *e, struct source *s, const struct roll_record *rec);
/* The rank ended after an error; true: the verdict about that error says so. */
bool refused_death(struct roll_engine *e, struct source *s);
/* s has ended a moment ago, and so has another rank whose call was refused at the same place: they are told together
 * when their last records have been read. */
bool refused_gathers(const struct roll_engine *e, const struct source *s);
/* A creation of a communicator has ended well for s: one that was refused before is over, and what becomes of the rank
 * now is another matter. */
void refused_created(struct source *s);
bool refused_end(const struct source *s); /* the end of the rank has been told with the error before it */
/* The rank is heard again: its time to repeat the refused calls begins anew. */
void refused_renew(const struct roll_engine *e, struct source *s);

/* detect_claim.c: definitions that contradict each other */
/* A definition that contradicts an earlier definition of the same communicator. */
struct claim {
    uint32_t source;
    int32_t rank, nranks;
};
/* The claims on a communicator; *count: how many. NULL: none. */
const struct claim *claims_on(const struct comm *c, uint32_t *count);
/* Keeps a definition that cannot become a member. 0; CORRUPT: it is no claim; NOMEM. */
int claim_add(struct roll_engine *e, struct comm *c, uint32_t source, const struct roll_def_comm *def);
/* The claim of s and its communicator; NULL: none. */
const struct claim *claim_of(const struct roll_engine *e, const struct source *s, const struct comm **out);

/* detect_race.c: calls of several host threads */
void race_call(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* A call, or the end of a group, has returned. */
void race_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec);

/* detect_stuck.c */
/* A wait of the host has returned. since: patience clock at which the host was first seen inside it; NO_CLOCK: it was
 * not seen inside. */
void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since);

/* stuck_wait.c: what the waits of a host have been like */
/* The loop of polls that the host is inside now has another record; inside, now_inside: ticket + 1 of the old and of
 * the new record. */
void stuck_goes_on(struct source *s, uint64_t inside, uint64_t now_inside);
/* The record with this ticket tells of polls that had succeeded when the record came. */
void stuck_polled(struct source *s, uint64_t ticket);

/* stuck_find.c: the host of s stands in a call in which all members stand; this is why it does not (yet) come to where
 * others wait for it. */
bool stuck_stands(struct roll_engine *e, const struct source *s);

/* stuck_leave.c: verdict v says more about these ranks than the findings that they stay in calls of their own
 * (rank-stuck), and takes the place of those that name no other rank. */
void stuck_lone_taken(struct roll_engine *e, struct roll_verdict *v, const struct roll_rankset *ranks);

/* init_inside.c */
/* A nonblocking creation that this source is inside, if any, is over: the source goes on with other calls. */
void creation_over(struct source *s);
/* The source has asked for the state of a communicator (rec), and nothing is in progress there. */
void creation_asked(struct roll_engine *e, struct source *s, const struct roll_record *rec);
/* Key of the verdict about this creation. */
uint64_t creation_key(const struct source *s, const struct roll_record *rec);

/* detect_process.c */
bool process_is_told(const struct source *s); /* the death of s has been told as rank-dead */
/* The process has ended itself, stuck for a reason that has been told: a watchdog, or the error of that very trouble.
 * An exit code that says success is another matter. */
bool process_end_follows(const struct source *s);

/* detect_missing.c */
/* It has been told that s does not come, and s has made no call since. */
bool missing_is_told(const struct source *s);
/* Notes that it has been told that s does not come. */
void missing_set_told(struct source *s);

#endif
