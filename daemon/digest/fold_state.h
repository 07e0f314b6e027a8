/*
 * fold_state.h: what the files of a fold share: what is kept of one rank. fold_collective.c takes its collectives,
 * fold_message.c its messages, fold.c all else, fold_cut.c tells what is new.
 */
#ifndef ROLL_DAEMON_DIGEST_FOLD_STATE_H
#define ROLL_DAEMON_DIGEST_FOLD_STATE_H

#include "daemon/base/map.h"
#include "daemon/digest/fold.h"
#include "daemon/digest/observe.h"

#define ROLL_FOLD_MASK     (ROLL_DIGEST_WINDOW - 1)
#define ROLL_FOLD_THREADS  64u
#define ROLL_FOLD_SEQ_MOST (UINT32_MAX - (1u << 24)) /* a higher number comes from a damaged record */
#define ROLL_FOLD_LIKES    256u /* windows of messages that are kept, to be told and to be told again */
/* Windows that one cut tells of one communicator; more were filled: the oldest are not known. */
#define ROLL_FOLD_WINDOWS 64u

struct roll_fold_filled {
    uint64_t hash;
    bool known;
};

/* Windows of a member: most of its memory. */
struct roll_fold_filling {
    uint64_t sig[ROLL_DIGEST_WINDOW];                  /* of the window that is being filled */
    struct roll_fold_filled filled[ROLL_FOLD_WINDOWS]; /* windows that were filled, by number */
};

struct roll_fold_member {
    uint64_t key;
    uint64_t sum[ROLL_DIGEST_CLASSES]; /* of messages */
    uint64_t until_ns;                 /* when the last call on it ended, by the rank's clock */
    uint32_t size, rank, next, told;   /* told: windows below it were told */
    uint32_t pointed;                  /* how many calls there were when a check point was told */
    uint32_t group, splits;
    uint16_t thread;                    /* that of the last call */
    bool open;                          /* the last call is part of a group that has not ended */
    bool here, known;                   /* known: no call of the window that is being filled is missing */
    bool gone, moved, sums_moved, sure; /* gone: destroyed or aborted by the rank */
    uint64_t gone_ns;                   /* when it was told that it is gone; 0: it was not */
    struct roll_fold_filling *fill;     /* owned; NULL: given back, because it has been gone for long */
};

/* Messages of one direction with one peer. */
struct roll_fold_pair {
    uint64_t hash; /* of the bytes of the window's messages */
    uint32_t peer, next, made;
    uint32_t losses; /* what the fold's were when the newest message came */
    uint16_t comm;
    uint8_t op;
    bool sure;  /* `made` is known */
    bool whole; /* all messages of the window are in the hash */
};

struct roll_fold_inside {
    uint64_t ticket, since_ns; /* ticket + 1; 0: the thread is in no call */
    uint16_t thread, comm;
    bool told;
};

struct roll_fold {
    struct roll_fold_member **member; /* by the rank's id; owned */
    size_t members;
    struct roll_fold_pair *pair;
    size_t pairs, pair_room;
    struct roll_map pair_at;
    struct roll_digest_like *like; /* owned; ROLL_FOLD_LIKES of them, by number: windows of messages */
    uint64_t likes, likes_told;
    struct roll_observed *observed; /* owned; NULL: the rank has observed nothing */
    uint32_t losses;                /* how often records were lost, a beginning in the middle included */
    struct roll_fold_inside inside[ROLL_FOLD_THREADS];
    uint32_t threads;
    uint64_t inside_ns, next_ticket;
    uint64_t last_ns;       /* when the newest record came */
    uint64_t call_ticket;   /* + 1: of the newest call */
    uint64_t waited_ticket; /* + 1: of the newest wait that the host is back from */
    bool told_quiet;
    bool ended;               /* the process has ended, which may be known before its last records are read */
    struct roll_digest hints; /* its hints only */
};

static inline struct roll_fold_member *roll_fold_member_of(const struct roll_fold *fold, uint32_t id)
{
    return id < fold->members ? fold->member[id] : NULL;
}

/* A hint is told once a cut, however many calls give reason to it. */
static inline void roll_fold_hint(struct roll_fold *fold, const struct roll_fold_member *m, enum roll_digest_why why,
                                  uint32_t seq)
{
    uint64_t key = m ? m->key : 0;
    for (size_t i = 0; i < fold->hints.hints; i++) {
        const struct roll_digest_hint *h = &fold->hints.hint[i];
        if (h->key == key && h->why == (uint32_t)why) {
            return;
        }
    }
    roll_digest_add_hint(&fold->hints, key, why, seq);
}

/* fold_collective.c */

/* The hash of the first calls of the window that is being filled. */
uint64_t roll_fold_hash(const struct roll_fold_member *m, uint32_t calls);
/* A call with a number that an earlier call has: that one was refused, or was only simulated. */
void roll_fold_step_back(struct roll_fold *fold, struct roll_fold_member *m, uint32_t seq);
void roll_fold_collective(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec);

/* fold_message.c */

/* 0, NOMEM. */
int roll_fold_message(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec);
/* A message that was taken when it began has been refused. */
void roll_fold_message_back(struct roll_fold *fold, struct roll_fold_member *m, const struct roll_record *rec);

#endif
