/*
 * dispatcher.h: token dispatchers: rows of tokens to the ranks that own their experts, and back.
 *
 * A dispatcher owns everything between the router's choice and the experts: permutation, exchange of counts,
 * collectives, sorting, and the same in reverse. Each kind issues exactly the collectives of its framework, forward and
 * backward, on the same communicators and in the same order; the table stands at the head of its source file and in
 * docs/MOE.md. Backward is not a function but nodes of the layer's plan (plan.h), one obligation each, so that an
 * observer can compare what all ranks will issue before anybody waits.
 *
 *   kind        collectives on             source
 *   alltoall    tp_ep (counts), ep, etp    Megatron-LM token_dispatcher.py, MoEAlltoAllTokenDispatcher
 *   allgather   tp_ep                      Megatron-LM token_dispatcher.py, MoEAllGatherTokenDispatcher
 *   deepep      tp_ep                      Megatron-LM fused_a2a.py over DeepEP: dispatch, combine
 *   hybridep    tp_ep                      Megatron-LM fused_a2a.py over DeepEP's hybrid-ep: dispatch_with_permute,
 * combine_with_unpermute
 *
 * A layer-forward is: prepare, forward, (experts), combine; then push_dispatch and push_combine put backward on the
 * plan.
 */
#ifndef MOE_DISPATCHER_H
#define MOE_DISPATCHER_H

#include "device.h"
#include "dtype.h"
#include "plan.h"

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_dispatcher moe_dispatcher_t;
struct moe_shared; /* shared.h */
struct moe_shared_weights;

enum moe_dispatcher_kind {
    MOE_DISPATCH_ALLTOALL = 0,
    MOE_DISPATCH_ALLGATHER = 1,
    MOE_DISPATCH_DEEPEP = 2,
    MOE_DISPATCH_HYBRIDEP = 3,
    MOE_DISPATCH_KINDS
};

/* The communicators of a layer; borrowed; NULL is one rank. Ranks of tp_ep: ep rank * size of etp + etp rank. Where ep
 * or etp is of one rank, tp_ep may be NULL and means the other. */
struct moe_groups {
    ncclComm_t ep;    /* expert parallel: each rank has its own experts */
    ncclComm_t etp;   /* expert tensor parallel: each rank has a slice of the same experts */
    ncclComm_t tp_ep; /* etp x ep */
    ncclComm_t tp;    /* attention tensor parallel: shared expert, replicated router */
};

/* What to do about ranks with different numbers of tokens where a kind needs equal ones (hybridep, allgather):
 * moe.md 3.4, Megatron-LM #4816. */
enum moe_uneven {
    MOE_UNEVEN_NONE = 0, /* nothing: different numbers hang (hazard H7) */
    MOE_UNEVEN_MAX, /* remedy R4: all-reduce MAX of T on the dispatch group, rounded up to MOE_TOKEN_ALIGN; one wait */
    MOE_UNEVEN_BOUND, /* remedy R4': to token_bound, no exchange and no wait */
};
#define MOE_TOKEN_ALIGN 64

/*
 * Wrong behaviour of frameworks, for reproduction; all off by default. Hazard numbers of docs/MOE.md. A kind that has
 * no such behaviour refuses it. The `empty_` members and static_rows ask moe_remedies when they are about to happen:
 * FILL and SPLITS cure them; SANITIZE zeroes what slack_uninitialised leaves.
 */
struct moe_dispatcher_legacy {
    bool empty_unpermute;  /* H4: combine of a rank without rows gives 0 rows, whatever shape was asked for */
    bool empty_from_input; /* H5: a rank without rows takes its expert rows from its own input: dispatch has no backward
                            */
    bool empty_returns_early; /* H6: a rank without rows leaves dispatch early and never enters combine */
    bool static_rows;         /* H12: the buffer has T k rows even where the routing map has fewer ones: SPLIT on that
                                 rank alone; with slack_uninitialised its last rows are sent as they are */
    bool local_capacity;      /* H13: the capacity is computed from this rank's own T */
    bool slack_uninitialised; /* H14: rows beyond the sum of m keep what the memory held */
};

