/*
 * root_digest.h: a run whose calls are compared by digests, as root_digest.c, root_case.c and root_fronts.c share it.
 * Private to these; the root's one thread.
 */
#ifndef ROLL_DAEMON_ROOT_ROOT_DIGEST_H
#define ROLL_DAEMON_ROOT_ROOT_DIGEST_H

#include "daemon/base/clock.h"
#include "daemon/base/map.h"
#include "daemon/digest/sum.h"
#include "daemon/root/root_state.h"
#include "trace/frame.h"

#include <stddef.h>
#include <string.h>

struct digested_ring {
    uint64_t stream;
    uint8_t *header; /* the payload of its RING frame without the zeros behind; at least what is written once; owned */
    size_t header_bytes;
    uint64_t head;     /* tickets handed out in it, as its agent said last */
    bool begun, all;   /* of the case that is open: its records come, and all that there were have come */
    bool aside;        /* of that case: nothing is wanted of it */
    bool cut;          /* of that case: no more of it is sent, or kept */
    bool spared;       /* of that case: what its records name is not kept, and nothing of it is fed */
    bool lacks;        /* of that case: its ring does not hold all that was wanted */
    bool late;         /* of that case: its records came behind those of the others, since it was looked who goes on */
    uint64_t came_ns;  /* when it was announced while the others' records of that case were judged already; 0: never */
    uint64_t quiet_ns; /* of that case: for how long its rank had stood when all had come; 0: not known, or no more */
    bool ended;        /* its process has ended, */
    bool failed;       /* and not in good order */
    uint64_t stopped_ns;         /* since when its process is known to be stopped; 0: it is not */
    uint64_t last_ns;            /* of its rank's newest call when it was looked at last; polls show nobody going on */
    struct roll_frame_last last; /* what its agent told last of its calls; */
    uint64_t enter_ns;           /* wall clock of the newest */
};

/* A finding of some case, as long as it stands. */
struct digested_finding {
    const struct roll_verdict_copy *copy; /* borrowed from the run's verdicts */
    uint64_t engine;                      /* the number of the case that has found it, or found it again, last */
    uint64_t seen_ns;                     /* when something of the kind was found or hinted at last, */
    uint32_t upto;                        /* and the collective behind it */
    bool awaits; /* it rests on a collective that some member has not made, and that it may still make */
    size_t
        ended; /* how many rings there were when it was said, where the processes of its culprits had ended; else 0 */
};

#define ROLL_CASE_STAGE ((size_t)512 << 20) /* bytes of frames that are kept until all have sent theirs */

#define ROLL_CASE_TOLD     16u /* places, each of a communicator, of which a case notes that it has told of them */
#define ROLL_CASE_ANYWHERE UINT32_MAX

/* Of the window in which calls of a communicator differ the part that is asked for, where it is not all of it. */
struct case_span {
    uint64_t key;
    uint32_t window, first; /* first calls of both */
};
#define ROLL_CASE_SPANS 16u

struct staged {
    uint8_t *raw; /* owned */
    size_t bytes;
    uint16_t type; /* of the frame */
};

