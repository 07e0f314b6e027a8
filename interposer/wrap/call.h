/*
 * call.h: recording one call: enter before the real function, leave after it. This is the hot path.
 *
 * roll_enter gathers the fields of the record (communicator, sequence, stream, call site, MoE context, group), then
 * reserves a slot, fills and publishes it; roll_leave rewrites the slot's seal. Everything is inline, so that the
 * compiler folds away in each wrapper what is constant there (operation, class, flags); rare work is in functions
 * elsewhere.
 */
#ifndef ROLL_INTERPOSER_WRAP_CALL_H
#define ROLL_INTERPOSER_WRAP_CALL_H

#include "interposer/cuda/completion.h"
#include "interposer/cuda/graphs.h"
#include "interposer/cuda/order.h"
#include "interposer/cuda/poll.h"
#include "interposer/cuda/streams.h"
#include "interposer/failfast/failfast.h"
#include "interposer/record/callsite.h"
#include "interposer/record/clock.h"
#include "interposer/record/comms.h"
#include "interposer/record/session.h"
#include "interposer/record/thread.h"
#include "interposer/wrap/api.h"
#include "interposer/wrap/refused.h"
#include "interposer/wrap/tell.h"
#include "trace/op.h"
#include "trace/ring_write.h"

#include <stdatomic.h>

#define NONE_DTYPE  ((int)ROLL_DTYPE_NONE)
#define NONE_REDOP  (-1)
#define NONE_PEER   ROLL_PEER_NONE
#define NONE_STREAM ((cudaStream_t)(uintptr_t)UINTPTR_MAX)

/* When a call is in place, as NCCL defines it for that operation. */
enum roll_inplace {
    ROLL_INPLACE_NEVER,
    ROLL_INPLACE_ALWAYS,
    ROLL_INPLACE_SAME,         /* send == recv */
    ROLL_INPLACE_SEND_AT_RANK, /* send == recv + rank * count */
    ROLL_INPLACE_RECV_AT_RANK, /* recv == send + rank * count */
    ROLL_INPLACE_SEND_AT_ROOT, /* on the root: send == recv + root * count */
    ROLL_INPLACE_RECV_AT_ROOT, /* on the root: recv == send + root * count */
};

/* The fields of a call's record, except time, place and group. */
struct roll_fill {
    uint64_t count;
    uint64_t behind; /* ticket + 1 of the record that `aux` is to lead to; 0: aux is what it is */
    uint32_t seq;
    uint32_t group;
    int32_t peer;
    uint16_t comm;
    uint16_t stream;
    uint16_t aux;
    uint8_t op;
    uint8_t dtype;
    uint8_t redop;
    uint8_t flags;
};

/* A call between enter and leave. rec NULL: the call is not recorded. */
struct roll_call {
    struct roll_record *rec;
    uint64_t ticket;
    uint64_t enter_ns;
    struct roll_comm *compared; /* the communicator, where the call is compared with other ranks; else NULL */
    uint32_t seq;
    uint16_t stream; /* where the call goes when it returns; 0: it is none, or a group's end enqueues it */
    uint8_t op, flags;
    bool refused; /* the call must not be made: see failfast.h */
};

/*
 * Whether this thread is in none of our wrappers. Always inlined: the frame is that of the wrapper that asks.
 *
 * A wrapper that was left by longjmp leaves its depth behind. Whatever NCCL calls lies below the open wrapper on the
 * stack. So a call from where that wrapper was, or from above it, shows that the wrapper is gone. Other stacks than the
 * thread's own (a handler's, a coroutine's) prove nothing.
 */
static inline __attribute__((always_inline)) bool roll_outside(struct roll_thread *t)
{
    if (ROLL_LIKELY(t->depth == 0)) {
        return true;
    }
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (t->busy || here < t->frame || t->frame < t->stack_low || here >= t->stack_high) {
        return false;
    }
    t->depth = 0;
    t->captured.pending = false;
    return true;
}

/* Whether this call is the application's own and recording is on. A call made by a signal handler while our own code
 * runs in this thread is counted as lost. */
static inline __attribute__((always_inline)) bool roll_wanted(struct roll_thread *t)
{
    if (!roll_active()) {
        return false;
    }
    if (ROLL_SET == 0 && ROLL_UNLIKELY(atomic_load_explicit(&roll_api_others, memory_order_relaxed) != 0) &&
        roll_api_within((uintptr_t)__builtin_return_address(0))) {
        return false;
    }
    if (ROLL_UNLIKELY(!roll_outside(t))) {
        if (t->busy) {
            atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_SIGNAL], 1, memory_order_relaxed);
        }
        return false;
    }
    return true;
}

