/*
 * rendezvous.c: host-side meeting of the ranks of one communicator: joining, and small all-gathers for split and
 * windows.
 *
 * A rank that never comes leaves the others waiting, as NCCL's bootstrap does; ncclCommAbort from another thread frees
 * them. Ranks that disagree on the number of ranks, or claim one rank twice, wait in the same way, and no error is
 * reported.
 */
#include "hostnccl/nccl/internal.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* FNV-1a with a final mix. The hash only has to be different for different communicators and equal on all ranks. */
uint64_t hn_hash(uint64_t seed, const void *data, size_t size)
{
    const unsigned char *bytes = data;
    uint64_t h = seed ^ 0xcbf29ce484222325u;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ bytes[i]) * 0x100000001b3u;
    }
    h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
    return h ^ h >> 33;
}

static ncclResult_t wait_for_ever(ncclComm_t comm)
{
    struct hn_word never = {0};

    (void)hn_word_wait_change(&comm->host_wait, &never, 0);
    return hn_fail(ncclInternalError, "communicator initialisation was aborted");
}

static ncclResult_t join(ncclComm_t comm)
{
    char dir[256] = "?";
    uint32_t n = comm->place ? (uint32_t)comm->places : (uint32_t)comm->nranks, expected = 0;
    uint32_t left_out = hn_settings_get()->left_out_bytes;
    int rc = hn_map_open(&comm->map, comm->hash, (uint32_t)comm->nranks, n, comm->place, left_out);

    if (rc == -2) {
        return wait_for_ever(comm);
    }
    if (rc == -3) { /* one rank would wait for bytes that the other leaves out */
        return hn_fail(ncclInvalidUsage,
                       "HOSTNCCL_DATA leaves out other payloads here (%u bytes and more; 0: none) than "
                       "on the first rank of the communicator",
                       left_out);
    }
    if (rc == -4) {
        return hn_present_refuse("ranks of this communicator were told different members (hostncclTell)");
    }
    if (rc) {
        int err = errno;
        (void)hn_segment_dir(dir, sizeof(dir));
        return hn_fail(ncclSystemError, "cannot make or open the communicator's memory in %s: %s", dir, strerror(err));
    }
    struct hn_rank *self = hn_map_rank(&comm->map, comm->rank);
    if (!atomic_compare_exchange_strong(&self->joined.value, &expected, 1)) {
        return wait_for_ever(comm);
    }
    self->pid = (uint32_t)getpid();
    /*
     * The last rank removes the segment's name before it says that all ranks have come: from then on a killed job
     * leaves nothing behind.
     */
    if (atomic_fetch_add(&comm->map.base->joining, 1) == n - 1) {
        hn_map_unlink(&comm->map);
        hn_word_set(&comm->map.base->attached, n);
    }
    if (hn_word_wait_reach(&comm->host_wait, &comm->map.base->attached, n)) {
        hn_map_unlink(&comm->map); /* without this rank it can never be complete */
        return hn_fail(ncclInternalError, "communicator initialisation was aborted");
    }
    return ncclSuccess;
}

static bool host_enter(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    bool ok = !comm->aborted;
    comm->host_running += ok;
    pthread_mutex_unlock(&comm->lock);
    return ok;
}

static void host_leave(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->host_running--;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
}

ncclResult_t hn_join(ncclComm_t comm)
{
    ncclResult_t rc;

    if (!host_enter(comm)) {
        return hn_fail(ncclInternalError, "communicator was aborted");
    }
    rc = join(comm);
    host_leave(comm);
    return rc;
}

ncclResult_t hn_join_child(ncclComm_t parent, ncclComm_t child)
{
    ncclResult_t rc;

    pthread_mutex_lock(&parent->lock);
    bool aborted = parent->aborted;
    if (!aborted) {
        child->next_joining = parent->joining;
        parent->joining = child;
    }
    pthread_mutex_unlock(&parent->lock);
    if (aborted) {
        return hn_fail(ncclInternalError, "communicator was aborted");
    }
    rc = hn_join(child);
    pthread_mutex_lock(&parent->lock);
    for (ncclComm_t *at = &parent->joining; *at; at = &(*at)->next_joining) {
        if (*at == child) {
            *at = child->next_joining;
            break;
        }
    }
    pthread_mutex_unlock(&parent->lock);
    return rc;
}

void hn_host_turn_wait(ncclComm_t comm, uint32_t ticket)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->host_turn != ticket && !comm->aborted) {
        pthread_cond_wait(&comm->idle, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

void hn_host_turn_end(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->host_turn++;
    pthread_cond_broadcast(&comm->idle);
    pthread_mutex_unlock(&comm->lock);
}

/* Waits until one counter of every rank has reached `target`. */
static int wait_all(ncclComm_t comm, size_t word_offset, uint32_t target)
{
    for (int r = 0; r < comm->nranks; r++) {
        struct hn_word *word = (void *)((char *)hn_map_rank(&comm->map, r) + word_offset);
        if (hn_word_wait_reach(&comm->host_wait, word, target)) {
            return -1;
        }
    }
    return 0;
}

static int exchange(ncclComm_t comm, const uint64_t mine[HN_CTL_WORDS], uint64_t (*all)[HN_CTL_WORDS])
{
    uint32_t index = comm->ctl_count++;
    bool fits = true;
    struct hn_rank *self = hn_map_rank(&comm->map, comm->rank);

    if (wait_all(comm, offsetof(struct hn_rank, ctl_consumed), index + 1 - HN_CTL_SLOTS)) {
        return -1;
    }
    memcpy(self->ctl[index % HN_CTL_SLOTS].word, mine, sizeof(self->ctl[0].word));
    hn_word_set(&self->ctl_posted, index + 1);
    if (wait_all(comm, offsetof(struct hn_rank, ctl_posted), index + 1)) {
        return -1;
    }
    for (int r = 0; r < comm->nranks; r++) {
        memcpy(all[r], hn_map_rank(&comm->map, r)->ctl[index % HN_CTL_SLOTS].word, sizeof(all[r]));
        fits = fits && all[r][0] == mine[0];
    }
    if (!fits) { /* one rank splits, another registers a window: neither can continue */
        (void)wait_for_ever(comm);
        return -1;
    }
    hn_word_set(&self->ctl_consumed, index + 1);
    return 0;
}

ncclResult_t hn_exchange(ncclComm_t comm, const uint64_t mine[HN_CTL_WORDS], uint64_t (*all)[HN_CTL_WORDS])
{
    int rc;

    if (!host_enter(comm)) {
        return hn_fail(ncclInternalError, "communicator was aborted");
    }
    rc = exchange(comm, mine, all);
    host_leave(comm);
    return rc ? hn_fail(ncclInternalError, "communicator was aborted") : ncclSuccess;
}
