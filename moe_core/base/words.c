/*
 * words.c: agreements in which a rank can take part whatever memory it lacks.
 *
 * What is gathered has room that was made beforehand. It lies in device memory, which is what NCCL is for; where the
 * device has no more of it, the numbers stay in the pinned host memory that they come from: with unified addresses a
 * kernel reads that, too, and speed is no matter here. Whether all ranks can go on is less than a gather: the least
 * number of a rank that cannot, so its room does not grow with the group, and every device has it from the beginning.
 * An AllGather of every rank's error was rejected: its room must be made when it is needed, and a rank that has none
 * left could not say so.
 */
#include "moe_core/base/words.h"

#include "moe_core/base/fail.h"
#include "moe_core/base/memory.h"

#include <string.h>

#define FAIL(code, ...) moe_fail(code, MOE_NO_RANK, MOE_NO_LAYER, __VA_ARGS__)

/* gathers */

int moe_words_new(moe_device_t *device, int ranks, size_t count, struct moe_words *out)
{
    const size_t bytes = ((size_t)ranks + 1) * count * sizeof(int64_t);
    struct moe_failure before;
    *out = (struct moe_words){.ranks = ranks, .count = count};
    if (cudaMallocHost((void **)&out->host, bytes) != cudaSuccess) {
        out->host = NULL;
        return FAIL(MOE_E_NOMEM, "%zu bytes of pinned host memory", bytes);
    }
    moe_failure_keep(&before);
    if (moe_device_alloc(device, bytes, (void **)&out->device) != 0) {
        moe_failure_restore(&before);
    }
    return 0;
}

void moe_words_free(moe_device_t *device, struct moe_words *words)
{
    moe_device_free(device, &words->device);
    cudaFreeHost(words->host);
    words->host = NULL;
}

int moe_words_gather(moe_device_t *device, ncclComm_t comm, const char *what, const int64_t *mine,
                     struct moe_words *words)
{
    const size_t own = words->count * sizeof(*mine), whole = (size_t)words->ranks * own;
    int64_t *at = words->device != NULL ? words->device : words->host;
    const bool here = words->device == NULL;
    memcpy((char *)words->host + whole, mine, own);
    int rc = here ? 0 : moe_device_copy(device, (char *)at + whole, (char *)words->host + whole, own);
    if (rc == 0) {
        ncclResult_t nc =
            ncclAllGather((char *)at + whole, at, words->count, ncclInt64, comm, moe_device_stream(device));
        rc = nc == ncclSuccess ? 0 : FAIL(MOE_E_COMM, "AllGather of %s: %s", what, ncclGetErrorString(nc));
    }
    rc = rc || here ? rc : moe_device_copy(device, words->host, at, whole);
    int waited = moe_device_sync(device); /* also on failure: the numbers are on their way */
    return rc ? rc : waited;
}

/* agreements */

enum { WHY_WORDS = sizeof(((struct moe_refusal *)0)->why) / sizeof(int64_t), REFUSAL_WORDS = 1 + WHY_WORDS };

_Static_assert((int)REFUSAL_WORDS <= (int)MOE_MEMORY_WORDS, "a refusal does not fit into a device's words");

/* One collective of `count` words in place, from the pinned ones and back to them. */
static int pass_words(moe_device_t *device, ncclComm_t comm, int64_t *words, int64_t *host, size_t count, int root)
{
    cudaStream_t stream = moe_device_stream(device);
    int rc = moe_device_copy(device, words, host, count * sizeof(*host));
    if (rc == 0) {
        ncclResult_t nc = root < 0 ? ncclAllReduce(words, words, count, ncclInt64, ncclMin, comm, stream)
                                   : ncclBroadcast(words, words, count, ncclInt64, root, comm, stream);
        rc = nc == ncclSuccess ? 0 : FAIL(MOE_E_COMM, "whether all ranks can go on: %s", ncclGetErrorString(nc));
    }
    rc = rc ? rc : moe_device_copy(device, host, words, count * sizeof(*host));
    int waited = moe_device_sync(device);
    return rc ? rc : waited;
}

/* The place of a rank among those that cannot go on, least first: by its own failure, told of one, neither. */
static int64_t place_of(const struct moe_refusal *mine, int rank, int ranks)
{
    return mine->code == 0 ? 2 * (int64_t)ranks : mine->told ? ranks + rank : rank;
}

int moe_words_agree(moe_device_t *device, ncclComm_t comm, const struct moe_refusal *mine, struct moe_refusal *first)
{
    int64_t *words = NULL, *host = NULL;
    int ranks = 1, rank = 0;
    *first = (struct moe_refusal){.rank = -1};
    if (ncclCommCount(comm, &ranks) != ncclSuccess || ncclCommUserRank(comm, &rank) != ncclSuccess) {
        return FAIL(MOE_E_COMM, "size and rank of a group");
    }
    int rc = moe_memory_words(device, &words, &host);
    if (rc != 0) {
        return rc;
    }
    host[0] = place_of(mine, rank, ranks);
    rc = pass_words(device, comm, words, host, 1, -1);
    if (rc != 0 || host[0] >= 2 * (int64_t)ranks) {
        return rc;
    }
    first->told = host[0] >= ranks;
    first->rank = (int32_t)(host[0] % ranks);
    if (first->rank == rank) {
        host[0] = mine->code;
        memcpy(host + 1, mine->why, sizeof(mine->why));
    }
    rc = pass_words(device, comm, words, host, REFUSAL_WORDS, first->rank);
    first->code = (int)host[0];
    memcpy(first->why, host + 1, sizeof(first->why));
    first->why[sizeof(first->why) - 1] = '\0';
    return rc;
}
