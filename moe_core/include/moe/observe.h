/*
 * observe.h: the tool interface of moe_core: what the library tells an observer, and what it asks.
 *
 * Both functions are ordinary exported functions of libmoe_core.so, called through the PLT: a preloaded tool defines
 * them again and so sees everything. The library's own versions do the least: moe_observe nothing, moe_remedies
 * the mask of the environment variable MOE_REMEDIES (labels of trace/remedy.def, comma separated). Registered callbacks were rejected:
 * a preload library would have to find and set them in every process, at the right time.
 */
#ifndef MOE_OBSERVE_H
#define MOE_OBSERVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds equal the MOE operation ids of trace/op.def; phases equal enum roll_phase of trace/op.h. */
struct moe_event {
    uint32_t size; /* sizeof(struct moe_event) of the writer; readers use no member beyond it */
    uint16_t kind;
    uint8_t phase;
    uint8_t reserved;
    uint32_t step;       /* training step, from 0 */
    uint16_t microbatch; /* in the step, from 0 */
    uint16_t layer;      /* MoE layer, from 0; UINT16_MAX where it means none */
    int32_t peer;        /* see the table */
    uint32_t aux;        /* see the table */
    uint64_t count;      /* see the table */
    uint64_t count2;     /* see the table */
    void *comm;          /* the ncclComm_t that the event is about, or NULL */
};

/*
 * kind             comm  count                      count2              peer                 aux
 * MOE_STEP         -     local tokens               0                   -1                   0
 * MOE_ROUTE        ep    source tokens T            0                   experts E            top-k
 * MOE_COUNTS       ep    rows R received in dispatch 0                  local experts L      local experts without rows
 * MOE_SPLIT        ep    rows sent to peer          rows received       ep rank of the peer  0
 * MOE_GEMM         ep    rows                       0                   groups               groups without rows
 * MOE_SKIP         ep    0                          0                   local experts L      0     (experts skipped: no rows)
 * MOE_OBLIGE       the   elements, 0 where they     0                   operation id that    index in the layer's list,
 *                  comm  differ by rank (all-to-all-v)                  backward will issue  from 0
 * MOE_OBLIGE_END   ep    obligations in the list    0                   -1                   0
 * MOE_REMEDY       ep    rows of zeros used         0                   remedy bit           0
 *
 * In records: count -> count, count2 -> group (saturating), peer -> peer, aux -> aux (saturating), aux of MOE_OBLIGE -> seq.
 * A layer's list of obligations is reported in forward, in the order in which backward will issue them, and closed by MOE_OBLIGE_END,
 * also when it is empty. Source of the semantics: Megatron-LM token_dispatcher (AlltoAll), pull requests #3626 and #4851.
 */
enum moe_event_kind {
    MOE_EV_STEP = 64,
    MOE_EV_ROUTE = 65,
    MOE_EV_COUNTS = 66,
    MOE_EV_SPLIT = 67,
    MOE_EV_GEMM = 68,
    MOE_EV_SKIP = 69,
    MOE_EV_OBLIGE = 70,
    MOE_EV_OBLIGE_END = 71,
    MOE_EV_REMEDY = 72,
};

/* Reports one event. Borrows event for the call. Any thread; must not block, allocate or fail. */
void moe_observe(const struct moe_event *event);

/*
 * The remedies to use now, as bits of trace/remedy.def, for this layer on this ep communicator (ncclComm_t, may be NULL).
 * `hazard`: the local remedies that would cure what the caller is about to do wrong (0 = nothing is wrong): under policy
 * auto these are granted at once. Any thread; wait-free.
 */
uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard);

#ifdef __cplusplus
}
#endif
#endif
