/*
 * life.c: the wrappers that change what the library knows: communicators begin and end, groups open and close.
 *
 * The definition of a communicator made from a unique id is written before the call, because the call blocks until all
 * members have come and "who has not come" is the question. A child's rank and size are known only after the call, so
 * its record names the parent. What count and peer mean in these records stands in docs/INTERPOSER.md. Compiled once
 * for each set of api.h: nothing here may be global but the wrappers.
 */
#include "interposer/plugin/plugin.h"
#include "interposer/wrap/call.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The rest of a creating call after the real function has returned: ties the handle to the entry now, or later when
 * NCCL has written it. `parent` is NULL for a communicator that has none. */
static void created(struct roll_thread *t, struct roll_comm *comm, ncclComm_t parent, ncclComm_t *where,
                    ncclResult_t result)
{
    int saved = errno;
    t->busy = true;
    if (comm == NULL || where == NULL || (result != ncclSuccess && result != ncclInProgress)) {
        return;
    }
    if (t->group_depth != 0) {
        roll_comm_pend(comm, where, t->group_id, parent);
    } else if (*where != NULL) {
        roll_comm_bind(comm, *where);
        roll_comm_define(comm);
    } else if (result == ncclInProgress) {
        roll_comm_pend(comm, where, 0, parent);
    }
    errno = saved;
}

/* The current device, for the definition; -1 when there is no CUDA runtime to ask. */
static int32_t current_device(void)
{
    typedef cudaError_t (*query_t)(int *);
    query_t query = (query_t)roll_symbol_resolve("cudaGetDevice", "libcudart.so");
    int device = -1;
    return query != NULL && query(&device) == 0 ? device : -1;
}

/* is_alone: all members are in this process, so none is stood in for. */
static struct roll_comm *new_member(uint64_t key, int nranks, int rank, const ncclConfig_t *config, bool is_alone)
{
    struct roll_def_comm def = {
        .key = key,
        .rank = rank,
        .nranks = nranks,
        .color = ROLL_COLOR_NONE,
        .origin = ROLL_COMM_INIT,
        .device = current_device(),
    };
    int saved = errno;
    roll_plugin_wrapped(ROLL_SET);
    struct roll_comm *comm = roll_comm_new(ROLL_SET, &def, config, 0);
    if (!is_alone) {
        roll_comm_present(comm, config);
    }
    roll_comm_define(comm);
    errno = saved;
    return comm;
}

static struct roll_fill init_fill(struct roll_comm *comm, int nranks, int rank)
{
    return (struct roll_fill){
        .count = (uint64_t)(nranks > 0 ? nranks : 0),
        .peer = rank,
        .comm = comm != NULL ? (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed) : 0,
        .op = ROLL_OP_COMM_INIT,
        .dtype = ROLL_DTYPE_NONE,
        .redop = ROLL_RED_NONE,
        .flags = comm != NULL ? comm->flags : 0,
    };
}

/* Enters one of the creating calls that take unique ids. */
static struct roll_comm *enter_init(struct roll_thread *t, struct roll_call *call, const void *ids, size_t bytes,
                                    int nranks, int rank, const ncclConfig_t *config, uintptr_t pc,
                                    const uintptr_t *frame)
{
    roll_enter_begin(t);
    struct roll_comm *comm = new_member(roll_key_unique_id(ids, bytes), nranks, rank, config, false);
    if (comm != NULL) {
        comm->common_id = roll_failfast_common_id(ids, bytes);
    }
    bool is_part = comm != NULL && comm->believed > 0;
    struct roll_fill fill = init_fill(comm, is_part ? comm->nranks : nranks, is_part ? comm->rank : rank);
    roll_fill_group(t, &fill);
    roll_enter_fill(t, call, &fill, pc, frame);
    roll_enter_end(t);
    return comm;
}

