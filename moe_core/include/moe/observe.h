/*
 * observe.h: the tool interface of moe_core: what the library tells an observer, and what it asks.
 *
 * Both functions are ordinary exported functions of libmoe_core.so, called through the PLT: a preloaded tool defines
 * them again and so sees everything. The library's own versions do the least: moe_observe nothing, moe_remedies
 * the mask of the environment variable MOE_REMEDIES (labels of trace/remedy.def, comma separated). Registered callbacks
 * were rejected: a preload library would have to find and set them in every process, at the right time.
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
    uint32_t step;       /* training step, from 0; UINT32_MAX outside of steps */
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
 * MOE_COUNTS       ep    rows R received in dispatch rows of the buffer local experts L      local experts without rows
 *                                                   that is sent; 0: not known
 * MOE_SPLIT        ep    rows sent to peer          rows received       ep rank of the peer  0
 * MOE_GEMM         ep    rows                       0                   groups               groups without rows
 * MOE_SKIP         ep    0                          0                   local experts L      0     (experts skipped: no
 * rows) MOE_OBLIGE       the   elements, 0 where they     0                   operation id that    index in the layer's
 * list, comm  differ by rank (all-to-all-v)                  backward will issue  from 0 MOE_OBLIGE_END   ep
 * obligations in the list    0                   -1                   0 MOE_REMEDY       ep    rows of zeros used 0
 * remedy bit           0 MOE_UNIFORM      the   a number that all members  0                   enum moe_uniform:    0
 *                  comm  of comm must have alike                        what it counts
 * MOE_TENSOR       the   by aux, see below          0                   enum moe_tensor:     enum moe_tensor_fact
 *                  comm                                                 which tensor
 *
 * MOE_UNIFORM is reported before the first collective that needs the number, and only where nothing pads or agrees on
 * it: ranks that differ will hang, or fail (a buffer). MOE_TENSOR, comm being the ranks that hold replicas of the
 * tensor or sum its gradient, once per step (microbatch 0): REPLICA    count: checksum of its bits (ops.h), to be equal
 * on all members PART       count: bits of a double, the sum, with fixed signs (moe_sum_abs of ops.h), of the elements
 * of this rank's share of a float32 gradient as it enters its reduction (scaled already); count2: bits of a float, the
 * sum of their absolute values SUM        count: bits of a double, the same of the gradient that is used: the sum of
 * all members' PARTs NOTFINITE  count: elements that are no finite number, count2 those of them in experts without
 * rows; reported only when there are any Members of a MOE_SPLIT of phase RECOMPUTE must equal those of phase FORWARD of
 * the same step, microbatch and layer.
 *
 * In records: count -> count, count2 -> group (saturating), peer -> peer, aux -> aux (saturating), aux of MOE_OBLIGE ->
 * seq. A layer's list of obligations is reported in forward, in the order in which backward will issue them, and closed
 * by MOE_OBLIGE_END, also when it is empty. Source of the semantics: Megatron-LM token_dispatcher (AlltoAll), pull
 * requests #3626 and #4851.
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
    MOE_EV_UNIFORM = 73,
    MOE_EV_TENSOR = 74,
};

enum moe_uniform {
    MOE_UNIFORM_TOKENS = 0, /* T, where a dispatcher needs equal ones (Megatron-LM #4816, hazard H7) */
    MOE_UNIFORM_CAPACITY =
        1, /* rows that each expert gets from each rank, where splits are equal (DeepSpeed #6809, H13) */
    MOE_UNIFORM_BUFFER = 2, /* bytes of a communication buffer that is made collectively */
};

enum moe_tensor {
    MOE_TENSOR_ROUTER = 0,
    MOE_TENSOR_ROUTER_BIAS = 1,
    MOE_TENSOR_EXPERT_BIAS = 2,
    MOE_TENSOR_SHARED = 3,
    MOE_TENSOR_EXPERTS = 4,
    MOE_TENSOR_DENSE = 5,
    MOE_TENSOR_NORM = 6
};
enum moe_tensor_fact { MOE_TENSOR_REPLICA = 0, MOE_TENSOR_PART = 1, MOE_TENSOR_SUM = 2, MOE_TENSOR_NOTFINITE = 3 };

/* Reports one event. Borrows event for the call. Any thread; must not block, allocate or fail. */
void moe_observe(const struct moe_event *event);

/*
 * The remedies to use now, as bits of trace/remedy.def, for this layer on this ep communicator (ncclComm_t, may be
 * NULL). `hazard`: the remedies that would cure what the caller is about to do wrong (0 = nothing is wrong): under
 * policy auto these are granted at once. A local one then acts; a symmetric one is proposed to the group, as one that
 * was switched on. Any thread; wait-free.
 */
uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard);

#ifdef __cplusplus
}
#endif
#endif