struct roll_digested {
    roll_sum_t *sum;
    struct digested_ring *ring; /* owned */
    size_t rings, ring_room;
    uint64_t first_ns;       /* when the first of them was announced */
    struct roll_map ring_at; /* stream -> index of `ring` */
    uint64_t *calls;         /* by the number of an agent's place: the calls that it has folded; owned */
    size_t calls_room;
    struct roll_digest came, hints; /* hints: those that wait for a case, or were asked for in the one that is open */
    /* root_hints.c */
    struct roll_digest
        late;         /* hints that came while a case was open, and that it may not see; of each kind the newest */
    uint64_t late_ns; /* when the first of them came */
    struct roll_digest covered; /* likewise hints whose calls the open case has asked for: some members may be cut
                                   before these */
    size_t asked;               /* so many of `hints`, the first, are what the open case was opened for */
    bool late_urgent, unseen;   /* one of them is of a wrong call; and a rank of the case has been cut */
    bool elsewhere;             /* a wrong call is hinted at of which the open case has no records */
    bool hasty;                 /* the open case is about a wrong call */
    bool fresh;           /* a wrong call that waits is on a communicator that none of the last cases was about: */
    struct roll_map past; /* these communicators' keys */
    uint32_t pasts;
    uint64_t stilled_ns; /* the open case is begun anew because the job stands now so long after it, at the earliest */
    uint64_t redo_ns; /* the open case is begun anew because of ranks that were cut so long after it, at the earliest */
    uint64_t refused, opened;
    uint64_t look_ns;
    uint64_t told_ns;        /* when a digest came last */
    uint64_t moved_ns;       /* wall clock at which an agent told more calls than before; 0: none has */
    uint64_t still_since_ns; /* the same moment, by the root's own clock */
    bool unasked;            /* rings were announced since agents were asked */
    bool failed;             /* a process has ended, and not in good order, and no case was opened since */
    uint64_t end_ns;         /* since when no process of the run lives; 0: some do */
    uint64_t over_ns;        /* the same, or since when all are heard who may still tell what there was, if later */
    bool over_seen;          /* what they left was looked at */
    bool pending;            /* hints wait for a case */
    bool urgent;             /* one of them is of a wrong call */
    uint64_t closed_ns;      /* when the last case ended */
    uint64_t still_key; /* a communicator that stood at collective still_seq when it was looked at since still_ns; 0:
                           none is known */
    uint64_t still_ns;
    uint32_t still_seq;
    uint64_t due_ns; /* when they are acted on */
    uint64_t hold_ns, held_until_ns;
    /* the case that is open */
    uint64_t number;                     /* 0: none is */
    size_t awaited_peer, awaited_stream; /* the ring that was awaited when it was looked last, by its agent's number */
    bool fed;
    uint64_t opened_ns, asked_ns, fed_ns, rest_ns;
    unsigned again;                     /* how often it was begun anew to ask for more, */
    unsigned anews;                     /* and because a ring of it was announced anew */
    bool scoped;                        /* only the rings that are concerned are asked, */
    bool narrow;                        /* and of these only for their calls on the communicators that are hinted at */
    bool named;                         /* it has told of somebody, or of what is certain, */
    uint64_t named_key[ROLL_CASE_TOLD]; /* on these communicators; of more it is not noted; */
    uint32_t named_seq[ROLL_CASE_TOLD]; /* of which collective there; ROLL_CASE_ANYWHERE: of something else there */
    uint32_t named_keys;
    struct case_span span[ROLL_CASE_SPANS];
    uint32_t spans;
    uint64_t front;       /* how far their members had come there, in all, when it was opened */
    bool stalls;          /* meanwhile it was hinted at that somebody stands, */
    bool stalls_there;    /* on one of these communicators; */
    uint64_t stall_front; /* how far they had come then, or later, */
    uint64_t stall_ns;    /* and since when they have come no further */
    uint64_t dark_ns;     /* when some live rank of the run was not seen last: nobody knows whether it stood */
    bool anew;            /* a ring of it was announced anew: it is begun anew, that way again */
    bool broad;           /* until it is closed it is not begun that way: that was not enough, or would not be */
    bool blind;           /* its engine was fed when nobody had sent records: it cannot know where those come in */
    bool wider;           /* its engine has found something about a communicator of which not all were asked */
    bool stood;           /* it was looked whether the ranks that were asked stand, and nothing is said */
    bool unjudged;        /* it was said what could not be judged */
    bool partly;          /* a ring of it was cut before all that was asked of it had come */
    bool comes;           /* rings were announced since it is judged, of which nothing has come yet */
    struct staged *stage; /* owned */
    size_t staged, stage_room, stage_bytes;
    size_t named_bytes, named_most; /* of these of definitions that records name, and how many of them may be */
    uint64_t spared;                /* how often a ring was spared for want of room for such definitions */
    roll_feed_t *feed;              /* owned */
    uint64_t *said;                 /* the run's number of each verdict of this feed, from 1; owned */
    size_t saids, said_room;
    struct digested_finding *finding; /* owned */
    size_t findings, finding_room;
    uint64_t numbers;    /* the highest number of the run */
    bool news;           /* the case has said what was not said before, */
    bool engine_news;    /* and the engine that is open has */
    bool wanted;         /* a viewer wants to see records: roll_digested_wanted */
    uint64_t wanted_key; /* of the communicator of which they are wanted; 0: that is not known */
    uint64_t wanted_ns;  /* when a viewer's wish was last met */
    /* how fast the job goes (root_fronts.c) */
    uint64_t rate_ns, rate_calls; /* when calls were counted last, and how many there were */
    double calls_per_s;
    uint64_t most_calls; /* that were ever told */
};

static inline struct digested_ring *roll_digested_ring_of(const struct roll_digested *d, uint64_t stream)
{
    uint32_t at = roll_map_get(&d->ring_at, stream);
    return at != ROLL_MAP_NONE ? &d->ring[at] : NULL;
}

