/*
 * staging.h: small tables on their way from the host to the device.
 */
#ifndef MOE_CORE_BASE_STAGING_H
#define MOE_CORE_BASE_STAGING_H

#include "moe_core/include/moe/device.h"

#pragma GCC visibility push(hidden)

struct moe_staging;

/*
 * Makes a ring for tables of `bytes` bytes. *out is owned by the caller; borrows device. One thread at a time. Errors:
 * NOMEM, DEVICE.
 */
int moe_staging_new(moe_device_t *device, size_t bytes, struct moe_staging **out);

/* Waits for the device's stream, frees the ring and clears the pointer. */
void moe_staging_destroy(struct moe_staging **staging);

/*
 * Enqueues a copy of the table to `to`. `table` is read before the call returns. Waits only where the last few copies
 * have not run yet. While the stream is captured the copy becomes part of the graph, and every replay copies this
 * table. Errors: DEVICE, NOMEM.
 */
int moe_staging_send(struct moe_staging *staging, const void *table, void *to);

#pragma GCC visibility pop

#endif
