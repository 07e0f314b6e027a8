/*
 * failfast.c: compares each collective with what other ranks of the node have published, and refuses it when they differ.
 *
 * The comparison itself is one line of a shared table (trace/compare.h). What is here: which calls are comparable, what a
 * difference proves, and what is done then. The rule is that a refusal must be right: where group boundaries differ, where
 * a line is not whole, where an AlltoAll may meet sends and receives, nothing is said and the call is made.
 *
 * Inside a group NCCL sorts, so order says nothing there: the group's calls are kept until it ends, put in the order of
 * their signatures, and published in that order; then equal groups are equal line by line, whoever published which. A
 * refused group is ended by a call that NCCL itself refuses (a collective on no communicator): NCCL then drops what
 * the group holds. ncclGroupSimulateEnd was rejected for that: it connects to peers first, and may wait for them.
 *
 * A refused call takes no number: nothing was enqueued, so the same call made right takes the place of the wrong one.
 */
#include "interposer/failfast.h"

#include "interposer/call.h"
#include "interposer/failfast_say.h"
#include "trace/compare.h"
#include "trace/err.h"
#include "trace/signature.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GROUP_CALLS 512u /* compared in one group; a larger one is not compared */
#define LISTS       64u  /* kept for reuse: threads that are in a group at once */

enum { REPORT, REFUSE, ABORT };

struct group_call {
    struct roll_comm *comm;
    uint64_t signature;
    uintptr_t pc;
    struct roll_compare_call call;
};

/* The collectives of the group that a thread has open. */
struct roll_group_list {
    uint32_t used;
    bool overflow, refused;
    struct group_call call[GROUP_CALLS];
    uint16_t order[GROUP_CALLS];
};

static int mode;
static uint32_t pid;
static _Atomic(struct roll_group_list *) lists[LISTS];
static _Atomic bool any_aborted;
/* The communicator that a refusal in this thread is about, between the refusal and what follows from it. */
static __thread struct roll_comm *culprit __attribute__((tls_model("initial-exec")));

struct roll_compare *roll_failfast_start(const char *dir, const struct roll_ident *ident)
{
    static char path[4096]; /* off the stack, which may be small; under roll_lock */
    struct roll_compare *page = NULL;
    const char *wanted = getenv("ROLLCALL_ON_MISMATCH");
    if (wanted == NULL || wanted[0] == '\0' || strcmp(wanted, "report") == 0) {
        return NULL;
    }
    mode = strcmp(wanted, "error") == 0 ? REFUSE : strcmp(wanted, "abort") == 0 ? ABORT : REPORT;
    if (mode == REPORT) {
        roll_say("ROLLCALL_ON_MISMATCH=%s is none of report, error, abort: mismatches are reported, not refused",
                 wanted);
        return NULL;
    }
    int rc = roll_compare_path(path, sizeof path, dir, ident->job, ident->restart);
    if (rc == 0) {
        rc = roll_compare_open(path, &page);
    }
    if (rc != 0) {
        roll_say("ROLLCALL_ON_MISMATCH=%s: cannot open the page for comparing in %s (%s): mismatches are reported, not "
                 "refused",
                 wanted, dir, roll_strerror(rc));
        return NULL;
    }
    pid = (uint32_t)getpid();
    roll_failfast_say_start(dir, ident);
    return page;
}

static uint64_t signature_of(const struct roll_compare_call *call)
{
    struct roll_signed_call signed_call = {.count = call->count,
                                           .peer = call->peer,
                                           .op = call->op,
                                           .dtype = call->dtype,
                                           .redop = call->redop,
                                           .flags = call->flags};
    return roll_signature(&signed_call);
}

