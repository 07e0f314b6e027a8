/*
 * excerpt.h: which of a rank's newest records an engine has to be fed to judge what does not agree, and where the rank
 * stands on each communicator before the first of them.
 *
 * Pure: the records are read through a function of the caller's, from a ring or from memory. One thread.
 */
#ifndef ROLL_DAEMON_DIGEST_EXCERPT_H
#define ROLL_DAEMON_DIGEST_EXCERPT_H

#include "daemon/digest/fold.h"

/* The records of one rank that are still there: tickets oldest .. next - 1. */
struct roll_excerpt_records {
    void *from; /* the first argument of `record` */
    /* Copies the record with this ticket; false: it is not there (any more). */
    bool (*record)(void *from, uint64_t ticket, struct roll_record *out);
    uint64_t oldest, next;
    bool only_known; /* a step of which the fold has forgotten the beginning is not looked for among them */
};
/* What is wanted of one communicator besides the newest records. */
struct roll_excerpt_want {
    uint16_t comm;    /* the rank's own id */
    uint32_t low;     /* the first collective: all members have made those before it, and they agreed */
    uint32_t classes; /* messages of these classes (ROLL_HINT_MESSAGES), a bit for each */
    uint32_t step;    /* what the rank has observed since this step (ROLL_HINT_OBSERVED); 0: nothing of that */
};

/* The ticket from which on all is there that is wanted of what the rank has observed; 0: that is gone; UINT64_MAX:
 * nothing is wanted. Borrows all. */
uint64_t roll_excerpt_observed(const struct roll_excerpt_records *records, const roll_fold_t *fold,
                               const struct roll_excerpt_want *want, size_t wants);
/*
 * The ticket from which on the engine has to be fed: at least `history` records, what is wanted besides, every call
 * that the rank is inside, and no part of a group. fold: the rank's. Borrows all.
 */
uint64_t roll_excerpt_begin(const struct roll_excerpt_records *records, const roll_fold_t *fold,
                            const struct roll_excerpt_want *want, size_t wants, uint64_t history);
/*
 * Where the rank stands before that ticket, as roll_engine_place and roll_engine_place_messages want it. *out: returned
 * owned, to be freed; *n: how many. 0, NOMEM.
 */
int roll_excerpt_places(const struct roll_excerpt_records *records, const roll_fold_t *fold, uint64_t begin,
                        struct roll_fold_place **out, size_t *n);

#endif