struct moe_dispatcher_config {
    enum moe_dispatcher_kind kind;
    int64_t max_tokens; /* T at most, on any rank of the group: all ranks must give the same */
    int64_t hidden, experts;
    int32_t topk;
    enum moe_dtype type; /* of rows: float32, bfloat16, float16 */
    bool probs_travel; /* probabilities go with the rows (prob places ACTIVATION and INPUT); else they are merged at the
                          source */
    int64_t expert_capacity; /* drop-and-pad: rows of each expert from each rank, equal on all ranks; 0: as the counts
                                say. No counts are exchanged then */
    int64_t row_multiple;    /* rows of each local expert are padded to a multiple (quantised types); 0 or 1: no */
    int64_t row_budget;      /* hybridep: rows received at most, without a wait for the number; the rest is dropped and
                                flagged; 0: exact, one wait */
    enum moe_uneven uneven;
    int64_t token_bound; /* UNEVEN_BOUND */
    float budget_factor; /* hybridep, instead of row_budget: int(T_pad k factor), rounded up to row_multiple, in each
                            layer-forward */
    int32_t node_ranks;  /* deepep, hybridep: ranks of the group on this node; 0: found by host names (ep_buffer.h) */
    struct moe_groups groups;
    struct moe_shared *shared; /* a shared expert to overlap with (alltoall); borrowed; NULL: none */
    struct moe_dispatcher_legacy legacy;
    int32_t world_rank; /* for messages */
    uint32_t layer;     /* for messages */
};

/* The router's choice; device memory, borrowed until backward has run. */
struct moe_routing {
    int64_t tokens;        /* T */
    const int32_t *index;  /* [T,k], -1: dropped or masked */
    const float *probs;    /* [T,E] */
    const int64_t *counts; /* [E] of this rank; in drop-and-pad the capacity for every expert */
};

/* What is known on the host after prepare. */
struct moe_dispatch_plan {
    int64_t sent;          /* rows of the source-ordered buffer, padding included */
    int64_t received;      /* rows of the experts' buffer: exact, or the budget */
    bool exact;            /* `received` is the number of rows, not only a bound */
    int64_t padded;        /* zero rows of remedy PAD among them, on this rank */
    int64_t filler;        /* zero rows that row_multiple adds among them; 0 where only the device knows */
    int64_t empty_experts; /* local experts without rows; -1: not known on the host */
    int64_t slack;         /* rows beyond those that the routing map fills, legacy static_rows */
    uint32_t remedied;     /* local remedies that cured something in this forward: remedy.h */
    int32_t peers;         /* members of the all-to-all; 0: no splits (allgather) */
    const int64_t *split_sent, *split_received; /* [peers] rows; borrowed until the next prepare */
};

/* *out is owned; borrows device, groups, shared. Errors: NOMEM, SHAPE (E no multiple of ep, ranks that do not fit
 * tp_ep), UNSUPPORTED (an option that the kind does not have), COMM. One thread at a time. */
int moe_dispatcher_new(moe_device_t *device, const struct moe_dispatcher_config *config, moe_dispatcher_t **out);
void moe_dispatcher_destroy(moe_dispatcher_t **dispatcher);

/* "alltoall", "allgather", "deepep", "hybridep"; "?" for a number that is no kind. Static storage. */
const char *moe_dispatcher_name(enum moe_dispatcher_kind kind);

/* The group on which all ranks that share experts or slices of them meet: tp_ep, else ep. Borrowed; NULL: one rank. And
 * its size, and this rank in it. */
ncclComm_t moe_dispatcher_comm(const moe_dispatcher_t *dispatcher);
int32_t moe_dispatcher_ranks(const moe_dispatcher_t *dispatcher);
int32_t moe_dispatcher_rank(const moe_dispatcher_t *dispatcher);
/* Experts of this rank. */
int64_t moe_dispatcher_local(const moe_dispatcher_t *dispatcher);
/* Rows that the experts' buffer can have at most: for the experts' max_rows. */
int64_t moe_dispatcher_max_rows(const moe_dispatcher_t *dispatcher);

