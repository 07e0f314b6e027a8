/*
 * agent_digest_state.h: what the files of an agent's digests share. Private to agent_digest.c and agent_excerpt.c.
 */
#ifndef ROLL_DAEMON_AGENT_AGENT_DIGEST_STATE_H
#define ROLL_DAEMON_AGENT_AGENT_DIGEST_STATE_H

#include "daemon/agent/agent_digest.h"
#include "daemon/digest/excerpt.h"
#include "daemon/digest/fold.h"
#include "daemon/digest/sum.h"

struct comm_of_ring {
    uint64_t key;
    uint16_t id;
};

struct folded {
    const struct roll_agent_ring *ring; /* borrowed */
    roll_fold_t *fold;                  /* owned */
    struct comm_of_ring *comm;          /* owned */
    size_t comms, room;
    uint64_t next; /* ticket behind the newest that was folded */
    uint64_t calls;
    struct roll_record last; /* the newest NCCL call of them; op NONE: there was none */
    uint32_t run, child;
    struct roll_agent_ring *copy;  /* the excerpt's reader; owned; NULL: there is no excerpt of it */
    struct roll_fold_place *place; /* owned; to be sent before its first record */
    size_t places;
    uint64_t begin, end; /* the excerpt's first ticket, and the one behind what was there when it began */
    uint64_t number;     /* of the excerpt that this is; 0: none */
    bool begun, placed, all, cut;
    bool aside;                     /* nothing is wanted of this ring */
    bool lacks;                     /* of what is wanted something is not there any more */
    struct narrow *narrow;          /* owned; NULL: all records are sent */
    struct roll_agent_defs *defs;   /* owned; NULL: there is no excerpt of it */
    bool hinted;                    /* it has given a hint of its own since it was looked at last */
    uint64_t stood_ns, stood_at_ns; /* for how long its rank could run and wrote nothing, as of stood_at_ns */
};

struct folded_run {
    char job[ROLL_NAME_BYTES];
    uint32_t restart;
    roll_sum_t *sum; /* owned */
    uint64_t calls, calls_told;
    uint64_t told_ns, stream; /* stream: epoch of one of its rings */
    uint32_t children, rings;
    uint64_t number; /* of the excerpt that is asked for; 0 = none */
    struct roll_frame_excerpt ask;
    struct roll_frame_want *want; /* owned; by key, ascending; ask.wants of them */
    struct roll_digest said; /* its newest hints: a digest tells a hint once, and a root may have been started anew */
    bool again;              /* they are told again */
    bool no_room_told;       /* the log says that there was no room for what its ranks tell */
};

struct roll_agent_digests {
    roll_agent_send_fn send;
    void *ctx;
    struct folded **ring; /* owned, as are those */
    size_t used, room;
    struct folded_run *run;
    size_t runs, run_room;
    struct roll_digest digest, up;
    uint8_t *buffer, *payload;
};

#define ROLL_AGENT_PAYLOAD (32u * 1024u) /* bytes of `payload`: of one DIGEST frame, and of definitions */

/* What one turn of a reader works on. */
struct turn {
    struct roll_agent_digests *d;
    struct folded *f;
    uint64_t now;
};

/* What is wanted of the communicator with this key; NULL: it is not named. */
static inline const struct roll_frame_want *roll_agent_excerpt_named(const struct folded_run *run, uint64_t key)
{
    uint32_t low = 0, high = run->ask.wants;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (run->want[mid].key < key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < run->ask.wants && run->want[low].key == key ? &run->want[low] : NULL;
}

/* agent_narrow.c: an excerpt of the calls of some communicators alone */

/* Whether it is asked for that way. */
bool roll_agent_narrow_is_asked(const struct folded_run *run);
/* Finds where such an excerpt begins, and which places it has; makes f->narrow. 0, NOMEM. */
int roll_agent_narrow_begin(const struct folded_run *run, struct folded *f, const struct roll_excerpt_records *records);
void roll_agent_narrow_end(struct folded *f);
/* Sends of a RECORDS or UPDATES frame of the ring what belongs to it. */
int roll_agent_narrow_send(const struct turn *t, struct roll_frame_head head, const struct roll_record *recs,
                           uint64_t *seq);
/* The number of its first record. */
uint64_t roll_agent_narrow_first(const struct folded *f);
/* The rank has made calls behind all that is wanted, and these have been sent. */
bool roll_agent_narrow_has_passed(const struct folded *f);
/* That is so, or so many of the records were written later than the excerpt began: no more of it is sent. */
bool roll_agent_narrow_is_full(const struct folded *f, uint64_t follow);

/* agent_defs.c: which definitions an excerpt has */

/* ring: borrowed. 0, NOMEM. */
int roll_agent_defs_new(const struct roll_ring *ring, struct roll_agent_defs **out);
void roll_agent_defs_destroy(struct roll_agent_defs **defs);
/* Takes the definitions at this offset of the ring's area, whole ones, and sends those that any excerpt has, or that
 * records have named. May be called again where it fails. 0, NOMEM, BUSY. */
int roll_agent_defs_take(const struct turn *t, uint64_t first, size_t bytes);
/* Sends what these records, which are about to be sent, are the first to name, and the numbers of the other call sites.
 * Likewise. */
int roll_agent_defs_name(const struct turn *t, const struct roll_record *recs, size_t n);
/* Sends what is left to be sent of either. Likewise. */
int roll_agent_defs_rest(const struct turn *t);

/* agent_excerpt.c */
/* Finds whether something is wanted of a ring, and opens its second reader where it begins. 0, NOMEM, or as
 * roll_ring_open. */
int roll_agent_excerpt_begin(struct roll_agent_digests *d, struct folded *f);
/* A ring of which nothing was wanted has turned out to be concerned: it has come to a communicator that is named, or
 * has given a hint. */
bool roll_agent_excerpt_is_due(const struct roll_agent_digests *d, const struct folded *f);
void roll_agent_excerpt_end(struct folded *f);
/* Ends those of all rings of a run. */
void roll_agent_excerpts_end(struct roll_agent_digests *d, uint32_t run);
/* Sends of an excerpt what there is; how many records that were, or a negative error. */
int64_t roll_agent_excerpt_pump(struct roll_agent_digests *d, struct folded *f, uint64_t now);

#endif
