/*
 * detector.h: what a detector is: a row of functions, called by the engine at fixed moments. docs/ADDING.md says how
 * to add one.
 *
 * A detector judges; it does not match. It is given what the lower floors have found (a disagreement, a pair, a reason
 * for waiting, a record) and either stays silent or says one verdict per cause. All functions may be NULL. They run in
 * the order of the table detectors.def.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_DETECTOR_H
#define ROLL_DAEMON_ENGINE_DETECT_DETECTOR_H

#include "daemon/engine/detect/state.h"
#include "daemon/engine/judge/judge.h"

struct detector {
    const char *name;
    /* What it keeps of the engine: ENGINE_STATE(name) fills in both; the state is made, all zero, before init. */
    size_t engine_bytes;
    uint32_t engine_place;
    /* The run begins. 0 or a negative code: then there is no engine. Only where zeros do not do. */
    int (*init)(struct roll_engine *e);
    /* Ranks disagree at one place of a communicator, and it is known how. True: said, or known; nobody else is asked.
     */
    bool (*disagree)(struct roll_engine *e, const struct finding *f);
    /* A send and a receive that meet differ in bytes. */
    bool (*pair)(struct roll_engine *e, struct pair *p, uint32_t index);
    /* Ranks wait, and this is why. True: said, or known. */
    bool (*block)(struct roll_engine *e, const struct block *b);
    /* A record of class MOE, EXT or COMM, first time or grown. Collectives and p2p do not come here: that path is hot.
     */
    void (*record)(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket, bool first);
    /* Records of this source are lost. */
    void (*lost)(struct roll_engine *e, uint32_t source, uint64_t count);
    /* Time has passed. */
    void (*tick)(struct roll_engine *e);
    /* The run is over, in this order: each frees what its state owns; the state itself is freed by state.c. An object
     * of which nobody has kept anything is not shown to these. */
    void (*fini)(struct roll_engine *e);
    void (*source_fini)(struct source *s);
    void (*member_fini)(struct member *m);
    void (*comm_fini)(struct comm *c);
};

#define ENGINE_STATE(name) .engine_bytes = sizeof(struct name##_engine), .engine_place = STATE_ENGINE_##name

/* detect_<name>, one per file; detect_null is the template. */
#define DETECTOR(name, engine, source, comm, member) extern const struct detector detect_##name;
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
extern const struct detector detect_null;

/* Ids: the places in the table. */
enum detector_id {
#define DETECTOR(name, engine, source, comm, member) DETECTOR_##name,
#include "daemon/engine/detect/detectors.def"
#undef DETECTOR
    DETECTORS
};
extern const struct detector *const detectors[DETECTORS];

/* Makes the state that a detector keeps of the engine, and calls init. 0, NOMEM, or what init returned. */
int detector_open(struct roll_engine *e, const struct detector *detector);
int detectors_open(struct roll_engine *e); /* all of them */
/* Frees what all detectors keep: of the engine, its sources, communicators and members. */
void detectors_close(struct roll_engine *e);

extern const struct judge_ask detectors_ask; /* what the judge asks of them */
bool detectors_pair(struct roll_engine *e, struct pair *p, uint32_t index);

/* detect_moe_outside.c: a send or receive in a group: the place of the group among the member's exchanges, from 1; 0 =
 * not followed. */
uint32_t outside_exchange(struct roll_engine *e, struct member *m, const struct roll_record *rec);
/* A send and a receive that meet belong to one exchange: numbers are made equal. `place` is that of the call of `m`, 0
 * = none. */
void outside_meet(struct member *m, struct member *other, struct node *n, uint32_t place);
/* Notes that members moved as many bytes in this collective, but not of one datatype; once per place. detect_dtype.c */
void dtype_note(struct roll_engine *e, struct comm *c, uint32_t seq);
/* A send and a receive that pair up have different numbers of collectives before them that are made of messages. */
void lowered_cross(struct roll_engine *e, const struct pair *p, uint32_t index);
/* Says that a send and a receive differ in bytes; ticket: of both calls. */
void p2p_say_bytes(struct roll_engine *e, struct pair *p, uint32_t index, const uint64_t ticket[2], bool proven);

/* detect_refused.c, refused_match.c: calls of which nothing was enqueued */
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
void refused_renew(const struct roll_engine *e,
                   struct source *s); /* it is heard again: time to make them again begins anew */

/* detect_claim.c: definitions that contradict each other */
/* A definition that contradicts another one of the same communicator. */
struct claim {
    uint32_t source;
    int32_t rank, nranks;
};
/* The claims on a communicator; *count: how many. NULL: none. */
const struct claim *claims_on(const struct comm *c, uint32_t *count);
/* Keeps what cannot be a member: 0, CORRUPT where it is no claim of its own, NOMEM. */
int claim_add(struct roll_engine *e, struct comm *c, uint32_t source, const struct roll_def_comm *def);
const struct claim *claim_of(const struct roll_engine *e, const struct source *s,
                             const struct comm **out); /* or NULL */

/* detect_race.c: calls of several host threads */
void race_call(struct roll_engine *e, struct member *m, const struct roll_record *rec);
void race_returned(struct roll_engine *e, struct source *s,
                   const struct roll_record *rec); /* news of a call, or of a group's end */

/* detect_stuck.c */
/* A wait of the host has returned; since: patience clock at which it was seen to be inside, NO_CLOCK: it was not. */
void stuck_returned(struct roll_engine *e, struct source *s, const struct roll_record *rec, uint64_t since);

/* stuck_wait.c: what the waits of a host have been like */
/* Another record now tells of the loop of polls that the host is inside; both are tickets + 1 of a record. */
void stuck_goes_on(struct source *s, uint64_t inside, uint64_t now_inside);
void stuck_polled(struct source *s, uint64_t ticket); /* polls that were over before they were seen */

/* stuck_find.c: its host stands in a call in which everybody stands, and that is why it does not come (yet) to where
 * others wait for it. */
bool stuck_stands(struct roll_engine *e, const struct source *s);

/* detect_init.c */
/* A nonblocking creation of this source is over, if it is inside one: it goes on with other calls. */
void creation_over(struct source *s);
/* It has asked how a communicator stands (rec), and nothing is in progress there. */
void creation_asked(struct roll_engine *e, struct source *s, const struct roll_record *rec);
uint64_t creation_key(const struct source *s, const struct roll_record *rec); /* of the verdict about it */

/* detect_process.c */
bool process_is_told(const struct source *s); /* its death has been told as such */

/* detect_missing.c */
/* That it does not come has been told, and it has made no call since. */
bool missing_is_told(const struct source *s);
void missing_set_told(struct source *s);

#endif