/* The MoE context of a record: that of this thread's last MoE event, else of the process's last one. */
static inline void roll_fill_moe(const struct roll_thread *t, struct roll_record *rec)
{
    if (t->moe_known) {
        rec->step = t->moe.step;
        rec->layer = t->moe.layer;
        rec->microbatch = t->moe.microbatch;
        rec->phase = t->moe.phase;
        return;
    }
    uint32_t phase = atomic_load_explicit(&roll_session->moe_phase, memory_order_acquire);
    if (ROLL_LIKELY(phase == 0)) {
        rec->step = ROLL_STEP_NONE;
        rec->layer = ROLL_LAYER_NONE;
        rec->microbatch = 0;
        rec->phase = ROLL_PHASE_NONE;
        return;
    }
    uint64_t moe = atomic_load_explicit(&roll_session->moe, memory_order_relaxed);
    rec->step = (uint32_t)(moe >> 32);
    rec->layer = (uint16_t)(moe >> 16);
    rec->microbatch = (uint16_t)moe;
    rec->phase = (uint8_t)(phase - 1);
}

/* Reserves the record and fills it in. From here on the thread is inside a call. */
static inline void roll_record_begin(struct roll_thread *t, struct roll_call *call, const struct roll_fill *fill,
                                     uint16_t site)
{
    struct roll_ring *ring = &roll_session->ring;
    roll_poll_over(t);
    uint64_t now = roll_clock_now(t);
    struct roll_record *rec = roll_ring_reserve(ring, &call->ticket);
    rec->enter_ns = now;
    rec->count = fill->count;
    rec->seq = fill->seq;
    rec->group = fill->group;
    rec->peer = fill->peer;
    rec->call_ns = 0;
    rec->comm = fill->comm;
    rec->stream = fill->stream;
    rec->callsite = site;
    rec->thread = t->id;
    rec->op = fill->op;
    rec->dtype = fill->dtype;
    rec->redop = fill->redop;
    rec->flags = fill->flags;
    rec->result = 0;
    rec->aux = fill->aux;
    if (ROLL_UNLIKELY(fill->behind != 0)) {
        uint64_t far = call->ticket + 1 - fill->behind;
        rec->aux = (uint16_t)(far <= UINT16_MAX ? far : 0);
    }
    roll_fill_moe(t, rec);
    call->rec = rec;
    call->enter_ns = now;
    call->compared = NULL;
    call->refused = false;
    call->stream = 0;
}

/* Writes the record; `state` is ENTERED, or RETURNED for an observation. */
static inline void roll_record_write(struct roll_thread *t, struct roll_call *call, const struct roll_fill *fill,
                                     uint16_t site, enum roll_state state)
{
    roll_record_begin(t, call, fill, site);
    roll_ring_publish(call->rec, call->ticket, state);
}

/* The id of the group that this thread is in. A group that began before recording did gets its id here. */
static inline uint32_t roll_group_id(struct roll_thread *t)
{
    if (t->group_id == 0) {
        t->group_id = atomic_fetch_add_explicit(&roll_session->groups, 1, memory_order_relaxed) + 1;
    }
    return t->group_id;
}

/* The group that a call belongs to, and its flag. */
static inline void roll_fill_group(struct roll_thread *t, struct roll_fill *fill)
{
    if (ROLL_UNLIKELY(t->group_depth != 0)) {
        fill->group = roll_group_id(t);
        fill->flags |= ROLL_FLAG_IN_GROUP;
        t->group_calls++;
        t->group_stream = t->group_stream != 0 ? t->group_stream : fill->stream;
    }
}

/* A call of an open group is enqueued when the group ends. Of the first few streams of a group the last call is
 * remembered. */
static inline void roll_group_order(struct roll_thread *t, uint16_t stream, uint64_t ticket)
{
    unsigned i = 0;
    while (i < t->group_orders && t->group_order[i].stream != stream) {
        i++;
    }
    if (i < ROLL_GROUP_ORDERS) {
        t->group_order[i].stream = stream;
        t->group_order[i].ticket = ticket;
        t->group_orders = (uint8_t)(i == t->group_orders ? i + 1 : t->group_orders);
    }
}

/* Whether a call has work to do for the device: a capture is open somewhere, or completion is to be learnt. */
static inline bool roll_device_wanted(void)
{
    return (atomic_load_explicit(&roll_captures_open, memory_order_relaxed) |
            atomic_load_explicit(&roll_completion_mode, memory_order_relaxed)) != 0;
}

/* Called when a call on `stream` is entered: notes that the call is captured, or else on which stream its completion
 * will be asked for. In a group the first stream counts, because NCCL joins the group's other streams to that one. */
