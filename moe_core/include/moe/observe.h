/*
 * observe.h: the tool interface of moe_core: what the library tells an observer, and what it asks.
 *
 * moe_observe and moe_remedies are ordinary exported functions of libmoe_core.so that are called through the PLT, so a
 * preloaded tool that defines them again sees every call. The library's own versions do the least: moe_observe does
 * nothing, and moe_remedies returns the mask of the environment variable MOE_REMEDIES (labels of common/remedy.def,
 * separated by commas). Registered callbacks were rejected: a preload library would have to find and set them in every
 * process, at the right time.
 */
#ifndef MOE_OBSERVE_H
#define MOE_OBSERVE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where in a training step an event happened. The interposer asserts that the numbers are those of enum roll_phase. */
enum moe_phase {
    MOE_PHASE_NONE = 0,
    MOE_PHASE_FORWARD = 1,
    MOE_PHASE_BACKWARD = 2,
    MOE_PHASE_RECOMPUTE = 3,
    MOE_PHASE_REDUCE = 4, /* gradient reduction */
    MOE_PHASE_OPTIMIZER = 5,
};

/*
 * One event. `kind` is one of enum moe_event_kind, whose numbers the interposer asserts to be those of the MOE
 * operations of trace/op.def; `phase` is one of enum moe_phase. The table below says what comm, count, count2, peer and
 * aux mean for each kind.
 */
struct moe_event {
    uint32_t size; /* sizeof(struct moe_event) of the writer; a reader uses no member beyond this size */
    uint16_t kind;
    uint8_t phase;
    uint8_t reserved;
    uint32_t step;       /* training step, from 0; UINT32_MAX outside of steps */
    uint16_t microbatch; /* in the step, from 0 */
    uint16_t layer;      /* MoE layer, from 0; UINT16_MAX: no layer */
    int32_t peer;        /* see the table */
    uint32_t aux;        /* see the table */
    uint64_t count;      /* see the table */
    uint64_t count2;     /* see the table */
    void *comm;          /* the ncclComm_t that the event is about, or NULL */
};

/*
 * The kinds of events, and what the members of struct moe_event mean for each:
 *
 * kind        comm  count                      count2                 peer                  aux
 * STEP        -     local tokens               0                      -1                    0
 * ROUTE       ep    source tokens T            0                      experts E             top-k
 * COUNTS      ep    rows R received in         rows of the buffer     local experts L       local experts without rows
 *                   dispatch                   that is sent;
 *                                              0: not known
 * SPLIT       ep    rows sent to peer          rows received          ep rank of the peer   0
 * GEMM        ep    rows                       0                      groups                groups without rows
 * SKIP        ep    0                          0                      local experts L       0
 * OBLIGE      (1)   elements; 0 where ranks    0                      operation id that     index in the layer's list,
 *                   differ (all-to-all-v)                             backward will issue   from 0
 * OBLIGE_END  ep    obligations in the list    0                      -1                    0
 * REMEDY      ep    rows of zeros used         0                      remedy bit            0
 * UNIFORM     (1)   a number that all members  0                      enum moe_uniform      0
 *                   of comm must have alike
 * TENSOR      (1)   see below                  see below              enum moe_tensor       enum moe_tensor_fact
 *
 * (1) the communicator of the collective, of the number, or of the tensor
 *
 * SKIP says that the experts were skipped because the rank received no rows.
 *
 * UNIFORM is reported before the first collective that needs the number, and only where nothing pads the number or
 * agrees on it: ranks whose numbers differ will hang, or fail (a buffer).
 *
 * TENSOR is reported once per step (microbatch 0). comm holds the ranks that have replicas of the tensor, or that sum
 * its gradient:
 *
 *   REPLICA    count: checksum of the tensor's bits (ops.h), equal on all members
 *   PART       count: bits of a double, the sum with fixed signs (moe_sum_abs of ops.h) of this rank's share of a
 *              float32 gradient as it enters its reduction (scaled already);
 *              count2: bits of a float, the sum of the absolute values of that share
 *   SUM        count: the double of PART, of the gradient that is used: the sum of all members' PARTs; count2: 0
 *   NOTFINITE  count: elements that are not finite; count2: those of them in experts without rows; reported only when
 *              there are any
 *
 * A SPLIT of phase RECOMPUTE must equal the SPLIT of phase FORWARD of the same step, microbatch and layer.
 *
 * In rollcall's records count becomes count, count2 becomes group (saturating), peer becomes peer, aux becomes aux
 * (saturating), and the aux of OBLIGE becomes seq. A layer reports its list of obligations in forward, in the order in
 * which backward will issue them, and closes the list with OBLIGE_END even when it is empty. Source of the semantics:
 * Megatron-LM token_dispatcher (AlltoAll), pull requests #3626 and #4851.
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

/* Numbers that all ranks of a communicator need alike. */
enum moe_uniform {
    MOE_UNIFORM_TOKENS = 0, /* T, where a dispatcher needs equal numbers (Megatron-LM #4816, hazard H7) */
    MOE_UNIFORM_CAPACITY =
        1, /* rows that each expert gets from each rank, where splits are equal (DeepSpeed #6809, H13) */
    MOE_UNIFORM_BUFFER = 2, /* bytes of a communication buffer that is made collectively */
};

/* Tensors that facts are about. */
enum moe_tensor {
    MOE_TENSOR_ROUTER = 0,
    MOE_TENSOR_ROUTER_BIAS = 1,
    MOE_TENSOR_EXPERT_BIAS = 2,
    MOE_TENSOR_SHARED = 3,
    MOE_TENSOR_EXPERTS = 4,
    MOE_TENSOR_DENSE = 5,
    MOE_TENSOR_NORM = 6
};
/* Facts about a tensor, in the table above. */
enum moe_tensor_fact { MOE_TENSOR_REPLICA = 0, MOE_TENSOR_PART = 1, MOE_TENSOR_SUM = 2, MOE_TENSOR_NOTFINITE = 3 };

/* Reports one event, borrowed for the call. Any thread; a replacement must not block, allocate or fail. */
void moe_observe(const struct moe_event *event);

/*
 * Returns the remedies to use now, as bits of common/remedy.def, for `layer` on this rank and the ep communicator
 * `comm` (ncclComm_t, may be NULL). `hazard` is the mask of remedies that would cure what the caller is about to do
 * wrong; 0: nothing is wrong. Under policy auto those remedies are granted at once: a local one then acts, and a
 * symmetric one is proposed to the group as if it had been switched on. Any thread; a replacement must be wait-free.
 */
uint32_t moe_remedies(void *comm, uint32_t layer, uint32_t hazard);

#ifdef __cplusplus
}
#endif
#endif
