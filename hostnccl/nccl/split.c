/*
 * split.c: communicators made from communicators: split, shrink and grow.
 *
 * A split is a collective call of all ranks of the parent, NOCOLOR ones included: colours and keys are gathered on the
 * host, and the ranks of each colour then meet as for a new communicator, under a name that they compute from the
 * parent's name, the number of the call and the colour. Only the survivors call shrink, so nothing is gathered: the
 * list of excluded ranks, which is the same for all survivors, makes the name. Survivors that disagree on the list wait
 * for each other for ever.
 *
 * A grow is a collective call of the parent's ranks, one of which has the unique id that the new ranks have too: the
 * parent's ranks hand it on among themselves, and all meet under a name made of the id and the new size. So ranks that
 * disagree on the size, or a new rank that does not come, leave the others waiting.
 */
#include "hostnccl/include/nccl_newer.h"
#include "hostnccl/nccl/profiler.h"

#include <stdlib.h>
#include <string.h>

enum { EXCHANGE_SPLIT = 1, EXCHANGE_GROW = 4, NAME_SPLIT = 1, NAME_SHRINK = 2, NAME_GROW = 3 };

struct child_args {
    ncclComm_t parent; /* a reference */
    ncclComm_t child;  /* NULL for NOCOLOR */
    ncclComm_t *handle;
    int color, key;
    bool shrink, abort_first, grow;
    bool has_id; /* of a grow: this rank brings the name of the new communicator */
    uint64_t id;
    int nranks;
};

static void free_args(void *arg)
{
    struct child_args *a = arg;

    hn_comm_unref(a->parent);
    if (a->child) {
        hn_comm_unref(a->child);
    }
    free(a);
}

/* Gives a child its place; until then it has 1 rank and is rank 0. */
static ncclResult_t place_child(ncclComm_t child, int nranks, int rank, uint64_t hash)
{
    child->nranks = nranks;
    child->rank = rank;
    child->hash = hash;
    return hn_comm_allocate(child);
}

static uint64_t child_name(ncclComm_t parent, uint64_t kind, uint64_t index, uint64_t what)
{
    uint64_t words[] = {kind, index, what};

    return hn_hash(parent->hash, words, sizeof(words));
}

/* Finds the place of this rank among the ranks of its colour: by key, then by rank in the parent. */
static ncclResult_t place_by_color(struct child_args *a, uint64_t index, uint64_t (*all)[HN_CTL_WORDS])
{
    int rank = 0, nranks = 0;

    for (int r = 0; r < a->parent->nranks; r++) {
        int color = (int)(int64_t)all[r][1], key = (int)(int64_t)all[r][2];
        if (color != a->color) {
            continue;
        }
        nranks++;
        rank += key < a->key || (key == a->key && r < a->parent->rank);
    }
    return place_child(a->child, nranks, rank, child_name(a->parent, NAME_SPLIT, index, (uint64_t)a->color));
}

static ncclResult_t split(struct child_args *a)
{
    uint64_t mine[HN_CTL_WORDS] = {EXCHANGE_SPLIT, (uint64_t)(int64_t)a->color, (uint64_t)(int64_t)a->key};
    uint64_t(*all)[HN_CTL_WORDS] = calloc((size_t)a->parent->nranks, sizeof(*all));
    uint64_t index = a->parent->ctl_count;
    ncclResult_t rc = all ? hn_exchange(a->parent, mine, all) : hn_fail(ncclSystemError, "out of memory");

    if (rc == ncclSuccess && a->child) {
        rc = place_by_color(a, index, all);
    }
    free(all);
    return rc;
}

static uint64_t grown_name(uint64_t id, int nranks)
{
    uint64_t words[] = {NAME_GROW, (uint64_t)nranks};

    return hn_hash(id, words, sizeof(words));
}

/* Finds the id that one rank of the parent brings. */
static ncclResult_t grow(struct child_args *a)
{
    uint64_t mine[HN_CTL_WORDS] = {EXCHANGE_GROW, a->has_id, a->id};
    uint64_t(*all)[HN_CTL_WORDS] = calloc((size_t)a->parent->nranks, sizeof(*all));
    ncclResult_t rc = all ? hn_exchange(a->parent, mine, all) : hn_fail(ncclSystemError, "out of memory");
    uint64_t id = 0;
    int roots = 0;

    for (int r = 0; rc == ncclSuccess && r < a->parent->nranks; r++) {
        roots += all[r][1] != 0;
        id = all[r][1] ? all[r][2] : id;
    }
    free(all);
    if (rc == ncclSuccess && roots != 1) {
        rc = hn_fail(ncclInvalidUsage, "ncclCommGrow: %d ranks of the communicator brought a unique id, and not one",
                     roots);
    }
    if (rc == ncclSuccess) {
        rc = place_child(a->child, a->nranks, a->parent->rank, grown_name(id, a->nranks));
    }
    return rc;
}

