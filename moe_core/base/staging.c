/*
 * staging.c: a ring of pinned tables, each guarded by an event.
 *
 * A copy out of one pinned table is not enough: the host runs ahead of the stream, and would change the table of a copy
 * that has not run yet. A wait before each change would keep the host from running ahead at all. In a captured graph
 * the copy reads its source at every replay, so the source of a captured copy is never overwritten.
 */
#include "moe_core/base/staging.h"

#include "moe_core/base/fail.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

enum { SLOTS = 4 };

/* A table that a captured graph copies at every replay. */
struct captured {
    struct captured *next;
    void *table;
};

struct moe_staging {
    moe_device_t *device;
    size_t bytes;
    unsigned char *ring; /* [SLOTS][bytes] */
    cudaEvent_t copied[SLOTS];
    bool used[SLOTS];
    unsigned next;
    struct captured *captured;
};

int moe_staging_new(moe_device_t *device, size_t bytes, struct moe_staging **out)
{
    struct moe_staging *s = calloc(1, sizeof(*s));
    *out = s;
    if (s == NULL || cudaMallocHost((void **)&s->ring, SLOTS * bytes) != cudaSuccess) {
        free(s);
        *out = NULL;
        return FAIL(MOE_E_NOMEM, "%zu bytes of staging", SLOTS * bytes);
    }
    s->device = device;
    s->bytes = bytes;
    for (unsigned i = 0; i < SLOTS; i++) {
        if (cudaEventCreateWithFlags(&s->copied[i], cudaEventDisableTiming) != cudaSuccess) {
            s->copied[i] = NULL;
            moe_staging_destroy(out);
            return FAIL(MOE_E_DEVICE, "an event of the staging");
        }
    }
    return 0;
}

void moe_staging_destroy(struct moe_staging **staging)
{
    struct moe_staging *s = *staging;
    if (s == NULL) {
        return;
    }
    cudaStreamSynchronize(moe_device_stream(s->device));
    for (unsigned i = 0; i < SLOTS; i++) {
        if (s->copied[i] != NULL) {
            cudaEventDestroy(s->copied[i]);
        }
    }
    for (struct captured *c = s->captured, *next; c != NULL; c = next) {
        next = c->next;
        cudaFreeHost(c->table);
        free(c);
    }
    cudaFreeHost(s->ring);
    free(s);
    *staging = NULL;
}

/* Gives a graph's copy a table of its own. Graphs that copy the same numbers share one table. */
static int captured_table(struct moe_staging *s, const void *table, void **out)
{
    for (struct captured *c = s->captured; c != NULL; c = c->next) {
        if (memcmp(c->table, table, s->bytes) == 0) {
            *out = c->table;
            return 0;
        }
    }
    struct captured *fresh = calloc(1, sizeof(*fresh));
    /*
     * The runtime may refuse to allocate while a capture forbids it, so this thread switches to the relaxed mode for
     * the allocation.
     */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaError_t err = fresh != NULL ? cudaMallocHost(&fresh->table, s->bytes) : cudaErrorMemoryAllocation;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (err != cudaSuccess) {
        free(fresh);
        return FAIL(MOE_E_NOMEM, "%zu bytes of staging for a graph", s->bytes);
    }
    memcpy(fresh->table, table, s->bytes);
    fresh->next = s->captured;
    s->captured = fresh;
    *out = fresh->table;
    return 0;
}

int moe_staging_send(struct moe_staging *s, const void *table, void *to)
{
    cudaStream_t stream = moe_device_stream(s->device);
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    void *from = NULL;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
        return FAIL(MOE_E_DEVICE, "the state of the stream's capture");
    }
    if (capture != cudaStreamCaptureStatusNone) {
        int rc = captured_table(s, table, &from);
        return rc ? rc : moe_device_copy(s->device, to, from, s->bytes);
    }
    unsigned slot = s->next++ % SLOTS;
    from = s->ring + slot * s->bytes;
    if (s->used[slot] && cudaEventSynchronize(s->copied[slot]) != cudaSuccess) {
        return FAIL(MOE_E_DEVICE, "waiting for a copy of the staging");
    }
    memcpy(from, table, s->bytes);
    int rc = moe_device_copy(s->device, to, from, s->bytes);
    if (rc == 0 && cudaEventRecord(s->copied[slot], stream) != cudaSuccess) {
        rc = FAIL(MOE_E_DEVICE, "recording an event of the staging");
    }
    s->used[slot] = rc == 0;
    return rc;
}
