/*
 * moe.c: moe_core's tool interface (moe/observe.h), defined again here so that moe_core's calls come here first.
 *
 * An observation becomes a record, complete when written. It also sets the context that the NCCL records until the next
 * observation carry: the last event of the same thread, else of the process. The remedies are read from the control
 * page, word by word and without a lock; the library's own mask is always added, so that MOE_REMEDIES keeps working.
 */
#include "interposer/wrap/call.h"
#include "moe_core/include/moe/observe.h"

#include <string.h>

/* moe_core is built without trace/, so its numbers are its own: an event's kind and phase go into records as they are.
 */
#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "an event of moe_core has the numbers of a record")
SAME(MOE_PHASE_NONE, ROLL_PHASE_NONE);
SAME(MOE_PHASE_FORWARD, ROLL_PHASE_FORWARD);
SAME(MOE_PHASE_BACKWARD, ROLL_PHASE_BACKWARD);
SAME(MOE_PHASE_RECOMPUTE, ROLL_PHASE_RECOMPUTE);
SAME(MOE_PHASE_REDUCE, ROLL_PHASE_REDUCE);
SAME(MOE_PHASE_OPTIMIZER, ROLL_PHASE_OPTIMIZER);
SAME(MOE_EV_STEP, ROLL_OP_MOE_STEP);
SAME(MOE_EV_ROUTE, ROLL_OP_MOE_ROUTE);
SAME(MOE_EV_COUNTS, ROLL_OP_MOE_COUNTS);
SAME(MOE_EV_SPLIT, ROLL_OP_MOE_SPLIT);
SAME(MOE_EV_GEMM, ROLL_OP_MOE_GEMM);
SAME(MOE_EV_SKIP, ROLL_OP_MOE_SKIP);
SAME(MOE_EV_OBLIGE, ROLL_OP_MOE_OBLIGE);
SAME(MOE_EV_OBLIGE_END, ROLL_OP_MOE_OBLIGE_END);
SAME(MOE_EV_REMEDY, ROLL_OP_MOE_REMEDY);
SAME(MOE_EV_UNIFORM, ROLL_OP_MOE_UNIFORM);
SAME(MOE_EV_TENSOR, ROLL_OP_MOE_TENSOR);
#undef SAME

ROLL_EXPORT void moe_observe(const struct moe_event *event);
ROLL_EXPORT uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard);

static uint32_t saturate32(uint64_t value)
{
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static uint16_t saturate16(uint64_t value)
{
    return value < UINT16_MAX ? (uint16_t)value : UINT16_MAX;
}

static void set_context(struct roll_thread *t, const struct moe_event *event)
{
    t->moe.step = event->step;
    t->moe.microbatch = event->microbatch;
    t->moe.layer = event->layer;
    t->moe.phase = event->phase;
    t->moe_known = true;
    atomic_store_explicit(&roll_session->has_moe, true, memory_order_relaxed);
    uint64_t packed = (uint64_t)event->step << 32 | (uint64_t)event->layer << 16 | event->microbatch;
    atomic_store_explicit(&roll_session->moe, packed, memory_order_relaxed);
    atomic_store_explicit(&roll_session->moe_phase, event->phase + 1u, memory_order_release);
}

void moe_observe(const struct moe_event *event)
{
    struct roll_thread *t = &roll_thread_self;
    if (event == NULL || !roll_wanted(t)) {
        return;
    }
    /* A member that the writer's struct does not have counts as zero. */
    struct moe_event seen;
    memset(&seen, 0, sizeof(seen));
    memcpy(&seen, event, event->size < sizeof(seen) ? event->size : sizeof(seen));
    if (seen.kind < ROLL_OP_MOE_STEP || seen.kind > ROLL_OP_MOE_TENSOR) {
        atomic_fetch_add_explicit(&roll_session->ring.header->losses[ROLL_LOSS_MOE_KIND], 1, memory_order_relaxed);
        return;
    }
    seen.phase = seen.phase <= ROLL_PHASE_OPTIMIZER
                     ? seen.phase
                     : ROLL_PHASE_NONE; /* readers would refuse the record with another phase */
    roll_enter_begin(t);
    set_context(t, &seen);
    struct roll_comm *comm = seen.comm != NULL ? roll_comm_get(t, (ncclComm_t)seen.comm) : NULL;
    struct roll_fill fill = {
        .count = seen.count,
        .seq = seen.kind == ROLL_OP_MOE_OBLIGE ? seen.aux : 0,
        .group = saturate32(seen.count2),
        .peer = seen.peer,
        .comm = comm != NULL ? (uint16_t)atomic_load_explicit(&comm->id, memory_order_relaxed) : 0,
        .aux = saturate16(seen.aux),
        .op = (uint8_t)seen.kind,
        .dtype = ROLL_DTYPE_NONE,
        .redop = ROLL_RED_NONE,
    };
    struct roll_call call;
    roll_record_write(t, &call, &fill, roll_callsite(t, ROLL_PC, ROLL_FRAME), ROLL_STATE_RETURNED);
    roll_enter_end(t);
    t->depth = 0;
}

uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard)
{
    typedef uint32_t (*real_t)(void *, uint32_t, uint32_t);
    static _Atomic(real_t) cached;
    real_t real = atomic_load_explicit(&cached, memory_order_acquire);
    if (ROLL_UNLIKELY(real == NULL)) {
        real = (real_t)roll_symbol_resolve("moe_remedies", "libmoe_core.so");
        atomic_store_explicit(&cached, real, memory_order_release);
    }
    uint32_t mask = real != NULL ? real(comm, layer, hazard) : 0;
    struct roll_control *control = roll_active() ? roll_session->control : NULL;
    if (control != NULL) {
        struct roll_comm *entry = comm != NULL ? roll_comm_find((ncclComm_t)comm) : NULL;
        mask |= roll_control_mask(control, entry != NULL ? entry->def.key : 0, layer, hazard);
    }
    return mask;
}