static inline void roll_device_enter(struct roll_thread *t, cudaStream_t stream, struct roll_comm *comm,
                                     struct roll_fill *fill)
{
    if (atomic_load_explicit(&roll_captures_open, memory_order_relaxed) != 0) {
        roll_captured_enter(t, stream, comm, fill);
    }
    if (!t->captured.pending && atomic_load_explicit(&roll_completion_mode, memory_order_relaxed) != 0 &&
        (t->group_depth == 0 || t->work_id == 0)) {
        t->work_stream = stream;
        t->work_id = fill->stream;
    }
}

static inline void roll_device_leave(struct roll_thread *t, uint64_t ticket, int result)
{
    if (t->captured.pending) {
        roll_captured_leave(t, ticket, result);
    } else if (t->group_depth == 0 && result == ncclSuccess) {
        roll_completion_after(t, ticket); /* a call in progress may not be on the stream yet */
    } else if (t->group_depth == 0) {
        t->work_id = 0;
    }
}

static inline void roll_enter_begin(struct roll_thread *t)
{
    t->depth = 1;
    t->busy = true;
    t->set = ROLL_SET;
    atomic_signal_fence(memory_order_seq_cst);
    if (ROLL_UNLIKELY(t->id == 0)) {
        roll_thread_attach(t);
    }
}

static inline void roll_enter_end(struct roll_thread *t)
{
    atomic_signal_fence(memory_order_seq_cst);
    t->busy = false;
}

/* Closes the record of a call: the real function has returned `result`. */
static inline void roll_leave(struct roll_thread *t, struct roll_call *call, int result)
{
    t->busy = true;
    atomic_signal_fence(memory_order_seq_cst);
    if (ROLL_LIKELY(call->rec != NULL && roll_active())) {
        uint64_t took = roll_clock_now(t) - call->enter_ns;
        roll_ring_return(&roll_session->ring, call->rec, call->ticket, took < UINT32_MAX ? (uint32_t)took : UINT32_MAX,
                         (uint8_t)result);
        if (ROLL_UNLIKELY(result != ncclSuccess && result != ncclInProgress)) {
            roll_refused_call(t, call);
            roll_order_untold(call->stream);
        } else if (ROLL_LIKELY(result == ncclSuccess)) {
            roll_order_enqueued(call->stream, call->ticket);
        }
        /* Fetches the slot that the next call will write, while the application computes. */
        __builtin_prefetch(&roll_session->ring.records[(call->ticket + 2) & roll_session->ring.mask], 1);
        if (ROLL_UNLIKELY(result == ncclInProgress && t->comm != NULL)) {
            atomic_store_explicit(&t->comm->async, (uint8_t)ncclInProgress, memory_order_relaxed);
        }
        if (ROLL_UNLIKELY(t->captured.pending || t->work_id != 0)) {
            roll_device_leave(t, call->ticket, result);
        }
    }
    atomic_signal_fence(memory_order_seq_cst);
    t->busy = false;
    t->depth = 0;
}

static inline bool roll_is_inplace(enum roll_inplace kind, const void *send, const void *recv, uint64_t count,
                                   int dtype, int rank, int root)
{
    uintptr_t s = (uintptr_t)send, r = (uintptr_t)recv;
    uintptr_t block = (uintptr_t)(count * roll_dtype_bytes((unsigned)dtype));
    switch (kind) {
    case ROLL_INPLACE_NEVER:
        return false;
    case ROLL_INPLACE_ALWAYS:
        return true;
    case ROLL_INPLACE_SAME:
        return s == r;
    case ROLL_INPLACE_SEND_AT_RANK:
        return s == r + block * (uintptr_t)rank;
    case ROLL_INPLACE_RECV_AT_RANK:
        return r == s + block * (uintptr_t)rank;
    case ROLL_INPLACE_SEND_AT_ROOT:
        return rank == root && s == r + block * (uintptr_t)root;
    case ROLL_INPLACE_RECV_AT_ROOT:
        return rank == root && r == s + block * (uintptr_t)root;
    }
    return false;
}

/* The properties that every call of one function shares. */
struct roll_kind {
    uint8_t op;
    uint8_t class;
    uint8_t flags;
    uint8_t inplace;
};

