/*
 * words.c: an AllGather of a few numbers which a rank that has no memory can make.
 *
 * The numbers lie in device memory, which is what NCCL is for. Where the device has no more of it they stay in the
 * pinned host memory that they come from: with unified addresses a kernel reads that, too, and speed is no matter here.
 * Device memory set aside for this was rejected: every object would hold some, and the one that could not make its own
 * could not say so.
 */
#include "moe_core/base/words.h"

#include "moe_core/base/fail.h"

#include <string.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

int moe_words_gather(moe_device_t *device, ncclComm_t comm, int ranks, const char *what, const int64_t *mine,
                     size_t count, int64_t *all)
{
    size_t own = count * sizeof(*mine), whole = (size_t)ranks * own;
    int64_t *host = NULL, *words = NULL; /* every rank's numbers, then this rank's */
    struct moe_failure before;
    if (cudaMallocHost((void **)&host, whole + own) != cudaSuccess) {
        return FAIL(MOE_E_NOMEM, "pinned host memory");
    }
    moe_failure_keep(&before);
    bool here = moe_device_alloc(device, whole + own, (void **)&words) != 0;
    moe_failure_restore(&before);
    int64_t *at = here ? host : words;
    memcpy(host + whole / sizeof(*host), mine, own);
    int rc = here ? 0 : moe_device_copy(device, (char *)at + whole, (char *)host + whole, own);
    if (rc == 0) {
        ncclResult_t nc = ncclAllGather((char *)at + whole, at, count, ncclInt64, comm, moe_device_stream(device));
        rc = nc == ncclSuccess ? 0 : FAIL(MOE_E_COMM, "AllGather of %s: %s", what, ncclGetErrorString(nc));
    }
    rc = rc || here ? rc : moe_device_copy(device, host, at, whole);
    int waited = moe_device_sync(device); /* also on failure: the copies read memory that is freed below */
    rc = rc ? rc : waited;
    memcpy(all, host, whole);
    moe_device_free(device, &words);
    cudaFreeHost(host);
    return rc;
}