static struct roll_compare_call describe(struct roll_thread *t, const struct roll_comm *comm,
                                         const struct roll_fill *fill, uint16_t site)
{
    return (struct roll_compare_call){
        .key = comm->def.key,
        .count = fill->count,
        .seq = fill->seq,
        .pid = pid,
        .peer = fill->peer,
        .world = roll_session->ring.header->world_rank,
        .rank = comm->rank,
        .op = fill->op,
        .dtype = fill->dtype,
        .redop = fill->redop,
        .flags = (uint8_t)((fill->flags & (ROLL_FLAG_BYTES | ROLL_FLAG_CAPTURED)) |
                           (comm->messages ? ROLL_COMPARE_P2P : 0u)),
        .members = 1,
        .callsite = site,
        .stamp = (uint16_t)(t->ns_last >> 24),
    };
}

/* What another rank has published. It may still be writing: a difference is rare and the job about to hang, so here, and
 * only here, waiting a moment is right; not for ever, because it may have been killed. */
static bool read_theirs(const struct roll_compare_cell *cell, const struct roll_compare_call *mine,
                        struct roll_compare_call *theirs)
{
    const struct timespec pause = {.tv_nsec = 100000};
    for (int i = 0; i < 500; i++) {
        if (roll_compare_read(cell, mine->key, mine->seq, theirs)) {
            return true;
        }
        nanosleep(&pause, NULL);
    }
    return false;
}

static bool is_lowered(uint8_t op)
{
    return op == ROLL_OP_ALLTOALL || op == ROLL_OP_GATHER || op == ROLL_OP_SCATTER;
}

/* NCCL makes sends and receives of AlltoAll, Gather and Scatter, so one rank may call them and another send and receive.
 * Where either side does that on this communicator, their numbers prove nothing. */
static bool may_be_messages(const struct roll_compare_call *a, const struct roll_compare_call *b)
{
    return a->op != b->op && (is_lowered(a->op) || is_lowered(b->op)) &&
           ((a->flags | b->flags) & ROLL_COMPARE_P2P) != 0;
}

/* Call number i of a published group; false when it cannot be read, or is another group's by now. */
static bool read_member(const struct roll_compare_call *theirs, uint32_t i, struct roll_compare_call *out)
{
    uint32_t seq = theirs->seq - theirs->before + i;
    const struct roll_compare_cell *cell = roll_compare_find(roll_session->compare, theirs->key, seq);
    return cell != NULL && roll_compare_read(cell, theirs->key, seq, out) && out->before == i &&
           out->members == theirs->members;
}

/* How often a signature is among the calls of a published group; -1 when not all of the group can be read. */
static int count_in_theirs(const struct roll_compare_call *theirs, uint64_t signature)
{
    int found = 0;
    for (uint32_t i = 0; i < theirs->members; i++) {
        struct roll_compare_call other;
        if (!read_member(theirs, i, &other)) {
            return -1;
        }
        found += signature_of(&other) == signature;
    }
    return found;
}

static int count_in_mine(const struct group_call *run, const uint16_t *order, uint32_t n, uint64_t signature)
{
    int found = 0;
    for (uint32_t i = 0; i < n; i++) {
        found += run[order[i]].signature == signature;
    }
    return found;
}

/* Two groups that differ: finds the calls to show, one of each that the other has not, or not as often. */
static void show_difference(const struct group_call *run, const uint16_t *order, uint32_t n, uint32_t *at,
                            struct roll_compare_call *theirs)
{
    struct roll_compare_call other;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t mine = run[order[i]].signature;
        int there = count_in_theirs(theirs, mine);
        if (there >= 0 && there < count_in_mine(run, order, n, mine)) {
            *at = i;
            break;
        }
    }
    for (uint32_t i = 0; i < theirs->members; i++) {
        if (read_member(theirs, i, &other) &&
            count_in_mine(run, order, n, signature_of(&other)) < count_in_theirs(theirs, signature_of(&other))) {
            *theirs = other;
            break;
        }
    }
}

/* Whether two calls at one place prove a mismatch, where either is one of several in a group. `run`, `order`: my group, of
 * n calls on this communicator; *at: the call of it that differs, then the one to show, as *theirs is. */