/* The number at this offset of a ring's header, one of those that are written once. */
static inline int32_t roll_digested_header_int(const struct digested_ring *ring, size_t offset)
{
    int32_t value;
    memcpy(&value, ring->header + offset, sizeof(value));
    return value;
}

/* The rank that the ring's header tells; less than 0: none. */
static inline int32_t roll_digested_rank(const struct digested_ring *r)
{
    return roll_digested_header_int(r, offsetof(struct roll_ring_header, world_rank));
}

/* root_fronts.c: for people */
/* Notes what a STATUS tells of a ring's last call. */
void roll_fronts_status(struct digested_ring *ring, const struct roll_frame *frame);
/* Looks how fast the job goes. */
void roll_fronts_look(struct roll_run *run, uint64_t now);

/* Nothing of this ring is awaited before the open case is judged. */
static inline bool roll_digested_has_sent(const struct digested_ring *r)
{
    return r->all || r->aside;
}

/* Nothing of the open case is known of this ring. */
static inline void roll_digested_renew(struct digested_ring *r)
{
    r->begun = r->all = r->aside = r->cut = r->spared = r->lacks = r->late = false;
    r->quiet_ns = r->came_ns = 0;
}

#define ROLL_CASE_NAMED        256u /* where so many communicators are hinted at, the whole job is concerned */
#define ROLL_CASE_SCOPED       3u   /* so often a case is widened by what turns out; then everybody is asked */
#define ROLL_CASE_ANEW         3u   /* so often a narrow one is begun anew that way; then all records are asked for */
#define ROLL_CASE_HOLD_NS      (1000 * ROLL_MS)  /* behind a case that found something the next one waits so long, */
#define ROLL_CASE_HOLD_MOST_NS (60000 * ROLL_MS) /* and behind some that found nothing new at most so long */
/* Where ranks stand, others will stand soon, and are asked together with them. */
#define ROLL_CASE_GATHER_NS (300 * ROLL_MS)

/* root_hints.c: what waits to be looked at */

/* A wrong call is there as soon as it is told of; where somebody stands, nothing is urgent. */
static inline bool roll_hint_is_urgent(const struct roll_digest_hint *hint)
{
    return hint->why != ROLL_HINT_STANDS && hint->why != ROLL_HINT_QUIET && hint->why != ROLL_HINT_INSIDE;
}
/* Calls on this communicator are hinted at to differ. */
static inline bool roll_hint_differs(const struct roll_digested *d, uint64_t key)
{
    bool there = false;
    for (size_t i = 0; i < d->hints.hints && !there; i++) {
        there = d->hints.hint[i].key == key && d->hints.hint[i].why == ROLL_HINT_DIFFERS;
    }
    return there;
}
/* Notes the hints of this moment, and whether the open case has what they are about. */
void roll_hints_note(struct roll_digested *d, const struct roll_digest *up, uint64_t now);
/* A case is to be opened for what waits. */
bool roll_hints_due(struct roll_digested *d, uint64_t now, bool asks_everybody);
/* For so long nobody has made a call, as far as agents have told; they tell of calls within a second. */
uint64_t roll_hints_quiet_ns(const struct roll_digested *d, uint64_t now);
/* The open case is to be begun anew, because it was begun while ranks went on, and these were cut: now nobody goes on,
 * and all can be seen. Less and less often, because a job may rest between its calls. */
bool roll_hints_stilled(struct roll_digested *d, uint64_t now);
/* The open case is to be begun anew, because it does not see a wrong call; then the hints are those to ask for. */
bool roll_hints_redo(struct roll_digested *d, uint64_t now);
/* A case is opened, or closed: what it has not looked at waits for the next one. */
void roll_hints_open(struct roll_digested *d);
void roll_hints_close(struct roll_digested *d, uint64_t now);

/* root_case_ask.c: which records are asked for */

/* What of a communicator is to be asked for: where its last member stands, and what the first so many hints say. */
struct roll_frame_want roll_case_want(const struct roll_digested *d, size_t hints, uint64_t key);
/* What is asked for of its communicator reaches back to the first call that this hint that calls differ may be about.
 */
bool roll_case_reaches_back(const struct roll_digested *d, const struct roll_digest_hint *h,
                            const struct roll_frame_want *want);