/* The wrappers of creating calls share these steps: begin, forward, tie the handle, leave. */
#define LIFE_PROLOGUE(name, params, args)                                                                              \
    typedef ncclResult_t(*real_t) params;                                                                              \
    struct roll_thread *t = &roll_thread_self;                                                                         \
    real_t real = ROLL_REAL(name, real_t);                                                                             \
    if (real == NULL) {                                                                                                \
        return roll_api_absent(ROLL_SET, ROLL_API_##name);                                                             \
    }

#define ROLL_API_CALL(id, name, ...)
#define ROLL_API_LIFE(id, name, params, args)                                                                          \
    ROLL_WRAPPER ncclResult_t name params ROLL_LABEL(name);                                                            \
    ROLL_OWN_WRAPPER(name)
#define ROLL_API_PASS(id, ret, name, ...)
#define ROLL_API_JUMP(id, name)
#include "interposer/wrap/api.def"

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank)
{
    LIFE_PROLOGUE(ncclCommInitRank, (ncclComm_t *, int, ncclUniqueId, int), (comm, nranks, commId, rank))
    roll_session_start();
    if (!roll_wanted(t)) {
        return real(comm, nranks, commId, rank);
    }
    struct roll_call call;
    struct roll_comm *entry = enter_init(t, &call, &commId, sizeof(commId), nranks, rank, NULL, ROLL_PC, ROLL_FRAME);
    ncclResult_t result = real(comm, nranks, commId, rank);
    created(t, entry, NULL, comm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
    LIFE_PROLOGUE(ncclCommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *),
                  (comm, nranks, commId, rank, config))
    roll_session_start();
    if (!roll_wanted(t)) {
        return real(comm, nranks, commId, rank, config);
    }
    struct roll_call call;
    struct roll_comm *entry = enter_init(t, &call, &commId, sizeof(commId), nranks, rank, config, ROLL_PC, ROLL_FRAME);
    ncclResult_t result = real(comm, nranks, commId, rank, config);
    created(t, entry, NULL, comm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds,
                                      ncclConfig_t *config)
{
    LIFE_PROLOGUE(ncclCommInitRankScalable, (ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *),
                  (newcomm, nranks, myrank, nId, commIds, config))
    roll_session_start();
    if (!roll_wanted(t) || commIds == NULL || nId <= 0) {
        return real(newcomm, nranks, myrank, nId, commIds, config);
    }
    struct roll_call call;
    struct roll_comm *entry =
        enter_init(t, &call, commIds, (size_t)nId * sizeof(*commIds), nranks, myrank, config, ROLL_PC, ROLL_FRAME);
    ncclResult_t result = real(newcomm, nranks, myrank, nId, commIds, config);
    created(t, entry, NULL, newcomm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

/* A key for a communicator whose members are all in this process: any number that no other communicator has will do. */
static uint64_t process_key(void)
{
    uint64_t random[2] = {(uint64_t)getpid(), roll_clock_monotonic()};
    int saved = errno;
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) < 0) {
        errno = saved;
    }
    return roll_key_unique_id(random, sizeof(random));
}

/* InitAll writes one record per member, so that each member is seen to have come. No machine has more devices than
 * this: such a call fails. */
#define INIT_ALL_LIMIT 64

ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist)
{
    LIFE_PROLOGUE(ncclCommInitAll, (ncclComm_t *, int, const int *), (comm, ndev, devlist))
    roll_session_start();
    if (comm == NULL || ndev <= 0 || ndev > INIT_ALL_LIMIT || !roll_wanted(t)) {
        return real(comm, ndev, devlist);
    }
    struct roll_call call[INIT_ALL_LIMIT];
    struct roll_comm *entry[INIT_ALL_LIMIT];
    uintptr_t pc = ROLL_PC;
    const uintptr_t *frame = ROLL_FRAME;
    roll_enter_begin(t);
    uint64_t key = process_key();
    for (int i = 0; i < ndev; i++) {
        entry[i] = new_member(key, ndev, i, NULL, true);
        struct roll_fill fill = init_fill(entry[i], ndev, i);
        roll_fill_group(t, &fill);
        roll_enter_fill(t, &call[i], &fill, pc, frame);
    }
    roll_enter_end(t);
    ncclResult_t result = real(comm, ndev, devlist);
    for (int i = 0; i < ndev; i++) {
        created(t, entry[i], NULL, &comm[i], result);
    }
    /* This loop is apart, because the first roll_leave ends the call: from there on a signal handler may make calls of
     * its own. */
    for (int i = 0; i < ndev; i++) {
        roll_leave(t, &call[i], (int)result);
    }
    return result;
}

/* Enters a call that makes a child of `parent`. Returns the child's entry; NULL when this rank will not be in the
 * child.
 */