static bool groups_differ(const struct group_call *run, const uint16_t *order, uint32_t n, uint32_t *at,
                          struct roll_compare_call *theirs)
{
    uint32_t place = run[order[*at]].call.seq;
    uint32_t my_base = place - *at, my_end = my_base + n;
    uint32_t base = place - theirs->before, end = base + theirs->members;
    bool differ = false; /* where boundaries cross, which call stands against which is not known */
    if (base == my_base && end == my_end) {
        differ = true;                             /* equal groups are equal in this order */
    } else if (base <= my_base && my_end <= end) { /* mine lies within theirs: each of my calls must be among theirs */
        differ = count_in_theirs(theirs, run[order[*at]].signature) == 0;
    } else if (my_base <= base && end <= my_end) {
        differ = count_in_mine(run, order, n, signature_of(theirs)) == 0;
    }
    if (differ) {
        show_difference(run, order, n, at, theirs);
    }
    return differ;
}

static struct roll_group_list *list_take(void)
{
    for (unsigned i = 0; i < LISTS; i++) {
        struct roll_group_list *list = atomic_exchange_explicit(&lists[i], NULL, memory_order_acquire);
        if (list != NULL) {
            return list;
        }
    }
    pthread_mutex_lock(&roll_lock);
    struct roll_group_list *list = roll_session_alloc(sizeof *list);
    pthread_mutex_unlock(&roll_lock);
    return list;
}

static void list_give(struct roll_group_list *list)
{
    for (unsigned i = 0; i < LISTS; i++) {
        struct roll_group_list *none = NULL;
        if (atomic_compare_exchange_strong_explicit(&lists[i], &none, list, memory_order_release,
                                                    memory_order_relaxed)) {
            return;
        }
    }
}

static void keep_for_end(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call,
                         uintptr_t pc)
{
    struct roll_group_list *list = t->group_list != NULL ? t->group_list : list_take();
    if (list == NULL) {
        return;
    }
    if (t->group_list == NULL) {
        t->group_list = list;
        list->used = 0;
        list->overflow = false;
        list->refused = false;
    }
    if (list->used == GROUP_CALLS) {
        list->overflow = true;
        return;
    }
    list->call[list->used++] =
        (struct group_call){.comm = comm, .signature = signature_of(call), .pc = pc, .call = *call};
}

/* A call on a communicator that we have aborted. In a group it spoils the group, as with NCCL. */
static bool refuse_aborted(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call)
{
    roll_failfast_say_aborted(comm, call);
    culprit = NULL;
    if (t->group_depth != 0) {
        keep_for_end(t, comm, call, 0);
        if (t->group_list != NULL) {
            t->group_list->refused = true;
        }
    }
    return true;
}

/* The number of a call that was not made is given to the next one. */
static void take_back(struct roll_comm *comm, uint32_t seq)
{
    if ((int32_t)(atomic_load_explicit(&comm->seq, memory_order_relaxed) - seq) > 0) {
        atomic_store_explicit(&comm->seq, seq, memory_order_relaxed);
    }
}

/* Whether the call number *at of my group differs, by what is published at `cell`, in a way that proves a mismatch. */
static bool differs(const struct group_call *run, const uint16_t *order, uint32_t n, uint32_t *at,
                    const struct roll_compare_cell *cell, struct roll_compare_call *theirs)
{
    const struct roll_compare_call *mine = &run[order[*at]].call;
    if (!read_theirs(cell, mine, theirs) || may_be_messages(mine, theirs) ||
        (theirs->pid == mine->pid && theirs->rank == mine->rank)) {
        return false;
    }
    return (n == 1 && theirs->members == 1) || groups_differ(run, order, n, at, theirs);
}

static bool single_differs(struct roll_comm *comm, const struct roll_compare_call *mine,
                           const struct roll_compare_cell *cell, uintptr_t pc)
{
    int saved = errno;
    struct roll_compare_call theirs;
    struct group_call self = {.comm = comm, .signature = signature_of(mine), .pc = pc, .call = *mine};
    const uint16_t order = 0;
    uint32_t at = 0;
    bool refused = differs(&self, &order, 1, &at, cell, &theirs);
    if (refused) {
        take_back(comm, mine->seq);
        roll_failfast_say(comm, mine, pc, &theirs);
        culprit = comm;
    }
    errno = saved;
    return refused;
}

