/*
 * compare.h: what the members of a communicator report about one topic in one step, side by side, so that detectors can
 * compare it.
 */
#ifndef ROLL_DAEMON_ENGINE_DETECT_COMPARE_H
#define ROLL_DAEMON_ENGINE_DETECT_COMPARE_H

#include "daemon/engine/detect/state.h"

#define REPORT_VALUES 3u

/* A step of a job. The job may go back to an earlier step (from a checkpoint, or because evaluations have numbers of
 * their own), so a step alone does not say when. */
struct moment {
    uint32_t turn, step; /* `turn`: how often the job has gone back */
};

/* The steps in which some comparison was given up for want of room: nothing is compared in them any more. */
struct closed {
    struct moment upto;
    bool any;
};

/* What one member has reported. */
struct report {
    uint32_t source; /* NO_SOURCE: the member has not reported yet */
    uint64_t ticket; /* ticket of its last report */
    uint64_t value[REPORT_VALUES];
    uint8_t have; /* bit per value: it has been reported */
};

/* The reports of all members about one topic in one step. */
struct comparison {
    uint32_t topic; /* the detector's own number, unique among all detectors */
    struct moment at;
    uint32_t step; /* the step as it was reported; may be ROLL_STEP_NONE */
    uint16_t microbatch, layer;
    uint8_t phase;
    uint32_t arrived;  /* members that have reported all values of `wanted` */
    bool differ, told; /* for the detector's use: the reports differ; a verdict has been said about it */
    bool told_whole;   /* for the detector's use: the verdict was said when all members had reported */
    bool predicted;    /* for the detector's use: the difference is part of a prediction that has not come true yet */
    uint32_t calls;    /* calls on the communicator until the difference was seen */
    uint32_t beyond;   /* all members before this one are at a later step */
    uint64_t since;    /* patience clock at which the difference was seen */
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
 * Finds out when a member reports this: *at. False: it cannot be compared with other members' reports, because the size
 * of the communicator is not known, or records of this step are missing. Must be called for all reports of the member
 * on this communicator, in their order.
 */
bool compare_moment(struct source *s, const struct roll_record *rec, struct moment *at);
/* This step, or a later one, has been given up. */
bool compare_closed(const struct closed *c, const struct moment *at);
/* Gives up this step and all earlier ones. */
void compare_close(struct closed *c, const struct moment *upto);

/*
 * Sets value number `at` in the report of the record's rank, and returns the comparison that it belongs to; NULL: no
 * memory, or nothing can be compared. A rank may report a topic several times in one step (layers or microbatches
 * without numbers): the first report of each member meets the first reports of the others. When there are
 * COMPARISONS_MAX, those of the oldest step are dropped and that step is closed. wanted: bits of the values that make a
 * member's report complete.
 */
struct comparison *compare_say(struct roll_engine *e, uint32_t source, const struct roll_record *rec, uint64_t ticket,
                               uint32_t topic, unsigned at, uint64_t value, uint8_t wanted);
/* All members have reported. */
bool compare_whole(const struct comm *c, const struct comparison *m);
/* The comparison can be judged now: all members have reported, or the difference was seen stall/20 ago. */
bool compare_due(const struct roll_engine *e, const struct comm *c, const struct comparison *m);
/* Takes the comparison out of the list of c and frees it. */
void compare_drop(struct comm *c, struct comparison *m);

/* The value that most members have reported is *common (in a tie the largest). Adds the world ranks that reported it to
 * *major, the other ranks to *minor. False: all reports are equal. */
bool compare_vote(const struct roll_engine *e, const struct comparison *m, unsigned at, uint64_t *common,
                  struct roll_rankset *minor, struct roll_rankset *major, bool *tie);

#endif
