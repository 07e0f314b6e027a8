/*
 * words.h: a few numbers of every rank to every rank of a group, for what is agreed on outside of forwards.
 */
#ifndef MOE_CORE_BASE_WORDS_H
#define MOE_CORE_BASE_WORDS_H

#include "moe_core/include/moe/device.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

/* Room for exchanges of `count` numbers of each rank: made before them, so that they cannot fail for want of it. */
struct moe_words {
    int64_t *host;   /* pinned [ranks + 1, count]: every rank's numbers, then this rank's; NULL: there is no room */
    int64_t *device; /* the same on the device; NULL: it had no memory, and the pinned one serves */
    int ranks;
    size_t count;
};

/* *out holds memory until freed, after a failure none. Any room may be freed, once. Errors: NOMEM. */
int moe_words_new(moe_device_t *device, int ranks, size_t count, struct moe_words *out);
void moe_words_free(moe_device_t *device, struct moe_words *words);

/*
 * Gathers the numbers of each rank of comm, `mine` [count] of this one, into words->host [ranks, count]. COLLECTIVE
 * (AllGather int64 [count]), and a wait. `what` names the numbers in messages. Errors: COMM, DEVICE.
 */
int moe_words_gather(moe_device_t *device, ncclComm_t comm, const char *what, const int64_t *mine,
                     struct moe_words *words);

/* Why a rank cannot go on. */
struct moe_refusal {
    int32_t rank; /* of the group; -1: all can go on */
    int code;     /* its error; 0: none */
    bool told;    /* the failure is another rank's, of which this one was told (moe_told) */
    char why[96]; /* the detail of its message, as far as there is room; "" where it has none */
};

/*
 * Says `mine` (code, told and why; code 0: this rank can go on) to all ranks of comm, and hears the refusal of the
 * first rank that cannot; one that was only told of another's comes behind all others. COLLECTIVE, and a wait:
 * AllReduce MIN int64 [1], then, where a rank cannot go on, Broadcast int64 [13] from it. Asks for no memory. On
 * success moe_last_error stays as it was. Errors: COMM, DEVICE.
 */
int moe_words_agree(moe_device_t *device, ncclComm_t comm, const struct moe_refusal *mine, struct moe_refusal *first);

#pragma GCC visibility pop

#endif