static ncclResult_t child_job(struct hn_job *job)
{
    struct child_args *a = job->args;
    ncclResult_t rc = ncclSuccess;

    if (a->shrink) {
        if (a->abort_first) {
            hn_comm_stop(a->parent);
        }
    } else {
        rc = a->grow ? grow(a) : split(a);
    }
    if (rc == ncclSuccess && a->child) {
        rc = hn_join_child(a->parent, a->child);
        if (rc == ncclSuccess) {
            hn_profiler_init(a->child);
        }
    }
    if (rc != ncclSuccess && a->child && job->blocking && hn_comm_release(a->child)) {
        hn_publish(a->handle, NULL);
    }
    return rc;
}

/* Makes the child's handle and queues the job. Takes `a`, whose parent is set. */
static ncclResult_t submit_child(struct child_args *a, int nranks, int rank, uint64_t hash, bool has_child,
                                 const ncclConfig_t *given)
{
    ncclConfig_t config;
    ncclResult_t rc = hn_config_read(&config, given, &a->parent->config);
    ncclComm_t child = NULL;

    if (rc == ncclSuccess && has_child) {
        rc = hn_comm_new(&child, nranks, rank, hash, &config);
    }
    if (rc != ncclSuccess) {
        free_args(a);
        return rc;
    }
    if (child) {
        child->device = a->parent->device;
        hn_comm_ref(child);
        a->child = child;
    }
    hn_publish(a->handle, child);
    bool blocking = child ? child->blocking : a->parent->blocking;
    ncclComm_t *handle = a->handle;
    rc = hn_submit_job(child_job, child ? child : a->parent, a->shrink ? NULL : a->parent, blocking, a, free_args);
    if (rc != ncclSuccess && child) {
        hn_publish(handle, NULL);
        hn_comm_unref(child);
    }
    return rc;
}

static struct child_args *new_args(ncclComm_t parent, ncclComm_t *handle)
{
    struct child_args *a = calloc(1, sizeof(*a));

    if (a) {
        hn_comm_ref(parent);
        a->parent = parent;
        a->handle = handle;
    }
    return a;
}

static ncclResult_t submit_split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, const ncclConfig_t *config)
{
    ncclResult_t rc = hn_comm_awake(comm, "ncclCommSplit");
    struct child_args *a;

    rc = rc != ncclSuccess ? rc : hn_present_whole(comm, "ncclCommSplit");
    if (rc != ncclSuccess) {
        return rc;
    }
    if (!newcomm || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        return hn_fail(ncclInvalidArgument, "ncclCommSplit: newcomm %p color %d", (void *)newcomm, color);
    }
    hn_publish(newcomm, NULL);
    a = new_args(comm, newcomm);
    if (!a) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    a->color = color;
    a->key = key;
    return submit_child(a, 1, 0, 0, color != NCCL_SPLIT_NOCOLOR, config);
}

HN_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    hn_debug("ncclCommSplit comm %p color %d key %d", (void *)comm, color, key);
    hn_group_start();
    ncclResult_t rc = hn_group_error(submit_split(comm, color, key, newcomm, config));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

/* Counts the survivors. The list must hold existing ranks, must not hold this rank, and must not hold all. */
static ncclResult_t count_survivors(ncclComm_t comm, const int *list, int count, bool *gone, int *nranks, int *rank)
{
    *nranks = *rank = 0;
    for (int i = 0; i < count; i++) {
        if (list[i] < 0 || list[i] >= comm->nranks || list[i] == comm->rank || gone[list[i]]) {
            return hn_fail(ncclInvalidArgument, "ncclCommShrink: rank %d in the list of the excluded", list[i]);
        }
        gone[list[i]] = true;
    }
    for (int r = 0; r < comm->nranks; r++) {
        *nranks += !gone[r];
        *rank += !gone[r] && r < comm->rank;
    }
    return ncclSuccess;
}

static ncclResult_t submit_shrink(ncclComm_t comm, const int *list, int count, ncclComm_t *newcomm,
                                  const ncclConfig_t *config, int flags)
{
    ncclResult_t rc = hn_comm_check(comm, "ncclCommShrink");
    struct child_args *a;
    bool *gone;
    int nranks, rank;

    if (rc == ncclSuccess && !(flags & NCCL_SHRINK_ABORT)) {
        rc = hn_comm_awake(comm, "ncclCommShrink");
    }
    rc = rc != ncclSuccess ? rc : hn_present_whole(comm, "ncclCommShrink");
    if (rc != ncclSuccess) {
        return rc;
    }
    if (!newcomm || !list || count < 1 || (flags & ~NCCL_SHRINK_ABORT)) {
        return hn_fail(ncclInvalidArgument, "ncclCommShrink: newcomm %p list %p count %d flags %d", (void *)newcomm,
                       (const void *)list, count, flags);
    }
    hn_publish(newcomm, NULL);
    gone = calloc((size_t)comm->nranks, sizeof(*gone));
    if (!gone) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    rc = count_survivors(comm, list, count, gone, &nranks, &rank);
    uint64_t excluded = hn_hash(0, gone, (size_t)comm->nranks * sizeof(*gone));
    free(gone);
    if (rc != ncclSuccess) {
        return rc;
    }
    uint64_t hash = child_name(comm, NAME_SHRINK, comm->shrinks++, excluded); /* a refused list is no shrink */
    a = new_args(comm, newcomm);
    if (!a) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    a->shrink = true;
    a->abort_first = (flags & NCCL_SHRINK_ABORT) != 0;
    return submit_child(a, nranks, rank, hash, true, config);
}