/* The number of this call in its order: see seq in trace/record.h. */
static inline uint32_t roll_next_seq(struct roll_comm *comm, const struct roll_kind *kind, uint64_t count, int peer)
{
    if (kind->class == ROLL_CLASS_COLL) {
        uint32_t seq = atomic_load_explicit(&comm->seq, memory_order_relaxed);
        if (count != 0) {
            atomic_store_explicit(&comm->seq, seq + 1, memory_order_relaxed);
        }
        return seq;
    }
    if (kind->class == ROLL_CLASS_P2P && peer >= 0 && peer < comm->nranks) {
        uint32_t *counts = atomic_load_explicit(&comm->p2p, memory_order_relaxed);
        if (counts != NULL) {
            uint32_t *at = &counts[2 * (size_t)peer + (kind->op == ROLL_OP_RECV)];
            uint32_t seq = __atomic_load_n(at, __ATOMIC_RELAXED);
            __atomic_store_n(at, seq + 1, __ATOMIC_RELAXED);
            return seq;
        }
    }
    return 0;
}

/* Enters a call of api.def's CALL rows. pc and frame are those of the wrapper. */
static inline __attribute__((always_inline)) void roll_enter(struct roll_thread *t, struct roll_call *call,
                                                             const struct roll_kind *kind, const void *send,
                                                             const void *recv, uint64_t count, int dtype, int redop,
                                                             int peer, ncclComm_t handle, cudaStream_t stream,
                                                             uintptr_t pc, const uintptr_t *frame)
{
    roll_enter_begin(t);
    struct roll_fill fill = {
        .count = count,
        .peer = peer,
        .op = kind->op,
        .dtype = (unsigned)dtype < ROLL_DTYPE_LIMIT ? (uint8_t)dtype : ROLL_DTYPE_NONE,
        .redop = redop < 0 ? ROLL_RED_NONE : (uint8_t)(redop < ROLL_RED_PREMUL ? redop : ROLL_RED_PREMUL),
        .flags = kind->flags,
    };
    int rank = 0, root = peer;
    struct roll_comm *comm = roll_comm_get(t, handle);
    if (ROLL_LIKELY(comm != NULL)) {
        if (ROLL_UNLIKELY(comm->believed > 0)) {
            peer = roll_comm_place(comm, peer);
            fill.peer = peer;
        }
        fill.comm = (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed);
        fill.flags |= comm->flags;
        fill.seq = roll_next_seq(comm, kind, count, peer);
        rank = ROLL_UNLIKELY(comm->believed > 0) ? comm->own : comm->rank;
    }
    if (stream != NONE_STREAM) {
        fill.stream = roll_stream_id(t, stream, false);
    }
    if (roll_is_inplace((enum roll_inplace)kind->inplace, send, recv, count, dtype, rank, root)) {
        fill.flags |= ROLL_FLAG_INPLACE;
    }
    roll_fill_group(t, &fill);
    if (ROLL_UNLIKELY(roll_device_wanted() && stream != NONE_STREAM)) {
        roll_device_enter(t, stream, comm, &fill);
    }
    bool enqueues = stream != NONE_STREAM && (fill.flags & ROLL_FLAG_CAPTURED) == 0 &&
                    (kind->class == ROLL_CLASS_P2P || (kind->class == ROLL_CLASS_COLL && count != 0));
    if (enqueues && ROLL_UNLIKELY(roll_order_pending(fill.stream))) {
        (void)roll_tell_call(t, &fill);
    }
    uint16_t site = roll_callsite(t, pc, frame);
    roll_record_write(t, call, &fill, site, ROLL_STATE_ENTERED);
    t->frame = (uintptr_t)frame;
    if (enqueues && ROLL_UNLIKELY(t->group_depth != 0)) {
        roll_group_order(t, fill.stream, call->ticket);
    } else if (enqueues) {
        call->stream = fill.stream;
    }
    if (ROLL_UNLIKELY(roll_session->compare != NULL) && comm != NULL) {
        call->refused = roll_failfast_call(t, comm, &fill, site, pc);
        bool numbered = kind->class == ROLL_CLASS_COLL && count != 0 && t->group_depth == 0;
        call->compared = numbered && !call->refused ? comm : NULL;
        call->seq = fill.seq;
        call->op = fill.op;
        call->flags = fill.flags;
    }
    roll_enter_end(t);
}

/* Enters a call whose record the wrapper has filled itself (communicator life, groups, waits). */
static inline void roll_enter_fill(struct roll_thread *t, struct roll_call *call, const struct roll_fill *fill,
                                   uintptr_t pc, const uintptr_t *frame)
{
    roll_record_write(t, call, fill, roll_callsite(t, pc, frame), ROLL_STATE_ENTERED);
    t->frame = (uintptr_t)frame;
}

#define ROLL_PC    ((uintptr_t)__builtin_return_address(0))
#define ROLL_FRAME ((const uintptr_t *)__builtin_frame_address(0))

#endif
