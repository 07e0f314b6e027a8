/*
 * failfast.c: compares each collective with what other ranks of the node have published, and refuses it when they
 * differ.
 *
 * The comparison itself is one line of a shared table (trace/compare.h). This file decides which calls are comparable,
 * under which number, and what happens when a call is refused; failfast_judge.c decides what a difference proves,
 * failfast_group.c compares groups.
 *
 * A refused call takes no number: nothing was enqueued, so the same call made right takes the place of the wrong one.
 */
#include "interposer/failfast/failfast_inner.h"
#include "trace/err.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT, REFUSE, ABORT };

static int mode;
static uint32_t pid;
static _Atomic bool any_aborted;
__thread struct roll_comm *roll_failfast_culprit __attribute__((tls_model("initial-exec")));

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
    int rc = roll_compare_path(path, sizeof(path), dir, ident->job, ident->restart);
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

bool roll_failfast_common_id(const void *ids, size_t bytes)
{
    static const uint64_t fixed =
        0x0280028002800280; /* NCCL writes this in place of random bytes when NCCL_COMM_ID is set */
    return bytes >= sizeof(fixed) && memcmp(ids, &fixed, sizeof(fixed)) == 0;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ b) * 0x9fb21c651e98df25u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 29;
}

uint64_t roll_failfast_set_of(const int *ranks, int n)
{
    uint64_t sum = 0;
    for (int i = 0; ranks != NULL && i < n; i++) {
        sum += mix((uint64_t)ranks[i] + 1, 0);
    }
    return sum;
}

/*
 * Computes the key under which the calls of a communicator are published. Healthy ranks may count differently: one
 * captures two collectives into one graph and another into two, which are one launch and two; one abandons a capture
 * and makes it again; one sends and receives what another calls AlltoAll. Then the same number is not the same place
 * any more, and the calls must not be compared. So earlier calls of these kinds are part of the key. The size and the
 * excluded ranks are part of it, because children of different ranks may bear one key.
 */
static void rekey(struct roll_comm *comm)
{
    uint64_t key = mix(comm->def.key, (uint64_t)(uint32_t)comm->nranks);
    key = mix(key, comm->without);
    key = mix(key, (uint64_t)comm->lowered << 32 | comm->captured);
    key = mix(key, comm->launched);
    comm->compare_key = key != 0 ? key : 1;
}

static uint64_t key_of(struct roll_comm *comm)
{
    if (ROLL_UNLIKELY(comm->compare_key == 0)) {
        rekey(comm);
    }
    return comm->compare_key;
}

void roll_failfast_passed(struct roll_comm *comm, uint8_t op, uint8_t flags, uint32_t by)
{
    bool lowered = roll_failfast_lowered(op), captured = (flags & ROLL_FLAG_CAPTURED) != 0;
    if (ROLL_UNLIKELY(lowered || captured)) {
        comm->lowered += lowered ? by : 0;
        comm->captured += captured ? by : 0;
        rekey(comm);
    }
}

void roll_failfast_launched(struct roll_comm *comm, uint64_t hash)
{
    comm->launched = mix(comm->launched, hash) + 1;
    rekey(comm);
}

bool roll_failfast_numbered(void)
{
    return atomic_load_explicit(&roll_session->ring.header->losses[ROLL_LOSS_SIGNAL], memory_order_relaxed) == 0;
}

static struct roll_compare_call describe(struct roll_comm *comm, const struct roll_fill *fill, uint16_t site)
{
    return (struct roll_compare_call){
        .key = key_of(comm),
        .count = fill->count,
        .seq = fill->seq,
        .pid = pid,
        .peer = fill->peer,
        .world = roll_session->ring.header->world_rank,
        .rank = comm->rank,
        .op = fill->op,
        .dtype = fill->dtype,
        .redop = fill->redop,
        .flags = (uint8_t)(fill->flags & (ROLL_FLAG_BYTES | ROLL_FLAG_CAPTURED)),
        .messages = comm->messages ? 1 : 0,
        .members = 1,
        .callsite = site,
    };
}

/* Refuses a call on a communicator that fail-fast has aborted. Inside a group the whole group is refused, as NCCL does.
 */
