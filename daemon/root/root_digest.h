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

struct digested_ring {
    uint64_t stream;
    uint8_t *header;             /* the payload of its RING frame; owned */
    uint64_t head;               /* tickets handed out in it, as its agent said last */
    bool begun, all;             /* of the case that is open */
    bool failed;                 /* its process has ended, and not in good order */
    uint64_t last_ns;            /* of its rank's newest call when it was looked at last; polls show nobody going on */
    struct roll_frame_last last; /* what its agent told last of its calls; */
    uint64_t enter_ns;           /* wall clock of the newest */
};

struct staged {
    uint8_t *raw; /* owned */
    size_t bytes;
};

struct roll_digested {
    roll_sum_t *sum;
    struct digested_ring *ring; /* owned */
    size_t rings, ring_room;
    struct roll_map ring_at; /* stream -> index of `ring` */
    uint64_t *calls;         /* by the number of an agent's place: the calls that it has folded; owned */
    size_t calls_room;
    struct roll_digest came, hints; /* hints: those that wait for a case, or were asked for in the one that is open */
    uint64_t refused, opened;
    uint64_t look_ns;
    bool unasked;     /* rings were announced since agents were asked */
    bool failed;      /* a process has ended, and not in good order, and no case was opened since */
    uint64_t over_ns; /* since when no process of the run lives; 0: some do */
    bool over_seen;   /* what they left was looked at */
    bool pending;     /* hints wait for a case */
    uint64_t hold_ns, held_until_ns;
    /* the case that is open */
    uint64_t number; /* 0: none is */
    bool fed;
    uint64_t opened_ns, asked_ns, rest_ns;
    unsigned again;
    struct staged *stage; /* owned */
    size_t staged, stage_room;
    roll_feed_t *feed; /* owned */
    uint64_t *said;    /* the run's number of each verdict of this feed, from 1; owned */
    size_t saids, said_room;
    uint64_t numbers; /* the highest number of the run */
    bool news;        /* the case has said what was not said before */
    bool wanted;      /* a viewer wants to see records: roll_digested_wanted */
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

/* root_fronts.c: for people */
/* Notes what a STATUS tells of a ring's last call. */
void roll_fronts_status(struct digested_ring *ring, const struct roll_frame *frame);
/* Looks how fast the job goes. */
void roll_fronts_look(struct roll_run *run, uint64_t now);

#define ROLL_CASE_HOLD_NS (1000 * ROLL_MS) /* after a case that found something no other one is opened for so long */

/* root_case.c: the records that are asked for, and the engine that judges them */

/* What of a communicator is to be asked for: where its last member stands, and what hints say. */
struct roll_frame_want roll_case_want(const struct roll_digested *d, uint64_t key);
/* Asks all agents of the run for the newest records of their rings. What an earlier case had is forgotten. */
void roll_case_open(roll_root_t *root, struct roll_run *run, uint64_t now);
/* No more records are wanted. */
void roll_case_close(roll_root_t *root, struct roll_run *run, uint64_t now);
/* Asks again those agents that have not sent all of their rings. */
void roll_case_ask_again(const roll_root_t *root, const struct roll_run *run);
/* A ring is new, or was announced again. */
void roll_case_ring(struct roll_run *run, const struct digested_ring *ring);
/* Takes a frame of the case that is open; one of an earlier case, which was on its way, is passed over. */
int roll_case_frame(struct roll_run *run, const struct roll_frame *frame, const void *raw, size_t bytes);
/* Takes what is said of the process behind a ring. */
int roll_case_process(struct roll_run *run, const struct roll_frame *frame);
/* Every ring that is heard has sent all that there was. */
bool roll_case_is_whole(const roll_root_t *root, const struct roll_run *run);
/* Feeds the engine with what has come, as if it had come in at this moment at all ranks. */
void roll_case_feed(struct roll_run *run, uint64_t now);
/* Has every live rank made a call since this was asked last? */
bool roll_case_went_on(struct roll_run *run);
void roll_case_fini(struct roll_digested *d);

#endif