static struct roll_comm *enter_child(struct roll_thread *t, struct roll_call *call, ncclComm_t parent, uint8_t op,
                                     enum roll_comm_origin origin, int color, uint64_t count, bool member,
                                     const ncclConfig_t *config, uintptr_t pc, const uintptr_t *frame)
{
    roll_enter_begin(t);
    roll_plugin_wrapped(ROLL_SET);
    struct roll_comm *from = roll_comm_get(t, parent);
    struct roll_comm *child = NULL;
    struct roll_fill fill = {
        .count = count,
        .peer = origin == ROLL_COMM_SPLIT ? color : ROLL_PEER_NONE,
        .op = op,
        .dtype = ROLL_DTYPE_NONE,
        .redop = ROLL_RED_NONE,
    };
    if (from != NULL) {
        struct roll_def_comm def = {
            .parent_key = from->def.key,
            .rank = -1,
            .color = origin == ROLL_COMM_SPLIT ? color : ROLL_COLOR_NONE,
            .child = atomic_load_explicit(&from->children, memory_order_relaxed),
            .origin = (uint32_t)origin,
            .device = from->def.device,
        };
        atomic_store_explicit(&from->children, def.child + 1, memory_order_relaxed);
        def.key = roll_key_child(def.parent_key, def.child, def.color);
        fill.comm = (uint16_t)atomic_load_explicit(&from->id, memory_order_relaxed);
        fill.flags = from->flags;
        fill.aux = (uint16_t)(def.child < UINT16_MAX ? def.child : UINT16_MAX);
        int saved = errno;
        child = member ? roll_comm_new(ROLL_SET, &def, config, from->flags) : NULL;
        errno = saved;
        if (child != NULL) {
            child->common_id = from->common_id || from->shrunk;
        }
        from->shrunk |= op == ROLL_OP_COMM_SHRINK;
    }
    roll_fill_group(t, &fill);
    roll_enter_fill(t, call, &fill, pc, frame);
    roll_enter_end(t);
    return child;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
    LIFE_PROLOGUE(ncclCommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *),
                  (comm, color, key, newcomm, config))
    if (roll_failfast_aborted(comm)) {
        return ncclInvalidUsage;
    }
    if (!roll_wanted(t)) {
        return real(comm, color, key, newcomm, config);
    }
    struct roll_call call;
    struct roll_comm *child = enter_child(t, &call, comm, ROLL_OP_COMM_SPLIT, ROLL_COMM_SPLIT, color, 0,
                                          color != NCCL_SPLIT_NOCOLOR, config, ROLL_PC, ROLL_FRAME);
    ncclResult_t result = real(comm, color, key, newcomm, config);
    created(t, child, comm, newcomm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm,
                            ncclConfig_t *config, int shrinkFlags)
{
    LIFE_PROLOGUE(ncclCommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int),
                  (comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags))
    if (roll_failfast_aborted(comm)) {
        return ncclInvalidUsage;
    }
    if (!roll_wanted(t)) {
        return real(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
    }
    struct roll_call call;
    struct roll_comm *child =
        enter_child(t, &call, comm, ROLL_OP_COMM_SHRINK, ROLL_COMM_SHRINK, 0,
                    (uint64_t)(excludeRanksCount > 0 ? excludeRanksCount : 0), true, config, ROLL_PC, ROLL_FRAME);
    if (child != NULL) {
        child->without = roll_failfast_set_of(excludeRanksList, excludeRanksCount);
    }
    ncclResult_t result = real(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags);
    created(t, child, comm, newcomm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
                          ncclConfig_t *config)
{
    LIFE_PROLOGUE(ncclCommGrow, (ncclComm_t, int, const ncclUniqueId *, int, ncclComm_t *, ncclConfig_t *),
                  (comm, nRanks, uniqueId, rank, newcomm, config))
    if (roll_failfast_aborted(comm)) {
        return ncclInvalidUsage;
    }
    roll_session_start();
    if (!roll_wanted(t)) {
        return real(comm, nRanks, uniqueId, rank, newcomm, config);
    }
    struct roll_call call;
    struct roll_comm *entry = NULL;
    if (comm != NULL || uniqueId == NULL) {
        entry = enter_child(t, &call, comm, ROLL_OP_COMM_GROW, ROLL_COMM_GROW, 0, (uint64_t)(nRanks > 0 ? nRanks : 0),
                            true, config, ROLL_PC, ROLL_FRAME);
    } else {
        entry = enter_init(t, &call, uniqueId, sizeof(*uniqueId), nRanks, rank, config, ROLL_PC, ROLL_FRAME);
    }
    ncclResult_t result = real(comm, nRanks, uniqueId, rank, newcomm, config);
    created(t, entry, comm, newcomm, result);
    roll_leave(t, &call, (int)result);
    return result;
}

/* The wrapper of destroy and abort. It forgets the handle before the call, because another thread may be given the same
 * address the moment that it is free; if the call fails, the handle is remembered again. */
static ncclResult_t end_comm(struct roll_thread *t, ncclResult_t (*real)(ncclComm_t), ncclComm_t handle, uint8_t op,
                             uintptr_t pc, const uintptr_t *frame)
{
    struct roll_call call;
    roll_enter_begin(t);
    struct roll_comm *comm = roll_comm_get(t, handle);
    struct roll_fill fill = {.peer = ROLL_PEER_NONE, .op = op, .dtype = ROLL_DTYPE_NONE, .redop = ROLL_RED_NONE};
    if (comm != NULL) {
        fill.comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed);
        fill.flags = comm->flags;
    }
    roll_fill_group(t, &fill);
    roll_enter_fill(t, &call, &fill, pc, frame);
    roll_comm_unbind(comm);
    roll_enter_end(t);
    ncclResult_t result = real(handle);
    if (result != ncclSuccess && result != ncclInProgress) {
        int saved = errno;
        t->busy = true;
        roll_comm_bind(comm, handle);
        errno = saved;
    }
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    LIFE_PROLOGUE(ncclCommDestroy, (ncclComm_t), (comm))
    if (roll_failfast_ended(comm)) {
        return ncclSuccess; /* the communicator was aborted, and so freed, when a call on it was refused */
    }
    return roll_wanted(t) ? end_comm(t, real, comm, ROLL_OP_COMM_DESTROY, ROLL_PC, ROLL_FRAME) : real(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    LIFE_PROLOGUE(ncclCommAbort, (ncclComm_t), (comm))
    if (roll_failfast_ended(comm)) {
        return ncclSuccess; /* the communicator was aborted, and so freed, when a call on it was refused */
    }
    return roll_wanted(t) ? end_comm(t, real, comm, ROLL_OP_COMM_ABORT, ROLL_PC, ROLL_FRAME) : real(comm);
}

ncclResult_t ncclGroupStart(void)
{
    LIFE_PROLOGUE(ncclGroupStart, (void), ())
    ncclResult_t result = real();
    /* Groups are counted before recording starts, too: a group may begin with the first communicator's creation. */
    if (!roll_outside(t) || result != ncclSuccess) {
        return result;
    }
    if (t->group_depth++ == 0) {
        t->group_calls = 0;
        t->group_id = 0;
        t->group_stream = 0;
        t->group_orders = 0;
        t->work_id = 0;
        roll_failfast_group_begin(t, ROLL_SET);
    } else {
        t->group_mixed |= t->group_set != ROLL_SET;
    }
    return result;
}

/* Closes one level of the group; records the outermost. */
static ncclResult_t end_group(struct roll_thread *t, ncclResult_t (*real)(void), uintptr_t pc, const uintptr_t *frame)
{
    struct roll_call call;
    if (!roll_outside(t) || t->group_depth == 0) {
        return real();
    }
    t->group_mixed |= t->group_set != ROLL_SET;
    if (t->group_depth > 1) {
        t->group_depth--;
        return real();
    }
    if (!roll_wanted(t)) {
        t->group_depth = 0;
        return real();
    }
    roll_enter_begin(t);
    struct roll_fill fill = {
        .group = roll_group_id(t),
        .peer = ROLL_PEER_NONE,
        .stream = t->group_stream,
        .op = ROLL_OP_GROUP_END,
        .dtype = ROLL_DTYPE_NONE,
        .redop = ROLL_RED_NONE,
        .aux = (uint16_t)(t->group_calls < UINT16_MAX ? t->group_calls : UINT16_MAX),
    };
    roll_enter_fill(t, &call, &fill, pc, frame);
    bool refused = roll_failfast_group_end(t);
    roll_enter_end(t);
    ncclResult_t result = refused ? roll_failfast_group_cancel(ROLL_SET, real) : real();
    int saved = errno;
    t->busy = true;
    bool failed = result != ncclSuccess && result != ncclInProgress;
    roll_comm_settle(t->group_id, failed);
    roll_failfast_group_done(t, failed);
    if (failed) {
        roll_refused_group(t, t->group_id, t->group_calls, call.ticket);
    }
    for (unsigned i = 0; i < t->group_orders && result == ncclSuccess; i++) {
        roll_order_enqueued(t->group_order[i].stream, t->group_order[i].ticket);
    }
    errno = saved;
    t->group_depth = 0;
    t->group_id = 0;
    if (refused && failed) {
        roll_leave(t, &call, roll_failfast_result());
        return roll_failfast_refused(t, pc, frame);
    }
    roll_leave(t, &call, (int)result);
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    LIFE_PROLOGUE(ncclGroupEnd, (void), ())
    return end_group(t, real, ROLL_PC, ROLL_FRAME);
}

/* Ends a group without launching anything: the calls in it did not happen. The GroupEnd's record says so in `count`. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo)
{
    LIFE_PROLOGUE(ncclGroupSimulateEnd, (ncclSimInfo_t *), (simInfo))
    ncclResult_t result = real(simInfo);
    if (t->depth == 0 && t->group_depth > 0 && --t->group_depth == 0 && t->group_id != 0 && roll_active()) {
        int saved = errno;
        roll_enter_begin(t);
        struct roll_call call;
        struct roll_fill fill = {.count = 1,
                                 .group = t->group_id,
                                 .peer = ROLL_PEER_NONE,
                                 .stream = t->group_stream,
                                 .op = ROLL_OP_GROUP_END,
                                 .dtype = ROLL_DTYPE_NONE,
                                 .redop = ROLL_RED_NONE,
                                 .aux = (uint16_t)(t->group_calls < UINT16_MAX ? t->group_calls : UINT16_MAX)};
        roll_comm_settle(t->group_id, true);
        roll_failfast_group_done(t, true);
        roll_record_write(t, &call, &fill, roll_callsite(t, ROLL_PC, ROLL_FRAME), ROLL_STATE_RETURNED);
        roll_refused_group(t, t->group_id, t->group_calls, call.ticket);
        roll_enter_end(t);
        t->depth = 0;
        t->group_id = 0;
        t->work_id = 0;
        errno = saved;
    }
    return result;
}

/* Records that a communicator's state has changed: a call in progress is done, or there is an error. Polls with the
 * same answer as before are not recorded: a nonblocking job makes them by the thousand. */
static void note_async(struct roll_thread *t, ncclComm_t handle, ncclResult_t state, uintptr_t pc,
                       const uintptr_t *frame)
{
    struct roll_comm *comm = roll_comm_find(handle);
    if (comm == NULL || atomic_load_explicit(&comm->async, memory_order_relaxed) == (uint8_t)state) {
        return;
    }
    int saved = errno;
    roll_enter_begin(t);
    atomic_store_explicit(&comm->async, (uint8_t)state, memory_order_relaxed);
    if (state != ncclInProgress && roll_comm_define(comm) != 0) {
        struct roll_call call;
        struct roll_fill fill = {.peer = ROLL_PEER_NONE,
                                 .comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed),
                                 .op = ROLL_OP_COMM_ASYNC,
                                 .dtype = ROLL_DTYPE_NONE,
                                 .redop = ROLL_RED_NONE,
                                 .flags = comm->flags};
        roll_enter_fill(t, &call, &fill, pc, frame);
        roll_enter_end(t);
        roll_leave(t, &call, (int)state);
    } else {
        roll_enter_end(t);
        t->depth = 0;
    }
    errno = saved;
}

/* The call is recorded when its answer changes. When the answer is that nothing is in progress any more, the handles of
 * nonblocking children are there for certain. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    LIFE_PROLOGUE(ncclCommGetAsyncError, (ncclComm_t, ncclResult_t *), (comm, asyncError))
    if (roll_failfast_aborted(comm)) {
        if (asyncError != NULL) {
            *asyncError = ncclInvalidUsage;
        }
        return ncclSuccess;
    }
    ncclResult_t result = real(comm, asyncError);
    if (result == ncclSuccess && *asyncError == ncclSuccess && roll_comm_any_pending() && t->depth == 0 &&
        roll_active()) {
        int saved = errno;
        roll_enter_begin(t);
        roll_comm_settle_children(comm);
        roll_enter_end(t);
        t->depth = 0;
        errno = saved;
    }
    if (result == ncclSuccess && roll_wanted(t)) {
        roll_polled(t, ROLL_OP_COMM_QUERY, (uintptr_t)comm, false, *asyncError == ncclInProgress,
                    *asyncError == ncclSuccess, ROLL_PC, ROLL_FRAME);
        note_async(t, comm, *asyncError, ROLL_PC, ROLL_FRAME);
    }
    return result;
}