static bool refuse_aborted(struct roll_thread *t, struct roll_comm *comm, const struct roll_compare_call *call)
{
    roll_failfast_say_aborted(comm, call);
    roll_failfast_culprit = NULL;
    if (t->group_depth != 0) {
        roll_failfast_keep(t, comm, call, 0, true);
    }
    return true;
}

/* Gives the number of a call that was not made to the next call. */
static void take_back(struct roll_comm *comm, uint32_t seq)
{
    if ((int32_t)(atomic_load_explicit(&comm->seq, memory_order_relaxed) - seq) > 0) {
        atomic_store_explicit(&comm->seq, seq, memory_order_relaxed);
    }
}

void roll_failfast_undo(struct roll_comm *comm, uint64_t key, uint32_t seq)
{
    take_back(comm, seq);
    roll_compare_withdraw(roll_session->compare, key, seq, pid, comm->rank);
}

void roll_failfast_failed(const struct roll_call *call)
{
    if (call->compared->common_id || call->compared->nranks < 2 || !roll_failfast_numbered()) {
        return; /* the call had not been compared */
    }
    roll_failfast_passed(call->compared, call->op, call->flags, UINT32_MAX);
    roll_failfast_undo(call->compared, key_of(call->compared), call->seq);
}

static bool single_differs(struct roll_comm *comm, const struct roll_compare_call *mine, struct roll_compare_cell *cell,
                           uintptr_t pc)
{
    int saved = errno;
    struct roll_compare_call theirs;
    struct roll_group_call self = {.comm = comm, .signature = roll_failfast_signature(mine), .pc = pc, .call = *mine};
    const uint16_t order = 0;
    const struct roll_run run = {&self, &order, 1};
    uint32_t at = 0;
    bool refused = roll_failfast_differs(&run, &at, cell, &theirs);
    if (refused) {
        take_back(comm, mine->seq);
        roll_failfast_say(comm, mine, pc, &theirs);
        roll_failfast_culprit = comm;
    }
    errno = saved;
    return refused;
}

bool roll_failfast_call(struct roll_thread *t, struct roll_comm *comm, const struct roll_fill *fill, uint16_t site,
                        uintptr_t pc)
{
    enum roll_op_class class = roll_op_class(fill->op);
    if (ROLL_UNLIKELY(atomic_load_explicit(&comm->aborted, memory_order_relaxed))) {
        struct roll_compare_call call = describe(comm, fill, site);
        return refuse_aborted(t, comm, &call);
    }
    if (class == ROLL_CLASS_P2P) {
        comm->messages = true;
    }
    if (class != ROLL_CLASS_COLL || comm->nranks < 2 || ROLL_UNLIKELY(comm->common_id)) {
        return false;
    }
    if (fill->count == 0) { /* NCCL drops the call; the next call shows whether that was a mistake */
        comm->zero_seq = fill->seq + 1;
        comm->zero_op = fill->op;
        return false;
    }
    struct roll_compare_call call = describe(comm, fill, site);
    if (t->group_depth != 0) {
        roll_failfast_keep(t, comm, &call, pc, false);
        return false;
    }
    if (ROLL_UNLIKELY(!roll_failfast_numbered())) {
        return false;
    }
    struct roll_compare_cell *other;
    uint64_t word = roll_compare_word(call.key, call.seq, roll_failfast_signature(&call));
    enum roll_compare_answer answer =
        roll_compare_call(roll_session->compare, &call, roll_compare_moment(t->ns_last), word, &other);
    roll_compare_prefetch(roll_session->compare, call.key, call.seq + 1);
    if (ROLL_UNLIKELY(answer == ROLL_COMPARE_OTHER) && single_differs(comm, &call, other, pc)) {
        return true;
    }
    roll_failfast_passed(comm, fill->op, fill->flags, 1);
    return false;
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

int roll_failfast_result(void)
{
    return (int)ncclInvalidUsage | (roll_failfast_culprit != NULL ? (int)ROLL_RESULT_DECLINED : 0);
}

ncclResult_t roll_failfast_refused(struct roll_thread *t, uintptr_t pc, const uintptr_t *frame)
{
    int saved = errno;
    if (mode == ABORT && roll_failfast_culprit != NULL) {
        abort_comm(t, roll_failfast_culprit, pc, frame);
    }
    roll_failfast_culprit = NULL;
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