bool roll_failfast_call(struct roll_thread *t, struct roll_comm *comm, const struct roll_fill *fill, uint16_t site,
                        uintptr_t pc)
{
    enum roll_op_class class = roll_op_class(fill->op);
    if (ROLL_UNLIKELY(atomic_load_explicit(&comm->aborted, memory_order_relaxed))) {
        struct roll_compare_call call = describe(t, comm, fill, site);
        return refuse_aborted(t, comm, &call);
    }
    if (class == ROLL_CLASS_P2P) {
        comm->messages = true;
    }
    if (class != ROLL_CLASS_COLL || comm->nranks < 2) {
        return false;
    }
    if (fill->count == 0) { /* NCCL drops it: what it means is shown by the next call */
        comm->zero_seq = fill->seq + 1;
        comm->zero_op = fill->op;
        return false;
    }
    struct roll_compare_call call = describe(t, comm, fill, site);
    if (t->group_depth != 0) {
        keep_for_end(t, comm, &call, pc);
        return false;
    }
    struct roll_compare_cell *other;
    uint64_t word = roll_compare_word(call.key, call.seq, signature_of(&call));
    enum roll_compare_answer answer = roll_compare_call(roll_session->compare, &call, word, &other);
    roll_compare_prefetch(roll_session->compare, call.key, call.seq + 1);
    return ROLL_UNLIKELY(answer == ROLL_COMPARE_OTHER) && single_differs(comm, &call, other, pc);
}

void roll_failfast_failed(struct roll_comm *comm, uint32_t seq)
{
    take_back(comm, seq);
    roll_compare_withdraw(roll_session->compare, comm->def.key, seq, pid, comm->rank);
}

/* By communicator, then by signature. Groups are small and mostly in order: no library's sort, which may allocate. */
static void sort_list(struct roll_group_list *list)
{
    for (uint32_t i = 0; i < list->used; i++) {
        const struct group_call *call = &list->call[i];
        uint32_t at = i;
        for (; at > 0; at--) {
            const struct group_call *before = &list->call[list->order[at - 1]];
            if (before->comm < call->comm || (before->comm == call->comm && before->signature <= call->signature)) {
                break;
            }
            list->order[at] = list->order[at - 1];
        }
        list->order[at] = (uint16_t)i;
    }
}

/* The calls of one communicator: numbers them in their sorted order, publishes or compares. True: a mismatch is proven. */
static bool compare_run(struct roll_group_list *list, const uint16_t *order, uint32_t n)
{
    struct group_call *run = list->call;
    struct roll_comm *comm = run[order[0]].comm;
    uint32_t base = run[order[0]].call.seq, last = base;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t seq = run[order[i]].call.seq;
        base = seq < base ? seq : base;
        last = seq > last ? seq : last;
    }
    if (last - base + 1 != n) {
        return false; /* another thread has used the communicator meanwhile: nothing can be said */
    }
    for (uint32_t i = 0; i < n; i++) {
        struct roll_compare_call *call = &run[order[i]].call;
        call->seq = base + i;
        call->before = (uint16_t)i;
        call->members = (uint16_t)n;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct roll_compare_call *mine = &run[order[i]].call;
        struct roll_compare_call theirs;
        struct roll_compare_cell *other;
        uint32_t at = i;
        uint64_t word = roll_compare_word(mine->key, mine->seq, run[order[i]].signature);
        if (roll_compare_call(roll_session->compare, mine, word, &other) == ROLL_COMPARE_OTHER &&
            differs(run, order, n, &at, other, &theirs)) {
            const struct group_call *shown = &run[order[at]];
            roll_failfast_say(comm, &shown->call, shown->pc, &theirs);
            culprit = comm;
            return true;
        }
    }
    return false;
}

void roll_failfast_group_begin(struct roll_thread *t)
{
    if (t->group_list != NULL) {
        t->group_list->used = 0;
        t->group_list->overflow = false;
        t->group_list->refused = false;
    }
}

