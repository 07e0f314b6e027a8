/*
 * fail.h: how moe_core's own files report a failure (error.h is what users see).
 */
#ifndef MOE_CORE_BASE_FAIL_H
#define MOE_CORE_BASE_FAIL_H

#include "moe_core/include/moe/error.h"

#include <stdbool.h>
#include <stdint.h>

#define MOE_NO_LAYER UINT32_MAX
#define MOE_NO_RANK  (-1)
enum { MOE_MESSAGE = 256 }; /* bytes of a message */

#pragma GCC visibility push(hidden)

/*
 * Keeps the message "rank R, layer L, <text of code>: <detail>" for moe_last_error and returns code. MOE_NO_RANK and
 * MOE_NO_LAYER leave their part out.
 */
int moe_fail(int code, int32_t rank, uint32_t layer, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Does what moe_fail does for a failure that may be in any of several layers, which the detail names. */
int moe_fail_layers(int code, int32_t rank, const char *format, ...) __attribute__((format(printf, 3, 4)));

/*
 * Puts rank and layer before the last message, unless that message already names the layer; returns code. For a layer
 * that hands on the failure of a part (a map, a router) that does not know where it is. code = 0 changes nothing.
 */
int moe_fail_at(int code, int32_t rank, uint32_t layer);

/*
 * The message of the last failure of this thread, put aside by a function that fails on its way and succeeds all the
 * same, or that goes on for its peers' sake behind a failure whose message is to stay.
 */
struct moe_failure {
    char message[MOE_MESSAGE];
    int code;        /* the one that the message is about: not every failure leaves a message */
    uint16_t detail; /* where the detail begins in the message: behind place and text of the code */
    bool has_layer;  /* the message names the layer, or the layers, in which the failure was found */
    bool told;       /* the failure is another rank's, of which this one was told (moe_told) */
};
void moe_failure_keep(struct moe_failure *out);
void moe_failure_restore(const struct moe_failure *kept);

/* Notes that the last failure of this thread is another rank's; returns code. */
int moe_told(int code);

#pragma GCC visibility pop

#endif