/* Some hint names this communicator. */
bool roll_case_is_hinted(const struct roll_digested *d, uint64_t key);
/* What a hint said of a communicator that stands still holds: its last member has made no call since. */
bool roll_case_stands(const struct roll_digested *d, const struct roll_digest_hint *hint);
/* That calls on the communicators that are hinted at are not enough has turned out: all records are asked for next. */
static inline void roll_case_broaden(struct roll_digested *d)
{
    d->broad = d->wider = true;
}
/* The job has so few ranks that each case asks all of them. */
bool roll_case_asks_everybody(const roll_root_t *root, const struct roll_digested *d);
/* Somebody stands, as far as is known; there: on a communicator whose calls differ. */
bool roll_case_any_stands(const struct roll_digested *d, bool there);
/* How far the first members have come on the communicators whose calls differ, in all. */
uint64_t roll_case_front(const struct roll_digested *d);
/* The open case has the calls on some communicators alone, and is about to be begun anew. */
static inline bool roll_case_is_left(const struct roll_digested *d)
{
    return d->narrow && (d->broad || d->anew);
}
/* Decides whether all rings are asked for their records, or those that are concerned, and what of them is kept. */
void roll_case_measure(const roll_root_t *root, struct roll_digested *d);
/* Asks all agents of the run; where no case is open they hear that no more is wanted. */
void roll_case_ask_all(const roll_root_t *root, const struct roll_run *run);
/* Asks again those agents that have not sent all of their rings. */
void roll_case_ask_again(const roll_root_t *root, const struct roll_run *run);
/* Every ring that is heard has sent all that there was, or is not concerned. */
bool roll_case_is_whole(const roll_root_t *root, const struct roll_run *run);

/* root_narrow.c */

/* The open case has the calls on some communicators alone, has been judged, and is to be begun anew with all records.
 */
bool roll_case_wants_all(struct roll_digested *d, uint64_t now);

/* root_case_same.c: what an earlier case has found. The verdicts stay the caller's. */

/* No rank is in `a` that is not in `b`. One step for each of their ranges. Pure. */
bool roll_ranks_are_part(const struct roll_rankset *a, const struct roll_rankset *b);
/* Whom others miss, as the verdict says; it stays the verdict's. Pure. */
const struct roll_rankset *roll_case_missed(const struct roll_verdict *v);
/* The verdict's `seq` is the number of a collective. */
bool roll_case_is_of_collective(const struct roll_verdict *v);
/* The newest processes of these ranks have ended, and their rings are among the first `rings`. */
bool roll_case_have_ended(const struct roll_digested *d, const struct roll_rankset *ranks, size_t rings);
/* A finding that stands and tells what v tells, or more of the same; NULL: there is none. */
struct digested_finding *roll_case_said_before(struct roll_digested *d, const struct roll_verdict *v);
/* The number of a finding of which v tells more; 0: there is none. */
uint64_t roll_case_said_worse(const struct roll_digested *d, const struct roll_verdict *v);

/* root_case_say.c: what the engines of cases find, as the run says it (roll_digested_verdicts) */

/* Calls that differ are hinted at: what was found of the kind goes on. */
void roll_case_goes_on(struct roll_digested *d, const struct roll_digest *up, uint64_t now);
/* Withdraws what was suspected and is over. closes: the open case is about to be closed, because everybody goes on. */
void roll_case_take_back(roll_root_t *root, struct roll_run *run, bool closes);

/* root_case.c: the engine that judges what comes */

/* Asks all agents of the run for the newest records of their rings. What an earlier case had is forgotten. */
void roll_case_open(roll_root_t *root, struct roll_run *run, uint64_t now);
/* No more records are wanted. */
void roll_case_close(roll_root_t *root, struct roll_run *run, uint64_t now);
/* A ring is new, or was announced again. */
void roll_case_ring(struct roll_run *run, const struct digested_ring *ring);
/* Takes a frame of the case that is open; one of an earlier case, which was on its way, is passed over. */
int roll_case_frame(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes);
/* Takes what is said of the process behind a ring. */
int roll_case_process(struct roll_run *run, const struct roll_frame *frame);
/* Feeds the engine with what has come, as if it had come in at this moment at all ranks. */
void roll_case_feed(struct roll_run *run, uint64_t now);
/* Has every live rank whose records come made a call since this was asked last? */
bool roll_case_went_on(struct roll_run *run);
/* Says where digests differ and the records do not tell how, because they are not there any more. */
void roll_case_tell_unjudged(struct roll_run *run);
void roll_case_fini(struct roll_digested *d);

#endif