/* Before prepare: step, microbatch, layer and phase of the layer-forward, for what the dispatcher reports itself:
 * MOE_UNIFORM (observe.h), a number that all ranks need alike and that nothing here makes so. */
void moe_dispatcher_at(moe_dispatcher_t *dispatcher, const struct moe_event *at);

/*
 * Exchanges what the kind exchanges (counts, routing maps, numbers of tokens) and with it the remedies that this rank
 * proposes; *agreed is the bitwise AND of all ranks' proposals, the same on every rank; 0 where a kind exchanges
 * nothing (alltoall with expert_capacity). PAD is in force in the same forward; UNEVEN and BOUND, which change the
 * exchange itself, in the next one. Waits for the stream where the kind needs host numbers. Errors, local and before
 * any collective: SHAPE (T), ARG (a pointer is missing). From the exchanged numbers, so that every rank of the group
 * fails alike and nobody waits: COUNT (a count is negative or more than max_tokens), SPLIT (a rank's counts add up to
 * more than its T k). COMM, DEVICE.
 */
int moe_dispatcher_prepare(moe_dispatcher_t *dispatcher, const struct moe_routing *routing, uint32_t proposed,
                           uint32_t *agreed);

/* The plan of the last prepare. Borrowed. */
const struct moe_dispatch_plan *moe_dispatcher_plan(const moe_dispatcher_t *dispatcher);

/* x [T,H] to the experts' ranks; the result is in the buffers below. Errors: STATE (no prepare), COMM, DEVICE. */
int moe_dispatcher_forward(moe_dispatcher_t *dispatcher, const void *x);

/* After forward: rows in expert-major order [received,H], their probabilities [received] (NULL where none travel), rows
 * per local expert [L] on the device. Borrowed until the next forward. */
const void *moe_dispatcher_rows(const moe_dispatcher_t *dispatcher);
const float *moe_dispatcher_row_probs(const moe_dispatcher_t *dispatcher);
const int64_t *moe_dispatcher_m(const moe_dispatcher_t *dispatcher);
/* Where the experts write [received,H]; combine reads it. Borrowed. */
void *moe_dispatcher_expert_out(moe_dispatcher_t *dispatcher);

/* With a shared expert: its weights (shared.h), borrowed until backward has run; before forward. */
void moe_dispatcher_set_shared_weights(moe_dispatcher_t *dispatcher, const struct moe_shared_weights *weights);

/*
 * The experts of this rank were left out and their output is fresh memory without a history (hazard H1; what autograd
 * makes of it): no collective of this forward has a backward; push_dispatch pushes nothing, push_combine what the
 * source does for its probabilities. After forward, for this forward.
 */
void moe_dispatcher_detach(moe_dispatcher_t *dispatcher);

/* The experts' output back to the tokens: y [T,H] is overwritten, with a shared expert its output is in it. Errors as
 * forward; SHAPE with legacy.empty_unpermute. */
int moe_dispatcher_combine(moe_dispatcher_t *dispatcher, void *y);

/* Backward's nodes, in forward's order: dispatch's before the experts' node is pushed, combine's after. */
int moe_dispatcher_push_dispatch(moe_dispatcher_t *dispatcher, struct moe_plan *plan);
int moe_dispatcher_push_combine(moe_dispatcher_t *dispatcher, struct moe_plan *plan);

/* Before the plan runs: dy [T,H] is read, dx [T,H] is added to. Without it the nodes fail with STATE. */
void moe_dispatcher_begin_backward(moe_dispatcher_t *dispatcher, const void *dy, void *dx);
/* Where combine's backward leaves the gradient of the experts' output [received,H], and where the experts leave those
 * of their rows and probabilities. */
const void *moe_dispatcher_d_expert_out(const moe_dispatcher_t *dispatcher);
void *moe_dispatcher_d_rows(moe_dispatcher_t *dispatcher);
float *moe_dispatcher_d_row_probs(moe_dispatcher_t *dispatcher);
/* After the plan's dispatch nodes: gradient of the probabilities [T,E], every element written. Borrowed. */
const float *moe_dispatcher_d_probs(const moe_dispatcher_t *dispatcher);

#ifdef __cplusplus
}
#endif
#endif
