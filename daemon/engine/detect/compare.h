/*
 * compare.h: what the members of a communicator have said about one thing in one step, so that detectors can compare.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_COMPARE_H
#define ROLL_DAEMON_ENGINE_DETECT_COMPARE_H

#include "daemon/engine/detect/state.h"

#define REPORT_VALUES 3u

/* A step of a job that may go back to an earlier one (from a checkpoint, or because evaluations have numbers of their
 * own). */
struct moment {
    uint32_t turn, step; /* turn: how often it has gone back */
};

/* Steps in which some comparison was given up for want of room: nothing more is compared there. */
struct closed {
    struct moment upto;
    bool any;
};

struct report {
    uint32_t source; /* NO_SOURCE: has said nothing yet */
    uint64_t ticket; /* of the last thing that it said */
    uint64_t value[REPORT_VALUES];
    uint8_t have; /* bit per value */
};

struct comparison {
    uint32_t topic; /* the detector's own number, unique among all detectors */
    struct moment at;
    uint32_t step; /* as it was said; may be ROLL_STEP_NONE */
    uint16_t microbatch, layer;
    uint8_t phase;
    uint32_t arrived;  /* members that have said all of `wanted` */
    bool differ, told; /* the detector's */
    bool told_whole;   /* when all had come */
    bool predicted;    /* it is part of a prediction that has not come true yet */
    uint32_t calls;    /* calls of the communicator that had been seen when it was seen to differ */
    uint32_t beyond;   /* members before this one are at a later step */
    uint64_t since;    /* patience clock at which it was seen to differ */
    uint32_t members;  /* size of `by` */
    struct report *by; /* by rank */
    struct comparison *next;
};

struct compare_comm {
    struct comparison *first; /* newest first; owned */
    uint32_t count;
    struct closed closed;
};
STATE_OF_COMM(compare)

/*
 * When a member says this, *at; false when it cannot be compared with what others say: the size of the communicator is
 * not known, or records of this step are missing. Must see all that the member says here, in its order.
 */
bool compare_moment(struct source *s, const struct roll_record *rec, struct moment *at);
bool compare_closed(const struct closed *c, const struct moment *at);
void compare_close(struct closed *c, const struct moment *upto);

/*
 * The comparison that this record belongs to, with value number `at` of its rank set; NULL when there is no memory, or
 * nothing can be compared. A rank may say a thing several times in one step (layers or microbatches without numbers):
 * the first of each member meets the others' first. Where there are COMPARISONS_MAX, those of the oldest step go and
 * that step is closed. wanted: bits of the values that make a member complete.
 */
struct comparison *compare_say(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                               uint32_t topic, unsigned at, uint64_t value, uint8_t wanted);
/* Everybody has said it. */
bool compare_whole(const struct comm *c, const struct comparison *m);
/* It can be judged now: whole, or long enough ago. */
bool compare_due(const struct roll_engine *e, const struct comm *c, const struct comparison *m);
void compare_drop(struct comm *c, struct comparison *m);

/* The value that most members have said (ties: the largest), and the others as world ranks. False when all are equal.
 */
bool compare_vote(const struct roll_engine *e, const struct comparison *m, unsigned at, uint64_t *common,
                  struct roll_rankset *minor, struct roll_rankset *major, bool *tie);

#endif