HN_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
       ncclConfig_t *config, int shrinkFlags)
{
    hn_debug("ncclCommShrink comm %p without %d ranks flags %d", (void *)comm, excludeRanksCount, shrinkFlags);
    hn_group_start();
    ncclResult_t rc =
        hn_group_error(submit_shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}

HN_API(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *uniqueId)
{
    ncclResult_t rc = hn_comm_awake(comm, "ncclCommGetUniqueId");

    return rc != ncclSuccess ? rc : pncclGetUniqueId(uniqueId);
}

static ncclResult_t submit_grow(ncclComm_t comm, int nranks, const ncclUniqueId *id, ncclComm_t *newcomm,
                                const ncclConfig_t *config)
{
    ncclResult_t rc = hn_comm_awake(comm, "ncclCommGrow");
    uint64_t name = 0;
    struct child_args *a;

    rc = rc != ncclSuccess ? rc : hn_present_whole(comm, "ncclCommGrow");
    if (rc != ncclSuccess) {
        return rc;
    }
    if (nranks <= comm->nranks) {
        return hn_fail(ncclInvalidArgument, "ncclCommGrow: from %d ranks to %d", comm->nranks, nranks);
    }
    if (id && !hn_id_name(id, &name)) {
        return hn_fail(ncclInvalidArgument, "ncclCommGrow: the unique id was not made by ncclCommGetUniqueId");
    }
    a = new_args(comm, newcomm);
    if (!a) {
        return hn_fail(ncclSystemError, "out of memory");
    }
    a->grow = true;
    a->has_id = id != NULL;
    a->id = name;
    a->nranks = nranks;
    return submit_child(a, 1, 0, 0, true, config);
}

static ncclResult_t join_job(struct hn_job *job)
{
    ncclComm_t *handle = job->args;
    ncclResult_t rc = hn_join(job->comm);

    if (rc == ncclSuccess) {
        hn_profiler_init(job->comm);
    } else if (job->blocking && hn_comm_release(job->comm)) {
        hn_publish(handle, NULL);
    }
    return rc;
}

/* A new rank: it has no parent, and joins like a rank of a new communicator. */
static ncclResult_t submit_newcomer(int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                    const ncclConfig_t *given)
{
    ncclConfig_t config;
    ncclComm_t comm = NULL;
    uint64_t name = 0;
    ncclResult_t rc = hn_fault_check("ncclCommGrow");

    if (rc == ncclSuccess && hn_present_is_on()) {
        rc = hn_present_refuse("ncclCommGrow: nobody knows which ranks the new communicator has");
    }
    if (rc == ncclSuccess && (!id || !hn_id_name(id, &name))) {
        rc = hn_fail(ncclInvalidArgument, "ncclCommGrow: a new rank needs the unique id of ncclCommGetUniqueId");
    }
    rc = rc != ncclSuccess ? rc : hn_config_read(&config, given, NULL);
    rc = rc != ncclSuccess ? rc : hn_comm_new(&comm, nranks, rank, grown_name(name, nranks), &config);
    if (rc != ncclSuccess) {
        return rc;
    }
    rc = hn_submit_job(join_job, comm, NULL, config.blocking != 0, newcomm, NULL);
    if (rc == ncclSuccess) {
        hn_publish(newcomm, comm);
    } else {
        hn_comm_unref(comm);
    }
    return rc;
}

static ncclResult_t grow_call(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                              const ncclConfig_t *config)
{
    if (!newcomm) {
        return hn_fail(ncclInvalidArgument, "ncclCommGrow: newcomm is NULL");
    }
    hn_publish(newcomm, NULL);
    if (nranks < 2 || nranks > HN_MAX_RANKS || (comm ? rank != -1 : rank < 0 || rank >= nranks)) {
        return hn_fail(ncclInvalidArgument, "ncclCommGrow: rank %d of %d", rank, nranks);
    }
    return comm ? submit_grow(comm, nranks, id, newcomm, config) : submit_newcomer(nranks, id, rank, newcomm, config);
}

HN_API(ncclResult_t, ncclCommGrow, ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
       ncclComm_t *newcomm, ncclConfig_t *config)
{
    hn_debug("ncclCommGrow comm %p to %d ranks rank %d", (void *)comm, nRanks, rank);
    hn_group_start();
    ncclResult_t rc = hn_group_error(grow_call(comm, nRanks, uniqueId, rank, newcomm, config));
    ncclResult_t end = hn_group_end();

    return rc != ncclSuccess ? rc : end;
}