bool roll_failfast_group_end(struct roll_thread *t)
{
    struct roll_group_list *list = t->group_list;
    int saved = errno;
    if (list == NULL || roll_session->compare == NULL) {
        return false;
    }
    bool refused = list->refused;
    if (!refused && !list->overflow) {
        sort_list(list);
        for (uint32_t i = 0, n; i < list->used && !refused; i += n) {
            for (n = 1; i + n < list->used && list->call[list->order[i + n]].comm == list->call[list->order[i]].comm;) {
                n++;
            }
            refused = compare_run(list, &list->order[i], n);
        }
    }
    list->refused = refused;
    errno = saved;
    return refused;
}

void roll_failfast_group_done(struct roll_thread *t, bool failed)
{
    struct roll_group_list *list = t->group_list;
    if (list == NULL) {
        return;
    }
    for (uint32_t i = list->used; failed && roll_session->compare != NULL && i-- > 0;) {
        const struct roll_compare_call *call = &list->call[i].call;
        if (!atomic_load_explicit(&list->call[i].comm->aborted, memory_order_relaxed)) {
            roll_failfast_failed(list->call[i].comm, call->seq);
        }
    }
    t->group_list = NULL;
    list_give(list);
}

ncclResult_t roll_failfast_group_cancel(unsigned set, ncclResult_t (*real)(void))
{
    typedef ncclResult_t (*reduce_t)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                     cudaStream_t);
    reduce_t reduce = ROLL_REAL_OF(set, ncclAllReduce, reduce_t);
    if (reduce != NULL) {
        (void)reduce(NULL, NULL, 1, 0, 0, NULL, NULL); /* refused by NCCL, and with it the whole group */
    }
    ncclResult_t result = real();
    roll_failfast_say_settled();
    return result;
}

static void abort_comm(struct roll_thread *t, struct roll_comm *comm, uintptr_t pc, const uintptr_t *frame)
{
    typedef ncclResult_t (*abort_t)(ncclComm_t);
    abort_t real = ROLL_REAL_OF(comm->set, ncclCommAbort, abort_t);
    ncclComm_t handle = (ncclComm_t)atomic_load_explicit(&comm->handle, memory_order_relaxed);
    if (real == NULL || handle == NULL || atomic_exchange_explicit(&comm->aborted, true, memory_order_acq_rel)) {
        return;
    }
    atomic_store_explicit(&any_aborted, true, memory_order_release);
    struct roll_call call;
    struct roll_fill fill = {.peer = ROLL_PEER_NONE,
                             .comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed),
                             .op = ROLL_OP_COMM_ABORT,
                             .dtype = ROLL_DTYPE_NONE,
                             .redop = ROLL_RED_NONE,
                             .flags = comm->flags};
    roll_enter_begin(t);
    roll_enter_fill(t, &call, &fill, pc, frame);
    roll_enter_end(t);
    ncclResult_t result = real(handle);
    roll_leave(t, &call, (int)result);
}

ncclResult_t roll_failfast_refused(struct roll_thread *t, uintptr_t pc, const uintptr_t *frame)
{
    int saved = errno;
    if (mode == ABORT && culprit != NULL) {
        abort_comm(t, culprit, pc, frame);
    }
    culprit = NULL;
    errno = saved;
    return ncclInvalidUsage;
}

bool roll_failfast_aborted(ncclComm_t handle)
{
    if (ROLL_LIKELY(!atomic_load_explicit(&any_aborted, memory_order_relaxed))) {
        return false;
    }
    const struct roll_comm *comm = roll_comm_find(handle);
    return comm != NULL && atomic_load_explicit(&comm->aborted, memory_order_relaxed);
}

bool roll_failfast_ended(ncclComm_t handle)
{
    bool ours = roll_failfast_aborted(handle);
    if (ours) {
        int saved = errno;
        roll_comm_unbind(roll_comm_find(handle));
        errno = saved;
    }
    return ours;
}
